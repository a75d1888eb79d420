"""Where the time between a trainer's death and the next one's first step goes, told once for each restart."""

import time
from typing import Any

from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.trainer_side import Say

ENDS: dict[type, str] = {
    e.TrainerExited: "exit",
    e.TreeSwept: "sweep",
    c.JudgeLadder: "delay",
    e.LadderJudged: "judge",
    c.SpawnTrainer: "choose",
    e.TrainerSpawned: "start",
    e.StepReported: "first_step",
}
"""What ends which stage: the last words read, no process left, the backoff over, the directory read, a snapshot chosen, the
memory written and a process started, a step told. A stage that comes again is added to.
"""


class Timeline:
    """For the loop's thread, which shows it every event and order as it takes it."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._stages: dict[str, float] | None = None
        self._since = 0.0

    def take(self, what: e.Event | c.Command, noticed_at: float | None) -> None:
        """Count what has passed since the last; `noticed_at` is when the loop saw the trainer dead, in monotonic seconds."""
        if isinstance(what, e.PauseRequested | e.ResumeRequested):
            self._stages = None  # how long people pause is no matter of a restart
        name = ENDS.get(type(what))
        if name is None:
            return
        if name == "exit":
            self._stages, self._since = {}, noticed_at or time.monotonic()
        if self._stages is None or (name == "first_step" and "start" not in self._stages):
            return
        now = time.monotonic()
        self._stages[name] = self._stages.get(name, 0.0) + now - self._since
        self._since = now
        if name == "first_step":
            stages, self._stages = self._stages, None
            told: dict[str, Any] = {key: round(seconds * 1000, 3) for key, seconds in stages.items()}
            self._say("restart.timeline", {"stages": told, "total": round(sum(told.values()), 3)})

"""The goodput of a run, reckoned from its records: what its time went to, what deaths cost, and how often to save. Pure.

A run's time is what passed between its records, in their order: a clock that was set back adds nothing, and nothing is ever
negative. Each stretch is training (a trainer lives), downtime of a cause, or off (stopped on request, paused, completed). From a
trainer's death to the next start is downtime of what the death was put down to. Four other causes: `starting`, before a first
start and after time off; `stuck`, while processes would not die; `failed`, after a run that ended without a death;
`supervisor-lost`, from the last word of a supervisor that did not stop to the next trainer. What a stall took is downtime too.

Steps are known from what the records tell: the step a life began from, those of its proven snapshots, and the last one it told. A
start from a step higher than any told proves that it had been reached. Of a life whose supervisor died with it no more is known.
"""

import copy
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from supervisor.saving import NUMBER_MAX, Saves, number, save_interval

STARTING: Final = "starting"
STUCK: Final = "stuck"
FAILED: Final = "failed"
LOST: Final = "supervisor-lost"
STALLED: Final = "stalled"
TRAINING: Final = "training"  # no cause of downtime, but where time goes
OFF: Final = "off"
WISHED: Final = frozenset({"completed", "stopped"})
"""Exits that are no failure."""
BEGINNINGS: Final = frozenset({"supervisor.started", "trainer.spawned"})
"""Records with which another run may begin: the first may be lost on a full disk."""


@dataclass(frozen=True)
class Goodput:
    """What a run's time went to; seconds, and None where nothing tells.

    `useful_steps` is the highest step reached minus the first one resumed from; `repeated_steps` are those done again. Together
    they are all that were done. A life's time counts as useful by the share of useful steps in it, start-up and saves included.
    `goodput` is `useful_seconds` / `wall_seconds`; the latter is the time since the run began without what it was off, which is
    `training_seconds` and all `downtime`. `failures` counts deaths that nobody asked for, by cause.
    """

    useful_steps: int = 0
    repeated_steps: int = 0
    wall_seconds: float = 0.0
    off_seconds: float = 0.0
    training_seconds: float = 0.0
    useful_seconds: float | None = None
    goodput: float | None = None
    downtime: dict[str, float] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    mtbf_seconds: float | None = None
    save_seconds: float | None = None
    save_every_seconds: float | None = None
    save_every_steps: int | None = None


@dataclass
class _Life:
    """A trainer's life: the step it began from, the highest it told, and how long it lived."""

    start: int | None
    last: int | None
    seconds: float = 0.0
    ended: bool = False

    def told(self, step: int | None) -> None:
        if step is not None and (self.last is None or step > self.last):
            self.last = step


class Account:
    """Folds the records of a run, in the order of their lines; those of an earlier run in the same directory do not count.

    Nor does what a supervisor of another run that was left over still writes there: a run begins with a start.
    """

    def __init__(self) -> None:
        self._run_id: Any = None
        self._begin()

    def _begin(self) -> None:
        self._at: float | None = None
        self._where = STARTING
        self._supervised = False
        self._life: _Life | None = None
        self._incarnation: Any = None
        self._high: int | None = None
        self._useful, self._repeated = 0, 0
        self._useful_seconds = 0.0
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failures: Counter[str] = Counter()

    def add(self, record: dict[str, Any]) -> None:
        """Take in one record. Whatever it holds, it is counted or passed over."""
        event = str(record.get("event"))
        if record.get("run_id") != self._run_id:
            if self._run_id is not None and event not in BEGINNINGS:
                return
            self._run_id = record.get("run_id")
            self._begin()
        at = unix_seconds(record.get("timestamp"))
        if event == "supervisor.started" and self._supervised:
            self._lose_supervisor()
        if at is not None:
            self._pass(at)
        if (act := _ACTS.get(event)) is not None:
            act(self, record)

    def goodput(
        self,
        saves: Saves | None = None,
        *,
        now: float | None = None,
        alive_at: float | None = None,
        incarnation: Any = None,
        step: Any = None,
    ) -> Goodput:
        """What the records say, as of `now` in unix seconds, else as of the last of them.

        `alive_at` is when the supervisor was last known to live, None when it lives now; `step` is the newest step that
        `incarnation` told. Nothing of these is kept.
        """
        account = copy.copy(self)
        account._life = copy.copy(self._life)
        account._seconds, account._failures = self._seconds.copy(), self._failures.copy()
        account._look(now, alive_at, incarnation, step)
        return account._result(saves)

    def _look(self, now: float | None, alive_at: float | None, incarnation: Any, step: Any) -> None:
        if self._life is not None and incarnation is not None and incarnation == self._incarnation:
            self._life.told(_step(step))
        if now is not None and self._at is not None:
            if alive_at is not None and self._supervised:
                self._pass(max(self._at, min(alive_at, now)))
                self._lose_supervisor()
            self._pass(now)
        self._settle()

    def _result(self, saves: Saves | None) -> Goodput:
        longest = sorted(self._seconds.items(), key=lambda one: -one[1])
        downtime = {cause: seconds for cause, seconds in longest if cause not in (TRAINING, OFF) and seconds > 0}
        training, off = max(0.0, self._seconds[TRAINING]), self._seconds[OFF]
        wall = training + sum(downtime.values())
        done, deaths = self._useful + self._repeated, sum(self._failures.values())
        useful = min(self._useful_seconds, training) if done else None
        mtbf = training / deaths if deaths and training > 0 else None
        cost = None if saves is None else saves.seconds
        every = None if cost is None or mtbf is None else save_interval(cost, mtbf)
        return Goodput(
            useful_steps=self._useful,
            repeated_steps=self._repeated,
            wall_seconds=wall,
            off_seconds=off,
            training_seconds=training,
            useful_seconds=useful,
            goodput=None if useful is None or wall <= 0 else min(1.0, useful / wall),
            downtime=downtime,
            failures=dict(self._failures.most_common()),
            mtbf_seconds=mtbf,
            save_seconds=cost,
            save_every_seconds=every,
            save_every_steps=None if every is None or not done else max(1, round(every * done / training)),
        )

    def _pass(self, at: float) -> None:
        """Time went by, to wherever the run is; backwards it does not go."""
        passed = 0.0 if self._at is None else max(0.0, at - self._at)
        self._at = at
        self._spend(self._where, passed)

    def _spend(self, where: str, seconds: float) -> None:
        self._seconds[where] += seconds
        if where == TRAINING and self._life is not None:
            self._life.seconds += seconds

    def _lose_supervisor(self) -> None:
        """It did not stop, and yet it is gone; its trainer ended with it."""
        self._supervised = False
        if self._end_life():
            self._failures[LOST] += 1
            self._where = LOST

    def _end_life(self) -> bool:
        """Whether there was one to end. What is known of it may still grow until the next one begins."""
        if self._life is None or self._life.ended:
            return False
        self._life.ended = True
        return True

    def _settle(self) -> None:
        """Count the steps of the life before, as what they were worth."""
        life, self._life = self._life, None
        if life is None or life.start is None or life.last is None:
            return
        high = life.start if self._high is None else self._high
        useful = max(0, life.last - max(high, life.start))
        done = life.last - life.start
        self._high = max(high, life.last)
        self._useful += useful
        self._repeated += done - useful
        if done:
            self._useful_seconds += life.seconds * useful / done

    # What each kind of record means.

    def _started(self, _record: dict[str, Any]) -> None:
        self._supervised = True
        if self._where == OFF:
            self._where = STARTING

    def _spawned(self, record: dict[str, Any]) -> None:
        self._end_life()
        known, step = record.get("resumed_from") is not None, _step(record.get("step"))
        start = step if known else 0
        self._reached(start)
        self._settle()
        if start is None:
            start = self._high  # a snapshot whose step nobody knows: as far as is known nothing is repeated
        self._supervised, self._where = True, TRAINING
        self._life, self._incarnation = _Life(start, start), record.get("incarnation")

    def _reached(self, step: int | None) -> None:
        """A step that the run has reached by now: if none of the lives before did, the newest has."""
        if self._life is not None and step is not None and (self._high is None or step > self._high):
            self._life.told(step)

    def _exited(self, record: dict[str, Any]) -> None:
        if self._life is not None and not self._life.ended:
            self._life.told(_step(record.get("step")))
        ended, cause = self._end_life(), record.get("cause")
        cause = cause if isinstance(cause, str) else "unknown"
        self._where = OFF if cause in WISHED else _as_cause(cause)
        if ended and cause not in WISHED:
            self._failures[self._where] += 1

    def _progressed(self, record: dict[str, Any]) -> None:
        if self._life is not None:
            self._life.told(_step(record.get("step")))

    def _fell_back(self, record: dict[str, Any]) -> None:
        """A supervisor tells what was reached before; a trainer that falls back by itself begins from another step."""
        chosen, lost = _step(record.get("chosen_step")), _step(record.get("steps_lost"))
        life = self._life
        if life is None or chosen is None:
            return
        if record.get("by") == "trainer":
            if not life.ended and life.last == life.start:
                life.start = life.last = chosen
        elif lost is not None:
            self._reached(chosen + lost)

    def _stalled(self, record: dict[str, Any]) -> None:
        """The time without a life sign was none of training."""
        if self._where != TRAINING or self._life is None:
            return
        seconds = min(max(0.0, number(record.get("seconds")) or 0.0), self._life.seconds)
        self._spend(TRAINING, -seconds)
        self._where = STALLED
        self._spend(STALLED, seconds)

    def _stuck(self, _record: dict[str, Any]) -> None:
        if self._where == TRAINING:
            self._where = STUCK

    def _off(self, record: dict[str, Any]) -> None:
        """Paused, stopped or completed: nobody wants it to train."""
        self._reached(_step(record.get("reached" if record.get("event") == "run.paused" else "step")))
        self._end_life()
        self._where = OFF

    def _resumed(self, _record: dict[str, Any]) -> None:
        if self._where == OFF:
            self._where = STARTING

    def _failed(self, _record: dict[str, Any]) -> None:
        if self._where in (STARTING, OFF):
            self._where = FAILED

    def _stopped(self, _record: dict[str, Any]) -> None:
        self._supervised = False
        if self._end_life():
            self._where = OFF


_ACTS: Final = {
    "supervisor.started": Account._started,
    "supervisor.stopped": Account._stopped,
    "trainer.spawned": Account._spawned,
    "trainer.exited": Account._exited,
    "trainer.progressed": Account._progressed,
    "trainer.stalled": Account._stalled,
    "trainer.stuck": Account._stuck,
    "fallback.chosen": Account._fell_back,
    "run.paused": Account._off,
    "run.stopped": Account._off,
    "run.completed": Account._off,
    "run.resumed": Account._resumed,
    "run.failed": Account._failed,
}


def goodput_of(records: Iterable[dict[str, Any]], metrics: Iterable[dict[str, Any]] = ()) -> Goodput:
    """What some records say, and the lines of a trainer's metrics."""
    account, saves = Account(), Saves()
    for record in records:
        account.add(record)
    for line in metrics:
        saves.add(line)
    return account.goodput(saves)


def _as_cause(cause: str) -> str:
    """A cause that no kind of time is called."""
    return f"{cause}?" if cause in (TRAINING, OFF) else cause


def _step(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < NUMBER_MAX else None


def unix_seconds(value: Any) -> float | None:
    """Unix seconds of a record's timestamp."""
    try:
        found = datetime.fromisoformat(value)
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None

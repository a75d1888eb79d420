"""What a death is put down to. Pure."""

import errno
import re
import signal
from dataclasses import dataclass

from lastgood.contract import EXIT_DIVERGED
from supervisor.core.events import Obstacle, TrainerExited

USAGE_CODES = frozenset({2, 126, 127})
"""A command line or environment that will be as wrong at the next try."""

LAUNCHER_CODE = 1
"""What torchrun and its like end with, whatever the trainer's processes ended with."""

FAULT_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})

KILLED_CODE = 128 + signal.SIGKILL
"""What a shell ends with when what it ran was ended by SIGKILL."""

OUT_OF_MEMORY = "out-of-memory"

FREE_CAUSES = frozenset({"chaos", "resume-refuted", "gpu-fault", "out-of-disk"})
"""Deaths that spend nothing of the budget: they say nothing about the run."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})

_SAYS_NO_ROOM = re.compile(
    r"No space left on device|Disk quota exceeded|ENOSPC|EDQUOT|enforce fail at inline_container|PytorchStreamWriter failed"
)
"""Last words of a save for which there was no room; torch hides the system's own behind those of its writer."""


@dataclass(frozen=True)
class Context:
    """What the supervisor itself was about when the trainer died. `said` is the status that the trainer had noted.

    `obstacle` is what was found in the way of another start, `no_room` the error with which a save was noted to have failed
    for want of room.
    """

    asked_to_stop: bool = False  # also by a pause
    stalled: bool = False
    ignored: bool = False
    diverged: bool = False
    refuted: bool = False
    ended_by_us: bool = False
    progressed: bool = False
    finished: bool = False
    said: int | None = None
    obstacle: Obstacle | None = None
    no_room: int | None = None


def exit_cause(event: TrainerExited, context: Context) -> str:
    """One word for why the trainer died, as records name it: what was done to it comes before what it did."""
    return _done_to_it(event, context) or _died_of(event, context)


def _done_to_it(event: TrainerExited, context: Context) -> str | None:
    """By a chaos campaign, or by this supervisor, which was about to end it."""
    if event.fault is not None:
        return "chaos"
    if context.stalled:
        return "stalled"
    if context.ignored:
        return "resume-ignored"
    if context.diverged:
        return "diverged"
    if context.refuted:
        return "resume-refuted"
    if context.finished and (event.code == 0 or context.ended_by_us):
        return "completed"
    if context.asked_to_stop:
        return "stopped"
    return None


def _died_of(event: TrainerExited, context: Context) -> str:
    if event.code == 0:
        return "ended-early"
    if event.oom_kills and _was_killed(event):
        return OUT_OF_MEMORY
    if (fault := _of_the_machine(event, context)) is not None:
        return fault
    if event.signal is not None:
        return "crashed" if event.signal in FAULT_SIGNALS else "killed"
    code = context.said if event.code == LAUNCHER_CODE and context.said is not None else event.code
    if code == EXIT_DIVERGED:
        return "diverged"
    if code in USAGE_CODES and not context.progressed:
        return "usage"
    return "crashed"


def evidence(event: TrainerExited, cause: str) -> str | None:
    """What is known about who sent a SIGKILL that is not known to be ours, to the trainer or one of its processes, for people."""
    if cause not in (OUT_OF_MEMORY, "killed", "crashed") or not (_was_killed(event) or event.oom_kills):
        return None
    if event.oom_kills is None:
        return "nobody counts OOM kills here: the kernel's OOM killer may have been it, or a person"
    if event.oom_kills == 0:
        return "its memory group counted no OOM kill: a person or another program sent SIGKILL"
    return f"its memory group counted {event.oom_kills} OOM kill{'s' * (event.oom_kills != 1)} while it lived"


def _was_killed(event: TrainerExited) -> bool:
    return event.signal == signal.SIGKILL or event.code == KILLED_CODE


def _of_the_machine(event: TrainerExited, context: Context) -> str | None:
    """A crash of which the machine bears the marks: a GPU is gone, or there is no room. What the trainer says is not enough."""
    if event.signal is not None and event.signal not in FAULT_SIGNALS:
        return None
    if context.obstacle is Obstacle.GPU_LOST:
        return "gpu-fault"
    says_so = context.no_room is not None or any(map(_SAYS_NO_ROOM.search, event.last_lines))
    measured = context.obstacle is Obstacle.DISK or context.no_room == errno.EDQUOT  # a quota is seen by nobody else
    return "out-of-disk" if says_so and measured else None

"""What a death is put down to. Pure."""

import signal
from dataclasses import dataclass

from lastgood.contract import EXIT_DIVERGED
from supervisor.core.events import TrainerExited

USAGE_CODES = frozenset({2, 126, 127})
"""A command line or environment that will be as wrong at the next try."""

LAUNCHER_CODE = 1
"""What torchrun and its like end with, whatever the trainer's processes ended with."""

FAULT_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})

FREE_CAUSES = frozenset({"chaos"})
"""Deaths that spend nothing of the budget: they say nothing about the run."""


@dataclass(frozen=True)
class Context:
    """What the supervisor itself was about when the trainer died. `said` is the status that the trainer had noted."""

    asked_to_stop: bool = False  # also by a pause
    stalled: bool = False
    ignored: bool = False
    diverged: bool = False
    ended_by_us: bool = False
    progressed: bool = False
    finished: bool = False
    said: int | None = None


def exit_cause(event: TrainerExited, context: Context) -> str:
    """One word for why the trainer died, as records name it."""
    if event.fault is not None:
        return "chaos"
    if context.stalled:
        return "stalled"
    if context.ignored:
        return "resume-ignored"
    if context.diverged:
        return "diverged"
    if context.finished and (event.code == 0 or context.ended_by_us):
        return "completed"
    if context.asked_to_stop:
        return "stopped"
    if event.code == 0:
        return "ended-early"
    if event.signal is not None:
        return "crashed" if event.signal in FAULT_SIGNALS else "killed"
    code = context.said if event.code == LAUNCHER_CODE and context.said is not None else event.code
    if code == EXIT_DIVERGED:
        return "diverged"
    if code in USAGE_CODES and not context.progressed:
        return "usage"
    return "crashed"

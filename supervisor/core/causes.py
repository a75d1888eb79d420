"""What a death is put down to. Pure."""

import signal
from dataclasses import dataclass

from lastgood.contract import EXIT_DIVERGED
from supervisor.core.events import TrainerExited

USAGE_CODES = frozenset({2, 126, 127})
"""A command line or environment that will be as wrong at the next try."""

FAULT_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})

FREE_CAUSES = frozenset({"chaos"})
"""Deaths that spend nothing of the budget: they say nothing about the run."""


@dataclass(frozen=True)
class Context:
    """What the supervisor itself was about when the trainer died."""

    asked_to_stop: bool = False
    stalled: bool = False
    ignored: bool = False
    ended_by_us: bool = False
    progressed: bool = False
    finished: bool = False


def exit_cause(event: TrainerExited, context: Context) -> str:
    """One word for why the trainer died, as records name it."""
    if event.fault is not None:
        return "chaos"
    if context.stalled:
        return "stalled"
    if context.ignored:
        return "resume-ignored"
    if context.finished and (event.code == 0 or context.ended_by_us):
        return "completed"
    if context.asked_to_stop:
        return "stopped"
    if event.code == 0:
        return "ended-early"
    if event.signal is not None:
        return "crashed" if event.signal in FAULT_SIGNALS else "killed"
    if event.code == EXIT_DIVERGED:
        return "diverged"
    if event.code in USAGE_CODES and not context.progressed:
        return "usage"
    return "crashed"

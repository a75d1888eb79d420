"""What a supervisor was about at each moment, by its records. Pure.

Records are in the order of their lines, as `reading` keeps them: each with `at`, its time in unix seconds, and each value of
its kind or None. A clock that was set back adds nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from supervisor.report.model import Span

Record = Mapping[str, Any]
Signs = Mapping[int | None, tuple[float, float]]
"""By incarnation the times of its first and its last step, where its trainer tells them."""

RUNNING: Final = "running"
STARTING: Final = "starting"
SELECTING: Final = "selecting"
BACKOFF: Final = "backoff"
WAITING: Final = "waiting"
STALLED: Final = "stalled"
STOPPING: Final = "stopping"
PAUSED: Final = "paused"
OFF: Final = "off"
LOST: Final = "no supervisor"

MEANINGS: Final[Mapping[str, str]] = {
    RUNNING: "the trainer makes steps",
    STARTING: "from the start of a trainer to its first step",
    SELECTING: "the snapshots are looked at, and one is chosen",
    BACKOFF: "a delay before the next start, since the last ones made no progress",
    WAITING: "for room, a GPU, storage, or processes that will not die",
    STALLED: "the trainer gave no sign of life, and was ended for it",
    STOPPING: "the trainer was asked or made to end",
    PAUSED: "on request",
    LOST: "the supervisor had ended without a word, and no other was there",
    OFF: "completed, stopped on request, or given up",
}
"""The phases as they are shown, from the best to what is none."""

_TO: Final[Mapping[str, str]] = {
    "trainer.spawned": STARTING,
    "trainer.asked_to_stop": STOPPING,
    "trainer.diverged": STOPPING,
    "resume.refuted": STOPPING,
    "resume.ignored": STOPPING,
    "trainer.exited": SELECTING,
    "trainer.stuck": WAITING,
    "disk.freed": SELECTING,
    "gpu.back": SELECTING,
    "run.paused": PAUSED,
    "run.resumed": SELECTING,
    "run.completed": OFF,
    "run.stopped": OFF,
    "run.failed": OFF,
    "supervisor.stopped": OFF,
}
_WAITS: Final = frozenset({"disk.low", "gpu.lost", "gpu.busy", "directory.unreadable", "wish.unreadable"})
_SIGNS: Final = frozenset({"restart.timeline", "trainer.progressed"})
_LIVE: Final = frozenset({STARTING, RUNNING, STALLED, STOPPING})
EVENTS: Final = frozenset(
    {*_TO, *_WAITS, *_SIGNS, "supervisor.started", "trainer.stalled", "restart.scheduled", "fallback.chosen"}
)
"""The records that tell it."""


class _Telling:
    """Folds the records; `soon` is what follows at a time that is known before, unless another record comes first."""

    def __init__(self, signs: Signs) -> None:
        self.spans: list[Span] = []
        self._signs = signs
        self._phase: str | None = None
        self._since = 0.0
        self._at = 0.0
        self._incarnation: int | None = None
        self._soon: tuple[float, str] | None = None

    def add(self, record: Record) -> None:
        before, at, event = self._at, max(self._at, record["at"]), record["event"]
        self.pass_to(at)
        if event == "supervisor.started":
            self._begin(at, before)
        elif event == "trainer.stalled":
            self._stall(at, record)
        elif event == "restart.scheduled":
            self._delay(at, record)
        elif event in _SIGNS:
            if self._phase == STARTING and record.get("incarnation") == self._incarnation:
                self._go(RUNNING, at)
        elif event in _WAITS:
            if self._phase not in _LIVE and self._phase != OFF:
                self._go(WAITING, at)
        elif event == "trainer.spawned":
            self._spawn(at, record)
        elif event in _TO and not (event == "supervisor.stopped" and self._phase is None):
            self._go(_TO[event], at)

    def pass_to(self, at: float) -> None:
        """Time went by."""
        if self._soon is not None and self._soon[0] <= at:
            when, phase = self._soon
            self._go(phase, when)
        self._at = at

    def close(self, at: float) -> None:
        """The end of what is known."""
        if self._phase is not None:
            self._go(self._phase, max(at, self._since))

    def _go(self, phase: str, at: float) -> None:
        at, self._soon = max(at, self._since), None
        if self._phase is not None and at > self._since:
            last = self.spans[-1] if self.spans else None
            span = Span(self._phase, self._since, at, self._incarnation)
            if last is not None and (last.phase, last.end, last.incarnation) == (
                span.phase,
                span.begin,
                span.incarnation,
            ):
                self.spans[-1] = last._replace(end=at)
            else:
                self.spans.append(span)
        self._phase, self._since = phase, at

    def _begin(self, at: float, before: float) -> None:
        """If the supervisor before ended without a word, it was at the last moment that is known of: a record, or a step."""
        if self._phase not in (None, OFF):
            last = max(before, self._signs.get(self._incarnation, (0.0, 0.0))[1])
            self._go(LOST, min(at, last))
        self._go(SELECTING, at)

    def _spawn(self, at: float, record: Record) -> None:
        self._go(STARTING, at)
        self._incarnation = record.get("incarnation")
        first = self._signs.get(self._incarnation)
        if first is not None and first[0] >= at:
            self._soon = (first[0], RUNNING)

    def _stall(self, at: float, record: Record) -> None:
        """The time without a sign of life was none of training."""
        seconds = record.get("seconds")
        began = at - seconds if seconds and seconds > 0 else at
        self._go(STALLED, max(began, self._since))

    def _delay(self, at: float, record: Record) -> None:
        seconds = record.get("delay_seconds")
        if seconds and seconds > 0:
            self._go(BACKOFF, at)
            self._soon = (at + seconds, SELECTING)


def spans(records: Iterable[Record], signs: Signs, now: float, alive_at: float | None) -> list[Span]:
    """The stretches of time, in order. `alive_at` is when the supervisor was last known to live, None where it lives now."""
    telling = _Telling(signs)
    for record in records:
        telling.add(record)
    if alive_at is None:
        telling.pass_to(now)
        telling.close(now)
    else:
        telling.pass_to(min(now, alive_at))
        telling.close(min(now, alive_at))
    return telling.spans


def by_phase(found: Iterable[Span]) -> tuple[tuple[str, float], ...]:
    """Seconds of each phase that there was, from the best to what is none."""
    seconds = dict.fromkeys(MEANINGS, 0.0)
    for span in found:
        seconds[span.phase] += span.seconds
    return tuple((phase, length) for phase, length in seconds.items() if length > 0)

"""Deaths of a run's trainers and the starts that followed, by its records. Pure.

Records are in the order of their lines, as `reading` keeps them: each with `at`, its time in unix seconds, and each value of
its kind or None.
"""

import signal
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from supervisor.goodput import LOST, WISHED
from supervisor.report.model import Mark, Restart, Shape
from supervisor.report.phases import Signs
from supervisor.report.words import count_text, seconds_text

Record = Mapping[str, Any]
EVENTS: Final = frozenset(
    {
        "supervisor.started",
        "trainer.spawned",
        "trainer.progressed",
        "trainer.exited",
        "fallback.chosen",
        "restart.timeline",
    }
)
"""The records that tell it."""
LAST_LINE_CHARACTERS = 160


class _Telling:
    """Folds the records of one run."""

    def __init__(self, signs: Signs) -> None:
        self.restarts: list[Restart] = []
        self._signs = signs
        self._living: int | None = None  # the incarnation
        self._reached: int | None = None
        self._at = 0.0
        self._dead: Restart | None = None
        self._fallback: Record | None = None

    def add(self, record: Record) -> None:
        match record["event"]:
            case "supervisor.started" if self._living is not None:
                self._lose()
            case "trainer.exited":
                self._die(record)
            case "fallback.chosen":
                self._fall_back(record)
            case "trainer.spawned":
                self._start(record)
            case "trainer.progressed":
                self._reach(record.get("step"))
            case "restart.timeline":
                self._time(record)
        self._at = record["at"]

    def end(self) -> list[Restart]:
        """All of them; the last death may have had no start."""
        dead = self._dead
        unfollowed = [dead] if dead is not None and dead.cause not in WISHED else []
        return [*self.restarts, *unfollowed]

    def _lose(self) -> None:
        """The supervisor ended without a word, and its trainer with it: at the last moment that is known of."""
        at = max(self._at, self._signs.get(self._living, (0.0, 0.0))[1])
        self._dead = Restart(self._living or 0, at, self._reached, LOST)
        self._living = None

    def _reach(self, step: int | None) -> None:
        if step is not None and (self._reached is None or step > self._reached):
            self._reached = step

    def _die(self, record: Record) -> None:
        step = record.get("step")
        self._reach(step)
        number = record.get("incarnation") or 0
        cause = record.get("cause") or "unknown"
        detail = "" if cause in WISHED else _detail(record)
        self._dead = Restart(number, record["at"], step, cause, detail, fault=record.get("fault"))
        self._living = None

    def _fall_back(self, record: Record) -> None:
        """A supervisor tells before the start why it chooses another; a trainer that fell back itself tells after it."""
        if record.get("by") != "trainer":
            self._fallback = record
        elif self.restarts and self._living == record.get("incarnation"):
            told = f"the trainer itself fell back to {record.get('chosen')}: {rejected(record)}"
            self.restarts[-1] = replace(self.restarts[-1], why=told, is_fallback=True)

    def _start(self, record: Record) -> None:
        dead, fallback = self._dead, self._fallback
        self._dead = self._fallback = None
        self._living = record.get("incarnation")
        step = record.get("step")
        if dead is not None and dead.cause not in WISHED:
            lost = fallback.get("steps_lost") if fallback else None
            if lost is None and step is not None and self._reached is not None:
                lost = max(0, self._reached - step)
            self.restarts.append(
                replace(
                    dead,
                    followed_by=self._living,
                    chosen=record.get("resumed_from"),
                    why=why(record, fallback),
                    is_fallback=fallback is not None,
                    steps_lost=lost,
                    seconds_down=max(0.0, record["at"] - dead.at),
                    seconds_to_step=self._first_step(dead.at),
                )
            )
        self._reach(step)

    def _first_step(self, since: float) -> float | None:
        """By the steps themselves; a record may come that tells it."""
        first = self._signs.get(self._living, (since - 1, 0.0))[0]
        return first - since if first >= since else None

    def _time(self, record: Record) -> None:
        total = record.get("total")
        if self.restarts and self._living == record.get("incarnation") and total is not None:
            self.restarts[-1] = replace(self.restarts[-1], seconds_to_step=total / 1000)


def restarts(records: Iterable[Record], signs: Signs) -> list[Restart]:
    """In order. `signs` are the times of each incarnation's first and last step, where they are known."""
    telling = _Telling(signs)
    for record in records:
        telling.add(record)
    return telling.end()


def mark(one: Restart) -> Mark:
    """Where the trainer died, on a chart."""
    shape, meaning = (Shape.DIAMOND, "death, then a fallback") if one.is_fallback else (Shape.CIRCLE, "death")
    if one.followed_by is None:
        shape, meaning = Shape.CROSS, "death that nothing followed"
    details = [f"start {one.number}" + ("" if one.step is None else f", step {one.step:,}")]
    details += [one.detail] if one.detail else []
    if one.followed_by is not None:
        details.append(f"start {one.followed_by} went on from {one.chosen or 'the beginning'}: {one.why}")
    if one.steps_lost is not None:
        details.append(f"{count_text(one.steps_lost, 'step')} lost")
    if one.seconds_to_step is not None:
        details.append(f"next step after {seconds_text(one.seconds_to_step)}")
    return Mark(str(one.number), one.cause, one.step, one.at, shape, meaning, tuple(details))


def why(start: Record, fallback: Record | None) -> str:
    """Why a start was made from what it was made from."""
    if fallback is not None:
        return rejected(fallback)
    if start.get("resumed_from") is None:
        return "no snapshot"
    return f"newest, proof {start.get('proof') or 'none'}"


def rejected(fallback: Record) -> str:
    """What was passed over, and what each was worth."""
    named = [one for one in fallback.get("rejected") or () if isinstance(one, dict)]
    return "; ".join(f"{one.get('name')} {one.get('verdict')}" for one in named) or "the newest was passed over"


def _detail(record: Record) -> str:
    """What is known of a death, in a few words."""
    parts = []
    number = record.get("signal")
    if number is not None:
        parts.append(signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}")
    elif record.get("code") is not None:
        parts.append(f"exit code {record['code']}")
    if record.get("evidence"):
        parts.append(record["evidence"])
    last = record.get("last_line")
    if last and number is None:
        parts.append(f"last words: {last if len(last) <= LAST_LINE_CHARACTERS else last[:LAST_LINE_CHARACTERS] + '…'}")
    return "; ".join(parts)

"""A run's goodput as its directory tells it, read on from where it was, and in words. Reads only."""

import os
from collections.abc import Iterable
from typing import Any

from lastgood.contract import EVENTS_FILE, STATE_DIR
from supervisor.cli.text import printable, span
from supervisor.following import Following
from supervisor.goodput import Account, Goodput
from supervisor.jsonl import older
from supervisor.saving import Saves
from supervisor.tails import objects

METRICS_FILE = "metrics.jsonl"  # of the bundled trainer
ALL_BYTES = 1 << 62
MARK = b'"save_seconds"'  # only lines that have it are of interest among so many


class Accounting:
    """Reads the records of one directory, and what its trainer's saves cost; each line once."""

    def __init__(self, directory: str) -> None:
        events = os.path.join(directory, STATE_DIR, EVENTS_FILE)
        self._events = Following(events, older(events))
        self._metrics = Following(os.path.join(directory, METRICS_FILE))
        self._account, self._saves = Account(), Saves()
        self._of = (0, 0)  # generations of the two files

    def read(self, bytes_max: int = ALL_BYTES) -> None:
        """Read what is new, of each file so many bytes."""
        for lines in self._events.pieces(bytes_max):
            self._begin_anew()
            for record in objects(lines):
                self._account.add(record)
        for lines in self._metrics.pieces(bytes_max):
            self._begin_anew()
            for line in objects(one for one in lines if MARK in one):
                self._saves.add(line)
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Where another file stands in the place of one that was read, it is another account."""
        found = (self._events.generation, self._metrics.generation)
        if found[0] != self._of[0]:
            self._account = Account()
        if found[1] != self._of[1]:
            self._saves = Saves()
        self._of = found

    @property
    def share_read(self) -> float:
        """How much was read of the file that is furthest behind, 1 when all."""
        return min(self._events.read, self._metrics.read)

    def goodput(self, status: dict[str, Any], supervised: bool, now: float) -> Goodput:
        """As of now. `status` is what the supervisor said last."""
        written: Any = status.get("written_at")
        alive_at = float(written) if type(written) in (int, float) and abs(written) < ALL_BYTES else 0.0
        return self._account.goodput(
            self._saves,
            now=now,
            alive_at=None if supervised else alive_at,
            incarnation=status.get("incarnation"),
            step=status.get("step"),
        )


def in_words(found: Goodput) -> list[tuple[str, str]]:
    """What a person reads of it, each with its name."""
    if found.wall_seconds <= 0:
        return []
    share = "unknown" if found.goodput is None else f"{100 * found.goodput:.1f} %"
    steps = f"{found.useful_steps:,} useful steps, {found.repeated_steps:,} repeated"
    lines = [("goodput", f"{share} of {_span(found.wall_seconds)}; {steps}")]
    if found.downtime:
        lines.append(("downtime", f"{_span(sum(found.downtime.values()))} ({_parts(found.downtime)})"))
    return [*lines, *_advice(found)]


def _span(seconds: float) -> str:
    """As elsewhere, and short ones with more digits."""
    return f"{seconds:.2g}s" if seconds < 9.95 else span(seconds)


def _parts(downtime: dict[str, float]) -> str:
    parts = [f"{printable(cause)} {_span(seconds)}" for cause, seconds in downtime.items()]
    return ", ".join(parts)


def _advice(found: Goodput) -> Iterable[tuple[str, str]]:
    """How often it fails, what a save costs, and how often to save by that."""
    if found.mtbf_seconds is not None:
        deaths = sum(found.failures.values())
        yield "failures", f"{deaths:,}, one in {_span(found.mtbf_seconds)} of training"
    if found.save_seconds is None:
        return
    advice = ""
    if found.save_every_seconds is not None:
        steps = "" if found.save_every_steps is None else f" or {found.save_every_steps:,} steps"
        advice = f"; by Young and Daly save every {_span(found.save_every_seconds)}{steps}"
    yield "save", f"costs {found.save_seconds:.3g} s{advice}"

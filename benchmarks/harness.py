"""Measures a row: what it is made of, in which order its sides run, and what is kept of that."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Verdict, spread, turns

Side = Callable[[], float]
"""Does the work once and returns what it took, in seconds; where the row's unit is none of time, a share of a core or bytes.

Making ready and cleaning up are its own and do not count.
"""

FACTORS = {"x": 1.0, "ms": 1000.0, "%": 100.0, "MB": 1e-6}
"""By unit, what makes a figure of what a side returns."""


@dataclass(frozen=True)
class Scale:
    """How much is measured: bytes of a large snapshot, number of small ones, pairs (None: as the row says), and where.

    `seconds` is how long is waited for what a process spends meanwhile.
    """

    folder: Path
    large_bytes: int
    small_snapshots: int
    pairs: int | None = None
    seconds: float = 10.0


@dataclass
class Sides:
    """The two sides of a row; without `theirs` it is absolute. `beside` collects what is shown next to it, by name."""

    ours: Side
    theirs: Side | None = None
    beside: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One line of the table: `at_most` is a ratio to `against`, or in the unit `absolute` where that is None; None is no target.

    `share` of the values must lie within it: a half, for their median, or nearly all. With `reaches` it is enough that the
    interval reaches it. With `twice` each turn does the work two times and the second counts: the first pays for what the
    other side left behind, in the memory and on the disk. With `cold` there is no warm-up, for each turn is a new process.
    `prepare` makes the sides ready in a folder of the scale's, for as long as they are needed.
    """

    name: str
    what: str
    against: str | None
    at_most: float | None
    prepare: Callable[[Scale], AbstractContextManager[Sides]]
    pairs: int = 15
    reaches: bool = False
    twice: bool = False
    cold: bool = False
    absolute: str = "ms"
    share: float = 0.5

    @property
    def unit(self) -> str:
        """Of its figures, and of those beside it."""
        return self.absolute if self.against is None else "x"


@dataclass(frozen=True)
class Measured:
    """What came of a row. Values are in the order they were measured; `noise` is the spread of the other side's, or its own."""

    row: Row
    figure: Figure
    ours: list[float]
    theirs: list[float]
    beside: dict[str, Figure]
    load: tuple[float, float]

    @property
    def verdict(self) -> Verdict:
        """Whether its target is met."""
        return self.figure.verdict(self.row.at_most, self.row.reaches)

    @property
    def noise(self) -> float:
        """How much the same work varied here: the spread of the side that is not ours to improve."""
        return spread(self.theirs or self.ours)

    def as_data(self) -> dict[str, Any]:
        """For the JSON file. Infinite ends of an interval are null."""
        kept = {key: getattr(self.row, key) for key in ("name", "what", "against", "at_most", "unit")}
        return {
            **kept,
            "verdict": str(self.verdict),
            **_finite(self.figure),
            "noise": self.noise,
            "beside": {name: _finite(figure) for name, figure in self.beside.items()},
            "load_before_and_after": self.load,
            "ours": self.ours,
            "theirs": self.theirs,
        }


def _finite(figure: Figure) -> dict[str, float | None]:
    return {key: None if abs(value) == float("inf") else value for key, value in asdict(figure).items()}


def _turn(row: Row, side: Side) -> float:
    if row.twice:
        side()
    return side()


def measure(row: Row, scale: Scale) -> Measured:
    """Warm both sides up once, unless they are to be cold, then run the pairs."""
    ours: list[float] = []
    theirs: list[float] = []
    before = os.getloadavg()[0]
    with row.prepare(scale) as sides:
        for side in (sides.ours, sides.theirs):
            if side is not None and not row.cold:
                side()
        for values in sides.beside.values():
            values.clear()
        for ours_first in turns(scale.pairs or row.pairs):
            if sides.theirs is not None and not ours_first:
                theirs.append(_turn(row, sides.theirs))
            ours.append(_turn(row, sides.ours))
            if sides.theirs is not None and ours_first:
                theirs.append(_turn(row, sides.theirs))
    factor = FACTORS[row.unit]
    values = [a / b for a, b in zip(ours, theirs, strict=True)] if theirs else [factor * one for one in ours]
    beside = {name: Figure.of([factor * one for one in them]) for name, them in sides.beside.items() if them}
    return Measured(row, Figure.of(values, row.share), ours, theirs, beside, (before, os.getloadavg()[0]))

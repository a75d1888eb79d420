"""Measures a row: what it is made of, in which order its sides run, and what is kept of that."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
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


OURS, THEIRS = "ours", "theirs"


@dataclass
class Sides:
    """The two sides of a row; without `theirs` it is absolute. Rows that are prepared alike are measured at once, each with sides
    of `more`, by name; `unfit` tells why one of those is not there. `beside` collects what is shown next to the first row, by
    name.
    """

    ours: Side
    theirs: Side | None = None
    beside: dict[str, list[float]] = field(default_factory=dict)
    more: dict[str, Side] = field(default_factory=dict)
    unfit: dict[str, str] = field(default_factory=dict)

    def named(self) -> dict[str, Side]:
        """All of them."""
        pair = {OURS: self.ours} | ({} if self.theirs is None else {THEIRS: self.theirs})
        return pair | self.more


Prepare = Callable[[Scale], AbstractContextManager[Sides]]


@dataclass(frozen=True)
class Row:
    """One line of the table: `at_most` is a ratio to `against`, or in the unit `absolute` where that is None; None is no target.

    `share` of the values must lie within it: a half, for their median, or nearly all. With `reaches` it is enough that the
    interval reaches it. With `twice` each turn does the work two times and the second counts: the first pays for what the
    other side left behind, in the memory and on the disk. With `cold` there is no warm-up. `prepare` makes the sides ready in a
    folder of the scale's, for as long as they are needed, and `ours` and `theirs` are their names; of rows that are prepared
    alike the first says `pairs`, `twice` and `cold` for all.
    """

    name: str
    what: str
    against: str | None
    at_most: float | None
    prepare: Prepare
    pairs: int = 15
    reaches: bool = False
    twice: bool = False
    cold: bool = False
    absolute: str = "ms"
    share: float = 0.5
    ours: str = OURS
    theirs: str = THEIRS

    @property
    def sides(self) -> tuple[str, ...]:
        """The names of those that it is made of."""
        return (self.ours,) if self.against is None else (self.ours, self.theirs)

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


def groups(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows that are prepared alike, which are measured at once."""
    found: dict[Prepare, list[Row]] = {}
    for row in rows:
        found.setdefault(row.prepare, []).append(row)
    return list(found.values())


def measure(rows: Sequence[Row], scale: Scale) -> tuple[list[Measured], dict[str, str]]:
    """Warm every side of rows that are prepared alike up once, unless they are to be cold; then run them in turn, as many rounds
    as the first row says. Returns also which rows are left out, and why. Raises UnfitError.
    """
    before = os.getloadavg()[0]
    with rows[0].prepare(scale) as sides:
        left_out = {row.name: sides.unfit[name] for row in rows for name in row.sides if name in sides.unfit}
        rows = [row for row in rows if row.name not in left_out]
        if not rows:
            return [], left_out
        first = rows[0]
        used = {name: side for name, side in sides.named().items() if any(name in row.sides for row in rows)}
        if not first.cold:
            for side in used.values():
                side()
        for told in sides.beside.values():
            told.clear()
        values: dict[str, list[float]] = {name: [] for name in used}
        for order in turns(list(used), scale.pairs or first.pairs):
            for name in order:
                values[name].append(_turn(first, used[name]))
    load = (before, os.getloadavg()[0])
    return [_measured(row, values, sides.beside if row is first else {}, load) for row in rows], left_out


def _measured(
    row: Row, values: Mapping[str, list[float]], beside: Mapping[str, list[float]], load: tuple[float, float]
) -> Measured:
    factor = FACTORS[row.unit]
    ours, theirs = values[row.ours], [] if row.against is None else values[row.theirs]
    figures = [a / b for a, b in zip(ours, theirs, strict=True)] if theirs else [factor * one for one in ours]
    shown = {name: Figure.of([factor * one for one in them]) for name, them in beside.items() if them}
    return Measured(row, Figure.of(figures, row.share), ours, theirs, shown, load)

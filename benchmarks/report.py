"""The table for people."""

from collections.abc import Iterable
from math import isinf

from benchmarks.figures import Figure
from benchmarks.harness import Measured

TITLES = ("row", "what", "against", "at most", "measured", "95 % interval", "pairs", "noise", "verdict")


def table(results: Iterable[Measured]) -> str:
    """One line a row, aligned; what is shown beside a row follows below."""
    results = list(results)
    lines = [TITLES, *(_cells(one) for one in results)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(TITLES))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    for one in results:
        unit = one.row.unit
        text += [f"{one.row.name}: {name}: {_number(figure.value, unit)}, {_interval(figure, unit)}"
                 for name, figure in one.beside.items()]  # fmt: skip
    return "\n".join(text)


def _cells(one: Measured) -> tuple[str, ...]:
    row = one.row
    return (
        row.name,
        row.what,
        row.against or "absolute",
        "-" if row.at_most is None else _number(row.at_most, row.unit),
        _number(one.figure.value, row.unit),
        _interval(one.figure, row.unit),
        str(one.figure.count),
        f"{one.noise:.0%}",
        str(one.verdict),
    )


def _number(value: float, unit: str) -> str:
    digits = 3 if unit == "x" else 2 if value < 10 else 1
    return f"{value:.{digits}f} {unit}"


def _interval(figure: Figure, unit: str) -> str:
    return "too few" if isinf(figure.high) else f"{_number(figure.low, unit)} to {_number(figure.high, unit)}"

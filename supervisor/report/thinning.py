"""Fewer points for the same picture: first and last, highest and lowest of each stretch, and all near a mark. Pure."""

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

from supervisor.report.model import Curve, Line, Span

POINTS_MAX = 4000
"""About as many points are drawn of one curve; more than a screen has columns, and few enough for a telephone."""
NEAR_STEPS = 2
"""On each side of a mark, all are kept."""
SPANS_MAX = 3000


def thinned(
    lines: Sequence[Line], marked: Collection[int] = (), most: int = POINTS_MAX, made: int | None = None
) -> Curve:
    """A curve of about `most` of the lines; of each incarnation the first and the last, and all near the marked steps.

    `made` says how many there are if these are not all.
    """
    total = len(lines) if made is None else made
    if len(lines) <= most:
        return Curve(tuple(lines), total)
    near = {step + by for step in marked for by in range(-NEAR_STEPS, NEAR_STEPS + 1)}
    kept: list[Line] = []
    for _, life in groupby(lines, key=lambda line: line.incarnation):
        steps = list(life)
        kept += _of_stretches(steps, near, max(1, most * len(steps) // len(lines) // 2))
    return Curve(tuple(kept), total)


def _of_stretches(steps: Sequence[Line], near: Collection[int], stretches: int) -> Iterable[Line]:
    """Of each stretch of one incarnation the highest and the lowest."""
    count = len(steps)
    wanted = {0, count - 1} | {index for index, line in enumerate(steps) if line.step in near}
    for number in range(stretches):
        stretch = range(count * number // stretches, count * (number + 1) // stretches)
        told = [(loss, index) for index in stretch if (loss := steps[index].loss) is not None]
        if told:
            wanted |= {min(told)[1], max(told)[1]}
    return (steps[index] for index in sorted(wanted))


def longest(spans: Sequence[Span], most: int = SPANS_MAX) -> tuple[Span, ...]:
    """The longest of them, in their order: the others could not be seen beside them."""
    if len(spans) <= most:
        return tuple(spans)
    least = sorted((span.seconds for span in spans), reverse=True)[most - 1]
    return tuple(span for span in spans if span.seconds >= least)[:most]

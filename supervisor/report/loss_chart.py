"""The losses over the steps, and which steps each start of the trainer made. Pure."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from supervisor.report.drawing import (
    AXIS,
    BASELINE,
    BELOW_MARKS,
    FAINT,
    NUMBERED_MAX,
    ODD_AND_EVEN,
    REPEATED,
    Figure,
    apart,
    is_of,
    layout,
    marks_on,
    of_start,
    trace,
)
from supervisor.report.model import Curve, Line, Mark

FEW_STARTS = 8
Stretch = tuple[int, int, int]
"""A start, and the first and the last of some steps that it made."""


def losses(baseline: Curve, survivor: Curve, marks: Sequence[Mark]) -> Figure | None:
    """The losses, and below them the steps of each start: of two that lie above each other the later one repeated some."""
    if not any(line.loss is not None for line in survivor.steps):
        return None
    placed = [(mark, mark.step) for mark in marks if mark.step is not None]
    last = max(line.step for line in (*baseline.steps, *survivor.steps))
    plan = layout(
        height=600,
        xaxis={"title": {"text": "step"}, "anchor": "y2", "range": [0, 1.01 * last], **AXIS},
        yaxis={"title": {"text": "loss"}, "domain": [0.33, BELOW_MARKS], **AXIS},
        yaxis2={
            "title": {"text": "start"},
            "domain": [0, 0.25],
            "rangemode": "nonnegative",
            **_whole(survivor),
            **AXIS,
        },
        placed=placed,
    )
    known = {line.step: line.loss for line in baseline.steps if line.loss is not None}
    drawn = [*_baseline(known), *_survivor(survivor, known), *_starts(survivor), *marks_on(placed)]
    return {"data": drawn, "layout": plan}


def _whole(survivor: Curve) -> dict[str, int]:
    """Starts are counted in whole numbers, also where there are few."""
    few = len({line.incarnation for line in survivor.steps}) <= FEW_STARTS
    return {"dtick": 1} if few else {}


def _baseline(known: Mapping[int, float]) -> list[Figure]:
    """A broad line, on which the other lies if nothing differs."""
    if not known:
        return []
    words = [f"step {step:,}, loss {loss:.6g}, baseline" for step, loss in known.items()]
    line = {"color": BASELINE, "width": 6}
    return [trace("baseline, nobody interfered", [*known], [*known.values()], line=line, customdata=words)]


def _survivor(survivor: Curve, baseline: Mapping[int, float]) -> list[Figure]:
    """One line for every other start, so that two that follow each other differ."""
    drawn = []
    for name, colour, parity in ODD_AND_EVEN:
        lines = apart(line for line in survivor.steps if line.loss is not None and is_of(line, parity))
        if lines:
            drawn.append(
                trace(
                    name,
                    [line and line.step for line in lines],
                    [line and line.loss for line in lines],
                    line={"color": colour, "width": 1.3},
                    customdata=[line and _of_step(line, baseline) for line in lines],
                )
            )
    return drawn


def _of_step(line: Line, baseline: Mapping[int, float]) -> str:
    words = f"step {line.step:,}, loss {line.loss:.6g}{of_start(line.incarnation)}"
    if line.step in baseline:
        same = baseline[line.step] == line.loss
        words += "<br>the same as the baseline" if same else f"<br>the baseline has {baseline[line.step]:.6g}"
    return words


def _starts(survivor: Curve) -> list[Figure]:
    """Which steps each start made, apart from those that others had made before, and the way back between two starts."""
    new: list[Stretch] = []
    again: list[Stretch] = []
    back: list[tuple[int, int] | None] = []
    high: int | None = None
    for number, (incarnation, life) in enumerate(groupby(survivor.steps, key=lambda line: line.incarnation), 1):
        steps = [line.step for line in life]
        start, first, last = incarnation or number, min(steps), max(steps)
        back += [(first, start), None, (last, start)]
        if high is not None and first <= high:
            again.append((start, first, min(last, high)))
        if high is None or last > high:
            new.append((start, first if high is None else max(first, high), last))
        high = last if high is None else max(high, last)
    ways = trace(
        "way back",
        [one and one[0] for one in back],
        [one and one[1] for one in back],
        line={"color": FAINT, "width": 1, "dash": "dot"},
        hovertemplate=None,
        hoverinfo="skip",
        showlegend=False,
        yaxis="y2",
    )
    return [
        ways,
        _stretches("steps made for the first time", new, FAINT, 4),
        _stretches("steps repeated", again, REPEATED, 7),
    ]


def _stretches(name: str, stretches: Sequence[Stretch], colour: str, width: int) -> Figure:
    steps: list[int | None] = []
    starts: list[int | None] = []
    words: list[str | None] = []
    crowded = len(stretches) > NUMBERED_MAX
    for start, first, last in stretches:
        text = f"start {start}: {name}, {first:,} to {last:,}"
        steps += [first, last, None]
        starts += [start, start, None]
        words += [text, text, None]
    return trace(
        name,
        steps,
        starts,
        mode="lines" if crowded else "lines+markers",
        line={"color": colour, "width": 2 if crowded else width},
        marker={"color": colour, "size": max(3, width - 2)},
        customdata=words,
        yaxis="y2",
    )

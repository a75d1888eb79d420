"""The charts of a page: the losses, how long things took, and what the time went to. Pure."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from supervisor.report.drawing import (
    AXIS,
    BELOW_MARKS,
    EVEN,
    FAINT,
    HOVER,
    ODD,
    ODD_AND_EVEN,
    REPEATED,
    Figure,
    apart,
    is_of,
    layout,
    marks_on,
    milliseconds,
    of_start,
    trace,
)
from supervisor.report.loss_chart import losses
from supervisor.report.markup import chart_text
from supervisor.report.model import Curve, Delays, Mark, Report, Span
from supervisor.report.phases import MEANINGS, OFF, PAUSED, RUNNING, SELECTING, STARTING
from supervisor.report.words import seconds_text

LEAST_SECONDS: Final = 0.001  # where a scale of powers of ten begins
_BARS: Final[Mapping[str, str]] = {RUNNING: ODD, STARTING: EVEN, SELECTING: EVEN, PAUSED: FAINT, OFF: FAINT}
"""The colours of phases; all others are of what costs time."""


def figures(report: Report) -> dict[str, Figure]:
    """Those that there is something to draw for, by the name of their place on the page."""
    found = {
        "loss": losses(report.baseline, report.survivor, report.marks),
        "delays": delays(report.delays),
        "time": times(report.survivor, report.spans, report.marks),
    }
    return {name: figure for name, figure in found.items() if figure is not None}


def delays(all_of_them: Sequence[Delays]) -> Figure | None:
    """How long things took, on a scale of powers of ten: all of a kind in a row, and above them how they are spread."""
    found = [one for one in all_of_them if one.each]
    if not found:
        return None
    kinds = {label for one in found for _, label in one.each}
    last = found[-1].each
    medians = {kind: statistics.median([length for length, label in last if label == kind] or [0.0]) for kind in kinds}
    slowest_first = sorted(kinds, key=lambda kind: (-medians[kind], kind))
    rows = [*map(chart_text, slowest_first), *(_all(one) for one in reversed(found))]
    powers = [math.log10(max(LEAST_SECONDS, length)) for one in found for length, _ in one.each]
    ends = [math.floor(min(powers)) - 0.02, math.floor(max(powers)) + 1.02]
    drawn = []
    for one, symbol, colour in zip(found, ("circle-open", "diamond"), (ODD, EVEN), strict=False):
        drawn += [_spread(one, colour), _each(one, symbol, colour)]
    plan = layout(
        height=170 + 24 * len(rows),
        xaxis={"type": "log", "title": {"text": "seconds"}, "dtick": 1, "tickformat": "~g", "range": ends, **AXIS},
        yaxis={"type": "category", "categoryorder": "array", "categoryarray": rows, **AXIS},
    )
    return {"data": drawn, "layout": plan}


def _all(one: Delays) -> str:
    return f"all, {one.name}"


def _spread(one: Delays, colour: str) -> Figure:
    return {
        "type": "box",
        "orientation": "h",
        "name": _all(one),
        "x": [max(LEAST_SECONDS, seconds) for seconds, _ in one.each],
        "y": [_all(one)] * len(one.each),
        "boxpoints": False,
        "line": {"color": colour, "width": 1.5},
        "fillcolor": "rgba(0,0,0,0)",
        "hoverinfo": "x",
        "showlegend": False,
    }


def _each(one: Delays, symbol: str, colour: str) -> Figure:
    return trace(
        one.name,
        [max(LEAST_SECONDS, seconds) for seconds, _ in one.each],
        [chart_text(label) for _, label in one.each],
        mode="markers",
        marker={"symbol": symbol, "size": 9, "color": colour, "opacity": 0.9, "line": {"color": colour, "width": 1.5}},
        customdata=[f"{chart_text(label)}: {one.name} after {seconds_text(seconds)}" for seconds, label in one.each],
    )


def times(survivor: Curve, spans: Sequence[Span], marks: Sequence[Mark]) -> Figure | None:
    """The steps over time, and below them the phases, on one scale."""
    if not spans and not any(line.at is not None for line in survivor.steps):
        return None
    phases = [phase for phase in MEANINGS if any(span.phase == phase for span in spans)]
    lower = min(0.55, 0.06 + 0.055 * len(phases))
    placed = [(mark, milliseconds(mark.at)) for mark in marks]
    plan = layout(
        height=360 + 30 * len(phases),
        xaxis={"type": "date", "title": {"text": "time of day, UTC"}, "anchor": "y", **AXIS},
        yaxis={"type": "category", "categoryarray": phases[::-1], "domain": [0, lower], **AXIS},
        yaxis2={"title": {"text": "step"}, "domain": [lower + 0.06, BELOW_MARKS], "rangemode": "tozero", **AXIS},
        placed=placed,
    )
    drawn = [_bars(phase, [span for span in spans if span.phase == phase]) for phase in phases]
    drawn += [*_steps(survivor), *marks_on(placed)]
    return {"data": drawn, "layout": plan | {"barmode": "overlay", "bargap": 0.25}}


def _bars(phase: str, spans: Sequence[Span]) -> Figure:
    colour = _BARS.get(phase, REPEATED)
    words = [f"{phase}{of_start(span.incarnation)}: {seconds_text(span.seconds)}" for span in spans]
    return {
        "type": "bar",
        "orientation": "h",
        "name": phase,
        "y": [phase] * len(spans),
        "base": [milliseconds(span.begin) for span in spans],
        "x": [round(1000 * span.seconds, 3) for span in spans],
        "marker": {"color": colour, "line": {"color": colour, "width": 1}},
        "showlegend": False,
        "customdata": words,
        "hovertemplate": HOVER,
    }


def _steps(survivor: Curve) -> list[Figure]:
    """The steps of every other start are one line, so that two that follow each other differ."""
    drawn = []
    for name, colour, parity in ODD_AND_EVEN:
        lines = apart(line for line in survivor.steps if line.at is not None and is_of(line, parity))
        if lines:
            drawn.append(
                trace(
                    name,
                    [line and milliseconds(line.at or 0.0) for line in lines],
                    [line and line.step for line in lines],
                    line={"color": colour, "width": 2},
                    customdata=[line and f"step {line.step:,}{of_start(line.incarnation)}" for line in lines],
                    yaxis="y2",
                )
            )
    return drawn

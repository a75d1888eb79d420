"""What all charts of a page share, as the data that plotly draws. Pure.

Colours are names of the page's own, `var(--x)`, until it is drawn. Whatever is text from outside goes through `chart_text`:
plotly takes some HTML in what it shows.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from supervisor.report.markup import chart_text
from supervisor.report.model import Line, Mark, Shape

Figure = dict[str, Any]
Placed = tuple[Mark, float]
"""A mark, and where it is on the axis."""

ODD: Final = "var(--odd)"
EVEN: Final = "var(--even)"
REPEATED: Final = "var(--repeated)"
BASELINE: Final = "var(--baseline)"
FAINT: Final = "var(--faint)"
ODD_AND_EVEN: Final = (("odd starts", ODD, 1), ("even starts", EVEN, 0))
COLOURS: Final[Mapping[Shape, str]] = {
    Shape.CIRCLE: "var(--mark)",
    Shape.DIAMOND: "var(--mark)",
    Shape.CROSS: "var(--bad)",
}
FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
HOVER: Final = "%{customdata}<extra></extra>"
NUMBERED_MAX: Final = 60  # with more marks, their numbers would cover each other
MARK_ROWS: Final = 5
BELOW_MARKS: Final = 0.89  # of the height of a chart
WIDTH_MAX: Final = 60  # characters of a line of what is shown when one points at a mark
AXIS: Final[Mapping[str, Any]] = {
    "automargin": True,
    "gridcolor": "var(--grid)",
    "linecolor": FAINT,
    "zeroline": False,
}


def layout(height: int, placed: Sequence[Placed] = (), **axes: Any) -> Figure:
    """How a chart is laid out; with marks there are rows for them above all else, and from each a line down."""
    if placed:
        rows = [-0.7, MARK_ROWS - 0.3]
        axes["yaxis3"] = {"domain": [BELOW_MARKS, 1], "range": rows, "visible": False, "fixedrange": True}
    return {
        "height": height,
        "autosize": True,
        "hovermode": "closest",
        "margin": {"l": 20, "r": 12, "t": 12, "b": 20},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 13, "color": "var(--text)"},
        "hoverlabel": {
            "align": "left",
            "bgcolor": "var(--card)",
            "bordercolor": FAINT,
            "font": {"family": FONT, "color": "var(--text)"},
        },
        "legend": {
            "orientation": "h",
            "y": round(-75 / (height - 150), 3),
            "yanchor": "top",
            "x": 0,
            "font": {"size": 12},
        },
        "shapes": [_upright(*one) for one in placed] if len(placed) <= NUMBERED_MAX else [],
        **axes,
    }


def trace(name: str, across: Sequence[Any], up: Sequence[Any], **more: Any) -> Figure:
    """A line or points; what is shown when one points at them is `customdata`."""
    usual = {"type": "scatter", "mode": "lines", "connectgaps": False, "hovertemplate": HOVER}
    return {**usual, "name": name, "x": across, "y": up, **more}


def apart(lines: Iterable[Line]) -> list[Line | None]:
    """With a gap between one start and another."""
    found: list[Line | None] = []
    for _, life in groupby(lines, key=lambda line: line.incarnation):
        found += [*life, None]
    return found


def is_of(line: Line, parity: int) -> bool:
    """Whether a step belongs to the odd starts, or to the even ones."""
    return (line.incarnation or 1) % 2 == parity


def of_start(incarnation: int | None) -> str:
    """Words that say which start something belongs to."""
    return "" if incarnation is None else f", start {incarnation}"


def milliseconds(at: float) -> float:
    """A moment as an axis of dates takes it."""
    return round(1000 * at, 1)


def marks_on(placed: Sequence[Placed]) -> list[Figure]:
    """In their rows, each with its number; what happened is shown when one points at it."""
    rows = {id(mark): MARK_ROWS - 1 - number % MARK_ROWS for number, (mark, _) in enumerate(placed)}
    numbered = len(placed) <= NUMBERED_MAX
    drawn = []
    for shape, colour in COLOURS.items():
        alike = [one for one in placed if one[0].shape is shape]
        if alike:
            drawn.append(
                trace(
                    alike[0][0].meaning,
                    [across for _, across in alike],
                    [rows[id(mark)] for mark, _ in alike],
                    mode="markers+text" if numbered else "markers",
                    text=[chart_text(mark.number) for mark, _ in alike],
                    textposition="middle right",
                    textfont={"color": colour, "size": 11},
                    marker={"symbol": shape, "size": 8 if numbered else 5, "color": colour},
                    customdata=[_details(mark) for mark, _ in alike],
                    cliponaxis=False,
                    yaxis="y3",
                )
            )
    return drawn


def _details(mark: Mark) -> str:
    told = [f"<b>{chart_text(mark.number)}: {chart_text(mark.label)}</b>"]
    told += [chart_text(part) for detail in mark.details for part in _folded(detail)]
    return "<br>".join(told)


def _folded(text: str) -> list[str]:
    """In lines that a telephone can show."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) >= WIDTH_MAX:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{word}"
    return lines


def _upright(mark: Mark, across: float) -> Figure:
    """From a mark down through all that is below it."""
    line = {"color": COLOURS[mark.shape], "width": 1, "dash": "dot"}
    ends = {"x0": across, "x1": across, "y0": 0, "y1": BELOW_MARKS, "yref": "paper"}
    return {"type": "line", **ends, "line": line, "layer": "below", "opacity": 0.45}

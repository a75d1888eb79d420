"""The sections of a page: what there is to say, as HTML. Pure."""

from collections.abc import Callable, Collection, Iterable, Sequence

from supervisor.cli.text import bytes_text
from supervisor.report.markup import Html, joined, tag
from supervisor.report.model import Curve, Fact, Fault, Report, Restart, Rung, SetAside
from supervisor.report.phases import MEANINGS
from supervisor.report.words import moment_text, seconds_text

NONE = Html("–")
GOOD_VERDICTS = frozenset({"healthy", "intact"})
BAD_VERDICTS = frozenset({"truncated", "corrupt", "incomplete", "poisoned", "incompatible", "unreadable"})
SHORT_ROWS = 60  # a longer table scrolls within its box
Column = tuple[str, str]
"""The name of a column, and the class of its cells."""


def sections(report: Report, drawn: Collection[str]) -> Iterable[Html]:
    """All of them in order; `drawn` names the charts that there are."""
    is_run = report.faults is None
    parts = [
        ("problems", "What is wrong", _problems(report)),
        ("about", "", _about(report)),
        ("faults", "Faults", _faults(report)),
        ("restarts", "Restarts and fallbacks" if is_run else "Deaths that no fault explains", _restarts(report)),
        ("loss", "Loss", _loss(report, drawn)),
        ("delays", "How long it took", _delays(report, drawn)),
        ("time", "What the time went to", _time(report, drawn)),
        ("snapshots", "Snapshots" if is_run else "Snapshots at the end", _ladder(report)),
        ("quarantine", "Set aside", _quarantine(report)),
        ("machine", "Machine and versions", _facts(report.machine)),
    ]
    return [_section(name, title, content) for name, title, content in parts if content]


def _section(name: str, title: str, content: Html) -> Html:
    if not title:
        return tag("section", content, id=name)
    return tag("section", tag("h2", title, id=f"{name}-title"), content, id=name, aria_labelledby=f"{name}-title")


def _problems(report: Report) -> Html:
    if not report.problems:
        return Html("")
    return tag("ul", *(tag("li", _problem(one.text, one.fault)) for one in report.problems), class_="problems")


def _problem(text: str, fault: int | None) -> Html:
    return joined([text]) if fault is None else joined([text, " ", tag("a", f"fault {fault}", href=f"#fault-{fault}")])


def _about(report: Report) -> Html:
    tiles = [
        tag("div", tag("dt", one.name), tag("dd", tag("b", one.value), tag("span", one.note) if one.note else ""))
        for one in report.tiles
    ]
    return joined([tag("dl", *tiles, class_="tiles") if tiles else "", _facts(report.about)])


def _facts(facts: Sequence[Fact]) -> Html:
    if not facts:
        return Html("")
    rows = [
        tag(
            "div", tag("dt", one.name), tag("dd", tag("code", one.value) if one.is_code else one.value, _note(one.note))
        )
        for one in facts
    ]
    return tag("dl", *rows, class_="facts")


def _note(text: str) -> Html:
    return tag("small", text) if text else Html("")


def _table(caption: str, columns: Sequence[Column], rows: Sequence[Html], name: str) -> Html:
    """A table with its heads; on a narrow screen each row is a card, for which the roles are said that it would lose."""
    heads = [tag("th", title, scope="col", role="columnheader", class_=kind or None) for title, kind in columns]
    table = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *heads, role="row"), role="rowgroup"),
        tag("tbody", *rows, role="rowgroup"),
        role="table",
        class_=f"cards {name}",
    )
    kind = "box long" if len(rows) > SHORT_ROWS else "box"
    return tag("div", table, class_=kind, tabindex="0", role="region", aria_label=caption)


def _row(columns: Sequence[Column], cells: Sequence[object], **attributes: object) -> Html:
    """The first cell is the name of its row. On a narrow screen a cell that holds nothing is left out."""
    made = []
    for number, ((title, kind), cell) in enumerate(zip(columns, cells, strict=True)):
        name, role = ("td", "cell") if number else ("th", "rowheader")
        classes = " ".join(one for one in (kind, "none" if cell == NONE else "") if one)
        more = {"scope": None if number else "row", "role": role, "class_": classes or None, "data_label": title}
        made.append(tag(name, tag("div", cell), **more))
    return tag("tr", *made, role="row", **attributes)


def _or_none(value: object | None, words: Callable[..., object] = str) -> object:
    return NONE if value is None else words(value)


def _name(name: str | None) -> object:
    return NONE if name is None else tag("code", name)


def _said(first: object, more: str) -> Html:
    """A fact, and in small letters what more there is to say of it."""
    return joined([first, tag("small", more) if more else ""])


FAULTS: Sequence[Column] = (
    ("#", "number"),
    ("step", "number"),
    ("what was done", "wide"),
    ("had to be chosen", ""),
    ("was chosen, and why", "wide"),
    ("put down to", ""),
    ("steps lost", "number"),
    ("noticed after", "number"),
    ("next step after", "number"),
    ("result", "result"),
)


def _faults(report: Report) -> Html:
    if report.faults is None:
        return Html("")
    rows = [_fault(one) for one in report.faults]
    table = _table("Each fault, what had to follow, and what followed", FAULTS, rows, "faults") if rows else ""
    left_out = [tag("li", tag("b", kind), f": {why}") for kind, why in report.left_out]
    more = joined([tag("h3", "Kinds that were left out"), tag("ul", *left_out)]) if left_out else ""
    return joined([table or tag("p", "None was done."), more])


def _fault(one: Fault) -> Html:
    wrong = one.problems
    result = tag("span", "✓ right", class_="is-good") if not wrong else tag("span", "✕ wrong", class_="is-bad")
    cells = [
        one.number,
        f"{one.step:,}",
        _said(tag("b", one.kind), one.proof or "not proven"),
        _name(one.expected),
        _said(_name(one.chosen), one.why if one.why != "-" else ""),
        _or_none(one.cause),
        _or_none(one.steps_lost),
        _or_none(one.seconds_to_detect, seconds_text),
        _or_none(one.seconds_to_resume, seconds_text),
        joined([result, *(tag("small", problem) for problem in wrong)]),
    ]
    return _row(FAULTS, cells, id=f"fault-{one.number}", class_="wrong" if wrong else None)


RESTARTS: Sequence[Column] = (
    ("start", "number"),
    ("died at", ""),
    ("step", "number"),
    ("put down to", "wide"),
    ("went on from, and why", "wide"),
    ("steps lost", "number"),
    ("next start after", "number"),
    ("next step after", "number"),
)


def _restarts(report: Report) -> Html:
    if report.faults is not None and not report.restarts:
        return Html("")
    if not report.restarts:
        none = "None: no trainer of this run has died."
        return tag("p", none if report.knows_restarts else "Unknown: no record of this run is left.")
    rows = [_restart(one) for one in report.restarts]
    table = _table("Each death of a trainer, and the start that followed", RESTARTS, rows, "restarts")
    return joined([table, _more(len(rows), report.total_restarts, "newest", "deaths")])


def _restart(one: Restart) -> Html:
    on: object = tag("b", "nothing was started after it") if one.followed_by is None else _name(one.chosen)
    if one.followed_by is not None and one.chosen is None:
        on = "the beginning"
    if one.is_fallback:
        on = joined([on, " ", tag("span", "fallback", class_="label")])
    cells = [
        one.number,
        moment_text(one.at),
        _or_none(one.step, "{:,}".format),
        _said(one.cause, one.detail),
        _said(on, one.why),
        _or_none(one.steps_lost),
        _or_none(one.seconds_down, seconds_text),
        _or_none(one.seconds_to_step, seconds_text),
    ]
    return _row(RESTARTS, cells, class_="fallback" if one.is_fallback else None)


def _more(shown: int, total: int, which: str, things: str) -> Html:
    """That there are more than are shown, if so."""
    if total <= shown:
        return Html("")
    return tag("p", f"These are the {which} {shown:,}; there are {total - shown:,} more {things}.", class_="note")


def _chart(name: str, label: str, *captions: str) -> Html:
    place = tag("div", id=f"chart-{name}", class_="chart", role="img", aria_label=label)
    scriptless = tag("noscript", tag("p", "This chart needs JavaScript.", class_="note"))
    return tag("figure", place, scriptless, tag("figcaption", *(tag("p", one) for one in captions if one)))


def _loss(report: Report, drawn: Collection[str]) -> Html:
    if "loss" not in drawn:
        return tag("p", "No loss is known: the trainer told none.")
    what = "faults" if report.faults is not None else "deaths"
    compared = (
        "The broad line is the baseline, the thin one on it the run under faults." if report.baseline.steps else ""
    )
    words = (
        f"The marks are the {what} of the table above. Below, each line is a start of the trainer: where one begins to the left "
        "of where the one before it ended, the run went back, and the steps between were repeated."
    )
    return _chart(
        "loss", f"Loss over steps, with {what} and repeated steps", compared, words, _thinned(report.survivor)
    )


def _thinned(curve: Curve) -> str:
    if not curve.is_thinned:
        return ""
    return (
        f"Thinned: {len(curve.steps):,} of {curve.lines:,} steps are drawn, with the first and the last of each start, the "
        "highest and the lowest loss of each stretch, and all beside a mark."
    )


def _delays(report: Report, drawn: Collection[str]) -> Html:
    if "delays" not in drawn:
        return Html("")
    names = ("", "fastest", "half of them within", "19 of 20 within", "slowest")
    columns = [(name, "number" if name else "") for name in names]
    rows = []
    for one in report.delays:
        values = sorted(seconds for seconds, _ in one.each)
        if values:
            picked = [values[0], _part(values, 0.5), _part(values, 0.95), values[-1]]
            rows.append(_row(columns, [one.name, *map(seconds_text, picked)]))
    table = _table("In figures", columns, rows, "delays")
    caption = "Each point is one time; a box holds the middle half of all, its line is the median. Mind the scale: powers of ten."
    return joined([_chart("delays", "How long each took", caption), table])


def _part(values: Sequence[float], share: float) -> float:
    """The least value that so many of the sorted values do not exceed."""
    return values[max(0, -int(-share * len(values) // 1) - 1)]


def _time(report: Report, drawn: Collection[str]) -> Html:
    if "time" not in drawn:
        return tag("p", "Nothing is known of it: there are no records.")
    columns = (("phase", ""), ("in all", "number"), ("what it is", "wide"))
    rows = [_row(columns, [phase, seconds_text(seconds), MEANINGS[phase]]) for phase, seconds in report.phases]
    cut = report.total_spans - len(report.spans)
    caption = "Above, the steps: a line that begins lower than the one before it ended went back. Below, the supervisor's phases."
    thinned = f"The shortest {cut:,} of {report.total_spans:,} stretches are left out." if cut else ""
    table = _table("Time by phase", columns, rows, "phases") if rows else ""
    return joined([_chart("time", "Steps and phases over time", caption, thinned), table])


LADDER: Sequence[Column] = (
    ("step", "number"),
    ("name", ""),
    ("verdict", ""),
    ("proof", ""),
    ("size", "number"),
    ("written", ""),
)


def _ladder(report: Report) -> Html:
    if not report.ladder:
        return tag("p", "There is none.")
    rows = [_rung(one) for one in report.ladder]
    table = _table("The ladder, newest first", LADDER, rows, "ladder")
    return joined([table, _more(len(rows), report.total_ladder, "newest", "snapshots")])


def _rung(one: Rung) -> Html:
    verdict = one.verdict or "not judged yet"
    kind = "good" if verdict in GOOD_VERDICTS else "bad" if verdict in BAD_VERDICTS else "open"
    sign = {"good": "✓ ", "bad": "✕ ", "open": ""}[kind]
    cells = [
        _or_none(one.step, "{:,}".format),
        tag("code", one.name),
        tag("span", f"{sign}{verdict}", class_=f"is-{kind}"),
        _or_none(one.proof),
        bytes_text(one.bytes),
        moment_text(one.at),
    ]
    return _row(LADDER, cells)


QUARANTINE: Sequence[Column] = (
    ("step", "number"),
    ("name", ""),
    ("when, UTC", ""),
    ("why", "wide"),
    ("size", "number"),
)


def _quarantine(report: Report) -> Html:
    if not report.set_aside:
        return tag("p", "Nothing.")
    rows = [_aside(one) for one in report.set_aside]
    table = _table("What lies in quarantine, newest first", QUARANTINE, rows, "quarantine")
    return joined([table, _more(len(rows), report.total_set_aside, "newest", "of them")])


def _aside(one: SetAside) -> Html:
    size = "given up for room" if one.bytes is None else bytes_text(one.bytes)
    return _row(
        QUARANTINE, [_or_none(one.step, "{:,}".format), tag("code", one.name), one.when or NONE, one.reason, size]
    )

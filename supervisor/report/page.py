"""One page of HTML from the facts of a report: everything it needs is in it. Pure, but for its own style and script beside it.

Its content security policy allows the two scripts of its own by their digests, and nothing from any network.
"""

import base64
import hashlib
from functools import cache
from importlib import resources

from supervisor.report import charts, sections
from supervisor.report.markup import Html, escaped, script_json, tag
from supervisor.report.model import Report, Tone
from supervisor.report.words import moment_text

SIGNS = {Tone.GOOD: "✓", Tone.BAD: "✕", Tone.OPEN: "●"}
COLOURS = {Tone.GOOD: "146c3a", Tone.BAD: "b3261e", Tone.OPEN: "38465c"}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'; script-src "


def page(report: Report, plotly_js: str) -> str:
    """The whole file. `plotly_js` is the library that draws the charts."""
    figures = charts.figures(report)
    scripts = [Html(plotly_js), _beside("page.js")] if figures else []
    digests = " ".join(_digest(script) for script in scripts) or "'none'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY + digests),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content="lastgood"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{report.title}: {report.verdict.word}"),
        tag("link", rel="icon", href=_icon(report.verdict.tone)),
        tag("style", _beside("page.css")),
    )
    data = tag("script", script_json(figures), type="application/json", id="figures")
    body = tag(
        "body",
        _verdict(report),
        tag("main", *sections.sections(report, figures)),
        tag("footer", tag("p", f"Written by lastgood on {moment_text(report.made_at)}.")),
        data,
        *(tag("script", script) for script in scripts),
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n{head}\n{body}\n</html>\n'


def _verdict(report: Report) -> Html:
    verdict = report.verdict
    return tag(
        "header",
        tag("p", report.title, class_="title"),
        tag("h1", tag("span", SIGNS[verdict.tone], class_="sign", aria_hidden="true"), " ", verdict.word),
        tag("p", verdict.sentence, class_="sentence"),
        class_=f"verdict {verdict.tone}",
    )


@cache
def _beside(name: str) -> Html:
    """A file of this package."""
    return Html(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


def _digest(script: str) -> str:
    """What the policy allows a script by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _icon(tone: Tone) -> str:
    """A small picture of the verdict, in the page itself."""
    picture = (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'>"
        f"<rect width='32' height='32' rx='7' fill='#{COLOURS[tone]}'/>"
        f"<text x='16' y='24' font-size='22' text-anchor='middle' fill='white'>{escaped(SIGNS[tone])}</text></svg>"
    )
    return f"data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()}"

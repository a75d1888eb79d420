"""`lastgood report`: a run as one page to look at and to send."""

from typing import Annotated

import typer

from supervisor.cli.directory import Place, named
from supervisor.cli.snapshots import Pattern
from supervisor.cli.text import shown
from supervisor.errors import UsageError


def report(
    place: Place,
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="Where to write it.")] = "report.html",
    pattern: Pattern = None,
) -> None:
    """Write a run's report: one HTML file that needs no network.

    How it stands, restarts and fallbacks, loss, phases, snapshots. It only reads, and judges nothing; the run may go on.

    The path is printed. Exit 0: it is written; 2: usage.
    """
    from lastgood.naming import rule_for
    from supervisor.report import run, writing

    try:
        rule_for(pattern)
    except ValueError as error:
        raise UsageError(f"report: --pattern: {error}") from None
    meant = named("report", place)
    writing.need_plotly("report")
    writing.need_place("report", out)
    writing.write_page(out, run.report(meant._replace(pattern=pattern or meant.pattern)))
    typer.echo(shown(out))

"""`lastgood chaos`: a seeded campaign of faults against a run, with an oracle."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor.cli.text import shown

if TYPE_CHECKING:
    from supervisor.chaos.campaign import Result
    from supervisor.chaos.plan import FaultKind


def chaos(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A run's YAML file.")],
    faults: Annotated[int, typer.Option(min=1, help="How many faults.")] = 12,
    seed: Annotated[int, typer.Option(help="Decides every fault's place; the same seed, the same plan.")] = 1,
    kinds: Annotated[
        str,
        typer.Option(metavar="A,B | MIX", help="Only these kinds, as often as each other; or a ready mix: cluster."),
    ] = "",
    report: Annotated[
        str | None, typer.Option(metavar="FILE.html", help="Write what came of it as one page to look at and to send.")
    ] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write what came of it as JSON.")
    ] = None,
) -> None:
    """Run CONFIG unbroken, then under faults, and compare.

    The faults are injected as the seed decides. Exit 0 only when nothing differs.
    """
    from supervisor.chaos.campaign import Asked, campaign

    mix = _mix(kinds)
    asked = Asked(config, faults, seed, () if mix else _kinds(kinds), mix)
    _need_places(report, as_json)
    result = campaign(asked)
    _write(result, report, as_json)
    sys.exit(0 if result.passed else 1)


def _need_places(report: str | None, as_json: str | None) -> None:
    """Raises UsageError when what is asked for could not be written at the end."""
    from supervisor.errors import UsageError
    from supervisor.report import writing

    if report is not None:
        writing.need_plotly("chaos")
    for path in (report, as_json):
        if path is not None:
            writing.need_place("chaos", path)
    if report is not None and as_json is not None and os.path.realpath(report) == os.path.realpath(as_json):
        raise UsageError("chaos: --report and --json name one file; give each its own")


def _write(result: "Result", report: str | None, as_json: str | None) -> None:
    """Write what was asked for, whatever came of the campaign, and say where."""
    from supervisor.report import campaign, writing

    if as_json is not None:
        writing.write_whole(as_json, campaign.document_text(result))
        typer.echo(f"json: {shown(as_json)}")
    if report is not None:
        writing.write_page(report, campaign.report(result))
        typer.echo(f"report: {shown(report)}")


def _mix(words: str) -> str:
    """The name of a ready mix, if that is what it says."""
    from supervisor.chaos.plan import MIXES

    return words.strip() if words.strip() in MIXES else ""


def _kinds(words: str) -> "tuple[FaultKind, ...]":
    from supervisor.chaos.plan import FaultKind
    from supervisor.errors import UsageError

    named = [word.strip() for word in words.split(",") if word.strip()]
    unknown = [word for word in named if word not in list(FaultKind)]
    if unknown:
        raise UsageError(
            f"chaos: --kinds: {unknown[0]!r} is no kind of fault; they are {', '.join(FaultKind)}, and `cluster` alone"
        )
    return tuple(dict.fromkeys(FaultKind(word) for word in named))

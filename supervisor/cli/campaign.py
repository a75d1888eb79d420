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
    seed: Annotated[int, typer.Option(min=0, help="Decides every fault's place; the same seed, the same plan.")] = 1,
    kinds: Annotated[
        str | None,
        typer.Option(metavar="A,B | MIX", help="Only these kinds, as often as each other; or a ready mix: cluster."),
    ] = None,
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

    mix = _mix(kinds or "")
    asked = Asked(config, faults, seed, () if mix or kinds is None else _kinds(kinds), mix)
    _need_places(config, report, as_json)
    result = campaign(asked)
    _write(result, report, as_json)
    sys.exit(0 if result.passed else 1)


def _need_places(config: str, report: str | None, as_json: str | None) -> None:
    """Raises UsageError when what is asked for could not be written at the end."""
    from supervisor.errors import UsageError
    from supervisor.report import writing

    if report is not None:
        writing.need_plotly("chaos")
    for path in (report, as_json):
        if path is not None:
            writing.need_place("chaos", path)
            if os.path.realpath(path) == os.path.realpath(config):
                raise UsageError(f"chaos: {shown(path)} is the campaign's own config; give the name of another file")
    if report is not None and as_json is not None and os.path.realpath(report) == os.path.realpath(as_json):
        raise UsageError("chaos: --report and --json name one file; give each its own")


def _write(result: "Result", report: str | None, as_json: str | None) -> None:
    """Write what was asked for, whatever came of the campaign, and say where."""
    from supervisor.errors import UsageError
    from supervisor.report import campaign, writing

    path = as_json or ""
    try:
        if as_json is not None:
            writing.write_whole(as_json, campaign.document_text(result))
            typer.echo(f"json: {shown(as_json)}")
        if report is not None:
            path = report
            writing.write_page(report, campaign.report(result))
            typer.echo(f"report: {shown(report)}")
    except OSError as error:
        raise UsageError(f"chaos: {shown(path)}: {error.strerror}; it is not written, and the verdict stands") from None


def _mix(words: str) -> str:
    """The name of a ready mix, if that is what it says."""
    from supervisor.chaos.plan import MIXES

    return words.strip() if words.strip() in MIXES else ""


def _kinds(words: str) -> "tuple[FaultKind, ...]":
    from supervisor.chaos.plan import FaultKind
    from supervisor.errors import UsageError

    named = [word.strip() for word in words.split(",") if word.strip()]
    if not named:
        raise UsageError("chaos: --kinds names none; leave it out for all kinds")
    unknown = [word for word in named if word not in list(FaultKind)]
    if unknown:
        raise UsageError(
            f"chaos: --kinds: {unknown[0]!r} is no kind of fault; they are {', '.join(FaultKind)}, or by itself `cluster`"
        )
    return tuple(dict.fromkeys(FaultKind(word) for word in named))

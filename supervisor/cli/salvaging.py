"""`lastgood salvage`: get the whole tensors out of a broken torch file. It needs no supervisor and no torch."""

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supervisor.cli.text import FORBIDDEN, bytes_text, printable, shown
from supervisor.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from lastgood.salvage import Salvaged

SALVAGED_WHOLE = 0
SALVAGED_PART = 1
SHOWN_LOST = 40  # lines on a terminal; --json and the snapshot itself have them all


def salvage(
    broken: Annotated[str, typer.Argument(metavar="BROKEN", help="A torch file that is cut or damaged.")],
    output: Annotated[str, typer.Option("-o", "--output", metavar="OUT", help="The new snapshot; must not exist yet.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Save the whole tensors of a broken torch file.

    They become a new, sealed snapshot; what is lost is listed.

    Exit 0: the model is whole; 1: a part of it; 3: nothing could be had and nothing was written; 2: usage.
    """
    _check(broken, output)
    result = _salvaged(broken, output)
    if as_json:
        typer.echo(json.dumps(_fields(result), indent=1))
    else:
        _tell(broken, result)
    if result.published is None:
        sys.exit(ExitStatus.NO_HEALTHY_SNAPSHOT)
    _warn_of_candidates(result, os.path.dirname(result.published.path))
    sys.exit(SALVAGED_WHOLE if result.model_whole else SALVAGED_PART)


def _salvaged(broken: str, output: str) -> "Salvaged":
    from lastgood.publish import MaybeCommittedError
    from lastgood.salvage import salvage as get_out

    try:
        return get_out(broken, output)
    except FileExistsError as error:
        raise UsageError(f"salvage: -o {shown(output)}: {error.strerror}") from None
    except OSError as error:
        end = "" if isinstance(error, MaybeCommittedError) else "; nothing was written"
        typer.echo(f"lastgood: salvage: -o {shown(output)}: {error.strerror or error}{end}", err=True)
        sys.exit(ExitStatus.NO_HEALTHY_SNAPSHOT)


def _check(broken: str, output: str) -> None:
    if not os.path.isfile(broken):
        what = "it is no regular file" if os.path.exists(broken) else "there is no such file"
        raise UsageError(f"salvage: {shown(broken)}: {what}")
    if not os.access(broken, os.R_OK):
        raise UsageError(f"salvage: {shown(broken)}: {FORBIDDEN}")
    folder = os.path.dirname(os.path.abspath(output))
    if not os.path.isdir(folder):
        raise UsageError(f"salvage: -o {shown(output)}: there is no folder {shown(folder)}")


def _tell(broken: str, result: "Salvaged") -> None:
    """Print what was had and what was not, for a person."""
    if result.published is None:
        typer.echo(f"nothing could be had out of {shown(broken)}: {printable(result.reason)}")
    else:
        typer.echo(f"{shown(result.published.path)}: {result.kept} tensors, {bytes_text(result.bytes)}, sealed")
        typer.echo(f"model: {_part(result.model_whole, result.unproven)}")
        if result.optimizer_whole is None:
            typer.echo("optimizer: there is none")
        else:
            typer.echo(f"optimizer: {_part(result.optimizer_whole, result.unproven)}")
    for lost in result.lost[:SHOWN_LOST]:
        size = f" ({bytes_text(lost.bytes)})" if lost.bytes else ""
        typer.echo(f"lost: {printable(lost.name)}{size}: {printable(lost.reason)}")
    if len(result.lost) > SHOWN_LOST:
        typer.echo(f"lost: {len(result.lost) - SHOWN_LOST} more; --json lists all")


def _part(whole: bool, unproven: bool) -> str:
    if unproven:
        return "unproven: its writer switched checksums off, so nothing tells whether the bytes are right"
    return "whole" if whole else "not whole"


def _warn_of_candidates(result: "Salvaged", folder: str) -> None:
    """A supervisor takes what appears in its directory for a snapshot of the run; one with gaps would end the trainer."""
    from lastgood.contract import STATE_DIR

    if (result.lost or result.unproven) and os.path.isdir(os.path.join(folder, STATE_DIR)):
        typer.echo(
            f"lastgood: salvage: {shown(folder)} is a run's checkpoint directory, and this snapshot is not whole: move it "
            "away before the run is started again",
            err=True,
        )


def _fields(result: "Salvaged") -> dict[str, Any]:
    return {
        "path": None if result.published is None else shown(result.published.path),
        "sha256": None if result.published is None else result.published.sha256,
        "model_whole": result.model_whole,
        "optimizer_whole": result.optimizer_whole,
        "unproven": result.unproven,
        "kept": result.kept,
        "bytes": result.bytes,
        "lost": [
            {"name": printable(one.name), "bytes": one.bytes, "reason": printable(one.reason)} for one in result.lost
        ],
        "reason": result.reason or None,
    }

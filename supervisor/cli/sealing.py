"""`lastgood seal`: record what a snapshot's bytes are now, beside it. It needs no supervisor and no torch."""

import json
import os
import sys
from contextlib import closing
from functools import partial
from typing import Annotated, Any

import typer

from supervisor.cli.snapshots import AsJson, Jobs, Pattern, expanded, is_snapshot, size_of
from supervisor.cli.text import bytes_text, printable, shown
from supervisor.cli.work import in_order


def seal(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Snapshots, or folders of them.")],
    as_json: AsJson = False,
    pattern: Pattern = None,
    jobs: Jobs = None,
) -> None:
    """Make NAME.sha256 beside snapshots; `sha256sum -c` agrees with it. In a folder of them, beside those without a seal.

    What is damaged, or has a seal that disagrees, is refused. Exit 0: all sealed; 1: something is not; 2: usage.
    """
    names = list(dict.fromkeys(name for path in paths for name in _unsealed(path, pattern)))
    done: list[dict[str, Any]] = []
    with closing(in_order([partial(_sealed, name) for name in names], sum(map(size_of, names)), jobs)) as outcomes:
        for outcome in outcomes:
            done.append(outcome)
            if not as_json:
                typer.echo(_line(outcome))
    if as_json:
        typer.echo(json.dumps(done, indent=1))
    sys.exit(0 if all(outcome["sha256"] for outcome in done) else 1)


def _unsealed(path: str, pattern: str | None) -> list[str]:
    """The snapshots that are to be sealed for `path`. Raises UsageError when there are none at all."""
    from lastgood.sealing import sealed_beside

    names = expanded("seal", path, pattern)
    if not os.path.isdir(path) or is_snapshot(path):
        return names
    unsealed = [name for name in names if not sealed_beside(name)]
    if not unsealed:
        typer.echo(f"{shown(path)}: every snapshot in it has a seal", err=True)
    return unsealed


def _sealed(name: str) -> dict[str, Any]:
    """Seal one snapshot and tell what came of it."""
    from lastgood.sealing import RefusedError, seal_snapshot

    try:
        made = seal_snapshot(name)
    except (RefusedError, RuntimeError) as error:
        return _outcome(name, "refused", printable(str(error)))
    except OSError as error:
        return _outcome(name, "failed", _why(error, name))
    return {
        **_outcome(name, "already" if made.already else "sealed", None),
        "seal": shown(made.seal),
        "sha256": made.sha256,
        "bytes": made.bytes,
    }


def _why(error: OSError, name: str) -> str:
    said = error.strerror or str(error)
    about_seal = error.filename and os.path.basename(error.filename) != os.path.basename(name.rstrip("/"))
    return f"its seal could not be written: {said}" if about_seal else said


def _outcome(name: str, outcome: str, reason: str | None) -> dict[str, Any]:
    return {"path": shown(name), "outcome": outcome, "seal": None, "sha256": None, "bytes": None, "reason": reason}


def _line(outcome: dict[str, Any]) -> str:
    said = outcome["reason"] or f"SHA-256 {outcome['sha256'][:12]}…, {bytes_text(outcome['bytes'])}"
    return f"{outcome['outcome']:<9} {outcome['path']}: {said}"

"""`lastgood verify`, `list`, `latest`: what snapshots are worth. They need no supervisor and no torch."""

import json
import os
import sys
import time
from typing import Annotated, Any

import typer

from lastgood import judging, rungs
from lastgood.verdict import Verdict
from supervisor.cli.text import bytes_text, shown
from supervisor.errors import ExitStatus, UsageError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Pattern = Annotated[
    str | None, typer.Option(help="Names of snapshots: ckpt_{step}.pt, or a regular expression for the whole name.")
]


def verify(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Snapshots, or folders of them.")],
    deep: Annotated[bool, typer.Option("--deep", help="Also look for NaN in float tensors.")] = False,
    as_json: AsJson = False,
) -> None:
    """Judge snapshots by reading their bytes. Exit 0: all healthy or intact; 1: something is not; 2: usage."""
    found: list[tuple[str, Verdict]] = []
    for path in paths:
        found += [(name, judging.verify(name, deep)) for name in _expanded(path)]
    if as_json:
        typer.echo(json.dumps([_verdict_fields(path, verdict) for path, verdict in found], indent=1))
    else:
        for path, verdict in found:
            typer.echo(f"{verdict.kind:<12} {verdict.proof or '-':<9} {shown(path)}: {verdict.reason}")
    sys.exit(0 if all(verdict.proven for _, verdict in found) else 1)


def _expanded(path: str) -> list[str]:
    if not os.path.lexists(path):
        raise UsageError(f"verify: {shown(path)}: there is no such file or folder")
    if not os.path.isdir(path):
        return [path]
    inside = [os.fspath(rung.path) for rung in _scanned("verify", path, None)]
    if not inside:
        raise UsageError(f"verify: {shown(path)} holds no snapshot")
    return inside


def _scanned(command: str, folder: str, pattern: str | None) -> list[rungs.Rung]:
    try:
        return rungs.scan(folder, pattern)
    except ValueError as error:
        raise UsageError(f"{command}: --pattern: {error}") from None
    except OSError as error:
        raise UsageError(f"{command}: {shown(folder)}: {error.strerror}; give a checkpoint directory") from None


def _verdict_fields(path: str, verdict: Verdict) -> dict[str, Any]:
    return {
        "path": shown(path),
        "verdict": str(verdict.kind),
        "proof": None if verdict.proof is None else str(verdict.proof),
        "reason": verdict.reason,
        "step": verdict.step,
        "bytes": verdict.bytes,
        "sha256": verdict.sha256,
        "seconds": verdict.seconds,
    }


def list_(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A checkpoint directory.")],
    as_json: AsJson = False,
    pattern: Pattern = None,
) -> None:
    """The ladder of a checkpoint directory, newest first: step, size, age, verdict, proof, reason."""
    _scanned("list", directory, pattern)
    ladder = rungs.ladder(directory, pattern)
    if as_json:
        typer.echo(json.dumps([_rung_fields(rung) for rung in ladder], indent=1))
        return
    if not ladder:
        typer.echo(f"no snapshots in {shown(directory)}", err=True)
        return
    typer.echo(f"{'STEP':>10} {'SIZE':>10} {'AGE':>6} {'VERDICT':<12} {'PROOF':<9} NAME: REASON")
    for rung in ladder:
        assert rung.verdict is not None
        step = "-" if rung.step is None else str(rung.step)
        line = f"{step:>10} {bytes_text(rung.identity.size):>10} {_age(rung.mtime_ns):>6} {rung.verdict.kind:<12}"
        typer.echo(f"{line} {rung.verdict.proof or '-':<9} {shown(rung.name)}: {rung.verdict.reason}")


def _rung_fields(rung: rungs.Rung) -> dict[str, Any]:
    assert rung.verdict is not None
    return {"name": shown(rung.name), **_verdict_fields(os.fspath(rung.path), rung.verdict), "step": rung.step}


def _age(mtime_ns: int) -> str:
    seconds = max(0.0, time.time() - mtime_ns / 1e9)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def latest(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A checkpoint directory.")], pattern: Pattern = None
) -> None:
    """Print the path of the newest snapshot that is healthy or intact. Exit 3 when there is none."""
    _scanned("latest", directory, pattern)
    path = rungs.latest_healthy(directory, pattern)
    if path is None:
        typer.echo(f"no healthy or intact snapshot in {shown(directory)}; `lastgood list` says why", err=True)
        sys.exit(ExitStatus.NO_HEALTHY_SNAPSHOT)
    typer.echo(shown(os.fspath(path)))

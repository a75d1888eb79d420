"""`lastgood verify`, `list`, `latest`: what snapshots are worth. They need no supervisor and no torch."""

import json
import os
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from lastgood import choose, folders, judging, rungs
from lastgood.ledger import Ledger
from lastgood.uncollected import Uncollected
from lastgood.verdict import Verdict
from supervisor.cli.text import FORBIDDEN, bytes_text, printable, shown
from supervisor.cli.work import in_order
from supervisor.errors import ExitStatus, UsageError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Snapshots read at once; by default one a processor.")]
Pattern = Annotated[
    str | None, typer.Option(help="Names of snapshots: ckpt_{step}.pt, or a regular expression for the whole name.")
]


def verify(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Snapshots, or folders of them.")],
    deep: Annotated[
        bool, typer.Option("--deep", help="Also look for NaN and new infinities in float tensors.")
    ] = False,
    as_json: AsJson = False,
    pattern: Pattern = None,
    jobs: Jobs = None,
) -> None:
    """Judge snapshots by reading their bytes. Exit 0: all healthy or intact; 1: something is not; 2: usage."""
    names = list(dict.fromkeys(name for path in paths for name in expanded("verify", path, pattern)))
    found: list[Verdict] = []
    todo = [partial(judging.verify, name, deep) for name in names]
    with closing(in_order(todo, sum(map(size_of, names)), jobs)) as verdicts:
        for name, verdict in zip(names, verdicts, strict=True):
            found.append(verdict)
            if not as_json:
                typer.echo(f"{_columns(verdict)} {shown(name)}: {printable(verdict.reason)}")
    if as_json:
        typer.echo(json.dumps([_verdict_fields(*one) for one in zip(names, found, strict=True)], indent=1))
    sys.exit(0 if all(verdict.proven for verdict in found) else 1)


def expanded(command: str, path: str, pattern: str | None) -> list[str]:
    """The snapshots that `path` stands for: itself, or those in the folder that it is. Raises UsageError when there are none."""
    try:
        os.lstat(path)
    except OSError as error:
        raise UsageError(f"{command}: {shown(path)}: {_cured(error, 'snapshots, or folders of them')}") from None
    if not os.path.isdir(path) or is_snapshot(path):
        return [path]
    inside = [os.path.join(rung.folder, rung.name) for rung in _scanned(command, path, pattern)]
    if not inside:
        raise UsageError(f"{command}: {shown(path)} holds no snapshot; `--pattern` says how they are called")
    return inside


def is_snapshot(path: str) -> bool:
    """Whether a folder is one snapshot. One that cannot be read is none, as whoever looks into it will say."""
    try:
        return folders.is_snapshot(path)
    except OSError:
        return False


def size_of(path: str) -> int:
    """Bytes of a snapshot, 0 when it cannot be looked at: how much there is to do, not whether it can be done."""
    try:
        return folders.identity_of(path).size if os.path.isdir(path) else os.path.getsize(path)
    except OSError:
        return 0


def _scanned(command: str, folder: str, pattern: str | None, ledger: Ledger | None = None) -> list[rungs.Rung]:
    try:
        return rungs.scan(os.fspath(Path(folder)) if folder else folder, pattern, ledger)
    except ValueError as error:
        raise UsageError(f"{command}: --pattern: {error}") from None
    except OSError as error:
        raise UsageError(f"{command}: {shown(folder)}: {_cured(error, 'a checkpoint directory')}") from None


def _cured(error: OSError, instead: str) -> str:
    """What the system said, and what to do about it."""
    return FORBIDDEN if isinstance(error, PermissionError) else f"{error.strerror}; give {instead}"


def _verdict_fields(path: str, verdict: Verdict) -> dict[str, Any]:
    return {
        "path": shown(path),
        "verdict": str(verdict.kind),
        "proof": None if verdict.proof is None else str(verdict.proof),
        "reason": printable(verdict.reason),
        "step": verdict.step,
        "bytes": verdict.bytes,
        "sha256": verdict.sha256,
        "seconds": verdict.seconds,
    }


def list_(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A checkpoint directory.")],
    as_json: AsJson = False,
    pattern: Pattern = None,
    jobs: Jobs = None,
) -> None:
    """List the snapshots of a directory and what each is worth.

    Newest first: step, size, age, verdict, proof, reason.
    """
    ladder = _judged(_scanned("list", directory, pattern, Ledger(directory)), jobs)
    if as_json:
        with Uncollected():
            text = json.dumps([_rung_fields(rung) for rung in ladder])
        typer.echo(_a_snapshot_a_line(text))
        return
    if not ladder:
        typer.echo(f"no snapshots in {shown(directory)}", err=True)
        return
    lines = [f"{'STEP':>10} {'SIZE':>10} {'AGE':>6} {'VERDICT':<12} {'PROOF':<9} NAME: REASON"]
    for rung in ladder:
        assert rung.verdict is not None
        step = "-" if rung.step is None else str(rung.step)
        line = f"{step:>10} {bytes_text(rung.identity.size):>10} {_age(rung.mtime_ns):>6} {_columns(rung.verdict)}"
        lines.append(f"{line} {shown(rung.name)}: {printable(rung.verdict.reason)}")
    typer.echo("\n".join(lines))


def _a_snapshot_a_line(text: str) -> str:
    """What json.dumps wrote at once, which is quick. No string in it has a bare quotation mark inside."""
    return text.replace('}, {"name": ', '},\n {"name": ')


def _columns(verdict: Verdict) -> str:
    """Verdict and proof in columns."""
    return f"{verdict.kind:<12} {verdict.proof or '-':<9}"


def _judged(found: list[rungs.Rung], jobs: int | None) -> list[rungs.Rung]:
    """The ladder, newest first, every rung judged: those that the ledger does not remember on several threads."""
    unknown = [rung for rung in found if rung.verdict is None]
    todo = [partial(rungs.judge, rung) for rung in unknown]
    with closing(in_order(todo, sum(rung.identity.size for rung in unknown), jobs)) as more:
        judged = [*(rung for rung in found if rung.verdict is not None), *more]
    return choose.newest_first(judged) if unknown else found


def _rung_fields(rung: rungs.Rung) -> dict[str, Any]:
    assert rung.verdict is not None
    return {"name": shown(rung.name), **_verdict_fields(_path(rung), rung.verdict), "step": rung.step}


def _path(rung: rungs.Rung) -> str:
    """As Path would write it, at a fraction of the cost: nothing before a name in the current folder."""
    return rung.name if rung.folder == "." else os.path.join(rung.folder, rung.name)


def _age(mtime_ns: int) -> str:
    seconds = max(0.0, time.time() - mtime_ns / 1e9)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def latest(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A checkpoint directory.")],
    pattern: Pattern = None,
    as_json: AsJson = False,
) -> None:
    """Print the path of the newest snapshot that is healthy or intact. Exit 3 when there is none."""
    found = _scanned("latest", directory, pattern)
    with closing(in_order([partial(rungs.down_to_first_proven, found)], None)) as judged:
        chosen = choose.choose(next(judged))
    if chosen is None or chosen.verdict is None or not chosen.verdict.proven:
        if as_json:
            typer.echo("null")
        typer.echo(f"no healthy or intact snapshot in {shown(directory)}; `lastgood list` says why", err=True)
        sys.exit(ExitStatus.NO_HEALTHY_SNAPSHOT)
    path = _path(chosen)
    if as_json:
        typer.echo(json.dumps(_rung_fields(chosen), indent=1))
    else:
        typer.echo(shown(path) if sys.stdout is not None and sys.stdout.isatty() else os.fsencode(path))

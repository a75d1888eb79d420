"""`lastgood inspect`: what a snapshot says about itself. It needs no supervisor and no torch."""

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supervisor.cli.snapshots import AsJson
from supervisor.cli.text import FORBIDDEN, bytes_text, printable, shown
from supervisor.errors import UsageError

if TYPE_CHECKING:
    from lastgood.describe import Description, SealFound, Total

TENSORS_SHOWN = 40  # lines on a terminal; elsewhere all
VALUE_CHARACTERS = 200  # of a config's value; --json has more


def inspect(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A snapshot, a file or a folder.")],
    every: Annotated[bool, typer.Option("--all", help="List every tensor on a terminal too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a snapshot says about itself.

    Step, config, tensors, seal. Its tensors' bytes are not read: `verify` does that.

    Exit 0: described; 1: it is damaged, or of no known format; 2: usage.
    """
    found = _described(path)
    if as_json:
        typer.echo(json.dumps(_fields(path, found), indent=1))
    elif found.format is not None and (found.keys or found.problem is None):
        _tell(path, found, None if every or not sys.stdout or not sys.stdout.isatty() else TENSORS_SHOWN)
    if found.problem is not None:
        salvage = f", `lastgood salvage {shown(path)} -o OUT` gets out what is whole" if _salvageable(found) else ""
        typer.echo(
            f"lastgood: inspect: {shown(path)}: {printable(found.problem)}; `lastgood verify` judges it{salvage}",
            err=True,
        )
        sys.exit(1)


def _salvageable(found: "Description") -> bool:
    return (found.format or "").startswith("torch zip")


def _described(path: str) -> "Description":
    from lastgood.describe import describe
    from lastgood.folders import is_snapshot

    try:
        if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK):
            raise UsageError(f"inspect: {shown(path)}: {FORBIDDEN}")
        if os.path.isdir(path) and not is_snapshot(path):
            raise UsageError(
                f"inspect: {shown(path)} is a folder and no snapshot itself; give one of those in it (`lastgood list` names them)"
            )
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise UsageError(f"inspect: {shown(path)}: it is no regular file")
        return describe(path)
    except PermissionError:
        raise UsageError(f"inspect: {shown(path)}: {FORBIDDEN}") from None
    except OSError as error:
        cure = "; give a snapshot" if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"inspect: {shown(path)}: {error.strerror or error}{cure}") from None


def _tell(path: str, found: "Description", limit: int | None) -> None:
    """Print the description for a person: facts, then what is configured, then what is in it."""
    typer.echo(shown(path))
    for name, text in _facts(found):
        typer.echo(f"  {name:<10} {text}")
    for title, value in (("model arguments", found.model_arguments), ("config", found.config)):
        if value:
            typer.echo(f"\n{title}")
            for line in _lines(value):
                typer.echo(f"  {line}")
    others = [key for key in found.keys if key.kind != "tensor"]
    if others:
        typer.echo("\nfiles" if found.format == "folder" else "\nkeys")
    for key in others:
        typer.echo(f"  {printable(key.name)}: {_key_text(key)}")
    if found.tensors:
        typer.echo(f"\n{'SIZE':>10}  {'DTYPE':<10} {'SHAPE':<20} TENSOR")
    for part in found.tensors[:limit]:
        shape = "×".join(map(str, part.shape)) or "scalar"
        typer.echo(f"{bytes_text(part.bytes):>10}  {part.dtype:<10} {shape:<20} {printable(part.name)}")
    if limit is not None and len(found.tensors) > limit:
        typer.echo(f"… {len(found.tensors) - limit:,} more; --all shows them")


def _facts(found: "Description") -> list[tuple[str, str]]:
    notes = "".join(f", {printable(name).lstrip('.')} {printable(value)}" for name, value in found.notes.items())
    step = "none in its name or inside" if found.step is None else str(found.step)
    if found.step_inside not in (None, found.step):
        step += f" by its name; inside it says {found.step_inside}"
    facts = [("format", f"{found.format}{notes}"), ("size", bytes_text(found.bytes)), ("step", step)]
    facts.append(("seal", _seal_text(found.seal)))
    if found.seal.sha256:
        facts.append(("sha256", found.seal.sha256))
    if found.model != found.total:
        facts.append(("model", _total_text(found.model, "parameters")))
    facts.append(("in all", _total_text(found.total, "elements")))
    facts.append(("globals", _globals_text(found)))
    if isinstance(found.salvaged, dict):
        lost = found.salvaged.get("lost")
        count = len(lost) if isinstance(lost, list) else 0
        unproven = ", its checksums were switched off" if found.salvaged.get("unproven") else ""
        facts.append(("salvaged", f"from {printable(str(found.salvaged.get('source')))}, {count} lost{unproven}"))
    return facts


def _seal_text(seal: "SealFound") -> str:
    unchecked = "not compared with its bytes here"
    return {
        "beside": f"beside it; {unchecked}",
        "supervisor": f"kept by its supervisor; {unchecked}",
        "none": "none",
    }.get(seal.kind, f"unusable: {printable(seal.reason or '')}")


def _total_text(total: "Total", word: str) -> str:
    return f"{total.elements:,} {word} in {total.tensors:,} tensors, {bytes_text(total.bytes)}"


def _globals_text(found: "Description") -> str:
    if not found.globals:
        return "none"
    if not found.unsafe_globals:
        return f"{len(found.globals)}, all on torch's safe list"
    return "NOT on torch's safe list: " + ", ".join(map(printable, found.unsafe_globals))


def _lines(value: Any) -> list[str]:
    if not isinstance(value, dict):
        return [_short(value)]
    return [f"{printable(name)}: {_short(inner)}" for name, inner in value.items()]


def _short(value: Any) -> str:
    text = printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text if len(text) <= VALUE_CHARACTERS else text[: VALUE_CHARACTERS - 1] + "…"


def _key_text(key: Any) -> str:
    if key.value is not None:
        return _short(key.value)
    inside = f", {key.tensors:,} tensors" if key.tensors else ""
    size = f", {bytes_text(key.bytes)}" if key.bytes else ""
    return f"{printable(key.kind)}{inside}{size}"


def _fields(path: str, found: "Description") -> dict[str, Any]:
    return {
        "path": shown(path),
        "format": found.format,
        "bytes": found.bytes,
        "step": found.step,
        "step_inside": found.step_inside,
        "seal": {
            "kind": found.seal.kind,
            "sha256": found.seal.sha256,
            "reason": found.seal.reason and printable(found.seal.reason),
        },
        "notes": dict(found.notes),
        "model": _total_fields(found.model),
        "total": _total_fields(found.total),
        "model_arguments": found.model_arguments,
        "config": found.config,
        "salvaged": found.salvaged,
        "globals": found.globals,
        "unsafe_globals": found.unsafe_globals,
        "keys": [
            {"name": key.name, "kind": key.kind, "tensors": key.tensors, "bytes": key.bytes, "value": key.value}
            for key in found.keys
        ],
        "tensors": [
            {"name": part.name, "dtype": part.dtype, "shape": part.shape, "bytes": part.bytes} for part in found.tensors
        ],
        "problem": found.problem and printable(found.problem),
    }


def _total_fields(total: "Total") -> dict[str, int]:
    return {"tensors": total.tensors, "parameters": total.elements, "bytes": total.bytes}

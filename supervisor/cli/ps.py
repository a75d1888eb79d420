"""`lastgood ps`: the runs of this machine, a line each."""

import json
from typing import Any

import typer

from supervisor import supervisors
from supervisor.cli.snapshots import AsJson
from supervisor.cli.text import printable, shown

COLUMNS = ("name", "phase", "step", "pid", "user", "unit", "directory")


def ps(as_json: AsJson = False) -> None:
    """List the runs that are supervised on this machine now."""
    found = [_row(one) for one in supervisors.running()]
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    if not found:
        typer.echo("no supervisor runs on this machine, as far as this user can see", err=True)
        return
    rows = [[name.upper() for name in COLUMNS], *([_cell(row[name]) for name in COLUMNS] for row in found)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(COLUMNS))]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)


def _row(one: supervisors.Supervisor) -> dict[str, Any]:
    status = {} if one.directory is None else _status(one.directory, one.identity.pid)
    return {
        "name": _text(status.get("name")),
        "directory": None if one.directory is None else shown(one.directory),
        "phase": _text(status.get("phase")),
        "step": status.get("step"),
        "final_step": status.get("final_step"),
        "pid": one.identity.pid,
        "trainer_pid": status.get("trainer_pid"),
        "user": printable(one.user),
        "unit": None if one.unit is None else printable(one.unit),
    }


def _text(value: Any) -> str | None:
    return None if value is None else printable(str(value))


def _status(directory: str, pid: int) -> dict[str, Any]:
    """What that very supervisor said last; nothing when it has not yet, or its file is of another."""
    from supervisor.adapters import statefile

    try:
        status = statefile.read_status(directory) or {}
    except (OSError, ValueError):
        return {}
    return status if status.get("supervisor_pid") == pid else {}

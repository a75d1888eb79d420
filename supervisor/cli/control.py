"""`lastgood status`: how a run is doing, whether or not its supervisor is alive."""

import dataclasses
import json
import time
from typing import Annotated, Any

import typer

from supervisor.cli.accounting import Accounting, in_words
from supervisor.cli.directory import Place, named
from supervisor.cli.text import FORBIDDEN, shown
from supervisor.errors import UsageError
from supervisor.goodput import Goodput

SHOWN = (
    "name",
    "directory",
    "wanted",
    "phase",
    "waiting_for",
    "step",
    "loss",
    "final_step",
    "last_good",
    "resumed_from",
    "incarnation",
)


def status(
    place: Place,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how a run is doing.

    `supervised` says whether a supervisor has it now.
    """
    found = read(named("status", place).directory)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    for key in SHOWN:
        if found.get(key) is not None:
            typer.echo(f"{key.replace('_', ' '):<14} {_plain(found[key])}")
    if found["failure"]:
        typer.echo(f"{'failure':<14} {found['failure']}")
    for key, words in in_words(Goodput(**found["goodput"])):
        typer.echo(f"{key:<14} {words}")
    if (standby := found.get("standby")) is not None:
        state = "ready" if standby["ready"] else "importing"
        typer.echo(f"{'standby':<14} process {standby['pid']}, {state}, {standby['memory_bytes'] / 1e6:,.0f} MB")
    elif found.get("standby_missing"):
        typer.echo(f"{'standby':<14} none: {found['standby_missing']}")
    if found["temporary"]:
        typer.echo(f"{'temporary':<14} {found['temporary']} temporary files or folders; they are never resumed from")
    alive = (
        f"process {found['supervisor_pid']}" if found["supervised"] else "nobody; the above is from the last supervisor"
    )
    typer.echo(f"{'supervised by':<14} {alive}")
    typer.echo(f"{'as of':<14} {max(0.0, time.time() - found['written_at']):.0f} s ago")


def _plain(value: Any) -> str:
    return value["name"] if isinstance(value, dict) else str(value)


def read(directory: str) -> dict[str, Any]:
    """The last summary with `supervised` and `goodput` as they are now. Raises UsageError when DIR has none."""
    from supervisor import leftovers
    from supervisor.adapters import statefile

    try:
        found = statefile.read_status(directory)
    except PermissionError:
        raise UsageError(f"status: {shown(directory)}: {FORBIDDEN}") from None
    except (OSError, ValueError) as error:
        cure = "a supervisor writes it anew"
        raise UsageError(f"status: {directory}: status.json cannot be read ({error}); {cure}") from None
    if found is None:
        raise UsageError(
            f"status: {directory} is not a run's checkpoint directory: no supervisor has written a status there"
        )
    if not {"failure", "supervisor_pid", "written_at"} <= found.keys():
        raise UsageError(f"status: {directory}: status.json is damaged; a supervisor writes it anew")
    supervised = statefile.holder(directory) is not None
    accounting = Accounting(directory)
    accounting.read()
    goodput = dataclasses.asdict(accounting.goodput(found, supervised, time.time()))
    try:
        temporary = leftovers.temporary(directory)
    except OSError:
        temporary = None
    now = {"wanted": statefile.read_wanted(directory), "supervised": supervised, "temporary": temporary}
    return {**found, **now, "goodput": goodput}

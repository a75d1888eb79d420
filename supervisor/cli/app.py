"""The `lastgood` command. Commands are loaded when they are called, so that `latest` does not pay for `chaos`."""

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from supervisor.cli import (
    campaign,
    control,
    doctoring,
    inspecting,
    pausing,
    ps,
    run,
    salvaging,
    sealing,
    snapshots,
    stopping,
    tools,
    watching,
)
from supervisor.errors import ExitStatus, UsageError

app = typer.Typer(
    help="Keeps a training run alive: proves every snapshot good, restarts from the last good one, and says so.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("lastgood"))
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the command itself."""


app.command("run")(run.run)
app.command("verify")(snapshots.verify)
app.command("list")(snapshots.list_)
app.command("latest")(snapshots.latest)
app.command("inspect")(inspecting.inspect)
app.command("seal")(sealing.seal)
app.command("salvage")(salvaging.salvage)
app.command("status")(control.status)
app.command("watch")(watching.watch)
app.command("stop")(stopping.stop)
app.command("pause")(pausing.pause)
app.command("resume")(pausing.resume)
app.command("ps")(ps.ps)
app.command("chaos")(campaign.chaos)
app.command("events")(tools.events)
app.command("check")(tools.check)
app.command("doctor")(doctoring.doctor)


def main() -> None:
    """Run the command; a person's mistake is one line on stderr and exit status 2."""
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except UsageError as error:
        print(f"lastgood: {error}", file=sys.stderr)  # noqa: T201 - talk goes to stderr
        sys.exit(ExitStatus.USAGE)
    except OSError as error:
        if not isinstance(
            error, BrokenPipeError
        ):  # then the reader of our output went away, and nobody is there to tell
            print(f"lastgood: {error.filename or 'output'}: {error.strerror}", file=sys.stderr)  # noqa: T201
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the last flush would fail again, and be complained of
        sys.exit(1)

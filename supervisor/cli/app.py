"""The `lastgood` command. Commands are loaded when they are called, so that `latest` does not pay for `chaos`."""

import os
import sys
from typing import Annotated, Any

import typer

from supervisor.cli import (
    campaign,
    control,
    doctoring,
    inspecting,
    pausing,
    ps,
    reporting,
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
        from importlib.metadata import version  # no other command is to wait for it

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
app.command("report")(reporting.report)
app.command("chaos")(campaign.chaos)
app.command("events")(tools.events)
app.command("check")(tools.check)
app.command("doctor")(doctoring.doctor)


_WRONG_WORDS: type[Exception] = typer.BadParameter.__mro__[1]
"""Click's UsageError, wherever this typer has its click from."""


def _call() -> None:
    """Run the command; words that it does not understand are told as any other mistake is. Raises UsageError."""
    try:
        status = app(prog_name="lastgood", standalone_mode=False)
    except _WRONG_WORDS as error:
        told: Any = error  # typer does not say what its click's errors hold
        context, wrong = told.ctx, told.format_message()
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(context.get_help())
            sys.exit(ExitStatus.USAGE)
        path = "lastgood" if context is None else context.command_path
        command = path.partition(" ")[2]
        wrong = f"{wrong[0].lower()}{wrong[1:].rstrip('.?')}".replace(". Did you mean", "; did you mean")
        raise UsageError(f"{command}{': ' * bool(command)}{wrong}; `{path} --help` has the rest") from None
    sys.exit(status)


def _place_of(error: OSError) -> str:
    """What an error of the system's is about, where it does not say so itself."""
    if error.filename is None and isinstance(error, FileNotFoundError):
        return "the current folder is gone, change to another one"
    return str(error.filename or "output")


def main() -> None:
    """Run the command; a person's mistake is one line on stderr and exit status 2."""
    try:
        try:
            _call()
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
            print(f"lastgood: {_place_of(error)}: {error.strerror}", file=sys.stderr)  # noqa: T201 - talk goes to stderr
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the last flush would fail again, and be complained of
        sys.exit(1)

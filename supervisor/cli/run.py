"""`lastgood run`: supervise a training run until it ends."""

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastgood.contract import EVENTS_FILE, STATE_DIR
from supervisor.errors import AlreadySupervisedError, ExitStatus, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from supervisor.settings import Settings

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="CONFIG | -- CMD...", help="A YAML file; or with --checkpoints, the command."),
]
LATE_SECONDS = 5.0  # to read a few small files

Sets = Annotated[list[str] | None, typer.Option("--set", metavar="K=V", help="Override a setting, a.b=value.")]


def run(
    words: Words = None,
    sets: Sets = None,
    checkpoints: Annotated[
        str | None, typer.Option(help="The checkpoint directory of a command given after --.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="What kind of trainer the command is: lastgood, nanogpt or command.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="How it takes a snapshot: env, self, never, or arguments with {snapshot}.")
    ] = None,
    new_run: Annotated[
        bool,
        typer.Option(
            "--new-run", help="Begin a new run beside the snapshots there; it overwrites those whose names it reaches."
        ),
    ] = False,
    allow_fresh_start: Annotated[
        bool, typer.Option("--allow-fresh-start", help="Start over when no snapshot is healthy, setting the bad aside.")
    ] = False,
    exit_when_stuck: Annotated[
        bool,
        typer.Option("--exit-when-stuck", help="End with 6 when a process outlives SIGKILL, rather than wait for it."),
    ] = False,
) -> None:
    """Supervise a training run to its end.

    That is: until it completes, is stopped, or cannot go on without a person.
    """
    _await_supervisor()
    read = partial(read_settings, words or [], sets or [], checkpoints, preset, resume)
    chosen = read()
    try:
        status = supervise(
            chosen,
            (words or [""])[0] if checkpoints is None else "command line",
            new_run,
            partial(_read_file, words[0], read) if checkpoints is None and words and os.path.isfile(words[0]) else None,
            allow_fresh_start=allow_fresh_start,
            exit_when_stuck=exit_when_stuck,
        )
    except AlreadySupervisedError as error:
        typer.echo(f"lastgood: {error}; one supervisor a directory", err=True)
        status = ExitStatus.ALREADY_SUPERVISED
    sys.exit(status)


def _read_file(path: str, read: "Callable[[], Settings]") -> "Settings":
    """The settings as the file says by now. Raises UsageError, also for a pipe in its place, at which a reader would wait."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"{path}: it is no file any more; give the run's YAML file there, and send SIGHUP again")
    return read()


def _await_supervisor() -> None:
    """Until it listens, neither a wish nor a terminal that goes away ends this process; a stop does, before any trainer."""
    for number in (signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def read_settings(
    words: list[str], sets: list[str], checkpoints: str | None, preset: str | None, resume: str | None
) -> "Settings":
    """Settings from a file, or from the command line with `--checkpoints DIR -- CMD...`. Raises UsageError."""
    from supervisor import configuration, launch  # half of what any command would take to start
    from supervisor.adapters import notifier

    if checkpoints is None:
        if len(words) != 1:
            raise UsageError("run: give one CONFIG file, or --checkpoints DIR [--resume HOW] -- CMD...")
        where, base = words[0], None
        sets = [*sets, *_options(preset, resume)]
    else:
        if len(words) == 1 and words[0].endswith((".yaml", ".yml")):
            cure = f"leave --checkpoints out, or say --set checkpoints.dir={checkpoints}"
            raise UsageError(f"run: {words[0]}: a config names its directory itself; {cure}")
        trainer = {"command": words, "preset": preset, "resume": resume}
        base = {"run": {"name": os.path.basename(os.path.abspath(checkpoints))}, "trainer": trainer}
        base["checkpoints"] = {"dir": checkpoints}
        where = "command line"
    chosen = configuration.load(None if checkpoints is not None else words[0], sets, base)
    launch.check_program(chosen, where)
    launch.check_arguments(chosen, where)
    notifier.check(chosen.notify, where)
    return chosen


def _options(preset: str | None, resume: str | None) -> list[str]:
    given = {"trainer.preset": preset, "trainer.resume": resume}
    return [f"{key}={_quoted(value)}" for key, value in given.items() if value is not None]


def _quoted(text: str) -> str:
    """`text` as a YAML string: `{snapshot}` would otherwise be read as a mapping."""
    return "'" + text.replace("'", "''") + "'"


def supervise(
    chosen: "Settings", where: str, new_run: bool, read_again: "Callable[[], Settings] | None" = None, **allowed: bool
) -> int:
    """Take the directory and supervise; returns the exit status. `allowed` is what the policy may do beside the settings.

    `read_again` reads the settings anew, where a file holds them.

    Raises AlreadySupervisedError and UsageError.
    """
    from supervisor.adapters import statefile
    from supervisor.adapters.journal import Journal
    from supervisor.runtime import Runtime

    directory = os.path.realpath(chosen.checkpoints.dir)
    with _told_when_late(directory):
        try:
            statefile.prepare(directory, anew=True)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
        try:
            lock = statefile.lock(directory)
            found = _run_of(directory, chosen, new_run)
        except OSError as error:
            raise UsageError(f"checkpoints.dir: {directory} cannot be used now: {error.strerror}; try again") from None
    shape: Any = chosen.log.format
    if shape == "auto":
        shape = "text" if sys.stdout is not None and sys.stdout.isatty() else "json"
    journal = Journal(
        chosen.run.name, found.run_id, os.path.join(directory, STATE_DIR, EVENTS_FILE), shape, chosen.log.level
    )
    runtime = Runtime(chosen, found, chosen.policy(**allowed), journal, lock, read_again)
    try:
        return runtime.run()
    finally:
        journal.close()
        os.close(runtime.lock)


@contextmanager
def _told_when_late(directory: str) -> "Iterator[None]":
    """Nothing can be done without the directory, and what waits for its storage cannot even be killed; so it is said."""
    words = f"lastgood: {directory}: the storage does not answer; waiting for it"
    late = threading.Timer(LATE_SECONDS, partial(print, words, file=sys.stderr, flush=True))
    late.start()
    try:
        yield
    finally:
        late.cancel()


def _run_of(directory: str, chosen: "Settings", new_run: bool) -> Any:
    """The run of this directory; begun now, apart from the snapshots there, when `new_run` says so. Raises UsageError."""
    from lastgood.rungs import scan
    from supervisor.adapters import statefile
    from supervisor.shelved import scan_shelf

    found = None if new_run else statefile.read_run(directory, time.monotonic())
    if found is not None:
        return found
    old = [*scan(directory, chosen.pattern), *scan_shelf(directory)] if new_run else []
    if old and chosen.trainer.resume == "self":
        raise UsageError(
            "run: with --new-run a trainer that finds its snapshot itself would find the old ones; name another folder"
        )
    foreign = {rung.name: rung.identity for rung in old} if new_run else None
    begun = statefile.new_run(foreign)
    statefile.write_run(directory, begun, time.monotonic())
    return begun

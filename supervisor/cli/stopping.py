"""`lastgood stop`: ask the supervisor of a directory to stop its run, and wait until it has."""

import os
import select
import signal
import sys
from typing import Annotated, Any

import typer

from lastgood.contract import STATE_DIR, SUPERVISOR_LOCK
from supervisor import supervisors
from supervisor.cli.directory import Place, named
from supervisor.cli.text import printable, shown
from supervisor.errors import UsageError
from supervisor.proc import Identity, is_alive, send_signal

STOPPED, NOT_STOPPED, NOBODY = 0, 1, 3
TIMEOUT_SECONDS = 120.0  # the default grace of a trainer, and as much again for a sweep and slow storage
TIMEOUT_SECONDS_MAX = 1e7


def stop(
    place: Place,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for its end.")] = TIMEOUT_SECONDS,
) -> None:
    """Stop a run and wait for its end; the next start goes on.

    Its supervisor is asked, and its trainer saves and ends.

    Exit 0: it has ended; 1: not in time, or it may not be signalled; 3: no supervisor runs there; 2: usage.
    """
    if not timeout <= TIMEOUT_SECONDS_MAX:
        raise UsageError(f"stop: --timeout: {timeout} is no time to wait; give seconds")
    status, text = stop_supervisor(named("stop", place).directory, timeout)
    typer.echo(text, err=status != STOPPED)
    sys.exit(status)


def stop_supervisor(directory: str, timeout_seconds: float) -> tuple[int, str]:
    """Stop the supervisor of a directory; the exit status and a line for a person."""
    from supervisor.adapters import statefile

    where = shown(directory)
    found = is_told_to(directory, "stop", signal.SIGTERM)
    if isinstance(found, tuple):
        return found
    typer.echo(f"asked process {found.pid} to stop; its trainer saves and ends", err=True)
    _end_pause(directory)
    if not _has_ended(found, timeout_seconds):
        return NOT_STOPPED, (
            f"lastgood: stop: process {found.pid} has not ended within {timeout_seconds:g} s, and goes on stopping"
            f"{_last(directory)}; look at `lastgood status {where}`"
        )
    again = statefile.holder(directory)
    if again is not None:
        return NOT_STOPPED, (
            f"lastgood: stop: process {found.pid} has ended, and process {again} has {where} now; "
            "whatever starts it again must be stopped first (`lastgood ps` names its unit)"
        )
    return STOPPED, f"process {found.pid} has ended{_last(directory)}"


def _end_pause(directory: str) -> None:
    """A pause outlives the signal, which comes from a service manager too; whoever says `stop` wants the next start to go on."""
    from supervisor.adapters import statefile

    if statefile.read_wanted(directory) != "pause":
        return
    try:
        statefile.write_wanted(directory, "stop")
    except OSError as error:
        cure = f"say `lastgood resume {shown(directory)}` before the next start"
        typer.echo(f"lastgood: stop: the pause cannot be taken back ({error.strerror}); {cure}", err=True)


def is_told_to(directory: str, verb: str, number: int) -> Identity | tuple[int, str]:
    """Send a signal to the supervisor of a directory and to nobody else; the process, or status and line where that fails."""
    from supervisor.adapters import statefile

    where = shown(directory)
    told = statefile.holder(directory)
    if told is None and _is_hidden(directory):
        return NOT_STOPPED, f"lastgood: {verb}: {where}: its lock cannot be read; {verb} it as the user who started it"
    if told is None:
        return NOBODY, f"no supervisor runs on {where}{_last(directory)}"
    found = supervisors.supervisor_of(directory, told)
    if found is not None and send_signal(found, number):
        return found
    if statefile.holder(directory) is None:
        return STOPPED, f"the supervisor of {where} has just ended by itself{_last(directory)}"
    who = f"process {told}" if told else "a process"
    return NOT_STOPPED, (
        f"lastgood: {verb}: {where} is supervised by {who}, which cannot be signalled from here: "
        f"it is another user's, in another container or on another machine; {verb} it there"
    )


def _has_ended(process: Identity, seconds: float) -> bool:
    """Wait for the end of a process, at most so long; returns whether it came."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return not is_alive(process)
    try:
        if not is_alive(process):
            return True
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def _is_hidden(directory: str) -> bool:
    """Whether permissions hide who has the directory."""
    path = os.path.join(directory, STATE_DIR, SUPERVISOR_LOCK)
    try:
        os.stat(path)
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(path, os.R_OK)


def _last(directory: str) -> str:
    """What the last status says of the run, to stand behind a sentence."""
    from supervisor.adapters import statefile

    try:
        status: dict[str, Any] = statefile.read_status(directory) or {}
    except (OSError, ValueError):
        return ""
    words = [f"phase {printable(str(status['phase']))}"] if status.get("phase") else []
    if status.get("exit_status") is not None:
        words.append(f"exit status {status['exit_status']}")
    good = status.get("last_good")
    if isinstance(good, dict):
        words.append(f"newest good snapshot {printable(str(good.get('name')))}")
    if status.get("failure"):
        words.append(printable(str(status["failure"])))
    return f": {', '.join(words)}" if words else ""

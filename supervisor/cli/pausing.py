"""`lastgood pause` and `resume`: have the trainer of a directory make room, and let the run go on later."""

import sys
import time
from typing import Annotated

import typer

from supervisor.cli.directory import Place, named
from supervisor.cli.stopping import NOBODY, NOT_STOPPED, STOPPED, TIMEOUT_SECONDS, is_told_to
from supervisor.cli.text import shown
from supervisor.proc import is_alive

LOOK_SECONDS = 0.1
Timeout = Annotated[float, typer.Option(min=0, max=1e7, help="Seconds to wait for it.")]


def pause(place: Place, timeout: Timeout = TIMEOUT_SECONDS) -> None:
    """Pause a run: its trainer makes room until `resume`.

    The trainer saves and ends, which is waited for. The wish outlives the supervisor. Exit 0: it is paused; 1: not in time, or it
    ended instead; 3: no supervisor runs there, and its next start will wait; 2: usage.
    """
    _end(*wish(named("pause", place).directory, "pause", timeout))


def resume(place: Place, timeout: Timeout = TIMEOUT_SECONDS) -> None:
    """Let a paused run go on.

    From whatever its directory holds by now; waits until it does.

    Exit 0: it goes on; 1: not in time, or it ended instead; 3: no supervisor runs there, and its next start will go on; 2: usage.
    """
    _end(*wish(named("resume", place).directory, "run", timeout))


def _end(status: int, text: str) -> None:
    typer.echo(text, err=status != STOPPED)
    sys.exit(status)


def wish(directory: str, wanted: str, timeout_seconds: float) -> tuple[int, str]:
    """Keep a wish in wanted.json, tell the supervisor, and wait until it has come true; the exit status and a line."""
    from supervisor.adapters import statefile

    where, verb = shown(directory), {"pause": "pause", "run": "resume"}[wanted]
    try:
        statefile.write_wanted(directory, wanted)
    except OSError as error:
        forbidden = isinstance(error, PermissionError)
        cure = f"{verb} it as the user who started it" if forbidden else "is it a run's directory?"
        return NOT_STOPPED, f"lastgood: {verb}: {where}: the wish cannot be written ({error.strerror}); {cure}"
    asked_at = time.time()
    found = is_told_to(directory, verb, statefile.WISH_SIGNAL)
    if isinstance(found, tuple):
        status, text = found
        then = f"; its next start will {'wait' if wanted == 'pause' else 'go on'}" if status != NOT_STOPPED else ""
        return status or NOBODY, text + then
    give_up_at = time.monotonic() + timeout_seconds
    while is_alive(found):
        phase = _phase_since(directory, asked_at)
        if phase is not None and (phase == "paused") == (wanted == "pause"):
            return STOPPED, f"{where} is paused" if wanted == "pause" else f"{where} goes on: phase {phase}"
        if time.monotonic() >= give_up_at:
            late = f"has not come about within {timeout_seconds:g} s, and is still wished for"
            return NOT_STOPPED, f"lastgood: {verb}: {where}: it {late}; look at `lastgood status {where}`"
        time.sleep(LOOK_SECONDS)
    return (
        NOT_STOPPED,
        f"lastgood: {verb}: {where}: its supervisor has ended instead; look at `lastgood status {where}`",
    )


def _phase_since(directory: str, asked_at: float) -> str | None:
    """The phase that was written down after a time of the wall clock, a moment later to be sure; None while there is none."""
    from supervisor.adapters import statefile

    try:
        status = statefile.read_status(directory) or {}
    except (OSError, ValueError):
        return None
    written_at = status.get("written_at")
    if not isinstance(written_at, int | float) or written_at <= asked_at + LOOK_SECONDS:
        return None
    return str(status.get("phase"))

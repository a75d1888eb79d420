"""`lastgood watch`: a live view of a run. It reads, and never writes nor judges; it needs no supervisor."""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supervisor.cli.directory import Place, named
from supervisor.cli.snapshots import Pattern
from supervisor.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console, Group

    from supervisor.cli.look import Look

REFRESH_SECONDS = 1.0
PLAIN_WIDTH, PLAIN_HEIGHT = 120, 40  # where there is no terminal to ask
QUIT, HINT = b"qQ", "q ends"
SUSPENDED = -1
ENDS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGTSTP: SUSPENDED}
"""What a signal means for the exit status; any other only asks for a new frame."""


def watch(
    place: Place,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    pattern: Pattern = None,
) -> None:
    """Show a live view of a run.

    Phase, step, loss, ladder, restarts, last records. q ends it, the run goes on.

    Where standard output is no terminal one frame is printed. Exit 0: ended with q, or printed; 130: Ctrl-C; 2: usage.
    """
    from rich.console import Console

    from supervisor.cli.look import Look

    meant = named("watch", place)
    look = Look(meant.directory, _checked(pattern or meant.pattern))
    console = Console(highlight=False)
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    if once or not on_terminal or console.is_dumb_terminal:
        if not on_terminal and "COLUMNS" not in os.environ:
            console.width = PLAIN_WIDTH
        console.print(_frame(look, console, console.height - 1 if on_terminal else PLAIN_HEIGHT))
        return
    sys.exit(_live(look, console))


def _checked(pattern: str | None) -> str | None:
    from lastgood.naming import rule_for

    try:
        rule_for(pattern)
    except ValueError as error:
        raise UsageError(f"watch: --pattern: {error}") from None
    return pattern


def _frame(look: "Look", console: "Console", height: int, hint: str = "") -> "Group":
    from rich.console import Group

    from supervisor.cli.frame import frame

    ascii_only = not console.encoding.lower().startswith("utf")
    return Group(*frame(look.view(time.time()), console.width, height, ascii_only, hint))


def _live(look: "Look", console: "Console") -> int:
    """Draw frames until somebody wants no more; returns the exit status."""
    while (status := _on_screen(look, console)) == SUSPENDED:
        os.kill(os.getpid(), signal.SIGSTOP)  # with the terminal as it was before; `fg` goes on
    return status


def _on_screen(look: "Look", console: "Console") -> int:
    """Draw frames on a screen of their own, which is gone afterwards; returns the exit status, or SUSPENDED."""
    from rich.live import Live

    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with _signals() as woken, _keys() as keyboard, live:
        while True:
            live.update(_frame(look, console, console.height, HINT), refresh=True)
            status = _wait(woken, keyboard)
            if status is not None:
                return status


def _wait(woken: int, keyboard: int | None) -> int | None:
    """Wait for the next frame; an exit status, or SUSPENDED, when none is wanted."""
    sources = [woken] if keyboard is None else [woken, keyboard]
    ready = select.select(sources, [], [], REFRESH_SECONDS)[0]
    if woken in ready:
        for number in os.read(woken, 64):
            if number in ENDS:
                return ENDS[signal.Signals(number)]
    if keyboard is not None and keyboard in ready:
        pressed = os.read(keyboard, 64)
        if not pressed or set(pressed) & set(QUIT):
            return 0
    return None


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """A descriptor from which the numbers of signals can be read, so that a frame is never cut short by one."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.signal(number, _note) for number in (*ENDS, signal.SIGWINCH)}
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(previous)
        for number, old in before.items():
            signal.signal(number, old)
        os.close(reader)
        os.close(writer)


def _note(_number: int, _frame: Any) -> None:
    """Only wake up: the loop reads which signal it was."""


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    """The keyboard, each key as it is pressed and none shown; None where standard input is no terminal."""
    import termios
    import tty

    if sys.stdin is None or not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

"""How a run tells people what it does: a bar on a terminal, nanoGPT's lines anywhere else."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from trainer.distributed import is_first, say
from trainer.settings import Settings

REDRAW_SECONDS = 0.1  # the shortest time between two drawings of the bar

Told = Callable[[int, float, float], None]
"""Told of each step: its number, its loss, and the seconds it took."""
Mfu = Callable[[float], float]
"""The share of the machine's peak that a step of so many seconds amounts to."""


@contextlib.contextmanager
def shown(settings: Settings, start: int, mfu: Mfu) -> Iterator[Told]:
    """Whom to tell of each step of a run that goes on from `start`."""
    if not (is_first() and sys.stdout.isatty()):
        yield lines(settings, start, mfu)
        return
    from rich.console import Console

    console = Console()
    if console.is_dumb_terminal:  # it cannot go back in a line
        yield lines(settings, start, mfu)
        return
    with bar(console, settings, start, mfu) as told:
        yield told


def lines(settings: Settings, start: int, mfu: Mfu) -> Told:
    """One line every `log_interval` steps, and for the first one."""

    def told(step: int, loss: float, seconds: float) -> None:
        if step % settings.log_interval == 0 or step == start + 1:
            say(f"iter {step}: loss {loss:.4f}, time {seconds * 1000:.2f}ms, mfu {mfu(seconds) * 100:.2f}%")

    return told


@contextlib.contextmanager
def bar(console: Any, settings: Settings, start: int, mfu: Mfu) -> Iterator[Told]:
    """A bar that stays below whatever else is printed; it is drawn between two steps, not beside them."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("step {task.completed}/{task.total}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[words]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, auto_refresh=False, expand=True) as progress:
        task = progress.add_task("", total=settings.max_iters, completed=start, words="")
        drawn = 0.0

        def told(step: int, loss: float, seconds: float) -> None:
            nonlocal drawn
            now = time.monotonic()
            if now - drawn < REDRAW_SECONDS and step != settings.max_iters:
                return
            drawn = now
            words = (
                f"loss {loss:.4f}, {settings.tokens_per_step / seconds:,.0f} tokens/s, mfu {mfu(seconds) * 100:.2f}%"
            )
            progress.update(task, completed=step, words=words, refresh=True)

        yield told

"""How a campaign talks while it goes on: a line for each part of it, and a bar on a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def tell(console: Console, text: str) -> None:
    """Say what part of it begins."""
    console.print(f"[bold]{text}[/bold]" if console.is_terminal else text)


@contextmanager
def bar(console: Console, title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar over steps on a terminal; elsewhere nothing. Yields a function that takes the step."""
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=total)
        yield lambda step: progress.update(task, completed=step)


@contextmanager
def told_when_interrupted(console: Console) -> Iterator[None]:
    """For as long as things run that have to be ended first."""
    try:
        yield
    except SystemExit:
        console.print("interrupted: what was started has been ended, and nothing is judged")
        raise

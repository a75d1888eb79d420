"""Long work of the commands: on several threads, its results in order, a bar on a terminal, a prompt end on Ctrl-C."""

import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, wait
from threading import Event, Thread
from typing import Any, TypeVar

from lastgood.hashing import told_of_reads
from supervisor.errors import ExitStatus

T = TypeVar("T")

REFRESH_SECONDS = 0.25
END_SECONDS = 2.0  # for the reads in progress; one that storage does not answer is left to the kernel


def in_order(jobs: Sequence[Callable[[], T]], size: int | None, workers: int | None = None) -> Generator[T]:
    """The result of each job as soon as it and all before it are done; close the iterator when no more are wanted.

    `size` is the number of bytes that will be read in all, None when nobody knows. `workers` is the number of threads, by
    default one a processor. An exception of a job is raised in its place.
    """
    read, results, stopped = [0] * len(jobs), [Future[T]() for _ in jobs], Event()
    todo = iter(range(len(jobs)))

    def work() -> None:
        for index in todo:

            def note(count: int, index: int = index) -> None:
                read[index] += count
                if stopped.is_set():
                    raise KeyboardInterrupt  # ends the reading, whatever is catching errors there

            if stopped.is_set():
                break
            with told_of_reads(note):
                _settle(results[index], jobs[index])

    threads = [Thread(target=work, daemon=True) for _ in range(min(workers or os.cpu_count() or 1, len(jobs)))]
    bar = _Bar(size)
    try:
        for thread in threads:
            thread.start()
        for result in results:
            while wait([result], REFRESH_SECONDS).not_done:
                bar.show(sum(read))
            bar.hide()
            yield result.result()
    finally:
        stopped.set()
        bar.hide()
        if not all(result.done() for result in results):
            _end(threads)


def _settle(result: Future[T], job: Callable[[], T]) -> None:
    try:
        result.set_result(job())
    except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
        result.set_exception(error)


def _end(threads: Sequence[Thread]) -> None:
    """See to it that threads whose results nobody wants any more end: they cannot be killed, and storage may not answer."""
    import psutil

    for child in psutil.Process().children():  # a scan of tensors, which a thread waits for
        child.kill()
    deadline = time.monotonic() + END_SECONDS
    for thread in threads:
        if thread.is_alive():
            thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(ExitStatus.INTERRUPTED)


class _Bar:
    """A bar with bytes read and their speed, on a standard error that is a terminal; elsewhere nothing."""

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._shown = False
        self._progress: Any = None
        self._wanted = sys.stderr is not None and sys.stderr.isatty()

    def show(self, done: int) -> None:
        """Draw it, with `done` bytes read so far."""
        if not self._wanted:
            return
        if self._progress is None:
            self._progress = _progress()
            self._progress.add_task("", total=self._size)
            self._wanted = self._progress.console.is_interactive
        if not self._shown and self._wanted:
            self._progress.start()
            self._shown = True
        self._progress.update(0, completed=done if self._size is None else min(done, self._size), refresh=self._wanted)

    def hide(self) -> None:
        """Take it away, so that a result can be printed where it was."""
        if self._shown:
            self._progress.stop()
            self._shown = False


def _progress() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    return Progress(
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )

"""The runtime's hands on what must outlive it, run.json and wanted.json, and on status.json: written in order, by a thread.

A disk on which a sync takes seconds holds up what waits for it, which is the start of a trainer and the supervisor's own end;
it holds up neither the loop nor a stop. Of several memories that wait only the newest is written.
"""

import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import Any

from supervisor.adapters import statefile
from supervisor.core.memory import Memory
from supervisor.mailbox import Act, Mailbox, Worker
from supervisor.trainer_side import Say


class MemorySide:
    """One run's. Methods are for the loop's thread, `after` for any. `run` is what run.json holds beside the memory."""

    def __init__(self, directory: str, run: statefile.RunFile, mailbox: Mailbox, say: Say) -> None:
        self._directory = directory
        self._run = run
        self._mailbox = mailbox
        self._say = say
        self._unwritten: deque[statefile.RunFile] = deque()
        self._summaries: deque[dict[str, Any]] = deque(maxlen=1)
        self._shows = False  # a summary is about to be written; taken back before the newest is taken
        self._is_ours = True
        self.is_saved = True
        """Whether what was written of run.json last is there. True where nothing was."""
        self._worker = Worker("memory", mailbox)
        self._shower = Worker("status", mailbox)  # a slow sync of the other does not make this one old

    def let_go(self) -> None:
        """Write nothing from now on: it is all another supervisor's."""
        self._is_ours = False

    def save(self, memory: Memory) -> None:
        """Write run.json, or say why not."""
        self._unwritten.append(replace(self._run, memory=memory))
        self._worker.submit(self._write_newest, must=True)

    def _write_newest(self) -> None:
        newest = None
        while self._unwritten:
            newest = self._unwritten.popleft()
        if newest is not None:
            self.is_saved = self._try(lambda: statefile.write_run(self._directory, newest, time.monotonic()))

    def want_stop(self) -> None:
        """Say in wanted.json that a stop was asked for; a pause that is wanted too outlives that."""
        self._worker.submit(self._settle, must=True)

    def show(self, summary: dict[str, Any]) -> None:
        """Write status.json, once for all that wait; it is only for looking at, and an error is nobody's business."""
        self._summaries.append(summary)
        if not self._shows:
            self._shows = True
            self._shower.submit(self._write_summary, must=True)

    def _write_summary(self) -> None:
        self._shows = False  # first: what is shown from now on comes with a write of its own
        newest = self._summaries.pop() if self._summaries else None
        if newest is not None and self._is_ours:
            with suppress(OSError):
                statefile.write_status(self._directory, newest)

    def _try(self, write: Act) -> bool:
        """Write it, unless that is no longer ours to do; returns whether it is there."""
        try:
            if self._is_ours:
                write()
        except OSError as error:
            fields: dict[str, Any] = {"reason": f"{error.strerror or error}"}
            self._mailbox.hand(lambda: self._say("memory.not_saved", fields))
            return False
        return True

    def _settle(self) -> None:
        self._try(lambda: statefile.settle_wanted(self._directory, "stop"))

    def after(self, act: Act, first: Act) -> None:
        """Hand over an act once everything that was ordered before is written, or could not be, and the first is done here."""

        def work() -> None:
            first()
            self._mailbox.hand(act)

        self._worker.submit(work)

    def close(self, until: float | None = None) -> None:
        """Write what waits, unless that takes too long; leave no thread."""
        self._worker.close(until)
        self._shower.close(until)

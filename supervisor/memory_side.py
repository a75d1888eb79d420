"""The runtime's hands on what must outlive it, run.json and wanted.json, and on status.json: written in order, by a thread.

A disk on which a sync takes seconds holds up what waits for it, which is the start of a trainer and the supervisor's own end;
it holds up neither the loop nor a stop. Of several memories that wait only the newest is written.
"""

import time
from collections import deque
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
        self._worker = Worker("memory", mailbox)
        self._shower = Worker("status", mailbox)  # a slow sync of the other does not make this one old

    def save(self, memory: Memory) -> None:
        """Write run.json, or say why not."""
        self._unwritten.append(replace(self._run, memory=memory))
        self._worker.submit(self._write_newest, must=True)

    def _write_newest(self) -> None:
        newest = None
        while self._unwritten:
            newest = self._unwritten.popleft()
        if newest is not None:
            self._try(lambda: statefile.write_run(self._directory, newest, time.monotonic()))

    def want(self, wanted: str) -> None:
        """Keep what is wanted apart from what is: status.json tells the latter."""
        self._worker.submit(lambda: self._try(lambda: statefile.write_wanted(self._directory, wanted)), must=True)

    def show(self, summary: dict[str, Any]) -> None:
        """Write status.json, once for all that wait; it is only for looking at, and an error is nobody's business."""
        waits = bool(self._summaries)
        self._summaries.append(summary)
        if not waits:
            self._shower.submit(self._write_summary, must=True)

    def _write_summary(self) -> None:
        try:
            statefile.write_status(self._directory, self._summaries.pop())
        except OSError:
            pass

    def _try(self, write: Act) -> None:
        try:
            write()
        except OSError as error:
            fields: dict[str, Any] = {"reason": f"{error.strerror or error}"}
            self._mailbox.hand(lambda: self._say("memory.not_saved", fields))

    def after(self, act: Act) -> None:
        """Hand over an act once everything that was ordered before is written, or could not be."""
        self._worker.submit(lambda: self._mailbox.hand(act))

    def close(self) -> None:
        """Write what waits, unless that takes too long; leave no thread."""
        self._worker.close()
        self._shower.close()

"""The supervisor under test, started again when it is killed on purpose, as a service manager would."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

END_SECONDS = 60.0


class Service:
    """One `lastgood run` after the other, of the same words, all of whose lines go to one file."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        self._words = list(words)
        self._log = log
        self._process = self._started()

    def _started(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(self._words, stdout=log, stderr=subprocess.STDOUT)

    def revive(self) -> None:
        """Start another in the place of one that was killed."""
        self._process.wait(END_SECONDS)
        self._process = self._started()

    def goes_on(self) -> bool:
        """Whether there is one."""
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """How the last one ended; None while it runs."""
        return self._process.poll()

    def close(self) -> None:
        """Have none: one that still runs is asked to stop, and killed when it does not."""
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

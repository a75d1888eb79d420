"""The process that kills a run's trainer now and then, if its config wants that (see `supervisor/chaos/monkey.py`)."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from supervisor.launch import NOT_PASSED_ON
from supervisor.settings import Chaos

END_SECONDS = 1.0
Say = Callable[[str, dict[str, Any]], None]
_ROOT = str(Path(__file__).parents[2])
_MAIN = "import sys; sys.path.insert(0, sys.argv[1]); from supervisor.chaos.monkey import main; main()"


class Monkey:
    """At most one such process, which ends with this one, however that ends."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, settings: Chaos, directory: str) -> None:
        """Have it if it is wanted, and say so, or why not."""
        if settings.mean_seconds is None:
            return
        environment = {name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED_ON)}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _MAIN, _ROOT, directory, json.dumps(settings.model_dump())],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=environment, cwd="/", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._say("chaos.unavailable", {"reason": error.strerror})
        else:
            self._say("chaos.enabled", settings.model_dump())

    def look(self) -> None:
        """Say so if it is dead: from now on nothing is killed."""
        if self._process is not None and (status := self._process.poll()) is not None:
            self.close()
            self._say("chaos.unavailable", {"reason": f"the process that kills ended with {status}"})

    def pids(self) -> tuple[int, ...]:
        """The process, which is none of the run's; from any thread."""
        return () if self._process is None else (self._process.pid,)

    def close(self) -> None:
        """Have none."""
        if self._process is None:
            return
        for end in (self._process.terminate, self._process.kill):
            end()
            try:
                self._process.wait(END_SECONDS)
                break
            except subprocess.TimeoutExpired:
                pass  # at the last it waits for storage, and dies of the signal once that answers
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process = None

"""Waiting for the real world without guessing how long it takes, and proof that nothing is left behind."""

import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from lastgood.contract import ENV_RUN_ID

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
PYTHON = [sys.executable, "-I", "-S"]


def until(condition: Callable[[], T], seconds: float = 10.0) -> T:
    """The first true value of `condition`, asked again and again; fails when there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        time.sleep(0.002)
    return value


def marked_pids(run_id: str) -> list[int]:
    """Every process that carries the mark in its environment and still runs, found without the code under test."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            entries = (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        if f"{ENV_RUN_ID}={run_id}".encode() in entries and state != b"Z":
            found.append(int(folder.name))
    return found


@contextmanager
def marked_environment() -> Iterator[dict[str, str]]:
    """An environment for children, with a mark of its own; fails if a process with that mark outlives it."""
    run_id = uuid.uuid4().hex
    yield {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), ENV_RUN_ID: run_id}
    left = marked_pids(run_id)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"left behind: {left}"

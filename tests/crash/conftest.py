"""The server that runs the trials, and the folders they run in."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.crash.server import Server


def give_up(reason: str) -> NoReturn:
    """Skip with the reason on a person's machine; where every check must run, fail."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def _started_server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def server(_started_server: Server) -> Server:
    """The one server, on a machine where processes can be traced."""
    if reason := _started_server.why_not():
        give_up(reason)
    return _started_server


NewFolder = Callable[[], str]


@pytest.fixture
def new_folder(quick_path: Path) -> NewFolder:
    """Names for folders of trials."""
    numbers = itertools.count()
    return lambda: str(quick_path / f"trial-{next(numbers)}")


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync nothing in the tests' own process: after these crashes the kernel lives on, and a disk would be the slowest part."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)

"""A heartbeat is a change of the file's time, and nothing else."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.adapters import heartbeat as module
from supervisor.adapters.heartbeat import Heartbeat
from tests.bench import until

POLL = 0.01
SOME_POLLS = 0.2


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "beat"


@pytest.fixture
def listen(file: Path) -> Iterator[Callable[[], list[int]]]:
    """Begins to listen, and returns the list that grows with each beat."""
    made: list[Heartbeat] = []

    def begin() -> list[int]:
        beats: list[int] = []
        one = Heartbeat(str(file), lambda: beats.append(1), POLL)
        made.append(one)
        one.start()
        time.sleep(SOME_POLLS)  # so that it has seen how the file was
        return beats

    yield begin
    for one in made:
        one.close()


def test_a_change_of_its_time_is_a_beat(file: Path, listen: Callable[[], list[int]]) -> None:
    """Each change is one, also to an earlier time: clocks differ. What the time was before is none."""
    file.touch()
    beats = listen()
    assert [] == beats
    for count, at in ((1, 5), (2, 3)):
        os.utime(file, ns=(at, at))
        until(lambda count=count: len(beats) == count)
    time.sleep(SOME_POLLS)

    assert [1, 1] == beats


def test_a_file_that_comes_is_a_beat_and_one_that_goes_is_none(file: Path, listen: Callable[[], list[int]]) -> None:
    """A missing file is no sign, when it goes and as long as it is gone; coming back as it was it is none either."""
    beats = listen()
    file.touch()
    os.utime(file, ns=(7, 7))
    until(lambda: beats)
    file.unlink()
    time.sleep(SOME_POLLS)
    count = len(beats)
    file.touch()
    os.utime(file, ns=(9, 9))
    until(lambda: len(beats) > count)

    assert 1 <= count <= 2  # between its coming and the setting of its time it may have been seen


def test_nothing_is_heard_after_the_close(
    file: Path, listen: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even what a look finds that had hung until then; and closing does not wait for it."""
    asked, answer = threading.Event(), threading.Event()
    beats: list[int] = []

    def hang(path: str) -> int:
        if asked.is_set():
            answer.wait(20)
            return 2
        asked.set()
        return 1

    monkeypatch.setattr(module, "_modified", hang)
    one = Heartbeat(str(file), lambda: beats.append(1), POLL)
    one.start()
    time.sleep(SOME_POLLS)
    one.close()
    answer.set()
    one._thread.join(20)

    assert [] == beats

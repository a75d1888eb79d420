"""What is wanted of a run: a pause outlives starts and stops, and what cannot be read is neither overwritten nor forgotten."""

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from supervisor import wishes
from supervisor.adapters import statefile
from supervisor.core import events as e
from supervisor.wishes import Wishes
from tests.bench import until


class Desk:
    """The wishes of a directory whose storage may give errors."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = str(folder)
        self.error: int | None = None
        self.answers = threading.Event()
        self.answers.set()
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.stepped: list[e.Event] = []
        (folder / ".lastgood").mkdir()
        self._real = statefile.wanted_in
        monkeypatch.setattr(statefile, "wanted_in", self._wanted_in)
        self.wishes = Wishes(self.folder, lambda event, fields: self.said.append((event, fields)), self.stepped.append)

    def _wanted_in(self, directory: str) -> str | None:
        assert self.answers.wait(30)
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        return self._real(directory)

    @property
    def wanted(self) -> str | None:
        """What the file says."""
        return self._real(self.folder)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


@pytest.mark.parametrize(("before", "after"), [(None, "run"), ("run", "run"), ("stop", "run"), ("pause", "pause")])
def test_only_a_pause_outlives_a_start(desk: Desk, before: str | None, after: str) -> None:
    """What was wanted is told, and the next start is meant to run."""
    if before is not None:
        statefile.write_wanted(desk.folder, before)

    assert (before, after) == (desk.wishes.begin(), desk.wanted)


def test_a_damaged_wish_is_none(desk: Desk) -> None:
    """Nobody can tell what it was: the run goes on."""
    (Path(desk.folder) / ".lastgood" / "wanted.json").write_bytes(b'{"wanted": "pau')

    assert (None, "run") == (desk.wishes.begin(), desk.wanted)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize(
    ("before", "after", "step"),
    [(None, "run", e.ResumeRequested()), ("stop", "run", e.ResumeRequested()), ("pause", "pause", e.PauseRequested())],
)
def test_a_wish_that_cannot_be_read_at_the_start_is_waited_for(
    desk: Desk, number: int, before: str | None, after: str, step: e.Event
) -> None:
    """It may be a pause, so nothing is started and nothing written over it; it is said once, and decided when it is told."""
    if before is not None:
        statefile.write_wanted(desk.folder, before)
    desk.error = number
    assert ("pause", before) == (desk.wishes.begin(), desk.wanted)
    desk.wishes.read_again()
    assert [] == desk.stepped
    desk.error = None
    for _ in range(3):
        desk.wishes.read_again()

    assert [("wish.unreadable", {"reason": os.strerror(number)})] == desk.said
    assert ([step], after) == (desk.stepped, desk.wanted)


def test_a_wish_told_later_that_cannot_be_read_is_asked_for_again(desk: Desk) -> None:
    """Nobody says it twice."""
    desk.wishes.begin()
    statefile.write_wanted(desk.folder, "stop")
    desk.error = errno.EIO
    desk.wishes.read()
    desk.wishes.read_again()
    assert [] == desk.stepped
    desk.error = None
    desk.wishes.read_again()
    desk.wishes.read_again()

    assert ([e.StopRequested(15)], "stop") == (desk.stepped, desk.wanted)


def test_a_damaged_wish_is_asked_for_again(desk: Desk) -> None:
    """What a person wrote by hand and then mended counts once it makes sense."""
    desk.wishes.begin()
    (Path(desk.folder) / ".lastgood" / "wanted.json").write_bytes(b'{"wanted": "pau')
    desk.wishes.read()
    desk.wishes.read_again()
    assert [] == desk.stepped
    statefile.write_wanted(desk.folder, "pause")
    desk.wishes.read_again()

    assert [e.PauseRequested()] == desk.stepped


def test_storage_that_does_not_answer_holds_nobody_up(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waited for once and for a moment, at the start as later; what it tells in the end counts."""
    statefile.write_wanted(desk.folder, "stop")
    monkeypatch.setattr(wishes, "STORAGE_SECONDS", 0.2)
    held = Wishes(desk.folder, lambda event, fields: desk.said.append((event, fields)), desk.stepped.append)
    desk.answers.clear()
    began = time.monotonic()
    assert "pause" == held.begin()
    for _ in range(5):
        held.read()
    took = time.monotonic() - began
    assert [] == desk.stepped
    desk.answers.set()
    until(lambda: held.read_again() or desk.stepped)

    assert 0.2 <= took < 5.0
    assert [("wish.unreadable", {"reason": "the storage does not answer"})] == desk.said
    assert ([e.ResumeRequested()], "run") == (desk.stepped, desk.wanted)


def test_storage_that_always_answers_too_late_is_heard(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read takes longer than anybody waits: its answer is heard at a later rescan, and not asked for again and again."""
    monkeypatch.setattr(wishes, "STORAGE_SECONDS", 0.05)
    looks = []
    real = statefile.wanted_in

    def late(directory: str) -> str | None:
        looks.append(directory)
        time.sleep(0.5)
        return real(directory)

    monkeypatch.setattr(statefile, "wanted_in", late)
    held = Wishes(desk.folder, lambda event, fields: desk.said.append((event, fields)), desk.stepped.append)
    assert "pause" == held.begin()
    for _ in range(5):
        held.read_again()
    assert ([], 1) == (desk.stepped, len(looks))
    time.sleep(1.0)
    held.read_again()

    assert [e.ResumeRequested()] == desk.stepped

"""Small files about a trainer are read in time or not at all, and nothing in them is lost for that."""

import json
import threading
import time
from pathlib import Path

import pytest

from lastgood.contract import NOTE_ENDING, STATE_DIR
from supervisor import faults, launch, small_files
from supervisor.adapters import notes
from supervisor.core.events import EndingNoted
from supervisor.faults import Fault
from supervisor.proc import Identity
from supervisor.small_files import SmallFiles
from tests.bench import until


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set while the storage answers; what is waited for is short here."""
    answers = threading.Event()
    answers.set()
    real = notes.os.stat

    class Slow:
        """The system, on which a file is looked at when the storage answers."""

        def __getattr__(self, name: str) -> object:
            return getattr(real_os, name)

        def stat(self, path: str) -> object:
            assert answers.wait(30)
            return real(path)

    real_os = notes.os
    monkeypatch.setattr(notes, "os", Slow())
    monkeypatch.setattr(small_files, "READ_SECONDS", 0.2)
    return answers


@pytest.fixture
def files(tmp_path: Path, storage: threading.Event) -> SmallFiles:
    """The small files of a trainer that was begun as the third, and has noted something."""
    (tmp_path / STATE_DIR).mkdir()
    made = SmallFiles(str(tmp_path))
    made.begin(3)
    note = {"note": NOTE_ENDING, "status": 4, "step": 9}
    Path(launch.notes_file(str(tmp_path))).write_text(json.dumps(note) + "\n")
    return made


def test_notes_that_come_late_come_all_the_same(files: SmallFiles, storage: threading.Event) -> None:
    """Storage that does not answer is waited for once, and each note is told once, by a later look."""
    storage.clear()
    began = time.monotonic()
    assert [[]] * 5 == [files.noted() for _ in range(5)]
    assert 0.2 <= time.monotonic() - began < 5.0

    storage.set()
    assert [EndingNoted(3, 4, 9)] == until(files.noted)
    assert [] == files.noted()


def test_at_a_death_the_storage_gets_another_chance(
    files: SmallFiles, tmp_path: Path, storage: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What decides about a death is waited for, even when an earlier look was not answered; a moment, and no longer."""
    fault = Fault("f1", "kill", 10, 20, None, 0.0)
    faults.announce(str(tmp_path), fault)
    storage.clear()
    began = time.monotonic()
    assert [] == files.noted()
    assert None is files.fault_against(Identity(10, 20))
    assert [] == files.noted(all_of_it=True)
    assert 0.6 <= time.monotonic() - began < 5.0
    monkeypatch.setattr(files._storage, "_patience_seconds", 30.0)
    threading.Timer(0.3, storage.set).start()

    assert fault == files.fault_against(Identity(10, 20))
    assert [EndingNoted(3, 4, 9)] == files.noted(all_of_it=True)


def test_what_may_wait_is_looked_for_once_a_second(
    files: SmallFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At ten steps a second ten looks would cost more than the steps are worth; what must be known is looked for at once."""
    monkeypatch.setattr(small_files, "LOOKS_APART_SECONDS", 30.0)
    assert [EndingNoted(3, 4, 9)] == files.noted(may_wait=True)
    with Path(launch.notes_file(str(tmp_path))).open("a") as notes:
        notes.write(json.dumps({"note": NOTE_ENDING, "status": 5, "step": 9}) + "\n")

    assert [] == files.noted(may_wait=True)
    assert [EndingNoted(3, 5, 9)] == files.noted()


def test_what_was_begun_is_not_begun_again(files: SmallFiles) -> None:
    """A start that was ordered twice does not throw away what the trainer has noted since."""
    files.begin(3)
    assert [EndingNoted(3, 4, 9)] == files.noted()
    files.begin(4)

    assert [] == files.noted()


def test_a_fault_is_found_by_the_process_it_was_announced_against(tmp_path: Path) -> None:
    """The last one, and no other process's."""
    (tmp_path / STATE_DIR).mkdir()
    fault = Fault("f2", "kill", 10, 20, None, 0.0)
    for one in (Fault("f1", "kill", 10, 20, None, 0.0), fault, Fault("f3", "kill", 11, 20, None, 0.0)):
        faults.announce(str(tmp_path), one)

    assert fault == SmallFiles(str(tmp_path)).fault_against(Identity(10, 20))
    assert None is SmallFiles(str(tmp_path)).fault_against(Identity(10, 21))

"""What a trainer tells its supervisor: whole lines, never too long, and never at the trainer's cost."""

import errno
import json
import multiprocessing
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from lastgood import CheckpointManager, safe_load_checkpoint, save_checkpoint_atomic
from lastgood.contract import NOTE_BYTES_MAX
from lastgood.notes import NotedSave, note, note_ending
from tests.conftest import flip_bit


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the environment names; it is not there yet."""
    path = tmp_path / "state" / "notes.jsonl"
    path.parent.mkdir()
    monkeypatch.setenv("LASTGOOD_NOTES", str(path))
    monkeypatch.setenv("LASTGOOD_CHECKPOINT_DIR", str(tmp_path))
    return path


def notes(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines() if line] if file.exists() else []


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Writing beyond this many bytes of a file fails, also for the superuser."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_note_is_one_line_appended(file: Path, tmp_path: Path) -> None:
    """Each note is a line of ASCII behind what was there, with its kind and its fields."""
    file.write_bytes(b'{"note": "first"}\n')
    note("odd", tmp_path, name="a\nü\udcff.pt", step=None)

    assert [{"note": "first"}, {"note": "odd", "name": "a\nü\udcff.pt", "step": None}] == notes(file)
    assert (2, True) == (file.read_bytes().count(b"\n"), file.read_bytes().isascii())


def test_a_line_that_was_cut_short_spoils_no_other(file: Path, tmp_path: Path) -> None:
    """What a full disk left of a note is ended before the next one."""
    file.write_bytes(b'{"note": "fir')
    note("second", tmp_path)

    assert [b'{"note": "fir', b'{"note": "second"}'] == file.read_bytes().splitlines()


@pytest.mark.parametrize("name", ["LASTGOOD_NOTES", "LASTGOOD_CHECKPOINT_DIR"])
@pytest.mark.parametrize("value", [None, ""])
def test_without_a_supervisor_there_are_no_notes(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str | None, name: str
) -> None:
    """Either variable unset or empty writes nothing anywhere."""
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    note("odd", tmp_path)

    assert (["state"], []) == (os.listdir(tmp_path), notes(file))


@pytest.mark.parametrize(
    "place", ["folder", "fifo", "link to a device", "nowhere", "file as a folder", "NUL in its name"]
)
def test_a_note_that_cannot_be_written_costs_nothing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Whatever is in the file's place neither raises nor holds up the trainer, and nothing is written to it."""
    match place:
        case "folder":
            file.mkdir()
        case "fifo":
            os.mkfifo(file)
        case "link to a device":
            file.symlink_to("/dev/full")
        case "nowhere":
            file.parent.rmdir()
        case "file as a folder":
            file.write_text("x")
            monkeypatch.setenv("LASTGOOD_NOTES", str(file / "below"))
        case _:
            monkeypatch.setattr(os, "environ", {"LASTGOOD_NOTES": "a\0b", "LASTGOOD_CHECKPOINT_DIR": str(tmp_path)})
    note("odd", tmp_path)

    assert not file.exists() or not stat.S_ISREG(file.stat().st_mode) or "x" == file.read_text()


def test_a_full_disk_costs_nothing(file: Path, tmp_path: Path) -> None:
    """An append that the system cuts short or refuses is no error of the trainer's."""
    with files_limited_to(10):
        note("odd", tmp_path, name="a" * 100)
        note("odd", tmp_path)

    assert 0 < file.stat().st_size <= 10


@pytest.mark.parametrize("text", ["x" * 10**6, "ü" * 10**5, "\udcff" * 10**5, "\0" * 10**5])
def test_a_note_is_bounded(file: Path, tmp_path: Path, text: str) -> None:
    """However long a reason or a list is, the line is short enough to be read, and names survive whole."""
    name = text[:255]
    note("odd", tmp_path, chosen=name, rejected=[{"name": name, "reason": text}] * 1000, reason=text, what=object())
    [found] = notes(file)

    assert file.stat().st_size <= NOTE_BYTES_MAX
    assert (name, name) == (found["chosen"], found["rejected"][0]["name"])
    assert 255 <= len(found["reason"]) <= 1000


def test_a_trainer_notes_how_it_is_about_to_end(file: Path, tmp_path: Path) -> None:
    """The status that its launcher will not pass on is a note of the watched directory, and costs nothing where it fails."""
    (tmp_path / "elsewhere").mkdir()
    note_ending(tmp_path / "elsewhere", 65)
    assert [] == notes(file)
    note_ending(tmp_path, 10**5000)
    note_ending(str(tmp_path), 65)
    note_ending(str(tmp_path), 65, step=14)

    assert [{"note": "trainer.ending", "status": 65, "step": step} for step in (None, 14)] == notes(file)


def _many(number: int) -> None:
    for count in range(200):
        note("odd", os.environ["LASTGOOD_CHECKPOINT_DIR"], writer=number, count=count, padding="x" * 900)


def test_notes_of_several_processes_do_not_mix(file: Path) -> None:
    """The ranks of a trainer append at a time, and every line is whole."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_many, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert {(w, c) for w in range(4) for c in range(200)} == {(one["writer"], one["count"]) for one in notes(file)}


@pytest.mark.parametrize(
    ("error", "reason", "number"),
    [
        (OSError(errno.ENOSPC, "No space left: 5 bytes needed", "a.pt"), "No space left: 5 bytes needed", errno.ENOSPC),
        (RuntimeError("written by process 7"), "written by process 7", None),
        (KeyboardInterrupt(), "KeyboardInterrupt", None),
    ],
)
def test_a_failed_save_is_noted_and_passed_on(
    file: Path, tmp_path: Path, error: BaseException, reason: str, number: int | None
) -> None:
    """Whatever ended a save is told with its reason and the system's number, and is still raised."""
    with pytest.raises(type(error)), NotedSave(7, tmp_path / "ckpt_7.pt", blocking=True):
        raise error
    with NotedSave(8, tmp_path / "ckpt_8.pt", blocking=True):
        pass

    said = {"note": "save.failed", "step": 7, "name": "ckpt_7.pt", "reason": reason, "errno": number, "blocking": True}
    assert [said] == notes(file)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_managers_failed_save_is_noted(file: Path, tmp_path: Path, blocking: bool) -> None:
    """A save that the system refuses is noted once, whether or not the trainer waited for it, and raised as ever."""
    model = torch.nn.Linear(100, 100)
    manager = CheckpointManager(tmp_path)

    def save() -> None:
        manager.save(3, model, torch.optim.SGD(model.parameters()), blocking=blocking)
        manager.wait()

    with files_limited_to(20_000), pytest.raises(OSError, match="File too large"):
        save()
    manager.close()

    [said] = notes(file)
    assert ("save.failed", 3, "ckpt_00000003.pt", errno.EFBIG, blocking) == tuple(
        said[key] for key in ("note", "step", "name", "errno", "blocking")
    )
    assert "File too large" in said["reason"]


def test_a_save_in_a_directory_that_another_process_has_is_noted(file: Path, tmp_path: Path) -> None:
    """A save that is refused has failed too."""
    first, second = CheckpointManager(tmp_path), CheckpointManager(tmp_path)
    first.hold()
    with pytest.raises(RuntimeError, match="one process saves at a time"):
        second.save(3, torch.nn.Linear(1, 1), torch.optim.SGD([torch.zeros(1)]))
    first.close()

    assert [("save.failed", 3)] == [(said["note"], said["step"]) for said in notes(file)]


def test_a_loader_that_falls_back_notes_it(file: Path, tmp_path: Path) -> None:
    """What was passed over and why, what was taken instead; a loader that takes the newest has nothing to say."""
    for step in (1, 2, 3):
        save_checkpoint_atomic({"iter_num": step}, tmp_path / f"ckpt_{step}.pt")
    assert 3 == safe_load_checkpoint(tmp_path)["iter_num"]
    assert [] == notes(file)
    for step in (2, 3):
        flip_bit(tmp_path / f"ckpt_{step}.pt", 100)
    assert 1 == safe_load_checkpoint(tmp_path)["iter_num"]

    [said] = notes(file)
    rejected = said.pop("rejected")
    assert {
        "note": "fallback.chosen", "newest_step": 3, "chosen": "ckpt_1.pt", "chosen_step": 1, "depth": 2,
    } == said  # fmt: skip
    assert [("ckpt_3.pt", "corrupt"), ("ckpt_2.pt", "corrupt")] == [(one["name"], one["verdict"]) for one in rejected]
    assert "is not the sealed" in rejected[0]["reason"]


@pytest.mark.parametrize("watched", ["run", "run/", "link", "./run/../run"])
def test_only_what_is_done_in_the_watched_directory_is_noted(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watched: str
) -> None:
    """A teacher that is loaded from elsewhere, and an export that fails there, are no news of the run, whatever their names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("run")
    monkeypatch.setenv("LASTGOOD_CHECKPOINT_DIR", watched)
    for directory in ("teacher", "run"):
        (tmp_path / directory).mkdir()
        for step in (1, 2):
            save_checkpoint_atomic({"iter_num": step}, tmp_path / directory / f"ckpt_{step}.pt")
        flip_bit(tmp_path / directory / "ckpt_2.pt", 100)

    def fall_back_and_fail(directory: Path) -> None:
        assert 1 == safe_load_checkpoint(directory)["iter_num"]
        with pytest.raises(ZeroDivisionError), NotedSave(3, directory / "ckpt_3.pt", blocking=True):
            raise ZeroDivisionError

    fall_back_and_fail(tmp_path / "teacher")
    assert [] == notes(file)
    fall_back_and_fail(tmp_path / "run")
    assert ["fallback.chosen", "save.failed"] == [said["note"] for said in notes(file)]

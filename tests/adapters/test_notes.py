"""Notes of a trainer are told once, whatever is in the file and whatever becomes of it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastgood import notes as writing
from supervisor.adapters import notes as module
from supervisor.adapters.notes import LOOK_BYTES_MAX, LOOK_NOTES_MAX, Notes
from supervisor.core.events import EndingNoted, PassedOver, SaveFailed, TrainerFellBack


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "notes.jsonl"


@pytest.fixture
def notes(file: Path) -> Notes:
    """The reader of the notes of incarnation 3."""
    made = Notes(str(file))
    made.begin(3)
    return made


def line(**fields: Any) -> bytes:
    return json.dumps({"note": "save.failed", "name": "a.pt", **fields}).encode() + b"\n"


def add(file: Path, data: bytes) -> None:
    with file.open("ab") as appended:
        appended.write(data)


def steps(notes: Notes) -> list[int | None]:
    """The steps of the failed saves that are told."""
    return [note.step for note in notes.take() if isinstance(note, SaveFailed)]


def test_what_the_library_notes_is_told(notes: Notes, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of note comes through as it was meant, with the incarnation whose it is."""
    monkeypatch.setenv("LASTGOOD_NOTES", str(file))
    monkeypatch.setenv("LASTGOOD_CHECKPOINT_DIR", str(file.parent))
    name = os.fsdecode(b"\xff\n.pt")
    with pytest.raises(OSError), writing.NotedSave(7, file.parent / name, False):
        raise OSError(28, "No space left")
    passed = {"name": name, "verdict": "corrupt", "reason": "x"}
    more = {"newest_step": 9, "chosen": "b.pt", "chosen_step": 8, "depth": 1, "rejected": [passed]}
    writing.note("fallback.chosen", file.parent, **more)
    writing.note_ending(file.parent, 65)

    assert [
        SaveFailed(3, 7, name, "No space left", 28, False),
        TrainerFellBack(3, 9, "b.pt", 8, 1, (PassedOver(name, "corrupt", "x"),)),
        EndingNoted(3, 65),
    ] == notes.take()
    assert [] == notes.take()


def test_only_what_is_new_is_told(notes: Notes, file: Path) -> None:
    """Lines are told once, in their order, when their end is there."""
    for number in range(3):
        add(file, line(step=number) + line(step=number + 10))
        assert [number, number + 10] == steps(notes)
    whole = line(step=5)
    add(file, whole[:9])
    assert [] == steps(notes)
    add(file, whole[9:] + whole[:5])
    assert [5] == steps(notes)
    assert [] == steps(notes)


def test_without_news_a_look_is_a_stat(notes: Notes, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are told often, notes hardly ever: a file that did not grow is not opened, half a line in it or not."""
    add(file, line(step=1) + b"half")
    assert [1] == steps(notes)
    monkeypatch.setattr(module, "regular", lambda path, flags: pytest.fail("it was opened"))

    assert [] == steps(notes)


def test_each_incarnation_begins_with_an_empty_file(notes: Notes, file: Path) -> None:
    """What an earlier trainer noted and nobody heard is not told as the next one's, and the file is there already."""
    add(file, line(step=1))
    notes.begin(4)
    assert (b"", []) == (file.read_bytes(), notes.take())
    add(file, line(step=2))

    assert [SaveFailed(4, 2, "a.pt", "", None, True)] == notes.take()


@pytest.mark.parametrize("place", ["folder", "fifo", "link to a device", "nowhere"])
def test_whatever_is_in_the_files_place_is_no_note_and_no_obstacle(notes: Notes, file: Path, place: str) -> None:
    """Neither a look nor the next beginning raises, waits or reads for ever; a file is heard again."""
    file.unlink()
    match place:
        case "folder":
            file.mkdir()
        case "fifo":
            os.mkfifo(file)
        case "link to a device":
            file.symlink_to("/dev/zero")
        case _:
            file.parent.rmdir()
    assert [] == notes.take()
    notes.begin(4)
    assert [] == notes.take()

    if place == "nowhere":
        file.parent.mkdir()
    elif place == "folder":
        file.rmdir()
    add(file, line(step=2))
    assert [2] == steps(notes)


@pytest.mark.parametrize("change", ["replaced", "removed", "truncated"])
def test_a_file_that_is_another_is_read_from_its_beginning(notes: Notes, file: Path, change: str) -> None:
    """Somebody who clears the supervisor's folder costs what was in it, and nothing after."""
    add(file, line(step=1) * 3)
    assert [1, 1, 1] == steps(notes)
    match change:
        case "replaced":
            other = file.with_name("other")
            other.write_bytes(line(step=2) * 9)
            other.rename(file)
        case "removed":
            file.unlink()
            assert [] == steps(notes)
            add(file, line(step=2) * 9)
        case _:
            os.truncate(file, 0)
            add(file, line(step=2))

    assert {2} == set(steps(notes))


def test_a_file_without_end_costs_a_bounded_look(notes: Notes, file: Path) -> None:
    """Of gigabytes only the end is read, and what comes after them is heard."""
    add(file, line(step=1))
    os.truncate(file, 1 << 40)
    add(file, b"\n" + line(step=2))
    assert [2] == steps(notes)
    add(file, b"x" * LOOK_BYTES_MAX + b"\n" + line(step=3))
    assert [3] == steps(notes)
    add(file, line(step=4) * 10_000)
    assert [4] * LOOK_NOTES_MAX == steps(notes)
    add(file, line(step=5))
    assert [5] == steps(notes)


def test_a_line_longer_than_any_note_is_passed_over(notes: Notes, file: Path) -> None:
    """A line that does not end is not read again and again, and hides nothing behind it."""
    for _ in range(5):
        add(file, b"x" * 20_000)
        assert [] == steps(notes)
    add(file, b"\n" + line(step=2))

    assert [2] == steps(notes)


GARBAGE = [
    b"", b"\0" * 100, b"{", b"[]", b"null", b"5", b'"save.failed"', b"{}", b'{"note": null}', b'{"note": ["save.failed"]}',
    b'{"note": "other", "name": "a"}', b"[" * 9000, b'{"a": ' * 2000, b"9" * 9000, b"\xff\xfe", b'{"note": "save.fai\xff"}',
]  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda data: ascii(data[:20]))
def test_garbage_hides_no_note(notes: Notes, file: Path, garbage: bytes) -> None:
    """What is no note counts for nothing, and the lines around it are told."""
    add(file, line(step=1) + garbage + b"\n" + line(step=2))

    assert [1, 2] == steps(notes)


ODD = [None, True, -1, 1.5, 1 << 60, 10**400, "7", [], {}, [[]], [None, {}, 5], "x" * 1500, float("nan")]


@pytest.mark.parametrize("value", ODD, ids=lambda value: ascii(value)[:20])
@pytest.mark.parametrize("kind", ["save.failed", "fallback.chosen"])
def test_fields_of_another_kind_are_not_believed(notes: Notes, file: Path, kind: str, value: Any) -> None:
    """Numbers are whole and in range, texts are texts and short, lists are short; else there is nothing in their place."""
    keys = ("step", "name", "reason", "errno", "newest_step", "chosen", "chosen_step", "depth", "rejected")
    add(file, json.dumps({"note": kind, **dict.fromkeys(keys, value)}).encode() + b"\n")
    [found] = notes.take()

    assert [] == [one for one in vars(found).values() if isinstance(one, str) and len(one) > 1000]
    assert [] == [one for one in vars(found).values() if isinstance(one, int) and not 0 <= one <= 1 << 53]


def test_only_a_status_that_a_trainer_can_end_with_is_believed(notes: Notes, file: Path) -> None:
    """From 1 to 255, a whole number; a note of any other says nothing of how the trainer ends."""
    for status in (*ODD, 0, 256, 65.0, "65", [65]):
        add(file, json.dumps({"note": "trainer.ending", "status": status}).encode() + b"\n")
    add(file, b'{"note": "trainer.ending"}\n')
    assert [] == notes.take()
    for status in (1, 65, 255):
        add(file, json.dumps({"note": "trainer.ending", "status": status}).encode() + b"\n")

    assert [EndingNoted(3, status) for status in (1, 65, 255)] == notes.take()


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(st.binary(max_size=40) | st.sampled_from([line(step=1), line(step=2), b"\n"]), max_size=12))
def test_any_pieces_in_any_looks_tell_each_whole_line_once(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    """However the writing is cut up by looks, each line of a note is told once, and no other."""
    file = tmp_path_factory.mktemp("notes") / "notes.jsonl"
    notes = Notes(str(file))
    notes.begin(1)
    told: list[int | None] = []
    for piece in [*pieces, b"\n"]:
        add(file, piece)
        told += steps(notes)
    wanted = {line(step=1).strip(): 1, line(step=2).strip(): 2}
    lines = [one.strip(b" \t\r") for one in file.read_bytes().split(b"\n")]  # JSON lets blanks be around a note

    assert [wanted[one] for one in lines if one in wanted] == told


def test_a_reader_that_cannot_make_the_file_lets_the_trainer_make_it(
    notes: Notes, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk at the start costs nothing but the room that was to be kept."""
    real: Callable[..., int] = os.open

    def full(path: Any, *more: Any, **named: Any) -> int:
        if path == str(file):
            raise OSError(28, "No space left on device")
        return real(path, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        notes.begin(4)
    assert [] == notes.take()
    add(file, line(step=2))

    assert [2] == steps(notes)

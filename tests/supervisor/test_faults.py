"""Announced faults: written down before they are done, found by the process they were aimed at, spoilt by nothing."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from supervisor.faults import Fault, aimed_at, announce
from supervisor.proc import Identity

TARGET = Identity(4711, 99)
FAULT = Fault("f1", "kill", 4711, 99, None, 1.5)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    (tmp_path / ".lastgood").mkdir()
    return str(tmp_path)


def journal(directory: str) -> Path:
    return Path(directory) / ".lastgood" / "faults.jsonl"


def id_of(fault: Fault | None) -> str | None:
    return None if fault is None else fault.id


def test_a_fault_is_found_by_its_target(directory: str) -> None:
    """What was announced against a process is known when it dies."""
    announce(directory, FAULT)

    assert FAULT == aimed_at(directory, TARGET)


def test_a_fault_is_one_line_of_json(directory: str) -> None:
    """A path that is no UTF-8, or holds a line end, is written as any reader of JSON lines takes it."""
    faults = [FAULT, replace(FAULT, id="f2", pid=None, start_ticks=None, path=os.fsdecode(b"a\n\xff.pt"))]
    for fault in faults:
        announce(directory, fault)

    lines = journal(directory).read_bytes().split(b"\n")
    assert [*map(asdict, faults)] == [json.loads(line) for line in lines[:-1]]
    assert b"" == lines[-1]


def test_the_last_fault_against_a_process_counts(directory: str) -> None:
    """Of several against one process the newest is what killed it; others in between do not matter."""
    for fault in (FAULT, replace(FAULT, id="f2"), replace(FAULT, id="f3", pid=1), replace(FAULT, id="f4", pid=None)):
        announce(directory, fault)

    assert "f2" == id_of(aimed_at(directory, TARGET))


@pytest.mark.parametrize("other", [Identity(4711, 100), Identity(4712, 99)])
def test_another_process_is_not_meant(directory: str, other: Identity) -> None:
    """A pid that was reused, or another process, did not die of this fault."""
    announce(directory, FAULT)

    assert None is aimed_at(directory, other)


def test_a_fault_on_storage_kills_nobody(directory: str) -> None:
    """A fault aimed at a file is not put down as a process's death."""
    announce(directory, replace(FAULT, pid=None, start_ticks=None, path="ckpt_1.pt"))

    assert None is aimed_at(directory, TARGET)


def test_without_a_campaign_there_are_no_faults(tmp_path: Path) -> None:
    """No file, no folder, or something else in its place: a death is not chaos."""
    assert None is aimed_at(str(tmp_path), TARGET)
    (tmp_path / ".lastgood").mkdir()
    journal(str(tmp_path)).mkdir()
    assert None is aimed_at(str(tmp_path), TARGET)


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"null", b"5", b"{}", b'{"id": "f9"}', b"\xff\xfe", b"[" * 100_000, b"9" * 5000,
     json.dumps({**asdict(FAULT), "more": 1}).encode()],
    ids=lambda line: ascii(line[:20]),
)  # fmt: skip
def test_a_line_that_cannot_be_read_counts_for_nothing(directory: str, line: bytes) -> None:
    """Damage hides neither the faults before it nor those after it."""
    announce(directory, FAULT)
    with journal(directory).open("ab") as file:
        file.write(line + b"\n")
    announce(directory, replace(FAULT, id="f2", pid=4712))

    assert FAULT == aimed_at(directory, TARGET)
    assert "f2" == id_of(aimed_at(directory, Identity(4712, 99)))


def test_a_line_cut_short_does_not_swallow_the_next(directory: str) -> None:
    """An injector that was killed while announcing spoils its own line only."""
    announce(directory, FAULT)
    with journal(directory).open("ab") as file:
        file.write(b'{"id": "f2", "ki')
    announce(directory, replace(FAULT, id="f3", pid=4712))

    assert "f3" == id_of(aimed_at(directory, Identity(4712, 99)))


def test_a_fault_that_cannot_be_announced_raises(directory: str) -> None:
    """On a full disk, or without the folder, it must not be done."""
    journal(directory).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        announce(directory, FAULT)
    with pytest.raises(FileNotFoundError):
        announce(f"{directory}/nowhere", FAULT)


def test_half_an_announcement_is_none(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes a part of the line refuses the fault, and keeps the lines before."""
    announce(directory, FAULT)
    before = journal(directory).read_bytes()
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:10]))
        with pytest.raises(OSError, match="No space left on device"):
            announce(directory, replace(FAULT, id="f2"))

    assert before == journal(directory).read_bytes()

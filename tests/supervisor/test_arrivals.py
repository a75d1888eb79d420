"""Saves under way are seen by their partials, told when they begin and end, and two who write the same are told once."""

import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor import arrivals
from supervisor.arrivals import Arrivals, Saves
from supervisor.core.events import SavingChanged
from supervisor.leftovers import writers, written


@pytest.fixture
def other() -> Iterator[int]:
    """The pid of another process that lives."""
    process = subprocess.Popen(["sleep", "300"])
    yield process.pid
    process.kill()
    process.wait()


def partial(folder: Path, name: str, pid: int, number: int = 0) -> Path:
    path = folder / f".{name}.partial-{pid}-{number:08x}"
    path.touch()
    return path


class Told:
    """A watch over a folder, and what it told."""

    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.events: list[SavingChanged] = []
        self.records: list[tuple[str, dict[str, Any]]] = []
        self.saves = Saves(
            str(folder),
            self.events.append,
            lambda event, fields: self.records.append((event, fields)),
            lambda: self.now,
        )


def test_the_living_writers_of_a_folder_are_found_by_their_partials(tmp_path: Path, other: int) -> None:
    """Those of data and of its seal count as one; the dead, this process, and whatever else lies there do not."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    partial(tmp_path, "a.pt", other)
    partial(tmp_path, "a.pt.sha256", other)
    partial(tmp_path, "b.pt", dead.pid)
    partial(tmp_path, "c.pt", os.getpid())
    (tmp_path / "d.pt").touch()

    assert {"a.pt": frozenset({other})} == writers(written(str(tmp_path)))


def test_a_save_is_told_when_it_begins_and_when_it_is_over(tmp_path: Path, other: int) -> None:
    """Once each, however often one looks, for each incarnation anew."""
    told, path = Told(tmp_path), partial(tmp_path, "a.pt", other)
    for _ in range(2):
        written = told.saves.are_written(1)
        told.saves.tell(1, written)
    path.unlink()
    for _ in range(2):
        told.saves.tell(1, told.saves.are_written(1))
    told.saves.tell(1, True)
    told.saves.tell(2, False)
    told.saves.tell(2, True)

    assert [(1, True), (1, False), (1, True), (2, True)] == [(one.incarnation, one.saving) for one in told.events]


def test_of_a_large_directory_only_those_partials_are_looked_at_that_something_happened_to(
    tmp_path: Path, other: int
) -> None:
    """Those of the last whole look are remembered until they are gone; what nobody noticed is seen by the next one."""
    told, known = Told(tmp_path), partial(tmp_path, "a.pt", other)
    assert told.saves.are_written(1)
    known.unlink()
    unnoticed = partial(tmp_path, "b.pt", other)
    assert not told.saves.are_written(1, whole=False)

    told.saves.notice(f".c.pt.partial-{other}-00000000")  # gone already
    assert not told.saves.are_written(1, whole=False)
    noticed = partial(tmp_path, "c.pt", other)
    told.saves.notice(noticed.name)
    assert told.saves.are_written(1, whole=False)
    noticed.unlink()
    assert not told.saves.are_written(1, whole=False)
    assert told.saves.are_written(1)
    assert told.saves.are_written(1, whole=False)
    unnoticed.unlink()
    assert not told.saves.are_written(1, whole=False)


def test_of_more_partials_than_are_remembered_the_directory_tells(tmp_path: Path, other: int) -> None:
    """As after a time in which nobody looked."""
    told = Told(tmp_path)
    partial(tmp_path, "a.pt", other)
    for number in range(arrivals.NOTICED_MAX + 1):
        told.saves.notice(f".gone_{number}.pt.partial-{other}-00000000")

    assert told.saves.are_written(1, whole=False)


def test_two_who_write_the_same_are_told_once(tmp_path: Path, other: int) -> None:
    """One record for a set of processes, however often it is seen; ranks that write files of their own are no rivals."""
    told, second = Told(tmp_path), os.getppid()
    partial(tmp_path, "rank0.pt", other)
    partial(tmp_path, "rank1.pt", second)
    told.saves.are_written(1)
    assert [] == told.records

    partial(tmp_path, "a.pt", other)
    partial(tmp_path, "a.pt", second)
    partial(tmp_path, "b.pt", other, 1)
    partial(tmp_path, "b.pt", second, 1)
    told.saves.are_written(1)
    told.saves.are_written(2)

    assert 1 == len(told.records)
    event, fields = told.records[0]
    assert ("snapshot.two_writers", sorted([other, second])) == (event, fields["pids"])


def test_two_who_write_one_file_in_place_are_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked for while a file has not settled, and seldom where that takes long, since all of /proc is read for it."""
    told, searched = Told(tmp_path), []
    holders, took = frozenset({11}), 0.0
    (tmp_path / "ckpt.pt").touch()
    (tmp_path / "folder").mkdir()

    def search(paths: Iterable[str]) -> dict[str, frozenset[int]]:
        searched.append(told.now)
        told.now += took
        return dict.fromkeys(paths, holders)

    monkeypatch.setattr(arrivals, "writers_in_place", search)
    told.saves.in_place([])
    told.saves.in_place(["folder", "gone.pt"])
    for told.now in (100.0, 100.5, 101.0):
        told.saves.in_place(["ckpt.pt"])
    assert ([100.0, 101.0], []) == (searched, told.records)

    holders, took = frozenset({11, 7}), 0.5
    for told.now in (102.0, 103.6, 152.0, 152.6):
        told.saves.in_place(["ckpt.pt"])
    assert [102.0, 152.6] == searched[2:]
    assert [("snapshot.two_writers", {"name": "ckpt.pt", "pids": [7, 11]})] == told.records


def test_an_arrival_is_told_once_until_it_was_judged() -> None:
    """What a name holds after its verdict is another arrival, and so is a name that was gone."""
    told: list[tuple[str, int | None]] = []
    arrivals = Arrivals()
    arrivals.tell = lambda name, step: told.append((name, step))
    for _ in range(2):
        arrivals.seen("a.pt", 1)
    arrivals.judged("a.pt")
    arrivals.seen("a.pt", 1)
    arrivals.keep(set())
    arrivals.seen("a.pt", None)

    assert [("a.pt", 1), ("a.pt", 1), ("a.pt", None)] == told

"""What stands in the way of a start, and what is said of too little room while a trainer runs."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lastgood.verdict import Kind, Verdict
from supervisor.adapters import places, space
from supervisor.adapters.verifier import Verifier
from supervisor.core import events as e
from supervisor.directory_side import DirectorySide
from supervisor.hindrances import Hindrances
from supervisor.hints import Depth
from supervisor.mailbox import Mailbox
from supervisor.records import CATALOGUE
from supervisor.settings import Settings
from tests.bench import until
from tests.conftest import MakeSnapshot

BUSY = e.Hindrance(e.Obstacle.GPU_BUSY, {})
LOST = e.Hindrance(e.Obstacle.GPU_LOST, {})


class Disk:
    """Stands for statvfs."""

    def __init__(self) -> None:
        self.free: tuple[int, int | None] = (10**12, None)

    def room(self, path: str) -> tuple[int, int | None]:
        return self.free


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A disk whose free room the test says."""
    made = Disk()
    monkeypatch.setattr(space, "room", made.room)
    return made


def settings(folder: Path) -> Settings:
    return Settings.model_validate(
        {
            "trainer": {"command": ["true"], "resume": "env", "env": {"CUDA_VISIBLE_DEVICES": ""}},
            "checkpoints": {"dir": str(folder), "pattern": "step_{step}.pt", "settle_seconds": 0.0},
        }
    )


def fact(name: str, size: int, kind: Kind = Kind.HEALTHY) -> e.RungFact:
    return e.RungFact(name, 5, 5, Verdict(kind, None, "", size))


def test_room_is_needed_for_one_more_snapshot_as_large_as_the_chosen(tmp_path: Path, disk: Disk) -> None:
    """Not for a torn one above it; before anything is known, a small reserve is enough."""
    found = Hindrances(settings(tmp_path), str(tmp_path))
    disk.free = (space.RESERVE_BYTES, None)
    assert found.low_disk() is None
    found.sized([fact("torn", 10, Kind.TRUNCATED), fact("step_5.pt", 100_000_000)])
    low = found.low_disk()
    assert low is not None
    expected = {
        "free_bytes": space.RESERVE_BYTES,
        "needed_bytes": 105_000_000 + space.RESERVE_BYTES,
        "free_inodes": None,
        "needed_inodes": 1 + space.RESERVE_INODES,
        "path": str(tmp_path),
    }
    assert (e.Obstacle.DISK, expected) == (low.obstacle, low.fields)
    assert set(CATALOGUE["disk.low"].fields) == set(expected)
    found.sized([fact("torn", 10, Kind.TRUNCATED)])
    assert low == found.low_disk()


def test_storage_that_does_not_answer_is_no_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it can be read is another question."""

    def refuse(path: str) -> tuple[int, int | None]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(space, "room", refuse)
    assert Hindrances(settings(tmp_path), str(tmp_path)).find() is None


def test_a_lost_gpu_comes_before_the_disk_and_a_busy_one_after_it(tmp_path: Path, disk: Disk) -> None:
    """A lost one may have ended the trainer; of a full disk a trainer may have died, of a busy GPU not yet."""
    found = Hindrances(settings(tmp_path), str(tmp_path))
    looks: list[e.Hindrance | None] = []
    found._gpus.look = lambda: looks[-1]
    told = []
    for free, look in ((0, LOST), (0, BUSY), (10**12, BUSY), (10**12, None)):
        disk.free = (free, None)
        looks.append(look)
        one = found.find()
        told.append(None if one is None else str(one.obstacle))
    assert ["gpu.lost", "disk.low", "gpu.busy", None] == told


class Room:
    """A directory with a supervisor's side of it, without a loop."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.told: list[e.Event] = []
        self.mailbox = Mailbox()
        verifier = Verifier(str(directory), r"step_(\d+)\.pt", 0.0, {})
        self.side = DirectorySide(
            settings(directory), str(directory), verifier, self.mailbox, self.told.append, self._say
        )

    def _say(self, event: str, fields: dict[str, Any]) -> None:
        assert CATALOGUE[event].fields.keys() == fields.keys(), event
        self.said.append((event, fields))

    def look(self, count: int = 3) -> list[str]:
        """What is said of room at the next looks, while a trainer lives."""
        self.said.clear()
        for _ in range(count):
            self.side._hints.look_at = 0.0
            self.side._hints.deepen(Depth.ALL)  # whether or not the hint has come
            self.side.look_when_due(1)
            until(lambda: not self._is_looking())
        return [event for event, _ in self.said if event != "snapshot.appeared"]

    def _is_looking(self) -> bool:
        self.mailbox.run_all(lambda: True)
        return self.side._looking

    def close(self) -> None:
        self.side.close()
        self.mailbox.close()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    """A checkpoint directory that is looked at."""
    made = Room(tmp_path)
    yield made
    made.close()


def arrive(room: Room, make_zip: MakeSnapshot, step: int) -> None:
    path = make_zip(f"step_{step}.pt", step)
    os.utime(path, (time.time() - 100, time.time() - 100))


def test_too_little_room_is_said_once_when_a_snapshot_arrives(room: Room, disk: Disk, make_zip: MakeSnapshot) -> None:
    """At the look after it, when retention has had its turn; again only after there was room; never without an arrival."""
    arrive(room, make_zip, 1)
    assert [] == room.look()
    disk.free = (5000, None)
    assert [] == room.look()
    arrive(room, make_zip, 2)
    assert [] == room.look(1)
    assert ["disk.low"] == room.look()
    arrive(room, make_zip, 3)
    assert [] == room.look()
    disk.free = (10**12, None)
    arrive(room, make_zip, 4)
    assert [] == room.look()
    disk.free = (5000, None)
    arrive(room, make_zip, 5)
    assert ["disk.low"] == room.look()


def test_quarantine_makes_room_for_the_next_save(
    room: Room, make_zip: MakeSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If that is enough nothing is low, and a trainer's save does not fail for what was set aside."""
    torn = make_zip("step_9.pt", 9)
    os.truncate(torn, 6000)
    aside = Path(places.set_aside(str(room.directory), torn.name, {"name": torn.name, "reason": "truncated: x"}))
    monkeypatch.setattr(space, "room", lambda path: (5000 if aside.exists() else 10**12, None))
    arrive(room, make_zip, 1)
    assert ["quarantine.trimmed"] == room.look()
    assert {"name": "step_9.pt", "path": str(aside.parent), "bytes": 6000} == room.said[-1][1]


def test_a_look_before_a_start_tells_what_is_in_its_way(room: Room, disk: Disk, make_zip: MakeSnapshot) -> None:
    """With the ladder; and quarantine gives up for the next look, not for this one, which is evidence of how things were."""
    make_zip("step_1.pt")
    torn = make_zip("step_9.pt", 9)
    os.truncate(torn, 6000)
    places.set_aside(str(room.directory), torn.name, {"name": torn.name, "reason": "truncated: x"})
    disk.free = (5000, None)
    room.side.judge_ladder()
    until(lambda: room.told)
    (told,) = room.told
    assert isinstance(told, e.LadderJudged)
    assert told.hindrance is not None
    assert e.Obstacle.DISK is told.hindrance.obstacle
    until(lambda: not room.mailbox.run_all(lambda: True) and room.said)
    assert "quarantine.trimmed" in [event for event, _ in room.said]


def test_a_directory_that_is_away_has_nothing_in_its_way(room: Room, disk: Disk) -> None:
    """It is waited for as itself."""
    disk.free = (0, None)
    shutil.rmtree(room.directory)
    room.directory.write_bytes(b"")
    room.side.judge_ladder()
    until(lambda: room.told)
    assert isinstance(room.told[0], e.LadderUnreadable)

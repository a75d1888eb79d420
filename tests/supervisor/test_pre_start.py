"""What runs before a start: the trainer follows when it ended well, and is not started otherwise."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters import statefile
from supervisor.core import events as e
from supervisor.mailbox import Mailbox
from supervisor.settings import Settings
from supervisor.trainer_side import TrainerSide
from tests.bench import until

Room = tuple[TrainerSide, list[e.Event]]


@pytest.fixture
def make_side(tmp_path: Path) -> Iterator[Callable[..., Room]]:
    """Makes a trainer's side whose pre_start is a shell script, and the list of what it tells."""
    made: list[TrainerSide] = []

    def make(script: str, **stall: Any) -> Room:
        tree = {
            "trainer": {"command": ["sleep", "300"], "resume": "never", "pre_start": ["sh", "-c", script]},
            "checkpoints": {"dir": str(tmp_path)},
            "stall": stall,
        }
        told: list[e.Event] = []
        statefile.prepare(str(tmp_path))
        side = TrainerSide(
            Settings.model_validate(tree), str(tmp_path), "id", Mailbox(), told.append, lambda event, fields: None
        )
        made.append(side)
        return side, told

    yield make
    for side in made:
        side.close()


def next_event(side: TrainerSide, told: list[e.Event]) -> e.Event:
    """What is told next, the side being asked as the loop asks it."""

    def ask() -> bool:
        side.collect_exit()
        return bool(told)

    until(ask)
    return told.pop(0)


def test_the_trainer_follows_what_ended_well(make_side: Callable[..., Room]) -> None:
    """Only then is there a trainer; steps that came before it are nobody's."""
    side, told = make_side("echo step 5: loss 1; sleep 0.2")
    side.spawn(1, None)
    assert (True, []) == (side.lives, told)
    spawned = next_event(side, told)

    assert isinstance(spawned, e.TrainerSpawned)
    assert (1, side.leader and side.leader.pid, []) == (spawned.incarnation, spawned.pid, told)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo no; exit 3", "trainer.pre_start ended with code 3"),
        ("kill -9 $$", "trainer.pre_start ended with signal 9"),
    ],
)
def test_no_trainer_follows_what_failed(make_side: Callable[..., Room], script: str, reason: str) -> None:
    """It is told as a start that failed, with its last lines."""
    side, told = make_side(script)
    side.spawn(1, None)
    lines = ("no",) if "echo" in script else ()

    assert e.SpawnFailed(1, reason, lines) == next_event(side, told)
    assert not side.lives


def test_what_takes_too_long_is_a_start_that_failed(make_side: Callable[..., Room]) -> None:
    """It wants to be asked when its time is up, and is given up then; a sweep follows."""
    side, told = make_side("sleep 300", startup_seconds=0.2)
    assert float("inf") == side.due
    side.spawn(1, None)
    assert float("inf") > side.due

    assert e.SpawnFailed(1, "trainer.pre_start did not end within 0 s", ()) == next_event(side, told)
    assert float("inf") == side.due
    side.sweep_tree(1)
    assert e.TreeSwept(1) == next_event(side, told)


def test_no_trainer_follows_once_a_stop_was_asked_for(make_side: Callable[..., Room]) -> None:
    """Also when what runs before it ends well of the request."""
    side, told = make_side("trap 'exit 0' TERM; echo; while true; do sleep 0.05; done")
    side.spawn(1, None)
    until(lambda: (Path(side.settings.checkpoints.dir) / ".lastgood" / "trainer.log").exists())
    side.ask_to_stop()

    assert isinstance(next_event(side, told), e.SpawnFailed)


def test_no_trainer_follows_once_the_tree_was_to_be_killed(make_side: Callable[..., Room]) -> None:
    """Also when what runs before it had just ended well: the kill comes too late for it, and not for the trainer."""
    side, told = make_side("true")
    side.spawn(1, None)
    until(lambda: side._child is not None and side._child.poll_exit())
    side.kill_tree()

    assert isinstance(next_event(side, told), e.SpawnFailed)
    assert not side.lives

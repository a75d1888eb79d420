"""When the next trainer is started in advance, and when one that waits is taken."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor import standing_by
from supervisor.settings import Settings
from supervisor.standing_by import (
    ENOUGH_BYTES,
    LOOK_SECONDS,
    RETRY_SECONDS_MAX,
    RETRY_SECONDS_MIN,
    SHORT_BYTES,
    StandingBy,
    is_wanted,
)

ARGV = ["python", "-u", "train.py", "--a"]
ENV = {"HOME": "/h", "LASTGOOD_INCARNATION": "2"}


class Waiting:
    """A process that waits, as far as anybody asks it."""

    def __init__(self, world: SimpleNamespace, interpreter: tuple[str, ...], words: list[str]) -> None:
        if world.refused:
            raise OSError(12, "no memory")
        self.world, self.interpreter, self.words = world, interpreter, words
        self.alive, self.ready, self.told, self.killed, self.closed = True, True, None, False, False
        self.pid, self.memory_bytes = 4000 + len(world.made), 300
        world.made.append(self)

    def is_alive(self) -> bool:
        return self.alive

    def is_ready(self) -> bool:
        return self.ready and self.alive

    def become(self, argv: list[str], words: list[str], *, env: dict[str, str], cwd: str, group: str | None) -> object:
        if not self.alive:
            raise BrokenPipeError(32, "broken pipe")
        self.told = (argv, words, env, cwd, group)
        return self

    def last_words(self) -> str:
        return "ImportError: no libcudart"

    def kill(self) -> None:
        self.killed = True
        self.alive = self.alive and self.world.held

    def close(self, seconds: float = 0.0) -> None:
        self.closed = True


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock, how much memory the machine and the control group have, and every process that was started."""
    made = SimpleNamespace(now=100.0, machine=8 << 30, group=None, refused=False, held=False, made=[])
    monkeypatch.setattr(standing_by, "time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(standing_by.cgroup, "memory_left", lambda: made.group)
    memory = SimpleNamespace(virtual_memory=lambda: SimpleNamespace(available=made.machine))
    monkeypatch.setitem(sys.modules, "psutil", memory)
    monkeypatch.setattr(standing_by, "Standby", lambda spawn, interpreter, words: Waiting(made, interpreter, words))
    return made


def looked(
    by: StandingBy, world: SimpleNamespace, after: float = LOOK_SECONDS, argv: list[str] = ARGV, start: bool = True
) -> list[Any]:
    """All that were ever started, once it was looked after that time."""
    world.now += after
    by.look(lambda: (argv, ENV), "/w", start)
    return list(world.made)


def test_one_is_started_and_becomes_the_command(world: SimpleNamespace) -> None:
    """With the same flags; it is sent what has changed, and then there is none until it is looked again."""
    by = StandingBy()
    assert ((), None) == (by.pids, by.told())
    [one] = looked(by, world)
    assert [one] == looked(by, world)
    assert (("python", "-u"), ["train.py", "--a"]) == (one.interpreter, one.words)
    assert ((4000,), {"pid": 4000, "ready": True, "memory_bytes": 300}) == (by.pids, by.told())
    anew = [*ARGV, "--from=x"]
    assert one is by.take(anew, {**ENV, "LASTGOOD_INCARNATION": "3"}, "/w", "/group")

    assert (
        anew,
        ["train.py", "--a", "--from=x"],
        {"HOME": "/h", "LASTGOOD_INCARNATION": "3"},
        "/w",
        "/group",
    ) == one.told
    assert ((), None, False) == (by.pids, by.take(anew, ENV, "/w", None), one.killed)
    assert 2 == len(looked(by, world))


@pytest.mark.parametrize(
    ("argv", "env", "cwd"),
    [
        (["python", "train.py"], ENV, "/w"),
        (["python3", "-u", "train.py"], ENV, "/w"),
        (["python", "-u", "other.py"], ENV, "/w"),
        (["python", "-u", "-m", "train"], ENV, "/w"),
        (["sh", "-c", "python train.py"], ENV, "/w"),
        (ARGV, {**ENV, "OMP_NUM_THREADS": "4"}, "/w"),
        (ARGV, {"LASTGOOD_INCARNATION": "2"}, "/w"),
        (ARGV, ENV, "/elsewhere"),
    ],
)
def test_one_of_another_kind_is_ended(world: SimpleNamespace, argv: list[str], env: dict[str, str], cwd: str) -> None:
    """Settings were changed: what was imported with other flags, variables or in another folder is not what would be."""
    by = StandingBy()
    [one] = looked(by, world)

    assert (None, True, ()) == (by.take(argv, env, cwd, None), one.closed, by.pids)


@pytest.mark.parametrize("state", ["ready", "alive"])
def test_one_that_is_not_ready_is_not_waited_for(world: SimpleNamespace, state: str) -> None:
    """Nor is one that has just died."""
    by = StandingBy()
    [one] = looked(by, world)
    setattr(one, state, False)

    assert (None, True) == (by.take(ARGV, ENV, "/w", None), one.closed)


def test_one_that_dies_as_it_is_told_is_no_trainer(world: SimpleNamespace) -> None:
    """The trainer is started as ever."""
    by = StandingBy()
    [one] = looked(by, world)
    one.is_ready = lambda: True
    one.alive = False

    assert (None, True) == (by.take(ARGV, ENV, "/w", None), one.closed)


def test_one_that_dies_is_replaced_ever_more_slowly(world: SimpleNamespace) -> None:
    """An import that crashes does not take a core for good; one that was taken has shown that they go well."""
    by = StandingBy()
    delays = []
    for count in range(1, 9):
        made = looked(by, world)
        assert count == len(made)
        made[-1].alive = False
        looked(by, world)
        delays.append(0.0)
        while len(world.made) == count:
            looked(by, world, RETRY_SECONDS_MIN / 2)
            delays[-1] += RETRY_SECONDS_MIN / 2

    assert [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, RETRY_SECONDS_MAX, RETRY_SECONDS_MAX] == delays
    by.take(ARGV, ENV, "/w", None)
    made = looked(by, world)
    made[-1].alive = False
    looked(by, world)
    assert len(made) + 1 == len(looked(by, world, RETRY_SECONDS_MIN))


@pytest.mark.parametrize("where", ["machine", "group"])
def test_memory_that_is_short_is_not_taken(world: SimpleNamespace, where: str) -> None:
    """Of the machine or of the control group: none is started, and one that waits is given up until there is enough again."""
    by = StandingBy()
    setattr(world, where, ENOUGH_BYTES - 1)
    assert [] == looked(by, world)
    setattr(world, where, ENOUGH_BYTES)
    [one] = looked(by, world)
    setattr(world, where, SHORT_BYTES)
    assert ([one], False) == (looked(by, world), one.closed)
    setattr(world, where, SHORT_BYTES - 1)
    assert ([one], True, ()) == (looked(by, world), one.closed, by.pids)
    assert [one] == looked(by, world)
    setattr(world, where, ENOUGH_BYTES)

    assert 2 == len(looked(by, world))


def test_what_cannot_be_started_is_tried_again(world: SimpleNamespace) -> None:
    """A machine without room for a process now may have it later; a command that is none of Python never has one."""
    by = StandingBy()
    world.refused = True
    assert [] == looked(by, world)
    world.refused = False
    assert 1 == len(looked(by, world))

    assert 1 == len(looked(StandingBy(), world, argv=["sh", "-c", "python x.py"]))


def test_why_there_is_none_is_told(world: SimpleNamespace) -> None:
    """Too little memory, an import that fails, a command that is none of Python's; nothing where one waits or none is wanted."""
    by = StandingBy()
    assert (None, []) == (by.missing, looked(by, world, start=False))
    world.machine = ENOUGH_BYTES - 1
    looked(by, world)
    assert "less than 2,048 MiB of memory is left" == by.missing
    world.machine, world.refused = ENOUGH_BYTES, True
    looked(by, world)
    assert "it cannot be started: no memory" == by.missing
    world.refused = False
    [one] = looked(by, world)
    assert None is by.missing
    one.alive = False
    looked(by, world)
    assert "the last one ended: ImportError: no libcudart; another is started 10 s later" == by.missing
    looked(by, world, RETRY_SECONDS_MIN)
    world.machine = SHORT_BYTES - 1
    looked(by, world)
    assert "less than 512 MiB of memory is left" == by.missing
    by.end()
    assert None is by.missing
    world.machine = ENOUGH_BYTES
    looked(by, world, argv=["sh", "-c", "python x.py"])
    assert "'sh', with these flags, is no Python command that can be started in advance" == by.missing


def test_what_waits_is_kept_without_a_trainer_and_not_begun(world: SimpleNamespace) -> None:
    """Between two trainers there is none to be started; one that waits is looked after all the same, and says when."""
    by = StandingBy()
    assert ([], float("inf")) == (looked(by, world, start=False), by.due)
    [one] = looked(by, world)
    assert world.now + LOOK_SECONDS == by.due
    assert ([one], False) == (looked(by, world, start=False), one.killed)
    world.machine = 0

    assert ([one], True) == (looked(by, world, start=False), one.closed)


def test_one_of_another_kind_does_not_wait_for_the_next_death(world: SimpleNamespace) -> None:
    """Its memory is of no use any more, and the right one takes its place."""
    by = StandingBy()
    [one] = looked(by, world)
    assert ([one], True) == (looked(by, world, argv=["python", "other.py"]), one.closed)

    assert "other.py" == looked(by, world, argv=["python", "other.py"])[1].words[0]


def test_one_that_storage_holds_is_nobodys_leftover(world: SimpleNamespace) -> None:
    """It is told to end, and not waited for; until it has it is no process of the run's."""
    by = StandingBy()
    world.held = True
    [one] = looked(by, world)
    by.end()
    assert (True, False, (one.pid,), None) == (one.killed, one.closed, by.pids, by.told())
    two = looked(by, world)[1]
    assert (two.pid, one.pid) == by.pids
    one.alive = False
    looked(by, world)

    assert (True, (two.pid,)) == (one.closed, by.pids)
    by.close()
    assert (True, True) == (two.killed, two.closed)


def test_it_is_told_when_one_was_killed_by_others(world: SimpleNamespace) -> None:
    """The kernel's OOM killer takes it first, and that is no evidence against the trainer; what is ended here is not told."""
    by = StandingBy()
    told: list[str] = []
    by.lost = lambda: told.append("lost")
    looked(by, world)
    by.end()
    assert [] == told
    looked(by, world)[1].alive = False
    looked(by, world)

    assert ["lost"] == told


def test_it_is_not_looked_more_often_than_once_a_second(world: SimpleNamespace) -> None:
    """The loop comes round with every line that the trainer prints."""
    by = StandingBy()
    asked: list[int] = []

    def command() -> tuple[list[str], dict[str, str]]:
        asked.append(1)
        return ["sh"], ENV

    for _ in range(100):
        world.now += LOOK_SECONDS / 10
        by.look(command, "/w", True)

    assert 10 == len(asked)


@pytest.mark.parametrize(
    ("command", "switch", "wanted"),
    [
        (["python", "-m", "trainer", "x.yaml"], "auto", True),
        (["python", "-m", "trainer", "x.yaml"], "off", False),
        (["python", "train.py"], "auto", False),
        (["python", "train.py"], "on", True),
    ],
)
def test_only_the_bundled_trainer_has_one_unasked(command: list[str], switch: str, wanted: bool) -> None:
    """Others might notice."""
    tree: dict[str, Any] = {"run": {"name": "x"}, "checkpoints": {"dir": "/x"}}
    tree["trainer"] = {"command": command, "standby": switch, "resume": "env"}

    assert wanted == is_wanted(Settings.model_validate(tree))

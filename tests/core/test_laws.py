"""Laws of the machine under random histories of a world that keeps its side of the contract."""

import random
from dataclasses import replace

import pytest

from lastgood.choose import newest_first
from lastgood.keep import Keep
from lastgood.verdict import BAD, Kind, Verdict
from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.core.machine import begin, step
from supervisor.core.state import ENDS, Phase, Policy, Resume, State

UNPRUNED_MAX = 1
"""Besides those that retention keeps: the one in use."""


class World:
    """A trainer, a directory and a clock that obey the core's commands and break at random. One seed, one history."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.policy = Policy(
            final_step=self.random.choice([None, 60]),
            resume=self.random.choice([Resume.TOLD, Resume.SELF]),
            keep=self.random.choice([None, Keep(2), Keep(3, 10)]),
        )
        self.state = State()
        self.now = 0.0
        self.files: dict[str, e.RungFact] = {}
        self.told: set[str] = set()
        self.trainer: int | None = None
        self.at = 0
        self.pending: list[e.Event] = []
        self.deadlines: dict[e.Deadline, float] = {}
        self.held = False
        self.exit: int | None = None
        self.spawned = 0

    def act(self, outcome: tuple[State, tuple[c.Command, ...]]) -> None:
        self.state, commands = outcome
        for command in commands:
            self.obey(command)

    def obey(self, command: c.Command) -> None:  # noqa: C901 - one flat dispatch
        match command:
            case c.JudgeLadder():
                self.pending.append(self.look())
            case c.SpawnTrainer(incarnation, snapshot):
                assert self.trainer is None, "two trainers at once"
                self.check_choice(snapshot)
                self.spawned += 1
                self.trainer, self.at = incarnation, 0 if snapshot is None else snapshot.step or 0
                self.pending.append(e.TrainerSpawned(incarnation, 1))
            case c.AskToStop() | c.KillTree():
                if self.trainer is not None:
                    self.die(None, 9)
            case c.SweepTree(incarnation):
                self.pending.append(e.TreeSwept(incarnation))
            case c.Arm(deadline, at):
                self.deadlines[deadline] = at
            case c.Disarm(deadlines):
                for one in deadlines:
                    self.deadlines.pop(one, None)
            case c.SetAside(rung, _):
                assert rung.verdict is not None
                assert not rung.verdict.proven, "a proven snapshot was set aside"
                if self.random.random() < 0.8:  # else it could not be moved, and is still there
                    self.files.pop(rung.name, None)
            case c.PruneSnapshot(rung):
                proven = newest_first([r for r in self.files.values() if r.verdict and r.verdict.proven])
                assert rung.name not in {r.name for r in proven[:2]}, "one of the two newest proven was pruned"
                self.files.pop(rung.name, None)
            case c.Exit(status):
                self.exit = status

    def check_choice(self, snapshot: e.RungFact | None) -> None:
        proven = newest_first([r for r in self.files.values() if r.verdict and r.verdict.proven])
        if snapshot is None:
            assert not proven, "a fresh start although a proven snapshot was there"
            return
        if self.policy.resume is Resume.SELF:
            newest = newest_first(self.files.values())[0]
            assert newest.name == snapshot.name, "it would find another one itself"
        assert snapshot.verdict is not None
        assert snapshot.verdict.usable
        assert not proven or proven[0].name == snapshot.name, "not the newest proven one"

    def look(self) -> e.LadderJudged:
        rungs = tuple(newest_first(self.files.values()))
        arrived = frozenset(r.name for r in rungs if r.name not in self.told)
        self.told |= arrived
        return e.LadderJudged(rungs, self.held, arrived)

    def die(self, code: int | None, signal: int | None) -> None:
        assert self.trainer is not None
        self.pending.append(e.TrainerExited(self.trainer, code, signal))
        self.trainer = None

    def save(self) -> None:
        rung = e.RungFact(
            f"ckpt_{self.at}.pt",
            self.at,
            int(self.now),
            Verdict(self.random.choice([Kind.HEALTHY, Kind.INTACT]), None, ""),
        )
        self.files[rung.name] = rung
        self.told.discard(rung.name)
        self.held = True
        if self.random.random() < 0.7:
            self.told.add(rung.name)
            self.pending.append(e.SnapshotJudged(rung))

    def one_more_save(self) -> bool:
        """Let a living trainer save once more, and everything that is on its way arrive; False without one."""
        if self.trainer is None:
            return False
        self.at += 1
        rung = e.RungFact(f"ckpt_{self.at}.pt", self.at, int(self.now) + 1, Verdict(Kind.HEALTHY, None, ""))
        self.files[rung.name] = rung
        self.told.add(rung.name)
        self.pending.append(e.SnapshotJudged(rung))
        while self.pending and self.trainer is not None:
            self.act(step(self.state, self.pending.pop(0), self.now, self.policy))
        return self.trainer is not None

    def damage(self) -> None:
        """Damage is found when the directory is next read by a verdict; only while no trainer was just promised a file."""
        if self.files and self.trainer is None and not self.pending:
            name = self.random.choice(sorted(self.files))
            kind = self.random.choice([Kind.CORRUPT, Kind.TRUNCATED])
            self.files[name] = replace(self.files[name], verdict=Verdict(kind, None, ""))

    def happen(self) -> None:
        """One random thing, or the next pending event."""
        self.now += self.random.choice([0.01, 1.0, 30.0])
        if self.pending and self.random.random() < 0.8:
            self.act(step(self.state, self.pending.pop(0), self.now, self.policy))
            return
        if self.trainer is not None:
            self.trainer_acts()
        elif self.random.random() < 0.1:
            self.damage()
        due = [d for d, at in self.deadlines.items() if at <= self.now]
        if due:
            del self.deadlines[due[0]]
            self.act(step(self.state, e.DeadlinePassed(due[0], self.state.incarnation), self.now, self.policy))
        elif not self.pending and self.deadlines:
            self.now = max(self.now, min(self.deadlines.values())) if self.trainer is None else self.now

    def trainer_acts(self) -> None:
        assert self.trainer is not None
        chance = self.random.random()
        if chance < 0.6:
            self.at += 1
            self.pending.append(e.StepReported(self.trainer, self.at, 1.0))
        elif chance < 0.75:
            self.save()
        elif chance < 0.8:
            if self.random.random() < 0.3:
                self.pending.append(e.EndingNoted(self.trainer, self.random.choice([1, 2, 65, 143])))
            self.die(self.random.choice([1, 65, None]), 9 if self.random.random() < 0.5 else None)
        elif self.policy.final_step is not None and self.at >= self.policy.final_step:
            self.save()
            self.die(0, None)


@pytest.mark.parametrize("block", range(10))
def test_random_histories_keep_the_promises(block: int) -> None:
    """100 lives a block: the newest proven is chosen, proven ones are never set aside, never two trainers."""
    for seed in range(block * 100, block * 100 + 100):
        world = World(seed)
        try:
            world.act(begin(world.state))
            for _ in range(400):
                if world.exit is not None:
                    break
                world.happen()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        assert world.spawned > 0, f"seed {seed} never started"
        kept = world.policy.keep
        if kept is not None and not kept.every and world.one_more_save():
            told = [rung for name, rung in world.files.items() if name in world.told]
            proven = [rung for rung in told if rung.verdict is not None and rung.verdict.proven]
            assert len(proven) <= kept.last + UNPRUNED_MAX, f"seed {seed}: {len(proven)} proven snapshots were kept"


@pytest.mark.parametrize("block", range(5))
def test_from_anywhere_a_stop_ends_the_run_soon(block: int) -> None:
    """Asked to stop at a random moment, the run reaches an end within thirty events."""
    for seed in range(block * 100, block * 100 + 100):
        world = World(seed)
        world.act(begin(world.state))
        for _ in range(world.random.randrange(120)):
            if world.exit is None:
                world.happen()
        if world.exit is not None:
            continue
        world.act(step(world.state, e.StopRequested(15), world.now, world.policy))
        for _ in range(30):
            if world.exit is not None:
                break
            if world.pending:
                world.act(step(world.state, world.pending.pop(0), world.now, world.policy))
        assert world.exit in (143, 0, 3, 4, 5), f"seed {seed}: {world.state.phase}"
        assert world.state.phase in ENDS
        assert world.trainer is None, f"seed {seed}: a trainer was left"


def test_the_sets_of_phases_and_kinds_hold_together() -> None:
    """What is bad is never usable, and the ends are three."""
    assert not [kind for kind in BAD if Verdict(kind, None, "").usable]
    assert {Phase.COMPLETED, Phase.STOPPED, Phase.FAILED} == ENDS

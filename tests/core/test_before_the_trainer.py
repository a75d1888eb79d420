"""What happens before the trainer is there, while `trainer.pre_start` runs, is none of its doing."""

from dataclasses import replace

import pytest

from lastgood.verdict import Kind
from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.core.machine import step
from supervisor.core.memory import Memory
from supervisor.core.state import Life, Phase, State
from supervisor.core.trust import Trust
from tests.core.test_machine import POLICY, ladder, names, rung

MEMORY = Memory(high_water=50, reached=60, incarnation=2)
STARTING = State(Phase.STARTING, MEMORY, Life(resumed=rung(50)), (rung(50),))


@pytest.mark.parametrize("brought", [rung(40), rung(70), rung(60, Kind.UNPROVEN)])
def test_a_snapshot_that_it_brings_is_no_work_and_no_sign_of_life(brought: e.RungFact) -> None:
    """Copied in from a bucket, older or newer: it is known from then on, and nothing counts, is armed or ends for it."""
    state, commands = step(STARTING, e.SnapshotJudged(brought), 5.0, POLICY)

    assert ["snapshot.verified"] == names(commands)
    assert (Phase.STARTING, STARTING.life, 50) == (state.phase, state.life, state.memory.high_water)
    assert brought in state.rungs
    assert MEMORY.budget == state.memory.budget


@pytest.mark.parametrize("trust", [None, Trust("ckpt_50.pt", 50, 50)])
def test_what_is_found_only_after_it_was_stopped_or_failed_is_no_work_either(trust: Trust | None) -> None:
    """Asked to stop or dead by then: it was not the trainer that saved, and the budget is not refilled for it."""
    before = replace(STARTING, memory=replace(MEMORY, trust=trust))
    stopping, _ = step(before, e.StopRequested(15), 4.0, POLICY)
    stopping, commands = step(stopping, e.SnapshotJudged(rung(70)), 5.0, POLICY)
    assert ["snapshot.verified"] == names(commands)

    dead, _ = step(before, e.SpawnFailed(2, "trainer.pre_start ended with code 1"), 5.0, POLICY)
    for seen in (e.SnapshotJudged(rung(70)), ladder(rung(70), rung(50))):
        found, commands = step(dead, seen, 6.0, POLICY)
        assert "trainer.progressed" not in names(commands)
        assert (50, ()) == (found.memory.high_water, found.life.held)


def test_if_it_fails_the_start_has_failed() -> None:
    """Whatever it brought before: that is a death as any other."""
    state, _ = step(STARTING, e.SnapshotJudged(rung(70)), 5.0, POLICY)
    state, commands = step(state, e.SpawnFailed(2, "trainer.pre_start ended with code 1"), 6.0, POLICY)

    assert Phase.SELECTING is state.phase
    assert c.SweepTree(2) in commands


def test_what_it_brought_is_not_held_against_the_trainer() -> None:
    """After a start on trust it is among what was there before, and is not held back either."""
    trusting = replace(STARTING, memory=replace(MEMORY, trust=Trust("ckpt_50.pt", 50, 50)))
    state, _ = step(trusting, e.SnapshotJudged(rung(70)), 5.0, POLICY)

    assert ((("ckpt_70.pt", 70),), ()) == (state.memory.trust.left, state.life.held)


def test_its_end_is_not_awaited_before_it_is_there() -> None:
    """The bytes of a final snapshot are confirmed while something else still runs before the trainer: that has its own limit."""
    memory = replace(MEMORY, high_water=100, trust=Trust("ckpt_50.pt", 50, 50))
    _, commands = step(replace(STARTING, memory=memory), e.SnapshotReread(rung(50)), 5.0, POLICY)

    assert ["resume.confirmed", "SaveMemory"] == names(commands)


def test_a_save_of_its_own_begins_no_silence() -> None:
    """The deadlines of a trainer begin when it is there."""
    assert (STARTING, ()) == step(STARTING, e.SavingChanged(2, True), 5.0, POLICY)
    state, commands = step(STARTING, e.TrainerSpawned(2, 7), 6.0, POLICY)

    assert [e.Deadline.STARTUP] == [one.deadline for one in commands if isinstance(one, c.Arm)]
    assert 7 == state.life.pid

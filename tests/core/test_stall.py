"""Silence has four deadlines, one at a time: which one holds, and what is kept of a trainer that lets it pass."""

from dataclasses import replace

import pytest

from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.core.machine import step
from supervisor.core.stall import SILENCES
from supervisor.core.state import Life, Phase, Policy, Stall, State
from tests.core.test_machine import died, names, one_of, record, rung, running

POLICY = Policy(final_step=100, stall=Stall(startup_seconds=900.0, running_seconds=600.0, saving_seconds=1200.0))


def after(state: State, *events: tuple[float, e.Event]) -> tuple[State, tuple[c.Command, ...]]:
    """The state after events at their times, and the commands of the last."""
    commands: tuple[c.Command, ...] = ()
    for at, event in events:
        state, commands = step(state, event, at, POLICY)
    return state, commands


def armed(*histories: tuple[c.Command, ...]) -> dict[e.Deadline, float]:
    """The silences that are armed after what was told in turn."""
    found: dict[e.Deadline, float] = {}
    for command in (one for commands in histories for one in commands):
        if isinstance(command, c.Disarm):
            found = {one: at for one, at in found.items() if one not in command.deadlines}
        elif isinstance(command, c.Arm) and command.deadline in SILENCES:
            found[command.deadline] = command.at
    return found


def saving(state: State, at: float, is_saving: bool = True) -> tuple[State, tuple[c.Command, ...]]:
    return step(state, e.SavingChanged(1, is_saving), at, POLICY)


@pytest.mark.parametrize(("phase", "signs"), [(Phase.STARTING, 0), (Phase.RUNNING, 2)])
def test_a_save_under_way_has_the_only_deadline(phase: Phase, signs: int) -> None:
    """While it lasts neither the start-up's nor the running deadline is armed; when it is over, just that one is again."""
    before = (c.Arm(e.Deadline.STARTUP, 900.0), c.Arm(e.Deadline.RUNNING, 600.0))
    state, begun = saving(running(phase=phase, life=Life(pid=7, signs=signs)), 100.0)
    assert {e.Deadline.SAVING: 1300.0} == armed(before, begun)

    _, over = saving(state, 500.0, is_saving=False)
    expected = {e.Deadline.RUNNING: 1100.0} if signs else {e.Deadline.STARTUP: 1400.0}
    assert expected == armed(before, begun, over)


def test_a_trainer_that_stands_still_inside_a_save_is_stalled_in_saving() -> None:
    """The record names the stage, and the silence is counted from the last life sign."""
    state, _ = saving(running(), 100.0)
    _, commands = step(state, e.DeadlinePassed(e.Deadline.SAVING, 1), 1300.0, POLICY)

    assert {"stage": "saving", "seconds": 1300.0} == record(commands, "trainer.stalled")
    assert "KillTree" in names(commands)


def test_steps_beside_a_save_put_its_deadline_off() -> None:
    """A trainer that saves in the background and goes on is not stalled, however long the save takes."""
    state, begun = saving(running(), 100.0)
    _, commands = step(state, e.StepReported(1, 61, None), 900.0, POLICY)

    assert {e.Deadline.SAVING: 2100.0} == armed(begun, commands)


def test_a_save_is_no_gap_between_two_life_signs() -> None:
    """What a save took does not make the running deadline longer."""
    begun = running(life=Life(pid=7, signs=2, sign_at=0.0, checked=True))
    state, commands = after(
        begun,
        (1.0, e.SavingChanged(1, True)),
        (1000.0, e.SnapshotJudged(rung(61))),
        (1000.1, e.SavingChanged(1, False)),
        (1001.0, e.StepReported(1, 62, None)),
    )

    assert 1601.0 == one_of(commands, c.Arm).at
    assert 1.0 > state.life.gap_seconds


def test_a_pause_that_is_usual_is_allowed_inside_a_save_too() -> None:
    """The saving deadline is no shorter than five times the longest gap seen."""
    slow = running(life=Life(pid=7, signs=2, gap_seconds=1000.0))

    assert {e.Deadline.SAVING: 5010.0} == armed(saving(slow, 10.0)[1])


def test_saves_past_the_end_have_no_deadline() -> None:
    """Once the final snapshot is proven only the exit is waited for."""
    assert {} == armed(saving(running(life=Life(pid=7, signs=2, finishing=True)), 1.0)[1])


def test_the_deadline_of_a_save_ends_with_it_when_the_trainer_has_finished() -> None:
    """The final snapshot, proven before its save was seen to be over, leaves the exit's deadline alone."""
    state, begun = saving(running(), 1.0)
    _, commands = step(state, e.SnapshotJudged(rung(100)), 2.0, POLICY)

    assert {} == armed(begun, commands)
    assert c.Arm(e.Deadline.EXIT, 122.0) in commands


def test_a_heartbeat_is_a_life_sign() -> None:
    """It puts the deadline off, proves that earlier saves were outlived, and arms the running deadline with the second."""
    state, first = step(
        running(phase=Phase.STARTING, life=Life(pid=7, unsealed=("a.pt",))), e.HeartbeatSeen(1), 10.0, POLICY
    )
    assert (Phase.RUNNING, {e.Deadline.STARTUP: 910.0}) == (state.phase, armed(first))
    assert c.SealSnapshot("a.pt") in first

    _, second = step(state, e.HeartbeatSeen(1), 30.0, POLICY)
    assert {e.Deadline.RUNNING: 630.0} == armed(first, second)


def test_a_heartbeat_does_not_say_what_was_resumed() -> None:
    """The first step after it is still held against the resumed one."""
    state, _ = step(running(phase=Phase.STARTING, life=Life(pid=7, resumed=rung(50))), e.HeartbeatSeen(1), 1.0, POLICY)
    _, commands = step(state, e.StepReported(1, 3, None), 2.0, POLICY)

    assert "resume.ignored" in names(commands)


def test_heartbeats_make_no_completion_of_a_banner() -> None:
    """`training for 100 steps`, a heart that beats, and exit 0: that is ended early."""
    state = running(life=Life(pid=7, checked=True))
    for at, event in enumerate((e.StepReported(1, 100, None), e.HeartbeatSeen(1), e.HeartbeatSeen(1))):
        state, _ = step(state, event, float(at), POLICY)

    assert "ended-early" == record(died(state, rung(50), code=0, signal=None)[1], "trainer.exited")["cause"]


@pytest.mark.parametrize("deadline", [*SILENCES, e.Deadline.EXIT])
def test_evidence_is_kept_before_the_kill(deadline: e.Deadline) -> None:
    """Whatever stage is too long, it is written down what the processes were doing, and only then are they killed."""
    _, commands = step(running(), e.DeadlinePassed(deadline, 1), 700.0, POLICY)
    kinds = [type(one) for one in commands]

    assert c.KeepEvidence(1, str(deadline), 700.0) == one_of(commands, c.KeepEvidence)
    assert kinds.index(c.KeepEvidence) < kinds.index(c.KillTree)


def test_what_is_left_of_a_start_that_failed_is_swept() -> None:
    """The tree goes before the directory is judged, and the last lines of what ran before the trainer are the death's."""
    state, commands = step(
        replace(running(), phase=Phase.STARTING),
        e.SpawnFailed(1, "trainer.pre_start ended with 3", ("no disk",)),
        1.0,
        POLICY,
    )
    assert c.SweepTree(1) in commands
    assert ("no disk", "trainer.pre_start ended with 3") == state.death.last_lines

    _, commands = step(state, e.TreeSwept(1), 2.0, POLICY)
    assert ["JudgeLadder"] == names(commands)

"""A run that makes room for another and goes on later."""

from dataclasses import replace

import pytest

from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.core.machine import step
from supervisor.core.memory import Memory
from supervisor.core.state import Ending, Life, Phase, State
from tests.core.test_machine import POLICY, at, ladder, names, one_of, record, rung, running


def asked(state: State) -> tuple[State, tuple[c.Command, ...]]:
    return step(state, e.PauseRequested(), 1.0, POLICY)


def ended(state: State, code: int | None = 143, signal: int | None = None) -> tuple[State, tuple[c.Command, ...]]:
    """The trainer's exit, the sweep and the look that follow."""
    for event in (e.TrainerExited(1, code, signal), e.TreeSwept(1)):
        state, _ = step(state, event, 2.0, POLICY)
    return step(state, ladder(rung(50)), 3.0, POLICY)


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING])
def test_a_pause_ends_the_trainer_as_a_stop_does(phase: Phase) -> None:
    """It is asked to save, with its grace; then the run waits, and says where it is."""
    state, commands = asked(running(phase=phase))
    assert (Phase.STOPPING, ["trainer.asked_to_stop", "Disarm", "AskToStop", "Arm"]) == (state.phase, names(commands))
    state, commands = ended(state)

    assert Phase.PAUSED is state.phase
    assert "stopped" == record(commands, "trainer.exited")["cause"]
    assert {"step": 50, "reached": 60} == record(commands, "run.paused")
    assert not [one for one in commands if isinstance(one, c.Exit | c.SpawnTrainer)]


def test_a_pause_spends_nothing_of_the_budget() -> None:
    """Even where the trainer had to be killed: that was our doing."""
    state, _ = asked(running())
    state, _ = step(state, e.DeadlinePassed(e.Deadline.GRACE, 1), 99.0, POLICY)
    state, _ = ended(state, None, 9)

    assert (Phase.PAUSED, ()) == (state.phase, state.memory.budget.fruitless)


def test_a_paused_run_goes_on_from_whatever_is_there_by_then() -> None:
    """The directory is read anew."""
    state, commands = step(at(Phase.PAUSED, pause=True), e.ResumeRequested(), 1.0, POLICY)
    assert (Phase.SELECTING, ["run.resumed", "JudgeLadder"]) == (state.phase, names(commands))
    state, commands = step(state, ladder(rung(50)), 2.0, POLICY)

    assert (Phase.STARTING, "ckpt_50.pt") == (state.phase, one_of(commands, c.SpawnTrainer).snapshot.name)


def test_what_would_not_die_is_swept_before_a_paused_run_goes_on() -> None:
    """A pause does not forget it."""
    state, commands = step(at(Phase.SELECTING, pause=True), e.TreeSwept(1, (77,)), 1.0, POLICY)
    assert (Phase.PAUSED, [77]) == (state.phase, record(commands, "trainer.stuck")["pids"])
    state, commands = step(state, e.ResumeRequested(), 2.0, POLICY)

    assert (Phase.SELECTING, ["run.resumed", "SweepTree"]) == (state.phase, names(commands))


@pytest.mark.parametrize("phase", [Phase.BACKOFF, Phase.WAITING])
def test_where_nothing_runs_the_pause_is_at_once(phase: Phase) -> None:
    """No delay goes on behind it."""
    state, commands = asked(at(phase))

    assert Phase.PAUSED is state.phase
    assert set(e.Deadline) == set(one_of(commands, c.Disarm).deadlines)


@pytest.mark.parametrize("event", [ladder(rung(50)), e.LadderUnreadable("Input/output error")])
def test_a_look_that_is_under_way_ends_in_the_pause(event: e.Event) -> None:
    """Nothing is started, and unreadable storage need not be waited for."""
    state, commands = asked(at(Phase.SELECTING))
    assert (Phase.SELECTING, ()) == (state.phase, commands)
    state, commands = step(state, event, 2.0, POLICY)

    assert Phase.PAUSED is state.phase
    assert "run.paused" in names(commands)


def test_a_trainer_that_dies_by_itself_meanwhile_is_not_restarted() -> None:
    """Its death is counted as any other."""
    state = replace(running(), phase=Phase.STOPPING, ending=Ending.STALLED)
    state, commands = ended(asked(state)[0], None, 9)

    assert Phase.PAUSED is state.phase
    assert "stalled" == record(commands, "trainer.exited")["cause"]
    assert "restart.scheduled" not in names(commands)
    assert 1 == len(state.memory.budget.fruitless)


def test_a_pause_that_is_taken_back_in_time_costs_only_the_restart() -> None:
    """The trainer was asked to end; it is started again at once."""
    state, _ = step(asked(running())[0], e.ResumeRequested(), 1.0, POLICY)
    state, commands = ended(state)

    assert (Phase.SELECTING, True) == (state.phase, "JudgeLadder" in names(commands))
    assert () == state.memory.budget.fruitless


def test_a_stop_wins_over_a_pause() -> None:
    """Asked while the trainer saves for the pause, or while the run is paused, it ends the run."""
    state, _ = step(asked(running())[0], e.StopRequested(15), 1.0, POLICY)
    assert Phase.STOPPED is ended(state)[0].phase
    state, commands = step(at(Phase.PAUSED, pause=True), e.StopRequested(2), 1.0, POLICY)

    assert (Phase.STOPPED, c.Exit(130)) == (state.phase, one_of(commands, c.Exit))


def test_a_run_that_completes_while_it_is_to_pause_is_complete() -> None:
    """The last snapshot is there, and the trainer ended well: there is nothing to go on with."""
    memory = Memory(high_water=100, reached=100, incarnation=1)
    state, _ = asked(running(memory=memory, life=Life(resumed=rung(50), reported=100, signs=9)))

    assert Phase.COMPLETED is ended(state, 0)[0].phase


def test_without_a_final_step_a_pause_is_no_completion() -> None:
    """A trainer that ends with 0 because it was asked to is not done."""
    policy = replace(POLICY, final_step=None)
    state, _ = step(running(), e.PauseRequested(), 1.0, policy)
    for event in (e.TrainerExited(1, 0, None), e.TreeSwept(1)):
        state, _ = step(state, event, 2.0, policy)

    assert Phase.PAUSED is step(state, ladder(rung(50)), 3.0, policy)[0].phase

"""Other settings while a run goes on: the silence that lasts is held against the new limits, and nothing else happens at once."""

from dataclasses import replace

import pytest

from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.core.machine import step
from supervisor.core.memory import Memory
from supervisor.core.state import Life, Phase, Policy, Stall, State
from tests.core.test_machine import at, rung, running

SHORTER = Policy(final_step=100, stall=Stall(startup_seconds=30.0, running_seconds=20.0, saving_seconds=40.0))


def told(state: State) -> tuple[State, tuple[c.Command, ...]]:
    return step(state, e.SettingsChanged(), 1000.0, SHORTER)


@pytest.mark.parametrize(
    ("life", "deadline", "due"),
    [
        (Life(pid=7, resumed=rung(50), signs=3, sign_at=900.0), e.Deadline.RUNNING, 920.0),
        (Life(pid=7, resumed=rung(50), signs=3, sign_at=900.0, gap_seconds=10.0), e.Deadline.RUNNING, 950.0),
        (Life(pid=7, resumed=rung(50), signs=1, sign_at=900.0), e.Deadline.STARTUP, 930.0),
        (Life(pid=7, resumed=rung(50), signs=3, sign_at=900.0, saving=True), e.Deadline.SAVING, 940.0),
    ],
    ids=["running", "five times its longest gap", "starting up", "saving"],
)
def test_the_silence_that_lasts_is_held_against_the_new_limit(life: Life, deadline: e.Deadline, due: float) -> None:
    """It is counted from the last life sign, as if the limit had been this one all along."""
    state = running(life=life)
    after, commands = told(state)

    assert state == after
    assert [c.Arm(deadline, due)] == [one for one in commands if isinstance(one, c.Arm)]


def test_without_a_trainer_there_is_no_silence() -> None:
    """One that is about to be started has its limits from when it is there; one that has finished has only to exit."""
    assert () == told(at(Phase.STARTING))[1]


def test_the_end_that_is_awaited_may_be_another() -> None:
    """A final step that was raised lets a trainer go on that had only to exit; else it is awaited for as long as is said now."""
    life = Life(pid=7, resumed=rung(50), signs=3, sign_at=900.0, finishing=True)
    done = Memory(high_water=100, incarnation=1)
    sooner = replace(SHORTER, stall=replace(SHORTER.stall, exit_seconds=60.0))
    state, commands = step(running(life=life, memory=done), e.SettingsChanged(), 1000.0, sooner)
    assert state.life.finishing
    assert [c.Arm(e.Deadline.EXIT, 960.0)] == [one for one in commands if isinstance(one, c.Arm)]

    raised = replace(SHORTER, final_step=200)
    state, commands = step(running(life=life, memory=done), e.SettingsChanged(), 1000.0, raised)
    assert not state.life.finishing
    assert c.Disarm((e.Deadline.EXIT,)) == commands[0]
    assert [c.Arm(e.Deadline.RUNNING, 1020.0)] == [one for one in commands if isinstance(one, c.Arm)]

    lowered = replace(SHORTER, final_step=80)
    going = Life(pid=7, resumed=rung(50), signs=3, sign_at=900.0)
    state, commands = step(running(life=going, memory=Memory(high_water=90)), e.SettingsChanged(), 1000.0, lowered)
    assert state.life.finishing
    assert c.Arm(e.Deadline.EXIT, 1120.0) == commands[-1]


@pytest.mark.parametrize("phase", [Phase.SELECTING, Phase.BACKOFF, Phase.WAITING, Phase.PAUSED, Phase.STOPPING])
def test_elsewhere_they_are_looked_up_when_they_are_needed(phase: Phase) -> None:
    """Nothing is ordered."""
    assert (at(phase), ()) == told(at(phase))

"""Other settings while a run goes on: the silence that lasts is held against the new limits, and nothing else happens at once."""

import pytest

from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.core.machine import step
from supervisor.core.state import Life, Phase, Policy, Stall, State
from tests.core.test_machine import at, rung, running

SHORTER = Policy(final_step=100, stall=Stall(startup_seconds=30.0, running_seconds=20.0, saving_seconds=40.0))


def told(state: State) -> tuple[State, tuple[c.Command, ...]]:
    return step(state, e.SettingsChanged(), 1000.0, SHORTER)


@pytest.mark.parametrize(
    ("life", "deadline", "due"),
    [
        (Life(resumed=rung(50), signs=3, sign_at=900.0), e.Deadline.RUNNING, 920.0),
        (Life(resumed=rung(50), signs=3, sign_at=900.0, gap_seconds=10.0), e.Deadline.RUNNING, 950.0),
        (Life(resumed=rung(50), signs=1, sign_at=900.0), e.Deadline.STARTUP, 930.0),
        (Life(resumed=rung(50), signs=3, sign_at=900.0, saving=True), e.Deadline.SAVING, 940.0),
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
    assert () == told(running(life=Life(resumed=rung(50), signs=3, sign_at=900.0, finishing=True)))[1]


@pytest.mark.parametrize("phase", [Phase.SELECTING, Phase.BACKOFF, Phase.WAITING, Phase.PAUSED, Phase.STOPPING])
def test_elsewhere_they_are_looked_up_when_they_are_needed(phase: Phase) -> None:
    """Nothing is ordered."""
    assert (at(phase), ()) == told(at(phase))

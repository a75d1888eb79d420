"""What the supervisor itself waits for is said once, when it takes long."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor import overdue
from supervisor.core.memory import Memory
from supervisor.core.state import Phase, State
from supervisor.overdue import LONG_SECONDS, Overdue
from supervisor.records import CATALOGUE


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Monotonic time that only a test moves."""
    made = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(overdue, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def test_a_look_that_takes_long_is_said_once(clock: SimpleNamespace) -> None:
    """A directory on storage that hangs, or a start whose memory is not written: a warning, and another for the next one."""
    said: list[tuple[str, dict[str, Any]]] = []
    watch = Overdue(lambda event, fields: said.append((event, fields)))
    state = State(Phase.SELECTING, Memory(incarnation=3))
    for _ in range(100):
        watch.look(state, a_trainer_lives=False)
        clock.now += 1.0
    assert [("supervisor.delayed", {"phase": "selecting", "seconds": LONG_SECONDS})] == said
    assert set(CATALOGUE["supervisor.delayed"].fields) == set(said[0][1])

    state = replace(state, phase=Phase.STARTING)
    watch.look(state, a_trainer_lives=False)
    clock.now += LONG_SECONDS
    watch.look(state, a_trainer_lives=False)
    assert "starting" == said[-1][1]["phase"]


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in overdue.PHASES] + [Phase.STARTING])
def test_what_has_a_deadline_is_left_to_it(clock: SimpleNamespace, phase: Phase) -> None:
    """A trainer that starts up, runs or stops, a backoff, a wait or a pause is nothing to be said here."""
    said: list[str] = []
    watch = Overdue(lambda event, _fields: said.append(event))
    for _ in range(3):
        watch.look(State(phase), a_trainer_lives=True)
        clock.now += LONG_SECONDS

    assert [] == said

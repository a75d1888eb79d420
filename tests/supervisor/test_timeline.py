"""What a restart took is told by stages, once its first step is done."""

from types import SimpleNamespace
from typing import Any

import pytest

from supervisor import timeline
from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.records import CATALOGUE
from supervisor.timeline import Timeline

DEATH = e.TrainerExited(1, None, 9, None, (), None, False)
RESTART: list[tuple[float, e.Event | c.Command]] = [
    (0.050, DEATH),
    (0.003, e.TreeSwept(1, ())),
    (1.0, c.JudgeLadder()),
    (0.004, e.LadderJudged((), True)),
    (0.0001, c.SpawnTrainer(2, None)),
    (0.009, e.TrainerSpawned(2, 44)),
    (0.1, e.StepReported(2, 5, 1.0)),
]
STAGES = {"exit": 50.0, "sweep": 3.0, "delay": 1000.0, "judge": 4.0, "choose": 0.1, "start": 9.0, "first_step": 100.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Monotonic time that only a test moves."""
    made = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(timeline, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def told(clock: SimpleNamespace, happens: list[tuple[float, e.Event | c.Command]]) -> list[tuple[str, dict[str, Any]]]:
    """What is said while these happen, each so many seconds after the one before; deaths are noticed just when they can be."""
    said: list[tuple[str, dict[str, Any]]] = []
    line = Timeline(lambda event, fields: said.append((event, fields)))
    for after, what in happens:
        noticed = clock.now
        clock.now += after
        line.take(what, noticed)
    return said


def test_every_millisecond_of_a_restart_is_told(clock: SimpleNamespace) -> None:
    """By what it went for, and once, however many steps follow."""
    [(event, fields)] = told(clock, [*RESTART, (0.1, e.StepReported(2, 6, 1.0))])

    assert ("restart.timeline", STAGES) == (event, fields["stages"])
    assert pytest.approx(1166.1) == fields["total"]
    assert set(CATALOGUE["restart.timeline"].fields) == set(fields)


def test_a_first_start_is_no_restart(clock: SimpleNamespace) -> None:
    """Nobody has died."""
    assert [] == told(clock, RESTART[2:])


def test_what_is_done_again_is_added_up(clock: SimpleNamespace) -> None:
    """A directory that was read three times took three times as long; other events take no part."""
    again = [
        *RESTART[:4],
        (0.5, e.DeadlinePassed(e.Deadline.RETRY, 1)),
        (0.5, RESTART[2][1]),
        *[RESTART[3]] * 2,
        *RESTART[4:],
    ]
    [(_, fields)] = told(clock, again)

    assert STAGES | {"delay": 2000.0, "judge": 12.0} == fields["stages"]


@pytest.mark.parametrize("at", [0, 2])
def test_how_long_people_pause_is_no_matter_of_a_restart(clock: SimpleNamespace, at: int) -> None:
    """Asked for while it lived or while nobody did."""
    asked = [(0.0, e.PauseRequested()), (0.0, e.ResumeRequested())]

    assert [] == told(clock, [*RESTART[:2][:at], asked[0], *RESTART[:2][at:], (86400.0, asked[1][1]), *RESTART[2:]])


def test_a_second_death_before_the_first_step_begins_anew(clock: SimpleNamespace) -> None:
    """It is told what the restart after it took; a step that a dead trainer is heard to tell late ends nothing."""
    [(_, fields)] = told(
        clock, [*RESTART[:6], (7.0, e.HeartbeatSeen(2)), *RESTART[:2], (0.0, RESTART[6][1]), *RESTART[2:]]
    )

    assert STAGES == fields["stages"]

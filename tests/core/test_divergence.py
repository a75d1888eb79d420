"""A loss that stops being finite: how far to step back, and when to skip the data instead."""

import math
from dataclasses import replace
from typing import Any

import pytest

from lastgood.verdict import Kind
from supervisor.core import commands as c
from supervisor.core import divergence
from supervisor.core import events as e
from supervisor.core.divergence import Divergence, Losses
from supervisor.core.machine import step
from supervisor.core.memory import Memory
from supervisor.core.state import Ending, Life, Phase, Policy, State
from tests.core.test_machine import POLICY, ladder, names, one_of, record, rung, running

SKIPPING = replace(POLICY, skips_data=True)


def told(state: State, *losses: tuple[int, float | None]) -> tuple[State, tuple[c.Command, ...]]:
    """The state after steps with these losses, and the commands of the last one."""
    commands: tuple[c.Command, ...] = ()
    for number, loss in losses:
        state, commands = step(state, e.StepReported(1, number, loss), 1.0, POLICY)
    return state, commands


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_two_losses_in_a_row_that_are_not_finite_end_the_trainer(bad: float) -> None:
    """It is killed, not asked: asked, it would save what it has become."""
    state, commands = told(running(), (61, 2.0), (62, bad))
    assert Phase.RUNNING is state.phase
    state, commands = told(state, (63, bad))

    assert (Phase.STOPPING, Ending.DIVERGED) == (state.phase, state.ending)
    assert ["Disarm", "KillTree", "Arm"] == names(commands)
    assert (61, 62) == (state.life.losses.finite, state.life.losses.first_bad)


def test_a_snapshot_of_such_a_loss_is_no_progress() -> None:
    """It does not refill a budget that the divergence will spend; one of the last finite loss does."""
    state, _ = told(running(), (61, 2.0), (62, math.nan))

    assert [False, True] == [
        step(state, e.SnapshotJudged(rung(number)), 2.0, POLICY)[0].life.progressed for number in (62, 61)
    ]


def test_one_such_loss_is_a_loss_scalers_skip() -> None:
    """A finite one after it forgets it; a step without a loss says nothing either way."""
    state, _ = told(running(), (61, math.nan), (62, 2.0), (63, math.nan), (64, None), (65, 2.0), (66, math.nan))

    assert Phase.RUNNING is state.phase
    assert Losses(finite=65, first_bad=66, bad=1) == state.life.losses


def dead(losses: Losses, before: Divergence | None = None, **more: Any) -> State:
    """A trainer that was resumed from step 50 and has diverged; the directory is being read."""
    life = Life(resumed=rung(50), reported=66, checked=True, losses=losses, **more)
    memory = Memory(high_water=60, reached=66, incarnation=1, ever_proven=True, divergence=before)
    exited = e.TrainerExited(1, 65, None)
    return State(Phase.SELECTING, memory, life, (rung(65), rung(60), rung(50)), death=exited)


BAD = Losses(finite=62, first_bad=64, bad=2)


def settled(state: State, policy: Policy = POLICY) -> tuple[State, tuple[c.Command, ...]]:
    return step(state, e.LadderJudged((rung(65), rung(60), rung(50)), True), 1.0, policy)


def test_a_divergence_is_said_with_how_far_it_is_stepped_back() -> None:
    """The next look passes whatever was saved after the last finite loss."""
    state, commands = settled(dead(BAD))

    assert {"step": 64, "finite_step": 62, "times": 1, "skipping": None} == record(commands, "trainer.diverged")
    _, commands = step(state, e.DeadlinePassed(e.Deadline.BACKOFF, 1), 99.0, POLICY)
    assert c.JudgeLadder(frozenset(), 62) == one_of(commands, c.JudgeLadder)


def test_what_was_saved_after_the_last_finite_loss_is_poisoned() -> None:
    """It is set aside with that reason, and the newest one before it is resumed from."""
    state = replace(dead(BAD, Divergence(64, 1, 62)), death=None)
    state, commands = settled(state)

    said = record(commands, "fallback.chosen")
    assert ("ckpt_60.pt", 1) == (said["chosen"], said["depth"])
    assert [{
        "name": "ckpt_65.pt", "verdict": "poisoned",
        "reason": "step 65 is after 62, the last one whose loss was finite",
    }] == said["rejected"]  # fmt: skip
    assert "ckpt_65.pt" == one_of(commands, c.SetAside).rung.name
    assert Divergence(64, 1, None) == one_of(commands, c.SaveMemory).memory.divergence


def test_a_trainer_that_ends_itself_with_65_has_saved_nothing_bad() -> None:
    """Its newest snapshot is as good as it says, and where it diverged is where it noted it."""
    _, commands = settled(dead(Losses(finite=62), said=65, said_step=67))

    assert {"step": 67, "finite_step": None, "times": 1, "skipping": None} == record(commands, "trainer.diverged")


def test_the_second_time_at_the_same_step_the_data_is_skipped() -> None:
    """From the last finite loss to there, told with the next start, and remembered."""
    state, commands = settled(dead(BAD, Divergence(64)), SKIPPING)
    assert (2, "63-64") == tuple(record(commands, "trainer.diverged")[key] for key in ("times", "skipping"))
    state, _ = step(state, e.DeadlinePassed(e.Deadline.BACKOFF, 1), 99.0, SKIPPING)
    state, commands = step(state, ladder(rung(60)), 99.0, SKIPPING)

    assert ((63, 64),) == one_of(commands, c.SpawnTrainer).skip == one_of(commands, c.SaveMemory).memory.skip


def test_without_any_finite_loss_the_data_is_skipped_from_the_start() -> None:
    """The step after the snapshot is the first that it may have been; of a fresh start only the last is known."""
    assert (51, 64) == divergence.stretch(Divergence(64), Divergence(64, 2), 50)
    assert (64, 64) == divergence.stretch(Divergence(64), Divergence(64, 2), None)
    assert (64, 64) == divergence.stretch(Divergence(64), Divergence(64, 2), 80)


@pytest.mark.parametrize(
    ("before", "policy"),
    [(Divergence(64), POLICY), (Divergence(63), SKIPPING), (Divergence(None), SKIPPING), (None, SKIPPING)],
    ids=["a trainer that cannot", "another step", "an unknown step", "the first time"],
)
def test_nothing_else_is_skipped(before: Divergence | None, policy: Policy) -> None:
    """Data is given up only where it is known which, and that it is to blame."""
    state, commands = settled(dead(BAD, before), policy)

    assert None is record(commands, "trainer.diverged")["skipping"]
    assert () == state.memory.skip


def test_more_divergences_in_a_row_than_allowed_end_the_run() -> None:
    """Status 4, and what to do; the snapshots stay as they are."""
    state, commands = settled(dead(BAD, Divergence(64, 3)))

    said = record(commands, "run.failed")
    assert (Phase.FAILED, 4) == (state.phase, said["status"])
    assert "the loss stopped being finite 4 times in a row, last at step 64" == said["reason"]
    assert None is one_of(commands, c.SaveMemory).memory.divergence
    assert Phase.FAILED is settled(dead(BAD), replace(POLICY, rollbacks=0))[0].phase


def test_a_run_that_gets_past_it_has_all_its_rollbacks_again() -> None:
    """A finite loss at a later step, and not one at the same."""
    state = running(memory=Memory(high_water=50, reached=66, incarnation=1, divergence=Divergence(64, 2)))
    state, _ = told(state, (64, 2.0), (65, None))
    assert Divergence(64, 2) == state.memory.divergence
    state, _ = told(state, (65, 2.0))

    assert None is state.memory.divergence


def test_one_at_an_unknown_step_is_passed_by_any_finite_loss() -> None:
    """There is nothing to compare with."""
    assert divergence.passed(Divergence(None), 1, 2.0)
    assert not divergence.passed(Divergence(None), 1, math.nan)
    assert not divergence.passed(None, 1, 2.0)


@pytest.mark.parametrize(
    "one", [rung(65, Kind.CORRUPT), rung(65, None), rung(62), replace(rung(65), step=None)],
    ids=["bad anyway", "not judged", "not later", "without a step"],
)  # fmt: skip
def test_only_what_is_good_and_later_is_poisoned(one: e.RungFact) -> None:
    """Other verdicts stay those of the bytes."""
    assert (one,) == divergence.poisoned((one,), Divergence(64, 1, 62))
    assert (rung(65),) == divergence.poisoned((rung(65),), Divergence(64, 1, None))


def test_a_trainer_that_was_ended_for_it_has_diverged() -> None:
    """Whatever it died of: the signal is ours."""
    state = replace(dead(BAD), ending=Ending.DIVERGED, death=e.TrainerExited(1, None, 9))

    assert "diverged" == record(settled(state)[1], "trainer.exited")["cause"]


@pytest.mark.parametrize(
    ("at", "loss", "is_over"), [(65, 2.0, True), (64, 2.0, False), (65, math.nan, False), (65, None, False)]
)
def test_a_step_behind_it_ends_a_divergence_though_its_trainer_is_dead(
    at: int, loss: float | None, is_over: bool
) -> None:
    """A quick trainer's steps come after its death: were they not heard, divergences far apart would be so many in a row."""
    memory = Memory(high_water=60, incarnation=1, divergence=Divergence(64, 3, 62))
    state, commands = told(State(Phase.SELECTING, memory, Life(), (rung(60),)), (at, loss))

    assert (is_over, ()) == (state.memory.divergence is None, commands)

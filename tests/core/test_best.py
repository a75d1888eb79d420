"""The best snapshots stay, by their own losses or by those told at their steps, also over the supervisor's restarts."""

from dataclasses import replace

import pytest

from lastgood.keep import Keep
from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.core.machine import step
from supervisor.core.memory import Memory
from supervisor.core.state import Life, Policy, State
from supervisor.core.trainer_life import TOLD_MAX
from tests.core.test_machine import one_of, rung, running

POLICY = Policy(keep=Keep(2, best=1))


def trained(
    losses: dict[int, float | None], policy: Policy = POLICY, state: State | None = None
) -> tuple[State, set[str]]:
    """The state after steps with these losses, each saved, and the names that retention took."""
    state = state or running(rungs=(), life=Life(checked=True, signs=2), memory=Memory(incarnation=1))
    gone: set[str] = set()
    for number, loss in losses.items():
        state, _ = step(state, e.StepReported(1, number, loss), 1.0, policy)
        state, commands = step(state, e.SnapshotJudged(rung(number)), 1.0, policy)
        gone |= {one.rung.name for one in commands if isinstance(one, c.PruneSnapshot)}
    return state, gone


def test_the_snapshot_with_the_lowest_loss_told_stays() -> None:
    """The trainer's output tells the loss at its step; what tells none, or one that is not finite, is not the best."""
    _, gone = trained({1: 3.0, 2: 1.0, 3: None, 4: float("inf"), 5: 2.0, 6: 9.0})

    assert {"ckpt_1.pt", "ckpt_3.pt", "ckpt_4.pt"} == gone


def test_what_was_told_is_remembered_over_a_restart() -> None:
    """It is saved with the progress, for the snapshots that are still there; a later supervisor keeps the best of both lives."""
    state, _ = trained({1: 3.0, 2: 1.0, 3: 2.0, 4: 2.0})
    assert {2: 1.0, 3: 2.0, 4: 2.0} == dict(state.memory.losses)

    later = running(rungs=state.rungs, life=Life(checked=True, signs=2), memory=state.memory)
    after, gone = trained({5: 9.0, 6: 9.0}, state=later)
    assert {"ckpt_3.pt", "ckpt_4.pt"} == gone
    assert {2, 5, 6} <= set(dict(after.memory.losses))
    assert 3 not in dict(after.memory.losses)


def test_losses_are_in_the_memory_that_is_saved() -> None:
    """Progress is written down with the loss that belongs to it."""
    state, _ = step(running(), e.StepReported(1, 61, 2.5), 1.0, POLICY)
    _, commands = step(state, e.SnapshotJudged(rung(61)), 1.0, POLICY)

    assert ((61, 2.5),) == one_of(commands, c.SaveMemory).memory.losses


def test_a_step_that_is_printed_after_its_snapshot_was_judged_counts_too() -> None:
    """As nanoGPT does: it saves, and prints that step afterwards."""
    state, _ = step(running(rungs=()), e.SnapshotJudged(rung(61)), 1.0, POLICY)
    state, _ = step(state, e.StepReported(1, 61, 2.5), 1.0, POLICY)
    state, _ = step(state, e.SnapshotJudged(rung(62)), 1.0, POLICY)

    assert ((61, 2.5),) == state.memory.losses


@pytest.mark.parametrize("policy", [Policy(), Policy(keep=Keep(2))])
def test_nothing_is_remembered_that_nobody_asked_for(policy: Policy) -> None:
    """Without retention, or one that knows no best, run.json stays small."""
    state, _ = trained({1: 1.0, 2: 1.0}, replace(policy, final_step=None))

    assert () == state.memory.losses


def test_of_losses_told_only_the_newest_are_held() -> None:
    """However long a life, what is held of it does not grow."""
    state = running()
    for number in range(61, 61 + 2 * TOLD_MAX):
        state, _ = step(state, e.StepReported(1, number, 1.0), 1.0, POLICY)

    assert (TOLD_MAX, 60 + 2 * TOLD_MAX) == (len(state.life.told), state.life.told[-1][0])

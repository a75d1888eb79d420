"""A supervisor that dies with its trainer, perhaps of it: that spends the budget as any death without progress does."""

from dataclasses import replace

from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.core.budget import Budget
from supervisor.core.machine import begin, step
from supervisor.core.memory import Memory
from supervisor.core.state import Phase, Policy, State
from tests.core.test_machine import at, ladder, names, one_of, record, rung, running

POLICY = Policy(final_step=100)
LOST = Memory(high_water=50, reached=60, incarnation=3, open=True, ever_proven=True)


def began(memory: Memory, *rungs: e.RungFact, now: float = 0.0, **more: object) -> tuple[State, tuple[c.Command, ...]]:
    """The first decision of a supervisor that finds this memory and these rungs, none of which it has seen before."""
    state, _ = begin(replace(State(memory=memory), **more))
    state, _ = step(state, e.TreeSwept(memory.incarnation), now, POLICY)
    return step(state, ladder(*rungs), now, POLICY)


def test_a_start_is_noted_before_it_happens_and_its_end_after_it() -> None:
    """From the order to start until its death is settled, or until it progresses, an incarnation is open in the memory."""
    here = at(Phase.SELECTING, memory=Memory(incarnation=1, high_water=50))
    state, commands = step(here, ladder(rung(50)), 0.0, POLICY)
    assert ["SaveMemory", "SpawnTrainer"] == names(commands)[-2:]
    assert one_of(commands, c.SaveMemory).memory.open

    spawned, _ = step(state, e.TrainerSpawned(2, 4711), 0.0, POLICY)
    progressed, commands = step(spawned, e.SnapshotJudged(rung(60)), 1.0, POLICY)
    assert not one_of(commands, c.SaveMemory).memory.open
    dead, _ = step(spawned, e.TrainerExited(2, 1, None), 1.0, POLICY)
    swept, _ = step(dead, e.TreeSwept(2), 1.0, POLICY)
    settled, commands = step(swept, ladder(rung(50)), 1.0, POLICY)

    assert not one_of(commands, c.SaveMemory).memory.open
    assert (False, False, True) == (progressed.memory.open, settled.memory.open, dead.memory.open)


def test_a_supervisor_lost_with_its_trainer_is_a_death_without_progress() -> None:
    """The next one waits as after any such death, says what for, and has written down what was spent."""
    state, commands = began(LOST, rung(50), now=7.0)

    assert (Phase.BACKOFF, (7.0,)) == (state.phase, state.memory.budget.fruitless)
    assert ("supervisor-lost", 1) == tuple(
        record(commands, "restart.scheduled")[k] for k in ("cause", "without_progress")
    )
    assert (False, (7.0,)) == (
        one_of(commands, c.SaveMemory).memory.open,
        one_of(commands, c.SaveMemory).memory.budget.fruitless,
    )


def test_it_counts_once() -> None:
    """A supervisor that was stopped before it could try again is no further death."""
    state, _ = began(LOST, rung(50))
    again, commands = began(state.memory, rung(50))

    assert (Phase.STARTING, 1) == (again.phase, len(again.memory.budget.fruitless))
    assert "SpawnTrainer" in names(commands)


def test_supervisors_lost_again_and_again_end_the_run() -> None:
    """Five trainers of a run that never progressed, each of which took its supervisor along: status 4, and no sixth."""
    memory, starts = Memory(incarnation=1, open=True), 1
    for number in range(5):
        state, commands = began(memory, now=float(number))
        if state.phase is Phase.BACKOFF:
            state, _ = step(state, e.DeadlinePassed(e.Deadline.BACKOFF, memory.incarnation), number + 0.5, POLICY)
            state, orders = step(state, e.LadderJudged((), ever_held=False), number + 0.5, POLICY)
            starts += names(orders).count("SpawnTrainer")
        memory = state.memory

    assert (5, Phase.FAILED, c.Exit(4)) == (starts, state.phase, one_of(commands, c.Exit))
    assert ("supervisor-lost", 5) == tuple(
        record(commands, "restart.refused")[k] for k in ("cause", "without_progress")
    )


def test_what_its_trainer_published_unseen_is_progress() -> None:
    """A snapshot above high water that only the next supervisor judges excuses the death of the one before."""
    state, commands = began(LOST, rung(60), rung(50))

    assert (Phase.STARTING, Budget(ever_progressed=True)) == (state.phase, state.memory.budget)
    assert "trainer.progressed" in names(commands)


def test_a_stop_or_pause_that_comes_first_is_heeded() -> None:
    """Whoever asks the next supervisor to stop or to pause before it has settled that is heeded all the same."""
    stopped, commands = began(LOST, rung(50), stop_signal=15)
    paused, _ = began(LOST, rung(50), pause=True)

    assert (Phase.STOPPED, c.Exit(143)) == (stopped.phase, one_of(commands, c.Exit))
    assert (Phase.PAUSED, False, False) == (paused.phase, stopped.memory.open, paused.memory.open)


def test_a_stop_leaves_nothing_open() -> None:
    """However a stop ends, also past its grace, the next start finds nobody lost."""
    dying = replace(running(memory=LOST), phase=Phase.SELECTING, stop_signal=15, death=e.TrainerExited(3, None, 9))
    state, commands = step(dying, e.DeadlinePassed(e.Deadline.GRACE, 3), 0.0, POLICY)

    assert (Phase.STOPPED, False) == (state.phase, one_of(commands, c.SaveMemory).memory.open)

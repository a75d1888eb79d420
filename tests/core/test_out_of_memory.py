"""A SIGKILL that nobody here sent: the OOM killer's where it is counted, and nobody's where it is not."""

from dataclasses import replace

import pytest

from supervisor.core.budget import Budget
from supervisor.core.causes import Context, evidence, exit_cause
from supervisor.core.events import TrainerExited
from supervisor.core.machine import step
from supervisor.core.state import Phase
from tests.core.test_machine import POLICY, died, ladder, names, record, rung, running


@pytest.mark.parametrize(
    ("code", "signal", "oom_kills", "cause"),
    [
        (None, 9, 1, "out-of-memory"),
        (None, 9, 3, "out-of-memory"),
        (137, None, 1, "out-of-memory"),  # a shell tells it so
        (None, 9, 0, "killed"),
        (None, 9, None, "killed"),
        (137, None, 0, "crashed"),
        (None, 15, 1, "killed"),
        (None, 11, 1, "crashed"),
        (None, 6, 1, "crashed"),
        (1, None, 1, "crashed"),
        (65, None, 1, "diverged"),
        (0, None, 1, "ended-early"),
    ],
)
def test_only_a_sigkill_while_an_oom_kill_was_counted_is_out_of_memory(
    code: int | None, signal: int | None, oom_kills: int | None, cause: str
) -> None:
    """Evidence alone says nothing of another death, and without evidence nobody is blamed."""
    _, commands = died(running(), rung(50), code=code, signal=signal, oom_kills=oom_kills)

    assert cause == record(commands, "trainer.exited")["cause"]


def test_want_of_memory_spends_the_budget_and_doubts_no_snapshot() -> None:
    """It will probably come again, so it backs off as any death; what the trainer was resumed from is not at fault."""
    state, commands = died(running(), rung(50), oom_kills=1)

    assert "out-of-memory" == record(commands, "restart.scheduled")["cause"]
    assert 1 == record(commands, "restart.scheduled")["without_progress"]
    assert (True, None) == (Budget() != state.memory.budget, state.memory.blame)
    assert "snapshot.suspected" not in names(commands)


@pytest.mark.parametrize(
    ("fault", "context", "cause"),
    [
        ("f1", Context(), "chaos"),
        ("f1", Context(asked_to_stop=True), "chaos"),
        (None, Context(stalled=True), "stalled"),
        (None, Context(ignored=True), "resume-ignored"),
        (None, Context(diverged=True), "diverged"),
        (None, Context(finished=True, ended_by_us=True), "completed"),
        (None, Context(asked_to_stop=True), "stopped"),
        (None, Context(finished=True), "out-of-memory"),
        (None, Context(said=65), "out-of-memory"),
    ],
)
def test_what_was_done_to_the_trainer_comes_before_what_the_kernel_counted(
    fault: str | None, context: Context, cause: str
) -> None:
    """An injected fault, and whatever this supervisor was ending it for, is the cause; a note of the trainer's is not."""
    assert cause == exit_cause(TrainerExited(1, None, 9, fault, oom_kills=1), context)


@pytest.mark.parametrize(
    ("oom_kills", "words"),
    [
        (1, "its memory group counted 1 OOM kill while it lived"),
        (2, "its memory group counted 2 OOM kills while it lived"),
        (0, "its memory group counted no OOM kill: a person or another program sent SIGKILL"),
        (None, "nobody counts OOM kills here: the kernel's OOM killer may have been it, or a person"),
    ],
)
def test_the_record_says_what_is_known_of_a_sigkill(oom_kills: int | None, words: str) -> None:
    """The count in words; without anybody who counts, that it may have been the OOM killer."""
    _, commands = died(running(), rung(50), oom_kills=oom_kills)

    assert words == record(commands, "trainer.exited")["evidence"]


@pytest.mark.parametrize(
    ("code", "signal", "cause"),
    [(1, None, "crashed"), (None, 11, "crashed"), (None, 15, "killed"), (None, 9, "stopped"), (None, 9, "chaos")],
)
def test_of_other_deaths_there_is_nothing_to_say(code: int | None, signal: int | None, cause: str) -> None:
    """What needs no guess has none in its record."""
    assert None is evidence(TrainerExited(1, code, signal), cause)
    assert None is evidence(TrainerExited(1, code, signal, oom_kills=0), "chaos")


def test_a_worker_that_memory_cost_its_life_accuses_no_snapshot() -> None:
    """A rank or a DataLoader worker was the kernel's victim, and its trainer failed of it: that is told, and nobody blamed."""
    death = TrainerExited(
        1, 1, None, last_lines=("RuntimeError: DataLoader worker is killed by signal: Killed.",), oom_kills=1
    )
    state = running()
    for _ in range(2):
        dead = replace(state, phase=Phase.SELECTING, death=death)
        after, commands = step(dead, ladder(rung(50), rung(40, None)), 9.0, POLICY)

        assert None is after.memory.blame
        said = record(commands, "trainer.exited")
        assert "crashed" == said["cause"]
        assert "1 OOM kill" in said["evidence"]

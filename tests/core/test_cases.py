"""Failures that people met in the field, where what must happen instead is a decision."""

from dataclasses import replace

import pytest

from supervisor.core import blame
from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.core.machine import step
from supervisor.core.memory import Memory
from supervisor.core.state import Life, Policy
from tests.core.test_machine import POLICY, ladder, names, one_of, record, rung, running

EARLIER = e.TrainerExited(1, 1, None, None, ("ValueError: lost",))


def died(*lines: str, code: int = 1) -> e.TrainerExited:
    return e.TrainerExited(1, code, None, None, lines)


def after_death(death: e.TrainerExited, policy: Policy = POLICY, **more: object) -> tuple[c.Command, ...]:
    """What is decided once a trainer that was resumed from step 50 is dead and the directory has been read."""
    state, _ = step(replace(running(), **more), death, 1.0, policy)
    state, _ = step(state, e.TreeSwept(1), 2.0, policy)
    return step(state, ladder(rung(50), rung(40)), 3.0, policy)[1]


def suspicious(death: e.TrainerExited = EARLIER) -> Memory:
    """One death has been remembered; another alike makes a suspect."""
    known = blame.after_crash(None, rung(50), 60, death)
    return Memory(high_water=50, reached=60, incarnation=1, blame=known)


def test_a_second_death_alike_accuses() -> None:
    """What follows tests nothing unless this is so."""
    assert "snapshot.suspected" in names(after_death(EARLIER, memory=suspicious()))


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 98] Address already in use",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: unable to open shared memory object </torch_1_2> in read-write mode: /dev/shm is full",
        "OSError: [Errno 116] Stale file handle: 'data.bin'",
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
        "OSError: [Errno 28] No space left on device",
        "OSError: [Errno 30] Read-only file system: 'step_120.bin.tmp'",
        "OSError: [Errno 107] Transport endpoint is not connected",
        "FileExistsError: [Errno 17] File exists: '/psm_5c1f0a9e'",
        "FileExistsError: [Errno 17] File exists: '/torch_123'",
        "[rank7]: FileExistsError: [Errno 17] File exists: '/000010_locals'",
    ],
)
def test_what_the_machine_lacks_accuses_no_snapshot(line: str) -> None:
    """However often a trainer dies of it, and wherever among its last lines it says so: the budget decides alone."""
    death = died(line, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 1")
    alike = suspicious(death)
    commands = after_death(death, memory=alike)

    assert "snapshot.suspected" not in names(commands)
    assert alike.blame == one_of(commands, c.SaveMemory).memory.blame
    said = record(commands, "trainer.exited")
    assert ("crashed", True) == (said["cause"], said["evidence"].endswith(": no snapshot is accused of that"))


@pytest.mark.parametrize("path", ["out", "/data", "/torch_cache/step_50", "runs/psm_1"])
def test_a_file_that_exists_already_is_no_lack(path: str) -> None:
    """Such a crash is the trainer's own, unless what exists has the name of leftover shared memory."""
    death = died(f"FileExistsError: [Errno 17] File exists: '{path}'")

    assert "snapshot.suspected" in names(after_death(death, memory=suspicious(death)))


def test_a_step_that_is_told_again_is_no_life_sign() -> None:
    """Once steps have moved: a trainer that stands still may go on printing where. A save before it was outlived all the same."""
    state = running(
        life=Life(resumed=rung(50), reported=60, moved=True, checked=True, signs=2, unsealed=("ckpt_60.pt",))
    )
    after, commands = step(state, e.StepReported(1, 60, 2.0), 100.0, POLICY)

    assert ["SealSnapshot"] == names(commands)
    assert (2, 0.0) == (after.life.signs, after.life.sign_at)
    assert ["Arm"] == [one for one in names(step(after, e.StepReported(1, 61, 2.0), 101.0, POLICY)[1]) if one == "Arm"]


def test_a_number_that_never_changes_is_a_life_sign_each_time() -> None:
    """It is no step, whatever the pattern takes it for, and says that the trainer goes on."""
    state = running(life=Life(resumed=rung(50), reported=60, checked=True, signs=2))
    after, commands = step(state, e.StepReported(1, 60, 2.0), 100.0, POLICY)

    assert "Arm" in names(commands)
    assert (3, 100.0) == (after.life.signs, after.life.sign_at)


def test_a_completion_with_a_traceback_is_doubted() -> None:
    """Only where nobody said which step is the last; elsewhere the steps decide."""
    lost = died("[rank0]: Traceback (most recent call last):", "[rank0]: ValueError: lost", code=0)
    said = next(
        one for one in after_death(lost, Policy()) if isinstance(one, c.Record) and one.event == "run.completed"
    )

    assert ("warning", True) == (said.level, "run.final_step" in said.fields["doubt"])
    assert record(after_death(died("done", code=0), Policy()), "run.completed")["doubt"] is None
    assert record(after_death(lost, Policy(final_step=50)), "run.completed")["doubt"] is None

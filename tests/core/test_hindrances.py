"""What stands in the way of a start is waited for, and what the machine did to a trainer costs the run nothing."""

import errno
import signal
from dataclasses import replace
from typing import Any

import pytest

from lastgood.keep import Keep
from lastgood.verdict import Kind
from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.core.machine import step
from supervisor.core.memory import Memory
from supervisor.core.state import Phase, State, Wait
from tests.core.test_machine import POLICY, at, ladder, names, one_of, record, rung, running

LOW = e.Hindrance(e.Obstacle.DISK, {"free_bytes": 1, "needed_bytes": 2})
LOST = e.Hindrance(e.Obstacle.GPU_LOST, {"gpus": ["GPU-1"], "reason": "NVML: GPU is lost"})
BUSY = e.Hindrance(e.Obstacle.GPU_BUSY, {"gpus": ["GPU-1"], "pids": [7]})
FULL = ("OSError: [Errno 28] No space left on device",)


def found(hindrance: e.Hindrance | None, *rungs: e.RungFact, held: bool = True) -> e.LadderJudged:
    return replace(ladder(*(rungs or (rung(50),)), held=held), hindrance=hindrance)


def looked(state: State, hindrance: e.Hindrance | None, now: float = 1.0) -> tuple[State, tuple[c.Command, ...]]:
    return step(replace(state, phase=Phase.SELECTING), found(hindrance), now, POLICY)


@pytest.mark.parametrize("hindrance", [LOW, LOST, BUSY], ids=lambda one: str(one.obstacle))
def test_a_start_waits_for_what_stands_in_its_way(hindrance: e.Hindrance) -> None:
    """Nothing is started, spent or moved; it is said once; and the start follows when the way is free, with how long it took."""
    before = at(Phase.SELECTING, memory=Memory(incarnation=1, high_water=50, reached=60))
    waiting, commands = looked(before, hindrance)
    assert (Phase.WAITING, before.memory.budget, 1) == (waiting.phase, waiting.memory.budget, waiting.incarnation)
    assert [str(hindrance.obstacle), "Arm"] == [one for one in names(commands) if one != "snapshot.verified"]
    assert dict(hindrance.fields) == record(commands, hindrance.obstacle)
    assert c.Arm(e.Deadline.RETRY, 1.0 + POLICY.retry_seconds) == one_of(commands, c.Arm)

    again, commands = step(waiting, e.DeadlinePassed(e.Deadline.RETRY, 1), 6.0, POLICY)
    assert ["JudgeLadder"] == names(commands)
    again, commands = looked(again, hindrance, 6.0)
    assert hindrance.obstacle not in names(commands)
    started, commands = looked(again, None, 11.5)
    over = "disk.freed" if hindrance is LOW else "gpu.back"
    assert {"seconds": 10.5} == record(commands, over)
    assert (Phase.STARTING, None) == (started.phase, started.wait)
    assert 2 == one_of(commands, c.SpawnTrainer).incarnation


def test_another_hindrance_is_another_record_of_the_same_wait() -> None:
    """A disk that fills while a GPU is away is said too, and the wait goes on counting from its beginning."""
    waiting, _ = looked(at(Phase.SELECTING), LOST, 1.0)
    waiting, commands = looked(waiting, LOW, 5.0)
    assert "disk.low" in names(commands)
    assert Wait(e.Obstacle.DISK, 1.0) == waiting.wait
    _, commands = looked(waiting, None, 9.0)
    assert {"seconds": 8.0} == record(commands, "disk.freed")


def test_a_start_without_any_snapshot_waits_too() -> None:
    """Also the first start of all."""
    fresh, commands = step(State(), replace(e.LadderJudged((), False), hindrance=LOW), 1.0, POLICY)
    assert Phase.WAITING == fresh.phase
    assert ["disk.low", "Arm"] == names(commands)


def test_what_is_bad_is_set_aside_before_the_wait_and_said_once() -> None:
    """A torn save may be what fills the disk, and only quarantine gives up anything; the start that follows says nothing more."""
    rungs = (rung(60, kind=Kind.CORRUPT), rung(50))
    waiting, commands = step(at(Phase.SELECTING), found(LOW, *rungs), 1.0, POLICY)
    assert 60 == one_of(commands, c.SetAside).rung.step
    assert 50 == record(commands, "fallback.chosen")["chosen_step"]
    assert ["disk.low", "Arm"] == names(commands)[-2:]
    assert [50] == [one.step for one in waiting.rungs]
    _, commands = step(replace(waiting, phase=Phase.SELECTING), found(None), 2.0, POLICY)
    assert not {"fallback.chosen", "SetAside"} & set(names(commands))
    assert 50 == one_of(commands, c.SpawnTrainer).snapshot.step


def test_what_cannot_be_moved_is_passed_over_with_one_record() -> None:
    """An incompatible snapshot stays where it is while a start waits, and the fallback is said once all the same."""
    rungs = (rung(60, kind=Kind.INCOMPATIBLE), rung(50))
    waiting, commands = step(at(Phase.SELECTING), found(LOW, *rungs), 1.0, POLICY)
    assert 50 == record(commands, "fallback.chosen")["chosen_step"]
    _, commands = step(replace(waiting, phase=Phase.SELECTING), found(None, *rungs), 2.0, POLICY)
    assert "fallback.chosen" not in names(commands)


def test_what_could_not_be_set_aside_is_not_tried_at_every_look() -> None:
    """A wait may take a weekend; it is tried once more as the start comes, and the fallback was said."""
    rungs = (rung(60, kind=Kind.CORRUPT), rung(50))
    waiting, _ = step(at(Phase.SELECTING), found(LOW, *rungs), 1.0, POLICY)
    again, commands = step(replace(waiting, phase=Phase.SELECTING), found(LOW, *rungs), 2.0, POLICY)
    assert "SetAside" not in names(commands)
    _, commands = step(replace(again, phase=Phase.SELECTING), found(None, *rungs), 3.0, POLICY)
    assert 60 == one_of(commands, c.SetAside).rung.step
    assert "fallback.chosen" not in names(commands)


def test_a_fresh_start_that_waited_says_what_was_given_up_for_it() -> None:
    """Bad snapshots leave before the wait; the record of the fresh start comes with the start and names them."""
    policy = replace(POLICY, allow_fresh_start=True)
    state = at(Phase.SELECTING, memory=Memory(incarnation=1, ever_proven=True))
    waiting, commands = step(state, found(LOW, rung(60, kind=Kind.CORRUPT)), 1.0, policy)
    assert 60 == one_of(commands, c.SetAside).rung.step
    assert "run.started_over" not in names(commands)
    again, _ = step(
        replace(waiting, phase=Phase.SELECTING), replace(e.LadderJudged((), True), hindrance=LOW), 1.5, policy
    )
    gone = replace(again, phase=Phase.SELECTING)
    _, commands = step(gone, e.LadderJudged((), True), 2.0, policy)
    assert ["ckpt_60.pt"] == [one["name"] for one in record(commands, "run.started_over")["rejected"]]
    assert one_of(commands, c.SpawnTrainer).snapshot is None


def test_what_ends_a_run_ends_it_whatever_stands_in_the_way() -> None:
    """A run that is done, has nothing good left, or was asked to stop or pause does not wait for a disk first."""
    done = at(Phase.SELECTING, memory=Memory(incarnation=1, done=100))
    assert Phase.COMPLETED == looked(done, LOW)[0].phase
    assert Phase.STOPPED == looked(at(Phase.SELECTING, stop_signal=15), LOW)[0].phase
    assert Phase.PAUSED == looked(at(Phase.SELECTING, pause=True), LOW)[0].phase
    gone = e.LadderJudged((), True, frozenset(), LOW)
    had = at(Phase.SELECTING, memory=Memory(incarnation=1, ever_proven=True))
    assert Phase.FAILED == step(had, gone, 1.0, POLICY)[0].phase


def test_a_stop_and_a_pause_work_at_once_while_a_start_waits() -> None:
    """Neither waits for the disk."""
    waiting, _ = looked(at(Phase.SELECTING), LOW)
    assert Phase.STOPPED == step(waiting, e.StopRequested(15), 2.0, POLICY)[0].phase
    paused, _ = step(waiting, e.PauseRequested(), 2.0, POLICY)
    assert Phase.PAUSED == paused.phase
    assert ["run.resumed", "JudgeLadder"] == names(step(paused, e.ResumeRequested(), 3.0, POLICY)[1])


def died(hindrance: e.Hindrance | None, state: State | None = None, **how: Any) -> tuple[State, str, list[c.Command]]:
    """What a death is put down to when the look after it finds that."""
    death = e.TrainerExited(1, **{"code": 1, "signal": None, **how})
    dead = replace(state or running(), phase=Phase.SELECTING, death=death)
    after, commands = step(dead, found(hindrance), 1.0, POLICY)
    return after, record(commands, "trainer.exited")["cause"], list(commands)


@pytest.mark.parametrize(
    ("cause", "hindrance", "how"),
    [
        ("out-of-disk", LOW, {"last_lines": FULL}),
        ("out-of-disk", LOW, {"last_lines": ("OSError: [Errno 122] Disk quota exceeded",)}),
        (
            "out-of-disk",
            LOW,
            {"last_lines": ("RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos",)},
        ),
        ("out-of-disk", LOW, {"code": 2, "last_lines": FULL}),
        ("out-of-disk", LOW, {"code": None, "signal": int(signal.SIGABRT), "last_lines": FULL}),
        ("crashed", None, {"last_lines": FULL}),
        ("crashed", LOW, {"last_lines": ("KeyError: 'x'",)}),
        ("crashed", BUSY, {"last_lines": FULL}),
        ("killed", LOW, {"code": None, "signal": 9, "last_lines": FULL}),
        ("gpu-fault", LOST, {"last_lines": ("CUDA error: unspecified launch failure",)}),
        ("gpu-fault", LOST, {"code": None, "signal": int(signal.SIGSEGV)}),
        ("crashed", None, {"last_lines": ("RuntimeError: CUDA error: uncorrectable ECC error encountered",)}),
        ("killed", LOST, {"code": None, "signal": 9}),
        ("chaos", LOW, {"fault": "f1", "last_lines": FULL}),
        ("ended-early", LOW, {"code": 0, "last_lines": FULL}),
    ],
)
def test_a_death_is_laid_to_the_machine_on_evidence_only(
    cause: str, hindrance: e.Hindrance | None, how: dict[str, Any]
) -> None:
    """Words of the trainer's are not enough, nor is a full disk or a lost GPU beside a kill from outside."""
    assert cause == died(hindrance, **how)[1]


def test_a_save_that_was_noted_to_fail_for_want_of_room_says_as_much_as_words() -> None:
    """With a disk that is full when it dies; a quota, which nobody else can see, is believed as the system's own number."""
    state = running()
    noted = replace(state, life=replace(state.life, no_room=errno.ENOSPC))
    assert "out-of-disk" == died(LOW, noted)[1]
    assert "crashed" == died(None, noted)[1]
    assert "out-of-disk" == died(None, replace(state, life=replace(state.life, no_room=errno.EDQUOT)))[1]


@pytest.mark.parametrize(("hindrance", "lines"), [(LOW, FULL), (LOST, ())])
def test_the_machines_faults_spend_nothing_and_are_given_more_time_each(
    hindrance: e.Hindrance, lines: tuple[str, ...]
) -> None:
    """However often they come the run is not given up; the delay doubles up to its largest, and progress makes it small again."""
    state, delays = running(), []
    state = replace(state, life=replace(state.life, progressed=False))
    for _ in range(12):
        after, _, commands = died(hindrance, state, last_lines=lines)
        assert (Phase.BACKOFF, ()) == (after.phase, after.memory.budget.fruitless)
        delays.append(record(tuple(commands), "restart.scheduled")["delay_seconds"])
        state = replace(after, life=state.life)
    assert [1.0, 2.0, 4.0] == delays[:3]
    assert 300.0 == delays[-1]
    after, _, commands = died(hindrance, replace(state, life=replace(state.life, progressed=True)), last_lines=lines)
    assert 1.0 == record(tuple(commands), "restart.scheduled")["delay_seconds"]


def test_retention_does_its_part_before_a_disk_is_waited_for() -> None:
    """A dead trainer filled the disk with snapshots that nobody had counted: what retention would give up goes first."""
    policy = replace(POLICY, keep=Keep(2))
    seen = ladder(rung(90), rung(80, None), rung(70), rung(60), rung(50))
    known = (rung(70), rung(60), rung(50))
    for found, gone in ((LOW, ["ckpt_50.pt", "ckpt_60.pt"]), (LOST, [])):
        state = at(Phase.SELECTING, rungs=known)
        state, commands = step(state, replace(seen, hindrance=found), 1.0, policy)

        assert Phase.WAITING is state.phase
        assert gone == [one.rung.name for one in commands if isinstance(one, c.PruneSnapshot)]

"""Storage that does not answer: what waits for it outlives SIGKILL, nothing is started beside it, and the run goes on after."""

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from supervisor.proc import stat_of
from tests.bench import Bench, until
from tests.crash import disks, held
from tests.crash.conftest import give_up

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(240)]  # what will not die is waited for as long as it deserves

FREEZE, THAW = 0xC0045877, 0xC0045878  # FIFREEZE and FITHAW

WRITER = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[3])
from small_trainer import save
folder, data = sys.argv[1:3]
resumed = os.environ.get("LASTGOOD_RESUME_FROM", "")
step = int(os.path.basename(resumed)[5:-3]) if resumed else 0
with open(os.path.join(folder, "starts.txt"), "a") as file:
    file.write(f"{step}\\n")
said, longest = time.monotonic(), 0.0

def touch(name):
    with open(os.path.join(data, name), "ab") as file:
        file.write(b"x")

if len(sys.argv) > 4 and os.fork() == 0:
    while True:
        touch("worker")
        time.sleep(0.01)
while step < FINAL:
    time.sleep(0.05)
    step += 1
    print("step", step, flush=True)
    said, took = time.monotonic(), time.monotonic() - said
    if took > longest:
        longest = took
        with open(os.path.join(folder, "longest.txt"), "w") as file:
            file.write(f"{longest}")
    if len(sys.argv) == 4:
        touch("leader")
    if step % 5 == 0:
        save(folder, step)
"""


def freeze(at: Path, how: int) -> None:
    """Freeze or thaw the filesystem that is mounted there."""
    descriptor = os.open(at, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(descriptor, how, 0)
    finally:
        os.close(descriptor)


@contextmanager
def thawed_afterwards(at: Path) -> Iterator[None]:
    """Whatever happens, the filesystem answers again."""
    try:
        yield
    finally:
        try:
            freeze(at, THAW)
        except OSError:
            pass  # it is not frozen


Switch = Callable[[bool], None]


@contextmanager
def frozen_ext4(folder: Path) -> Iterator[tuple[Path, Switch]]:
    """A filesystem, and what freezes and thaws it."""
    image = disks.make_image(folder / "image", "ext4")
    with (
        disks.loop_device(image) as device,
        disks.mounted(device, "ext4", folder / "disk") as at,
        thawed_afterwards(at),
    ):
        yield at, lambda still: freeze(at, FREEZE if still else THAW)


@contextmanager
def held_fuse(folder: Path) -> Iterator[tuple[Path, Switch]]:
    """A filesystem that a process serves, and what makes it answer no more, and again."""
    with held.served(folder) as (at, hold):
        yield at, lambda still: hold.touch() if still else hold.unlink()


@pytest.fixture
def disk(bench: Bench) -> Iterator[Path]:
    """An ext4 of its own, which answers again when the test is over."""
    if reason := disks.why_not("ext4"):
        give_up(reason)
    with frozen_ext4(bench.folder) as (at, _):
        yield at


def words(bench: Bench, data: Path, *more: str, final_step: int = 100, silence: float = 1.0) -> list[str]:
    """The words of `run` over a trainer that writes into `data` at each step, or has a child that does."""
    script = bench.folder / "writer.py"
    script.write_text(WRITER.replace("FINAL", str(final_step)))
    quick = (f"run.final_step={final_step}", f"stall.running_seconds={silence}")
    start = bench.command(sets=quick, resume="env")
    program = [sys.executable, str(script), str(bench.directory), str(data), str(Path(__file__).parents[1])]
    return [*start[: start.index("--") + 1], *program, *more]


def waits_for_the_disk(pid: int) -> bool:
    """Whether a process is in uninterruptible sleep."""
    stat = stat_of(pid)
    return stat is not None and stat.state == "D"


def test_a_trainer_that_its_data_disk_holds_is_waited_for(bench: Bench, disk: Path) -> None:
    """Its leader outlives SIGKILL: that is told by name, there is no second trainer, and after the thaw the run completes."""
    process = bench.start(*words(bench, disk))
    bench.wait_for("trainer.progressed")
    leader = bench.records("trainer.spawned")[0]["pid"]
    freeze(disk, FREEZE)
    with thawed_afterwards(disk):
        until(lambda: waits_for_the_disk(leader))
        os.kill(leader, signal.SIGKILL)
        assert [leader] == bench.wait_for("trainer.stuck", seconds=60)["pids"]
        time.sleep(6)  # as long as it takes to look again

        assert (True, 1) == (waits_for_the_disk(leader), len(bench.starts()))
        assert process.poll() is None
    assert 0 == process.wait(40)
    assert (2, 1) == (len(bench.starts()), len(bench.records("trainer.stuck")))
    assert int(bench.starts()[1]) > 0


def test_a_child_that_its_data_disk_holds_is_waited_for(bench: Bench, disk: Path) -> None:
    """The leader is dead, its child is not: it is named, nothing is started beside it, and after the thaw the run completes."""
    process = bench.start(*words(bench, disk, "worker"))
    bench.wait_for("trainer.progressed")
    leader = bench.records("trainer.spawned")[0]["pid"]
    freeze(disk, FREEZE)
    with thawed_afterwards(disk):
        [worker] = until(lambda: [pid for pid in children(leader) if waits_for_the_disk(pid)])
        os.kill(leader, signal.SIGKILL)
        assert [worker] == bench.wait_for("trainer.stuck", seconds=60)["pids"]
        time.sleep(6)  # as long as it takes to look again

        assert (True, 1) == (waits_for_the_disk(worker), len(bench.starts()))
    assert 0 == process.wait(60)
    assert (2, 1) == (len(bench.starts()), len(bench.records("trainer.stuck")))


def children(pid: int) -> list[int]:
    """The children of a process."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_whoever_asked_for_it_is_told_with_6(bench: Bench, disk: Path) -> None:
    """With `--exit-when-stuck` the supervisor ends, having started nothing; once the disk answers, the next one goes on."""
    line = words(bench, disk, "worker")
    process = bench.start(line[0], "--exit-when-stuck", *line[1:])
    bench.wait_for("trainer.progressed")
    leader = bench.records("trainer.spawned")[0]["pid"]
    freeze(disk, FREEZE)
    with thawed_afterwards(disk):
        until(lambda: [pid for pid in children(leader) if waits_for_the_disk(pid)])
        os.kill(leader, signal.SIGKILL)

        assert 6 == process.wait(60)
        assert (1, 1) == (len(bench.starts()), len(bench.records("trainer.stuck")))
        assert "cannot be ended" in bench.records("run.failed")[0]["reason"]
    assert 0 == bench.lastgood(*line).returncode
    assert 2 == len(bench.starts())


def test_a_start_on_storage_that_does_not_answer_says_so_and_waits(bench: Bench, disk: Path) -> None:
    """One line on standard error, and once the storage answers, the run as ever."""
    bench.directory = disk / "checkpoints"
    line = words(bench, bench.folder, final_step=10)
    freeze(disk, FREEZE)
    with thawed_afterwards(disk):
        process = bench.start(*line)
        log = bench.folder / "supervisor-0.log"
        said = until(log.read_text)
        time.sleep(1)

        expected = f"lastgood: {bench.directory}: the storage does not answer; waiting for it\n"
        assert (expected, expected, True) == (said, log.read_text(), waits_for_the_disk(process.pid))
    assert 0 == process.wait(40)


def has_saved(run: Bench, starts: int) -> bool:
    """Whether the trainer of this start has saved a snapshot."""
    begun = run.starts() if (run.directory / "starts.txt").exists() else []
    saved = [int(path.stem[5:]) for path in run.directory.glob("step_*.pt")]
    return len(begun) == starts and max(saved, default=0) > int(begun[-1])


def detected(run: Bench, began: float) -> tuple[float, float]:
    """How long after a moment in unix seconds the last silence was told, and how long it may take: five seconds, or five steps
    as the trainer counts them, which a busy machine makes long.
    """
    told = datetime.fromisoformat(run.records("trainer.stalled")[-1]["timestamp"]).timestamp()
    return told - began, max(5.0, 5 * float((run.directory / "longest.txt").read_text()))


RUNS, ROUNDS = 10, 5


@pytest.mark.parametrize(
    ("storage", "reason"),
    [(frozen_ext4, lambda: disks.why_not("ext4")), (held_fuse, held.why_not)],
    ids=["ext4", "FUSE"],
)
def test_fifty_times_storage_that_does_not_answer_is_waited_for(
    bench: Bench, storage: Callable[[Path], Any], reason: Callable[[], str | None]
) -> None:
    """Ten runs, five times each: silence is told in five seconds, who outlives SIGKILL too, and nothing starts beside."""
    if why := reason():
        give_up(why)
    with storage(bench.folder) as (data, stand_still):
        runs = [Bench(bench.folder / f"run{number}") for number in range(RUNS)]
        for run in runs:
            run.folder.mkdir()
            bench.started.append(run.start(*words(run, data, final_step=10**6)))
        took: list[tuple[float, float]] = []
        for count in range(1, ROUNDS + 1):
            leaders = [run.wait_for("trainer.spawned", count, 60)["pid"] for run in runs]
            for run in runs:
                until(partial(has_saved, run, count), 60)
            began = time.time()
            stand_still(True)
            told = [run.wait_for("trainer.stuck", count, 60)["pids"] for run in runs]
            alone = [len(run.starts()) for run in runs]
            took += [detected(run, began) for run in runs]
            stand_still(False)

            assert [[leader] for leader in leaders] == told
            assert [count] * RUNS == alone
        for run in runs:
            until(partial(has_saved, run, ROUNDS + 1), 60)
        for process in bench.started:
            process.terminate()
        assert [143] * RUNS == [process.wait(90) for process in bench.started]
    for run in runs:
        assert (ROUNDS, ROUNDS + 1) == (len(run.records("trainer.stalled")), len(run.starts()))
    assert [] == [one for one in took if one[0] > one[1]], sorted(took)


def spoken(bench: Bench) -> list[Any]:
    """The records on the first supervisor's output."""
    return [json.loads(line) for line in (bench.folder / "supervisor-0.log").read_text().splitlines()]


def test_a_checkpoint_directory_that_does_not_answer_holds_the_run_and_harms_nothing(bench: Bench, disk: Path) -> None:
    """The supervisor goes on and tells on its output that the trainer is stuck; one other follows, after the thaw."""
    bench.directory = disk / "checkpoints"
    bench.directory.mkdir()
    process = bench.start(*words(bench, bench.folder))
    bench.wait_for("trainer.progressed", 2)
    leader = bench.records("trainer.spawned")[0]["pid"]
    freeze(disk, FREEZE)
    with thawed_afterwards(disk):
        until(lambda: waits_for_the_disk(leader))
        os.kill(leader, signal.SIGKILL)
        said = until(lambda: [one for one in spoken(bench) if one["event"] == "trainer.stuck"], seconds=60)

        assert [leader] == said[0]["pids"]
        assert (True, None) == (waits_for_the_disk(leader), process.poll())
    assert 0 == process.wait(60)
    assert 2 == len(bench.starts())
    assert [] == bench.records("fallback.chosen")
    assert int(bench.starts()[1]) > 0

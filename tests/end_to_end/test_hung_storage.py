"""Storage that does not answer: what waits for it outlives SIGKILL, nothing is started beside it, and the run goes on after."""

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from supervisor.proc import stat_of
from tests.bench import Bench, until
from tests.crash import disks
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

def touch(name):
    with open(os.path.join(data, name), "ab") as file:
        file.write(b"x")

if len(sys.argv) > 4 and os.fork() == 0:
    while True:
        touch("worker")
        time.sleep(0.01)
while step < 100:
    time.sleep(0.05)
    step += 1
    print("step", step, flush=True)
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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 of its own, which answers again when the test is over."""
    if reason := disks.why_not("ext4"):
        give_up(reason)
    image = disks.make_image(tmp_path / "image", "ext4")
    with (
        disks.loop_device(image) as device,
        disks.mounted(device, "ext4", tmp_path / "disk") as at,
        thawed_afterwards(at),
    ):
        yield at


def words(bench: Bench, data: Path, *more: str) -> list[str]:
    """The words of `run` over a trainer that writes into `data` at each step, or has a child that does."""
    script = bench.folder / "writer.py"
    script.write_text(WRITER)
    quick = ("run.final_step=100", "stall.running_seconds=1")
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

"""Trainers, logs, clocks and terminals that misbehave: the run goes on, and completes."""

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from tests.bench import Bench, until
from tests.crash import disks
from tests.crash.conftest import give_up

LOUD = """
import sys, time
for step in range(1, 11):
    print("step", step, flush=True)
    time.sleep(0.05)
    if step == 5:
        for _ in range(1024):
            sys.stdout.write("x" * (1 << 20))
        print(flush=True)
time.sleep(30)
"""


def scripted(bench: Bench, text: str, *sets: str, resume: str = "env") -> list[str]:
    """The words of `run` over a script of these lines."""
    script = bench.folder / "script.py"
    script.write_text(text)
    words = bench.command(sets=sets, resume=resume)
    return [*words[: words.index("--") + 1], sys.executable, str(script)]


def peak(pid: int) -> int:
    """The most memory that a process ever had, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


@pytest.mark.heavy
def test_a_gigabyte_without_a_line_end_takes_no_memory(bench: Bench) -> None:
    """It is read as fast as it comes, the step after it is told, and the supervisor is no larger than before."""
    process = bench.start(*scripted(bench, LOUD))
    bench.wait_for("trainer.spawned")
    until(lambda: (bench.directory / ".lastgood" / "trainer.log").exists())
    before = peak(process.pid)
    until(lambda: "step 10" in (bench.directory / ".lastgood" / "trainer.log").read_text()[-20_000:], 60)

    assert 8 << 20 > peak(process.pid) - before
    assert ((bench.directory / ".lastgood" / "trainer.log").stat().st_size) < 1 << 20
    assert process.poll() is None


@contextmanager
def frozen_folder(folder: Path) -> Iterator[None]:
    """Let nothing be made, changed or removed below a folder, not even by root."""
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_state_folder_that_turns_read_only_costs_no_step(bench: Bench) -> None:
    """Neither log nor state can be written any more; a trainer that is killed then goes on from its newest snapshot."""
    if reason := disks.why_not():
        give_up(reason)
    process = bench.start(*bench.command("--steps=30", "--habit=die:22", "--pause=0.05", sets=("run.final_step=30",)))
    bench.wait_for("trainer.progressed")
    with frozen_folder(bench.directory / ".lastgood"):
        assert 0 == process.wait(40)
        assert ["0", "20"] == bench.starts()


FILLING = """
import os, time
resumed = os.environ.get("LASTGOOD_RESUME_FROM")
with open("starts.txt", "a") as file:
    file.write(f"{resumed}\\n")
for step in range(1, 9):
    print("step", step, flush=True)
    time.sleep(0.1)
    if step == 2:
        with open("checkpoints/.lastgood/filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError as error:
                open("full.txt", "w").write(str(error.errno))
    print(("y" * 79 + "\\n") * 10_000)
"""


def test_a_full_log_costs_lines_and_no_run(bench: Bench) -> None:
    """The filesystem below log and state is full to the last byte: output is still read, and the run completes."""
    if reason := disks.why_not():
        give_up(reason)
    state = bench.directory / ".lastgood"
    state.mkdir(parents=True)
    with disks.mounted("small", "tmpfs", state, "size=256k"):
        done = bench.lastgood(*scripted(bench, FILLING))

        assert 0 == done.returncode, done.stdout + done.stderr
        assert ("None\n", "28") == tuple((bench.folder / name).read_text() for name in ("starts.txt", "full.txt"))
        assert "run.completed" in done.stdout
        assert (state / "trainer.log").stat().st_size < 256 << 10


def test_a_terminal_that_is_closed_does_not_end_the_run(bench: Bench) -> None:
    """Its window is gone, with SIGHUP and errors at every write: the run completes, and its records are in the file."""
    master, slave = pty.openpty()
    words = [sys.executable, "-m", "supervisor", *bench.command("--steps=40", sets=("run.final_step=40",))]
    process = subprocess.Popen(words, cwd=bench.folder, preexec_fn=lambda: os.login_tty(slave))
    bench.started.append(process)
    os.close(slave)
    bench.wait_for("trainer.progressed")
    os.close(master)

    assert 0 == process.wait(30)
    assert ["0"] == bench.starts()
    assert 1 == len(bench.records("run.completed"))


CLOCK = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern "C" int clock_gettime(clockid_t which, struct timespec *now) noexcept {
    long result = syscall(SYS_clock_gettime, which, now);
    if (result == 0 && which == CLOCK_REALTIME) {
        char text[32] = {0};
        int file = open(getenv("CLOCK_FILE"), O_RDONLY | O_CLOEXEC);
        if (file >= 0 && read(file, text, sizeof text - 1) > 0) now->tv_sec += atol(text);
        if (file >= 0) close(file);
    }
    return (int)result;
}
"""
"""Python asks nobody else for the time of day. (libfaketime 0.9.10 breaks the sleep of Python 3.11.)"""


@pytest.fixture(scope="session")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What makes the wall clock, and only that, one which a file moves."""
    if shutil.which("g++") is None:
        give_up("g++ is not installed")
    made = tmp_path_factory.mktemp("clock") / "clock.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-o", str(made), "-"], input=CLOCK, text=True, check=True)
    return made


def jump(bench: Bench, preloaded: Path, seconds: int) -> float:
    """A run over which the wall clock jumps, and whose trainer is killed after that; returns by how much it seemed to."""
    offset = bench.folder / "clock"
    offset.write_text("0")
    sets = ("run.final_step=40", "stall.running_seconds=2", "stall.startup_seconds=20")
    words = bench.command("--steps=40", "--habit=die:32", "--pause=0.05", sets=sets)
    process = bench.start(*words, env={**os.environ, "LD_PRELOAD": str(preloaded), "CLOCK_FILE": str(offset)})
    earlier = bench.wait_for("trainer.progressed")
    offset.write_text(str(seconds))

    assert 0 == process.wait(40)
    assert ["0", "30"] == bench.starts()
    assert [] == bench.records("trainer.stalled") + bench.records("fallback.chosen")
    times = [datetime.fromisoformat(one["timestamp"]) for one in (earlier, bench.records("run.completed")[0])]
    return (times[1] - times[0]).total_seconds()


def test_a_clock_set_back_an_hour_changes_nothing(bench: Bench, preloaded: Path) -> None:
    """No deadline comes early or never, and the newest snapshot is the one with the highest step."""
    assert -3600 < jump(bench, preloaded, -3600) < -3560


@pytest.mark.heavy
@pytest.mark.parametrize(
    "seconds", [sign * size for sign in (1, -1) for size in (86_400, 86_399, 3600, 7200, 31_622_400)]
)
def test_a_clock_that_jumps_changes_nothing(bench: Bench, preloaded: Path, seconds: int) -> None:
    """Forwards and back: by a day, by an hour as between summer and winter, by a year as after an empty battery."""
    assert seconds < jump(bench, preloaded, seconds) < seconds + 40


LOADING = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 1_000_000
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.tensor(float(index))

def main():
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    how = sys.argv[1]
    torch.set_num_threads(1)
    batches = iter(DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context=how))
    for step in range(1, 1_000_000):
        total = next(batches).sum().item()
        print("step", step, flush=True)
        if stopped:
            for _ in range(5):  # a save that still reads: the workers must be there
                total += next(batches).sum().item()
            torch.save({"step": step, "total": total}, "saved.tmp")
            os.replace("saved.tmp", "saved.pt")
            sys.exit(143)

if __name__ == "__main__":
    main()
"""


@pytest.mark.heavy  # torch is imported thirty times
@pytest.mark.timeout(400)
@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_trainer_with_workers_that_load_data_saves_when_it_is_stopped(bench: Bench, how: str) -> None:
    """Ten stops of ten: the workers are not asked, serve the save to its end, and are gone afterwards."""
    words = scripted(bench, LOADING, resume="never")
    for number in range(1, 11):
        process = bench.start(*words, how)
        bench.wait_for("trainer.spawned", number, seconds=60)
        log = bench.directory / ".lastgood" / "trainer.log"
        size = log.stat().st_size if log.exists() else 0
        until(lambda: log.exists() and b"step 3\n" in log.read_bytes()[size:], 60)  # noqa: B023 - used at once
        process.terminate()

        assert 143 == process.wait(60)
        saved = bench.folder / "saved.pt"
        assert saved.exists(), number
        saved.unlink()
    assert ["stopped"] * 10 == [one["cause"] for one in bench.records("trainer.exited")]
    assert [143] * 10 == [one["code"] for one in bench.records("trainer.exited")]

"""Whom the next trainer must not meet, and whom nobody may harm: what a dead one left, and strangers who have its number now.

Inside a PID namespace of its own, where the next number can be chosen, this file is run as a program.
"""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest

import supervisor.runtime  # noqa: F401 - what this is about, loaded so that it is known whose it is
from supervisor.proc import Identity, identity_of, is_alive, send_signal
from tests.bench import ROOT, Bench, marked, until
from tests.crash.conftest import give_up
from tests.end_to_end.test_misbehaving import scripted

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]

TRIALS, AT_ONCE = 50, 25
LAST_NUMBER = Path("/proc/sys/kernel/ns_last_pid")
TICK_SECONDS = 0.02  # two of the ticks in which the kernel tells when a process began
DOUBT_SECONDS = 2.5  # by which a stranger is younger than what was left half-written under its number


LEAVING = """
import os, sys, time
sys.path.insert(0, FOLDER)
from small_trainer import fork_sleepers, save
folder, resumed = os.environ["LASTGOOD_CHECKPOINT_DIR"], os.environ.get("LASTGOOD_RESUME_FROM", "")
step = int(os.path.basename(resumed)[5:-3]) if resumed else 0
mine = f"LASTGOOD_CHECKPOINT_DIR={folder}".encode()
def environment(pid):
    try:
        return open(f"/proc/{pid}/environ", "rb").read().split(b"\\0")
    except OSError:
        return []
others = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid() and mine in environment(pid)]
with open("others.txt", "a") as file:
    file.write(f"{len(others)}\\n")
print("step", step + 1, flush=True)
save(folder, step + 1)
if step + 1 < 51:
    fork_sleepers(detached=True)
    os._exit(9)
"""


def test_fifty_times_nothing_that_a_dead_trainer_left_sees_the_next_one(bench: Bench) -> None:
    """Grandchildren in sessions of their own, left at each of fifty deaths: every start finds itself alone."""
    text = LEAVING.replace("FOLDER", repr(str(Path(__file__).parents[1])))
    assert 0 == bench.lastgood(*scripted(bench, text, "run.final_step=51"), timeout=110).returncode

    assert ["0"] * 51 == (bench.folder / "others.txt").read_text().split()
    assert 50 == len([one for one in bench.records("trainer.exited") if one["cause"] == "crashed"])
    assert [] == marked(bench.folder)


def alone(what: str, folder: Path) -> str:
    """What this file says as a program that is the first process of a namespace; whatever it started dies with it."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        give_up("a namespace of process ids needs root, and unshare")
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-m", __name__]
    done = subprocess.run(
        [*words, what, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=380, check=False
    )
    assert 0 == done.returncode, done.stderr[-3000:]
    return done.stdout


def test_fifty_times_a_signal_for_a_dead_process_does_not_reach_who_has_its_number(tmp_path: Path) -> None:
    """Neither through a descriptor of the process nor, without one, by its number; its own signal does reach it."""
    assert f"{TRIALS}\n" == alone("signals", tmp_path)


def test_fifty_times_a_supervisor_leaves_who_has_its_dead_trainers_number(tmp_path: Path) -> None:
    """Strangers with the numbers of a killed supervisor and its trainer live on; the run completes, and what was left goes."""
    assert f"{TRIALS}\n" == alone("supervisors", tmp_path)


def stranger_of(number: int) -> "subprocess.Popen[bytes]":
    """A process that has just this number, and leads a session of that number as a trainer does."""
    LAST_NUMBER.write_text(str(number - 1))
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    assert number == stranger.pid
    return stranger


def known(process: "subprocess.Popen[bytes]") -> Identity:
    """Which process this is."""
    identity = identity_of(process.pid)
    assert identity is not None
    return identity


def ends_by(stranger: "subprocess.Popen[bytes]") -> None:
    """It lives until now, and can be ended by who means it."""
    assert None is stranger.poll()
    assert send_signal(known(stranger), signal.SIGKILL)
    assert -signal.SIGKILL == stranger.wait(10)


def signals(_folder: Path) -> int:
    """SIGKILL for a process that has ended, again and again; every other time there is no descriptor to be had."""
    for count in range(TRIALS):
        with subprocess.Popen(["sleep", "600"]) as process:
            dead = known(process)
            process.kill()
        time.sleep(TICK_SECONDS)
        stranger = stranger_of(dead.pid)
        lacking = patch.object(os, "pidfd_open", side_effect=OSError(errno.EMFILE, "none left"))
        with lacking if count % 2 else nullcontext():
            assert (False, False) == (is_alive(dead), send_signal(dead, signal.SIGKILL))
            time.sleep(TICK_SECONDS)  # as long as it takes to die
            ends_by(stranger)
    return TRIALS


def begun(folder: Path) -> tuple[Bench, list[str]]:
    """A supervisor whose trainer stands still behind its first snapshot, the first time."""
    bench = Bench(folder)
    folder.mkdir()
    words = bench.command("--steps=10", "--habit=hang:7", sets=("run.final_step=10",))
    bench.start(*words)
    return bench, words


def killed(bench: Bench) -> tuple[int, int]:
    """The numbers of supervisor and trainer, once both are dead, a file half-written by the trainer being left."""
    trainer = int(bench.wait_for("trainer.spawned", seconds=60)["pid"])
    until(lambda: bench.records("snapshot.verified"), 60)
    bench.started[0].kill()
    bench.started[0].wait()
    assert trainer == os.waitpid(trainer, 0)[0]  # an orphan, which is the first process's
    (bench.directory / f".step_9.pt.partial-{trainer}-0123abcd").touch()
    return bench.started[0].pid, trainer


def supervisors(folder: Path) -> int:
    """Runs whose supervisor and trainer were killed, and whose numbers others have when the next supervisor comes."""
    for group in range(0, TRIALS, AT_ONCE):
        runs = [begun(folder / f"run{number}") for number in range(group, group + AT_ONCE)]
        numbers = [number for bench, _ in runs for number in killed(bench)]
        time.sleep(DOUBT_SECONDS)
        strangers = [stranger_of(number) for number in numbers]
        for bench, words in runs:
            bench.start(*words)
        for bench, _ in runs:
            assert 0 == bench.started[1].wait(90), (bench.folder / "supervisor-1.log").read_text()[-2000:]
            assert (["0", "5"], 10) == (bench.starts(), bench.records("run.completed")[0]["step"])
            assert [] == [path.name for path in bench.directory.glob(".*.partial-*")]
        for stranger in strangers:
            ends_by(stranger)
    return TRIALS


if __name__ == "__main__":
    print({"signals": signals, "supervisors": supervisors}[sys.argv[1]](Path(sys.argv[2])))

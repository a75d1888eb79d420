"""What a supervisor carries with it for days."""

import json
import os
import signal
import subprocess
import sys

from tests.bench import Bench

HEAVY = {
    "torch",
    "numpy",
    "rich",
    "apprise",
    "asyncio",
    "multiprocessing",
    "ssl",
    "sqlite3",
    "unittest",
    "pynvml",
    "xml",
}
"""What the trainer, the commands for people, the extras and notifications need, each in a process of its own."""


def test_a_supervisor_imports_nothing_that_it_does_not_need(bench: Bench) -> None:
    """From its start to the end of its run, by Python's own account."""
    words = ["run", "--checkpoints", str(bench.directory), "--resume", "never", "--", "true"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "supervisor", *words], capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}

    assert 0 == done.returncode, done.stderr
    assert {"supervisor", "pydantic", "watchdog"} <= imported
    assert set() == HEAVY & imported


TELLING = """
import os, sys
from supervisor.cli.app import main
real = os.fsync

def fsync(descriptor):
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    os.write(1, f"fsync {os.path.basename(path)}\\n".encode())
    real(descriptor)

os.fsync = fsync
main()
"""
"""`lastgood` that tells of each wait for the disk, in order with its records."""


def test_a_restart_waits_for_the_disk_for_its_memory_alone(bench: Bench) -> None:
    """That a trainer died, beside the sweep, and that another starts: both must be known after a power cut, and nothing else."""
    script, log = bench.folder / "telling.py", bench.folder / "log"
    script.write_text(TELLING)
    words = [sys.executable, str(script), *bench.command("--steps=9000", "--pause=0.05", sets=("log.format=json",))]
    with log.open("wb") as file, subprocess.Popen(words, stdout=file, cwd=bench.folder) as process:
        try:
            bench.wait_for("trainer.progressed")
            os.kill(bench.wait_for("trainer.spawned")["pid"], signal.SIGKILL)
            bench.wait_for("trainer.spawned", 2)
        finally:
            process.terminate()
    lines = log.read_text().splitlines()
    events = [line if line.startswith("fsync ") else json.loads(line)["event"] for line in lines]
    death = events.index("trainer.exited")
    between = events[death : events.index("trainer.spawned", death)]
    waits = [one.split()[1].partition("-")[0] for one in between if one.startswith("fsync ")]

    # A seal of the last snapshot may be on its way in a thread of its own, for which nothing waits.
    assert [".run.json.partial", ".lastgood"] * 2 == [one for one in waits if not one.startswith(".step_")]

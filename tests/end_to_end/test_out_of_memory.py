"""What a trainer died of, on the real system, the kernel's OOM killer among all else; and what hides in its group."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.bench import TRAINER, Bench, until
from tests.cgroups import entering, limited, pids_below, unified

DYING = Path(__file__).parents[1] / "dying_trainer.py"
NAMED = {
    "out-of-memory": "out-of-memory",
    "chaos": "chaos",
    "killed": "killed",
    "segfault": "crashed",
    "abort": "crashed",
    "exception": "crashed",
    "nan": "diverged",
}
MEGABYTES = 192  # for a supervisor, and a trainer until it takes too much
QUICK = (
    "checkpoints.settle_seconds=0.05",
    "checkpoints.rescan_seconds=0.5",
    "checkpoints.pattern=step_(?P<step>[0-9]+)[.]pt",
    "restarts.backoff_seconds=[0.01,0.02]",
)


def words(bench: Bench, *command: str) -> list[str]:
    """The words of `run` over some trainer."""
    sets = [word for one in QUICK for word in ("--set", one)]
    return ["run", "--checkpoints", str(bench.directory), "--resume", "--from={snapshot}", *sets, "--", *command]


def exits(bench: Bench, deaths: list[str], seconds: float) -> list[dict[str, Any]]:
    """The records of all deaths of a run whose trainer dies as a list says, in a memory group of its own."""
    trainer = [sys.executable, str(DYING), str(bench.directory), ",".join(deaths)]
    with ExitStack() as stack:
        memory = stack.enter_context(limited("memory", MEGABYTES))
        base = stack.enter_context(unified("run", below=memory))
        done = bench.lastgood(*words(bench, *trainer), preexec_fn=entering(memory, base), timeout=seconds)
        left = [path.name for path in base.iterdir() if path.is_dir()]
    assert (0, []) == (done.returncode, left), done.stderr
    return bench.records("trainer.exited")


def test_each_death_is_named_and_only_the_oom_killers_is_out_of_memory(bench: Bench) -> None:
    """Seven deaths, two by the same signal, one with evidence; the record says what speaks for it."""
    deaths = list(NAMED)
    found = exits(bench, deaths, seconds=90)

    assert [NAMED[death] for death in deaths] + ["completed"] == [one["cause"] for one in found]
    assert "its memory group counted 1 OOM kill while it lived" == found[deaths.index("out-of-memory")]["evidence"]
    assert "counted no OOM kill" in found[deaths.index("killed")]["evidence"]
    assert 9 == found[deaths.index("out-of-memory")]["signal"] == found[deaths.index("killed")]["signal"]


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_thirty_deaths_of_each_kind_are_named(bench: Bench) -> None:
    """In an order drawn by a seed, in one run: not one is put down to another cause."""
    deaths = list(NAMED) * 30
    random.Random(11).shuffle(deaths)
    found = exits(bench, deaths, seconds=280)
    wrong = Counter(
        (death, one["cause"]) for death, one in zip(deaths, found, strict=False) if NAMED[death] != one["cause"]
    )

    assert {} == wrong
    assert [NAMED[death] for death in deaths] + ["completed"] == [one["cause"] for one in found]


HIDDEN = "import os, time; os.setsid(); time.sleep(300)"


def start(bench: Bench, base: Path, *command: str) -> "subprocess.Popen[bytes]":
    """Start a supervisor in a group that is delegated to it."""
    log = (bench.folder / f"supervisor-{len(bench.started)}.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "supervisor", *words(bench, *command)],
        cwd=bench.folder, stdout=log, stderr=log, preexec_fn=entering(base),
    )  # fmt: skip
    log.close()
    bench.started.append(process)
    return process


def test_what_hid_from_a_killed_supervisor_is_ended_through_its_group(bench: Bench) -> None:
    """Twice forked, its own session, nothing in its environment, leader and supervisor dead: the next supervisor finds it."""
    small = [sys.executable, str(TRAINER), str(bench.directory), "--steps=20", "--pause=0.05"]
    script = f"(env -i {sys.executable} -c '{HIDDEN}' &) & exec {' '.join(small)} $0"
    with unified("hiding") as base:
        first = start(bench, base, "sh", "-c", script)
        bench.wait_for("snapshot.verified")
        trainer = bench.records("trainer.spawned")[0]["pid"]
        hidden = until(lambda: [pid for pid in pids_below(base) if hides(pid)])
        first.kill()
        first.wait()
        until(lambda: trainer not in pids_below(base))
        assert hidden == pids_below(base)

        assert 0 == start(bench, base, *small).wait(60)
        assert [hidden] == [one["pids"] for one in bench.records("trainer.leftover_ended")]
        assert [] == pids_below(base)
        assert [] == [path.name for path in base.iterdir() if path.is_dir()]


def hides(pid: int) -> bool:
    """Whether a process is the hidden one, and has done all that it does for it."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        return arguments[1:3] == [b"-c", HIDDEN.encode()] and environment == b"" and os.getsid(pid) == pid
    except OSError:
        return False


def test_a_trainer_that_stops_on_request_leaves_no_group_behind(bench: Bench) -> None:
    """The trainer lives in a group of its own beside the supervisor's; both are gone when it was stopped."""
    with unified("stopping") as base:
        process = start(
            bench, base, sys.executable, str(TRAINER), str(bench.directory), "--steps=2000", "--habit=final"
        )
        pid = bench.wait_for("trainer.spawned")["pid"]
        bench.wait_for("snapshot.verified")
        groups = {path.name.rpartition("-")[0]: pids_below(path) for path in base.iterdir() if path.is_dir()}
        process.send_signal(signal.SIGTERM)
        status = process.wait(30)
        left = [path.name for path in base.iterdir() if path.is_dir()]

    assert {"lastgood-supervisor": [process.pid], "lastgood-trainer": [pid]} == groups
    assert (143, []) == (status, left)

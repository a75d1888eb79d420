"""A trainer that was started in advance takes over from one that died, and is no trainer until then."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.proc import stat_of
from tests.bench import TRAINER, Bench, marked, until

SETS = ("trainer.standby=on", "run.final_step=60")


def words(bench: Bench, *more: str, sets: tuple[str, ...] = SETS) -> list[str]:
    """The words of `run` over the small trainer; without site-packages there is nothing that takes long to import."""
    start = bench.command(sets=sets)
    flags = [sys.executable, "-S", str(TRAINER), str(bench.directory)]
    return [*start[: start.index("--") + 1], *flags, "--steps=60", "--pause=0.1", *more]


def waiting(bench: Bench) -> dict[str, Any] | None:
    """What status.json says of one that is ready."""
    try:
        found: dict[str, Any] | None = bench.state("status.json").get("standby")
    except OSError:
        return None
    return found if found is not None and found["ready"] else None


def test_a_trainer_that_dies_is_followed_by_the_one_that_waited(bench: Bench) -> None:
    """The same process, from the newest snapshot, and not before the first had progressed; a third waits then."""
    process = bench.start(*words(bench))
    first = until(lambda: waiting(bench))
    assert [] != bench.records("trainer.progressed")
    leader = bench.wait_for("trainer.spawned")
    assert (False, 300_000) == (leader["standby"], min(first["memory_bytes"], 300_000))
    os.kill(leader["pid"], signal.SIGKILL)
    second = bench.wait_for("trainer.spawned", 2)
    third = until(lambda: (found := waiting(bench)) and found["pid"] != first["pid"] and found)

    assert (True, first["pid"]) == (second["standby"], second["pid"])
    assert int(bench.starts()[1]) == second["step"] > 0
    assert 0 == process.wait(40)
    assert (2, None) == (len(bench.starts()), stat_of(third["pid"]))
    assert "killed" == bench.records("trainer.exited")[0]["cause"]
    assert ([], []) == (marked(bench.directory), bench.records("trainer.leftover_ended"))


@pytest.mark.parametrize("who", [signal.SIGTERM, signal.SIGKILL])
def test_one_that_waits_ends_with_its_supervisor(bench: Bench, who: signal.Signals) -> None:
    """Asked to stop or killed: nothing waits for a supervisor that is gone."""
    process = bench.start(*words(bench))
    found = until(lambda: waiting(bench))
    process.send_signal(who)

    assert (143 if who is signal.SIGTERM else -9) == process.wait(20)
    until(lambda: stat_of(found["pid"]) is None)
    until(lambda: not marked(bench.directory))


def test_a_pause_frees_its_memory_too(bench: Bench) -> None:
    """Whoever paused the run wants what it takes."""
    process = bench.start(*words(bench))
    found = until(lambda: waiting(bench))
    assert 0 == bench.lastgood("pause", str(bench.directory)).returncode
    until(lambda: stat_of(found["pid"]) is None)
    assert 0 == bench.lastgood("resume", str(bench.directory)).returncode

    assert 0 == process.wait(40)
    assert [False, False] == [one["standby"] for one in bench.records("trainer.spawned")]


def test_a_stalled_trainer_is_followed_by_it(bench: Bench) -> None:
    """The whole tree is killed, and the one that waits is not of it."""
    process = bench.start(*words(bench, "--habit=hang:30", "--habit=detach", sets=(*SETS, "stall.running_seconds=1")))

    assert 0 == process.wait(40)
    assert [False, True] == [one["standby"] for one in bench.records("trainer.spawned")]
    assert "stalled" == bench.records("trainer.exited")[0]["cause"]


def test_who_did_not_ask_for_one_has_none(bench: Bench) -> None:
    """A command that is not the bundled trainer's might notice."""
    assert 0 == bench.run("--steps=20", "--habit=die:12", sets=("run.final_step=20",))

    assert [False, False] == [one["standby"] for one in bench.records("trainer.spawned")]
    assert None is bench.state("status.json")["standby"]


@pytest.mark.heavy
def test_the_bundled_trainer_has_one(bench: Bench, tmp_path: Path) -> None:
    """Unasked; with torch imported, and no thread of it at work, it holds some hundred megabytes."""
    root = Path(__file__).parents[2]
    config = root / "config" / "demo.yaml"
    start = [*("run", str(config), "--set", f"checkpoints.dir={bench.directory}", "--set", f"trainer.cwd={root}")]
    process = bench.start(*start)
    found = until(lambda: waiting(bench), 60)
    os.kill(bench.wait_for("trainer.spawned")["pid"], signal.SIGKILL)

    assert (True, found["pid"]) == tuple(bench.wait_for("trainer.spawned", 2)[key] for key in ("standby", "pid"))
    process.terminate()
    assert 143 == process.wait(60)

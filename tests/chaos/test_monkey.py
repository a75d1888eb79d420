"""Kills now and then on a real run: when, whom, and that the run bears it."""

import os
import signal
import statistics
from pathlib import Path
from typing import Any

import pytest

from supervisor.chaos.monkey import due, victim
from supervisor.proc import Identity, is_alive, send_signal, snapshot
from tests.bench import Bench, until

KINDS = ["kill", "kill-tree"]


def test_the_same_seed_kills_at_the_same_times_in_the_same_ways() -> None:
    """Whatever the machine: the kill of a number is due after so many seconds, on average as many as were asked for."""
    drawn = [due(7, number, 60.0, KINDS) for number in range(2000)]

    assert drawn == [due(7, number, 60.0, KINDS) for number in range(2000)]
    assert drawn != [due(8, number, 60.0, KINDS) for number in range(2000)]
    assert 60.0 == pytest.approx(statistics.mean(seconds for seconds, _ in drawn), rel=0.1)
    assert set(KINDS) == {kind for _, kind in drawn}


def status(**more: Any) -> dict[str, Any]:
    """What a supervisor tells of a run that may be killed."""
    good = [{"name": f"ckpt_{n}.pt", "step": n, "verdict": "healthy"} for n in (30, 20)]
    return {
        "phase": "running", "trainer_pid": 7, "trainer_start_ticks": 70,
        "snapshots": good, "last_good": {"name": "ckpt_30.pt", "step": 30}, **more,
    }  # fmt: skip


ONE = [
    {"name": "ckpt_30.pt", "step": 30, "verdict": "healthy"},
    {"name": "ckpt_20.pt", "step": 20, "verdict": "corrupt"},
]


@pytest.mark.parametrize(
    ("told", "before", "may_be"),
    [
        (status(), None, True),
        (status(), 20, True),
        (status(), 30, False),
        (status(phase="starting"), None, False),
        (status(trainer_pid=None), None, False),
        (status(snapshots=ONE), None, False),
        (status(last_good=None), None, False),
        (None, None, False),
        ({"phase": "running", "trainer_pid": 7}, None, False),
    ],
    ids=[
        "trains",
        "saved since",
        "nothing saved",
        "starting",
        "dead",
        "one proven",
        "none",
        "no status",
        "half of one",
    ],
)
def test_a_run_is_killed_only_when_it_can_bear_it(told: Any, before: int | None, may_be: bool) -> None:
    """It trains, two snapshots are proven, and one is newer than at the last kill."""
    assert (Identity(7, 70) if may_be else None) == victim(told, before, None)


def test_none_is_killed_twice() -> None:
    """It is dying, whatever a status says that was written before."""
    assert None is victim(status(), None, Identity(7, 70))
    assert Identity(7, 70) == victim(status(), None, Identity(7, 69))


def sets(mean_seconds: float) -> tuple[str, ...]:
    """The settings for that."""
    return (f"chaos.mean_seconds={mean_seconds}", f"chaos.kinds=[{','.join(KINDS)}]", "run.final_step=300")


def test_a_run_that_is_killed_now_and_then_is_completed(bench: Bench) -> None:
    """Each death is put down to the kill that was announced, spends nothing, and nothing is left of who killed."""
    process = bench.start(*bench.command("--steps=300", "--pause=0.02", sets=sets(0.3)))
    monkey = bench.wait_for("chaos.enabled")
    assert 0 == process.wait(80)
    deaths = [record for record in bench.records("trainer.exited") if record["cause"] != "completed"]

    assert (0.3, KINDS, "warning") == (monkey["mean_seconds"], monkey["kinds"], monkey["level"])
    assert len(deaths) >= 2
    assert {"chaos"} == {record["cause"] for record in deaths}
    assert len(deaths) == len({record["fault"] for record in deaths}) == len(bench.records("fault.injected"))
    assert [] == children_that_kill(bench)


def test_who_kills_ends_with_its_supervisor_however_that_ends(bench: Bench) -> None:
    """Nobody would look after a run that it went on to kill."""
    process = bench.start(*bench.command("--steps=3000", "--pause=0.02", sets=sets(600)))
    bench.wait_for("trainer.progressed")
    alive = until(lambda: children_that_kill(bench))
    os.kill(process.pid, signal.SIGKILL)

    until(lambda: not any(map(is_alive, alive)))


def test_that_who_kills_is_dead_is_said_once(bench: Bench) -> None:
    """Who trusts in the kills must know that there are none any more; the run goes on."""
    process = bench.start(
        *bench.command("--steps=300", "--pause=0.02", sets=(*sets(600), "checkpoints.rescan_seconds=0.2"))
    )
    bench.wait_for("trainer.progressed")
    (monkey,) = until(lambda: children_that_kill(bench))
    send_signal(monkey, signal.SIGKILL)
    said = bench.wait_for("chaos.unavailable")

    assert ("warning", "the process that kills ended with -9") == (said["level"], said["reason"])
    assert 0 == process.wait(80)
    assert 1 == len(bench.records("chaos.unavailable"))


def test_a_run_without_it_has_no_such_process(bench: Bench) -> None:
    """Nothing is killed that nobody asked for."""
    process = bench.start(*bench.command("--steps=60", "--pause=0.02"))
    bench.wait_for("trainer.progressed")
    assert [] == children_that_kill(bench)
    assert 0 == process.wait(60)
    assert ([], []) == (bench.records("chaos.enabled"), bench.records("fault.injected"))


def children_that_kill(bench: Bench) -> list[Identity]:
    """The processes that kill trainers of this bench."""
    found = []
    for pid, stat in snapshot().items():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(bench.directory) in words and any(b"chaos.monkey" in word for word in words):
            found.append(stat.identity)
    return found

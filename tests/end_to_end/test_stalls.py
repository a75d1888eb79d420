"""A trainer that lives and does nothing is told apart from one that saves or says nothing, and leaves evidence."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bench import Bench, marked, until
from tests.end_to_end.test_hung_storage import FREEZE, disk, freeze, thawed_afterwards, words
from tests.supervisor.test_writing import kernel_tells_openings_apart

__all__ = ["disk"]  # a fixture

TRAINER = Path(__file__).parents[1] / "silent_trainer.py"
SHORT = ("stall.startup_seconds=20", "stall.running_seconds=1.0", "run.final_step=4")


def command(bench: Bench, *habits: str, sets: tuple[str, ...] = SHORT) -> list[str]:
    """The words of `run` over the silent trainer."""
    words = bench.command(sets=sets)
    return [*words[: words.index("--") + 1], sys.executable, str(TRAINER), str(bench.directory), *habits]


def test_a_stall_inside_a_save_is_told_as_such_and_leaves_evidence(bench: Bench) -> None:
    """The saving deadline ends it, later than the running one would; what its process was doing is kept, and the run goes on."""
    sets = (*SHORT, "stall.saving_seconds=2.5")
    assert 0 == bench.lastgood(*command(bench, "--save-seconds=300", sets=sets)).returncode

    stalled, kept = bench.records("trainer.stalled"), bench.records("stall.evidence_kept")
    assert [("saving", 1)] == [(one["stage"], one["incarnation"]) for one in stalled]
    assert 2.5 <= stalled[0]["seconds"]
    assert bench.directory / ".lastgood" / "stalls" / "incarnation-1.txt" == Path(kept[0]["path"])
    pid = bench.records("trainer.spawned")[0]["pid"]
    assert kept[0]["processes"][0].startswith(f"{pid} python")
    assert kept[0]["processes"][0] in Path(kept[0]["path"]).read_text()
    assert "stalled" == bench.records("trainer.exited")[0]["cause"]


def test_a_save_that_takes_longer_than_the_running_deadline_is_left_alone(bench: Bench) -> None:
    """Silence that is a save is no stall."""
    assert 0 == bench.lastgood(*command(bench, "--save-seconds=3")).returncode
    assert ([], ["0"]) == (bench.records("trainer.stalled"), bench.starts())


@pytest.mark.parametrize("beats", [True, False])
@pytest.mark.parametrize("preset", ["lastgood", "command"])
def test_a_heartbeat_is_heard_where_nothing_is_printed(bench: Bench, beats: bool, preset: str) -> None:
    """C07: a trainer that touches a file lives on; without that the same silence is a stall. Of the bundled one's settings it is
    the file that it adds a line to with every step, however seldom it prints one.
    """
    beat = bench.folder / "beat" if preset == "command" else bench.directory / "metrics.jsonl"
    sets = (
        "stall.startup_seconds=2.5",
        "stall.running_seconds=2.5",
        f"trainer.heartbeat={beat}" if preset == "command" else "trainer.preset=lastgood",
        "restarts.without_progress=1",
    )
    habits = ("--mute-seconds=6", *([f"--beat={beat}"] if beats else []))
    status = bench.lastgood(*command(bench, *habits, sets=sets)).returncode

    stages = [one["stage"] for one in bench.records("trainer.stalled")]
    assert ((0, []) if beats else (4, ["startup"])) == (status, stages)


def hook(bench: Bench, script: str, *more: str) -> list[str]:
    """Settings with which a shell script runs before each start."""
    path = bench.folder / "hook.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return [f"trainer.pre_start={path} first", "run.final_step=20", *more]


def test_a_command_runs_before_each_start_and_knows_the_run(bench: Bench) -> None:
    """C27, C28: it clears away what a killed trainer left, in its environment; what it prints is no step of the trainer's."""
    lock = bench.folder / "build.lock"
    script = (
        f'rm -f {lock}; echo "step 999: loss 1"; echo "$1 $LASTGOOD_INCARNATION" >> {bench.folder}/hooks.txt; sleep 0.2'
    )
    assert 0 == bench.run("--steps=20", "--habit=die:12", f"--habit=lock:{lock}", sets=tuple(hook(bench, script)))

    assert ["first 1", "first 2"] == (bench.folder / "hooks.txt").read_text().splitlines()
    assert (["0", "10"], 20) == (bench.starts(), bench.records("run.completed")[0]["step"])
    assert b"step 999" in (bench.directory / ".lastgood" / "trainer.log").read_bytes()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo no such mount; exit 3", ["no such mount", "trainer.pre_start ended with code 3"]),
        ("kill -9 $$", ["trainer.pre_start ended with signal 9"]),
        ("echo waiting; sleep 300", ["waiting", "trainer.pre_start did not end within 1 s"]),
        ("setsid sleep 300 & exit 1", ["trainer.pre_start ended with code 1"]),
    ],
)
def test_a_start_whose_command_fails_has_failed(bench: Bench, script: str, said: list[str]) -> None:
    """It spends the budget as any death, blames no snapshot, starts no trainer, says why, and leaves no process behind."""
    sets = hook(bench, script, "restarts.without_progress=2", "stall.startup_seconds=1")
    assert 4 == bench.run(sets=tuple(sets))

    assert [said, said] == [one["last_lines"] for one in bench.records("trainer.exited")]
    assert ([], []) == (bench.records("trainer.spawned"), bench.records("snapshot.suspected"))
    assert not marked(bench.directory)


def test_a_stop_while_the_command_runs_starts_nothing(bench: Bench) -> None:
    """Also when it ends well of it."""
    script = f"trap 'exit 0' TERM; touch {bench.folder}/began; sleep 300 & wait"
    process = bench.start(*bench.command(sets=tuple(hook(bench, script))))
    until((bench.folder / "began").exists)
    process.terminate()

    assert 143 == process.wait(20)
    assert [] == bench.records("trainer.spawned")
    assert not marked(bench.directory)


def test_a_command_that_is_not_there_is_refused_at_the_start(bench: Bench) -> None:
    """In one line with the cure."""
    done = bench.lastgood(*bench.command(sets=("trainer.pre_start=/no/such/program",)))

    assert 2 == done.returncode
    assert "trainer.pre_start: '/no/such/program' is not a program that can be run" in done.stderr


def test_a_lock_that_was_left_behind_is_named(bench: Bench) -> None:
    """C28: a trainer that waits for ever for a lock of a killed one is ended, and the record says which file it may be."""
    lock = bench.folder / "build.lock"
    lock.touch()
    sets = ("stall.startup_seconds=1", "restarts.without_progress=1")
    assert 4 == bench.run(f"--habit=lock:{lock}", sets=sets)

    assert "startup" == bench.records("trainer.stalled")[0]["stage"]
    assert [str(lock)] == bench.records("stall.evidence_kept")[0]["locks"]


def test_two_processes_that_write_the_same_snapshot_are_told_once(bench: Bench) -> None:
    """A rival beside the trainer is named with its pid, and the run goes on."""
    process = bench.start(*command(bench, "--save-seconds=3"))
    until(lambda: list(bench.directory.glob(".step_3.pt.partial-*")))
    rival = bench.directory / f".step_3.pt.partial-{os.getpid()}-00000000"
    rival.touch()
    told = bench.wait_for("snapshot.two_writers")
    rival.unlink()

    assert 0 == process.wait(30)
    assert ("step_3.pt", sorted([os.getpid(), bench.records("trainer.spawned")[0]["pid"]])) == (
        told["name"],
        told["pids"],
    )
    assert 1 == len(bench.records("snapshot.two_writers"))


def test_two_processes_that_write_one_file_in_place_are_told_once(bench: Bench) -> None:
    """No name tells of it: each has the file open, as a second trainer would that was started by hand in the same folder."""
    kernel_tells_openings_apart(bench.folder / "probe")
    process = bench.start(*bench.command("--steps=10000"))
    bench.wait_for("trainer.progressed")
    writes = "import sys, time; file = open(sys.argv[1], 'ab')\nwhile True: file.write(b'x' * 999); file.flush(); time.sleep(.05)"
    rivals = [subprocess.Popen([sys.executable, "-c", writes, str(bench.directory / "step_7.pt")]) for _ in range(2)]
    try:
        told = bench.wait_for("snapshot.two_writers")
        time.sleep(2)
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()

    assert ("step_7.pt", sorted(rival.pid for rival in rivals)) == (told["name"], told["pids"])
    assert 1 == len(bench.records("snapshot.two_writers"))
    assert None is process.poll()


def test_an_arrival_is_told_before_its_verdict(bench: Bench) -> None:
    """Once for each snapshot, also for one that was saved just before its trainer was killed."""
    assert 0 == bench.run("--steps=20", "--habit=die:15", sets=("run.final_step=20",))
    seen = [one["name"] for one in bench.records("snapshot.appeared")]

    assert ["step_10.pt", "step_15.pt", "step_20.pt", "step_5.pt"] == sorted(seen)
    for name in seen:
        appeared, verified = (
            next(one["seq"] for one in bench.records(event) if one["name"] == name)
            for event in ("snapshot.appeared", "snapshot.verified")
        )
        assert appeared < verified


@pytest.mark.heavy
@pytest.mark.timeout(120)
def test_a_trainer_that_storage_holds_is_told_as_such(bench: Bench, disk: Path) -> None:
    """Its evidence names the process that no signal ends, before a kill that does not; after the thaw the run goes on."""
    process = bench.start(*words(bench, disk))
    bench.wait_for("trainer.progressed")
    leader = bench.records("trainer.spawned")[0]["pid"]
    freeze(disk, FREEZE)
    with thawed_afterwards(disk):
        kept = bench.wait_for("stall.evidence_kept", seconds=40)
        bench.wait_for("trainer.stuck", seconds=60)

        assert [leader] == kept["uninterruptible"]
        assert f"{leader} python" in kept["processes"][0]
        assert "no signal ends it" in Path(kept["path"]).read_text()
    assert 0 == process.wait(40)
    assert 2 == len(bench.starts())


@pytest.mark.heavy
@pytest.mark.timeout(120)
def test_evidence_that_takes_long_holds_up_neither_the_kill_nor_the_supervisor(bench: Bench) -> None:
    """A `py-spy` that hangs is given ten seconds; meanwhile a stop is heard, status is told, and then the trainer is dead."""
    program = bench.folder / "bin" / "py-spy"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 300\n")
    program.chmod(0o755)
    env = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    process = bench.start(*bench.command("--habit=hang:7", sets=("stall.running_seconds=0.5",)), env=env)
    bench.wait_for("trainer.stalled")
    began = time.monotonic()
    before = bench.state("status.json")["written_at"]
    process.terminate()
    until(lambda: bench.state("status.json")["written_at"] > before + 3)
    assert [] == bench.records("trainer.exited")

    assert 143 == process.wait(30)
    assert 8 < time.monotonic() - began < 20
    assert "py-spy gave no answer" in Path(bench.records("stall.evidence_kept")[0]["path"]).read_text()
    assert not marked(bench.directory)

"""How runs of snapshots without any checksum end and go on: what a trainer outlived is sealed, also its very last save."""

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.bench import Bench, until
from tests.crash import disks
from tests.crash.conftest import give_up

PLAIN = """
import json, os, signal, sys, time
folder, steps = sys.argv[1], int(sys.argv[2])
given = next((word.split("=", 1)[1] for word in sys.argv if word.startswith("--from=")), None)
step = json.load(open(given))["step"] if given else 0
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))

def save():
    path = os.path.join(folder, f"state_{step}.json")
    with open(path + ".tmp", "w") as file:
        json.dump({"step": step, "weights": [1.5] * 100}, file)
    os.replace(path + ".tmp", path)

while step < steps:
    time.sleep(0.05)
    step += 1
    print("step", step, flush=True)
    if asked or step % 20 == 0:
        save()
    if asked:
        sys.exit(143)
save()
"""


def words(bench: Bench, steps: int, *sets: str) -> list[str]:
    """The words of `run` over the plain trainer."""
    script = bench.folder / "plain.py"
    script.write_text(PLAIN)
    start = bench.command(sets=(f"run.final_step={steps}", *sets))
    return [*start[: start.index("--") + 1], sys.executable, str(script), str(bench.directory), str(steps)]


def test_the_save_of_a_stop_and_of_the_end_are_what_a_run_goes_on_from(bench: Bench) -> None:
    """Nothing is lost by a stop, nor by raising the final step of a run that is done, however late the last save was."""
    process = bench.start(*words(bench, 60))
    bench.wait_for("snapshot.sealed")
    process.send_signal(signal.SIGTERM)
    assert 143 == process.wait(30)
    last = max(int(path.stem.partition("_")[2]) for path in bench.directory.glob("state_*.json"))
    assert last % 20 != 0

    assert 0 == bench.lastgood(*words(bench, 60)).returncode
    assert 0 == bench.lastgood(*words(bench, 80)).returncode
    assert [None, last, 60] == [one["step"] for one in bench.records("trainer.spawned")]
    assert [] == bench.records("fallback.chosen")


def test_a_directory_that_is_moved_away_is_waited_for(bench: Bench) -> None:
    """Nothing is made in its place; moved back, the run goes on from what it holds."""
    process = bench.start(*words(bench, 200))
    bench.wait_for("snapshot.sealed", 2)
    pid = bench.records("trainer.spawned")[0]["pid"]
    away = bench.folder / "elsewhere"
    bench.directory.rename(away)
    os.kill(pid, signal.SIGKILL)
    log = bench.folder / "supervisor-0.log"
    until(lambda: "directory.unreadable" in log.read_text())

    assert not bench.directory.exists()
    away.rename(bench.directory)
    assert 0 == process.wait(60)
    assert [] == bench.records("run.started_over")
    assert bench.records("trainer.spawned")[-1]["step"] >= 20


@pytest.mark.heavy  # it mounts
def test_a_directory_that_is_unmounted_is_waited_for(bench: Bench, tmp_path: Path) -> None:
    """The mount point is as empty as a run's first day: that is no fresh start and no failure, and nothing is left in it."""
    if reason := disks.why_not("ext4"):
        give_up(reason)
    image = disks.make_image(tmp_path / "image", "ext4")
    with disks.loop_device(image) as device, disks.mounted(device, "ext4", tmp_path / "kept"):
        with disks.mounted(device, "ext4", bench.directory):
            process = bench.start(*words(bench, 200))
            bench.wait_for("snapshot.sealed", 2)
            os.kill(bench.records("trainer.spawned")[0]["pid"], signal.SIGSTOP)
            disks.detach(bench.directory)
        os.kill(int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]), signal.SIGKILL)
        log = bench.folder / "supervisor-0.log"
        until(lambda: "directory.unreadable" in log.read_text())
        assert [] == os.listdir(bench.directory)

        with disks.mounted(device, "ext4", bench.directory):
            assert 0 == process.wait(60)
            assert [] == bench.records("run.started_over")
            shutil.copytree(bench.directory, tmp_path / "copy")


BESIDE = """
import os, sys, threading, time
folder = sys.argv[1]
given = next((word.split("=", 1)[1] for word in sys.argv if word.startswith("--from=")), None)
step = int(os.path.basename(given)[5:-5]) if given else 0

def save(number):
    with open(os.path.join(folder, f"step_{number}.ckpt"), "wb", buffering=0) as file:
        for part in range(1 if number == 20 else 100):
            file.write(bytes(range(250)) * 20)
            time.sleep(0.6)

while step < 10_000:
    time.sleep(0.03)
    step += 1
    print("step", step, flush=True)
    if step % 20 == 0 and step <= 40:
        threading.Thread(target=save, args=(step,), daemon=True).start()
"""


@pytest.mark.parametrize("ending", ["killed", "stopped below a shell"])
def test_a_save_that_its_writer_was_not_done_with_is_never_sealed(bench: Bench, ending: str) -> None:
    """A thread writes on while steps are told, and pauses for longer than a file must be still: the next start is from before."""
    script = bench.folder / "beside.py"
    script.write_text(BESIDE)
    passes_on = "trap 'kill -TERM $c; wait $c; exit $?' TERM; \"$@\" & c=$!; wait $c; exit $?"
    shell = ["sh", "-c", passes_on, "sh"] if ending != "killed" else []
    start = bench.command()
    command = [*start[: start.index("--") + 1], *shell, sys.executable, str(script), str(bench.directory)]
    process = bench.start(*command)
    torn = bench.directory / "step_40.ckpt"
    until(lambda: torn.exists() and torn.stat().st_size >= 15_000)
    if ending == "killed":
        os.kill(bench.records("trainer.spawned")[0]["pid"], signal.SIGKILL)
    else:
        process.terminate()
        process.wait(30)
        process = bench.start(*command)
    bench.wait_for("trainer.spawned", 2)

    assert [None, 20] == [one["step"] for one in bench.records("trainer.spawned")][:2]
    assert ["step_20.ckpt"] == [one["name"] for one in bench.records("snapshot.sealed")]

"""A trainer that was started in advance takes over from one that died, and is no trainer until then."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import supervisor.runtime  # noqa: F401 - what all this is about, loaded so that it is known whose it is
from supervisor.chaos import oracle
from supervisor.proc import stat_of
from tests.bench import TRAINER, Bench, marked, until

SETS = ("trainer.standby=on", "run.final_step=9000")


def words(bench: Bench, *more: str, sets: tuple[str, ...] = SETS) -> list[str]:
    """The words of `run` over the small trainer; without site-packages there is nothing that takes long to import."""
    start = bench.command(sets=sets)
    flags = [sys.executable, "-S", str(TRAINER), str(bench.directory)]
    return [*start[: start.index("--") + 1], *flags, "--steps=9000", "--pause=0.1", *more]


def waiting(bench: Bench) -> dict[str, Any] | None:
    """What status.json says of one that is ready."""
    try:
        found: dict[str, Any] | None = bench.state("status.json").get("standby")
    except OSError:
        return None
    is_new = (
        found is not None and found["pid"] != bench.records("trainer.spawned")[-1]["pid"]
    )  # the file may be a bit older
    return found if is_new and found is not None and found["ready"] else None


def test_a_trainer_that_dies_is_followed_by_the_one_that_waited(bench: Bench) -> None:
    """The same process, from the newest snapshot, and not before the first had progressed; a third waits then."""
    process = bench.start(*words(bench))
    first = until(lambda: waiting(bench))
    assert [] != bench.records("trainer.progressed")
    leader = bench.wait_for("trainer.spawned")
    assert (False, 300_000) == (leader["standby"], min(first["memory_bytes"], 300_000))
    os.kill(leader["pid"], signal.SIGKILL)
    second = bench.wait_for("trainer.spawned", 2)
    third = until(lambda: waiting(bench))

    assert (True, first["pid"]) == (second["standby"], second["pid"])
    assert int(bench.starts()[1]) == second["step"] > 0
    process.terminate()
    assert 143 == process.wait(20)
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

    bench.wait_for("trainer.spawned", 2)
    process.terminate()
    assert 143 == process.wait(20)
    assert [False, False] == [one["standby"] for one in bench.records("trainer.spawned")]


def test_a_stalled_trainer_is_followed_by_it(bench: Bench) -> None:
    """The whole tree is killed, and the one that waits is not of it."""
    process = bench.start(*words(bench, "--habit=hang:30", "--habit=detach", sets=(*SETS, "stall.running_seconds=1")))

    bench.wait_for("trainer.spawned", 2)
    process.terminate()
    assert 143 == process.wait(20)
    assert [False, True] == [one["standby"] for one in bench.records("trainer.spawned")]
    assert "stalled" == bench.records("trainer.exited")[0]["cause"]


def test_why_there_is_none_is_shown(bench: Bench, tmp_path: Path) -> None:
    """An import that fails is told in the words of Python, and the run trains on."""
    (tmp_path / "numpy.py").write_text("raise ImportError('no libcudart.so')")
    shutil.copy(TRAINER, tmp_path / "train.py")
    start = words(bench)
    start[start.index(str(TRAINER))] = str(tmp_path / "train.py")
    process = bench.start(*start)
    until(lambda: bench.records("trainer.progressed") and bench.state("status.json")["standby_missing"])
    why = "none: the last one ended: ImportError: no libcudart.so; another is started 10 s later"

    assert f"{'standby':<14} {why}\n" in bench.lastgood("status", str(bench.directory)).stdout
    process.terminate()
    assert 143 == process.wait(20)


def test_who_did_not_ask_for_one_has_none(bench: Bench) -> None:
    """A command that is not the bundled trainer's might notice."""
    assert 0 == bench.run("--steps=20", "--habit=die:12", sets=("run.final_step=20",))

    assert [False, False] == [one["standby"] for one in bench.records("trainer.spawned")]
    assert None is bench.state("status.json")["standby"]


@pytest.mark.heavy
def test_the_bundled_trainer_computes_the_same_from_it(bench: Bench) -> None:
    """Killed twice while one waits: every loss, the repeated ones too, and the last snapshot are those of a run that was not."""
    root = Path(__file__).parents[2]
    shape = {
        "max_iters": 3000,
        "lr_decay_iters": 3000,
        "save_interval": 50,
        "eval_interval": 0,
        "dropout": 0.1,
        "threads": 2,
    }
    command = [
        sys.executable,
        "-m",
        "trainer",
        str(root / "config/trainer/tiny.yaml"),
        *(f"--{k}={v}" for k, v in shape.items()),
    ]
    baseline = bench.folder / "baseline"
    done = subprocess.run([*command, f"--out_dir={baseline}"], cwd=root, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    words = ["run", "--checkpoints", str(bench.directory), "--preset", "lastgood", "--set", "run.final_step=3000"]
    process = bench.start(*words, "--set", f"trainer.cwd={root}", "--", *command)
    for count in (1, 2):
        found = until(lambda: waiting(bench), 60)
        os.kill(bench.records("trainer.spawned")[-1]["pid"], signal.SIGKILL)
        assert (True, found["pid"]) == tuple(
            bench.wait_for("trainer.spawned", count + 1)[key] for key in ("standby", "pid")
        )

    assert 0 == process.wait(60)
    findings = oracle.compare(baseline, bench.directory, 3000)
    assert ([], 0.0, True) == (findings.problems, findings.largest_difference, findings.weights_identical)
    assert 3000 < findings.lines_compared


LOADING = """
import json, os, pathlib, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

FOLDER = pathlib.Path(sys.argv[1])

class Numbers(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.rand(2) + index, os.getppid()

def loaded(method):
    torch.manual_seed(7)
    loader = DataLoader(Numbers(), batch_size=8, shuffle=True, num_workers=2, multiprocessing_context=method)
    found = [(rows.tolist(), parents.unique().tolist()) for rows, parents in loader]
    assert {(os.getpid(),)} == {tuple(parents) for _, parents in found}
    return [rows for rows, _ in found]

if __name__ == "__main__":
    told = {method: loaded(method) for method in ("fork", "spawn")}
    said = FOLDER.parent / f"{os.environ['LASTGOOD_INCARNATION']}.json"
    said.with_suffix(".tmp").write_text(json.dumps(told))
    said.with_suffix(".tmp").rename(said)
    for step in range(1, 9000):
        torch.save({"step": step}, FOLDER / "next.tmp")
        (FOLDER / "next.tmp").rename(FOLDER / f"ckpt_{int(os.environ['LASTGOOD_INCARNATION']) * 1000 + step}.pt")
        print(f"step {step}", flush=True)
        time.sleep(0.2)
"""
"""Loads data by workers that are forked and spawned, says what they loaded, and trains."""


@pytest.mark.heavy
def test_workers_of_a_data_loader_load_the_same_from_it(bench: Bench, tmp_path: Path) -> None:
    """Forked and spawned, each a child of the trainer; no module is missing, and no row is another."""
    script = tmp_path / "train.py"
    script.write_text(LOADING)
    sets = [word for one in SETS for word in ("--set", one)]
    command = [sys.executable, str(script), str(bench.directory)]
    process = bench.start("run", "--checkpoints", str(bench.directory), "--resume", "never", *sets, "--", *command)
    found = until(lambda: waiting(bench), 60)
    os.kill(bench.wait_for("trainer.spawned")["pid"], signal.SIGKILL)
    assert (True, found["pid"]) == tuple(bench.wait_for("trainer.spawned", 2)[key] for key in ("standby", "pid"))
    cold, standby = (until(lambda number=number: said(bench.folder, number), 60) for number in (1, 2))
    process.terminate()
    process.wait(20)

    assert {"fork", "spawn"} == set(cold)
    assert cold == standby
    assert [] == marked(bench.directory)


def said(folder: Path, number: int) -> Any:
    """What an incarnation has said, once it has."""
    path = folder / f"{number}.json"
    return json.loads(path.read_text()) if path.exists() else None


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

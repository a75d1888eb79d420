"""Runs that keep dying or diverging: whether it is a snapshot, the data or the software that is to blame."""

import os
import sys
from pathlib import Path

import pytest

from lastgood import ladder
from tests.bench import ROOT, Bench


def test_a_snapshot_that_a_run_keeps_dying_from_is_poisoned(bench: Bench) -> None:
    """Whole by its bytes, and every start from it dies alike: an older one is tried, gets past, and the run completes."""
    assert 0 == bench.run("--steps=30", "--habit=die:12", "--habit=cursed:10", sets=("run.final_step=30",))

    assert ["0", "10", "10", "5"] == bench.starts()
    [suspected] = bench.records("snapshot.suspected")
    assert ("step_10.pt", 2, 12) == (suspected["name"], suspected["deaths"], suspected["died_at"])
    assert "RuntimeError: no luck at #.#" in suspected["signature"]
    [poisoned] = [one for one in bench.records("snapshot.rejected") if one["verdict"] == "poisoned"]
    assert "step_10.pt" == poisoned["name"]
    [aside] = bench.records("snapshot.quarantined")
    assert Path(aside["path"]).is_file()
    assert None is bench.state("run.json")["blame"]


def test_a_run_that_dies_alike_from_any_snapshot_ends(bench: Bench) -> None:
    """Status 5: the software is at fault, the reason shows what the deaths look like, and no snapshot is lost."""
    assert 5 == bench.run("--steps=30", "--habit=always-die:11", "--every=4", sets=("run.final_step=30",))

    assert ["0", "8", "8", "4"] == bench.starts()
    [failed] = bench.records("run.failed")
    assert "software cannot continue: 3 deaths alike at step 11, from more than one snapshot" in failed["reason"]
    assert {"step_4.pt", "step_8.pt"} <= set(os.listdir(bench.directory))


def test_an_acquitted_snapshot_is_put_back(bench: Bench) -> None:
    """No snapshot can be loaded any more: two were tried, and everything is where it was."""
    assert 0 == bench.run("--steps=12", "--every=4", sets=("run.final_step=12",))
    before = sorted(name for name in os.listdir(bench.directory) if name.endswith(".pt"))

    assert 5 == bench.run("--steps=30", "--habit=refuse", sets=("run.final_step=30",))

    assert ["0", "12", "12", "8"] == bench.starts()
    assert ["step_12.pt"] == [one["name"] for one in bench.records("snapshot.put_back")]
    assert before == sorted(name for name in os.listdir(bench.directory) if name.endswith(".pt"))
    assert {"healthy", "intact"} >= {str(rung.verdict.kind) for rung in ladder(bench.directory) if rung.verdict}
    assert "before its first step" in bench.records("run.failed")[0]["reason"]


def test_a_run_that_diverges_again_and_again_ends(bench: Bench) -> None:
    """Killed at the second loss that is not finite, stepped back below what it saved since, and after three rollbacks ended."""
    quick = ("run.final_step=30", "restarts.without_progress=9")
    assert 4 == bench.run("--steps=30", "--every=4", "--habit=diverge:11", "--pause=0.1", sets=quick)

    assert ["0", "8", "8", "8"] == bench.starts()
    told = bench.records("trainer.diverged")
    assert [(11, 10, number, None) for number in (1, 2, 3, 4)] == [
        (one["step"], one["finite_step"], one["times"], one["skipping"]) for one in told
    ]
    assert ["diverged"] * 4 == [one["cause"] for one in bench.records("trainer.exited")]
    assert "the loss stopped being finite 4 times in a row" in bench.records("run.failed")[0]["reason"]
    assert {"step_4.pt", "step_8.pt"} <= set(os.listdir(bench.directory))


POISONED = """
import math, os, sys
import trainer.train as train
from trainer.__main__ import main
from trainer.data import batch_seed
real, bad = train.loss_of, batch_seed(1337, "train", 47, 0)
def loss_of(*arguments):
    return real(*arguments) * (math.nan if arguments[-1] == bad else 1.0)
train.loss_of = loss_of
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.heavy  # torch is imported three times
def test_the_bundled_trainer_skips_data_that_it_diverges_on_twice(bench: Bench) -> None:
    """Step 47's batch is poison: at the second divergence there the trainer takes other data, and the run completes."""
    script = bench.folder / "poisoned.py"
    script.write_text(POISONED)
    config = bench.folder / "run.yaml"
    command = [
        sys.executable,
        str(script),
        str(ROOT / "config" / "trainer" / "tiny.yaml"),
        f"--data_dir={bench.folder}",
    ]
    config.write_text(
        "run: {name: poison, final_step: 60}\n"
        f"trainer: {{preset: lastgood, command: {[*command, '--max_iters=60', '--save_interval=20', '--log_interval=1']}}}\n"
        f"checkpoints: {{dir: {bench.directory}}}\nrestarts: {{backoff_seconds: [0.05, 0.2]}}\n"
    )

    assert 0 == bench.lastgood("run", str(config), timeout=240).returncode

    told = [(one["step"], one["finite_step"], one["skipping"]) for one in bench.records("trainer.diverged")]
    assert [(47, None, None), (47, None, "47-47")] == told
    assert [None, 40, 40] == [one["step"] for one in bench.records("trainer.spawned")]
    assert "skipping the data of steps 47 to 47" in (bench.directory / ".lastgood" / "trainer.log").read_text()
    assert [[47, 47]] == bench.state("run.json")["skip"]

"""Real campaigns over the bundled trainer."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.bench import ROOT, Bench, until

CONFIG = """
run: {{name: small, final_step: 120}}
trainer:
  command: [python, -m, trainer, {root}/config/trainer/demo.yaml, --max_iters=120, --lr_decay_iters=120, --save_interval=10,
            --eval_interval=40, --n_layer=2, --data_dir={root}/out/data]
checkpoints: {{dir: checkpoints}}
"""


def wrote_config(bench: Bench) -> None:
    (bench.folder / "run.yaml").write_text(CONFIG.format(root=ROOT))


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_a_campaign_passes_and_shows_what_was_chosen(bench: Bench) -> None:
    """Three kills, one of them in a save, and a truncation: the survivor equals the baseline bit for bit."""
    wrote_config(bench)
    done = bench.lastgood("chaos", "run.yaml", "--seed", "3", timeout=200)

    assert 0 == done.returncode, done.stdout + done.stderr
    for words in ("kill-while-saving", "half written, and is dead", "truncate", "steps compared: 120", "PASSED"):
        assert words in done.stdout
    assert "largest difference in loss: 0.0\nweights identical: yes\n" in done.stdout
    survivor = bench.folder / "out" / "chaos" / "small-seed3" / "survivor"
    causes = [json.loads(line) for line in (survivor / ".lastgood" / "events.jsonl").read_text().splitlines()]
    assert 4 == len([r for r in causes if r["event"] == "trainer.exited" and r["cause"] == "chaos"])


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_a_supervisor_killed_in_mid_run_loses_nothing(bench: Bench) -> None:
    """SIGKILL of the supervisor: the next `run` ends what is left, resumes, and completes with the losses of an unbroken run."""
    wrote_config(bench)
    words = ("run", "run.yaml")
    process = bench.start(*words)
    bench.wait_for("trainer.progressed", 3, seconds=60)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = bench.lastgood(*words)
    assert 0 == done.returncode, done.stdout + done.stderr
    broken = losses(bench.directory)
    shutil.rmtree(bench.directory)
    assert 0 == bench.lastgood(*words).returncode

    assert 120 == len(broken)
    assert losses(bench.directory) == broken


def losses(directory: Path) -> dict[int, float]:
    """Loss by step; a step made twice must have had the same loss twice."""
    found: dict[int, Any] = {}
    for line in (directory / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        assert found.setdefault(entry["step"], entry["loss"]) == entry["loss"]
    return found


def test_a_campaign_over_a_run_it_cannot_judge_is_refused(bench: Bench) -> None:
    """Without the bundled trainer or a final step there is nothing to hold the survivor against."""
    (bench.folder / "run.yaml").write_text("trainer: {command: [sh, x], resume: self}\ncheckpoints: {dir: x}\n")
    done = bench.lastgood("chaos", "run.yaml")

    assert (2, 1) == (done.returncode, len(done.stderr.strip().splitlines()))
    assert "run.final_step" in done.stderr


def test_a_campaign_never_removes_what_it_did_not_make(bench: Bench) -> None:
    """A folder in its place that is no campaign's is left alone."""
    wrote_config(bench)
    place = bench.folder / "out" / "chaos" / "small-seed1"
    place.mkdir(parents=True)
    (place / "mine").write_text("x")
    done = bench.lastgood("chaos", "run.yaml", "--seed", "1")

    assert (2, "x") == (done.returncode, (place / "mine").read_text())
    assert "not a campaign's" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_campaign_leaves_no_trainer(bench: Bench, number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM in the baseline ends what the campaign had started."""
    wrote_config(bench)
    process = bench.start("chaos", "run.yaml", "--seed", "5")
    log = bench.folder / "out" / "chaos" / "small-seed5" / "baseline" / "metrics.jsonl"
    until(log.exists, 60)
    process.send_signal(number)
    assert 0 != process.wait(30)

    until(lambda: not running_in(bench.folder))


def running_in(folder: Path) -> list[int]:
    """Processes whose working directory is `folder`."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.readlink(f"/proc/{name}/cwd") == str(folder):
                found.append(int(name))
        except OSError:
            continue  # it ended
    return found

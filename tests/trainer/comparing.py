"""Runs held against each other: their metrics, their snapshots, bit for bit."""

import json
import os
import subprocess
import sys

import torch

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")


def go_through(*lives):
    """Let lives of a trainer pass (see lives.py); the statuses and outputs of each one's ranks."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.trainer.lives"],
        input=json.dumps(lives),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout)


def metrics_of(out_dir):
    """The lines of a run's metrics.jsonl, in their order."""
    with open(os.path.join(out_dir, "metrics.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def losses_of(out_dir, incarnation=None):
    """Every loss that was recorded for a step, as {step: {losses}}."""
    found = {}
    for line in metrics_of(out_dir):
        if incarnation in (None, line["incarnation"]):
            found.setdefault(line["step"], set()).add(line["loss"])
    return found


def payload_of(out_dir, step):
    """What a snapshot holds."""
    return torch.load(os.path.join(out_dir, f"ckpt_{step:08d}.pt"), weights_only=True)


def differences(one, other, path=""):
    """Where two nested values differ, tensors to the last bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            place
            for key in one.keys() | other.keys()
            for place in differences(one.get(key), other.get(key), f"{path}/{key}")
        ]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        return [
            place for i, pair in enumerate(zip(one, other, strict=True)) for place in differences(*pair, f"{path}/{i}")
        ]
    same = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    return [] if same else [path]


def state_differs(one_dir, other_dir, step):
    """Where two runs' snapshots of a step differ in anything that the next step depends on, and in the best loss."""
    one, other = payload_of(one_dir, step), payload_of(other_dir, step)
    keys = (
        "model",
        "optimizer",
        "scaler",
        "rng",
        "rng_of_ranks",
        "data",
        "scheduler",
        "best_val_loss",
        "inexact_since",
    )
    return [place for key in keys for place in differences(one.get(key), other.get(key), key)]

"""The one summary that status.json, the status command and all that comes later show."""

import json
from dataclasses import replace
from typing import Any

import pytest

from lastgood.verdict import Kind, Proof, Verdict
from supervisor.core.budget import Budget
from supervisor.core.events import Obstacle, RungFact
from supervisor.core.memory import Memory
from supervisor.core.state import Life, Phase, Policy, State, Wait
from supervisor.summary import VERSION, summary

POLICY = Policy(final_step=100)


def rung(step: int, kind: Kind | None) -> RungFact:
    return RungFact(f"ckpt_{step}.pt", step, step, None if kind is None else Verdict(kind, Proof.SEAL, "so"))


RUNNING = State(
    phase=Phase.RUNNING,
    memory=Memory(high_water=50, reached=64, incarnation=4, budget=Budget((1.0, 2.0), (1.0, 2.0), True)),
    life=Life(resumed=rung(50, Kind.HEALTHY), reported=62, loss=2.5),
    rungs=(rung(60, Kind.TRUNCATED), rung(50, Kind.HEALTHY), rung(40, Kind.INTACT), rung(30, None)),
)


def test_a_running_run_is_told_with_all_that_matters() -> None:
    """Where it is, from what it was resumed, what it could fall back to, and how near its budget is to being spent."""
    assert {
        "version": VERSION,
        "name": "night",
        "phase": "running",
        "waiting_for": None,
        "incarnation": 4,
        "step": 62,
        "loss": 2.5,
        "final_step": 100,
        "high_water": 50,
        "reached": 64,
        "resumed_from": "ckpt_50.pt",
        "last_good": {"name": "ckpt_50.pt", "step": 50},
        "deaths_without_progress": 2,
        "done": None,
        "failure": None,
        "snapshots": [
            {"name": "ckpt_60.pt", "step": 60, "verdict": "truncated"},
            {"name": "ckpt_50.pt", "step": 50, "verdict": "healthy"},
            {"name": "ckpt_40.pt", "step": 40, "verdict": "intact"},
            {"name": "ckpt_30.pt", "step": 30, "verdict": None},
        ],
    } == summary(RUNNING, POLICY, {"name": "night"})


def test_before_anything_happened_there_is_little_to_tell() -> None:
    """What is not known yet is null rather than left out."""
    found = summary(State(), Policy(), {})

    assert ("selecting", 0, []) == (found["phase"], found["incarnation"], found["snapshots"])
    for key in ("step", "loss", "final_step", "high_water", "reached", "resumed_from", "last_good", "done", "failure"):
        assert None is found[key], key
    assert summary(RUNNING, POLICY, {}).keys() == found.keys()


@pytest.mark.parametrize(
    ("expected", "more"),
    [
        ("room on the disk", {"wait": Wait(Obstacle.DISK, 0.0)}),
        ("a GPU that is lost", {"wait": Wait(Obstacle.GPU_LOST, 0.0)}),
        ("memory of a GPU that dead processes hold", {"wait": Wait(Obstacle.GPU_BUSY, 0.0)}),
        ("processes that will not die", {"stuck": True}),
        ("the checkpoint directory", {"away": True}),
        ("a snapshot that cannot be read or moved", {}),
    ],
)
def test_what_a_run_waits_for_is_told_in_words(expected: str, more: dict[str, Any]) -> None:
    """While it waits, and not after it."""
    waiting = replace(RUNNING, phase=Phase.WAITING, **more)
    assert expected == summary(waiting, POLICY, {})["waiting_for"]
    assert summary(replace(waiting, phase=Phase.STARTING), POLICY, {})["waiting_for"] is None


def test_a_look_now_and_then_is_part_of_a_wait() -> None:
    """A run that waits for room says so all the time, not only between two looks."""
    looking = replace(RUNNING, phase=Phase.SELECTING, wait=Wait(Obstacle.DISK, 0.0))
    found = summary(looking, POLICY, {})

    assert ("waiting", "room on the disk") == (found["phase"], found["waiting_for"])


def test_a_failure_is_told_by_its_reason() -> None:
    """The reason a person can act on, not the status."""
    assert "so it is" == summary(replace(RUNNING, failure=(3, "so it is", "advice")), POLICY, {})["failure"]


@pytest.mark.parametrize(
    ("loss", "expected"),
    [(float("nan"), "nan"), (float("inf"), "inf"), (float("-inf"), "-inf"), (0.0, 0.0), (None, None)],
)
def test_a_loss_that_is_not_finite_is_told_in_words(loss: float | None, expected: object) -> None:
    """JSON has no such numbers, and a reader that is strict must not trip over the status of a diverged run."""
    found = summary(replace(RUNNING, life=replace(RUNNING.life, loss=loss)), POLICY, {})

    assert expected == found["loss"]
    json.dumps(found, allow_nan=False)


def test_only_the_newest_snapshots_are_listed() -> None:
    """Of ten thousand, twenty say enough, and the last good one is told even if it is not among them."""
    rungs = tuple(rung(step, Kind.CORRUPT) for step in range(10_000, 100, -1))
    found = summary(replace(RUNNING, rungs=(*rungs, rung(50, Kind.HEALTHY))), POLICY, {})

    assert [f"ckpt_{step}.pt" for step in range(10_000, 9_980, -1)] == [one["name"] for one in found["snapshots"]]
    assert {"name": "ckpt_50.pt", "step": 50} == found["last_good"]


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_is_told_by_its_word(phase: Phase) -> None:
    """A phase is text in JSON, not a number or a Python name."""
    found: dict[str, Any] = json.loads(json.dumps(summary(replace(RUNNING, phase=phase), POLICY, {})))

    assert phase.value == found["phase"]


def test_what_the_core_knows_is_not_replaced_by_the_context() -> None:
    """The context adds; phase and steps are the core's."""
    assert "running" == summary(RUNNING, POLICY, {"phase": "dancing"})["phase"]

"""The oracle finds what it is there to find: each check is shown to fail."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from lastgood import save_checkpoint_atomic
from supervisor.chaos import oracle
from tests.bench import until
from tests.conftest import flip_bit


def made(folder: Path, losses: dict[int, float | None], weight: float = 1.0, final: int | None = None) -> Path:
    """A finished run: its metrics and its last snapshot."""
    folder.mkdir()
    lines = [json.dumps({"step": step, "loss": loss, "incarnation": 1}) for step, loss in losses.items()]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    state = {"model": {"w": torch.full((2,), weight)}, "optimizer": {"state": {0: {"m": torch.zeros(1)}}}, "rng": [1]}
    save_checkpoint_atomic(state, folder / f"ckpt_{final or max(losses):08d}.pt")
    return folder


LOSSES: dict[int, float | None] = {1: 3.0, 2: 2.0, 3: 1.0}


def test_equal_runs_pass(tmp_path: Path) -> None:
    """The same losses and the same weights are nothing to report, repeated steps included."""
    one, other = made(tmp_path / "a", LOSSES), made(tmp_path / "b", LOSSES)
    with (other / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 2, "loss": 2.0, "incarnation": 2}) + "\n")
    found = oracle.compare(one, other, 3)

    assert (True, 3, 4, 0.0, True) == (
        found.passed, found.steps_compared, found.lines_compared, found.largest_difference, found.weights_identical
    )  # fmt: skip


@pytest.mark.parametrize(
    ("losses", "weight", "final", "said"),
    [
        ({1: 3.0, 2: 2.0 + 1e-15, 3: 1.0}, 1.0, 3, "losses differ by up to 8"),
        ({1: 3.0, 2: None, 3: 1.0}, 1.0, 3, "losses differ by up to inf"),
        ({1: 3.0, 3: 1.0}, 1.0, 3, "3 steps were expected, 2 could be compared"),
        ({1: 3.0, 2: 2.0, 3: 1.0, 4: 0.5}, 1.0, 3, "step 4 is not in the baseline"),
        (LOSSES, 1.0 + 1e-6, 3, "the final snapshots differ in model"),
        (LOSSES, 1.0, 2, "the last good snapshots are"),
    ],
)
def test_any_difference_fails(
    tmp_path: Path, losses: dict[int, float | None], weight: float, final: int, said: str
) -> None:
    """The least bit of a loss or a weight, a missing step, a step too many, another last snapshot: each is a problem."""
    found = oracle.compare(made(tmp_path / "a", LOSSES), made(tmp_path / "b", losses, weight, final), 3)

    assert not found.passed
    assert any(said in problem for problem in found.problems), found.problems


def test_a_repeated_step_that_differs_fails(tmp_path: Path) -> None:
    """A step made twice must have been the same twice."""
    one, other = made(tmp_path / "a", LOSSES), made(tmp_path / "b", LOSSES)
    with (other / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 2, "loss": 2.5, "incarnation": 2}) + "\n")

    assert 0.5 == oracle.compare(one, other, 3).largest_difference


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"a": torch.ones(2)}, {"a": torch.ones(2)}, True),
        ({"a": torch.ones(2)}, {"a": torch.ones(2).double()}, False),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, False),
        ([1, (2, None)], [1, (2, None)], True),
        ([1, 2], [1, 2, 3], False),
        ([1], (1,), False),
        (1, 1.0, False),
        (torch.ones(1), 1.0, False),
        ("x", "y", False),
    ],
)
def test_states_are_compared_bit_for_bit(one: Any, other: Any, equal: bool) -> None:
    """Structure, types and every element count."""
    assert equal is oracle.same(one, other)


def test_the_newest_good_is_found_without_the_product(tmp_path: Path) -> None:
    """By its own reading of names, digests and checksums: flipped and cut ones are no choice, with a seal or without."""
    there = oracle.Snapshots(tmp_path)
    assert (None, -1, 0) == (there.newest_good(), there.newest_number(), there.size_of_newest())
    for step in (8, 9, 10, 100, 1000, 2000):
        save_checkpoint_atomic({"w": torch.ones(500)}, tmp_path / f"ckpt_{step:08d}.pt")
    assert "ckpt_00002000.pt" == there.newest_good()
    flip_bit(tmp_path / "ckpt_00002000.pt", 1500)
    flip_bit(tmp_path / "ckpt_00001000.pt", 1500)
    (tmp_path / "ckpt_00001000.pt.sha256").unlink()
    os.truncate(tmp_path / "ckpt_00000100.pt", 100)
    (tmp_path / "ckpt_00000010.pt.sha256").unlink()
    (tmp_path / "ckpt_00000009.pt.sha256").write_text("\N{SNOWMAN}", encoding="utf-8")
    (tmp_path / "ckpt_00003000.pt").mkdir()
    (tmp_path / ".ckpt_00004000.pt.partial-1-00000000").write_text("x")

    assert ["ckpt_00000010.pt", "ckpt_00000008.pt"] == list(there.good())
    assert (2000, (tmp_path / "ckpt_00002000.pt").stat().st_size) == (there.newest_number(), there.size_of_newest())


def test_no_flip_in_an_archive_without_a_seal_is_more_than_no(tmp_path: Path) -> None:
    """Each bit of a small one, headers too: it is good or it is not, and the oracle goes on."""
    path = tmp_path / "ckpt_00000001.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}.")
    content = path.read_bytes()
    found = set()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        found.add(oracle.is_good(path))

    assert {True, False} == found


def test_what_was_written_since_is_not_what_had_to_be_chosen(tmp_path: Path) -> None:
    """At a death a good one and a bad one lay there; the next trainer has put a good one in the place of the bad one."""
    for step in (9, 10):
        save_checkpoint_atomic({"w": torch.ones(500)}, tmp_path / f"ckpt_{step:08d}.pt")
    there = oracle.Snapshots(tmp_path)
    flip_bit(tmp_path / "ckpt_00000010.pt", 1500)
    looked = there.look()
    save_checkpoint_atomic({"w": torch.ones(500)}, tmp_path / "ckpt_00000010.pt")

    assert "ckpt_00000009.pt" == there.newest_good(looked)
    assert "ckpt_00000010.pt" == there.newest_good()


@pytest.mark.parametrize(
    ("pattern", "name", "step"),
    [
        (None, "ckpt_00000012.pt", 12),
        (None, "epoch3-step_40.ckpt", 40),
        (None, "model.pt", None),
        (None, ".ckpt_1.pt", None),
        ("net.{step}.bin", "net.7.bin", 7),
        ("net.{step}.bin", "netx7xbin", None),
        (r"w(\d+)", "w5", 5),
    ],
)
def test_names_are_those_of_the_runs_config(pattern: str | None, name: str, step: int | None, tmp_path: Path) -> None:
    """Nobody's rule but this one decides what the oracle looks at."""
    there = oracle.Snapshots(tmp_path, oracle.names_of(pattern))
    (tmp_path / name).write_bytes(b"x")

    assert ([name] if step is not None else []) == list(there.look())
    if step is None:
        with pytest.raises(ValueError, match="is no name of a snapshot"):
            there.number(name)
    else:
        assert step == there.number(name)


def test_a_good_one_in_quarantine_is_noticed(tmp_path: Path) -> None:
    """Setting aside what was good is a loss."""
    place = tmp_path / ".lastgood" / "quarantine" / "x"
    place.mkdir(parents=True)
    save_checkpoint_atomic({"w": torch.ones(500)}, place / "ckpt_00000001.pt")
    assert [str(place / "ckpt_00000001.pt")] == oracle.Snapshots(tmp_path).good_in_quarantine()

    flip_bit(place / "ckpt_00000001.pt", 1500)
    assert [] == oracle.Snapshots(tmp_path).good_in_quarantine()


def test_a_leaked_process_is_noticed() -> None:
    """Whatever carries the run's mark and lives is found."""
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    process = subprocess.Popen(command, env={**os.environ, "LASTGOOD_RUN_ID": "a-test"})
    try:
        assert [process.pid] == until(lambda: oracle.leaked("a-test"))
    finally:
        process.kill()
        process.wait()
    assert [] == oracle.leaked("a-test")


def test_the_last_whole_line_of_metrics_is_read(tmp_path: Path) -> None:
    """A line being written is not taken for the newest."""
    assert oracle.last_metric(tmp_path) is None
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert {"step": 2} == oracle.last_metric(tmp_path)

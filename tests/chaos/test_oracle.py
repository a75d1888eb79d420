"""The oracle finds what it is there to find: each check is shown to fail."""

import hashlib
import json
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from lastgood import save_checkpoint_atomic
from lastgood.naming import any_name
from lastgood.publish import write_bound_seal
from lastgood.rungs import latest_healthy
from lastgood.seal import Identity
from supervisor.chaos import oracle
from supervisor.chaos.oracle import Worth
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
        (None, "state_7.json", 7),
        (None, "STEP-7", 7),
        (None, "model.pt", -1),
        (None, ".ckpt_1.pt", None),
        ("net.{step}.bin", "net.7.bin", 7),
        ("net.{step}.bin", "netx7xbin", None),
        ("net-*-{step}.bin", "net-a-7.bin", 7),
        (r"w(\d+)", "w5", 5),
        (r"w(\d+).*", "w5.sha256", None),
        (r"(a|b)(?P<step>\d+)", "a5", 5),
        (r"ckpt\.pt", "ckpt.pt", -1),
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


NAMES = [
    f"{before}{word}{between}{number}{after}"
    for before in ("", "run-", ".", "tmp_")
    for word in ("ckpt", "Checkpoint", "step", "iter", "iteration", "epoch", "state", "global_step", "model", "samples", "")
    for between in ("", "_", "-", "=", ".", " ", "__")
    for number in ("", "7", "0012", "3-step_40", "1-of-3", "00001-of-00003")
    for after in ("", ".pt", ".ckpt", ".safetensors", ".PKL", ".json", ".bin", ".tar", ".txt", ".json.tmp", ".pt.tmp-3", "~",
                  ".5", ".pt.sha256", "-last.pth", "x.npz")
]  # fmt: skip


def test_the_oracle_knows_the_names_that_the_product_knows() -> None:
    """Its own rule, written anew, says the same of each of thousands of names: no snapshot, no step, or which step."""
    known = oracle.names_of(None)
    of_the_product = {name: any_name(name) for name in NAMES}
    expected = {
        name: None if step is False else oracle.NO_STEP if step is None else int(step)
        for name, step in of_the_product.items()
    }

    assert expected == {name: known(name) for name in NAMES}
    assert {None, oracle.NO_STEP, 7, 12, 40} <= set(expected.values())


def test_a_step_that_no_name_tells_is_read_inside(tmp_path: Path) -> None:
    """The newest of a trainer that also writes over one name is the one with the highest step, wherever it stands."""
    there = oracle.Snapshots(tmp_path)
    torch.save({"w": torch.ones(3), "global_step": 30}, tmp_path / "last.ckpt")
    torch.save({"w": torch.ones(3)}, tmp_path / "best.pt")
    torch.save({"w": torch.ones(3)}, tmp_path / "step_20.ckpt")

    assert ["last.ckpt", "step_20.ckpt", "best.pt"] == list(there.good())
    assert 30 == there.newest_number()


def safetensors(size: int = 4) -> bytes:
    """A file of one tensor of four bytes, which has so many."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes([1]) * size


@pytest.mark.parametrize(
    ("name", "content", "worth"),
    [
        ("state_5.json", b'{"step": 5}', Worth.UNKNOWN),
        ("state_5.json", b'{"step": 5', Worth.BAD),
        ("state_5.json", b"", Worth.BAD),
        ("state_5.json", b"\xff", Worth.BAD),
        ("ckpt-5.safetensors", safetensors(), Worth.UNKNOWN),
        ("ckpt-5.safetensors", safetensors(3), Worth.BAD),
        ("ckpt-5.safetensors", safetensors(5), Worth.BAD),
        ("ckpt-5.safetensors", safetensors()[:30], Worth.BAD),
        ("ckpt-5.safetensors", struct.pack("<Q", 2) + b"[]", Worth.BAD),
        ("ckpt-5.safetensors", b"abc", Worth.BAD),
        ("step_5.bin", b"abc", Worth.UNKNOWN),
        ("step_5.bin", b"", Worth.BAD),
        ("step_5.bin", bytes(3 << 20), Worth.BAD),
        ("step_5.pt", b"PK\x03", Worth.BAD),
        ("step_5.pt", b"PK\x03\x04 and no more", Worth.BAD),
        ("step_5.pt", b"of torch before 1.6", Worth.UNKNOWN),
    ],
)
def test_what_has_no_seal_is_worth_what_its_format_tells(
    name: str, content: bytes, worth: Worth, tmp_path: Path
) -> None:
    """Nothing proves bytes without a checksum; what contradicts itself is bad all the same."""
    (tmp_path / name).write_bytes(content)

    assert worth is oracle.worth(tmp_path / name)
    assert not oracle.is_good(tmp_path / name)


def sealed(path: Path) -> Path:
    """The file, with the seal that a supervisor makes for other people's."""
    write_bound_seal(path, hashlib.sha256(path.read_bytes()).hexdigest(), Identity.of(path.stat()))
    return path


def written(path: Path, text: str = '{"a": 1}', age_seconds: int = 0) -> Path:
    """A file that was written so long ago."""
    path.write_text(text)
    at = path.stat().st_mtime_ns - age_seconds * 10**9
    os.utime(path, ns=(at, at))
    return path


def test_the_seal_that_a_supervisor_made_is_believed_and_checked(tmp_path: Path) -> None:
    """It proves its bytes, wherever they were touched or moved; of its very file it condemns others."""
    path = sealed(written(tmp_path / "state_5.json"))
    assert Worth.PROVEN is oracle.worth(path)
    path.chmod(0o600)
    assert Worth.PROVEN is oracle.worth(path)

    os.utime(path, ns=(1, 1))
    stale = json.loads((tmp_path / ".lastgood" / "seals" / "state_5.json.json").read_text())
    path.write_text('{"a": 2}')
    as_it_is = {**stale, **Identity.of(path.stat())._asdict()}
    (tmp_path / ".lastgood" / "seals" / "state_5.json.json").write_text(json.dumps(as_it_is))
    assert Worth.BAD is oracle.worth(path)


@pytest.mark.parametrize("text", ['{"a": 2}', '{"a": 22}'])
def test_a_seal_that_is_older_than_its_file_condemns_nothing(text: str, tmp_path: Path) -> None:
    """Bytes that were put there since are a new arrival, as the product has it, be they as many or not."""
    path = sealed(written(tmp_path / "state_5.json", age_seconds=9))
    path.write_text(text)
    assert Worth.UNKNOWN is oracle.worth(path)

    path.write_text(text[:-1])
    assert Worth.BAD is oracle.worth(path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"sha256": 1}', "\0"])
def test_a_made_seal_that_cannot_be_read_is_none(content: str, tmp_path: Path) -> None:
    """What a power cut left of it says nothing about the snapshot."""
    path = sealed(written(tmp_path / "state_5.json"))
    (tmp_path / ".lastgood" / "seals" / "state_5.json.json").write_text(content)

    assert Worth.UNKNOWN is oracle.worth(path)


def test_of_unknown_worth_is_chosen_only_where_nothing_is_proven(tmp_path: Path) -> None:
    """As the product chooses: a proven one is preferred to newer ones of which nothing is known; else the newest of those."""
    there = oracle.Snapshots(tmp_path)
    for step in (8, 9, 10):
        written(tmp_path / f"state_{step}.json")
    written(tmp_path / "state_11.json", "{")
    assert (["state_10.json"], None) == (list(there.good()), latest_healthy(tmp_path))

    sealed(tmp_path / "state_8.json")
    sealed(tmp_path / "state_9.json")
    assert ["state_9.json", "state_8.json"] == list(there.good())
    assert tmp_path / "state_9.json" == latest_healthy(tmp_path)


def test_what_is_passed_over_is_not_the_newest_that_counts(tmp_path: Path) -> None:
    """A trainer that saves faster than anything is sealed has always some above the one that is chosen; a bad one counts."""
    there = oracle.Snapshots(tmp_path)
    for step in (8, 9):
        written(tmp_path / f"state_{step}.json")
    assert 9 == there.newest_number()

    sealed(tmp_path / "state_8.json")
    assert 8 == there.newest_number()

    written(tmp_path / "state_10.json", "{")
    assert 10 == there.newest_number()


def test_a_sealed_one_in_quarantine_is_noticed_by_the_seal_that_went_along(tmp_path: Path) -> None:
    """What nothing proves may be set aside for what is proven; what was proven may not."""
    place = tmp_path / ".lastgood" / "quarantine" / "x"
    place.mkdir(parents=True)
    path = sealed(written(tmp_path / "state_5.json"))
    path.rename(place / path.name)
    assert [] == oracle.Snapshots(tmp_path).good_in_quarantine()

    (tmp_path / ".lastgood" / "seals" / "state_5.json.json").rename(place / "state_5.json.json")
    assert [str(place / path.name)] == oracle.Snapshots(tmp_path).good_in_quarantine()


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


@pytest.mark.parametrize("line", ['{"loss": 1}', '{"step": null}', "[1]", "7"])
def test_metrics_of_another_kind_tell_no_step(line: str, tmp_path: Path) -> None:
    """Any trainer may write a file of that name."""
    (tmp_path / "metrics.jsonl").write_text(f"{line}\n")

    assert oracle.last_metric(tmp_path) is None


@pytest.mark.parametrize("line", ['{"step": 3, "lo', "7", '{"step": 3}', "\udcff"])
def test_a_torn_line_is_a_finding(line: str, tmp_path: Path) -> None:
    """The bundled trainer repairs its own metrics; where it has not, the comparison says which line it is, and goes on."""
    one, other = made(tmp_path / "a", LOSSES), made(tmp_path / "b", LOSSES)
    with (other / "metrics.jsonl").open("a", errors="surrogateescape") as file:
        file.write(f"{line}\n")
    found = oracle.compare(one, other, 3)

    assert ["line 4 of metrics.jsonl makes no sense"] == found.problems
    assert (3, 3) == (found.steps_compared, found.lines_compared)

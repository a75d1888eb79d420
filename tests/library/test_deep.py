"""A deep look: NaN anywhere poisons a snapshot, infinities only where the one before it had none."""

import os
from pathlib import Path

import pytest
import torch

from lastgood import deep
from lastgood.judging import verify
from lastgood.nonfinite import ScanError
from lastgood.verdict import Kind

INF, NAN = float("inf"), float("nan")


def save(path: Path, **tensors: list[float]) -> Path:
    """A torch file with the given float32 tensors in its model."""
    path.parent.mkdir(exist_ok=True)
    torch.save({"model": {name: torch.tensor(values) for name, values in tensors.items()}}, path)
    return path


def test_a_new_infinity_poisons_and_is_named(tmp_path: Path) -> None:
    """The reason says where, how many, and which snapshot had none there."""
    save(tmp_path / "step_1.pt", weight=[1.0, 2.0], mask=[-INF, 0.0])
    path = save(tmp_path / "step_2.pt", weight=[INF, 2.0], mask=[-INF, 0.0])
    verdict = verify(path, deep=True)

    assert (Kind.POISONED, True) == (
        verdict.kind,
        "1 Inf in model.weight (float32), which had none in step_1.pt; its bytes are good (intact)" in verdict.reason,
    )
    assert Kind.INTACT is verify(path).kind


def test_an_infinity_that_was_there_before_is_as_it_should_be(tmp_path: Path) -> None:
    """A mask of minus infinity is part of the model."""
    save(tmp_path / "step_1.pt", mask=[-INF, 0.0])
    path = save(tmp_path / "step_2.pt", mask=[-INF, 0.0])
    verdict = verify(path, deep=True)

    assert (Kind.INTACT, True) == (verdict.kind, "Inf in model.mask, as step_1.pt has" in verdict.reason)


def test_without_an_older_snapshot_an_infinity_proves_nothing(tmp_path: Path) -> None:
    """Nor is a newer one, or one that cannot be looked into, the one before it."""
    path = save(tmp_path / "step_2.pt", mask=[-INF, 0.0])
    save(tmp_path / "step_3.pt", mask=[0.0, 0.0])
    (tmp_path / "step_1.pt").write_bytes(path.read_bytes()[:300])
    verdict = verify(path, deep=True)

    assert (Kind.INTACT, True) == (verdict.kind, "no older snapshot to tell" in verdict.reason)


def test_a_damaged_neighbour_gives_way_to_the_one_before_it(tmp_path: Path) -> None:
    """What the snapshot before it had is asked of the newest older one that still tells."""
    save(tmp_path / "step_1.pt", weight=[1.0])
    (tmp_path / "step_2.pt").write_bytes(b"PK\x03\x04")
    path = save(tmp_path / "step_3.pt", weight=[INF])

    assert (Kind.POISONED, True) == (verify(path, deep=True).kind, "in step_1.pt" in verify(path, deep=True).reason)


def test_a_folder_is_looked_into_file_by_file(tmp_path: Path) -> None:
    """The tensor is named with its file; files of other kinds are passed over."""
    folder = tmp_path / "checkpoint-2"
    save(folder / "model.pt", weight=[1.0])
    save(folder / "optimizer.pt", moment=[NAN])
    (folder / "notes.txt").write_text("not a tensor")
    (folder / "empty").touch()
    verdict = verify(folder, deep=True)

    assert (Kind.POISONED, True) == (verdict.kind, "1 NaN in optimizer.pt: model.moment (float32)" in verdict.reason)


def test_what_cannot_be_looked_into_keeps_its_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed look says nothing of the tensors, and the reason says that."""
    path = save(tmp_path / "step_1.pt", weight=[NAN])

    def fail(*_: object) -> None:
        raise ScanError("the scan took too long")

    monkeypatch.setattr(deep, "scan_in_child", fail)
    verdict = verify(os.fspath(path), deep=True)

    assert (Kind.INTACT, True) == (verdict.kind, "not looked into: the scan took too long" in verdict.reason)

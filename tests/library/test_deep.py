"""A deep look: NaN anywhere poisons a snapshot, infinities only where the one before it had none."""

import os
import zipfile
from pathlib import Path

import pytest
import torch

from lastgood import deep
from lastgood.judging import verify
from lastgood.nonfinite import EndedError, NonFinite, ScanError
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


@pytest.mark.parametrize(("error", "looks"), [(EndedError("the scan ended by SIGKILL"), 2), (ScanError("damaged"), 4)])
def test_few_older_ones_are_asked_and_none_after_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ScanError, looks: int
) -> None:
    """Whoever ends the look at an older snapshot wants no further one; three that say nothing are enough."""
    paths = [save(tmp_path / f"step_{number}.pt", mask=[-INF]) for number in range(8)]
    asked: list[str] = []

    def one(path: str, _: float) -> list[NonFinite]:
        asked.append(path)
        if len(asked) > 1:
            raise error
        return [NonFinite("model.mask", "float32", 0, 1, 0)]

    monkeypatch.setattr(deep, "scan_in_child", one)
    verdict = verify(os.fspath(paths[-1]), deep=True)

    assert (Kind.INTACT, [os.fspath(path) for path in paths[::-1][:looks]]) == (verdict.kind, asked)


def test_the_last_good_one_tells_what_is_new_and_not_the_first_bad_one(tmp_path: Path) -> None:
    """After a snapshot that diverged, the next ones with the same infinity are no better."""
    save(tmp_path / "step_1.pt", weight=[1.0], mask=[-INF])
    save(tmp_path / "step_2.pt", weight=[INF], mask=[-INF])
    path = save(tmp_path / "step_3.pt", weight=[INF], mask=[-INF])

    assert (Kind.POISONED, True) == (
        verify(path, deep=True).kind,
        "had none in step_1.pt" in verify(path, deep=True).reason,
    )


def test_what_has_no_known_tensors_was_not_looked_into(tmp_path: Path) -> None:
    """To find nothing where nothing was looked for is no finding."""
    path = tmp_path / "step_1.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights.npy", b"numbers")

    assert "were not looked into: it names no tensors" in verify(path, deep=True).reason

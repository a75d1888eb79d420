"""Loading: fast for a large file, and nothing of what was loaded hangs on the file afterwards."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from lastgood.checkpoint import CheckpointManager, load_verified, save_checkpoint_atomic
from lastgood.loading import load_open

LARGE = 1 << 20


def saved(folder: Path, **payload: Any) -> Path:
    """A snapshot of it."""
    path = folder / "ckpt_00000001.pt"
    save_checkpoint_atomic(payload, path)
    return path


def anonymous(tensor: torch.Tensor) -> bool:
    """Whether the memory behind a tensor belongs to this process alone, and to no file."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        ends, _, _, device, *_ = line.split(maxsplit=5)
        first, last = (int(end, 16) for end in ends.split("-"))
        if first <= tensor.data_ptr() < last:
            return device == "00:00"
    raise AssertionError("in no map at all")


@pytest.mark.parametrize("where", ["cpu", torch.device("cpu")])
def test_what_was_loaded_outlives_the_file(tmp_path: Path, where: Any) -> None:
    """Cut short in place and removed once it was loaded, which would kill a process that reads from a map of the file."""
    path = saved(tmp_path, weight=torch.arange(LARGE))
    loaded = load_verified(path, where)["weight"]
    assert anonymous(loaded)  # or the next line would end this process
    os.truncate(path, 0)
    path.unlink()

    assert torch.equal(torch.arange(LARGE), loaded)


def test_a_large_file_is_not_read_into_memory_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is mapped, and each storage copied once, whoever asks by the manager or by the path."""
    asked = []
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda *words, **more: asked.append(more.get("mmap")) or load(*words, **more))
    model = torch.nn.Linear(8, 8)
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, model, torch.optim.SGD(model.parameters()))
        asked.clear()  # of those with which saving makes sure that it can be loaded

        assert manager.load_latest() is not None
        assert manager.load(tmp_path / "ckpt_00000001.pt") is not None
    assert [True, True] == asked


def test_what_was_shared_is_shared_again(tmp_path: Path) -> None:
    """Tied weights and views stay one storage: a step on one is a step on the other."""
    weight = torch.arange(8.0)
    loaded = load_verified(saved(tmp_path, one=weight, other=weight, part=weight[2:4]))
    loaded["one"].add_(1)

    assert torch.equal(torch.arange(8.0) + 1, loaded["other"])
    assert [3.0, 4.0] == loaded["part"].tolist()


def test_what_cannot_be_mapped_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filesystem without maps, a limit on address space and torch's old format take no snapshot away."""
    path = saved(tmp_path, weight=torch.arange(8))
    old = tmp_path / "old.pt"
    torch.save({"weight": torch.arange(9)}, old, _use_new_zipfile_serialization=False)
    with old.open("rb") as file:
        assert 9 == len(load_open(file, "cpu")["weight"])

    def refuse(*_words: Any, **_more: Any) -> None:
        raise RuntimeError("unable to mmap: Cannot allocate memory (12)")

    monkeypatch.setattr(torch.UntypedStorage, "from_file", refuse)
    assert 8 == len(load_verified(path)["weight"])


def test_a_mapping_of_ones_own_is_asked(tmp_path: Path) -> None:
    """A dict, a function or None for `map_location` means to torch what it always meant."""
    path = saved(tmp_path, weight=torch.arange(8))
    seen = []

    def place(storage: Any, location: str) -> Any:
        seen.append(location)
        return storage

    for where in (None, {"cuda:0": "cpu"}, place):
        loaded = load_verified(path, where)["weight"]
        assert torch.equal(torch.arange(8), loaded)
        assert anonymous(loaded)
    assert ["cpu"] == seen


def test_a_device_takes_its_part_from_the_map(tmp_path: Path) -> None:
    """Another device than the CPU is handed to torch as it was given: here one that keeps shapes alone."""
    path = saved(tmp_path, weight=torch.arange(8))
    loaded = load_verified(path, torch.device("meta"))["weight"]

    assert ("meta", (8,)) == (loaded.device.type, tuple(loaded.shape))


def test_the_open_file_is_loaded_whatever_has_its_name_now(tmp_path: Path) -> None:
    """Proven and loaded are the same bytes, also when another snapshot was published under the name in between."""
    path = saved(tmp_path, weight=torch.arange(8))
    with path.open("rb") as file:
        saved(tmp_path, weight=torch.arange(9))
        file.read()
        assert 8 == len(load_open(file, "cpu")["weight"])

"""Sides of the rows about saving: a model with its optimizer, as large as asked for, on a real disk."""

import itertools
import os
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.harness import Scale, Sides
from lastgood import CheckpointManager, capture_rng_state

PARAMETER_BYTES = 16_000_000
IDLE_STEPS = 10


def model_and_optimizer(size: int) -> tuple[Any, Any]:
    """A model and an AdamW with its moments, together of about `size` bytes, without the cost of a step."""
    import torch

    count = max(size // 3 // PARAMETER_BYTES, 1)
    each = size // 3 // count // 4
    model = torch.nn.ParameterList([torch.randn(each) for _ in range(count)])
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        moments = {"exp_avg": torch.randn(each), "exp_avg_sq": torch.rand(each)}
        optimizer.state[parameter] = {"step": torch.tensor(1.0), **moments}
    return model, optimizer


def _written_and_synced(path: Path, write: Callable[[], object]) -> float:
    """Seconds until a file is on the disk; it is gone afterwards."""
    started = time.perf_counter()
    write()
    with path.open("rb") as file:
        os.fsync(file.fileno())
    seconds = time.perf_counter() - started
    path.unlink()
    return seconds


def torch_save_and_fsync(model: Any, optimizer: Any, folder: Path) -> float:
    """What a careful script does."""
    import torch

    path = folder / "theirs.bin"

    def write() -> None:
        payload = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": capture_rng_state()}
        torch.save(payload, path)

    return _written_and_synced(path, write)


def safetensors_and_fsync(model: Any, optimizer: Any, folder: Path) -> float:
    """The tensors alone, which is all that this format holds."""
    from safetensors.torch import save_file

    path = folder / "theirs.bin"

    def write() -> None:
        states = optimizer.state_dict()["state"].items()
        moments = {f"{number}.{key}": one for number, state in states for key, one in state.items()}
        save_file(dict(model.state_dict()) | moments, path)

    return _written_and_synced(path, write)


def dcp_async_save(model: Any, optimizer: Any, folder: Path) -> float:
    """PyTorch's own save in the background; the next one begins when it is over."""
    from torch.distributed.checkpoint import async_save

    path = folder / "theirs"
    started = time.perf_counter()
    with warnings.catch_warnings(action="ignore"):  # that nothing is distributed
        saving = async_save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=path)
        seconds = time.perf_counter() - started
        saving.result()
    shutil.rmtree(path)
    return seconds


@contextmanager
def saving(scale: Scale) -> Iterator[Sides]:
    """Saves that are waited for, without the reading back and pruning that follow in the background; and the time that a
    non-blocking save keeps its caller, when the one before is over, as in training it is. Against what others do.
    """
    model, optimizer = model_and_optimizer(scale.large_bytes)
    slowdown: list[float] = []
    steps = itertools.count(1)
    with CheckpointManager(scale.folder, max_to_keep=2) as manager:

        def save(blocking: bool) -> float:
            started = time.perf_counter()
            manager.save(next(steps), model, optimizer, blocking=blocking)
            return time.perf_counter() - started

        def waited_for() -> float:
            seconds = save(True)
            manager.wait()
            return seconds

        def behind() -> float:
            idle = [one_step() for _ in range(IDLE_STEPS)]
            seconds = save(False)
            slowdown.append(Figure.of(list(steps_meanwhile())).value / Figure.of(idle).value)
            manager.wait()
            return seconds

        peers = {"torch": torch_save_and_fsync, "safetensors": safetensors_and_fsync, "dcp": dcp_async_save}
        others = {name: partial(peer, model, optimizer, scale.folder) for name, peer in peers.items()}
        shown = {"a training step while a non-blocking save is written, x one without": slowdown}
        yield Sides(waited_for, beside=shown, more={"behind": behind} | others)


def one_step() -> float:
    """A little work on all processors, as a training step is: seconds."""
    import torch

    started = time.perf_counter()
    weights = torch.ones(512, 512)
    for _ in range(2):
        weights = (weights @ weights).clamp(-1, 1)
    return time.perf_counter() - started


def steps_meanwhile() -> Iterator[float]:
    """Steps for as long as a save goes on in the background."""
    yield one_step()
    while any(thread.name == "lastgood-save" for thread in threading.enumerate()):
        yield one_step()

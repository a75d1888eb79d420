"""What is set once for a whole process, before anything is built: torch's switches, the seeds, the signals."""

import contextlib
import os
import random
import shutil
import signal
from collections.abc import Iterator

import numpy as np
import torch

from trainer.distributed import Ranks
from trainer.settings import Settings, UsageError


def device_type(settings: Settings) -> str:
    """The device without its number: "cpu" or "cuda"."""
    return settings.device.partition(":")[0]


def set_up_torch(settings: Settings, ranks: Ranks) -> None:
    """Check that the device is there, and set what is set once for a whole process."""
    if device_type(settings) == "cuda":
        set_up_cuda(settings, ranks)
    elif settings.compile and not shutil.which(compiler := os.environ.get("CXX", "g++")):
        raise UsageError("compile", f"{compiler} is not there, and torch needs it; install it, or leave compile out")
    if settings.threads:
        torch.set_num_threads(settings.threads)
    deterministic = settings.deterministic if settings.deterministic is not None else settings.device == "cpu"
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # costs time, and nothing here reads such memory
    torch.set_float32_matmul_precision("high")  # TF32 where the GPU has it


def set_up_cuda(settings: Settings, ranks: Ranks) -> None:
    """Check the GPU; of several processes on a machine each has its own, which is then what "cuda" means to it."""
    number = settings.device.partition(":")[2]
    if number and ranks.count > 1:
        raise UsageError("device", f"{settings.device} is one GPU for {ranks.count} processes; use device: cuda")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= count:
        problem = f"{settings.device} is not there, torch sees {count} GPUs"
        raise UsageError("device", f"{problem}; use device: cpu")
    if ranks.count > 1 and ranks.local_count > count:
        problem = f"{ranks.local_count} processes on this machine need as many GPUs, torch sees {count}"
        raise UsageError("device", f"{problem}; start {count} with torchrun, or use device: cpu")
    torch.cuda.set_device(int(number) if number else ranks.local_rank)
    if settings.dtype == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        problem = f"bfloat16 is not supported by {settings.device}"
        raise UsageError("dtype", f"{problem}; use float16 or float32")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats itself only with this


def seed_everything(seed: int) -> None:
    """Every global random generator starts from the seed, so that equal runs have equal snapshots."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # it takes no more than 32 bits


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """SIGTERM and SIGINT only leave their number in the list: the step in hand and the save are finished."""
    stop: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda number, _: stop.append(number)) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)

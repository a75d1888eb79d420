"""The GPUs that a trainer can see: whether they are there, and whether dead processes still hold their memory.

Asked of NVML, which the extra `gpu` installs; without it, or without a GPU, nothing is ever found. NVML is open only for the
moment of a look, since who holds it open stands in the way of a driver that is loaded anew and of a GPU that is reset.
"""

import importlib
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from supervisor.core.events import Hindrance, Obstacle

RELEASE_SECONDS = 3.0  # a driver takes a moment to give back what a killed process held
APART_SECONDS = 0.1
_GONE = frozenset({6, 15, 16, 999})  # not found, lost, needs a reset, and the unknown error of one off the bus
_NONE = ("", "-1", "none", "void", "NoDevFiles")


class Gpus:
    """Those GPUs of this machine that `visible`, the trainer's CUDA_VISIBLE_DEVICES, names; all when it is None.

    Numbers in it count as NVML counts, by bus, which is CUDA's order too where the GPUs are alike. The first look remembers
    which there are; `look` is for one thread at a time.
    """

    def __init__(self, visible: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._visible = visible
        self._clock = clock
        self._known: tuple[str, ...] = ()
        self._dead: frozenset[int] = frozenset()

    def died(self, pids: Collection[int]) -> None:
        """Processes of the run have ended, whose memory must be free before the next start. For any thread."""
        if self._nvml() is not None:
            self._dead |= frozenset(pids)

    def look(self) -> Hindrance | None:
        """What of them stands in the way of a start; takes a few seconds when memory is slow to be released."""
        nvml = self._nvml()
        if nvml is None:
            return None
        try:
            with _opened(nvml):
                return self._found(nvml)
        except nvml.NVMLError as error:
            if self._known:
                return _lost(self._known, error)
            self._dead = frozenset()
            return None

    def _nvml(self) -> Any:
        """NVML's binding; None where no GPU is to be asked of, or it is not installed."""
        return None if self._visible is not None and self._visible.split(",")[0].strip() in _NONE else _module()

    def _found(self, nvml: Any) -> Hindrance | None:
        self._known = self._known or tuple(_named(_uuids(nvml), self._visible))
        gone = {uuid: error for uuid in self._known if (error := _why_gone(nvml, uuid)) is not None}
        if gone:
            return _lost(tuple(gone), next(iter(gone.values())))
        until = self._clock() + RELEASE_SECONDS
        while held := {uuid: pids for uuid in self._known if (pids := _holders(nvml, uuid) & self._dead)}:
            if self._clock() >= until:
                return Hindrance(Obstacle.GPU_BUSY, {"gpus": list(held), "pids": sorted(set().union(*held.values()))})
            time.sleep(APART_SECONDS)
        self._dead = frozenset()
        return None


def _module() -> Any:
    """NVML's binding; None where it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


@contextmanager
def _opened(nvml: Any) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _lost(gpus: tuple[str, ...], error: Exception) -> Hindrance:
    return Hindrance(Obstacle.GPU_LOST, {"gpus": list(gpus), "reason": f"NVML: {error}"})


def _uuids(nvml: Any) -> list[str]:
    """All GPUs by number; None stands for none, since one that does not answer keeps its number."""
    found = []
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            found.append(_text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(number))))
        except nvml.NVMLError:
            found.append("")
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _named(uuids: list[str], visible: str | None) -> list[str]:
    """The GPUs that a list of numbers and UUIDs names. As CUDA reads it, what comes after a name of none does not count."""
    if visible is None:
        return [uuid for uuid in uuids if uuid]
    found = []
    for word in map(str.strip, visible.split(",")):
        if word.startswith("MIG-"):
            found.append(word)
        elif word.isdecimal() and int(word) < len(uuids):
            found.append(uuids[int(word)])
        elif word.startswith("GPU-") and (one := next((uuid for uuid in uuids if uuid.startswith(word)), None)):
            found.append(one)
        else:
            break
    return [uuid for uuid in found if uuid]


def _why_gone(nvml: Any, uuid: str) -> Exception | None:
    """The error with which a GPU is away; None when it answers, or will not for another reason."""
    try:
        nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError as error:
        return error if error.value in _GONE else None
    return None


def _holders(nvml: Any, uuid: str) -> frozenset[int]:
    """Processes that hold memory of a GPU and are no more. A living one of such a number is another by now."""
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError:
        return frozenset()
    return frozenset(one.pid for one in running if not os.path.exists(f"/proc/{one.pid}"))

"""The GPUs of a trainer, as a fake NVML tells of them; and as a real one does, where there is one."""

import os
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from supervisor.adapters import gpu
from supervisor.adapters.gpu import Gpus
from supervisor.core.events import Hindrance, Obstacle

FIRST, SECOND = "GPU-aaaa-1", "GPU-bbbb-2"
DEAD = 2**22 + 7  # above the largest pid there is
LOST, UNKNOWN, NOT_LOADED, NOT_SUPPORTED = 15, 999, 9, 3
WORDS = {LOST: "GPU is lost", UNKNOWN: "Unknown Error", NOT_LOADED: "Driver Not Loaded", NOT_SUPPORTED: "Not Supported"}


class FakeNvml(ModuleType):
    """As pynvml: two GPUs, of which any may be lost, and the processes on each."""

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(WORDS[value])
            self.value = value

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.gpus = [FIRST, SECOND]
        self.errors: dict[str, int] = {}
        self.running: dict[str, list[int]] = {}
        self.unusable: int | None = None
        self.open = 0
        self.looks = 0

    def nvmlInit(self) -> None:
        if self.unusable is not None:
            raise self.NVMLError(self.unusable)
        self.open += 1
        self.looks += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> str:
        return self.nvmlDeviceGetHandleByUUID(self.gpus[number])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        assert self.open == 1
        if uuid in self.errors or (uuid not in self.gpus and not uuid.startswith("MIG-")):
            raise self.NVMLError(self.errors.get(uuid, LOST))
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:
        return handle.encode()

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        if handle.startswith("MIG-"):
            raise self.NVMLError(NOT_SUPPORTED)
        return SimpleNamespace(used=1)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        if handle.startswith("MIG-"):
            raise self.NVMLError(NOT_SUPPORTED)
        return [SimpleNamespace(pid=pid) for pid in self.running.get(handle, [])]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    """A machine with two GPUs; whatever is asked, NVML is not left open."""
    made = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.setattr(gpu, "RELEASE_SECONDS", 0.3)
    monkeypatch.setattr(gpu, "APART_SECONDS", 0.01)
    yield made
    assert 0 == made.open


def lost(*gpus: str, reason: str = "NVML: GPU is lost") -> Hindrance:
    return Hindrance(Obstacle.GPU_LOST, {"gpus": list(gpus), "reason": reason})


def test_without_the_extra_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without NVML's binding is one without GPUs to look after."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Gpus(None).look() is None


def test_without_a_driver_nothing_is_found(nvml: FakeNvml) -> None:
    """The binding may be there and the driver not; that is no GPU lost, since there never was one."""
    nvml.unusable = NOT_LOADED
    assert Gpus(None).look() is None


@pytest.mark.parametrize("visible", ["", "-1", "none", " ", "-1,0"])
def test_a_trainer_that_sees_no_gpu_is_not_asked_after(visible: str, nvml: FakeNvml) -> None:
    """NVML is not even opened."""
    assert Gpus(visible).look() is None
    assert 0 == nvml.looks


@pytest.mark.parametrize("error", [LOST, UNKNOWN])
def test_a_lost_gpu_is_told_until_it_is_back(error: int, nvml: FakeNvml) -> None:
    """One that answered at the first look and is lost, or no longer found, stands in the way of a start."""
    gpus = Gpus(None)
    assert gpus.look() is None
    nvml.errors[SECOND] = error
    assert lost(SECOND, reason=f"NVML: {WORDS[error]}") == gpus.look()
    del nvml.errors[SECOND]
    assert gpus.look() is None
    nvml.gpus = [FIRST]
    assert lost(SECOND) == gpus.look()


def test_a_driver_that_is_gone_takes_all_gpus_with_it(nvml: FakeNvml) -> None:
    """They were there, and NVML no longer opens."""
    gpus = Gpus(None)
    assert gpus.look() is None
    nvml.unusable = NOT_LOADED
    assert lost(FIRST, SECOND, reason="NVML: Driver Not Loaded") == gpus.look()


@pytest.mark.parametrize(
    ("visible", "known"),
    [
        (None, [FIRST, SECOND]),
        ("0,1", [FIRST, SECOND]),
        ("1", [SECOND]),
        (" 1 , 0", [SECOND, FIRST]),
        ("1,-1,0", [SECOND]),
        ("1,7,0", [SECOND]),
        ("GPU-bbbb", [SECOND]),
        (f"{FIRST}", [FIRST]),
        ("GPU-cccc", []),
        ("MIG-4711", ["MIG-4711"]),
        ("all", []),
    ],
)
def test_only_what_the_trainer_sees_counts(visible: str | None, known: list[str], nvml: FakeNvml) -> None:
    """Numbers, UUIDs and their beginnings; a name of none ends the list, as CUDA has it."""
    gpus = Gpus(visible)
    assert gpus.look() is None
    nvml.errors = {FIRST: LOST, SECOND: LOST, "MIG-4711": LOST}
    found = gpus.look()
    assert (lost(*known) if known else None) == found


def test_one_that_did_not_answer_at_the_first_look_is_not_waited_for(nvml: FakeNvml) -> None:
    """Nobody knows whether it was ever meant; those after it keep their numbers."""
    nvml.errors[FIRST] = LOST
    gpus = Gpus("0,1")
    assert gpus.look() is None
    nvml.errors[SECOND] = LOST
    assert lost(SECOND) == gpus.look()


def test_memory_of_dead_processes_is_waited_for(nvml: FakeNvml) -> None:
    """A GPU whose memory a dead process of the run still holds is busy; once it is released nothing is."""
    gpus = Gpus(None)
    gpus.died([DEAD, DEAD + 1])
    nvml.running = {FIRST: [os.getpid()], SECOND: [DEAD]}
    assert Hindrance(Obstacle.GPU_BUSY, {"gpus": [SECOND], "pids": [DEAD]}) == gpus.look()
    assert Hindrance(Obstacle.GPU_BUSY, {"gpus": [SECOND], "pids": [DEAD]}) == gpus.look()
    nvml.running = {}
    assert gpus.look() is None
    nvml.running = {SECOND: [DEAD]}
    assert gpus.look() is None  # by now that is somebody else's


@pytest.mark.parametrize("visible", [None, "-1"])
def test_where_no_gpu_is_asked_of_nobody_is_remembered(monkeypatch: pytest.MonkeyPatch, visible: str | None) -> None:
    """Without the binding, or for a trainer that sees no GPU, a run of a year keeps no list of its dead."""
    monkeypatch.setattr(gpu, "_module", lambda: None if visible is None else object())
    gpus = Gpus(visible)
    gpus.died([DEAD])

    assert (None, frozenset()) == (gpus.look(), gpus._dead)


def test_where_nvml_knows_no_gpu_nobody_is_remembered(nvml: FakeNvml) -> None:
    """The binding is there, and the driver is not."""
    gpus = Gpus(None)
    gpus.died([DEAD])
    nvml.unusable = NOT_LOADED

    assert (None, frozenset()) == (gpus.look(), gpus._dead)


def test_a_moment_is_given_to_release_it(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is free within seconds stands in nobody's way."""
    gpus = Gpus(None)
    gpus.died([DEAD])
    nvml.running = {FIRST: [DEAD]}
    monkeypatch.setattr("time.sleep", lambda seconds: nvml.running.clear())
    assert gpus.look() is None


def test_other_processes_are_no_business_of_ours(nvml: FakeNvml) -> None:
    """Neither those that are not of the run, also of a container's neighbours, nor a living one with the number of a dead."""
    gpus = Gpus(None)
    gpus.died([os.getpid()])
    nvml.running = {FIRST: [DEAD, os.getpid(), 1]}
    assert gpus.look() is None


def test_a_real_gpu_is_there_and_free() -> None:
    """Where a GPU and NVML's binding are, the first one is found and nothing stands in the way."""
    pynvml = pytest.importorskip("pynvml", reason="no GPU is needed to pass: nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        pytest.skip(f"no GPU is needed to pass: NVML says {error}")
    gpus = Gpus(None)
    gpus.died([DEAD])
    assert gpus.look() is None
    assert gpus._known[0].startswith("GPU-")


def test_the_binding_has_what_is_asked_of_it() -> None:
    """The names and numbers of NVML that are used here are those of the binding, where it is installed."""
    pynvml = pytest.importorskip("pynvml", reason="no GPU is needed to pass: nvidia-ml-py is not installed")
    asked = [name for name in vars(FakeNvml) if name.startswith("nvml")]
    assert [] == [name for name in asked if not hasattr(pynvml, name)]
    named = (pynvml.NVML_ERROR_NOT_FOUND, LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_UNKNOWN)
    assert gpu._GONE == frozenset(named)
    assert LOST == pynvml.NVML_ERROR_GPU_IS_LOST == pynvml.NVMLError(LOST).value

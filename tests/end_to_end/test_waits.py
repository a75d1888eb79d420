"""Runs that must wait: for room on a disk that is really full, and for a GPU that a fake NVML calls lost or held."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import supervisor.runtime  # noqa: F401 - it hands on which processes died; loaded so that it is known whose it is
from lastgood.judging import verify
from tests.bench import ROOT, Bench, until
from tests.conftest import MakeSnapshot
from tests.crash import disks
from tests.crash.conftest import give_up

STEPS = ("--steps=60", "--pause=0.03")
FINAL = ("run.final_step=60",)
NVML = """
import os
from types import SimpleNamespace


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__({9: "Driver Not Loaded", 15: "GPU is lost"}[value])
        self.value = value


def nvmlInit():
    pass


def nvmlShutdown():
    pass


def nvmlDeviceGetCount():
    return 1


def nvmlDeviceGetHandleByIndex(number):
    return nvmlDeviceGetHandleByUUID("GPU-1")


def nvmlDeviceGetHandleByUUID(uuid):
    if os.path.exists("gpu-is-lost"):
        raise NVMLError(15)
    return uuid


def nvmlDeviceGetUUID(handle):
    return handle


def nvmlDeviceGetMemoryInfo(handle):
    return None


def nvmlDeviceGetComputeRunningProcesses(handle):
    if not os.path.exists("gpu-is-held"):
        return []
    with open("gpu-is-held") as file:
        return [SimpleNamespace(pid=int(pid)) for pid in file.read().split()]
"""


@pytest.fixture
def small_disk(tmp_path: Path, bench: Bench) -> Iterator[Path]:
    """Four megabytes, with the checkpoint directory of the bench on them."""
    if reason := disks.why_not():
        give_up(reason)
    with disks.mounted("small", "tmpfs", tmp_path / "small", "size=4m") as at:
        bench.directory = at / "checkpoints"
        yield at
        end_all(bench)


def end_all(bench: Bench) -> None:
    """No supervisor holds a disk that is about to go."""
    for process in bench.started:
        process.terminate()
        process.wait(20)


def fill(at: Path, free_pages: int) -> list[Path]:
    """Leave just so many pages free."""
    status = os.statvfs(at)
    filler = at / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, (status.f_bavail - free_pages) * status.f_bsize)
    return [filler]


def use_up(at: Path, free_inodes: int) -> list[Path]:
    """Leave just so many files that can be made."""
    fillers = [at / f"{number}" for number in range(os.statvfs(at).f_favail - free_inodes)]
    for filler in fillers:
        filler.touch()
    return fillers


def told(bench: Bench, event: str) -> list[dict[str, Any]]:
    """Records of one kind as the last supervisor printed them: on a full disk events.jsonl takes none."""
    log = bench.folder / f"supervisor-{len(bench.started) - 1}.log"
    lines = [line for line in log.read_bytes().split(b"\n")[:-1] if line.startswith(b"{")]
    return [entry for entry in map(json.loads, lines) if entry["event"] == event]


def good_steps(bench: Bench) -> set[int]:
    """Steps of snapshots that are whole."""
    return {int(path.stem[5:]) for path in bench.directory.glob("step_*.pt") if verify(path).proven}


def lives_through_a_full_disk(bench: Bench, take_room: Callable[[], list[Path]]) -> None:
    """Fill the disk under a run, make room again, and see that it cost nothing but time."""
    process = bench.start(*bench.command(*STEPS, sets=FINAL))
    until(lambda: 5 in good_steps(bench))
    fillers = take_room()
    died = until(lambda: told(bench, "trainer.exited"))[0]
    low = until(lambda: [one for one in told(bench, "disk.low") if one["seq"] > died["seq"]])[0]
    assert ("out-of-disk", 1) == (died["cause"], died["code"])
    assert low["free_bytes"] < low["needed_bytes"] or low["free_inodes"] < low["needed_inodes"]
    held, starts = good_steps(bench), len(bench.starts())
    for filler in fillers:
        filler.unlink()
    assert 0 == process.wait(60)

    assert held <= good_steps(bench)
    assert 60 in good_steps(bench)
    assert starts + 1 == len(bench.starts())
    assert str(max(held)) == bench.starts()[-1]
    assert 0 == told(bench, "restart.scheduled")[0]["without_progress"]
    assert 1 == len(told(bench, "disk.freed"))


def test_a_disk_that_fills_under_a_run_is_waited_for(small_disk: Path, bench: Bench) -> None:
    """The trainer dies of it, the run waits, and with room again goes on from its newest snapshot; nothing is lost or spent."""
    lives_through_a_full_disk(bench, lambda: fill(small_disk, 0))


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_twenty_disks_that_fill_to_another_page_each(tmp_path: Path, bench: Bench) -> None:
    """Wherever in a save, a record or run.json the room ends, the run goes on once there is some."""
    if reason := disks.why_not():
        give_up(reason)
    for free_pages in range(20):
        with disks.mounted("small", "tmpfs", tmp_path / f"small-{free_pages}", "size=4m") as at:
            bench.directory = at / "checkpoints"
            try:
                lives_through_a_full_disk(bench, partial(fill, at, free_pages))
            finally:
                end_all(bench)


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_filesystems_that_run_out_of_inodes_at_another_file_each(tmp_path: Path, bench: Bench) -> None:
    """Whether the last file was a snapshot, its seal or one of the supervisor's own, the run goes on once more can be made."""
    if reason := disks.why_not("ext4"):
        give_up(reason)
    for free_inodes in range(10):
        image = disks.make_image(tmp_path / f"image-{free_inodes}", "ext4", "-N", "64")
        with disks.loop_device(image) as device, disks.mounted(device, "ext4", tmp_path / f"few-{free_inodes}") as at:
            bench.directory = at / "checkpoints"
            try:
                lives_through_a_full_disk(bench, partial(use_up, at, free_inodes))
            finally:
                end_all(bench)


def test_a_start_on_a_full_disk_waits_and_a_stop_ends_the_wait(small_disk: Path, bench: Bench) -> None:
    """No trainer is started without room for a save, it is said once, and a stop works at once."""
    bench.directory.mkdir()
    fill(small_disk, 8)
    process = bench.start(*bench.command(*STEPS))
    until(lambda: told(bench, "disk.low"))
    process.terminate()
    assert 143 == process.wait(20)
    assert not (bench.directory / "starts.txt").exists()
    low = told(bench, "disk.low")
    assert [("warning", str(bench.directory))] == [(one["level"], one["path"]) for one in low]
    assert low[0]["free_bytes"] <= 8 * 4096


def test_a_filesystem_without_inodes_is_waited_for(tmp_path: Path, bench: Bench) -> None:
    """Bytes are free and no file can be made: that is a full disk as well, and told as what it is."""
    if reason := disks.why_not("ext4"):
        give_up(reason)
    image = disks.make_image(tmp_path / "image", "ext4", "-N", "64")
    with disks.loop_device(image) as device, disks.mounted(device, "ext4", tmp_path / "few") as at:
        bench.directory = at / "checkpoints"
        bench.directory.mkdir()
        (bench.directory / ".lastgood").mkdir()
        fillers = use_up(at, 8)
        try:
            process = bench.start(*bench.command(*STEPS, sets=("run.final_step=60", "checkpoints.keep={last: 2}")))
            low = until(lambda: told(bench, "disk.low"))[0]
            assert low["free_inodes"] < low["needed_inodes"]
            assert low["free_bytes"] > low["needed_bytes"]
            for filler in fillers:
                filler.unlink()
            assert 0 == process.wait(60)
        finally:
            end_all(bench)
        assert 60 in good_steps(bench)


def test_a_torn_save_that_fills_the_disk_makes_room_itself(
    small_disk: Path, bench: Bench, make_zip: MakeSnapshot
) -> None:
    """It is set aside, and goes because the disk is short; why it was there is still told, and the run goes on by itself."""
    assert 0 == bench.run("--steps=20")
    whole = make_zip("whole.pt", 25, 2 << 20).read_bytes()
    (bench.directory / "step_25.pt").write_bytes(whole[:-5000])
    fill(small_disk, 8)
    process = bench.start(*bench.command("--steps=30", sets=("run.final_step=30",)))
    assert 0 == process.wait(60)

    assert 1 == len(told(bench, "fallback.chosen"))
    aside = Path(told(bench, "snapshot.quarantined")[0]["path"])
    assert [("step_25.pt", str(aside.parent))] == [
        (one["name"], one["path"]) for one in told(bench, "quarantine.trimmed")
    ]
    assert set(os.listdir(aside.parent)) <= {"reason.json"}
    assert (1, 1) == (len(told(bench, "disk.low")), len(told(bench, "disk.freed")))
    assert ["0", "20"] == bench.starts()
    assert {20, 30} <= good_steps(bench)


def with_nvml(bench: Bench) -> dict[str, str]:
    """The environment in which the fake NVML is found; files in the bench's folder say what it tells."""
    (bench.folder / "nvml").mkdir()
    (bench.folder / "nvml" / "pynvml.py").write_text(NVML)
    return {**os.environ, "PYTHONPATH": f"{bench.folder / 'nvml'}:{ROOT}", "CUDA_VISIBLE_DEVICES": "0"}


def test_a_lost_gpu_is_waited_for_and_costs_nothing(bench: Bench) -> None:
    """The trainer crashes as its GPU is lost: the cause is the GPU, nothing is started until it is back, nothing is spent."""
    process = bench.start(*bench.command(*STEPS, "--habit=always-die:33", sets=FINAL), env=with_nvml(bench))
    until(lambda: 5 in good_steps(bench))
    (bench.folder / "gpu-is-lost").touch()
    until(lambda: told(bench, "gpu.lost"))
    assert ("gpu-fault", ["GPU-1"]) == (told(bench, "trainer.exited")[0]["cause"], told(bench, "gpu.lost")[0]["gpus"])
    assert 1 == len(bench.starts())
    (bench.folder / "gpu-is-lost").unlink()
    until(lambda: len(bench.starts()) == 2)
    process.terminate()
    process.wait(20)

    assert 1 == len(told(bench, "gpu.lost")) == len(told(bench, "gpu.back"))
    assert "info" == told(bench, "gpu.back")[0]["level"]


def test_memory_that_a_killed_trainer_still_holds_is_waited_for(bench: Bench) -> None:
    """The next trainer would die for want of it: nothing is started until the driver has given it back, and that is said."""
    process = bench.start(*bench.command(*STEPS, sets=FINAL), env=with_nvml(bench))
    until(lambda: 5 in good_steps(bench))
    pid = told(bench, "trainer.spawned")[0]["pid"]
    (bench.folder / "gpu-is-held").write_text(f"{pid}")
    os.kill(pid, signal.SIGKILL)
    until(lambda: told(bench, "gpu.busy") or len(bench.starts()) > 1)
    assert 1 == len(bench.starts())
    (busy,) = told(bench, "gpu.busy")
    assert (["GPU-1"], [pid]) == (busy["gpus"], busy["pids"])
    (bench.folder / "gpu-is-held").unlink()
    assert 0 == process.wait(60)

    back, (first, second) = told(bench, "gpu.back"), told(bench, "trainer.spawned")
    assert ["info"] == [one["level"] for one in back]
    assert first["seq"] < busy["seq"] < back[0]["seq"] < second["seq"]

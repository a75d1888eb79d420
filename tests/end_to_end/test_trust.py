"""A restart that does not wait for the bytes to be read again, and what becomes of it when they turn out bad."""

import fcntl
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import Bench, marked, until
from tests.crash import disks
from tests.crash.conftest import give_up

FIBMAP = 1
BLOCK_BYTES = 4096


def trainer_of(bench: Bench, incarnation: int = 1) -> int:
    pid: int = bench.wait_for("trainer.spawned", incarnation)["pid"]
    return pid


def test_a_restart_does_not_wait_for_bytes_that_were_proven_before(bench: Bench) -> None:
    """What this supervisor proved and nobody touched is resumed from at once, read again beside the trainer, and confirmed."""
    bench.start(*bench.command("--steps=30", "--pause=0.1", sets=("run.final_step=30",)))
    bench.wait_for("snapshot.sealed", 2)
    os.kill(trainer_of(bench), signal.SIGKILL)
    bench.wait_for("run.completed")

    [first, second] = bench.records("trainer.spawned")
    [confirmed] = bench.records("resume.confirmed")
    assert (None, second["resumed_from"]) == (first["resumed_from"], confirmed["name"])
    assert None is bench.state("run.json")["trust"]
    told = [one["step"] for one in bench.records("trainer.progressed")]
    assert sorted(told) == told
    assert 30 == told[-1]


@pytest.fixture
def disk_bench(tmp_path: Path) -> Iterator[tuple[Bench, Path]]:
    """A bench on a filesystem of its own, and the file that this is in."""
    reason = disks.why_not("ext4")
    if reason is not None:
        give_up(reason)
    image = disks.make_image(tmp_path / "image", "ext4", "-b", str(BLOCK_BYTES))
    with disks.loop_device(image) as device, disks.mounted(device, "ext4", tmp_path / "disk") as at:
        made = Bench(at)
        try:
            yield made, image
        finally:
            for process in made.started:
                process.terminate()
                process.wait(20)
            until(lambda: not marked(at))


def flip_below(image: Path, path: Path, offset: int) -> None:
    """Flip a bit of a file on the disk itself: no timestamp moves, and nobody is told."""
    disks.sync_filesystem(path.parent)
    with path.open("rb") as file:
        block = bytearray(struct.pack("I", offset // BLOCK_BYTES))
        fcntl.ioctl(file, FIBMAP, block)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    at = struct.unpack("I", block)[0] * BLOCK_BYTES + offset % BLOCK_BYTES
    with image.open("r+b") as disk:
        disk.seek(at)
        byte = disk.read(1)[0]
        disk.seek(at)
        disk.write(bytes([byte ^ 1]))
        disk.flush()
        os.fsync(disk.fileno())


@pytest.mark.heavy  # it makes and mounts a filesystem
def test_bytes_that_rotted_unseen_cost_the_trainer_and_all_it_made_of_them(disk_bench: tuple[Bench, Path]) -> None:
    """A bit flipped on the disk since: the trainer is killed, what it saved is set aside, and the run goes on from before."""
    bench, image = disk_bench
    bench.start(*bench.command("--steps=40", "--every=10", "--pause=0.1", sets=("run.final_step=40",)))
    until(lambda: [one for one in bench.records("snapshot.sealed") if one["step"] == 20])
    os.kill(trainer_of(bench), signal.SIGSTOP)
    path = bench.directory / "step_20.pt"
    before = path.stat()
    flip_below(image, path, 5000)
    after = path.stat()
    assert (before.st_ino, before.st_mtime_ns, before.st_ctime_ns) == (
        after.st_ino,
        after.st_mtime_ns,
        after.st_ctime_ns,
    )
    os.kill(trainer_of(bench), signal.SIGKILL)
    bench.wait_for("run.completed", seconds=40)

    [refuted] = bench.records("resume.refuted")
    assert ("step_20.pt", 20, "corrupt") == (refuted["name"], refuted["step"], refuted["verdict"])
    assert ["killed", "resume-refuted", "completed"] == [one["cause"] for one in bench.records("trainer.exited")]
    assert [None, "step_20.pt", "step_10.pt"] == [one["resumed_from"] for one in bench.records("trainer.spawned")]
    assert "step_20.pt" in [one["name"] for one in bench.records("snapshot.quarantined")]
    assert [10] == [one["chosen_step"] for one in bench.records("fallback.chosen")]

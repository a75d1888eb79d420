"""Disks that are really full, of bytes and of inodes, and storage that takes bytes and loses them on its way to the disk.

Run as root: python -m pytest -m heavy tests/crash
"""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from lastgood.publish import publish
from lastgood.rungs import latest_healthy
from tests.crash import disks, operations
from tests.crash.checks import snapshots, the_next_save_works
from tests.crash.conftest import give_up

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]

FULL = {errno.ENOSPC, errno.EDQUOT}
SNAPSHOT_PAGES = 9  # what a snapshot of `operations` takes, and one more for its seal


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    """A folder for mount points, where mounting is possible."""
    if reason := disks.why_not("ext4"):
        give_up(reason)
    return tmp_path


def of_random_bytes(count: int) -> Callable[[BinaryIO], object]:
    def write(file: BinaryIO) -> None:
        for _ in range(count // disks.MEBIBYTE):
            file.write(os.urandom(disks.MEBIBYTE))

    return write


@pytest.mark.parametrize("free_pages", range(20))
def test_a_disk_without_room_for_the_bytes_is_said_and_loses_nothing(free_pages: int, mounts: Path) -> None:
    """With any number of pages free a save is whole, or fails with ENOSPC and what was needed; with room again it goes on."""
    with disks.mounted("small", "tmpfs", mounts / "small", "size=1m") as at:
        run = Path(operations.run_of(str(at)))
        operations.save(run, 1)
        operations.save(run, 2)
        filler = fill(at, free_pages)
        failed = None
        try:
            operations.save(run, 3)
        except OSError as error:
            failed = error

        assert (failed is None) == (free_pages > SNAPSHOT_PAGES)
        if failed is not None:
            assert failed.errno in FULL
            assert {1: 1, 2: 1} == snapshots(run)
            assert not [name for name in os.listdir(run) if ".partial-" in name]
        filler.unlink()
        the_next_save_works(run, snapshots(run))


def fill(at: Path, free_pages: int) -> Path:
    """Leave just so many pages free."""
    status = os.statvfs(at)
    filler = at / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, (status.f_bavail - free_pages) * status.f_bsize)
    return filler


@pytest.mark.parametrize("free_inodes", range(5))
def test_a_disk_without_inodes_is_said_and_loses_nothing(free_inodes: int, mounts: Path) -> None:
    """A save needs a file for the data and one for its seal; with fewer it fails with ENOSPC, though bytes are free."""
    image = disks.make_image(mounts / "image", "ext4", "-N", "32")
    with disks.loop_device(image) as device, disks.mounted(device, "ext4", mounts / "few") as at:
        run = Path(operations.run_of(str(at)))
        operations.save(run, 1)
        operations.save(run, 2)
        fillers = [at / f"{number}" for number in range(os.statvfs(at).f_favail - free_inodes)]
        for filler in fillers:
            filler.touch()
        failed = None
        try:
            operations.save(run, 3)
        except OSError as error:
            failed = error

        assert (failed is None) == (free_inodes >= 2)
        if failed is not None:
            assert failed.errno == errno.ENOSPC
            assert {1: 1, 2: 1} == snapshots(run)
        for filler in fillers:
            filler.unlink()
        the_next_save_works(run, snapshots(run))


@pytest.fixture
def lying_disk(mounts: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """An ext4 that takes more bytes than the memory below it has; and what gives that memory more room and mounts anew."""
    with disks.mounted("below", "tmpfs", mounts / "below", "size=24m") as below:
        image = disks.make_image(below / "image", "ext4", size="128M")
        with disks.loop_device(image) as device, disks.mounted(device, "ext4", mounts / "lying") as at:

            def mend() -> None:
                subprocess.run(["mount", "-o", "remount,size=256m", str(below)], check=True)
                disks.unmount(at)
                subprocess.run(["e2fsck", "-f", "-y", device], check=False, capture_output=True)
                disks.mount(device, "ext4", at)

            yield at, mend


@pytest.mark.parametrize("mebibytes", range(32, 92, 3))
def test_bytes_lost_behind_the_writers_back_are_said_by_fsync(
    mebibytes: int, lying_disk: tuple[Path, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every write succeeds, the fsync does not: the save has failed, whatever the page cache shows, and the old one is chosen."""
    at, mend = lying_disk
    run = Path(operations.run_of(str(at)))
    operations.write_snapshot(str(at), 1)
    refused = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        try:
            real(descriptor)
        except OSError as error:
            refused.append(error.errno)
            raise

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError) as caught:
        publish(run / "ckpt_00000002.pt", of_random_bytes(mebibytes * disks.MEBIBYTE))
    assert [caught.value.errno] == refused[:1], "it was not the fsync that told"
    assert caught.value.errno in FULL | {errno.EIO}
    assert run / "ckpt_00000001.pt" == latest_healthy(run)
    mend()
    assert {1: 1} == snapshots(run)
    the_next_save_works(run, {1: 1})

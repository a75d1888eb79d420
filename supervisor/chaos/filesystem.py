"""A filesystem of the campaign's own, in a file: what is done to it hurts nobody else's. For root."""

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from supervisor.chaos.damage import UndamagedError
from supervisor.errors import UsageError

PLACE = "mount"
STATUS = Path("/proc/self/status")
LOOP_CONTROL = Path("/dev/loop-control")
CAP_SYS_ADMIN = 21  # of <linux/capability.h>
PROGRAMS = ("mkfs.ext4", "mount", "umount")
SIZE_BYTES = 1 << 30  # sparse: what is not written takes no room
CHUNK_BYTES = 1 << 20
LEFT_BYTES = 64 << 10  # less than any snapshot; without it the supervisor could not write down what it sees
BUSY_SECONDS, LOOK_SECONDS = 10.0, 0.1
_FIBMAP, _FIGETBSZ = 1, 2  # ioctl numbers of <linux/fs.h>


def hindrance() -> str | None:
    """Why there can be none; None when there can."""
    if os.geteuid() != 0:
        return "only root can mount one"
    if not _may_administer():
        return "root may not mount here, for want of CAP_SYS_ADMIN, as in most containers"
    if not LOOP_CONTROL.exists():
        return "there are no loop devices here"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"{', '.join(missing)} is not installed" if missing else None


def _may_administer() -> bool:
    """Whether this process has what mounting asks for, by the mask of its capabilities."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text(encoding="utf-8").splitlines() if ":" in line)
    return bool(int(lines["CapEff"], 16) >> CAP_SYS_ADMIN & 1)


class OwnFilesystem:
    """An ext4 in the file `image`, mounted at `at`."""

    def __init__(self, image: Path, at: Path) -> None:
        self._image = image
        self._at = at
        self._filler = at / "filler"

    def fill(self) -> str:
        """Take the room that there is, also what was freed since, but for a few lines of a log; returns the proof."""
        with self._filler.open("ab", buffering=0) as file:
            while (room := self._room_bytes()) > LEFT_BYTES:
                try:
                    file.write(bytes(min(room - LEFT_BYTES, CHUNK_BYTES)))
                except OSError:
                    break  # somebody else was quicker
        return f"{self._room_bytes():,} bytes are free"

    def _room_bytes(self) -> int:
        free = os.statvfs(self._at)
        return free.f_bavail * free.f_frsize

    def free(self) -> None:
        """Give the room back."""
        self._filler.unlink(missing_ok=True)

    def flip_below(self, path: Path, share: float) -> str:
        """Have one bit of a file be another on the device, so that the filesystem knows nothing of it; returns the proof.

        Raises UndamagedError when the file reads as before, or when its times have changed.
        """
        with path.open("rb", buffering=0) as file:
            os.fsync(file.fileno())
            before = os.fstat(file.fileno())
            bit = int(share * 8 * before.st_size)
            at = bit // 8
            byte = os.pread(file.fileno(), 1, at)[0]
            self._write_below(file.fileno(), at, byte ^ 1 << bit % 8)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            after = os.fstat(file.fileno())
            if os.pread(file.fileno(), 1, at)[0] == byte:
                raise UndamagedError(f"{path.name} has the same bytes as before")
            if (before.st_mtime_ns, before.st_ctime_ns, before.st_size) != (
                after.st_mtime_ns, after.st_ctime_ns, after.st_size
            ):  # fmt: skip
                raise UndamagedError(f"the filesystem has seen that {path.name} was touched")
        return f"bit {bit % 8} of byte {at:,} of {path.name} is another on the device, its times are what they were"

    def _write_below(self, descriptor: int, at: int, byte: int) -> None:
        """Write a byte of an open file behind the filesystem's back."""
        block_bytes = _asked(descriptor, _FIGETBSZ, 0)
        block = _asked(descriptor, _FIBMAP, at // block_bytes)
        if block == 0:
            raise UndamagedError("there is a hole in the file where it was to be damaged")
        with self._image.open("rb+", buffering=0) as image:
            os.pwrite(image.fileno(), bytes([byte]), block * block_bytes + at % block_bytes)
            os.fsync(image.fileno())


def _asked(descriptor: int, request: int, value: int) -> int:
    (answer,) = struct.unpack("i", fcntl.ioctl(descriptor, request, struct.pack("i", value)))
    return int(answer)


@contextlib.contextmanager
def own_filesystem(folder: Path) -> Iterator[OwnFilesystem]:
    """A new one, mounted at `folder / "mount"` for as long as it is needed; its file is gone afterwards, what was in it too.

    Raises UsageError where there can be none.
    """
    if (why := hindrance()) is not None:
        raise UsageError(f"chaos: there is no filesystem of the campaign's own: {why}")
    image, at = folder / "filesystem.img", folder / PLACE
    at.mkdir()
    with image.open("wb") as file:
        file.truncate(SIZE_BYTES)
    try:
        _do("mkfs.ext4", "-q", "-F", "-m", "0", str(image))  # nothing is reserved for root
        _do("mount", "-o", "loop", str(image), str(at))
        try:
            yield OwnFilesystem(image, at)
        finally:
            unmount(at)
    finally:
        image.unlink()


def unmount(at: Path) -> None:
    """Take it away, for those that come too: what still uses it, as a process that is about to end, keeps it until then."""
    deadline = time.monotonic() + BUSY_SECONDS
    while os.path.ismount(at):
        done = subprocess.run(["umount", str(at)], capture_output=True, check=False)
        if done.returncode != 0 and time.monotonic() > deadline:
            _do("umount", "--lazy", str(at))
        elif done.returncode != 0:
            time.sleep(LOOK_SECONDS)


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip() or str(done.returncode)).splitlines()[0]
        raise UsageError(f"chaos: {' '.join(command)}: {said}")

"""Real filesystems in files: made, mounted, taken away again whatever happens. Needs root."""

import ctypes
import errno
import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_MNT_DETACH = 2
BUSY_SECONDS_MAX = 5.0
MEBIBYTE = 1 << 20

MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-m", "reflink=1"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
}
SIZES = {"ext4": "64M", "xfs": "400M", "btrfs": "160M"}  # about the least that each accepts; the files are sparse


def why_not(*kinds: str) -> str | None:
    """Why filesystems of these kinds cannot be made and mounted here, or None when they can."""
    if (reason := _why_no_mounts()) is not None:
        return reason
    for kind in kinds:
        if shutil.which(MAKE[kind][0]) is None:
            return f"{MAKE[kind][0]} is not installed"
    unknown = [kind for kind in kinds if not _kernel_knows(kind)]
    return f"the kernel knows no {unknown[0]}" if unknown else None


@functools.cache
def _why_no_mounts() -> str | None:
    """Being root is not enough in a container."""
    if os.geteuid() != 0:
        return "mounting needs root"
    if shutil.which("losetup") is None:
        return "losetup is not installed"
    try:
        with tempfile.TemporaryDirectory() as folder, mounted("probe", "tmpfs", Path(folder)) as at:
            image = at / "image"
            image.write_bytes(bytes(MEBIBYTE))
            with loop_device(image):
                return None
    except OSError as error:
        return f"nothing can be mounted here: {error}"


def _kernel_knows(kind: str) -> bool:
    if kind in Path("/proc/filesystems").read_text().split():
        return True
    if shutil.which("modprobe") is None:
        return False
    return subprocess.run(["modprobe", kind], check=False, capture_output=True).returncode == 0


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(device: str, kind: str, at: str | Path, options: str = "") -> None:
    """Mount a device. Raises OSError."""
    _checked(_libc.mount(device.encode(), os.fsencode(at), kind.encode(), 0, options.encode()), f"mount of {device}")


def unmount(at: str | Path) -> None:
    """Unmount, waiting for who is just letting go. Raises OSError."""
    give_up_at = time.monotonic() + BUSY_SECONDS_MAX
    while _libc.umount2(os.fsencode(at), 0) != 0:
        number = ctypes.get_errno()
        if number != errno.EBUSY or time.monotonic() > give_up_at:
            raise OSError(number, f"unmounting {at}: {os.strerror(number)}")
        time.sleep(0.01)


def detach(at: str | Path) -> None:
    """Unmount at once, whoever still uses it. Raises OSError."""
    _checked(_libc.umount2(os.fsencode(at), _MNT_DETACH), f"detaching {at}")


def sync_filesystem(at: str | Path) -> None:
    """Make all that is on a filesystem durable."""
    descriptor = os.open(at, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _checked(_libc.syncfs(descriptor), f"syncfs of {at}")
    finally:
        os.close(descriptor)


@contextmanager
def mounted(device: str, kind: str, at: Path, options: str = "") -> Iterator[Path]:
    """A mount that is gone afterwards, by force if need be."""
    at.mkdir(exist_ok=True)
    mount(device, kind, at, options)
    try:
        yield at
    finally:
        if os.path.ismount(at):
            try:
                unmount(at)
            except OSError:
                _libc.umount2(os.fsencode(at), _MNT_DETACH)
                raise


@contextmanager
def loop_device(image: Path) -> Iterator[str]:
    """A block device over a file, gone afterwards."""
    made = subprocess.run(["losetup", "--find", "--show", str(image)], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise OSError(errno.ENODEV, f"losetup: {made.stderr.strip()}")
    device = made.stdout.strip()
    try:
        yield device
    finally:
        _detach(device)


def _detach(device: str) -> None:
    """Take a loop device away, trying again when the machine has no room for one more process."""
    give_up_at = time.monotonic() + BUSY_SECONDS_MAX
    while True:
        try:
            subprocess.run(["losetup", "--detach", device], check=True, capture_output=True)
            return
        except (OSError, subprocess.CalledProcessError):
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.1)


def make_image(path: Path, kind: str, *more: str, size: str = "") -> Path:
    """A sparse file with a filesystem in it."""
    subprocess.run(["truncate", "-s", size or SIZES[kind], str(path)], check=True)
    subprocess.run([*MAKE[kind], *more, str(path)], check=True, capture_output=True)
    return path

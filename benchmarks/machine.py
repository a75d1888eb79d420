"""Where this is measured: what is recorded about the machine, and what a folder must be like."""

import os
import platform
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})


class UnfitError(Exception):
    """Nothing that is measured here would mean anything; the message says why."""


def filesystem_of(path: str, mounts: str) -> tuple[str, str]:
    """Type and device of the filesystem that an absolute path is on, by the text of /proc/self/mountinfo."""
    best, found = -1, ("unknown", "unknown")
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].replace("\\040", " ")
        if os.path.commonpath([point, path]) == point and len(point) >= best:
            best, found = len(point), (right.split()[0], right.split()[1])
    return found


def check(folder: Path, large_bytes: int) -> None:
    """Raise UnfitError when a folder is in memory, where an fsync costs nothing, or has no room for what is written."""
    kind, _ = filesystem_of(os.path.realpath(folder), Path("/proc/self/mountinfo").read_text())
    if kind in MEMORY_FILESYSTEMS:
        raise UnfitError(
            f"{folder} is on {kind}, which is memory: saving there says nothing about a disk; choose --dir"
        )
    needed, free = 4 * large_bytes + (200 << 20), shutil.disk_usage(folder).free
    if free < needed:
        raise UnfitError(
            f"{folder} has {free:,} bytes free, and {needed:,} are needed; choose --dir, or a smaller --size"
        )


def described(folder: Path) -> dict[str, Any]:
    """What a reader of the figures wants to know of the machine."""
    kind, device = filesystem_of(os.path.realpath(folder), Path("/proc/self/mountinfo").read_text())
    return {
        "processor": _line("/proc/cpuinfo", "model name"),
        "processors": len(os.sched_getaffinity(0)),
        "memory": _line("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "filesystem": f"{kind} on {device}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("lastgood", "torch")},
    }


def _line(path: str, key: str) -> str:
    lines = Path(path).read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "unknown")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

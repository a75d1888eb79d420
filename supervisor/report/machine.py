"""The machine a run is on, and the versions it is made of: what one must know to repeat it."""

import os
import platform
from pathlib import Path
from typing import Any

import psutil

from supervisor.adapters.surroundings import mount_of, version_of
from supervisor.report.model import Fact

PACKAGES = ("lastgood", "torch", "numpy")


def versions() -> dict[str, str | None]:
    """Of Python and of the packages that compute; None for one that is not there."""
    return {"python": platform.python_version(), **{name: version_of(name) for name in PACKAGES}}


def machine(filesystem: str) -> dict[str, Any]:
    """This machine; `filesystem` is the type of the one that the run's directory is on."""
    return {
        "kernel": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "filesystem": filesystem or None,
    }


def filesystem_of(directory: str) -> str:
    """The type of the filesystem that a directory is on; empty where it cannot be told."""
    return mount_of(directory)[0]


def facts(of_versions: dict[str, str | None], of_machine: dict[str, Any]) -> tuple[Fact, ...]:
    """The same for reading."""
    memory = of_machine["memory_bytes"]
    cores = of_machine["cores"]
    return (
        *(Fact(name, value or "not installed") for name, value in of_versions.items()),
        Fact("kernel", of_machine["kernel"]),
        Fact("processor", f"{of_machine['processor']}, {cores} {'core' if cores == 1 else 'cores'}"),
        Fact("memory", f"{memory / 2**30:.1f} GiB"),
        Fact("filesystem", of_machine["filesystem"] or "not known"),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()

"""Real control groups for tests, which are gone after them whatever lived in them."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.crash.conftest import give_up


def _mounted(kind: str, option: str) -> Path | None:
    """Where the groups of v2 are, or those of a controller of v1."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        found, _, options = rest.split(" ", 2)
        if found == kind and option in options.split(","):
            return Path(fields.split()[4])
    return None


@contextmanager
def _made(parent: Path, name: str) -> Iterator[Path]:
    if os.geteuid() != 0:
        give_up("only root makes control groups anywhere")
    group = parent / f"lastgood-test-{os.getpid()}-{name}"
    try:
        group.mkdir()
    except OSError as error:
        give_up(f"no control group can be made in {parent}: {error.strerror}")
    try:
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    deadline = time.monotonic() + 10
    while group.exists():
        for folder, _, _ in os.walk(group, topdown=False):
            for pid in (Path(folder) / "cgroup.procs").read_text().split():
                subprocess.run(["kill", "-9", pid], check=False, capture_output=True)
            try:
                os.rmdir(folder)
            except OSError:
                assert time.monotonic() < deadline, f"{folder} cannot be removed"
        time.sleep(0.01)


@contextmanager
def unified(name: str, delegated: bool = True, below: Path | None = None) -> Iterator[Path]:
    """A group of v2, marked as systemd marks those that it delegates; below another, if that is of v2 too."""
    top = _mounted("cgroup2", "rw")
    if top is None:
        give_up("cgroup v2 is not mounted")
    with _made(below if below is not None and top in below.parents else top, name) as group:
        if delegated:
            os.setxattr(group, "trusted.delegate", b"1")
        yield group


@contextmanager
def limited(name: str, megabytes: int) -> Iterator[Path]:
    """A group that may use so much memory: of v1, below that of this process, where that has the controller, else of v2."""
    top = _mounted("cgroup", "memory")
    if top is None:
        with unified(name, delegated=False) as group:
            (group / "memory.max").write_text(f"{megabytes}M")
            yield group
        return
    inside = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line)
    with _made(top / inside.rpartition(":")[2].lstrip("/"), name) as group:
        (group / "memory.limit_in_bytes").write_text(f"{megabytes}M")
        yield group


def entering(*groups: Path) -> Callable[[], None]:
    """What a child does before it becomes its program: it goes into these groups."""

    def enter() -> None:
        for group in groups:
            with open(group / "cgroup.procs", "w", encoding="ascii") as file:
                file.write("0")

    return enter


def pids_below(group: Path) -> list[int]:
    """All that live in a group and those below."""
    found: list[int] = []
    for folder, _, _ in os.walk(group):
        try:
            found += map(int, (Path(folder) / "cgroup.procs").read_text().split())
        except FileNotFoundError:
            continue  # it was removed
    return found

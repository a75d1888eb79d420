"""Sides of the rows about the supervisor: how soon it knows and decides, and what it costs while a run trains."""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.harness import Scale, Sides
from benchmarks.ladder import write_archive
from benchmarks.supervised import ROOT, Supervised, supervised
from benchmarks.verifying import write_large
from lastgood.hashing import file_sha256
from lastgood.naming import partial_name, snapshot_name
from lastgood.publish import write_durably
from lastgood.seal import seal_path, seal_text

IDLE = ("sleep", "86400")  # as small as a trainer can be
TRAINING = (sys.executable, str(ROOT / "tests/small_trainer.py"))
QUIET_SECONDS = 0.05  # until what a start or an arrival entails is over, as on a day of training
APART_SECONDS = 0.3  # of two arrivals: nobody publishes ten a second
VERIFIED = 10  # snapshots of which one is chosen
FLOOD_BYTES = 200_000_000
FLAT_BYTES = 16 << 20  # by which a supervisor may grow while it drains any amount


def started(one: Supervised) -> int:
    """The pid of the trainer that is being started, once it is `sleep` and nothing stirs."""
    _, pid = one.next("TrainerSpawned")
    while Path(f"/proc/{pid}/comm").read_text() != "sleep\n":
        time.sleep(0.001)
    time.sleep(QUIET_SECONDS)
    return pid


@contextmanager
def death(scale: Scale) -> Iterator[Sides]:
    """From the signal to the exit collected by the supervisor's loop."""
    to_core: list[float] = []
    with supervised(scale.folder / "run", *IDLE) as one:

        def ours() -> float:
            pid = started(one)
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            noticed, _ = one.next("Exit")
            told, _ = one.next("TrainerExited")
            to_core.append(told - killed)
            return noticed - killed

        yield Sides(ours, beside={"told to the core, with the last lines": to_core})


def write_ten(folder: Path, size: int) -> None:
    """Ten sealed files of torch's that differ in name alone, all of them written."""
    folder.mkdir()
    first = folder / snapshot_name(1)
    write_large(first, size)
    digest = file_sha256(first)
    for path in (folder / snapshot_name(step) for step in range(1, VERIFIED + 1)):
        if path != first:
            shutil.copyfile(first, path)
        Path(seal_path(path)).write_text(seal_text(digest, path.name))


@contextmanager
def decision(scale: Scale) -> Iterator[Sides]:
    """From the dead trainer's tree being swept to the start of the next: two looks at the directory, the memory on the disk.

    The supervisor has proven all ten before. One that is new reads the newest first, shown beside.
    """
    folder, again = scale.folder / "ten", scale.folder / "again"
    write_ten(folder, scale.large_bytes // 3)
    shutil.copytree(folder, again, copy_function=os.link)
    new: list[float] = []
    with supervised(folder, *IDLE, resume="env") as one:
        pid = started(one)
        for _ in range(VERIFIED - 1):
            one.next("SnapshotJudged")

        def ours() -> float:
            nonlocal pid
            new.append(first_decision(again))
            os.kill(pid, signal.SIGKILL)
            swept, _ = one.next("TreeSwept")
            start, _ = one.next("Start")
            pid = started(one)
            one.next("SnapshotReread")  # or the next look would wait for it
            return start - swept

        yield Sides(ours, beside={"by a supervisor that has proven none": new})


def first_decision(folder: Path) -> float:
    """Seconds of the same by a supervisor that has just been started."""
    shutil.rmtree(folder / ".lastgood", ignore_errors=True)
    with supervised(folder, *IDLE, resume="env") as one:
        swept, _ = one.next("TreeSwept")
        return one.next("Start")[0] - swept


@contextmanager
def arrival(scale: Scale) -> Iterator[Sides]:
    """From the rename that publishes a small snapshot, sealed just before as the library does it, to its verdict in the core."""
    folder = scale.folder / "run"
    with supervised(folder, *IDLE) as one:
        started(one)
        step = 0

        def ours() -> float:
            nonlocal step
            step += 1
            path = folder / snapshot_name(step)
            partial = folder / partial_name(path.name)
            write_archive(partial, step)
            seal = seal_text(file_sha256(partial), path.name).encode("ascii")
            time.sleep(APART_SECONDS)
            write_durably(seal_path(path), seal)
            renamed = time.monotonic()
            partial.replace(path)
            return one.next("SnapshotJudged")[0] - renamed

        yield Sides(ours)


def shares_in(ones: Sequence[Supervised], seconds: float) -> list[float]:
    """The share of a core that each of them takes for so long, all at once."""
    before, begun = [one.cpu_seconds() for one in ones], time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - begun
    return [(one.cpu_seconds() - first) / passed for one, first in zip(ones, before, strict=True)]


@contextmanager
def spending(scale: Scale) -> Iterator[Sides]:
    """The share of a core that it takes while a trainer prints ten steps a second and saves a small file every two seconds; and
    that of another, in the same time, whose trainer says and saves nothing.
    """
    folder = scale.folder / "busy"
    busy = (*TRAINING, str(folder), "--pause=0.1", "--every=20", "--steps=1000000")
    with supervised(folder, *busy) as one, supervised(scale.folder / "idle", *IDLE) as other:
        for each in (one, other):
            each.next("TrainerSpawned")
        time.sleep(1.0)
        shares: tuple[list[float], list[float]] = ([], [])

        def next_of(mine: list[float]) -> float:
            if not mine:
                for each, share in zip(shares, shares_in((one, other), scale.seconds), strict=True):
                    each.append(share)
            return mine.pop()

        yield Sides(partial(next_of, shares[0]), more={"idle": partial(next_of, shares[1])})


@contextmanager
def draining(scale: Scale) -> Iterator[Sides]:
    """How long a trainer takes to print, with the log on a disk; the supervisor's memory must not grow with it."""
    report = scale.folder / "report.json"
    command = (sys.executable, str(ROOT / "benchmarks/flood.py"), str(FLOOD_BYTES), str(report))

    def ours() -> float:
        with supervised(scale.folder / "run", *command) as one:
            one.next("TrainerExited")
        shutil.rmtree(scale.folder / "run")
        seconds, before, after = json.loads(report.read_text())
        assert after - before < FLAT_BYTES, f"the supervisor has grown by {after - before:,} bytes"
        return float(seconds)

    yield Sides(ours)

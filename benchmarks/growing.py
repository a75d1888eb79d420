"""Sides of the rows about growth: what a snapshot costs among very many, and what very many restarts leave behind."""

import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from benchmarks.harness import Scale, Sides
from benchmarks.ladder import write_archive, write_small
from benchmarks.supervised import Supervised, supervised
from benchmarks.supervising import IDLE, QUIET_SECONDS, share
from lastgood.hashing import file_sha256
from lastgood.naming import partial_name, snapshot_name
from lastgood.publish import write_at_once
from lastgood.seal import seal_path, seal_text

FEW = 10
ARRIVALS = 50  # of a turn, as fast as they are judged
SETTLED_SECONDS = 3.0  # until files are old enough for their verdicts to be remembered
NO_RESCAN = "checkpoints.rescan_seconds=3600"
SOME = 100  # restarts, after which memory is looked at for the first time

DYING = """
step=$(( ${LASTGOOD_RESUME_STEP:-0} + 1 ))
name=$(printf 'ckpt_%08d.pt' $step)
cp "$1" .$name && mv .$name "$LASTGOOD_CHECKPOINT_DIR/$name"
echo "step $step: loss 1.0"
exit 9
"""
"""A trainer that does one step, saves and crashes, at each start."""


def publish(folder: Path, step: int) -> None:
    """A small sealed snapshot, as the library publishes it, but for the disk."""
    path = folder / snapshot_name(step)
    partial = folder / partial_name(path.name)
    write_archive(partial, step)
    write_at_once(seal_path(path), seal_text(file_sha256(partial), path.name).encode("ascii"))
    partial.replace(path)


def spent(one: Supervised, folder: Path, first: int) -> float:
    """Seconds of the supervisor's CPU for each of many snapshots that arrive."""
    before = one.cpu_seconds()
    for step in range(first, first + ARRIVALS):
        publish(folder, step)
        one.next("SnapshotJudged")
    return (one.cpu_seconds() - before) / ARRIVALS


def among(folder: Path, *settings: str) -> AbstractContextManager[Supervised]:
    """A supervisor of snapshots that are there."""
    return supervised(folder, *IDLE, resume="env", settings=settings)


def all_judged(one: Supervised, count: int) -> None:
    """Wait until it knows all of them; the newest was judged before the start."""
    for _ in range(count - 1):
        one.next("SnapshotJudged")


@contextmanager
def idle(scale: Scale) -> Iterator[Sides]:
    """The share of a core that it takes among very many snapshots while a trainer says and saves nothing."""
    folder = scale.folder / "run"
    write_small(folder, scale.small_snapshots)
    with among(folder) as one:
        all_judged(one, scale.small_snapshots)
        time.sleep(QUIET_SECONDS)
        yield Sides(lambda: share(one, scale.seconds))


@contextmanager
def snapshots(scale: Scale) -> Iterator[Sides]:
    """What the supervisor spends on one more snapshot among very many, against among ten; what it spends without any is idle."""
    many, few = scale.folder / "many", scale.folder / "few"
    write_small(many, scale.small_snapshots)
    write_small(few, FEW)
    time.sleep(SETTLED_SECONDS)
    with among(many, NO_RESCAN) as crowded, among(few, NO_RESCAN) as alone:
        steps = {many: scale.small_snapshots, few: FEW}
        for one, folder in ((crowded, many), (alone, few)):
            all_judged(one, steps[folder])

        def side(one: Supervised, folder: Path) -> float:
            first, steps[folder] = steps[folder], steps[folder] + ARRIVALS
            return spent(one, folder, first)

        yield Sides(lambda: side(crowded, many), lambda: side(alone, few))


@contextmanager
def restarts(scale: Scale) -> Iterator[Sides]:
    """By how much the supervisor grows from a hundred restarts to as many as there are small snapshots."""
    template = scale.folder / "template"
    write_archive(template, 1)
    folder = scale.folder / "run"

    def ours() -> float:
        with supervised(
            folder, "sh", "-c", DYING, "sh", str(template), resume="env", settings=("checkpoints.keep.last=3",)
        ) as one:
            sizes = []
            for count in range(1, scale.small_snapshots + 1):
                one.next("TrainerExited")
                if count in (min(SOME, scale.small_snapshots // 2), scale.small_snapshots):
                    sizes.append(one.memory_bytes())
        shutil.rmtree(folder)
        return float(sizes[-1] - sizes[0])

    yield Sides(ours)

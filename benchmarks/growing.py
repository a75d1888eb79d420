"""Sides of the rows about growth: what a snapshot costs among very many, and what very many restarts leave behind."""

import contextlib
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from benchmarks.flood import peak_bytes
from benchmarks.harness import Scale, Sides
from benchmarks.ladder import write_archive, write_small
from benchmarks.supervised import Supervised, supervised
from benchmarks.supervising import IDLE, shares_in
from lastgood.hashing import file_sha256
from lastgood.naming import partial_name, snapshot_name
from lastgood.publish import write_at_once
from lastgood.seal import seal_path, seal_text

FEW = 10
ARRIVALS = 20  # of a turn, as fast as they are judged
SETTLED_SECONDS = 3.0  # until files are old enough for their verdicts to be remembered
NO_RESCAN = "checkpoints.rescan_seconds=3600"
SOME = 100  # restarts, after which memory is looked at for the first time
SHARE_OF_ALL = 16
LOOKS_IN = 6  # times as long as for others is looked
AT_ONCE = 6  # supervisors
BATCH = 500  # of snapshots that come at once, so that this ends today

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
def crowded(scale: Scale) -> Iterator[Sides]:
    """The peak of each of several supervisors in whose life very many small snapshots have come, been judged, and stayed.

    And the share of a core that each takes from then on, while its trainer says and saves nothing: all in the same minute, for
    that is how often each looks at every file.
    """
    numbers = [str(number) for number in range(scale.pairs or AT_ONCE)]
    ready, runs = scale.folder / "ready", scale.folder / "runs"
    write_small(ready / numbers[0], scale.small_snapshots)
    for number in numbers[1:]:
        shutil.copytree(ready / numbers[0], ready / number)
    with contextlib.ExitStack() as stack:
        ones = [stack.enter_context(supervised(runs / number, *IDLE, resume="env")) for number in numbers]
        for one in ones:
            one.next("TrainerSpawned")
        for first in range(0, scale.small_snapshots, BATCH):
            batch = range(first, min(first + BATCH, scale.small_snapshots))
            for number in numbers:
                for step in batch:
                    move(ready / number / snapshot_name(step), runs / number)
            for one in ones:
                for _ in batch:
                    one.next("SnapshotJudged")
        time.sleep(SETTLED_SECONDS)
        peaks = [float(peak_bytes(one.process.pid)) for one in ones]
        shares: list[float] = []

        def idle() -> float:
            if not shares:
                shares.extend(shares_in(ones, LOOKS_IN * scale.seconds))
            return shares.pop()

        yield Sides(peaks.pop, more={"idle": idle})


def move(path: Path, folder: Path) -> None:
    """Have a sealed snapshot appear in another folder, its seal first."""
    for one in (Path(seal_path(path)), path):
        one.rename(folder / one.name)


@contextmanager
def snapshots(scale: Scale) -> Iterator[Sides]:
    """What the supervisor spends on one more snapshot among very many, against among ten; what it spends without any is idle."""
    many, few = scale.folder / "many", scale.folder / "few"
    write_small(many, scale.small_snapshots)
    write_small(few, FEW)
    time.sleep(SETTLED_SECONDS)
    with among(many, NO_RESCAN) as among_many, among(few, NO_RESCAN) as alone:
        steps = {many: scale.small_snapshots, few: FEW}
        for one, folder in ((among_many, many), (alone, few)):
            all_judged(one, steps[folder])

        def side(one: Supervised, folder: Path) -> float:
            first, steps[folder] = steps[folder], steps[folder] + ARRIVALS
            return spent(one, folder, first)

        yield Sides(lambda: side(among_many, many), lambda: side(alone, few))


@contextmanager
def restarts(scale: Scale) -> Iterator[Sides]:
    """By how much the supervisor grows over as many restarts as there are small snapshots, told from sixteenths of them."""
    template = scale.folder / "template"
    write_archive(template, 1)
    command = ("sh", "-c", DYING, "sh", str(template))
    stretch = max(1, scale.small_snapshots // SHARE_OF_ALL)
    with supervised(scale.folder / "run", *command, resume="env", settings=("checkpoints.keep.last=3",)) as one:

        def size_after(count: int) -> int:
            for _ in range(count):
                one.next("TrainerExited")
            return one.memory_bytes()

        before = [size_after(min(SOME, stretch))]

        def ours() -> float:
            before.append(size_after(stretch))
            return float(SHARE_OF_ALL * (before[-1] - before[-2]))

        yield Sides(ours)

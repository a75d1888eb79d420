"""Sides of the rows about a directory with very many snapshots, whose verdicts are remembered."""

import gc
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Scale, Sides
from lastgood.choose import choose
from lastgood.hashing import file_sha256
from lastgood.ledger import STILL_NS, Ledger
from lastgood.naming import snapshot_name
from lastgood.rungs import judge, ladder, scan
from lastgood.seal import seal_path, seal_text

ROOT = Path(__file__).parents[1]


def write_small(folder: Path, count: int) -> None:
    """Small sealed archives; not synced, for nobody needs them tomorrow."""
    folder.mkdir(parents=True)
    for step in range(count):
        path = folder / snapshot_name(step)
        write_archive(path, step)
        Path(seal_path(path)).write_text(seal_text(file_sha256(path), path.name))


def write_archive(path: Path, step: int) -> None:
    """What passes for a snapshot and is quickly read."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}.")
        archive.writestr("a/data/0", step.to_bytes(8, "little"))


@contextmanager
def _remembered(scale: Scale) -> Iterator[Path]:
    folder = scale.folder / "many"
    write_small(folder, scale.small_snapshots)
    time.sleep(STILL_NS / 1e9 + 0.1)  # younger ones are not remembered
    (folder / ".lastgood").mkdir()
    remembering = Ledger(folder, writable=True)
    for rung in scan(folder):
        judge(rung, remembering)
    gc.collect()
    gc.freeze()  # what other rows left in this process, torch among it, is not this row's to go through
    try:
        yield folder
    finally:
        gc.unfreeze()


@contextmanager
def listing_in_process(scale: Scale) -> Iterator[Sides]:
    """List, judge and choose, the ledger read from its file each time."""
    with _remembered(scale) as folder:

        def ours() -> float:
            started = time.perf_counter()
            chosen = choose(ladder(folder))
            seconds = time.perf_counter() - started
            assert chosen is not None
            assert chosen.step == scale.small_snapshots - 1
            return seconds

        yield Sides(ours)


@contextmanager
def listing_by_command(scale: Scale) -> Iterator[Sides]:
    """`lastgood list --json`, from its start to its end."""
    with _remembered(scale) as folder:
        words = [sys.executable, "-m", "supervisor", "list", str(folder), "--json"]

        def ours() -> float:
            started = time.perf_counter()
            subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
            return time.perf_counter() - started

        yield Sides(ours)

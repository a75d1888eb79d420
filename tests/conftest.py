"""What every tier shares: snapshots made without torch, and a marker by which leaked processes are found."""

import json
import os
import random
import signal
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.bench import Bench, marked, until

settings.register_profile("patient", deadline=None)  # a busy machine is no finding; pytest's own timeout is the limit
settings.load_profile("patient")

# A script's background job ignores SIGINT, and so would all that it starts: here Ctrl-C means what it does at a terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MEMORY = "/dev/shm"

MakeSnapshot = Callable[..., Path]


@pytest.fixture
def make_zip(tmp_path: Path) -> MakeSnapshot:
    """A function that writes an archive laid out as torch lays it out, without torch: (name, step, size) -> path."""

    def make(name: str, step: int = 1, size: int = 10_000) -> Path:
        path = tmp_path / name
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("ck/data.pkl", json.dumps({"step": step}))
            archive.writestr("ck/data/0", random.Random(step).randbytes(size))
        return path

    return make


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is such a place: thousands of small files and folders take long on a disk."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="lastgood-", dir=MEMORY) as folder:
        yield Path(folder)


def flip_bit(path: Path, offset: int, keep_times: bool = True) -> None:
    """Flip one bit of a file in place, putting its times back as `touch -r` would."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
    if keep_times:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench whose processes are gone when the test is over, whatever it did."""
    made = Bench(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    until(lambda: not marked(tmp_path))

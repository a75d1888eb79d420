"""A trainer that saves through the library and finds the newest snapshot itself.

python saving_trainer.py STEPS [--refuse=STEP:WORD]... [--rot] [--mute]

At its first start the save at STEP fails as on a full disk: `blocking` and `behind` say how it is made, and the trainer lives
on; `fatal` is a blocking one that it dies of. `--rot` flips a bit of the newest snapshot before it is loaded, and `--mute`
takes away where to leave notes.
"""

import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lastgood import CheckpointManager
from lastgood.rungs import scan

LIMIT_BYTES = 20_000  # a snapshot has twice as many
EVERY = 5
SLOW_STEPS = 3  # after each start, as they are with real trainers; on a busy machine too each is heard by itself


@contextmanager
def small_files(wanted: bool) -> Iterator[None]:
    """Let no file grow beyond a part of a snapshot; this holds for the superuser too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES if wanted else soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def rot(folder: str) -> None:
    """Flip a bit as a failing disk does: whoever is told that the file was closed finds its times as they were."""
    path = scan(folder)[0].path
    times = path.stat()
    with path.open("r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, 5000)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1]), 5000)
        os.utime(file.fileno(), ns=(times.st_atime_ns, times.st_mtime_ns))


def main() -> None:
    """Train on nothing."""
    folder = os.environ["LASTGOOD_CHECKPOINT_DIR"]
    starts = os.path.join(folder, "starts.txt")
    first = not os.path.exists(starts)
    refused = dict(word.removeprefix("--refuse=").split(":") for word in sys.argv[2:] if "=" in word and first)
    if "--rot" in sys.argv:
        rot(folder)
    if "--mute" in sys.argv:
        del os.environ["LASTGOOD_NOTES"]
    model = torch.nn.Linear(100, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    manager = CheckpointManager(folder)
    payload = manager.load_latest(model, optimizer)
    begun = step = payload["iter_num"] if payload else 0
    with open(starts, "a", encoding="utf-8") as file:
        file.write(f"{step}\n")
    while step < int(sys.argv[1]):
        step += 1
        time.sleep(0.2 if step - begun <= SLOW_STEPS else 0.02)
        print(f"step {step}: loss {4 / step:.4f}", flush=True)
        if step % EVERY == 0:
            save(manager, step, model, optimizer, refused.get(str(step)))
    manager.close()


def save(manager: CheckpointManager, step: int, model: object, optimizer: object, how: str | None) -> None:
    """Save, and live on without when that fails, unless it is fatal."""
    try:
        with small_files(how is not None):
            manager.save(step, model, optimizer, blocking=how != "behind")
            manager.wait()
    except OSError:
        if how in (None, "fatal"):
            os._exit(1)


if __name__ == "__main__":
    main()

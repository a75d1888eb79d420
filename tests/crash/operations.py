"""What is interrupted: each operation makes ready in a folder and returns what is done while the tracer watches.

The checkpoint directory is `run` in that folder. The weights of a snapshot say its step and which writing of it this is.
"""

import io
import os
import time
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

import torch

from lastgood import hashing
from lastgood import publish as publishing
from lastgood.checkpoint import CheckpointManager, save_checkpoint_atomic
from lastgood.contract import EVENTS_FILE, STATE_DIR
from lastgood.hashing import file_sha256
from lastgood.ledger import Ledger
from lastgood.naming import snapshot_name
from lastgood.seal import Identity, seal_path
from lastgood.sealing import seal_snapshot
from lastgood.verdict import Kind, Proof, Verdict
from supervisor.adapters import journal, places, statefile
from supervisor.adapters.verifier import Verifier
from supervisor.core.memory import Memory
from tests.crash.states import ACKNOWLEDGED

NEXT_STEP = 9
WEIGHTS = 8000  # a snapshot then has several pages, which can be torn apart
FEW_WEIGHTS = 4000
EVENTS_BYTES = 4000

Work = Callable[[], object]


class Stateful:
    """Stands for a model or an optimizer."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    def state_dict(self) -> Mapping[str, Any]:
        return self._state


def model(step: int, writing: int, weights: int = WEIGHTS) -> Stateful:
    return Stateful({"weights": torch.full((weights,), step + writing / 10) + torch.arange(weights)})


def payload(step: int, writing: int) -> dict[str, Any]:
    return {"model": model(step, writing).state_dict(), "iter_num": step}


def run_of(folder: str) -> str:
    return os.path.join(folder, "run")


def write_snapshot(folder: str, step: int, writing: int = 1) -> str:
    path = os.path.join(run_of(folder), snapshot_name(step))
    os.makedirs(run_of(folder), exist_ok=True)
    save_checkpoint_atomic(payload(step, writing), path)
    return path


def save(run: str | os.PathLike[str], step: int) -> None:
    """What a trainer that has just been started does: save once, keep two, and end."""
    _saving(run, step)()


def _saving(run: str | os.PathLike[str], step: int, blocking: bool = True) -> Work:
    manager = CheckpointManager(run, max_to_keep=2)
    state, optimizer = model(step, 1), Stateful({})

    def work() -> None:
        try:
            manager.save(step, state, optimizer, rng_state={}, blocking=blocking)
        finally:
            manager.close()

    return work


def first_save(folder: str) -> Work:
    return _saving(run_of(folder), 1)


def save_until_it_works(folder: str) -> Work:
    """What a trainer does that does not give up at the first error."""
    manager = CheckpointManager(run_of(folder), max_to_keep=2)
    state, optimizer = model(3, 1), Stateful({})

    def attempt() -> None:
        manager.save(3, state, optimizer, rng_state={})
        manager.wait()

    def work() -> None:
        try:
            attempt()
        except OSError:
            attempt()
        manager.close()

    return work


def next_save(folder: str) -> Work:
    return _saving(run_of(folder), NEXT_STEP)


def save_and_prune(folder: str) -> Work:
    return _saving(run_of(folder), 3)


def save_and_prune_hashed_first(folder: str) -> Work:
    """As above, each chunk hashed before it is written: a garbled write shows in memory for as long as it takes."""

    def give_and_wait(beside: hashing.Beside, chunk: memoryview) -> None:
        hashing._take(beside._consume, chunk, beside._taken)

    hashing.Beside.give = give_and_wait
    return save_and_prune(folder)


def save_behind_and_prune(folder: str) -> Work:
    return _saving(run_of(folder), 3, blocking=False)


def overwrite(folder: str) -> Work:
    state = payload(2, 2)
    return lambda: save_checkpoint_atomic(state, os.path.join(run_of(folder), snapshot_name(2)))


def overwrite_unsealed(folder: str) -> Work:
    """What is overwritten was written by somebody else, or lost its seal."""
    return overwrite(folder)


def drop_seal(folder: str, step: int) -> None:
    os.unlink(seal_path(os.path.join(run_of(folder), snapshot_name(step))))


def a_run(folder: str) -> Work:
    """The saves of a run from the first to the fourth, the second one twice; each is acknowledged when it has returned."""
    manager = CheckpointManager(run_of(folder), max_to_keep=2)
    states = [
        (step, writing, model(step, writing, FEW_WEIGHTS)) for step, writing in ((1, 1), (2, 1), (2, 2), (3, 1), (4, 1))
    ]

    def work() -> None:
        for step, writing, state in states:
            manager.save(step, state, Stateful({}), rng_state={})
            os.access(os.path.join(folder, f"{ACKNOWLEDGED}{step}.{writing}"), os.F_OK)
            manager.wait()
        manager.close()

    return work


def remove(folder: str) -> Work:
    return lambda: publishing.remove(os.path.join(run_of(folder), snapshot_name(1)))


def sweep(folder: str) -> Work:
    return lambda: publishing.sweep(run_of(folder))


def write_run(folder: str) -> Work:
    run = statefile.RunFile("the-run", Memory(high_water=2, incarnation=2))
    return lambda: statefile.write_run(run_of(folder), run, 0.0)


def set_aside(folder: str) -> Work:
    return lambda: places.set_aside(run_of(folder), snapshot_name(2), {"reason": "for a test"})


def verdict_of(path: str) -> tuple[Identity, Verdict]:
    status = os.stat(path)
    return Identity.of(status), Verdict(
        Kind.HEALTHY, Proof.SEAL, "for a test", status.st_size, file_sha256(path), 1, 0.5
    )


def remember(folder: str) -> Work:
    """A verdict goes into the ledger."""
    path = os.path.join(run_of(folder), snapshot_name(1))
    identity, verdict = verdict_of(path)
    ledger = Ledger(run_of(folder), writable=True)
    return lambda: ledger.put(path, identity, verdict, time.time_ns() + 10**10)


def seal_for_others(folder: str) -> Work:
    """A supervisor seals a snapshot that its writer left unsealed."""
    verifier = Verifier(run_of(folder), None, 0.0, {})
    verifier.judge_ladder()
    return lambda: verifier.seal(snapshot_name(2))


FOLDER = "checkpoint-5"


def write_folder(folder: str) -> str:
    """A snapshot that is a folder: two files, and one in a folder of its own."""
    path = os.path.join(run_of(folder), FOLDER)
    os.makedirs(os.path.join(path, "ranks"))
    torch.save(payload(5, 1), os.path.join(path, "model.pt"))
    for name in ("state.bin", "ranks/rng.bin"):
        with open(os.path.join(path, name), "wb") as file:
            file.write(name.encode() * 100)
    return path


def seal_by_hand(folder: str) -> Work:
    """A person seals a file that its writer left unsealed."""
    return lambda: seal_snapshot(os.path.join(run_of(folder), snapshot_name(2)))


def seal_a_folder(folder: str) -> Work:
    return lambda: seal_snapshot(os.path.join(run_of(folder), FOLDER))


def remove_a_folder(folder: str) -> Work:
    return lambda: publishing.remove(os.path.join(run_of(folder), FOLDER))


def write_wanted(folder: str) -> Work:
    return lambda: statefile.write_wanted(run_of(folder), "pause")


def write_status(folder: str) -> Work:
    return lambda: statefile.write_status(run_of(folder), {"number": 2, "padding": "x" * 5000})


def a_record(folder: str) -> Work:
    """A record is written, and it is known when it was not."""
    path = os.path.join(run_of(folder), STATE_DIR, EVENTS_FILE)
    writer = journal.Journal("run", "the-run", path, "json", "error", io.StringIO())

    def work() -> None:
        writer.write("supervisor.ready", "info", 0, {"number": 2})
        if writer.lost:
            raise RuntimeError("it was lost, and that was counted")

    return work


def a_record_that_turns_over(folder: str) -> Work:
    """The file has reached its limit, so that it is begun anew."""
    write = a_record(folder)

    def work() -> None:
        with patch.object(journal, "EVENTS_BYTES_MAX", EVENTS_BYTES):
            write()

    return work


def put_back(folder: str) -> Work:
    return lambda: places.put_back(run_of(folder), snapshot_name(2))


def prune(folder: str) -> Work:
    """Retention takes a snapshot that the supervisor had sealed."""
    return lambda: places.prune(run_of(folder), snapshot_name(1))


def start_up(folder: str) -> Work:
    """What a supervisor does to the directory before it looks at it: it finishes what killed ones left."""

    def work() -> None:
        os.close(statefile.lock(run_of(folder)))
        places.drop_orphaned_seals(run_of(folder))
        places.sweep(run_of(folder))

    return work

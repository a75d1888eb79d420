"""The supervisor's own files in a checkpoint directory: its lock, run.json, wanted.json, status.json.

run.json must last: it is replaced durably. status.json is for looking at and is replaced without waiting for the disk.
"""

import fcntl
import json
import os
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from lastgood.contract import RUN_FILE, STATE_DIR, STATUS_FILE, SUPERVISOR_LOCK, WANTED_FILE
from lastgood.naming import partial_name
from lastgood.publish import fsync_folder, write_durably
from lastgood.seal import Identity
from supervisor.core import budget
from supervisor.core.memory import Memory
from supervisor.errors import AlreadySupervisedError, UsageError

VERSION = 1
LOCK_WAIT_SECONDS = 2.0  # a supervisor that is just ending needs a moment; one that is not will not be gone in a minute


@dataclass(frozen=True)
class RunFile:
    """What run.json holds: the run's id, its memory, and names of another run's snapshots with their identities;
    `isolated` says that it was begun apart from them by a person's wish.
    """

    run_id: str
    memory: Memory = field(default_factory=Memory)
    foreign: dict[str, Identity] = field(default_factory=dict)
    isolated: bool = False


def new_run(foreign: dict[str, Identity] | None = None) -> RunFile:
    """A run that has just begun; with `foreign`, apart from those snapshots and all that the directory ever held."""
    return RunFile(uuid.uuid4().hex[:16], foreign=foreign or {}, isolated=foreign is not None)


def prepare(checkpoint_dir: str) -> None:
    """Make the checkpoint directory and the supervisor's folder in it. Raises UsageError when it cannot be written."""
    state = os.path.join(checkpoint_dir, STATE_DIR)
    try:
        os.makedirs(state, exist_ok=True)
        probe = os.path.join(state, partial_name("probe"))
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.unlink(probe)
    except OSError as error:
        raise UsageError(
            f"checkpoints.dir: {checkpoint_dir} is not writable ({error.strerror}); "
            "give this user write permission, or name another folder"
        ) from None


def lock(checkpoint_dir: str) -> int:
    """Take the directory's supervisor lock; returns its descriptor, which holds it until closed.

    Raises AlreadySupervisedError, naming the holder, when another has it for longer than a moment.
    """
    path = os.path.join(checkpoint_dir, STATE_DIR, SUPERVISOR_LOCK)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    give_up_at = time.monotonic() + LOCK_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= give_up_at:
                holder = os.read(descriptor, 64).decode("ascii", "replace").strip() or "unknown"
                os.close(descriptor)
                raise AlreadySupervisedError(f"{checkpoint_dir} is supervised by process {holder}") from None
            time.sleep(0.05)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def holder(checkpoint_dir: str) -> int | None:
    """The process id of the supervisor that has this directory now, or None."""
    path = os.path.join(checkpoint_dir, STATE_DIR, SUPERVISOR_LOCK)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(descriptor, 64).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(descriptor)
    return None


def read_run(checkpoint_dir: str, now: float) -> RunFile | None:
    """The run of this directory, or None before its first start. Raises UsageError when run.json is damaged."""
    path = os.path.join(checkpoint_dir, STATE_DIR, RUN_FILE)
    try:
        with open(path, "rb") as file:
            content = json.load(file)
        return _decoded(content, now)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path}: it is damaged ({error}); remove it to go on from the newest healthy snapshot with a fresh budget"
        ) from None


def _decoded(content: dict[str, Any], now: float) -> RunFile:
    if content["version"] != VERSION:
        raise ValueError(f"its version is {content['version']}, and this software knows {VERSION}")
    spent = budget.rejuvenated(
        tuple(content["budget"]["fruitless_ages"]),
        tuple(content["budget"]["recent_ages"]),
        bool(content["budget"]["ever_progressed"]),
        now,
    )
    memory = Memory(
        high_water=content["high_water"],
        reached=content["reached"],
        incarnation=int(content["incarnation"]),
        done=content["done"],
        born_empty=bool(content["born_empty"]),
        budget=spent,
    )
    foreign = {name: Identity(*parts) for name, parts in content["foreign"].items()}
    return RunFile(str(content["run_id"]), memory, foreign, bool(content["isolated"]))


def write_run(checkpoint_dir: str, run: RunFile, now: float) -> None:
    """Replace run.json durably. Raises OSError."""
    memory = run.memory
    fruitless, recent = budget.aged(memory.budget, now)
    content = {
        "version": VERSION,
        "run_id": run.run_id,
        "high_water": memory.high_water,
        "reached": memory.reached,
        "incarnation": memory.incarnation,
        "done": memory.done,
        "born_empty": memory.born_empty,
        "budget": {
            "fruitless_ages": fruitless,
            "recent_ages": recent,
            "ever_progressed": memory.budget.ever_progressed,
        },
        "isolated": run.isolated,
        "foreign": {
            name: [one.inode, one.size, one.mtime_ns, one.ctime_ns] for name, one in sorted(run.foreign.items())
        },
    }
    state = os.path.join(checkpoint_dir, STATE_DIR)
    write_durably(os.path.join(state, RUN_FILE), (json.dumps(content, indent=1) + "\n").encode("ascii"))
    fsync_folder(state)


def write_wanted(checkpoint_dir: str, wanted: str) -> None:
    """Replace wanted.json: `run` or `stop`, what is wanted of the run, whatever state it is in. Raises OSError."""
    content = {"version": VERSION, "wanted": wanted, "since": time.time()}
    write_durably(os.path.join(checkpoint_dir, STATE_DIR, WANTED_FILE), (json.dumps(content) + "\n").encode("ascii"))


def read_wanted(checkpoint_dir: str) -> str | None:
    """What is wanted of the run, or None when nobody has said so yet or the file cannot be read."""
    try:
        with open(os.path.join(checkpoint_dir, STATE_DIR, WANTED_FILE), "rb") as file:
            wanted = json.load(file)["wanted"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return wanted if wanted in ("run", "stop") else None


def write_status(checkpoint_dir: str, summary: dict[str, Any]) -> None:
    """Replace status.json so that a reader sees the old one or the new one. Raises OSError."""
    path = os.path.join(checkpoint_dir, STATE_DIR, STATUS_FILE)
    partial = os.path.join(checkpoint_dir, STATE_DIR, partial_name(STATUS_FILE))
    with open(partial, "w", encoding="ascii") as file:
        json.dump(summary, file, default=repr)
        file.write("\n")
    os.replace(partial, path)


def read_status(checkpoint_dir: str) -> dict[str, Any] | None:
    """The last summary written, or None. Raises ValueError when it is damaged, OSError when it cannot be read."""
    path = os.path.join(checkpoint_dir, STATE_DIR, STATUS_FILE)
    try:
        with open(path, "rb") as file:
            found = json.load(file)
    except FileNotFoundError:
        return None
    return found if isinstance(found, dict) else None

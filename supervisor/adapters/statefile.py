"""The supervisor's own files in a checkpoint directory: its lock, run.json, wanted.json, status.json.

run.json must last: it is replaced durably. status.json is for looking at and is replaced without waiting for the disk.
"""

import errno
import fcntl
import json
import os
import re
import reprlib
import signal
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from types import NoneType
from typing import Any

from lastgood.contract import RUN_FILE, SEALS_DIR, STATE_DIR, STATUS_FILE, SUPERVISOR_LOCK, WANTED_FILE
from lastgood.judging import TRANSIENT
from lastgood.naming import partial_name, partial_of
from lastgood.publish import fsync_folder, remove_if_there, write_at_once, write_durably
from lastgood.regular import regular
from lastgood.seal import Identity
from supervisor import proc, trouble
from supervisor.core import budget
from supervisor.core.memory import Memory
from supervisor.errors import AlreadySupervisedError, UsageError
from supervisor.leftovers import partials
from supervisor.trouble import value

VERSION = 1
WISH_SIGNAL = signal.SIGUSR1  # says that wanted.json has been replaced
LOCK_WAIT_SECONDS = 2.0  # a supervisor that is just ending needs a moment; one that is not will not be gone in a minute


@dataclass(frozen=True)
class RunFile:
    """What run.json holds: the run's id, its memory, and names of another run's snapshots with their identities;
    `isolated` says that it was begun apart from them by a person's wish. `boot` and `supervisor` are who wrote it, in which boot
    of the machine; None when that is not known.
    """

    run_id: str
    memory: Memory = field(default_factory=Memory)
    foreign: dict[str, Identity] = field(default_factory=dict)
    isolated: bool = False
    boot: str | None = None
    supervisor: proc.Identity | None = None


def new_run(foreign: dict[str, Identity] | None = None) -> RunFile:
    """A run that has just begun; with `foreign`, apart from those snapshots and all that the directory ever held."""
    return RunFile(uuid.uuid4().hex[:16], foreign=foreign or {}, isolated=foreign is not None)


def prepare(checkpoint_dir: str, anew: bool = False) -> None:
    """Make the supervisor's folder, and with `anew` the directory itself. Raises UsageError when it cannot be written."""
    state = os.path.join(checkpoint_dir, STATE_DIR)
    try:
        if anew:
            os.makedirs(checkpoint_dir, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(state)
        probe = os.path.join(state, partial_name("probe"))
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        remove_if_there(probe)
    except OSError as error:
        raise UsageError(
            f"checkpoints.dir: {checkpoint_dir} is not writable ({error.strerror}); "
            "give this user write permission, or name another folder"
        ) from None


def lock(checkpoint_dir: str) -> int:
    """Take the directory's supervisor lock; returns its descriptor, which holds it until closed.

    Raises AlreadySupervisedError, naming the holder, when another has it for longer than a moment, UsageError when it
    cannot be taken at all, and OSError when the storage fails for a moment.
    """
    state = os.path.join(checkpoint_dir, STATE_DIR)
    path = os.path.join(state, SUPERVISOR_LOCK)
    try:
        descriptor = regular(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            _flock(descriptor, checkpoint_dir)
            _sweep(state)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        if error.errno in TRANSIENT:
            raise
        raise UsageError(
            f"{path}: the lock cannot be taken ({error.strerror}); "
            "let it be a file that this user may write, on a filesystem that has locks"
        ) from None
    try:
        os.ftruncate(descriptor, os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0))
    except OSError:
        pass  # the disk is full; the lock holds all the same, and only its holder's number is not told
    return descriptor


def still_locked(checkpoint_dir: str, descriptor: int) -> bool:
    """Whether the lock held by `descriptor` is still the one that another supervisor would try to take.

    Storage that does not answer is no reason to think otherwise: taking it anew would find ourselves its holder.
    """
    try:
        there = os.stat(os.path.join(checkpoint_dir, STATE_DIR, SUPERVISOR_LOCK))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return os.path.samestat(there, os.fstat(descriptor))


def _flock(descriptor: int, checkpoint_dir: str) -> None:
    give_up_at = time.monotonic() + LOCK_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= give_up_at:
                pid = _pid_in(descriptor) or "unknown"
                raise AlreadySupervisedError(f"{checkpoint_dir} is supervised by process {pid}") from None
            time.sleep(0.05)


def _sweep(state: str) -> None:
    """Remove what a supervisor, or somebody who told it something, left half-written when it was killed. Raises OSError."""
    for folder in (state, os.path.join(state, SEALS_DIR)):
        if not os.path.isdir(folder):
            continue
        for name, is_abandoned in partials(folder).items():
            if is_abandoned or partial_of(name) in (RUN_FILE, STATUS_FILE):  # only the holder of the lock writes these
                remove_if_there(os.path.join(folder, name))


def _pid_in(descriptor: int) -> int:
    """The process id in a lock file; 0 when there is none."""
    text = os.pread(descriptor, 64, 0).partition(b"\n")[0]
    return int(text) if text.isdigit() else 0


def holder(checkpoint_dir: str) -> int | None:
    """The process id of the supervisor that has this directory now, 0 when it is not known, or None without one."""
    path = os.path.join(checkpoint_dir, STATE_DIR, SUPERVISOR_LOCK)
    try:
        descriptor = regular(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_in(descriptor)
    except OSError:
        return None  # a filesystem without locks has no supervisor either
    finally:
        os.close(descriptor)
    return None


def read_run(checkpoint_dir: str, now: float) -> RunFile | None:
    """The run of this directory, or None before its first start.

    Raises UsageError when run.json is damaged or may not be read, and OSError when the storage fails for a moment.
    """
    path = os.path.join(checkpoint_dir, STATE_DIR, RUN_FILE)
    cure = "remove it to go on from the newest healthy snapshot with a fresh budget"
    try:
        with open(path, "rb", opener=regular) as file:
            content = file.read()
        return _decoded(json.loads(content), now)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in TRANSIENT:
            raise
        raise UsageError(
            f"{path}: it cannot be read ({error.strerror}); let it be a file that this user may read, or {cure}"
        ) from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{path}: it is damaged ({error}); {cure}") from None


def _decoded(content: Any, now: float) -> RunFile:
    """The run that run.json holds. Raises ValueError for anything that this software did not write."""
    version = value(content, "version", int)
    if version != VERSION:
        raise ValueError(f"its version is {version}, and this software knows {VERSION}")
    boot = value({"boot": None, **content}, "boot", str, NoneType)
    spent = value(content, "budget", dict)
    memory = Memory(
        high_water=value(content, "high_water", int, NoneType),
        reached=value(content, "reached", int, NoneType),
        incarnation=value(content, "incarnation", int),
        open=value({"open": False, **content}, "open", bool),
        done=value(content, "done", int, NoneType),
        ever_proven=value(content, "ever_proven", bool),
        born_empty=value(content, "born_empty", bool),
        blame=trouble.blame(content.get("blame")),
        divergence=trouble.divergence(content.get("divergence")),
        trust=trouble.trust(content.get("trust")),
        losses=tuple(map(trouble.told_loss, value({"losses": [], **content}, "losses", list))),
        skip=tuple(map(trouble.stretch, value({"skip": [], **content}, "skip", list))),
        budget=budget.rejuvenated(
            trouble.ages(spent, "fruitless_ages"),
            trouble.ages(spent, "recent_ages"),
            value(spent, "ever_progressed", bool),
            trouble.written_at(content, now) if boot == proc.boot_id() else now,
        ),
    )
    run_id = value(content, "run_id", str)
    if not _RUN_ID.fullmatch(run_id):
        raise ValueError(f"its run_id is {reprlib.repr(run_id)}")
    foreign = {name: trouble.identity(parts) for name, parts in value(content, "foreign", dict).items()}
    return RunFile(
        run_id, memory, foreign, value(content, "isolated", bool), boot, trouble.process(content.get("supervisor"))
    )


_RUN_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)
"""It goes into the trainer's environment, by which leftover processes of a run are found."""


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
        "open": memory.open,
        "done": memory.done,
        "ever_proven": memory.ever_proven,
        "born_empty": memory.born_empty,
        "blame": None if memory.blame is None else asdict(memory.blame),
        "divergence": None if memory.divergence is None else asdict(memory.divergence),
        "trust": None if memory.trust is None else asdict(memory.trust),
        "skip": memory.skip,
        "losses": memory.losses,
        "budget": {
            "fruitless_ages": fruitless,
            "recent_ages": recent,
            "ever_progressed": memory.budget.ever_progressed,
        },
        "written_at": now,
        "isolated": run.isolated,
        "boot": run.boot,
        "supervisor": None if run.supervisor is None else [run.supervisor.pid, run.supervisor.start_ticks],
        "foreign": {
            name: [one.inode, one.size, one.mtime_ns, one.ctime_ns] for name, one in sorted(run.foreign.items())
        },
    }
    state = os.path.join(checkpoint_dir, STATE_DIR)
    write_durably(os.path.join(state, RUN_FILE), (json.dumps(content, indent=1) + "\n").encode("ascii"))
    fsync_folder(state)


def write_wanted(checkpoint_dir: str, wanted: str) -> None:
    """Replace wanted.json: `run`, `pause` or `stop`, what is wanted of the run, whatever state it is in. Raises OSError."""
    write_durably(os.path.join(checkpoint_dir, STATE_DIR, WANTED_FILE), _wish(wanted))


def _wish(wanted: str) -> bytes:
    return (json.dumps({"version": VERSION, "wanted": wanted, "since": time.time()}) + "\n").encode("ascii")


def settle_wanted(checkpoint_dir: str, wanted: str) -> None:
    """Replace what is wanted, for the supervisor itself, unless that is a pause: it outlives a start and a stop. Raises OSError.

    Nothing waits for the disk between the look and the replacement: a wish that somebody tells meanwhile would be lost. What
    a power cut takes of it is only what the next start says anyway.
    """
    if wanted_in(checkpoint_dir) not in ("pause", wanted):
        write_at_once(os.path.join(checkpoint_dir, STATE_DIR, WANTED_FILE), _wish(wanted))


def wanted_in(checkpoint_dir: str) -> str | None:
    """What is wanted of the run; None when nobody has said so yet or the file is damaged. Raises OSError when it is not told."""
    try:
        with open(os.path.join(checkpoint_dir, STATE_DIR, WANTED_FILE), "rb", opener=regular) as file:
            wanted = json.load(file)["wanted"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    except OSError as error:
        if error.errno in _NO_FILE and os.path.isdir(os.path.join(checkpoint_dir, STATE_DIR)):
            return None
        raise  # also where the whole folder is gone: a disk that is not mounted has no wish to tell
    return wanted if wanted in ("run", "pause", "stop") else None


_NO_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.ENXIO})
"""There is none, or something else is in its place."""


def read_wanted(checkpoint_dir: str) -> str | None:
    """The same for looking at: None also when it cannot be read."""
    try:
        return wanted_in(checkpoint_dir)
    except OSError:
        return None


def write_status(checkpoint_dir: str, summary: dict[str, Any]) -> None:
    """Replace status.json so that a reader sees the old one or the new one. Raises OSError, and leaves nothing then."""
    content = (json.dumps(summary, default=repr) + "\n").encode("ascii")
    write_at_once(os.path.join(checkpoint_dir, STATE_DIR, STATUS_FILE), content)


def read_status(checkpoint_dir: str) -> dict[str, Any] | None:
    """The last summary written, or None. Raises ValueError when it is damaged, OSError when it cannot be read."""
    path = os.path.join(checkpoint_dir, STATE_DIR, STATUS_FILE)
    try:
        with open(path, "rb", opener=regular) as file:
            found = json.load(file)
    except FileNotFoundError:
        return None
    except RecursionError:
        raise ValueError("it is damaged: values within values without end") from None
    if not isinstance(found, dict):
        raise ValueError("it is damaged: it holds no JSON object")  # noqa: TRY004 - it is the file that is wrong
    return found

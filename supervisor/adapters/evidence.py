"""What the processes of a stalled trainer were doing, for whoever wants to know why it stood still.

Taken from /proc, which asks nothing of the processes themselves, and from `py-spy` where that is installed. Nothing here
raises for a process that ends meanwhile, or for what may not be read. Only those files of /proc are read for which the kernel
does not need the process's memory: the others wait for as long as a process does that is stuck.
"""

import glob
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from typing import NamedTuple

from lastgood.publish import make_inner_folder
from supervisor.proc import Identity, program_of, stat_of

KEPT_MAX = 20  # files of evidence, of the newest incarnations
PROCESSES_MAX = 200
THREADS_MAX = 64  # of one process
DUMPS_MAX = 8  # a launcher and its ranks; the workers of its data loaders wait for them
LOCKS_MAX = 20
_NAME = "incarnation-{}.txt"
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "uninterruptible: it waits for storage or a driver, and no signal ends it before that answers",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "dead, and not collected",
    "I": "idle",
}


class Kept(NamedTuple):
    """Where the evidence is, and the essence of it: a line a process, the pids that no signal ends, and lock files."""

    path: str
    processes: list[str]
    uninterruptible: list[int]
    locks: list[str]


def keep(
    folder: str, incarnation: int, heading: str, tree: Sequence[Identity], places: Sequence[str], until: float
) -> Kept:
    """Write down what the processes of a tree are doing, and which lock files lie in `places`. Raises OSError.

    What is cheap comes first and is on the disk before `py-spy` is asked, which gets the time that is left `until` then.
    """
    make_inner_folder(folder)
    path = os.path.join(folder, _NAME.format(incarnation))
    found = [one for one in map(_process, (identity.pid for identity in tree[:PROCESSES_MAX])) if one is not None]
    locks = [one for place in places for one in _locks_in(place)][:LOCKS_MAX]
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{heading}\n\n")
        for one in found:
            file.write("\n".join([one.line, *one.details, ""]))
        file.write("".join(f"\nlock file: {one}" for one in locks) + "\n")
        file.flush()
        for dump in _dumps([one.pid for one in found if one.state != "D"], until):
            file.write(f"\n{dump}")
            file.flush()
    _prune(folder)
    return Kept(path, [one.line for one in found], [one.pid for one in found if one.state == "D"], locks)


class _Process(NamedTuple):
    pid: int
    state: str
    line: str
    details: list[str]


def _process(pid: int) -> _Process | None:
    """A process in one line, and in more: its threads' states, and where in the kernel they wait."""
    stat = stat_of(pid)
    if stat is None:
        return None
    threads = _listed(f"/proc/{pid}/task")[:THREADS_MAX]
    details = [f"  {_waits(f'/proc/{pid}/task/{thread}')[1]}" for thread in threads] if len(threads) > 1 else []
    details += [f"  {one}" for one in _read(f"/proc/{pid}/stack").splitlines()]
    state, doing = _waits(f"/proc/{pid}")
    return _Process(pid, state, f"{pid} {doing}, threads: {stat.threads}", details)


def _waits(place: str) -> tuple[str, str]:
    """The state of a process or a thread, and in words its name, state and wait channel."""
    status = _read(f"{place}/status").splitlines()
    state = next((one.split()[1] for one in status if one.startswith("State:")), "?")
    channel = _read(f"{place}/wchan").strip("\0\n")
    where = f", in {channel}" if channel not in ("", "0") else ""
    name = " ".join(_read(f"{place}/comm").split())
    return state, f"{name}: {state} ({_STATES.get(state, 'unknown')}){where}"


def _dumps(pids: Sequence[int], until: float) -> list[str]:
    """The Python stacks of those processes that are Python's, as far as `py-spy` is there and the time lasts."""
    program = shutil.which("py-spy")
    if program is None:
        return ["py-spy is not on PATH; with it, Python's own stacks would be here"]
    pythons = [pid for pid in pids if program_of(pid).startswith("python")]
    return [_dump(program, pid, until) for pid in pythons[:DUMPS_MAX]]


def _dump(program: str, pid: int, until: float) -> str:
    seconds = until - time.monotonic()
    if seconds <= 0:
        return f"{pid}: there was no time left for py-spy"
    try:
        done = subprocess.run(
            [program, "dump", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{pid}: py-spy gave no answer in {seconds:.0f} s"
    except OSError as error:
        return f"{pid}: py-spy cannot be run: {error.strerror}"
    return done.stdout.decode("utf-8", "backslashreplace")


def _locks_in(folder: str) -> list[str]:
    """Files that are called like locks: one that a killed process left makes the next wait for ever."""
    names = [*glob.glob("*.lock", root_dir=folder), *glob.glob("lock", root_dir=folder)]
    return [os.path.join(folder, name) for name in sorted(names)]


def _prune(folder: str) -> None:
    head, tail = _NAME.split("{}")
    numbers = (name.removeprefix(head).removesuffix(tail) for name in os.listdir(folder))
    for number in sorted((int(one) for one in numbers if one.isdigit()), reverse=True)[KEPT_MAX:]:
        os.unlink(os.path.join(folder, _NAME.format(number)))


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder), key=int)
    except OSError:
        return []


def _read(path: str) -> str:
    """The text of a file in /proc; nothing when the process is gone or not ours to look into."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall().decode("utf-8", "backslashreplace")
    except OSError:
        return ""

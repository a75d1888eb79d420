"""faults.jsonl: what a chaos campaign is about to do, written before it does it, so that a death can be put down to it."""

import json
import os
from dataclasses import asdict, dataclass

from lastgood.contract import FAULTS_FILE, STATE_DIR
from lastgood.regular import regular
from supervisor.jsonl import append_line
from supervisor.proc import Identity


@dataclass(frozen=True)
class Fault:
    """One injected fault: its id, its kind, the process or path it is aimed at, and when (unix seconds)."""

    id: str
    kind: str
    pid: int | None
    start_ticks: int | None
    path: str | None
    at: float


def _path(checkpoint_dir: str) -> str:
    return os.path.join(checkpoint_dir, STATE_DIR, FAULTS_FILE)


def announce(checkpoint_dir: str, fault: Fault) -> None:
    """Write down a fault that is about to happen. Raises OSError: a fault that cannot be announced must not be done."""
    append_line(_path(checkpoint_dir), json.dumps(asdict(fault)).encode("ascii"))


def aimed_at(checkpoint_dir: str, target: Identity) -> Fault | None:
    """The last fault announced against this very process, if any. A line that cannot be read counts for nothing."""
    try:
        with open(_path(checkpoint_dir), "rb", opener=regular) as file:
            lines = file.readlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            fault = Fault(**json.loads(line))
        except (ValueError, TypeError, RecursionError):
            continue
        if (fault.pid, fault.start_ticks) == (target.pid, target.start_ticks):
            return fault
    return None

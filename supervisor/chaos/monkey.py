"""Kills now and then on a real run, to prove that it bears them: what `chaos:` in a run's config asks for.

It runs as a process of its own, started by the supervisor, whose end it sees in that its standard input ends. It kills and does
nothing else, announces each kill first, and waits with one until the run can bear it.
"""

import json
import random
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from lastgood.contract import FAULTS_FILE, STATE_DIR, STATUS_FILE
from supervisor.chaos.processes import below, leader
from supervisor.faults import Fault, announce
from supervisor.proc import Identity, is_alive, send_signal

PROVEN_MIN = 2  # snapshots: the one that is gone on from, and another
LOOK_SECONDS = 1.0
WAIT_SECONDS_MAX = 1e6  # at a time; some ten days
PROVEN = frozenset({"healthy", "intact"})


def due(seed: int, number: int, mean_seconds: float, kinds: list[str]) -> tuple[float, str]:
    """After how many seconds the kill of this number is due, and of which kind it is. Pure: the same for the same seed."""
    generator = random.Random(f"{seed} {number}")
    return generator.expovariate(1.0 / mean_seconds), generator.choice(kinds)


def victim(status: Any, before: int | None, last: Identity | None) -> Identity | None:
    """The trainer that may be killed now: one that trains, with two proven snapshots to go on from, and a newer one than
    `before`, at the last kill; and not the `last` one again. None: not now.
    """
    if not isinstance(status, dict) or status.get("phase") != "running" or status.get("trainer_pid") is None:
        return None
    if sum(one["verdict"] in PROVEN for one in status.get("snapshots", ())) < PROVEN_MIN:
        return None
    newest = newest_step(status)
    if newest is None or (before is not None and newest <= before):
        return None
    return None if leader(status) == last else leader(status)


def newest_step(status: dict[str, Any]) -> int | None:
    """The step of the newest proven snapshot."""
    found = status.get("last_good")
    return None if found is None else found["step"]


def main() -> None:
    """Kill until standard input ends. Arguments: the checkpoint directory, and the settings as JSON."""
    directory, asked = Path(sys.argv[2]), json.loads(sys.argv[3])
    before: int | None = None
    last: Identity | None = None
    number = _announced(directory)
    while True:
        seconds, kind = due(asked["seed"], number, asked["mean_seconds"], asked["kinds"])
        if not _waited(seconds):
            return
        while (target := victim(status := _status(directory), before, last)) is None or not is_alive(target):
            if not _waited(LOOK_SECONDS):
                return
        fault = Fault(f"chaos-{number + 1}", kind, target.pid, target.start_ticks, None, time.time())
        try:
            announce(str(directory), fault)
        except OSError:
            continue  # what cannot be announced is not done
        before, last, number = newest_step(status), target, number + 1
        for one in [*(below(target) if kind == "kill-tree" else []), target]:
            send_signal(one, signal.SIGKILL)


def _announced(directory: Path) -> int:
    """How many faults were announced in this directory: a supervisor after this one goes on with the next."""
    try:
        return len((directory / STATE_DIR / FAULTS_FILE).read_bytes().splitlines())
    except OSError:
        return 0


def _status(directory: Path) -> Any:
    try:
        return json.loads((directory / STATE_DIR / STATUS_FILE).read_bytes())
    except (OSError, ValueError):
        return None


def _waited(seconds: float) -> bool:
    """False when the supervisor is gone, or wants no more of it."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], min(left, WAIT_SECONDS_MAX))[0]:
            return False
    return True

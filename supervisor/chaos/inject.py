"""Do planned faults to a supervised run, from outside: announced first, proven afterwards.

The injector is another process than the supervisor, and knows the run only by its files.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lastgood.contract import STATE_DIR, STATUS_FILE
from lastgood.naming import partial_of
from supervisor.chaos import oracle
from supervisor.chaos.plan import FaultKind, PlannedFault
from supervisor.faults import Fault, announce
from supervisor.proc import Identity, is_alive, send_signal, stat_of

POLL_SECONDS = 0.002
DEATH_SECONDS = 30.0


class TooLateError(Exception):
    """The run was over, or gone, before the fault could be done."""


@dataclass
class Done:
    """A fault that was done: when (unix seconds), at which step, and what must follow from it.

    `proof` says how it is known to have happened; `expected` names the snapshot that must be chosen next.
    """

    fault: PlannedFault
    at: float = 0.0
    step: int = 0
    proof: str = ""
    expected: str | None = None
    damaged: list[str] = field(default_factory=list)


class Injector:
    """Faults against the run in `directory`; `supervised` says whether its supervisor still runs."""

    def __init__(self, directory: Path, supervised: Callable[[], bool]) -> None:
        self._directory = directory
        self._supervised = supervised

    def inject(self, fault: PlannedFault) -> Done:
        """Wait for the fault's step, do it, and return what was done. Raises TooLateError when the run ends before."""
        self._until(lambda: self._told() >= fault.at_step)
        done = Done(fault)
        match fault.kind:
            case FaultKind.KILL:
                self._kill(done, self._trainer())
                done.expected = oracle.newest_good(self._directory)
            case FaultKind.KILL_WHILE_SAVING:
                self._kill_while_saving(done)
                done.expected = oracle.newest_good(self._directory)
            case FaultKind.TRUNCATE:
                self._kill_and_truncate(done)
        return done

    def _told(self) -> int:
        """The newest step in metrics.jsonl that the present trainer wrote; -1 before its first."""
        newest = oracle.last_metric(self._directory)
        status = self._status()
        if newest is None or newest["incarnation"] != status.get("incarnation"):
            return -1
        return int(newest["step"])

    def _status(self) -> dict[str, Any]:
        try:
            found = json.loads((self._directory / STATE_DIR / STATUS_FILE).read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if not self._supervised():
                raise TooLateError
            time.sleep(POLL_SECONDS)

    def _trainer(self) -> Identity:
        """The living trainer as status.json names it; waits for one."""
        found: list[Identity] = []

        def named() -> bool:
            status = self._status()
            if status.get("trainer_pid") is None:
                return False
            found[:] = [Identity(status["trainer_pid"], status["trainer_start_ticks"])]
            return is_alive(found[0])

        self._until(named)
        return found[0]

    def _kill(self, done: Done, trainer: Identity) -> None:
        fault = done.fault
        done.step, done.at = self._told(), time.time()
        announce(
            str(self._directory), Fault(fault.id, str(fault.kind), trainer.pid, trainer.start_ticks, None, done.at)
        )
        if not send_signal(trainer, signal.SIGKILL):
            raise TooLateError
        self._wait_for_death(trainer)
        done.proof = f"process {trainer.pid} is dead"

    def _wait_for_death(self, trainer: Identity) -> None:
        deadline = time.monotonic() + DEATH_SECONDS
        while is_alive(trainer):
            if time.monotonic() > deadline:
                raise TooLateError
            time.sleep(POLL_SECONDS / 4)

    def _kill_while_saving(self, done: Done) -> None:
        """Freeze the trainer when a partial shows, make sure that it is still there, then kill. Too late: let it go on."""
        while True:
            self._until(lambda: bool(self._partials()))
            trainer = self._trainer()
            if not send_signal(trainer, signal.SIGSTOP):
                raise TooLateError
            self._until(lambda: _stands_still(trainer))  # noqa: B023 - used up before the next round
            if unfinished := self._partials():
                break
            send_signal(trainer, signal.SIGCONT)
        # Still stopped: after its death the supervisor may sweep the partial before anyone looks.
        self._kill(done, trainer)
        done.proof = f"process {trainer.pid} was stopped with {unfinished[0]} half written, and is dead"

    def _partials(self) -> list[str]:
        """Data, not seals, that is being written."""
        names = os.listdir(self._directory)
        return sorted(name for name in names if (final := partial_of(name)) and final.endswith(".pt"))

    def _kill_and_truncate(self, done: Done) -> None:
        """With the supervisor frozen, so that the damage is done before it can look."""
        supervisor = self._status()["supervisor_pid"]
        self._until(lambda: oracle.count_good(self._directory) >= 2)
        os.kill(supervisor, signal.SIGSTOP)
        try:
            self._kill(done, self._trainer())
            newest = oracle.newest_good(self._directory)
            if newest is None:
                raise TooLateError
            path = self._directory / newest
            size = path.stat().st_size
            fault = Fault(f"{done.fault.id}-file", str(done.fault.kind), None, None, newest, time.time())
            announce(str(self._directory), fault)
            os.truncate(path, size // 2)
            done.damaged.append(newest)
            done.proof = f"{newest} has {path.stat().st_size:,} of {size:,} bytes, cut while the trainer is dead"
            done.expected = oracle.newest_good(self._directory)
        finally:
            done.at = time.time()  # from here on the supervisor can know
            os.kill(supervisor, signal.SIGCONT)


def _stands_still(trainer: Identity) -> bool:
    """Whether SIGSTOP has taken effect, which it does a moment after it was sent; a dead process stands still too."""
    stat = stat_of(trainer.pid)
    return stat is None or stat.identity != trainer or stat.state in "TtZX"

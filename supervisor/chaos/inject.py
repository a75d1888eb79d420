"""Do planned faults to a supervised run, from outside: announced first, proven afterwards.

The injector is another process than the supervisor, and knows the run only by its files.
"""

import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lastgood.contract import (
    ENV_CHECKPOINT_DIR,
    ENV_RUN_ID,
    NOTE_SAVE_FAILED,
    NOTES_FILE,
    RUN_FILE,
    STATE_DIR,
    STATUS_FILE,
)
from lastgood.naming import partial_of
from supervisor.chaos import oracle
from supervisor.chaos.damage import DAMAGES, HARMLESS, OF_THE_SEAL, UndamagedError
from supervisor.chaos.done import Done, TooLateError
from supervisor.chaos.filesystem import OwnFilesystem
from supervisor.chaos.plan import ON_STORAGE, FaultKind, PlannedFault
from supervisor.chaos.processes import below, leader, stands_still
from supervisor.faults import Fault, announce
from supervisor.proc import Identity, is_alive, send_signal, stat_of

POLL_SECONDS = 0.002
STRIDE_SECONDS = 0.0002  # a save of a small model takes some milliseconds
SLOW_POLL_SECONDS = 0.05  # where each look reads whole files
FILL_SECONDS = 0.01  # a disk is kept full for as long as others make room
DEATH_SECONDS = 30.0
PLACES_MAX = 10  # tries to damage what is under a checksum
PLACE_SHARE = 0.381966  # of the file, that two tries are apart: no two of them meet
LEAK = "sleep 86400 >/dev/null 2>&1 & echo $!"


class Injector:
    """Faults against the run of which these are the snapshots, which `goes_on` for as long as faults can be done to it.

    `revived` starts a supervisor in the place of one that was killed. `limit_seconds` is how long a death may take: a trainer
    that was stopped is ended when it has been silent for too long.
    """

    def __init__(
        self,
        snapshots: oracle.Snapshots,
        goes_on: Callable[[], bool],
        revived: Callable[[], None],
        filesystem: OwnFilesystem | None = None,
        limit_seconds: float = DEATH_SECONDS,
    ) -> None:
        self._directory = snapshots.directory
        self._snapshots = snapshots
        self._goes_on = goes_on
        self._revived = revived
        self._filesystem = filesystem
        self._limit_seconds = limit_seconds

    def inject(self, fault: PlannedFault) -> Done:
        """Wait for the fault's step and for a snapshot, do it, and return what was done.

        Raises TooLateError when the run ends before.
        """
        self._until(lambda: self._told() >= fault.at_step and self._snapshots.look())  # or there is nothing to prove
        done = Done(fault)
        if fault.kind in ON_STORAGE:
            self._kill_and_damage(done)
            return done
        by_kind = {
            FaultKind.KILL: self._kill,
            FaultKind.KILL_TREE: self._kill_tree,
            FaultKind.KILL_WHILE_SAVING: self._kill_while_saving,
            FaultKind.STOP: self._stop,
            FaultKind.TERMINATE: self._terminate,
            FaultKind.LEAK_A_GRANDCHILD: self._leak,
            FaultKind.KILL_THE_SUPERVISOR: self._kill_the_supervisor,
            FaultKind.FILL_DISK: self._fill_disk,
        }
        by_kind[fault.kind](done)
        return done

    def _noted_failures(self) -> int:
        """Failed saves in what the trainer's saving notes, which the supervisor reads in a while."""
        try:
            return (self._directory / STATE_DIR / NOTES_FILE).read_bytes().count(NOTE_SAVE_FAILED.encode("ascii"))
        except OSError:
            return 0

    def _told(self) -> int:
        """The newest step that the present trainer has told; -1 before its first, and while there is none."""
        status = self._status()
        if status.get("trainer_pid") is None or not is_alive(leader(status)):
            return -1
        newest = oracle.last_metric(self._directory)
        if newest is None or "incarnation" not in newest:
            return -1 if status.get("step") is None else int(status["step"])
        return int(newest["step"]) if newest["incarnation"] == status.get("incarnation") else -1

    def _status(self) -> dict[str, Any]:
        try:
            found = json.loads((self._directory / STATE_DIR / STATUS_FILE).read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _until(self, condition: Callable[[], object], poll_seconds: float = POLL_SECONDS) -> None:
        while not condition():
            if not self._goes_on():
                raise TooLateError
            time.sleep(poll_seconds)

    def _trainer(self) -> Identity:
        """The living trainer as status.json names it; waits for one."""
        found: list[Identity] = []

        def named() -> bool:
            status = self._status()
            if status.get("trainer_pid") is None:
                return False
            found[:] = [leader(status)]
            return is_alive(found[0])

        self._until(named)
        return found[0]

    def _supervisor(self) -> Identity:
        stat = stat_of(int(self._status().get("supervisor_pid") or 0))
        if stat is None:
            raise TooLateError
        return stat.identity

    def _announce(self, done: Done, target: Identity) -> None:
        done.step, done.at = self._told(), time.time()
        fault = done.fault
        announce(str(self._directory), Fault(fault.id, str(fault.kind), target.pid, target.start_ticks, None, done.at))

    def _signal(self, done: Done, target: Identity, number: int, others: Iterable[Identity] = ()) -> None:
        """Announce, signal, wait for the end, and note which snapshot is the newest good one then."""
        self._announce(done, target)
        for one in others:
            send_signal(one, number)
        if not send_signal(target, number):
            raise TooLateError
        self._after_death(done, target)

    def _after_death(self, done: Done, target: Identity) -> None:
        """Wait for it, and note what lies there then: the supervisor may be quick."""
        self._wait_for_death(target)
        looked = self._snapshots.look()
        done.lay_there = len(looked)
        self._note_good(done, looked)

    def _note_good(self, done: Done, looked: oracle.Look) -> None:
        good = list(self._snapshots.good(looked))
        done.expected, done.good = (good[0] if good else None), len(good)

    def _wait_for_death(self, target: Identity) -> None:
        deadline = time.monotonic() + self._limit_seconds
        while is_alive(target):
            if time.monotonic() > deadline:
                raise TooLateError
            time.sleep(POLL_SECONDS / 4)

    def _kill(self, done: Done) -> None:
        trainer = self._trainer()
        self._signal(done, trainer, signal.SIGKILL)
        done.proof = f"process {trainer.pid} is dead"

    def _kill_tree(self, done: Done) -> None:
        trainer = self._trainer()
        others = below(trainer)
        self._signal(done, trainer, signal.SIGKILL, others)
        done.proof = f"process {trainer.pid} and {len(others)} below it are dead"

    def _stop(self, done: Done) -> None:
        trainer = self._trainer()
        self._signal(done, trainer, signal.SIGSTOP)
        done.proof = f"process {trainer.pid} stood still until it was ended"

    def _terminate(self, done: Done) -> None:
        trainer = self._trainer()
        self._signal(done, trainer, signal.SIGTERM)
        done.proof = f"process {trainer.pid} has ended"

    def _leak(self, done: Done) -> None:
        run = json.loads((self._directory / STATE_DIR / RUN_FILE).read_bytes())
        env = {"PATH": os.environ["PATH"], ENV_CHECKPOINT_DIR: str(self._directory), ENV_RUN_ID: run["run_id"]}
        told = subprocess.run(["sh", "-c", LEAK], env=env, start_new_session=True, capture_output=True, check=True)
        leaked = stat_of(int(told.stdout))
        trainer, incarnation = self._trainer(), self._status()["incarnation"]
        if leaked is None:
            raise TooLateError
        self._signal(done, trainer, signal.SIGKILL)
        done.proof = f"process {leaked.pid} of the run was there as process {trainer.pid} died"
        self._until(lambda: self._status().get("incarnation", 0) > incarnation)
        if is_alive(leaked.identity):
            send_signal(leaked.identity, signal.SIGKILL)
            done.problems.append(f"process {leaked.pid} was still there when the next trainer was started")

    def _kill_the_supervisor(self, done: Done) -> None:
        trainer, supervisor = self._trainer(), self._supervisor()
        self._signal(done, supervisor, signal.SIGKILL)
        self._after_death(done, trainer)
        done.cause = None  # there was nobody to put it down to anything
        done.proof = f"supervisor {supervisor.pid} is dead, and with it its trainer {trainer.pid}"
        self._revived()

    def _kill_while_saving(self, done: Done) -> None:
        """Freeze the trainer when a partial shows, let it go on in small strides until as much is written as is due, then kill.

        Too late: wait for the next save.
        """
        size = self._snapshots.size_of_newest()
        due = int(done.fault.share * size)
        while True:
            self._until(self._partials, STRIDE_SECONDS)
            trainer = self._trainer()
            if not send_signal(trainer, signal.SIGSTOP):
                raise TooLateError
            self._until(lambda: stands_still(trainer), STRIDE_SECONDS)  # noqa: B023 - used up before the next round
            unfinished = self._partials()
            if unfinished and max(unfinished.values()) >= due:
                break
            send_signal(trainer, signal.SIGCONT)
            time.sleep(STRIDE_SECONDS)
        # Still stopped: after its death the supervisor may sweep the partial before anyone looks.
        self._signal(done, trainer, signal.SIGKILL)
        name, written = max(unfinished.items(), key=lambda one: one[1])
        how_far = f"{written:,} of about {size:,} bytes"
        done.proof = f"process {trainer.pid} was stopped with {name} half written, {how_far}, and is dead"

    def _partials(self) -> dict[str, int]:
        """Data, not seals, that is being written, and how much of it there is."""
        found = {}
        for name in os.listdir(self._directory):
            final = partial_of(name)
            if final is not None and not final.endswith(oracle.SEAL):
                try:
                    found[name] = (self._directory / name).stat().st_size
                except FileNotFoundError:
                    continue  # it has just been put in place
        return found

    def _kill_and_damage(self, done: Done) -> None:
        """With the supervisor frozen, so that the damage is done before it can look."""
        self._until(lambda: self._can_be_damaged(done.fault.kind), SLOW_POLL_SECONDS)
        trainer, supervisor = self._trainer(), self._supervisor()
        if not send_signal(supervisor, signal.SIGSTOP):
            raise TooLateError
        try:
            self._signal(done, trainer, signal.SIGKILL)
            if done.expected is None:
                raise TooLateError
            self._damage(done, self._directory / done.expected)
        finally:
            done.at = time.time()  # from here on the supervisor can know
            send_signal(supervisor, signal.SIGCONT)

    def _can_be_damaged(self, kind: FaultKind) -> bool:
        """Whether the newest is good, sealed where it is about the seal, and another good one lies below it."""
        good = list(itertools.islice(self._snapshots.good(), 2))
        is_newest = len(good) == 2 and self._snapshots.number(good[0]) == self._snapshots.newest_number()
        return is_newest and (kind not in OF_THE_SEAL or (self._directory / f"{good[0]}{oracle.SEAL}").exists())

    def _damage(self, done: Done, path: Path) -> None:
        fault = done.fault
        announce(str(self._directory), Fault(f"{fault.id}-file", str(fault.kind), None, None, path.name, time.time()))
        below = {} if self._filesystem is None else {FaultKind.FLIP_BELOW: self._filesystem.flip_below}
        damage, share = (DAMAGES | below)[fault.kind], fault.share
        for _ in range(PLACES_MAX):
            done.proof = damage(path, share)
            if fault.kind in HARMLESS or not oracle.is_good(path):
                break
            share = (share + PLACE_SHARE) % 1.0  # that place is under no checksum
        else:
            raise UndamagedError(f"{path.name} is as good as before")
        if fault.kind not in HARMLESS:
            done.broken = path.name, oracle.digest(path)
        self._note_good(done, self._snapshots.look())

    def _fill_disk(self, done: Done) -> None:
        """Until a save has failed for want of room; the trainer bears that."""
        assert self._filesystem is not None
        failures, notes = len(oracle.records(self._directory, "save.failed")), self._noted_failures()
        fault = done.fault
        done.step, done.at, done.cause, done.ends_the_trainer = self._told(), time.time(), None, False
        announce(str(self._directory), Fault(fault.id, str(fault.kind), None, None, str(self._directory), done.at))
        full = ""

        def has_failed() -> bool:
            nonlocal full
            assert self._filesystem is not None
            full = self._filesystem.fill()  # again and again: whoever prunes makes room
            return self._noted_failures() > notes or len(oracle.records(self._directory, "save.failed")) > failures

        try:
            self._until(has_failed, FILL_SECONDS)
        finally:
            self._filesystem.free()  # at once: a trainer may end after a few such saves, and these take milliseconds
        before = self._snapshots.newest_number()
        self._until(lambda: len(oracle.records(self._directory, "save.failed")) > failures, SLOW_POLL_SECONDS)
        reason = oracle.records(self._directory, "save.failed")[-1]["reason"]
        self._until(lambda: self._snapshots.newest_number() > before, SLOW_POLL_SECONDS)
        done.proof = f"{full}, a save failed ({reason}), and the next one after it went well"

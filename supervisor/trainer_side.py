"""The runtime's hands on the trainer: start it, hear it, ask it to stop, notice its death, sweep what it leaves."""

import os
import re
import select
from collections.abc import Callable
from typing import Any

from lastgood import contract
from supervisor import faults, launch
from supervisor.adapters import tree
from supervisor.adapters.notes import Note, Notes
from supervisor.adapters.output import OutputDrain
from supervisor.adapters.process import Child
from supervisor.core import events as e
from supervisor.mailbox import Mailbox, Worker
from supervisor.proc import Identity, is_alive, reap_orphans, snapshot
from supervisor.settings import Settings

SWEEP_SECONDS = 10.0  # a killed process of 100 GB needs a few seconds to give its memory back
LAST_WORDS_SECONDS = 0.5  # how long a dead trainer's pipe is read to its end; a grandchild may hold it open for ever

Post = Callable[[e.Event], None]
Say = Callable[[str, dict[str, Any]], None]


class TrainerSide:
    """At most one trainer of one run. All methods are for the loop's thread."""

    def __init__(self, settings: Settings, directory: str, run_id: str, mailbox: Mailbox, post: Post, say: Say) -> None:
        self._settings = settings
        self._directory = directory
        self._run_id = run_id
        self._mailbox = mailbox
        self._post = post
        self._say = say
        self._poll = select.poll()
        self._poll.register(mailbox.descriptor, select.POLLIN)
        self._killer = Worker("kill", mailbox)
        self._child: Child | None = None
        self._incarnation = 0
        self._drain: OutputDrain | None = None
        self._notes = Notes(launch.notes_file(directory))
        self._asked: list[Identity] = []
        self._born_before = _children()
        self.leader: Identity | None = None
        """The present or last trainer's leader."""

    @property
    def lives(self) -> bool:
        """Whether there is a trainer whose exit has not been told."""
        return self._child is not None

    @property
    def lingers(self) -> bool:
        """Whether the leader is dead and only those asked to stop with it are waited for."""
        return self._child is not None and self._child.poll_exit() is not None

    def wait(self, seconds: float) -> None:
        """Sleep until the trainer dies, something is handed over, or the time is up."""
        self._poll.poll(seconds * 1000 + 1)

    def spawn(self, incarnation: int, snapshot: e.RungFact | None, skip: tuple[tuple[int, int], ...] = ()) -> None:
        """Start an incarnation; tells TrainerSpawned or SpawnFailed."""
        argv = launch.arguments(self._settings, self._directory, snapshot)
        env = launch.environment(self._settings, self._directory, self._run_id, incarnation, snapshot, os.environ, skip)
        self._notes.begin(incarnation)
        try:
            child = Child.spawn(argv, cwd=self._settings.trainer.cwd, env=env)
        except OSError as error:
            self._post(e.SpawnFailed(incarnation, f"{error.strerror or error}"))
            return
        self._child, self.leader, self._asked, self._incarnation = child, child.identity, [], incarnation
        self._poll.register(child.pidfd, select.POLLIN)
        self._post(e.TrainerSpawned(incarnation, child.identity.pid))  # before its first step can be told
        try:
            self._drain = self._start_drain(child, incarnation)
        except (OSError, RuntimeError):
            self.kill_tree()  # a trainer that nobody hears would stand still at a full pipe; its death is told as any other

    def _start_drain(self, child: Child, incarnation: int) -> OutputDrain:
        def on_step(step: int, loss: float | None, _lines: int) -> None:
            self._post(e.StepReported(incarnation, step, loss))

        log = os.path.join(self._directory, contract.STATE_DIR, contract.TRAINER_LOG)
        pattern = re.compile(self._settings.step_pattern.encode(), re.MULTILINE)
        drain = OutputDrain(child.output_descriptor, log, pattern, on_step)
        drain.start()
        return drain

    def noted(self) -> list[Note]:
        """What the trainer has noted since this was last asked."""
        return self._notes.take()

    def ask_to_stop(self) -> None:
        """SIGTERM to the leader, and through a shell to what it runs."""
        self._asked = self._child.ask_to_stop() if self._child is not None else []

    def collect_exit(self) -> None:
        """Tell the trainer's death, once those who were asked to stop with it have ended too."""
        child = self._child
        if child is None or (ended := child.poll_exit()) is None:
            return
        self._unwatch(child)
        if any(is_alive(identity) for identity in self._asked):
            return
        lines = self._last_lines()
        child.close()
        self._child = None
        fault = faults.aimed_at(self._directory, child.identity)
        if fault is not None:
            self._say("fault.injected", {"fault": fault.id, "kind": fault.kind, "target": str(child.identity.pid)})
        known = None if fault is None else fault.id
        self._post(e.TrainerExited(self._incarnation, ended.code, ended.signal, known, tuple(lines)))

    def _unwatch(self, child: Child) -> None:
        try:
            self._poll.unregister(child.pidfd)
        except KeyError:
            pass  # done when its shell ended before those that were asked to stop

    def _last_lines(self) -> list[str]:
        drain, self._drain = self._drain, None
        if drain is None:
            return []
        drain.wait(LAST_WORDS_SECONDS)
        lines: list[str] = drain.last_lines()
        drain.close()
        return lines

    @property
    def _marker(self) -> tuple[str, str]:
        """What all processes of this directory's runs carry: also of a run that `--new-run` or a lost run.json has ended,
        and not of a copy of the directory.
        """
        return contract.ENV_CHECKPOINT_DIR, self._directory

    def reap(self) -> None:
        """Collect adopted processes that have ended."""
        reap_orphans({self.leader.pid} if self.leader is not None else ())

    def kill_tree(self) -> None:
        """SIGKILL to all that belongs to the living trainer; its exit is told as any other."""
        leader = self.leader
        if self._child is None or leader is None:
            return
        self._killer.submit(lambda: _ignore(self._swept(leader)))

    def _swept(self, leader: Identity | None) -> list[Identity]:
        """Kill all that belongs to the run, but not what this process had started before it became the supervisor."""
        kept = () if leader is None or self._child is None else (leader.pid,)
        before = self._born_before
        return tree.sweep(leader, self._marker, exclude=before, limit_seconds=SWEEP_SECONDS, keep_unreaped=kept)

    def sweep_tree(self, incarnation: int) -> None:
        """Kill what is left of a dead trainer, or of a supervisor before this one; tells TreeSwept."""
        leader = self.leader
        first = leader is None  # no trainer of this supervisor has lived yet: an earlier one left this

        def work() -> None:
            found = [one.pid for one in tree.members(leader, self._marker, exclude=self._born_before)]
            left = self._swept(leader)
            if first and found:
                self._mailbox.hand(lambda: self._say("trainer.leftover_ended", {"pids": found}))
            self._post(e.TreeSwept(incarnation, tuple(identity.pid for identity in left)))

        self._killer.submit(work)

    def close(self) -> None:
        """Leave no trainer and no thread."""
        if self._child is not None:
            self._swept(self._child.identity)
            self._last_lines()
            self._child.close()
        self._killer.close()


def _children() -> tuple[int, ...]:
    """Children of this process now: a shell that started them and then became the supervisor, as containers do."""
    this = os.getpid()
    return tuple(stat.pid for stat in snapshot().values() if stat.parent == this)


def _ignore(_: object) -> None:
    """What survives is told by the deadline that follows a kill."""

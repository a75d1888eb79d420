"""The runtime's hands on the trainer: start it, hear it, ask it to stop, notice its death, sweep what it leaves."""

import os
import re
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lastgood import contract
from supervisor import launch, stalled, supervisors
from supervisor.adapters import cgroup, tree
from supervisor.adapters.heartbeat import Heartbeat
from supervisor.adapters.notes import Note
from supervisor.adapters.output import OutputDrain
from supervisor.adapters.process import Child, Exit
from supervisor.core import events as e
from supervisor.mailbox import Mailbox, Worker
from supervisor.proc import Identity, is_alive, reap_orphans, snapshot
from supervisor.settings import Settings
from supervisor.small_files import SmallFiles

SWEEP_SECONDS = 10.0  # a killed process of 100 GB needs a few seconds to give its memory back
LAST_WORDS_SECONDS = 0.05  # how long the end of a dead trainer's pipe is waited for: its own words are in there by now,
# and are read in any case; a worker of it that still holds the pipe open must not hold up the restart

Post = Callable[[e.Event], None]
Say = Callable[[str, dict[str, Any]], None]
OnStep = Callable[[int, float | None, int], None]


@dataclass
class _PreStart:
    """What runs before a start: how long and until when it may (monotonic seconds), and what follows if no stop comes first."""

    seconds: float
    until: float
    then: Callable[[], None] | None


class TrainerSide:
    """At most one trainer of one run. All methods are for the loop's thread."""

    def __init__(self, settings: Settings, directory: str, run_id: str, mailbox: Mailbox, post: Post, say: Say) -> None:
        self.settings = settings
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
        self._pre_start: _PreStart | None = None
        self._heartbeat: Heartbeat | None = None
        self._files = SmallFiles(directory)
        self._asked: list[Identity] = []
        self._born_before = _children()
        self.own: Callable[[], tuple[int, ...]] = tuple
        """Tells the processes that were started since, and do not belong to the run either."""
        self._group: cgroup.TrainerGroup | None = None
        self._is_ours = True
        self._oom: cgroup.OomCounter | None = None
        self.leader: Identity | None = None
        """The present or last trainer's leader."""
        self.ended: Callable[[list[int]], None] = _ignore
        """To be told the processes that a sweep has ended, in the killing thread."""

    def enter_group(self) -> None:
        """Take a control group for the trainer, where one can be had, and another for this process."""
        is_service = supervisors.unit_in(supervisors.cgroups_of(os.getpid())) is not None
        self._group = cgroup.TrainerGroup.made(self._directory, is_service)

    @property
    def lives(self) -> bool:
        """Whether there is a trainer whose exit has not been told."""
        return self._child is not None

    @property
    def due(self) -> float:
        """When it wants to be asked for an exit even if there is none, in monotonic seconds."""
        return float("inf") if self._pre_start is None else self._pre_start.until

    @property
    def lingers(self) -> bool:
        """Whether the leader is dead and only those asked to stop with it are waited for."""
        return self._child is not None and self._child.poll_exit() is not None

    def wait(self, seconds: float) -> None:
        """Sleep until the trainer dies, something is handed over, or the time is up."""
        self._poll.poll(seconds * 1000 + 1)

    def prepare(self, incarnation: int) -> None:
        """What must be there before a start, and waits for the storage; from another thread, and once only."""
        self._files.begin(incarnation)

    def spawn(self, incarnation: int, snapshot: e.RungFact | None, skip: tuple[tuple[int, int], ...] = ()) -> None:
        """Start an incarnation that was prepared; tells TrainerSpawned or SpawnFailed."""
        argv = launch.arguments(self.settings, self._directory, snapshot)
        env = launch.environment(self.settings, self._directory, self._run_id, incarnation, snapshot, os.environ, skip)
        self._incarnation = incarnation
        if not self.settings.trainer.pre_start:
            self._start(argv, env)
        elif self._launch(self.settings.trainer.pre_start, env) is not None:
            seconds = self.settings.stall.startup_seconds
            self._pre_start = _PreStart(seconds, time.monotonic() + seconds, lambda: self._start(argv, env))
            self._hear(_nothing)  # what it prints are no steps

    def _start(self, argv: list[str], env: dict[str, str]) -> None:
        incarnation = self._incarnation

        def on_step(step: int, loss: float | None, _lines: int) -> None:
            self._post(e.StepReported(incarnation, step, loss))

        leader = self._launch(argv, env)
        if leader is not None:
            self._post(e.TrainerSpawned(incarnation, leader.pid))  # before its first step can be told
            self._hear(on_step)
            self._feel_pulse(incarnation)

    def _feel_pulse(self, incarnation: int) -> None:
        path = self.settings.trainer.heartbeat
        if path is not None:
            self._heartbeat = Heartbeat(path, lambda: self._post(e.HeartbeatSeen(incarnation)))
            try:
                self._heartbeat.start()
            except RuntimeError:
                self.kill_tree()  # as one whose output nobody hears

    def _launch(self, argv: list[str], env: dict[str, str]) -> Identity | None:
        """Start a process as the leader of the run's, or tell why that cannot be done."""
        try:
            self._oom = cgroup.OomCounter(self._group)
            entrance = None if self._group is None else self._group.entrance()
            child = Child.spawn(argv, cwd=self.settings.trainer.cwd, env=env, group=entrance)
        except OSError as error:
            self._post(e.SpawnFailed(self._incarnation, f"{error.strerror or error}"))
            return None
        self._child, self.leader, self._asked = child, child.identity, []
        self._poll.register(child.pidfd, select.POLLIN)
        return child.identity

    def _hear(self, on_step: OnStep) -> None:
        assert self._child is not None
        try:
            self._drain = self._start_drain(self._child, on_step)
        except (OSError, RuntimeError):
            self.kill_tree()  # a trainer that nobody hears would stand still at a full pipe; its death is told as any other

    def _start_drain(self, child: Child, on_step: OnStep) -> OutputDrain:
        log = os.path.join(self._directory, contract.STATE_DIR, contract.TRAINER_LOG)
        pattern = re.compile(self.settings.step_pattern.encode(), re.MULTILINE)
        drain = OutputDrain(child.output_descriptor, log, pattern, on_step)
        drain.start()
        return drain

    def noted(self, all_of_it: bool) -> list[Note]:
        """What the trainer has noted since this was last asked; `all_of_it` gives the storage another chance to tell."""
        return self._files.noted(all_of_it)

    @property
    def notes_are_late(self) -> bool:
        """Whether the storage has not told the newest notes in time."""
        return self._files.reads

    def ask_to_stop(self) -> None:
        """SIGTERM to the leader, and through a shell to what it runs."""
        self._asked = self._child.ask_to_stop() if self._child is not None else []
        if self._pre_start is not None:
            self._pre_start.then = None

    def collect_exit(self) -> None:
        """Tell the trainer's death, once those who were asked to stop with it have ended too."""
        child = self._child
        if child is None:
            return
        ended = child.poll_exit()
        if self._pre_start is not None:
            self._watch_pre_start(child, self._pre_start, ended)
            return
        if ended is None:
            return
        self._unwatch(child)
        if any(is_alive(identity) for identity in self._asked):
            return
        lines = self._last_lines()
        child.close()
        self._child = None
        fault = self._files.fault_against(child.identity)
        if fault is not None:
            self._say("fault.injected", {"fault": fault.id, "kind": fault.kind, "target": str(child.identity.pid)})
        killed = None if self._oom is None else self._oom.risen()
        how = (ended.code, ended.signal, fault.id if fault else None, tuple(lines), killed, child.is_shell)
        self._post(e.TrainerExited(self._incarnation, *how))

    def _watch_pre_start(self, child: Child, pre_start: "_PreStart", ended: Exit | None) -> None:
        """Start the trainer once what runs before it has ended well; else tell why not, and what is left of it is swept."""
        if ended is None and time.monotonic() < pre_start.until:
            return
        self._unwatch(child)
        lines = self._last_lines()
        child.close()
        self._child = self._pre_start = None
        if ended is not None and ended.code == 0 and pre_start.then is not None:
            pre_start.then()
            return
        if ended is None:
            how = f"did not end within {pre_start.seconds:.0f} s"
        else:
            how = f"ended with signal {ended.signal}" if ended.code is None else f"ended with code {ended.code}"
        self._post(e.SpawnFailed(self._incarnation, f"trainer.pre_start {how}", tuple(lines)))

    def _unwatch(self, child: Child) -> None:
        try:
            self._poll.unregister(child.pidfd)
        except KeyError:
            pass  # done when its shell ended before those that were asked to stop

    def _last_lines(self) -> list[str]:
        if self._heartbeat is not None:
            self._heartbeat.close()
        drain, self._drain = self._drain, None
        if drain is None:
            return []
        drain.wait(LAST_WORDS_SECONDS)
        lines: list[str] = drain.last_lines()
        drain.close()
        return lines

    @property
    def _marker(self) -> tuple[str, str] | None:
        """What all processes of this directory's runs carry: also of a run that `--new-run` or a lost run.json has ended,
        and not of a copy of the directory. None once another supervisor's carry it too.
        """
        return (contract.ENV_CHECKPOINT_DIR, self._directory) if self._is_ours else None

    def let_go(self) -> None:
        """End only what descends from this process or is in its trainer's session: the directory, by which the run's processes
        are known otherwise, and the control group of that name are another supervisor's now.
        """
        self._is_ours = False

    def reap(self) -> None:
        """Collect adopted processes that have ended."""
        reap_orphans({self.leader.pid} if self.leader is not None else ())

    def keep_evidence(self, incarnation: int, stage: str, seconds: float) -> None:
        """Write down what the processes of the living trainer are doing, before a kill that is asked for after this."""
        leader, head = self.leader, stalled.heading(incarnation, stage, seconds)
        folder = os.path.join(self._directory, contract.STATE_DIR, contract.STALLS_DIR)
        places = list(dict.fromkeys((os.path.abspath(self.settings.trainer.cwd), self._directory)))

        def tell(event: str, fields: dict[str, Any]) -> None:
            self._mailbox.hand(lambda: self._say(event, fields))

        self._killer.submit(
            lambda: stalled.keep_evidence(folder, incarnation, head, lambda: self._members(leader), places, tell)
        )

    def kill_tree(self) -> None:
        """SIGKILL to all of the living trainer, or of what runs before its start; its exit is told as any other."""
        leader = self.leader
        if self._pre_start is not None:
            self._pre_start.then = None
        if self._child is None or leader is None:
            return
        self._killer.submit(lambda: _ignore(self._swept(leader)))

    def _members(self, leader: Identity | None) -> list[Identity]:
        group = self._group if self._is_ours else None
        return tree.members(leader, self._marker, exclude=self._spared(), group=group)

    def _swept(self, leader: Identity | None) -> list[Identity]:
        """Kill all that belongs to the run, but not what this process had started before it became the supervisor."""
        kept = () if leader is None or self._child is None else (leader.pid,)
        return tree.sweep(
            leader,
            self._marker,
            exclude=self._spared(),
            group=self._group if self._is_ours else None,
            limit_seconds=SWEEP_SECONDS,
            keep_unreaped=kept,
        )

    def sweep_tree(self, incarnation: int) -> None:
        """Kill what is left of a dead trainer, or of a supervisor before this one; tells TreeSwept."""
        leader = self.leader
        first = leader is None  # no trainer of this supervisor has lived yet: an earlier one left this

        def work() -> None:
            found = [one.pid for one in self._members(leader)]
            left = self._swept(leader)
            self.ended([*found, *(() if leader is None else (leader.pid,))])
            if first and found:
                self._mailbox.hand(lambda: self._say("trainer.leftover_ended", {"pids": found}))
            self._post(e.TreeSwept(incarnation, tuple(identity.pid for identity in left)))

        self._killer.submit(work)

    def _spared(self) -> tuple[int, ...]:
        """Children of this process that are not of the run."""
        return (*self._born_before, *self.own())

    def close(self, until: float | None = None) -> None:
        """Leave no trainer and no thread."""
        if self._child is not None:
            self._swept(self._child.identity)
            self._last_lines()
            self._child.close()
        self._killer.close(until)
        if self._group is not None:
            self._group.leave()


def _children() -> tuple[int, ...]:
    """Children of this process now: a shell that started them and then became the supervisor, as containers do."""
    this = os.getpid()
    return tuple(stat.pid for stat in snapshot().values() if stat.parent == this)


def _nothing(_step: int, _loss: float | None, _lines: int) -> None:
    """Steps of what is no trainer."""


def _ignore(_: object) -> None:
    """What survives is told by the deadline that follows a kill."""

"""The runtime's hands on the trainer: start it, hear it, ask it to stop, notice its death, sweep what it leaves."""

import os
import re
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lastgood import contract
from supervisor import launch, stalled
from supervisor.adapters import cgroup
from supervisor.adapters.heartbeat import Heartbeat
from supervisor.adapters.notes import Note
from supervisor.adapters.output import OutputDrain
from supervisor.adapters.process import Child, Exit
from supervisor.core import events as e
from supervisor.kin import Kin
from supervisor.mailbox import Mailbox, Worker
from supervisor.proc import Identity, is_alive, reap_orphans
from supervisor.settings import Settings
from supervisor.small_files import SmallFiles
from supervisor.standing_by import StandingBy, is_wanted

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
        self._was_waiting = False
        self.exited_at: float | None = None
        """When the present trainer was first seen dead, in monotonic seconds."""
        self.kin = Kin(directory)
        self._standby = StandingBy()
        self._standby.lost = self._forget_oom_kills
        self.kin.own.append(lambda: self._standby.pids)
        self._oom: cgroup.OomCounter | None = None
        self.leader: Identity | None = None
        """The present or last trainer's leader."""
        self.ended: Callable[[list[int]], None] = _ignore
        """To be told the processes that a sweep has ended, in the killing thread."""

    @property
    def lives(self) -> bool:
        """Whether there is a trainer whose exit has not been told."""
        return self._child is not None

    @property
    def due(self) -> float:
        """When it wants the loop to come round, whatever else happens, in monotonic seconds."""
        return self._standby.due if self._pre_start is None else min(self._pre_start.until, self._standby.due)

    @property
    def lingers(self) -> bool:
        """Whether the leader is dead and only those asked to stop with it are waited for."""
        return self._child is not None and self.exited_at is not None

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

        def on_step(step: int, loss: float | None, steps: int) -> None:
            self._post(e.StepReported(incarnation, step, loss, others=steps > 1))

        leader = self._launch(argv, env, in_advance=True)
        if leader is not None:
            self._post(
                e.TrainerSpawned(incarnation, leader.pid, self._was_waiting)
            )  # before its first step can be told
            self._hear(on_step)
            self._feel_pulse(incarnation)

    def _feel_pulse(self, incarnation: int) -> None:
        path = launch.heartbeat(self.settings, self._directory)
        if path is not None:
            self._heartbeat = Heartbeat(path, lambda: self._post(e.HeartbeatSeen(incarnation)))
            try:
                self._heartbeat.start()
            except RuntimeError:
                self.kill_tree()  # as one whose output nobody hears

    def _launch(self, argv: list[str], env: dict[str, str], in_advance: bool = False) -> Identity | None:
        """Start a process as the leader of the run's, or tell why that cannot be done; `in_advance`: it may have been before."""
        cwd = self.settings.trainer.cwd
        try:
            self._oom = cgroup.OomCounter(self.kin.group)
            entrance = None if self.kin.group is None else self.kin.group.entrance()
            takes = in_advance and is_wanted(self.settings)
            waiting = self._standby.take(argv, env, cwd, entrance) if takes else None
            child = waiting or Child.spawn(argv, cwd=cwd, env=env, group=entrance)
            self._was_waiting = waiting is not None
        except OSError as error:
            self._post(e.SpawnFailed(self._incarnation, f"{error.strerror or error}"))
            return None
        self._child, self.leader, self._asked, self.exited_at = child, child.identity, [], None
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

    def noted(self, all_of_it: bool, may_wait: bool) -> list[Note]:
        """What the trainer has noted since this was last asked; `all_of_it` gives the storage another chance to tell."""
        return self._files.noted(all_of_it, may_wait)

    @property
    def notes_are_late(self) -> bool:
        """Whether the storage has not told the newest notes in time."""
        return self._files.reads

    def stand_by(self, start: bool) -> None:
        """Keep the next trainer ready, where that is wanted, and `start` one where there is none."""
        if is_wanted(self.settings):
            self._standby.look(self._next_command, self.settings.trainer.cwd, start)
        else:
            self._standby.end()

    def _forget_oom_kills(self) -> None:
        """Those until now were not of the trainer: the kernel takes the one that waits before it."""
        if self._oom is not None and self.lives:
            self._oom.begin()

    def stand_down(self) -> None:
        """Have none: its memory is somebody else's now."""
        self._standby.end()

    def told(self) -> dict[str, Any]:
        """What status.json says of the trainer and of the next one, each null while there is none."""
        leader = self.leader if self.lives else None
        return {
            "trainer_pid": None if leader is None else leader.pid,
            "trainer_start_ticks": None if leader is None else leader.start_ticks,
            "standby": self._standby.told(),
            "standby_missing": self._standby.missing,
        }

    def _next_command(self) -> tuple[list[str], dict[str, str]]:
        """All but what is resumed from."""
        settings, directory = self.settings, self._directory
        env = launch.environment(settings, directory, self._run_id, self._incarnation + 1, None, os.environ)
        return launch.arguments(settings, directory, None), env

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
        self.exited_at = self.exited_at or time.monotonic()
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

    def reap(self) -> None:
        """Collect adopted processes that have ended."""
        reap_orphans({*self.kin.spared(), *(() if self.leader is None else (self.leader.pid,))})

    def keep_evidence(self, incarnation: int, stage: str, seconds: float) -> None:
        """Write down what the processes of the living trainer are doing, before a kill that is asked for after this."""
        leader, head = self.leader, stalled.heading(incarnation, stage, seconds)
        folder = os.path.join(self._directory, contract.STATE_DIR, contract.STALLS_DIR)
        places = list(dict.fromkeys((os.path.abspath(self.settings.trainer.cwd), self._directory)))

        def tell(event: str, fields: dict[str, Any]) -> None:
            self._mailbox.hand(lambda: self._say(event, fields))

        self._killer.submit(
            lambda: stalled.keep_evidence(folder, incarnation, head, lambda: self.kin.members(leader), places, tell)
        )

    def kill_tree(self) -> None:
        """SIGKILL to all of the living trainer, or of what runs before its start; its exit is told as any other."""
        leader = self.leader
        if self._pre_start is not None:
            self._pre_start.then = None
        if self._child is None or leader is None:
            return
        self._killer.submit(lambda: _ignore(self.kin.sweep(leader, (leader.pid,))))

    def sweep_tree(self, incarnation: int) -> None:
        """Kill what is left of a dead trainer, or of a supervisor before this one; tells TreeSwept."""
        leader = self.leader
        first = leader is None  # no trainer of this supervisor has lived yet: an earlier one left this

        def work() -> None:
            found = [one.pid for one in self.kin.members(leader)]
            left = self.kin.sweep(leader)
            self.ended([*found, *(() if leader is None else (leader.pid,))])
            if first and found:
                self._mailbox.hand(lambda: self._say("trainer.leftover_ended", {"pids": found}))
            self._post(e.TreeSwept(incarnation, tuple(identity.pid for identity in left)))

        self._killer.submit(work)

    def close(self, until: float | None = None) -> None:
        """Leave no trainer and no thread."""
        self._standby.close()
        if self._child is not None:
            self.kin.sweep(self._child.identity, (self._child.identity.pid,))
            self._last_lines()
            self._child.close()
        self._killer.close(until)
        if self.kin.group is not None:
            self.kin.group.leave()


def _nothing(_step: int, _loss: float | None, _lines: int) -> None:
    """Steps of what is no trainer."""


def _ignore(_: object) -> None:
    """What survives is told by the deadline that follows a kill."""

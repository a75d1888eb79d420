"""The loop that joins the deciding core to the acting adapters: one thread, one queue, no locks.

Signal handlers, watcher, drain and workers only hand things over; the loop takes one event at a time, lets the core decide,
and carries out what it says in order. It sleeps until something is handed over, the trainer dies (pidfd), or a deadline
comes.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, assert_never

from supervisor import forerunner, proc
from supervisor.adapters import statefile
from supervisor.adapters.journal import Journal
from supervisor.adapters.monkey import Monkey
from supervisor.adapters.notifier import Notifier
from supervisor.adapters.process import become_subreaper
from supervisor.adapters.verifier import Verifier
from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.core import machine
from supervisor.core.stall import STALLS
from supervisor.core.state import Phase, Policy, State
from supervisor.directory_side import DirectorySide
from supervisor.errors import ExitStatus
from supervisor.holding import Holding
from supervisor.mailbox import CLOSE_SECONDS, Mailbox
from supervisor.memory_side import MemorySide
from supervisor.overdue import Overdue
from supervisor.records import CATALOGUE
from supervisor.reloading import ReloadSide
from supervisor.settings import Settings
from supervisor.summary import introduction, summary
from supervisor.timeline import Timeline
from supervisor.trainer_side import TrainerSide
from supervisor.wishes import Wishes

STATUS_SECONDS = 0.5  # how often status.json is written at most
PAUSED_SECONDS = 2.0
"""Later than this, it was the supervisor that stood still, and the trainer may have spoken meanwhile."""
AFTER_NOTES = (e.StepReported, e.SnapshotJudged, e.SnapshotReread, e.TrainerExited, e.TreeSwept)
"""What a trainer noted it had noted before it printed, saved or died with all its processes, and so it is judged if the storage
tells the notes in time; at a step of one that is known to have resumed it may wait."""
LINGER_SECONDS = 0.02  # how often those who were asked to stop are looked at after their shell has ended


class Runtime:
    """One supervisor's life over one checkpoint directory. `lock` is the descriptor that holds it; the caller closes it."""

    def __init__(
        self, settings: Settings, run: statefile.RunFile, policy: Policy, journal: Journal, lock: int,
        read_again: Callable[[], Settings] | None = None,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._directory = os.path.realpath(settings.checkpoints.dir)
        self._found = run
        self._policy = policy
        self._journal = journal
        self._state = State(memory=run.memory)
        self._deadlines: dict[e.Deadline, float] = {}
        self._mailbox = Mailbox()
        settle = settings.checkpoints.settle_seconds
        shelf = settings.preset.in_place is not None
        verifier = Verifier(self._directory, settings.pattern, settle, run.foreign, run.isolated, has_shelf=shelf)
        self._notifier = Notifier(settings.notify, self._mailbox.hand, self._say)  # before the trainer's side
        self._trainer = TrainerSide(settings, self._directory, run.run_id, self._mailbox, self._post, self._say)
        self._files = DirectorySide(settings, self._directory, verifier, self._mailbox, self._post, self._say)
        self._monkey = Monkey(self._say)
        self._trainer.kin.own += [self._notifier.pids, self._monkey.pids]
        self._trainer.ended = self._files.hindrances.died
        written_by = replace(run, boot=proc.boot_id(), supervisor=proc.identity_of(os.getpid()))
        self._memory = MemorySide(self._directory, written_by, self._mailbox, self._say)
        self._holding = Holding(self._directory, lock, self._mailbox, self._save, self._let_go)
        self._files.at_rescan = self._holding.look
        self._files.is_here = self._holding.is_here
        self._reload = ReloadSide(settings, read_again, self._mailbox, self._say, self._take)
        self._wishes = Wishes(self._directory, self._say, self._step)
        self._overdue = Overdue(self._say)
        self._timeline = Timeline(self._say)
        self._starting: c.SpawnTrainer | None = None
        self._beside: list[c.Reread] = []
        self._status_at = 0.0
        self._shown: State | None = None  # what status.json tells of
        self._ready = False
        self._status: int | None = None

    @property
    def lock(self) -> int:
        """The descriptor that holds the directory now."""
        return self._holding.lock

    def run(self) -> int:
        """Supervise until the run ends; returns the exit status."""
        become_subreaper()
        self._trainer.kin.enter_group()
        self._take_signals()
        wanted = self._wishes.begin()
        self._state = replace(self._state, pause=wanted == "pause")  # also after a reboot
        self._say("supervisor.started", introduction(self._directory, self._files.watching, self._settings))
        self._monkey.start(self._settings.chaos, self._directory)
        open_still = forerunner.judge(self._directory, self._found, wanted, self._say)
        self._state = replace(self._state, memory=replace(self._state.memory, open=open_still))
        self._act(*machine.begin(self._state))
        try:
            while self._status is None:
                self._trainer.wait(max(0.0, self._next_due() - time.monotonic()))
                self._mailbox.run_all(lambda: self._status is None)
                self._pass_deadlines()
                self._trainer.collect_exit()
                if self._files.look_when_due(self._state.incarnation if self._trainer.lives else None):
                    self._trainer.reap()
                    self._hear_notes()
                    self._wishes.read_again()
                    self._monkey.look()
                self._stand_by()
                self._overdue.look(self._state, self._trainer.lives)
                self._write_status()
        except Exception as error:
            self._status = int(ExitStatus.BUG)
            self._say("supervisor.failed", {"reason": f"{type(error).__name__}: {error}"})
            raise
        finally:
            self._close()
            self._say("supervisor.stopped", {"status": self._status})
            self._notifier.close()
        return self._status

    def _stand_by(self) -> None:
        """The next trainer is started in advance once this one has made sure that it can progress; a pause frees its memory."""
        life = self._state.life
        if self._state.phase is Phase.PAUSED:
            self._trainer.stand_down()
        else:
            self._trainer.stand_by(self._state.phase is Phase.RUNNING and life.progressed and not life.finishing)

    def _take_signals(self) -> None:
        """SIGHUP means a changed config file, or a terminal that goes away, which takes no run with it."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _frame: self._post(e.StopRequested(received)))
        signal.signal(statefile.WISH_SIGNAL, lambda _received, _frame: self._mailbox.hand(self._wishes.read))
        signal.signal(signal.SIGHUP, lambda _received, _frame: self._mailbox.hand(self._reload.ask))
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def _take(self, settings: Settings) -> None:
        """Go on by other settings."""
        self._policy = settings.policy(self._policy.allow_fresh_start, self._policy.exit_when_stuck)
        self._trainer.settings = settings
        self._files.change(settings, self._state.incarnation if self._trainer.lives else None)
        self._journal.show_from(settings.log.level)
        self._notifier.change(settings.notify)
        self._files.after(lambda: self._post(e.SettingsChanged()))  # what it is at is known by then

    def _next_due(self) -> float:
        dues = [*self._deadlines.values(), self._files.due, self._trainer.due]
        if self._trainer.lingers:
            dues.append(time.monotonic() + LINGER_SECONDS)
        if self._shown is not self._state:
            dues.append(self._status_at)
        return min(dues)

    def _post(self, event: e.Event) -> None:
        """Hand an event to the loop, from any thread or signal handler."""
        self._mailbox.hand(lambda: self._decide(event))

    def _decide(self, event: e.Event) -> None:
        if isinstance(event, e.StopRequested):
            self._memory.want_stop()
        elif isinstance(event, AFTER_NOTES):
            may_wait = isinstance(event, e.StepReported) and self._state.life.checked
            self._hear_notes(isinstance(event, e.TrainerExited), may_wait)
            if isinstance(event, e.StepReported | e.SnapshotJudged) and self._trainer.notes_are_late:
                event = replace(event, notes_late=True)
        self._step(event)
        if isinstance(event, e.SnapshotReread) and self._starting is not None:
            self._start_in_order(self._starting)

    def _hear_notes(self, all_of_them: bool = False, may_wait: bool = False) -> None:
        for note in self._trainer.noted(all_of_them, may_wait):
            self._step(note)

    def _step(self, event: e.Event) -> None:
        if self._status is None:
            self._timeline.take(event, self._trainer.exited_at)
            self._act(*machine.step(self._state, event, time.monotonic(), self._policy))

    def _pass_deadlines(self) -> None:
        now = time.monotonic()
        for deadline, at in [one for one in self._deadlines.items() if one[1] <= now]:
            if now - at > PAUSED_SECONDS and deadline in STALLS:
                self._deadlines[deadline] = now + PAUSED_SECONDS
            elif self._deadlines.pop(deadline, None) is not None:
                self._decide(e.DeadlinePassed(deadline, self._state.incarnation))

    def _act(self, state: State, orders: tuple[c.Command, ...]) -> None:
        self._state = state
        for order in orders:
            self._timeline.take(order, self._trainer.exited_at)
            self._carry_out(order)

    def _carry_out(self, order: c.Command) -> None:  # noqa: C901 - one flat dispatch, a line or two a command
        match order:
            case c.Record(event, fields, level):
                self._say(event, dict(fields), level)
            case c.JudgeLadder(passing, above):
                self._files.judge_ladder(passing, above)
            case c.Reread():
                self._beside.append(order)
                if self._starting is None:
                    self._go_on_beside()
                else:
                    self._start_in_order(self._starting)  # it is done beside the trainer, not before it
            case c.SpawnTrainer():
                self._start_in_order(order)
            case c.AskToStop():
                self._call_off()
                self._trainer.ask_to_stop()
            case c.KeepEvidence(incarnation, stage, seconds):
                self._trainer.keep_evidence(incarnation, stage, seconds)
            case c.KillTree():
                self._call_off()
                self._trainer.kill_tree()
            case c.SweepTree(incarnation):
                self._trainer.sweep_tree(incarnation)
            case c.Arm(deadline, at):
                self._deadlines[deadline] = at
            case c.Disarm(deadlines):
                for deadline in deadlines:
                    self._deadlines.pop(deadline, None)
            case c.SetAside(rung, reason):
                self._files.set_aside(rung, reason)
            case c.PutBack(name, step):
                self._files.put_back(name, step)
            case c.SealSnapshot(name):
                self._files.seal(name)
            case c.PruneSnapshot(rung):
                self._files.prune(rung)
            case c.SaveMemory(memory):
                self._memory.save(memory)
            case c.Exit(status):
                self._status = int(status)
            case _:
                assert_never(order)

    def _save(self) -> None:
        """The folder that held it may be a new one."""
        self._memory.save(self._state.memory)

    def _let_go(self, reason: str) -> None:
        """Another supervisor has the directory: end, and leave alone what is its own."""
        self._say("supervisor.lock_lost", {"reason": reason})
        for side in (self._memory, self._files, self._trainer.kin):
            side.let_go()
        self._decide(e.StopRequested(signal.SIGTERM))

    def _start_in_order(self, order: c.SpawnTrainer) -> None:
        """Start a trainer once what was ordered before is done: the memory of its start is on the disk, what is bad is out of
        its sight, and the directory is still ours. A slow disk delays that, and meanwhile the loop hears a stop.
        """
        self._starting = order
        self._files.after(self._holding.look)
        prepare = partial(self._trainer.prepare, order.incarnation)
        self._files.after(lambda: self._memory.after(lambda: self._start(order), prepare))

    def _start(self, order: c.SpawnTrainer) -> None:
        if self._starting is not order:
            return
        if not self._memory.is_saved and self._state.memory.trust is not None:
            self._go_on_beside()  # nobody would know of the trust: the bytes are read first, and then this is tried again
            return
        self._starting = None
        self._trainer.spawn(order.incarnation, order.snapshot, order.skip)
        self._say_ready()
        self._go_on_beside()

    def _go_on_beside(self) -> None:
        orders, self._beside = self._beside, []
        for order in orders:
            self._files.reread(order.name, order.mtime_ns)

    def _call_off(self) -> None:
        """Do not start what was about to be."""
        order, self._starting = self._starting, None
        if order is not None:
            self._post(e.SpawnFailed(order.incarnation, "it was called off before it began"))
            self._go_on_beside()

    def _say_ready(self) -> None:
        if self._trainer.lives and not self._ready:
            self._ready = True
            self._say("supervisor.ready", {})

    def _say(self, event: str, fields: dict[str, Any], level: str | None = None) -> None:
        record = self._journal.write(event, level or CATALOGUE[event].level, self._state.incarnation, fields)
        self._notifier.take(record)

    def _write_status(self) -> None:
        now = time.monotonic()
        if now < self._status_at and self._status is None:
            return
        self._status_at, self._shown = now + STATUS_SECONDS, self._state
        context = {
            "name": self._settings.run.name,
            "run_id": self._found.run_id,
            "directory": self._directory,
            "supervisor_pid": os.getpid(),
            **self._trainer.told(),
            "exit_status": self._status,
            "written_at": time.time(),
            "records_lost": self._journal.lost,
        }
        self._memory.show(summary(self._state, self._policy, context))

    def _close(self) -> None:
        """Leave nothing behind: no trainer, no thread. The status is decided, so that signals no longer matter."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, statefile.WISH_SIGNAL):
            signal.signal(number, signal.SIG_IGN)
        self._monkey.close()
        until = time.monotonic() + CLOSE_SECONDS  # for all together: a service manager does not wait for ever
        self._starting = None
        self._trainer.close(until)
        self._write_status()
        self._memory.close(until)
        self._files.close(until)
        self._reload.close(until)
        self._mailbox.run_all(lambda: True)  # what was done at the last is said too
        self._mailbox.close()

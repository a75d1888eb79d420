"""The loop that joins the deciding core to the acting adapters: one thread, one queue, no locks.

Signal handlers, watcher, drain and workers only hand things over; the loop takes one event at a time, lets the core decide,
and carries out what it says in order. It sleeps until something is handed over, the trainer dies (pidfd), or a deadline
comes.
"""

import os
import signal
import time
from dataclasses import replace
from typing import Any, assert_never

from supervisor.adapters import statefile
from supervisor.adapters.journal import Journal
from supervisor.adapters.notifier import Notifier
from supervisor.adapters.process import become_subreaper
from supervisor.adapters.verifier import Verifier
from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.core import machine
from supervisor.core.memory import Memory
from supervisor.core.state import Policy, State
from supervisor.directory_side import DirectorySide
from supervisor.errors import AlreadySupervisedError, UsageError
from supervisor.mailbox import Mailbox
from supervisor.records import CATALOGUE
from supervisor.settings import Settings, inert
from supervisor.summary import summary
from supervisor.trainer_side import TrainerSide

STATUS_SECONDS = 0.5  # how often status.json is written at most
PAUSED_SECONDS = (
    2.0  # later than this, it was the supervisor that stood still, and the trainer may have spoken meanwhile
)
STALLS = frozenset({e.Deadline.STARTUP, e.Deadline.RUNNING, e.Deadline.EXIT})
AFTER_NOTES = (e.StepReported, e.SnapshotJudged, e.TrainerExited, e.TreeSwept)
"""What a trainer noted it had noted before it printed, saved or died with all its processes, and so it must be judged."""
LINGER_SECONDS = 0.02  # how often those who were asked to stop are looked at after their shell has ended


class Runtime:
    """One supervisor's life over one checkpoint directory. `lock` is the descriptor that holds it; the caller closes it."""

    def __init__(self, settings: Settings, run: statefile.RunFile, policy: Policy, journal: Journal, lock: int) -> None:
        self.lock = lock
        self._settings = settings
        self._directory = os.path.realpath(settings.checkpoints.dir)
        self._run = run
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
        self._status_at = 0.0
        self._ready = False
        self._wish_waits = False
        self._status: int | None = None

    def run(self) -> int:
        """Supervise until the run ends; returns the exit status."""
        become_subreaper()
        self._take_signals()
        if statefile.read_wanted(self._directory) == "pause":  # also after a reboot
            self._state = replace(self._state, pause=True)
        else:
            self._want("run")
        self._say("supervisor.started", self._introduction())
        self._act(*machine.begin(self._state))
        try:
            while self._status is None:
                self._trainer.wait(max(0.0, self._next_due() - time.monotonic()))
                self._mailbox.run_all(lambda: self._status is None)
                self._pass_deadlines()
                self._trainer.collect_exit()
                if self._files.look_when_due(self._trainer.lives):
                    self._trainer.reap()
                    self._keep_lock()
                    self._hear_notes()
                    if self._wish_waits:
                        self._read_wish()
                self._write_status()
        finally:
            self._close()
        self._say("supervisor.stopped", {"status": int(self._status)})
        self._notifier.close()
        return self._status

    def _introduction(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "directory": self._directory,
            "watching": self._files.watching,
            "preset": self._settings.preset_name,
            "ignored_settings": inert(self._settings),
        }

    def _take_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _frame: self._post(e.StopRequested(received)))
        signal.signal(statefile.WISH_SIGNAL, lambda _received, _frame: self._mailbox.hand(self._read_wish))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that goes away takes no run with it
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def _read_wish(self) -> None:
        """Somebody has changed wanted.json and said so; decided here and now, in order with all else.

        Storage that does not tell what is wanted is asked again at each rescan: nobody will say it twice.
        """
        wishes: dict[str | None, e.Event] = {
            "run": e.ResumeRequested(),
            "pause": e.PauseRequested(),
            "stop": e.StopRequested(signal.SIGTERM),
        }
        wanted = statefile.read_wanted(self._directory)
        self._wish_waits = wanted is None
        if wanted in wishes:
            self._step(wishes[wanted])

    def _next_due(self) -> float:
        dues = [*self._deadlines.values(), self._files.due]
        if self._trainer.lingers:
            dues.append(time.monotonic() + LINGER_SECONDS)
        return min(dues)

    def _post(self, event: e.Event) -> None:
        """Hand an event to the loop, from any thread or signal handler."""
        self._mailbox.hand(lambda: self._decide(event))

    def _decide(self, event: e.Event) -> None:
        if isinstance(event, e.StopRequested):
            self._want("stop")
        elif isinstance(event, AFTER_NOTES):
            self._hear_notes()
        self._step(event)

    def _hear_notes(self) -> None:
        for note in self._trainer.noted():
            self._step(note)

    def _step(self, event: e.Event) -> None:
        if self._status is None:
            self._act(*machine.step(self._state, event, time.monotonic(), self._policy))

    def _pass_deadlines(self) -> None:
        now = time.monotonic()
        due = {deadline: at for deadline, at in self._deadlines.items() if at <= now}
        for deadline, at in due.items():
            if now - at > PAUSED_SECONDS and deadline in STALLS:
                self._deadlines[deadline] = now + PAUSED_SECONDS
            elif self._deadlines.pop(deadline, None) is not None:
                self._decide(e.DeadlinePassed(deadline, self._state.incarnation))

    def _act(self, state: State, orders: tuple[c.Command, ...]) -> None:
        self._state = state
        for order in orders:
            self._carry_out(order)

    def _carry_out(self, order: c.Command) -> None:  # noqa: C901 - one flat dispatch, a line or two a command
        match order:
            case c.Record(event, fields, level):
                self._say(event, dict(fields), level)
            case c.JudgeLadder(passing, above):
                self._files.judge_ladder(passing, above)
            case c.SpawnTrainer(incarnation, snapshot, skip):
                self._trainer.spawn(incarnation, snapshot, skip)
                self._say_ready()
            case c.AskToStop():
                self._trainer.ask_to_stop()
            case c.KillTree():
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
                self._save_memory(memory)
            case c.Exit(status):
                self._status = int(status)
            case _:
                assert_never(order)

    def _keep_lock(self) -> None:
        """Take the lock anew when somebody removed its file; when another supervisor has it by now, end."""
        if statefile.still_locked(self._directory, self.lock):
            return
        try:
            statefile.prepare(self._directory)
            lock = statefile.lock(self._directory)
        except AlreadySupervisedError as error:
            self._say("supervisor.lock_lost", {"reason": str(error)})
            self._post(e.StopRequested(signal.SIGTERM))
        except (UsageError, OSError):
            pass  # the directory is away or cannot be written; tried again at the next rescan
        else:
            os.close(self.lock)
            self.lock = lock
            self._save_memory(self._state.memory)

    def _say_ready(self) -> None:
        if self._trainer.lives and not self._ready:
            self._ready = True
            self._say("supervisor.ready", {})

    def _save_memory(self, memory: Memory) -> None:
        run = statefile.RunFile(self._run.run_id, memory, self._run.foreign, self._run.isolated)
        try:
            statefile.write_run(self._directory, run, time.monotonic())
        except OSError as error:
            self._say("memory.not_saved", {"reason": f"{error.strerror or error}"})

    def _want(self, wanted: str) -> None:
        """Keep what is wanted apart from what is: status.json tells the latter."""
        try:
            statefile.write_wanted(self._directory, wanted)
        except OSError as error:
            self._say("memory.not_saved", {"reason": f"{error.strerror or error}"})

    def _say(self, event: str, fields: dict[str, Any], level: str | None = None) -> None:
        record = self._journal.write(event, level or CATALOGUE[event].level, self._state.incarnation, fields)
        self._notifier.take(record)

    def _write_status(self) -> None:
        now = time.monotonic()
        if now < self._status_at and self._status is None:
            return
        self._status_at = now + STATUS_SECONDS
        leader = self._trainer.leader if self._trainer.lives else None
        context = {
            "name": self._settings.run.name,
            "run_id": self._run.run_id,
            "directory": self._directory,
            "supervisor_pid": os.getpid(),
            "trainer_pid": None if leader is None else leader.pid,
            "trainer_start_ticks": None if leader is None else leader.start_ticks,
            "exit_status": self._status,
            "written_at": time.time(),
            "records_lost": self._journal.lost,
        }
        try:
            statefile.write_status(self._directory, summary(self._state, self._policy, context))
        except OSError:
            pass  # it is only for looking at, and is written again in a moment

    def _close(self) -> None:
        """Leave nothing behind: no trainer, no thread. The status is decided, so that signals no longer matter."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        self._trainer.close()
        self._files.close()
        self._write_status()
        self._mailbox.close()

"""The fake world of one life: its clock, what happens when, what was met, and how the supervisor's machine goes down."""

import heapq
import json
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from signal import SIGHUP
from typing import TYPE_CHECKING, Any

from lastgood.contract import RUN_FILE
from lastgood.verdict import Verdict
from supervisor.adapters.statefile import WISH_SIGNAL
from supervisor.core import events as e
from supervisor.proc import Identity
from supervisor.settings import Settings
from tests.simulator.disk import SIZE, Disk, File
from tests.simulator.faults import strike
from tests.simulator.plan import Config, Fault, Plan
from tests.simulator.processes import PreStart, Process, Shell, Trainer
from tests.simulator.promises import PAUSE_SECONDS, STOP_SECONDS, Promises

if TYPE_CHECKING:
    from supervisor.runtime import Runtime

HISTORY_MAX = 5_000


class Killed(BaseException):
    """The supervisor is dead from here on: nothing of it runs any more, not even what stands in its `finally`."""


class World:
    """One life's world. Time is in seconds and moves only while the supervisor waits or reads."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = random.Random(~plan.seed)
        self.now = 1000.0
        self.booted_at = 0.0
        self.wall_ahead = 1.7e9
        self.history: deque[tuple[Any, ...]] = deque(maxlen=HISTORY_MAX)
        self.met: Counter[str] = Counter()
        self.pairs: set[tuple[Fault, Fault]] = set()
        """Faults of which the second was met before the run had progressed after the first."""
        self._trouble: set[Fault] = set()
        self.armed: Counter[Fault] = Counter()
        self.loops = False
        self.loops_along = False
        self.started = 0
        self.announced: set[int] = set()
        """Supervisors that a campaign said it would kill, by number."""
        self.diverges_at: int | None = None
        self.ignored = 0
        self.finished_at = -1
        """The highest step at which a trainer ended with 0."""
        self.last_step = plan.last_step
        """The one at which a trainer that is started now will end."""
        self.config = self.known = plan.config
        """What the config file says, and what the supervisor has taken of it."""
        self.known_at = -1000.0
        self.known_before = plan.config
        self._reads: deque[Config] = deque()
        self.ended_early = False
        self.refused_usage = False
        self.oom_kills = 0
        self.cause: str | None = None
        """What the last trainer really died of, where that was a fault that leaves no doubt."""
        self.asked_to_stop = False
        self.memory_is_stale = False
        self.lock_removed = False
        self.processes: list[Process] = []
        self.notes: list[e.Event] = []
        self.children: list[Any] = []
        self.drained: dict[int, Trainer | PreStart] = {}
        self.boot = 0
        self.supervisor = 0
        self.dead = False
        self.kill_in: int | None = None
        self.pause_seconds = 0.0
        self.paused_until = -1.0
        self.notes_late_until = -1.0
        self.brought_at = -1.0
        self.trained_seconds = 0.0
        self.pauses = False
        """Whether a pause is wanted now, whatever the file says."""
        self.argv: list[str] = []
        """With which the trainer will be started."""
        self.runtime: Runtime | None = None
        self.status: dict[str, Any] = {}
        """What the status file says."""
        self.status_failed_at = -1000.0
        self.hints_lost_until = -1.0
        self.gpu_lost_until = self.gpu_busy_until = -1.0
        self.gpu_holders: set[int] = set()
        """Processes whose memory the driver does not give back, once they are dead."""
        self.swept: set[int] = set()
        """Those that the present supervisor has found dead, or has ended."""
        self.no_room = False
        """Whether a save of the last trainer failed for want of room."""
        self.on_hint: Callable[[str | None], None] | None = None
        self.on_beat: Callable[[], None] | None = None
        self.on_signal: dict[int, Callable[[int, Any], None]] = {}
        self.in_storm = True
        self.healed_at = -1.0
        self._lasting: dict[str, float] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 10_000
        self.disk = Disk(self)
        self.promises = Promises(self)
        settings = plan.settings(plan.config)
        self.prunes = settings.prunes
        self.may_print_banner = settings.policy().low_steps_max > 1
        self._adopt()
        for one in plan.faults:
            self.after(one.at, lambda one=one: strike(self, one))

    def _adopt(self) -> None:
        for number in range(1, self.plan.adopted + 1):
            step = number * 2
            self.disk.write(self.plan.name_of(step), step, self.plan.style).durable = True
        self.wall_ahead += 300.0

    # -- time ---------------------------------------------------------------------------------------------------------

    def number(self) -> int:
        """A number never used before: a pid, a content, an inode."""
        self._count += 1
        return self._count

    def monotonic(self) -> float:
        return self.now - self.booted_at

    def wall(self) -> float:
        return self.now + self.wall_ahead

    def wall_ns(self) -> int:
        """The wall clock as file times are; no two are equal unless the clock was set."""
        return int(self.wall() * 1e9) + self.number()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Have something happen in a while."""
        heapq.heappush(self._heap, (self.now + seconds, self.number(), act))

    def happen(self, until: float) -> bool:
        """Let the next thing happen, if it comes before then."""
        if not self._heap or self._heap[0][0] > until:
            return False
        at, _, act = heapq.heappop(self._heap)
        self.now = max(self.now, at)
        act()
        return True

    def pass_time(self, seconds: float) -> None:
        """Time passes in the middle of something, and so other things happen."""
        until = self.now + seconds * self.random.random()
        while self.happen(until):
            pass
        self.now = max(self.now, until)

    # -- what is told -------------------------------------------------------------------------------------------------

    def tell(self, *what: Any) -> None:
        """Keep for the history."""
        self.history.append((round(self.now, 3), *what))

    def meet(self, kind: str) -> None:
        """Count a fault that really took effect."""
        self.met[str(kind)] += 1
        self.tell("fault", str(kind))
        if isinstance(kind, Fault):
            self.pairs.update((before, kind) for before in self._trouble)
            self._trouble.add(kind)

    def recovered(self) -> None:
        """The run has progressed."""
        self._trouble.clear()

    def meet_once(self, kind: str, occasion: float) -> None:
        """Count a fault that lasts once, however often it is met."""
        if self._lasting.get(kind) != occasion:
            self._lasting[kind] = occasion
            self.meet(kind)

    def take(self, kind: Fault) -> bool:
        """Whether a fault that waited for this occasion strikes now."""
        if self.armed[kind] <= 0:
            return False
        self.armed[kind] -= 1
        self.meet(kind)
        return True

    def note(self, event: e.Event) -> None:
        """The trainer leaves a note."""
        self.notes.append(event)

    def beat(self) -> None:
        """The trainer touches the file of its heartbeat."""
        if self.on_beat is not None:
            self.on_beat()

    def read(self, file: File, verdict: Verdict) -> None:
        """A snapshot was read whole."""
        file.read_at = self.now
        self.promises.verdict(file, verdict)

    def hint(self, name: str | None) -> None:
        """A file event, unless it gets lost."""
        if self.now < self.hints_lost_until:
            self.meet_once(Fault.EVENTS_LOST, self.hints_lost_until)
        elif self.on_hint is not None:
            listener, supervisor = self.on_hint, self.supervisor

            def tell() -> None:
                if supervisor == self.supervisor and not self.dead:
                    listener(name)

            self.after(0.001, tell)

    # -- the supervisor's machine ---------------------------------------------------------------------------------------

    def point(self, where: str) -> None:
        """A place at which the supervisor can be killed; a dead one does not get past it."""
        if self.dead:
            raise Killed
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in < 0:
                self.kill_supervisor(where)

    def kill_supervisor(self, where: str) -> None:
        """SIGKILL, which a campaign may have announced."""
        self.kill_in = None
        self.meet(Fault.SUPERVISOR_KILLED)
        self.tell("killed at", where)
        if self.random.random() < 0.3:
            self.announced.add(self.supervisor)
        self.go_down(leave_trainer=self.random.random() < 0.3)
        raise Killed

    def go_down(self, leave_trainer: bool) -> None:
        """The supervisor is gone; the parent-death signal reaches the leader, if it reaches anybody."""
        if not self.dead and (text := self.disk.texts.get(RUN_FILE)) is not None:
            told = json.loads(text)
            if told["open"] and told["incarnation"] > self.started:
                self.promises.died()  # it was never born, and nobody will know
        if not self.dead and self.prepares:
            self.meet("killed-before-the-trainer")
        self.dead = True
        self.on_hint, self.on_beat, self.on_signal = None, None, {}
        for process in self.processes:
            if isinstance(process, Trainer | PreStart):
                process.print = None
            if not leave_trainer and isinstance(process, Trainer | Shell | PreStart):
                process.kill()

    def supervisor_identity(self, pid: int) -> Identity:
        """Which process the present supervisor is."""
        return Identity(pid, self.boot)

    @property
    def told_supervisor(self) -> int | None:
        """The supervisor that wrote run.json last, as that tells."""
        told = json.loads(self.disk.texts.get(RUN_FILE, "{}")).get("supervisor")
        return None if told is None else int(told[0])

    def die_along(self) -> None:
        """What killed the trainer kills its supervisor too."""
        if not self.dead:
            self.go_down(leave_trainer=False)
            raise Killed

    def cut_power(self) -> None:
        self.meet(Fault.POWER_CUT)
        for process in self.processes:
            process.kept_until = -1.0
            process.kill()
        self.go_down(leave_trainer=False)
        self.disk.lose_unsynced()
        self.memory_is_stale = self.memory_is_stale or self.promises.is_ahead_of_memory()
        self.pauses = self.disk.told_wish == "pause"
        self.booted_at = self.now - 20.0
        self.boot += 1
        raise Killed

    def ask_to_stop(self, number: int) -> None:
        """A signal to the supervisor, if there is one that listens."""
        if not self.dead and (handler := self.on_signal.get(number)) is not None:
            self.meet(Fault.PAUSED_STOP if self.pauses else Fault.STOP)
            if self.prepares:
                self.meet("stopped-before-the-trainer")
            self.asked_to_stop = True
            handler(number, None)
            supervisor = self.supervisor
            self.after(STOP_SECONDS, lambda: self.promises.stop_is_due(supervisor))

    def wish(self, wanted: str) -> None:
        """As `lastgood pause` and `lastgood resume` do; on a disk that cannot be written, a person tries again."""
        if wanted == "pause" and not self.in_storm:
            return
        if self.disk.is_away() or self.disk.is_full():
            self.after(10.0, lambda: self.wish(wanted))
            return
        self.pauses = wanted == "pause"
        if wanted == "pause":
            self.meet(Fault.PAUSE)
            if self.prepares:
                self.meet("stopped-before-the-trainer")
            self.promises.pause_wanted(self.now + PAUSE_SECONDS)
        self.disk.tell_wish(wanted)
        if (handler := self.on_signal.get(WISH_SIGNAL)) is not None and not self.dead:
            handler(WISH_SIGNAL, None)

    def tell_to_stop(self) -> None:
        """As `lastgood stop` does: the supervisor is asked to end, and what is wanted is no longer a pause."""
        if not self.in_storm:
            return
        if self.disk.is_away() or self.disk.is_full():
            self.after(10.0, self.tell_to_stop)
            return
        if not self.dead and self.on_signal:
            self.meet(Fault.STOP_TOLD)
            self.ask_to_stop(15)
            if self.pauses:
                self.pauses = False
                self.disk.tell_wish("stop")

    @property
    def prepares(self) -> bool:
        """Whether something runs before the trainer now."""
        return any(isinstance(one, PreStart) for one in self.living)

    @property
    def trainer(self) -> Trainer | None:
        """The one that lives."""
        return next((one for one in self.processes if isinstance(one, Trainer) and one.alive), None)

    @property
    def living(self) -> list[Process]:
        return [one for one in self.processes if one.alive]

    # -- the config file --------------------------------------------------------------------------------------------------

    def configure(self, config: Config) -> None:
        """A person changes the config file, and says so to the supervisor."""
        self.config = config
        if (handler := self.on_signal.get(SIGHUP)) is not None and not self.dead:
            handler(SIGHUP, None)

    def lengthen(self, steps: int, trainer: Trainer | None) -> None:
        """Trainers end later from now on, also one that lives already."""
        self.last_step = max(self.last_step, self.config.final_step or 0) + steps
        if trainer is not None and not trainer.finished:
            trainer.last_step = self.last_step

    def raise_final_step(self) -> None:
        """The run is to go as far as its trainers do."""
        self.configure(replace(self.config, final_step=self.last_step))

    def read_config(self) -> Settings:
        """The config file is read again."""
        self._reads.append(self.config)
        return self.plan.settings(self.config)

    def begin_config(self) -> Settings:
        """A supervisor starts by what the config file says."""
        self._reads.clear()
        self.known = self.known_before = self.config
        self.promises.configured()
        return self.plan.settings(self.config)

    def reloaded(self, keys: list[str]) -> None:
        """It says that it has taken what it read."""
        before = self.known
        while (read := self._reads.popleft()) == before:
            pass
        self.known_before, self.known, self.known_at = before, read, self.now
        self.promises.configured()
        if "run.final_step" in keys:
            raised = (read.final_step or 0) > (before.final_step or 0)
            self.meet(Fault.FINAL_RAISED if raised else Fault.FINAL_LOWERED)
        if keys != ["run.final_step"]:
            self.meet(Fault.RELOADED)

    # -- faults -------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """The storm is over."""
        self.tell("the storm is over")
        self.in_storm = False
        self.healed_at = self.now
        self.gpu_lost_until = self.gpu_busy_until = -1.0
        self.armed.clear()
        self.diverges_at = None
        self.loops = self.loops_along = False
        self.kill_in, self.pause_seconds, self.hints_lost_until = None, 0.0, -1.0
        self.disk.heal()
        if self.pauses:
            self.wish("run")
        for process in self.living:
            process.let_go()
            if isinstance(process, Trainer):
                process.diverging = 0

    def mend(self) -> None:
        """A person looks at why the run ended, and mends that."""
        self.loops, self.loops_along, self.diverges_at = False, False, None
        for kind in (Fault.USAGE, Fault.IGNORE, Fault.SPAWN_REFUSED):
            self.armed[kind] = 0
        self.disk.heal()

    def bring(self) -> None:
        """What runs before the trainer copies a snapshot in, with its old time or the present one."""
        newest = self.disk.newest(lambda file: True)
        known = 0 if newest is None else newest.step
        step = known + self.random.randint(1, 5) if self.random.random() < 0.5 else self.random.randint(0, known)
        if not 0 < step < self.last_step or any(file.step == step for file in self.disk.files.values()):
            return
        if not self.disk.is_away() and not self.disk.is_full() and self.take(Fault.PRE_START_BRINGS):
            file = self.disk.write(self.plan.name_of(step), step, self.plan.style)
            file.durable = file.brought = True
            file.made_at = self.brought_at = self.now
            if self.random.random() < 0.5:
                file.mtime_ns -= 10_000_000_000_000
            if newest is not None and step < known and file.mtime_ns > newest.mtime_ns:
                self.ignored += 1  # judged late, it looks as if the trainer had saved that
            self.hint(file.name)

    def harm(self, file: File, size: int = SIZE, touch: bool = False) -> None:
        """Change what a file holds, seen by its times or not."""
        file.holds = self.number() if size == SIZE else file.holds
        file.size = min(file.size, size)
        file.harmed_at = self.now
        if touch:
            file.mtime_ns = file.ctime_ns = self.wall_ns()
            self.hint(file.name)
            if not self.disk.shows_damage(file):
                self.ignored += 1  # it looks as if the trainer had saved an earlier step than the one it was given

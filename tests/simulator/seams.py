"""Where the real runtime meets the fake world: the adapters it calls, replaced for one life and put back after it.

Real are the core, the loop, both of its sides, the verifier, the judging of a ladder, and what is written to run.json. A name
that the product does not have, and a call to the system that no fake stands for, raise.
"""

import io
import select
import signal
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from os import fspath, path
from types import SimpleNamespace
from typing import Any

from lastgood import contract, rungs
from lastgood.ledger import SealStamp
from supervisor import (
    arrivals,
    candidates,
    directory_side,
    forerunner,
    hindrances,
    hints,
    holding,
    kin,
    launch,
    memory_side,
    overdue,
    reloading,
    runtime,
    small_files,
    summary,
    timeline,
    trainer_side,
    wishes,
)
from supervisor.adapters import statefile, verifier
from supervisor.adapters.process import Exit
from supervisor.core import events as e
from supervisor.faults import Fault as InjectedFault
from supervisor.mailbox import Mailbox
from supervisor.proc import Identity
from tests.simulator.disk import Ledger, os_error
from tests.simulator.plan import PRE_START, Fault
from tests.simulator.processes import PreStart, Process, Shell, Trainer
from tests.simulator.promises import BrokenError
from tests.simulator.world import World

LATENCY_SECONDS = 0.2  # of what is done in another thread
SILENT_SHARE = 0.2  # of reads of small files that are not answered in time while the storage is slow
IMPORT_SECONDS = 2.0
SLOW_SECONDS = 60.0  # of what is done there while the storage is slow
EAGAIN = 11
LINE_DELAY_SECONDS = 0.1  # lines that are still in the pipe


@contextmanager
def installed(world: World) -> Iterator[None]:
    """Let the product see this world."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for module, names in _table(world):
            for name, fake in names.items():
                before.append((module, name, getattr(module, name)))
                setattr(module, name, fake)
        statefile.open = partial(_opened, world)
        yield
    finally:
        if hasattr(statefile, "open"):
            del statefile.open
        for module, name, real in reversed(before):
            setattr(module, name, real)


Seams = list[tuple[Any, dict[str, Any]]]
"""Modules, and what stands in them for what they import."""


def _table(world: World) -> Seams:
    return [*_loop(world), *_trainers(world), *_directory(world), *_storage(world)]


def _loop(world: World) -> Seams:
    """The loop, what it remembers, and what it hears from outside."""
    clock = SimpleNamespace(monotonic=world.monotonic, time=world.wall)
    system = SimpleNamespace(getpid=lambda: world.supervisor, path=path, environ={}, close=lambda descriptor: None)
    made = partial(Worker, world)
    return [
        (
            runtime,
            {
                "time": clock,
                "os": system,
                "signal": _signals(world),
                "become_subreaper": lambda: world.point("subreaper"),
                "proc": SimpleNamespace(boot_id=lambda: str(world.boot), identity_of=world.supervisor_identity),
                "Verifier": partial(verifier.Verifier, clock=world.monotonic),
            },
        ),
        (holding, {"os": system, "device_of": lambda directory: 1}),
        (summary, {"os": system}),
        (memory_side, {"time": clock, "Worker": made}),
        (overdue, {"time": clock}),
        (timeline, {"time": clock}),
        (reloading, {"Worker": made}),
        (wishes, {"Patient": partial(Patient, world)}),
        (
            forerunner,
            {"proc": SimpleNamespace(boot_id=lambda: str(world.boot))},
        ),
    ]


def _trainers(world: World) -> Seams:
    """The trainer and all its processes."""
    clock = SimpleNamespace(monotonic=world.monotonic, time=world.wall)
    system = SimpleNamespace(getpid=lambda: world.supervisor, path=path, environ={}, close=lambda descriptor: None)
    made = partial(Worker, world)
    return [
        (
            trainer_side,
            {
                "time": clock,
                "os": system,
                "select": SimpleNamespace(poll=partial(Poll, world), POLLIN=select.POLLIN),
                "Child": SimpleNamespace(spawn=partial(_spawn, world)),
                "OutputDrain": partial(Drain, world),
                "Heartbeat": partial(Heartbeat, world),
                "Worker": made,
                "is_alive": partial(_is_alive, world),
                "launch": SimpleNamespace(
                    arguments=partial(_arguments, world),
                    environment=launch.environment,
                    notes_file=launch.notes_file,
                    heartbeat=launch.heartbeat,
                ),
                "stalled": SimpleNamespace(
                    heading=lambda incarnation, stage, seconds: stage, keep_evidence=partial(_keep_evidence, world)
                ),
                "reap_orphans": lambda keep: world.point("reap"),
                "cgroup": SimpleNamespace(OomCounter=partial(OomCounter, world)),
                "StandingBy": partial(StandingBy, world),
            },
        ),
        (
            kin,
            {
                "tree": SimpleNamespace(sweep=partial(_sweep, world), members=partial(_members, world)),
                "snapshot": dict,
                "supervisors": SimpleNamespace(cgroups_of=lambda pid: "", unit_in=lambda cgroups: None),
                "cgroup": SimpleNamespace(
                    TrainerGroup=SimpleNamespace(made=lambda directory, is_service: None),
                ),
            },
        ),
        (
            small_files,
            {
                "Notes": partial(Notes, world),
                "time": clock,
                "Patient": partial(Patient, world),
                "faults": SimpleNamespace(aimed_at=partial(_aimed_at, world)),
            },
        ),
    ]


def _directory(world: World) -> Seams:
    """The directory as it is watched, and what stands in the way of a start."""
    clock = SimpleNamespace(monotonic=world.monotonic, time=world.wall)
    made = partial(Worker, world)
    disk = world.disk
    return [
        (
            directory_side,
            {
                "time": clock,
                "Watcher": partial(Watcher, world),
                "Worker": made,
                "places": SimpleNamespace(
                    drop_orphaned_seals=disk.drop_orphaned_seals,
                    sweep=disk.sweep,
                    set_aside=disk.set_aside,
                    put_back=disk.put_back,
                    prune=disk.prune,
                ),
            },
        ),
        (
            hindrances,
            {
                "space": SimpleNamespace(room_for=disk.room_for, trim=disk.trim, files_of=lambda path: 1),
                "gpu": SimpleNamespace(Gpus=partial(Gpus, world)),
            },
        ),
        (arrivals, {"written": disk.written, "writers_in_place": lambda paths: {}}),
    ]


def _storage(world: World) -> Seams:
    """What reads and writes."""
    clock = SimpleNamespace(monotonic=world.monotonic, time=world.wall)
    disk = world.disk
    return [
        (
            candidates,
            {
                "os": SimpleNamespace(path=SimpleNamespace(join=path.join, lexists=disk.exists)),
                "scan": disk.scan,
                "scan_named": disk.scan_named,
                "stamp_of": disk.stamp_of,
                "entries_of": disk.entries_of,
                "remove_if_there": disk.remove_if_there,
            },
        ),
        (hints, {"time": clock}),
        (
            verifier,
            {
                "time": clock,
                "os": SimpleNamespace(
                    fspath=fspath,
                    path=SimpleNamespace(join=path.join, exists=disk.exists),
                ),
                "ever_held_one": disk.ever_held_one,
                "Ledger": lambda directory, writable: Ledger(disk),
                "SealStamp": _stamps(world),
                "read_seal": disk.read_seal,
                "sha256_of": disk.sha256_of,
                "identity_of": disk.identity_of,
                "write_bound_seal": disk.write_bound_seal,
                "is_being_written": disk.is_being_written,
            },
        ),
        (rungs, {"verify": disk.verify, "SealStamp": _stamps(world), "now_ns": world.wall_ns}),
        (
            statefile,
            {
                "proc": SimpleNamespace(boot_id=lambda: str(world.boot), Identity=Identity),
                "time": clock,
                "os": SimpleNamespace(path=SimpleNamespace(join=path.join, isdir=lambda where: not disk.is_away())),
                "write_durably": disk.write_durably,
                "write_at_once": disk.write_durably,
                "fsync_folder": disk.fsync_folder,
                "prepare": lambda directory: disk.check(writing=True),
                "lock": partial(_lock, world),
                "still_locked": partial(_still_locked, world),
                "write_status": partial(_write_status, world),
            },
        ),
    ]


class Poll:
    """`select.poll`, in which all time passes that the loop does not spend working."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._mailbox = select.poll()
        self._children: set[int] = set()

    def register(self, descriptor: int, events: int) -> None:
        if descriptor < Child.FIRST:
            self._mailbox.register(descriptor, events)
        else:
            self._children.add(descriptor)

    def unregister(self, descriptor: int) -> None:
        self._children.remove(descriptor)

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        world = self._world
        world.point("wait")
        world.promises.turned()
        until = world.now + milliseconds / 1000
        self._stand_still()  # the time goes on, and may be up before it goes on itself
        while not self._is_ready():
            if not world.happen(until):
                world.now = max(world.now, until)
                break
        return []

    def _stand_still(self) -> None:
        """The supervisor is stopped for a while, and the world goes on."""
        world = self._world
        if world.pause_seconds:
            world.meet(Fault.SUPERVISOR_PAUSED)
            until = world.paused_until = world.now + world.pause_seconds
            world.pause_seconds = 0.0
            while world.happen(until):
                pass
            world.now = max(world.now, until)

    def _is_ready(self) -> bool:
        if any(one.pidfd in self._children and not one.process.alive for one in self._world.children):
            return True
        return bool(self._mailbox.poll(0))


class Child:
    """A leader and its pidfd."""

    FIRST = 1_000_000  # pidfds of the fake world are larger than any real descriptor

    def __init__(self, world: World, leader: Process, asked: list[Process]) -> None:
        self._world = world
        self._asked = asked
        self.process = leader
        self.is_shell = isinstance(leader, Shell)
        self.identity = leader.identity
        self.pidfd = self.FIRST + leader.identity.pid
        self.output_descriptor = self.pidfd + self.FIRST

    def poll_exit(self) -> Exit | None:
        return self.process.exit

    def ask_to_stop(self) -> list[Identity]:
        self._world.point("ask to stop")
        if not self.process.alive:
            return []
        asked = [one for one in self._asked if one.alive]
        for one in asked:
            one.terminate()
        return [one.identity for one in asked]

    def close(self) -> None:
        self._world.children = [one for one in self._world.children if one is not self]


class StandingBy:
    """The next trainer, started in advance: one that is ready is a start that does not take long."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ready_at: float | None = None
        self.pids = ()
        self.missing: str | None = None

    @property
    def due(self) -> float:
        return float("inf")

    def look(self, command: Callable[[], object], cwd: str, start: bool) -> None:
        if self._ready_at is None and start:
            command()
            self._ready_at = self._world.now + IMPORT_SECONDS

    def take(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, group: str | None) -> "Child | None":
        ready, self._ready_at = self._ready_at is not None and self._world.now >= self._ready_at, None
        if ready:
            self._world.meet("standby")
        return _spawn(self._world, argv, cwd=cwd, env=env, group=group) if ready else None

    def told(self) -> None:
        return None

    def end(self) -> None:
        self._ready_at = None

    close = end


def _spawn(world: World, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], group: str | None = None) -> Child:
    world.point("spawn")
    name = _given(world, env)
    incarnation = int(env[contract.ENV_INCARNATION])
    is_first = argv == PRE_START or not world.plan.pre_start
    world.tell("starts" if is_first else "goes on", name, "incarnation", incarnation)
    if is_first:
        world.promises.started(name)
        world.cause, world.no_room = None, False
    if world.take(Fault.SPAWN_REFUSED):
        world.promises.died()
        raise os_error(EAGAIN)
    world.processes = [one for one in world.processes if one.alive]
    if argv == PRE_START:
        world.promises.prepares()
        return _run(world, [PreStart(world)])
    world.started = incarnation
    world.promises.goes_on(incarnation)
    shell = Shell(world) if world.plan.shell else None
    trainer = Trainer(world, incarnation, name, shell)
    if skipped := env.get(contract.ENV_SKIP_STEPS):
        trainer.skipping = max(int(one.rpartition("-")[2]) for one in skipped.split(","))
    if shell is not None:
        shell.trainer = trainer
    return _run(world, [trainer] if shell is None else [shell, trainer])


def _run(world: World, processes: Sequence[PreStart | Trainer | Shell]) -> Child:
    """Processes, leader first; the last one is heard."""
    world.processes += processes
    child = Child(world, processes[0], list(processes))
    world.children.append(child)
    heard = processes[-1]
    assert not isinstance(heard, Shell)
    world.drained[child.output_descriptor] = heard
    world.point("spawned")
    return child


def _arguments(world: World, *given: Any) -> list[str]:
    world.argv = launch.arguments(*given)
    return world.argv


def _given(world: World, env: Mapping[str, str]) -> str | None:
    """Which snapshot a trainer is given, or will find."""
    if world.plan.resume == "self":
        newest = world.disk.newest(lambda file: True)
        return None if newest is None else newest.name
    given = env.get(contract.ENV_RESUME_FROM) or next((w for w in world.argv if w.startswith("--from=")), None)
    return None if given is None else path.basename(given)


class Drain:
    """The trainer's output, line by line; some lines are still in the pipe when it dies."""

    def __init__(
        self,
        world: World,
        descriptor: int,
        log: str,
        pattern: object,
        on_step: Callable[[int, float | None, int], None],
    ) -> None:
        self._world = world
        self._trainer = world.drained.pop(descriptor)
        self._on_step = on_step
        self._waiting: deque[tuple[int, float | None]] = deque()

    def start(self) -> None:
        self._world.point("drain")
        self._trainer.print = self._printed

    def _printed(self, step: int, loss: float | None) -> None:
        self._waiting.append((step, loss))
        self._world.after(LINE_DELAY_SECONDS * self._world.random.random(), self._flush)

    def _flush(self) -> None:
        while self._waiting:
            self._on_step(*self._waiting.popleft(), 1)

    def wait(self, seconds: float) -> bool:
        self._world.point("last lines")
        self._flush()
        return True

    def last_lines(self) -> list[str]:
        return [f"step {self._trainer.step}", *filter(None, [self._trainer.last_words])]

    def close(self) -> None:
        self._flush()
        self._trainer.print = None


class Gpus:
    """The GPU of the trainer, as NVML tells of it."""

    def __init__(self, world: World, visible: str | None) -> None:
        self._world = world
        self._told: set[int] = set()
        world.swept.clear()

    def died(self, pids: Collection[int]) -> None:
        self._world.point("gpu")
        self._told |= set(pids)

    def look(self) -> e.Hindrance | None:
        world = self._world
        world.point("look at gpu")
        lost, holders = world.now < world.gpu_lost_until, self._holders()
        world.promises.looked_for(Fault.GPU_LOST, world.gpu_lost_until if lost else None)
        world.promises.looked_for(Fault.GPU_BUSY, world.gpu_busy_until if holders & world.swept else None)
        if lost:
            return e.Hindrance(e.Obstacle.GPU_LOST, {"gpus": ["GPU-1"], "reason": "NVML: GPU is lost"})
        if found := holders & self._told:
            return e.Hindrance(e.Obstacle.GPU_BUSY, {"gpus": ["GPU-1"], "pids": sorted(found)})
        self._told.clear()
        return None

    def _holders(self) -> set[int]:
        """Dead processes that still hold its memory, whether the supervisor knows of them or not."""
        world = self._world
        alive = {one.identity.pid for one in world.living}
        return world.gpu_holders - alive if world.now < world.gpu_busy_until else set()


class Heartbeat:
    """The file whose time is a life sign; a trainer touches it while it says nothing else."""

    def __init__(self, world: World, path: str, on_beat: Callable[[], None]) -> None:
        self._world = world
        self._on_beat = on_beat

    def start(self) -> None:
        self._world.point("heartbeat")
        self._world.on_beat = self._on_beat

    def close(self) -> None:
        self._world.on_beat = None


class Notes:
    """What the trainer noted, told once."""

    def __init__(self, world: World, where: str) -> None:
        self._world = world

    def begin(self, incarnation: int) -> None:
        self._world.point("notes")
        self._world.notes.clear()

    def take(self) -> list[e.Event]:
        taken, self._world.notes = self._world.notes, []
        return taken


class OomCounter:
    """Counts the OOM kills of the trainer's memory group."""

    def __init__(self, world: World, group: None) -> None:
        self._world = world
        self._before = world.oom_kills

    def risen(self) -> int:
        return self._world.oom_kills - self._before


class Worker:
    """The other thread: one work after the other, each of which takes time to begin."""

    def __init__(self, world: World, name: str, mailbox: Mailbox) -> None:
        self._world = world
        self._name = name
        self._mailbox = mailbox
        self._supervisor = world.supervisor
        self._queue: deque[tuple[Callable[[], None], bool]] = deque()
        self._closed = False

    def submit(self, work: Callable[[], None], must: bool = False) -> None:
        self._world.point("submit")
        self._queue.append((work, must))
        if len(self._queue) == 1:
            self._begin()

    def _begin(self) -> None:
        world = self._world
        seconds = LATENCY_SECONDS * world.random.random() ** 4
        if self._name in ("judge", "memory") and world.now < world.disk.slow_until:
            world.meet_once(Fault.SLOW, world.disk.slow_until)
            seconds = SLOW_SECONDS * world.random.random()
        world.after(seconds, self._work)

    def _work(self) -> None:
        if self._closed or self._world.dead or self._supervisor != self._world.supervisor:
            return
        self._do(self._queue[0][0])
        self._queue.popleft()
        if self._queue:
            self._begin()

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BrokenError:
            raise
        except Exception as error:  # noqa: BLE001 - raised again in the loop, as the real one does
            broken = error

            def act() -> None:
                raise broken

            self._mailbox.hand(act)

    def close(self, until: float | None = None) -> None:
        self._closed = True
        for work, must in self._queue:
            if must:
                self._do(work)
        self._world.point("close worker")


class Patient:
    """The other thread for small files: it answers at once, or when nobody waits any more, in order."""

    def __init__(self, world: World, name: str, patience_seconds: float) -> None:
        self._world = world
        self._name = name
        self._supervisor = world.supervisor
        self._late: deque[Callable[[], None]] = deque()

    def do(self, act: Callable[[], None], again: bool = False) -> bool:
        world = self._world
        world.point("small file")
        if again:
            self._catch_up()  # what matters for a death is told in time
            act()
        elif self._late or (world.now < world.disk.slow_until and world.random.random() < SILENT_SHARE):
            self._late.append(act)
            if len(self._late) == 1:
                world.meet("small-file-late")
                seconds = SLOW_SECONDS * world.random.random()
                if self._name == "wish":
                    world.promises.wish_is_late()
                else:
                    world.notes_late_until = world.now + seconds
                world.after(seconds, self._catch_up)
        else:
            act()
        return True

    def _catch_up(self) -> None:
        while self._late and not self._world.dead and self._supervisor == self._world.supervisor:
            self._late.popleft()()


class Watcher:
    """Hints at what happens in the directory."""

    def __init__(self, world: World, directory: str, hint: Callable[[str | None], None]) -> None:
        world.point("watch")
        self._world = world
        self.state = "simulated"
        self.tells_all = world.plan.seed % 4 > 0  # else as on a network's filesystem
        world.on_hint = hint

    def check(self) -> bool:
        return False

    def close(self) -> None:
        self._world.on_hint = None


class Journal:
    """Takes records."""

    lost = 0

    def __init__(self, world: World) -> None:
        self._world = world

    def show_from(self, level: str) -> None:
        """There is no terminal to show less on."""

    def write(self, event: str, level: str, incarnation: int, fields: dict[str, Any]) -> dict[str, Any]:
        self._world.point(f"record {event}")
        self._world.tell("record", event, fields)
        self._world.promises.recorded(event, fields, incarnation)
        if event == "trainer.progressed":
            self._world.recovered()
        self._world.promises.waits(event, fields)
        return {"event": event, "level": level, "incarnation": incarnation, **fields}


def _members(world: World, leader: object, marker: object, **_: object) -> list[Identity]:
    world.point("members")
    return [one.identity for one in world.living]


def _sweep(world: World, leader: Identity | None, marker: object, **_: object) -> list[Identity]:
    world.point("sweep")
    world.swept |= {one.identity.pid for one in world.living} | (set() if leader is None else {leader.pid})
    for one in world.living:
        one.kill()
    world.point("swept")
    return [one.identity for one in world.living]


def _keep_evidence(world: World, folder: str, incarnation: int, stage: str, *_: object) -> None:
    world.promises.ends(stage)
    world.point("evidence")


def _is_alive(world: World, identity: Identity) -> bool:
    return any(one.identity == identity for one in world.living)


def _aimed_at(world: World, directory: str, target: Identity) -> InjectedFault | None:
    if target.pid in world.announced:  # a supervisor
        told, kind = f"f{target.pid}", "kill-the-supervisor"
    else:
        told, kind = next((one.chaos for one in world.processes if one.identity == target), None), "kill"
    return None if told is None else InjectedFault(told, kind, target.pid, target.start_ticks, None, world.wall())


def _signals(world: World) -> SimpleNamespace:
    def take(number: int, handler: Any) -> None:
        world.point("signal")
        if callable(handler):
            world.on_signal[number] = handler
        else:
            world.on_signal.pop(number, None)

    known = {name: getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGPIPE", "SIG_IGN")}
    return SimpleNamespace(signal=take, **known)


def _stamps(world: World) -> SimpleNamespace:
    return SimpleNamespace(beside=world.disk.stamp, none=SealStamp)


def _lock(world: World, directory: str) -> int:
    world.lock_removed = False
    return world.number()


def _still_locked(world: World, directory: str, descriptor: int) -> bool:
    if world.lock_removed:
        world.meet(Fault.LOCK_REMOVED)
    return not world.lock_removed


def _write_status(world: World, directory: str, told: dict[str, Any]) -> None:
    world.point("status")
    try:
        world.disk.check(writing=True)
    except OSError:
        world.meet("status-not-written")
        world.status_failed_at = world.now
        raise
    world.status = told


def _opened(world: World, where: str, mode: str, opener: object = None) -> io.BytesIO:
    return io.BytesIO(world.disk.open_text(where).encode())

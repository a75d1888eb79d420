"""What each kind of fault does to the world. Some strike at once, some wait for their occasion; each counts once it was met."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from lastgood.choose import newest_first
from tests.simulator.disk import GARBLED, SIZE, File
from tests.simulator.plan import Fault, Planned, Style
from tests.simulator.processes import Process, Trainer

if TYPE_CHECKING:
    from tests.simulator.world import World

SILENCES = ((60.0, 45.0), (60.0, 8.0), (40.0, 8.0), (120.0, 90.0))
"""Deadlines of start-up and running that a person may set, none of which a healthy trainer exceeds."""

AWAY_ERRNOS = (2, 5, 116)
"""As a directory answers that is unmounted, whose disk fails, or whose file server forgot it."""

WAITING = frozenset(
    {
        Fault.USAGE,
        Fault.DIE_SAVING,
        Fault.STALL_SAVING,
        Fault.SLOW_SAVE,
        Fault.QUIET,
        Fault.IGNORE,
        Fault.GARBAGE,
        Fault.WILL_NOT_EXIT,
        Fault.FALL_BACK,
        Fault.SPAWN_REFUSED,
        Fault.PRE_START_FAILS,
        Fault.PRE_START_STAYS,
        Fault.PRE_START_BRINGS,
        Fault.PRE_START_CUT,
        Fault.RAISED_LATE,
    }
)
"""Faults that wait for their occasion."""


def strike(world: "World", one: Planned) -> None:
    """A planned fault happens now."""
    if not world.in_storm:
        return
    world.tell("planned", str(one.kind))
    if one.kind in WAITING:
        world.armed[one.kind] += 1
        if one.kind is Fault.FALL_BACK and (trainer := world.trainer) is not None:
            trainer.die(1, None)
    elif one.kind in _ON_TRAINER:
        if (trainer := world.trainer) is not None:
            _ON_TRAINER[one.kind](world, trainer, one.dice)
    elif one.kind in _ON_FILE:
        if (file := _victim(world, one.dice)) is not None:
            _ON_FILE[one.kind](world, file, one.dice)
    else:
        _ON_WORLD[one.kind](world, one.dice)


def _victim(world: "World", dice: float) -> File | None:
    """The newest, mostly."""
    files = newest_first(world.disk.files.values())
    if not files:
        return None
    return files[0] if dice < 0.6 else files[int(dice * 1000) % len(files)]


# -- on the trainer -----------------------------------------------------------------------------------------------------


def _crash(world: "World", trainer: Trainer, dice: float) -> None:
    world.meet(Fault.CRASH)
    trainer.die((1, 3, 77)[int(dice * 3)], None)


def _fault_signal(world: "World", trainer: Trainer, dice: float) -> None:
    world.meet(Fault.FAULT_SIGNAL)
    world.cause = "crashed"
    trainer.die(None, 11)


def _kill(world: "World", trainer: Trainer, dice: float) -> None:
    if trainer.kill():
        world.meet(Fault.KILLED)
        world.cause = "killed"


def _starve(world: "World", trainer: Trainer, dice: float) -> None:
    """The kernel's OOM killer ends it, and its memory group counts that."""
    if trainer.kill():
        world.meet(Fault.OUT_OF_MEMORY)
        world.cause = "out-of-memory"
        world.oom_kills += 1


def _chaos(world: "World", trainer: Trainer, dice: float) -> None:
    (trainer.shell or trainer).chaos = f"f{world.number()}"
    if trainer.kill():
        world.meet(Fault.CHAOS)
        world.cause = "chaos"


def _stall(world: "World", trainer: Trainer, dice: float) -> None:
    if not trainer.finished:
        world.meet(Fault.STALL)
        trainer.stalled = True


def _repeat(world: "World", trainer: Trainer, dice: float) -> None:
    """It stands still, and goes on telling at which step."""
    if not trainer.finished and trainer.print is not None and trainer.heard > 1:
        world.meet(Fault.REPEAT)
        trainer.stalled = True
        trainer.repeat()


def _deafen(world: "World", trainer: Trainer, dice: float) -> None:
    trainer.deaf = True
    if dice < 0.7:
        world.ask_to_stop(15)


def _leak(world: "World", trainer: Trainer, dice: float) -> None:
    world.meet(Fault.LEAK)
    child = Process(world)
    world.processes.append(child)
    if dice < 0.3:
        world.after(200 * dice, lambda: child.die(0, None))


def _hold(world: "World", trainer: Trainer, dice: float) -> None:
    """It waits for storage in the kernel, where no signal reaches it."""
    trainer.kept_until = world.now + 200.0 * dice
    trainer.stalled = trainer.stalled or (dice < 0.7 and not trainer.finished)


def _diverge(world: "World", trainer: Trainer, dice: float) -> None:
    trainer.diverging = 3
    if dice < 0.4:
        world.diverges_at = trainer.step + 1  # it will again, until that data is skipped


def _end_early(world: "World", trainer: Trainer, dice: float) -> None:
    if not trainer.finished and not (
        trainer.garbled and trainer.heard == 0
    ):  # else its last word would be that it is done
        world.meet(Fault.EARLY_END)
        world.ended_early = True
        world.finished_at = max(world.finished_at, trainer.step)
        trainer.die(0, None)


_ON_TRAINER: dict[Fault, Callable[["World", Trainer, float], None]] = {
    Fault.CRASH: _crash,
    Fault.FAULT_SIGNAL: _fault_signal,
    Fault.KILLED: _kill,
    Fault.OUT_OF_MEMORY: _starve,
    Fault.CHAOS: _chaos,
    Fault.STALL: _stall,
    Fault.REPEAT: _repeat,
    Fault.DEAF: _deafen,
    Fault.LEAK: _leak,
    Fault.UNKILLABLE: _hold,
    Fault.DIVERGE: _diverge,
    Fault.EARLY_END: _end_early,
}


# -- on a snapshot ------------------------------------------------------------------------------------------------------


def _flip(world: "World", file: File, dice: float) -> None:
    world.meet(Fault.FLIP)
    world.harm(file)


def _flip_and_touch(world: "World", file: File, dice: float) -> None:
    world.meet(Fault.TOUCHED_FLIP)
    world.harm(file, touch=True)


def _cut(world: "World", file: File, dice: float) -> None:
    world.meet(Fault.CUT)
    world.harm(file, size=0 if dice < 0.2 else SIZE // 2, touch=True)


def _lose_seal(world: "World", file: File, dice: float) -> None:
    if file.seal is not None:
        world.meet(Fault.SEAL_LOST)
        file.seal, file.seal_inode = None, 0
        world.hint(f"{file.name}.sha256")


def _garble_seal(world: "World", file: File, dice: float) -> None:
    if file.seal is not None:
        world.meet(Fault.SEAL_GARBLED)
        file.seal, file.seal_inode = GARBLED, world.disk.inode()
        world.hint(f"{file.name}.sha256")


def _fail_reads(world: "World", file: File, dice: float) -> None:
    file.errors_until = world.now + 90.0 * dice


def _forbid(world: "World", file: File, dice: float) -> None:
    file.forbidden = True


def _root(world: "World", file: File, dice: float) -> None:
    """It cannot be moved nor removed; mostly it is also bad, so that somebody wants to."""
    file.rooted = True
    if dice < 0.7:
        world.harm(file, size=SIZE // 2, touch=True)


_ON_FILE: dict[Fault, Callable[["World", File, float], None]] = {
    Fault.FLIP: _flip,
    Fault.TOUCHED_FLIP: _flip_and_touch,
    Fault.CUT: _cut,
    Fault.SEAL_LOST: _lose_seal,
    Fault.SEAL_GARBLED: _garble_seal,
    Fault.READ_ERROR: _fail_reads,
    Fault.FORBIDDEN: _forbid,
    Fault.STUCK_RUNG: _root,
}


# -- on the rest of the world -------------------------------------------------------------------------------------------


def _shorten(world: "World", dice: float) -> None:
    """Too little room for a save, for a while; and a start that must wait for it."""
    world.disk.short_until = world.now + 10.0 + 200.0 * dice
    if (trainer := world.trainer) is not None and dice < 0.7 and trainer.kill():
        world.cause = "killed"


def _lose_gpu(world: "World", dice: float) -> None:
    """It falls off the bus, and the trainer that used it crashes."""
    world.gpu_lost_until = world.now + 10.0 + 200.0 * dice
    if (trainer := world.trainer) is not None:
        world.cause = "gpu-fault"
        trainer.die(1, None)


def _hold_gpu(world: "World", dice: float) -> None:
    """The driver does not give back what a killed trainer held, its children and the shell above it being counted with it."""
    if (trainer := world.trainer) is None:
        return
    world.gpu_busy_until = world.now + 10.0 + 200.0 * dice
    world.gpu_holders |= {one.identity.pid for one in world.living}
    if trainer.kill():
        world.cause = "killed"


def _loop(world: "World", dice: float) -> None:
    world.loops = True


def _loop_along(world: "World", dice: float) -> None:
    world.loops = world.loops_along = True


def _fill(world: "World", dice: float) -> None:
    world.disk.full_until = world.now + 120.0 * dice


def _take_away(world: "World", dice: float) -> None:
    world.disk.away_until = world.now + 120.0 * dice
    world.disk.away_errno = AWAY_ERRNOS[int(dice * 1000) % len(AWAY_ERRNOS)]


def _slow_down(world: "World", dice: float) -> None:
    world.disk.slow_until = world.now + 120.0 * dice


def _set_back(world: "World", dice: float) -> None:
    world.meet(Fault.WALL_BACK)
    world.wall_ahead -= 7200.0 * dice


def _set_ahead(world: "World", dice: float) -> None:
    world.meet(Fault.WALL_AHEAD)
    world.wall_ahead += 7200.0 * dice


def _lose_hints(world: "World", dice: float) -> None:
    world.hints_lost_until = world.now + 200.0 * dice


def _kill_supervisor(world: "World", dice: float) -> None:
    world.kill_in = int(60 * dice)


def _pause_supervisor(world: "World", dice: float) -> None:
    world.pause_seconds = 200.0 * dice


def _power_cut(world: "World", dice: float) -> None:
    world.cut_power()


def _stop(world: "World", dice: float) -> None:
    world.ask_to_stop(2 if dice < 0.3 else 15)


def _pause(world: "World", dice: float) -> None:
    world.wish("pause")
    world.after(60.0 + 240.0 * dice, lambda: world.wish("run"))


def _stop_paused(world: "World", dice: float) -> None:
    """The machine is shut down, or the service started anew, while the run is paused or about to be."""
    world.wish("pause")
    world.after(60.0 * dice, lambda: world.ask_to_stop(15))
    world.after(250.0 + 150.0 * dice, lambda: world.wish("run"))


def _tell_to_stop(world: "World", dice: float) -> None:
    world.tell_to_stop()


def _hide_wish(world: "World", dice: float) -> None:
    """The next supervisor cannot read at first what is wanted; mostly that is a pause."""
    world.armed[Fault.WISH_UNREADABLE] += 1
    if dice < 0.8:
        world.wish("pause")
        world.after(400.0, lambda: world.wish("run"))
    world.after(60.0 * dice, lambda: world.ask_to_stop(15))


def _raise_final(world: "World", dice: float) -> None:
    """A longer run is wanted; a trainer that lives mostly goes on, others end where they were to end."""
    world.lengthen(1 + int(dice * 15), world.trainer if dice < 0.7 else None)
    world.raise_final_step()


def _lower_final(world: "World", dice: float) -> None:
    final = world.config.final_step or 0
    world.configure(replace(world.config, final_step=max(1, int(final * (0.3 + 0.6 * dice)))))


def _reload(world: "World", dice: float) -> None:
    """Other deadlines, another budget, another retention."""
    config = world.config
    startup, running = world.random.choice(SILENCES)
    keep = config.keep if config.keep is None else world.random.choice([2, 3, 5])
    if running < config.running_seconds and world.plan.style is Style.SEALED:
        world.armed[Fault.SLOW_SAVE] += 1  # which outlasts the new deadline of silence
    world.configure(
        replace(
            config,
            startup_seconds=startup,
            running_seconds=running,
            without_progress=world.random.choice([3, 4, 6]),
            keep=keep,
            every=world.random.choice([0, 20]),
        )
    )


def _remove_lock(world: "World", dice: float) -> None:
    world.lock_removed = True


_ON_WORLD: dict[Fault, Callable[["World", float], None]] = {
    Fault.CRASH_LOOP: _loop,
    Fault.DIE_ALONG: _loop_along,
    Fault.FULL: _fill,
    Fault.SHORT: _shorten,
    Fault.GPU_LOST: _lose_gpu,
    Fault.GPU_BUSY: _hold_gpu,
    Fault.AWAY: _take_away,
    Fault.SLOW: _slow_down,
    Fault.WALL_BACK: _set_back,
    Fault.WALL_AHEAD: _set_ahead,
    Fault.EVENTS_LOST: _lose_hints,
    Fault.SUPERVISOR_KILLED: _kill_supervisor,
    Fault.SUPERVISOR_PAUSED: _pause_supervisor,
    Fault.POWER_CUT: _power_cut,
    Fault.STOP: _stop,
    Fault.PAUSE: _pause,
    Fault.PAUSED_STOP: _stop_paused,
    Fault.STOP_TOLD: _tell_to_stop,
    Fault.WISH_UNREADABLE: _hide_wish,
    Fault.LOCK_REMOVED: _remove_lock,
    Fault.FINAL_RAISED: _raise_final,
    Fault.FINAL_LOWERED: _lower_final,
    Fault.RELOADED: _reload,
}

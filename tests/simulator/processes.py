"""The fake trainer and what it leaves behind: it loads, steps, prints, saves, and breaks as it is told to."""

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from lastgood.choose import newest_first
from supervisor.adapters.process import Exit
from supervisor.core.events import EndingNoted, PassedOver, SaveFailed, TrainerFellBack
from supervisor.proc import Identity
from tests.simulator.disk import SIZE, File
from tests.simulator.garbage import print_garbage
from tests.simulator.plan import Fault, Style

if TYPE_CHECKING:
    from tests.simulator.world import World

ROTATED = 3  # snapshots that a trainer keeps which removes its own
SAVE_FAILURES_MAX = 3
BEATS = 20  # of a trainer that says nothing for a while
BEAT_SECONDS = 5.0
GARBAGE_SHARE = 0.3  # of the lines after which a trainer that prints garbage at last does so
HEARD_MIN = 3  # steps that prove a resume ignored, whatever a banner may have said


class Process:
    """A process of the run: it carries the marker, and dies of SIGKILL unless the kernel keeps it."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.identity = Identity(world.number(), world.number())
        self.alive = True
        self.exit: Exit | None = None
        self.chaos: str | None = None
        self.kept_until = -1.0
        self._doomed = False

    def die(self, code: int | None, signal: int | None) -> None:
        """End, for whatever reason."""
        if self.alive:
            self.alive = False
            self.exit = Exit(code, signal)
            self.world.tell("died", type(self).__name__, self.identity.pid, code, signal)

    def kill(self) -> bool:
        """SIGKILL; whether it is dead."""
        if not self.alive:
            return True
        if self.world.now < self.kept_until:
            self.world.meet(Fault.UNKILLABLE)
            if not self._doomed:
                self._doomed = True
                self.world.after(self.kept_until - self.world.now, lambda: self.die(None, 9))
            return False
        self.die(None, 9)
        return True

    def let_go(self) -> None:
        """The kernel keeps it no longer."""
        self.kept_until = -1.0
        if self._doomed:
            self.die(None, 9)

    def terminate(self) -> None:
        """SIGTERM."""
        self.die(None, 15)


class PreStart(Process):
    """What runs before a trainer: it prints and beats, and may bring a snapshot, none of which the trainer has done."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.print: Callable[[int, float | None], None] | None = None
        self.step = 0
        self.last_words = ""
        self._stays = world.take(Fault.PRE_START_STAYS)
        code = 3 if not self._stays and world.take(Fault.PRE_START_FAILS) else 0
        seconds = 0.3 + 25.0 * world.random.random() ** 2
        if world.armed[Fault.PRE_START_BRINGS]:
            world.after(seconds * world.random.random(), lambda: world.bring() if self.alive else None)
        if world.take(Fault.PRE_START_CUT):
            world.after(seconds * world.random.random(), self._cut)
        if not self._stays:
            world.after(seconds, lambda: self.die(code, None))
        self._prepare()

    def _cut(self) -> None:
        """A stop, a pause, or the end of the supervisor."""
        world, dice = self.world, self.world.random.random()
        if not self.alive or not world.in_storm or world.dead:
            return
        if dice < 0.3:
            world.ask_to_stop(15)
        elif dice < 0.6:
            world.wish("pause")
            world.after(60.0 + 240.0 * dice, lambda: world.wish("run"))
        else:
            world.kill_supervisor("before the trainer")

    def _prepare(self) -> None:
        if self.alive:
            self.step += 1
            if self.print is not None:
                self.print(self.step, 2.0)
            self.world.beat()
            self.world.after(2.0, self._prepare)

    def die(self, code: int | None, signal: int | None) -> None:
        """End; unless it ends well that is the end of its incarnation."""
        if self.alive and code != 0:
            self.world.promises.died()
        super().die(code, signal)

    def terminate(self) -> None:
        """SIGTERM: one does not hear it, another ends well of it, most die."""
        if self._stays:
            return
        if self.world.random.random() < 0.5:
            self.world.after(0.3, lambda: self.die(0, None))
        else:
            self.die(None, 15)


class Shell(Process):
    """`sh -c`: it ends as what it runs, or of SIGTERM at once, and passes nothing on."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.trainer: Trainer | None = None


class Trainer(Process):
    """One incarnation. `given` is the snapshot it was told to resume from."""

    def __init__(self, world: "World", incarnation: int, given: str | None, shell: Shell | None) -> None:
        super().__init__(world)
        self.incarnation = incarnation
        self.last_step = world.last_step
        self.given = given
        self.shell = shell
        self.resumed: int | None = None
        self.uses: str | None = None
        self.origin: File | None = None
        self.step = 0
        self.asked = False
        self.stalled = False
        self.deaf = False
        self.ignores = False
        self.ignored_step = 0
        self.diverging = 0
        self.bad_losses = 0
        self.skipping: int | None = None
        self.finished = False
        self.saving: File | None = None
        self.saves_since = 0.0
        self.last_words = ""
        self.print: Callable[[int, float | None], None] | None = None
        self._looped = False
        self._failures = 0
        self.heard = 0
        self.garbled = False
        """Whether it has printed a line of garbage, after which `heard` counts anew."""
        self._pace = 1.0 + 2.0 * world.random.random()
        self._in_save = False
        world.after(0.5 + 3.0 * world.random.random(), self._load)

    # -- dying --------------------------------------------------------------------------------------------------------

    def die(self, code: int | None, signal: int | None) -> None:
        """End; what was being saved stays as far as it got."""
        if not self.alive:
            return
        if self._in_save:
            self.world.meet("torn-save")
            self.world.disk.partials += 1
        if code:
            print_garbage(self, 1.0)
        super().die(code, signal)
        self.world.promises.died(self._looped and not self.world.asked_to_stop)
        if self.shell is not None:
            self.shell.die(code if signal is None else 128 + signal, None)

    def terminate(self) -> None:
        """SIGTERM."""
        if not self.alive:
            return
        if self.deaf:
            self.world.meet(Fault.DEAF)
        elif self.world.plan.style is not Style.SEALED or self.step == 0:
            self.die(None, 15)
        else:
            self.asked = True

    # -- living -------------------------------------------------------------------------------------------------------

    def _soon(self, seconds: float, act: Callable[[], None]) -> None:
        self.world.after(seconds, lambda: act() if self.alive else None)

    def _load(self) -> None:
        if not self.alive:
            return
        world = self.world
        if world.take(Fault.USAGE):
            world.refused_usage = True
            self.die(2, None)
            return
        if self.stalled:
            return
        plan, disk = world.plan, world.disk
        if plan.resume == "never":
            found: File | None = None
        elif disk.is_away():
            self.die(1, None)
            return
        elif plan.resume == "self":
            found = disk.newest(lambda file: True)
        else:
            found = disk.files.get(self.given or "")
            if found is None and self.given is not None:
                self.die(1, None)
                return
        if found is not None and not self._take(found):
            self.die(1, None)
            return
        print_garbage(self, GARBAGE_SHARE)
        self._soon(self._pace, self._tick)

    def _take(self, found: File) -> bool:
        """Load a snapshot, or one that is older; whether that could be done."""
        world = self.world
        if world.plan.style is Style.SEALED:
            return self._take_verified(found)
        if not world.disk.is_readable(found) or found.size < SIZE:
            return False
        if world.take(Fault.IGNORE) and found.step > 0:
            self._ignore(found)
            return True
        self.resumed, self.uses, self.step = found.step, found.name, found.step
        self.origin = found
        return True

    def _take_verified(self, found: File) -> bool:
        """As the bundled trainer does: bytes first, and a note when it goes on from an older one."""
        world = self.world
        if Fault.FALL_BACK in world.armed and found.good and len(world.disk.files) > 1:
            world.take(Fault.FALL_BACK)
            world.harm(found)
        ladder = newest_first(world.disk.files.values())
        ladder = ladder[ladder.index(found) :]
        good = next((file for file in ladder if file.good and world.disk.is_readable(file)), None)
        if good is None:
            return False
        if good is not found:
            passed = ladder[: ladder.index(good)]
            rejected = tuple(PassedOver(file.name, "corrupt", "it differs from its seal") for file in passed)
            world.note(TrainerFellBack(self.incarnation, found.step, good.name, good.step, len(passed), rejected))
        if world.take(Fault.IGNORE) and good.step > 0:
            self._ignore(good)
            return True
        self.resumed, self.uses, self.step = good.step, good.name, good.step
        self.origin = good
        return True

    def _ignore(self, file: File) -> None:
        self.ignores, self.ignored_step = True, file.step
        self.world.ignored += 1

    def _tick(self) -> None:
        world = self.world
        if self.stalled:
            return
        if world.take(Fault.QUIET):
            for number in range(BEATS):
                self._soon(BEAT_SECONDS * number, world.beat)
            self._soon(BEAT_SECONDS * BEATS, self._tick)
            return
        self.step += 1
        world.trained_seconds += self._pace
        if world.loops and self.step > (self.resumed or 0) + 1:
            world.meet(Fault.DIE_ALONG if world.loops_along else Fault.CRASH_LOOP)
            self._looped = True
            self.die(1, None)
            if world.loops_along:
                world.die_along()
            return
        loss: float | None = 2.0
        if self.diverging or (world.diverges_at is not None and self.step >= world.diverges_at > (self.skipping or -1)):
            self.diverging = max(0, self.diverging - 1)
            loss = float("nan")
        if self.print is not None:
            self.print(self.step, loss)
            self.heard += 1
        self.bad_losses = self.bad_losses + 1 if loss != loss else 0
        if self.bad_losses == 2:
            world.meet(Fault.DIVERGE)
        if self.bad_losses >= 3:
            world.note(EndingNoted(self.incarnation, 65, self.step))
            self.die(65, None)
            return
        print_garbage(self, GARBAGE_SHARE)
        if self.asked or self.step >= self.last_step or self.step % world.plan.save_every == 0:
            self._save()
        else:
            self._soon(self._pace, self._tick)

    def repeat(self) -> None:
        """Tell the step once more, and again and again."""
        if self.print is not None:
            self.print(self.step, 2.0)
        self._soon(self._pace, self.repeat)

    # -- saving -------------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        world = self.world
        if self.ignores and self.heard >= HEARD_MIN and self.ignored_step > HEARD_MIN:
            world.promises.ignored_for_long(self)
        self._in_save, self.saves_since = True, world.now
        try:
            world.disk.check(writing=True)
            if world.disk.is_short():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._failed(error)
            return
        if world.plan.style in (Style.IN_PLACE, Style.BARE):
            self.saving = world.disk.write(self._name, self.step, world.plan.style, SIZE // 3)
            world.hint(self._name)
        if world.plan.style is Style.SEALED:
            world.hint(self.partial)
        if world.take(Fault.DIE_SAVING):
            self._soon(0.3, lambda: self.die(None, 9))
        seconds = 0.2 + 2.0 * world.random.random()
        if world.take(Fault.SLOW_SAVE):
            seconds += 40.0 * seconds
        if world.take(Fault.STALL_SAVING):
            self.stalled = True
            return
        self._soon(seconds, self._saved)

    @property
    def saves_visibly(self) -> bool:
        """Whether there is a partial of this software's whose writer it is."""
        return self._in_save and self.world.plan.style is Style.SEALED

    @property
    def partial(self) -> str:
        """The name of what it writes before it has its own."""
        return f".{self._name}.partial-{self.identity.pid}-{self.step:08x}"

    @property
    def _name(self) -> str:
        return self.world.plan.name_of(self.step)

    def _saved(self) -> None:
        world, file = self.world, self.saving
        if world.disk.is_away() or (file is not None and world.disk.files.get(file.name) is not file):
            self._failed(OSError(5, "Input/output error"))
            return
        if file is None:
            file = world.disk.write(self._name, self.step, world.plan.style)
        else:
            world.disk.finish(file)
        self.saving, self._in_save, self._failures = None, False, 0
        file.after_bad_loss, file.made_of, file.made_at = self.bad_losses > 0, self.origin, world.now
        whole = file
        world.after(20.0, lambda: setattr(whole, "durable", True))
        world.hint(file.name)
        world.tell("saved", file.name)
        self._rotate()
        self._go_on()

    def _failed(self, error: OSError) -> None:
        world = self.world
        world.meet("save-failed")
        self._in_save, self.saving = False, None
        if error.errno == errno.ENOSPC:
            world.no_room = True
            self.last_words = f"OSError: [Errno {error.errno}] {error.strerror}"
        if world.plan.style is not Style.SEALED:
            self.die(1, None)
            return
        world.note(SaveFailed(self.incarnation, self.step, self._name, f"{error.strerror}", error.errno, True))
        self._failures += 1
        if self._failures >= SAVE_FAILURES_MAX:
            self.die(1, None)
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self.asked:
            self.die(143, None)
        elif self.step >= self.last_step and not self._goes_beyond():
            self._finish()
        else:
            self._soon(self._pace, self._tick)

    def _goes_beyond(self) -> bool:
        """Whether it was told to go on, and its supervisor will be in a while."""
        world = self.world
        if not world.take(Fault.RAISED_LATE):
            return False
        world.lengthen(10, self)
        world.after(0.5 + 13.0 * world.random.random(), world.raise_final_step)
        return True

    def _finish(self) -> None:
        self.finished = True
        self.world.finished_at = max(self.world.finished_at, self.step)
        if self.world.take(Fault.WILL_NOT_EXIT):
            self.stalled = True
            return
        self._soon(0.5, lambda: self.die(0, None))

    def _rotate(self) -> None:
        world = self.world
        if world.prunes:
            return
        for file in newest_first(world.disk.files.values())[ROTATED:]:
            if not file.rooted:
                del world.disk.files[file.name]
                world.hint(file.name)

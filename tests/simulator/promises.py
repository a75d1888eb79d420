"""What the supervisor promises, checked against the truth of the fake world. Each promise has a name; breaking one raises.

What nobody could know is no broken promise: damage done to a snapshot after it was last read.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lastgood.choose import newest_first
from lastgood.contract import RUN_FILE
from lastgood.verdict import Verdict
from supervisor.core.state import Phase
from supervisor.errors import ExitStatus
from supervisor.records import CATALOGUE
from supervisor.summary import phase_shown
from tests.simulator.disk import File
from tests.simulator.plan import Fault
from tests.simulator.processes import Trainer

if TYPE_CHECKING:
    from tests.simulator.world import World

STOP_SECONDS = 120.0  # grace, a kill that takes effect, a sweep, and a look at the directory that is cut short
STOP_MARGIN_SECONDS = 120.0  # within which something else may have held it up
PAUSE_SECONDS = 110.0  # after which a pause must have come about
TURNS_MAX = 60_000
REREAD_SECONDS = 2.0  # by which a second reading may have begun before the start
IDLE_TURNS_MAX = 2_000  # in a row in which no time passes
SLOW_SECONDS = 60.0  # for which a look may take longer than that
TOLD_SECONDS = 3.0  # within which the status file tells a change
RESCAN_SECONDS = 30.0  # by which the disk is tried again
ORDER_SECONDS = 1.0  # by which what was ordered before a change of the settings is done
PRUNE_SECONDS = 200.0  # the same of a snapshot that was given up, on slow storage
ROLLBACKS = 3  # `divergence.rollbacks`
SPAN_SECONDS = 600.0  # as the core has it
SLACK_SECONDS = 200.0  # between a death and the decision about it
OURS = frozenset({"stopped", "stalled", "resume-ignored", "resume-refuted", "diverged", "completed", "chaos"})
"""Causes that say what the supervisor was about when the trainer died."""
CALLED_OFF = "it was called off before it began"
WAIT_SECONDS = 60.0  # within which a start follows when nothing stands in its way any more
GUARDED = (Fault.SHORT, Fault.GPU_LOST, Fault.GPU_BUSY)
WAITS = {"disk.low": Fault.SHORT, "gpu.lost": Fault.GPU_LOST, "gpu.busy": Fault.GPU_BUSY}
OVER = frozenset({"disk.freed", "gpu.back"})
"""Records that say what a start waits for, and those that say it no longer does."""
CALLS_OFF = frozenset(
    {"trainer.asked_to_stop", "trainer.grace_over", "trainer.stalled", "resume.ignored", "resume.refuted"}
)
"""Records after which an incarnation is not started any more."""
OF_TRAINERS = frozenset({"trainer.progressed", "trainer.stalled", "trainer.diverged", "resume.ignored"})
"""Records about what only a trainer does."""
END_STATUSES = frozenset({0, 2, 3, 4, 5, 130, 143})


PROMISES = frozenset(
    {
        "never two trainers",
        "a snapshot is known once",
        "never from a bad snapshot",
        "the newest good one",
        "never start over in silence",
        "good ones stay",
        "one record a fallback",
        "records are documented",
        "the cause named is the real one",
        "a start waits for room and GPU",
        "a wait ends",
        "only promised ends",
        "nothing left alive",
        "never give up while it progresses",
        "never loop without progress",
        "chaos spends nothing",
        "a resume that is ignored is seen",
        "a trainer that goes on is left alone",
        "a save has its own deadline",
        "a stop is heeded",
        "a pause is heeded",
        "the loop sleeps",
        "what is done stays done",
        "what runs before is no trainer",
        "what was called off is not started",
        "the status file tells the truth",
        "progress after the storm",
        "the invariants hold",
    }
)
"""What can be broken, by name."""


class BrokenError(AssertionError):
    """A promise was broken."""

    def __init__(self, promise: str, detail: str) -> None:
        assert promise in PROMISES
        super().__init__(f"{promise}: {detail}")


class Promises:
    """The checks, called by the world as things happen, and what they must remember."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.allow_fresh = False
        self.proven_ever = False
        self._proven: list[tuple[float, int, int, bool]] = []
        self.high_water: int | None = None
        self._own_high_water = -1
        """The same of what trainers are sure to have written; the other may have been brought in by what runs before them."""
        self.progressed_ever = False
        self._progressed_perhaps = False
        self.deaths: list[float] = []
        """Times of deaths since the run last progressed."""
        self.loop_deaths: list[float] = []
        """Those of a trainer that dies at every start, and nobody asked."""
        self.spawns = 0
        self.suspects: set[tuple[str, int]] = set()
        """Names and times of snapshots that the supervisor said it suspects: an older one may be tried."""
        self.above: int | None = None
        """Snapshots of later steps may be passed over once: the supervisor said that the run had diverged after it."""
        self.trusted: File | None = None
        """What the last trainer was started from without a look at its bytes, until they were read again."""
        self.idle_since = -1.0
        """Since when no trainer has lived."""
        self._refuted: list[File] = []
        self._unclear: list[File] = []
        self._reread_early: File | None = None
        self._started_at = -1.0
        self._held: list[tuple[float, int, int, bool]] = []
        self._prepares = False
        """Whether an incarnation has begun whose trainer is not started yet."""
        self._called_off: set[int] = set()
        self._pause_due = float("inf")
        """From when on no trainer may be started or live in a pause."""
        self._may_pause = False
        """Whether a pause was wanted in this supervisor's life, or could not be told from none."""
        self._silence = 0.0
        """The longest of the deadlines that a save replaces, in all settings so far."""
        self._limit = 0
        """`restarts.without_progress`, the highest so far."""
        self._untrue_since: float | None = None
        self._truth: tuple[str, int] | None = None
        self._waited_until: float | None = None
        self._resumed_at = -1.0
        self._in_the_way: dict[Fault, float | None] = {}
        """Of what stands in the way of a start: until when, as the last look found; None where nothing did."""
        self._failure = ""
        self._forerunner: int | None = None
        """The supervisor that wrote run.json last when the present one began."""
        self.refusals = 0
        """How often a snapshot could not be set aside, in this supervisor's life."""
        self._fallbacks: list[Mapping[str, Any]] = []
        self._moved: list[File] = []
        self._turns = 0
        self._idle_turns = 0
        self._turned_at = -1.0

    def keep(self, promise: str, kept: bool, detail: str) -> None:
        """Raise when a promise is broken."""
        if not kept:
            raise BrokenError(promise, detail)

    def wish_is_late(self) -> None:
        """The storage does not tell a supervisor what is wanted, which may be a pause."""
        self._may_pause = True

    # -- a supervisor's life ------------------------------------------------------------------------------------------

    def began(self, allow_fresh: bool) -> None:
        """A supervisor was started; what an earlier one was about to do is forgotten."""
        self.allow_fresh = allow_fresh
        self._fallbacks, self._moved = [], []
        self._proven = []
        self._forerunner = self._world.told_supervisor
        wanted_to_end = self._world.disk.told_wish in ("pause", "stop")
        if wanted_to_end or self._forerunner in self._world.announced:
            self.loop_deaths = self.loop_deaths[:-1]  # the last one may have been that of both, and spends nothing
        self._prepares, self._called_off = False, set()
        self._untrue_since = None
        self._may_pause = self._world.disk.wish_hidden_until > self._world.now
        if self._world.pauses:
            self.pause_wanted(self._world.now)
        self._turns = self.refusals = 0
        self._in_the_way, self._waited_until = {}, None
        self.idle_since = self._world.now

    def turned(self) -> None:
        """The loop has come round."""
        world = self._world
        self._turns += 1
        self._take_in()
        self._idle_turns = self._idle_turns + 1 if world.now - self._turned_at < 1e-4 else 0
        self._turned_at = world.now
        self.keep("the loop sleeps", self._idle_turns < IDLE_TURNS_MAX, f"{self._idle_turns} turns without time")
        self.keep("the loop sleeps", self._turns < TURNS_MAX, f"{self._turns} turns")
        trainers = [one for one in world.living if isinstance(one, Trainer)]
        self.keep("never two trainers", len(trainers) <= 1, f"{len(trainers)} live")
        assert world.runtime is not None
        state = world.runtime._state
        names = [rung.name for rung in state.rungs]
        self.keep("a snapshot is known once", len(names) == len(set(names)), f"{names}")
        heard = self._prepares and state.phase is Phase.RUNNING
        self.keep("what runs before is no trainer", not heard, "the phase is running")
        self._check_status((str(phase_shown(state)), state.incarnation))

    def _check_status(self, truth: tuple[str, int]) -> None:
        """What the file says is true, or was a moment ago, unless the disk does not let itself be written."""
        world = self._world
        told = (world.status.get("phase"), world.status.get("incarnation"))
        if told == truth:
            self._untrue_since = None
            return
        if self._untrue_since is None or truth != self._truth:
            self._untrue_since, self._truth = world.now, truth
        since = max(self._untrue_since, world.status_failed_at + RESCAN_SECONDS, world.paused_until)
        self.keep("the status file tells the truth", world.now - since < TOLD_SECONDS, f"{told}, and it is {truth}")

    def configured(self) -> None:
        """The supervisor goes by other settings."""
        known = self._world.known
        self._silence = max(self._silence, known.startup_seconds, known.running_seconds)
        self._limit = max(self._limit, known.without_progress)

    def recorded(self, event: str, fields: Mapping[str, Any], incarnation: int) -> None:
        """A record was written."""
        self.keep("records are documented", event in CATALOGUE, event)
        expected = set(CATALOGUE[event].fields)
        self.keep("records are documented", set(fields) == expected, f"{event}: {sorted(set(fields) ^ expected)}")
        self._check_order(event, fields, incarnation)
        self._check_spent(event, fields)
        self._check_end(event, fields)
        if event == "fallback.chosen" and fields["by"] == "supervisor":
            self._fallbacks.append(fields)
        elif event == "run.started_over":
            self.high_water, self.proven_ever, self._own_high_water = None, False, -1
        elif event == "snapshot.rejected" and fields["verdict"] == "poisoned":
            self.suspects = {one for one in self.suspects if one[0] != fields["name"]}
        elif event == "snapshot.rejected" and (file := self._world.disk.files.get(fields["name"])) is not None:
            file.told_bad_at = self._world.now
        elif event == "snapshot.suspected":
            self.suspects |= {(f.name, f.mtime_ns) for f in self._world.disk.files.values() if f.name == fields["name"]}
        elif event == "snapshot.put_back":
            self.suspects = {one for one in self.suspects if one[0] != fields["name"]}
        elif event == "trainer.diverged":
            self.above = fields["finite_step"]
        elif event in ("resume.confirmed", "resume.refuted"):
            self._reread(event == "resume.confirmed", fields)
        elif event == "trainer.progressed":
            self.keep("never from a bad snapshot", self.trusted is None, "progress of a trainer started on trust")
        elif event == "run.failed":
            self._failure = fields["reason"]
        if event == "fallback.chosen" and fields["by"] == "trainer" and self.trusted is not None:
            noticed = any(one["name"] == self.trusted.name for one in fields["rejected"])
            self.trusted = None if noticed else self.trusted
            self._let_go()

    def _check_order(self, event: str, fields: Mapping[str, Any], incarnation: int) -> None:
        """What somebody ordered, and what is said of an incarnation whose trainer has not been started."""
        self.keep("what runs before is no trainer", not self._prepares or event not in OF_TRAINERS, event)
        if event in CALLS_OFF:
            self._called_off.add(incarnation)
        elif event == "run.paused":
            self.keep("a pause is heeded", self._may_pause, "it paused, and nobody had asked")
        elif event == "supervisor.reloaded":
            self._world.reloaded(fields["changed"])
        elif event == "trainer.exited":
            self._prepares = False

    def _reread(self, confirmed: bool, fields: Mapping[str, Any]) -> None:
        """The supervisor says what a second reading has shown."""
        name = fields["name"]
        disk = self._world.disk
        found, self.trusted = self.trusted, None
        if found is None:  # the reading was faster than the start
            found = self._reread_early = disk.files.get(name)
        stale = self._world.memory_is_stale
        if found is None or found.name != name:
            self.keep("never from a bad snapshot", found is None or stale, f"{name} was not on trust")
            return
        if confirmed:
            long_bad = self._could_be_known_bad(found) and found.harmed_at < self._started_at - REREAD_SECONDS
            there = disk.files.get(name) is found
            self.keep("never from a bad snapshot", not (there and long_bad), f"{name} confirmed")
            self._let_go()
            return
        self.keep("good ones stay", not found.good or fields["verdict"] == "unreadable", f"{name} refuted")
        self._held = []
        there_now = (*disk.files.values(), *disk.quarantine)
        since = [one for one in there_now if one.made_at >= self._started_at]
        self._refuted += [one for one in since if one.made_of is found]
        self._unclear += [one for one in since if one.brought]  # it may have been made of them as well

    def _let_go(self) -> None:
        if self.trusted is None:
            self._proven += [(self._world.now, step, spawns, sure) for _, step, spawns, sure in self._held]
            self._held = []

    def _check_spent(self, event: str, fields: Mapping[str, Any]) -> None:
        lost = event in ("restart.scheduled", "restart.refused") and fields["cause"] == "supervisor-lost"
        announced = self._forerunner in self._world.announced
        self.keep("chaos spends nothing", not (lost and announced), f"supervisor {self._forerunner} was to be killed")

    def verdict(self, file: File, verdict: Verdict) -> None:
        """A snapshot was read whole, and judged. That is known once the loop has come round."""
        if verdict.proven and not file.after_bad_loss:
            known = self._proven if self.trusted is None else self._held
            sure = not file.brought and not self._prepares
            known.append((self._world.now, file.step, self.spawns, sure))

    def _take_in(self) -> None:
        for at, step, spawns, sure in self._proven:
            self.proven_ever = True
            if step > self._own_high_water:  # what was brought may have been taken for progress, or not
                self.loop_deaths = []
                self._progressed_perhaps = self._progressed_perhaps or spawns > 0
                self._own_high_water = step if sure else self._own_high_water
            if step > (-1 if self.high_water is None else self.high_water):
                self.high_water = step
                if sure:
                    self.deaths = [death for death in self.deaths if death >= at]
                    self.progressed_ever = self.progressed_ever or spawns > 0
        self._proven = []

    def is_ahead_of_memory(self) -> bool:
        """Whether a snapshot was proven that run.json does not know of: the power was cut in the moment between."""
        noted = json.loads(self._world.disk.texts.get(RUN_FILE, "{}")).get("high_water")
        return self.high_water is not None and (noted is None or noted < self.high_water)

    def died(self, in_loop: bool = False) -> None:
        """An incarnation ended, or could not be started."""
        self.deaths.append(self._world.now)
        self.idle_since = self._world.now
        if in_loop and not self._world.dead:
            self.loop_deaths.append(self._world.now)

    def stop_is_due(self, supervisor: int) -> None:
        """The time is up in which a supervisor that was asked to stop must have ended."""
        world = self._world
        excused = world.dead or world.supervisor != supervisor or world.paused_until > world.now - STOP_MARGIN_SECONDS
        held = any(one.kept_until > world.now - STOP_MARGIN_SECONDS for one in world.processes)
        self.keep("a stop is heeded", excused or held, "it was asked to stop, and still runs")

    def pause_wanted(self, due: float) -> None:
        """A pause is wanted, and no trainer may be started once it is due."""
        world, supervisor = self._world, self._world.supervisor
        self._pause_due, self._may_pause = due, True
        world.after(STOP_SECONDS, lambda: self.pause_is_due(supervisor))

    def _is_pause_due(self) -> bool:
        return self._world.pauses and self._pause_due <= self._world.now

    def pause_is_due(self, supervisor: int) -> None:
        """The time is up in which a trainer must have made room for a pause."""
        world = self._world
        excused = world.dead or world.supervisor != supervisor or world.paused_until > world.now - STOP_MARGIN_SECONDS
        held = any(one.kept_until > world.now - STOP_MARGIN_SECONDS for one in world.processes)
        made = not self._is_pause_due() or excused or held or not world.living
        self.keep("a pause is heeded", made, "it was asked to pause, and a trainer still runs")

    def _check_stall(self, stage: str) -> None:
        world, trainer = self._world, self._world.trainer
        if trainer is not None and world.now - trainer.saves_since < 2 * self._silence:
            disk = world.disk
            if max(disk.slow_until + SLOW_SECONDS, disk.away_until, world.paused_until) > trainer.saves_since:
                return  # nobody could see the save
        if trainer is not None and trainer.saves_visibly:
            since = trainer.saves_since
            right = stage == "saving" or world.now <= since + self._silence
            self.keep("a save has its own deadline", right, f"it was called stalled in {stage}")
        lives = trainer is not None and not trainer.stalled and trainer.print is not None and not trainer.finished
        self.keep("a trainer that goes on is left alone", not lives, "it was called stalled")

    def ends(self, stage: str) -> None:
        """A trainer is about to be killed for what it was silent about."""
        world = self._world
        final, since = world.known.final_step, max(world.known_at, world.paused_until)
        told_before = world.now - since < ORDER_SECONDS
        over = stage != "exit" or self._has_reached(final) or told_before
        self.keep("a trainer that goes on is left alone", over, f"it was ended as finished, and is to reach {final}")

    def _check_end(self, event: str, fields: Mapping[str, Any]) -> None:
        """Why a trainer is ended, or has ended."""
        if event == "trainer.stalled":
            self._check_stall(fields["stage"])
        elif event == "trainer.exited":
            self._check_cause(fields["cause"])

    def _check_cause(self, named: str) -> None:
        """What a trainer died of is said, unless the supervisor was about to end it."""
        real = self._world.cause
        of_machine = self._bears_marks(named)
        unseen = real == "gpu-fault" and named == "crashed" and not self._bears_marks(real)
        right = named == real or (real == "killed" and named == "crashed" and self._world.plan.shell)
        known = right or of_machine or unseen or real is None or named in OURS
        self.keep("the cause named is the real one", known, f"{named}, and it was {real}")
        made_up = named == "out-of-memory" and real != named
        made_up = made_up or (named in ("out-of-disk", "gpu-fault") and not of_machine)
        self.keep("the cause named is the real one", not made_up, f"{named}, and it was {real}")

    def _bears_marks(self, named: str) -> bool:
        """Whether the machine, as it was looked at, says what a death is put down to."""
        low = self._in_the_way.get(Fault.SHORT) is not None and self._world.no_room
        lost = self._in_the_way.get(Fault.GPU_LOST) is not None
        return (named == "out-of-disk" and low) or (named == "gpu-fault" and lost)

    def looked_for(self, what: Fault, until: float | None) -> None:
        """The supervisor has looked for something that may stand in the way of a start; `until` is when it is over."""
        self._in_the_way[what] = until
        if until is not None:
            self._waited_until = max(until, self._waited_until or until)

    def waits(self, event: str, fields: Mapping[str, Any]) -> None:
        """A record was written that may say what a start waits for, or that it no longer does."""
        world, what = self._world, WAITS.get(event)
        if not world.living and what is not None:
            world.meet(what)
        if event == "trainer.exited" and CALLED_OFF in fields["last_lines"]:
            self._fallbacks, self._moved = [], []  # that start was decided, and the next one is decided anew
        if event == "run.resumed":
            self._resumed_at = world.now
        if event in OVER and (over := self._waited_until) is not None:
            held_up = (world.healed_at, world.disk.slow_until, world.disk.away_until, world.paused_until)
            excuse = max(over, self._resumed_at, *held_up)
            self.keep("a wait ends", world.now - excuse < WAIT_SECONDS, f"{world.now - excuse:.0f} s after its reason")

    def ignored_for_long(self, trainer: Trainer) -> None:
        """A trainer that ignored its snapshot has said so with several steps, and is about to save."""
        world = self._world
        excused = world.dead or world.asked_to_stop or world.paused_until > world.now - STOP_MARGIN_SECONDS
        brought = world.brought_at >= self._started_at  # judged late, it is taken for the trainer's
        held = trainer.kept_until > world.now or brought
        held = held or world.notes_late_until >= self._started_at  # it may have noted that it found the snapshot bad
        self.keep("a resume that is ignored is seen", excused or held, f"incarnation {trainer.incarnation} saves")

    # -- what has teeth -----------------------------------------------------------------------------------------------

    def started(self, name: str | None) -> None:
        """A trainer is about to be started from a snapshot, or fresh."""
        world = self._world
        self.spawns += 1
        alive = [one.identity.pid for one in world.living]
        self.keep("never two trainers", not alive, f"a start while {alive} live")
        self._check_loop()
        blocked = [str(one) for one in GUARDED if self._in_the_way.get(one, 0.0) is not None]
        self.keep("a start waits for room and GPU", not blocked, f"a start in spite of {blocked}")
        self._in_the_way, self._waited_until = {}, None
        self._check_pause()
        resolved = self.trusted is None or world.memory_is_stale
        self.keep("never from a bad snapshot", resolved, "a start, and the last one's bytes were not read again")
        self.trusted = None
        if world.plan.resume != "never":
            self._check_choice(None if name is None else self._found(name))
            file = world.disk.files.get(name or "")
            early, self._reread_early = self._reread_early, None
            self.trusted = file if file is not None and file is not early and self._is_on_trust(file) else None
        self._fallbacks, self._moved, self.above = [], [], None
        self._started_at = world.now

    def prepares(self) -> None:
        """Something is started before the trainer."""
        self._prepares = True

    def goes_on(self, incarnation: int) -> None:
        """The trainer itself is about to be started."""
        world = self._world
        self._prepares = False
        alive = [one.identity.pid for one in world.living]
        self.keep("never two trainers", not alive, f"a start while {alive} live")
        called_off = incarnation in self._called_off
        self.keep("what was called off is not started", not called_off, f"incarnation {incarnation}")
        self._check_pause()

    def _check_pause(self) -> None:
        due = self._is_pause_due() and self._world.paused_until <= self._world.now - 10.0
        self.keep("a pause is heeded", not due, "a start in a pause")

    def _is_on_trust(self, file: File) -> bool:
        """Whether a start does without reading the bytes, which run.json must know by now."""
        noted = self._noted_trust() is not None
        unread = file.read_at <= self.idle_since
        known = noted or not unread or self._world.memory_is_stale
        self.keep("never from a bad snapshot", known, f"{file.name} was not read, and run.json does not know that")
        return noted or unread

    def _noted_trust(self) -> Any:
        return json.loads(self._world.disk.texts.get(RUN_FILE, "{}")).get("trust")

    def _is_being_reread(self, file: File) -> bool:
        """Whether a reading that is meant to go on beside the trainer was a moment earlier, and is not told yet."""
        noted = self._noted_trust()
        return noted is not None and noted["name"] == file.name and self._world.now - file.read_at < REREAD_SECONDS

    def _check_loop(self) -> None:
        """Deaths without progress end the run: at once if it never progressed, else when they span long enough."""
        deaths = self.loop_deaths
        if len(deaths) <= self._limit or self._world.memory_is_stale:
            return
        span = deaths[-1] - deaths[0]
        lost = SLACK_SECONDS * (1 + self._world.boot)  # of the time that passed while a machine was down, nobody knows
        endless = span > SPAN_SECONDS + lost or not self._progressed_perhaps
        self.keep("never loop without progress", not endless, f"{len(deaths)} deaths in {span:.0f} s")

    def _found(self, name: str) -> File:
        file = self._world.disk.files.get(name)
        self.keep("never from a bad snapshot", file is not None, f"{name} is not there")
        assert file is not None
        return file

    def _could_be_known_bad(self, file: File) -> bool:
        return self._world.disk.shows_damage(file) and file.harmed_at <= file.read_at

    def _check_choice(self, file: File | None) -> None:
        best = self._best()
        if file is None:
            self.keep("never start over in silence", best is None, f"fresh although {best and best.name} is good")
            legal = self.allow_fresh or not self.proven_ever or self._world.memory_is_stale
            self.keep("never start over in silence", legal, "there were proven ones")
            return
        known_bad = self._could_be_known_bad(file) and not self._is_being_reread(file)
        self.keep("never from a bad snapshot", not known_bad, file.name)
        refuted = any(one is file for one in self._refuted) and not self._world.memory_is_stale
        self.keep("never from a bad snapshot", not refuted, f"{file.name} was made of bad bytes")
        newer = [one for one in self._above(file) if one.name in self._world.disk.seen]
        if best is not None:
            older = newest_first([best, file])[0] is best and best is not file
            self.keep("the newest good one", not older, f"{file.name} although {best.name} is good")
        self._check_record(file, newer)

    def _best(self) -> File | None:
        """The newest that was good and readable at the last look, and still is, and that nobody doubts for its bytes or else."""
        disk = self._world.disk
        return disk.newest(
            lambda file: (
                file.good
                and not self._is_doubted(file)
                and disk.is_readable(file)
                and disk.is_provable(file)
                and disk.seen.get(file.name) == (True, True)
            )
        )

    def _is_doubted(self, file: File) -> bool:
        """Whether the supervisor has said why it would not use a snapshot whose bytes are good."""
        poisoned = self.above is not None and file.step > self.above
        poisoned = poisoned or any(one is file for one in (*self._refuted, *self._unclear))
        return poisoned or (file.name, file.mtime_ns) in self.suspects

    def _above(self, file: File) -> list[File]:
        ladder = newest_first([*self._world.disk.files.values(), *self._moved])
        return ladder[: ladder.index(file)]

    def _check_record(self, file: File, newer: list[File]) -> None:
        """One record a fallback, and it tells the truth."""
        moved = [one for one in self._moved if newest_first([one, file])[0] is one]
        passed = len({one.name for one in [*newer, *moved]})
        told = [one for one in self._fallbacks if one["chosen"] == file.name]
        covered = {one["name"] for said in self._fallbacks for one in said["rejected"]}
        gone_before = not newer and covered.issuperset(
            one.name for one in moved
        )  # and then another could be read again
        kept = len(told) == (passed > 0) or (not told and gone_before)
        self.keep("one record a fallback", kept, f"{len(told)} records, {passed} passed by {file.name}")
        if told:
            said = (told[0]["chosen_step"], told[0]["depth"])
            right = said == (file.step, passed) or len(self._fallbacks) > 1
            self.keep("one record a fallback", right, f"step and depth are {said}, {passed} passed by {file.name}")

    def set_aside(self, file: File) -> None:
        """A snapshot goes into quarantine."""
        provably_good = file.good and self._world.disk.is_provable(file) and self._world.disk.is_readable(file)
        provably_good = provably_good and not self._is_doubted(file)
        self.keep("good ones stay", not provably_good, f"{file.name} was set aside and is good")
        self._moved.append(file)

    def _is_believed(self, file: File) -> bool:
        """Whether it is good, or its damage cannot be told, or came after it was last said to be bad."""
        return not self._world.disk.shows_damage(file) or file.told_bad_at < file.harmed_at

    def pruned(self, file: File) -> None:
        """Retention takes a snapshot."""
        world = self._world
        self.keep("good ones stay", self.trusted is None, f"{file.name} was pruned while a trainer runs on trust")
        recent = [world.known_before] if world.now - world.known_at < PRUNE_SECONDS else []
        configs = [world.known, *recent]
        keep = min(3 if one.keep is None else one.keep for one in configs)
        self.keep("good ones stay", world.prunes, f"{file.name} was pruned from a trainer that rotates its own")
        believed = [one for one in newest_first(world.disk.files.values()) if self._is_believed(one)]
        newest = [one.name for one in believed[:keep]]
        self.keep("good ones stay", file.name not in newest, f"{file.name} was pruned, kept are {newest}")
        on_schedule = all(one.every and file.step % one.every == 0 for one in configs)
        self.keep("good ones stay", not on_schedule, f"{file.name} is on schedule")
        trainer = world.trainer
        in_use = trainer is not None and trainer.uses == file.name
        in_use = in_use and not (file.brought and world.plan.resume == "self")  # nobody saw that it found it
        self.keep("good ones stay", not in_use, f"{file.name} is in use")

    # -- ends ---------------------------------------------------------------------------------------------------------

    def ended(self, status: int) -> None:
        """The supervisor has ended by itself."""
        world = self._world
        self._take_in()
        told = world.status.get("exit_status") == status or world.disk.is_away() or world.disk.is_full()
        self.keep("the status file tells the truth", told, f"{world.status.get('exit_status')}, and it was {status}")
        self.keep("only promised ends", status in END_STATUSES, f"status {status}")
        alive = [one for one in world.living if world.now >= one.kept_until]
        self.keep("nothing left alive", not alive, f"{[one.identity.pid for one in alive]}")
        if world.living:
            self.keep("nothing left alive", status in (130, 143), f"status {status} while some will not die")
        if status in (130, 143):
            self.keep("only promised ends", world.asked_to_stop, "stopped, and nobody had asked")
        elif status == ExitStatus.COMPLETED:
            final = world.known.final_step
            ended_well = world.finished_at >= (0 if final is None else final)
            done = ended_well or (final is None and world.ended_early) or self._has_reached(final)
            self.keep("only promised ends", done, "completed, and no trainer had finished")
        elif status == ExitStatus.USAGE:
            self.keep("only promised ends", world.refused_usage, "usage, and no trainer had said so")
        elif status == ExitStatus.NO_HEALTHY_SNAPSHOT:
            self._check_nothing_good()
        elif status == ExitStatus.BUDGET_SPENT:
            self._check_budget()
        elif status == ExitStatus.CANNOT_CONTINUE:
            self._check_software()

    def _has_reached(self, final: int | None) -> bool:
        """Whether there was a proven snapshot of the final step, whoever was stopped after it; or there is one that looks so."""
        there = max((one.step for one in self._world.disk.files.values()), default=-1)
        return final is not None and max(there, -1 if self.high_water is None else self.high_water) >= final

    def _check_nothing_good(self) -> None:
        world = self._world
        doubted = [one.name for one in world.disk.quarantine if one.good and (one.name, one.mtime_ns) in self.suspects]
        forgotten = world.memory_is_stale or "permission" in self._failure or "set aside" in self._failure
        self.keep("only promised ends", forgotten or not doubted, f"nothing healthy, but {doubted} only suspected")
        self.keep("only promised ends", world.disk.ever_held, "no healthy snapshot, and there never was one")
        excused = self.refusals > 0 if "set aside" in self._failure else "permission denied" in self._failure
        best = self._best()
        self.keep("only promised ends", excused or best is None, f"no healthy snapshot, but {best and best.name} is")

    def _check_software(self) -> None:
        world = self._world
        if not self._failure.startswith("software"):
            self.keep("only promised ends", world.ignored > 0, f"{self._failure}, and no trainer had")
            return
        self.keep("never give up while it progresses", len(self.deaths) >= 3, f"{len(self.deaths)} deaths")
        names = {name for name, _ in self.suspects}
        left = [one.name for one in world.disk.quarantine if one.name in names and one.name not in world.disk.files]
        self.keep(
            "good ones stay",
            not left or world.disk.is_away() or world.memory_is_stale,
            f"{left} are still set aside and nobody doubts them",
        )

    def _check_budget(self) -> None:
        world = self._world
        if self._failure.startswith("the loss"):
            self.keep("only promised ends", world.met["diverges"] > ROLLBACKS, self._failure)
            return
        count = len(self.deaths)
        self.loop_deaths = []
        spent = count >= world.known.without_progress
        self.keep("never give up while it progresses", spent, f"gave up after {count} deaths")
        if self.progressed_ever and not world.memory_is_stale:
            span = self.deaths[-1] - self.deaths[0]
            self.keep(
                "never give up while it progresses", span >= SPAN_SECONDS - SLACK_SECONDS, f"gave up after {span:.0f} s"
            )

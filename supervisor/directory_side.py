"""The runtime's hands on the checkpoint directory: look, judge, seal, set aside, prune."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from supervisor import shelf_side
from supervisor.adapters import places
from supervisor.adapters.verifier import Verifier
from supervisor.adapters.watcher import Watcher
from supervisor.arrivals import Saves
from supervisor.core import events as e
from supervisor.hindrances import Hindrances
from supervisor.hints import ALL_SECONDS, NEVER, Depth, Hints
from supervisor.mailbox import Act, Mailbox, Worker
from supervisor.settings import Settings
from supervisor.trainer_side import Post, Say

RESCAN_SECONDS_MIN = 0.1
LOOK_SECONDS_MIN = 0.01
START_SECONDS = 1.0  # from a start, before which the newest were judged, until the others are
LOOKS_A_SILENCE = 4


class DirectorySide:
    """One run's directory. Methods are for the loop's thread; the verifier is used by the judging thread alone."""

    def __init__(
        self, settings: Settings, directory: str, verifier: Verifier, mailbox: Mailbox, post: Post, say: Say
    ) -> None:
        self._directory = directory
        self._verifier = verifier
        self._mailbox = mailbox
        self._post = post
        self._say = say
        self._worker = Worker("judge", mailbox)
        self._saves = Saves(directory, post, self._tell)
        verifier.arrivals.tell = self._tell_arrival
        self._hints = Hints(settings.pattern, mailbox, self._saves.notice)
        self._set_pace(settings)
        self._looking = False
        self._rescan_at = 0.0
        self._doubts = False  # of the judging thread: something may have happened of which nobody told
        self._incarnation = 0  # the last one that was looked for
        self.hindrances = Hindrances(settings, directory)
        self._arrived = self._told_low = False
        self._found = self._heard = 0  # bad news: those the judging thread has found, and those the loop has been told
        self._is_ours = True
        self._rescans = False  # what is done at a rescan waits to be done
        self.at_rescan: Act = _nothing
        """Done at each rescan, in the judging thread."""
        self.is_here: Callable[[], bool] = lambda: True
        """Whether the directory is where it was; what else may be in its place is not looked into."""
        self._shelf = shelf_side.made_for(settings, directory, verifier, mailbox, post, say)
        self._watcher = Watcher(directory, self._hints.hear)
        self.watching = self._watcher.state
        """How new files are learnt of, in words."""

    def change(self, settings: Settings, incarnation: int | None) -> None:
        """Look as often as other settings ask for, and at once: nobody may know yet of a save that goes on.

        `incarnation` is that of the living trainer.
        """
        self._set_pace(settings)
        if incarnation is not None and self._is_ours:
            self._hints.deepen(Depth.LISTED)
            self._start_look(time.monotonic(), incarnation)
        self._rescan_at = min(self._rescan_at, time.monotonic() + self._rescan_seconds)

    def _set_pace(self, settings: Settings) -> None:
        often = settings.stall.running_seconds / LOOKS_A_SILENCE  # or a save would be taken for silence
        self._rescan_seconds = max(min(settings.checkpoints.rescan_seconds, often), RESCAN_SECONDS_MIN)
        self._hints.all_seconds = min(ALL_SECONDS, often)

    def let_go(self) -> None:
        """Move, seal and remove nothing from now on: it is all another supervisor's."""
        self._is_ours = False

    @property
    def due(self) -> float:
        """When it wants to be looked at next, in monotonic seconds."""
        return self._rescan_at if self._looking else min(self._hints.look_at, self._rescan_at)

    def look_when_due(self, incarnation: int | None) -> bool:
        """Look for arrivals when a hint, a settling file or the rescan asks for it, one look at a time.

        `incarnation` is that of the living trainer. Without one nothing arrives, and the next look at the ladder sees all
        there is. Returns whether this was the time of a rescan.
        """
        now = time.monotonic()
        if incarnation is not None and incarnation != self._incarnation:
            self._incarnation = incarnation
            self._hints.look_by(now + START_SECONDS)
        rescan = now >= self._rescan_at
        if rescan:
            self._rescan_at = now + self._rescan_seconds
            self._hints.rescan(now)
            if not self._rescans:
                self._rescans = True
                self._worker.submit(self._rescan)
        if now >= self._hints.look_at and not self._looking:
            self._hints.look_at = NEVER
            if incarnation is not None and self._is_ours:
                self._start_look(now, incarnation)
        return rescan

    def _rescan(self) -> None:
        self._rescans = False
        self._doubts = self._watcher.check() or self._doubts
        self.at_rescan()

    def _start_look(self, now: float, incarnation: int) -> None:
        self._looking = True
        hinted, depth = self._hints.take(now)
        self._worker.submit(lambda: self._look(hinted, depth, incarnation))

    def _look(self, hinted: frozenset[str], depth: Depth, incarnation: int) -> None:
        again: float | None = None
        try:
            if not self.is_here():
                raise FileNotFoundError(self._directory)
            whole, self._doubts = depth is Depth.ALL or self._doubts or not self._watcher.tells_all, False
            unseen = self._verifier.unseen(self._saves.notice) if depth is Depth.LISTED and not whole else ()
            written = self._saves.are_written(incarnation, whole)
            told, again = self._verifier.look(hinted, whole, unseen)
            self._saves.tell(incarnation, written or bool(self._verifier.unsettled))
            self._see_to_room(told)
            bad = [event for event in told if isinstance(event, e.SnapshotJudged) and _is_bad(event.rung)]
            self._found += len(bad)
            for event in told:
                self._post(event)
                if event in bad:
                    self._mailbox.hand(self._hear)
                if self._shelf is not None and isinstance(event, e.SnapshotJudged):
                    self._shelf.keep_copy(event.rung)
            self._saves.in_place(self._verifier.unsettled)  # last: what was judged is told, whatever becomes of this
        except OSError:
            self._doubts = True  # the directory may be back at the next rescan; the trainer will say if it cannot write
        self._mailbox.hand(lambda: self._looked(again))

    def _looked(self, again: float | None) -> None:
        self._looking = False
        if again is not None:
            self._hints.look_by(time.monotonic() + max(again, LOOK_SECONDS_MIN))

    def judge_ladder(self, passing: frozenset[str] = frozenset(), above: int | None = None) -> None:
        """Read the directory; tells LadderJudged or LadderUnreadable. No trainer lives: what is half-done is so for good."""
        self._hints.deepen(Depth.ALL)

        def work() -> None:
            if not self._is_ours:
                self._post(self._verifier.judge_ladder(passing, above))  # it ends by what it reads, and touches nothing
                return
            if not self.is_here():
                self._post(e.LadderUnreadable("it is gone, or not mounted"))
                return
            try:
                places.drop_orphaned_seals(self._directory)
                places.sweep(self._directory)
                if self._shelf is not None:
                    self._shelf.tidy()
            except OSError:
                pass  # the look that follows tells what is wrong with the directory
            waiting = frozenset(self._verifier.arrivals.waiting)
            told = self._verifier.judge_ladder(passing, above)
            self._tell_missed(told, waiting)
            if self._shelf is not None:
                told = self._shelf.settle(told, above, lambda: self._verifier.judge_ladder(passing, above))
            told = self._with_hindrance(told)
            if isinstance(told, e.LadderJudged) and any(map(_is_bad, told.rungs)):
                self._found += 1
                self._mailbox.hand(self._hear)  # before: what follows from a whole ladder may be pruned at once
            self._post(told)

        self._worker.submit(work)

    def _hear(self) -> None:
        self._heard += 1

    def _with_hindrance(self, told: e.LadderJudged | e.LadderUnreadable) -> e.LadderJudged | e.LadderUnreadable:
        """What was told, with what stands in the way of a start. Quarantine makes room for the next look."""
        if isinstance(told, e.LadderUnreadable):
            return told
        self.hindrances.sized(told.rungs)
        found = self.hindrances.find()
        self._told_low = found is not None and found.obstacle is e.Obstacle.DISK
        if self._told_low:
            self._make_room()
        return replace(told, hindrance=found)

    def _see_to_room(self, told: Iterable[e.Event]) -> None:
        """Say once when the save after the last arrival will not fit: at the next look, when retention has done its part."""
        if self._arrived:
            found = self.hindrances.low_disk()
            if found is not None and not self._told_low:
                self._make_room()
                found = self.hindrances.low_disk()
            if found is not None and not self._told_low:
                self._tell(found.obstacle, dict(found.fields))
            self._told_low = found is not None
        arrived = [event.rung for event in told if isinstance(event, e.SnapshotJudged)]
        self._arrived = bool(arrived)
        self.hindrances.sized(reversed(arrived))

    def _make_room(self) -> None:
        try:
            for gone in self.hindrances.make_room():
                self._tell("quarantine.trimmed", {"name": gone.name, "path": gone.path, "bytes": gone.bytes})
        except OSError:
            pass  # what is left of it goes the next time

    def _tell_arrival(self, name: str, step: int | None) -> None:
        self._tell("snapshot.appeared", {"name": name, "step": step})

    def _tell_missed(self, told: e.LadderJudged | e.LadderUnreadable, waiting: frozenset[str]) -> None:
        """Tell of what arrived between the last look and the trainer's death; before the first look nothing has arrived."""
        if isinstance(told, e.LadderJudged) and self._hints.looked_at:
            for rung in told.rungs:
                if rung.name in told.arrived - waiting:
                    self._tell_arrival(rung.name, rung.step)

    def _tell(self, event: str, fields: dict[str, Any]) -> None:
        """Write a record, from the judging thread."""
        self._mailbox.hand(lambda: self._say(event, fields))

    def reread(self, name: str, mtime_ns: int) -> None:
        """Read a snapshot again that was resumed from on trust; tells SnapshotReread."""

        def work() -> None:
            told = self._verifier.reread(name, mtime_ns)
            self._found += _is_bad(told.rung)
            self._post(told)
            if _is_bad(told.rung):
                self._mailbox.hand(self._hear)

        self._worker.submit(work)

    def seal(self, name: str) -> None:
        """Seal a snapshot that its writer outlived; tells SnapshotSealed."""

        def work() -> None:
            try:
                sealed = self._verifier.seal(name)
            except OSError:
                return  # an unsealed snapshot keeps its weaker verdict
            if sealed is not None:
                self._post(sealed)
                if self._shelf is not None:
                    self._shelf.keep_copy(sealed.rung)

        self._order(work)  # also the last one of a run that ends

    def after(self, act: Act) -> None:
        """Do something in the judging thread once all that was ordered before is done."""
        self._worker.submit(act)

    def set_aside(self, rung: e.RungFact, reason: str) -> None:
        """Move a rung into quarantine, with its copies on the shelf, and say so, or why not."""

        def work() -> None:
            for copy in [] if self._shelf is None else self._shelf.copies_of(rung):
                self._set_aside(copy, reason)
            self._set_aside(rung, reason)

        self._order(work)

    def _order(self, work: Act) -> None:
        """Have something done even if the end comes first, as long as the directory is ours."""
        self._worker.submit(lambda: work() if self._is_ours else None, must=True)

    def _set_aside(self, rung: e.RungFact, reason: str) -> None:
        fields = _fields(rung, reason=reason)
        digest = None if rung.verdict is None else rung.verdict.sha256
        try:
            path = places.set_aside(self._directory, rung.name, {**fields, "sha256": digest})
        except OSError as error:
            self._tell("snapshot.set_aside_failed", _fields(rung, reason=f"{error.strerror or error}"))
            return
        self._tell("snapshot.quarantined", {**fields, "path": path})

    def put_back(self, name: str, step: int | None) -> None:
        """Take a snapshot out of quarantine, and say so, or why not."""
        self._order(lambda: self._put_back(name, step))

    def _put_back(self, name: str, step: int | None) -> None:
        name = name if self._shelf is None else self._shelf.back_name(step) or name
        fields: dict[str, Any] = {"name": name, "step": step}
        try:
            places.put_back(self._directory, name)
        except OSError as error:
            self._tell("snapshot.put_back_failed", {**fields, "reason": f"{error.strerror or error}"})
            return
        self._tell("snapshot.put_back", fields)

    def prune(self, rung: e.RungFact) -> None:
        """Remove a rung, and say so, or why not; unless one was found to be bad that whoever orders this does not know of yet,
        and for which this one might be needed.
        """
        heard = self._heard
        self._order(lambda: self._prune(rung) if heard == self._found else None)

    def _prune(self, rung: e.RungFact) -> None:
        if rung.name in self._verifier.candidates.linked:
            self._tell("snapshot.prune_failed", _fields(rung, reason="a link leads to it"))
            return
        try:
            places.prune(self._directory, rung.name)
        except OSError as error:
            self._tell("snapshot.prune_failed", _fields(rung, reason=f"{error.strerror or error}"))
            return
        self._tell("snapshot.pruned", _fields(rung))

    def close(self, until: float | None = None) -> None:
        """Leave no thread."""
        self._worker.close(until)
        self._watcher.close()


def _is_bad(rung: e.RungFact) -> bool:
    return rung.verdict is not None and not rung.verdict.usable


def _nothing() -> None:
    """There is nothing to do."""


def _fields(rung: e.RungFact, **more: Any) -> dict[str, Any]:
    return {"name": rung.name, "step": rung.step, **more}

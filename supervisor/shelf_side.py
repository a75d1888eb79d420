"""The shelf's part in a run: keep a copy of each good save, and have the chosen snapshot in place before a trainer starts."""

import time
from collections.abc import Callable
from typing import Any

from lastgood.choose import choose
from lastgood.rungs import Rung
from supervisor.adapters import places
from supervisor.adapters.shelf import Copied, Shelf
from supervisor.adapters.verifier import Verifier
from supervisor.core import events as e
from supervisor.mailbox import Mailbox
from supervisor.settings import Settings
from supervisor.shelved import is_shelved, shelved_name
from supervisor.trainer_side import Post, Say

Told = e.LadderJudged | e.LadderUnreadable


class ShelfSide:
    """One run's file in place and its copies. Methods are for the judging thread, unless they say otherwise."""

    def __init__(
        self, settings: Settings, directory: str, verifier: Verifier, mailbox: Mailbox, post: Post, say: Say
    ) -> None:
        name = settings.preset.in_place
        assert name is not None
        self._directory = directory
        self._mailbox = mailbox
        self._post = post
        self._say = say
        self._shelf = Shelf(directory, name, settings.shelf_keep, verifier.candidates.is_ours, self._removed)

    def tidy(self) -> None:
        """Finish what a killed supervisor left half-done. No trainer lives. Raises OSError."""
        self._shelf.tidy()

    def keep_copy(self, rung: e.RungFact) -> None:
        """Keep a copy of the file in place if it is proven and has none, and say so, or why not."""
        if rung.verdict is None or not rung.verdict.proven or is_shelved(rung.name):
            return
        began = time.monotonic()
        fields = {"name": rung.name, "step": rung.step}
        try:
            copied = self._shelf.keep_copy(rung)
        except OSError as error:
            self._tell("snapshot.shelve_failed", {**fields, "reason": f"{error.strerror or error}"})
            return
        if copied is not None:
            self._tell("snapshot.shelved", {**fields, "name": self.back_name(rung.step), **_made(copied, began)})
            self._prune(rung)

    def _prune(self, rung: e.RungFact) -> None:
        try:
            self._shelf.prune()
        except OSError as error:
            reason = f"the shelf: {error.strerror or error}"
            self._tell("snapshot.prune_failed", {"name": rung.name, "step": rung.step, "reason": reason})

    def settle(self, told: Told, above: int | None, judge_again: Callable[[], Told]) -> Told:
        """Put the newest good copy in place where it is wanted, and judge again; else keep a copy of what is there.

        What is in place and bad stays for the core to set aside; it asks again. Steps above `above` are not wanted.
        """
        if isinstance(told, e.LadderUnreadable):
            return told
        in_place = next((rung for rung in told.rungs if not is_shelved(rung.name)), None)
        if in_place is not None and (in_place.verdict is None or not in_place.verdict.proven):
            return told
        wanted = [one for one in told.rungs if above is None or one.step is None or one.step <= above]
        best = choose(wanted)
        if best is None or not is_shelved(best.name):
            if in_place is not None:
                self.keep_copy(in_place)
            return told
        try:
            if in_place is not None:
                self._make_way(in_place, best)
            began = time.monotonic()
            copied = self._shelf.put_back(best)
        except OSError as error:
            return e.LadderUnreadable(f"{best.name} cannot be put in place: {error.strerror or error}")
        self._tell("snapshot.unshelved", {"name": best.name, "step": best.step, **_made(copied, began)})
        return judge_again()

    def _make_way(self, in_place: e.RungFact, best: e.RungFact) -> None:
        """Set aside what is in place and good, but older than a copy: somebody else put it there. Raises OSError."""
        reason = f"it is at step {in_place.step}, and the shelf has step {best.step} of this run"
        fields = {"name": in_place.name, "step": in_place.step, "reason": reason}
        path = places.set_aside(self._directory, in_place.name, fields)
        self._tell("snapshot.quarantined", {**fields, "path": path})

    def copies_of(self, rung: e.RungFact) -> list[e.RungFact]:
        """The copies of the same bytes, which must leave the trainer's sight with them."""
        if rung.verdict is None or rung.verdict.sha256 is None or is_shelved(rung.name):
            return []
        try:
            found = self._shelf.same_as(rung.verdict.sha256)
        except OSError:
            return []  # the next look at the ladder says what is wrong with the shelf
        return [e.RungFact(one.name, one.step, one.mtime_ns, rung.verdict) for one in found]

    def back_name(self, step: int | None) -> str | None:
        """Where what was set aside wrongly goes back to: the shelf, since another snapshot is in place by now."""
        return None if step is None else shelved_name(step)

    def _removed(self, rung: Rung) -> None:
        self._tell("snapshot.pruned", {"name": rung.name, "step": rung.step})
        self._post(e.SnapshotGone(rung.name))

    def _tell(self, event: str, fields: dict[str, Any]) -> None:
        self._mailbox.hand(lambda: self._say(event, fields))


def _made(copied: Copied, began: float) -> dict[str, Any]:
    return {"how": copied.how, "bytes": copied.bytes, "seconds": round(time.monotonic() - began, 6)}


def made_for(
    settings: Settings, directory: str, verifier: Verifier, mailbox: Mailbox, post: Post, say: Say
) -> ShelfSide | None:
    """The shelf of a run, None for trainers that need none."""
    if settings.preset.in_place is None:
        return None
    return ShelfSide(settings, directory, verifier, mailbox, post, say)

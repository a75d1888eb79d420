"""Looks at a checkpoint directory: what is there, what arrived, what it is worth. Used by one worker thread only.

File events are hints that shorten the wait; a look at the whole directory is the truth.
"""

import errno
import heapq
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from lastgood.choose import newest_first
from lastgood.ledger import Ledger, SealStamp
from lastgood.publish import write_bound_seal
from lastgood.rungs import Rung, down_to_first_proven, ever_held_one, identity_of, judge
from lastgood.seal import Identity, Seal, read_seal, seal_path
from lastgood.sealing import sha256_of
from lastgood.verdict import Kind, Proof, Verdict
from supervisor import shelved
from supervisor.arrivals import Arrivals, Unsettled, content_of
from supervisor.candidates import BACKLOG_SECONDS, NEWEST, Candidates
from supervisor.core.events import (
    LadderJudged,
    LadderUnreadable,
    RungFact,
    SnapshotGone,
    SnapshotJudged,
    SnapshotReread,
    SnapshotSealed,
)
from supervisor.writing import is_being_written


@dataclass(slots=True)
class _Told:
    """What was told of a snapshot: the verdict, about which file, under which seal beside it."""

    identity: Identity
    seal: SealStamp
    verdict: Verdict


class Verifier:
    """One run's view of its directory. `foreign` are another run's snapshots, by name and identity: they do not count.

    `isolated` says that the run was begun apart from whatever the directory held before. `has_shelf` says that what matches
    the pattern is one file that is overwritten in place, and that copies of it are kept.
    """

    def __init__(
        self,
        checkpoint_dir: str,
        pattern: str | None,
        settle_seconds: float,
        foreign: Mapping[str, Identity],
        isolated: bool = False,
        clock: Callable[[], float] = time.monotonic,
        has_shelf: bool = False,
    ) -> None:
        self._directory = checkpoint_dir
        self._pattern = pattern
        self._settle_seconds = settle_seconds
        self.candidates = Candidates(checkpoint_dir, pattern, foreign)
        self._isolated = isolated
        self._clock = clock
        self._has_shelf = has_shelf
        self._ledger = Ledger(checkpoint_dir, writable=True)
        self._told: dict[str, _Told] = {}
        self._unreadable: set[str] = set()  # names told as such: that says nothing of the bytes, and may pass
        self.unsettled: dict[str, Unsettled] = {}  # what may still be written, as of the last look
        self.arrivals = Arrivals()
        self._left: set[str] = set()  # names that were told, and of which no verdict is remembered
        self._on_trust: set[str] = set()  # names whose bytes the last look at the ladder did not read

    def judge_ladder(self, passing: Collection[str] = (), above: int | None = None) -> LadderJudged | LadderUnreadable:
        """Read the directory and judge from the newest down to the first proven rung, bytes read anew.

        Rungs named in `passing`, and those of a step above `above`, are judged and passed. Only while no trainer lives, so that
        nothing is being written.
        """
        self._on_trust = set()
        try:
            rungs = self._down(passing, above)
            held = bool(rungs) or (not self._isolated and ever_held_one(self._directory, self._pattern))
        except OSError as error:
            return LadderUnreadable(f"{error.strerror or error}")
        judged = [(r, SealStamp.beside(r.where)) for r in rungs if r.verdict and not shelved.is_shelved(r.name)]
        arrived = frozenset(rung.name for rung, seal in judged if self._is_news(rung, seal))
        for rung, seal in judged:
            self._remember(rung, seal)
        self.unsettled.clear()
        self._left = {rung.name for rung in rungs if rung.verdict is None}
        return LadderJudged(tuple(_fact(rung, rung.name in self._on_trust) for rung in rungs), held, arrived)

    def _down(self, passing: Collection[str], above: int | None) -> list[Rung]:
        def is_passed(rung: Rung) -> bool:
            return rung.name in passing or (above is not None and rung.step is not None and rung.step > above)

        def down(found: list[Rung]) -> list[Rung]:
            judged = [judge(rung, self._ledger, fresh=True) for rung in found if is_passed(rung)]
            others = [rung for rung in found if not is_passed(rung)]
            return newest_first([*judged, *down_to_first_proven(others, self._ledger, known=self._trusted)])

        found = self.candidates.scan()
        if not self._has_shelf:
            return down(found)
        shelf = [rung for rung in shelved.scan_shelf(self._directory) if self.candidates.is_ours(rung)]
        return shelved.ladder(found, shelf, down, is_passed, self._ledger)

    def _trusted(self, rung: Rung) -> Verdict | None:
        """What this supervisor has told of a file that has not been touched since, if that was proven.

        Its bytes may have changed all the same, and are read again beside the trainer. Copies on a shelf are read before.
        """
        told = self._told.get(rung.name)
        if told is None or told.identity != rung.identity or not told.verdict.proven or rung.step is None:
            return None
        if self._has_shelf or rung.name in self._unreadable or SealStamp.beside(rung.where) != told.seal:
            return None
        self._on_trust.add(rung.name)
        return told.verdict

    def reread(self, name: str, mtime_ns: int) -> SnapshotReread:
        """Read the bytes of a snapshot again that was trusted as it was then. Other bytes under a seal that went are bad ones."""
        gone = RungFact(name, None, mtime_ns)
        try:
            rung = self.candidates.find(name)
        except OSError:
            return SnapshotReread(gone, reachable=False)
        if rung is None or rung.mtime_ns != mtime_ns:
            return SnapshotReread(gone)
        told, seal = self._told.get(name), SealStamp.beside(rung.where)
        rung = judge(rung, self._ledger, fresh=True)  # with the step that its content tells
        verdict = rung.verdict
        assert verdict is not None
        if verdict.errno == errno.ENOENT:
            return SnapshotReread(gone)
        before = None if told is None or not self._is_known(rung) else told.verdict.sha256
        if verdict.usable and None not in (before, verdict.sha256) and before != verdict.sha256:
            verdict = verdict._replace(kind=Kind.CORRUPT, reason=f"its SHA-256 is {verdict.sha256}, and was {before}")
        if verdict.kind is Kind.UNREADABLE:
            self._unreadable.add(name)
        else:
            self._remember(rung._replace(verdict=verdict), seal)
        return SnapshotReread(_fact(rung._replace(verdict=verdict)))

    def look(
        self, hinted: Collection[str] = (), whole: bool = True, others: Collection[str] = ()
    ) -> tuple[list[SnapshotJudged | SnapshotGone], float | None]:
        """Judge what arrived and has settled; what happened to names in `hinted` may have made them whole.

        Without a look at the `whole` directory those, `others` and what was left open are looked at, if nothing has two names.
        Returns what to tell, bad news first, since old ones are given up for good news, and in how many seconds to look again
        for a file that has not settled or had its turn (None: no need). Raises OSError when the directory cannot be read.
        """
        still_open = {*self.unsettled, *self._unreadable, *self.arrivals.waiting, *self._left}
        rungs, names = self.candidates.among(None if whole else still_open.union(hinted, others))
        told: list[SnapshotJudged | SnapshotGone] = [SnapshotGone(name) for name in self._forget_gone(rungs, names)]
        rungs.sort(key=lambda rung: rung.name not in self._left)  # those are older, and others may be waited for
        until = self._clock() + BACKLOG_SECONDS
        while rungs and not (told and rungs[-1].name in self._left and self._clock() > until):
            rung = rungs.pop()  # the oldest first, and of ten thousand none is held longer than it is looked at
            known = self._is_known(rung)
            if known and rung.name not in self._unreadable and not self._has_new_seal(rung):
                self.unsettled.pop(rung.name, None)
                continue
            if not known:
                self.arrivals.seen(rung.name, rung.step)
            if (known or self._is_settled(rung, hinted)) and (judged := self._judge_arrival(rung, known)) is not None:
                told.append(judged)
        told.sort(key=_is_good_news)
        return told, 0.0 if rungs else self._settle_seconds if self.unsettled else None

    def unseen(self, notice: Callable[[str], None]) -> set[str]:
        """Names that came or went, and those last written, which may be again; `notice` is told of partials. Raises OSError."""
        newest = heapq.nlargest(NEWEST, self._told, key=lambda name: self._told[name].identity.mtime_ns)
        return self.candidates.came_or_went(self._told, notice).union(newest)

    def _is_known(self, rung: Rung) -> bool:
        """Whether its bytes are those that were told."""
        told = self._told.get(rung.name)
        return told is not None and content_of(told.identity) == content_of(rung.identity)

    def _has_new_seal(self, rung: Rung) -> bool:
        """Whether a seal that came, went or changed may say something else about bytes that were told already."""
        told = self._told[rung.name]
        if rung.seal_inode == told.seal.inode and (not rung.seal_inode or told.verdict.kind is Kind.HEALTHY):
            return False
        stamp = SealStamp.beside(rung.where)
        if stamp != told.seal and _agrees(rung.where, rung.identity, told.verdict):
            told.seal = stamp
        return stamp != told.seal

    def _is_news(self, judged: Rung, seal: SealStamp) -> bool:
        """Whether its content is another than was told, or its seal is, and the verdict with it."""
        if not self._is_known(judged):
            return True
        told = self._told[judged.name]
        may_differ = seal != told.seal or judged.name in self._unreadable
        return may_differ and _worth(judged.verdict) != _worth(told.verdict)

    def _forget_gone(self, rungs: list[Rung], names: Collection[str] | None) -> list[str]:
        """Names told and no longer there, of all or of these; with what is open among them.

        A seal that was made for one of them is for a file that nobody has any more.
        """
        present = {rung.name for rung in rungs}
        self.unsettled = {name: one for name, one in self.unsettled.items() if name in present}
        gone = [name for name in (self._told if names is None else names & self._told.keys()) if name not in present]
        for name in gone:
            del self._told[name]
            self.candidates.drop_bound_seal(name)
        self._unreadable &= present
        self.arrivals.keep(present)
        return gone

    def _is_settled(self, rung: Rung, hinted: Collection[str]) -> bool:
        """Sealed files are published whole; a hint is worth a look; any other must have been still for a while."""
        if os.path.exists(seal_path(rung.where)) or rung.name in hinted:
            return True
        now = self._clock()
        waiting = self.unsettled.get(rung.name)
        if waiting is None or waiting.content != content_of(rung.identity):
            age = time.time() - rung.mtime_ns / 1e9
            if waiting is None and age > max(self._settle_seconds, 60.0):
                return True  # it was there long before anybody looked
            self.unsettled[rung.name] = Unsettled(content_of(rung.identity), now)
            return False
        return now - waiting.still_since >= self._settle_seconds

    def _judge_arrival(self, rung: Rung, known: bool) -> SnapshotJudged | None:
        """The verdict about an arrival, or about known bytes that may be worth something else by now; None when that is not
        so, and while it is not proven and may still be written.
        """
        seal = SealStamp.beside(rung.where)
        judged = judge(rung, self._ledger, fresh=rung.name in self._unreadable)
        verdict = judged.verdict
        assert verdict is not None
        if verdict.errno == errno.ENOENT:
            return None  # it went away since the directory was read, as the next look will find
        same = known and _worth(verdict) == _worth(self._told[rung.name].verdict)
        if not same and not verdict.proven and not self._has_settled(rung, verdict.kind, known):
            return None
        self.unsettled.pop(rung.name, None)
        new_name = rung.name not in self._told and rung.name not in self._left
        self._remember(judged, seal)
        return None if same else SnapshotJudged(_fact(judged), new_name=new_name)

    def _has_settled(self, rung: Rung, kind: Kind, known: bool) -> bool:
        """Whether its writer must be done: it came sealed, or is still and not open any more. What changed as it was read is not.

        A seal that condemns known bytes may be that of bytes which are about to replace them.
        """
        sealed = not known and os.path.exists(seal_path(rung.where))
        now = self._clock()
        waiting = self.unsettled.get(rung.name)
        if kind is Kind.INCOMPLETE or waiting is None or waiting.content != content_of(rung.identity):
            self.unsettled[rung.name] = Unsettled(content_of(rung.identity), now)
            return sealed and kind is not Kind.INCOMPLETE
        return sealed or (now - waiting.still_since >= self._settle_seconds and not is_being_written(rung.where))

    def _remember(self, judged: Rung, seal: SealStamp) -> None:
        """Note that this verdict is being told, or is no other than was told."""
        assert judged.verdict is not None
        self._told[judged.name] = _Told(judged.identity, seal, judged.verdict)
        self._left.discard(judged.name)
        self._unreadable.discard(judged.name)
        self.arrivals.judged(judged.name)
        if judged.verdict.kind is Kind.UNREADABLE:
            self._unreadable.add(judged.name)

    def _tell_anew(self, name: str) -> None:
        del self._told[name]
        self._left.add(name)

    def seal(self, name: str) -> SnapshotSealed | None:
        """Hash an unsealed snapshot and keep the digest, bound to its identity; None when it changed or went away meanwhile, and
        OSError when the seal cannot be written.
        """
        rung = self.candidates.find(name)
        if rung is None or not self._is_known(rung) or not self._told[name].verdict.usable:
            return None
        if is_being_written(rung.where):
            self._tell_anew(name)  # once it is whole
            return None
        try:
            digest = sha256_of(rung.path)
            unchanged = identity_of(rung.path) == rung.identity
        except FileNotFoundError:
            unchanged = False
        if not unchanged:
            return None
        if self._told[name].verdict.sha256 not in (None, digest):
            self._tell_anew(name)  # a seal must not vouch for other bytes than those judged
            return None
        write_bound_seal(rung.path, digest, rung.identity)
        judged = judge(rung, self._ledger, fresh=True)
        if judged.verdict is None or (judged.verdict.kind, judged.verdict.proof) != (Kind.HEALTHY, Proof.SEAL):
            self._tell_anew(name)
            return None
        self._told[name].verdict = judged.verdict
        return SnapshotSealed(_fact(judged))


def _worth(verdict: Verdict | None) -> tuple[Kind, Proof | None] | None:
    """What makes one verdict about the same bytes another than before."""
    return None if verdict is None else (verdict.kind, verdict.proof)


def _is_good_news(told: SnapshotJudged | SnapshotGone) -> bool:
    return isinstance(told, SnapshotJudged) and told.rung.verdict is not None and told.rung.verdict.usable


def _agrees(path: str, identity: Identity, verdict: Verdict) -> bool:
    """Whether the seal as it is now says of bytes that are healthy what is known of them, so that they need no reading."""
    try:
        seal = read_seal(path, identity)
    except OSError:
        return False
    return (
        verdict.kind is Kind.HEALTHY
        and verdict.sha256 is not None
        and isinstance(seal, Seal)
        and seal.accepts(verdict.sha256)
    )


def _fact(rung: Rung, trusted: bool = False) -> RungFact:
    return RungFact(rung.name, rung.step, rung.mtime_ns, rung.verdict, rung.linked, trusted)

"""Looks at a checkpoint directory: what is there, what arrived, what it is worth. Used by one worker thread only.

File events are hints that shorten the wait; each look reads the whole directory, which is the truth.
"""

import errno
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from lastgood.contract import SEALS_DIR, STATE_DIR
from lastgood.ledger import Ledger
from lastgood.publish import write_durably
from lastgood.rungs import Rung, down_to_first_proven, ever_held_one, identity_of, judge, scan
from lastgood.seal import Identity, bound_seal_path, bound_seal_text, seal_path
from lastgood.sealing import sha256_of
from lastgood.verdict import Kind, Proof
from supervisor.core.events import (
    LadderJudged,
    LadderUnreadable,
    RungFact,
    SnapshotGone,
    SnapshotJudged,
    SnapshotSealed,
)

Content = tuple[int, int, int]


@dataclass
class _Unsettled:
    """A file that may still be written: its content's identity, and since when (monotonic seconds) it has been still."""

    content: Content
    still_since: float


class Verifier:
    """One run's view of its directory. `foreign` are another run's snapshots, by name and identity: they do not count.

    `isolated` says that the run was begun apart from whatever the directory held before.
    """

    def __init__(
        self,
        checkpoint_dir: str,
        pattern: str | None,
        settle_seconds: float,
        foreign: Mapping[str, Identity],
        isolated: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = checkpoint_dir
        self._pattern = pattern
        self._settle_seconds = settle_seconds
        self._foreign = foreign
        self._isolated = isolated
        self._clock = clock
        self._ledger = Ledger(checkpoint_dir, writable=True)
        self._told: dict[str, Content] = {}
        self._unreadable: set[str] = set()  # names told as such: that says nothing of the bytes, and may pass
        self._unsettled: dict[str, _Unsettled] = {}

    def judge_ladder(self) -> LadderJudged | LadderUnreadable:
        """Read the directory and judge from the newest down to the first proven rung, bytes read anew.

        Only while no trainer lives, so that nothing is being written.
        """
        try:
            rungs = down_to_first_proven(self._scan(), self._ledger)
            held = bool(rungs) or (not self._isolated and ever_held_one(self._directory, self._pattern))
        except OSError as error:
            return LadderUnreadable(f"{error.strerror or error}")
        judged = [rung for rung in rungs if rung.verdict is not None]
        arrived = frozenset(rung.name for rung in judged if self._told.get(rung.name) != _content(rung))
        for rung in judged:
            self._remember(rung)
        self._unsettled.clear()
        return LadderJudged(tuple(map(_fact, rungs)), held, arrived)

    def _scan(self) -> list[Rung]:
        return [r for r in scan(self._directory, self._pattern) if not self._is_foreign(r)]

    def _is_foreign(self, rung: Rung) -> bool:
        other = self._foreign.get(rung.name)
        return other is not None and (other.inode, other.size, other.mtime_ns) == _content(rung)

    def look(self, hinted: Collection[str] = ()) -> tuple[list[SnapshotJudged | SnapshotGone], float | None]:
        """Judge what arrived and has settled; what happened to names in `hinted` may have made them whole.

        Returns what to tell and in how many seconds to look again for a file that has not settled (None: no need).
        Raises OSError when the directory cannot be read.
        """
        rungs = self._scan()
        told: list[SnapshotJudged | SnapshotGone] = [SnapshotGone(name) for name in self._forget_gone(rungs)]
        for rung in reversed(rungs):
            known = self._told.get(rung.name) == _content(rung)
            if known and rung.name not in self._unreadable:
                continue
            if (known or self._is_settled(rung, hinted)) and (judged := self._judge_arrival(rung)) is not None:
                told.append(judged)
        return told, self._settle_seconds if self._unsettled else None

    def _forget_gone(self, rungs: list[Rung]) -> list[str]:
        present = {rung.name for rung in rungs}
        for name in [name for name in self._unsettled if name not in present]:
            del self._unsettled[name]
        gone = [name for name in self._told if name not in present]
        for name in gone:
            del self._told[name]
        self._unreadable &= present
        return gone

    def _is_settled(self, rung: Rung, hinted: Collection[str]) -> bool:
        """Sealed files are published whole; a hint is worth a look; any other must have been still for a while."""
        if os.path.exists(seal_path(rung.path)) or rung.name in hinted:
            return True
        now = self._clock()
        waiting = self._unsettled.get(rung.name)
        if waiting is None or waiting.content != _content(rung):
            age = time.time() - rung.mtime_ns / 1e9
            if waiting is None and age > max(self._settle_seconds, 60.0):
                return True  # it was there long before anybody looked
            self._unsettled[rung.name] = _Unsettled(_content(rung), now)
            return False
        return now - waiting.still_since >= self._settle_seconds

    def _judge_arrival(self, rung: Rung) -> SnapshotJudged | None:
        """The verdict about an arrival; None while it is not proven and may still be written, and when nothing is new."""
        judged = judge(rung, self._ledger)
        verdict = judged.verdict
        assert verdict is not None
        if verdict.errno == errno.ENOENT:
            return None  # it went away since the directory was read, as the next look will find
        if verdict.kind is Kind.UNREADABLE and self._told.get(rung.name) == _content(rung):
            return None  # it is still not to be read
        if not verdict.proven and not self._has_settled(rung, verdict.kind):
            return None
        self._unsettled.pop(rung.name, None)
        self._remember(judged)
        return SnapshotJudged(_fact(judged))

    def _has_settled(self, rung: Rung, kind: Kind) -> bool:
        """Whether its writer must be done: it is sealed, or was still for long. What changed as it was read was not."""
        sealed = os.path.exists(seal_path(rung.path))
        now = self._clock()
        waiting = self._unsettled.get(rung.name)
        if kind is Kind.INCOMPLETE or waiting is None or waiting.content != _content(rung):
            self._unsettled[rung.name] = _Unsettled(_content(rung), now)
            return sealed and kind is not Kind.INCOMPLETE
        return sealed or now - waiting.still_since >= self._settle_seconds

    def _remember(self, judged: Rung) -> None:
        """Note that this verdict is being told."""
        self._told[judged.name] = _content(judged)
        self._unreadable.discard(judged.name)
        if judged.verdict is not None and judged.verdict.kind is Kind.UNREADABLE:
            self._unreadable.add(judged.name)

    def seal(self, name: str) -> SnapshotSealed | None:
        """Hash an unsealed snapshot and keep the digest, bound to its identity; None when it changed or went away meanwhile.

        Raises OSError when the seal cannot be written.
        """
        rung = next((rung for rung in self._scan() if rung.name == name), None)
        if rung is None or self._told.get(name) != _content(rung):
            return None
        try:
            digest = sha256_of(rung.path)
            unchanged = identity_of(rung.path) == rung.identity
        except FileNotFoundError:
            unchanged = False
        if not unchanged:
            return None
        os.makedirs(os.path.join(self._directory, STATE_DIR, SEALS_DIR), exist_ok=True)
        write_durably(bound_seal_path(rung.path), bound_seal_text(digest, rung.identity).encode("ascii"))
        judged = judge(rung, self._ledger, fresh=True)
        if judged.verdict is None or (judged.verdict.kind, judged.verdict.proof) != (Kind.HEALTHY, Proof.SEAL):
            return None
        return SnapshotSealed(_fact(judged))


def _content(rung: Rung) -> Content:
    """What changes when the bytes do. ctime also moves for a new link or mode, which is no arrival."""
    return (rung.identity.inode, rung.identity.size, rung.identity.mtime_ns)


def _fact(rung: Rung) -> RungFact:
    return RungFact(rung.name, rung.step, rung.mtime_ns, rung.verdict, rung.linked)

"""A snapshot resumed from on the word of an earlier verdict, while its bytes are read again beside the trainer. Pure.

Until they have been, what the trainer publishes does not count. If they turn out bad, what was made of them is no good either.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from supervisor.core.blame import Blame
from supervisor.core.events import RungFact


@dataclass(frozen=True)
class Trust:
    """What a trainer was started from on trust: its name, time of modification in nanoseconds, and step.

    `left` names, with their times, newer snapshots that were there before: the trainer did not make those. `refuted`
    says that the bytes turned out bad.
    """

    name: str
    mtime_ns: int
    step: int
    left: tuple[tuple[str, int], ...] = ()
    refuted: bool = False

    def is_(self, rung: RungFact) -> bool:
        """Whether this is that rung, and not a newer one of its name."""
        return (self.name, self.mtime_ns) == (rung.name, rung.mtime_ns)


def trust_in(snapshot: RungFact | None, rungs: Iterable[RungFact], blame: Blame | None) -> Trust | None:
    """The trust that a start from `snapshot` takes, if its bytes were not read for it.

    `rungs` are what the directory holds; what is suspected in `blame` may be put back into it.
    """
    if snapshot is None or not snapshot.trusted or snapshot.step is None:
        return None
    newer = [rung for rung in rungs if rung.step is not None and rung.step >= snapshot.step]
    left = [(rung.name, rung.mtime_ns) for rung in newer if rung.name != snapshot.name]
    if blame is not None and blame.suspect is not None:
        left.append((blame.suspect.name, blame.suspect.mtime_ns))
    return Trust(snapshot.name, snapshot.mtime_ns, snapshot.step, tuple(left))


def tainted(rungs: Iterable[RungFact], trust: Trust | None) -> tuple[RungFact, ...]:
    """The rungs, those being poisoned that a trainer made of bytes which turned out bad."""
    return tuple(_tainted(rung, trust) if trust is not None and trust.refuted else rung for rung in rungs)


def _tainted(rung: RungFact, trust: Trust) -> RungFact:
    made_of_it = rung.step is not None and rung.step >= trust.step and not trust.is_(rung)
    if not made_of_it or (rung.name, rung.mtime_ns) in trust.left:
        return rung
    return rung.poisoned(f"its trainer had been resumed from {trust.name}, whose bytes turned out bad")

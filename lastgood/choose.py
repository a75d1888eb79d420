"""Order candidates and choose the one to resume from. Pure.

Candidates are ordered by step as a number; the time of modification only breaks ties; one without any step comes last.
"""

from bisect import insort
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from lastgood.verdict import Verdict


class Candidate(Protocol):
    """What ordering and choosing need to know about a snapshot."""

    @property
    def name(self) -> str: ...
    @property
    def step(self) -> int | None: ...
    @property
    def mtime_ns(self) -> int: ...


class Judged(Candidate, Protocol):
    """A candidate with its verdict, or None while it has not been judged."""

    @property
    def verdict(self) -> Verdict | None: ...


C = TypeVar("C", bound=Candidate)
J = TypeVar("J", bound=Judged)


def newest_first(candidates: Iterable[C]) -> list[C]:
    """The ladder: highest step first."""
    return sorted(candidates, key=_age, reverse=True)


def with_one(ladder: Sequence[C], one: C) -> list[C]:
    """A ladder in order with `one` at its place, instead of what had its name. Ten thousand are not sorted for each arrival."""
    oldest_first = [other for other in reversed(ladder) if other.name != one.name]
    insort(oldest_first, one, key=_age)
    oldest_first.reverse()
    return oldest_first


def _age(candidate: Candidate) -> tuple[int, int, str]:
    step = -1 if candidate.step is None else candidate.step
    return (step, candidate.mtime_ns, candidate.name)


def choose(ladder: Sequence[J]) -> J | None:
    """The newest proven rung of a ladder in order; only if there is none, the newest unproven one; else None."""
    unproven = None
    for rung in ladder:
        if rung.verdict is not None and rung.verdict.proven:
            return rung
        if unproven is None and rung.verdict is not None and rung.verdict.usable:
            unproven = rung
    return unproven

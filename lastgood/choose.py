"""Order candidates and choose the one to resume from. Pure.

Candidates are ordered by step as a number; the time of modification only breaks ties; one without any step comes last.
"""

from bisect import bisect_left, bisect_right
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


def with_one(ladder: tuple[C, ...], one: C, new_name: bool = False) -> tuple[C, ...]:
    """A ladder in order with `one` at its place, instead of what had its name, if anything did.

    Ten thousand are not sorted for each arrival.
    """
    place = _place(ladder, one)
    if place and _age(ladder[place - 1]) == _age(one):
        return (*ladder[: place - 1], one, *ladder[place:])  # what it was before: a verdict is new
    found = None if new_name else named(ladder, one.name)
    if found is not None:
        ladder = tuple(other for other in ladder if other is not found)
        place = _place(ladder, one)
    return (*ladder[:place], one, *ladder[place:])


def _place(ladder: tuple[C, ...], one: C) -> int:
    """How many are as old as `one` or younger."""
    return bisect_left(ladder, True, key=lambda other: _age(other) < _age(one))


def named(ladder: Sequence[C], name: str) -> C | None:
    """The one of that name. Most often there is none, for which a generator would take three times as long."""
    return next(iter([one for one in ladder if one.name == name]), None)


def holds(ladder: Sequence[C], one: C) -> bool:
    """Whether a ladder in order has one of that name and time of modification, be it that the step of either is not known."""
    alike = ladder if one.step is None else (*_of_step(ladder, one.step), *_of_step(ladder, None))
    return (one.name, one.mtime_ns) in ((other.name, other.mtime_ns) for other in alike)


def _of_step(ladder: Sequence[C], step: int | None) -> Sequence[C]:
    start = bisect_left(ladder, -_rank(step), key=lambda one: -_rank(one.step))
    return ladder[start : bisect_right(ladder, -_rank(step), lo=start, key=lambda one: -_rank(one.step))]


def _rank(step: int | None) -> int:
    return -1 if step is None else step


def _age(candidate: Candidate) -> tuple[int, int, str]:
    step = _rank(candidate.step)
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

"""What many lives have met, added up, and whether that is enough to say that no promise was broken."""

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import product

from tests.simulator.plan import Fault, kinds

Pair = tuple[Fault, Fault]
"""Two faults in this order: the second was met before the run had progressed after the first."""

IMPOSSIBLE: frozenset[Pair] = frozenset()
"""Pairs of which the second cannot follow the first. None is known: what a kind needs of a trainer or its settings, no other
kind rules out, and what ends a run, a person mends and starts again.
"""

LIVES_MIN = 2_000  # from which on many lives must have met everything
SHARE_MIN = 0.01  # how often each kind, as a share of the lives
NAMED_MAX = 20  # pairs


def possible_pairs() -> Iterator[Pair]:
    """Every pair that can be met."""
    return (pair for pair in product(Fault, Fault) if pair not in IMPOSSIBLE)


def too_rare(met: Counter[str], lives: int) -> list[str]:
    """Kinds that these lives have met too seldom; of few lives nothing is demanded."""
    return [kind for kind in kinds() if lives >= LIVES_MIN and met[kind] < SHARE_MIN * lives]


def told_pairs(pairs: Collection[Pair]) -> str:
    """How many of the possible pairs were met, and which were not if those are few."""
    possible = list(possible_pairs())
    missing = [pair for pair in possible if pair not in pairs]
    names = ": " + ", ".join(" then ".join(pair) for pair in missing) if 0 < len(missing) <= NAMED_MAX else ""
    met = f"{len(possible) - len(missing):,} of {len(possible):,} ordered pairs of faults met before the run had progressed"
    return f"{met}, {len(missing):,} not met{names}"

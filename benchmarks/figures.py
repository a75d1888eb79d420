"""What a list of measurements says, and whether it says enough. Pure."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

CONFIDENCE = 0.95


class Verdict(StrEnum):
    """Whether a target is met."""

    MET = "met"
    MISSED = "missed"
    NOISY = "too noisy to tell"
    SHOWN = "shown"  # without a target


@dataclass(frozen=True)
class Figure:
    """A median and the interval that holds the true one with 95 % confidence; infinite when there are too few values."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Figure":
        """The figure of at least one value."""
        low, high = median_interval(values)
        return cls(statistics.median(values), low, high, len(values))

    def verdict(self, at_most: float | None, reaches: bool = False) -> Verdict:
        """Met when the whole interval is, missed when none of it is; in between the values do not tell.

        With `reaches` it is enough that no difference can be told: met when any of the interval is, missed otherwise.
        """
        if at_most is None:
            return Verdict.SHOWN
        if math.isinf(self.high):
            return Verdict.NOISY
        if reaches:
            return Verdict.MET if self.low <= at_most else Verdict.MISSED
        if self.high <= at_most:
            return Verdict.MET
        return Verdict.MISSED if self.low > at_most else Verdict.NOISY


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """An interval for the median of whatever the values are drawn from, by their order alone: no distribution is assumed.

    Between the k-th smallest and the k-th largest of n values lies the true median unless fewer than k fell on one of its
    sides, which is a matter of n tosses of a coin.
    """
    ordered, count = sorted(values), len(values)
    best = 0
    outside = 0.0
    for k in range(1, count // 2 + 1):
        outside += 2 * math.comb(count, k - 1) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        best = k
    return (ordered[best - 1], ordered[-best]) if best else (-math.inf, math.inf)


def spread(values: Sequence[float]) -> float:
    """How much values vary: the distance of their quartiles, as a share of their median; 0 for fewer than two."""
    if len(values) < 2:
        return 0.0
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return (third - first) / middle


def turns(pairs: int) -> Iterator[bool]:
    """Whether ours goes first, pair by pair: each side does so as often as the other."""
    for pair in range(pairs):
        yield pair % 2 == 0

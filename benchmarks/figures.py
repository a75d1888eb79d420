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
    """A median, or what some other share of the values lie within, and the interval that holds the true one with 95 %
    confidence; an end is infinite when there are too few values.
    """

    value: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float], share: float = 0.5) -> "Figure":
        """The figure of at least one value."""
        middle = statistics.median(values) if share == 0.5 else sorted(values)[math.ceil(share * len(values)) - 1]
        return cls(middle, *interval(values, share), len(values))

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


def interval(values: Sequence[float], share: float = 0.5) -> tuple[float, float]:
    """An interval for the value that `share` of whatever the values are drawn from lie below, by their order alone.

    No distribution is assumed. How many of n values lie below the true one is a matter of n tosses of a coin, so the ends are
    the values of which so few, or so many, would lie below with too small a chance. An end that no value is fit for is infinite.
    """
    low = -math.inf
    at_most = 0.0  # the chance that no more than so many lie below
    for number, value in enumerate(sorted(values)):
        at_most += _chance(number, len(values), share)
        if at_most <= (1 - CONFIDENCE) / 2:
            low = value
        if 1 - at_most <= (1 - CONFIDENCE) / 2:
            return low, value
    return low, math.inf


def _chance(number: int, count: int, share: float) -> float:
    """Of as many hits among so many tosses, by logarithms: the numbers themselves are too large for a few thousand."""
    ways = math.lgamma(count + 1) - math.lgamma(number + 1) - math.lgamma(count - number + 1)
    return math.exp(ways + number * math.log(share) + (count - number) * math.log1p(-share))


def spread(values: Sequence[float]) -> float:
    """How much values vary: the distance of their quartiles, as a share of their median; 0 for fewer than two."""
    if len(values) < 2:
        return 0.0
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return (third - first) / middle


def turns(names: Sequence[str], rounds: int) -> Iterator[tuple[str, ...]]:
    """In which order they go, round by round: each goes first as often as the others, and after each other one."""
    for number in range(rounds):
        first = number % len(names)
        yield (*names[first:], *names[:first])

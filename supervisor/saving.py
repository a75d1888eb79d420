"""What a save costs a trainer, and how often to save by that. Pure."""

import math
from typing import Any

NUMBER_MAX = 1e15


def save_interval(save_seconds: float, mtbf_seconds: float) -> float:
    """Seconds of training between two saves after which the time lost to saves and to failures together is least.

    To first order sqrt(2 C M), for a save that costs C and a mean time M between failures: J. W. Young, "A first order
    approximation to the optimum checkpoint interval", Communications of the ACM 17 (1974) 530-531. Refined for a C that is not
    small against M: sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C, and M where C is 2 M or more: J. T. Daly, "A higher
    order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22 (2006) 303-312.
    """
    ratio = save_seconds / (2 * mtbf_seconds)
    if ratio >= 1:
        return mtbf_seconds
    first_order = math.sqrt(2 * save_seconds * mtbf_seconds)
    return first_order * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_seconds


class Saves:
    """The mean of `save_seconds`, of whatever lines have one: the time that the trainer stood still for a save."""

    def __init__(self) -> None:
        self._count, self._mean = 0, 0.0

    def add(self, line: dict[str, Any]) -> None:
        """Take in a line of a trainer's metrics, or a record."""
        seconds = number(line.get("save_seconds"))
        if seconds is not None and seconds >= 0:
            self._count += 1
            self._mean += (seconds - self._mean) / self._count

    @property
    def seconds(self) -> float | None:
        """None while nothing was told."""
        return self._mean if self._count else None


def number(value: Any) -> float | None:
    """A number that can be reckoned with, or None."""
    return float(value) if type(value) in (int, float) and abs(value) < NUMBER_MAX else None

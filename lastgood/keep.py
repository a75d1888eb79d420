"""Retention: which snapshots may go. One pure rule for the library and the supervisor, on the same verdicts.

Only proven snapshots are ever given up, and never the two newest of them. What is bad, unproven or not yet judged is
evidence or hope, and stays.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from lastgood.choose import J

LEAST_KEPT = 2


@dataclass(frozen=True)
class Keep:
    """What to keep: the newest `last`, each whose step is a multiple of `every` (0: none of those), and the `best` with the
    lowest losses.
    """

    last: int = 3
    every: int = 0
    best: int = 0

    def __post_init__(self) -> None:
        if type(self.last) is not int:
            raise TypeError(f"the number of snapshots to keep is a whole number, not {self.last!r}")
        if self.last < LEAST_KEPT:
            raise ValueError(
                f"at least {LEAST_KEPT} snapshots must be kept, not {self.last}: the newest may turn out to be bad, "
                "and then there would be nothing to fall back to"
            )
        if self.every < 0:
            raise ValueError(f"every must be 0 or a number of steps, not {self.every}")
        if self.best < 0:
            raise ValueError(f"best must be 0 or a number of snapshots, not {self.best}")


NOTHING_TOLD: Mapping[int, float] = {}


def expendable(
    ladder: Sequence[J], keep: Keep, in_use: Collection[str] = (), told: Mapping[int, float] = NOTHING_TOLD
) -> list[J]:
    """Rungs of a newest-first ladder that may be removed, oldest first. Names `in_use` are never among them.

    `told` are losses by step, which count where no payload tells one.
    """
    proven = [rung for rung in ladder if rung.verdict is not None and rung.verdict.proven]
    kept = {*in_use, *_best(proven, keep.best, told)}
    return [
        rung
        for rung in reversed(proven[keep.last :])
        if rung.name not in kept and not _on_schedule(rung.step, keep.every)
    ]


def _best(proven: Sequence[J], count: int, told: Mapping[int, float]) -> list[str]:
    """Names of those with the lowest losses. Of equal ones the oldest: a payload may tell the lowest loss so far.

    An unknown loss is never among the lowest, nor one that is not finite; and losses of two kinds are not compared.
    """
    oldest_first = proven[::-1]
    inside = {rung.name: rung.verdict.loss for rung in oldest_first if rung.verdict and rung.verdict.loss is not None}
    losses = inside or {
        rung.name: told[rung.step] for rung in oldest_first if rung.step is not None and rung.step in told
    }
    return sorted((name for name, loss in losses.items() if math.isfinite(loss)), key=losses.__getitem__)[:count]


def _on_schedule(step: int | None, every: int) -> bool:
    return every > 0 and step is not None and step % every == 0

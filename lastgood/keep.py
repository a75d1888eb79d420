"""Retention: which snapshots may go. One pure rule for the library and the supervisor, on the same verdicts.

Only proven snapshots are ever given up, and never the two newest of them. What is bad, unproven or not yet judged is
evidence or hope, and stays.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lastgood.choose import J

LEAST_KEPT = 2


@dataclass(frozen=True)
class Keep:
    """What to keep: the newest `last`, each whose step is a multiple of `every` (0: none of those)."""

    last: int = 3
    every: int = 0

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


def expendable(ladder: Sequence[J], keep: Keep, in_use: Collection[str] = ()) -> list[J]:
    """Rungs of a newest-first ladder that may be removed, oldest first. Names `in_use` are never among them."""
    proven = [rung for rung in ladder if rung.verdict is not None and rung.verdict.proven]
    return [
        rung
        for rung in reversed(proven[keep.last :])
        if rung.name not in in_use and not _on_schedule(rung.step, keep.every)
    ]


def _on_schedule(step: int | None, every: int) -> bool:
    return every > 0 and step is not None and step % every == 0

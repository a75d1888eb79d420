"""The plan of a campaign: which fault where, drawn from a seed. Pure. Where means at which step, never when."""

import random
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """What is done to the run."""

    KILL = "kill"
    """SIGKILL to the trainer."""
    KILL_WHILE_SAVING = "kill-while-saving"
    """SIGKILL while a snapshot is half written, proven by the partial of a stopped process."""
    TRUNCATE = "truncate"
    """SIGKILL, and the newest snapshot is cut in half while the trainer is dead."""


@dataclass(frozen=True)
class PlannedFault:
    """A fault to do once the trainer has told `at_step`."""

    id: str
    kind: FaultKind
    at_step: int


KINDS = (FaultKind.KILL, FaultKind.KILL_WHILE_SAVING, FaultKind.TRUNCATE, FaultKind.KILL)
FIRST_SHARE, LAST_SHARE = 0.15, 0.85  # before, too little is at stake; after, the run may be over before it is done


def draw(seed: int, final_step: int) -> tuple[PlannedFault, ...]:
    """The plan of `seed`: every kind, one in each of as many stretches of the run; never a truncation first.

    The first stretch may hold a single snapshot, and a run whose only snapshot is cut cannot go on. Raises ValueError
    when the run is too short to hold the faults.
    """
    generator = random.Random(seed)
    kinds = list(KINDS)
    generator.shuffle(kinds)
    if kinds[0] is FaultKind.TRUNCATE:
        kinds.append(kinds.pop(0))
    begin, end = int(final_step * FIRST_SHARE), int(final_step * LAST_SHARE)
    width = (end - begin) // len(kinds)
    if width < 2:
        raise ValueError(f"a run of {final_step} steps is too short for {len(kinds)} faults")
    return tuple(
        PlannedFault(f"{seed}-{number}", kind, begin + width * number + generator.randrange(width // 2 + 1))
        for number, kind in enumerate(kinds)
    )

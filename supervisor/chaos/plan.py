"""The plan of a campaign: which fault where, drawn from a seed. Pure. Where means at which step, never when."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """What is done to the run."""

    KILL = "kill"
    """SIGKILL to the trainer."""
    KILL_TREE = "kill-tree"
    """SIGKILL to the trainer and all that descends from it."""
    KILL_WHILE_SAVING = "kill-while-saving"
    """SIGKILL while a snapshot is half written, proven by the partial of a stopped process."""
    STOP = "stop"
    """SIGSTOP: the trainer lives and does nothing any more."""
    TERMINATE = "terminate"
    """SIGTERM from somebody else than its supervisor."""
    LEAK_A_GRANDCHILD = "leak-a-grandchild"
    """A process of the run that has left the trainer's tree and session, then SIGKILL to the trainer."""
    KILL_THE_SUPERVISOR = "kill-the-supervisor"
    """SIGKILL to the supervisor, which is then started again as a service manager would."""
    TRUNCATE = "truncate"
    """The newest snapshot is cut short while the trainer is dead; so for the kinds that follow."""
    EMPTY = "empty"
    """It has no bytes any more."""
    FLIP_BIT = "flip-bit"
    """One bit of it is another."""
    ZERO_PAGE = "zero-page"
    """4096 bytes of it are zeros."""
    ZERO_TAIL = "zero-tail"
    """From somewhere on it is zeros, as after a power cut."""
    DROP_SEAL = "drop-seal"
    """Its seal is gone; its bytes are good."""
    GARBLE_SEAL = "garble-seal"
    """Its seal tells another digest."""
    HALF_A_FOLDER = "half-a-folder"
    """A folder lies above it, sealed, of which one file is missing."""
    FLIP_BELOW = "flip-below-the-filesystem"
    """One bit of it is another on the device, behind the filesystem's back: no time, no size has changed."""
    FILL_DISK = "fill-disk"
    """The filesystem is full while the trainer saves."""


ON_STORAGE = frozenset(
    {
        FaultKind.TRUNCATE,
        FaultKind.EMPTY,
        FaultKind.FLIP_BIT,
        FaultKind.ZERO_PAGE,
        FaultKind.ZERO_TAIL,
        FaultKind.DROP_SEAL,
        FaultKind.GARBLE_SEAL,
        FaultKind.HALF_A_FOLDER,
        FaultKind.FLIP_BELOW,
    }
)
"""Those that are done to a snapshot while the trainer is dead."""

OWN_FILESYSTEM = frozenset({FaultKind.FLIP_BELOW, FaultKind.FILL_DISK})
"""Those that are done to nobody's filesystem but one that the campaign has made."""

MIXES: dict[str, dict[FaultKind, float]] = {
    "cluster": {
        FaultKind.KILL: 46.2,
        FaultKind.TERMINATE: 17.3,
        FaultKind.STOP: 9.9,
        FaultKind.FILL_DISK: 5.0,
        FaultKind.KILL_TREE: 1.8,
        FaultKind.KILL_THE_SUPERVISOR: 1.4,
        FaultKind.FLIP_BIT: 1.4,
        FaultKind.TRUNCATE: 0.7,
        FaultKind.ZERO_TAIL: 0.4,
    }
}
"""Kinds weighted by what fails in training clusters, in percent of all incidents; what has no counterpart here is left out.

Source: the incidents of three months of 778,135 jobs (ByteRobust, arXiv 2509.16293): CUDA errors 36.1 and want of memory 10.1
are `kill`, changes of code or data 17.3 `terminate`, jobs that stand still 9.9 `stop`, full disks 5.0 `fill-disk`, container
errors and kernel panics 1.8 `kill-tree`, a container that takes its supervisor along 1.4 `kill-the-supervisor`, and a panic's
unwritten bytes 0.4 `zero-tail`. What that does not count is from the 419 interruptions of Llama 3 405B (arXiv 2407.21783): silent
corruption 1.4 `flip-bit`, and SSDs 0.7 `truncate`.
"""

FIRST_SHARE, LAST_SHARE = 0.15, 0.85  # before, too little is at stake; after, the run may be over before it is done
STEPS_MIN = 2  # of the stretch that a fault has to itself


@dataclass(frozen=True)
class PlannedFault:
    """A fault to do once the trainer has told `at_step`; `share`, from 0 to 1, says where in a file or in a save."""

    id: str
    kind: FaultKind
    at_step: int
    share: float = 0.0


def draw(seed: int, final_step: int, count: int, weights: Mapping[FaultKind, float]) -> tuple[PlannedFault, ...]:
    """The plan of `seed`: so many faults, each in a stretch of the run of its own, the kinds as often as they weigh.

    No kind is left out where there are as many faults as kinds. Raises ValueError, in words, when the run is too short for them.
    """
    generator = random.Random(seed)
    begin, end = int(final_step * FIRST_SHARE), int(final_step * LAST_SHARE)
    width = (end - begin) // count
    if width < STEPS_MIN:
        most = (end - begin) // STEPS_MIN
        raise ValueError(f"a run of {final_step} steps is too short for {count} faults; it has room for {most}")
    kinds = [kind for kind, times in _counts(generator, count, weights).items() for _ in range(times)]
    generator.shuffle(kinds)
    return tuple(
        PlannedFault(
            f"{seed}-{number}", kind, begin + width * number + generator.randrange(width // 2 + 1), generator.random()
        )
        for number, kind in enumerate(kinds)
    )


def _counts(generator: random.Random, count: int, weights: Mapping[FaultKind, float]) -> dict[FaultKind, int]:
    """How often each kind: its share of all, rounded, and at least once where that is possible; what is left goes by lot."""
    kinds = sorted(weights)
    generator.shuffle(kinds)
    total = math.fsum(weights.values())
    due = {kind: count * weights[kind] / total for kind in kinds}
    least = 1 if count >= len(kinds) else 0
    counts = {kind: max(least, math.floor(due[kind])) for kind in kinds}
    while sum(counts.values()) < count:
        counts[max(kinds, key=lambda kind: due[kind] - counts[kind])] += 1
    while sum(counts.values()) > count:
        counts[max((k for k in kinds if counts[k] > least), key=lambda kind: counts[kind] - due[kind])] -= 1
    return counts

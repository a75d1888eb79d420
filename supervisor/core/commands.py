"""What to do, told by the core. Carried out in order by the runtime; what comes of them returns as events."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from supervisor.core.events import Deadline, RungFact
from supervisor.core.memory import Memory


@dataclass(frozen=True)
class JudgeLadder:
    """Read the directory and judge from the newest down to the first proven rung, reading bytes anew.

    Rungs named in `passing`, and those of a step above `above`, are judged and passed: they are not to be resumed from.
    """

    passing: frozenset[str] = frozenset()
    above: int | None = None


@dataclass(frozen=True)
class Reread:
    """Read the bytes of a snapshot again that was trusted as it was at that time of modification; SnapshotReread tells."""

    name: str
    mtime_ns: int


@dataclass(frozen=True)
class SpawnTrainer:
    """Start an incarnation from `snapshot`, or fresh when it is None; the data of the steps in `skip` is not to be used."""

    incarnation: int
    snapshot: RungFact | None
    skip: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class AskToStop:
    """SIGTERM to the leader, so that it saves."""


@dataclass(frozen=True)
class KeepEvidence:
    """Keep what each process of a stalled trainer is doing, before it is killed; `seconds` without a life sign in `stage`."""

    incarnation: int
    stage: str
    seconds: float


@dataclass(frozen=True)
class KillTree:
    """SIGKILL to everything that belongs to the incarnation."""


@dataclass(frozen=True)
class SweepTree:
    """Kill what is left of a dead incarnation and say whether anything survived."""

    incarnation: int


@dataclass(frozen=True)
class Arm:
    """Tell DeadlinePassed when `at` (monotonic seconds) comes; replaces an earlier one of the same name."""

    deadline: Deadline
    at: float


@dataclass(frozen=True)
class Disarm:
    """Forget deadlines."""

    deadlines: tuple[Deadline, ...]


@dataclass(frozen=True)
class SetAside:
    """Put a rung into quarantine, with the reason beside it."""

    rung: RungFact
    reason: str


@dataclass(frozen=True)
class PutBack:
    """Take a snapshot out of quarantine again, unless its name is taken by now."""

    name: str
    step: int | None


@dataclass(frozen=True)
class SealSnapshot:
    """Hash an unsealed snapshot that its writer outlived, and keep the digest."""

    name: str


@dataclass(frozen=True)
class PruneSnapshot:
    """Remove a snapshot that retention gave up."""

    rung: RungFact


@dataclass(frozen=True)
class SaveMemory:
    """Write what must outlive the supervisor."""

    memory: Memory


@dataclass(frozen=True)
class Record:
    """Write a record; its level is the catalogue's unless `level` says otherwise."""

    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    level: str | None = None


@dataclass(frozen=True)
class Exit:
    """End the supervisor with this status."""

    status: int


Command = (
    JudgeLadder
    | Reread
    | SpawnTrainer
    | AskToStop
    | KeepEvidence
    | KillTree
    | SweepTree
    | Arm
    | Disarm
    | SetAside
    | PutBack
    | SealSnapshot
    | PruneSnapshot
    | SaveMemory
    | Record
    | Exit
)

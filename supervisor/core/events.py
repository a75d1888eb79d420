"""What happened, told to the core. Frozen facts; every event of a child carries the incarnation it belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from lastgood.verdict import Kind, Verdict


@dataclass(frozen=True, slots=True)
class RungFact:
    """A candidate as the core sees it. `verdict` is None while its bytes have not been judged; `linked` says that
    another name in the directory leads to it, and `trusted` that the verdict is an earlier one of this supervisor about bytes
    that do not seem to have changed since.
    """

    name: str
    step: int | None
    mtime_ns: int = 0
    verdict: Verdict | None = None
    linked: bool = False
    trusted: bool = False

    def poisoned(self, reason: str) -> "RungFact":
        """The same, not to be used for a reason that its bytes do not tell; what is bad anyway stays as it is."""
        if self.verdict is None or not self.verdict.usable:
            return self
        return replace(self, verdict=self.verdict._replace(kind=Kind.POISONED, reason=reason))


class Deadline(StrEnum):
    """What may come too late."""

    STARTUP = "startup"
    RUNNING = "running"
    SAVING = "saving"
    EXIT = "exit"
    GRACE = "grace"
    BACKOFF = "backoff"
    RETRY = "retry"


class Obstacle(StrEnum):
    """What may stand in the way of a start, by the record that says so."""

    DISK = "disk.low"
    GPU_LOST = "gpu.lost"
    GPU_BUSY = "gpu.busy"


@dataclass(frozen=True)
class Hindrance:
    """Something stands in the way of a start; `fields` are those of its record."""

    obstacle: Obstacle
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LadderJudged:
    """The directory was read: its rungs, newest first, judged down to the first proven one.

    `arrived` names the rungs never told before; `ever_held` is whether the directory is known to have held a snapshot;
    `hindrance` is what stands in the way of a start now, and what may have ended the trainer that has just died.
    """

    rungs: tuple[RungFact, ...]
    ever_held: bool
    arrived: frozenset[str] = frozenset()
    hindrance: Hindrance | None = None


@dataclass(frozen=True)
class LadderUnreadable:
    """The directory could not be read; that says nothing about what it holds."""

    reason: str


@dataclass(frozen=True)
class TrainerSpawned:
    """A trainer was started; `standby` says that its process had been waiting to become it."""

    incarnation: int
    pid: int
    standby: bool = False


@dataclass(frozen=True)
class SpawnFailed:
    """A trainer could not be started: the system refused, or what runs before it failed and said `last_lines`."""

    incarnation: int
    reason: str
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepReported:
    """The trainer's output told a step, and perhaps its loss. `notes_late`: what it noted before that is not known yet.

    `others`: it told other steps in the same breath, of which this was the last.
    """

    incarnation: int
    step: int
    loss: float | None
    notes_late: bool = False
    others: bool = False


@dataclass(frozen=True)
class HeartbeatSeen:
    """The file whose mtime is a life sign was touched."""

    incarnation: int


@dataclass(frozen=True)
class SavingChanged:
    """A save of the trainer's was seen to be under way (`saving`), or to be so no more."""

    incarnation: int
    saving: bool


@dataclass(frozen=True, slots=True)
class SnapshotJudged:
    """A snapshot appeared or changed while the trainer ran, settled, and was judged. `notes_late` as for a step; `new_name`:
    nothing of that name was ever told, so that it need not be looked for among ten thousand.
    """

    rung: RungFact
    notes_late: bool = False
    new_name: bool = False


@dataclass(frozen=True)
class SnapshotSealed:
    """The bytes of an unsealed snapshot were hashed and the digest kept; it is healthy from now on."""

    rung: RungFact


@dataclass(frozen=True)
class SnapshotReread:
    """The bytes of a snapshot that was resumed from on trust were read again. Its verdict is None when it is no longer there.

    `reachable` says that the directory could be read, without which nothing was learnt.
    """

    rung: RungFact
    reachable: bool = True


@dataclass(frozen=True)
class SnapshotGone:
    """A snapshot is no longer in the directory, and it was not this supervisor that took it."""

    name: str


@dataclass(frozen=True)
class SaveFailed:
    """The trainer's own saving noted that a save failed. `errno` is the system's number, if it was the system."""

    incarnation: int
    step: int | None
    name: str
    reason: str
    errno: int | None
    blocking: bool


@dataclass(frozen=True)
class PassedOver:
    """A snapshot that a trainer's own loading would not take: its verdict in a word, and why."""

    name: str
    verdict: str
    reason: str


@dataclass(frozen=True)
class TrainerFellBack:
    """The trainer's own loading noted that it takes `chosen` instead of the `depth` newer ones it found bad."""

    incarnation: int
    newest_step: int | None
    chosen: str
    chosen_step: int | None
    depth: int
    rejected: tuple[PassedOver, ...]


@dataclass(frozen=True)
class EndingNoted:
    """A process of the trainer noted the status with which it is about to end, and perhaps at which step."""

    incarnation: int
    status: int
    step: int | None = None


@dataclass(frozen=True)
class TrainerExited:
    """The trainer's leader is dead. `fault` is the id of an injected fault aimed at it; `oom_kills` is how many processes of its
    memory group the kernel killed for want of memory while it lived, None where nobody counts. `shell`: it was one, and its end
    tells nothing of that of the trainer that it ran.
    """

    incarnation: int
    code: int | None
    signal: int | None
    fault: str | None = None
    last_lines: tuple[str, ...] = ()
    oom_kills: int | None = None
    shell: bool = False


@dataclass(frozen=True)
class TreeSwept:
    """All that belonged to an incarnation was killed; `survivors` are pids that would not die."""

    incarnation: int
    survivors: tuple[int, ...] = ()


@dataclass(frozen=True)
class DeadlinePassed:
    """An armed deadline passed."""

    deadline: Deadline
    incarnation: int


@dataclass(frozen=True)
class StopRequested:
    """Somebody wants the run to stop; `signal` is how it was said (15 or 2)."""

    signal: int


@dataclass(frozen=True)
class PauseRequested:
    """Somebody wants the trainer to make room and the run to wait."""


@dataclass(frozen=True)
class ResumeRequested:
    """Somebody wants a paused run to go on."""


@dataclass(frozen=True)
class SettingsChanged:
    """The policy is another one from now on."""


Event = (
    LadderJudged
    | LadderUnreadable
    | TrainerSpawned
    | SpawnFailed
    | StepReported
    | HeartbeatSeen
    | SavingChanged
    | SnapshotJudged
    | SnapshotSealed
    | SnapshotReread
    | SnapshotGone
    | SaveFailed
    | TrainerFellBack
    | EndingNoted
    | TrainerExited
    | TreeSwept
    | DeadlinePassed
    | StopRequested
    | PauseRequested
    | ResumeRequested
    | SettingsChanged
)

"""What happened, told to the core. Frozen facts; every event of a child carries the incarnation it belongs to."""

from dataclasses import dataclass
from enum import StrEnum

from lastgood.verdict import Verdict


@dataclass(frozen=True)
class RungFact:
    """A candidate as the core sees it. `verdict` is None while its bytes have not been judged; `linked` says that
    another name in the directory leads to it.
    """

    name: str
    step: int | None
    mtime_ns: int = 0
    verdict: Verdict | None = None
    linked: bool = False


class Deadline(StrEnum):
    """What may come too late."""

    STARTUP = "startup"
    RUNNING = "running"
    EXIT = "exit"
    GRACE = "grace"
    BACKOFF = "backoff"
    RETRY = "retry"


@dataclass(frozen=True)
class LadderJudged:
    """The directory was read: its rungs, newest first, judged down to the first proven one.

    `arrived` names the rungs never told before; `ever_held` is whether the directory is known to have held a snapshot.
    """

    rungs: tuple[RungFact, ...]
    ever_held: bool
    arrived: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LadderUnreadable:
    """The directory could not be read; that says nothing about what it holds."""

    reason: str


@dataclass(frozen=True)
class TrainerSpawned:
    """A trainer was started."""

    incarnation: int
    pid: int


@dataclass(frozen=True)
class SpawnFailed:
    """The system refused to start a trainer."""

    incarnation: int
    reason: str


@dataclass(frozen=True)
class StepReported:
    """The trainer's output told a step, and perhaps its loss."""

    incarnation: int
    step: int
    loss: float | None


@dataclass(frozen=True)
class SnapshotJudged:
    """A snapshot appeared or changed while the trainer ran, settled, and was judged."""

    rung: RungFact


@dataclass(frozen=True)
class SnapshotSealed:
    """The bytes of an unsealed snapshot were hashed and the digest kept; it is healthy from now on."""

    rung: RungFact


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
    """The trainer's leader is dead. `fault` is the id of an injected fault aimed at it."""

    incarnation: int
    code: int | None
    signal: int | None
    fault: str | None = None
    last_lines: tuple[str, ...] = ()


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


Event = (
    LadderJudged
    | LadderUnreadable
    | TrainerSpawned
    | SpawnFailed
    | StepReported
    | SnapshotJudged
    | SnapshotSealed
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
)

"""Where a run is: the phase, and all that the next decision needs to know. Frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lastgood.keep import Keep
from supervisor.core.budget import Limits
from supervisor.core.divergence import Losses
from supervisor.core.events import Hindrance, Obstacle, RungFact, TrainerExited, TrainerFellBack
from supervisor.core.memory import Memory


class Phase(StrEnum):
    """The phases of a run. The last three are its ends."""

    SELECTING = "selecting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    WAITING = "waiting"
    PAUSED = "paused"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


ENDS = frozenset({Phase.COMPLETED, Phase.STOPPED, Phase.FAILED})
LIVE = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING})
"""Phases in which a trainer may exist."""


class Resume(StrEnum):
    """How a trainer learns what to resume from."""

    TOLD = "told"
    """By the environment or by arguments."""
    SELF = "self"
    """It finds the newest itself, so that bad ones must be out of its sight."""
    NEVER = "never"
    """It always starts over, and whoever configured it said so."""


@dataclass(frozen=True)
class Stall:
    """Deadlines in seconds."""

    startup_seconds: float = 900.0
    running_seconds: float = 600.0
    saving_seconds: float = 900.0
    exit_seconds: float = 120.0


@dataclass(frozen=True)
class Policy:
    """The settings that decisions depend on. `keep` is None when the trainer rotates its snapshots itself.

    `low_steps_max` is how many steps in a row below the resumed one prove that a trainer ignores its snapshot: more than
    one where the pattern is a guess and may match a banner. `rollbacks` is how many divergences in a row are answered by
    stepping back; `skips_data` says that the trainer can be told to skip data.
    """

    final_step: int | None = None
    resume: Resume = Resume.TOLD
    keep: Keep | None = None
    limits: Limits = field(default_factory=Limits)
    stall: Stall = field(default_factory=Stall)
    grace_seconds: float = 60.0
    kill_seconds: float = 30.0
    retry_seconds: float = 5.0
    unreadable_tries: int = 3
    allow_fresh_start: bool = False
    exit_when_stuck: bool = False
    low_steps_max: int = 1
    rollbacks: int = 3
    skips_data: bool = False


class Ending(StrEnum):
    """Why a trainer is being ended by us."""

    STOP = "stop"
    PAUSE = "pause"
    STALLED = "stalled"
    IGNORED = "ignored"
    DIVERGED = "diverged"
    FINISHED = "finished"
    REFUTED = "refuted"


@dataclass(frozen=True)
class Life:
    """What is known of the present incarnation; replaced as a whole at each start.

    `low_steps` counts steps told in a row that lie below the resumed one, `high_steps` those that do not; `finishing` says
    that its final snapshot is proven. `pid` is its leader's. `resumed` is what it was told to resume from, or what it may
    have chosen and said instead. `reported` and `loss` are the newest told, and `moved` says that the step has changed: one
    that is told once more is no life sign from then on. `signs` counts life signs, `sign_at` is the time of the last one and
    `gap_seconds` the longest between two. `unsealed` are snapshots that await the next life sign to be sealed, and `held`
    those that count once it is sure that the trainer was started from good bytes. `checked` says that the first step was held
    against the resumed one. `fell_back` is what its own loading noted last, `said` the status that it noted last of its
    ending and `said_step` the step at which. `losses` is what the losses told. `told` are the newest by step. `saving` says
    that a save is under way, `no_room` is the error of one that failed for want of room.
    """

    pid: int | None = None
    resumed: RungFact | None = None
    reported: int | None = None
    loss: float | None = None
    progressed: bool = False
    moved: bool = False
    checked: bool = False
    low_steps: int = 0
    high_steps: int = 0
    finishing: bool = False
    signs: int = 0
    sign_at: float = 0.0
    gap_seconds: float = 0.0
    unsealed: tuple[str, ...] = ()
    held: tuple[RungFact, ...] = ()
    fell_back: TrainerFellBack | None = None
    said: int | None = None
    said_step: int | None = None
    losses: Losses = field(default_factory=Losses)
    told: tuple[tuple[int, float], ...] = ()
    saving: bool = False
    no_room: int | None = None


@dataclass(frozen=True)
class Wait:
    """A start is waited with: what stands in its way, and since when (monotonic seconds) something has."""

    obstacle: Obstacle
    since: float


@dataclass(frozen=True)
class State:
    """Everything the core knows. `memory` is the part that outlives the supervisor.

    `death` is an exit that has not been decided about; `ending` is why we are ending the trainer; `stop_signal` is the wish
    to stop, which nothing takes back; `pause` is the wish to pause; `tries` counts looks at which a rung could not be read,
    `clearings` those at which one was in the way, `away` says that the directory itself could not be read, and
    `fallback_to` to which rung a fallback was said, `given_up` what was set aside for a fresh start, all since the last
    start; `rereading` says that what was resumed from on trust is being read again, and `doubts` counts how often that could not
    be done; `killed` says that the tree was sent SIGKILL, `stuck` that it did not die of it; `failure` is (status, reason,
    advice) once the run must end in failure; `hindrance` is what the last look found in the way of a start, `wait` what is waited
    for, `faults` counts deaths of the machine's own faults without progress, and `awaits_seals` says that the last
    saves of a dead trainer are being sealed before its death is settled.
    """

    phase: Phase = Phase.SELECTING
    memory: Memory = field(default_factory=Memory)
    life: Life = field(default_factory=Life)
    rungs: tuple[RungFact, ...] = ()
    death: TrainerExited | None = None
    ending: Ending | None = None
    stop_signal: int | None = None
    pause: bool = False
    tries: int = 0
    doubts: int = 0
    rereading: bool = False
    clearings: int = 0
    away: bool = False
    fallback_to: str | None = None
    given_up: tuple[Mapping[str, str], ...] = ()
    killed: bool = False
    stuck: bool = False
    failure: tuple[int, str, str] | None = None
    hindrance: Hindrance | None = None
    wait: Wait | None = None
    faults: int = 0
    awaits_seals: bool = False

    @property
    def incarnation(self) -> int:
        """The present or last incarnation; 0 before the first."""
        return self.memory.incarnation

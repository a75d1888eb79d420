"""What a life is made of, drawn from its seed before it begins: a trainer, its settings, and the faults of its storm."""

import random
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from supervisor.settings import Settings

DIRECTORY = "/simulated"
PRE_START = ["prepare"]
FAULTS_MAX = 14
GAP_SECONDS = 45.0  # mean time between two faults of a storm: long enough for a restart, short enough to hit one


class Fault(StrEnum):
    """Everything that can go wrong in the fake world."""

    # the trainer
    CRASH = "crash"
    FAULT_SIGNAL = "fault-signal"
    KILLED = "killed"
    OUT_OF_MEMORY = "out-of-memory"
    CHAOS = "chaos"
    CRASH_LOOP = "crash-loop"
    DIE_ALONG = "takes-its-supervisor-along"
    USAGE = "usage"
    STALL = "stall"
    REPEAT = "repeats-its-step"
    DEAF = "ignores-sigterm"
    DIE_SAVING = "dies-while-saving"
    STALL_SAVING = "stalls-while-saving"
    SLOW_SAVE = "saves-slowly"
    QUIET = "says-nothing-but-beats"
    LEAK = "leaks-children"
    UNKILLABLE = "unkillable"
    DIVERGE = "diverges"
    IGNORE = "ignores-snapshot"
    GARBAGE = "garbage"
    EARLY_END = "exits-0-early"
    WILL_NOT_EXIT = "finishes-but-will-not-exit"
    FALL_BACK = "falls-back-by-itself"
    SPAWN_REFUSED = "spawn-refused"
    # what runs before the trainer
    PRE_START_FAILS = "pre-start-fails"
    PRE_START_STAYS = "pre-start-never-ends"
    PRE_START_BRINGS = "pre-start-brings-a-snapshot"
    PRE_START_CUT = "pre-start-cut-short"
    # the disk
    FLIP = "flips"
    TOUCHED_FLIP = "flips-and-touches"
    CUT = "cuts"
    SEAL_LOST = "seal-lost"
    SEAL_GARBLED = "seal-garbled"
    FULL = "full"
    SHORT = "short-of-room"
    READ_ERROR = "read-error"
    FORBIDDEN = "forbidden"
    AWAY = "directory-away"
    STUCK_RUNG = "cannot-be-moved"
    SLOW = "slow"
    # the GPU
    GPU_LOST = "gpu-lost"
    GPU_BUSY = "gpu-busy"
    # clocks and watching
    WALL_BACK = "wall-clock-back"
    WALL_AHEAD = "wall-clock-ahead"
    EVENTS_LOST = "events-lost"
    # the supervisor
    SUPERVISOR_KILLED = "supervisor-killed"
    SUPERVISOR_PAUSED = "supervisor-paused"
    POWER_CUT = "power-cut"
    STOP = "stop"
    PAUSE = "pause"
    PAUSED_STOP = "stopped-while-paused"
    STOP_TOLD = "told-to-stop"
    WISH_UNREADABLE = "wish-unreadable"
    LOCK_REMOVED = "lock-removed"
    # the config file, changed while the run goes on
    FINAL_RAISED = "final-step-raised"
    FINAL_LOWERED = "final-step-lowered"
    RAISED_LATE = "final-step-raised-at-the-end"
    RELOADED = "settings-changed"


WEIGHTS = {
    Fault.SUPERVISOR_KILLED: 4.0,
    Fault.FALL_BACK: 10.0,
    Fault.SEAL_LOST: 7.0,
    Fault.SEAL_GARBLED: 5.0,
    Fault.READ_ERROR: 9.0,
    Fault.USAGE: 2.0,
    Fault.REPEAT: 2.0,
    Fault.GPU_BUSY: 2.0,
    Fault.EVENTS_LOST: 2.0,
    Fault.WILL_NOT_EXIT: 2.0,
    Fault.AWAY: 1.5,
    Fault.POWER_CUT: 2.0,
    Fault.FAULT_SIGNAL: 1.5,
    Fault.LEAK: 1.5,
    Fault.DEAF: 2.0,
    Fault.FLIP: 2.0,
    Fault.PAUSE: 2.0,
    Fault.CUT: 2.0,
    Fault.CRASH: 2.0,
    Fault.IGNORE: 2.0,
    Fault.GARBAGE: 2.0,
    Fault.SPAWN_REFUSED: 2.0,
    Fault.FORBIDDEN: 2.5,
    Fault.STUCK_RUNG: 2.0,
    Fault.SLOW_SAVE: 3.0,
    Fault.STALL_SAVING: 2.0,
    Fault.PRE_START_FAILS: 2.0,
    Fault.PRE_START_STAYS: 3.0,
    Fault.PRE_START_BRINGS: 4.0,
    Fault.PRE_START_CUT: 5.0,
    Fault.PAUSED_STOP: 2.0,
    Fault.WISH_UNREADABLE: 2.0,
    Fault.RAISED_LATE: 3.0,
    Fault.FINAL_RAISED: 2.0,
    Fault.FINAL_LOWERED: 2.0,
    Fault.RELOADED: 4.0,
}
"""How often a kind is drawn, where that is not 1."""

OF_SEALED = frozenset({Fault.SLOW_SAVE, Fault.FALL_BACK, Fault.SEAL_LOST, Fault.SEAL_GARBLED})
"""What only a trainer can meet that seals and verifies."""

OF_PRE_START = (Fault.PRE_START_FAILS, Fault.PRE_START_STAYS, Fault.PRE_START_BRINGS, Fault.PRE_START_CUT)
OF_FINAL_STEP = frozenset({Fault.FINAL_RAISED, Fault.FINAL_LOWERED, Fault.RAISED_LATE})

COME_ALONG = frozenset(
    {
        "unsynced-lost",
        "torn-save",
        "looked-at-few",
        "save-failed",
        "memory-not-saved",
        "set-aside-refused",
        "stopped-before-the-trainer",
        "killed-before-the-trainer",
        "status-not-written",
        "small-file-late",
        "standby",
        "done-and-reopened",
    }
)
"""What nobody plans: it comes of the faults above, and is counted all the same."""


class Style(StrEnum):
    """How a trainer saves."""

    SEALED = "sealed"
    """As the bundled one: atomic, synced, with a seal; it verifies what it loads."""
    RENAMED = "renamed"
    """Whole at once, with checksums inside, not synced."""
    IN_PLACE = "in-place"
    """Under its final name from the first byte on, with checksums inside, not synced."""
    BARE = "bare"
    """As in-place, in a format without any checksums."""


@dataclass(frozen=True)
class Planned:
    """One fault: when (seconds since the life began), what, and a number in [0, 1) for whatever else must be decided."""

    at: float
    kind: Fault
    dice: float


@dataclass(frozen=True)
class Config:
    """What of the config file a person changes while the run goes on."""

    keep: int | None
    every: int
    final_step: int | None
    startup_seconds: float = 60.0
    running_seconds: float = 45.0
    without_progress: int = 4


@dataclass(frozen=True)
class Plan:
    """One life. `adopted` is how many snapshots lie there before the first start; `shell` starts the trainer below one, and
    `pre_start` something before it.
    """

    seed: int
    style: Style
    resume: str
    config: Config
    last_step: int
    save_every: int
    adopted: int
    shell: bool
    pre_start: bool
    faults: tuple[Planned, ...]

    def settings(self, config: Config) -> Settings:
        """The settings of its supervisor, as the config file says."""
        return _settings(self.style, self.resume, self.pre_start, config)

    def name_of(self, step: int) -> str:
        """What a snapshot of a step is called."""
        return f"ckpt_{step:08d}.pt" if self.style is Style.SEALED else f"step_{step}.pt"

    def told(self) -> str:
        """For a person who wants to know what this life was about."""
        head = (
            f"{self.style} trainer, resume {self.resume}, keep {self.config.keep} every {self.config.every}, "
            f"final_step {self.config.final_step} of {self.last_step}, saves every {self.save_every}, "
            f"{self.adopted} adopted{', below a shell' * self.shell}{', with pre_start' * self.pre_start}"
        )
        return "\n".join([head, *(f"  {one.at:7.1f} s  {one.kind} ({one.dice:.3f})" for one in self.faults)])


def drawn(seed: int) -> Plan:
    """The plan of a seed."""
    dice = random.Random(seed)
    style = dice.choice(list(Style))
    last_step = dice.randint(30, 60)
    resume = "env" if style is Style.SEALED else "--from={snapshot}"
    if dice.random() < 0.2:
        resume = "self"
    elif dice.random() < 0.03:
        resume = "never"
    config = Config(
        keep=dice.choice([2, 2, 3, None]) if style is not Style.SEALED else dice.choice([2, 3]),
        every=dice.choice([0, 0, 20]),
        final_step=dice.choice([last_step, last_step, None]),
        running_seconds=dice.choice([45.0, 45.0, 90.0]),
    )
    pre_start = dice.random() < 0.3
    impossible: frozenset[Fault] = frozenset() if style is Style.SEALED else OF_SEALED
    impossible |= frozenset(OF_PRE_START)
    impossible |= OF_FINAL_STEP if config.final_step is None else frozenset()
    return Plan(
        seed=seed,
        style=style,
        resume=resume,
        config=config,
        last_step=last_step,
        save_every=dice.randint(3, 8),
        adopted=dice.choice([0, 0, 0, 3]),
        shell=dice.random() < 0.2,
        pre_start=pre_start,
        faults=_faults(dice, impossible, OF_PRE_START if pre_start else ()),
    )


def _faults(dice: random.Random, impossible: frozenset[Fault], certain: tuple[Fault, ...]) -> tuple[Planned, ...]:
    possible = [kind for kind in Fault if kind not in impossible]
    kinds = dice.sample(possible, k=dice.randint(3, 12))  # few kinds a life, so that they meet again and again
    kinds += certain
    weights = [WEIGHTS.get(kind, 1) for kind in kinds]
    at, found = 0.0, []
    for _ in range(dice.randint(0, FAULTS_MAX)):
        at += dice.expovariate(1 / GAP_SECONDS)
        found.append(Planned(at, dice.choices(kinds, weights)[0], dice.random()))
    return tuple(found)


@cache
def _settings(style: Style, resume: str, pre_start: bool, config: Config) -> Settings:
    sealed = style is Style.SEALED
    return Settings.model_validate(
        {
            "run": {"final_step": config.final_step},
            "trainer": {
                "command": ["python", "-m", "trainer"] if sealed else ["python", "train.py"],
                "preset": "lastgood" if sealed else "command",
                "resume": resume,
                "grace_seconds": 20.0,
                "heartbeat": "beat",
                "pre_start": PRE_START if pre_start else [],
            },
            "checkpoints": {
                "dir": DIRECTORY,
                "keep": None if config.keep is None else {"last": config.keep, "every": config.every},
                "settle_seconds": 1.0,
                "rescan_seconds": 60.0,
            },
            "restarts": {
                "without_progress": config.without_progress,
                "per_window": 20,
                "window_seconds": 3600.0,
                "backoff_seconds": [1.0, 60.0],
            },
            "stall": {
                "startup_seconds": config.startup_seconds,
                "running_seconds": config.running_seconds,
                "saving_seconds": 150.0,
                "exit_seconds": 20.0,
            },
        }
    )


def kinds() -> list[str]:
    """Every kind of fault that is counted."""
    return sorted({str(kind) for kind in Fault} | COME_ALONG)

"""What a life is made of, drawn from its seed before it begins: a trainer, its settings, and the faults of its storm."""

import random
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from supervisor.settings import Settings

DIRECTORY = "/simulated"
FAULTS_MAX = 12
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
    LOCK_REMOVED = "lock-removed"


WEIGHTS = {
    Fault.SUPERVISOR_KILLED: 4.0,
    Fault.FALL_BACK: 4.0,
    Fault.SEAL_LOST: 3.0,
    Fault.SEAL_GARBLED: 3.0,
    Fault.READ_ERROR: 3.0,
    Fault.FLIP: 2.0,
    Fault.PAUSE: 2.0,
    Fault.CUT: 2.0,
    Fault.CRASH: 2.0,
    Fault.IGNORE: 2.0,
    Fault.GARBAGE: 2.0,
    Fault.SPAWN_REFUSED: 2.0,
    Fault.FORBIDDEN: 2.0,
    Fault.STUCK_RUNG: 2.0,
    Fault.SLOW_SAVE: 3.0,
    Fault.STALL_SAVING: 2.0,
}
"""How often a kind is drawn, where that is not 1."""

OF_SEALED = frozenset({Fault.SLOW_SAVE, Fault.FALL_BACK, Fault.SEAL_LOST, Fault.SEAL_GARBLED})
"""What only a trainer can meet that seals and verifies; `GARBAGE` is what only others print."""

COME_ALONG = frozenset({"unsynced-lost", "torn-save", "save-failed", "memory-not-saved", "set-aside-refused"})
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
class Plan:
    """One life. `adopted` is how many snapshots lie there before the first start; `shell` starts the trainer below one."""

    seed: int
    style: Style
    resume: str
    keep: int | None
    every: int
    final_step: int | None
    last_step: int
    save_every: int
    adopted: int
    shell: bool
    faults: tuple[Planned, ...]

    def settings(self) -> Settings:
        """The settings of its supervisor."""
        return _settings(self.style, self.resume, self.keep, self.every, self.final_step)

    def told(self) -> str:
        """For a person who wants to know what this life was about."""
        head = (
            f"{self.style} trainer, resume {self.resume}, keep {self.keep} every {self.every}, "
            f"final_step {self.final_step} of {self.last_step}, saves every {self.save_every}, "
            f"{self.adopted} adopted{', below a shell' * self.shell}"
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
    return Plan(
        seed=seed,
        style=style,
        resume=resume,
        keep=dice.choice([2, 2, 3, None]) if style is not Style.SEALED else dice.choice([2, 3]),
        every=dice.choice([0, 0, 20]),
        final_step=dice.choice([last_step, last_step, None]),
        last_step=last_step,
        save_every=dice.randint(3, 8),
        adopted=dice.choice([0, 0, 0, 3]),
        shell=dice.random() < 0.2,
        faults=_faults(dice, style),
    )


def _faults(dice: random.Random, style: Style) -> tuple[Planned, ...]:
    impossible = {Fault.GARBAGE} if style is Style.SEALED else OF_SEALED
    possible = [kind for kind in Fault if kind not in impossible]
    kinds = dice.sample(possible, k=dice.randint(3, 12))  # few kinds a life, so that they meet again and again
    weights = [WEIGHTS.get(kind, 1) for kind in kinds]
    at, found = 0.0, []
    for _ in range(dice.randint(0, FAULTS_MAX)):
        at += dice.expovariate(1 / GAP_SECONDS)
        found.append(Planned(at, dice.choices(kinds, weights)[0], dice.random()))
    return tuple(found)


@cache
def _settings(style: Style, resume: str, keep: int | None, every: int, final_step: int | None) -> Settings:
    sealed = style is Style.SEALED
    return Settings.model_validate(
        {
            "run": {"final_step": final_step},
            "trainer": {
                "command": ["python", "-m", "trainer"] if sealed else ["python", "train.py"],
                "preset": "lastgood" if sealed else "command",
                "resume": resume,
                "grace_seconds": 20.0,
                "heartbeat": "beat",
            },
            "checkpoints": {
                "dir": DIRECTORY,
                "keep": None if keep is None else {"last": keep, "every": every},
                "settle_seconds": 1.0,
                "rescan_seconds": 15.0,
            },
            "restarts": {
                "without_progress": 4,
                "per_window": 20,
                "window_seconds": 3600.0,
                "backoff_seconds": [1.0, 60.0],
            },
            "stall": {"startup_seconds": 60.0, "running_seconds": 45.0, "saving_seconds": 150.0, "exit_seconds": 20.0},
        }
    )


def kinds() -> list[str]:
    """Every kind of fault that is counted."""
    return sorted({str(kind) for kind in Fault} | COME_ALONG)

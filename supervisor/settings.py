"""The settings of a run: one YAML file, one frozen tree, every mistake told in one line.

A key that this version accepts without acting on it yet is marked so, and the supervisor's first record names those that
were set: a setting that does nothing must not look as if it did.
"""

import itertools
import shlex
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lastgood.keep import Keep
from lastgood.naming import rule_for
from supervisor.core.budget import Limits
from supervisor.core.state import Policy, Resume, Stall
from supervisor.errors import nearest
from supervisor.notify import Target
from supervisor.presets import PRESETS, Preset
from supervisor.setting_values import Seconds, Switch, Variables, Word, Words, compiled, keyed

_NOT_YET: dict[str, Any] = {"not_yet": True}


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Run(_Part):
    """What the run is."""

    name: str = Field("run", min_length=1, description="How records, units and people call it.")
    final_step: int | None = Field(
        None,
        ge=1,
        le=2**53,
        description="The run is done when it reaches this step. null: when the trainer exits with 0.",
    )


class Trainer(_Part):
    """How the trainer is started, told to resume, and stopped."""

    command: Words = Field(
        default_factory=list, description="A list of arguments, or one string split as a shell would split it."
    )
    preset: str | None = Field(
        None,
        description="Which kind of trainer it is: lastgood, nanogpt or command. null: lastgood for `-m trainer`, else command.",
    )
    resume: Word | None = Field(
        None, description="env, self, never, or arguments with {snapshot}, {step}, {dir}. null: as the preset does."
    )
    step_pattern: str | None = Field(
        None, description="Regular expression with groups step and loss for an output line. null: the preset's."
    )
    heartbeat: Word | None = Field(None, description="A file whose mtime is a life sign whenever it changes.")
    pre_start: Words = Field(
        default_factory=list,
        description="A command before each start, which fails if this does or outlasts startup_seconds.",
    )
    cwd: Word = Field(".", description="Working directory of the trainer.")
    env: Variables = Field(
        default_factory=dict, description="Variables added to its environment; their values never reach a record."
    )
    standby: Switch = Field(
        "auto", description="Start the next process in advance; auto: the bundled trainer's, on: of any Python command."
    )
    grace_seconds: Seconds = Field(60.0, description="Time between asking it to stop and SIGKILL; longer than a save.")


class KeepSettings(_Part):
    """Retention."""

    last: int = Field(3, description="How many of the newest proven snapshots stay; at least 2.")
    every: int = Field(0, ge=0, description="Snapshots whose step is a multiple of this stay for good; 0: none.")
    best: int = Field(1, ge=0, description="How many with the lowest loss, in them or else told at their step, stay.")

    def rule(self) -> Keep:
        """What to keep. Raises ValueError."""
        return Keep(self.last, self.every, self.best)


class Checkpoints(_Part):
    """Where snapshots appear and what is kept of them."""

    dir: Word = Field("", description="The checkpoint directory.")
    pattern: str | None = Field(
        None, description="Names of snapshots: ckpt_{step}.pt, or a regular expression. null: the preset's."
    )
    keep: KeepSettings | None = Field(
        None,
        description="Retention. null: as below for the bundled trainer, everything for trainers that rotate themselves.",
    )
    shelf: int = Field(
        3, ge=2, description="Sealed copies kept of a file overwritten in place, where keep does not say otherwise."
    )
    quarantine_bytes: int = Field(0, ge=0, description="Broken ones that stay in quarantine on a full disk.")
    settle_seconds: Seconds = Field(1.0, description="A file unchanged for this long is no longer being written.")
    rescan_seconds: Seconds = Field(5.0, le=86_400, description="How often to look for what no file event told of.")


class Restarts(_Part):
    """When to give up, and how long to wait before trying again."""

    without_progress: int = Field(5, ge=1, description="Deaths in a row without progress that end the run.")
    per_window: int = Field(20, ge=1, description="More deaths than this in a window raise the delay to its largest.")
    window_seconds: Seconds = Field(3600.0, description="Length of that window.")
    backoff_seconds: Annotated[list[Seconds], Field(min_length=2, max_length=2)] = Field(
        default_factory=lambda: [1.0, 300.0], description="First and largest delay; it doubles in between."
    )


class StallSettings(_Part):
    """How long silence may last."""

    startup_seconds: Seconds = Field(900.0, description="Until the first life sign.")
    running_seconds: Seconds = Field(600.0, description="Between life signs; at least five times the longest gap seen.")
    saving_seconds: Seconds = Field(900.0, description="While a save is under way, in place of the two above.")
    exit_seconds: Seconds = Field(120.0, description="Between the final snapshot and the trainer's exit.")


class Divergence(_Part):
    """What to do about a loss that is not finite."""

    rollbacks: int = Field(3, ge=0, description="How often in a row to step back before the run ends.")


class Log(_Part):
    """Records on standard output."""

    format: Literal["auto", "json", "text"] = Field(
        "auto", description="auto: text on a terminal, JSON lines elsewhere."
    )
    level: Literal["info", "warning", "error"] = Field("info", description="Least level shown; events.jsonl has all.")


class Chaos(_Part):
    """Kills on purpose while the run goes on, to prove that it bears them."""

    mean_seconds: Seconds | None = Field(
        None, gt=0, description="Time between two kills of the trainer, on average. null: none is killed."
    )
    kinds: Annotated[list[Literal["kill", "kill-tree"]], Field(min_length=1)] = Field(
        ["kill"], description="How: kill is SIGKILL to it, kill-tree to all below it too."
    )
    seed: int = Field(1, description="Decides when and how.")


class Metrics(_Part):
    """Numbers for Prometheus."""

    listen: str | None = Field(None, description="Address and port.", json_schema_extra=_NOT_YET)


class Settings(_Part):
    """All settings of a run."""

    run: Run = Run()
    trainer: Trainer = Trainer()
    checkpoints: Checkpoints = Checkpoints()
    restarts: Restarts = Restarts()
    stall: StallSettings = StallSettings()
    divergence: Divergence = Divergence()
    notify: list[Target] = Field(
        default_factory=list,
        description="Where records are sent: Apprise URLs, commands (JSON on stdin), or "
        "{url or command, level, events, timeout_seconds}.",
    )
    chaos: Chaos = Chaos()
    log: Log = Log()
    metrics: Metrics = Metrics()

    @model_validator(mode="before")
    @classmethod
    def _empty_sections_count_as_absent(cls, tree: Any) -> Any:
        """`restarts:` with everything below it commented out."""
        if not isinstance(tree, dict):
            return tree
        return {key: part for key, part in tree.items() if part is not None or key not in cls.model_fields}

    @model_validator(mode="after")
    def _fits_together(self) -> "Settings":
        _check(self)
        return self

    @property
    def preset(self) -> Preset:
        """The preset in use."""
        return PRESETS[self.preset_name]

    @property
    def bundled(self) -> bool:
        """Whether the command runs the bundled trainer."""
        words = itertools.takewhile(lambda word: not word.endswith(".py"), self.trainer.command)
        return any(pair == ("-m", "trainer") for pair in itertools.pairwise(words))

    @property
    def preset_name(self) -> str:
        """The name of the preset in use."""
        return self.trainer.preset or ("lastgood" if self.bundled else "command")

    @property
    def prunes(self) -> bool:
        """Whether the supervisor removes old snapshots; a trainer that rotates its own is left to it unless told otherwise."""
        return self.preset.in_place is None and (self.checkpoints.keep is not None or not self.preset.rotates)

    @property
    def shelf_keep(self) -> Keep:
        """What is kept on the shelf."""
        keep = self.checkpoints.keep
        return Keep(self.checkpoints.shelf) if keep is None else keep.rule()

    @property
    def resume(self) -> str:
        """How a snapshot is given to the trainer: env, self, never or arguments."""
        return self.trainer.resume or self.preset.resume or ""

    @property
    def pattern(self) -> str | None:
        """Names of snapshots."""
        return self.checkpoints.pattern or self.preset.pattern

    @property
    def step_pattern(self) -> str:
        """Finds the step in an output line."""
        return self.trainer.step_pattern or self.preset.step_pattern

    def policy(self, allow_fresh_start: bool = False, exit_when_stuck: bool = False) -> Policy:
        """What the core's decisions depend on."""
        keep = (self.checkpoints.keep or KeepSettings()) if self.prunes else None
        first, largest = self.restarts.backoff_seconds
        return Policy(
            final_step=self.run.final_step,
            resume=Resume(self.resume) if self.resume in ("self", "never") else Resume.TOLD,
            keep=None if keep is None else keep.rule(),
            limits=Limits(
                self.restarts.without_progress, self.restarts.per_window, self.restarts.window_seconds, (first, largest)
            ),
            stall=Stall(**self.stall.model_dump()),
            grace_seconds=self.trainer.grace_seconds,
            retry_seconds=min(Policy.retry_seconds, max(0.1, self.checkpoints.rescan_seconds)),
            allow_fresh_start=allow_fresh_start,
            exit_when_stuck=exit_when_stuck,
            rollbacks=self.divergence.rollbacks,
            skips_data=self.preset_name == "lastgood",
            low_steps_max=1 if self.preset.knows_steps or self.trainer.step_pattern else 2,
        )


RESUME_CHOICES = (
    "--resume env (LASTGOOD_RESUME_FROM in its environment), --resume '--resume_from={snapshot}' (arguments), "
    "--resume self (it finds the newest itself) or --resume never (it always starts over)"
)


def _check(settings: Settings) -> None:
    """Refuse what cannot work together. Raises ValueError as `key: reason`."""
    trainer, checkpoints = settings.trainer, settings.checkpoints
    if trainer.preset is not None and trainer.preset not in PRESETS:
        raise ValueError(
            f"trainer.preset: {trainer.preset!r} is not one of {', '.join(PRESETS)}{nearest(trainer.preset, PRESETS)}"
        )
    if not trainer.command:
        raise ValueError("trainer.command: there is no command to run; write it as a list, [python, train.py]")
    if not checkpoints.dir:
        raise ValueError("checkpoints.dir: it is not said where snapshots appear; write a folder, out/my-run")
    _check_in_place(settings)
    _check_resume(settings)
    _check_patterns(settings)
    if (keep := checkpoints.keep) is not None:
        keyed("checkpoints.keep.last", lambda: Keep(keep.last))
    first, largest = settings.restarts.backoff_seconds
    if first > largest:
        raise ValueError(f"restarts.backoff_seconds: the first delay {first} is larger than the largest {largest}")


def _check_in_place(settings: Settings) -> None:
    """A trainer with a shelf has one file and one way to resume from it."""
    name, preset = settings.preset.in_place, settings.preset_name
    if name is None:
        return
    if settings.trainer.resume is not None:
        raise ValueError(
            f"trainer.resume: with the preset {preset} the newest good {name} is put in place and "
            f"{' '.join(settings.preset.resume_arguments)} is added; leave it out"
        )
    if settings.checkpoints.pattern is not None:
        raise ValueError(
            f"checkpoints.pattern: with the preset {preset} the snapshot is {name}; leave it out, or use the preset command"
        )


def _check_resume(settings: Settings) -> None:
    how = settings.resume
    if not how:
        raise ValueError(f"trainer.resume: how this command takes a snapshot is not known; say one of {RESUME_CHOICES}")
    if how not in ("env", "self", "never") and "{snapshot}" not in how and "{step}" not in how:
        raise ValueError(f"trainer.resume: {how!r} holds no {{snapshot}}; say one of {RESUME_CHOICES}")
    if any("{snapshot}" in word for word in settings.trainer.command):
        raise ValueError(
            "trainer.command: it holds {snapshot}, which a first start does not have; move that argument to trainer.resume"
        )
    keyed("trainer.resume", lambda: shlex.split(how))


def _check_patterns(settings: Settings) -> None:
    keyed("checkpoints.pattern", lambda: rule_for(settings.pattern))
    groups = keyed("trainer.step_pattern", lambda: compiled(settings.step_pattern)).groupindex
    if "step" not in groups:
        raise ValueError("trainer.step_pattern: it has no group named step; write (?P<step>\\d+) where the step is")


def inert(settings: BaseModel, prefix: str = "") -> list[str]:
    """Keys that were set to something else than their default, and that this version does not act on."""
    found: list[str] = []
    for name, field in type(settings).model_fields.items():
        value, key = getattr(settings, name), f"{prefix}{name}"
        if isinstance(value, BaseModel):
            found += inert(value, f"{key}.")
        elif (field.json_schema_extra or {}) == _NOT_YET and value != field.get_default(call_default_factory=True):
            found.append(key)
    return found

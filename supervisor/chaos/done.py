"""What an injector has done, and what has to follow."""

from dataclasses import dataclass, field

from supervisor.chaos.plan import PlannedFault


class TooLateError(Exception):
    """The run was over, or gone, before the fault could be done."""


@dataclass
class Done:
    """A fault that was done: when (unix seconds), at which step, and what must follow from it.

    `proof` says how it is known to have happened; `expected` names the snapshot that must be chosen next, where it
    `ends_the_trainer`, and `cause` what the death must be put down to, if anybody was there to do so. `lay_there` counts the
    snapshots once the trainer was dead, `good` those that were good after the fault, and `broken` is the name and the digest of
    one that must be kept, set aside, from then on. `problems` is what the injector itself saw go wrong.
    """

    fault: PlannedFault
    at: float = 0.0
    step: int = 0
    proof: str = ""
    expected: str | None = None
    cause: str | None = "chaos"
    ends_the_trainer: bool = True
    lay_there: int = 0
    good: int = 0
    broken: tuple[str, str] | None = None
    problems: list[str] = field(default_factory=list)

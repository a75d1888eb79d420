"""`lastgood chaos`: a seeded campaign of faults against a run, with an oracle."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from supervisor.chaos.plan import FaultKind


def chaos(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A run's YAML file.")],
    faults: Annotated[int, typer.Option(min=1, help="How many faults.")] = 12,
    seed: Annotated[int, typer.Option(help="Decides every fault's place; the same seed, the same plan.")] = 1,
    kinds: Annotated[str, typer.Option(metavar="A,B", help="Only these kinds, as often as each other.")] = "",
) -> None:
    """Run CONFIG unbroken, then under faults, and compare.

    The faults are injected as the seed decides. Exit 0 only when nothing differs.
    """
    from supervisor.chaos.campaign import Asked, campaign

    sys.exit(0 if campaign(Asked(config, faults, seed, _kinds(kinds))).passed else 1)


def _kinds(words: str) -> "tuple[FaultKind, ...]":
    from supervisor.chaos.plan import FaultKind
    from supervisor.errors import UsageError

    named = [word.strip() for word in words.split(",") if word.strip()]
    unknown = [word for word in named if word not in list(FaultKind)]
    if unknown:
        raise UsageError(f"chaos: --kinds: {unknown[0]!r} is no kind of fault; they are {', '.join(FaultKind)}")
    return tuple(dict.fromkeys(FaultKind(word) for word in named))

"""`lastgood chaos`: a seeded campaign of faults against a run, with an oracle."""

import sys
from typing import Annotated

import typer


def chaos(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A run's YAML file.")],
    seed: Annotated[int, typer.Option(help="Decides every fault's place; the same seed, the same plan.")] = 1,
) -> None:
    """Run CONFIG unbroken, then under faults, and compare.

    The faults are injected as the seed decides. Exit 0 only when nothing differs.
    """
    from supervisor.chaos.campaign import campaign

    sys.exit(campaign(config, seed))

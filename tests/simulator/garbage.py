"""Lines that look like steps and tell nothing true of their trainer; what of them the product's own parser lets through."""

import math
import re
from typing import TYPE_CHECKING

from supervisor.lines import StepFinder
from tests.simulator.plan import Fault

if TYPE_CHECKING:
    from tests.simulator.processes import Trainer

LINE_BYTES_MAX = 16 << 10
LARGEST = 1 << 53  # what the parser still takes for a step
BEYOND_MAX = 100


def print_garbage(trainer: "Trainer", share: float) -> None:
    """Print one such line in this share of the occasions, if that fault waits and this trainer has printed none yet.

    Where the format was declared, the first line is the trainer's word on where it begins, and so is never one of these. It is
    never its last word either: one that tells the final step and ends with 0 has said that it is done. What the parser does not
    take for a step is not met, and the fault waits on.
    """
    world, tell = trainer.world, trainer.print
    if not world.armed[Fault.GARBAGE] or tell is None or trainer.garbled or world.random.random() >= share:
        return
    if not trainer.heard and not world.may_print_banner:
        return
    line = world.random.choice(_lines(trainer))
    found = _parsed(line, world.plan.settings(world.config).step_pattern)
    world.tell("garbage", line[:60], found)
    if found is None or not world.take(Fault.GARBAGE):
        return
    step, loss = found
    trainer.garbled, trainer.heard = True, 0
    if loss is not None and not math.isfinite(loss):
        trainer.bad_losses = 1
    tell(step, loss)


def _lines(trainer: "Trainer") -> list[str]:
    step, dice = trainer.step, trainer.world.random
    told: list[tuple[int, str]] = [(0, "?"), (10**18, "2.0"), (10**400, "2.0"), (-1 - step, "2.0")]
    beyond, earlier = trainer.last_step + dice.randint(1, BEYOND_MAX), dice.randint(0, step)
    told += [(one, loss) for one in (LARGEST, beyond, earlier) for loss in ("2.0", "?")]
    if not trainer.bad_losses:  # else it is none, but the divergence that is under way
        told += [(step, "nan"), (step, "inf")]
    return [f"iter {one}: loss {loss}, so far" for one, loss in told]


def _parsed(line: str, pattern: str) -> tuple[int, float | None] | None:
    """The step and the loss that are handed to the core."""
    found = StepFinder(re.compile(pattern.encode(), re.MULTILINE), LINE_BYTES_MAX).feed(f"{line}\n".encode())
    return None if found is None else found[:2]

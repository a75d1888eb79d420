"""A loss that stops being finite: how far to step back, and when to skip the data instead. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from supervisor.core.events import RungFact

LOSSES_TO_DIVERGE = 2
"""Losses in a row that are not finite; one alone may be what a loss scaler skips."""

Stretch = tuple[int, int]
"""First and last step whose data is not to be used."""


@dataclass(frozen=True)
class Losses:
    """What the losses of one incarnation tell: the last step with a finite one, and those since that were not."""

    finite: int | None = None
    first_bad: int | None = None
    bad: int = 0

    @property
    def diverged(self) -> bool:
        """Whether they say that training has gone wrong."""
        return self.bad >= LOSSES_TO_DIVERGE

    def is_after_finite(self, step: int | None) -> bool:
        """Whether a snapshot of this step was saved when the loss was no longer finite."""
        return self.bad > 0 and step is not None and (self.finite is None or step > self.finite)


def heard(losses: Losses, step: int, loss: float | None) -> Losses:
    """The losses after one more report; a step without a loss says nothing."""
    if loss is None:
        return losses
    if math.isfinite(loss):
        return Losses(finite=step)
    return replace(losses, first_bad=losses.first_bad if losses.bad else step, bad=losses.bad + 1)


@dataclass(frozen=True)
class Divergence:
    """Divergences in a row: the step of the last one, how many, and the last step before it whose loss was finite.

    `finite` is None where the trainer itself stopped before it saved anything that was not.
    """

    step: int | None
    times: int = 1
    finite: int | None = None


def after(before: Divergence | None, step: int | None, finite: int | None) -> Divergence:
    """One more divergence, at `step`."""
    return Divergence(step, 1 if before is None else before.times + 1, finite)


def stretch(before: Divergence | None, now: Divergence, start: int | None) -> Stretch | None:
    """The steps after `start` to skip, if this is not the first divergence at that step: from a rollback alone it comes again."""
    if before is None or now.step is None or before.step != now.step:
        return None
    return ((now.step if start is None else min(start + 1, now.step)), now.step)


def passed(divergence: Divergence | None, step: int, loss: float | None) -> bool:
    """Whether a run has got beyond where it diverged."""
    return (
        divergence is not None
        and loss is not None
        and math.isfinite(loss)
        and step > (-1 if divergence.step is None else divergence.step)
    )


def poisoned(rungs: Iterable[RungFact], divergence: Divergence | None) -> tuple[RungFact, ...]:
    """The rungs, those of steps after the last finite loss being poisoned."""
    return tuple(_poisoned(rung, divergence) for rung in rungs)


def _poisoned(rung: RungFact, divergence: Divergence | None) -> RungFact:
    if divergence is None or divergence.finite is None or rung.step is None or rung.step <= divergence.finite:
        return rung
    return rung.poisoned(f"step {rung.step} is after {divergence.finite}, the last one whose loss was finite")

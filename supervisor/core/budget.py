"""The restart budget and the backoff: never give up while there is progress, never loop without it. Pure.

Source of the shape: OTP's supervisor intensity, with progress instead of uptime as what refills it.
"""

import random
from dataclasses import dataclass, replace

SPAN_SECONDS_MIN = 600.0
"""Once a run has progressed, it is not given up before its deaths without progress span this long: a flapping disk or a
busy GPU heals in minutes, and a weekend's run must not end over half a minute of trouble."""

JITTER = 0.2  # share of the delay by which it may be shorter, so that many runs do not restart in step


@dataclass(frozen=True)
class Limits:
    """The settings `restarts`: a count, a count per window of seconds, and the backoff's first and largest delay."""

    without_progress: int = 5
    per_window: int = 20
    window_seconds: float = 3600.0
    backoff_seconds: tuple[float, float] = (1.0, 300.0)


@dataclass(frozen=True)
class Budget:
    """Monotonic times of deaths: those since the last progress, and all recent ones that spent anything."""

    fruitless: tuple[float, ...] = ()
    recent: tuple[float, ...] = ()
    ever_progressed: bool = False


@dataclass(frozen=True)
class Restart:
    """Go on after `delay_seconds`."""

    delay_seconds: float


@dataclass(frozen=True)
class GiveUp:
    """The budget is spent."""

    deaths: int


def refill(budget: Budget) -> Budget:
    """The budget after progress."""
    return replace(budget, fruitless=(), ever_progressed=True)


def spend(budget: Budget, limits: Limits, now: float, progressed: bool) -> tuple[Budget, Restart | GiveUp]:
    """The budget after a death at `now` of an incarnation that did or did not progress, and what follows."""
    horizon = now - limits.window_seconds
    recent = (*(time for time in budget.recent if time > horizon), now)[-(limits.per_window + 1) :]
    fruitless = () if progressed else (*budget.fruitless, now)
    spent = replace(budget, fruitless=fruitless, recent=recent, ever_progressed=budget.ever_progressed or progressed)
    if _is_spent(spent, limits):
        return spent, GiveUp(len(fruitless))
    return spent, Restart(_delay(spent, limits))


def _is_spent(budget: Budget, limits: Limits) -> bool:
    if len(budget.fruitless) < limits.without_progress:
        return False
    span = budget.fruitless[-1] - budget.fruitless[0]
    return not budget.ever_progressed or span >= SPAN_SECONDS_MIN


def _delay(budget: Budget, limits: Limits) -> float:
    if len(budget.recent) > limits.per_window:
        return limits.backoff_seconds[1]
    if not budget.fruitless:
        return 0.0
    return doubled(limits, len(budget.fruitless)) * (1.0 - JITTER * _fraction(budget))


def doubled(limits: Limits, times: int) -> float:
    """The delay before trying for the `times`th time in a row."""
    first, largest = limits.backoff_seconds
    return min(largest, first * 2.0 ** min(times - 1, 64))


def _fraction(budget: Budget) -> float:
    """A number in [0, 1) that differs between deaths and repeats for the same history, so that decisions can be replayed."""
    return random.Random(repr(budget.fruitless)).random()


def aged(budget: Budget, now: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The deaths as seconds before `now`: what can be kept across a reboot, when the monotonic clock starts again."""
    return tuple(now - t for t in budget.fruitless), tuple(now - t for t in budget.recent)


def rejuvenated(fruitless: tuple[float, ...], recent: tuple[float, ...], ever_progressed: bool, now: float) -> Budget:
    """The budget from ages in seconds, as `aged` gave them."""
    return Budget(tuple(now - age for age in fruitless), tuple(now - age for age in recent), ever_progressed)

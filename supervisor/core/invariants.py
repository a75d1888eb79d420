"""What holds after every decision, whatever the history: checked at each step of a real run as of a simulated one. Pure.

A decision that breaks one is a bug of ours. It is refused before anything of it is carried out: a supervisor that ends and is
started again does less harm than a second trainer, or a good snapshot that is gone.
"""

from collections.abc import Callable

from lastgood.choose import newest_first
from supervisor.core.commands import Arm, Command, Exit, PruneSnapshot, Record, SaveMemory, SetAside, SpawnTrainer
from supervisor.core.events import Deadline, DeadlinePassed, Event
from supervisor.core.state import ENDS, LIVE, Phase, State

Commands = tuple[Command, ...]
Check = Callable[[State, State, Commands], bool]

WAITS = {Phase.BACKOFF: Deadline.BACKOFF, Phase.WAITING: Deadline.RETRY, Phase.STOPPING: Deadline.GRACE}
"""Phases from which only a deadline leads, if nothing else happens."""

KEPT_MIN = 2  # of the newest proven snapshots, whatever the settings say


def _starts_where_none_lives(before: State, after: State, commands: Commands) -> bool:
    starts = _starts(commands)
    alone = before.phase not in LIVE and not before.stuck and after.phase is Phase.STARTING
    return not starts or (len(starts) == 1 and alone)


def _starts_are_written_down_first(before: State, after: State, commands: Commands) -> bool:
    for one in _starts(commands):
        saved = [c.memory for c in commands[: commands.index(one)] if isinstance(c, SaveMemory)]
        if not saved or one.incarnation != before.incarnation + 1 or saved[-1].incarnation != one.incarnation:
            return False
        trusted = one.snapshot is not None and one.snapshot.trusted and one.snapshot.step is not None
        if trusted and (saved[-1].trust is None or saved[-1].trust.refuted):
            return False
    return True


def _starts_are_wanted(before: State, after: State, commands: Commands) -> bool:
    return not _starts(commands) or (before.stop_signal is None and not before.pause)


def _starts_are_from_usable_bytes(before: State, after: State, commands: Commands) -> bool:
    given = [one.snapshot for one in _starts(commands) if one.snapshot is not None]
    return all(rung.verdict is not None and rung.verdict.usable for rung in given)


def _stays_stopped(before: State, after: State, commands: Commands) -> bool:
    return before.stop_signal is None or after.stop_signal is not None


def _ends_with_an_exit(before: State, after: State, commands: Commands) -> bool:
    exits = [one for one in commands if isinstance(one, Exit)]
    ended = after.phase in ENDS and before.phase not in ENDS
    return len(exits) == int(ended) and (not exits or commands[-1] is exits[0])


def _is_over_for_good(before: State, after: State, commands: Commands) -> bool:
    return before.phase not in ENDS or (after is before and not commands)


def _waits_for_something(before: State, after: State, commands: Commands) -> bool:
    armed = {one.deadline for one in commands if isinstance(one, Arm)}
    return after.phase not in WAITS or after.phase is before.phase or WAITS[after.phase] in armed


def _proven_ones_stay(before: State, after: State, commands: Commands) -> bool:
    aside = [one.rung for one in commands if isinstance(one, SetAside)]
    return not any(rung.verdict is not None and rung.verdict.proven for rung in aside)


def _pruning_leaves_the_newest(before: State, after: State, commands: Commands) -> bool:
    gone = {one.rung.name for one in commands if isinstance(one, PruneSnapshot)}
    if not gone:
        return True
    known = {rung.name: rung for rung in (*before.rungs, *before.life.held, *after.rungs)}
    proven = newest_first([rung for rung in known.values() if rung.verdict is not None and rung.verdict.proven])
    return after.memory.trust is None and gone.isdisjoint(rung.name for rung in proven[:KEPT_MIN])


def _high_water_rises(before: State, after: State, commands: Commands) -> bool:
    over = any(isinstance(one, Record) and one.event == "run.started_over" for one in commands)
    marks = [-1 if state.memory.high_water is None else state.memory.high_water for state in (before, after)]
    return over or marks == sorted(marks)


def _starts(commands: Commands) -> list[SpawnTrainer]:
    return [one for one in commands if isinstance(one, SpawnTrainer)]


INVARIANTS: dict[str, Check] = {
    "a trainer is started only where none lives": _starts_where_none_lives,
    "a start is written down first": _starts_are_written_down_first,
    "nothing is started that nobody wants": _starts_are_wanted,
    "a start is from bytes that may be used": _starts_are_from_usable_bytes,
    "a stop is not taken back": _stays_stopped,
    "an end is one exit, said last": _ends_with_an_exit,
    "an end is final": _is_over_for_good,
    "a phase that waits has a deadline": _waits_for_something,
    "proven snapshots are not set aside": _proven_ones_stay,
    "the newest proven snapshots are not pruned": _pruning_leaves_the_newest,
    "high water only rises": _high_water_rises,
}
"""Each as a sentence."""


def broken(before: State, event: Event, after: State, commands: Commands) -> list[str]:
    """The invariants that a decision about an event breaks; none, or there is a bug."""
    found = [name for name, holds in INVARIANTS.items() if not holds(before, after, commands)]
    return [*found, *([] if _waits_again(before, event, after, commands) else [WAITS_AGAIN])]


WAITS_AGAIN = "a deadline that passed in vain is set again"


def _waits_again(before: State, event: Event, after: State, commands: Commands) -> bool:
    """In a phase that waits for the very deadline that has passed."""
    if not isinstance(event, DeadlinePassed) or WAITS.get(before.phase) is not event.deadline:
        return True
    armed = {one.deadline for one in commands if isinstance(one, Arm)}
    return after.phase is not before.phase or event.deadline in armed

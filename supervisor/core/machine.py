"""The machine: one pure function over a table of phase x event.

    state, commands = step(state, event, now, policy)

`now` is monotonic seconds. Commands are carried out in order, and what comes of them returns as events. Each cell of the table
is a function, or a reason why the event does not matter in that phase; a cell that is absent cannot happen, and says so.
"""

from collections.abc import Callable
from dataclasses import replace

from supervisor.core import ending, invariants, rereading, selecting, stall, trainer_life
from supervisor.core.commands import Command, SweepTree
from supervisor.core.events import (
    DeadlinePassed,
    EndingNoted,
    Event,
    HeartbeatSeen,
    LadderJudged,
    LadderUnreadable,
    PauseRequested,
    ResumeRequested,
    SaveFailed,
    SavingChanged,
    SettingsChanged,
    SnapshotGone,
    SnapshotJudged,
    SnapshotReread,
    SnapshotSealed,
    SpawnFailed,
    StepReported,
    StopRequested,
    TrainerExited,
    TrainerFellBack,
    TrainerSpawned,
    TreeSwept,
)
from supervisor.core.state import ENDS, Phase, Policy, State

Outcome = tuple[State, tuple[Command, ...]]
Action = Callable[[State, "Event", float, Policy], Outcome]


class ImpossibleError(Exception):
    """An event came in a phase in which it cannot: a bug of ours, never something to act on."""


class BrokenInvariantError(Exception):
    """A decision that must not be carried out: a bug of ours."""


_OVER = "the run has ended"
_LATE = "news that a stop, a pause or a stuck tree has overtaken"
_ENDING = "the trainer is being ended already"
_ASKED_FOR = "what the settings say is looked up when it is next needed"
_NO_TRAINER = "no trainer runs in this phase"


def _row(default: Action | str | None = None, **cells: Action | str) -> dict[Phase, Action | str]:
    """One event's cells, by phase: those named, the ends ignoring it, the rest as `default`."""
    row: dict[Phase, Action | str] = dict.fromkeys(ENDS, _OVER)
    others = {phase: default for phase in Phase if phase not in ENDS and default is not None}
    return row | others | {Phase(name): cell for name, cell in cells.items()}


TABLE: dict[type, dict[Phase, Action | str]] = {
    LadderJudged: _row(selecting=selecting.on_ladder, waiting=_LATE, backoff=_LATE, paused=_LATE),
    LadderUnreadable: _row(selecting=selecting.on_unreadable, waiting=_LATE, backoff=_LATE, paused=_LATE),
    TrainerSpawned: _row(
        starting=trainer_life.on_spawned, running=trainer_life.on_spawned_late, stopping=trainer_life.on_spawned_late
    ),
    SpawnFailed: _row(starting=ending.on_spawn_failed, stopping=ending.on_spawn_failed),
    StepReported: _row(
        _NO_TRAINER,
        starting=trainer_life.on_step,
        running=trainer_life.on_step,
        stopping=trainer_life.on_late_step,
        selecting=trainer_life.on_late_step,
    ),
    HeartbeatSeen: _row(
        _NO_TRAINER,
        starting=trainer_life.on_heartbeat,
        running=trainer_life.on_heartbeat,
        stopping=_ENDING,
    ),
    SavingChanged: _row(
        _NO_TRAINER,
        starting=stall.on_saving,
        running=stall.on_saving,
        stopping=_ENDING,
    ),
    SnapshotJudged: _row(trainer_life.on_snapshot),
    SnapshotSealed: _row(trainer_life.on_sealed),
    SnapshotReread: _row(rereading.on_reread),
    SnapshotGone: _row(trainer_life.on_gone),
    SaveFailed: _row(trainer_life.on_save_failed),
    TrainerFellBack: _row(rereading.on_fell_back),
    EndingNoted: _row(trainer_life.on_ending_noted),
    TrainerExited: _row(starting=ending.on_exit, running=ending.on_exit, stopping=ending.on_exit),
    TreeSwept: _row(selecting=ending.on_swept, waiting=ending.on_swept),
    DeadlinePassed: _row(
        selecting=ending.on_overdue,
        starting=rereading.on_deadline,
        running=rereading.on_deadline,
        stopping=ending.on_grace_over,
        backoff=selecting.on_retry,
        waiting=selecting.on_retry,
        paused=_LATE,
    ),
    StopRequested: _row(
        starting=ending.on_stop_alive,
        running=ending.on_stop_alive,
        stopping=ending.on_stop_again,
        selecting=ending.on_stop_noted,
        backoff=ending.on_stop_idle,
        waiting=ending.on_stop_idle,
        paused=ending.on_stop_idle,
    ),
    PauseRequested: _row(
        starting=ending.on_pause_alive,
        running=ending.on_pause_alive,
        stopping=ending.on_pause_noted,
        selecting=ending.on_pause_noted,
        backoff=ending.on_pause_idle,
        waiting=ending.on_pause_idle,
        paused="it is paused",
    ),
    ResumeRequested: _row(ending.on_resume_noted, paused=ending.on_resume),
    SettingsChanged: _row(_ASKED_FOR, starting=trainer_life.on_settings, running=trainer_life.on_settings),
}


def step(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """The state after `event` at `now`, and what to do.

    Raises ImpossibleError for a cell that cannot happen, and BrokenInvariantError for a decision that must not be.
    """
    if _is_of_another_incarnation(state, event):
        return state, ()
    cell = TABLE[type(event)].get(state.phase)
    if cell is None:
        raise ImpossibleError(f"{type(event).__name__} in phase {state.phase}")
    if isinstance(cell, str):
        return state, ()
    after, commands = cell(state, event, now, policy)
    if found := invariants.broken(state, event, after, commands):
        raise BrokenInvariantError(f"{type(event).__name__} in phase {state.phase}: not kept: {'; '.join(found)}")
    return after, commands


def begin(state: State) -> Outcome:
    """The first commands of a supervisor's life: whatever a killed one left behind goes first, also of a paused run."""
    return replace(state, phase=Phase.SELECTING), (SweepTree(state.incarnation),)


def _is_of_another_incarnation(state: State, event: Event) -> bool:
    incarnation = getattr(event, "incarnation", None)
    return incarnation is not None and incarnation != state.incarnation

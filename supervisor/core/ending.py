"""Stopping, dying, sweeping. Pure."""

from dataclasses import replace

from supervisor.core import deaths, notes
from supervisor.core.commands import (
    Arm,
    AskToStop,
    Command,
    Disarm,
    KillTree,
    Record,
    SealSnapshot,
    SweepTree,
)
from supervisor.core.events import (
    Deadline,
    DeadlinePassed,
    Event,
    PauseRequested,
    ResumeRequested,
    SpawnFailed,
    StopRequested,
    TrainerExited,
    TreeSwept,
)
from supervisor.core.state import Ending, Phase, Policy, State

Outcome = tuple[State, tuple[Command, ...]]

_ALL = tuple(Deadline)


def on_stop_alive(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """Ask the trainer to save and end, and give it its grace."""
    assert isinstance(event, StopRequested)
    return _ask(replace(state, stop_signal=event.signal, ending=Ending.STOP), now, policy)


def on_pause_alive(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """As a stop: the trainer saves and ends, if it can; then the run waits."""
    assert isinstance(event, PauseRequested)
    return _ask(replace(state, pause=True, ending=Ending.PAUSE), now, policy)


def _ask(state: State, now: float, policy: Policy) -> Outcome:
    said = Record("trainer.asked_to_stop", {"grace_seconds": policy.grace_seconds})
    orders = (said, Disarm(_ALL), AskToStop(), Arm(Deadline.GRACE, now + policy.grace_seconds))
    return replace(state, phase=Phase.STOPPING), orders


def on_pause_noted(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """What is under way comes to its end first."""
    assert isinstance(event, PauseRequested)
    return replace(state, pause=True), ()


def on_pause_idle(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """Nothing runs: wait at once."""
    assert isinstance(event, PauseRequested)
    return notes.joined((Disarm(_ALL),), notes.paused(replace(state, pause=True)))


def on_resume_noted(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """The pause never came about: a trainer that was asked to end for it is started again as soon as it has."""
    assert isinstance(event, ResumeRequested)
    return replace(state, pause=False), ()


def on_resume(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """Go on from whatever the directory holds by now, once all that would not die has."""
    assert isinstance(event, ResumeRequested)
    said = Record("run.resumed", {"step": state.memory.high_water})
    going_on = replace(state, phase=Phase.SELECTING, pause=False)
    if state.stuck:
        return going_on, (said, SweepTree(state.incarnation))
    return notes.joined((said,), deaths.judge_again(going_on))


def on_stop_again(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """A second wish changes nothing: the save under way is not cut short by accident."""
    assert isinstance(event, StopRequested)
    return replace(state, stop_signal=state.stop_signal or event.signal), ()


def on_stop_noted(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """No trainer runs; the look at the directory or the sweep under way ends the run when it is done, or when it takes
    longer than a trainer would be given.
    """
    assert isinstance(event, StopRequested)
    if state.stop_signal is not None:
        return state, ()
    return replace(state, stop_signal=event.signal), (Arm(Deadline.GRACE, now + policy.grace_seconds),)


def on_overdue(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """A stop was asked for, and the storage or a dying process does not answer: end without waiting for it."""
    assert isinstance(event, DeadlinePassed)
    if event.deadline is not Deadline.GRACE or state.stop_signal is None:
        return state, ()
    return _stopped(state)


def _stopped(state: State) -> Outcome:
    """The run is stopped, whatever became of the last trainer, whose death is said if it is known."""
    said = () if state.death is None else (notes.exited(state, state.death, "stopped"),)
    return notes.joined(said, notes.stopped(replace(state, death=None)))


def on_stop_idle(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """Nothing runs and nothing is under way: the run is stopped. What would not die before is swept once more."""
    assert isinstance(event, StopRequested)
    if state.stuck:
        stopping = replace(state, phase=Phase.SELECTING, stop_signal=event.signal)
        return stopping, (Disarm(_ALL), Arm(Deadline.GRACE, now + policy.grace_seconds), SweepTree(state.incarnation))
    return notes.joined((Disarm(_ALL),), notes.stopped(replace(state, stop_signal=event.signal)))


def on_grace_over(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """It was asked and did not end: kill it. It was killed and did not die: say so, once, and try again."""
    assert isinstance(event, DeadlinePassed)
    if event.deadline is not Deadline.GRACE:
        return state, ()
    again = (KillTree(), Arm(Deadline.GRACE, now + policy.kill_seconds))
    if not state.killed:
        said = Record("trainer.grace_over", {"grace_seconds": policy.grace_seconds})
        return replace(state, killed=True), (said, *again)
    pids = [] if state.life.pid is None else [state.life.pid]
    told = () if state.stuck else (Record("trainer.stuck", {"pids": pids}),)
    if state.stop_signal is not None:
        return notes.joined((*told, Disarm(_ALL)), _stopped(state))
    if policy.exit_when_stuck:
        return notes.joined((*told, Disarm(_ALL)), notes.failed(state, *notes.stuck()))
    return replace(state, stuck=True), (*told, *again)


def on_spawn_failed(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """A start that failed is a death like any other, with the reason as its last line; something may be left of it."""
    assert isinstance(event, SpawnFailed)
    death = TrainerExited(event.incarnation, None, None, last_lines=(*event.last_lines, event.reason))
    return on_exit(state, death, now, policy)


def on_exit(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """The leader is dead: whatever else belongs to it goes before anything is decided."""
    assert isinstance(event, TrainerExited)
    seals = (
        tuple(SealSnapshot(name) for name in reversed(state.life.unsealed)) if deaths.is_orderly(state, event) else ()
    )
    life = replace(state.life, unsealed=())
    state = replace(state, phase=Phase.SELECTING, death=event, life=life, stuck=False)
    overdue = () if state.stop_signal is None else (Arm(Deadline.GRACE, now + policy.grace_seconds),)
    return state, (Disarm(_ALL), *overdue, *seals, SweepTree(event.incarnation))


def on_swept(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """The tree is empty and the directory still: judge. Or something will not die: start nothing until it has."""
    assert isinstance(event, TreeSwept)
    if not event.survivors:
        return deaths.judge_again(replace(state, stuck=False))
    said = () if state.stuck else (Record("trainer.stuck", {"pids": list(event.survivors)}),)
    if state.stop_signal is not None:
        return notes.joined(said, _stopped(state))
    if state.pause:
        return notes.joined(said, notes.paused(replace(state, stuck=True)))
    if policy.exit_when_stuck:
        return notes.joined((*said, Disarm(_ALL)), notes.failed(state, *notes.stuck()))
    waiting = replace(state, phase=Phase.WAITING, stuck=True)
    return waiting, (*said, Arm(Deadline.RETRY, now + policy.retry_seconds))

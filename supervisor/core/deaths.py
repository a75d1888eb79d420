"""What follows a death once the directory is known: its cause, whom it is laid to, and when to go on. Pure."""

from dataclasses import replace

from supervisor.core import blame, budget, divergence, notes
from supervisor.core.causes import FREE_CAUSES, Context, exit_cause
from supervisor.core.commands import (
    Arm,
    Command,
    JudgeLadder,
    PutBack,
    Record,
    SaveMemory,
)
from supervisor.core.events import (
    Deadline,
    TrainerExited,
)
from supervisor.core.state import Ending, Phase, Policy, State

Outcome = tuple[State, tuple[Command, ...]]

SIGNS_TO_TRUST = 2


def judge_again(state: State) -> Outcome:
    """Read the directory; everything else follows from what it holds."""
    found, trouble = state.memory.blame, state.memory.divergence
    passing = frozenset() if found is None or found.suspect is None else frozenset({found.suspect.name})
    above = None if trouble is None else trouble.finite
    return replace(state, phase=Phase.SELECTING), (JudgeLadder(passing, above),)


def settle(state: State, death: TrainerExited, now: float, policy: Policy) -> Outcome:
    """Name the cause, then complete, stop, give up, or go on after a delay."""
    cause = exit_cause(death, _context(state, policy))
    state = replace(state, death=None)
    commands: tuple[Command, ...] = (notes.exited(state, death, cause),)
    if cause == "completed":
        return notes.joined(commands, notes.completed(state))
    if state.failure is not None:
        return notes.joined(commands, notes.failed(state, *state.failure))
    if state.stop_signal is not None:
        return notes.joined(commands, notes.stopped(state))
    if cause == "stopped":  # for a pause
        return notes.joined(commands, notes.paused(state) if state.pause else judge_again(state))
    if cause == "usage":
        return notes.joined(commands, notes.failed(state, *notes.USAGE))
    answer = {"crashed": _blame, "diverged": _step_back}.get(cause)
    if answer is not None:
        state, more = answer(state, death, policy)
        commands += more
        if state.failure is not None:
            return notes.joined(commands, notes.failed(state, *state.failure))
    return notes.joined(commands, _after_death(state, cause, now, policy))


def _blame(state: State, death: TrainerExited, policy: Policy) -> Outcome:
    """Deaths alike from one snapshot make it a suspect; the same from an older one acquits it, and ends the run."""
    resumed, before = state.life.resumed, state.memory.blame
    if resumed is None or (death.code is None and death.signal is None):
        return state, ()  # there was no trainer to die
    found = blame.after_crash(before, resumed, state.life.reported, death)
    state = replace(state, memory=replace(state.memory, blame=found))
    if before is not None and before.suspect is not None and blame.exonerates(before, found):
        state = replace(state, failure=notes.software_at_fault(found), memory=replace(state.memory, blame=None))
        return state, (PutBack(before.suspect.name, before.suspect.step),)
    if found.suspect is None or found == before:
        return state, ()
    if not _has_older(state, found.suspect):
        return replace(state, memory=replace(state.memory, blame=replace(found, suspect=None))), ()
    return state, (notes.suspected(found),)


def _has_older(state: State, suspect: blame.Suspect) -> bool:
    """Whether there is something else to try."""
    below = [r for r in state.rungs if r.step is not None and suspect.step is not None and r.step < suspect.step]
    return any(rung.verdict is None or rung.verdict.proven for rung in below)


def _step_back(state: State, death: TrainerExited, policy: Policy) -> Outcome:
    """A divergence is answered by an older snapshot; the second at the same step by other data as well; then by giving up."""
    life, before = state.life, state.memory.divergence
    bad = life.losses.first_bad
    start = None if life.resumed is None else life.resumed.step
    finite = start if life.losses.finite is None else life.losses.finite
    at = bad if bad is not None else life.reported if life.said_step is None else life.said_step
    found = divergence.after(before, at, None if bad is None else finite)
    skipping = divergence.stretch(before, found, finite) if policy.skips_data else None
    skip = state.memory.skip if skipping is None else (*state.memory.skip, skipping)
    state = replace(state, memory=replace(state.memory, divergence=found, skip=skip))
    if found.times > policy.rollbacks:
        state = replace(state, failure=notes.diverges_again(found), memory=replace(state.memory, divergence=None))
    return state, (notes.diverged(found, skipping),)


def _context(state: State, policy: Policy) -> Context:
    return Context(
        asked_to_stop=state.ending in (Ending.STOP, Ending.PAUSE),
        stalled=state.ending is Ending.STALLED,
        ignored=state.ending is Ending.IGNORED,
        diverged=state.ending is Ending.DIVERGED,
        ended_by_us=state.ending is Ending.FINISHED,
        progressed=state.life.progressed or state.life.signs > 0 or state.memory.budget.ever_progressed,
        finished=_finished(state, policy),
        said=state.life.said,
    )


def _finished(state: State, policy: Policy) -> bool:
    """Whether this exit may be a completion. Without a final step a stop that was asked for never is one.

    A proven snapshot tells that the final step was reached; else the steps told in this life, if they are more than one:
    a single line may be a banner.
    """
    if policy.final_step is None:
        return state.ending not in (Ending.STOP, Ending.PAUSE)
    saved, told, signs = state.memory.high_water, state.life.reported, state.life.signs
    there = [rung.step for rung in state.rungs if rung.step is not None and rung.verdict and rung.verdict.usable]
    reached = (-1 if saved is None else saved, -1 if told is None or signs < SIGNS_TO_TRUST else told, *there)
    return max(reached) >= policy.final_step


def _after_death(state: State, cause: str, now: float, policy: Policy) -> Outcome:
    """Spend the budget and wait, or give up."""
    if cause in FREE_CAUSES:
        follows: budget.Restart | budget.GiveUp = budget.Restart(0.0)
    else:
        spent, follows = budget.spend(state.memory.budget, policy.limits, now, state.life.progressed)
        state = replace(state, memory=replace(state.memory, budget=spent))
    if isinstance(follows, budget.GiveUp):
        refused = Record("restart.refused", {"cause": cause, "without_progress": follows.deaths})
        return notes.joined((refused,), notes.failed(state, *notes.budget_spent(cause, follows.deaths)))
    if state.pause:
        return notes.paused(state)
    fields = {
        "delay_seconds": round(follows.delay_seconds, 3),
        "cause": cause,
        "without_progress": len(state.memory.budget.fruitless),
    }
    commands: tuple[Command, ...] = (SaveMemory(state.memory), Record("restart.scheduled", fields))
    if follows.delay_seconds <= 0:
        return notes.joined(commands, judge_again(state))
    waiting = replace(state, phase=Phase.BACKOFF)
    return waiting, (*commands, Arm(Deadline.BACKOFF, now + follows.delay_seconds))

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
    Reread,
    SaveMemory,
)
from supervisor.core.events import (
    Deadline,
    TrainerExited,
)
from supervisor.core.state import Ending, Phase, Policy, State

Outcome = tuple[State, tuple[Command, ...]]

SUPERVISOR_LOST = "supervisor-lost"
SPENDS_NOTHING = frozenset({"completed", "stopped", "usage"})
"""Causes after which the budget is not asked."""
ORDERLY_CODES = frozenset({128 + 15, 128 + 2})  # as trainers end that were asked to and have saved


def judge_again(state: State) -> Outcome:
    """Read the directory; everything else follows from what it holds."""
    found, trouble, trust = state.memory.blame, state.memory.divergence, state.memory.trust
    passing = frozenset() if found is None or found.suspect is None else frozenset({found.suspect.name})
    state, asked = reread(replace(state, phase=Phase.SELECTING))
    above = [
        None if trouble is None else trouble.finite,
        None if trust is None or not trust.refuted else trust.step - 1,
    ]
    return state, (*asked, JudgeLadder(passing, min((step for step in above if step is not None), default=None)))


def reread(state: State) -> Outcome:
    """Have what was resumed from on trust read again, unless that is done or under way; a look asked for later is told later."""
    trust = state.memory.trust
    if trust is None or trust.refuted or state.rereading:
        return state, ()
    return replace(state, rereading=True), (Reread(trust.name, trust.mtime_ns),)


def settle(state: State, death: TrainerExited, now: float, policy: Policy) -> Outcome:
    """Name the cause, then complete, stop, give up, or go on after a delay."""
    cause = exit_cause(death, _context(state, policy))
    state = _closed(replace(state, death=None, awaits_seals=False))
    commands: tuple[Command, ...] = (notes.exited(state, death, cause),)
    if cause == "completed":
        return notes.joined(commands, notes.completed(state, notes.done_at(state, policy), notes.doubt(death, policy)))
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


def would_end_the_run(state: State, death: TrainerExited, now: float, policy: Policy) -> bool:
    """Whether nothing is left of the budget after this death, if that was no progress; asked once of each death."""
    if state.awaits_seals or state.stop_signal is not None:
        return False
    if exit_cause(death, _context(state, policy)) in FREE_CAUSES | SPENDS_NOTHING:
        return False
    _, follows = budget.spend(state.memory.budget, policy.limits, now, state.life.progressed)
    return isinstance(follows, budget.GiveUp)


def is_orderly(state: State, death: TrainerExited) -> bool:
    """Whether a trainer ended of its own accord, by itself or because it was asked to: then it has outlived all its writes."""
    asked = state.ending in (Ending.STOP, Ending.PAUSE)
    if death.shell:
        return False  # it ends with 143 for a trainer that SIGTERM killed in a save, and with 0 for `train.py; date`
    return death.code == 0 or (asked and death.code in ORDERLY_CODES)


def settle_lost(state: State, now: float, policy: Policy) -> Outcome:
    """The supervisor before this one died while a trainer lived that had not progressed, and perhaps of it: of the memory that
    the trainer took, say. So that is a death as any other.
    """
    state = _closed(state)
    if state.stop_signal is not None:
        return notes.stopped(state)
    return _after_death(state, SUPERVISOR_LOST, now, policy)


def _closed(state: State) -> State:
    """The last incarnation is known to be dead."""
    return replace(state, memory=replace(state.memory, open=False))


def _blame(state: State, death: TrainerExited, policy: Policy) -> Outcome:
    """Deaths alike from one snapshot make it a suspect; the same from an older one acquits it, and ends the run."""
    resumed, before = state.life.resumed, state.memory.blame
    if resumed is None or (death.code is None and death.signal is None):
        return state, ()  # there was no trainer to die
    if death.oom_kills or blame.lack(death) is not None:
        return state, ()  # that is the machine's fault, and good snapshots meet with it as well
    if state.life.progressed:  # the next goes on from a newer one, so that this death is no repetition
        state = replace(state, memory=replace(state.memory, blame=None))
        suspect = None if before is None else before.suspect
        return state, () if suspect is None else (PutBack(suspect.name, suspect.step),)
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
        refuted=state.ending is Ending.REFUTED,
        ended_by_us=state.ending is Ending.FINISHED,
        progressed=state.life.progressed or state.life.signs > 0 or state.memory.budget.ever_progressed,
        finished=_finished(state, policy),
        said=state.life.said,
        obstacle=None if state.hindrance is None else state.hindrance.obstacle,
        no_room=state.life.no_room,
    )


def _finished(state: State, policy: Policy) -> bool:
    """Whether this exit may be a completion. Without a final step a stop that was asked for never is one.

    A proven snapshot tells that the final step was reached; else the steps told in this life, if they are more than one:
    a single line may be a banner. Nor is one of a trainer that may have been started from bad bytes.
    """
    if state.memory.trust is not None:
        return False
    if policy.final_step is None:
        return state.ending not in (Ending.STOP, Ending.PAUSE)
    saved, told = state.memory.high_water, state.life.reported if state.life.moved else None
    there = [rung.step for rung in state.rungs if rung.step is not None and rung.verdict and rung.verdict.usable]
    reached = (-1 if saved is None else saved, -1 if told is None else told, *there)
    return max(reached) >= policy.final_step


def _after_death(state: State, cause: str, now: float, policy: Policy) -> Outcome:
    """Spend the budget and wait, or give up."""
    follows: budget.Restart | budget.GiveUp
    if cause in FREE_CAUSES:
        state, follows = _free(state, cause, policy)
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


def _free(state: State, cause: str, policy: Policy) -> tuple[State, budget.Restart]:
    """A death that spends nothing. The machine's own faults are given more time the oftener they come without progress."""
    if cause in ("chaos", "resume-refuted"):
        return state, budget.Restart(0.0)
    times = 1 if state.life.progressed else state.faults + 1
    return replace(state, faults=times), budget.Restart(budget.doubled(policy.limits, times))

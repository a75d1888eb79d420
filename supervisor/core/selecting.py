"""Choosing what to resume from, and whether to go on at all. Pure."""

from dataclasses import replace

from lastgood.choose import choose, newest_first
from lastgood.verdict import Kind
from supervisor.core import budget, notes
from supervisor.core.causes import FREE_CAUSES, Context, exit_cause
from supervisor.core.commands import (
    Arm,
    Command,
    JudgeLadder,
    Record,
    SaveMemory,
    SetAside,
    SpawnTrainer,
    SweepTree,
)
from supervisor.core.events import (
    Deadline,
    DeadlinePassed,
    Event,
    LadderJudged,
    LadderUnreadable,
    RungFact,
    TrainerExited,
)
from supervisor.core.state import Ending, Life, Phase, Policy, Resume, State

Outcome = tuple[State, tuple[Command, ...]]

SIGNS_TO_TRUST = 2


def judge_again(state: State) -> Outcome:
    """Read the directory; everything else follows from what it holds."""
    return replace(state, phase=Phase.SELECTING), (JudgeLadder(),)


def on_retry(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """A delay is over: look again."""
    assert isinstance(event, DeadlinePassed)
    if state.stuck:
        return replace(state, phase=Phase.SELECTING), (SweepTree(state.incarnation),)
    return judge_again(state)


def on_unreadable(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """A directory that cannot be read is waited for: that is never a fresh start."""
    assert isinstance(event, LadderUnreadable)
    if state.stop_signal is not None:
        return notes.stopped(state)
    said = () if state.tries else (Record("directory.unreadable", {"reason": event.reason}),)
    waiting = replace(state, phase=Phase.WAITING, tries=state.tries + 1)
    return waiting, (*said, Arm(Deadline.RETRY, now + policy.retry_seconds))


def on_ladder(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """The directory is known: settle the last death if there was one, then start, wait, or end."""
    assert isinstance(event, LadderJudged)
    state, commands = _take_in(state, event, now)
    if state.death is not None:
        state, more = _settle_death(state, state.death, now, policy)
    else:
        state, more = _go_on(state, event, now, policy)
    return state, (*commands, *more)


def _take_in(state: State, event: LadderJudged, now: float) -> Outcome:
    """Take over the rungs, counting as progress what a dead trainer had published unseen. Nothing is pruned here."""
    nothing_pruned = Policy()
    commands: tuple[Command, ...] = ()
    for rung in reversed(event.rungs):
        if rung.name in event.arrived and rung.verdict is not None:
            state, more = notes.note_snapshot(state, rung, nothing_pruned)
            commands += more
    state = replace(state, rungs=_with_known_verdicts(event.rungs, state.rungs))
    if state.incarnation == 0 and state.memory.high_water is None:
        proven = [rung.step for rung in event.rungs if rung.verdict is not None and rung.verdict.proven]
        memory = replace(
            state.memory,
            high_water=next(iter(proven), None),
            ever_proven=bool(proven),
            born_empty=not event.ever_held,
        )
        state = replace(state, memory=memory)
    return state, commands


def _with_known_verdicts(rungs: tuple[RungFact, ...], known: tuple[RungFact, ...]) -> tuple[RungFact, ...]:
    """Rungs with the verdict they had when last seen, where this look stopped before them: retention counts them."""
    before = {(rung.name, rung.mtime_ns): rung.verdict for rung in known}
    return tuple(
        rung if rung.verdict is not None else replace(rung, verdict=before.get((rung.name, rung.mtime_ns)))
        for rung in rungs
    )


def _settle_death(state: State, death: TrainerExited, now: float, policy: Policy) -> Outcome:
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
    if cause == "usage":
        return notes.joined(commands, notes.failed(state, *notes.USAGE))
    return notes.joined(commands, _after_death(state, cause, now, policy))


def _context(state: State, policy: Policy) -> Context:
    return Context(
        asked_to_stop=state.ending is Ending.STOP,
        stalled=state.ending is Ending.STALLED,
        ignored=state.ending is Ending.IGNORED,
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
        return state.ending is not Ending.STOP
    saved, told, signs = state.memory.high_water, state.life.reported, state.life.signs
    return (
        max(-1 if saved is None else saved, -1 if told is None or signs < SIGNS_TO_TRUST else told) >= policy.final_step
    )


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


def _go_on(state: State, event: LadderJudged, now: float, policy: Policy) -> Outcome:
    """Start a trainer, unless the run is over, nothing good is left, or the storage must be waited for."""
    if state.stop_signal is not None:
        return notes.stopped(state)
    if state.memory.done is not None and (policy.final_step is None or state.memory.done >= policy.final_step):
        return notes.completed(state)
    if policy.resume is Resume.NEVER:
        return _spawn(state, None)
    chosen = choose(event.rungs)
    if chosen is None:
        return _without_any(state, event, now, policy)
    if (refusal := _forbidden(event.rungs, chosen)) is not None:
        return notes.failed(state, *notes.forbidden(refusal))
    if _newer_unreadable(event.rungs, chosen) and state.tries < policy.unreadable_tries:
        return _wait(state, now, policy)
    return _resume_from(state, chosen, now, policy)


def _without_any(state: State, event: LadderJudged, now: float, policy: Policy) -> Outcome:
    """No rung may be resumed from: start fresh only where none ever was, or when that was asked for."""
    if not event.ever_held and not state.memory.ever_proven:
        again = state.incarnation > 0 and state.memory.reached is not None
        said = (Record("run.started_over", {"rejected": []}),) if again else ()
        return notes.joined(said, _spawn(state, None))
    if (refusal := next((r for r in event.rungs if r.verdict is not None and r.verdict.forbidden), None)) is not None:
        return notes.failed(state, *notes.forbidden(refusal))
    never_had_a_whole_one = state.memory.born_empty and not state.memory.ever_proven
    if policy.allow_fresh_start or (never_had_a_whole_one and not _unreadable(event.rungs)):
        asides = _asides(event.rungs, policy)
        record = Record("run.started_over", {"rejected": notes.rejected(event.rungs)})
        anew = replace(state, memory=replace(state.memory, high_water=None, reached=None, ever_proven=False))
        return notes.joined((*asides, record), _spawn(_without(anew, asides), None))
    if _unreadable(event.rungs) and state.tries < policy.unreadable_tries:
        return _wait(state, now, policy)
    return notes.failed(state, *notes.none_healthy(event.rungs))


def _wait(state: State, now: float, policy: Policy) -> Outcome:
    waiting = replace(state, phase=Phase.WAITING, tries=state.tries + 1)
    return waiting, (Arm(Deadline.RETRY, now + policy.retry_seconds),)


def _unreadable(rungs: tuple[RungFact, ...]) -> bool:
    return any(rung.verdict is not None and rung.verdict.kind is Kind.UNREADABLE for rung in rungs)


def _newer(rungs: tuple[RungFact, ...], chosen: RungFact) -> tuple[RungFact, ...]:
    ordered = newest_first(rungs)
    return tuple(ordered[: ordered.index(chosen)])


def _newer_unreadable(rungs: tuple[RungFact, ...], chosen: RungFact) -> bool:
    return _unreadable(_newer(rungs, chosen))


def _forbidden(rungs: tuple[RungFact, ...], chosen: RungFact) -> RungFact | None:
    """A newer rung that we may not read: a person must mend that, and falling back would hide it."""
    return next((r for r in _newer(rungs, chosen) if r.verdict is not None and r.verdict.forbidden), None)


def _resume_from(state: State, chosen: RungFact, now: float, policy: Policy) -> Outcome:
    """Start from `chosen`; when it is not the newest, that is a fallback, and it is said in one record."""
    newer = _newer(state.rungs, chosen)
    if not newer:
        return notes.joined(notes.unproven_note(chosen), _spawn(state, chosen))
    asides = _asides(newer, policy)
    newest_step = next((rung.step for rung in newer if rung.step is not None), None)
    reached = max((n for n in (newest_step, state.memory.reached) if n is not None), default=None)
    record = notes.fallback(
        by="supervisor",
        newest_step=newest_step,
        chosen=chosen.name,
        chosen_step=chosen.step,
        reached=reached,
        depth=len(newer),
        rejected=notes.rejected(newer),
    )
    said = (record,) if state.tries == 0 else ()
    if policy.resume is Resume.SELF and asides:
        return notes.joined(said, _clear_the_way(state, asides, now, policy))
    commands = (*said, *asides, *notes.unproven_note(chosen))
    return notes.joined(commands, _spawn(_without(state, asides), chosen))


def _clear_the_way(state: State, asides: tuple[SetAside, ...], now: float, policy: Policy) -> Outcome:
    """A trainer that finds the newest itself is started only once the directory was seen without the bad ones."""
    if state.tries > policy.unreadable_tries:
        return notes.failed(state, *notes.in_the_way(asides[0].rung))
    trying = replace(state, tries=state.tries + 1)
    if state.tries == 0:
        return notes.joined(asides, judge_again(trying))
    return replace(trying, phase=Phase.WAITING), (*asides, Arm(Deadline.RETRY, now + policy.retry_seconds))


def _asides(rungs: tuple[RungFact, ...], policy: Policy) -> tuple[SetAside, ...]:
    """What must leave the trainer's sight. What another software may still read is moved only where the trainer would trip."""
    kept = frozenset() if policy.resume is Resume.SELF else frozenset({Kind.INCOMPATIBLE, Kind.UNREADABLE})
    return tuple(
        SetAside(rung, f"{rung.verdict.kind}: {rung.verdict.reason}")
        for rung in rungs
        if rung.verdict is not None and rung.verdict.kind not in kept
    )


def _without(state: State, asides: tuple[SetAside, ...]) -> State:
    gone = {aside.rung.name for aside in asides}
    return replace(state, rungs=tuple(rung for rung in state.rungs if rung.name not in gone))


def _spawn(state: State, snapshot: RungFact | None) -> Outcome:
    """Start the next incarnation."""
    memory = replace(state.memory, incarnation=state.memory.incarnation + 1, done=None)
    life = Life(resumed=snapshot, checked=snapshot is None or snapshot.step is None)
    started = replace(state, phase=Phase.STARTING, memory=memory, life=life, ending=None, killed=False, tries=0)
    return started, (SaveMemory(memory), SpawnTrainer(memory.incarnation, snapshot))

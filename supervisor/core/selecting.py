"""Choosing what to resume from, and whether to go on at all. Pure."""

from dataclasses import replace

from lastgood.choose import choose, newest_first
from lastgood.verdict import Kind
from supervisor.core import blame, deaths, divergence, notes, prelude, trainer_life, trust
from supervisor.core.commands import (
    Arm,
    Command,
    PutBack,
    Record,
    SaveMemory,
    SealSnapshot,
    SetAside,
    SpawnTrainer,
    SweepTree,
)
from supervisor.core.events import (
    Deadline,
    DeadlinePassed,
    Event,
    Hindrance,
    LadderJudged,
    LadderUnreadable,
    Obstacle,
    RungFact,
    TrainerExited,
)
from supervisor.core.memory import Memory
from supervisor.core.state import Life, Phase, Policy, Resume, State, Wait

Outcome = tuple[State, tuple[Command, ...]]

OVER = {Obstacle.DISK: "disk.freed", Obstacle.GPU_LOST: "gpu.back", Obstacle.GPU_BUSY: "gpu.back"}
"""The record that says what stood in the way of a start no longer does."""


def on_retry(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """A delay is over: look again."""
    assert isinstance(event, DeadlinePassed)
    if state.stuck:
        return replace(state, phase=Phase.SELECTING), (SweepTree(state.incarnation),)
    return deaths.judge_again(state)


def on_unreadable(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """A directory that cannot be read is waited for: that is never a fresh start."""
    assert isinstance(event, LadderUnreadable)
    if state.stop_signal is not None:
        return notes.stopped(state)
    if state.pause:
        return notes.paused(state)
    said = () if state.away else (Record("directory.unreadable", {"reason": event.reason}),)
    waiting = replace(state, phase=Phase.WAITING, away=True)
    return waiting, (*said, Arm(Deadline.RETRY, now + policy.retry_seconds))


def on_ladder(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """The directory is known: settle the last death if there was one, then start, wait, or end."""
    assert isinstance(event, LadderJudged)
    state, commands = _take_in(replace(state, away=False, hindrance=event.hindrance), event, now)
    event = replace(event, rungs=_doubted(state, event.rungs))
    state = replace(state, rungs=_doubted(state, state.rungs))
    if (death := state.death) is not None:
        last = _outlived(state, death, event)
        commands = (*commands, *last)
        if last and deaths.would_end_the_run(state, death, now, policy):
            state, more = deaths.judge_again(replace(state, awaits_seals=True))  # they may be progress
        else:
            state, more = deaths.settle(state, death, now, policy)
    elif state.memory.open:
        state, more = deaths.settle_lost(state, now, policy)
    else:
        state, more = _start_or_wait(state, event, now, policy)
    return state, (*commands, *more)


def _outlived(state: State, death: TrainerExited, event: LadderJudged) -> tuple[Command, ...]:
    """The last saves of a trainer that ended in order were found only now, and are whole; the newest first, there may be many."""
    if not deaths.is_orderly(state, death) or prelude.is_on(state):
        return ()
    kinds = (Kind.INTACT, Kind.UNPROVEN)
    last = [r for r in event.rungs if r.name in event.arrived and r.verdict is not None and r.verdict.kind in kinds]
    return tuple(SealSnapshot(rung.name) for rung in last)


def _start_or_wait(state: State, event: LadderJudged, now: float, policy: Policy) -> Outcome:
    """Go on, unless that means a start and something stands in its way: then nothing is started or spent."""
    after, commands = _go_on(state, event, now, policy)
    if after.phase is not Phase.STARTING:
        return after, commands
    if event.hindrance is not None:
        if state.wait is not None:  # what is bad was set aside as the wait began, or cannot be
            return _hindered(state, event.hindrance, now, policy)
        cleared = tuple(one for one in commands if _clears(one))
        return notes.joined(cleared, _hindered(_as_cleared(state, after, cleared), event.hindrance, now, policy))
    if state.wait is None:
        return after, commands
    over = Record(OVER[state.wait.obstacle], {"seconds": round(now - state.wait.since, 3)})
    return replace(after, wait=None), (over, *commands)


def _clears(command: Command) -> bool:
    """Whether it is no part of a start but comes before it: what is bad is set aside, where a full disk can do without it."""
    return isinstance(command, SetAside) or (isinstance(command, Record) and command.event == "fallback.chosen")


def _as_cleared(state: State, after: State, cleared: tuple[Command, ...]) -> State:
    """The state once what is bad is set aside and the fallback said; what was given up for a fresh start is said with that."""
    resumed, given_up = after.life.resumed, state.given_up
    if resumed is None and cleared:
        given_up = given_up or tuple(notes.rejected(state.rungs))
    fallback_to = state.fallback_to if resumed is None else resumed.name
    return replace(state, rungs=after.rungs, fallback_to=fallback_to, given_up=given_up)


def _hindered(state: State, found: Hindrance, now: float, policy: Policy) -> Outcome:
    """Say once what is waited for, and look again in a while."""
    before = state.wait
    state, gone = notes.prune(state, policy) if _may_prune(state, found) else (state, ())
    said = () if before is not None and before.obstacle is found.obstacle else (Record(found.obstacle, found.fields),)
    wait = Wait(found.obstacle, now if before is None else before.since)
    waiting = replace(state, phase=Phase.WAITING, wait=wait)
    return waiting, (*gone, *said, Arm(Deadline.RETRY, now + policy.retry_seconds))


def _may_prune(state: State, found: Hindrance) -> bool:
    """Whether retention is to do its part now: a dead trainer may have filled the disk with what nobody has counted yet."""
    return found.obstacle is Obstacle.DISK and state.memory.trust is None


def _doubted(state: State, rungs: tuple[RungFact, ...]) -> tuple[RungFact, ...]:
    """Rungs with what is known of them beside their bytes: that a run keeps dying, or had diverged, from there."""
    known = trust.tainted(rungs, state.memory.trust)
    return divergence.poisoned(blame.suspected(known, state.memory.blame), state.memory.divergence)


def _take_in(state: State, event: LadderJudged, now: float) -> Outcome:
    """Take over the rungs, counting as progress what a dead trainer had published unseen. Nothing is pruned here."""
    nothing_pruned = Policy()
    commands: tuple[Command, ...] = ()
    for rung in reversed(event.rungs):
        if rung.name not in event.arrived or rung.verdict is None:
            continue
        if prelude.is_on(state):
            state, more = prelude.bring(state, rung)
            commands += more
        elif state.memory.trust is not None:
            state = trainer_life.hold(state, rung)
        else:
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


def _go_on(state: State, event: LadderJudged, now: float, policy: Policy) -> Outcome:
    """Start a trainer, unless the run is over, nothing good is left, or the storage must be waited for."""
    if state.stop_signal is not None:
        return notes.stopped(state)
    if state.memory.done is not None and (policy.final_step is None or state.memory.done >= policy.final_step):
        return notes.completed(state, state.memory.done)
    if state.pause:
        return notes.paused(state)
    if state.memory.trust is not None and _is_to_be_reread(state, event, state.memory.trust):
        return _again(state, state.memory.trust, now, policy)
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


def _is_to_be_reread(state: State, event: LadderJudged, found: trust.Trust) -> bool:
    """Whether it is not known yet what the last trainer was started from, or bad bytes are there that this look did not reach."""
    return not found.refuted or any(found.is_(rung) and rung.verdict is None for rung in event.rungs)


def _again(state: State, found: trust.Trust, now: float, policy: Policy) -> Outcome:
    """Look again: past the bad bytes, or later, when they may be read."""
    if found.refuted:
        return deaths.judge_again(state)
    return replace(state, phase=Phase.WAITING), (Arm(Deadline.RETRY, now + policy.retry_seconds),)


def _without_any(state: State, event: LadderJudged, now: float, policy: Policy) -> Outcome:
    """No rung may be resumed from: start fresh only where none ever was, or when that was asked for."""
    found = state.memory.blame
    if found is not None and found.suspect is not None:
        cleared = replace(state, memory=replace(state.memory, blame=replace(found, suspect=None)))
        return notes.joined((PutBack(found.suspect.name, found.suspect.step),), deaths.judge_again(cleared))
    if not event.ever_held and not state.memory.ever_proven:
        again = state.incarnation > 0 and state.memory.reached is not None
        said = (Record("run.started_over", {"rejected": list(state.given_up)}),) if again else ()
        return notes.joined(said, _spawn(state, None))
    if (refusal := next((r for r in event.rungs if r.verdict is not None and r.verdict.forbidden), None)) is not None:
        return notes.failed(state, *notes.forbidden(refusal))
    never_had_a_whole_one = state.memory.born_empty and not state.memory.ever_proven
    if policy.allow_fresh_start or (never_had_a_whole_one and not _unreadable(event.rungs)):
        asides = _asides(event.rungs, policy)
        if policy.resume is Resume.SELF and asides:
            given_up = state.given_up or tuple(notes.rejected(event.rungs))
            return _clear_the_way(replace(state, given_up=given_up), asides, now, policy)
        record = Record("run.started_over", {"rejected": list(state.given_up) or notes.rejected(event.rungs)})
        anew = replace(
            state, memory=replace(state.memory, high_water=None, reached=None, ever_proven=False, blame=None)
        )
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
    said = () if state.fallback_to == chosen.name else (record,)
    state = replace(state, fallback_to=chosen.name)
    refuted = state.memory.trust is not None and state.memory.trust.refuted
    if asides and (policy.resume is Resume.SELF or refuted):
        return notes.joined(said, _clear_the_way(state, asides, now, policy))
    commands = (*said, *asides, *notes.unproven_note(chosen))
    return notes.joined(commands, _spawn(_without(state, asides), chosen))


def _clear_the_way(state: State, asides: tuple[SetAside, ...], now: float, policy: Policy) -> Outcome:
    """A trainer that finds the newest itself is started only once the directory was seen without the bad ones."""
    if state.clearings > policy.unreadable_tries:
        return notes.failed(state, *notes.in_the_way(asides[0].rung))
    trying = replace(state, clearings=state.clearings + 1)
    if state.clearings == 0:
        return notes.joined(asides, deaths.judge_again(trying))
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
    memory = replace(_as_tried(state.memory, snapshot), incarnation=state.memory.incarnation + 1, open=True, done=None)
    memory = replace(memory, trust=trust.trust_in(snapshot, state.rungs, memory.blame))
    life = Life(resumed=snapshot, checked=snapshot is None or snapshot.step is None)
    started = replace(state, phase=Phase.STARTING, memory=memory, life=life, ending=None, killed=False)
    started = replace(started, tries=0, doubts=0, rereading=False, clearings=0, fallback_to=None, given_up=())
    started, asked = deaths.reread(started)
    return started, (SaveMemory(memory), SpawnTrainer(memory.incarnation, snapshot, memory.skip), *asked)


def _as_tried(memory: Memory, snapshot: RungFact | None) -> Memory:
    """What a start from `snapshot` settles: what was poisoned is out of the way, and a suspect tried again is none."""
    found, trouble = memory.blame, memory.divergence
    if trouble is not None:
        memory = replace(memory, divergence=replace(trouble, finite=None))
    if found is not None and found.suspect is not None and snapshot is not None and found.suspect.is_(snapshot):
        memory = replace(memory, blame=replace(found, suspect=None))
    return memory

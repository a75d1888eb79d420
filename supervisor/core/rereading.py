"""What a second reading says of a snapshot that a trainer was started from on trust. Pure."""

from dataclasses import replace

from lastgood.verdict import Kind
from supervisor.core import deaths, notes, prelude, trainer_life
from supervisor.core.commands import Arm, Command, Record, Reread, SaveMemory, SealSnapshot
from supervisor.core.events import Deadline, DeadlinePassed, Event, RungFact, SnapshotReread, TrainerFellBack
from supervisor.core.state import Ending, Phase, Policy, State
from supervisor.core.trust import Trust

Outcome = tuple[State, tuple[Command, ...]]

PATIENCE = 20
"""How many times longer a trainer that lives is left alone while the storage gives errors: it may be well, with its work."""


def on_reread(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """The bytes were read again: what was held back counts from now on, or the trainer goes and all that it made."""
    assert isinstance(event, SnapshotReread)
    trust, verdict = state.memory.trust, event.rung.verdict
    if trust is None or trust.refuted or not trust.is_(event.rung):
        return _looked_at_again(state, event.rung)
    state = replace(state, rereading=False)
    if not event.reachable:
        return _again_later(state, now, policy)
    if verdict is None or verdict.usable:
        return _confirmed(state, event.rung, now, policy)
    tries = policy.unreadable_tries * (PATIENCE if _lives(state) else 1)
    if verdict.kind is Kind.UNREADABLE and state.doubts < tries:
        return _again_later(replace(state, doubts=state.doubts + 1), now, policy)
    return _refuted(state, trust, event.rung, now, policy)


def _looked_at_again(state: State, rung: RungFact) -> Outcome:
    """A trainer would not take it, and rightly so: it counts no longer."""
    bad = rung.verdict is not None and not rung.verdict.usable and rung.verdict.kind is not Kind.UNREADABLE
    return notes.see(state, rung) if bad and notes.knows(state, rung) else (state, ())


def _again_later(state: State, now: float, policy: Policy) -> Outcome:
    """Nothing was learnt. Without a trainer the next look at the directory asks again."""
    return state, (Arm(Deadline.RETRY, now + policy.retry_seconds),) if _lives(state) else ()


def _lives(state: State) -> bool:
    return state.phase in (Phase.STARTING, Phase.RUNNING)


def on_deadline(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """The bytes could not be read, and may be by now; or the trainer is late."""
    assert isinstance(event, DeadlinePassed)
    if event.deadline is not Deadline.RETRY:
        return trainer_life.on_deadline(state, event, now, policy)
    return deaths.reread(state)


def on_fell_back(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """A trainer that found the bytes bad by itself, and went on from older ones, has made nothing of them.

    All that it would not take is looked at again.
    """
    assert isinstance(event, TrainerFellBack)
    before, news = state.life.resumed, event != state.life.fell_back
    state, said = trainer_life.on_fell_back(state, event, now, policy)
    names = {one.name for one in event.rejected} if news else set()
    doubtful = [rung for rung in state.rungs if rung.name in names and rung.verdict is not None and rung.verdict.proven]
    said = (*said, *(Reread(rung.name, rung.mtime_ns) for rung in doubtful))
    if state.memory.trust is None or state.life.resumed == before:
        return state, said
    memory = replace(state.memory, trust=None)
    settled = replace(state, memory=memory, rereading=False)
    return notes.joined((*said, SaveMemory(memory)), release(settled, now, policy))


def _confirmed(state: State, rung: RungFact, now: float, policy: Policy) -> Outcome:
    """They are good, or somebody took the snapshot away and the earlier verdict stands."""
    seconds = 0.0 if rung.verdict is None else rung.verdict.seconds
    said = Record("resume.confirmed", {"name": rung.name, "step": rung.step, "seconds": seconds})
    memory = replace(state.memory, trust=None)
    return notes.joined((said, SaveMemory(memory)), release(replace(state, memory=memory), now, policy))


def release(state: State, now: float, policy: Policy) -> Outcome:
    """What was held back counts."""
    held = state.life.held
    commands: tuple[Command, ...] = ()
    state = replace(state, life=replace(state.life, held=()))
    for rung in sorted(held, key=_is_usable):  # bad news first: old ones are given up for good news
        state, more = trainer_life.take_in(state, rung, policy)
        commands = (*commands, *more)
    if prelude.is_on(state):
        return state, commands  # nobody is there yet whose end could be watched
    if _lives(state):
        return notes.joined(commands, trainer_life.watch_the_end(state, now, policy))
    orderly = state.death is not None and deaths.is_orderly(state, state.death)
    seals = tuple(map(SealSnapshot, reversed(state.life.unsealed))) if orderly else ()
    return replace(state, life=replace(state.life, unsealed=())), (*commands, *seals)


def _is_usable(rung: RungFact) -> bool:
    return rung.verdict is not None and rung.verdict.usable


def _refuted(state: State, trust: Trust, rung: RungFact, now: float, policy: Policy) -> Outcome:
    """They are bad. Whatever the trainer has made of them is not to be used, also by a later supervisor."""
    assert rung.verdict is not None
    memory = replace(state.memory, trust=replace(trust, refuted=True))
    state = replace(state, memory=memory)
    fields = {
        "name": trust.name,
        "step": trust.step,
        "verdict": str(rung.verdict.kind),
        "reason": rung.verdict.reason,
        "held_back": [one.name for one in state.life.held],
    }
    said = (Record("resume.refuted", fields), SaveMemory(memory))
    return notes.joined(said, trainer_life.end(state, Ending.REFUTED, now, policy) if _lives(state) else (state, ()))

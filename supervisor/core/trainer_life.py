"""While a trainer lives: its steps, its snapshots, its deadlines. Pure."""

import math
from dataclasses import replace

from lastgood.choose import named
from lastgood.verdict import Kind
from supervisor.core import blame, divergence, notes, prelude, stall
from supervisor.core.causes import NO_ROOM
from supervisor.core.commands import Arm, Command, Disarm, KeepEvidence, KillTree, Record, SaveMemory, SealSnapshot
from supervisor.core.events import (
    Deadline,
    DeadlinePassed,
    EndingNoted,
    Event,
    HeartbeatSeen,
    RungFact,
    SaveFailed,
    SettingsChanged,
    SnapshotGone,
    SnapshotJudged,
    SnapshotSealed,
    StepReported,
    TrainerFellBack,
    TrainerSpawned,
)
from supervisor.core.state import LIVE, Ending, Life, Phase, Policy, Resume, State
from supervisor.errors import ExitStatus

Outcome = tuple[State, tuple[Command, ...]]

TOLD_MAX = 500  # losses; a snapshot is judged, or its step printed, within so many lines of each other


def on_spawned(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """It runs: say from what, and expect a life sign."""
    assert isinstance(event, TrainerSpawned)
    state = replace(state, life=replace(state.life, sign_at=now, pid=event.pid))
    said = _spawned(state, event)
    return state, (said, Arm(Deadline.STARTUP, now + policy.stall.startup_seconds))


def on_spawned_late(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """It runs, but a stop came first and reaches it all the same."""
    assert isinstance(event, TrainerSpawned)
    return replace(state, life=replace(state.life, pid=event.pid)), (_spawned(state, event),)


def _spawned(state: State, event: Event) -> Record:
    assert isinstance(event, TrainerSpawned)
    resumed = state.life.resumed
    proof = resumed.verdict.proof if resumed is not None and resumed.verdict is not None else None
    fields = {
        "pid": event.pid,
        "resumed_from": None if resumed is None else resumed.name,
        "step": None if resumed is None else resumed.step,
        "proof": None if proof is None else str(proof),
        "standby": event.standby,
    }
    return Record("trainer.spawned", fields)


def on_step(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """A step was reported: a life sign, the resume check, and the proof that earlier saves were outlived."""
    assert isinstance(event, StepReported)
    losses = divergence.heard(state.life.losses, event.step, event.loss)
    again = state.life.moved and event.step == state.life.reported
    moved = state.life.moved or event.others or state.life.reported not in (None, event.step)
    told = _told(state.life, event)
    life = replace(state.life, reported=event.step, loss=event.loss, losses=losses, told=told, moved=moved)
    memory = replace(state.memory, reached=max(event.step, state.memory.reached or 0))
    state = replace(state, life=life, memory=memory)
    if losses.diverged:
        return end(state, Ending.DIVERGED, now, policy)
    if _is_below_resumed(state, event.step, policy):
        if event.notes_late:  # it may have noted that it found the snapshot bad; the next step is held against it
            return stall.life_sign(state, now, policy, checked=False)
        state = replace(state, life=replace(state.life, low_steps=state.life.low_steps + 1, high_steps=0))
        if state.life.low_steps < policy.low_steps_max:
            return state, ()
        return _end_ignorer(state, event.step, now, policy)
    state, armed = (state, ()) if again else stall.heard_above(state, now, policy)
    state, said = _got_past(state, event)
    return notes.joined((*armed, *said), _seal_outlived(state))


def _told(life: Life, event: StepReported) -> tuple[tuple[int, float], ...]:
    """The newest losses by step, those of a snapshot being among them when it is judged."""
    if event.loss is None or not math.isfinite(event.loss):
        return life.told
    return (*life.told[1 - TOLD_MAX :], (event.step, event.loss))


def _got_past(state: State, event: StepReported) -> Outcome:
    """Trouble that this step lies behind of is over, and a snapshot that was suspected of it is found guilty."""
    if divergence.passed(state.memory.divergence, event.step, event.loss):
        state = replace(state, memory=replace(state.memory, divergence=None))
    if not blame.convicts(state.memory.blame, event.step):
        return state, ()
    memory = replace(state.memory, blame=None)
    return replace(state, memory=memory), (SaveMemory(memory), notes.convicted(state.memory.blame))


def on_late_step(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """A step told by a trainer that is being ended or is dead counts as reached, divergences behind it as over, and no more."""
    assert isinstance(event, StepReported)
    memory = replace(state.memory, reached=max(event.step, state.memory.reached or 0))
    if divergence.passed(memory.divergence, event.step, event.loss):
        memory = replace(memory, divergence=None)
    return replace(state, life=replace(state.life, reported=event.step, loss=event.loss), memory=memory), ()


def _is_below_resumed(state: State, step: int | None, policy: Policy) -> bool:
    resumed = state.life.resumed
    if state.life.checked or resumed is None or resumed.step is None or policy.resume is Resume.NEVER:
        return False
    return step is not None and step < resumed.step


def _is_above_resumed(state: State, rung: RungFact) -> bool:
    """Whether it shows that the trainer went on from there; the resumed one itself, touched or saved again, does not."""
    resumed = state.life.resumed
    return resumed is None or resumed.step is None or rung.step is None or rung.step > resumed.step


def _was_written_since(state: State, rung: RungFact) -> bool:
    """Whether a rung is younger than the resumed one; an older one was copied in, and says nothing of the trainer."""
    resumed = state.life.resumed
    return resumed is None or rung.mtime_ns > resumed.mtime_ns


def _end_ignorer(state: State, step: int | None, now: float, policy: Policy) -> Outcome:
    """It did not resume. It is killed, not asked: asked, it would save over what it ignored."""
    resumed = state.life.resumed
    assert resumed is not None
    failure = (
        ExitStatus.CANNOT_CONTINUE,
        f"the trainer was given {resumed.name} at step {resumed.step} and went on at step {step}",
        "say with `trainer.resume` how it takes a snapshot, and look at `lastgood list` before the next start",
    )
    said = Record("resume.ignored", {"resumed_step": resumed.step, "reported_step": step})
    return notes.joined((said,), end(replace(state, failure=failure), Ending.IGNORED, now, policy))


def end(state: State, ending: Ending, now: float, policy: Policy) -> Outcome:
    """Kill the tree, and look again when it should be dead."""
    state = replace(state, phase=Phase.STOPPING, ending=ending, killed=True)
    drop = Disarm(stall.STALLS)
    return state, (drop, KillTree(), Arm(Deadline.GRACE, now + policy.kill_seconds))


def on_heartbeat(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """A life sign that tells nothing else: what the trainer resumed from is still to be seen."""
    assert isinstance(event, HeartbeatSeen)
    state, armed = stall.life_sign(state, now, policy, state.life.checked)
    return notes.joined(armed, _seal_outlived(state))


def _seal_outlived(state: State) -> Outcome:
    if not state.life.unsealed:
        return state, ()
    seals = tuple(SealSnapshot(name) for name in state.life.unsealed)
    return replace(state, life=replace(state.life, unsealed=())), seals


def on_snapshot(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """A snapshot was judged: take it in, and hold the first one after a resume against the resumed step."""
    assert isinstance(event, SnapshotJudged)
    rung = event.rung
    assert rung.verdict is not None
    if prelude.is_on(state):
        return prelude.bring(state, rung)
    alive = state.phase in (Phase.STARTING, Phase.RUNNING)
    new = _is_new(state, rung)
    tells = alive and new and rung.verdict.usable and _was_written_since(state, rung)
    if tells and not event.notes_late and _is_below_resumed(state, rung.step, policy):
        return _end_ignorer(state, rung.step, now, policy)
    commands: tuple[Command, ...] = ()
    if state.memory.trust is not None:
        state = hold(state, rung)
    else:
        state, commands = notes.note_snapshot(_without_seal(state, rung.name), rung, policy, event.new_name)
    if not alive or not new:
        return state, commands
    checked = state.life.checked or (tells and _is_above_resumed(state, rung))
    state, armed = stall.life_sign(state, now, policy, checked)
    state, seals = _seal_outlived(state)
    if state.memory.trust is None:
        state = _await_seal(state, rung)
    return notes.joined((*commands, *armed, *seals), watch_the_end(state, now, policy))


def hold(state: State, rung: RungFact) -> State:
    """The state in which a snapshot waits until it is sure that its trainer was started from good bytes."""
    others = tuple(one for one in state.life.held if one.name != rung.name)
    return replace(state, life=replace(state.life, held=(*others, rung)))


def take_in(state: State, rung: RungFact, policy: Policy) -> Outcome:
    """Count a snapshot that was held."""
    state, commands = notes.note_snapshot(_without_seal(state, rung.name), rung, policy)
    return _await_seal(state, rung), commands


def _is_new(state: State, rung: RungFact) -> bool:
    """Whether it appeared after the last look at the whole directory, rather than being an old rung judged late."""
    return not notes.knows(state, rung)


def _await_seal(state: State, rung: RungFact) -> State:
    if rung.verdict is None or rung.verdict.kind not in (Kind.INTACT, Kind.UNPROVEN):
        return state
    names = (*(name for name in state.life.unsealed if name != rung.name), rung.name)
    return replace(state, life=replace(state.life, unsealed=names))


def watch_the_end(state: State, now: float, policy: Policy) -> Outcome:
    """A trainer whose last snapshot is proven has little left to do."""
    if state.life.finishing or policy.final_step is None or (state.memory.high_water or 0) < policy.final_step:
        return state, ()
    finishing = replace(state, life=replace(state.life, finishing=True))
    drop = Disarm(stall.SILENCES)
    return finishing, (drop, Arm(Deadline.EXIT, now + policy.stall.exit_seconds))


def on_settings(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """Other limits: the silence that lasts is held against them, from its beginning; and the end may be another."""
    assert isinstance(event, SettingsChanged)
    life = state.life
    if life.pid is None:
        return state, ()
    if not life.finishing:
        return notes.joined(stall.listen(life, life.sign_at, policy), watch_the_end(state, now, policy))
    going_on = replace(state, life=replace(life, finishing=False))
    over, orders = watch_the_end(going_on, life.sign_at, policy)
    if over.life.finishing:
        return over, orders
    return going_on, (Disarm((Deadline.EXIT,)), *stall.listen(going_on.life, now, policy))


def on_sealed(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """A digest was kept: the snapshot is healthy from now on, and counts."""
    assert isinstance(event, SnapshotSealed)
    said = Record("snapshot.sealed", {"name": event.rung.name, "step": event.rung.step})
    state, commands = notes.note_snapshot(state, event.rung, policy)
    if state.phase not in LIVE:
        return state, (said, *commands)
    return notes.joined((said, *commands), watch_the_end(state, now, policy))


def _without_seal(state: State, name: str) -> State:
    """The state in which a snapshot no longer waits to be sealed: what it was judged before is not what it holds now."""
    return replace(state, life=replace(state.life, unsealed=tuple(one for one in state.life.unsealed if one != name)))


def on_gone(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """Somebody, most likely the trainer's own rotation, took a snapshot away."""
    assert isinstance(event, SnapshotGone)
    held = tuple(rung for rung in state.life.held if rung.name != event.name)
    gone = named(state.rungs, event.name)
    rungs = state.rungs if gone is None else tuple(rung for rung in state.rungs if rung is not gone)
    return replace(state, rungs=rungs, life=replace(state.life, held=held)), ()


def on_save_failed(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """The trainer's own saving noted a failure: say so. Whether it goes on is the trainer's business."""
    assert isinstance(event, SaveFailed)
    fields = {
        "name": event.name,
        "step": event.step,
        "reason": event.reason,
        "errno": event.errno,
        "blocking": event.blocking,
    }
    no_room = event.errno if event.errno in NO_ROOM else state.life.no_room
    return replace(state, life=replace(state.life, no_room=no_room)), (Record("save.failed", fields),)


def on_fell_back(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """The trainer's own loading passed over what it found bad: say so, once, however many of its processes noted it.

    One that found the snapshot meant for it bad and said so did not ignore it: its first step is held against what it took
    instead.
    """
    assert isinstance(event, TrainerFellBack)
    if event == state.life.fell_back:
        return state, ()
    said = notes.fallback(
        by="trainer",
        newest_step=event.newest_step,
        chosen=event.chosen,
        chosen_step=event.chosen_step,
        reached=notes.reached_step(state),
        depth=event.depth,
        rejected=[{"name": one.name, "verdict": one.verdict, "reason": one.reason} for one in event.rejected],
    )
    life = replace(state.life, fell_back=event)
    taken = _taken_instead(state, event)
    if taken is not None:
        life = replace(life, resumed=taken, checked=life.checked or taken.step is None)
    return replace(state, life=life), (said,)


def _taken_instead(state: State, event: TrainerFellBack) -> RungFact | None:
    """What the trainer goes on from, if that is a snapshot of the run that nobody found bad, and the one meant for it is bad."""
    resumed = state.life.resumed
    if resumed is None or all(one.name != resumed.name for one in event.rejected):
        return None
    taken = named(state.rungs, event.chosen)
    verdict = None if taken is None else taken.verdict
    was_read = verdict is None or verdict.usable or verdict.kind is Kind.UNREADABLE  # then: the trainer could read it
    return taken if was_read else None


def on_ending_noted(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """The trainer noted how it is about to end; that matters once it is dead, and the last word counts."""
    assert isinstance(event, EndingNoted)
    return replace(state, life=replace(state.life, said=event.status, said_step=event.step)), ()


def on_deadline(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """No life sign in time: the trainer is stalled, or finished and will not exit."""
    assert isinstance(event, DeadlinePassed)
    stage, seconds = str(event.deadline), round(now - state.life.sign_at, 3)
    evidence = KeepEvidence(state.incarnation, stage, seconds)
    if event.deadline is Deadline.EXIT:
        return notes.joined((evidence,), end(state, Ending.FINISHED, now, policy))
    said = Record("trainer.stalled", {"stage": stage, "seconds": seconds})
    return notes.joined((said, evidence), end(state, Ending.STALLED, now, policy))

"""Silence: which deadline holds until the next life sign, and how long it is. Pure."""

from dataclasses import replace

from supervisor.core.commands import Arm, Command, Disarm
from supervisor.core.events import Deadline, Event, SavingChanged
from supervisor.core.state import Life, Phase, Policy, State

Outcome = tuple[State, tuple[Command, ...]]

SILENCES = (Deadline.STARTUP, Deadline.RUNNING, Deadline.SAVING)
"""One of these at a time is armed while a trainer that has not finished lives."""

STALLS = (*SILENCES, Deadline.EXIT)
"""What ends a trainer that stands still, finished or not."""

SIGNS_TO_ARM = 2  # one sign says that it started, two say how fast it goes
GAP_FACTOR = 5.0  # a pause five times as long as any seen is no longer a slow step


def life_sign(state: State, now: float, policy: Policy, checked: bool = True) -> Outcome:
    """The trainer was heard; `checked` says that what it resumed from is known by now. A save is no gap between two signs."""
    life = state.life
    gap = max(life.gap_seconds, now - life.sign_at) if life.signs and not life.saving else life.gap_seconds
    life = replace(life, signs=life.signs + 1, sign_at=now, gap_seconds=gap, checked=checked)
    return replace(state, life=life, phase=Phase.RUNNING), listen(life, now, policy)


def heard_above(state: State, now: float, policy: Policy) -> Outcome:
    """A step that the resumed one may well have led to; as many in a row as show the contrary show that it did."""
    life = replace(state.life, low_steps=0, high_steps=state.life.high_steps + 1)
    checked = life.checked or life.high_steps >= policy.low_steps_max
    return life_sign(replace(state, life=life), now, policy, checked)


def listen(life: Life, now: float, policy: Policy) -> tuple[Command, ...]:
    """Arm the deadline of the silence that begins now."""
    if life.finishing:
        return ()
    usual = GAP_FACTOR * life.gap_seconds
    if life.saving:
        return (Arm(Deadline.SAVING, now + max(policy.stall.saving_seconds, usual)),)
    if life.signs < SIGNS_TO_ARM:
        return (Arm(Deadline.STARTUP, now + policy.stall.startup_seconds),)
    return Disarm((Deadline.STARTUP,)), Arm(Deadline.RUNNING, now + max(policy.stall.running_seconds, usual))


def on_saving(state: State, event: Event, now: float, policy: Policy) -> Outcome:
    """A save under way has a deadline of its own in place of the one that held; when it is over, silence is counted anew."""
    assert isinstance(event, SavingChanged)
    if state.life.pid is None:
        return state, ()  # what runs before the trainer writes
    life = replace(state.life, saving=event.saving, sign_at=state.life.sign_at if event.saving else now)
    others = tuple(one for one in SILENCES if (one is Deadline.SAVING) is not event.saving)
    return replace(state, life=life), (Disarm(others), *listen(life, now, policy))

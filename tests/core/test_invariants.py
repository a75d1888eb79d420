"""Each invariant is broken by some decision, and such a decision is refused before anything of it is carried out."""

from dataclasses import replace

import pytest

from lastgood.verdict import Kind, Proof, Verdict
from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.core import invariants, machine
from supervisor.core.machine import BrokenInvariantError, step
from supervisor.core.memory import Memory
from supervisor.core.state import Phase, State
from supervisor.core.trust import Trust
from tests.core.test_machine import POLICY, at, rung, running

SELECTING = at(Phase.SELECTING, memory=Memory(incarnation=1, high_water=50), rungs=(rung(50), rung(40), rung(30)))
STARTED = replace(SELECTING, phase=Phase.STARTING, memory=Memory(incarnation=2, high_water=50))
WRITTEN = c.SaveMemory(STARTED.memory)
START = c.SpawnTrainer(2, rung(50))
RAW = replace(rung(50), verdict=Verdict(Kind.UNPROVEN, Proof.STRUCTURE, "no checksums"))
TRUSTED = c.SpawnTrainer(2, replace(rung(50), trusted=True))
WITH_TRUST = replace(STARTED.memory, trust=Trust("ckpt_50.pt", 50, 50))

BROKEN: list[tuple[str, State, State, tuple[c.Command, ...]]] = [
    ("a trainer is started only where none lives", running(), STARTED, (WRITTEN, START)),
    ("a trainer is started only where none lives", replace(SELECTING, stuck=True), STARTED, (WRITTEN, START)),
    ("a trainer is started only where none lives", SELECTING, STARTED, (WRITTEN, START, START)),
    ("a trainer is started only where none lives", SELECTING, SELECTING, (WRITTEN, START)),
    ("a start is written down first", SELECTING, STARTED, (START, WRITTEN)),
    ("a start is written down first", SELECTING, STARTED, (WRITTEN, c.SpawnTrainer(3, rung(50)))),
    ("a start is written down first", SELECTING, STARTED, (c.SaveMemory(SELECTING.memory), START)),
    ("a start is written down first", SELECTING, STARTED, (WRITTEN, TRUSTED)),
    ("nothing is started that nobody wants", replace(SELECTING, stop_signal=15), STARTED, (WRITTEN, START)),
    ("nothing is started that nobody wants", replace(SELECTING, pause=True), STARTED, (WRITTEN, START)),
    (
        "a start is from bytes that may be used",
        SELECTING,
        STARTED,
        (WRITTEN, c.SpawnTrainer(2, rung(50, Kind.CORRUPT))),
    ),
    ("a start is from bytes that may be used", SELECTING, STARTED, (WRITTEN, c.SpawnTrainer(2, rung(50, None)))),
    ("a stop is not taken back", replace(running(), stop_signal=15), running(), ()),
    ("an end is one exit, said last", SELECTING, replace(SELECTING, phase=Phase.FAILED), ()),
    ("an end is one exit, said last", SELECTING, SELECTING, (c.Exit(0),)),
    ("an end is one exit, said last", SELECTING, replace(SELECTING, phase=Phase.FAILED), (c.Exit(4), WRITTEN)),
    ("an end is final", at(Phase.STOPPED), at(Phase.STOPPED), (c.KillTree(),)),
    ("an end is final", at(Phase.STOPPED), running(), ()),
    ("a phase that waits has a deadline", SELECTING, replace(SELECTING, phase=Phase.BACKOFF), ()),
    ("a phase that waits has a deadline", SELECTING, replace(SELECTING, phase=Phase.WAITING), ()),
    ("a phase that waits has a deadline", running(), replace(running(), phase=Phase.STOPPING), (c.KillTree(),)),
    ("proven snapshots are not set aside", SELECTING, SELECTING, (c.SetAside(rung(50), "for a test"),)),
    ("the newest proven snapshots are not pruned", SELECTING, SELECTING, (c.PruneSnapshot(rung(50)),)),
    ("the newest proven snapshots are not pruned", SELECTING, SELECTING, (c.PruneSnapshot(rung(40)),)),
    (
        "the newest proven snapshots are not pruned",
        SELECTING,
        replace(SELECTING, memory=WITH_TRUST),
        (c.PruneSnapshot(rung(30)),),
    ),
    ("high water only rises", SELECTING, replace(SELECTING, memory=Memory(incarnation=1, high_water=40)), ()),
    (
        "high water only rises",
        at(Phase.SELECTING, memory=Memory(high_water=0)),
        at(Phase.SELECTING, memory=Memory()),
        (),
    ),
]


@pytest.mark.parametrize(("name", "before", "after", "commands"), BROKEN)
def test_an_invariant_can_be_broken(name: str, before: State, after: State, commands: tuple[c.Command, ...]) -> None:
    """A check that cannot fail is none."""
    assert name in invariants.broken(before, e.SettingsChanged(), after, commands)


def test_a_deadline_that_passed_in_vain_is_set_again() -> None:
    """A phase that only its deadline leads out of would last for ever."""
    for phase, deadline in invariants.WAITS.items():
        state, passed = at(phase), e.DeadlinePassed(deadline, 1)
        assert [invariants.WAITS_AGAIN] == invariants.broken(state, passed, state, ())
        assert [] == invariants.broken(state, passed, state, (c.Arm(deadline, 9.0),))
        assert [] == invariants.broken(state, e.DeadlinePassed(e.Deadline.RUNNING, 1), state, ())
        assert [] == invariants.broken(state, passed, at(Phase.SELECTING), ())


def test_every_invariant_has_been_broken() -> None:
    """The table above leaves none out."""
    assert set(invariants.INVARIANTS) == {name for name, *_ in BROKEN}


def test_what_is_right_breaks_none() -> None:
    """A start, one on trust, an unproven one, an end, a wait, a pruned old one, a run that starts over."""
    waiting = replace(SELECTING, phase=Phase.WAITING)
    failed = replace(SELECTING, phase=Phase.FAILED)
    over = c.Record("run.started_over", {"rejected": []})
    right: list[tuple[State, State, tuple[c.Command, ...]]] = [
        (SELECTING, STARTED, (WRITTEN, START)),
        (SELECTING, STARTED, (WRITTEN, c.SpawnTrainer(2, None))),
        (SELECTING, STARTED, (WRITTEN, c.SpawnTrainer(2, RAW))),
        (SELECTING, replace(STARTED, memory=WITH_TRUST), (c.SaveMemory(WITH_TRUST), TRUSTED)),
        (SELECTING, failed, (c.Exit(4),)),
        (SELECTING, waiting, (c.Arm(e.Deadline.RETRY, 5.0),)),
        (waiting, waiting, ()),
        (SELECTING, SELECTING, (c.PruneSnapshot(rung(30)), c.SetAside(rung(60, Kind.CORRUPT), "it is"))),
        (SELECTING, replace(SELECTING, memory=Memory(incarnation=1)), (over,)),
    ]

    assert [[]] * len(right) == [
        invariants.broken(before, e.SettingsChanged(), after, commands) for before, after, commands in right
    ]


def test_a_decision_that_breaks_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug is told by the names of what it breaks, and none of its commands comes out."""
    wrong = (replace(running(), phase=Phase.STARTING), (c.SpawnTrainer(2, None),))
    monkeypatch.setitem(machine.TABLE[e.StepReported], Phase.RUNNING, lambda *_: wrong)

    said = "StepReported in phase running: not kept: a trainer is started only where none lives; a start is written"
    with pytest.raises(BrokenInvariantError, match=said):
        step(running(), e.StepReported(1, 61, None), 1.0, POLICY)

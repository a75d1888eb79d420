"""Whether a snapshot or the software is to blame for deaths that repeat."""

from dataclasses import replace
from typing import Any

import pytest

from lastgood.verdict import Kind
from supervisor.core import blame
from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.core.blame import Blame, Suspect
from supervisor.core.machine import step
from supervisor.core.memory import Memory
from supervisor.core.state import Life, Phase, Resume, State
from tests.core.test_machine import POLICY, names, one_of, record, rung

SUSPECT = Suspect("ckpt_50.pt", 50, 50)
LINES = ("loading", "RuntimeError: tensor 12 of 0x7f3a has 4096 rows")


def crash(code: int | None = 1, signal: int | None = None, lines: tuple[str, ...] = LINES) -> e.TrainerExited:
    return e.TrainerExited(1, code, signal, None, lines)


def dead(found: Blame | None, resumed: e.RungFact, at: int | None = 60, death: e.TrainerExited | None = None) -> State:
    """A trainer that was resumed from a rung and crashed; its tree is swept and the directory is being read."""
    life = Life(resumed=resumed, reported=at, checked=True)
    memory = Memory(high_water=50, reached=60, incarnation=1, ever_proven=True, blame=found)
    return State(Phase.SELECTING, memory, life, (rung(50), rung(40)), death=crash() if death is None else death)


def settled(state: State, *rungs: e.RungFact, policy: Any = POLICY) -> tuple[State, tuple[c.Command, ...]]:
    return step(state, e.LadderJudged(rungs or (rung(50), rung(40)), True), 1.0, policy)


def test_a_first_crash_accuses_nobody() -> None:
    """It is remembered with what it was resumed from, where it died and how, numbers masked."""
    state, commands = settled(dead(None, rung(50)))

    assert Blame(SUSPECT, 60, "code 1: RuntimeError: tensor # of # has # rows") == state.memory.blame
    assert "snapshot.suspected" not in names(commands)


def test_a_second_crash_alike_makes_the_snapshot_a_suspect() -> None:
    """It is said once, and the next look judges on below it."""
    state, commands = settled(dead(None, rung(50)))
    state, commands = settled(dead(state.memory.blame, rung(50)))

    assert {
        "name": "ckpt_50.pt", "step": 50, "deaths": 2, "died_at": 60,
        "signature": "code 1: RuntimeError: tensor # of # has # rows",
    } == record(commands, "snapshot.suspected")  # fmt: skip
    assert SUSPECT == (state.memory.blame.suspect if state.memory.blame else None)
    _, commands = step(state, e.DeadlinePassed(e.Deadline.BACKOFF, 1), 99.0, POLICY)
    assert c.JudgeLadder(frozenset({"ckpt_50.pt"})) == one_of(commands, c.JudgeLadder)


@pytest.mark.parametrize(
    ("resumed", "at", "death"),
    [
        (rung(40), 60, crash()),
        (replace(rung(50), mtime_ns=51), 60, crash()),
        (rung(50), 61, crash()),
        (rung(50), None, crash()),
        (rung(50), 60, crash(3)),
        (rung(50), 60, crash(None, 11)),
        (rung(50), 60, crash(lines=("KeyError: 'x'",))),
        (rung(50), 60, crash(lines=())),
    ],
    ids=["another snapshot", "another of its name", "another step", "no step", "code", "signal", "words", "no words"],
)
def test_a_crash_unlike_the_last_begins_anew(resumed: e.RungFact, at: int | None, death: e.TrainerExited) -> None:
    """Snapshot, step and signature are all alike, or it is another trouble."""
    before = settled(dead(None, rung(50)))[0].memory.blame
    after = settled(dead(before, resumed, at, death))[0].memory.blame

    assert after is not None
    assert (1, None) == (after.deaths, after.suspect)


@pytest.mark.parametrize(
    ("code", "signal"), [(None, 9), (0, None), (65, None)], ids=["killed", "ended early", "diverged"]
)
def test_only_crashes_accuse(code: int | None, signal: int | None) -> None:
    """A kill or a divergence says nothing about the bytes it was resumed from."""
    before = settled(dead(None, rung(50)))[0].memory.blame

    assert before == settled(dead(before, rung(50), 60, crash(code, signal)))[0].memory.blame


def test_a_fresh_start_that_crashes_has_no_snapshot_to_blame() -> None:
    """Its deaths are the budget's alone."""
    state = replace(dead(None, rung(50)), life=Life(reported=3))

    assert None is settled(state)[0].memory.blame


@pytest.mark.parametrize("older", [(), (rung(40, Kind.CORRUPT),)], ids=["none", "a bad one"])
def test_where_there_is_nothing_older_nothing_is_suspected(older: tuple[e.RungFact, ...]) -> None:
    """There is nothing to try instead: the budget decides how often it is tried again."""
    before = settled(dead(None, rung(50)))[0].memory.blame
    state, commands = settled(replace(dead(before, rung(50)), rungs=(rung(50), *older)), rung(50), *older)

    assert "snapshot.suspected" not in names(commands)
    assert None is (state.memory.blame.suspect if state.memory.blame else "no blame")


def suspicion() -> Blame:
    found = settled(dead(settled(dead(None, rung(50)))[0].memory.blame, rung(50)))[0].memory.blame
    assert found is not None
    assert SUSPECT == found.suspect
    return found


@pytest.mark.parametrize("resume", [Resume.TOLD, Resume.SELF])
def test_a_suspect_is_passed_over_and_set_aside(resume: Resume) -> None:
    """As any other that is not resumed from: one fallback, which says what speaks against it."""
    policy = replace(POLICY, resume=resume)
    state = replace(dead(suspicion(), rung(50)), death=None)
    state, commands = settled(state, rung(50), rung(40), policy=policy)

    assert ["fallback.chosen", "SetAside"] == names(commands)[:2]
    said = record(commands, "fallback.chosen")
    assert ("ckpt_40.pt", 1, 20) == (said["chosen"], said["depth"], said["steps_lost"])
    assert "suspected: 2 deaths alike at step 60 (code 1: RuntimeError" in said["rejected"][0]["reason"]
    if resume is Resume.SELF:
        state, commands = settled(state, rung(40), policy=policy)
    assert "ckpt_40.pt" == one_of(commands, c.SpawnTrainer).snapshot.name


def tried(found: Blame | None = None) -> State:
    """An older snapshot is being tried."""
    memory = Memory(high_water=50, reached=60, incarnation=2, ever_proven=True, blame=found or suspicion())
    life = Life(resumed=rung(40), checked=True, signs=1)
    return State(Phase.RUNNING, memory, life, (rung(40),))


def test_a_suspect_is_poisoned_once_the_run_is_past_where_it_died() -> None:
    """It stays in quarantine, is said to be poisoned, and the run goes on unsuspecting."""
    state, commands = step(tried(), e.StepReported(2, 60, 1.0), 1.0, POLICY)
    assert suspicion() == state.memory.blame
    state, commands = step(state, e.StepReported(2, 61, 1.0), 1.0, POLICY)

    said = record(commands, "snapshot.rejected")
    assert ("ckpt_50.pt", 50, "poisoned") == (said["name"], said["step"], said["verdict"])
    assert "2 deaths alike from it" in said["reason"]
    assert None is state.memory.blame
    assert None is one_of(commands, c.SaveMemory).memory.blame


def test_one_that_died_before_its_first_step_is_poisoned_by_any_step_of_an_older() -> None:
    """What cannot even be loaded is passed by whatever can."""
    state, commands = step(tried(replace(suspicion(), step=None)), e.StepReported(2, 41, 1.0), 1.0, POLICY)

    assert "poisoned" == record(commands, "snapshot.rejected")["verdict"]
    assert None is state.memory.blame


def test_the_same_death_from_an_older_snapshot_acquits_it_and_ends_the_run() -> None:
    """No snapshot is at fault: the suspect is put back, and status 5 says what the deaths look like."""
    state = replace(dead(suspicion(), rung(40)), rungs=(rung(40),))
    state, commands = settled(state, rung(40))

    assert c.PutBack("ckpt_50.pt", 50) == one_of(commands, c.PutBack)
    said = record(commands, "run.failed")
    assert (Phase.FAILED, 5) == (state.phase, said["status"])
    assert said["reason"].startswith("software cannot continue: 3 deaths alike at step 60, from more than one snapshot")
    assert None is one_of(commands, c.SaveMemory).memory.blame


def test_another_death_while_an_older_one_is_tried_decides_nothing() -> None:
    """The trial goes on under the budget."""
    state = replace(dead(suspicion(), rung(40), 44), rungs=(rung(40),))

    assert suspicion() == settled(state, rung(40))[0].memory.blame


def test_a_suspect_that_is_the_only_one_left_is_resumed_from_and_no_longer_one() -> None:
    """When the older one turns out to be bad there is nothing else: better a doubtful start than none."""
    state = replace(dead(suspicion(), rung(50)), death=None)
    state, commands = settled(state, rung(50), rung(40, Kind.CORRUPT))

    assert "ckpt_50.pt" == one_of(commands, c.SpawnTrainer).snapshot.name
    assert None is (state.memory.blame.suspect if state.memory.blame else "no blame")


def test_a_new_snapshot_of_a_suspects_name_is_none() -> None:
    """The run that was resumed from an older one saves that step again."""
    again = replace(rung(50), mtime_ns=99)

    assert (again, rung(40)) == blame.suspected((again, rung(40)), suspicion())


@pytest.mark.parametrize("kind", [Kind.CORRUPT, Kind.UNPROVEN])
def test_suspicion_takes_only_proof_away(kind: Kind) -> None:
    """What is bad or unproven anyway keeps the verdict of its bytes."""
    assert (rung(50, kind),) == blame.suspected((rung(50, kind),), suspicion())
    assert (rung(50, None),) == blame.suspected((rung(50, None),), suspicion())


def test_a_signature_is_short_whatever_was_printed() -> None:
    """It goes into records and into run.json."""
    long = blame.signature(crash(lines=("x" * 10_000, "", "  ")))

    assert ("code 1: " + "x" * 200) == long

"""Resuming at once on the word of an earlier verdict: what counts meanwhile, and what happens when the bytes turn out bad."""

from dataclasses import replace
from typing import Any

import pytest

from lastgood.keep import Keep
from lastgood.verdict import Kind
from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.core.blame import Blame, Suspect
from supervisor.core.machine import begin, step
from supervisor.core.memory import Memory
from supervisor.core.rereading import PATIENCE
from supervisor.core.state import Ending, Life, Phase, Policy, Resume, State
from supervisor.core.trust import Trust
from tests.core.test_machine import at, ladder, names, rung, running, verdict

POLICY = Policy(final_step=100, keep=Keep(2))
TRUSTED = replace(rung(50), trusted=True)
TRUST = Trust("ckpt_50.pt", 50, 50)
MEMORY = Memory(high_water=50, reached=60, incarnation=1, trust=TRUST)


def trusting(**more: Any) -> State:
    """A trainer that was started from step 50 on trust and has told step 60."""
    return running(**{"memory": MEMORY, "rereading": True, "rungs": (TRUSTED, rung(40)), **more})


def reread(kind: Kind | None = Kind.HEALTHY, **more: Any) -> e.SnapshotReread:
    return e.SnapshotReread(rung(50, kind), **more)


def of(commands: tuple[c.Command, ...], kind: type) -> list[Any]:
    return [one for one in commands if isinstance(one, kind)]


def test_a_start_on_trust_reads_the_bytes_again_beside_the_trainer() -> None:
    """The trainer is started first; the reading follows, and run.json knows of the trust before either."""
    state, commands = step(at(Phase.SELECTING, rungs=()), ladder(TRUSTED, rung(40, None)), 0.0, POLICY)

    assert ["SaveMemory", "SpawnTrainer", "Reread"] == names(commands)[-3:]
    assert TRUST == of(commands, c.SaveMemory)[-1].memory.trust == state.memory.trust
    assert state.rereading


def test_what_was_read_for_the_start_is_not_read_again() -> None:
    """Bytes that were hashed before the start need no second look."""
    state, commands = step(at(Phase.SELECTING), ladder(rung(50)), 0.0, POLICY)

    assert None is state.memory.trust
    assert [] == of(commands, c.Reread)


def test_until_then_a_snapshot_is_a_life_sign_and_no_more() -> None:
    """What the trainer publishes meanwhile is no progress, is not sealed, and nothing is pruned for it."""
    before = trusting()
    for kind in (Kind.HEALTHY, Kind.INTACT, Kind.TRUNCATED):
        state, commands = step(before, e.SnapshotJudged(rung(70, kind)), 5.0, POLICY)

        assert ["Disarm", "Arm"] == names(commands)
        assert (rung(70, kind),) == state.life.held
        assert (50, (), before.rungs) == (state.memory.high_water, state.life.unsealed, state.rungs)
        assert 5.0 == state.life.sign_at


def test_once_confirmed_it_counts() -> None:
    """What was held back is told, counts as progress, and what retention gives up for it goes."""
    state, _ = step(trusting(), e.SnapshotJudged(rung(70)), 5.0, POLICY)
    state, _ = step(state, e.SnapshotJudged(rung(80, Kind.INTACT)), 6.0, POLICY)
    state, commands = step(state, reread(), 7.0, POLICY)

    told = ["resume.confirmed", "SaveMemory", "snapshot.verified", "SaveMemory", "trainer.progressed"]
    assert told == names(commands)[:5]
    assert 80 == state.memory.high_water
    assert None is state.memory.trust
    assert () == state.life.held
    assert ("ckpt_80.pt",) == state.life.unsealed
    assert ["ckpt_40.pt"] == [one.rung.name for one in of(commands, c.PruneSnapshot)]


def test_a_final_snapshot_that_was_held_back_is_the_end() -> None:
    """Confirmed late, the last snapshot still starts the wait for the trainer's exit."""
    state, _ = step(trusting(), e.SnapshotJudged(rung(100)), 5.0, POLICY)
    state, commands = step(state, reread(), 7.0, POLICY)

    assert state.life.finishing
    assert e.Deadline.EXIT in [one.deadline for one in of(commands, c.Arm)]


def test_what_went_away_meanwhile_keeps_its_earlier_verdict() -> None:
    """A trainer that rotates may take the snapshot away before it was read again: that says nothing against it."""
    state, commands = step(trusting(), reread(None), 7.0, POLICY)

    assert "resume.confirmed" == names(commands)[0]
    assert None is state.memory.trust


@pytest.mark.parametrize("kind", [Kind.CORRUPT, Kind.TRUNCATED, Kind.POISONED, Kind.INCOMPLETE, Kind.INCOMPATIBLE])
def test_bad_bytes_end_the_trainer_at_once(kind: Kind) -> None:
    """It is killed, not asked: asked, it would save what it made of them. A later supervisor will know."""
    state, _ = step(trusting(), e.SnapshotJudged(rung(70)), 5.0, POLICY)
    state, commands = step(state, reread(kind), 7.0, POLICY)

    assert ["resume.refuted", "SaveMemory", "Disarm", "KillTree", "Arm"] == names(commands)
    assert ["ckpt_70.pt"] == commands[0].fields["held_back"]
    assert replace(TRUST, refuted=True) == of(commands, c.SaveMemory)[0].memory.trust
    assert (Phase.STOPPING, Ending.REFUTED) == (state.phase, state.ending)


def refuted(**more: Any) -> State:
    """The trainer that was started from bad bytes is dead, and so is all it left."""
    memory = replace(MEMORY, trust=replace(TRUST, refuted=True))
    death = e.TrainerExited(1, None, 9)
    given = {"life": Life(pid=7, resumed=TRUSTED), **more}
    return at(Phase.SELECTING, memory=memory, death=death, ending=Ending.REFUTED, **given)


def test_what_was_made_of_bad_bytes_is_set_aside_with_them() -> None:
    """All that the trainer published goes into quarantine, and the run goes on from before; the death costs nothing."""
    seen = ladder(rung(80), rung(70), rung(60, Kind.TRUNCATED), rung(50, Kind.CORRUPT), rung(40))
    state, commands = step(refuted(), seen, 8.0, POLICY)

    assert "resume-refuted" == commands[0].fields["cause"]
    assert (0, ()) == (state.memory.budget.recent.__len__(), state.memory.budget.fruitless)
    state, commands = step(state, seen, 8.0, POLICY)

    assert ["ckpt_80.pt", "ckpt_70.pt", "ckpt_60.pt", "ckpt_50.pt"] == [
        one.rung.name for one in of(commands, c.SetAside)
    ]
    said = next(one for one in of(commands, c.Record) if one.event == "fallback.chosen")
    assert ["poisoned", "poisoned", "truncated", "corrupt"] == [one["verdict"] for one in said.fields["rejected"]]
    assert [] == of(commands, c.SpawnTrainer)  # only once the directory was seen without them
    state, commands = step(state, ladder(rung(40)), 9.0, POLICY)

    assert ["ckpt_40.pt"] == [one.snapshot.name for one in of(commands, c.SpawnTrainer)]
    assert None is state.memory.trust


def test_the_look_goes_past_bad_bytes() -> None:
    """Once they are known to be bad, all from that step on is judged and passed."""
    _, commands = step(replace(refuted(), stuck=False), e.TreeSwept(1), 8.0, POLICY)

    assert c.JudgeLadder(above=49) == commands[0]


def test_a_look_that_was_asked_for_before_is_repeated() -> None:
    """A look under way when the bytes turned out bad stopped at what the trainer had made of them."""
    state, commands = step(replace(refuted(), death=None), ladder(rung(70), rung(50, None)), 8.0, POLICY)

    assert (c.JudgeLadder(above=49),) == commands
    assert Phase.SELECTING is state.phase


def test_what_lay_there_before_is_not_held_against_the_trainer() -> None:
    """A newer snapshot that could not be read at the start, and stayed, was not made of the bad bytes."""
    seen = ladder(rung(70, Kind.UNREADABLE), TRUSTED)
    state, _ = step(at(Phase.SELECTING, tries=9), seen, 0.0, POLICY)
    assert (("ckpt_70.pt", 70),) == state.memory.trust.left

    memory = replace(state.memory, trust=replace(state.memory.trust, refuted=True))
    state = at(Phase.SELECTING, memory=memory)
    _, commands = step(state, ladder(rung(80), rung(70), rung(50, Kind.CORRUPT), rung(40)), 8.0, POLICY)

    assert ["ckpt_70.pt"] == [one.snapshot.name for one in of(commands, c.SpawnTrainer)] or (
        "ckpt_70.pt" not in [one.rung.name for one in of(commands, c.SetAside)]
    )


def test_a_suspect_that_was_set_aside_before_is_not_held_against_the_trainer() -> None:
    """Tried on trust in its place, an older one turns out bad; the suspect is put back, and is as good as it was."""
    suspect = Suspect("ckpt_70.pt", 70, 70)
    memory = replace(MEMORY, trust=None, blame=Blame(suspect, 71, "code 1", 2, suspect))
    state, _ = step(at(Phase.SELECTING, memory=memory), ladder(rung(70), TRUSTED), 0.0, POLICY)
    assert (("ckpt_70.pt", 70),) == state.memory.trust.left

    state, _ = step(state, reread(Kind.CORRUPT), 1.0, POLICY)
    state, _ = step(state, e.TrainerExited(2, None, 9), 2.0, POLICY)
    state, _ = step(state, ladder(rung(50, Kind.CORRUPT)), 3.0, POLICY)
    state, commands = step(state, ladder(rung(50, Kind.CORRUPT)), 4.0, POLICY)
    assert [c.PutBack("ckpt_70.pt", 70)] == of(commands, c.PutBack)
    _, commands = step(state, ladder(rung(70), rung(50, Kind.CORRUPT)), 5.0, POLICY)

    assert ["ckpt_70.pt"] == [one.snapshot.name for one in of(commands, c.SpawnTrainer)]


def test_bad_bytes_make_no_completion() -> None:
    """A trainer that was started from bad bytes and reached the end has not completed the run."""
    life = Life(pid=7, resumed=TRUSTED, reported=100, signs=5)
    death = e.TrainerExited(1, 0, None)
    state = replace(refuted(life=life), death=death, ending=None)
    state, commands = step(state, ladder(rung(100), rung(50, Kind.CORRUPT), rung(40)), 8.0, POLICY)

    assert "run.completed" not in names(commands)
    assert "ended-early" == commands[0].fields["cause"]


def test_a_supervisor_that_was_killed_reads_them_again_first() -> None:
    """Another supervisor may have died before it knew; the next one asks before it looks at the ladder."""
    state, _ = begin(State(memory=MEMORY))
    state, commands = step(state, e.TreeSwept(1), 1.0, POLICY)

    assert (c.Reread("ckpt_50.pt", 50), c.JudgeLadder()) == commands
    state, _ = step(state, reread(Kind.CORRUPT), 2.0, POLICY)
    state, commands = step(state, ladder(rung(70), rung(50, None)), 3.0, POLICY)

    assert (c.JudgeLadder(above=49),) == commands


def test_what_a_dead_trainer_left_unseen_is_held_back_too() -> None:
    """A snapshot that is found only after the death counts once the bytes it was made of are known."""
    state = at(Phase.SELECTING, memory=MEMORY, rereading=True, life=Life(pid=7, resumed=TRUSTED))
    state, commands = step(state, ladder(rung(70)), 2.0, POLICY)

    assert ["Arm"] == names(commands)
    assert (Phase.WAITING, (rung(70),)) == (state.phase, state.life.held)
    state, commands = step(state, reread(), 3.0, POLICY)

    assert 70 == state.memory.high_water
    assert "trainer.progressed" in names(commands)


def test_an_unsealed_one_of_a_trainer_that_ended_well_is_sealed_when_it_counts() -> None:
    """An exit with 0 outlives every write, also of what was held back until after it."""
    life = Life(pid=7, resumed=TRUSTED, held=(rung(70, Kind.INTACT),))
    seal = [c.SealSnapshot("ckpt_70.pt")]
    for code, ending, sealed in ((0, None, seal), (143, Ending.STOP, seal), (143, None, []), (1, Ending.STOP, [])):
        death = e.TrainerExited(1, code, None)
        state = at(Phase.SELECTING, memory=MEMORY, rereading=True, life=life, death=death, ending=ending)
        state, commands = step(state, reread(), 3.0, POLICY)

        assert sealed == of(commands, c.SealSnapshot)
        assert () == state.life.unsealed


def test_bytes_that_cannot_be_read_are_tried_again_and_then_bad() -> None:
    """A reading that fails is repeated; in the end nobody can vouch for them."""
    state = trusting()
    for _ in range(POLICY.unreadable_tries * PATIENCE):
        state, commands = step(state, reread(Kind.UNREADABLE), 7.0, POLICY)
        assert (c.Arm(e.Deadline.RETRY, 7.0 + POLICY.retry_seconds),) == commands
        state, commands = step(state, e.DeadlinePassed(e.Deadline.RETRY, 1), 12.0, POLICY)
        assert (c.Reread("ckpt_50.pt", 50),) == commands
    _, commands = step(state, reread(Kind.UNREADABLE), 7.0, POLICY)
    assert "resume.refuted" == names(commands)[0]

    state = replace(
        at(Phase.SELECTING, memory=MEMORY), doubts=POLICY.unreadable_tries
    )  # nobody lives to be patient for
    _, commands = step(state, reread(Kind.UNREADABLE), 7.0, POLICY)
    assert ["resume.refuted", "SaveMemory"] == names(commands)


def test_a_directory_that_is_away_says_nothing() -> None:
    """However long it is away, that is no evidence against the bytes."""
    state = trusting()
    for _ in range(20):
        state, commands = step(state, reread(None, reachable=False), 7.0, POLICY)
        assert ["Arm"] == names(commands)
        state, commands = step(state, e.DeadlinePassed(e.Deadline.RETRY, 1), 12.0, POLICY)
        assert ["Reread"] == names(commands)
    state, commands = step(replace(state, phase=Phase.SELECTING), reread(None, reachable=False), 7.0, POLICY)

    assert () == commands  # the next look asks again


def test_without_a_trainer_it_is_waited_for() -> None:
    """Nothing is started while it is not known what the last trainer was started from."""
    state = at(Phase.SELECTING, memory=MEMORY)
    state, commands = step(state, ladder(rung(70), rung(50, None)), 8.0, POLICY)

    assert (Phase.WAITING, (c.Arm(e.Deadline.RETRY, 8.0 + POLICY.retry_seconds),)) == (state.phase, commands[-1:])
    _, commands = step(state, e.DeadlinePassed(e.Deadline.RETRY, 1), 13.0, POLICY)

    assert ["Reread", "JudgeLadder"] == names(commands)


def test_a_trainer_that_noticed_by_itself_goes_on() -> None:
    """It found the bytes bad, said so, and took older ones: nothing of it is made of them, and it is left alone."""
    state, _ = step(trusting(), e.SnapshotJudged(rung(70)), 5.0, POLICY)
    noted = e.TrainerFellBack(1, 50, "ckpt_40.pt", 40, 1, (e.PassedOver("ckpt_50.pt", "corrupt", "it differs"),))
    state, commands = step(state, noted, 6.0, POLICY)

    assert ["fallback.chosen", "Reread", "SaveMemory", "snapshot.verified"] == names(commands)[:4]
    assert None is state.memory.trust
    assert not state.rereading
    state, commands = step(
        state, reread(Kind.CORRUPT), 7.0, POLICY
    )  # it counts no longer, and stays for a fallback to set aside
    assert ["snapshot.rejected"] == names(commands)
    assert Kind.CORRUPT is next(one.verdict.kind for one in state.rungs if one.step == 50 and one.verdict)
    assert (state, ()) == step(state, reread(Kind.UNREADABLE), 8.0, POLICY)
    assert (state, ()) == step(state, e.SnapshotReread(rung(55, Kind.CORRUPT)), 8.0, POLICY)


def test_another_fallback_of_the_trainer_changes_nothing() -> None:
    """A note about other snapshots says nothing of the one that is trusted."""
    noted = e.TrainerFellBack(1, 60, "ckpt_50.pt", 50, 1, (e.PassedOver("ckpt_60.pt", "corrupt", "it differs"),))
    state, commands = step(trusting(), noted, 6.0, POLICY)

    assert ["fallback.chosen"] == names(commands)
    assert TRUST == state.memory.trust


def test_a_stop_while_they_are_read_is_a_stop() -> None:
    """Asked to stop, the trainer saves in its grace; bad bytes then are remembered for the next start, which looks past them."""
    state, _ = step(trusting(), e.StopRequested(15), 5.0, POLICY)
    state, commands = step(state, reread(Kind.CORRUPT), 6.0, POLICY)

    assert ["resume.refuted", "SaveMemory"] == names(commands)
    assert (Phase.STOPPING, Ending.STOP) == (state.phase, state.ending)


def test_news_of_another_snapshot_is_none() -> None:
    """An answer about what is no longer trusted, or has become another file, changes nothing."""
    other = e.SnapshotReread(rung(45, Kind.CORRUPT))
    before = trusting()

    assert (before, ()) == step(before, other, 7.0, POLICY)
    assert () == step(running(), e.DeadlinePassed(e.Deadline.RETRY, 1), 7.0, POLICY)[1]


def test_what_is_taken_away_is_not_held() -> None:
    """A snapshot that its trainer removed before it counted never does."""
    state, _ = step(trusting(), e.SnapshotJudged(rung(70)), 5.0, POLICY)
    state, _ = step(state, e.SnapshotGone("ckpt_70.pt"), 6.0, POLICY)

    assert () == state.life.held


def test_a_trainer_that_finds_them_itself_is_started_when_they_are_gone() -> None:
    """What cannot be moved out of the way is in the way of everybody: after some tries the run ends, and says so."""
    seen = ladder(rung(70), rung(50, Kind.CORRUPT), rung(40))
    for resume in (Resume.TOLD, Resume.SELF):
        policy = replace(POLICY, resume=resume)
        state = replace(refuted(), death=None)
        for _ in range(POLICY.unreadable_tries + 1):
            state, commands = step(state, seen, 8.0, policy)
            assert [] == of(commands, c.SpawnTrainer)
            state = replace(state, phase=Phase.SELECTING)
        _, commands = step(state, seen, 8.0, policy)

        assert ["run.failed", "Exit"] == names(commands)[-2:]


def test_a_verdict_without_a_step_is_not_trusted() -> None:
    """Where nobody tells a step, nothing could tell later what was made of it."""
    bare = replace(TRUSTED, step=None, verdict=verdict())
    state, commands = step(at(Phase.SELECTING), ladder(bare), 0.0, POLICY)

    assert None is state.memory.trust
    assert [] == of(commands, c.Reread)

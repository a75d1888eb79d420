"""Decisions that the simulator found wrong once, each as a sentence."""

from dataclasses import replace

import pytest

from lastgood.verdict import Kind
from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.core.blame import Blame, Suspect
from supervisor.core.machine import step
from supervisor.core.memory import Memory
from supervisor.core.state import Life, Phase, Resume, State
from tests.core.test_machine import POLICY, at, ladder, names, one_of, record, rung, running

SELF = replace(POLICY, resume=Resume.SELF)
SUSPECT = Blame(Suspect("ckpt_50.pt", 50, 50), 60, "code 1: boom", 2, Suspect("ckpt_50.pt", 50, 50))


def known(**more: object) -> Memory:
    return Memory(high_water=50, reached=60, incarnation=1, ever_proven=True, **more)


def test_a_snapshot_that_is_condemned_is_not_sealed_any_more() -> None:
    """It waited for the next life sign when it was still thought to be whole; a seal would vouch for what it holds now."""
    state, _ = step(running(), e.SnapshotJudged(rung(61, Kind.INTACT)), 1.0, POLICY)
    assert ("ckpt_61.pt",) == state.life.unsealed
    state, _ = step(state, e.SnapshotJudged(replace(rung(61, Kind.TRUNCATED), mtime_ns=62)), 2.0, POLICY)
    _, commands = step(state, e.StepReported(1, 62, None), 3.0, POLICY)

    assert "SealSnapshot" not in names(commands)


def test_a_fallback_is_said_however_long_was_waited_before() -> None:
    """Storage that was away, or a rung that could not be read at first, does not swallow the record; it is said once."""
    rungs = (rung(60, Kind.UNREADABLE), rung(50))
    state = at(Phase.SELECTING, memory=known(), tries=POLICY.unreadable_tries)
    _, commands = step(state, ladder(*rungs), 1.0, POLICY)
    assert 1 == record(commands, "fallback.chosen")["depth"]

    state, _ = step(at(Phase.SELECTING, memory=known()), e.LadderUnreadable("Stale file handle"), 1.0, POLICY)
    state, _ = step(state, e.DeadlinePassed(e.Deadline.RETRY, 1), 9.0, POLICY)
    _, commands = step(state, ladder(rung(60, Kind.CORRUPT), rung(50)), 9.0, POLICY)
    assert "fallback.chosen" in names(commands)


def test_an_outage_takes_nothing_from_the_tries_to_clear_the_way() -> None:
    """Resuming by itself: the bad one is set aside after any number of reads that failed."""
    state = at(Phase.SELECTING, memory=known())
    for _ in range(9):
        state, _ = step(state, e.LadderUnreadable("Input/output error"), 1.0, SELF)
        state, _ = step(state, e.DeadlinePassed(e.Deadline.RETRY, 1), 9.0, SELF)
    state, commands = step(state, ladder(rung(60, Kind.CORRUPT), rung(50)), 9.0, SELF)

    assert (Phase.SELECTING, "ckpt_60.pt") == (state.phase, one_of(commands, c.SetAside).rung.name)


def test_an_outage_is_said_once_and_again_when_it_comes_back() -> None:
    """A look that succeeds ends it."""
    state, commands = step(at(Phase.SELECTING), e.LadderUnreadable("Input/output error"), 1.0, POLICY)
    assert "directory.unreadable" in names(commands)
    state, _ = step(state, e.DeadlinePassed(e.Deadline.RETRY, 1), 9.0, POLICY)
    state, commands = step(state, e.LadderUnreadable("Input/output error"), 9.0, POLICY)
    assert "directory.unreadable" not in names(commands)
    state, _ = step(replace(state, phase=Phase.SELECTING), ladder(held=False), 9.0, POLICY)

    assert not state.away


@pytest.mark.parametrize("kind", [Kind.CORRUPT, Kind.TRUNCATED])
def test_a_bad_old_snapshot_that_changes_at_the_start_says_nothing_of_the_trainer(kind: Kind) -> None:
    """It neither accuses a healthy trainer nor ticks off the check of an ignoring one."""
    start = replace(running(), phase=Phase.STARTING, life=Life(pid=7, resumed=rung(50)))
    state, _ = step(start, e.SnapshotJudged(replace(rung(30, kind), mtime_ns=99)), 1.0, POLICY)
    assert (Phase.RUNNING, False) == (state.phase, state.life.checked)
    state, commands = step(state, e.StepReported(1, 7, None), 2.0, POLICY)

    assert 50 == record(commands, "resume.ignored")["resumed_step"]


def test_a_start_that_the_system_refuses_accuses_no_snapshot() -> None:
    """There was no trainer to die from it."""
    state = State(Phase.STARTING, known(), Life(pid=7, resumed=rung(50)), (rung(50), rung(40)))
    for _ in range(3):
        state, _ = step(state, e.SpawnFailed(1, "Cannot allocate memory"), 1.0, POLICY)
        state, _ = step(state, ladder(rung(50), rung(40)), 1.0, POLICY)
        state = replace(state, phase=Phase.STARTING)

    assert None is state.memory.blame


def test_a_suspect_is_put_back_before_a_run_gives_up_for_want_of_a_snapshot() -> None:
    """The older one has gone bad meanwhile: better the doubtful one than none."""
    state = at(Phase.SELECTING, memory=known(blame=SUSPECT))
    state, commands = step(state, ladder(rung(40, Kind.CORRUPT)), 1.0, POLICY)
    assert (Phase.SELECTING, c.PutBack("ckpt_50.pt", 50)) == (state.phase, one_of(commands, c.PutBack))
    state, commands = step(state, ladder(rung(50), rung(40, Kind.CORRUPT)), 2.0, POLICY)

    assert "ckpt_50.pt" == one_of(commands, c.SpawnTrainer).snapshot.name


def test_a_run_that_starts_over_suspects_nothing_any_more() -> None:
    """What was blamed belongs to what was given up."""
    policy = replace(POLICY, allow_fresh_start=True)
    found = replace(SUSPECT, suspect=None)
    _, commands = step(at(Phase.SELECTING, memory=known(blame=found)), ladder(rung(50, Kind.CORRUPT)), 1.0, policy)

    assert "run.started_over" in names(commands)
    assert None is one_of(commands, c.SaveMemory).memory.blame


def test_a_fresh_start_of_a_trainer_that_finds_its_own_waits_for_a_clear_way() -> None:
    """It would go on from the bad one that is still there."""
    policy = replace(SELF, allow_fresh_start=True)
    state = at(Phase.SELECTING, memory=known())
    state, commands = step(state, ladder(rung(50, Kind.CORRUPT)), 1.0, policy)
    assert ["SetAside", "JudgeLadder"] == [name for name in names(commands) if name[0].isupper()]
    state, commands = step(state, ladder(rung(50, Kind.CORRUPT)), 2.0, policy)
    assert (Phase.WAITING, []) == (state.phase, [one for one in commands if isinstance(one, c.SpawnTrainer)])
    state, commands = step(replace(state, phase=Phase.SELECTING), ladder(), 3.0, policy)

    assert ["ckpt_50.pt"] == [one["name"] for one in record(commands, "run.started_over")["rejected"]]
    assert () == state.given_up
    assert None is one_of(commands, c.SpawnTrainer).snapshot


def test_a_run_whose_last_snapshot_is_there_is_done_though_nothing_proves_it() -> None:
    """Exit 0 with the final step saved, in a format without checksums, and one line told: it is no early end."""
    policy = replace(POLICY, final_step=60)
    life = Life(resumed=rung(50), reported=60, signs=1)
    state = State(Phase.SELECTING, known(), life, (rung(50),), death=e.TrainerExited(1, 0, None))

    assert Phase.COMPLETED is step(state, ladder(rung(60, Kind.UNPROVEN), rung(50)), 1.0, policy)[0].phase
    assert Phase.COMPLETED is not step(state, ladder(rung(60, Kind.CORRUPT), rung(50)), 1.0, policy)[0].phase


def test_a_run_is_not_done_beyond_its_final_step_by_what_a_line_said() -> None:
    """A line that looks like a step may be none; were it believed, a raised final step would find the run done at once."""
    policy = replace(POLICY, final_step=60)
    rungs = (rung(60), rung(50))
    state = State(Phase.SELECTING, replace(known(), high_water=60), Life(reported=970), rungs)
    state, commands = step(replace(state, death=e.TrainerExited(1, 0, None, None, ())), ladder(*rungs), 1.0, policy)
    assert (Phase.COMPLETED, 60, 60) == (state.phase, state.memory.done, record(commands, "run.completed")["step"])

    again = at(Phase.SELECTING, memory=replace(state.memory, reached=970))
    assert Phase.STARTING is step(again, ladder(*rungs), 1.0, replace(policy, final_step=70))[0].phase
    state, commands = step(again, ladder(*rungs), 1.0, policy)
    assert (Phase.COMPLETED, 60) == (state.phase, record(commands, "run.completed")["step"])


def test_without_a_final_step_a_run_is_done_where_its_snapshots_say() -> None:
    """What was told counts only where nothing was ever saved."""
    exited = e.TrainerExited(1, 0, None, None, ())
    for memory, done in ((replace(known(), reached=970), 50), (Memory(reached=970, incarnation=1), 970)):
        state = State(Phase.SELECTING, memory, Life(reported=970), death=exited)
        assert done == step(state, ladder(), 1.0, replace(POLICY, final_step=None))[0].memory.done


def test_one_line_of_a_guessed_format_hides_no_trainer_that_ignores_its_snapshot() -> None:
    """`until step 600` is no step; as many lines as accuse a trainer clear it, and a banner between begins the count anew."""
    policy = replace(POLICY, low_steps_max=2)
    start = replace(running(), phase=Phase.STARTING, life=Life(pid=7, resumed=rung(50)))
    state, _ = step(start, e.StepReported(1, 600, None), 1.0, policy)
    assert (Phase.RUNNING, False) == (state.phase, state.life.checked)
    state, _ = step(state, e.StepReported(1, 1, None), 2.0, policy)
    _, commands = step(state, e.StepReported(1, 2, None), 3.0, policy)
    assert 50 == record(commands, "resume.ignored")["resumed_step"]

    state, _ = step(start, e.StepReported(1, 51, None), 1.0, policy)
    assert step(state, e.StepReported(1, 52, None), 2.0, policy)[0].life.checked


def test_a_death_after_progress_repeats_no_other_and_clears_the_suspect() -> None:
    """The next start is from a newer snapshot: neither is the run given up, nor does the suspect stay where it was put."""
    exited = e.TrainerExited(1, 1, None, None, ("boom",))
    life = Life(resumed=rung(40), reported=60, checked=True, progressed=True)
    state = State(Phase.SELECTING, known(blame=SUSPECT), life, (rung(60), rung(40)), death=exited)
    state, commands = step(state, ladder(rung(60), rung(40)), 1.0, POLICY)

    assert (None, None) == (state.failure, state.memory.blame)
    assert c.PutBack("ckpt_50.pt", 50) == one_of(commands, c.PutBack)
    assert "snapshot.suspected" not in names(commands)

"""The table of phase x event: total, and each decision as a sentence."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from lastgood.keep import Keep
from lastgood.verdict import Kind, Proof, Verdict
from supervisor.core import commands as c
from supervisor.core import events as e
from supervisor.core.budget import Budget
from supervisor.core.machine import TABLE, ImpossibleError, begin, step
from supervisor.core.memory import Memory
from supervisor.core.state import ENDS, Ending, Life, Phase, Policy, Resume, State

POLICY = Policy(final_step=100)
IMPOSSIBLE = {
    (e.LadderJudged, Phase.STARTING), (e.LadderJudged, Phase.RUNNING), (e.LadderJudged, Phase.STOPPING),
    (e.LadderUnreadable, Phase.STARTING), (e.LadderUnreadable, Phase.RUNNING), (e.LadderUnreadable, Phase.STOPPING),
    (e.TrainerSpawned, Phase.SELECTING), (e.TrainerSpawned, Phase.BACKOFF),
    (e.TrainerSpawned, Phase.WAITING),
    (e.SpawnFailed, Phase.SELECTING), (e.SpawnFailed, Phase.RUNNING), (e.SpawnFailed, Phase.BACKOFF),
    (e.SpawnFailed, Phase.WAITING),
    (e.TrainerExited, Phase.SELECTING), (e.TrainerExited, Phase.BACKOFF), (e.TrainerExited, Phase.WAITING),
    (e.TreeSwept, Phase.STARTING), (e.TreeSwept, Phase.RUNNING), (e.TreeSwept, Phase.STOPPING),
    (e.TreeSwept, Phase.BACKOFF), (e.TreeSwept, Phase.PAUSED), (e.TrainerSpawned, Phase.PAUSED),
    (e.SpawnFailed, Phase.PAUSED), (e.TrainerExited, Phase.PAUSED),
}  # fmt: skip
"""Cells that cannot happen; everything else in the table is decided."""


def verdict(kind: Kind = Kind.HEALTHY, **more: Any) -> Verdict:
    return Verdict(kind, Proof.SEAL if kind is Kind.HEALTHY else Proof.CRC, f"it is {kind}", 10, **more)


def rung(number: int, kind: Kind | None = Kind.HEALTHY, **more: Any) -> e.RungFact:
    return e.RungFact(f"ckpt_{number}.pt", number, number, None if kind is None else verdict(kind, **more))


def ladder(*rungs: e.RungFact, held: bool = True) -> e.LadderJudged:
    return e.LadderJudged(rungs, held, frozenset(r.name for r in rungs if r.verdict is not None))


def at(phase: Phase, **more: Any) -> State:
    return State(phase=phase, memory=more.pop("memory", Memory(incarnation=1)), **more)


def running(**more: Any) -> State:
    """A trainer that was resumed from step 50 and has told step 60."""
    life = Life(pid=7, resumed=rung(50), reported=60, checked=True, signs=2, sign_at=0.0)
    memory = Memory(high_water=50, reached=60, incarnation=1)
    return replace(State(Phase.RUNNING, memory=memory, life=life, rungs=(rung(50),)), **more)


def names(commands: tuple[c.Command, ...]) -> list[str]:
    """Commands by type; records by their event."""
    return [one.event if isinstance(one, c.Record) else type(one).__name__ for one in commands]


def one_of(commands: tuple[c.Command, ...], kind: type) -> Any:
    found = [one for one in commands if isinstance(one, kind)]
    assert len(found) == 1, commands
    return found[0]


def record(commands: tuple[c.Command, ...], event: str) -> dict[str, Any]:
    found = [one for one in commands if isinstance(one, c.Record) and one.event == event]
    assert len(found) == 1, names(commands)
    return dict(found[0].fields)


def records(commands: tuple[c.Command, ...]) -> list[str]:
    """The events of the records alone."""
    return [one.event for one in commands if isinstance(one, c.Record)]


SAMPLES: dict[type, e.Event] = {
    e.LadderJudged: ladder(rung(50)),
    e.LadderUnreadable: e.LadderUnreadable("Input/output error"),
    e.TrainerSpawned: e.TrainerSpawned(1, 4711),
    e.SpawnFailed: e.SpawnFailed(1, "no memory"),
    e.StepReported: e.StepReported(1, 61, 2.5),
    e.HeartbeatSeen: e.HeartbeatSeen(1),
    e.SavingChanged: e.SavingChanged(1, True),
    e.SnapshotJudged: e.SnapshotJudged(rung(61)),
    e.SnapshotSealed: e.SnapshotSealed(rung(61)),
    e.SnapshotReread: e.SnapshotReread(rung(50)),
    e.SnapshotGone: e.SnapshotGone("ckpt_50.pt"),
    e.SaveFailed: e.SaveFailed(1, 61, "ckpt_61.pt", "No space left on device", 28, True),
    e.TrainerFellBack: e.TrainerFellBack(1, 50, "ckpt_40.pt", 40, 1, (e.PassedOver("ckpt_50.pt", "corrupt", "x"),)),
    e.EndingNoted: e.EndingNoted(1, 65),
    e.TrainerExited: e.TrainerExited(1, None, 9),
    e.TreeSwept: e.TreeSwept(1),
    e.DeadlinePassed: e.DeadlinePassed(e.Deadline.RETRY, 1),
    e.StopRequested: e.StopRequested(15),
    e.PauseRequested: e.PauseRequested(),
    e.ResumeRequested: e.ResumeRequested(),
    e.SettingsChanged: e.SettingsChanged(),
}


def test_every_event_has_a_row_and_a_sample() -> None:
    """The table knows every event there is."""
    assert set(get_args(e.Event)) == set(TABLE) == set(SAMPLES)


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("event", sorted(SAMPLES, key=lambda kind: kind.__name__))
def test_every_cell_is_decided_ignored_with_a_reason_or_impossible(phase: Phase, event: type) -> None:
    """No cell is left to chance: it acts, says why it does not, or is on the list of what cannot happen."""
    state = replace(running(), phase=phase)
    if (event, phase) in IMPOSSIBLE:
        with pytest.raises(ImpossibleError, match=f"{event.__name__} in phase {phase}"):
            step(state, SAMPLES[event], 1.0, POLICY)
        return
    cell = TABLE[event][phase]
    after, commands = step(state, SAMPLES[event], 1.0, POLICY)

    assert isinstance(after, State)
    if isinstance(cell, str):
        assert (len(cell) > 10, state, ()) == (True, after, commands)


@pytest.mark.parametrize("phase", sorted(ENDS))
def test_nothing_happens_after_the_end(phase: Phase) -> None:
    """An ended run ignores every event."""
    for event in SAMPLES.values():
        assert (at(phase), ()) == step(at(phase), event, 1.0, POLICY)


def test_late_news_of_an_earlier_incarnation_is_ignored() -> None:
    """An exit, a step or a deadline of a trainer that is gone changes nothing."""
    state = running(memory=Memory(incarnation=2))
    for event in (e.TrainerExited(1, 0, None), e.StepReported(1, 5, None), e.DeadlinePassed(e.Deadline.RUNNING, 1)):
        assert (state, ()) == step(state, event, 1.0, POLICY)


def test_a_supervisor_first_sweeps_what_a_killed_one_left() -> None:
    """Nothing is judged or started before leftovers are gone."""
    assert (c.SweepTree(0),) == begin(State())[1]


def test_an_empty_directory_starts_fresh() -> None:
    """A directory that never held a snapshot starts from nothing."""
    state, commands = step(State(), ladder(held=False), 0.0, POLICY)

    assert (Phase.STARTING, 1) == (state.phase, state.incarnation)
    assert c.SpawnTrainer(1, None) == one_of(commands, c.SpawnTrainer)


def test_the_newest_good_one_is_resumed_without_a_fallback() -> None:
    """When the newest is good, nothing is said but the start."""
    _, commands = step(at(Phase.SELECTING), ladder(rung(10), rung(9, None)), 0.0, POLICY)

    assert c.SpawnTrainer(2, rung(10)) == one_of(commands, c.SpawnTrainer)
    assert "fallback.chosen" not in names(commands)


def test_a_fallback_sets_newer_ones_aside_and_says_everything_in_one_record() -> None:
    """Newest, chosen, depth, steps lost and each reason are in `fallback.chosen`, a warning that an alert can match."""
    state = at(Phase.SELECTING, memory=Memory(incarnation=1, reached=10400, high_water=10000))
    rungs = (rung(10000, Kind.CORRUPT), rung(9500, Kind.TRUNCATED), rung(9000))
    _, commands = step(state, ladder(*rungs), 0.0, POLICY)
    said = record(commands, "fallback.chosen")

    assert ("supervisor", 10000, 9000, 2, 1400) == tuple(
        said[k] for k in ("by", "newest_step", "chosen_step", "depth", "steps_lost")
    )
    assert [("ckpt_10000.pt", "corrupt"), ("ckpt_9500.pt", "truncated")] == [
        (r["name"], r["verdict"]) for r in said["rejected"]
    ]
    assert ["ckpt_10000.pt", "ckpt_9500.pt"] == [one.rung.name for one in commands if isinstance(one, c.SetAside)]
    assert c.SpawnTrainer(2, rungs[2]) == one_of(commands, c.SpawnTrainer)


@pytest.mark.parametrize("resume", [Resume.TOLD, Resume.SELF])
def test_what_other_software_may_read_is_moved_only_where_the_trainer_would_trip(resume: Resume) -> None:
    """An incompatible snapshot stays in place unless the trainer finds the newest itself."""
    _, commands = step(
        at(Phase.SELECTING), ladder(rung(10, Kind.INCOMPATIBLE), rung(9)), 0.0, replace(POLICY, resume=resume)
    )

    assert (resume is Resume.SELF) == any(isinstance(one, c.SetAside) for one in commands)
    assert (resume is Resume.TOLD) == ("SpawnTrainer" in names(commands))


def test_a_trainer_that_finds_the_newest_itself_starts_only_once_the_bad_one_is_gone() -> None:
    """The directory is read again after setting aside; while the bad one is still there nothing starts, then it fails."""
    policy, seen = replace(POLICY, resume=Resume.SELF), ladder(rung(10, Kind.CORRUPT), rung(9))
    state, commands = step(at(Phase.SELECTING), seen, 0.0, policy)
    assert ["fallback.chosen", "SetAside", "JudgeLadder"] == names(commands)[-3:]
    _, commands = step(state, ladder(rung(9)), 0.0, policy)
    assert 9 == one_of(commands, c.SpawnTrainer).snapshot.step

    for _ in range(policy.unreadable_tries):
        state, commands = step(replace(state, phase=Phase.SELECTING), seen, 0.0, policy)
        assert (Phase.WAITING, False) == (state.phase, "SpawnTrainer" in names(commands))
    state, commands = step(replace(state, phase=Phase.SELECTING), seen, 0.0, policy)
    assert (Phase.FAILED, c.Exit(3)) == (state.phase, one_of(commands, c.Exit))


def test_an_unproven_one_is_resumed_only_alone_and_loudly() -> None:
    """With nothing proven left, the newest unproven one is taken and a warning says so."""
    _, commands = step(at(Phase.SELECTING), ladder(rung(9, Kind.UNPROVEN)), 0.0, POLICY)

    assert "resume.unproven" in names(commands)
    assert 9 == one_of(commands, c.SpawnTrainer).snapshot.step


@pytest.mark.parametrize("rungs", [(), (rung(3, Kind.CORRUPT), rung(2, Kind.TRUNCATED))])
def test_never_start_over_in_silence(rungs: tuple[e.RungFact, ...]) -> None:
    """Where snapshots were and none is good, the run fails with 3 and touches nothing."""
    state, commands = step(at(Phase.SELECTING), ladder(*rungs), 0.0, POLICY)

    assert Phase.FAILED is state.phase
    assert c.Exit(3) == one_of(commands, c.Exit)
    assert "allow-fresh-start" in record(commands, "run.failed")["advice"]
    assert not {"SetAside", "SpawnTrainer"} & set(names(commands))


def test_an_explicit_wish_starts_over_and_says_so() -> None:
    """--allow-fresh-start sets the bad ones aside and starts from nothing, in a record."""
    policy = replace(POLICY, allow_fresh_start=True)
    _, commands = step(at(Phase.SELECTING), ladder(rung(3, Kind.CORRUPT)), 0.0, policy)

    assert "run.started_over" in names(commands)
    assert "ckpt_3.pt" == one_of(commands, c.SetAside).rung.name
    assert one_of(commands, c.SpawnTrainer).snapshot is None


def test_a_run_killed_in_its_very_first_save_starts_again() -> None:
    """A run born in an empty directory whose only file was never whole has lost nothing: it starts again, and says so."""
    memory = Memory(incarnation=1, born_empty=True)
    _, commands = step(at(Phase.SELECTING, memory=memory), ladder(rung(1, Kind.TRUNCATED)), 0.0, POLICY)
    assert "run.started_over" in names(commands)
    assert one_of(commands, c.SpawnTrainer).snapshot is None

    memory = replace(memory, ever_proven=True)
    _, commands = step(at(Phase.SELECTING, memory=memory), ladder(rung(1, Kind.TRUNCATED)), 0.0, POLICY)
    assert c.Exit(3) == one_of(commands, c.Exit)


def test_a_directory_that_cannot_be_read_is_waited_for() -> None:
    """An unmounted directory is never taken for an empty one; it is said once and looked at again."""
    state, commands = step(at(Phase.SELECTING), e.LadderUnreadable("Stale file handle"), 7.0, POLICY)
    assert Phase.WAITING is state.phase
    assert ["directory.unreadable", "Arm"] == names(commands)

    state, commands = step(state, e.DeadlinePassed(e.Deadline.RETRY, 1), 12.0, POLICY)
    assert (Phase.SELECTING, (c.JudgeLadder(),)) == (state.phase, commands)
    _, commands = step(state, e.LadderUnreadable("Stale file handle"), 12.0, POLICY)
    assert ["Arm"] == names(commands)


def test_a_newer_unreadable_rung_is_retried_with_a_limit_then_passed_over() -> None:
    """EIO on the newest is waited for three times; then the run goes on from the next, and nothing is moved."""
    state, seen = at(Phase.SELECTING), ladder(rung(10, Kind.UNREADABLE), rung(9))
    for _ in range(POLICY.unreadable_tries):
        state, commands = step(replace(state, phase=Phase.SELECTING), seen, 0.0, POLICY)
        assert (Phase.WAITING, False) == (state.phase, "SpawnTrainer" in names(commands))
    _, commands = step(replace(state, phase=Phase.SELECTING), seen, 0.0, POLICY)

    assert 9 == one_of(commands, c.SpawnTrainer).snapshot.step
    assert "SetAside" not in names(commands)


@pytest.mark.parametrize(
    "rungs", [(rung(10, Kind.UNREADABLE, errno=13), rung(9)), (rung(10, Kind.UNREADABLE, errno=13),)]
)
def test_a_permission_error_stops_the_run(rungs: tuple[e.RungFact, ...]) -> None:
    """What a person must mend is not papered over by falling back."""
    _, commands = step(at(Phase.SELECTING), ladder(*rungs), 0.0, POLICY)

    assert c.Exit(3) == one_of(commands, c.Exit)
    assert "permission" in record(commands, "run.failed")["reason"]


def test_a_trainer_that_never_resumes_is_started_fresh_each_time() -> None:
    """With resume `never`, which somebody chose, snapshots decide nothing."""
    _, commands = step(at(Phase.SELECTING), ladder(rung(10)), 0.0, replace(POLICY, resume=Resume.NEVER))

    assert one_of(commands, c.SpawnTrainer).snapshot is None


def test_the_first_step_is_held_against_the_resumed_one() -> None:
    """A trainer that starts over instead of resuming is killed before it can save, and the run ends with 5."""
    state = replace(running(), phase=Phase.STARTING, life=Life(pid=7, resumed=rung(50)))
    state, commands = step(state, e.StepReported(1, 1, 4.0), 1.0, POLICY)
    assert ["resume.ignored", "Disarm", "KillTree", "Arm"] == names(commands)
    assert {"resumed_step": 50, "reported_step": 1} == record(commands, "resume.ignored")

    state, _ = step(state, e.TrainerExited(1, None, 9), 1.0, POLICY)
    state, _ = step(state, e.TreeSwept(1), 1.0, POLICY)
    state, commands = step(state, ladder(rung(50)), 1.0, POLICY)
    assert (Phase.FAILED, c.Exit(5)) == (state.phase, one_of(commands, c.Exit))
    assert "resume-ignored" == record(commands, "trainer.exited")["cause"]


def test_a_first_snapshot_below_the_resumed_step_is_ignoring_too() -> None:
    """A silent trainer is found out by its first snapshot."""
    state = replace(running(), phase=Phase.STARTING, life=Life(pid=7, resumed=rung(50)))
    copied_in, _ = step(state, e.SnapshotJudged(rung(10)), 1.0, POLICY)
    assert Phase.RUNNING is copied_in.phase

    saved = replace(rung(10), mtime_ns=99)
    state, commands = step(state, e.SnapshotJudged(saved), 1.0, POLICY)
    assert (Phase.STOPPING, Ending.IGNORED) == (state.phase, state.ending)
    assert "KillTree" in names(commands)


def test_where_the_pattern_is_a_guess_one_low_step_may_be_a_banner() -> None:
    """`optimization steps = 5` proves nothing; two low steps in a row do."""
    policy = replace(POLICY, low_steps_max=2)
    start = replace(running(), phase=Phase.STARTING, life=Life(pid=7, resumed=rung(50)))
    state, commands = step(start, e.StepReported(1, 5, None), 1.0, policy)
    assert (Phase.STARTING, ()) == (state.phase, commands)
    assert Phase.RUNNING is step(state, e.StepReported(1, 51, None), 1.0, policy)[0].phase
    assert Ending.IGNORED is step(state, e.StepReported(1, 6, None), 1.0, policy)[0].ending


SELF = replace(POLICY, resume=Resume.SELF)


def fell_back(chosen: str = "ckpt_40.pt", step: int | None = 40, passed: str = "ckpt_50.pt") -> e.TrainerFellBack:
    """The trainer says that it takes `chosen`, since `passed` is bad."""
    return e.TrainerFellBack(1, 50, chosen, step, 1, (e.PassedOver(passed, "corrupt", "its SHA-256 differs"),))


def starting(*older: e.RungFact) -> State:
    """A trainer that is meant to go on from step 50 and has said nothing yet."""
    return replace(running(), phase=Phase.STARTING, life=Life(pid=7, resumed=rung(50)), rungs=(rung(50), *older))


def test_a_trainers_own_fallback_is_said_with_what_it_costs() -> None:
    """One record, marked as the trainer's, counts the steps lost from the highest one reached."""
    _, commands = step(running(), fell_back(), 1.0, POLICY)
    rejected = [{"name": "ckpt_50.pt", "verdict": "corrupt", "reason": "its SHA-256 differs"}]

    assert ["fallback.chosen"] == records(commands)
    assert {
        "by": "trainer", "newest_step": 50, "chosen": "ckpt_40.pt", "chosen_step": 40, "depth": 1, "steps_lost": 20,
        "rejected": rejected,
    } == record(commands, "fallback.chosen")  # fmt: skip
    assert None is record(step(at(Phase.RUNNING), fell_back(), 1.0, POLICY)[1], "fallback.chosen")["steps_lost"]
    unknown = step(running(), fell_back("last.pt", None), 1.0, POLICY)[1]
    assert None is record(unknown, "fallback.chosen")["steps_lost"]


def test_a_fallback_that_many_processes_note_is_said_once() -> None:
    """Each rank of a trainer loads by itself; another fallback, or that of the next trainer, is said again."""
    state, _ = step(running(), fell_back(), 1.0, POLICY)
    assert (state, ()) == step(state, fell_back(), 1.0, POLICY)
    assert ["fallback.chosen"] == records(step(state, fell_back("ckpt_30.pt", 30), 1.0, POLICY)[1])
    assert ["fallback.chosen"] == records(step(replace(state, life=Life()), fell_back(), 1.0, POLICY)[1])


@pytest.mark.parametrize("policy", [POLICY, SELF], ids=["told", "self"])
def test_a_trainer_that_finds_its_snapshot_bad_may_fall_back_and_say_so(policy: Policy) -> None:
    """Told or found by itself: its first step is held against what it took instead, which is in use from then on."""
    state, _ = step(starting(rung(40), rung(30)), fell_back(), 1.0, policy)
    assert (40, False) == (state.life.resumed.step if state.life.resumed else None, state.life.checked)
    assert Phase.RUNNING is step(state, e.StepReported(1, 41, None), 1.0, policy)[0].phase
    assert Ending.IGNORED is step(state, e.StepReported(1, 7, None), 1.0, policy)[0].ending

    state, _ = step(starting(rung(40, Kind.UNREADABLE)), fell_back(), 1.0, policy)  # by the trainer it was read
    assert Phase.RUNNING is step(state, e.StepReported(1, 41, None), 1.0, policy)[0].phase

    quiet = e.RungFact("last.pt", None, 7)
    state, _ = step(starting(quiet), fell_back("last.pt", None), 1.0, policy)
    assert Phase.RUNNING is step(state, e.StepReported(1, 7, None), 1.0, policy)[0].phase


@pytest.mark.parametrize(
    "note",
    [fell_back("elsewhere.pt"), fell_back("ckpt_30.pt", 30), fell_back(passed="ckpt_45.pt")],
    ids=["no snapshot of the run", "known to be bad", "not the one meant for it"],
)
def test_other_fallbacks_excuse_nothing(note: e.TrainerFellBack) -> None:
    """They are said, and a step below the one to resume from still ends the trainer."""
    state, commands = step(starting(rung(40), rung(30, Kind.CORRUPT)), note, 1.0, SELF)
    assert ["fallback.chosen"] == records(commands)
    state, commands = step(state, e.StepReported(1, 41, None), 1.0, SELF)

    assert Ending.IGNORED is state.ending
    assert 50 == record(commands, "resume.ignored")["resumed_step"]


@pytest.mark.parametrize("phase", sorted(set(Phase) - ENDS))
def test_a_failed_save_is_said_and_changes_nothing(phase: Phase) -> None:
    """What the trainer's saving noted is one record, also when heard after the trainer's death; want of room is kept in mind."""
    state = running(phase=phase)
    after, commands = step(state, SAMPLES[e.SaveFailed], 1.0, POLICY)

    assert (replace(state, life=replace(state.life, no_room=28)), ["save.failed"]) == (after, names(commands))
    other = replace(SAMPLES[e.SaveFailed], errno=5)
    assert state == step(state, other, 1.0, POLICY)[0]
    assert {
        "name": "ckpt_61.pt", "step": 61, "reason": "No space left on device", "errno": 28, "blocking": True,
    } == record(commands, "save.failed")  # fmt: skip


def test_a_step_after_the_resumed_one_is_fine() -> None:
    """The first step that follows makes the trainer running."""
    state = replace(running(), phase=Phase.STARTING, life=Life(pid=7, resumed=rung(50)))
    state, commands = step(state, e.StepReported(1, 51, 4.0), 1.0, POLICY)

    assert (Phase.RUNNING, True) == (state.phase, state.life.checked)
    assert ["Arm"] == names(commands)


def test_a_proven_snapshot_above_high_water_is_progress() -> None:
    """Progress is remembered durably, told, refills the budget, and gives up old snapshots."""
    budget = Budget(fruitless=(1.0, 2.0))
    state = running(
        memory=Memory(high_water=50, reached=60, incarnation=1, budget=budget), rungs=(rung(50), rung(40), rung(30))
    )
    state, commands = step(state, e.SnapshotJudged(rung(60)), 3.0, replace(POLICY, keep=Keep(2)))

    assert (60, ()) == (state.memory.high_water, state.memory.budget.fruitless)
    assert {"step": 60, "loss": None} == record(commands, "trainer.progressed")
    assert ["ckpt_30.pt", "ckpt_40.pt"] == [one.rung.name for one in commands if isinstance(one, c.PruneSnapshot)]
    assert state.memory == one_of(commands, c.SaveMemory).memory


def test_what_the_trainer_was_resumed_from_is_not_pruned() -> None:
    """The snapshot in use stays whatever retention says."""
    state = running(rungs=(rung(50), rung(49), rung(48)))
    state, _ = step(state, e.SnapshotJudged(rung(60)), 3.0, replace(POLICY, keep=Keep(2)))
    _, commands = step(state, e.SnapshotJudged(rung(70)), 3.0, replace(POLICY, keep=Keep(2)))

    assert [] == [one for one in commands if isinstance(one, c.PruneSnapshot)]


def test_a_snapshot_below_high_water_is_no_progress() -> None:
    """After a fallback, re-made snapshots count only once they pass the old mark."""
    state, commands = step(
        running(memory=Memory(high_water=90, incarnation=1)), e.SnapshotJudged(rung(60)), 3.0, POLICY
    )

    assert (90, False) == (state.memory.high_water, state.life.progressed)
    assert "trainer.progressed" not in names(commands)


def test_a_bad_arrival_is_rejected_in_a_record() -> None:
    """What may not be resumed from is told with its reason."""
    _, commands = step(running(), e.SnapshotJudged(rung(60, Kind.CORRUPT)), 3.0, POLICY)

    assert "it is corrupt" == record(commands, "snapshot.rejected")["reason"]


def test_an_unsealed_snapshot_is_sealed_once_its_writer_outlived_it() -> None:
    """The next life sign after an unsealed snapshot orders its seal; a death before that does not."""
    state, commands = step(running(), e.SnapshotJudged(rung(60, Kind.INTACT)), 3.0, POLICY)
    assert "SealSnapshot" not in names(commands)
    after, commands = step(state, e.StepReported(1, 62, None), 4.0, POLICY)
    assert c.SealSnapshot("ckpt_60.pt") == one_of(commands, c.SealSnapshot)
    assert () == after.life.unsealed

    _, commands = step(state, e.SnapshotJudged(rung(70, Kind.INTACT)), 4.0, POLICY)
    assert c.SealSnapshot("ckpt_60.pt") == one_of(commands, c.SealSnapshot)
    _, commands = step(state, e.TrainerExited(1, None, 9), 4.0, POLICY)
    assert "SealSnapshot" not in names(commands)
    _, commands = step(state, e.TrainerExited(1, 0, None), 4.0, POLICY)
    assert c.SealSnapshot("ckpt_60.pt") == one_of(commands, c.SealSnapshot)


def test_a_sealed_one_counts_as_progress() -> None:
    """An unproven snapshot counts once it is sealed."""
    state, _ = step(running(), e.SnapshotJudged(rung(60, Kind.UNPROVEN)), 3.0, POLICY)
    assert 50 == state.memory.high_water
    state, commands = step(state, e.SnapshotSealed(rung(60)), 3.0, POLICY)

    assert 60 == state.memory.high_water
    assert "snapshot.sealed" == names(commands)[0]


def died(
    state: State, *rungs: e.RungFact, code: int | None = None, signal: int | None = 9, now: float = 10.0, **more: Any
) -> tuple[State, tuple[c.Command, ...]]:
    """The state and the commands after a death, a clean sweep and a look at the ladder."""
    policy = more.pop("policy", POLICY)
    state, _ = step(state, e.TrainerExited(state.incarnation, code, signal, **more), now, policy)
    state, _ = step(state, e.TreeSwept(state.incarnation), now, policy)
    return step(state, ladder(*rungs), now, policy)


def test_the_tree_is_swept_before_anything_is_decided() -> None:
    """After any exit everything that belongs to it goes first."""
    state, commands = step(running(), e.TrainerExited(1, None, 9), 1.0, POLICY)

    assert (Phase.SELECTING, "SweepTree") == (state.phase, names(commands)[-1])
    assert (c.JudgeLadder(),) == step(state, e.TreeSwept(1), 1.0, POLICY)[1]


def test_the_first_death_after_progress_restarts_at_once() -> None:
    """Progress pays for one immediate restart."""
    _, commands = died(running(life=replace(running().life, progressed=True)), rung(60))

    assert {"delay_seconds": 0.0, "cause": "killed", "without_progress": 0} == record(commands, "restart.scheduled")
    assert c.JudgeLadder() == commands[-1]


def test_a_snapshot_published_just_before_death_counts() -> None:
    """What the dead trainer had saved unseen is progress."""
    state, commands = died(running(), rung(70), rung(50))

    assert 70 == state.memory.high_water
    assert 0.0 == record(commands, "restart.scheduled")["delay_seconds"]


def test_deaths_without_progress_back_off_and_end_the_run() -> None:
    """A run that never progressed is given up after five deaths, with growing delays, and status 4."""
    state, delays = replace(running(), memory=Memory(incarnation=1)), []
    for number in range(5):
        state, commands = died(state, now=float(number))
        if state.phase is Phase.BACKOFF:
            delays.append(record(commands, "restart.scheduled")["delay_seconds"])
            state = replace(state, phase=Phase.RUNNING)

    assert (4, sorted(delays)) == (len(delays), delays)
    assert (Phase.FAILED, c.Exit(4)) == (state.phase, one_of(commands, c.Exit))
    assert 5 == record(commands, "restart.refused")["without_progress"]


def test_a_chaos_death_spends_nothing() -> None:
    """An injected fault restarts at once and leaves the budget alone."""
    state, commands = died(running(), rung(50), fault="1-0")

    assert ("chaos", "1-0") == tuple(record(commands, "trainer.exited")[k] for k in ("cause", "fault"))
    assert (0.0, Budget()) == (record(commands, "restart.scheduled")["delay_seconds"], state.memory.budget)


@pytest.mark.parametrize(
    ("code", "signal", "cause"),
    [
        (1, None, "crashed"),
        (None, 11, "crashed"),
        (None, 9, "killed"),
        (None, 15, "killed"),
        (65, None, "diverged"),
        (0, None, "ended-early"),
        (143, None, "crashed"),
    ],
)
def test_a_death_is_put_down_to_its_cause(code: int | None, signal: int | None, cause: str) -> None:
    """One word in the record says why the trainer died."""
    _, commands = died(running(), rung(50), code=code, signal=signal)

    assert cause == record(commands, "trainer.exited")["cause"]
    assert "restart.scheduled" in names(commands)


@pytest.mark.parametrize("code", [2, 126, 127])
def test_a_usage_error_before_any_life_sign_is_not_retried(code: int) -> None:
    """A command line that is wrong now will be wrong again."""
    state = replace(running(), phase=Phase.STARTING, life=Life())
    _, commands = died(state, rung(50), code=code, signal=None)
    assert c.Exit(2) == one_of(commands, c.Exit)

    _, commands = died(running(), rung(50), code=code, signal=None)
    assert "restart.scheduled" in names(commands)


def noted(state: State, *statuses: int) -> State:
    """The state after the trainer has noted how it is about to end."""
    for status in statuses:
        state, _ = step(state, e.EndingNoted(state.incarnation, status), 1.0, POLICY)
    return state


@pytest.mark.parametrize(
    ("code", "signal", "said", "cause"),
    [
        (1, None, 65, "diverged"),
        (1, None, 2, "crashed"),
        (1, None, 1, "crashed"),
        (1, None, 143, "crashed"),
        (3, None, 65, "crashed"),
        (65, None, 1, "diverged"),
        (0, None, 65, "ended-early"),
        (None, 9, 65, "killed"),
        (None, 11, 65, "crashed"),
    ],
)
def test_a_noted_status_counts_where_the_exit_status_says_nothing(
    code: int | None, signal: int | None, said: int, cause: str
) -> None:
    """A launcher ends with 1 whatever its trainer ended with; the record tells the launcher's code and what was noted."""
    _, commands = died(noted(running(), said), rung(50), code=code, signal=signal)

    assert (cause, code, signal, said) == tuple(
        record(commands, "trainer.exited")[key] for key in ("cause", "code", "signal", "said")
    )
    assert "restart.scheduled" in names(commands)


def test_a_death_without_a_note_is_what_its_exit_status_says() -> None:
    """A 1 that nothing was noted about is a crash."""
    said = record(died(running(), rung(50), code=1, signal=None)[1], "trainer.exited")

    assert ("crashed", None) == (said["cause"], said["said"])


@pytest.mark.parametrize("code", [2, 126, 127])
def test_a_noted_usage_error_is_not_retried_before_any_life_sign(code: int) -> None:
    """What is wrong now will be wrong again, also below a launcher; a trainer that has lived is started again."""
    silent = replace(running(), phase=Phase.STARTING, life=Life())
    _, commands = died(noted(silent, code), rung(50), code=1, signal=None)
    assert ("usage", c.Exit(2)) == (record(commands, "trainer.exited")["cause"], one_of(commands, c.Exit))

    _, commands = died(noted(running(), code), rung(50), code=1, signal=None)
    assert "restart.scheduled" in names(commands)


def test_what_the_supervisor_knows_better_no_note_changes() -> None:
    """An injected fault, a stall, a stop and a completion are what they are, whatever was noted."""
    chaos = died(noted(running(), 65), rung(50), code=1, signal=None, fault="1-0")[1]
    stalled = died(noted(running(ending=Ending.STALLED), 65), rung(50), code=1, signal=None)[1]
    stopping = running(phase=Phase.STOPPING, stop_signal=15, ending=Ending.STOP)
    stopped = died(noted(stopping, 65), rung(50), code=1, signal=None)[1]
    completed = died(noted(running(), 65), rung(100), code=0, signal=None)[1]

    assert ["chaos", "stalled", "stopped", "completed"] == [
        record(commands, "trainer.exited")["cause"] for commands in (chaos, stalled, stopped, completed)
    ]


def test_of_several_noted_statuses_the_last_counts() -> None:
    """Each rank of a trainer notes how it ends."""
    for said, cause in (((1, 65), "diverged"), ((65, 1), "crashed")):
        commands = died(noted(running(), *said), rung(50), code=1, signal=None)[1]
        assert cause == record(commands, "trainer.exited")["cause"]


def test_a_note_that_is_heard_after_the_exit_counts() -> None:
    """A rank may outlive its launcher for a moment: nothing is decided before it is gone."""
    state, _ = step(running(), e.TrainerExited(1, 1, None), 10.0, POLICY)
    state, _ = step(noted(state, 65), e.TreeSwept(1), 10.0, POLICY)

    assert "diverged" == record(step(state, ladder(rung(50)), 10.0, POLICY)[1], "trainer.exited")["cause"]


def test_a_note_counts_for_the_incarnation_that_left_it() -> None:
    """The next trainer is not taken for diverged because the one before was, nor by news of that one which come late."""
    state, commands = died(noted(running(), 65), rung(50), code=1, signal=None)
    assert "diverged" == record(commands, "restart.scheduled")["cause"]
    state, _ = step(replace(state, phase=Phase.SELECTING), ladder(rung(50)), 11.0, POLICY)
    assert (2, Phase.STARTING) == (state.incarnation, state.phase)
    assert (state, ()) == step(state, e.EndingNoted(1, 65), 12.0, POLICY)

    assert "crashed" == record(died(state, rung(50), code=1, signal=None)[1], "trainer.exited")["cause"]


@pytest.mark.parametrize("phase", sorted(set(Phase) - ENDS))
def test_a_noted_status_is_kept_and_changes_nothing_else(phase: Phase) -> None:
    """Nothing is done about it before the trainer is dead, which it may not be for a while."""
    state = running(phase=phase)

    assert (replace(state, life=replace(state.life, said=65)), ()) == step(state, SAMPLES[e.EndingNoted], 1.0, POLICY)


def test_exit_0_at_the_final_step_completes() -> None:
    """Done is remembered, so that a reboot does not start again."""
    state, commands = died(running(), rung(100), code=0, signal=None)

    assert (Phase.COMPLETED, 100, c.Exit(0)) == (state.phase, state.memory.done, one_of(commands, c.Exit))
    assert state.memory == [one for one in commands if isinstance(one, c.SaveMemory)][-1].memory
    again, commands = step(State(memory=state.memory), ladder(rung(100)), 0.0, POLICY)
    assert (Phase.COMPLETED, c.Exit(0)) == (again.phase, one_of(commands, c.Exit))


def test_exit_0_completes_when_no_final_step_is_set() -> None:
    """Without a final step the trainer's word is taken, unless it was asked to stop."""
    policy = replace(POLICY, final_step=None)
    assert Phase.COMPLETED is died(running(), rung(50), code=0, signal=None, policy=policy)[0].phase
    stopping = running(phase=Phase.STOPPING, stop_signal=15, ending=Ending.STOP)
    assert Phase.STOPPED is died(stopping, rung(50), code=0, signal=None, policy=policy)[0].phase


def test_raising_the_final_step_reopens_a_completed_run() -> None:
    """Done at 100 is not done at 200."""
    memory = Memory(incarnation=1, done=100, high_water=100)
    state, commands = step(State(memory=memory), ladder(rung(100)), 0.0, replace(POLICY, final_step=200))

    assert (Phase.STARTING, None) == (state.phase, state.memory.done)
    assert 100 == one_of(commands, c.SpawnTrainer).snapshot.step


def test_a_stop_asks_waits_and_then_kills() -> None:
    """SIGTERM first, with grace; SIGKILL for the tree when that is over; the status says it was a stop."""
    state, commands = step(running(), e.StopRequested(15), 5.0, POLICY)
    assert Phase.STOPPING is state.phase
    assert c.Arm(e.Deadline.GRACE, 65.0) == one_of(commands, c.Arm)
    assert one_of(commands, c.AskToStop)

    assert (state, ()) == step(state, e.StopRequested(15), 6.0, POLICY)
    state, commands = step(state, e.DeadlinePassed(e.Deadline.GRACE, 1), 65.0, POLICY)
    assert ["trainer.grace_over", "KillTree", "Arm"] == names(commands)
    state, commands = died(state, rung(50))
    assert (Phase.STOPPED, c.Exit(143)) == (state.phase, one_of(commands, c.Exit))


@pytest.mark.parametrize(("signal", "status"), [(15, 143), (2, 130)])
def test_the_status_of_a_stop_tells_how_it_was_asked_for(signal: int, status: int) -> None:
    """SIGTERM ends with 143, an interrupt with 130, also while waiting to restart."""
    for phase in (Phase.BACKOFF, Phase.WAITING):
        assert c.Exit(status) == one_of(step(at(phase), e.StopRequested(signal), 0.0, POLICY)[1], c.Exit)
    state, _ = step(at(Phase.SELECTING), e.StopRequested(signal), 0.0, POLICY)
    assert c.Exit(status) == one_of(step(state, ladder(rung(1)), 0.0, POLICY)[1], c.Exit)


def test_a_process_that_will_not_die_holds_everything() -> None:
    """Survivors are told once and swept again; nothing is started until they are gone."""
    state, _ = step(running(), e.TrainerExited(1, None, 9), 1.0, POLICY)
    state, commands = step(state, e.TreeSwept(1, (77,)), 1.0, POLICY)
    assert (Phase.WAITING, [77]) == (state.phase, record(commands, "trainer.stuck")["pids"])

    state, commands = step(state, e.DeadlinePassed(e.Deadline.RETRY, 1), 6.0, POLICY)
    assert ["SweepTree"] == names(commands)
    state, commands = step(state, e.TreeSwept(1, (77,)), 6.0, POLICY)
    assert ["Arm"] == names(commands)
    state, commands = step(replace(state, phase=Phase.SELECTING), e.TreeSwept(1), 9.0, POLICY)
    assert (False, ["JudgeLadder"]) == (state.stuck, names(commands))


def test_a_leader_that_survives_sigkill_is_told_once_and_killed_again() -> None:
    """A process in uninterruptible sleep is said to be stuck, and the kill is repeated."""
    state = running(phase=Phase.STOPPING, killed=True)
    state, commands = step(state, e.DeadlinePassed(e.Deadline.GRACE, 1), 1.0, POLICY)
    assert ["trainer.stuck", "KillTree", "Arm"] == names(commands)
    _, commands = step(state, e.DeadlinePassed(e.Deadline.GRACE, 1), 31.0, POLICY)
    assert ["KillTree", "Arm"] == names(commands)


def test_whoever_asked_for_it_is_not_kept_waiting_by_what_will_not_die() -> None:
    """With `--exit-when-stuck` the run ends with 6 as soon as that is known, and starts nothing."""
    policy = replace(POLICY, exit_when_stuck=True)
    state, _ = step(running(), e.TrainerExited(1, None, 9), 1.0, policy)
    state, commands = step(state, e.TreeSwept(1, (77,)), 1.0, policy)
    assert (Phase.FAILED, [77]) == (state.phase, record(commands, "trainer.stuck")["pids"])
    assert (6, c.Exit(6)) == (record(commands, "run.failed")["status"], one_of(commands, c.Exit))

    killed = running(phase=Phase.STOPPING, killed=True)
    state, commands = step(killed, e.DeadlinePassed(e.Deadline.GRACE, 1), 1.0, policy)
    assert ["trainer.stuck", "Disarm", "SaveMemory", "run.failed", "Exit"] == names(commands)
    again, commands = step(replace(killed, stuck=True), e.DeadlinePassed(e.Deadline.GRACE, 1), 1.0, policy)
    assert (Phase.FAILED, ["Disarm", "SaveMemory", "run.failed", "Exit"]) == (again.phase, names(commands))


def test_silence_is_a_stall_after_two_life_signs() -> None:
    """The deadline is the larger of the setting and five times the longest gap seen."""
    state = running(life=Life(checked=True, signs=1, sign_at=0.0))
    state, commands = step(state, e.StepReported(1, 61, None), 200.0, POLICY)
    assert c.Arm(e.Deadline.RUNNING, 1200.0) == one_of(commands, c.Arm)

    state, commands = step(state, e.DeadlinePassed(e.Deadline.RUNNING, 1), 1200.0, POLICY)
    assert {"stage": "running", "seconds": 1000.0} == record(commands, "trainer.stalled")
    assert "stalled" == record(died(state, rung(50))[1], "trainer.exited")["cause"]


def test_no_first_life_sign_is_a_stall_of_the_start_up() -> None:
    """Start-up has a deadline of its own."""
    state, commands = step(replace(running(), phase=Phase.STARTING, life=Life()), e.TrainerSpawned(1, 7), 1.0, POLICY)
    assert c.Arm(e.Deadline.STARTUP, 901.0) == one_of(commands, c.Arm)
    _, commands = step(state, e.DeadlinePassed(e.Deadline.STARTUP, 1), 901.0, POLICY)
    assert "startup" == record(commands, "trainer.stalled")["stage"]


def test_a_finished_trainer_that_will_not_exit_is_ended_and_counts_as_completed() -> None:
    """After the final snapshot only the exit is waited for."""
    state, commands = step(running(), e.SnapshotJudged(rung(100)), 5.0, POLICY)
    assert c.Arm(e.Deadline.EXIT, 125.0) in commands
    state, commands = step(state, e.DeadlinePassed(e.Deadline.EXIT, 1), 125.0, POLICY)
    assert "KillTree" in names(commands)
    state, commands = died(state, rung(100))
    assert (Phase.COMPLETED, "completed") == (state.phase, record(commands, "trainer.exited")["cause"])


def test_a_spawn_that_the_system_refuses_is_a_death() -> None:
    """Out of processes or memory is retried under the budget, with the reason as last line."""
    state = replace(running(), phase=Phase.STARTING)
    state, _ = step(state, e.SpawnFailed(1, "Cannot allocate memory"), 1.0, POLICY)
    _, commands = step(state, ladder(rung(50)), 1.0, POLICY)

    assert ["Cannot allocate memory"] == record(commands, "trainer.exited")["last_lines"]
    assert "restart.scheduled" in names(commands)


def test_adopted_snapshots_are_no_progress() -> None:
    """What lay there before the first start sets the mark and is not credited to anybody."""
    state, commands = step(State(), ladder(rung(40), rung(30, None)), 0.0, POLICY)

    assert (40, False, False) == (state.memory.high_water, state.life.progressed, state.memory.born_empty)
    assert "trainer.progressed" not in names(commands)


def test_a_rung_that_others_take_away_is_forgotten() -> None:
    """The trainer's own rotation is noticed."""
    state, _ = step(running(), e.SnapshotGone("ckpt_50.pt"), 0.0, POLICY)

    assert () == state.rungs


def test_a_late_step_counts_as_reached_and_no_more() -> None:
    """Words of a trainer that is already dead are still true."""
    state, commands = step(running(phase=Phase.SELECTING), e.StepReported(1, 99, 1.0), 0.0, POLICY)

    assert (99, ()) == (state.memory.reached, commands)


def test_old_rungs_judged_late_are_no_life_sign() -> None:
    """A snapshot that was there before is not taken for news of the trainer."""
    state = replace(
        running(), phase=Phase.STARTING, life=Life(pid=7, resumed=rung(50)), rungs=(rung(50), rung(40, None))
    )
    state, commands = step(state, e.SnapshotJudged(rung(40)), 0.0, POLICY)

    assert (Phase.STARTING, 0) == (state.phase, state.life.signs)
    assert ["snapshot.verified"] == names(commands)


def test_verdicts_are_kept_for_rungs_that_a_look_did_not_reach() -> None:
    """Retention goes on counting old snapshots after a death, so that they do not pile up."""
    state = running(rungs=(rung(50), rung(40), rung(30)))
    state, _ = died(state, rung(60), rung(50, None), rung(40, None), rung(30, None))

    assert [60, 50, 40, 30] == [r.step for r in state.rungs if r.verdict is not None]


def test_a_line_that_names_the_final_step_is_no_completion() -> None:
    """`training for 100 steps` and exit 0 is ended early; a proven snapshot or a life of steps completes."""
    banner = replace(running(), phase=Phase.RUNNING, life=Life(reported=100, signs=1, checked=True))
    assert "restart.scheduled" in names(died(banner, rung(50), code=0, signal=None)[1])

    told = replace(running(), life=Life(reported=100, signs=9, moved=True, checked=True))
    assert Phase.COMPLETED is died(told, rung(50), code=0, signal=None)[0].phase


@pytest.mark.parametrize("others", [True, False])
def test_steps_that_come_all_at_once_are_a_life_of_steps(others: bool) -> None:
    """A quick trainer's output arrives in one piece: of its steps only the last is told, and that there were others."""
    start = replace(running(), phase=Phase.STARTING, life=Life(pid=7, resumed=rung(50)))
    state, _ = step(start, e.StepReported(1, 100, None, others=others), 1.0, POLICY)

    assert others is (Phase.COMPLETED is died(state, rung(50), code=0, signal=None)[0].phase)


def test_a_usage_error_of_a_run_that_ever_progressed_is_retried() -> None:
    """A run of days does not end over one start that could not read its script."""
    memory = Memory(incarnation=1, high_water=50, budget=Budget(ever_progressed=True))
    state = replace(running(memory=memory), phase=Phase.STARTING, life=Life(pid=7, resumed=rung(50)))

    assert "restart.scheduled" in names(died(state, rung(50), code=2, signal=None)[1])


def test_snapshots_that_tell_no_step_count_too() -> None:
    """Without steps a proven snapshot that is new is progress, and the run is known to have had one."""
    quiet = e.RungFact("last.pt", None, 7, verdict())
    state = replace(
        running(), memory=Memory(incarnation=1, born_empty=True, budget=Budget((1.0,))), life=Life(), rungs=()
    )
    state, commands = step(state, e.SnapshotJudged(quiet), 1.0, POLICY)
    assert (True, True, ()) == (state.memory.ever_proven, state.life.progressed, state.memory.budget.fruitless)
    assert {"step": None, "loss": None} == record(commands, "trainer.progressed")

    gone = replace(state, phase=Phase.SELECTING)
    for rungs in ((), (e.RungFact("last.pt", None, 7, verdict(Kind.TRUNCATED)),)):
        assert c.Exit(3) == one_of(step(gone, ladder(*rungs, held=bool(rungs)), 0.0, POLICY)[1], c.Exit)


def test_what_a_link_leads_to_is_not_pruned() -> None:
    """`best.pt -> step_30.pt` keeps step 30."""
    state = running(rungs=(rung(50), rung(40), replace(rung(30), linked=True)), life=Life(checked=True))
    _, commands = step(state, e.SnapshotJudged(rung(60)), 3.0, replace(POLICY, keep=Keep(2)))

    assert ["ckpt_40.pt"] == [one.rung.name for one in commands if isinstance(one, c.PruneSnapshot)]


def test_silence_after_the_first_life_sign_is_a_stall_too() -> None:
    """One sign arms the start-up's deadline again; two arm the running one."""
    state = replace(running(), phase=Phase.STARTING, life=Life())
    _, commands = step(state, e.StepReported(1, 1, None), 5.0, POLICY)

    assert c.Arm(e.Deadline.STARTUP, 905.0) == one_of(commands, c.Arm)


def test_saves_past_the_end_do_not_put_off_the_exit() -> None:
    """The time for exiting starts with the final snapshot and with no later one."""
    state, _ = step(running(), e.SnapshotJudged(rung(100)), 5.0, POLICY)
    _, commands = step(state, e.SnapshotJudged(rung(101)), 50.0, POLICY)

    assert "Arm" not in names(commands)


def test_a_stop_does_not_wait_for_ever_for_storage() -> None:
    """While the directory is read or a tree is swept, a stop is given the time of a grace, and no more."""
    state, commands = step(
        running(phase=Phase.SELECTING, death=e.TrainerExited(1, None, 9)), e.StopRequested(15), 5.0, POLICY
    )
    assert c.Arm(e.Deadline.GRACE, 65.0) == one_of(commands, c.Arm)
    assert (state, ()) == step(state, e.DeadlinePassed(e.Deadline.RETRY, 1), 65.0, POLICY)
    state, commands = step(state, e.DeadlinePassed(e.Deadline.GRACE, 1), 65.0, POLICY)

    assert (Phase.STOPPED, c.Exit(143)) == (state.phase, one_of(commands, c.Exit))
    assert "trainer.exited" in names(commands)


def test_a_stop_that_comes_after_the_exit_does_not_unmake_a_completion() -> None:
    """A trainer that had finished before the stop came is done."""
    policy = replace(POLICY, final_step=None)
    state, _ = step(running(), e.TrainerExited(1, 0, None), 1.0, policy)
    state, _ = step(state, e.StopRequested(15), 1.0, policy)
    state, _ = step(state, e.TreeSwept(1), 1.0, policy)

    assert Phase.COMPLETED is step(state, ladder(rung(60)), 1.0, policy)[0].phase


def test_a_stop_that_was_noted_is_noted_once() -> None:
    """A second wish while the directory is being read neither changes the signal nor gives more time."""
    state, _ = step(at(Phase.SELECTING), e.StopRequested(15), 1.0, POLICY)

    assert (state, ()) == step(state, e.StopRequested(2), 5.0, POLICY)


def test_a_stop_does_not_wait_for_storage_or_for_what_will_not_die() -> None:
    """Unreadable, or with survivors, the run is stopped all the same, and the survivors are told."""
    state = at(Phase.SELECTING, stop_signal=15)
    ended, commands = step(state, e.LadderUnreadable("Stale file handle"), 1.0, POLICY)
    assert (Phase.STOPPED, c.Exit(143)) == (ended.phase, one_of(commands, c.Exit))
    ended, commands = step(state, e.TreeSwept(1, (77,)), 1.0, POLICY)

    assert [77] == record(commands, "trainer.stuck")["pids"]
    assert (Phase.STOPPED, c.Exit(143)) == (ended.phase, one_of(commands, c.Exit))


def test_snapshots_none_of_which_can_be_read_now_are_waited_for() -> None:
    """A run that had some does not end over storage that fails for a moment; it does when that goes on."""
    state = at(Phase.SELECTING, memory=Memory(incarnation=1, ever_proven=True))
    event = e.LadderJudged((rung(50, Kind.UNREADABLE),), True)
    waiting, commands = step(state, event, 1.0, POLICY)
    assert (Phase.WAITING, 1) == (waiting.phase, waiting.tries)
    assert e.Deadline.RETRY is one_of(commands, c.Arm).deadline

    gone_on, _ = step(replace(state, tries=POLICY.unreadable_tries), event, 1.0, POLICY)
    assert Phase.FAILED is gone_on.phase


@pytest.mark.parametrize("wanted", [True, False])
def test_a_stop_does_not_wait_for_what_will_not_die(wanted: bool) -> None:
    """Leader or child, killed and still there: a supervisor that is to stop tells so and ends; any other waits."""
    stop = 15 if wanted else None
    led = replace(running(), phase=Phase.STOPPING, killed=True, stop_signal=stop)
    leader, told_of_leader = step(led, e.DeadlinePassed(e.Deadline.GRACE, 1), 9.0, POLICY)
    dead = at(Phase.SELECTING, stop_signal=stop, death=e.TrainerExited(1, None, 9))
    child, told_of_child = step(dead, e.TreeSwept(1, (41,)), 9.0, POLICY)

    assert ["trainer.stuck"] * 2 == [records(told_of_leader)[0], records(told_of_child)[0]]
    assert [7] == record(told_of_leader, "trainer.stuck")["pids"]
    ends = [leader.phase, child.phase]
    assert ([Phase.STOPPED] * 2 if wanted else [Phase.STOPPING, Phase.WAITING]) == ends
    assert wanted == ("trainer.exited" in records(told_of_child))


def test_the_resumed_snapshot_touched_says_nothing_of_the_trainer() -> None:
    """Somebody changes the very file while the trainer starts: that does not show that the trainer went on from it."""
    state = replace(running(), phase=Phase.STARTING, life=Life(pid=7, resumed=rung(50)))
    state, _ = step(state, e.SnapshotJudged(replace(rung(50), mtime_ns=99)), 1.0, POLICY)
    assert not state.life.checked
    _, commands = step(state, e.StepReported(1, 3, None), 2.0, POLICY)

    assert "resume.ignored" in names(commands)


@pytest.mark.parametrize(
    ("ending", "code", "sealed"),
    [(Ending.STOP, 143, True), (Ending.PAUSE, 130, True), (Ending.STOP, 1, False), (None, 143, False), (None, 0, True)],
)
def test_a_trainer_that_ends_in_order_has_outlived_its_writes(ending: Ending | None, code: int, sealed: bool) -> None:
    """What was judged before its end and what is found only after it are sealed, so that the next start goes on from there."""
    stop = 15 if ending is Ending.STOP else None
    state = running(ending=ending, stop_signal=stop, pause=ending is Ending.PAUSE)
    state = replace(state, life=replace(state.life, unsealed=("ckpt_60.pt",)))
    state, first = step(state, e.TrainerExited(1, code, None), 1.0, POLICY)
    _, second = step(state, ladder(rung(70, Kind.UNPROVEN), rung(60, Kind.INTACT), rung(50)), 2.0, POLICY)

    asked = [one.name for one in (*first, *second) if isinstance(one, c.SealSnapshot)]
    assert (["ckpt_60.pt", "ckpt_70.pt", "ckpt_60.pt"] if sealed else []) == asked


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_run_is_not_given_up_before_its_last_saves_are_sealed(is_sealed: bool) -> None:
    """They may be the progress that was missed: each death would be the last one otherwise. If none is, that was it."""
    to_100 = replace(POLICY, final_step=100)
    spent = Memory(incarnation=1, budget=Budget(fruitless=(0.1, 0.2, 0.3, 0.4)))
    state = at(Phase.SELECTING, memory=spent, life=Life(pid=7), death=e.TrainerExited(1, 0, None))
    state, first = step(state, ladder(rung(70, Kind.UNPROVEN)), 1.0, to_100)
    assert (Phase.SELECTING, ["ckpt_70.pt"]) == (state.phase, [o.name for o in first if isinstance(o, c.SealSnapshot)])
    assert one_of(first, c.JudgeLadder)

    if is_sealed:
        state, _ = step(state, e.SnapshotSealed(rung(70)), 2.0, to_100)
    again = replace(ladder(rung(70, Kind.HEALTHY if is_sealed else Kind.UNPROVEN)), arrived=frozenset())
    state, second = step(state, again, 3.0, to_100)
    assert (Phase.SELECTING if is_sealed else Phase.FAILED) is state.phase
    assert is_sealed == ("restart.refused" not in names(second))


@pytest.mark.parametrize("code", [0, 143])
def test_what_is_never_sealed_is_waited_for_once(code: int) -> None:
    """A process outside the run may have it open for writing for ever: the second look settles the death, arrived or not."""
    to_100 = replace(POLICY, final_step=100)
    spent = Memory(incarnation=1, budget=Budget(fruitless=(0.1, 0.2, 0.3, 0.4)))
    stop = 15 if code else None
    dead = e.TrainerExited(1, code, None)
    ending = Ending.STOP if stop else None
    state = at(Phase.SELECTING, memory=spent, life=Life(pid=7), death=dead, stop_signal=stop, ending=ending)
    looks = 0
    while state.phase is Phase.SELECTING:
        state, _ = step(state, ladder(rung(70, Kind.UNPROVEN)), 1.0, to_100)
        looks += 1

    assert (1, Phase.STOPPED) == (looks, state.phase) if stop else (2, Phase.FAILED) == (looks, state.phase)


def test_a_death_that_spends_nothing_is_settled_at_once() -> None:
    """Whatever the budget is, and whatever is still to be sealed."""
    to_100 = replace(POLICY, final_step=100)
    spent = Memory(incarnation=1, budget=Budget(fruitless=(0.1, 0.2, 0.3, 0.4)))
    state = at(Phase.SELECTING, memory=spent, life=Life(pid=7), death=e.TrainerExited(1, 0, None, fault="f1"))
    state, commands = step(state, ladder(rung(70, Kind.UNPROVEN)), 1.0, to_100)

    assert "chaos" == record(commands, "trainer.exited")["cause"]


@pytest.mark.parametrize("phase", [Phase.PAUSED, Phase.WAITING])
@pytest.mark.parametrize("left", [(), (7,)])
def test_a_stop_sweeps_once_more_what_would_not_die(phase: Phase, left: tuple[int, ...]) -> None:
    """It may die by now, and what it has started since is not left behind; if not, the run is stopped all the same."""
    state, commands = step(at(phase, stuck=True, pause=phase is Phase.PAUSED), e.StopRequested(15), 1.0, POLICY)
    assert (Phase.SELECTING, 1) == (state.phase, [type(one) for one in commands].count(c.SweepTree))
    state, commands = step(state, e.TreeSwept(state.incarnation, left), 2.0, POLICY)
    if not left:
        assert Phase.SELECTING is state.phase
        state, commands = step(state, ladder(rung(50)), 3.0, POLICY)

    assert (Phase.STOPPED, c.Exit(143)) == (state.phase, commands[-1])


def test_who_ignores_its_snapshot_is_not_found_before_its_notes_are_read() -> None:
    """It may have noted that it found the snapshot bad, on storage that is slow to tell; the next step decides."""
    state = replace(running(), phase=Phase.STARTING, life=Life(pid=7, resumed=rung(50)))
    state, first = step(state, e.StepReported(1, 3, None, notes_late=True), 1.0, POLICY)
    assert ("resume.ignored" in names(first), state.life.checked, state.life.signs) == (False, False, 1)
    state, second = step(state, e.SnapshotJudged(replace(rung(4), mtime_ns=99), notes_late=True), 2.0, POLICY)
    assert "resume.ignored" not in names(second)
    _, third = step(state, e.StepReported(1, 5, None), 3.0, POLICY)

    assert "resume.ignored" in names(third)


@pytest.mark.parametrize(("ending", "code"), [(Ending.STOP, 143), (None, 0)])
def test_how_a_shell_ends_says_nothing_of_the_trainer_in_it(ending: Ending | None, code: int) -> None:
    """With 143 too when SIGTERM killed the trainer in the midst of a save, and with 0 for what came after it in a script."""
    state = running(ending=ending, stop_signal=15 if ending is Ending.STOP else None)
    state = replace(state, life=replace(state.life, unsealed=("ckpt_60.pt",)))
    state, first = step(state, e.TrainerExited(1, code, None, shell=True), 1.0, POLICY)
    _, second = step(state, ladder(rung(70, Kind.UNPROVEN), rung(60, Kind.INTACT), rung(50)), 2.0, POLICY)

    assert [] == [one for one in (*first, *second) if isinstance(one, c.SealSnapshot)]


def test_a_run_that_is_done_is_done_whatever_was_wished() -> None:
    """A pause of a completed run holds nobody up."""
    done = at(Phase.SELECTING, memory=Memory(incarnation=1, done=100, high_water=100), pause=True)

    assert Phase.COMPLETED is step(done, ladder(rung(100)), 1.0, POLICY)[0].phase

"""What followed from a fault is judged by the records alone, and each thing that can be wrong is found."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.chaos.done import Done
from supervisor.chaos.judging import RESUME_SECONDS_MAX, Outcome, Records, judge, lost, unplanned
from supervisor.chaos.oracle import Snapshots, digest
from supervisor.chaos.plan import FaultKind, PlannedFault

AT = 1_700_000_000.0
GOOD, OLDER = "ckpt_00000020.pt", "ckpt_00000010.pt"


def stamp(seconds: float) -> str:
    """A record's time, so many seconds after the fault."""
    minutes, rest = divmod(800 + seconds, 60)  # AT is 22:13:20
    return f"2023-11-14T22:{int(minutes):02d}:{rest:06.3f}Z"


def exited(
    incarnation: int,
    at: float,
    fault: str | None,
    cause: str = "chaos",
    step: int | None = 25,
    last_lines: tuple[str, ...] = (),
) -> dict[str, Any]:
    """A death."""
    return {
        "event": "trainer.exited",
        "timestamp": stamp(at),
        "incarnation": incarnation,
        "fault": fault,
        "cause": cause,
        "step": step,
        "last_lines": list(last_lines),
    }


def spawned(incarnation: int, at: float, name: str | None = GOOD, standby: bool = False) -> dict[str, Any]:
    """A start."""
    step = None if name is None else int(name[5:13])
    return {
        "event": "trainer.spawned", "timestamp": stamp(at), "incarnation": incarnation,
        "resumed_from": name, "step": step, "proof": "sealed", "standby": standby,
    }  # fmt: skip


def done(kind: FaultKind = FaultKind.KILL, **more: Any) -> Done:
    """A fault that was done at step 25, after which one snapshot must be chosen."""
    return Done(PlannedFault("f1", kind, 24), AT, 25, "it is dead", **{"expected": GOOD, **more})


RIGHT = [spawned(1, -9, None), exited(1, 0.5, "f1"), spawned(2, 1.0)]
METRICS = [{"incarnation": 1, "step": 25, "time": AT - 1}, {"incarnation": 2, "step": 21, "time": AT + 1.25}]


@pytest.fixture
def records(tmp_path: Path) -> Callable[..., Records]:
    """Records that a run has left, and its metrics."""

    def left(*found: dict[str, Any], metrics: list[dict[str, Any]] | None = METRICS) -> Records:
        (tmp_path / ".lastgood").mkdir()
        lines = "".join(json.dumps(one) + "\n" for one in found)
        (tmp_path / ".lastgood" / "events.jsonl").write_text(lines)
        if metrics is not None:
            (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in metrics))
        return Records(tmp_path)

    return left


def test_what_went_right_is_told(records: Callable[..., Records]) -> None:
    """When it was noticed, what was chosen and why, what that cost, and when the next step was made."""
    outcome = judge(done(), records(*RIGHT))

    assert () == outcome.problems
    assert (GOOD, "newest, proof sealed", "chaos", 5) == (
        outcome.chosen,
        outcome.why,
        outcome.cause,
        outcome.steps_lost,
    )
    assert (0.5, 1.25) == pytest.approx((outcome.seconds_to_detect, outcome.seconds_to_resume))


@pytest.mark.parametrize("standby", [False, True])
def test_whether_the_next_trainer_had_been_started_in_advance_is_told(
    standby: bool, records: Callable[..., Records]
) -> None:
    """How long a restart took means little without that; nothing is said of a trainer that never came."""
    assert standby is judge(done(), records(*RIGHT[:2], spawned(2, 1.0, standby=standby))).standby


def test_of_no_start_nothing_is_said(records: Callable[..., Records]) -> None:
    """It was neither from standby nor not."""
    assert None is judge(done(), records(*RIGHT[:2])).standby


@pytest.mark.parametrize("is_new", [False, True])
def test_a_run_that_writes_no_metrics_is_timed_by_what_the_supervisor_was_told(
    is_new: bool, records: Callable[..., Records]
) -> None:
    """Any command's first step is in its output, and so in a record; a supervisor that is new knows only what was saved."""
    progressed = {"event": "trainer.progressed", "timestamp": stamp(3.0), "incarnation": 2}
    timeline = {"event": "restart.timeline", "timestamp": stamp(2.0), "incarnation": 2}
    there = (*RIGHT, progressed) if is_new else (*RIGHT, progressed, timeline)

    assert (3.0 if is_new else 2.0) == judge(done(), records(*there, metrics=None)).seconds_to_resume


@pytest.mark.parametrize(
    ("name", "step", "seconds"),
    [(GOOD, 21, 7.0), (GOOD, 20, None), (GOOD, None, None), (None, 0, 7.0), (GOOD, 99, 7.0)],
)
def test_a_step_that_only_the_next_death_tells_was_made(
    name: str | None, step: int | None, seconds: float | None, records: Callable[..., Records]
) -> None:
    """The next fault may come before anything else tells of a step; when it was made is known no better than that."""
    there = records(RIGHT[0], RIGHT[1], spawned(2, 1.0, name), exited(2, 7.0, "f2", step=step), metrics=None)
    outcome = judge(done(expected=name), there)

    assert seconds == (None if outcome.seconds_to_resume is None else pytest.approx(outcome.seconds_to_resume))
    assert () == outcome.problems if seconds else ("kill at step 25: no step was made after it",) == outcome.problems


def test_a_late_death_says_nothing_about_when_a_step_was_made(records: Callable[..., Records]) -> None:
    """It was made at some time before."""
    there = records(*RIGHT, exited(2, RESUME_SECONDS_MAX + 60, "f2"), metrics=None)

    assert () == judge(done(), there).problems


def test_after_the_last_step_there_is_none_to_make(records: Callable[..., Records]) -> None:
    """A trainer that is killed once its last snapshot is there has a successor that only ends."""
    there = records(*RIGHT, exited(2, 2.0, None, "completed", None), metrics=None)

    assert () == judge(done(), there).problems


@pytest.mark.parametrize("line", [{"time": 3}, {"incarnation": 2}, {"loss": 1}])
def test_metrics_of_another_kind_are_left_to_their_trainer(
    line: dict[str, Any], records: Callable[..., Records]
) -> None:
    """Any trainer may write a file of that name, with whatever it likes in it."""
    timeline = {"event": "restart.timeline", "timestamp": stamp(2.0), "incarnation": 2}

    assert 2.0 == judge(done(), records(*RIGHT, timeline, metrics=[line])).seconds_to_resume


def sealed(name: str, at: float) -> dict[str, Any]:
    """The supervisor's seal of somebody else's file."""
    return {"event": "snapshot.sealed", "timestamp": stamp(at), "name": name, "step": int(name[5:13])}


def fallback(unproven: str) -> dict[str, Any]:
    """The supervisor passes over one of which nothing is known."""
    rejected = [{"name": unproven, "verdict": "unproven"}]
    return {
        "event": "fallback.chosen",
        "timestamp": stamp(0.9),
        "incarnation": 2,
        "by": "supervisor",
        "rejected": rejected,
    }


NEWER = "ckpt_00000024.pt"


@pytest.mark.parametrize(
    ("found", "chosen", "due"),
    [
        ([sealed(NEWER, 0.7)], NEWER, NEWER),
        ([sealed(NEWER, 0.7)], GOOD, NEWER),
        ([sealed(OLDER, 0.6), sealed(NEWER, 0.7)], NEWER, NEWER),
        ([sealed(NEWER, -5)], NEWER, GOOD),
        ([sealed(NEWER, 1.5)], NEWER, GOOD),
        ([sealed(OLDER, 0.7)], GOOD, GOOD),
        ([sealed(OLDER, 0.7)], OLDER, GOOD),
        ([sealed(OLDER, 0.7), fallback(GOOD)], OLDER, OLDER),
        ([fallback(GOOD)], OLDER, GOOD),
    ],
)
def test_what_was_sealed_between_a_death_and_the_next_start_is_proven_by_then(
    found: list[dict[str, Any]], chosen: str, due: str, records: Callable[..., Records]
) -> None:
    """A trainer that ended in order leaves a last save, which is sealed only then; the newest of those had to be chosen."""
    appeared = {"event": "snapshot.appeared", "timestamp": stamp(-3), "name": GOOD, "step": 20}
    outcome = judge(done(), records(*RIGHT[:2], appeared, *found, spawned(2, 1.0, chosen)))

    assert (due, chosen == due) == (
        outcome.expected,
        f"kill at step 25: resumed {chosen}, not {due}" not in outcome.problems,
    )


@pytest.mark.parametrize(
    ("found", "more", "said"),
    [
        ([RIGHT[0], RIGHT[2]], {}, "the death was put down to nothing, not to chaos"),
        ([RIGHT[0], exited(1, 0.5, "f1", "crashed"), RIGHT[2]], {}, "the death was put down to crashed, not to chaos"),
        ([RIGHT[0], exited(1, 0.5, "f2"), RIGHT[2]], {}, "the death was put down to nothing, not to chaos"),
        (RIGHT, {"proof": ""}, "it is not proven to have happened"),
        ([*RIGHT[:2], spawned(2, 1.0, OLDER)], {}, f"resumed {OLDER}, not {GOOD}"),
        ([*RIGHT[:2], spawned(2, 1.0, None)], {}, f"started from nothing, not from {GOOD}"),
        (RIGHT, {"expected": None}, f"resumed {GOOD}, where no good snapshot was to be found"),
        (RIGHT[:2], {}, "no trainer was started after it"),
        ([*RIGHT[:2], spawned(3, 1.0)], {}, "no step was made after it"),
        (RIGHT, {"problems": ["process 7 was still there"]}, "process 7 was still there"),
    ],
)
def test_each_thing_that_is_wrong_is_said(
    found: list[dict[str, Any]], more: dict[str, Any], said: str, records: Callable[..., Records]
) -> None:
    """A death that was not understood, another choice, a run that does not go on, a fault that was none."""
    fault = done(**{key: value for key, value in more.items() if key != "proof"})
    fault.proof = more.get("proof", fault.proof)
    problems = judge(fault, records(*found)).problems

    assert f"kill at step 25: {said}" in problems


def test_a_run_that_goes_on_too_late_is_not_kept(records: Callable[..., Records]) -> None:
    """Safe for ever and never training is no success."""
    late = [METRICS[0], METRICS[1] | {"time": AT + RESUME_SECONDS_MAX + 1}]

    assert ("kill at step 25: the next step came after 121 s",) == judge(done(), records(*RIGHT, metrics=late)).problems


def refuted() -> list[dict[str, Any]]:
    """A start on trust from what turned out to be bad, and the one that follows."""
    return [*RIGHT[:2], spawned(2, 1.0), exited(2, 1.5, None, "resume-refuted"), spawned(3, 2.0, OLDER)]


def test_a_start_on_trust_that_was_taken_back_counts_for_damage_below_the_filesystem_alone(
    records: Callable[..., Records],
) -> None:
    """Nothing tells of that damage before the bytes are read again; any other must be known before the start."""
    metrics = [*METRICS, {"incarnation": 3, "step": 11, "time": AT + 3}]
    there = records(*refuted(), metrics=metrics)
    below = judge(done(FaultKind.FLIP_BELOW, expected=OLDER), there)

    assert (OLDER, ()) == (below.chosen, below.problems)
    assert (f"truncate at step 25: resumed {GOOD}, not {OLDER}",) == judge(
        done(FaultKind.TRUNCATE, expected=OLDER), there
    ).problems


def test_a_supervisor_that_was_killed_puts_nothing_down(records: Callable[..., Records]) -> None:
    """Its trainer's death is known to nobody; what counts is what the next one starts from, and when."""
    outcome = judge(done(FaultKind.KILL_THE_SUPERVISOR, cause=None), records(RIGHT[0], RIGHT[2]))

    assert (GOOD, None, ()) == (outcome.chosen, outcome.seconds_to_detect, outcome.problems)


def test_a_fault_that_ends_no_trainer_needs_no_start(records: Callable[..., Records]) -> None:
    """A full disk is borne."""
    outcome: Outcome = judge(done(FaultKind.FILL_DISK, cause=None, ends_the_trainer=False), records(RIGHT[0]))

    assert (None, None, None, ()) == (outcome.chosen, outcome.steps_lost, outcome.seconds_to_resume, outcome.problems)


def test_why_another_was_passed_over_is_told_in_the_supervisors_words(records: Callable[..., Records]) -> None:
    """By the record of the fallback that the supervisor made for that start, not the trainer's own."""
    fallback = {"event": "fallback.chosen", "incarnation": 2, "by": "supervisor", "timestamp": stamp(0.9)}
    told = fallback | {"rejected": [{"name": "ckpt_00000030.pt", "verdict": "corrupt"}]}
    own = fallback | {"by": "trainer", "rejected": []}

    assert "ckpt_00000030.pt corrupt" == judge(done(), records(*RIGHT, own, told)).why


@pytest.mark.parametrize("cause", ["crashed", "stalled", "killed", "out-of-memory"])
def test_a_death_that_no_fault_explains_is_a_problem(cause: str, records: Callable[..., Records]) -> None:
    """A campaign knows all that it does; whatever else kills the trainer is a finding."""
    there = records(*RIGHT, exited(2, 5, None, cause, 30), exited(3, 6, None, "completed"), *refuted()[3:4])

    assert [f"the trainer died at step 30 without a fault: {cause}"] == list(unplanned([done()], there))


@pytest.mark.parametrize(
    ("step", "last_lines", "said"),
    [
        (None, (), "the trainer died before its first step without a fault: usage"),
        (7, ("a", "b", " "), "the trainer died at step 7 without a fault: usage; its last words: b"),
        (7, ("x" * 500,), f"the trainer died at step 7 without a fault: usage; its last words: {'x' * 159}…"),
    ],
)
def test_a_death_is_told_with_the_last_words(
    step: int | None, last_lines: tuple[str, ...], said: str, records: Callable[..., Records]
) -> None:
    """Nobody looks for a reason in a log if it fits into the line."""
    there = records(exited(1, 5, None, "usage", step, last_lines))

    assert [said] == list(unplanned([done()], there))


def broken(name: str, its_digest: str, kind: FaultKind = FaultKind.TRUNCATE) -> Done:
    """A fault that broke one, which has to be kept from then on."""
    return done(kind, broken=(name, its_digest), good=2, lay_there=3)


@pytest.mark.parametrize(
    ("place", "content", "said"),
    [
        ("20260101T000000Z-ckpt_00000030.pt", b"cut", []),
        (
            "20260101T000000Z-ckpt_00000030.pt",
            b"another",
            ["ckpt_00000030.pt, broken at step 25, was not kept as it was"],
        ),
        (None, b"cut", ["ckpt_00000030.pt, broken at step 25, was not kept as it was"]),
    ],
    ids=["kept", "overwritten", "deleted"],
)
def test_what_was_broken_has_to_be_kept(
    place: str | None, content: bytes, said: list[str], tmp_path: Path, records: Callable[..., Records]
) -> None:
    """It is evidence: under its name, with the very bytes it had."""
    there = records(*RIGHT)
    (tmp_path / "cut").write_bytes(b"cut")
    if place is not None:
        folder = tmp_path / ".lastgood" / "quarantine" / place
        folder.mkdir(parents=True)
        (folder / "ckpt_00000030.pt").write_bytes(content)
    faults = [broken("ckpt_00000030.pt", digest(tmp_path / "cut"))]

    assert said == list(lost(faults, Snapshots(tmp_path), there))


def test_what_was_broken_may_stay_where_it_lies(tmp_path: Path, records: Callable[..., Records]) -> None:
    """Where something newer was proven meanwhile, it is passed over without a look."""
    path = tmp_path / "ckpt_00000030.pt"
    path.write_bytes(b"cut")
    faults, there = [broken(path.name, digest(path))], records(*RIGHT)
    assert [] == list(lost(faults, Snapshots(tmp_path), there))

    path.write_bytes(b"another")
    assert 1 == len(list(lost(faults, Snapshots(tmp_path), there)))


@pytest.mark.parametrize(("kind", "is_said"), [(FaultKind.FILL_DISK, False), (FaultKind.KILL, True)])
def test_evidence_may_be_given_up_on_a_full_disk_alone(
    kind: FaultKind, is_said: bool, tmp_path: Path, records: Callable[..., Records]
) -> None:
    """And only if that was told."""
    trimmed = {"event": "quarantine.trimmed", "timestamp": stamp(2), "name": "ckpt_00000030.pt"}
    there = records(*RIGHT, trimmed)

    assert is_said == bool(
        list(
            lost(
                [broken("ckpt_00000030.pt", "0"), done(kind, lay_there=2, ends_the_trainer=kind is FaultKind.KILL)],
                Snapshots(tmp_path),
                there,
            )
        )
    )


@pytest.mark.parametrize(("left", "said"), [(3, 0), (2, 0), (1, 1)])
def test_good_ones_do_not_vanish_between_two_faults(
    left: int, said: int, tmp_path: Path, records: Callable[..., Records]
) -> None:
    """Retention leaves two at least; whatever else is gone was lost. A fault that nobody died of tells nothing."""
    faults = [
        done(good=3, lay_there=3),
        done(FaultKind.FILL_DISK, ends_the_trainer=False),
        done(good=1, lay_there=left),
    ]
    found = list(lost(faults, Snapshots(tmp_path), records(*RIGHT)))

    assert ["of 3 good snapshots at step 25 there were 1 left at step 25"][:said] == found

"""Deaths and the starts that followed, by made-up records."""

import signal
from typing import Any

from supervisor.report.model import Restart, Shape
from supervisor.report.restarts import mark, restarts
from tests.report.test_phases import told


def spawned(at: float, incarnation: int, name: str | None = "ckpt_20.pt", **more: Any) -> dict[str, Any]:
    """A start."""
    step = None if name is None else int(name[5:-3])
    return told("trainer.spawned", at, incarnation, resumed_from=name, step=step, **({"proof": "seal"} | more))


def exited(at: float, cause: str = "killed", step: int | None = 25, **more: Any) -> dict[str, Any]:
    """The death of the first trainer."""
    return told("trainer.exited", at, 1, cause=cause, step=step, **more)


FIRST = [told("supervisor.started", 0, 0), spawned(1, 1, None)]


def only(*records: dict[str, Any], signs: dict[int | None, tuple[float, float]] | None = None) -> Restart:
    """The one there is."""
    (found,) = restarts([*FIRST, *records], signs or {})
    return found


def test_a_death_and_the_start_after_it_are_one_restart() -> None:
    """With what it cost: steps, time to the next start, and to the next step by the record that tells it."""
    found = only(exited(10, signal=9), spawned(12, 2), told("restart.timeline", 13, 2, total=2500.0))

    assert (1, 2, 25, "killed", "SIGKILL") == (found.number, found.followed_by, found.step, found.cause, found.detail)
    assert ("ckpt_20.pt", "newest, proof seal", False) == (found.chosen, found.why, found.is_fallback)
    assert (5, 2.0, 2.5) == (found.steps_lost, found.seconds_down, found.seconds_to_step)


def test_the_steps_themselves_tell_when_no_record_does() -> None:
    """Of a start by a new supervisor there is no timeline."""
    assert 4.0 == only(exited(10), spawned(12, 2), signs={2: (14, 20)}).seconds_to_step


def test_a_fallback_says_what_was_passed_over() -> None:
    """In the supervisor's own words, with the steps that it lost."""
    rejected = [{"name": "ckpt_20.pt", "verdict": "corrupt"}, {"name": "ckpt_15.pt", "verdict": "truncated"}]
    fallback = told("fallback.chosen", 11, 2, by="supervisor", steps_lost=15, rejected=rejected)
    found = only(exited(10), fallback, spawned(12, 2, "ckpt_10.pt"))

    assert (True, "ckpt_20.pt corrupt; ckpt_15.pt truncated", 15) == (found.is_fallback, found.why, found.steps_lost)
    assert Shape.DIAMOND is mark(found).shape


def test_a_trainer_that_falls_back_itself_is_told_with_its_start() -> None:
    """Its own loading noted it once it ran."""
    own = told(
        "fallback.chosen", 13, 2, by="trainer", chosen="ckpt_10.pt", rejected=[{"name": "a", "verdict": "corrupt"}]
    )

    assert "the trainer itself fell back to ckpt_10.pt: a corrupt" == only(exited(10), spawned(12, 2), own).why


def test_a_supervisor_that_was_lost_takes_its_trainer_with_it() -> None:
    """At the last moment that is known of: a record, or a step."""
    records = [told("trainer.progressed", 5, 1, step=20), told("supervisor.started", 30, 0), spawned(31, 2)]

    assert ("supervisor-lost", 5, 26.0) == (only(*records).cause, only(*records).at, only(*records).seconds_down)
    assert 22 == only(*records, signs={1: (2, 22)}).at


def test_a_death_that_nothing_followed_is_told_unless_it_was_wished_for() -> None:
    """A run that was given up ends with one; a completed one has none."""
    found = only(exited(10, "crashed", code=1, last_line="RuntimeError: no"))

    assert (None, "exit code 1; last words: RuntimeError: no") == (found.followed_by, found.detail)
    assert Shape.CROSS is mark(found).shape
    assert [] == restarts([*FIRST, exited(10, "completed")], {})


def test_a_start_from_the_beginning_says_that_there_was_no_snapshot() -> None:
    """Not that it went on."""
    assert (None, "no snapshot") == (
        only(exited(10), spawned(12, 2, None)).chosen,
        only(exited(10), spawned(12, 2, None)).why,
    )


def test_a_signal_that_has_no_name_is_told_by_its_number() -> None:
    """There are some."""
    assert "signal 99" == only(exited(10, signal=99)).detail
    assert signal.SIGTERM.name == only(exited(10, signal=15)).detail

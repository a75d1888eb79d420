"""What a supervisor was about at each moment, by made-up records."""

from typing import Any

from supervisor.report.phases import by_phase, spans


def told(event: str, at: float, incarnation: int = 1, **more: Any) -> dict[str, Any]:
    """A record as it is kept."""
    return {"event": event, "at": at, "incarnation": incarnation, **more}


def phases(
    records: list[dict[str, Any]], signs: dict[int | None, tuple[float, float]] | None = None, **more: Any
) -> list[Any]:
    """The phases with their ends, the supervisor being known to have lived until 100 unless something else is said."""
    found = spans(records, signs or {}, more.get("now", 100.0), more.get("alive_at", 100.0))
    return [(span.phase, span.begin, span.end) for span in found]


BEGIN = [told("supervisor.started", 0, 0), told("trainer.spawned", 1)]


def test_a_run_without_trouble_is_begun_runs_and_is_over() -> None:
    """The trainer's first step, where it tells when, is when it runs."""
    ends = [told("trainer.exited", 50, cause="completed"), told("run.completed", 51), told("supervisor.stopped", 52)]

    assert [
        ("selecting", 0, 1),
        ("starting", 1, 5),
        ("running", 5, 50),
        ("selecting", 50, 51),
        ("off", 51, 53),
    ] == phases([*BEGIN, *ends], {1: (5, 49)}, alive_at=53)


def test_without_steps_the_first_record_of_a_step_says_that_it_runs() -> None:
    """Of any command the supervisor is told a step, or sees a snapshot."""
    for event in ("restart.timeline", "trainer.progressed"):
        assert [("starting", 1, 8), ("running", 8, 100)] == phases([*BEGIN, told(event, 8)])[1:]


def test_a_word_about_an_earlier_start_does_not_count() -> None:
    """Records of two starts may overlap."""
    assert [("selecting", 0, 1), ("starting", 1, 100)] == phases([*BEGIN, told("trainer.progressed", 8, 0)])


def test_a_stall_begins_with_the_silence() -> None:
    """The time before it was noticed was none of training."""
    stalled = [told("trainer.stalled", 40, seconds=15.0), told("trainer.exited", 41, cause="stalled")]

    assert [("running", 5, 25), ("stalled", 25, 41), ("selecting", 41, 100)] == phases(
        [*BEGIN, *stalled], {1: (5, 24)}
    )[2:]


def test_a_delay_ends_when_it_was_said_to_end() -> None:
    """Then the next is chosen; a start that comes sooner ends it too."""
    death = [told("trainer.exited", 20, cause="crashed"), told("restart.scheduled", 20, delay_seconds=8.0)]
    start = told("trainer.spawned", 30, 2)

    assert [("backoff", 20, 28), ("selecting", 28, 30), ("starting", 30, 100)] == phases([*BEGIN, *death, start])[2:]
    assert [("backoff", 20, 22), ("starting", 22, 100)] == phases([*BEGIN, *death, start | {"at": 22}])[2:]


def test_a_wait_is_one_only_while_no_trainer_lives() -> None:
    """Too little room for the next save is a warning while it trains."""
    low = told("disk.low", 10)

    assert [("starting", 1, 100)] == phases([*BEGIN, low])[1:]
    waited = [told("supervisor.started", 0, 0), low, told("disk.freed", 30), told("trainer.spawned", 31)]
    assert [("selecting", 0, 10), ("waiting", 10, 30), ("selecting", 30, 31), ("starting", 31, 100)] == phases(waited)


def test_a_pause_lasts_until_it_is_taken_back() -> None:
    """The trainer is asked, ends, and the run waits."""
    paused = [told("trainer.asked_to_stop", 10), told("trainer.exited", 12, cause="stopped"), told("run.paused", 12)]

    assert [("stopping", 10, 12), ("paused", 12, 60), ("selecting", 60, 100)] == phases(
        [*BEGIN, *paused, told("run.resumed", 60)]
    )[2:]


def test_a_supervisor_that_ended_without_a_word_is_missed_from_its_last_sign_on() -> None:
    """A record, or a step of its trainer, whichever was later."""
    again = told("supervisor.started", 70, 0)

    assert [("running", 5, 40), ("no supervisor", 40, 70), ("selecting", 70, 100)] == phases(
        [*BEGIN, again], {1: (5, 40)}
    )[2:]
    assert [("starting", 1, 1.5), ("no supervisor", 1.5, 70)] == phases([*BEGIN, told("fallback.chosen", 1.5), again])[
        1:3
    ]


def test_a_run_that_goes_on_is_told_until_now() -> None:
    """And of one whose supervisor is gone, nothing is told of the time since."""
    assert 500 == phases(BEGIN, now=500, alive_at=None)[-1][2]
    assert 40 == phases(BEGIN, now=500, alive_at=40)[-1][2]


def test_a_clock_that_is_set_back_adds_nothing() -> None:
    """And takes nothing away: no stretch is negative."""
    back = [told("trainer.progressed", 30), told("trainer.exited", 10, cause="crashed"), told("trainer.spawned", 11, 2)]

    assert [("starting", 1, 30), ("starting", 30, 100)] == phases([*BEGIN, *back])[1:]


def test_no_records_are_no_phases() -> None:
    """Of an empty run nothing is known."""
    assert [] == phases([])


def test_the_time_of_each_phase_is_summed_up() -> None:
    """Those that there was none of are not named."""
    found = spans([*BEGIN, told("trainer.exited", 20), told("trainer.spawned", 22, 2)], {}, 100.0, 100.0)

    assert (("starting", 97.0), ("selecting", 3.0)) == by_phase(found)

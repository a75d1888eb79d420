"""The restart budget and the backoff."""

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.budget import JITTER, Budget, GiveUp, Limits, Restart, aged, refill, rejuvenated, spend

LIMITS = Limits()


def spent(
    times: list[float], limits: Limits = LIMITS, budget: Budget | None = None
) -> tuple[Budget, list[Restart | GiveUp]]:
    """The budget after deaths without progress at these times, and each decision."""
    budget, decisions = budget or Budget(), []
    for time in times:
        budget, decision = spend(budget, limits, time, progressed=False)
        decisions.append(decision)
    return budget, decisions


def test_delays_double_up_to_the_largest() -> None:
    """The first delay doubles with each death, less at most a fifth, and never passes the largest."""
    _, decisions = spent([float(n) for n in range(12)], Limits(without_progress=99, per_window=99))
    delays = [one.delay_seconds for one in decisions if isinstance(one, Restart)]

    for number, delay in enumerate(delays):
        whole = min(300.0, 2.0**number)
        assert whole * (1 - JITTER) <= delay <= whole


def test_five_deaths_without_any_progress_ever_end_the_run() -> None:
    """A run that never worked is given up soon."""
    _, decisions = spent([0.0, 1.0, 2.0, 3.0, 4.0])

    assert [Restart] * 4 + [GiveUp] == [type(one) for one in decisions]


@given(lives=st.lists(st.floats(0.0, 10.0), min_size=12, max_size=30))
def test_a_crash_loop_never_starts_more_than_five_times_in_ten_seconds(lives: list[float]) -> None:
    """However short the lives without progress are, also of a run that is never given up, the starts thin out."""
    budget, now, starts = Budget(ever_progressed=True), 0.0, [0.0]
    for life in lives:
        budget, decision = spend(budget, LIMITS, now + life, progressed=False)
        if isinstance(decision, GiveUp):
            break
        now += life + decision.delay_seconds
        starts.append(now)

    assert 5 >= max(len([other for other in starts if one <= other < one + 10]) for one in starts)


def test_once_it_progressed_a_run_is_not_given_up_within_ten_minutes() -> None:
    """A flapping disk heals in minutes: the deaths must span ten before the run ends."""
    worked = refill(Budget())
    _, decisions = spent([float(n) for n in range(8)], budget=worked)
    assert GiveUp not in [type(one) for one in decisions]

    _, decisions = spent([0.0, 1.0, 2.0, 3.0, 599.0], budget=worked)
    assert isinstance(decisions[-1], Restart)
    _, decisions = spent([0.0, 1.0, 2.0, 3.0, 600.0], budget=worked)
    assert isinstance(decisions[-1], GiveUp)


def test_progress_pays_for_an_immediate_restart_every_time() -> None:
    """However often it dies, a run that progresses goes on at once."""
    budget = Budget()
    for number in range(10):
        budget, decision = spend(budget, LIMITS, 1000.0 * number, progressed=True)
        assert Restart(0.0) == decision


def test_more_deaths_than_a_window_allows_only_slow_it_down() -> None:
    """Too many restarts in an hour raise the delay to its largest, and do not end a run that progresses."""
    budget, decisions = Budget(), []
    for number in range(25):
        budget, decision = spend(budget, LIMITS, float(number), progressed=True)
        decisions.append(decision)

    assert [Restart(0.0)] * 20 + [Restart(300.0)] * 5 == decisions
    assert Restart(0.0) == spend(budget, LIMITS, 8000.0, progressed=True)[1]


@given(st.lists(st.floats(0, 1e5), max_size=6).map(sorted), st.booleans(), st.floats(0, 1e6))
def test_ages_survive_a_clock_that_starts_again(times: list[float], progressed: bool, later: float) -> None:
    """A reboot resets the monotonic clock; the deaths keep their distances."""
    budget = Budget(tuple(times), tuple(times), progressed)
    back = rejuvenated(*aged(budget, 1e5), progressed, later)

    assert [round(1e5 - t, 3) for t in times] == [round(later - t, 3) for t in back.fruitless]
    assert progressed == back.ever_progressed


@given(st.lists(st.booleans(), max_size=60), st.floats(0.1, 500))
def test_memory_and_decisions_are_bounded(progress: list[bool], gap: float) -> None:
    """Whatever the history, the delay is within its limits and the window's memory too."""
    budget = Budget()
    for number, progressed in enumerate(progress):
        budget, decision = spend(budget, LIMITS, number * gap, progressed)
        assert len(budget.recent) <= LIMITS.per_window + 1
        assert isinstance(decision, GiveUp) or 0.0 <= decision.delay_seconds <= 300.0

"""Order, choice and retention: tables and laws."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.choose import choose, newest_first
from lastgood.keep import Keep, expendable
from lastgood.verdict import Kind, Verdict


@dataclass(frozen=True)
class Rung:
    name: str
    step: int | None
    mtime_ns: int = 0
    verdict: Verdict | None = None


def rung(step: int | None, kind: Kind | None = Kind.HEALTHY, mtime_ns: int = 0) -> Rung:
    verdict = None if kind is None else Verdict(kind, None, "")
    return Rung(f"ckpt_{step}_{mtime_ns}", step, mtime_ns, verdict)


ladders = st.lists(
    st.builds(rung, st.none() | st.integers(0, 50), st.none() | st.sampled_from(Kind), st.integers(0, 3)), max_size=12
).map(newest_first)


def test_order_is_by_number_not_by_text() -> None:
    """ckpt_10000 is newer than ckpt_9000, whatever the times of modification say."""
    old, new = rung(9000, mtime_ns=9), rung(10000, mtime_ns=1)

    assert [new, old] == newest_first([old, new])


def test_time_breaks_ties_and_no_step_comes_last() -> None:
    """Of equal steps the later written is newer; a rung without a step is older than all."""
    a, b, c = rung(5, mtime_ns=1), rung(5, mtime_ns=2), rung(None, mtime_ns=9)

    assert [b, a, c] == newest_first([c, a, b])


def test_the_walk_goes_back_by_number_until_one_is_good() -> None:
    """With 10000 corrupt the choice is 9000; with that truncated too, 8000."""
    ladder = [rung(10000, Kind.CORRUPT), rung(9000, Kind.TRUNCATED), rung(8000)]

    assert ladder[2] == choose(ladder)
    assert ladder[1].step == choose([ladder[0], rung(9000), ladder[2]]).step  # type: ignore[union-attr]


def test_an_unproven_one_is_chosen_only_when_nothing_proven_is_left() -> None:
    """A newer unproven rung loses against an older proven one, and wins against none."""
    assert choose([rung(3, Kind.UNPROVEN), rung(2, Kind.INTACT)]).step == 2  # type: ignore[union-attr]
    assert choose([rung(3, Kind.UNPROVEN), rung(2, Kind.CORRUPT)]).step == 3  # type: ignore[union-attr]


@given(ladders)
def test_what_is_chosen_is_the_newest_of_the_best_kind_there_is(ladder: list[Rung]) -> None:
    """The choice is usable, and nothing before it on the ladder is as good."""
    chosen = choose(ladder)
    proven = [r for r in ladder if r.verdict and r.verdict.proven]
    usable = [r for r in ladder if r.verdict and r.verdict.usable]

    assert chosen == next(iter(proven or usable), None)


@given(ladders, st.integers(0, 50))
def test_an_older_snapshot_never_changes_the_choice(ladder: list[Rung], step: int) -> None:
    """Adding a rung older than a proven choice leaves the choice as it was."""
    chosen = choose(ladder)
    if chosen is None or chosen.verdict is None or not chosen.verdict.proven or chosen.step is None:
        return
    older = replace(rung(min(step, chosen.step) - 1), name="older")

    assert chosen == choose(newest_first([*ladder, older]))


@given(ladders, st.integers(2, 5), st.integers(0, 10))
def test_retention_never_takes_the_two_newest_proven_nor_anything_unproven(
    ladder: list[Rung], last: int, every: int
) -> None:
    """What may go is proven, is not among the newest `last`, and is not on the kept schedule."""
    gone = expendable(ladder, Keep(last, every))
    proven = [r for r in ladder if r.verdict and r.verdict.proven]

    assert set() == {r.name for r in gone} - {r.name for r in proven[last:]}
    assert all(every == 0 or r.step is None or r.step % every for r in gone)


def test_what_is_in_use_stays() -> None:
    """A rung that a trainer was resumed from is not given up."""
    ladder = newest_first([rung(step) for step in range(6)])

    assert [0, 2] == [r.step for r in expendable(ladder, Keep(3), in_use={"ckpt_1_0"})]


@pytest.mark.parametrize(("last", "every"), [(1, 0), (0, 0), (-1, 0), (2, -1)])
def test_impossible_retention_is_refused_with_the_reason(last: int, every: int) -> None:
    """Keeping fewer than two leaves nothing to fall back to, and is refused."""
    with pytest.raises(ValueError, match=r"nothing to fall back to|number of steps"):
        Keep(last, every)

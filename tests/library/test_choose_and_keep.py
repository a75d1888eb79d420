"""Order, choice and retention: tables and laws."""

import math
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.choose import choose, holds, named, newest_first, with_one
from lastgood.keep import Keep, expendable
from lastgood.verdict import Kind, Verdict


@dataclass(frozen=True)
class Rung:
    name: str
    step: int | None
    mtime_ns: int = 0
    verdict: Verdict | None = None


def rung(step: int | None, kind: Kind | None = Kind.HEALTHY, mtime_ns: int = 0, loss: float | None = None) -> Rung:
    verdict = None if kind is None else Verdict(kind, None, "", loss=loss)
    return Rung(f"ckpt_{step}_{mtime_ns}", step, mtime_ns, verdict)


USABLE = {Kind.HEALTHY, Kind.INTACT, Kind.UNPROVEN}

verdicts = st.sampled_from([None, *Kind, *[Kind.HEALTHY, Kind.INTACT] * 5])  # good ones are the most, as they should be

losses = st.none() | st.integers(0, 3).map(float)

directories = st.lists(
    st.builds(rung, st.none() | st.integers(0, 50), verdicts, st.integers(0, 3), losses), max_size=12
).map(lambda rungs: [replace(one, name=f"{one.name}_{number}") for number, one in enumerate(rungs)])
"""Rungs as a directory holds them: steps and times may be equal, names are not."""

ladders = directories.map(newest_first)


def test_order_is_by_number_not_by_text() -> None:
    """ckpt_10000 is newer than ckpt_9000, whatever the times of modification say."""
    old, new = rung(9000, mtime_ns=9), rung(10000, mtime_ns=1)

    assert [new, old] == newest_first([old, new])


def test_time_breaks_ties_and_no_step_comes_last() -> None:
    """Of equal steps the later written is newer; a rung without a step is older than all."""
    a, b, c = rung(5, mtime_ns=1), rung(5, mtime_ns=2), rung(None, mtime_ns=9)

    assert [b, a, c] == newest_first([c, a, b])


@given(ladders, st.builds(rung, st.none() | st.integers(0, 50), verdicts, st.integers(0, 3)), st.booleans())
def test_one_more_is_put_where_sorting_would_put_it(ladder: list[Rung], one: Rung, known: bool) -> None:
    """A ladder with an arrival is the ladder of all of them; what had its name before is not among them."""
    one = replace(one, name=ladder[-1].name if known and ladder else one.name)
    others = [other for other in ladder if other.name != one.name]

    assert tuple(newest_first([*others, one])) == with_one(tuple(ladder), one)
    assert tuple(newest_first([*others, one])) == with_one(tuple(others), one, new_name=True)


@given(ladders)
def test_each_of_a_ladder_is_found_by_its_name_and_held(ladder: list[Rung]) -> None:
    """One of its name that was written at another time is found and not held, and one of another name neither."""
    for one in ladder:
        assert one is named(ladder, one.name)
        assert holds(ladder, one)
        assert not holds(ladder, replace(one, mtime_ns=one.mtime_ns + 9))
        assert None is named(ladder, one.name + "x")
        assert not holds(ladder, replace(one, name=one.name + "x"))


def test_what_had_no_known_step_is_held_when_it_is_known_and_the_other_way_round() -> None:
    """Its content could not be read before, or can no longer be."""
    assert holds([rung(9), rung(7), Rung("late.pt", None, 5)], Rung("late.pt", 8, 5))
    assert holds([rung(9), Rung("late.pt", 8, 5), rung(7)], Rung("late.pt", None, 5))


@given(directories, st.randoms(use_true_random=False))
def test_the_order_is_the_same_however_a_directory_is_listed(rungs: list[Rung], shuffler: Random) -> None:
    """Nothing is lost, and of any two the higher step comes first, then the later written, then the later name."""
    ladder = newest_first(rungs)
    shuffled = list(rungs)
    shuffler.shuffle(shuffled)

    assert ladder == newest_first(shuffled)
    assert {one.name for one in rungs} == {one.name for one in ladder}
    for newer, older in combinations(ladder, 2):
        assert (newer.step is None) <= (older.step is None)
        if newer.step is not None and older.step is not None:
            assert newer.step >= older.step
        if newer.step == older.step:
            assert (newer.mtime_ns, newer.name) > (older.mtime_ns, older.name)


def test_the_walk_goes_back_by_number_until_one_is_good() -> None:
    """With 10000 corrupt the choice is 9000; with that truncated too, 8000."""
    ladder = [rung(10000, Kind.CORRUPT), rung(9000, Kind.TRUNCATED), rung(8000)]

    assert ladder[2] == choose(ladder)
    assert ladder[1].step == choose([ladder[0], rung(9000), ladder[2]]).step


def test_an_unproven_one_is_chosen_only_when_nothing_proven_is_left() -> None:
    """A newer unproven rung loses against an older proven one, and wins against none."""
    assert choose([rung(3, Kind.UNPROVEN), rung(2, Kind.INTACT)]).step == 2
    assert choose([rung(3, Kind.UNPROVEN), rung(2, Kind.CORRUPT)]).step == 3


@given(ladders)
def test_what_is_chosen_is_the_newest_of_the_best_kind_there_is(ladder: list[Rung]) -> None:
    """The choice is usable, and nothing before it on the ladder is as good."""
    chosen = choose(ladder)
    proven = [r for r in ladder if r.verdict and r.verdict.proven]
    usable = [r for r in ladder if r.verdict and r.verdict.usable]

    assert chosen == next(iter(proven or usable), None)


@given(ladders, st.integers(1, 50), st.none() | st.sampled_from(Kind))
def test_an_older_snapshot_never_changes_the_choice(ladder: list[Rung], step: int, kind: Kind | None) -> None:
    """Adding a rung older than a proven choice leaves the choice as it was."""
    ladder = newest_first([*ladder, replace(rung(step), name="proven")])
    chosen = choose(ladder)
    assert chosen is not None
    assert chosen.step is not None
    older = replace(rung(chosen.step - 1, kind), name="older")

    assert chosen == choose(newest_first([*ladder, older]))


@given(ladders, st.integers(0, 50))
def test_what_is_not_usable_never_changes_the_choice(ladder: list[Rung], step: int) -> None:
    """Any number of bad, unreadable, incompatible or unjudged rungs may come: the choice stays."""
    others = [replace(rung(step, kind), name=f"other_{kind}") for kind in [None, *Kind] if kind not in USABLE]

    assert choose(ladder) == choose(newest_first([*ladder, *others]))


keeps = st.builds(Keep, st.integers(2, 5), st.integers(0, 10), st.integers(0, 3))


@given(ladders, keeps, st.data())
def test_what_may_go_is_old_proven_unused_and_on_no_schedule(
    ladder: list[Rung], keep: Keep, data: st.DataObject
) -> None:
    """It is none of the newest kept, least of all of the two newest proven, and whatever else is there has no say in it."""
    names = [one.name for one in ladder]
    in_use = set(data.draw(st.lists(st.sampled_from(names), max_size=4))) if names else set()
    gone = expendable(ladder, keep, in_use)
    proven = [one for one in ladder if one.verdict and one.verdict.proven]

    assert set() == {one.name for one in gone} - {one.name for one in proven[max(2, keep.last) :]}
    assert set() == {one.name for one in gone} & in_use
    assert all(keep.every == 0 or one.step is None or one.step % keep.every for one in gone)
    assert gone == list(reversed([one for one in ladder if one in gone])), (
        "a pruning cut short must have taken the oldest"
    )
    assert gone == expendable(proven, keep, in_use)


@given(ladders, keeps)
def test_retention_done_twice_takes_nothing_more(ladder: list[Rung], keep: Keep) -> None:
    """What is left after a pruning is what is to be kept, cut short or not; and no more proven ones than were asked for."""
    gone = expendable(ladder, keep)
    for done in range(len(gone) + 1):
        left = [one for one in ladder if one not in gone[:done]]

        assert gone[done:] == expendable(left, keep)
    unscheduled = [
        r
        for r in left
        if r.verdict and r.verdict.proven and not (keep.every and r.step is not None and r.step % keep.every == 0)
    ]
    assert keep.last + keep.best >= len(unscheduled)


def test_milestones_stay() -> None:
    """Of the old ones those on the schedule are kept, and what tells no step is on none."""
    ladder = newest_first([rung(None), *(rung(step) for step in range(0, 60, 5))])

    assert [None, 5, 15, 25, 35, 45] == [r.step for r in expendable(ladder, Keep(2, every=10))]


def kept(ladder: list[Rung], keep: Keep, told: dict[int, float] | None = None) -> list[int | None]:
    """The steps that stay, newest first."""
    gone = expendable(ladder, keep, told=told or {})
    return [one.step for one in ladder if one not in gone]


def test_the_best_stay() -> None:
    """Those with the lowest losses are kept beside the newest; of equal ones the oldest, and an unknown loss is not low."""
    lost = {1: 3.0, 2: 1.0, 3: None, 4: 1.0, 5: 2.0, 6: 9.0, 7: 9.0}
    ladder = newest_first([rung(step, loss=loss) for step, loss in lost.items()])

    assert [7, 6, 2] == kept(ladder, Keep(2, best=1))
    assert [7, 6, 5, 4, 2] == kept(ladder, Keep(2, best=3))
    assert [7, 6] == kept(ladder, Keep(2))


def test_one_of_the_newest_may_be_the_best() -> None:
    """It is not kept twice, and no other in its stead."""
    assert [3, 2] == kept(newest_first([rung(1, loss=2.0), rung(2, loss=1.0), rung(3, loss=1.5)]), Keep(2, best=1))


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_never_the_best(loss: float) -> None:
    """Neither one that a payload tells nor one that was told; without any other nothing more is kept."""
    steps = (1, 2, 3, 4)
    inside = newest_first([rung(step, loss=loss if step == 1 else 1.0) for step in steps])

    assert [4, 3, 2] == kept(inside, Keep(2, best=1))
    assert [4, 3, 2] == kept(newest_first(map(rung, steps)), Keep(2, best=1), {1: loss, 2: 1.0})
    assert [4, 3] == kept(newest_first(map(rung, steps)), Keep(2, best=1), {1: loss})


def test_only_a_proven_one_is_the_best() -> None:
    """What is bad, unproven or not judged stays as it is, and takes no place of one that is proven."""
    others = [rung(step, kind, loss=0.0) for step, kind in enumerate((Kind.UNPROVEN, Kind.POISONED, None))]
    ladder = newest_first([*others, *(rung(step, loss=9.0 - step) for step in (5, 6, 7, 8))])

    assert [8, 7, 2, 1, 0] == kept(ladder, Keep(2, best=0))
    assert [8, 7, 6, 2, 1, 0] == kept(ladder, Keep(2, best=3))


def test_what_was_told_counts_where_no_payload_tells_a_loss() -> None:
    """A training loss that was printed is not compared with the validation loss of another snapshot."""
    plain = newest_first(map(rung, (1, 2, 3, 4)))
    assert [4, 3, 1] == kept(plain, Keep(2, best=1), {1: 1.0, 2: 2.0, 99: 0.0})

    assert [4, 3, 2] == kept([*plain[:2], rung(2, loss=5.0), plain[3]], Keep(2, best=1), {1: 1.0})


def test_what_is_in_use_stays() -> None:
    """A rung that a trainer was resumed from is not given up."""
    ladder = newest_first([rung(step) for step in range(6)])

    assert [0, 2] == [r.step for r in expendable(ladder, Keep(3), in_use={"ckpt_1_0"})]


@pytest.mark.parametrize(("last", "every", "best"), [(1, 0, 0), (0, 0, 0), (-1, 0, 0), (2, -1, 0), (2, 0, -1)])
def test_impossible_retention_is_refused_with_the_reason(last: int, every: int, best: int) -> None:
    """Keeping fewer than two leaves nothing to fall back to, and is refused."""
    with pytest.raises(ValueError, match=r"nothing to fall back to|number of s"):
        Keep(last, every, best)


@pytest.mark.parametrize("number", [2.5, "3", None, True])
def test_the_number_to_keep_is_a_whole_number(number: object) -> None:
    """Else it would fail in the background, long after it was said."""
    with pytest.raises(TypeError, match="is a whole number"):
        Keep(last=number)

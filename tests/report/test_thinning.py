"""Fewer points show the same picture."""

import random

import pytest

from supervisor.report.model import Line, Span
from supervisor.report.thinning import NEAR_STEPS, longest, thinned


def many(count: int = 100_000, starts: int = 5) -> list[Line]:
    """A noisy curve of several starts."""
    noise = random.Random(1)
    return [Line(step, 2 + noise.random(), float(step), 1 + step * starts // count) for step in range(count)]


def test_a_short_curve_is_left_as_it_is() -> None:
    """And is not said to be thinned."""
    lines = many(100)
    curve = thinned(lines, (), 100)

    assert (tuple(lines), False) == (curve.steps, curve.is_thinned)


def test_a_long_curve_has_about_as_many_points_as_are_wanted() -> None:
    """In the order in which they were made; that it is thinned and how many there were is known."""
    curve = thinned(many(), (), 2000)

    assert 1000 < len(curve.steps) < 2100
    assert (100_000, True) == (curve.lines, curve.is_thinned)
    assert sorted(curve.steps) == list(curve.steps)


def test_a_curve_of_which_only_a_part_was_read_is_thinned_too() -> None:
    """However few its lines are."""
    curve = thinned(many(100), (), 100, made=5000)

    assert (100, 5000, True) == (len(curve.steps), curve.lines, curve.is_thinned)


def test_the_first_and_the_last_of_each_start_are_kept() -> None:
    """Or a way back would look longer or shorter than it was."""
    lines = many()
    kept = thinned(lines, (), 50).steps
    for start in range(1, 6):
        made = [line for line in lines if line.incarnation == start]
        shown = [line for line in kept if line.incarnation == start]

        assert (made[0], made[-1]) == (shown[0], shown[-1])


def test_the_highest_and_the_lowest_are_kept() -> None:
    """A spike of a single step is what one looks for."""
    lines = many()
    lines[31_415] = lines[31_415]._replace(loss=99.0)
    lines[27_182] = lines[27_182]._replace(loss=-99.0)
    losses = [line.loss for line in thinned(lines, (), 50).steps]

    assert 99.0 in losses
    assert -99.0 in losses


def test_all_beside_a_mark_are_kept() -> None:
    """There one looks closely."""
    kept = {line.step for line in thinned(many(), {50_000}, 50).steps}

    assert set(range(50_000 - NEAR_STEPS, 50_001 + NEAR_STEPS)) <= kept


def test_steps_without_a_loss_cost_nothing() -> None:
    """Of a trainer that tells no loss the ends of each start are enough."""
    assert 10 == len(thinned([line._replace(loss=None) for line in many()], (), 50).steps)


@pytest.mark.parametrize("most", [1, 7, 50])
def test_of_many_spans_the_longest_are_kept_in_their_order(most: int) -> None:
    """The others could not be seen beside them."""
    lengths = random.Random(2).sample(range(1, 1000), 50)
    spans = [Span("running", 1000.0 * number, 1000.0 * number + length) for number, length in enumerate(lengths)]
    kept = longest(spans, most)

    assert sorted(lengths)[-most:] == sorted(span.seconds for span in kept)
    assert sorted(kept, key=lambda span: span.begin) == list(kept)


def test_spans_that_are_alike_are_not_more_than_are_wanted() -> None:
    """Of a thousand that take the same time, too."""
    assert 7 == len(longest([Span("backoff", at, at + 1.0) for at in range(1000)], 7))

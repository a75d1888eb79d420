"""The plan of a campaign."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.chaos.plan import FIRST_SHARE, LAST_SHARE, MIXES, ON_STORAGE, OWN_FILESYSTEM, FaultKind, draw

EVEN = dict.fromkeys(FaultKind, 1.0)
WEIGHTS = st.dictionaries(st.sampled_from(FaultKind), st.floats(0.1, 100.0), min_size=1)


@given(st.integers(), st.integers(1000, 100_000), st.integers(1, 200), WEIGHTS)
def test_each_fault_has_a_stretch_of_the_run_to_itself(
    seed: int, final_step: int, count: int, weights: dict[FaultKind, float]
) -> None:
    """As many as were asked for, in order, none too early or too late, and no two of one name."""
    plan = draw(seed, final_step, count, weights)
    steps = [fault.at_step for fault in plan]

    assert count == len({fault.id for fault in plan})
    assert steps == sorted(set(steps))
    assert int(final_step * FIRST_SHARE) <= steps[0]
    assert steps[-1] <= int(final_step * LAST_SHARE)
    assert all(0 <= fault.share < 1 for fault in plan)


@given(st.integers(), st.integers(1, 200), WEIGHTS)
def test_kinds_come_as_often_as_they_weigh(seed: int, count: int, weights: dict[FaultKind, float]) -> None:
    """Within one of their share, but that none is left out where there is room for all, and only those that have a weight."""
    plan = draw(seed, 100_000, count, weights)
    counts = Counter(fault.kind for fault in plan)
    total = sum(weights.values())

    assert counts.keys() <= weights.keys()
    assert count < len(weights) or counts.keys() == weights.keys()
    for kind, times in counts.items():
        assert times <= max(1, count * weights[kind] / total + 1)


@given(st.integers(), st.integers(0, 10))
def test_even_weights_give_even_counts(seed: int, rounds: int) -> None:
    """All kinds as often as each other; what is left over goes to some of them by lot."""
    counts = Counter(fault.kind for fault in draw(seed, 100_000, rounds * len(FaultKind) + 3, EVEN))

    assert {rounds, rounds + 1} == set(counts.values()) | {rounds, rounds + 1}
    assert 3 == sum(times - rounds for times in counts.values())


def test_the_same_seed_gives_the_same_plan() -> None:
    """A campaign can be repeated; another seed gives another one, in its kinds, its steps and its places in a file."""
    assert draw(7, 1000, 60, EVEN) == draw(7, 1000, 60, dict(reversed(EVEN.items())))
    plans = [draw(seed, 1000, 4, EVEN) for seed in range(20)]
    for part in ("kind", "at_step", "share"):
        assert len({tuple(getattr(fault, part) for fault in plan) for plan in plans}) > 15


@pytest.mark.parametrize(("final_step", "count", "most"), [(8, 4, 2), (100, 60, 35), (2, 1, 0)])
def test_a_run_too_short_for_its_faults_is_refused(final_step: int, count: int, most: int) -> None:
    """Faults that cannot be placed are not left out in silence; how many there is room for is said, and is true."""
    with pytest.raises(ValueError, match=f"too short for {count} faults; it has room for {most}$"):
        draw(1, final_step, count, EVEN)
    if most:
        assert most == len(draw(1, final_step, most, EVEN))


def test_what_needs_a_dead_trainer_or_a_filesystem_is_known() -> None:
    """Each kind is done to a process or to storage, and none below a filesystem that is somebody's."""
    assert {"flip-below-the-filesystem", "fill-disk"} == OWN_FILESYSTEM
    assert {"fill-disk"} == OWN_FILESYSTEM - ON_STORAGE


def test_a_mix_is_drawn_as_clusters_fail() -> None:
    """Of a hundred faults about half are kills, a fifth is somebody who ends the run, and the rare ones are there."""
    plan = draw(1, 100_000, 100, MIXES["cluster"])
    counts = Counter(fault.kind for fault in plan)

    assert MIXES["cluster"].keys() == counts.keys()
    assert [FaultKind.KILL, FaultKind.TERMINATE, FaultKind.STOP] == [kind for kind, _ in counts.most_common(3)]
    assert 50 <= counts[FaultKind.KILL] <= 60
    assert 1 == counts[FaultKind.ZERO_TAIL]

"""The plan of a campaign."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.chaos.plan import FIRST_SHARE, KINDS, LAST_SHARE, FaultKind, draw


@given(st.integers(), st.integers(100, 100_000))
def test_a_plan_has_every_kind_in_order_within_the_run(seed: int, final_step: int) -> None:
    """Each fault has a stretch of the run to itself, none too early or too late, and no truncation comes first."""
    plan = draw(seed, final_step)
    steps = [fault.at_step for fault in plan]

    assert sorted(KINDS) == sorted(fault.kind for fault in plan)
    assert steps == sorted(set(steps))
    assert int(final_step * FIRST_SHARE) <= steps[0]
    assert steps[-1] <= int(final_step * LAST_SHARE)
    assert FaultKind.TRUNCATE is not plan[0].kind
    assert len(plan) == len({fault.id for fault in plan})


def test_the_same_seed_gives_the_same_plan() -> None:
    """A campaign can be repeated; another seed gives another one."""
    assert draw(7, 1000) == draw(7, 1000)
    assert len({draw(seed, 1000) for seed in range(20)}) > 15


def test_a_run_too_short_for_its_faults_is_refused() -> None:
    """Faults that cannot be placed are not left out in silence."""
    with pytest.raises(ValueError, match="too short"):
        draw(1, 8)

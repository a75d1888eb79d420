"""Whole lives of the supervisor in a fake world: thousands of them, with every kind of fault, and no promise broken."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulator.life import Life, live
from tests.simulator.mutants import MUTANTS
from tests.simulator.plan import drawn, kinds
from tests.simulator.promises import PROMISES
from tests.simulator.tally import Pair

LIVES = 2_000
BLOCKS = 4
MET_MIN = 2  # times that a block must have met each kind of fault
PAIRS_MIN = 500  # pairs of faults that a block must have met, the second before the run had progressed after the first
HOURS_MIN = 10.0  # of training in a block, in which no trainer that goes on may be called stalled
MUTANT_SEEDS_MAX = 3000
ROOT = Path(__file__).parents[2]


def the_same(life: Life) -> tuple[object, ...]:
    return life.history, life.met, life.broken, life.statuses


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_promise_is_broken_in_thousands_of_lives(block: int) -> None:
    """Whatever goes wrong in a life, every promise is kept at each step, and after the storm the run completes."""
    met: Counter[str] = Counter()
    pairs: set[Pair] = set()
    trained_seconds = 0.0
    count = LIVES // BLOCKS
    for seed in range(block * count, (block + 1) * count):
        life = live(seed)
        assert life.broken is None, life.told()
        met.update(life.met)
        pairs |= life.pairs
        trained_seconds += life.trained_seconds

    assert HOURS_MIN < trained_seconds / 3600
    assert PAIRS_MIN < len(pairs)
    assert not [kind for kind in kinds() if met[kind] < MET_MIN], met


@pytest.mark.heavy
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_product_is_noticed(name: str) -> None:
    """Each way in which the core or the runtime was broken on purpose breaks a promise within three thousand lives."""
    broken = (live(seed, MUTANTS[name]()).broken for seed in range(MUTANT_SEEDS_MAX))
    found = next(filter(None, broken), "none")

    assert found.partition(":")[0] in PROMISES, found


def test_a_seed_is_a_life() -> None:
    """The same seed gives the same plan and history again, in this process and in another, whatever text hashes to."""
    for seed in range(20):
        assert drawn(seed) == drawn(seed)
        assert the_same(live(seed)) == the_same(live(seed))
    script = "from tests.simulator.life import live; print([live(seed).history for seed in range(20)])"
    told = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }

    assert 1 == len(told)


def test_a_broken_promise_is_told_with_all_that_repeats_it() -> None:
    """Seed, command, plan and history are in the text of a failure."""
    found = next(life for life in (live(seed, MUTANTS["skip verification"]()) for seed in range(400)) if life.broken)
    told = found.told()

    assert f"python -m tests.simulator --first {found.plan.seed} --seeds 1" in told
    assert found.plan.told() in told
    assert "\n".join(found.history) in told


def test_a_life_takes_no_time() -> None:
    """Hours of a life pass in moments: nothing of it waits for a real clock."""
    lives = [live(seed) for seed in range(20)]

    assert 20 * 60 < sum(life.seconds for life in lives)

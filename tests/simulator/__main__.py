"""`python -m tests.simulator --seeds N [--first S] [--jobs J]`: N lives; prints what they met, and stops at a broken promise.

Exit status 1 with the seed, its plan and its history when a promise was broken; the same command with `--first SEED --seeds 1`
repeats that life. Also when 2,000 lives or more have met a kind of fault in less than one of a hundred.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulator.life import Life, live
from tests.simulator.plan import kinds
from tests.simulator.tally import Pair, told_pairs, too_rare

CHUNK = 50


def main() -> int:
    """Live the lives that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2_000, help="how many lives")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes at a time")
    parser.add_argument("--history", action="store_true", help="print each life, whatever became of it")
    asked = parser.parse_args()
    met: Counter[str] = Counter()
    pairs: set[Pair] = set()
    ends: Counter[int] = Counter()
    starts = 0
    trained_seconds = 0.0
    for life in _lives(range(asked.first, asked.first + asked.seeds), asked.jobs):
        met.update(life.met)
        pairs |= life.pairs
        ends.update(life.statuses)
        starts += life.spawns
        trained_seconds += life.trained_seconds
        if asked.history or life.broken is not None:
            print(life.told())
        if life.broken is not None:
            return 1
    width = max(map(len, kinds()))
    for kind in kinds():
        print(f"{kind:<{width}} {met[kind]:>9,}")
    print(told_pairs(pairs))
    print(f"ends by exit status: {dict(sorted(ends.items()))}")
    print(f"{trained_seconds / 3600:,.0f} hours of training, no trainer that went on was called stalled")
    print(f"{asked.seeds:,} lives, {starts:,} trainers, no promise broken")
    if rare := too_rare(met, asked.seeds):
        print(f"too seldom met: {', '.join(rare)}")
    return int(bool(rare))


def _lives(seeds: Iterable[int], jobs: int) -> Iterator[Life]:
    if jobs <= 1:
        yield from map(live, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        try:
            yield from pool.map(partial(live), seeds, chunksize=CHUNK)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


if __name__ == "__main__":
    sys.exit(main())

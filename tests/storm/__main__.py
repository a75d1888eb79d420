"""python -m tests.storm [--seed N] [--kills N] [--lives N]: kills on the real system, and what came of them."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.conftest import MEMORY
from tests.storm.campaign import report, storm


def main() -> int:
    """Storm, and report."""
    parser = argparse.ArgumentParser(prog="python -m tests.storm")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--lives", type=int, default=10)
    chosen = parser.parse_args()
    began = time.monotonic()
    print(f"seed {chosen.seed}", flush=True)
    place = MEMORY if Path(MEMORY).is_dir() else None
    with tempfile.TemporaryDirectory(prefix="storm-", dir=place) as folder:
        tally = storm(Path(folder), chosen.seed, chosen.kills, chosen.lives)
    print(report(tally))
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if tally.violations else 0


if __name__ == "__main__":
    sys.exit(main())

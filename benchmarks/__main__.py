"""`python -m benchmarks`: measure, print one table, store the figures."""

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import machine, report
from benchmarks.figures import Verdict
from benchmarks.harness import Measured, Scale, groups, measure
from benchmarks.rows import ROWS

ROOT = Path(__file__).parents[1]
OUT = ROOT / "out"
FULL = {"size": 1.5, "snapshots": 10_000, "pairs": None, "seconds": 10.0}
QUICK = {"size": 0.05, "snapshots": 100, "pairs": 6, "seconds": 0.5}


def arguments(words: list[str]) -> argparse.Namespace:
    """What was asked for; ends the process with 2 and the reason when that makes no sense."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = [row.name for row in ROWS]
    parser.add_argument(
        "--row", action="append", choices=names, metavar="NAME", help=f"one of {', '.join(names)}; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and few pairs, to see that it runs")
    parser.add_argument("--size", type=float, metavar="GB", help="of a large snapshot")
    parser.add_argument("--snapshots", type=int, metavar="N", help="in a directory of many")
    parser.add_argument("--pairs", type=int, metavar="N", help="instead of as many as the row says")
    parser.add_argument("--seconds", type=float, metavar="N", help="in which it is seen what a supervisor spends")
    parser.add_argument(
        "--dir", type=Path, default=OUT / "bench", help="where files are written, on a real disk; default out/bench"
    )
    parser.add_argument("--out", type=Path, default=OUT / "bench.json", help="default out/bench.json")
    asked = parser.parse_args(words)
    for name, value in (QUICK if asked.quick else FULL).items():
        if getattr(asked, name) is None:
            setattr(asked, name, value)
    return asked


def run(asked: argparse.Namespace) -> list[Measured]:
    """Measure the rows, each in a folder of its own that is gone afterwards. Raises UnfitError."""
    asked.dir.mkdir(parents=True, exist_ok=True)
    large_bytes = int(asked.size * 1e9)
    machine.check(asked.dir, large_bytes)
    results = []
    for rows in groups(row for row in ROWS if not asked.row or row.name in asked.row):
        names = ", ".join(row.name for row in rows)
        print(f"{time.strftime('%H:%M:%S')} measuring {names} ...", file=sys.stderr, flush=True)
        try:
            with tempfile.TemporaryDirectory(prefix=f"{rows[0].name}-", dir=asked.dir) as folder:
                scale = Scale(Path(folder), large_bytes, asked.snapshots, asked.pairs, asked.seconds)
                measured, left_out = measure(rows, scale)
        except machine.UnfitError as error:
            measured, left_out = [], {row.name: str(error) for row in rows}
        results += measured
        for name, reason in left_out.items():
            print(f"{name} is left out: {reason}", file=sys.stderr)
    return sorted(results, key=lambda one: ROWS.index(one.row))


def main(words: list[str] | None = None) -> int:
    """0: no target was missed; 1: one was, or a row was left out; 2: nothing could be measured."""
    asked = arguments(sys.argv[1:] if words is None else words)
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # so that folders are removed
    try:
        results = run(asked)
    except machine.UnfitError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    print(report.table(results))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine.described(asked.dir),
        "scale": {"large_bytes": int(asked.size * 1e9), "small_snapshots": asked.snapshots, "seconds": asked.seconds},
        "rows": [one.as_data() for one in results],
    }
    asked.out.write_text(json.dumps(content, indent=1) + "\n")
    left_out = len(results) < len(asked.row or ROWS)
    return int(left_out or any(one.verdict is Verdict.MISSED for one in results))


if __name__ == "__main__":
    sys.exit(main())

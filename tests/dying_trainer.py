"""A trainer that knows nothing of lastgood and dies in each life as a list says: it saves, goes on a step, and is gone.

python dying_trainer.py DIR DEATHS [--from=SNAPSHOT]     DEATHS: words with commas between, one a life; at their end it completes
"""

import ctypes
import json
import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from supervisor import faults, proc
from tests.small_trainer import save


def starve() -> None:
    """Take memory until the kernel has enough of it."""
    kept = []
    while True:
        kept.append(b"x" * (1 << 20))


def chaos(folder: str) -> None:
    """As a campaign does it: told, then done."""
    me = proc.identity_of(os.getpid())
    assert me is not None
    fault = faults.Fault(f"f{me.pid}", "kill", me.pid, me.start_ticks, None, time.time())
    faults.announce(folder, fault)
    os.kill(me.pid, signal.SIGKILL)


def diverge(step: int) -> None:
    """Go on with losses that are no numbers until somebody ends it."""
    for number in range(step, step + 200):
        print(f"step {number}: loss nan", flush=True)
        time.sleep(0.1)


def die(how: str, folder: str, step: int) -> None:
    """End as the list says."""
    match how:
        case "out-of-memory":
            starve()
        case "chaos":
            chaos(folder)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "exception":
            raise RuntimeError(json.dumps({"no": "luck"}))
        case "nan":
            diverge(step)


def main() -> None:
    """Three steps a life."""
    folder, deaths = sys.argv[1], sys.argv[2].split(",")
    given = next((word for word in sys.argv[3:] if word.startswith("--from=")), "")
    step = int(os.path.basename(given)[len("step_") : -len(".pt")]) if given else 0
    life = int(os.environ["LASTGOOD_INCARNATION"])
    for number in (step + 1, step + 2):
        print(f"step {number}: loss {4 / number:.4f}", flush=True)
    save(folder, step + 2)
    print(f"step {step + 3}: loss {4 / (step + 3):.4f}", flush=True)
    if life <= len(deaths):
        die(deaths[life - 1], folder, step + 4)


if __name__ == "__main__":
    main()

"""How fast this machine is now, for bars in seconds: a shared one may be half as fast as it was a day ago."""

import statistics
import subprocess
import sys

SECONDS = 0.045
"""Of processor time that the work below took where the bars were set."""
WORK = """
import time
started = time.thread_time()
table = {number: str(number) for number in range(400_000)}
print(time.thread_time() - started)
"""


def slowness() -> float:
    """How many times slower it is than where the bars were set, in processes that begin with no memory; at least 1."""
    command = [sys.executable, "-c", WORK]
    taken = [float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(3)]
    return max(1.0, statistics.median(taken) / SECONDS)

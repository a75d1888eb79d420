"""A trainer that prints as fast as it is read, in lines of 80 bytes: `python flood.py BYTES REPORT`.

Into the report go the seconds that it took, and the supervisor's peak of memory before and after, in bytes.
"""

import json
import os
import sys
import time
from pathlib import Path

CHUNK = b"".join(b"step %7d: loss %.4f " % (n, 4 / (n + 1)) + b"." * 53 + b"\n" for n in range(4096))


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main() -> None:
    """Print, then say how that went."""
    before, left, started = peak_bytes(os.getppid()), int(sys.argv[1]), time.perf_counter()
    while left > 0:
        left -= os.write(1, CHUNK[:left])
    seconds = time.perf_counter() - started
    Path(sys.argv[2]).write_text(json.dumps([seconds, before, peak_bytes(os.getppid())]))


if __name__ == "__main__":
    main()

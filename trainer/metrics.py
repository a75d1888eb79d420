"""`metrics.jsonl`: one line for every step, for whoever compares or draws runs."""

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator

from lastgood import contract
from trainer.settings import UsageError

METRICS_FILE = "metrics.jsonl"  # in out_dir, one line for every step
METRICS_LINE_MAX = 4096  # bytes; far longer than any line written here


@contextlib.contextmanager
def open_metrics(out_dir: str) -> Iterator[int]:
    """A descriptor that appends to metrics.jsonl; half a line left by a kill is cut off first."""
    try:
        os.makedirs(out_dir, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(os.path.join(out_dir, METRICS_FILE), flags, 0o666)
    except OSError as error:
        problem = f"{out_dir} cannot be written ({error.strerror})"
        raise UsageError("out_dir", f"{problem}; choose another") from None
    try:
        size = os.fstat(descriptor).st_size
        tail = os.pread(descriptor, METRICS_LINE_MAX, max(0, size - METRICS_LINE_MAX))
        os.ftruncate(descriptor, size - (len(tail) - tail.rfind(b"\n") - 1))
        yield descriptor
    finally:
        os.close(descriptor)


def record(metrics: int, step: int, loss: float, norm: float, lr: float, tokens_per_second: float, exact: bool) -> None:
    """Append one line to metrics.jsonl, in one write; numbers in full, so that equal means equal."""
    incarnation = os.environ.get(contract.ENV_INCARNATION, "")
    line = {
        "step": step,
        "loss": loss if math.isfinite(loss) else None,  # JSON knows no NaN
        "lr": lr,
        "grad_norm": norm if math.isfinite(norm) else None,
        "tokens_per_second": round(tokens_per_second, 1),
        "time": time.time(),
        "exact": exact,  # whether this is, as far as known, what a run without any interruption computes
        "incarnation": int(incarnation) if incarnation.isdecimal() else 1,
    }
    try:
        os.write(metrics, json.dumps(line).encode() + b"\n")
    except OSError as error:
        print(f"warning: metrics of step {step} are lost: {error.strerror}", flush=True)

"""`metrics.jsonl`: one line for every step, for whoever compares or draws runs."""

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator

from lastgood import contract
from trainer.distributed import say
from trainer.settings import UsageError

METRICS_FILE = "metrics.jsonl"  # in out_dir, one line for every step
METRICS_LINE_MAX = 4096  # bytes; far longer than any line written here


class Metrics:
    """Appends to metrics.jsonl, one write a line; numbers in full, so that equal means equal."""

    def __init__(self, descriptor: int, incarnation: int) -> None:
        self._descriptor = descriptor
        self._incarnation = incarnation
        self._lost: str | None = None  # why, while lines cannot be written

    def record(
        self,
        step: int,
        loss: float,
        norm: float,
        lr: float,
        tokens_per_second: float,
        exact: bool,
        save_seconds: float | None = None,
    ) -> None:
        """Append the line of one step. Where that cannot be done it costs a warning, once, and no more."""
        line = {
            "step": step,
            "loss": loss if math.isfinite(loss) else None,  # JSON knows no NaN
            "lr": lr,
            "grad_norm": norm if math.isfinite(norm) else None,
            "tokens_per_second": round(tokens_per_second, 1),
            "time": time.time(),
            "exact": exact,  # whether this is, as far as known, what a run without any interruption computes
            "incarnation": self._incarnation,
        }
        if save_seconds is not None:
            line["save_seconds"] = round(save_seconds, 6)  # that training stood still for, before this step
        lost = self._append(json.dumps(line).encode() + b"\n")
        if lost != self._lost and lost is not None:
            say(f"warning: metrics from step {step} on are lost: {lost}")
        self._lost = lost

    def _append(self, line: bytes) -> str | None:
        """Why a line could not be appended; a part of one is taken back, or it would spoil the next."""
        try:
            written = os.write(self._descriptor, line)
            if written == len(line):
                return None
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
        except OSError as error:
            return str(error.strerror)
        return "No space left for a whole line"


@contextlib.contextmanager
def open_metrics(out_dir: str) -> Iterator[Metrics]:
    """The metrics of a run; half a line left by a kill is cut off first."""
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
        whole = tail[: tail.rfind(b"\n") + 1]
        os.ftruncate(descriptor, size - len(tail) + len(whole))
        yield Metrics(descriptor, incarnation_after(whole))
    finally:
        os.close(descriptor)


def incarnation_after(lines: bytes) -> int:
    """Which life of the run this is: as the supervisor says, else one more than that of the last line."""
    told = os.environ.get(contract.ENV_INCARNATION, "")
    if told.isdecimal():
        return int(told)
    try:
        return int(json.loads(lines.splitlines()[-1])["incarnation"]) + 1
    except (LookupError, TypeError, ValueError):
        return 1

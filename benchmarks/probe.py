"""`lastgood run` that tells when: `python -m benchmarks.probe DESCRIPTOR run ...`.

One line a moment, `NANOSECONDS NAME PID`, by the monotonic clock that all processes share: `Exit` as the trainer's exit is
collected, `Start` as a trainer is about to be started, and an event as the core is about to hear it. All else is the product
as it is.
"""

import os
import sys
import time
from typing import Any

from supervisor.adapters import process
from supervisor.cli.app import main
from supervisor.core.events import Event
from supervisor.runtime import Runtime
from supervisor.trainer_side import TrainerSide


def tell_of(descriptor: int) -> None:
    """Tell the moments of this process from now on."""
    collect, step, spawn = process._collect, Runtime._step, TrainerSide.spawn

    def tell(name: str, pid: int = 0) -> None:
        os.write(descriptor, f"{time.monotonic_ns()} {name} {pid}\n".encode("ascii"))

    def told_collect(pidfd: int) -> process.Exit | None:
        if (found := collect(pidfd)) is not None:
            tell("Exit")
        return found

    def told_step(self: Runtime, event: Event) -> None:
        tell(type(event).__name__, getattr(event, "pid", 0))
        step(self, event)

    def told_spawn(self: TrainerSide, *words: Any) -> None:
        tell("Start")
        spawn(self, *words)

    process._collect = told_collect
    Runtime._step, TrainerSide.spawn = told_step, told_spawn


if __name__ == "__main__":
    tell_of(int(sys.argv.pop(1)))
    main()

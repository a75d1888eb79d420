"""The snapshots of a run as they are written: behind the loop's back, and with a word about those that failed."""

import contextlib
from collections.abc import Iterator
from typing import Any

from lastgood import CheckpointManager
from trainer.distributed import say
from trainer.settings import Settings, UsageError


class Saves:
    """Saves one snapshot at a time, and counts how many failed in a row. Use on rank 0 only."""

    def __init__(self, manager: CheckpointManager, settings: Settings) -> None:
        self.manager = manager
        self.settings = settings
        self.failures = 0  # in a row
        self.unconfirmed: int | None = None  # step of the newest save, until it is known how it went
        self.last = False  # nothing makes up for the newest save

    def save(
        self, step: int, last: bool, model: Any, optimizer: Any, rng_state: Any, scaler: Any, extra: dict[str, Any]
    ) -> None:
        """Save the state as it is now. The last one is written before this returns; too many failures end the run."""
        self.settle()
        if not last:
            self.check()
        self.last = last
        blocking = last or self.settings.save_blocking
        try:
            self.manager.save(step, model, optimizer, rng_state, scaler=scaler, extra=extra, blocking=blocking)
            self.unconfirmed = step
        except (OSError, RuntimeError) as error:
            self.failed(step, error)
            self.check()

    def settle(self) -> None:
        """Wait until it is known how the newest save went."""
        step, self.unconfirmed = self.unconfirmed, None
        try:
            self.manager.wait()
        except (OSError, RuntimeError) as error:
            self.failed(step, error)
        else:
            self.failures = self.failures if step is None else 0

    def failed(self, step: int | None, error: Exception) -> None:
        """Count a save that failed, and say so; the last one of a run ends it with status 1."""
        reason = one_line(error)
        if self.last:
            raise SystemExit(f"trainer: save failed at step {step}: {reason}")
        self.failures += 1
        limit = self.settings.save_failures_max
        say(f"warning: save failed at step {step}: {reason}; {self.failures} in a row, {limit} end the run")

    def check(self) -> None:
        """End the run when too many saves in a row have failed: what it computes would be lost."""
        if self.failures >= self.settings.save_failures_max:
            count = f"{self.failures} saves in a row" if self.failures > 1 else "a save"
            raise SystemExit(f"trainer: {count} failed, which is the limit; make room or mend the disk, then go on")

    def close(self) -> None:
        """Wait for the newest save, and let others write here."""
        try:
            self.settle()
        finally:
            self.manager.close()


@contextlib.contextmanager
def open_saves(settings: Settings) -> Iterator[Saves]:
    """The keeper of out_dir's snapshots; at the end the newest one is confirmed."""
    manager = CheckpointManager(settings.out_dir, max_to_keep=settings.max_to_keep)
    try:
        if not settings.eval_only:
            manager.hold()  # two trainers in one folder would undo each other's work
    except OSError as error:
        problem = f"{settings.out_dir} cannot be written ({error.strerror})"
        raise UsageError("out_dir", f"{problem}; choose another") from None
    except RuntimeError as error:
        raise UsageError("out_dir", f"{one_line(error)}; choose another, or end that process") from None
    saves = Saves(manager, settings)
    try:
        yield saves
    finally:
        saves.close()


def one_line(error: BaseException) -> str:
    """An error's text without line breaks."""
    return " ".join(str(error).split())

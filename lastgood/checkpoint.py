"""Save and load the whole state of a run: the part of the library that imports torch, inside the functions that need it."""

import errno
import logging
import operator
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self

from lastgood import contract, keep, naming
from lastgood.choose import choose, newest_first
from lastgood.files import verify_open
from lastgood.ledger import Ledger
from lastgood.loading import load_open
from lastgood.lock import WriterLock
from lastgood.notes import NotedSave, note_fallback
from lastgood.payload import plain_state_dict, refuse_what_would_not_load, restore, telling_line
from lastgood.publish import Published, publish, remove, sweep
from lastgood.rng import capture_rng_state
from lastgood.rungs import Rung, down_to_first_proven, ever_held_one, judge, scan
from lastgood.staging import Staging
from lastgood.verdict import Kind

log = logging.getLogger("lastgood")

STEP_MAX = (1 << 63) - 1
RESERVED = frozenset({"model", "optimizer", "iter_num", "format", "version", "run_id", "scaler", "rng"})
"""Keys of the payload that nobody else may set."""
OWN_NAMES = r"ckpt_(\d{8,})\.pt"  # those that a manager gives, and so may prune: nobody else's files


def save_checkpoint_atomic(payload: Mapping[str, Any], filepath: str | os.PathLike[str]) -> Published:
    """Publish `payload` as a torch file: a reader sees the old snapshot or the whole new one, sealed.

    Raises OSError as the system gave it; MaybeCommittedError (an OSError) when only making it durable failed; and TypeError,
    before anything is written, for values that `torch.load(weights_only=True)` would refuse, naming each and the cure.
    """
    refuse_what_would_not_load(payload)
    return _publish(payload, filepath)


def _publish(payload: Mapping[str, Any], filepath: str | os.PathLike[str]) -> Published:
    import torch

    def write(file: BinaryIO) -> None:
        torch.save(dict(payload), file)

    return publish(filepath, write)


def load_verified(path: str | os.PathLike[str], map_location: Any = "cpu") -> Any:
    """Load one snapshot whose bytes are proven first. Raises RuntimeError with the verdict when they are not usable.

    Nothing in it is executed: `weights_only=True`. What was salvaged is loaded too, though nobody would choose it.
    """
    if os.path.isdir(path):
        raise RuntimeError(f"{os.fspath(path)} is a folder, which torch.load cannot load; what wrote it can")
    with open(path, "rb") as file:
        verdict = verify_open(os.fspath(path), file)
        salvaged = verdict.kind is Kind.INCOMPLETE and verdict.sha256 is not None  # its bytes are good
        if not verdict.usable and not salvaged:
            raise RuntimeError(f"{os.fspath(path)} is {verdict.kind}: {verdict.reason}")
        try:
            return load_open(file, map_location)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - torch raises whatever its reader of pickles and archives comes upon
            raise RuntimeError(
                f"{os.fspath(path)} is {verdict.kind}, but torch will not load it: {telling_line(error)}"
            ) from None


def safe_load_checkpoint(checkpoint_dir: str | os.PathLike[str], map_location: Any = "cpu") -> Any:
    """Load the newest good snapshot of a directory, of those that torch can load.

    Raises RuntimeError when none is good, naming each and why; OSError when the directory cannot be read.
    """
    return _load_newest(checkpoint_dir, scan(checkpoint_dir), map_location)


def _load_newest(checkpoint_dir: str | os.PathLike[str], found: list[Rung], map_location: Any) -> Any:
    candidates = [rung for rung in found if naming.is_for_torch(rung.name) and not os.path.isdir(rung.path)]
    while True:
        rungs = down_to_first_proven(candidates)
        chosen = choose(rungs)
        if chosen is None:
            raise RuntimeError(_none_is_good(checkpoint_dir, rungs))
        try:
            payload = load_verified(chosen.path, map_location)
            break
        except FileNotFoundError:  # somebody rotated it away since it was chosen
            candidates = [rung for rung in candidates if rung.name != chosen.name]
    for name, verdict in [(r.name, r.verdict) for r in rungs[: rungs.index(chosen)] if r.verdict is not None]:
        log.warning("passed over %s: %s, %s", name, verdict.kind, verdict.reason)
    note_fallback(checkpoint_dir, rungs, chosen)
    return payload


def _none_is_good(checkpoint_dir: str | os.PathLike[str], rungs: list[Rung]) -> str:
    if not rungs:
        return f"{os.fspath(checkpoint_dir)} holds no snapshot"
    each = "; ".join(f"{r.name} is {r.verdict.kind} ({r.verdict.reason})" for r in rungs if r.verdict is not None)
    return f"no snapshot in {os.fspath(checkpoint_dir)} is good: {each}"


class CheckpointManager:
    """Saves the whole state of a run into one directory, keeps the newest few, and loads the newest good one.

    `max_to_keep` counts proven snapshots and is at least 2. Old ones go only after the new one was read back and agrees,
    which happens in the background. Under a supervisor, which prunes on its own verdicts, nothing is pruned here.

        with CheckpointManager("out/run") as manager:
            ...
            manager.save(step, model, optimizer)

    What fails in the background is logged at once as an error, and raised by the next `save`, `wait` or `close`.
    """

    def __init__(self, checkpoint_dir: str | os.PathLike[str], max_to_keep: int = 3) -> None:
        self.checkpoint_dir = Path(os.path.abspath(checkpoint_dir))  # wherever the process goes to meanwhile
        self._keep = keep.Keep(last=max_to_keep)
        self._lock = WriterLock(self.checkpoint_dir)
        self._swept = False
        self._staging = Staging()
        self._worker: threading.Thread | None = None
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        """The manager itself, to be closed at the end of the block."""
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Close; an error of the background, which was logged, does not take the place of the block's own."""
        try:
            self.close()
        except Exception:
            if error is None:
                raise

    def save(
        self,
        step: int,
        model: Any,
        optimizer: Any,
        rng_state: dict[str, Any] | None = None,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        extra: Mapping[str, Any] | None = None,
        blocking: bool = True,
    ) -> Path:
        """Publish the state as it is at this call under `ckpt_{step:08d}.pt`; returns that path.

        `step` is the number of optimizer steps done. With `blocking=False` the state is copied, and written behind the
        caller's back; a second save waits for the first. The copy's memory, as many bytes as the state has, is kept for the
        next one until `close`. `extra` is merged into the payload's top level.

        Raises OSError as the system gave it; RuntimeError when another process saves here; TypeError or ValueError for a step
        that is none, and for an `extra` whose name is taken; TypeError for values that `torch.load(weights_only=True)` would
        refuse. The old snapshots are then as they were.
        """
        step = _checked(step)
        if reserved := RESERVED & set(extra or ()):
            raise ValueError(
                f"extra may not hold {', '.join(sorted(reserved))}: the snapshot has its own; call it otherwise"
            )
        self.wait()
        path = self.checkpoint_dir / naming.snapshot_name(step)
        noted = NotedSave(step, path, blocking)
        with noted:
            self.hold()
            payload = self._payload(step, model, optimizer, rng_state, scheduler, scaler, extra or {})
            refuse_what_would_not_load(payload)
            if blocking:
                published = _publish(payload, path)
                self._in_background(path, noted(lambda: self._confirm_and_prune(published, step)))
            else:
                copied = self._staging.copy(payload)
                self._in_background(path, noted(lambda: self._confirm_and_prune(_publish(copied, path), step)))
        return path

    def hold(self) -> None:
        """Take the directory's writer lock now rather than at the first save, and sweep what a killed writer left.

        Raises RuntimeError naming the process that has it, and OSError when the directory cannot be written.
        """
        self.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        self._lock.hold()
        if not self._swept:
            sweep(self.checkpoint_dir, partial(log.warning, "could not remove %s, which a killed writer left: %s"))
            self._swept = True

    def _payload(
        self,
        step: int,
        model: Any,
        optimizer: Any,
        rng_state: Any,
        scheduler: Any,
        scaler: Any,
        extra: Mapping[str, Any],
    ) -> dict[str, Any]:
        return {
            "model": plain_state_dict(model),
            "optimizer": optimizer.state_dict(),
            "model_args": {},
            "iter_num": step,
            "best_val_loss": None,
            "config": {},
            "format": contract.PAYLOAD_FORMAT,
            "version": contract.PAYLOAD_VERSION,
            "run_id": os.environ.get(contract.ENV_RUN_ID),
            "scheduler": scheduler.state_dict() if scheduler is not None else None,
            "scaler": scaler.state_dict() if scaler is not None else None,
            "rng": capture_rng_state() if rng_state is None else rng_state,
            "data": None,
            **extra,
        }

    def _in_background(self, path: Path, work: Callable[[], None]) -> None:
        """Do it in a thread that the process does not end without; at once where no thread can be had."""

        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - carried to the caller's thread, where it is raised
                self._failure = error
                log.error("in the background of saving %s: %s", path, error)  # there may be no next call

        self._worker = threading.Thread(target=guarded, name="lastgood-save")
        try:
            self._worker.start()
        except RuntimeError:
            self._worker = None
            guarded()

    def _confirm_and_prune(self, published: Published, step: int) -> None:
        if os.environ.get(contract.ENV_PRUNES) == "1":
            return
        ledger = Ledger(self.checkpoint_dir, writable=True)
        # Higher ones are of another run that was here before: they neither count nor go.
        found = scan(self.checkpoint_dir, OWN_NAMES)
        own = [rung for rung in found if rung.step is not None and rung.step <= step]
        rungs = newest_first([judge(rung, ledger) for rung in own])
        name = os.path.basename(published.path)
        verdict = next((rung.verdict for rung in rungs if rung.name == name), None)
        if verdict is None or verdict.kind is not Kind.HEALTHY:
            number, reason = (verdict.errno, verdict.reason) if verdict is not None else (None, "it is gone")
            raise OSError(
                number or errno.EIO,
                f"it does not read back as it was written ({reason}); nothing was pruned",
                published.path,
            )
        in_use = {name} | {rung.name for rung in rungs if rung.linked}
        for rung in keep.expendable(rungs, self._keep, in_use):
            try:
                remove(rung.path)
            except OSError as error:
                log.warning("could not prune %s: %s", rung.name, error)

    def wait(self) -> None:
        """Wait for the background work of the last save. Raises what it failed with."""
        if self._worker is not None and self._worker.ident is not None:
            self._worker.join()
        self._worker = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Finish background work and give the directory's writer lock back. Raises what the background work failed with."""
        try:
            self.wait()
        finally:
            self._staging.clear()
            self._lock.release()

    def load_latest(
        self,
        model: Any = None,
        optimizer: Any = None,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        map_location: Any = "cpu",
    ) -> dict[str, Any] | None:
        """Restore the newest good snapshot into what is given, and every RNG; returns its payload.

        Those with names of a manager's count alone where there are any; a save in the background is waited for. What is
        given and is not in it, apart from the model, stays as it is, which is logged as a warning. None only in a directory
        that never had a snapshot. Raises RuntimeError when none of those there is good.
        """
        self.wait()
        if not ever_held_one(self.checkpoint_dir):
            return None
        own = scan(self.checkpoint_dir, OWN_NAMES) or scan(self.checkpoint_dir)
        payload: dict[str, Any] = _load_newest(self.checkpoint_dir, own, map_location)
        restore(payload, model, optimizer, scheduler, scaler)
        return payload

    def load(
        self,
        path: str | os.PathLike[str],
        model: Any = None,
        optimizer: Any = None,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        map_location: Any = "cpu",
    ) -> dict[str, Any]:
        """Restore one snapshot into what is given, and every RNG; returns its payload. Raises RuntimeError when it is bad."""
        payload: dict[str, Any] = load_verified(path, map_location)
        restore(payload, model, optimizer, scheduler, scaler)
        return payload


def _checked(step: Any) -> int:
    """The step as a plain number. Raises TypeError for what is no whole number, ValueError for one that no name can hold."""
    if isinstance(step, bool) or not hasattr(step, "__index__"):
        raise TypeError(f"a step is a whole number, not {step!r} ({type(step).__name__})")
    number = operator.index(step)
    if not 0 <= number <= STEP_MAX:
        raise ValueError(f"a step is from 0 to {STEP_MAX:,}, not {number:,}")
    return number

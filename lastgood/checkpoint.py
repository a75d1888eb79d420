"""Save and load the whole state of a run: the part of the library that imports torch, inside the functions that need it."""

import copy
import errno
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from lastgood import contract, keep, naming
from lastgood.choose import choose, newest_first
from lastgood.files import verify_open
from lastgood.hashing import file_sha256
from lastgood.ledger import Ledger
from lastgood.lock import WriterLock
from lastgood.publish import Published, publish, remove, sweep
from lastgood.rng import capture_rng_state, restore_rng_state
from lastgood.rungs import Rung, down_to_first_proven, ever_held_one, judge, scan
from lastgood.verdict import Kind

log = logging.getLogger("lastgood")

WRAPPER_PREFIXES = ("_orig_mod.", "module.")
"""What torch.compile and (Distributed)DataParallel put before every key."""


def save_checkpoint_atomic(payload: Mapping[str, Any], filepath: str | os.PathLike[str]) -> Published:
    """Publish `payload` as a torch file: a reader sees the old snapshot or the whole new one, sealed.

    Raises OSError as the system gave it; MaybeCommittedError (an OSError) when only making it durable failed.
    """
    import torch

    def write(file: BinaryIO) -> None:
        torch.save(dict(payload), file)

    return publish(filepath, write)


def load_verified(path: str | os.PathLike[str], map_location: Any = "cpu") -> Any:
    """Load one snapshot whose bytes are proven first. Raises RuntimeError with the verdict when they are not usable.

    Nothing in it is executed: `weights_only=True`.
    """
    import torch

    with open(path, "rb") as file:
        verdict = verify_open(os.fspath(path), file)
        if not verdict.usable:
            raise RuntimeError(f"{os.fspath(path)} is {verdict.kind}: {verdict.reason}")
        file.seek(0)
        try:
            return torch.load(file, map_location=map_location, weights_only=True)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - torch raises whatever its reader of pickles and archives comes upon
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise RuntimeError(f"{os.fspath(path)} is {verdict.kind}, but torch will not load it: {reason}") from None


def safe_load_checkpoint(checkpoint_dir: str | os.PathLike[str], map_location: Any = "cpu") -> Any:
    """Load the newest good snapshot of a directory.

    Raises RuntimeError when none is good, naming each and why; OSError when the directory cannot be read.
    """
    rungs = down_to_first_proven(scan(checkpoint_dir))
    chosen = choose(rungs)
    if chosen is None:
        raise RuntimeError(_none_is_good(checkpoint_dir, rungs))
    for rung in rungs[: rungs.index(chosen)]:
        if rung.verdict is not None:
            log.warning("passed over %s: %s, %s", rung.name, rung.verdict.kind, rung.verdict.reason)
    return load_verified(chosen.path, map_location)


def _none_is_good(checkpoint_dir: str | os.PathLike[str], rungs: list[Rung]) -> str:
    if not rungs:
        return f"{os.fspath(checkpoint_dir)} holds no snapshot"
    each = "; ".join(f"{r.name} is {r.verdict.kind} ({r.verdict.reason})" for r in rungs if r.verdict is not None)
    return f"no snapshot in {os.fspath(checkpoint_dir)} is good: {each}"


def plain_state_dict(model: Any) -> dict[str, Any]:
    """The model's state under the names that the plain model has, whatever wrappers are around it."""
    return {_plain_key(key): value for key, value in model.state_dict().items()}


def _plain_key(key: str) -> str:
    for prefix in WRAPPER_PREFIXES:
        if key.startswith(prefix):
            return _plain_key(key.removeprefix(prefix))
    return key


def load_plain_state_dict(model: Any, state: Mapping[str, Any]) -> None:
    """Load a state saved with or without wrappers into a model with or without wrappers. Raises on any other difference."""
    names = {_plain_key(key): key for key in model.state_dict()}
    model.load_state_dict({names.get(_plain_key(key), key): value for key, value in state.items()}, strict=True)


class CheckpointManager:
    """Saves the whole state of a run into one directory, keeps the newest few, and loads the newest good one.

    `max_to_keep` counts proven snapshots and is at least 2. Old ones go only after the new one was read back and agrees,
    which happens in the background. Under a supervisor, which prunes on its own verdicts, nothing is pruned here.
    """

    def __init__(self, checkpoint_dir: str | os.PathLike[str], max_to_keep: int = 3) -> None:
        self.checkpoint_dir = Path(checkpoint_dir)
        self._keep = keep.Keep(last=max_to_keep)
        self._lock = WriterLock(self.checkpoint_dir)
        self._swept = False
        self._worker: threading.Thread | None = None
        self._failure: BaseException | None = None

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

        With `blocking=False` the state is copied, and written behind the caller's back; a second save waits for the first,
        and its failure is raised here at the next call, or by `close`. `extra` is merged into the payload's top level.
        Raises OSError as the system gave it, and RuntimeError when another process saves here.
        """
        self.wait()
        self.hold()
        path = self.checkpoint_dir / naming.snapshot_name(step)
        payload = self._payload(step, model, optimizer, rng_state, scheduler, scaler, extra or {})
        if blocking:
            published = save_checkpoint_atomic(payload, path)
            self._in_background(lambda: self._confirm_and_prune(published))
        else:
            copied = _copied(payload, {})
            self._in_background(lambda: self._confirm_and_prune(save_checkpoint_atomic(copied, path)))
        return path

    def hold(self) -> None:
        """Take the directory's writer lock now rather than at the first save, and sweep what a killed writer left.

        Raises RuntimeError naming the process that has it, and OSError when the directory cannot be written.
        """
        self.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        self._lock.hold()
        if not self._swept:
            sweep(self.checkpoint_dir)
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

    def _in_background(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - carried to the caller's thread, where it is raised
                self._failure = error

        worker = threading.Thread(target=guarded, name="lastgood-save")
        worker.start()
        self._worker = worker

    def _confirm_and_prune(self, published: Published) -> None:
        if os.environ.get(contract.ENV_PRUNES) == "1":
            return
        if file_sha256(published.path) != published.sha256:
            raise OSError(f"{published.path} does not read back as it was written; nothing was pruned")
        ledger = Ledger(self.checkpoint_dir, writable=True)
        step = naming.step_in_name(os.path.basename(published.path))
        # Higher ones are of another run that was here before: they neither count nor go.
        own = [
            rung
            for rung in scan(self.checkpoint_dir, naming_pattern())
            if rung.step is None or rung.step <= (step or 0)
        ]
        rungs = newest_first([judge(rung, ledger) for rung in own])
        name = os.path.basename(published.path)
        verdict = next((rung.verdict for rung in rungs if rung.name == name), None)
        if verdict is None or verdict.kind is not Kind.HEALTHY:
            number, reason = (verdict.errno, verdict.reason) if verdict is not None else (None, "it is gone")
            raise OSError(
                number or errno.EIO,
                f"it does not read back with its seal ({reason}); nothing was pruned",
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
        if self._worker is not None:
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

        None only in a directory that never had a snapshot. Raises RuntimeError when none of those there is good.
        """
        if not ever_held_one(self.checkpoint_dir):
            return None
        payload = safe_load_checkpoint(self.checkpoint_dir, map_location)
        return _restore(payload, model, optimizer, scheduler, scaler)

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
        return _restore(load_verified(path, map_location), model, optimizer, scheduler, scaler)


def naming_pattern() -> str:
    """The names that `CheckpointManager` gives, and so may prune: nobody else's files."""
    return r"ckpt_(\d{8,})\.pt"


def _restore(payload: dict[str, Any], model: Any, optimizer: Any, scheduler: Any, scaler: Any) -> dict[str, Any]:
    if model is not None:
        load_plain_state_dict(model, payload["model"])
    for part, key in ((optimizer, "optimizer"), (scheduler, "scheduler"), (scaler, "scaler")):
        if part is not None and payload.get(key) is not None:
            part.load_state_dict(payload[key])
    if payload.get("rng") is not None:
        restore_rng_state(payload["rng"])
    return payload


def _copied(value: Any, done: dict[Any, Any]) -> Any:
    """A copy on the CPU that later optimizer steps cannot change; tied tensors, remembered in `done`, stay tied."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.numel() == 0:
            return value.detach().to("cpu", copy=True)
        key = (value.untyped_storage().data_ptr(), value.storage_offset(), value.shape, value.stride(), value.dtype)
        if key not in done:
            done[key] = value.detach().to("cpu", copy=True)
        return done[key]
    if isinstance(value, Mapping):
        return {key: _copied(item, done) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_copied(item, done) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_copied(item, done) for item in value)
    return copy.deepcopy(value)

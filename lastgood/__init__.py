"""Snapshots of training runs: name, seal, publish, verify, choose, keep.

Importing this package costs nothing and brings no torch: names are loaded when first used.

    >>> import lastgood
    >>> lastgood.latest_healthy("out/run")              # doctest: +SKIP
    PosixPath('out/run/ckpt_00002000.pt')
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lastgood.checkpoint import CheckpointManager as CheckpointManager
    from lastgood.checkpoint import safe_load_checkpoint as safe_load_checkpoint
    from lastgood.checkpoint import save_checkpoint_atomic as save_checkpoint_atomic
    from lastgood.judging import verify as verify
    from lastgood.publish import MaybeCommittedError as MaybeCommittedError
    from lastgood.rng import capture_rng_state as capture_rng_state
    from lastgood.rng import restore_rng_state as restore_rng_state
    from lastgood.rungs import Rung as Rung
    from lastgood.rungs import ladder as ladder
    from lastgood.rungs import latest_healthy as latest_healthy
    from lastgood.verdict import Verdict as Verdict

_HOME = {
    "CheckpointManager": "checkpoint",
    "MaybeCommittedError": "publish",
    "Rung": "rungs",
    "Verdict": "verdict",
    "capture_rng_state": "rng",
    "ladder": "rungs",
    "latest_healthy": "rungs",
    "restore_rng_state": "rng",
    "safe_load_checkpoint": "checkpoint",
    "save_checkpoint_atomic": "checkpoint",
    "verify": "judging",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lastgood' has no attribute {name!r}")
    value = getattr(import_module(f"lastgood.{_HOME[name]}"), name)
    globals()[name] = value
    return value

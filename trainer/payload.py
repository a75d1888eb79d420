"""What a run puts into a snapshot beside its state, and what a payload must hold for a run to go on from it."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import torch

from trainer.data import characters_of
from trainer.distributed import Ranks
from trainer.model import ModelArgs
from trainer.settings import Settings

NO_LOSS_YET = 1e9  # best_val_loss before the first evaluation, as in nanoGPT

NEEDED = ("model", "optimizer", "model_args", "iter_num")
"""Without these there is nothing to go on with; nanoGPT's snapshots have them too."""
MAPPINGS = ("config", "made_with", "scheduler", "scaler", "rng", "data")
"""These may be absent or null."""


def extras(settings: Settings, args: ModelArgs, folder: str, payload: dict[str, Any]) -> dict[str, Any]:
    """What goes into every snapshot beside the state: the settings, and what is known so far."""
    return {
        "model_args": dataclasses.asdict(args),
        "config": dataclasses.asdict(settings) | {"dataset": os.path.abspath(folder)},  # for nanoGPT's sample.py
        "vocabulary": characters_of(folder),  # for trainer.sample, where the data is not
        "best_val_loss": float(payload.get("best_val_loss") or NO_LOSS_YET),  # nanoGPT's is a tensor
        "evaluated_step": payload.get("evaluated_step", -1),
    }


def made_with(digest: str, device: str, ranks: Ranks) -> dict[str, Any]:
    """What besides the settings decides the last bit of a result."""
    return {
        "data": digest,
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "machine": torch.cuda.get_device_name() if device == "cuda" else torch.backends.cpu.get_cpu_capability(),
        "world_size": ranks.count,
    }


def fault_of(payload: Any) -> str | None:
    """Why this is no payload of this trainer or of nanoGPT, for the file may be anybody's; None when it is one."""
    if not isinstance(payload, Mapping):
        return f"it holds a {type(payload).__name__}"
    if lacking := [name for name in NEEDED if name not in payload]:
        return f"it has no {', '.join(lacking)}"
    step = payload["iter_num"]
    if type(step) is not int or step < 0:
        return f"its iter_num is {step!r}"
    wrong = [name for name in MAPPINGS if not isinstance(payload.get(name) or {}, Mapping)]
    wrong += [name for name in ("skipped", "rng_of_ranks") if not isinstance(payload.get(name) or [], list)]
    if not is_state(payload["model"]):
        wrong.append("model")
    if not is_moments(payload["optimizer"]):
        wrong.append("optimizer")
    if not isinstance(payload["model_args"], Mapping) or type(payload["model_args"].get("vocab_size")) is not int:
        wrong.append("model_args")
    if not is_loss(payload.get("best_val_loss")):
        wrong.append("best_val_loss")
    return f"its {', '.join(wrong)} is of no run" if wrong else None


def is_state(value: Any) -> bool:
    """Whether this may be a model's state: tensors by name."""
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in value.items()
    )


def is_moments(value: Any) -> bool:
    """Whether this may be an optimizer's state: something for each parameter, and the groups that they are in."""
    if not isinstance(value, Mapping) or not isinstance(value.get("state"), Mapping):
        return False
    groups = value.get("param_groups")
    return isinstance(groups, list) and all(
        isinstance(g, Mapping) and isinstance(g.get("params"), list) for g in groups
    )


def is_loss(value: Any) -> bool:
    """Whether this is a number, as a tensor as well, or nothing."""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return value is None or isinstance(value, int | float)


def without_moments(optimizer: torch.optim.Optimizer) -> int:
    """How many parameters have no moments. Raises ValueError for moments of another shape than their parameter."""
    count = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            moments = optimizer.state.get(parameter, {})
            if not {"step", "exp_avg", "exp_avg_sq"} <= moments.keys():
                count += 1
            elif any(moments[name].shape != parameter.shape for name in ("exp_avg", "exp_avg_sq")):
                raise ValueError("its optimizer's moments have other shapes than the weights")
    return count

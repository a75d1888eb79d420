"""Where a run starts, and what a snapshot gives back to it."""

import dataclasses
import functools
import os
import pickle
from collections.abc import Mapping
from typing import Any

from lastgood import CheckpointManager, contract, latest_healthy, restore_rng_state
from lastgood.checkpoint import load_plain_state_dict
from trainer.model import ModelArgs
from trainer.settings import Settings, UsageError

SCHEDULE_KEYS = ("learning_rate", "decay_lr", "warmup_iters", "lr_decay_iters", "min_lr")
# Settings that decide what a step computes: change one and it is another run from there on.
EXACT_KEYS = (
    *SCHEDULE_KEYS,
    "gradient_accumulation_steps",
    "batch_size",
    "dropout",
    "weight_decay",
    "beta1",
    "beta2",
    "grad_clip",
    "device",
    "dtype",
    "compile",
    "seed",
)

say = functools.partial(print, flush=True)  # whoever watches the output sees a line as soon as it is printed


def follow_supervisor(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """Save where the supervisor looks."""
    wanted = environ.get(contract.ENV_CHECKPOINT_DIR)
    if environ.get(contract.ENV_SUPERVISED) != "1" or not wanted:
        return settings
    if os.path.abspath(wanted) != os.path.abspath(settings.out_dir):
        say(f"supervised: snapshots go to {wanted}, not to out_dir {settings.out_dir}")
    return dataclasses.replace(settings, out_dir=wanted)


def where_to_start(settings: Settings, environ: Mapping[str, str]) -> str:
    """The path of a snapshot, "auto" or "never". A supervisor decides; without one, the settings do."""
    given = environ.get(contract.ENV_RESUME_FROM)
    if given and not os.path.isfile(given):
        raise UsageError("", f"{contract.ENV_RESUME_FROM}: {given} is not a file; name a snapshot or unset it")
    if given:
        return given
    if environ.get(contract.ENV_SUPERVISED) == "1":
        return "never"
    if settings.resume not in ("auto", "never") and not os.path.isfile(settings.resume):
        problem = f"{settings.resume} is not a file"
        raise UsageError("resume", f"{problem}; give auto, never or the path of a snapshot")
    return settings.resume


def load(manager: CheckpointManager, start: str) -> dict[str, Any]:
    """The payload to go on with, its bytes verified; empty for a fresh start."""
    if start == "never":
        older = latest_healthy(manager.checkpoint_dir)
        if older is not None:
            say(f"warning: {older} is of an earlier run, and resume: auto would take it; use another out_dir")
        return {}
    try:
        payload = manager.load_latest() if start == "auto" else manager.load(start)
    except (OSError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        raise SystemExit(f"trainer: cannot resume: {one_line(error)}") from None
    needed = {"model", "optimizer", "model_args", "iter_num"}
    if payload is not None and not (isinstance(payload, dict) and needed <= payload.keys()):
        raise SystemExit(f"trainer: cannot resume: {start}: not a snapshot of this trainer or of nanoGPT")
    return payload or {}


def shape_of_model(settings: Settings, vocab_size: int, payload: dict[str, Any]) -> ModelArgs:
    """The model to build; refused if the snapshot holds another one."""
    names = [field.name for field in dataclasses.fields(ModelArgs) if field.name != "vocab_size"]
    args = {name: getattr(settings, name) for name in names} | {"vocab_size": vocab_size}
    theirs = payload.get("model_args", args)
    different = [
        f"{name} is {theirs.get(name)} there, {args[name]} here"
        for name in names
        if name != "dropout" and theirs.get(name) != args[name]
    ]
    if different:
        key = different[0].split()[0]
        problem = f"the snapshot is of another model: {', '.join(different)}"
        raise UsageError(key, f"{problem}; change it back, or give this run another out_dir")
    known = theirs.get("vocab_size", vocab_size)
    if known < vocab_size:
        problem = f"the data has {vocab_size} different tokens, the snapshot's model knows only {known}"
        raise UsageError("data", f"{problem}; give the data it was trained on")
    return ModelArgs(**args | {"vocab_size": known})


def restore(payload: dict[str, Any], model: Any, optimizer: Any, scaler: Any, settings: Settings) -> None:
    """Put a payload's state into what was built; random numbers last, for building has drawn some."""
    try:
        load_plain_state_dict(model, payload["model"])
        optimizer.load_state_dict(payload["optimizer"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise SystemExit(f"trainer: cannot resume: the snapshot does not fit: {one_line(error)}") from None
    for group in optimizer.param_groups:  # the snapshot brought its own settings along: today's win
        group["betas"] = (settings.beta1, settings.beta2)
    optimizer.param_groups[0]["weight_decay"] = settings.weight_decay
    if payload.get("scaler"):
        scaler.load_state_dict(payload["scaler"])
    if payload.get("rng"):
        restore_rng_state(payload["rng"])


def resume_line(payload: dict[str, Any], with_scaler: bool) -> str:
    """What was found in the snapshot, in one line."""
    parts = {
        "model": "model",
        "optimizer": "optimizer",
        "rng": "random numbers",
        "data": "data position",
        "best_val_loss": "best loss",
    }
    if with_scaler:
        parts["scaler"] = "scaler"
    found = [name for key, name in parts.items() if payload.get(key) is not None]
    missing = [name for key, name in parts.items() if payload.get(key) is None]
    restored = f"restored: {', '.join(found)}; missing: {', '.join(missing) or 'nothing'}"
    return f"resumed at step {payload['iter_num']}; {restored}"


def warn_of_changes(payload: dict[str, Any], extra: dict[str, Any]) -> None:
    """Say in one line what keeps this from being exactly the run that would not have been interrupted."""
    before = {key: payload.get("config", {}).get(key) for key in EXACT_KEYS} | payload.get("made_with", {})
    now = {key: extra["config"][key] for key in EXACT_KEYS} | extra["made_with"]
    changes = [f"{key} was {before.get(key)}, is {value}" for key, value in now.items() if before.get(key) != value]
    if not now["deterministic"]:
        changes.append("deterministic is off")
    if changes:
        say(f"warning: not exactly the run as it would have gone on: {'; '.join(changes)}")


def one_line(error: BaseException) -> str:
    """An error's text without line breaks."""
    return " ".join(str(error).split())

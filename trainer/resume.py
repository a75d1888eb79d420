"""Where a run starts, and what a snapshot gives back to it."""

import dataclasses
import os
import pickle
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from lastgood import CheckpointManager, contract, restore_rng_state
from lastgood.payload import load_plain_state_dict
from lastgood.rungs import scan
from trainer.data import GPT2_VOCABULARY, characters_of
from trainer.distributed import Ranks, say
from trainer.model import ModelArgs, without_masks
from trainer.payload import NO_LOSS_YET, fault_of, without_moments
from trainer.saving import one_line
from trainer.settings import GPT2_SHAPES, NoSnapshotError, Settings, UsageError

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


def follow_supervisor(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """Save where the supervisor looks."""
    wanted = environ.get(contract.ENV_CHECKPOINT_DIR)
    if environ.get(contract.ENV_SUPERVISED) != "1" or not wanted:
        return settings
    if os.path.abspath(wanted) != os.path.abspath(settings.out_dir):
        say(f"supervised: snapshots go to {wanted}, not to out_dir {settings.out_dir}")
    return dataclasses.replace(settings, out_dir=wanted)


def where_to_start(settings: Settings, environ: Mapping[str, str]) -> str:
    """The path of a snapshot, "auto" or "never": a supervisor's word, else the settings' if it leaves that to the trainer."""
    given = environ.get(contract.ENV_RESUME_FROM)
    if given and not os.path.isfile(given):
        raise UsageError("", f"{contract.ENV_RESUME_FROM}: {given} is not a file; name a snapshot or unset it")
    if given:
        return given
    if settings.resume not in ("auto", "never"):
        if not os.path.isfile(settings.resume):
            problem = f"{settings.resume} is not a file"
            raise UsageError("resume", f"{problem}; give auto, never or the path of a snapshot")
        return settings.resume
    decides = environ.get(contract.ENV_SUPERVISED) == "1" and environ.get(contract.ENV_RESUME) != "self"
    return "never" if decides else settings.resume


def load(
    manager: CheckpointManager, start: str, settings: Settings, world_size: int, environ: Mapping[str, str]
) -> dict[str, Any]:
    """The payload to go on with, its bytes verified; empty for a fresh start. Refused if other ranks have a part of it."""
    try:
        payload = read(manager, start, given=start == environ.get(contract.ENV_RESUME_FROM))
    except (OSError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        folder = manager.checkpoint_dir if start == "auto" else os.path.dirname(os.path.abspath(start))
        raise NoSnapshotError(
            f"cannot resume: {one_line(error)}; `lastgood list {folder}` says what is there"
        ) from None
    if payload is None and settings.init_from == "resume":
        problem = f"resume, but {settings.out_dir} holds no snapshot to go on with"
        raise UsageError("init_from", f"{problem}; leave init_from out to begin anew, or name another out_dir")
    if payload is not None and (fault := fault_of(payload)):
        what = f"the newest good file in {settings.out_dir}" if start == "auto" else start
        problem = f"{what} is not a snapshot of this trainer or of nanoGPT: {fault}"
        raise UsageError("", f"{problem}; name one with --resume=PATH, or another out_dir")
    payload = payload or {}
    if environ.get(contract.ENV_SUPERVISED) != "1" and not settings.eval_only:
        warn_of_newer(manager, payload.get("iter_num", -1))
    theirs = (payload.get("made_with") or {}).get("world_size", world_size)
    if theirs != world_size:
        problem = f"the snapshot is of a run of {theirs} processes, this is one of {world_size}"
        cure = f"torchrun --nproc-per-node={theirs} -m trainer ..." if theirs > 1 else "python -m trainer ..."
        raise UsageError("", f"{problem}, whose random numbers it does not have; start it with {cure}")
    return payload


def read(manager: CheckpointManager, start: str, given: bool) -> Any:
    """What is in the snapshot to start from; None without one. Of a supervisor's choice gone bad an older one takes the place.

    The library notes that, and the supervisor makes a record of it. A person's choice has no other. Raises RuntimeError when
    none is good.
    """
    if start in ("auto", "never"):
        return manager.load_latest() if start == "auto" else None
    try:
        return manager.load(start)
    except RuntimeError as error:
        if not given:
            raise
        say(f"warning: {one_line(error)}; looking for an older one")
        return manager.load_latest()


def warn_of_newer(manager: CheckpointManager, step: int) -> None:
    """A start that leaves newer snapshots where they are is undone by the next one that is left to itself."""
    try:
        found = scan(manager.checkpoint_dir)
    except OSError:
        return
    newest = next((rung for rung in found if rung.step is not None), None)
    if newest is not None and newest.step is not None and newest.step > step:
        say(f"warning: {newest.path} is newer, and resume: auto would take it; use another out_dir")


def shape_of_model(settings: Settings, folder: str, vocab_size: int, payload: dict[str, Any]) -> ModelArgs:
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
    characters, ours = payload.get("vocabulary"), characters_of(folder)
    if isinstance(characters, str) and ours is not None and not characters.startswith(ours):
        problem = "its characters are not those that the snapshot's model knows, in their order"
        raise UsageError("data", f"{problem}; give the data it was trained on, or this run another out_dir")
    known = theirs["vocab_size"] if payload else fresh_vocabulary(settings, vocab_size)
    if known < vocab_size:
        problem = f"the data has {vocab_size} different tokens, the snapshot's model knows only {known}"
        raise UsageError("data", f"{problem}; give the data it was trained on")
    return ModelArgs(**args | {"vocab_size": known})


def fresh_vocabulary(settings: Settings, vocab_size: int) -> int:
    """How many tokens a new model is to know: GPT-2's number with its weights, else rounded up for speed as nanoGPT does."""
    if settings.init_from not in GPT2_SHAPES:
        return ModelArgs.vocab_size if vocab_size == GPT2_VOCABULARY else vocab_size
    if vocab_size != GPT2_VOCABULARY:
        problem = f"its {vocab_size} different tokens are not those of {settings.init_from}'s encoding"
        raise UsageError("data", f"{problem}; give train.bin and val.bin that were encoded with it")
    return GPT2_VOCABULARY


@dataclasses.dataclass
class Restored:
    """What a payload gave back to this process: the parts found, and those that were not there."""

    found: list[str] = dataclasses.field(default_factory=list)
    missing: list[str] = dataclasses.field(default_factory=list)


def restore(payload: dict[str, Any], model: Any, optimizer: Any, scaler: Any, ranks: Ranks) -> Restored:
    """Put a payload's state into what was built. The random generators come last, for building has drawn from them."""
    if not payload:
        return Restored()
    try:
        load_plain_state_dict(model, without_masks(payload["model"]))
        load_moments(optimizer, payload["optimizer"])
        fresh = without_moments(optimizer) if payload["iter_num"] else 0
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        problem = f"the snapshot does not fit: {one_line(error)[:300]}"
        raise UsageError("", f"{problem}; name another with --resume=PATH, or another out_dir") from None
    if payload.get("scaler"):
        scaler.load_state_dict(payload["scaler"])
    rng = payload["rng_of_ranks"][ranks.rank] if payload.get("rng_of_ranks") else payload.get("rng")
    generators = restore_rng_state(rng) if rng else []
    device = next(model.parameters()).device.type
    restored = Restored(*parts_of(payload, generators, scaler.is_enabled(), device))
    if fresh:
        restored.missing.append(f"moments of {fresh} of the model's tensors")
    if any(tensor.dtype != torch.float32 for tensor in payload["model"].values() if tensor.is_floating_point()):
        restored.missing.append("weights in float32")
    return restored


def go_on(payload: dict[str, Any], restored: Restored, extra: dict[str, Any], ranks: Ranks) -> int:
    """Say what was in a payload and whether this is exact on every rank, and note that in `extra`; returns the step."""
    step = payload.get("iter_num", 0)
    reasons = [f"no {name}" for name in restored.missing] + changes_of(payload, extra)
    if not extra["made_with"]["deterministic"]:
        reasons.append("deterministic is off")
    ahead = [stretch for stretch in extra["skipped"] if stretch[1] > step]
    if Counter(map(tuple, ahead)) - Counter(map(tuple, payload.get("skipped", []))):
        reasons.append(f"{contract.ENV_SKIP_STEPS} is new")
    reasons = list(dict.fromkeys(reason for ours in ranks.objects(reasons) for reason in ours))
    since = payload.get("inexact_since")
    extra["inexact_since"] = step if since is None and reasons else since
    exact = f"exact: {str(extra['inexact_since'] is None).lower()}"
    if not payload:
        say(f"starting at step 0; {exact}")
    else:
        missing = ", ".join(restored.missing) or "nothing"
        say(f"resumed at step {step}; restored: {', '.join(restored.found)}; missing: {missing}; {exact}")
        if reasons:
            say(f"warning: not exactly the run as it would have gone on: {'; '.join(reasons)}")
    for first, last in ahead:
        say(f"skipping the data of steps {first} to {last}: other batches take their place")
    return step


def load_moments(optimizer: Any, state: dict[str, Any]) -> None:
    """Load an optimizer's state; of its settings today's win. Raises ValueError when it is of other parameters."""
    ours = optimizer.state_dict()["param_groups"]
    if [group["params"] for group in ours] != [group["params"] for group in state["param_groups"]]:
        raise ValueError("its optimizer has other parameters")
    optimizer.load_state_dict({"state": state["state"], "param_groups": ours})


def parts_of(
    payload: dict[str, Any], generators: list[str], with_scaler: bool, device: str
) -> tuple[list[str], list[str]]:
    """What was found in a payload, and what was not."""
    wanted = ["torch", "numpy", "python"] + ["cuda"] * (device != "cpu")
    lost = [name for name in wanted if name not in generators]
    schedule = payload.get("scheduler") or payload.get("config") or {}
    parts = {
        "model": payload["model"],
        "optimizer": payload["optimizer"],
        "schedule": schedule if schedule.keys() >= set(SCHEDULE_KEYS) else None,
        "scaler": payload.get("scaler"),
        "random numbers": generators or None,
        "data position": payload.get("data"),
        "best loss": payload.get("best_val_loss"),
    }
    if parts["best loss"] == NO_LOSS_YET:
        del parts["best loss"]
    if not with_scaler:
        del parts["scaler"]
    missing = [name for name, value in parts.items() if value is None]
    if generators and lost:
        missing.append(f"random numbers of {', '.join(lost)}")
    return [name for name, value in parts.items() if value is not None], missing


def changes_of(payload: dict[str, Any], extra: dict[str, Any]) -> list[str]:
    """What decides a result and is no longer as it was when the snapshot was made."""
    config = payload.get("config") or {}
    before = {key: config[key] for key in EXACT_KEYS if key in config} | (payload.get("made_with") or {})
    now = {key: extra["config"][key] for key in EXACT_KEYS} | extra["made_with"]
    del now["deterministic"]  # off, it is named anyway; on, nothing that was exact before changes
    return [f"{key} was {before[key]}, is {value}" for key, value in now.items() if before.get(key, value) != value]


def stretches_told(payload: dict[str, Any], environ: Mapping[str, str]) -> list[list[int]]:
    """The stretches of steps whose data is to be skipped: those that the snapshot knows, and those told now."""
    told = []
    for word in filter(None, map(str.strip, environ.get(contract.ENV_SKIP_STEPS, "").split(","))):
        match = re.fullmatch(r"(\d{1,18})-(\d{1,18})", word)
        if not match or not 0 < int(match[1]) <= int(match[2]):
            problem = f"{word!r} is not understood; write first-last, such as 120-140"
            raise UsageError("", f"{contract.ENV_SKIP_STEPS}: {problem}, or unset it")
        told.append((int(match[1]), int(match[2])))
    known = Counter(map(tuple, payload.get("skipped", [])))
    return [list(stretch) for stretch in sorted((known | Counter(told)).elements())]

"""The training loop: from settings to an exit status, top to bottom.

A step is one optimizer update. What step k does depends only on the settings, the data and the state after
step k - 1, and a snapshot holds all of that state: a run that was killed and resumed computes what an
unbroken one computes. Evaluation reads fixed batches of its own and draws no random numbers, and saving goes
by the step, so neither changes a weight.
"""

import contextlib
import dataclasses
import math
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from lastgood import CheckpointManager, contract
from trainer.data import batch, batch_seed, open_data, prepare
from trainer.metrics import open_metrics, record
from trainer.model import GPT
from trainer.resume import (
    SCHEDULE_KEYS,
    follow_supervisor,
    load,
    one_line,
    restore,
    resume_line,
    say,
    shape_of_model,
    warn_of_changes,
    where_to_start,
)
from trainer.settings import Settings, UsageError

NO_LOSS_YET = 1e9  # best_val_loss before the first evaluation, as in nanoGPT
STRIKES = 2  # under a loss scaler a non-finite loss may be its search for a scale; two in a row are divergence


def train(settings: Settings) -> int:
    """Train up to max_iters and give the exit status."""
    settings = follow_supervisor(settings, os.environ)
    set_up_torch(settings)
    start = where_to_start(settings, os.environ)
    folder = prepare(settings)
    splits, vocab_size, digest = open_data(folder, settings.block_size)
    made_with = {
        "data": digest,
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    with (
        caught_signals() as stop,
        open_manager(settings) as manager,
        open_metrics(settings.out_dir) as metrics,
    ):
        payload = load(manager, start)
        args = shape_of_model(settings, vocab_size, payload)
        seed_everything(settings.seed)
        model: Any = GPT(args).to(settings.device)
        betas = (settings.beta1, settings.beta2)
        optimizer = model.configure_optimizer(settings.weight_decay, settings.learning_rate, betas)
        scaler = torch.amp.GradScaler(device_type(settings), enabled=settings.dtype == "float16")
        say(
            f"{model.count_parameters():,} parameters, {vocab_size} tokens in the vocabulary, "
            f"{made_with['threads']} threads, snapshots in {settings.out_dir}"
        )
        extra = {
            "model_args": dataclasses.asdict(args),
            "config": dataclasses.asdict(settings) | {"dataset": os.path.abspath(folder)},  # for nanoGPT's sample.py
            "made_with": made_with,
            "best_val_loss": payload.get("best_val_loss") or NO_LOSS_YET,
            "evaluated_step": payload.get("evaluated_step", -1),
        }
        if payload:
            restore(payload, model, optimizer, scaler, settings)
            say(resume_line(payload, scaler.is_enabled()))
            warn_of_changes(payload, extra)
        if settings.compile:
            model = torch.compile(model)
        step = payload.get("iter_num", 0)
        payload.clear()  # its tensors have been copied
        return loop(settings, step, splits, model, optimizer, scaler, manager, metrics, extra, stop)


def loop(
    settings: Settings,
    step: int,
    splits: dict[str, np.ndarray],
    model: Any,
    optimizer: Any,
    scaler: Any,
    manager: CheckpointManager,
    metrics: int,
    extra: dict[str, Any],
    stop: list[int],
) -> int:
    """Evaluate and save what is due at this step, then update; until max_iters, a signal or divergence."""
    first = saved = step
    strikes = 0
    while True:
        if is_due(step, settings.eval_interval) and step != extra["evaluated_step"]:
            evaluate(model, splits, settings, step, extra, stop)
        if step != saved and (is_due(step, settings.save_interval) or step >= settings.max_iters or stop):
            save(manager, step, model, optimizer, scaler, settings, extra)
            saved = step
        if step >= settings.max_iters:
            return 0
        if stop:
            return 128 + stop[0]
        step += 1
        started = time.perf_counter()
        loss, norm = update(model, optimizer, scaler, splits["train"], settings, step)
        seconds = time.perf_counter() - started
        finite = math.isfinite(loss) and (math.isfinite(norm) or scaler.is_enabled())
        strikes = 0 if finite else strikes + 1
        if strikes == (STRIKES if scaler.is_enabled() else 1):
            say(f"diverged at step {step}: loss {loss}, gradient norm {norm}; nothing is saved")
            return contract.EXIT_DIVERGED
        sequences = settings.gradient_accumulation_steps * settings.batch_size
        speed = sequences * settings.block_size / seconds
        record(metrics, step, loss, norm, learning_rate(settings, step), speed)
        if is_due(step, settings.log_interval) or step == first + 1:
            mfu = model.estimate_mfu(sequences, seconds)
            say(f"iter {step}: loss {loss:.4f}, time {seconds * 1000:.2f}ms, mfu {mfu * 100:.2f}%")


def is_due(step: int, interval: int) -> bool:
    """Whether something that happens every `interval` steps (0: never) happens at this one."""
    return interval > 0 and step % interval == 0


def update(
    model: Any, optimizer: Any, scaler: Any, tokens: np.ndarray, settings: Settings, step: int
) -> tuple[float, float]:
    """Update number `step`, counted from 1: the mean loss and the norm of the gradient before clipping.

    Without a loss scaler nothing is updated when either is not finite: the weights stay as good as they were.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(settings, step)
    total = torch.zeros((), device=settings.device)
    for micro_step in range(settings.gradient_accumulation_steps):
        seed = batch_seed(settings.seed, "train", step, micro_step)
        loss = loss_of(model, tokens, settings, seed) / settings.gradient_accumulation_steps
        scaler.scale(loss).backward()
        total += loss.detach()
    scaler.unscale_(optimizer)
    limit = settings.grad_clip or math.inf
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), limit))
    mean_loss = float(total)
    if scaler.is_enabled() or math.isfinite(mean_loss + norm):
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return mean_loss, norm


def loss_of(model: Any, tokens: np.ndarray, settings: Settings, seed: int) -> torch.Tensor:
    """The model's mean loss on one batch."""
    inputs, targets = batch(tokens, settings.batch_size, settings.block_size, seed)
    if device_type(settings) == "cuda":  # copy while the device works on what came before
        inputs, targets = inputs.pin_memory(), targets.pin_memory()
    inputs = inputs.to(settings.device, non_blocking=True)
    targets = targets.to(settings.device, non_blocking=True)
    with torch.autocast(device_type(settings), getattr(torch, settings.dtype), enabled=settings.dtype != "float32"):
        return model(inputs, targets)[1]


def learning_rate(settings: Settings, step: int) -> float:
    """The learning rate of update `step`, counted from 1; nanoGPT counts its iterations from 0."""
    iteration = step - 1
    if not settings.decay_lr:
        return settings.learning_rate
    if iteration < settings.warmup_iters:
        return settings.learning_rate * (iteration + 1) / (settings.warmup_iters + 1)
    if iteration > settings.lr_decay_iters:
        return settings.min_lr
    share = (iteration - settings.warmup_iters) / (settings.lr_decay_iters - settings.warmup_iters)
    height = 0.5 * (1.0 + math.cos(math.pi * share))  # from 1 down to 0
    return settings.min_lr + height * (settings.learning_rate - settings.min_lr)


@torch.no_grad()
def evaluate(
    model: Any,
    splits: dict[str, np.ndarray],
    settings: Settings,
    step: int,
    extra: dict[str, Any],
    stop: list[int],
) -> None:
    """Print the mean loss of each split over fixed batches and note the best; given up when asked to stop."""
    model.eval()
    losses = {}
    for split, tokens in splits.items():
        total = 0.0
        for number in range(settings.eval_iters):
            if stop:
                break
            seed = batch_seed(settings.seed, f"eval {split}", number)
            total += float(loss_of(model, tokens, settings, seed))
        losses[split] = total / settings.eval_iters
    model.train()
    if stop:
        return
    say(f"step {step}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
    extra["best_val_loss"] = min(losses["val"], extra["best_val_loss"])
    extra["evaluated_step"] = step


def save(
    manager: CheckpointManager,
    step: int,
    model: Any,
    optimizer: Any,
    scaler: Any,
    settings: Settings,
    extra: dict[str, Any],
) -> None:
    """Publish a snapshot of everything the next step depends on."""
    position = {"seed": settings.seed, "step": step, "digest": extra["made_with"]["data"]}
    schedule = {"step": step} | {key: getattr(settings, key) for key in SCHEDULE_KEYS}
    extra = extra | {"data": position, "scheduler": schedule}
    try:
        manager.save(step, model, optimizer, scaler=scaler if scaler.is_enabled() else None, extra=extra)
    except (OSError, RuntimeError) as error:
        raise SystemExit(f"trainer: save failed at step {step}: {one_line(error)}") from None


def device_type(settings: Settings) -> str:
    """The device without its number: "cpu" or "cuda"."""
    return settings.device.partition(":")[0]


def set_up_torch(settings: Settings) -> None:
    """Check that the device is there, and set what is set once for a whole process."""
    if device_type(settings) == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(settings.device.partition(":")[2] or 0) >= count:
            problem = f"{settings.device} is not there, torch sees {count} GPUs"
            raise UsageError("device", f"{problem}; use device: cpu")
        if settings.dtype == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False):
            problem = f"bfloat16 is not supported by {settings.device}"
            raise UsageError("dtype", f"{problem}; use float16 or float32")
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats itself only with this
    if settings.threads:
        torch.set_num_threads(settings.threads)
    deterministic = settings.deterministic if settings.deterministic is not None else settings.device == "cpu"
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # costs time, and nothing here reads such memory
    torch.set_float32_matmul_precision("high")  # TF32 where the GPU has it


def seed_everything(seed: int) -> None:
    """Every global random generator starts from the seed, so that equal runs have equal snapshots."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # it takes no more than 32 bits


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """SIGTERM and SIGINT only leave their number in the list: the step in hand and the save are finished."""
    stop: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda number, _: stop.append(number)) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def open_manager(settings: Settings) -> Iterator[CheckpointManager]:
    """The keeper of out_dir's snapshots; at the end its background work is waited for."""
    manager = CheckpointManager(settings.out_dir, max_to_keep=settings.max_to_keep)
    try:
        manager.hold()  # two trainers in one folder would undo each other's work
    except OSError as error:
        raise UsageError(
            "out_dir", f"{settings.out_dir} cannot be written ({error.strerror}); choose another"
        ) from None
    except RuntimeError as error:
        raise UsageError("out_dir", f"{one_line(error)}; choose another, or end that process") from None
    try:
        yield manager
    finally:
        try:
            manager.close()
        except OSError as error:
            raise SystemExit(f"trainer: save failed: {one_line(error)}") from None

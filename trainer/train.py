"""The training loop: from settings to an exit status, top to bottom.

A step is one optimizer update. What step k does depends only on the settings, the data and the state after
step k - 1, and a snapshot holds all of that state: a run that was killed and resumed computes what an
unbroken one computes. Evaluation reads fixed batches of its own and draws no random numbers, and saving goes
by the step, so neither changes a weight. Several processes (see `trainer.distributed`) share out the
micro-batches of a step; whatever ends or turns the run is agreed among them.
"""

import contextlib
import dataclasses
import math
import os
import signal
import time
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from lastgood import capture_rng_state, contract, restore_rng_state
from lastgood.notes import note_ending
from trainer.data import batch, batch_seed, open_data, prepare
from trainer.distributed import Ranks, joined, place, say
from trainer.gpt2 import load_gpt2
from trainer.metrics import Metrics, open_metrics
from trainer.model import GPT
from trainer.payload import extras, made_with
from trainer.progress import Told, shown
from trainer.resume import (
    SCHEDULE_KEYS,
    follow_supervisor,
    go_on,
    load,
    restore,
    shape_of_model,
    stretches_told,
    where_to_start,
)
from trainer.saving import Saves, open_saves
from trainer.settings import GPT2_SHAPES, Settings
from trainer.setup import caught_signals, device_type, seed_everything, set_up_torch

STRIKES = 2  # under a loss scaler one loss that is not finite is a skipped update; two in a row are divergence
SKIPS = 20  # updates in a row that a loss scaler may skip while it seeks its scale; from 65536 that is down to 1/16


@dataclasses.dataclass(frozen=True)
class Run:
    """What the functions of the loop share. `extra` goes into every snapshot; `saves` and `metrics` only rank 0 has."""

    settings: Settings
    ranks: Ranks
    splits: dict[str, np.ndarray]
    plain_model: GPT
    model: Any  # the same, compiled and shared among the ranks as the settings say
    optimizer: Any
    scaler: Any
    extra: dict[str, Any]
    stop: list[int]  # signals that came to this process
    saves: Saves | None
    metrics: Metrics | None


def train(settings: Settings) -> int:
    """Train up to max_iters and give the exit status."""
    settings = follow_supervisor(settings, os.environ)
    ranks = place(os.environ)
    set_up_torch(settings, ranks)
    with joined(ranks, settings):
        return train_joined(settings, ranks)


def train_joined(settings: Settings, ranks: Ranks) -> int:
    """What `train` does once the ranks can exchange things."""
    start, folder = ranks.first(lambda: (where_to_start(settings, os.environ), prepare(settings)))
    splits, vocab_size, digest = ranks.together(lambda: open_data(folder, settings.block_size))
    with caught_signals() as stop, contextlib.ExitStack() as outputs:
        saves, metrics = ranks.together(lambda: open_outputs(settings, ranks, outputs))
        payload = ranks.first(lambda: load(saves.manager, start, settings, ranks.count, os.environ) if saves else {})
        args = ranks.together(lambda: shape_of_model(settings, folder, vocab_size, payload))
        seed_everything(settings.seed)
        model = GPT(args).to(settings.device)
        betas = (settings.beta1, settings.beta2)
        optimizer = model.configure_optimizer(settings.weight_decay, settings.learning_rate, betas)
        scaler = torch.amp.GradScaler(device_type(settings), enabled=settings.dtype == "float16")
        if ranks.rank > 0:  # each draws its own dropout
            seed_everything(batch_seed(settings.seed, "rank", ranks.rank))
        skipped = ranks.first(lambda: stretches_told(payload, os.environ))
        extra = extras(settings, args, folder, payload) | {
            "made_with": made_with(digest, device_type(settings), ranks),
            "skipped": skipped,
        }
        processes = f"{ranks.count} processes of " if ranks.count > 1 else ""
        say(
            f"{model.count_parameters():,} parameters, {vocab_size} tokens in the vocabulary, "
            f"{processes}{torch.get_num_threads()} threads, snapshots in {settings.out_dir}"
        )
        restored = ranks.together(lambda: restore(payload, model, optimizer, scaler, ranks))
        step = go_on(payload, restored, extra, ranks)
        if not payload and settings.init_from in GPT2_SHAPES:
            ranks.together(lambda: load_gpt2(model, settings))
            say(f"weights of {settings.init_from} from {settings.gpt2_dir}")
        payload.clear()  # its tensors have been copied
        wrapped = wrap(model, settings, ranks, splits["train"])
        run = Run(settings, ranks, splits, model, wrapped, optimizer, scaler, extra, stop, saves, metrics)
        if settings.eval_only:
            evaluate(run, step)
            number = asked_to_stop(run)
            return 128 + number if number else 0
        sequences = settings.gradient_accumulation_steps * settings.batch_size
        with shown(settings, step, lambda seconds: model.estimate_mfu(sequences, seconds * ranks.count)) as told:
            status = loop(run, step, told)
        ranks.together(outputs.close)  # the last save is confirmed
        return status


def open_outputs(
    settings: Settings, ranks: Ranks, outputs: contextlib.ExitStack
) -> tuple[Saves | None, Metrics | None]:
    """The snapshots and the metrics, which are rank 0's to write; a run that only evaluates writes neither."""
    if ranks.rank > 0:
        return None, None
    saves = outputs.enter_context(open_saves(settings))
    return saves, None if settings.eval_only else outputs.enter_context(open_metrics(settings.out_dir))


def wrap(model: GPT, settings: Settings, ranks: Ranks, tokens: np.ndarray) -> Any:
    """Compile the model and let the ranks average its gradients, as the settings and the number of ranks say."""
    wrapped: Any = torch.compile(model) if settings.compile else model
    if ranks.count == 1:
        return wrapped
    wrapped = DistributedDataParallel(wrapped)
    # Its first backward pass decides in which portions gradients travel, and so how they are rounded from then on: let it be
    # this one, whose gradients are thrown away, or a resumed run's first step would be rounded unlike the unbroken run's.
    state = capture_rng_state()
    loss_of(wrapped, tokens, settings, batch_seed(settings.seed, "wrap", ranks.rank)).backward()
    model.zero_grad(set_to_none=True)
    restore_rng_state(state)
    return wrapped


def loop(run: Run, step: int, told: Told) -> int:
    """Evaluate and save what is due at this step, then update and tell; until max_iters, a signal or divergence."""
    settings = run.settings
    saved = step
    strikes = skips = 0  # losses, and updates, in a row that were not finite
    while True:
        save_seconds = None  # that training stood still for the save before this step, if there was one
        if is_due(step, settings.eval_interval) and step != run.extra["evaluated_step"]:
            evaluate(run, step)
        number = asked_to_stop(run)
        ends = step >= settings.max_iters or number > 0
        if strikes and step >= settings.max_iters:
            return diverged(run, step, "its loss is not finite, and it is the last one")
        if step != saved and not strikes and (is_due(step, settings.save_interval) or ends):
            if not has_finite_weights(run.plain_model):
                return diverged(run, step, "weights are not finite")
            started = time.perf_counter()
            save(run, step, ends)
            saved, save_seconds = step, time.perf_counter() - started
        if ends:
            return ended(run, step, saved, number)
        step += 1
        started = time.perf_counter()
        loss, norm = update(run, step)
        seconds = time.perf_counter() - started
        strikes = 0 if math.isfinite(loss) else strikes + 1
        skips = 0 if math.isfinite(loss) and math.isfinite(norm) else skips + 1
        if strikes == STRIKES or skips == (SKIPS if run.scaler.is_enabled() else 1):
            return diverged(run, step, f"loss {loss}, gradient norm {norm}")
        if run.metrics is not None:
            speed = settings.tokens_per_step / seconds
            run.metrics.record(step, loss, norm, learning_rate(settings, step), speed, is_exact(run), save_seconds)
        told(step, loss, seconds)


def ended(run: Run, step: int, saved: int, number: int) -> int:
    """Say how it ended and what is kept of it; gives the exit status."""
    kept = f"snapshot {saved} is saved" if saved else "there is no snapshot"
    if step >= run.settings.max_iters:
        say(f"done at step {step}, max_iters is {run.settings.max_iters}; {kept}")
        return 0
    say(f"stopped at step {step} by {signal.Signals(number).name}; {kept}")
    return 128 + number


def diverged(run: Run, step: int, why: str) -> int:
    """Say so, here and to a supervisor, who may tell the next start to skip the data; gives the exit status."""
    say(f"diverged at step {step}: {why}; nothing is saved")
    note_ending(run.settings.out_dir, contract.EXIT_DIVERGED, step)
    return contract.EXIT_DIVERGED


def asked_to_stop(run: Run) -> int:
    """The number of a signal that came to any of the ranks; 0 when none has."""
    return int(max(run.ranks.numbers(run.stop[0] if run.stop else 0)))


def is_due(step: int, interval: int) -> bool:
    """Whether something that happens every `interval` steps (0: never) happens at this one."""
    return interval > 0 and step % interval == 0


def is_exact(run: Run) -> bool:
    """Whether all this is, to the last bit, what a run would compute that was never interrupted."""
    return run.extra["inexact_since"] is None


def update(run: Run, step: int) -> tuple[float, float]:
    """Update number `step`, counted from 1: the mean loss and the norm of the gradient before clipping.

    Without a loss scaler nothing is updated when either is not finite: the weights stay as good as they were.
    """
    settings, ranks, scaler = run.settings, run.ranks, run.scaler
    for group in run.optimizer.param_groups:
        group["lr"] = learning_rate(settings, step)
    total = torch.zeros((), device=settings.device)
    turns = settings.gradient_accumulation_steps // ranks.count
    for turn in range(turns):
        if ranks.count > 1:  # gradients travel once a step
            run.model.require_backward_grad_sync = turn == turns - 1
        seed = batch_seed(settings.seed, source_of_batches(run, step), step, turn * ranks.count + ranks.rank)
        loss = loss_of(run.model, run.splits["train"], settings, seed) / turns
        scaler.scale(loss).backward()
        total += loss.detach()
    scaler.unscale_(run.optimizer)
    limit = settings.grad_clip or math.inf
    norm = float(torch.nn.utils.clip_grad_norm_(run.plain_model.parameters(), limit))
    mean_loss = ranks.mean(float(total))
    if scaler.is_enabled() or math.isfinite(mean_loss + norm):
        scaler.step(run.optimizer)
        scaler.update()
    run.optimizer.zero_grad(set_to_none=True)
    return mean_loss, norm


def source_of_batches(run: Run, step: int) -> str:
    """Where a step's batches are drawn from: once for all, but anew for each time that they are to be skipped."""
    times = sum(first <= step <= last for first, last in run.extra["skipped"])
    return f"train instead {times}" if times else "train"


def loss_of(model: Any, tokens: np.ndarray, settings: Settings, seed: int) -> torch.Tensor:
    """The model's mean loss on one batch."""
    inputs, targets = batch(tokens, settings.batch_size, settings.block_size, seed)
    if device_type(settings) == "cuda":  # copied while the device works on the micro-batch before
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
def evaluate(run: Run, step: int) -> None:
    """Print the mean loss of each split over fixed batches and note the best; given up when any rank is asked to stop."""
    settings, ranks = run.settings, run.ranks
    run.model.eval()
    mine = {}  # the ranks share the batches out
    for split, tokens in run.splits.items():
        for number in range(ranks.rank, settings.eval_iters, ranks.count):
            if run.stop:
                break
            seed = batch_seed(settings.seed, f"eval {split}", number)
            mine[number, split] = float(loss_of(run.model, tokens, settings, seed))
    run.model.train()
    everybody = {key: loss for one in ranks.objects(mine) for key, loss in one.items()}
    if len(everybody) < len(run.splits) * settings.eval_iters:
        return
    losses = {
        split: sum(everybody[number, split] for number in range(settings.eval_iters)) / settings.eval_iters
        for split in run.splits
    }
    say(f"step {step}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
    run.extra["best_val_loss"] = min(losses["val"], run.extra["best_val_loss"])
    run.extra["evaluated_step"] = step


@torch.no_grad()
def has_finite_weights(model: GPT) -> bool:
    """Whether the last update left no weight infinite or not a number."""
    return bool(torch.stack([parameter.isfinite().all() for parameter in model.parameters()]).all())


def save(run: Run, step: int, ends: bool) -> None:
    """Publish a snapshot of everything the next step depends on, which every rank has a part of."""
    settings = run.settings
    rng = run.ranks.objects(capture_rng_state())
    state = {
        "data": {"seed": settings.seed, "step": step, "digest": run.extra["made_with"]["data"]},
        "scheduler": {"step": step} | {key: getattr(settings, key) for key in SCHEDULE_KEYS},
        "rng_of_ranks": rng if run.ranks.count > 1 else None,
    }
    scaler = run.scaler if run.scaler.is_enabled() else None

    def write() -> None:
        if run.saves is not None:
            run.saves.save(step, ends, run.plain_model, run.optimizer, rng[0], scaler, run.extra | state)

    run.ranks.together(write)

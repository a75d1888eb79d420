"""Sides of the row about training: the bundled trainer's loop and one of nanoGPT's shape, on the same model and text."""

import contextlib
import dataclasses
import io
import time
from collections.abc import Iterator

from benchmarks.harness import Scale, Sides

STEPS = 10  # of a turn
STEPS_MAX = 10**9  # more than are taken
TEXT = "for index, value in enumerate(values):\n    total += value * weights[index % 7]\n"
SHAPE = {"batch_size": 12, "block_size": 64, "n_layer": 4, "n_head": 4, "n_embd": 128}  # nanoGPT's advice for a CPU
THREADS = 1  # so that other work on the machine does not keep one thread waiting for another


@contextlib.contextmanager
def training(scale: Scale) -> Iterator[Sides]:
    """Steps of both loops, their lines and our metrics included; evaluation and saving left out. Float32 on the CPU."""
    import torch

    from benchmarks.reference_loop import Loop
    from trainer import data, train
    from trainer.distributed import Ranks
    from trainer.metrics import open_metrics
    from trainer.model import GPT, ModelArgs
    from trainer.progress import lines
    from trainer.settings import Settings
    from trainer.setup import seed_everything, set_up_torch

    folder = str(scale.folder / "text")
    data.publish(folder, TEXT * 2000, "a few words")
    settings = Settings(
        data=folder, eval_interval=0, save_interval=STEPS_MAX, max_iters=STEPS_MAX, threads=THREADS, **SHAPE
    )
    set_up_torch(settings, Ranks())
    splits, vocabulary, digest = data.open_data(folder, settings.block_size)
    seed_everything(settings.seed)
    names = [field.name for field in dataclasses.fields(ModelArgs) if field.name != "vocab_size"]
    model = GPT(ModelArgs(**{name: getattr(settings, name) for name in names}, vocab_size=vocabulary))
    optimizer = model.configure_optimizer(
        settings.weight_decay, settings.learning_rate, (settings.beta1, settings.beta2)
    )
    extra = {"evaluated_step": -1, "skipped": [], "inexact_since": None, "made_with": {"data": digest}}
    told = lines(settings, 0, lambda seconds: model.estimate_mfu(settings.batch_size, seconds))
    theirs = Loop(settings, folder, vocabulary)
    step = 0

    with open_metrics(str(scale.folder)) as metrics:
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        run = train.Run(settings, Ranks(), splits, model, model, optimizer, scaler, extra, [], None, metrics)

        def ours() -> float:
            nonlocal step
            torch.use_deterministic_algorithms(True)  # as it trains on a CPU
            until = dataclasses.replace(settings, max_iters=step + STEPS)
            seconds = timed(lambda: train.loop(dataclasses.replace(run, settings=until), step, told))
            step += STEPS
            return seconds

        def nanogpts() -> float:
            torch.use_deterministic_algorithms(False)
            return timed(lambda: theirs.run(STEPS))

        yield Sides(ours, nanogpts)


def timed(act) -> float:
    """Seconds that something takes, its lines kept off the terminal."""
    with contextlib.redirect_stdout(io.StringIO()):
        started = time.perf_counter()
        act()
        return time.perf_counter() - started

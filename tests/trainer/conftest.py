"""A small text, small settings and clean process-wide state for the trainer's tests."""

import json
import os
import random
import signal

import pytest
import torch

from tests.trainer.comparing import metrics_of
from trainer import data
from trainer.settings import Settings


def small_text():
    """Thirty thousand characters that a model can learn something from, the same every time."""
    words = ["def", "return", "for", "while", "if", "else", "self", "value", "index", "count", "name", "path"]
    draw = random.Random(5)
    return "\n".join(" ".join(draw.choice(words) for _ in range(8)) for _ in range(700)) + "\n"


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A folder of prepared data."""
    folder = tmp_path_factory.mktemp("data") / "small"
    data.publish(str(folder), small_text(), "small text")
    return str(folder)


@pytest.fixture
def values(tmp_path, prepared):
    """Settings of a run of 20 steps that takes a fraction of a second."""
    return small_values(tmp_path, prepared)


def small_values(folder, prepared):
    """The same for a fixture of its own; the run is in `folder`."""
    return {
        "out_dir": str(folder / "run"),
        "data": prepared,
        "eval_interval": 0,
        "eval_iters": 1,
        "log_interval": 1,
        "save_interval": 10,
        "batch_size": 2,
        "block_size": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 16,
        "learning_rate": 1e-2,
        "max_iters": 20,
        "warmup_iters": 3,
        "lr_decay_iters": 20,
        "min_lr": 1e-3,
        "threads": 1,
    }


@pytest.fixture
def settings(values):
    """Builds Settings from the small ones and what is to be different."""
    return lambda **changes: Settings(**values | changes)


@pytest.fixture
def config(tmp_path, values):
    """Path of a YAML file with the small settings."""
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps(values))  # JSON is YAML
    return str(path)


@pytest.fixture
def steps():
    """Reads the lines of a run's metrics.jsonl, those of one incarnation if given, as {step: line}."""

    def read(out_dir, incarnation=None):
        return {line["step"]: line for line in metrics_of(out_dir) if incarnation in (None, line["incarnation"])}

    return read


@pytest.fixture
def losses(steps):
    """Reads the losses of a run as {step: loss}."""
    return lambda *arguments: {step: line["loss"] for step, line in steps(*arguments).items()}


@pytest.fixture(autouse=True)
def clean_process(monkeypatch):
    """No supervisor's variables going in; torch's switches and the signals as they were coming out."""
    for name in [name for name in os.environ if name.startswith("LASTGOOD_")]:
        monkeypatch.delenv(name)
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = [signal.getsignal(number) for number in numbers]
    threads, fill = torch.get_num_threads(), torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = fill
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(threads)
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)

"""Every key of a training run: its default, its meaning, and what is refused.

Read from a YAML file, then from `--key=value` arguments. Without torch, so that a wrong key answers at once.
"""

import dataclasses
import difflib
import os
import re
import sys
import typing
from typing import Any

import yaml

DTYPES = ("float32", "bfloat16", "float16")
GPT2_SHAPES = {  # the four published models; all see 1024 positions and have biases
    name: {"n_layer": layers, "n_head": heads, "n_embd": width, "bias": True, "block_size": 1024}
    for name, layers, heads, width in (
        ("gpt2", 12, 12, 768),  # 124 million parameters
        ("gpt2-medium", 24, 16, 1024),  # 350 million
        ("gpt2-large", 36, 20, 1280),  # 774 million
        ("gpt2-xl", 48, 25, 1600),  # 1558 million
    )
}

STARTS = ("scratch", "resume", *GPT2_SHAPES)
NANOGPTS = {  # keys of nanoGPT's that are called otherwise here, or have no counterpart
    "dataset": "the data is named with data",
    "always_save_checkpoint": "a snapshot is saved every save_interval steps",
    "backend": "it follows from device",
    "wandb_log": "metrics.jsonl in out_dir has every step",
    "wandb_project": "metrics.jsonl in out_dir has every step",
    "wandb_run_name": "metrics.jsonl in out_dir has every step",
}
NUMBER_MAX = 2**31  # of whole numbers; no count of anything here is larger
EXIT_NO_SNAPSHOT = 3  # exit status where there are snapshots and none is good, as of `lastgood latest`
EXIT_USAGE = 2  # exit status of a command that was asked for something it cannot do


class UsageError(Exception):
    """The person asked for something that cannot be done: one line, and EXIT_USAGE."""

    def __init__(self, key: str, problem: str) -> None:
        """`key` names the setting at fault, or is empty; `problem` says what is wrong and what to do."""
        super().__init__(f"{key}: {problem}" if key else problem)
        self.key = key
        self.problem = problem

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """How it is told to other processes."""
        return type(self), (self.key, self.problem)


class NoSnapshotError(Exception):
    """There are snapshots, and none that is good: one line, and EXIT_NO_SNAPSHOT."""


def key(default: Any, meaning: str, **limits: Any) -> Any:
    """A field with its meaning and its limits: `least`, `below`, `choices`, `path`."""
    return dataclasses.field(default=default, metadata={"meaning": meaning, **limits})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """One training run. The names are nanoGPT's wherever nanoGPT has the thing."""

    # Files
    out_dir: str = key("out/run", "folder of the snapshots and of metrics.jsonl", path=True)
    data: str = key("stdlib", "stdlib (this Python's), a text file, or a folder with train.bin", path=True)
    data_dir: str = key("out/data", "folder where prepared data is kept", path=True)
    # Rhythm, in steps; a step is one optimizer update
    eval_interval: int = key(250, "evaluate every so many steps; 0 never does", least=0)
    eval_only: bool = key(False, "evaluate once and end")
    eval_iters: int = key(20, "batches of each split in one evaluation", least=1)
    log_interval: int = key(10, "print a line every so many steps", least=1)
    save_interval: int = key(250, "save a snapshot every so many steps, and always the last one", least=1)
    save_blocking: bool = key(False, "stop for the writing of a snapshot; false copies the state and goes on")
    save_failures_max: int = key(3, "failed saves in a row that end the run", least=1)
    max_to_keep: int = key(3, "snapshots to keep, at least 2")
    # Where to start
    init_from: str = key("scratch", "where to start (resume wants a snapshot)", choices=STARTS)
    gpt2_dir: str | None = key(None, "folder with GPT-2's model.safetensors, for init_from: gpt2", path=True)
    resume: str = key("auto", "auto (the newest healthy snapshot), never, or a snapshot's path", path=True)
    # Batches
    gradient_accumulation_steps: int = key(1, "micro-batches in one step", least=1)
    batch_size: int = key(12, "sequences in one micro-batch", least=1)
    block_size: int = key(64, "tokens in one sequence", least=1)
    # Model
    n_layer: int = key(4, "transformer blocks", least=1)
    n_head: int = key(4, "attention heads of each block", least=1)
    n_embd: int = key(128, "width; must be a multiple of n_head", least=1)
    dropout: float = key(0.0, "share of activations dropped while training", least=0.0, below=1.0)
    bias: bool = key(False, "bias in the linear layers and layer norms")
    # AdamW
    learning_rate: float = key(1e-3, "the highest learning rate", least=0.0)
    max_iters: int = key(2000, "train up to exactly this step", least=1)
    weight_decay: float = key(0.1, "on matrices only", least=0.0)
    beta1: float = key(0.9, "decay of the mean of gradients", least=0.0, below=1.0)
    beta2: float = key(0.99, "decay of the mean of their squares", least=0.0, below=1.0)
    grad_clip: float = key(1.0, "largest norm of the gradient; 0 does not clip", least=0.0)
    # Learning rate: linear warm-up, then half a cosine down to min_lr
    decay_lr: bool = key(True, "follow the schedule; false keeps learning_rate throughout")
    warmup_iters: int = key(100, "steps of warm-up", least=0)
    lr_decay_iters: int = key(2000, "step at which min_lr is reached, usually max_iters", least=0)
    min_lr: float = key(1e-4, "the learning rate at the end, usually a tenth of learning_rate", least=0.0)
    # Machine
    device: str = key("cpu", "cpu, cuda or cuda:N")
    dtype: str = key("float32", "of the arithmetic (weights stay float32)", choices=DTYPES)
    compile: bool = key(False, "compile the model with torch.compile")
    seed: int = key(1337, "of the weights, the batches and dropout", least=0, below=2**63)
    deterministic: bool | None = key(None, "only exactly repeatable arithmetic; null means: on the CPU")
    threads: int = key(0, "CPU threads; 0 leaves the number to torch", least=0, below=1025)
    rank_timeout_seconds: float = key(600.0, "how long one of several processes waits for another", least=1.0)

    def __post_init__(self) -> None:
        """Refuse values, and pairs of values, that cannot work."""
        for field in dataclasses.fields(self):
            check_value(field, getattr(self, field.name))
        check_gpt2(self)
        if self.init_from == "resume" and self.resume == "never":
            raise UsageError("init_from", "resume cannot go with resume: never; leave one of them out")
        if self.max_to_keep < 2:
            problem = f"{self.max_to_keep} leaves nothing to fall back to when the newest snapshot is damaged"
            raise UsageError("max_to_keep", f"{problem}; keep at least 2")
        if self.n_embd % self.n_head:
            problem = f"{self.n_embd} does not divide into n_head = {self.n_head} heads"
            raise UsageError("n_embd", f"{problem}; make it a multiple")
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise UsageError("device", f"{self.device!r} is not known; choose cpu, cuda or cuda:N")
        if self.decay_lr and self.lr_decay_iters <= self.warmup_iters:
            problem = f"{self.lr_decay_iters} is not after warmup_iters = {self.warmup_iters}"
            raise UsageError("lr_decay_iters", f"{problem}; raise it, or set decay_lr: false")
        if self.decay_lr and self.min_lr > self.learning_rate:
            problem = f"{self.min_lr} is above learning_rate = {self.learning_rate}"
            raise UsageError("min_lr", f"{problem}; lower it, or set decay_lr: false")

    @property
    def tokens_per_step(self) -> int:
        """How many tokens one update is trained on."""
        return self.gradient_accumulation_steps * self.batch_size * self.block_size


FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
KINDS = typing.get_type_hints(Settings)
KIND_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text (quote it)"}
KIND_NAMES |= {bool | None: "true, false or null", str | None: "text or null"}


def check_value(field: Any, value: Any) -> None:
    """Refuse a value of the wrong type or outside the field's limits."""
    if not has_kind(value, KINDS[field.name]):
        raise UsageError(field.name, f"must be {KIND_NAMES[KINDS[field.name]]}, not {value!r}")
    limits = field.metadata
    if "choices" in limits and value not in limits["choices"]:
        raise UsageError(field.name, f"{value!r} is not known; choose {' or '.join(limits['choices'])}")
    if "least" in limits and value < limits["least"]:
        raise UsageError(field.name, f"must be at least {limits['least']}, not {value}")
    below = limits.get("below", NUMBER_MAX if KINDS[field.name] is int else None)
    if below is not None and value >= below:
        raise UsageError(field.name, f"must be below {below}, not {value}")
    if value == "":
        raise UsageError(field.name, "must not be empty; leave the key out to have its default")


def check_gpt2(settings: Any) -> None:
    """GPT-2's weights come from somewhere, and their model is what it is; only block_size may be smaller."""
    name = settings.init_from
    shape = GPT2_SHAPES.get(name, {})
    if shape and settings.gpt2_dir is None:
        problem = f"init_from: {name} needs the folder that holds its model.safetensors"
        raise UsageError("gpt2_dir", f"{problem}; download openai-community/{name} from huggingface.co and name it")
    for key, theirs in shape.items():
        ours = getattr(settings, key)
        if key == "block_size" and ours > theirs:
            raise UsageError(key, f"{name} knows {theirs} positions, not {ours}; lower it")
        if key != "block_size" and ours != theirs:
            raise UsageError(key, f"{name} has {theirs}, not {ours}; leave the key out")


def has_kind(value: Any, kind: Any) -> bool:
    """True if the value is of that type; a bool is not a number, and a number is finite."""
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return isinstance(value, kind)


def read_arguments(arguments: list[str]) -> Settings:
    """Settings from `CONFIG.yaml [--key=value ...]`; the arguments win over the file."""
    if not arguments or arguments[0].startswith("-"):
        raise UsageError("", "usage: python -m trainer CONFIG.yaml [--key=value ...]; --help lists the keys")
    values = read_file(arguments[0])
    for argument in arguments[1:]:
        name, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not equals:
            raise UsageError("", f"command line: {argument!r} is not understood; write --key=value")
        try:
            values[name] = yaml.safe_load(text)
        except (yaml.YAMLError, *NO_VALUE):
            shown = text if len(text) <= 40 else f"{text[:40]}..."
            raise UsageError(name, f"{shown!r} is not a YAML value; put it in quotes") from None
    return from_values(values)


NO_VALUE = (ValueError, KeyError, AttributeError, OverflowError, RecursionError)
"""What the YAML reader raises besides its own error: for a date that is none, a number too long, a tag that does not fit."""


def read_file(path: str) -> dict[str, Any]:
    """The mapping in a YAML file; a key given twice is refused."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except OSError as error:
        raise UsageError("", f"{path}: {error.strerror}; name a YAML file as the first argument") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = " ".join(str(error.problem).split())
        raise UsageError("", f"{path}: line {line}: {problem}; write lines of the form `key: value`") from None
    except UnicodeDecodeError:
        raise UsageError("", f"{path}: is not UTF-8 text; convert it first") from None
    except (yaml.YAMLError, *NO_VALUE) as error:
        problem = " ".join(str(error).split())[:200]
        raise UsageError(
            "", f"{path}: holds something YAML does not allow ({problem}); put such values in quotes"
        ) from None
    if values is None:  # an empty file: every key has its default
        return {}
    if not isinstance(values, dict) or not isinstance(node, yaml.MappingNode):
        raise UsageError("", f"{path}: holds no keys; write lines of the form `key: value`")
    names = [str(name.value) for name, _ in node.value]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(name, "given twice; keep one")
    return {str(name): value for name, value in values.items()}


def from_values(values: dict[str, Any]) -> Settings:
    """Settings from plain values; an unknown key is refused with the nearest known one."""
    for name in values:
        if name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, n=1, cutoff=0.6)
            cure = f"did you mean {near[0]}?" if near else "--help lists the keys"
            raise UsageError(name or "''", f"unknown key; {NANOGPTS.get(name, cure)}")
    shape = GPT2_SHAPES.get(str(values.get("init_from")), {})  # what is left out is GPT-2's
    return Settings(**shape | {name: convert(name, value) for name, value in values.items()})


def convert(name: str, value: Any) -> Any:
    """Two kindnesses: YAML takes 6e-4 for text and does not know ~."""
    if KINDS[name] is float and isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    if FIELDS[name].metadata.get("path") and isinstance(value, str):
        return os.path.expanduser(value)
    return value


def source_of(key: str, arguments: list[str]) -> str:
    """Where a key was set: "command line", or else the file."""
    on_command_line = any(argument.startswith(f"--{key}=") for argument in arguments[1:])
    return "command line" if on_command_line else arguments[0]


def help_text() -> str:
    """Every key with its default, its meaning and its choices."""
    lines = ["usage: python -m trainer CONFIG.yaml [--key=value ...]", "", "Keys, with their defaults:"]
    for name, field in FIELDS.items():
        default = yaml.safe_dump(field.default).split("\n")[0]
        *others, last = field.metadata.get("choices", [""])
        choices = f": {', '.join(others)} or {last}" if others else ""
        lines.append(f"  {name + '=' + default:<32}{field.metadata['meaning']}{choices}")
    return "\n".join(lines)

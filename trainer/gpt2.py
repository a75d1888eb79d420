"""GPT-2's published weights, from a local folder of safetensors as Hugging Face names and stores them.

Two differences to this trainer's names: a prefix that some files have and others lack, and that the linear layers
of the blocks are stored as (in, out), the other way round.
"""

import json
import os
import re
from collections.abc import Iterator

import torch

from lastgood.files import verify_open
from lastgood.formats import DamageError, TensorPart, safetensors
from trainer.model import GPT
from trainer.settings import Settings, UsageError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"  # names the files where there are several
PREFIX = "transformer."
DTYPES = ("float64", "float32", "bfloat16", "float16")
# The causal mask, which is no weight, and the output layer, which is the token embedding.
IGNORED = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)|lm_head\.weight")
TRANSPOSED = re.compile(r"h\.\d+\.(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight")


@torch.no_grad()
def load_gpt2(model: GPT, settings: Settings) -> None:
    """Copy the weights of `settings.gpt2_dir` into a model of that shape; positions behind block_size are left out."""
    folder = os.fspath(settings.gpt2_dir or "")
    missing = {name.removeprefix(PREFIX): parameter for name, parameter in model.named_parameters()}
    for path in weight_files(folder):
        for name, tensor in tensors_of(path):
            if name not in missing:
                raise refusal(f"{path} holds {name}, which {settings.init_from} does not have, or has once")
            copy(missing.pop(name), name, tensor, settings)
    if missing:
        raise refusal(f"{folder} lacks {', '.join(list(missing)[:3])}: {len(missing)} weights of {settings.init_from}")


def refusal(problem: str) -> UsageError:
    """The one line for a folder that will not do."""
    return UsageError("gpt2_dir", f"{problem}; download the model again, or name another folder")


def weight_files(folder: str) -> list[str]:
    """Paths of the safetensors files of a folder: the one, or all that its index names."""
    index = os.path.join(folder, INDEX)
    if os.path.exists(os.path.join(folder, WEIGHTS)) or not os.path.exists(index):
        return [os.path.join(folder, WEIGHTS)]
    try:
        with open(index, encoding="utf-8") as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
        if any(os.path.basename(name) != name for name in names):
            raise ValueError
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise refusal(f"{index} does not say in which files the weights are") from None
    return [os.path.join(folder, name) for name in names]


def tensors_of(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights in a file that was verified first, without prefix, as they are stored; masks are left out."""
    try:
        with open(path, "rb") as file:
            verdict = verify_open(path, file)
            if not verdict.usable:
                raise refusal(f"{path} is {verdict.kind}: {verdict.reason}")
            for part in safetensors.inside(file).tensors:
                name = part.name.removeprefix(PREFIX)
                if not IGNORED.fullmatch(name):
                    yield name, read(file.fileno(), part)
    except OSError as error:
        raise refusal(f"{path}: {error.strerror}") from None
    except DamageError as damage:
        raise refusal(f"{path} is no safetensors file: {damage.reason}") from None


def read(descriptor: int, part: TensorPart) -> torch.Tensor:
    """One tensor, read where the header says it lies; already verified to be within the file."""
    if part.dtype not in DTYPES:
        raise refusal(f"{part.name} is of {part.dtype}, which is not one of {', '.join(DTYPES)}")
    tensor = torch.empty(part.shape, dtype=getattr(torch, part.dtype))
    view = memoryview(tensor.flatten().view(torch.uint8).numpy())
    done = 0
    while done < part.span:
        count = os.preadv(descriptor, [view[done:]], part.start + done)
        if not count:
            raise OSError(0, "ends early")
        done += count
    return tensor


def copy(parameter: torch.Tensor, name: str, tensor: torch.Tensor, settings: Settings) -> None:
    """Turn a weight as it is to be here, and copy it; its dtype becomes the parameter's."""
    if TRANSPOSED.fullmatch(name):
        tensor = tensor.T
    if name == "wpe.weight":
        tensor = tensor[: settings.block_size]
    if tensor.shape != parameter.shape:
        theirs, ours = ("x".join(map(str, one.shape)) for one in (tensor, parameter))
        raise refusal(f"{name} is {theirs} there, {settings.init_from} has {ours}")
    parameter.copy_(tensor)

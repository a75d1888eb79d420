"""What goes into a snapshot and comes out of it: plain names whatever wraps the model, and nothing that loading would refuse."""

import argparse
import enum
import io
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from lastgood.contract import SALVAGE_KEY
from lastgood.rng import restore_rng_state

log = logging.getLogger("lastgood")

COMPILED, PARALLEL = "_orig_mod", "module"
"""What torch.compile puts before the names of what it compiled, and (Distributed)DataParallel before every name."""

NAMED_MAX = 5  # values that would not load again, named at a time

_PLAIN = frozenset({int, float, bool, complex, str, bytearray, type(None)})
"""Types whose values load again whatever they hold. Not bytes: empty ones would be refused."""


def plain_state_dict(model: Any) -> dict[str, Any]:
    """The model's state under the names that the plain model has, whatever wrappers are around it or its parts.

    `_metadata`, by which modules know the version of what they load, comes along.
    """
    state = model.state_dict()
    depth = _wrapped(state)
    plain = OrderedDict((_plain(key, depth), value) for key, value in state.items())
    metadata = getattr(state, "_metadata", None)
    if metadata is not None:
        plain._metadata = OrderedDict((_plain(name, depth), value) for name, value in metadata.items())  # type: ignore[attr-defined]
    return plain


def _wrapped(keys: Iterable[str]) -> int:
    """How often a data-parallel wrapper is around a model with such keys: its name is before every one of them."""
    paths = [_plain(key, 0).split(".") for key in keys]
    depth = 0
    while paths and all(path[depth : depth + 1] == [PARALLEL] and len(path) > depth + 1 for path in paths):
        depth += 1
    return depth


def _plain(name: str, depth: int) -> str:
    """A name without what torch.compile puts before its parts, and without `depth` data-parallel wrappers."""
    parts = [part for part in name.split(".") if part != COMPILED]
    while depth and parts[:1] == [PARALLEL]:
        parts, depth = parts[1:], depth - 1
    return ".".join(parts)


def load_plain_state_dict(model: Any, state: Mapping[str, Any]) -> None:
    """Load a state saved with or without wrappers into a model with or without wrappers. Raises on any other difference."""
    own = model.state_dict()
    here, there = _wrapped(own), _wrapped(state)
    names = {_plain(key, here): key for key in own}
    renamed = OrderedDict((names.get(_plain(key, there), key), value) for key, value in state.items())
    metadata = getattr(state, "_metadata", None)
    if metadata is not None:
        modules = {_plain(name, here): name for name in getattr(own, "_metadata", {})}
        renamed._metadata = OrderedDict(  # type: ignore[attr-defined]
            (modules.get(_plain(name, there), name), value) for name, value in metadata.items()
        )
    model.load_state_dict(renamed, strict=True)


def restore(payload: Mapping[str, Any], model: Any, optimizer: Any, scheduler: Any, scaler: Any) -> None:
    """Restore what is given, and every RNG, from a payload. What it lacks, or a salvage lost a part of, is left and named.

    Raises RuntimeError for a payload that is of no run, for a model that it lacks, and of torch for one that is another.
    """
    if not isinstance(payload, Mapping):
        raise RuntimeError(f"the file holds a {type(payload).__name__}, and not the state of a run")  # noqa: TRY004 - the file is wrong, not an argument
    if model is not None:
        if payload.get("model") is None:
            raise RuntimeError(f"the snapshot holds no model; it has {', '.join(map(str, payload)) or 'nothing'}")
        load_plain_state_dict(model, payload["model"])
    lost = {str(name).partition(".")[0] for name in (payload.get(SALVAGE_KEY) or {}).get("lost", ())}
    for part, key in ((optimizer, "optimizer"), (scheduler, "scheduler"), (scaler, "scaler")):
        if part is not None and payload.get(key) is not None and key not in lost:
            part.load_state_dict(payload[key])
        elif part is not None:
            log.warning("the snapshot holds no %s that is whole: the one given stays as it is", key)
    if isinstance(payload.get("rng"), Mapping):
        restore_rng_state(payload["rng"])


def refuse_what_would_not_load(payload: Mapping[str, Any]) -> None:
    """Raise TypeError when `torch.load(weights_only=True)` would refuse a file of this, naming each place, its type and the cure.

    Allowed is what it allows, and what `torch.serialization.add_safe_globals` was told. Costs microseconds a value, and
    nothing for the bytes of tensors.
    """
    refused = []
    for path, value, problem in _refused(payload):
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        refused.append(f"{path} is a {kind} ({_cure(value)}; {problem})")
        if len(refused) == NAMED_MAX:
            break
    if refused:
        raise TypeError(
            "nothing was saved, because torch.load(weights_only=True) would refuse it: " + "; ".join(refused)
        )


def _refused(payload: Any) -> Iterator[tuple[str, Any, str]]:
    """Each place of a value that would not load again, the value, and what torch says."""
    import torch

    plain = _PLAIN | {torch.Size, torch.dtype, torch.device}
    tensors = (torch.Tensor, torch.nn.Parameter)
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", payload)]
    while waiting:
        path, value = waiting.pop()
        kind = type(value)
        if kind in plain or id(value) in seen:
            continue
        seen.add(id(value))
        sample = _sample(value)
        if sample is not value or kind in tensors or kind is OrderedDict:
            waiting += [(f"{path}.{name}", one) for name, one in vars(value).items()]
        if kind in tensors:
            continue
        if kind in (dict, OrderedDict):
            waiting += [(f"{path} key {key!r}", key) for key in value if type(key) not in plain]
            waiting += [(f"{path}[{key!r}]", one) for key, one in value.items() if type(one) not in plain]
        elif kind in (list, tuple):
            waiting += [(f"{path}[{at}]", one) for at, one in enumerate(value) if type(one) not in plain]
        elif _problem(sample) is not None and (problem := _problem(value)) is not None:
            yield path, value, problem


def _sample(value: Any) -> Any:
    """In place of a tensor of another class an empty one without attributes, when the class leaves its saving to torch.

    Whether it loads again depends on the class and the attributes, and not on the bytes, which may be many.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    kind = type(value)
    plain = torch.nn.Parameter if issubclass(kind, torch.nn.Parameter) else torch.Tensor
    if kind is plain or any(getattr(kind, name, None) is not getattr(plain, name, None) for name in _SAVED_BY):
        return value
    return torch.empty(0, device="cpu").as_subclass(kind)


_SAVED_BY = ("__reduce_ex__", "__getstate__")
"""What a class of tensors has of its own when it decides itself how it is saved."""


def _problem(value: Any) -> str | None:
    """What torch says to one value when it is saved and loaded; None when that works."""
    import torch

    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
    except Exception as error:  # noqa: BLE001 - pickling calls code of the value's own
        return f"it cannot be pickled: {_first_line(error)}"
    buffer.seek(0)
    try:
        torch.load(buffer, map_location="cpu", weights_only=True)
    except Exception:  # noqa: BLE001 - loading, too
        return "or allow it with torch.serialization.add_safe_globals, before loading too"
    return None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


_CURES: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (lambda value: isinstance(value, enum.Enum), "save its .value"),
    (lambda value: isinstance(value, os.PathLike), "save str() of it"),
    (lambda value: isinstance(value, argparse.Namespace), "save vars() of it"),
    (lambda value: hasattr(value, "dtype") and getattr(value, "ndim", None) == 0, "save its .item()"),
    (lambda value: hasattr(value, "__array_interface__"), "save torch.from_numpy() of it"),
    (lambda value: hasattr(value, "state_dict"), "save its .state_dict()"),
    (lambda value: isinstance(value, Mapping), "save dict() of it"),
    (lambda value: isinstance(value, tuple), "save tuple() of it"),
    (lambda value: isinstance(value, set | frozenset), "save list() of it"),
    (lambda value: isinstance(value, str), "save str() of it"),
    (lambda value: isinstance(value, bytes), "save bytearray() of it"),
    (lambda value: isinstance(value, int), "save int() of it"),
    (lambda value: isinstance(value, float), "save float() of it"),
    (lambda value: hasattr(value, "__dataclass_fields__"), "save dataclasses.asdict() of it"),
    (callable, "leave it out"),
)


def _cure(value: Any) -> str:
    other = "save it as numbers, text, lists, dictionaries and tensors"
    return next((cure for fits, cure in _CURES if fits(value)), other)


def telling_line(error: Exception) -> str:
    """What torch's text says is wrong: what it will not import if that is it, and none of its advice to execute the file."""
    lines = [line.strip() for line in str(error).splitlines()] or [type(error).__name__]
    line = next((line for line in lines if "WeightsUnpickler error:" in line), lines[0])
    line = (
        line.rpartition("WeightsUnpickler error:")[2].partition(". Please use")[0].partition(" Re-running")[0].strip()
    )
    return "".join(c for c in line if c.isprintable())

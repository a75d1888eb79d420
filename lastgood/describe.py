"""What a snapshot says about itself, in milliseconds: its structure is read as data, no tensor's bytes are.

Nothing here proves anything: a tensor whose bytes are wrong is described like a good one. `lastgood.verify` judges.
"""

import _compat_pickle
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, BinaryIO

from lastgood import folders, formats, naming
from lastgood.contract import MODEL_KEYS, SALVAGE_KEY
from lastgood.files import step_inside
from lastgood.formats import DamageError, Inside, TensorPart
from lastgood.formats.torch_tensors import part_text, tensor_of
from lastgood.pickles import Call, Global, PickleError, TooLargeError
from lastgood.regular import regular
from lastgood.safe_globals import SAFE_GLOBALS
from lastgood.seal import Identity, Manifest, Seal, content_beside, parse_manifest, parse_seal, read_bound_seal

CONFIG_KEYS = ("config", "hyper_parameters", "args", "cfg")
MODEL_ARGUMENT_KEYS = ("model_args", "model_config")
CONFIG_FILE = "config.json"  # in the folders of Hugging Face
CONFIG_BYTES_MAX = 4 << 20
VALUES_MAX = 20_000  # of one config; what hostile nesting would unfold to is cut off
TEXT_MAX = 1_000  # characters of one value or name
DEPTH_MAX = 32
TENSORS_MAX = 250_000  # of one file; a model of a trillion parameters has a tenth of it


@dataclass(frozen=True)
class SealFound:
    """The seal a snapshot has; its digest was not compared with anything.

    `kind` is `beside`, `supervisor` (kept in `.lastgood/`), `none`, or `damaged`, which has a reason.
    """

    kind: str
    sha256: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Total:
    """Tensors, their elements and their bytes, added up; those that share their place in a file are counted once."""

    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class Key:
    """An entry of the outermost dictionary, or a file of a folder: its kind, the tensors in it, and its value if it is plain."""

    name: str
    kind: str
    tensors: int
    bytes: int
    value: str | int | float | bool | None = None


@dataclass(frozen=True)
class Description:
    """What is in a snapshot of `bytes` bytes. `problem` says what kept it from being read to the end, if something did.

    `step` is the one in the name, else the one inside. `model` is the part with a model's name, else all there is.
    `globals` is what its pickles would import, `unsafe_globals` those of it that torch's weights-only loading refuses.
    `config`, `model_arguments` and `salvaged` are made of text, finite numbers, lists and dictionaries alone.
    """

    path: str
    format: str | None
    bytes: int
    seal: SealFound = SealFound("none")
    step: int | None = None
    step_inside: int | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    model: Total = Total(0, 0, 0)
    total: Total = Total(0, 0, 0)
    config: Any = None
    model_arguments: Any = None
    salvaged: Any = None
    globals: tuple[str, ...] = ()
    unsafe_globals: tuple[str, ...] = ()
    keys: tuple[Key, ...] = ()
    tensors: tuple[TensorPart, ...] = ()
    problem: str | None = None


def describe(path: str | os.PathLike[str]) -> Description:
    """Describe the snapshot at `path`, a file or a folder. Raises OSError; what is wrong inside is the `problem`."""
    name = os.path.abspath(path)
    if os.path.isdir(name):
        identity, found = folders.identity_of(name), _folder(name)
        seal = _seal(name, identity, parse_manifest)
    else:
        with open(name, "rb", opener=regular) as file:
            identity = Identity.of(os.fstat(file.fileno()))
            found, seal = _file(file, name, identity.size), _seal(name, identity, parse_seal)
    step = naming.step_in_name(os.path.basename(name))
    return replace(found, path=name, bytes=identity.size, seal=seal, step=found.step_inside if step is None else step)


def _seal(name: str, identity: Identity, parse: Any) -> SealFound:
    beside = content_beside(name)
    if isinstance(beside, bytes):
        beside = parse(beside, os.path.basename(name))
    if isinstance(beside, Seal | Manifest):
        return SealFound("beside", beside.sha256)
    bound = read_bound_seal(name, identity)
    if bound is not None:
        return SealFound("supervisor", bound.sha256)
    return SealFound("none") if beside is None else SealFound("damaged", reason=beside.reason)


def _file(file: BinaryIO, path: str, size: int) -> Description:
    """What one file says about itself."""
    module = formats.format_of(file, size)
    if module is None:
        problem = "the file is empty" if size == 0 else "it is of no format that is known here"
        return Description(path, None, size, problem=problem)
    tensors: list[TensorPart] = []
    inside, problem = Inside({}), ""
    try:
        inside = module.inside(file)
        parts = iter(inside.tensors)
        tensors.extend(map(_tellable, islice(parts, TENSORS_MAX)))
        if next(parts, None) is not None:
            problem = f"it names more than {TENSORS_MAX:,} tensors; the others are not told here"
    except DamageError as damage:
        problem = damage.reason
    except TooLargeError as error:
        problem = f"what it says about itself was not read: {error}"
    except PickleError as error:
        problem = f"what it says about itself makes no sense: {error}"
    top, model = inside.top, next((key for key in MODEL_KEYS if key in inside.top), None)
    named = dict.fromkeys(map(_in_python3, inside.globals))
    return Description(
        path,
        module.NAME,
        size,
        step_inside=step_inside(top),
        notes={_text(key): _text(value) for key, value in inside.notes.items()},
        model=_total(part for part in tensors if model is None or part.name.startswith(f"{model}.")),
        total=_total(tensors),
        config=_first_of(top, CONFIG_KEYS),
        model_arguments=_first_of(top, MODEL_ARGUMENT_KEYS),
        salvaged=_first_of(top, (SALVAGE_KEY,)),
        globals=tuple(map(_text, named)),
        unsafe_globals=tuple(_text(one) for one in named if one not in SAFE_GLOBALS),
        keys=tuple(_keys(top, tensors)),
        tensors=tuple(tensors),
        problem=problem or None,
    )


def _in_python3(one: Global) -> str:
    """The name by which Python 3 and torch know what pickles of the old protocols name as Python 2 did."""
    module = _compat_pickle.IMPORT_MAPPING.get(one.module, one.module)
    return ".".join(_compat_pickle.NAME_MAPPING.get((one.module, one.name), (module, one.name)))


def _total(parts: Iterable[TensorPart]) -> Total:
    """Add up tensors of one file; tied ones have one place in it."""
    apart = {(part.start, part.span) if part.start is not None and part.span else part.name: part for part in parts}
    return _sum(Total(1, math.prod(part.shape), part.bytes) for part in apart.values())


def _sum(totals: Iterable[Total]) -> Total:
    found = list(totals)
    return Total(sum(one.tensors for one in found), sum(one.elements for one in found), sum(one.bytes for one in found))


def _keys(top: Mapping[Any, Any], tensors: list[TensorPart]) -> Iterator[Key]:
    values = {part_text(key): value for key, value in top.items()}
    inside: dict[str, list[TensorPart]] = {name: [] for name in values}
    last = ""
    for part in tensors if values else ():
        if not (last and part.name.startswith(f"{last}.")):  # neighbours have one key, and a key may have many dots
            last = next((one for one in _prefixes(part.name) if one in inside), "")
        inside.get(last, []).append(part)
    for name, value in values.items():
        total = _total(inside[name])
        plain = _Plain().of(value) if isinstance(value, str | int | float) else None
        yield Key(_text(name), _kind(value), total.tensors, total.bytes, plain)


def _prefixes(name: str) -> Iterator[str]:
    """`a`, `a.b` and `a.b.c` for `a.b.c`."""
    at = name.find(".")
    while at >= 0:
        yield name[:at]
        at = name.find(".", at + 1)
    yield name


def _kind(value: Any) -> str:
    if tensor_of(value) is not None:
        return "tensor"
    if isinstance(value, Call):
        return _text(_in_python3(value.function)) if isinstance(value.function, Global) else "object"
    return type(value).__name__.removesuffix("Type").lower()


def _first_of(top: Mapping[Any, Any], keys: tuple[str, ...]) -> Any:
    return next((_Plain().of(top[key]) for key in keys if top.get(key) is not None), None)


def _tellable(part: TensorPart) -> TensorPart:
    name = _text(part.name)
    return part if name == part.name else replace(part, name=name)


def _text(text: str) -> str:
    """Text that every encoder takes, and not more of it than a person reads."""
    short = text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
    return short.encode("utf-8", "backslashreplace").decode()


class _Plain:
    """Makes text, numbers, lists and dictionaries of what a pickle holds, so much of it and no more."""

    def __init__(self) -> None:
        self._left = VALUES_MAX

    def of(self, value: Any, depth: int = 0) -> Any:
        """`value` as JSON can hold it; numbers that are not finite, and whatever is no data, become text."""
        self._left -= 1
        if depth > DEPTH_MAX:
            return "…"
        match value:
            case None | bool() | int():
                return value
            case float():
                return value if math.isfinite(value) else str(value)
            case str():
                return _text(value)
            case Global():
                return _text(_in_python3(value))
            case bytes() | bytearray():
                return f"{len(value)} bytes"
            case dict():
                return self._dictionary(value.items(), depth)
            case list() | tuple() | set() | frozenset():
                return [self.of(item, depth + 1) for item in self._some(value)]
            case Call():
                return self._call(value, depth)
        return type(value).__name__.lower()

    def _some(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            if self._left <= 0:
                yield "…"
                return
            yield item

    def _dictionary(self, items: Iterable[Any], depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in self._some(items):
            made[_text(str(key if isinstance(key, str) else self.of(key, depth + 1)))] = self.of(value, depth + 1)
        return made

    def _call(self, call: Call, depth: int) -> Any:
        """An object as what it holds, if it says so; else its call as text."""
        if tensor := tensor_of(call):
            return f"tensor {tensor.dtype} {list(tensor.shape)}"
        if isinstance(call.state, dict):
            return self._dictionary(call.state.items(), depth)
        if call.items and all(isinstance(item, tuple) and len(item) == 2 for item in call.items):
            return self._dictionary(call.items, depth)
        if call.items:
            return [self.of(item, depth + 1) for item in self._some(call.items)]
        said = call.arguments if isinstance(call.arguments, tuple) else ()
        arguments = ", ".join(str(self.of(one, depth + 1)) for one in self._some(said))
        return _text(f"{self.of(call.function, depth + 1)}({arguments})")


def _folder(name: str) -> Description:
    """What the files of a folder say about themselves; a tensor is named by its file and its name in there."""
    parts = []
    for member in folders.members(name):
        with open(os.path.join(name, member.path), "rb", opener=regular) as file:
            parts.append(_file(file, member.path, member.status.st_size))
    known = [part for part in parts if part.format is not None]
    models = [part for part in known if "model" in os.path.basename(part.path)] or known
    return Description(
        name,
        "folder",
        0,
        step_inside=_first(part.step_inside for part in known),
        model=_sum(part.model for part in models),
        total=_sum(part.total for part in known),
        config=_first([_config_file(os.path.join(name, CONFIG_FILE)), *(part.config for part in known)]),
        model_arguments=_first(part.model_arguments for part in known),
        globals=tuple(dict.fromkeys(one for part in known for one in part.globals)),
        unsafe_globals=tuple(dict.fromkeys(one for part in known for one in part.unsafe_globals)),
        keys=tuple(Key(_text(part.path), part.format or "file", part.total.tensors, part.bytes) for part in parts),
        tensors=tuple(replace(one, name=f"{_text(part.path)}: {one.name}") for part in known for one in part.tensors),
        problem=_first(part.problem and f"{part.path}: {part.problem}" for part in known),
    )


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _config_file(path: str) -> Any:
    try:
        with open(path, "rb", opener=regular) as file:
            return _Plain().of(json.loads(file.read(CONFIG_BYTES_MAX)))
    except (OSError, ValueError, RecursionError):
        return None  # there is none, or what there is, is no config

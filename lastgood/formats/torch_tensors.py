"""The tensors that a torch pickle describes: their names and where their bytes are. Nothing is built, torch is not needed.

A tensor is a view of a storage: an offset, a shape and a stride, all counted in elements. Its name is its dotted path in the
payload, such as `model.transformer.h.0.attn.c_attn.weight` or `optimizer.state.3.exp_avg`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from lastgood.formats import DamageError, TensorPart
from lastgood.pickles import Call, Contents, Global, Persistent
from lastgood.verdict import Kind

MAX_DEPTH = 64  # levels of nesting; a checkpoint has about ten, and what loads it recurses
MAX_SIZE = 1 << 63  # of anything in a file
MAX_DIMENSIONS = 64  # what most of torch's operations take
MAX_NAME_CHARACTERS = 1000  # a million tensors can be made to share a long one
MAX_KEY_PARTS_SHOWN = 8  # of a key that is a tuple

STORAGE_DTYPES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8",
    "BoolStorage": "bool", "ComplexDoubleStorage": "complex128", "ComplexFloatStorage": "complex64",
    "QUInt8Storage": "quint8", "QInt8Storage": "qint8", "QInt32Storage": "qint32", "QUInt4x2Storage": "quint4x2",
    "QUInt2x4Storage": "quint2x4", "UntypedStorage": "uint8",
}  # fmt: skip
"""The dtype of the elements of each storage type that a torch pickle names."""

BITS = {
    "float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "complex32": 32, "complex64": 64, "complex128": 128,
    "float8_e4m3fn": 8, "float8_e5m2": 8, "float8_e4m3fnuz": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8,
    "float4_e2m1fn_x2": 8, "int64": 64, "int32": 32, "int16": 16, "int8": 8, "uint64": 64, "uint32": 32, "uint16": 16,
    "uint8": 8, "bool": 8, "quint8": 8, "qint8": 8, "qint32": 32, "quint4x2": 4, "quint2x4": 2, "bits8": 8, "bits16": 16,
    "bits1x8": 8, "bits2x4": 8, "bits4x2": 8,
}  # fmt: skip
"""Bits of one element of each dtype."""

ITEM_BYTES = {kind: (BITS[dtype] + 7) // 8 for kind, dtype in STORAGE_DTYPES.items()}
"""Bytes of one element of each storage type that a torch pickle names."""

_BY_STORAGE_TYPE = frozenset(
    f"torch._utils.{name}" for name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_qtensor")
)
_BY_DTYPE = frozenset({"torch._utils._rebuild_tensor_v3"})
TENSOR_FUNCTIONS = _BY_STORAGE_TYPE | _BY_DTYPE
"""What a pickle calls to build a tensor out of a storage."""

FROM_TYPE = "torch._tensor._rebuild_from_type_v2"
"""What it calls with such a function and that one's arguments, for a tensor that has attributes of its own."""


class Named(NamedTuple):
    """What a pickle says about a storage: its key, its size in bytes (None when its type is unknown), and in elements."""

    key: str
    bytes: int | None
    elements: int


@dataclass(frozen=True)
class Tensor:
    """A view of the storage called `storage`: offset, shape and stride in elements of `dtype`; sizes in bytes."""

    storage: str
    storage_bytes: int
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @cached_property
    def elements(self) -> int:
        """How many elements the tensor has."""
        return math.prod(self.shape)

    @cached_property
    def bytes(self) -> int:
        """What its elements take when they lie side by side."""
        return (self.elements * BITS[self.dtype] + 7) // 8

    @cached_property
    def span(self) -> int:
        """Elements of the storage from its first one to its last one, both counted."""
        if self.elements == 0:
            return 0
        return 1 + sum((length - 1) * step for length, step in zip(self.shape, self.stride, strict=True))

    def part(self, name: str, at: int | None) -> TensorPart:
        """The tensor as it is in a file whose byte `at` is its storage's first; None where that is compressed."""
        bits = BITS[self.dtype]
        start = None if at is None else at + self.offset * bits // 8
        return TensorPart(name, self.dtype, self.shape, self.bytes, start, (self.span * bits + 7) // 8)

    @property
    def fits(self) -> bool:
        """Whether every element it views is inside its storage."""
        return (self.offset + self.span) * BITS[self.dtype] <= 8 * self.storage_bytes or self.elements == 0


def tensor_of(node: Any) -> Tensor | None:
    """The tensor that a call in a pickle would build, or None when it would build none, or none that makes sense."""
    view = _view(node)
    return view if view is not None and view.fits else None


def check_views(contents: Contents) -> None:
    """Raise DamageError when a tensor that the pickle would build is no view of its storage."""
    for call in contents.calls:
        view = _view(call)
        if view is None and _is_of_known_storage(call):
            raise DamageError(Kind.CORRUPT, "what its pickle says about a tensor makes no sense")
        if view is not None and not view.fits:
            reason = (
                f"a tensor of shape {view.shape[:9]} at element {view.offset:,} reaches beyond storage {view.storage!r}"
            )
            raise DamageError(Kind.CORRUPT, f"{reason}, which has {view.storage_bytes:,} bytes")


def _is_of_known_storage(call: Call) -> bool:
    """Whether it builds a tensor whose dtype its storage tells."""
    known = isinstance(call.function, Global) and str(call.function) in _BY_STORAGE_TYPE
    return (
        known
        and isinstance(call.arguments, tuple)
        and bool(call.arguments)
        and storage_of(call.arguments[0]) is not None
    )


def _view(node: Any) -> Tensor | None:
    """The view of a storage that a call describes, whether or not it fits into it; None when it describes none."""
    if not (isinstance(node, Call) and isinstance(node.function, Global) and isinstance(node.arguments, tuple)):
        return None
    function, arguments = str(node.function), node.arguments
    if (
        function == FROM_TYPE
        and len(arguments) == 4
        and isinstance(arguments[0], Global)
        and str(arguments[0]) != FROM_TYPE
    ):
        return _view(Call(arguments[0], arguments[2]))
    if function not in TENSOR_FUNCTIONS or len(arguments) < 4:
        return None
    storage = storage_of(arguments[0])
    dtype = storage[1] if storage and function in _BY_STORAGE_TYPE else _named_dtype(arguments)
    if storage is None or dtype is None:
        return None
    _, offset, shape, stride = arguments[:4]
    if not (_counts((offset,)) and _counts(shape) and _counts(stride) and len(shape) == len(stride)):
        return None
    return Tensor(storage[0], storage[2], dtype, storage[3] + offset, shape, stride)


def _named_dtype(arguments: tuple[Any, ...]) -> str | None:
    """The dtype that the newer rebuild function is given beside an untyped storage."""
    match arguments[6:7]:
        case (Global("torch", name),) if name in BITS:
            return name
        case _:
            return None


def _counts(numbers: Any) -> bool:
    if not isinstance(numbers, tuple) or len(numbers) > MAX_DIMENSIONS:
        return False
    return all(type(number) is int and number >= 0 for number in numbers)


def storage_of(node: Any) -> tuple[str, str, int, int] | None:
    """Key, dtype and size in bytes of a storage that a pickle refers to, and at which of its elements a view of it begins.

    None when it is no storage of a known type. Old versions of torch wrote views of storages, and tensors count from there.
    """
    match node:
        case Persistent(id=("storage", Global(name=kind), str(key), _, int(count), *view)) if count >= 0:
            dtype = STORAGE_DTYPES.get(kind)
            begin = view[0][1] if view and isinstance(view[0], tuple) and len(view[0]) == 3 else 0
            return None if dtype is None or not _counts((begin,)) else (key, dtype, count * ITEM_BYTES[kind], begin)
        case _:
            return None


def named_storages(contents: Contents) -> list[Named]:
    """Every storage that a torch pickle names, each time that it does, in order."""
    found: list[Named] = []
    for reference in contents.persistent:
        match reference.id:
            case ("storage", Global(name=kind), str(key), _, int(count), *_):
                item = ITEM_BYTES.get(kind)
                found.append(Named(key, None if item is None else item * count, count))
            case _:
                pass
    return found


def top_level(value: Any) -> dict[Any, Any]:
    """The outermost dictionary of a snapshot's value, ordered or plain, or an empty one."""
    if isinstance(value, Call) and str(value.function) == "collections.OrderedDict":
        return {pair[0]: pair[1] for pair in value.items if isinstance(pair, tuple) and isinstance(pair[0], str)}
    return value if isinstance(value, dict) else {}


_Path = tuple["_Path", Any] | None
"""Where something is: where what holds it is, and its own key or position. Names are made of it where they are wanted."""


def part_text(part: Any) -> str:
    """A key or a position as a part of a name, cut to what a name may have. What would unfold without end is only named."""
    if isinstance(part, str):
        return part[:MAX_NAME_CHARACTERS]
    if isinstance(part, tuple):
        return f"({', '.join(map(_flat_text, part[:MAX_KEY_PARTS_SHOWN]))})"
    return _flat_text(part)


def _flat_text(part: Any) -> str:
    if isinstance(part, str | bytes):
        return repr(part[:MAX_NAME_CHARACTERS])[:MAX_NAME_CHARACTERS]
    return str(part) if part is None or isinstance(part, int | float) else type(part).__name__


def _name(path: _Path) -> str:
    parts: list[str] = []
    while path is not None:
        path, part = path
        parts.append(part_text(part))
    return ".".join(reversed(parts))[:MAX_NAME_CHARACTERS]


_HOLDING = (dict, list, tuple, Call)


def walk(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Name and description of every tensor in a pickle's value, in order; what is inside of a shared one is entered once."""
    above, begin = None, ""
    for path, tensor in _walk(value):
        holder, part = path or (None, "")
        if holder is not above:
            above, begin = holder, f"{_name(holder)}."  # its neighbours' names begin alike
        yield f"{begin}{part_text(part)}"[:MAX_NAME_CHARACTERS] if holder else part_text(part), tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """What `walk` finds, without the names, which cost more than the rest."""
    return (tensor for _, tensor in _walk(value))


def _walk(value: Any) -> Iterator[tuple[_Path, Tensor]]:
    known: dict[int, Tensor | None] = {}
    levels: list[tuple[_Path, Iterator[tuple[Any, Any]]]] = [(None, iter([(None, value)]))]
    while levels:
        path, inner = levels[-1]
        for part, node in inner:
            if not isinstance(node, _HOLDING):
                continue
            new, at = id(node) not in known, path if part is None else (path, part)
            tensor = known.setdefault(id(node), tensor_of(node)) if new else known[id(node)]
            if tensor is not None:
                yield at, tensor
            if new and len(levels) <= MAX_DEPTH + 1:
                levels.append((at, _inside(node)))
                break
        else:
            levels.pop()


def _inside(node: Any) -> Iterator[tuple[Any, Any]]:
    """What a container or a call holds: a part of a name (None for what has the name of the whole) and a node."""
    if isinstance(node, dict):
        return iter(node.items())
    if isinstance(node, Call):
        pairs = (item if is_pair(item) else (index, item) for index, item in enumerate(node.items))
        own = [node.arguments, node.state]
        if isinstance(node.arguments, tuple):
            own = [*(one for one in node.arguments if not isinstance(one, Persistent)), node.state]
        return chain(((None, one) for one in own), pairs)
    return iter(enumerate(node))


def is_pair(item: Any) -> bool:
    """Whether a call's item is a key and a value, as those of a dictionary are."""
    return isinstance(item, tuple) and len(item) == 2

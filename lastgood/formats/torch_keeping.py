"""Leave out of a torch pickle's value what is lost, and keep the rest as it is: nesting, order, sharing and ties.

Only what torch's own `weights_only` unpickler builds is kept; anything else that a pickle would import or call is lost.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from lastgood.formats.torch_damaged import State, Storage
from lastgood.formats.torch_tensors import (
    BITS,
    FROM_TYPE,
    MAX_DEPTH,
    MAX_NAME_CHARACTERS,
    TENSOR_FUNCTIONS,
    is_pair,
    part_text,
    tensor_of,
    tensors_in,
)
from lastgood.formats.torch_writer import fits
from lastgood.pickles import Call, Global, Persistent

MAX_LOST = 100_000  # names that are listed; a model has thousands

Path = tuple[Any, ...]
"""The keys and positions that lead to something in a payload."""

_BUILDERS = TENSOR_FUNCTIONS | {
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch._utils._rebuild_sparse_tensor",
    "torch._utils._rebuild_meta_tensor_no_storage",
    "torch.serialization._get_layout",
    "torch.Size",
    "torch.device",
    "collections.Counter",
    "_codecs.encode",
    "builtins.set",
    "builtins.complex",
    "builtins.bytearray",
}
"""What may be called again when the result is loaded: all of it is torch's own or plain data."""

_TENSOR_TYPES = {"torch.Tensor", "torch.nn.parameter.Parameter"}
_NAMES = (
    {f"torch.{name}" for name in BITS}
    | _TENSOR_TYPES
    | {"torch.per_tensor_affine", "torch.per_channel_affine", "torch.per_channel_affine_float_qparams"}
)
"""What may be named without being called."""

_PLAIN = (str, bytes, float, bool, type(None))


class Lost(NamedTuple):
    """Something that is not in the result: its dotted name, its size in bytes (0 for what is no tensor), and why."""

    name: str
    bytes: int
    reason: str


_LOST: Any = object()
"""Takes the place of what is lost until its container drops it."""


class Keeper:
    """Copies a value without what is lost, which is listed in `lost`. An object that occurs twice stays one object."""

    def __init__(self, storages: dict[str, Storage]) -> None:
        self.lost: list[Lost] = []
        self._storages = storages
        self._losses = 0
        self._tops: set[Any] = set()
        self._done: dict[int, Any] = {}
        self._incomplete: dict[int, str] = {}
        self._object_bytes: dict[int, int] = {}

    def keep(self, value: Any) -> Any:
        """The payload without what is lost; None when that is all of it. Sets `lost`."""
        kept = self._keep(value, (), 0)
        return None if kept is _LOST else kept

    def lost_in(self, top: Any) -> bool:
        """Whether anything is lost below the payload's key `top`; with None, anywhere."""
        return self._losses > 0 if top is None else top in self._tops or () in self._tops

    def _lose(self, path: Path, size: int, reason: str) -> Any:
        self._losses += 1
        self._tops.add(path[0] if path else ())
        if len(self.lost) < MAX_LOST:
            self.lost.append(Lost(_name(path), size, reason))
        return _LOST

    def _keep(self, node: Any, path: Path, depth: int) -> Any:
        if isinstance(node, _PLAIN):
            return node
        if isinstance(node, int):
            return node if fits(node) else self._lose(path, 0, "an integer that torch would not read")
        if id(node) in self._done:
            if id(node) in self._incomplete:
                self._lose(path, 0, f"it is the same object as {self._incomplete[id(node)]}, of which parts are lost")
            return self._done[id(node)]
        if depth > MAX_DEPTH:
            return self._lose(path, 0, f"nested deeper than {MAX_DEPTH} levels")
        before = self._losses
        kept = self._container(node, path, depth)
        if kept is not _LOST:
            self._done[id(node)] = kept
            if self._losses > before:
                self._incomplete[id(node)] = _name(path)
        return kept

    def _container(self, node: Any, path: Path, depth: int) -> Any:
        match node:
            case dict():
                return self._mapping(node, node.items(), path, depth)
            case list():
                return self._row(node, path, depth)
            case tuple():
                return tuple(self._item(item, (*path, index), depth) for index, item in enumerate(node))
            case Call():
                return self._call(node, path, depth)
            case Global() if _renamed(node) in _NAMES:
                return node
            case bytearray():
                return node
            case set() if all(map(_plain, node)):
                return node
            case _:
                return self._lose(path, 0, f"it is {_described(node)}, which is not rebuilt here")

    def _mapping(self, node: Any, pairs: Iterable[tuple[Any, Any]], path: Path, depth: int) -> dict[Any, Any]:
        result = self._done[id(node)] = {}
        result.update(self._entries(pairs, path, depth))
        return result

    def _entries(self, pairs: Iterable[tuple[Any, Any]], path: Path, depth: int) -> Iterator[tuple[Any, Any]]:
        for key, inner in pairs:
            if not all(map(_plain, key if isinstance(key, tuple) else (key,))):
                self._lose((*path, _described(key)), 0, "its key is no plain value")
                continue
            kept = self._keep(inner, (*path, key), depth + 1)
            if kept is not _LOST:
                yield key, kept

    def _row(self, node: list[Any], path: Path, depth: int) -> list[Any]:
        result: list[Any] = []
        self._done[id(node)] = result
        result.extend(self._item(item, (*path, index), depth) for index, item in enumerate(node))
        return result

    def _item(self, item: Any, path: Path, depth: int) -> Any:
        kept = self._keep(item, path, depth + 1)
        return None if kept is _LOST else kept

    def _call(self, node: Call, path: Path, depth: int) -> Any:
        function = _renamed(node.function)
        if function == "collections.OrderedDict" and node.arguments == () and all(map(is_pair, node.items)):
            return self._ordered(node, path, depth)
        if function == "collections.defaultdict" and all(map(is_pair, node.items)):
            return self._mapping(node, node.items, path, depth)
        if isinstance(node.arguments, tuple) and not node.items and node.state is None:
            if function in _BUILDERS:
                return self._rebuilt(node, path, depth)
            if function == FROM_TYPE and len(node.arguments) == 4:
                return self._rebuilt_from_type(node, path, depth)
        return self._lose(path, self._bytes_in(node), f"it is {_described(node)}, which only its own code can rebuild")

    def _ordered(self, node: Call, path: Path, depth: int) -> Call:
        result = self._done[id(node)] = Call(Global("collections", "OrderedDict"), ())
        result.items.extend(self._entries(node.items, path, depth))
        if isinstance(node.state, dict):
            result.state = self._keep(node.state, path, depth + 1)
        return result

    def _rebuilt(self, node: Call, path: Path, depth: int) -> Any:
        """A call that may be made again, if everything that it is given is kept to the last."""
        before, listed, arguments = self._losses, len(self.lost), node.arguments
        if _renamed(node.function) in TENSOR_FUNCTIONS:
            storage = self._storage(node, path)
            if storage is _LOST:
                return _LOST
            arguments = arguments[1:]
        kept = tuple(self._keep(argument, path, depth + 1) for argument in arguments)
        if self._losses > before:  # its parts have no names of their own
            parts = self.lost[listed:]
            del self.lost[listed:]
            return self._lose(path, sum(part.bytes for part in parts), parts[0].reason if parts else "")
        head = () if len(arguments) == len(node.arguments) else (storage,)
        module, _, name = _renamed(node.function).rpartition(".")
        return Call(Global(module, name), (*head, *kept))

    def _rebuilt_from_type(self, node: Call, path: Path, depth: int) -> Any:
        """A tensor with attributes of its own: the function and arguments of a plain one, its type and its attributes."""
        function, type_, arguments, state = node.arguments
        if _renamed(type_) not in _TENSOR_TYPES or _renamed(function) not in TENSOR_FUNCTIONS:
            return self._lose(
                path, self._bytes_in(node), f"it is {_described(type_)}, which only its own code can rebuild"
            )
        plain = self._rebuilt(Call(function, arguments), path, depth)
        attributes = self._keep(state, path, depth + 1)
        if _LOST in (plain, attributes):
            return _LOST
        return Call(node.function, (plain.function, type_, plain.arguments, attributes))

    def _storage(self, node: Call, path: Path) -> Any:
        """The reference to a tensor's storage, in the form that torch writes, if the storage is there."""
        tensor = tensor_of(node)
        if tensor is None:
            return self._lose(path, 0, "it does not describe a tensor that makes sense")
        storage = self._storages[tensor.storage]
        if storage.state is State.LOST:
            return self._lose(path, tensor.bytes, storage.reason)
        if tensor.storage_bytes != storage.size:
            return self._lose(path, tensor.bytes, "it disagrees with other tensors about the size of its storage")
        word, kind, key, location, count = node.arguments[0].id
        module = "torch.storage" if kind.name == "UntypedStorage" else "torch"
        return Persistent(
            (word, Global(module, kind.name), key, location if isinstance(location, str) else "cpu", count)
        )

    def _bytes_in(self, node: Call) -> int:
        if id(node) not in self._object_bytes:
            self._object_bytes[id(node)] = sum({t.storage: t.storage_bytes for t in tensors_in(node)}.values())
        return self._object_bytes[id(node)]


def _name(path: Path) -> str:
    return ".".join(map(part_text, path))[:MAX_NAME_CHARACTERS] or "the whole payload"


def _plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, int) and fits(value))


def _renamed(node: Any) -> str:
    """The name of a global, as Python 3 calls it; of anything else nothing."""
    return str(node).replace("__builtin__.", "builtins.") if isinstance(node, Global) else ""


def _described(node: Any) -> str:
    match node:
        case Global():
            return f"{node}"
        case Call(function=Global() as function):
            named = node.arguments[0] if isinstance(node.arguments, tuple) and node.arguments else None
            return f"a {named}" if isinstance(named, Global) else f"what {function} makes"
        case Persistent():
            return "a storage by itself"
        case _:
            return f"a {type(node).__name__}"

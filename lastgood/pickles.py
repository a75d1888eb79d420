"""Read a pickle as data: nothing it names is imported, called or built.

A pickle is a program for a small stack machine. This module runs only the machine's data part: dictionaries, lists and
numbers come out as themselves, everything that would import or call comes out as a description (`Global`, `Call`,
`Persistent`). Size, operations, containers and texts are limited, so that a hostile file costs bounded time and memory.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lastgood.pickle_code import OPERATIONS, Operation, argument
from lastgood.pickle_code import CutError as CutError
from lastgood.pickle_code import PickleError as PickleError
from lastgood.pickle_code import TooLargeError as TooLargeError
from lastgood.uncollected import Uncollected

MAX_BYTES = 64 << 20  # data.pkl of a 70 B model is about 1 MB; its tensors' bytes are elsewhere
MAX_OPERATIONS = 2_000_000  # about thirty make a tensor
MAX_CONTAINERS = 500_000  # an empty set costs 200 bytes for the one that made it
MAX_CHOSEN_KEYS = 2_000  # keys whose hashes can be chosen to collide; comparing each with each takes a moment
MAX_KEY_LENGTH = 1 << 14  # of a text; equal ones are compared to their last character each time
MAX_KEY_PARTS = 500_000  # of all keys that are tuples; their hashes are computed each time
MAX_PROTOCOL = 5


@dataclass(frozen=True)
class Global:
    """Something the pickle would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, slots=True)
class Call:
    """Something the pickle would call or build: its parts, uncalled. `items` are what would be stored in the result."""

    function: Any
    arguments: Any
    state: Any = None
    items: list[Any] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Persistent:
    """A reference to something outside the pickle; in a torch file a tuple that names a storage."""

    id: Any


@dataclass
class Contents:
    """What a pickle holds: its value, and every global, call and persistent id in it, in order of appearance."""

    value: Any
    globals: list[Global]
    calls: list[Call]
    persistent: list[Persistent]


_MARK = object()


class _Machine:
    """The stack machine. One method an operation that does more than push a value."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.globals: list[Global] = []
        self.calls: list[Call] = []
        self.persistent: list[Persistent] = []
        self.containers = 0
        self.key_parts = self.chosen_keys = 0

    def pop_to_mark(self) -> list[Any]:
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is _MARK:
                items = self.stack[index + 1 :]
                del self.stack[index:]
                return items
        raise PickleError("a mark is missing")

    def push_container(self, container: Any) -> None:
        self.containers += 1
        if self.containers > MAX_CONTAINERS:
            raise TooLargeError(f"it holds more than {MAX_CONTAINERS:,} containers")
        self.stack.append(container)

    def push_global(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise PickleError("a global is named by something that is no text")
        if len(module) + len(name) > MAX_KEY_LENGTH:
            raise PickleError("the name of a global is absurdly long")
        self.globals.append(Global(module, name))
        self.push_container(self.globals[-1])

    def push_call(self, function: Any, arguments: Any) -> None:
        self.calls.append(Call(function, arguments))
        self.push_container(self.calls[-1])

    def push_persistent(self, identifier: Any) -> None:
        self.persistent.append(Persistent(identifier))
        self.stack.append(self.persistent[-1])

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        if type(self.stack[-1]) is dict:
            self.stack[-1][self.hashable(key)] = value
        else:
            self.set_items([key, value])

    def set_items(self, items: list[Any]) -> None:
        pairs = list(zip(items[::2], items[1::2], strict=True))
        target = self.stack[-1]
        if isinstance(target, dict):
            target.update((self.hashable(key), value) for key, value in pairs)
        elif isinstance(target, Call):
            target.items.extend(pairs)
        else:
            raise PickleError("items are set in something that is no dictionary")

    def append_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, set):
            target.update(map(self.hashable, items))
        elif isinstance(target, Call):
            target.items.extend(items)
        else:
            raise PickleError("items are appended to something that is no list")

    def hashable(self, key: Any) -> Any:
        """`key` if it may be hashed: hashing a tuple nested a million deep would end the process, not raise."""
        kind = type(key)
        if (kind is str and len(key) <= MAX_KEY_LENGTH) or (kind is int and -_HASH_MODULUS < key < _HASH_MODULUS):
            return key
        parts = key if kind is tuple else (key,)
        self.key_parts += len(parts)
        if self.key_parts > MAX_KEY_PARTS:
            raise TooLargeError(f"its keys have more than {MAX_KEY_PARTS:,} parts")
        if not all(isinstance(part, _FLAT) for part in parts):
            raise TooLargeError("a key is neither text, a number nor a flat tuple of them, and not read here")
        if any(isinstance(part, str | bytes) and len(part) > MAX_KEY_LENGTH for part in parts):
            raise TooLargeError(f"a key is longer than {MAX_KEY_LENGTH:,} characters")
        self.chosen_keys += any(isinstance(part, int | float) for part in parts)
        if self.chosen_keys > MAX_CHOSEN_KEYS:
            raise TooLargeError(f"it holds more than {MAX_CHOSEN_KEYS:,} keys that could be made to collide")
        return key

    def build(self) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], Call):
            self.stack[-1].state = state


_HASH_MODULUS = (1 << 61) - 1  # integers below it have hashes of their own
_FLAT = (str, int, float, bytes, Global, Call, Persistent, type(None))


def _two(machine: _Machine) -> tuple[Any, Any]:
    second, first = machine.stack.pop(), machine.stack.pop()
    return first, second


def _tuple(count: int) -> Callable[[_Machine, Any], None]:
    def act(machine: _Machine, _: Any) -> None:
        if len(machine.stack) < count:
            raise PickleError("the stack is empty")
        machine.stack[len(machine.stack) - count :] = [tuple(machine.stack[len(machine.stack) - count :])]

    return act


def _inst(machine: _Machine, names: tuple[str, str]) -> None:
    arguments = tuple(machine.pop_to_mark())
    machine.push_global(*names)
    machine.push_call(machine.stack.pop(), arguments)


def _obj(machine: _Machine, _: Any) -> None:
    function, *arguments = machine.pop_to_mark()
    machine.push_call(function, tuple(arguments))


def _newobj_ex(machine: _Machine, _: Any) -> None:
    keywords = machine.stack.pop()
    function, arguments = _two(machine)
    machine.push_call(function, (arguments, keywords))


def _dictionary(machine: _Machine, _: Any) -> None:
    items = machine.pop_to_mark()
    machine.push_container({})
    machine.set_items(items)


def _protocol(_: _Machine, protocol: int) -> None:
    if protocol > MAX_PROTOCOL:
        raise PickleError(f"its protocol is said to be {protocol}")


def _put(machine: _Machine, index: int) -> None:
    machine.memo[index] = machine.stack[-1]


def _get(machine: _Machine, index: int) -> None:
    machine.stack.append(machine.memo[index])


def _refuse(_: _Machine, __: Any) -> None:
    raise PickleError("this operation has no place in a checkpoint")


def _push(machine: _Machine, value: Any) -> None:
    machine.stack.append(value)


def _nothing(machine: _Machine, _: Any) -> None:
    """What an operation does that carries no data, and one whose result is not wanted."""


_ACTIONS: dict[str, Callable[[_Machine, Any], object]] = {
    "PROTO": _protocol,
    "FRAME": _nothing,
    "STOP": _nothing,
    "READONLY_BUFFER": _nothing,
    "MARK": lambda m, _: m.stack.append(_MARK),
    "POP": lambda m, _: m.stack.pop(),
    "POP_MARK": lambda m, _: m.pop_to_mark(),
    "DUP": lambda m, _: m.stack.append(m.stack[-1]),
    "NONE": lambda m, _: m.stack.append(None),
    "NEWTRUE": lambda m, _: m.stack.append(True),
    "NEWFALSE": lambda m, _: m.stack.append(False),
    "EMPTY_DICT": lambda m, _: m.push_container({}),
    "EMPTY_LIST": lambda m, _: m.push_container([]),
    "EMPTY_TUPLE": lambda m, _: m.stack.append(()),
    "EMPTY_SET": lambda m, _: m.push_container(set()),
    "DICT": _dictionary,
    "LIST": lambda m, _: m.push_container(m.pop_to_mark()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.pop_to_mark())),
    "FROZENSET": lambda m, _: m.push_container(frozenset(map(m.hashable, m.pop_to_mark()))),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "SETITEM": lambda m, _: m.set_item(),
    "SETITEMS": lambda m, _: m.set_items(m.pop_to_mark()),
    "APPEND": lambda m, _: m.append_items([m.stack.pop()]),
    "APPENDS": lambda m, _: m.append_items(m.pop_to_mark()),
    "ADDITEMS": lambda m, _: m.append_items(m.pop_to_mark()),
    "MEMOIZE": lambda m, _: _put(m, len(m.memo)),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _get),
    "GLOBAL": lambda m, names: m.push_global(*names),
    "STACK_GLOBAL": lambda m, _: m.push_global(*_two(m)),
    "REDUCE": lambda m, _: m.push_call(*_two(m)),
    "NEWOBJ": lambda m, _: m.push_call(*_two(m)),
    "NEWOBJ_EX": _newobj_ex,
    "INST": _inst,
    "OBJ": _obj,
    "BUILD": lambda m, _: m.build(),
    "PERSID": lambda m, identifier: m.push_persistent(identifier),
    "BINPERSID": lambda m, _: m.push_persistent(m.stack.pop()),
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), _refuse),
}

_UNKNOWN, _START = Operation("no operation that there is", 0, bytes), Operation("the start", 0, bytes)
_STOP = OPERATIONS[ord(".")]


def _step(operation: Operation) -> tuple[Operation, int, Callable[[bytes], Any], Callable[[_Machine, Any], object]]:
    act = _ACTIONS.get(operation.name, _push if operation.length else _refuse)
    return operation, operation.length, operation.meaning, act


_STEPS = [_step(OPERATIONS.get(code, _UNKNOWN)) for code in range(256)]
"""Every operation by its byte, and what it does: an argument without an action of its own is a value."""


def read(data: bytes) -> Contents:
    """Read one pickle that must fill `data` to its last byte. Raises PickleError when it does not make sense."""
    if len(data) > MAX_BYTES:
        raise TooLargeError(f"it is larger than {MAX_BYTES:,} bytes")
    contents, end = read_one(data)
    if end != len(data):
        raise PickleError(f"{len(data) - end:,} bytes follow its end")
    return contents


def read_one(data: bytes, start: int = 0, most: int = MAX_OPERATIONS) -> tuple[Contents, int]:
    """Read the pickle that begins at byte `start` of `data`, of `most` operations; returns it and where it ends.

    Raises CutError when the bytes end before it does, and PickleError for what else makes no sense.
    """
    machine, size, at, operation = _Machine(), len(data), start, _START
    try:
        with Uncollected():
            for _ in range(most):
                position = at
                operation, length, meaning, act = _STEPS[data[at]]
                at += 1
                if not length:
                    act(machine, None)
                    if operation is _STOP:
                        return _contents(machine), at
                elif 0 < length <= size - at:
                    at += length
                    act(machine, meaning(data[at - length : at]))
                else:
                    value, at = argument(operation, data, at)
                    act(machine, value)
        raise TooLargeError(f"it has more than {most:,} operations")
    except PickleError as error:
        error.args = (f"at byte {position:,} ({operation.name}): {error}",)
        raise
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        if at >= size:
            raise CutError(f"it ends at byte {size:,}, after {operation.name}", size + 1) from None
        raise PickleError(f"at byte {at:,} (after {operation.name}): {error}") from None


def _contents(machine: _Machine) -> Contents:
    if len(machine.stack) != 1 or machine.stack[0] is _MARK:
        raise PickleError("it ends without leaving exactly one value")
    return Contents(machine.stack[0], machine.globals, machine.calls, machine.persistent)

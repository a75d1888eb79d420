"""Read a pickle as data: nothing it names is imported, called or built.

A pickle is a program for a small stack machine. This module runs only the machine's data part: dictionaries, lists and
numbers come out as themselves, everything that would import or call comes out as a description (`Global`, `Call`,
`Persistent`). Size, operations and memo are limited, so that a hostile file costs bounded time and memory.
"""

import io
import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

MAX_BYTES = 256 << 20  # data.pkl of a 70 B model is about 1 MB; its tensors' bytes are elsewhere
MAX_OPERATIONS = 5_000_000
MAX_CONTAINERS = 1_000_000  # an empty set costs 200 bytes for the one that made it
MAX_INTEGER_BYTES = 1 << 10  # a step or a seed, never a novel
MAX_KEY = 1 << 63  # larger ones can be chosen so that they all collide


class PickleError(Exception):
    """The bytes are not a whole, sane pickle; the message says at which operation it ends making sense."""


class TooLargeError(PickleError):
    """The pickle may be sane, but reading it would cost more than a checkpoint's structure should."""


@dataclass(frozen=True)
class Global:
    """Something the pickle would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class Call:
    """Something the pickle would call or build: its parts, uncalled. `items` are what would be stored in the result."""

    function: Any
    arguments: Any
    state: Any = None
    items: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class Persistent:
    """A reference to something outside the pickle; in a torch file a tuple that names a storage."""

    id: Any


@dataclass
class Contents:
    """What a pickle holds: its value, every global it names and every persistent id, in order of appearance."""

    value: Any
    globals: list[Global]
    persistent: list[Persistent]


_MARK = object()
_LITERALS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_ARGUMENT_IS_VALUE = frozenset(
    [
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "UNICODE",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
    ]
)


class _Machine:
    """The stack machine. One method an operation that does more than push a value."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.globals: list[Global] = []
        self.persistent: list[Persistent] = []

    def pop_to_mark(self) -> list[Any]:
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is _MARK:
                items = self.stack[index + 1 :]
                del self.stack[index:]
                return items
        raise PickleError("a mark is missing")

    def push_global(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise PickleError("a global is named by something that is no text")
        self.globals.append(Global(module, name))
        self.stack.append(self.globals[-1])

    def push_call(self, function: Any, arguments: Any) -> None:
        self.stack.append(Call(function, arguments))

    def push_persistent(self, identifier: Any) -> None:
        self.persistent.append(Persistent(identifier))
        self.stack.append(self.persistent[-1])

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def set_items(self, items: list[Any]) -> None:
        pairs = list(zip(items[::2], items[1::2], strict=True))
        target = self.stack[-1]
        if isinstance(target, dict):
            target.update((_hashable(key), value) for key, value in pairs)
        elif isinstance(target, Call):
            target.items.extend(pairs)
        else:
            raise PickleError("items are set in something that is no dictionary")

    def append_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, set):
            target.update(map(_hashable, items))
        elif isinstance(target, Call):
            target.items.extend(items)
        else:
            raise PickleError("items are appended to something that is no list")

    def build(self) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], Call):
            self.stack[-1].state = state

    def run(self, operation: str, argument: Any) -> None:
        """Carry out one operation. Raises PickleError, or LookupError and TypeError of the containers."""
        if operation in _ARGUMENT_IS_VALUE:
            self.stack.append(argument)
        elif operation in _LITERALS:
            self.stack.append(_LITERALS[operation])
        else:
            act = _ACTIONS.get(operation)
            if act is None:
                raise PickleError(f"the operation {operation} has no place in a checkpoint")
            act(self, argument)


_FLAT = (str, int, float, bytes, Global, Call, Persistent, type(None))


def _hashable(key: Any) -> Any:
    """`key` if it may be hashed: hashing a tuple nested a million deep would end the process, not raise."""
    parts = key if isinstance(key, tuple) else (key,)
    if not all(isinstance(part, _FLAT) for part in parts):
        raise PickleError("a key is neither text, a number nor a flat tuple of them")
    if any(isinstance(part, float) or (isinstance(part, int) and abs(part) >= MAX_KEY) for part in parts):
        return repr(key)  # numbers whose hashes can be chosen to collide
    return key


def _two(machine: _Machine) -> tuple[Any, Any]:
    second, first = machine.stack.pop(), machine.stack.pop()
    return first, second


def _tuple(count: int) -> Callable[[_Machine, Any], None]:
    def act(machine: _Machine, _: Any) -> None:
        if len(machine.stack) < count:
            raise PickleError("the stack is empty")
        machine.stack[len(machine.stack) - count :] = [tuple(machine.stack[len(machine.stack) - count :])]

    return act


def _inst(machine: _Machine, argument: str) -> None:
    arguments = tuple(machine.pop_to_mark())
    machine.push_global(*argument.split(" ", 1))
    machine.push_call(machine.stack.pop(), arguments)


def _obj(machine: _Machine, _: Any) -> None:
    function, *arguments = machine.pop_to_mark()
    machine.push_call(function, tuple(arguments))


def _newobj_ex(machine: _Machine, _: Any) -> None:
    keywords = machine.stack.pop()
    function, arguments = _two(machine)
    machine.push_call(function, (arguments, keywords))


def _pop(machine: _Machine, _: Any) -> None:
    machine.stack.pop()


def _dictionary(machine: _Machine, _: Any) -> None:
    items = machine.pop_to_mark()
    machine.stack.append({})
    machine.set_items(items)


def _nothing(machine: _Machine, _: Any) -> None:
    """Framing and protocol numbers carry no data."""


_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _nothing,
    "FRAME": _nothing,
    "STOP": _nothing,
    "READONLY_BUFFER": _nothing,
    "MARK": lambda m, _: m.stack.append(_MARK),
    "POP": _pop,
    "POP_MARK": lambda m, _: _drop(m.pop_to_mark()),
    "DUP": lambda m, _: m.stack.append(m.stack[-1]),
    "EMPTY_DICT": lambda m, _: m.stack.append({}),
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "EMPTY_TUPLE": lambda m, _: m.stack.append(()),
    "EMPTY_SET": lambda m, _: m.stack.append(set()),
    "DICT": _dictionary,
    "LIST": lambda m, _: m.stack.append(m.pop_to_mark()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.pop_to_mark())),
    "FROZENSET": lambda m, _: m.stack.append(frozenset(map(_hashable, m.pop_to_mark()))),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "SETITEM": lambda m, _: m.set_items(list(_two(m))),
    "SETITEMS": lambda m, _: m.set_items(m.pop_to_mark()),
    "APPEND": lambda m, _: m.append_items([m.stack.pop()]),
    "APPENDS": lambda m, _: m.append_items(m.pop_to_mark()),
    "ADDITEMS": lambda m, _: m.append_items(m.pop_to_mark()),
    "PUT": lambda m, index: m.put(index),
    "BINPUT": lambda m, index: m.put(index),
    "LONG_BINPUT": lambda m, index: m.put(index),
    "MEMOIZE": lambda m, _: m.put(len(m.memo)),
    "GET": lambda m, index: m.get(index),
    "BINGET": lambda m, index: m.get(index),
    "LONG_BINGET": lambda m, index: m.get(index),
    "GLOBAL": lambda m, argument: m.push_global(*argument.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.push_global(*_two(m)),
    "REDUCE": lambda m, _: m.push_call(*_two(m)),
    "NEWOBJ": lambda m, _: m.push_call(*_two(m)),
    "NEWOBJ_EX": _newobj_ex,
    "INST": _inst,
    "OBJ": _obj,
    "BUILD": lambda m, _: m.build(),
    "PERSID": lambda m, identifier: m.push_persistent(identifier),
    "BINPERSID": lambda m, _: m.push_persistent(m.stack.pop()),
}


def _drop(_: list[Any]) -> None:
    """What was popped is not wanted."""


_MAKES_CONTAINER = frozenset(
    {
        "EMPTY_DICT",
        "EMPTY_LIST",
        "EMPTY_SET",
        "DICT",
        "LIST",
        "FROZENSET",
        "REDUCE",
        "NEWOBJ",
        "NEWOBJ_EX",
        "INST",
        "OBJ",
    }
)


def _operations(data: bytes) -> Iterator[tuple[str, Any, int]]:
    containers = 0
    for count, (opcode, argument, position) in enumerate(pickletools.genops(io.BytesIO(data))):
        if count >= MAX_OPERATIONS:
            raise TooLargeError(f"it has more than {MAX_OPERATIONS:,} operations")
        containers += opcode.name in _MAKES_CONTAINER
        if containers > MAX_CONTAINERS:
            raise TooLargeError(f"it holds more than {MAX_CONTAINERS:,} containers")
        yield opcode.name, argument, position or 0


def read(data: bytes) -> Contents:
    """Read one pickle that must fill `data` to its last byte. Raises PickleError when it does not make sense."""
    if len(data) > MAX_BYTES:
        raise TooLargeError(f"it is larger than {MAX_BYTES:,} bytes")
    machine = _Machine()
    position = end = 0
    operation = "the start"
    try:
        for operation, argument, position in _operations(data):
            if isinstance(argument, int) and argument.bit_length() > 8 * MAX_INTEGER_BYTES:
                raise PickleError("a number is absurdly long")
            machine.run(operation, argument)
            end = position + 1
    except PickleError as error:
        raise type(error)(f"at byte {position:,} ({operation}): {error}") from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise PickleError(f"at byte {position:,} (after {operation}): {error}") from None
    if operation != "STOP" or len(machine.stack) != 1 or machine.stack[0] is _MARK:
        raise PickleError("it ends without leaving exactly one value")
    if end != len(data):
        raise PickleError(f"{len(data) - end:,} bytes follow its end")
    return Contents(machine.stack[0], machine.globals, machine.persistent)

"""How the operations of a pickle are written: one byte each, and for some an argument behind it.

Source: the standard library's `pickletools`, which lists every operation. Arguments are looked at before they are copied,
so that a length that lies costs nothing.
"""

import io
import pickletools
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

MAX_TEXT_BYTES = 16 << 20  # of one text; in memory one that is made to be costly takes four times as much
MAX_INTEGER_BYTES = 1 << 10  # a step or a seed, never a novel


class PickleError(Exception):
    """The bytes are not a whole, sane pickle; the message says at which operation it ends making sense."""


class TooLargeError(PickleError):
    """The pickle may be sane, but reading it would cost more than a checkpoint's structure should."""


class CutError(PickleError):
    """The bytes end before the pickle does, which needs at least the first `needed` of them."""

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


class Operation(NamedTuple):
    """An operation: its name, how long its argument is, and what that means.

    `length` is in bytes if it is not negative; else the argument tells its own, in one of pickletools' ways.
    """

    name: str
    length: int
    meaning: Callable[[bytes], Any]


def argument(operation: Operation, data: bytes, at: int) -> tuple[Any, int]:
    """The argument that begins at byte `at` of `data`, and where it ends. Raises PickleError, and ValueError for nonsense."""
    end = at + operation.length
    if operation.length < 0:
        at, end = _extent(operation, data, at)
        if end - at > MAX_TEXT_BYTES and end <= len(data):
            raise TooLargeError(f"a text is longer than {MAX_TEXT_BYTES:,} bytes")
    if end > len(data):
        raise CutError(f"it goes on to byte {end:,} at least", end)
    return operation.meaning(data[at:end]), end


def _extent(operation: Operation, data: bytes, at: int) -> tuple[int, int]:
    width = _LENGTH_BYTES.get(operation.length)
    if width is not None:
        begin = at + width
        return begin, (begin + int.from_bytes(data[at:begin], "little") if begin <= len(data) else begin)
    end = at
    for _ in range(2 if operation.name in ("GLOBAL", "INST") else 1):
        end = (data.find(b"\n", end, at + MAX_TEXT_BYTES) + 1) or min(len(data), at + MAX_TEXT_BYTES) + 1
    return at, end


def _unsigned(raw: bytes) -> int:
    return int.from_bytes(raw, "little")


def _signed(raw: bytes) -> int:
    if len(raw) > MAX_INTEGER_BYTES:
        raise TooLargeError("a number is absurdly long")
    return int.from_bytes(raw, "little", signed=True)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def _two_lines(raw: bytes) -> tuple[str, str]:
    first, second, _ = _text(raw).split("\n")
    return first, second


_MEANINGS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("uint1", "uint2", "uint4", "uint8"), _unsigned),
    **dict.fromkeys(("int4", "long1", "long4"), _signed),
    **dict.fromkeys(("unicodestring1", "unicodestring4", "unicodestring8"), _text),
    **dict.fromkeys(("string1", "string4"), lambda raw: raw.decode("latin-1")),
    **dict.fromkeys(("bytes1", "bytes4", "bytes8"), bytes),
    "bytearray8": bytearray,
    "float8": lambda raw: struct.unpack(">d", raw)[0],
    "stringnl_noescape_pair": _two_lines,
}
"""What arguments of a kind mean, by pickletools' name of it. Its own readers know those that are one line of text."""

_LENGTH_BYTES = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}


def _operation(known: pickletools.OpcodeInfo) -> Operation:
    if known.arg is None:
        return Operation(known.name, 0, bytes)
    reader: Callable[[io.BytesIO], Any] = known.arg.reader
    longest = MAX_TEXT_BYTES if known.arg.name.startswith(("string", "unicode")) else MAX_INTEGER_BYTES

    def line(raw: bytes) -> Any:
        if len(raw) > longest:
            raise TooLargeError("a number is absurdly long")
        return reader(io.BytesIO(raw))

    return Operation(known.name, known.arg.n, _MEANINGS.get(known.arg.name, line))


OPERATIONS = {ord(known.code): _operation(known) for known in pickletools.opcodes}
"""Every operation by its byte."""

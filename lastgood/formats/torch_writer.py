"""Write a torch file without torch, from a pickle's description and streams of bytes.

The archive is laid out as torch.save lays it out (data aligned to 64 bytes, a CRC32 behind every record), so that torch.load
takes it with `weights_only=True` and with `mmap=True`, and `verify` proves it by its checksums. One chunk is in memory at a time.
"""

import struct
import zipfile
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

from lastgood.pickles import Call, Global, Persistent

ALIGNMENT = 64
_PREFIX = "archive"
_ZIP64_FROM = 1 << 30  # zipfile needs to be told before it knows the size
_ZIP64_EXTRA_BYTES = 20
_HEADER_BYTES = 30
_MAX_LONG_BYTES = 255  # torch's own unpickler reads no longer integers

Stream = tuple[str, int, Iterable[bytes]]
"""A storage to write: its key, its size in bytes, its bytes in chunks."""


def write(file: BinaryIO, value: Any, storages: Iterable[Stream], byteorder: str = "little") -> None:
    """Write the archive that holds `value`, which may refer to `storages` (in this order) by `Persistent`.

    `byteorder` is that of the storages' elements. Raises OSError as `file` and the streams do, and TypeError for a value
    that `encode` does not take.
    """
    pickle = encode(value)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        _record(archive, file, "data.pkl", len(pickle), [pickle])
        _record(archive, file, "byteorder", len(byteorder), [byteorder.encode()])
        for key, size, chunks in storages:
            _record(archive, file, f"data/{key}", size, chunks)
        _record(archive, file, "version", 2, [b"3\n"])


def _record(archive: zipfile.ZipFile, file: BinaryIO, name: str, size: int, chunks: Iterable[bytes]) -> None:
    info = zipfile.ZipInfo(f"{_PREFIX}/{name}")
    large = size >= _ZIP64_FROM
    start = file.tell() + _HEADER_BYTES + len(info.filename.encode()) + 4 + large * _ZIP64_EXTRA_BYTES
    padding = -start % ALIGNMENT
    info.extra = struct.pack("<2sH", b"FB", padding) + b"Z" * padding
    with archive.open(info, "w", force_zip64=large) as record:
        for chunk in chunks:
            record.write(chunk)


def encode(value: Any) -> bytes:
    """The pickle (protocol 2) whose value is described by `value`, as `pickles.read` describes one.

    Objects that occur more than once are written once, so sharing and cycles survive. Raises TypeError for a type, and
    ValueError for an integer, that torch's own unpickler would refuse.
    """
    encoder = _Encoder()
    encoder.put(value)
    return bytes(encoder.out + b".")


def fits(number: int) -> bool:
    """Whether an integer is one that torch's own unpickler reads."""
    return number.bit_length() < 8 * _MAX_LONG_BYTES


class _Encoder:
    """Appends one node after another; `memo` knows what was written before and under which number."""

    def __init__(self) -> None:
        self.out = bytearray(b"\x80\x02")
        self.memo: dict[Any, int] = {}
        self.alive: list[Any] = []  # what is remembered by its id must not go while that is so

    def put(self, node: Any) -> None:
        known = self.memo.get(_identity(node))
        if known is not None:
            self.out += b"j" + struct.pack("<I", known)
            return
        act = _WRITERS.get(type(node))
        if act is None:
            raise TypeError(f"{type(node).__name__} has no place in a torch file")
        act(self, node)

    def remember(self, node: Any) -> None:
        index = self.memo[_identity(node)] = len(self.alive)
        self.alive.append(node)
        self.out += b"r" + struct.pack("<I", index)

    def number(self, node: int) -> None:
        if -(1 << 31) <= node < 1 << 31:
            self.out += b"J" + struct.pack("<i", node)
            return
        if not fits(node):
            raise ValueError("an integer is too long for a torch file")
        data = node.to_bytes(node.bit_length() // 8 + 1, "little", signed=True)
        self.out += b"\x8a" + bytes([len(data)]) + data

    def text(self, node: str) -> None:
        data = node.encode("utf-8", "surrogatepass")
        self.out += b"X" + struct.pack("<I", len(data)) + data
        self.remember(node)

    def raw(self, node: bytes) -> None:
        self.put(Global("_codecs", "encode"))
        self._tuple_of((node.decode("latin-1"), "latin1"))
        self.out += b"R"
        self.remember(node)

    def mutable_raw(self, node: bytearray) -> None:
        self.put(Global("builtins", "bytearray"))
        self._tuple_of((bytes(node),))
        self.out += b"R"
        self.remember(node)

    def several(self, node: set[Any]) -> None:
        self.put(Global("builtins", "set"))
        self._tuple_of((list(node),))
        self.out += b"R"
        self.remember(node)

    def mapping(self, node: dict[Any, Any]) -> None:
        self.out += b"}"
        self.remember(node)
        self._pairs(list(node.items()))

    def row(self, node: list[Any]) -> None:
        self.out += b"]"
        self.remember(node)
        if node:
            self.out += b"("
            for item in node:
                self.put(item)
            self.out += b"e"

    def fixed_row(self, node: tuple[Any, ...]) -> None:
        self._tuple_of(node)
        self.remember(node)

    def name(self, node: Global) -> None:
        self.out += f"c{node.module}\n{node.name}\n".encode()
        self.remember(node)

    def reference(self, node: Persistent) -> None:
        self._tuple_of(node.id)
        self.out += b"Q"

    def call(self, node: Call) -> None:
        self.put(node.function)
        self._tuple_of(node.arguments)
        self.out += b"R"
        self.remember(node)
        self._pairs(node.items)
        if node.state is not None:
            self.put(node.state)
            self.out += b"b"

    def _tuple_of(self, items: tuple[Any, ...]) -> None:
        self.out += b"("
        for item in items:
            self.put(item)
        self.out += b"t"

    def _pairs(self, pairs: list[tuple[Any, Any]]) -> None:
        if pairs:
            self.out += b"("
            for key, value in pairs:
                self.put(key)
                self.put(value)
            self.out += b"u"

    def literal(self, node: bool | None) -> None:
        self.out += {None: b"N", True: b"\x88", False: b"\x89"}[node]

    def real(self, node: float) -> None:
        self.out += b"G" + struct.pack(">d", node)


def _identity(node: Any) -> Any:
    """What makes two nodes the same one: text and names by value, everything else by being the same object."""
    return (type(node), node) if isinstance(node, str | Global) else id(node)


_WRITERS: dict[type, Callable[[_Encoder, Any], None]] = {
    type(None): _Encoder.literal,
    bool: _Encoder.literal,
    int: _Encoder.number,
    float: _Encoder.real,
    str: _Encoder.text,
    bytes: _Encoder.raw,
    bytearray: _Encoder.mutable_raw,
    set: _Encoder.several,
    dict: _Encoder.mapping,
    list: _Encoder.row,
    tuple: _Encoder.fixed_row,
    Global: _Encoder.name,
    Call: _Encoder.call,
    Persistent: _Encoder.reference,
}

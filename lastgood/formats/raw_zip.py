"""Read a zip archive by position, believing nothing: what is needed where its directory and headers may be damaged."""

import os
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from lastgood.formats import DamageError
from lastgood.verdict import Kind

CHUNK_BYTES = 1 << 20
MAX_NAME_BYTES = 1024
READ_COST_BYTES = 1024  # what could be read in the time that any read takes

HEADER, DESCRIPTOR, ENTRY, END_OF_DIRECTORY = b"PK\x03\x04", b"PK\x07\x08", b"PK\x01\x02", b"PK\x05\x06"
"""What a local header, a data descriptor, an entry of the central directory and its end begin with."""

PADDING = b"FB"
"""The mark of the extra field with which torch pads a header; a length of none before it is a damaged length."""

LOCAL = struct.Struct("<4s5H3L2H")
"""A local header without its name and extra field."""


class Source:
    """A file read by position. What cannot be read counts as not being there; `error` is the first reason.

    With `most` reading ends, by a DamageError, when it has cost as much as reading so many bytes would.
    """

    def __init__(self, file: BinaryIO, most: int | None = None) -> None:
        self.descriptor = file.fileno()
        self.size = os.fstat(self.descriptor).st_size
        self.error: OSError | None = None
        self._left = most

    def at(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes from `offset` on; fewer at the end of the file, none where it cannot be read."""
        if not 0 <= offset < self.size:
            return b""
        if self._left is not None:
            self._left -= max(count, READ_COST_BYTES)
            if self._left < 0:
                raise DamageError(Kind.TRUNCATED, "to find what is left of it would cost too much")
        try:
            return os.pread(self.descriptor, min(count, self.size - offset), offset)
        except OSError as error:
            self.error = self.error or error
            return b""

    def number(self, offset: int, width: int = 4) -> int:
        """The unsigned number of `width` bytes at `offset`; -1 where they are not."""
        data = self.at(offset, width)
        return int.from_bytes(data, "little") if len(data) == width else -1

    def chunks(self, start: int, size: int) -> Iterator[bytes]:
        """The bytes from `start` on in pieces; ends early where they cannot be read."""
        while size > 0:
            data = self.at(start, min(CHUNK_BYTES, size))
            if not data:
                return
            yield data
            start, size = start + len(data), size - len(data)

    def crc(self, start: int, size: int) -> int | None:
        """The CRC32 of `size` bytes from `start` on; None when they are not all there."""
        if start + size > self.size:
            return None
        crc = done = 0
        for data in self.chunks(start, size):
            crc, done = zlib.crc32(data, crc), done + len(data)
        return crc if done == size else None

    def find_all(self, needle: bytes, start: int, size: int) -> Iterator[int]:
        """Where `needle` begins, each time, within the `size` bytes from `start` on."""
        tail, position = b"", start
        for data in self.chunks(start, size):
            text, base = tail + data, position - len(tail)
            at = text.find(needle)
            while at >= 0:
                yield base + at
                at = text.find(needle, at + 1)
            tail, position = text[-(len(needle) - 1) :], position + len(data)


@dataclass(frozen=True)
class Header:
    """A legible local header: its name without the archive's own, and where its data begins.

    `start` is None when the header's own lengths contradict each other; `size` and `crc` are None when they come after the
    data. `prefix_bytes` is the length of the archive's name.
    """

    name: str
    start: int | None
    size: int | None
    crc: int | None
    prefix_bytes: int


def read_header(source: Source, offset: int) -> Header | None:
    """The local header at `offset`, or None when there is none that can be read."""
    raw = source.at(offset, LOCAL.size + MAX_NAME_BYTES)
    if len(raw) < LOCAL.size or raw[:4] != HEADER:
        return None
    _, _, flags, method, _, _, crc, packed, size, name_bytes, extra_bytes = LOCAL.unpack_from(raw)
    prefix, _, name = raw[LOCAL.size : LOCAL.size + name_bytes].partition(b"/")
    extra = offset + LOCAL.size + name_bytes
    sane = _fields_fill(source.at(extra, extra_bytes), extra_bytes) if extra_bytes else source.at(extra, 2) != PADDING
    start = extra + extra_bytes if sane else None
    told = not flags & 0x8 and method == zipfile.ZIP_STORED and packed == size
    return Header(name.decode("utf-8", "replace"), start, size if told else None, crc if told else None, len(prefix))


def _fields_fill(extra: bytes, length: int) -> bool:
    """Whether the fields of an extra part, each with its own length, add up to the length that the header tells."""
    position = 0
    while position + 4 <= len(extra):
        position += 4 + int.from_bytes(extra[position + 2 : position + 4], "little")
    return position == len(extra) == length


def read_directory(file: BinaryIO) -> dict[str, zipfile.ZipInfo]:
    """What the central directory says, as far as it can be read. A name that occurs twice is damaged, and left out."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = [entry for entry in archive.infolist() if entry.compress_type == zipfile.ZIP_STORED]
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error, OverflowError, OSError):
        return {}
    names = [entry.orig_filename.partition("/")[2] for entry in entries]
    often = Counter(names)
    return {name: entry for name, entry in zip(names, entries, strict=True) if often[name] == 1}

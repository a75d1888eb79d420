"""The records of a zip archive, with its directory, its headers and its end held against each other. Nothing is repaired.

Source: the zip format's APPNOTE. Readers differ in what they overlook; whatever one of them would stumble over is damage
here: a disk that is not the first one, a flag for encryption, a file that is said to be a folder (of which torch reads nothing).
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import BinaryIO, NamedTuple

from lastgood.formats import DamageError
from lastgood.formats.raw_zip import DESCRIPTOR, END_OF_DIRECTORY, ENTRY, HEADER, LOCAL
from lastgood.uncollected import Uncollected
from lastgood.verdict import Kind

MAX_RECORDS = 250_000  # a storage each; the optimizer of a large mixture of experts has 140,000
MAX_DIRECTORY_BYTES = 64 << 20

STORED = 0
_DESCRIBED_LATER = 0x8
_TEXT_IS_UTF8 = 0x800
_KNOWN_FLAGS = _DESCRIBED_LATER | _TEXT_IS_UTF8 | 0x6  # the last two are options of a compression
_FOLDER = 0x10  # among the attributes

_ZIP64_END, _ZIP64_LOCATOR = b"PK\x06\x06", b"PK\x06\x07"
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_COMMENT_BYTES_MAX = 0xFFFF
_ELSEWHERE = 0xFFFFFFFF  # stands for a number that is in a zip64 field
_ZIP64_FIELD = 1


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its name, where its header and its packed bytes are, their CRC32 as recorded, and its unpacked size."""

    name: str
    header: int
    start: int
    end: int
    crc: int
    size: int
    stored: bool


class _Directory(NamedTuple):
    """Where the central directory is, in bytes from the file's first one, and how many entries it has."""

    start: int
    length: int
    entries: int


class _Entry(NamedTuple):
    """What the directory says about a record. `packed` and `size` are in bytes, `name` as it is written."""

    name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    header: int

    @property
    def text(self) -> str:
        """The name as text."""
        return self.name.decode("utf-8" if self.flags & _TEXT_IS_UTF8 else "cp437", "backslashreplace")


def records(file: BinaryIO) -> list[Record]:
    """Every record in order of position. Raises DamageError when anything disagrees, OSError on read errors.

    The central directory must end the file, and the first record must begin it.
    """
    descriptor = file.fileno()
    directory = _directory(descriptor, os.fstat(descriptor).st_size)
    entries = _entries(os.pread(descriptor, directory.length, directory.start), directory.entries)
    with Uncollected():
        found = sorted((_located(descriptor, entry, directory.start) for entry in entries), key=lambda one: one.header)
    if not found:
        raise DamageError(Kind.CORRUPT, "the archive holds no records")
    if found[0].header != 0:
        raise DamageError(Kind.CORRUPT, f"its first record begins at byte {found[0].header:,}, not at the first")
    for before, after in pairwise(found):
        if after.header < before.end:
            raise DamageError(Kind.CORRUPT, f"records {before.name!r} and {after.name!r} overlap")
    return found


def _directory(descriptor: int, size: int) -> _Directory:
    """What the end of the archive says about its directory, which must lie just before it."""
    before = max(0, size - _COMMENT_BYTES_MAX - _END.size)
    tail = os.pread(descriptor, size - before, before)
    at = tail.rfind(END_OF_DIRECTORY)
    if at < 0 or at + _END.size > len(tail):
        raise DamageError(Kind.TRUNCATED, f"ends at byte {size:,} without a central directory")
    _, disk, its_disk, here, entries, length, start, comment = _END.unpack_from(tail, at)
    if at + _END.size + comment != len(tail):
        raise DamageError(Kind.CORRUPT, "bytes follow the end of its central directory")
    told, end = (here, entries, length, start), before + at
    wide = _wide(descriptor, end)
    if wide is not None:
        if any(short not in (long, most) for short, long, most in zip(told, wide[:4], _MOST, strict=True)):
            raise DamageError(Kind.CORRUPT, "the two ends of its central directory disagree")
        here, entries, length, start, end = wide
    if (disk, its_disk, here) != (0, 0, entries) or start + length != end:
        raise DamageError(Kind.CORRUPT, "its central directory is not where the end of the archive says")
    if entries > MAX_RECORDS or length > MAX_DIRECTORY_BYTES:
        raise DamageError(Kind.UNPROVEN, f"its {entries:,} records are more than are read here")
    return _Directory(start, length, entries)


_MOST = (0xFFFF, 0xFFFF, _ELSEWHERE, _ELSEWHERE)


def _wide(descriptor: int, end: int) -> tuple[int, int, int, int, int] | None:
    """What the zip64 end before the end at byte `end` says: entries here, all, length and start; and where itself begins."""
    locator = os.pread(descriptor, _LOCATOR.size, max(0, end - _LOCATOR.size))
    if not locator.startswith(_ZIP64_LOCATOR) or len(locator) < _LOCATOR.size:
        return None
    _, disk, at, disks = _LOCATOR.unpack(locator)
    raw = os.pread(descriptor, _END64.size, at) if at < end else b""
    if len(raw) == _END64.size and raw.startswith(_ZIP64_END):
        _, rest, _, _, its_disk, start_disk, here, entries, length, start = _END64.unpack(raw)
        if (disk, its_disk, start_disk, disks) == (0, 0, 0, 1) and at + 12 + rest == end - _LOCATOR.size:
            return here, entries, length, start, at
    raise DamageError(Kind.CORRUPT, "the zip64 end of its central directory is damaged")


def _entries(data: bytes, count: int) -> Iterator[_Entry]:
    """The entries of a central directory, which must fill it."""
    at = 0
    for _ in range(count):
        if at + _ENTRY.size > len(data) or data[at : at + 4] != ENTRY:
            raise DamageError(Kind.CORRUPT, "its central directory is damaged")
        (_, _, _, flags, method, _, _, crc, packed, size, name_bytes, extra_bytes, comment, disk, _, attributes,
         header) = _ENTRY.unpack_from(data, at)  # fmt: skip
        extra = at + _ENTRY.size + name_bytes
        name = data[at + _ENTRY.size : extra]
        at = extra + extra_bytes + comment
        if _ELSEWHERE in (size, packed, header):
            size, packed, header = _widened((size, packed, header), data[extra : extra + extra_bytes])
        entry = _Entry(name, flags, method, crc, packed, size, header)
        if flags & ~_KNOWN_FLAGS or disk or (attributes & _FOLDER and not name.endswith(b"/")):
            raise DamageError(Kind.CORRUPT, f"what the directory says about record {entry.text!r} makes no sense")
        yield entry
    if at != len(data):
        raise DamageError(Kind.CORRUPT, "its central directory is damaged")


def _widened(numbers: tuple[int, ...], extra: bytes) -> list[int]:
    """The numbers, with those that are elsewhere taken from the zip64 field of the extra part."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        at += 4
        if kind == _ZIP64_FIELD and length >= 8 * numbers.count(_ELSEWHERE) and at + length <= len(extra):
            wide = iter(struct.unpack_from(f"<{length // 8}Q", extra, at))
            return [next(wide) if number == _ELSEWHERE else number for number in numbers]
        at += length
    raise DamageError(Kind.CORRUPT, "a large number is missing in its central directory")


def _located(descriptor: int, entry: _Entry, directory: int) -> Record:
    """Where a record's bytes are, after holding its header and what follows it against the directory."""
    raw = os.pread(descriptor, LOCAL.size + len(entry.name), entry.header) if entry.header < directory else b""
    if len(raw) < LOCAL.size or not raw.startswith(HEADER):
        raise _disagreement(entry, f"at byte {entry.header:,} is damaged")
    _, _, flags, method, _, _, crc, packed, size, name_bytes, extra_bytes = LOCAL.unpack_from(raw)
    if raw[LOCAL.size :] != entry.name or name_bytes != len(entry.name):
        raise _disagreement(entry, "bears another name")
    start = entry.header + LOCAL.size + name_bytes + extra_bytes
    end = start + entry.packed
    if end > directory:
        raise DamageError(Kind.CORRUPT, f"record {entry.text!r} reaches to byte {end:,}, into the central directory")
    if method != entry.method or (entry.method == STORED and entry.packed != entry.size):
        raise _disagreement(entry, "disagrees with the directory")
    if not flags & _DESCRIBED_LATER:
        agrees = crc == entry.crc and packed in (entry.packed, _ELSEWHERE) and size in (entry.size, _ELSEWHERE)
    else:
        agrees = entry.packed == 0 or _describes(os.pread(descriptor, 28, end - 4), entry)
    if not agrees:
        raise _disagreement(entry, "disagrees with the directory about its checksum or its size")
    return Record(entry.text, entry.header, start, end, entry.crc, entry.size, entry.method == STORED)


def _describes(around: bytes, entry: _Entry) -> bool:
    """Whether a record's data descriptor stands four bytes from the first of these, where its mark may be missing.

    Its sizes may be long. Where a mark stands before that place and none at it, the record's end is misplaced.
    """
    after = around[4:].removeprefix(DESCRIPTOR)
    if around.startswith(DESCRIPTOR) and len(after) == len(around) - 4:
        return False
    told = (entry.crc, entry.packed, entry.size)
    return any(after.startswith(struct.pack(form, *told)) for form in ("<L2Q", *["<3L"] * (max(told) < _ELSEWHERE)))


def _disagreement(entry: _Entry, what: str) -> DamageError:
    return DamageError(Kind.CORRUPT, f"the header of record {entry.text!r} {what}")

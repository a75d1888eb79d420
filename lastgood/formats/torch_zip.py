"""What `torch.save` writes since 1.6: a zip archive of stored records, each with a CRC32 that torch.load never checks.

Source: PyTorch's caffe2/serialize (inline_container) and the zip format's APPNOTE. Records are `PREFIX/data.pkl` (the
structure, a pickle), `PREFIX/data/KEY` (the bytes of one storage), `PREFIX/version` and a few more.
"""

import errno
import hashlib
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO

from lastgood import pickles
from lastgood.formats import DamageError, Inside, Judgement, TensorPart
from lastgood.formats.torch_tensors import BITS, ITEM_BYTES, walk
from lastgood.hashing import read_through
from lastgood.verdict import Kind, Proof

NAME = "torch zip"
NOTED = ("version", "byteorder", ".format_version")
NOTE_BYTES_MAX = 100

_END_OF_DIRECTORY = b"PK\x05\x06"
_END_BYTES = 22  # of an end of the central directory without its comment
_COMMENT_BYTES_MAX = 0xFFFF
_ZIP64 = 0xFFFFFFFF  # stands for a number that is in the zip64 records
_ZIP64_END_BYTES = 56 + 20  # of the zip64 end record and its locator
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")


@dataclass(frozen=True)
class Record:
    """One record: its name, where its stored bytes are in the file, their CRC32 as recorded, and its unpacked size."""

    name: str
    start: int
    end: int
    crc: int
    size: int
    stored: bool


def recognises(head: bytes, tail: bytes) -> bool:
    """Whether a file begins like a zip archive or ends like one (its first bytes may be what is damaged)."""
    return head.startswith(b"PK\x03\x04") or _END_OF_DIRECTORY in tail


def records(file: BinaryIO) -> list[Record]:
    """Every record in order of position. Raises DamageError when directory and file disagree, OSError on read errors."""
    size = os.fstat(file.fileno()).st_size
    entries, directory = _directory(file, size)
    found = sorted((_locate(file, entry, directory) for entry in entries), key=lambda record: record.start)
    for before, after in pairwise(found):
        if after.start < before.end:
            raise DamageError(Kind.CORRUPT, f"records {before.name!r} and {after.name!r} overlap")
    return found


def _directory(file: BinaryIO, size: int) -> tuple[list[zipfile.ZipInfo], int]:
    """The central directory's entries and where it begins. It must end the file, and the first record must begin it."""
    _check_end(file, size)
    try:
        with zipfile.ZipFile(file) as archive:
            entries, directory, comment = archive.infolist(), archive.start_dir, archive.comment
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error, OverflowError, UnicodeError) as error:
        raise _directory_damage(file, size, error) from None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise _directory_damage(file, size, error) from None  # a damaged offset points before the file's first byte
    file.seek(max(0, size - _END_BYTES - len(comment)))
    end = file.read(_END_BYTES)
    if end[:4] != _END_OF_DIRECTORY or int.from_bytes(end[-2:], "little") != len(comment):
        raise DamageError(Kind.CORRUPT, "bytes follow the end of its central directory")
    if not entries:
        raise DamageError(Kind.CORRUPT, "the archive holds no records")
    first = min(entry.header_offset for entry in entries)
    if first != 0:
        raise DamageError(Kind.CORRUPT, f"its first record begins at byte {first:,}, not at the first")
    return entries, directory


def _check_end(file: BinaryIO, size: int) -> None:
    """Refuse an end record whose directory does not lie just before it, before anybody reads as much as it says."""
    file.seek(max(0, size - _COMMENT_BYTES_MAX - _END_BYTES))
    tail = file.read()
    at = tail.rfind(_END_OF_DIRECTORY)
    if at < 0 or at + _END_BYTES > len(tail):
        return  # without an end it is truncated, as the archive's reader will find
    length, offset = struct.unpack("<2L", tail[at + 12 : at + 20])
    end = size - len(tail) + at
    if _ZIP64 not in (length, offset) and offset + length not in (end, end - _ZIP64_END_BYTES):
        raise DamageError(Kind.CORRUPT, "its central directory is not where the end of the archive says")


def _directory_damage(file: BinaryIO, size: int, error: Exception) -> DamageError:
    file.seek(max(0, size - (1 << 16)))
    if _END_OF_DIRECTORY in file.read():
        return DamageError(Kind.CORRUPT, f"its central directory is damaged ({error})")
    return DamageError(Kind.TRUNCATED, f"ends at byte {size:,} without a central directory")


def _locate(file: BinaryIO, entry: zipfile.ZipInfo, directory: int) -> Record:
    """Where a record's bytes are, after checking its local header against the directory."""
    file.seek(entry.header_offset)
    raw = file.read(_LOCAL_HEADER.size)
    name = entry.orig_filename
    if len(raw) < _LOCAL_HEADER.size or raw[:4] != b"PK\x03\x04":
        raise DamageError(Kind.CORRUPT, f"the header of record {name!r} at byte {entry.header_offset:,} is damaged")
    fields = _LOCAL_HEADER.unpack(raw)
    flags, method, crc, packed, name_bytes, extra_bytes = (
        fields[2],
        fields[3],
        fields[6],
        fields[7],
        fields[9],
        fields[10],
    )
    local_name = file.read(name_bytes)
    if local_name != name.encode("utf-8" if entry.flag_bits & 0x800 else "cp437", "replace"):
        raise DamageError(Kind.CORRUPT, f"record {name!r} is called otherwise in its own header")
    described_later = bool(flags & 0x8)
    if method != entry.compress_type or (not described_later and crc != entry.CRC):
        raise DamageError(Kind.CORRUPT, f"the header of record {name!r} disagrees with the directory")
    if not described_later and packed not in (entry.compress_size, 0xFFFFFFFF):
        raise DamageError(Kind.CORRUPT, f"the header of record {name!r} disagrees with the directory about its size")
    start = entry.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    end = start + entry.compress_size
    if end > directory:
        raise DamageError(Kind.CORRUPT, f"record {name!r} reaches to byte {end:,}, into the central directory")
    stored = entry.compress_type == zipfile.ZIP_STORED
    if stored and entry.compress_size != entry.file_size:
        raise DamageError(Kind.CORRUPT, f"record {name!r} is stored, yet its two sizes differ")
    return Record(name, start, end, entry.CRC, entry.file_size, stored)


class _RecordSums:
    """CRC32 of every stored record's bytes, fed with the whole file in order."""

    def __init__(self, found: list[Record]) -> None:
        self._records = found
        self._next = 0
        self._position = 0
        self.sums = [0] * len(found)

    def look(self, chunk: memoryview) -> None:
        begin, end = self._position, self._position + len(chunk)
        self._position = end
        while self._next < len(self._records) and self._records[self._next].start < end:
            record = self._records[self._next]
            part = chunk[max(record.start, begin) - begin : min(record.end, end) - begin]
            self.sums[self._next] = zlib.crc32(part, self.sums[self._next])
            if record.end > end:
                break
            self._next += 1


def judge(file: BinaryIO) -> Judgement:
    """Check directory, headers, the storages that the pickle names, and every CRC, reading the file once.

    Raises OSError on read errors.
    """
    size = os.fstat(file.fileno()).st_size
    digest = hashlib.sha256()
    try:
        found = records(file)
        sums = _RecordSums(found)
        read_through(file.fileno(), size, digest.update, sums.look)
        wrong = [r for r, crc in zip(found, sums.sums, strict=True) if crc != r.crc and r.stored]
        switched_off = _crc_switched_off(file, found)
        if wrong and not switched_off:
            raise DamageError(Kind.CORRUPT, _crc_reason(wrong, found, sums))
        _check_packed(file, found)
        note = _check_storages(file, found)
    except DamageError as damage:
        return Judgement(damage.kind, Proof.STRUCTURE, damage.reason)
    if switched_off:
        return Judgement(
            Kind.UNPROVEN, Proof.STRUCTURE, f"structure of {len(found)} records agrees; their CRCs were switched off{note}",
            digest.hexdigest(),
        )  # fmt: skip
    return Judgement(Kind.INTACT, Proof.CRC, f"the CRC32 of all {len(found)} records agrees{note}", digest.hexdigest())


def _crc_reason(wrong: list[Record], found: list[Record], sums: _RecordSums) -> str:
    first = wrong[0]
    read = sums.sums[found.index(first)]
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return (
        f"CRC32 of record {first.name!r}{more} differs: recorded {first.crc:08x}, read {read:08x} "
        f"({len(found) - len(wrong)} of {len(found)} records intact)"
    )


def _crc_switched_off(file: BinaryIO, found: list[Record]) -> bool:
    """Whether *every* CRC is 0 in the directory and in the file: a writer's option, not damage."""
    if any(record.crc for record in found) or not any(record.size for record in found):
        return False
    return all(_local_crc(file, record) == 0 for record in found)


def _local_crc(file: BinaryIO, record: Record) -> int:
    """The CRC that stands after a record in its data descriptor, if it has one; else 0, as the header was checked."""
    file.seek(record.end)
    after = file.read(8)
    return int.from_bytes(after[4:8], "little") if after[:4] == b"PK\x07\x08" else 0


def _check_packed(file: BinaryIO, found: list[Record]) -> None:
    """The CRC of compressed records (torch.jit writes some), which need unpacking."""
    packed = [record for record in found if not record.stored]
    if not packed:
        return
    with zipfile.ZipFile(file) as archive:
        for record in packed:
            try:
                with archive.open(record.name) as part:
                    while part.read(1 << 20):
                        pass
            except OSError as error:
                if error.errno is not None:
                    raise
                raise DamageError(Kind.CORRUPT, f"compressed record {record.name!r} is damaged ({error})") from None
            except Exception as error:  # noqa: BLE001 - each compression has errors of its own
                raise DamageError(Kind.CORRUPT, f"compressed record {record.name!r} is damaged ({error})") from None


def _check_storages(file: BinaryIO, found: list[Record]) -> str:
    """Hold the records against the storages that `data.pkl` names; returns a note for the reason when it is no torch file."""
    by_name = {record.name: record for record in found}
    pickle = next((record for record in found if record.name.endswith("/data.pkl")), None)
    if pickle is None or not pickle.stored:
        return "; it has no data.pkl, so no storages were counted"
    file.seek(pickle.start)
    data = file.read(min(pickle.size, pickles.MAX_BYTES + 1))
    if not data.startswith(b"\x80"):
        return "; its data.pkl is no pickle, so no storages were counted"
    try:
        contents = pickles.read(data)
    except pickles.TooLargeError as error:
        return f"; its data.pkl was not read, so no storages were counted: {error}"
    except pickles.PickleError as error:
        raise DamageError(Kind.CORRUPT, f"its data.pkl is no whole pickle: {error}") from None
    prefix = pickle.name.removesuffix("data.pkl")
    for key, expected in storages(contents):
        record = by_name.get(f"{prefix}data/{key}")
        if record is None:
            raise DamageError(Kind.CORRUPT, f"storage {key!r} is named in data.pkl but missing")
        if expected is not None and record.size != expected:
            raise DamageError(
                Kind.CORRUPT, f"storage {key!r} has {record.size:,} bytes where data.pkl names {expected:,}"
            )
    return ""


def storages(contents: pickles.Contents) -> list[tuple[str, int | None]]:
    """Key and size in bytes (None when the type is unknown) of every storage that a torch pickle names."""
    named: list[tuple[str, int | None]] = []
    for reference in contents.persistent:
        match reference.id:
            case ("storage", pickles.Global(name=kind), str(key), _, int(count)):
                item = ITEM_BYTES.get(kind)
                named.append((key, None if item is None else item * count))
            case _:
                pass
    return named


def inside(file: BinaryIO) -> Inside:
    """What the archive's pickle says, as data. Raises DamageError, PickleError or OSError."""
    found = records(file)
    by_name = {record.name.partition("/")[2]: record for record in found}
    notes = {name: note for name in NOTED if (note := _note(file, by_name.get(name)))}
    pickle = by_name.get("data.pkl")
    if pickle is None or not pickle.stored:
        return Inside({}, notes=notes)
    file.seek(pickle.start)
    contents = pickles.read(file.read(min(pickle.size, pickles.MAX_BYTES + 1)))
    return Inside(top_level(contents.value), tuple(contents.globals), _tensors(contents.value, by_name), notes)


def _note(file: BinaryIO, record: Record | None) -> str:
    if record is None or not record.stored:
        return ""
    file.seek(record.start)
    return file.read(min(record.size, NOTE_BYTES_MAX)).decode("utf-8", "replace").strip()


def _tensors(value: Any, by_name: dict[str, Record]) -> Iterator[TensorPart]:
    for name, tensor in walk(value):
        record = by_name.get(f"data/{tensor.storage}")
        if record is None or record.size < tensor.storage_bytes:
            raise DamageError(Kind.CORRUPT, f"storage {tensor.storage!r} is named in data.pkl but missing or short")
        start = record.start + tensor.offset * BITS[tensor.dtype] // 8 if record.stored else None
        span = (tensor.span * BITS[tensor.dtype] + 7) // 8
        yield TensorPart(name, tensor.dtype, tensor.shape, tensor.bytes, start, span)


def top_level(value: Any) -> dict[Any, Any]:
    """The outermost dictionary of a snapshot's value, ordered or plain, or an empty one."""
    if isinstance(value, pickles.Call) and str(value.function) == "collections.OrderedDict":
        return {pair[0]: pair[1] for pair in value.items if isinstance(pair, tuple) and isinstance(pair[0], str)}
    return value if isinstance(value, dict) else {}

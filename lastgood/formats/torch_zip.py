"""What `torch.save` writes since 1.6: a zip archive of stored records, each with a CRC32 that torch.load never checks.

Source: PyTorch's caffe2/serialize (inline_container). Records are `PREFIX/data.pkl` (the structure, a pickle),
`PREFIX/data/KEY` (the bytes of one storage), `PREFIX/version` and a few more. What `torch.jit.save` writes is laid out alike,
with a second pickle, `PREFIX/constants.pkl`, and some records compressed.
"""

import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from lastgood import pickles
from lastgood.formats import DamageError, Inside, Judgement, TensorPart, unproven
from lastgood.formats.raw_zip import END_OF_DIRECTORY, HEADER
from lastgood.formats.torch_damaged import tensors_left
from lastgood.formats.torch_tensors import check_views, named_storages, tensors_in, top_level, walk
from lastgood.formats.zip_records import Record, records
from lastgood.hashing import read_through
from lastgood.verdict import Kind, Proof

NAME = "torch zip"
NOTED = ("version", "byteorder", ".format_version")
MARK = ".format_version"  # which torch.save alone writes, since 2.6
MARKS = {"version", "byteorder", MARK, ".storage_alignment", ".data/serialization_id"}
NOTE_BYTES_MAX = 100
MAX_UNPACKED_BYTES = 256 << 20  # and as much again as
MAX_UNPACKED_RATIO = 20  # times the packed bytes; a kilobyte can be made to unpack to a gigabyte
STORAGES_OF = {"data.pkl": "data", "constants.pkl": "constants"}
"""The pickles, and the folder of each one's storages."""


def recognises(head: bytes, tail: bytes) -> bool:
    """Whether a file begins like a zip archive or ends like one (its first bytes may be what is damaged)."""
    return head.startswith(HEADER) or END_OF_DIRECTORY in tail


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
    """Check directory, headers, the storages that the pickles name, and every CRC, reading the file once.

    Of a file that was cut, what is left is read to count the tensors in it. Raises OSError on read errors.
    """
    digest = hashlib.sha256()
    try:
        found = records(file)
        sums = _RecordSums(found)
        read_through(file.fileno(), os.fstat(file.fileno()).st_size, digest.update, sums.look)
        wrong = [r for r, crc in zip(found, sums.sums, strict=True) if crc != r.crc and r.stored]
        switched_off = any(record.size for record in found) and not any(record.crc for record in found)
        if wrong and not switched_off:
            raise DamageError(Kind.CORRUPT, _crc_reason(file, wrong, found, sums))
        if not switched_off:
            _check_packed(file, found)
        by_name = _by_name(found)
        top, note = _check_pickles(file, by_name)
        _check_marks(file, by_name)
    except DamageError as damage:
        if damage.kind is Kind.UNPROVEN:
            return unproven(file, damage.reason)
        left = tensors_left(file) if damage.kind is Kind.TRUNCATED else ""
        return Judgement(damage.kind, Proof.STRUCTURE, damage.reason + left)
    if switched_off:
        reason = f"structure of {len(found)} records agrees; their CRCs were switched off{note}"
        return Judgement(Kind.UNPROVEN, Proof.STRUCTURE, reason, digest.hexdigest(), top)
    reason = f"the CRC32 of all {len(found)} records agrees{note}"
    return Judgement(Kind.INTACT, Proof.CRC, reason, digest.hexdigest(), top)


def _crc_reason(file: BinaryIO, wrong: list[Record], found: list[Record], sums: _RecordSums) -> str:
    first = wrong[0]
    read = sums.sums[found.index(first)]
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return (
        f"CRC32 of record {first.name!r}{more} differs: recorded {first.crc:08x}, read {read:08x} "
        f"({_count_intact(file, wrong, found)} intact)"
    )


def _count_intact(file: BinaryIO, wrong: list[Record], found: list[Record]) -> str:
    """How much of the archive is not wrong: of its tensors if its pickle is whole, else of its records."""
    damaged, lost = set(wrong), []
    try:
        by_name = _by_name(found)
        names = {name for name, record in by_name.items() if record in damaged}
        if "data.pkl" not in names and (contents := _contents(file, by_name.get("data.pkl"))):
            lost = [f"data/{tensor.storage}" in names for tensor in tensors_in(contents.value)]
    except (DamageError, pickles.PickleError):
        pass  # the records are counted
    if lost:
        return f"{lost.count(False)} of {len(lost)} tensors"
    return f"{len(found) - len(wrong)} of {len(found)} records"


def _check_packed(file: BinaryIO, found: list[Record]) -> None:
    """The CRC of compressed records (torch.jit writes some), which need unpacking."""
    packed = [record for record in found if not record.stored]
    size = sum(record.size for record in packed)
    if size > MAX_UNPACKED_BYTES + MAX_UNPACKED_RATIO * sum(record.end - record.start for record in packed):
        raise DamageError(Kind.UNPROVEN, f"its compressed records were not checked: they make {size:,} bytes")
    for _ in _unpacked(file, packed) if packed else ():
        pass


def _unpacked(file: BinaryIO, packed: list[Record]) -> Iterator[bytes]:
    """The content of compressed records in pieces. Raises DamageError when a CRC differs, or a size."""
    name = ""
    try:
        with zipfile.ZipFile(file) as archive:
            for record in packed:
                name = record.name
                with archive.open(name) as part:
                    while data := part.read(1 << 20):
                        yield data
    except OSError as error:
        if error.errno is not None:
            raise
        raise DamageError(Kind.CORRUPT, f"compressed record {name!r} is damaged ({error})") from None
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - each compression has errors of its own
        raise DamageError(Kind.CORRUPT, f"compressed record {name!r} is damaged ({error})") from None


def _by_name(found: list[Record]) -> dict[str, Record]:
    """The records by their names without the archive's own name before them. Raises DamageError when one occurs twice."""
    prefix = found[0].name.partition("/")[0] + "/"
    own = [record for record in found if record.name.startswith(prefix)]
    by_name = {record.name.removeprefix(prefix): record for record in own}
    if len(by_name) != len(own) and "data.pkl" in by_name:
        raise DamageError(Kind.CORRUPT, "two of its records have one name")
    return by_name


def _contents(file: BinaryIO, record: Record | None, surely: bool = False) -> pickles.Contents | None:
    """What a pickle says; None when there is none, unless there surely is. Raises PickleError, DamageError or OSError."""
    if record is None:
        return None
    if record.size > pickles.MAX_BYTES:
        raise pickles.TooLargeError(f"it has {record.size:,} bytes")
    data = os.pread(file.fileno(), record.size, record.start) if record.stored else b"".join(_unpacked(file, [record]))
    return pickles.read(data) if surely or data.startswith(b"\x80") else None


def _check_pickles(file: BinaryIO, by_name: dict[str, Record]) -> tuple[dict[Any, Any], str]:
    """Hold the records against the storages that the pickles name.

    Returns the outermost dictionary, and for the reason a note when there were no storages to count.
    """
    top: dict[Any, Any] = {}
    note = "; it has no data.pkl, so no storages were counted"
    for name in filter(by_name.__contains__, STORAGES_OF):
        try:
            contents = _contents(file, by_name[name], "version" in by_name)
        except pickles.TooLargeError as error:
            note = f"; its {name} was not read, so no storages were counted: {error}"
            continue
        except pickles.PickleError as error:
            raise DamageError(Kind.CORRUPT, f"its {name} is no whole pickle: {error}") from None
        if contents is not None:
            _check_storages(name, contents, by_name)
        if name == "data.pkl":
            note = "; its data.pkl is no pickle, so no storages were counted" if contents is None else ""
            top = top_level(contents and contents.value)
    return top, note


def _check_marks(file: BinaryIO, by_name: dict[str, Record]) -> None:
    """Refuse what bears the marks of torch.save and is nothing that torch would load, such as a save that failed halfway."""
    if "data.pkl" not in by_name and (MARK in by_name or ("version" in by_name and by_name.keys() <= MARKS)):
        raise DamageError(Kind.CORRUPT, "its writer did not get as far as its data.pkl")
    version, order = (_note(file, by_name.get(name)) for name in ("version", "byteorder"))
    if "data.pkl" in by_name and not ((version or "1").isdecimal() and (order or "little") in ("little", "big")):
        raise DamageError(Kind.CORRUPT, f"its version {version!r} or byte order {order!r} is none")


def _check_storages(name: str, contents: pickles.Contents, by_name: dict[str, Record]) -> None:
    for key, expected, _ in named_storages(contents):
        record = by_name.get(f"{STORAGES_OF[name]}/{key}")
        if record is None:
            raise DamageError(Kind.CORRUPT, f"storage {key!r} is named in {name} but missing")
        if expected is not None and record.size != expected:
            reason = f"storage {key!r} has {record.size:,} bytes where {name} names {expected:,}"
            raise DamageError(Kind.CORRUPT, reason)
    check_views(contents)


def inside(file: BinaryIO) -> Inside:
    """What the archive's pickle says, as data. Raises DamageError, PickleError or OSError."""
    by_name = _by_name(records(file))
    notes = {name: note for name in NOTED if (note := _note(file, by_name.get(name)))}
    contents = _contents(file, by_name.get("data.pkl"))
    if contents is None:
        return Inside({}, notes=notes)
    return Inside(top_level(contents.value), tuple(contents.globals), _tensors(contents.value, by_name), notes)


def _note(file: BinaryIO, record: Record | None) -> str:
    if record is None or not record.stored:
        return ""
    raw = os.pread(file.fileno(), min(record.size, NOTE_BYTES_MAX), record.start)
    return raw.decode("utf-8", "replace").strip()


def _tensors(value: Any, by_name: dict[str, Record]) -> Iterator[TensorPart]:
    for name, tensor in walk(value):
        record = by_name.get(f"data/{tensor.storage}")
        if record is None or record.size < tensor.storage_bytes:
            raise DamageError(Kind.CORRUPT, f"storage {tensor.storage!r} is named in data.pkl but missing or short")
        yield tensor.part(name, record.start if record.stored else None)

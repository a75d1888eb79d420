"""What `torch.save` wrote before 1.6, and still does when asked to: pickles in a row, and behind them each storage's bytes.

Source: torch/serialization.py. The pickles are a magic number, the version of the protocol, facts about the machine, the
payload, and a list of the storages' keys in the order in which their bytes follow: for each one its number of elements
as eight bytes, then the elements, both little-endian whatever the machine. There are no checksums, so what agrees in every
length is still unproven. The archives of torch 0.1 (tar) are another format, which is not known here.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from lastgood import pickles
from lastgood.formats import DamageError, Inside, Judgement, TensorPart, unproven
from lastgood.formats.torch_tensors import MAX_SIZE, Named, check_views, named_storages, tensors_in, top_level, walk
from lastgood.verdict import Kind, Proof

NAME = "torch legacy"
MAGIC = 0x1950A86A20F9469CFC6C
_MAGIC_PICKLE = (
    b"\x80\x02\x8a\x0a" + MAGIC.to_bytes(10, "little") + b"."
)  # as it is without asking for another protocol
PROTOCOL_VERSION = 1001
WINDOW_BYTES = 1 << 20  # read at first, to hold all pickles of most files
COUNT_BYTES = 8
MAX_FACT_OPERATIONS = 1000  # of the pickles before the payload


@dataclass(frozen=True)
class _Place:
    """Where a storage's elements should begin, in bytes from the file's first one; behind the eight that count them."""

    start: int
    named: Named

    @property
    def end(self) -> int:
        """The first byte behind them."""
        return self.start + (self.named.bytes or 0)


@dataclass(frozen=True)
class _Head:
    """The pickles of a file: facts about the machine, the payload, and what follows of where each storage is, by key."""

    machine: Any
    payload: pickles.Contents
    places: dict[str, _Place]
    end: int

    def storages_within(self, size: int) -> set[str]:
        """The keys of the storages that a file of `size` bytes has room for."""
        return {key for key, place in self.places.items() if place.end <= size}


def recognises(head: bytes, tail: bytes) -> bool:  # noqa: ARG001 - every format is asked in one way
    """Whether a file begins with the magic number, or with what follows it (its first bytes may be what is damaged)."""
    try:
        return b"protocol_version" in head or pickles.read_one(head)[0].value == MAGIC
    except pickles.PickleError:
        return bool(head) and _MAGIC_PICKLE.startswith(head)


def judge(file: BinaryIO) -> Judgement:
    """Account for every byte by what the pickles say, and hash the file in one pass. Raises OSError on read errors."""
    size = os.fstat(file.fileno()).st_size
    try:
        head = _read_head(file, size)
        check_views(head.payload)
        _check_storages(file, head, size)
    except DamageError as damage:
        if damage.kind is Kind.UNPROVEN:
            return unproven(file, f"no seal, and no checksums inside; {damage.reason}")
        return Judgement(damage.kind, Proof.STRUCTURE, damage.reason)
    reason = f"no seal, and no checksums inside; the lengths of all {len(head.places)} storages agree"
    return unproven(file, reason, top_level(head.payload.value))


def _read_head(file: BinaryIO, size: int) -> _Head:
    """Read the pickles, as far as they are not absurdly long. Raises DamageError, which may say that nothing is proven."""
    for window in (WINDOW_BYTES, pickles.MAX_BYTES):
        try:
            return _parse(os.pread(file.fileno(), min(window, size), 0))
        except pickles.CutError as error:
            if error.needed > size:
                raise DamageError(Kind.TRUNCATED, f"ends at byte {size:,}, within its pickles: {error}") from None
        except pickles.TooLargeError as error:
            raise DamageError(Kind.UNPROVEN, f"its pickles were not read: {error}") from None
        except pickles.PickleError as error:
            raise DamageError(Kind.CORRUPT, f"its pickles make no sense: {error}") from None
    raise DamageError(Kind.UNPROVEN, f"its pickles were not read: they are longer than {pickles.MAX_BYTES:,} bytes")


def _parse(data: bytes) -> _Head:
    at, facts = 0, []
    for _ in range(3):
        contents, at = pickles.read_one(data, at, MAX_FACT_OPERATIONS)
        facts.append(contents.value)
    if facts[:2] != [MAGIC, PROTOCOL_VERSION]:
        raise DamageError(Kind.CORRUPT, "the numbers that it begins with are damaged")
    payload, at = pickles.read_one(data, at)
    named = named_storages(payload)
    keys, at = pickles.read_one(data, at, MAX_FACT_OPERATIONS + 4 * len(named))
    return _Head(facts[2], payload, *_placed(named, keys.value, at))


def _placed(named: list[Named], keys: Any, at: int) -> tuple[dict[str, _Place], int]:
    """The place of each storage that the payload names, in the order of the keys, and where the last one ends."""
    by_key = {one.key: one for one in reversed(named)}  # the first mention counts, as for torch
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise DamageError(Kind.CORRUPT, "its list of storages is damaged")
    if len(set(keys)) != len(keys) or set(keys) != by_key.keys():
        raise DamageError(Kind.CORRUPT, "its list of storages is another than that of those its payload names")
    if differing := [one.key for one in named if one.bytes != by_key[one.key].bytes]:
        raise DamageError(Kind.CORRUPT, f"its payload gives storage {differing[0]!r} two sizes")
    places: dict[str, _Place] = {}
    for key in keys:
        size = by_key[key].bytes
        if size is None:
            raise DamageError(Kind.UNPROVEN, f"storage {key!r} is of a type that is not known here")
        if not 0 <= size < MAX_SIZE:
            raise DamageError(Kind.CORRUPT, f"its payload gives storage {key!r} an absurd size")
        places[key] = _Place(at + COUNT_BYTES, by_key[key])
        at = places[key].end
    return places, at


def _check_storages(file: BinaryIO, head: _Head, size: int) -> None:
    """Hold the count before each storage against what the payload says, and the file's length against them all."""
    for key, place in head.places.items():
        raw = os.pread(file.fileno(), COUNT_BYTES, place.start - COUNT_BYTES) if place.start <= size else b""
        count = int.from_bytes(raw, "little", signed=True)
        if raw and count != place.named.elements:
            reason = (
                f"storage {key!r} says that it has {count:,} elements where the payload names {place.named.elements:,}"
            )
            raise DamageError(Kind.CORRUPT, reason)
    if size > head.end:
        raise DamageError(Kind.CORRUPT, f"{size - head.end:,} bytes follow its last storage")
    if size < head.end:
        within = head.storages_within(size)
        there = [tensor.storage in within for tensor in tensors_in(head.payload.value)]
        left = f"; {there.count(True)} of {len(there)} tensors there, without checksums" if there else ""
        raise DamageError(Kind.TRUNCATED, f"ends at byte {size:,} of {head.end:,}{left}")


def inside(file: BinaryIO) -> Inside:
    """What the file's pickles say, as data. Raises DamageError or OSError."""
    size = os.fstat(file.fileno()).st_size
    head = _read_head(file, size)
    notes = {"version": str(PROTOCOL_VERSION), "byteorder": "little"}
    if isinstance(head.machine, dict) and head.machine.get("little_endian") is False:
        notes["machine"] = "big-endian"
    payload = head.payload
    return Inside(top_level(payload.value), tuple(payload.globals), _tensors(head, size), notes)


def _tensors(head: _Head, size: int) -> Iterator[TensorPart]:
    within = head.storages_within(size)
    for name, tensor in walk(head.payload.value):
        if tensor.storage not in within:
            raise DamageError(Kind.TRUNCATED, f"ends at byte {size:,} of {head.end:,}, within or before {name}")
        yield tensor.part(name, head.places[tensor.storage].start)

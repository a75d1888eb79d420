"""Safetensors: a JSON header with the name, dtype, shape and place of every tensor, and behind it their bytes, without gaps.

Source: the format's description and rules at huggingface/safetensors (docs and the reference implementation's checks). The
file begins with the header's length, eight bytes, little-endian. There are no checksums, so what agrees is still unproven.
"""

import json
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from lastgood.formats import DamageError, Inside, Judgement, TensorPart, unproven
from lastgood.uncollected import Uncollected
from lastgood.verdict import Kind, Proof

NAME = "safetensors"
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the reference implementation reads no longer ones
MAX_READ_BYTES = (
    12 << 20
)  # of a header, which makes 25 times as much in memory at worst; it is enough for 100,000 tensors
MAX_SIZE = 1 << 64
METADATA = "__metadata__"

BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""Bits of one element of each dtype."""

IN_TORCH = {
    "BOOL": "bool", "F4": "float4_e2m1fn", "F6_E2M3": "float6_e2m3fn", "F6_E3M2": "float6_e3m2fn", "U8": "uint8",
    "I8": "int8", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "I16": "int16", "U16": "uint16", "F16": "float16",
    "BF16": "bfloat16", "I32": "int32", "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64",
    "I64": "int64", "U64": "uint64",
}  # fmt: skip
"""The dtypes as torch calls them."""


class _Tensor(NamedTuple):
    """An entry of the header: its name, its dtype as it is written there, its shape, and from which byte to which it lies.

    The bytes are counted from the end of the header.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class _Header(NamedTuple):
    """What the header says: every tensor in the order of the bytes, and what else was written down."""

    tensors: list[_Tensor]
    metadata: dict[str, str]
    bytes: int

    @property
    def end(self) -> int:
        """Where the file should end, in bytes from its first one."""
        return LENGTH_BYTES + self.bytes + (self.tensors[-1].end if self.tensors else 0)


def recognises(head: bytes, tail: bytes) -> bool:  # noqa: ARG001 - every format is asked in one way
    """Whether a file begins with a number of eight bytes that is not too large, or nearly so, and then JSON's bracket."""
    if len(head) < LENGTH_BYTES + 2:
        return len(head) > 4 and not any(head[4:LENGTH_BYTES]) and head[LENGTH_BYTES:] in (b"", b"{")
    return (
        head[4:LENGTH_BYTES].count(0) >= 3
        and head[8:9] == b"{"
        and head[9:10] in (b'"', b"}", b" ", b"\n", b"\t", b"\r")
    )


def judge(file: BinaryIO) -> Judgement:
    """Hold header, tensors and the file's length against each other, and hash the file. Raises OSError on read errors."""
    try:
        header = _read_header(file)
        unknown = _check(header, os.fstat(file.fileno()).st_size)
    except DamageError as damage:
        if damage.kind is Kind.UNPROVEN:
            return unproven(file, f"no seal, and no checksums inside; {damage.reason}")
        return Judgement(damage.kind, Proof.STRUCTURE, damage.reason)
    note = f", but dtype {unknown[:20]!r} is not known here" if unknown else ""
    reason = f"no seal, and no checksums inside; the places of all {len(header.tensors)} tensors agree{note}"
    return unproven(file, reason, _top(header))


def _read_header(file: BinaryIO) -> _Header:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(os.pread(file.fileno(), LENGTH_BYTES, 0), "little")
    if length > MAX_HEADER_BYTES:
        raise DamageError(Kind.CORRUPT, f"its header is said to have {length:,} bytes, which the format forbids")
    if LENGTH_BYTES + length > size:
        reason = f"ends at byte {size:,}, within its header of {length:,} bytes"
        raise DamageError(Kind.TRUNCATED, reason)
    if length > MAX_READ_BYTES:
        raise DamageError(Kind.UNPROVEN, f"its header of {length:,} bytes is longer than is read here")
    return _parse(os.pread(file.fileno(), length, LENGTH_BYTES))


def _parse(raw: bytes) -> _Header:
    """What the header's JSON says. Raises DamageError for what is no JSON, or JSON of another kind."""
    try:
        with Uncollected():
            value = json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_no_number)
        metadata = value.pop(METADATA, None) or {}
        if not all(isinstance(one, str) for one in metadata.values()):
            raise ValueError("its metadata is no text")
        tensors = [_tensor(name, entry) for name, entry in value.items()]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DamageError(Kind.CORRUPT, f"its header makes no sense: {str(error)[:200]}") from None
    return _Header(sorted(tensors, key=lambda one: (one.begin, one.end)), metadata, len(raw))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _tensor(name: str, entry: dict[str, Any]) -> _Tensor:
    name.encode()  # refuses half a character
    dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not isinstance(shape, list):
        raise TypeError(f"tensor {name[:100]!r} has no dtype or no shape")
    if not all(type(number) is int and 0 <= number < MAX_SIZE for number in (*shape, begin, end)):
        raise ValueError(f"tensor {name[:100]!r} has a number that is no size")
    return _Tensor(name, dtype, tuple(shape), begin, end)


def _check(header: _Header, size: int) -> str:
    """Hold the tensors against each other and against the file's size; returns a dtype that is not known, if any."""
    at, unknown = 0, ""
    for one in header.tensors:
        if one.begin != at or one.end < at:
            reason = f"tensor {one.name[:100]!r} is at bytes {one.begin:,} to {one.end:,}, where the one before ends at {at:,}"
            raise DamageError(Kind.CORRUPT, reason)
        at = one.end
        bits = BITS.get(one.dtype)
        if bits is None:
            unknown = one.dtype
        elif (elements := _elements(one.shape)) * bits != 8 * (one.end - one.begin):
            reason = (
                f"tensor {one.name[:100]!r} has {one.end - one.begin:,} bytes for {elements:,} elements of {one.dtype}"
            )
            raise DamageError(Kind.CORRUPT, reason)
    if size > header.end:
        raise DamageError(Kind.CORRUPT, f"{size - header.end:,} bytes follow its last tensor")
    if size < header.end:
        base = LENGTH_BYTES + header.bytes
        there = sum(base + one.end <= size for one in header.tensors)
        left = f"; {there} of {len(header.tensors)} tensors there, without checksums" if header.tensors else ""
        raise DamageError(Kind.TRUNCATED, f"ends at byte {size:,} of {header.end:,}{left}")
    return unknown


def _elements(shape: tuple[int, ...]) -> int:
    """Their number. Raises DamageError when it is larger than any file."""
    elements = 1
    for length in shape:
        elements *= length
        if elements >= MAX_SIZE:
            raise DamageError(Kind.CORRUPT, f"a tensor of shape {shape[:9]} is larger than any file")
    return elements


def _top(header: _Header) -> dict[str, Any]:
    """The metadata, in which all is text; what is a whole number there comes out as one."""
    return {key: int(text) if text.isdecimal() and len(text) < 19 else text for key, text in header.metadata.items()}


def inside(file: BinaryIO) -> Inside:
    """What the header says. Raises DamageError or OSError."""
    header = _read_header(file)
    return Inside(_top(header), tensors=_parts(header, os.fstat(file.fileno()).st_size), notes={"byteorder": "little"})


def _parts(header: _Header, size: int) -> Iterator[TensorPart]:
    unknown = _check(header, size)
    if unknown:
        raise DamageError(Kind.UNPROVEN, f"dtype {unknown[:20]!r} is not known here")
    for one in header.tensors:
        span = one.end - one.begin
        yield TensorPart(one.name, IN_TORCH[one.dtype], one.shape, span, LENGTH_BYTES + header.bytes + one.begin, span)

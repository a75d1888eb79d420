"""Find NaN and infinities in the float tensors of a snapshot file, without torch and without executing anything.

Bytes that prove to be what was written may still be of no use: a run that diverged saves NaN. Every float type that torch
saves is known by its bit patterns. The work is done by what is fast in the standard library: a strided slice takes out the
byte that holds most of the exponent, a byte search says that no element can be non-finite (weights near the end of their
range are rare), and only where one may be does arithmetic on one long integer look at all elements of a piece at once.

A contiguous tensor is looked at where it lies, and `first_index` counts in the order of its elements. Of any other one the
whole stretch of its storage from its first element to its last one is looked at, gaps included, in storage order.

`scan_in_child` does this in a process of its own: the caller's memory stays flat, and a crash cannot take the caller. That
process does not outlive the thread that started it.
Not done: big-endian files, quantized tensors. What is smaller than float8 has neither NaN nor infinities.
"""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, BinaryIO

from lastgood import formats, pickles
from lastgood.formats import DamageError, TensorPart
from lastgood.formats.torch_tensors import BITS
from lastgood.verdict import Kind

CHUNK_BYTES = 1 << 20  # a multiple of every element's size
MAX_FOUND = 10_000  # tensors that are listed; a model that diverged has one finding a tensor, and nobody reads more
MAX_NAME_CHARACTERS = 500
MAX_REPORT_BYTES = 64 << 20  # MAX_FOUND entries with the longest names, as JSON; a usual one is 100 kB at most
KILL_SECONDS = 5.0  # a killed process is gone at once, unless its storage does not answer
CHILD_MEMORY_BYTES = 4 << 30  # of address space; a hostile pickle costs the child an error, not the machine its memory


class ScanError(Exception):
    """The scan came to no result; the message says why. It says nothing about the tensors."""


class EndedError(ScanError):
    """A signal ended the scan, which may be somebody's wish that it end."""


@dataclass(frozen=True)
class NonFinite:
    """A tensor with NaN or infinities: its dotted name, its dtype, how many elements are which, and the first one's index.

    A complex element counts as NaN if either of its parts is, and likewise as infinite.
    """

    name: str
    dtype: str
    nans: int
    infinities: int
    first_index: int


@dataclass(frozen=True)
class _Float:
    """A float type: bytes of a number, magnitudes from which on it is not finite, and NaN; numbers that make an element."""

    width: int
    not_finite: int
    nan: int
    parts: int = 1


_IEEE = {
    "float64": _Float(8, 0x7FF0 << 48, (0x7FF0 << 48) + 1),
    "float32": _Float(4, 0x7F800000, 0x7F800001),
    "float16": _Float(2, 0x7C00, 0x7C01),
    "bfloat16": _Float(2, 0x7F80, 0x7F81),
    "float8_e5m2": _Float(1, 0x7C, 0x7D),
    "float8_e4m3fn": _Float(1, 0x7F, 0x7F),
    "complex32": _Float(2, 0x7C00, 0x7C01, parts=2),
    "complex64": _Float(4, 0x7F800000, 0x7F800001, parts=2),
    "complex128": _Float(8, 0x7FF0 << 48, (0x7FF0 << 48) + 1, parts=2),
}
"""Types with a sign bit on top of a magnitude, the largest of which are infinity (not in e4m3fn) and NaN."""

_ONE_NAN = {"float8_e4m3fnuz": b"\x80", "float8_e5m2fnuz": b"\x80", "float8_e8m0fnu": b"\xff"}
"""Types with one pattern for NaN and none for infinity: what would be minus zero, or the largest power."""


@dataclass
class _Count:
    """What was found so far in one tensor. Indices count elements."""

    nans: int = 0
    infinities: int = 0
    first: int | None = None

    def add(self, nans: int, infinities: int, first: int) -> None:
        self.nans += nans
        self.infinities += infinities
        self.first = first if self.first is None else self.first


def scan(path: str | os.PathLike[str]) -> list[NonFinite]:
    """Every float tensor of a snapshot file that holds NaN or an infinity, in the order of the payload, 10,000 at most.

    The file's bytes are taken as they are: verify them first. Raises DamageError when its structure does not hold together,
    PickleError for a damaged pickle, OSError when it cannot be read, ScanError for what this scan cannot read.
    """
    with open(path, "rb") as file:
        return _scan(file)


def poisoned(found: Iterable[NonFinite], previous: Mapping[str, bool] | None) -> list[NonFinite]:
    """Those of the findings that make a snapshot bad. Pure.

    Any NaN does. Infinities do only where the same tensor of the previous snapshot had none (a mask of minus infinity is
    there from the start): `previous` says for each name whether it had, and a name that is not in it had none. Without a
    previous snapshot (None) infinities prove nothing.
    """
    return [one for one in found if one.nans or (previous is not None and not previous.get(one.name, False))]


def _scan(file: BinaryIO) -> list[NonFinite]:
    module = formats.format_of(file, os.fstat(file.fileno()).st_size)
    if module is None:
        raise ScanError("it is of no format whose tensors are known here")
    inside = module.inside(file)
    if inside.notes.get("byteorder", "little") != "little":
        raise ScanError("its numbers are not little-endian, which is not read here")
    found: list[NonFinite] = []
    known: dict[TensorPart, _Count] = {}
    part = None
    for part in inside.tensors:
        if part.dtype not in _IEEE and part.dtype not in _ONE_NAN:
            continue
        key = replace(part, name="")
        if key not in known:
            known[key] = _count(file, part)
        count = known[key]
        if count.first is not None:
            shown = part.name if len(part.name) <= MAX_NAME_CHARACTERS else f"{part.name[:MAX_NAME_CHARACTERS]}…"
            found.append(NonFinite(shown, part.dtype, count.nans, count.infinities, count.first))
            if len(found) == MAX_FOUND:
                break
    if part is None:
        raise ScanError("it names no tensors that are known here")
    return found


def _count(file: BinaryIO, part: TensorPart) -> _Count:
    """Look at every number between a tensor's first element and its last one."""
    if part.start is None:
        raise ScanError(f"{part.name} is compressed, which is not read here")
    count, item = _Count(), BITS[part.dtype] // 8
    for done, piece in _pieces(file, part.start, part.span):
        hit = _look(part.dtype, piece)
        if hit is not None:
            count.add(hit[0], hit[1], done // item + hit[2])
    return count


def _pieces(file: BinaryIO, start: int, size: int) -> Iterator[tuple[int, bytes]]:
    """The bytes from `start` on, in pieces that hold whole elements, each with the number of bytes before it."""
    for done in range(0, size, CHUNK_BYTES):
        wanted = min(CHUNK_BYTES, size - done)
        piece = os.pread(file.fileno(), wanted, start + done)
        if len(piece) < wanted:
            raise DamageError(Kind.TRUNCATED, f"ends at byte {start + done + len(piece):,}, while it was read")
        yield done, piece


def _look(dtype: str, piece: bytes) -> tuple[int, int, int] | None:
    """NaN and infinite elements in a piece, and the index of the first of either; None when there is none."""
    if dtype in _ONE_NAN:
        pattern = _ONE_NAN[dtype]
        return (piece.count(pattern), 0, piece.find(pattern)) if pattern in piece else None
    kind = _IEEE[dtype]
    high = piece[kind.width - 1 :: kind.width]
    if not any(value in high for value in _suspects(kind)):
        return None
    return _look_closely(kind, piece)


def _look_closely(kind: _Float, piece: bytes) -> tuple[int, int, int] | None:
    """The same by arithmetic on all numbers of a piece at once, as fields of one long integer.

    In each field the sign is cleared; adding what is missing from a limit to the sign bit then sets that bit just where the
    magnitude reaches the limit, and no field can overflow into the next one.
    """
    sign, count = 1 << (8 * kind.width - 1), len(piece) // kind.width
    signs = _repeated(sign, kind.width, count)
    magnitudes = int.from_bytes(piece, "little") & ~signs
    bad = (magnitudes + _repeated(sign - kind.not_finite, kind.width, count)) & signs
    if not bad:
        return None
    nans = (magnitudes + _repeated(sign - kind.nan, kind.width, count)) & signs
    infinities = bad ^ nans
    if kind.parts == 2:  # an element is what either of its parts is
        reals = _repeated(sign, 2 * kind.width, count // 2)
        nans, infinities = ((one | one >> 8 * kind.width) & reals for one in (nans, infinities))
    first = ((bad & -bad).bit_length() - 1) // (8 * kind.width * kind.parts)
    return nans.bit_count(), infinities.bit_count(), first


@lru_cache(maxsize=16)
def _repeated(value: int, width: int, count: int) -> int:
    """`count` fields of `width` bytes, each holding `value`, as one integer."""
    return int.from_bytes(value.to_bytes(width, "little") * count, "little")


@lru_cache
def _suspects(kind: _Float) -> tuple[bytes, ...]:
    """Values that the highest byte of a number that is not finite can have."""
    least = kind.not_finite >> 8 * (kind.width - 1)
    return tuple(bytes([sign | high]) for sign in (0, 0x80) for high in range(least, 0x80))


def scan_in_child(
    path: str | os.PathLike[str], timeout: float, started: Callable[[int], object] | None = None
) -> list[NonFinite]:
    """What `scan` finds, found by a child process that is gone when this returns, `timeout` seconds later at most.

    `started` is told the child's pid, so that a caller that sweeps up processes can leave it alone. Raises ScanError with
    the reason for whatever went wrong with the file, the scan or the child, and OSError when no child can be started.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    command = [sys.executable, "-I", "-S", "-c", _CHILD, root, os.path.abspath(path), str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        if started is not None:
            started(process.pid)
        said = _read_report(process, time.monotonic() + timeout)
    finally:
        status = _ended(process)
    return _found_in(said, status)


_CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from lastgood.nonfinite import report; report(*sys.argv[2:])"
_PR_SET_PDEATHSIG = 1


def _read_report(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """What the child says, to its end. Raises ScanError when that does not come in time, or is absurdly long."""
    assert process.stdout is not None
    descriptor, said = process.stdout.fileno(), bytearray()
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    while True:
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise ScanError("the scan took too long")
        data = os.read(descriptor, 1 << 16)
        if not data:
            return bytes(said)
        said += data
        if len(said) > MAX_REPORT_BYTES:
            raise ScanError("the scan said more than it has to say")


def _ended(process: subprocess.Popen[bytes]) -> int:
    """End the child if it has not ended; returns its status. Raises ScanError when its storage does not let it end."""
    assert process.stdout is not None
    process.stdout.close()
    process.kill()
    try:
        return process.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        raise ScanError(f"its storage does not answer, and the scan cannot be ended (process {process.pid})") from None


def _found_in(said: bytes, status: int) -> list[NonFinite]:
    try:
        told = json.loads(said)
        if told["error"] is None:
            return [NonFinite(**one) for one in told["found"]]
        reason = str(told["error"])
    except (ValueError, KeyError, TypeError):
        if status < 0:
            raise EndedError(f"the scan ended by {signal.Signals(-status).name}") from None
        reason = "the scan ended without a result"
    raise ScanError(reason)


def report(path: str, parent: str) -> None:
    """Scan a file and print the findings, or the reason why there are none, as one line of JSON: the child's whole work.

    It ends with the process `parent`, which started it.
    """
    _end_with(int(parent))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = CHILD_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(CHILD_MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        told: dict[str, Any] = {"found": [asdict(one) for one in scan(path)], "error": None}
    except (DamageError, pickles.PickleError, ScanError) as error:
        told = {"error": str(error)}
    except OSError as error:
        told = {"error": error.strerror or str(error)}
    except MemoryError:
        told = {"error": f"its pickle takes more than {CHILD_MEMORY_BYTES >> 30} GiB of memory"}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def _end_with(parent: int) -> None:
    """Have the system kill this process when `parent` is gone, where it can; it may be gone already."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)

"""What is done to a snapshot's bytes and to its seal, each told in words that prove it. Uses nothing of the product.

Every function takes the snapshot's path and a share, from 0 to 1, that says where in the file; it returns the proof, and raises
OSError, or UndamagedError when what it has done made no difference.
"""

import hashlib
import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path

from supervisor.chaos.plan import FaultKind

PAGE_BYTES = 4096
SEAL = ".sha256"


class UndamagedError(Exception):
    """The bytes are what they were, so nothing was injected."""


def truncate(path: Path, share: float) -> str:
    """Cut it short by at least a byte."""
    size = path.stat().st_size
    left = int(share * size)
    os.truncate(path, left)
    return f"{path.name} has {path.stat().st_size:,} of {size:,} bytes"


def empty(path: Path, _share: float) -> str:
    """Take all of its bytes."""
    size = path.stat().st_size
    os.truncate(path, 0)
    return f"{path.name} has {path.stat().st_size} of {size:,} bytes"


def flip_bit(path: Path, share: float) -> str:
    """Have one bit be another."""
    content = path.read_bytes()
    bit = int(share * 8 * len(content))
    flipped = bytes([content[bit // 8] ^ 1 << bit % 8])
    _overwrite(path, bit // 8, flipped)
    return f"bit {bit % 8} of byte {bit // 8:,} of {path.name} is another"


def zero_page(path: Path, share: float) -> str:
    """Have zeros in a page that had not only those: the next such page from there."""
    content = path.read_bytes()
    pages = range(0, len(content), PAGE_BYTES)
    first = int(share * len(pages))
    at = next(page for page in (*pages[first:], *pages[:first]) if any(content[page : page + PAGE_BYTES]))
    length = min(PAGE_BYTES, len(content) - at)
    _overwrite(path, at, bytes(length))
    return f"bytes {at:,} to {at + length:,} of {path.name} are zeros"


def zero_tail(path: Path, share: float) -> str:
    """Have zeros from there to the end, or from its last other byte on, its size being what it was."""
    content = path.read_bytes()
    size = len(content)
    at = min(int(share * size), len(content.rstrip(b"\0")) - 1)
    _overwrite(path, at, bytes(size - at))
    return f"bytes {at:,} to {size:,} of {path.name} are zeros"


def drop_seal(path: Path, _share: float) -> str:
    """Remove the seal; the bytes stay good."""
    seal = Path(f"{path}{SEAL}")
    seal.unlink()
    return f"{seal.name} is gone"


def garble_seal(path: Path, share: float) -> str:
    """Have another digit in the digest of the seal."""
    seal = Path(f"{path}{SEAL}")
    text = seal.read_text(encoding="ascii")
    digest = re.search(r"\b[0-9a-f]{64}\b", text)
    if digest is None:
        raise UndamagedError(f"{seal.name} has no digest")
    at = digest.start() + int(share * 64)
    _overwrite(seal, at, f"{int(text[at], 16) ^ 1:x}".encode("ascii"))
    return f"digit {at - digest.start()} of the digest in {seal.name} is another"


def half_a_folder(path: Path, share: float) -> str:
    """Lay a folder above it by number, sealed, of which one file is missing."""
    number = re.findall(r"\d+", path.name)[-1]
    above = (f"{one:0{len(number)}}".join(path.name.rsplit(number, 1)) for one in itertools.count(int(number) + 1))
    folder = next(place for name in above if not (place := path.with_name(name)).exists())
    folder.mkdir()
    names = ["model.bin", "optimizer.bin"]
    contents = [hashlib.sha256(f"{share} {name}".encode("ascii")).digest() for name in names]
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}" for name, content in zip(names, contents, strict=True)]
    missing = int(share * 2)
    (folder / names[1 - missing]).write_bytes(contents[1 - missing])
    Path(f"{folder}{SEAL}").write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    return f"{folder.name} lies above {path.name} without its {names[missing]}"


DAMAGES: dict[FaultKind, Callable[[Path, float], str]] = {
    FaultKind.TRUNCATE: truncate,
    FaultKind.EMPTY: empty,
    FaultKind.FLIP_BIT: flip_bit,
    FaultKind.ZERO_PAGE: zero_page,
    FaultKind.ZERO_TAIL: zero_tail,
    FaultKind.DROP_SEAL: drop_seal,
    FaultKind.GARBLE_SEAL: garble_seal,
    FaultKind.HALF_A_FOLDER: half_a_folder,
}
"""What needs no filesystem of the campaign's own."""

HARMLESS = frozenset({FaultKind.DROP_SEAL, FaultKind.HALF_A_FOLDER})
"""After which the snapshot itself is as good as before."""

OF_THE_SEAL = frozenset({FaultKind.DROP_SEAL, FaultKind.GARBLE_SEAL})
"""What needs a seal beside the snapshot."""


def _overwrite(path: Path, at: int, content: bytes) -> None:
    """Put bytes in the place of others. Raises UndamagedError when the file has the same bytes afterwards."""
    with path.open("rb+", buffering=0) as file:
        before = os.pread(file.fileno(), len(content), at)
        os.pwrite(file.fileno(), content, at)
        if os.pread(file.fileno(), len(content), at) == before:
            raise UndamagedError(f"{path.name} has the same bytes as before")

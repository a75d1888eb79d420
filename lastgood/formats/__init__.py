"""The formats of snapshots, one module each, and the one registry that picks among them.

A format module answers for one kind of file, without torch and without executing anything:

    NAME                              what the format is called
    recognises(head, tail)            whether the first and last bytes are of this kind
    judge(file) -> Judgement          structure and every checksum inside, in one pass that also hashes
    inside(file) -> Inside            what the snapshot says about itself, as data; reads no tensor's bytes

`judge` raises OSError alone; `inside` also DamageError and PickleError.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, BinaryIO

from lastgood import naming
from lastgood.hashing import read_through
from lastgood.pickles import Global
from lastgood.verdict import Kind, Proof

SEVERAL_IN_A_ROW = ".distcp"  # torch.distributed.checkpoint puts a file for each tensor behind the other
HEAD_BYTES = 64
TAIL_BYTES = 64


@dataclass(frozen=True)
class Judgement:
    """A format's finding: the kind, the proof it could offer, the reason, and what it read on the way.

    `sha256` is the digest of all bytes, `top` the outermost dictionary as `inside` would give it; None where not read.
    """

    kind: Kind
    proof: Proof | None
    reason: str
    sha256: str | None = None
    top: Mapping[Any, Any] | None = None


class DamageError(Exception):
    """Something in a file disagrees with something else; `kind` is the verdict that follows."""

    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


@dataclass(frozen=True)
class TensorPart:
    """A tensor in a file: its dotted name in the payload, its dtype as torch calls it, and its shape in elements.

    `bytes` is what its elements take side by side. From its first element to its last one it takes `span` bytes of the
    file, from byte `start` on; `start` is None where they are compressed.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    start: int | None
    span: int


@dataclass(frozen=True)
class Inside:
    """What a snapshot says about itself.

    `top` is its outermost dictionary as data, `globals` what its pickle would import, in order; `notes` are facts of its
    format, such as the version its writer recorded. `tensors` is walked when asked for, once, and raises DamageError on the way.
    """

    top: Mapping[Any, Any]
    globals: tuple[Global, ...] = ()
    tensors: Iterable[TensorPart] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


def registry() -> list[ModuleType]:
    """Every known format, most specific first."""
    from lastgood.formats import safetensors, torch_legacy, torch_zip

    return [torch_zip, torch_legacy, safetensors]


def format_of(file: BinaryIO, size: int) -> ModuleType | None:
    """The format whose marks a file of `size` bytes bears, or None. What is made of several files in a row is of none."""
    if str(file.name).endswith(SEVERAL_IN_A_ROW):
        return None
    file.seek(0)
    head = file.read(HEAD_BYTES)
    file.seek(max(0, size - TAIL_BYTES))
    tail = file.read(TAIL_BYTES)
    return next((module for module in registry() if module.recognises(head, tail)), None)


def unproven(file: BinaryIO, reason: str, top: Mapping[Any, Any] | None = None) -> Judgement:
    """The finding that nothing proves or disproves a file's bytes, which are hashed for it. Raises OSError."""
    sha256 = _sha256(file, os.fstat(file.fileno()).st_size)
    return Judgement(Kind.UNPROVEN, Proof.STRUCTURE, reason, sha256, top or {})


def _sha256(file: BinaryIO, size: int, *looks: Callable[[memoryview], object]) -> str:
    """The digest of the file's `size` bytes, which `looks` are shown on the way."""
    digest = hashlib.sha256()
    read_through(file.fileno(), size, digest.update, *looks)
    return digest.hexdigest()


def judge_unknown(file: BinaryIO, size: int) -> Judgement:
    """The finding about a file of no known format: only what can be said of any bytes."""
    file.seek(0)
    head = file.read(HEAD_BYTES)
    if size < 4 and b"PK\x03\x04".startswith(head[:size]):
        return Judgement(Kind.TRUNCATED, Proof.STRUCTURE, f"ends at byte {size:,}, within its first record")
    if size > HEAD_BYTES and not any(head) and naming.begins_with_a_mark(str(file.name)):
        return Judgement(Kind.CORRUPT, Proof.STRUCTURE, f"its first {HEAD_BYTES} bytes are zero, as in no such file")
    zero = _OnlyZeros()
    sha256 = _sha256(file, size, zero.look)
    if zero.only:
        return Judgement(Kind.CORRUPT, Proof.STRUCTURE, f"all of its {size:,} bytes are zero", sha256)
    return Judgement(Kind.UNPROVEN, Proof.STRUCTURE, "no seal, and no checksums inside that are known here", sha256)


class _OnlyZeros:
    def __init__(self) -> None:
        self.only = True

    def look(self, chunk: memoryview) -> None:
        self.only = self.only and not any(chunk.tobytes().strip(b"\0"))

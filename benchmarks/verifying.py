"""Sides of the rows about large files that are read: verify and inspect."""

import hashlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from benchmarks.harness import Scale, Sides
from lastgood import verify
from lastgood.describe import describe
from lastgood.sealing import seal_snapshot
from lastgood.verdict import Kind

TENSOR_BYTES = 50_000_000


def write_large(path: Path, size: int) -> None:
    """A file of torch's with tensors of about 50 MB."""
    import torch

    count = max(size // TENSOR_BYTES, 1)
    torch.save({"model": {f"w{i}": torch.randn(size // count // 4) for i in range(count)}, "iter_num": 1}, path)


def plain_hash(path: Path) -> float:
    """One pass of hashlib over the file, as anybody would write it."""
    started = time.perf_counter()
    with path.open("rb") as file:
        hashlib.file_digest(file, "sha256").hexdigest()
    return time.perf_counter() - started


@contextmanager
def _verifying(scale: Scale, sealed: bool) -> Iterator[Sides]:
    path = scale.folder / "ckpt_00000001.pt"
    write_large(path, scale.large_bytes)
    if sealed:
        seal_snapshot(path)

    def ours() -> float:
        started = time.perf_counter()
        verdict = verify(path)
        seconds = time.perf_counter() - started
        assert verdict.kind is (Kind.HEALTHY if sealed else Kind.INTACT), verdict
        return seconds

    yield Sides(ours, lambda: plain_hash(path))


def verifying_sealed(scale: Scale) -> AbstractContextManager[Sides]:
    """Verify a file with a seal; the file is in the page cache for both sides."""
    return _verifying(scale, True)


def verifying_unsealed(scale: Scale) -> AbstractContextManager[Sides]:
    """Verify a file without a seal: every CRC32 inside, and a SHA-256 to seal it by."""
    return _verifying(scale, False)


@contextmanager
def inspecting(scale: Scale) -> Iterator[Sides]:
    """Describe a large file."""
    path = scale.folder / "ckpt_00000001.pt"
    write_large(path, scale.large_bytes)

    def ours() -> float:
        started = time.perf_counter()
        description = describe(path)
        seconds = time.perf_counter() - started
        assert description.problem is None, description
        return seconds

    yield Sides(ours)

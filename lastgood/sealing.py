"""Seal a snapshot that somebody else wrote: record what its bytes are now, unless they contradict themselves."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lastgood import folders
from lastgood.contract import STATE_DIR, WRITER_LOCK
from lastgood.files import judge_unsealed
from lastgood.hashing import file_sha256
from lastgood.judging import verify
from lastgood.lock import WriterLock
from lastgood.publish import fsync_folder, write_durably
from lastgood.rungs import identity_of
from lastgood.seal import (
    MAX_SEAL_BYTES,
    Manifest,
    SealDamaged,
    content_beside,
    parse_manifest,
    parse_seal,
    seal_path,
    seal_text,
)
from lastgood.verdict import Kind, Proof


@dataclass(frozen=True)
class Sealed:
    """A sealed snapshot: where it and its seal are, its SHA-256 (a folder's is that of its list), and its bytes.

    `already` says that a seal was there and agreed, so that nothing was written.
    """

    path: str
    seal: str
    sha256: str
    bytes: int
    already: bool


class RefusedError(Exception):
    """The snapshot was not sealed; the message says why: a seal must not vouch for what is known to be bad."""


def seal_snapshot(path: str | os.PathLike[str]) -> Sealed:
    """Put `NAME.sha256` beside a snapshot, a file or a folder; `sha256sum -c` there agrees with it.

    A seal that is there already is left when it agrees, and refuses when it does not. What structure or checksums inside
    show to be damaged is refused. Raises RefusedError with the reason, RuntimeError when the directory's writer is at work,
    OSError from the system.
    """
    target = os.path.abspath(path)
    if isinstance(content_beside(target), SealDamaged):
        raise RefusedError(
            f"what is called {os.path.basename(seal_path(target))} cannot be read as a seal: look at it first"
        )
    if not sealed_beside(target):
        return _seal_anew(target)
    verdict = verify(target)
    if verdict.kind is Kind.HEALTHY and verdict.sha256 is not None:
        return Sealed(target, seal_path(target), verdict.sha256, verdict.bytes, already=True)
    cure = f"; if its bytes are right all the same, remove {os.path.basename(seal_path(target))} first"
    raise RefusedError(f"{verdict.kind}: {verdict.reason}{cure if verdict.proof is Proof.SEAL else ''}")


_WRITING = threading.Lock()  # one process is one writer: its threads take turns


@contextmanager
def _as_the_writer(folder: str) -> Iterator[None]:
    """Be the one that saves there, where there has been one: its seals come before its data."""
    with _WRITING:
        if not os.path.exists(os.path.join(folder, STATE_DIR, WRITER_LOCK)):
            yield
            return
        lock = WriterLock(Path(folder))
        lock.hold()
        try:
            yield
        finally:
            lock.release()


def sealed_beside(target: str) -> bool:
    """Whether a usable seal lies beside a snapshot."""
    content = content_beside(target)
    if not isinstance(content, bytes):
        return False
    parse = parse_manifest if os.path.isdir(target) else parse_seal
    return not isinstance(parse(content, os.path.basename(target)), SealDamaged)


def _seal_anew(target: str) -> Sealed:
    folder, name = os.path.split(target)
    before = identity_of(target)
    if before is None:
        raise RefusedError("it is neither a regular file nor a folder")
    if os.path.isdir(target):
        manifest = _sound_manifest(target)
        digest, text = manifest.sha256, "".join(seal_text(one, f"{name}/{part}") for part, one in manifest.files)
    else:
        digest = _sound_digest(target, before.size)
        text = seal_text(digest, name)
    content = text.encode("utf-8", "surrogateescape")
    if len(content) > MAX_SEAL_BYTES:
        raise RefusedError(f"its list would have {len(content):,} bytes, more than is read of a seal")
    with _as_the_writer(folder):
        if identity_of(target) != before:
            raise RefusedError("it changed while it was read")
        write_durably(seal_path(target), content)
        fsync_folder(folder)
    return Sealed(target, seal_path(target), digest, before.size, already=False)


def _sound_digest(target: str, size: int) -> str:
    if size == 0:
        raise RefusedError("truncated: the file is empty")
    with open(target, "rb") as file:
        judged = judge_unsealed(file, size)
        if judged.kind not in (Kind.INTACT, Kind.UNPROVEN):
            raise RefusedError(f"{judged.kind}: {judged.reason}")
        assert judged.sha256 is not None
    return judged.sha256


def _sound_manifest(target: str) -> Manifest:
    judged = folders.judge_unsealed_folder(target)
    if judged.kind is not Kind.UNPROVEN:
        raise RefusedError(f"{judged.kind}: {judged.reason}")
    return folders.manifest_of(target)


def sha256_of(path: str | os.PathLike[str]) -> str:
    """The digest that a seal of this snapshot holds: a file's own, or a folder's over the list of its files. Raises OSError."""
    return folders.manifest_of(os.fspath(path)).sha256 if os.path.isdir(path) else file_sha256(path)

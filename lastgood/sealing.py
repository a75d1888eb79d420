"""Seal a snapshot that somebody else wrote: record what its bytes are now, unless they contradict themselves."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from lastgood import folders
from lastgood.contract import STATE_DIR, WRITER_LOCK
from lastgood.files import judge_unsealed
from lastgood.hashing import file_sha256
from lastgood.judging import verify
from lastgood.lock import WriterLock
from lastgood.publish import fsync_folder, write_durably
from lastgood.seal import (
    Identity,
    Manifest,
    SealDamaged,
    content_beside,
    parse_manifest,
    parse_seal,
    seal_path,
    seal_text,
)
from lastgood.verdict import Kind


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


def seal_snapshot(path: str | os.PathLike[str], replace: bool = False) -> Sealed:
    """Put `NAME.sha256` beside a snapshot, a file or a folder; `sha256sum -c` there agrees with it.

    A seal that is there already is left when it agrees, and refuses when it does not, unless `replace`. What structure or
    checksums inside show to be damaged is refused always. Raises RefusedError with the reason, RuntimeError when the
    directory's writer is at work, OSError from the system.
    """
    target = os.path.abspath(path)
    if os.path.lexists(seal_path(target)) and not replace:
        verdict = verify(target)
        if verdict.kind is Kind.HEALTHY and verdict.sha256 is not None and sealed_beside(target):
            return Sealed(target, seal_path(target), verdict.sha256, verdict.bytes, already=True)
        if sealed_beside(target):
            raise RefusedError(f"it has a seal that does not agree: {verdict.kind}, {verdict.reason}")
    lock = _writer_lock(target)
    try:
        return _seal_anew(target)
    finally:
        if lock is not None:
            lock.release()


def _writer_lock(target: str) -> WriterLock | None:
    """The lock of the one that saves there, where there has been one: its seals come before its data."""
    folder = Path(os.path.dirname(target))
    if not (folder / STATE_DIR / WRITER_LOCK).exists():
        return None
    lock = WriterLock(folder)
    lock.hold()
    return lock


def sealed_beside(target: str) -> bool:
    """Whether a usable seal lies beside a snapshot."""
    content = content_beside(target)
    if not isinstance(content, bytes):
        return False
    parse = parse_manifest if os.path.isdir(target) else parse_seal
    return not isinstance(parse(content, os.path.basename(target)), SealDamaged)


def _seal_anew(target: str) -> Sealed:
    folder, name = os.path.split(target)
    status = os.stat(target)
    if stat.S_ISDIR(status.st_mode):
        before = folders.identity_of(target)
        manifest = _sound_manifest(target)
        digest, text = manifest.sha256, "".join(seal_text(one, f"{name}/{part}") for part, one in manifest.files)
        after = folders.identity_of(target)
    elif stat.S_ISREG(status.st_mode):
        before = Identity.of(status)
        digest = _sound_digest(target, status.st_size)
        text, after = seal_text(digest, name), Identity.of(os.stat(target))
    else:
        raise RefusedError("it is neither a regular file nor a folder")
    if before != after:
        raise RefusedError("it changed while it was read")
    write_durably(seal_path(target), text.encode("utf-8", "surrogateescape"))
    fsync_folder(folder)
    return Sealed(target, seal_path(target), digest, before.size, already=False)


def _sound_digest(target: str, size: int) -> str:
    if size == 0:
        raise RefusedError("truncated: the file is empty")
    with open(target, "rb") as file:
        judged = judge_unsealed(file, size)
        if judged.kind not in (Kind.INTACT, Kind.UNPROVEN):
            raise RefusedError(f"{judged.kind}: {judged.reason}")
    return judged.sha256 or file_sha256(target)


def _sound_manifest(target: str) -> Manifest:
    judged = folders.judge_unsealed_folder(target)
    if judged.kind is not Kind.UNPROVEN:
        raise RefusedError(f"{judged.kind}: {judged.reason}")
    return folders.manifest_of(target)


def sha256_of(path: str | os.PathLike[str]) -> str:
    """The digest that a seal of this snapshot holds: a file's own, or a folder's over the list of its files. Raises OSError."""
    return folders.manifest_of(os.fspath(path)).sha256 if os.path.isdir(path) else file_sha256(path)

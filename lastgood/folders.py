"""Judge a snapshot that is a folder of files.

With a seal, a list of digests, all of it must be there and every digest must agree. Without one nothing tells which files
belong to it, so that it is unproven at best; each file that is there is still judged by what is inside.
"""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lastgood import naming
from lastgood.contract import STATE_DIR
from lastgood.files import STILL_SEALED, judge_unsealed, name_damage
from lastgood.formats import Judgement
from lastgood.hashing import file_sha256
from lastgood.seal import Identity, Manifest, Seal, SealDamaged, read_former_seal, read_manifest, seal_path
from lastgood.verdict import Kind, Proof, Verdict

MAX_MEMBERS = 100_000  # files of one snapshot; a thousand ranks leave a few thousand
MAX_DEPTH = 16
MAX_JSON_BYTES = 12 << 20  # which makes 25 times as much in memory at worst; a longer one is not looked into
NAMED = 3  # files that a reason names before it only counts


@dataclass(frozen=True)
class Member:
    """One file of a folder: its path in it, and what the system says about it, or about a link that leads nowhere."""

    path: str
    status: os.stat_result
    leads_nowhere: bool = False


def is_snapshot(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is one snapshot rather than a place for several, with a supervisor's state or files with steps in it."""
    folder = os.path.abspath(path)
    if not os.path.isdir(folder) or not looks_like_one(folder):
        return False
    names = os.listdir(folder)
    return os.path.isfile(seal_path(folder)) or not (
        STATE_DIR in names or any(_tells_step(naming.any_name(name)) for name in names)
    )


def looks_like_one(folder: str) -> bool:
    """Whether a folder is a snapshot by a seal beside it or by its name; a `step_100` must also hold a file of tensors."""
    word = naming.folder_word(os.path.basename(folder))
    if word is None:
        return not naming.unfinished(os.path.basename(folder)) and os.path.isfile(seal_path(folder))
    if word in naming.SURE_WORDS or os.path.isfile(seal_path(folder)):
        return True
    try:
        return any(naming.has_snapshot_suffix(member.path) for member in members(folder))
    except OSError:
        return True  # what cannot be looked into is said to be so, not passed over


def _tells_step(found: int | bool | None) -> bool:
    return isinstance(found, int) and not isinstance(found, bool)


def members(folder: str) -> list[Member]:
    """Every file in a folder and the folders in it, in order of their paths. Raises OSError; links to folders are not entered."""
    found: list[Member] = []
    for member in _walk(folder, "", 0):
        found.append(member)
        if len(found) > MAX_MEMBERS:
            raise OSError(errno.E2BIG, f"it holds more than {MAX_MEMBERS:,} files")
    return sorted(found, key=lambda member: member.path)


def _walk(folder: str, below: str, depth: int) -> Iterator[Member]:
    if depth > MAX_DEPTH:
        raise OSError(errno.ELOOP, f"it is nested deeper than {MAX_DEPTH} folders")
    with os.scandir(os.path.join(folder, below)) as entries:
        for entry in entries:
            path = os.path.join(below, entry.name)
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(folder, path, depth + 1)
            else:
                yield from _member(folder, path, entry.is_symlink())


def _member(folder: str, path: str, is_link: bool) -> Iterator[Member]:
    full = os.path.join(folder, path)
    try:
        status = os.stat(full)
    except FileNotFoundError:
        if is_link:
            yield Member(path, os.lstat(full), leads_nowhere=True)
        return  # else it is gone since it was listed
    if stat.S_ISREG(status.st_mode):
        yield Member(path, status)


def identity_of(folder: str, own: os.stat_result | None = None) -> Identity:
    """The identity of a folder: it changes when that of any file in it does. Raises OSError.

    `size` is the bytes of all files, the times are the latest of any of them; `inode` stands for the folder's and for
    path, inode, size and time of modification of every file.
    """
    return _identity(os.stat(folder) if own is None else own, members(folder))


def _identity(own: os.stat_result, found: list[Member]) -> Identity:
    everything = hashlib.blake2b(str(own.st_ino).encode(), digest_size=7)
    for member in found:
        status = member.status
        everything.update(
            f"\0{member.path}\0{status.st_ino} {status.st_size} {status.st_mtime_ns}".encode("utf-8", "surrogateescape")
        )
    return Identity(
        int.from_bytes(everything.digest(), "little"),
        sum(member.status.st_size for member in found),
        max([own.st_mtime_ns, *(member.status.st_mtime_ns for member in found)]),
        max([own.st_ctime_ns, *(member.status.st_ctime_ns for member in found)]),
    )


def judge(path: str | os.PathLike[str]) -> Verdict:
    """The verdict about a folder. Raises OSError on read errors."""
    folder = os.path.abspath(path)
    step = naming.step_in_name(os.path.basename(folder))
    before, found = os.stat(folder), members(folder)
    identity = _identity(before, found)
    judged = _judge_members(folder, identity, found)
    if _content(identity_of(folder)) != _content(identity):
        return Verdict(Kind.INCOMPLETE, None, "it changed while it was read", identity.size, step=step)
    return Verdict(judged.kind, judged.proof, judged.reason, identity.size, judged.sha256, step)


def _content(identity: Identity) -> tuple[int, int, int]:
    """A new link to a file, or a rename of the folder, moves ctime alone and leaves the bytes as they were."""
    return (identity.inode, identity.size, identity.mtime_ns)


def _judge_members(folder: str, identity: Identity, found: list[Member]) -> Judgement:
    seal = read_manifest(folder, identity)
    if isinstance(seal, Manifest):
        return _judge_listed(folder, seal, found)
    if isinstance(seal, Seal):
        return _judge_bound(folder, seal, found)
    judged = _judge_unlisted(folder, found)
    if judged.kind is Kind.UNPROVEN and (former := read_former_seal(folder, identity)) is not None:
        judged = _judge_formerly_sealed(folder, former, found) or judged
    return replace(judged, reason=f"{judged.reason}; {seal.reason}") if isinstance(seal, SealDamaged) else judged


def _judge_listed(folder: str, seal: Manifest, found: list[Member]) -> Judgement:
    """Hold a folder against its list: what is missing is cheaper to find than what is wrong."""
    missing = [path for path, _ in seal.files if not os.path.isfile(os.path.join(folder, path))]
    if found and len(missing) == len(seal.files):
        judged = _judge_unlisted(folder, found)
        return replace(judged, reason=f"{judged.reason}; seal-damaged: it names no file that is in the folder")
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        reason = f"{len(missing)} of the {len(seal.files)} files in its seal {verb} missing: {_named(missing)}"
        return Judgement(Kind.INCOMPLETE, Proof.SEAL, reason)
    for path, digest in seal.files:
        full = os.path.join(folder, path)
        read = file_sha256(full)
        if read != digest:
            kind, detail = _damage(full)
            reason = f"{path}: SHA-256 {read[:12]}… is not the sealed {digest[:12]}…{detail}"
            return Judgement(kind, Proof.SEAL, reason)
    listed = {path for path, _ in seal.files}
    others = [member.path for member in found if member.path not in listed]
    note = f"; its seal says nothing about {_named(others)}" if others else ""
    return Judgement(
        Kind.HEALTHY, Proof.SEAL, f"the SHA-256 of all {len(seal.files)} sealed files agrees{note}", seal.sha256
    )


def _judge_bound(folder: str, seal: Seal, found: list[Member]) -> Judgement:
    read = manifest_of(folder, found).sha256
    if seal.accepts(read):
        return Judgement(Kind.HEALTHY, Proof.SEAL, f"the SHA-256 of its {len(found)} files is the sealed one", read)
    return Judgement(
        Kind.CORRUPT, Proof.SEAL, f"the SHA-256 of its files, {read[:12]}…, is not the sealed {seal.sha256[:12]}…", read
    )


def _judge_formerly_sealed(folder: str, seal: Seal, found: list[Member]) -> Judgement | None:
    """Proof that it holds what was sealed before it was touched, moved or copied; None when it does not."""
    read = manifest_of(folder, found).sha256
    return Judgement(Kind.HEALTHY, Proof.SEAL, STILL_SEALED, read) if seal.accepts(read) else None


def _damage(path: str) -> tuple[Kind, str]:
    with open(path, "rb") as file:
        return name_damage(file, os.fstat(file.fileno()).st_size)


def manifest_of(folder: str, found: list[Member] | None = None) -> Manifest:
    """The list of a folder's files as they are now, their bytes read. Raises OSError."""
    listed = members(folder) if found is None else found
    return Manifest(tuple((member.path, file_sha256(os.path.join(folder, member.path))) for member in listed))


def judge_unsealed_folder(folder: str) -> Judgement:
    """What is inside of a folder's files says about them, whatever a seal says. Raises OSError."""
    return _judge_unlisted(folder, members(folder))


def _judge_unlisted(folder: str, found: list[Member]) -> Judgement:
    if not found:
        return Judgement(Kind.INCOMPLETE, Proof.STRUCTURE, "the folder is empty")
    dangling = [member.path for member in found if member.leads_nowhere]
    if dangling:
        return Judgement(Kind.INCOMPLETE, Proof.STRUCTURE, f"what links in it lead to is not there: {_named(dangling)}")
    unfinished = [member.path for member in found if naming.part_unfinished(member.path)]
    if unfinished:
        return Judgement(Kind.INCOMPLETE, Proof.STRUCTURE, f"its writer was not done with {_named(unfinished)}")
    for member in found:
        judged = _judge_member(os.path.join(folder, member.path), member.status.st_size)
        if judged is not None and judged.kind is not Kind.INTACT and judged.kind is not Kind.UNPROVEN:
            return Judgement(judged.kind, judged.proof, f"{member.path}: {judged.reason}")
    reason = f"no seal says which files belong to it; nothing is wrong with the {len(found)} that are there"
    return Judgement(Kind.UNPROVEN, Proof.STRUCTURE, reason)


def _judge_member(path: str, size: int) -> Judgement | None:
    """What is inside of one file says about it; None where an empty file is as good as any, such as a marker."""
    suffix = os.path.splitext(path)[1].lower()
    if size == 0:
        if suffix == ".json" or naming.has_snapshot_suffix(path):
            return Judgement(Kind.TRUNCATED, Proof.STRUCTURE, "the file is empty")
        return None
    with open(path, "rb") as file:
        if suffix != ".json":
            return judge_unsealed(file, size)
        return None if size > MAX_JSON_BYTES else _judge_json(file.read())


def _judge_json(content: bytes) -> Judgement | None:
    """A finding where it ends too early or holds what is no JSON; several values in a row, or absurd ones, are none."""
    try:
        json.loads(content)
    except json.JSONDecodeError as error:
        if not error.msg.startswith("Extra data"):
            return Judgement(Kind.CORRUPT, Proof.STRUCTURE, f"it is no whole JSON: {error}")
    except UnicodeDecodeError as error:
        return Judgement(Kind.CORRUPT, Proof.STRUCTURE, f"it is no whole JSON: {error}")
    except (ValueError, RecursionError):
        pass  # a number too long or lists too deep for this reader say nothing about the file
    return None


def _named(paths: list[str]) -> str:
    more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
    return ", ".join(paths[:NAMED]) + more

"""The recorded SHA-256 of a snapshot: `NAME.sha256` beside it, in the format of coreutils.

All forms that people have are read: `*` marker, upper case, CRLF, byte order marks, a bare digest, escaped names,
several files in one list, `#` comments. A seal that cannot be used is a fault of the seal, never of the snapshot.
The seal of a folder is such a list too, one line a file; the folder's own digest is that of its list in one fixed form.

While a name is overwritten its seal also keeps the digest that is being replaced, as a comment, and either matches.
Seals that a supervisor makes for other people's files live in `.lastgood/seals/`, bound to the file's identity: a file
that changed since is a new arrival, which its old seal can prove to hold the same bytes still, and never condemns.
"""

import errno
import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from typing import NamedTuple

from lastgood.contract import SEAL_SUFFIX, SEALS_DIR, STATE_DIR
from lastgood.regular import regular

MAX_SEAL_BYTES = 32 << 20  # a list of as many files as a folder may hold; a larger one is not a seal

_TAGGED = re.compile(
    r"(?P<escaped>\\?)SHA(?:2-)?256 ?\((?P<name>.+)\) ?= ?(?P<digest>[0-9a-fA-F]{64})"
)  # as --tag, BSD and openssl do
_LINE = re.compile(r"(?P<escaped>\\?)(?P<digest>[0-9a-fA-F]{64})(?:[ \t]+(?P<name>[^ \t].*))?")
_REPLACES = re.compile(r"#\s*replaces\s+([0-9a-f]{64})\s*")


@dataclass(frozen=True)
class Seal:
    """Digests that a snapshot's bytes may have: `sha256` is the one intended, `replaced` those being overwritten."""

    sha256: str
    replaced: tuple[str, ...] = ()

    def accepts(self, digest: str) -> bool:
        """Whether bytes with this digest are what the seal promises."""
        return digest == self.sha256 or digest in self.replaced


@dataclass(frozen=True)
class Manifest:
    """The digests of a folder's files: `files` are pairs of a path in the folder and its SHA-256, in order of the paths."""

    files: tuple[tuple[str, str], ...]

    @property
    def sha256(self) -> str:
        """One digest for all of the folder: that of its list, each line a digest, two spaces and the path, in order."""
        text = "".join(seal_text(digest, path) for path, digest in self.files)
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True)
class SealDamaged:
    """A seal is there but says nothing usable; `reason` says why. The bytes are judged without it."""

    reason: str


class Identity(NamedTuple):
    """What changes when a file's content is replaced or rewritten: inode, size in bytes, mtime and ctime in ns."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Identity":
        """The identity that a stat result shows."""
        numbers = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        return tuple.__new__(cls, numbers)  # half as long as by their names, which counts for ten thousand


def seal_text(digest: str, name: str, replaced: tuple[str, ...] = ()) -> str:
    """The content of `NAME.sha256`; `sha256sum -c` in the same folder agrees with it."""
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    marker = "\\" if escaped != name else ""
    comments = "".join(f"# replaces {old}\n" for old in replaced)
    return f"{comments}{marker}{digest}  {escaped}\n"


def parse_seal(content: bytes, name: str) -> Seal | SealDamaged:
    """Read the seal of the snapshot called `name` from the content of a seal file."""
    text = _decode(content)
    if not text.strip("\0 \t\r\n"):
        return SealDamaged("seal-damaged: the seal file is empty, as an interrupted write leaves it")
    replaced: list[str] = []
    digests: list[str] = []
    others: list[str] = []
    for line in re.split(r"\r?\n", text):
        line = line.strip(" \t")
        if old := _REPLACES.fullmatch(line):
            replaced.append(old[1])
        elif line and not line.startswith("#"):
            match = _LINE.fullmatch(line) or _TAGGED.fullmatch(line)
            if match is None:
                others.append("a line that is no SHA-256")
            elif match["name"] is None or _names(match, name):
                digests.append(match["digest"].lower())
            else:
                others.append(f"a digest of {_plain_name(match)!r}")
    if len(set(digests)) == 1:
        return Seal(digests[0], tuple(replaced))
    if digests:
        return SealDamaged(f"seal-damaged: it holds {len(set(digests))} different digests for {name!r}")
    return SealDamaged(f"seal-damaged: it holds {others[0] if others else 'nothing'} and no digest of {name!r}")


def parse_manifest(content: bytes, name: str) -> Manifest | SealDamaged:
    """Read the seal of the folder called `name`; its lines name files from beside the folder, or from inside of it.

    Any line that makes no sense damages all of it: half a list would vouch for half a snapshot.
    """
    files: dict[str, str] = {}
    for line in re.split(r"\r?\n", _decode(content).strip("\0\r\n")):
        line = line.lstrip(" \t")  # at the end they may be part of a name
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line) or _TAGGED.fullmatch(line)
        path = None if match is None else _path_in(match, name)
        if match is None or path is None:
            return SealDamaged("seal-damaged: it holds a line that is no SHA-256 of a file in the folder")
        digest = match["digest"].lower()
        if files.setdefault(path, digest) != digest:
            return SealDamaged(f"seal-damaged: it holds two different digests for {path!r}")
    if not files:
        return SealDamaged("seal-damaged: the seal file is empty, as an interrupted write leaves it")
    return Manifest(tuple(sorted(files.items())))


def _path_in(match: re.Match[str], folder: str) -> str | None:
    """The path in the folder that a line names; None when it names none, or one outside of it."""
    if match["name"] is None:
        return None
    said = _unescaped(match).removeprefix("*").removeprefix("./").removeprefix(f"{folder}/")
    parts = said.split("/")
    return None if "\0" in said or any(part in ("", ".", "..") for part in parts) else said


def _names(match: re.Match[str], name: str) -> bool:
    """Whether a line is about `name`: a leading `*` is the marker of binary mode, unless the name itself begins with it."""
    said = _plain_name(match)
    return name.strip(" \t") in (said, said.removeprefix("*"))


def _plain_name(match: re.Match[str]) -> str:
    return os.path.basename(_unescaped(match))


def _unescaped(match: re.Match[str]) -> str:
    name = match["name"]
    if match["escaped"]:
        name = re.sub(r"\\(.)", lambda m: {"n": "\n", "r": "\r"}.get(m[1], m[1]), name)
    return name


def _decode(content: bytes) -> str:
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")):
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, "replace")
    return os.fsdecode(content)


def seal_path(snapshot: str | os.PathLike[str]) -> str:
    """Where the writer's seal of a snapshot is."""
    return (os.fspath(snapshot).rstrip("/") or "/") + SEAL_SUFFIX


def read_seal(snapshot: str | os.PathLike[str], identity: Identity) -> Seal | SealDamaged | None:
    """The seal of a snapshot: the writer's beside it, else a supervisor's for just this identity; None without one.

    Raises OSError other than "not there" so that a read error is never taken for a missing seal.
    """
    path = os.fspath(snapshot)
    found = _beside(path)
    if found is None:
        return read_bound_seal(path, identity)
    if isinstance(found, SealDamaged):
        return read_bound_seal(path, identity) or found
    return found


def read_manifest(folder: str, identity: Identity) -> Manifest | Seal | SealDamaged | None:
    """The seal of a folder: the list beside it, else a supervisor's digest of all of it for just this identity.

    Raises OSError other than "not there".
    """
    content = content_beside(folder)
    found = parse_manifest(content, os.path.basename(folder)) if isinstance(content, bytes) else content
    return found if isinstance(found, Manifest) else read_bound_seal(folder, identity) or found


def _beside(path: str) -> Seal | SealDamaged | None:
    """What the seal file beside a snapshot says; None when there is none."""
    content = content_beside(path)
    return parse_seal(content, os.path.basename(path)) if isinstance(content, bytes) else content


def content_beside(path: str) -> bytes | SealDamaged | None:
    """The bytes of the seal file beside a snapshot; None when there is none."""
    try:
        descriptor = os.open(seal_path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            return None
        if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO):
            return SealDamaged(f"seal-damaged: the seal file cannot be read ({error.strerror})")
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return SealDamaged("seal-damaged: what has the seal's name is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_SEAL_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_SEAL_BYTES:
        return SealDamaged("seal-damaged: the seal file is larger than any list of digests")
    return content


def bound_seal_path(snapshot: str | os.PathLike[str]) -> str:
    """Where a supervisor's seal of somebody else's snapshot is."""
    folder, name = os.path.split(os.path.abspath(snapshot))
    return os.path.join(folder, STATE_DIR, SEALS_DIR, name + ".json")


def bound_seal_text(digest: str, identity: Identity) -> str:
    """The content of a supervisor's seal."""
    return json.dumps({"sha256": digest, **identity._asdict()}) + "\n"


def read_bound_seal(snapshot: str | os.PathLike[str], identity: Identity) -> Seal | None:
    """A supervisor's seal, if there is one for exactly this identity. A damaged one counts as none."""
    bound = _bound(snapshot)
    return bound[1] if bound is not None and bound[0] == identity else None


def read_former_seal(snapshot: str | os.PathLike[str], identity: Identity) -> Seal | None:
    """A supervisor's seal of as many bytes by that name, whatever else changed since: a mode, a time, a copy of the folder.

    Bytes that it accepts are those that were sealed; about others, which may be a new snapshot, it says nothing.
    """
    bound = _bound(snapshot)
    return bound[1] if bound is not None and bound[0].size == identity.size else None


def _bound(snapshot: str | os.PathLike[str]) -> tuple[Identity, Seal] | None:
    """What the supervisor's seal of a snapshot says, and of which identity."""
    try:
        with open(bound_seal_path(snapshot), "rb", opener=regular) as file:
            found = json.loads(file.read(MAX_SEAL_BYTES))
        identity = Identity(found["inode"], found["size"], found["mtime_ns"], found["ctime_ns"])
        return identity, Seal(str(found["sha256"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None

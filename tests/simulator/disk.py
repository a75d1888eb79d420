"""The fake checkpoint directory, and the truth about it: what each file holds, and what its writer meant it to hold."""

import errno
import json
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from lastgood.choose import newest_first
from lastgood.contract import RUN_FILE, SEALS_DIR, WANTED_FILE
from lastgood.ledger import SealStamp
from lastgood.rungs import Rung
from lastgood.seal import Identity, Seal, SealDamaged, bound_seal_path, bound_seal_text
from lastgood.verdict import Kind, Proof, Verdict
from supervisor.adapters import space
from tests.simulator.plan import DIRECTORY, Fault, Style

if TYPE_CHECKING:
    from tests.simulator.world import World

SIZE = 1000
GARBLED = "garbled"


def os_error(number: int) -> OSError:
    """The error that the system would raise."""
    return OSError(number, os.strerror(number))


def digest_of(content: int) -> str:
    """The SHA-256 of a content."""
    return f"{content:064x}"


@dataclass
class File:
    """One snapshot. `meant` is the content that its writer meant it to have, `holds` the one it has, cut at `size`; `made_of` is
    the one that its writer was resumed from, and `brought` that it was no trainer who wrote it.
    """

    name: str
    step: int
    meant: int
    holds: int
    size: int
    inode: int
    mtime_ns: int
    ctime_ns: int
    checksums: bool
    seal: str | None = None
    seal_inode: int = 0
    durable: bool = False
    read_at: float = -1.0
    harmed_at: float = -1.0
    told_bad_at: float = -1.0
    forbidden: bool = False
    errors_until: float = -1.0
    rooted: bool = False
    linked: bool = False
    after_bad_loss: bool = False
    brought: bool = False
    made_of: "File | None" = None
    made_at: float = -1.0

    @property
    def good(self) -> bool:
        """The truth."""
        return self.holds == self.meant and self.size == SIZE

    @property
    def digest(self) -> str:
        """The SHA-256 of what it holds."""
        return digest_of(self.holds * 2 * SIZE + self.size)

    @property
    def identity(self) -> Identity:
        return Identity(self.inode, self.size, self.mtime_ns, self.ctime_ns)


class Disk:
    """Files, quarantine, and the supervisor's own texts. What is not durable is lost in a power cut, or half of it."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.files: dict[str, File] = {}
        self.quarantine: list[File] = []
        self.partials = 0
        self.texts: dict[str, str] = {}
        self._durable_texts: dict[str, str] = {}
        self.away_until = -1.0
        self.away_errno = errno.EIO
        self.full_until = -1.0
        self.short_until = -1.0
        self.trimmed = False
        self.slow_until = -1.0
        self.wish_hidden_until = -1.0
        self.ledger: dict[str, tuple[Identity, int, Verdict, int]] = {}
        self.ever_held = False
        self.seen: dict[str, tuple[bool, bool]] = {}
        """At the last look, by name: whether it was good and could be read."""
        self._inodes = 1

    # -- what the world does ------------------------------------------------------------------------------------------

    def inode(self) -> int:
        """A number never used before."""
        self._inodes += 1
        return self._inodes

    def is_away(self) -> bool:
        return self._world.now < self.away_until

    def is_full(self) -> bool:
        return self._world.now < self.full_until

    def is_short(self) -> bool:
        """Whether there is too little room for a save, though there may be enough for a text."""
        return self._world.now < max(self.short_until, self.full_until)

    def is_readable(self, file: File) -> bool:
        return not file.forbidden and self._world.now >= file.errors_until

    def check(self, writing: bool = False) -> None:
        """Raise what the system would raise now."""
        if self.is_away():
            self._world.meet_once(Fault.AWAY, self.away_until)
            raise os_error(self.away_errno)
        if writing and self.is_full():
            self._world.meet_once(Fault.FULL, self.full_until)
            raise os_error(errno.ENOSPC)

    def write(self, name: str, step: int, style: Style, size: int = SIZE) -> File:
        """A file of a trainer, under its final name: all of it, or what was written so far."""
        world, old = self._world, self.files.get(name)
        now_ns = world.wall_ns()
        fresh = old is None or style in (Style.SEALED, Style.RENAMED)
        content = world.number()
        inode = self.inode() if old is None or fresh else old.inode
        file = File(name, step, content, content, size, inode, now_ns, now_ns, style is not Style.BARE)
        if style is Style.SEALED:
            file.seal, file.seal_inode, file.durable = file.digest, self.inode(), True
        if size < SIZE:
            file.harmed_at = world.now
        self.files[name] = file
        self.ever_held = True
        return file

    def finish(self, file: File) -> None:
        """The rest of a file that was begun."""
        file.size, file.mtime_ns, file.harmed_at = SIZE, self._world.wall_ns(), -1.0
        file.ctime_ns = file.mtime_ns

    def lose_unsynced(self) -> None:
        """A power cut: what was not synced is gone, empty, or cut."""
        for file in list(self.files.values()):
            if file.durable:
                continue
            fate = self._world.random.random()
            if fate < 0.7:
                self._world.meet("unsynced-lost")
                file.harmed_at = self._world.now
                file.size = 0 if fate < 0.3 else SIZE // 2
                if fate >= 0.55:
                    del self.files[file.name]
            file.durable = True
        for path in list(self.texts):
            if self._durable_texts.get(path) != self.texts[path] and self._world.random.random() < 0.5:
                self.texts[path] = self._durable_texts.get(path, "")
                if not self.texts[path]:
                    del self.texts[path]
                self._world.memory_is_stale = self._world.memory_is_stale or path == RUN_FILE
        self._durable_texts = dict(self.texts)

    def tell_wish(self, wanted: str) -> None:
        """A person replaces wanted.json, durably."""
        self.texts[WANTED_FILE] = self._durable_texts[WANTED_FILE] = json.dumps({"version": 1, "wanted": wanted})

    @property
    def told_wish(self) -> str | None:
        """What wanted.json says."""
        text = self.texts.get(WANTED_FILE)
        return None if text is None else str(json.loads(text)["wanted"])

    def newest(self, wanted: Callable[[File], bool]) -> File | None:
        """The newest file of a kind."""
        return next((file for file in newest_first(self.files.values()) if wanted(file)), None)

    def heal(self) -> None:
        """No fault lasts."""
        self.away_until = self.full_until = self.short_until = self.slow_until = self.wish_hidden_until = -1.0
        for file in self.files.values():
            file.errors_until, file.forbidden, file.rooted = -1.0, False, False

    # -- what the supervisor's adapters and the library would ask of the system ----------------------------------------

    def scan(self, directory: str, pattern: str | None = None, ledger: object = None) -> list[Rung]:
        """Every candidate, newest first."""
        self._world.point("scan")
        self.check()
        self.seen = {name: (file.good, self.is_readable(file)) for name, file in self.files.items()}
        return newest_first(self._rung(directory, file) for file in self.files.values())

    def scan_named(self, directory: str, names: Collection[str], pattern: str | None = None) -> list[Rung] | None:
        """Those of these names; what has several is left to a look at all."""
        self._world.point("scan named")
        self.check()
        found = [file for file in self.files.values() if file.name in names]
        if any(file.linked for file in found):
            return None
        self._world.meet("looked-at-few")
        for name in names:
            self.seen.pop(name, None)
        self.seen |= {file.name: (file.good, self.is_readable(file)) for file in found}
        return newest_first(self._rung(directory, file) for file in found)

    def stamp_of(self, directory: str) -> tuple[int, int, int] | None:
        """What is another one whenever a name came or went."""
        self._world.point("stat")
        self.check()
        return (0, 0, hash(frozenset(self.files)))

    def entries_of(self, directory: str) -> list[SimpleNamespace]:
        """All files, seals among them."""
        self._world.point("list")
        self.check()
        names = [*self.files, *(f"{name}.sha256" for name, file in self.files.items() if file.seal is not None)]
        return [SimpleNamespace(name=name, is_dir=_no, is_symlink=_no) for name in names]

    @staticmethod
    def _rung(directory: str, file: File) -> Rung:
        return Rung(directory, file.name, file.step, file.identity, None, file.linked, file.seal_inode)

    def ever_held_one(self, directory: str, pattern: str | None = None) -> bool:
        self.check()
        if self.files or self.quarantine or self.trimmed:
            return True
        text = self.texts.get(RUN_FILE)
        return text is not None and json.loads(text)["high_water"] is not None

    def verify(self, path: str, deep: bool = False) -> Verdict:
        """Read every byte, which takes time, in which the file may change."""
        self._world.point("verify")
        name = os.path.basename(path)
        before = self._identity(name)
        self._world.pass_time(0.3)
        if self.is_away():
            return _unreadable(self.away_errno)
        file = self.files.get(name)
        if file is None or before is None:
            return _unreadable(errno.ENOENT)
        if file.identity != before:
            return Verdict(Kind.INCOMPLETE, None, "it changed while it was read")
        verdict = self._judge(file)
        self._world.read(file, verdict)
        return verdict

    def _identity(self, name: str) -> Identity | None:
        file = self.files.get(name)
        return None if file is None else file.identity

    def _judge(self, file: File) -> Verdict:
        if file.forbidden:
            self._world.meet_once(Fault.FORBIDDEN, file.inode)
            return _unreadable(errno.EACCES)
        if self._world.now < file.errors_until:
            self._world.meet_once(Fault.READ_ERROR, file.errors_until)
            return _unreadable(errno.EIO)
        digest = file.digest
        seal = self._seal_of(file)
        facts: dict[str, Any] = {"bytes": file.size, "sha256": digest, "step": file.step}
        if isinstance(seal, Seal):
            if seal.accepts(digest):
                return Verdict(Kind.HEALTHY, Proof.SEAL, "its bytes match its seal", **facts)
            kind = Kind.CORRUPT if file.size == SIZE else Kind.TRUNCATED
            return Verdict(kind, Proof.SEAL, "its bytes do not match its seal", **facts)
        if file.size < SIZE:
            return Verdict(Kind.TRUNCATED, Proof.STRUCTURE, f"it ends at byte {file.size} of {SIZE}", **facts)
        if not file.checksums:
            return Verdict(Kind.UNPROVEN, Proof.STRUCTURE, "it has no checksums", **facts)
        if not file.good:
            return Verdict(Kind.CORRUPT, Proof.CRC, "a checksum inside differs", **facts)
        return Verdict(Kind.INTACT, Proof.CRC, "every checksum inside agrees", **facts)

    def _seal_of(self, file: File) -> Seal | SealDamaged | None:
        if file.seal is not None and file.seal != GARBLED:
            return Seal(file.seal)
        text = self.texts.get(f"{SEALS_DIR}/{file.name}.json")
        if text is not None:
            found = json.loads(text)
            if Identity(found["inode"], found["size"], found["mtime_ns"], found["ctime_ns"]) == file.identity:
                return Seal(found["sha256"])
        return None if file.seal is None else SealDamaged("seal-damaged: it holds nothing")

    def is_provable(self, file: File) -> bool:
        """Whether its bytes can be proven good."""
        return file.checksums or isinstance(self._seal_of(file), Seal)

    def shows_damage(self, file: File) -> bool:
        """Whether a reader can tell that it is bad: without checksums inside, only from a seal that is older than the damage."""
        if file.good:
            return False
        seal = self._seal_of(file)
        return file.checksums or file.size < SIZE or (isinstance(seal, Seal) and not seal.accepts(file.digest))

    def read_seal(self, path: str, identity: Identity) -> Seal | SealDamaged | None:
        self.check()
        file = self.files.get(os.path.basename(path))
        return None if file is None else self._seal_of(file)

    def sha256_of(self, path: str) -> str:
        self._world.point("hash")
        self.check()
        self._world.pass_time(0.3)
        file = self.files.get(os.path.basename(path))
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not self.is_readable(file):
            raise os_error(errno.EACCES if file.forbidden else errno.EIO)
        return file.digest

    def identity_of(self, path: str) -> Identity | None:
        self.check()
        found = self._identity(os.path.basename(path))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return found

    def exists(self, path: str) -> bool:
        """As os.path.exists and lexists, of a snapshot or of its seal; storage that is away shows nothing."""
        if self.is_away():
            return False
        name = os.path.basename(path)
        file = self.files.get(name.removesuffix(".sha256"))
        return file is not None and (not name.endswith(".sha256") or file.seal is not None)

    def stamp(self, path: str) -> SealStamp:
        """The stamp of the seal beside a snapshot."""
        file = self.files.get(os.path.basename(path))
        return SealStamp() if file is None or file.seal is None else SealStamp(file.seal_inode, 80, file.seal_inode)

    def write_durably(self, path: str, content: bytes) -> None:
        """Replace a text of the supervisor's; killed in the middle it is the old one or the new one."""
        self._world.point("write")
        try:
            self.check(writing=True)
        except OSError:
            self._world.meet("memory-not-saved")
            self._world.memory_is_stale = self._world.memory_is_stale or _key(path) == RUN_FILE
            raise
        self.texts[_key(path)] = content.decode()
        self._world.point("written")

    def write_bound_seal(self, path: Path, digest: str, identity: Identity) -> None:
        """Seal a snapshot of the trainer's."""
        self.write_durably(bound_seal_path(path), bound_seal_text(digest, identity).encode("ascii"))

    def fsync_folder(self, path: str) -> None:
        self._world.point("fsync")
        self.check()
        self._durable_texts = dict(self.texts)

    def open_text(self, path: str) -> str:
        """The content of a text. Raises OSError."""
        self.check()
        if _key(path) == WANTED_FILE and self._world.now < self.wish_hidden_until:
            raise os_error(errno.EIO)
        try:
            return self.texts[_key(path)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None

    def remove_if_there(self, path: str) -> None:
        self._world.point("remove")
        self.check()
        self.texts.pop(_key(path), None)

    # -- room ---------------------------------------------------------------------------------------------------------

    def room_for(self, directory: str, size: int, files: int) -> space.Room:
        """The room for the next save, and what is needed."""
        self._world.point("room")
        until = max(self.short_until, self.full_until)
        self._world.promises.looked_for(Fault.SHORT, until if self.is_short() and not self.is_away() else None)
        self.check()
        return space.Room(0 if self.is_short() else 10 * SIZE, None, size + 1, files)

    def trim(self, directory: str, limit_bytes: int, is_enough: Callable[[], bool]) -> Iterator[space.Trimmed]:
        """Remove from quarantine what is broken for all to see; that there was something is still known."""
        self.check()
        for file in [file for file in self.quarantine if self.shows_damage(file)]:
            self._world.point("trim")
            self.quarantine.remove(file)
            self.trimmed = True
            yield space.Trimmed(file.name, f"{directory}/.lastgood/quarantine/{file.name}", file.size)

    # -- places ---------------------------------------------------------------------------------------------------------

    def set_aside(self, directory: str, name: str, finding: dict[str, Any]) -> str:
        self._world.point("set aside")
        self.check()
        file = self.files.get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if file.rooted:
            self._world.meet(Fault.STUCK_RUNG)
            self._world.meet("set-aside-refused")
            self._world.promises.refusals += 1
            raise os_error(errno.EPERM)
        self._world.promises.set_aside(file)
        del self.files[name]
        self.quarantine.append(file)
        self.texts.pop(f"{SEALS_DIR}/{name}.json", None)
        self._world.point("set aside done")
        return f"{directory}/.lastgood/quarantine/{name}"

    def put_back(self, directory: str, name: str) -> None:
        self._world.point("put back")
        self.check()
        if name in self.files:
            raise os_error(errno.EEXIST)
        file = next((one for one in reversed(self.quarantine) if one.name == name), None)
        if file is None:
            raise os_error(errno.ENOENT)
        self.quarantine.remove(file)
        self.files[name] = file

    def prune(self, directory: str, name: str) -> None:
        self._world.point("prune")
        self.check()
        file = self.files.get(name)
        if file is not None:
            if file.rooted:
                self._world.meet(Fault.STUCK_RUNG)
                raise os_error(errno.EPERM)
            self._world.promises.pruned(file)
            del self.files[name]
        self._world.point("pruned")
        self.texts.pop(f"{SEALS_DIR}/{name}.json", None)

    def sweep(self, directory: str) -> list[str]:
        self._world.point("sweep partials")
        self.check()
        self.partials = 0
        return []

    def is_being_written(self, path: str) -> bool:
        """Whether a living trainer has it open, which writes in place."""
        saving = (getattr(one, "saving", None) for one in self._world.living)
        return any(file is not None and file.name == _key(path) for file in saving)

    def written(self, directory: str, names: Collection[str] | None = None) -> list[str]:
        """The partials, or those of `names`: only of a trainer that saves as this software does, while it is in a save."""
        self._world.point("partials")
        self.check()
        trainer = self._world.trainer
        found = [] if trainer is None or not trainer.saves_visibly else [trainer.partial]
        return [name for name in found if names is None or name in names]

    def drop_orphaned_seals(self, directory: str) -> list[str]:
        self._world.point("drop seals")
        self.check()
        for path in [path for path in self.texts if path.startswith(SEALS_DIR)]:
            if path.removeprefix(f"{SEALS_DIR}/").removesuffix(".json") not in self.files:
                del self.texts[path]
        return []


def _no(**_: bool) -> bool:
    """What each file answers to whether it is a folder, or a link."""
    return False


class Ledger:
    """Verdicts remembered by identity, across lives; like the real one, of files that were still when they were read."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def get(self, name: str, identity: Identity, seal_inode: int) -> Verdict | None:
        known = self._disk.ledger.get(name)
        return known[2] if known is not None and (known[0], known[1]) == (identity, seal_inode) else None

    def put(self, path: str, identity: Identity, verdict: Verdict, read_at: int, seal: SealStamp) -> None:
        young = read_at - max(identity.mtime_ns, identity.ctime_ns) < 2_000_000_000
        if not young and verdict.kind not in (Kind.UNREADABLE, Kind.INCOMPLETE):
            self._disk.ledger[os.path.basename(path)] = (identity, seal.inode, verdict, read_at)


def _key(path: str) -> str:
    return path.removeprefix(f"{DIRECTORY}/.lastgood/")


def _unreadable(number: int) -> Verdict:
    return Verdict(Kind.UNREADABLE, None, f"{os.strerror(number)}; its bytes were not judged", errno=number)

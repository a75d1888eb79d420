"""Verdicts remembered by a file's identity, so that an unchanged snapshot is not read twice. Deletable without harm.

A verdict is remembered only for an identity that had been still for two seconds when its bytes were read: a timestamp
younger than that could hide a later change. One line of JSON a verdict, the last one for an identity counts. A seal that
came, went or was replaced asks for a new verdict; one that was edited in place does so unless the bytes were proven by it.
"""

import json
import os
import time
from typing import Any, NamedTuple

from lastgood.contract import LEDGER_FILE, STATE_DIR
from lastgood.publish import write_durably
from lastgood.regular import regular
from lastgood.seal import Identity, seal_path
from lastgood.uncollected import Uncollected
from lastgood.verdict import Kind, Proof, Verdict

STILL_NS = 2_000_000_000
ENTRIES_MAX = 20_000  # the newest, which are kept when it is written anew
LINES_MAX = ENTRIES_MAX + 10_000  # then it is


class SealStamp(NamedTuple):
    """What changes when a seal file does: inode, size in bytes, mtime in ns; all 0 without one."""

    inode: int = 0
    size: int = 0
    mtime_ns: int = 0

    @classmethod
    def beside(cls, path: str) -> "SealStamp":
        """The stamp of the seal beside a snapshot as it is now."""
        try:
            status = os.stat(seal_path(path))
        except OSError:
            return cls()
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class Ledger:
    """The remembered verdicts of one checkpoint directory. Reads once when made; `put` appends."""

    def __init__(self, checkpoint_dir: str | os.PathLike[str], writable: bool = False) -> None:
        self._folder = os.fspath(checkpoint_dir)
        self._path = os.path.join(checkpoint_dir, STATE_DIR, LEDGER_FILE)
        self._writable = writable
        self._entries: dict[int, list[Any]] = {}  # by inode: of one that was used again only the last can be true
        self._lines = 0
        self._load()

    def _load(self) -> None:
        try:
            with open(self._path, encoding="utf-8", errors="replace", opener=regular) as file:
                text = file.read().rstrip("\n")
        except OSError:
            return  # no ledger, or one that cannot be read, only costs time
        with Uncollected():
            self._take(_parsed(text))

    def _take(self, entries: list[Any]) -> None:
        self._lines = len(entries)
        for entry in entries:
            try:
                self._entries[entry[0]] = entry
            except (TypeError, LookupError):
                pass  # what is no entry is worth nothing and costs nothing

    def get(self, name: str, identity: Identity, seal_inode: int = 0) -> Verdict | None:
        """The verdict remembered for this file as it is now; `seal_inode` is that of the seal beside it, 0 without one."""
        entry = self._entries.get(identity.inode)
        if entry is None:
            return None
        try:
            a, b, c, d, inode, seal_bytes, seal_ns, _, kind, proof, reason, size, sha256, step, seconds, loss = entry
            if inode != seal_inode or (a, b, c, d) != identity:
                return None
            if inode and kind and (inode, seal_bytes, seal_ns) != SealStamp.beside(os.path.join(self._folder, name)):
                return None
            why, of_bytes = _USUAL if reason is None else reason, b if size is None else size
            return tuple.__new__(  # half as long as by their names
                Verdict, (_KINDS[kind], _PROOFS[proof], why, of_bytes, sha256, step, seconds, None, loss)
            )
        except (KeyError, TypeError, ValueError):
            return None  # of another version, or damaged

    def put(
        self, path: str, identity: Identity, verdict: Verdict, read_at_ns: int, seal: SealStamp | None = None
    ) -> None:
        """Remember a verdict whose reading began at `read_at_ns` (wall clock, as file times are), under that seal."""
        if read_at_ns - max(identity.mtime_ns, identity.ctime_ns) < STILL_NS or verdict.kind is Kind.UNREADABLE:
            return
        entry = [*identity, *(seal or SealStamp()), os.path.basename(path), *_encoded(verdict, identity.size)]
        if self._entries.get(identity.inode) == entry:
            return
        self._entries[identity.inode] = entry
        if self._writable:
            self._append(entry)

    def _append(self, entry: list[Any]) -> None:
        try:
            if self._lines >= LINES_MAX:
                self._write_anew()
                return
            descriptor = regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
            try:
                os.write(descriptor, _line(entry))
            finally:
                os.close(descriptor)
            self._lines += 1
        except OSError:
            pass  # a full disk must not end a judgement

    def _write_anew(self) -> None:
        """Keep the last verdict for each of the newest identities. Raises OSError."""
        self._entries = dict(list(self._entries.items())[-ENTRIES_MAX:])
        write_durably(self._path, b"".join(map(_line, self._entries.values())))
        self._lines = len(self._entries)


def _line(entry: list[Any]) -> bytes:
    return json.dumps(entry).encode("ascii") + b"\n"


def _parsed(text: str) -> list[Any]:
    """The lines as data: all at once, which is fast, else one by one, None for those that a kill cut short."""
    try:
        return list(json.loads(f"[{text.replace(chr(10), ',')}]"))
    except (ValueError, RecursionError):
        return [_or_none(line) for line in text.split("\n")]


def _or_none(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


# Ten thousand small numbers are read in a moment, ten thousand words are not: what most verdicts have in common is left out.
_KINDS: dict[int, Kind] = dict(enumerate(Kind))
_PROOFS: dict[int, Proof | None] = dict(enumerate((None, *Proof)))
_NUMBERS: dict[Kind | Proof | None, int] = {one: number for of in (_KINDS, _PROOFS) for number, one in of.items()}
_USUAL = "its SHA-256 is the sealed one"


def _encoded(verdict: Verdict, size: int) -> list[Any]:
    reason = None if verdict.reason == _USUAL else verdict.reason
    return [
        _NUMBERS[verdict.kind],
        _NUMBERS[verdict.proof],
        reason,
        None if verdict.bytes == size else verdict.bytes,
        verdict.sha256,
        verdict.step,
        verdict.seconds,
        verdict.loss,
    ]


def now_ns() -> int:
    """The wall clock that file times are compared with."""
    return time.time_ns()

"""Verdicts remembered by a file's identity, so that an unchanged snapshot is not read twice. Deletable without harm.

A verdict is remembered only for an identity that had been still for two seconds when its bytes were read: a timestamp
younger than that could hide a later change. One JSON line a verdict, the last one for an identity counts.
"""

import json
import os
import time
from typing import Any

from lastgood.contract import LEDGER_FILE, STATE_DIR
from lastgood.seal import Identity, seal_path
from lastgood.verdict import Kind, Proof, Verdict

STILL_NS = 2_000_000_000
LINES_MAX = 20_000  # then it is written anew with the identities of its folder's present files


class Ledger:
    """The remembered verdicts of one checkpoint directory. Reads once when made; `put` appends."""

    def __init__(self, checkpoint_dir: str | os.PathLike[str], writable: bool = False) -> None:
        self._path = os.path.join(checkpoint_dir, STATE_DIR, LEDGER_FILE)
        self._writable = writable
        self._verdicts: dict[str, Verdict] = {}
        self._lines = 0
        self._load()

    def _load(self) -> None:
        try:
            with open(self._path, encoding="utf-8", errors="replace") as file:
                for line in file:
                    self._lines += 1
                    self._take(line)
        except OSError:
            pass  # no ledger, or one that cannot be read, only costs time

    def _take(self, line: str) -> None:
        try:
            entry = json.loads(line)
            self._verdicts[str(entry["key"])] = _decoded(entry)
        except (ValueError, KeyError, TypeError, RecursionError):
            pass  # a line cut short by a kill is worth nothing and costs nothing

    def get(self, path: str, identity: Identity) -> Verdict | None:
        """The verdict remembered for this file as it is now, together with its seal as it is now."""
        return self._verdicts.get(_key(path, identity))

    def put(self, path: str, identity: Identity, verdict: Verdict, read_at_ns: int) -> None:
        """Remember a verdict whose reading began at `read_at_ns` (wall clock, as file times are)."""
        if read_at_ns - max(identity.mtime_ns, identity.ctime_ns) < STILL_NS or verdict.kind is Kind.UNREADABLE:
            return
        key = _key(path, identity)
        if self._verdicts.get(key) == verdict:
            return
        self._verdicts[key] = verdict
        if self._writable:
            self._append({"key": key, "name": os.path.basename(path), **verdict.__dict__})

    def _append(self, entry: dict[str, Any]) -> None:
        try:
            if self._lines >= LINES_MAX:
                os.unlink(self._path)
                self._lines = 0
            line = json.dumps(entry).encode("ascii") + b"\n"
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
            self._lines += 1
        except OSError:
            pass  # a full disk must not end a judgement


def _key(path: str, identity: Identity) -> str:
    """Identity of the file and of its seal: a new seal asks for a new verdict."""
    try:
        status = os.stat(seal_path(path))
        seal = f"{status.st_ino}.{status.st_mtime_ns}.{status.st_size}"
    except OSError:
        seal = "-"
    return f"{identity.inode}.{identity.size}.{identity.mtime_ns}.{identity.ctime_ns}/{seal}"


def _decoded(entry: dict[str, Any]) -> Verdict:
    return Verdict(
        kind=Kind(entry["kind"]),
        proof=Proof(entry["proof"]) if entry["proof"] else None,
        reason=str(entry["reason"]),
        bytes=int(entry["bytes"]),
        sha256=entry["sha256"],
        step=entry["step"],
        seconds=float(entry["seconds"]),
    )


def now_ns() -> int:
    """The wall clock that file times are compared with."""
    return time.time_ns()

"""Reads the notes that a trainer, and its own saving and loading, leaves: a file of JSON lines that the trainer may append to.

Whatever is in that file is somebody else's: a look at it costs bounded time and memory, and what makes no sense in it counts
for nothing.
"""

import json
import os
import threading
from typing import Any

from lastgood.contract import NOTE_BYTES_MAX, NOTE_ENDING, NOTE_FALLBACK, NOTE_SAVE_FAILED
from lastgood.publish import remove_if_there
from lastgood.regular import regular
from supervisor.core.events import EndingNoted, PassedOver, SaveFailed, TrainerFellBack

LOOK_BYTES_MAX = 4 * NOTE_BYTES_MAX  # of what came since the last look only the end is read
LOOK_NOTES_MAX = 100
REJECTED_MAX = 20
TEXT_CHARACTERS_MAX = 1000
NUMBER_MAX = 1 << 53
STATUS_MAX = 255

Note = SaveFailed | TrainerFellBack | EndingNoted


class Notes:
    """The notes of one trainer at a time, each told once. `path` is what the trainer is given."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._incarnation = 0
        self._lock = threading.Lock()  # one thread begins, another looks
        self._seen = (0, 0)  # the file's inode and size at the last look
        self._offset = 0

    def begin(self, incarnation: int) -> None:
        """Make an empty file for the notes of this incarnation, unless that was done, so that a full disk need not make one.

        Never raises.
        """
        with self._lock:
            if incarnation != self._incarnation:
                self._incarnation, self._seen, self._offset = incarnation, (0, 0), 0
                self._make_empty()

    def _make_empty(self) -> None:
        try:
            remove_if_there(self._path)
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        except OSError:
            pass  # the trainer makes it when there is something to note, if that is possible then

    def take(self) -> list[Note]:
        """The notes that came since this was last asked; none when the file cannot be read. Costs a stat without any."""
        with self._lock:
            return self._taken()

    def _taken(self) -> list[Note]:
        try:
            status = os.stat(self._path)
            if (status.st_ino, status.st_size) == self._seen:
                return []
            lines = self._lines()
        except OSError:
            return []
        notes = (_note(line, self._incarnation) for line in lines)
        return [note for note in notes if note is not None][-LOOK_NOTES_MAX:]

    def _lines(self) -> list[bytes]:
        """The new lines that have ended; the rest waits for its end, unless it is longer than any note."""
        with open(self._path, "rb", opener=regular, buffering=0) as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._seen[0] or status.st_size < self._offset:
                self._offset = 0
            self._seen = (status.st_ino, status.st_size)
            self._offset = max(self._offset, status.st_size - LOOK_BYTES_MAX)
            data = os.pread(file.fileno(), LOOK_BYTES_MAX, self._offset)
        ended = data.rfind(b"\n") + 1
        self._offset += ended if len(data) - ended <= NOTE_BYTES_MAX else len(data)
        return data[:ended].split(b"\n")


def _note(line: bytes, incarnation: int) -> Note | None:
    """What a line says; None when it is not a note."""
    try:
        found = json.loads(line.decode())  # of bytes it would guess the encoding
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    match found.get("note"):
        case str(kind) if kind == NOTE_SAVE_FAILED:
            return _failed_save(found, incarnation)
        case str(kind) if kind == NOTE_FALLBACK:
            return _fallback(found, incarnation)
        case str(kind) if kind == NOTE_ENDING:
            return _ending(found, incarnation)
    return None


def _failed_save(found: dict[str, Any], incarnation: int) -> SaveFailed:
    return SaveFailed(
        incarnation,
        step=_number(found.get("step")),
        name=_text(found.get("name")),
        reason=_text(found.get("reason")),
        errno=_number(found.get("errno")),
        blocking=found.get("blocking") is not False,
    )


def _fallback(found: dict[str, Any], incarnation: int) -> TrainerFellBack:
    listed = found.get("rejected")
    items = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    passed = tuple(
        PassedOver(_text(one.get("name")), _text(one.get("verdict")), _text(one.get("reason")))
        for one in items[:REJECTED_MAX]
    )
    depth = _number(found.get("depth"))
    return TrainerFellBack(
        incarnation,
        newest_step=_number(found.get("newest_step")),
        chosen=_text(found.get("chosen")),
        chosen_step=_number(found.get("chosen_step")),
        depth=len(passed) if depth is None else depth,
        rejected=passed,
    )


def _ending(found: dict[str, Any], incarnation: int) -> EndingNoted | None:
    """0 is left out too: that a run is done is for its exit status to say."""
    status = _number(found.get("status"))
    return (
        None
        if status is None or not 1 <= status <= STATUS_MAX
        else EndingNoted(incarnation, status, _number(found.get("step")))
    )


def _text(value: object) -> str:
    return value[:TEXT_CHARACTERS_MAX] if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    """A whole number that is not negative and that JSON's readers can hold, or nothing."""
    return value if type(value) is int and 0 <= value <= NUMBER_MAX else None

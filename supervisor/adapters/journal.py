"""Records on standard output and in events.jsonl. The only importer of structlog.

Writing a record never raises: a full disk, a closed pipe or a terminal that went away must not end a supervisor. Nor does it
wait for long: a record that storage does not take is on standard output all the same.
"""

import io
import json
import logging
import math
import os
import select
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from supervisor.jsonl import append_line, turn_over
from supervisor.patience import Patient

PRIORITIES = {"info": 6, "warning": 4, "error": 3}  # syslog's, as the journal reads them from a <N> prefix
LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
TEXT_CHARACTERS_MAX = 4000  # of one value; a record is a line, not a log
PIECE_BYTES = select.PIPE_BUF  # what a pipe that is ready takes without blocking
PATIENCE_SECONDS = 0.5  # for a reader of standard output that does not read, and for storage; the trainer waits for us
HIDDEN = frozenset({"run", "run_id", "seq", "seconds", "bytes"})  # left to JSON: a person who looks on has the rest
EVENTS_BYTES_MAX = 64 << 20  # of events.jsonl; as much again is kept in events.jsonl.1: months of an eventful run
DEPTH_MAX = 8  # of values within values; a record is flat, and a value that holds itself must end
INTEGER_MAX = (1 << 63) - 1  # larger ones are no numbers to most readers of JSON


class Journal:
    """Writes records of one run. `shape` is json or text; `level` is the least level shown on `stream`."""

    def __init__(
        self, run: str, run_id: str, events_path: str, shape: str, level: str, stream: TextIO | None = None
    ) -> None:
        self._bound = {"run": _plain(run), "run_id": run_id}
        self._events_path = events_path
        self._stream: TextIO | None = sys.stdout if stream is None else stream  # None: started with it closed
        self._least = LEVELS[level]
        self._renderer = self._text_renderer() if shape == "text" else _json
        self._priorities = shape == "json" and _is_journal(self._stream)
        self._writer = Patient("records", PATIENCE_SECONDS)
        self._seq = 0
        self._cut_short = False
        self._stands_still = False
        self.lost = 0
        """How many records events.jsonl did not take."""

    def show_from(self, level: str) -> None:
        """From now on, show records of this level and above."""
        self._least = LEVELS[level]

    def close(self) -> None:
        """Wait for the last records to be written, unless that takes too long."""
        self._writer.close()

    def _text_renderer(self) -> Any:
        import structlog  # it takes a sixth of the supervisor's memory, and a service writes JSON

        return structlog.dev.ConsoleRenderer(colors=_is_terminal(self._stream), pad_event_to=22, sort_keys=False)

    def write(self, event: str, level: str, incarnation: int, fields: Mapping[Any, Any]) -> dict[str, Any]:
        """Write one record everywhere it goes; returns it. What every record has is not replaced by a field of the same name."""
        self._seq += 1
        entry: dict[str, Any] = {"event": event, "level": level, "timestamp": _now()}
        entry |= {**self._bound, "incarnation": incarnation, "seq": self._seq}
        entry = entry | _plain(fields) | entry
        line = _json(None, level, entry)
        if not self._writer.do(lambda: self._append(line)):
            self.lost += 1
        if LEVELS[level] >= self._least:
            self._show(level, entry)
        return entry

    def _append(self, line: str) -> None:
        try:
            turn_over(self._events_path, EVENTS_BYTES_MAX)
        except OSError:
            pass  # then it grows on; a record is worth more than a limit
        try:
            append_line(self._events_path, line.encode("ascii"))
        except OSError:
            self.lost += 1  # told in status.json; the record is on standard output all the same

    def _show(self, level: str, entry: dict[str, Any]) -> None:
        shown = dict(entry)
        if self._renderer is not _json:
            shown = {_visible(k): _visible(v) for k, v in entry.items() if k not in HIDDEN and v not in (None, [])}
            if level == "info":
                shown.pop("last_lines", None)
            shown["timestamp"] = shown["timestamp"][11:19]
        prefix = f"<{PRIORITIES[level]}>" if self._priorities else ""
        try:
            self._put(f"{prefix}{self._renderer(None, level, shown)}\n")
        except (OSError, ValueError):
            pass  # nobody listens any more; events.jsonl has it

    def _put(self, text: str) -> None:
        """Past the stream's buffer: what a broken pipe refused would wait there, and spoil the exit status at the end."""
        stream = self._stream
        if stream is None:
            return
        encoding = getattr(stream, "encoding", None) or "utf-8"
        data = text.encode(encoding, "backslashreplace")
        try:
            descriptor = stream.fileno()
        except io.UnsupportedOperation:
            stream.write(data.decode(encoding))
            stream.flush()
            return
        stream.flush()
        rest = memoryview(b"\n" + data if self._cut_short else data)
        while rest and self._takes_more(descriptor):
            count = os.write(descriptor, rest[:PIECE_BYTES])
            self._cut_short, rest = count < len(rest), rest[count:]

    def _takes_more(self, descriptor: int) -> bool:
        """Whether a write would not block: a reader that stands still is waited for once, and then not until it moves."""
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        ready = bool(poll.poll(0 if self._stands_still else PATIENCE_SECONDS * 1000))
        self._stands_still = not ready
        return ready


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _json(_logger: Any, _method: str, entry: Any) -> str:
    return json.dumps(entry, ensure_ascii=True)


def _plain(value: Any, depth: int = 0) -> Any:
    """A value that any record may hold: text cut to a sane length, everything else as JSON has it."""
    match value:
        case None | bool():
            return value
        case int():
            return int(value) if abs(value) <= INTEGER_MAX else _cut(hex(value))
        case float():
            return float(value) if math.isfinite(value) else str(float(value))  # JSON has no such numbers
        case str():
            return _cut(value)
        case bytes() | bytearray():
            return _cut(value[: TEXT_CHARACTERS_MAX + 1].decode("utf-8", "backslashreplace"))
        case os.PathLike():
            return _plain(os.fspath(value), depth)
        case Mapping() | list() | tuple() | set() | frozenset() if depth >= DEPTH_MAX:
            return "…"
        case Mapping():
            return {str(_plain(key, depth + 1)): _plain(item, depth + 1) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item, depth + 1) for item in value]
    return _cut(_described(value))


def _described(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - whatever it is, it must not cost the record it stands in
        return f"<{type(value).__name__}>"


def _cut(text: str) -> str:
    """Text as any encoder and any reader takes it; bytes of a file name that are no UTF-8 are shown as escapes."""
    head = str(text[: TEXT_CHARACTERS_MAX + 1])
    try:
        raw = head.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = head.encode("utf-8", "backslashreplace")
    shown = raw.decode("utf-8", "backslashreplace")
    return shown if len(shown) <= TEXT_CHARACTERS_MAX else shown[:TEXT_CHARACTERS_MAX] + "…"


def _visible(value: Any) -> Any:
    """A value as a line on a terminal shows it: whatever ends a line or steers a terminal is an escape."""
    if not isinstance(value, str):
        return value  # lists and the like are shown as Python writes them, which has no such characters
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in value)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False  # it is closed


def _is_journal(stream: TextIO | None) -> bool:
    """Whether the stream is what systemd said is connected to its journal."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(stream.fileno()) if stream is not None else None
    except (OSError, ValueError):
        return False
    return status is not None and (device, inode) == (str(status.st_dev), str(status.st_ino))

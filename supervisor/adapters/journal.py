"""Records on standard output and in events.jsonl. The only importer of structlog.

Writing a record never raises: a full disk, a closed pipe or a terminal that went away must not end a supervisor.
"""

import json
import logging
import math
import os
import sys
from typing import Any, TextIO

import structlog

PRIORITIES = {"info": 6, "warning": 4, "error": 3}  # syslog's, as the journal reads them from a <N> prefix
LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
TEXT_CHARACTERS_MAX = 4000  # of one value; a record is a line, not a log


class Journal:
    """Writes records of one run. `shape` is json or text; `level` is the least level shown on `stream`."""

    def __init__(
        self, run: str, run_id: str, events_path: str, shape: str, level: str, stream: TextIO | None = None
    ) -> None:
        self._bound = {"run": run, "run_id": run_id}
        self._events_path = events_path
        self._stream = sys.stdout if stream is None else stream
        self._least = LEVELS[level]
        self._stamp = structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp")
        self._renderer = self._text_renderer() if shape == "text" else _json
        self._priorities = shape == "json" and _is_journal(self._stream)
        self._seq = 0
        self.lost = 0

    def _text_renderer(self) -> Any:
        return structlog.dev.ConsoleRenderer(colors=self._stream.isatty(), pad_event_to=22, sort_keys=False)

    def write(self, event: str, level: str, incarnation: int, fields: dict[str, Any]) -> None:
        """Write one record everywhere it goes."""
        self._seq += 1
        entry: dict[str, Any] = {"event": event, "level": level}
        entry = dict(self._stamp(None, level, entry))
        entry |= {
            **self._bound,
            "incarnation": incarnation,
            "seq": self._seq,
            **{k: _plain(v) for k, v in fields.items()},
        }
        self._append(_json(None, level, entry))
        if LEVELS[level] >= self._least:
            self._show(level, entry)

    def _append(self, line: str) -> None:
        try:
            descriptor = os.open(self._events_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                os.write(descriptor, line.encode("ascii", "backslashreplace") + b"\n")
            finally:
                os.close(descriptor)
        except OSError:
            self.lost += 1  # told in status.json; the record is on standard output all the same

    def _show(self, level: str, entry: dict[str, Any]) -> None:
        shown = dict(entry)
        if self._renderer is not _json:
            shown = {k: v for k, v in entry.items() if k not in ("run", "run_id", "seq")}
            shown["timestamp"] = shown["timestamp"][11:19]
        prefix = f"<{PRIORITIES[level]}>" if self._priorities else ""
        text = f"{prefix}{self._renderer(None, level, shown)}\n"
        try:
            self._stream.write(text.encode("utf-8", "backslashreplace").decode("utf-8"))
            self._stream.flush()
        except (OSError, ValueError):
            pass  # nobody listens any more; events.jsonl has it


def _json(_logger: Any, _method: str, entry: Any) -> str:
    return json.dumps(entry, default=repr, ensure_ascii=True)


def _plain(value: Any) -> Any:
    """A value that any record may hold: text cut to a sane length, everything else as JSON has it."""
    if isinstance(value, str):
        text = value.encode("utf-8", "backslashreplace").decode("utf-8")
        return text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX] + "…"
    if isinstance(value, dict):
        return {_plain(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such numbers
    return value


def _is_journal(stream: TextIO) -> bool:
    """Whether the stream is what systemd said is connected to its journal."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(status.st_dev), str(status.st_ino))

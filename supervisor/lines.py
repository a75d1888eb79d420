"""The trainer's output as lines of bytes: cut when too long, searched for steps, remembered at the end, made visible.

Chunks come as the pipe gives them. Work is done on whole chunks, not line by line, and memory is bounded whatever comes.
`\\r` ends a line as `\\n` does, for progress bars. Pure: `adapters/output.py` does the reading and writing.
"""

import re
import unicodedata
from collections import deque
from typing import Final

CHUNK_BYTES_MAX: Final = 1 << 20
"""The largest chunk."""

_FLOOD_BYTES = 512 << 10  # a chunk of this size means that output comes faster than it is read

_STEP_WINDOW_BYTES = 64 << 10
_STEP_SEARCH_BYTES_MAX = 256 << 10  # in a flood; a reader that keeps up looks at everything
_STEP_LINE_BYTES_MAX = 4 << 10  # keeps a greedy pattern from running away on one long line
_TAIL_PIECES_MAX = 1024
_SHOWN_CHARACTERS_MAX = 500

Step = tuple[int, float | None, int]
"""A step, its loss if one was printed, and how many different steps were seen on the way to it, itself included."""


def line_end(data: bytes, start: int, stop: int) -> int:
    """Where the last line that ends in `data[start:stop]` ends, behind its terminator; `start` when none does."""
    newline = data.rfind(b"\n", start, stop)
    return max(start, newline + 1, data.rfind(b"\r", max(start, newline + 1), stop) + 1)


def next_terminator(data: bytes, start: int) -> int:
    """Where the line that goes on at `start` is ended; the end of the data when it is not."""
    newline = data.find(b"\n", start)
    stop = newline if newline >= 0 else len(data)
    carriage_return = data.find(b"\r", start, stop)
    return carriage_return if carriage_return >= 0 else stop


def visible(line: bytes) -> str:
    """A line as text that any terminal, log or encoder takes: bad bytes and control characters are shown as escapes."""
    text = line[: 4 * _SHOWN_CHARACTERS_MAX].decode("utf-8", "backslashreplace")
    shown = "".join(character if _is_harmless(character) else _escaped(character) for character in text)
    return shown if len(shown) <= _SHOWN_CHARACTERS_MAX else shown[: _SHOWN_CHARACTERS_MAX - 1] + "…"


def _is_harmless(character: str) -> bool:
    return character.isprintable() or character == "\t" or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


class LineCutter:
    """Cuts lines that are too long and marks the cut; holds no output, so memory does not depend on the input."""

    def __init__(self, bytes_max: int) -> None:
        """Let `bytes_max` bytes of a line through."""
        self._bytes_max = bytes_max
        self._kept_bytes = 0  # of the unfinished line
        self._cut_bytes = 0

    def feed(self, chunk: bytes) -> bytes:
        """The chunk without the excess of its lines; nearly always the chunk itself."""
        pieces: list[bytes] = []
        copied = position = 0
        while position < len(chunk):
            limit = position + self._bytes_max - self._kept_bytes
            end = line_end(chunk, position, limit)
            if end > position:
                self._kept_bytes, position = 0, end
            elif limit >= len(chunk):
                self._kept_bytes += len(chunk) - position
                break
            else:
                position = next_terminator(chunk, limit)
                pieces += [chunk[copied:limit], self._cut(position - limit, ended=position < len(chunk))]
                copied = position
        return b"".join((*pieces, chunk[copied:])) if pieces else chunk

    def finish(self) -> bytes:
        """End the line; the mark of what was cut, if anything was."""
        mark = f"… [cut {self._cut_bytes} bytes]".encode() if self._cut_bytes else b""
        self._cut_bytes = self._kept_bytes = 0
        return mark

    def _cut(self, count: int, *, ended: bool) -> bytes:
        self._cut_bytes += count
        self._kept_bytes = self._bytes_max
        return self.finish() if ended else b""


class StepFinder:
    """Finds the newest line with a step in each chunk; a line counts once it has ended, in whichever chunk it began."""

    def __init__(self, pattern: re.Pattern[bytes] | None, line_bytes_max: int) -> None:
        """Look for `pattern`, with its group `step` and perhaps a group `loss`; without a pattern find nothing."""
        if pattern is not None and "step" not in pattern.groupindex:
            raise ValueError(f"the step pattern {pattern.pattern!r} has no group named 'step'")
        self._pattern = pattern
        self._line_bytes_max = line_bytes_max
        self._rest = b""

    def feed(self, chunk: bytes) -> Step | None:
        """The newest step among the lines that end in this chunk."""
        if self._pattern is None:
            return None
        text = self._rest + chunk
        end = line_end(text, 0, len(text))
        self._rest = text[end : end + self._line_bytes_max]
        start = 0
        if len(chunk) >= _FLOOD_BYTES and end > _STEP_SEARCH_BYTES_MAX:
            start = next_terminator(text, end - _STEP_SEARCH_BYTES_MAX)
        return _newest_step(text[start:end].replace(b"\r", b"\n"), self._pattern)

    def finish(self) -> Step | None:
        """The step in the last line, which nothing ended."""
        return self.feed(b"\n")


def _newest_step(text: bytes, pattern: re.Pattern[bytes]) -> Step | None:
    """Search from the end, a window at a time: the newest step is nearly always in the first."""
    stop = len(text)
    while stop > 0:
        start = text.rfind(b"\n", 0, max(0, stop - _STEP_WINDOW_BYTES)) + 1
        lines = reversed(text[start:stop].split(b"\n"))
        matches = [match for line in lines if (match := pattern.search(line, 0, _STEP_LINE_BYTES_MAX))]
        for match in matches:
            step = _step_of(match)
            if step is not None:
                return step, _loss_of(match), len({match["step"] for match in matches})
        stop = start
    return None


_STEP_MAX = 1 << 53  # what a setting may hold; a larger number in a line is no step


def _step_of(match: re.Match[bytes]) -> int | None:
    try:
        step = int(match["step"])
        return step if step <= _STEP_MAX else None
    except (TypeError, ValueError):
        return None


def _loss_of(match: re.Match[bytes]) -> float | None:
    try:
        return float(match["loss"])
    except (IndexError, TypeError, ValueError):
        return None


class Tail:
    """The end of the output, enough of it for the last lines."""

    def __init__(self, bytes_max: int) -> None:
        """Keep about `bytes_max` bytes."""
        self._bytes_max = bytes_max
        self._pieces: deque[bytes] = deque()
        self._bytes = 0

    def add(self, data: bytes) -> None:
        """Append, and forget what is too old."""
        self._pieces.append(data[-self._bytes_max :])
        self._bytes += len(self._pieces[-1])
        while self._bytes - len(self._pieces[0]) >= self._bytes_max:
            self._bytes -= len(self._pieces.popleft())
        if len(self._pieces) > _TAIL_PIECES_MAX:
            self._pieces = deque([b"".join(self._pieces)])

    def lines(self, count: int) -> list[bytes]:
        """The last lines that are not blank, ended or not."""
        lines = [line for line in re.split(rb"[\r\n]", b"".join(self._pieces)) if line.strip()]
        return lines[-count:]


class Loss:
    """Output that never reached the log: counted, and told in the log once it can be."""

    def __init__(self) -> None:
        """Nothing is lost yet."""
        self.bytes = self.lines = 0
        self._told_bytes = self._told_lines = 0

    def add(self, data: bytes) -> None:
        """Count what was dropped."""
        self.bytes += len(data)
        self.lines += data.count(b"\n")

    def mark(self) -> bytes:
        """A line that says what was dropped and not told yet; empty when nothing was."""
        count, lines = self.bytes - self._told_bytes, self.lines - self._told_lines
        return f"\n… [dropped {count} bytes, {lines} lines]\n".encode() if count else b""

    def told(self) -> None:
        """Count anew for the next mark."""
        self._told_bytes, self._told_lines = self.bytes, self.lines

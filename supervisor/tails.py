"""The ends of files that grow without limit: what a reader needs of them, whatever their size. Reads only."""

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from lastgood.regular import regular


def tail(path: str, bytes_max: int) -> list[bytes]:
    """The whole lines among the last bytes of a file, oldest first; none where it cannot be read."""
    return _sampled(path, [], bytes_max)


def sampled(path: str, bytes_max: int, pieces: int) -> list[bytes]:
    """Whole lines from all over a file, oldest first: all of them if it is small, else of so many pieces and of its end."""
    try:
        size = os.stat(path).st_size
    except OSError:
        return []
    if size <= bytes_max:
        return _sampled(path, [], bytes_max)
    each = bytes_max // (pieces + 1)
    return _sampled(path, [(size - each) * index // pieces for index in range(pieces)], each)


def _sampled(path: str, offsets: Iterable[int], bytes_each: int) -> list[bytes]:
    lines: list[bytes] = []
    try:
        with open(path, "rb", opener=regular, buffering=0) as file:
            end = max(0, os.fstat(file.fileno()).st_size - bytes_each)
            for offset in (*offsets, end):
                lines += _whole(os.pread(file.fileno(), bytes_each, offset), at_start=offset == 0)
    except OSError:
        return lines
    return lines


def _whole(piece: bytes, at_start: bool) -> list[bytes]:
    """The lines in a piece of a file but those cut at its ends."""
    parts = piece.split(b"\n")
    return parts[0 if at_start else 1 : -1]


def objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects in lines; what a kill cut short or somebody else wrote is passed over."""
    for line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found

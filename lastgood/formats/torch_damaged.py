"""Find the storages of a torch zip file that is cut or damaged, and prove each one by its CRC32. Nothing is executed.

Only `data.pkl`, the first record, must be whole: it says which storages there are and how long each one is. Neither the
central directory nor a storage's own header is needed to find it; a directory that can be read is a second way to a record
and a second witness of its CRC32.

A storage is *whole* when the CRC32 of its bytes is the recorded one. If the writer switched checksums off (every recorded
one is zero) a storage that is there to its end is *unproven*.

Not done: compressed records, and archives whose bytes were moved (something inserted or left out).
"""

import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import BinaryIO

from lastgood import pickles
from lastgood.formats import TAIL_BYTES, DamageError
from lastgood.formats.raw_zip import DESCRIPTOR, END_OF_DIRECTORY, HEADER, Header, Source, read_directory, read_header
from lastgood.formats.torch_places import ALIGNMENT, Place, Places
from lastgood.formats.torch_tensors import storage_of, tensors_in
from lastgood.verdict import Kind

MAX_PICKLE_ENDS = 64  # places that look like the end of data.pkl and are tried
LOOK_BYTES = 256 << 20  # what finding out about a small file may cost, less than a second
SAMPLE_BYTES = 1 << 16  # behind the pickle, where other checksums are looked at
MAX_PICKLE_START = 4096  # the first record's name is a file's name, so its data begins before this byte

_MISPLACED = "its record is damaged beyond recognition"


class State(StrEnum):
    """What is known about a storage's bytes."""

    WHOLE = "whole"
    UNPROVEN = "unproven"
    LOST = "lost"


@dataclass(frozen=True)
class Storage:
    """One storage: where its bytes begin, how many they are, their CRC32 as read, and why it is lost if it is."""

    state: State
    start: int = 0
    size: int = 0
    crc: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Wreck:
    """What could be read of a file: its pickle as data, each storage by its key, the byte order of the elements.

    `unproven` says that the writer switched checksums off, so that nothing here is proven, the pickle included. `end` is
    where the last storage ends or would end if the file were whole, in bytes from its first one; None when that is not known.
    """

    contents: pickles.Contents
    storages: dict[str, Storage]
    byteorder: str
    unproven: bool
    end: int | None


def look(file: BinaryIO, most: int | None = None) -> Wreck:
    """Find and check every storage of a torch zip file; each one is read once, a damaged one perhaps twice.

    Raises DamageError when nothing can be had: its pickle is not whole, or it is no torch zip file, or to find out would
    cost more than to read `most` bytes. A read error in the middle of the file loses what lies there, and no more.
    """
    source, directory = Source(file, most), read_directory(file)
    start, size, proven = _find_pickle(source, directory)
    try:
        contents = pickles.read(b"".join(source.chunks(start, size)))
    except pickles.PickleError as error:
        raise DamageError(Kind.CORRUPT, f"its data.pkl is no whole pickle: {error}") from None
    sizes = _sizes(contents)
    places = Places(source, directory, sizes)
    found = places.find(start + size, size)
    storages = {key: _judged(source, places.listed(key), found.get(key), sizes[key], proven) for key in sizes}
    end = (
        max((place.start + sizes[key] for key, place in found.items()), default=0)
        if found.keys() == sizes.keys()
        else None
    )
    return Wreck(contents, storages, places.byteorder, not proven, end)


def tensors_left(file: BinaryIO) -> str:
    """What is left of a torch zip file that was cut, as the rest of a sentence about it; empty when that is not known.

    What is there is read once, or a little more.
    """
    size = os.fstat(file.fileno()).st_size
    try:
        wreck = look(file, LOOK_BYTES + 2 * size)
    except DamageError:
        return ""
    missing = f", of at least {wreck.end:,}" if wreck.end is not None and wreck.end > size else ""
    states = [wreck.storages[tensor.storage].state for tensor in tensors_in(wreck.contents.value)]
    if not states:
        return missing
    whole = f"{states.count(State.WHOLE)} of {len(states)} tensors intact"
    there = f"{states.count(State.UNPROVEN)} of {len(states)} tensors there, without checksums"
    return f"{missing}; {there if wreck.unproven else whole}"


def _sizes(contents: pickles.Contents) -> dict[str, int]:
    """Bytes of every storage by key, in the order in which the pickle names them."""
    found: dict[str, int] = {}
    for reference in contents.persistent:
        storage = storage_of(reference)
        if storage is not None:
            found.setdefault(storage[0], storage[2])
    return found


def _find_pickle(source: Source, directory: dict[str, zipfile.ZipInfo]) -> tuple[int, int, bool]:
    """Start and size of `data.pkl`, and whether a CRC32 proves it. Raises DamageError when it is not whole."""
    entry = directory.get("data.pkl")
    headers = [h for offset in (0, entry.header_offset if entry else 0) if (h := read_header(source, offset))]
    header = next((h for h in headers if h.name == "data.pkl"), headers[0] if headers else None)
    seen = False
    for start in _pickle_starts(source, header):
        for end, recorded in _pickle_ends(source, start, header, entry):
            size, seen = end - start, True
            if size > 0 and _is_like_a_pickle(source, start, end) and source.crc(start, size) == recorded:
                return start, size, True
            told = size in (source.number(end + 8), source.number(end + 8, 8))
            if recorded == 0 and told and _switched_off(source, end):
                return start, size, False
    if source.error:
        raise DamageError(Kind.CORRUPT, f"its data.pkl cannot be read: {source.error.strerror}")
    if header is None and entry is None and not HEADER.startswith(source.at(0, 4)):
        raise DamageError(Kind.CORRUPT, "it is no torch zip file, or its first record is damaged beyond recognition")
    if seen:
        raise DamageError(Kind.CORRUPT, "its data.pkl, which says what all other bytes mean, is damaged")
    raise DamageError(
        Kind.TRUNCATED, f"ends at byte {source.size:,}, within its data.pkl, which says what all bytes mean"
    )


def _pickle_starts(source: Source, header: Header | None) -> list[int]:
    """Where the pickle may begin: behind its header, or where torch would put it if that cannot be read."""
    aligned = range(ALIGNMENT, MAX_PICKLE_START, ALIGNMENT)
    starts = dict.fromkeys([header.start, *aligned] if header and header.start else aligned)
    return [start for start in starts if source.at(start, 1) == b"\x80"]


def _is_like_a_pickle(source: Source, start: int, end: int) -> bool:
    """Not a tensor that begins with the same byte, whose checksum proves it as that."""
    return source.at(start + 1, 1) <= bytes([pickles.MAX_PROTOCOL]) and source.at(end - 1, 1) == b"."


def _switched_off(source: Source, pickle_end: int) -> bool:
    """Whether the checksums behind the next records are zero too: then it was the writer, and no damage."""
    descriptors = source.find_all(DESCRIPTOR, pickle_end + 4, SAMPLE_BYTES)
    return all(source.number(at + 4) == 0 for at in islice(descriptors, 3))


def _pickle_ends(
    source: Source, start: int, header: Header | None, entry: zipfile.ZipInfo | None
) -> Iterator[tuple[int, int]]:
    """Where the pickle that begins at `start` may end, with the CRC32 recorded for it there; likeliest first."""
    if entry is not None:
        yield start + entry.file_size, entry.CRC
    if header is not None and header.size is not None and header.crc is not None:
        yield start + header.size, header.crc
    for at in islice(source.find_all(b"." + DESCRIPTOR, start, pickles.MAX_BYTES), MAX_PICKLE_ENDS):
        yield at + 1, source.number(at + 5)
    for at in islice(source.find_all(HEADER, start, pickles.MAX_BYTES), 1):
        yield from ((at - length, source.number(at - length + 4)) for length in (16, 24))


def _judged(source: Source, listed: Place | None, counted: Place | None, size: int, proven: bool) -> Storage:
    """What is known about a storage that may be where the directory tells or where counting leads."""
    if size == 0:
        return Storage(State.WHOLE if proven else State.UNPROVEN)
    reason = _unplaced(source)
    for place in dict.fromkeys(place for place in (listed, counted) if place):
        storage = _proved(source, place, size) if proven else _unproven(source, place, size)
        if storage.state is not State.LOST:
            return storage
        reason = storage.reason
    return Storage(State.LOST, size=size, reason=reason)


def _proved(source: Source, place: Place, size: int) -> Storage:
    """The storage at a place: whole if its CRC32 is one that is recorded for it."""
    end, crc = place.start + size, source.crc(place.start, size)
    recorded = [*place.recorded, *([source.number(end + 4)] if place.counted else [])]
    if crc is not None and crc in recorded:
        return Storage(State.WHOLE, place.start, size, crc)
    if crc is None:
        reason = _unreadable(source, end)
    elif place.recorded or source.at(end, 4) == DESCRIPTOR:
        reason = f"damaged: CRC32 {recorded[0]:08x} was recorded, {crc:08x} was read"
    else:
        reason = f"the checksum behind it, at byte {end:,}, is gone, so nothing proves its bytes"
    return Storage(State.LOST, size=size, reason=reason)


def _unproven(source: Source, place: Place, size: int) -> Storage:
    """The storage at a place, without checksums: there if its name is, and a descriptor that tells its size."""
    end = place.start + size
    if place.named and size in (source.number(end + 8), source.number(end + 8, 8)):
        crc = source.crc(place.start, size)
        if crc is not None:
            return Storage(State.UNPROVEN, place.start, size, crc)
    reason = _unreadable(source, end) if end > source.size else "damaged, and its checksum was switched off"
    return Storage(State.LOST, size=size, reason=reason)


def _unplaced(source: Source) -> str:
    ended = END_OF_DIRECTORY in source.at(max(0, source.size - TAIL_BYTES), TAIL_BYTES)
    return _MISPLACED if ended else f"cut at byte {source.size:,}"


def _unreadable(source: Source, end: int) -> str:
    if end > source.size:
        return f"cut at byte {source.size:,}"
    return f"cannot be read: {source.error.strerror if source.error else 'the file became shorter'}"

"""Where the storages of a damaged torch zip file are: found by their headers, and between headers by counting.

torch writes storages one behind the other in a known order (as the pickle names them; in older versions in the order of
their keys as text), each behind a header with padding and before a data descriptor. The sizes are known from the pickle. So
from one header the place of the next one follows exactly. A header that can be read is believed only if counting from a
neighbour leads to it, or the directory agrees: one flipped bit makes another storage's name out of a storage's name, and
then a CRC32 would prove the bytes but not whose they are. Storages whose own headers are damaged are placed by counting
from one believed header to the next; if that does not arrive exactly there, they are not placed.
"""

import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from lastgood.formats.raw_zip import DESCRIPTOR, ENTRY, HEADER, LOCAL, Header, Source, read_header

ALIGNMENT = 64  # of every record's data, unless a record says otherwise
MAX_SMALL_RECORDS = 16  # torch 2.13 writes three between data.pkl and the first storage
MAX_SMALL_BYTES = 256
MAX_ALIGNMENT = 1 << 20
MAX_PASSED_OVER = 4  # neighbouring headers with damaged names

_BEHIND_STORAGES = frozenset({"version", ".data/serialization_id"})
_SMALL_NAMES = _BEHIND_STORAGES | {"data.pkl", "byteorder", ".format_version", ".storage_alignment"}
_ZIP64_FROM = 0xFFFFFFFF


@dataclass(frozen=True)
class Place:
    """Where a storage's bytes begin, and whether its name stands there.

    `recorded` are CRC32s told elsewhere than in the descriptor behind the bytes; `counted` says that the descriptor is its
    own too, and not that of a record which a damaged directory points at.
    """

    start: int
    named: bool
    recorded: tuple[int, ...] = ()
    counted: bool = True


@dataclass(frozen=True)
class _Anchor:
    """A storage's header that can be read: where it is, whose name it bears, and where the next header is.

    The places before the first storage and behind the last one are anchors too; they have no key.
    """

    offset: int
    key: str | None
    next: int


class Places:
    """The search for storages of known sizes in one file; `byteorder` is "little" or "big"."""

    def __init__(self, source: Source, directory: dict[str, zipfile.ZipInfo], sizes: dict[str, int]) -> None:
        self._source = source
        self._directory = directory
        self._sizes = sizes
        self._known = _SMALL_NAMES | {f"data/{key}" for key in sizes}
        self._alignment = ALIGNMENT
        self._prefix_bytes = 0
        self.byteorder = "little"

    def find(self, pickle_end: int, pickle_bytes: int) -> dict[str, Place]:
        """The place of every storage that can be placed, given where the pickle ends and how long it is."""
        anchors = self._anchors(self._learn(pickle_end, pickle_bytes))
        orders = [list(self._sizes), sorted(self._sizes)]
        (first, its_links), (second, other_links) = (self._counted(order, anchors) for order in orders)
        if its_links == other_links:
            return {key: place for key, place in first.items() if second.get(key) == place}
        return first if its_links > other_links else second

    def listed(self, key: str) -> Place | None:
        """The place that the directory tells, unless another record's header is there."""
        entry = self._directory.get(f"data/{key}")
        if entry is None or entry.file_size != self._sizes[key]:
            return None
        header = read_header(self._source, entry.header_offset)
        if header is not None and header.name != f"data/{key}" and header.name in self._known:
            return None
        place = self._place(entry.header_offset, key)
        return replace(place, recorded=(*place.recorded, entry.CRC), counted=place.named)

    def _learn(self, pickle_end: int, pickle_bytes: int) -> int:
        """Walk over the small records behind the pickle; returns where the first storage's header should be."""
        small: dict[str, bytes] = {}
        headers = [read_header(self._source, 0)]
        position = self._after(pickle_end, pickle_bytes, 0)
        for _ in range(MAX_SMALL_RECORDS):
            header = read_header(self._source, position)
            headers.append(header)
            if header is None or header.start is None or header.name not in _SMALL_NAMES:
                break
            ends = [
                next(self._source.find_all(mark, header.start, MAX_SMALL_BYTES), None) for mark in (DESCRIPTOR, HEADER)
            ]
            behind = [end + more for end, more in zip(ends, (16, 0), strict=True) if end is not None]
            if not behind:
                break
            position = min(behind)
            small[header.name] = self._source.at(header.start, position - 16 - header.start)
        self._settle(small, [header for header in headers if header])
        return position

    def _settle(self, small: dict[str, bytes], headers: list[Header]) -> None:
        self.byteorder = "big" if small.get("byteorder") == b"big" else "little"
        alignment = small.get(".storage_alignment", b"")
        self._alignment = int(alignment) if alignment.isdigit() and 0 < int(alignment) <= MAX_ALIGNMENT else ALIGNMENT
        lengths = [header.prefix_bytes for header in headers]
        lengths += [len(entry.orig_filename.partition("/")[0].encode()) for entry in self._directory.values()]
        self._prefix_bytes = Counter(lengths).most_common(1)[0][0] if lengths else 0

    def _anchors(self, base: int) -> list[_Anchor]:
        """Every storage's header that can be read, in order of position, from `base` to behind the last storage."""
        found, position = [_Anchor(base, None, base)], base
        while position < self._source.size:
            header, behind = read_header(self._source, position), position
            if header is not None and header.name in _BEHIND_STORAGES:
                return [*found, _Anchor(position, None, position)]
            key = header.name.removeprefix("data/") if header and header.name.startswith("data/") else None
            if key in self._sizes:
                behind = self._next(position, key)
                found.append(_Anchor(position, key, behind))
            if behind == position or not self._is_known(behind):  # also when a false name led too far
                behind = next(filter(self._is_known, self._headers(position + 1)), self._source.size)
            position = behind
        return found

    def _headers(self, position: int) -> Iterator[int]:
        """Where something looks like a header, from `position` on."""
        return self._source.find_all(HEADER, position, self._source.size - position)

    def _is_known(self, offset: int) -> bool:
        """Whether there is a header with a name that belongs here."""
        header = read_header(self._source, offset)
        return header is not None and header.name in self._known

    def _counted(self, order: list[str], anchors: list[_Anchor]) -> tuple[dict[str, Place], int]:
        """Places if the storages lie in this order, and how many pairs of headers bear that out."""
        rank: dict[str | None, int] = {key: number for number, key in enumerate(order)}
        ranked = [(anchor, rank.get(anchor.key, len(order) if number else -1)) for number, anchor in enumerate(anchors)]
        pairs = [(i, j) for i in range(len(ranked)) if (j := self._linked(order, ranked, i)) is not None]
        certain = {number for pair in pairs for number in pair}
        believed = [one for number, one in enumerate(ranked) if number in certain or self._is_listed(one[0])]
        places = {a.key: self._place(a.offset, a.key) for a, _ in believed if a.key is not None}
        for (a, here), (b, there) in pairwise(believed):
            places |= self._between(order[here + 1 : there], a, b) or {}
        if believed:
            places |= self._behind(order[believed[-1][1] + 1 :], believed[-1][0].next)
        return places, len(pairs)

    def _linked(self, order: list[str], ranked: list[tuple[_Anchor, int]], number: int) -> int | None:
        """The next anchor that counting from this one leads to; one that bears a damaged name is passed over."""
        a, here = ranked[number]
        for other in range(number + 1, min(number + 2 + MAX_PASSED_OVER, len(ranked))):
            b, there = ranked[other]
            if here < there and self._between(order[here + 1 : there], a, b) is not None:
                return other
        return None

    def _is_listed(self, anchor: _Anchor) -> bool:
        entry = self._directory.get(f"data/{anchor.key}")
        return entry is not None and entry.header_offset == anchor.offset

    def _between(self, keys: list[str], a: _Anchor, b: _Anchor) -> dict[str, Place] | None:
        """Places of `keys`, counted from one anchor to the other; None if that does not arrive exactly there."""
        found: dict[str, Place] = {}
        cursor = a.next
        for key in keys:
            if cursor >= b.offset:
                return None
            found[key] = self._place(cursor, key)
            cursor = self._next(cursor, key)
        return found if cursor == b.offset else None

    def _behind(self, keys: list[str], cursor: int) -> dict[str, Place]:
        """Places of `keys` behind the last header that is believed, up to where another record begins, or where they would be."""
        found: dict[str, Place] = {}
        for key in keys:
            header = read_header(self._source, cursor)
            if header and header.name in self._known and header.name != f"data/{key}":
                break
            found[key] = self._place(cursor, key)
            cursor = self._next(cursor, key)
        return found

    def _place(self, offset: int, key: str) -> Place:
        """The storage called `key` whose header is at `offset`, whether or not that header can be read."""
        header = read_header(self._source, offset)
        if header is None or header.name != f"data/{key}":
            return Place(self._predicted(offset, key), named=False)
        told = (header.crc,) if header.crc is not None and header.size == self._sizes[key] else ()
        return Place(self._predicted(offset, key) if header.start is None else header.start, True, told)

    def _next(self, offset: int, key: str) -> int:
        """Where the header behind the storage called `key` is, whose own header is at `offset`."""
        size = self._sizes[key]
        return self._after(self._place(offset, key).start + size, size, offset)

    def _predicted(self, offset: int, key: str) -> int:
        """Where torch puts the data of a record whose header it puts at `offset`."""
        size = self._sizes[key]
        start = offset + LOCAL.size + self._prefix_bytes + len(f"/data/{key}".encode()) + 4
        if max(size, offset) >= _ZIP64_FROM:
            start += 4 + 16 * (size >= _ZIP64_FROM) + 8 * (offset >= _ZIP64_FROM)
        return start + -start % self._alignment

    def _after(self, end: int, size: int, header_offset: int) -> int:
        """Where the next header is, behind data of `size` bytes that end at `end` and their descriptor, legible or not."""
        tail = self._source.at(end, 28)
        for length in (16, 24, 0):
            if tail[length : length + 4] in (HEADER, ENTRY):
                return end + length
        if size == 0:
            return end
        wide = max(size, header_offset) >= _ZIP64_FROM or int.from_bytes(tail[8:16], "little") == size
        return end + (24 if wide else 16)

"""Every state in which a power cut may leave a folder, by what POSIX promises and nothing more.

Without an fsync of the file, each of its pages may be there, zero, or beyond the end; without an fsync of the folder, each
change of a name may be there or not, in any combination. Folders themselves are taken to be there once made: fsync of a
folder that is new keeps it on ext4, XFS and btrfs, which the tests with real power cuts look at.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.crash.tracer import Call

PAGE = 4096
ACKNOWLEDGED = "acknowledged-"

Files = dict[str, bytes]
"""Names and contents of a folder."""


@dataclass
class _File:
    """Content as the programs see it, and how many bytes of it are durable."""

    content: bytes = b""
    durable: int = 0

    def after_a_cut(self) -> Iterator[bytes]:
        """Every content that may be found."""
        whole = self.content
        if self.durable == len(whole):
            yield whole
            return
        first = self.durable // PAGE
        ends = [self.durable, *range((first + 1) * PAGE, len(whole), PAGE), len(whole)]
        for end in ends:
            pages = range(first, -(-end // PAGE))
            for zeros in itertools.product((False, True), repeat=len(pages)):
                found = bytearray(whole[:end])
                for page, is_zero in zip(pages, zeros, strict=True):
                    start, stop = max(page * PAGE, self.durable), min((page + 1) * PAGE, end)
                    if is_zero:
                        found[start:stop] = bytes(stop - start)
                yield bytes(found)


Change = tuple[str, str, _File | None]
"""What happened to names: one that is gone, one that is there, and for which file."""


@dataclass
class Disk:
    """A folder that knows what of it is durable. Feed it calls; ask it what a power cut would leave."""

    names: dict[str, _File]
    _durable: dict[str, _File]
    _pending: list[Change] = field(default_factory=list)

    @classmethod
    def holding(cls, files: Files) -> "Disk":
        """A disk on which these files are durable."""
        names = {name: _File(content, len(content)) for name, content in files.items()}
        return cls(names, dict(names))

    def do(self, call: Call) -> None:
        """Take over what a call did, if it did something."""
        if call.result is not None and call.result < 0:
            return
        match call.name:
            case "create":
                self._change(("", call.path, self.names.get(call.path, _File())))
            case "write":
                assert call.result == len(call.data)
                self.names[call.path].content += call.data
            case "fsync" if call.is_folder:
                for change in self._pending:
                    _apply(self._durable, change)
                self._pending = []
            case "fsync":
                self.names[call.path].durable = len(self.names[call.path].content)
            case "rename":
                self._change((call.path, call.target, self.names[call.path]))
            case "unlink":
                self._change((call.path, "", None))
            case _:
                raise NotImplementedError(call)

    def _change(self, change: Change) -> None:
        self._pending.append(change)
        _apply(self.names, change)

    def after_a_cut(self) -> Iterator[Files]:
        """Every folder that may be found, some of them more than once."""
        for kept in itertools.product((False, True), repeat=len(self._pending)):
            names = dict(self._durable)
            for change in itertools.compress(self._pending, kept):
                _apply(names, change)
            for contents in itertools.product(*(list(file.after_a_cut()) for file in names.values())):
                yield dict(zip(names, contents, strict=True))


def _apply(names: dict[str, _File], change: Change) -> None:
    gone, there, file = change
    names.pop(gone, None)
    if file is not None:
        names[there] = file


def cuts(before: Files, calls: Sequence[Call]) -> Iterator[tuple[Files, list[str]]]:
    """Every state at every moment, once for each number of acknowledgements by then; they are given with it."""
    disk, told = Disk.holding(before), list[str]()
    seen: set[tuple[int, frozenset[tuple[str, bytes]]]] = set()
    for call in (None, *calls):
        if call is not None and call.name == "stat":
            told.append(call.path.partition(ACKNOWLEDGED)[2])
        elif call is not None:
            disk.do(call)
        for files in disk.after_a_cut():
            key = (len(told), frozenset(files.items()))
            if key not in seen:
                seen.add(key)
                yield files, list(told)

"""SHA-256 of bytes on their way to disk or back from it."""

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

CHUNK_BYTES = 1 << 20  # large enough that hashing dominates, small enough to stay in the cache
SHARED_CHUNK_BYTES = 4 << 20  # where a chunk is handed to another thread, which costs tens of microseconds


class HashingFile:
    """A file object for writing that hashes the *intended* bytes, before the storage can change them.

    torch.save turns a failed write into a RuntimeError without an errno; the first OSError is kept in `error`, so
    that the system's own reason can be passed on.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._sha256 = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write all of `data`; returns its number of bytes. Raises OSError as the system does."""
        view = memoryview(data).cast("B")
        try:
            self._raw.write(view)
        except OSError as error:
            self.error = self.error or error
            raise
        self._sha256.update(view)
        self.size += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Pass on to the system what the buffer holds. Raises OSError as the system does."""
        try:
            self._raw.flush()
        except OSError as error:
            self.error = self.error or error
            raise

    def tell(self) -> int:
        """Bytes written so far."""
        return self.size

    def writable(self) -> bool:
        """True, as for any file opened for writing."""
        return True

    @property
    def sha256(self) -> str:
        """Hex digest of everything written so far."""
        return self._sha256.hexdigest()


def read_through(descriptor: int, size: int, *consumers: Callable[[memoryview], object]) -> int:
    """Read `size` bytes from the start of `descriptor` once, giving every chunk to each consumer, in a thread each.

    Returns the number of bytes read, which is less than `size` only if the file has become shorter. Raises OSError.
    """
    os.lseek(descriptor, 0, os.SEEK_SET)
    if len(consumers) == 1 or size <= SHARED_CHUNK_BYTES:
        return sum(map(len, _fed(descriptor, size, CHUNK_BYTES, consumers)))
    first, *others = consumers
    with ThreadPoolExecutor(len(others), "lastgood-read") as pool:

        def all_at_once(chunk: memoryview) -> None:
            started = [pool.submit(consume, chunk) for consume in others]
            first(chunk)
            for one in started:
                one.result()

        return sum(map(len, _fed(descriptor, size, SHARED_CHUNK_BYTES, (all_at_once,))))


def _fed(
    descriptor: int, size: int, chunk_bytes: int, consumers: tuple[Callable[[memoryview], object], ...]
) -> Iterator[memoryview]:
    """Every chunk that was read and given to all consumers; its content is gone with the next one."""
    buffer = memoryview(bytearray(chunk_bytes))
    done = 0
    while done < size and (count := os.readv(descriptor, [buffer[: min(chunk_bytes, size - done)]])):
        for consume in consumers:
            consume(buffer[:count])
        done += count
        yield buffer[:count]


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Hex digest of a whole file, in constant memory. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        read_through(file.fileno(), os.fstat(file.fileno()).st_size, digest.update)
    return digest.hexdigest()

"""SHA-256 of bytes on their way to disk or back from it."""

import hashlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from typing import BinaryIO

CHUNK_BYTES = 1 << 20  # large enough that hashing dominates, small enough to stay in the cache
SHARED_BYTES_LEAST = 4 << 20  # less is not worth a thread
READ_CHUNKS = 16  # of one file in memory, where what is read is consumed by several
CHUNKS_MAX = 32  # that wait for the hash: as many as keep it busy while a writer prepares its next piece

_told: ContextVar[Callable[[int], object] | None] = ContextVar("told", default=None)


@contextmanager
def told_of_reads(progress: Callable[[int], object]) -> Iterator[None]:
    """While inside, `progress` is given the bytes of each chunk that `read_through` reads in this thread; it may raise."""
    token = _told.set(progress)
    try:
        yield
    finally:
        _told.reset(token)


class Beside:
    """A thread that consumes chunks one after the other while its owner goes on; where none can be had, the owner's does.

    Not a pool's: a pool refuses work once the interpreter has begun to end, which is when a last background save is done.
    """

    def __init__(self, consume: Callable[[memoryview], object]) -> None:
        self._consume = consume
        self._given: SimpleQueue[memoryview | None] = SimpleQueue()
        self._taken: SimpleQueue[memoryview | BaseException] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._alone = False
        self.waiting = 0  # chunks that were given and are not back

    def give(self, chunk: memoryview) -> None:
        """Have a chunk consumed; its bytes must stay as they are until it is back."""
        self.waiting += 1
        if self._thread is None:
            weakref.finalize(
                self, self._given.put, None
            )  # an interrupt may come between an owner's work and its `close`
            parts = (self._consume, self._given, self._taken)
            self._thread = threading.Thread(target=_consume_all, args=parts, name="lastgood-beside", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                self._alone = True
        if self._alone:
            _take(self._consume, chunk, self._taken)
        else:
            self._given.put(chunk)

    def back(self) -> memoryview:
        """The next chunk that was given, once it is consumed. Raises what consuming it raised."""
        done = self._taken.get()
        self.waiting -= 1
        if isinstance(done, BaseException):
            raise done
        return done

    def all_back(self) -> None:
        """Wait for all chunks. Raises what consuming one of them raised."""
        while self.waiting:
            self.back()

    def close(self) -> None:
        """Let the thread end once it has consumed what it was given, and wait for that."""
        self._given.put(None)
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()


def _consume_all(
    consume: Callable[[memoryview], object],
    given: "SimpleQueue[memoryview | None]",
    taken: "SimpleQueue[memoryview | BaseException]",
) -> None:
    while (chunk := given.get()) is not None:
        _take(consume, chunk, taken)


def _take(
    consume: Callable[[memoryview], object], chunk: memoryview, taken: "SimpleQueue[memoryview | BaseException]"
) -> None:
    try:
        consume(chunk)
    except BaseException as error:  # noqa: BLE001 - raised where the chunk is asked back
        taken.put(error)
    else:
        taken.put(chunk)


class HashingFile:
    """A file object for writing that hashes the *intended* bytes, before the storage can change them.

    What is written is copied into chunks of its own, each hashed beside being written: what the caller does with its memory
    afterwards, or while an interrupt is on its way, is its own affair. At most CHUNKS_MAX chunks wait for the hash.

    torch.save turns whatever a write raises, Ctrl-C included, into a RuntimeError without an errno; the first of them is
    kept in `error`, so that it can be passed on.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._sha256 = hashlib.sha256()
        self._beside = Beside(self._sha256.update)
        self._chunk = memoryview(bytearray(CHUNK_BYTES))
        self._filled = 0
        self.size = 0
        self.error: BaseException | None = None

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Take all of `data`; returns its number of bytes. Raises OSError as the system does, for these or earlier ones."""
        self._refuse_after_a_failure()
        view = memoryview(data).cast("B")
        taken = 0
        try:
            while taken < view.nbytes:
                part = view[taken : taken + CHUNK_BYTES - self._filled]
                self._chunk[self._filled : self._filled + part.nbytes] = part
                self._filled += part.nbytes
                self.size += part.nbytes
                taken += part.nbytes
                if self._filled == CHUNK_BYTES:
                    self._pass_on()
        except BaseException as error:
            self.error = self.error or error
            raise
        return taken

    def _refuse_after_a_failure(self) -> None:
        if self.error is not None:
            raise self.error

    def _pass_on(self) -> None:
        """Have a full chunk hashed and write it, then go on with one that is free."""
        self._beside.give(self._chunk)
        self._raw.write(self._chunk)
        if self._beside.waiting < CHUNKS_MAX:
            self._chunk = memoryview(bytearray(CHUNK_BYTES))
        else:
            self._chunk = self._beside.back()
        self._filled = 0

    def flush(self) -> None:
        """Does nothing: only `finish` passes on a part of a chunk."""

    def finish(self) -> None:
        """Write what is left. Raises OSError as the system does, and what a write raised, if the writer kept it to itself."""
        self._refuse_after_a_failure()
        rest = self._chunk[: self._filled]
        if self._beside.waiting == 0:
            self._sha256.update(rest)  # less than a chunk is not worth a thread
        else:
            self._beside.give(rest)
        self._raw.write(rest)

    def close(self) -> None:
        """Wait until everything is hashed, and leave no thread. The file below stays open."""
        self._beside.close()

    def tell(self) -> int:
        """Bytes taken so far."""
        return self.size

    def writable(self) -> bool:
        """True, as for any file opened for writing."""
        return True

    @property
    def sha256(self) -> str:
        """Hex digest of everything written, once it is finished and closed."""
        return self._sha256.hexdigest()


def read_through(descriptor: int, size: int, *consumers: Callable[[memoryview], object]) -> int:
    """Read `size` bytes from the start of `descriptor` once, giving every chunk to each consumer, in a thread each.

    Returns the number of bytes read, which is less than `size` only if the file has become shorter. Raises OSError.
    """
    os.lseek(descriptor, 0, os.SEEK_SET)
    if len(consumers) == 1 or size <= SHARED_BYTES_LEAST:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        return sum(map(len, _fed(descriptor, size, itertools.repeat(buffer), consumers)))
    *others, last = consumers
    beside = [Beside(consume) for consume in others]
    try:
        done = sum(map(len, _fed(descriptor, size, _free(beside), (*(one.give for one in beside), last))))
        for one in beside:
            one.all_back()
    finally:
        for one in beside:
            one.close()
    return done


def _free(beside: list[Beside]) -> Iterator[memoryview]:
    """Chunks to read into, each one again once nobody needs what was in it."""
    chunks = [memoryview(bytearray(CHUNK_BYTES)) for _ in range(READ_CHUNKS)]
    yield from chunks
    for chunk in itertools.cycle(chunks):
        for one in beside:
            one.back()
        yield chunk


def _fed(
    descriptor: int, size: int, buffers: Iterator[memoryview], consumers: tuple[Callable[[memoryview], object], ...]
) -> Iterator[memoryview]:
    """Every chunk that was read, into the next buffer, and given to all consumers."""
    done, told = 0, _told.get()
    while done < size and (count := os.readv(descriptor, [buffer := next(buffers)[: size - done]])):
        for consume in consumers:
            consume(buffer[:count])
        if told is not None:
            told(count)
        done += count
        yield buffer[:count]


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Hex digest of a whole file, in constant memory. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        read_through(file.fileno(), os.fstat(file.fileno()).st_size, digest.update)
    return digest.hexdigest()

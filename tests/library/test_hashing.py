"""The digest of what was meant to be written, taken beside the writing; and reading once for several consumers."""

import hashlib
import io
import os
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastgood import hashing
from lastgood.hashing import Beside, HashingFile, read_through


@pytest.fixture(autouse=True)
def _small_chunks_and_no_thread_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Chunks so small that a test has many; whatever happened, no thread outlives its owner."""
    monkeypatch.setattr(hashing, "CHUNK_BYTES", 16)
    monkeypatch.setattr(hashing, "CHUNKS_MAX", 3)
    yield
    assert [] == threads_beside()


def threads_beside() -> list[str]:
    """The threads that hash or check beside somebody."""
    return [thread.name for thread in threading.enumerate() if thread.name == "lastgood-beside"]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Raw(io.BytesIO):
    """A file in memory that counts what it is given at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[int] = []

    def write(self, data: Any) -> int:
        self.pieces.append(len(data))
        return super().write(data)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=70)))
def test_every_byte_is_hashed_and_written_in_order(pieces: list[bytes]) -> None:
    """However the writer cuts it; the system gets whole chunks and one rest."""
    raw, whole = Raw(), b"".join(pieces)
    file = HashingFile(raw)
    for piece in pieces:
        assert len(piece) == file.write(piece)
    assert len(whole) == file.tell()
    file.finish()
    file.close()

    assert (digest(whole), whole, len(whole)) == (file.sha256, raw.getvalue(), file.size)
    assert [16] * (len(whole) // 16) == raw.pieces[:-1]


def test_memory_may_be_used_again_as_soon_as_a_write_returns() -> None:
    """A writer that fills one buffer over and over is hashed as it wrote, however late the hash comes."""
    raw, buffer, meant = Raw(), bytearray(40), b""
    file = HashingFile(raw)
    for number in range(200):
        buffer[:] = bytes([number]) * 40
        meant += buffer
        file.write(buffer)
    file.finish()
    file.close()

    assert (digest(meant), meant) == (file.sha256, raw.getvalue())


def test_a_writer_waits_for_a_hash_that_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded: as many chunks as may wait, and no more."""
    made, ready, real = [], threading.Event(), bytearray
    monkeypatch.setattr(hashing, "bytearray", lambda size: made.append(size) or real(size), raising=False)
    file = HashingFile(Raw())
    consume = file._beside._consume
    file._beside._consume = lambda chunk: ready.wait(20) and consume(chunk)
    writer = threading.Thread(target=file.write, args=(b"x" * 1600,))
    writer.start()
    until_written = [file.size]
    while until_written[-1] != until_written[0] or len(until_written) < 2:
        time.sleep(0.05)
        until_written = [until_written[-1], file.size]
    stopped_at = file.size
    ready.set()
    writer.join()
    file.finish()
    file.close()

    assert (48, [16] * 3) == (stopped_at, made)
    assert digest(b"x" * 1600) == file.sha256


def test_without_a_thread_everything_is_hashed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may start no more threads saves as well, only slower."""

    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    file = HashingFile(Raw())
    file.write(b"y" * 1000)
    file.finish()
    file.close()

    assert digest(b"y" * 1000) == file.sha256


class Stop(BaseException):
    """Stands for a signal handler that raises."""


@pytest.mark.parametrize("mistake", [OSError(28, "full"), KeyboardInterrupt(), Stop()])
def test_a_failed_write_is_final(mistake: BaseException) -> None:
    """A writer that keeps the failure to itself and goes on gets it again, and the file cannot be finished."""
    raw = Raw()
    file = HashingFile(cast(io.BytesIO, raw))
    raw.write = lambda data: (_ for _ in ()).throw(mistake)  # type: ignore[method-assign]
    for attempt in (lambda: file.write(b"z" * 20), lambda: file.write(b"z"), file.finish):
        with pytest.raises(type(mistake)) as caught:
            attempt()
        assert mistake is caught.value
    file.close()

    assert mistake is file.error


def test_what_a_consumer_raises_beside_is_raised_where_its_chunk_is_asked_back() -> None:
    """It is not lost with the thread, and the thread goes on for the next chunk."""
    met = []

    def consume(chunk: memoryview) -> None:
        met.append(bytes(chunk))
        if len(met) == 1:
            raise ValueError("bad")

    beside = Beside(consume)
    for content in (b"one", b"two"):
        beside.give(memoryview(content))
    with pytest.raises(ValueError, match="bad"):
        beside.back()
    assert b"two" == bytes(beside.back())
    beside.close()
    assert [b"one", b"two"] == met


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000])
def test_a_file_is_read_once_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Each consumer gets every byte in order."""
    monkeypatch.setattr(hashing, "SHARED_BYTES_LEAST", 64)
    path = tmp_path / "file"
    path.write_bytes(content := os.urandom(size))
    sha, seen, crc = hashlib.sha256(), bytearray(), [0]

    def add_up(chunk: memoryview) -> None:
        crc[0] = zlib.crc32(chunk, crc[0])

    with path.open("rb") as file:
        assert size == read_through(file.fileno(), size, sha.update, seen.extend, add_up)
        assert size == read_through(file.fileno(), size + 100, lambda chunk: None)
    assert (digest(content), content, zlib.crc32(content)) == (sha.hexdigest(), bytes(seen), crc[0])


@pytest.mark.parametrize("which", [0, 1])
def test_a_consumer_that_fails_ends_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int) -> None:
    """Its error is raised, from whichever thread, no more than the chunks in memory later."""
    monkeypatch.setattr(hashing, "SHARED_BYTES_LEAST", 64)
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    read = [0, 0]

    def consumer(number: int) -> Any:
        def consume(chunk: memoryview) -> None:
            read[number] += len(chunk)
            if number == which and read[number] > 200:
                raise ValueError("enough")

        return consume

    with path.open("rb") as file, pytest.raises(ValueError, match="enough"):
        read_through(file.fileno(), 1000, consumer(0), consumer(1))
    assert 208 <= read[which] <= 208 + 16 * hashing.READ_CHUNKS * (1 - which)

"""Publishing and removing: all at once, sealed, and harmless when interrupted anywhere."""

import contextlib
import ctypes
import errno
import gc
import hashlib
import linecache
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import BinaryIO

import pytest

from lastgood import hashing
from lastgood import publish as publishing
from lastgood.judging import verify
from lastgood.publish import (
    MaybeCommittedError,
    make_inner_folder,
    publish,
    remove,
    sweep,
    write_at_once,
    write_bound_seal,
    write_durably,
)
from lastgood.seal import MAX_SEAL_BYTES, Identity, Seal, parse_seal, read_bound_seal
from lastgood.verdict import Kind


def writing(content: bytes) -> Callable[[BinaryIO], object]:
    """A writer of `content` in two pieces."""

    def write(file: BinaryIO) -> None:
        file.write(content[: len(content) // 2])
        file.write(content[len(content) // 2 :])

    return write


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_a_publication_is_sealed_and_leaves_nothing_else(tmp_path: Path) -> None:
    """After publishing there is the data, its seal that coreutils agrees with, and nothing besides."""
    done = publish(tmp_path / "a.pt", writing(b"hello"))

    assert b"hello" == (tmp_path / "a.pt").read_bytes()
    assert (hashlib.sha256(b"hello").hexdigest(), 5) == (done.sha256, done.bytes)
    assert {"a.pt", "a.pt.sha256"} == names(tmp_path)
    assert (
        subprocess.run(["sha256sum", "-c", "a.pt.sha256"], cwd=tmp_path, capture_output=True, check=False).returncode
        == 0
    )


def test_overwriting_ends_with_a_seal_of_the_new_bytes_alone(tmp_path: Path) -> None:
    """Once the overwrite is durable, the old bytes no longer match the seal."""
    publish(tmp_path / "a.pt", writing(b"old"))
    done = publish(tmp_path / "a.pt", writing(b"new"))

    assert Seal(done.sha256) == parse_seal((tmp_path / "a.pt.sha256").read_bytes(), "a.pt")
    assert Kind.HEALTHY is verify(tmp_path / "a.pt").kind


def test_file_modes_follow_the_umask(tmp_path: Path) -> None:
    """Data and seal are readable by whom the umask says, not by their maker alone."""
    before = os.umask(0o007)
    try:
        publish(tmp_path / "a.pt", writing(b"x"))
    finally:
        os.umask(before)

    assert {0o660} == {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}


class Boom(BaseException):
    """Stands for a signal handler that raises."""


@pytest.mark.parametrize("call", ["fsync", "replace", "open", "write"])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("mistake", [OSError(errno.EIO, "x"), Boom()])
def test_a_failure_at_any_call_leaves_old_or_new_and_no_partial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, overwrite: bool, mistake: BaseException
) -> None:
    """Whichever call of a kind fails, what was there before is healthy or the new one is, and no partial is left."""
    for failing in range(1, 12):
        target = tmp_path / f"{failing}.pt"
        if overwrite:
            publish(target, writing(b"old bytes"))
        counted = {"n": 0}
        real = getattr(os, call)

        def broken(
            *args: object, _real: object = real, _counted: dict[str, int] = counted, _at: int = failing, **kw: object
        ) -> object:
            _counted["n"] += 1
            if _counted["n"] == _at:
                raise mistake
            return _real(*args, **kw)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, broken)
            try:
                publish(target, writing(b"new bytes"))
                raised = False
            except (OSError, Boom):
                raised = True
        fired = counted["n"] >= failing

        assert raised == fired
        if target.exists():
            assert Kind.HEALTHY is verify(target).kind
            assert target.read_bytes() in (b"old bytes", b"new bytes")
        else:
            assert not overwrite
        assert not [name for name in names(tmp_path) if ".partial-" in name]
        if not fired:
            return
    raise AssertionError("the sweep never came to a publication without a fault")


def interrupted_at(line: int, work: Callable[[], object]) -> bool:
    """Do `work`, and raise `Boom` at the given line that it comes to in publishing or hashing; whether it came so far."""
    left = line

    def trace(frame: FrameType, event: str, _argument: object) -> object:
        nonlocal left
        if os.path.basename(frame.f_code.co_filename) not in ("publish.py", "hashing.py"):
            return None
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if (
            event == "line" and source.strip() != "try:"
        ):  # there no signal is looked for, and Python's tables do not cover it
            left -= 1
            if left == 0:
                raise Boom
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except Boom:
        pass
    finally:
        sys.settrace(before)
    return left <= 0


@pytest.mark.filterwarnings("ignore")  # of a file that was opened and not yet closed; Python closes it
@pytest.mark.parametrize("overwrite", [False, True])
def test_an_interrupt_at_any_line_leaves_old_or_new_and_no_partial_and_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    """A signal handler may raise anywhere, while chunks are being hashed too; what was begun is ended or undone."""
    monkeypatch.setattr(hashing, "CHUNK_BYTES", 8)
    monkeypatch.setattr(hashing, "CHUNKS_MAX", 2)
    monkeypatch.setattr(publishing, "BEGIN_BYTES", 16)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    old, new = b"the old bytes", b"new bytes " * 10
    for line in range(1, 2000):
        target = tmp_path / f"{line}.pt"
        if overwrite:
            publish(target, writing(old))
        came_so_far = interrupted_at(line, lambda where=target: publish(where, writing(new)))

        assert target.exists() or not overwrite
        if target.exists():
            assert (Kind.HEALTHY, True) == (verify(target).kind, target.read_bytes() in (old, new)), line
        assert not [name for name in names(tmp_path) if ".partial-" in name], line
        if not came_so_far:
            break
    gc.collect()
    for thread in [one for one in threading.enumerate() if one.name == "lastgood-beside"]:
        thread.join(20)
        assert not thread.is_alive()
    assert line > 100


def test_a_writer_that_keeps_a_failure_to_itself_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not written is missing, whatever the writer makes of it."""
    monkeypatch.setattr(hashing, "CHUNK_BYTES", 8)
    publish(tmp_path / "a.pt", writing(b"old"))

    def deaf(file: BinaryIO) -> None:
        for _ in range(3):
            with contextlib.suppress(OSError):
                file.write(b"0123456789")

    real, failures = publishing._Whole.write, [OSError(errno.EDQUOT, "Disk quota exceeded")]

    def full_once(raw: publishing._Whole, view: memoryview) -> int:
        if failures:
            raise failures.pop()
        return real(raw, view)

    monkeypatch.setattr(publishing._Whole, "write", full_once)
    with pytest.raises(OSError, match="Disk quota exceeded"):
        publish(tmp_path / "a.pt", deaf)
    assert (b"old", Kind.HEALTHY) == ((tmp_path / "a.pt").read_bytes(), verify(tmp_path / "a.pt").kind)


@pytest.mark.parametrize("system", ["as it is", "without the call", "another"])
def test_the_disk_is_told_to_begin_early_where_that_can_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    """It is a hint, of stretches that are written and not yet begun, and publishing does without it."""
    monkeypatch.setattr(hashing, "CHUNK_BYTES", 10)
    monkeypatch.setattr(publishing, "BEGIN_BYTES", 30)
    begun, real = [], publishing._begin_writeback

    def begin(descriptor: int, start: int, count: int) -> None:
        begun.append((start, count))
        real(descriptor, start, count)

    looked_up: list[object] = []

    def library(name: str | None) -> object:
        looked_up.append(name)
        return object() if system == "without the call" else real_library(name)

    real_library = ctypes.CDLL
    monkeypatch.setattr(publishing, "_begin_writeback", begin)
    monkeypatch.setattr(publishing, "_sync_file_range", cache(publishing._sync_file_range.__wrapped__))
    monkeypatch.setattr(ctypes, "CDLL", library)
    if system == "another":
        monkeypatch.setattr(sys, "platform", "darwin")
    publish(tmp_path / "a.pt", writing(b"x" * 100))

    assert [(0, 30), (30, 30), (60, 30)] == begun
    assert [None] * (system != "another") == looked_up
    assert Kind.HEALTHY is verify(tmp_path / "a.pt").kind


def test_a_failure_after_the_rename_is_said_to_be_maybe_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When only the folder's sync fails, the snapshot is in place and the error says so."""

    def no_sync(folder: str) -> None:
        raise OSError(errno.EIO, "Input/output error", folder)

    monkeypatch.setattr(publishing, "fsync_folder", no_sync)

    with pytest.raises(MaybeCommittedError, match="is in place") as caught:
        publish(tmp_path / "a.pt", writing(b"x"))
    assert errno.EIO == caught.value.errno
    assert Kind.HEALTHY is verify(tmp_path / "a.pt").kind


def test_a_full_disk_is_passed_on_with_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC keeps its errno, and its text tells what was written and what is free."""
    real = os.fsync

    def full(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(tmp_path)):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(OSError, match="bytes were written and more were needed") as caught:
        publish(tmp_path / "a.pt", writing(b"x"))
    assert errno.ENOSPC == caught.value.errno
    assert set() == names(tmp_path)


def test_the_errno_survives_a_writer_that_hides_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.save turns a failed write into a RuntimeError without errno; the system's own error is raised all the same."""

    monkeypatch.setattr(hashing, "CHUNK_BYTES", 1000)

    def hiding(file: BinaryIO) -> None:
        try:
            file.write(b"x" * 100_000)
        except OSError:
            raise RuntimeError("unexpected pos") from None

    import resource
    import signal

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            publish(tmp_path / "a.pt", hiding)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert set() == names(tmp_path)


def test_silent_damage_while_writing_is_caught_by_the_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seal is of the intended bytes: what the storage changed on the way is corrupt when read back."""

    def damaging(raw: BinaryIO) -> object:
        class Raw:
            def write(self, view: memoryview) -> int:
                raw.write(bytes(view).replace(b"good", b"evil"))
                return view.nbytes

            def flush(self) -> None:
                raw.flush()

        return Raw()

    monkeypatch.setattr(publishing, "_Whole", damaging)
    publish(tmp_path / "a.bin", writing(b"so good it is" * 10))

    assert Kind.CORRUPT is verify(tmp_path / "a.bin").kind


def test_removal_takes_data_and_seal(tmp_path: Path) -> None:
    """A removed snapshot leaves nothing."""
    publish(tmp_path / "a.pt", writing(b"x"))
    remove(tmp_path / "a.pt")

    assert set() == names(tmp_path)


@pytest.mark.parametrize("cut", [1, 2])
def test_a_removal_cut_short_goes_on_at_the_next_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    """Killed between its steps, a removal leaves no candidate, and a sweep finishes it."""
    publish(tmp_path / "a.pt", writing(b"x"))
    counted = {"n": 0}
    real = os.unlink

    def dying(path: str) -> None:
        counted["n"] += 1
        if counted["n"] == cut:
            raise Boom
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", dying)
        with pytest.raises(Boom):
            remove(tmp_path / "a.pt")
    assert not (tmp_path / "a.pt").exists()

    swept = sweep(tmp_path)
    assert 1 == len(swept)
    assert set() == names(tmp_path)


def test_a_sweep_leaves_snapshots_and_other_peoples_files_alone(tmp_path: Path) -> None:
    """Only our own partials go; the seal of a snapshot that is there stays."""
    publish(tmp_path / "a.pt", writing(b"x"))
    for name in (".a.pt.partial-1-0123abcd", "b.pt.tmp", ".hidden", "c.pt.sha256"):
        (tmp_path / name).write_bytes(b"y")

    assert [".a.pt.partial-1-0123abcd"] == sweep(tmp_path)
    assert {"a.pt", "a.pt.sha256", "b.pt.tmp", ".hidden", "c.pt.sha256"} == names(tmp_path)


def test_what_cannot_be_swept_keeps_nobody_from_sweeping_the_rest(tmp_path: Path) -> None:
    """It stays, with its partial, by which a later sweep knows it again, and is told of; the names after it go."""
    (tmp_path / "a.pt.sha256").mkdir()
    for name in (".a.pt.partial-1-0123abcd", ".b.pt.partial-1-0123abcd"):
        (tmp_path / name).write_bytes(b"y")
    left: list[tuple[str, int | None]] = []

    assert [".b.pt.partial-1-0123abcd"] == sweep(tmp_path, lambda name, error: left.append((name, error.errno)))
    assert [(".a.pt.partial-1-0123abcd", errno.EISDIR)] == left
    assert {"a.pt.sha256", ".a.pt.partial-1-0123abcd"} == names(tmp_path)
    (tmp_path / "a.pt.sha256").rmdir()
    assert [".a.pt.partial-1-0123abcd"] == sweep(tmp_path)


def test_small_files_are_replaced_whole(tmp_path: Path) -> None:
    """A durable write replaces the content and leaves no partial."""
    path = tmp_path / "run.json"
    write_durably(str(path), b"one")
    write_durably(str(path), b"two")

    assert b"two" == path.read_bytes()
    assert {"run.json"} == names(tmp_path)


def test_a_pipe_in_the_place_of_a_seal_holds_nobody_up(tmp_path: Path) -> None:
    """The save fails with the reason instead of waiting for a writer that never comes."""
    os.mkfifo(tmp_path / "a.pt.sha256")

    with pytest.raises(OSError, match="Not a regular file"):
        publish(tmp_path / "a.pt", lambda file: file.write(b"x"))
    assert ["a.pt.sha256"] == os.listdir(tmp_path)


def test_a_file_in_the_place_of_a_seal_that_is_too_large_for_one_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    """The save fails with the reason, whatever there is of it; a file that is just not too large is a bad seal, and replaced."""
    publish(tmp_path / "a.pt", writing(b"old"))
    with (tmp_path / "a.pt.sha256").open("wb") as file:
        file.truncate(1 << 40)

    with pytest.raises(OSError, match="Too large to be a seal") as caught:
        publish(tmp_path / "a.pt", writing(b"new"))
    assert (errno.EFBIG, b"old", 1 << 40) == (
        caught.value.errno, (tmp_path / "a.pt").read_bytes(), (tmp_path / "a.pt.sha256").stat().st_size
    )  # fmt: skip
    assert {"a.pt", "a.pt.sha256"} == names(tmp_path)
    os.truncate(tmp_path / "a.pt.sha256", MAX_SEAL_BYTES)
    publish(tmp_path / "a.pt", writing(b"new"))
    assert Kind.HEALTHY is verify(tmp_path / "a.pt").kind


def test_a_small_file_that_only_is_looked_at_is_replaced_without_waiting_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader sees the old one or the new one, nothing is left beside it, and nobody waits for a sync."""

    def never(descriptor: int) -> None:
        raise AssertionError(f"descriptor {descriptor} was synced")

    monkeypatch.setattr(os, "fsync", never)
    path = tmp_path / "status.json"
    for content in (b"old", b"new"):
        write_at_once(str(path), content)

    assert b"new" == path.read_bytes()
    assert ["status.json"] == os.listdir(tmp_path)


def test_an_inner_folder_is_made_with_the_one_around_it_and_nothing_above(tmp_path: Path) -> None:
    """What holds them may have been moved away or removed."""
    for _ in range(2):
        make_inner_folder(str(tmp_path / ".lastgood" / "seals"))
    with pytest.raises(FileNotFoundError):
        make_inner_folder(str(tmp_path / "away" / ".lastgood" / "seals"))

    assert [".lastgood"] == os.listdir(tmp_path)
    assert ["seals"] == os.listdir(tmp_path / ".lastgood")


def test_a_file_in_the_place_of_an_inner_folder_is_told(tmp_path: Path) -> None:
    """It is left alone."""
    (tmp_path / ".lastgood").touch()
    with pytest.raises(FileExistsError):
        make_inner_folder(str(tmp_path / ".lastgood" / "seals"))


def test_a_seal_for_somebody_elses_snapshot_is_bound_to_what_was_hashed(tmp_path: Path) -> None:
    """It says nothing of the next file of that name; and the folder that it goes into is made where there is none."""
    path = tmp_path / "ckpt_1.pt"
    path.write_bytes(b"bytes")
    identity = Identity.of(path.stat())
    write_bound_seal(path, hashlib.sha256(b"bytes").hexdigest(), identity)

    assert Seal(hashlib.sha256(b"bytes").hexdigest()) == read_bound_seal(path, identity)
    assert None is read_bound_seal(path, identity._replace(size=9))

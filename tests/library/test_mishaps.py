"""A second failure while a first one is dealt with, and moments between two steps: nothing good is lost, the first is told."""

import errno
import fcntl
import io
import os
import resource
import shutil
import signal
import threading
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from lastgood import CheckpointManager, checkpoint, safe_load_checkpoint, save_checkpoint_atomic
from lastgood import publish as publishing
from lastgood.judging import verify
from lastgood.lock import WriterLock
from lastgood.publish import Published, publish, remove, sweep, write_durably
from lastgood.seal import SEAL_SUFFIX
from lastgood.staging import Staging
from lastgood.verdict import Kind
from tests.crash.operations import Stateful


class Interrupted(BaseException):
    """Stands for a signal handler that raises."""


def broken(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def partials(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if ".partial-" in name]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_signal_right_after_the_rename_leaves_the_new_one_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    """What is visible keeps the seal that was made for it, although the save did not return."""
    path = tmp_path / "a.pt"
    if overwrite:
        publish(path, lambda file: file.write(b"old"))
    real = os.replace

    def and_interrupt(source: str, target: str) -> None:
        real(source, target)
        if target == str(path):
            raise Interrupted

    monkeypatch.setattr(os, "replace", and_interrupt)
    with pytest.raises(Interrupted):
        publish(path, lambda file: file.write(b"new"))

    assert (b"new", Kind.HEALTHY) == (path.read_bytes(), verify(path).kind)
    assert {"a.pt", "a.pt.sha256"} == names(tmp_path)


def test_a_failed_overwrite_leaves_the_old_seal_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a word of what was to replace it is left in it."""
    path = tmp_path / "a.pt"
    publish(path, lambda file: file.write(b"old"))
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    real = os.replace

    def refuse_data(source: str, target: str) -> None:
        if target == str(path):
            raise broken(errno.EXDEV)
        real(source, target)

    monkeypatch.setattr(os, "replace", refuse_data)
    with pytest.raises(OSError, match="Invalid cross-device link"):
        publish(path, lambda file: file.write(b"new"))

    assert before == {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}


@pytest.mark.parametrize("overwrite", [False, True])
def test_storage_that_refuses_everything_from_some_point_on_tells_its_first_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    """Taking back fails too, so that leftovers stay: none is a candidate, what was there is healthy, the next writer sweeps."""
    path = tmp_path / "a.pt"
    if overwrite:
        publish(path, lambda file: file.write(b"old"))
    real = os.replace
    with monkeypatch.context() as patch:

        def give_up(source: str, target: str) -> None:
            if target == str(path):
                for call in ("open", "unlink", "replace"):
                    patch.setattr(os, call, refuse)
                raise broken(errno.EIO)
            real(source, target)

        def refuse(*_: object, **__: object) -> None:
            raise broken(errno.EROFS)

        patch.setattr(os, "replace", give_up)
        with pytest.raises(OSError, match="Input/output error"):
            publish(path, lambda file: file.write(b"new"))

    assert 1 == len(partials(tmp_path))
    assert path.exists() == overwrite
    if overwrite:
        assert (b"old", Kind.HEALTHY) == (path.read_bytes(), verify(path).kind)
    sweep(tmp_path)
    assert names(tmp_path) <= {"a.pt", "a.pt.sha256"}
    publish(path, lambda file: file.write(b"next"))
    assert Kind.HEALTHY is verify(path).kind


def test_a_small_file_that_cannot_be_written_nor_taken_back_tells_why_it_was_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old content stays."""
    path = tmp_path / "run.json"
    write_durably(str(path), b"old")

    def refuse(number: int) -> Callable[..., None]:
        def refusing(*_: object) -> None:
            raise broken(number)

        return refusing

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse(errno.EIO))
        patch.setattr(os, "unlink", refuse(errno.EROFS))
        with pytest.raises(OSError, match="Input/output error"):
            write_durably(str(path), b"new")
    assert b"old" == path.read_bytes()


def test_a_full_disk_whose_room_cannot_be_found_out_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The errno stays, and the text says what is not known."""

    def refuse(*_: object) -> None:
        raise broken(errno.ENOSPC)

    monkeypatch.setattr(shutil, "disk_usage", refuse)
    with pytest.raises(OSError, match="an unknown number of bytes are free") as caught:
        publish(tmp_path / "a.pt", refuse)
    assert errno.ENOSPC == caught.value.errno


@pytest.mark.parametrize("size", [100_000, 5 << 20])
def test_a_writer_that_hides_the_reason_hides_it_from_nobody(tmp_path: Path, size: int) -> None:
    """However much was written when the system refused: its own error is raised, not what the writer made of it."""

    def hiding(file: BinaryIO) -> None:
        try:
            file.write(b"x" * size)
        except OSError:
            raise RuntimeError("unexpected pos") from None

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            publish(tmp_path / "a.pt", hiding)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert errno.EFBIG == caught.value.errno
    assert set() == names(tmp_path)


def test_a_system_that_takes_a_byte_at_a_time_gets_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write may take less than it was given, and says so in its result alone."""
    real = os.fdopen

    class Slow(io.FileIO):
        def write(self, data: memoryview) -> int:  # type: ignore[override]
            return super().write(memoryview(data)[:1])

    monkeypatch.setattr(
        os,
        "fdopen",
        lambda fd, mode, **kw: Slow(fd, "wb") if mode == "wb" and not kw.get("buffering") else real(fd, mode, **kw),
    )
    publish(tmp_path / "a.pt", lambda file: file.write(b"every byte of it"))

    assert b"every byte of it" == (tmp_path / "a.pt").read_bytes()
    assert Kind.HEALTHY is verify(tmp_path / "a.pt").kind


def test_nothing_is_renamed_into_place_before_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither data nor seal: after a power cut a snapshot with half a seal would be less than it was said to be."""
    synced, renamed = set[int](), list[tuple[str, int]]()
    fsync, rename = os.fsync, os.replace

    def and_note_sync(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def and_note_rename(source: str, target: str) -> None:
        renamed.append((os.path.basename(target), os.stat(source).st_ino))
        assert renamed[-1][1] in synced, renamed[-1]
        rename(source, target)

    monkeypatch.setattr(os, "fsync", and_note_sync)
    monkeypatch.setattr(os, "replace", and_note_rename)
    for content in (b"one", b"two"):
        publish(tmp_path / "a.pt", lambda file, content=content: file.write(content))

    assert ["a.pt.sha256", "a.pt", "a.pt.sha256", "a.pt", "a.pt.sha256"] == [name for name, _ in renamed]


def test_a_name_that_is_a_link_to_nowhere_is_replaced(tmp_path: Path) -> None:
    """There are no bytes for whose sake its seal should accept another digest."""
    (tmp_path / "a.pt").symlink_to(tmp_path / "nowhere")
    publish(tmp_path / "a.pt", lambda file: file.write(b"x"))

    assert Kind.HEALTHY is verify(tmp_path / "a.pt").kind
    assert not (tmp_path / "a.pt").is_symlink()


def test_a_removal_that_cannot_be_synced_makes_room_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever removes wants the space back."""
    publish(tmp_path / "a.pt", lambda file: file.write(b"x"))

    def refuse(folder: str) -> None:
        raise broken(errno.EIO)

    monkeypatch.setattr(publishing, "fsync_folder", refuse)
    remove(tmp_path / "a.pt")

    assert set() == names(tmp_path)


@pytest.mark.parametrize("call", ["replace", "unlink"])
def test_a_removal_that_is_refused_is_told_and_leaves_a_snapshot_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Never a snapshot without its seal; the next sweep goes on where this one ended."""
    publish(tmp_path / "a.pt", lambda file: file.write(b"x"))

    def refuse(*_: object) -> None:
        raise broken(errno.EPERM)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(PermissionError):
            remove(tmp_path / "a.pt")
    if (tmp_path / "a.pt").exists():
        assert Kind.HEALTHY is verify(tmp_path / "a.pt").kind
        remove(tmp_path / "a.pt")
    sweep(tmp_path)
    assert set() == names(tmp_path)


def test_a_name_that_cannot_be_looked_at_keeps_its_seal_in_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not to know whether a snapshot is there is not to know that it is gone."""
    publish(tmp_path / "a.pt", lambda file: file.write(b"x"))
    (tmp_path / ".a.pt.partial-1-0123abcd").write_bytes(b"half")
    real = os.lstat

    def refuse(path: str) -> os.stat_result:
        if path == str(tmp_path / "a.pt"):
            raise broken(errno.EIO)
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", refuse)
        assert [] == sweep(tmp_path)
    assert {"a.pt", f"a.pt{SEAL_SUFFIX}", ".a.pt.partial-1-0123abcd"} == names(tmp_path)


# The writer's lock


def test_a_lock_is_held_on_a_disk_too_full_for_its_holders_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number is for people; another writer is kept out without it."""

    def refuse(self: io.FileIO, data: bytes) -> int:
        raise broken(errno.ENOSPC)

    class Full(io.FileIO):
        write = refuse  # type: ignore[assignment]

    monkeypatch.setattr("lastgood.lock.io.FileIO", Full)
    lock = WriterLock(tmp_path)
    lock.hold()
    with pytest.raises(RuntimeError, match="written by process another process"):
        WriterLock(tmp_path).hold()
    lock.release()


def test_a_filesystem_without_locks_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is the system's; it is not taken for another writer."""

    def refuse(*_: object) -> None:
        raise broken(errno.ENOLCK)

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="No locks available"):
        WriterLock(tmp_path).hold()


def test_a_forked_child_lets_go_of_what_its_parent_holds(tmp_path: Path) -> None:
    """In the child, not in the parent: the parent's lock stays until it is given back."""
    lock = WriterLock(tmp_path)
    lock.hold()
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            lock.release()  # there is nothing left to release
            os.write(theirs, b"1")
        finally:
            os._exit(0)
    assert b"1" == os.read(ours, 1)
    os.waitpid(child, 0)
    os.close(ours)
    os.close(theirs)
    with pytest.raises(RuntimeError, match=f"process {os.getpid()}"):
        WriterLock(tmp_path).hold()
    lock.release()


def test_a_lock_whose_file_is_gone_is_taken_anew(tmp_path: Path) -> None:
    """Who removes the folder of the locks takes none of them away from who comes next."""
    lock = WriterLock(tmp_path)
    lock.hold()
    shutil.rmtree(tmp_path / ".lastgood")
    lock.hold()
    with pytest.raises(RuntimeError, match=f"process {os.getpid()}"):
        WriterLock(tmp_path).hold()
    lock.release()


# What a snapshot may hold


NEXT_CALLS: dict[str, Callable[[CheckpointManager], object]] = {
    "save": lambda manager: manager.save(3, Stateful({}), Stateful({}), rng_state={}),
    "wait": CheckpointManager.wait,
    "close": CheckpointManager.close,
}


@pytest.mark.parametrize("call", NEXT_CALLS)
def test_what_failed_in_the_background_is_raised_once_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Whichever call that is, and although nothing fails any more; the one after it goes on as if nothing had been."""

    def full(*_: object) -> Published:
        raise broken(errno.ENOSPC)

    manager = CheckpointManager(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "publish", full)
        manager.save(2, Stateful({}), Stateful({}), rng_state={}, blocking=False)
        for thread in [one for one in threading.enumerate() if one.name == "lastgood-save"]:
            thread.join()
    with pytest.raises(OSError, match="No space left on device"):
        NEXT_CALLS[call](manager)
    manager.save(4, Stateful({}), Stateful({}), rng_state={})
    manager.close()

    assert {"ckpt_00000004.pt", "ckpt_00000004.pt.sha256", ".lastgood"} == names(tmp_path)


def test_a_save_in_the_background_is_of_the_weights_at_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late it is written: what the optimizer does meanwhile is not in it."""
    changed = threading.Event()
    real = checkpoint.publish

    def late(*arguments: Any) -> Published:
        assert changed.wait(30)
        return real(*arguments)

    monkeypatch.setattr(checkpoint, "publish", late)
    weights = torch.ones(100)
    manager = CheckpointManager(tmp_path)
    manager.save(1, Stateful({"w": weights}), Stateful({"m": [weights * 2]}), rng_state={}, blocking=False)
    weights.fill_(5)
    changed.set()
    manager.close()

    saved = safe_load_checkpoint(tmp_path)
    assert torch.equal(torch.ones(100), saved["model"]["w"])
    assert torch.equal(torch.full((100,), 2.0), saved["optimizer"]["m"][0])


def test_a_directory_without_any_snapshot_says_so(tmp_path: Path) -> None:
    """An empty directory is another thing than one of bad snapshots."""
    with pytest.raises(RuntimeError, match="holds no snapshot"):
        safe_load_checkpoint(tmp_path)


def test_loading_restores_what_is_given_and_nothing_that_is_not_there(tmp_path: Path) -> None:
    """A snapshot that was saved without a scheduler and generators leaves those of the caller alone."""
    weights = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(weights.parameters(), 0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    manager = CheckpointManager(tmp_path)
    manager.save(2, weights, optimizer, scheduler=scheduler)
    manager.close()
    save_checkpoint_atomic({"model": weights.state_dict(), "rng": None}, tmp_path / "ckpt_00000001.pt")
    optimizer.step()
    scheduler.step()
    state = torch.random.get_rng_state().tolist()

    manager.load(tmp_path / "ckpt_00000001.pt", weights, optimizer, scheduler=scheduler)
    assert (1, state) == (scheduler.last_epoch, torch.random.get_rng_state().tolist())
    manager.load(tmp_path / "ckpt_00000002.pt", weights, optimizer, scheduler=scheduler)
    assert 0 == scheduler.last_epoch


def test_a_read_error_while_loading_is_the_systems_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that fails after the bytes were proven is not taken for a file that torch refuses."""
    save_checkpoint_atomic({"step": 1}, tmp_path / "ckpt_00000001.pt")

    def refuse(*_: object, **__: object) -> None:
        raise broken(errno.EIO)

    monkeypatch.setattr(torch, "load", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        safe_load_checkpoint(tmp_path)


Pair = namedtuple("Pair", "left right")


def test_a_copy_for_the_background_is_of_every_kind_of_state() -> None:
    """Sparse and empty tensors, named tuples and plain values are copied, not shared, and stay what they were."""
    state = {
        "sparse": torch.eye(2).to_sparse(),
        "empty": torch.empty(0),
        "pair": Pair(torch.ones(1), [1, (torch.zeros(1),)]),
        "set": {1, 2},
    }
    copied = Staging().copy(state)
    state["pair"].left.fill_(5)
    state["sparse"].values().fill_(5)
    state["set"].add(3)

    assert torch.equal(torch.eye(2), copied["sparse"].to_dense())
    assert (0, Pair(torch.ones(1), [1, (torch.zeros(1),)]), {1, 2}) == (
        copied["empty"].numel(),
        copied["pair"],
        copied["set"],
    )


def test_a_save_in_a_process_without_generators_given_takes_its_own(tmp_path: Path) -> None:
    """The state of the generators is captured at the call, and comes back with the snapshot."""
    manager = CheckpointManager(tmp_path)
    manager.save(1, Stateful({}), Stateful({}))
    first = torch.rand(3).tolist()
    manager.close()

    assert {} != manager.load(tmp_path / "ckpt_00000001.pt")["rng"]
    assert first == torch.rand(3).tolist()

"""Sealing other people's snapshots."""

import os
import pickle
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lastgood import sealing
from lastgood.judging import verify
from lastgood.lock import WriterLock
from lastgood.seal import seal_path
from lastgood.sealing import RefusedError, seal_snapshot
from lastgood.verdict import Kind
from tests.conftest import MakeSnapshot, flip_bit


def test_a_sealed_file_is_healthy_and_sha256sum_agrees(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """Sealed once, found sealed the second time, with the same facts."""
    path = make_zip("step_1.pt")
    first, second = seal_snapshot(path), seal_snapshot(path)
    checked = subprocess.run(["sha256sum", "--status", "-c", "step_1.pt.sha256"], cwd=tmp_path, check=False)

    assert (False, True, 0) == (first.already, second.already, checked.returncode)
    assert (first.sha256, first.bytes) == (second.sha256, path.stat().st_size)
    assert (Kind.HEALTHY, first.sha256) == (verify(path).kind, verify(path).sha256)


def test_a_file_of_no_known_format_is_sealed_as_it_is(tmp_path: Path) -> None:
    """From then on any change is found."""
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(range(256)))
    seal_snapshot(path)
    flip_bit(path, 9)

    assert Kind.CORRUPT is verify(path).kind


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04cut short", bytes(5000)])
def test_what_is_known_to_be_bad_is_refused(tmp_path: Path, content: bytes) -> None:
    """An empty, a cut and a zeroed file get no seal that would call them healthy."""
    path = tmp_path / "step_1.pt"
    path.write_bytes(content)

    with pytest.raises(RefusedError, match=r"truncated|corrupt"):
        seal_snapshot(path)
    assert [path] == list(tmp_path.iterdir())


def test_a_seal_that_does_not_agree_is_kept(make_zip: MakeSnapshot) -> None:
    """The snapshot may be damaged, or another one may have come under its name: a person must say, and is told how."""
    path, other = make_zip("step_1.pt"), make_zip("step_2.pt", step=2)
    seal_snapshot(path)
    before = Path(seal_path(path)).read_bytes()
    os.replace(other, path)

    with pytest.raises(RefusedError, match=r"is not the sealed .* remove step_1\.pt\.sha256 first"):
        seal_snapshot(path)
    assert before == Path(seal_path(path)).read_bytes()


def test_a_snapshot_that_is_passed_over_for_another_reason_is_not_said_to_disagree(tmp_path: Path) -> None:
    """Its seal may be right, and its schema too new."""
    path = tmp_path / "step_1.pt"
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("ck/data.pkl", pickle.dumps({"format": "lastgood", "version": 99}, 2))
    seal_snapshot(path)

    with pytest.raises(RefusedError, match=r"^incompatible: its schema version is 99"):
        seal_snapshot(path)


def test_threads_of_one_process_seal_beside_each_other(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """The lock of the directory's writer keeps other processes out, not the other half of the work."""
    paths = [make_zip(f"step_{number}.pt", number) for number in range(20)]
    lock = WriterLock(tmp_path)
    lock.hold()
    lock.release()
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(seal_snapshot, paths))

    assert [False] * 20 == [one.already for one in made]
    assert {Kind.HEALTHY} == {verify(path).kind for path in paths}


def test_a_damaged_seal_is_replaced(make_zip: MakeSnapshot) -> None:
    """It says nothing about the bytes, so there is nothing to contradict."""
    path = make_zip("step_1.pt")
    Path(seal_path(path)).write_bytes(b"")

    assert (False, Kind.HEALTHY) == (seal_snapshot(path).already, verify(path).kind)


def test_nothing_is_sealed_while_the_directorys_writer_is_at_work(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """A publication puts its seal before its data; another seal in between would condemn the data."""
    path = make_zip("step_1.pt")
    lock = WriterLock(tmp_path)
    lock.hold()

    with pytest.raises(RuntimeError, match="is being written by process"):
        seal_snapshot(path)
    lock.release()
    assert not seal_snapshot(path).already


def test_what_changes_while_it_is_read_is_not_sealed(make_zip: MakeSnapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """A digest of bytes that were never there together is worth nothing."""
    path = make_zip("step_1.pt")
    real = sealing.judge_unsealed
    monkeypatch.setattr(sealing, "judge_unsealed", lambda *a: (os.utime(path, (1, 1)), real(*a))[1])

    with pytest.raises(RefusedError, match="it changed while it was read"):
        seal_snapshot(path)


def test_pipes_and_what_is_not_there_are_refused(tmp_path: Path) -> None:
    """Each with a reason of its own."""
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(RefusedError, match="neither a regular file nor a folder"):
        seal_snapshot(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        seal_snapshot(tmp_path / "nothing")


def test_a_seal_that_cannot_be_read_is_not_replaced(make_zip: MakeSnapshot) -> None:
    """It may hold the evidence that the bytes are wrong."""
    path = make_zip("step_1.pt")
    os.mkfifo(seal_path(path))

    with pytest.raises(RefusedError, match=r"step_1\.pt\.sha256 cannot be read as a seal"):
        seal_snapshot(path)

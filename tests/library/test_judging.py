"""Verdicts about files of every condition, without torch."""

import errno
import os
import pickle
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from lastgood import files, judging
from lastgood.judging import verify
from lastgood.publish import publish
from lastgood.seal import Identity, bound_seal_path, bound_seal_text, seal_text
from lastgood.verdict import Kind, Proof
from tests.conftest import MakeSnapshot, flip_bit


def seal(path: Path) -> None:
    from lastgood.hashing import file_sha256

    Path(f"{path}.sha256").write_text(seal_text(file_sha256(path), path.name))


def test_a_sealed_snapshot_is_healthy_by_its_seal(make_zip: MakeSnapshot) -> None:
    """Bytes that match the seal are healthy, and the proof is the seal."""
    path = make_zip("step_200.pt", 200)
    seal(path)
    verdict = verify(path)

    assert (Kind.HEALTHY, Proof.SEAL, 200) == (verdict.kind, verdict.proof, verdict.step)
    assert path.stat().st_size == verdict.bytes


def test_an_unsealed_one_is_intact_by_its_checksums(make_zip: MakeSnapshot) -> None:
    """Without a seal, structure and every CRC inside are the proof."""
    verdict = verify(make_zip("step_200.pt"))

    assert (Kind.INTACT, Proof.CRC) == (verdict.kind, verdict.proof)
    assert "CRC32 of all 2 records" in verdict.reason


@pytest.mark.parametrize("sealed", [False, True])
def test_every_cut_is_truncated_or_corrupt(make_zip: MakeSnapshot, sealed: bool) -> None:
    """A file cut anywhere is never usable; without its end it is called truncated."""
    path = make_zip("a.pt", size=3000)
    if sealed:
        seal(path)
    whole = path.read_bytes()
    for length in [0, 1, 7, 100, len(whole) // 2, len(whole) - 100, *range(len(whole) - 22, len(whole))]:
        path.write_bytes(whole[:length])
        verdict = verify(path)

        assert verdict.kind in (Kind.TRUNCATED, Kind.CORRUPT), (length, verdict)
        assert length > len(whole) - 22 or verdict.kind is Kind.TRUNCATED, (length, verdict)


def test_every_single_flipped_bit_of_a_sealed_file_is_found(make_zip: MakeSnapshot) -> None:
    """With a seal there is no byte that may change, size and times kept."""
    path = make_zip("a.pt", size=500)
    seal(path)
    for offset in range(path.stat().st_size):
        flip_bit(path, offset)

        assert verify(path).kind in (Kind.CORRUPT, Kind.TRUNCATED), offset
        flip_bit(path, offset)
    assert Kind.HEALTHY is verify(path).kind


def test_a_flipped_bit_in_a_tensor_of_an_unsealed_file_is_found_and_named(make_zip: MakeSnapshot) -> None:
    """torch.load would load it without a word; the CRC says which record differs."""
    path = make_zip("a.pt", size=50_000)
    flip_bit(path, 20_000)
    verdict = verify(path)

    assert (Kind.CORRUPT, "ck/data/0" in verdict.reason) == (verdict.kind, True)
    assert "1 of 2 records intact" in verdict.reason


@pytest.mark.parametrize("damage", ["zero-page", "zero-tail", "swap", "append", "prepend"])
def test_blocks_zeroed_swapped_and_added_are_found(make_zip: MakeSnapshot, damage: str) -> None:
    """Damage by the block, as file systems do it, is never taken for a good unsealed file."""
    path = make_zip("a.pt", size=50_000)
    data = bytearray(path.read_bytes())
    match damage:
        case "zero-page":
            data[4096:8192] = bytes(4096)
        case "zero-tail":
            data[-8192:] = bytes(8192)
        case "swap":
            data[4096:8192], data[8192:12288] = data[8192:12288], data[4096:8192]
        case "append":
            data += b"\0" * 4096
        case "prepend":
            data = bytearray(b"\0" * 512) + data
    path.write_bytes(data)

    assert verify(path).kind in (Kind.CORRUPT, Kind.TRUNCATED), verify(path)


def test_random_damage_never_passes_for_another_content(make_zip: MakeSnapshot) -> None:
    """300 seeded damages of an unsealed file: what is accepted holds exactly the records that were written."""
    generator = random.Random(7)
    path = make_zip("a.pt", size=2000)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    accepted = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(generator.choice([1, 1, 1, 5])):
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        path.write_bytes(data)
        if verify(path).usable:
            accepted += 1
            with zipfile.ZipFile(path) as archive:
                assert records == {name: archive.read(name) for name in archive.namelist()}
    assert accepted < 30  # only bytes that mean nothing, such as times in headers, may change


def test_switched_off_checksums_are_not_damage(make_zip: MakeSnapshot) -> None:
    """When every CRC is zero in both places, the writer left them out: unproven, by structure alone."""
    path = make_zip("a.pt")
    data = bytearray(path.read_bytes())
    for mark, at in ((b"PK\x03\x04", 14), (b"PK\x01\x02", 16)):
        position = data.find(mark)
        while position >= 0:
            data[position + at : position + at + 4] = bytes(4)
            position = data.find(mark, position + 4)
    path.write_bytes(data)
    verdict = verify(path)

    assert (Kind.UNPROVEN, Proof.STRUCTURE) == (verdict.kind, verdict.proof)
    assert "switched off" in verdict.reason


def test_a_storage_that_is_named_but_missing_or_short_is_corrupt(tmp_path: Path) -> None:
    """Records are held against the storages that data.pkl names."""

    class FloatStorage:
        pass

    FloatStorage.__module__, FloatStorage.__qualname__ = "torch", "FloatStorage"

    def archive(name: str, size: int | None) -> Path:
        path = tmp_path / name
        with zipfile.ZipFile(path, "w") as out:
            out.writestr("ck/data.pkl", _pickle_naming_storage("0", 100))
            if size is not None:
                out.writestr("ck/data/0", bytes(size))
        return path

    assert Kind.INTACT is verify(archive("a.pt", 400)).kind
    assert "named in data.pkl but missing" in verify(archive("b.pt", None)).reason
    assert "has 399 bytes where data.pkl names 400" in verify(archive("c.pt", 399)).reason


def _pickle_naming_storage(key: str, count: int) -> bytes:
    """A pickle whose value is one persistent id, as torch writes for a float storage."""
    return (
        b"\x80\x02(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX"
        + len(key).to_bytes(4, "little") + key.encode()
        + b"X\x03\x00\x00\x00cpuK" + bytes([count]) + b"tQ."
    )  # fmt: skip


def test_a_damaged_seal_is_no_fault_of_the_snapshot(make_zip: MakeSnapshot) -> None:
    """An unusable seal is named in the reason, and the bytes are judged without it."""
    path = make_zip("a.pt")
    Path(f"{path}.sha256").write_bytes(b"")
    verdict = verify(path)

    assert Kind.INTACT is verdict.kind
    assert "seal-damaged" in verdict.reason


def test_a_seal_of_other_bytes_condemns_whole_ones_too(make_zip: MakeSnapshot) -> None:
    """With a seal the digest alone decides: a swapped-in whole archive is another snapshot than the sealed one."""
    path, other = make_zip("a.pt", 1), make_zip("b.pt", 2)
    seal(path)
    shutil.copy(other, path)
    verdict = verify(path)

    assert Kind.CORRUPT is verdict.kind
    assert "another snapshot than the sealed one" in verdict.reason


def test_a_supervisors_seal_counts_only_for_the_identity_it_was_made_for(make_zip: MakeSnapshot) -> None:
    """A file that changed since its supervisor sealed it is a new arrival: its old seal neither proves nor condemns it."""
    path = make_zip("a.pt")
    from lastgood.hashing import file_sha256

    place = Path(bound_seal_path(path))
    place.parent.mkdir(parents=True)
    place.write_text(bound_seal_text(file_sha256(path), Identity.of(path.stat())))
    assert (Kind.HEALTHY, Proof.SEAL) == (verify(path).kind, verify(path).proof)

    os.utime(path)
    assert (Kind.INTACT, Proof.CRC) == (verify(path).kind, verify(path).proof)


def test_zeros_at_the_head_condemn_only_what_never_begins_so(tmp_path: Path) -> None:
    """A torch or safetensors file begins with a mark; raw numbers may well begin with zeros."""
    for name, kind in (
        ("a.pt", Kind.CORRUPT),
        ("a.safetensors", Kind.CORRUPT),
        ("a.bin", Kind.UNPROVEN),
        ("a", Kind.UNPROVEN),
    ):
        (tmp_path / name).write_bytes(bytes(5000) + b"and more")

        assert (name, kind) == (name, verify(tmp_path / name).kind)


def test_files_of_unknown_kind_are_unproven_unless_they_are_zeros(tmp_path: Path) -> None:
    """Bytes without checksums prove nothing; a file of zeros proves that it is bad."""
    (tmp_path / "state_5.json").write_text('{"step": 5}')
    (tmp_path / "state_6.json").write_bytes(bytes(5000))
    (tmp_path / "state_7.pt").write_bytes(b"not a torch file")

    assert Kind.UNPROVEN is verify(tmp_path / "state_5.json").kind
    assert Kind.CORRUPT is verify(tmp_path / "state_6.json").kind
    assert Kind.UNPROVEN is verify(tmp_path / "state_7.pt").kind


def test_a_newer_schema_is_incompatible_not_bad(tmp_path: Path) -> None:
    """A payload of a version that this software does not know is passed over, and said to be so."""
    path = tmp_path / "ckpt_00000001.pt"
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("ck/data.pkl", pickle.dumps({"format": "lastgood", "version": 99, "iter_num": 1}, 2))
    verdict = verify(path)

    assert Kind.INCOMPATIBLE is verdict.kind
    assert "schema version is 99" in verdict.reason


def test_the_step_inside_is_used_when_the_name_has_none(tmp_path: Path) -> None:
    """nanoGPT's ckpt.pt tells its step as iter_num; a number in the name comes first."""
    for name in ("ckpt.pt", "ckpt_5.pt"):
        with zipfile.ZipFile(tmp_path / name, "w") as out:
            out.writestr("ck/data.pkl", pickle.dumps({"iter_num": 250}, 2))

    assert (250, 5) == (verify(tmp_path / "ckpt.pt").step, verify(tmp_path / "ckpt_5.pt").step)


@pytest.mark.parametrize(
    ("payload", "loss"),
    [
        ({"best_val_loss": 1.5}, 1.5),
        ({"best_val_loss": 1.5, "loss": 2}, 2.0),
        ({"best_val_loss": 1e9}, None),
        ({"best_val_loss": 1e9, "loss": -0.5}, -0.5),
        ({"loss": float("nan"), "best_val_loss": 1.5}, 1.5),
        ({"loss": float("inf")}, None),
        ({"loss": float("-inf")}, None),
        ({"loss": "low"}, None),
        ({"loss": True}, None),
        ({}, None),
    ],
)
def test_the_loss_inside_is_told_if_it_is_a_finite_number(
    tmp_path: Path, payload: dict[str, Any], loss: float | None
) -> None:
    """Of the snapshot itself before the best so far; what stands there before the first evaluation is none."""
    with zipfile.ZipFile(tmp_path / "ckpt.pt", "w") as out:
        out.writestr("ck/data.pkl", pickle.dumps({"iter_num": 250, **payload}, 2))

    assert (250, loss) == (verify(tmp_path / "ckpt.pt").step, verify(tmp_path / "ckpt.pt").loss)


def test_transient_read_errors_are_retried(make_zip: MakeSnapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale handle that goes away after two tries leaves no trace in the verdict."""
    path = make_zip("a.pt")
    failures = [OSError(errno.ESTALE, "Stale file handle"), OSError(errno.EIO, "Input/output error")]
    real = files.read_seal
    monkeypatch.setattr(judging, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(files, "read_seal", lambda *a: real(*a) if not failures else _raise(failures.pop()))

    assert Kind.INTACT is verify(path).kind


def test_a_lasting_read_error_is_unreadable_not_corrupt(
    make_zip: MakeSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be read now is another thing than wrong bytes; permissions are told apart."""
    path = make_zip("a.pt")
    monkeypatch.setattr(judging, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(files, "read_seal", lambda *_: _raise(OSError(errno.EIO, "Input/output error")))
    assert (Kind.UNREADABLE, False) == (verify(path).kind, verify(path).forbidden)

    monkeypatch.setattr(files, "read_seal", lambda *_: _raise(OSError(errno.EACCES, "Permission denied")))
    assert (Kind.UNREADABLE, True) == (verify(path).kind, verify(path).forbidden)


def _raise(error: OSError) -> None:
    raise error


def test_missing_files_links_to_nowhere_and_pipes_are_unreadable(tmp_path: Path) -> None:
    """What is neither a file nor a folder gets a verdict, never an exception."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")

    for name in ("missing", "loop", "pipe"):
        assert Kind.UNREADABLE is verify(tmp_path / name).kind


def test_a_file_that_changes_while_it_is_read_gets_no_verdict_about_its_bytes(
    make_zip: MakeSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write during the read makes the finding void."""
    path = make_zip("a.pt")
    real = files.read_seal

    def and_write(*arguments: object) -> object:
        with path.open("ab") as file:
            file.write(b"more")
        return real(*arguments)

    monkeypatch.setattr(files, "read_seal", and_write)

    assert Kind.INCOMPLETE is verify(path).kind


def test_published_empty_content_is_still_refused(tmp_path: Path) -> None:
    """An empty file is no snapshot, sealed or not."""
    publish(tmp_path / "a.pt", lambda file: None)

    assert Kind.TRUNCATED is verify(tmp_path / "a.pt").kind


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_compressed_record_is_corrupt(tmp_path: Path, method: int) -> None:
    """Whatever error a compression has of its own, the verdict is about the bytes."""
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a", bytes(range(256)) * 100)
    assert Kind.INTACT is verify(path).kind
    data = bytearray(path.read_bytes())
    data[45:65] = bytes(20)
    path.write_bytes(data)

    assert Kind.CORRUPT is verify(path).kind


def test_an_end_record_that_lies_costs_no_memory(make_zip: MakeSnapshot) -> None:
    """A directory said to be as large as the file is refused before it is read."""
    path = make_zip("a.pt", size=50_000)
    data = bytearray(path.read_bytes())
    end = data.rfind(b"PK\x05\x06")
    data[end + 12 : end + 16] = (40_000).to_bytes(4, "little")
    path.write_bytes(data)

    assert (Kind.CORRUPT, True) == (verify(path).kind, "not where the end" in verify(path).reason)


def test_a_format_that_raises_anything_is_no_danger(make_zip: MakeSnapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody thought of is a verdict about the file, not the end of whoever judges a directory."""
    monkeypatch.setattr("lastgood.formats.torch_zip.records", lambda file: {}["nothing"])

    assert (Kind.CORRUPT, True) == (
        verify(make_zip("a.pt")).kind,
        "KeyError" in verify(make_zip("b.pt")).reason,
    )


def test_too_little_memory_is_no_fault_of_the_file(make_zip: MakeSnapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not judged; where a seal tells that the bytes are wrong, they are, and only the damage has no name."""

    def fail(*_: object) -> None:
        raise MemoryError

    path, sealed = make_zip("a.pt"), make_zip("b.pt")
    seal(sealed)
    flip_bit(sealed, 100)
    monkeypatch.setattr("lastgood.formats.torch_zip.records", fail)
    verdict = verify(path)

    assert (Kind.UNREADABLE, errno.ENOMEM, True) == (verdict.kind, verdict.errno, "memory" in verdict.reason)
    assert (Kind.CORRUPT, Proof.SEAL) == (verify(sealed).kind, verify(sealed).proof)


def test_too_little_memory_for_a_compressed_record_is_none_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What unpacks it raises of its own, but that means nothing about the bytes."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(5000))

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(zipfile.ZipExtFile, "read", fail)

    assert Kind.UNREADABLE is verify(tmp_path / "a.npz").kind


def test_of_no_tensors_none_are_counted(tmp_path: Path) -> None:
    """A cut file that holds none has nothing left to count."""
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as out:
        out.writestr("ck/data.pkl", pickle.dumps({"iter_num": 1}, 2))
        out.writestr("ck/version", b"3\n")
    data = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(data[:-30])
    verdict = verify(tmp_path / "a.pt")

    assert (Kind.TRUNCATED, False) == (verdict.kind, "tensors" in verdict.reason)


@pytest.mark.parametrize(
    ("note", "kind"),
    [
        ({"source": "a.pt", "lost": ["w"]}, Kind.INCOMPLETE),
        ({"source": ["deep"], "lost": ["w"]}, Kind.INCOMPLETE),
        ({"source": "x" * 100_000, "lost": ["w"]}, Kind.INCOMPLETE),
        ({"lost": []}, Kind.INTACT),
        ({"lost": 5}, Kind.INTACT),
        (["lost"], Kind.INTACT),
    ],
)
def test_a_note_of_a_salvage_may_say_anything(tmp_path: Path, note: object, kind: Kind) -> None:
    """Whatever somebody put where a salvage says what is lost, there is a verdict, and its reason is short."""
    path = tmp_path / "ckpt_00000001.pt"
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("ck/data.pkl", pickle.dumps({"iter_num": 1, "lastgood_salvage": note}, 2))
    verdict = verify(path)

    assert (kind, True) == (verdict.kind, len(verdict.reason) < 500)

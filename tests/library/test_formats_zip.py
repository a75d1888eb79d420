"""Archives of every writer are taken; of the damaged ones none that torch would refuse or read otherwise."""

import io
import os
import pickle
import random
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lastgood.formats import torch_damaged, torch_zip, zip_records
from lastgood.formats.raw_zip import READ_COST_BYTES
from lastgood.judging import verify
from lastgood.verdict import Kind, Proof
from tests.library.made import record_places, same, saved, zip_around
from tests.library.test_judging import seal

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

CONTENT = {"w": torch.arange(3.0), "b": torch.ones(1, dtype=torch.int64)}


class Scripted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + torch.ones(2) * 3


def repacked(path: Path, method: int = zipfile.ZIP_STORED, zip64: bool = False) -> Path:
    """The same records as Python's zipfile writes them."""
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in records.items():
            with archive.open(name, "w", force_zip64=zip64) as record:
                record.write(data)
    return path


def widened(path: Path) -> Path:
    """The same archive with every number of its directory in zip64 fields, as one of many gigabytes has them."""
    with zipfile.ZipFile(path) as archive:
        entries, start = archive.infolist(), archive.start_dir
    content = path.read_bytes()
    directory = b""
    for one in entries:
        name = one.filename.encode()
        extra = struct.pack("<2H3Q", 1, 24, one.file_size, one.compress_size, one.header_offset)
        most = 0xFFFFFFFF
        directory += struct.pack(
            "<4s6H3L5H2L", b"PK\x01\x02", 0, 45, one.flag_bits, 0, 0, 33, one.CRC, most, most,
            len(name), len(extra), 0, 0, 0, 0, most,
        ) + name + extra  # fmt: skip
    end = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, len(entries), len(entries), len(directory), start)
    end += struct.pack("<4sLQL", b"PK\x06\x07", 0, start + len(directory), 1)
    end += struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path.write_bytes(content[:start] + directory + end)
    return path


ARCHIVES: dict[str, Callable[[Path], Path]] = {
    "torch": lambda path: saved(path, CONTENT),
    "torch without checksums": lambda path: saved(path, CONTENT, "zip without checksums"),
    "zipfile": lambda path: repacked(saved(path, CONTENT)),
    "zipfile, zip64": lambda path: repacked(saved(path, CONTENT), zip64=True),
    "zipfile, compressed": lambda path: repacked(saved(path, CONTENT), zipfile.ZIP_DEFLATED),
    "zip64 throughout": lambda path: widened(saved(path, CONTENT)),
}


@pytest.mark.parametrize("made", ARCHIVES)
def test_no_flipped_bit_passes_that_torch_would_notice(quick_path: Path, made: str) -> None:
    """Every single bit, without checksums every one outside of the records: rejected, or torch loads just what was saved."""
    path = ARCHIVES[made](quick_path / "a.pt")
    whole = path.read_bytes()
    expected = Kind.UNPROVEN if made == "torch without checksums" else Kind.INTACT
    assert (expected, True) == (verify(path).kind, same(CONTENT, torch.load(path)))
    skipped = {at for place in record_places(whole) for at in place} if expected is Kind.UNPROVEN else set()
    with path.open("r+b", buffering=0) as file:
        for at in sorted(set(range(len(whole))) - skipped):
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([whole[at] ^ 1 << bit]), at)
                if verify(path).usable and not in_padding(whole, at):
                    assert same(CONTENT, torch.load(path)), (at, bit)
            os.pwrite(file.fileno(), whole[at : at + 1], at)


def in_padding(whole: bytes, at: int) -> bool:
    """Whether a byte is one of those that torch fills up with, where every bit means as much as any other."""
    return whole[max(0, at - 1) : at + 2] == b"ZZZ"


@pytest.mark.parametrize("how", ["script", "trace"])
def test_jit_archives_are_taken(tmp_path: Path, how: str) -> None:
    """Models of torch.jit, with compressed records and constants of their own, are proven; inside are their tensors."""
    model, path = Scripted(), tmp_path / "a.pt"
    one = torch.jit.script(model) if how == "script" else torch.jit.trace(model, torch.ones(1, 2))
    torch.jit.save(one, str(path), _extra_files={"note.txt": "hello"})

    assert (Kind.INTACT, Proof.CRC) == (verify(path).kind, verify(path).proof)
    with path.open("rb") as file:
        inside = torch_zip.inside(file)
        assert {"one.weight", "one.bias"} == {part.name for part in inside.tensors}


def test_damage_in_jit_archives_is_found(tmp_path: Path) -> None:
    """200 seeded flips in every part, the compressed ones included: rejected, or the model gives what it gave."""
    model, path = Scripted(), tmp_path / "a.pt"
    torch.jit.save(torch.jit.trace(model, torch.ones(1, 2)), str(path))
    whole, generator, rejected = path.read_bytes(), random.Random(3), 0
    for at in (generator.randrange(len(whole)) for _ in range(200)):
        data = bytearray(whole)
        data[at] ^= 1 << generator.randrange(8)
        path.write_bytes(data)
        if verify(path).usable:
            assert torch.equal(model(torch.ones(1, 2)), torch.jit.load(str(path))(torch.ones(1, 2)))
        else:
            rejected += 1
    for place in record_places(whole):
        data = bytearray(whole)
        if place:
            data[place[len(place) // 2]] ^= 4
            path.write_bytes(data)

            assert Kind.CORRUPT is verify(path).kind, place
    assert rejected > 50


def test_a_constant_that_is_missing_is_noticed(tmp_path: Path) -> None:
    """The second pickle of a jit archive has storages of its own."""
    path = tmp_path / "a.pt"
    torch.jit.save(torch.jit.trace(Scripted(), torch.ones(1, 2)), str(path))
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in records.items():
            if not name.endswith("/constants/0"):
                archive.writestr(name, data)

    assert (Kind.CORRUPT, "storage '0' is named in constants.pkl but missing") == (
        verify(path).kind,
        verify(path).reason,
    )


def test_a_folder_that_is_a_tensor_is_damage(tmp_path: Path) -> None:
    """torch reads nothing of what the directory calls a folder, and loads whatever was in memory."""
    path = saved(tmp_path / "a.pt", {"w": torch.ones(100)})
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1)
    while b"data/0" not in data[entry : entry + 80]:
        entry = data.index(b"PK\x01\x02", entry + 1)
    data[entry + 38] |= 0x10
    path.write_bytes(data)

    assert (Kind.CORRUPT, True) == (verify(path).kind, "data/0' makes no sense" in verify(path).reason)


def cut(path: Path, length: int) -> Path:
    path.write_bytes(path.read_bytes()[:length])
    return path


@pytest.mark.parametrize("sealed", [False, True])
def test_a_cut_file_says_how_much_is_left(tmp_path: Path, sealed: bool) -> None:
    """Where it ends, where it should end at least, and how many of its tensors are whole."""
    path = saved(tmp_path / "a.pt", {f"w{i}": torch.rand(1000) for i in range(44)})
    if sealed:
        seal(path)
    places = record_places(path.read_bytes())
    last, some = max(place.stop for place in places[4:48]), places[4 + 40].stop
    verdict = verify(cut(path, some + 20))
    expected = f"ends at byte {some + 20:,} without a central directory, of at least {last:,}; 41 of 44 tensors intact"

    assert (Kind.TRUNCATED, True) == (verdict.kind, verdict.reason.endswith(expected)), verdict.reason


def test_a_cut_file_without_checksums_says_what_is_there(tmp_path: Path) -> None:
    """Nothing proves the tensors that are left, and that is said."""
    path = saved(tmp_path / "a.pt", {f"w{i}": torch.rand(1000) for i in range(9)}, "zip without checksums")
    verdict = verify(cut(path, record_places(path.read_bytes())[8].stop + 20))

    assert "; 5 of 9 tensors there, without checksums" in verdict.reason


def test_a_file_cut_within_its_pickle_says_no_more_than_it_knows(tmp_path: Path) -> None:
    """Without the structure there is nothing to count."""
    path = cut(saved(tmp_path / "a.pt", CONTENT), 200)

    assert "ends at byte 200 without a central directory" == verify(path).reason


def test_counting_what_is_left_costs_no_more_than_reading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file made to look like a thousand headers is given up on, and called what it is."""
    path = saved(tmp_path / "a.pt", {f"w{i}": torch.rand(10) for i in range(500)})
    cut(path, path.stat().st_size - 40_000)
    assert "tensors intact" in verify(path).reason

    monkeypatch.setattr(torch_damaged, "LOOK_BYTES", 20 * READ_COST_BYTES)
    assert (Kind.TRUNCATED, False) == (verify(path).kind, "tensors" in verify(path).reason)


def test_a_damaged_tensor_is_counted_among_all(tmp_path: Path) -> None:
    """The reason says how many of the tensors the damage spares; tied ones count by name."""
    weight = torch.rand(1000)
    path = saved(tmp_path / "a.pt", {"a": weight, "tied": weight, **{f"w{i}": torch.rand(10) for i in range(5)}})
    data = bytearray(path.read_bytes())
    data[record_places(bytes(data))[4].start + 100] ^= 1
    path.write_bytes(data)

    assert "(5 of 7 tensors intact)" in verify(path).reason


def naming_storage(count: int, shape: int = 1, offset: int = 0) -> bytes:
    """A pickle of one float32 tensor in a storage of `count` elements."""
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuJ" + struct.pack(
        "<i", count
    )
    view = (
        b"J"
        + struct.pack("<i", offset)
        + b"J"
        + struct.pack("<i", shape)
        + b"\x85K\x01\x85\x89ccollections\nOrderedDict\n)R"
    )
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"tQ" + view + b"tR."


@pytest.mark.parametrize(
    ("pickle", "reason"),
    [
        (naming_storage(10), ""),
        (naming_storage(10, shape=10), ""),
        (naming_storage(10, shape=11), "reaches beyond storage '0', which has 40 bytes"),
        (naming_storage(10, shape=1, offset=10), "reaches beyond storage"),
        (naming_storage(10, shape=-1), "makes no sense"),
        (naming_storage(9), "has 40 bytes where data.pkl names 36"),
        (naming_storage(-1), "where data.pkl names -4"),
        (naming_storage(10)[:-1], "no whole pickle"),
        (naming_storage(10) + b"N.", "no whole pickle"),
    ],
)
def test_structure_that_torch_would_refuse_is_damage(tmp_path: Path, pickle: bytes, reason: str) -> None:
    """A tensor must lie within its storage, and a storage be as large as it is said to be, whatever the checksums say."""
    path = tmp_path / "a.pt"
    path.write_bytes(zip_around(pickle, {"0": bytes(40)}))
    verdict = verify(path)

    assert (Kind.CORRUPT if reason else Kind.INTACT, True) == (verdict.kind, reason in verdict.reason), verdict.reason
    with warnings.catch_warnings(action="ignore"):
        if reason and "follow" not in verdict.reason and "names" not in reason:
            with pytest.raises(Exception, match=""):
                torch.load(path)


def test_records_beyond_every_limit_are_unproven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More records, or more to unpack, than anybody saves: nothing is wrong with it, and nothing proven. The bytes are hashed."""
    path = saved(tmp_path / "a.pt", CONTENT)
    monkeypatch.setattr(zip_records, "MAX_RECORDS", 3)
    verdict = verify(path)
    assert (Kind.UNPROVEN, 64, True) == (verdict.kind, len(verdict.sha256 or ""), "its 8 records" in verdict.reason)

    monkeypatch.undo()
    monkeypatch.setattr(torch_zip, "MAX_UNPACKED_BYTES", 10)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(1 << 20))
    assert (Kind.UNPROVEN, True) == (verify(path).kind, "they make 1,048,576 bytes" in verify(path).reason)


def test_a_compressed_structure_is_read_as_well(tmp_path: Path) -> None:
    """Somebody packed the archive anew: its storages are counted, its step is found."""
    path = repacked(saved(tmp_path / "ckpt.pt", {**CONTENT, "iter_num": 77}), zipfile.ZIP_DEFLATED)

    assert (Kind.INTACT, 77) == (verify(path).kind, verify(path).step)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_storage_that_is_there_twice_is_damage(tmp_path: Path) -> None:
    """Nobody can know which one is meant; an archive that is none of torch's may hold what it likes."""
    path = saved(tmp_path / "a.pt", CONTENT)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(archive.namelist()[0].replace("data.pkl", "data/0"), bytes(12))
    assert (Kind.CORRUPT, "two of its records have one name") == (verify(path).kind, verify(path).reason)

    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        for _ in range(2):
            archive.writestr("a/b", b"xy")
    assert Kind.INTACT is verify(tmp_path / "b.npz").kind


def test_an_archive_that_claims_to_hold_itself_costs_nothing(tmp_path: Path) -> None:
    """Entries that share their bytes, or a directory of a billion entries, are refused before anything is unpacked."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02N.")
        for number in range(3):
            archive.writestr(f"a/{number}", bytes(100))
        for entry in archive.infolist()[2:]:
            entry.header_offset = archive.infolist()[1].header_offset
    path = tmp_path / "a.pt"
    path.write_bytes(buffer.getvalue())
    assert Kind.CORRUPT is verify(path).kind

    data = bytearray(saved(path, CONTENT).read_bytes())
    end = data.rindex(b"PK\x06\x06")
    for at in (24, 32):
        data[end + at : end + at + 8] = struct.pack("<Q", 1 << 30)
    data[end + 76 + 8 : end + 76 + 12] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    assert Kind.UNPROVEN is verify(path).kind


def test_a_save_that_failed_halfway_is_corrupt(tmp_path: Path) -> None:
    """torch.save closes its archive though it could not pickle what it was given: every checksum agrees, and nothing is in it."""
    path = tmp_path / "step_1.pt"
    with pytest.raises((pickle.PicklingError, AttributeError)):
        torch.save({"model": torch.ones(3), "collate": lambda batch: batch}, path)
    verdict = verify(path)

    assert (Kind.CORRUPT, True) == (verdict.kind, "did not get as far as its data.pkl" in verdict.reason)


@pytest.mark.parametrize(
    ("record", "content"),
    [("data.pkl", b""), ("data.pkl", b"junk"), ("version", b"garb"), ("byteorder", b"weird")],
)
def test_marks_of_torch_that_torch_would_refuse_are_corrupt(tmp_path: Path, record: str, content: bytes) -> None:
    """However well its checksums agree."""
    good, path = tmp_path / "good.pt", tmp_path / "step_1.pt"
    torch.save({"model": torch.ones(3)}, good)
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(path, "w") as target:
        for entry in source.infolist():
            named = entry.filename.partition("/")[2] == record
            target.writestr(entry.filename, content if named else source.read(entry))

    assert Kind.CORRUPT is verify(path).kind


def test_a_file_of_distributed_checkpoints_is_no_archive(tmp_path: Path) -> None:
    """It is several archives in a row: nothing is known about it, and nothing is wrong with it."""
    buffer = io.BytesIO()
    for _ in range(2):
        torch.save(torch.ones(100), buffer)
    path = tmp_path / "__0_0.distcp"
    path.write_bytes(buffer.getvalue())

    assert Kind.UNPROVEN is verify(path).kind


@pytest.mark.parametrize(
    "value", [{((1, 2), 3): 1}, {("a", ("b",)): 1}, {"seed": 10**3000}], ids=["nested", "text", "long"]
)
def test_what_this_reader_does_not_read_is_intact_by_its_checksums(tmp_path: Path, value: Any) -> None:
    """A key or a number that is beyond a limit here is no fault of the file."""
    path = tmp_path / "step_1.pt"
    torch.save(value, path)

    assert (Kind.INTACT, True) == (verify(path).kind, "was not read" in verify(path).reason)

"""Files of torch's older format: every length in them is accounted for; they hold no checksum, so nothing is proven."""

import io
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

from lastgood import pickles
from lastgood.formats import torch_legacy
from lastgood.judging import verify
from lastgood.verdict import Kind, Proof
from tests.library.made import legacy_around, saved
from tests.library.test_judging import seal


def content() -> dict[str, Any]:
    weight = torch.arange(20.0)
    return {
        "iter_num": 41,
        "w": weight,
        "over": weight[5:9],
        "b": torch.ones(3, dtype=torch.int64),
        "h": torch.ones(2).half(),
    }


@pytest.fixture
def path(quick_path: Path) -> Path:
    return saved(quick_path / "ckpt.pt", content(), "legacy")


def storage(key: str, count: int, view: bytes = b"N", kind: str = "FloatStorage") -> bytes:
    """The reference to a storage as this format has it, with six parts."""
    named = b"".join(b"X" + struct.pack("<L", len(text)) + text.encode() for text in (key, "cpu"))
    return (
        b"(X\x07\x00\x00\x00storagectorch\n"
        + kind.encode()
        + b"\n"
        + named
        + b"J"
        + struct.pack("<i", count)
        + view
        + b"tQ"
    )


def tensor(reference: bytes, shape: int, offset: int = 0) -> bytes:
    numbers = (
        b"J"
        + struct.pack("<i", offset)
        + b"J"
        + struct.pack("<i", shape)
        + b"\x85K\x01\x85\x89ccollections\nOrderedDict\n)R"
    )
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + reference + numbers + b"tR"


def test_a_whole_file_is_unproven_by_its_structure(path: Path) -> None:
    """All lengths agree, the bytes are hashed, and the step inside is found; a seal makes it healthy."""
    verdict = verify(path)
    assert (Kind.UNPROVEN, Proof.STRUCTURE, 41) == (verdict.kind, verdict.proof, verdict.step)
    assert "no checksums inside; the lengths of all 3 storages agree" in verdict.reason
    assert 64 == len(verdict.sha256 or "")

    seal(path)
    assert (Kind.HEALTHY, Proof.SEAL, 41) == (verify(path).kind, verify(path).proof, verify(path).step)


def test_every_cut_is_truncated(path: Path) -> None:
    """From the first byte to the last but one; behind the pickles with the length that it should have and what is there."""
    whole = path.read_bytes()
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        assert Kind.TRUNCATED is verify(path).kind, (length, verify(path))

    path.write_bytes(whole[:-1])
    assert f"ends at byte {len(whole) - 1:,} of {len(whole):,}; " in verify(path).reason
    assert " of 4 tensors there, without checksums" in verify(path).reason
    path.write_bytes(whole[:100])
    assert "ends at byte 100, within its pickles" in verify(path).reason


def test_a_cut_file_that_was_sealed_says_the_same(path: Path) -> None:
    """The seal condemns the bytes, and the structure says how."""
    seal(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])

    assert (Kind.TRUNCATED, Proof.SEAL) == (verify(path).kind, verify(path).proof)
    assert f"of {len(whole):,}; " in verify(path).reason


def test_bytes_that_follow_are_damage(path: Path) -> None:
    """However few, and however many."""
    whole = path.read_bytes()
    for more in (b"\0", whole):
        path.write_bytes(whole + more)
        assert (Kind.CORRUPT, f"{len(more):,} bytes follow its last storage") == (
            verify(path).kind,
            verify(path).reason,
        )


@pytest.mark.parametrize(("start", "length"), [(0, 512), (0, 16), (1, 8), (10, 16), (16, 8), (64, 64), (256, 256)])
def test_zeros_at_the_beginning_are_damage(path: Path, start: int, length: int) -> None:
    """A page that was not written, or a part of one, wherever in the pickles it begins."""
    data = bytearray(path.read_bytes())
    data[start : start + length] = bytes(length)
    path.write_bytes(data)

    assert Kind.CORRUPT is verify(path).kind, verify(path)


def test_the_count_before_each_storage_must_be_right(path: Path) -> None:
    """It says how many elements follow, and both sides must agree."""
    data = bytearray(path.read_bytes())
    at = data.index(struct.pack("<20f", *range(20))) - 8
    assert 20 == data[at]
    data[at] = 21
    path.write_bytes(data)

    assert (Kind.CORRUPT, True) == (
        verify(path).kind,
        "says that it has 21 elements where the payload names 20" in verify(path).reason,
    )


@pytest.mark.parametrize(
    ("payload", "storages", "reason"),
    [
        (tensor(storage("7", 3), 3), {"7": (3, bytes(12))}, ""),
        (tensor(storage("7", 3, b"X\x01\x00\x00\x009K\x01K\x02\x87"), 2), {"7": (3, bytes(12))}, ""),
        (tensor(storage("7", 3, b"X\x01\x00\x00\x009K\x02K\x01\x87"), 2), {"7": (3, bytes(12))}, "reaches beyond storage '7'"),
        (tensor(storage("7", 3), 4), {"7": (3, bytes(12))}, "reaches beyond storage '7'"),
        (tensor(storage("7", 3), 2, offset=2), {"7": (3, bytes(12))}, "reaches beyond storage '7'"),
        (tensor(storage("7", 3), 3), {"8": (3, bytes(12))}, "list of storages is another"),
        (tensor(storage("7", 3), 3), {}, "list of storages is another"),
        (b"N", {"7": (3, bytes(12))}, "list of storages is another"),
        (tensor(storage("7", -3), 3), {"7": (-3, b"")}, "absurd size"),
        (b"(" + storage("7", 3) + storage("7", 4) + b"t", {"7": (3, bytes(12))}, "two sizes"),
        (tensor(storage("7", 3), 3), {"7": (3, bytes(8))}, "ends at byte"),
        (tensor(storage("7", 3), 3), {"7": (3, bytes(16))}, "4 bytes follow"),
    ],
)  # fmt: skip
def test_the_structure_must_agree_with_itself(
    tmp_path: Path, payload: bytes, storages: dict[str, tuple[int, bytes]], reason: str
) -> None:
    """Tensors with views of storages as old versions wrote them, the list of storages, and the storages themselves."""
    path = tmp_path / "a.pt"
    path.write_bytes(legacy_around(b"\x80\x02" + payload + b".", storages))
    verdict = verify(path)

    assert (bool(reason), True) == (not verdict.usable, reason in verdict.reason), verdict


def test_a_view_of_a_storage_is_found_where_it_is(tmp_path: Path) -> None:
    """Its tensors count from where it begins."""
    data = struct.pack("<3f", 1, 2, 3)
    path = tmp_path / "a.pt"
    path.write_bytes(
        legacy_around(
            b"\x80\x02" + tensor(storage("7", 3, b"X\x01\x00\x00\x009K\x01K\x02\x87"), 2) + b".", {"7": (3, data)}
        )
    )
    with path.open("rb") as file:
        (part,) = torch_legacy.inside(file).tensors

    assert part.start is not None
    assert data[4:] == path.read_bytes()[part.start : part.start + part.span]


def test_a_storage_of_an_unknown_type_is_no_damage(tmp_path: Path) -> None:
    """Newer versions may write types that this software does not know, and then nothing can be counted."""
    path = tmp_path / "a.pt"
    path.write_bytes(legacy_around(b"\x80\x02" + storage("7", 3, kind="QuiteNewStorage") + b".", {"7": (3, bytes(12))}))

    assert (Kind.UNPROVEN, True) == (verify(path).kind, "is of a type that is not known here" in verify(path).reason)


def test_what_is_inside_is_told_without_reading_the_tensors(path: Path) -> None:
    """Names, dtypes, shapes and places; the elements are little-endian whatever machine wrote them, which is told too."""
    whole = path.read_bytes()
    with path.open("rb") as file:
        inside = torch_legacy.inside(file)
        parts = {part.name: part for part in inside.tensors}

    assert ("float32", (20,), 80) == (parts["w"].dtype, parts["w"].shape, parts["w"].bytes)
    assert ("int64", "float16") == (parts["b"].dtype, parts["h"].dtype)
    for name, value in content().items():
        if name != "iter_num":
            start = parts[name].start
            assert start is not None
            assert value.numpy().tobytes() == whole[start : start + parts[name].span]
    assert {"version": "1001", "byteorder": "little"} == inside.notes

    path.write_bytes(whole.replace(b"little_endianq\x02\x88", b"little_endianq\x02\x89"))
    with path.open("rb") as file:
        assert "big-endian" == torch_legacy.inside(file).notes["machine"]


def test_pickles_longer_than_the_first_look_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many bytes as they take, up to a limit behind which nothing is said of them."""
    path = saved(tmp_path / "a.pt", {"text": "x" * 5000, "w": torch.ones(3)}, "legacy")
    monkeypatch.setattr(torch_legacy, "WINDOW_BYTES", 100)
    assert "the lengths of all 1 storages agree" in verify(path).reason

    monkeypatch.setattr(pickles, "MAX_BYTES", 3000)
    assert (Kind.UNPROVEN, True) == (verify(path).kind, "longer than 3,000 bytes" in verify(path).reason)


def test_other_pickles_and_older_archives_are_not_taken_for_it(tmp_path: Path) -> None:
    """A plain pickle and the tar archives of torch 0.1 are of no known kind: unproven, and nothing more is said."""
    (tmp_path / "a.pt").write_bytes(pickle.dumps({"step": 3}, 2))
    with tarfile.open(tmp_path / "b.pt", "w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("storages", "tensors", "pickle", "sys_info"):
            member = tarfile.TarInfo(name)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"abc"))

    for name in ("a.pt", "b.pt"):
        assert (Kind.UNPROVEN, True) == (verify(tmp_path / name).kind, "known here" in verify(tmp_path / name).reason)

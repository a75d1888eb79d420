"""Safetensors files: header, places and length must agree as the format demands; there is no checksum in them."""

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from lastgood import formats
from lastgood.formats import safetensors as product
from lastgood.judging import verify
from lastgood.verdict import Kind, Proof
from tests.library.made import Tensors, safetensors, with_header
from tests.library.test_judging import seal

TENSORS: Tensors = {
    "model.w": ("F32", [2, 3], struct.pack("<6f", *range(6))),
    "model.b": ("BF16", [4], bytes(8)),
    "none": ("I64", [0, 5], b""),
    "scalar": ("U8", [], b"\x07"),
}


def judged(tmp_path: Path, content: bytes) -> tuple[Kind, str]:
    """Kind and reason of the verdict about a file with this content."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    verdict = verify(path)
    return verdict.kind, verdict.reason


def one(dtype: str = "U8", shape: Any = (2,), offsets: Any = (0, 2), data: bytes = b"xx", more: str = "") -> bytes:
    """A file with one tensor, about which anything may be said."""
    entry = json.dumps({"dtype": dtype, "shape": shape, "data_offsets": offsets})
    return with_header('{"a":' + entry + more + "}", data)


def test_a_whole_file_is_unproven_by_its_structure(tmp_path: Path) -> None:
    """All places agree, the bytes are hashed, and the step among its metadata is found; a seal makes it healthy."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors(TENSORS, {"format": "pt", "step": "1200"}))
    verdict = verify(path)
    assert (Kind.UNPROVEN, Proof.STRUCTURE, 1200) == (verdict.kind, verdict.proof, verdict.step)
    assert "the places of all 4 tensors agree" in verdict.reason
    assert 64 == len(verdict.sha256 or "")

    seal(path)
    assert (Kind.HEALTHY, Proof.SEAL, 1200) == (verify(path).kind, verify(path).proof, verify(path).step)


def test_what_is_inside_is_told(tmp_path: Path) -> None:
    """Names, dtypes as torch calls them, shapes and places; metadata that are whole numbers come out as such."""
    path = tmp_path / "model.safetensors"
    content = safetensors(TENSORS, {"format": "pt", "step": "1200", "v": "1.5", "long": "9" * 30})
    path.write_bytes(content)
    with path.open("rb") as file:
        module = formats.format_of(file, len(content))
        assert product is module
        inside = product.inside(file)
        parts = list(inside.tensors)

    assert {"format": "pt", "step": 1200, "v": "1.5", "long": "9" * 30} == inside.top
    assert [("model.w", "float32", (2, 3), 24), ("model.b", "bfloat16", (4,), 8)] == [
        (part.name, part.dtype, part.shape, part.bytes) for part in parts[:2]
    ]
    assert TENSORS["model.w"][2] == content[parts[0].start : (parts[0].start or 0) + parts[0].span]


@pytest.mark.parametrize("dtype", product.BITS)
def test_every_dtype_is_taken_in_the_right_size_only(tmp_path: Path, dtype: str) -> None:
    """Those that share bytes as well: eight elements take as many bytes as one takes bits."""
    bits = product.BITS[dtype]
    for count in (0, 8, 64):
        data = bytes(count * bits // 8)
        assert Kind.UNPROVEN is judged(tmp_path, one(dtype, [count], [0, len(data)], data))[0]
        assert Kind.CORRUPT is judged(tmp_path, one(dtype, [count], [0, len(data) + 1], data + b"x"))[0]
    if bits < 8:
        assert Kind.CORRUPT is judged(tmp_path, one(dtype, [3], [0, 2], b"xx"))[0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (with_header("{}"), ""),
        (with_header('{"__metadata__":null}'), ""),
        (one(more="   "), ""),
        (with_header('{"__metadata__":{"a":"b"}}' + " " * 9), ""),
        (one("Q8"), "dtype 'Q8' is not known here"),
        (one(shape=[0, 1 << 63], offsets=[0, 0], data=b""), ""),
    ],
)  # fmt: skip
def test_what_the_format_allows_is_taken(tmp_path: Path, content: bytes, reason: str) -> None:
    """No tensors, no metadata, padding behind the header, dtypes that are newer than this software."""
    kind, said = judged(tmp_path, content)

    assert (Kind.UNPROVEN, True) == (kind, reason in said)


INFO = '{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (with_header("{}", b"x"), "1 bytes follow its last tensor"),
        (with_header(f'{{"a":{INFO},"a":{INFO}}}', b"xx"), "a key occurs twice"),
        (with_header('{"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"xx"), "a key occurs twice"),
        (with_header('{"__metadata__":{"step":5}}'), "its metadata is no text"),
        (with_header('{"__metadata__":[]} x'), "makes no sense"),
        (with_header('{"a": [1]}'), "makes no sense"),
        (with_header('{"a": {}}'), "makes no sense"),
        (with_header('{"a": NaN}'), "makes no sense"),
        (with_header('{"a":' + INFO + "}\0", b"xx"), "makes no sense"),
        (with_header(b'{"\xff":{}}'), "makes no sense"),
        (with_header('{"\\ud800":' + INFO + "}", b"xx"), "makes no sense"),
        (with_header("{" + "\n" * 5), "makes no sense"),
        (with_header('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"), "makes no sense"),
        (with_header('{"a":' + '{"a":' * 100_000), "makes no sense"),
        (with_header('{"a":' + "9" * 5000 + "}"), "makes no sense"),
        (one(shape=[2.0]), "a number that is no size"),
        (one(shape=[-2]), "a number that is no size"),
        (one(shape=[True, 2]), "a number that is no size"),
        (one(shape=[1 << 64, 0]), "a number that is no size"),
        (one(shape="22"), "no dtype or no shape"),
        (one(dtype=3), "no dtype or no shape"),  # type: ignore[arg-type]
        (one(offsets=[0, 2, 2]), "makes no sense"),
        (one(shape=[1 << 40, 1 << 40, 0]), "larger than any file"),
        (one(offsets=[1, 3], data=b"xxx"), "is at bytes 1 to 3, where the one before ends at 0"),
        (one(offsets=[2, 0]), "is at bytes 2 to 0"),
        (one(shape=[3]), "has 2 bytes for 3 elements of U8"),
        (one(more=f',"b":{INFO}'), "'b' is at bytes 0 to 2, where the one before ends at 2"),
        (one(more=',"b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}'), "'b' is at bytes 1 to 1"),
        (one(data=b"xxx"), "1 bytes follow its last tensor"),
        (one(data=b"x"), "ends at byte 68 of 69; 0 of 1 tensors there, without checksums"),
        (with_header("{}", length=3), "ends at byte 10, within its header of 3 bytes"),
        (with_header('{"a":' + INFO + "}", b"xx", length=100_000_001), "100,000,001 bytes, which the format forbids"),
        (with_header('{"a":' + INFO + "}", b"xx", length=50 | 1 << 60), "which the format forbids"),
        (with_header('{"a":' + INFO + "}", b"xx", length=51), "makes no sense"),
        (with_header('{"a":' + INFO + "}", b"xx", length=0), "makes no sense"),
    ],
)  # fmt: skip
def test_what_the_format_forbids_is_damage(tmp_path: Path, content: bytes, reason: str) -> None:
    """Gaps, overlaps, sizes that differ, twice the same key, headers that are no JSON or too deep: each is named."""
    kind, said = judged(tmp_path, content)

    assert (Kind.TRUNCATED if "ends at byte" in reason else Kind.CORRUPT, True) == (kind, reason in said), said


def test_every_cut_is_noticed(quick_path: Path) -> None:
    """From the fifth byte on; behind the header with the length that it should have and the tensors that are there."""
    whole = safetensors(TENSORS)
    for length in range(5, len(whole)):
        kind, reason = judged(quick_path, whole[:length])
        assert Kind.TRUNCATED is kind, (length, reason)

    assert (
        f"ends at byte {len(whole) - 1:,} of {len(whole):,}; 3 of 4 tensors there" in judged(quick_path, whole[:-1])[1]
    )


def test_seeded_damage_to_the_header_is_noticed_or_changes_nothing_that_counts(quick_path: Path) -> None:
    """500 flips in header and length: rejected, or every tensor still has its place, its size and some name."""
    whole = safetensors(TENSORS, {"step": "5"})
    header_end, generator, rejected = 8 + struct.unpack_from("<Q", whole)[0], random.Random(2), 0
    for _ in range(500):
        data = bytearray(whole)
        data[generator.randrange(header_end)] ^= 1 << generator.randrange(8)
        kind, reason = judged(quick_path, bytes(data))
        rejected += kind is not Kind.UNPROVEN
        if kind is Kind.UNPROVEN and "that are known here" not in reason:
            assert f"the places of all {len(TENSORS)} tensors agree" in reason
    assert rejected > 300


def test_a_header_beyond_what_is_read_is_unproven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The format allows it, reading it would cost too much: nothing is said of it, and the bytes are hashed."""
    monkeypatch.setattr(product, "MAX_READ_BYTES", 50)
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors(TENSORS))
    verdict = verify(path)

    assert (Kind.UNPROVEN, 64, True) == (
        verdict.kind,
        len(verdict.sha256 or ""),
        "longer than is read" in verdict.reason,
    )


def test_text_that_looks_a_little_like_it_is_something_else(tmp_path: Path) -> None:
    """Eight characters and a bracket are no length and header."""
    for content in (b'var x = {"a": 1}', b"\x10\0\0\0\0\0\0\0PK", b'{"step": 5}', b"\x05"):
        assert "known here" in judged(tmp_path, content)[1]

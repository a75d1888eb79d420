"""Ten thousand random damages, each of which changes the bytes: with a seal none passes, and without one no wrong tensor does.

The seed of a damage is its number; a failure names it, and `damaged(content, random.Random(number))` makes it again.
"""

import io
import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lastgood.judging import verify
from lastgood.sealing import seal_snapshot
from lastgood.verdict import Kind, Proof

DAMAGES = 2_500  # for each of the four kinds of snapshot
PAGE = 512  # the snapshots are small, and so is a page of them

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32,
    torch.uint64, torch.bool, torch.complex32, torch.complex64, torch.complex128,
]  # fmt: skip
SIZES = [0, 1, 2, 3, 7, 63, 64, 65, 1000]


def state(seed: int = 0) -> dict[str, Any]:
    """What a small trainer saves: a model, an optimizer with moments, numbers and text."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(40, 13, generator=generator)
    return {
        "model": {"weight": weight, "tied": weight, "bias": torch.randn(40, generator=generator).half()},
        "optimizer": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(40, 13, generator=generator)}}},
        "iter_num": 12,
        "config": {"name": "small", "learning_rate": 1e-3},
    }


def as_zip(value: Any) -> bytes:
    """What torch.save writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def as_legacy(value: Any) -> bytes:
    """What torch.save wrote before 1.6."""
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def as_safetensors(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    """A safetensors file of (dtype, shape, bytes) by name, by the letter of its description."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position, data = 0, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + len(content)]}
        position, data = position + len(content), data + content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def some_safetensors() -> bytes:
    """Three tensors of random bytes."""
    rng = random.Random(5)
    return as_safetensors(
        {
            "weight": ("F32", [40, 13], rng.randbytes(4 * 40 * 13)),
            "bias": ("BF16", [40], rng.randbytes(80)),
            "step": ("I64", [], rng.randbytes(8)),
        }
    )


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Other bytes: a flip, a cut, zeros in the middle or at the end, blocks swapped or doubled, bytes put behind."""
    while True:
        data = bytearray(content)
        at, other = rng.randrange(len(data)), rng.randrange(len(data))
        size = rng.choice([1, 8, 64, PAGE])
        match rng.randrange(7):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:]
            case 2:
                start = at // PAGE * PAGE
                data[start : start + PAGE] = bytes(len(data[start : start + PAGE]))
            case 3:
                data[at:] = bytes(len(data) - at)
            case 4:
                one, two = bytes(data[at : at + size]), bytes(data[other : other + size])
                data[at : at + len(two)], data[other : other + len(one)] = two, one
            case 5:
                data[other:other] = data[at : at + size]
            case 6:
                data += rng.choice([rng.randbytes(size), bytes(size), bytes(data[at : at + size])])
        if data != content:
            return bytes(data)


def same(one: Any, other: Any) -> bool:
    """Whether two payloads hold the same, tensors by their bits."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return (
            one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()
        )
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return bool(type(one) is type(other) and one == other)


@pytest.mark.parametrize(
    ("name", "make", "best"),
    [
        ("step_12.pt", lambda: as_zip(state()), Kind.INTACT),
        ("step_13.pt", lambda: as_legacy(state()), Kind.UNPROVEN),
        ("step_14.safetensors", some_safetensors, Kind.UNPROVEN),
    ],
    ids=["zip", "legacy", "safetensors"],
)
def test_no_damage_to_a_sealed_file_passes_and_unsealed_none_with_other_tensors(
    name: str, make: Callable[[], bytes], best: Kind, quick_path: Path
) -> None:
    """The seal rejects all; checksums inside reject all whose tensors differ; without either nothing is called proven."""
    content = make()
    sealed, bare = quick_path / name, quick_path / "unsealed" / name
    bare.parent.mkdir()
    for path in (sealed, bare):
        path.write_bytes(content)
    assert best is verify(bare).kind
    seal_snapshot(sealed)
    good = torch.load(bare, weights_only=True) if best is Kind.INTACT else None
    for number in range(DAMAGES):
        data = damaged(content, random.Random(number))
        for path in (sealed, bare):
            path.write_bytes(data)
        kept, found = verify(sealed), verify(bare)

        assert kept.kind in (Kind.CORRUPT, Kind.TRUNCATED), (number, kept)
        assert kept.proof is Proof.SEAL or not data, (number, kept)
        assert found.kind is not Kind.HEALTHY
        if found.proven:
            assert good is not None, (number, found)
            assert same(good, torch.load(bare, weights_only=True)), (number, found)
        if len(data) < len(content) and content.startswith(data):
            assert not found.usable, (number, found)


def test_no_damage_to_a_file_of_a_sealed_folder_passes(quick_path: Path) -> None:
    """Whichever file it is in; files that are gone, called otherwise or exchanged are found too."""
    folder = quick_path / "checkpoint-12"
    folder.mkdir()
    contents = {
        "model.safetensors": some_safetensors(),
        "optimizer.pt": as_zip(state()["optimizer"]),
        "rng_state.pth": as_legacy({"cpu": torch.arange(30)}),
        "trainer_state.json": json.dumps({"global_step": 12, "log_history": list(range(50))}).encode(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    assert Kind.UNPROVEN is verify(folder).kind
    seal_snapshot(folder)
    for number in range(DAMAGES):
        rng = random.Random(number)
        name, other = rng.sample(sorted(contents), 2)
        changed = {name: damaged(contents[name], rng)}
        if number % 10 == 0:
            changed = {name: contents[other], other: contents[name]}
        for changing, data in changed.items():
            (folder / changing).write_bytes(data)
        if number % 10 == 1:
            (folder / name).unlink()
        verdict = verify(folder)
        for changing in changed:
            (folder / changing).write_bytes(contents[changing])

        assert verdict.kind in (Kind.CORRUPT, Kind.TRUNCATED, Kind.INCOMPLETE), (number, verdict)
        assert verdict.proof is Proof.SEAL
    assert Kind.HEALTHY is verify(folder).kind


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("save", [as_zip, as_legacy], ids=["zip", "legacy"])
def test_no_undamaged_torch_file_is_rejected(
    save: Callable[[Any], bytes], dtype: torch.dtype, quick_path: Path
) -> None:
    """Of every dtype and size, alone, in a dictionary, as a view, without dimensions; sealed and not."""
    rng = random.Random(str(dtype))
    for count, size in enumerate(SIZES):
        raw = bytearray(rng.randbytes(size * dtype.itemsize))
        if dtype is torch.bool:
            raw = bytearray(byte & 1 for byte in raw)
        tensor = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
        values = [tensor, {"model": {"a": tensor, "b": tensor[: size // 2]}, "iter_num": count}, tensor[:1].squeeze()]
        for index, value in enumerate(values):
            path = quick_path / f"step_{10 * count + index}.pt"
            path.write_bytes(save(value))

            assert verify(path).kind in (Kind.INTACT, Kind.UNPROVEN), (size, index, verify(path))
            seal_snapshot(path)
            assert Kind.HEALTHY is verify(path).kind


def test_no_undamaged_safetensors_file_is_rejected(quick_path: Path) -> None:
    """Of every dtype of whole bytes and every size, and without any tensor."""
    bytes_of = {
        "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8,
        "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "C64": 8,
    }  # fmt: skip
    files = [{}]
    files += [
        {"a": (d, [n], bytes(n * b)), "b": (d, [2, n], os.urandom(2 * n * b))}
        for d, b in bytes_of.items()
        for n in SIZES
    ]
    for number, tensors in enumerate(files):
        path = quick_path / f"step_{number}.safetensors"
        path.write_bytes(as_safetensors(tensors))

        assert Kind.UNPROVEN is verify(path).kind, (tensors.keys(), verify(path))
        seal_snapshot(path)
        assert Kind.HEALTHY is verify(path).kind

"""Whatever torch writes is never rejected, in either of its formats; what it refuses to load is never called proven."""

import random
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lastgood import formats
from lastgood.judging import verify
from lastgood.verdict import Kind
from tests.library.made import FORMATS, same, saved

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")

DTYPES = [name for name in sorted(dir(torch)) if isinstance(getattr(torch, name), torch.dtype)]
SIZES = [0, 1, 2, 3, 63, 64, 65, 4097]
EXPECTED = {"zip": Kind.INTACT, "zip without checksums": Kind.UNPROVEN, "legacy": Kind.UNPROVEN}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(3, 3)
        self.two = torch.nn.Linear(3, 3)
        self.two.weight = self.one.weight


class Sub(torch.Tensor):
    pass


def tied() -> dict[str, Any]:
    weight = torch.randn(6, 4)
    return {
        "a": weight,
        "b": weight,
        "view": weight[2:4],
        "t": weight.t(),
        "flat": weight.view(-1)[3:7:2],
        "x": weight.expand(2, 6, 4),
    }


def attributed() -> torch.Tensor:
    tensor = torch.ones(3)
    tensor.note = "its own"  # type: ignore[attr-defined]
    return tensor


def trained() -> dict[str, Any]:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    model.one(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "iter_num": 1,
    }


KINDS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "number": lambda: 7,
    "no tensors": lambda: {
        "step": 3,
        "list": [1, 2.5, "é", b"raw", None, True, (1, (2,))],
        "set": {1, 2},
        "big": 1 << 70,
    },
    "numpy scalars": lambda: {"loss": np.float64(0.5), "count": np.int64(3), "flag": np.bool_(True)},
    "numpy arrays": lambda: {
        "a": np.arange(1000.0),
        "empty": np.zeros((0, 3)),
        "f": np.asfortranarray(np.ones((3, 4))),
    },
    "tied": tied,
    "empty": lambda: {"a": torch.zeros(0), "b": torch.zeros(3, 0, 2), "c": torch.zeros(0, dtype=torch.bool)},
    "0-dim": lambda: {"a": torch.tensor(1.5), "b": torch.tensor(True), "c": torch.tensor(3)},
    "complex": lambda: {
        "a": torch.randn(3, dtype=torch.complex64),
        "conj": torch.randn(3, dtype=torch.complex64).conj(),
    },
    "negated": lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
    "quantized": lambda: {
        "tensor": torch.quantize_per_tensor(torch.randn(5), 0.1, 0, torch.qint8),
        "channel": torch.quantize_per_channel(torch.randn(3, 4), torch.ones(3), torch.zeros(3), 0, torch.qint8),
        "wide": torch.quantize_per_tensor(torch.randn(5), 0.1, 0, torch.qint32),
    },
    "sparse coo": lambda: torch.eye(4).to_sparse(),
    "sparse csr": lambda: torch.eye(4).to_sparse_csr(),
    "sparse bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged),
    "meta": lambda: {"a": torch.zeros(3, device="meta"), "b": torch.ones(2)},
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "subclass": lambda: torch.ones(3).as_subclass(Sub),
    "attributes": attributed,
    "whole module": Net,
    "storage": lambda: [torch.ones(3).untyped_storage()],
    "ordered": lambda: OrderedDict(a=torch.ones(1), b=OrderedDict(c=torch.ones(2))),
    "size and device": lambda: {"size": torch.Size([1, 2]), "device": torch.device("cpu"), "dtype": torch.float16},
    "self-containing": lambda: (lambda one: one.append(one) or {"list": one})([]),  # type: ignore[func-returns-value]
    "what a trainer saves": trained,
    "strange names": lambda: {"": torch.ones(1), "a.b/c": torch.ones(1), 3: torch.ones(1), "é\ud800": torch.ones(1)},
    "many": lambda: {f"w{i}": torch.full((i,), float(i)) for i in range(300)},
}


@pytest.mark.parametrize("way", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_torch_writes_is_taken(tmp_path: Path, kind: str, way: str) -> None:
    """Every kind of payload, in every format; with checksums it is proven by them."""
    verdict = verify(saved(tmp_path / "a.pt", KINDS[kind](), way))

    assert EXPECTED[way] is verdict.kind, verdict.reason


@pytest.mark.parametrize("way", FORMATS)
@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
def test_every_protocol_is_read(tmp_path: Path, way: str, protocol: int) -> None:
    """The pickle may be of any protocol that torch can be asked for; its tensors are found in all of them."""
    path = saved(tmp_path / "a.pt", {"w": torch.ones(3), "list": list(range(3000))}, way, pickle_protocol=protocol)

    assert EXPECTED[way] is verify(path).kind
    assert protocol == 1 or ["w"] == [part.name for part in parts(path)]


@pytest.mark.parametrize("way", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_size_is_taken_and_found(tmp_path: Path, dtype: str, way: str) -> None:
    """From no element upwards; what is said of a tensor leads to its bytes."""
    for size in SIZES:
        raw = torch.arange(16 * size, dtype=torch.int64).to(torch.uint8)
        try:
            tensor = raw.view(getattr(torch, dtype))
        except RuntimeError:
            tensor = raw  # a type that only quantization makes
        try:
            path = saved(tmp_path / "a.pt", {"w": tensor, "tail": torch.ones(2)}, way)
        except (RuntimeError, KeyError, TypeError, AttributeError):
            continue  # torch itself cannot write it
        verdict = verify(path)

        assert EXPECTED[way] is verdict.kind, (size, verdict.reason)
        part = next(part for part in parts(path) if part.name == "w")
        assert part.start is not None
        assert dtype.startswith("quint") or len(raw) == part.span  # two or four of those share a byte
        assert bytes(raw[: part.span].numpy()) == path.read_bytes()[part.start : part.start + part.span]


def parts(path: Path) -> list[formats.TensorPart]:
    """What the file's format says about its tensors."""
    with path.open("rb") as file:
        module = formats.format_of(file, path.stat().st_size)
        assert module is not None
        return list(module.inside(file).tensors)


def damaged(whole: bytes, generator: random.Random) -> bytes:
    """One damage of the kinds that storage and people cause; the bytes are others afterwards."""
    while True:
        data, at = bytearray(whole), generator.randrange(len(whole))
        match generator.choice(["flip", "flip", "flips", "cut", "zero", "swap", "double", "drop", "append"]):
            case "flip":
                data[at] ^= 1 << generator.randrange(8)
            case "flips":
                for _ in range(5):
                    data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
            case "cut":
                del data[at:]
            case "zero":
                data[at : at + 64] = bytes(len(data[at : at + 64]))
            case "swap":
                other = generator.randrange(len(whole))
                data[at : at + 16], data[other : other + 16] = data[other : other + 16], data[at : at + 16]
            case "double":
                data[at:at] = data[at : at + 16]
            case "drop":
                del data[at : at + 8]
            case _:
                data += generator.randbytes(generator.randrange(1, 100))
        if data != whole:
            return bytes(data)


@pytest.mark.parametrize("way", FORMATS)
def test_what_torch_refuses_is_never_proven(tmp_path: Path, way: str) -> None:
    """400 seeded damages: what is called intact loads in torch, and is what was saved; without checksums nothing is proven."""
    content = trained()
    path = saved(tmp_path / "a.pt", content, way)
    whole, generator, accepted = path.read_bytes(), random.Random(11), 0
    for _ in range(400):
        path.write_bytes(damaged(whole, generator))
        verdict = verify(path)
        accepted += verdict.usable
        if verdict.proven:
            with warnings.catch_warnings(action="ignore"):
                assert same(content, torch.load(path, weights_only=True))
                assert same(content, torch.load(path, weights_only=False))
            assert way == "zip"
    assert 0 < accepted < {"zip": 60, "zip without checksums": 150, "legacy": 200}[way]  # flips in what proves nothing


@pytest.mark.parametrize("way", ["zip without checksums", "legacy"])
def test_without_checksums_every_length_still_counts(tmp_path: Path, way: str) -> None:
    """Bytes that are missing, added or moved are damage, wherever that is."""
    path = saved(tmp_path / "a.pt", trained(), way)
    whole, generator = path.read_bytes(), random.Random(5)
    pickles_end = whole.rindex(b"e.") if way == "legacy" else 0
    for at in (generator.randrange(1, len(whole) - 8) for _ in range(150)):
        for data in (whole[:at], whole[:at] + whole[at + 8 :], whole + whole[:at]):
            if len(data) == len(whole) - 8 and at < pickles_end:
                continue  # a pickle may be another whole one without eight of its bytes
            path.write_bytes(data)

            assert verify(path).kind in (Kind.TRUNCATED, Kind.CORRUPT), (at, len(data))

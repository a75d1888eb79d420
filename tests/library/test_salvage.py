"""Whole tensors out of broken torch files: all that is there, nothing that is not, nothing executed."""

import argparse
import errno
import os
import pickle
import random
import struct
import subprocess
import sys
import zipfile
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lastgood.contract import SALVAGE_KEY
from lastgood.formats import DamageError, raw_zip
from lastgood.formats.torch_damaged import State, look
from lastgood.formats.torch_tensors import tensors_in
from lastgood.judging import verify
from lastgood.salvage import Salvaged, salvage
from lastgood.verdict import Kind, Proof
from supervisor.cli import salvaging
from supervisor.errors import UsageError
from tests.conftest import flip_bit


def intact_tensors(path: Path) -> tuple[int, int]:
    """How many tensors of a torch file are proven whole by their CRC32, and how many it names."""
    with path.open("rb") as file:
        wreck = look(file)
    states = [wreck.storages[tensor.storage].state for tensor in tensors_in(wreck.contents.value)]
    return states.count(State.WHOLE), len(states)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(30, 24)
        self.body = torch.nn.Linear(24, 24)
        self.norm = torch.nn.BatchNorm1d(24)
        self.head = torch.nn.Linear(24, 30, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(self.embedding(x))))


def payload() -> dict[str, Any]:
    """A model with tied weights, its AdamW after two steps, and what else a trainer saves; in this order."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randint(0, 30, (8,))).square().mean().backward()
        optimizer.step()
    more = {"iter_num": 2, "best_val_loss": 1.5, "config": {"name": "é", "betas": (0.9, [0.95, None]), "flag": True}}
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), **more, "rng": torch.get_rng_state()}


@pytest.fixture
def saved(tmp_path: Path) -> tuple[dict[str, Any], Path]:
    """A payload and the torch file that holds it."""
    content = payload()
    torch.save(content, tmp_path / "whole.pt")
    return content, tmp_path / "whole.pt"


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a loaded payload with its dotted name, the note of a salvage left out."""
    if isinstance(value, dict | list | tuple) and not isinstance(value, torch.Size):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if key != SALVAGE_KEY:
                yield from leaves(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def equal(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return type(one) is type(other) and one == other
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(bits(one), bits(other))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements as bytes, so that NaN equals itself and every dtype can be compared."""
    return tensor.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)


def get_out(path: Path, content: Any = None) -> tuple[Salvaged, Any]:
    """Salvage a file; what comes out loads safely, is sealed, and holds only what was in `content`."""
    out = path.with_name(f"out-{random.randrange(1 << 60)}.pt")
    result = salvage(path, out)
    if result.published is None:
        assert not [name for name in os.listdir(path.parent) if out.name in name]
        return result, {}
    loaded = torch.load(out, weights_only=True)
    says_so = isinstance(loaded, dict) and bool(loaded.get(SALVAGE_KEY, {}).get("lost"))
    expected = Kind.INCOMPLETE if says_so else Kind.HEALTHY  # a part of a snapshot is never resumed from by itself
    assert (expected, Proof.SEAL) == (verify(out).kind, verify(out).proof)
    if content is not None:
        original = dict(leaves(content))
        missing = {one.name for one in result.lost}
        for name, value in leaves(loaded):
            assert equal(original[name], value) or (value is None and name in missing), name
        assert original.keys() - dict(leaves(loaded)).keys() <= missing
    return result, loaded


def ends(path: Path) -> dict[str, tuple[int, int]]:
    """First byte and end of each storage of a whole torch file, by key, as its directory and headers say."""
    found = {}
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            _, _, key = entry.filename.partition("/data/")
            if key.isdigit():
                name_bytes, extra_bytes = struct.unpack_from("<HH", data, entry.header_offset + 26)
                start = entry.header_offset + 30 + name_bytes + extra_bytes
                found[key] = (start, start + entry.file_size)
    return found


def whole_storages(data: bytes, folder: Path) -> dict[str, bytes]:
    """The bytes of the storages that are found whole in a file with this content, by key."""
    path = folder / "probe.pt"
    path.write_bytes(data)
    with path.open("rb") as file:
        found = look(file).storages
    return {key: data[s.start : s.start + s.size] for key, s in found.items() if s.state is State.WHOLE}


def test_an_intact_file_gives_everything(saved: tuple[dict[str, Any], Path]) -> None:
    """Every tensor and every other leaf comes out equal, tied weights tied, and the module's versions with them."""
    content, path = saved
    result, loaded = get_out(path, content)
    tensors = [value for _, value in leaves(content) if isinstance(value, torch.Tensor)]

    assert (True, True, len(tensors), ()) == (result.model_whole, result.optimizer_whole, result.kept, result.lost)
    assert {**content, SALVAGE_KEY: 0}.keys() == loaded.keys()
    assert {"source": "whole.pt", "lost": []} == loaded[SALVAGE_KEY]
    assert loaded["model"]["head.weight"].data_ptr() == loaded["model"]["embedding.weight"].data_ptr()
    assert content["model"]._metadata == loaded["model"]._metadata
    assert content["optimizer"].keys() == loaded["optimizer"].keys()
    assert (len(tensors), len(tensors)) == intact_tensors(path)
    assert result.published is not None
    torch.load(result.published.path, weights_only=True, mmap=True)
    assert {0} == {start % 64 for start, _ in ends(Path(result.published.path)).values()}


@pytest.mark.parametrize("percent", range(0, 100, 5))
def test_a_cut_gives_what_lies_before_it(saved: tuple[dict[str, Any], Path], tmp_path: Path, percent: int) -> None:
    """Each storage with its checksum before the cut is had, each other one is lost by name; the two parts are told apart."""
    content, path = saved
    where, whole = ends(path), path.read_bytes()
    length = len(whole) * percent // 100
    (tmp_path / "cut.pt").write_bytes(whole[:length])
    result, loaded = get_out(tmp_path / "cut.pt", content)

    there = {key for key, (_, end) in where.items() if end + 8 <= length}
    model_keys = {str(key) for key in range(8)}
    if not there:
        assert (False, 0, None) == (result.model_whole, result.kept, result.published)
        assert result.reason
        return
    assert model_keys <= there or not result.model_whole
    assert (set(where) <= there) == (not result.lost)
    assert sum(isinstance(value, torch.Tensor) for _, value in leaves(loaded)) == result.kept
    assert all(f"cut at byte {length:,}" in one.reason for one in result.lost)
    assert intact_tensors(tmp_path / "cut.pt") == (
        result.kept,
        sum(1 for _, v in leaves(content) if torch.is_tensor(v)),
    )
    fresh = Net()
    if result.model_whole:
        fresh.load_state_dict(loaded["model"], strict=True)
        assert equal(content["model"]["body.weight"], fresh.body.weight.detach())
    assert (len(there) == len(where)) == bool(result.optimizer_whole and result.model_whole and "rng" in loaded)


def test_a_cut_in_the_optimizer_leaves_the_model_whole(saved: tuple[dict[str, Any], Path]) -> None:
    """Exit status and words say that the model is complete, and which moments are not."""
    content, path = saved
    (path.parent / "cut.pt").write_bytes(path.read_bytes()[: ends(path)["10"][1] + 8])
    result, loaded = get_out(path.parent / "cut.pt", content)

    assert (True, False) == (result.model_whole, result.optimizer_whole)
    assert "optimizer.state.3.exp_avg" in [one.name for one in result.lost]
    assert {one.name for one in result.lost} == set(loaded[SALVAGE_KEY]["lost"])
    sizes = {one.name: one.bytes for one in result.lost}
    assert 24 * 4 == sizes["optimizer.state.3.exp_avg"]


@pytest.mark.parametrize("with_directory", [True, False])
def test_a_flipped_bit_costs_at_most_the_tensor_it_is_in(tmp_path: Path, with_directory: bool) -> None:
    """In a header nothing is lost, in data that storage; in a checksum that storage if no directory repeats it.

    The last name before a cut is the one that nothing else confirms.
    """
    torch.save({"model": {f"w{i}": torch.randn(5 + i % 2) for i in range(6)}}, tmp_path / "a.pt")
    where, whole = ends(tmp_path / "a.pt"), (tmp_path / "a.pt").read_bytes()
    first, behind = where["0"][0], max(end for _, end in where.values()) + 16
    data = whole if with_directory else whole[:behind]
    last_digit, generator = whole.index(b"a/data/5") + 7, random.Random(3 + with_directory)
    for offset in [*range(first - 60, len(data)), *range(60)]:
        broken = bytearray(data)
        broken[offset] ^= 1 << generator.randrange(8)
        touched = {key for key, (start, end) in where.items() if start <= offset < end}
        if not with_directory:
            touched |= {key for key, (_, end) in where.items() if end + 4 <= offset < end + 8}
            touched |= {"5"} if offset == last_digit and broken[offset] in b"01234" else set()

        assert where.keys() - touched == whole_storages(bytes(broken), tmp_path).keys(), offset


@pytest.mark.parametrize("with_directory", [True, False])
def test_a_zeroed_page_costs_what_it_covers(saved: tuple[dict[str, Any], Path], with_directory: bool) -> None:
    """Storages whose bytes and checksum are outside of the page are all had; a page in the pickle ends it all."""
    content, path = saved
    where, whole = ends(path), path.read_bytes()
    for page in range(0, len(whole) - 4096, 2048):
        data = bytearray(whole)
        data[page : page + 4096] = bytes(4096)
        if not with_directory:
            del data[max(end for _, end in where.values()) + 16 :]
        (path.parent / "zeroed.pt").write_bytes(data)
        result, _ = get_out(path.parent / "zeroed.pt", content)
        if page < min(start for start, _ in where.values()) - 300:
            assert (0, True) == (result.kept, "data.pkl" in result.reason or "first record" in result.reason), page
            continue
        lost = {key for key, (start, end) in where.items() if start < page + 4096 and end + 8 > page}
        assert where.keys() - lost <= whole_storages(bytes(data), path.parent).keys(), page


def test_random_damage_never_yields_wrong_bytes(tmp_path: Path) -> None:
    """600 seeded damages of several kinds and places: what is called whole is that very storage as it was written."""
    generator = random.Random(11)
    for name, count, size in (("same.pt", 12, lambda i: 4), ("mixed.pt", 25, lambda i: 1 + 7 * i % 40)):
        torch.save({"model": {i: torch.randn(size(i)) for i in range(count)}}, tmp_path / name)
    for turn in range(600):
        path = tmp_path / generator.choice(["same.pt", "mixed.pt"])
        where, whole = ends(path), path.read_bytes()
        data = bytearray(whole[: generator.choice([len(whole), generator.randrange(len(whole))])] or b"P")
        for _ in range(generator.choice([0, 1, 2, 4])):
            at, length = generator.randrange(len(data)), generator.choice([1, 4, 30, 200])
            data[at : at + length] = generator.choice([bytes, generator.randbytes])(len(data[at : at + length]))
        try:
            found = whole_storages(bytes(data), tmp_path)
        except DamageError:
            continue  # the pickle was hit
        for key, content in found.items():
            assert whole[slice(*where[key])] == content, (turn, key)


def test_a_name_changed_into_another_ones_is_not_believed(tmp_path: Path) -> None:
    """A flipped digit in a header must not give one tensor the bytes of another one of the same size."""
    torch.save({"model": [torch.full((8,), float(i)) for i in range(10)]}, tmp_path / "a.pt")
    data = bytearray((tmp_path / "a.pt").read_bytes()[: ends(tmp_path / "a.pt")["7"][1] + 16])
    at = data.index(b"a/data/7")
    data[at : at + 8] = b"a/data/9"
    (tmp_path / "b.pt").write_bytes(data)
    result, loaded = get_out(tmp_path / "b.pt")

    assert [f"model.{i}" for i in (7, 8, 9)] == [one.name for one in result.lost]
    assert [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0] == [float(one[0]) for one in loaded["model"][:7]]
    assert [None, None, None] == loaded["model"][7:]


def test_a_name_of_a_longer_one_does_not_hide_the_next(tmp_path: Path) -> None:
    """A false name with another size would lead past the next header; that one is found all the same, and both are had."""
    torch.save({"model": [torch.full((3 + i % 2,), float(i)) for i in range(6)]}, tmp_path / "a.pt")
    data = bytearray((tmp_path / "a.pt").read_bytes()[: ends(tmp_path / "a.pt")["3"][1] + 16])
    at = data.index(b"a/data/2")
    data[at : at + 8] = b"a/data/3"
    (tmp_path / "b.pt").write_bytes(data)
    _, loaded = get_out(tmp_path / "b.pt")

    assert [0.0, 1.0, 2.0, 3.0] == [float(one[0]) for one in loaded["model"][:4]]


def test_a_directory_that_points_beside_another_record_is_not_believed(tmp_path: Path) -> None:
    """Padding forgives a few bytes: the data found there are whole, but another tensor's."""
    torch.save({"model": [torch.full((2,), float(i)) for i in range(10)]}, tmp_path / "a.pt")
    data = bytearray((tmp_path / "a.pt").read_bytes())
    at = data.rindex(b"a/data/8") - 4
    data[at : at + 4] = (data.index(b"a/data/5") - 30 + 8).to_bytes(4, "little")
    (tmp_path / "b.pt").write_bytes(data)
    _, loaded = get_out(tmp_path / "b.pt")

    assert [float(i) for i in range(10)] == [float(one[0]) for one in loaded["model"]]


def test_the_order_of_older_torch_is_known(tmp_path: Path) -> None:
    """Storages sorted by their keys as text, and a cut among them."""
    content = {"model": {f"w{i}": torch.full((6,), float(i)) for i in range(14)}}
    torch.save(content, tmp_path / "new.pt")
    with zipfile.ZipFile(tmp_path / "new.pt") as archive:
        writer = torch._C.PyTorchFileWriter(str(tmp_path / "old.pt"))
        for name in ["data.pkl", "byteorder", *sorted(f"data/{i}" for i in range(14))]:
            part = archive.read(f"new/{name}")
            writer.write_record(name, part, len(part))
        writer.write_end_of_file()
    data = bytearray((tmp_path / "old.pt").read_bytes()[: ends(tmp_path / "old.pt")["3"][1] + 16])
    at = data.index(b"old/data/10") - 30
    data[at : at + 45] = bytes(45)
    (tmp_path / "cut.pt").write_bytes(data)
    result, loaded = get_out(tmp_path / "cut.pt", content)

    assert {0, 1, 10, 11, 12, 13, 2, 3} == {int(name[1:]) for name in loaded["model"]}
    assert 6 == len(result.lost)


def test_a_damaged_pickle_leaves_nothing_and_says_so(saved: tuple[dict[str, Any], Path]) -> None:
    """Without data.pkl nobody knows what the other bytes mean; nothing is written."""
    _, path = saved
    flip_bit(path, 500)
    result, _ = get_out(path)

    assert (False, 0, None) == (result.model_whole, result.kept, result.published)
    assert "its data.pkl, which says what all other bytes mean, is damaged" == result.reason
    with pytest.raises(DamageError, match=r"data\.pkl"):
        intact_tensors(path)


def test_a_tensor_that_begins_like_a_pickle_is_not_taken_for_one(tmp_path: Path) -> None:
    """Its own checksum proves it as what it is; what is said is that the pickle is damaged."""
    path = tmp_path / "whole.pt"
    torch.save({"small": torch.tensor([0x80, 0x81, *range(62)], dtype=torch.uint8)}, path)
    flip_bit(path, 100)
    result, _ = get_out(path)

    assert "its data.pkl, which says what all other bytes mean, is damaged" == result.reason


def test_a_pickle_without_its_checksum_proves_nothing(saved: tuple[dict[str, Any], Path]) -> None:
    """A zero where the pickle's CRC32 was is damage, unless all checksums are zero."""
    _, path = saved
    data = bytearray(path.read_bytes()[: ends(path)["9"][1]])
    at = data.index(b".PK\x07\x08") + 5
    data[at : at + 4] = bytes(4)
    path.write_bytes(data)
    result, _ = get_out(path)

    assert (0, False, "damaged" in result.reason) == (result.kept, result.unproven, True)


@pytest.mark.parametrize("content", [b"", b"P", b"PK\x03\x04", b"\x80\x02}q\x00.", b"\0" * 5000, b"nothing at all"])
def test_what_is_no_torch_file_gives_nothing(tmp_path: Path, content: bytes) -> None:
    """Empty, cut at once, of another format, or junk: a reason, and no file."""
    (tmp_path / "a.pt").write_bytes(content)
    result, _ = get_out(tmp_path / "a.pt")

    assert (0, None) == (result.kept, result.published)
    assert "torch zip file" in result.reason or "ends at byte" in result.reason


class Command:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.place}",)


def test_a_hostile_pickle_is_not_executed(tmp_path: Path) -> None:
    """A command in the payload does not run, neither now nor when the result is loaded; the tensors come out."""
    torch.save({"model": {"w": torch.ones(3)}, "evil": Command(tmp_path / "ran"), "n": [1, Command(tmp_path / "ran")]},
               tmp_path / "a.pt")  # fmt: skip
    result, loaded = get_out(tmp_path / "a.pt")

    assert ["evil", "n.1"] == [one.name for one in result.lost]
    assert "what posix.system makes" in result.lost[0].reason
    assert (True, [1, None]) == (result.model_whole, loaded["n"])
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02]" + b"\x85" * 30_000 + b".",
        b"\x80\x02" + b"]" + b"2a" * 20_000 + b".",
        b"\x80\x02)" + b"2\x86" * 90 + b".",
        b"\x80\x02c__builtin__\neval\nX\x05\x00\x00\x001 / 0\x85R.",
    ],
    ids=["deep", "cycle", "doubling", "eval"],
)  # fmt: skip
def test_bombs_are_harmless(tmp_path: Path, data: bytes) -> None:
    """Deep, circular and doubling pickles cost little and give nothing."""
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as out:
        out.writestr("a/data.pkl", data)
    result, _ = get_out(tmp_path / "a.pt")

    assert (0, None) == (result.kept, result.published)


DTYPES = [
    "float64", "float32", "float16", "bfloat16", "complex32", "complex64", "complex128", "float8_e4m3fn",
    "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "int64", "int32",
    "int16", "int8", "uint8", "uint16", "uint32", "uint64",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_dtype_comes_out_as_it_was(tmp_path: Path) -> None:
    """All that torch saves, bit for bit, empty tensors and scalars too."""
    raw = torch.arange(256, dtype=torch.uint8).repeat(2)
    content: dict[str, Any] = {name: raw.clone().view(getattr(torch, name)) for name in DTYPES}
    content |= {"bool": torch.tensor([True, False]), "empty": torch.zeros(0, 3), "scalar": torch.tensor(1.5)}
    torch.save(content, tmp_path / "a.pt")
    result, loaded = get_out(tmp_path / "a.pt", content)

    assert (True, len(content), list(content)) == (result.model_whole, result.kept, list(loaded))


@pytest.mark.filterwarnings("ignore")
def test_sparse_and_quantized_tensors_come_out(tmp_path: Path) -> None:
    """Their parts are storages as any other; one lost part loses the tensor, by one name."""
    content = {
        "coo": torch.eye(4).to_sparse(),
        "csr": torch.eye(4).to_sparse_csr(),
        "quantized": torch.quantize_per_tensor(torch.arange(4.0), 0.5, 3, torch.quint8),
    }
    torch.save(content, tmp_path / "a.pt")
    result, loaded = get_out(tmp_path / "a.pt")

    assert () == result.lost
    assert all(torch.equal(content[key].to_dense(), loaded[key].to_dense()) for key in ("coo", "csr"))
    assert torch.equal(content["quantized"].int_repr(), loaded["quantized"].int_repr())

    flip_bit(tmp_path / "a.pt", ends(tmp_path / "a.pt")["0"][0])
    result, loaded = get_out(tmp_path / "a.pt")
    assert (["coo"], ["csr", "quantized"]) == ([one.name for one in result.lost], list(loaded)[:2])


def test_ties_and_views_stay_what_they_are(tmp_path: Path) -> None:
    """Tensors that shared a storage share it again; slices, transposes and expansions stay views."""
    base = torch.arange(12.0)
    content = {"a": base, "b": base[2:5], "c": base.view(3, 4).t(), "d": base[:1].expand(5), "e": base[::3], "a2": base}
    torch.save({"model": content}, tmp_path / "a.pt")
    _, loaded = get_out(tmp_path / "a.pt", {"model": content})

    assert 1 == len({one.untyped_storage().data_ptr() for one in loaded["model"].values()})
    assert [one.stride() for one in content.values()] == [one.stride() for one in loaded["model"].values()]
    assert loaded["model"]["a"] is loaded["model"]["a2"]
    loaded["model"]["a"][2] = 99
    assert 99 == loaded["model"]["b"][0]


def test_plain_values_of_every_kind_are_kept(tmp_path: Path) -> None:
    """Numbers, text, containers, dtypes, devices and parameters; a defaultdict comes out as a dict."""
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    parameter.note = "x"  # type: ignore[attr-defined]
    content = {
        "model": {"p": parameter}, "int": 1 << 80, "negative": -5, "float": float("inf"), "text": "a\ud800\n", "none": None,
        "bytes": b"\xff\0", "array": bytearray(b"ab"), "set": {1, 2}, "complex": 1 + 2j, "ordered": OrderedDict(a=[1, (2,)]),
        "counter": Counter("aab"), "default": defaultdict(list, {3: [4]}), "dtype": torch.bfloat16, 5: False,
        "device": torch.device("cpu"), "size": torch.Size([2, 3]), ("a", 1): "key", "conjugate": torch.tensor([1 + 2j]).conj(),
    }  # fmt: skip
    torch.save(content, tmp_path / "a.pt")
    result, loaded = get_out(tmp_path / "a.pt")

    assert () == result.lost
    assert {**content, "default": {3: [4]}} == {k: v for k, v in loaded.items() if k != SALVAGE_KEY} | {
        "model": content["model"]
    }
    assert (dict, OrderedDict) == (type(loaded["default"]), type(loaded["ordered"]))
    assert ("x", False) == (loaded["model"]["p"].note, loaded["model"]["p"].requires_grad)


def test_many_small_values_keep_apart(tmp_path: Path) -> None:
    """Each set, array and byte string comes out as itself, however many there are, by newer pickle protocols too."""
    for protocol in (2, 4, 5):
        content = {
            "sets": [{i, -i} for i in range(99)],
            "arrays": [bytearray([i]) for i in range(99)],
            "bytes": [bytes([i]) for i in range(99)],
        }
        torch.save({"t": torch.ones(1), **content}, tmp_path / "a.pt", pickle_protocol=protocol)
        result, loaded = get_out(tmp_path / "a.pt")

        assert ((), content) == (result.lost, {key: loaded[key] for key in content})


def test_objects_of_other_peoples_classes_are_lost_by_name(tmp_path: Path) -> None:
    """A pickled module and a namespace need their own code, which is not called; the rest is kept."""
    torch.save(
        {"model": torch.nn.Linear(2, 3), "args": argparse.Namespace(a=1), "ema": {"w": torch.ones(2)}},
        tmp_path / "a.pt",
    )
    result, loaded = get_out(tmp_path / "a.pt")

    assert [("model", 36), ("args", 0)] == [(one.name, one.bytes) for one in result.lost]
    assert "only its own code can rebuild" in result.lost[0].reason
    assert (False, {"ema", SALVAGE_KEY}) == (result.model_whole, loaded.keys())


def test_a_shared_container_is_incomplete_wherever_it_is(tmp_path: Path) -> None:
    """When the model's dictionary also stands elsewhere, what is lost in it is missing in the model."""
    state = {"w": torch.ones(50), "v": torch.ones(50)}
    torch.save({"ema": state, "model": state}, tmp_path / "a.pt")
    flip_bit(tmp_path / "a.pt", ends(tmp_path / "a.pt")["0"][0])
    result, loaded = get_out(tmp_path / "a.pt")

    assert (False, ["ema.w", "model"]) == (result.model_whole, [one.name for one in result.lost])
    assert loaded["ema"] is loaded["model"]


def test_a_plain_state_dict_is_a_model(tmp_path: Path) -> None:
    """Whole, it gets no key that load_state_dict would trip over; broken, it tells what is missing."""
    torch.save(Net().state_dict(), tmp_path / "a.pt")
    result, loaded = get_out(tmp_path / "a.pt")
    assert (True, None, False) == (result.model_whole, result.optimizer_whole, SALVAGE_KEY in loaded)
    Net().load_state_dict(loaded, strict=True)

    flip_bit(tmp_path / "a.pt", ends(tmp_path / "a.pt")["1"][0])
    result, loaded = get_out(tmp_path / "a.pt")
    assert (False, ["body.weight"]) == (result.model_whole, loaded[SALVAGE_KEY]["lost"])


@pytest.fixture
def _unchecked() -> Iterator[None]:
    torch.serialization.set_crc32_options(False)
    yield
    torch.serialization.set_crc32_options(True)


@pytest.mark.usefixtures("_unchecked")
def test_switched_off_checksums_give_bytes_but_no_proof(tmp_path: Path) -> None:
    """What is there to its end is taken, called unproven, and neither part counts as whole."""
    content = {"model": {"a": torch.ones(30), "b": torch.ones(3000)}, "optimizer": {"state": {}}}
    torch.save(content, tmp_path / "a.pt")
    result, loaded = get_out(tmp_path / "a.pt", content)
    assert (True, False, False, 2, True) == (
        result.unproven, result.model_whole, result.optimizer_whole, result.kept, loaded[SALVAGE_KEY]["unproven"],
    )  # fmt: skip
    assert (0, 2) == intact_tensors(tmp_path / "a.pt")

    (tmp_path / "cut.pt").write_bytes((tmp_path / "a.pt").read_bytes()[:3000])
    result, _ = get_out(tmp_path / "cut.pt", content)
    assert (["model.b"], 1) == ([one.name for one in result.lost], result.kept)


def test_the_source_is_never_written_over(saved: tuple[dict[str, Any], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by its name, another spelling, a link of either kind, nor as the seal of the result; nor is anything else."""
    _, path = saved
    before, folder = path.read_bytes(), path.parent
    (folder / "soft.pt").symlink_to(path)
    os.link(path, folder / "hard.pt")
    os.link(path, folder / "new.pt.sha256")
    (folder / "nowhere.pt").symlink_to(folder / "missing")
    (folder / "other.pt").write_bytes(b"somebody's")
    monkeypatch.chdir(folder)
    spellings = [path, "whole.pt", "./x/../whole.pt", "soft.pt", folder / "hard.pt", "new.pt", "nowhere.pt", "other.pt"]
    (folder / "x").mkdir()
    names = sorted(os.listdir(folder))
    for target in spellings:
        with pytest.raises(FileExistsError):
            salvage("soft.pt", target)
        assert before == path.read_bytes()
    assert (names, b"somebody's") == (sorted(os.listdir(folder)), (folder / "other.pt").read_bytes())


def test_a_read_error_loses_what_lies_there(
    saved: tuple[dict[str, Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad block in one tensor costs that tensor, with the system's reason."""
    content, path = saved
    bad, real = ends(path)["1"][0] + 10, os.pread

    def pread(descriptor: int, count: int, offset: int) -> bytes:
        of_this_file = os.readlink(f"/proc/self/fd/{descriptor}") == str(path)
        if of_this_file and offset <= bad < offset + count and count != raw_zip.LOCAL.size + raw_zip.MAX_NAME_BYTES:
            raise OSError(errno.EIO, "Input/output error")
        return real(descriptor, count, offset)

    monkeypatch.setattr(raw_zip.os, "pread", pread)
    result, _ = get_out(path, content)

    assert {"model.body.weight"} == {one.name for one in result.lost}
    assert "cannot be read: Input/output error" == result.lost[0].reason


def test_bytes_that_change_under_the_salvage_are_not_published(
    saved: tuple[dict[str, Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was checked is what is written, or nothing is."""
    _, path = saved
    real = salvage.__globals__["_write"]

    def and_change(*arguments: Any) -> None:
        flip_bit(path, ends(path)["2"][0])
        real(*arguments)

    monkeypatch.setattr("lastgood.salvage._write", and_change)
    with pytest.raises(OSError, match="changed while it was read"):
        salvage(path, path.parent / "out.pt")
    assert ["whole.pt"] == os.listdir(path.parent)


def test_it_needs_neither_torch_nor_memory(tmp_path: Path) -> None:
    """200 MB are salvaged in a process that never imports torch and stays below 80 MB."""
    torch.save(
        {"model": {"a": torch.ones(25_000_000), "b": torch.ones(25_000_000), "c": torch.ones(9)}}, tmp_path / "a.pt"
    )
    os.truncate(tmp_path / "a.pt", ends(tmp_path / "a.pt")["1"][1] + 16)
    code = (
        "import sys; from lastgood.salvage import salvage; r = salvage(sys.argv[1], sys.argv[2]);"
        "peak = open('/proc/self/status').read().split('VmHWM:')[1].split()[0];"
        "print(r.kept, len(r.lost), 'torch' in sys.modules, int(peak) >> 10)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "a.pt", tmp_path / "o.pt"], capture_output=True, text=True, check=True
    )
    kept, lost, imported, megabytes = done.stdout.split()

    assert ("2", "1", "False") == (kept, lost, imported)
    assert int(megabytes) < 80


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, str]]:
    """A function that runs the command: (broken, output, as_json) -> exit status, what it printed."""

    def run(broken: Path, output: Path, as_json: bool = False) -> tuple[Any, str]:
        with pytest.raises(SystemExit) as ended:
            salvaging.salvage(str(broken), str(output), as_json)
        printed = capsys.readouterr()
        return ended.value.code, printed.out + printed.err

    return run


def test_the_command_tells_model_and_optimizer_apart(
    saved: tuple[dict[str, Any], Path], command: Callable[..., tuple[Any, str]]
) -> None:
    """0 for a whole model, 1 for a part of it, 3 for nothing; what is lost by name, size and reason."""
    _, path = saved
    where, whole = ends(path), path.read_bytes()
    for name, length in (("model.pt", where["9"][1] + 8), ("part.pt", where["1"][1] + 8), ("none.pt", 900)):
        (path.parent / name).write_bytes(whole[:length])

    status, said = command(path.parent / "model.pt", path.parent / "out-1.pt")
    assert (0, True, True) == (status, "model: whole" in said, "optimizer: not whole" in said)
    assert "lost: optimizer.state.3.exp_avg (96 B): cut at byte" in said
    status, said = command(path.parent / "part.pt", path.parent / "out-2.pt")
    assert (1, True) == (status, "model: not whole" in said)
    status, said = command(path.parent / "none.pt", path.parent / "out-3.pt")
    assert (3, True) == (status, "nothing could be had" in said and "data.pkl" in said)
    status, said = command(path.parent / "model.pt", path.parent / "out-4.pt", True)
    assert (0, True) == (status, '"optimizer_whole": false' in said)


def test_the_command_refuses_what_makes_no_sense(saved: tuple[dict[str, Any], Path]) -> None:
    """A missing file, a folder, an output that is there or has no folder: one line, status 2."""
    _, path = saved
    nowhere = path.parent / "missing" / "out.pt"
    for broken, output, reason in (
        (path.parent / "missing.pt", path.parent / "o.pt", "no such file"),
        (path.parent, path.parent / "o.pt", "no regular file"),
        (path, path, "never written over"),
        (path, nowhere, "there is no folder"),
    ):
        with pytest.raises(UsageError, match=reason):
            salvaging.salvage(str(broken), str(output), False)


def test_names_out_of_the_file_cannot_steer_a_terminal(tmp_path: Path, command: Callable[..., tuple[Any, str]]) -> None:
    """A key with escape codes and line ends is printed as their escapes."""
    torch.save({"model": {"\x1b[2J\n": torch.ones(5), "b": torch.ones(5)}}, tmp_path / "a.pt")
    flip_bit(tmp_path / "a.pt", ends(tmp_path / "a.pt")["0"][0])
    _, said = command(tmp_path / "a.pt", tmp_path / "o.pt")

    assert r"lost: model.\x1b[2J\n (20 B): damaged" in said


def test_a_part_in_a_runs_directory_is_warned_about(tmp_path: Path, command: Callable[..., tuple[Any, str]]) -> None:
    """A supervisor would take it for a snapshot of its run."""
    torch.save({"model": {"a": torch.ones(5), "b": torch.ones(5)}}, tmp_path / "a.pt")
    flip_bit(tmp_path / "a.pt", ends(tmp_path / "a.pt")["0"][0])
    (tmp_path / ".lastgood").mkdir()
    status, said = command(tmp_path / "a.pt", tmp_path / "o.pt")

    assert (1, True) == (status, "is a run's checkpoint directory" in said)


def test_a_pickle_by_another_hand_names_what_is_not_there(tmp_path: Path) -> None:
    """A tensor that reaches beyond its storage is lost, since loading it would fail; so is one of an unknown storage."""

    class FloatStorage:
        pass

    FloatStorage.__module__, FloatStorage.__qualname__ = "torch", "FloatStorage"
    torch.save({"model": {"a": torch.ones(4), "b": torch.ones(4)}}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive, zipfile.ZipFile(tmp_path / "b.pt", "w") as out:
        data = archive.read("a/data.pkl")
        shape = data.index(b"K\x04\x85")
        out.writestr("a/data.pkl", data[:shape] + b"K\x05\x85" + data[shape + 3 :])
        for key in "01":
            out.writestr(f"a/data/{key}", archive.read(f"a/data/{key}"))
    result, loaded = get_out(tmp_path / "b.pt")

    assert [("model.a", "it does not describe a tensor that makes sense")] == [
        (one.name, one.reason) for one in result.lost
    ]
    assert {"b"} == loaded["model"].keys()
    assert pickle.loads(pickle.dumps(result)) == result

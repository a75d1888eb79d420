"""What a snapshot says about itself: all of it, without reading its tensors, without believing or executing it."""

import argparse
import json
import math
import os
import pickle
import random
import time
import zipfile
from collections import OrderedDict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._weights_only_unpickler import _get_allowed_globals

from lastgood import CheckpointManager
from lastgood.describe import TEXT_MAX, VALUES_MAX, Description, Key, SealFound, Total, describe
from lastgood.safe_globals import SAFE_GLOBALS
from lastgood.salvage import salvage
from lastgood.seal import Identity, bound_seal_path, bound_seal_text
from lastgood.sealing import seal_snapshot
from tests.conftest import flip_bit


def saved(path: Path, payload: Any) -> Description:
    torch.save(payload, path)
    return describe(path)


def raw(path: Path, pickled: bytes) -> Description:
    """The description of an archive laid out as torch lays it out, with this pickle in it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("ck/data.pkl", pickled)
    return describe(path)


def test_a_snapshot_of_ours_is_described_in_full(tmp_path: Path) -> None:
    """Step, config, model arguments, format, seal, keys, tensors with shapes, dtypes and bytes, as its trainer saved them."""
    model = torch.nn.Linear(3, 4, dtype=torch.bfloat16)
    extra = {"config": {"lr": 0.1, "betas": (0.9, 0.95)}, "model_args": {"n_layer": 2}}
    with closing(CheckpointManager(tmp_path)) as manager:
        path = manager.save(7, model, torch.optim.SGD(model.parameters()), extra=extra)
    found = describe(path)

    assert ("torch zip", 7, 7, None) == (found.format, found.step, found.step_inside, found.problem)
    assert ("beside", Path(f"{path}.sha256").read_text()[:64]) == (found.seal.kind, found.seal.sha256)
    assert ({"lr": 0.1, "betas": [0.9, 0.95]}, {"n_layer": 2}) == (found.config, found.model_arguments)
    assert ("3", "little") == (found.notes["version"], found.notes["byteorder"])
    assert [("model.weight", "bfloat16", (4, 3), 24), ("model.bias", "bfloat16", (4,), 8)] == [
        (part.name, part.dtype, part.shape, part.bytes) for part in found.tensors[:2]
    ]
    assert Total(2, 16, 32) == found.model
    assert ((), path.stat().st_size) == (found.unsafe_globals, found.bytes)
    assert {"model": (2, 32), "iter_num": (0, 0)}.items() <= {k.name: (k.tensors, k.bytes) for k in found.keys}.items()
    assert Key("iter_num", "int", 0, 0, 7) in found.keys


def test_every_dtype_is_described_as_torch_sees_it(tmp_path: Path) -> None:
    """Name, shape, dtype and bytes of each tensor are those of the loaded one."""
    kinds = [torch.float64, torch.float16, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint16]
    payload = {str(kind): torch.zeros(2, 3, dtype=kind) for kind in kinds} | {
        "none": torch.zeros(0),
        "one": torch.ones(()),
    }
    found = saved(tmp_path / "a.pt", payload)

    assert [(f"torch.{x.dtype}", x.shape, x.bytes) for x in found.tensors] == [
        (str(t.dtype), tuple(t.shape), t.nbytes) for t in payload.values()
    ]
    assert ["tensor"] * 9 == [key.kind for key in found.keys]


def test_tied_tensors_are_counted_once(tmp_path: Path) -> None:
    """A weight under two names is there once; two weights of the same values are two."""
    weight = torch.ones(5, 2)
    state = {"wte": weight, "lm_head": weight, "other": torch.ones(5, 2), "view": weight[1:]}
    found = saved(tmp_path / "a.pt", {"model": state, "optimizer": {"m": torch.ones(5, 2)}})

    assert (Total(3, 28, 112), Total(4, 38, 152)) == (found.model, found.total)
    assert 5 == len(found.tensors)


def test_a_file_of_many_gigabytes_is_described_without_reading_it(tmp_path: Path) -> None:
    """GPT-2 medium with its AdamW, 1,169 tensors, 4.3 GB: thousandths of its bytes are read."""
    shapes = {"wte": (50304, 1024), "wpe": (1024, 1024), "ln_f.weight": (1024,), "ln_f.bias": (1024,)}
    block = {
        "ln_1.weight": (1024,), "ln_1.bias": (1024,), "attn.c_attn.weight": (3072, 1024), "attn.c_attn.bias": (3072,),
        "attn.c_proj.weight": (1024, 1024), "attn.c_proj.bias": (1024,), "ln_2.weight": (1024,), "ln_2.bias": (1024,),
        "mlp.c_fc.weight": (4096, 1024), "mlp.c_fc.bias": (4096,), "mlp.c_proj.weight": (1024, 4096), "mlp.c_proj.bias": (1024,),
    }  # fmt: skip
    shapes |= {f"h.{layer}.{name}": shape for layer in range(24) for name, shape in block.items()}
    model = OrderedDict((name, torch.empty(shape)) for name, shape in shapes.items())
    moments = {
        number: {"step": torch.tensor(1.0), "exp_avg": torch.empty(shape), "exp_avg_sq": torch.empty(shape)}
        for number, shape in enumerate(shapes.values())
    }
    path = tmp_path / "medium.pt"
    with torch.serialization.skip_data():  # the bytes are a hole in the file
        torch.save({"model": model | {"lm_head": model["wte"]}, "optimizer": {"state": moments}, "iter_num": 9}, path)
    before = _bytes_read()
    found = describe(path)
    read = _bytes_read() - before

    assert (1169, 354_871_296, 9, None) == (len(found.tensors), found.model.elements, found.step, found.problem)
    assert found.bytes > 4_000_000_000
    assert read < found.bytes / 500


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def test_each_kind_of_seal_is_told(tmp_path: Path) -> None:
    """None, one beside, a supervisor's, a damaged one; one that is wrong is not found out here."""
    path = tmp_path / "ckpt_3.pt"
    seals = [saved(path, {"w": torch.ones(2)}).seal]
    bound = Path(bound_seal_path(path))
    bound.parent.mkdir(parents=True)
    bound.write_text(bound_seal_text("ab" * 32, Identity.of(path.stat())))
    seals.append(describe(path).seal)
    sealed = seal_snapshot(path)
    seals.append(describe(path).seal)
    Path(sealed.seal).write_text("")
    seals.append(describe(path).seal)
    flip_bit(path, path.stat().st_size // 2, keep_times=False)
    seals.append(describe(path).seal)

    assert [
        SealFound("none"), SealFound("supervisor", "ab" * 32), SealFound("beside", sealed.sha256),
        SealFound("supervisor", "ab" * 32), SealFound("damaged", None, seals[-1].reason),
    ] == seals  # fmt: skip
    assert "empty" in (seals[-1].reason or "")


def test_the_safe_list_is_that_of_the_installed_torch() -> None:
    """Nothing that torch accepts is called unsafe; what it does not accept is unknown to it, being of a newer one."""
    accepted = set(_get_allowed_globals())

    assert set() == accepted - SAFE_GLOBALS
    assert [] == [name for name in SAFE_GLOBALS - accepted if hasattr(torch, name.removeprefix("torch."))]


@pytest.mark.parametrize(
    ("value", "unsafe"),
    [
        ({1, 2}, []),
        (complex(1, 2), []),
        (bytearray(b"x"), []),
        (torch.Size([2]), []),
        (torch.nn.Parameter(torch.ones(2)), []),
        (torch.device("cpu"), []),
        (torch.ones(2).to_sparse(), []),
        (argparse.Namespace(a=1), ["argparse.Namespace"]),
        (os.getcwd, ["posix.getcwd"]),
        (eval, ["builtins.eval"]),
        (torch.nn.Linear(1, 1), ["torch.nn.modules.linear.Linear"]),
    ],
)
def test_unsafe_is_what_torch_refuses(tmp_path: Path, value: Any, unsafe: list[str]) -> None:
    """A file with no unsafe global loads with weights only; one with any does not."""
    found = saved(tmp_path / "a.pt", {"value": value, "w": torch.ones(2)})

    assert unsafe == list(found.unsafe_globals)
    if unsafe:
        with pytest.raises(pickle.UnpicklingError):
            torch.load(tmp_path / "a.pt", weights_only=True)
    else:
        torch.load(tmp_path / "a.pt", weights_only=True)


class Command:
    """What makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)


def test_nothing_is_executed(tmp_path: Path) -> None:
    """A pickle that would run a command is described, command and all."""
    found = saved(tmp_path / "a.pt", {"config": Command(tmp_path / "made"), "w": torch.ones(2)})

    assert (("posix.mkdir",), f"posix.mkdir({tmp_path}/made)") == (found.unsafe_globals, found.config)
    assert not (tmp_path / "made").exists()


def test_a_config_becomes_plain_data(tmp_path: Path) -> None:
    """Objects are shown by their attributes or as text, numbers that are not finite as text, tensors by what they are."""
    config = {
        "nan": math.nan, "inf": -math.inf, "set": {3}, "none": None, "bytes": b"abc", 5: True, "tensor": torch.ones(2, 3),
        "name": argparse.Namespace(lr=0.1), "dtype": torch.float16, "ordered": OrderedDict(a=1), "path": Path("/a/b"),
        "bad": "\ud800", "tuple": (1, [2]),
    }  # fmt: skip
    found = saved(tmp_path / "a.pt", {"config": config})

    assert {
        "nan": "nan", "inf": "-inf", "set": "builtins.set([3])", "none": None, "bytes": "_codecs.encode(abc, latin1)", "5": True,
        "tensor": "tensor float32 [2, 3]", "name": {"lr": 0.1}, "dtype": "torch.float16", "ordered": {"a": 1},
        "path": "pathlib.PosixPath(/, a, b)", "bad": "\\ud800", "tuple": [1, [2]],
    } == found.config  # fmt: skip
    assert found.config == json.loads(json.dumps(found.config, allow_nan=False).encode("utf-8"))


def test_what_would_unfold_without_end_is_cut_off(tmp_path: Path) -> None:
    """Lists that share lists, deep nesting, long texts and long names cost bounded time and memory."""
    bomb: Any = ["x"]
    for _ in range(60):
        bomb = [bomb, bomb, bomb]
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    started = time.process_time()
    found = raw(tmp_path / "a.pt", pickle.dumps({"config": bomb, "model_args": {"deep": deep, "text": "y" * 10**6}}, 2))
    named = saved(tmp_path / "b.pt", {"n" * 10**4: {str(i): torch.ones(1) for i in range(100)}})

    assert len(json.dumps(found.config)) < 20 * VALUES_MAX
    assert "…" in json.dumps(found.model_arguments, ensure_ascii=False)
    assert TEXT_MAX == len(found.model_arguments["text"])
    assert {TEXT_MAX} == {len(part.name) for part in named.tensors}
    assert time.process_time() - started < 20


def test_a_salvaged_snapshot_says_so(tmp_path: Path) -> None:
    """The note that salvage left is there, with what is lost."""
    torch.save({"model": {"a": torch.ones(1000), "b": torch.ones(1000)}}, tmp_path / "whole.pt")
    data = (tmp_path / "whole.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(data[: len(data) * 7 // 10])
    salvage(tmp_path / "cut.pt", tmp_path / "out.pt")

    assert {"source": "cut.pt", "lost": ["model.b"]} == describe(tmp_path / "out.pt").salvaged
    assert describe(tmp_path / "whole.pt").salvaged is None


def test_what_is_damaged_is_told_as_the_problem(tmp_path: Path) -> None:
    """Cut, empty, of another kind, without one of its storages; size, seal and step in the name are there all the same."""
    torch.save({"w": torch.ones(2000)}, tmp_path / "a.pt")
    data = (tmp_path / "a.pt").read_bytes()
    for name, content, said in (
        ("cut_4.pt", data[:5000], "ends at byte 5,000"),
        ("empty_4.pt", b"", "empty"),
        ("text_4.pt", b"hello", "no format"),
    ):
        (tmp_path / name).write_bytes(content)
        found = describe(tmp_path / name)
        assert said in (found.problem or ""), found
        assert (4, len(content), SealFound("none"), ()) == (found.step, found.bytes, found.seal, found.tensors)


def test_no_damage_makes_it_raise(tmp_path: Path) -> None:
    """Of 300 files with flipped bytes, cuts and zeroed stretches each is described, or has a problem that is named."""
    torch.save({"model": {"w": torch.ones(64)}, "config": {"a": [1, {"b": "c"}]}, "iter_num": 3}, tmp_path / "a.pt")
    data, chance = (tmp_path / "a.pt").read_bytes(), random.Random(5)
    for number in range(300):
        broken, at = bytearray(data), chance.randrange(len(data))
        if number % 3 == 0:
            broken[at] ^= 1 << chance.randrange(8)
        elif number % 3 == 1:
            broken[at : at + 40] = bytes(len(broken[at : at + 40]))
        else:
            del broken[at:]
        (tmp_path / "b.pt").write_bytes(broken)
        found = describe(tmp_path / "b.pt")
        assert found.problem is None or found.problem.strip(), number
        json.dumps(found.config, allow_nan=False).encode("ascii")


def test_a_folder_is_described_by_its_files(tmp_path: Path) -> None:
    """Each file with its format, each tensor by file and name; the model is what a model's file holds."""
    folder = tmp_path / "checkpoint-100"
    folder.mkdir()
    torch.save({"w": torch.ones(3, 2)}, folder / "pytorch_model.bin")
    torch.save({"state": {0: {"m": torch.ones(3, 2)}}, "f": os.getcwd}, folder / "optimizer.pt")
    (folder / "config.json").write_text('{"hidden": 8}')
    found = describe(folder)

    assert ("folder", 100, {"hidden": 8}, None) == (found.format, found.step, found.config, found.problem)
    assert [("config.json", "file", 0), ("optimizer.pt", "torch zip", 1), ("pytorch_model.bin", "torch zip", 1)] == [
        (key.name, key.kind, key.tensors) for key in found.keys
    ]
    assert ["optimizer.pt: state.0.m", "pytorch_model.bin: w"] == [part.name for part in found.tensors]
    assert (Total(1, 6, 24), Total(2, 12, 48)) == (found.model, found.total)
    assert ("posix.getcwd",) == found.unsafe_globals
    sealed = seal_snapshot(folder)
    assert SealFound("beside", sealed.sha256) == describe(folder).seal
    os.truncate(folder / "optimizer.pt", 700)
    assert (describe(folder).problem or "").startswith("optimizer.pt: ends at byte 700")


def test_what_is_no_file_is_the_systems_error(tmp_path: Path) -> None:
    """A pipe is not waited for, and nothing is made of what is not there."""
    os.mkfifo(tmp_path / "pipe.pt")
    for name in ("pipe.pt", "nowhere.pt"):
        with pytest.raises(OSError, match=r"regular|No such"):
            describe(tmp_path / name)

"""NaN and infinities found without torch: as torch itself sees them, by name, fast, and out of harm's way."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastgood import nonfinite
from lastgood.formats import DamageError
from lastgood.nonfinite import NonFinite, ScanError, poisoned, scan, scan_in_child
from lastgood.pickles import PickleError
from tests.library.made import FORMATS, safetensors, saved

FLOATS = [
    "float64", "float32", "float16", "bfloat16", "complex32", "complex64", "complex128",
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip
NAN, INF = float("nan"), float("inf")


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pieces of 48 bytes, so that small tensors have many of them."""
    monkeypatch.setattr(nonfinite, "CHUNK_BYTES", 48)
    yield
    nonfinite._repeated.cache_clear()


def scanned(content: Any) -> list[NonFinite]:
    """What a scan of the torch file that holds `content` finds."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save(content, Path(folder) / "a.pt")
        return scan(Path(folder) / "a.pt")


def seen_by_torch(tensor: torch.Tensor) -> tuple[int, int, int | None]:
    """NaN and infinite elements as torch counts them, and the first of either."""
    flat = tensor.flatten()
    if flat.dtype is torch.complex32:
        flat = torch.view_as_real(flat).to(torch.float32)
        nans, infinities = flat.isnan().any(1), flat.isinf().any(1)
    else:
        flat = flat if flat.is_complex() else flat.to(torch.float64)
        nans, infinities = flat.isnan(), flat.isinf()
    either = (nans | infinities).nonzero().flatten().tolist()
    return int(nans.sum()), int(infinities.sum()), either[0] if either else None


special = st.sampled_from(
    [
        b"\x00\x00\x80\x7f",
        b"\x00\x00\x80\xff",
        b"\x01\x00\x80\x7f",
        b"\xff\xff\x7f\x7f",
        b"\x00\x00\xf0\x7f",
        b"\x00\x7c\x00\xfc",
        b"\x01\x7c\x80\x7f",
        b"\x80\x80\x7f\xff",
        b"\x7b\xfb\x7d\xfe",
        b"\xff\xff\xff\xff",
    ]
)
raw = st.lists(special | st.binary(min_size=4, max_size=4), min_size=4, max_size=80).map(b"".join)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", FLOATS)
def test_it_sees_what_torch_sees(dtype: str) -> None:
    """Any bits at all, in every float type: the same counts and the same first index as torch.isnan and torch.isinf."""

    @settings(deadline=None, max_examples=60)
    @given(raw)
    def check(data: bytes) -> None:
        tensor = torch.frombuffer(bytearray(data[: len(data) // 16 * 16]), dtype=torch.uint8).view(
            getattr(torch, dtype)
        )
        nans, infinities, first = seen_by_torch(tensor)
        expected = [] if first is None else [NonFinite("w", dtype, nans, infinities, first)]

        assert expected == scanned({"w": tensor})

    check()


@pytest.mark.parametrize("dtype", [one for one in FLOATS if one.startswith("float8")])
def test_every_pattern_of_eight_bits_is_known(dtype: str) -> None:
    """All 256 of them."""
    every = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype))
    nans, infinities, first = seen_by_torch(every)

    assert [NonFinite("w", dtype, nans, infinities, first)] == scanned({"w": every})  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("where", ["first", "last", "before a piece ends", "where a piece begins"])
def test_one_nan_is_found_wherever_it_is(dtype: torch.dtype, where: str) -> None:
    """At both ends of a tensor of several pieces, and on both sides of where one piece meets the next."""
    piece = nonfinite.CHUNK_BYTES // dtype.itemsize
    tensor = torch.zeros(2 * piece + 3, dtype=dtype)
    index = {"first": 0, "last": len(tensor) - 1, "before a piece ends": piece - 1, "where a piece begins": piece}[
        where
    ]
    tensor[index] = NAN

    assert [NonFinite("w", str(dtype).removeprefix("torch."), 1, 0, index)] == scanned({"w": tensor})


SAFETENSORS = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("way", FORMATS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_format_of_torch_is_looked_into(tmp_path: Path, dtype: str, way: str) -> None:
    """The NaN of each type, behind other tensors and in a view of a storage, found by the child process by its name."""
    nan = torch.tensor([255, 255] * 8, dtype=torch.uint8).view(getattr(torch, dtype))
    nan = torch.tensor([0x80] * 16, dtype=torch.uint8).view(nan.dtype) if dtype.endswith("fnuz") else nan
    clean = torch.zeros(48, dtype=torch.uint8).view(nan.dtype)
    whole = torch.cat([clean.view(torch.uint8), nan.view(torch.uint8), clean.view(torch.uint8)]).view(nan.dtype)
    path = saved(tmp_path / "a.pt", {"model": {"clean": clean, "bad": whole}, "part": whole[len(clean) :], "n": 3}, way)

    expected = [
        NonFinite("model.bad", dtype, len(nan), 0, len(clean)),
        NonFinite("part", dtype, len(nan), 0, 0),
    ]
    assert expected == scan_in_child(path, 60)


@pytest.mark.parametrize("dtype", SAFETENSORS)
def test_safetensors_are_looked_into(tmp_path: Path, dtype: str) -> None:
    """The NaN of each type, behind another tensor, found by the child process by its name; other types have none."""
    name = SAFETENSORS[dtype]
    nan = b"\x80" * 16 if name.endswith("fnuz") else b"\xff" * 16
    count = 16 // getattr(torch, name).itemsize
    tensors = {
        "clean": (dtype, [count], bytes(16)),
        "model.bad": (dtype, [2, count], bytes(16) + nan),
        "ints": ("U8", [16], nan),
        "small": ("F4", [32], b"\xff" * 16),
    }
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors(tensors))

    assert [NonFinite("model.bad", name, count, 0, count)] == scan_in_child(path, 60)


@pytest.mark.parametrize("cut", [1, 30, 4000])
def test_a_cut_file_of_any_format_is_an_error(tmp_path: Path, cut: int) -> None:
    """Tensors that are not there are not called clean."""
    tensors = {"a": torch.full((4000,), NAN), "b": torch.ones(20)}
    for way in FORMATS:
        saved(tmp_path / way, tensors, way)
    (tmp_path / "safetensors").write_bytes(
        safetensors({"a": ("F32", [4000], bytes(16000)), "b": ("F32", [2], bytes(8))})
    )
    for path in list(tmp_path.iterdir()):
        path.write_bytes(path.read_bytes()[:-cut])
        with pytest.raises((DamageError, PickleError)):
            scan(path)


def test_large_numbers_are_finite() -> None:
    """The ends of a type's range look like infinities in their highest byte, and are none."""
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2):
        limits = torch.finfo(dtype)
        assert [] == scanned({"mask": torch.tensor([limits.min, limits.max] * 40, dtype=torch.float64).to(dtype)})


def test_tensors_are_named_by_their_path() -> None:
    """In the model, in the optimizer's moments, in a list, in a parameter, and at the top."""
    bad = torch.tensor([1.0, NAN, INF])
    content = {
        "model": {"transformer.h.0.attn.c_attn.weight": bad, "fine": torch.ones(3)},
        "optimizer": {
            "state": {0: {"step": torch.tensor(2.0), "exp_avg": torch.tensor([NAN]), "exp_avg_sq": bad * 0 + 1}}
        },
        "list": [torch.ones(1), (torch.nn.Parameter(-bad),)],
        "whole": torch.nn.Linear(1, 1),
    }
    content["whole"].weight.data.fill_(INF)  # type: ignore[attr-defined]

    assert [
        ("model.transformer.h.0.attn.c_attn.weight", 1, 1, 1),
        ("optimizer.state.0.exp_avg", 1, 0, 0),
        ("optimizer.state.0.exp_avg_sq", 2, 0, 1),
        ("list.1.0", 1, 1, 1),
        ("whole._parameters.weight", 0, 1, 0),
    ] == [(one.name, one.nans, one.infinities, one.first_index) for one in scanned(content)]
    assert ["1"] == [one.name for one in scanned([torch.ones(1), bad])]


def test_only_what_a_tensor_views_counts() -> None:
    """A slice beside the NaN is clean, one over it is not; a view with gaps is judged by its stretch of the storage."""
    base = torch.arange(20.0)
    base[10] = NAN
    views = {"before": base[:10], "over": base[8:12], "behind": base[11:], "gaps": base[1:20:2], "far": base[12::3],
             "transposed": base.view(4, 5).t(), "expanded": base[10:11].expand(4), "again": base[8:12]}  # fmt: skip

    assert {"over": 2, "gaps": 9, "transposed": 10, "expanded": 0, "again": 2} == {
        one.name: one.first_index for one in scanned(views)
    }


def test_what_holds_nothing_is_clean() -> None:
    """Empty tensors, integers that look like NaN, booleans, and a payload without tensors."""
    pattern = torch.full((9,), 0x7FC00000, dtype=torch.int32)

    assert [] == scanned({"empty": torch.zeros(0, 4), "ints": pattern, "bools": torch.ones(3) > 0, "number": NAN})
    with pytest.raises(ScanError, match="names no tensors"):
        scanned({"step": 5})


def test_poison_is_nan_or_a_new_infinity() -> None:
    """An infinity counts only where the tensor's previous snapshot had none, and never without a previous one."""
    nan, inf = NonFinite("a", "float32", 1, 0, 0), NonFinite("mask", "float32", 0, 9, 0)

    assert [nan] == poisoned([nan, inf], {"mask": True})
    assert [nan, inf] == poisoned([nan, inf], {"mask": False})
    assert [nan, inf] == poisoned([nan, inf], {"a": True})
    assert [nan] == poisoned([nan, inf], None)
    assert [] == poisoned([], {"mask": False})


def test_damage_is_an_error_not_a_finding(tmp_path: Path) -> None:
    """What cannot be read through is never called clean."""
    torch.save({"w": torch.full((9000,), NAN)}, tmp_path / "a.pt")
    whole = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[:9000])
    with zipfile.ZipFile(tmp_path / "a.pt") as archive, zipfile.ZipFile(tmp_path / "short.pt", "w") as out:
        out.writestr("a/data.pkl", archive.read("a/data.pkl"))
    (tmp_path / "big.pt").write_bytes(whole.replace(b"little", b"big\0\0\0"))

    for name, error in (
        ("cut.pt", DamageError),
        ("short.pt", DamageError),
        ("big.pt", ScanError),
        ("none.pt", OSError),
    ):
        with pytest.raises(error):
            scan(tmp_path / name)
        with pytest.raises(ScanError):
            scan_in_child(tmp_path / name, 30)


def test_the_child_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process without torch, from any directory, whatever the environment says; its pid is told."""
    torch.save({"model": {f"w{i}é\ud800": torch.tensor([1.0, NAN, -INF]) for i in range(300)}}, tmp_path / "a.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "json.py").write_text("raise SystemExit('another json')")
    told: list[int] = []

    assert scan("a.pt") == scan_in_child("a.pt", 30, told.append)
    assert [False] == [Path(f"/proc/{pid}").exists() for pid in told]


@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_a_child_that_takes_too_long_is_ended(tmp_path: Path, seconds: float) -> None:
    """A pipe that nobody writes to stands for storage that does not answer: nobody waits for it, and no process is left."""
    os.mkfifo(tmp_path / "a.pt")
    told: list[int] = []
    with pytest.raises(ScanError, match="too long"):
        scan_in_child(tmp_path / "a.pt", seconds, told.append)

    assert not Path(f"/proc/{told[0]}").exists()


def test_a_child_that_crashes_takes_nobody_with_it(tmp_path: Path) -> None:
    """Its signal is the reason."""
    os.mkfifo(tmp_path / "a.pt")

    with pytest.raises(ScanError, match="the scan ended by SIGSEGV"):
        scan_in_child(tmp_path / "a.pt", 30, lambda pid: os.kill(pid, signal.SIGSEGV))


@pytest.mark.parametrize("seen", [True, False])
def test_a_child_does_not_outlive_who_started_it(tmp_path: Path, seen: bool) -> None:
    """Whether that one is killed while the child scans, or was gone before the child began."""
    os.mkfifo(tmp_path / "a.pt")
    if not seen:
        root, nobody = str(Path(nonfinite.__file__).parent.parent), "0"
        orphan = [sys.executable, "-I", "-S", "-c", nonfinite._CHILD, root, str(tmp_path / "a.pt"), nobody]
        assert 1 == subprocess.run(orphan, check=False).returncode
        return
    code = "import sys; from lastgood.nonfinite import scan_in_child as s; s(sys.argv[1], 600, lambda p: print(p, flush=True))"
    command = [sys.executable, "-c", code, str(tmp_path / "a.pt")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        child = int(starter.stdout.readline())
        time.sleep(1)  # until it scans; sooner it is gone all the same
        starter.kill()
    deadline = time.monotonic() + 60
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_the_report_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most so many tensors are listed, and names of any length are cut."""
    torch.save({"x" * 5000: torch.tensor(NAN), "b": torch.tensor(NAN), "c": torch.tensor(NAN)}, tmp_path / "a.pt")
    monkeypatch.setattr(nonfinite, "MAX_FOUND", 2)
    assert ["x" * 500 + "…", "b"] == [one.name for one in scan(tmp_path / "a.pt")]

    monkeypatch.setattr(nonfinite, "MAX_REPORT_BYTES", 100)
    with pytest.raises(ScanError, match="more than it has to say"):
        scan_in_child(tmp_path / "a.pt", 30)


def test_the_caller_stays_small_and_the_scan_is_fast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """400 MB are scanned by a process that stays below 40 MB, whose child stays below 60 MB; the speed is printed."""
    torch.save({"w": torch.rand(50_000_000), "m": torch.rand(100_000_000).bfloat16()}, tmp_path / "a.pt")
    code = (
        "import sys, time; from lastgood.nonfinite import scan_in_child; peak = lambda pid: int(open(f'/proc/{pid}/status')"
        ".read().split('VmHWM:')[1].split()[0]) >> 10; began = time.monotonic(); found = scan_in_child(sys.argv[1], 60);"
        "print(len(found), peak('self'), time.monotonic() - began);"
        "from lastgood.nonfinite import scan; scan(sys.argv[1]); print(peak('self'), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "a.pt"], capture_output=True, text=True, check=True)
    found, caller, seconds, scanner, imported = done.stdout.split()
    with capsys.disabled():
        print(f"\nscan in a child: {400 / float(seconds):,.0f} MB/s; caller {caller} MB, scanner {scanner} MB")

    assert ("0", "False") == (found, imported)
    assert int(caller) < 40
    assert int(scanner) < 60

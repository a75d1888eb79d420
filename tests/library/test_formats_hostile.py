"""Files made to harm whoever reads them: nothing in them is executed, and they cost little time and little memory.

Each is judged, and asked what is inside of it, by a process of its own, which says what that took: in processor seconds,
which depend on the machine and on the hour, and beside them those of a plain piece of work before and after it.
"""

import json
import os
import statistics
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.library.made import legacy_around, with_header, zip_around

PLAIN_WORK_MAX = 10.0
"""Of what Python's own pickletools take to go through a million operations: 0.20 s where two seconds were the bar."""
READINGS_MAX = 3
"""What a neighbour of the machine does can make a reading worse, and none better."""
MEMORY_MB_MAX = 600
AROUND: dict[str, Callable[..., bytes]] = {"zip": zip_around, "legacy": legacy_around}
PROVEN_BY = {"zip": "intact", "legacy": "unproven"}

CHILD = """
import json, os, pickletools, resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from lastgood import formats
from lastgood.describe import describe
from lastgood.judging import verify

def tensors(path):
    with open(path, "rb") as file:
        module = formats.format_of(file, os.stat(path).st_size)
        return sum(1 for _ in module.inside(file).tensors)

PLAIN = b"\\x80\\x02" + b"N0" * 500_000 + b"N."
def plain_work():
    before = time.process_time()
    for _ in pickletools.genops(PLAIN):
        pass
    return time.process_time() - before

path, said = sys.argv[1], {"seconds": [], "plain": [plain_work()]}
for phase in sys.argv[2:]:
    before = time.process_time()
    if phase == "judge":
        verdict = verify(path)
        said |= {"kind": verdict.kind, "reason": verdict.reason}
    elif phase == "describe":
        found = describe(path)
        said |= {"described": len(found.tensors), "problem": found.problem, "longest": max(len(x.name) for x in found.keys)}
    else:
        try:
            said["tensors"] = tensors(path)
        except Exception as error:
            said["error"] = f"{type(error).__name__}: {error}"
    said["seconds"].append(time.process_time() - before)
    said["plain"].append(plain_work())
said["memory"] = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) >> 10
print(json.dumps(said))
"""


def read(path: Path, *phases: str) -> dict[str, Any]:
    """What a process of its own finds out about a file: its verdict, what is inside, or both; each within the limits."""
    command = [sys.executable, "-c", CHILD, str(path), *(phases or ("judge", "look inside"))]
    for _ in range(READINGS_MAX):
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=path.parent)
        said: dict[str, Any] = json.loads(done.stdout)
        assert said["memory"] < MEMORY_MB_MAX, said
        if cost(said) < PLAIN_WORK_MAX:
            return said
    pytest.fail(f"of {READINGS_MAX} readings none took less than {PLAIN_WORK_MAX} times the plain work: {said}")


def cost(said: dict[str, Any]) -> float:
    """The most that any phase took, in terms of the plain work around it."""
    around = zip(said["plain"][:-1], said["plain"][1:], strict=True)
    return max(took / statistics.mean(both) for took, both in zip(said["seconds"], around, strict=True))


def text(content: bytes) -> bytes:
    return b"X" + struct.pack("<L", len(content)) + content


def keys(many: int, key: Callable[[int], bytes]) -> bytes:
    return b"\x80\x02}(" + b"".join(key(number) + b"N" for number in range(many)) + b"u."


def minus_one_or_two(number: int) -> bytes:
    """A tuple of -1 and -2, of which Python computes one hash for all."""
    return b"(" + b"".join((b"J\xff\xff\xff\xff", b"J\xfe\xff\xff\xff")[number >> bit & 1] for bit in range(17)) + b"t"


def tied_tensor(many: int) -> bytes:
    """One tensor without a byte, of as many dimensions as there may be, under a long name, many times."""
    reference = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x00tQ"
    shape = b"(" + b"K\x00" * 64 + b"t"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + reference + b"K\x00" + shape + shape + b"\x89NtRq\x00"
    return b"\x80\x02}" + text(b"n" * 10_000) + b"(" + tensor + b"h\x00" * (many - 1) + b"ts."


LONG_KEY = text(b"k" * (15 << 20))

BOMBS: dict[str, tuple[bytes, str]] = {
    "deep tuples": (b"\x80\x02)" + b"\x85" * 1_900_000 + b".", ""),
    "deep lists": (b"\x80\x02" + b"]" * 490_000 + b"a" * 489_999 + b".", ""),
    "deep dictionaries": (b"\x80\x02" + b"}K\x01" * 490_000 + b"N" + b"s" * 490_000 + b".", ""),
    "deep calls": (b"\x80\x02ca\nb\nq\x00" + b"h\x00" * 489_999 + b"N" + b"\x85R" * 490_000 + b".", ""),
    "a deep key": (b"\x80\x02})" + b"\x85" * 1_000_000 + b"Ns.", "neither text, a number nor a flat tuple"),
    "each list twice in the next": (b"\x80\x02]q\x00" + b"0](h\x00h\x00eq\x00" * 300_000 + b".", ""),
    "a list in itself": (b"\x80\x02]" + b"2a" * 900_000 + b".", ""),
    "a memo of millions": (
        b"\x80\x02N" + b"".join(b"r" + struct.pack("<L", n) for n in range(1_900_000)) + b".", "",
    ),
    "a memo far out": (b"\x80\x02Nr\xff\xff\xff\xff0Np4294967294000\n.", ""),
    "operations without end": (b"\x80\x02" + b"N0" * 5_000_000 + b"N.", "more than 2,000,000 operations"),
    "sets without end": (b"\x80\x02(" + b"\x8f" * 1_000_000 + b"t.", "more than 500,000 containers"),
    "names without end": (b"\x80\x02(" + b"ca\nb\n" * 1_000_000 + b"t.", "more than 500,000 containers"),
    "four gigabytes of text": (b"\x80\x04\x8d" + struct.pack("<Q", 4 << 30) + b"abc.", "goes on to byte 4,294,967"),
    "four gigabytes of bytes": (b"\x80\x04\x8e" + struct.pack("<Q", 4 << 30) + b"abc.", "goes on to byte 4,294,967"),
    "four gigabytes, the older way": (b"\x80\x02X\xff\xff\xff\xffabc.", "goes on to byte 4,294,967"),
    "all there can be": (b"\x80\x04\x8e" + b"\xff" * 8 + b"abc.", "goes on to byte 18,446,744,073,709,551"),
    "a text of megabytes": (b"\x80\x02" + text(b"a" * (20 << 20)) + b".", "longer than 16,777,216 bytes"),
    "texts that take four times as much": (b"\x80\x02(" + text(b"a" * (15 << 20) + "😀".encode()) * 4 + b"t.", ""),
    "a line without end": (b"\x80\x02V" + b"a" * (20 << 20) + b"\n.", "longer than 16,777,216 bytes"),
    "a number without end": (b"\x80\x02L" + b"9" * (15 << 20) + b"L\n.", "absurdly long"),
    "a number in binary without end": (b"\x80\x02\x8b\x00\x00\x10\x00" + b"\1" * (1 << 20) + b".", "absurdly long"),
    "a fraction without end": (b"\x80\x02F" + b"9" * (15 << 20) + b"\n.", "absurdly long"),
    "keys that collide, tuples": (keys(90_000, minus_one_or_two), "keys that could be made to collide"),
    "keys that collide, fractions": (
        keys(100_000, lambda n: b"G" + struct.pack(">d", float((1 << 61) - 1) * n)), "keys that could be made to collide",
    ),
    "keys that collide, integers": (
        keys(100_000, lambda n: b"\x8a\x0f" + (((1 << 61) - 1) * n).to_bytes(15, "little")), "keys that could be made to collide",
    ),
    "keys that nearly collide": (keys(600_000, lambda n: b"\x8a\x08" + (n << 40).to_bytes(8, "little")), ""),
    "long keys, compared to the end": (
        b"\x80\x02" + LONG_KEY + b"q\x000" + LONG_KEY + b"q\x010}" + b"h\x00Nsh\x01Ns" * 300_000 + b".",
        "a key is longer than 16,384",
    ),
    "a long tuple, hashed again and again": (
        b"\x80\x02(" + b"N" * 400_000 + b"tq\x000}" + b"h\x00Ns" * 400_000 + b".", "keys have more than 500,000 parts",
    ),
}  # fmt: skip


SOME = ["deep lists", "a memo of millions", "operations without end", "four gigabytes of text", "a line without end"]
"""Those that the legacy format, in which the same pickles are read piece by piece, is tried with too."""


@pytest.mark.parametrize(("way", "bomb"), [*(("zip", bomb) for bomb in BOMBS), *(("legacy", bomb) for bomb in SOME)])
def test_a_bomb_is_named_and_costs_little(quick_path: Path, bomb: str, way: str) -> None:
    """Depth, repetition, sizes that are not there or are, numbers and keys chosen to take long."""
    pickle, reason = BOMBS[bomb]
    path = quick_path / "ckpt_1.pt"
    path.write_bytes(AROUND[way](pickle))
    said = read(path)
    limits = ("operations", "containers", "parts", "collide", "16,384", "absurdly long", "flat tuple")
    too_large = reason.endswith(limits) or reason.startswith("longer")

    assert reason in said["reason"], said
    assert (said["kind"] == PROVEN_BY[way]) == (not reason or too_large), said


@pytest.mark.parametrize("way", AROUND)
def test_a_command_is_named_and_does_not_run(quick_path: Path, way: str) -> None:
    """What a pickle would import is told; nothing of it is imported, called or built."""
    path = quick_path / "a.pt"
    command = f"touch {quick_path}/ran".encode()
    path.write_bytes(AROUND[way](b"\x80\x02cposix\nsystem\n" + text(command) + b"\x85R."))
    said = read(path)

    assert (["a.pt"], 0) == (os.listdir(quick_path), said["tensors"])
    with path.open("rb") as file:
        from lastgood import formats

        module = formats.format_of(file, path.stat().st_size)
        assert module is not None
        assert ["posix.system"] == [str(one) for one in module.inside(file).globals]


@pytest.mark.parametrize("way", AROUND)
def test_one_tensor_very_many_times_is_counted(quick_path: Path, way: str) -> None:
    """Of however many dimensions, and under however long a name."""
    path = quick_path / "a.pt"
    path.write_bytes(AROUND[way](tied_tensor(300_000), {"0": b"" if way == "zip" else (0, b"")}))

    assert 300_000 == read(path)["tensors"]


THREE = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
    b"K\x03tQK\x00K\x03\x85K\x01\x85\x89NtR"
)
"""A tensor of three numbers."""
UNFOLDING = b")" + b"2\x86" * 60
"""A tuple that holds another one twice, which holds another one twice."""
NAMED_BY = {
    "a key": b"\x80\x02}ca\nb\n" + UNFOLDING + b"R" + THREE + b"s.",
    "a key in a tuple": b"\x80\x02}(ca\nb\n" + UNFOLDING + b"RK\x01t" + THREE + b"s.",
    "an item of a call": b"\x80\x02}K\x01ca\nb\n)R(" + UNFOLDING + THREE + b"us.",
}


@pytest.mark.parametrize("way", NAMED_BY)
def test_a_name_does_not_unfold(quick_path: Path, way: str) -> None:
    """Damaged or not, judged or described: what names a tensor is not written out."""
    path = quick_path / "a.pt"
    numbers = struct.pack("<3f", 1, 2, 3)
    path.write_bytes(zip_around(NAMED_BY[way], {"0": numbers}))
    said = read(path, "judge", "look inside", "describe")
    assert ("intact", 1, 1) == (said["kind"], said["tensors"], said["described"])
    assert said["longest"] < 100

    path.write_bytes(path.read_bytes().replace(numbers, bytes(12)))
    assert "(0 of 1 tensors intact)" in read(path, "judge")["reason"]


def test_a_tensor_named_a_million_times_costs_little(quick_path: Path) -> None:
    """To count it costs no names, and so many are not described."""
    path, numbers = quick_path / "a.pt", struct.pack("<3f", 1, 2, 3)
    many = b"\x80\x02" + text(b"k" * 1000) + b"q\x000" + THREE + b"q\x010" + b"}h\x00" * 60 + b"]("
    path.write_bytes(zip_around(many + b"h\x01" * 400_000 + b"e" + b"s" * 60 + b".", {"0": numbers}))
    said = read(path, "describe")
    assert (250_000, True) == (said["described"], "more than 250,000 tensors" in said["problem"])

    path.write_bytes(zip_around(many + b"h\x01" * 1_000_000 + b"e" + b"s" * 60 + b".", {"0": numbers}))
    path.write_bytes(path.read_bytes().replace(numbers, bytes(12)))
    said = read(path, "judge")
    assert "(0 of 1000000 tensors intact)" in said["reason"]
    assert said["memory"] < 200


def sparse(path: Path, way: str, size: int) -> None:
    """A file with a text of `size` zeros in its pickle, all of which are there, and take no room on the disk."""
    pickle = b"\x80\x04\x8d" + struct.pack("<Q", size)
    if way == "legacy":
        head, tail = legacy_around(b"|").split(b"|")
        with path.open("wb") as file:
            file.write(head + pickle)
            file.seek(size, os.SEEK_CUR)
            file.write(b"." + tail)
        return
    length, crc = (
        len(pickle) + size + 1,
        zlib.crc32(pickle) if size > 1 << 30 else zlib.crc32(pickle + bytes(size) + b"."),
    )
    most, name = 0xFFFFFFFF, b"archive/data.pkl"
    extra = struct.pack("<2H2Q", 1, 16, length, length)
    with path.open("wb") as file:
        file.write(
            struct.pack("<4s5H3L2H", b"PK\3\4", 45, 0, 0, 0, 33, crc, most, most, len(name), 20) + name + extra + pickle
        )
        file.seek(size, os.SEEK_CUR)
        start = file.write(b".") and file.tell()
        entry = struct.pack(
            "<4s6H3L5H2L", b"PK\1\2", 45, 45, 0, 0, 0, 33, crc, most, most, len(name), 20, 0, 0, 0, 0, 0
        )
        entry += name + extra
        end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(entry), start)
        end += struct.pack("<4sLQL", b"PK\6\7", 0, start + len(entry), 1)
        file.write(entry + end + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(entry), most, 0))


@pytest.mark.parametrize("way", AROUND)
def test_four_gigabytes_that_are_really_there_are_not_read(tmp_path: Path, way: str) -> None:
    """What is inside is asked for in a moment; to judge one, its bytes are hashed and no more of them kept."""
    path = tmp_path / "a.pt"
    sparse(path, way, 4 << 30)
    assert any(words in read(path, "look inside")["error"] for words in ("it has 4,294,967,", "longer than 67,108,864"))

    sparse(path, way, 200 << 20)
    said = read(path, "judge")
    assert (PROVEN_BY[way], True) == (said["kind"], "not read" in said["reason"])


def test_a_directory_of_very_many_records_costs_little(quick_path: Path) -> None:
    """As many as are read at all, none of them there."""
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", 0, 0, 0, 0, 0, 33, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    header = struct.pack("<4s5H3L2H", b"PK\3\4", 0, 0, 0, 0, 33, 0, 0, 0, 1, 0) + b"a"
    count = 250_000
    for shown in (count, count + 1):
        end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, shown, shown, len(entry) * count, len(header))
        end += struct.pack("<4sLQL", b"PK\6\7", 0, len(header) + len(entry) * count, 1)
        end += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, len(entry) * count, len(header), 0)
        (quick_path / "a.pt").write_bytes(header + entry * count + end)

        assert read(quick_path / "a.pt", "judge")["kind"] == ("corrupt" if shown == count else "unproven")


@pytest.mark.parametrize(
    "header",
    [
        '{"a":' + "[" * 8_000_000,
        '{"a":[' + "{}," * 4_000_000 + "{}]}",
        '{"a":[' + "[]," * 4_000_000 + "[]]}",
        "{" + ",".join(f'"{n}":{{}}' for n in range(900_000)) + "}",
        '{"a":[' + "9" * 4000 + ",1" * 5_000_000 + "]}",
        '{"a":{"dtype":"U8","data_offsets":[0,0],"shape":[' + ",".join(["18446744073709551615"] * 700_000) + "]}}",
        '{"a":{"dtype":"U8","data_offsets":[0,0],"shape":[' + ",".join(["1"] * 6_000_000) + "]}}",
        '{"' + "a" * (11 << 20) + '":1}',
    ],
    ids=["deep", "dictionaries", "lists", "entries", "a long number", "large numbers", "many numbers", "a long name"],
)
def test_a_header_in_json_costs_little(quick_path: Path, header: str) -> None:
    """Depth, repetition, long numbers and names, in as many bytes as are read at all."""
    path = quick_path / "a.safetensors"
    path.write_bytes(with_header(header[: 12 << 20]))

    assert "corrupt" == read(path, "judge")["kind"]
    read(path, "look inside")


def test_a_header_of_a_hundred_megabytes_is_not_read(quick_path: Path) -> None:
    """The format allows it; it is as good as any bytes without a proof."""
    path = quick_path / "a.safetensors"
    path.write_bytes(with_header(b"{}" + b" " * 90_000_000))
    said = read(path, "judge")

    assert ("unproven", True) == (said["kind"], "longer than is read here" in said["reason"])

"""Seals: every form that people have, and what makes one unusable."""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lastgood.seal import Identity, Seal, SealDamaged, parse_seal, seal_text

D = hashlib.sha256(b"x").hexdigest()
E = hashlib.sha256(b"y").hexdigest()


@pytest.mark.parametrize(
    "content",
    [
        f"{D}  a.pt\n",
        f"{D} *a.pt\n",
        f"{D.upper()}  a.pt\r\n",
        f"\ufeff{D}  a.pt\n",
        D,
        f"{D}\n",
        f"{D} a.pt",
        f"# made by hand\n\n{D}  ./a.pt\n",
        f"{E}  b.pt\n{D}  a.pt\n",
        f"{D}\ta.pt   \n",
        f"SHA256 (a.pt) = {D}\n",
        f"SHA256(a.pt)= {D}\n",
        f"SHA2-256(a.pt)= {D}\n",
    ],
)
def test_every_common_form_is_read(content: str) -> None:
    """Markers, case, line ends, marks of encoding, bare digests, lists and comments do not matter."""
    assert Seal(D) == parse_seal(content.encode("utf-8"), "a.pt")


def test_utf_16_with_a_mark_is_read() -> None:
    """A seal written by a Windows shell in UTF-16 is read."""
    assert Seal(D) == parse_seal(f"\ufeff{D}  a.pt\r\n".encode("utf-16-le"), "a.pt")
    assert Seal(D) == parse_seal(f"\ufeff{D}  a.pt\r\n".encode("utf-16-be"), "a.pt")


@pytest.mark.parametrize(
    "content",
    ["", "\0\0\0", "\n", D[:-1], "da39a3ee5e6b4b0d3255bfef95601890afd80709", f"{D}  b.pt", "x", f"{D} a.pt\n{E} a.pt"],
)
def test_an_unusable_seal_is_a_fault_of_the_seal(content: str) -> None:
    """Empty, short, other digests, other files and contradictions give a reason that begins with seal-damaged."""
    found = parse_seal(content.encode(), "a.pt")

    assert isinstance(found, SealDamaged)
    assert found.reason.startswith("seal-damaged: ")


def test_a_seal_accepts_the_digest_it_is_replacing() -> None:
    """While a name is overwritten, old and new bytes both match its seal, and others do not."""
    found = parse_seal(seal_text(D, "a.pt", (E,)).encode(), "a.pt")

    assert isinstance(found, Seal)
    assert (True, True, False) == (found.accepts(D), found.accepts(E), found.accepts("0" * 64))


names = st.binary(min_size=1, max_size=60).map(lambda raw: os.fsdecode(raw.replace(b"\0", b"0").replace(b"/", b"|")))
"""What a folder may hold: any bytes but these two."""

awkward = st.builds(
    "".join, st.lists(st.sampled_from(["*", " ", "\t", "\\", "\n", "\r", "#", "a", "\udcff", "é"]), min_size=1)
)
"""Names of what means something in a list of digests."""


@example("*")
@example(" *a")
@example("# replaces x")
@example(f"{D}  a.pt")
@given(names | awkward)
def test_any_file_name_survives_a_round_trip(name: str) -> None:
    """What is written for a name is read back for that name, whatever bytes are in it."""
    assert Seal(D) == parse_seal(seal_text(D, name).encode("utf-8", "surrogateescape"), name)
    assert Seal(D, (E, E)) == parse_seal(seal_text(D, name, (E, E)).encode("utf-8", "surrogateescape"), name)


on_disk = (names | awkward).filter(lambda name: name not in (".", "..", "-"))
"""Of these the first two are folders, and coreutils takes the third for what comes through a pipe."""


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(on_disk, min_size=1, max_size=20, unique=True))
def test_sha256sum_agrees_for_any_name(tmp_path: Path, found: list[str]) -> None:
    """coreutils finds every file that our lines name, and finds them right."""
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        for name in found:
            Path(folder, name).write_bytes(b"x")
        lines = "".join(seal_text(D, name, (E,)) for name in found)
        (tmp_path / "list").write_bytes(lines.encode("utf-8", "surrogateescape"))
        command = ["sha256sum", "--strict", "-c", "../list"]
        checked = subprocess.run(command, cwd=folder, capture_output=True, check=False)

    assert (0, b"", len(found)) == (checked.returncode, checked.stderr, checked.stdout.count(b": OK\n"))


@given(
    st.sampled_from(["a.pt", "b c.pt", "*a.pt"]),
    st.sampled_from([str.lower, str.upper, str.title]),
    st.sampled_from(["  ", " *", " ", "\t", "   "]),
    st.sampled_from(["", "./", "/data/run/", "../run/"]),
    st.sampled_from(["\n", "\r\n", ""]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-be"]),
    st.lists(st.sampled_from(["# a comment", "", f"{E}  other.pt", "   "]), max_size=3),
)
def test_forms_may_be_combined(
    name: str, case: Callable[[str], str], gap: str, folder: str, end: str, encoding: str, others: list[str]
) -> None:
    """Case, gap, marker, folder, end of line, encoding, and lines about other things may come in any combination."""
    lines = [*others, f"{case(D)}{gap}{folder}{name}"]
    text = (end or "\n").join(lines) + end
    mark = "\ufeff" if encoding == "utf-16-be" else ""

    assert Seal(D) == parse_seal(f"{mark}{text}".encode(encoding), name)


@given(names | awkward, st.binary(max_size=200))
def test_no_content_of_a_seal_file_is_too_odd(name: str, content: bytes) -> None:
    """Whatever bytes are in a seal file, the answer is a digest that is in it, or what is wrong with it."""
    found = parse_seal(content, name)

    assert isinstance(found, SealDamaged) or found.sha256.encode() in content.lower()


@pytest.mark.parametrize("name", ["ckpt_00000001.pt", "with space.pt", "back\\slash.pt", "new\nline.pt"])
def test_coreutils_agrees(tmp_path: Path, name: str) -> None:
    """`sha256sum -c` accepts our seals, comments and escapes included."""
    (tmp_path / name).write_bytes(b"x")
    (tmp_path / "seal").write_text(seal_text(D, name, (E,)))

    checked = subprocess.run(["sha256sum", "--strict", "-c", "seal"], cwd=tmp_path, capture_output=True, check=False)

    assert checked.returncode == 0, checked.stderr


def test_identity_follows_content(tmp_path: Path) -> None:
    """A file's identity is the same until it is written or replaced."""
    path = tmp_path / "a"
    path.write_bytes(b"1")
    before = Identity.of(path.stat())

    assert before == Identity.of(path.stat())
    path.write_bytes(b"22")
    assert before != Identity.of(path.stat())


def test_a_long_line_of_blanks_costs_no_time() -> None:
    """A megabyte made to confuse a pattern is refused at once."""
    import time

    started = time.process_time()
    found = parse_seal(f"{D}  a{' ' * 1_000_000}b\n".encode(), "a.pt")

    assert isinstance(found, SealDamaged)
    assert time.process_time() - started < 20  # a square of it would be hours


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop"])
def test_what_only_has_a_seals_name_is_a_damaged_seal(tmp_path: Path, kind: str) -> None:
    """A folder, a pipe or a loop of links in the seal's place is a fault of the seal, and is not waited for."""
    from lastgood.seal import read_seal

    path, place = tmp_path / "a.pt", tmp_path / "a.pt.sha256"
    path.write_bytes(b"x")
    match kind:
        case "folder":
            place.mkdir()
        case "pipe":
            os.mkfifo(place)
        case "loop":
            place.symlink_to(place)

    assert isinstance(read_seal(path, Identity.of(path.stat())), SealDamaged)


def test_a_file_of_that_name_that_is_too_large_is_no_seal(tmp_path: Path) -> None:
    """It is not read to its end, and is a fault of the seal."""
    from lastgood.seal import MAX_SEAL_BYTES, read_seal

    path = tmp_path / "a.pt"
    path.write_bytes(b"x")
    with Path(f"{path}.sha256").open("wb") as file:
        file.truncate(MAX_SEAL_BYTES + 1)

    found = read_seal(path, Identity.of(path.stat()))
    assert isinstance(found, SealDamaged)
    assert "larger than any list" in found.reason

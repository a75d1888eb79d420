"""Seals: every form that people have, and what makes one unusable."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
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


@given(st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=80))
def test_any_file_name_survives_a_round_trip(name: str) -> None:
    """What is written for a name is read back for that name, whatever characters are in it."""
    if name.strip(" \t") != name or name in (".", ".."):
        return  # leading and trailing blanks are not told apart from the format's own

    assert Seal(D) == parse_seal(seal_text(D, name).encode("utf-8", "surrogateescape"), name)


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

    started = time.monotonic()
    found = parse_seal(f"{D}  a{' ' * 1_000_000}b\n".encode(), "a.pt")

    assert isinstance(found, SealDamaged)
    assert time.monotonic() - started < 1


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

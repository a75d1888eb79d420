"""Room for the next save, and what quarantine gives up for it."""

import os
import shutil
from pathlib import Path

import pytest

from lastgood.rungs import ever_held_one
from lastgood.sealing import seal_snapshot
from supervisor.adapters import places, space
from tests.conftest import MakeSnapshot, flip_bit


def aside(folder: Path, path: Path, reason: str, damage: bool = True) -> Path:
    """A snapshot in quarantine, cut short if it is to be damaged."""
    if damage:
        os.truncate(path, path.stat().st_size // 2)
    return Path(places.set_aside(str(folder), path.name, {"name": path.name, "step": 1, "reason": reason}))


def trimmed(folder: Path, limit_bytes: int = 0, free_at: int = 99) -> list[str]:
    """Names that were removed when there is room after so many."""
    gone: list[str] = []
    for one in space.trim(str(folder), limit_bytes, lambda: len(gone) >= free_at):
        gone.append(one.name)
    return gone


def test_the_oldest_broken_ones_go_until_there_is_room(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """No more than is needed; the reason stays where it is, and so does the knowledge that there was a snapshot."""
    kept = [aside(tmp_path, make_zip(f"step_{n}.pt", n), "truncated: ends early") for n in (1, 2, 3)]
    for number, path in enumerate(kept):
        os.rename(path.parent, path.parent.with_name(f"2026010{number + 1}T000000Z-{path.name}"))

    assert ["step_1.pt", "step_2.pt"] == trimmed(tmp_path, free_at=2)
    left = sorted(str(p.relative_to(tmp_path / ".lastgood/quarantine")) for p in tmp_path.rglob("2026*/*"))
    assert [
        "20260101T000000Z-step_1.pt/reason.json",
        "20260102T000000Z-step_2.pt/reason.json",
        "20260103T000000Z-step_3.pt/reason.json",
        "20260103T000000Z-step_3.pt/step_3.pt",
    ] == left
    assert ["step_3.pt"] == trimmed(tmp_path)
    assert [] == trimmed(tmp_path)
    assert ever_held_one(tmp_path)


def test_what_fits_the_limit_stays(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """However short the disk is."""
    sizes = [aside(tmp_path, make_zip(f"step_{n}.pt", n), "truncated: x").stat().st_size for n in (1, 2, 3)]

    assert 1 == len(trimmed(tmp_path, limit_bytes=sum(sizes) - 1))
    assert [] == trimmed(tmp_path, limit_bytes=sum(sizes) - 1)


@pytest.mark.parametrize("reason", ["unproven: suspected: 2 deaths alike", "poisoned: diverged", "it is at step 3", ""])
def test_whole_snapshots_stay_in_quarantine(reason: str, make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """One that was only suspected may have to go back; nothing whose bytes are good is ever removed."""
    path = aside(tmp_path, make_zip("step_1.pt"), reason, damage=False)

    assert [] == trimmed(tmp_path)
    assert path.exists()


def test_good_bytes_stay_whatever_was_said_of_them(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """Bytes are read again before they go: storage that was wrong once may be right by now."""
    assert aside(tmp_path, make_zip("step_1.pt"), "truncated: ends early", damage=False).exists()
    assert [] == trimmed(tmp_path)


def test_a_broken_one_goes_with_its_seals_and_without_a_reason(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """On a full disk the reason could not be written, and it is then above all that room is needed."""
    path = make_zip("step_1.pt")
    seal_snapshot(path)
    flip_bit(path, 3000)
    there = aside(tmp_path, path, "corrupt: x", damage=False)
    (there.parent / "reason.json").unlink()
    assert (there.parent / "step_1.pt.sha256").exists()

    assert ["step_1.pt"] == trimmed(tmp_path)
    assert [] == os.listdir(there.parent)


def test_bytes_that_only_a_lost_seal_condemned_go_by_what_was_said(tmp_path: Path) -> None:
    """A format without checksums cannot be judged again: what was found when it was set aside counts; else it stays."""
    for name, reason in (("a.bin", "corrupt: its digest differs"), ("b.bin", "unproven: suspected: 2 deaths alike")):
        (tmp_path / name).write_bytes(b"\x80\x02}q\x00." + bytes(100))
        aside(tmp_path, tmp_path / name, reason, damage=False)

    assert ["a.bin"] == trimmed(tmp_path)


def test_what_has_no_proof_and_was_passed_over_goes_too(tmp_path: Path) -> None:
    """A trainer without checksums that is killed again and again would fill the disk with snapshots that nobody goes back to."""
    (tmp_path / "state_5.bin").write_bytes(b"\x80\x02}q\x00." + bytes(100))
    there = aside(tmp_path, tmp_path / "state_5.bin", "unproven: it has no checksums", damage=False)

    assert ["state_5.bin"] == trimmed(tmp_path)
    assert ["reason.json"] == os.listdir(there.parent)


def test_a_folder_goes_whole(tmp_path: Path) -> None:
    """A snapshot that is a folder is one snapshot."""
    parts = tmp_path / "step-5"
    parts.mkdir()
    (parts / "model.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{}")
    aside(tmp_path, parts, "truncated: ends early", damage=False)

    assert ["step-5"] == trimmed(tmp_path)


def test_nothing_outside_quarantine_is_touched(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """Not a broken snapshot that is still in the directory, nor where a link in quarantine leads."""
    bad = make_zip("step_9.pt", 9)
    os.truncate(bad, 50)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_bytes(b"x")
    there = aside(tmp_path, make_zip("step_1.pt"), "truncated: x")
    (there.parent / "their-link").symlink_to(elsewhere)

    assert ["step_1.pt"] == trimmed(tmp_path)
    assert ["reason.json"] == os.listdir(there.parent)
    assert bad.exists()
    assert (elsewhere / "precious").exists()


def test_an_end_in_the_middle_goes_on_next_time(
    make_zip: MakeSnapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot goes first; what belonged to it goes with the next trim."""
    path = make_zip("step_1.pt")
    seal_snapshot(path)
    there = aside(tmp_path, path, "truncated: ends early")
    real = os.unlink

    def unlink(path: str) -> None:
        if path.endswith(".sha256"):
            raise OSError(5, "Input/output error")
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(OSError, match="Input/output"):
            trimmed(tmp_path)
    assert {"reason.json", "step_1.pt.sha256"} == set(os.listdir(there.parent))
    trimmed(tmp_path)
    assert ["reason.json"] == os.listdir(there.parent)


def test_room_counts_bytes_and_files(tmp_path: Path) -> None:
    """A little more than the newest snapshot must be free, and files for it and its seals; without a limit they do not matter."""
    needs = space.room_for(str(tmp_path), 1_000_000, 3)
    assert shutil.disk_usage(tmp_path).free == pytest.approx(needs.free_bytes, rel=0.1)
    assert (1_000_000 * 105 // 100 + space.RESERVE_BYTES, 3 + space.RESERVE_INODES) == (
        needs.needed_bytes,
        needs.needed_inodes,
    )
    rooms = [space.Room(*one) for one in ((10, None, 10, 5), (9, None, 10, 5), (10, 5, 10, 5), (10, 4, 10, 5))]
    assert [True, False, True, False] == [one.is_enough for one in rooms]
    assert [] == trimmed(tmp_path)


def test_a_folder_is_made_of_all_that_is_in_it(tmp_path: Path) -> None:
    """Each file of it needs an inode."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").touch()
    (tmp_path / "d").touch()
    assert (3, 1) == tuple(space.files_of(str(tmp_path / name)) for name in ("a", "d"))

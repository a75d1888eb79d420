"""Which names came or went is told at the cost of one stat while none did, and of the names alone when some did."""

import os
import time
from pathlib import Path

import pytest

from supervisor import candidates
from supervisor.candidates import Candidates, stamp_of


def aged(folder: Path) -> None:
    """Make a directory look as if nothing had come to it or gone for a while."""
    then = time.time_ns() - 2 * candidates.YOUNG_NS
    os.utime(folder, ns=(then, then))


def test_names_that_came_or_went_are_told_and_partials_noticed(tmp_path: Path) -> None:
    """Seals, what others call unfinished and what is no candidate are neither."""
    for name in ("ckpt_1.pt", "ckpt_1.pt.sha256", ".ckpt_2.pt.partial-1-00000000", "ckpt_3.pt.tmp", "ckpt_4.pt", "log"):
        (tmp_path / name).touch()
    seen: list[str] = []

    assert {"ckpt_4.pt", "ckpt_0.pt"} == Candidates(str(tmp_path), None, {}).came_or_went(
        {"ckpt_0.pt", "ckpt_1.pt"}, seen.append
    )
    assert [".ckpt_2.pt.partial-1-00000000"] == seen


def test_an_unchanged_directory_costs_one_stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read again once something came, and as long as something may have come in the same moment."""
    (tmp_path / "a.pt").touch()
    found = Candidates(str(tmp_path), None, {})
    aged(tmp_path)
    assert {"a.pt"} == found.came_or_went(set(), lambda _: None)
    with monkeypatch.context() as patched:
        patched.setattr(candidates, "entries_of", lambda _: pytest.fail("it was read again"))
        assert set() == found.came_or_went(set(), lambda _: None)
    (tmp_path / "b.pt").touch()

    assert {"b.pt"} == found.came_or_went({"a.pt"}, lambda _: None)
    assert {"b.pt"} == found.came_or_went({"a.pt"}, lambda _: None)


def test_of_folders_and_links_only_what_may_be_one_is_told(tmp_path: Path) -> None:
    """A folder may be a snapshot by what comes into it, which its directory does not show; a link may lead to one by any name."""
    (tmp_path / "step_100").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "best").symlink_to("nowhere")
    aged(tmp_path)
    found = Candidates(str(tmp_path), None, {})

    for _ in range(2):
        assert {"step_100", "best"} == found.came_or_went(set(), lambda _: None)


def test_with_a_pattern_its_names_are_told_whatever_they_look_like(tmp_path: Path) -> None:
    """It says which are candidates, and nothing else does."""
    for name in ("model_1.bak", "ckpt_1.pt"):
        (tmp_path / name).touch()

    assert {"model_1.bak"} == Candidates(str(tmp_path), "model_{step}.bak", {}).came_or_went(set(), lambda _: None)


def test_another_directory_of_that_name_is_another(tmp_path: Path) -> None:
    """It may have been made anew at the same time of modification."""
    folder = tmp_path / "checkpoints"
    stamps = []
    for _ in range(2):
        folder.mkdir()
        aged(folder)
        stamps.append(stamp_of(str(folder)))
        folder.rename(tmp_path / f"moved_{len(stamps)}")

    assert None not in stamps
    assert stamps[0] != stamps[1]
    with pytest.raises(FileNotFoundError):
        stamp_of(str(folder))

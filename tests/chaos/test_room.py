"""The directory of a campaign is its own, for one campaign at a time."""

import os
from pathlib import Path

import pytest

from supervisor.adapters import statefile
from supervisor.chaos.room import MARK, SURVIVOR, own_folder
from supervisor.errors import UsageError


def test_what_an_earlier_campaign_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    """The folder bears its mark from the first moment on, and is empty but for that."""
    with own_folder(tmp_path, "a-seed1", {"seed": 1}) as folder:
        (folder / SURVIVOR).mkdir()
        (folder / "supervisor.log").touch()
        (folder / "elsewhere").symlink_to(tmp_path)
        (tmp_path / "kept").touch()
    with own_folder(tmp_path, "a-seed1", {"seed": 1}) as folder:
        assert [MARK] == os.listdir(folder)
    assert (tmp_path / "kept").exists()


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    """Whatever lies where a campaign would be."""
    (tmp_path / "a-seed1").mkdir()
    (tmp_path / "a-seed1" / "thesis.txt").touch()

    with pytest.raises(UsageError, match="exists and is not a campaign's; move it away"):
        own_folder(tmp_path, "a-seed1", {}).__enter__()
    assert (tmp_path / "a-seed1" / "thesis.txt").exists()


def test_of_two_campaigns_the_second_is_refused(tmp_path: Path) -> None:
    """It would remove what the first is at; once that has ended, it may."""
    with own_folder(tmp_path, "a-seed1", {}) as folder:
        (folder / SURVIVOR).mkdir()
        with pytest.raises(UsageError, match=r"another campaign is at work in .*a-seed1; let it end"):
            own_folder(tmp_path, "a-seed1", {}).__enter__()
        assert (folder / SURVIVOR).exists()
        with own_folder(tmp_path, "a-seed2", {}) as other:
            assert other.exists()
    with own_folder(tmp_path, "a-seed1", {}):
        pass


@pytest.mark.parametrize("place", [SURVIVOR, f"mount/{SURVIVOR}"])
def test_a_supervisor_that_outlived_its_campaign_keeps_its_directory(tmp_path: Path, place: str) -> None:
    """A campaign that was killed leaves a run that goes on; the next says how to end it."""
    with own_folder(tmp_path, "a-seed1", {}) as folder:
        directory = folder / place
        statefile.prepare(str(directory), anew=True)
        lock = statefile.lock(str(directory))
    with pytest.raises(UsageError, match=f"is still at work; `lastgood stop {directory}` ends it"):
        own_folder(tmp_path, "a-seed1", {}).__enter__()
    os.close(lock)
    with own_folder(tmp_path, "a-seed1", {}) as folder:
        assert [MARK] == os.listdir(folder)


@pytest.mark.parametrize("name", ["../a", "a/b", "..", "."])
def test_a_name_that_would_lead_out_of_the_place_is_refused(tmp_path: Path, name: str) -> None:
    """What is there would be removed."""
    with pytest.raises(UsageError, match=r"run.name: .* give a name without '/'"):
        own_folder(tmp_path, name, {}).__enter__()
    assert [] == os.listdir(tmp_path)


def test_where_nothing_can_be_written_is_said_with_the_path(tmp_path: Path) -> None:
    """A folder that is a file, or on a disk that is only read: in one line."""
    (tmp_path / "out").touch()

    with pytest.raises(UsageError, match=f"chaos: {tmp_path}/out/chaos: Not a directory; campaigns write below"):
        own_folder(tmp_path / "out" / "chaos", "a-seed1", {}).__enter__()


def test_what_goes_wrong_inside_with_other_files_is_not_put_down_to_it(tmp_path: Path) -> None:
    """It is a bug, or somebody else's, and keeps its own words."""
    with pytest.raises(FileNotFoundError), own_folder(tmp_path, "a-seed1", {}):
        (tmp_path.parent / "elsewhere" / "x").read_bytes()

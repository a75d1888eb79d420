"""Which partials nobody works on any more."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.leftovers import partials, temporary
from supervisor.proc import was_there


@pytest.fixture
def dead() -> int:
    """The pid of a process that has just ended."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


@pytest.fixture
def young() -> Iterator[int]:
    """The pid of a process that has just begun."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process.pid


def name_of(pid: int, final: str = "a.pt") -> str:
    return f".{final}.partial-{pid}-0123abcd"


def test_only_names_of_ours_are_partials(tmp_path: Path, dead: int) -> None:
    """What merely looks unfinished is somebody else's; links and folders are taken for what they are called."""
    for name in ("a.pt", "a.pt.tmp", ".a.pt.partial", f".a.pt.partial-{dead}-xyz", ".hidden"):
        (tmp_path / name).touch()
    (tmp_path / name_of(dead, "folder-1")).mkdir()
    (tmp_path / name_of(dead, "link")).symlink_to("nowhere")

    assert {name_of(dead, "folder-1"): True, name_of(dead, "link"): True} == partials(str(tmp_path))


def test_what_a_living_process_writes_is_not_abandoned(tmp_path: Path, dead: int) -> None:
    """The number in the name tells whose it is; a zombie is dead."""
    for pid in (os.getpid(), os.getppid(), 1, dead):
        (tmp_path / name_of(pid)).touch()

    assert [name_of(dead)] == [name for name, is_abandoned in partials(str(tmp_path)).items() if is_abandoned]
    with subprocess.Popen([sys.executable, "-c", ""]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        assert not was_there(zombie.pid, time.time())


def test_a_number_that_is_used_again_is_another_process(
    tmp_path: Path, young: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container the same numbers come back at each start: who began after the partial did not write it."""
    (tmp_path / name_of(young)).touch()
    assert {name_of(young): False} == partials(str(tmp_path))
    assert was_there(young, time.time() + 1)
    assert not was_there(young, time.time() - 5)
    real = time.time
    for later, is_abandoned in ((1, False), (10, True)):  # seconds by which the process then began after the partial
        monkeypatch.setattr(time, "time", lambda later=later: real() + later)

        assert {name_of(young): is_abandoned} == partials(str(tmp_path))


def test_a_folder_that_cannot_be_read_raises(tmp_path: Path) -> None:
    """Nothing is known of it, and that is not the same as nothing being there."""
    with pytest.raises(FileNotFoundError):
        partials(str(tmp_path / "nowhere"))


def test_a_partial_that_is_just_renamed_is_nobodys_leftover(tmp_path: Path, dead: int) -> None:
    """One that goes between the listing and the look was being worked on."""
    path = tmp_path / name_of(dead)
    path.touch()
    real = os.scandir

    class Listing:
        """A listing of what is no longer there."""

        def __init__(self, folder: str) -> None:
            with real(folder) as entries:
                self.entries = list(entries)
            path.unlink()

        def __enter__(self) -> list["os.DirEntry[str]"]:
            return self.entries

        def __exit__(self, *_: object) -> None:
            """Nothing is open."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", Listing)
        found = partials(str(tmp_path))

    assert {path.name: False} == found


def test_what_is_not_whole_is_counted_and_left_alone(tmp_path: Path, dead: int) -> None:
    """C30: temporary names of any framework, ours and hidden ones; not what is merely hidden, locked or an editor's copy."""
    left = ("step_300.pt.tmp", ".step_300.pt.swp", ".step_300.pt.aB3dE9", name_of(dead))
    others = ("step_200.pt", ".gitignore", "metrics.jsonl", "train.lock", "config.yaml~", "model.bak", ".nfs000000001")
    for name in (*left, *others):
        (tmp_path / name).touch()
    for name in ("tmp-checkpoint-300", "300.orbax-checkpoint-tmp-0", ".lastgood", ".cache"):
        (tmp_path / name).mkdir()
    before = set(os.listdir(tmp_path))

    assert 6 == temporary(str(tmp_path))
    assert before == set(os.listdir(tmp_path))

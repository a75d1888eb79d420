"""Hints from a real directory, and what becomes of them when the system gives none."""

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from watchdog.events import FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch
from watchdog.observers.inotify import InotifyObserver

from supervisor.adapters.watcher import Watcher, filesystem_of
from tests.adapters.waiting import marked_environment, until

PARTIAL = ".ckpt_1.pt.partial-1-00000000"


class Seen:
    """A directory, its watcher and the hints that came."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hints: list[str | None] = []
        self.watcher = Watcher(directory, self.hints.append)

    def hinted_before(self, last: str) -> list[str | None]:
        """All hints up to that for `last`, which is made now, so that nothing earlier is still on its way."""
        (self.directory / last).write_bytes(b"")
        until(lambda: last in self.hints)
        return self.hints[: self.hints.index(last)]


@pytest.fixture
def seen(tmp_path) -> Iterator[Seen]:
    """A watched directory; afterwards no thread is left."""
    before = set(threading.enumerate())
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    watched = Seen(directory)
    yield watched
    watched.watcher.close()
    assert before >= set(threading.enumerate())


def test_published_snapshot_is_hinted_at(seen):
    """A rename from a partial name to a proper one is the moment a snapshot appears; the partial tells of the save before."""
    partial = seen.directory / PARTIAL
    partial.write_bytes(b"x")
    until(lambda: seen.hints.count(PARTIAL) == 2)
    assert {PARTIAL} == set(seen.hints)
    partial.rename(seen.directory / "ckpt_1.pt")

    assert ["ckpt_1.pt", PARTIAL] == seen.hinted_before("last.pt")[2:]
    assert "inotify" == seen.watcher.state
    assert seen.watcher.tells_all


def test_file_written_in_place_is_hinted_at_when_it_is_closed(seen):
    """A trainer that writes to the final name is done when it closes the file."""
    with (seen.directory / "ckpt_1.pt").open("wb") as file:
        until(lambda: seen.hints)
        early = seen.hinted_before("created.pt")
        file.write(b"x")
    until(lambda: seen.hints.count("ckpt_1.pt") == 2)

    assert {"ckpt_1.pt"} == set(early)


def test_file_moved_in_from_elsewhere_is_hinted_at(seen, tmp_path):
    """A snapshot staged in another folder appears all at once."""
    (tmp_path / "staged").write_bytes(b"x")
    (tmp_path / "staged").rename(seen.directory / "ckpt_1.pt")

    assert ["ckpt_1.pt"] == until(lambda: list(seen.hints))


def test_folder_that_gets_its_name_is_hinted_at(seen):
    """A snapshot may be a folder; what happens inside it is not watched."""
    (seen.directory / "tmp-checkpoint-5").mkdir()
    (seen.directory / "tmp-checkpoint-5" / "weights.pt").write_bytes(b"x")
    (seen.directory / "tmp-checkpoint-5").rename(seen.directory / "checkpoint-5")

    assert ["checkpoint-5"] == seen.hinted_before("last.pt")


def test_removed_snapshot_is_hinted_at(seen):
    """A snapshot that is deleted, or renamed to a name that says so, is gone."""
    for name in ("a.pt", "b.pt"):
        (seen.directory / name).write_bytes(b"x")
    seen.hinted_before("made.pt")
    until(lambda: seen.hints.count("made.pt") == 2)
    seen.hints.clear()
    (seen.directory / "a.pt").unlink()
    (seen.directory / "b.pt").rename(seen.directory / PARTIAL)

    assert ["a.pt", PARTIAL, "b.pt"] == seen.hinted_before("last.pt")


def test_renamed_snapshot_is_hinted_at_by_both_its_names(seen):
    """One is there from now on, and the other is not."""
    (seen.directory / "a.pt").write_bytes(b"x")
    seen.hinted_before("made.pt")
    until(lambda: seen.hints.count("made.pt") == 2)
    seen.hints.clear()
    (seen.directory / "a.pt").rename(seen.directory / "b.pt")

    assert ["b.pt", "a.pt"] == seen.hinted_before("last.pt")


def test_unfinished_names_are_ignored(seen):
    """Writing, and removing again, what others name as no candidate is nobody's business."""
    for name in ("ckpt_2.pt.tmp", ".lastgood"):
        (seen.directory / name).write_bytes(b"x")
        (seen.directory / name).rename(seen.directory / f"{name}.tmp")
        (seen.directory / f"{name}.tmp").unlink()

    assert [] == seen.hinted_before("last.pt")


def test_reading_is_not_hinted_at(seen):
    """Verifying a snapshot is no reason to look at it again."""
    (seen.directory / "a.pt").write_bytes(b"x")
    seen.hinted_before("made.pt")
    until(lambda: seen.hints.count("made.pt") == 2)
    seen.hints.clear()
    (seen.directory / "a.pt").read_bytes()
    list(seen.directory.iterdir())

    assert [] == seen.hinted_before("last.pt")


def test_name_of_bad_bytes_is_hinted_at(seen):
    """A name that is no text arrives as Python spells it."""
    name = os.fsdecode(b"step_\xff100.pt")
    (seen.directory / name).write_bytes(b"x")

    assert name == until(lambda: list(seen.hints))[0]


def test_sound_watch_needs_nothing(seen):
    """While the watch lives, checking it changes nothing."""
    assert not seen.watcher.check()
    assert not seen.watcher.check()


def test_directory_made_anew_is_watched_anew(seen):
    """A watch stays with the directory that is gone; the next check finds out and watches the new one."""
    shutil.rmtree(seen.directory)
    seen.directory.mkdir()

    assert until(seen.watcher.check)
    assert "inotify" == seen.watcher.state
    (seen.directory / "ckpt_1.pt").write_bytes(b"x")
    until(lambda: "ckpt_1.pt" in seen.hints)
    assert not seen.watcher.check()


def test_directory_exchanged_by_renames_is_noticed_at_once(seen, tmp_path):
    """When another directory takes the name no event comes, so its identity is compared."""
    seen.directory.rename(tmp_path / "old")
    seen.directory.mkdir()

    assert seen.watcher.check()
    (tmp_path / "old" / "elsewhere.pt").write_bytes(b"x")
    assert [] == seen.hinted_before("here.pt")


def test_deleted_directory_is_said_and_waited_for(seen):
    """Without a directory there is nothing to watch, which is told once; when it is back, it is watched again."""
    seen.directory.rmdir()
    assert None is until(lambda: [*seen.hints])[-1]

    assert until(seen.watcher.check)
    assert "polling: No such file or directory" == seen.watcher.state
    assert not seen.watcher.check()
    seen.directory.mkdir()
    assert seen.watcher.check()
    assert "inotify" == seen.watcher.state


def test_link_to_a_directory_is_followed(tmp_path):
    """A checkpoint directory that is a symbolic link is watched where it leads, and when it leads elsewhere, there."""
    for name in ("disk1", "disk2"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("disk1")
    seen = Seen(tmp_path / "link")
    first = seen.hinted_before("one.pt")
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("disk2")
    moved = seen.watcher.check()
    (tmp_path / "disk2" / "two.pt").write_bytes(b"x")
    until(lambda: "two.pt" in seen.hints)
    seen.watcher.close()

    assert [] == first
    assert moved


class LimitedObserver(InotifyObserver):
    """An observer that the system refuses to start."""

    number = errno.ENOSPC

    def start(self) -> None:
        """Fail as inotify does when a limit is reached."""
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.ENOSPC, "inotify watches"), (errno.EMFILE, "inotify instances"), (errno.EIO, "Input/output error")],
)
def test_limit_means_polling(tmp_path, monkeypatch, number, expected):
    """When no watch can be set the reason is told in words, nothing is raised, and each check tries again."""
    monkeypatch.setattr(LimitedObserver, "number", number)
    before = set(threading.enumerate())
    makers = [LimitedObserver, LimitedObserver, Observer]
    watcher = Watcher(tmp_path, lambda _name: None, observer=lambda: makers.pop(0)())

    assert watcher.state.startswith("polling: ")
    assert expected in watcher.state
    assert not watcher.check()
    assert watcher.check()
    assert "inotify" == watcher.state
    watcher.close()
    assert "polling: closed" == watcher.state
    assert before >= set(threading.enumerate())


def test_no_thread_means_polling(tmp_path):
    """When the system gives no thread the reason is told, and nothing is raised."""

    def no_thread() -> BaseObserver:
        raise RuntimeError("can't start new thread")

    assert "polling: can't start new thread" == Watcher(tmp_path, lambda _name: None, observer=no_thread).state


def test_real_shortage_of_descriptors_means_polling(tmp_path):
    """With no descriptor left the watcher still starts, polls, and recovers when there are some."""
    code = """
import os, sys
from supervisor.adapters.watcher import Watcher
hoard = []
try:
    while True:
        hoard.append(os.dup(0))
except OSError:
    os.close(hoard.pop())
watcher = Watcher(sys.argv[1], print)
print(watcher.state.partition(":")[0])
for descriptor in hoard:
    os.close(descriptor)
print(watcher.check(), watcher.state)
watcher.close()
"""
    with marked_environment() as environment:
        script = f'ulimit -n 40; exec "{sys.executable}" -W error -c "$1" "{tmp_path}"'
        done = subprocess.run(
            ["sh", "-c", script, "sh", code], env=environment, capture_output=True, text=True, check=True
        )

    assert ["polling", "True inotify"] == done.stdout.splitlines()


@pytest.mark.parametrize("part", ["observer", "emitter"])
def test_dead_observer_is_replaced(tmp_path, part):
    """An observer one of whose threads has ended carries no more events; the next check starts another."""
    made: list[BaseObserver] = []

    def make() -> BaseObserver:
        made.append(Observer())
        return made[-1]

    watcher = Watcher(tmp_path, lambda _name: None, observer=make)
    thread = made[0] if part == "observer" else next(iter(made[0].emitters))
    thread.stop()
    thread.join()

    assert watcher.check()
    assert 2 == len(made)
    watcher.close()


def test_watch_is_for_one_directory_and_for_few_events(tmp_path):
    """Shards below are not watched, and neither are the many writes of one save."""

    class Recorder(LimitedObserver):
        def schedule(self, event_handler: FileSystemEventHandler, path: object, **options: object) -> ObservedWatch:
            asked.append((path, options["recursive"]))
            raise OSError(errno.ENOSPC, "enough seen")

    asked: list[tuple[object, object]] = []
    Watcher(tmp_path, lambda _name: None, observer=Recorder)

    assert [(str(tmp_path), False)] == asked


MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw shared:2 master:1 - nfs4 server:/home rw
31 30 0:41 / /home/me/my\040runs rw - fuse.sshfs host: rw
32 22 0:42 / /data rw - ext4 /dev/sdb rw
33 22 0:43 / /data rw - lustre fs rw
34 22 8:3 / /ntfs rw - fuseblk /dev/sdc rw
half a line
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/ckpt", "ext4"),
        ("/home/you/ckpt", "nfs4"),
        ("/homework", "ext4"),
        ("/home/me/my runs/ckpt", "fuse.sshfs"),
        ("/data/ckpt", "lustre"),
        ("/ntfs", "fuseblk"),
    ],
)
def test_filesystem_is_that_of_the_longest_mount(tmp_path, path, expected):
    """The deepest mount that holds the path counts, and of two at the same place the later."""
    (tmp_path / "mountinfo").write_text(MOUNTS)

    assert expected == filesystem_of(path, tmp_path / "mountinfo")


def test_filesystem_that_cannot_be_told_is_empty(tmp_path):
    """Without /proc nothing is claimed."""
    assert "" == filesystem_of("/", tmp_path / "missing")
    assert "" != filesystem_of("/")


@pytest.mark.parametrize(
    ("filesystem", "expected"),
    [
        ("nfs4", "polling: nfs delivers no events"),
        ("fuse.sshfs", "polling: fuse.sshfs delivers no events"),
        ("9p", "polling: 9p delivers no events"),
        ("fuseblk", "inotify"),
        ("xfs", "inotify"),
    ],
)
def test_network_filesystem_is_said_to_be_polled(tmp_path, monkeypatch, filesystem, expected):
    """A network filesystem tells of local changes only, so polling is claimed, and local hints still come."""
    monkeypatch.setattr("supervisor.adapters.watcher.filesystem_of", lambda _path: filesystem)
    seen = Seen(tmp_path)
    hints = seen.hinted_before("a.pt")
    sound = not seen.watcher.check()
    seen.watcher.close()

    assert expected == seen.watcher.state.replace("polling: closed", expected)
    assert ([], True) == (hints, sound)


def test_flood_of_other_files_does_not_hurt(seen):
    """Twenty thousand small files are more than the queue holds; the watch survives, whatever was lost."""
    for number in range(20_000):
        os.close(os.open(seen.directory / f"noise-{number}.tmp", os.O_CREAT | os.O_WRONLY))
    (seen.directory / "ckpt_1.pt").write_bytes(b"x")

    def hinted_at_last() -> bool:
        (seen.directory / "again.pt").write_bytes(b"x")
        return "again.pt" in seen.hints

    until(hinted_at_last, seconds=30)
    assert {"ckpt_1.pt", "again.pt"} >= set(seen.hints)

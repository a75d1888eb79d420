"""Who writes a file now: found by what is open, in real processes."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor import writing
from supervisor.writing import is_being_written, writers_in_place
from tests.bench import until
from tests.crash.conftest import give_up

Start = Callable[[str], int]


def kernel_tells_openings_apart(path: Path) -> None:
    """Skip a test that needs it where it may not be asked, as in most containers."""
    path.touch()
    with path.open("rb") as first, path.open("rb") as second:
        one, other = (writing._Holder(os.getpid(), file.fileno()) for file in (first, second))
        if writing._share(one, other):
            give_up("kcmp is not to be had here")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that runs Python code in a folder with a file `a.pt`, until the code has said so, and returns its pid."""
    (tmp_path / "a.pt").write_bytes(bytes(1000))
    started: list[subprocess.Popen[str]] = []

    def run(code: str) -> int:
        process = subprocess.Popen(
            [sys.executable, "-c", f"import os, time\n{code}\nprint(os.getpid(), flush=True)\ntime.sleep(60)"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        started.append(process)
        assert process.stdout is not None
        return int(process.stdout.readline())

    yield run
    for process in started:
        os.killpg(process.pid, 9)
        process.communicate()


def test_all_who_write_a_file_are_found(start: Start, tmp_path: Path) -> None:
    """However they opened it, by that name or by a link to its folder, and though neither moves in it; who only reads is none."""
    kernel_tells_openings_apart(tmp_path / "probe")
    (tmp_path / "link").symlink_to(tmp_path)
    first = start("file = open('a.pt', 'r+b')")
    second = start("file = os.open('link/a.pt', os.O_WRONLY); os.pwrite(file, b'x', 5)")
    start("file = open('a.pt', 'rb')")
    path = str(tmp_path / "a.pt")
    with open(path, "ab"):
        found = writers_in_place([path, str(tmp_path / "gone.pt")])

    assert {path: frozenset({first, second}), str(tmp_path / "gone.pt"): frozenset()} == found
    assert {str(tmp_path / "link" / "a.pt"): frozenset({first, second})} == writers_in_place(
        [str(tmp_path / "link" / "a.pt")]
    )


SHARED = {
    "with its child": "if os.fork() == 0:\n    time.sleep(60)\n",
    "with a grandchild whose parent is gone": "if not os.fork():\n    os.fork() and os._exit(0)\n    time.sleep(60)\nos.wait()\n",
    "with children and not itself": "if os.fork() and os.fork():\n    os.close(file.fileno())\n    time.sleep(60)\n",
}


@pytest.mark.parametrize("share", SHARED.values(), ids=SHARED.keys())
def test_who_shares_one_opening_of_a_file_is_no_rival(start: Start, tmp_path: Path, share: str) -> None:
    """Workers that were forked in a save hold the file too; where they stand in it moves while it is looked at."""
    path = str(tmp_path / "a.pt")
    moves = "while True:\n    os.lseek(file.fileno(), 1, 1)"
    start(f"print(1, flush=True)\nfile = open('a.pt', 'r+b', buffering=0)\n{share}{moves}")
    until(lambda: writers_in_place([path])[path])

    assert {1} == {len(writers_in_place([path])[path]) for _ in range(20)}


def test_a_kernel_that_does_not_tell_who_shares_gives_no_alarm(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To end all but one is no advice on a guess."""
    kernel_tells_openings_apart(tmp_path / "probe")
    for _ in range(2):
        start("file = open('a.pt', 'r+b')")
    path = str(tmp_path / "a.pt")
    assert 2 == len(writers_in_place([path])[path])
    monkeypatch.setattr(writing, "_KCMP_NUMBERS", {})

    assert 1 == len(writers_in_place([path])[path])


def test_what_others_have_open_elsewhere_is_not_touched(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the same name may be on storage that does not answer: nothing but /proc says what it is."""
    (tmp_path / "other").mkdir()
    start("file = open('other/a.pt', 'wb')")
    path, looked = str(tmp_path / "a.pt"), []
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda where, **more: (looked.append(str(where)), real(where, **more))[1])

    assert {path: frozenset()} == writers_in_place([path])
    assert {path} == {where for where in looked if "a.pt" in where or "/fd/" in where}


def test_without_a_writer_there_is_none(start: Start, tmp_path: Path) -> None:
    """Nobody has it open, or it is another file of that name."""
    path = tmp_path / "a.pt"
    start("file = open('a.pt', 'r+b')")
    path.unlink()
    path.write_bytes(b"new")

    assert {str(path): frozenset()} == writers_in_place([str(path)])


@pytest.mark.parametrize("lease", [True, False])
def test_what_somebody_has_open_is_being_written(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lease: bool
) -> None:
    """By the kernel's word where it gives leases, else by looking; a reader writes nothing, nor does who has closed it."""
    if not lease:
        monkeypatch.setattr(writing.fcntl, "fcntl", refused)
    path = tmp_path / "a.pt"
    start("file = open('a.pt', 'rb')")
    assert not is_being_written(str(path))
    start("file = open('a.pt', 'ab')")
    assert is_being_written(str(path))
    path.rename(tmp_path / "b.pt")
    assert is_being_written(str(tmp_path / "b.pt"))

    path.touch()
    assert not is_being_written(str(path))
    assert not is_being_written(str(tmp_path / "gone.pt"))


def refused(*_: object) -> None:
    """As filesystems answer that know no leases."""
    raise OSError(errno.EINVAL, "no leases here")


def test_a_folder_is_being_written_while_any_file_in_it_is(start: Start, tmp_path: Path) -> None:
    """However deep it lies."""
    (tmp_path / "checkpoint-5" / "ranks").mkdir(parents=True)
    (tmp_path / "checkpoint-5" / "ranks" / "0.bin").touch()
    assert not is_being_written(str(tmp_path / "checkpoint-5"))
    start("file = open('checkpoint-5/ranks/0.bin', 'ab')")

    assert is_being_written(str(tmp_path / "checkpoint-5"))


def test_asking_who_writes_disturbs_no_writer(tmp_path: Path) -> None:
    """A writer that opens the file at that very moment waits for nothing, and no signal ends who asks."""
    path = tmp_path / "a.pt"
    path.touch()
    opens = "import sys, time\nuntil = time.time() + 1\nwhile time.time() < until:\n    open(sys.argv[1], 'ab').close()"
    slowest = f"import time\nbegan = time.time()\n{opens}\nassert time.time() - began < 10"
    with subprocess.Popen([sys.executable, "-c", slowest, str(path)]) as process:
        while process.poll() is None:
            is_being_written(str(path))

    assert 0 == process.returncode

"""Who writes a file now: found by what is open, in real processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.writing import writers_in_place

Start = Callable[[str], int]


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
    """However they opened it, by whatever name; who only reads it, and this process, are not among them."""
    os.link(tmp_path / "a.pt", tmp_path / "b.pt")
    first = start("file = open('a.pt', 'r+b'); file.seek(10)")
    second = start("file = open('./a.pt', 'ab')")
    start("file = open('a.pt', 'rb')")
    other = start("file = open('b.pt', 'r+b')")
    path = str(tmp_path / "a.pt")
    with open(path, "ab"):
        found = writers_in_place([path, str(tmp_path / "gone.pt")])

    assert {path: frozenset({first, second})} == found
    assert {str(tmp_path / "b.pt"): frozenset({other})} == writers_in_place([str(tmp_path / "b.pt")])


def test_what_was_inherited_counts_once(start: Start, tmp_path: Path) -> None:
    """Workers that were forked in a save hold the file too, even when their parent has closed it, and write nothing."""
    path = str(tmp_path / "a.pt")
    fork = (
        "file = open('a.pt', 'r+b'); file.seek(7)\nfor _ in range(2):\n    if os.fork() == 0:\n        time.sleep(60)\n"
    )
    saving = start(fork)
    assert {path: frozenset({saving})} == writers_in_place([path])

    gone_on = start(f"{fork.replace('7', '9')}file.close()")
    found = writers_in_place([path])[path]
    assert saving in found
    assert 1 == len(found - {saving, gone_on})


def test_a_worker_of_one_who_writes_on_is_no_rival(start: Start, tmp_path: Path) -> None:
    """The position that both share moves while it is looked at, and seems to be two."""
    path = str(tmp_path / "a.pt")
    fork = "file = open('a.pt', 'r+b', buffering=0)\nif os.fork() == 0:\n    time.sleep(60)\n"
    saving = start(f"{fork}print(os.getpid(), flush=True)\nwhile True: os.lseek(file.fileno(), 1, 1)")

    assert {frozenset({saving})} == {writers_in_place([path])[path] for _ in range(20)}


def test_without_a_writer_there_is_none(start: Start, tmp_path: Path) -> None:
    """Nobody has it open, or it is another file of that name."""
    path = tmp_path / "a.pt"
    start("file = open('a.pt', 'r+b')")
    path.unlink()
    path.write_bytes(b"new")

    assert {str(path): frozenset()} == writers_in_place([str(path)])

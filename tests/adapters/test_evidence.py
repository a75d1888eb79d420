"""What a stalled process is doing is written down from the outside, in little time, whatever state it is in."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor import stalled
from supervisor.adapters import evidence
from supervisor.adapters.evidence import Kept, keep
from supervisor.proc import Identity, identity_of, stat_of
from tests.bench import until

SLEEP = "print(); import time; time.sleep(300)"
THREADED = f"import threading, time; threading.Thread(target=time.sleep, args=(300,), daemon=True).start(); {SLEEP}"


@pytest.fixture
def sleeper() -> Iterator[Callable[..., Identity]]:
    """Starts processes that stand still, and ends them with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(code: str = SLEEP) -> Identity:
        process = subprocess.Popen([sys.executable, "-uc", code], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        found = identity_of(process.pid)
        assert found is not None
        return found

    yield start
    for process in started:
        process.kill()
        process.communicate()


def kept(
    folder: Path, *tree: Identity, incarnation: int = 3, places: tuple[Path, ...] = (), seconds: float = 5.0
) -> Kept:
    found = [os.fspath(place) for place in places]
    return keep(os.fspath(folder), incarnation, "it stood still", tree, found, time.monotonic() + seconds)


@pytest.fixture
def no_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence.shutil, "which", lambda _: None)


@pytest.fixture
def py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a `py-spy` on PATH that is a shell script."""

    def put(script: str) -> None:
        (tmp_path / "bin").mkdir()
        program = tmp_path / "bin" / "py-spy"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return put


@pytest.mark.usefixtures("no_py_spy")
def test_each_process_is_told_with_its_state(sleeper: Callable[..., Identity], tmp_path: Path) -> None:
    """One that sleeps and one that was stopped are told apart, with the name of what runs; the file says more."""
    asleep, stopped = sleeper(), sleeper()
    os.kill(stopped.pid, signal.SIGSTOP)
    until(lambda: getattr(stat_of(stopped.pid), "state", "") == "T")
    found = kept(tmp_path / "stalls", asleep, stopped)

    told = [line.partition(",")[0] for line in found.processes]
    named = [f"{one.pid} {Path(f'/proc/{one.pid}/comm').read_text().strip()}" for one in (asleep, stopped)]
    assert [f"{named[0]}: S (sleeping)", f"{named[1]}: T (stopped by a signal)"] == told
    text = Path(found.path).read_text()
    assert (str(tmp_path / "stalls" / "incarnation-3.txt"), []) == (found.path, found.uninterruptible)
    assert "it stood still" == text.splitlines()[0]
    assert all(line in text for line in found.processes)


@pytest.mark.usefixtures("no_py_spy")
def test_threads_are_told_each(sleeper: Callable[..., Identity], tmp_path: Path) -> None:
    """Of a process with two threads both are in the file."""
    found = kept(tmp_path, sleeper(THREADED))

    assert "threads: 2" in found.processes[0]
    assert 2 == sum(line.startswith("  python") for line in Path(found.path).read_text().splitlines())


def _in_state_d(pid: int) -> tuple[str, str]:
    return "D", "python3: D (uninterruptible), in folio_wait_bit_common"


def test_a_process_that_no_signal_ends_is_named_as_such(
    sleeper: Callable[..., Identity], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, py_spy: Callable[[str], None]
) -> None:
    """Its pid is told apart, and py-spy, which would wait for it, is not asked about it."""
    py_spy("echo asked about $3")
    stuck, other = sleeper(), sleeper()
    waits = evidence._waits
    monkeypatch.setattr(
        evidence, "_waits", lambda place: _in_state_d(stuck.pid) if place == f"/proc/{stuck.pid}" else waits(place)
    )
    found = kept(tmp_path / "stalls", stuck, other)
    asked = [line for line in Path(found.path).read_text().splitlines() if line.startswith("asked about")]

    assert ([stuck.pid], [f"asked about {other.pid}"]) == (found.uninterruptible, asked)


def test_states_are_read_as_the_kernel_tells_them(tmp_path: Path) -> None:
    """State D is called uninterruptible, with where in the kernel it waits."""
    for name, content in {
        "status": "Name:\tx\nState:\tD (disk sleep)\n",
        "wchan": "fuse_wait",
        "comm": "x y\n",
    }.items():
        (tmp_path / name).write_text(content)
    state, doing = evidence._waits(str(tmp_path))

    assert "D" == state
    assert doing.startswith("x y: D (uninterruptible")
    assert doing.endswith(", in fuse_wait")


def test_py_spy_has_the_time_that_is_left(
    sleeper: Callable[..., Identity], tmp_path: Path, py_spy: Callable[[str], None]
) -> None:
    """One that gives no answer is not waited for any longer, and for the next process there is no time."""
    py_spy("exec sleep 300")
    began = time.monotonic()
    found = kept(tmp_path / "stalls", sleeper(), sleeper(), seconds=0.5)

    assert 5 > time.monotonic() - began
    text = Path(found.path).read_text()
    assert "py-spy gave no answer" in text
    assert "no time left for py-spy" in text


@pytest.mark.usefixtures("no_py_spy")
def test_a_process_that_has_ended_is_left_out(tmp_path: Path) -> None:
    """A tree changes while it is looked at."""
    found = kept(tmp_path, Identity(2**22 + 1, 1))

    assert ([], True) == (found.processes, Path(found.path).exists())


@pytest.mark.usefixtures("no_py_spy")
def test_files_called_like_locks_are_told(tmp_path: Path) -> None:
    """C28: a lock that a killed process left behind is what the next one waits for."""
    for name in ("build.lock", "lock", "block", "lock.txt"):
        (tmp_path / name).touch()
    found = kept(tmp_path / "stalls", places=(tmp_path, tmp_path / "missing"))

    assert [str(tmp_path / "build.lock"), str(tmp_path / "lock")] == found.locks
    assert f"lock file: {tmp_path / 'build.lock'}" in Path(found.path).read_text()


@pytest.mark.usefixtures("no_py_spy")
def test_evidence_does_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only that of the newest incarnations stays, by number and not by text; other files are left alone."""
    monkeypatch.setattr(evidence, "KEPT_MAX", 2)
    (tmp_path / "notes.txt").touch()
    for incarnation in (8, 9, 10, 11):
        kept(tmp_path, incarnation=incarnation)

    assert ["incarnation-10.txt", "incarnation-11.txt", "notes.txt"] == sorted(one.name for one in tmp_path.iterdir())


def said(tree: Callable[[], list[Identity]], folder: Path) -> tuple[str, dict[str, object]]:
    told: list[tuple[str, dict[str, object]]] = []
    stalled.keep_evidence(str(folder), 1, "head", tree, [], lambda event, fields: told.append((event, fields)))
    assert 1 == len(told)
    return told[0]


def test_evidence_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kill that follows is not held up by more than the limit, whatever /proc or storage does."""
    monkeypatch.setattr(stalled, "EVIDENCE_SECONDS", 0.2)
    began = time.monotonic()
    told = said(lambda: time.sleep(5) or [], tmp_path)

    assert ("stall.evidence_lost", {"reason": "it took longer than 0 s"}) == told
    assert 3 > time.monotonic() - began


def test_evidence_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """A full or broken disk costs the evidence and nothing else."""
    (tmp_path / "stalls").touch()

    assert ("stall.evidence_lost", {"reason": "File exists"}) == said(list, tmp_path / "stalls")


@pytest.mark.usefixtures("no_py_spy")
def test_evidence_that_was_kept_is_said_with_its_path(tmp_path: Path) -> None:
    """The record has what an alert needs, and where the rest is."""
    event, fields = said(list, tmp_path)

    assert ("stall.evidence_kept", str(tmp_path / "incarnation-1.txt")) == (event, fields["path"])

"""What the supervisor keeps in a checkpoint directory: it lasts, it is never torn, and damage is told in one line."""

import errno
import fcntl
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastgood.seal import Identity
from supervisor.adapters import statefile
from supervisor.adapters.statefile import RunFile
from supervisor.core.blame import Blame, Suspect
from supervisor.core.budget import Budget
from supervisor.core.divergence import Divergence
from supervisor.core.memory import Memory
from supervisor.core.trust import Trust
from supervisor.errors import AlreadySupervisedError, UsageError
from supervisor.proc import Identity as ProcessIdentity
from supervisor.proc import boot_id
from tests.adapters.waiting import ROOT

HOLD = "import sys; from supervisor.adapters import statefile; statefile.lock(sys.argv[1]); print(flush=True); sys.stdin.read()"
RUN = RunFile(
    "0123456789abcdef",
    Memory(
        high_water=500,
        reached=512,
        incarnation=3,
        ever_proven=True,
        born_empty=True,
        losses=((500, 2.5), (480, 2.0)),
        budget=Budget((400.0, 900.0), (900.0,), True),
    ),
    {"ckpt_1.pt": Identity(1, 2, 3, 4)},
    True,
)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """A checkpoint directory that is ready for a supervisor."""
    path = str(tmp_path / "checkpoints")
    statefile.prepare(path, anew=True)
    return path


def state(directory: str, name: str = "") -> Path:
    return Path(directory) / ".lastgood" / name


def names(directory: str) -> set[str]:
    return {entry.name for entry in state(directory).iterdir()}


def descriptors(directory: str) -> int:
    """How many descriptors of the lock this process has."""
    found = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [os.path.realpath(path) for path in found].count(str(state(directory, "supervisor.lock")))


@contextmanager
def held(directory: str) -> Iterator[subprocess.Popen[bytes]]:
    """The lock in the hands of another process."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, directory], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert b"\n" == process.stdout.readline()
        yield process
        process.kill()


def test_a_run_is_read_as_it_was_written(directory: str) -> None:
    """Id, memory, foreign snapshots and isolation survive."""
    statefile.write_run(directory, RUN, 1000.0)

    assert RUN == statefile.read_run(directory, 1000.0)


def test_deaths_keep_their_age_over_a_restarted_clock(directory: str) -> None:
    """After a reboot the monotonic clock starts anew; a death is as long ago as it was when it was written down."""
    statefile.write_run(directory, RUN, 1000.0)
    found = statefile.read_run(directory, 5.0)

    assert found is not None
    assert Budget((-595.0, -95.0), (-95.0,), True) == found.memory.budget


def test_deaths_keep_their_time_while_the_machine_runs(directory: str) -> None:
    """How long no supervisor ran counts as well, as long as the clock is the same; a time that is yet to come is not believed."""
    statefile.write_run(directory, replace(RUN, boot=boot_id()), 1000.0)
    later, earlier = statefile.read_run(directory, 5000.0), statefile.read_run(directory, 900.0)

    assert later is not None
    assert RUN.memory.budget == later.memory.budget
    assert earlier is not None
    assert RUN.memory.budget.fruitless[0] - 100.0 == earlier.memory.budget.fruitless[0]


steps = st.none() | st.integers(-1, 2**60)
times = st.lists(st.integers(0, 10**9).map(float), max_size=5).map(tuple)
identities = st.builds(Identity, *[st.integers(0, 2**64)] * 4)
suspects = st.builds(Suspect, st.text(st.characters(codec=None), min_size=1), st.integers(0, 2**63), steps)
memories = st.builds(
    Memory,
    high_water=steps,
    reached=steps,
    incarnation=st.integers(0, 10**9),
    open=st.booleans(),
    done=steps,
    ever_proven=st.booleans(),
    born_empty=st.booleans(),
    blame=st.none() | st.builds(Blame, suspects, steps, st.text(), st.integers(1, 9), st.none() | suspects),
    divergence=st.none() | st.builds(Divergence, steps, st.integers(1, 9), steps),
    skip=st.lists(st.tuples(st.integers(0, 2**60), st.integers(0, 2**60)), max_size=3).map(tuple),
    trust=st.none()
    | st.builds(
        Trust,
        st.text(st.characters(codec=None), min_size=1),
        st.integers(0, 2**63),
        st.integers(0, 2**60),
        st.lists(st.tuples(st.text(st.characters(codec=None), min_size=1), st.integers(0, 2**63)), max_size=3).map(
            tuple
        ),
        st.booleans(),
    ),
    losses=st.lists(st.tuples(st.integers(0, 2**60), st.floats(-9, 9)), max_size=3).map(tuple),
    budget=st.builds(Budget, times, times, st.booleans()),
)
runs = st.builds(
    RunFile,
    st.from_regex(r"\A[0-9a-f]{16}\Z"),
    memories,
    st.dictionaries(st.text(st.characters(codec=None), min_size=1), identities, max_size=4),
    st.booleans(),
    st.none() | st.text(st.characters(codec="ascii")),
    st.none() | st.builds(ProcessIdentity, st.integers(1, 2**22), st.integers(0, 2**63)),
)


def test_this_test_knows_all_that_a_run_remembers() -> None:
    """What is added to the memory must be written down, and drawn here."""
    drawn = {"high_water", "reached", "incarnation", "open", "done", "ever_proven", "born_empty", "budget"}
    drawn |= {"blame", "divergence", "skip", "losses", "trust"}

    assert drawn == {field.name for field in fields(Memory)}


@settings(deadline=None, max_examples=50)
@given(run=runs)
def test_any_run_survives(tmp_path_factory: pytest.TempPathFactory, run: RunFile) -> None:
    """Whatever was written is read back, names that are no UTF-8 included."""
    directory = str(tmp_path_factory.mktemp("run"))
    statefile.prepare(directory, anew=True)
    statefile.write_run(directory, run, 10.0**9)

    assert run == statefile.read_run(directory, 10.0**9)


def test_before_its_first_start_there_is_no_run(directory: str) -> None:
    """No run.json is no damage."""
    assert None is statefile.read_run(directory, 0.0)


def test_new_runs_are_told_apart() -> None:
    """Each run has an id of its own, and only one that was begun apart has foreign snapshots."""
    plain, apart = statefile.new_run(), statefile.new_run({})

    assert plain.run_id != apart.run_id
    assert (False, True, {}) == (plain.isolated, apart.isolated, apart.foreign)


def changed(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    """A change to the content of run.json; None as a value removes the key, a callable is applied to the old value."""

    def change(content: dict[str, Any]) -> dict[str, Any]:
        for key, value in changes.items():
            if value is ...:
                del content[key]
            else:
                content[key] = value(content[key]) if callable(value) else value
        return content

    return change


FLAGS = ("ever_proven", "born_empty", "isolated")
KEYS = ["version", "run_id", "high_water", "reached", "incarnation", "done", "budget", "foreign", *FLAGS]
WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{f"no {key}": changed(**{key: ...}) for key in KEYS},
    **{f"{key} is a list": changed(**{key: [[]]}) for key in KEYS},
    **{f"{key} is true": changed(**{key: True}) for key in KEYS if key not in FLAGS},
    **{f"{key} is text": changed(**{key: "1\n2"}) for key in KEYS},
    **{f"{key} is a fraction": changed(**{key: 1.5}) for key in KEYS},
    **{f"{key} is null": changed(**{key: None}) for key in KEYS if key not in ("high_water", "reached", "done")},
    "another version": changed(version=2),
    "no budget inside": changed(budget={}),
    "ages are text": changed(budget=changed(fruitless_ages="123")),
    "an age is text": changed(budget=changed(recent_ages=[1, "2"])),
    "an age is nan": changed(budget=changed(recent_ages=[math.nan])),
    "an age is infinite": changed(budget=changed(fruitless_ages=[math.inf])),
    "an age is too large": changed(budget=changed(fruitless_ages=[10**400])),
    "an empty id": changed(run_id=""),
    "an id with NUL": changed(run_id="a\0b"),
    "an id of many words": changed(run_id="a b"),
    "a short identity": changed(foreign={"a.pt": [1, 2, 3]}),
    "an identity of text": changed(foreign={"a.pt": ["1", "2", "3", "4"]}),
    "an identity that is none": changed(foreign={"a.pt": None}),
    "a trust without a step": changed(trust={"name": "a.pt", "mtime_ns": 1, "left": [], "refuted": False}),
    "a trust that leaves a word": changed(
        trust={"name": "a.pt", "mtime_ns": 1, "step": 5, "left": ["b.pt"], "refuted": False}
    ),
    "a list": lambda content: [content],
    "a number": lambda content: 5,
    "null": lambda content: None,
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_run_file_of_another_shape_is_refused_in_one_line(directory: str, wrong: str) -> None:
    """A key that is missing or of the wrong kind is told with the path and the cure, and never believed."""
    statefile.write_run(directory, RUN, 1000.0)
    path = state(directory, "run.json")
    path.write_text(json.dumps(WRONG[wrong](json.loads(path.read_text()))))

    with pytest.raises(UsageError) as caught:
        statefile.read_run(directory, 1000.0)
    said = str(caught.value)
    assert [] == [part for part in (str(path), "is damaged", "remove it") if part not in said]
    assert [said] == said.splitlines()


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 300, b"{", b"\xff\xfe\x00", b"[" * 100_000, b'{"a": ' * 100_000, b"9" * 5000, b"{}", b"nonsense\n"],
    ids=ascii,
)
def test_a_run_file_of_no_shape_is_refused_in_one_line(directory: str, content: bytes) -> None:
    """Empty, zeroed, cut or garbled content is told with the path and the cure."""
    state(directory, "run.json").write_bytes(content)

    with pytest.raises(UsageError, match=r"run\.json: it is damaged \(.*\); remove it to go on") as caught:
        statefile.read_run(directory, 0.0)
    assert 1 == len(str(caught.value).splitlines())


def test_a_run_file_cut_anywhere_is_refused(directory: str) -> None:
    """No part of run.json passes for a whole one."""
    statefile.write_run(directory, RUN, 1000.0)
    whole = state(directory, "run.json").read_bytes()

    for size in range(len(whole) - 2):  # without its last brace it is cut, without its line end it is whole
        state(directory, "run.json").write_bytes(whole[:size])
        with pytest.raises(UsageError):
            statefile.read_run(directory, 1000.0)


def test_a_folder_in_the_place_of_the_run_file_is_told(directory: str) -> None:
    """What cannot be read at all is a person's to mend."""
    state(directory, "run.json").mkdir()

    with pytest.raises(UsageError, match=r"run\.json: it cannot be read \(Is a directory\)"):
        statefile.read_run(directory, 0.0)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EACCES, UsageError), (errno.EIO, OSError), (errno.ESTALE, OSError)]
)
def test_only_storage_that_fails_for_a_moment_is_worth_another_start(
    directory: str, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    """A missing permission is a usage error, which is not retried; an I/O error is the system's."""

    def failing(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("builtins.open", failing)

    with pytest.raises(kind):
        statefile.read_run(directory, 0.0)


def seen_while(directory: str, write: Callable[[int], None], read: Callable[[], Any]) -> list[Any]:
    """What a reader saw, again and again, while two hundred writes were under way."""
    seen: list[Any] = []
    done = threading.Event()

    def reader() -> None:
        while not done.is_set():
            try:
                seen.append(read())
            except Exception as error:  # noqa: BLE001 - told by the assertion
                seen.append(error)

    write(0)
    thread = threading.Thread(target=reader)
    thread.start()
    for number in range(1, 200):
        write(number)
    done.set()
    thread.join()
    return seen


def test_a_reader_never_sees_a_torn_run_file(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While run.json is replaced, it is the old one or the new one, and numbers never go back."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)  # it is about what is seen, and 200 syncs take seconds

    def write(number: int) -> None:
        statefile.write_run(directory, RunFile("a" * 16, Memory(incarnation=number)), 0.0)

    found = seen_while(directory, write, lambda: statefile.read_run(directory, 0.0))
    incarnations = [run.memory.incarnation for run in found if isinstance(run, RunFile)]
    assert len(found) == len(incarnations)
    assert sorted(incarnations) == incarnations
    assert {"run.json"} == names(directory)


def test_a_failed_write_leaves_the_old_run_and_nothing_else(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk is full run.json is as it was, and no partial stays."""
    statefile.write_run(directory, RUN, 1000.0)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        statefile.write_run(directory, statefile.new_run(), 1000.0)

    assert RUN == statefile.read_run(directory, 1000.0)
    assert {"run.json"} == names(directory)


def test_a_run_is_on_disk_when_the_write_returns(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is synced before the rename, and the folder after it."""
    order: list[str] = []
    sync, replace = os.fsync, os.replace

    def noting_sync(descriptor: int) -> None:
        order.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noting_sync)
    monkeypatch.setattr(os, "replace", lambda *names: (order.append("rename"), replace(*names)))
    statefile.write_run(directory, RUN, 1000.0)

    assert ["file", "rename", "folder"] == order


def test_a_second_supervisor_is_refused_after_a_moment(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that holds the lock is waited for as long as it is said, then named by its pid."""
    monkeypatch.setattr(statefile, "LOCK_WAIT_SECONDS", 0.2)
    with held(directory) as process:
        began = time.monotonic()
        with pytest.raises(AlreadySupervisedError, match=f"{directory} is supervised by process {process.pid}$"):
            statefile.lock(directory)

    assert time.monotonic() - began >= 0.2


def test_a_refusal_leaves_no_descriptor(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Being refused costs nothing, however often it is tried."""
    monkeypatch.setattr(statefile, "LOCK_WAIT_SECONDS", 0.0)
    lock = statefile.lock(directory)
    for _ in range(3):
        with pytest.raises(AlreadySupervisedError):
            statefile.lock(directory)

    assert 1 == descriptors(directory)
    os.close(lock)


@pytest.mark.parametrize("kind", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_a_lock_that_is_let_go_within_the_moment_is_taken(
    directory: str, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """A supervisor that is just ending, or somebody who only looks, does not make the next one fail."""
    first = os.open(state(directory, "supervisor.lock"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(first, kind)
    monkeypatch.setattr(statefile.time, "sleep", lambda _seconds: fcntl.flock(first, fcntl.LOCK_UN))
    second = statefile.lock(directory)

    assert os.getpid() == statefile.holder(directory)
    os.close(first)
    os.close(second)


def test_the_lock_ends_with_its_holder(directory: str) -> None:
    """A supervisor that was killed holds nothing, although its number is still in the file."""
    with held(directory) as process:
        process.kill()
        process.wait()

        assert None is statefile.holder(directory)
        lock = statefile.lock(directory)
        assert os.getpid() == statefile.holder(directory)
        os.close(lock)


def test_a_child_does_not_inherit_the_lock(directory: str) -> None:
    """A trainer that outlives its supervisor does not keep the next one out, even if it was given all descriptors."""
    lock = statefile.lock(directory)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False) as child:
        os.close(lock)

        assert None is child.poll()
        assert None is statefile.holder(directory)
        os.close(statefile.lock(directory))
        child.kill()


def test_looking_at_the_holder_disturbs_nobody(directory: str) -> None:
    """Before, during and after it is held, asking takes nothing, makes nothing and leaves no descriptor."""
    assert None is statefile.holder(directory)
    assert set() == names(directory)
    with held(directory) as process:
        assert {process.pid} == {statefile.holder(directory) for _ in range(20)}
        assert None is process.poll()
    assert None is statefile.holder(directory)
    assert None is statefile.holder(f"{directory}/nowhere")
    assert 0 == descriptors(directory)


@pytest.mark.parametrize("content", [b"", b"soon\n", b"-5\n", b"\xff" * 100])
def test_a_holder_that_left_no_number_is_still_a_holder(directory: str, content: bytes) -> None:
    """A held lock without a readable pid is told as 0, not as nobody."""
    lock = statefile.lock(directory)
    state(directory, "supervisor.lock").write_bytes(content)

    assert 0 == statefile.holder(directory)
    os.close(lock)


def test_a_shorter_number_replaces_a_longer_one(directory: str) -> None:
    """What an earlier holder left in the file is not mixed up with the pid of this one."""
    state(directory, "supervisor.lock").write_bytes(b"12345678901234567890\nand more\n")
    lock = statefile.lock(directory)

    assert f"{os.getpid()}\n" == state(directory, "supervisor.lock").read_text()
    os.close(lock)


def test_a_full_disk_does_not_keep_a_supervisor_out(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock holds even if its holder's number cannot be written."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        lock = statefile.lock(directory)

    assert 0 == statefile.holder(directory)
    os.close(lock)


def test_a_lock_that_cannot_be_is_told(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in the lock's place, or a filesystem without locks, is a person's to mend."""
    state(directory, "supervisor.lock").mkdir()
    with pytest.raises(UsageError, match=r"supervisor\.lock: the lock cannot be taken \(Is a directory\)"):
        statefile.lock(directory)
    state(directory, "supervisor.lock").rmdir()

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(UsageError, match="No locks available"):
        statefile.lock(directory)
    assert None is statefile.holder(directory)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EIO, OSError), (errno.ESTALE, OSError), (errno.EACCES, UsageError)]
)
def test_storage_that_fails_for_a_moment_does_not_end_the_run_for_good(
    directory: str, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    """A usage error is not retried by the service manager; an I/O error at the lock is."""

    def failing(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", failing)

    with pytest.raises(kind):
        statefile.lock(directory)


def test_a_lock_whose_file_was_taken_away_is_no_longer_held(directory: str) -> None:
    """Somebody who removes the supervisor's folder lets a second one in; the first can tell."""
    lock = statefile.lock(directory)
    assert statefile.still_locked(directory, lock)
    state(directory, "supervisor.lock").rename(state(directory, "away"))
    assert not statefile.still_locked(directory, lock)
    second = statefile.lock(directory)
    assert not statefile.still_locked(directory, lock)
    assert statefile.still_locked(directory, second)
    os.close(lock)
    os.close(second)


def test_a_lock_on_storage_that_does_not_answer_is_still_held(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An I/O error is not somebody having taken the lock's file away: to take it anew would be refused by ourselves."""
    lock = statefile.lock(directory)

    def failing(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", failing)
        assert statefile.still_locked(directory, lock)
    os.close(lock)


def test_what_a_killed_supervisor_was_writing_goes_with_the_next_lock(directory: str) -> None:
    """Half-written run.json and status.json are swept by whoever has the lock, the rest if its writer is dead."""
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    others = {".wanted.json.partial-1-0123abcd", "trainer.log", ".status.json", "run.json", "supervisor.lock"}
    mine = {".run.json.partial-1-0123abcd", ".status.json.partial-22-89abcdef"}
    left = {f".{name}.partial-{dead.pid}-0123abcd" for name in ("wanted.json", "probe")}
    for name in mine | left | others:
        state(directory, name).write_text("x")
    seals = state(directory, "seals")
    seals.mkdir()
    for name in ("a.pt.json", ".a.pt.json.partial-1-0123abcd", f".b.pt.json.partial-{dead.pid}-0123abcd"):
        (seals / name).write_text("x")
    lock = statefile.lock(directory)

    assert {*others, "seals"} == names(directory)
    assert {"a.pt.json", ".a.pt.json.partial-1-0123abcd"} == set(os.listdir(seals))
    os.close(lock)


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_what_is_no_file_neither_holds_up_nor_feeds_who_reads(directory: str, kind: str) -> None:
    """A pipe that nobody writes to, or a device without end, is refused where a file must be, and else is nothing."""
    for name in ("run.json", "wanted.json", "status.json", "supervisor.lock"):
        if kind == "fifo":
            os.mkfifo(state(directory, name))
        else:
            state(directory, name).symlink_to("/dev/zero")

    with pytest.raises(UsageError, match=r"run\.json: it cannot be read \(Not a regular file\); let it be a file"):
        statefile.read_run(directory, 0.0)
    with pytest.raises(UsageError, match=r"supervisor\.lock: the lock cannot be taken \(Not a regular file\)"):
        statefile.lock(directory)
    with pytest.raises(OSError, match="Not a regular file"):
        statefile.read_status(directory)
    assert (None, None) == (statefile.read_wanted(directory), statefile.holder(directory))


def test_preparing_makes_the_folders_and_leaves_nothing(tmp_path: Path) -> None:
    """The directory is made with all above it, again and again, without a trace of having been tried."""
    directory = str(tmp_path / "a" / "b")
    for _ in range(2):
        statefile.prepare(directory, anew=True)

    assert set() == names(directory)


@pytest.mark.parametrize("where", ["file", "file/below", "state", "/proc/x", "/proc/self/x"])
def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path, where: str) -> None:
    """A file in the way or a filesystem that takes nothing is told in one line that names the setting."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / ".lastgood").write_text("x")
    directory = os.path.join(tmp_path, where)

    with pytest.raises(UsageError, match=f"^checkpoints.dir: {directory} is not writable") as caught:
        statefile.prepare(directory, anew=True)
    assert 1 == len(str(caught.value).splitlines())


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_directory_that_only_looks_writable_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Whether it can be written is tried, not guessed from its mode."""

    def refused(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refused)

    with pytest.raises(UsageError, match=os.strerror(number)):
        statefile.prepare(str(tmp_path), anew=True)


def test_what_is_wanted_is_read_as_it_was_written(directory: str) -> None:
    """The last wish counts, and there is none at first."""
    assert None is statefile.read_wanted(directory)
    for wish in ("run", "stop", "pause", "run"):
        statefile.write_wanted(directory, wish)
        assert wish == statefile.read_wanted(directory)
    assert {"wanted.json"} == names(directory)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"5", b"null", b'{"wanted": "fly"}', b'{"wanted": ["run"]}', b"[" * 100_000, b"\xff", b'{"wanted": "ru'],
    ids=lambda content: ascii(content[:20]),
)  # fmt: skip
def test_a_damaged_wish_is_no_wish(directory: str, content: bytes) -> None:
    """Whatever is in wanted.json, it neither raises nor is taken for a wish it does not hold."""
    state(directory, "wanted.json").write_bytes(content)

    assert None is statefile.read_wanted(directory)


@pytest.mark.parametrize(("before", "after"), [(None, "stop"), ("run", "stop"), ("stop", "stop"), ("pause", "pause")])
def test_what_the_supervisor_writes_leaves_a_pause(directory: str, before: str | None, after: str) -> None:
    """Somebody wants the GPU, also over a stop and a start; and no partial is left."""
    if before is not None:
        statefile.write_wanted(directory, before)
    statefile.settle_wanted(directory, "stop")

    assert (after, {"wanted.json"}) == (statefile.read_wanted(directory), names(directory))


def test_what_the_supervisor_writes_does_not_wait_for_the_disk(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wish that is told while a sync takes seconds would be written over."""

    def synced(_descriptor: int) -> None:
        raise AssertionError

    monkeypatch.setattr(os, "fsync", synced)
    statefile.settle_wanted(directory, "stop")

    assert "stop" == statefile.read_wanted(directory)


def test_a_wish_that_cannot_be_read_is_told_apart_from_none(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for looking at they are alike."""

    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(statefile, "open", broken, raising=False)

    assert None is statefile.read_wanted(directory)
    with pytest.raises(OSError, match="Input/output error"):
        statefile.wanted_in(directory)
    with pytest.raises(OSError, match="Input/output error"):
        statefile.settle_wanted(directory, "run")


def test_a_directory_that_is_away_does_not_say_that_there_is_no_wish(tmp_path: Path) -> None:
    """Unmounted, it is as empty as a mount point is; a pause that lies on it must not be taken for none."""
    assert None is statefile.read_wanted(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        statefile.wanted_in(str(tmp_path))


def test_a_folder_in_the_place_of_the_wish_is_no_wish(directory: str) -> None:
    """What cannot be read says nothing."""
    state(directory, "wanted.json").mkdir()

    assert None is statefile.read_wanted(directory)


def test_a_reader_never_sees_a_torn_status(directory: str) -> None:
    """While status.json is replaced twice a second, whoever looks sees a whole one."""
    found = seen_while(
        directory,
        lambda number: statefile.write_status(directory, {"number": number, "padding": "x" * 20_000}),
        lambda: statefile.read_status(directory),
    )

    numbers = [status["number"] for status in found if isinstance(status, dict)]
    assert len(found) == len(numbers)
    assert sorted(numbers) == numbers


def test_without_a_status_there_is_none(directory: str) -> None:
    """Before the first supervisor nobody has said anything."""
    assert None is statefile.read_status(directory)


def test_a_status_may_hold_what_json_has_no_word_for(directory: str) -> None:
    """An object in it is described rather than refused."""
    statefile.write_status(directory, {"name": "\udcff", "path": Path("/a")})

    assert {"name": "\udcff", "path": repr(Path("/a"))} == statefile.read_status(directory)


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000], ids=lambda c: ascii(c[:20]))
def test_a_damaged_status_is_told(directory: str, content: bytes) -> None:
    """Damage is not the same as nobody having written a status."""
    state(directory, "status.json").write_bytes(content)

    with pytest.raises(ValueError):
        statefile.read_status(directory)


@pytest.mark.parametrize("call", ["replace", "write"])
def test_a_status_that_cannot_be_written_leaves_nothing(
    directory: str, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """On a full disk the old status stays and partials do not pile up, twice a second for a weekend."""
    statefile.write_status(directory, {"step": 1})

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            statefile.write_status(directory, {"step": 2})

    assert {"status.json"} == names(directory)
    assert {"step": 1} == statefile.read_status(directory)


def test_a_status_is_readable_by_whom_the_umask_says(directory: str) -> None:
    """Another user may look at how a run is doing."""
    before = os.umask(0o022)
    try:
        statefile.write_status(directory, {})
    finally:
        os.umask(before)

    assert 0o644 == state(directory, "status.json").stat().st_mode & 0o777

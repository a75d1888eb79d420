"""The trainer's own control group: made where one may be, entered before anything is born, left by nobody, and removed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor import proc
from supervisor.adapters import cgroup
from supervisor.adapters.cgroup import OomCounter, TrainerGroup, delegated
from supervisor.adapters.process import Child
from supervisor.adapters.tree import members, sweep
from supervisor.proc import Identity
from tests.adapters.waiting import ROOT, until
from tests.cgroups import entering, limited, pids_below, unified

DIRECTORY = "/somewhere/checkpoints"
OLD_AND_NEW = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / {top}/memory rw,relatime shared:7 - cgroup cgroup rw,memory
41 31 0:38 / {top}/unified rw,relatime - cgroup2 cgroup2 rw
half a line
"""
NEW = "30 23 0:26 / {top}/unified rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
INSIDE = "30 23 0:26 /docker/1f {top}/unified rw shared:4 - cgroup2 cgroup rw\n"


# -- where groups may be made ----------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up hierarchy with a service in which a supervisor and its trainer have their groups, and a session."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for name in ("a.service/lastgood-supervisor-1", "a.service/lastgood-trainer-1", "a.scope/lastgood-supervisor-1"):
        (tmp_path / "unified" / name).mkdir(parents=True)
    for folder, _, _ in os.walk(tmp_path / "unified"):
        (Path(folder) / "cgroup.procs").touch()
    return tmp_path


def found(tree: Path, path: str, is_service: bool, mounts: str = NEW) -> str | None:
    """Where groups may be made for a process in a group, from the top of the hierarchy."""
    folder = delegated(f"9:name=systemd:/\n0::{path}\n", is_service, mounts.format(top=tree))
    return None if folder is None else f"/{os.path.relpath(folder, tree / 'unified')}"


def mark(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Have systemd say that it delegated these groups."""

    def getxattr(folder: str, name: str) -> bytes:
        if os.path.basename(folder) in names and name == "user.delegate":
            return b"1"
        raise OSError(61, "No data available")

    monkeypatch.setattr(os, "getxattr", getxattr)


def test_groups_are_made_where_systemd_says_so(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A marked service's, whoever runs it; also from a subgroup that systemd or this software had put the process into."""
    asked = ("/a.service", "/a.service/lastgood-supervisor-1")
    unmarked = [found(tree, path, is_service=True) for path in asked]
    mark(monkeypatch, "a.service")
    marked = [found(tree, path, is_service=True) for path in asked]
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    assert [None, None] == unmarked
    assert ["/a.service"] * 2 == marked == [found(tree, path, is_service=True) for path in asked]


def test_what_is_in_a_trainers_group_stays_in_it(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor that a trainer starts makes its groups inside, so that they end with that trainer's."""
    mark(monkeypatch, "a.service")

    assert "/a.service/lastgood-trainer-1" == found(tree, "/a.service/lastgood-trainer-1", is_service=False)


def test_a_user_may_use_what_may_be_written_and_is_no_services(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a session anybody but root, who could write everywhere."""
    mark(monkeypatch)
    asked = ("/a.scope", "/a.scope/lastgood-supervisor-1")
    theirs = [found(tree, path, is_service=False) for path in asked]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    roots = [found(tree, path, is_service=False) for path in asked]

    assert ["/a.scope", "/a.scope"] == theirs
    assert [None, None] == roots


def test_a_group_that_may_not_be_written_is_not_used(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder and its list of processes must both be ours: with one alone nothing can be moved."""
    mark(monkeypatch, "a.service")
    monkeypatch.setattr(os, "access", lambda path, mode: not path.endswith("cgroup.procs"))

    assert found(tree, "/a.service", is_service=True) is None
    assert found(tree, "/a.scope", is_service=False) is None


@pytest.mark.parametrize(
    ("path", "mounts", "expected"),
    [
        ("/a.scope", OLD_AND_NEW, "/a.scope"),
        ("/docker/1f/a.scope", INSIDE, "/a.scope"),  # a container that sees the names of the outside
        ("/docker/1f", INSIDE, "/."),
        ("/docker/2", INSIDE, None),
        ("/../a.scope", NEW, None),  # outside of its namespace
        ("/gone.scope (deleted)", NEW, None),
        ("/a.scope", "", None),
    ],
)
def test_a_group_is_found_where_it_is_mounted(tree: Path, path: str, mounts: str, expected: str | None) -> None:
    """Beside v1, in a container, and not at all where it cannot be seen."""
    assert expected == found(tree, path, is_service=False, mounts=mounts)


def test_without_v2_there_are_no_groups(tree: Path) -> None:
    """Those of v1 are nobody's to make."""
    assert delegated("4:memory:/a.scope\n", False, OLD_AND_NEW.format(top=tree)) is None


# -- how much memory is left -----------------------------------------------------------------------------------------------


def left(tree: Path, mounts: str) -> int | None:
    """For a process that is in `/job/below` everywhere."""
    return cgroup.memory_left("9:name=systemd:/x\n4:cpu,memory:/job/below\n0::/job/below\n", mounts.format(top=tree))


def allow(folder: Path, version: int, limit: str, taken: int, cached: int) -> None:
    """Have a group's files say so."""
    names = (
        ("memory.max", "memory.current", "")
        if version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{taken}\n")
    stat = f"anon 1\n{names[2]}inactive_file {cached}\n{names[2]}active_file 5\n{names[2]}inactive_anon 9\n"
    (folder / "memory.stat").write_text(stat)


def test_the_tightest_group_above_says_how_much_memory_is_left(tmp_path: Path) -> None:
    """What its caches of files hold is as good as free; a group without a limit says nothing."""
    (tmp_path / "unified/job/below").mkdir(parents=True)  # one of our own, without a memory controller
    allow(tmp_path / "unified/job", 2, "1000", 900, 300)
    assert 1000 - 900 + 305 == left(tmp_path, NEW)
    allow(tmp_path / "unified/job/below", 2, "max", 10, 1)
    assert 1000 - 900 + 305 == left(tmp_path, NEW)
    allow(tmp_path / "unified/job/below", 2, "500", 400, 20)

    assert 500 - 400 + 25 == left(tmp_path, NEW)


def test_the_controller_of_v1_says_how_much_memory_is_left(tmp_path: Path) -> None:
    """And where neither limits anything, nobody does."""
    allow(tmp_path / "memory/job", 1, "1000", 700, 100)
    allow(tmp_path / "memory/job/below", 1, "9223372036854771712", 600, 100)
    (tmp_path / "unified/job/below").mkdir(parents=True)

    assert 1000 - 700 + 105 == left(tmp_path, OLD_AND_NEW)
    assert None is left(tmp_path, "")


# -- who counts OOM kills --------------------------------------------------------------------------------------------------


def counter(tree: Path, mounts: str, group: TrainerGroup | None = None) -> OomCounter:
    """Counts for a process that is in `/job` everywhere."""
    return OomCounter(group, "9:name=systemd:/x\n4:cpu,memory:/job\n0::/job\n", mounts.format(top=tree))


def test_the_controller_of_v1_counts_where_it_is(tmp_path: Path) -> None:
    """On a machine that has both, memory is accounted for by one; a rise since the start is told."""
    for name in ("memory/job", "unified/job"):
        (tmp_path / name).mkdir(parents=True)
    counts = tmp_path / "memory/job/memory.oom_control"
    counts.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    (tmp_path / "unified/job/memory.events").write_text("oom_kill 9\n")
    watching = counter(tmp_path, OLD_AND_NEW)
    before = watching.risen()
    counts.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 6\n")

    assert (0, 2) == (before, watching.risen())


def test_the_nearest_group_with_the_controller_counts(tmp_path: Path) -> None:
    """Of v2: the trainer's own where that accounts for memory, else the nearest above; `oom_kill` is not `oom`."""
    (tmp_path / "unified/job").mkdir(parents=True)
    own = TrainerGroup(str(tmp_path / "unified/job"), DIRECTORY)
    os.mkdir(own.folder)
    events = "low 0\nhigh 0\nmax 7\noom 5\noom_kill {}\noom_group_kill 0\n"
    above, below = tmp_path / "unified/job/memory.events", Path(own.folder) / "memory.events"
    above.write_text(events.format(1))
    inherited = [counter(tmp_path, NEW, group) for group in (None, own)]
    above.write_text(events.format(2))
    told = [one.risen() for one in inherited]
    below.write_text(events.format(0))
    exact = counter(tmp_path, NEW, own)
    above.write_text(events.format(3))
    below.write_text(events.format(1))

    assert [1, 1] == told
    assert 1 == exact.risen()


def test_without_a_counter_nothing_is_known(tmp_path: Path) -> None:
    """No controller, or one that disappears meanwhile: that is not the same as no kill."""
    (tmp_path / "unified/job").mkdir(parents=True)
    nobody = counter(tmp_path, NEW)
    events = tmp_path / "unified/job/memory.events"
    events.write_text("oom_kill 1\n")
    somebody = counter(tmp_path, NEW)
    events.write_text("nonsense\n")

    assert [None, None] == [nobody.risen(), somebody.risen()]


def test_the_kernel_counts_an_oom_kill_and_no_other() -> None:
    """Really: a child that takes more than its memory group may have is counted, one that is killed by a person is not."""
    code = """
import subprocess, sys
from supervisor.adapters.cgroup import OomCounter
def lived(words):
    counter = OomCounter(None)
    return subprocess.run(words).returncode, counter.risen()
hoard = "kept = [bytearray(b'x') * (1 << 20) for _ in range(4000)]"
print(lived([sys.executable, "-c", hoard]))
print(lived(["sh", "-c", "kill -9 $$"]))
"""
    with limited("counted", megabytes=96) as group:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            preexec_fn=entering(group),
            capture_output=True,
            text=True,
            check=True,
        )

    assert ["(-9, 1)", "(-9, 0)"] == done.stdout.splitlines()


# -- a group and what lives in it ------------------------------------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[TrainerGroup]:
    """A real group for a trainer, with this process left where it is."""
    with unified("trainer") as base:
        made = TrainerGroup(str(base), DIRECTORY)
        os.mkdir(made.folder)
        yield made


def spawn(group: TrainerGroup | None, script: str) -> Child:
    """A shell script, without anything in its environment, started in the group."""
    entrance = None if group is None else group.entrance()
    return Child.spawn(["sh", "-c", script], cwd="/", env={"PATH": os.environ["PATH"]}, group=entrance)


def ended(child: Child) -> str:
    """What a child had to say, once it has ended."""
    until(child.poll_exit)
    said = os.read(child.output_descriptor, 65536).decode()
    child.close()
    return said


def bystanders() -> frozenset[int]:
    """Children that this process has for other reasons."""
    return frozenset(stat.pid for stat in proc.snapshot().values() if stat.parent == os.getpid())


def escaped(group: TrainerGroup | None) -> Identity:
    """A process that left its session, its parent and its environment, and whose leader is gone."""
    child = spawn(group, '(setsid env -i sh -c "echo \\$\\$; exec sleep 60 >/dev/null 2>&1" &) &')
    found = proc.identity_of(int(ended(child)))
    assert found is not None
    return found


def test_a_command_starts_in_the_group(group: TrainerGroup) -> None:
    """Its first program is in it already, and so is all that it starts."""
    inside = ended(spawn(group, "cat /proc/self/cgroup"))

    assert (
        f"0::/{os.path.basename(os.path.dirname(group.folder))}/{os.path.basename(group.folder)}" in inside.splitlines()
    )


def test_a_group_that_was_removed_is_made_anew(group: TrainerGroup) -> None:
    """Somebody tidied up between two starts."""
    os.rmdir(group.folder)
    inside = ended(spawn(group, "cat /proc/self/cgroup"))

    assert os.path.basename(group.folder) in inside


def test_a_command_starts_also_without_its_group(tmp_path: Path) -> None:
    """What cannot be entered is no reason not to train."""
    child = Child.spawn(["echo", "here"], cwd="/", env=dict(os.environ), group=str(tmp_path / "gone" / "cgroup.procs"))

    assert "here\n" == ended(child)


def test_what_hides_from_all_else_is_found_in_the_group_and_ended(group: TrainerGroup) -> None:
    """Forked twice, in a session of its own, with an empty environment, its leader gone: only its group tells."""
    hidden, spared = escaped(group), bystanders()

    assert [] == members(None, None, exclude=spared)
    assert [hidden] == members(None, None, exclude=spared, group=group)
    assert [] == sweep(None, None, exclude=spared, group=group, limit_seconds=10)
    assert [] == pids_below(Path(group.folder))


def test_a_stranger_outside_is_left_alone(group: TrainerGroup) -> None:
    """The same process outside of the group is not the run's."""
    stranger, _hidden = escaped(None), escaped(group)
    left = sweep(None, None, exclude=bystanders(), group=group, limit_seconds=10)
    lives = proc.is_alive(stranger)
    proc.send_signal(stranger, signal.SIGKILL)

    assert ([], True) == (left, lives)


def test_a_chain_that_forks_and_ends_faster_than_a_look_is_ended(group: TrainerGroup) -> None:
    """Never the same process for longer than a moment: no list of processes holds it, and it is killed at one stroke."""
    chain = "import os\nfor _ in iter(int, 1):\n    if os.fork(): os._exit(0)\n"
    child = Child.spawn(
        [sys.executable, "-I", "-S", "-c", chain], cwd="/", env={"PATH": os.environ["PATH"]}, group=group.entrance()
    )
    until(child.poll_exit)
    child.close()

    assert [] == sweep(None, None, exclude=bystanders(), group=group, limit_seconds=10)
    time.sleep(0.05)
    assert [] == pids_below(Path(group.folder))


def test_groups_that_a_trainer_makes_in_its_own_are_ended_too(group: TrainerGroup) -> None:
    """A container that it starts, say; and nothing of them is left."""
    inner = Path(group.folder) / "inner" / "most"
    inner.mkdir(parents=True)
    deep = TrainerGroup(str(inner), DIRECTORY)
    hidden = escaped(deep)

    assert {hidden.pid} == group.pids()
    assert [] == sweep(None, None, exclude=bystanders(), group=group, limit_seconds=10)
    group.leave()
    assert not os.path.exists(group.folder)


def test_a_group_that_this_process_is_in_is_never_killed_at_one_stroke(
    group: TrainerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody moved the supervisor into it: it does not end itself."""
    bystander = escaped(group)
    monkeypatch.setattr(os, "getpid", lambda: bystander.pid)
    group.kill()

    assert proc.is_alive(bystander)


# -- taking and leaving ----------------------------------------------------------------------------------------------------

LIVES = f"""
import os, sys
from pathlib import Path
from supervisor.adapters.cgroup import TrainerGroup
where = lambda: Path("/proc/self/cgroup").read_text().splitlines()[-1].rpartition("/")[2].rpartition("-")[0]
is_service = sys.argv[1:] == []
if not is_service:
    os.setresuid(*[int(sys.argv[1])] * 3)
group = TrainerGroup.made({DIRECTORY!r}, is_service)
print(group is not None, where(), group is not None and os.path.isdir(group.folder))
if group is not None:
    group.leave()
    print(where(), os.path.exists(group.folder))
"""


def live_in(base: Path, *user: str) -> list[str]:
    """What a supervisor says that takes a group there and leaves it: a service's, or a user's in a session."""
    done = subprocess.run(
        [sys.executable, "-c", LIVES, *user],
        cwd=ROOT,
        preexec_fn=entering(base),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_supervisor_takes_both_groups_and_leaves_nothing() -> None:
    """Inside it sits beside its trainer; afterwards all is as it was."""
    with unified("taken") as base:
        said = live_in(base)
        left = [path.name for path in base.iterdir() if path.is_dir()]

    assert ["True lastgood-supervisor True", f"{base.name.rpartition('-')[0]} False"] == said
    assert [] == left


def test_a_user_takes_groups_in_a_session_of_its_own() -> None:
    """Without a mark and without being root, where the group is this user's to write; not where it is another's."""
    with unified("users", delegated=False) as base:
        foreign = live_in(base, "65534")
        for path in (base, base / "cgroup.procs"):
            os.chown(path, 65534, 65534)
        own = live_in(base, "65534")
        left = [path.name for path in base.iterdir() if path.is_dir()]

    before = base.name.rpartition("-")[0]
    assert [f"False {before} False"] == foreign
    assert (["True lastgood-supervisor True", f"{before} False"], []) == (own, left)


def test_a_group_that_nobody_delegated_is_left_alone() -> None:
    """Root could write there, and does not."""
    with unified("undelegated", delegated=False) as base:
        said = live_in(base)

    assert [f"False {base.name.rpartition('-')[0]} False"] == said


def test_two_directories_have_two_groups() -> None:
    """Two runs in one session do not end each other's trainers."""
    groups = [TrainerGroup("/base", directory).folder for directory in ("/a", "/b", "/a")]

    assert groups[0] == groups[2] != groups[1]
    assert {cgroup.TRAINERS} == {os.path.basename(one).rpartition("-")[0] for one in groups}


def test_a_group_in_which_something_lives_is_not_removed(group: TrainerGroup) -> None:
    """What will not die is there for the next supervisor, and leaving takes no longer for it."""
    hidden = escaped(group)
    began = time.monotonic()
    group.leave()

    assert time.monotonic() - began < 0.5
    assert [hidden.pid] == pids_below(Path(group.folder))

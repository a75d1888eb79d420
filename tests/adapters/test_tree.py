"""What belongs to a run is found and ended, whatever it did to escape; what does not is left alone."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lastgood.contract import ENV_RUN_ID
from supervisor import proc
from supervisor.adapters import tree
from supervisor.adapters.process import Child
from supervisor.adapters.tree import descendants, in_session, line_of, members, sweep
from supervisor.proc import Identity, identity_of, is_alive
from tests.adapters.waiting import marked_environment, marked_pids, until

# Short sleeps: should the sweep fail, these scrubbed their mark and nothing else will end them.
ESCAPE = '(setsid sh -c "(sleep 20) & sleep 20" &) &'


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """Mark the children of a test and see that all of them end."""
    with marked_environment() as variables:
        yield variables


@pytest.fixture(autouse=True)
def no_subreaper() -> Iterator[None]:
    """Let orphans go to the system, in case another test made this process adopt them."""
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    prctl(37, ctypes.byref(before))
    prctl(36, ctypes.c_ulong(0))
    yield
    prctl(36, ctypes.c_ulong(before.value))


@pytest.fixture
def bystanders() -> frozenset[int]:
    """Children that this process has for other reasons; no test may touch them."""
    return frozenset(stat.pid for stat in proc.snapshot().values() if stat.parent == os.getpid())


@pytest.fixture
def children(environment) -> Iterator[list[Child]]:
    """Collects children, which are killed and collected after the test, before anybody looks for survivors."""
    started: list[Child] = []
    yield started
    for child in started:
        proc.send_signal(child.identity, signal.SIGKILL)
        until(child.poll_exit)
        child.close()


def mark_of(environment: dict[str, str]) -> tuple[str, str]:
    """The variable by which the test's processes are known."""
    return ENV_RUN_ID, environment[ENV_RUN_ID]


def spawn(children: list[Child], environment: dict[str, str], script: str) -> Child:
    """Start a shell script that is collected with the test."""
    children.append(Child.spawn(["sh", "-c", script], cwd="/", env=environment))
    return children[-1]


def line_from(child: Child) -> str:
    """What the child has to say next."""
    return os.read(child.output_descriptor, 65536).decode().strip()


def orphan(environment: dict[str, str], script: str = "sleep 300") -> tuple[Identity, Identity]:
    """A process that does not descend from this one, in a session whose leader has ended, and that former leader."""
    command = f"({script}) >&2 & echo $!"
    with subprocess.Popen(
        ["sh", "-c", command], env=environment, stdout=subprocess.PIPE, start_new_session=True
    ) as leader:
        identity = identity_of(leader.pid)
        assert identity is not None
        assert leader.stdout is not None
        orphaned = identity_of(int(leader.stdout.read()))
        assert orphaned is not None
    until(lambda: (stat := proc.stat_of(orphaned.pid)) and stat.parent not in (os.getpid(), identity.pid))
    return orphaned, identity


def kill(*identities: Identity) -> None:
    """End processes that are nobody's children here; a signal that was sent takes a moment."""
    for identity in identities:
        proc.send_signal(identity, signal.SIGKILL)
    until(lambda: not any(map(is_alive, identities)))


def test_descendants_may_have_lower_pids():
    """A child's pid is lower than its parent's once pids have wrapped around; it is found all the same."""
    table = {900: (1, 900), 20: (900, 900), 15: (20, 15), 950: (15, 15), 800: (1, 800), 21: (800, 800)}

    assert {900, 20, 15, 950} == descendants(table, [900])


def test_descendants_do_not_enter_what_is_barred():
    """What is barred does not belong, nor does what descends from it."""
    table = {10: (1, 10), 11: (10, 10), 12: (11, 10), 13: (10, 10)}

    assert {10, 13} == descendants(table, [10], barred={11})
    assert set() == descendants(table, [10], barred={10})


def test_walks_end_on_a_circle():
    """A snapshot taken while pids were reused may show a circle, which must not hold anybody up."""
    table = {10: (12, 10), 11: (10, 10), 12: (11, 10)}

    assert {10, 11, 12} == descendants(table, [11])
    assert {10, 11, 12} == line_of(table, 11)


def test_line_goes_up_and_session_across():
    """Ancestors are followed to the top, a session is whoever is in it, and a root that is gone has nobody."""
    table = {1: (0, 1), 10: (1, 10), 5: (10, 10), 30: (1, 10)}

    assert {5, 10, 1} == line_of(table, 5)
    assert {10, 5, 30} == in_session(table, 10)
    assert set() == descendants(table, [77])


def test_members_are_leader_children_and_grandchildren(children, environment, bystanders):
    """The leader and everything below it belong; this process and its ancestors do not."""
    child = spawn(children, environment, "sh -c 'sleep 300 & wait' & sleep 300 & wait")
    until(lambda: len(marked_pids(environment[ENV_RUN_ID])) == 4)

    found = members(child.identity, None, exclude=bystanders)

    assert child.identity in found
    assert sorted(marked_pids(environment[ENV_RUN_ID])) == [identity.pid for identity in found]
    assert [] == sweep(child.identity, None, exclude=bystanders, limit_seconds=10)


def test_zombies_are_no_members(children, environment, bystanders):
    """What has ended and only waits to be collected is not left over."""
    child = spawn(children, environment, "true")
    until(lambda: not is_alive(child.identity))

    assert [] == members(child.identity, mark_of(environment), exclude=bystanders)


def test_double_fork_with_its_own_session_is_swept_by_its_mark(children, environment, bystanders):
    """A daemon that left session and parent still carries the run's mark, and ends with the run."""
    child = spawn(children, environment, f"{ESCAPE} echo away")
    assert "away" == line_from(child)
    until(child.poll_exit)
    until(lambda: len(marked_pids(environment[ENV_RUN_ID])) >= 3)

    assert [] == sweep(child.identity, mark_of(environment), exclude=bystanders, limit_seconds=10)
    assert [] == marked_pids(environment[ENV_RUN_ID])


def test_who_runs_one_program_after_the_other_is_found_at_every_look(environment, tmp_path):
    """While a program takes another's place the kernel shows no environment for a moment, and so no mark."""
    script = tmp_path / "again.sh"
    script.write_text('exec sh "$0"\n', encoding="ascii")
    orphaned, leader = orphan(environment, f"exec sh {script}")
    mark = mark_of(environment)
    try:
        assert [] == [look for look in range(300) if orphaned not in members(leader, mark)]
    finally:
        kill(orphaned)
    until(lambda: not proc.is_alive(orphaned))


def test_a_process_without_an_environment_is_not_waited_for(children, environment):
    """It carries no mark, which is known at once, and of the run only when it descends from it."""
    child = spawn(children, {}, "exec env -i sleep 300")
    until(lambda: cmdline(child.identity.pid).startswith(b"sleep"))

    assert False is proc.holds_variable(child.identity.pid, *mark_of(environment))


def cmdline(pid: int) -> bytes:
    """The command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_double_fork_without_a_mark_is_swept_by_a_subreaper(environment):
    """A daemon that also scrubbed its environment is adopted by the supervisor, and so found; its body is collected."""
    code = f"""
import os, time
from supervisor.adapters.process import Child, become_subreaper
from supervisor.adapters.tree import members, sweep
become_subreaper()
helper = Child.spawn(["sh", "-c", "sleep 300 & wait"], cwd="/", env=dict(os.environ))
child = Child.spawn(["env", "-i", "/bin/sh", "-c", '''{ESCAPE}'''], cwd="/", env=dict(os.environ))
deadline = time.monotonic() + 10
while (child.poll_exit() is None or len(members(None, None, exclude=[helper.identity.pid])) < 3):
    assert time.monotonic() < deadline
left = sweep(child.identity, None, exclude=[helper.identity.pid], limit_seconds=10)
print(left, len(members(None, None)), helper.poll_exit())
assert not sweep(None, None, limit_seconds=10, keep_unreaped=[helper.identity.pid])
print(helper.poll_exit())
try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("none left")
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)

    assert ["[] 2 None", "Exit(code=None, signal=9)", "none left"] == done.stdout.splitlines()


def test_process_that_ignores_signals_and_breeds_is_swept(children, environment, bystanders):
    """Neither ignored signals nor ever new children keep a run alive."""
    script = "trap '' TERM INT HUP; echo ready; while :; do sleep 300 & sleep 0.01; done"
    child = spawn(children, environment, script)
    assert "ready" == line_from(child)
    until(lambda: len(marked_pids(environment[ENV_RUN_ID])) > 5)

    assert [] == sweep(child.identity, mark_of(environment), exclude=bystanders, limit_seconds=10)
    assert [] == marked_pids(environment[ENV_RUN_ID])


def test_dead_orphans_are_collected_even_when_nothing_lives(environment):
    """Adopted processes that ended by themselves do not pile up as zombies."""
    code = """
import os
from supervisor.adapters.process import Child, become_subreaper
from supervisor.adapters.tree import sweep
from supervisor.proc import snapshot
become_subreaper()
child = Child.spawn(["sh", "-c", "(exec true) & exit 0"], cwd="/", env=dict(os.environ))
while [stat.state for stat in snapshot().values() if stat.parent == os.getpid()] != ["Z", "Z"]:
    pass
print(sweep(None, None, limit_seconds=10, keep_unreaped=[child.identity.pid]))
print([stat.pid for stat in snapshot().values() if stat.parent == os.getpid()] == [child.identity.pid])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=20
    )

    assert ["[]", "True"] == done.stdout.splitlines()


def test_exit_of_the_leader_is_not_collected_by_the_sweep(children, environment, bystanders):
    """The trainer's own exit status is left to whoever waits for it."""
    child = spawn(children, environment, "sleep 300 & exit 9")
    until(lambda: not is_alive(child.identity))

    keep = [child.identity.pid]
    assert [] == sweep(child.identity, None, exclude=bystanders, limit_seconds=10, keep_unreaped=keep)
    exit_found = child.poll_exit()
    assert exit_found is not None
    assert 9 == exit_found.code


def test_helpers_are_spared(children, environment, bystanders):
    """The supervisor's own helpers and what they started do not belong, even with the run's mark."""
    helper = spawn(children, environment, "sleep 300 & echo ready; wait")
    assert "ready" == line_from(helper)
    until(lambda: len(marked_pids(environment[ENV_RUN_ID])) == 2)

    spared = {*bystanders, helper.identity.pid}
    assert [] == sweep(None, mark_of(environment), exclude=spared, limit_seconds=10)
    assert 2 == len(marked_pids(environment[ENV_RUN_ID]))
    assert [] == sweep(None, mark_of(environment), exclude=bystanders, limit_seconds=10)


def test_caller_and_its_ancestors_never_belong(environment):
    """A supervisor that carries the mark itself, or was started by what does, spares itself and its ancestors."""
    code = "from supervisor.adapters.tree import members; import os; "
    code += f"print(members(None, ('{ENV_RUN_ID}', os.environ['{ENV_RUN_ID}'])))"
    done = subprocess.run(
        ["sh", "-c", '"$@"; true', "sh", sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert "[]\n" == done.stdout


def test_leftover_of_a_dead_supervisor_is_found_by_its_mark(environment, bystanders):
    """After the supervisor was killed nobody is related to the leftover any more; only its mark tells."""
    left, leader = orphan(environment)

    assert [left] == members(leader, mark_of(environment), exclude=bystanders)
    assert [] == members(leader, (ENV_RUN_ID, "another run"), exclude=bystanders)
    assert [] == sweep(None, mark_of(environment), exclude=bystanders, limit_seconds=10)


def test_mark_must_match_as_a_whole(environment, bystanders):
    """A longer value, or the same text inside another variable, is not the mark."""
    run_id = environment[ENV_RUN_ID]
    others = {"PATH": environment["PATH"], ENV_RUN_ID: f"{run_id}-2", "NOTE": f"{ENV_RUN_ID}={run_id}"}
    stranger, _ = orphan(others)

    found = members(None, mark_of(environment), exclude=bystanders)
    kill(stranger)

    assert [] == found


def test_session_of_a_live_leader_belongs(environment, bystanders):
    """While the leader is there its session is the run's, also what no longer descends from it and has no mark."""
    with subprocess.Popen(
        ["sh", "-c", "(env -i sleep 300 >&2 & echo $!); exec sleep 300"],
        env=environment,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as leader:
        assert leader.stdout is not None
        stray = identity_of(int(leader.stdout.readline()))
        identity = identity_of(leader.pid)
        assert stray is not None
        assert identity is not None

        # The subshell between the two needs a moment to end.
        until(lambda: {stray, identity} == set(members(identity, None, exclude=bystanders)))
        kill(identity, stray)


def test_session_of_a_gone_leader_belongs_only_with_evidence(environment, bystanders):
    """A session number alone proves nothing; one process known to be of the run makes its session the run's."""
    stray, leader = orphan(
        {"PATH": environment["PATH"]}, f"{ENV_RUN_ID}={environment[ENV_RUN_ID]} sleep 300 & sleep 300"
    )
    until(lambda: marked_pids(environment[ENV_RUN_ID]))

    without = members(leader, None, exclude=bystanders)
    found = members(leader, mark_of(environment), exclude=bystanders)
    left = sweep(leader, mark_of(environment), exclude=bystanders, limit_seconds=10)

    assert [] == without
    assert stray in found
    assert len(found) >= 2
    assert [] == left


def test_stranger_with_the_leaders_pid_is_left_alone(environment, bystanders):
    """A pid that was reused names neither the leader, nor its session, nor its children."""
    stranger, _ = orphan({"PATH": environment["PATH"]})
    former = Identity(stranger.pid, stranger.start_ticks - 1)

    found = members(former, None, exclude=bystanders)
    kill(stranger)

    assert [] == found


def test_clean_run_is_seen_at_one_look(environment, bystanders, monkeypatch):
    """When nothing is left the sweep returns without a pause."""
    monkeypatch.setattr(time, "sleep", lambda _seconds: pytest.fail("paused"))

    assert [] == sweep(None, mark_of(environment), exclude=bystanders, limit_seconds=10)


def test_survivors_are_told_when_time_is_up(children, environment, bystanders, monkeypatch):
    """A process that cannot be killed does not hold the sweep for ever; it is returned."""
    child = spawn(children, environment, "exec sleep 300")
    with monkeypatch.context() as patch:
        patch.setattr(tree, "send_signal", lambda *_: False)

        assert [child.identity] == sweep(child.identity, None, exclude=bystanders, limit_seconds=0.05)


def test_process_that_vanishes_while_it_is_read_is_not_there(environment, bystanders, monkeypatch):
    """Every read of /proc may fail because the process has just ended."""
    real_listing = os.listdir

    def with_ghosts(path: str) -> list[str]:
        return [*real_listing(path), "2147483647", "2147483646"]

    monkeypatch.setattr(os, "listdir", with_ghosts)

    assert not {2147483647, 2147483646} & proc.snapshot().keys()
    assert [] == members(None, mark_of(environment), exclude=bystanders)


def test_halves_of_a_stat_line_are_nobody(monkeypatch):
    """A line cut short by the end of its process is no process."""
    monkeypatch.setattr(proc, "_read", lambda _path: Path("/proc/self/stat").read_bytes()[:20])

    assert {} == proc.snapshot()

"""The trainer as a process, against real children that behave badly."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor import proc
from supervisor.adapters import exec_shim
from supervisor.adapters.process import Child, Exit, stop_targets
from supervisor.proc import Identity, identity_of, is_alive, parse_stat, send_signal
from tests.adapters.waiting import PYTHON, marked_environment, until

WRITES_ON_TERM = """
import os, signal, sys, time
def save(number, frame):
    open(sys.argv[1], "w").write("saved")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
os.write(1, b"ready\\n")
while True:
    time.sleep(60)
"""


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """Mark the children of a test and see that all of them end."""
    with marked_environment() as variables:
        yield variables


@pytest.fixture
def children(environment) -> Iterator[list[Child]]:
    """Collects children, which are killed and closed after the test, before anybody looks for survivors."""
    started: list[Child] = []
    yield started
    for child in started:
        if child.pidfd >= 0:
            send_signal(child.identity, signal.SIGKILL)
            until(child.poll_exit)
        child.close()


def spawn(children: list[Child], environment: dict[str, str], *argv: str) -> Child:
    """Start a command that ends with the test."""
    children.append(Child.spawn(argv, cwd="/", env=environment))
    return children[-1]


def output_of(child: Child) -> str:
    """Everything the child says until it and whoever shares its output have ended."""
    with os.fdopen(os.dup(child.output_descriptor), "rb") as pipe:
        return pipe.read().decode()


def line_of(child: Child) -> str:
    """What the child has to say next."""
    return os.read(child.output_descriptor, 65536).decode().strip()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 0", Exit(code=0, signal=None)),
        ("exit 65", Exit(code=65, signal=None)),
        ("kill -KILL $$", Exit(code=None, signal=signal.SIGKILL)),
        ("kill -SEGV $$", Exit(code=None, signal=signal.SIGSEGV)),
    ],
)
def test_exit_tells_code_or_signal(children, environment, script, expected):
    """An exit is a code or a signal, never a mixture, and is remembered."""
    child = spawn(children, environment, "sh", "-c", script)

    assert expected == until(child.poll_exit)
    assert expected == child.poll_exit()


def test_running_child_has_no_exit(children, environment):
    """Asking whether a child has ended does not wait for it."""
    child = spawn(children, environment, "sleep", "60")

    assert child.poll_exit() is None
    assert is_alive(child.identity)


def test_exit_collected_by_somebody_else_is_unknown(children, environment):
    """A status that was lost is neither success nor failure."""
    child = spawn(children, environment, "true")
    os.waitpid(child.identity.pid, 0)

    assert Exit(code=None, signal=None) == child.poll_exit()


def test_command_that_is_not_found_exits_127(children, environment):
    """A command that does not exist ends as in a shell, with one line that names it."""
    child = spawn(children, environment, "no-such-trainer", "--flag")

    assert Exit(code=127, signal=None) == until(child.poll_exit)
    assert "lastgood: cannot start 'no-such-trainer': No such file or directory\n" == output_of(child)


@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_command_that_is_not_executable_exits_126(children, environment, tmp_path, mode):
    """A file without permission, or without an interpreter line, cannot be executed, and that is said."""
    script = tmp_path / "train"
    script.write_text("echo hello\n")
    script.chmod(mode)
    child = spawn(children, environment, str(script))

    assert Exit(code=126, signal=None) == until(child.poll_exit)
    assert output_of(child).startswith(f"lastgood: cannot start {str(script)!r}: ")


def test_missing_folder_raises():
    """A working folder that does not exist is an error of the start, not an exit of the trainer."""
    with pytest.raises(FileNotFoundError):
        Child.spawn(["true"], cwd="/no/such/folder", env={})


def test_argument_that_no_program_can_get_raises():
    """What the system cannot pass on is an OSError like every other reason not to start."""
    with pytest.raises(OSError, match="null byte"):
        Child.spawn(["true", "a\0b"], cwd="/", env={})


def test_child_leads_its_own_session(children, environment):
    """The pid that was started is the trainer's own, and leads a session of its own."""
    child = spawn(children, environment, *PYTHON, "-c", "import os; print(os.getpid(), os.getsid(0), os.getpgid(0))")

    assert [str(child.identity.pid)] * 3 == output_of(child).split()


def test_environment_is_exactly_the_given_one(children):
    """Nothing is added on the way, not even the locale that Python sets for itself, and bad bytes survive."""
    given = {"PATH": "/usr/bin:/bin", "BYTES": os.fsdecode(b"\xff\xe9"), "EMPTY": ""}
    child = spawn(children, given, "env", "-0")
    with os.fdopen(os.dup(child.output_descriptor), "rb") as pipe:
        entries = pipe.read().split(b"\0")

    assert [b"", b"BYTES=\xff\xe9", b"EMPTY=", b"PATH=/usr/bin:/bin"] == sorted(entries)


def test_command_is_looked_up_in_the_childs_path(children, tmp_path):
    """The PATH that counts is the trainer's, not the supervisor's."""
    program = tmp_path / "only-here"
    program.write_text("#!/bin/sh\necho found $1\n")
    program.chmod(0o755)
    child = spawn(children, {"PATH": str(tmp_path)}, "only-here", "me")

    assert "found me\n" == output_of(child)


def test_signals_are_at_their_defaults(children, environment):
    """Neither what Python ignores nor what the supervisor blocks is passed on to the trainer."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGTERM})
    try:
        child = spawn(children, environment, "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    _, blocked, _, ignored = output_of(child).split()
    of_the_c_library = 0b11 << 31  # signals 32 and 33: glibc lets nobody change what was inherited for them
    assert (0, 0) == (int(blocked, 16) & ~of_the_c_library, int(ignored, 16) & ~of_the_c_library)


@pytest.mark.parametrize(("own", "expected"), [("-500\n", "0"), ("0\n", "0\n"), ("300\n", "300\n")])
def test_protection_from_the_oom_killer_is_the_supervisors_alone(tmp_path, own, expected):
    """What a service gave its supervisor so that it outlives its trainer goes no further; what a person took away does."""
    score = tmp_path / "oom_score_adj"
    score.write_text(own)
    exec_shim.give_up_protection(str(score))
    exec_shim.give_up_protection(str(tmp_path / "not_there"))

    assert expected == score.read_text()


def test_a_start_leaves_an_ordinary_score_as_it_is(children, environment):
    """Only what was lowered is given up: the command has the score that the supervisor has."""
    own = Path("/proc/self/oom_score_adj").read_text()

    assert own == output_of(spawn(children, environment, "cat", "/proc/self/oom_score_adj"))


def test_no_descriptor_is_inherited(children, environment):
    """The child gets /dev/null and its output, and nothing else that the supervisor has open."""
    inheritable = os.open("/dev/zero", os.O_RDONLY)
    os.set_inheritable(inheritable, True)
    code = """
import os
for name in sorted(os.listdir("/proc/self/fd")):
    if os.path.lexists(f"/proc/self/fd/{name}"):
        print(name, os.readlink(f"/proc/self/fd/{name}").partition(":")[0])
"""
    try:
        child = spawn(children, environment, *PYTHON, "-c", code)
        lines = output_of(child).splitlines()
    finally:
        os.close(inheritable)

    assert ["0 /dev/null", "1 pipe", "2 pipe"] == lines


def test_many_children_leave_no_descriptor_open(environment):
    """Spawning and closing again and again costs no descriptors."""

    def live_once() -> int:
        child = Child.spawn(["true"], cwd="/", env=environment)
        until(child.poll_exit)
        child.close()
        child.close()
        return len(os.listdir("/proc/self/fd"))

    assert 1 == len({live_once() for _ in range(5)})


def test_child_dies_with_its_supervisor(environment):
    """A supervisor that is killed takes its trainer with it, within a second."""
    code = """
from supervisor.adapters.process import Child
import time
child = Child.spawn(["sleep", "300"], cwd="/", env=dict(__import__("os").environ))
print(child.identity.pid, child.identity.start_ticks, flush=True)
time.sleep(300)
"""
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        trainer = Identity(*map(int, supervisor.stdout.readline().split()))
        until(lambda: proc.program_of(trainer.pid) not in ("", os.path.basename(os.path.realpath(sys.executable))))
        supervisor.kill()

        assert until(lambda: not is_alive(trainer), seconds=1.0)


def test_shim_does_not_start_for_a_dead_supervisor(tmp_path):
    """If the supervisor died before the trainer could ask for its death signal, nothing is started."""
    evidence = tmp_path / "started"
    stranger = os.getppid()
    shim = subprocess.run(
        [*PYTHON, exec_shim.__file__, str(stranger), "--", "touch", str(evidence)], capture_output=True, check=False
    )

    assert 126 == shim.returncode
    assert f"lastgood: the supervisor {stranger} is gone\n".encode() == shim.stderr
    assert not evidence.exists()


def test_shim_without_command_says_how_to_use_it():
    """The shim refuses what it does not understand."""
    shim = subprocess.run([*PYTHON, exec_shim.__file__, "1"], capture_output=True, check=False)

    assert 126 == shim.returncode
    assert b"usage" in shim.stderr


def test_ask_to_stop_reaches_what_a_shell_runs(children, environment, tmp_path):
    """A trainer under `sh -c` is asked to stop too, through nested shells, and can still save."""
    script, final = tmp_path / "x.py", tmp_path / "final.pt"
    script.write_text(WRITES_ON_TERM)
    inner = f"{' '.join(PYTHON)} {script} {final}; true"
    child = spawn(children, environment, "sh", "-c", f'sh -c "{inner}"; true')
    assert "ready" == line_of(child)

    asked = child.ask_to_stop()

    assert 3 == len(asked)
    assert child.identity == asked[0]
    until(lambda: not any(is_alive(identity) for identity in asked))
    assert "saved" == final.read_text()


def test_ask_to_stop_leaves_workers_alone(children, environment, tmp_path):
    """Only the trainer is asked, not its group: a worker that dies inside the save breaks it."""
    code = f"""
import os, signal, subprocess, sys, time
worker = subprocess.Popen(["sh", "-c", "trap 'touch {tmp_path}/termed' TERM; echo; read line; echo served"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE)
worker.stdout.readline()
def save(number, frame):
    os.write(1, worker.communicate(b"go on\\n")[0])
    sys.exit(worker.returncode)
signal.signal(signal.SIGTERM, save)
os.write(1, b"ready\\n")
while True:
    time.sleep(60)
"""
    child = spawn(children, environment, *PYTHON, "-c", code)
    assert "ready" == line_of(child)

    assert [child.identity] == child.ask_to_stop()
    assert "served\n" == output_of(child)
    assert Exit(code=0, signal=None) == until(child.poll_exit)
    assert not (tmp_path / "termed").exists()


def test_ask_to_stop_wakes_a_stopped_trainer(children, environment):
    """A trainer that was suspended is continued, or it could not act on the request."""
    child = spawn(children, environment, "sleep", "60")
    until(lambda: proc.program_of(child.identity.pid) not in ("", os.path.basename(os.path.realpath(sys.executable))))
    send_signal(child.identity, signal.SIGSTOP)
    until(lambda: (stat := proc.stat_of(child.identity.pid)) and stat.state == "T")

    child.ask_to_stop()

    assert Exit(code=None, signal=signal.SIGTERM) == until(child.poll_exit)


def test_ask_to_stop_after_the_end_asks_nobody(children, environment):
    """A trainer that has ended is not asked, and neither is who has its pid now."""
    child = spawn(children, environment, "true")
    until(child.poll_exit)

    assert [] == child.ask_to_stop()


def test_stop_targets_look_through_shells_only():
    """Children of shells are asked, children of programs are not, whatever the order of pids."""
    parents = {50: 1, 40: 50, 30: 40, 20: 30, 60: 50, 70: 1}

    assert [50, 40, 60, 30] == stop_targets(parents, 50, {50, 40}.__contains__)
    assert [50] == stop_targets(parents, 50, set[int]().__contains__)


def test_identity_mismatch_is_never_signalled(children, environment):
    """A pid that belongs to another process by now is left alone."""
    child = spawn(children, environment, "sleep", "60")
    former = Identity(child.identity.pid, child.identity.start_ticks - 1)

    assert not send_signal(former, signal.SIGKILL)
    assert not is_alive(former)
    assert is_alive(child.identity)


def test_signal_goes_out_without_descriptors(children, environment, monkeypatch):
    """A supervisor that has run out of descriptors can still kill, and still not the wrong one."""

    def no_descriptor_left(pid: int) -> int:
        raise OSError(24, "Too many open files")

    child = spawn(children, environment, "sleep", "60")
    monkeypatch.setattr(os, "pidfd_open", no_descriptor_left)

    assert not send_signal(Identity(child.identity.pid, child.identity.start_ticks - 1), signal.SIGKILL)
    assert send_signal(child.identity, signal.SIGKILL)
    assert Exit(code=None, signal=signal.SIGKILL) == until(child.poll_exit)


def test_failed_grip_kills_the_child(environment, monkeypatch):
    """A child that cannot be held by a pidfd is ended and collected, and the start has failed."""

    def no_descriptor_left(pid: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", no_descriptor_left)

    with pytest.raises(OSError, match="Too many open files"):
        Child.spawn(["sleep", "60"], cwd="/", env=environment)


def test_name_with_spaces_and_parentheses_is_parsed(children, environment):
    """A process may be called anything; its numbers are found all the same."""
    code = "import ctypes,time; ctypes.CDLL(None).prctl(15, b') Z (a) 7 '); print('named', flush=True); time.sleep(60)"
    child = spawn(children, environment, *PYTHON, "-c", code)
    assert "named" == line_of(child)

    stat = proc.stat_of(child.identity.pid)

    assert b"() Z (a) 7 )" in Path(f"/proc/{child.identity.pid}/stat").read_bytes()
    assert stat is not None
    assert (os.getpid(), child.identity, True) == (stat.parent, stat.identity, stat.is_alive)


def test_stat_line_is_read_by_its_last_parenthesis():
    """The fields are those of proc(5), counted from the end of the name."""
    numbers = " ".join(str(field) for field in range(4, 53))

    stat = parse_stat(f"77 (a) S (b)) R {numbers}\n".encode())

    assert proc.Stat(pid=77, state="R", parent=4, session=6, threads=20, start_ticks=22) == stat


@pytest.mark.parametrize("pid", [-1, 0, 2**31 - 1])
def test_nobody_is_not_there(pid):
    """A pid without a process has no identity, no program and no environment."""
    assert identity_of(pid) is None
    assert "" == proc.program_of(pid)
    assert not proc.holds_variable(pid, "PATH", "")
    assert not send_signal(Identity(2**31 - 1, 1), signal.SIGKILL)


def test_zombie_is_not_alive(children, environment):
    """A process that has ended but was not collected is there, and is not alive."""
    child = spawn(children, environment, "true")
    until(lambda: not is_alive(child.identity))

    assert child.identity == identity_of(child.identity.pid)
    assert Exit(code=0, signal=None) == child.poll_exit()


def test_process_whose_first_thread_ended_is_alive(children, environment):
    """The kernel calls it a zombie, but its other threads run on and hold all it has."""
    code = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall(60, 0)
"""
    child = spawn(children, environment, *PYTHON, "-c", code)
    assert "ready" == line_of(child)
    until(lambda: (stat := proc.stat_of(child.identity.pid)) and stat.state == "Z")

    assert is_alive(child.identity)
    assert child.poll_exit() is None


def test_orphans_are_adopted_and_reaped_but_not_the_kept(environment):
    """Dead orphans are collected by pid; the status of a child that somebody waits for is not stolen."""
    code = """
from supervisor.adapters.process import Child, become_subreaper, reap_orphans
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
become_subreaper()
assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
kept = Child.spawn(["sh", "-c", "exit 7"], cwd="/", env=dict(os.environ))
parent = Child.spawn(["sh", "-c", "(sleep 0.05) & exit 3"], cwd="/", env=dict(os.environ))
reaped, deadline = [], time.monotonic() + 10
while not reaped and time.monotonic() < deadline:
    reaped = reap_orphans({kept.identity.pid, parent.identity.pid})
print(len(reaped), kept.poll_exit(), parent.poll_exit(), reap_orphans(()))
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)

    assert f"1 {Exit(7, None)} {Exit(3, None)} []\n" == done.stdout

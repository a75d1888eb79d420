"""`lastgood stop`: a real supervisor is stopped, and nothing else ever is."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from supervisor import supervisors
from supervisor.cli.stopping import stop_supervisor
from supervisor.proc import identity_of
from tests.bench import Bench
from tests.supervisor.test_cli_snapshots import bound_by_permissions

LONG = "--steps=100000"


def running(bench: Bench, *trainer: str) -> "subprocess.Popen[bytes]":
    """A supervisor whose trainer has told a step."""
    process = bench.start(*bench.command(LONG, *trainer))
    bench.wait_for("trainer.progressed")
    return process


@pytest.fixture
def bystander() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that must not be signalled: it calls itself a supervisor."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", "lastgood", "run"])
    yield process
    process.kill()
    process.wait()


def test_stop_lets_the_trainer_save_and_waits_for_the_end(bench: Bench) -> None:
    """Exit status 0 when the supervisor has ended with 143 and its trainer saved; the wish is remembered."""
    process = running(bench, "--habit=final:0.3")
    done = bench.lastgood("stop", "checkpoints")

    assert (0, 143) == (done.returncode, process.wait(5)), done.stderr
    assert "saved" == (bench.directory / "final.txt").read_text()
    assert "stop" == bench.state("wanted.json")["wanted"]
    assert f"process {process.pid} has ended: phase stopped, exit status 143, newest good" in done.stdout
    assert [f"asked process {process.pid} to stop; its trainer saves and ends"] == done.stderr.splitlines()


def test_stop_takes_the_config_of_the_run(bench: Bench) -> None:
    """Whoever started it with a config need not know its directory."""
    process = running(bench)
    config = {"trainer": {"command": ["true"], "resume": "never"}, "checkpoints": {"dir": str(bench.directory)}}
    (bench.folder / "run.yaml").write_text(json.dumps(config))

    assert (0, 143) == (bench.lastgood("stop", "run.yaml").returncode, process.wait(5))


def test_where_nobody_supervises_there_is_nothing_to_stop(bench: Bench) -> None:
    """A folder that never had a supervisor, and one whose supervisor is gone: exit status 3; no folder at all, or no time: 2."""
    (bench.folder / "empty").mkdir()
    assert 0 == bench.run("--steps=5")

    for folder in ("empty", "checkpoints"):
        done = bench.lastgood("stop", folder)
        assert (3, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines())), folder
    for words in (
        ("nowhere",),
        ("empty", "--timeout", "nan"),
        ("empty", "--timeout", "1e99"),
        ("empty", "--timeout", "-1"),
    ):
        assert 2 == bench.lastgood("stop", *words).returncode, words
    assert not (bench.folder / "empty" / ".lastgood").exists()


def test_a_supervisor_that_takes_longer_is_told_and_goes_on_stopping(bench: Bench) -> None:
    """Exit status 1 when the time is over; nothing is killed, and the save is not cut short."""
    process = running(bench, "--habit=final:2")
    done = bench.lastgood("stop", "checkpoints", "--timeout", "0.2")

    assert (1, None) == (done.returncode, process.poll())
    assert "has not ended within 0.2 s" in done.stderr
    assert 0 == bench.lastgood("stop", "checkpoints").returncode
    assert "saved" == (bench.directory / "final.txt").read_text()


def test_a_number_in_a_file_is_no_reason_to_signal_anybody(bench: Bench, bystander: "subprocess.Popen[bytes]") -> None:
    """The lock is held by one who is no supervisor, and the lock file and the status name a bystander: it lives on."""
    state = bench.directory / ".lastgood"
    state.mkdir(parents=True)
    (state / "status.json").write_text(json.dumps({"supervisor_pid": bystander.pid, "phase": "running"}))
    with (state / "supervisor.lock").open("w") as lock:
        lock.write(f"{bystander.pid}\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = bench.lastgood("stop", "checkpoints")

    assert (1, None) == (done.returncode, bystander.poll())
    assert f"supervised by process {bystander.pid}, which cannot be signalled from here" in done.stderr


def test_having_the_lock_file_open_does_not_make_a_supervisor(bench: Bench) -> None:
    """Of two processes with the file open, the one that has it locked is meant, whatever number is in the file."""
    process = running(bench)
    path = bench.directory / ".lastgood" / "supervisor.lock"
    looker = subprocess.Popen(
        [sys.executable, "-c", "import sys, time; file = open(sys.argv[1]); print(1, flush=True); time.sleep(300)", path,
         "lastgood", "run"], stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert looker.stdout is not None
        looker.stdout.readline()
        path.write_text(f"{looker.pid}\n")

        assert identity_of(process.pid) == supervisors.supervisor_of(str(bench.directory), looker.pid)
        assert (0, 143, None) == (bench.lastgood("stop", "checkpoints").returncode, process.wait(5), looker.poll())
    finally:
        looker.kill()
        looker.communicate()


def test_a_supervisor_without_its_number_in_the_lock_is_found(bench: Bench) -> None:
    """A full disk kept the number out of the file; the lock itself tells."""
    process = running(bench)
    os.truncate(bench.directory / ".lastgood" / "supervisor.lock", 0)

    assert (0, 143) == (bench.lastgood("stop", "checkpoints").returncode, process.wait(5))


def test_whoever_took_over_at_once_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has ended and another has the directory: exit status 1, since the run goes on."""
    process = running(bench)
    holders = iter([process.pid, 4242])
    monkeypatch.setattr("supervisor.adapters.statefile.holder", lambda directory: next(holders))
    status, text = stop_supervisor(str(bench.directory), 20)

    assert (1, 143) == (status, process.wait(5))
    assert f"process {process.pid} has ended, and process 4242 has" in text


def test_control_c_ends_the_wait_alone(bench: Bench) -> None:
    """Whoever does not want to wait any longer ends the command with 130, and the stop goes on."""
    process = running(bench, "--habit=final:2")
    waiting = bench.start("stop", "checkpoints")
    bench.wait_for("trainer.asked_to_stop")
    time.sleep(0.2)  # it has signalled, and begins to wait
    waiting.send_signal(signal.SIGINT)

    assert (130, None) == (waiting.wait(5), process.poll())
    assert 143 == process.wait(20)


def test_a_lock_that_may_not_be_read_is_not_taken_for_none(bench: Bench) -> None:
    """Somebody else's directory: exit status 1 with the cure, not `no supervisor runs there`."""
    process = running(bench)
    (bench.directory / ".lastgood" / "supervisor.lock").chmod(0)
    done = bench.lastgood("stop", "checkpoints", preexec_fn=bound_by_permissions)

    assert (1, None) == (done.returncode, process.poll()), done.stderr
    assert "its lock cannot be read; stop it as the user who started it" in done.stderr

"""`lastgood ps`: the supervisors of this machine, by what the kernel says of processes."""

import json
import subprocess
import sys
from typing import Any

import pytest

from supervisor import supervisors
from tests.bench import Bench, until

SERVICE = "0::/system.slice/system-lastgood.slice/lastgood@gpt.service\n"


def listed(bench: Bench) -> list[dict[str, Any]]:
    """Those of this test; others may run beside it."""
    rows = json.loads(bench.lastgood("ps", "--json").stdout)
    return [row for row in rows if (row["directory"] or "").startswith(str(bench.folder))]


def test_every_run_has_a_line(bench: Bench) -> None:
    """Two supervisors, two lines with name, phase, step, pid and directory; those that ended are not there."""
    assert 0 == bench.run("--steps=5")
    first = bench.directory = bench.folder / "one"
    one = bench.start(*bench.command("--steps=100000"))
    bench.wait_for("trainer.progressed")
    bench.directory = bench.folder / "two"
    two = bench.start(*bench.command("--steps=100000"))
    bench.wait_for("trainer.progressed")
    until(lambda: ["running"] * 2 == [row["phase"] for row in listed(bench)])
    rows = listed(bench)
    lines = bench.lastgood("ps").stdout.splitlines()

    assert {("one", one.pid, str(first)), ("two", two.pid, str(bench.directory))} == {
        (row["name"], row["pid"], row["directory"]) for row in rows
    }
    assert {"running"} == {row["phase"] for row in rows}
    assert all(row["step"] > 0 and row["trainer_pid"] != row["pid"] for row in rows)
    assert ["NAME", "PHASE", "STEP", "PID", "USER", "UNIT", "DIRECTORY"] == lines[0].split()
    assert 2 == sum(line.split()[0] in ("one", "two") and str(bench.folder) in line for line in lines)


def test_who_only_looks_like_a_supervisor_is_not_listed(bench: Bench) -> None:
    """A process of that command line without a directory's lock, and a status that names it, count for nothing."""
    assert 0 == bench.run("--steps=5")
    looker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", "lastgood", "run"])
    try:
        status = bench.directory / ".lastgood" / "status.json"
        status.write_text(json.dumps({**json.loads(status.read_text()), "supervisor_pid": looker.pid}))
        assert supervisors.is_command([sys.executable, "-c", "import time; time.sleep(300)", "lastgood", "run"])
        assert looker.pid not in [one.identity.pid for one in supervisors.running()]
        assert [] == listed(bench)
    finally:
        looker.kill()
        looker.wait()


def test_a_status_of_an_earlier_supervisor_is_not_shown_as_that_of_this_one(bench: Bench) -> None:
    """Until a supervisor has written its own, its line has its pid and directory alone."""
    process = bench.start(*bench.command("--steps=100000"))
    bench.wait_for("trainer.progressed")
    process.send_signal(19)  # SIGSTOP: it writes nothing now
    status = bench.directory / ".lastgood" / "status.json"
    status.write_text(json.dumps({**json.loads(status.read_text()), "supervisor_pid": 1}))
    row = listed(bench)[0]

    assert (process.pid, str(bench.directory), None, None) == (row["pid"], row["directory"], row["phase"], row["step"])


@pytest.mark.parametrize(
    ("unit", "cgroups"),
    [
        ("lastgood@gpt.service", SERVICE),
        ("lastgood@gpt.service", SERVICE.replace(".service\n", ".service/supervisor\n")),
        ("lastgood@gpt.service", "4:memory:/elsewhere.service\n" + SERVICE.replace("0::", "1:name=systemd:")),
        ("gpt.service", "0::/user.slice/user-1000.slice/user@1000.service/app.slice/gpt.service\n"),
        (None, "0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-1.scope\n"),
        (None, "0::/user.slice/user-1000.slice/session-3.scope\n"),
        (None, "0::/system.slice/docker-abc.scope\n"),
        (None, "4:memory:/a.service\n0::/\n"),
        (None, ""),
    ],
)
def test_the_unit_is_the_innermost_service(unit: str | None, cgroups: str) -> None:
    """Of a process in a session, a desktop's scope or a container there is none, whatever service that is in."""
    assert unit == supervisors.unit_in(cgroups)


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        (True, ["/x/bin/python3", "/x/bin/lastgood", "run", "a.yaml"]),
        (True, ["python", "-X", "dev", "-m", "supervisor", "run", "--checkpoints", "x"]),
        (True, ["lastgood", "run"]),
        (False, ["python", "-m", "supervisor", "watch", "run"]),
        (False, ["python", "/x/bin/lastgood", "status", "run"]),
        (False, ["python", "supervisor", "run"]),
        (False, ["vim", "run"]),
        (False, [""]),
    ],
)
def test_a_supervisor_is_known_by_its_command(expected: bool, words: list[str]) -> None:
    """`run` of either way to call it, and no other command."""
    assert expected == supervisors.is_command(words)


@pytest.mark.parametrize(
    ("expected", "info"),
    [
        (True, "pos:\t0\nflags:\t02\nlock:\t1: FLOCK  ADVISORY  WRITE 28193 fe:00:2146437 0 EOF\n"),
        (True, "lock:\t1: POSIX  ADVISORY  WRITE 28193 00:2b:2146437 0 EOF\n"),
        (False, "lock:\t1: FLOCK  ADVISORY  READ 28193 fe:00:2146437 0 EOF\n"),
        (False, "pos:\t0\nflags:\t02\n"),
    ],
)
def test_only_a_lock_held_alone_counts(expected: bool, info: str) -> None:
    """Whoever looks whether a directory is taken holds the lock for a moment too, but shared."""
    assert expected == supervisors.is_locked(info)


def test_another_users_supervisor_is_listed_without_its_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it is there can be seen; where, is not ours to know."""

    def refuse(pid: int) -> Any:
        raise PermissionError

    looker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", "lastgood", "run"])
    try:
        until(lambda: looker.pid in supervisors._candidates())
        monkeypatch.setattr(supervisors, "_locks", refuse)
        found = {one.identity.pid: one for one in supervisors.running()}
        assert (None, True) == (found[looker.pid].directory, found[looker.pid].user != "")
    finally:
        looker.kill()
        looker.wait()

"""Notifications with real processes: whatever a target does, the supervisor goes on, and nothing is left behind."""

import importlib.util
import json
import os
import queue
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread, active_count
from typing import Any

import pytest

from supervisor.adapters import notifier, tree
from supervisor.adapters.notifier import Notifier, check
from supervisor.errors import UsageError
from supervisor.notify import Target
from tests.adapters.waiting import ROOT, until

MARK = "NOTIFIER_TEST"


class Desk:
    """A notifier and the loop's side of it: acts that were handed over, and what was said."""

    def __init__(self, *targets: Target) -> None:
        self.said: list[dict[str, Any]] = []
        self.acts: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.notifier = Notifier(targets, self.acts.put, self._say)

    def _say(self, event: str, fields: dict[str, Any]) -> None:
        assert "notification.failed" == event
        self.said.append(fields)

    def heard(self) -> list[dict[str, Any]]:
        """What was said so far."""
        while not self.acts.empty():
            self.acts.get()()
        return self.said


def record(seq: int = 1, event: str = "run.failed", **fields: Any) -> dict[str, Any]:
    """A record of an error."""
    return {"event": event, "level": "error", "run": "night", "seq": seq, **fields}


def shell(script: str, **more: Any) -> Target:
    """A target that runs a script of the shell."""
    return Target.model_validate({"command": ["sh", "-c", script], **more})


def marked(mark: str) -> list[int]:
    """Processes that carry the mark and still run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes()
            state = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            continue  # it ended
        if f"{MARK}={mark}".encode() in environ and state != b"Z" and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mark that all processes started here carry; fails if one of them outlives the test."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    yield value
    left = marked(value)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert [] == left


@pytest.fixture
def desk(mark: str) -> Iterator[Callable[..., Desk]]:
    """Makes desks, and closes them."""
    made: list[Desk] = []

    def make(*targets: Target) -> Desk:
        made.append(Desk(*targets))
        return made[-1]

    yield make
    for one in made:
        one.notifier.close()


def lines(path: Path) -> list[dict[str, Any]]:
    """The records that a command appended to a file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_command_gets_each_record_it_wants_in_order(desk: Callable[..., Desk], tmp_path: Path) -> None:
    """As JSON on its input, one record a call; closing sends what still waits."""
    at = desk(shell(f"cat >> {tmp_path}/got"))
    sent = [record(i, reason="ä\n" * 50_000) for i in range(5)]
    for one in sent:
        at.notifier.take(one)
    at.notifier.take({**record(9), "event": "trainer.spawned", "level": "info"})
    at.notifier.close()

    assert (sent, []) == (lines(tmp_path / "got"), at.said)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 3", "exit status 3"),
        ("kill -9 $$", "it was ended by signal 9"),
        ("exec /no/such/program", "exit status 127, there is no such command"),
        ("exec sleep 100", "it took longer than 0.3 s and was ended"),
        ("trap '' TERM INT HUP; while :; do sleep 100; done", "it took longer than 0.3 s and was ended"),
    ],
)
def test_a_command_that_fails_is_told(desk: Callable[..., Desk], script: str, reason: str) -> None:
    """With the record that did not get through and why; the next record is tried anew."""
    at = desk(shell(script, timeout_seconds=0.3))
    at.notifier.take(record(1))
    at.notifier.take(record(2, "trainer.stuck"))
    until(lambda: len(at.heard()) == 2)

    expected = {"target": "notify.0: sh", "undelivered": 1, "reason": reason}
    assert [{**expected, "record": "run.failed"}, {**expected, "record": "trainer.stuck"}] == at.said


def test_a_command_that_is_gone_by_then_is_told(desk: Callable[..., Desk]) -> None:
    """It was there at the start, and a missing one ends nothing."""
    at = desk(Target.model_validate("/no/such/program --token=x"))
    at.notifier.take(record())
    until(at.heard)

    assert ["exit status 127, there is no such command"] == [one["reason"] for one in at.said]
    assert ["notify.0: /no/such/program"] == [one["target"] for one in at.said]


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_command_may_print_as_much_as_it_likes_and_read_nothing(
    desk: Callable[..., Desk], capfd: pytest.CaptureFixture[str], tmp_path: Path, stream: str
) -> None:
    """Its output goes nowhere and fills no pipe; a record larger than a pipe that it does not read blocks nobody."""
    at = desk(shell(f"head -c 30000000 /dev/zero >&{stream}; touch {tmp_path}/done"))
    at.notifier.take(record(reason="x" * 1_000_000))
    at.notifier.close()

    assert (True, []) == ((tmp_path / "done").exists(), at.said)
    assert ("", "") == capfd.readouterr()


def test_a_thousand_records_at_once_cost_the_supervisor_nothing(desk: Callable[..., Desk], tmp_path: Path) -> None:
    """They are taken at once; of what a slow target cannot take the oldest are dropped, and each is accounted for."""
    at = desk(shell(f"cat >> {tmp_path}/got; test -e {tmp_path}/go || sleep 0.5"))
    began = time.monotonic()
    for i in range(1000):
        at.notifier.take(record(i))
    took = time.monotonic() - began
    (tmp_path / "go").touch()
    until(lambda: sum(one["undelivered"] for one in at.heard()) + len(lines(tmp_path / "got")) == 1000, 60)
    got = [one["seq"] for one in lines(tmp_path / "got")]

    assert took < 0.5
    assert notifier.QUEUE_MAX <= len(got) <= notifier.QUEUE_MAX + 5
    assert list(range(1000 - notifier.QUEUE_MAX, 1000)) == got[-notifier.QUEUE_MAX :]
    assert {"dropped, the oldest first: records came faster than it takes them"} == {one["reason"] for one in at.said}


def test_a_target_that_does_not_answer_delays_no_other(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each has its own process."""
    monkeypatch.setattr(notifier, "CLOSE_SECONDS", 0.2)
    at = desk(shell("exec sleep 100"), shell(f"cat >> {tmp_path}/got"))
    at.notifier.take(record())
    until(lambda: lines(tmp_path / "got"))

    assert ([record()], []) == (lines(tmp_path / "got"), at.heard())


def test_closing_waits_a_little_and_leaves_nothing(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, mark: str, tmp_path: Path
) -> None:
    """What hangs is killed with all it started when the time is up, and what did not get through is told."""
    monkeypatch.setattr(notifier, "CLOSE_SECONDS", 0.5)
    at = desk(shell(f"setsid sleep 100 & touch {tmp_path}/up; trap '' TERM; sleep 100; sleep 100"))
    for i, event in enumerate(["run.failed", "trainer.stuck", "restart.refused"]):
        at.notifier.take(record(i, event))
    until(lambda: (tmp_path / "up").exists())
    began = time.monotonic()
    at.notifier.close()
    took = time.monotonic() - began

    assert 0.5 <= took < 3
    assert [] == marked(mark)
    why = {"target": "notify.0: sh", "reason": "the supervisor ended first"}
    assert [
        {**why, "record": "run.failed", "undelivered": 1},
        {**why, "record": "restart.refused", "undelivered": 2},
    ] == at.said


def test_closing_ends_a_process_that_stands_still(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, mark: str, tmp_path: Path
) -> None:
    """Stopped, it takes no SIGTERM; it is killed, and its command with it."""
    monkeypatch.setattr(notifier, "CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(notifier, "KILL_SECONDS", 0.3)
    at = desk(shell(f"touch {tmp_path}/up; exec sleep 100"))
    at.notifier.take(record())
    until(lambda: (tmp_path / "up").exists())
    [agent] = agents(mark)
    os.kill(agent, signal.SIGSTOP)
    at.notifier.close()

    until(lambda: not marked(mark))
    assert ["the supervisor ended first"] == [one["reason"] for one in at.said]


def agents(mark: str) -> list[int]:
    """The processes that run commands."""
    return [pid for pid in marked(mark) if b"notify_agent" in command_line(pid)]


def command_line(pid: int) -> bytes:
    """The words of a process; none when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_what_a_command_leaves_running_is_ended_with_it(desk: Callable[..., Desk], mark: str, tmp_path: Path) -> None:
    """A background process, even in a session of its own, does not pile up with every record."""
    at = desk(shell(f"setsid sleep 100 & (setsid sleep 100 &) ; sleep 100 & echo $! >> {tmp_path}/got"))
    for i in range(3):
        at.notifier.take(record(i))
    until(lambda: (tmp_path / "got").exists() and 3 == len((tmp_path / "got").read_text().split()))

    until(lambda: agents(mark) == marked(mark))
    assert [] == at.heard()


def test_a_process_that_was_killed_is_started_again(desk: Callable[..., Desk], mark: str, tmp_path: Path) -> None:
    """The record under way is told as undelivered, the next one gets through."""
    at = desk(shell(f"cat >> {tmp_path}/got; test -e {tmp_path}/go || exec sleep 100"))
    at.notifier.take(record(1))
    until(lambda: any(words.startswith(b"sleep") for words in map(command_line, marked(mark))))
    os.kill(agents(mark)[0], signal.SIGKILL)
    until(at.heard)
    (tmp_path / "go").touch()
    at.notifier.take(record(2))
    until(lambda: 2 == len(lines(tmp_path / "got")))

    assert ["the process that sends it was killed"] == [one["reason"] for one in at.heard()]


def test_commands_do_not_get_what_is_meant_for_the_supervisor(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A command that tells systemd that it is ready would speak for the supervisor; the rest of the environment is there."""
    for name in ("NOTIFY_SOCKET", "JOURNAL_STREAM", "LASTGOOD_CHECKPOINT_DIR", "MINE"):
        monkeypatch.setenv(name, "here")
    at = desk(shell(f"env | grep =here > {tmp_path}/env"))
    at.notifier.take(record())
    at.notifier.close()

    assert ["MINE=here"] == (tmp_path / "env").read_text().split()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_supervisor_that_is_killed(mark: str, tmp_path: Path, how: int) -> None:
    """Its processes see that it is gone, and end with what they run."""
    code = (
        "import time; from supervisor.adapters.notifier import Notifier; from supervisor.notify import Target\n"
        f"n = Notifier([Target.model_validate('sh -c \"touch {tmp_path}/up; setsid sleep 100 & sleep 100\"')], print, print)\n"
        "n.take({'event': 'run.failed', 'level': 'error'}); time.sleep(100)"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    until(lambda: (tmp_path / "up").exists())
    supervisor.send_signal(how)
    supervisor.wait()

    until(lambda: not marked(mark))
    assert -how == supervisor.returncode


def test_a_sweep_of_the_trainer_spares_what_was_there_before_it(mark: str, tmp_path: Path) -> None:
    """A trainer's death does not cut a notification short: what existed before the trainer does not belong to it."""
    code = (
        "import time, sys; from supervisor.adapters import tree; from supervisor.adapters.notifier import Notifier\n"
        "from supervisor.notify import Target; from supervisor.kin import _children\n"
        "from supervisor.adapters.process import become_subreaper; become_subreaper()\n"
        f"n = Notifier([Target.model_validate('sh -c \"touch {tmp_path}/up; sleep 0.5; cat > {tmp_path}/got\"')], print, print)\n"
        "before = _children(); n.take({'event': 'run.failed', 'level': 'error'})\n"
        f"import os\nwhile not os.path.exists('{tmp_path}/up'): time.sleep(0.01)\n"
        "assert tree.sweep(None, None, exclude=before, limit_seconds=5) == []; n.close()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)
    assert {"event": "run.failed", "level": "error"} == json.loads((tmp_path / "got").read_text())


# Apprise.


def test_without_apprise_a_url_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line with the cure and without the secret."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check([Target.model_validate("true")], "run.yaml")
    with pytest.raises(UsageError) as caught:
        check([Target.model_validate("true"), Target.model_validate("slack://tOk3n")], "run.yaml")

    told = "run.yaml: notify.1: slack://… is sent through Apprise, which is not installed; `pip install 'lastgood[notify]'`"
    assert told == str(caught.value)


def test_a_command_that_is_not_there_is_refused_at_the_start() -> None:
    """As the trainer's is."""
    with pytest.raises(
        UsageError, match=r"^run.yaml: notify.0: no-such-program is not a program that can be run; check"
    ):
        check([Target.model_validate("no-such-program --token=x")], "run.yaml")


def test_a_url_that_apprise_does_not_know_is_refused_at_the_start() -> None:
    """A misspelt scheme would be noticed at the first accident, and that is too late."""
    check([Target.model_validate("json://user:tOk3n@127.0.0.1:9/x")], "run.yaml")
    with pytest.raises(UsageError) as caught:
        check([Target.model_validate("jsno://user:tOk3n@127.0.0.1:9/x")], "run.yaml")

    assert "run.yaml: notify.0: jsno://… is no URL that Apprise understands; see its list of services" == str(
        caught.value
    )


class Service(BaseHTTPRequestHandler):
    """A service that takes what Apprise posts to it, or refuses it."""

    taken: list[dict[str, Any]]
    status = 200

    def do_POST(self) -> None:
        """Take a message."""
        self.taken.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""


@pytest.fixture
def service() -> Iterator[tuple[type[Service], str]]:
    """A service and the Apprise URL at which it listens."""

    class One(Service):
        taken: list[dict[str, Any]] = []  # noqa: RUF012 - the class lives for one test

    server = HTTPServer(("127.0.0.1", 0), One)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield One, f"json://user:tOk3n@127.0.0.1:{server.server_port}/hook"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_record_reaches_a_service_through_apprise(
    desk: Callable[..., Desk], service: tuple[type[Service], str]
) -> None:
    """Title, text and kind, from a process of its own: the supervisor never imports apprise."""
    one, url = service
    at = desk(Target.model_validate(url))
    at.notifier.take(record(reason="no healthy snapshot"))
    until(lambda: one.taken)

    assert ("night: run.failed", "failure") == (one.taken[0]["title"], one.taken[0]["type"])
    assert "reason: no healthy snapshot" in one.taken[0]["message"].splitlines()
    assert "apprise" not in sys.modules
    assert [] == at.heard()


def test_a_service_that_refuses_is_told_without_the_secret(
    desk: Callable[..., Desk], service: tuple[type[Service], str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Where it went is a scheme, and what Apprise prints about it goes nowhere."""
    one, url = service
    one.status = 403
    at = desk(Target.model_validate(url))
    at.notifier.take(record())
    until(at.heard)

    expected = {"target": "notify.0: json://…", "record": "run.failed", "undelivered": 1}
    assert [{**expected, "reason": "the service did not take the message"}] == at.said
    assert ("", "") == capfd.readouterr()


def test_no_target_costs_nothing() -> None:
    """No thread and no process."""
    before = (active_count(), tree.members(None, None))
    at = Desk()
    at.notifier.take(record())

    assert before == (active_count(), tree.members(None, None))
    at.notifier.close()
    assert [] == at.said


def test_targets_can_be_changed(desk: Callable[..., Desk], tmp_path: Path, mark: str) -> None:
    """What waits for one that goes still gets there, one that stays keeps its process, and a new one gets what comes then."""
    stays, goes, comes = (shell(f"sleep 0.2; cat >> {tmp_path}/{name}") for name in ("stays", "goes", "comes"))
    at = desk(stays, goes)
    at.notifier.take(record(1))
    before = set(at.notifier.pids())
    at.notifier.change([stays, comes])
    at.notifier.take(record(2))
    until(lambda: set(marked(mark)) <= set(at.notifier.pids()) and 1 == len(before & set(at.notifier.pids())))
    at.notifier.close()

    assert [[1, 2], [1], [2]] == [[one["seq"] for one in lines(tmp_path / name)] for name in ("stays", "goes", "comes")]
    assert [] == at.heard()

"""Records that are sent to somebody, from real supervisors."""

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.bench import Bench, until

SECRET = "tOk3n"


def notify(*targets: Any) -> str:
    """The setting for these targets."""
    return f"notify={json.dumps(targets)}"


def lines(path: Path) -> list[dict[str, Any]]:
    """What a command appended to a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def carrying(mark: str) -> list[str]:
    """Command lines of living processes with this in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ, words = (folder / "environ").read_bytes(), (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it ended
        if mark.encode() in environ and words:
            found.append(words.decode())
    return found


def test_a_fallback_reaches_a_command_as_json(bench: Bench) -> None:
    """The record is the one in events.jsonl, whole, and nothing else is sent that was not asked for."""
    assert 0 == bench.run("--steps=20", sets=("run.final_step=20",))
    (bench.directory / "step_20.pt").write_bytes(b"PK\3\4")
    command = {"command": ["sh", "-c", f"cat >> {bench.folder}/got"], "events": ["fallback.*"]}
    assert 0 == bench.run("--steps=30", sets=("run.final_step=30", notify(command)))

    assert 1 == len(bench.records("fallback.chosen"))
    assert bench.records("fallback.chosen") == lines(bench.folder / "got")
    assert [] == bench.records("notification.failed")


def test_every_record_up_to_the_last_gets_through_whatever_befalls_the_trainer(bench: Bench) -> None:
    """A death of the trainer, whose processes are all killed then, cuts no notification short; the end is told too."""
    script = f'read -r line; sleep 0.3; echo "$line" >> {bench.folder}/got'
    command = {"command": ["sh", "-c", script], "events": ["trainer.spawned", "trainer.exited", "supervisor.*"]}
    assert 0 == bench.run("--steps=20", "--habit=die:12", "--habit=detach", sets=("run.final_step=20", notify(command)))
    sent = [(one["event"], one["seq"]) for one in lines(bench.folder / "got")]

    assert [
        "supervisor.started", "supervisor.ready", "trainer.spawned", "trainer.exited", "trainer.spawned", "trainer.exited",
        "supervisor.stopped",
    ] == [event for event, _ in sent]  # fmt: skip
    assert sorted(sent, key=lambda one: one[1]) == sent
    assert [] == bench.records("notification.failed")


def test_a_secret_in_a_target_appears_nowhere(bench: Bench) -> None:
    """Not in the records, the state or the output, though the service is not there and every record fails."""
    words = bench.command("--steps=10", sets=("run.final_step=10",))
    config = {
        "trainer": {"command": words[words.index("--") + 1 :], "resume": "--from={snapshot}"},
        "run": {"final_step": 10},
        "checkpoints": {"dir": str(bench.directory), "settle_seconds": 0.2},
        "notify": [
            {"url": f"json://user:{SECRET}@127.0.0.1:9/{SECRET}", "events": ["supervisor.ready"]},
            {"command": ["sh", "-c", "exit 3", SECRET], "level": "info"},
        ],
    }
    (bench.folder / "run.yaml").write_text(json.dumps(config))
    done = bench.lastgood("run", "run.yaml")
    told = bench.records("notification.failed")
    left = b"".join(path.read_bytes() for path in bench.directory.rglob("*") if path.is_file())

    assert 0 == done.returncode
    assert {"notify.0: json://…", "notify.1: sh"} == {one["target"] for one in told}
    assert {"exit status 3", "the service did not take the message"} == {one["reason"] for one in told}
    assert [] == [where for where, text in (("out", done.stdout), ("err", done.stderr)) if SECRET in text]
    assert SECRET.encode() not in left


def test_a_failed_notification_is_no_reason_for_another(bench: Bench) -> None:
    """A target that wants everything and takes nothing fails once for each record, and the run goes on."""
    everything = {"command": ["false"], "events": ["*"]}
    assert 0 == bench.run("--steps=10", sets=("run.final_step=10", notify(everything)))
    text = (bench.directory / ".lastgood" / "events.jsonl").read_text()
    others = [one for one in map(json.loads, text.splitlines()) if one["event"] != "notification.failed"]

    assert len(others) == sum(one["undelivered"] for one in bench.records("notification.failed"))


def test_a_supervisor_ends_promptly_while_a_notification_hangs(bench: Bench) -> None:
    """It does not wait for the notification's own time limit, and leaves nothing running."""
    mark = f"END_TO_END={uuid.uuid4().hex}"
    hanging = {"command": "sleep 300", "level": "info", "timeout_seconds": 600}
    command = bench.command("--steps=1000", "--every=5", sets=(notify(hanging, hanging),))
    process = bench.start(*command, env={**os.environ, "END_TO_END": mark.partition("=")[2]})
    bench.wait_for("trainer.progressed")
    process.terminate()
    began = time.monotonic()

    assert 143 == process.wait(30)
    assert time.monotonic() - began < 10
    until(lambda: not carrying(mark))
    assert {"the supervisor ended first"} == {one["reason"] for one in bench.records("notification.failed")}


def test_a_hanging_notification_holds_up_no_restart(bench: Bench) -> None:
    """The trainer dies and is started again while the record of its death is still being sent."""
    process = bench.start(*bench.command("--steps=1000", "--every=5", "--habit=die:12", sets=(notify("sleep 300"),)))
    died = bench.wait_for("trainer.exited")
    again = bench.wait_for("trainer.spawned", 2)

    assert [] == bench.records("notification.failed")
    assert died["seq"] < again["seq"]
    process.terminate()
    assert 143 == process.wait(30)


@pytest.mark.parametrize("command", ["run", "check"])
def test_without_apprise_a_url_is_refused_with_the_cure(bench: Bench, command: str) -> None:
    """Exit status 2 and one line, before anything is started or made."""
    (bench.folder / "sitecustomize.py").write_text("import sys\nsys.modules['apprise'] = None\n")
    config = {
        "trainer": {"command": ["true"], "resume": "never"},
        "checkpoints": {"dir": str(bench.directory)},
        "notify": [f"slack://{SECRET}"],
    }
    (bench.folder / "run.yaml").write_text(json.dumps(config))
    done = bench.lastgood(command, "run.yaml", env={**os.environ, "PYTHONPATH": str(bench.folder)})

    told = "notify.0: slack://… is sent through Apprise, which is not installed; `pip install 'lastgood[notify]'`"
    assert (2, "", f"lastgood: run.yaml: {told}\n") == (done.returncode, done.stdout, done.stderr)
    assert not bench.directory.exists()

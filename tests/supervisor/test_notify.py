"""Which records go to which target, what is sent of them, and what of a target may be shown."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor import configuration
from supervisor.errors import UsageError
from supervisor.notify import Target, failure, job, message
from supervisor.records import CATALOGUE
from supervisor.settings import Settings

SECRET = "tOk3n"
GOOD: dict[str, Any] = {"trainer": {"command": ["true"], "resume": "never"}, "checkpoints": {"dir": "x"}}
FALLBACK: dict[str, Any] = {
    "event": "fallback.chosen", "level": "warning", "timestamp": "2026-01-01T00:00:00Z", "run": "night", "run_id": "ab",
    "incarnation": 3, "seq": 7, "by": "supervisor", "newest_step": 20, "chosen_step": 15, "chosen": "step_15.pt", "depth": 1,
    "steps_lost": 5, "rejected": [{"name": "step_20.pt", "verdict": "truncated", "reason": "ends early — at 4"}],
}  # fmt: skip


def targets(*written: Any) -> list[Target]:
    """The targets that a list under `notify:` stands for."""
    return Settings.model_validate(GOOD | {"notify": list(written)}).notify


@pytest.mark.parametrize(
    ("written", "url", "command"),
    [
        ("slack://a/b/c", "slack://a/b/c", []),
        ("mailto://a:b@c?subject=two words", "mailto://a:b@c?subject=two words", []),
        ("curl -d @- https://ntfy.sh/x", None, ["curl", "-d", "@-", "https://ntfy.sh/x"]),
        ("sh -c 'cat >> \"a b\"'", None, ["sh", "-c", 'cat >> "a b"']),
        ({"url": "json://h"}, "json://h", []),
        ({"command": "mail -s 'a b' me"}, None, ["mail", "-s", "a b", "me"]),
        ({"command": ["sleep", 5]}, None, ["sleep", "5"]),
    ],
)
def test_a_target_is_a_url_or_a_command(written: Any, url: str | None, command: list[str]) -> None:
    """A text that begins with a scheme is a URL, any other is a command split as a shell would."""
    [found] = targets(written)

    assert (url, command, 30.0) == (found.url, found.command, found.timeout_seconds)


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ({}, {"fallback.chosen", "run.failed", "run.completed", "trainer.stuck"}),
        ({"level": "info"}, {"fallback.chosen", "run.failed", "run.completed", "trainer.stuck", "run.stopped"}),
        ({"level": "error"}, {"run.failed", "trainer.stuck"}),
        ({"events": ["run.*"]}, {"run.failed", "run.completed", "run.stopped"}),
        ({"events": ["run.stopped", "fallback.chosen"]}, {"run.stopped", "fallback.chosen"}),
        ({"level": "error", "events": ["run.completed"]}, {"run.failed", "trainer.stuck", "run.completed"}),
        ({"events": ["*"]}, {"fallback.chosen", "run.failed", "run.completed", "trainer.stuck", "run.stopped"}),
    ],
)
def test_a_target_gets_what_its_filter_lets_through(written: dict[str, Any], sent: set[str]) -> None:
    """At least the level, or one of the names; without either what is wrong and what is done; never a failed notification."""
    [target] = targets({"command": "true", **written})
    asked = ["fallback.chosen", "run.failed", "run.completed", "trainer.stuck", "run.stopped", "notification.failed"]

    assert sent == {event for event in asked if target.wants(event, CATALOGUE[event].level)}


def test_a_record_counts_by_the_level_it_has() -> None:
    """A death that was wished for is written as info, whatever the catalogue says of deaths."""
    [target] = targets("true")

    assert (True, False) == (target.wants("trainer.exited", "warning"), target.wants("trainer.exited", "info"))


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (5, "notify.0: write a URL, a command line, or a mapping with url or command"),
        ("", "notify.0: give it one of url and command"),
        ({"url": f"json://{SECRET}", "command": "true"}, "notify.0: give it one of url and command"),
        ({"url": SECRET}, "notify.0: the url does not begin with a scheme such as slack://"),
        ({"urll": f"json://{SECRET}"}, "notify.0.urll: there is no such key; did you mean 'url'?"),
        ({"url": [f"json://{SECRET}"]}, "notify.0.url: input should be a valid string"),
        (f"true 'a {SECRET}", "notify.0.command: No closing quotation"),
        ({"command": "true", "events": ["run.complete"]}, "has the name 'run.complete'; did you mean 'run.completed'?"),
        ({"command": "true", "events": ["notification.*"]}, "no record that is sent has the name 'notification.*'"),
        ({"command": "true", "level": "loud"}, "notify.0.level: input should be 'info', 'warning' or 'error'"),
        ({"command": "true", "timeout_seconds": 0}, "notify.0.timeout_seconds: input should be greater than 0"),
        (
            {"command": "true", "timeout_seconds": 4000},
            "notify.0.timeout_seconds: input should be less than or equal to",
        ),
    ],
)
def test_a_target_that_cannot_work_is_refused(tmp_path: Path, written: Any, words: str) -> None:
    """In one line that names the place in the list, and quotes nothing that may be a secret."""
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(GOOD | {"notify": [written]}))
    with pytest.raises(UsageError) as caught:
        configuration.load(str(path), [])

    assert words in str(caught.value)
    assert SECRET not in str(caught.value)
    assert 1 == len(str(caught.value).splitlines())


def test_a_list_is_asked_for_without_quoting_what_stands_there_instead(tmp_path: Path) -> None:
    """A bare URL under `notify:` is refused, and its secret is not shown."""
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(GOOD | {"notify": f"json://{SECRET}"}))
    with pytest.raises(UsageError) as caught:
        configuration.load(str(path), [])

    assert f"{path}: notify: input should be a valid list; write it so" == str(caught.value)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (f"slack://{SECRET}/b", "notify.2: slack://…"),
        (f"json://user:{SECRET}@host", "notify.2: json://…"),
        (f"curl -u me:{SECRET} https://host", "notify.2: curl"),
        (f"KEY={SECRET} curl", "notify.2: KEY=…"),
    ],
)
def test_of_a_target_its_scheme_or_program_is_shown(written: str, shown: str) -> None:
    """Tokens stand anywhere behind a scheme and among the arguments; nor are they in a printed target."""
    [target] = targets(written)

    assert shown == target.shown(2)
    assert SECRET not in repr(target)


def test_a_command_gets_the_record_as_json() -> None:
    """One line on its input, the record as events.jsonl has it."""
    [target] = targets({"command": "a b", "timeout_seconds": 2})
    made = job(target, FALLBACK)

    assert (["a", "b"], 2.0) == (made["argv"], made["timeout_seconds"])
    assert (FALLBACK, "\n") == (json.loads(made["input"]), made["input"][-1])


def test_a_url_is_given_to_a_process_that_no_list_of_processes_shows_it_of() -> None:
    """It is on the input of the process that sends, never among its arguments."""
    [target] = targets(f"slack://{SECRET}")
    made = job(target, FALLBACK)

    assert sys.executable == made["argv"][0]
    assert SECRET not in " ".join(made["argv"])
    assert {"url": f"slack://{SECRET}", **message(FALLBACK)} == json.loads(made["input"])


def test_a_message_says_what_happened_in_words_and_fields() -> None:
    """The run and the record's name, what it means, and its own fields; empty ones and those of every record are left out."""
    told = message({**FALLBACK, "chosen": None})
    lines = told["body"].splitlines()

    assert ("night: fallback.chosen", "warning") == (told["title"], told["type"])
    assert CATALOGUE["fallback.chosen"].meaning == lines[0]
    assert ["by: supervisor", "newest_step: 20", "chosen_step: 15", "depth: 1", "steps_lost: 5", "rejected: "] == lines[
        1:7
    ]
    assert "ends early — at 4" in lines[7]


def test_a_message_is_no_longer_than_services_take() -> None:
    """A trainer's last lines may be long."""
    record = {**FALLBACK, "event": "run.failed", "level": "error", "reason": "x" * 9000}

    assert (4000, "failure") == (len(message(record)["body"]), message(record)["type"])


@pytest.mark.parametrize(
    ("outcome", "by_command", "by_url"),
    [
        ({"code": 0}, None, None),
        ({"code": 3}, "exit status 3", "apprise cannot be imported; `pip install 'lastgood[notify]'`"),
        ({"code": 5}, "exit status 5", "the service did not take the message"),
        ({"code": 1}, "exit status 1", "the sending process ended with exit status 1"),
        ({"code": 127}, "exit status 127, there is no such command", "the sending process ended with exit status 127"),
        ({"signal": 9}, "it was ended by signal 9", "it was ended by signal 9"),
        ({"late": True}, "it took longer than 30 s and was ended", "it took longer than 30 s and was ended"),
        ({"error": "no memory"}, "it could not be started: no memory", "it could not be started: no memory"),
    ],
)
def test_a_failure_has_a_reason(outcome: dict[str, Any], by_command: str | None, by_url: str | None) -> None:
    """What became of the command, in words; nothing of what it printed."""
    command, url = targets("x", "json://h")

    assert (by_command, by_url) == (failure(command, outcome), failure(url, outcome))

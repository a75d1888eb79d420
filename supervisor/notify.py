"""What goes where of the records: the targets under `notify:`, which records each wants, and what it is sent. Pure.

A target is an Apprise URL or a command. Both may hold secrets, so that nothing shows more of a target than its place in
the list and its scheme or program.
"""

import json
import re
import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from supervisor.errors import nearest
from supervisor.record_schema import COMMON
from supervisor.records import CATALOGUE
from supervisor.setting_values import Seconds, Word, Words

NEVER_SENT: Final = "notification.failed"  # a notification about it might fail too
BODY_CHARACTERS_MAX = 4000  # more than this no service shows
TIMEOUT_SECONDS_MAX = 3600.0
_RANKS: Final = {"info": 0, "warning": 1, "error": 2}
_APPRISE_TYPES: Final = {"info": "info", "warning": "warning", "error": "failure"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_UNFILTERED_EVENTS: Final = ("run.completed",)  # what a person who names no filter waits for besides trouble
SENDER: Final = (sys.executable, "-P", str(Path(__file__).parent / "adapters" / "apprise_sender.py"))
NOT_UNDERSTOOD: Final = 4  # exit status of the sender


class Target(BaseModel):
    """One place that records are sent to. With both `level` and `events`, either is enough."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    url: Word | None = Field(None, repr=False)
    command: Words = Field(default_factory=list, repr=False)
    level: Literal["info", "warning", "error"] | None = None
    events: list[str] = Field(default_factory=list)
    timeout_seconds: Seconds = Field(30.0, gt=0, le=TIMEOUT_SECONDS_MAX)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """A text is a URL when it begins like one, else a command line."""
        if isinstance(value, str):
            return {"url" if _SCHEME.match(value) else "command": value}
        if isinstance(value, dict | Target):
            return value
        raise ValueError("write a URL, a command line, or a mapping with url or command")

    @field_validator("events")
    @classmethod
    def _events_exist(cls, events: list[str]) -> list[str]:
        known = [name for name in CATALOGUE if name != NEVER_SENT]
        for pattern in events:
            if not any(fnmatchcase(name, pattern) for name in known):
                raise ValueError(f"no record that is sent has the name {pattern!r}{nearest(pattern, known)}")
        return events

    @model_validator(mode="after")
    def _is_one_thing(self) -> "Target":
        if (self.url is None) == (not self.command):
            raise ValueError("give it one of url and command")
        if self.url is not None and not _SCHEME.match(self.url):
            raise ValueError("the url does not begin with a scheme such as slack://; write a command under command")
        return self

    def wants(self, event: str, level: str) -> bool:
        """Whether a record goes there. Without a filter: warnings, errors, and the completion of the run."""
        if event == NEVER_SENT:
            return False
        unfiltered = self.level is None and not self.events
        least = "warning" if unfiltered else self.level
        patterns = _UNFILTERED_EVENTS if unfiltered else self.events
        by_level = least is not None and _RANKS[level] >= _RANKS[least]
        return by_level or any(fnmatchcase(event, pattern) for pattern in patterns)

    def shown(self, index: int) -> str:
        """What a record may say about the target at this place of the list: no part that could be a secret."""
        scheme = _SCHEME.match(self.url or "")
        if scheme:
            return f"notify.{index}: {scheme[1]}://…"
        program, assigns, _ = self.command[0].partition("=")  # KEY=secret program, as a shell would take it
        return f"notify.{index}: {program}{'=…' if assigns else ''}"


def job(target: Target, record: Mapping[str, Any]) -> dict[str, Any]:
    """What is run for a record: a command with the record on its input; a URL is on the input too, where no `ps` shows it."""
    if target.url is None:
        argv, text = list(target.command), json.dumps(record)
    else:
        argv, text = list(SENDER), json.dumps({"url": target.url, **message(record)})
    return {"argv": argv, "input": f"{text}\n", "timeout_seconds": target.timeout_seconds}


def message(record: Mapping[str, Any]) -> dict[str, str]:
    """A record as a person reads it: title, body, and Apprise's type."""
    event = record["event"]
    lines = [CATALOGUE[event].meaning]
    lines += [
        f"{name}: {_told(value)}" for name, value in record.items() if name not in COMMON and value not in (None, [])
    ]
    return {
        "title": f"{record['run']}: {event}",
        "body": "\n".join(lines)[:BODY_CHARACTERS_MAX],
        "type": _APPRISE_TYPES[record["level"]],
    }


def _told(value: Any) -> str:
    if isinstance(value, list):
        return "".join(f"\n  {_told(one)}" for one in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_SENDER_REASONS: Final = {
    3: "apprise cannot be imported; `pip install 'lastgood[notify]'`",
    NOT_UNDERSTOOD: "Apprise does not understand the URL; see its list of services for the form",
    5: "the service did not take the message",
}


def failure(target: Target, outcome: Mapping[str, Any]) -> str | None:
    """Why a record did not get through, or None when it did."""
    code, number = outcome.get("code"), outcome.get("signal")
    if outcome.get("late"):
        return f"it took longer than {target.timeout_seconds:g} s and was ended"
    if "error" in outcome:
        return f"it could not be started: {outcome['error']}"
    if number is not None:
        return f"it was ended by signal {number}"
    if code == 0:
        return None
    if target.url is not None:
        return _SENDER_REASONS.get(code or 0, f"the sending process ended with exit status {code}")
    return f"exit status {code}" + {126: ", it cannot be run", 127: ", there is no such command"}.get(code or 0, "")

"""The records as JSON Schema, made from the catalogue: for whoever checks or reads events.jsonl with a program. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from supervisor.records import CATALOGUE, Kind

Type = Mapping[str, Any]

_TEXT: Final[Type] = {"type": "string"}
_WHOLE: Final[Type] = {"type": "integer"}
_SECONDS: Final[Type] = {"type": "number", "minimum": 0}
_TRUTH: Final[Type] = {"type": "boolean"}
_TEXTS: Final[Type] = {"type": "array", "items": _TEXT}
_WHOLES: Final[Type] = {"type": "array", "items": _WHOLE}


def _or_null(kind: Type) -> Type:
    return {**kind, "type": [kind["type"], "null"]}


_REJECTED: Final[Type] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": _TEXT, "verdict": _TEXT, "reason": _TEXT},
        "required": ["name", "verdict", "reason"],
    },
}

TYPES: Final[Mapping[str, Type]] = {
    **dict.fromkeys(
        ("advice", "by", "cause", "chosen", "directory", "kind", "name", "path", "preset", "reason", "record"), _TEXT
    ),
    **dict.fromkeys(("how", "phase", "signature", "stage", "target", "verdict", "watching"), _TEXT),
    **dict.fromkeys(("proof", "resumed_from", "fault", "evidence", "skipping", "doubt"), _or_null(_TEXT)),
    **dict.fromkeys(
        ("pid", "status", "depth", "without_progress", "bytes", "times", "deaths", "undelivered", "seed"), _WHOLE
    ),
    **dict.fromkeys(
        ("step", "code", "signal", "said", "errno", "newest_step", "chosen_step", "steps_lost", "resumed_step"),
        _or_null(_WHOLE),
    ),
    **dict.fromkeys(("reported_step", "finite_step", "died_at", "reached"), _or_null(_WHOLE)),
    **dict.fromkeys(("seconds", "delay_seconds", "grace_seconds", "mean_seconds"), _SECONDS),
    **dict.fromkeys(("standby", "blocking"), _TRUTH),
    **dict.fromkeys(("free_bytes", "needed_bytes", "needed_inodes"), _WHOLE),
    "free_inodes": _or_null(_WHOLE),
    **dict.fromkeys(("gpus", "held_back", "last_lines", "locks", "processes", "ignored_settings", "kinds"), _TEXTS),
    **dict.fromkeys(("changed", "at_next_start", "needs_restart"), _TEXTS),
    **dict.fromkeys(("pids", "uninterruptible"), _WHOLES),
    "rejected": _REJECTED,
    "stages": {"type": "object", "additionalProperties": {"type": "number", "minimum": 0}},
    "total": {"type": "number", "minimum": 0},
    "loss": {"type": ["number", "string", "null"]},  # a number that JSON does not have is told in words: nan, inf
}
"""What a field holds, by its name, which means the same in every record."""

COMMON: Final[Mapping[str, Type]] = {
    "event": {"type": "string", "description": "which kind of record it is"},
    "level": {"enum": ["info", "warning", "error"], "description": "how much it matters"},
    "timestamp": {"type": "string", "format": "date-time", "description": "when it was written, UTC"},
    "run": {"type": "string", "description": "name of the run"},
    "run_id": {"type": "string", "description": "id of the run"},
    "incarnation": {"type": "integer", "minimum": 0, "description": "which life of the trainer, counted from 1"},
    "seq": {"type": "integer", "minimum": 1, "description": "counts up within a supervisor's life"},
}


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one record: what all have, and of each kind its own fields. More fields may come."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A record of a lastgood supervisor: one line of events.jsonl",
        "type": "object",
        "properties": COMMON,
        "required": list(COMMON),
        "oneOf": [_kind(name, kind) for name, kind in CATALOGUE.items()],
    }


def _kind(name: str, kind: Kind) -> dict[str, Any]:
    return {
        "title": name,
        "description": kind.meaning,
        "properties": {
            "event": {"const": name},
            "level": {"default": kind.level},
            **{field: {**TYPES.get(field, {}), "description": text} for field, text in kind.fields.items()},
        },
        "required": ["event", *kind.fields],
    }

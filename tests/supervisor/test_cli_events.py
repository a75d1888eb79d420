"""`lastgood events`: the catalogue of records and its JSON Schema, held against what supervisors really write."""

import copy
import json
from typing import Any

import pytest

from supervisor.record_schema import TYPES, schema
from supervisor.records import CATALOGUE
from tests.bench import Bench

_PLAIN: dict[str, Any] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None), "array": list, "object": dict,
}  # fmt: skip


def violations(rule: dict[str, Any], value: Any, where: str = "") -> list[str]:
    """What of a value breaks a schema, for the few words of JSON Schema that this one uses."""
    found = [f"{where}: not {rule['const']}" for _ in [0] if "const" in rule and value != rule["const"]]
    found += [f"{where}: not in {rule['enum']}" for _ in [0] if "enum" in rule and value not in rule["enum"]]
    kinds = rule.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(
        isinstance(value, _PLAIN[kind]) and (kind == "boolean") == isinstance(value, bool) for kind in kinds
    ):
        return [*found, f"{where}: {value!r} is no {kinds}"]
    if "minimum" in rule and isinstance(value, int | float) and value < rule["minimum"]:
        found.append(f"{where}: {value} is below {rule['minimum']}")
    if isinstance(value, dict):
        found += [f"{where}.{name} is missing" for name in rule.get("required", []) if name not in value]
        for name, inner in rule.get("properties", {}).items():
            found += violations(inner, value[name], f"{where}.{name}") if name in value else []
    if isinstance(value, list):
        for one in value:
            found += violations(rule.get("items", {}), one, f"{where}[]")
    if "oneOf" in rule and 1 != len([one for one in rule["oneOf"] if not violations(one, value, where)]):
        nearest = min((violations(one, value, where) for one in rule["oneOf"]), key=len)
        found.append(f"{where}: none or several of oneOf; nearest {nearest}")
    return found


def test_the_schema_has_every_record_and_field_of_the_catalogue(bench: Bench) -> None:
    """Generated from the catalogue: each kind with its meaning, each field required, described and of a known type."""
    made = json.loads(bench.lastgood("events", "--schema").stdout)

    assert list(CATALOGUE) == [kind["title"] for kind in made["oneOf"]]
    for kind in made["oneOf"]:
        known = CATALOGUE[kind["title"]]
        assert (known.meaning, known.level) == (kind["description"], kind["properties"]["level"]["default"])
        assert ["event", *known.fields] == kind["required"]
        for field, meaning in known.fields.items():
            assert meaning == kind["properties"][field]["description"]
            assert "type" in kind["properties"][field], f"supervisor/record_schema.py: say of what type {field} is"


def test_no_field_has_a_type_that_no_record_has() -> None:
    """What went from the catalogue goes from the types too."""
    assert set() == TYPES.keys() - {field for kind in CATALOGUE.values() for field in kind.fields}


def test_what_a_supervisor_writes_fits_the_schema(bench: Bench) -> None:
    """Kills, a fallback, a restart and completed runs: every line of events.jsonl is as the schema says."""
    assert 0 == bench.run("--steps=20", "--habit=die:12", sets=("run.final_step=20",))
    (bench.directory / "step_20.pt").write_bytes(b"PK\3\4")
    assert 0 == bench.run("--steps=30", sets=("run.final_step=30",))
    lines = (bench.directory / ".lastgood" / "events.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]

    assert {"trainer.exited", "fallback.chosen", "restart.scheduled", "run.completed"} <= {r["event"] for r in records}
    assert [] == [(record["event"], found) for record in records if (found := violations(schema(), record))]


@pytest.fixture
def record() -> dict[str, Any]:
    """A record that fits."""
    return {
        "event": "snapshot.sealed", "level": "info", "timestamp": "2026-01-01T00:00:00Z", "run": "a", "run_id": "b",
        "incarnation": 1, "seq": 7, "name": "step_5.pt", "step": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [("event", "no.such"), ("level", "loud"), ("seq", 0), ("seq", True), ("step", "5"), ("name", None), ("run", ...)],
)
def test_what_is_no_record_does_not_fit_the_schema(record: dict[str, Any], field: str, value: Any) -> None:
    """An unknown event, a wrong type, a missing field: each breaks the schema, and the record without it does not."""
    wrong = copy.copy(record)
    wrong[field] = value
    if value is ...:
        del wrong[field]

    assert [] == violations(schema(), record)
    assert [] != violations(schema(), wrong)

"""What the directory of a run tells a page: its records, steps, snapshots and quarantine. Reads only, and judges nothing."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

from lastgood.contract import EVENTS_FILE, QUARANTINE_DIR, REASON_FILE, SEAL_SUFFIX, STATE_DIR
from lastgood.ledger import Ledger
from lastgood.regular import regular
from lastgood.rungs import scan
from supervisor.cli.accounting import METRICS_FILE
from supervisor.cli.look import is_number, verdicts_in
from supervisor.cli.text import printable, shown
from supervisor.following import Following
from supervisor.goodput import unix_seconds
from supervisor.jsonl import older
from supervisor.report import phases, restarts
from supervisor.report.model import Line, Rung, SetAside
from supervisor.tails import objects, sampled

METRICS_BYTES = 64 << 20  # of metrics.jsonl; of a longer one pieces from all over it
METRICS_PIECES = 4096
EVERYTHING = 1 << 62
RUNGS_MAX = 50
EVENTS = phases.EVENTS | restarts.EVENTS
JUDGEMENTS = frozenset({"snapshot.verified", "snapshot.rejected"})
"""What the proof of a verdict stands in."""
TELLING = EVENTS | JUDGEMENTS


@dataclass(frozen=True)
class Found:
    """What was found. `records` are those of this run that tell something here, each with `at`; `lines` are the steps.

    `made` is how many there are, about as many where not all were read. `signs` are the times of the first and the last step of
    each incarnation, where its trainer tells them.
    """

    records: tuple[dict[str, Any], ...]
    lines: tuple[Line, ...]
    made: int
    signs: phases.Signs
    ladder: tuple[Rung, ...]
    total_ladder: int
    set_aside: tuple[SetAside, ...]
    total_set_aside: int


def found_in(directory: str, status: Mapping[str, Any], pattern: str | None = None) -> Found:
    """All that is there. `status` is what the supervisor said last: of which run, and what its snapshots were worth."""
    everything = list(records_of(directory))
    records = [one for one in everything if one.get("run_id") == status.get("run_id")]
    told = verdicts_in(dict(status), (one for one in records if one["event"] in JUDGEMENTS))
    ladder, total_ladder = _ladder(directory, pattern, told)
    set_aside, total_set_aside = quarantine(directory)
    earlier = _end_of_earlier(everything, status.get("run_id"))
    lines = tuple(line for line in metrics_of(directory) if line.at is None or line.at > earlier)
    kept = tuple(one for one in records if one["event"] in EVENTS)
    steps = lines or tuple(_steps_told(kept))
    made = _made(directory, len(lines)) if lines else len(steps)
    return Found(kept, steps, made, _signs(lines), ladder, total_ladder, set_aside, total_set_aside)


def _end_of_earlier(records: Iterable[Mapping[str, Any]], run_id: Any) -> float:
    """When the runs before this one in the directory said their last: metrics do not tell of which run they are."""
    before = takewhile(lambda one: one.get("run_id") != run_id, records)
    return max((one["at"] for one in before), default=-math.inf)


def _made(directory: str, read: int) -> int:
    """How many lines the metrics have, of which so many were read."""
    try:
        size = os.stat(os.path.join(directory, METRICS_FILE)).st_size
    except OSError:
        return read
    return max(read, read * size // METRICS_BYTES)


def _signs(lines: Iterable[Line]) -> phases.Signs:
    found: dict[int | None, tuple[float, float]] = {}
    for line in lines:
        if line.at is not None:
            found[line.incarnation] = (found.get(line.incarnation, (line.at, 0.0))[0], line.at)
    return found


def records_of(directory: str) -> Iterator[dict[str, Any]]:
    """The records that tell something here, the oldest first, also those from before the file was turned over."""
    events = os.path.join(directory, STATE_DIR, EVENTS_FILE)
    for lines in Following(events, older(events)).pieces(EVERYTHING):
        for record in objects(lines):
            event, at = record.get("event"), unix_seconds(record.get("timestamp"))
            if at is not None and isinstance(event, str) and event in TELLING:
                last = record.get("last_lines")
                said = str(last[-1]) if isinstance(last, list) and last else None
                yield {"at": at, "last_line": said, **_kept(record)}


def _kept(record: dict[str, Any]) -> dict[str, Any]:
    """What of a record tells something here, of the kind that it must be or None: there may be half a million of them."""
    return {key: KEPT[key](value) for key, value in record.items() if key in KEPT}


def metrics_of(directory: str) -> Iterator[Line]:
    """The steps that the trainer's own metrics tell, in order."""
    path = os.path.join(directory, METRICS_FILE)
    for line in objects(sampled(path, METRICS_BYTES, METRICS_PIECES)):
        step: Any = line.get("step")
        if type(step) is int and is_number(step):
            yield Line(step, _number(line.get("loss")), _number(line.get("time")), _whole(line.get("incarnation")))


def _steps_told(records: Iterable[dict[str, Any]]) -> Iterator[Line]:
    """The steps that the supervisor knows of, where a trainer writes no metrics."""
    for record in records:
        if record["event"] in ("trainer.spawned", "trainer.progressed", "trainer.exited"):
            step = record.get("step")
            if record["event"] == "trainer.spawned" and record.get("resumed_from") is None:
                step = 0
            if step is not None:
                yield Line(step, record.get("loss"), record["at"], record.get("incarnation"))


def _ladder(
    directory: str, pattern: str | None, told: Mapping[str, tuple[str | None, str | None]]
) -> tuple[tuple[Rung, ...], int]:
    """The newest snapshots and how many there are. A verdict is one that was found earlier, and that still holds."""
    try:
        rungs = scan(directory, pattern, Ledger(directory))
    except OSError:
        return (), 0
    found = []
    for rung in rungs[:RUNGS_MAX]:
        kind, proof = told.get(rung.name, (None, None))
        if rung.verdict is not None:
            kind = str(rung.verdict.kind)
            proof = None if rung.verdict.proof is None else str(rung.verdict.proof)
        found.append(Rung(shown(rung.name), rung.step, rung.identity.size, rung.mtime_ns / 1e9, kind, proof))
    return tuple(found), len(rungs)


def quarantine(directory: str) -> tuple[tuple[SetAside, ...], int]:
    """What was set aside last, and how often something was."""
    base = os.path.join(directory, STATE_DIR, QUARANTINE_DIR)
    try:
        places = sorted(os.listdir(base), reverse=True)
    except OSError:
        return (), 0
    return tuple(_set_aside(base, place) for place in places[:RUNGS_MAX]), len(places)


def _set_aside(base: str, place: str) -> SetAside:
    """What lies in one folder of quarantine; its name begins with the time."""
    when, _, name = place.partition("-")
    finding: Any = {}
    try:
        with open(os.path.join(base, place, REASON_FILE), "rb", opener=regular) as file:
            finding = json.load(file)
    except (OSError, ValueError, RecursionError):
        pass  # on a full disk it went there without one
    told = finding if isinstance(finding, dict) else {}
    name = shown(str(told.get("name") or name))
    reason = printable(str(told.get("reason") or "nothing says why"))
    return SetAside(name, _whole(told.get("step")), _readable(when), reason, _bytes_in(os.path.join(base, place)))


def _readable(when: str) -> str:
    try:
        return datetime.strptime(when, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return ""


def _bytes_in(place: str) -> int | None:
    """The size of the snapshot there; None when none is."""
    sizes = []
    for folder, _, names in os.walk(place):
        for name in names:
            if name != REASON_FILE and not name.endswith((SEAL_SUFFIX, ".json")):
                try:
                    sizes.append(os.lstat(os.path.join(folder, name)).st_size)
                except OSError:
                    continue  # it is given up, or put back, just now
    return sum(sizes) if sizes else None


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and is_number(value) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _list(value: Any) -> list[Any] | None:
    return value if isinstance(value, list) else None


KEPT: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        ("event", "run_id", "cause", "evidence", "resumed_from", "proof", "by", "chosen", "name", "verdict", "fault"),
        _text,
    ),
    **dict.fromkeys(("incarnation", "step", "code", "signal", "steps_lost"), _whole),
    **dict.fromkeys(("loss", "total", "seconds", "delay_seconds"), _number),
    "rejected": _list,
}

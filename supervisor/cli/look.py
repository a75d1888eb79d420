"""What `lastgood watch` knows of a run: read from its directory, a bounded amount at a time, and only what changed since."""

import os
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lastgood.contract import EVENTS_FILE, LEDGER_FILE, STATE_DIR, STATUS_FILE, WANTED_FILE
from lastgood.ledger import Ledger
from lastgood.rungs import Rung, scan
from lastgood.verdict import Verdict
from supervisor.adapters import statefile
from supervisor.cli.accounting import METRICS_FILE, Accounting
from supervisor.goodput import Goodput
from supervisor.jsonl import older
from supervisor.tails import objects, sampled, tail

T = TypeVar("T")

EVENTS_BYTES = 256 << 10  # of the end of events.jsonl
ACCOUNT_BYTES = 16 << 20  # of all of events.jsonl and metrics.jsonl, each time that one looks
METRICS_BYTES = 192 << 10  # of metrics.jsonl, from all over it
METRICS_PIECES = 63
RECENT_BYTES = 16 << 10  # of the end of metrics.jsonl, for speeds
RECORDS_KEPT = 100
RUNGS_KEPT = 100
RESCAN_SECONDS = 10.0  # a snapshot that changed in place moves no time of its folder
NUMBER_MAX = 1e300
SPEED_SECONDS = 30.0  # over which steps are counted where nobody tells when they were


@dataclass(frozen=True)
class Row:
    """One rung as it is shown; `verdict` is what was found earlier, if anything."""

    name: str
    step: int | None
    bytes: int
    mtime: float
    verdict: str | None
    proof: str | None


@dataclass(frozen=True)
class View:
    """All that one frame shows. Times are in unix seconds, speeds per second."""

    directory: str
    now: float
    problem: str | None = None
    status: dict[str, Any] = field(default_factory=dict)
    wanted: str | None = None
    supervisor: int | None = None
    rows: tuple[Row, ...] = ()
    rungs: int = 0
    records: tuple[dict[str, Any], ...] = ()
    records_cut: bool = False
    restarts: dict[str, int] = field(default_factory=dict)
    curve: tuple[tuple[int, float], ...] = ()
    tokens_per_second: float | None = None
    steps_per_second: float | None = None
    goodput: Goodput | None = None
    account_read: float = 1.0  # the share that was read of what goodput is reckoned from


class Look:
    """Looks at one directory again and again; each time only what changed since is read."""

    def __init__(self, directory: str, pattern: str | None = None) -> None:
        self._directory = directory
        self._pattern = pattern
        self._known: dict[str, tuple[Any, Any]] = {}
        self._accounting = Accounting(directory)
        self._seen: deque[tuple[float, int, int]] = deque(maxlen=600)  # when, incarnation, step

    def view(self, now: float) -> View:
        """What there is to show now. Never raises: what cannot be read is told, or left out."""
        state = os.path.join(self._directory, STATE_DIR)
        events, metrics = os.path.join(state, EVENTS_FILE), os.path.join(self._directory, METRICS_FILE)
        status, problem = self._status(os.path.join(state, STATUS_FILE))
        rungs, trouble = self._rungs(now)
        supervisor = statefile.holder(self._directory)
        wanted_stamp = _stamp(os.path.join(state, WANTED_FILE))
        wanted = self._once("wanted", wanted_stamp, lambda: statefile.read_wanted(self._directory))
        stamps = (_stamp(older(events)), _stamp(events))
        records = self._once("events", stamps, lambda: list(objects(_last_lines(events))))
        recent = self._once("recent", _stamp(metrics), lambda: list(objects(tail(metrics, RECENT_BYTES))))
        lines = self._once(
            "curve", _stamp(metrics), lambda: curve_of(objects(sampled(metrics, METRICS_BYTES, METRICS_PIECES)))
        )
        self._accounting.read(ACCOUNT_BYTES)
        told = verdicts_in(status, records)
        tokens, steps = speeds(recent, status.get("incarnation"))
        return View(
            directory=self._directory,
            now=now,
            problem=trouble or problem,
            status=status,
            wanted=wanted,
            supervisor=supervisor,
            rows=tuple(_row(rung, told.get(rung.name, (None, None))) for rung in rungs[:RUNGS_KEPT]),
            rungs=len(rungs),
            records=tuple(records[-RECORDS_KEPT:]),
            records_cut=_size(older(events)) + _size(events) > EVENTS_BYTES,
            restarts=restarts_in(records, status.get("run_id")),
            curve=tuple(lines or curve_of(r for r in records if r.get("event") == "trainer.progressed")),
            tokens_per_second=tokens,
            steps_per_second=self._speed(status) if steps is None else steps,
            goodput=self._accounting.goodput(status, supervisor is not None, now),
            account_read=self._accounting.share_read,
        )

    def _once(self, what: str, stamp: Any, read: Callable[[], T]) -> T:
        """What `read` returns, or what it did at the same stamp before."""
        known = self._known.get(what)
        if known is None or known[0] != stamp:
            known = self._known[what] = (stamp, read())
        found: T = known[1]
        return found

    def _status(self, path: str) -> tuple[dict[str, Any], str | None]:
        def read() -> tuple[dict[str, Any], str | None]:
            try:
                found = statefile.read_status(self._directory)
            except (OSError, ValueError) as error:
                return {}, f"status.json cannot be read ({error})"
            return (found, None) if found is not None else ({}, "no supervisor has written a status here yet")

        return self._once("status", _stamp(path), read)

    def _rungs(self, now: float) -> tuple[list[Rung], str | None]:
        ledger = os.path.join(self._directory, STATE_DIR, LEDGER_FILE)

        def read() -> tuple[list[Rung], str | None]:
            try:
                return scan(self._directory, self._pattern, Ledger(self._directory)), None
            except OSError as error:
                return [], f"the directory cannot be read ({error.strerror}); waiting for it"

        stamp = (_stamp(self._directory), _stamp(ledger), now // RESCAN_SECONDS)
        return self._once("rungs", stamp, read)

    def _speed(self, status: dict[str, Any]) -> float | None:
        """Steps per second as seen from here, for trainers that write no metrics."""
        told: list[Any] = [status.get(name) for name in ("written_at", "incarnation", "step")]
        if not all(map(is_number, told)):
            return None
        at, life, step = told
        while self._seen and (self._seen[0][0] < at - SPEED_SECONDS or self._seen[-1][1] != life):
            self._seen.popleft()
        if not self._seen or self._seen[-1][0] < at:
            self._seen.append((at, life, step))
        first = self._seen[0]
        return (step - first[2]) / (at - first[0]) if at - first[0] >= 1 and step >= first[2] else None


def _row(rung: Rung, told: tuple[str | None, str | None]) -> Row:
    """A verdict that the ledger does not hold, since the file is too young for it, is in what the supervisor told."""
    verdict: Verdict | None = rung.verdict
    kind, proof = (
        told if verdict is None else (str(verdict.kind), None if verdict.proof is None else str(verdict.proof))
    )
    return Row(rung.name, rung.step, rung.identity.size, rung.mtime_ns / 1e9, kind, proof)


def verdicts_in(status: dict[str, Any], records: Iterable[dict[str, Any]]) -> dict[str, tuple[str | None, str | None]]:
    """Verdict and proof by name, as the supervisor told them last: its status has the verdict, its records the proof."""
    proofs = {
        (_text(one.get("name")), _text(one.get("verdict"))): _text(one.get("proof")) for one in _judgements(records)
    }
    found: dict[str, tuple[str | None, str | None]] = {}
    for one in _list(status.get("snapshots")):
        if isinstance(one, dict) and (name := _text(one.get("name"))) and (kind := _text(one.get("verdict"))):
            found[name] = (kind, proofs.get((name, kind)))
    return found


def _judgements(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in records if one.get("event") in ("snapshot.verified", "snapshot.rejected")]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _stamp(path: str) -> tuple[int, int, int] | None:
    """What changes when a file or folder does."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _size(path: str) -> int:
    stamp = _stamp(path)
    return 0 if stamp is None else stamp[1]


def _last_lines(events: str) -> list[bytes]:
    """The end of the records, from before they were turned over too where those since are few."""
    before = max(0, EVENTS_BYTES - _size(events))
    return [*tail(older(events), before), *tail(events, EVENTS_BYTES)]


def curve_of(lines: Iterable[dict[str, Any]]) -> list[tuple[int, float]]:
    """Loss by step, in the order of steps: a step that was done again counts as it was done last."""
    points: list[tuple[int, float]] = []
    for line in lines:
        step: Any = line.get("step")
        loss: Any = line.get("loss")
        if type(step) is not int:
            continue
        while points and points[-1][0] >= step:
            points.pop()
        if is_number(loss):
            points.append((step, float(loss)))
    return points


def speeds(lines: list[dict[str, Any]], incarnation: Any) -> tuple[float | None, float | None]:
    """Tokens and steps per second by the newest lines of the trainer's metrics, if they are of this incarnation."""
    of_now = [line for line in lines if line.get("incarnation") == incarnation and incarnation is not None]
    told = [line["tokens_per_second"] for line in of_now[-20:] if is_number(line.get("tokens_per_second"))]
    tokens = statistics.median(told) if told else None
    timed = [line for line in of_now[-100:] if is_number(line.get("time")) and type(line.get("step")) is int]
    if len(timed) < 2 or timed[-1]["time"] <= timed[0]["time"]:
        return tokens, None
    steps = (timed[-1]["step"] - timed[0]["step"]) / (timed[-1]["time"] - timed[0]["time"])
    return tokens, steps if steps > 0 else None


def is_number(value: Any) -> bool:
    """Whether it can be reckoned with: neither nan nor an infinity, nor so large that a sum of some would be one."""
    return type(value) in (int, float) and abs(value) < NUMBER_MAX


def restarts_in(records: Iterable[dict[str, Any]], run_id: Any) -> dict[str, int]:
    """Restarts by what the death before was put down to, most first; those of an earlier run here do not count."""
    causes = (
        str(one.get("cause"))
        for one in records
        if one.get("event") == "restart.scheduled" and one.get("run_id") == run_id
    )
    return dict(Counter(causes).most_common())

"""What followed from each fault, and whether that is right: by the records, the oracle's eyes and the system alone."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from supervisor.chaos import oracle
from supervisor.chaos.done import Done
from supervisor.chaos.plan import FaultKind

KEPT_MIN = 2  # good ones, whatever the settings of retention say
RESUME_SECONDS_MAX = 120.0
"""From a fault to the next new step: a run that is kept safe and never goes on is not kept."""

WORDS_MAX = 160
"""Characters of a trainer's last words that are told."""

EXPLAINED = frozenset({"completed", "stopped", "resume-refuted"})
"""Causes of an exit that need no fault: the end of the run, and what a bad snapshot that was found too late entails."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """A fault, what had to follow, what followed, and what is wrong with that; times are unix seconds.

    `standby` says whether the trainer that the run went on with had been started in advance.
    """

    id: str
    kind: str
    planned_step: int
    step: int
    at: float
    proof: str
    expected: str | None
    chosen: str | None
    why: str
    cause: str | None
    steps_lost: int | None
    seconds_to_detect: float | None
    seconds_to_resume: float | None
    standby: bool | None
    problems: tuple[str, ...]


class Records:
    """The records of one run, in order."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._by_event: dict[str, list[Record]] = {}
        self._metrics: list[Record] | None = None

    def __call__(self, event: str) -> list[Record]:
        """Those of one kind."""
        if event not in self._by_event:
            self._by_event[event] = oracle.records(self._directory, event)
        return self._by_event[event]

    def first_step(self, incarnation: int) -> float | None:
        """When an incarnation finished its first step: by its own metrics, or when the supervisor knew of a step or snapshot."""
        if self._metrics is None:
            self._metrics = oracle.metrics(self._directory)
        told = next((line.get("time") for line in self._metrics if line.get("incarnation") == incarnation), None)
        if isinstance(told, int | float):
            return float(told)
        records = (one for event in ("restart.timeline", "trainer.progressed") for one in self(event))
        known = next((one for one in records if one["incarnation"] == incarnation), None)
        return None if known is None else moment(known)

    def stepped_by(self, start: Record) -> float | None:
        """When a trainer had made a step at the latest: it ended beyond the one that it began with, or none was left."""
        ended = self.exit_of(start["incarnation"])
        if ended is None or (_step_of(ended) <= _step_of(start) and ended["cause"] != "completed"):
            return None
        return moment(ended)

    def exit_of(self, incarnation: int) -> Record | None:
        """How an incarnation ended."""
        return next((one for one in self("trainer.exited") if one["incarnation"] == incarnation), None)

    def sealed_between(self, at: float, start: Record) -> list[Record]:
        """The snapshots that the supervisor sealed from then until a start."""
        return [one for one in self("snapshot.sealed") if at <= moment(one) <= moment(start)]

    def starts_after(self, at: float) -> Iterator[Record]:
        """The trainers that were started since."""
        return (one for one in self("trainer.spawned") if moment(one) >= at)


def moment(record: Record) -> float:
    """When a record was written, in unix seconds."""
    return datetime.fromisoformat(record["timestamp"]).timestamp()


def _step_of(record: Record) -> int:
    """The step that a record tells; -1 when it tells none."""
    return -1 if record["step"] is None else int(record["step"])


def judge(done: Done, records: Records) -> Outcome:
    """What became of one fault."""
    fault = done.fault
    death = next((one for one in records("trainer.exited") if one["fault"] == fault.id), None)
    start = _went_on(done, death, records)
    first = None if start is None else records.first_step(start["incarnation"])
    at_latest = records.stepped_by(start) if first is None and start is not None else first
    due = done.expected if start is None else _due(done, start, records)
    problems = [*done.problems, *_about_death(done, death), *_about_start(done, start, due)]
    if done.ends_the_trainer and start is not None:
        problems += _about_resuming(None if first is None else first - done.at, at_latest is not None)
    return Outcome(
        id=fault.id,
        kind=str(fault.kind),
        planned_step=fault.at_step,
        step=done.step,
        at=done.at,
        proof=done.proof,
        expected=due,
        chosen=None if start is None else start["resumed_from"],
        why=_why(start, records),
        cause=None if death is None else death["cause"],
        steps_lost=None if start is None or start["step"] is None else max(0, done.step - start["step"]),
        seconds_to_detect=None if death is None else moment(death) - done.at,
        seconds_to_resume=None if at_latest is None else at_latest - done.at,
        standby=None if start is None else start["standby"],
        problems=tuple(f"{fault.kind} at step {done.step}: {problem}" for problem in problems),
    )


def unplanned(done: Iterable[Done], records: Records) -> Iterator[str]:
    """Deaths that no fault of the plan explains, and that were not wished for."""
    ids = {one.fault.id for one in done}
    for one in records("trainer.exited"):
        if one["fault"] not in ids and one["cause"] not in EXPLAINED:
            when = "before its first step" if one["step"] is None else f"at step {one['step']}"
            yield f"the trainer died {when} without a fault: {one['cause']}{_last_words(one)}"


def _last_words(ended: Record) -> str:
    """What the trainer said last, shortened."""
    said = [line.strip() for line in ended["last_lines"] if line.strip()]
    if not said:
        return ""
    shortened = said[-1] if len(said[-1]) <= WORDS_MAX else f"{said[-1][: WORDS_MAX - 1]}…"
    return f"; its last words: {shortened}"


def lost(done: Iterable[Done], snapshots: oracle.Snapshots, records: Records) -> Iterator[str]:
    """What is gone that had to stay: broken ones, which are evidence, and good ones, of which retention leaves two at least.

    On a full disk evidence may be given up, if that is told.
    """
    before: Done | None = None
    given_up: set[str] = set()
    for one in done:
        if one.fault.kind is FaultKind.FILL_DISK:
            given_up = {record["name"] for record in records("quarantine.trimmed")}
    for one in done:
        if one.broken is not None and one.broken[0] not in given_up and not snapshots.is_kept(*one.broken):
            yield f"{one.broken[0]}, broken at step {one.step}, was not kept as it was"
        if not one.ends_the_trainer:
            continue
        if before is not None and one.lay_there < min(before.good, KEPT_MIN):
            yield f"of {before.good} good snapshots at step {before.step} there were {one.lay_there} left at step {one.step}"
        before = one


def _went_on(done: Done, death: Record | None, records: Records) -> Record | None:
    """The trainer that the run went on with: one that was found to have begun from a bad snapshot is none."""
    if not done.ends_the_trainer:
        return None
    starts = list(records.starts_after(done.at if death is None else moment(death)))
    if done.fault.kind is FaultKind.FLIP_BELOW:
        starts = [one for one in starts if not _was_refuted(one, records)]
    return starts[0] if starts else None


def _was_refuted(start: Record, records: Records) -> bool:
    ended = records.exit_of(start["incarnation"])
    return ended is not None and ended["cause"] == "resume-refuted"


def _about_death(done: Done, death: Record | None) -> Iterator[str]:
    if not done.proof:
        yield "it is not proven to have happened"
    if done.cause is not None and (death is None or death["cause"] != done.cause):
        yield f"the death was put down to {'nothing' if death is None else death['cause']}, not to {done.cause}"


def _due(done: Done, start: Record, records: Records) -> str | None:
    """The snapshot that had to be chosen: what was sealed between the death and the start was proven by then.

    That may be a last save, or an older one where nothing newer was proven: of which the supervisor knew nothing but its name.
    """
    sealed = max(records.sealed_between(done.at, start), key=_step_of, default=None)
    if sealed is None:
        return done.expected
    told = [_step_of(one) for one in records("snapshot.appeared") if one["name"] == done.expected]
    passed = [one["name"] for one in _passed_over(start, records) if one["verdict"] == "unproven"]
    is_due = done.expected is None or (told and _step_of(sealed) > told[0]) or done.expected in passed
    return str(sealed["name"]) if is_due else done.expected


def _about_start(done: Done, start: Record | None, due: str | None) -> Iterator[str]:
    if not done.ends_the_trainer:
        return
    if start is None:
        yield "no trainer was started after it"
    elif start["resumed_from"] is None and due is not None:
        yield f"started from nothing, not from {due}"
    elif due is None and start["resumed_from"] is not None:
        yield f"resumed {start['resumed_from']}, where no good snapshot was to be found"
    elif start["resumed_from"] != due:
        yield f"resumed {start['resumed_from']}, not {due}"


def _about_resuming(seconds: float | None, has_stepped: bool) -> Iterator[str]:
    """`seconds` is None where it is not known when the next step was made."""
    if not has_stepped:
        yield "no step was made after it"
    elif seconds is not None and seconds > RESUME_SECONDS_MAX:
        yield f"the next step came after {seconds:.0f} s"


def _why(start: Record | None, records: Records) -> str:
    """Why the chosen one was chosen, in the supervisor's own words."""
    if start is None:
        return "-"
    passed = _passed_over(start, records)
    if passed:
        return "; ".join(f"{one['name']} {one['verdict']}" for one in passed)
    return f"newest, proof {start['proof']}"


def _passed_over(start: Record, records: Records) -> list[Record]:
    """Those that the supervisor passed over for that start, with their verdicts."""
    for fallback in records("fallback.chosen"):
        if fallback["incarnation"] == start["incarnation"] and fallback["by"] == "supervisor":
            return list(fallback["rejected"])
    return []

"""What a page shows, as plain facts: no files, no HTML. Times are unix seconds, lengths of time are seconds. Pure."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Tone(StrEnum):
    """How a verdict is meant: as it should be, wrong, or neither."""

    GOOD = "good"
    BAD = "bad"
    OPEN = "open"


@dataclass(frozen=True)
class Verdict:
    """One word, one sentence, and how it is meant."""

    word: str
    tone: Tone
    sentence: str


@dataclass(frozen=True)
class Fact:
    """A name and a value; `note` says more in small letters. `is_code` is for what can be typed."""

    name: str
    value: str
    note: str = ""
    is_code: bool = False


@dataclass(frozen=True)
class Problem:
    """What is wrong, and the number of the fault whose row says more."""

    text: str
    fault: int | None = None


@dataclass(frozen=True)
class Fault:
    """A fault of a campaign, what had to follow, what followed, and what is wrong with that."""

    number: int
    kind: str
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
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Restart:
    """A death and the start that followed it. `number` is the incarnation that died, `followed_by` the next, None without one.

    `detail` says what more is known of the death, `fault` is the id of an injected one that it was put down to. `seconds_down`
    passed from the word of it to the next start, `seconds_to_step` to the next first step.
    """

    number: int
    at: float
    step: int | None
    cause: str
    detail: str = ""
    followed_by: int | None = None
    chosen: str | None = None
    why: str = ""
    is_fallback: bool = False
    steps_lost: int | None = None
    seconds_down: float | None = None
    seconds_to_step: float | None = None
    fault: str | None = None


class Line(NamedTuple):
    """A step that was made: its loss where one is known, when, and by which incarnation."""

    step: int
    loss: float | None
    at: float | None = None
    incarnation: int | None = None


@dataclass(frozen=True)
class Curve:
    """Steps in the order in which they were made. `lines` says how many were made or read, if more than are shown."""

    steps: tuple[Line, ...] = ()
    lines: int = 0

    @property
    def is_thinned(self) -> bool:
        """Whether there are more."""
        return self.lines > len(self.steps)


class Shape(StrEnum):
    """How a mark looks. A cross is for what is wrong."""

    CIRCLE = "circle"
    DIAMOND = "diamond"
    CROSS = "x"


@dataclass(frozen=True)
class Mark:
    """Where a fault hit, or where a trainer died. `number` is shown beside it, `meaning` is what all of its shape have in common.

    `label` is the first line of what is shown when one points at it, `details` are the others.
    """

    number: str
    label: str
    step: int | None
    at: float
    shape: Shape
    meaning: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Delays:
    """How long something took each time, each with what it was about."""

    name: str
    each: tuple[tuple[float, str], ...]


class Span(NamedTuple):
    """A stretch of time that the supervisor spent in one phase, and the incarnation that it was about."""

    phase: str
    begin: float
    end: float
    incarnation: int | None = None

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


@dataclass(frozen=True)
class Rung:
    """A snapshot of the ladder; `verdict` is what was found earlier, if anything."""

    name: str
    step: int | None
    bytes: int
    at: float
    verdict: str | None
    proof: str | None


@dataclass(frozen=True)
class SetAside:
    """What was set aside, when by the name of its folder, and why; `bytes` is None once it was given up for want of room."""

    name: str
    step: int | None
    when: str
    reason: str
    bytes: int | None


@dataclass(frozen=True)
class Report:
    """A page. `faults` is None where it is no campaign's; `total_*` says how many there are, if more than are shown.

    `restarts` are those of a run, the newest first; of a campaign those that no fault explains. `phases` are the seconds of all
    spans, by phase.
    """

    title: str
    verdict: Verdict
    made_at: float
    about: tuple[Fact, ...] = ()
    tiles: tuple[Fact, ...] = ()
    problems: tuple[Problem, ...] = ()
    faults: tuple[Fault, ...] | None = None
    restarts: tuple[Restart, ...] = ()
    total_restarts: int = 0
    knows_restarts: bool = True
    left_out: tuple[tuple[str, str], ...] = ()
    baseline: Curve = field(default_factory=Curve)
    survivor: Curve = field(default_factory=Curve)
    marks: tuple[Mark, ...] = ()
    delays: tuple[Delays, ...] = ()
    spans: tuple[Span, ...] = ()
    total_spans: int = 0
    phases: tuple[tuple[str, float], ...] = ()
    ladder: tuple[Rung, ...] = ()
    total_ladder: int = 0
    set_aside: tuple[SetAside, ...] = ()
    total_set_aside: int = 0
    machine: tuple[Fact, ...] = ()

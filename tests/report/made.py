"""Made-up facts for pages: a campaign of a few faults, with text from outside that would break a page if it could."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from supervisor.chaos.campaign import Asked, Result
from supervisor.chaos.judging import Outcome
from supervisor.chaos.oracle import Findings
from supervisor.chaos.plan import FaultKind
from supervisor.report.model import (
    Curve,
    Delays,
    Fact,
    Fault,
    Line,
    Mark,
    Problem,
    Report,
    Rung,
    SetAside,
    Shape,
    Span,
    Tone,
    Verdict,
)

AT = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC
HOSTILE = "</script><script>window.broken=1</script><img src=x onerror=window.broken=1>&amp;'\"]]>--><!--"


def fault(number: int = 1, **more: Any) -> Fault:
    """A fault that was survived."""
    usual = Fault(
        number=number,
        kind="truncate",
        step=20 * number,
        at=AT + 3 * number,
        proof="ckpt_00000020.pt has 5 of 10 bytes",
        expected="ckpt_00000010.pt",
        chosen="ckpt_00000010.pt",
        why="ckpt_00000020.pt truncated",
        cause="chaos",
        steps_lost=10,
        seconds_to_detect=0.02,
        seconds_to_resume=0.4,
    )
    return replace(usual, **more)


def loss(step: int) -> float:
    """A loss that falls."""
    return round(1 + 3 * math.exp(-step / 40), 6)


def lives() -> tuple[Line, ...]:
    """Three starts, the second and the third of which repeat some steps."""
    stretches = [(1, 1, 24), (2, 11, 44), (3, 31, 100)]
    return tuple(
        Line(step, loss(step), AT + 4 * start + 0.02 * step, start)
        for start, first, last in stretches
        for step in range(first, last + 1)
    )


def report(text: str = "plain", **more: Any) -> Report:
    """A page of a campaign, with some text of somebody else's wherever there can be any."""
    faults = (
        fault(1, kind="kill", proof=text, why=text),
        fault(2, chosen=text, cause=text, problems=(text, "resumed a, not b")),
    )
    usual = Report(
        title=f"Chaos campaign: {text}",
        verdict=Verdict("FAILED", Tone.BAD, f"1 problem: {text}."),
        made_at=AT,
        about=(Fact("again", text, is_code=True),),
        tiles=(Fact("faults survived", "1 of 2", text),),
        problems=(Problem(text, 2), Problem(f"of the run: {text}")),
        faults=faults,
        left_out=((text, text),),
        baseline=Curve(tuple(Line(step, loss(step)) for step in range(1, 101)), 100),
        survivor=Curve(lives(), len(lives())),
        marks=(
            Mark("1", "kill", 20, AT + 3, Shape.CIRCLE, "fault on processes", (text,)),
            Mark("2", text, 40, AT + 6, Shape.CROSS, "fault with something wrong", (text,)),
        ),
        delays=(Delays("noticed", ((0.02, "kill"), (0.05, text))), Delays("next step", ((0.4, "kill"), (0.9, text)))),
        spans=(
            Span("starting", AT, AT + 4, 1),
            Span("running", AT + 4, AT + 9, 1),
            Span("stalled", AT + 9, AT + 12, 1),
        ),
        total_spans=3,
        phases=(("running", 5.0), ("starting", 4.0), ("stalled", 3.0)),
        ladder=(Rung(f"{text}.pt", 100, 1000, AT, "healthy", "seal"), Rung("x.pt", None, 10, AT, "corrupt", None)),
        total_ladder=60,
        set_aside=(SetAside(text, 20, "2023-11-14 22:13:20", text, None),),
        total_set_aside=1,
        machine=(Fact("processor", text),),
    )
    return replace(usual, **more)


def outcome(number: int = 0, **more: Any) -> Outcome:
    """What the oracle says of a fault that was survived."""
    usual: dict[str, Any] = {
        "id": f"7-{number}", "kind": "kill", "planned_step": 20, "step": 21, "at": AT + 3, "proof": "process 5 is dead",
        "expected": "ckpt_00000020.pt", "chosen": "ckpt_00000020.pt", "why": "newest, proof seal", "cause": "chaos",
        "steps_lost": 1, "seconds_to_detect": 0.01, "seconds_to_resume": 0.3, "standby": True, "problems": (),
    }  # fmt: skip
    return Outcome(**(usual | more))


def result(folder: Path, **more: Any) -> Result:
    """What came of a campaign that went well, with nothing on the disk."""
    usual: dict[str, Any] = {
        "baseline": None, "outcomes": [outcome(0), outcome(1, kind="truncate")],
        "exact": Findings(100, 110, 0.0, True), "filesystem": "ext4", "started": AT, "ended": AT + 61,
        "left_out": {FaultKind.FILL_DISK: "it is not possible here"},
    }  # fmt: skip
    return Result(Asked("run.yaml", 2, 7), folder, 100, **(usual | more))

"""The report of a chaos campaign: the page and the JSON, from what came of it and what its directories tell."""

import dataclasses
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

from supervisor.adapters import statefile
from supervisor.chaos.campaign import Result
from supervisor.chaos.judging import EXPLAINED, Outcome
from supervisor.chaos.plan import ON_STORAGE, FaultKind
from supervisor.cli.look import is_number
from supervisor.cli.text import printable
from supervisor.goodput import LOST
from supervisor.report import machine, phases, restarts, thinning
from supervisor.report.markup import json_number
from supervisor.report.model import Delays, Fact, Fault, Mark, Problem, Report, Restart, Shape, Tone, Verdict
from supervisor.report.reading import found_in, metrics_of
from supervisor.report.words import count_text, iso_text, moment_text, seconds_text

FORMAT = 1
"""Of the JSON: raised when a field goes away or changes its meaning."""
STORAGE_KINDS = ON_STORAGE | {FaultKind.FILL_DISK}


def document(result: Result) -> dict[str, Any]:
    """All that a page says of a campaign, as JSON has it."""
    exact = None if result.exact is None else dataclasses.asdict(result.exact)
    if exact is not None:
        exact["largest_difference"] = json_number(exact["largest_difference"])
    return {
        "format": FORMAT,
        "passed": result.passed,
        "problems": [printable(problem) for problem in result.found],
        "command": result.asked.command,
        "config": result.asked.config,
        "seed": result.asked.seed,
        "faults_asked": result.asked.faults,
        "final_step": result.final_step,
        "started": iso_text(result.started),
        "ended": iso_text(result.ended),
        "faults": [_fields(outcome) for outcome in result.outcomes],
        "exact": exact,
        "left_out": {str(kind): why for kind, why in result.left_out.items()},
        "versions": machine.versions(),
        "machine": machine.machine(result.filesystem),
    }


def _fields(outcome: Outcome) -> dict[str, Any]:
    """All of them; names and reasons in characters that any reader takes."""
    found = dataclasses.asdict(outcome) | {"problems": [printable(problem) for problem in outcome.problems]}
    return {key: printable(value) if isinstance(value, str) else value for key, value in found.items()}


def document_text(result: Result) -> str:
    """The same as the text of a file."""
    return json.dumps(document(result), indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def report(result: Result) -> Report:
    """The facts of its page."""
    directory = str(result.survivor)
    status = _status(directory)
    found = found_in(directory, status, result.pattern)
    faults = tuple(_fault(number, one) for number, one in enumerate(result.outcomes, 1))
    baseline = () if result.baseline is None else tuple(metrics_of(str(result.baseline)))
    deaths = _unexplained(restarts.restarts(found.records, found.signs), result)
    marked = {fault.step for fault in faults} | {death.step for death in deaths if death.step is not None}
    written_at: Any = status.get("written_at")
    alive_at = float(written_at) if is_number(written_at) else result.ended
    spans = phases.spans(found.records, found.signs, result.ended, alive_at)
    return Report(
        title=f"Chaos campaign: {result.asked.config}, seed {result.asked.seed}",
        verdict=_verdict(result),
        made_at=time.time(),
        about=_about(result),
        tiles=_tiles(result, faults),
        problems=tuple(_problems(result)),
        faults=faults,
        restarts=deaths,
        total_restarts=len(deaths),
        left_out=tuple((str(kind), why) for kind, why in result.left_out.items()),
        baseline=thinning.thinned(baseline, marked),
        survivor=thinning.thinned(found.lines, marked, made=found.made),
        marks=(*map(_mark, faults), *(_mark_of_death(one) for one in deaths)),
        delays=(
            Delays("noticed", _each(faults, "seconds_to_detect")),
            Delays("next step", _each(faults, "seconds_to_resume")),
        ),
        spans=thinning.longest(spans),
        total_spans=len(spans),
        phases=phases.by_phase(spans),
        ladder=found.ladder,
        total_ladder=found.total_ladder,
        set_aside=found.set_aside,
        total_set_aside=found.total_set_aside,
        machine=machine.facts(machine.versions(), machine.machine(result.filesystem)),
    )


def _status(directory: str) -> dict[str, Any]:
    """What the supervisor said last; nothing, where the run never came so far."""
    try:
        return statefile.read_status(directory) or {}
    except (OSError, ValueError):
        return {}


def _unexplained(deaths: Sequence[Restart], result: Result) -> tuple[Restart, ...]:
    """Those that no fault of the campaign explains, and that were not wished for."""
    ids = {one.id for one in result.outcomes}
    return tuple(one for one in deaths if one.fault not in ids and one.cause not in EXPLAINED | {LOST})


def _mark_of_death(one: Restart) -> Mark:
    return dataclasses.replace(
        restarts.mark(one), number="!", shape=Shape.CROSS, meaning="death that no fault explains"
    )


def _fault(number: int, one: Outcome) -> Fault:
    prefix = f"{one.kind} at step {one.step}: "  # of each of its problems, which stand in its row
    return Fault(
        number=number,
        kind=one.kind,
        step=one.step,
        at=one.at,
        proof=one.proof,
        expected=one.expected,
        chosen=one.chosen,
        why=one.why,
        cause=one.cause,
        steps_lost=one.steps_lost,
        seconds_to_detect=one.seconds_to_detect,
        seconds_to_resume=one.seconds_to_resume,
        problems=tuple(problem.removeprefix(prefix) for problem in one.problems),
    )


def _verdict(result: Result) -> Verdict:
    count, asked = len(result.outcomes), result.asked.faults
    faults = count_text(count, "fault") if count == asked else f"{count:,} of {count_text(asked, 'fault')}"
    done = f"{faults} done to a run of {count_text(result.final_step, 'step')}"
    if result.exact is None:
        compared = "nothing could be compared bit for bit, since only the bundled trainer computes the same twice"
    else:
        steps = "all" if result.exact.steps_compared == result.final_step else f"{result.exact.steps_compared:,}"
        compared = f"largest difference in loss over {steps} steps: {result.exact.largest_difference}"
    lasted = seconds_text(max(0.0, result.ended - result.started))
    sentence = f"{done}; {compared}; it took {lasted}."
    if result.passed:
        return Verdict("PASSED", Tone.GOOD, sentence)
    return Verdict("FAILED", Tone.BAD, f"{count_text(len(result.found), 'problem')}. {sentence}")


def _about(result: Result) -> tuple[Fact, ...]:
    return (
        Fact("again", result.asked.command, is_code=True),
        Fact("config", result.asked.config, is_code=True),
        Fact("seed", str(result.asked.seed)),
        Fact("begun", moment_text(result.started)),
        Fact("ended", moment_text(result.ended)),
        Fact("files", str(result.folder), is_code=True),
    )


def _tiles(result: Result, faults: tuple[Fault, ...]) -> tuple[Fact, ...]:
    right = sum(not fault.problems for fault in faults)
    tiles = [Fact("faults survived", f"{right:,} of {result.asked.faults:,}")]
    if result.exact is not None:
        exact = result.exact
        repeated = exact.lines_compared - exact.steps_compared
        tiles += [
            Fact(
                "largest difference in loss", str(exact.largest_difference), f"{exact.lines_compared:,} losses compared"
            ),
            Fact("weights at the end", "identical" if exact.weights_identical else "different", "bit for bit"),
            Fact("steps", f"{result.final_step:,}", f"{repeated:,} of them were made again"),
        ]
    else:
        tiles += [
            Fact("compared", "nothing", "another trainer than the bundled one"),
            Fact("steps", f"{result.final_step:,}"),
        ]
    resumed = [fault.seconds_to_resume for fault in faults if fault.seconds_to_resume is not None]
    if resumed:
        middle, longest = statistics.median_low(resumed), max(resumed)
        tiles.append(Fact("fault to next step", seconds_text(middle), f"median; longest {seconds_text(longest)}"))
    starts = [one.standby for one in result.outcomes if one.standby is not None]
    if any(starts):
        tiles.append(Fact("from standby", f"{sum(starts):,} of {len(starts):,}", "restarts"))
    return tuple(tiles)


def _problems(result: Result) -> list[Problem]:
    """All that was found, each with the number of its fault where it has one."""
    number_of = {text: number for number, one in enumerate(result.outcomes, 1) for text in one.problems}
    return [Problem(text, number_of.get(text)) for text in result.found]


def _mark(fault: Fault) -> Mark:
    on_storage = fault.kind in STORAGE_KINDS
    shape, meaning = (Shape.DIAMOND, "fault on storage") if on_storage else (Shape.CIRCLE, "fault on processes")
    if fault.problems:
        shape, meaning = Shape.CROSS, "fault with something wrong"
    details = [f"step {fault.step:,}: {fault.proof or 'not proven'}"]
    if fault.chosen is not None:
        details.append(f"went on from {fault.chosen}: {fault.why}")
    if fault.steps_lost is not None:
        details.append(f"{count_text(fault.steps_lost, 'step')} lost")
    if fault.seconds_to_resume is not None:
        details.append(f"next step after {seconds_text(fault.seconds_to_resume)}")
    details += fault.problems
    return Mark(str(fault.number), fault.kind, fault.step, fault.at, shape, meaning, tuple(details))


def _each(faults: tuple[Fault, ...], name: str) -> tuple[tuple[float, str], ...]:
    """How long something took after each fault for which that is known."""
    return tuple((seconds, fault.kind) for fault in faults if (seconds := getattr(fault, name)) is not None)

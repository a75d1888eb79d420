"""The report of an ordinary run, whether or not it goes on: what its directory tells."""

import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

from supervisor.adapters import statefile
from supervisor.chaos.room import MARK, SURVIVOR
from supervisor.cli.accounting import Accounting, in_words
from supervisor.cli.directory import Meant
from supervisor.cli.look import is_number
from supervisor.cli.text import FORBIDDEN, printable, shown
from supervisor.errors import UsageError
from supervisor.goodput import Goodput
from supervisor.report import machine, phases, restarts, thinning
from supervisor.report.model import Delays, Fact, Problem, Report, Restart, Tone, Verdict
from supervisor.report.reading import found_in
from supervisor.report.words import count_text, moment_text, seconds_text

RESTARTS_MAX = 500
NEEDED = frozenset({"run_id", "phase", "supervisor_pid", "written_at"})
"""What every supervisor's word holds."""
NO_RECORDS = "no record of this run is left in events.jsonl: its deaths, phases and goodput are not known"
ENDS = {
    "completed": ("COMPLETED", Tone.GOOD),
    "stopped": ("STOPPED", Tone.OPEN),
    "failed": ("GIVEN UP", Tone.BAD),
}
"""How a run whose supervisor has ended in order stands, by the last phase that it told."""


def report(meant: Meant) -> Report:
    """The facts of the page of the run in a directory. Raises UsageError when no supervisor was ever there."""
    directory = meant.directory
    status = _status(directory)
    supervised = statefile.holder(directory) is not None
    now = time.time()
    found = found_in(directory, status, meant.pattern)
    accounting = Accounting(directory)
    accounting.read()
    goodput = accounting.goodput(status, supervised, now)
    deaths = restarts.restarts(found.records, found.signs)
    marked = {one.step for one in deaths if one.step is not None}
    written_at: Any = status.get("written_at")
    last = float(written_at) if is_number(written_at) else now
    spans = phases.spans(found.records, found.signs, now, None if supervised else last)
    shown_deaths = deaths[-RESTARTS_MAX:]
    return Report(
        title=f"Run: {status.get('name') or directory}",
        verdict=verdict(status, supervised, goodput if found.records else None),
        made_at=now,
        about=_about(directory, status, found.records, last),
        tiles=_tiles(status, goodput, deaths) if found.records else (),
        problems=_problems(status, found.records),
        restarts=tuple(reversed(shown_deaths)),
        total_restarts=len(deaths),
        knows_restarts=bool(found.records),
        survivor=thinning.thinned(found.lines, marked, made=found.made),
        marks=tuple(restarts.mark(one) for one in shown_deaths),
        delays=(
            Delays("next start", _each(deaths, "seconds_down")),
            Delays("next step", _each(deaths, "seconds_to_step")),
        ),
        spans=thinning.longest(spans),
        total_spans=len(spans),
        phases=phases.by_phase(spans),
        ladder=found.ladder,
        total_ladder=found.total_ladder,
        set_aside=found.set_aside,
        total_set_aside=found.total_set_aside,
        machine=machine.facts(machine.versions(), machine.machine(machine.filesystem_of(directory))),
    )


def _status(directory: str) -> dict[str, Any]:
    """What the supervisor of the directory said last. Raises UsageError."""
    where = shown(directory)
    try:
        found = statefile.read_status(directory)
    except PermissionError:
        raise UsageError(f"report: {where}: {FORBIDDEN}") from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"report: {where}: status.json cannot be read ({error}); a supervisor writes it anew"
        ) from None
    if found is not None and not found.keys() >= NEEDED:
        raise UsageError(f"report: {where}: status.json is damaged; a supervisor writes it anew")
    if found is None and os.path.exists(os.path.join(directory, MARK)):
        raise UsageError(
            f"report: {where} is a campaign's folder; its run is in {shown(os.path.join(directory, SURVIVOR))}"
        )
    if found is None:
        raise UsageError(
            f"report: {where} is not a run's checkpoint directory: no supervisor has written a status there"
        )
    return found


def verdict(status: dict[str, Any], supervised: bool, goodput: Goodput | None) -> Verdict:
    """How the run stands, and what its time was worth; None where no record is left to tell that."""
    phase = str(status.get("phase") or "")
    if supervised:
        word, tone = (phase.upper() if phase and phase not in ENDS else "RUNNING"), Tone.OPEN
    elif phase in ENDS:
        word, tone = ENDS[phase]
    else:
        word, tone = "INTERRUPTED", Tone.BAD
    parts = [_steps(status)]
    if status.get("waiting_for") and supervised:
        parts.append(f"it waits for {status['waiting_for']}")
    if not supervised and phase not in ENDS:
        parts.append("its supervisor ended without a word, and the next `lastgood run` goes on")
    if goodput is None:
        parts.append("how often its trainer died is not known")
    else:
        deaths = sum(goodput.failures.values())
        parts.append(f"{count_text(deaths, 'death')} survived" if tone is not Tone.BAD else count_text(deaths, "death"))
    if goodput is not None and goodput.goodput is not None:
        parts.append(f"goodput {100 * goodput.goodput:.1f} % of {seconds_text(goodput.wall_seconds)}")
    sentence = "; ".join(parts)
    return Verdict(word, tone, f"{sentence[0].upper()}{sentence[1:]}.")


def _steps(status: dict[str, Any]) -> str:
    """How far it is."""
    told = [status.get(name) for name in ("step", "reached", "high_water")]
    step = max((one for one in told if type(one) is int), default=None)
    final = status.get("final_step")
    if step is None:
        return "no step was made yet"
    return f"step {step:,} of {final:,}" if type(final) is int else f"step {step:,}"


def _about(directory: str, status: dict[str, Any], records: Sequence[dict[str, Any]], last: float) -> tuple[Fact, ...]:
    begun = [Fact("first record", moment_text(records[0]["at"]))] if records else []
    good = status.get("last_good")
    name = good.get("name") if isinstance(good, dict) else None
    return (
        Fact("directory", shown(directory), is_code=True),
        Fact("run id", str(status.get("run_id")), is_code=True),
        *begun,
        Fact("last word", moment_text(last)),
        Fact("last good snapshot", str(name or "none"), is_code=name is not None),
    )


def _tiles(status: dict[str, Any], goodput: Goodput, deaths: Sequence[Restart]) -> tuple[Fact, ...]:
    words = dict(in_words(goodput))
    loss = status.get("loss")
    share = "unknown" if goodput.goodput is None else f"{100 * goodput.goodput:.1f} %"
    tiles = [
        Fact("goodput", share, f"of {seconds_text(goodput.wall_seconds)}"),
        Fact("useful steps", f"{goodput.useful_steps:,}", f"{goodput.repeated_steps:,} repeated"),
        Fact("downtime", seconds_text(sum(goodput.downtime.values())), _causes(goodput)),
        Fact("deaths", f"{sum(goodput.failures.values()):,}", _counted(goodput.failures)),
        Fact("fallbacks", f"{sum(one.is_fallback for one in deaths):,}", "the newest snapshot was not the one chosen"),
    ]
    if loss is not None:
        tiles.append(Fact("loss", f"{loss:.4g}" if is_number(loss) else printable(str(loss)), "the newest told"))
    resumed = [one.seconds_to_step for one in deaths if one.seconds_to_step is not None]
    if resumed:
        tiles.append(
            Fact(
                "death to next step",
                seconds_text(statistics.median_low(resumed)),
                f"median; longest {seconds_text(max(resumed))}",
            )
        )
    if "save" in words:
        tiles.append(Fact("a save", seconds_text(goodput.save_seconds or 0.0), words["save"]))
    return tuple(tiles)


def _counted(failures: dict[str, int]) -> str:
    return ", ".join(f"{cause} {count:,}" for cause, count in failures.items()) or "none that nobody asked for"


def _causes(goodput: Goodput) -> str:
    return ", ".join(f"{cause} {seconds_text(seconds)}" for cause, seconds in goodput.downtime.items())


def _problems(status: dict[str, Any], records: Sequence[dict[str, Any]]) -> tuple[Problem, ...]:
    failure = status.get("failure")
    lost = [] if records else [NO_RECORDS]
    return tuple(Problem(str(text)) for text in [*([failure] if failure else []), *lost])


def _each(deaths: Sequence[Restart], name: str) -> tuple[tuple[float, str], ...]:
    """How long something took after each death for which that is known."""
    return tuple((seconds, one.cause) for one in deaths if (seconds := getattr(one, name)) is not None)

"""A campaign: the run unbroken, the run again under faults, and the oracle's verdict, told as it goes."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from supervisor import configuration
from supervisor.adapters.surroundings import mount_of
from supervisor.chaos import baseline, filesystem, oracle
from supervisor.chaos.damage import UndamagedError
from supervisor.chaos.done import Done, TooLateError
from supervisor.chaos.inject import Injector
from supervisor.chaos.judging import Outcome, Records, judge, lost, unplanned
from supervisor.chaos.plan import MIXES, OWN_FILESYSTEM, FaultKind, PlannedFault, draw
from supervisor.chaos.room import SURVIVOR, own_folder
from supervisor.chaos.service import Service
from supervisor.chaos.telling import bar, tell, told_when_interrupted
from supervisor.errors import UsageError
from supervisor.launch import check_program
from supervisor.settings import Settings

LIMIT_SECONDS = 3600.0  # a run in whose directory nothing changes for so long is stuck, and the campaign says so
LOOK_SECONDS = 0.2
LONG_SECONDS = 60.0  # of silence, after which a person wonders
PLAIN_WIDTH = 120  # where there is no terminal to ask
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
DEATH_SECONDS = 30.0  # after a deadline for silence

OF_OUR_SAVES = frozenset({FaultKind.KILL_WHILE_SAVING, FaultKind.DROP_SEAL, FaultKind.GARBLE_SEAL, FaultKind.FILL_DISK})
"""Those that only a trainer can meet that saves with this library: its partials, its seals, its word about a failed save."""


@dataclass(frozen=True)
class Asked:
    """What a campaign is made of: a run's config file, how many faults, the seed, and which kinds or which `mix` of them.

    Without either all kinds that are possible, as often as each other.
    """

    config: str
    faults: int
    seed: int
    kinds: tuple[FaultKind, ...] = ()
    mix: str = ""

    @property
    def command(self) -> str:
        """What repeats it."""
        named = self.mix or ",".join(self.kinds)
        words = ["lastgood", "chaos", self.config, "--faults", str(self.faults), "--seed", str(self.seed)]
        return shlex.join([*words, *(["--kinds", named] if named else [])])

    def weights(self, impossible: Collection[FaultKind]) -> dict[FaultKind, float]:
        """How often each kind is to come, those apart that are impossible here; kinds that were named are all possible."""
        if self.kinds:
            return dict.fromkeys(self.kinds, 1.0)
        all_of_them = MIXES[self.mix] if self.mix else dict.fromkeys(FaultKind, 1.0)
        return {kind: weight for kind, weight in all_of_them.items() if kind not in impossible}


@dataclass
class Result:
    """What came of it. `left_out` names the kinds that were not possible here, and why; `exact` is None where nothing can be
    compared bit for bit. `pattern` says how its snapshots are called, `filesystem` is the type of the one that they were on.
    Times are in unix seconds.
    """

    asked: Asked
    folder: Path
    final_step: int
    left_out: dict[FaultKind, str]
    baseline: Path | None
    outcomes: list[Outcome] = field(default_factory=list)
    exact: oracle.Findings | None = None
    problems: list[str] = field(default_factory=list)
    pattern: str | None = None
    filesystem: str = ""
    started: float = 0.0
    ended: float = 0.0

    @property
    def survivor(self) -> Path:
        """Where the run under faults was."""
        return self.folder / SURVIVOR

    @property
    def found(self) -> list[str]:
        """All that was wrong."""
        return [
            *self.problems,
            *(problem for outcome in self.outcomes for problem in outcome.problems),
            *(self.exact.problems if self.exact else []),
        ]

    @property
    def passed(self) -> bool:
        """Whether nothing was."""
        return not self.found


def campaign(asked: Asked) -> Result:
    """Run one, and print what happens. Raises UsageError."""
    started = time.time()
    chosen = configuration.load(asked.config, [])
    check_program(chosen, asked.config)
    final_step = chosen.run.final_step
    if final_step is None:
        raise UsageError(f"chaos: {asked.config}: run.final_step: it is needed, or no fault could be placed")
    impossible = hindrances(chosen)
    for kind in asked.kinds:
        if kind in impossible:
            raise UsageError(f"chaos: {asked.config}: {kind}: {impossible[kind]}")
    try:
        plan = draw(asked.seed, final_step, asked.faults, asked.weights(impossible))
    except ValueError as error:
        raise UsageError(f"chaos: {asked.config}: run.final_step: {error}") from None
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` would have it
            signal.signal(number, _end)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    place = Path("out/chaos")
    left_out = {} if asked.kinds else {kind: why for kind, why in impossible.items() if kind in asked.weights(())}
    made_for = {"config": asked.config, "seed": asked.seed}
    with own_folder(place, f"{chosen.run.name}-seed{asked.seed}", made_for) as folder, told_when_interrupted(console):
        unbroken = _baseline(console, chosen, place / "baselines", final_step) if chosen.bundled else None
        result = Result(asked, folder, final_step, left_out, unbroken, pattern=chosen.pattern, started=started)
        _carry_out(console, chosen, plan, result)
    _report(console, result)
    return result


def _carry_out(console: Console, chosen: Settings, plan: tuple[PlannedFault, ...], result: Result) -> None:
    """The run under faults, and what the oracle says of it."""
    asked, final_step, unbroken = result.asked, result.final_step, result.baseline
    tell(console, f"2/3 the same run under lastgood, with {len(plan)} faults from seed {asked.seed}")
    if any(fault.kind is FaultKind.STOP for fault in plan) and _silence(chosen) > LONG_SECONDS:
        console.print(
            f"  a trainer that is stopped is found out after {_silence(chosen):.0f} s (`stall` in the config)"
        )
    _run_survivor(console, chosen, plan, result)
    tell(console, "3/3 the oracle judges")
    if unbroken is not None:
        result.exact = oracle.compare(unbroken, result.survivor, final_step)
    result.ended = time.time()


def _silence(chosen: Settings) -> float:
    """Seconds after which a trainer that says nothing is found out at the latest."""
    return max(chosen.stall.running_seconds, chosen.stall.saving_seconds)


def _end(number: int, _frame: object) -> None:
    """So that what was started is ended, which takes its time and is not to be interrupted itself."""
    for one in ENDING:
        signal.signal(one, signal.SIG_IGN)
    sys.exit(128 + number)


def hindrances(chosen: Settings) -> dict[FaultKind, str]:
    """The kinds that are not possible with this run on this machine, and why."""
    found: dict[FaultKind, str] = {}
    if (why := filesystem.hindrance()) is not None:
        found |= dict.fromkeys(OWN_FILESYSTEM, f"it needs a filesystem of the campaign's own, and {why}")
    if not chosen.bundled:
        found |= dict.fromkeys(OF_OUR_SAVES, "only the bundled trainer is known to save so that it can be done")
    return {kind: found[kind] for kind in FaultKind if kind in found}


def follow(goes_on: Callable[[], bool], directory: Path, advance: Callable[[int], None]) -> bool:
    """Show progress until it ends; False when nothing has changed for too long."""
    known, deadline = None, time.monotonic() + LIMIT_SECONDS
    while goes_on():
        newest = oracle.last_metric(directory)
        advance(newest["step"] if newest else 0)
        if (found := _sizes_in(directory)) != known:
            known, deadline = found, time.monotonic() + LIMIT_SECONDS
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def _sizes_in(directory: Path) -> dict[str, int]:
    found = {}
    for name in os.listdir(directory):
        with contextlib.suppress(FileNotFoundError):  # it has just been renamed
            found[name] = (directory / name).lstat().st_size
    return found


def _baseline(console: Console, chosen: Settings, place: Path, final_step: int) -> Path:
    """The unbroken run, from an earlier campaign if it would be the same again."""
    made_with = baseline.facts(chosen)
    known = baseline.Baselines(place)
    if (found := known.find(made_with)) is not None:
        tell(
            console,
            f"1/3 baseline: {final_step} steps, as computed before with the same config, data, code and machine",
        )
        return found
    tell(console, f"1/3 baseline: {final_step} steps, nobody interferes")
    directory = known.begin(made_with)
    with (directory / "trainer.log").open("wb") as log, bar(console, "baseline", final_step) as advance:
        process = subprocess.Popen(
            baseline.command(chosen, directory), cwd=chosen.trainer.cwd, env=baseline.environment(chosen),
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            if not follow(lambda: process.poll() is None, directory, advance):
                process.kill()
            process.wait()
        except BaseException:
            process.terminate()  # nobody would look after it any more
            raise
        advance(final_step)
    if process.returncode != 0:
        raise UsageError(
            f"chaos: the baseline itself failed with {process.returncode}; see {directory / 'trainer.log'}"
        )
    known.finished(made_with)
    return directory


def _run_survivor(console: Console, chosen: Settings, plan: tuple[PlannedFault, ...], result: Result) -> None:
    """The supervised run with its faults, and what is known of it when it has ended."""
    with ExitStack() as stack:
        own = None
        directory = result.survivor
        if any(fault.kind in OWN_FILESYSTEM for fault in plan):
            own = stack.enter_context(filesystem.own_filesystem(result.folder))
            directory = result.folder / filesystem.PLACE / "survivor"
            stack.callback(shutil.copytree, directory, result.survivor)
        directory.mkdir()
        result.filesystem = mount_of(str(directory))[0]
        snapshots = oracle.Snapshots(directory.absolute(), oracle.names_of(chosen.pattern))
        done = _under_faults(console, chosen, plan, result, snapshots, own)
        records = Records(directory)
        result.outcomes = [judge(one, records) for one in done]
        result.problems += [*unplanned(done, records), *lost(done, snapshots, records)]
        run_id = json.loads((directory / ".lastgood" / "run.json").read_bytes())["run_id"]
        result.problems += [f"process {pid} was leaked" for pid in oracle.leaked(run_id)]
        held_back = {name for record in records("resume.refuted") for name in record["held_back"]}
        for path in snapshots.good_in_quarantine():
            if Path(path).name not in held_back:
                result.problems.append(f"{path} was set aside although it is good")


def _under_faults(
    console: Console,
    chosen: Settings,
    plan: tuple[PlannedFault, ...],
    result: Result,
    snapshots: oracle.Snapshots,
    own: filesystem.OwnFilesystem | None,
) -> list[Done]:
    """Do them one after the other, then wait for the end of the run."""
    directory, log = snapshots.directory, result.folder / "supervisor.log"
    sets = (f"checkpoints.dir={directory}", "log.format=json", "chaos.mean_seconds=null")
    words = [sys.executable, "-m", "supervisor", "run", result.asked.config]
    service = Service([*words, *(word for one in sets for word in ("--set", one))], log)
    longest = _silence(chosen) + chosen.trainer.grace_seconds + DEATH_SECONDS
    injector = Injector(snapshots, service.goes_on, service.revive, own, longest)
    done: list[Done] = []
    with contextlib.closing(service), bar(console, "under faults", result.final_step) as advance:
        try:
            for fault in plan:
                done.append(injector.inject(fault))
                console.print(f"  step {done[-1].step:>5}: {fault.kind}: {done[-1].proof}", soft_wrap=True)
                advance(done[-1].step)
        except (TooLateError, UndamagedError) as error:
            late = plan[len(done)]
            had_any = "the run had ended" if snapshots.look() else "no snapshot has come to LASTGOOD_CHECKPOINT_DIR"
            console.print(f"  {late.kind} at step {late.at_step} could not be done: {str(error) or had_any}")
        if not follow(service.goes_on, directory, advance):
            result.problems.append(f"nothing has changed in {directory} for {LIMIT_SECONDS:.0f} s")
    result.problems += [f"{fault.kind} at step {fault.at_step} was never done" for fault in plan[len(done) :]]
    if service.status != 0:
        result.problems.append(f"the supervisor ended with {service.status}; see {log}")
    return done


def _report(console: Console, result: Result) -> None:
    table = Table(title="what was done, and what followed")
    for title in ("fault", "at step", "chosen", "why", "steps lost", "time to resume"):
        numeric = title in ("at step", "steps lost", "time to resume")
        table.add_column(title, justify="right" if numeric else "left", no_wrap=title in ("fault", "chosen"))
    for one in result.outcomes:
        lost = "-" if one.steps_lost is None else str(one.steps_lost)
        resumed = "-" if one.seconds_to_resume is None else f"{one.seconds_to_resume:.2f} s"
        table.add_row(one.kind, str(one.step), one.chosen or "-", one.why, lost, resumed)
    console.print(table)
    starts = [one.standby for one in result.outcomes if one.standby is not None]
    console.print(f"from standby: {sum(starts)} of {len(starts)} restarts")
    for kind, why in result.left_out.items():
        console.print(f"left out: {kind}: {why}", soft_wrap=True)
    if result.exact is None:
        console.print("not compared bit for bit: only the bundled trainer computes the same twice")
    else:
        exact = result.exact
        console.print(
            f"steps compared: {exact.steps_compared} ({exact.lines_compared} losses, repeated steps included)"
        )
        console.print(f"largest difference in loss: {exact.largest_difference}")
        console.print(f"weights identical: {'yes' if exact.weights_identical else 'no'}")
    for problem in result.found:
        console.print(f"[red]problem:[/red] {problem}")
    console.print(f"again: {result.asked.command}", soft_wrap=True)
    console.print("[green]PASSED[/green]" if result.passed else "[red]FAILED[/red]")

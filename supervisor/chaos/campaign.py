"""A campaign: the run unbroken, the run again under faults, and the oracle's verdict, told as it goes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from supervisor import configuration, settings
from supervisor.chaos import oracle
from supervisor.chaos.inject import Done, Injector, TooLateError
from supervisor.chaos.plan import PlannedFault, draw
from supervisor.errors import UsageError
from supervisor.launch import arguments, check_program

MARK = "campaign.json"
LIMIT_SECONDS = 1800.0  # a campaign that takes longer is stuck, and says so
LOOK_SECONDS = 0.2
PLAIN_WIDTH = 120  # where there is no terminal to ask


def campaign(config: str, seed: int) -> int:
    """Run a campaign and print its report; returns 0 only when every check passed. Raises UsageError."""
    chosen = configuration.load(config, [])
    check_program(chosen, config)
    final_step = chosen.run.final_step
    if not chosen.bundled or final_step is None:
        raise UsageError(f"chaos: {config}: this version needs the bundled trainer and run.final_step")
    try:
        plan = draw(seed, final_step)
    except ValueError as error:
        raise UsageError(f"chaos: {config}: run.final_step: {error}") from None
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # so that what was started is ended
    folder = _folder(Path("out/chaos") / f"{chosen.run.name}-seed{seed}", config, seed)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    baseline, survivor = folder / "baseline", folder / "survivor"
    _tell(console, f"1/3 baseline: {final_step} steps, nobody interferes")
    _run_baseline(console, chosen, baseline, final_step)
    _tell(console, f"2/3 the same run under lastgood, with {len(plan)} faults from seed {seed}")
    status, done = _run_survivor(console, config, plan, survivor, final_step)
    _tell(console, "3/3 the oracle compares")
    findings = oracle.compare(baseline, survivor, final_step)
    findings.problems += _check_supervision(survivor, plan, done, status)
    _report(console, survivor, done, findings)
    return 0 if findings.passed else 1


def _tell(console: Console, text: str) -> None:
    console.print(f"[bold]{text}[/bold]" if console.is_terminal else text)


def _folder(folder: Path, config: str, seed: int) -> Path:
    """A campaign has a directory of its own, made anew; only what an earlier campaign made is removed."""
    if folder.exists():
        if not (folder / MARK).exists():
            raise UsageError(f"chaos: {folder} exists and is not a campaign's; move it away")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).write_text(json.dumps({"config": config, "seed": seed}) + "\n")
    return folder


@contextmanager
def _bar(console: Console, title: str, total: int) -> Iterator[Any]:
    """A progress bar over steps on a terminal; elsewhere nothing. Yields a function that takes the step."""
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=total)
        yield lambda step: progress.update(task, completed=step)


def _follow(process: subprocess.Popen[bytes], directory: Path, advance: Any) -> None:
    """Show progress until a process ends; one that takes too long is killed."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while process.poll() is None:
        newest = oracle.last_metric(directory)
        advance(newest["step"] if newest else 0)
        if time.monotonic() > deadline:
            process.kill()
        time.sleep(LOOK_SECONDS)


def _run_baseline(console: Console, chosen: settings.Settings, directory: Path, final_step: int) -> None:
    command = [*arguments(chosen, str(directory), None), f"--out_dir={directory.absolute()}", "--resume=never"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("LASTGOOD_")} | chosen.trainer.env
    directory.mkdir()
    with (directory / "trainer.log").open("wb") as log, _bar(console, "baseline", final_step) as advance:
        process = subprocess.Popen(command, cwd=chosen.trainer.cwd, env=env, stdout=log, stderr=subprocess.STDOUT)
        try:
            _follow(process, directory, advance)
        except BaseException:
            process.terminate()  # nobody would look after it any more
            raise
        advance(final_step)
    if process.returncode != 0:
        raise UsageError(
            f"chaos: the baseline itself failed with {process.returncode}; see {directory / 'trainer.log'}"
        )


def _run_survivor(
    console: Console, config: str, plan: tuple[PlannedFault, ...], directory: Path, final_step: int
) -> tuple[int, list[Done]]:
    """The supervised run with its faults; returns the supervisor's exit status and what was done."""
    directory.mkdir()
    command = [sys.executable, "-m", "supervisor", "run", config, "--set", f"checkpoints.dir={directory}"]
    done: list[Done] = []
    with (directory / "supervisor.log").open("wb") as log, _bar(console, "under faults", final_step) as advance:
        process = subprocess.Popen([*command, "--set", "log.format=json"], stdout=log, stderr=subprocess.STDOUT)
        injector = Injector(directory, lambda: process.poll() is None)
        try:
            try:
                for fault in plan:
                    done.append(injector.inject(fault))
                    console.print(f"  step {done[-1].step:>5}: {fault.kind}: {done[-1].proof}", soft_wrap=True)
                    advance(done[-1].step)
            except TooLateError:
                late = plan[len(done)]
                console.print(f"  too late for {late.kind} at step {late.at_step}: the run had ended")
            _follow(process, directory, advance)
        except BaseException:
            process.terminate()  # nobody would look after it any more
            raise
    return process.returncode, done


def _check_supervision(directory: Path, plan: tuple[PlannedFault, ...], done: list[Done], status: int) -> list[str]:
    """What the records and the system say against the supervisor; empty when nothing."""
    problems = [] if status == 0 else [f"the supervisor ended with {status}; see {directory / 'supervisor.log'}"]
    problems += [f"{fault.kind} at step {fault.at_step} was never done" for fault in plan[len(done) :]]
    problems += [f"{one.fault.kind} at step {one.step} is not proven to have happened" for one in done if not one.proof]
    exits = {record["fault"]: record for record in oracle.records(directory, "trainer.exited")}
    for one in done:
        said = exits.get(one.fault.id)
        if said is None or said["cause"] != "chaos":
            problems.append(
                f"the death by {one.fault.kind} at step {one.step} was put down to {said and said['cause']}"
            )
        if (chosen := _resumed_after(directory, one)) != one.expected:
            problems.append(f"after {one.fault.kind} at step {one.step}: resumed {chosen}, not {one.expected}")
    run_id = json.loads((directory / ".lastgood" / "run.json").read_bytes())["run_id"]
    problems += [f"process {pid} was leaked" for pid in oracle.leaked(run_id)]
    problems += [f"{path} was set aside although it is good" for path in oracle.good_in_quarantine(directory)]
    return problems


def _spawn_after(directory: Path, one: Done) -> dict[str, Any] | None:
    """The record of the trainer that was started after a fault's death."""
    death = next((r for r in oracle.records(directory, "trainer.exited") if r["fault"] == one.fault.id), None)
    spawned = oracle.records(directory, "trainer.spawned")
    return next((r for r in spawned if death is not None and r["incarnation"] == death["incarnation"] + 1), None)


def _resumed_after(directory: Path, one: Done) -> str | None:
    spawned = _spawn_after(directory, one)
    return None if spawned is None else str(spawned["resumed_from"])


def _why(directory: Path, one: Done) -> str:
    """Why the chosen one was chosen, in the supervisor's own words."""
    spawned = _spawn_after(directory, one)
    if spawned is None:
        return "-"
    for fallback in oracle.records(directory, "fallback.chosen"):
        if fallback["incarnation"] == spawned["incarnation"]:
            return "; ".join(f"{r['name']} {r['verdict']}" for r in fallback["rejected"])
    return f"newest, proof {spawned['proof']}"


def _seconds_to_resume(directory: Path, one: Done) -> float | None:
    """From the fault to the first finished step of the next trainer."""
    spawned = _spawn_after(directory, one)
    if spawned is None:
        return None
    lines = (m for m in oracle.metrics(directory) if m["incarnation"] == spawned["incarnation"])
    first = next(lines, None)
    return None if first is None else first["time"] - one.at


def _report(console: Console, directory: Path, done: list[Done], findings: oracle.Findings) -> None:
    table = Table(title="what was done, and what followed")
    for title in ("fault", "at step", "chosen", "why", "steps lost", "time to resume"):
        numeric = title in ("at step", "steps lost", "time to resume")
        table.add_column(title, justify="right" if numeric else "left", no_wrap=title in ("fault", "chosen"))
    for one in done:
        spawned = _spawn_after(directory, one)
        seconds = _seconds_to_resume(directory, one)
        lost = "-" if spawned is None or spawned["step"] is None else str(one.step - spawned["step"])
        table.add_row(
            str(one.fault.kind),
            str(one.step),
            "-" if spawned is None else str(spawned["resumed_from"]),
            _why(directory, one),
            lost,
            "-" if seconds is None else f"{seconds:.2f} s",
        )
    console.print(table)
    console.print(
        f"steps compared: {findings.steps_compared} ({findings.lines_compared} losses, repeated steps included)"
    )
    console.print(f"largest difference in loss: {findings.largest_difference}")
    console.print(f"weights identical: {'yes' if findings.weights_identical else 'no'}")
    for problem in findings.problems:
        console.print(f"[red]problem:[/red] {problem}")
    console.print("[green]PASSED[/green]" if findings.passed else "[red]FAILED[/red]")

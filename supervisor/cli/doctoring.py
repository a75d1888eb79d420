"""`lastgood doctor`: what on this machine would hurt a run, each with its cure."""

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from supervisor.cli.directory import Meant, named
from supervisor.cli.snapshots import AsJson
from supervisor.cli.text import printable, shown
from supervisor.probes import Finding, Level

_COLOURS = {Level.HURTS: "red", Level.NOTE: "yellow", Level.FINE: "green"}


def doctor(
    place: Annotated[
        str | None, typer.Argument(metavar="[DIR|CONFIG]", help="A checkpoint directory, or a run's YAML file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what on this machine would hurt a run, with the cure.

    Small files are written to DIR and removed.

    Without DIR the current folder is looked at. Exit 0: nothing hurts; 1: something does; 2: usage.
    """
    findings: list[Finding] = []
    for finding in findings_about(place):
        findings.append(finding)
        if not as_json:
            typer.echo(_line(finding))
    if as_json:
        typer.echo(json.dumps([_fields(finding) for finding in findings], indent=1))
    sys.exit(int(any(finding.level is Level.HURTS for finding in findings)))


def _line(finding: Finding) -> str:
    level = typer.style(f"{finding.level:<6}", fg=_COLOURS[finding.level])
    cure = f"; {printable(finding.cure)}" if finding.cure else ""
    return f"{level} {finding.probe:<11} {printable(finding.found)}{cure}"


def _fields(finding: Finding) -> dict[str, str | None]:
    return {
        "probe": finding.probe,
        "level": str(finding.level),
        "found": printable(finding.found),
        "cure": printable(finding.cure) or None,
    }


def findings_about(place: str | None) -> Iterator[Finding]:
    """What every probe finds, for the run at `place` or the current folder. Raises UsageError."""
    from supervisor import probes, supervisors
    from supervisor.adapters import cgroup, surroundings

    meant = Meant(os.curdir) if place is None else named("doctor", place)
    cgroups = _cgroups(meant.directory)
    unit = supervisors.unit_in(cgroups)
    yield probes.kernel(os.uname().release, surroundings.has_pidfd())
    yield probes.open_files(surroundings.open_files_limit())
    yield probes.cgroup(unit, cgroup.delegated(cgroups, unit is not None) is not None)
    yield probes.oom_kills(cgroup.OomCounter(None, cgroups).risen() is not None)
    yield probes.name_clash(surroundings.version_of("supervisor"))
    yield probes.torch(surroundings.version_of("torch"), meant.bundled)
    yield from _about_folder(meant.directory, meant.pattern)


def _about_folder(directory: str, pattern: str | None) -> Iterator[Finding]:
    from supervisor import probes
    from supervisor.adapters import space, surroundings

    folder = _existing(directory)
    where = shown(folder)
    tried = surroundings.try_folder(folder)
    newest = _newest(directory, pattern)
    limits = [surroundings.inotify_limit(f"max_user_{name}") for name in ("watches", "instances")]
    yield probes.filesystem(where, *surroundings.mount_of(folder))
    yield probes.acts(where, tried.problems)
    yield probes.inotify(_watch_state(folder), *limits)
    yield probes.space(where, *space.room(folder), None if newest is None else newest[0])
    yield probes.clock(tried.offset_seconds, None if newest is None else newest[1] - time.time())
    yield probes.reflink(where, tried.reflink)


def _existing(directory: str) -> str:
    """The folder itself, or before it is made the one in which it will be."""
    while not os.path.isdir(directory):
        directory = os.path.dirname(os.path.abspath(directory))
    return directory


def _newest(directory: str, pattern: str | None) -> tuple[int, float] | None:
    """Size in bytes and time of the newest snapshot, or None without one."""
    from lastgood import rungs

    try:
        found = rungs.scan(directory, pattern)
    except OSError:
        return None
    return (found[0].identity.size, found[0].mtime_ns / 1e9) if found else None


def _watch_state(folder: str) -> str:
    from supervisor.adapters.watcher import Watcher

    watcher = Watcher(folder, lambda _name: None)
    try:
        return watcher.state
    finally:
        watcher.close()


def _cgroups(directory: str) -> str:
    """The control groups of the directory's supervisor, without one those of this process."""
    from supervisor import supervisors
    from supervisor.adapters import statefile

    told = statefile.holder(directory)
    found = None if told is None else supervisors.supervisor_of(directory, told)
    return supervisors.cgroups_of(os.getpid() if found is None else found.pid)

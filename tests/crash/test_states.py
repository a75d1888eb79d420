"""Every state that a power cut could leave of saves, prunings and removals on a filesystem that keeps POSIX and no more."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from lastgood.naming import partial_of, snapshot_name, step_in_name
from lastgood.publish import sweep
from lastgood.rungs import Rung, judge, latest_healthy, scan
from lastgood.seal import SEAL_SUFFIX
from tests.crash import mutants, operations
from tests.crash.checks import FIRST, OVERWRITE, PRUNE, REMOVE, Case
from tests.crash.server import Server
from tests.crash.states import ACKNOWLEDGED, Disk, Files, cuts
from tests.crash.tracer import CHANGING, Call, Outcome, Plan

RUN = Case(operations.a_run, {}, ({}, {3: 1, 4: 1}))
STATES_LEAST = {FIRST: 2000, OVERWRITE: 2000, PRUNE: 2000, REMOVE: 5, RUN: 700}

Version = tuple[int, int]
"""A step, and which writing of it."""


@dataclass
class Record:
    """What an operation did to the files of a checkpoint directory, and every whole snapshot there ever was, by its bytes."""

    before: Files
    calls: list[Call]
    versions: dict[bytes, Version]

    def after(self) -> Files:
        """The files in the end, as the calls left them; learns the snapshots that were published on the way."""
        disk = Disk.holding(self.before)
        writings = dict(self.versions.values())
        for call in self.calls:
            if call.name != "stat":
                disk.do(call)
            step = step_in_name(call.target)
            if call.name == "rename" and step is not None and call.target == snapshot_name(step):
                writings[step] = writings.get(step, 0) + 1
                self.versions[disk.names[call.target].content] = (step, writings[step])
        return {name: file.content for name, file in disk.names.items()}


def contents(run: str | Path) -> Files:
    return {entry.name: Path(entry).read_bytes() for entry in os.scandir(run) if entry.is_file()}


def record(server: Server, case: Case, quick_path: Path) -> Record:
    """Watch the operation once, and make sure that the record explains what is there in the end."""
    template, folder = case.template(quick_path / "template"), str(quick_path / "recorded")
    before = contents(operations.run_of(template)) if case.before else {}
    plan = Plan(record=True, quick=False, kinds=CHANGING | {"stat"})
    (trial,) = server.trials(case.operation, [folder], [plan], template)
    assert Outcome() == trial.outcome
    versions = {before[snapshot_name(step)]: (step, writing) for step, writing in case.before.items()}
    made = Record(before, [call for call in map(in_run, trial.calls) if counts(call)], versions)
    assert contents(operations.run_of(folder)) == made.after()
    if case is not RUN and case is not REMOVE:
        newest = max(made.versions.values())
        made.calls.append(Call("stat", f"{ACKNOWLEDGED}{newest[0]}.{newest[1]}"))
    return made


def in_run(call: Call) -> Call:
    """The same call, with paths as they are in the checkpoint directory."""
    return replace(call, path=call.path.removeprefix("run/"), target=call.target.removeprefix("run/"))


def counts(call: Call) -> bool:
    """Whether it is an acknowledgement, or changes what a snapshot is. Making folders and what is in ours is not."""
    return call.path.startswith(ACKNOWLEDGED) or (
        call.name in CHANGING - {"mkdir"} and not call.path.startswith(".lastgood/")
    )


class Folder:
    """A checkpoint directory that is made to hold one state after the other."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = path
        self._files: Files = {}

    def become(self, files: Files) -> None:
        """Hold just these files; what differs is a new file, so that identities change too."""
        for name in [name for name in self._files if self._files[name] != files.get(name)]:
            (self.path / name).unlink()
            del self._files[name]
        for name in files.keys() - self._files.keys():
            (self.path / name).write_bytes(files[name])
            self._files[name] = files[name]

    def forget(self) -> None:
        """Look again at what is there, after somebody else changed it."""
        self._files = contents(self.path)


@dataclass
class Checker:
    """Says what is lost or wrongly chosen in a state. `known` are the versions acknowledged by then."""

    folder: Folder
    versions: dict[bytes, Version]
    _proven: dict[tuple[str, bytes, bytes | None], bool] = field(default_factory=dict)

    def wrong_with(self, files: Files, known: set[Version]) -> str | None:
        """One sentence, or None when all is well."""
        self.folder.become(files)
        held, wrong = self._held(files)
        if wrong is not None:
            return wrong
        two = sorted(dict(sorted(known)).items(), reverse=True)[:2]
        if len(held) < len(two) or any(there < owed for there, owed in zip(held, two, strict=False)):
            return f"of {two} there is only {held}"
        chosen = latest_healthy(self.folder.path)
        if (None if chosen is None else self.versions[files[chosen.name]]) != max(held, default=None):
            return f"{chosen} is chosen; there is {held}"
        return None

    def _held(self, files: Files) -> tuple[list[Version], str | None]:
        """The versions proven good, newest first, and what is wrong with that."""
        rungs = scan(self.folder.path)
        names = {snapshot_name(step) for step, _ in self.versions.values()}
        if strangers := {rung.name for rung in rungs} - names:
            return [], f"{strangers} are candidates"
        proven = [rung.name for rung in rungs if self._is_proven(rung, files)]
        if damaged := [name for name in proven if files[name] not in self.versions]:
            return [], f"{damaged} are taken for good"
        return sorted((self.versions[files[name]] for name in proven), reverse=True), None

    def _is_proven(self, rung: Rung, files: Files) -> bool:
        """The library's verdict, asked for once for the same bytes under the same seal."""
        key = (rung.name, files[rung.name], files.get(rung.name + SEAL_SUFFIX))
        if key not in self._proven:
            verdict = judge(rung).verdict
            self._proven[key] = verdict is not None and verdict.proven
        return self._proven[key]

    def wrong_after_a_sweep(self, files: Files, known: set[Version]) -> str | None:
        """The next writer sweeps: that takes every partial, the seals of what is gone, and nothing that is good."""
        self.folder.become(files)
        before = self._held(files)
        sweep(self.folder.path)
        self.folder.forget()
        after = contents(self.folder.path)
        if left := [name for name in after if partial_of(name)]:
            return f"{left} are left after a sweep"
        names = {snapshot_name(step) for step, _ in known}
        if lonely := [name for name in names if name not in after and name + SEAL_SUFFIX in after]:
            return f"of {lonely} the seal is left after a sweep"
        there = self._held(after)
        return None if before == there else f"a sweep made {there} of {before}"


def findings(made: Record, folder: Path) -> Iterator[str | None]:
    """For every state what is wrong in it, or None."""
    checker = Checker(Folder(folder), made.versions)
    swept = set[tuple[int, frozenset[str]]]()
    first = {version for content, version in made.versions.items() if content in made.before.values()}
    for number, (files, told) in enumerate(cuts(made.before, made.calls)):
        known = first | {version_of(text) for text in told}
        wrong = checker.wrong_with(files, known)
        if wrong is None and (len(told), frozenset(files)) not in swept:
            swept.add((len(told), frozenset(files)))
            wrong = checker.wrong_after_a_sweep(files, known)
        yield wrong and f"state {number}, {sorted((name, len(files[name])) for name in files)}: {wrong}"


def version_of(text: str) -> Version:
    step, _, writing = text.partition(".")
    return int(step), int(writing)


@pytest.mark.parametrize("case", STATES_LEAST, ids=str)
def test_no_state_after_a_power_cut_loses_what_was_acknowledged(case: Case, server: Server, quick_path: Path) -> None:
    """In every state the two newest acknowledged snapshots or newer ones are proven, and the newest proven one is chosen."""
    found = list(findings(record(server, case, quick_path), quick_path / "state"))

    assert [] == [wrong for wrong in found if wrong is not None]
    assert len(found) >= STATES_LEAST[case]


@pytest.mark.parametrize(
    ("mutant", "case"),
    [
        (mutants.no_file_fsync, FIRST),
        (mutants.no_folder_fsync, FIRST),
        (mutants.seal_after_data, OVERWRITE),
        (mutants.seal_not_durable_before_data, OVERWRITE),
        (mutants.removal_not_synced, REMOVE),
    ],
)
def test_an_operation_without_one_of_its_steps_is_caught(
    mutant: Callable[[], None], case: Case, server: Server, quick_path: Path
) -> None:
    """Each step is there for a state that is lost without it."""
    broken = replace(case, operation=mutants.mutated(mutant, case.operation))

    assert any(findings(record(server, broken, quick_path), quick_path / "state"))

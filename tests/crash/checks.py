"""What must hold after a crash, said with the library's own scan, verdicts and loading."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from lastgood.checkpoint import load_verified, safe_load_checkpoint
from lastgood.contract import LEDGER_FILE, WRITER_LOCK
from lastgood.naming import partial_of, snapshot_name
from lastgood.rungs import judge, latest_healthy, scan
from lastgood.seal import SEAL_SUFFIX, seal_path
from lastgood.verdict import Kind, Proof
from supervisor.adapters import places, statefile
from tests.crash import operations
from tests.crash.conftest import NewFolder
from tests.crash.server import Server
from tests.crash.tracer import Plan, Prepare

LAST_STEP = 99

Found = dict[int, int]
"""The snapshots of a checkpoint directory: step, and which writing of it."""


@dataclass(frozen=True, eq=False)
class Case:
    """An operation, the snapshots before it, and every set that may be there when it is cut, in order.

    Once it has returned, it must have come to the last of them. `more` changes what is there before. `unsealed` are the
    steps that need no seal. `examine` says what is there after a crash, where that is not just snapshots.
    """

    operation: Prepare
    before: Found
    states: tuple[Found, ...]
    more: Callable[[str], object] = field(default=lambda folder: None)
    unsealed: frozenset[int] = frozenset()
    examine: "Examine | None" = None

    @property
    def only_if_said_so(self) -> Found | None:
        """What must not be there after an error, unless it says that it may be: new bytes under an old name."""
        return self.states[1] if self.states[1].keys() == self.before.keys() else None

    def __str__(self) -> str:
        return getattr(self.operation, "__name__", "?")

    def template(self, folder: Path) -> str:
        """Lay out what is there before."""
        folder.mkdir()
        for step, writing in self.before.items():
            operations.write_snapshot(str(folder), step, writing)
        self.more(str(folder))
        return str(folder)

    def examiner(self) -> "Examine":
        """What is asked about each directory after a crash."""
        return self.examine or Examiner(self.unsealed).examine


FIRST = Case(operations.first_save, {}, ({}, {1: 1}))
OVERWRITE = Case(operations.overwrite, {1: 1, 2: 1}, ({1: 1, 2: 1}, {1: 1, 2: 2}))
OVERWRITE_UNSEALED = Case(
    operations.overwrite_unsealed,
    OVERWRITE.before,
    OVERWRITE.states,
    lambda folder: operations.drop_seal(folder, 2),
    frozenset({2}),
)
PRUNE = Case(operations.save_and_prune, {1: 1, 2: 1}, ({1: 1, 2: 1}, {1: 1, 2: 1, 3: 1}, {2: 1, 3: 1}))
BEHIND = Case(operations.save_behind_and_prune, PRUNE.before, PRUNE.states)
AGAIN = Case(operations.save_until_it_works, PRUNE.before, PRUNE.states)
REMOVE = Case(operations.remove, {1: 1, 2: 1, 3: 1}, ({1: 1, 2: 1, 3: 1}, {2: 1, 3: 1}))
SAVES = [FIRST, OVERWRITE, OVERWRITE_UNSEALED, PRUNE, BEHIND]


def snapshots(run: str | Path, unsealed: Collection[int] = ()) -> Found:
    """The candidates, each proven good and exactly as one writing of it was, and the newest of them chosen."""
    found = {}
    for rung in (judge(rung) for rung in scan(run)) if os.path.isdir(run) else ():
        assert rung.verdict is not None
        assert rung.step is not None
        sealed = rung.step not in unsealed or os.path.exists(seal_path(rung.path))
        good = (Kind.HEALTHY, Proof.SEAL) if sealed else (Kind.INTACT, Proof.CRC)
        assert good == (rung.verdict.kind, rung.verdict.proof), (rung.name, rung.verdict.reason)
        found[rung.step] = writing_of(load_verified(rung.path), rung.step)
    newest = Path(run) / snapshot_name(max(found)) if found else None
    assert newest == latest_healthy(run), found
    if newest is not None:
        assert max(found) == safe_load_checkpoint(run)["iter_num"]
    return found


def writing_of(payload: object, step: int) -> int:
    """Which writing of a step a payload is; fails when it is not exactly one of them."""
    assert isinstance(payload, dict)
    assert step == payload["iter_num"]
    weights = payload["model"]["weights"]
    writing = round((float(weights[0]) - step) * 10)
    assert torch.equal(operations.model(step, writing).state_dict()["weights"], weights)
    return writing


def the_next_save_works(run: str | Path, found: Found, unsealed: Collection[int] = ()) -> None:
    """A new process saves one more, keeps the two newest, and leaves nothing else behind."""
    seals = {snapshot_name(step) + SEAL_SUFFIX for step in unsealed} - set(os.listdir(run) if found else ())
    operations.save(run, LAST_STEP)
    kept = dict(sorted({**found, LAST_STEP: 1}.items())[-2:])
    expected = {snapshot_name(step) + suffix for step in kept for suffix in ("", SEAL_SUFFIX)}

    assert kept == snapshots(run, unsealed)
    assert expected - seals == set(os.listdir(run)) - {".lastgood"}, os.listdir(run)
    assert not [name for _, _, names in os.walk(run) for name in names if partial_of(name)]


_OF_ONE_PROCESS = re.compile(r"\.partial-\d+-[0-9a-f]{8}$")

Signature = tuple[tuple[str, str], ...]


def signature(run: str | Path) -> Signature:
    """Every file below a directory with its content, apart from process ids and inodes. Nobody reads what a partial holds."""
    found = []
    for folder, _, names in os.walk(run):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                content = b"" if name in (WRITER_LOCK, LEDGER_FILE) or partial_of(name) else file.read()
            found.append(
                (_OF_ONE_PROCESS.sub(".partial", os.path.relpath(path, run)), hashlib.sha256(content).hexdigest())
            )
    return tuple(sorted(found))


Examine = Callable[[str], Found | str]
"""Given a checkpoint directory: what is there, or what is wrong. Uses the directory up."""


@dataclass
class Examiner:
    """Examines directories after a crash, each state of their files once: it is the same finding again, and quicker."""

    unsealed: frozenset[int] = frozenset()
    _known: dict[Signature, Found | str] = field(default_factory=dict)

    def examine(self, run: str) -> Found | str:
        """The snapshots in a directory in which the next save works, as was tried."""
        seen = signature(run)
        if seen not in self._known:
            self._known[seen] = self._examined(run)
        return self._known[seen]

    def _examined(self, run: str) -> Found | str:
        with _told() as wrong:
            found = snapshots(run, self.unsealed)
            the_next_save_works(run, found, self.unsealed)
        return wrong[0] if wrong else found


@contextmanager
def _told() -> Iterator[list[str]]:
    """What fails inside is put down and not raised."""
    wrong: list[str] = []
    try:
        yield wrong
    except (AssertionError, OSError, RuntimeError, ValueError) as error:
        wrong.append(f"{type(error).__name__}: {error}")


def set_aside_or_not(run: str) -> Found | str:
    """The snapshots in sight; the other one must be in quarantine, whole, with the reason. btrfs may keep both its names."""
    with _told() as wrong:
        copies = list(Path(run).rglob(snapshot_name(2)))
        assert {1} == {writing_of(load_verified(copy), 2) for copy in copies}
        places.drop_orphaned_seals(run)
        found = snapshots(run)
        assert 2 in found or json.loads(copies[0].with_name("reason.json").read_bytes())
    return wrong[0] if wrong else found


def remembered(run: str) -> Found | str:
    """The high water that run.json tells, as if it were a step; 0 for none."""
    with _told() as wrong:
        known = statefile.read_run(run, 0.0)
        assert known is not None
    return wrong[0] if wrong else {known.memory.high_water or 0: 1}


def first_run_json(folder: str) -> None:
    statefile.prepare(operations.run_of(folder))
    statefile.write_run(operations.run_of(folder), statefile.RunFile("the-run"), 0.0)


SET_ASIDE = Case(operations.set_aside, {1: 1, 2: 1}, ({1: 1, 2: 1}, {1: 1}), examine=set_aside_or_not)
WRITE_RUN = Case(operations.write_run, {1: 1}, ({0: 1}, {2: 1}), first_run_json, examine=remembered)


def kills(server: Server, operation: Prepare, template: str, new_folder: NewFolder) -> Iterator[tuple[str, bool]]:
    """Each folder in which the operation was killed before a call, every call once; the last time after it had returned."""
    (counted,) = server.trials(operation, [new_folder()], [Plan()], template)
    assert counted.outcome is not None
    assert not counted.outcome.error, counted.outcome.text
    points = len(counted.calls)
    assert points > 0
    for at in range(points + 1):
        folder = new_folder()
        (trial,) = server.trials(operation, [folder], [Plan("kill", at=at)], template)
        assert trial.killed, trial
        assert [at] == trial.fired
        assert at == points or counted.calls[at].name == trial.calls[at].name
        assert (at == points) == (trial.outcome is not None)
        yield folder, at == points

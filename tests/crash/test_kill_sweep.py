"""SIGKILL at every system call that changes something: of saves, of pruning, and of the supervisor's own files."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lastgood import publish as publishing
from lastgood.contract import STATE_DIR
from lastgood.ledger import Ledger
from lastgood.naming import partial_of, snapshot_name
from lastgood.seal import Identity, Seal, read_bound_seal, seal_path
from supervisor.adapters import places, statefile
from tests.crash import mutants, operations
from tests.crash.checks import (
    FIRST,
    OVERWRITE,
    PRUNE,
    REMOVE,
    SAVES,
    Case,
    Examiner,
    Found,
    kills,
    signature,
    snapshots,
)
from tests.crash.conftest import NewFolder
from tests.crash.server import Server

pytestmark = pytest.mark.usefixtures("no_waiting")


def findings(server: Server, case: Case, quick_path: Path, new_folder: NewFolder) -> Iterator[tuple[Found | str, bool]]:
    """What was found after each kill, or what was wrong; and whether that was in order."""
    examiner = Examiner(case.unsealed)
    for folder, returned in kills(server, case.operation, case.template(quick_path / "template"), new_folder):
        found = examiner.examine(operations.run_of(folder))
        yield found, found in (case.states[-1:] if returned else case.states)


@pytest.mark.parametrize("case", [*SAVES, REMOVE], ids=str)
def test_a_save_or_a_removal_killed_anywhere_leaves_old_or_new(
    case: Case, server: Server, quick_path: Path, new_folder: NewFolder
) -> None:
    """All candidates are good and exactly old or new, none is missing, and the next save works and leaves no partial."""
    met = list(findings(server, case, quick_path, new_folder))

    assert [] == [(at, found) for at, (found, is_right) in enumerate(met) if not is_right]
    assert list(case.states) == [found for at, (found, _) in enumerate(met) if at == 0 or met[at - 1][0] != found]


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", [FIRST, OVERWRITE, PRUNE], ids=str)
def test_a_start_after_a_kill_may_be_killed_anywhere_too(
    case: Case, server: Server, quick_path: Path, new_folder: NewFolder
) -> None:
    """From every state that a kill leaves, the next save with its sweep is killed at each call, and the one after it works."""
    left: dict[object, tuple[str, Found]] = {}
    for folder, _ in kills(server, case.operation, case.template(quick_path / "template"), new_folder):
        run = operations.run_of(folder)
        left.setdefault(signature(run), (folder, snapshots(run)))
    assert len(left) > 5
    examiner = Examiner()
    for folder, found in left.values():
        there = {**found, operations.NEXT_STEP: 1}
        pruned = [dict(sorted(there.items())[number:]) for number in range(max(len(there) - 1, 1))]
        for again, returned in kills(server, operations.next_save, folder, new_folder):
            assert examiner.examine(operations.run_of(again)) in (pruned[-1:] if returned else [found, *pruned])


@pytest.mark.parametrize(
    ("mutant", "case"),
    [
        (mutants.seal_after_data, OVERWRITE),
        (mutants.written_in_place, OVERWRITE),
        (mutants.seal_removed_first, REMOVE),
    ],
)
def test_steps_in_another_order_are_caught(
    mutant: Callable[[], None], case: Case, server: Server, quick_path: Path, new_folder: NewFolder
) -> None:
    """Each order is kept for a kill between two of its steps."""
    broken = replace(case, operation=mutants.mutated(mutant, case.operation))

    assert not all(is_right for _, is_right in findings(server, broken, quick_path, new_folder))


def test_a_sweep_that_cannot_be_cut_short_is_caught(
    server: Server, quick_path: Path, new_folder: NewFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were a missing seal an error to the sweep, a removal killed halfway would end every later save."""
    monkeypatch.setattr(publishing, "remove_if_there", os.unlink)

    assert not all(is_right for _, is_right in findings(server, REMOVE, quick_path, new_folder))


def litter(folder: str) -> None:
    """What writers killed at various points left: of a first save, of a seal, of an overwrite and of a removal."""
    run = Path(operations.run_of(folder))
    for name in (
        f".{snapshot_name(3)}.partial-99-01234567",
        f"{snapshot_name(3)}.sha256",
        f".{snapshot_name(2)}.sha256.partial-99-01234568",
        f".{snapshot_name(1)}.partial-99-01234569",
        f".{snapshot_name(4)}.partial-99-0123456a",
    ):
        (run / name).write_bytes(b"0" * 5000)


def test_a_sweep_killed_anywhere_goes_on_next_time(server: Server, quick_path: Path, new_folder: NewFolder) -> None:
    """What is good stays, nothing left over is a candidate, and the next writer's sweep finishes."""
    case = Case(operations.sweep, {1: 1, 2: 1}, ({1: 1, 2: 1},), litter)
    examiner = Examiner()
    for folder, returned in kills(server, case.operation, case.template(quick_path / "template"), new_folder):
        partials = [name for name in os.listdir(operations.run_of(folder)) if partial_of(name)]

        assert not returned or not partials
        assert case.before == examiner.examine(operations.run_of(folder))


@pytest.fixture
def two_snapshots(quick_path: Path) -> str:
    """A folder with two snapshots and a supervisor's files."""
    folder = str(quick_path / "template")
    operations.write_snapshot(folder, 1)
    operations.write_snapshot(folder, 2)
    statefile.prepare(operations.run_of(folder))
    statefile.write_run(operations.run_of(folder), statefile.RunFile("the-run"), 0.0)
    return folder


def test_run_json_killed_anywhere_is_old_or_new_and_whole(
    two_snapshots: str, server: Server, new_folder: NewFolder
) -> None:
    """The run is remembered as it was or as it is now, and the next supervisor sweeps what the killed one left."""
    met = []
    for folder, returned in kills(server, operations.write_run, two_snapshots, new_folder):
        run = operations.run_of(folder)
        remembered = statefile.read_run(run, 0.0)
        os.close(statefile.lock(run))

        assert remembered is not None
        assert "the-run" == remembered.run_id
        assert not [name for name in os.listdir(os.path.join(run, STATE_DIR)) if partial_of(name)]
        met.append(remembered.memory.high_water)
        assert not returned or met[-1] == 2
    assert [None, 2] == sorted(set(met), key=str, reverse=True)


def test_setting_aside_killed_anywhere_loses_no_byte(two_snapshots: str, server: Server, new_folder: NewFolder) -> None:
    """The snapshot is whole in sight or in quarantine, the other one is untouched, and a new one of that name is welcome."""
    good = Path(operations.run_of(two_snapshots), snapshot_name(2)).read_bytes()
    for folder, returned in kills(server, operations.set_aside, two_snapshots, new_folder):
        run = Path(operations.run_of(folder))
        copies = list(run.rglob(snapshot_name(2)))
        places.drop_orphaned_seals(str(run))

        assert [good] == [path.read_bytes() for path in copies]
        in_sight = run / snapshot_name(2) in copies
        assert not (in_sight and returned)
        assert ({1: 1, 2: 1} if in_sight else {1: 1}) == snapshots(run)
        if in_sight:
            places.set_aside(str(run), snapshot_name(2), {"reason": "again"})
        else:
            assert os.path.exists(copies[0].with_name("reason.json"))
        operations.write_snapshot(folder, 2, 2)
        assert {1: 1, 2: 2} == snapshots(run)


@pytest.mark.parametrize("full", [False, True])
def test_a_ledger_killed_anywhere_remembers_right_or_nothing(
    full: bool, two_snapshots: str, server: Server, new_folder: NewFolder
) -> None:
    """A verdict is remembered as it was given or not at all, and the next one is taken."""
    template = operations.run_of(two_snapshots)
    if full:  # then it is written anew
        Path(template, STATE_DIR, "ledger").write_text("{}\n" * 20_000)
    met = []
    for folder, returned in kills(server, operations.remember, two_snapshots, new_folder):
        path = os.path.join(operations.run_of(folder), snapshot_name(1))
        identity, verdict = operations.verdict_of(path)
        remembered = Ledger(operations.run_of(folder)).get(path, identity)
        met.append(remembered)
        operations.remember(folder)()

        assert remembered in ((verdict,) if returned else (None, verdict))
        assert verdict == Ledger(operations.run_of(folder)).get(path, identity)
    assert [None] * (len(met) - 1) == met[:-1]


def test_a_supervisors_seal_killed_anywhere_is_right_or_none(
    two_snapshots: str, server: Server, new_folder: NewFolder
) -> None:
    """Whoever reads it finds the digest of the bytes or no seal, and the next attempt seals."""
    os.unlink(seal_path(os.path.join(operations.run_of(two_snapshots), snapshot_name(2))))
    met = []
    for folder, returned in kills(server, operations.seal_for_others, two_snapshots, new_folder):
        path = os.path.join(operations.run_of(folder), snapshot_name(2))
        identity, verdict = operations.verdict_of(path)
        met.append(read_bound_seal(path, identity))
        assert operations.seal_for_others(folder)() is not None

        assert verdict.sha256 is not None
        assert met[-1] in ((Seal(verdict.sha256),) if returned else (None, Seal(verdict.sha256)))
        assert Seal(verdict.sha256) == read_bound_seal(path, Identity.of(os.stat(path)))
    assert None in met

"""Sealing by hand and snapshots that are folders: SIGKILL and every error at every system call that changes something."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lastgood.contract import SEAL_SUFFIX
from lastgood.judging import verify
from lastgood.naming import partial_of, snapshot_name
from lastgood.publish import sweep
from lastgood.rungs import scan
from lastgood.verdict import Kind
from tests.crash import operations
from tests.crash.checks import kills
from tests.crash.conftest import NewFolder
from tests.crash.server import Server
from tests.crash.test_error_sweep import ERRNOS
from tests.crash.tracer import ACTING, Plan, Prepare

pytestmark = pytest.mark.usefixtures("no_waiting")


def an_unsealed_file(folder: str) -> str:
    """Lay one out; its name."""
    operations.write_snapshot(folder, 2)
    operations.drop_seal(folder, 2)
    return snapshot_name(2)


def an_unsealed_folder(folder: str) -> str:
    """Lay one out; its name."""
    operations.write_folder(folder)
    return operations.FOLDER


def a_sealed_folder(folder: str) -> str:
    """Lay one out; its name."""
    operations.write_folder(folder)
    operations.seal_a_folder(folder)()
    return operations.FOLDER


SEALING = [
    pytest.param(operations.seal_by_hand, an_unsealed_file, Kind.INTACT, id="file"),
    pytest.param(operations.seal_a_folder, an_unsealed_folder, Kind.UNPROVEN, id="folder"),
]


def bytes_of(path: str) -> list[bytes]:
    """Everything in a file, or in a folder's files."""
    files = [Path(path)] if os.path.isfile(path) else sorted(p for p in Path(path).rglob("*") if p.is_file())
    return [file.read_bytes() for file in files]


@pytest.mark.parametrize(("operation", "lay_out", "unsealed"), SEALING)
def test_a_seal_killed_anywhere_is_right_or_none(
    operation: Prepare,
    lay_out: Callable[[str], str],
    unsealed: Kind,
    server: Server,
    quick_path: Path,
    new_folder: NewFolder,
) -> None:
    """The snapshot is as good as it was or healthy, its bytes are untouched, and the next attempt seals and can be swept."""
    template = str(quick_path / "template")
    name = lay_out(template)
    good = bytes_of(os.path.join(operations.run_of(template), name))
    met = []
    for folder, returned in kills(server, operation, template, new_folder):
        run = operations.run_of(folder)
        path = os.path.join(run, name)
        met.append(verify(path).kind)
        assert met[-1] in ((Kind.HEALTHY,) if returned else (unsealed, Kind.HEALTHY))
        operation(folder)()

        assert Kind.HEALTHY is verify(path).kind
        assert good == bytes_of(path)
        sweep(run)
        assert {name, name + SEAL_SUFFIX} == set(os.listdir(run)) - {".lastgood"}
    assert {unsealed, Kind.HEALTHY} == set(met)


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for-good"])
@pytest.mark.parametrize(("operation", "lay_out", "unsealed"), SEALING)
def test_a_seal_that_meets_an_error_says_so(
    operation: Prepare,
    lay_out: Callable[[str], str],
    unsealed: Kind,
    sticky: bool,
    server: Server,
    quick_path: Path,
    new_folder: NewFolder,
) -> None:
    """It tells the system's own error and leaves the snapshot as good as it was, or sealed it is healthy."""
    template = str(quick_path / "template")
    name = lay_out(template)
    (counted,) = server.trials(operation, [new_folder()], [Plan(kinds=ACTING)], template)
    for number in ERRNOS:
        plans = [Plan("fail", at=at, errno=number, sticky=sticky, kinds=ACTING) for at in range(len(counted.calls))]
        folders = [new_folder() for _ in plans]
        for folder, trial in zip(folders, server.trials(operation, folders, plans, template), strict=True):
            assert trial.fired
            assert trial.outcome is not None
            failed = bool(trial.outcome.error)
            kind = verify(os.path.join(operations.run_of(folder), name)).kind

            assert not failed or number == trial.outcome.errno, trial
            assert kind in ((unsealed, Kind.HEALTHY) if failed else (Kind.HEALTHY,)), trial


def test_a_folder_removed_and_killed_anywhere_is_whole_or_gone(
    server: Server, quick_path: Path, new_folder: NewFolder
) -> None:
    """Half of it is never a candidate, and the next sweep finishes."""
    template = str(quick_path / "template")
    a_sealed_folder(template)
    met = []
    for folder, returned in kills(server, operations.remove_a_folder, template, new_folder):
        run = operations.run_of(folder)
        found = [verify(rung.path).kind for rung in scan(run)]
        met.append(found)
        sweep(run)

        assert found in ([[]] if returned else [[Kind.HEALTHY], []])
        assert ({operations.FOLDER, operations.FOLDER + SEAL_SUFFIX} if found else set()) == set(os.listdir(run))
    assert [Kind.HEALTHY] == met[0]
    assert len(met) > 8, "each file of the folder is a call of its own"


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for-good"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ENOSPC], ids=errno.errorcode.get)
def test_a_folder_whose_removal_meets_an_error_is_whole_or_gone(
    number: int, sticky: bool, server: Server, quick_path: Path, new_folder: NewFolder
) -> None:
    """The error is said unless all of it is gone, and what is left is no candidate."""
    template = str(quick_path / "template")
    a_sealed_folder(template)
    (counted,) = server.trials(operations.remove_a_folder, [new_folder()], [Plan(kinds=ACTING)], template)
    plans = [Plan("fail", at=at, errno=number, sticky=sticky, kinds=ACTING) for at in range(len(counted.calls))]
    folders = [new_folder() for _ in plans]
    for folder, trial in zip(folders, server.trials(operations.remove_a_folder, folders, plans, template), strict=True):
        assert trial.outcome is not None
        run = operations.run_of(folder)
        found = [verify(rung.path).kind for rung in scan(run)]

        assert found in ([Kind.HEALTHY], [])
        assert trial.outcome.error or not [name for name in os.listdir(run) if partial_of(name)], trial
        sweep(run)
        assert [verify(rung.path).kind for rung in scan(run)] == found

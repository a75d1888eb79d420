"""The power fails at every system call, on real filesystems; what was acknowledged is there after the next mount.

ext4 and XFS are shut down by their own ioctl: what had not been synced never gets to the log. btrfs has no such thing; there
an instant copy of its image is taken before every call, and each copy is mounted. A bystander syncs a file, or everything,
just before the cut: that keeps half-done work which else would vanish as if it had never been begun.

Run as root: python -m pytest -m heavy tests/crash
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash import disks, mutants, operations
from tests.crash.checks import FIRST, OVERWRITE, OVERWRITE_UNSEALED, PRUNE, SET_ASIDE, WRITE_RUN, Case, Found
from tests.crash.conftest import give_up
from tests.crash.server import Server
from tests.crash.tracer import Outcome, Plan

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

Finding = tuple[int, Found | str, bool]
"""At which call the power was cut, what was found after it, and whether that is right."""

CASES = [FIRST, OVERWRITE, OVERWRITE_UNSEALED, PRUNE, SET_ASIDE, WRITE_RUN]
BYSTANDERS = ["", "fsync", "syncfs"]
KINDS = ["ext4", "ext4-writeback", "xfs", "btrfs"]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """Room for images in memory, so that no disk is waited for."""
    if reason := disks.why_not():
        give_up(reason)
    with disks.mounted("images", "tmpfs", tmp_path / "images", "size=3g") as at:
        yield at


def points(server: Server, case: Case, template: str, folder: Path) -> int:
    (counted,) = server.trials(case.operation, [str(folder)], [Plan()], template)
    assert Outcome() == counted.outcome
    return len(counted.calls)


def is_right(case: Case, found: Found | str, returned: bool) -> bool:
    """What was acknowledged is there. A removal is not synced, and may be undone."""
    return found in (case.states[1:] if returned else case.states)


def shut_down_at_each_call(
    server: Server, case: Case, kind: str, bystander: str, tmp_path: Path, memory: Path
) -> Iterator[Finding]:
    template = case.template(tmp_path / "template")
    count = points(server, case, template, tmp_path / "counted")
    kind, _, style = kind.partition("-")
    options = "data=writeback,noauto_da_alloc" if style else ""
    examine = case.examiner()
    with ExitStack() as stack:
        device = stack.enter_context(disks.loop_device(disks.make_image(memory / "image", kind)))
        at = stack.enter_context(disks.mounted(device, kind, tmp_path / "mounted", options))
        for point in range(count + 1):
            folder = at / f"{point}"
            shutil.copytree(template, folder)
            disks.sync_filesystem(at)
            plan = Plan("cut", point, quick=False, mount=str(at), bystander=bystander)
            (trial,) = server.trials(case.operation, [str(folder)], [plan])
            assert trial.killed
            assert [point] == trial.fired
            disks.unmount(at)
            disks.mount(device, kind, at, options)
            found = examine(operations.run_of(str(folder)))
            yield point, found, is_right(case, found, point == count)


def copy_at_each_call(server: Server, case: Case, bystander: str, tmp_path: Path, memory: Path) -> Iterator[Finding]:
    template = case.template(tmp_path / "template")
    examine = case.examiner()
    with ExitStack() as stack:
        outer = stack.enter_context(disks.loop_device(disks.make_image(memory / "outer", "xfs", size="2G")))
        room = stack.enter_context(disks.mounted(outer, "xfs", tmp_path / "room"))
        image, copies = disks.make_image(room / "image", "btrfs"), room / "copies"
        copies.mkdir()
        with disks.loop_device(image) as device, disks.mounted(device, "btrfs", tmp_path / "mounted") as at:
            shutil.copytree(template, at / "folder")
            disks.sync_filesystem(at)
            plan = Plan("copy", quick=False, mount=str(at), image=str(image), copies=str(copies), bystander=bystander)
            (trial,) = server.trials(case.operation, [str(at / "folder")], [plan])
            assert Outcome() == trial.outcome
        count = len(trial.calls)
        assert list(range(count + 1)) == trial.fired
        for point, copy in enumerate(sorted(copies.iterdir())):
            with disks.loop_device(copy) as device, disks.mounted(device, "btrfs", tmp_path / "mounted") as at:
                found = examine(operations.run_of(str(at / "folder")))
            copy.unlink()
            yield point, found, is_right(case, found, point == count)


def findings(server: Server, case: Case, kind: str, bystander: str, tmp_path: Path, memory: Path) -> Iterator[Finding]:
    if reason := disks.why_not(*(("btrfs", "xfs") if kind == "btrfs" else (kind.partition("-")[0],))):
        give_up(reason)
    if kind == "btrfs":
        yield from copy_at_each_call(server, case, bystander, tmp_path, memory)
    else:
        yield from shut_down_at_each_call(server, case, kind, bystander, tmp_path, memory)


@pytest.mark.parametrize("bystander", BYSTANDERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_was_acknowledged_survives_a_power_cut_at_any_call(
    case: Case, kind: str, bystander: str, server: Server, tmp_path: Path, memory: Path
) -> None:
    """Old or new is there and whole, new once the call has returned; and after a save the next one works."""
    met = list(findings(server, case, kind, bystander, tmp_path, memory))

    assert [] == [(point, found) for point, found, is_right in met if not is_right]
    assert case.states[0] == met[0][1]


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
@pytest.mark.parametrize(
    ("mutant", "case"),
    [
        (mutants.no_file_fsync, FIRST),
        (mutants.no_folder_fsync, FIRST),
        (mutants.seal_after_data, OVERWRITE),
    ],
)
def test_a_save_without_one_of_its_steps_is_caught(
    mutant: Callable[[], None], case: Case, kind: str, server: Server, tmp_path: Path, memory: Path
) -> None:
    """On each of these filesystems the power cuts show what a sync or an order is there for."""
    broken = replace(case, operation=mutants.mutated(mutant, case.operation))
    bystander = "syncfs" if mutant is mutants.seal_after_data else ""

    assert not all(is_right for *_, is_right in findings(server, broken, kind, bystander, tmp_path, memory))

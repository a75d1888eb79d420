"""The supervisor's own files, killed and refused at every system call: each is old or new and whole, and a next try succeeds."""

import errno
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lastgood import publish
from lastgood.contract import EVENTS_FILE, QUARANTINE_DIR, RUN_FILE, STATE_DIR
from lastgood.ledger import Ledger
from lastgood.naming import partial_of, snapshot_name
from lastgood.seal import bound_seal_path, bound_seal_text, read_bound_seal, seal_path
from supervisor.adapters import places, statefile
from supervisor.jsonl import older
from tests.crash import operations
from tests.crash.checks import kills, snapshots
from tests.crash.conftest import NewFolder
from tests.crash.operations import Work, run_of
from tests.crash.server import Server
from tests.crash.test_kill_sweep import litter
from tests.crash.tracer import ACTING, Outcome, Plan, Prepare

pytestmark = pytest.mark.usefixtures("no_waiting")

ERRNOS = [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.EINTR, errno.EXDEV]
OLD, NEW = "old", "new"


@dataclass(frozen=True)
class Own:
    """A write of the supervisor's: what it finds, and what is there by then, said as OLD, NEW or what is wrong.

    `may_be_lost` says that it is of no harm to lose it in silence, `begins` that there is no directory yet. Done again it must
    come to NEW.
    """

    operation: Prepare
    found: Callable[[str], object]
    prepare: Callable[[str], object] = lambda folder: None
    may_be_lost: bool = False
    begins: bool = False

    def __str__(self) -> str:
        return self.operation.__name__

    def template(self, folder: Path) -> str:
        if self.begins:
            folder.mkdir()
            return str(folder)
        for step in (1, 2):
            operations.write_snapshot(str(folder), step)
        statefile.prepare(run_of(str(folder)))
        statefile.write_run(run_of(str(folder)), statefile.RunFile("the-run"), 0.0)
        self.prepare(str(folder))
        return str(folder)


def state(folder: str, name: str = "") -> str:
    return os.path.join(run_of(folder), STATE_DIR, name)


def told(is_new: bool, is_old: bool, what: object) -> object:
    """NEW or OLD, or what it is instead."""
    return NEW if is_new else OLD if is_old else what


def run_json(folder: str) -> object:
    known = statefile.read_run(run_of(folder), 0.0)
    high = None if known is None else known.memory.high_water
    return told(high == 2, known is not None and high is None, high)


def wanted(folder: str) -> object:
    found = statefile.read_wanted(run_of(folder))
    return told(found == "pause", found == "run", found)


def settled(folder: str) -> object:
    found = statefile.read_wanted(run_of(folder))
    return told(found == "stop", found == "run", found)


def settle_wanted(folder: str) -> Work:
    """What a supervisor that is stopped says of itself: it looks, and then replaces."""
    return lambda: statefile.settle_wanted(run_of(folder), "stop")


def first_run(folder: str) -> object:
    """A run that has begun, and none half-written; or none, not even a damaged one."""
    known = statefile.read_run(run_of(folder), 0.0)
    left = [name for name in os.listdir(state(folder)) if partial_of(name) == RUN_FILE] if known else []
    return told(known == statefile.RunFile("the-run") and not left, known is None, (known, left))


def begin_a_run(folder: str) -> Work:
    """The first start in a directory that is not there yet."""

    def work() -> None:
        statefile.prepare(run_of(folder), anew=True)
        os.close(statefile.lock(run_of(folder)))
        statefile.write_run(run_of(folder), statefile.RunFile("the-run"), 0.0)

    return work


def status(folder: str) -> object:
    found: dict[str, Any] = statefile.read_status(run_of(folder)) or {}
    return told(found.get("number") == 2, found.get("number") == 1, found)


def records(folder: str) -> object:
    """The records before and after the border, which must all be whole, the older first, none twice."""
    path = state(folder, EVENTS_FILE)
    lines = b"".join(Path(one).read_bytes() for one in (older(path), path) if os.path.exists(one)).splitlines()
    numbers = [json.loads(line)["number"] for line in lines]
    return told(numbers in ([1, 2], [1, 2, 2]), numbers == [1], numbers)  # twice, when the first try had come through


def verdict(folder: str) -> object:
    path = os.path.join(run_of(folder), snapshot_name(1))
    identity, given = operations.verdict_of(path)
    found = Ledger(run_of(folder)).get(path, identity)
    return told(found == given, found is None, found)


def sealed(folder: str) -> object:
    path = os.path.join(run_of(folder), snapshot_name(2))
    identity, known = operations.verdict_of(path)
    found = read_bound_seal(path, identity)
    return told(found is not None and getattr(found, "sha256", "") == known.sha256, found is None, found)


def copies(folder: str) -> list[bytes]:
    """What each file called as the second snapshot holds, in sight or in quarantine."""
    return [path.read_bytes() for path in Path(run_of(folder)).rglob(snapshot_name(2))]


def set_aside(folder: str) -> object:
    """It is whole, in one place, and where it is in sight it is good; where not, why is told beside it."""
    places.drop_orphaned_seals(run_of(folder))
    here = snapshots(run_of(folder))
    one = len(copies(folder)) == 1
    return told(here == {1: 1} and one, here == {1: 1, 2: 1} and one, here)


def put_back(folder: str) -> object:
    """It is whole, in one place, and good where it is in sight."""
    here = snapshots(run_of(folder))
    one = len(copies(folder)) == 1
    return told(here == {1: 1, 2: 1} and one, here == {1: 1} and one, here)


def pruned(folder: str) -> object:
    """The other one is good, and the pruned one too, or it is gone; a seal for it condemns no new one of its name."""
    with suppress(OSError):
        publish.sweep(run_of(folder))
    places.drop_orphaned_seals(run_of(folder))
    here = snapshots(run_of(folder))
    return told(here == {2: 1}, here == {1: 1, 2: 1}, here)


def cleaned(folder: str) -> object:
    """What is good stays; nothing half-done is left, or it still is."""
    here = snapshots(run_of(folder))
    left = [name for name in os.listdir(run_of(folder)) if partial_of(name)]
    return told(here == {1: 1, 2: 1} and not left, here == {1: 1, 2: 1}, here)


def a_first_record(folder: str) -> None:
    record = {"number": 1, "padding": "x" * operations.EVENTS_BYTES}
    Path(state(folder, EVENTS_FILE)).write_text(json.dumps(record) + "\n")


def in_quarantine(folder: str) -> None:
    places.set_aside(run_of(folder), snapshot_name(2), {"reason": "for a test"})
    assert os.path.isdir(state(folder, QUARANTINE_DIR))


def sealed_by_us(folder: str) -> None:
    path = os.path.join(run_of(folder), snapshot_name(1))
    identity, known = operations.verdict_of(path)
    assert known.sha256 is not None
    os.makedirs(os.path.dirname(bound_seal_path(path)), exist_ok=True)
    Path(bound_seal_path(path)).write_text(bound_seal_text(known.sha256, identity))


WRITES = [
    Own(operations.write_run, run_json),
    Own(begin_a_run, first_run, begins=True),
    Own(operations.write_wanted, wanted, lambda folder: statefile.write_wanted(run_of(folder), "run")),
    Own(settle_wanted, settled, lambda folder: statefile.write_wanted(run_of(folder), "run")),
    Own(operations.write_status, status, lambda folder: statefile.write_status(run_of(folder), {"number": 1})),
    Own(operations.a_record, records, a_first_record),
    Own(operations.a_record_that_turns_over, records, a_first_record),
    Own(operations.remember, verdict, may_be_lost=True),
    Own(
        operations.seal_for_others,
        sealed,
        lambda folder: os.unlink(seal_path(os.path.join(run_of(folder), snapshot_name(2)))),
        may_be_lost=True,
    ),
    Own(operations.set_aside, set_aside),
    Own(operations.put_back, put_back, in_quarantine),
    Own(operations.prune, pruned, sealed_by_us),
    Own(operations.start_up, cleaned, litter, may_be_lost=True),
]


def again(own: Own, folder: str) -> object:
    """What is there once it was done again; that it had been done already is no failure."""
    with suppress(FileNotFoundError, FileExistsError):
        own.operation(folder)()
    return own.found(folder)


@pytest.mark.parametrize("own", WRITES, ids=str)
def test_killed_anywhere_it_is_old_or_new_and_the_next_try_succeeds(
    own: Own, server: Server, quick_path: Path, new_folder: NewFolder
) -> None:
    """Never torn, never lost, never in the way of who comes next; what had returned is new."""
    met = []
    for folder, returned in kills(server, own.operation, own.template(quick_path / "template"), new_folder):
        found = own.found(folder)
        met.append(found)

        assert found in ((NEW,) if returned else (OLD, NEW)), f"after call {len(met) - 1}"
        assert NEW == again(own, folder), f"again, after call {len(met) - 1}"
    assert [OLD, NEW] == sorted({str(one) for one in met}, reverse=True)


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for-good"])
@pytest.mark.parametrize("own", WRITES, ids=str)
def test_refused_anywhere_it_is_old_or_new_and_the_next_try_succeeds(
    own: Own, sticky: bool, server: Server, quick_path: Path, new_folder: NewFolder
) -> None:
    """Whatever the system says, once or from there on: it is said with that errno, or done all the same."""
    template = own.template(quick_path / "template")
    (counted,) = server.trials(own.operation, [new_folder()], [Plan(kinds=ACTING)], template)
    assert Outcome() == counted.outcome
    plan = Plan("fail", sticky=sticky, kinds=ACTING)
    plans = [replace(plan, at=at, errno=number) for number in ERRNOS for at in range(len(counted.calls))]
    folders = [new_folder() for _ in plans]
    wrong = []
    for one, folder, trial in zip(plans, folders, server.trials(own.operation, folders, plans, template), strict=True):
        assert [one.at] == trial.fired[:1], "it was not injected"
        where = f"{errno.errorcode[one.errno]} at {trial.calls[one.at]}"
        if (fault := wrong_with(own, folder, trial.outcome, one.errno)) is not None:
            wrong.append(f"{fault}: {where}")

    assert [] == wrong


def wrong_with(own: Own, folder: str, outcome: Outcome | None, number: int) -> str | None:
    """What is lost, silent, or said with another error than the system's; None when all is well."""
    assert outcome is not None
    found = own.found(folder)
    if found not in (OLD, NEW):
        return f"{found}"
    if not outcome.error and found == OLD and not own.may_be_lost:
        return "silent"
    if "OSError" in outcome.error and number != outcome.errno:
        return f"said to be {outcome.text}"
    if outcome.error and not {"OSError", "UsageError", "RuntimeError"} & set(outcome.error):
        return f"{outcome.error}"
    return None if (later := again(own, folder)) == NEW else f"not mended by the next try: {later}"

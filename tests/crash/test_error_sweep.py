"""Every error at every system call of a save, once and for good from there on; and storage that keeps other bytes than it got."""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lastgood.checkpoint import load_verified
from lastgood.contract import STATE_DIR
from lastgood.naming import partial_of, snapshot_name
from lastgood.rungs import latest_healthy
from lastgood.seal import SEAL_SUFFIX
from tests.crash import mutants, operations
from tests.crash.checks import AGAIN, FIRST, OVERWRITE, PRUNE, Case, Examiner, Found, writing_of
from tests.crash.conftest import NewFolder
from tests.crash.server import Server
from tests.crash.tracer import ACTING, EVERY, Call, Outcome, Plan, Trial

pytestmark = pytest.mark.usefixtures("no_waiting")

ERRNOS = [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.EINTR, errno.EXDEV]
MUST_BE_SAID = {"create", "write", "fsync"}
TRIALS_IN_A_ROW = 100  # then the next child; so many folders are laid out at a time


@dataclass(frozen=True)
class End:
    """How a trial ended, which partials it left, and what was found after it, or what was wrong."""

    trial: Trial
    left: list[str]
    found: Found | str

    @property
    def call(self) -> Call:
        """The call that was acted upon."""
        return self.trial.calls[self.trial.fired[0]]

    @property
    def while_publishing(self) -> bool:
        """Whether that call brings bytes or names to the disk for the new snapshot."""
        before = self.trial.calls[: self.trial.fired[0]]
        pruning = any(call.name == "rename" and partial_of(os.path.basename(call.target)) for call in before)
        return self.call.name in MUST_BE_SAID and not pruning and STATE_DIR not in self.call.path


def ends(
    server: Server,
    case: Case,
    quick_path: Path,
    new_folder: NewFolder,
    pattern: Plan,
    which: Callable[[Call], bool] = lambda call: True,
) -> Iterator[End]:
    """Act as `pattern` says on each call in turn."""
    template = case.template(quick_path / "template")
    (counted,) = server.trials(case.operation, [new_folder()], [Plan(kinds=pattern.kinds)], template)
    assert Outcome() == counted.outcome
    plans = [replace(pattern, at=at) for at, call in enumerate(counted.calls) if which(call)]
    assert plans
    examiner = Examiner()
    for start in range(0, len(plans), TRIALS_IN_A_ROW):
        row = plans[start : start + TRIALS_IN_A_ROW]
        folders = [new_folder() for _ in row]
        for plan, folder, trial in zip(
            row, folders, server.trials(case.operation, folders, row, template), strict=True
        ):
            assert [plan.at] == trial.fired[:1], "it was not injected"
            assert plan.sticky or 1 == len(trial.fired)
            assert counted.calls[plan.at].name == trial.calls[plan.at].name
            partials = [name for _, _, names in os.walk(folder) for name in names if partial_of(name)]
            yield End(trial, partials, examiner.examine(operations.run_of(folder)))


def wrong_with(case: Case, end: End, number: int) -> str | None:
    """What was lost, silent, or said with another error than the system's; None when all is well."""
    outcome = end.trial.outcome
    assert outcome is not None
    published = case.states[1:]
    where = f"{end.call}: {outcome.text or 'no error'}; {end.found}"
    if end.found not in case.states:
        return f"lost at {where}"
    if not outcome.error and (end.found not in published or (end.while_publishing and number != errno.EINTR)):
        return f"silent at {where}"
    if outcome.error and ("OSError" not in outcome.error or number != outcome.errno):
        return f"not the system's error at {where}"
    if "MaybeCommittedError" in outcome.error and end.found not in published:
        return f"not committed at {where}"
    if outcome.error and "MaybeCommittedError" not in outcome.error and end.found == case.only_if_said_so:
        return f"committed, but said to have failed, at {where}"
    if end.left and len(end.trial.fired) == 1 and end.call.name != "unlink":
        return f"{end.left} left at {where}"
    return None


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for-good"])
@pytest.mark.parametrize("number", ERRNOS, ids=errno.errorcode.get)
@pytest.mark.parametrize("case", [FIRST, OVERWRITE, PRUNE], ids=str)
def test_any_error_at_any_call_is_said_and_loses_nothing(
    case: Case, number: int, sticky: bool, server: Server, quick_path: Path, new_folder: NewFolder
) -> None:
    """A save that returned is healthy; one that did not tells the errno, leaves the old ones healthy, and the next one works."""
    plan = Plan("fail", errno=number, sticky=sticky, kinds=ACTING)
    met = list(ends(server, case, quick_path, new_folder, plan))

    assert [] == [wrong for end in met if (wrong := wrong_with(case, end, number))]


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for-good"])
@pytest.mark.parametrize("case", [FIRST, OVERWRITE, PRUNE], ids=str)
def test_a_read_error_at_any_call_is_said_and_loses_nothing(
    case: Case, sticky: bool, server: Server, quick_path: Path, new_folder: NewFolder
) -> None:
    """Nor does EIO where a save only looks or reads back."""
    plan = Plan("fail", errno=errno.EIO, sticky=sticky, kinds=EVERY)
    met = list(ends(server, case, quick_path, new_folder, plan, lambda call: call.name not in ACTING))

    assert [] == [wrong for end in met if (wrong := wrong_with(case, end, errno.EIO))]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_after_any_error_the_same_manager_saves_again(
    number: int, server: Server, quick_path: Path, new_folder: NewFolder
) -> None:
    """An error that has passed costs one attempt, and no lock, thread or file that the next attempt needs."""
    met = list(ends(server, AGAIN, quick_path, new_folder, Plan("fail", errno=number, kinds=ACTING)))
    failed = [(end.call, end.trial.outcome, end.found) for end in met if end.found not in AGAIN.states[1:]]

    assert [] == failed
    assert {"close"} >= {end.call.name for end in met if end.trial.outcome != Outcome()}


def test_a_save_that_takes_a_failed_fsync_for_a_good_one_is_caught(
    server: Server, quick_path: Path, new_folder: NewFolder
) -> None:
    """The page cache shows whole bytes after a failed fsync; so only an error will do."""
    broken = replace(OVERWRITE, operation=mutants.mutated(mutants.deaf_to_fsync, OVERWRITE.operation))
    plan = Plan("fail", errno=errno.EIO, kinds=frozenset({"fsync"}))

    assert any(wrong_with(broken, end, errno.EIO) for end in ends(server, broken, quick_path, new_folder, plan))


def test_storage_that_keeps_other_bytes_than_it_got_is_found_out(
    server: Server, quick_path: Path, new_folder: NewFolder
) -> None:
    """Whichever write of a save is garbled on its way, that is said, nothing is pruned for it, and the old one is chosen."""
    template = PRUNE.template(quick_path / "template")
    writes = frozenset({"write"})
    (counted,) = server.trials(PRUNE.operation, [new_folder()], [Plan(kinds=writes)], template)
    points = [at for at, call in enumerate(counted.calls) if STATE_DIR not in call.path]
    folders = [new_folder() for _ in points]
    operation = operations.save_and_prune_hashed_first
    trials = server.trials(operation, folders, [Plan("garble", at, kinds=writes) for at in points], template)
    silent = []
    for at, folder, trial in zip(points, folders, trials, strict=True):
        assert [at] == trial.fired
        assert trial.outcome is not None
        if "OSError" not in trial.outcome.error:
            silent.append(trial.calls[at])
        run = Path(operations.run_of(folder))

        assert run / snapshot_name(2) == latest_healthy(run) or SEAL_SUFFIX in trial.calls[at].path
        assert {1: 1, 2: 1} == {step: writing_of(load_verified(run / snapshot_name(step)), step) for step in (1, 2)}
    assert [] == silent

"""SIGKILL at every system call of keeping a copy on the shelf, and of putting one in place."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lastgood.checkpoint import load_verified
from lastgood.choose import choose
from lastgood.keep import Keep
from lastgood.naming import partial_of, snapshot_name
from lastgood.publish import publish
from lastgood.verdict import Kind, Proof
from supervisor.adapters import places, statefile
from supervisor.adapters.shelf import Shelf
from supervisor.adapters.verifier import Verifier
from supervisor.core.events import LadderJudged, RungFact
from supervisor.shelved import is_shelved
from tests.crash import disks, operations
from tests.crash.checks import kills, writing_of
from tests.crash.conftest import NewFolder, give_up
from tests.crash.server import Server
from tests.crash.tracer import ACTING, Plan

pytestmark = pytest.mark.usefixtures("no_waiting")

NAME = "ckpt.pt"
Found = dict[int, int]


def shelf_of(run: str) -> Shelf:
    return Shelf(run, NAME, Keep(2))


def ladder(run: str) -> tuple[RungFact, ...]:
    """The rungs as a supervisor sees them that has just been started."""
    statefile.prepare(run)
    os.close(statefile.lock(run))
    places.drop_orphaned_seals(run)
    places.sweep(run)
    shelf_of(run).tidy()
    told = Verifier(run, r"ckpt\.pt", 0.0, {}, has_shelf=True).judge_ladder()
    assert isinstance(told, LadderJudged)
    return told.rungs


def save_in_place(run: str, step: int, writing: int = 1) -> None:
    torch.save(operations.payload(step, writing), os.path.join(run, NAME))


def write_copies(run: str, found: Found) -> None:
    shelf = Path(run, ".lastgood", "shelf")
    shelf.mkdir(parents=True)
    for step, writing in found.items():
        publish(shelf / snapshot_name(step), lambda file, s=step, w=writing: torch.save(operations.payload(s, w), file))


def keep_copy(folder: str) -> Callable[[], object]:
    """A copy is kept, and retention gives up the oldest."""
    run = operations.run_of(folder)
    (rung, *_), shelf = ladder(run), shelf_of(run)

    def work() -> None:
        shelf.keep_copy(rung)
        shelf.prune()

    return work


def put_back(folder: str) -> Callable[[], object]:
    """The newest copy is put in place, where nothing is."""
    run = operations.run_of(folder)
    rung, shelf = choose(ladder(run)), shelf_of(run)
    assert rung is not None
    return lambda: shelf.put_back(rung)


def copies(run: str) -> Found:
    """The copies, each one sealed and exactly as one writing of its step was."""
    found = {}
    for path in sorted(Path(run, ".lastgood", "shelf").glob("*.pt")):
        verdict = Verifier(str(path.parent), None, 0.0, {}).judge_ladder()
        assert isinstance(verdict, LadderJudged)
        step = int(path.stem.removeprefix("ckpt_"))
        found[step] = writing_of(load_verified(path), step)
    return found


def examine(run: str) -> Found:
    """The copies after a crash and a start; nothing is left over, a torn file falls back to the newest, and the next is kept."""
    newest = ladder(run)[0]
    found = copies(run)
    assert not [name for _, _, names in os.walk(run) for name in names if partial_of(name)]
    seals = {path.name.removesuffix(".sha256") for path in Path(run, ".lastgood", "shelf").glob("*.sha256")}
    assert seals == {snapshot_name(step) for step in found}

    if not is_shelved(newest.name):
        os.truncate(os.path.join(run, NAME), 1000)
        torn, *rungs = ladder(run)
        assert (NAME, Kind.TRUNCATED) == (torn.name, torn.verdict and torn.verdict.kind)
        best = choose(rungs)
        assert best is not None
        assert best.verdict is not None
        assert (max(found), Kind.HEALTHY, Proof.SEAL) == (best.step, best.verdict.kind, best.verdict.proof)
    save_in_place(run, 9)
    work = keep_copy(os.path.dirname(run))
    work()
    assert dict(sorted({**found, 9: 1}.items())[-2:]) == copies(run)
    return found


@pytest.mark.parametrize(
    ("before", "in_place", "states"),
    [
        ({}, (1, 1), [{}, {1: 1}]),
        ({1: 1, 2: 1}, (3, 1), [{1: 1, 2: 1}, {1: 1, 2: 1, 3: 1}, {2: 1, 3: 1}]),
        ({1: 1, 2: 1}, (2, 2), [{1: 1, 2: 1}, {1: 1, 2: 2}]),
    ],
    ids=["first", "next", "same step again"],
)
def test_a_copy_killed_anywhere_leaves_old_or_new(
    before: Found, in_place: tuple[int, int], states: list[Found],
    server: Server, quick_path: Path, new_folder: NewFolder,
) -> None:  # fmt: skip
    """Every copy is sealed and whole, none that was there is missing, and the next one is kept."""
    template = quick_path / "template"
    (template / "run").mkdir(parents=True)
    write_copies(str(template / "run"), before)
    save_in_place(str(template / "run"), *in_place)

    met: list[Found] = []
    for folder, returned in kills(server, keep_copy, str(template), new_folder):
        found = examine_first(folder) if not before else examine(operations.run_of(folder))
        assert found in (states[-1:] if returned else states)
        met.append(found)
    assert states == [found for at, found in enumerate(met) if at == 0 or met[at - 1] != found]


def examine_first(folder: str) -> Found:
    """As above where there may be no copy yet."""
    run = operations.run_of(folder)
    ladder(run)
    return examine(run) if copies(run) else {}


def test_putting_a_copy_in_place_may_be_killed_anywhere(
    server: Server, quick_path: Path, new_folder: NewFolder
) -> None:
    """What is in place is nothing or all of the newest copy, the copies stay as they were, and the next start goes on."""
    template = quick_path / "template"
    (template / "run").mkdir(parents=True)
    write_copies(str(template / "run"), {1: 1, 2: 1})

    met: list[bool] = []
    for folder, returned in kills(server, put_back, str(template), new_folder):
        run = operations.run_of(folder)
        there = ladder(run)[0].name == NAME
        assert there or not returned
        if not there:
            assert not os.path.lexists(os.path.join(run, NAME))
            put_back(folder)()
        rung = ladder(run)[0]
        assert rung.verdict is not None
        assert (NAME, 2, True) == (rung.name, rung.step, rung.verdict.proven)
        assert 1 == writing_of(load_verified(os.path.join(run, NAME)), 2)
        assert {1: 1, 2: 1} == examine(run)
        met.append(there)
    assert [False, True] == [there for at, there in enumerate(met) if at == 0 or met[at - 1] != there]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize("step", [3, 2], ids=["next", "same step again"])
def test_an_error_anywhere_is_said_and_loses_no_copy(
    step: int, number: int, server: Server, quick_path: Path, new_folder: NewFolder
) -> None:
    """Keeping a copy tells the system's own error; old copies and those it has made are whole, and the next one is kept."""
    template = quick_path / "template"
    (template / "run").mkdir(parents=True)
    write_copies(str(template / "run"), {1: 1, 2: 1})
    save_in_place(str(template / "run"), step, 2)
    allowed = [{1: 1, 2: 1}, {1: 1, 2: 1} | {step: 2}, dict(sorted({1: 1, 2: 1, step: 2}.items())[-2:])]

    (counted,) = server.trials(keep_copy, [new_folder()], [Plan(kinds=ACTING)], str(template))
    assert len(counted.calls) > 10
    for at in range(len(counted.calls)):
        folder = new_folder()
        plan = Plan("fail", at=at, errno=number, kinds=ACTING)
        (trial,) = server.trials(keep_copy, [folder], [plan], str(template))
        assert [at] == trial.fired
        assert trial.outcome is not None
        assert trial.outcome.errno in (None, number)
        assert trial.outcome.errno == number or counted.calls[at].name not in ("create", "write", "rename")
        assert examine(operations.run_of(folder)) in allowed


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_where_a_filesystem_can_share_blocks_a_copy_costs_none(kind: str, tmp_path: Path) -> None:
    """The copy has blocks in common with the file, and has its own bytes once that one is overwritten in place."""
    if reason := disks.why_not(kind):
        give_up(reason)
    image = disks.make_image(tmp_path / "image", kind)
    with disks.loop_device(image) as device, disks.mounted(device, kind, tmp_path / "mount") as at:
        run = operations.run_of(str(at))
        os.makedirs(run)
        save_in_place(run, 1)
        copied = shelf_of(run).keep_copy(ladder(run)[0])
        assert copied is not None
        assert "reflink" == copied.how

        save_in_place(run, 2)
        assert {1: 1} == copies(run)
        os.unlink(os.path.join(run, NAME))
        put_back(str(at))()
        assert (NAME, 1) == (ladder(run)[0].name, ladder(run)[0].step)

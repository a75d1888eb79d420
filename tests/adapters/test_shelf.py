"""Copies of a file that is overwritten in place: whole, sealed, never a link, and given up no sooner than retention says."""

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lastgood.hashing import file_sha256
from lastgood.keep import Keep
from lastgood.naming import partial_of
from lastgood.rungs import Rung
from lastgood.seal import Identity, read_bound_seal
from lastgood.verdict import Kind, Proof, Verdict
from supervisor.adapters import shelf as module
from supervisor.adapters.shelf import Shelf
from supervisor.adapters.verifier import Verifier
from supervisor.core.events import LadderJudged, RungFact
from supervisor.shelved import is_shelved, scan_shelf, shelved_name
from tests.conftest import flip_bit
from tests.library.made import saved

NAME = "ckpt.pt"


def save(folder: Path, step: int | None, fill: float = 0.0, way: str = "zip") -> Path:
    """What nanoGPT does: a plain torch.save over the one file."""
    content = {"model": {"weight": torch.full((5000,), fill)}} | ({} if step is None else {"iter_num": step})
    return saved(folder / NAME, content, way)


def ladder(folder: Path, foreign: dict[str, Identity] | None = None) -> tuple[RungFact, ...]:
    """The ladder as a supervisor sees it that was just started."""
    told = Verifier(str(folder), r"ckpt\.pt", 0.0, foreign or {}, has_shelf=True).judge_ladder()
    assert isinstance(told, LadderJudged)
    return told.rungs


def told(folder: Path) -> list[tuple[str, int | None, str | None]]:
    """The ladder as names, steps and verdicts; None for what was not judged."""
    return [(r.name, r.step, None if r.verdict is None else str(r.verdict.kind)) for r in ladder(folder)]


def keep(folder: Path, *steps: int, last: int = 2, **more: Any) -> Shelf:
    """A shelf on which the saves of these steps were kept, one after the other."""
    made = Shelf(str(folder), NAME, Keep(last), **more)
    for step in steps:
        save(folder, step, float(step))
        rung = next(rung for rung in ladder(folder) if rung.name == NAME)
        assert made.keep_copy(rung) is not None
        made.prune()
    return made


def shelved(folder: Path) -> list[int]:
    return [rung.step or 0 for rung in scan_shelf(str(folder))]


def partials(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if partial_of(path.name)]


def test_a_copy_outlives_what_overwrites_its_file(tmp_path: Path) -> None:
    """The file is truncated in place, as torch.save does, and the copy still has the bytes that were judged; coreutils agree."""
    keep(tmp_path, 10)
    copy, digest = tmp_path / shelved_name(10), file_sha256(tmp_path / NAME)
    (tmp_path / NAME).write_bytes(b"torn")

    assert digest == file_sha256(copy)
    checked = subprocess.run(["sha256sum", "-c", f"{copy.name}.sha256"], cwd=copy.parent, check=False)
    assert 0 == checked.returncode
    assert [] == partials(tmp_path)


def test_retention_keeps_the_newest(tmp_path: Path) -> None:
    """The newest copies stay; each that goes is told, and its seal goes with it."""
    gone: list[Rung] = []
    keep(tmp_path, 10, 20, 30, 40, last=3, removed=gone.append)

    assert [40, 30, 20] == shelved(tmp_path)
    assert [shelved_name(10)] == [rung.name for rung in gone]
    assert 6 == len(os.listdir(tmp_path / ".lastgood" / "shelf"))


def test_a_bad_copy_is_none_of_those_that_are_kept(tmp_path: Path) -> None:
    """With one of two copies rotten the third newest stays, after a restart that knows nothing of them too."""
    keep(tmp_path, 10, 20, 30, last=3)
    flip_bit(tmp_path / shelved_name(20), 2000)
    keep(tmp_path, 40, last=2)

    assert [40, 30, 20] == shelved(tmp_path)
    keep(tmp_path, 50, last=2)
    assert [50, 40, 20] == shelved(tmp_path)


def test_what_has_a_copy_is_not_copied_again(tmp_path: Path) -> None:
    """The same bytes once more are no news; a copy of them that rotted since is made anew."""
    made = keep(tmp_path, 10)
    rung = ladder(tmp_path)[0]
    inode = (tmp_path / shelved_name(10)).stat().st_ino
    assert None is made.keep_copy(rung)
    assert inode == (tmp_path / shelved_name(10)).stat().st_ino

    flip_bit(tmp_path / shelved_name(10), 2000)
    assert made.keep_copy(rung) is not None
    assert file_sha256(tmp_path / NAME) == file_sha256(tmp_path / shelved_name(10))


def test_another_save_at_the_same_step_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """nanoGPT saves as soon as it has resumed: the copy then is of that one, and its seal accepts that one alone."""
    made = keep(tmp_path, 10)
    save(tmp_path, 10, 0.5)
    assert made.keep_copy(ladder(tmp_path)[0]) is not None

    digest = file_sha256(tmp_path / NAME)
    assert digest == file_sha256(tmp_path / shelved_name(10))
    assert f"{digest}  ckpt_00000010.pt\n" == (tmp_path / f"{shelved_name(10)}.sha256").read_text()


def in_the_midst(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Act when the first piece was copied."""
    real = os.sendfile
    acted: list[int] = []

    def sendfile(out: int, source: int, offset: int, count: int) -> int:
        done = real(out, source, offset, min(count, 4096))
        if not acted:
            acted.append(done)
            act()
        return done

    monkeypatch.setattr(os, "sendfile", sendfile)
    monkeypatch.setattr(module, "_shares_blocks", lambda *_: False)


def swap(folder: Path) -> None:
    """Another file under the name."""
    (folder / "other").write_bytes((folder / NAME).read_bytes())
    os.replace(folder / "other", folder / NAME)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: save(folder, 20),
        lambda folder: os.truncate(folder / NAME, 5000),
        lambda folder: flip_bit(folder / NAME, 15_000),
        swap,
        lambda folder: os.unlink(folder / NAME),
    ],
    ids=["saved", "truncated", "same size and times", "replaced", "removed"],
)
def test_a_file_that_is_overwritten_while_it_is_copied_gets_no_copy(
    change: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of one save and half of the next are on no shelf; the next arrival is kept, and nothing is left of the attempt."""
    made = keep(tmp_path, 5)
    save(tmp_path, 10)
    rung = ladder(tmp_path)[0]
    with monkeypatch.context() as patch:
        in_the_midst(patch, lambda: change(tmp_path))
        assert None is made.keep_copy(rung)
    assert ([5], []) == (shelved(tmp_path), partials(tmp_path))

    save(tmp_path, 30)
    assert made.keep_copy(ladder(tmp_path)[0]) is not None
    assert [30, 5] == shelved(tmp_path)


def test_a_copy_that_reads_back_otherwise_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that keeps other bytes than it was given leaves no copy behind."""
    made = keep(tmp_path, 5)
    save(tmp_path, 10)
    rung = ladder(tmp_path)[0]

    def rotten(descriptor: int) -> None:
        os.pwrite(descriptor, b"x", 3000)

    monkeypatch.setattr(os, "fsync", rotten)
    assert None is made.keep_copy(rung)
    assert ([5], []) == (shelved(tmp_path), partials(tmp_path))


def test_a_file_that_changed_since_it_was_judged_is_not_copied(tmp_path: Path) -> None:
    """What arrived later is another snapshot, and is judged first."""
    save(tmp_path, 10)
    rung = ladder(tmp_path)[0]
    save(tmp_path, 20)

    assert None is Shelf(str(tmp_path), NAME, Keep(2)).keep_copy(rung)
    (tmp_path / NAME).unlink()
    assert None is Shelf(str(tmp_path), NAME, Keep(2)).keep_copy(rung)
    assert [] == shelved(tmp_path)


def test_a_snapshot_without_a_step_is_said_to_have_no_copy(tmp_path: Path) -> None:
    """Nothing tells where in the ladder it would stand."""
    save(tmp_path, None)
    with pytest.raises(OSError, match="does not tell its step"):
        Shelf(str(tmp_path), NAME, Keep(2)).keep_copy(ladder(tmp_path)[0])


def with_free(monkeypatch: pytest.MonkeyPatch, folder: Path, free_at_first: int) -> None:
    """Let a filesystem have so many bytes free, and more with each copy that goes."""
    at_first = sum(path.stat().st_size for path in (folder / ".lastgood" / "shelf").glob("*.pt"))

    def free_bytes(_: str) -> int:
        there = sum(path.stat().st_size for path in (folder / ".lastgood" / "shelf").glob("*.pt"))
        return free_at_first + at_first - there

    monkeypatch.setattr(module, "_free_bytes", free_bytes)


def test_too_little_space_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With needed and free bytes; two copies stay although giving them up would help."""
    made = keep(tmp_path, 10, 20)
    size = save(tmp_path, 30).stat().st_size
    rung = ladder(tmp_path)[0]
    with_free(monkeypatch, tmp_path, module.SPARE_BYTES + size - 1)

    with pytest.raises(
        OSError, match=f"{module.SPARE_BYTES + size:,} bytes are needed and {'[0-9,]+'} are free"
    ) as failed:
        made.keep_copy(rung)
    assert errno.ENOSPC == failed.value.errno
    assert ([20, 10], []) == (shelved(tmp_path), partials(tmp_path))


def test_old_copies_go_where_that_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four, the two newest stay, and the new one is kept; where it would not be enough, none goes."""
    made = keep(tmp_path, 10, 20, 30, 40, last=4)
    size = save(tmp_path, 50).stat().st_size
    rung = ladder(tmp_path)[0]
    with_free(monkeypatch, tmp_path, module.SPARE_BYTES - 2 * size)
    with pytest.raises(OSError, match="No space left"):
        made.keep_copy(rung)
    assert [40, 30, 20, 10] == shelved(tmp_path)

    with_free(monkeypatch, tmp_path, module.SPARE_BYTES + size - 1)
    assert made.keep_copy(rung) is not None
    assert [50, 40, 30] == shelved(tmp_path)


def test_what_an_earlier_supervisor_left_half_done_goes(tmp_path: Path) -> None:
    """Partials, and seals of copies that never came to be."""
    made = keep(tmp_path, 10)
    shelf = tmp_path / ".lastgood" / "shelf"
    for name in (".ckpt_00000020.pt.partial-1-0123abcd", "ckpt_00000020.pt.sha256"):
        (shelf / name).write_text("x")
    made.tidy()

    assert ["ckpt_00000010.pt", "ckpt_00000010.pt.sha256"] == sorted(os.listdir(shelf))


def test_what_is_put_back_is_a_copy_with_its_digest_noted(tmp_path: Path) -> None:
    """The trainer overwrites it without harm to the shelf, and no seal beside it condemns what it writes."""
    made = keep(tmp_path, 10)
    (tmp_path / NAME).unlink()
    (rung,) = ladder(tmp_path)
    made.put_back(rung)

    status = (tmp_path / NAME).stat()
    bound = read_bound_seal(tmp_path / NAME, Identity.of(status))
    assert bound is not None
    assert file_sha256(tmp_path / shelved_name(10)) == bound.sha256
    assert [(NAME, 10, "healthy")] == told(tmp_path)
    assert not (tmp_path / f"{NAME}.sha256").exists()

    save(tmp_path, 20)
    assert [(NAME, 20, "intact"), (shelved_name(10), 10, None)] == told(tmp_path)
    assert bound.sha256 == file_sha256(tmp_path / shelved_name(10))


def test_nothing_is_put_over_a_file_that_is_there(tmp_path: Path) -> None:
    """Whoever put one there may have no other."""
    made = keep(tmp_path, 10, 20)
    rung = RungFact(
        shelved_name(10), 10, 0, Verdict(Kind.HEALTHY, Proof.SEAL, "", 0, file_sha256(tmp_path / shelved_name(10)))
    )
    before = file_sha256(tmp_path / NAME)
    with pytest.raises(FileExistsError):
        made.put_back(rung)
    assert (before, []) == (file_sha256(tmp_path / NAME), partials(tmp_path))


def test_a_copy_that_changed_since_it_was_judged_is_not_put_back(tmp_path: Path) -> None:
    """The bytes that are put in place are those that were proven."""
    made = keep(tmp_path, 10)
    (tmp_path / NAME).unlink()
    (rung,) = ladder(tmp_path)
    flip_bit(tmp_path / shelved_name(10), 2000)
    with pytest.raises(OSError, match="not what was judged"):
        made.put_back(rung)
    assert not (tmp_path / NAME).exists()


# The ladder.


def test_the_copy_of_what_is_in_place_is_not_told_twice(tmp_path: Path) -> None:
    """What is in place and good comes first, and older copies after it."""
    keep(tmp_path, 10, 20, 30, last=3)
    assert [(NAME, 30, "intact"), (shelved_name(20), 20, None), (shelved_name(10), 10, None)] == told(tmp_path)


@pytest.mark.parametrize("cut", [0, 100, 3000, 20_000])
def test_a_torn_file_comes_first_although_it_cannot_tell_its_step(cut: int, tmp_path: Path) -> None:
    """It was written last, whatever the clock says; where its structure is still there under a checksum, so is its step."""
    keep(tmp_path, 10, 20)
    save(tmp_path, 30)
    os.truncate(tmp_path / NAME, cut)
    os.utime(tmp_path / NAME, (1, 1))

    rungs = ladder(tmp_path)
    assert [NAME, shelved_name(20), shelved_name(10)] == [rung.name for rung in rungs]
    assert [30 if cut >= 3000 else 20, 20, 10] == [rung.step for rung in rungs]
    assert rungs[0].mtime_ns > max(rung.mtime_ns for rung in rungs[1:])
    assert [Kind.TRUNCATED, Kind.HEALTHY, None] == [rung.verdict and rung.verdict.kind for rung in rungs]


def test_a_rotten_copy_is_judged_and_passed(tmp_path: Path) -> None:
    """Without a file in place the ladder is read down to the first proven copy."""
    keep(tmp_path, 10, 20)
    (tmp_path / NAME).unlink()
    flip_bit(tmp_path / shelved_name(20), 2000)
    assert [(shelved_name(20), 20, "corrupt"), (shelved_name(10), 10, "healthy")] == told(tmp_path)


def test_a_file_in_place_that_is_older_than_a_copy_is_not_the_newest(tmp_path: Path) -> None:
    """Somebody put an older one back: by its step it stands where it belongs."""
    keep(tmp_path, 10, 20)
    save(tmp_path, 15)
    assert [(shelved_name(20), 20, "healthy"), (NAME, 15, "intact"), (shelved_name(10), 10, None)] == told(tmp_path)


def test_copies_of_another_run_do_not_count(tmp_path: Path) -> None:
    """Neither in the ladder nor for retention."""
    keep(tmp_path, 10, 20)
    foreign = {rung.name: rung.identity for rung in scan_shelf(str(tmp_path))}
    save(tmp_path, 5)

    assert [NAME] == [rung.name for rung in ladder(tmp_path, foreign)]
    verifier = Verifier(str(tmp_path), r"ckpt\.pt", 0.0, foreign, has_shelf=True)
    keep(tmp_path, 5, 6, 7, is_ours=verifier.candidates.is_ours)
    assert [20, 10, 7, 6] == shelved(tmp_path)


def test_copies_are_no_arrivals(tmp_path: Path) -> None:
    """They were told when they were in place; a look while the trainer lives sees the one file only."""
    keep(tmp_path, 10, 20)
    verifier = Verifier(str(tmp_path), r"ckpt\.pt", 0.0, {}, has_shelf=True)
    first = verifier.judge_ladder()
    assert isinstance(first, LadderJudged)
    assert {NAME} == first.arrived
    assert ([], None) == verifier.look()

    save(tmp_path, 30)
    events, _ = verifier.look({NAME})
    assert [(NAME, 30)] == [(event.rung.name, event.rung.step) for event in events if hasattr(event, "rung")]
    assert not any(is_shelved(getattr(event, "name", "")) for event in events)

"""Quarantine keeps everything, retention leaves nothing, and a cut between two steps does no harm."""

import calendar
import errno
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lastgood.judging import verify
from lastgood.lock import WriterLock
from lastgood.publish import publish
from lastgood.seal import Identity, bound_seal_path, bound_seal_text
from lastgood.sealing import seal_snapshot
from lastgood.verdict import Kind
from supervisor.adapters import places
from supervisor.adapters.places import drop_orphaned_seals, prune, put_back, set_aside, sweep

FINDING = {"name": "a.pt", "step": 7, "reason": "truncated: ends early", "sha256": None}


class Cut(BaseException):
    """Stands for SIGKILL."""


def make(folder: Path, name: str = "a.pt", content: bytes = b"bytes") -> Path:
    """A snapshot with its writer's seal and a supervisor's."""
    path = folder / name
    done = publish(path, lambda file: file.write(content))
    bound = Path(bound_seal_path(path))
    bound.parent.mkdir(parents=True, exist_ok=True)
    bound.write_text(bound_seal_text(done.sha256, Identity.of(path.stat())))
    return path


def tree(folder: Path) -> set[str]:
    """Every file and every empty folder below, as paths."""
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir() or not any(p.iterdir())}


def quarantined(folder: Path) -> list[Path]:
    base = folder / ".lastgood" / "quarantine"
    return sorted(base.iterdir()) if base.exists() else []


def cut_at(monkeypatch: pytest.MonkeyPatch, call: str, number: int, what: BaseException) -> dict[str, int]:
    """Have a system call fail at its n-th use; returns the counter."""
    counted = {"n": 0}
    real: Callable[..., object] = getattr(os, call)

    def counting(*args: object, **more: object) -> object:
        counted["n"] += 1
        if counted["n"] == number:
            raise what
        return real(*args, **more)

    monkeypatch.setattr(os, call, counting)
    return counted


def test_what_is_set_aside_keeps_its_bytes_its_seals_and_the_reason(tmp_path: Path) -> None:
    """Data, both seals and the finding are together in one folder, and nothing is left where they were."""
    make(tmp_path)
    place = Path(set_aside(str(tmp_path), "a.pt", FINDING)).parent

    assert {"a.pt", "a.pt.sha256", "a.pt.json", "reason.json"} == {entry.name for entry in place.iterdir()}
    assert b"bytes" == (place / "a.pt").read_bytes()
    assert FINDING == json.loads((place / "reason.json").read_text())
    assert [place] == quarantined(tmp_path)
    assert {".lastgood/seals", *(f".lastgood/quarantine/{place.name}/{n}" for n in os.listdir(place))} == tree(tmp_path)
    assert Kind.HEALTHY is verify(place / "a.pt").kind


def test_what_is_put_back_is_as_it_was(tmp_path: Path) -> None:
    """Bytes and seals are in their places, nothing of it is left in quarantine, and the verdict is the old one."""
    make(tmp_path)
    before = tree(tmp_path)
    set_aside(str(tmp_path), "a.pt", FINDING)

    put_back(str(tmp_path), "a.pt")

    assert before == tree(tmp_path) - {".lastgood/quarantine"}
    assert Kind.HEALTHY is verify(tmp_path / "a.pt").kind


def test_of_several_of_a_name_the_last_one_is_put_back(tmp_path: Path) -> None:
    """The others stay where they are."""
    for content in (b"first", b"second"):
        make(tmp_path, content=content)
        set_aside(str(tmp_path), "a.pt", FINDING)

    put_back(str(tmp_path), "a.pt")

    assert b"second" == (tmp_path / "a.pt").read_bytes()
    assert [b"first"] == [(place / "a.pt").read_bytes() for place in quarantined(tmp_path)]


def test_nothing_is_put_back_over_another(tmp_path: Path) -> None:
    """A name that is taken by now keeps its file and its seal; what is not in quarantine cannot be put back."""
    make(tmp_path)
    set_aside(str(tmp_path), "a.pt", FINDING)
    make(tmp_path, content=b"another")
    before = tree(tmp_path)

    with pytest.raises(FileExistsError, match="another one of that name"):
        put_back(str(tmp_path), "a.pt")
    with pytest.raises(FileNotFoundError, match="not in quarantine"):
        put_back(str(tmp_path), "b.pt")
    assert before == tree(tmp_path)
    assert Kind.HEALTHY is verify(tmp_path / "a.pt").kind


@pytest.mark.parametrize("number", range(1, 4))
def test_putting_back_that_is_cut_short_loses_nothing(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between two of its steps, the bytes are in one of the two places, and a seal condemns nobody."""
    path = make(tmp_path)
    content = path.read_bytes()
    set_aside(str(tmp_path), "a.pt", FINDING)
    cut_at(monkeypatch, "rename", number, Cut())

    with pytest.raises(Cut):
        put_back(str(tmp_path), "a.pt")
    monkeypatch.undo()

    assert [content] == [one.read_bytes() for one in tmp_path.rglob("a.pt")]
    drop_orphaned_seals(str(tmp_path))
    put_back(str(tmp_path), "a.pt")
    assert verify(path).proven or verify(path).kind is Kind.UNPROVEN


def test_a_snapshot_without_seals_is_set_aside_alone(tmp_path: Path) -> None:
    """Seals are no condition, and names that are no UTF-8 no obstacle."""
    name = os.fsdecode(b"ckpt_\xff 1.pt")
    (tmp_path / name).write_bytes(b"x")
    place = Path(set_aside(str(tmp_path), name, {"name": name})).parent

    assert {name, "reason.json"} == set(os.listdir(place))


def test_the_folder_says_when_and_what(tmp_path: Path) -> None:
    """A person finds a snapshot by its name and the time, in UTC, at which it was set aside."""
    make(tmp_path)
    before = time.time()
    place = Path(set_aside(str(tmp_path), "a.pt", FINDING)).parent

    stamp, _, name = place.name.partition("-")
    at = calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ"))
    assert "a.pt" == name
    assert before - 1 <= at <= time.time()


def test_snapshots_of_one_name_do_not_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set aside twice within a second, both are kept."""
    monkeypatch.setattr(places.time, "gmtime", lambda: time.struct_time((2026, 1, 2, 3, 4, 5, 4, 2, 0)))
    kept = []
    for number in range(12):
        make(tmp_path, content=b"%d" % number)
        kept.append(Path(set_aside(str(tmp_path), "a.pt", FINDING)))

    assert [b"%d" % number for number in range(12)] == [path.read_bytes() for path in kept]
    assert ["20260102T030405Z-a.pt", "20260102T030405Z-a.pt.1"] == [path.parent.name for path in kept[:2]]


def test_a_missing_snapshot_leaves_no_trace(tmp_path: Path) -> None:
    """What is not there cannot be set aside, and no empty folder says that it was; its seal stays for the sweep."""
    make(tmp_path).unlink()

    with pytest.raises(FileNotFoundError):
        set_aside(str(tmp_path), "a.pt", FINDING)
    assert [] == quarantined(tmp_path)
    assert (tmp_path / "a.pt.sha256").exists()


@pytest.mark.parametrize("call", ["rename", "replace", "open", "fsync"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_cannot_be_moved_is_left_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """Whichever call fails, the snapshot is where it was with its seals and no trace, or it is set aside as a whole."""
    make(tmp_path)
    before = tree(tmp_path)
    with monkeypatch.context() as patch:
        cut_at(patch, call, number, PermissionError(errno.EACCES, "Permission denied"))
        try:
            set_aside(str(tmp_path), "a.pt", FINDING)
            moved = True
        except PermissionError:
            moved = False

    if moved:
        [place] = quarantined(tmp_path)
        assert {"a.pt", "reason.json"} <= set(os.listdir(place))
        assert not (tmp_path / "a.pt").exists()
    else:
        assert before == tree(tmp_path) - {".lastgood/quarantine"}
        assert Kind.HEALTHY is verify(tmp_path / "a.pt").kind


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_on_a_full_disk_it_leaves_without_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A bad snapshot must leave the trainer's sight also when there is no room to write down why."""
    make(tmp_path)

    def full(path: str, content: bytes) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(places, "write_durably", full)
    path = Path(set_aside(str(tmp_path), "a.pt", FINDING))

    assert b"bytes" == path.read_bytes()
    assert {"a.pt", "a.pt.sha256", "a.pt.json"} == set(os.listdir(path.parent))


def test_the_longest_of_names_can_be_set_aside(tmp_path: Path) -> None:
    """A name as long as the filesystem allows still finds a folder, again and again."""
    name = "é" * 126 + ".pt"  # 255 bytes
    kept = []
    for _ in range(3):
        (tmp_path / name).write_bytes(b"x")
        kept.append(set_aside(str(tmp_path), name, FINDING))

    assert 3 == len(set(kept))
    assert {name} == {os.path.basename(path) for path in kept}


def test_a_finding_may_hold_what_json_has_no_word_for(tmp_path: Path) -> None:
    """Whatever the reason is made of, it does not stop the snapshot from being set aside."""
    make(tmp_path)
    path = Path(set_aside(str(tmp_path), "a.pt", {"kind": Kind.CORRUPT, "path": Path("/a"), "name": "\udcff"}))

    assert {"kind": "corrupt", "path": repr(Path("/a")), "name": "\udcff"} == json.loads(
        (path.parent / "reason.json").read_text()
    )


def test_the_move_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both folders of the move are synced after it, and the one between."""
    make(tmp_path)
    synced: list[str] = []
    monkeypatch.setattr(places, "fsync_folder", synced.append)
    path = Path(set_aside(str(tmp_path), "a.pt", FINDING))

    assert [str(path.parent), str(path.parent.parent), str(tmp_path)] == synced


def test_a_cut_between_data_and_seal_leaves_an_orphan_that_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the data moved, a set-aside leaves a seal that the next start removes, and nothing else of anybody."""
    make(tmp_path, "a.bin")
    make(tmp_path, "b.bin")
    with monkeypatch.context() as patch:
        cut_at(patch, "rename", 2, Cut())
        with pytest.raises(Cut):
            set_aside(str(tmp_path), "a.bin", FINDING)
    before = tree(tmp_path)

    assert ["a.bin.sha256"] == drop_orphaned_seals(str(tmp_path))
    assert {"a.bin.sha256", ".lastgood/seals/a.bin.json"} == before - tree(tmp_path)
    assert set() == tree(tmp_path) - before
    assert [] == drop_orphaned_seals(str(tmp_path))

    (tmp_path / "a.bin").write_bytes(b"another a")
    assert Kind.UNPROVEN is verify(tmp_path / "a.bin").kind


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("notes.txt", b"0" * 64),
        (".sha256", b""),
        ("all.sha256", b"%s  x.pt\n%s  y.pt\n" % (b"0" * 64, b"1" * 64)),
        ("gone.pt.sha256", b"garbled"),
        ("gone.pt.sha256", b""),
        ("here.sha256", b"0" * 64),
    ],
)
def test_only_what_could_condemn_a_snapshot_is_dropped(tmp_path: Path, name: str, content: bytes) -> None:
    """Lists of other files' digests, garbled seals and seals of what is there stay."""
    (tmp_path / "here").write_bytes(b"x")
    (tmp_path / name).write_bytes(content)

    assert [] == drop_orphaned_seals(str(tmp_path))
    assert content == (tmp_path / name).read_bytes()


def test_a_folder_that_is_called_like_a_seal_stays(tmp_path: Path) -> None:
    """Something that cannot be read as a seal neither goes nor stops the others from going."""
    (tmp_path / "a.sha256").mkdir()
    (tmp_path / "b.sha256").write_bytes(b"0" * 64)

    assert ["b.sha256"] == drop_orphaned_seals(str(tmp_path))
    assert {"a.sha256"} == tree(tmp_path)


def test_orphans_of_a_directory_that_is_gone_raise(tmp_path: Path) -> None:
    """A directory that cannot be read is not one without orphans."""
    with pytest.raises(FileNotFoundError):
        drop_orphaned_seals(str(tmp_path / "nowhere"))


def test_our_own_seals_go_with_their_snapshots(tmp_path: Path) -> None:
    """What was removed while nobody looked leaves no seal behind; other files in that folder are none."""
    for name in ("a.pt", "b.pt"):
        make(tmp_path, name)
    (tmp_path / ".lastgood" / "seals" / "a.pt").write_text("x")
    (tmp_path / "a.pt").unlink()
    drop_orphaned_seals(str(tmp_path))

    assert {"a.pt", "b.pt.json"} == set(os.listdir(tmp_path / ".lastgood" / "seals"))


def partial(folder: Path, name: str, pid: int) -> Path:
    path = folder / f".{name}.partial-{pid}-0123abcd"
    path.write_bytes(b"half of it")
    return path


@pytest.fixture
def dead() -> int:
    """The pid of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def test_what_killed_writers_and_removals_left_is_swept(tmp_path: Path, dead: int) -> None:
    """The space comes back, a seal whose data was being removed goes, and whole snapshots stay as they are."""
    make(tmp_path)
    whole = tree(tmp_path)
    half = {partial(tmp_path, "a.pt", dead).name, partial(tmp_path, "b.pt", dead).name}
    (tmp_path / "b.pt.sha256").write_bytes(b"0" * 64)
    folder = tmp_path / f".step-3.partial-{dead}-0123abcd"
    (folder / "shard").mkdir(parents=True)

    assert {*half, folder.name} == set(sweep(str(tmp_path)))
    assert {*whole, ".lastgood/writer.lock"} == tree(tmp_path)
    assert [] == sweep(str(tmp_path))
    lock = WriterLock(tmp_path)
    lock.hold()
    lock.release()


def test_nothing_is_swept_while_somebody_writes(tmp_path: Path, dead: int) -> None:
    """A partial of a living process, or the writer's lock in somebody's hands, keeps everything as it is."""
    left = partial(tmp_path, "a.pt", dead)
    lock = WriterLock(tmp_path)
    lock.hold()
    assert [] == sweep(str(tmp_path))
    lock.release()
    alive = partial(tmp_path, "b.pt", os.getppid())
    assert [] == sweep(str(tmp_path))
    assert left.exists()
    alive.unlink()

    assert [left.name] == sweep(str(tmp_path))


def test_a_directory_without_leftovers_is_left_as_it_is(tmp_path: Path) -> None:
    """No lock is taken and no folder made for nothing; a directory that is gone raises and is not made anew."""
    assert [] == sweep(str(tmp_path))
    assert set() == tree(tmp_path)
    with pytest.raises(FileNotFoundError):
        sweep(str(tmp_path / "nowhere"))
    assert set() == tree(tmp_path)


def test_pruning_leaves_nothing_of_a_snapshot_and_all_of_the_others(tmp_path: Path) -> None:
    """Data and both seals go, once and for all."""
    make(tmp_path)
    make(tmp_path, "b.pt")
    for _ in range(2):
        prune(str(tmp_path), "a.pt")

        assert {"b.pt", "b.pt.sha256", ".lastgood/seals/b.pt.json"} == tree(tmp_path)


@pytest.mark.parametrize("call", ["replace", "unlink"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_pruning_cut_anywhere_leaves_a_whole_snapshot_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """Killed at any step, it is still healthy or no candidate any more; going on raises nothing and condemns nothing."""
    make(tmp_path)
    with monkeypatch.context() as patch:
        cut_at(patch, call, number, Cut())
        try:
            prune(str(tmp_path), "a.pt")
        except Cut:
            pass
    if (tmp_path / "a.pt").exists():
        assert Kind.HEALTHY is verify(tmp_path / "a.pt").kind
    prune(str(tmp_path), "a.pt")
    drop_orphaned_seals(str(tmp_path))

    assert [] == [name for name in tree(tmp_path) if ".partial-" not in name and name != ".lastgood/seals"]


def test_pruning_what_cannot_be_removed_raises_and_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal of the system is passed on, and the snapshot is as it was."""
    make(tmp_path)
    before = tree(tmp_path)
    with monkeypatch.context() as patch:
        cut_at(patch, "replace", 1, PermissionError(errno.EACCES, "Permission denied"))
        with pytest.raises(PermissionError):
            prune(str(tmp_path), "a.pt")

    assert before == tree(tmp_path)


def test_the_orphaned_list_of_a_folder_is_dropped_and_other_lists_are_not(tmp_path):
    """It would condemn the next folder of that name; a list of files elsewhere condemns nothing."""
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    (folder / "model.pt").write_bytes(b"x")
    seal_snapshot(folder)
    (tmp_path / "all.sha256").write_text(f"{'0' * 64}  model.pt\n")
    shutil.rmtree(folder)

    assert ["checkpoint-5.sha256"] == drop_orphaned_seals(str(tmp_path))
    assert ["all.sha256"] == os.listdir(tmp_path)

"""Failures of saving, choosing and pruning that people met in the field: what must happen instead.

docs/cases.md names each case, where it was reported, and the test that keeps it, here or elsewhere.
"""

import argparse
import errno
import json
import logging
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from lastgood import CheckpointManager, checkpoint, judging, safe_load_checkpoint, save_checkpoint_atomic
from lastgood.checkpoint import load_verified
from lastgood.judging import verify
from lastgood.ledger import STILL_NS, Ledger, SealStamp, now_ns
from lastgood.publish import publish
from lastgood.rungs import Rung, judge, ladder, latest_healthy, scan
from lastgood.seal import Identity, seal_path
from lastgood.sealing import seal_snapshot
from lastgood.verdict import Kind, Verdict
from tests.conftest import MakeSnapshot, flip_bit
from tests.crash.operations import Stateful

ROOT = Path(__file__).parents[2]
NOBODY = 65534
FUTURE, PAST = 4102444800, 978307200  # the years 2100 and 2001


def save(manager: CheckpointManager, *steps: int) -> None:
    """Save at each of these steps, and wait for what follows a save."""
    for step in steps:
        manager.save(step, Stateful({"w": torch.full((500,), float(step))}), Stateful({}), rng_state={})
        manager.wait()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[CheckpointManager]:
    """Keeps two."""
    made = CheckpointManager(tmp_path, max_to_keep=2)
    yield made
    made.close()


def steps(folder: Path) -> list[int | None]:
    return [rung.step for rung in scan(folder)]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def named(step: int) -> str:
    return f"ckpt_{step:08d}.pt"


# What is chosen


def test_what_is_bad_is_named_and_not_touched(manager: CheckpointManager, tmp_path: Path) -> None:
    """With nothing good left, loading says what is wrong with each, starts nothing fresh, and leaves every byte where it is."""
    save(manager, 1, 2, 3)
    flip_bit(tmp_path / named(3), 900)
    (tmp_path / named(2)).write_bytes((tmp_path / named(2)).read_bytes()[:-8])
    before = contents(tmp_path)

    for load in (manager.load_latest, lambda: safe_load_checkpoint(tmp_path)):
        with pytest.raises(RuntimeError, match=rf"{named(3)} is corrupt .*; {named(2)} is (truncated|corrupt)"):
            load()
    assert latest_healthy(tmp_path) is None
    assert before == contents(tmp_path)


def test_a_good_file_that_torch_refuses_is_an_error_and_not_walked_past(tmp_path: Path) -> None:
    """Newer rules of loading say nothing about the bytes: no older one is taken instead, and none is touched."""
    for step in (1, 2):
        save_checkpoint_atomic({"step": step}, tmp_path / named(step))
    torch.save({"args": argparse.Namespace(lr=1e-3)}, tmp_path / named(3))
    before = contents(tmp_path)

    assert Kind.INTACT is verify(tmp_path / named(3)).kind
    with pytest.raises(RuntimeError, match=rf"{named(3)} is intact, but torch will not load it: .*Unsupported global"):
        safe_load_checkpoint(tmp_path)
    assert before == contents(tmp_path)


def test_what_is_loaded_was_proven_first(manager: CheckpointManager, tmp_path: Path) -> None:
    """A file that torch would load with wrong weights is refused with its verdict, whoever names it."""
    save(manager, 1)
    flip_bit(tmp_path / named(1), 1500)

    assert {} != torch.load(tmp_path / named(1), weights_only=True)
    for load in (load_verified, manager.load):
        with pytest.raises(RuntimeError, match="is corrupt: "):
            load(tmp_path / named(1))


POINTERS: list[Callable[[Path], object]] = [
    lambda at: at.write_text("ckpt_3.pt"),
    lambda at: at.write_bytes(b"ckpt_3.pt\r\n"),
    lambda at: at.write_bytes(b""),
    lambda at: at.write_text("ckpt_4.pt"),
    lambda at: at.symlink_to("ckpt_3.pt"),
    lambda at: at.symlink_to("ckpt_4.pt"),
    lambda at: at.symlink_to("step_9"),
]


@pytest.mark.parametrize("name", ["latest", "latest.txt", "checkpoint", "latest_checkpointed_iteration.txt", "last"])
@pytest.mark.parametrize(
    "point", POINTERS, ids=["text", "CRLF", "empty", "text to nowhere", "link", "to nowhere", "folder"]
)
def test_pointers_are_not_believed(
    make_zip: MakeSnapshot, tmp_path: Path, name: str, point: Callable[[Path], object]
) -> None:
    """A pointer is moved when a save begins: only what it points to can prove itself, and only by its own name."""
    good, half = make_zip("ckpt_2.pt", 2), make_zip("ckpt_3.pt", 3)
    half.write_bytes(half.read_bytes()[:5000])
    (tmp_path / "step_9").mkdir()
    (tmp_path / "step_9" / "rank_0.pt").write_bytes(half.read_bytes())
    point(tmp_path / name)

    assert ["step_9", "ckpt_3.pt", "ckpt_2.pt"] == [rung.name for rung in scan(tmp_path)]
    assert good == latest_healthy(tmp_path)


def test_of_several_last_ones_the_step_decides(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """A kill during rotation leaves two; a link to one of them is no third, and a half-deleted folder is none."""
    new, _ = make_zip("run-step=6224-last.ckpt", 6224), make_zip("run-step=4800-last.ckpt", 4800)
    (tmp_path / "last.ckpt").symlink_to(new)
    folder = tmp_path / "run-step=7000-last"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.bin").write_bytes(b"x")
    seal_snapshot(folder)
    (folder / "2.bin").unlink()

    assert [7000, 6224, 4800] == steps(tmp_path)
    assert Kind.INCOMPLETE is verify(folder).kind
    assert new == latest_healthy(tmp_path)


def test_rot_that_moves_no_time_is_found_at_the_choice(manager: CheckpointManager, tmp_path: Path) -> None:
    """A remembered verdict serves for a list; what is to be resumed is read again."""
    save(manager, 1, 2)
    path = tmp_path / named(2)
    flip_bit(path, 900)
    remembered = Verdict(Kind.HEALTHY, None, "as it was before")
    now, seal = now_ns() + 2 * STILL_NS, SealStamp.beside(str(path))
    Ledger(tmp_path, writable=True).put(str(path), Identity.of(path.stat()), remembered, now, seal)

    assert "as it was before" == next(iter(ladder(tmp_path))).verdict.reason  # type: ignore[union-attr]
    assert tmp_path / named(1) == latest_healthy(tmp_path)
    assert 1 == safe_load_checkpoint(tmp_path)["iter_num"]


def test_the_choice_is_made_again_when_the_chosen_one_goes_away(
    manager: CheckpointManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer may rotate between the choice and the load."""
    save(manager, 1, 2)
    real = checkpoint.choose

    def and_rotate(*arguments: object) -> object:
        (tmp_path / named(2)).unlink(missing_ok=True)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "choose", and_rotate)
    assert 1 == safe_load_checkpoint(tmp_path)["iter_num"]

    (tmp_path / named(1)).unlink()
    with pytest.raises(RuntimeError, match="holds no snapshot"):
        safe_load_checkpoint(tmp_path)


# What can be read


def refuse(monkeypatch: pytest.MonkeyPatch, path: Path, number: int) -> None:
    """Let every opening of a file fail with this error."""
    for module, name in (("builtins", "open"), ("os", "open")):
        real = getattr(sys.modules[module], name)

        def failing(at: object, *rest: object, _real: Callable[..., object] = real, **named: object) -> object:
            if isinstance(at, str | bytes | os.PathLike) and os.fspath(at) in (str(path), os.fsencode(path)):
                raise OSError(number, os.strerror(number), str(path))
            return _real(at, *rest, **named)

        monkeypatch.setattr(f"{module}.{name}", failing)
    monkeypatch.setattr(judging, "RETRY_SECONDS", 0.0)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EACCES], ids=errno.errorcode.get)
def test_what_cannot_be_read_now_is_passed_over_and_asked_again(
    make_zip: MakeSnapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It is neither bad nor remembered: once the storage is back, the newest is the newest again."""
    old, new = make_zip("ckpt_1.pt", 1), make_zip("ckpt_2.pt", 2)
    (tmp_path / ".lastgood").mkdir()
    monkeypatch.setattr("lastgood.rungs.now_ns", lambda: now_ns() + 2 * STILL_NS)
    ledger = Ledger(tmp_path, writable=True)
    with monkeypatch.context() as patch:
        refuse(patch, new, number)
        rungs = [judge(rung, ledger) for rung in scan(tmp_path)]

        assert [Kind.UNREADABLE, Kind.INTACT] == [rung.verdict.kind for rung in rungs if rung.verdict]
        assert old == latest_healthy(tmp_path)
    again = [judge(rung, ledger).verdict for rung in scan(tmp_path)]

    assert [Kind.INTACT, Kind.INTACT] == [verdict.kind for verdict in again if verdict]
    assert again == [judge(rung, Ledger(tmp_path)).verdict for rung in scan(tmp_path)]
    assert new == latest_healthy(tmp_path)


def test_a_seal_that_cannot_be_read_is_not_taken_for_none(
    manager: CheckpointManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Structure alone must not vouch for what has a stronger proof, out of reach for a moment."""
    save(manager, 1)
    refuse(monkeypatch, Path(seal_path(tmp_path / named(1))), errno.EIO)

    assert Kind.UNREADABLE is verify(tmp_path / named(1)).kind


@contextmanager
def bound_by_permissions() -> Iterator[None]:
    """For root, who is bound by none: as nobody."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that others may enter."""
    with tempfile.TemporaryDirectory(prefix="lastgood-") as made:
        os.chmod(made, 0o755)
        yield Path(made)
        os.chmod(made, 0o755)


def test_a_file_that_permissions_hide_is_not_called_bad(shared: Path) -> None:
    """Its bytes may be good, so it is passed over and stays; the reason names the permission."""
    for step in (1, 2):
        save_checkpoint_atomic({"step": step}, shared / named(step))
    os.chmod(shared / named(2), 0)
    with bound_by_permissions():
        verdict = verify(shared / named(2))

        assert (Kind.UNREADABLE, True) == (verdict.kind, verdict.forbidden)
        assert "permission denied" in verdict.reason
        assert shared / named(1) == latest_healthy(shared)
        assert 1 == safe_load_checkpoint(shared)["step"]
    assert [2, 1] == steps(shared)


def test_a_directory_that_may_only_be_read_can_be_resumed_from(shared: Path) -> None:
    """Loading and judging write nothing that they need; a save there is refused by the system, and changes nothing."""
    torch.save({"step": 1}, shared / named(1))
    save_checkpoint_atomic({"step": 2}, shared / named(2))
    os.chmod(shared, 0o555)
    before = contents(shared)
    with bound_by_permissions():
        assert 2 == safe_load_checkpoint(shared)["step"]
        assert [Kind.HEALTHY, Kind.INTACT] == [rung.verdict.kind for rung in ladder(shared) if rung.verdict]
        ledger = Ledger(shared, writable=True)
        ledger.put(str(shared / named(1)), Identity(1, 2, 3, 4), verify(shared / named(1)), now_ns())
        with pytest.raises(PermissionError):
            save(CheckpointManager(shared), 3)
    assert before == contents(shared)


# What is damage, and what is not


def local_header(path: Path, at: int, change: bytes) -> None:
    """Overwrite bytes of the first record's header."""
    data = bytearray(path.read_bytes())
    data[at : at + len(change)] = change
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("at", "change"), [(0, b"XX"), (8, b"\x08\0"), (14, b"\1\2\3\4"), (18, b"\5\0\0\0"), (30, b"q"), (26, b"\0\0")],
    ids=["mark", "method", "CRC", "size", "name", "length of the name"],
)  # fmt: skip
def test_a_header_that_disagrees_with_the_directory_is_damage(make_zip: MakeSnapshot, at: int, change: bytes) -> None:
    """Each says the same in a file that a writer made; who reads one must find what the other says."""
    path = make_zip("ckpt_1.pt")
    local_header(path, at, change)

    assert Kind.CORRUPT is verify(path).kind


def test_checksums_are_switched_off_only_if_all_are(make_zip: MakeSnapshot) -> None:
    """A writer leaves out every one: a single zero is no licence for damage elsewhere, nor is it for its own record."""
    path = make_zip("ckpt_1.pt", size=3000)
    data = bytearray(path.read_bytes())
    crc = struct.unpack_from("<L", data, 14)[0]
    for place in (14, data.find(struct.pack("<L", crc), 100)):
        data[place : place + 4] = bytes(4)
    path.write_bytes(data)
    assert Kind.CORRUPT is verify(path).kind

    flip_bit(path, 2000)
    assert Kind.CORRUPT is verify(path).kind


@pytest.mark.parametrize("size", [1, 50, 64, 65, 5000, 3 << 20])
def test_a_file_of_zeros_is_damage_whatever_its_size(tmp_path: Path, size: int) -> None:
    """What a power cut leaves of a file whose length was durable and whose bytes were not."""
    (tmp_path / "state_5.json").write_bytes(bytes(size))

    assert Kind.CORRUPT is verify(tmp_path / "state_5.json").kind


# What is saved


def test_every_file_of_a_save_follows_the_umask(manager: CheckpointManager, tmp_path: Path) -> None:
    """Snapshot, seal, ledger and lock are for whom the umask says."""
    before = os.umask(0o007)
    try:
        save(manager, 1, 2)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}

    assert 0o770 == modes.pop(".lastgood")
    assert {0o660} == set(modes.values()), modes
    assert {named(1), named(1) + ".sha256", "writer.lock"} <= modes.keys()


def test_leftovers_of_other_writers_hinder_nobody_and_stay(manager: CheckpointManager, tmp_path: Path) -> None:
    """What an interrupted save of the same step left is no candidate, is in nobody's way, and is not ours to remove."""
    save(manager, 200)
    for name in ("tmp-checkpoint-300", "300.orbax-checkpoint-tmp-0", f"{named(300)}-tmp-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_bytes(b"half")
    left = [f"{named(300)}.tmp", f".{named(300)}.swp", f"{named(300)}.part", f"tmp-{named(300)}", f"{named(300)}~"]
    for name in left:
        (tmp_path / name).write_bytes(b"half")

    assert [200] == steps(tmp_path)
    save(manager, 300, 400)
    assert [400, 300] == steps(tmp_path)
    assert all((tmp_path / name).read_bytes() == b"half" for name in left)
    assert 3 == len(list(tmp_path.glob("*/part")))


def test_a_snapshot_of_any_name_is_saved_and_shown(tmp_path: Path) -> None:
    """A name may be no text, or hold what a terminal obeys; commands print it in the locale C, and their JSON is whole."""
    names = [b"step_\xff100.pt", b"\x1b[31mstep_7.pt", b"line\nstep_8.pt"]
    for name in names:
        publish(os.path.join(tmp_path, os.fsdecode(name)), lambda file: file.write(b"some bytes"))
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}

    def told(*words: str) -> bytes:
        command = [sys.executable, "-m", "supervisor", *words]
        done = subprocess.run(command, capture_output=True, check=False, cwd=ROOT, env=environment)
        assert (0, b"") == (done.returncode, done.stderr)
        return done.stdout

    assert {100, 7, 8} == {entry["step"] for entry in json.loads(told("list", str(tmp_path), "--json"))}
    assert 3 == len(json.loads(told("verify", str(tmp_path), "--json")))
    assert 3 == told("verify", str(tmp_path)).count(b"healthy")
    assert b"\x1b" not in told("list", str(tmp_path))


# What is pruned


def test_pruning_and_choice_go_by_step_whatever_the_times_say(manager: CheckpointManager, tmp_path: Path) -> None:
    """A filesystem that keeps no times, or wrong ones, costs nobody the newest snapshot."""
    save(manager, 800)
    os.utime(tmp_path / named(800), (FUTURE, FUTURE))
    save(manager, 1000)
    os.utime(tmp_path / named(1000), (PAST, PAST))
    save(manager, 1100)

    assert [1100, 1000] == steps(tmp_path)
    os.utime(tmp_path / named(1100), (PAST, PAST))
    assert tmp_path / named(1100) == latest_healthy(tmp_path)


def test_another_runs_higher_steps_neither_go_nor_push_out(manager: CheckpointManager, tmp_path: Path) -> None:
    """In a directory that was used before, the new run keeps its own newest, and the old run's stay."""
    old = CheckpointManager(tmp_path, max_to_keep=3)
    save(old, 500, 600, 700)
    old.close()
    save(manager, 100)
    assert [700, 600, 500, 100] == steps(tmp_path)

    save(manager, 200, 300)
    assert [700, 600, 500, 300, 200] == steps(tmp_path)


@pytest.mark.parametrize("name", ["best.pt", "best", named(1) + ".kept"])
def test_what_a_link_points_to_is_not_pruned(manager: CheckpointManager, tmp_path: Path, name: str) -> None:
    """Whatever the link is called: it would point nowhere."""
    save(manager, 1)
    (tmp_path / name).symlink_to(named(1))
    save(manager, 2, 3, 4)

    assert [4, 3, 1] == [step for step in steps(tmp_path) if step is not None]
    assert (tmp_path / name).exists()


def test_a_new_one_that_no_reader_would_choose_costs_no_old_one(
    manager: CheckpointManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that are right under a seal that says otherwise are no newer snapshot, and the next call says so."""
    save(manager, 1, 2)

    def garble_the_seal(*where: object) -> list[Rung]:
        Path(seal_path(tmp_path / named(3))).write_text("0" * 64 + "\n")
        return scan(*where)

    monkeypatch.setattr(checkpoint, "scan", garble_the_seal)
    with pytest.raises(OSError, match="nothing was pruned"):
        save(manager, 3)
    assert [3, 2, 1] == steps(tmp_path)


def test_one_that_is_gone_before_it_is_read_back_prunes_nothing(
    manager: CheckpointManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who removes the newest snapshot must not be joined by the library removing the oldest."""
    save(manager, 1, 2)

    def remove_it(*where: object) -> list[Rung]:
        os.unlink(tmp_path / named(3))
        return scan(*where)

    monkeypatch.setattr(checkpoint, "scan", remove_it)
    with pytest.raises(OSError, match="it is gone"):
        save(manager, 3)
    assert [2, 1] == steps(tmp_path)


@pytest.mark.parametrize("mistake", [FileNotFoundError(errno.ENOENT, "gone"), OSError(errno.EBUSY, "busy")])
def test_what_cannot_be_pruned_is_a_warning(
    manager: CheckpointManager,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mistake: OSError,
) -> None:
    """Somebody else was first, or a mount is in the way: the save went well all the same, and the next pruning goes on."""

    def failing(path: object) -> None:
        raise mistake

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "lastgood"):
        patch.setattr(checkpoint, "remove", failing)
        save(manager, 1, 2, 3)
    assert f"could not prune {named(1)}" in caplog.text
    save(manager, 4)
    assert [4, 3] == steps(tmp_path)


# Who may write


def test_a_lock_file_that_a_killed_writer_left_keeps_nobody_out(manager: CheckpointManager, tmp_path: Path) -> None:
    """The kernel's lock goes with its holder; the file says nothing."""
    (tmp_path / ".lastgood").mkdir()
    (tmp_path / ".lastgood" / "writer.lock").write_text("1\n")
    save(manager, 1)

    assert f"{os.getpid()}\n" == (tmp_path / ".lastgood" / "writer.lock").read_text()


def test_in_a_directory_that_was_made_anew_one_writer_is_left(manager: CheckpointManager, tmp_path: Path) -> None:
    """Who holds the lock of a file that is gone holds nothing: of two only the one that took the new file saves."""
    save(manager, 1)
    shutil.rmtree(tmp_path / ".lastgood")
    other = CheckpointManager(tmp_path)
    save(other, 2)
    with pytest.raises(RuntimeError, match="one process saves at a time"):
        save(manager, 3)
    other.close()
    shutil.rmtree(tmp_path / ".lastgood")
    save(manager, 3)

    assert [3, 2] == steps(tmp_path)


# The page about them


def test_every_case_names_tests_that_are_there() -> None:
    """docs/cases.md can be believed."""
    page = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
    named_tests = re.findall(r"`(tests/\S+\.py)::(\w+)`", page)

    assert 40 < len(named_tests)
    for file, name in named_tests:
        assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"

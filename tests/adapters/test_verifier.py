"""What arrives is judged once it is whole, told once, and told again only when it is something else."""

import errno
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lastgood import rungs
from lastgood.publish import publish
from lastgood.seal import Identity, bound_seal_path, read_bound_seal
from lastgood.verdict import Kind, Proof, Verdict
from supervisor import candidates
from supervisor.adapters import verifier as module
from supervisor.adapters.verifier import Verifier
from supervisor.core.events import LadderJudged, LadderUnreadable, SnapshotGone, SnapshotJudged
from tests.conftest import MakeSnapshot, flip_bit

SETTLE = 1.0


class Clock:
    """Monotonic time that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_verifier(tmp_path: Path, clock: Clock) -> Callable[..., Verifier]:
    """Makes verifiers of `tmp_path` that go by `clock`."""

    def make(**more: Any) -> Verifier:
        given = {"pattern": None, "settle_seconds": SETTLE, "foreign": {}, "clock": clock, **more}
        return Verifier(str(tmp_path), **given)

    return make


@pytest.fixture
def verifier(make_verifier: Callable[..., Verifier]) -> Verifier:
    return make_verifier()


def told(verifier: Verifier, *hinted: str) -> list[tuple[str, str]]:
    """What a look tells, as names and verdicts."""
    found, _ = verifier.look(hinted)
    return [(e.name, "gone") if isinstance(e, SnapshotGone) else (e.rung.name, _kind(e)) for e in found]


def _kind(event: SnapshotJudged) -> str:
    assert event.rung.verdict is not None
    return str(event.rung.verdict.kind)


def settled(verifier: Verifier, clock: Clock) -> list[tuple[str, str]]:
    """What is told now and once everything has settled."""
    first = told(verifier)
    clock.now += SETTLE
    return first + told(verifier)


def sealed(path: Path, content: bytes = b"bytes") -> Path:
    publish(path, lambda file: file.write(content))
    return path


def identity(path: Path) -> Identity:
    return Identity.of(path.stat())


def judged_as(monkeypatch: pytest.MonkeyPatch, before: Callable[[Path], object]) -> None:
    """Have something happen to each file right before it is judged."""
    real = module.judge

    def judge(rung: rungs.Rung, *args: Any, **more: Any) -> rungs.Rung:
        happened = before(rung.path)
        return rung._replace(verdict=happened) if isinstance(happened, Verdict) else real(rung, *args, **more)

    monkeypatch.setattr(module, "judge", judge)


def test_a_file_that_grows_is_not_judged(
    verifier: Verifier, clock: Clock, tmp_path: Path, make_zip: MakeSnapshot
) -> None:
    """As long as each look finds it changed nothing is told; once it is still for the time to settle, it is."""
    whole = make_zip("elsewhere.tmp", step=5).read_bytes()
    path = tmp_path / "step_5.pt"
    for end in range(1000, len(whole), 1000):
        path.write_bytes(whole[:end])
        assert [] == told(verifier)
        clock.now += SETTLE
    path.write_bytes(whole)

    assert [] == told(verifier)
    clock.now += SETTLE * 0.9
    assert [] == told(verifier)
    clock.now += SETTLE * 0.1
    assert [("step_5.pt", "intact")] == told(verifier)


def test_a_hint_makes_a_whole_file_judged_at_once(verifier: Verifier, make_zip: MakeSnapshot) -> None:
    """A file that was closed or renamed and proves itself need not settle; it is told once."""
    make_zip("step_5.pt")

    assert [] == told(verifier)
    assert [("step_5.pt", "intact")] == told(verifier, "step_5.pt")
    assert [] == told(verifier, "step_5.pt")


@pytest.mark.parametrize(
    ("content", "verdict"), [(b"PK\x03\x04 and no end", "truncated"), (b"\x80 a pickle", "unproven")]
)
def test_a_hint_is_not_enough_for_what_is_not_proven(
    verifier: Verifier, clock: Clock, tmp_path: Path, content: bytes, verdict: str
) -> None:
    """What looks broken, or proves nothing, may still be written: it is judged when it has settled."""
    (tmp_path / "step_5.pt").write_bytes(content)

    for _ in range(3):
        assert [] == told(verifier, "step_5.pt")
        clock.now += SETTLE / 3
    assert [("step_5.pt", verdict)] == told(verifier, "step_5.pt")


def test_a_hint_on_a_file_that_had_been_still_is_no_proof_of_its_end(
    verifier: Verifier, clock: Clock, tmp_path: Path
) -> None:
    """A writer that paused for long and goes on is not judged by how still its file was before."""
    path = tmp_path / "step_5.pt"
    path.write_bytes(b"PK\x03\x04")
    assert [] == told(verifier)
    clock.now += 10 * SETTLE
    path.write_bytes(b"PK\x03\x04 and more")

    assert [] == told(verifier, "step_5.pt")
    clock.now += SETTLE
    assert [("step_5.pt", "truncated")] == told(verifier, "step_5.pt")


def test_a_sealed_file_is_judged_at_once(verifier: Verifier, tmp_path: Path) -> None:
    """What was published with a seal is whole, so it is good or bad without waiting; bad news is told first."""
    sealed(tmp_path / "ckpt_1.pt")
    flip_bit(sealed(tmp_path / "ckpt_2.pt"), 2)

    assert [("ckpt_2.pt", "corrupt"), ("ckpt_1.pt", "healthy")] == told(verifier)
    assert [] == told(verifier)


def test_old_files_are_judged_at_once_if_they_prove_themselves(
    verifier: Verifier, clock: Clock, tmp_path: Path, make_zip: MakeSnapshot
) -> None:
    """What has not been written for a minute need not settle; if it is not proven it does all the same."""
    bad = tmp_path / "step_6.pt"
    bad.write_bytes(b"PK\x03\x04")
    for path in (make_zip("step_5.pt"), bad):
        os.utime(path, (1_700_000_000, 1_700_000_000))

    assert [("step_5.pt", "intact")] == told(verifier)
    clock.now += SETTLE
    assert [("step_6.pt", "truncated")] == told(verifier)


def test_the_oldest_arrival_is_told_first(verifier: Verifier, tmp_path: Path) -> None:
    """Several that came between two looks are told in the order of their steps."""
    for step in (10_000, 2, 900):
        sealed(tmp_path / f"ckpt_{step}.pt")

    assert ["ckpt_2.pt", "ckpt_900.pt", "ckpt_10000.pt"] == [name for name, _ in told(verifier)]


def test_a_look_says_when_to_look_again(verifier: Verifier, clock: Clock, make_zip: MakeSnapshot) -> None:
    """Only while something has to settle is there a time for the next look."""
    assert ([], None) == verifier.look()
    make_zip("step_5.pt")
    assert ([], SETTLE) == verifier.look()
    clock.now += SETTLE
    assert None is verifier.look()[1]


def test_what_does_not_settle_and_goes_away_is_forgotten(verifier: Verifier, tmp_path: Path) -> None:
    """A file that is gone before it was ever told is not waited for, and its end is no news."""
    (tmp_path / "step_5.pt").write_bytes(b"PK")
    verifier.look()
    (tmp_path / "step_5.pt").unlink()

    assert ([], None) == verifier.look()


def test_without_a_time_to_settle_a_file_is_judged_at_the_next_look(
    make_verifier: Callable[..., Verifier], make_zip: MakeSnapshot
) -> None:
    """A wait of zero seconds still means two looks."""
    verifier = make_verifier(settle_seconds=0.0)
    make_zip("step_5.pt")

    assert ([], 0.0) == verifier.look()
    assert [("step_5.pt", "intact")] == told(verifier)


def test_partials_seals_and_hidden_files_are_nobody(verifier: Verifier, clock: Clock, tmp_path: Path) -> None:
    """What is being written, and what belongs to another file, is never told."""
    for name in (".ckpt_1.pt.partial-1-0123abcd", "ckpt_1.pt.tmp", "ckpt_1.pt.sha256", ".hidden.pt", "log.txt"):
        (tmp_path / name).write_bytes(b"x")

    assert [] == settled(verifier, clock)


def test_a_hint_about_nothing_is_harmless(verifier: Verifier) -> None:
    """Names that are not there, or never were snapshots, change nothing."""
    assert [] == told(verifier, "nowhere.pt", "", "a/b")


def test_a_file_that_changed_after_its_verdict_is_told_again(
    verifier: Verifier, clock: Clock, tmp_path: Path, make_zip: MakeSnapshot
) -> None:
    """Overwritten in place or by rename, it is a new arrival with a verdict of its own."""
    path = make_zip("step_5.pt")
    assert [("step_5.pt", "intact")] == settled(verifier, clock)
    path.write_bytes(path.read_bytes()[:5000])
    assert [("step_5.pt", "truncated")] == settled(verifier, clock)
    os.replace(make_zip("step_5.tmp", step=6), path)
    assert [("step_5.pt", "intact")] == settled(verifier, clock)


def seal_text_of(path: Path, content: bytes | None = None) -> str:
    data = path.read_bytes() if content is None else content
    return f"{hashlib.sha256(data).hexdigest()}  {path.name}\n"


def test_a_seal_that_comes_late_gives_a_new_verdict(
    verifier: Verifier, clock: Clock, tmp_path: Path, make_zip: MakeSnapshot
) -> None:
    """What was told as intact is told again as healthy once somebody sealed it, however slowly the seal was written."""
    path = make_zip("step_5.pt")
    seal = Path(f"{path}.sha256")
    assert [("step_5.pt", "intact")] == settled(verifier, clock)
    seal.touch()
    assert [] == settled(verifier, clock)
    seal.write_text(seal_text_of(path))
    assert [("step_5.pt", "healthy")] == told(verifier)
    assert [] == settled(verifier, clock)
    seal.unlink()
    assert [("step_5.pt", "intact")] == told(verifier)
    assert ([], None) == verifier.look()


def test_a_late_seal_that_condemns_is_given_the_time_in_which_its_bytes_may_come(
    verifier: Verifier, clock: Clock, tmp_path: Path, make_zip: MakeSnapshot
) -> None:
    """A seal put in place before its data does not make the old data corrupt; one that stays does."""
    path, new = make_zip("step_5.pt"), make_zip("new.tmp", step=6)
    seal = Path(f"{path}.sha256")
    assert [("step_5.pt", "intact")] == settled(verifier, clock)
    seal.write_text(seal_text_of(path, new.read_bytes()))
    assert [] == told(verifier, "step_5.pt")
    os.replace(new, path)
    assert [("step_5.pt", "healthy")] == settled(verifier, clock)

    seal.write_text(seal_text_of(path, b"other bytes"))
    assert [] == settled(verifier, clock), "a seal edited in place is not asked again about bytes that it had proven"
    shutil.copy(seal, tmp_path / "seal.tmp")
    os.replace(tmp_path / "seal.tmp", seal)
    assert [("step_5.pt", "corrupt")] == settled(verifier, clock)
    assert [] == settled(verifier, clock)


def test_a_seal_that_condemned_for_a_moment_is_no_news(
    verifier: Verifier, clock: Clock, make_zip: MakeSnapshot
) -> None:
    """Taken away again in time, it leaves neither a verdict nor a reason to look again."""
    path = make_zip("step_5.pt")
    assert [("step_5.pt", "intact")] == settled(verifier, clock)
    Path(f"{path}.sha256").write_text(seal_text_of(path, b"other bytes"))
    assert ([], SETTLE) == verifier.look()
    Path(f"{path}.sha256").unlink()

    assert ([], None) == verifier.look()
    assert [] == settled(verifier, clock)


def test_a_seal_that_says_the_same_costs_no_reading(
    verifier: Verifier, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a name is overwritten its seal changes twice; bytes that both accept are told once and read once."""
    path = sealed(tmp_path / "ckpt_1.pt")
    assert [("ckpt_1.pt", "healthy")] == told(verifier)
    with monkeypatch.context() as patch:
        judged_as(patch, lambda path: pytest.fail(f"{path} was read again"))
        for comment in ("# replaces " + "0" * 64 + "\n", ""):
            other = tmp_path / "seal.tmp"
            other.write_text(comment + seal_text_of(path))
            os.replace(other, f"{path}.sha256")
            assert [] == settled(verifier, clock)
            assert set() == ladder(verifier)[1]


def test_the_ladder_tells_what_was_sealed_unseen(
    verifier: Verifier, clock: Clock, tmp_path: Path, make_zip: MakeSnapshot
) -> None:
    """A seal that came between the last look and the death makes a snapshot count as healthy, once."""
    path = make_zip("step_5.pt")
    assert [("step_5.pt", "intact")] == settled(verifier, clock)
    Path(f"{path}.sha256").write_text(seal_text_of(path))

    assert ([("step_5.pt", "healthy")], {"step_5.pt"}) == ladder(verifier)
    assert set() == ladder(verifier)[1]
    assert [] == settled(verifier, clock)


def test_a_seal_beside_what_we_had_sealed_is_no_news(
    verifier: Verifier, clock: Clock, tmp_path: Path, make_zip: MakeSnapshot
) -> None:
    """Healthy by our own seal or by a person's is healthy."""
    path = make_zip("step_5.pt")
    settled(verifier, clock)
    assert None is not verifier.seal("step_5.pt")
    Path(f"{path}.sha256").write_text(seal_text_of(path))

    assert [] == settled(verifier, clock)


def test_a_seal_that_cannot_be_read_says_nothing(
    verifier: Verifier, clock: Clock, tmp_path: Path, make_zip: MakeSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An I/O error at a new seal ends no look: the bytes are judged again."""
    path = sealed(tmp_path / "ckpt_1.pt")
    assert [("ckpt_1.pt", "healthy")] == told(verifier)
    Path(f"{path}.sha256").unlink()

    def failing(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(module, "read_seal", failing)
    assert [("ckpt_1.pt", "unproven")] == settled(verifier, clock)


def test_the_seal_of_what_is_gone_goes_too(
    verifier: Verifier, clock: Clock, tmp_path: Path, make_zip: MakeSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that rotates its snapshots leaves no seals behind, however long it runs; another name's seal stays."""
    for step in (5, 6):
        make_zip(f"step_{step}.pt", step=step)
    settled(verifier, clock)
    for step in (5, 6):
        assert None is not verifier.seal(f"step_{step}.pt")
    (tmp_path / "step_5.pt").unlink()
    assert [("step_5.pt", "gone")] == told(verifier)
    assert ["step_6.pt.json"] == os.listdir(tmp_path / ".lastgood" / "seals")

    def failing(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(candidates, "remove_if_there", failing)
    (tmp_path / "step_6.pt").unlink()
    assert [("step_6.pt", "gone")] == told(verifier)


def test_the_seal_of_what_is_only_out_of_reach_stays(
    verifier: Verifier, clock: Clock, tmp_path: Path, make_zip: MakeSnapshot
) -> None:
    """A link whose target's disk is away for a moment is as healthy as before when that is back."""
    (tmp_path / "disk").mkdir()
    make_zip("disk/step_5.pt")
    (tmp_path / "step_5.pt").symlink_to("disk/step_5.pt")
    settled(verifier, clock)
    assert None is not verifier.seal("step_5.pt")
    (tmp_path / "disk").rename(tmp_path / "away")
    assert [("step_5.pt", "gone")] == told(verifier)
    (tmp_path / "away").rename(tmp_path / "disk")

    assert [("step_5.pt", "healthy")] == settled(verifier, clock)


def test_a_pipe_in_the_ledgers_place_holds_nobody_up(
    make_verifier: Callable[..., Verifier], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verdicts are then not remembered, and given all the same."""
    monkeypatch.setattr(rungs, "now_ns", lambda: 2**62)
    (tmp_path / ".lastgood").mkdir()
    os.mkfifo(tmp_path / ".lastgood" / "ledger")
    sealed(tmp_path / "ckpt_1.pt")

    assert [("ckpt_1.pt", "healthy")] == told(make_verifier())


def test_a_new_mode_or_link_is_no_arrival(
    verifier: Verifier, clock: Clock, tmp_path: Path, make_zip: MakeSnapshot
) -> None:
    """What changes a file's ctime and none of its bytes is not told."""
    path = make_zip("step_5.pt")
    assert [("step_5.pt", "intact")] == settled(verifier, clock)
    path.chmod(0o600)
    os.link(path, tmp_path / "best.txt")

    assert [] == settled(verifier, clock)


def test_two_names_of_one_file_are_told_once(
    verifier: Verifier, clock: Clock, tmp_path: Path, make_zip: MakeSnapshot
) -> None:
    """A link to a snapshot is not another snapshot, and keeps the one it leads to from being pruned."""
    make_zip("step_5.pt")
    (tmp_path / "last.pt").symlink_to("step_5.pt")

    assert [] == told(verifier)
    clock.now += SETTLE
    [event], _ = verifier.look()
    assert isinstance(event, SnapshotJudged)
    assert ("step_5.pt", True) == (event.rung.name, event.rung.linked)
    assert [] == told(verifier)


def test_a_snapshot_that_vanished_is_told_once(verifier: Verifier, tmp_path: Path) -> None:
    """It is gone, that is said once, and should it come back it is an arrival."""
    path = sealed(tmp_path / "ckpt_1.pt")
    assert [("ckpt_1.pt", "healthy")] == told(verifier)
    path.unlink()

    assert [("ckpt_1.pt", "gone")] == told(verifier)
    assert [] == told(verifier)
    sealed(path)
    assert [("ckpt_1.pt", "healthy")] == told(verifier)


def test_a_file_that_vanishes_before_it_is_judged_is_no_news(
    verifier: Verifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that rotates its snapshots during a look does not make them unreadable."""
    sealed(tmp_path / "ckpt_1.pt")
    with monkeypatch.context() as patch:
        judged_as(patch, lambda path: path.unlink())
        assert [] == told(verifier)

    assert ([], None) == verifier.look()


def test_a_file_that_is_replaced_before_it_is_judged_is_told_as_what_it_is(
    verifier: Verifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers to one name: whatever a verdict in between was about, the last one is about the last bytes."""
    path = sealed(tmp_path / "ckpt_1.pt")
    with monkeypatch.context() as patch:
        judged_as(patch, lambda path: sealed(path, b"by another writer"))
        assert [("ckpt_1.pt", "healthy")] == told(verifier)
    last, _ = verifier.look()

    assert [len(b"by another writer")] == [e.rung.verdict.bytes for e in last if isinstance(e, SnapshotJudged)]
    assert path.stat().st_mtime_ns == last[0].rung.mtime_ns
    assert [] == told(verifier)


def test_of_two_writers_to_one_name_the_last_counts(
    verifier: Verifier, clock: Clock, tmp_path: Path, make_zip: MakeSnapshot
) -> None:
    """Replaced again before it settled, a name is told once, with the verdict of what is there."""
    path = tmp_path / "step_5.pt"
    os.replace(make_zip("one.tmp", step=1), path)
    assert [] == told(verifier)
    clock.now += SETTLE * 0.9
    path.unlink()
    path.write_bytes(b"PK\x03\x04 by the other")
    assert [] == told(verifier)
    clock.now += SETTLE * 0.9
    assert [] == told(verifier)
    clock.now += SETTLE * 0.1

    assert [("step_5.pt", "truncated")] == told(verifier)


def test_a_file_that_changes_as_it_is_read_has_not_settled(
    verifier: Verifier, clock: Clock, make_zip: MakeSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that goes on during the judging is not accused of having left something incomplete."""
    make_zip("step_5.pt")
    changing = Verdict(Kind.INCOMPLETE, None, "it changed while it was read")
    with monkeypatch.context() as patch:
        judged_as(patch, lambda path: changing)
        assert [] == settled(verifier, clock)
        assert [] == settled(verifier, clock)

    assert [("step_5.pt", "intact")] == settled(verifier, clock)


def test_what_cannot_be_read_is_tried_again_and_told_when_it_can(
    verifier: Verifier, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An I/O error is told once, and the snapshot again as soon as it reads well."""
    path = sealed(tmp_path / "ckpt_1.pt")
    failing = Verdict(Kind.UNREADABLE, None, "Input/output error", errno=errno.EIO)
    with monkeypatch.context() as patch:
        judged_as(patch, lambda path: failing)
        assert [("ckpt_1.pt", "unreadable")] == settled(verifier, clock)
        assert [] == settled(verifier, clock)
        assert ([], None) == verifier.look()

    assert [("ckpt_1.pt", "healthy")] == told(verifier)
    assert [] == told(verifier)
    path.unlink()
    assert [("ckpt_1.pt", "gone")] == told(verifier)


def test_what_could_not_be_read_and_is_bad_is_told_once_more(
    verifier: Verifier, clock: Clock, make_zip: MakeSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot that turns out to be broken once it can be read is rejected then."""
    path = make_zip("step_5.pt")
    path.write_bytes(path.read_bytes()[:100])
    with monkeypatch.context() as patch:
        judged_as(patch, lambda path: Verdict(Kind.UNREADABLE, None, "Stale file handle", errno=errno.ESTALE))
        assert [("step_5.pt", "unreadable")] == settled(verifier, clock)

    assert [("step_5.pt", "truncated")] == settled(verifier, clock)
    assert [] == settled(verifier, clock)


def test_another_runs_snapshots_do_not_count_unless_they_are_rewritten(
    make_verifier: Callable[..., Verifier], clock: Clock, tmp_path: Path
) -> None:
    """What was there before the run was begun apart is neither told nor on the ladder; new bytes under its name are."""
    old = sealed(tmp_path / "ckpt_9.pt")
    verifier = make_verifier(foreign={"ckpt_9.pt": identity(old), "gone.pt": identity(old)}, isolated=True)
    old.chmod(0o600)

    assert [] == settled(verifier, clock)
    assert LadderJudged((), False) == verifier.judge_ladder()
    sealed(old, b"of this run")
    assert [("ckpt_9.pt", "healthy")] == told(verifier)


def test_another_runs_snapshot_under_another_name_counts(
    make_verifier: Callable[..., Verifier], tmp_path: Path
) -> None:
    """Foreign is a name with an identity: a copy that this run makes is its own."""
    old = sealed(tmp_path / "ckpt_9.pt")
    verifier = make_verifier(foreign={"ckpt_9.pt": identity(old)}, isolated=True)
    sealed(tmp_path / "ckpt_10.pt")

    assert [("ckpt_10.pt", "healthy")] == told(verifier)


def ladder(verifier: Verifier) -> tuple[list[tuple[str, str | None]], set[str]]:
    """The ladder as names and verdicts, and what arrived."""
    found = verifier.judge_ladder()
    assert isinstance(found, LadderJudged)
    rungs = [(rung.name, None if rung.verdict is None else str(rung.verdict.kind)) for rung in found.rungs]
    return rungs, set(found.arrived)


def test_the_ladder_is_judged_down_to_the_first_proven_rung(verifier: Verifier, tmp_path: Path) -> None:
    """Newest first, and no further than it takes; the rest stands there unjudged."""
    for step in (1, 2, 3):
        sealed(tmp_path / f"ckpt_{step}.pt")
    flip_bit(tmp_path / "ckpt_3.pt", 1)

    assert (
        [("ckpt_3.pt", "corrupt"), ("ckpt_2.pt", "healthy"), ("ckpt_1.pt", None)],
        {"ckpt_3.pt", "ckpt_2.pt"},
    ) == ladder(verifier)


def test_an_arrival_is_marked_once(verifier: Verifier, tmp_path: Path) -> None:
    """Neither a second reading of the ladder nor a look tells it again; bytes that changed do."""
    sealed(tmp_path / "ckpt_1.pt")
    assert {"ckpt_1.pt"} == ladder(verifier)[1]
    assert [] == told(verifier)
    assert set() == ladder(verifier)[1]
    sealed(tmp_path / "ckpt_1.pt", b"others")
    assert {"ckpt_1.pt"} == ladder(verifier)[1]


def test_what_a_look_told_is_no_arrival_on_the_ladder(verifier: Verifier, tmp_path: Path) -> None:
    """The ladder marks what a dead trainer published unseen, and only that."""
    sealed(tmp_path / "ckpt_1.pt")
    assert [("ckpt_1.pt", "healthy")] == told(verifier)
    sealed(tmp_path / "ckpt_2.pt")

    assert {"ckpt_2.pt"} == ladder(verifier)[1]


def test_rungs_that_the_ladder_left_unjudged_are_told_by_the_next_look(verifier: Verifier, tmp_path: Path) -> None:
    """Older ones get their verdicts while the trainer runs already."""
    for step in (1, 2):
        sealed(tmp_path / f"ckpt_{step}.pt")
    ladder(verifier)

    assert [("ckpt_1.pt", "healthy")] == told(verifier)


def test_the_ladder_does_not_wait_for_files_to_settle(
    verifier: Verifier, tmp_path: Path, make_zip: MakeSnapshot
) -> None:
    """Without a trainer nothing is being written: what is cut short is so for good."""
    path = make_zip("step_5.pt")
    path.write_bytes(path.read_bytes()[:5000])

    assert ([("step_5.pt", "truncated")], {"step_5.pt"}) == ladder(verifier)


def test_the_ladder_reads_bytes_anew(verifier: Verifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bit that flipped below the filesystem, without any time that moved, is found at the crash."""
    monkeypatch.setattr(rungs, "now_ns", lambda: 2**62)  # so that the verdict is remembered at once
    path = sealed(tmp_path / "ckpt_1.pt")
    assert [("ckpt_1.pt", "healthy")] == told(verifier)
    flip_bit(path, 3)

    assert [("ckpt_1.pt", "corrupt")] == ladder(verifier)[0]


@pytest.mark.parametrize(("isolated", "held"), [(False, True), (True, False)])
def test_what_was_set_aside_counts_as_held_unless_the_run_is_apart(
    make_verifier: Callable[..., Verifier], tmp_path: Path, isolated: bool, held: bool
) -> None:
    """An empty directory with a quarantine is not one that never held a snapshot, but for a run begun apart from it."""
    (tmp_path / ".lastgood" / "quarantine" / "x").mkdir(parents=True)

    assert LadderJudged((), held) == make_verifier(isolated=isolated).judge_ladder()


def test_an_empty_directory_never_held_one(verifier: Verifier) -> None:
    """A fresh start is one."""
    assert LadderJudged((), False) == verifier.judge_ladder()


def test_a_directory_that_vanished_is_unreadable_and_not_empty(tmp_path: Path, clock: Clock) -> None:
    """A look raises, the ladder says why, and both work again once it is back."""
    base = tmp_path / "checkpoints"
    base.mkdir()
    verifier = Verifier(str(base), None, SETTLE, {}, clock=clock)
    sealed(base / "ckpt_1.pt")
    assert [("ckpt_1.pt", "healthy")] == told(verifier)
    shutil.move(base, tmp_path / "away")

    with pytest.raises(FileNotFoundError):
        verifier.look()
    assert LadderUnreadable("No such file or directory") == verifier.judge_ladder()
    with pytest.raises(FileNotFoundError):
        verifier.seal("ckpt_1.pt")
    shutil.move(tmp_path / "away", base)
    assert [] == told(verifier)


def test_a_file_in_the_directorys_place_is_unreadable(tmp_path: Path) -> None:
    """A directory that became something else is told as what it is."""
    (tmp_path / "file").write_text("x")

    assert LadderUnreadable("Not a directory") == Verifier(str(tmp_path / "file"), None, SETTLE, {}).judge_ladder()


def test_sealing_makes_an_outlived_snapshot_healthy(
    verifier: Verifier, clock: Clock, tmp_path: Path, make_zip: MakeSnapshot
) -> None:
    """The digest is kept in the supervisor's own folder, bound to the file as it is, and nothing is put beside it."""
    path = make_zip("step_5.pt", step=5)
    assert [("step_5.pt", "intact")] == settled(verifier, clock)
    done = verifier.seal("step_5.pt")

    assert done is not None
    assert done.rung.verdict is not None
    assert ("step_5.pt", 5, Kind.HEALTHY, Proof.SEAL) == (
        done.rung.name, done.rung.step, done.rung.verdict.kind, done.rung.verdict.proof,
    )  # fmt: skip
    assert {"step_5.pt", ".lastgood"} == set(os.listdir(tmp_path))
    assert None is not read_bound_seal(path, identity(path))
    assert [] == told(verifier)
    assert ([("step_5.pt", "healthy")], set()) == ladder(verifier)


def test_a_seal_is_for_the_bytes_it_was_made_for(
    verifier: Verifier, clock: Clock, tmp_path: Path, make_zip: MakeSnapshot
) -> None:
    """Sealed bytes that change without a trace are corrupt; a file written anew is a new arrival."""
    path = make_zip("step_5.pt")
    settled(verifier, clock)
    verifier.seal("step_5.pt")
    os.replace(make_zip("other.tmp", step=9), path)

    assert [("step_5.pt", "intact")] == settled(verifier, clock)


def test_what_its_writer_has_open_is_neither_told_nor_sealed(verifier: Verifier, clock: Clock, tmp_path: Path) -> None:
    """A pause in a slow save is not its end, however long it lasts; closed, it is judged as any other."""
    path = tmp_path / "step_5.ckpt"
    path.write_bytes(b"whole")
    assert [("step_5.ckpt", "unproven")] == settled(verifier, clock)
    with path.open("ab") as file, subprocess.Popen(["sleep", "300"], stdout=file) as writer:
        assert None is verifier.seal("step_5.ckpt")
        assert [] == settled(verifier, clock)
        writer.kill()

    assert [("step_5.ckpt", "unproven")] == settled(verifier, clock)
    assert None is not verifier.seal("step_5.ckpt")


@pytest.mark.parametrize("touch", [lambda path: path.chmod(0o600), os.utime], ids=["mode", "time"])
def test_a_sealed_snapshot_of_no_known_format_stays_proven_when_it_is_touched(
    verifier: Verifier, clock: Clock, tmp_path: Path, touch: Callable[[Path], None]
) -> None:
    """Its bytes are read again, and the digest that was kept is theirs."""
    path = tmp_path / "step_5.ckpt"
    path.write_bytes(os.urandom(3000))
    assert [("step_5.ckpt", "unproven")] == settled(verifier, clock)
    assert None is not verifier.seal("step_5.ckpt")
    touch(path)

    assert [("step_5.ckpt", "healthy")] == ladder(verifier)[0]


def test_what_was_never_told_or_changed_since_is_not_sealed(
    verifier: Verifier, clock: Clock, tmp_path: Path, make_zip: MakeSnapshot
) -> None:
    """Only the bytes that were judged may be sealed: not those of a later writer, of nobody, or of another run."""
    path = make_zip("step_5.pt")
    assert None is verifier.seal("step_5.pt")
    settled(verifier, clock)
    os.utime(path, (1, 1))

    assert None is verifier.seal("step_5.pt")
    assert None is verifier.seal("nowhere.pt")
    assert not Path(bound_seal_path(path)).exists()


@pytest.mark.parametrize("change", ["write", "remove"])
def test_what_changes_while_it_is_hashed_is_not_sealed(
    verifier: Verifier, clock: Clock, make_zip: MakeSnapshot, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A trainer that writes on, or removes the file, during the hash gets no seal and causes no error."""
    path = make_zip("step_5.pt")
    settled(verifier, clock)

    def hashing(name: Path) -> str:
        if change == "remove":
            path.unlink()
        else:
            path.write_bytes(b"PK\x03\x04 written anew")
        return "0" * 64

    monkeypatch.setattr(module, "sha256_of", hashing)

    assert None is verifier.seal("step_5.pt")
    assert not Path(bound_seal_path(path)).exists()


def test_a_file_that_vanishes_before_the_hash_is_not_sealed(
    verifier: Verifier, clock: Clock, make_zip: MakeSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is simply gone, as the next look tells."""
    path = make_zip("step_5.pt")
    settled(verifier, clock)
    real = module.sha256_of
    monkeypatch.setattr(module, "sha256_of", lambda name: (path.unlink(), real(name))[1])

    assert None is verifier.seal("step_5.pt")
    assert [("step_5.pt", "gone")] == told(verifier)


def test_a_digest_that_is_not_that_of_the_bytes_seals_nothing(
    verifier: Verifier, clock: Clock, make_zip: MakeSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seal is read back against the bytes before it is told."""
    make_zip("step_5.pt")
    settled(verifier, clock)
    monkeypatch.setattr(module, "sha256_of", lambda _name: "0" * 64)

    assert None is verifier.seal("step_5.pt")


def test_a_seal_that_cannot_be_written_raises(
    verifier: Verifier, clock: Clock, tmp_path: Path, make_zip: MakeSnapshot
) -> None:
    """Something in the way of the seals is told by the system's own error."""
    make_zip("step_5.pt")
    settled(verifier, clock)
    (tmp_path / ".lastgood").mkdir(exist_ok=True)
    (tmp_path / ".lastgood" / "seals").write_text("x")

    with pytest.raises(OSError):
        verifier.seal("step_5.pt")


def test_what_is_sealed_is_not_remembered_as_merely_intact(
    verifier: Verifier, clock: Clock, tmp_path: Path, make_zip: MakeSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lastgood list` and the next supervisor go by the ledger, which must know of the seal."""
    monkeypatch.setattr(rungs, "now_ns", lambda: 2**62)
    (tmp_path / ".lastgood").mkdir()
    make_zip("step_5.pt")
    settled(verifier, clock)
    assert [Kind.INTACT] == [rung.verdict.kind for rung in rungs.ladder(tmp_path) if rung.verdict]
    verifier.seal("step_5.pt")

    assert [Kind.HEALTHY] == [rung.verdict.kind for rung in rungs.ladder(tmp_path) if rung.verdict]


def test_the_next_supervisor_does_not_read_again_what_is_unchanged(
    verifier: Verifier, make_verifier: Callable[..., Verifier], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verdict is remembered on disk for a file that had been still."""
    monkeypatch.setattr(rungs, "now_ns", lambda: 2**62)
    (tmp_path / ".lastgood").mkdir()
    sealed(tmp_path / "ckpt_1.pt")
    told(verifier)
    next_one = make_verifier()
    monkeypatch.setattr(rungs, "verify", lambda path: pytest.fail(f"{path} was read again"))

    assert [("ckpt_1.pt", "healthy")] == told(next_one)


def test_rungs_to_be_passed_are_judged_and_more_below_them(
    make_zip: MakeSnapshot, verifier: Verifier, tmp_path: Path
) -> None:
    """By name, and above a step: what lies below is read until one is proven that may be resumed from."""
    for number in (10, 20, 30, 40, 50):
        make_zip(f"step_{number}.pt", number)

    def judged(*passing: str, above: int | None = None) -> list[int | None]:
        ladder = verifier.judge_ladder(passing, above)
        assert isinstance(ladder, LadderJudged)
        assert sorted((r.step or 0 for r in ladder.rungs), reverse=True) == [r.step for r in ladder.rungs]
        return [rung.step for rung in ladder.rungs if rung.verdict is not None]

    assert [50] == judged()
    assert [50, 40] == judged("step_50.pt")
    assert [50, 40, 30, 20] == judged(above=20)
    assert [50, 40, 30, 20, 10] == judged("step_20.pt", "step_99.pt", above=29)
    assert [50, 40, 30, 20, 10] == judged(above=1)


def test_a_snapshot_that_could_not_be_read_is_news_once_it_can(
    make_zip: MakeSnapshot, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is progress then, although its bytes are those that were told as unreadable."""
    make_zip("step_10.pt", 10)
    real = rungs.verify
    monkeypatch.setattr(rungs, "verify", lambda path: Verdict(Kind.UNREADABLE, None, "away"))
    first = verifier.judge_ladder()
    monkeypatch.setattr(rungs, "verify", real)
    second = verifier.judge_ladder()

    assert isinstance(first, LadderJudged)
    assert isinstance(second, LadderJudged)
    assert ({"step_10.pt"}, {"step_10.pt"}, set()) == (
        set(first.arrived), set(second.arrived), set(verifier.judge_ladder().arrived)
    )  # fmt: skip


def test_what_was_condemned_or_changed_is_not_sealed(
    make_zip: MakeSnapshot, verifier: Verifier, tmp_path: Path
) -> None:
    """A seal says that bytes are those that were judged good, and no others."""
    path = make_zip("step_10.pt", 10)
    os.truncate(path, path.stat().st_size // 2)
    verifier.judge_ladder()
    assert None is verifier.seal("step_10.pt")

    make_zip("step_20.pt", 20)
    verifier.judge_ladder()
    assert None is not verifier.seal("step_20.pt")
    assert [] == list(tmp_path.rglob("step_10.pt.json"))


def test_an_arrival_is_told_before_it_is_judged(verifier: Verifier, clock: Clock, make_zip: MakeSnapshot) -> None:
    """Once while it grows and settles, again when it changes after its verdict, and never for what was known before."""
    seen: list[str] = []
    make_zip("step_1.pt", 1)
    verifier.judge_ladder()
    verifier.arrivals.tell = lambda name, step: seen.append(f"{name} at {step}")
    told(verifier)
    assert [] == seen

    path = make_zip("step_2.pt", 2)
    told(verifier)
    make_zip("step_2.pt", 2, size=20_000)
    told(verifier)
    assert [("step_2.pt", "intact")] == settled(verifier, clock)
    assert ["step_2.pt at 2"] == seen

    os.utime(path, ns=(5, 5))
    told(verifier)
    assert ["step_2.pt at 2"] * 2 == seen


def trusted(verifier: Verifier) -> list[str]:
    """What the ladder gives without a look at the bytes."""
    found = verifier.judge_ladder()
    assert isinstance(found, LadderJudged)
    return [rung.name for rung in found.rungs if rung.trusted]


def reread(verifier: Verifier, path: Path, ago: int = 0) -> str | None:
    """What a second reading says of a file as it was that many nanoseconds before its time."""
    found = verifier.reread(path.name, path.stat().st_mtime_ns - ago)
    assert found.reachable
    return None if found.rung.verdict is None else str(found.rung.verdict.kind)


def test_what_was_proven_and_not_touched_since_is_trusted(verifier: Verifier, tmp_path: Path) -> None:
    """The first look at the ladder reads the bytes; later ones do not, and say so, until anything about the file changes."""
    path = sealed(tmp_path / "ckpt_1.pt")
    assert [] == trusted(verifier)
    assert ["ckpt_1.pt"] == trusted(verifier)

    os.chmod(path, 0o600)
    assert [] == trusted(verifier)
    assert ["ckpt_1.pt"] == trusted(verifier)

    seal = tmp_path / "ckpt_1.pt.sha256"
    seal.write_bytes(seal.read_bytes() + b"# a note\n")
    assert [] == trusted(verifier)


def test_what_a_look_proved_is_trusted(verifier: Verifier, tmp_path: Path) -> None:
    """A snapshot judged as it arrived needs no reading before a restart; one that is not proven does."""
    told(verifier)
    sealed(tmp_path / "ckpt_1.pt")
    (tmp_path / "ckpt_2.pt").write_bytes(b"")
    assert [("ckpt_1.pt", "healthy")] == told(verifier)

    assert ["ckpt_1.pt"] == trusted(verifier)


def test_another_supervisor_trusts_nothing(make_verifier: Callable[..., Verifier], tmp_path: Path) -> None:
    """A verdict in the ledger is somebody else's; nor is a copy on a shelf trusted, nor what tells no step."""
    sealed(tmp_path / "ckpt_1.pt")
    assert [] == trusted(make_verifier())
    assert [] == trusted(make_verifier())
    shelved = make_verifier(has_shelf=True)
    assert [[], []] == [trusted(shelved), trusted(shelved)]
    (tmp_path / "ckpt_1.pt").rename(tmp_path / "final.pt")
    (tmp_path / "ckpt_1.pt.sha256").unlink()
    bare = make_verifier()
    assert [[], []] == [trusted(bare), trusted(bare)]


def test_a_second_reading_sees_what_a_timestamp_hides(verifier: Verifier, tmp_path: Path) -> None:
    """Good bytes are good again, bad ones are bad, and a later verdict does not rest on the earlier one."""
    path = sealed(tmp_path / "ckpt_1.pt")
    trusted(verifier)
    assert "healthy" == reread(verifier, path)
    flip_bit(path, 2)
    assert "corrupt" == reread(verifier, path)
    assert [] == trusted(verifier)
    assert ([("ckpt_1.pt", "corrupt")], set()) == ladder(verifier)


def test_other_bytes_are_bad_even_if_nothing_vouches_for_the_first(verifier: Verifier, make_zip: MakeSnapshot) -> None:
    """Sealed when proven and unsealed now, with other bytes that are whole in themselves: they are not what was trusted."""
    path = make_zip("step_1.pt", 1)
    trusted(verifier)
    times = path.stat()
    inode_keeping = make_zip("other", 2).read_bytes()
    with path.open("r+b") as file:
        file.write(inode_keeping)
        file.truncate()
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert times.st_size == path.stat().st_size
    assert "corrupt" == reread(verifier, path)
    assert None is reread(verifier, path, ago=1)


def test_a_second_reading_of_what_is_gone_or_away_says_so(verifier: Verifier, tmp_path: Path) -> None:
    """A snapshot that was taken away has no verdict; a directory that cannot be read tells nothing at all."""
    path = sealed(tmp_path / "ckpt_1.pt")
    mtime_ns = path.stat().st_mtime_ns
    trusted(verifier)
    path.unlink()
    assert None is verifier.reread("ckpt_1.pt", mtime_ns).rung.verdict

    shutil.rmtree(tmp_path)
    assert not verifier.reread("ckpt_1.pt", mtime_ns).reachable
    tmp_path.mkdir()


def test_bytes_that_are_others_when_they_are_to_be_sealed_are_told_anew(
    verifier: Verifier, clock: Clock, make_zip: MakeSnapshot
) -> None:
    """Rot between the verdict and the seal hides behind the same times; it is found by the digest, and trusted no more."""
    path = make_zip("step_10.pt", 10)
    verifier.judge_ladder()
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)[0]
        file.seek(before.st_size // 2)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [] == told(verifier)

    assert None is verifier.seal("step_10.pt")
    assert [("step_10.pt", "corrupt")] == settled(verifier, clock)


def test_what_could_not_be_read_again_is_not_trusted_next_time(
    verifier: Verifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second reading that failed leaves a doubt: the next restart reads the bytes first."""
    path = sealed(tmp_path / "ckpt_1.pt")
    trusted(verifier)
    with monkeypatch.context() as patched:
        patched.setattr(rungs, "verify", lambda path: Verdict(Kind.UNREADABLE, None, "I/O error", errno=errno.EIO))
        assert "unreadable" == reread(verifier, path)

    assert [] == trusted(verifier)
    assert ["ckpt_1.pt"] == trusted(verifier)


class Changes:
    """A directory in which things happen, by chance; each tells the names that a watcher would hint at."""

    def __init__(self, folder: Path, chance: Random) -> None:
        self._folder = folder
        self._chance = chance
        self._step = 0

    def _some(self) -> Path:
        return self._chance.choice(self.files)

    @property
    def files(self) -> list[Path]:
        """What can be read, links among it."""
        return sorted(path for path in self._folder.glob("*.pt") if path.is_file())

    def publish(self) -> list[str]:
        self._step += 1
        path = self._folder / f"ckpt_{self._step}.pt"
        publish(path, lambda file: file.write(b"bytes of %d" % self._step))
        return [path.name]

    def overwrite(self) -> list[str]:
        path = self._some()
        publish(path, lambda file: file.write(b"other bytes"))
        return [path.name]

    def damage(self) -> list[str]:
        path = self._some().resolve()  # where the system tells of it
        path.write_bytes(b"torn")
        return [path.name]

    def remove(self) -> list[str]:
        path = self._some()
        path.unlink()
        return [path.name]

    def unseal(self) -> list[str]:
        path = self._some()
        path.with_name(f"{path.name}.sha256").unlink(missing_ok=True)
        return [path.name]

    def rename(self) -> list[str]:
        path = self._some()
        self._step += 1
        new = path.rename(self._folder / f"ckpt_{self._step}.pt")
        return [new.name, path.name]

    def link(self) -> list[str]:
        path, link = self._some(), self._folder / "last.pt"
        if path == link:
            return []
        link.unlink(missing_ok=True)
        os.link(path, link)
        return [link.name]

    def symlink(self) -> list[str]:
        path, link = self._some(), self._folder / "best.pt"
        if path == link:
            return []
        link.unlink(missing_ok=True)
        link.symlink_to(path.name)
        return [link.name]


HAPPENINGS = ["publish", "publish", "overwrite", "damage", "remove", "unseal", "rename", "link", "symlink"]


@pytest.mark.parametrize("seed", range(40))
def test_a_look_at_what_was_hinted_at_tells_what_a_look_at_all_would(
    make_verifier: Callable[..., Verifier], tmp_path: Path, seed: int
) -> None:
    """Whatever happens to a directory, links among it."""
    chance = Random(seed)
    changes, all_of_it, a_few = (
        Changes(tmp_path, chance),
        make_verifier(settle_seconds=0),
        make_verifier(settle_seconds=0),
    )
    changes.publish()
    for one in (all_of_it, a_few):
        one.look()
    for _ in range(30):
        happening = chance.choice(HAPPENINGS) if changes.files else "publish"
        hinted = getattr(changes, happening)()
        for _ in range(3):  # what is not proven is looked at again
            expected, _ = all_of_it.look(hinted)
            found, _ = a_few.look(hinted, whole=False)
            assert [timeless(one) for one in expected] == [timeless(one) for one in found]


def timeless(event: SnapshotJudged | SnapshotGone) -> SnapshotJudged | SnapshotGone:
    """The event without how long the reading took."""
    if isinstance(event, SnapshotGone) or event.rung.verdict is None:
        return event
    return replace(event, rung=replace(event.rung, verdict=event.rung.verdict._replace(seconds=0.0)))


def test_a_look_at_a_few_reads_no_directory(
    verifier: Verifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So one more snapshot costs as much among ten thousand as among ten; what nobody hinted at waits for the next whole look."""
    for step in (1, 2, 3):
        publish(tmp_path / f"ckpt_{step}.pt", lambda file: file.write(b"bytes"))
    verifier.look()
    publish(tmp_path / "ckpt_4.pt", lambda file: file.write(b"bytes"))
    publish(tmp_path / "ckpt_5.pt", lambda file: file.write(b"bytes"))
    (tmp_path / "ckpt_1.pt").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(candidates, "scan", lambda *_: pytest.fail("it read the whole directory"))
        found, _ = verifier.look({"ckpt_4.pt", "ckpt_1.pt"}, whole=False)

    assert ["ckpt_1.pt", "ckpt_4.pt"] == [e.name if isinstance(e, SnapshotGone) else e.rung.name for e in found]
    assert [("ckpt_5.pt", "healthy")] == told(verifier)


def test_what_was_there_before_the_start_holds_up_nobody(
    verifier: Verifier, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An arrival is judged first, and between some of the others the directory's thread has time for a death or a stop."""
    real = module.judge

    def slow(*words: Any, **more: Any) -> Any:
        clock.now += 0.3
        return real(*words, **more)

    for step in range(1, 8):
        publish(tmp_path / f"ckpt_{step}.pt", lambda file: file.write(b"bytes"))
    assert isinstance(verifier.judge_ladder(), LadderJudged)
    publish(tmp_path / "ckpt_8.pt", lambda file: file.write(b"bytes"))
    monkeypatch.setattr(module, "judge", slow)
    slices, again = [], [0.0]
    while again == [0.0]:
        found, *again = verifier.look((), whole=not slices)
        slices.append([e.rung.step for e in found if isinstance(e, SnapshotJudged)])

    assert [[8, 1], [2, 3], [4, 5], [6]] == slices
    assert [None] == again


def test_a_name_is_new_once(
    verifier: Verifier, make_zip: MakeSnapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it was told, neither by the ladder nor by a look, be it to be told anew; after it has gone it is new again."""

    def new_names(*hinted: str) -> dict[str, bool]:
        found, _ = verifier.look(hinted)
        return {e.rung.name: e.new_name for e in found if isinstance(e, SnapshotJudged)}

    for step in (1, 2):
        publish(tmp_path / f"ckpt_{step}.pt", lambda file: file.write(b"bytes"))
    assert isinstance(verifier.judge_ladder(), LadderJudged)
    publish(tmp_path / "ckpt_3.pt", lambda file: file.write(b"bytes"))
    assert {"ckpt_1.pt": False, "ckpt_3.pt": True} == new_names()
    publish(tmp_path / "ckpt_3.pt", lambda file: file.write(b"other bytes"))
    assert {"ckpt_3.pt": False} == new_names()

    path = make_zip("ckpt_4.pt")
    assert {"ckpt_4.pt": True} == new_names("ckpt_4.pt")
    with monkeypatch.context() as patched:
        patched.setattr(module, "is_being_written", lambda _: True)
        assert None is verifier.seal("ckpt_4.pt")
    assert {"ckpt_4.pt": False} == new_names("ckpt_4.pt")
    path.unlink()
    assert {} == new_names()
    make_zip("ckpt_4.pt", 9)
    assert {"ckpt_4.pt": True} == new_names("ckpt_4.pt")

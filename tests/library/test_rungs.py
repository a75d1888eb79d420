"""The ladder of a directory: what is counted, in which order, what is remembered."""

import gc
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import lastgood
from lastgood.ledger import STILL_NS, Ledger, SealStamp, now_ns
from lastgood.publish import publish
from lastgood.rungs import (
    Rung,
    down_to_first_proven,
    ever_held_one,
    identity_of,
    judge,
    ladder,
    latest_healthy,
    scan,
    scan_named,
)
from lastgood.seal import Identity
from lastgood.verdict import Kind, Proof, Verdict
from tests.conftest import MakeSnapshot, flip_bit


def test_the_newest_by_number_comes_first(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """10000 is newer than 9000 although its name sorts before it and its time is older."""
    new, _ = make_zip("ckpt_10000.pt", 10000), make_zip("ckpt_9000.pt", 9000)
    os.utime(new, (978307200, 978307200))

    assert ["ckpt_10000.pt", "ckpt_9000.pt"] == [rung.name for rung in ladder(tmp_path)]
    assert new == latest_healthy(tmp_path)


def test_the_walk_goes_back_past_bad_ones(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """With the newest flipped and the next cut, the third is the latest healthy one."""
    third, second, first = (make_zip(f"ckpt_{step}.pt", step) for step in (8000, 9000, 10000))
    flip_bit(first, 5000)
    second.write_bytes(second.read_bytes()[:3000])

    assert third == latest_healthy(tmp_path)
    assert [Kind.CORRUPT, Kind.TRUNCATED, Kind.INTACT] == [r.verdict.kind for r in ladder(tmp_path) if r.verdict]


def test_judging_stops_at_the_first_proven_one(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """Older rungs are not read while a newer one is good."""
    for step in (1, 2, 3):
        make_zip(f"ckpt_{step}.pt", step)
    flip_bit(tmp_path / "ckpt_3.pt", 5000)
    rungs = down_to_first_proven(scan(tmp_path))

    assert [True, True, False] == [rung.verdict is not None for rung in rungs]


def test_links_are_resolved_and_counted_once(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """A link to a snapshot is no second snapshot, and one to nowhere is none."""
    path = make_zip("ckpt_7.pt", 7)
    (tmp_path / "last.ckpt").symlink_to(path)
    os.link(path, tmp_path / "best.pt")
    (tmp_path / "gone_8.pt").symlink_to(tmp_path / "nothing")

    assert ["ckpt_7.pt"] == [rung.name for rung in scan(tmp_path)]


@pytest.mark.parametrize("pattern", [None, "ckpt_{step}.pt"])
def test_a_few_are_told_as_a_whole_scan_tells_them(make_zip: MakeSnapshot, tmp_path: Path, pattern: str | None) -> None:
    """The others are not looked at; what is no candidate or is not there is none of them."""
    for step in (1, 10, 9):
        make_zip(f"ckpt_{step}.pt", step)
    publish(tmp_path / "ckpt_11.pt", lambda file: file.write(b"x"))
    (tmp_path / "notes.txt").touch()
    os.link(tmp_path / "notes.txt", tmp_path / "notes.log")
    (tmp_path / "wandb").mkdir()
    os.mkfifo(tmp_path / "ckpt_13.pt")
    names = ["ckpt_9.pt", "ckpt_11.pt", "ckpt_10.pt", "notes.txt", "ckpt_12.pt", "wandb", "ckpt_13.pt"]

    assert [rung for rung in scan(tmp_path, pattern) if rung.name in names] == scan_named(tmp_path, names, pattern)
    assert [] == scan_named(tmp_path, [], pattern)
    with pytest.raises(FileNotFoundError):
        scan_named(tmp_path / "away", names, pattern)


@pytest.mark.parametrize("way", ["link", "symlink", "folder", "too long"])
def test_of_what_may_count_under_another_name_only_a_whole_scan_can_tell(
    make_zip: MakeSnapshot, tmp_path: Path, way: str
) -> None:
    """Also of what may be a snapshot of several files, and of what cannot be looked at."""
    path = make_zip("ckpt_1.pt")
    name = "ckpt_2.pt" if way != "too long" else "ckpt_" + "2" * 300
    made = tmp_path / name
    make: dict[str, Callable[[], object]] = {
        "link": lambda: os.link(path, made),
        "symlink": lambda: made.symlink_to(path),
        "folder": lambda: (made.mkdir(), make_zip(f"{name}/weights.pt")),
        "too long": lambda: None,
    }
    make[way]()

    assert None is scan_named(tmp_path, [name])


def test_pipes_and_sockets_are_no_candidates(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """Whatever they are called: there is nothing to judge, and opening one could wait for ever."""
    make_zip("ckpt_1.pt")
    os.mkfifo(tmp_path / "ckpt_2.pt")

    assert ["ckpt_1.pt"] == [rung.name for rung in scan(tmp_path)]


@pytest.mark.parametrize("pattern", [None, r"ckpt_(\d+)\.pt"])
def test_what_a_link_of_any_name_leads_to_is_known_to_be_linked(
    make_zip: MakeSnapshot, tmp_path: Path, pattern: str | None
) -> None:
    """Also where the link is no candidate itself; so that nobody takes away what it leads to."""
    for step in (1, 2, 3):
        make_zip(f"ckpt_{step}.pt", step)
    (tmp_path / "best").symlink_to("ckpt_1.pt")
    (tmp_path / "latest.pt").symlink_to(tmp_path / "ckpt_3.pt")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "elsewhere").symlink_to("/")

    assert {"ckpt_1.pt": True, "ckpt_2.pt": False, "ckpt_3.pt": True} == {
        r.name: r.linked for r in scan(tmp_path, pattern)
    }


def test_a_step_known_only_inside_orders_too(tmp_path: Path) -> None:
    """A name without a number takes its place by the step inside."""
    import pickle
    import zipfile

    for name, step in (("ckpt.pt", 50), ("ckpt_40.pt", 40), ("ckpt_60.pt", 60)):
        with zipfile.ZipFile(tmp_path / name, "w") as out:
            out.writestr("ck/data.pkl", pickle.dumps({"iter_num": step}, 2))

    assert [60, 50, 40] == [rung.step for rung in ladder(tmp_path)]


def test_names_of_any_bytes_are_candidates(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """A name that is no UTF-8 is judged like any other."""
    path = make_zip("ckpt_1.pt")
    os.rename(os.fsencode(path), os.fsencode(tmp_path) + b"/step_\xff100.pt")

    assert [100] == [rung.step for rung in ladder(tmp_path) if rung.verdict and rung.verdict.kind is Kind.INTACT]


def test_a_directory_that_changes_while_it_is_read_raises_nothing(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """Files that come and go between listing and reading are simply not there."""
    source = make_zip("ckpt_0.pt", size=100).read_bytes()
    stop = threading.Event()

    def churn() -> None:
        step = 0
        while not stop.is_set():
            step += 1
            path = tmp_path / f"ckpt_{step % 20}.pt"
            path.write_bytes(source)
            path.unlink(missing_ok=True)

    writer = threading.Thread(target=churn)
    writer.start()
    try:
        for _ in range(200):
            ladder(tmp_path)
    finally:
        stop.set()
        writer.join()


def test_a_missing_directory_has_no_healthy_one(tmp_path: Path) -> None:
    """No directory, no snapshot; but reading one that is no directory is an error."""
    assert latest_healthy(tmp_path / "none") is None
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError):
        latest_healthy(tmp_path / "file")


def test_a_directory_remembers_that_it_held_one(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """A snapshot, a quarantined one, or a high-water mark says so; an empty directory does not."""
    assert not ever_held_one(tmp_path)
    assert not ever_held_one(tmp_path / "none")
    path = make_zip("ckpt_1.pt")
    assert ever_held_one(tmp_path)
    path.unlink()
    (tmp_path / ".lastgood").mkdir()
    (tmp_path / ".lastgood" / "run.json").write_text(json.dumps({"high_water": 5}))
    assert ever_held_one(tmp_path)
    (tmp_path / ".lastgood" / "run.json").write_text(json.dumps({"high_water": None}))
    assert not ever_held_one(tmp_path)
    (tmp_path / ".lastgood" / "quarantine" / "x").mkdir(parents=True)
    assert ever_held_one(tmp_path)


def test_the_ledger_answers_for_an_unchanged_file_only(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """A verdict is remembered for an identity, across a restart; a changed file is asked anew."""
    (tmp_path / ".lastgood").mkdir()
    path = make_zip("ckpt_1.pt")
    identity = Identity.of(path.stat())
    verdict = Verdict(Kind.INTACT, Proof.CRC, "fine", 10, None, 1, loss=2.5)
    Ledger(tmp_path, writable=True).put(str(path), identity, verdict, now_ns() + 2 * STILL_NS)

    again = Ledger(tmp_path)
    assert verdict == again.get(str(path), identity)
    for field in identity._fields:
        assert again.get(str(path), identity._replace(**{field: getattr(identity, field) + 1})) is None, field


def remembered(tmp_path: Path, kind: Kind) -> Rung:
    """The one candidate of a directory, judged again after the ledger was told that it is `kind`."""
    (tmp_path / ".lastgood").mkdir(exist_ok=True)
    (rung,) = scan(tmp_path)
    seal = SealStamp.beside(str(rung.path))
    verdict = Verdict(kind, Proof.SEAL, "remembered")
    Ledger(tmp_path, writable=True).put(str(rung.path), rung.identity, verdict, now_ns() + 2 * STILL_NS, seal)
    return judge(rung, Ledger(tmp_path))


def reason_now(tmp_path: Path) -> str:
    """Why the one candidate of a directory has its verdict, as the ledger or a new reading tells."""
    (rung,) = scan(tmp_path)
    verdict = judge(rung, Ledger(tmp_path)).verdict
    return "" if verdict is None else verdict.reason


def test_a_seal_that_comes_goes_or_is_replaced_asks_for_a_new_verdict(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """What was judged without it, or under another one, is judged again."""
    seal = Path(f"{make_zip('ckpt_1.pt')}.sha256")
    assert remembered(tmp_path, Kind.INTACT).verdict == Verdict(Kind.INTACT, Proof.SEAL, "remembered")
    seal.write_text("x")
    assert "remembered" not in reason_now(tmp_path)

    assert remembered(tmp_path, Kind.HEALTHY).verdict == Verdict(Kind.HEALTHY, Proof.SEAL, "remembered")
    (tmp_path / "other").write_text("x")
    (tmp_path / "other").rename(seal)
    assert "remembered" not in reason_now(tmp_path)

    remembered(tmp_path, Kind.HEALTHY)
    seal.unlink()
    assert "remembered" not in reason_now(tmp_path)


def test_a_seal_that_is_edited_in_place_asks_again_for_what_was_not_proven_by_it(
    make_zip: MakeSnapshot, tmp_path: Path
) -> None:
    """A mended seal must not go on condemning; bytes that it has proven are as good as they were."""
    seal = Path(f"{make_zip('ckpt_1.pt')}.sha256")
    seal.write_text("x")
    remembered(tmp_path, Kind.CORRUPT)
    seal.write_text("longer")
    assert "remembered" not in reason_now(tmp_path)

    remembered(tmp_path, Kind.HEALTHY)
    seal.write_text("longer still")
    assert "remembered" == reason_now(tmp_path)


def test_the_ledger_does_not_trust_young_files(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """A file touched less than two seconds before its reading could have changed within its timestamp's grain."""
    path = make_zip("ckpt_1.pt")
    identity = Identity.of(path.stat())
    ledger = Ledger(tmp_path, writable=True)
    ledger.put(str(path), identity, Verdict(Kind.INTACT, Proof.CRC, "fine"), identity.ctime_ns + STILL_NS - 1)

    assert ledger.get(path.name, identity) is None


def test_what_was_unreadable_is_not_remembered(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """A moment later it may be as readable as ever."""
    path = str(make_zip("ckpt_1.pt"))
    identity, ledger = Identity.of(os.stat(path)), Ledger(tmp_path)
    ledger.put(path, identity, Verdict(Kind.UNREADABLE, None, "away"), now_ns() + 2 * STILL_NS)

    assert ledger.get(os.path.basename(path), identity) is None


def lines(tmp_path: Path) -> int:
    return len((tmp_path / ".lastgood" / "ledger").read_text().splitlines())


def test_a_ledger_does_not_grow_for_ever(
    make_zip: MakeSnapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same verdict is not written twice, and a long ledger is written anew with the last verdict of each of the newest."""
    (tmp_path / ".lastgood").mkdir()
    path = str(make_zip("ckpt_1.pt"))
    identity, ledger = Identity.of(os.stat(path)), Ledger(tmp_path, writable=True)
    later = now_ns() + 2 * STILL_NS
    for inode in (1, 1, 1, 2, 3):
        ledger.put(path, identity._replace(inode=inode), Verdict(Kind.INTACT, None, "fine"), later)
    assert 3 == lines(tmp_path)

    monkeypatch.setattr("lastgood.ledger.LINES_MAX", 5)
    monkeypatch.setattr("lastgood.ledger.ENTRIES_MAX", 3)
    ledger.put(path, identity._replace(inode=2), Verdict(Kind.CORRUPT, None, "bad"), later)
    ledger = Ledger(tmp_path, writable=True)
    ledger.put(path, identity, Verdict(Kind.INTACT, None, "fine"), later)
    assert 5 == lines(tmp_path)
    ledger.put(path, identity._replace(inode=4), Verdict(Kind.INTACT, None, "fine"), later)
    assert 3 == lines(tmp_path)
    ledger.put(path, identity._replace(inode=5), Verdict(Kind.INTACT, None, "fine"), later)
    assert 4 == lines(tmp_path)
    again = Ledger(tmp_path)
    known = [again.get(path, one) for one in (identity, *(identity._replace(inode=inode) for inode in range(1, 6)))]
    assert [True, False, False, True, True, True] == [one is not None for one in known]
    assert ["ledger"] == os.listdir(tmp_path / ".lastgood")


def test_a_ledger_that_may_not_or_cannot_be_written_serves_its_owner(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """A reader's ledger leaves no file; one whose folder is missing ends no judgement; both remember for themselves."""
    path = str(make_zip("ckpt_1.pt"))
    identity = Identity.of(os.stat(path))
    for ledger in (Ledger(tmp_path), Ledger(tmp_path, writable=True)):
        ledger.put(path, identity, Verdict(Kind.INTACT, None, "fine"), now_ns() + 2 * STILL_NS)

        assert ledger.get(os.path.basename(path), identity) is not None
        assert not (tmp_path / ".lastgood").exists()


@pytest.mark.parametrize(
    "entry", ["[]", "[1]", "0", "[{0}]", '[{0},0,0,0,"ckpt_1.pt","x","y","z",1,null,null,1]', "[[{0}]]"]
)
def test_a_ledger_of_another_version_is_not_believed(make_zip: MakeSnapshot, tmp_path: Path, entry: str) -> None:
    """What its lines hold is looked at before it is taken for a verdict."""
    (tmp_path / ".lastgood").mkdir()
    make_zip("ckpt_1.pt")
    (rung,) = scan(tmp_path)
    identity = ",".join(map(str, rung.identity))
    (tmp_path / ".lastgood" / "ledger").write_text(entry.replace("{0}", identity) + "\n")

    assert Kind.INTACT is judge(rung, Ledger(tmp_path)).verdict.kind


def test_a_damaged_ledger_costs_time_and_nothing_else(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """Torn and foreign lines are passed over."""
    (tmp_path / ".lastgood").mkdir()
    (tmp_path / ".lastgood" / "ledger").write_bytes(b'{"key": "1"\n\xff\xfe\n[]\n{"key": "a", "kind": "nonsense"}\n')
    make_zip("ckpt_1.pt")

    assert [Kind.INTACT] == [rung.verdict.kind for rung in ladder(tmp_path) if rung.verdict]


def test_a_scan_tells_what_the_ledger_remembers_without_a_reading(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """What is not remembered is None, and nobody opens the file for it; a step that only a verdict tells is taken over."""
    make_zip("ckpt.pt")
    ledger = Ledger(tmp_path)
    (rung,) = scan(tmp_path, None, ledger)
    assert rung.verdict is None

    verdict = Verdict(Kind.INTACT, Proof.CRC, "remembered", step=7)
    ledger.put(str(rung.path), rung.identity, verdict, now_ns() + 2 * STILL_NS)
    assert [rung._replace(verdict=verdict, step=7)] == scan(tmp_path, None, ledger)


def test_a_fresh_judgement_reads_the_bytes_again(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """Asked to be fresh, the ledger's answer is not taken."""
    (tmp_path / ".lastgood").mkdir()
    path = make_zip("ckpt_1.pt")
    rung = scan(tmp_path)[0]
    ledger = Ledger(tmp_path, writable=True)
    ledger.put(str(path), rung.identity, Verdict(Kind.CORRUPT, Proof.CRC, "remembered"), now_ns() + 2 * STILL_NS)

    remembered, read = judge(rung, ledger), judge(rung, ledger, fresh=True)
    assert ("remembered", Kind.INTACT) == (
        remembered.verdict and remembered.verdict.reason,
        read.verdict and read.verdict.kind,
    )


def test_the_package_offers_its_names_without_torch() -> None:
    """The library's names load when used, and importing the library brings no torch."""
    import subprocess
    import sys

    code = "import lastgood, sys; lastgood.verify; lastgood.ladder; lastgood.latest_healthy; sys.exit('torch' in sys.modules)"
    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode
    assert callable(lastgood.verify)
    assert callable(lastgood.ladder)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lastgood.nothing  # noqa: B018


@pytest.mark.parametrize("collecting", [True, False])
def test_looking_at_a_directory_leaves_the_garbage_collector_as_it_was(
    collecting: bool, make_zip: MakeSnapshot, tmp_path: Path
) -> None:
    """Whether a trainer has it on or off is its own affair."""
    make_zip("ckpt_1.pt")
    (gc.enable if collecting else gc.disable)()
    try:
        assert 1 == len(ladder(tmp_path))
        assert collecting is gc.isenabled()
    finally:
        gc.enable()


def test_the_identity_of_a_file_is_its_own_and_of_a_pipe_none(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """What is neither a file nor a folder is no snapshot."""
    path = make_zip("ckpt_1.pt")
    os.mkfifo(tmp_path / "pipe")

    assert Identity.of(path.stat()) == identity_of(path)
    assert identity_of(tmp_path / "pipe") is None


@pytest.mark.parametrize("reason", ["its SHA-256 is the sealed one", "another", ""])
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.UNREADABLE])
def test_any_verdict_is_remembered_as_it_was(kind: Kind, reason: str, make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """Whatever its lines leave out, what is read from them is what was put there."""
    (tmp_path / ".lastgood").mkdir()
    path = str(make_zip("ckpt_1.pt"))
    identity, later = Identity.of(os.stat(path)), now_ns() + 2 * STILL_NS
    for proof in (None, *Proof):
        for size in (0, identity.size, identity.size + 1):
            verdict = Verdict(kind, proof, reason, size, None if size else "ab" * 32, 7, 0.5)
            Ledger(tmp_path, writable=True).put(path, identity, verdict, later)

            assert verdict == Ledger(tmp_path).get("ckpt_1.pt", identity)

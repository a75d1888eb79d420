"""Snapshots that are folders: judged by their list of digests, and without one never more than unproven."""

import errno
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lastgood import folders, sealing
from lastgood.checkpoint import load_verified, safe_load_checkpoint, save_checkpoint_atomic
from lastgood.judging import verify
from lastgood.publish import remove, sweep
from lastgood.rungs import ever_held_one, identity_of, ladder, latest_healthy, scan
from lastgood.seal import bound_seal_path, bound_seal_text, seal_path
from lastgood.sealing import RefusedError, seal_snapshot, sha256_of
from lastgood.verdict import Kind, Proof
from tests.conftest import MakeSnapshot, flip_bit

MakeFolder = Callable[..., Path]


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """A function that makes a folder with a torch-like file, a JSON file and a file in a folder: (name, sealed) -> path."""

    def make(name: str, sealed: bool = True) -> Path:
        path = tmp_path / name
        (path / "ranks").mkdir(parents=True)
        with zipfile.ZipFile(path / "optimizer.pt", "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("ck/data.pkl", json.dumps({"of": name}))
            archive.writestr("ck/data/0", os.urandom(3000))
        (path / "trainer_state.json").write_text(json.dumps({"global_step": 1}))
        (path / "ranks" / "rng_0.bin").write_bytes(os.urandom(500))
        if sealed:
            seal_snapshot(path)
        return path

    return make


def test_a_sealed_folder_is_healthy_and_sha256sum_agrees(make_folder: MakeFolder, tmp_path: Path) -> None:
    """The seal is a list that coreutils checks from beside the folder."""
    path = make_folder("checkpoint-100")
    checked = subprocess.run(
        ["sha256sum", "-c", "checkpoint-100.sha256"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    verdict = verify(path)

    assert (0, 3) == (checked.returncode, checked.stdout.count(": OK"))
    assert (Kind.HEALTHY, Proof.SEAL, 100) == (verdict.kind, verdict.proof, verdict.step)
    assert sha256_of(path) == verdict.sha256
    assert sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) == verdict.bytes


@pytest.mark.parametrize("name", ["optimizer.pt", "trainer_state.json", "ranks/rng_0.bin"])
def test_every_change_of_a_sealed_file_is_found(make_folder: MakeFolder, name: str) -> None:
    """A flipped bit, a cut, an emptied and an absent file are each rejected, and the reason names the file."""
    path = make_folder("checkpoint-1")
    kept = (path / name).read_bytes()

    flip_bit(path / name, len(kept) // 2)
    assert (Kind.CORRUPT, True) == (verify(path).kind, name in verify(path).reason)
    (path / name).write_bytes(kept[:-1])
    assert verify(path).kind in (Kind.TRUNCATED, Kind.CORRUPT)
    (path / name).write_bytes(b"")
    assert verify(path).kind in (Kind.TRUNCATED, Kind.CORRUPT)
    (path / name).unlink()
    assert (Kind.INCOMPLETE, True) == (
        verify(path).kind,
        f"1 of the 3 files in its seal is missing: {name}" in verify(path).reason,
    )
    (path / name).write_bytes(kept)
    assert Kind.HEALTHY is verify(path).kind


def test_a_file_that_the_seal_does_not_name_is_told(make_folder: MakeFolder) -> None:
    """A note put into a snapshot later does not condemn it, and is not vouched for."""
    path = make_folder("checkpoint-1")
    (path / "notes.txt").write_text("keep this one")

    assert (Kind.HEALTHY, True) == (verify(path).kind, "its seal says nothing about notes.txt" in verify(path).reason)


def test_an_unsealed_folder_is_unproven_however_well_its_files_look(make_folder: MakeFolder) -> None:
    """Nothing tells which files belong to it: one that is missing cannot be missed."""
    path = make_folder("checkpoint-1", sealed=False)

    assert (Kind.UNPROVEN, Proof.STRUCTURE, None) == (verify(path).kind, verify(path).proof, verify(path).sha256)


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("optimizer.pt", b"", Kind.TRUNCATED),
        ("optimizer.pt", b"PK\x03\x04 and no more", Kind.TRUNCATED),
        ("trainer_state.json", b"", Kind.TRUNCATED),
        ("trainer_state.json", b'{"global_step": 1', Kind.CORRUPT),
        ("trainer_state.json", bytes(100), Kind.CORRUPT),
        ("trainer_state.json", b"\xff\xfe\xfa", Kind.CORRUPT),
        ("trainer_state.json", b"[" * 100_000, Kind.UNPROVEN),
        ("log.json", b'{"step": 1}\n{"step": 2}\n', Kind.UNPROVEN),
        ("log.json", b"1" * 5000, Kind.UNPROVEN),
        ("model.bin", bytes(1000), Kind.CORRUPT),
        ("model.safetensors.tmp", b"x", Kind.INCOMPLETE),
        ("done", b"", Kind.UNPROVEN),
        ("holes.json", b'{"loss": NaN}', Kind.UNPROVEN),
    ],
)
def test_an_unsealed_folder_is_as_bad_as_its_worst_file(
    make_folder: MakeFolder, name: str, content: bytes, kind: Kind
) -> None:
    """Each file is judged by what is inside; an empty marker is as good as any."""
    path = make_folder("checkpoint-1", sealed=False)
    (path / name).write_bytes(content)

    assert kind is verify(path).kind


def test_an_empty_folder_and_one_of_empty_folders_are_incomplete(tmp_path: Path) -> None:
    """A folder appears before its files do."""
    (tmp_path / "step_1" / "inner").mkdir(parents=True)

    assert Kind.INCOMPLETE is verify(tmp_path / "step_1").kind


def test_a_damaged_list_is_a_fault_of_the_list(make_folder: MakeFolder) -> None:
    """Half a list would vouch for half a snapshot; the files are judged without it."""
    path = make_folder("checkpoint-1")
    seal = Path(seal_path(path))
    whole = seal.read_bytes()
    for damaged in (
        b"",
        whole[:-90],
        whole + b"garbage\n",
        whole.replace(b"checkpoint-1/", b"../"),
        whole[:64] + b"\n",
    ):
        seal.write_bytes(damaged)

        assert (Kind.UNPROVEN, True) == (verify(path).kind, "seal-damaged" in verify(path).reason)
    other = b"0" * 64 + whole[64 : whole.index(b"\n")] + b"\n"
    seal.write_bytes(whole + other)
    assert "two different digests" in verify(path).reason


def test_lists_made_in_every_way_are_read(make_folder: MakeFolder, tmp_path: Path) -> None:
    """From beside the folder or from inside of it, with markers of binary mode, CRLF, comments, upper case, byte order marks."""
    path = make_folder("checkpoint-1")
    seal = Path(seal_path(path))
    whole = seal.read_text()
    bare = whole.replace("checkpoint-1/", "")
    for text in (
        bare,
        whole.replace("checkpoint-1/", "./checkpoint-1/"),
        bare.replace("  ", " *"),
        "".join(f"SHA256 ({line[66:]}) = {line[:64]}\n" for line in whole.splitlines()),
        "# made by hand\n" + whole.replace("\n", "\r\n"),
        "\ufeff" + "\n".join(line[:64].upper() + line[64:] for line in whole.splitlines()),
    ):
        seal.write_text(text, newline="")

        assert (Kind.HEALTHY, text) == (verify(path).kind, text)


def test_names_of_any_bytes_are_sealed(tmp_path: Path) -> None:
    """Newlines, backslashes and bytes that are no text survive the list, and coreutils agrees."""
    path = tmp_path / "step_5"
    path.mkdir()
    for name in (b"a\nb", b"c\\d", b"\xff.bin", b" lead", b"trail ", b"*star"):
        Path(os.fsdecode(os.fsencode(path) + b"/" + name)).write_bytes(name)
    seal_snapshot(path)
    checked = subprocess.run(["sha256sum", "--status", "-c", "step_5.sha256"], cwd=tmp_path, check=False)

    assert (Kind.HEALTHY, 0) == (verify(path).kind, checked.returncode)


def test_a_supervisors_seal_is_bound_to_all_of_the_folder(make_folder: MakeFolder) -> None:
    """It counts for exactly these files; a folder that changed since is a new arrival, not a corrupt one."""
    path = make_folder("checkpoint-1", sealed=False)
    identity = identity_of(path)
    assert identity is not None
    bound = Path(bound_seal_path(path))
    bound.parent.mkdir(parents=True)
    bound.write_text(bound_seal_text(sha256_of(path), identity))
    assert (Kind.HEALTHY, Proof.SEAL) == (verify(path).kind, verify(path).proof)

    bound.write_text(bound_seal_text("0" * 64, identity))
    assert Kind.CORRUPT is verify(path).kind

    (path / "ranks" / "rng_0.bin").write_bytes(b"other")
    assert Kind.UNPROVEN is verify(path).kind


def test_a_folder_that_changes_while_it_is_read_gets_no_verdict_about_its_bytes(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that comes or changes during the read makes the finding void."""
    path = make_folder("checkpoint-1")
    real = folders.read_manifest
    monkeypatch.setattr(folders, "read_manifest", lambda *a: ((path / "late").write_bytes(b"1"), real(*a))[1])

    assert (Kind.INCOMPLETE, "it changed while it was read") == (verify(path).kind, verify(path).reason)


def test_the_identity_changes_with_any_file(make_folder: MakeFolder) -> None:
    """Also where size and times of a file were put back by name, since the time of the inode cannot be."""
    path = make_folder("checkpoint-1")
    seen = {identity_of(path)}
    for change in (
        lambda: flip_bit(path / "ranks" / "rng_0.bin", 3),
        lambda: (path / "ranks" / "rng_0.bin").rename(path / "ranks" / "rng_1.bin"),
        lambda: shutil.copy2(path / "optimizer.pt", path / "copy.pt"),
        lambda: os.replace(path / "copy.pt", path / "optimizer.pt"),
    ):
        change()
        seen.add(identity_of(path))

    assert 5 == len(seen)


def test_folders_are_candidates_beside_files(make_folder: MakeFolder, tmp_path: Path) -> None:
    """A known word and a number, or a seal beside it, makes a folder a snapshot; places for samples and logs are none."""
    make_folder("checkpoint-9000")
    make_folder("checkpoint-10000")
    make_folder("global_step7")
    make_folder("run=a-step=11000-last")
    make_folder("samples_step_30000", sealed=False)
    for name in (".lastgood", "tmp-checkpoint-20000", "12000.tmp", "logs", "checkpoint-1.tmp"):
        (tmp_path / name).mkdir()

    assert ["run=a-step=11000-last", "checkpoint-10000", "checkpoint-9000", "global_step7"] == [
        rung.name for rung in scan(tmp_path)
    ]


def test_a_pattern_holds_for_folders_too(make_folder: MakeFolder, tmp_path: Path) -> None:
    """Whoever says what snapshots are called is taken at their word."""
    make_folder("out-3", sealed=False)
    make_folder("checkpoint-4")

    assert [("out-3", 3)] == [(rung.name, rung.step) for rung in scan(tmp_path, "out-{step}")]


def test_a_half_written_or_half_deleted_newest_folder_is_passed_over(make_folder: MakeFolder, tmp_path: Path) -> None:
    """Complete is what the list says; a name proves nothing, nor does a pointer to it."""
    make_folder("checkpoint-100")
    half = make_folder("checkpoint-200")
    (half / "trainer_state.json").unlink()
    (tmp_path / "checkpoint-300").mkdir()
    (tmp_path / "latest").symlink_to("checkpoint-300")
    (tmp_path / "checkpoint-400").symlink_to("nowhere")

    assert ["incomplete", "incomplete", "healthy"] == [rung.verdict.kind for rung in ladder(tmp_path) if rung.verdict]
    assert tmp_path / "checkpoint-100" == latest_healthy(tmp_path)


def test_a_link_to_a_folder_is_counted_once(make_folder: MakeFolder, tmp_path: Path) -> None:
    """A second name for the same folder is no second snapshot."""
    make_folder("checkpoint-100")
    (tmp_path / "checkpoint-200").symlink_to("checkpoint-100")

    assert [("checkpoint-100", True)] == [(rung.name, rung.linked) for rung in scan(tmp_path)]


def test_what_is_one_snapshot_and_what_a_place_for_several(make_folder: MakeFolder, tmp_path: Path) -> None:
    """A seal beside it or the name of one makes it one; a supervisor's folder or stepped files in it make it a place."""
    one, sealed = make_folder("checkpoint-1", sealed=False), make_folder("anything")
    place, run = tmp_path / "step_1", tmp_path / "epoch_2"
    for folder, inside in ((place, "ckpt_00000100.pt"), (run, ".lastgood/run.json")):
        (folder / inside).parent.mkdir(parents=True)
        (folder / inside).write_bytes(b"1")

    assert [True, True, False, False, False, False] == [
        folders.is_snapshot(path) for path in (one, sealed, place, run, tmp_path, one / "optimizer.pt")
    ]


def test_a_folder_is_removed_whole_with_its_seal(make_folder: MakeFolder, tmp_path: Path) -> None:
    """And one that a kill left half removed is swept."""
    path = make_folder("checkpoint-1")
    cut = make_folder("checkpoint-2")
    cut.rename(tmp_path / ".checkpoint-2.partial-1-0123abcd")
    remove(path)
    sweep(tmp_path)

    assert [] == os.listdir(tmp_path)


def test_limits_on_what_a_folder_may_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too deep or too many is said, not walked for ever; links to folders are not entered."""
    deep = tmp_path / "step_1" / "/".join("d" * (folders.MAX_DEPTH + 1))
    deep.mkdir(parents=True)
    (tmp_path / "step_2").mkdir()
    (tmp_path / "step_2" / "itself").symlink_to(tmp_path / "step_2")
    (tmp_path / "step_2" / "a").write_bytes(b"1")
    (tmp_path / "step_2" / "gone").symlink_to("nowhere")
    os.mkfifo(tmp_path / "step_2" / "pipe")

    assert (Kind.UNREADABLE, errno.ELOOP) == (verify(tmp_path / "step_1").kind, verify(tmp_path / "step_1").errno)
    assert ["a", "gone"] == [member.path for member in folders.members(str(tmp_path / "step_2"))]
    monkeypatch.setattr(folders, "MAX_MEMBERS", 1)
    assert (Kind.UNREADABLE, errno.E2BIG) == (verify(tmp_path / "step_2").kind, verify(tmp_path / "step_2").errno)


def test_a_folder_that_cannot_be_walked_stays_a_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be read now is said to be unreadable, never to be absent."""
    (tmp_path / "step_1").mkdir()

    def refuse(*_: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(folders, "_walk", refuse)
    assert [Kind.UNREADABLE] == [rung.verdict.kind for rung in ladder(tmp_path) if rung.verdict]


def test_a_folder_that_contradicts_itself_is_not_sealed(make_folder: MakeFolder) -> None:
    """A seal must not vouch for what is known to be bad."""
    path = make_folder("checkpoint-1", sealed=False)
    flip_bit(path / "optimizer.pt", 1500)

    with pytest.raises(RefusedError, match=r"corrupt: optimizer\.pt: CRC32"):
        seal_snapshot(path)
    assert not os.path.exists(seal_path(path))


def test_a_folder_is_not_loaded_as_a_file(make_folder: MakeFolder, tmp_path: Path) -> None:
    """Torch loads files: a folder is neither taken for one nor in the way of one."""
    path = make_folder("checkpoint-9")
    with pytest.raises(RuntimeError, match="holds no snapshot"):
        safe_load_checkpoint(tmp_path)
    with pytest.raises(RuntimeError, match=r"checkpoint-9 is a folder, which torch\.load cannot load"):
        load_verified(path)

    save_checkpoint_atomic({"step": 5}, tmp_path / "ckpt_5.pt")
    assert {"step": 5} == safe_load_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["step_100", "epoch-3", "iter_7", "state_5"])
def test_a_place_for_samples_is_no_snapshot(name: str, tmp_path: Path) -> None:
    """A word and a number may name a folder of pictures: without a file of tensors in it, it is none; a seal makes it one."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "sample.png").write_bytes(b"picture")
    assert ([], False, False) == (scan(tmp_path), ever_held_one(tmp_path), folders.is_snapshot(folder))

    (folder / "model.safetensors").write_bytes(b"x")
    assert [name] == [rung.name for rung in scan(tmp_path)]
    (folder / "model.safetensors").unlink()
    seal_snapshot(folder)
    assert [name] == [rung.name for rung in scan(tmp_path)]


def test_links_that_lead_nowhere_are_no_candidates_and_no_obstacle(make_folder: MakeFolder, tmp_path: Path) -> None:
    """A link to itself, or through a file, hides nothing else in the directory."""
    make_folder("checkpoint-1")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "step_3").symlink_to("step_3")
    (tmp_path / "through").symlink_to("checkpoint-1/optimizer.pt/x")

    assert tmp_path / "checkpoint-1" == latest_healthy(tmp_path)


def test_a_link_in_a_folder_that_leads_nowhere_makes_it_incomplete(make_folder: MakeFolder) -> None:
    """What it points to may be the model."""
    path = make_folder("checkpoint-1", sealed=False)
    (path / "model.safetensors").symlink_to("../blobs/0123")

    assert (Kind.INCOMPLETE, True) == (verify(path).kind, "not there: model.safetensors" in verify(path).reason)
    with pytest.raises(RefusedError, match="incomplete"):
        seal_snapshot(path)


def test_only_parts_of_a_snapshot_can_be_unfinished(make_folder: MakeFolder) -> None:
    """Code kept beside the weights may have any name; a shard that is being written is one wherever it is."""
    path = make_folder("checkpoint-1", sealed=False)
    (path / "code").mkdir()
    for name in ("code/uv.lock", "code/x.tmp", "model.part1", "notes.bak"):
        (path / name).write_text("x")
    assert Kind.UNPROVEN is verify(path).kind

    (path / "ranks" / "rank_1.pt.tmp").write_bytes(b"x")
    assert Kind.INCOMPLETE is verify(path).kind


def test_a_list_that_would_be_too_long_to_be_read_is_not_written(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seal that nobody reads would be made anew for ever."""
    monkeypatch.setattr(sealing, "MAX_SEAL_BYTES", 100)
    path = make_folder("checkpoint-1", sealed=False)

    with pytest.raises(RefusedError, match="more than is read of a seal"):
        seal_snapshot(path)
    assert not os.path.exists(seal_path(path))


def test_a_seal_of_other_files_is_a_fault_of_the_seal(make_folder: MakeFolder, tmp_path: Path) -> None:
    """A list made from elsewhere, or of a folder of another name, names none of these files: they are judged without it."""
    path = make_folder("checkpoint-1")
    text = Path(seal_path(path)).read_text()
    for other in ("up/checkpoint-1/", "checkpoint-2/", "sub\\"):
        Path(seal_path(path)).write_text(text.replace("checkpoint-1/", other))

        assert (Kind.UNPROVEN, True) == (verify(path).kind, "seal-damaged: it names no file" in verify(path).reason)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES], ids=errno.errorcode.get)
def test_what_cannot_be_looked_at_now_is_not_absent(
    make_zip: MakeSnapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A storage that fails for a moment must not make a directory look as if it never held a snapshot."""
    make_zip("ckpt_1.pt")

    class Entry:
        """A directory entry whose status the storage does not tell."""

        def __init__(self, real: "os.DirEntry[str]") -> None:
            self.name, self.path, self.inode = real.name, real.path, real.inode
            self.is_dir, self.is_file, self.is_symlink = real.is_dir, real.is_file, real.is_symlink

        def stat(self) -> None:
            raise OSError(number, os.strerror(number))

    class Listing(list[Entry]):
        def __enter__(self) -> "Listing":
            return self

        def __exit__(self, *_: object) -> None:
            pass

    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: Listing(map(Entry, real(path))))

    assert ["ckpt_1.pt"] == [rung.name for rung in scan(tmp_path)]
    assert ever_held_one(tmp_path)

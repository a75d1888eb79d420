"""A filesystem of the campaign's own, and what is done to it and to nothing else. Needs root."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.chaos import filesystem
from supervisor.chaos.damage import UndamagedError
from supervisor.chaos.filesystem import LEFT_BYTES, OwnFilesystem, own_filesystem
from supervisor.errors import UsageError
from tests.crash import disks
from tests.crash.conftest import give_up

SHARES = [0.0, 0.3, 1 - 2**-53]


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    """A folder for one, where one can be had."""
    if why := disks.why_not("ext4"):
        give_up(why)
    return tmp_path


@pytest.fixture
def own(own_folder: Path) -> Iterator[tuple[OwnFilesystem, Path]]:
    """One, and where it is mounted."""
    with own_filesystem(own_folder) as made:
        yield made, own_folder / "mount"


@pytest.mark.parametrize("share", SHARES)
def test_a_bit_is_flipped_without_the_filesystem_knowing(share: float, own: tuple[OwnFilesystem, Path]) -> None:
    """Times and size are what they were; only who reads the bytes again can tell."""
    made, at = own
    path = at / "ckpt_1.pt"
    content = os.urandom(300_000)
    path.write_bytes(content)
    before = path.stat()
    proof = made.flip_below(path, share)
    after, changed = path.stat(), path.read_bytes()

    assert (before.st_mtime_ns, before.st_ctime_ns, before.st_size) == (
        after.st_mtime_ns,
        after.st_ctime_ns,
        after.st_size,
    )
    assert [1] == [(one ^ other).bit_count() for one, other in zip(content, changed, strict=True) if one != other]
    assert "its times are what they were" in proof


def test_it_stays_flipped_when_it_is_mounted_anew(own_folder: Path) -> None:
    """It was done to the device, not to what the memory holds of it."""
    with own_filesystem(own_folder) as made:
        path = own_folder / "mount" / "ckpt_1.pt"
        path.write_bytes(bytes(50_000))
        made.flip_below(path, 0.5)
        disks.unmount(path.parent)
        with disks.loop_device(own_folder / "filesystem.img") as device:
            disks.mount(device, "ext4", path.parent)
            assert b"\x01" == path.read_bytes().strip(b"\0")
            disks.unmount(path.parent)
            disks.mount(device, "ext4", path.parent)  # for the end of the block


def test_a_hole_cannot_be_damaged(own: tuple[OwnFilesystem, Path]) -> None:
    """What is on no device is said to be on none."""
    made, at = own
    path = at / "ckpt_1.pt"
    with path.open("wb") as file:
        file.truncate(1 << 20)
    with pytest.raises(UndamagedError, match="a hole"):
        made.flip_below(path, 0.5)


def test_it_is_full_and_has_room_again(own: tuple[OwnFilesystem, Path]) -> None:
    """No snapshot can be written any more, also after somebody made room, though a few lines can; then as many as before."""
    made, at = own
    (at / "pruned").write_bytes(bytes(1 << 20))
    room = os.statvfs(at).f_bavail
    for _ in range(2):
        free = int(made.fill().split()[0].replace(",", ""))
        assert 0 <= free <= LEFT_BYTES
        with pytest.raises(OSError, match="No space"):
            (at / "more").write_bytes(bytes(2 * LEFT_BYTES))
        (at / "more").unlink()
        (at / "pruned").unlink(missing_ok=True)
    room += (1 << 20) // os.statvfs(at).f_frsize
    made.free()
    made.free()

    assert room == os.statvfs(at).f_bavail


def test_nothing_is_left_of_it(own_folder: Path) -> None:
    """No mount, no image, also when what was done in it failed."""
    with pytest.raises(ZeroDivisionError), own_filesystem(own_folder):
        1 / (not os.path.ismount(own_folder / "mount"))

    assert ["mount"] == os.listdir(own_folder)
    assert not os.path.ismount(own_folder / "mount")


def test_who_still_uses_it_does_not_keep_it(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is open for longer than anybody waits: the mount is gone all the same, and the file can be read on."""
    monkeypatch.setattr(filesystem, "BUSY_SECONDS", 0.2)
    with own_filesystem(own_folder):
        path = own_folder / "mount" / "held"
        path.write_text("x")
        held = path.open()
    with held:
        assert not os.path.ismount(own_folder / "mount")
        assert "x" == held.read()


ALL_ABLE, MOUNTS_NOTHING = "000001ffffffffff", "000001ffffdfffff"


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        ("root", "only root can mount one"),
        ("capability", "root may not mount here, for want of CAP_SYS_ADMIN, as in most containers"),
        ("loop", "there are no loop devices here"),
        ("programs", "mkfs.ext4, mount, umount is not installed"),
    ],
)
def test_where_there_can_be_none_that_is_said(
    missing: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is made, and before a baseline is computed."""
    able = MOUNTS_NOTHING if missing == "capability" else ALL_ABLE
    (tmp_path / "status").write_text(f"Name:\tx\nCapInh:\t0000000000000000\nCapEff:\t{able}\n")
    (tmp_path / "loop").touch()
    monkeypatch.setattr(filesystem, "STATUS", tmp_path / "status")
    monkeypatch.setattr(filesystem, "LOOP_CONTROL", tmp_path / ("none" if missing == "loop" else "loop"))
    monkeypatch.setattr(filesystem.os, "geteuid", lambda: 1000 if missing == "root" else 0)
    monkeypatch.setattr(filesystem.shutil, "which", lambda name: None if missing == "programs" else f"/bin/{name}")
    assert why == filesystem.hindrance()
    with pytest.raises(UsageError, match=why), own_filesystem(tmp_path / "folder"):
        pass

    assert not (tmp_path / "folder").exists()


def test_a_program_that_fails_is_told_in_its_first_line() -> None:
    """What mount says to read further is for whoever typed it."""
    with pytest.raises(UsageError) as caught:
        filesystem._do("sh", "-c", "echo 'mount: /x: denied.' >&2; echo ' dmesg(1) may have more' >&2; exit 32")
    assert str(caught.value).endswith("exit 32: mount: /x: denied.")
    with pytest.raises(UsageError, match=r"exit 3: 3$"):
        filesystem._do("sh", "-c", "exit 3")


def test_what_mount_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container whose root may not mount says so in one line."""
    monkeypatch.setattr(filesystem, "hindrance", lambda: None)
    monkeypatch.setattr(filesystem, "SIZE_BYTES", 1)
    with pytest.raises(UsageError, match=r"mkfs\.ext4"), own_filesystem(tmp_path):
        pass

    assert ["mount"] == os.listdir(tmp_path)

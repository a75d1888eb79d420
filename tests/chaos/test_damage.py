"""What is done to a snapshot: it is really done, and told with what proves it."""

import hashlib
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lastgood import save_checkpoint_atomic, verify
from lastgood.verdict import Kind
from supervisor.chaos import damage
from supervisor.chaos.damage import DAMAGES, HARMLESS, UndamagedError
from supervisor.chaos.plan import ON_STORAGE, OWN_FILESYSTEM, FaultKind

SHARES = [0.0, 0.5, 1 - 2**-53]


def saved(folder: Path) -> Path:
    """A sealed snapshot of several pages."""
    path = folder / "ckpt_00000020.pt"
    save_checkpoint_atomic({"model": {"w": torch.arange(5000.0)}, "iter_num": 20}, path)
    return path


def digest(path: Path) -> str:
    """Of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", sorted(DAMAGES.keys() - HARMLESS - {FaultKind.GARBLE_SEAL}))
def test_the_bytes_are_others(kind: FaultKind, share: float, tmp_path: Path) -> None:
    """Wherever the plan says, the file differs from what was sealed, and the product knows it."""
    path = saved(tmp_path)
    before = digest(path)
    proof = DAMAGES[kind](path, share)

    assert before != digest(path)
    assert path.name in proof
    assert not verify(path).usable


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", [FaultKind.FLIP_BIT, FaultKind.ZERO_PAGE, FaultKind.ZERO_TAIL])
def test_the_size_stays(kind: FaultKind, share: float, tmp_path: Path) -> None:
    """What a disk does to a file it does not do to its length."""
    path = saved(tmp_path)
    size = path.stat().st_size
    DAMAGES[kind](path, share)

    assert size == path.stat().st_size


@pytest.mark.parametrize("share", SHARES)
def test_a_bit_is_one_bit(share: float, tmp_path: Path) -> None:
    """No more than that, as a cosmic ray would have it."""
    path = saved(tmp_path)
    before = path.read_bytes()
    damage.flip_bit(path, share)
    changed = [one ^ other for one, other in zip(before, path.read_bytes(), strict=True) if one != other]

    assert [1] == [bits.bit_count() for bits in changed]


@pytest.mark.parametrize("share", SHARES)
def test_a_seal_is_garbled_and_the_file_is_left_alone(share: float, tmp_path: Path) -> None:
    """The seal is still one, and says something else."""
    path = saved(tmp_path)
    before, seal = digest(path), Path(f"{path}.sha256").read_text()
    proof = damage.garble_seal(path, share)

    assert before == digest(path)
    assert 1 == sum(one != other for one, other in zip(seal, Path(f"{path}.sha256").read_text(), strict=True))
    assert "digit" in proof
    assert Kind.CORRUPT is verify(path).kind


def test_a_seal_that_has_no_digest_is_not_said_to_be_garbled(tmp_path: Path) -> None:
    """A fault that did not happen is no fault."""
    path = saved(tmp_path)
    Path(f"{path}.sha256").write_text("no digest\n")
    with pytest.raises(UndamagedError, match="has no digest"):
        damage.garble_seal(path, 0.5)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", sorted(HARMLESS))
def test_what_is_harmless_leaves_the_snapshot_good(kind: FaultKind, share: float, tmp_path: Path) -> None:
    """Without its seal it is known by its own checksums; half a folder above it is a snapshot that nobody may choose."""
    path = saved(tmp_path)
    before = digest(path)
    DAMAGES[kind](path, share)

    assert before == digest(path)
    assert verify(path).usable
    for other in (one for one in tmp_path.iterdir() if one.is_dir()):
        assert "ckpt_00000021.pt" == other.name
        assert not verify(other).usable


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(zeros=st.integers(0, 3), share=st.floats(0, 1, exclude_max=True))
def test_a_page_of_zeros_is_none_that_was_zeros(zeros: int, share: float, tmp_path: Path) -> None:
    """The next page that holds something is taken, also from the beginning again."""
    path = tmp_path / "ckpt_1.pt"
    pages = [bytes(4096)] * 4
    pages[zeros] = b"x" * 4096
    path.write_bytes(b"".join(pages))
    damage.zero_page(path, share)

    assert bytes(4 * 4096) == path.read_bytes()


def test_a_tail_that_was_zeros_is_not_claimed(tmp_path: Path) -> None:
    """As many bytes more are taken as it needs to make a difference."""
    path = tmp_path / "ckpt_1.pt"
    path.write_bytes(b"xy" + bytes(98))

    assert "bytes 1 to 100 of ckpt_1.pt are zeros" == damage.zero_tail(path, 0.5)
    assert b"x" + bytes(99) == path.read_bytes()


def test_writing_what_is_there_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that keeps the old bytes has not been damaged, whatever it says."""
    path = saved(tmp_path)
    monkeypatch.setattr(damage.os, "pwrite", lambda _descriptor, content, _at: len(content))
    with pytest.raises(UndamagedError, match="the same bytes"):
        damage.flip_bit(path, 0.5)


def test_every_kind_on_storage_has_a_hand_that_does_it() -> None:
    """But for those that need a filesystem of the campaign's own."""
    assert ON_STORAGE - OWN_FILESYSTEM == DAMAGES.keys()

"""Seals that a supervisor makes of what others wrote: they prove the same bytes, and never condemn new ones."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lastgood.judging import verify
from lastgood.rungs import identity_of
from lastgood.seal import bound_seal_path, bound_seal_text
from lastgood.sealing import sha256_of
from lastgood.verdict import Kind, Proof

TOUCHES = {
    "touched": lambda path: os.utime(path, (1, 1)),
    "another mode": lambda path: path.chmod(0o600),
    "another link": lambda path: os.link(path, path.with_name("link")),
    "copied": lambda path: (shutil.copy(path, path.with_name("copy")), os.replace(path.with_name("copy"), path)),
}


def sealed_by_a_supervisor(path: Path) -> Path:
    """The path, after what a supervisor does to a snapshot that its writer outlived."""
    identity = identity_of(path)
    assert identity is not None
    bound = Path(bound_seal_path(path))
    bound.parent.mkdir(parents=True)
    bound.write_text(bound_seal_text(sha256_of(path), identity))
    return path


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES.keys())
def test_what_a_supervisor_sealed_is_proven_by_its_bytes_however_it_is_touched(
    touch: Callable[[Path], object], tmp_path: Path
) -> None:
    """A mode, a time, a link or a copy changes who the file is and not what it holds; the digest is read again and agrees."""
    path = tmp_path / "step_5.npz.model"
    path.write_bytes(os.urandom(2000))
    assert Kind.UNPROVEN is verify(path).kind
    sealed_by_a_supervisor(path)
    touch(path)
    verdict = verify(path)

    assert (Kind.HEALTHY, Proof.SEAL, sha256_of(path)) == (verdict.kind, verdict.proof, verdict.sha256)


def test_other_bytes_under_a_supervisors_seal_are_a_new_arrival(tmp_path: Path) -> None:
    """As many others are worth what they would be without it: the seal may prove them, and never condemns them."""
    path = tmp_path / "step_5.npz.model"
    path.write_bytes(os.urandom(2000))
    sealed_by_a_supervisor(path)
    path.write_bytes(os.urandom(2000))

    assert Kind.UNPROVEN is verify(path).kind


@pytest.mark.parametrize("part", ["", "part.bin"])
def test_a_folder_that_a_supervisor_sealed_is_proven_by_its_bytes_however_it_is_touched(
    part: str, tmp_path: Path
) -> None:
    """Whether the folder or a file in it has another time; with other bytes in it, it is a new arrival."""
    path = tmp_path / "checkpoint-5"
    path.mkdir()
    (path / "part.bin").write_bytes(os.urandom(2000))
    sealed_by_a_supervisor(path)
    os.utime(path / part, (4e9, 4e9))
    verdict, digest = verify(path), sha256_of(path)
    (path / "part.bin").write_bytes(os.urandom(2000))

    assert (Kind.HEALTHY, Proof.SEAL, digest) == (verdict.kind, verdict.proof, verdict.sha256)
    assert Kind.UNPROVEN is verify(path).kind

"""A checkpoint directory that was moved away or unmounted is waited for: nothing of the supervisor's makes another."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lastgood.keep import Keep
from lastgood.seal import Identity
from supervisor import stalled
from supervisor.adapters import places, statefile
from supervisor.adapters.shelf import Shelf
from supervisor.adapters.verifier import Verifier
from supervisor.core.events import LadderJudged, RungFact
from supervisor.errors import UsageError
from tests.conftest import MakeSnapshot

Act = Callable[[str, RungFact], object]


def keep_evidence(directory: str, rung: RungFact) -> None:
    """What a stalled trainer was doing."""
    folder = os.path.join(directory, ".lastgood", "stalls")
    stalled.keep_evidence(folder, 1, "heading", list, [], lambda event, fields: None)


ACTS: dict[str, tuple[Act, type[Exception] | None]] = {
    "quarantine": (lambda directory, rung: places.set_aside(directory, rung.name, {}), FileNotFoundError),
    "shelf": (lambda directory, rung: Shelf(directory, rung.name, Keep(2)).keep_copy(rung), FileNotFoundError),
    "prepare": (lambda directory, rung: statefile.prepare(directory), UsageError),
    "evidence": (keep_evidence, None),
}


@pytest.mark.parametrize("way", ACTS)
def test_what_writes_beside_the_snapshots_does_not_bring_back_their_directory(
    way: str, tmp_path: Path, make_zip: MakeSnapshot
) -> None:
    """Each fails as it would on any missing folder, or says what it could not do."""
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    make_zip("checkpoints/step_1.pt")
    told = Verifier(str(directory), None, 0.0, {}).judge_ladder()
    assert isinstance(told, LadderJudged)
    directory.rename(tmp_path / "moved")
    act, error = ACTS[way]
    if error is None:
        act(str(directory), told.rungs[0])
    else:
        with pytest.raises(error):
            act(str(directory), told.rungs[0])

    assert ["moved"] == [one.name for one in tmp_path.iterdir()]


def test_a_seal_does_not_bring_back_the_directory_of_what_was_hashed(
    tmp_path: Path, make_zip: MakeSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes away between the hash and the seal."""
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    make_zip("checkpoints/step_1.pt")
    verifier = Verifier(str(directory), None, 0.0, {})
    assert isinstance(verifier.judge_ladder(), LadderJudged)

    def moved(path: Path) -> Identity:
        found = Identity.of(path.stat())
        directory.rename(tmp_path / "moved")
        return found

    monkeypatch.setattr("supervisor.adapters.verifier.identity_of", moved)
    with pytest.raises(FileNotFoundError):
        verifier.seal("step_1.pt")

    assert ["moved"] == [one.name for one in tmp_path.iterdir()]

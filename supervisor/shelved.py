"""The ladder of a trainer that overwrites one file: that file, and the supervisor's copies of what it was before.

A copy has its step in its name and its seal beside it. In the ladder it is called by its path in the checkpoint directory.
"""

import os
from collections.abc import Callable
from typing import NamedTuple

from lastgood.contract import SHELF_DIR, STATE_DIR
from lastgood.files import step_inside
from lastgood.formats import torch_damaged
from lastgood.formats.torch_tensors import top_level
from lastgood.ledger import Ledger
from lastgood.naming import snapshot_name
from lastgood.regular import regular
from lastgood.rungs import Rung, judge, scan

_SHELF = f"{STATE_DIR}/{SHELF_DIR}"
_PATTERN = r"ckpt_(\d+)\.pt"


class Places(NamedTuple):
    """Where a trainer's one file is, and where copies of it are kept."""

    in_place: str
    shelf: str


def places_of(checkpoint_dir: str, name: str) -> Places:
    """The places of a checkpoint directory whose one file is called `name`."""
    return Places(os.path.join(checkpoint_dir, name), os.path.join(checkpoint_dir, STATE_DIR, SHELF_DIR))


def is_shelved(name: str) -> bool:
    """Whether a rung's name is that of a copy."""
    return name.startswith(f"{_SHELF}/")


def shelved_name(step: int) -> str:
    """What the copy of the snapshot at `step` is called in the ladder."""
    return f"{_SHELF}/{snapshot_name(step)}"


def scan_shelf(checkpoint_dir: str) -> list[Rung]:
    """The copies, newest first, not judged. Raises OSError when the shelf is there and cannot be read."""
    try:
        found = scan(os.path.join(checkpoint_dir, _SHELF), _PATTERN)
    except FileNotFoundError:
        return []
    return [rung._replace(folder=checkpoint_dir, name=f"{_SHELF}/{rung.name}") for rung in found]


def ladder(
    found: list[Rung],
    shelf: list[Rung],
    down: Callable[[list[Rung]], list[Rung]],
    is_passed: Callable[[Rung], bool],
    ledger: Ledger,
) -> list[Rung]:
    """The file in place, if `found` has it, among the copies; `down` judges copies from the newest to the first proven one.

    Nobody can tell the step of a file that is not whole, but it was written last, and so it comes first. The copy of what is
    proven in place is left out: it is the same snapshot. One that `is_passed` is no reason to stop there.
    """
    if not found:
        return down(shelf)
    rung = judge(found[0], ledger, fresh=True)
    if not shelf:
        return [rung]
    is_proven = rung.verdict is not None and rung.verdict.proven
    if not is_proven or rung.step is None:
        steps = (_step_of_wreck(rung) if rung.step is None else rung.step, shelf[0].step)
        rung = rung._replace(step=max(step for step in steps if step is not None))
    if not is_proven:
        return [rung, *_older(rung, down(shelf))]
    newer = [one for one in shelf if _step(one) > _step(rung)]
    older = [one for one in shelf if _step(one) < _step(rung)]
    return [*down(newer), rung, *(down(older) if is_passed(rung) else older)]


def _step(rung: Rung) -> int:
    return -1 if rung.step is None else rung.step


def _older(than: Rung, shelf: list[Rung]) -> list[Rung]:
    """The copies as older than the file in place, whatever a clock that was set back has made of that."""
    latest = than.mtime_ns - 1
    return [one._replace(identity=one.identity._replace(mtime_ns=min(one.mtime_ns, latest))) for one in shelf]


def _step_of_wreck(rung: Rung) -> int | None:
    """The step that a damaged file still tells under a checksum that agrees; None when it does not."""
    try:
        with open(rung.path, "rb", opener=regular) as file:
            wreck = torch_damaged.look(file, torch_damaged.LOOK_BYTES + 2 * rung.identity.size)
            return None if wreck.unproven else step_inside(top_level(wreck.contents.value))
    except Exception:  # noqa: BLE001 - whatever is wrong with it, that was told already
        return None

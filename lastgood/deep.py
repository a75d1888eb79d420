"""Look into the numbers of a snapshot whose bytes are good: NaN anywhere, or infinities that are new, poison it."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from lastgood import folders, formats, rungs
from lastgood.nonfinite import NonFinite, ScanError, poisoned, scan_in_child
from lastgood.verdict import Kind, Verdict

SCAN_SECONDS_MAX = 3600.0  # 1 TB at a quarter of a GB a second


@dataclass(frozen=True)
class _Before:
    """The snapshot before the one looked at: its name, and which of its tensors had infinities."""

    name: str
    infinite: dict[str, bool]


def look_into(path: str, verdict: Verdict) -> Verdict:
    """The verdict after a look at every float; what could not be looked into keeps its verdict, and the reason says so.

    The look is a child process's, one a file. An infinity counts only where the same tensor had none in the snapshot
    before it in the same directory.
    """
    try:
        found = _found(path)
        before = _before(path) if any(not one.nans for one in found) else None
    except (ScanError, OSError) as error:
        return replace(verdict, reason=f"{verdict.reason}; its tensors were not looked into: {error}")
    bad = poisoned(found, None if before is None else before.infinite)
    if not bad:
        return replace(verdict, reason=f"{verdict.reason}; {_all_well(found, before)}")
    more = f" and {len(bad) - 1} more tensors" if len(bad) > 1 else ""
    reason = f"{_what(bad[0], before)}{more}; its bytes are good ({verdict.kind})"
    return replace(verdict, kind=Kind.POISONED, reason=reason)


def _what(one: NonFinite, before: _Before | None) -> str:
    if one.nans:
        return f"{one.nans:,} NaN in {one.name} ({one.dtype})"
    assert before is not None
    return f"{one.infinities:,} Inf in {one.name} ({one.dtype}), which had none in {before.name}"


def _all_well(found: list[NonFinite], before: _Before | None) -> str:
    if not found:
        return "no NaN in its tensors"
    since = f"as {before.name} has" if before is not None else "and no older snapshot to tell whether it is new"
    return f"no NaN in its tensors; Inf in {found[0].name}, {since}"


def _found(path: str) -> list[NonFinite]:
    """What is not finite in a file, or in the files of a folder, each name with its file's before it."""
    if not os.path.isdir(path):
        return scan_in_child(path, SCAN_SECONDS_MAX)
    found: list[NonFinite] = []
    for member in folders.members(path):
        full = os.path.join(path, member.path)
        with open(full, "rb") as file:
            known = member.status.st_size > 0 and formats.format_of(file, member.status.st_size) is not None
        if known:
            found += [replace(one, name=f"{member.path}: {one.name}") for one in scan_in_child(full, SCAN_SECONDS_MAX)]
    return found


def _before(path: str) -> _Before | None:
    """The newest older snapshot beside this one that can be looked into; None when there is none."""
    target = Path(os.path.abspath(path))
    beside = rungs.scan(target.parent)
    own = next((index for index, rung in enumerate(beside) if rung.name == target.name), len(beside))
    for rung in beside[own + 1 :]:
        try:
            return _Before(rung.name, {one.name: one.infinities > 0 for one in _found(os.fspath(rung.path))})
        except (ScanError, OSError):
            continue  # a damaged one says nothing; the one before it may
    return None

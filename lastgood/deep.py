"""Look into the numbers of a snapshot whose bytes are good: NaN anywhere, or infinities that are new, poison it."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from lastgood import folders, formats, rungs
from lastgood.nonfinite import EndedError, NonFinite, ScanError, poisoned, scan_in_child
from lastgood.verdict import Kind, Verdict

SCAN_SECONDS_MAX = 3600.0  # 1 TB at a quarter of a GB a second
OLDER_MAX = 3  # snapshots before one that are asked what they had; each takes as long as the look itself


@dataclass(frozen=True)
class _Older:
    """An older snapshot: its name, and those of its tensors that have infinities."""

    name: str
    infinite: frozenset[str]


def look_into(path: str, verdict: Verdict) -> Verdict:
    """The verdict after a look at every float; what could not be looked into keeps its verdict, and the reason says so.

    The look is a child process's, one a file. An infinity counts only where the same tensor had none in one of the few
    snapshots before it in the same directory: the very last one may have been the first that diverged.
    """
    try:
        found = _found(path)
        older = _older(path) if any(not one.nans for one in found) else []
    except (ScanError, OSError) as error:
        return verdict._replace(reason=f"{verdict.reason}; its tensors were not looked into: {error}")
    always = frozenset.intersection(*(one.infinite for one in older)) if older else frozenset()
    bad = poisoned(found, dict.fromkeys(always, True) if older else None)
    if not bad:
        return verdict._replace(reason=f"{verdict.reason}; {_all_well(found, older)}")
    more = f" and {len(bad) - 1} more tensors" if len(bad) > 1 else ""
    reason = f"{_what(bad[0], older)}{more}; its bytes are good ({verdict.kind})"
    return verdict._replace(kind=Kind.POISONED, reason=reason)


def _what(one: NonFinite, older: list[_Older]) -> str:
    if one.nans:
        return f"{one.nans:,} NaN in {one.name} ({one.dtype})"
    without = next(other.name for other in older if one.name not in other.infinite)
    return f"{one.infinities:,} Inf in {one.name} ({one.dtype}), which had none in {without}"


def _all_well(found: list[NonFinite], older: list[_Older]) -> str:
    if not found:
        return "no NaN in its tensors"
    since = f"as {older[0].name} has" if older else "and no older snapshot to tell whether it is new"
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


def _older(path: str) -> list[_Older]:
    """The newest few older snapshots beside this one that can be looked into; fewer when somebody ends the look."""
    target = Path(os.path.abspath(path))
    beside = rungs.scan(target.parent)
    own = next((index for index, rung in enumerate(beside) if rung.name == target.name), len(beside))
    older = []
    for rung in beside[own + 1 :][:OLDER_MAX]:
        try:
            infinite = frozenset(one.name for one in _found(os.fspath(rung.path)) if one.infinities)
            older.append(_Older(rung.name, infinite))
        except EndedError:
            break
        except (ScanError, OSError):
            continue  # a damaged one says nothing; the one before it may
    return older

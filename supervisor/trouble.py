"""What run.json holds, read with mistrust. Raises ValueError for anything that this software did not write."""

import math
import reprlib
from types import NoneType
from typing import Any

from lastgood.seal import Identity
from supervisor.core.blame import Blame, Suspect
from supervisor.core.divergence import Divergence, Stretch
from supervisor.core.trust import Trust
from supervisor.proc import Identity as ProcessIdentity


def value(content: Any, key: str, *kinds: type) -> Any:
    """What a JSON object has under a key, if it is of one of the kinds; True is no number. Raises ValueError."""
    if not isinstance(content, dict) or key not in content:
        raise ValueError(f"it has no {key}")
    found = content[key]
    if type(found) not in kinds:
        raise ValueError(f"its {key} is {reprlib.repr(found)}")
    return found


def blame(content: Any) -> Blame | None:
    """The deaths alike that a run had not got past; none in a run.json of before they were kept."""
    if content is None:
        return None
    suspect = value(content, "suspect", dict, NoneType)
    return Blame(
        snapshot=_suspect(value(content, "snapshot", dict)),
        step=value(content, "step", int, NoneType),
        signature=value(content, "signature", str),
        deaths=value(content, "deaths", int),
        suspect=None if suspect is None else _suspect(suspect),
    )


def _suspect(content: Any) -> Suspect:
    return Suspect(value(content, "name", str), value(content, "mtime_ns", int), value(content, "step", int, NoneType))


def divergence(content: Any) -> Divergence | None:
    """The divergences that a run had not got past."""
    if content is None:
        return None
    return Divergence(
        step=value(content, "step", int, NoneType),
        times=value(content, "times", int),
        finite=value(content, "finite", int, NoneType),
    )


def trust(content: Any) -> Trust | None:
    """What the last trainer was started from on trust."""
    if content is None:
        return None
    return Trust(
        name=value(content, "name", str),
        mtime_ns=value(content, "mtime_ns", int),
        step=value(content, "step", int),
        left=tuple(map(_left, value(content, "left", list))),
        refuted=value(content, "refuted", bool),
    )


def _left(pair: Any) -> tuple[str, int]:
    if not isinstance(pair, list) or [str, int] != [type(part) for part in pair]:
        raise ValueError(f"one of the snapshots left in place is {reprlib.repr(pair)}")
    return pair[0], pair[1]


def told_loss(pair: Any) -> tuple[int, float]:
    """A step and the loss that was told there."""
    if not isinstance(pair, list) or [int, float] != [type(part) for part in pair] or not math.isfinite(pair[1]):
        raise ValueError(f"one of its losses is {reprlib.repr(pair)}")
    return pair[0], pair[1]


def stretch(pair: Any) -> Stretch:
    """First and last step of data that is skipped."""
    if not isinstance(pair, list) or [int] * 2 != [type(part) for part in pair]:
        raise ValueError(f"one of the stretches to skip is {reprlib.repr(pair)}")
    return pair[0], pair[1]


def written_at(content: Any, now: float) -> float:
    """When it was written, on the monotonic clock of this boot; as it is now where that is not known."""
    at: float | None = value({"written_at": None, **content}, "written_at", int, float, NoneType)
    return at if at is not None and at <= now else now


def ages(content: Any, key: str) -> tuple[float, ...]:
    """Ages in seconds."""
    found = value(content, key, list)
    if not all(type(age) in (int, float) and math.isfinite(age) for age in found):
        raise ValueError(f"its {key} are {reprlib.repr(found)}")
    return tuple(map(float, found))


def identity(parts: Any) -> Identity:
    """A file's identity."""
    if not isinstance(parts, list) or [int] * 4 != [type(part) for part in parts]:
        raise ValueError(f"one of its foreign snapshots is {reprlib.repr(parts)}")
    return Identity(*parts)


def process(parts: Any) -> ProcessIdentity | None:
    """A process, if it is known."""
    if parts is None:
        return None
    if not isinstance(parts, list) or [int] * 2 != [type(part) for part in parts]:
        raise ValueError(f"its supervisor is {reprlib.repr(parts)}")
    return ProcessIdentity(*parts)

"""What run.json holds of a run's trouble, read with mistrust. Raises ValueError for anything that this software did not write."""

import reprlib
from types import NoneType
from typing import Any

from supervisor.core.blame import Blame, Suspect
from supervisor.core.divergence import Divergence, Stretch


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


def stretch(pair: Any) -> Stretch:
    """First and last step of data that is skipped."""
    if not isinstance(pair, list) or [int] * 2 != [type(part) for part in pair]:
        raise ValueError(f"one of the stretches to skip is {reprlib.repr(pair)}")
    return pair[0], pair[1]

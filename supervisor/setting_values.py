"""Kinds of values that settings have: what people write in YAML, taken as what they mean."""

import re
import shlex
import warnings
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

T = TypeVar("T")


def _words(value: object) -> object:
    """A command given as one string is split as a shell would split it."""
    if isinstance(value, str):
        return shlex.split(value)
    if isinstance(value, list):
        return [_text(word) for word in value]
    return [] if value is None else value


def _texts(value: object) -> object:
    """Environment values may be written as numbers."""
    if isinstance(value, dict):
        return {key: _text(one) for key, one in value.items()}
    return {} if value is None else value


def _text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _number(value: object) -> object:
    """Seconds may be written without a decimal point."""
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ValueError("it is too large") from None
    return value


def _switch(value: object) -> object:
    """YAML reads on and off as true and false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _passable(value: str) -> str:
    """What the system can take as a path, an argument or a variable."""
    if "\0" in value:
        raise ValueError("it holds a NUL character, which no program and no path can take")
    return value


def _variable(name: str) -> str:
    if not name or "=" in name:
        raise ValueError(f"{name!r} cannot be the name of a variable")
    if name.startswith("LASTGOOD_"):
        raise ValueError("variables of this name are the supervisor's to set; leave it out")
    return _passable(name)


Word = Annotated[str, AfterValidator(_passable)]
"""A path or an argument."""
Words = Annotated[list[Word], BeforeValidator(_words)]
"""A command."""
Variables = Annotated[dict[Annotated[str, AfterValidator(_variable)], Word], BeforeValidator(_texts)]
"""Variables of an environment and their values."""
Seconds = Annotated[float, BeforeValidator(_number), Field(ge=0, allow_inf_nan=False)]
"""A duration."""
Switch = Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch)]
"""On, off, or as the situation asks."""


def compiled(step_pattern: str) -> re.Pattern[bytes]:
    """A step pattern as it is used: on lines of bytes. Raises ValueError."""
    try:
        return re.compile(step_pattern.encode(), re.MULTILINE)
    except re.error as error:
        raise ValueError(f"not a regular expression for bytes ({error})") from None


def keyed(key: str, attempt: Callable[[], T]) -> T:
    """What `attempt` returns. Raises ValueError that begins with the key."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a pattern may be read differently by a later Python
            return attempt()
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{key}: {error}") from None

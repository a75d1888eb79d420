"""Exit statuses of `lastgood run`, and the one exception a person sees."""

import difflib
from collections.abc import Iterable
from enum import IntEnum


class ExitStatus(IntEnum):
    """What the process status says. 2 to 7 are permanent: starting again without a change would end the same way."""

    COMPLETED = 0
    BUG = 1
    USAGE = 2
    NO_HEALTHY_SNAPSHOT = 3
    BUDGET_SPENT = 4
    CANNOT_CONTINUE = 5
    STUCK = 6
    ALREADY_SUPERVISED = 7
    INTERRUPTED = 130
    TERMINATED = 143


class UsageError(Exception):
    """A person's mistake, told in one line that names the file, the key and the cure."""

    def __init__(self, text: str) -> None:
        """`text` may hold names from outside; whatever would end the line or steer a terminal is shown as an escape."""
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text))


class AlreadySupervisedError(Exception):
    """Another supervisor has this checkpoint directory."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the known word that an unknown one is most like, or nothing."""
    near = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""

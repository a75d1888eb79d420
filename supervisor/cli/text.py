"""How names and sizes are shown to a person: nothing from outside may end a line or steer a terminal."""

import os
from itertools import pairwise

FORBIDDEN = "permission denied; give this user read permission"
SPAN_MAX = 1e9  # seconds; some thirty years


def printable(text: str) -> str:
    """Text that nobody vouches for: what would end a line or move a terminal's cursor is shown as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shown(path: str) -> str:
    """A path that any terminal and any JSON reader takes, whatever bytes are in it."""
    if path.isascii() and path.isprintable():
        return path
    return printable(os.fsencode(path).decode("utf-8", "backslashreplace"))


def bytes_text(count: int) -> str:
    """A number of bytes in the unit that suits it, as multiples of 1,000."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def span(seconds: float) -> str:
    """A length of time in the two units that suit it."""
    whole = int(max(0.0, min(seconds, SPAN_MAX)))
    for (unit, length), (finer, part) in pairwise((("d", 86400), ("h", 3600), ("m", 60), ("s", 1))):
        if whole >= length:
            return f"{whole // length}{unit}{whole % length // part:02}{finer}"
    return f"{whole}s"

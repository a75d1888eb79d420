"""What was found out about a snapshot. Pure: words and small facts, no files."""

import errno
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """The verdicts, best first. What each allows is in the two sets below and nowhere else."""

    HEALTHY = "healthy"
    INTACT = "intact"
    UNPROVEN = "unproven"
    TRUNCATED = "truncated"
    CORRUPT = "corrupt"
    INCOMPLETE = "incomplete"
    POISONED = "poisoned"
    INCOMPATIBLE = "incompatible"
    UNREADABLE = "unreadable"


class Proof(StrEnum):
    """What a verdict rests on, strongest first."""

    SEAL = "seal"
    CRC = "crc"
    STRUCTURE = "structure"


PROVEN = frozenset({Kind.HEALTHY, Kind.INTACT})
"""May be resumed from without a second thought."""

BAD = frozenset({Kind.TRUNCATED, Kind.CORRUPT, Kind.INCOMPLETE, Kind.POISONED})
"""Set aside on a fallback. Unreadable and incompatible ones are passed over but never moved."""


class Verdict(NamedTuple):
    """The finding about one snapshot.

    `reason` is a sentence a person can act on; `bytes` is the size judged; `sha256` is the digest of what was
    read, when the whole snapshot was read; `step` is the step inside it or in its name; `seconds` is what the
    judging cost; `errno` is the system's error for an unreadable one; `loss` is the finite one that its payload tells.
    """

    kind: Kind
    proof: Proof | None
    reason: str
    bytes: int = 0
    sha256: str | None = None
    step: int | None = None
    seconds: float = 0.0
    errno: int | None = None
    loss: float | None = None

    @property
    def proven(self) -> bool:
        """Whether the bytes are good by a seal or by checksums inside."""
        return self.kind in PROVEN

    @property
    def usable(self) -> bool:
        """Whether a run may be resumed from it at all; an unproven one only when no proven one is left."""
        return self.proven or self.kind is Kind.UNPROVEN

    @property
    def forbidden(self) -> bool:
        """Whether permissions hid its bytes: a person must mend that, no retry will."""
        return self.errno in (errno.EACCES, errno.EPERM)

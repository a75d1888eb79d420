"""Whether a snapshot or the software is to blame for deaths that repeat. Pure.

Two crashes alike from one snapshot make it a suspect, and an older one is tried. If that passes the step of death, the suspect is
poisoned. If it dies the same way, no snapshot is at fault: the software is.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from lastgood.verdict import Kind, Verdict
from supervisor.core.events import RungFact, TrainerExited

DEATHS_TO_SUSPECT = 2
SIGNATURE_CHARACTERS_MAX = 200
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")
_LACK = re.compile(
    r"Address already in use|EADDRINUSE|No space left on device|Disk quota exceeded|Cannot allocate memory|[Oo]ut of memory"
    r"|MemoryError|Too many open files|Resource temporarily unavailable|Stale file handle|Input/output error|/dev/shm"
    r"|Read-only file system|Transport endpoint is not connected"
    r"|File exists: '/(?:psm|torch|\d+)_\w+'"  # shared memory that a killed trainer left; MosaicML's begins with a number
)
"""What a crash says that is about the machine: good snapshots meet with it as well as bad ones."""


@dataclass(frozen=True)
class Suspect:
    """A snapshot that is passed over: its name and time of modification in nanoseconds, and its step."""

    name: str
    mtime_ns: int
    step: int | None

    def is_(self, rung: RungFact) -> bool:
        """Whether this is that rung, and not a newer one of its name."""
        return (self.name, self.mtime_ns) == (rung.name, rung.mtime_ns)


@dataclass(frozen=True)
class Blame:
    """Crashes in a row without progress that were alike: from which snapshot, at which step, how, and how many.

    With a `suspect` they are those that made it one, and an older snapshot is being tried.
    """

    snapshot: Suspect
    step: int | None
    signature: str
    deaths: int = 1
    suspect: Suspect | None = None


def signature(death: TrainerExited) -> str:
    """What a crash looks like: the last line of its output with numbers masked, under its code or signal."""
    said = next((line.strip() for line in reversed(death.last_lines) if line.strip()), "")
    how = f"code {death.code}" if death.signal is None else f"signal {death.signal}"
    return f"{how}: {_NUMBER.sub('#', said)[:SIGNATURE_CHARACTERS_MAX]}"


def lack(death: TrainerExited) -> str | None:
    """What the machine lacked, such as a port or memory, as its last lines say: then no snapshot is accused."""
    found = next(filter(None, map(_LACK.search, death.last_lines)), None)
    return None if found is None else f"its last lines say {found[0]!r}: no snapshot is accused of that"


def after_crash(blame: Blame | None, resumed: RungFact, step: int | None, death: TrainerExited) -> Blame:
    """What is known after one more crash without progress, at `step`, of a trainer that was resumed from `resumed`."""
    crash = Blame(Suspect(resumed.name, resumed.mtime_ns, resumed.step), step, signature(death))
    if blame is None:
        return crash
    if blame.suspect is not None:
        return replace(blame, deaths=blame.deaths + 1) if _is_alike(blame, crash) else blame
    if blame.snapshot != crash.snapshot or not _is_alike(blame, crash):
        return crash
    suspected = replace(blame, deaths=blame.deaths + 1)
    return replace(suspected, suspect=crash.snapshot) if suspected.deaths >= DEATHS_TO_SUSPECT else suspected


def _is_alike(blame: Blame, crash: Blame) -> bool:
    return (blame.signature, blame.step) == (crash.signature, crash.step)


def exonerates(before: Blame | None, after: Blame) -> bool:
    """Whether this crash, of a trainer that an older snapshot was tried with, was the one that made the suspect."""
    return before is not None and before.suspect is not None and after.deaths > before.deaths


def convicts(blame: Blame | None, step: int) -> bool:
    """Whether a trainer that was resumed from an older snapshot has passed, at `step`, where the suspect's died."""
    return blame is not None and blame.suspect is not None and step > (-1 if blame.step is None else blame.step)


def suspected(rungs: Iterable[RungFact], blame: Blame | None) -> tuple[RungFact, ...]:
    """The rungs, the suspect among them no longer proven: what is proven goes before it, and it before nothing."""
    return tuple(_doubted(rung, blame) if _is_suspect(rung, blame) else rung for rung in rungs)


def _is_suspect(rung: RungFact, blame: Blame | None) -> bool:
    return (
        blame is not None
        and blame.suspect is not None
        and blame.suspect.is_(rung)
        and rung.verdict is not None
        and rung.verdict.proven
    )


def _doubted(rung: RungFact, blame: Blame | None) -> RungFact:
    assert blame is not None
    assert rung.verdict is not None
    at = "before its first step" if blame.step is None else f"at step {blame.step}"
    reason = f"suspected: {blame.deaths} deaths alike {at} ({blame.signature})"
    return replace(
        rung, verdict=Verdict(Kind.UNPROVEN, None, reason, rung.verdict.bytes, rung.verdict.sha256, rung.step)
    )

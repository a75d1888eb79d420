"""Processes of the run as the injector sees them, by what the supervisor told of itself and by /proc."""

from typing import Any

from supervisor.proc import Identity, snapshot, stat_of


def leader(status: dict[str, Any]) -> Identity:
    """The trainer that a status names."""
    return Identity(status["trainer_pid"], status["trainer_start_ticks"])


def below(process: Identity) -> list[Identity]:
    """All that descends from a process; nothing, once another has its pid."""
    stats = snapshot()
    if process.pid not in stats or stats[process.pid].identity != process:
        return []
    found = {process.pid}
    while more := {pid for pid, stat in stats.items() if stat.parent in found and pid not in found}:
        found |= more
    return [stats[pid].identity for pid in sorted(found - {process.pid})]


def stands_still(process: Identity) -> bool:
    """Whether SIGSTOP has taken effect, which it does a moment after it was sent; a dead process stands still too."""
    stat = stat_of(process.pid)
    return stat is None or stat.identity != process or stat.state in "TtZX"

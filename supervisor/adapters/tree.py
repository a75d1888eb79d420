"""Everything that belongs to a run, and its end: after an exit nothing of the run may live when the next start comes.

A process belongs to a run when it descends from the leader or shares its session, when it descends from this process
(which adopts orphans, see `process.become_subreaper`), when it carries the run's marker in its environment (for what a dead
supervisor left behind), when it is in the run's control group (see `cgroup.py`), or when it descends from any such process.
Never this process nor its ancestors, never the supervisor's own other processes. A process whose environment cannot be read
carries no marker.
"""

import os
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from supervisor.proc import Identity, Stat, holds_variable, reap_orphans, send_signal, snapshot

_PAUSE_SECONDS_MIN = 0.001
_PAUSE_SECONDS_MAX = 0.05
_UNSAID_SECONDS = (0.002, 0.01, 0.05)  # until a process that shows no environment yet is asked again

Table = Mapping[int, tuple[int, int]]
"""Every process that was seen: pid to parent and session."""


class Group(Protocol):
    """A control group that only the run is in."""

    def pids(self) -> set[int]:
        """All that live in it."""

    def kill(self) -> None:
        """SIGKILL to all of them at one stroke, where the kernel can."""


def descendants(table: Table, roots: Iterable[int], barred: Collection[int] = ()) -> set[int]:
    """The roots and all that descends from them, not entering what is barred; a child's pid may well be the lower one."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = [pid for pid in roots if pid in table]
    while waiting:
        pid = waiting.pop()
        if pid not in found and pid not in barred:
            found.add(pid)
            waiting.extend(children.get(pid, ()))
    return found


def line_of(table: Table, pid: int) -> set[int]:
    """A process and its ancestors; a snapshot that was taken while processes moved may even hold a circle."""
    line: set[int] = set()
    while pid in table and pid not in line:
        line.add(pid)
        pid = table[pid][0]
    return line


def in_session(table: Table, session: int) -> set[int]:
    """All processes of a session."""
    return {pid for pid, (_, its_session) in table.items() if its_session == session}


def members(
    leader: Identity | None,
    marker: tuple[str, str] | None,
    *,
    exclude: Collection[int] = (),
    group: Group | None = None,
) -> list[Identity]:
    """All live processes of the run, as one look over /proc finds them.

    `marker` is name and value of the environment variable that the run's processes carry. What is in `exclude` (the
    supervisor's own other processes, by pid) does not belong, nor does what descends from it.
    """
    enclosed = set() if group is None else group.pids()
    stats = snapshot()
    table = {pid: (stat.parent, stat.session) for pid, stat in stats.items()}
    barred = line_of(table, os.getpid()) | descendants(table, exclude)
    kin = descendants(table, _born_here(table) | _led_by(stats, table, leader) | enclosed, barred)
    marked = set() if marker is None else _marked(table.keys() - kin - barred, *marker)
    orphaned = _left_by(stats, table, leader, kin | marked)
    kin |= descendants(table, marked | orphaned, barred)
    return [stats[pid].identity for pid in sorted(kin) if stats[pid].is_alive]


def sweep(
    leader: Identity | None,
    marker: tuple[str, str] | None,
    *,
    exclude: Collection[int] = (),
    group: Group | None = None,
    limit_seconds: float,
    keep_unreaped: Collection[int] = (),
) -> list[Identity]:
    """Kill every process of the run until none is left or the time is up; returns the survivors, none when all is clean.

    Our own dead children are collected on the way, except those in `exclude` and `keep_unreaped`. Returns at once when
    the first look finds nothing. Otherwise two looks in a row must be empty, both begun after the last kill: a look is
    not atomic, and a child born during one can slip past it, but hardly past two. (Only a chain of processes that fork
    and end faster than a look, about a millisecond, cannot be caught this way; a control group is killed at one stroke.)
    """
    deadline = time.monotonic() + limit_seconds
    pause_seconds = _PAUSE_SECONDS_MIN

    def look() -> list[Identity]:
        return members(leader, marker, exclude=exclude, group=group)

    if group is not None:
        group.kill()  # also what no look would see
    left = look()
    while left:
        for identity in left:
            send_signal(identity, signal.SIGKILL)
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)
        reap_orphans({*exclude, *keep_unreaped})
        left = look() or look()
        if time.monotonic() >= deadline:
            break
    reap_orphans({*exclude, *keep_unreaped})
    return left


def _marked(pids: Iterable[int], name: str, value: str) -> set[int]:
    """Those that carry the marker, also where one is just running another program."""
    said = {pid: holds_variable(pid, name, value) for pid in pids}
    for pause_seconds in _UNSAID_SECONDS:
        unsaid = [pid for pid, holds in said.items() if holds is None]
        if not unsaid:
            break
        time.sleep(pause_seconds)
        said |= {pid: holds_variable(pid, name, value) for pid in unsaid}
    return {pid for pid, holds in said.items() if holds}


def _born_here(table: Table) -> set[int]:
    """The children of this process, born or adopted."""
    this = os.getpid()
    return {pid for pid, (parent, _) in table.items() if parent == this}


def _led_by(stats: Mapping[int, Stat], table: Table, leader: Identity | None) -> set[int]:
    """The leader and its session, while the leader is there, if only as a zombie, to say that the session is its own."""
    if leader is None or leader.pid not in stats or stats[leader.pid].identity != leader:
        return set()
    return {leader.pid} | (in_session(table, leader.pid) if table[leader.pid][1] == leader.pid else set())


def _left_by(stats: Mapping[int, Stat], table: Table, leader: Identity | None, known: Collection[int]) -> set[int]:
    """The session of a leader that is gone, if a process known to be of the run is in it.

    The number alone proves nothing: daemons live in sessions whose leader has ended, and numbers are used again.
    """
    if leader is None or leader.pid in stats:
        return set()
    session = in_session(table, leader.pid)
    return session if not session.isdisjoint(known) else set()

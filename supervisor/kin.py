"""All processes of one run, by whatever ties them to it, and their end."""

import os
from collections.abc import Callable

from lastgood import contract
from supervisor import supervisors
from supervisor.adapters import cgroup, tree
from supervisor.proc import Identity, snapshot

SWEEP_SECONDS = 10.0  # a killed process of 100 GB needs a few seconds to give its memory back


class Kin:
    """Those of the run in a directory. Methods are for any thread once the group was entered."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._is_ours = True
        self._born_before = _children()
        self.own: list[Callable[[], tuple[int, ...]]] = []
        """Tell the processes that were started since, and do not belong to the run either."""
        self.group: cgroup.TrainerGroup | None = None
        """The trainer's own control group."""

    def enter_group(self) -> None:
        """Take a control group for the trainer, where one can be had, and another for this process."""
        is_service = supervisors.unit_in(supervisors.cgroups_of(os.getpid())) is not None
        self.group = cgroup.TrainerGroup.made(self._directory, is_service)

    @property
    def _marker(self) -> tuple[str, str] | None:
        """What all processes of this directory's runs carry: also of a run that `--new-run` or a lost run.json has ended,
        and not of a copy of the directory. None once another supervisor's carry it too.
        """
        return (contract.ENV_CHECKPOINT_DIR, self._directory) if self._is_ours else None

    def let_go(self) -> None:
        """End only what descends from this process or is in its trainer's session: the directory, by which the run's processes
        are known otherwise, and the control group of that name are another supervisor's now.
        """
        self._is_ours = False

    def members(self, leader: Identity | None) -> list[Identity]:
        """All that live."""
        group = self.group if self._is_ours else None
        return tree.members(leader, self._marker, exclude=self.spared(), group=group)

    def sweep(self, leader: Identity | None, keep_unreaped: tuple[int, ...] = ()) -> list[Identity]:
        """Kill all that belongs to the run, but not what this process had started before it became the supervisor; returns who
        survived that.
        """
        return tree.sweep(
            leader,
            self._marker,
            exclude=self.spared(),
            group=self.group if self._is_ours else None,
            limit_seconds=SWEEP_SECONDS,
            keep_unreaped=keep_unreaped,
        )

    def spared(self) -> tuple[int, ...]:
        """Children of this process that are not of the run."""
        return (*self._born_before, *(pid for told in self.own for pid in told()))


def _children() -> tuple[int, ...]:
    """Children of this process now: a shell that started them and then became the supervisor, as containers do."""
    this = os.getpid()
    return tuple(stat.pid for stat in snapshot().values() if stat.parent == this)

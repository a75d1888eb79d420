"""What stands in the way of a start: too little room for the next save, a GPU that is away or still held."""

import os
from collections.abc import Iterable, Iterator

from lastgood.choose import choose
from supervisor.adapters import gpu, space
from supervisor.core.events import Hindrance, Obstacle, RungFact
from supervisor.settings import Settings


class Hindrances:
    """One run's. Methods are for the judging thread, unless they say otherwise."""

    def __init__(self, settings: Settings, directory: str) -> None:
        environment = {**os.environ, **settings.trainer.env}
        self._directory = directory
        self._quarantine_bytes = settings.checkpoints.quarantine_bytes
        self._size, self._files = 0, 1
        self._gpus = gpu.Gpus(environment.get("CUDA_VISIBLE_DEVICES"))
        self.died = self._gpus.died
        """To be told the processes of a trainer that have ended, by any thread."""

    def find(self) -> Hindrance | None:
        """What stands in the way now; first what may have ended a trainer, then what only keeps the next one from starting."""
        found = self._gpus.look()
        if found is not None and found.obstacle is Obstacle.GPU_LOST:
            return found
        return self.low_disk() or found

    def sized(self, rungs: Iterable[RungFact]) -> None:
        """Take the size of the next save from the snapshot that would be resumed from; what is not known yet needs no room."""
        chosen = choose(list(rungs))
        if chosen is not None and chosen.verdict is not None:
            self._size = chosen.verdict.bytes
            self._files = space.files_of(os.path.join(self._directory, chosen.name))

    def low_disk(self) -> Hindrance | None:
        """Too little room for the next save; what the storage does not tell is no reason to wait."""
        try:
            room = self._room()
        except OSError:
            return None
        if room.is_enough:
            return None
        fields = {
            "free_bytes": room.free_bytes,
            "needed_bytes": room.needed_bytes,
            "free_inodes": room.free_inodes,
            "needed_inodes": room.needed_inodes,
            "path": self._directory,
        }
        return Hindrance(Obstacle.DISK, fields)

    def make_room(self) -> Iterator[space.Trimmed]:
        """Have quarantine give up what it may, until there is enough. Raises OSError."""
        return space.trim(self._directory, self._quarantine_bytes, lambda: self._room().is_enough)

    def _room(self) -> space.Room:
        return space.room_for(self._directory, self._size, self._files)

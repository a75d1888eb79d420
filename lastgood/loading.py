"""What torch makes of a snapshot's bytes."""

from typing import Any, BinaryIO


def load_open(file: BinaryIO, map_location: Any) -> Any:
    """What torch finds in an open file, from its beginning; raises what torch raises. Nothing in it is executed.

    To a device that is named, it goes by way of a map of the file: on a CPU each storage is copied out of it, by as many threads
    as torch has. So nothing that is returned hangs on the file, which may be removed or cut short afterwards.
    """
    import torch

    if isinstance(map_location, (str, torch.device)):
        where = _copied if torch.device(map_location).type == "cpu" else map_location
        try:
            return torch.load(f"/proc/self/fd/{file.fileno()}", map_location=where, weights_only=True, mmap=True)
        except Exception:  # noqa: BLE001 - no such map, or no such file: it is read, and what is wrong with it is raised then
            pass
    file.seek(0)
    return torch.load(file, map_location=map_location, weights_only=True)


def _copied(storage: Any, _location: str) -> Any:
    return storage.clone()

"""The directory of a campaign: its own, for one campaign at a time, and made anew by each."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from supervisor.adapters import statefile
from supervisor.chaos import filesystem
from supervisor.errors import UsageError

MARK = "campaign.json"
SURVIVOR = "survivor"


@contextmanager
def own_folder(place: Path, name: str, made_for: dict[str, object]) -> Iterator[Path]:
    """The folder of this name below `place`, held for as long as it is needed; only what an earlier campaign made is removed.

    Raises UsageError where another campaign is at work, or where the folder is somebody else's.
    """
    if name in (".", "..") or name != os.path.basename(name):
        raise UsageError(f"chaos: run.name: {name!r} would be no folder below {place}; give a name without '/'")
    folder = place / name
    try:
        place.mkdir(parents=True, exist_ok=True)
        with (place / f".{name}.lock").open("w") as lock:
            _hold(lock.fileno(), folder)
            _make_anew(folder, made_for)
            yield folder
    except OSError as error:
        if error.filename is None or not str(error.filename).startswith(str(place)):
            raise
        raise UsageError(f"chaos: {error.filename}: {error.strerror}; campaigns write below {place}") from None


def _hold(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"chaos: another campaign is at work in {folder}; let it end, or give another --seed"
        ) from None


def _make_anew(folder: Path, made_for: dict[str, object]) -> None:
    if folder.exists():
        if not (folder / MARK).exists():
            raise UsageError(f"chaos: {folder} exists and is not a campaign's; move it away")
        _need_no_supervisor(folder)
        filesystem.unmount(folder / filesystem.PLACE)  # of one that was killed
        for path in folder.iterdir():
            if path.name != MARK:  # the last to go: without it nobody would dare to remove the rest
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    folder.mkdir(exist_ok=True)
    (folder / MARK).write_text(json.dumps(made_for) + "\n", encoding="utf-8")


def _need_no_supervisor(folder: Path) -> None:
    """One whose campaign was killed goes on with its run, and would train in what is about to be removed."""
    for directory in (folder / SURVIVOR, folder / filesystem.PLACE / SURVIVOR):
        if statefile.holder(str(directory)) is not None:
            raise UsageError(
                f"chaos: {directory}: the supervisor of an earlier campaign is still at work; `lastgood stop {directory}` ends it"
            )

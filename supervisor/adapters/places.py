"""Where snapshots go when they must leave the trainer's sight, and how retention takes them away."""

import json
import os
import time
from typing import Any

from lastgood.contract import QUARANTINE_DIR, SEAL_SUFFIX, STATE_DIR
from lastgood.publish import fsync_folder, remove, remove_if_there
from lastgood.seal import bound_seal_path, seal_path


def set_aside(checkpoint_dir: str, name: str, finding: dict[str, Any]) -> str:
    """Move a snapshot and its seal into quarantine with `finding` beside them; returns where it is now. Raises OSError.

    The data goes before its seal: cut in between, an orphaned seal is left, which `drop_orphaned_seals` takes away.
    """
    base = os.path.join(checkpoint_dir, STATE_DIR, QUARANTINE_DIR)
    os.makedirs(base, exist_ok=True)
    place = _fresh_folder(base, f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{name}")
    with open(os.path.join(place, "reason.json"), "w", encoding="ascii") as file:
        json.dump(finding, file, default=repr, indent=1)
        file.write("\n")
    source, target = os.path.join(checkpoint_dir, name), os.path.join(place, name)
    try:
        os.rename(source, target)
    except FileNotFoundError:
        os.unlink(os.path.join(place, "reason.json"))
        os.rmdir(place)
        raise
    for seal in (seal_path(source), bound_seal_path(source)):
        if os.path.exists(seal):
            os.rename(seal, os.path.join(place, os.path.basename(seal)))
    for folder in (place, base, checkpoint_dir):
        fsync_folder(folder)
    return target


def _fresh_folder(base: str, name: str) -> str:
    for number in range(1000):
        place = os.path.join(base, name if number == 0 else f"{name}.{number}")
        try:
            os.mkdir(place)
            return place
        except FileExistsError:
            continue
    raise FileExistsError(f"{base} holds a thousand folders called {name}")


def drop_orphaned_seals(checkpoint_dir: str) -> list[str]:
    """Remove seals whose snapshot is gone, so that they cannot condemn a new file of that name. Raises OSError.

    Only while no trainer lives: a publication puts the seal in place before its data.
    """
    names = set(os.listdir(checkpoint_dir))
    orphans = sorted(n for n in names if n.endswith(SEAL_SUFFIX) and n.removesuffix(SEAL_SUFFIX) not in names)
    for name in orphans:
        remove_if_there(os.path.join(checkpoint_dir, name))
    return orphans


def prune(checkpoint_dir: str, name: str) -> None:
    """Remove a snapshot and its seals; one that is already gone is as wished. Raises OSError."""
    path = os.path.join(checkpoint_dir, name)
    try:
        remove(path)
    except FileNotFoundError:
        pass  # already as wished
    remove_if_there(bound_seal_path(path))

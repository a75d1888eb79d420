"""Where snapshots go when they must leave the trainer's sight, and how retention takes them away."""

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

from lastgood import publish
from lastgood.contract import QUARANTINE_DIR, REASON_FILE, SEAL_SUFFIX, SEALS_DIR, STATE_DIR
from lastgood.lock import WriterLock
from lastgood.publish import fsync_folder, make_inner_folder, remove, remove_if_there, write_durably
from lastgood.seal import MAX_SEAL_BYTES, Manifest, Seal, bound_seal_path, parse_manifest, parse_seal, seal_path
from supervisor.leftovers import partials

FOLDER_BYTES_MAX = 240  # a name may have 255 bytes, and a number may follow


def set_aside(checkpoint_dir: str, name: str, finding: dict[str, Any]) -> str:
    """Move a snapshot and its seal into quarantine with `finding` beside them; returns where it is now.

    Raises OSError, with everything as it was, when the snapshot cannot be moved. The data goes before its seal: cut in
    between, an orphaned seal is left, which `drop_orphaned_seals` takes away. On a full disk it goes without the finding,
    since what must leave the trainer's sight cannot wait.
    """
    base = os.path.join(checkpoint_dir, STATE_DIR, QUARANTINE_DIR)
    make_inner_folder(base)
    source = os.path.join(checkpoint_dir, name)
    folder, name = os.path.split(source)  # a copy on the shelf is called by its path
    place = _fresh_folder(base, f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{name}")
    target = os.path.join(place, name)
    try:
        _write_reason(place, finding)
        os.rename(source, target)
    except OSError:
        _give_up(place)
        raise
    for seal in (seal_path(source), bound_seal_path(source)):
        _move_if_there(seal, place)
    for one in (place, base, folder):
        _settle(one)
    return target


def put_back(checkpoint_dir: str, name: str) -> None:
    """Undo the last `set_aside` of a name: the seal goes back before the data, as when it was published.

    Raises OSError, with nothing lost: FileExistsError when the name is taken by now, FileNotFoundError without such a snapshot.
    """
    base, target = os.path.join(checkpoint_dir, STATE_DIR, QUARANTINE_DIR), os.path.join(checkpoint_dir, name)
    folder, name = os.path.split(target)  # a copy on the shelf is called by its path
    places = [os.path.join(base, one) for one in sorted(os.listdir(base), reverse=True)]
    place = next((one for one in places if os.path.lexists(os.path.join(one, name))), None)
    if place is None:
        raise FileNotFoundError(errno.ENOENT, "it is not in quarantine", target)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "there is another one of that name by now", target)
    source = os.path.join(place, name)
    for seal, back in (
        (seal_path(source), seal_path(target)),
        (os.path.join(place, f"{name}.json"), bound_seal_path(target)),
    ):
        if os.path.lexists(seal) and not os.path.lexists(back):
            os.rename(seal, back)
    os.rename(source, target)
    _give_up(place)
    for one in (folder, base):
        _settle(one)


def _fresh_folder(base: str, name: str) -> str:
    stem = os.fsdecode(os.fsencode(name)[:FOLDER_BYTES_MAX])
    for number in range(1000):
        place = os.path.join(base, stem if number == 0 else f"{stem}.{number}")
        try:
            os.mkdir(place)
            return place
        except FileExistsError:
            continue
    raise FileExistsError(errno.EEXIST, "there are a thousand folders of that name", os.path.join(base, stem))


def _write_reason(place: str, finding: dict[str, Any]) -> None:
    text = json.dumps(finding, default=repr, indent=1) + "\n"
    try:
        write_durably(os.path.join(place, REASON_FILE), text.encode("ascii"))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def _give_up(place: str) -> None:
    try:
        remove_if_there(os.path.join(place, REASON_FILE))
        os.rmdir(place)
    except OSError:
        pass  # the first error is the one to tell


def _move_if_there(path: str, place: str) -> None:
    try:
        os.rename(path, os.path.join(place, os.path.basename(path)))
    except OSError:
        pass  # there is none; or it stays behind as an orphan, which is dropped like any other


def _settle(folder: str) -> None:
    try:
        fsync_folder(folder)
    except OSError:
        pass  # it is moved; after a power cut it may be back, and is judged again


def drop_orphaned_seals(checkpoint_dir: str) -> list[str]:
    """Remove seals whose snapshot is gone, so that they cannot condemn a new file of that name. Raises OSError.

    Only while no trainer lives: a publication puts the seal in place before its data. What merely is called like a seal,
    such as a list of other files' digests, condemns nothing and is left alone.
    """
    names = set(os.listdir(checkpoint_dir))
    lonely = sorted(n for n in names if n.endswith(SEAL_SUFFIX) and n.removesuffix(SEAL_SUFFIX) not in names)
    orphans = [name for name in lonely if _is_seal(os.path.join(checkpoint_dir, name))]
    for name in orphans:
        remove_if_there(os.path.join(checkpoint_dir, name))
    _drop_bound_seals(os.path.join(checkpoint_dir, STATE_DIR, SEALS_DIR), names)
    return orphans


def _drop_bound_seals(folder: str, snapshots: set[str]) -> None:
    """Remove our own seals of snapshots that are no more."""
    if os.path.isdir(folder):
        for name in os.listdir(folder):
            if name.endswith(".json") and name.removesuffix(".json") not in snapshots:
                remove_if_there(os.path.join(folder, name))


def _is_seal(path: str) -> bool:
    """Whether a file holds the digest of the snapshot that it is called after, or those of the files in such a folder."""
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_SEAL_BYTES)
    except OSError:
        return False  # what cannot be read condemns nothing
    name = os.path.basename(path).removesuffix(SEAL_SUFFIX)
    if isinstance(parse_seal(content, name), Seal):
        return True
    listed = parse_manifest(content, name)
    return isinstance(listed, Manifest) and content.count(os.fsencode(f"{name}/")) >= len(listed.files)


def sweep(checkpoint_dir: str) -> list[str]:
    """Finish what killed writers and removals left half-done in the directory; returns the names removed. Raises OSError.

    Only while no trainer of the run lives. Somebody else who writes there, known by the lock or by a partial of a living
    process, is left alone, and with him everything.
    """
    found = partials(checkpoint_dir)
    if not found or not all(found.values()):
        return []
    lock = WriterLock(Path(checkpoint_dir))
    try:
        lock.hold()
        return publish.sweep(checkpoint_dir)
    except RuntimeError:
        return []
    finally:
        lock.release()


def prune(checkpoint_dir: str, name: str) -> None:
    """Remove a snapshot and its seals; one that is already gone is as wished. Raises OSError."""
    path = os.path.join(checkpoint_dir, name)
    try:
        remove(path)
    except FileNotFoundError:
        pass  # already as wished
    remove_if_there(bound_seal_path(path))

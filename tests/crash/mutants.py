"""The library broken on purpose, in the traced child alone: a tier that stays green with one of these proves nothing."""

import functools
import os
import stat
from collections.abc import Callable

from lastgood import publish as publishing
from lastgood.seal import SEAL_SUFFIX, seal_path
from tests.crash.tracer import Prepare


def mutated(mutant: Callable[[], None], operation: Prepare) -> Prepare:
    """The operation, done by a library that is broken in this way."""
    return functools.partial(_prepare, mutant, operation)


def _prepare(mutant: Callable[[], None], operation: Prepare, folder: str) -> Callable[[], object]:
    mutant()
    return operation(folder)


def no_file_fsync() -> None:
    """What is written reaches the disk whenever it likes."""
    _fsync_only(stat.S_ISDIR)


def no_folder_fsync() -> None:
    """Renames reach the disk whenever they like."""
    _fsync_only(stat.S_ISREG)


def _fsync_only(wanted: Callable[[int], bool]) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if wanted(os.fstat(descriptor).st_mode):
            real(descriptor)

    os.fsync = fsync


def deaf_to_fsync() -> None:
    """A failed fsync is taken for a good one."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        try:
            real(descriptor)
        except OSError:
            pass  # this is the mistake

    os.fsync = fsync


def seal_after_data() -> None:
    """The data is visible before its seal."""
    real, held = os.replace, list[tuple[str, str]]()
    visible = False

    def replace(source: str, target: str) -> None:
        nonlocal visible
        if target.endswith(SEAL_SUFFIX) and not visible:
            held.append((source, target))
            return
        real(source, target)
        visible = True
        while held:
            real(*held.pop())

    os.replace = replace


def seal_not_durable_before_data() -> None:
    """When a name is overwritten, nothing keeps the new bytes from being there under the old seal after a power cut."""
    real, renamed = publishing.fsync_folder, os.replace
    visible = False

    def replace(source: str, target: str) -> None:
        nonlocal visible
        renamed(source, target)
        visible = visible or not target.endswith(SEAL_SUFFIX)

    def fsync_folder(folder: str) -> None:
        if visible:
            real(folder)

    os.replace, publishing.fsync_folder = replace, fsync_folder


def written_in_place() -> None:
    """There is no partial: the data is written under its name."""
    real_open = os.open

    def open_in_place(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_EXCL and SEAL_SUFFIX not in path:
            folder, name = os.path.split(path)
            path = os.path.join(folder, name[1:].partition(".partial-")[0])
            flags = flags & ~os.O_EXCL | os.O_TRUNC
        return real_open(path, flags, mode)

    real_replace = os.replace

    def replace(source: str, target: str) -> None:
        if os.path.exists(source):
            real_replace(source, target)

    os.open, os.replace = open_in_place, replace


def seal_removed_first() -> None:
    """A removal takes the seal and then the data."""

    def remove(path: str) -> None:
        publishing.remove_if_there(seal_path(path))
        publishing.remove_if_there(path)

    publishing.remove = remove


def removal_not_synced() -> None:
    """Nothing keeps a power cut from leaving a seal of which data and partial are gone."""
    real = publishing.remove

    def remove(path: str) -> None:
        publishing.fsync_folder = lambda folder: None
        real(path)

    publishing.remove = remove

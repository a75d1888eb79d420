"""What a trainer, and its own saving and loading, tells its supervisor: a line of JSON in the file that the environment names.

A note is an aside. Without a supervisor there is none, and one that cannot be written is lost: it never costs the trainer
anything but the time of a small append. Only what is done in the directory that the supervisor watches is told: a trainer may
save and load elsewhere too, and that is no news of the run.
"""

import json
import os
from collections.abc import Iterable
from contextlib import ContextDecorator
from typing import Any

from lastgood.choose import Judged
from lastgood.contract import (
    ENV_CHECKPOINT_DIR,
    ENV_NOTES,
    NOTE_BYTES_MAX,
    NOTE_ENDING,
    NOTE_FALLBACK,
    NOTE_SAVE_FAILED,
)
from lastgood.regular import regular

_SHORTER = ((1000, 20), (255, 8), (255, 1))
"""Characters a text and items a list, tried until the line is short enough; a file's name has 255 at most."""


def note(kind: str, directory: str | os.PathLike[str], **fields: Any) -> None:
    """Append a note about a directory in one write; does nothing unless a supervisor watches that one, and never raises."""
    path, watched = os.environ.get(ENV_NOTES), os.environ.get(ENV_CHECKPOINT_DIR)
    if not path or not watched:
        return
    try:
        if os.path.realpath(directory) == os.path.realpath(watched):
            _append(path, _line({"note": kind, **fields}))
    except Exception:  # noqa: BLE001 - whatever is wrong with a note, training goes on
        pass


def _line(content: dict[str, Any]) -> bytes:
    lines = (json.dumps(_cut(content, *limits), default=repr).encode("ascii") + b"\n" for limits in _SHORTER)
    return next(line for line in lines if len(line) <= NOTE_BYTES_MAX)


def _cut(value: Any, characters: int, items: int) -> Any:
    if isinstance(value, dict):
        return {key: _cut(item, characters, items) for key, item in value.items()}
    if isinstance(value, list):
        return [_cut(item, characters, items) for item in value[:items]]
    return value[:characters] if isinstance(value, str) else value


def _append(path: str, line: bytes) -> None:
    """Several processes of one trainer may append at a time. Whatever a full disk cut short must not spoil the next line."""
    descriptor = regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        cut_short = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, b"\n" + line if cut_short else line)
    finally:
        os.close(descriptor)


class NotedSave(ContextDecorator):
    """Notes the failure of a save that is done inside, whatever ended it, and passes it on. Wraps blocks and functions."""

    def __init__(self, step: int | None, path: str | os.PathLike[str], blocking: bool) -> None:
        self._directory, name = os.path.split(path)
        self._save = {"step": step, "name": name, "blocking": blocking}

    def __enter__(self) -> None:
        """Nothing is noted before something fails."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Note what went wrong, if anything did."""
        if error is not None:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            note(
                NOTE_SAVE_FAILED, self._directory, **self._save, reason=str(reason), errno=getattr(error, "errno", None)
            )


def note_fallback(directory: str | os.PathLike[str], rungs: Iterable[Judged], chosen: Judged) -> None:
    """Note that `chosen` is loaded, and not one of the newer ones before it in a directory's `rungs`; without such, nothing."""
    newer = list(rungs)
    newer = newer[: newer.index(chosen)]
    if not newer:
        return
    note(
        NOTE_FALLBACK,
        directory,
        newest_step=next((rung.step for rung in newer if rung.step is not None), None),
        chosen=chosen.name,
        chosen_step=chosen.step,
        depth=len(newer),
        rejected=[
            {"name": rung.name, "verdict": str(rung.verdict.kind), "reason": rung.verdict.reason}
            for rung in newer
            if rung.verdict is not None
        ],
    )


def note_ending(directory: str | os.PathLike[str], status: int, step: int | None = None) -> None:
    """Note that this process is about to end with `status`, 1 to 255, at `step` if that is known: a launcher such as torchrun,
    which ends with 1 whatever its processes ended with, does not pass it on. Of several processes the last one to note it is
    believed.

    Only for a `directory` that a supervisor watches; never raises.
    """
    note(NOTE_ENDING, directory, status=status, step=step)

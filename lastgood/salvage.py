"""Get the whole tensors out of a broken torch file, into a new snapshot that can be loaded and trusted.

A file that was cut in its optimizer part still holds the complete model. Every tensor whose storage is proven by its CRC32
goes to the new snapshot, in the same nesting and still tied to what it was tied to; numbers, text and containers come along.
What is lost is listed by name with the reason. Nothing in the broken file is executed, and the file is never written to.

What takes a lost thing's place: nothing in a dictionary (its key is left out), None in a list or tuple, so that positions
stay. A `defaultdict` comes out as a plain `dict`, which is what `torch.load(weights_only=True)` takes. Objects that only
their own code could rebuild, whole pickled models among them, are listed as lost. The top level gets the key
`lastgood_salvage`: {"source": file name, "lost": [names]}, and "unproven": True if that is so. A whole plain state dict does
not get it, because `load_state_dict` would trip over it, nor does a payload that is no dictionary.

Checksums that were switched off by the writer prove nothing: such bytes are taken if they are there to the end, the result
says `unproven`, and neither model nor optimizer counts as whole.

The model is what the top level calls `model`, `state_dict` or `model_state_dict`, else the whole payload. No torch is needed,
and one chunk of a storage is in memory at a time.
"""

import errno
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from lastgood.contract import MODEL_KEYS, SALVAGE_KEY
from lastgood.formats import DamageError, torch_writer
from lastgood.formats.raw_zip import Source
from lastgood.formats.torch_damaged import Storage, Wreck, look
from lastgood.formats.torch_keeping import Keeper, Lost
from lastgood.formats.torch_tensors import tensors_in, walk
from lastgood.pickles import Call
from lastgood.publish import Published, publish
from lastgood.seal import seal_path

OPTIMIZER_KEYS = ("optimizer", "optimizer_state_dict", "optimizer_states", "optimizers")


@dataclass(frozen=True)
class Salvaged:
    """What was had out of a broken file.

    `optimizer_whole` is None when there is no optimizer in it; `kept` counts tensors and `bytes` is their size; `lost` is
    every thing that is missing, with its size in bytes and the reason. `published` is None when nothing could be had, and
    `reason` then says why.
    """

    model_whole: bool
    optimizer_whole: bool | None
    kept: int
    lost: tuple[Lost, ...]
    bytes: int
    unproven: bool = False
    published: Published | None = None
    reason: str = ""


def salvage(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Salvaged:
    """Publish under `target`, sealed, everything in the torch file `source` that is whole.

    When nothing is, nothing is written. Raises FileExistsError when something is at `target` already (so the source is
    never written over, by whatever name or link), and OSError when the source cannot be opened or the target not be written.
    """
    _check_target(source, target)
    with open(source, "rb") as file:
        try:
            wreck = look(file)
        except DamageError as damage:
            return Salvaged(False, None, 0, (), 0, reason=damage.reason)
        parts = _keep(wreck)
        tensors = list(tensors_in(parts.value))
        size = sum(tensor.bytes for tensor in tensors)
        if not tensors or (size == 0 and parts.keeper.lost):
            reason = "none of its tensors could be had" if parts.keeper.lost else "it holds no tensors"
            return Salvaged(False, parts.optimizer_whole, 0, tuple(parts.keeper.lost), 0, wreck.unproven, None, reason)
        value = _with_note(parts, os.fspath(source), wreck.unproven)
        used = dict.fromkeys(tensor.storage for tensor in tensors)
        published = publish(target, lambda out: _write(out, value, file, wreck, used))
    return Salvaged(
        parts.model_whole and not wreck.unproven,
        parts.optimizer_whole and not wreck.unproven,
        len(tensors),
        tuple(parts.keeper.lost),
        size,
        wreck.unproven,
        published,
    )


def _check_target(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    for path in (os.fspath(target), seal_path(target)):
        if os.path.exists(path) and os.path.samefile(source, path):
            raise FileExistsError(errno.EEXIST, "it is the file to salvage from, which is never written over", path)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "something is there already; give a new name", os.fspath(target))


@dataclass
class _Parts:
    """A payload without what is lost, and which of its parts are whole."""

    value: Any
    keeper: Keeper
    model_whole: bool
    optimizer_whole: bool | None
    plain_state_dict: bool


def _keep(wreck: Wreck) -> _Parts:
    """Go through the payload, one top-level entry at a time so that it is known where the losses are."""
    value, keeper = wreck.contents.value, Keeper(wreck.storages)
    kept = keeper.keep(value)
    top = _entries(value)
    model = next((key for key in MODEL_KEYS if any(tensors_in(top.get(key)))), None)
    optimizer = next((key for key in OPTIMIZER_KEYS if top.get(key) is not None), None)
    has_model = any(tensors_in(value if model is None else _entries(kept).get(model)))
    return _Parts(
        kept,
        keeper,
        has_model and not keeper.lost_in(model),
        None if optimizer is None else not keeper.lost_in(optimizer),
        model is None and bool(top) and all(map(_is_tensor, top.values())),
    )


def _is_tensor(value: Any) -> bool:
    """Whether a payload's entry is itself a tensor or a parameter, and no container of such."""
    return next(walk(value), ("no tensor",))[0] == ""


def _entries(value: Any) -> dict[Any, Any]:
    """The entries of a dictionary or of an ordered one; of anything else none."""
    if isinstance(value, Call):
        return dict(value.items) if str(value.function) == "collections.OrderedDict" else {}
    return value if isinstance(value, dict) else {}


def _with_note(parts: _Parts, source: str, unproven: bool) -> Any:
    """The payload with the note of where it comes from and what is missing, where it has room for one."""
    lost = [one.name for one in parts.keeper.lost]
    if parts.plain_state_dict and not lost and not unproven:
        return parts.value
    note: dict[str, Any] = {"source": os.fsencode(os.path.basename(source)).decode("utf-8", "replace"), "lost": lost}
    if unproven:
        note["unproven"] = True
    if isinstance(parts.value, dict):
        parts.value[SALVAGE_KEY] = note
    elif isinstance(parts.value, Call) and str(parts.value.function) == "collections.OrderedDict":
        parts.value.items.append((SALVAGE_KEY, note))
    return parts.value


def _write(out: BinaryIO, value: Any, file: BinaryIO, wreck: Wreck, used: dict[str, None]) -> None:
    source = Source(file)
    streams = [(key, wreck.storages[key].size, _copied(source, key, wreck.storages[key])) for key in used]
    torch_writer.write(out, value, streams, wreck.byteorder)


def _copied(source: Source, key: str, storage: Storage) -> Iterator[bytes]:
    """The bytes of a storage, which must be those that were checked. Raises OSError when they are not any more."""
    crc = done = 0
    for chunk in source.chunks(storage.start, storage.size):
        yield chunk
        crc, done = zlib.crc32(chunk, crc), done + len(chunk)
    if (crc, done) != (storage.crc, storage.size):
        raise source.error or OSError(errno.EIO, f"storage {key} changed while it was read")

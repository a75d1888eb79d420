"""Judge one open file: the strongest proof its format offers, in one read, without torch and without executing anything.

With a seal the SHA-256 alone decides, and checksums inside only name the damage. Without one the structure and every
checksum inside are held against each other. What changes while it is read gets no verdict about its bytes.
"""

import hashlib
import math
import os
from collections.abc import Mapping
from typing import Any, BinaryIO

from lastgood import formats, naming
from lastgood.contract import PAYLOAD_FORMAT, PAYLOAD_VERSION, SALVAGE_KEY
from lastgood.formats import Judgement
from lastgood.hashing import read_through
from lastgood.seal import Identity, Seal, SealDamaged, read_former_seal, read_seal
from lastgood.verdict import Kind, Proof, Verdict

LOSS_KEYS = ("val_loss", "loss", "best_val_loss")
NO_LOSS_YET = 1e9
"""What nanoGPT, and so the bundled trainer, has for a loss before the first evaluation."""

STILL_SEALED = "its SHA-256 is still the one that was sealed, though it was touched since"
"""Why a snapshot is healthy that is no longer what its supervisor's seal is bound to, but holds the same bytes."""


def verify_open(name: str, file: BinaryIO) -> Verdict:
    """The verdict about an open file that is called `name`; what is loaded from it is what was judged.

    Raises OSError, and MemoryError when judging it takes more than there is.
    """
    before = os.fstat(file.fileno())
    verdict = _judge_file(name, file, Identity.of(before))
    after = os.fstat(file.fileno())
    if _content_changed(before, after):
        return Verdict(Kind.INCOMPLETE, None, "it changed while it was read", before.st_size, step=verdict.step)
    return verdict


def _content_changed(before: os.stat_result, after: os.stat_result) -> bool:
    """A rename or a new link moves ctime alone and leaves the bytes as they were."""
    return (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns)


def _judge_file(name: str, file: BinaryIO, identity: Identity) -> Verdict:
    size = identity.size
    step = naming.step_in_name(os.path.basename(name))
    if size == 0:
        return Verdict(Kind.TRUNCATED, Proof.STRUCTURE, "the file is empty", 0, step=step)
    seal = read_seal(name, identity)
    judged = _judge_sealed(file, size, seal) if isinstance(seal, Seal) else judge_unsealed(file, size)
    if judged.kind is Kind.UNPROVEN and (former := read_former_seal(name, identity)) is not None:
        judged = _judge_formerly_sealed(file, size, former) or judged
    reason = f"{judged.reason}; {seal.reason}" if isinstance(seal, SealDamaged) else judged.reason
    verdict = Verdict(judged.kind, judged.proof, reason, size, judged.sha256, step)
    return _with_contents(file, size, verdict, judged.top) if verdict.usable else verdict


def _judge_sealed(file: BinaryIO, size: int, seal: Seal) -> Judgement:
    found = _sha256(file, size)
    if seal.accepts(found):
        return Judgement(Kind.HEALTHY, Proof.SEAL, "its SHA-256 is the sealed one", found)
    kind, detail = name_damage(file, size)
    return Judgement(kind, Proof.SEAL, f"SHA-256 {found[:12]}… is not the sealed {seal.sha256[:12]}…{detail}", found)


def _judge_formerly_sealed(file: BinaryIO, size: int, seal: Seal) -> Judgement | None:
    """Proof that it holds what was sealed before it was touched, moved or copied; None when it does not."""
    found = _sha256(file, size)
    return Judgement(Kind.HEALTHY, Proof.SEAL, STILL_SEALED, found) if seal.accepts(found) else None


def _sha256(file: BinaryIO, size: int) -> str:
    digest = hashlib.sha256()
    read_through(file.fileno(), size, digest.update)
    return digest.hexdigest()


def name_damage(file: BinaryIO, size: int) -> tuple[Kind, str]:
    """What the checksums inside say about bytes that are known to be wrong."""
    try:
        inner = judge_unsealed(file, size)
    except MemoryError:
        return Kind.CORRUPT, ""
    if inner.kind in (Kind.TRUNCATED, Kind.CORRUPT):
        return inner.kind, f": {inner.reason}"
    if inner.kind is Kind.UNPROVEN:
        return Kind.CORRUPT, ""
    return Kind.CORRUPT, ", though what it holds agrees with itself: it is another snapshot than the sealed one"


def judge_unsealed(file: BinaryIO, size: int) -> Judgement:
    """What structure and checksums inside of an open file of `size` bytes say. Raises OSError and MemoryError."""
    module = formats.format_of(file, size)
    if module is None:
        return formats.judge_unknown(file, size)
    try:
        judged: Judgement = module.judge(file)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - one odd file must not end whoever judges a whole directory
        return Judgement(Kind.CORRUPT, Proof.STRUCTURE, f"it makes no sense: {type(error).__name__}: {error}")
    return judged


def _with_contents(file: BinaryIO, size: int, verdict: Verdict, read: Mapping[Any, Any] | None) -> Verdict:
    """Add loss and, when the name has none, step from inside, and refuse schema versions of ours that are newer than this code.

    `read` is the outermost dictionary if it was read already.
    """
    payload = _top(file, size) if read is None else read
    version = payload.get("version")
    if payload.get("format") == PAYLOAD_FORMAT and isinstance(version, int) and version > PAYLOAD_VERSION:
        reason = f"its schema version is {version}; this software knows up to {PAYLOAD_VERSION}"
        return Verdict(Kind.INCOMPATIBLE, verdict.proof, reason, size, verdict.sha256, verdict.step)
    note = payload.get(SALVAGE_KEY)
    if isinstance(note, dict) and isinstance(lost := note.get("lost"), list) and lost:
        source = note["source"][:200] if isinstance(note.get("source"), str) else "another file"
        return verdict._replace(kind=Kind.INCOMPLETE, reason=f"salvaged from {source}: {len(lost)} tensors are lost")
    step = step_inside(payload) if verdict.step is None else verdict.step
    return verdict._replace(step=step, loss=loss_inside(payload))


def _top(file: BinaryIO, size: int) -> Mapping[Any, Any]:
    """The outermost dictionary of a file whose bytes are as they were meant, whether or not this code can read them."""
    module = formats.format_of(file, size)
    try:
        return {} if module is None else module.inside(file).top
    except Exception:  # noqa: BLE001 - whatever is wrong with the pickle
        return {}


def step_inside(payload: Mapping[Any, Any]) -> int | None:
    """The step that a snapshot's outermost dictionary says, by any of the names that trainers give it."""
    step = payload.get("iter_num", payload.get("step", payload.get("global_step")))
    return step if isinstance(step, int) and not isinstance(step, bool) else None


def loss_inside(payload: Mapping[Any, Any]) -> float | None:
    """The loss that a snapshot's outermost dictionary says, by any of the names that trainers give it, if it is finite."""
    found = (payload.get(key) for key in LOSS_KEYS)
    numbers = (loss for loss in found if isinstance(loss, int | float) and not isinstance(loss, bool))
    return next((float(loss) for loss in numbers if -math.inf < loss < NO_LOSS_YET), None)

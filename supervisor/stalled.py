"""Keeping the evidence of a stall before the trainer is killed, and never holding the kill up by more than that may take."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from supervisor.adapters import evidence
from supervisor.proc import Identity

EVIDENCE_SECONDS = 10.0
MARGIN_SECONDS = 1.0  # of that, for writing down what came last

Say = Callable[[str, dict[str, Any]], None]


def heading(incarnation: int, stage: str, seconds: float) -> str:
    """The first line of the evidence."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return f"incarnation {incarnation}, stage {stage}: no life sign for {seconds:.0f} s at {at}"


def keep_evidence(
    folder: str, incarnation: int, head: str, tree: Callable[[], list[Identity]], places: list[str], say: Say
) -> None:
    """Keep it in a thread of its own, which is left to itself when the time is up: /proc and storage may hang as well."""
    told: list[tuple[str, dict[str, Any]]] = []

    def work() -> None:
        until = time.monotonic() + EVIDENCE_SECONDS - MARGIN_SECONDS
        try:
            kept = evidence.keep(folder, incarnation, head, tree(), places, until)
        except OSError as error:
            told.append(("stall.evidence_lost", {"reason": f"{error.strerror or error}"}))
        else:
            told.append(("stall.evidence_kept", kept._asdict()))

    thread = threading.Thread(target=work, name="lastgood-evidence", daemon=True)
    try:
        thread.start()
        thread.join(EVIDENCE_SECONDS)
    except RuntimeError as error:
        told.append(("stall.evidence_lost", {"reason": f"{error}"}))
    say(*(told or [("stall.evidence_lost", {"reason": f"it took longer than {EVIDENCE_SECONDS:.0f} s"})])[0])

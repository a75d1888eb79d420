"""What is ordered of the directory is done by a thread, and what was found meanwhile counts."""

from pathlib import Path
from typing import Any

import pytest

from lastgood.publish import publish
from supervisor import configuration
from supervisor.adapters.verifier import Verifier
from supervisor.core import events as e
from supervisor.directory_side import DirectorySide
from supervisor.mailbox import Mailbox
from tests.bench import until
from tests.conftest import flip_bit


@pytest.mark.parametrize(("bad", "left"), [(False, [2, 3]), (True, [1, 2, 3])])
def test_an_old_one_stays_when_a_newer_one_is_found_bad_first(tmp_path: Path, bad: bool, left: list[int]) -> None:
    """Retention gave it up for good ones; the thread that would remove it finds one of those bad, and leaves it."""
    for step in (1, 2, 3):
        publish(tmp_path / f"ckpt_{step}.pt", lambda file: file.write(b"bytes"))
    if bad:
        flip_bit(tmp_path / "ckpt_3.pt", 2)
    told: list[e.Event] = []
    said: list[str] = []

    def say(event: str, _fields: dict[str, Any]) -> None:
        said.append(event)

    base = {"trainer": {"command": ["python"], "resume": "never"}, "checkpoints": {"dir": str(tmp_path)}}
    mailbox = Mailbox()
    verifier = Verifier(str(tmp_path), None, 0.0, {})
    side = DirectorySide(configuration.load(None, [], base), str(tmp_path), verifier, mailbox, told.append, say)
    try:
        side.judge_ladder()
        side.prune(e.RungFact("ckpt_1.pt", 1))
        done: list[bool] = []
        side.after(lambda: done.append(True))
        until(lambda: done)
        mailbox.run_all(lambda: True)
    finally:
        side.close()
        mailbox.close()

    assert [f"ckpt_{step}.pt" for step in left] == sorted(path.name for path in tmp_path.glob("*.pt"))
    assert ["snapshot.pruned"] * (not bad) == said

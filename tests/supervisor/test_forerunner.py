"""When the end of the supervisor before this one counts against the run, and when it says nothing about it."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor import small_files
from supervisor.adapters.statefile import RunFile
from supervisor.core.memory import Memory
from supervisor.faults import Fault, announce
from supervisor.forerunner import counts, judge
from supervisor.proc import Identity, boot_id

LOST = RunFile("the-run", Memory(incarnation=2, open=True), boot="this", supervisor=Identity(4711, 99))
FAULT = Fault("f1", "kill-the-supervisor", 4711, 99, None, 1.5)


@pytest.mark.parametrize("wanted", ["run", None])
def test_the_end_of_both_in_this_boot_counts(wanted: str | None) -> None:
    """A supervisor that was gone without a word, with a trainer that had not progressed, may have died of it."""
    assert counts(LOST, "this", wanted, announced=False)


@pytest.mark.parametrize(
    ("run", "wanted", "announced"),
    [
        (replace(LOST, boot="another"), "run", False),
        (replace(LOST, boot=None), "run", False),
        (replace(LOST, memory=Memory(incarnation=2)), "run", False),
        (LOST, "stop", False),
        (LOST, "pause", False),
        (LOST, "run", True),
    ],
    ids=["rebooted", "written by an older version", "it had progressed", "stopped", "paused", "chaos"],
)
def test_what_says_nothing_about_the_run_does_not_count(run: RunFile, wanted: str, announced: bool) -> None:
    """A power cut, a trainer that had progressed, a stop or pause under way, and an announced fault."""
    assert not counts(run, "this", wanted, announced)


def test_a_fault_is_known_by_the_very_process_it_was_announced_against(tmp_path: Path) -> None:
    """It is said, and it excuses; one that was aimed at another process of the same number does not."""
    (tmp_path / ".lastgood").mkdir()
    announce(str(tmp_path), FAULT)
    said: list[object] = []
    here = replace(LOST, boot=boot_id())

    def counted(run: RunFile) -> bool:
        return judge(str(tmp_path), run, "run", lambda event, fields: said.append((event, fields)))

    assert not counted(here)
    assert [("fault.injected", {"fault": "f1", "kind": "kill-the-supervisor", "target": "4711"})] == said
    assert counted(replace(here, supervisor=Identity(4711, 100)))
    assert counted(replace(here, supervisor=None))
    assert 1 == len(said)


def test_a_fault_that_the_storage_does_not_tell_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the end counts, as that of a trainer would."""
    answers = threading.Event()
    monkeypatch.setattr(small_files, "READ_SECONDS", 0.1)
    monkeypatch.setattr(small_files.faults, "aimed_at", lambda directory, target: answers.wait(30) and FAULT)
    began = time.monotonic()

    assert judge(str(tmp_path), replace(LOST, boot=boot_id()), "run", lambda event, fields: None)
    assert 5.0 > time.monotonic() - began
    answers.set()

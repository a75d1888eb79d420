"""Kills of trainer, tree and supervisor on the real system: nothing good is lost, nothing leaks, nothing lives twice.

`SEED=7 python -m pytest -m heavy tests/storm -s` repeats a storm; `python -m tests.storm` makes one of any size.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import supervisor.runtime  # noqa: F401 - what the storm is about, loaded so that it is known whose it is
from tests.storm import trainer
from tests.storm.campaign import DEADLY, Blow, Life, Storm, draw, report, storm

SEED = int(os.environ.get("SEED") or 0)
SMALL = 8
"""Kills of the small storm: each kind once, and two more."""


def test_a_small_storm_breaks_no_promise(quick_path: Path) -> None:
    """Each kind of kill, and a second supervisor: the run completes, from the newest good snapshot each time, with none lost."""
    tally = storm(quick_path, SEED or 1, SMALL, 1)

    assert [] == tally.violations
    assert (SMALL, set(DEADLY), 1) == (sum(tally.kills.values()), set(tally.kills), tally.rivals)


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_three_hundred_kills_break_no_promise(quick_path: Path) -> None:
    """Whatever is killed, wherever: no snapshot lost, no process leaked, never two trainers, completed each time."""
    seed = SEED or time.time_ns() % 1_000_000
    tally = storm(quick_path, seed, 300, 10)
    print(f"\nSEED={seed}\n{report(tally)}")

    assert [] == tally.violations, f"SEED={seed} repeats it"
    assert (300, 10) == (sum(tally.kills.values()), tally.rivals)


def test_the_same_seed_is_the_same_plan() -> None:
    """What a storm does can be done again."""
    assert draw(5, 30) == draw(5, 30) != draw(6, 30)
    assert 30 == len([blow for blow in draw(5, 30).blows if blow.kind in DEADLY])


LIFE = Life(1, True, "--from={snapshot}", 0, (Blow(0, "leader", 4, "step", True, 0.0, True),), 15)
"""A life with one kill, between two steps."""


def test_the_storm_notices(quick_path: Path) -> None:
    """A snapshot lost, a start from one too old, a good one set aside: each of them is told, once it is so."""
    at = Storm(quick_path / "life", LIFE)
    assert [] == at.run().violations

    trainer.tell(str(quick_path / "life"), start=9, life=9, pid=1, good=True, newest=15)
    assert ["began at 9, newest good: 15"] == said(at)
    aside = at.directory / ".lastgood" / "quarantine" / "1" / trainer.name_of(12)
    aside.parent.mkdir(parents=True)
    (at.directory / trainer.name_of(12)).rename(aside)
    assert ["began at 9, newest good: 15", "snapshots of steps [12] are lost", "is good and was set aside"] == said(at)


def said(at: Storm) -> list[str]:
    """What a judgement finds, without the names of places and numbers of lives."""
    at.tally.violations.clear()
    at.judge()
    known = ("began at 9, newest good: 15", "snapshots of steps [12] are lost", "is good and was set aside")
    return [next((words for words in known if words in one), one) for one in at.tally.violations]


def test_the_storm_notices_a_process_that_is_left(quick_path: Path) -> None:
    """One that has nothing but the mark among its words is seen beside the next trainer, and when the run has ended."""
    at = Storm(quick_path / "life", LIFE)
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(60)", at.mark, "of=0"], env={}
    ) as other:
        found = at.run().violations
        assert -9 == other.wait()

    assert f"processes [{other.pid}] are left" in found[0]
    assert f"alive beside (pid, incarnation) [({other.pid}, 0)]" in found[-1]

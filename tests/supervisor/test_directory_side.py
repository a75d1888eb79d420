"""What is ordered of the directory is done by a thread, and what was found meanwhile counts."""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from watchdog.observers import Observer

from lastgood.publish import publish
from supervisor import configuration
from supervisor.adapters.verifier import Verifier
from supervisor.adapters.watcher import Watcher
from supervisor.core import events as e
from supervisor.directory_side import DirectorySide
from supervisor.mailbox import Mailbox
from supervisor.settings import Settings
from tests.bench import until
from tests.conftest import flip_bit


class Desk:
    """A directory side over three snapshots, whose events the loop has not heard before the mailbox is run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[e.Event] = []
        self.said: list[str] = []
        for step in (1, 2, 3):
            publish(folder / f"ckpt_{step}.pt", lambda file: file.write(b"bytes"))
        self.mailbox = Mailbox()
        verifier = Verifier(str(folder), None, 0.0, {})
        settings = self.settings()
        self.side = DirectorySide(settings, str(folder), verifier, self.mailbox, self.told.append, self._say)

    def _say(self, event: str, _fields: dict[str, Any]) -> None:
        self.said.append(event)

    def settings(self, **stall: float) -> Settings:
        """Settings with other limits of silence."""
        base = {
            "trainer": {"command": ["python"], "resume": "never"},
            "checkpoints": {"dir": str(self.folder), "rescan_seconds": 0.1},
            "stall": stall,
        }
        return configuration.load(None, [], base)

    def done(self) -> None:
        """Wait until the judging thread has done all that was ordered."""
        done: list[bool] = []
        self.side.after(lambda: done.append(True))
        until(lambda: done)

    def looked(self) -> bool:
        """Let it look if that is due, for a trainer that lives."""
        self.side.look_when_due(1)
        self.done()
        self.hear()
        return True

    @property
    def judged(self) -> set[str]:
        """The names of what looks have told so far."""
        return {one.rung.name for one in self.told if isinstance(one, e.SnapshotJudged)}

    def hear(self) -> None:
        self.mailbox.run_all(lambda: True)

    @property
    def steps(self) -> list[int]:
        """Of the snapshots that are there."""
        return sorted(int(path.stem[5:]) for path in self.folder.glob("ckpt_*.pt"))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.side.close()
    made.mailbox.close()


@pytest.fixture
def save_before_the_watch_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is published while a watch is being set, too soon for any event."""

    class Late(Observer):
        def start(self) -> None:
            publish(tmp_path / "ckpt_9.pt", lambda file: file.write(b"bytes"))
            super().start()

    monkeypatch.setattr("supervisor.directory_side.Watcher", partial(Watcher, observer=Late))


@pytest.mark.usefixtures("save_before_the_watch_holds")
def test_what_comes_while_the_watch_is_set_is_known_at_once(desk: Desk) -> None:
    """The first look at the directory comes after that, or only a rescan would find it, and that may be a day away."""
    desk.side.judge_ladder()
    desk.done()
    ladders = [one for one in desk.told if isinstance(one, e.LadderJudged)]

    assert [[9, 3, 2, 1]] == [[rung.step for rung in one.rungs] for one in ladders]


@pytest.mark.parametrize(("bad", "left"), [(False, [2, 3]), (True, [1, 2, 3])])
def test_an_old_one_stays_when_a_newer_one_is_found_bad_first(desk: Desk, bad: bool, left: list[int]) -> None:
    """Retention gave it up for good ones; the thread that would remove it finds one of those bad, and leaves it."""
    if bad:
        flip_bit(desk.folder / "ckpt_3.pt", 2)
    desk.side.judge_ladder()
    desk.side.prune(e.RungFact("ckpt_1.pt", 1))
    desk.done()
    desk.hear()

    assert left == desk.steps
    assert ["snapshot.pruned"] * (not bad) == desk.said


def look(desk: Desk) -> None:
    """Look for arrivals until a bad one was found, which the loop has not heard of."""

    def found() -> bool:
        desk.hear()
        desk.side.look_when_due(1)
        desk.done()
        return any(isinstance(one, e.SnapshotJudged) and not usable(one) for one in desk.told)

    until(found)


def reread(desk: Desk) -> None:
    """Read the newest again, which is bad by now."""
    desk.side.reread("ckpt_3.pt", (desk.folder / "ckpt_3.pt").stat().st_mtime_ns)
    desk.done()


def judge(desk: Desk) -> None:
    """Look at the whole directory."""
    desk.side.judge_ladder()
    desk.done()


def usable(event: e.SnapshotJudged) -> bool:
    return event.rung.verdict is not None and event.rung.verdict.usable


@pytest.mark.parametrize("find", [look, reread, judge])
def test_an_old_one_stays_when_who_gives_it_up_has_not_heard_of_a_bad_one(
    desk: Desk, find: Callable[[Desk], None]
) -> None:
    """The thread has found the newest bad, and its news waits behind what has the loop prune; heard, the next order holds."""
    desk.side.judge_ladder()
    desk.done()
    desk.hear()
    flip_bit(desk.folder / "ckpt_3.pt", 2, keep_times=False)
    find(desk)
    desk.side.prune(e.RungFact("ckpt_1.pt", 1))
    desk.done()
    assert [1, 2, 3] == desk.steps
    desk.hear()
    desk.side.prune(e.RungFact("ckpt_1.pt", 1))
    desk.done()

    assert [2, 3] == desk.steps


def test_what_a_link_leads_to_by_now_is_not_removed(desk: Desk) -> None:
    """Retention gave it up before anybody knew of the link, which would lead to nothing."""
    desk.side.judge_ladder()
    (desk.folder / "best.pt").symlink_to("ckpt_1.pt")
    until(lambda: desk.looked() and desk.side._verifier.candidates.linked)
    desk.side.prune(e.RungFact("ckpt_1.pt", 1))
    desk.side.prune(e.RungFact("ckpt_2.pt", 2))
    desk.done()

    assert [1, 3] == desk.steps
    desk.hear()
    assert ["snapshot.prune_failed", "snapshot.pruned"] == [one for one in desk.said if "prune" in one]


def test_a_known_file_that_is_written_over_and_stays_open_is_seen(desk: Desk) -> None:
    """No name comes, and nothing is closed, so no event tells of it: the rescan does, and the save is no silence."""
    desk.side.judge_ladder()
    until(lambda: desk.looked() and {"ckpt_1.pt", "ckpt_2.pt"} <= desk.judged)
    desk.side._hints.all_seconds = 3600.0
    desk.side._hints.take(time.monotonic())
    desk.told.clear()
    with (desk.folder / "ckpt_2.pt").open("wb") as file:
        file.write(b"not yet all of it")
        file.flush()
        until(lambda: desk.looked() and "ckpt_2.pt" in desk.judged)


def test_a_watch_that_died_is_a_reason_to_look_at_everything(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, with the rescan that found it dead."""
    looks: list[bool] = []
    desk.side.judge_ladder()
    until(lambda: desk.looked() and {"ckpt_1.pt", "ckpt_2.pt"} <= desk.judged)
    desk.side._hints.all_seconds = 3600.0
    desk.side._hints.take(time.monotonic())
    real = desk.side._verifier.look
    monkeypatch.setattr(desk.side._verifier, "look", lambda *words: (looks.append(words[1]), real(*words))[1])
    monkeypatch.setattr(desk.side._watcher, "check", lambda: True)
    until(lambda: desk.looked() and looks)

    assert looks[0] is True


def test_what_a_start_left_unjudged_is_told_soon_after_it(desk: Desk) -> None:
    """However seldom the directory is read."""
    base = desk.settings().model_dump()
    base["checkpoints"]["rescan_seconds"] = 86_400.0
    desk.side.change(Settings.model_validate(base), None)
    desk.side.look_when_due(None)
    desk.side.judge_ladder()
    began = time.monotonic()
    until(lambda: desk.looked() and {"ckpt_1.pt", "ckpt_2.pt"} <= desk.judged)

    assert 0.5 < time.monotonic() - began < 10.0


def test_it_looks_as_often_as_the_settings_that_hold_now_ask_for(desk: Desk) -> None:
    """Silence is counted from looks as well: with a shorter limit the next one comes in time for it."""
    base = desk.settings().model_dump()
    base["checkpoints"]["rescan_seconds"] = 600.0
    desk.side.change(Settings.model_validate(base), None)
    desk.side.look_when_due(None)
    desk.side.look_when_due(None)
    desk.done()
    before = desk.side.due
    base["stall"]["running_seconds"] = 2.0
    desk.side.change(Settings.model_validate(base), None)

    assert before - 100.0 > desk.side.due
    assert 0.5 == desk.side._rescan_seconds


def test_a_save_that_goes_on_is_known_before_a_shorter_limit_holds(desk: Desk, tmp_path: Path) -> None:
    """Its partial was not looked at yet, since the old limit left time for that."""
    desk.side.look_when_due(1)
    until(desk.looked)
    (tmp_path / f".ckpt_9.pt.partial-{os.getppid()}-0123abcd").write_bytes(b"half")
    desk.told.clear()
    desk.side.change(desk.settings(), 1)
    desk.done()

    assert e.SavingChanged(1, True) in desk.told


def test_nothing_is_moved_once_the_directory_is_anothers(desk: Desk) -> None:
    """Neither removed, nor set aside, nor sealed, nor swept; what is there is still told, for the run ends by that."""
    rung, left = e.RungFact("ckpt_1.pt", 1), desk.folder / ".ckpt_9.pt.partial-4000000-0123abcd"
    left.touch()
    desk.side.let_go()
    desk.side.prune(rung)
    desk.side.set_aside(rung, "a reason")
    desk.side.seal("ckpt_2.pt")
    desk.side.put_back("ckpt_4.pt", 4)
    desk.done()
    desk.hear()
    assert ([1, 2, 3], [], []) == (desk.steps, desk.said, desk.told)
    desk.side.judge_ladder()
    desk.done()

    assert (True, [e.LadderJudged]) == (left.exists(), [type(one) for one in desk.told])

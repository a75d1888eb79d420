"""What must outlive the supervisor: written by a thread, in order, the newest last, and never forgotten at the end."""

import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters import statefile
from supervisor.core.memory import Memory
from supervisor.mailbox import Mailbox
from supervisor.memory_side import MemorySide
from tests.bench import until


class Desk:
    """A memory side over a directory, on a disk that stands still until it is let go."""

    def __init__(self, directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let_go, self.waits = threading.Event(), threading.Event()
        self.written: list[object] = []
        self.said: list[tuple[str, dict[str, Any]]] = []
        monkeypatch.setattr(statefile, "write_run", self._write_run)
        monkeypatch.setattr(statefile, "settle_wanted", self._settle_wanted)
        self.full = False
        self.mailbox = Mailbox()
        run = statefile.RunFile("the-run", boot="this")
        self.side = MemorySide(directory, run, self.mailbox, lambda event, fields: self.said.append((event, fields)))

    def _write_run(self, _directory: str, run: statefile.RunFile, _now: float) -> None:
        self.waits.set()
        self.let_go.wait(20)
        assert ("the-run", "this") == (run.run_id, run.boot)
        self._check_room()
        self.written.append(run.memory.incarnation)

    def _settle_wanted(self, _directory: str, wanted: str) -> None:
        self.let_go.wait(20)
        self._check_room()
        self.written.append(wanted)

    def _check_room(self) -> None:
        if self.full:
            raise OSError(28, "No space left on device")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    made = Desk(str(tmp_path), monkeypatch)
    yield made
    made.let_go.set()
    made.side.close()
    made.mailbox.close()


def test_of_many_memories_that_wait_only_the_newest_is_written(desk: Desk) -> None:
    """A disk that is slower than the run is not asked to write what is old by then; the last one always is."""
    desk.side.save(Memory(incarnation=1))
    desk.waits.wait(20)
    for number in range(2, 50):
        desk.side.save(Memory(incarnation=number))
    desk.let_go.set()
    desk.side.close()

    assert [1, 49] == desk.written


def test_closing_writes_all_that_was_ordered(desk: Desk) -> None:
    """What was ordered last is on the disk when the supervisor ends, in the order it was told."""
    desk.side.save(Memory(incarnation=1))
    desk.side.want_stop()
    desk.side.save(Memory(incarnation=2))
    closing = threading.Thread(target=desk.side.close)
    closing.start()
    desk.let_go.set()
    closing.join()

    assert [2, "stop"] == [one for one in desk.written if one != 1]


def test_an_act_comes_after_all_that_was_ordered_before_it(desk: Desk) -> None:
    """A trainer starts once the memory of its start is on the disk and its notes are empty, and not before."""
    done: list[object] = []
    desk.side.save(Memory(incarnation=1))
    desk.side.after(lambda: done.extend(desk.written), lambda: done.append(f"prepared after {len(desk.written)}"))
    desk.waits.wait(20)
    desk.mailbox.run_all(lambda: True)
    assert [] == done
    desk.let_go.set()
    until(lambda: desk.mailbox.run_all(lambda: True) or done[1:])

    assert ["prepared after 1", 1] == done


def test_what_could_not_be_written_is_said(desk: Desk) -> None:
    """In the loop's thread, with what the system said; what waits for it goes on all the same."""
    desk.let_go.set()
    desk.full = True
    desk.side.want_stop()
    done(desk)

    assert [("memory.not_saved", {"reason": "No space left on device"})] == desk.said


def done(desk: Desk) -> None:
    """All that was ordered is done, and what follows too."""
    after: list[str] = []
    desk.side.after(lambda: after.append("after"), lambda: None)
    until(lambda: desk.mailbox.run_all(lambda: True) or after)


def test_whether_the_memory_is_on_the_disk_is_known(desk: Desk) -> None:
    """Not after a write that failed, whatever was written beside it, and again after one that did not."""
    found = [desk.side.is_saved]
    desk.let_go.set()
    for desk.full in (True, False):
        desk.side.save(Memory(incarnation=1))
        done(desk)
        found.append(desk.side.is_saved)

    assert [True, False, True] == found


def test_nothing_is_written_once_the_directory_is_anothers(desk: Desk, shown: list[int]) -> None:
    """Neither what waits nor what comes later; the loser's memory over the winner's would cost it its budget and its trust."""
    desk.side.save(Memory(incarnation=1))
    desk.waits.wait(20)
    desk.side.save(Memory(incarnation=2))
    desk.side.want_stop()
    desk.side.let_go()
    desk.side.show({"number": 1})
    desk.let_go.set()
    desk.side.close()

    assert ([1], []) == (desk.written, shown)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the summaries that were written to status.json."""
    found: list[int] = []
    monkeypatch.setattr(statefile, "write_status", lambda _directory, summary: found.append(summary["number"]))
    return found


def test_a_status_is_written_while_the_memory_waits_for_its_disk(desk: Desk, shown: list[int]) -> None:
    """Whoever looks on sees what goes on, however long a sync takes."""
    desk.side.save(Memory(incarnation=1))
    desk.waits.wait(20)
    desk.side.show({"number": 1})
    until(lambda: shown)

    assert ([1], []) == (shown, desk.written)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_status_that_comes_while_one_is_taken_is_written_too(desk: Desk, shown: list[int], when: str) -> None:
    """Wherever the loop is in showing the second when the thread takes the first: the newest is written, and what comes later."""
    go_on, taken = threading.Event(), threading.Event()

    class Raced(deque[dict[str, Any]]):
        def pop(self) -> dict[str, Any]:
            go_on.wait(20)
            found = super().pop()
            taken.set()
            return found

        def append(self, summary: dict[str, Any]) -> None:
            if (summary["number"], when) == (2, "before"):
                go_on.set()
                taken.wait(20)
            super().append(summary)
            if (summary["number"], when) == (2, "after"):
                go_on.set()
                taken.wait(20)

    desk.side._summaries = Raced(maxlen=1)
    desk.side.show({"number": 1})
    desk.side.show({"number": 2})
    until(lambda: 2 in shown)
    desk.side.show({"number": 3})
    until(lambda: 3 in shown)

    assert [2, 3] == shown[-2:]


def test_many_statuses_that_wait_are_written_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk that stands still they do not pile up; the newest is what is written when it goes on."""
    written: list[int] = []
    began, go_on = threading.Event(), threading.Event()

    def write(_directory: str, summary: dict[str, Any]) -> None:
        began.set()
        go_on.wait(20)
        written.append(summary["number"])

    monkeypatch.setattr(statefile, "write_status", write)
    desk.side.show({"number": 0})
    began.wait(20)
    for number in range(1, 100):
        desk.side.show({"number": number})
    go_on.set()
    desk.let_go.set()
    desk.side.close()

    assert [0, 99] == written

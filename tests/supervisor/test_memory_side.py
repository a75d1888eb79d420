"""What must outlive the supervisor: written by a thread, in order, the newest last, and never forgotten at the end."""

import threading
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
        monkeypatch.setattr(statefile, "write_wanted", self._write_wanted)
        self.mailbox = Mailbox()
        run = statefile.RunFile("the-run", boot="this")
        self.side = MemorySide(directory, run, self.mailbox, lambda event, fields: self.said.append((event, fields)))

    def _write_run(self, _directory: str, run: statefile.RunFile, _now: float) -> None:
        self.waits.set()
        self.let_go.wait(20)
        assert ("the-run", "this") == (run.run_id, run.boot)
        self.written.append(run.memory.incarnation)

    def _write_wanted(self, _directory: str, wanted: str) -> None:
        self.let_go.wait(20)
        self.written.append(wanted)
        if wanted == "refused":
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
    desk.side.want("stop")
    desk.side.save(Memory(incarnation=2))
    closing = threading.Thread(target=desk.side.close)
    closing.start()
    desk.let_go.set()
    closing.join()

    assert [2, "stop"] == [one for one in desk.written if one != 1]


def test_an_act_comes_after_all_that_was_ordered_before_it(desk: Desk) -> None:
    """A trainer starts once the memory of its start is on the disk, and not before."""
    done: list[object] = []
    desk.side.save(Memory(incarnation=1))
    desk.side.after(lambda: done.extend(desk.written))
    desk.waits.wait(20)
    desk.mailbox.run_all(lambda: True)
    assert [] == done
    desk.let_go.set()
    until(lambda: desk.mailbox.run_all(lambda: True) or done)  # type: ignore[func-returns-value]

    assert [1] == done


def test_what_could_not_be_written_is_said(desk: Desk) -> None:
    """In the loop's thread, with what the system said; what waits for it goes on all the same."""
    done: list[str] = []
    desk.let_go.set()
    desk.side.want("refused")
    desk.side.after(lambda: done.append("after"))
    until(lambda: desk.mailbox.run_all(lambda: True) or done)  # type: ignore[func-returns-value]

    assert [("memory.not_saved", {"reason": "No space left on device"})] == desk.said

"""Handing over to the loop: nothing lost, nothing out of order, nobody held up, and no one else's file written to."""

import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor import mailbox as module
from supervisor.mailbox import Mailbox, Worker
from tests.bench import until


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    made = Mailbox()
    yield made
    made.close()


@pytest.fixture
def worker(mailbox: Mailbox) -> Iterator[Worker]:
    made = Worker("test", mailbox)
    yield made
    made.close()


def always() -> bool:
    return True


def readable(mailbox: Mailbox) -> bool:
    return bool(select.select([mailbox.descriptor], [], [], 0)[0])


def test_acts_run_in_order_and_once(mailbox: Mailbox) -> None:
    """What is handed over first is done first, by whoever runs the mailbox."""
    done: list[tuple[int, int]] = []
    for number in range(5):
        mailbox.hand(lambda number=number: done.append((number, threading.get_ident())))
    mailbox.run_all(always)
    mailbox.run_all(always)

    assert [(number, threading.get_ident()) for number in range(5)] == done


def test_the_descriptor_is_readable_while_something_waits(mailbox: Mailbox) -> None:
    """The loop sleeps on it: it wakes for one act or many, and not for none."""
    assert not readable(mailbox)
    for _ in range(3):
        mailbox.hand(lambda: None)
    assert readable(mailbox)
    mailbox.run_all(always)
    assert not readable(mailbox)


def test_running_an_empty_mailbox_is_harmless(mailbox: Mailbox) -> None:
    """The loop also wakes for other reasons."""
    mailbox.run_all(always)

    assert not readable(mailbox)


def test_acts_from_many_threads_all_arrive_in_their_order(mailbox: Mailbox) -> None:
    """Watcher, drain and workers hand over at once; each one's acts keep their order and none is lost."""
    done: list[tuple[int, int]] = []

    def hand_over(who: int) -> None:
        for number in range(200):
            mailbox.hand(lambda number=number: done.append((who, number)))

    threads = [threading.Thread(target=hand_over, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or readable(mailbox):
        select.select([mailbox.descriptor], [], [], 0.01)
        mailbox.run_all(always)

    assert 1600 == len(done)
    for who in range(8):
        assert list(range(200)) == [number for one, number in done if one == who]


def test_nothing_is_done_that_is_no_longer_wanted(mailbox: Mailbox) -> None:
    """Once the run has ended, what still waits is left undone."""
    done: list[int] = []
    for number in range(5):
        mailbox.hand(lambda number=number: done.append(number))
    mailbox.run_all(lambda: len(done) < 2)

    assert [0, 1] == done


def test_acts_that_hand_over_more_do_not_hold_up_the_loop(mailbox: Mailbox) -> None:
    """A flood of events, each bringing the next, leaves the loop time for deadlines: what comes meanwhile is for later."""
    rounds: list[int] = []

    def again() -> None:
        rounds.append(len(rounds))
        mailbox.hand(again)

    mailbox.hand(again)
    mailbox.run_all(always)
    assert ([0], True) == (rounds, readable(mailbox))
    mailbox.run_all(always)
    assert [0, 1] == rounds


def test_an_act_that_raises_is_not_swallowed(mailbox: Mailbox) -> None:
    """A bug in the loop's own work ends the loop."""

    def broken() -> None:
        raise ZeroDivisionError

    mailbox.hand(broken)

    with pytest.raises(ZeroDivisionError):
        mailbox.run_all(always)


def test_a_signal_while_something_is_handed_over_is_handed_over_too(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that interrupts its own thread within `hand` neither waits for it nor gets lost."""
    done: list[str] = []
    real, before = (
        os.eventfd_write,
        signal.signal(signal.SIGUSR1, lambda *_: mailbox.hand(lambda: done.append("signal"))),
    )

    def interrupted(descriptor: int, value: int) -> None:
        monkeypatch.setattr(os, "eventfd_write", real)
        signal.raise_signal(signal.SIGUSR1)
        real(descriptor, value)

    monkeypatch.setattr(os, "eventfd_write", interrupted)
    try:
        mailbox.hand(lambda: done.append("act"))
    finally:
        signal.signal(signal.SIGUSR1, before)
    mailbox.run_all(always)

    assert {"act", "signal"} == set(done)


def test_after_the_end_nothing_is_written_into_anybodys_file(tmp_path: Path) -> None:
    """A thread that outlives the loop hands over to a closed mailbox, whose descriptor's number is another file's by then."""
    mailbox = Mailbox()
    number = mailbox.descriptor
    mailbox.close()
    mailbox.close()
    descriptor = os.open(tmp_path / "run.json", os.O_WRONLY | os.O_CREAT)
    if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)
    mailbox.hand(lambda: None)
    os.close(number)

    assert b"" == (tmp_path / "run.json").read_bytes()


def test_the_descriptor_is_not_inherited(mailbox: Mailbox) -> None:
    """A trainer gets none of ours."""
    assert not os.get_inheritable(mailbox.descriptor)


def test_work_is_done_in_order_in_one_other_thread(mailbox: Mailbox, worker: Worker) -> None:
    """What was submitted first is finished before the next begins."""
    done: list[tuple[int, int]] = []
    for number in range(50):
        worker.submit(lambda number=number: done.append((number, threading.get_ident())))
    until(lambda: len(done) == 50)

    assert list(range(50)) == [number for number, _ in done]
    assert 1 == len({thread for _, thread in done} - {threading.get_ident()})


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
def test_a_bug_in_a_worker_is_raised_in_the_loop(mailbox: Mailbox, worker: Worker, error: type[BaseException]) -> None:
    """It is not lost with the thread, and the thread goes on with what comes next."""
    done: list[int] = []

    def broken() -> None:
        raise error("x")

    worker.submit(broken)
    worker.submit(lambda: done.append(1))
    until(lambda: done)

    with pytest.raises(error, match="x"):
        mailbox.run_all(always)


def test_closing_a_worker_finishes_what_is_under_way_and_drops_the_rest(mailbox: Mailbox) -> None:
    """Half a seal is no seal; what had not begun is not needed any more."""
    worker = Worker("test", mailbox)
    began, go_on, done = threading.Event(), threading.Event(), []

    def first() -> None:
        began.set()
        go_on.wait()
        done.append("first")

    worker.submit(first)
    worker.submit(lambda: done.append("second"))
    began.wait()
    closing = threading.Thread(target=worker.close)
    closing.start()
    until(lambda: worker._closed)
    go_on.set()
    closing.join()
    worker.submit(lambda: done.append("third"))

    assert ["first"] == done


def test_what_must_be_done_is_done_before_a_worker_ends(mailbox: Mailbox) -> None:
    """Closing drops what can be left undone, and only that; the order stays."""
    worker = Worker("test", mailbox)
    go_on, done = threading.Event(), []
    worker.submit(go_on.wait)
    for number in range(6):
        worker.submit(lambda number=number: done.append(number), must=number % 2 == 0)
    closing = threading.Thread(target=worker.close)
    closing.start()
    until(lambda: worker._closed)
    go_on.set()
    closing.join()

    assert [0, 2, 4] == done


def test_work_that_hangs_does_not_hold_up_the_end(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that never answers costs a limited wait, after which the supervisor ends."""
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.05)
    worker = Worker("test", mailbox)
    hung, began = threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        hung.wait()

    worker.submit(hang)
    began.wait()
    worker.close()

    assert not hung.is_set()
    assert worker._thread.daemon
    hung.set()
    until(lambda: not worker._thread.is_alive())


def test_several_that_hang_are_waited_for_together(mailbox: Mailbox) -> None:
    """The supervisor's own end is limited, however many of its threads stand still."""
    workers, hung = [Worker("test", mailbox) for _ in range(4)], threading.Event()
    at_work = threading.Barrier(5)

    def hang() -> None:
        at_work.wait(30)
        hung.wait()

    for worker in workers:
        worker.submit(hang)
    at_work.wait(30)
    began = time.monotonic()
    for worker in workers:
        worker.close(began + 0.3)
    took = time.monotonic() - began
    hung.set()

    assert 0.3 <= took < 0.9


def test_closing_leaves_no_thread(mailbox: Mailbox) -> None:
    """An idle worker ends at once."""
    worker = Worker("test", mailbox)
    worker.close()

    assert not worker._thread.is_alive()

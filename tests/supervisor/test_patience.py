"""Writes to storage that may stand still: in order, soon seen, and never waited for twice."""

import threading
import time
from collections.abc import Callable

import pytest

from supervisor import patience
from supervisor.patience import Patient


def test_what_is_given_is_done_when_the_call_returns() -> None:
    """Storage that answers makes no difference: whoever looks afterwards finds what was written, in order."""
    seen: list[int] = []
    patient = Patient("test", 10.0)
    for number in range(100):
        assert patient.do(lambda number=number: seen.append(number))
        assert [*range(number + 1)] == seen


def test_storage_that_stands_still_is_waited_for_once() -> None:
    """The first write that hangs costs the patience, those behind it nothing; when it moves again, all is done in order."""
    moves, seen = threading.Event(), list[int]()

    def act(number: int) -> Callable[[], None]:
        return lambda: (moves.wait(30), seen.append(number))[1]

    patient = Patient("test", 0.2)
    began = time.monotonic()
    for number in range(50):
        assert patient.do(act(number))
    took = time.monotonic() - began
    assert [] == seen
    moves.set()
    patient.close()
    assert [*range(50)] == seen
    assert 0.2 <= took < 2.0

    assert patient.do(act(50))
    assert 50 == seen[-1]  # it is trusted again


def test_what_waits_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not grow for storage that never comes back: what is too much is refused, and the caller knows."""
    monkeypatch.setattr(patience, "WAITING_MAX", 5)
    monkeypatch.setattr(patience, "CLOSE_SECONDS", 0.1)
    moves = threading.Event()
    patient = Patient("test", 0.05)
    given = [patient.do(lambda: moves.wait(30) and None) for _ in range(20)]

    assert [True] * 6 + [False] * 14 == given  # one is under way
    began = time.monotonic()
    patient.close()
    assert time.monotonic() - began < 5.0
    moves.set()


def test_without_threads_it_is_done_here_and_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that gives no more threads gets its records all the same."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    seen: list[int] = []
    assert Patient("test", 1.0).do(lambda: seen.append(1))
    assert [1] == seen


def test_a_bug_in_an_act_is_raised_and_the_rest_is_done() -> None:
    """Where it is waited for, else where the next is given; no thread takes it along in silence."""
    moves, seen = threading.Event(), list[int]()

    def fail_late() -> None:
        moves.wait(30)
        raise ValueError("late")

    patient = Patient("test", 0.2)
    with pytest.raises(ZeroDivisionError):
        patient.do(lambda: seen.append(1 // 0))
    assert patient.do(fail_late)
    moves.set()
    patient.close()
    with pytest.raises(ValueError, match="late"):
        patient.do(lambda: seen.append(1))

    assert patient.do(lambda: seen.append(2))
    assert [1, 2] == seen


def test_who_must_know_waits_although_it_stands_still() -> None:
    """An act may ask for the patience again; one that is not answered then either is left."""
    moves, seen = threading.Event(), list[int]()
    patient = Patient("test", 0.2)
    patient.do(lambda: moves.wait(30))
    began = time.monotonic()
    patient.do(lambda: seen.append(1), again=True)
    assert 0.2 <= time.monotonic() - began < 2.0
    assert [] == seen
    moves.set()
    patient.do(lambda: seen.append(2), again=True)

    assert [1, 2] == seen

"""Pickles read as data: equal to what was written, nothing executed, everything bounded."""

import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.pickles import MAX_CONTAINERS, Call, Global, PickleError, TooLargeError, read

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(-(2**62), 2**62), inner) | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


@given(values, st.integers(2, 5))
def test_plain_values_come_out_as_they_went_in(value: Any, protocol: int) -> None:
    """numbers, text, lists, tuples and dictionaries survive, at every protocol that torch may use."""
    assert value == read(pickle.dumps(value, protocol)).value


class Command:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.place}",)


def test_nothing_is_executed_and_every_global_is_named(tmp_path: Path) -> None:
    """A pickle that would run a command yields its description, and no command runs."""
    found = read(pickle.dumps({"a": Command(tmp_path / "ran")}))

    assert isinstance(found.value["a"], Call)
    assert ["posix.system"] == [str(one) for one in found.globals]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02",
        b"\x80\x02}",
        b"\x80\x02}q\x00.junk",
        b"\x80\x02h\x05.",
        b"\x80\x02tQ.",
        b"\x80\x02s.",
        b"\x80\x02(.",
        b"\x80\x02K\x01K\x02.",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",
        b"\x80\x02X\xff\xff\xff\xffabc.",
        b"\xff\xff\xff",
    ],
)
def test_what_is_no_whole_pickle_is_refused(data: bytes) -> None:
    """Cut, followed by junk, or nonsense: a PickleError, and nothing else."""
    with pytest.raises(PickleError):
        read(data)


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_else(data: bytes) -> None:
    """Any bytes at all give contents or a PickleError."""
    try:
        read(b"\x80\x02" + data + b".")
    except PickleError:
        pass  # refused, as most are


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02" + b"(" * 1_000_000 + b"l" * 10 + b".",
        b"\x80\x02]" + b"\x85" * 300_000 + b".",
        b"\x80\x02}]" + b"\x85" * 100_000 + b"Ns.",
        b"\x80\x02Nr\xff\xff\xff\xffr\xfe\xff\xff\xff.",
        b"\x80\x02" + b"]" + b"2a" * 200_000 + b".",
    ],
)
def test_bombs_cost_bounded_time(data: bytes) -> None:
    """Depth, memo and repetition bombs are read or refused in seconds, without a crash."""
    started = time.monotonic()
    try:
        read(data)
    except PickleError:
        pass  # refused is as good as read, as long as it is soon
    assert time.monotonic() - started < 20


def test_globals_compare_by_name() -> None:
    """A global is its module and its name."""
    assert Global("torch", "FloatStorage") == read(b"\x80\x02ctorch\nFloatStorage\n.").value


def test_what_is_too_large_is_told_apart_from_what_is_broken() -> None:
    """A sane pickle that would cost too much is not called damaged; keys made to collide cost nothing."""
    with pytest.raises(TooLargeError, match="containers"):
        read(b"\x80\x02]" + b"\x8f0" * (MAX_CONTAINERS + 1) + b".")

    colliding = {float(2**61 - 1) * n: n for n in range(20_000)}
    started = time.monotonic()
    assert 20_000 == len(read(pickle.dumps(colliding)).value)
    assert time.monotonic() - started < 5

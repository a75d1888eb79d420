"""Pickles read as data: equal to what was written, nothing executed, everything bounded."""

import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.pickles import MAX_CONTAINERS, Call, CutError, Global, PickleError, TooLargeError, read, read_one

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
    started = time.process_time()
    try:
        read(data)
    except PickleError:
        pass  # refused is as good as read, as long as it is soon
    assert time.process_time() - started < 20


def test_globals_compare_by_name() -> None:
    """A global is its module and its name."""
    assert Global("torch", "FloatStorage") == read(b"\x80\x02ctorch\nFloatStorage\n.").value


def test_what_is_too_large_is_told_apart_from_what_is_broken() -> None:
    """A sane pickle that would cost too much is not called damaged, nor is one with many keys that could be made to collide."""
    with pytest.raises(TooLargeError, match="containers"):
        read(b"\x80\x02]" + b"\x8f0" * (MAX_CONTAINERS + 1) + b".")

    started = time.process_time()
    with pytest.raises(TooLargeError, match="made to collide"):
        read(pickle.dumps({float(2**61 - 1) * n: n for n in range(20_000)}))
    assert time.process_time() - started < 10


@given(
    st.dictionaries(
        st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none() | st.tuples(st.text(), st.integers()),
        st.none(),
    )
)
def test_keys_of_every_plain_kind_stay_what_they_are(value: dict[Any, None]) -> None:
    """Fractions, long integers and tuples are keys as good as text."""
    found = read(pickle.dumps(value, 2)).value

    assert [(type(key), key) for key in value] == [(type(key), key) for key in found]


@given(st.lists(values, min_size=1, max_size=4), st.integers(2, 5))
def test_pickles_in_a_row_are_read_one_by_one(row: list[Any], protocol: int) -> None:
    """Each one ends where the next begins, whatever follows."""
    data, at, found = b"".join(pickle.dumps(value, protocol) for value in row) + b"rest", 0, []
    for _ in row:
        contents, at = read_one(data, at)
        found.append(contents.value)

    assert (row, b"rest") == (found, data[at:])


@given(values, st.integers(0, 5))
def test_a_cut_pickle_says_how_much_it_needs(value: Any, protocol: int) -> None:
    """Wherever it is cut, it asks for more than there is and never for more than there was."""
    whole = pickle.dumps(value, protocol)
    for length in range(len(whole)):
        with pytest.raises(CutError) as caught:
            read_one(whole[:length])

        assert length < caught.value.needed <= len(whole)


def test_every_operation_that_pickle_writes_is_known() -> None:
    """Those of all protocols, old names and instances included."""
    for data, expected in [
        (b"(dp0\nVa\np1\nI01\ns.", {"a": True}),
        (b"(lp0\nF1.5\naL12L\naI3\naNaS'b'\na.", [1.5, 12, 3, None, "b"]),
        (b"\x80\x02\x8b\x02\x00\x00\x00\x00\x01.", 256),
        (b"\x80\x04\x8f(K\x01K\x02\x90.", {1, 2}),
        (b"\x80\x04(K\x01K\x02\x91.", frozenset({1, 2})),
        (b"\x80\x05\x96\x02\0\0\0\0\0\0\0ab.", bytearray(b"ab")),
        (b"T\x02\0\0\0ab.", "ab"),
        (b"U\x02ab.", "ab"),
        (b"NK\x010.", None),
        (b"N(K\x01K\x021.", None),
    ]:
        assert expected == read(data).value, data
    for data in (
        b"(ia\nb\n.",
        b"(ca\nb\no.",
        b"ca\nb\n)\x81.",
        b"\x80\x04ca\nb\n)}\x92.",
        b"\x80\x04\x8c\x01a\x8c\x01b\x93)R.",
    ):
        assert "a.b" == str(read(data).value.function), data
    assert "7" == read(b"P7\n.").value.id


@pytest.mark.parametrize("data", [b"\x80\x06N.", b"\x82\x01.", b"\x97.", b"Nq\x00h\x01.", b"\x80\x02K\x01b."])
def test_what_no_reader_takes_is_refused(data: bytes) -> None:
    """A protocol from the future, registered extensions, buffers from outside, what was never remembered."""
    with pytest.raises(PickleError):
        read(data)

"""What would not load again is refused when it is saved, with its place, its type and the cure."""

import argparse
import collections
import dataclasses
import enum
import io
import pickle
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastgood import CheckpointManager, save_checkpoint_atomic
from lastgood.payload import refuse_what_would_not_load


class Colour(enum.Enum):
    RED = 1


class Text(str):
    """Text of a class of its own, as versions often are."""


@dataclasses.dataclass
class Settings:
    rate: float = 0.1


Pair = collections.namedtuple("Pair", "left right")


class Own:
    """Of a trainer's own module."""


def generator() -> Any:
    yield 1


REFUSED: dict[str, tuple[Any, str]] = {
    "numpy scalar": (np.float64(1.5), r"numpy\.float64 \(save its \.item\(\); or allow it with torch\.ser.*add_safe_globals"),
    "numpy array": (np.arange(3), r"numpy\.ndarray \(save torch\.from_numpy\(\) of it;"),
    "path": (Path("out"), r"PosixPath \(save str\(\) of it;"),
    "namespace": (argparse.Namespace(lr=1), r"argparse\.Namespace \(save vars\(\) of it;"),
    "enum": (Colour.RED, r"Colour \(save its \.value;"),
    "default dictionary": (collections.defaultdict(int, a=1), r"collections\.defaultdict \(save dict\(\) of it;"),
    "named tuple": (Pair(1, 2), r"Pair \(save tuple\(\) of it;"),
    "frozen set": (frozenset({1}), r"frozenset \(save list\(\) of it;"),
    "text of a class": (Text("x"), r"Text \(save str\(\) of it;"),
    "data class": (Settings(), r"Settings \(save dataclasses\.asdict\(\) of it;"),
    "module": (torch.nn.Linear(1, 1), r"Linear \(save its \.state_dict\(\);"),
    "object": (Own(), r"Own \(save it as numbers, text, lists, dictionaries and tensors;"),
    "function": (len, r"builtin_function_or_method \(leave it out;"),
    "lambda": (lambda: 0, r"function \(leave it out; it cannot be pickled: "),
    "generator": (generator(), r"generator \(save it as .*; it cannot be pickled: "),
    "no bytes": (b"", r"bytes \(save bytearray\(\) of it;"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_not_load_is_refused_with_place_type_and_cure(tmp_path: Path, kind: str) -> None:
    """Whoever saves learns it today, and not when a run must be resumed; the old snapshot stays and nothing is begun."""
    value, says = REFUSED[kind]
    save_checkpoint_atomic({"step": 1}, tmp_path / "ckpt_1.pt")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    with pytest.raises(TypeError, match=rf"refuse it: \['config'\]\['runs'\]\[1\] is a .*{says}"):
        save_checkpoint_atomic({"step": 2, "config": {"runs": [0, value]}}, tmp_path / "ckpt_1.pt")
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.mark.parametrize("blocking", [True, False])
def test_the_manager_refuses_at_the_call(tmp_path: Path, blocking: bool) -> None:
    """Also when the saving itself would be done in the background; the next save works."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with CheckpointManager(tmp_path) as manager:
        with pytest.raises(TypeError, match=r"\['best_val_loss'\] is a numpy\.float32"):
            manager.save(1, model, optimizer, extra={"best_val_loss": np.float32(1)}, blocking=blocking)
        manager.save(2, model, optimizer, blocking=blocking)

    assert {"ckpt_00000002.pt", "ckpt_00000002.pt.sha256"} == {p.name for p in tmp_path.iterdir()} - {".lastgood"}


def test_every_place_is_named_up_to_a_limit() -> None:
    """Several mistakes cost one attempt, and a thousand do not flood the screen."""
    with pytest.raises(TypeError) as caught:
        refuse_what_would_not_load({"a": np.float64(1), Path("b"): 1, "c": [np.int64(2)] * 3})
    assert 3 == str(caught.value).count(" is a ")

    with pytest.raises(TypeError) as caught:
        refuse_what_would_not_load({"a": [np.float64(number) for number in range(1000)]})
    assert 5 == str(caught.value).count(" is a ")


def test_attributes_are_looked_at_where_they_are_saved() -> None:
    """An ordered dictionary and a parameter take theirs along."""
    state, parameter = collections.OrderedDict(a=1), torch.nn.Parameter(torch.ones(1))
    state.note = Path("x")
    parameter.owner = Path("y")

    with pytest.raises(TypeError, match=r"\['s'\]\.note is a"):
        refuse_what_would_not_load({"s": state})
    with pytest.raises(TypeError, match=r"\['p'\]\.owner is a"):
        refuse_what_would_not_load({"p": parameter})


def test_what_torch_was_told_to_allow_is_allowed(tmp_path: Path) -> None:
    """torch.serialization knows which types a program trusts."""
    payload = {"args": argparse.Namespace(lr=0.5)}
    with torch.serialization.safe_globals([argparse.Namespace]):
        save_checkpoint_atomic(payload, tmp_path / "a.pt")
        assert 0.5 == torch.load(tmp_path / "a.pt", weights_only=True)["args"].lr

    with pytest.raises(TypeError, match="Namespace"):
        save_checkpoint_atomic(payload, tmp_path / "a.pt")


def test_a_payload_that_holds_itself_is_looked_at_once() -> None:
    """Circles end."""
    circle: dict[str, Any] = {"a": [1]}
    circle["a"].append(circle)
    refuse_what_would_not_load(circle)
    circle["a"].append(Own())

    with pytest.raises(TypeError, match=r"\['a'\]\[2\] is a"):
        refuse_what_would_not_load(circle)


LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 70), st.floats(), st.text(max_size=3), st.binary(max_size=2),
    st.sampled_from([1j, torch.ones(2), torch.nn.Parameter(torch.ones(1)), torch.eye(2).to_sparse(), torch.float16,
                     torch.Size([1, 2]), torch.device("cpu"), torch.strided, bytearray(), collections.Counter("aab"),
                     np.int64(1), np.float32(1), np.bool_(True), Path("a"), Colour.RED, Text("t"), int, len, ...,
                     torch.__version__, range(3), np.dtype("int8"), torch.empty(2, device="meta"), slice(1)]),
)  # fmt: skip
KEYS = st.one_of(st.text(max_size=2), st.integers(), st.sampled_from([np.int64(3), Colour.RED, (1, "a"), None, 1.5]))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.dictionaries(KEYS, inner, max_size=2).map(collections.OrderedDict),
        st.dictionaries(KEYS, inner, max_size=2).map(lambda some: collections.defaultdict(list, some)),
        st.sets(st.one_of(st.integers(), st.sampled_from([np.int64(1), "x"])), max_size=2),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_torch_refuses_exactly_what_is_refused_here(value: Any) -> None:
    """Nothing that would load is refused, and nothing that would not is saved."""
    payload = {"value": value}
    try:
        refuse_what_would_not_load(payload)
        here = True
    except TypeError:
        here = False
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):
        try:
            torch.save(payload, buffer)
            torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
            there = True
        except (pickle.PickleError, TypeError, AttributeError, RuntimeError):
            there = False

    assert there == here


def test_looking_costs_little_beside_saving() -> None:
    """The state of a thousand parameters with their moments is looked at in milliseconds, however large they are."""
    big = torch.empty(10_000_000)
    state = {i: {"step": torch.tensor(1.0), "exp_avg": big[i:], "exp_avg_sq": big[:i]} for i in range(1000)}
    payload = {"model": {f"layer.{i}.weight": big for i in range(1000)}, "optimizer": {"state": state}}
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        refuse_what_would_not_load(payload)
        seconds.append(time.perf_counter() - started)

    assert min(seconds) < 0.1


class Marked(torch.Tensor):
    """A tensor of a class of its own, which leaves its saving to torch."""


class Weight(torch.nn.Parameter):
    """A parameter of a class of its own, which is loaded as a plain one."""


class Rebuilt(torch.Tensor):
    """A tensor that decides itself how it is saved."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (Path, ("x",)) if self.numel() else (collections.OrderedDict, ())


class Moody(torch.Tensor):
    """A tensor that decides itself what of it is saved."""

    def __getstate__(self) -> Any:
        return {"owner": Path("x")} if self.numel() else {}


class Wrapping(torch.Tensor):
    """A tensor without memory of its own, around another one."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __torch_dispatch__(self, *_more: Any) -> Any:  # type: ignore[override]
        raise NotImplementedError


class Needing(torch.Tensor):
    """A tensor that cannot be saved without an attribute of it."""

    @property
    def requires_grad(self) -> Any:
        return self.wanted


def owned(kind: type[torch.Tensor], owner: Any) -> torch.Tensor:
    tensor = torch.ones(2).as_subclass(kind)
    tensor.owner = owner
    return tensor


def needing() -> torch.Tensor:
    tensor = torch.ones(2).as_subclass(Needing)
    tensor.wanted = False
    return tensor


OF_A_CLASS: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.ones(2).as_subclass(Marked),
    "wrapped as a parameter": lambda: torch.nn.Parameter(torch.ones(2).as_subclass(Marked)),
    "with a text": lambda: owned(Marked, "me"),
    "with a path": lambda: owned(Marked, Path("x")),
    "with a tensor of its class": lambda: owned(Marked, torch.ones(1).as_subclass(Marked)),
    "parameter": lambda: Weight(torch.ones(2)),
    "parameter with a path": lambda: owned(Weight, Path("x")),
    "saved by itself": lambda: torch.ones(2).as_subclass(Rebuilt),
    "saved in part": lambda: torch.ones(2).as_subclass(Moody),
    "around another": lambda: Wrapping(torch.ones(2)),
    "nothing without an attribute": needing,
}


@pytest.mark.parametrize("trusted", [[], [Marked, Moody, Needing, Wrapping]], ids=["not trusted", "trusted"])
@pytest.mark.parametrize("kind", OF_A_CLASS)
def test_tensors_of_other_classes_are_refused_where_torch_refuses_them(kind: str, trusted: list[Any]) -> None:
    """Their class and their attributes decide, now and not as they were trusted at an earlier save."""
    with torch.serialization.safe_globals(trusted):
        test_torch_refuses_exactly_what_is_refused_here.hypothesis.inner_test(OF_A_CLASS[kind]())


@pytest.mark.parametrize("kind", [Marked, Weight])
def test_the_bytes_of_a_tensor_of_another_class_are_not_copied(
    monkeypatch: pytest.MonkeyPatch, kind: type[torch.Tensor]
) -> None:
    """It is looked at as quickly as a plain one, at every save."""
    looked_at, real = [], torch.load

    def load(file: io.BytesIO, **how: Any) -> Any:
        looked_at.append(len(file.getbuffer()))
        return real(file, **how)

    monkeypatch.setattr(torch, "load", load)
    with torch.serialization.safe_globals([Marked]):
        refuse_what_would_not_load({"weight": torch.ones(1_000_000).as_subclass(kind)})

    assert 1 == len(looked_at)
    assert looked_at[0] < 10_000

"""Copies of a state: as it was at the call, byte for byte what would have been saved, in memory that is used again."""

import io
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lastgood import CheckpointManager
from lastgood.staging import Staging, _Copying

Pair = namedtuple("Pair", "left right")


def saved(value: Any) -> bytes:
    """The file that torch makes of a value."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def with_metadata() -> Any:
    state = torch.nn.BatchNorm1d(3).state_dict()
    assert state._metadata
    return state


def parameter_with_attribute() -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    parameter.tensor_model_parallel = True
    return parameter


class Marked(torch.Tensor):
    """A tensor of a class of its own."""


def quantized() -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):
        return torch.quantize_per_channel(
            torch.ones(3, 2), torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3), 0, torch.qint8
        )


KINDS: dict[str, Callable[[], Any]] = {
    "views of one storage, of different shapes": lambda: [w := torch.randn(4, 6), w[1:], w.view(-1), w.t(), w[:, ::2]],
    "tied": lambda: {"a": (w := torch.randn(3)), "b": w, "c": w.detach()},
    "a view of a part": lambda: torch.randn(100)[40:50],
    "parameters": lambda: [torch.nn.Parameter(torch.randn(2)), torch.nn.Parameter(torch.ones(2), requires_grad=False)],
    "a parameter with an attribute": parameter_with_attribute,
    "a parameter and what it was made of": lambda: [w := torch.randn(3), torch.nn.Parameter(w)],
    "gradients wanted": lambda: torch.ones(3, requires_grad=True),
    "not a leaf": lambda: torch.ones(3, requires_grad=True) * 2,
    "a sparse one that is not a leaf": lambda: torch.eye(2).to_sparse().requires_grad_() * 2,
    "empty": lambda: [torch.empty(0), torch.empty(0, 3), torch.randn(3)[3:]],
    "scalar": lambda: torch.tensor(2.5),
    "expanded": lambda: torch.randn(3, 1).expand(3, 4),
    "channels last": lambda: torch.randn(1, 2, 3, 3).to(memory_format=torch.channels_last),
    "every width": lambda: [torch.ones(3).to(d) for d in (torch.float64, torch.bfloat16, torch.int8, torch.bool)],
    "float8 and unsigned": lambda: [torch.ones(3).to(torch.float8_e5m2), torch.arange(3).to(torch.uint32)],
    "complex and conjugated": lambda: [c := torch.randn(3, dtype=torch.complex64), c.conj()],
    "negated": lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse in rows": lambda: torch.eye(3).to_sparse_csr(),
    "quantized": quantized,
    "meta": lambda: torch.empty(3, 2, device="meta"),
    "of another class": lambda: torch.ones(3).as_subclass(Marked),
    "a model's state with its metadata": with_metadata,
    "containers": lambda: OrderedDict(pair=Pair(torch.ones(1), [1]), t=(torch.ones(2), None, "x"), s={1, 2}, n=1 << 80),
    "one list in two places": lambda: [(some := [torch.ones(1)]), some],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # torch says that some of these will go, or are young
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_is_saved_as_the_same_bytes(kind: str) -> None:
    """What shares stays shared, what is a view stays one, and nobody can tell a file from the background from another."""
    state = {"value": KINDS[kind]()}

    assert saved(state) == saved(Staging().copy(state))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"empty", "meta", "sparse in rows"}))
def test_a_copy_does_not_follow_what_is_done_to_the_state(kind: str) -> None:
    """Whatever is written into the tensors after the call is not in it."""
    state = {"value": KINDS[kind]()}
    copied, before = Staging().copy(state), saved(state)
    with torch.no_grad():
        spoil(state)

    assert before != saved(state)
    assert before == saved(copied)


@pytest.fixture(autouse=True)
def _trusted() -> Iterator[None]:
    """The class above is one that the program told torch to trust."""
    with torch.serialization.safe_globals([Marked]):
        yield


def spoil(value: Any) -> None:
    """Change every tensor below, in place."""
    if isinstance(value, torch.Tensor):
        target = value._values() if value.layout is torch.sparse_coo else value
        if target.is_quantized:
            target.copy_(torch.quantize_per_channel(
                torch.zeros(3, 2), torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3), 0, torch.qint8))  # fmt: skip
        elif target.stride() and 0 in target.stride():
            spoil(target._base)
        else:
            target.untyped_storage().fill_(7)
    elif isinstance(value, dict):
        for one in value.values():
            spoil(one)
    elif isinstance(value, list | tuple):
        for one in value:
            spoil(one)


def addresses(value: Any) -> set[int]:
    """Where the memory of a list of tensors is."""
    return {one.untyped_storage().data_ptr() for one in value}


def test_memory_is_used_again() -> None:
    """A second copy of the same shapes takes the place of the first one, and has the second state."""
    staging, state = Staging(), [torch.zeros(1000), torch.zeros(10, 10), torch.zeros(10, 10)]
    first = addresses(staging.copy(state))
    for tensor in state:
        tensor.fill_(5)
    second = staging.copy(state)

    assert first == addresses(second)
    assert all(torch.equal(a, b) for a, b in zip(state, second, strict=True))


def test_memory_that_fits_nothing_goes_before_more_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is never memory for more than one state, and what fits is kept."""
    staging = Staging()
    first = staging.copy([torch.zeros(1000), torch.zeros(500)])
    kept = first[0].untyped_storage().data_ptr()
    held: list[int] = []
    real = _Copying._fresh

    def fresh(copying: _Copying, size: int, pinned: bool) -> Any:
        held.append(sum(map(len, copying._spare.values())))
        return real(copying, size, pinned)

    monkeypatch.setattr(_Copying, "_fresh", fresh)
    second = staging.copy([torch.zeros(700), torch.zeros(1000)])

    assert (kept, [0]) == (second[1].untyped_storage().data_ptr(), held)
    staging.clear()
    assert {} == staging._buffers


class FakeStorage:
    """The memory of a device that this machine does not have: copying from it is copying from `real`."""

    device = torch.device("cuda", 0)

    def __init__(self, real: torch.Tensor) -> None:
        self.real, self._cdata = real, id(self)

    def nbytes(self) -> int:
        return self.real.nbytes


@pytest.mark.parametrize("may_pin", [True, False])
def test_the_state_of_a_device_goes_to_pinned_memory_where_there_is_some(
    monkeypatch: pytest.MonkeyPatch, may_pin: bool
) -> None:
    """It is asked for once, is used again, and copying is waited for; without it ordinary memory does."""
    asked, waited, real_empty = [], [], torch.empty

    def empty(*size: Any, pin_memory: bool = False, **how: Any) -> torch.Tensor:
        if pin_memory:
            asked.append(size)
            if not may_pin:
                raise RuntimeError("no more pages may be locked")
        return real_empty(*size, **how)

    storage = FakeStorage(torch.arange(10, dtype=torch.uint8))
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    real_bytes = _Copying._bytes_of
    monkeypatch.setattr(
        _Copying, "_bytes_of", lambda copying, one: one.real if one is storage else real_bytes(copying, one)
    )
    monkeypatch.setattr(_Copying, "_is_plain", lambda copying, tensor: True)

    buffers: dict[tuple[int, bool], list[Any]] = {}
    for _ in range(2):
        copying = _Copying(buffers)
        copying._met = [type("Tensor", (), {"untyped_storage": lambda tensor: storage})()]
        buffers = copying.copy_storages()

    assert [(10,)] == asked
    assert [storage.device] * 2 == waited
    assert [(10, True)] == list(buffers)
    assert list(range(10)) == list(bytes(buffers[10, True][0]))


def test_a_default_device_elsewhere_changes_nothing() -> None:
    """A program may let torch make new tensors on another device."""
    with torch.device("meta"):
        dense = torch.ones(2, device="cpu")
        copied = Staging().copy([dense, dense.to_sparse(), dense.to_sparse().requires_grad_()])

    assert ["cpu"] * 3 == [one.device.type for one in copied]
    assert [[1, 1]] * 3 == [one.to_dense().tolist() for one in copied]


def test_what_is_copied_as_a_file_is_does_not_go_back_to_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file names the device of each storage, and loading would bring it there, where there may be no room for another."""
    brought: list[str] = []
    elsewhere = [
        (-1, lambda storage: "elsewhere:0", lambda storage, where: brought.append(where) or storage),
        *torch.serialization._package_registry,
    ]
    monkeypatch.setattr(torch.serialization, "_package_registry", elsewhere)
    sparse = torch.eye(2).to_sparse()
    torch.load(io.BytesIO(saved(sparse)), weights_only=True)
    assert {"elsewhere:0"} == set(brought)
    brought.clear()
    copied = Staging().copy(sparse)

    assert "elsewhere:0" not in brought
    assert [[1, 0], [0, 1]] == copied.to_dense().tolist()


def test_saves_before_and_behind_are_the_same_file(tmp_path: Path) -> None:
    """Of the same state, optimizer and all, a save in the background publishes the bytes of one that is waited for."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    contents = []
    for step in (1, 2, 3):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        for blocking in (True, False):
            with CheckpointManager(tmp_path / str(blocking)) as manager:
                path = manager.save(step, model, optimizer, rng_state={}, blocking=blocking)
            contents.append(path.read_bytes())

    assert contents[::2] == contents[1::2]
    assert 3 == len(set(contents))

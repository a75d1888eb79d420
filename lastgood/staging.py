"""A copy of a state that later steps cannot change, in memory that is used again for the next copy.

Memory is copied by the storage, as `torch.save` writes it: tensors that share one, tied weights and views of any shape, share
one copy, and a file written from the copy has the bytes of one written from the state. Everything that is no tensor goes
through pickle and back, which keeps what pickle keeps: attributes of dictionaries, named tuples, one list in two places.
"""

import copy
import io
import pickle
from typing import Any


class Staging:
    """Makes one copy at a time: the next one takes over the memory of the last one.

    It holds as many bytes as the state has, on the host, from the first copy on; pinned where a device has its tensors in
    its own memory. A storage that was there with the same size before costs no new memory and no page faults.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, bool], list[Any]] = {}

    def copy(self, state: Any) -> Any:
        """The state as it is now, on the CPU. Call again only when the last copy is no longer needed.

        Raises what pickle raises for what cannot be pickled, UnpicklingError for a tensor of a class that torch was not told
        to trust, and RuntimeError of torch when there is no memory.
        """
        copying = _Copying(self._buffers)
        stream = io.BytesIO()
        _Pickler(stream, copying).dump(state)
        self._buffers = copying.copy_storages()
        stream.seek(0)
        return _Unpickler(stream, copying.tensors()).load()

    def clear(self) -> None:
        """Give the memory back."""
        self._buffers = {}


class _Pickler(pickle.Pickler):
    """Leaves tensors out; they are copied otherwise."""

    def __init__(self, stream: io.BytesIO, copying: "_Copying") -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._copying = copying

    def persistent_id(self, value: Any) -> int | None:
        return self._copying.number(value)


class _Unpickler(pickle.Unpickler):
    """Puts the copied tensors in."""

    def __init__(self, stream: io.BytesIO, tensors: list[Any]) -> None:
        super().__init__(stream)
        self._tensors = tensors

    def persistent_load(self, number: int) -> Any:
        return self._tensors[number]


class _Copying:
    """One copy on its way: first every tensor is met, then their storages are copied, then the tensors are built on them."""

    def __init__(self, buffers: dict[tuple[int, bool], list[Any]]) -> None:
        import torch

        self._torch = torch
        self._spare = buffers
        self._numbers: dict[int, int] = {}
        self._met: list[Any] = []
        self._staged: dict[int, Any] = {}

    def number(self, value: Any) -> int | None:
        """The number of a tensor, the same for the same one; None for what is no tensor."""
        if not isinstance(value, self._torch.Tensor):
            return None
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._met)
            self._met.append(value)
        return self._numbers[id(value)]

    def _is_plain(self, tensor: Any) -> bool:
        """Whether a tensor is nothing but a view of a storage that has an address."""
        return (
            type(tensor) in (self._torch.Tensor, self._torch.nn.Parameter)
            and tensor.layout is self._torch.strided
            and tensor.device.type in ("cpu", "cuda")
            and not (tensor.is_quantized or tensor.is_nested or tensor.is_neg())
        )

    def copy_storages(self) -> dict[tuple[int, bool], list[Any]]:
        """Copy the memory of everything met; returns the buffers in use, by size in bytes and whether they are pinned."""
        storages = {one._cdata: one for one in (t.untyped_storage() for t in self._met if self._is_plain(t))}
        in_use: dict[tuple[int, bool], list[Any]] = {}
        missing = []
        for key, storage in storages.items():
            kind = (storage.nbytes(), storage.device.type != "cpu")
            spare = self._spare.get(kind)
            if spare:
                self._staged[key] = spare.pop()
                in_use.setdefault(kind, []).append(self._staged[key])
            else:
                missing.append((key, kind))
        self._spare.clear()  # what fits nothing goes before more is asked for
        for key, kind in missing:
            self._staged[key] = self._fresh(*kind)
            in_use.setdefault(kind, []).append(self._staged[key])
        devices = set()
        for key, storage in storages.items():
            self._bytes_of(self._staged[key]).copy_(self._bytes_of(storage), non_blocking=True)
            devices.add(storage.device)
        for device in devices:
            if device.type == "cuda":
                self._torch.cuda.synchronize(device)
        return in_use

    def _fresh(self, size: int, pinned: bool) -> Any:
        how = {"dtype": self._torch.uint8, "device": "cpu"}
        if pinned:
            try:
                return self._torch.empty(size, pin_memory=True, **how).untyped_storage()
            except RuntimeError:
                pass  # no more memory may be pinned; it is only slower
        return self._torch.empty(size, **how).untyped_storage()

    def _bytes_of(self, storage: Any) -> Any:
        return self._torch.empty(0, dtype=self._torch.uint8, device=storage.device).set_(storage)

    def tensors(self) -> list[Any]:
        """The copies, in the order of their numbers."""
        apart = iter(self._copied_apart([one for one in self._met if not self._is_plain(one)]))
        return [self._built(one) if self._is_plain(one) else next(apart) for one in self._met]

    def _built(self, tensor: Any) -> Any:
        storage = self._staged[tensor.untyped_storage()._cdata]
        built = self._torch.empty(0, dtype=tensor.dtype, device="cpu")
        built.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        if tensor.is_conj():
            built = built.conj()
        if type(tensor) is self._torch.nn.Parameter:
            built = self._torch.nn.Parameter(built, requires_grad=tensor.requires_grad)
        elif tensor.requires_grad:
            built.requires_grad_()
        vars(built).update(copy.deepcopy(vars(tensor)))
        return built

    def _copied_apart(self, tensors: list[Any]) -> list[Any]:
        """Sparse, quantized and meta tensors, those of other classes and of other devices: as they come out of a file."""
        if not tensors:
            return []
        file = io.BytesIO()
        self._torch.save(tensors, file)
        file.seek(0)
        with self._torch.device("cpu"):  # a sparse one is put together where new tensors are made
            copied: list[Any] = self._torch.load(file, map_location="cpu", weights_only=True)
        return copied

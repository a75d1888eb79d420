"""Saving and loading the whole state of a run with torch."""

import os
import random
import signal
import subprocess
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lastgood import (
    CheckpointManager,
    capture_rng_state,
    hashing,
    restore_rng_state,
    safe_load_checkpoint,
    save_checkpoint_atomic,
    verify,
)
from lastgood import publish as publishing
from lastgood.payload import load_plain_state_dict, plain_state_dict
from lastgood.publish import publish
from lastgood.rungs import scan
from lastgood.salvage import salvage
from lastgood.verdict import Kind, Proof
from tests.conftest import flip_bit

ROOT = Path(__file__).parents[2]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 2)
        self.head.weight = torch.nn.Parameter(self.body.weight[:2].detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.dropout(self.body(x), 0.5, True))


def trained(steps: int = 3) -> tuple[Net, torch.optim.Optimizer]:
    """A small model and its optimizer after a few steps."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        advance(model, optimizer)
    return model, optimizer


def advance(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """One step on random data from every generator; returns its loss."""
    data = torch.randn(4, 8) + float(np.random.rand()) + random.random()
    loss = model(data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def test_a_restored_run_goes_on_exactly_as_the_unbroken_one(tmp_path: Path) -> None:
    """Model, optimizer and every RNG come back: the losses after a restore equal those of the run that went on."""
    model, optimizer = trained()
    manager = CheckpointManager(tmp_path)
    manager.save(3, model, optimizer)
    unbroken = [advance(model, optimizer) for _ in range(5)]
    manager.close()

    other, its_optimizer = trained(1)
    payload = CheckpointManager(tmp_path).load_latest(other, its_optimizer)
    assert payload is not None
    assert 3 == payload["iter_num"]
    assert unbroken == [advance(other, its_optimizer) for _ in range(5)]


def test_leaving_the_optimizer_out_is_noticed_in_the_losses(tmp_path: Path) -> None:
    """Without its moments the optimizer takes other steps: that is why they are saved."""
    model, optimizer = trained()
    manager = CheckpointManager(tmp_path)
    manager.save(3, model, optimizer)
    unbroken = [advance(model, optimizer) for _ in range(5)]
    manager.close()

    other, its_optimizer = trained(0)
    CheckpointManager(tmp_path).load_latest(other)
    assert unbroken != [advance(other, its_optimizer) for _ in range(5)]


def test_the_payload_has_nanogpts_keys_and_ours(tmp_path: Path) -> None:
    """nanoGPT's own scripts find their six keys; ours follow."""
    manager = CheckpointManager(tmp_path)
    manager.save(1, *trained(), extra={"model_args": {"n_layer": 2}, "best_val_loss": 1.5, "config": {"a": 1}})
    manager.close()
    payload = torch.load(tmp_path / "ckpt_00000001.pt", weights_only=True)

    assert {"model", "optimizer", "model_args", "iter_num", "best_val_loss", "config"} <= payload.keys()
    assert ("lastgood", 1, {"n_layer": 2}) == (payload["format"], payload["version"], payload["model_args"])
    assert {"run_id", "scheduler", "scaler", "rng", "data"} <= payload.keys()


def test_every_generator_is_restored() -> None:
    """torch, numpy and Python continue their sequences from a captured state."""
    state = capture_rng_state()
    first = (torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random(), random.gauss(0, 1))

    assert {"torch", "numpy", "python"} <= set(restore_rng_state(state))
    assert first == (torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random(), random.gauss(0, 1))


def test_a_second_gaussian_survives(tmp_path: Path) -> None:
    """numpy and Python each keep one Gaussian back; it is part of the state, also through a file."""
    np.random.randn(1)
    random.gauss(0, 1)
    save_checkpoint_atomic({"rng": capture_rng_state()}, tmp_path / "rng_1.pt")
    first = (np.random.randn(2).tolist(), random.gauss(0, 1))
    restore_rng_state(safe_load_checkpoint(tmp_path)["rng"])

    assert first == (np.random.randn(2).tolist(), random.gauss(0, 1))


def test_old_ones_go_only_once_the_new_one_reads_back(tmp_path: Path) -> None:
    """The newest three stay; numbers decide, not names."""
    manager = CheckpointManager(tmp_path, max_to_keep=3)
    for step in (8000, 9000, 10000, 11000):
        manager.save(step, *trained(1))
    manager.close()

    assert [11000, 10000, 9000] == [rung.step for rung in scan(tmp_path)]


def test_bad_ones_do_not_push_out_good_ones(tmp_path: Path) -> None:
    """Retention counts proven snapshots: corrupt ones neither count nor go."""
    manager = CheckpointManager(tmp_path, max_to_keep=2)
    for step in (1, 2, 3):
        manager.save(step, *trained(1))
    manager.wait()
    flip_bit(tmp_path / "ckpt_00000003.pt", 3000)
    manager.save(4, *trained(1))
    manager.close()

    assert [4, 3, 2] == [rung.step for rung in scan(tmp_path)]


def test_other_peoples_files_are_never_pruned(tmp_path: Path) -> None:
    """Only names that the manager gives are its to remove."""
    save_checkpoint_atomic({"step": 1}, tmp_path / "best_1.pt")
    manager = CheckpointManager(tmp_path, max_to_keep=2)
    for step in range(2, 6):
        manager.save(step, *trained(1))
    manager.close()

    assert (tmp_path / "best_1.pt").exists()


def test_a_save_that_does_not_read_back_prunes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the storage changed the bytes, everything older stays, and the next call says so."""
    manager = CheckpointManager(tmp_path, max_to_keep=2)
    for step in (1, 2):
        manager.save(step, *trained(1))
    manager.wait()
    real = publishing._Whole.write
    monkeypatch.setattr(publishing._Whole, "write", lambda raw, view: real(raw, memoryview(bytes(view)[::-1])))
    manager.save(3, *trained(1))

    with pytest.raises(OSError, match=r"does not read back as it was written .*nothing was pruned"):
        manager.close()
    assert [3, 2, 1] == [rung.step for rung in scan(tmp_path)]


@pytest.mark.parametrize("supervised", [True, False])
def test_under_a_supervisor_nothing_is_pruned_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supervised: bool
) -> None:
    """One process prunes: the supervisor, on its own verdicts."""
    monkeypatch.setenv("LASTGOOD_PRUNES", "1" if supervised else "")
    manager = CheckpointManager(tmp_path, max_to_keep=2)
    for step in (1, 2, 3, 4):
        manager.save(step, *trained(1))
    manager.close()

    assert (4 if supervised else 2) == len(scan(tmp_path))


def test_fewer_than_two_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Keeping one leaves nothing to fall back to."""
    with pytest.raises(ValueError, match="nothing to fall back to"):
        CheckpointManager(tmp_path, max_to_keep=1)


def test_an_empty_directory_has_nothing_to_load(tmp_path: Path) -> None:
    """None only where there never was one."""
    assert CheckpointManager(tmp_path / "new").load_latest() is None


def test_a_directory_of_bad_ones_is_an_error_that_names_each(tmp_path: Path) -> None:
    """No silent fresh start: every candidate is named with its reason."""
    for step in (1, 2):
        save_checkpoint_atomic({"step": step}, tmp_path / f"ckpt_{step:08d}.pt")
        path = tmp_path / f"ckpt_{step:08d}.pt"
        path.write_bytes(path.read_bytes()[: 100 * step])

    with pytest.raises(RuntimeError, match=r"ckpt_00000002\.pt is truncated .*ckpt_00000001\.pt is truncated"):
        safe_load_checkpoint(tmp_path)
    with pytest.raises(RuntimeError, match="truncated"):
        CheckpointManager(tmp_path).load_latest()


def test_loading_falls_back_to_the_newest_good_one(tmp_path: Path) -> None:
    """A flipped bit that torch.load would not notice sends the load one step back."""
    for step in (9000, 10000):
        save_checkpoint_atomic({"step": step, "w": torch.ones(1000)}, tmp_path / f"ckpt_{step}.pt")
    flip_bit(tmp_path / "ckpt_10000.pt", 2000)

    assert 10000 == torch.load(tmp_path / "ckpt_10000.pt", weights_only=True)["step"]
    assert 9000 == safe_load_checkpoint(tmp_path)["step"]


def test_a_non_blocking_save_is_the_state_at_the_call(tmp_path: Path) -> None:
    """What the optimizer does after the call is not in the snapshot."""
    model, optimizer = trained()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    manager = CheckpointManager(tmp_path)
    manager.save(3, model, optimizer, blocking=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    manager.close()

    saved = safe_load_checkpoint(tmp_path)["model"]
    assert all(torch.equal(before[key], saved[key]) for key in before)


def test_tied_weights_are_copied_once(tmp_path: Path) -> None:
    """What shares storage before a non-blocking save shares it after."""
    model, optimizer = trained()
    model.head.weight = model.body.weight
    manager = CheckpointManager(tmp_path)
    manager.save(1, model, optimizer, blocking=False)
    manager.close()

    saved = safe_load_checkpoint(tmp_path)["model"]
    assert saved["head.weight"].data_ptr() == saved["body.weight"].data_ptr()


def test_a_failed_non_blocking_save_is_raised_at_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure is not lost with its thread."""
    manager = CheckpointManager(tmp_path)
    manager.save(1, *trained(1))
    manager.wait()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("lastgood.checkpoint.publish", full)
        manager.save(2, *trained(1), blocking=False)
        with pytest.raises(OSError, match="No space left"):
            manager.save(3, *trained(1))
    manager.save(4, *trained(1))
    manager.close()
    assert [4, 1] == [rung.step for rung in scan(tmp_path)]


def test_a_failed_non_blocking_save_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has it when it happens: the next call may be an hour away, or never come."""
    manager = CheckpointManager(tmp_path)
    monkeypatch.setattr("lastgood.checkpoint.publish", failing)
    manager.save(2, *trained(1), blocking=False)
    manager._worker.join()

    assert [("ERROR", True)] == [
        (one.levelname, "ckpt_00000002.pt: [Errno 28]" in one.message) for one in caplog.records
    ]
    with pytest.raises(OSError, match="No space left"):
        manager.close()


def failing(*_: object) -> None:
    """A publication on a full disk."""
    raise OSError(28, "No space left on device")


def test_a_process_that_ends_without_closing_says_what_failed_and_finishes_what_did_not(tmp_path: Path) -> None:
    """A save in the background of the last line of a script is published and confirmed; one that fails is not silent."""
    torch.save({"w": torch.ones(2_000_000)}, tmp_path / "ckpt_00000001.pt")
    code = f"""
import torch, lastgood.checkpoint as checkpoint
model = torch.nn.Linear(600, 2000)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
manager = checkpoint.CheckpointManager({str(tmp_path)!r}, max_to_keep=2)
manager.save(2, model, optimizer, blocking=False)
manager.wait()
other = checkpoint.CheckpointManager({str(tmp_path / "other")!r})
real = checkpoint.publish
def publish(path, write):
    if "other" in str(path):
        raise OSError(28, "No space left on device")
    return real(path, write)
checkpoint.publish = publish
other.save(9, model, optimizer, blocking=False)
manager.save(3, model, optimizer, blocking=False)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=100)
    where = tmp_path / "other" / "ckpt_00000009.pt"

    assert (0, f"in the background of saving {where}: [Errno 28] No space left on device\n") == (
        ended.returncode,
        ended.stderr,
    )
    assert [(3, Kind.HEALTHY), (2, Kind.HEALTHY)] == [(rung.step, verify(rung.path).kind) for rung in scan(tmp_path)]


def test_a_second_save_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at a time would share the memory that the state is copied to."""
    goes_on, order = threading.Event(), []

    def slow(path: Path, write: Any) -> Any:
        order.append(f"{Path(path).name} begins")
        goes_on.wait(60)
        done = publish(path, write)
        order.append(f"{Path(path).name} ends")
        return done

    monkeypatch.setattr("lastgood.checkpoint.publish", slow)
    manager = CheckpointManager(tmp_path)
    manager.save(1, *trained(1), blocking=False)
    threading.Timer(0.2, goes_on.set).start()
    manager.save(2, *trained(1), blocking=False)
    manager.close()

    assert [f"ckpt_0000000{step}.pt {what}" for step in (1, 2) for what in ("begins", "ends")] == order


def test_where_no_thread_can_be_had_the_background_is_done_at_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on threads costs time, not snapshots."""

    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    manager = CheckpointManager(tmp_path, max_to_keep=2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        for step in (1, 2, 3):
            manager.save(step, *trained(1), blocking=step != 2)
    manager.close()

    assert [3, 2] == [rung.step for rung in scan(tmp_path)]


def test_the_end_of_a_with_block_closes(tmp_path: Path) -> None:
    """The background is finished and the directory is free for the next writer."""
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, *trained(1), blocking=False)

    assert [1] == [rung.step for rung in scan(tmp_path)]
    with CheckpointManager(tmp_path) as other:
        other.save(2, *trained(1))


def test_what_ended_a_with_block_is_not_hidden_by_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block's own error comes out; without one, that of the background does."""
    monkeypatch.setattr("lastgood.checkpoint.publish", failing)

    def block(value: int) -> None:
        with CheckpointManager(tmp_path) as manager:
            manager.save(1, *trained(1), blocking=False)
            assert 1 // value

    with pytest.raises(ZeroDivisionError):
        block(0)
    with pytest.raises(OSError, match="No space left"):
        block(1)


@pytest.mark.parametrize(
    ("step", "error", "says"),
    [
        (-1, ValueError, "from 0 to 9,223,372,036,854,775,807, not -1"),
        (1 << 63, ValueError, "not 9,223,372,036,854,775,808"),
        ("7", TypeError, r"not '7' \(str\)"),
        (True, TypeError, r"not True \(bool\)"),
        (7.0, TypeError, r"not 7\.0 \(float\)"),
        (None, TypeError, r"not None \(NoneType\)"),
    ],
)
def test_a_step_that_is_none_is_refused_with_the_reason(
    tmp_path: Path, step: Any, error: type[Exception], says: str
) -> None:
    """No name is made of it, and nothing is touched."""
    with pytest.raises(error, match=says):
        CheckpointManager(tmp_path / "new").save(step, *trained(1))
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("step", [np.int64(7), torch.tensor(7), 0, (1 << 63) - 1])
def test_any_whole_number_is_a_step(tmp_path: Path, step: Any) -> None:
    """Whoever counts with numpy or torch saves under a plain number."""
    with CheckpointManager(tmp_path) as manager:
        path = manager.save(step, *trained(1))

    assert (int(step), int) == ((saved := safe_load_checkpoint(tmp_path))["iter_num"], type(saved["iter_num"]))
    assert f"ckpt_{int(step):08d}.pt" == path.name


def test_a_snapshot_with_parts_missing_restores_the_others_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a salvage: the optimizer given stays as it is, which is logged; without a model there is nothing to go on from."""
    model, optimizer = trained()
    save_checkpoint_atomic({"model": model.state_dict(), "rng": {"python": None}}, tmp_path / "ckpt_1.pt")
    other, its_optimizer = trained(1)
    before = its_optimizer.state_dict()["state"][0]["exp_avg"].clone()
    CheckpointManager(tmp_path).load_latest(other, its_optimizer)

    assert torch.equal(model.body.weight, other.body.weight)
    assert torch.equal(before, its_optimizer.state_dict()["state"][0]["exp_avg"])
    assert ["the snapshot holds no optimizer that is whole: the one given stays as it is"] == [
        one.message for one in caplog.records
    ]

    save_checkpoint_atomic({"optimizer": optimizer.state_dict(), "step": 2}, tmp_path / "ckpt_2.pt")
    with pytest.raises(RuntimeError, match="holds no model; it has optimizer, step"):
        CheckpointManager(tmp_path).load_latest(other)


@pytest.mark.parametrize("lost", ["torch", "numpy", "python"])
def test_generators_that_are_there_are_restored_without_the_others(lost: str) -> None:
    """A state that lacks one gives back the rest, and names them."""
    state = capture_rng_state()
    del state[lost]
    first = {"torch": torch.rand(2).tolist(), "numpy": np.random.rand(2).tolist(), "python": [random.random()]}
    restored = restore_rng_state(state)
    again = {"torch": torch.rand(2).tolist(), "numpy": np.random.rand(2).tolist(), "python": [random.random()]}

    assert [name for name in ("torch", "numpy", "python") if name != lost] == restored
    assert restored == [name for name in first if first[name] == again[name]]


def test_a_generator_that_cannot_be_restored_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """States of more CUDA devices than there are, and a state of numpy that lost its tensor, are another sequence."""
    state = capture_rng_state()
    state["cuda"] = [torch.zeros(16, dtype=torch.uint8)] * 99
    del state["numpy"]["keys"]

    assert ["torch", "python"] == restore_rng_state(state)
    assert ["not restored of the random generators: cuda, numpy"] == [one.message for one in caplog.records]


def test_modules_learn_the_version_of_what_they_load_through_any_wrapper() -> None:
    """`_metadata` goes along under plain names and comes back under those of the model."""

    class Versioned(torch.nn.Linear):
        _version = 3

        def _load_from_state_dict(self, state: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
            self.met = local_metadata.get("version")
            super()._load_from_state_dict(state, prefix, local_metadata, *rest)

    saved = plain_state_dict(torch.nn.DataParallel(torch.nn.Sequential(Versioned(2, 2))))
    model = torch.nn.DataParallel(torch.nn.Sequential(Versioned(2, 2)))
    load_plain_state_dict(model, saved)

    assert {"", "0"} == set(saved._metadata)
    assert 3 == model.module[0].met


@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module.", "_orig_mod.module.", "module._orig_mod."])
def test_wrappers_leave_no_trace(prefix: str) -> None:
    """A state saved under any wrappers loads into the plain model, with nothing missing and nothing unexpected."""
    model, other = Net(), Net()
    state = OrderedDict((prefix + key, value) for key, value in model.state_dict().items())
    load_plain_state_dict(other, state)

    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_partial_state_is_refused() -> None:
    """Loading never passes over missing keys in silence."""
    state = Net().state_dict()
    del state["head.bias"]
    with pytest.raises(RuntimeError, match="Missing key"):
        load_plain_state_dict(Net(), state)


def test_one_process_saves_at_a_time(tmp_path: Path) -> None:
    """A second writer is refused and told who holds the directory; the lock goes with its holder."""
    holder = CheckpointManager(tmp_path)
    holder.save(1, *trained(1))
    holder.wait()
    other = CheckpointManager(tmp_path)
    with pytest.raises(RuntimeError, match=f"written by process {os.getpid()}"):
        other.save(2, *trained(1))
    holder.close()
    other.save(2, *trained(1))
    other.close()


def test_forked_children_do_not_keep_the_lock(tmp_path: Path) -> None:
    """A DataLoader worker that outlives its trainer does not hold the directory."""
    code = f"""
import os, sys, time, torch
sys.path.insert(0, {str(ROOT)!r})
from lastgood import CheckpointManager
model = torch.nn.Linear(1, 1)
manager = CheckpointManager({str(tmp_path)!r})
manager.save(1, model, torch.optim.SGD(model.parameters(), 0.1))
manager.wait()
if os.fork() == 0:
    os.close(1)
    time.sleep(60)
    os._exit(0)
os._exit(0)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        assert 0 == parent.wait(60)
        manager = CheckpointManager(tmp_path)
        manager.save(2, *trained(1))
        manager.close()
    finally:
        os.killpg(parent.pid, 9)


def test_partials_of_a_killed_writer_are_swept_at_the_next_save(tmp_path: Path) -> None:
    """A restart leaves no stray partial behind."""
    (tmp_path / ".ckpt_00000009.pt.partial-1-0123abcd").write_bytes(b"half")
    manager = CheckpointManager(tmp_path)
    manager.save(1, *trained(1))
    manager.close()

    assert [] == [path.name for path in tmp_path.iterdir() if ".partial-" in path.name]


def test_a_leftover_that_cannot_be_swept_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It costs no save, and whoever wonders about it finds its name."""
    (tmp_path / ".ckpt_00000009.pt.partial-1-0123abcd").write_bytes(b"half")
    (tmp_path / "ckpt_00000009.pt.sha256").mkdir()
    with CheckpointManager(tmp_path) as manager:
        path = manager.save(1, *trained(1))

    assert Kind.HEALTHY is verify(path).kind
    [said] = caplog.messages
    assert said.startswith(
        "could not remove .ckpt_00000009.pt.partial-1-0123abcd, which a killed writer left: [Errno 21]"
    )


def quantized() -> torch.Tensor:
    """A quantized tensor; torch warns that it will stop making them, but files with them stay."""
    with warnings.catch_warnings(action="ignore"):
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


SHAPES: dict[str, Any] = {
    "nested": {"a": [torch.ones(3), {"b": (torch.zeros(2, 2), 1, None, "x", True, 2.5)}]},
    "tied": [w := torch.randn(4, 4), w, w[1:]],
    "floats": [torch.ones(3).to(d) for d in (torch.float64, torch.float16, torch.bfloat16, torch.complex64)],
    "integers": [torch.ones(3).to(d) for d in (torch.int8, torch.bool, torch.int64)],
    "float8": torch.ones(3).to(torch.float8_e4m3fn),
    "numpy scalar": np.float64(1.5),
    "numpy array": np.arange(5),
    "quantized": quantized(),
    "sparse": torch.eye(3).to_sparse(),
    "empty": torch.empty(0),
    "nothing": {},
    "scalar": torch.tensor(1),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "module": torch.nn.Linear(2, 2),
    "unsigned": torch.arange(3).to(torch.uint16),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # torch says that quantized tensors will go; files with them will not
@pytest.mark.parametrize("kind", sorted(SHAPES))
@pytest.mark.parametrize("sealed", [True, False])
def test_what_torch_writes_is_never_rejected(tmp_path: Path, kind: str, sealed: bool) -> None:
    """Every kind of content that people save is healthy with a seal and intact without."""
    path = tmp_path / "ckpt_1.pt"
    if sealed:
        publish(path, lambda file: torch.save({"value": SHAPES[kind]}, file))
    else:
        torch.save({"value": SHAPES[kind]}, path)

    assert ((Kind.HEALTHY, Proof.SEAL) if sealed else (Kind.INTACT, Proof.CRC)) == (
        verify(path).kind,
        verify(path).proof,
    )


def test_what_torch_refuses_is_never_proven(tmp_path: Path) -> None:
    """200 seeded damages: whenever torch.load refuses the file, so does the verdict; and what passes holds the same tensors."""
    generator = random.Random(11)
    path = tmp_path / "ckpt_1.pt"
    torch.save({"w": torch.randn(300), "step": 1}, path)
    whole, original = path.read_bytes(), torch.load(path, weights_only=True)
    for _ in range(200):
        data = bytearray(whole)
        match generator.randrange(3):
            case 0:
                data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
            case 1:
                del data[generator.randrange(len(data)) :]
            case 2:
                start = generator.randrange(len(data))
                data[start : start + 64] = bytes(len(data[start : start + 64]))
        path.write_bytes(data)
        if verify(path).proven:
            loaded = torch.load(path, weights_only=True)
            assert torch.equal(original["w"], loaded["w"])
            assert original["step"] == loaded["step"]


def test_a_deep_look_finds_nan_and_names_the_tensor(tmp_path: Path) -> None:
    """Bytes that are good and weights that are not: poisoned, in the optimizer's moments too; other files say so."""
    good = {"model": {"w": torch.ones(1000)}, "optimizer": {"state": {0: {"exp_avg": torch.zeros(10)}}}}
    save_checkpoint_atomic(good, tmp_path / "ckpt_1.pt")
    assert (Kind.HEALTHY, True) == ((v := verify(tmp_path / "ckpt_1.pt", deep=True)).kind, "no NaN" in v.reason)

    good["optimizer"]["state"][0]["exp_avg"][3] = float("nan")
    save_checkpoint_atomic(good, tmp_path / "ckpt_2.pt")
    assert Kind.HEALTHY is verify(tmp_path / "ckpt_2.pt").kind
    found = verify(tmp_path / "ckpt_2.pt", deep=True)
    assert (Kind.POISONED, True) == (found.kind, "1 NaN in optimizer.state.0.exp_avg (float32)" in found.reason)

    (tmp_path / "state_3.json").write_text("{}")
    assert "not looked into" in verify(tmp_path / "state_3.json", deep=True).reason


@pytest.mark.filterwarnings("ignore")  # of what torch leaves behind when it is interrupted
@pytest.mark.parametrize("mistake", [KeyboardInterrupt(), SystemExit(143)])
def test_a_signal_in_mid_save_comes_out_as_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: BaseException
) -> None:
    """Ctrl-C and a handler that exits are no RuntimeError of torch's; the old snapshot stays, no partial and no thread does."""
    monkeypatch.setattr(hashing, "CHUNK_BYTES", 512)
    model, optimizer = trained(1)
    manager = CheckpointManager(tmp_path)
    manager.save(1, model, optimizer)
    manager.wait()
    before = {path.name: path.read_bytes() for path in tmp_path.glob("ckpt*")}
    real, calls, due = publishing._Whole.write, [], [0]

    def write(raw: Any, view: memoryview) -> int:
        calls.append(None)
        if len(calls) == due[0]:
            os.kill(os.getpid(), signal.SIGUSR1)
        return real(raw, view)

    monkeypatch.setattr(publishing._Whole, "write", write)
    manager.save(2, model, optimizer)
    manager.wait()
    (tmp_path / "ckpt_00000002.pt").unlink()
    (tmp_path / "ckpt_00000002.pt.sha256").unlink()
    points = len(calls)
    for due[0] in range(1, points + 1):
        calls.clear()
        with signalled(mistake), pytest.raises(type(mistake)) as caught:
            manager.save(1, model, optimizer)
        assert mistake is caught.value
        assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    manager.close()
    assert points > 10
    assert "lastgood-beside" not in {thread.name for thread in threading.enumerate()}


@contextmanager
def signalled(mistake: BaseException) -> Iterator[None]:
    """Inside, SIGUSR1 raises it."""

    def handler(_number: int, _frame: object) -> None:
        raise mistake

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


class Odd(torch.nn.Module):
    """A model with a part that has the name of a wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(2))
        self.module = torch.nn.Linear(2, 2, bias=False)


@pytest.mark.parametrize("wrap", [lambda model: model, torch.nn.DataParallel], ids=["plain", "parallel"])
def test_a_part_that_is_called_like_a_wrapper_is_none(wrap: Any, tmp_path: Path) -> None:
    """Only a name before every key is a wrapper's: no two weights become one."""
    model, other = Odd(), Odd()
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, wrap(model), torch.optim.AdamW(model.parameters()))
        manager.load_latest(other)

    assert {"weight", "module.weight"} == set(plain_state_dict(wrap(model)))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_compiled_part_leaves_no_trace() -> None:
    """Compiling layer by layer puts its name into the middle of keys."""
    state = OrderedDict((key.replace(".", "._orig_mod.", 1), value) for key, value in Net().state_dict().items())
    load_plain_state_dict(Net(), state)

    assert any("._orig_mod." in key for key in state)


def test_a_load_waits_for_the_save_in_the_background(tmp_path: Path) -> None:
    """What was saved, if only a moment ago, is there."""
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, *trained(1), blocking=False)
        payload = manager.load_latest()

    assert payload is not None
    assert 1 == payload["iter_num"]


def test_a_relative_directory_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that changes its folder meanwhile goes on saving in the old one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with CheckpointManager("out") as manager:
        manager.save(1, *trained(1), blocking=False)
        monkeypatch.chdir(tmp_path / "elsewhere")
        manager.save(2, *trained(2))

    assert [2, 1] == [rung.step for rung in scan(tmp_path / "out")]


def test_other_peoples_files_are_not_loaded_for_the_managers(tmp_path: Path) -> None:
    """Numbers beside the snapshots, or another trainer's higher step, are not what this run saved."""
    with CheckpointManager(tmp_path) as manager:
        manager.save(100, *trained(1))
        np.savez(tmp_path / "metrics_00200.npz", loss=np.zeros(3))
        torch.save({"iter_num": 300}, tmp_path / "step_300.pt")
        payload = manager.load_latest()
    (tmp_path / "step_300.pt").unlink()

    assert payload is not None
    assert 100 == payload["iter_num"] == safe_load_checkpoint(tmp_path)["iter_num"]


def test_a_key_of_the_snapshots_own_is_refused(tmp_path: Path) -> None:
    """`version` is a word that people choose, and another version than ours would make every snapshot unusable."""
    with CheckpointManager(tmp_path) as manager, pytest.raises(ValueError, match="extra may not hold rng, version"):
        manager.save(1, *trained(1), extra={"version": 2, "rng": {}, "mine": 1})
    assert [] == scan(tmp_path)


def test_what_was_salvaged_can_be_loaded_by_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The model is whole and restored; of the optimizer a part is lost, so the one given stays as it is, and that is said."""
    model, optimizer = trained(3)
    with CheckpointManager(tmp_path) as manager:
        path = manager.save(1, model, optimizer, extra={"big": torch.zeros(100)})
    data = path.read_bytes()
    made = salvage(cut(tmp_path / "cut.pt", data, model), tmp_path / "out.pt")
    assert (True, False) == (made.model_whole, made.optimizer_whole)

    other, fresh = trained(1)
    kept = fresh.state_dict()["state"][0]["step"].item()
    with CheckpointManager(tmp_path / "other") as manager:
        manager.load(tmp_path / "out.pt", other, fresh)

    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert kept == fresh.state_dict()["state"][0]["step"].item()
    assert "the snapshot holds no optimizer that is whole: the one given stays as it is" in caplog.messages


def cut(path: Path, data: bytes, model: torch.nn.Module) -> Path:
    """The file cut off right behind the bytes of the model's last tensor."""
    last = list(model.state_dict().values())[-1].numpy().tobytes()
    path.write_bytes(data[: data.index(last) + len(last) + 20])
    return path

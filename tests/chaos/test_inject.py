"""The injector against a real process: what it claims to have done was done, however quick the supervisor is."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lastgood.contract import STATE_DIR, STATUS_FILE
from lastgood.naming import partial_name
from supervisor.chaos import inject, oracle
from supervisor.chaos.plan import FaultKind, PlannedFault
from supervisor.proc import Identity, identity_of, send_signal


@contextmanager
def training(directory: Path, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that a status says is the trainer, at step 20."""
    (directory / STATE_DIR).mkdir()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as trainer:
        identity = identity_of(trainer.pid)
        assert identity is not None
        status = {"incarnation": 1, "trainer_pid": trainer.pid, "trainer_start_ticks": identity.start_ticks, **more}
        (directory / STATE_DIR / STATUS_FILE).write_text(json.dumps(status))
        (directory / "metrics.jsonl").write_text('{"step": 20, "loss": 1.0, "incarnation": 1}\n')
        yield trainer


def test_a_kill_waits_for_a_next_trainer_that_is_just_being_started(tmp_path: Path) -> None:
    """What a restart from standby is like can be told only of kills that find one."""
    with training(tmp_path, standby={"pid": 1, "ready": False, "memory_bytes": 0}) as trainer:
        looks = 0

        def ready_at_the_third_look() -> bool:
            nonlocal looks
            looks += 1
            if looks == 3:
                assert trainer.poll() is None
                path = tmp_path / STATE_DIR / STATUS_FILE
                path.write_text(path.read_text().replace("false", "true"))
            return True

        injector = inject.Injector(oracle.Snapshots(tmp_path), ready_at_the_third_look, lambda: None)
        done = injector.inject(PlannedFault("f1", FaultKind.KILL, 20))

        assert (3, f"process {trainer.pid} is dead") == (looks, done.proof)


def test_a_kill_in_a_save_is_proven_though_the_partial_is_swept_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor that notices the death first may take the half written file away before the injector looks again."""
    partial = tmp_path / partial_name("ckpt_00000020.pt")
    partial.write_bytes(b"half")
    with training(tmp_path) as trainer:

        def sweeps_first(process: Identity, number: int) -> bool:
            done = send_signal(process, number)
            if number == signal.SIGKILL:
                trainer.wait()
                partial.unlink()
            return done

        monkeypatch.setattr(inject, "send_signal", sweeps_first)
        planned = PlannedFault("f1", FaultKind.KILL_WHILE_SAVING, 20, share=0.5)
        done = inject.Injector(oracle.Snapshots(tmp_path), lambda: True, lambda: None).inject(planned)

        how_far = "half written, 4 of about 0 bytes"
        assert f"process {trainer.pid} was stopped with {partial.name} {how_far}, and is dead" == done.proof
        assert -signal.SIGKILL == trainer.returncode
        assert [] == [name for name in os.listdir(tmp_path) if name.startswith(".ckpt")]

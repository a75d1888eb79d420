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

from lastgood.contract import FAULTS_FILE, STATE_DIR, STATUS_FILE
from lastgood.naming import partial_name
from supervisor.chaos import inject, oracle
from supervisor.chaos.done import TooLateError
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
        (directory / "ckpt_00000010.pt").write_bytes(b"")
        yield trainer


def test_nothing_is_done_before_there_is_a_snapshot(tmp_path: Path) -> None:
    """A run that starts anew after a kill proves nothing; one that never saves has no fault done to it at all."""
    with training(tmp_path) as trainer:
        (tmp_path / "ckpt_00000010.pt").unlink()
        looks = iter([True, True, False])
        injector = inject.Injector(oracle.Snapshots(tmp_path), lambda: next(looks), lambda: None)
        with pytest.raises(TooLateError):
            injector.inject(PlannedFault("f1", FaultKind.KILL, 20))

        assert None is trainer.poll()
        trainer.kill()


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


def test_a_save_that_was_over_is_not_counted_and_the_next_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer was quicker than the one who stopped it: it goes on, and is killed in a later save."""
    first, second = (tmp_path / partial_name(f"ckpt_000000{step}.pt") for step in (20, 30))
    first.write_bytes(b"half")
    with training(tmp_path) as trainer:

        def too_late_once(process: Identity, number: int) -> bool:
            if number == signal.SIGSTOP:
                first.unlink(missing_ok=True)
            done = send_signal(process, number)
            if number == signal.SIGCONT:
                second.write_bytes(b"half")
            if number == signal.SIGKILL:
                trainer.wait()
            return done

        monkeypatch.setattr(inject, "send_signal", too_late_once)
        injector = inject.Injector(oracle.Snapshots(tmp_path), lambda: True, lambda: None)
        done = injector.inject(PlannedFault("f1", FaultKind.KILL_WHILE_SAVING, 20))

        assert f"process {trainer.pid} was stopped with {second.name} half written" in done.proof
        announced = (tmp_path / STATE_DIR / FAULTS_FILE).read_text().splitlines()
        assert 1 == len(announced)

"""The injector against a real process: what it claims to have done was done, however quick the supervisor is."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lastgood.contract import STATE_DIR, STATUS_FILE
from lastgood.naming import partial_name
from supervisor.chaos import inject, oracle
from supervisor.chaos.plan import FaultKind, PlannedFault
from supervisor.proc import Identity, identity_of, send_signal


def test_a_kill_in_a_save_is_proven_though_the_partial_is_swept_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor that notices the death first may take the half written file away before the injector looks again."""
    partial = tmp_path / partial_name("ckpt_00000020.pt")
    partial.write_bytes(b"half")
    (tmp_path / STATE_DIR).mkdir()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as trainer:
        identity = identity_of(trainer.pid)
        assert identity is not None
        status = {"incarnation": 1, "trainer_pid": trainer.pid, "trainer_start_ticks": identity.start_ticks}
        (tmp_path / STATE_DIR / STATUS_FILE).write_text(json.dumps(status))
        (tmp_path / "metrics.jsonl").write_text('{"step": 20, "loss": 1.0, "incarnation": 1}\n')

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

"""An installed wheel works elsewhere, and without extras brings no torch."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.bench import ROOT, TRAINER

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]


def ran(*words: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))} | more
    return subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_a_wheel_without_extras_supervises_and_brings_no_torch(tmp_path: Path) -> None:
    """Built here, installed into a new environment, run from another folder: the whole loop works."""
    wheels, home = tmp_path / "wheels", tmp_path / "home"
    home.mkdir()
    built = ran(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", wheels, ROOT, cwd=tmp_path)
    assert 0 == built.returncode, built.stderr
    venv.create(tmp_path / "venv", with_pip=True)
    python, lastgood = tmp_path / "venv" / "bin" / "python", tmp_path / "venv" / "bin" / "lastgood"
    wheel = next(wheels.glob("lastgood-*.whl"))
    installed = ran(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    assert 0 == installed.returncode, installed.stderr

    listed = json.loads(ran(python, "-m", "pip", "list", "--format=json", cwd=home).stdout)
    assert not {"torch", "numpy"} & {package["name"].lower() for package in listed}
    assert 0 == ran(lastgood, "--version", cwd=home).returncode
    words = ["run", "--checkpoints", "out", "--resume", "--from={snapshot}", "--set", "run.final_step=20", "--"]
    done = ran(lastgood, *words, python, TRAINER, "out", "--steps=20", "--habit=die:12", cwd=home)
    assert 0 == done.returncode, done.stdout + done.stderr
    assert ["0", "10"] == (home / "out" / "starts.txt").read_text().split()
    assert 0 == ran(lastgood, "verify", "out", cwd=home).returncode
    refused = ran(python, "-m", "trainer", ROOT / "config" / "trainer" / "tiny.yaml", cwd=home)
    assert (2, 1) == (refused.returncode, len(refused.stderr.strip().splitlines())), refused.stderr
    assert "lastgood[trainer]" in refused.stderr

"""The unit file: what the service manager does must fit what the supervisor does."""

import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.bench import ROOT

UNIT = ROOT / "systemd" / "lastgood@.service"


@pytest.fixture
def unit() -> configparser.ConfigParser:
    """The sections of the unit, keys as they are written."""
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str
    parsed.read(UNIT)
    return parsed


def test_starts_are_not_counted(unit: configparser.ConfigParser) -> None:
    """Backing off and giving up are the supervisor's: ten seconds lie between two starts, and no number of them is too high."""
    assert 10 <= int(unit["Service"]["RestartSec"])
    assert "0" == unit["Unit"]["StartLimitIntervalSec"]


def test_of_supervisor_and_trainer_the_kernel_ends_the_trainer(unit: configparser.ConfigParser) -> None:
    """When memory runs out the supervisor is protected; its trainer gives that up as it starts."""
    assert int(unit["Service"]["OOMScoreAdjust"]) < 0


def test_the_service_manager_accepts_the_unit(tmp_path: Path) -> None:
    """Every key is one that it knows, in its place."""
    if shutil.which("systemd-analyze") is None:
        if os.environ.get("CI"):
            pytest.fail("systemd-analyze is missing")
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / "lastgood@.service"
    copy.write_text(UNIT.read_text().replace("/opt/lastgood/bin/lastgood", shutil.which("true") or "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy.with_name("lastgood@x.service"))],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    found = [line for line in done.stderr.splitlines() if "lastgood@" in line]

    assert ([], 0) == (found, done.returncode), done.stderr

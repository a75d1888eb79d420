"""A compiled run is as exact as any other: torch.compile really runs, here on the CPU, with the C++ compiler it needs."""

import os
import shutil
import subprocess
import sys
import sysconfig

import pytest

from tests.crash.conftest import give_up
from tests.trainer.comparing import ROOT, losses_of, payload_of, state_differs
from tests.trainer.conftest import small_values

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]  # three processes, two of which compile for half a minute

COMPILER = os.environ.get("CXX", "g++")  # torch's own rule
HEADER = os.path.join(sysconfig.get_path("include"), "Python.h")  # included by all that torch compiles


def check_tools():
    """Skip with what is missing on a person's machine; where every check must run, fail."""
    if not shutil.which(COMPILER):
        give_up(f"torch.compile needs the C++ compiler {COMPILER}; install g++, or name yours in CXX")
    if not os.path.isfile(HEADER):
        give_up(f"torch.compile needs {HEADER}; install python3-dev")


def train(cache, **values):
    """A new process that trains with these settings; its output."""
    command = [sys.executable, "-m", "trainer", os.devnull, *(f"--{key}={value}" for key, value in values.items())]
    environ = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environ)
    assert 0 == done.returncode, done.stderr
    return done.stdout


def compiled_in(cache):
    """The libraries that torch has made."""
    return [name for _, _, names in os.walk(cache) for name in names if name.endswith(".so")]


def test_a_compiled_run_stopped_at_step_5_of_10_is_exact(tmp_path, prepared):
    """Compiled anew after the stop: losses differ by 0.0, the state by nothing, and its names are those of a plain model."""
    check_tools()
    straight, broken, cache, other_cache = (str(tmp_path / name) for name in ("straight", "broken", "cache", "other"))
    values = small_values(tmp_path, prepared) | {"compile": "true", "dropout": 0.1, "save_interval": 5}

    train(cache, **values | {"max_iters": 10, "out_dir": straight})
    train(cache, **values | {"max_iters": 5, "out_dir": broken})
    resumed = train(other_cache, **values | {"max_iters": 10, "out_dir": broken})

    assert "resumed at step 5; " in resumed
    assert "; exact: true" in resumed
    assert compiled_in(cache)
    assert compiled_in(other_cache)
    expected, found = losses_of(straight), losses_of(broken)
    assert list(range(1, 11)) == sorted(found)
    assert [0.0] * 10 == [min(expected[step]) - max(found[step]) for step in range(1, 11)]
    assert [] == state_differs(straight, broken, 10)
    assert [] == [name for name in payload_of(broken, 10)["model"] if name.startswith("_orig_mod.")]

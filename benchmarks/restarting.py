"""Sides of the rows about restarts: the bundled trainer is killed, and whoever looks after it has it do a step again.

Every turn is a run of its own: started, killed with SIGKILL once it has saved, and ended when it has done its first resumed step.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil

from benchmarks.harness import Scale, Sides
from benchmarks.machine import UnfitError
from benchmarks.supervised import PATIENCE_SECONDS, ROOT

TEXT = "for index, value in enumerate(values):\n    total += value * weights[index % 7]\n"
LOOK_SECONDS = 0.01
SUPERVISOR = "supervisor==4.3.0"
QUIET_SECONDS = 0.2  # after the last thing that is waited for: what a start entails is over

Words = Callable[[Path], list[str]]
"""The command that looks after a run in a folder."""


def trainer(folder: Path) -> list[str]:
    """The bundled trainer, small, saving often, for longer than anybody waits; it resumes by itself what it finds."""
    options = {
        "out_dir": folder,
        "data": folder.parent / "text",
        "max_iters": 10**9,
        "eval_interval": 0,
        "save_interval": 20,
    }
    config = str(ROOT / "config/trainer/tiny.yaml")
    return ["-m", "trainer", config, *(f"--{key}={value}" for key, value in options.items())]


def by_lastgood(standby: str) -> Words:
    """`lastgood run`, as anybody starts it, but for the start and the delay of a second try."""
    sets = (f"trainer.standby={standby}", "log.format=json")

    def words(folder: Path) -> list[str]:
        start = [sys.executable, "-m", "supervisor", "run", "--checkpoints", str(folder), "--preset", "lastgood"]
        return [*start, *(word for one in sets for word in ("--set", one)), "--", sys.executable, *trainer(folder)]

    return words


def by_torchrun(folder: Path) -> list[str]:
    """PyTorch's own launcher, which starts its workers again."""
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=1",
        "--max-restarts=100",
    ]
    return [*launcher, *trainer(folder)]


def by_shell(folder: Path) -> list[str]:
    """The loop that everybody has written once."""
    return ["sh", "-c", 'until "$@"; do :; done', "sh", sys.executable, *trainer(folder)]


def by_supervisord(environment: Path) -> Words:
    """Supervisor, from where it was installed: its package has the name of one of this software's."""

    def words(folder: Path) -> list[str]:
        command = shlex.join([sys.executable, *trainer(folder)]).replace("%", "%%")
        sections = {
            "supervisord": {"logfile": folder.parent / "supervisord.log", "pidfile": folder.parent / "supervisord.pid"},
            "program:trainer": {"command": command, "directory": ROOT, "startsecs": 0, "startretries": 100},
        }
        lines = (
            f"[{name}]\n" + "".join(f"{key}={value}\n" for key, value in keys.items())
            for name, keys in sections.items()
        )
        (folder.parent / "supervisord.conf").write_text("".join(lines))
        return [str(environment / "bin/supervisord"), "--nodaemon", "-c", str(folder.parent / "supervisord.conf")]

    return words


def told(folder: Path) -> list[dict[str, float]]:
    """Every step that was told, in order."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().split(b"\n")[:-1]]


def until(condition: Callable[[], object], what: str) -> None:
    """Wait. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(LOOK_SECONDS)


def trainer_of(process: "subprocess.Popen[bytes]") -> int:
    """The process that trains: the only one below that has no child, but for one that waits to become it."""
    below = psutil.Process(process.pid).children(recursive=True)
    [found] = [one.pid for one in below if not one.children() and "standby_child" not in " ".join(one.cmdline())]
    return found


def is_ready(folder: Path, standby: bool) -> bool:
    """Whether there is a snapshot to resume from, and a process that waits where there is to be one."""
    if not list(folder.glob("ckpt_*.pt.sha256")):
        return False
    if not standby:
        return True
    try:
        found = json.loads((folder / ".lastgood/status.json").read_bytes())["standby"]
    except (OSError, ValueError):
        return False
    return found is not None and found["ready"]


def restart(folder: Path, words: Words, standby: bool = False) -> float:
    """Seconds from the kill to the end of the first step that was resumed."""
    folder.mkdir()
    with (folder.parent / "log.txt").open("wb") as log:
        process = subprocess.Popen(words(folder), cwd=ROOT, stdout=log, stderr=log)
    try:
        until(lambda: is_ready(folder, standby), f"a snapshot in {folder}")
        time.sleep(QUIET_SECONDS)
        pid, before = trainer_of(process), told(folder)[-1]["incarnation"]
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        until(lambda: told(folder)[-1]["incarnation"] != before, "a step after the kill")
        first = next(line for line in told(folder) if line["incarnation"] != before)
        assert first["step"] > 1, "it has not resumed"
        return first["time"] - killed
    finally:
        started = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for one in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()
        psutil.wait_procs(started, PATIENCE_SECONDS)
        shutil.rmtree(folder)


def installed(package: str, environment: Path) -> Path:
    """An environment of its own with that package, made once. Raises UnfitError."""
    done = environment / package
    if not done.exists():
        venv.create(environment, clear=True, with_pip=True)
        words = [environment / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]
        tried = subprocess.run(words, capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            raise UnfitError(f"{package} cannot be installed: {tried.stderr.strip()}")
        done.touch()
    return environment


@contextmanager
def _restarting(scale: Scale, standby: bool, theirs: Words) -> Iterator[Sides]:
    from trainer import data

    data.publish(str(scale.folder / "text"), TEXT * 2000, "a few words")
    folder, ours = scale.folder / "run", by_lastgood("on" if standby else "off")
    yield Sides(lambda: restart(folder, ours, standby), lambda: restart(folder, theirs))


def against_torchrun(scale: Scale) -> AbstractContextManager[Sides]:
    """With a standby, against `torchrun --max-restarts`."""
    return _restarting(scale, True, by_torchrun)


def against_shell(scale: Scale) -> AbstractContextManager[Sides]:
    """With a standby, against a shell loop."""
    return _restarting(scale, True, by_shell)


def against_supervisord(scale: Scale) -> AbstractContextManager[Sides]:
    """With a standby, against `supervisord`."""
    environment = installed(SUPERVISOR, ROOT / "out" / "peers" / "supervisord")
    return _restarting(scale, True, by_supervisord(environment))


def cold(scale: Scale) -> AbstractContextManager[Sides]:
    """Without a standby, against a shell loop."""
    return _restarting(scale, False, by_shell)

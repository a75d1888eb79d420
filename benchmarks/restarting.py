"""Sides of the rows about restarts: the bundled trainer is killed, and whoever looks after it has it do a step again.

A turn kills the trainer with SIGKILL once it has saved, and is over when it has done its first resumed step.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import Scale, Sides
from benchmarks.machine import UnfitError
from benchmarks.supervised import PATIENCE_SECONDS, ROOT

TEXT = "for index, value in enumerate(values):\n    total += value * weights[index % 7]\n"
LOOK_SECONDS = 0.01
TAIL_BYTES = 4096
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


def last(folder: Path) -> dict[str, float]:
    """The last step that was told, and by which incarnation; that is 0 before the first."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        lines = []
    return dict(json.loads(lines[-1])) if lines else {"incarnation": 0, "step": 0}


def first_of(folder: Path, incarnation: float) -> dict[str, float]:
    """The first step that an incarnation told."""
    with (folder / "metrics.jsonl").open("rb") as file:
        return next(line for line in map(json.loads, file) if line["incarnation"] == incarnation)


def until(condition: Callable[[], object], what: str) -> None:
    """Wait. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(LOOK_SECONDS)


class Life:
    """A run and whoever looks after it, which a turn kills once. Between turns its trainer stands still, for the others' sake."""

    def __init__(self, folder: Path, words: Words, supervised: bool, standby: bool) -> None:
        self._folder = folder
        self._words = words
        self._is_ours = supervised
        self._standby = standby
        self._process: subprocess.Popen[bytes] | None = None
        self._still: int | None = None

    def restart(self) -> float:
        """Seconds from the kill to the end of the first step that was resumed."""
        folder = self._folder
        self._go_on()
        until(self._is_ready, f"a snapshot in {folder}, and whoever is to be ready")
        time.sleep(QUIET_SECONDS)
        before = last(folder)["incarnation"]
        killed = time.time()
        os.kill(self._trainer(), signal.SIGKILL)
        until(lambda: last(folder)["incarnation"] != before, "a step after the kill")
        first = first_of(folder, last(folder)["incarnation"])
        assert first["step"] > 1, "it has not resumed"
        until(lambda: self._trainer(), "the trainer that has told it")
        self._still = self._trainer()
        os.kill(self._still, signal.SIGSTOP)
        return first["time"] - killed

    def _go_on(self) -> None:
        """Let it train; the first time it is started."""
        if self._process is None:
            self._folder.mkdir()
            with self._folder.with_suffix(".log").open("wb") as log:
                self._process = subprocess.Popen(self._words(self._folder), cwd=ROOT, stdout=log, stderr=log)
        elif self._still is not None:
            os.kill(self._still, signal.SIGCONT)

    def _status(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self._folder / ".lastgood/status.json").read_bytes()))
        except (OSError, ValueError):
            return {}

    def _is_ready(self) -> bool:
        """Whether there is a snapshot to resume from, and a process that waits where there is to be one."""
        if not list(self._folder.glob("ckpt_*.pt.sha256")) or not self._trainer():
            return False
        found = self._status().get("standby") if self._standby else None
        return not self._standby or (found is not None and found["ready"] and found["pid"] != self._trainer())

    def _trainer(self) -> int:
        """The process that trains; 0 while that cannot be told."""
        if self._is_ours:
            status = self._status()
            is_new = status.get("incarnation") == last(self._folder)["incarnation"]
            return int(status.get("trainer_pid") or 0) if is_new else 0
        assert self._process is not None
        below = psutil.Process(self._process.pid).children(recursive=True)
        leaves = [one.pid for one in below if not one.children()]
        return leaves[0] if len(leaves) == 1 else 0

    def close(self) -> None:
        """End it, and all that it has started."""
        if self._process is None:
            return
        started = [psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children(recursive=True)]
        for one in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self._process.wait()
        psutil.wait_procs(started, PATIENCE_SECONDS)


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
def restarting(scale: Scale) -> Iterator[Sides]:
    """With a standby and without, against `torchrun --max-restarts`, a shell loop and `supervisord`."""
    from trainer import data

    data.publish(str(scale.folder / "text"), TEXT * 2000, "a few words")
    ways: dict[str, Words] = {"cold": by_lastgood("off"), "torchrun": by_torchrun, "shell": by_shell}
    unfit = {}
    try:
        ways["supervisord"] = by_supervisord(installed(SUPERVISOR, ROOT / "out" / "peers" / "supervisord"))
    except UnfitError as error:
        unfit["supervisord"] = str(error)
    ours = Life(scale.folder / "standby", by_lastgood("on"), True, True)
    others = {name: Life(scale.folder / name, words, name == "cold", False) for name, words in ways.items()}
    try:
        yield Sides(ours.restart, more={name: one.restart for name, one in others.items()}, unfit=unfit)
    finally:
        for one in (ours, *others.values()):
            one.close()

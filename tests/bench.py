"""A bench for real supervisors over real small trainers; the fixture `bench` cleans up after it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TRAINER = Path(__file__).with_name("small_trainer.py")


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Wait for a condition and return its value; fails when the time is up."""
    deadline = time.monotonic() + seconds
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


class Bench:
    """One checkpoint directory, the supervisors started over it, and what they left there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directory = folder / "checkpoints"
        self.started: list[subprocess.Popen[bytes]] = []

    def lastgood(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a `lastgood` command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "supervisor", *words],
            cwd=self.folder, capture_output=True, text=True, errors="replace", check=False, **{"timeout": 90, **more},
        )  # fmt: skip

    def command(self, *trainer: str, sets: tuple[str, ...] = (), resume: str = "--from={snapshot}") -> list[str]:
        """The words of `run` over the small trainer, with short times."""
        quick = (
            "checkpoints.settle_seconds=0.2",
            "checkpoints.rescan_seconds=0.5",
            "restarts.backoff_seconds=[0.05,0.2]",
        )
        words = ["run", "--checkpoints", str(self.directory), "--resume", resume]
        for one in (*quick, *sets):
            words += ["--set", one]
        return [*words, "--", sys.executable, str(TRAINER), str(self.directory), *trainer]

    def run(self, *trainer: str, sets: tuple[str, ...] = (), resume: str = "--from={snapshot}") -> int:
        """Supervise the small trainer to the end of the run; returns the exit status."""
        return self.lastgood(*self.command(*trainer, sets=sets, resume=resume)).returncode

    def start(self, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a `lastgood` command; it is ended with the test."""
        log = (self.folder / f"supervisor-{len(self.started)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", *words], cwd=self.folder, stdout=log, stderr=log, env=env
        )
        log.close()
        self.started.append(process)
        return process

    def records(self, event: str) -> list[dict[str, Any]]:
        """The records of one kind, every line of the file being JSON."""
        path = self.directory / ".lastgood" / "events.jsonl"
        if not path.exists():
            return []
        ended = path.read_bytes().split(b"\n")[:-1]
        entries = [json.loads(line) for line in ended if line]  # two writers at a time may end a line twice
        return [entry for entry in entries if entry["event"] == event]

    def wait_for(self, event: str, count: int = 1, seconds: float = 20.0) -> dict[str, Any]:
        """Wait until a record was written `count` times; returns the last of them."""
        return until(lambda: len(self.records(event)) >= count and self.records(event)[count - 1], seconds)

    def starts(self) -> list[str]:
        """What the trainer resumed from at each start, in its own words."""
        return (self.directory / "starts.txt").read_text().split()

    def state(self, name: str) -> Any:
        """A JSON file of the supervisor."""
        return json.loads((self.directory / ".lastgood" / name).read_bytes())


def marked(folder: Path) -> list[int]:
    """Processes whose supervisor was told of a directory below `folder`."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if (
                name.isdigit()
                and f"LASTGOOD_CHECKPOINT_DIR={folder}".encode() in Path(f"/proc/{name}/environ").read_bytes()
            ):
                found.append(int(name))
        except OSError:
            continue  # it ended
    return found

"""Decides whether the product did right. Imports nothing of it: hashlib, zipfile, torch, and its own reading of the files."""

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SEAL = ".sha256"
_NAMES = re.compile(r"[^.].*?(\d+)\.(?:pt|pth|ckpt|safetensors)")
_TAIL_BYTES = 4096

Look = dict[str, tuple[int, int, int]]
"""What lay in a directory at one moment: by name the inode, the time of change in nanoseconds, and the size."""


def names_of(pattern: str | None) -> re.Pattern[str]:
    """How snapshots are called: as a run's config says it, with `{step}` or as a regular expression; None: as most are."""
    if pattern is None:
        return _NAMES
    if "{step}" in pattern:
        return re.compile(re.escape(pattern).replace(re.escape("{step}"), r"(\d+)"))
    return re.compile(pattern)


class Snapshots:
    """The snapshots of one directory, by this module's own reading of them."""

    def __init__(self, directory: Path, names: re.Pattern[str] = _NAMES) -> None:
        self.directory = directory
        self._names = names

    def look(self) -> Look:
        """What is there now, at no cost: what it is worth may be read later."""
        found: Look = {}
        with os.scandir(self.directory) as entries:
            for entry in entries:
                if self._names.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    stat = entry.stat(follow_symlinks=False)
                    found[entry.name] = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        return found

    def good(self, looked: Look | None = None) -> Iterator[str]:
        """Names of good ones, the highest number first; of those that lay there at a moment, and are still what they were."""
        at_first = self.look() if looked is None else looked
        for name in sorted(at_first, key=self.number, reverse=True):
            if self.look().get(name) == at_first[name] and is_good(self.directory / name):
                yield name

    def newest_good(self, looked: Look | None = None) -> str | None:
        """The one that must be chosen."""
        return next(self.good(looked), None)

    def number(self, name: str) -> int:
        """The step that a name tells."""
        match = self._names.fullmatch(name)
        if match is None:
            raise ValueError(f"{name} is no name of a snapshot")
        return int(match[1])

    def newest_number(self) -> int:
        """The highest step of any that lies there, good or not; -1 when none does."""
        return max(map(self.number, self.look()), default=-1)

    def size_of_newest(self) -> int:
        """Bytes of the one with the highest step; 0 when there is none."""
        found = self.look()
        return found[max(found, key=self.number)][2] if found else 0

    def good_in_quarantine(self) -> list[str]:
        """Those that were set aside although their bytes are good."""
        return sorted(str(path) for path in self._quarantine() if self._names.fullmatch(path.name) and is_good(path))

    def is_kept(self, name: str, its_digest: str) -> bool:
        """Whether what had this name and these bytes was set aside, and is still what it was."""
        return any(path.name == name and digest(path) == its_digest for path in self._quarantine())

    def _quarantine(self) -> Iterator[Path]:
        return (self.directory / ".lastgood" / "quarantine").glob("*/*")


def is_good(path: Path) -> bool:
    """Whether a file has the digest that its seal tells; without a seal, whether all checksums of an archive are right."""
    try:
        lines = Path(f"{path}{SEAL}").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return _is_whole_archive(path)
    except (OSError, ValueError):
        return False
    try:
        said = {line.split()[-1 if line.startswith("#") else 0] for line in lines if line.strip()}
        return digest(path) in said
    except OSError:
        return False


def digest(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_whole_archive(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except Exception:  # noqa: BLE001 - a flag of encryption or another method is one bit away, and zipfile raises for each its own
        return False


def last_metric(directory: Path) -> dict[str, Any] | None:
    """The last whole line of metrics.jsonl."""
    try:
        with (directory / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
            found = json.loads(lines[-1]) if lines else None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def metrics(directory: Path) -> list[dict[str, Any]]:
    """Every line of metrics.jsonl, in order; none where a trainer writes no such file. A torn line is an error: the trainer
    repairs its own.
    """
    try:
        with (directory / "metrics.jsonl").open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return []


def records(directory: Path, event: str) -> list[dict[str, Any]]:
    """The records of one kind that the supervisor left, in order."""
    with (directory / ".lastgood" / "events.jsonl").open(encoding="utf-8") as file:
        return [entry for entry in map(json.loads, file) if entry["event"] == event]


@dataclass
class Findings:
    """What the comparison of baseline and survivor found. `problems` is empty when all is well."""

    steps_compared: int = 0
    lines_compared: int = 0
    largest_difference: float = 0.0
    weights_identical: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing differs and nothing was wrong."""
        return not self.problems


def compare(baseline: Path, survivor: Path, final_step: int) -> Findings:
    """Hold the survivor's every loss, repeated ones too, and its last snapshot against the baseline's."""
    found = Findings()
    expected = {line["step"]: line["loss"] for line in metrics(baseline)}
    lines = metrics(survivor)
    found.lines_compared = len(lines)
    found.steps_compared = len({line["step"] for line in lines} & expected.keys())
    for line in lines:
        if line["step"] not in expected:
            found.problems.append(f"step {line['step']} is not in the baseline")
        elif line["loss"] != expected[line["step"]]:
            found.largest_difference = max(found.largest_difference, _distance(line["loss"], expected[line["step"]]))
    if found.largest_difference != 0.0:
        found.problems.append(f"losses differ by up to {found.largest_difference}")
    missing = set(range(1, final_step + 1)) - {line["step"] for line in lines}
    if missing or found.steps_compared != final_step:
        found.problems.append(f"{final_step} steps were expected, {found.steps_compared} could be compared")
    _compare_weights(found, baseline, survivor, final_step)
    return found


def _distance(one: float | None, other: float | None) -> float:
    return float("inf") if one is None or other is None else abs(one - other)


def _compare_weights(found: Findings, baseline: Path, survivor: Path, final_step: int) -> None:
    both = [Snapshots(directory) for directory in (baseline, survivor)]
    names = [one.newest_good() for one in both]
    if None in names or names[0] != names[1] or both[0].number(str(names[0])) != final_step:
        found.problems.append(f"the last good snapshots are {names[0]} and {names[1]}, not both of step {final_step}")
        return
    import torch

    states = [torch.load(d / str(names[0]), weights_only=True) for d in (baseline, survivor)]
    different = [key for key in ("model", "optimizer", "rng") if not same(states[0][key], states[1][key])]
    found.weights_identical = "model" not in different
    found.problems += [f"the final snapshots differ in {key}" for key in different]


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal bit for bit, in structure and in every tensor."""
    import torch

    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def leaked(run_id: str) -> list[int]:
    """Processes that carry the run's mark in their environment."""
    mark = f"LASTGOOD_RUN_ID={run_id}".encode()
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
        except OSError:
            continue  # it ended, or is not ours to look at
    return found

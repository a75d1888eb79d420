"""Decides whether the product did right. Imports nothing of it: hashlib and torch only, and its own reading of the files."""

import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NAME = re.compile(r"ckpt_(\d+)\.pt")
_TAIL_BYTES = 4096


def good_snapshots(directory: Path) -> list[str]:
    """Names whose bytes have the digest beside them, highest number first."""
    names = [name for name in os.listdir(directory) if _NAME.fullmatch(name)]
    return sorted((name for name in names if _is_good(directory / name)), key=_number, reverse=True)


def newest_good(directory: Path) -> str | None:
    """The snapshot that must be chosen now."""
    return next(iter(good_snapshots(directory)), None)


def count_good(directory: Path) -> int:
    """How many could be chosen now."""
    return len(good_snapshots(directory))


def _number(name: str) -> int:
    match = _NAME.fullmatch(name)
    assert match is not None
    return int(match[1])


def _is_good(path: Path) -> bool:
    try:
        lines = Path(f"{path}.sha256").read_text().splitlines()
        said = {line.split()[-1 if line.startswith("#") else 0] for line in lines}
        return hashlib.sha256(path.read_bytes()).hexdigest() in said
    except (OSError, IndexError):
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
    """Every line of metrics.jsonl, in order. A torn line is an error: the trainer repairs its own."""
    with (directory / "metrics.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


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
    names = [newest_good(directory) for directory in (baseline, survivor)]
    if None in names or names[0] != names[1] or _number(str(names[0])) != final_step:
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


def good_in_quarantine(directory: Path) -> list[str]:
    """Snapshots that were set aside although their bytes are good."""
    places = (directory / ".lastgood" / "quarantine").glob("*/*")
    return sorted(str(path) for path in places if _NAME.fullmatch(path.name) and _is_good(path))

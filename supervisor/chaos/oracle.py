"""Decides whether the product did right. Imports nothing of it: hashlib, zipfile, torch, and its own reading of the files."""

import hashlib
import itertools
import json
import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

SEAL = ".sha256"
NO_STEP = -1
_WORDS = "ckpt|checkpoint|snapshot|step|iter|iteration|epoch|state"
_OF_TENSORS = re.compile(r"(?i).+\.(?:pt|pth|ckpt|safetensors|pkl|pickle|npz|npy|h5)")
_WORD_AND_NUMBER = re.compile(rf"(?i)(?:{_WORDS}|model)[-_=. ]?\d+(?:\.(?:bin|json|tar|zip|msgpack))?")
_UNFINISHED = re.compile(
    r"(?i)\..*|tmp[-_.].*|.*[-_.](?:tmp|temp|part|partial|swp|swx|bak|lock|incomplete)(?:[-_.]?\d*)|.*-tmp-\d+|.*~"
)
_STEPS = (
    re.compile(r"(?i)(?:step|iter|iteration)[-_=. ]?(\d+)"),
    re.compile(rf"(?i)(?:{_WORDS})[-_=. ]?(\d+)"),
    re.compile(r"^(?!.*-\d+-of-\d+$)(?:.*[^0-9A-Za-z.])?(\d+)$"),
)
_ARCHIVE = b"PK\x03\x04"
_TAIL_BYTES = 4096

Look = dict[str, tuple[int, int, int]]
"""What lay in a directory at one moment: by name the inode, the time of change in nanoseconds, and the size."""

Names = Callable[[str], int | None]
"""The step that a file's name tells; NO_STEP when it tells none, None when it is no name of a snapshot."""

Worth = Enum("Worth", "PROVEN UNKNOWN BAD")
"""What is known of a file: that its bytes are right, nothing, or that they are wrong."""


def names_of(pattern: str | None) -> Names:
    """How snapshots are called: as a run's config says it, with `{step}` or as a regular expression; None: as most are."""
    if pattern is None:
        return _usual_step
    text = re.escape(pattern).replace(r"\{step\}", r"(\d+)").replace(r"\*", ".*") if "{step}" in pattern else pattern
    expression = re.compile(text)

    def step_of(name: str) -> int | None:
        match = expression.fullmatch(name)
        if match is None or name.endswith(SEAL) or ".partial-" in name:
            return None
        told = match["step" if "step" in expression.groupindex else 1] if expression.groups else None
        return int(told) if told and told.isdecimal() else NO_STEP

    return step_of


def _usual_step(name: str) -> int | None:
    """Of a name with a suffix of tensors, or of a known word and a number alone."""
    if _UNFINISHED.fullmatch(name) or not (_OF_TENSORS.fullmatch(name) or _WORD_AND_NUMBER.fullmatch(name)):
        return None
    stem, suffix = os.path.splitext(name)
    stem = name if suffix[1:].isdigit() else stem
    found = next((match for one in _STEPS if (match := one.search(stem))), None)
    return NO_STEP if found is None else int(found[1])


class Snapshots:
    """The snapshots of one directory, by this module's own reading of them."""

    def __init__(self, directory: Path, names: Names = _usual_step) -> None:
        self.directory = directory
        self._names = names

    def look(self) -> Look:
        """What is there now, at no cost: what it is worth may be read later."""
        found = ((name, self._seen(name)) for name in os.listdir(self.directory) if self._names(name) is not None)
        return {name: seen for name, seen in found if seen is not None}

    def _seen(self, name: str) -> tuple[int, int, int] | None:
        try:
            status = (self.directory / name).lstat()
        except FileNotFoundError:
            return None
        return (status.st_ino, status.st_mtime_ns, status.st_size) if stat.S_ISREG(status.st_mode) else None

    def good(self, looked: Look | None = None) -> Iterator[str]:
        """Names of those that may be chosen, best first; of those that lay there at a moment, and are still what they were.

        They are the proven ones, the highest number first. Only where there is none, it is the newest of unknown worth.
        """
        at_first = self.look() if looked is None else looked
        unknown: list[str] = []
        is_any_proven = False
        for name in sorted(at_first, key=lambda name: (self.number(name), at_first[name][1], name), reverse=True):
            found = worth(self.directory / name) if self._seen(name) == at_first[name] else Worth.BAD
            if found is Worth.PROVEN:
                is_any_proven = True
                yield name
            elif found is Worth.UNKNOWN:
                unknown.append(name)
        if not is_any_proven:
            yield from unknown[:1]

    def newest_good(self, looked: Look | None = None) -> str | None:
        """The one that must be chosen."""
        return next(self.good(looked), None)

    def number(self, name: str) -> int:
        """The step that a name tells, else the content; -1 when neither does. Raises ValueError for no name of a snapshot."""
        step = self._names(name)
        if step is None:
            raise ValueError(f"{name} is no name of a snapshot")
        return _step_inside(self.directory / name) if step == NO_STEP else step

    def newest_number(self) -> int:
        """The highest step of those of which something is known, good or not, else of any; -1 when none lies there."""
        names = sorted(self.look(), key=self.number, reverse=True)
        known = (name for name in names if worth(self.directory / name) is not Worth.UNKNOWN)
        return max(map(self.number, [*itertools.islice(known, 1)] or names), default=-1)

    def size_of_newest(self) -> int:
        """Bytes of the one with the highest step; 0 when there is none."""
        found = self.look()
        return found[max(found, key=self.number)][2] if found else 0

    def good_in_quarantine(self) -> list[str]:
        """Those that were set aside although their bytes are proven."""
        return sorted(str(path) for path in self._quarantine() if self._names(path.name) is not None and is_good(path))

    def is_kept(self, name: str, its_digest: str) -> bool:
        """Whether what had this name and these bytes was set aside, or left alone, and is still what it was."""
        places = [path for path in (*self._quarantine(), self.directory / name) if path.name == name and path.is_file()]
        return any(digest(path) == its_digest for path in places)

    def _quarantine(self) -> Iterator[Path]:
        return (self.directory / ".lastgood" / "quarantine").glob("*/*")


def is_good(path: Path) -> bool:
    """Whether a file's bytes are proven to be right."""
    return worth(path) is Worth.PROVEN


def worth(path: Path) -> Worth:
    """What a file is worth: by the seal beside it, else by the one that a supervisor made of it, else by what it holds."""
    try:
        seal = Path(f"{path}{SEAL}")
        if seal.exists():
            lines = [line for line in seal.read_text(encoding="ascii").splitlines() if line.strip()]
            said = {line.split()[-1 if line.startswith("#") else 0] for line in lines}
            return Worth.PROVEN if digest(path) in said else Worth.BAD
        made, identity = _made_seal(path)
        if made and digest(path) == made:
            return Worth.PROVEN
        status = path.stat()
        if identity == [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]:
            return Worth.BAD
        return _worth_by_itself(path)  # what was put there since is a new arrival
    except Exception:  # noqa: BLE001 - whoever reads a damaged file, as zipfile does, has exceptions of its own
        return Worth.BAD


def _made_seal(path: Path) -> tuple[str, list[Any]]:
    """The digest that a supervisor's seal of somebody else's file tells, if there is one, and of which inode, size and times."""
    in_quarantine = path.parent.parent.name == "quarantine"  # where it goes along
    folder = path.parent if in_quarantine else path.parent / ".lastgood" / "seals"
    found = _told(_content(folder / f"{path.name}.json"))
    return str(found.get("sha256", "")), [found.get(key) for key in ("inode", "size", "mtime_ns", "ctime_ns")]


def _content(path: Path) -> bytes:
    """What a file holds; nothing of one that is not there, or not ours to look at."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _told(text: bytes) -> dict[str, Any]:
    """What a line of JSON tells; nothing if it is torn."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def digest(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _worth_by_itself(path: Path) -> Worth:
    """Checksums prove an archive; any other format can be wrong, and no more. Raises what its reader raises."""
    with path.open("rb") as file:
        head = file.peek(len(_ARCHIVE))[: len(_ARCHIVE)]
        if head == _ARCHIVE[: len(head)] or zipfile.is_zipfile(path):
            return Worth.PROVEN if zipfile.ZipFile(file).testzip() is None else Worth.BAD
        if path.suffix.lower() == ".json":
            json.load(file)
            makes_sense = True
        elif path.suffix.lower() == ".safetensors":
            length, size = int.from_bytes(file.read(8), "little"), os.fstat(file.fileno()).st_size
            header = json.loads(file.read(min(length, size)))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            makes_sense = 8 + length + max(ends, default=0) == size
        else:
            makes_sense = any(chunk.strip(b"\0") for chunk in iter(lambda: file.read(1 << 20), b""))
    return Worth.UNKNOWN if makes_sense else Worth.BAD


def _step_inside(path: Path) -> int:
    """The step in an archive of torch, by the names that trainers give it; NO_STEP where it tells none."""
    try:
        import torch

        held = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        step = next(held[key] for key in ("iter_num", "step", "global_step") if key in held)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, or that it holds something else
        return NO_STEP
    return step if type(step) is int else NO_STEP


def last_metric(directory: Path) -> dict[str, Any] | None:
    """The last whole line of metrics.jsonl; None when there is none that tells a step."""
    try:
        with (directory / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return None
    found = _told(lines[-1]) if lines else {}
    return found if type(found.get("step")) is int else None


def metrics(directory: Path) -> list[dict[str, Any]]:
    """What each line of metrics.jsonl tells, in order; nothing of a torn one, and none where a trainer writes no such file."""
    return [_told(line) for line in _content(directory / "metrics.jsonl").splitlines()]


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
    expected = {line["step"]: line["loss"] for line in metrics(baseline) if _is_whole(line)}
    told = metrics(survivor)
    lines = list(filter(_is_whole, told))
    torn = (number for number, line in enumerate(told, 1) if not _is_whole(line))
    found.problems += (f"line {number} of metrics.jsonl makes no sense" for number in torn)
    found.lines_compared, found.steps_compared = len(lines), len({line["step"] for line in lines} & expected.keys())
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


def _is_whole(line: dict[str, Any]) -> bool:
    return line.keys() >= {"step", "loss"}


def _distance(one: float | None, other: float | None) -> float:
    return float("inf") if one is None or other is None else abs(one - other)


def _compare_weights(found: Findings, baseline: Path, survivor: Path, final_step: int) -> None:
    both = [Snapshots(directory) for directory in (baseline, survivor)]
    names = [one.newest_good() for one in both]
    if None in names or names[0] != names[1] or both[0].number(str(names[0])) != final_step:
        found.problems.append(
            f"the last good snapshots are {names[0] or 'none'} and {names[1] or 'none'}, not both of step {final_step}"
        )
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
    found = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in found if mark in _content(Path(f"/proc/{pid}/environ")).split(b"\0")]

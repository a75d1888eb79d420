"""Names of snapshots: which files are candidates, which step a name says. Pure.

The step is the number in the name, compared as a number: `ckpt_9000` is older than `ckpt_10000`.
"""

import os
import re
from collections.abc import Callable

from lastgood.contract import SEAL_SUFFIX

_SUFFIXES = frozenset({".pt", ".pth", ".ckpt", ".safetensors", ".pkl", ".pickle", ".npz", ".npy", ".h5"})
_SUFFIXES_AFTER_A_WORD = frozenset({"", ".bin", ".json", ".tar", ".zip", ".msgpack"})
_WORDS = r"(?:ckpt|checkpoint|snapshot|step|iter|iteration|epoch|state)"
_WORD_THEN_NUMBER = re.compile(rf"(?i){_WORDS}[-_=. ]?(\d+)(?!\d)")
_STEP_WORD_THEN_NUMBER = re.compile(r"(?i)(?:step|iter|iteration)[-_=. ]?(\d+)(?!\d)")
_LAST_NUMBER = re.compile(r"(?:^|[^0-9A-Za-z.])(\d+)$")
_ONE_OF_MANY = re.compile(r"-\d+-of-\d+$")
_BEGINS_WITH_WORD = re.compile(rf"(?i)(?:{_WORDS}|model)[-_=. ]?\d+(?:\.[a-z]+)?")
_FOLDER = re.compile(rf"(?i)(?P<word>(?:global[-_]?)?{_WORDS})[-_=. ]?\d+")
_UNFINISHED = re.compile(
    r"(?i)(?:^tmp[-_.]|[-_.](?:tmp|temp|part|partial|swp|swx|bak|lock|incomplete)(?:[-_.]?\d*)?$|-tmp-\d+$|~$)"
)

_FOR_OTHERS = frozenset({".safetensors", ".npz", ".npy", ".h5", ".json", ".msgpack", ".tar"})
_PART_UNFINISHED = frozenset({".tmp", ".temp", ".partial", ".incomplete"})

NameRule = Callable[[str], "int | bool | None"]
"""Given a file name: False when it is no candidate, else its step, or None when the name tells no step."""


def snapshot_name(step: int) -> str:
    """The default name of the snapshot taken after `step` optimizer steps."""
    return f"ckpt_{step:08d}.pt"


def partial_name(name: str) -> str:
    """A name that is never a candidate, for a snapshot that is being written or removed by this process."""
    return f".{name}.partial-{os.getpid()}-{os.urandom(4).hex()}"


_PARTIAL = re.compile(r"\.(?P<name>.+)\.partial-(?P<pid>\d+)-[0-9a-f]{8}")


def partial_of(name: str) -> str | None:
    """The final name that the partial `name` stands for; None when it is not one of our partials."""
    match = _PARTIAL.fullmatch(name)
    return match["name"] if match else None


def unfinished(name: str) -> bool:
    """Whether a name says that its content is temporary, whoever made it. Such files are never candidates."""
    return name.startswith(".") or _UNFINISHED.search(name) is not None


def step_in_name(name: str) -> int | None:
    """The step that a name says: after `step` or `iter` if there, else after another known word, else a number at the end.

    A number that is glued to other text, follows a dot, or counts the parts of one snapshot is no step.
    """
    stem, suffix = os.path.splitext(name.removesuffix(SEAL_SUFFIX))
    if suffix[1:].isdigit():
        stem += suffix
    for pattern in (_STEP_WORD_THEN_NUMBER, _WORD_THEN_NUMBER):
        if match := pattern.search(stem):
            return int(match[1])
    match = None if _ONE_OF_MANY.search(stem) else _LAST_NUMBER.search(stem)
    return int(match[1]) if match else None


def any_name(name: str) -> int | bool | None:
    """The rule when nobody said how snapshots are called: a suffix of snapshots, or a known word and a number alone.

    `samples_step_30.txt` beside `step_30.pt` is no snapshot, and `step_30.json` is one.
    """
    if name[:5] == "ckpt_" and name[-3:] == ".pt" and (number := name[5:-3]).isdecimal():
        return int(number)  # by far the most names are ours, and so are looked for first
    suffix = os.path.splitext(name)[1].lower()
    if unfinished(name):
        return False
    if suffix in _SUFFIXES:
        return step_in_name(name)
    if (suffix in _SUFFIXES_AFTER_A_WORD or suffix[1:].isdigit()) and _BEGINS_WITH_WORD.fullmatch(name):
        return step_in_name(name)
    return False


def folder_word(name: str) -> str | None:
    """The known word in a folder's name that is a word and a number alone, or has a suffix of snapshots; else None."""
    match = None if unfinished(name) else _FOLDER.fullmatch(name)
    if match:
        return match["word"].lower()
    suffix = os.path.splitext(name)[1].lower()
    return suffix if not unfinished(name) and suffix in _SUFFIXES and step_in_name(name) is not None else None


SURE_WORDS = frozenset({"checkpoint", "ckpt", "snapshot"})
"""Words that nobody gives to a folder of samples or logs."""


def has_snapshot_suffix(name: str) -> bool:
    """Whether a name ends as files do that hold tensors."""
    return os.path.splitext(name)[1].lower() in _SUFFIXES | {".bin", ".distcp"}


def is_for_torch(name: str) -> bool:
    """Whether a file of this name may be what torch loads; numpy's and others' are for somebody else."""
    return os.path.splitext(name)[1].lower() not in _FOR_OTHERS


def begins_with_a_mark(name: str) -> bool:
    """Whether files of this name are of formats that begin with a mark of their own, and so never with zeros."""
    return os.path.splitext(name)[1].lower() in _SUFFIXES


def part_unfinished(path: str) -> bool:
    """Whether a file in a folder says that its writer was not done with it; in deeper folders only one that holds tensors."""
    stem, suffix = os.path.splitext(path)
    return suffix.lower() in _PART_UNFINISHED and ("/" not in path or has_snapshot_suffix(stem))


def rule_for(pattern: str | None) -> NameRule:
    """The rule for `checkpoints.pattern`: `ckpt_{step}.pt`, or a regular expression that must match the whole name.

    A template may hold `*` for any text. In an expression the step is the group `step`, else the first group.
    Raises ValueError with the reason when it is neither.
    """
    if pattern is None:
        return any_name
    template = "{step}" in pattern
    text = re.escape(pattern).replace(r"\{step\}", r"(\d+)").replace(r"\*", ".*") if template else pattern
    try:
        expression = re.compile(text)
    except re.error as error:
        raise ValueError(
            f"{pattern!r} is neither a name with {{step}} in it, such as 'ckpt_{{step}}.pt', "
            f"nor a regular expression ({error})"
        ) from None
    if (
        expression.groups == 0
        and not template
        and any(c in pattern for c in "*{")
        and not re.search(r"\\|\.\*|\{\d", pattern)
    ):
        raise ValueError(
            f"{pattern!r} looks like a shell pattern; write '{{step}}' where the number is: 'ckpt_{{step}}.pt'"
        )
    group = "step" if "step" in expression.groupindex else 1

    def rule(name: str) -> int | bool | None:
        match = expression.fullmatch(name)
        if match is None or name.endswith(SEAL_SUFFIX) or partial_of(name) is not None:
            return False
        found = match[group] if expression.groups else None
        return int(found) if found and found.isdecimal() else None

    return rule

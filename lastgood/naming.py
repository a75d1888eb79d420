"""Names of snapshots: which files are candidates, which step a name says. Pure.

The step is the number in the name, compared as a number: `ckpt_9000` is older than `ckpt_10000`.
"""

import os
import re
from collections.abc import Callable

from lastgood.contract import SEAL_SUFFIX

_SUFFIXES = frozenset({".pt", ".pth", ".ckpt", ".safetensors", ".pkl", ".pickle", ".npz", ".npy", ".h5"})
_WORDS = r"(?:ckpt|checkpoint|snapshot|step|iter|iteration|epoch|state)"
_WORD_THEN_NUMBER = re.compile(rf"(?i){_WORDS}[-_=. ]?(\d+)(?!\d)")
_STEP_WORD_THEN_NUMBER = re.compile(r"(?i)(?:step|iter|iteration)[-_=. ]?(\d+)(?!\d)")
_NUMBER = re.compile(r"\d+")
_UNFINISHED = re.compile(
    r"(?i)(?:^tmp[-_.]|[-_.](?:tmp|temp|part|partial|swp|swx|bak|lock|incomplete)(?:[-_.]?\d*)?$|-tmp-\d+$|~$)"
)
_NOT_SNAPSHOTS = frozenset({".log", ".jsonl", ".yaml", ".yml", ".md", ".py", ".csv", ".html", ".png", ".sha256"})

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
    """The step that a name says: after `step` or `iter` if there, else after another known word, else the last number."""
    stem = name.removesuffix(SEAL_SUFFIX)
    root, suffix = os.path.splitext(stem)
    if not suffix[1:].isdigit():
        stem = root
    for pattern in (_STEP_WORD_THEN_NUMBER, _WORD_THEN_NUMBER):
        if match := pattern.search(stem):
            return int(match[1])
    numbers = _NUMBER.findall(stem)
    return int(numbers[-1]) if numbers else None


def any_name(name: str) -> int | bool | None:
    """The rule when nobody said how snapshots are called: known suffixes, or a known word with a number."""
    suffix = os.path.splitext(name)[1].lower()
    if unfinished(name) or suffix in _NOT_SNAPSHOTS:
        return False
    if suffix in _SUFFIXES:
        return step_in_name(name)
    return step_in_name(name) if _WORD_THEN_NUMBER.search(name) else False


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
        return int(found) if found and found.isdigit() else None

    return rule

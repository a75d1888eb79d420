"""What differs between trainers: how snapshots appear, and how one gets back in. Data only."""

from dataclasses import dataclass
from typing import Literal

GENERAL_STEP_PATTERN = (
    r"(?i)\b(?:step|iter|iteration)s?[ =:#]+(?P<step>\d+)"
    r"(?:[^\d\n].*?\bloss[ =:]+(?P<loss>[-+]?(?:nan|inf\w*|[\d.]+(?:e[-+]?\d+)?)))?"
)
"""Finds `iter 10: loss 2.5`, `step=10 ... loss: 2.5`, `Iteration 10` and their like."""

NANOGPT_STEP_PATTERN = r"^iter (?P<step>\d+): loss (?P<loss>\S+?),"


@dataclass(frozen=True)
class Preset:
    """`resume` is how a snapshot is given when the settings do not say; None means that they must say.

    `rotates` says that the trainer removes its old snapshots itself, so that nothing is pruned unless asked for.
    """

    pattern: str | None
    step_pattern: str
    resume: Literal["env"] | None
    rotates: bool


PRESETS = {
    "lastgood": Preset(r"ckpt_(\d+)\.pt", NANOGPT_STEP_PATTERN, "env", rotates=False),
    "command": Preset(None, GENERAL_STEP_PATTERN, None, rotates=True),
}

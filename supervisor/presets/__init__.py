"""What differs between trainers: how snapshots appear, and how one gets back in. Data only."""

from dataclasses import dataclass
from typing import Literal

GENERAL_STEP_PATTERN = (
    r"(?i)(?:\b|(?<=\dm)|(?<=global_))(?:step|iter|iteration)\b[\"']?(?:\x1b\[[\d;]*m)?[ \t=:#\[(]+(?:\x1b\[[\d;]*m)?"
    r"(?P<step>\d+)(?![\w%]|[.,]\d)"
    r"(?:[^\n]*?(?:\b|_|(?<=\dm))loss\b[\"']?(?:\x1b\[[\d;]*m)?[ \t=:\[(]+(?:\x1b\[[\d;]*m)?"
    r"(?P<loss>[-+]?(?:nan\b|inf(?:inity)?\b|(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)))?"
)
"""Finds `iter 10: loss 2.5`, `step=10 ... loss: 2.5`, `Step [10/600], Loss: 2.5`, `{"step": 10, "loss": 2.5}` and their
like, coloured or not. `steps: 1000` and `step: 10%` are amounts, and `step time 0.5` and `max_step=9` no step that was done:
a wrong step would end a healthy trainer as one that did not resume."""

NANOGPT_STEP_PATTERN = r"^iter (?P<step>\d+): loss (?P<loss>\S+?),"


@dataclass(frozen=True)
class Preset:
    """`resume` is how a snapshot is given when the settings do not say; None means that they must say.

    `rotates` says that the trainer removes its old snapshots itself, so that nothing is pruned unless asked for. `knows_steps`
    says that `step_pattern` fits this trainer and is no guess. `in_place` names the one file that the trainer overwrites with
    each save: copies of it are kept on the shelf, and the newest good one is put back. `heartbeat` names a file of the checkpoint
    directory that changes with every step, and so is a life sign. `arguments` are given at every start and
    `resume_arguments` when there is something to resume; each replaces what the command says under the same key.
    """

    pattern: str | None
    step_pattern: str
    resume: Literal["env", "self"] | None
    rotates: bool
    knows_steps: bool = True
    in_place: str | None = None
    heartbeat: str | None = None
    arguments: tuple[str, ...] = ()
    resume_arguments: tuple[str, ...] = ()


PRESETS = {
    "lastgood": Preset(r"ckpt_(\d+)\.pt", NANOGPT_STEP_PATTERN, "env", rotates=False, heartbeat="metrics.jsonl"),
    "command": Preset(None, GENERAL_STEP_PATTERN, None, rotates=True, knows_steps=False),
    "nanogpt": Preset(
        r"ckpt\.pt",
        NANOGPT_STEP_PATTERN,
        "self",
        rotates=True,
        in_place="ckpt.pt",
        arguments=("--out_dir={dir}",),
        resume_arguments=("--init_from=resume",),
    ),
}

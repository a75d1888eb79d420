"""The supervisor before this one, when it ended without a word while a trainer lived: whether that counts against the run.

What killed both may be the trainer itself, by the memory it takes; so it counts. A power cut, a fault that was announced against
it, and an end that came while it was being stopped or paused say nothing about the run.
"""

from supervisor import proc
from supervisor.adapters.statefile import RunFile
from supervisor.small_files import SmallFiles
from supervisor.trainer_side import Say


def judge(directory: str, run: RunFile, wanted: str | None, say: Say) -> bool:
    """Whether its end is laid to the run, by what it wrote down last; the fault that ended it is said, if one was announced."""
    fault = None if run.supervisor is None else SmallFiles(directory).fault_against(run.supervisor)
    if fault is not None:
        say("fault.injected", {"fault": fault.id, "kind": fault.kind, "target": str(fault.pid)})
    return counts(run, proc.boot_id(), wanted, announced=fault is not None)


def counts(run: RunFile, boot: str, wanted: str | None, announced: bool) -> bool:
    """The same, in the boot `boot`, where `wanted` is what was wished for last, and a fault was `announced` or not. Pure."""
    return run.memory.open and run.boot == boot and wanted not in ("stop", "pause") and not announced

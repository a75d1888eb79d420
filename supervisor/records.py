"""The catalogue of records: every event's name, level, meaning and fields. An alert may match on any of it.

Names are stable, dotted, past tense. Every record also has `event`, `level`, `timestamp` (UTC), `run`, `run_id`,
`incarnation` and `seq`, which counts up within a supervisor's life.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["info", "warning", "error"]


@dataclass(frozen=True)
class Kind:
    """One kind of record. `fields` maps each field to its meaning and unit."""

    level: Level
    meaning: str
    fields: Mapping[str, str]


_SNAPSHOT: Final = {
    "name": "name of the snapshot in the checkpoint directory",
    "step": "its step, or null when nothing tells",
}
_VERDICT: Final = {
    **_SNAPSHOT,
    "verdict": "healthy, intact, unproven, truncated, corrupt, incomplete, poisoned, incompatible or unreadable",
    "proof": "seal, crc or structure; null when its bytes were not judged",
    "reason": "what was found, in words and numbers",
}

CATALOGUE: Final[Mapping[str, Kind]] = {
    "supervisor.started": Kind(
        "info",
        "A supervisor took the checkpoint directory.",
        {"pid": "its process id", "directory": "the checkpoint directory", "watching": "how it learns of new files",
         "preset": "the preset in use", "ignored_settings": "settings this version accepts and does not act on"},
    ),
    "supervisor.ready": Kind("info", "The first trainer runs.", {}),
    "supervisor.lock_lost": Kind(
        "error", "The lock file was removed and another supervisor took the directory; this one ends.",
        {"reason": "who has it"},
    ),
    "supervisor.reloaded": Kind(
        "info", "SIGHUP came, and the config file says something else than before.",
        {"changed": "settings that hold from now on", "at_next_start": "those that hold from the next start of the trainer on",
         "needs_restart": "those that hold once the supervisor is started again"},
    ),
    "supervisor.reload_failed": Kind(
        "warning", "SIGHUP came, and the config file cannot be used; the settings stay as they are.",
        {"reason": "the file, the key and the cure"},
    ),
    "supervisor.delayed": Kind(
        "warning",
        "The supervisor waits for storage, a driver or a dying process for longer than usual; a stop is heard.",
        {"phase": "what it is at", "seconds": "since when"},
    ),
    "supervisor.failed": Kind(
        "error",
        "A bug of ours, and no fault of the run: the supervisor ends with 1, its trainer with it, with a traceback on stderr.",
        {"reason": "what went wrong, for us to read"},
    ),
    "supervisor.stopped": Kind("info", "The supervisor ends.", {"status": "its exit status"}),
    "trainer.spawned": Kind(
        "info",
        "A trainer was started.",
        {"pid": "its process id", "resumed_from": "name of the snapshot it was given, or null", "step": "that snapshot's step",
         "proof": "what that snapshot's verdict rests on", "standby": "whether it was started in advance"},
    ),
    "trainer.progressed": Kind(
        "info", "A proven snapshot lies above every earlier one.", {"step": "its step", "loss": "the newest loss told"}
    ),
    "trainer.exited": Kind(
        "warning",
        "The trainer is dead and all its processes are gone; level info when that was wished for.",
        {"cause": "completed, stopped, crashed, killed, out-of-memory, out-of-disk, gpu-fault, stalled, diverged, "
                  "chaos, usage, ended-early or "
                  "resume-ignored",
         "code": "exit code, or null", "signal": "signal number, or null",
         "said": "exit status that the trainer itself noted, or null; it counts where the code is 1, as that of a launcher is",
         "fault": "id of the injected fault, or null",
         "step": "last step it told",
         "evidence": "what is known of a SIGKILL that this supervisor did not send, or what the machine lacked, or null",
         "last_lines": "the end of its output"},
    ),
    "trainer.diverged": Kind(
        "warning",
        "The loss is no longer finite; the run is stepped back.",
        {"step": "where that showed, or null", "finite_step": "snapshots of later steps are not used; null when all are good",
         "times": "divergences in a row", "skipping": "steps whose data the trainer is told to skip, first-last, or null"},
    ),
    "trainer.stalled": Kind(
        "warning", "No life sign in time; the trainer is ended.",
        {"stage": "startup, running or saving", "seconds": "time since the last life sign"},
    ),
    "stall.evidence_kept": Kind(
        "info", "Before a trainer that stood still was killed, it was written down what its processes were doing.",
        {"path": "the file that says so", "processes": "each process in a line: its state, and where in the kernel it waits",
         "uninterruptible": "pids that no signal ends before storage or a driver answers",
         "locks": "files called like locks, in the trainer's working directory and the checkpoint directory"},
    ),
    "stall.evidence_lost": Kind(
        "warning", "What the processes of a trainer that stood still were doing could not be written down.",
        {"reason": "what the system said"},
    ),
    "trainer.asked_to_stop": Kind("info", "The trainer was asked to save and end.", {"grace_seconds": "time it is given"}),
    "trainer.grace_over": Kind(
        "warning", "The trainer did not end within its grace; it is killed.", {"grace_seconds": "time it was given"}
    ),
    "trainer.leftover_ended": Kind(
        "warning", "Processes of this run from a killed supervisor were found and ended.", {"pids": "their process ids"}
    ),
    "trainer.stuck": Kind(
        "error", "Processes will not die; nothing is started until they have.", {"pids": "their process ids, as far as known"}
    ),
    "resume.ignored": Kind(
        "error", "The trainer went on from another step than the one it was given; it was killed.",
        {"resumed_step": "step of the snapshot it was given", "reported_step": "first step it told or saved"},
    ),
    "resume.confirmed": Kind(
        "info",
        "The bytes of the snapshot that was resumed from on trust were read again beside the trainer, and are good.",
        {**_SNAPSHOT, "seconds": "time the reading took; 0 when it was taken away before"},
    ),
    "resume.refuted": Kind(
        "error",
        "What was resumed from on trust turns out to be bad: the trainer is killed, and what it saved is set aside.",
        {**_SNAPSHOT, "verdict": "what it is worth", "reason": "why it is bad", "held_back": "what was saved since"},
    ),
    "resume.unproven": Kind(
        "warning", "No proven snapshot is left; the run goes on from one without proof.",
        {**_SNAPSHOT, "reason": "why there is no proof"},
    ),
    "snapshot.appeared": Kind(
        "info", "A snapshot that was not there before, or its name with other content, was seen. Its verdict follows.",
        _SNAPSHOT,
    ),
    "snapshot.two_writers": Kind(
        "warning", "Several processes write a snapshot of the same name at once; end all but one. Told once of each set of them.",
        {"name": _SNAPSHOT["name"], "pids": "their process ids"},
    ),
    "snapshot.verified": Kind(
        "info", "A snapshot was judged and may be resumed from.",
        {**_VERDICT, "seconds": "time the judging took", "bytes": "its size"},
    ),
    "snapshot.sealed": Kind("info", "An unsealed snapshot was outlived by its writer and is sealed now.", _SNAPSHOT),
    "snapshot.rejected": Kind("warning", "A snapshot was judged and may not be resumed from.", _VERDICT),
    "snapshot.quarantined": Kind(
        "warning", "A snapshot was set aside, with the reason beside it.",
        {**_SNAPSHOT, "reason": "why", "path": "where it is now"},
    ),
    "snapshot.set_aside_failed": Kind(
        "error", "A snapshot could not be set aside and is still where it was.", {**_SNAPSHOT, "reason": "what the system said"}
    ),
    "snapshot.suspected": Kind(
        "warning", "The trainer died several times alike from a snapshot that is whole; an older one is tried.",
        {**_SNAPSHOT, "deaths": "how many", "died_at": "step of the deaths, or null", "signature": "what they look like"},
    ),
    "snapshot.put_back": Kind(
        "info", "A snapshot that was suspected is back in its place: it is not at fault.", _SNAPSHOT
    ),
    "snapshot.put_back_failed": Kind(
        "warning", "A snapshot that is not at fault stays in quarantine.", {**_SNAPSHOT, "reason": "what stands in the way"}
    ),
    "snapshot.shelved": Kind(
        "info", "A copy of a file that is overwritten in place was read back, sealed, and kept on the shelf.",
        {**_SNAPSHOT, "how": "reflink, which shares the file's blocks, or copy", "bytes": "its size",
         "seconds": "time the copying took"},
    ),
    "snapshot.shelve_failed": Kind(
        "warning", "A file that is overwritten in place has no copy: a kill in its next save costs one more save's steps.",
        {**_SNAPSHOT, "reason": "what the system said; for want of space the bytes needed and free"},
    ),
    "snapshot.unshelved": Kind(
        "info", "A copy from the shelf is the file in place again, and the trainer goes on from it.",
        {**_SNAPSHOT, "how": "reflink or copy", "bytes": "its size", "seconds": "time the copying took"},
    ),
    "snapshot.pruned": Kind("info", "Retention removed a snapshot.", _SNAPSHOT),
    "snapshot.prune_failed": Kind(
        "warning", "Retention could not remove a snapshot.", {**_SNAPSHOT, "reason": "what the system said"}
    ),
    "save.failed": Kind(
        "warning", "The trainer's own saving, through this library, noted that a save failed.",
        {**_SNAPSHOT, "reason": "what went wrong", "errno": "the system's error number, or null",
         "blocking": "whether the trainer waited for the save"},
    ),
    "fallback.chosen": Kind(
        "warning",
        "The newest snapshot is not the one the run goes on from.",
        {"by": "supervisor, which chooses before a start; or trainer, whose own loading through this library noted it",
         "newest_step": "step of the newest", "chosen_step": "step of the chosen one", "chosen": "its name",
         "depth": "how many were passed over", "steps_lost": "highest step reached minus the chosen step",
         "rejected": "list of {name, verdict, reason} of those passed over"},
    ),
    "directory.unreadable": Kind(
        "error", "The checkpoint directory cannot be read; it is waited for.", {"reason": "what the system said"}
    ),
    "disk.low": Kind(
        "warning", "There is too little room for the next save. Before a start, that is waited with.",
        {"free_bytes": "bytes free for this user on the filesystem of the checkpoint directory",
         "needed_bytes": "the size of the newest snapshot and a little more",
         "free_inodes": "how many files can be made there, or null without a limit", "needed_inodes": "how many are needed",
         "path": "the checkpoint directory"},
    ),
    "disk.freed": Kind("info", "There is room again, and the trainer is started.", {"seconds": "how long that was waited for"}),
    "quarantine.trimmed": Kind(
        "warning", "For want of room a broken or superseded snapshot left quarantine; why it was there is still written there.",
        {"name": "its name", "path": "its folder in quarantine", "bytes": "its size"},
    ),
    "gpu.lost": Kind(
        "error", "A GPU of the trainer's is gone; it is waited for.",
        {"gpus": "their UUIDs", "reason": "what NVML says of the first"},
    ),
    "gpu.busy": Kind(
        "warning", "Memory of a GPU is still held by processes of the run that are dead; that is waited for.",
        {"gpus": "their UUIDs", "pids": "the processes"},
    ),
    "gpu.back": Kind(
        "info", "The GPUs are there and free again, and the trainer is started.", {"seconds": "how long that was waited for"}
    ),
    "wish.unreadable": Kind(
        "warning", "What is wanted of the run cannot be read; it is tried again, and at its start the run waits until then.",
        {"reason": "what the system said"},
    ),
    "memory.not_saved": Kind(
        "error", "What must outlive the supervisor could not be written; it is tried again with the next change.",
        {"reason": "what the system said"},
    ),
    "restart.timeline": Kind(
        "info",
        "The first step after a restart was told: where the time since the death was noticed went.",
        {"stages": "milliseconds of each: exit (last words read), sweep (no process left), delay (backoff), judge (the directory "
                   "read), choose, start (memory written, process started), first_step",
         "total": "milliseconds of all"},
    ),
    "restart.scheduled": Kind(
        "info", "The trainer will be started again.",
        {"delay_seconds": "how long until then", "cause": "what the death was put down to",
         "without_progress": "deaths without progress in a row"},
    ),
    "restart.refused": Kind(
        "error", "The restart budget is spent.",
        {"cause": "what the last death was put down to", "without_progress": "deaths without progress in a row"},
    ),
    "run.started_over": Kind(
        "warning", "The run starts fresh again: no snapshot of it was recognised or ever whole, or it was asked for.",
        {"rejected": "list of {name, verdict, reason} of what was set aside"},
    ),
    "run.completed": Kind(
        "info", "The run is done; level warning where that may be doubted.",
        {"step": "the highest step it reached, or null", "doubt": "what speaks against it, or null"},
    ),
    "run.stopped": Kind(
        "info", "The run was stopped on request; the next start goes on.",
        {"status": "exit status", "step": "step of the newest proven snapshot"},
    ),
    "run.paused": Kind(
        "info", "The trainer made room on request; the run waits to be resumed.",
        {"step": "step of the newest proven snapshot, or null", "reached": "the highest step it reached, or null"},
    ),
    "run.resumed": Kind("info", "A paused run goes on.", {"step": "step of the newest proven snapshot, or null"}),
    "run.failed": Kind(
        "error", "The run cannot go on without a person.",
        {"status": "exit status", "reason": "why", "advice": "what to do"},
    ),
    "fault.injected": Kind(
        "info", "Something was done to this run on purpose.",
        {"fault": "id of the fault", "kind": "its kind", "target": "pid or path it was aimed at"},
    ),
    "chaos.enabled": Kind(
        "warning", "The trainer will be killed on purpose now and then, as `chaos` in the settings asks.",
        {"mean_seconds": "time between two kills, on average", "kinds": "how it is killed", "seed": "decides when and how"},
    ),
    "chaos.unavailable": Kind(
        "warning", "Nothing is killed on purpose, although `chaos` in the settings asks for it, or no more.",
        {"reason": "what the system said, or how the process ended that did it"},
    ),
    "notification.failed": Kind(
        "warning", "Records did not get through to a target of `notify`; they are in events.jsonl. Itself never sent.",
        {"target": "place in the list, with the URL's scheme or the command's program and no more", "reason": "why",
         "record": "name of the record, or of the newest of several", "undelivered": "how many records"},
    ),
}  # fmt: skip

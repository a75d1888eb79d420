"""Names that the supervisor, the library and a trainer agree on. They meet on disk, in the environment and in signals only."""

from typing import Final

# Environment of a supervised trainer.
ENV_RESUME_FROM: Final = "LASTGOOD_RESUME_FROM"
"""Path of the snapshot to resume from. Unset or empty: start fresh."""
ENV_RESUME: Final = "LASTGOOD_RESUME"
"""How the trainer is to learn that: `env` (as above), `arguments`, `self` (it finds the newest itself) or `never`."""
ENV_RESUME_STEP: Final = "LASTGOOD_RESUME_STEP"
"""Step of that snapshot, when it is known."""
ENV_INCARNATION: Final = "LASTGOOD_INCARNATION"
"""Which life of the trainer this is, counted from 1."""
ENV_RUN_ID: Final = "LASTGOOD_RUN_ID"
"""Id of the run. Also the marker by which leftover processes of a run are found."""
ENV_SUPERVISED: Final = "LASTGOOD_SUPERVISED"
"""Set to "1" by the supervisor, which decides what to resume from."""
ENV_PRUNES: Final = "LASTGOOD_PRUNES"
"""Set to "1" by a supervisor that prunes; the library's own pruning then keeps still."""

ENV_CHECKPOINT_DIR: Final = "LASTGOOD_CHECKPOINT_DIR"
"""Where the supervisor expects snapshots; the bundled trainer's `out_dir`."""
ENV_NOTES: Final = "LASTGOOD_NOTES"
"""Path of the file in which the trainer leaves notes for the supervisor; unset: nobody reads any."""
ENV_SKIP_STEPS: Final = "LASTGOOD_SKIP_STEPS"
"""Steps whose data the trainer is to skip: `first-last`, several with commas; one given twice is skipped twice. For every start
from a snapshot before them; later snapshots know."""

# Inside a checkpoint directory.
STATE_DIR: Final = ".lastgood"
SUPERVISOR_LOCK: Final = "supervisor.lock"
WRITER_LOCK: Final = "writer.lock"
RUN_FILE: Final = "run.json"
LEDGER_FILE: Final = "ledger"
STATUS_FILE: Final = "status.json"
WANTED_FILE: Final = "wanted.json"
EVENTS_FILE: Final = "events.jsonl"
TRAINER_LOG: Final = "trainer.log"
FAULTS_FILE: Final = "faults.jsonl"
NOTES_FILE: Final = "notes.jsonl"
SEALS_DIR: Final = "seals"
QUARANTINE_DIR: Final = "quarantine"
SHELF_DIR: Final = "shelf"
STALLS_DIR: Final = "stalls"
REASON_FILE: Final = "reason.json"
"""Beside what is in quarantine: why."""

SEAL_SUFFIX: Final = ".sha256"

# Notes: lines of JSON, `note` says which kind; the other keys of the first two are those of the record that is made of them.
NOTE_SAVE_FAILED: Final = "save.failed"
NOTE_FALLBACK: Final = "fallback.chosen"
NOTE_ENDING: Final = "trainer.ending"
"""`status` is the exit status, 1 to 255, with which a process of the trainer is about to end. It is believed where the supervisor
sees a 1, with which launchers end whatever their processes ended with. `step` is the step at which, or null."""
NOTE_BYTES_MAX: Final = 16 << 10
"""The longest line, its end included."""

# Payload of the bundled trainer: nanoGPT's six keys, then ours.
PAYLOAD_FORMAT: Final = "lastgood"
PAYLOAD_VERSION: Final = 1

# Other payloads.
MODEL_KEYS: Final = ("model", "state_dict", "model_state_dict")
"""What trainers call the model in a payload, most usual first."""
SALVAGE_KEY: Final = "lastgood_salvage"
"""Where a salvaged payload says what it comes from and what is lost."""

EXIT_DIVERGED: Final = 65
"""Exit status of a trainer whose loss is not finite."""
EXIT_TERMINATED: Final = 143
"""Exit status of a trainer that saved and ended because of SIGTERM."""

"""The rows, in the order of the table."""

from benchmarks import ladder, saving, training, verifying
from benchmarks.harness import Row

HASH = "one plain hashlib SHA-256 pass"
SAVE = "torch.save + fsync"

ROWS = [
    Row("verify-sealed", "verify a large sealed snapshot", HASH, 1.05, verifying.verifying_sealed),
    Row("verify-unsealed", "verify a large unsealed torch zip", HASH, 1.15, verifying.verifying_unsealed),
    Row("inspect", "inspect a large snapshot, in process", None, 10, verifying.inspecting, 30),
    Row("save-blocking", "blocking save with fsync and seal", SAVE, 1.3, saving.saving_blocking, twice=True),
    Row(
        "save-nonblocking",
        "time inside a non-blocking save(), steady state",
        SAVE,
        0.2,
        saving.saving_behind,
        twice=True,
    ),
    Row("ladder", "list and choose among many sealed, in process", None, 100, ladder.listing_in_process, 30),
    Row("ladder-command", "the same as a command", None, 400, ladder.listing_by_command, 20),
    Row(
        "training",
        "training steps of the bundled trainer, CPU",
        "a nanoGPT-shaped loop",
        1.0,
        training.training,
        20,
        reaches=True,
    ),
]

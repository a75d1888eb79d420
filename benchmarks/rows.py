"""The rows, in the order of the table."""

from benchmarks import growing, ladder, restarting, saving, supervising, training, verifying
from benchmarks.harness import Row

HASH = "one plain hashlib SHA-256 pass"
SAVE = "torch.save + fsync"
SAFETENSORS = "safetensors save_file + fsync"
DCP = "DCP async_save"

RESTART = "SIGKILL to the first resumed step, bundled trainer, standby ready"

ROWS = [
    Row("restart", RESTART, "torchrun --max-restarts", 0.15, restarting.restarting, 6, cold=True, theirs="torchrun"),
    Row("restart-shell", "the same", "a shell loop", 0.15, restarting.restarting, theirs="shell"),
    Row("restart-supervisord", "the same", "supervisord", 0.15, restarting.restarting, theirs="supervisord"),
    Row(
        "restart-cold",
        "the same without standby",
        "a shell loop",
        1.1,
        restarting.restarting,
        ours="cold",
        theirs="shell",
    ),
    Row("death", "SIGKILL of a small trainer to its exit collected", None, 1, supervising.death, 400),
    Row("death-p99", "the same, 99 of 100", None, 5, supervising.death, share=0.99),
    Row("decision", "dead tree to next start, ten verified large snapshots", None, 50, supervising.decision, 12),
    Row("arrival", "a published snapshot judged and told", None, 5, supervising.arrival, 60),
    Row("verify-sealed", "verify a large sealed snapshot", HASH, 1.05, verifying.verifying_sealed, 8),
    Row("verify-unsealed", "verify a large unsealed torch zip", HASH, 1.15, verifying.verifying_unsealed, 8),
    Row("inspect", "inspect a large snapshot, in process", None, 10, verifying.inspecting, 30),
    Row(
        "save-blocking",
        "blocking save with fsync and seal",
        SAVE,
        1.3,
        saving.saving,
        6,
        twice=True,
        cold=True,
        theirs="torch",
    ),
    Row(
        "save-nonblocking",
        "time inside a non-blocking save(), steady state",
        SAVE,
        0.2,
        saving.saving,
        ours="behind",
        theirs="torch",
    ),
    Row("save-safetensors", "blocking save, as above", SAFETENSORS, None, saving.saving, theirs="safetensors"),
    Row(
        "save-dcp",
        "time inside a non-blocking save(), as above",
        DCP,
        None,
        saving.saving,
        ours="behind",
        theirs="dcp",
    ),
    Row(
        "supervisor-cpu", "the supervisor's own CPU while a run trains", None, 1, supervising.spending, 6, absolute="%"
    ),
    Row("supervisor-cpu-idle", "the same, trainer silent", None, 0.5, supervising.spending, absolute="%", ours="idle"),
    Row(
        "supervisor-memory",
        "its peak, many snapshots judged",
        None,
        64,
        growing.crowded,
        6,
        cold=True,
        absolute="MB",
    ),
    Row("growth-snapshots", "its CPU for one more snapshot among many", "among ten", 1.5, growing.snapshots, 8),
    Row("growth-idle", "its CPU among many, trainer silent", None, 0.5, growing.crowded, absolute="%", ours="idle"),
    Row("growth-restarts", "its growth over as many restarts", None, 4, growing.restarts, 6, cold=True, absolute="MB"),
    Row("output", "200 MB of output drained, 80-byte lines", None, 1000, supervising.draining, 15),
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

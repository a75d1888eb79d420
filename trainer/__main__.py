"""`python -m trainer CONFIG.yaml [--key=value ...]`: train, saving snapshots, until max_iters."""

import os
import signal
import sys

from lastgood.contract import ENV_CHECKPOINT_DIR
from lastgood.notes import note_ending
from trainer.distributed import is_first
from trainer.settings import (
    EXIT_NO_SNAPSHOT,
    EXIT_USAGE,
    NoSnapshotError,
    UsageError,
    help_text,
    read_arguments,
    source_of,
)


def main(arguments: list[str]) -> int:
    """Run the command and give its exit status, of which the supervisor is told what a launcher in between would hide."""
    if {"--help", "-h"} & set(arguments):
        print(help_text())
        return 0
    for number in (signal.SIGTERM, signal.SIGINT):  # nothing to save before the first step: just end
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    status = run(arguments)
    for number in (signal.SIGTERM, signal.SIGINT):  # it is decided how this ends
        signal.signal(number, signal.SIG_IGN)
    if status == EXIT_USAGE:
        note_ending(os.environ.get(ENV_CHECKPOINT_DIR, ""), status)
    return status


def run(arguments: list[str]) -> int:
    """Train and give the exit status; whatever the person got wrong is one line on stderr."""
    try:
        settings = read_arguments(arguments)
        from trainer.train import train  # only now: importing torch takes a second

        return train(settings)
    except UsageError as error:
        where = f"{source_of(error.key, arguments)}: " if error.key else ""
        if is_first():
            print(f"trainer: {where}{error}", file=sys.stderr)
        return EXIT_USAGE
    except NoSnapshotError as error:
        if is_first():
            print(f"trainer: {error}", file=sys.stderr)
        return EXIT_NO_SNAPSHOT
    except ModuleNotFoundError as error:
        print(f"trainer: {error}; install it with: pip install 'lastgood[trainer]'", file=sys.stderr)
        return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

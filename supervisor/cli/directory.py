"""Which checkpoint directory a person means: the directory itself, or the config of the run that has it."""

import os
from typing import Annotated, NamedTuple

import typer

from supervisor.cli.text import shown
from supervisor.errors import UsageError

Place = Annotated[str, typer.Argument(metavar="DIR|CONFIG", help="A checkpoint directory, or a run's YAML file.")]


class Meant(NamedTuple):
    """A checkpoint directory; the pattern of its snapshots' names and the kind of trainer as far as a config says them."""

    directory: str
    pattern: str | None = None
    bundled: bool = False


def named(command: str, word: str) -> Meant:
    """What a word on the command line means. Raises UsageError.

    A directory that only a config names need not exist yet.
    """
    if os.path.isdir(word):
        return Meant(word)
    if os.path.isfile(word):
        from supervisor import configuration  # and pydantic, which takes longer than all else

        chosen = configuration.load(word, [])
        return Meant(chosen.checkpoints.dir, chosen.pattern, chosen.bundled)
    problem = "it is neither a file nor a folder" if os.path.exists(word) else "there is no such file or folder"
    raise UsageError(f"{command}: {shown(word)}: {problem}; give a checkpoint directory, or a run's YAML file")

"""What a trainer is started with: its arguments and its environment. Pure, but for finding the program."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping

from lastgood import contract
from supervisor.core.events import RungFact
from supervisor.errors import UsageError
from supervisor.settings import Settings

NOT_PASSED_ON = ("LASTGOOD_", "NOTIFY_SOCKET", "JOURNAL_STREAM")
"""How names begin that are no trainer's, nor a notification command's: those of another run, and what the service manager
tells the supervisor.
"""

_WAYS = ("env", "self", "never")
"""Of resuming, that take no arguments."""

_MARK = re.compile(r"\{(?:snapshot|step|dir)\}")


def heartbeat(settings: Settings, directory: str) -> str | None:
    """The file whose every change is a life sign: the settings', or the preset's own in the checkpoint directory."""
    own = settings.preset.heartbeat
    return settings.trainer.heartbeat or (None if own is None else os.path.join(directory, own))


def arguments(settings: Settings, directory: str, snapshot: RungFact | None) -> list[str]:
    """The trainer's argv. `{snapshot}`, `{step}` and `{dir}` are filled in, each within its own word.

    For the bundled trainer a bare `python` is the interpreter that runs this, since that one has the trainer installed. What a
    preset adds comes last, where it counts whatever a config file among the words says.
    """
    words = list(settings.trainer.command)
    if settings.bundled and words[0] in ("python", "python3"):
        words[0] = sys.executable
    preset = settings.preset
    for word in (*preset.arguments, *(preset.resume_arguments if snapshot is not None else ())):
        words = _with(words, _filled(word, {"{dir}": directory}))
    if snapshot is None or settings.resume in _WAYS:
        return words
    values = {
        "{snapshot}": os.path.join(directory, snapshot.name),
        "{step}": "" if snapshot.step is None else str(snapshot.step),
        "{dir}": directory,
    }
    return words + [_filled(word, values) for word in shlex.split(settings.resume)]


def _with(words: list[str], argument: str) -> list[str]:
    """The words with `--key=value` in the place of whatever they say under that key, at the end."""
    key = argument.partition("=")[0] + "="
    return [word for word in words if not word.startswith(key)] + [argument]


def _filled(word: str, values: Mapping[str, str]) -> str:
    """All at once: a folder may be called `{step}`."""
    return _MARK.sub(lambda mark: values[mark[0]], word)


def environment(
    settings: Settings,
    directory: str,
    run_id: str,
    incarnation: int,
    snapshot: RungFact | None,
    inherited: Mapping[str, str],
    skip: Iterable[tuple[int, int]] = (),
) -> dict[str, str]:
    """The trainer's environment: what the supervisor inherited, the settings' additions, and the contract's names."""
    env = {name: value for name, value in inherited.items() if not name.startswith(NOT_PASSED_ON)}
    env.setdefault("PYTHONUNBUFFERED", "1")
    env |= settings.trainer.env
    env |= {
        contract.ENV_RUN_ID: run_id,
        contract.ENV_INCARNATION: str(incarnation),
        contract.ENV_SUPERVISED: "1",
        contract.ENV_RESUME: settings.resume if settings.resume in _WAYS else "arguments",
        contract.ENV_CHECKPOINT_DIR: directory,
        contract.ENV_NOTES: notes_file(directory),
    }
    if stretches := ",".join(f"{first}-{last}" for first, last in skip):
        env[contract.ENV_SKIP_STEPS] = stretches
    if settings.prunes:
        env[contract.ENV_PRUNES] = "1"
    if snapshot is not None and settings.resume == "env":
        env[contract.ENV_RESUME_FROM] = os.path.join(directory, snapshot.name)
        if snapshot.step is not None:
            env[contract.ENV_RESUME_STEP] = str(snapshot.step)
    return env


def notes_file(directory: str) -> str:
    """Where a trainer's saving and loading leaves notes."""
    return os.path.join(directory, contract.STATE_DIR, contract.NOTES_FILE)


def check_program(settings: Settings, where: str) -> None:
    """Refuse a command whose program is not there. Raises UsageError, in one line."""
    cwd = settings.trainer.cwd
    if not os.path.isdir(cwd):
        raise UsageError(f"{where}: trainer.cwd: {cwd!r} is not a folder; name the one the trainer starts in")
    search = settings.trainer.env.get("PATH", os.environ.get("PATH", os.defpath))
    commands = {
        "command": arguments(settings, settings.checkpoints.dir, None),
        "pre_start": settings.trainer.pre_start,
    }
    for key, program in ((key, words[0]) for key, words in commands.items() if words):
        if shutil.which(os.path.join(cwd, program) if "/" in program else program, path=search) is None:
            raise UsageError(
                f"{where}: trainer.{key}: {program!r} is not a program that can be run; check its spelling, PATH and mode"
            )


def check_arguments(settings: Settings, where: str) -> None:
    """Refuse a command that saves elsewhere than where its preset looks. Raises UsageError, in one line."""
    directory = os.path.realpath(settings.checkpoints.dir)
    for argument in settings.preset.arguments:
        key = argument.partition("=")[0]
        if "{dir}" in argument and "=" in directory:
            raise UsageError(
                f"{where}: checkpoints.dir: {directory!r} has a `=`, which {key}= of the preset "
                f"{settings.preset_name} does not take; name another folder"
            )
        for word in settings.trainer.command:
            given = os.path.join(settings.trainer.cwd, word.removeprefix(f"{key}="))
            if word.startswith(f"{key}=") and os.path.realpath(given) != directory:
                raise UsageError(
                    f"{where}: trainer.command: {word} is not the checkpoint directory {settings.checkpoints.dir!r}; "
                    f"leave {key} out, or name that folder in both"
                )

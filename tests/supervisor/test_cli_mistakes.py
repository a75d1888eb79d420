"""What a newcomer types wrongly, and where: one line with the cure, status 2; and help that a narrow terminal can show."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cli.app import app
from tests.bench import Bench
from tests.supervisor.test_cli_snapshots import bound_by_permissions

COMMANDS = [command.name or "" for command in app.registered_commands]
WITHOUT_WORDS = {"run", "ps", "events", "doctor"}  # these need none, or say so in words of their own


def one_line(done: "subprocess.CompletedProcess[str]") -> str:
    """What was said on standard error; that it is one line and all there is."""
    assert (2, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines())), done
    return done.stderr


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - WITHOUT_WORDS))
def test_a_command_without_its_word_says_what_is_missing(bench: Bench, command: str) -> None:
    """The line names the command, the word, and where help is."""
    said = one_line(bench.lastgood(command))

    assert said.startswith(f"lastgood: {command}: missing argument ")
    assert said.endswith(f"; `lastgood {command} --help` has the rest\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("runn", "x"), "no such command 'runn'; did you mean 'run'"),
        (("--bogus",), "no such option: --bogus"),
        (("list", "x", "--jobs", "0"), "--jobs"),
        (("stop", "x", "--timeout", "soon"), "--timeout"),
        (("salvage", "x"), "missing option '-o' / '--output'"),
        (("ps", "x"), "unexpected extra argument"),
        (("run", "--checkpoints"), "'--checkpoints' requires an argument"),
    ],
)
def test_a_wrong_word_is_one_line_with_the_cure(bench: Bench, words: tuple[str, ...], said: str) -> None:
    """An unknown command or option, a value that is none, a word too many: no screen of usage."""
    line = one_line(bench.lastgood(*words))

    assert said in line.replace("missing option '--output' / '-o'", "missing option '-o' / '--output'")
    assert " --help` has the rest" in line


def test_without_a_word_there_is_help(bench: Bench) -> None:
    """Whoever only types `lastgood` is shown the commands."""
    done = bench.lastgood()

    assert [] == [name for name in COMMANDS if f"\n  {name}" not in done.stderr + done.stdout]


def test_the_command_is_called_by_its_name(bench: Bench) -> None:
    """However it was started, its help says `lastgood`, as every page does."""
    assert bench.lastgood("run", "--help").stdout.startswith("Usage: lastgood run ")


def test_the_list_of_commands_cuts_no_sentence(bench: Bench) -> None:
    """Each command is told in one line of 80 columns."""
    said = bench.lastgood("--help").stdout

    assert [] == [line for line in said.splitlines()[1:] if line.endswith("...")]


@pytest.mark.parametrize("width", ["20", "40", "200"])
def test_help_is_there_at_any_width(bench: Bench, width: str) -> None:
    """A phone's terminal too: nothing breaks."""
    for command in ("run", "salvage"):
        done = bench.lastgood(command, "--help", env={**os.environ, "COLUMNS": width, "LC_ALL": "C", "TERM": "dumb"})
        assert (0, "") == (done.returncode, done.stderr)
        assert "Usage:" in done.stdout


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
@pytest.mark.parametrize("words", [("events",), ("list", "checkpoints"), ("status", "checkpoints"), ("doctor", ".")])
def test_a_narrow_terminal_and_a_c_locale_are_served(bench: Bench, words: tuple[str, ...], locale: str) -> None:
    """On a terminal of 40 columns that may know ASCII alone, a command says what it has to, with no traceback."""
    assert 0 == bench.run("--steps=6")
    master, slave = pty.openpty()
    env = {**os.environ, "COLUMNS": "40", "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    with subprocess.Popen(
        [sys.executable, "-m", "supervisor", *words], cwd=bench.folder, stdin=slave, stdout=slave, stderr=slave, env=env
    ) as process:
        os.close(slave)
        said = _all_of(master)
        status = process.wait(20)

    assert status in ((0, 1) if words[0] == "doctor" else (0,)), said
    assert b"Traceback" not in said


def _all_of(master: int) -> bytes:
    said = b""
    try:
        while piece := os.read(master, 1 << 16):
            said += piece
    except OSError:
        pass  # how a terminal says that nobody is left at its other side
    os.close(master)
    return said


def test_status_takes_the_config_of_a_run(bench: Bench) -> None:
    """Whoever started it with a config need not know its directory; what is neither is told with the cure."""
    assert 0 == bench.run("--steps=6")
    (bench.folder / "run.yaml").write_text("trainer: {command: [x], resume: never}\ncheckpoints: {dir: checkpoints}\n")
    done = bench.lastgood("status", "run.yaml")
    assert (0, True) == (done.returncode, "completed" in done.stdout), done.stderr

    for name, there in (("nowhere", False), ("fifo", True)):
        if there:
            os.mkfifo(bench.folder / name)
        assert f"status: {name}: " in one_line(bench.lastgood("status", name))
    assert "give a checkpoint directory" in one_line(bench.lastgood("status", "nowhere"))


def test_a_config_and_a_directory_are_not_given_together(bench: Bench) -> None:
    """`run CONFIG --checkpoints DIR` is not taken for a command called CONFIG."""
    (bench.folder / "run.yaml").write_text("trainer: {command: [x]}\n")
    said = one_line(bench.lastgood("run", "run.yaml", "--checkpoints", "x", "--resume", "never"))

    assert "--set checkpoints.dir=x" in said
    assert not (bench.folder / "x").exists()


def test_a_config_without_end_is_refused(bench: Bench) -> None:
    """A device in its place neither fills the memory nor holds anybody up; a pipe is read, as from `<(program)`."""
    for command in ("run", "check"):
        assert "/dev/zero: it is larger than " in one_line(bench.lastgood(command, "/dev/zero", timeout=20))
    read, write = os.pipe()
    os.write(write, b"run: {name: piped}\ntrainer: {command: ['true'], resume: never}\ncheckpoints: {dir: x}\n")
    os.close(write)
    done = bench.lastgood("check", f"/dev/fd/{read}", pass_fds=(read,))
    os.close(read)

    assert (0, True) == (done.returncode, "piped" in done.stdout), done.stderr


def test_what_is_not_sections_is_said_in_plain_words(bench: Bench) -> None:
    """No name of a Python type."""
    (bench.folder / "run.yaml").write_text("hello\n")

    assert "it holds a text, not sections" in one_line(bench.lastgood("run", "run.yaml"))


@pytest.mark.parametrize("command", ["verify", "seal", "inspect"])
def test_a_path_that_is_not_there_is_told_with_the_cure(bench: Bench, command: str, tmp_path: Path) -> None:
    """And so is a folder in which there is no snapshot."""
    (tmp_path / "empty").mkdir()
    assert re.search(
        r"nowhere: No such file or directory; give .*snapshot", one_line(bench.lastgood(command, "nowhere"))
    )
    assert re.search(r"empty .*; (give|`--pattern` says) ", one_line(bench.lastgood(command, "empty")))


def test_a_folder_that_is_gone_is_named(bench: Bench) -> None:
    """Whoever stands in a removed folder is told that, not that some output is missing."""
    script = (
        'mkdir gone && cd gone && rmdir ../gone && exec "$0" -m supervisor run --checkpoints x --resume never -- true'
    )
    done = subprocess.run(
        ["sh", "-c", script, sys.executable], cwd=bench.folder, capture_output=True, text=True, check=False, timeout=30
    )

    assert (1, 1, True) == (done.returncode, len(done.stderr.splitlines()), "the current folder is gone" in done.stderr)


def test_what_another_user_has_is_told_with_the_cure(bench: Bench) -> None:
    """A config, a directory or a run that this user may not read or write: nobody is sent to mend its content."""
    assert 0 == bench.run("--steps=6")
    config, state = bench.folder / "run.yaml", bench.directory / ".lastgood"
    config.write_text("trainer: {command: [x], resume: never}\n")
    config.chmod(0)
    state.chmod(0)
    try:
        for words in (("run", "run.yaml"), ("check", "run.yaml"), ("status", "run.yaml"), ("status", "checkpoints")):
            said = one_line(bench.lastgood(*words, preexec_fn=bound_by_permissions))
            assert said.endswith(f"{words[1]}: permission denied; give this user read permission\n")
        done = bench.lastgood("pause", "checkpoints", preexec_fn=bound_by_permissions)
    finally:
        state.chmod(0o755)

    assert (1, True) == (done.returncode, "pause it as the user who started it" in done.stderr)

"""A person's mistakes: one line that names the file, the key and the cure; exit 2; no traceback."""

import os
import sys
from pathlib import Path

import pytest

from tests.bench import Bench

GOOD = """
run: {name: x, final_step: 5}
trainer: {command: [sh, -c, 'true'], resume: never}
checkpoints: {dir: checkpoints}
"""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("trainer: {command: [sh", ["run.yaml", "line 1", "mend"]),
        ("- a\n- b\n", ["run.yaml", "list", "sections"]),
        (GOOD + "trianer: {}\n", ["run.yaml", "trianer", "did you mean 'trainer'?"]),
        (GOOD.replace("final_step", "final_stepp"), ["run.yaml", "run.final_stepp", "did you mean 'final_step'?"]),
        (GOOD.replace("final_step: 5", "final_step: soon"), ["run.yaml", "run.final_step", "integer", "'soon'"]),
        (GOOD.replace("final_step: 5", "final_step: 0"), ["run.yaml", "run.final_step", "greater than or equal to 1"]),
        (GOOD.replace("command: [sh, -c, 'true'], ", ""), ["run.yaml", "trainer.command", "there is no command"]),
        (GOOD.replace("[sh, -c, 'true']", "[no-such-program]"), ["run.yaml", "trainer.command", "no-such-program", "PATH"]),
        (GOOD.replace("[sh, -c, 'true']", "[/tmp]"), ["run.yaml", "trainer.command", "'/tmp'", "program"]),
        (GOOD.replace("{dir: checkpoints}", "{dir: /proc/nope}"), ["run.yaml", "checkpoints.dir", "/proc/nope", "not writable"]),
        (GOOD.replace("{dir: checkpoints}", "{dir: run.yaml}"), ["checkpoints.dir", "run.yaml", "not writable"]),
        (GOOD.replace("checkpoints: {dir: checkpoints}", ""), ["run.yaml", "checkpoints.dir", "write a folder"]),
        (GOOD.replace("resume: never", "resume: maybe"), ["run.yaml", "trainer.resume", "{snapshot}", "--resume env"]),
        (GOOD.replace(", resume: never", ""), ["run.yaml", "trainer.resume", "--resume env", "--resume never"]),
        (GOOD.replace("resume: never", "preset: lastgoood"), ["run.yaml", "trainer.preset", "did you mean 'lastgood'?"]),
        (GOOD.replace("{dir: checkpoints}", "{dir: x, keep: {last: 1}}"), ["checkpoints.keep.last", "fall back"]),
        (GOOD.replace("{dir: checkpoints}", "{dir: x, pattern: 'ckpt_*.pt'}"), ["checkpoints.pattern", "{step}"]),
        (GOOD.replace("resume: never", "resume: never, step_pattern: 'x'"), ["trainer.step_pattern", "?P<step>"]),
        (GOOD.replace("resume: never", "resume: never, cwd: /nowhere"), ["run.yaml", "trainer.cwd", "/nowhere"]),
        (GOOD + "restarts: {backoff_seconds: [5, 1]}\n", ["restarts.backoff_seconds", "larger"]),
        (GOOD.replace("[sh, -c, 'true']", "[sh, '{snapshot}']"), ["trainer.command", "trainer.resume"]),
    ],
)  # fmt: skip
def test_a_bad_config_is_one_line_with_the_cure(bench: Bench, content: str, said: list[str]) -> None:
    """Whatever is wrong with a config, the answer is one line and exit status 2."""
    (bench.folder / "run.yaml").write_text(content)
    done = bench.lastgood("run", "run.yaml")

    assert 2 == done.returncode, done.stderr
    assert 1 == len(done.stderr.strip().splitlines()), done.stderr
    assert "" == done.stdout
    assert [] == [part for part in said if part not in done.stderr], done.stderr


def test_a_missing_config_is_named(bench: Bench) -> None:
    """The path that is not there is in the message."""
    done = bench.lastgood("run", "nowhere.yaml")

    assert (2, True) == (done.returncode, "nowhere.yaml" in done.stderr and "no such file" in done.stderr)


@pytest.mark.parametrize("override", ["run.final_step", "run.name.x=1", "a b=[", "run.final_step=[1"])
def test_a_bad_override_is_named(bench: Bench, override: str) -> None:
    """What is wrong with a --set is said in one line."""
    (bench.folder / "run.yaml").write_text(GOOD)
    done = bench.lastgood("run", "run.yaml", "--set", override)

    assert (2, 1) == (done.returncode, len(done.stderr.strip().splitlines())), done.stderr


def test_a_command_whose_way_of_resuming_is_unknown_is_refused_with_the_choices(bench: Bench) -> None:
    """Without --resume nothing is started, and every choice is named."""
    done = bench.lastgood("run", "--checkpoints", "x", "--", sys.executable, "-c", "pass")

    assert 2 == done.returncode
    for choice in ("--resume env", "--resume '--resume_from={snapshot}'", "--resume self", "--resume never"):
        assert choice in done.stderr
    assert not (bench.folder / "x").exists()


@pytest.mark.parametrize("words", [("run",), ("run", "--checkpoints", "x", "--resume", "never"), ("run", "a", "b")])
def test_too_few_or_many_words_are_refused(bench: Bench, words: tuple[str, ...]) -> None:
    """Run needs one config, or a directory and a command."""
    done = bench.lastgood(*words)

    assert (2, 1) == (done.returncode, len(done.stderr.strip().splitlines())), done.stderr


def test_check_says_what_run_would_say(bench: Bench) -> None:
    """`check` accepts what `run` accepts, refuses what it refuses, starts nothing, and names what is inert."""
    (bench.folder / "run.yaml").write_text(GOOD + "metrics: {listen: '127.0.0.1:9464'}\n")
    done = bench.lastgood("check", "run.yaml")

    assert (0, True) == (done.returncode, "metrics.listen: accepted, but" in done.stderr)
    assert not (bench.folder / "checkpoints").exists()
    assert 2 == bench.lastgood("check", "nowhere.yaml").returncode


def test_the_reference_of_the_design_is_accepted(bench: Bench) -> None:
    """A config with every key set, also those that this version does not act on yet, is accepted."""
    (bench.folder / "run.yaml").write_text("""
run: {name: stdlib-char, final_step: 2000}
trainer:
  command: python -m trainer config/trainer/stdlib_char.yaml
  preset: lastgood
  resume: null
  step_pattern: null
  heartbeat: null
  pre_start: null
  cwd: .
  env: {A: 1}
  standby: auto
  grace_seconds: 60
checkpoints: {dir: out/x, pattern: null, keep: {last: 3, every: 0, best: 1}, shelf: 3, settle_seconds: 1.0, rescan_seconds: 5.0}
restarts: {without_progress: 5, per_window: 20, window_seconds: 3600, backoff_seconds: [1, 300]}
stall: {startup_seconds: 900, running_seconds: 600, saving_seconds: 900, exit_seconds: 120}
divergence: {rollbacks: 3}
notify: []
log: {format: auto, level: info}
metrics: {listen: null}
""")
    done = bench.lastgood("check", "run.yaml")

    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize("command", ["list", "latest", "status", "verify"])
def test_looking_at_nothing_is_a_usage_error(bench: Bench, command: str, tmp_path: Path) -> None:
    """A directory that is not there, or is a file, is named in one line."""
    (tmp_path / "file").write_text("x")
    for name in ("nowhere", "file") if command != "verify" else ("nowhere",):
        done = bench.lastgood(command, name)
        assert (2, 1) == (done.returncode, len(done.stderr.strip().splitlines())), done.stderr
        assert name in done.stderr


OPTIONAL = ("ledger", "wanted.json", "status.json", "faults.jsonl", "notes.jsonl", "seals/step_10.pt.json")


def _something_else(bench: Bench, name: str, kind: str) -> None:
    """Put a pipe, or a link to a device without end, in the place of a file of the supervisor's."""
    path = bench.directory / ".lastgood" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["fifo", "device"])
@pytest.mark.parametrize("name", ["run.json", "supervisor.lock"])
def test_what_must_be_a_file_and_is_none_is_refused(bench: Bench, name: str, kind: str) -> None:
    """A pipe or a device in the place of what must last neither holds up nor feeds the supervisor: one line, exit 2."""
    _something_else(bench, name, kind)
    done = bench.lastgood(*bench.command("--steps=20"), timeout=30)

    assert (2, 1) == (done.returncode, len(done.stderr.strip().splitlines())), done.stderr
    assert f"{name}: " in done.stderr
    assert "Not a regular file" in done.stderr
    assert not (bench.directory / "starts.txt").exists()


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_what_can_be_done_without_holds_nobody_up(bench: Bench, kind: str) -> None:
    """A pipe or a device in the place of the supervisor's other files counts for nothing, and the run goes on."""
    assert 0 == bench.run("--steps=10")
    for name in OPTIONAL:
        _something_else(bench, name, kind)
    done = bench.lastgood(*bench.command("--steps=20", sets=("run.final_step=20",)), timeout=30)

    assert 0 == done.returncode, done.stderr
    assert ["0", "10"] == bench.starts()
    assert 0 == bench.lastgood("list", str(bench.directory), timeout=30).returncode

"""What a trainer is started with: the words and the environment that were meant, and no others."""

import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor import launch
from supervisor.core.events import RungFact
from supervisor.errors import UsageError
from supervisor.settings import Settings

DIRECTORY = "/data/my runs/it's {step}"
SNAPSHOT = RungFact("ckpt_00000010.pt", 10)


def chosen(command: list[str] | None = None, resume: str | None = "--from={snapshot}", **trainer: Any) -> Settings:
    words = ["prog", "--flag"] if command is None else command
    return Settings.model_validate(
        {"trainer": {"command": words, "resume": resume, **trainer}, "checkpoints": {"dir": "x"}}
    )


def test_a_first_start_has_the_command_alone() -> None:
    """Without a snapshot nothing is added, however resuming is done."""
    for resume in ("env", "self", "never", "--from={snapshot}"):
        assert ["prog", "--flag"] == launch.arguments(chosen(resume=resume), DIRECTORY, None)


@pytest.mark.parametrize("resume", ["env", "self", "never"])
def test_a_trainer_that_is_not_told_by_arguments_gets_none(resume: str) -> None:
    """Its command stays as it is."""
    assert ["prog", "--flag"] == launch.arguments(chosen(resume=resume), DIRECTORY, SNAPSHOT)


@pytest.mark.parametrize(
    ("resume", "added"),
    [
        ("--from={snapshot}", [f"--from={DIRECTORY}/ckpt_00000010.pt"]),
        ("--resume_from_checkpoint {snapshot}", ["--resume_from_checkpoint", f"{DIRECTORY}/ckpt_00000010.pt"]),
        ("--step {step} --dir {dir}", ["--step", "10", "--dir", DIRECTORY]),
        ("{dir}:{step}:{snapshot}", [f"{DIRECTORY}:10:{DIRECTORY}/ckpt_00000010.pt"]),
        ("--a='{snapshot} at {step}'", [f"--a={DIRECTORY}/ckpt_00000010.pt at 10"]),
        ("--same={step},{step} {other} {} {snapshot", ["--same=10,10", "{other}", "{}", "{snapshot"]),
    ],
)
def test_marks_are_filled_in_within_their_own_word(resume: str, added: list[str]) -> None:
    """Spaces, quotes and even marks in a path neither split a word nor are filled in again; other braces stay."""
    assert ["prog", "--flag", *added] == launch.arguments(chosen(resume=resume), DIRECTORY, SNAPSHOT)


@pytest.mark.parametrize(
    "name", ["a b.pt", 'a"b.pt', "a'b.pt", "$HOME.pt", "{dir}{step}.pt", "\\n.pt", "*.pt", "\udcff.pt"]
)
def test_the_name_of_a_snapshot_is_passed_on_as_it_is(name: str) -> None:
    """No shell sees it."""
    words = launch.arguments(chosen(), "/d", RungFact(name, 10))

    assert ["prog", "--flag", f"--from=/d/{name}"] == words


def test_an_unknown_step_is_nothing() -> None:
    """Where nothing tells a step, its mark is filled with nothing rather than with None."""
    words = launch.arguments(chosen(resume="--from={snapshot} --step={step}"), "/d", RungFact("last.pt", None))

    assert ["--from=/d/last.pt", "--step="] == words[-2:]


@pytest.mark.parametrize(
    ("command", "first"),
    [
        (["python", "-m", "trainer", "c.yaml"], sys.executable),
        (["python3", "-u", "-m", "trainer"], sys.executable),
        (["/usr/bin/python3", "-m", "trainer"], "/usr/bin/python3"),
        (["python3.12", "-m", "trainer"], "python3.12"),
        (["torchrun", "-m", "trainer"], "torchrun"),
        (["python", "train.py"], "python"),
        (["python", "-m", "trainers"], "python"),
        (["python", "-m", "other", "trainer"], "python"),
        (["python", "train.py", "-m", "trainer"], "python"),
    ],
)
def test_only_the_bundled_trainers_python_is_this_interpreter(command: list[str], first: str) -> None:
    """A bare `python -m trainer` runs where the trainer is installed; anybody else's python is theirs."""
    words = launch.arguments(chosen(command), "/d", None)

    assert [first, *command[1:]] == words


def environment(settings: Settings, snapshot: RungFact | None = None, **inherited: str) -> dict[str, str]:
    return launch.environment(settings, "/d", "run-1", 3, snapshot, inherited)


CONTRACT = {
    "LASTGOOD_RUN_ID": "run-1",
    "LASTGOOD_INCARNATION": "3",
    "LASTGOOD_SUPERVISED": "1",
    "LASTGOOD_CHECKPOINT_DIR": "/d",
    "LASTGOOD_NOTES": "/d/.lastgood/notes.jsonl",
    "LASTGOOD_RESUME": "env",
    "PYTHONUNBUFFERED": "1",
}


def test_the_contracts_names_are_set_and_the_rest_is_passed_on() -> None:
    """A trainer knows its run, its incarnation and its directory, and keeps what the person's shell gave it."""
    assert {**CONTRACT, "HOME": "/h", "A": "1"} == environment(chosen(env={"A": 1}, resume="env"), HOME="/h")


def test_a_trainer_that_reads_the_environment_is_told_what_to_resume_from() -> None:
    """Path and step of the snapshot; an unknown step is not said."""
    told = {"LASTGOOD_RESUME_FROM": "/d/ckpt_00000010.pt", "LASTGOOD_RESUME_STEP": "10"}

    assert CONTRACT | told == environment(chosen(resume="env"), SNAPSHOT)
    assert CONTRACT | {"LASTGOOD_RESUME_FROM": "/d/a.pt"} == environment(chosen(resume="env"), RungFact("a.pt", None))
    assert CONTRACT == environment(chosen(resume="env"))


@pytest.mark.parametrize(("resume", "way"), [("self", "self"), ("never", "never"), ("--from={snapshot}", "arguments")])
def test_other_trainers_are_not_told_by_the_environment(resume: str, way: str) -> None:
    """One way of resuming is enough, two could disagree; but which it is they may know."""
    assert CONTRACT | {"LASTGOOD_RESUME": way} == environment(chosen(resume=resume), SNAPSHOT)


def test_what_belongs_to_another_run_or_to_the_service_manager_is_dropped() -> None:
    """A supervisor started by a trainer, or by systemd, does not pass on what was said to itself."""
    stale = dict.fromkeys(
        ["LASTGOOD_RESUME_FROM", "LASTGOOD_RESUME_STEP", "LASTGOOD_RUN_ID", "LASTGOOD_ANYTHING", "NOTIFY_SOCKET",
         "JOURNAL_STREAM"],
        "stale",
    )  # fmt: skip

    assert CONTRACT == environment(chosen(resume="env"), None, **stale)


@pytest.mark.parametrize(
    ("inherited", "given", "expected"),
    [({}, {}, "1"), ({"PYTHONUNBUFFERED": ""}, {}, ""), ({}, {"PYTHONUNBUFFERED": "0"}, "0"),
     ({"PYTHONUNBUFFERED": "x"}, {"PYTHONUNBUFFERED": "y"}, "y")],
)  # fmt: skip
def test_a_persons_own_buffering_is_respected(inherited: dict[str, str], given: dict[str, str], expected: str) -> None:
    """Output is unbuffered, unless the shell or the settings say otherwise; the settings have the last word."""
    assert expected == environment(chosen(env=given), None, **inherited)["PYTHONUNBUFFERED"]


def test_the_settings_may_replace_what_was_inherited() -> None:
    """`trainer.env` wins over the shell."""
    assert "2" == environment(chosen(env={"A": "2"}), None, A="1")["A"]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "my program"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_program_is_found_where_the_trainer_would_find_it(tmp_path: Path, program: Path) -> None:
    """By its path, from the trainer's own folder, or in the PATH that the trainer is given."""
    for settings in (
        chosen([str(program)]),
        chosen(["bin/my program"], cwd=str(tmp_path)),
        chosen(["./my program"], cwd=str(program.parent)),
        chosen(["my program"], env={"PATH": str(program.parent)}),
        chosen(["python", "-m", "trainer"], env={"PATH": ""}, resume=None),
    ):
        launch.check_program(settings, "run.yaml")


@pytest.mark.parametrize("word", ["no-such-program", "", "bin", "bin/my program", "./bin", "plain", "a\nb\x1b[2J"])
def test_what_cannot_be_run_is_refused_in_one_line(tmp_path: Path, program: Path, word: str) -> None:
    """A misspelt program, a folder, a file without permission: the file, the key, the word and the cure are named."""
    (tmp_path / "plain").write_text("x")
    if word == "bin/my program":
        program.chmod(0o644)

    with pytest.raises(UsageError) as caught:
        launch.check_program(chosen([word], cwd=str(tmp_path), env={"PATH": str(tmp_path)}), "run.yaml")
    said = str(caught.value)
    assert said.startswith("run.yaml: trainer.command: ")
    assert [] == [part for part in (repr(word), "PATH", "mode") if part not in said]
    assert [said] == said.splitlines()


@pytest.mark.parametrize("name", ["nowhere", "file", "no\nwhere"])
def test_a_folder_to_start_in_that_is_none_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    """`trainer.cwd` must be a folder."""
    (tmp_path / "file").write_text("x")
    cwd = str(tmp_path / name)

    with pytest.raises(UsageError) as caught:
        launch.check_program(chosen(cwd=cwd), "run.yaml")
    assert f"run.yaml: trainer.cwd: {cwd!r} is not a folder; name the one the trainer starts in" == str(caught.value)


def test_a_trainer_is_told_which_data_to_skip() -> None:
    """Stretches of steps, told with every start; without any the variable is not there."""
    told = launch.environment(chosen(resume="env"), "/d", "run-1", 3, None, {}, ((120, 140), (7, 7)))

    assert CONTRACT | {"LASTGOOD_SKIP_STEPS": "120-140,7-7"} == told


@pytest.mark.parametrize(
    ("trainer", "file"),
    [
        ({}, None),
        ({"heartbeat": "/x/beat"}, "/x/beat"),
        ({"preset": "lastgood"}, f"{DIRECTORY}/metrics.jsonl"),
        ({"preset": "lastgood", "heartbeat": "/x/beat"}, "/x/beat"),
    ],
)
def test_the_heartbeat_is_the_settings_or_the_presets_own(trainer: dict[str, Any], file: str | None) -> None:
    """What the bundled trainer writes with every step lies in the checkpoint directory."""
    assert file == launch.heartbeat(chosen(**trainer), DIRECTORY)

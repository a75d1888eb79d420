"""Settings: whatever a person writes is taken as it was meant, or refused in one line with the cure."""

import re
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as thoroughness
from hypothesis import strategies as st
from pydantic import BaseModel

from lastgood.keep import Keep
from supervisor import configuration, launch, reference
from supervisor.core.events import RungFact
from supervisor.core.state import Resume, Stall
from supervisor.errors import UsageError
from supervisor.notify import Target
from supervisor.presets import GENERAL_STEP_PATTERN, PRESETS
from supervisor.settings import KeepSettings, Settings, inert

ROOT = Path(__file__).parents[2]
GOOD: dict[str, Any] = {"trainer": {"command": ["sh", "-c", "true"], "resume": "never"}, "checkpoints": {"dir": "x"}}
GOOD_SETS = ["trainer.command=[sh, -c, 'true']", "trainer.resume=never", "checkpoints.dir=x"]
SECONDS_MAX = 1.0

CHANGED: dict[str, tuple[str, object]] = {
    "run.name": ("night", "night"),
    "run.final_step": ("2000", 2000),
    "trainer.command": ("python train.py --lr=0.1", ["python", "train.py", "--lr=0.1"]),
    "trainer.preset": ("lastgood", "lastgood"),
    "trainer.resume": ("'--from={snapshot}'", "--from={snapshot}"),
    "trainer.step_pattern": (r"'at (?P<step>\d+)'", r"at (?P<step>\d+)"),
    "trainer.heartbeat": ("beat", "beat"),
    "trainer.pre_start": ("make data", ["make", "data"]),
    "trainer.cwd": ("/tmp", "/tmp"),
    "trainer.env": ("{A: 1, B: 'x y'}", {"A": "1", "B": "x y"}),
    "trainer.standby": ("off", "off"),
    "trainer.grace_seconds": ("90", 90.0),
    "checkpoints.dir": ("out/other", "out/other"),
    "checkpoints.pattern": ("'model_{step}.bin'", "model_{step}.bin"),
    "checkpoints.keep.last": ("5", 5),
    "checkpoints.keep.every": ("100", 100),
    "checkpoints.keep.best": ("2", 2),
    "checkpoints.shelf": ("4", 4),
    "checkpoints.quarantine_bytes": ("1000000", 1_000_000),
    "checkpoints.settle_seconds": ("0", 0.0),
    "checkpoints.rescan_seconds": ("0.5", 0.5),
    "restarts.without_progress": ("1", 1),
    "restarts.per_window": ("9", 9),
    "restarts.window_seconds": ("60", 60.0),
    "restarts.backoff_seconds": ("[0, 0.5]", [0.0, 0.5]),
    "stall.startup_seconds": ("1", 1.0),
    "stall.running_seconds": ("2", 2.0),
    "stall.saving_seconds": ("3", 3.0),
    "stall.exit_seconds": ("4.5", 4.5),
    "divergence.rollbacks": ("0", 0),
    "notify": ("['mailto://a@b']", [Target(url="mailto://a@b")]),
    "chaos.mean_seconds": ("3600", 3600.0),
    "chaos.kinds": ("[kill-tree]", ["kill-tree"]),
    "chaos.seed": ("9", 9),
    "log.format": ("json", "json"),
    "log.level": ("error", "error"),
    "metrics.listen": ("'127.0.0.1:9464'", "127.0.0.1:9464"),
}
"""For every key another value than its default, as one would write it after `--set`, and what is meant."""


def leaves(part: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any, bool]]:
    """Every key with its value, and whether it is marked as not acted upon yet."""
    for name, field in type(part).model_fields.items():
        value = KeepSettings() if name == "keep" and getattr(part, name) is None else getattr(part, name)
        if isinstance(value, BaseModel):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value, bool(field.json_schema_extra)


DEFAULTS = Settings.model_validate(GOOD)
KEYS = [key for key, _, _ in leaves(DEFAULTS)]
SECTIONS = sorted({key.rpartition(".")[0] for key in KEYS} - {""})


def write(folder: Path, content: object) -> str:
    """A YAML file; text is written as it is."""
    path = folder / "run.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def put(key: str, value: object) -> dict[str, Any]:
    """The good tree with something else under a key."""
    tree: dict[str, Any] = yaml.safe_load(yaml.safe_dump(GOOD))
    inner = tree
    *parents, last = key.split(".")
    for parent in parents:
        inner = inner.setdefault(parent, {})
    inner[last] = value
    return tree


def refused(path: str, *sets: str) -> str:
    """What is said against a file, which must be one line."""
    with pytest.raises(UsageError) as caught:
        configuration.load(path, list(sets))
    said = str(caught.value)
    assert [said] == said.splitlines()
    assert said.isprintable()
    return said


def test_the_table_of_this_test_knows_every_key() -> None:
    """A new key needs a row."""
    assert sorted(KEYS) == sorted(CHANGED)


@pytest.mark.parametrize("key", CHANGED)
def test_every_key_can_be_set_on_the_command_line(tmp_path: Path, key: str) -> None:
    """`--set` changes its key and no other, over a file as without one."""
    text, meant = CHANGED[key]
    unchanged = {k: v for k, v, _ in leaves(DEFAULTS) if k != key}
    for found in (
        configuration.load(write(tmp_path, GOOD), [f"{key}={text}"]),
        configuration.load(None, [*GOOD_SETS, f"{key}={text}"]),
    ):
        values = {k: v for k, v, _ in leaves(found)}
        assert meant == values.pop(key)
        assert unchanged == values


@pytest.mark.parametrize("key", CHANGED)
def test_every_key_means_the_same_in_a_file(tmp_path: Path, key: str) -> None:
    """What `--set` takes is what one writes behind the colon."""
    text, meant = CHANGED[key]
    found = configuration.load(write(tmp_path, put(key, yaml.safe_load(text))), [])

    assert meant == {k: v for k, v, _ in leaves(found)}[key]


@pytest.mark.parametrize("key", CHANGED)
def test_exactly_what_is_not_acted_upon_is_named(tmp_path: Path, key: str) -> None:
    """A key that does nothing yet is named when it was changed, and only then."""
    text, _ = CHANGED[key]
    marked = {k: later for k, _, later in leaves(DEFAULTS)}

    assert ([key] if marked[key] else []) == inert(configuration.load(write(tmp_path, GOOD), [f"{key}={text}"]))


def test_settings_that_are_left_alone_are_not_named() -> None:
    """Defaults, even written out, are no wishes."""
    everything = Settings.model_validate(
        GOOD | {"metrics": {"listen": None}, "notify": [], "divergence": {"rollbacks": 3}}
    )

    assert [] == inert(DEFAULTS) == inert(everything)


def test_several_inert_keys_are_all_named() -> None:
    """Nothing that was wished for is left out, whatever section it is in."""
    tree = put("trainer.standby", "on") | {"stall": {"saving_seconds": 1}, "metrics": {"listen": "x"}}

    assert ["metrics.listen"] == inert(Settings.model_validate(tree))


# What YAML makes of what people write.


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[srun, --time, 10:00:00, python]", ["srun", "--time", "10:00:00", "python"]),
        ("[a, 010, 0x10, 1_000, 1.10, 1e-3, .5, 5]", ["a", "010", "0x10", "1_000", "1.10", "1e-3", ".5", "5"]),
        ("[a, yes, No, on, true, 2026-01-02]", ["a", "yes", "No", "on", "true", "2026-01-02"]),
        ("[a, !!int 5, .inf]", ["a", "5", ".inf"]),
        ("python train.py --time 10:00:00", ["python", "train.py", "--time", "10:00:00"]),
        ("python 'a b' \"c d\" e\\ f", ["python", "a b", "c d", "e f"]),
    ],
)
def test_the_words_of_a_command_stay_as_they_were_written(tmp_path: Path, line: str, words: list[str]) -> None:
    """No word becomes another because YAML sees a number, a date or a boolean in it."""
    path = write(tmp_path, f"trainer:\n  command: {line}\n  resume: never\ncheckpoints: {{dir: x}}\n")

    assert words == configuration.load(path, []).trainer.command
    assert words == configuration.load(write(tmp_path, GOOD), [f"trainer.command={line}"]).trainer.command


@pytest.mark.parametrize("text", ["1.10", "010", "10:00:00", "on", "1e5", "true", "2026-01-02", "0x10", "'5'", "five"])
def test_the_values_of_variables_stay_as_they_were_written(tmp_path: Path, text: str) -> None:
    """A version is no number; and on the command line the same holds."""
    path = write(tmp_path, f"trainer: {{command: [sh], resume: never, env: {{A: {text}}}}}\ncheckpoints: {{dir: x}}\n")

    assert {"A": text.strip("'")} == configuration.load(path, []).trainer.env
    assert {"A": text.strip("'")} == configuration.load(write(tmp_path, GOOD), [f"trainer.env.A={text}"]).trainer.env


def test_a_word_that_is_also_a_number_elsewhere_is_both(tmp_path: Path) -> None:
    """An anchored value is text among the words and a number where a number is wanted."""
    text = "run: {final_step: &n 2_000}\ntrainer: {command: [sh, *n], resume: never}\ncheckpoints: {dir: x}\n"
    found = configuration.load(write(tmp_path, text), [])

    assert (2000, ["sh", "2_000"]) == (found.run.final_step, found.trainer.command)


def test_words_given_by_a_program_may_be_numbers() -> None:
    """A tree that did not come from YAML holds numbers as such."""
    tree = {"trainer": {"command": ["sh", 5, 0.5], "env": {"A": 1}, "resume": "never"}, "checkpoints": {"dir": "x"}}
    found = Settings.model_validate(tree)

    assert (["sh", "5", "0.5"], {"A": "1"}) == (found.trainer.command, found.trainer.env)


@pytest.mark.parametrize(
    ("word", "meant"), [("on", "on"), ("off", "off"), ("yes", "on"), ("no", "off"), ("auto", "auto")]
)
def test_on_and_off_may_be_written_as_yaml_booleans(tmp_path: Path, word: str, meant: str) -> None:
    """A switch takes what YAML makes of the word, quoted or not."""
    found = configuration.load(write(tmp_path, GOOD), [f"trainer.standby={word}"])

    assert meant == found.trainer.standby


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("run.name", "on", "run.name: input should be a valid string, not True; put it in quotes"),
        ("run.name", "2024", "run.name: input should be a valid string, not 2024; put it in quotes"),
        ("run.name", "2024-01-01", "put it in quotes"),
        ("run.name", "2024-13-45", "'2024-13-45' is no timestamp; put it in quotes"),
        ("run.name", "''", "run.name: string should have at least 1 character"),
        ("run.final_step", "'2000'", "run.final_step: input should be a valid integer, not '2000'"),
        ("run.final_step", "2e3", "run.final_step: input should be a valid integer, not '2e3'"),
        ("run.final_step", "2000.5", "run.final_step: input should be a valid integer, not 2000.5"),
        ("run.final_step", "yes", "run.final_step: input should be a valid integer, not True"),
        ("run.final_step", "0", "run.final_step: input should be greater than or equal to 1"),
        ("run.final_step", "9" * 40, "run.final_step: input should be less than or equal to"),
        ("run.final_step", "9" * 5000, "is no int"),
        ("run.final_step", "0x" + "f" * 5000, "run.final_step: input should be less than or equal to"),
        ("run.name", "0x" + "f" * 5000, "not a number of that length"),
        ("run.final_steps", "1", "run.final_steps: there is no such key; did you mean 'final_step'?"),
        ("trainer.resume", "no", "trainer.resume: input should be a valid string, not False; put it in quotes"),
        ("trainer.resume", "maybe", "trainer.resume: 'maybe' holds no {snapshot}"),
        ("trainer.resume", "'{dir}'", "holds no {snapshot}"),
        ("trainer.resume", "\"'{snapshot}\"", "trainer.resume: No closing quotation"),
        ("trainer.command", "\"sh '\"", "trainer.command: No closing quotation"),
        ("trainer.command", "5", "trainer.command: input should be a valid list, not 5"),
        ("trainer.command", "[]", "trainer.command: there is no command"),
        ("trainer.command", "", "trainer.command: there is no command"),
        ("trainer.command", "[sh, 'x{snapshot}']", "trainer.command: it holds {snapshot}, which a first start does not have"),
        ("trainer.command", "[sh, [a]]", "trainer.command.1: input should be a valid string, not ['a']"),
        ("trainer.command", "[sh, ~]", "trainer.command.1: input should be a valid string, not None"),
        ("trainer.command", '[sh, "a\\0b"]', "trainer.command.1: it holds a NUL character"),
        ("trainer.cwd", '"a\\0b"', "trainer.cwd: it holds a NUL character"),
        ("checkpoints.dir", '"a\\0b"', "checkpoints.dir: it holds a NUL character"),
        ("checkpoints.dir", "''", "checkpoints.dir: it is not said where snapshots appear"),
        ("trainer.env", "{A: [x]}", "trainer.env.A: input should be a valid string"),
        ("trainer.env", "{1: x}", "trainer.env.1: input should be a valid string"),
        ("trainer.env", "{'': x}", "trainer.env.: '' cannot be the name of a variable"),
        ("trainer.env", "{'A=B': x}", "'A=B' cannot be the name of a variable"),
        ("trainer.env", "{LASTGOOD_RESUME_FROM: x}", "trainer.env.LASTGOOD_RESUME_FROM: variables of this name are the"),
        ("trainer.standby", "perhaps", "trainer.standby: input should be 'auto', 'on' or 'off', not 'perhaps'"),
        ("trainer.preset", "lastgoood", "trainer.preset: 'lastgoood' is not one of"),
        ("trainer.step_pattern", "'('", "trainer.step_pattern: not a regular expression"),
        ("trainer.step_pattern", r"'\N{DIGIT ONE}(?P<step>1)'", "trainer.step_pattern: not a regular expression for bytes"),
        ("trainer.step_pattern", "'(?P<step>a{99999999999})'", "trainer.step_pattern: the repetition number is too large"),
        ("trainer.step_pattern", "'(?P<steps>1)'", "trainer.step_pattern: it has no group named step"),
        ("checkpoints.pattern", "'a{99999999999}'", "checkpoints.pattern: the repetition number is too large"),
        ("checkpoints.keep.lasst", "3", "checkpoints.keep.lasst: there is no such key; did you mean 'last'?"),
        ("checkpoints.keep.last", "1", "checkpoints.keep.last: at least 2 snapshots must be kept"),
        ("checkpoints.keep", "3", "checkpoints.keep: it should be a section with keys of its own, not 3"),
        ("checkpoints.rescan_seconds", "1000000", "checkpoints.rescan_seconds: input should be less than or equal to 86400"),
        ("restarts.backoff_seconds", "[5]", "restarts.backoff_seconds: list should have at least 2 items"),
        ("restarts.backoff_seconds", "[5, x]", "restarts.backoff_seconds.1: input should be a valid number, not 'x'"),
        ("restarts.backoff_seconds", "[5, 1]", "restarts.backoff_seconds: the first delay 5.0 is larger"),
        ("stall.exit_seconds", ".nan", "stall.exit_seconds: input should be"),
        ("stall.exit_seconds", ".inf", "stall.exit_seconds: input should be a finite number, not inf"),
        ("stall.exit_seconds", "-1", "stall.exit_seconds: input should be greater than or equal to 0, not -1"),
        ("stall.exit_seconds", "9" * 400, "stall.exit_seconds: it is too large"),
        ("stall.exit_seconds", "true", "stall.exit_seconds: input should be a valid number, not True"),
        ("log.level", "debug", "log.level: input should be 'info', 'warning' or 'error', not 'debug'"),
        ("log", "[]", "log: it should be a section with keys of its own, not []"),
        ("function-x", "1", "function-x: there is no such key"),
        ("list[x", "1", "list[x: there is no such key"),
        ("trianer", "{}", "trianer: there is no such key; did you mean 'trainer'?"),
    ],
    ids=lambda value: ascii(value)[:40],
)  # fmt: skip
def test_a_mistake_is_told_with_its_key_and_what_was_found(tmp_path: Path, key: str, text: str, said: str) -> None:
    """A wrong value is refused in one line, whether it stands in the file or after `--set`."""
    head, _, last = key.rpartition(".")
    lines = {"": f"{last}: {text}\n", "run": f"run: {{{last}: {text}}}\n"}.get(head)
    assert said in refused(write(tmp_path, GOOD), f"{key}={text}")
    if lines is not None and key != "trainer":
        told = refused(write(tmp_path, yaml.safe_dump(GOOD) + lines))
        assert said in told
        assert told.startswith(str(tmp_path / "run.yaml"))


def test_how_many_more_mistakes_there_are_is_said(tmp_path: Path) -> None:
    """One is told, the others are counted."""
    assert refused(write(tmp_path, GOOD | {"a": 1, "b": 2, "c": 3})).endswith("a: there is no such key (and 2 more)")


@pytest.mark.parametrize("env", [{"TOKEN": ["hunter2"]}, "TOKEN=hunter2", ["hunter2"], {"TOKEN": {"hunter2": 1}}])
def test_secrets_are_not_shown(tmp_path: Path, env: object) -> None:
    """What stands wrongly under `trainer.env` is not quoted: values of variables are often secrets."""
    assert "hunter2" not in refused(write(tmp_path, put("trainer.env", env)))
    assert "hunter2" not in refused(write(tmp_path, GOOD | {"trainer": [{"env": env}]}))


def test_sections_with_nothing_in_them_are_as_if_absent(tmp_path: Path) -> None:
    """Everything below `restarts:` may be commented out, and `--set` may still fill it."""
    text = yaml.safe_dump(GOOD) + "restarts:\n#  per_window: 5\nnotify:\nrun:\n"

    assert DEFAULTS == configuration.load(write(tmp_path, text), [])
    assert 7 == configuration.load(write(tmp_path, text), ["run.final_step=7"]).run.final_step


def test_variables_with_nothing_in_them_are_none(tmp_path: Path) -> None:
    """`env:` with everything below it commented out."""
    assert {} == configuration.load(write(tmp_path, put("trainer.env", None)), []).trainer.env


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run: {name: a}\ntrainer: {}\nrun: {final_step: 1}\n", "line 3, column 1: 'run' is there twice"),
        ("trainer:\n  cwd: a\n  cwd: b\n", "line 3, column 3: 'cwd' is there twice"),
        ("trainer: {command: [sh", "line 1"),
        ("a: b: c\n", "line 1, column 5"),
        ("run:\n\tname: x\n", "line 2, column 1"),
        ("a: 'b\n", "line 2"),
        ("--- {}\n--- {}\n", "line 2"),
        ("run: !!python/object:os.system {}\n", "could not determine a constructor"),
        ("run: !!timestamp x\n", "'x' is no timestamp"),
        ("run: !!bool maybe\n", "'maybe' is no bool"),
        ("run: !!int x\n", "'x' is no int"),
        ("run: !!binary '\xe9'\n", "line 1"),
        ("? [a]\n: b\n", "unhashable key"),
        ("run: *nobody\n", "undefined alias"),
        ("run: \x01\n", "character 6 cannot stand in YAML"),
        ("[" * 5000 + "]" * 5000, "nested too deeply"),
        ("a: " * 1, "a: there is no such key"),
        ("- a\n", "it holds a list, not sections"),
        ("just text\n", "it holds a text, not sections"),
        ("5\n", "it holds one value, not sections"),
        ("", "trainer.command: there is no command"),
        ("# nothing\n", "trainer.command: there is no command"),
        ("run: &a [*a]\n", "run: it should be a section"),
        ("a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
         "d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e]\n"
         "run: [*f,*f,*f,*f,*f,*f,*f,*f]\n", "run: it should be a section"),
    ],
    ids=lambda value: ascii(value)[:30],
)  # fmt: skip
def test_a_file_that_is_no_settings_is_told_with_the_place(tmp_path: Path, text: str, said: str) -> None:
    """Whatever is wrong with the YAML, one line names the file, where, and what."""
    told = refused(write(tmp_path, text))

    assert told.startswith(str(tmp_path / "run.yaml"))
    assert said in told


def test_merge_keys_are_no_doubles(tmp_path: Path) -> None:
    """A key may be taken over from an anchor and then said otherwise."""
    text = "run: &r {name: a, final_step: 5}\n" + yaml.safe_dump(GOOD)
    found = configuration.load(write(tmp_path, text + "stall: {<<: {exit_seconds: 1}, exit_seconds: 2}\n"), [])

    assert ("a", 2.0) == (found.run.name, found.stall.exit_seconds)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a: \xe9\n"])
def test_a_file_that_is_no_text_is_told(tmp_path: Path, content: bytes) -> None:
    """Bytes that are no UTF-8 are refused as such."""
    (tmp_path / "run.yaml").write_bytes(content)

    assert "cannot be read" in refused(str(tmp_path / "run.yaml"))


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    """Some editors write one."""
    (tmp_path / "run.yaml").write_bytes(b"\xef\xbb\xbf" + yaml.safe_dump(GOOD).encode())

    assert DEFAULTS == configuration.load(str(tmp_path / "run.yaml"), [])


def test_a_file_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    """One that is not there, or is a folder, is named, even by a name that would spoil the terminal."""
    assert "there is no such file" in refused(str(tmp_path / "nowhere\n\x1b[2J.yaml"))
    assert "cannot be read: Is a directory" in refused(str(tmp_path))


@pytest.mark.parametrize(
    "override",
    ["", "=", "a", "=1", "a.=1", ".a=1", "a..b=1", "run.name.x=1", "run.name=[", "notify.0=x", "a\nb=1", "run=\x1b"],
)
def test_an_override_that_cannot_be_is_told(tmp_path: Path, override: str) -> None:
    """It is quoted, in one line."""
    told = refused(write(tmp_path, GOOD | {"notify": [], "run": {"name": "x"}}), override)

    assert "--set" in told or "there is no such key" in told


def test_the_base_of_a_command_line_is_left_as_it_was() -> None:
    """Overrides change the settings and not the tree they are laid over."""
    base = put("run.name", "a")
    before = yaml.safe_dump(base)
    found = configuration.load(None, ["run.name=b", "stall.exit_seconds=1"], base)

    assert ("b", before) == (found.run.name, yaml.safe_dump(base))


keys = (
    st.text(max_size=8)
    | st.integers()
    | st.none()
    | st.booleans()
    | st.dates()
    | st.sampled_from([*KEYS, "function-x"])
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 10**18, 10**400, 2**63])
    | st.floats()
    | st.text(st.characters(codec=None), max_size=20)
    | st.sampled_from(
        ["", "\0", "on", "{snapshot}", "(?P<step>1)", "a{9999999999}", "ckpt_*.pt", "[[a]", "'", "env", "self"]
    )
    | st.dates()
    | st.datetimes()
    | st.binary(max_size=5)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=8
)
spots = st.sampled_from([*KEYS, *SECTIONS, "trainer.env.A", "trainer.command.x", "more", "run.more"])


def hold(path: str, sets: list[str]) -> None:
    """Settings that can be used, or one line that names the file or the override."""
    try:
        found = configuration.load(path, sets)
    except UsageError as error:
        said = str(error)
        assert [said] == said.splitlines()
        assert said.startswith((path, "--set"))
        assert len(said) < 2500
        return
    found.policy()
    inert(found)
    re.compile(found.step_pattern.encode(), re.MULTILINE)
    assert launch.arguments(found, "/d", RungFact("a.pt", 1))
    launch.environment(found, "/d", "r", 1, RungFact("a.pt", 1), {})


@thoroughness(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spot=spots, value=values)
def test_any_value_anywhere_is_taken_or_refused_in_one_line(tmp_path: Path, spot: str, value: object) -> None:
    """Nothing that can be written in YAML makes anything but settings or a usage error."""
    try:
        tree = put(spot, value)
    except TypeError:
        return  # below something that is no section in the good tree
    hold(write(tmp_path, yaml.safe_dump(tree, allow_unicode=True)), [])


pieces = st.sampled_from(
    ["run", "trainer", "command", "env", "dir", ": ", ":", "\n", "  ", "- ", "[", "]", "{", "}", ", ", "'", '"', "&a ", "*a",
     "<<", "? ", "!!int ", "!!timestamp ", "!!bool ", "!!float ", "!!binary ", "!!set ", "!!omap ", "!!str ", "!!map ", "!x ",
     "| ", ">", "#", "%", "@", "`", "~", "\\", "---\n", "...\n", "2024-02-30", "1:99", "0o9", "0b", "1e999", ".inf", "\t", "\x85"]
)  # fmt: skip


@thoroughness(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.lists(pieces, max_size=25).map("".join) | st.text(st.characters(codec="utf-8"), max_size=30))
def test_any_text_is_taken_or_refused_in_one_line(tmp_path: Path, text: str) -> None:
    """Nothing that a file can hold makes anything but settings or a usage error."""
    hold(write(tmp_path, text), [])
    hold(write(tmp_path, yaml.safe_dump(GOOD) + text), [])


@thoroughness(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spot=spots, text=st.lists(pieces, max_size=10).map("".join) | st.text(max_size=20))
def test_any_override_is_taken_or_refused_in_one_line(tmp_path: Path, spot: str, text: str) -> None:
    """Nothing that can be said after `--set` makes anything but settings or a usage error."""
    hold(write(tmp_path, GOOD), [f"{spot}={text}"])


def test_a_pattern_that_a_later_python_reads_differently_is_no_mistake(tmp_path: Path) -> None:
    """Python's own warnings about expressions are not the person's business."""
    re.purge()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        configuration.load(write(tmp_path, GOOD), ["trainer.step_pattern='[[a](?P<step>1)'"])


# What settings mean.


def test_the_reference_is_yaml_that_loads_to_the_defaults(tmp_path: Path) -> None:
    """Written out as a run's own file, the reference changes nothing but what has no default."""
    found = configuration.load(write(tmp_path, reference.reference()), ["trainer.resume=never"])

    expected = put("trainer.command", ["python", "train.py"]) | {"checkpoints": {"dir": "out/run", "keep": {}}}
    assert Settings.model_validate(expected) == found
    assert sorted(KEYS) == sorted(key for key, _, _ in leaves(found))


def test_the_reference_marks_what_is_not_acted_upon() -> None:
    """Exactly the keys that are named when they are set are marked."""
    marked = re.findall(r"^ *(\w+):.*\(not yet\)$", reference.reference(), re.MULTILINE)

    assert [key.rpartition(".")[2] for key, _, later in leaves(DEFAULTS) if later] == marked


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda path: path.name)
def test_the_configs_of_this_repository_are_accepted(path: Path) -> None:
    """Every ready run loads, and nothing in it is inert."""
    sets = ["trainer.resume=never"] if path.name == "reference.yaml" else []

    assert [] == inert(configuration.load(str(path), sets))


@pytest.mark.parametrize(
    ("trainer", "preset", "resume", "rotates"),
    [
        ({"command": ["python", "-m", "trainer"]}, "lastgood", "env", False),
        ({"command": ["python", "-m", "trainer"], "resume": "self"}, "lastgood", "self", False),
        ({"command": ["x"], "preset": "lastgood"}, "lastgood", "env", False),
        ({"command": ["x"], "resume": "never"}, "command", "never", True),
        ({"command": ["python", "x.py", "-m", "trainer"], "resume": "never"}, "command", "never", True),
        ({"command": ["python", "-m", "trainer"], "preset": "command", "resume": "env"}, "command", "env", True),
    ],
)
def test_the_preset_follows_the_command_unless_it_is_said(
    trainer: dict[str, Any], preset: str, resume: str, rotates: bool
) -> None:
    """The bundled trainer is known by `-m trainer`, resumes by the environment, and has its snapshots pruned."""
    found = Settings.model_validate({"trainer": trainer, "checkpoints": {"dir": "x"}})

    assert (preset, resume, rotates) == (found.preset_name, found.resume, found.policy().keep is None)


@pytest.mark.parametrize(
    ("how", "meant"),
    [("env", Resume.TOLD), ("--from={snapshot}", Resume.TOLD), ("self", Resume.SELF), ("never", Resume.NEVER)],
)
def test_how_it_resumes_is_what_the_core_decides_by(how: str, meant: Resume) -> None:
    """Told, by itself, or never."""
    assert meant is Settings.model_validate(put("trainer.resume", how)).policy().resume


def test_the_policy_holds_what_was_set() -> None:
    """Numbers arrive where decisions are made."""
    tree = put("checkpoints.keep", {"last": 4, "every": 10, "best": 2}) | {
        "run": {"final_step": 9},
        "restarts": {"without_progress": 2, "per_window": 3, "window_seconds": 4, "backoff_seconds": [5, 6]},
        "stall": {"startup_seconds": 1, "running_seconds": 2, "saving_seconds": 4, "exit_seconds": 3},
    }
    policy = Settings.model_validate(tree).policy(allow_fresh_start=True)

    assert (9, True, 60.0) == (policy.final_step, policy.allow_fresh_start, policy.grace_seconds)
    assert (2, 3, 4.0, (5.0, 6.0)) == (
        policy.limits.without_progress, policy.limits.per_window, policy.limits.window_seconds, policy.limits.backoff_seconds,
    )  # fmt: skip
    assert Stall(1.0, 2.0, 4.0, 3.0) == policy.stall
    assert policy.keep is not None
    assert Keep(4, 10, 2) == policy.keep


@pytest.mark.parametrize(
    ("trainer", "count"),
    [
        ({"command": ["x"], "resume": "self"}, 2),
        ({"command": ["x"], "resume": "self", "step_pattern": r"at (?P<step>\d+)"}, 1),
        ({"command": ["python", "-m", "trainer"]}, 1),
    ],
)
def test_a_step_that_was_only_guessed_is_not_held_against_a_trainer_at_once(
    trainer: dict[str, Any], count: int
) -> None:
    """Where the pattern is the person's, or knows its trainer, one step below the resumed one is enough."""
    found = Settings.model_validate({"trainer": trainer, "checkpoints": {"dir": "x"}})

    assert count == found.policy().low_steps_max


# Steps in real output.

FOUND = {
    "iter 10: loss 2.5, time 100.0ms, mfu 1.2%": (10, 2.5),
    "step 250: train loss 2.1234, val loss 2.3": (250, 2.1234),
    "Epoch 0:  10%|█         | 5/50 [00:01<00:10, step=5 loss=3.2]": (5, 3.2),
    "step 10/100 | loss 3.1e-2": (10, 0.031),
    "Iteration 5 ... loss: nan": (5, float("nan")),
    "Iteration 5, loss: -inf.": (5, float("-inf")),
    "step 5: loss inf": (5, float("inf")),
    " iteration       10/  500 | elapsed time per iteration (ms): 9.5 | lm loss: 1.04E+01 | loss scale: 1.0 |": (
        10,
        10.4,
    ),
    "Epoch [1/10], Step [100/600], Loss: 0.1547": (100, 0.1547),
    "\x1b[31mstep:  1  \x1b[32mloss:  8.2134  \x1b[33mgrad_norm: 1.5": (1, 8.2134),
    "step: \x1b[1;33m12\x1b[0m loss: \x1b[33m3.5\x1b[0m": (12, 3.5),
    '{"step": 10, "loss": 2.5}': (10, 2.5),
    "{'global_step': 7, 'train_loss': 2.25}": (7, 2.25),
    "[2026-01-02 03:04:05] [Rank 0] step=10, skipped=0, lr=[1e-4], loss=.5": (10, 0.5),
    "step 5: loss 3.14.": (5, 3.14),
    "step 1 step_time 0.5 loss_scale: 65536 loss 2.25": (1, 2.25),
    "step: 00012 - loss: 1.0e0": (12, 1.0),
    "STEP\t3\tLOSS\t4": (3, 4.0),
    "global step 8": (8, None),
    "Saved at step 500.": (500, None),
    "step 5, lr 1e-3, time 0.5": (5, None),
    "step 5 loss=abc": (5, None),
}
NOTHING = [
    "  Gradient Accumulation steps = 1",
    "  Total optimization steps = 1,500",
    "Steps:  10%|█         | 100/1000",
    "step:  10%|",
    "elapsed time per iteration 5.3 ms",
    "step time: 0.53s",
    "step 0.53s",
    "step 10s",
    "step 1,500",
    "step 1e3",
    "max_step=9",
    "num_steps: 1000",
    "train_loss_step=2.31",
    "steps per second: 5",
    "Iteration",
    "step -5",
    "footstep 9",
    "timestep 7",
    "warmup_step 5",
    "{'loss': 2.5, 'epoch': 1}",
]


def matched(preset: str, line: str) -> tuple[int, float | None] | None:
    """Step and loss that a preset finds in a line, by its pattern as the runtime compiles it."""
    found = re.compile(PRESETS[preset].step_pattern.encode(), re.MULTILINE).search(line.encode())
    return None if found is None else (int(found["step"]), None if found["loss"] is None else float(found["loss"]))


@pytest.mark.parametrize("line", FOUND)
def test_the_step_of_a_line_is_found(line: str) -> None:
    """In the shapes that trainers in use print, step and loss are found."""
    assert repr(FOUND[line]) == repr(matched("command", line))


@pytest.mark.parametrize("line", NOTHING)
def test_what_is_no_step_that_was_done_is_not_taken_for_one(line: str) -> None:
    """An amount, a share or a duration would end a healthy trainer as one that did not resume, or complete the run."""
    assert None is matched("command", line)


def test_the_bundled_trainers_lines_are_found_and_no_others() -> None:
    """The preset of the bundled trainer knows exactly its own lines, wherever in a chunk they begin."""
    assert (10, 2.5) == matched("lastgood", "iter 10: loss 2.5000, time 1.00ms, mfu 0.10%")
    assert (11, 2.0) == matched("lastgood", "noise\niter 11: loss 2.0, time 1ms\n")
    assert "nan" == str((matched("lastgood", "iter 10: loss nan, time 1ms") or (0, 0))[1])
    assert None is matched("lastgood", "step 250: train loss 2.1, val loss 2.3")
    assert None is matched("lastgood", "resumed, iter 10: loss 2.5, time 1ms")


units = st.sampled_from(
    ["step ", "step=", "step 1 ", "loss ", "loss= ", "iter", "global_", "5m", "\x1b[1m", "\x1b[1;1;", "9", " ", "=", '"', ".",
     "1.", "e9", "\t[", "step\x1b[1m ", "loss\x1b[", "s", "_loss", "nan", "-", "x"]
)  # fmt: skip


@pytest.mark.parametrize("preset", PRESETS)
@thoroughness(deadline=None, max_examples=150)
@given(head=st.lists(units, max_size=3), unit=st.lists(units, min_size=1, max_size=3), tail=st.lists(units, max_size=2))
def test_no_line_takes_long_to_search(preset: str, head: list[str], unit: list[str], tail: list[str]) -> None:
    """However a long line repeats what almost matches, searching it takes a fraction of a second."""
    text = "".join(unit)
    line = ("".join(head) + text * (65_536 // len(text)) + "".join(tail)).encode()
    pattern = re.compile(PRESETS[preset].step_pattern.encode(), re.MULTILINE)
    began = time.perf_counter()
    pattern.search(line)

    assert time.perf_counter() - began < SECONDS_MAX


def test_the_general_pattern_has_both_groups() -> None:
    """Whoever writes one of their own takes this for a model."""
    assert {"step", "loss"} == set(re.compile(GENERAL_STEP_PATTERN).groupindex)

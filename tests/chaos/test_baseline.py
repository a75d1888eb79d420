"""A baseline is computed once for all that it depends on, and anew when any of that has changed."""

import os
from pathlib import Path
from typing import Any

import pytest

from supervisor.chaos import baseline
from supervisor.chaos.baseline import Baselines, facts
from supervisor.errors import UsageError
from supervisor.settings import Settings
from tests.bench import ROOT


@pytest.fixture
def run(tmp_path: Path) -> Settings:
    """The settings of a run of the bundled trainer on a text of its own."""
    (tmp_path / "text.txt").write_text("once upon a time " * 500)
    config = tmp_path / "trainer.yaml"
    config.write_text(f"data: {tmp_path}/text.txt\ndata_dir: {tmp_path}/data\nmax_iters: 20\n")
    return Settings.model_validate(
        {
            "run": {"name": "small", "final_step": 20},
            "trainer": {"command": ["python", "-m", "trainer", str(config)], "preset": "lastgood", "cwd": str(ROOT)},
            "checkpoints": {"dir": str(tmp_path / "run")},
        }
    )


def changed(run: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> Settings:
    """The same run after something has changed."""
    match what:
        case "config":
            with (tmp_path / "trainer.yaml").open("a") as file:
                file.write("seed: 3\n")
        case "data":
            (tmp_path / "text.txt").write_text("once upon another time " * 500)
        case "words":
            command = [*run.trainer.command, "--seed=3"]
            return run.model_copy(update={"trainer": run.trainer.model_copy(update={"command": command})})
        case "environment":
            monkeypatch.setenv("OMP_NUM_THREADS", "7")
        case "versions":
            monkeypatch.setattr(baseline, "version", lambda package: "0.1")
        case "processor":
            monkeypatch.setattr(baseline, "_flags", lambda: ["sse"])
        case "threads":
            monkeypatch.setattr(baseline.os, "sched_getaffinity", lambda _pid: range(77))
        case "code":
            monkeypatch.setattr(baseline, "CODE", ("trainer",))
    return run


WHAT = ["config", "data", "words", "environment", "versions", "processor", "threads", "code"]


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data is what it was: to prepare it takes a process that imports torch."""
    monkeypatch.setattr(baseline, "_data", lambda settings, words: "digest")


@pytest.mark.parametrize("what", WHAT)
def test_what_was_computed_with_anything_else_does_not_count(
    what: str, run: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A bit of the config, the data, the versions or the processor, and the sums may be others."""
    if what != "data":
        request.getfixturevalue("prepared")
    known = Baselines(tmp_path / "baselines")
    made_with = facts(run)
    known.begin(made_with)
    known.finished(made_with)
    assert known.find(facts(run)) is not None

    assert known.find(facts(changed(run, tmp_path, monkeypatch, what))) is None


@pytest.mark.usefixtures("prepared")
def test_what_was_not_finished_does_not_count(run: Settings, tmp_path: Path) -> None:
    """A baseline that was killed is begun again, in an empty folder."""
    known, made_with = Baselines(tmp_path / "baselines"), facts(run)
    place = known.begin(made_with)
    (place / "metrics.jsonl").write_text("half")
    assert known.find(made_with) is None

    assert [] == list(known.begin(made_with).iterdir())


def rewritten(path: Path, content: bytes) -> None:
    """Other bytes, at the same time of modification."""
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize(
    ("name", "content", "counts"),
    [
        ("metrics.jsonl", b'{"step": 1}\n', True),
        ("metrics.jsonl", b'{"step": 2}\n', False),
        ("metrics.jsonl", b'{"st', False),
        ("ckpt_00000001.pt", b"other", False),
        ("ckpt_00000001.pt.sha256", b"other", False),
        ("ckpt_00000001.pt", None, False),
        ("trainer.log", b"whatever", True),
        ("new", b"is no matter", True),
    ],
)
def test_what_was_damaged_since_does_not_count(
    name: str, content: bytes | None, counts: bool, run: Settings, tmp_path: Path
) -> None:
    """The survivor is not to be blamed for what has become of the baseline, which is computed anew."""
    known, made_with = Baselines(tmp_path / "baselines"), facts(run)
    place = known.begin(made_with)
    for one, text in (("metrics.jsonl", '{"step": 1}\n'), ("ckpt_00000001.pt", "bytes"), ("trainer.log", "said")):
        (place / one).write_text(text)
    (place / "ckpt_00000001.pt.sha256").write_text("digest")
    known.finished(made_with)
    assert place == known.find(made_with)
    if content is None:
        (place / name).unlink()
    elif (place / name).exists():
        rewritten(place / name, content)
    else:
        (place / name).write_bytes(content)

    assert (place if counts else None) == known.find(made_with)


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("content", ["", "[]", "{", "{}", '{"made_with": {}, "files": 3}'])
def test_facts_that_cannot_be_read_are_none(content: str, run: Settings, tmp_path: Path) -> None:
    """A file that was cut short makes nothing of what lies beside it count."""
    known, made_with = Baselines(tmp_path / "baselines"), facts(run)
    (known.begin(made_with) / baseline.FACTS_FILE).write_text(content)

    assert known.find(made_with) is None


def test_a_trainer_without_data_is_refused_in_its_own_words(run: Settings, tmp_path: Path) -> None:
    """Before anything runs for minutes."""
    (tmp_path / "text.txt").unlink()
    with pytest.raises(UsageError, match=r"text\.txt does not exist"):
        facts(run)


def test_the_unbroken_run_is_nobodys(run: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a supervisor that runs the campaign is in its environment, and it starts fresh in a folder of its own."""
    monkeypatch.setenv("LASTGOOD_RUN_ID", "other")
    words: list[Any] = baseline.command(run, Path("there"))

    assert "LASTGOOD_RUN_ID" not in baseline.environment(run)
    assert [f"--out_dir={Path('there').absolute()}", "--resume=never"] == words[-2:]

"""`lastgood report`: the page of an ordinary run, whatever state its directory is in."""

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from supervisor.goodput import Goodput
from supervisor.report import reading
from supervisor.report.model import Line, Tone
from supervisor.report.reading import found_in, metrics_of, quarantine, records_of
from supervisor.report.run import verdict
from tests.bench import Bench, until
from tests.report.test_markup import Seen
from tests.report.test_page import figures_in, rows

ENDED = {"phase": "completed", "step": 20, "reached": 20, "final_step": 20}


def page_of(bench: Bench, *words: str) -> str:
    """The page of the run of a bench, as the command writes it."""
    done = bench.lastgood("report", str(bench.directory), "--out", "r.html", *words)
    assert (0, "r.html\n", "") == (done.returncode, done.stdout, done.stderr)
    return (bench.folder / "r.html").read_text(encoding="utf-8")


def test_a_run_of_any_command_has_a_page(bench: Bench) -> None:
    """Without metrics and without a config: its deaths and what followed, its phases, its snapshots."""
    assert 0 == bench.run("--steps=20", "--habit=die:12", sets=("run.final_step=20",))
    made = page_of(bench)
    (death,) = rows(made, "restarts")

    assert "COMPLETED</h1>" in made
    assert "Step 20 of 20; 1 death survived; goodput " in made
    for said in ("killed", "SIGKILL", "step_10.pt", "newest, proof seal"):
        assert said in death
    assert any(row.startswith("20step_20.pt") for row in rows(made, "snapshots"))
    assert ["running", "starting"] == [re.sub(r"\d.*", "", row) for row in rows(made, "time")[:2]]
    assert {5, 10, None} == set(figures_in(made)["loss"]["data"][0]["x"])


def test_without_a_name_the_page_is_in_the_current_folder(bench: Bench) -> None:
    """And the path is printed, relative as it is."""
    assert 0 == bench.run("--steps=5", sets=("run.final_step=5",))
    done = bench.lastgood("report", str(bench.directory))

    assert (0, "report.html\n") == (done.returncode, done.stdout)
    assert (bench.folder / "report.html").exists()


def test_a_run_that_goes_on_has_one_too(bench: Bench) -> None:
    """It only reads: the run does not notice, and nothing but the page is written."""
    bench.start(*bench.command("--steps=100000", "--pause=0.05", sets=("run.final_step=100000",)))
    bench.wait_for("trainer.progressed", 2)
    until(lambda: bench.state("status.json").get("step"))
    made = page_of(bench)

    assert "RUNNING</h1>" in made
    assert "None: no trainer of this run has died." in made
    assert [] == bench.records("trainer.exited")


def test_records_that_were_turned_over_and_a_torn_line_cost_nothing(bench: Bench) -> None:
    """Half of the records lie in the older file, and a kill has cut the last line short: the page says the same."""
    assert 0 == bench.run("--steps=30", "--habit=die:12", sets=("run.final_step=30",))
    before = page_of(bench)
    events = bench.directory / ".lastgood" / "events.jsonl"
    lines = events.read_bytes().splitlines(keepends=True)
    events.with_name("events.jsonl.1").write_bytes(b"".join(lines[: len(lines) // 2]))
    events.write_bytes(b"".join(lines[len(lines) // 2 :]) + b'{"event": "trainer.exi')

    assert rows(before, "restarts") == rows(page_of(bench), "restarts")
    assert rows(before, "time") == rows(page_of(bench), "time")


def test_a_run_that_did_nothing_yet_has_a_page_that_says_so(tmp_path: Path, bench: Bench) -> None:
    """A status and nothing else."""
    state = bench.directory / ".lastgood"
    state.mkdir(parents=True)
    (state / "status.json").write_text(
        json.dumps({"run_id": "r", "phase": "selecting", "supervisor_pid": 1, "written_at": 5})
    )
    text = Seen(page_of(bench)).text

    assert "INTERRUPTED" in text
    assert "No step was made yet" in text


def test_names_from_the_disk_cannot_break_the_page(bench: Bench) -> None:
    """A snapshot and a run that are called like the end of a script."""
    evil = "<script>alert(1)<%2Fscript>"
    assert 0 == bench.run("--steps=10", sets=("run.final_step=10", f"run.name='{evil}'"))
    os.link(bench.directory / "step_5.pt", bench.directory / "<img src=x onerror=alert(1)>_step_7.pt")
    made = page_of(bench)

    assert "&lt;img src=x onerror=alert(1)&gt;_step_7.pt" in made
    assert 2 == len(re.findall(r"<script>", made))
    assert [] == [one for name, one in Seen(made).tags if name == "img"]


WRONG = [
    (("report", "nowhere"), "report: nowhere: there is no such file or folder"),
    (
        ("report", "empty"),
        "report: empty is not a run's checkpoint directory: no supervisor has written a status there",
    ),
    (("report", "torn"), "report: torn: status.json cannot be read"),
    (("report", "foreign"), "report: foreign: status.json is damaged; a supervisor writes it anew"),
    (("report", "good", "--out", "no/r.html"), "report: no/r.html: there is no folder "),
    (("report", "good", "--out", "empty"), "report: empty is a folder; give the name of a file"),
    (("report", "good", "--pattern", "["), "report: --pattern: "),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_a_mistake_is_one_line_with_the_cure(bench: Bench, words: tuple[str, ...], said: str) -> None:
    """A place that is none, that nobody supervises, whose status is somebody else's; a file that cannot be written."""
    good = {"run_id": "r", "phase": "stopped", "supervisor_pid": 1, "written_at": 5}
    for name, content in (("torn", '{"run'), ("foreign", '{"hello": 1}'), ("good", json.dumps(good))):
        (bench.folder / name / ".lastgood").mkdir(parents=True)
        (bench.folder / name / ".lastgood" / "status.json").write_text(content)
    (bench.folder / "empty").mkdir()
    done = bench.lastgood(*words)

    assert (2, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines())), done.stderr
    assert f"lastgood: {said}" in done.stderr


@pytest.mark.parametrize("words", [("report", "."), ("chaos", "run.yaml", "--report", "r.html")])
def test_without_plotly_the_cure_is_said_before_anything_is_done(bench: Bench, words: tuple[str, ...]) -> None:
    """It is in an extra of its own."""
    (bench.folder / "run.yaml").write_text("run: {name: small}\n")
    hidden = bench.folder / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['plotly'] = None\n")
    (bench.folder / ".lastgood").mkdir()
    status = {"run_id": "r", "phase": "stopped", "supervisor_pid": 1, "written_at": 5}
    (bench.folder / ".lastgood" / "status.json").write_text(json.dumps(status))
    done = bench.lastgood(*words, env=os.environ | {"PYTHONPATH": str(hidden)})

    assert (2, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines())), done.stderr
    assert "which is not installed; `pip install 'lastgood[report]'`" in done.stderr
    assert not (bench.folder / "out").exists()


@pytest.mark.parametrize(
    ("status", "supervised", "word", "tone"),
    [
        (ENDED, False, "COMPLETED", Tone.GOOD),
        (ENDED | {"phase": "stopped"}, False, "STOPPED", Tone.OPEN),
        (ENDED | {"phase": "failed"}, False, "GIVEN UP", Tone.BAD),
        (ENDED | {"phase": "running"}, False, "INTERRUPTED", Tone.BAD),
        (ENDED | {"phase": "running"}, True, "RUNNING", Tone.OPEN),
        (ENDED | {"phase": "paused"}, True, "PAUSED", Tone.OPEN),
        (ENDED | {"phase": "waiting", "waiting_for": "room on the disk"}, True, "WAITING", Tone.OPEN),
        ({}, True, "RUNNING", Tone.OPEN),
    ],
)
def test_a_run_stands_where_its_supervisor_said_last(
    status: dict[str, Any], supervised: bool, word: str, tone: Tone
) -> None:
    """One that is gone without a word has interrupted it; one that is there is believed."""
    found = verdict(status, supervised, Goodput())

    assert (word, tone) == (found.word, found.tone)
    assert ("room on the disk" in found.sentence) == ("waiting_for" in status)


def test_metrics_are_read_past_what_is_no_step(tmp_path: Path) -> None:
    """A torn line, text, a loss that is not finite, a step that is none, a list."""
    lines = [
        '{"step": 1, "loss": 2.5, "time": 9.0, "incarnation": 1}',
        '{"step": 2, "loss": NaN}',
        "no",
        "[1]",
        '{"step": true}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 3, "lo')

    assert [Line(1, 2.5, 9.0, 1), Line(2, None)] == list(metrics_of(str(tmp_path)))


def test_of_metrics_without_limit_a_part_is_read_and_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces from all over the file, with its end, and about how many lines there are."""
    monkeypatch.setattr(reading, "METRICS_BYTES", 10_000)
    monkeypatch.setattr(reading, "METRICS_PIECES", 20)
    text = "".join(f'{{"step": {step:05}, "loss": 2.5}}\n'.replace(" 0", " 1") for step in range(5000))
    (tmp_path / "metrics.jsonl").write_text(text)
    found = reading.found_in(str(tmp_path), {})

    assert 200 < len(found.lines) < 400
    assert 14_999 == found.lines[-1].step
    assert 0.5 < found.made / 5000 < 1.5


def test_records_of_any_shape_are_read_as_what_they_must_be_or_passed_over(tmp_path: Path) -> None:
    """Somebody else may have written there."""
    (tmp_path / ".lastgood").mkdir()
    odd = [
        {"event": ["trainer.exited"], "timestamp": "2023-11-14T22:13:20Z"},
        {"event": "trainer.exited", "timestamp": 5},
        {
            "event": "trainer.exited",
            "timestamp": "2023-11-14T22:13:20Z",
            "incarnation": [1],
            "step": "x",
            "cause": {},
            "code": 1.5,
        },
        {"event": "no.such", "timestamp": "2023-11-14T22:13:20Z"},
    ]
    (tmp_path / ".lastgood" / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in odd))
    (found,) = records_of(str(tmp_path))

    assert (1_700_000_000.0, None, None, None, None) == tuple(
        found[key] for key in ("at", "incarnation", "step", "cause", "code")
    )


def test_what_was_set_aside_is_told_with_its_reason(tmp_path: Path) -> None:
    """The newest first; what was given up for room has no size, and what nothing is said of is told by its folder."""
    base = tmp_path / ".lastgood" / "quarantine"
    for name in ("20231114T221320Z-a.pt", "20231114T221321Z-b.pt"):
        (base / name).mkdir(parents=True)
    reason = {"name": "a.pt", "step": 7, "reason": "corrupt: a bit"}
    (base / "20231114T221320Z-a.pt" / "reason.json").write_text(json.dumps(reason))
    (base / "20231114T221321Z-b.pt" / "b.pt").write_bytes(b"12345")
    (base / "20231114T221321Z-b.pt" / "b.pt.sha256").write_bytes(b"12")
    (newer, older), total = quarantine(str(tmp_path))

    assert ("b.pt", None, "2023-11-14 22:13:21", "nothing says why", 5) == (
        newer.name, newer.step, newer.when, newer.reason, newer.bytes,
    )  # fmt: skip
    assert ("a.pt", 7, "corrupt: a bit", None, 2) == (older.name, older.step, older.reason, older.bytes, total)


def told(directory: Path, *records: dict[str, Any]) -> None:
    """Write such records, of one second after the other."""
    state = directory / ".lastgood"
    state.mkdir()
    lines = [
        json.dumps({"timestamp": f"2026-01-01T00:00:{second:02}.500000Z", **record})
        for second, record in enumerate(records)
    ]
    (state / "events.jsonl").write_text("\n".join([*lines, ""]))


def test_steps_of_an_earlier_run_in_the_directory_are_not_this_ones(tmp_path: Path) -> None:
    """The metrics do not tell of which run they are: those from before the earlier one's last word are its own."""
    ended = {"event": "trainer.exited", "run_id": "old"}
    told(
        tmp_path,
        ended,
        ended,
        {"event": "trainer.spawned", "run_id": "new"},
        {"event": "trainer.exited", "run_id": "stray"},
    )
    at = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    lines = [{"step": step, "loss": 1.0, "time": at + after} for step, after in ((7, 0), (8, 1.4), (1, 2.6), (2, 9))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    assert [1, 2] == [line.step for line in found_in(str(tmp_path), {"run_id": "new"}).lines]
    assert [7, 8, 1, 2] == [line.step for line in found_in(str(tmp_path), {"run_id": "old"}).lines]


def test_a_step_too_large_to_reckon_with_is_none(tmp_path: Path) -> None:
    """A record may be anybody's by the time that it is read; a chart could not be drawn of such a step."""
    told(
        tmp_path,
        {"event": "trainer.spawned", "run_id": "a", "step": 10**400},
        {"event": "trainer.exited", "run_id": "a", "step": 7},
    )

    assert [None, 7] == [record["step"] for record in records_of(str(tmp_path))]


def test_a_run_whose_records_are_gone_is_not_said_to_have_had_no_death(bench: Bench) -> None:
    """What is not known is called unknown."""
    assert 0 == bench.run("--steps=20", "--habit=die:12", sets=("run.final_step=20",))
    (bench.directory / ".lastgood" / "events.jsonl").write_text("")
    made = page_of(bench)

    assert "how often its trainer died is not known." in made
    assert "Unknown: no record of this run is left." in made
    assert "no record of this run is left in events.jsonl: its deaths, phases and goodput are not known" in made
    for wrong in ("0 deaths", "no trainer of this run has died", "goodput 0"):
        assert wrong not in made


def test_of_a_campaign_the_folder_of_its_run_is_named(bench: Bench) -> None:
    """That is where the records are."""
    (bench.folder / "any-seed1").mkdir()
    (bench.folder / "any-seed1" / "campaign.json").touch()
    done = bench.lastgood("report", "any-seed1")

    assert (2, "lastgood: report: any-seed1 is a campaign's folder; its run is in any-seed1/survivor\n") == (
        done.returncode,
        done.stderr,
    )

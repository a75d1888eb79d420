"""What is written of a campaign: the page and the JSON, when it passed and when it failed."""

import dataclasses
import errno
import json
import re
from pathlib import Path
from typing import Any

import pytest

from supervisor.chaos.judging import Outcome
from supervisor.chaos.oracle import Findings
from supervisor.chaos.plan import FaultKind
from supervisor.cli import campaign as command
from supervisor.errors import UsageError
from supervisor.report.campaign import document, document_text, report
from supervisor.report.model import Problem, Shape, Tone
from tests.bench import Bench
from tests.report.made import AT, outcome, result
from tests.report.test_page import rows

RUN = {"run_id": "r1", "name": "small", "phase": "completed", "written_at": AT + 60, "snapshots": []}


def left_behind(folder: Path, *records: dict[str, Any]) -> Path:
    """The survivor of a campaign: records so many seconds after its beginning, and steps of its two starts."""
    state = folder / "survivor" / ".lastgood"
    state.mkdir(parents=True)
    (state / "status.json").write_text(json.dumps(RUN))
    lines = [
        {**one, "run_id": "r1", "timestamp": f"2023-11-14T22:{13 + (20 + one['at']) // 60}:{(20 + one['at']) % 60:02}Z"}
        for one in records
    ]
    (state / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps = [(1, step, AT + 1 + step / 10) for step in range(1, 22)] + [
        (2, step, AT + 5 + step / 10) for step in range(20, 40)
    ]
    (folder / "survivor" / "metrics.jsonl").write_text(
        "".join(json.dumps({"incarnation": n, "step": s, "loss": 1 / s, "time": at}) + "\n" for n, s, at in steps)
    )
    return folder


RECORDS = (
    {"event": "supervisor.started", "at": 0, "incarnation": 0},
    {"event": "trainer.spawned", "at": 1, "incarnation": 1, "resumed_from": None, "step": None},
    {"event": "trainer.exited", "at": 4, "incarnation": 1, "cause": "chaos", "step": 21, "fault": "7-0"},
    {"event": "trainer.spawned", "at": 5, "incarnation": 2, "resumed_from": "ckpt_20.pt", "step": 20, "proof": "seal"},
    {"event": "trainer.exited", "at": 10, "incarnation": 2, "cause": "completed", "step": 39, "fault": None},
    {"event": "run.completed", "at": 10, "incarnation": 2},
)
CRASH = {"event": "trainer.exited", "at": 9, "incarnation": 2, "cause": "crashed", "step": 30, "fault": None, "code": 1}


def test_the_json_holds_every_field_of_every_fault(tmp_path: Path) -> None:
    """Read back, it is what the oracle said."""
    made = result(tmp_path)
    found = json.loads(document_text(made))

    assert {field.name for field in dataclasses.fields(Outcome)} == set(found["faults"][0])
    assert [dataclasses.asdict(one) | {"problems": []} for one in made.outcomes] == found["faults"]


def test_the_json_says_all_that_the_page_says(tmp_path: Path) -> None:
    """Under names that stay: its format has a number."""
    found = json.loads(document_text(result(tmp_path)))

    assert (1, True, []) == (found["format"], found["passed"], found["problems"])
    assert ("lastgood chaos run.yaml --faults 2 --seed 7", "run.yaml", 7, 2, 100) == tuple(
        found[key] for key in ("command", "config", "seed", "faults_asked", "final_step")
    )
    assert ("2023-11-14T22:13:20.000Z", "2023-11-14T22:14:21.000Z") == (found["started"], found["ended"])
    assert {"fill-disk": "it is not possible here"} == found["left_out"]
    assert {"python", "lastgood", "torch", "numpy"} == set(found["versions"])
    assert {"kernel", "processor", "cores", "memory_bytes", "filesystem"} == set(found["machine"])
    assert "ext4" == found["machine"]["filesystem"]
    assert dataclasses.asdict(Findings(100, 110, 0.0, True)) == found["exact"]


def test_a_difference_that_is_no_number_is_told_in_words(tmp_path: Path) -> None:
    """JSON has no infinity; where nothing was compared there is null."""
    endless = result(tmp_path, exact=Findings(1, 1, float("inf"), False, ["losses differ by up to inf"]))

    assert "inf" == json.loads(document_text(endless))["exact"]["largest_difference"]
    assert None is document(result(tmp_path, exact=None))["exact"]


def test_names_that_no_reader_takes_are_escapes_in_the_json(tmp_path: Path) -> None:
    """A byte that is no UTF-8, and what would steer a terminal."""
    odd = result(tmp_path, outcomes=[outcome(expected="ckpt\udcff\x1b_1.pt")], problems=["a\nb"])
    found = json.loads(document_text(odd))

    assert (r"ckpt\udcff\x1b_1.pt", [r"a\nb"]) == (found["faults"][0]["expected"], found["problems"])


def test_a_campaign_that_passed_says_how_much_was_done_and_compared(tmp_path: Path) -> None:
    """Faults, steps, the largest difference, and how long it took."""
    made = report(result(left_behind(tmp_path, *RECORDS)))

    assert ("PASSED", Tone.GOOD) == (made.verdict.word, made.verdict.tone)
    assert (
        "2 faults done to a run of 100 steps; largest difference in loss over all steps: 0.0; it took 61.0 s."
        == made.verdict.sentence
    )
    assert () == made.problems


def test_a_campaign_of_which_nothing_was_compared_says_so(tmp_path: Path) -> None:
    """Only the bundled trainer computes the same twice."""
    sentence = report(result(tmp_path, exact=None)).verdict.sentence

    assert "nothing could be compared bit for bit" in sentence
    assert "difference" not in sentence


def test_a_campaign_that_failed_lists_its_problems(tmp_path: Path) -> None:
    """Each with its fault where it has one; in the fault's own row its kind and step are not said again."""
    wrong = outcome(1, problems=("kill at step 21: resumed a, not b",))
    made = report(result(tmp_path, outcomes=[outcome(0), wrong], problems=["process 5 was leaked"]))

    assert ("FAILED", Tone.BAD) == (made.verdict.word, made.verdict.tone)
    assert made.verdict.sentence.startswith("2 problems. 2 faults done ")
    assert (Problem("process 5 was leaked"), Problem("kill at step 21: resumed a, not b", 2)) == made.problems
    assert ((), ("resumed a, not b",)) == tuple(fault.problems for fault in made.faults or ())
    assert [Shape.CIRCLE, Shape.CROSS] == [mark.shape for mark in made.marks]


def test_a_campaign_that_was_not_finished_says_how_many_faults_were_done(tmp_path: Path) -> None:
    """The others are among its problems."""
    made = report(result(tmp_path, outcomes=[outcome()], problems=["stop at step 60 was never done"]))

    assert "1 of 2 faults done" in made.verdict.sentence


def test_the_directory_of_the_survivor_tells_steps_and_phases(tmp_path: Path) -> None:
    """In the order in which they were made, by the starts that made them."""
    made = report(result(left_behind(tmp_path, *RECORDS)))

    assert [*range(1, 22), *range(20, 40)] == [line.step for line in made.survivor.steps]
    assert {1, 2} == {line.incarnation for line in made.survivor.steps}
    assert ("starting", "running") == tuple(span.phase for span in made.spans)[1:3]
    assert () == made.restarts


def test_a_death_that_no_fault_explains_is_shown_with_its_last_words(tmp_path: Path) -> None:
    """That is what one must look into."""
    crash = CRASH | {"last_lines": ["one", "RuntimeError: no"]}
    made = report(result(left_behind(tmp_path, *RECORDS[:4], crash)))

    assert [("crashed", "exit code 1; last words: RuntimeError: no")] == [
        (one.cause, one.detail) for one in made.restarts
    ]
    assert ("!", Shape.CROSS) == (made.marks[-1].number, made.marks[-1].shape)


def test_a_baseline_is_drawn_where_there_is_one(tmp_path: Path) -> None:
    """Its steps are those of its own metrics."""
    (tmp_path / "baseline").mkdir()
    (tmp_path / "baseline" / "metrics.jsonl").write_text('{"step": 1, "loss": 3.5, "time": 1}\n')

    assert (3.5,) == tuple(
        line.loss for line in report(result(tmp_path, baseline=tmp_path / "baseline")).baseline.steps
    )


@pytest.mark.parametrize("passed", [True, False])
def test_both_files_are_written_whatever_came_of_it(
    passed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says where, and its exit status is still the verdict."""
    made = result(left_behind(tmp_path, *RECORDS), problems=[] if passed else ["process 5 was leaked"])
    monkeypatch.setattr("supervisor.chaos.campaign.campaign", lambda asked: made)
    page, facts = tmp_path / "r.html", tmp_path / "r.json"
    with pytest.raises(SystemExit) as end:
        command.chaos("run.yaml", 2, 7, None, str(page), str(facts))

    assert int(not passed) == end.value.code
    assert passed == json.loads(facts.read_bytes())["passed"]
    assert ("PASSED</h1>" if passed else "FAILED</h1>") in page.read_text(encoding="utf-8")
    assert f"json: {facts}\nreport: {page}\n" == capsys.readouterr().out
    assert {"r.html", "r.json", "survivor"} == {path.name for path in tmp_path.iterdir()}


def test_kinds_that_were_left_out_are_told_with_the_reason(tmp_path: Path) -> None:
    """Or one might believe that all were done."""
    assert (("fill-disk", "it is not possible here"),) == report(result(tmp_path)).left_out
    assert () == report(result(tmp_path, left_out={})).left_out
    assert FaultKind.FILL_DISK in result(tmp_path).left_out


USAGE = [
    (("--report", "no/r.html"), r"chaos: no/r\.html: there is no folder \S+/no; make it first"),
    (("--json", "no/r.json"), r"chaos: no/r\.json: there is no folder \S+/no; make it first"),
    (("--report", "."), r"chaos: \. is a folder; give the name of a file"),
    (("--report", "r", "--json", "./r"), "chaos: --report and --json name one file; give each its own"),
]


@pytest.mark.parametrize(("words", "said"), USAGE)
def test_what_could_not_be_written_is_refused_before_anything_is_run(
    bench: Bench, words: tuple[str, ...], said: str
) -> None:
    """In one line; a campaign takes minutes, and its result must not be lost at the end."""
    (bench.folder / "run.yaml").write_text("run: {name: small}\n")
    done = bench.lastgood("chaos", "run.yaml", *words)

    assert (2, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines()))
    assert re.search(said, done.stderr)
    assert {"run.yaml"} == {path.name for path in bench.folder.iterdir()}


def test_the_page_of_a_campaign_has_a_row_for_each_fault(tmp_path: Path) -> None:
    """And the deaths that no fault explains are another table."""
    from supervisor.report.page import page

    made = page(report(result(left_behind(tmp_path, *RECORDS[:4], CRASH))), "")

    assert 2 == len(rows(made, "faults"))
    assert 1 == len(rows(made, "restarts"))
    assert "Deaths that no fault explains" in made


def test_restarts_from_standby_are_counted_where_there_were_any(tmp_path: Path) -> None:
    """A start that never came counts for nothing."""
    some = [outcome(0), outcome(1, standby=False), outcome(2, standby=None)]
    none = [outcome(0, standby=False)]

    assert "1 of 2" == {one.name: one.value for one in report(result(tmp_path, outcomes=some)).tiles}["from standby"]
    assert "from standby" not in {one.name for one in report(result(tmp_path, outcomes=none)).tiles}


def test_a_page_that_finds_no_room_is_told_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign was not in vain: its verdict has been printed."""

    def full(_path: str, _text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("supervisor.chaos.campaign.campaign", lambda asked: result(tmp_path))
    monkeypatch.setattr("supervisor.report.writing.write_whole", full)
    with pytest.raises(UsageError, match=r"r.html: No space left on device; it is not written, and the verdict stands"):
        command.chaos("run.yaml", 2, 7, None, str(tmp_path / "r.html"), None)

"""A page, from facts that were made up: what it says, and that it needs nothing else."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from plotly import graph_objects

from supervisor.report.charts import figures
from supervisor.report.model import Curve, Delays, Line, Report, Restart, Tone, Verdict
from supervisor.report.page import page
from tests.report.made import AT, HOSTILE, fault, lives, report
from tests.report.test_markup import Seen

LIBRARY = "/* draws */"
EMPTY = Report("Run: nothing yet", Verdict("RUNNING", Tone.OPEN, "No step was made yet."), AT)


def figures_in(made: str) -> dict[str, Any]:
    """The charts' data, as the page's script reads it."""
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', made)
    assert found is not None
    return dict(json.loads(found[1]))


def without_data(text: str) -> str:
    """What a reader sees: the charts' data is a script, in which text stands in another way."""
    return re.sub(r'\{"loss":.*\}', "", text)


def rows(made: str, name: str) -> list[str]:
    """The text of the rows of a section, without the head."""
    section = made.split(f'<section id="{name}"', 1)[1].split("</section>", 1)[0]
    return [Seen(row).text for row in re.findall(r"<tr.*?</tr>", section)[1:]]


def test_the_verdict_is_on_top_and_each_problem_below_it() -> None:
    """In one word, one sentence and a list, with the way to the fault that each belongs to."""
    made = page(report(), LIBRARY)

    assert (
        made.index("FAILED</h1>")
        < made.index("1 problem: plain.")
        < made.index('href="#fault-2"')
        < made.index("<table")
    )
    assert "of the run: plain" in made
    assert 'id="fault-2"' in made


def test_a_row_of_a_fault_says_all_there_is_to_say() -> None:
    """What was done, what had to be chosen, what was and why, the cause, the cost, and whether that was right."""
    right, wrong = rows(page(report(faults=(fault(1), fault(2, problems=("resumed a, not b",)))), LIBRARY), "faults")

    for said in (
        "20",
        "truncate",
        "has 5 of 10 bytes",
        "ckpt_00000010.pt",
        "truncated",
        "chaos",
        "10",
        "20 ms",
        "0.40 s",
        "✓ right",
    ):
        assert said in right
    assert "✕ wrongresumed a, not b" in wrong


def test_a_fault_that_has_no_part_of_it_says_so() -> None:
    """A full disk ends no trainer."""
    borne = fault(
        1,
        expected=None,
        chosen=None,
        why="-",
        cause=None,
        steps_lost=None,
        seconds_to_detect=None,
        seconds_to_resume=None,
    )

    assert ["120truncateckpt_00000020.pt has 5 of 10 bytes––––––✓ right"] == rows(
        page(report(faults=(borne,)), LIBRARY), "faults"
    )


def test_text_from_outside_is_text_everywhere() -> None:
    """As much is seen of hostile text as of plain text, and no element more."""
    plain, hostile = Seen(page(report("plain"), LIBRARY)), Seen(page(report(HOSTILE), LIBRARY))

    assert [name for name, _ in plain.tags] == [name for name, _ in hostile.tags]
    assert not [key for _, attributes in hostile.tags for key in attributes if key.startswith("on")]
    assert 15 < without_data(plain.text).count("plain") == without_data(hostile.text).count(HOSTILE)


def test_the_charts_show_hostile_text_as_text() -> None:
    """Charts take some HTML in their labels: none of ours has any from outside."""
    found = json.dumps(figures_in(page(report(HOSTILE), LIBRARY)), ensure_ascii=False)

    assert "&lt;/script&gt;" in found
    assert {"<b>", "</b>", "<br>", "<extra>", "</extra>"} == set(re.findall(r"<[^>]*>", found))


def test_nothing_is_fetched_from_anywhere() -> None:
    """Every address in the page is of a place in it or of data in it, and its policy forbids all others."""
    made = page(report(), LIBRARY)
    seen = Seen(made)
    addresses = [str(attributes[key]) for _, attributes in seen.tags for key in ("src", "href") if key in attributes]

    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert not re.search(r"@import|url\(", made)
    policy = next(
        a["content"] for name, a in seen.tags if name == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")


def test_the_policy_allows_the_scripts_of_the_page_alone() -> None:
    """By their digests: whatever else got in would not be run."""
    made = page(report(), LIBRARY)
    scripts = re.findall(r"<script>(.*?)</script>", made, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]

    assert LIBRARY == scripts[0]
    assert " ".join(f"&#x27;sha256-{digest}&#x27;" for digest in digests) in made.split("script-src ", 1)[1]


def test_the_library_is_in_the_page_once_and_only_if_something_is_drawn() -> None:
    """It has five megabytes."""
    assert 1 == page(report(), LIBRARY).count(LIBRARY)
    assert 0 == page(EMPTY, LIBRARY).count(LIBRARY)


def test_an_empty_run_says_what_is_not_there_yet() -> None:
    """No death, no loss, no record, no snapshot: each is said, and nothing is drawn."""
    text = Seen(page(EMPTY, LIBRARY)).text

    for said in (
        "RUNNING",
        "None: no trainer of this run has died.",
        "No loss is known",
        "there are no records",
        "There is none.",
    ):
        assert said in text
    assert "Faults" not in text


def test_what_is_cut_is_said_to_be_cut() -> None:
    """How many more there are, of snapshots, of deaths and of the curve."""
    deaths = (Restart(2, AT, 5, "crashed"), Restart(1, AT, 4, "crashed"))
    thin = Curve(lives(), 123_456)
    text = Seen(page(report(faults=None, restarts=deaths, total_restarts=9, survivor=thin), LIBRARY)).text

    assert "These are the newest 2; there are 58 more snapshots." in text
    assert "These are the newest 2; there are 7 more deaths." in text
    assert f"Thinned: {len(lives())} of 123,456 steps are drawn" in text


def test_a_verdict_that_is_none_yet_is_said_as_such() -> None:
    """A snapshot that nobody has judged is neither good nor bad; one given up for room has no size."""
    made = page(report(), LIBRARY)
    unjudged = page(replace(report(), ladder=(replace(report().ladder[0], verdict=None),)), LIBRARY)

    assert "✓ healthy" in rows(made, "snapshots")[0]
    assert "✕ corrupt" in rows(made, "snapshots")[1]
    assert "not judged yet" in rows(unjudged, "snapshots")[0]
    assert "given up for room" in rows(made, "quarantine")[0]


@pytest.mark.parametrize("made", [report(), report(HOSTILE), report(marks=(), baseline=Curve(), delays=())])
def test_plotly_takes_every_chart(made: Report) -> None:
    """Each property is one that it knows, when the page's colours stand in the places of their names."""
    for figure in figures(made).values():
        graph_objects.Figure(json.loads(re.sub(r"var\(--\w+\)", "#123456", json.dumps(figure))))


def test_repeated_steps_are_drawn_apart_from_new_ones() -> None:
    """Of each start, what others had made before is another line than what none had."""
    drawn = {one["name"]: one for one in figures(report())["loss"]["data"]}

    assert [1, 24, None, 24, 44, None, 44, 100, None] == drawn["steps made for the first time"]["x"]
    assert [11, 24, None, 31, 44, None] == drawn["steps repeated"]["x"]
    assert [2, 2, None, 3, 3, None] == drawn["steps repeated"]["y"]


def test_starts_that_follow_each_other_are_drawn_in_two_ways() -> None:
    """With a gap between two of the same kind, and whether each loss is the baseline's is shown."""
    drawn = {one["name"]: one for one in figures(report())["loss"]["data"]}

    assert [*range(1, 25), None, *range(31, 101), None] == drawn["odd starts"]["x"]
    assert [*range(11, 45), None] == drawn["even starts"]["x"]
    assert "step 11, loss 3.27872, start 2<br>the same as the baseline" == drawn["even starts"]["customdata"][0]


def test_a_loss_that_differs_is_shown_beside_the_baselines() -> None:
    """Where one points at it."""
    other = report(baseline=Curve((Line(11, 9.5),), 1))
    drawn = {one["name"]: one for one in figures(other)["loss"]["data"]}

    assert "step 11, loss 3.27872, start 2<br>the baseline has 9.5" == drawn["even starts"]["customdata"][0]


def test_what_is_wrong_has_a_shape_of_its_own() -> None:
    """Colour is never the only sign."""
    marks = {one["marker"]["symbol"]: one for one in figures(report())["loss"]["data"] if one.get("yaxis") == "y3"}

    assert {"circle": ["1"], "x": ["2"]} == {shape: one["text"] for shape, one in marks.items()}
    assert "<b>1: kill</b><br>plain" == marks["circle"]["customdata"][0]


def test_every_time_is_a_point() -> None:
    """Beside what half of them are within, and each says what it was about."""
    drawn = [one for one in figures(report())["delays"]["data"] if one["type"] == "scatter"]

    assert [[0.02, 0.05], [0.4, 0.9]] == [one["x"] for one in drawn]
    assert "kill: next step after 0.40 s" == drawn[1]["customdata"][0]


def test_the_scale_of_times_reaches_from_a_power_of_ten_to_another() -> None:
    """Also where all took about as long; what took no time at all is at its beginning."""
    for seconds, ends in (((0.2, 0.3), [-1.02, 0.02]), ((0.0, 12.0), [-3.02, 2.02])):
        made = report(delays=(Delays("next step", tuple((one, "kill") for one in seconds)),))

        assert ends == pytest.approx(figures(made)["delays"]["layout"]["xaxis"]["range"])


def test_phases_are_rows_over_one_time_with_the_steps() -> None:
    """In unix milliseconds, with their lengths."""
    bars = {one["name"]: one for one in figures(report())["time"]["data"] if one["type"] == "bar"}

    assert (["running", "starting", "stalled"], [1000 * (AT + 4)], [5000.0]) == (
        list(bars),
        bars["running"]["base"],
        bars["running"]["x"],
    )

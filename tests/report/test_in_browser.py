"""Pages in a real browser: drawn, quiet, alone, and fit for a desk, a telephone, the dark and paper."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.report import thinning
from supervisor.report.model import Delays, Line, Mark, Report, Shape, Span
from supervisor.report.writing import write_page
from tests.bench import Bench
from tests.chaos.test_campaign import wrote_config
from tests.crash.conftest import give_up
from tests.report.browser import Browser, browser, program
from tests.report.made import AT, HOSTILE, fault, report

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]

DESK, TELEPHONE = 1280, 390
DRAWN = """[...document.querySelectorAll(".chart")].map(chart => {
    const box = chart.querySelector(".main-svg").getBoundingClientRect();
    const paths = [...chart.querySelectorAll(".main-svg path")].filter(one => (one.getAttribute("d") || "").length > 10);
    return [chart.id, box.width > 200 && box.height > 200, paths.length > 5];
})"""
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
OUTSIDE = """[...document.querySelectorAll("body *")].filter(one => {
    const box = one.getBoundingClientRect();
    return box.right > innerWidth + 1 && !one.closest(".box, svg, .chart");
}).length"""
LETTERS = """getComputedStyle(document.querySelector("#chart-loss .xtick text")).fill"""
BACKGROUND = """getComputedStyle(document.body).backgroundColor"""
CONTRASTS = """(() => {
    const light = ([r, g, b]) => [r, g, b].map(one => one / 255)
        .map(one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
        .reduce((sum, one, index) => sum + one * [0.2126, 0.7152, 0.0722][index], 0);
    const numbers = text => text.match(/[\\d.]+/g).map(Number);
    const behind = one => {
        for (; one; one = one.parentElement) {
            const found = numbers(getComputedStyle(one).backgroundColor);
            if (found.length < 4 || found[3] > 0) return found;
        }
        return [255, 255, 255];
    };
    return [...document.querySelectorAll("body *")].filter(one => one.closest("script, noscript, svg") === null)
        .filter(one => [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
        .map(one => [numbers(getComputedStyle(one).color), behind(one), one])
        .map(([text, back, one]) => [light(text), light(back), one])
        .map(([a, b, one]) => [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), one.outerHTML.slice(0, 80)])
        .filter(([contrast]) => contrast < 4.5);
})()"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for all pages of this file."""
    if program() is None:
        give_up("no Chromium is installed: apt-get install chromium")
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page with hostile text wherever there can be any."""
    write_page(str(tmp_path / "r.html"), report(HOSTILE))
    return tmp_path / "r.html"


@pytest.mark.parametrize(("width", "dark"), [(DESK, False), (DESK, True), (TELEPHONE, False), (TELEPHONE, True)])
def test_a_page_is_drawn_quietly_and_fits(tab: Browser, page: Path, width: int, dark: bool) -> None:
    """Every chart has lines and a size, nothing is wider than the window, no script complains, none of the text is one."""
    tab.look_at(page, width, dark)

    assert [["chart-loss", True, True], ["chart-delays", True, True], ["chart-time", True, True]] == tab.value(DRAWN)
    assert 0 == tab.value(TOO_WIDE)
    assert 0 == tab.value(OUTSIDE)
    assert [] == tab.complaints()
    assert [] == tab.requests()
    assert "undefined" == tab.value("typeof window.broken")
    assert [] == tab.value(CONTRASTS)


def test_a_page_becomes_dark_while_it_is_open(tab: Browser, page: Path) -> None:
    """The charts too, and light again."""
    tab.look_at(page, DESK)
    seen = []
    for dark in (False, True, False):
        tab.darken(dark)
        tab.settle()
        seen.append((tab.value(BACKGROUND), tab.value(LETTERS)))

    assert seen[0] == seen[2]
    assert not set(seen[0]) & set(seen[1])


def test_pointing_at_a_mark_shows_the_fault_as_text(tab: Browser, page: Path) -> None:
    """And at the curve the step and the loss; hostile text is text there too."""
    tab.look_at(page, DESK)
    tab.value("document.getElementById('loss').scrollIntoView()")
    tab.settle()
    places = tab.value("""(() => {
        const chart = document.getElementById("chart-loss");
        const mark = chart.querySelector(".xy3 .points path").getBoundingClientRect();
        const plan = chart._fullLayout, area = chart.getBoundingClientRect();
        const across = area.x + plan._size.l + plan.xaxis.d2p(70);
        const up = area.y + plan.yaxis._offset + plan.yaxis.d2p(1.521322);
        return [[mark.x + mark.width / 2, mark.y + mark.height / 2], [across, up]];
    })()""")
    shown = []
    for x, y in places:
        tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        tab.settle()
        shown.append(tab.value("document.querySelector('#chart-loss .hoverlayer').textContent"))

    assert "1: kill" in shown[0]
    assert "</script>" in shown[0]
    assert "step 70, loss 1.52132, start 3" in shown[1]
    assert "undefined" == tab.value("typeof window.broken")


@pytest.mark.parametrize("dark", [False, True])
def test_a_page_is_printed_light_and_whole(tab: Browser, page: Path, tmp_path: Path, dark: bool) -> None:
    """Whatever the screen shows, and afterwards that is as it was."""
    tab.look_at(page, DESK, dark)
    before = tab.value(LETTERS)
    tab.value("""addEventListener("beforeprint", () => {
        window.printed = [...document.querySelectorAll(".main-svg")].map(one => one.getBoundingClientRect().width);
        window.letters = getComputedStyle(document.querySelector("#chart-loss .xtick text")).fill;
    })""")
    tab.print_to(tmp_path / "r.pdf")
    tab.settle()

    assert (tmp_path / "r.pdf").read_bytes().startswith(b"%PDF-")
    assert {690} == set(tab.value("window.printed"))
    assert "rgb(23, 26, 31)" == tab.value("window.letters")
    assert before == tab.value(LETTERS)
    assert [] == tab.complaints()


def large() -> Report:
    """Five hundred faults in a hundred thousand steps."""
    noise = random.Random(1)
    faults = tuple(fault(number, step=190 * number, at=AT + 2.0 * number) for number in range(1, 501))
    lines = [
        Line(step, noise.random(), AT + step / 95, start)
        for start in range(1, 502)
        for step in range(max(1, 190 * start - 210), 190 * start + 1)
    ]
    marked = {one.step for one in faults}
    spans = [Span("running", one.at, one.at + 1.5, one.number) for one in faults]
    return report(
        faults=faults,
        survivor=thinning.thinned(lines, marked),
        marks=tuple(Mark(str(one.number), one.kind, one.step, one.at, Shape.CIRCLE, "fault") for one in faults),
        delays=(Delays("next step", tuple((0.1 + noise.random(), one.kind) for one in faults)),),
        spans=thinning.longest(spans),
    )


def test_a_large_campaign_opens(tab: Browser, tmp_path: Path) -> None:
    """All of its faults are there, the curve is thinned and says so, and no mark is lost."""
    path = tmp_path / "r.html"
    write_page(str(path), large())
    tab.look_at(path, DESK)

    assert 500 == tab.value("document.querySelectorAll('#faults tbody tr').length")
    assert 500 == tab.value("document.querySelectorAll('#chart-loss .xy3 .points path').length")
    assert "Thinned: " in tab.value("document.querySelector('#loss figcaption').textContent")
    assert [] == tab.complaints()


@pytest.mark.timeout(400)
def test_a_real_campaign_has_its_page(tab: Browser, bench: Bench) -> None:
    """Three faults to the bundled trainer: the page and the JSON say what the command says, and the page is drawn."""
    wrote_config(bench)
    kinds = "--kinds=kill,truncate,kill-the-supervisor"
    files = ("--report", "r.html", "--json", "r.json")
    done = bench.lastgood("chaos", "run.yaml", "--faults=3", "--seed=5", kinds, *files, timeout=350)
    told = json.loads((bench.folder / "r.json").read_bytes())
    tab.look_at(bench.folder / "r.html", DESK)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert done.stdout.endswith("PASSED\njson: r.json\nreport: r.html\n")
    assert (True, 3, 0.0) == (told["passed"], len(told["faults"]), told["exact"]["largest_difference"])
    assert "✓ PASSED" == tab.value("document.querySelector('h1').textContent")
    assert 3 == tab.value("document.querySelectorAll('#faults tbody tr').length")
    assert [["chart-loss", True, True], ["chart-delays", True, True], ["chart-time", True, True]] == tab.value(DRAWN)
    assert [] == tab.complaints()
    assert [] == tab.requests()

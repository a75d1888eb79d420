"""The benchmarks' own arithmetic, with made-up measurements; and that they run from end to end."""

import dataclasses
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import machine
from benchmarks.figures import Figure, Verdict, interval, spread, turns
from benchmarks.harness import Measured, Row, Scale, Sides, groups, measure
from benchmarks.report import table
from benchmarks.rows import ROWS
from tests.crash.conftest import give_up

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("count", "first", "last"), [(6, 1, 6), (9, 2, 8), (15, 4, 12), (20, 6, 15), (50, 18, 33), (101, 41, 61)]
)
def test_the_interval_lies_between_the_order_statistics_of_the_textbooks(count: int, first: int, last: int) -> None:
    """For so many values, from this one to that one in order of size, whatever they are."""
    values = [value * value for value in range(1, count + 1)]
    random.Random(count).shuffle(values)

    assert (first**2, last**2) == interval(values)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_fewer_than_six_values_tell_nothing(count: int) -> None:
    """The true median may lie outside of five values with more than five percent."""
    assert (-math.inf, math.inf) == interval([1.0] * count)
    assert Verdict.NOISY is Figure.of([1.0] * count).verdict(2.0)


@pytest.mark.parametrize("count", [6, 15, 40])
def test_the_interval_holds_the_true_median_as_often_as_it_says(count: int) -> None:
    """Drawn from a skewed distribution two thousand times, at most one in twenty intervals misses; and not none."""
    generator = random.Random(7)
    held = 0
    for _ in range(2000):
        low, high = interval([generator.lognormvariate(0, 0.5) for _ in range(count)])
        held += low <= 1 <= high

    assert 0.945 <= held / 2000 < 1


def ratios(true: float, noise: float, count: int, seed: int) -> list[float]:
    generator = random.Random(seed)
    return [true * generator.lognormvariate(0, noise) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_a_clear_difference_is_told_and_noise_is_called_noise(seed: int) -> None:
    """What is met stays met, what is missed is missed, and with noise larger than the distance nothing is claimed."""
    assert Verdict.MET is Figure.of(ratios(0.8, 0.03, 15, seed)).verdict(1.05)
    assert Verdict.MISSED is Figure.of(ratios(1.3, 0.03, 15, seed)).verdict(1.05)
    assert Verdict.NOISY is Figure.of(ratios(1.05, 0.5, 15, seed)).verdict(1.05) or seed in EXPECTED_MISTAKES
    assert Verdict.SHOWN is Figure.of(ratios(9, 0.5, 15, seed)).verdict(None)


EXPECTED_MISTAKES = {17}
"""One interval in twenty may lie beside the truth."""


def test_a_target_at_the_end_of_the_interval_is_met() -> None:
    """At most means at most."""
    assert Verdict.MET is Figure(1.0, 0.9, 1.05, 9).verdict(1.05)
    assert Verdict.NOISY is Figure(1.0, 1.05, 1.06, 9).verdict(1.05)
    assert Verdict.MISSED is Figure(1.1, 1.051, 1.2, 9).verdict(1.05)


def test_where_no_difference_is_asked_for_the_interval_must_reach_the_target() -> None:
    """A row that claims to be as fast is missed only by an interval that lies beyond; too few values claim nothing."""
    assert Verdict.MET is Figure(1.1, 0.99, 1.2, 20).verdict(1.0, reaches=True)
    assert Verdict.MISSED is Figure(1.1, 1.01, 1.2, 20).verdict(1.0, reaches=True)
    assert Verdict.NOISY is Figure.of([0.5] * 5).verdict(1.0, reaches=True)


def test_spread_is_that_of_the_middle_half() -> None:
    """One outlier does not make a machine noisy."""
    assert 0.25 == spread([3.0, 4.0, 5.0])
    assert spread([10.0, 11.0, 10.5, 10.2, 10.4, 99.0]) < 0.1
    assert 0.0 == spread([1.0])


def test_each_side_goes_first_as_often() -> None:
    """What the second place costs or saves meets both."""
    assert [("a", "b"), ("b", "a"), ("a", "b"), ("b", "a")] == list(turns(["a", "b"], 4))
    assert [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")] == list(turns(["a", "b", "c"], 3))


def made(sides: Callable[[], Sides], against: str | None = "theirs", pairs: int = 4) -> Row:
    """A row with these sides."""

    @contextmanager
    def prepare(scale: Scale) -> Iterator[Sides]:
        yield sides()

    return Row("made", "what is made up", against, 1.0, prepare, pairs)


SCALE = Scale(Path("/nowhere"), 0, 0)


def only(row: Row, scale: Scale) -> Measured:
    """What comes of one row alone."""
    [measured], _ = measure([row], scale)
    return measured


def test_pairs_are_interleaved_after_a_warm_up_and_compared_pair_by_pair() -> None:
    """The first of each side is not counted, the sides take turns, and slow times meet both, so that their ratio stays."""
    order = []
    slow = itertools.count(1)
    pace = {"ours": itertools.count(1), "theirs": itertools.count(1)}

    def side(name: str, seconds: float) -> Callable[[], float]:
        def run() -> float:
            order.append(name)
            return seconds * next(pace[name])

        return run

    measured = only(made(lambda: Sides(side("ours", 3), side("theirs", 4))), SCALE)

    assert ["ours", "theirs"] + ["ours", "theirs", "theirs", "ours"] * 2 == order
    assert ([6, 9, 12, 15], [8, 12, 16, 20]) == (measured.ours, measured.theirs)
    assert (0.75, 4, 1) == (measured.figure.value, measured.figure.count, next(slow))


def test_a_turn_that_is_done_twice_counts_once() -> None:
    """The first time pays for what the other side left behind."""
    numbers = itertools.count(0)
    row = dataclasses.replace(made(lambda: Sides(lambda: float(next(numbers))), None, 6), twice=True)

    assert [2, 4, 6, 8, 10, 12] == only(row, SCALE).ours


def test_a_row_without_another_side_is_in_milliseconds() -> None:
    """An absolute target is compared with what it took."""
    measured = only(made(lambda: Sides(lambda: 0.0005), None, 6), SCALE)

    assert (0.5, "ms", Verdict.MET) == (measured.figure.value, measured.row.unit, measured.verdict)
    assert 7 == len(only(made(lambda: Sides(lambda: 0.1), None, 6), Scale(Path("/"), 0, 0, 7)).ours)


def test_what_is_shown_beside_a_row_is_of_the_pairs_alone() -> None:
    """The warm-up does not count there either, and nothing in it has a verdict."""
    beside: dict[str, list[float]] = {"slower": []}

    def ours() -> float:
        beside["slower"].append(float(len(beside["slower"]) + 1))
        return 1.0

    measured = only(made(lambda: Sides(ours, lambda: 2.0, beside), pairs=6), SCALE)

    assert (3.5, 6) == (measured.beside["slower"].value, measured.beside["slower"].count)
    assert "made: slower: 3.500 x, 1.000 x to 6.000 x" in table([measured])
    assert json.loads(json.dumps(measured.as_data()))["beside"]["slower"]["value"] == 3.5


def test_the_table_says_what_could_not_be_told() -> None:
    """With too few pairs there is no interval, in the file it is null, and the verdict is no verdict."""
    measured = only(made(lambda: Sides(lambda: 1.0, lambda: 2.0)), SCALE)

    assert "too few" in table([measured])
    assert table([measured]).endswith("too noisy to tell")
    assert (None, None) == (measured.as_data()["low"], measured.as_data()["high"])


@pytest.mark.parametrize(("unit", "figure"), [("ms", 2000.0), ("%", 200.0), ("MB", 2e-6)])
def test_a_row_that_is_absolute_is_in_its_own_unit(unit: str, figure: float) -> None:
    """What a side returns is seconds, a share of a core or bytes, and what is shown beside it is the same."""
    more: list[float] = []

    def ours() -> float:
        more.append(4.0)
        return 2.0

    row = dataclasses.replace(made(lambda: Sides(ours, beside={"more": more}), None, 6), absolute=unit)
    measured = only(row, SCALE)

    assert (figure, 2 * figure, unit) == (measured.figure.value, measured.beside["more"].value, measured.row.unit)
    assert 7 == table([measured]).partition("\n")[2].count(f" {unit}")


def test_a_cold_row_has_no_warm_up() -> None:
    """The first time counts where each is a new process."""
    numbers = itertools.count(0)
    row = dataclasses.replace(made(lambda: Sides(lambda: float(next(numbers))), None, 2), cold=True)

    assert [0, 1] == only(row, SCALE).ours


def test_rows_that_are_prepared_alike_are_measured_at_once() -> None:
    """Each side runs once a round, however many rows it is in, and one that no row asks for does not run at all."""
    order = []

    def side(name: str, seconds: float) -> Callable[[], float]:
        return lambda: order.append(name) or seconds

    row = made(lambda: Sides(side("ours", 1), side("theirs", 2), more={n: side(n, 4) for n in ("x", "y")}), pairs=3)
    rows = [row, dataclasses.replace(row, theirs="x"), dataclasses.replace(row, ours="x", against=None)]
    measured, left_out = measure(rows, SCALE)

    assert (["ours", "theirs", "x", "theirs", "x", "ours", "x", "ours", "theirs"], {}) == (order[3:], left_out)
    assert [0.5, 0.25, 4000.0] == [one.figure.value for one in measured]
    assert [[row], [other := made(lambda: Sides(side("z", 1)))]] == groups([row, other])


def test_a_peer_that_cannot_be_had_takes_its_own_row_away_alone() -> None:
    """The others are measured, and the reason is told."""
    row = made(lambda: Sides(lambda: 1.0, lambda: 2.0, unfit={"gone": "no network"}), pairs=6)
    lost = dataclasses.replace(row, name="lost", theirs="gone")
    measured, left_out = measure([lost, row], SCALE)

    assert (["made"], {"lost": "no network"}) == ([one.row.name for one in measured], left_out)
    assert ([], {"lost": "no network"}) == measure([lost], SCALE)


def test_of_nearly_all_values_the_interval_is_that_of_the_highest() -> None:
    """Of the numbers up to a thousand, 99 in 100 lie within 990; of four hundred values the end is known, of 350 it is not."""
    values = list(range(1, 1001))
    random.Random(1).shuffle(values)

    assert (990, 983, 997) == (Figure.of(values, 0.99).value, *interval(values, 0.99))
    assert 400 == interval(range(1, 401), 0.99)[1]
    assert Verdict.NOISY is Figure.of(range(350), 0.99).verdict(1000)


@pytest.mark.parametrize("count", [400, 3000])
def test_the_interval_of_nearly_all_holds_the_truth_as_often_as_it_says(count: int) -> None:
    """Drawn from a skewed distribution five hundred times, at most one in twenty intervals misses what 99 in 100 lie within."""
    generator = random.Random(7)
    true = math.exp(0.5 * statistics.NormalDist().inv_cdf(0.99))
    held = 0
    for _ in range(500):
        low, high = interval([generator.lognormvariate(0, 0.5) for _ in range(count)], 0.99)
        held += low <= true <= high

    assert 0.945 <= held / 500 < 1


MOUNTS = """\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
22 21 0:20 / /dev/shm rw - tmpfs tmpfs rw
23 21 7:0 / /mnt/a\\040disk rw shared:9 - xfs /dev/loop0 rw
24 21 0:30 / /mnt rw - tmpfs memory rw
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/me", ("ext4", "/dev/vda")),
        ("/dev/shm/x", ("tmpfs", "tmpfs")),
        ("/dev/shmx", ("ext4", "/dev/vda")),
        ("/mnt/a disk/x", ("xfs", "/dev/loop0")),
        ("/mnt/b", ("tmpfs", "memory")),
    ],
)
def test_the_filesystem_of_a_folder_is_that_of_the_nearest_mount(path: str, expected: tuple[str, str]) -> None:
    """As the kernel's table has it, with its escapes."""
    assert expected == machine.filesystem_of(path, MOUNTS)


def test_a_folder_in_memory_or_without_room_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An fsync that costs nothing would make every save look good."""
    monkeypatch.setattr(machine, "filesystem_of", lambda path, mounts: ("tmpfs", "tmpfs"))
    with pytest.raises(machine.UnfitError, match="is on tmpfs, which is memory"):
        machine.check(tmp_path, 1)
    monkeypatch.setattr(machine, "filesystem_of", lambda path, mounts: ("ext4", "/dev/vda"))
    with pytest.raises(machine.UnfitError, match=r"bytes free, and 4,000,\d{3},\d{3},\d{3} are needed"):
        machine.check(tmp_path, 10**12)
    machine.check(tmp_path, 1)


def benchmarks(*words: str, timeout: float = 390) -> "subprocess.CompletedProcess[str]":
    """The command, as `make bench` calls it."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


@pytest.mark.heavy
@pytest.mark.timeout(400)
def test_every_row_runs_from_end_to_end_and_leaves_nothing_but_its_figures(tmp_path: Path) -> None:
    """One table on standard output, one file, and the folder as empty as it was."""
    folder = ROOT / "out" / "bench" / "of-a-test"
    done = benchmarks("--quick", "--pairs=1", "--dir", str(folder), "--out", str(tmp_path / "o" / "bench.json"))
    if done.returncode == 2:
        give_up(done.stderr)
    stored = json.loads((tmp_path / "o" / "bench.json").read_text())
    left = [path.name for path in folder.iterdir()]
    folder.rmdir()

    assert (0, []) == (done.returncode, left), done.stderr
    assert [row.name for row in ROWS] == [row["name"] for row in stored["rows"]]
    may_be_none = ("supervisor-cpu-idle", "growth-restarts")  # in half a second, and over fifty restarts
    assert all(row["value"] > 0 or row["name"] in may_be_none for row in stored["rows"])
    assert {"too noisy to tell", "shown"} == {row["verdict"] for row in stored["rows"]}
    assert [1 + len(ROWS), 3] == [len(lines) for lines in split_table(done.stdout)]
    assert stored["machine"]["versions"]["torch"]


def split_table(text: str) -> tuple[list[str], list[str]]:
    """The lines of the table, and those beside it."""
    lines = text.splitlines()
    return [line for line in lines if ": " not in line], [line for line in lines if ": " in line]


HALF_STRENGTH = {
    "restart-shell": 0.3,
    "decision": 100,
    "arrival": 10,
    "verify-sealed": 2.1,
    "verify-unsealed": 2.3,
    "save-blocking": 2.6,
    "save-nonblocking": 0.4,
    "supervisor-cpu": 2,
    "supervisor-cpu-idle": 1,
    "supervisor-memory": 128,
    "output": 2000,
    "ladder": 200,
    "ladder-command": 800,
}
"""Twice what each row may measure: so much is no noise, also on a machine that does other things meanwhile."""


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_nothing_takes_twice_as_long_as_it_may(tmp_path: Path) -> None:
    """Small sizes and few pairs tell that much of the rows whose figures are stable enough."""
    folder, out = ROOT / "out" / "bench" / "half-strength", tmp_path / "bench.json"
    chosen = [word for name in HALF_STRENGTH for word in ("--row", name)]
    scale = ("--size=0.3", "--snapshots=10000", "--pairs=5", "--seconds=4")  # in which there are two saves
    done = benchmarks(*chosen, *scale, "--dir", str(folder), "--out", str(out), timeout=880)
    if done.returncode == 2:
        give_up(done.stderr)
    measured = {row["name"]: row["value"] for row in json.loads(out.read_text())["rows"]}
    print(done.stdout)

    assert HALF_STRENGTH.keys() == measured.keys()
    assert {} == {name: value for name, value in measured.items() if value > HALF_STRENGTH[name]}


@pytest.mark.heavy
@pytest.mark.timeout(400)
def test_a_death_is_noticed_in_twice_the_time_that_it_may_take(tmp_path: Path) -> None:
    """The quickest quarter of forty tells that: on a machine that does other things, the rest wait for a processor.

    Of the slowest, `death-p99`, nothing else could be told there, so it is not held.
    """
    folder, out = ROOT / "out" / "bench" / "deaths", tmp_path / "bench.json"
    done = benchmarks("--row", "death", "--pairs=40", "--dir", str(folder), "--out", str(out))
    if done.returncode == 2:
        give_up(done.stderr)
    (row,) = json.loads(out.read_text())["rows"]

    assert 2 * row["at_most"] > 1000 * statistics.quantiles(row["ours"])[0]


def test_the_bars_are_twice_the_targets() -> None:
    """A target that was tightened tightens its bar."""
    targets = {row.name: row.at_most for row in ROWS}

    assert {} == {name: bar for name, bar in HALF_STRENGTH.items() if bar > 2 * (targets[name] or 0)}


def test_an_unknown_row_is_a_usage_error_that_names_the_rows() -> None:
    """Before anything is measured."""
    done = benchmarks("--row", "verify-everything")

    assert 2 == done.returncode
    assert "verify-sealed" in done.stderr

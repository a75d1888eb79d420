"""The goodput ledger: what a run's time went to, by its records."""

import dataclasses
import json
import math
import os
import re
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.cli import accounting
from supervisor.cli.accounting import Accounting, in_words
from supervisor.cli.frame import frame
from supervisor.cli.look import Look, View
from supervisor.following import LINE_BYTES_MAX, Following
from supervisor.goodput import Account, Goodput, goodput_of
from supervisor.records import CATALOGUE
from supervisor.saving import Saves, save_interval
from tests.bench import Bench, until
from tests.supervisor.test_cli_snapshots import documented, fields

START = 1_800_000_000
Line = dict[str, Any]


def at(seconds: float, event: str, /, **more: Any) -> Line:
    """A record that was written so many seconds after the run began."""
    stamp = datetime.fromtimestamp(START + seconds, UTC).isoformat().replace("+00:00", "Z")
    return {"event": event, "timestamp": stamp, "run_id": "r", **more}


def started(seconds: float) -> Line:
    return at(seconds, "supervisor.started")


def spawned(seconds: float, step: int | None = None, incarnation: int = 1) -> Line:
    name = None if step is None else f"ckpt_{step}.pt"
    return at(seconds, "trainer.spawned", resumed_from=name, step=step, incarnation=incarnation)


def exited(seconds: float, cause: str, step: int | None) -> Line:
    return at(seconds, "trainer.exited", cause=cause, step=step)


def saved(seconds: float, step: int) -> Line:
    return at(seconds, "trainer.progressed", step=step)


# Histories, reckoned by hand.

KILLED = [
    started(0), spawned(10), saved(60, 50), exited(110, "killed", 100), spawned(130, 50, 2), saved(180, 100),
    exited(230, "completed", 150), at(230, "run.completed", step=150), at(231, "supervisor.stopped", status=0),
]  # fmt: skip
"""100 s for steps 1 to 100, then 20 s away, then 100 s for 51 to 150, of which half are new."""

HISTORIES: dict[str, tuple[list[Line], Goodput]] = {
    "nothing": ([], Goodput()),
    "no trainer yet": ([started(0), at(5, "snapshot.verified", step=1)], Goodput(wall_seconds=5.0, downtime={"starting": 5.0})),
    "unbroken": (
        [started(0), spawned(20), saved(60, 40), exited(100, "completed", 80), at(100, "run.completed", step=80)],
        Goodput(80, 0, 100.0, 0.0, 80.0, 80.0, 0.8, {"starting": 20.0}),
    ),
    "one kill": (
        KILLED,
        Goodput(150, 50, 230.0, 1.0, 200.0, 150.0, 150 / 230, {"killed": 20.0, "starting": 10.0}, {"killed": 1}, 200.0),
    ),
    "a fallback passes over two snapshots": (
        [
            started(0), spawned(0), exited(90, "crashed", 90),
            at(95, "fallback.chosen", by="supervisor", chosen_step=30, steps_lost=60), spawned(100, 30), saved(170, 100),
        ],
        Goodput(100, 60, 170.0, 0.0, 160.0, 100.0, 100 / 170, {"crashed": 10.0}, {"crashed": 1}, 160.0),
    ),
    "a trainer falls back by itself": (
        [
            started(0), spawned(0), exited(60, "crashed", 60), spawned(60, 60),
            at(61, "fallback.chosen", by="trainer", chosen_step=30, steps_lost=30), saved(100, 70),
        ],
        Goodput(70, 30, 100.0, 0.0, 100.0, 70.0, 0.7, {}, {"crashed": 1}, 100.0),
    ),
    "it began from an adopted snapshot": (
        [started(0), spawned(0, 1000), saved(50, 1100), exited(60, "stopped", 1120), at(60, "run.stopped", step=1100)],
        Goodput(120, 0, 60.0, 0.0, 60.0, 60.0, 1.0),
    ),
    "only the fallback tells what was reached": (
        [
            started(0), spawned(0), saved(40, 40), exited(80, "killed", None),
            at(80, "fallback.chosen", by="supervisor", chosen_step=20, steps_lost=50), spawned(80, 20), saved(140, 80),
        ],
        Goodput(80, 50, 140.0, 0.0, 140.0, 90.0, 90 / 140, {}, {"killed": 1}, 140.0),
    ),
    "stopped for a night": (
        [
            started(0), spawned(0), exited(100, "stopped", 50), at(100, "run.stopped", step=50),
            at(100, "supervisor.stopped", status=143), started(5100), spawned(5110, 50), exited(5200, "completed", 95),
        ],
        Goodput(95, 0, 200.0, 5000.0, 190.0, 190.0, 0.95, {"starting": 10.0}),
    ),
    "paused": (
        [
            started(0), spawned(0), exited(50, "stopped", None), at(50, "run.paused", step=40, reached=50),
            at(350, "run.resumed", step=40), spawned(360, 40), exited(400, "completed", 80),
        ],
        Goodput(80, 10, 100.0, 300.0, 90.0, 80.0, 0.8, {"starting": 10.0}),
    ),
    "a supervisor is killed with its trainer": (
        [started(0), spawned(0), saved(40, 40), started(100), spawned(120, 40), exited(200, "completed", 120)],
        Goodput(
            120, 0, 200.0, 0.0, 120.0, 120.0, 0.6, {"supervisor-lost": 80.0}, {"supervisor-lost": 1}, 120.0
        ),
    ),
    "a snapshot proves a step that nobody told": (
        [started(0), spawned(0), started(100), spawned(100, 60), exited(150, "completed", 100)],
        Goodput(
            100, 0, 150.0, 0.0, 50.0, 50.0, 50 / 150, {"supervisor-lost": 100.0}, {"supervisor-lost": 1}, 50.0
        ),
    ),
    "a stall": (
        [
            started(0), spawned(0), at(700, "trainer.stalled", stage="running", seconds=600.0),
            exited(710, "stalled", 100), spawned(715, 80), exited(755, "completed", 120),
        ],
        Goodput(120, 20, 755.0, 0.0, 140.0, 120.0, 120 / 755, {"stalled": 615.0}, {"stalled": 1}, 140.0),
    ),
    "processes that would not die": (
        [started(0), spawned(0), saved(50, 50), at(50, "trainer.stuck"), exited(90, "killed", 50), spawned(91, 50)],
        Goodput(50, 0, 91.0, 0.0, 50.0, 50.0, 50 / 91, {"stuck": 40.0, "killed": 1.0}, {"killed": 1}, 50.0),
    ),
    "it fails and a person mends it": (
        [
            started(0), spawned(0), exited(10, "crashed", 20), at(10, "run.failed", status=4),
            at(10, "supervisor.stopped", status=4), started(100), spawned(110, 20), exited(120, "completed", 40),
        ],
        Goodput(40, 0, 120.0, 0.0, 20.0, 20.0, 20 / 120, {"crashed": 100.0}, {"crashed": 1}, 20.0),
    ),
    "it fails before any trainer": (
        [started(0), at(1, "run.failed", status=3), at(1, "supervisor.stopped", status=3), started(51), spawned(52)],
        Goodput(0, 0, 52.0, downtime={"failed": 51.0, "starting": 1.0}),
    ),
    "it starts over": (
        [started(0), spawned(0), exited(50, "killed", 50), at(50, "run.started_over"), spawned(50), exited(120, "stopped", 70)],
        Goodput(70, 50, 120.0, 0.0, 120.0, 70.0, 70 / 120, {}, {"killed": 1}, 120.0),
    ),
    "nobody tells a step": (
        [started(0), spawned(0), exited(50, "crashed", None), spawned(60), exited(70, "completed", None)],
        Goodput(0, 0, 70.0, 0.0, 60.0, None, None, {"crashed": 10.0}, {"crashed": 1}, 60.0),
    ),
    "a life without a step is worth nothing": (
        [started(0), spawned(0), exited(30, "crashed", None), spawned(30), exited(60, "completed", 10)],
        Goodput(10, 0, 60.0, 0.0, 60.0, 30.0, 0.5, {}, {"crashed": 1}, 60.0),
    ),
    "a snapshot whose step nobody knows repeats nothing": (
        [
            started(0), spawned(0), exited(10, "killed", 10),
            at(10, "trainer.spawned", resumed_from="model.pt", step=None), exited(20, "completed", 15),
        ],
        Goodput(15, 0, 20.0, 0.0, 20.0, 20.0, 1.0, {}, {"killed": 1}, 20.0),
    ),
    "the clock is set back an hour": (
        [
            started(0), spawned(10), saved(60, 50), saved(60 - 3600, 60), exited(100 - 3600, "killed", 100),
            spawned(120 - 3600, 60),
        ],
        Goodput(100, 0, 120.0, 0.0, 90.0, 90.0, 0.75, {"killed": 20.0, "starting": 10.0}, {"killed": 1}, 90.0),
    ),
    "a death that is told twice is one": (
        [started(0), spawned(0), exited(50, "killed", 50), exited(60, "killed", 50), spawned(60, 50)],
        Goodput(50, 0, 60.0, 0.0, 50.0, 50.0, 50 / 60, {"killed": 10.0}, {"killed": 1}, 50.0),
    ),
    "a trainer that has told steps did not begin elsewhere": (
        [
            started(0), spawned(0), saved(50, 50), at(50, "fallback.chosen", by="trainer", chosen_step=30, steps_lost=20),
            exited(60, "stopped", 60),
        ],
        Goodput(60, 0, 60.0, 0.0, 60.0, 60.0, 1.0),
    ),
    "a supervisor stops and says nothing of its trainer": (
        [started(0), spawned(0), saved(40, 40), at(50, "supervisor.stopped", status=143), started(90), spawned(90, 40)],
        Goodput(40, 0, 50.0, 40.0, 50.0, 50.0, 1.0),
    ),
    "a cause that is called as something else": (
        [started(0), spawned(0), exited(50, "training", 50), spawned(60, 50)],
        Goodput(50, 0, 60.0, 0.0, 50.0, 50.0, 50 / 60, {"training?": 10.0}, {"training?": 1}, 50.0),
    ),
    "the supervisor of another run was left over": (
        [started(0), spawned(0), saved(40, 40), {**at(45, "supervisor.lock_lost"), "run_id": "old"},
         {**at(46, "supervisor.stopped", status=143), "run_id": "old"}, exited(80, "completed", 80)],
        Goodput(80, 0, 80.0, 0.0, 80.0, 80.0, 1.0),
    ),
    "another run was here before, and its first record was lost": (
        [{**one, "run_id": "old"} for one in KILLED] + [spawned(1010), exited(1020, "completed", 5)],
        Goodput(5, 0, 10.0, 0.0, 10.0, 10.0, 1.0),
    ),
    "another run was here before": (
        [{**one, "run_id": "old"} for one in KILLED] + [started(1000), spawned(1010), exited(1020, "completed", 5)],
        Goodput(5, 0, 20.0, 0.0, 10.0, 10.0, 0.5, {"starting": 10.0}),
    ),
}  # fmt: skip


def near(expected: Goodput) -> dict[str, Any]:
    """All of it, numbers with a point to nine digits."""
    told = dataclasses.asdict(expected)
    return {key: pytest.approx(value) if isinstance(value, float | dict) else value for key, value in told.items()}


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_is_reckoned_as_by_hand(name: str) -> None:
    """Steps that were useful and repeated, time by where it went, deaths, and the mean time between them."""
    records, expected = HISTORIES[name]

    assert near(expected) == dataclasses.asdict(goodput_of(records))


def test_what_goes_on_counts_until_now() -> None:
    """The step of the status is newer than any record; it counts only for the life that told it, and is not kept."""
    account = Account()
    for record in (started(0), spawned(0), saved(40, 40)):
        account.add(record)
    now = account.goodput(now=START + 100.0, incarnation=1, step=90)
    other = account.goodput(now=START + 100.0, incarnation=2, step=90)

    assert (90, 100.0, 1.0) == (now.useful_steps, now.wall_seconds, now.goodput)
    assert (40, 40.0) == (other.useful_steps, account.goodput().wall_seconds)


def test_a_supervisor_that_is_gone_is_down_since_its_last_word() -> None:
    """Its status tells until when it lived; its trainer's death counts, though nobody has recorded it."""
    account = Account()
    for record in (started(0), spawned(0), saved(40, 40)):
        account.add(record)
    found = account.goodput(now=START + 100.0, alive_at=START + 60.0, incarnation=1, step=60)

    assert (60, 60.0, {"supervisor-lost": 40.0}) == (found.useful_steps, found.training_seconds, found.downtime)
    assert ({"supervisor-lost": 1}, 0.6) == (found.failures, found.goodput)


def test_a_run_that_is_done_is_not_down() -> None:
    """What passes after its end changes nothing but the time off."""
    account = Account()
    for record in KILLED:
        account.add(record)
    found = account.goodput(now=START + 1_000_000.0, alive_at=START + 231.0)

    assert (230.0, 1_000_000.0 - 230) == (found.wall_seconds, found.off_seconds)


# How often to save.


@pytest.mark.parametrize(
    ("expected", "save_seconds", "mtbf_seconds"),
    [
        (1000 * (1 + 0.05 / 3 + 0.0025 / 9) - 50, 50.0, 10_000.0),  # sqrt(2 C M) is 1000, C / 2M is 0.05 squared
        (200 * (1 + 0.5 / 3 + 0.25 / 9) - 100, 100.0, 200.0),  # sqrt(2 C M) is 200, C / 2M is 0.5 squared
        (100.0, 200.0, 100.0),
        (100.0, 5000.0, 100.0),
        (0.0, 0.0, 100.0),
    ],
)
def test_the_interval_is_dalys(expected: float, save_seconds: float, mtbf_seconds: float) -> None:
    """His formula of the higher order where a save costs less than twice the time between failures, else that time."""
    assert pytest.approx(expected) == save_interval(save_seconds, mtbf_seconds)


@given(st.floats(1e-3, 1e3), st.floats(1e7, 1e9))
def test_where_saves_cost_little_it_is_youngs(save_seconds: float, mtbf_seconds: float) -> None:
    """To first order sqrt(2 C M)."""
    assert pytest.approx(math.sqrt(2 * save_seconds * mtbf_seconds), rel=0.01) == save_interval(
        save_seconds, mtbf_seconds
    )


def test_the_interval_is_told_when_the_cost_and_the_failures_are_known() -> None:
    """In seconds, and in steps as long as those of this run; without one of the two there is none."""
    metrics = [{"step": 51, "save_seconds": 3.0}, {"step": 52}, {"step": 101, "save_seconds": 1.0}]
    every = save_interval(2.0, 200.0)
    found = goodput_of(KILLED, metrics)

    assert (2.0, pytest.approx(every), round(every)) == (
        found.save_seconds,
        found.save_every_seconds,
        found.save_every_steps,
    )
    assert (None, None, None) == (
        goodput_of(KILLED).save_seconds, goodput_of(KILLED).save_every_seconds, goodput_of(KILLED).save_every_steps
    )  # fmt: skip
    unbroken = goodput_of([started(0), spawned(0), saved(9, 9)], metrics)
    assert (2.0, None, None) == (unbroken.save_seconds, unbroken.save_every_seconds, unbroken.save_every_steps)


# Laws.

counts = st.integers(0, 200)
odd = st.none() | st.booleans() | st.text(max_size=3) | st.floats() | st.integers() | st.lists(counts, max_size=2)
values = counts | odd
stamps = st.integers(0, 10_000).map(lambda seconds: at(seconds, "")["timestamp"])
records = st.fixed_dictionaries(
    {"event": st.sampled_from(sorted(CATALOGUE)) | odd, "timestamp": stamps | odd},
    optional={
        "step": values, "resumed_from": st.sampled_from([None, "ckpt_5.pt"]), "chosen_step": values, "steps_lost": values,
        "by": st.sampled_from(["supervisor", "trainer"]), "cause": st.sampled_from(["killed", "stopped", "training"]) | odd,
        "seconds": values, "reached": values, "incarnation": values, "run_id": st.sampled_from(["r", "r", "r", "s"]),
        "save_seconds": values, "status": values,
    },
)  # fmt: skip


def holds(found: Goodput) -> None:
    """What is true of any account."""
    numbers = [one for one in dataclasses.astuple(found) if isinstance(one, int | float)]
    numbers += [*found.downtime.values(), *found.failures.values()]
    assert all(math.isfinite(one) and one >= 0 for one in numbers), found
    assert pytest.approx(found.wall_seconds) == found.training_seconds + sum(found.downtime.values())
    assert found.goodput is None or found.goodput <= 1
    assert found.useful_seconds is None or found.useful_seconds <= found.training_seconds
    json.loads(json.dumps(dataclasses.asdict(found), allow_nan=False))


@given(st.lists(records, max_size=30), values, values, values)
def test_nothing_is_ever_negative_whatever_is_in_the_file(
    lines: list[Line], seconds: Any, incarnation: Any, step: Any
) -> None:
    """Records in any order with any content and any clock; as of the last of them and as of now."""
    account, saves = Account(), Saves()
    for line in lines:
        account.add(line)
        saves.add(line)
    now = float(START + (seconds if type(seconds) is int else 0))

    holds(account.goodput(saves))
    holds(account.goodput(saves, now=now, incarnation=incarnation, step=step))
    holds(account.goodput(saves, now=now, alive_at=now - 5, incarnation=incarnation, step=step))


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[int, int]]:
    """The first and last step of each life; each begins from a step that was reached."""
    found: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(1, 8))):
        start = draw(st.integers(0, max((last for _, last in found), default=100)))
        found.append((start, start + draw(st.integers(0, 50))))
    return found


@given(lives(), st.integers(1, 10))
def test_steps_are_useful_once_and_repeated_after_that(told: list[tuple[int, int]], pace: int) -> None:
    """Together they are all steps that were done; useful are those from the first one resumed to the highest reached."""
    clock, lines = 0, [started(0)]
    for number, (start, last) in enumerate(told):
        lines.append(spawned(clock, start, number + 1))
        clock += pace * (last - start)
        lines.append(exited(clock, "killed", last))
    found = goodput_of(lines)

    assert sum(last - start for start, last in told) == found.useful_steps + found.repeated_steps
    assert max(told[0][0], *(last for _, last in told)) - told[0][0] == found.useful_steps
    if found.useful_seconds is not None:
        assert pytest.approx(pace * found.useful_steps) == found.useful_seconds


@given(st.permutations([at(60, "snapshot.verified", step=50), at(60, "snapshot.sealed", step=50), saved(60, 50)]))
def test_the_order_of_records_of_one_moment_does_not_matter_where_they_are_apart(moment: list[Line]) -> None:
    """Records with one timestamp count in the order of their lines, and none costs time."""
    assert goodput_of(KILLED) == goodput_of([*KILLED[:2], *moment, *KILLED[3:]])


def test_all_in_one_moment_is_no_time() -> None:
    """Nothing is divided by it: what cannot be told is null."""
    found = goodput_of(
        [
            at(0, one["event"], **{k: v for k, v in one.items() if k not in ("event", "timestamp", "run_id")})
            for one in KILLED
        ]
    )

    assert (150, 50, 0.0, None, None) == (
        found.useful_steps, found.repeated_steps, found.wall_seconds, found.goodput, found.mtbf_seconds
    )  # fmt: skip


@given(st.lists(records, max_size=20), st.integers(0, 20))
def test_looking_changes_nothing(lines: list[Line], where: int) -> None:
    """An account that was looked at half-way says in the end what one says that was not."""
    account = Account()
    for number, line in enumerate(lines):
        if number == where:
            account.goodput(now=START + 1e6, alive_at=0.0, step=7)
        account.add(line)

    assert goodput_of(lines) == account.goodput(Saves())


# The file.


def write(path: Path, lines: list[Line], mode: str = "ab") -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    with path.open(mode) as file:
        file.write(b"".join(json.dumps(one).encode() + b"\n" for one in lines))


def taken(following: Following, bytes_max: int = 1 << 40) -> list[bytes]:
    return [line for lines in following.pieces(bytes_max) for line in lines]


def test_each_line_is_read_once_and_when_it_is_whole(tmp_path: Path) -> None:
    """A line that is being written is taken when its end is there."""
    path = tmp_path / "file"
    following = Following(str(path))
    assert ([], 1.0) == (taken(following), following.read)
    path.write_bytes(b"one\ntw")
    assert [b"one"] == taken(following)
    with path.open("ab") as file:
        file.write(b"o\nthree\n")

    assert [b"two", b"three"] == taken(following)
    assert ([], 0) == (taken(following), following.generation)


def test_another_file_in_its_place_is_read_from_its_beginning(tmp_path: Path) -> None:
    """Replaced, cut, or gone and back: the generation says so."""
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\n")
    following = Following(str(path))
    assert [b"one", b"two"] == taken(following)
    path.write_bytes(b"new\n")
    assert ([b"new"], 1) == (taken(following), following.generation)
    (tmp_path / "other").write_bytes(b"other\nfile\n")
    os.replace(tmp_path / "other", path)
    assert ([b"other", b"file"], 2) == (taken(following), following.generation)
    path.unlink()
    assert ([], 3) == (taken(following), following.generation)
    os.mkfifo(path)

    assert ([], 3) == (taken(following), following.generation)


def test_a_file_that_was_turned_over_is_read_to_its_end_first(tmp_path: Path) -> None:
    """Its last lines come before those of the file that stands there now, and that is no other account."""
    path, older = tmp_path / "file", tmp_path / "file.1"
    older.write_bytes(b"one\ntwo\n")
    path.write_bytes(b"three\n")
    following = Following(str(path), str(older))
    assert [b"one", b"two", b"three"] == taken(following)
    with path.open("ab") as file:
        file.write(b"four\n")
    os.replace(path, older)
    assert [b"four"] == taken(following)
    path.write_bytes(b"five\n")
    assert [b"five"] == taken(following)
    assert ([], 0, 1.0) == (taken(following), following.generation, following.read)
    os.replace(path, older)
    path.write_bytes(b"six\n")
    os.replace(path, older)

    assert ([b"six"], 1) == (taken(following), following.generation)


def test_lines_are_read_once_whenever_the_file_is_turned_over(tmp_path: Path) -> None:
    """A reader that comes by after each line, or between any two of its pieces, has all of them once and in order."""
    path, older = tmp_path / "file", tmp_path / "file.1"
    following, found = Following(str(path), str(older)), []
    for number in range(60):
        with path.open("ab") as file:
            file.write(b"%d\n" % number)
        if number % 7 == 3:
            os.replace(path, older)
        if number % 3 == 0:
            found += taken(following, 1)
    while lines := taken(following):
        found += lines

    assert list(range(60)) == list(map(int, found))


@given(st.lists(st.integers(0, 30), max_size=30), st.integers(1, 64))
def test_lines_are_the_same_in_pieces_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], size: int
) -> None:
    """Read a few bytes at a time or all at once."""
    path = tmp_path_factory.mktemp("pieces") / "file"
    path.write_bytes(b"".join(b"x" * length + b"\n" for length in lengths) + b"rest")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("supervisor.following.PIECE_BYTES", size)
        following, found = Following(str(path)), []
        while following.read < 1 or not found:
            found.append(taken(following, 1))

    assert lengths == [len(line) for lines in found for line in lines]


def test_a_file_of_any_size_costs_the_same_memory(tmp_path: Path) -> None:
    """A line without end is passed over; what comes after it is read."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(64 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast\n")
    tracemalloc.start()
    found = taken(Following(str(path)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert [b"last"] == found
    assert peak < 6 * LINE_BYTES_MAX


def test_the_account_goes_on_where_it_was(tmp_path: Path) -> None:
    """Read between any two lines it says what it does of them all; of another file in their place what that one says."""
    events, metrics = tmp_path / ".lastgood" / "events.jsonl", tmp_path / "metrics.jsonl"
    found, now = Accounting(str(tmp_path)), float(START + 231)
    for record in KILLED:
        write(events, [record])
        found.read()
    write(metrics, [{"step": 51, "save_seconds": 2.0}, {"step": 52, "loss": 1.0}])
    found.read()
    assert (goodput_of(KILLED, [{"save_seconds": 2.0}]), 1.0) == (found.goodput({}, False, now), found.share_read)
    write(events, [started(0)], "wb")
    metrics.unlink()
    found.read()

    assert goodput_of([started(0), at(231, "x")]) == found.goodput({}, True, now)


def test_the_account_takes_in_what_was_turned_over(tmp_path: Path) -> None:
    """Wherever the border lies, goodput and the records shown are those of both files."""
    events = tmp_path / ".lastgood" / "events.jsonl"
    for border in range(len(KILLED)):
        write(events.with_name("events.jsonl.1"), KILLED[:border], "wb")
        write(events, KILLED[border:], "wb")
        found = Look(str(tmp_path)).view(float(START + 231))

        assert goodput_of(KILLED) == found.goodput
        assert list(KILLED)[-40:] == list(found.records)[-40:]


def test_without_a_supervisor_its_last_word_is_that_of_its_status(tmp_path: Path) -> None:
    """What passes after that is downtime; while one lives all of it is training."""
    write(tmp_path / ".lastgood" / "events.jsonl", [started(0), spawned(0), saved(40, 40)])
    found, now = Accounting(str(tmp_path)), float(START + 100)
    found.read()
    status = {"written_at": START + 60.0, "incarnation": 1, "step": 60}

    assert {"supervisor-lost": 40.0} == found.goodput(status, False, now).downtime
    assert {} == found.goodput(status, True, now).downtime
    assert {"supervisor-lost": 60.0} == found.goodput({"written_at": "?"}, False, now).downtime


def test_a_large_file_is_read_a_part_at_each_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is read the frame says how far; then what it tells."""
    monkeypatch.setattr("supervisor.cli.look.ACCOUNT_BYTES", 1 << 20)
    padding = [at(20, "snapshot.verified", pad="x" * 1000) for _ in range(2000)]
    write(tmp_path / ".lastgood" / "events.jsonl", [*KILLED[:2], *padding, *KILLED[2:]])
    look, lines = Look(str(tmp_path)), []
    while len(lines) < 5 and not any("useful" in line for line in lines):
        lines.append("\n".join(one.plain for one in frame(look.view(float(START + 231)), 120, 40)))

    assert re.search(r"goodput: \d\d % of what tells it is read", lines[0])
    assert (
        "goodput 65.2 % of 3m50s; 150 useful steps, 50 repeated  downtime 30s (killed 20s, starting 10s)" in lines[-1]
    )
    assert 3 == len(lines)


# What a person sees.


def test_it_is_told_in_words() -> None:
    """Share, steps, downtime, deaths, the cost of a save and how often to save; what is not known is left out."""
    found = goodput_of(KILLED, [{"save_seconds": 2.0}])

    assert [
        ("goodput", "65.2 % of 3m50s; 150 useful steps, 50 repeated"),
        ("downtime", "30s (killed 20s, starting 10s)"),
        ("failures", "1, one in 3m20s of training"),
        ("save", "costs 2 s; by Young and Daly save every 26s or 27 steps"),
    ] == in_words(found)
    assert ["goodput", "downtime", "failures"] == [name for name, _ in in_words(goodput_of(KILLED))]
    assert [] == in_words(Goodput())
    assert (
        "costs 2 s"
        == dict(in_words(goodput_of([started(0), spawned(0), saved(9, 9)], [{"save_seconds": 2.0}])))["save"]
    )
    assert "0.47s (killed 0.47s)" == dict(in_words(Goodput(wall_seconds=5.0, downtime={"killed": 0.4687})))["downtime"]
    assert "unknown of 5s; 0 useful steps, 0 repeated" == in_words(Goodput(wall_seconds=5.0))[0][1]


def test_a_frame_has_no_line_of_it_before_a_run_began() -> None:
    """Nothing is shown of what is not there."""
    assert not [
        one.plain for one in frame(View(directory="out", now=0.0, goodput=Goodput()), 80, 20) if "goodput" in one.plain
    ]


def test_only_a_bundled_trainers_lines_about_saves_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line a step is too much to take apart where one in a thousand is of interest."""
    write(tmp_path / "metrics.jsonl", [{"step": 1}, {"step": 2, "save_seconds": 4.0}, {"step": 3}])
    parsed: list[bytes] = []
    objects = accounting.objects
    monkeypatch.setattr(
        "supervisor.cli.accounting.objects", lambda lines: objects(parsed.append(one) or one for one in lines)
    )
    Accounting(str(tmp_path)).read()

    assert [{"step": 2, "save_seconds": 4.0}] == [json.loads(one) for one in parsed]


def test_the_bundled_trainer_tells_what_its_saves_cost(tmp_path: Path) -> None:
    """The line of the step after a save has the seconds, under the name that is looked for."""
    from trainer.metrics import open_metrics

    with open_metrics(str(tmp_path)) as opened:
        for step, seconds in ((1, None), (2, 3.0), (3, None), (4, 1.0)):
            opened.record(step, 1.0, 1.0, 0.1, 10.0, True, seconds)
    found = Accounting(str(tmp_path))
    found.read()

    assert 2.0 == found.goodput({}, False, 0.0).save_seconds


# A real run.


def test_a_kill_costs_the_steps_that_are_done_again(bench: Bench) -> None:
    """Killed at step 12 with a snapshot of 10: two steps are repeated, twenty useful; the status and the view say so."""
    assert 0 == bench.run("--steps=20", "--habit=die:12", sets=("run.final_step=20",))
    found = json.loads(bench.lastgood("status", "checkpoints", "--json").stdout)["goodput"]
    shown = bench.lastgood("status", "checkpoints").stdout
    watched = bench.lastgood("watch", "checkpoints").stdout

    assert (20, 2, {"killed": 1}) == (found["useful_steps"], found["repeated_steps"], found["failures"])
    assert {"starting", "killed"} == set(found["downtime"])
    assert 0 < found["goodput"] < 1
    assert found["training_seconds"] == found["mtbf_seconds"]
    assert (None, None) == (found["save_seconds"], found["save_every_seconds"])
    for text in (shown, watched):
        assert "20 useful steps, 2 repeated" in text
        assert "1, one in " in text


def test_while_a_run_is_paused_its_clock_stands_still(bench: Bench) -> None:
    """Time off is not downtime, and no failure."""
    bench.start(*bench.command("--steps=100000", "--habit=final"))
    bench.wait_for("trainer.progressed", count=2)
    assert 0 == bench.lastgood("pause", "checkpoints").returncode
    first = json.loads(bench.lastgood("status", "checkpoints", "--json").stdout)["goodput"]
    until(lambda: json.loads(bench.lastgood("status", "checkpoints", "--json").stdout)["goodput"]["off_seconds"] > 1)
    second = json.loads(bench.lastgood("status", "checkpoints", "--json").stdout)["goodput"]

    assert first["wall_seconds"] == second["wall_seconds"]
    assert ({}, None) == (second["failures"], second["mtbf_seconds"])


def test_the_page_and_the_status_agree_about_every_field(bench: Bench) -> None:
    """Whatever `status` prints as JSON is documented, and whatever is documented is printed."""
    assert 0 == bench.run("--steps=10", "--habit=die:7", sets=("run.final_step=10",))
    found = json.loads(bench.lastgood("status", "checkpoints", "--json").stdout)
    printed = {re.sub(r"^(goodput\.(?:downtime|failures))\..*", r"\1", name) for name in fields(found)}

    assert documented("status") == printed

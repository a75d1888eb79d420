"""`lastgood watch`: what a frame shows, what it costs, and how it behaves at a terminal."""

import contextlib
import fcntl
import itertools
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from supervisor.cli import frame as frames
from supervisor.cli.app import app
from supervisor.cli.frame import binned, frame, span, sparkline
from supervisor.cli.look import Look, Row, View, curve_of, restarts_in, speeds
from supervisor.tails import objects, sampled, tail
from tests.bench import Bench, until
from tests.conftest import MakeSnapshot
from tests.supervisor.test_cli_snapshots import documented, fields, section

HUGE = 40 << 30  # bytes; the file is sparse


def plain(view: View, width: int = 120, height: int = 40, ascii_only: bool = False) -> list[str]:
    """A frame's lines without colours."""
    return [line.plain for line in frame(view, width, height, ascii_only)]


def record(event: str, **more: Any) -> dict[str, Any]:
    return {"event": event, "level": "info", "timestamp": "2026-01-01T10:20:30.5Z", "run_id": "r", **more}


def written(path: Path, entries: list[dict[str, Any]], at: int = 0) -> Path:
    """A file of JSON lines, that begin at an offset after a hole."""
    path.parent.mkdir(exist_ok=True, parents=True)
    with path.open("wb") as file:
        file.seek(at)
        file.write(b"".join(json.dumps(one).encode() + b"\n" for one in entries))
    return path


def metric(step: int, loss: float | None, incarnation: int = 1, at: float = 0.0) -> dict[str, Any]:
    return {"step": step, "loss": loss, "incarnation": incarnation, "tokens_per_second": 100.0, "time": at + step / 10}


# What is shown.


def test_one_frame_of_a_real_run_shows_all_there_is(bench: Bench) -> None:
    """After a kill and to its end: phase, step, the death and its cause, the ladder with verdicts, the last records."""
    assert 0 == bench.run("--steps=20", "--habit=die:12", sets=("run.final_step=20",))
    done = bench.lastgood("watch", "checkpoints")
    lines = done.stdout.splitlines()

    assert (0, "") == (done.returncode, done.stderr)
    assert ["checkpoints", "completed", "step", "20", "of", "20", "(100", "%)"] == lines[0].split()
    assert "start 2  from step_10.pt  restarts: 1 (killed 1)  last good step_20.pt" in lines
    assert [["20", "step_20.pt"], ["15", "step_15.pt"], ["10", "step_10.pt"], ["5", "step_5.pt"]] == [
        [line.split()[0], line.split()[-1]] for line in lines if re.match(r" +\d+ +[\d.]+ k?B ", line)
    ]
    assert all("not judged" not in line for line in lines)
    assert "trainer.exited       cause=killed signal=9 step=12" in done.stdout
    assert "supervisor.stopped   status=0" == lines[-1][9:]
    assert any(line.startswith("no supervisor; its last word is") for line in lines)


def test_a_running_run_is_shown_with_its_processes(bench: Bench) -> None:
    """Who supervises, which trainer lives, whether a stop is wanted, and, when the supervisor is killed, that nobody does."""
    process = bench.start(*bench.command("--steps=100000", "--habit=final:20"))
    bench.wait_for("trainer.progressed", count=2)
    until(lambda: bench.state("status.json")["phase"] == "running")
    trainer = bench.state("status.json")["trainer_pid"]
    alive = bench.lastgood("watch", "--once", "checkpoints").stdout.splitlines()
    process.terminate()
    bench.wait_for("trainer.asked_to_stop")
    stopping = bench.lastgood("watch", "--once", "checkpoints").stdout
    process.kill()
    process.wait()
    dead = bench.lastgood("watch", "--once", "checkpoints").stdout.splitlines()

    assert f"supervisor {process.pid}, trainer {trainer}" in alive
    assert f"supervisor {process.pid}, trainer {trainer}, asked to stop" in stopping
    assert any(line.startswith("no supervisor; its last word is ") for line in dead)


def test_watching_reads_and_changes_nothing(bench: Bench) -> None:
    """No file of the directory is made, removed or touched, and where no supervisor ever was no folder appears."""
    assert 0 == bench.run("--steps=10")
    (bench.folder / "bare").mkdir()

    def state() -> list[tuple[str, int, int]]:
        found = [*bench.directory.rglob("*"), bench.directory, bench.folder / "bare"]
        return sorted((str(path), path.stat().st_mtime_ns, path.stat().st_ino) for path in found)

    before = state()
    for place in ("checkpoints", "bare"):
        assert 0 == bench.lastgood("watch", place).returncode
    assert before == state()


def test_nothing_is_judged_however_large(bench: Bench) -> None:
    """A terabyte without a verdict is listed at once, as not judged."""
    folder = bench.folder / "out"
    folder.mkdir()
    with (folder / "ckpt_5.pt").open("wb") as file:
        file.truncate(1 << 40)
    done = bench.lastgood("watch", "out", timeout=20)

    assert "no supervisor has written a status here yet" in done.stdout
    assert re.search(r" 5 +1\.1 TB +\d+s not judged +- +ckpt_5\.pt", done.stdout), done.stdout


def test_verdicts_come_from_the_ledger_and_else_from_the_supervisor(make_zip: MakeSnapshot, tmp_path: Path) -> None:
    """What the ledger remembers of a file as it is now counts; what is too young for it is told by the status."""
    from lastgood import rungs
    from lastgood.ledger import STILL_NS, Ledger, now_ns
    from lastgood.verdict import Kind, Proof, Verdict

    for step in (1, 2, 3):
        make_zip(f"ckpt_{step}.pt", step)
    (tmp_path / ".lastgood").mkdir()
    one = next(rung for rung in rungs.scan(tmp_path) if rung.step == 1)
    verdict = Verdict(Kind.CORRUPT, Proof.CRC, "made up")
    Ledger(tmp_path, writable=True).put(str(one.path), one.identity, verdict, now_ns() + STILL_NS)
    told = [
        {"name": f"ckpt_{step}.pt", "verdict": verdict} for step, verdict in ((1, "healthy"), (2, "intact"), (3, None))
    ]
    (tmp_path / ".lastgood" / "status.json").write_text(json.dumps({"snapshots": told}))
    judged = [("ckpt_2.pt", "unproven", "structure"), ("ckpt_2.pt", "intact", "crc"), ("ckpt_3.pt", "healthy", "seal")]
    records = [record("snapshot.verified", name=name, verdict=kind, proof=proof) for name, kind, proof in judged]
    written(tmp_path / ".lastgood" / "events.jsonl", records)
    rows = Look(str(tmp_path)).view(time.time()).rows

    assert [(3, None, None), (2, "intact", "crc"), (1, "corrupt", "crc")] == [
        (r.step, r.verdict, r.proof) for r in rows
    ]


def test_the_config_of_a_run_stands_for_its_directory(bench: Bench) -> None:
    """Its pattern too; and a directory that is not there yet is waited for."""
    config = {
        "trainer": {"command": ["no-such-program"], "resume": "never"},
        "checkpoints": {"dir": "out", "pattern": "model_{step}.bin"},
    }
    (bench.folder / "run.yaml").write_text(json.dumps(config))
    before = bench.lastgood("watch", "run.yaml")
    (bench.folder / "out").mkdir()
    (bench.folder / "out" / "model_7.bin").touch()
    after = bench.lastgood("watch", "run.yaml")

    assert (0, True) == (before.returncode, "the directory cannot be read (No such file or directory)" in before.stdout)
    assert "model_7.bin" in after.stdout


@pytest.mark.parametrize("words", [("nowhere",), (".", "--pattern", "("), ("bad.yaml",)])
def test_a_wrong_word_is_one_line(bench: Bench, words: tuple[str, ...]) -> None:
    """No such place, a pattern that is none, a config that is none: exit status 2."""
    (bench.folder / "bad.yaml").write_text("trainer: [")
    done = bench.lastgood("watch", *words)

    assert (2, 1) == (done.returncode, len(done.stderr.splitlines())), done.stderr


def test_a_directory_that_goes_away_is_waited_for(tmp_path: Path, make_zip: MakeSnapshot) -> None:
    """Gone, it is said; back, it is shown again."""
    folder = tmp_path / "out"
    look = Look(str(folder))
    assert "No such file" in str(look.view(0.0).problem)
    written(folder / ".lastgood" / "events.jsonl", [record("run.completed")])
    make_zip("ckpt_4.pt", 4).rename(folder / "ckpt_4.pt")
    assert (1, 1) == (len(look.view(1.0).rows), len(look.view(1.0).records))
    shutil.rmtree(folder)
    gone = look.view(2.0)

    assert ((), (), True) == (gone.rows, gone.records, "No such file" in str(gone.problem))


def test_a_damaged_status_is_told(tmp_path: Path) -> None:
    """Half a file, a list, numbers without end: told in the frame, which still has the rest."""
    (tmp_path / ".lastgood").mkdir()
    for text in ('{"phase": ', "[]", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"):
        (tmp_path / ".lastgood" / "status.json").write_text(text)
        view = Look(str(tmp_path)).view(0.0)
        assert "status.json cannot be read" in str(view.problem)
        assert "no snapshots yet" in plain(view)


def test_a_rung_that_was_changed_in_place_is_shown_as_it_is(tmp_path: Path, make_zip: MakeSnapshot) -> None:
    """No time of the folder moves then, so it is read again now and then."""
    make_zip("ckpt_1.pt", 1)
    look = Look(str(tmp_path))
    first = look.view(100.0).rows[0].bytes
    os.truncate(tmp_path / "ckpt_1.pt", 5)

    assert (first, 5) == (look.view(101.0).rows[0].bytes, look.view(111.0).rows[0].bytes)


# The loss and the speeds.


def test_a_step_that_was_done_again_counts_as_it_was_done_last() -> None:
    """After a fallback the curve goes on from the step that was resumed; what is no number is left out."""
    lines = [metric(step, float(step)) for step in (1, 2, 3, 4)] + [metric(3, 30.0), metric(4, None), metric(5, 50.0)]

    assert [(1, 1.0), (2, 2.0), (3, 30.0), (5, 50.0)] == curve_of(lines)
    assert [] == curve_of(
        [{"loss": 1.0}, {"step": "1", "loss": 1.0}, {"step": 1, "loss": "nan"}, {"step": 1, "loss": 1e308}]
    )


def test_without_metrics_the_loss_comes_from_the_records(tmp_path: Path) -> None:
    """A trainer that is not the bundled one has a curve too, a point for each snapshot."""
    events = [record("trainer.progressed", step=step, loss=1 / step) for step in (5, 10)]
    written(tmp_path / ".lastgood" / "events.jsonl", [*events, record("run.completed", step=10)])

    assert ((5, 0.2), (10, 0.1)) == Look(str(tmp_path)).view(0.0).curve


def test_speeds_are_those_of_the_trainer_that_lives() -> None:
    """Lines of an earlier incarnation say nothing of this one; one line tells no pace."""
    lines = [metric(step, 1.0, incarnation=1) for step in range(10)] + [metric(7, 1.0, 2), metric(9, 1.0, 2)]

    assert (100.0, pytest.approx(10.0)) == speeds(lines, 2)
    assert (None, None) == speeds(lines, 3)
    assert (None, None) == speeds(lines, None)
    assert (100.0, None) == speeds(lines[:1], 1)
    assert (None, None) == speeds([{"incarnation": 1, "time": "x", "tokens_per_second": "fast"}], 1)


def test_steps_are_counted_where_the_trainer_tells_no_times(tmp_path: Path) -> None:
    """From what was seen of the status: within one incarnation, over the last half minute."""
    (tmp_path / ".lastgood").mkdir()
    status, look = tmp_path / ".lastgood" / "status.json", Look(str(tmp_path))

    def seen(at: float, incarnation: Any, step: Any) -> float | None:
        status.write_text(json.dumps({"written_at": at, "incarnation": incarnation, "step": step, "pad": at * 1e6}))
        os.utime(status, ns=(int(at * 1e9), int(at * 1e9)))
        return look.view(at).steps_per_second

    assert [None, 5.0, 7.5] == [seen(100.0, 1, 0), seen(102.0, 1, 10), seen(104.0, 1, 30)]
    assert [None, 4.0, None] == [seen(105.0, 2, 10), seen(106.0, 2, 14), seen(107.0, 2, None)]


def test_restarts_are_counted_by_cause_for_this_run_alone() -> None:
    """Those of a run that was here before do not count."""
    causes = ["killed", "stalled", "killed"]
    records = [record("restart.scheduled", cause=cause) for cause in causes]
    records += [
        {**record("restart.scheduled", cause="crashed"), "run_id": "other"},
        record("trainer.exited", cause="x"),
    ]

    assert [("killed", 2), ("stalled", 1)] == list(restarts_in(records, "r").items())


def test_a_sparkline_is_high_where_the_values_are() -> None:
    """The lowest is one block, the highest fills all rows, what is unknown is empty."""
    assert ["▁▅█ ▁"] == sparkline([0.0, 4.0, 7.0, None, 0.0], 1)
    assert ["  █", " ▃█", "▁██"] == sparkline([0.0, 10.0, 23.0], 3)
    assert ["▁▁"] == sparkline([3.0, 3.0], 1)
    assert ["  ", "  "] == sparkline([None, None], 2)
    assert ["_#"] == sparkline([0.0, 1.0], 1, frames.PLAIN_BLOCKS)


def test_losses_are_put_together_by_step() -> None:
    """Stretches of equal length; no more of them than there are losses."""
    assert [1.5, None, 5.0] == binned([(1, 1.0), (2, 2.0), (6, 5.0)], 3)
    assert [1.0, 2.0] == binned([(1, 1.0), (200, 2.0)], 50)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", -5.0),
        ("59s", 59.9),
        ("1m00s", 60.0),
        ("59m59s", 3599.9),
        ("2h05m", 7500.0),
        ("3d01h", 3 * 86400 + 3600.0),
        ("11574d01h", float("inf")),
    ],
)
def test_a_length_of_time_has_the_units_that_suit_it(text: str, seconds: float) -> None:
    """Seconds, minutes, hours, days, never more than have passed."""
    assert text == span(seconds)


# Frames.


def full(**more: Any) -> View:
    """A view with something of everything."""
    status = {
        "name": "gpt", "phase": "running", "step": 500, "final_step": 1000, "loss": 1.25, "incarnation": 3,
        "resumed_from": "ckpt_400.pt", "last_good": {"name": "ckpt_490.pt", "step": 490}, "trainer_pid": 77,
        "written_at": 1000.0,
    }  # fmt: skip
    rows = tuple(Row(f"ckpt_{step}.pt", step, 10**9, 900.0, "healthy", "seal") for step in range(490, 390, -10))
    facts: dict[str, Any] = {
        "directory": "out", "now": 1001.0, "status": status, "supervisor": 66, "rows": rows, "rungs": 10,
        "records": tuple(record("snapshot.verified", name=f"ckpt_{n}.pt") for n in range(50)),
        "restarts": {"killed": 2}, "curve": tuple((step, 4 - step / 200) for step in range(1, 501)),
        "tokens_per_second": 12345.6, "steps_per_second": 10.0,
    }  # fmt: skip
    return View(**{**facts, **more})


def test_a_frame_says_what_is_going_on() -> None:
    """Phase, step and what is left, loss, speeds, processes, restarts, the curve's ends, the ladder, the last records."""
    lines = plain(full(), 100, 30)

    assert [
        "gpt  running  step 500 of 1,000 (50 %), 50s left",
        "loss 1.2500  10 steps/s  12,346 tokens/s",
        "supervisor 66, trainer 77",
        "start 3  from ckpt_400.pt  restarts: 2 (killed 2)  last good ckpt_490.pt",
    ] == lines[:4]
    assert lines[4].startswith(" 3.995 █")
    assert "loss, steps 1 to 500" == lines[8].strip()
    assert "       490     1.0 GB  1m41s healthy      seal      ckpt_490.pt" in lines
    assert "10:20:30 snapshot.verified    name=ckpt_49.pt" == lines[-1]
    assert 30 == len(lines)


def test_how_it_is_ended_stands_in_the_first_line() -> None:
    """At its right, where there is room."""
    wide, narrow = (frame(full(), width, 30, hint="q ends")[0].plain for width in (80, 55))

    assert (80, True, False) == (len(wide), wide.endswith("left" + " " * 26 + "q ends"), "q ends" in narrow)


@pytest.mark.parametrize(
    ("expected", "more"),
    [
        ("no supervisor; its last word is 1s old", {"supervisor": None}),
        ("supervisor 66, trainer 77; it has said nothing for 16m40s", {"now": 2000.0}),
        ("supervisor unknown, trainer 77", {"supervisor": 0}),
        ("restarts: at least 2 (killed 2)", {"records_cut": True}),
        ("gone; waiting", {"problem": "gone; waiting"}),
        ("(newest 10 of 12,345)", {"rungs": 12345}),
        ("supervisor 66, trainer 77, asked to stop", {"wanted": "stop"}),
        ("no snapshots yet", {"rows": (), "rungs": 0}),
    ],
)
def test_what_a_person_must_know_is_in_the_frame(expected: str, more: dict[str, Any]) -> None:
    """A supervisor that is gone or silent, counts that are not whole, and what cannot be read."""
    assert any(expected in line for line in plain(full(**more)))


@pytest.mark.parametrize(
    ("expected", "status"),
    [
        ("failure: the trainer died 5 times", {"failure": "the trainer died 5 times"}),
        ("waiting for room on the disk", {"phase": "waiting", "waiting_for": "room on the disk"}),
        ("loss nan", {"loss": "nan"}),
        ("step 490", {"step": None, "high_water": 490, "final_step": None}),
        ("no step yet", {"step": None}),
        ("no trainer", {"trainer_pid": None}),
    ],
)
def test_every_state_of_a_run_has_its_words(expected: str, status: dict[str, Any]) -> None:
    """Failed, diverged, between two trainers, being stopped."""
    view = full(status={**full().status, **status})

    assert any(expected in line for line in plain(view))


def test_no_pace_is_shown_of_a_trainer_that_is_not_there() -> None:
    """Numbers of a dead trainer would look as if it lived."""
    for view in (full(supervisor=None), full(status={**full().status, "trainer_pid": None})):
        text = "\n".join(plain(view))
        assert (False, False, False) == ("left" in text, "steps/s" in text, "tokens/s" in text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from([*full().status, "failure", "high_water", "snapshots", "level", "timestamp", "event", "run_id"])


@given(
    st.integers(1, 150), st.integers(1, 60), st.booleans(),
    st.dictionaries(keys, json_values), st.dictionaries(keys, json_values),
)  # fmt: skip
def test_every_frame_fits_its_screen_whatever_is_in_the_files(
    width: int, height: int, ascii_only: bool, status: dict[str, Any], odd: dict[str, Any]
) -> None:
    """No line is wider and no frame higher than the screen, and nothing in it steers the terminal."""
    lines = plain(
        full(status={**full().status, **status}, records=(odd, *full().records[:3])), width, height, ascii_only
    )

    assert len(lines) <= height
    assert all(cell_len(line) <= width and line.isprintable() for line in lines)


@given(st.dictionaries(keys, json_values))
def test_a_status_of_any_shape_is_looked_at(status: dict[str, Any]) -> None:
    """Whoever wrote it: there is a view."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, ".lastgood", "status.json")
        path.parent.mkdir()
        path.write_text(json.dumps(status))
        written(path.with_name("events.jsonl"), [status])
        written(Path(folder, "metrics.jsonl"), [status, status])
        look = Look(folder)
        for now in (0.0, 1.0):
            assert folder in look.view(now).directory


# Files without limit.


def test_a_tail_is_the_whole_lines_at_the_end(tmp_path: Path) -> None:
    """Neither the line that the cut begins in nor one that is still being written; nothing of what is no file."""
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\nthree\nfo")

    assert [b"one", b"two", b"three"] == tail(str(path), 100)
    assert [b"three"] == tail(str(path), 11)
    assert [] == tail(str(path), 3)
    assert [] == tail(str(tmp_path), 100) == tail(str(tmp_path / "nowhere"), 100)
    os.mkfifo(tmp_path / "pipe")
    assert [] == tail(str(tmp_path / "pipe"), 100)
    assert [{"a": 1}] == list(objects([b'{"a": 1}', b"[1]", b"{", b"\xff", b"[" * 100_000]))


def test_a_large_file_is_sampled_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    """A part of the bytes, from all over it in order; a small file wholly."""
    path = written(tmp_path / "metrics.jsonl", [metric(step, 1.0) for step in range(20_000)])
    steps = [one["step"] for one in objects(sampled(str(path), 50_000, 49))]

    assert (0, 19_999) == (steps[0], steps[-1])
    assert sorted(steps) == steps
    assert 200 < len(steps) < 1000
    assert max(later - earlier for earlier, later in itertools.pairwise(steps)) < 20_000 / 45
    assert 20_000 == len(sampled(str(path), 10_000_000, 49))


def test_files_of_any_size_cost_the_same_memory_and_time(tmp_path: Path) -> None:
    """40 GB of records and of metrics: the end is shown, in moments, with a few MB."""
    records = [record("restart.scheduled", cause="killed", pad="x" * 150) for _ in range(5000)]
    written(tmp_path / ".lastgood" / "events.jsonl", records, at=HUGE)
    written(tmp_path / "metrics.jsonl", [metric(step, 1.0) for step in range(5000)], at=HUGE)
    look = Look(str(tmp_path))
    tracemalloc.start()
    began = time.process_time()
    view = look.view(0.0)
    spent, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert (100, True, 4999) == (len(view.records), view.records_cut, view.curve[-1][0])
    assert peak < 8_000_000
    assert spent < 2


def test_what_did_not_change_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that stands still costs a few looks at file times a second."""
    written(tmp_path / ".lastgood" / "events.jsonl", [record("run.completed")])
    written(tmp_path / "metrics.jsonl", [metric(1, 1.0)])
    (tmp_path / ".lastgood" / "status.json").write_text("{}")
    look = Look(str(tmp_path))
    first = look.view(0.0)

    def refuse(*_: Any) -> Any:
        raise AssertionError("read again")

    for name in ("tail", "sampled", "scan", "statefile.read_status"):
        monkeypatch.setattr(f"supervisor.cli.look.{name}", refuse)
    assert first.records == look.view(1.0).records


# At a terminal.


class Screen:
    """A command at a terminal of its own, with a keyboard."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.modes = termios.tcgetattr(self._slave)
        sized = ("COLUMNS", "LINES")  # which would hide the terminal's own size
        env = {name: value for name, value in os.environ.items() if name not in sized}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", *words], cwd=folder, stdin=self._slave, stdout=self._slave,
            stderr=self._slave, start_new_session=True, env={**env, "TERM": "xterm"},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.text = ""

    def shows(self, words: str) -> bool:
        """Whether these words came since the last time they were asked for."""
        with contextlib.suppress(OSError):
            while select.select([self._master], [], [], 0.05)[0]:
                self.text += os.read(self._master, 1 << 16).decode("utf-8", "replace")
        _, found, after = self.text.partition(words)
        if found:
            self.text = after
        return bool(found)

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def is_as_before(self) -> bool:
        """Whether keys do and show what they did before the command."""
        return bool(self.modes == termios.tcgetattr(self._slave))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def screen(bench: Bench) -> Iterator[Callable[..., Screen]]:
    """A function that starts a command at a terminal; it is ended with the test."""
    started: list[Screen] = []

    def start(*words: str) -> Screen:
        started.append(Screen(bench.folder, *words))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def watched(bench: Bench, screen: Callable[..., Screen]) -> Screen:
    """A view of a run that has ended, with its first frame drawn."""
    written(bench.directory / ".lastgood" / "events.jsonl", [record("run.completed", step=5)])
    view = screen("watch", "checkpoints")
    until(lambda: view.shows("run.completed"))
    return view


ALTERNATE_SCREEN, MAIN_SCREEN = "\x1b[?1049h", "\x1b[?1049l"


@pytest.mark.parametrize(
    ("status", "end"),
    [
        (0, lambda view: view.press(b"q")),
        (130, lambda view: view.press(b"\x03")),
        (143, lambda view: view.process.terminate()),
    ],
    ids=["q", "control-c", "terminate"],
)
def test_the_terminal_is_as_before_when_the_view_ends(
    watched: Screen, status: int, end: Callable[[Screen], None]
) -> None:
    """q, Ctrl-C or SIGTERM: the screen is given back, keys are echoed again, no traceback."""
    assert not watched.is_as_before
    end(watched)

    assert status == watched.process.wait(10)
    assert watched.is_as_before
    assert watched.shows(MAIN_SCREEN)
    assert "Traceback" not in watched.text


def test_other_keys_do_nothing_and_new_records_appear(bench: Bench, watched: Screen) -> None:
    """It goes on, about once a second, also while its directory is away."""
    watched.press(b"x\r")
    written(bench.directory / ".lastgood" / "events.jsonl", [record("run.failed")])
    until(lambda: watched.shows("run.failed"))
    shutil.rmtree(bench.directory)
    until(lambda: watched.shows("No such file or directory"))
    written(bench.directory / ".lastgood" / "events.jsonl", [record("run.stopped")])
    until(lambda: watched.shows("run.stopped"))

    assert watched.process.poll() is None


def test_suspended_it_gives_the_terminal_back_and_takes_it_again(watched: Screen) -> None:
    """Ctrl-Z as in any program; `fg` draws the view anew."""
    watched.press(b"\x1a")
    until(lambda: os.waitid(os.P_PID, watched.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT))
    assert watched.is_as_before
    assert watched.shows(MAIN_SCREEN)
    os.kill(watched.process.pid, signal.SIGCONT)
    until(lambda: watched.shows(ALTERNATE_SCREEN))
    watched.press(b"q")

    assert 0 == watched.process.wait(10)


def test_a_new_size_is_taken_up(watched: Screen) -> None:
    """What does not fit a narrower terminal is cut, with a mark."""
    until(lambda: watched.shows("step=5"))
    assert "…" not in watched.text
    watched.resize(10, 36)

    until(lambda: watched.shows("…"))


def test_a_view_costs_little(bench: Bench, watched: Screen) -> None:
    """While nothing happens, less than a twentieth of a core."""

    def used() -> float:
        fields = Path(f"/proc/{watched.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(3)

    assert used() - before < 0.15


def test_without_a_keyboard_it_watches_all_the_same(bench: Bench) -> None:
    """Standard input closed, from /dev/null or a pipe: it is not read, and its end ends nothing."""
    written(bench.directory / ".lastgood" / "events.jsonl", [record("run.completed", step=5)])
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "supervisor", "watch", str(bench.directory)], stdin=subprocess.DEVNULL, stdout=slave,
        stderr=slave, start_new_session=True, env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(slave)
    try:
        until(lambda: b"run.completed" in os.read(master, 1 << 16))
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        process.send_signal(signal.SIGINT)
        assert 130 == process.wait(10)
    finally:
        process.kill()
        process.wait()
        os.close(master)


# The page.


@pytest.mark.parametrize("command", ["watch", "stop", "ps", "doctor", "events"])
def test_the_page_names_every_option(command: str) -> None:
    """An option that is there is on the page, and one on the page is there."""
    group: Any = typer.main.get_command(app)
    options = {name for one in group.commands[command].params for name in one.opts if name.startswith("-")}

    assert options == set(re.findall(r"(?<![\w-])--?[a-z]+\b", section(command).split("\n| ")[0]))


def test_the_page_and_the_commands_agree_about_every_field(bench: Bench) -> None:
    """Whatever `ps` and `doctor` print as JSON is documented, and whatever is documented is printed."""
    bench.start(*bench.command("--steps=100000"))
    bench.wait_for("supervisor.ready")
    for command in ("ps", "doctor"):
        rows = "\n".join(line for line in section(command).splitlines() if not line.startswith("| `") or " | " in line)
        names = {line.split("|")[1].strip(" `") for line in rows.splitlines() if line.startswith("| `")}
        printed = json.loads(bench.lastgood(command, "--json").stdout)
        assert names == documented(command) == set(fields(printed)), command

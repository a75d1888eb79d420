"""Records: always JSON, always complete, never raising, shown as the reader of standard output needs them."""

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.adapters.journal import DEPTH_MAX, TEXT_CHARACTERS_MAX, Journal
from tests.adapters.waiting import ROOT

CONTRACT = ["event", "level", "timestamp", "run", "run_id", "incarnation", "seq"]
PIPE_BYTES = 65536


class Terminal(io.StringIO):
    """A stream that is looked at by a person."""

    def isatty(self) -> bool:
        return True


class Unspeakable:
    """A value that cannot even be described."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


MakeJournal = Callable[..., Journal]


@pytest.fixture
def journal(tmp_path: Path) -> MakeJournal:
    """Makes journals whose events are in `tmp_path`, shown nowhere unless a stream is given."""

    def make(shape: str = "json", level: str = "info", stream: TextIO | None = None, events: str = "") -> Journal:
        path = events or str(tmp_path / "events.jsonl")
        return Journal("night", "0123456789abcdef", path, shape, level, io.StringIO() if stream is None else stream)

    return make


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def records(folder: Path) -> list[dict[str, Any]]:
    """The records of events.jsonl, read as strictly as any reader of JSON lines does."""
    content = (folder / "events.jsonl").read_bytes()
    assert content.endswith(b"\n")
    return [json.loads(line, parse_constant=refuse) for line in content.decode("ascii").split("\n")[:-1]]


def written(make: MakeJournal, folder: Path, **fields: Any) -> dict[str, Any]:
    """One record, written and read back."""
    make().write("snapshot.verified", "info", 3, fields)
    return records(folder)[-1]


def test_every_record_has_what_the_contract_says(journal: MakeJournal, tmp_path: Path) -> None:
    """Name, level, UTC time, run, its id and the incarnation stand in each record, before its own fields."""
    journal().write("trainer.progressed", "info", 7, {"step": 10, "loss": 2.5})

    [found] = records(tmp_path)
    assert [*CONTRACT, "step", "loss"] == list(found)
    assert ("trainer.progressed", "info", "night", "0123456789abcdef", 7, 1, 10, 2.5) == tuple(
        found[key] for key in ("event", "level", "run", "run_id", "incarnation", "seq", "step", "loss")
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", found["timestamp"])


def test_seq_counts_up_whatever_is_shown(journal: MakeJournal, tmp_path: Path) -> None:
    """Records are numbered from 1 without a gap, those below the stream's level too."""
    made = journal(level="error")
    for level in ("info", "warning", "error"):
        made.write("supervisor.ready", level, 0, {})

    assert [1, 2, 3] == [found["seq"] for found in records(tmp_path)]


def test_a_field_does_not_replace_what_the_contract_says(journal: MakeJournal, tmp_path: Path) -> None:
    """A field that is called like one of every record does not change what an alert matches."""
    found = written(journal, tmp_path, event="x", level="x", run_id="x", seq=99, step=1)

    assert ("snapshot.verified", "info", "0123456789abcdef", 1, 1) == (
        found["event"], found["level"], found["run_id"], found["seq"], found["step"],
    )  # fmt: skip


VALUES: dict[str, tuple[object, object]] = {
    "controls": ("a\nb\r\0\x1b[31mred\x85\u2028", "a\nb\r\0\x1b[31mred\x85\u2028"),
    "file name": (os.fsdecode(b"ckpt_\xff\xfe.pt"), "ckpt_\\xff\\xfe.pt"),
    "surrogate": ("\ud800 alone", "\\ud800 alone"),
    "bytes": (b"bytes \xff", "bytes \\xff"),
    "nan": (float("nan"), "nan"),
    "infinity": (float("-inf"), "-inf"),
    "large": (10**400, hex(10**400)),
    "huge": (10**5000, hex(10**5000)[:TEXT_CHARACTERS_MAX] + "…"),
    "largest": (2**63 - 1, 2**63 - 1),
    "negative": (-(2**70), hex(-(2**70))),
    "true": (True, True),
    "none": (None, None),
    "path": (Path("/tmp/a b"), "/tmp/a b"),
    "nested": ((1, [2, {"a": (3,)}]), [1, [2, {"a": [3]}]]),
    "set": ({"one"}, ["one"]),
    "keys": ({1: "a", None: "b", (2, 3): "c", b"d": "e"}, {"1": "a", "None": "b", "[2, 3]": "c", "d": "e"}),
    "unspeakable": (Unspeakable(), "<Unspeakable>"),
    "object": (range(3), "range(0, 3)"),
    "long": ("x" * 100_000, "x" * TEXT_CHARACTERS_MAX + "…"),
    "long escapes": ("\udcff" * 100_000, ("\\xff" * TEXT_CHARACTERS_MAX)[:TEXT_CHARACTERS_MAX] + "…"),
}


@pytest.mark.parametrize("name", VALUES)
def test_any_value_becomes_one_that_every_reader_takes(journal: MakeJournal, tmp_path: Path, name: str) -> None:
    """Whatever a field holds, its record is one line of JSON without lone surrogates, and not endlessly long."""
    value, expected = VALUES[name]

    assert expected == written(journal, tmp_path, value=value)["value"]


def test_a_value_that_holds_itself_ends(journal: MakeJournal, tmp_path: Path) -> None:
    """Nesting is followed to a limit, then marked as cut."""
    loop: list[Any] = []
    loop.append(loop)
    found = written(journal, tmp_path, value=loop)["value"]

    for _ in range(DEPTH_MAX - 1):
        [found] = found
    assert "…" == found


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec=None)) | st.integers(), inner),
    max_leaves=20,
)


@settings(deadline=None, max_examples=150)
@given(fields=st.dictionaries(st.text(st.characters(codec=None)) | st.integers() | st.none(), anything))
def test_no_fields_spoil_the_file_or_the_stream(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[Any, Any]
) -> None:
    """For any fields, the file gains one strict line of JSON, and both streams one line."""
    folder = tmp_path_factory.mktemp("journal")
    json_stream, text_stream = io.StringIO(), Terminal()
    for shape, stream in (("json", json_stream), ("text", text_stream)):
        Journal("r", "i", str(folder / "events.jsonl"), shape, "info", stream).write("a.b", "error", 0, fields)

    assert ["a.b"] * 2 == [found["event"] for found in records(folder)]
    assert "a.b" == json.loads(json_stream.getvalue(), parse_constant=refuse)["event"]
    assert 1 == len(text_stream.getvalue().splitlines())


@pytest.mark.parametrize(("level", "shown"), [("info", 3), ("warning", 2), ("error", 1)])
def test_the_level_filters_the_stream_and_not_the_file(
    journal: MakeJournal, tmp_path: Path, level: str, shown: int
) -> None:
    """What is below the level is not shown, and is in events.jsonl all the same."""
    stream = io.StringIO()
    made = journal(level=level, stream=stream)
    for one in ("info", "warning", "error"):
        made.write("supervisor.ready", one, 0, {})

    assert (shown, 3) == (len(stream.getvalue().splitlines()), len(records(tmp_path)))


def test_json_on_the_stream_is_what_is_in_the_file(journal: MakeJournal, tmp_path: Path) -> None:
    """A collector that reads standard output loses nothing against the file."""
    stream = io.StringIO()
    journal(stream=stream).write("snapshot.pruned", "info", 1, {"name": "é.pt", "step": 5})

    assert [json.loads(stream.getvalue())] == records(tmp_path)


def test_a_service_does_not_load_what_only_a_terminal_needs(tmp_path: Path) -> None:
    """The coloured text's library would be a sixth of the supervisor's memory, for a whole run."""
    code = """
import sys
import supervisor.cli.app, supervisor.configuration, supervisor.runtime
from supervisor.adapters.journal import Journal
Journal("name", "id", sys.argv[1], "json", "info").write("supervisor.ready", "info", 1, {})
sys.exit("structlog" in sys.modules)
"""
    words = [sys.executable, "-c", code, str(tmp_path / "events.jsonl")]

    assert 0 == subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode


def test_text_is_coloured_on_a_terminal_only(journal: MakeJournal) -> None:
    """A person sees colours, a file or a pipe no escapes; both get time, level, event and fields."""
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        journal(shape="text", stream=stream).write("snapshot.pruned", "warning", 4, {"name": "a.pt"})

    assert "\x1b[" in terminal.getvalue()
    assert "\x1b" not in pipe.getvalue()
    assert re.fullmatch(r"\d\d:\d\d:\d\d \[warning *\] snapshot\.pruned +incarnation=4 name=a\.pt\n", pipe.getvalue())


def test_a_name_cannot_steer_the_terminal(journal: MakeJournal) -> None:
    """Escapes and line ends in a value are shown, not obeyed."""
    terminal = Terminal()
    journal(shape="text", stream=terminal).write("snapshot.pruned", "info", 0, {"name": "\x1b[2Ja\nb\r\x07.pt"})

    shown = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue())
    assert "name=\\x1b[2Ja\\nb\\r\\x07.pt\n" == shown[shown.index("name=") :]


def test_a_narrow_encoding_costs_characters_and_not_records(journal: MakeJournal, tmp_path: Path) -> None:
    """In a C locale text that the terminal cannot show is escaped."""
    path = tmp_path / "out.txt"
    with path.open("w", encoding="ascii") as stream:
        journal(shape="text", stream=stream).write("snapshot.pruned", "info", 0, {"name": "é.pt"})

    assert path.read_text("ascii").endswith("name=\\xe9.pt\n")


def stream_name(stream: TextIO, inode_more: int = 0) -> str:
    status = os.fstat(stream.fileno())
    return f"{status.st_dev}:{status.st_ino + inode_more}"


@pytest.mark.parametrize(("level", "prefix"), [("info", "<6>"), ("warning", "<4>"), ("error", "<3>")])
def test_under_systemd_json_lines_carry_their_priority(
    journal: MakeJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, prefix: str
) -> None:
    """When JOURNAL_STREAM names the stream, each line begins with what the journal files it under."""
    with (tmp_path / "out").open("w+") as stream:
        monkeypatch.setenv("JOURNAL_STREAM", stream_name(stream))
        journal(stream=stream).write("supervisor.ready", level, 0, {})
        stream.seek(0)
        line = stream.read()

    assert (prefix, level) == (line[:3], json.loads(line[3:])["level"])


@pytest.mark.parametrize("said", ["", ":", "1:2", "8:x", "another", "text"])
def test_without_the_journal_there_is_no_priority(
    journal: MakeJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """A JOURNAL_STREAM that is missing, garbled, inherited from elsewhere, or the text format mean no prefix."""
    with (tmp_path / "out").open("w+") as stream:
        name = {"another": stream_name(stream, 1), "text": stream_name(stream)}.get(said, said)
        monkeypatch.setenv("JOURNAL_STREAM", name)
        journal("text" if said == "text" else "json", stream=stream).write("supervisor.ready", "error", 0, {})
        stream.seek(0)

        assert not stream.read().startswith("<")


def test_a_stream_without_a_descriptor_is_no_journal(journal: MakeJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream in memory cannot be what systemd connected."""
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    stream = io.StringIO()
    journal(stream=stream).write("supervisor.ready", "error", 0, {})

    assert "{" == stream.getvalue()[0]


@pytest.mark.parametrize("shape", ["json", "text"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_closed_stream_is_survived(journal: MakeJournal, tmp_path: Path, shape: str, when: str) -> None:
    """Closed before or after the journal was made, a stream costs what it would have shown and no record."""
    stream = (tmp_path / "out").open("w")
    if when == "before":
        stream.close()
    made = journal(shape, stream=stream)
    stream.close()
    made.write("supervisor.ready", "info", 0, {})

    assert (1, 0) == (len(records(tmp_path)), made.lost)


@pytest.mark.parametrize("shape", ["json", "text"])
def test_no_standard_output_at_all_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    """Started with standard output closed, a supervisor still writes its events."""
    monkeypatch.setattr(sys, "stdout", None)
    Journal("r", "i", str(tmp_path / "events.jsonl"), shape, "info").write("supervisor.ready", "info", 0, {})

    assert 1 == len(records(tmp_path))


def test_a_reader_that_went_away_does_not_spoil_the_exit_status(tmp_path: Path) -> None:
    """After a broken pipe nothing waits in a buffer, which Python would turn into exit status 120 at its end."""
    code = (
        "import sys; from supervisor.adapters.journal import Journal\n"
        f"j = Journal('r', 'i', {str(tmp_path / 'events.jsonl')!r}, 'json', 'info')\n"
        "sys.stdin.read()\n"
        "for _ in range(3): j.write('supervisor.ready', 'info', 0, {})\n"
        "sys.exit(7)\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        child.stdin.close()
        said = child.stderr.read()

    assert (7, b"", 3) == (child.returncode, said, len(records(tmp_path)))


def test_a_record_cut_on_the_stream_does_not_spoil_the_next(journal: MakeJournal, tmp_path: Path) -> None:
    """A pipe that takes half a record has the next one on a line of its own."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(writing, "w") as stream:
        os.write(writing, b"x" * (PIPE_BYTES - 51) + b"\n")
        made = journal(stream=stream)
        made.write("trainer.exited", "warning", 1, {"last_lines": ["y" * 4000] * 2})
        os.read(reading, PIPE_BYTES)
        made.write("supervisor.ready", "info", 1, {})
        lines = os.read(reading, PIPE_BYTES).split(b"\n")
    os.close(reading)

    assert "supervisor.ready" == json.loads(lines[-2])["event"]


def test_a_full_disk_is_survived_and_counted(journal: MakeJournal, tmp_path: Path) -> None:
    """Records that the file does not take are counted, and shown."""
    (tmp_path / "full").symlink_to("/dev/full")
    stream = io.StringIO()
    made = journal(stream=stream, events=str(tmp_path / "full"))
    for _ in range(2):
        made.write("supervisor.ready", "info", 0, {})

    assert (2, 2) == (made.lost, len(stream.getvalue().splitlines()))


def test_a_full_disk_below_the_stream_is_survived(journal: MakeJournal, tmp_path: Path) -> None:
    """Standard output on a full disk costs nothing in the file."""
    (tmp_path / "full").symlink_to("/dev/full")
    with (tmp_path / "full").open("w") as stream:
        made = journal(stream=stream)
        made.write("supervisor.ready", "info", 0, {})

    assert (0, 1) == (made.lost, len(records(tmp_path)))


def test_a_deleted_folder_is_survived_and_counted(journal: MakeJournal, tmp_path: Path) -> None:
    """Without its folder a record is lost and counted; once the folder is back, the next one is written."""
    events = tmp_path / "state" / "events.jsonl"
    made = journal(events=str(events))
    made.write("supervisor.ready", "info", 0, {})
    events.parent.mkdir()
    made.write("supervisor.ready", "info", 0, {})

    assert (1, [2]) == (made.lost, [found["seq"] for found in records(events.parent)])


def test_a_folder_in_the_files_place_is_survived_and_counted(journal: MakeJournal, tmp_path: Path) -> None:
    """A path that cannot be a file costs the records in it."""
    made = journal(events=str(tmp_path))
    made.write("supervisor.ready", "info", 0, {})

    assert 1 == made.lost


def test_a_pipe_in_the_files_place_holds_nobody_up(journal: MakeJournal, tmp_path: Path) -> None:
    """Nobody reads it, and writing more than it takes returns all the same."""
    os.mkfifo(tmp_path / "fifo")
    reading = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    made = journal(events=str(tmp_path / "fifo"))
    while made.lost == 0:
        made.write("supervisor.ready", "info", 0, {"text": "x" * 4000})
    os.close(reading)

    assert 1 == made.lost


def test_a_half_written_record_is_taken_back(
    journal: MakeJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the disk fills up within a record, the file keeps whole lines only, and the record counts as lost."""
    made = journal()
    made.write("supervisor.ready", "info", 0, {})
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[: len(data) // 2]))
        made.write("supervisor.ready", "info", 0, {})
    made.write("supervisor.ready", "info", 0, {})

    assert ([1, 3], 1) == ([found["seq"] for found in records(tmp_path)], made.lost)


def test_a_line_that_a_power_cut_left_half_spoils_no_other(journal: MakeJournal, tmp_path: Path) -> None:
    """The first record after a torn one begins on a line of its own."""
    (tmp_path / "events.jsonl").write_bytes(b'{"event": "supervisor.rea')
    journal().write("supervisor.ready", "info", 0, {})

    torn, whole, rest = (tmp_path / "events.jsonl").read_bytes().split(b"\n")
    assert (b'{"event": "supervisor.rea', 1, b"") == (torn, json.loads(whole)["seq"], rest)


def test_a_reader_that_stands_still_does_not_hold_up_the_supervisor(tmp_path: Path) -> None:
    """A pipe that nobody reads costs the records on it, not the loop; they are in events.jsonl, and come again when it moves."""
    read_end, write_end = os.pipe()
    with open(write_end, "w", encoding="utf-8") as stream:
        journal = Journal("run", "id", str(tmp_path / "events.jsonl"), "json", "info", stream)
        started = time.monotonic()
        for number in range(300):
            journal.write("run.stopped", "info", 1, {"status": number, "step": "x" * 3000})
        took = time.monotonic() - started
        os.set_blocking(read_end, False)
        while True:
            try:
                if not os.read(read_end, 1 << 20):
                    break
            except BlockingIOError:
                break
        journal.write("run.completed", "info", 1, {"step": 7})
        last = os.read(read_end, 1 << 20).splitlines()[-1]
    os.close(read_end)

    assert took < 5
    assert 301 == len((tmp_path / "events.jsonl").read_bytes().splitlines())
    assert "run.completed" == json.loads(last)["event"]


def test_the_file_is_turned_over_at_its_limit(
    journal: MakeJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had is in events.jsonl.1, in order, and nothing between the two is lost or there twice."""
    monkeypatch.setattr("supervisor.adapters.journal.EVENTS_BYTES_MAX", 2000)
    writer = journal()
    for _ in range(15):
        writer.write("supervisor.ready", "info", 0, {})
    older = [json.loads(line) for line in (tmp_path / "events.jsonl.1").read_text().splitlines()]

    assert list(range(1, 16)) == [one["seq"] for one in (*older, *records(tmp_path))]
    assert 2000 > (tmp_path / "events.jsonl").stat().st_size
    assert 2000 <= (tmp_path / "events.jsonl.1").stat().st_size < 2400


def test_only_the_last_two_files_are_kept(
    journal: MakeJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many records a run writes, they take about twice the limit, and the newest are there without a gap."""
    monkeypatch.setattr("supervisor.adapters.journal.EVENTS_BYTES_MAX", 2000)
    writer = journal()
    for _ in range(200):
        writer.write("supervisor.ready", "info", 0, {})
    text = (tmp_path / "events.jsonl.1").read_text() + (tmp_path / "events.jsonl").read_text()
    seqs = [json.loads(line)["seq"] for line in text.splitlines()]

    assert {"events.jsonl", "events.jsonl.1"} == set(os.listdir(tmp_path))
    assert list(range(seqs[0], 201)) == seqs
    assert 0 == writer.lost


def test_a_file_that_cannot_be_turned_over_grows_on(
    journal: MakeJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder stands where the older records would go: a record is worth more than a limit."""
    monkeypatch.setattr("supervisor.adapters.journal.EVENTS_BYTES_MAX", 500)
    (tmp_path / "events.jsonl.1" / "x").mkdir(parents=True)
    writer = journal()
    for _ in range(10):
        writer.write("supervisor.ready", "info", 0, {})

    assert (list(range(1, 11)), 0) == ([one["seq"] for one in records(tmp_path)], writer.lost)


def test_what_is_shown_can_be_changed(journal: MakeJournal) -> None:
    """From then on, and the file has all of it as before."""
    stream = io.StringIO()
    writer = journal(level="error", stream=stream)
    writer.write("supervisor.ready", "info", 0, {})
    writer.show_from("info")
    writer.write("supervisor.ready", "info", 0, {})

    assert [2] == [json.loads(line)["seq"] for line in stream.getvalue().splitlines()]

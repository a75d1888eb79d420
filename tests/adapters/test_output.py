"""Output is drained whatever it holds and whatever becomes of the log."""

import math
import os
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor import lines
from supervisor.adapters import output
from supervisor.adapters.output import LogFile, LogWriter, OutputDrain
from supervisor.lines import LineCutter, Loss, StepFinder, Tail, visible
from tests.adapters.waiting import marked_environment, until

STEP = re.compile(rb"step (?P<step>\d+)(?:.*?loss (?P<loss>\S+))?")
Steps = list[tuple[int, float | None, int]]


class Pipe:
    """A pipe with a drain on it, as a test wants it: write, look, close."""

    def __init__(self, log: Path, **options: int) -> None:
        self.steps: Steps = []
        self.log = log
        descriptor, self.end = os.pipe()
        self.drain = OutputDrain(descriptor, log, STEP, self._note, **options)
        os.close(descriptor)
        self.drain.start()

    def _note(self, step: int, loss: float | None, count: int) -> None:
        self.steps.append((step, loss, count))

    def write(self, data: bytes) -> None:
        """Write all of it, as a trainer would, and see it read."""
        view, before = memoryview(data), self.drain.total_bytes
        while view:
            view = view[os.write(self.end, view) :]
        until(lambda: self.drain.total_bytes == before + len(data))

    def finish(self) -> None:
        """Close the writing end and wait for the drain to be done."""
        os.close(self.end)
        self.end = -1
        assert self.drain.wait(10)

    def close(self) -> None:
        """Leave nothing behind."""
        if self.end >= 0:
            os.close(self.end)
        self.drain.close()


MakePipe = Callable[..., Pipe]


@pytest.fixture
def pipe(tmp_path) -> Iterator[MakePipe]:
    """Makes pipes with a drain, which are closed after the test and leave no thread and no descriptor."""
    before = set(os.listdir("/proc/self/fd"))
    made: list[Pipe] = []

    def make(log: Path = tmp_path / "trainer.log", **options: int) -> Pipe:
        made.append(Pipe(log, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert before >= set(os.listdir("/proc/self/fd"))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("trainer-")]


def drained(pipe: MakePipe, *chunks: bytes) -> Pipe:
    """A drain that has read these chunks to the end, each in its own read."""
    made = pipe()
    for chunk in chunks:
        made.write(chunk)
    made.finish()
    return made


def link_to(folder: Path, device: str) -> Path:
    """A log that is a device, by a link, so that no mistake of the code under test can harm the device itself."""
    log = folder / "trainer.log"
    log.symlink_to(device)
    return log


def test_bad_bytes_reach_the_log_as_they_are(pipe):
    """Bytes that are no text are kept in the log and shown as escapes, and reading goes on."""
    made = drained(pipe, b"\x88\xff\xc1\x1c\n", b"x" * 1000 + b"\n", b"the end\n")

    assert b"\x88\xff\xc1\x1c\n" + b"x" * 1000 + b"\nthe end\n" == made.log.read_bytes()
    assert made.drain.last_lines()[0] == r"\x88\xff\xc1\x1c"
    assert made.drain.last_lines()[-1] == "the end"


def test_character_split_over_two_writes_is_whole_again(pipe):
    """A multi-byte character that arrives in two pieces is one character in the last lines."""
    made = drained(pipe, "größe €".encode()[:-1], "€".encode()[-1:])

    assert ["größe €"] == made.drain.last_lines()


def test_last_lines_can_be_printed_logged_and_encoded(pipe):
    """Escape sequences, NUL, lone surrogates and text that turns the line around are shown, not obeyed."""
    made = drained(pipe, b"\x1b[31mred\x00\x07\tok\n\xed\xa0\x80 \xe2\x80\xae!\n", '{"a":1} 日本　ß\n'.encode())

    expected = [r"\x1b[31mred\x00\x07" + "\tok", r"\xed\xa0\x80 \u202e!", '{"a":1} 日本　ß']
    assert expected == made.drain.last_lines()
    assert expected == [line.encode("utf-8").decode() for line in made.drain.last_lines()]


def test_last_lines_are_few_and_short(pipe):
    """The last twenty lines that are not blank, each of at most 500 characters."""
    made = drained(pipe, b"".join(b"%d %s\n\n \n" % (number, b"\xff" * 5000) for number in range(50)))
    found = made.drain.last_lines()

    assert 20 == len(found)
    assert {500} == {len(line) for line in found}
    assert found[-1].startswith(r"49 \xff\xff")
    assert found[-1].endswith("…")


def test_line_without_an_end_is_among_the_last(pipe):
    """What a dying trainer could not finish is seen too."""
    made = drained(pipe, b"one\r\ntwo\nRuntimeError: CUDA out of mem")

    assert ["one", "two", "RuntimeError: CUDA out of mem"] == made.drain.last_lines()


def test_newest_step_of_a_chunk_is_reported(pipe):
    """Of several lines in one chunk the newest is reported, with their number."""
    made = drained(pipe, b"hello\n", b"step 1 loss 2.5\nnoise\nstep 2 loss 2.25\nstep 3\nnoise\n")

    assert [(3, None, 3)] == made.steps


def test_unfinished_line_is_not_a_step_yet(pipe):
    """A number that is cut by the end of a chunk is not taken for a smaller one."""
    made = pipe()
    made.write(b"step 12")
    made.write(b"34 loss 1.5")
    assert [] == made.steps
    made.write(b"0\n")

    assert [(1234, 1.5, 1)] == until(lambda: made.steps)


def test_last_line_counts_without_an_end(pipe):
    """At the end of the output the last line is finished, whatever it ends with."""
    made = drained(pipe, b"step 7 loss 0.5")

    assert [(7, 0.5, 1)] == made.steps


def test_progress_bar_is_many_lines(pipe):
    """A carriage return ends a line, so each refresh of a bar is one, and the newest counts."""
    bar = b"".join(b"\r%3d%%|####    | step %d loss 1.%d ]" % (number, number, number) for number in range(100))
    made = drained(pipe, bar)

    assert [(98, 1.98, 99), (99, 1.99, 1)] == made.steps
    assert made.drain.last_lines()[-1] == " 99%|####    | step 99 loss 1.99 ]"
    assert bar == made.log.read_bytes()


@pytest.mark.parametrize(("text", "check"), [("nan", math.isnan), ("NaN", math.isnan), ("-inf", math.isinf)])
def test_loss_that_is_not_finite_comes_through(pipe, text, check):
    """A loss that is no number is the very thing the supervisor looks for."""
    made = drained(pipe, f"step 5 loss {text}\n".encode())

    step, loss, count = made.steps[0]
    assert (5, 1) == (step, count)
    assert loss is not None
    assert check(loss)


def test_loss_that_cannot_be_read_is_unknown(pipe):
    """A loss printed as something else is unknown, and the step still counts."""
    made = drained(pipe, b"step 5 loss tensor(1.5)\n")

    assert [(5, None, 1)] == made.steps


def test_newest_step_is_found_far_back():
    """A step followed by much other output in the same chunk is found, unless output floods in."""
    finder = StepFinder(STEP, 16384)

    assert finder.feed(b"step 8\n" + b"some noise\n" * 20_000) == (8, None, 1)
    assert finder.feed(b"step 9\n" + b"some noise\n" * 60_000) is None
    assert finder.feed(b"some noise\n" * 60_000 + b"step 10\nstep 11\n") == (11, None, 2)


def test_a_step_that_is_printed_again_and_again_is_one() -> None:
    """A banner twice is no life of steps."""
    finder = StepFinder(STEP, 1 << 10)

    assert (7, None, 1) == finder.feed(b"step 7\nstep 7\nstep 7\n")
    assert (8, None, 2) == finder.feed(b"step 7\nstep 8\nstep 8\n")


def test_flood_does_not_tear_the_line_where_the_search_ends():
    """Where the search of a flood begins, half a line is not taken for a whole one."""
    noise = b"some noise.....\n"
    searched = noise * ((256 << 10) // len(noise))
    finder = StepFinder(re.compile(rb"(?P<step>\d+) steps"), 16384)

    assert finder.feed(noise * 30_000 + b"123456 steps\n" + searched[: -len(noise)] + b"......\n") is None


def test_step_pattern_needs_its_group():
    """A pattern that could never tell a step is refused when it is set, not when the first line comes."""
    with pytest.raises(ValueError, match="no group named 'step'"):
        StepFinder(re.compile(rb"step (\d+)"), 100)


def test_no_pattern_finds_nothing():
    """A command whose output is unknown is drained all the same."""
    assert StepFinder(None, 100).feed(b"step 1\n") is None


@pytest.mark.parametrize("number", [b"step 1,000", b"step "])
def test_step_that_is_no_number_is_passed_over(number):
    """A match that cannot be read as a step gives way to an older one that can."""
    finder = StepFinder(re.compile(rb"step (?P<step>[\d,]*)"), 100)

    assert finder.feed(b"step 4\n" + number + b"\n") == (4, None, 2)


def test_long_line_is_cut_with_a_mark(pipe):
    """A line that is too long loses its end, visibly, and the next line is whole."""
    made = pipe(line_bytes_max=10)
    made.write(b"0123456789abc\nshort\n0123456789\r")
    made.write(b"0123456789ab")
    made.write(b"cdef")
    made.finish()

    expected = "0123456789… [cut 3 bytes]\nshort\n0123456789\r0123456789… [cut 6 bytes]"
    assert expected == made.log.read_bytes().decode()
    assert made.drain.dropped_bytes == 0


@settings(deadline=None)  # two noisy cores
@given(st.lists(st.text("ab\r\n", max_size=30), max_size=8), st.integers(1, 6))
def test_cut_does_not_depend_on_chunks(chunks, bytes_max):
    """However the pipe slices the output, the same comes out, and no line is longer than allowed and its mark."""
    one, many = LineCutter(bytes_max), LineCutter(bytes_max)
    text = "".join(chunks).encode()
    whole = one.feed(text) + one.finish()
    pieces = b"".join(many.feed(chunk.encode()) for chunk in chunks) + many.finish()

    assert whole == pieces
    kept = [re.sub("… \\[cut \\d+ bytes]".encode(), b"", line) for line in re.split(rb"[\r\n]", whole)]
    assert [line[:bytes_max] for line in re.split(rb"[\r\n]", text)] == kept


@settings(deadline=None)  # two noisy cores
@given(st.lists(st.binary(max_size=50), max_size=40), st.integers(1, 60))
def test_tail_is_the_end_of_everything(pieces, bytes_max):
    """The tail holds at least its size of the newest output, and not much more."""
    tail = Tail(bytes_max)
    for piece in pieces:
        tail.add(piece)
    held = b"".join(tail._pieces)

    assert b"".join(pieces).endswith(held)
    assert min(bytes_max, len(b"".join(pieces))) <= len(held) < 2 * bytes_max + 1


def test_tail_of_single_bytes_is_compact():
    """A trainer that writes byte by byte does not fill memory with pieces."""
    tail = Tail(100_000)
    for _ in range(5000):
        tail.add(b"x")

    assert [b"x" * 5000] == tail.lines(1)
    assert len(tail._pieces) <= 1025


def test_no_newline_for_64_megabytes_takes_no_memory(tmp_path):
    """Output without any line end is read to its end with flat memory and a short log."""
    code = """
import os, re, subprocess, sys
from supervisor.adapters.output import OutputDrain
def peak_kilobytes():
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
child = subprocess.Popen([sys.executable, "-c", "import os\\nfor _ in range(1024): os.write(1, b'x' * 65536)"],
                         stdout=subprocess.PIPE)
drain = OutputDrain(child.stdout.fileno(), sys.argv[1], re.compile(rb"step (?P<step>\\d+)"), print)
before = peak_kilobytes()
drain.start()
assert drain.wait(60) and child.wait() == 0
drain.close()
print(drain.total_bytes, peak_kilobytes() - before, len(drain.last_lines()[0]))
"""
    log = tmp_path / "trainer.log"
    with marked_environment() as environment:
        done = subprocess.run(
            [sys.executable, "-c", code, str(log)], env=environment, capture_output=True, text=True, check=True
        )
    total_bytes, grown_kilobytes, shown = map(int, done.stdout.split())

    assert (64 << 20, 500) == (total_bytes, shown)
    assert grown_kilobytes < 16 << 10
    assert "x" * 16384 + f"… [cut {(64 << 20) - 16384} bytes]" == log.read_text()


def test_log_is_appended_and_rotated_between_lines(pipe, tmp_path):
    """A full log becomes `trainer.log.1`, of which there is one, and no line is torn."""
    (tmp_path / "trainer.log").write_bytes(b"an earlier life\n")
    made = pipe(log_bytes_max=1000)
    for number in range(100):
        made.write(b"line %06d .........\n" % number)
    made.finish()

    old, new = (tmp_path / "trainer.log.1").read_bytes(), made.log.read_bytes()
    assert b"".join(b"line %06d .........\n" % number for number in range(100)).endswith(old + new)
    assert old.startswith(b"line ")
    assert max(len(old), len(new)) <= 1000
    assert 2 == len(list(tmp_path.iterdir()))


def test_output_larger_than_a_log_is_rotated_through(pipe, tmp_path):
    """A single chunk larger than the log, and a line larger than the log, are written with as many rotations."""
    made = pipe(log_bytes_max=100)
    made.write(b"a" * 250 + b"\n" + b"b" * 30 + b"\n")
    made.finish()

    assert b"b" * 30 + b"\n" == made.log.read_bytes()[-31:]
    assert made.drain.dropped_bytes == 0


def test_log_that_is_no_file_is_never_renamed(pipe, tmp_path):
    """A device as the log is written to and never rotated away."""
    log = link_to(tmp_path, "/dev/null")
    made = pipe(log, log_bytes_max=10)
    made.write(b"0123456789\n" * 10)
    made.finish()

    assert log.is_symlink()
    assert [log] == list(tmp_path.iterdir())
    assert made.drain.dropped_bytes == 0


def test_log_truncated_by_somebody_goes_on(tmp_path, monkeypatch):
    """A log that was copied and emptied, as logrotate does, is appended to, and its size is known."""
    monkeypatch.setattr(output, "_REOPEN_SECONDS", 0)
    log = LogFile(tmp_path / "trainer.log", 100)
    log.write(b"x" * 89 + b"\n")
    os.truncate(tmp_path / "trainer.log", 0)
    log.write(b"y" * 89 + b"\n")
    log.close()

    assert b"y" * 89 + b"\n" == (tmp_path / "trainer.log").read_bytes()
    assert 1 == len(list(tmp_path.iterdir()))


def test_mode_of_the_log_follows_the_umask(tmp_path):
    """The log may be read by whom the operator's umask lets."""
    before = os.umask(0o027)
    try:
        log = LogFile(tmp_path / "trainer.log", 100)
        log.write(b"x")
        log.close()
    finally:
        os.umask(before)

    assert 0o640 == (tmp_path / "trainer.log").stat().st_mode & 0o777


def test_deleted_log_is_made_anew(pipe, monkeypatch):
    """When the log is removed, later output goes to a new one at the same place."""
    monkeypatch.setattr(output, "_REOPEN_SECONDS", 0.01)
    made = pipe()
    made.write(b"before\n")
    until(made.log.exists)
    made.log.unlink()

    def written_again() -> bool:
        made.write(b"after\n")
        return made.log.exists()

    until(written_again)
    made.finish()
    assert made.log.read_bytes().endswith(b"after\n")
    assert b"before" not in made.log.read_bytes()


def test_folder_of_the_log_deleted_costs_lines_only(pipe, tmp_path, monkeypatch):
    """Without its folder the log is lost, output is still read, and the loss is counted and told once it can be."""
    monkeypatch.setattr(output, "_REOPEN_SECONDS", 0.01)
    folder = tmp_path / "state"
    folder.mkdir()
    made = pipe(folder / "trainer.log")
    made.write(b"before\n")
    until(made.log.exists)
    made.log.unlink()
    folder.rmdir()

    def dropped() -> int:
        made.write(b"lost\n")
        return made.drain.dropped_bytes

    until(dropped)
    folder.mkdir()
    until(lambda: (made.write(b"after\n"), made.log.exists())[1])
    made.finish()

    first, told, *rest = made.log.read_bytes().decode().splitlines()
    assert ("", f"… [dropped {made.drain.dropped_bytes} bytes, {made.drain.dropped_lines} lines]") == (first, told)
    assert {"after"} == set(rest)


def test_folder_of_the_log_replaced_is_noticed(pipe, tmp_path, monkeypatch):
    """When another folder takes the place of the log's, the log goes on in that one."""
    monkeypatch.setattr(output, "_REOPEN_SECONDS", 0.01)
    folder = tmp_path / "state"
    folder.mkdir()
    made = pipe(folder / "trainer.log")
    made.write(b"before\n")
    until(made.log.exists)
    folder.rename(tmp_path / "old")
    folder.mkdir()
    until(lambda: (made.write(b"after\n"), made.log.exists())[1])
    made.finish()

    assert made.log.read_bytes().startswith(b"after\n")
    assert (tmp_path / "old" / "trainer.log").read_bytes().startswith(b"before\n")


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    """This process may open nothing; what is open stays so."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))  # the standard streams have these
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_no_descriptors_left_costs_lines_only(pipe, monkeypatch):
    """A log that cannot be opened anew is lost, output is still read, and the log is written again once it can be opened."""
    monkeypatch.setattr(output, "_REOPEN_SECONDS", 0.01)
    made = pipe()
    made.write(b"before\n")
    until(made.log.exists)
    with no_descriptors_left():
        made.log.unlink()
        until(lambda: (made.write(b"lost\n"), made.drain.dropped_bytes)[1])
        made.write(b"step 7 loss 1.5\n" * 100_000)
        assert [7, False] == [until(lambda: made.steps)[-1][0], made.log.exists()]
    until(lambda: (made.write(b"after\n"), made.log.exists())[1])
    made.finish()

    first, told, *_, last = made.log.read_bytes().decode().splitlines()
    assert ("", f"… [dropped {made.drain.dropped_bytes} bytes, {made.drain.dropped_lines} lines]") == (first, told)
    assert "after" == last


def test_full_disk_costs_lines_only(pipe, tmp_path):
    """On a full disk everything is read, reported and remembered; only the log is missing, and counted."""
    made = pipe(link_to(tmp_path, "/dev/full"))
    text = b"step 1 loss 1\n" * 100_000
    made.write(text)
    made.finish()

    assert (len(text), len(text), 100_000) == (
        made.drain.total_bytes,
        made.drain.dropped_bytes,
        made.drain.dropped_lines,
    )
    assert 1 == made.steps[-1][0]
    assert 20 == len(made.drain.last_lines())


def test_half_a_write_counts_the_other_half(tmp_path, monkeypatch):
    """When the disk fills in the middle of a write, what was written is kept and the rest counted."""
    real_write = os.write

    def short_then_full(descriptor: int, data: bytes) -> int:
        if len(data) <= 4:
            raise OSError(28, "No space left on device")
        return real_write(descriptor, bytes(data)[:6])

    log = LogFile(tmp_path / "trainer.log", 100)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short_then_full)
        log.write(b"0123456789")

    assert b"012345" == (tmp_path / "trainer.log").read_bytes()
    assert 4 == log.loss.bytes


def test_hung_log_does_not_stop_the_trainer(pipe, tmp_path, monkeypatch):
    """A disk that answers no more blocks nobody: the output is read, and what does not fit is dropped and counted."""
    monkeypatch.setattr(output, "_LOG_PATIENCE_SECONDS", 0.05)
    fifo = tmp_path / "trainer.log"
    os.mkfifo(fifo)
    made = pipe(fifo)
    made.write(b"step 1 loss 1\n" * 500_000)

    assert 1 == until(lambda: made.steps)[-1][0]
    assert made.drain.dropped_bytes > 0
    assert not made.drain.wait(0.01)
    # Somebody reads the log at last, so that its writer can end.
    with open(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        os.set_blocking(reader.fileno(), True)
        os.close(made.end)
        made.end = -1
        text = reader.read()
        assert made.drain.wait(10)
    assert len(text) + made.drain.dropped_bytes == 14 * 500_000


def test_writer_tells_what_it_dropped_while_the_log_hung(tmp_path, monkeypatch):
    """Once a hung log moves again, the gap is marked where it is."""
    monkeypatch.setattr(output, "_LOG_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(output, "_QUEUE_PIECES_MAX", 1)
    writer = LogWriter(LogFile(tmp_path / "trainer.log", 1000))
    for line in (b"kept\n", b"lost\n", b"lost too\n"):
        writer.put(line)
    monkeypatch.setattr(output, "_QUEUE_PIECES_MAX", 2)
    writer.put(b"again\n")
    writer.start()
    writer.end()
    writer.join(10)

    assert "kept\n\n… [dropped 14 bytes, 2 lines]\nagain\n" == (tmp_path / "trainer.log").read_text()
    assert 14 == writer.loss.bytes


def test_grandchild_that_holds_the_pipe_does_not_block(tmp_path):
    """When a leaked process keeps the output open, closing ends the drain soon, with all that was said."""
    with marked_environment() as environment:
        with subprocess.Popen(
            ["sh", "-c", "sleep 300 & echo $!; echo said"], env=environment, stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            drain = OutputDrain(child.stdout.fileno(), tmp_path / "trainer.log", STEP, lambda *_: None)
            drain.start()
            child.wait(10)

            assert not drain.wait(0.02)
            drain.close()
            assert not drain.is_alive()
        grandchild, said = drain.last_lines()
        os.kill(int(grandchild), 9)
        until(lambda: not Path(f"/proc/{grandchild}").exists() or "Z" in Path(f"/proc/{grandchild}/stat").read_text())

    assert "said" == said
    assert f"{grandchild}\nsaid\n" == (tmp_path / "trainer.log").read_text()


def test_grandchild_that_never_stops_writing_does_not_block(tmp_path, monkeypatch):
    """Closing reads what is there, with a limit, since a leaked process may go on for ever."""
    with (
        marked_environment() as environment,
        subprocess.Popen(["yes"], env=environment, stdout=subprocess.PIPE) as child,
    ):
        assert child.stdout is not None
        drain = OutputDrain(child.stdout.fileno(), tmp_path / "trainer.log", STEP, lambda *_: None)
        drain.start()
        until(lambda: drain.total_bytes)
        drain.close()

        assert not drain.is_alive()
        child.kill()


def test_late_output_is_read_when_closing(pipe):
    """What is in the pipe when the drain is closed is not lost."""
    made = pipe()
    os.write(made.end, b"last words")
    made.drain.close()

    assert ["last words"] == made.drain.last_lines()
    assert b"last words" == made.log.read_bytes()


def test_drain_that_was_never_started_can_be_closed(tmp_path):
    """Closing frees the descriptors in any case, once or twice."""
    before = len(os.listdir("/proc/self/fd"))
    reading, writing = os.pipe()
    drain = OutputDrain(reading, tmp_path / "trainer.log", None, lambda *_: None)
    drain.close()
    drain.close()
    os.close(reading)
    os.close(writing)

    assert before == len(os.listdir("/proc/self/fd"))


def test_something_else_than_a_pipe_can_be_drained(tmp_path):
    """Raising the size of the pipe is a favour, not a need."""
    source = tmp_path / "source"
    source.write_bytes(b"step 3\n")
    steps: Steps = []
    descriptor = os.open(source, os.O_RDONLY)
    drain = OutputDrain(descriptor, tmp_path / "trainer.log", STEP, lambda *step: steps.append(step))
    os.close(descriptor)
    drain.start()

    assert drain.wait(10)
    drain.close()
    assert [(3, None, 1)] == steps


def test_loss_is_told_once():
    """A mark tells what came since the one before."""
    loss = Loss()
    assert b"" == loss.mark()
    loss.add(b"a\nb")
    assert "\n… [dropped 3 bytes, 1 lines]\n" == loss.mark().decode()
    loss.told()

    assert b"" == loss.mark()
    assert (3, 1) == (loss.bytes, loss.lines)


def test_visible_bounds_its_work():
    """A line of any length is shown by its beginning."""
    assert "x" * 499 + "…" == visible(b"x" * 10_000_000)
    assert "x" * 500 == visible(b"x" * 500)


def test_any_output_arrives_in_a_c_locale(tmp_path):
    """Under `LC_ALL=C`, as under systemd, every byte of a real child arrives."""
    code = """
import subprocess, sys
from supervisor.adapters.output import OutputDrain
speak = "import os; os.write(1, bytes(range(256)) + bytes([0x0a, 0xc3, 0xa9]))"
child = subprocess.Popen([sys.executable, "-c", speak], stdout=subprocess.PIPE)
drain = OutputDrain(child.stdout.fileno(), sys.argv[1], None, print)
drain.start()
assert drain.wait(10) and child.wait() == 0
drain.close()
print(drain.total_bytes, ascii(drain.last_lines()[-1]))
"""
    with marked_environment() as environment:
        command = [sys.executable, "-c", code, str(tmp_path / "trainer.log")]
        done = subprocess.run(command, env={**environment, "LC_ALL": "C"}, capture_output=True, text=True, check=True)

    assert "259 '\\xe9'\n" == done.stdout
    assert bytes(range(256)) + "\né".encode() == (tmp_path / "trainer.log").read_bytes()


def test_chunk_limit_is_the_pipe_size():
    """One read can empty a pipe that was enlarged."""
    reading, writing = os.pipe()
    output._enlarge(reading)
    os.set_blocking(writing, False)
    held = os.write(writing, b"x" * lines.CHUNK_BYTES_MAX)
    os.close(reading)
    os.close(writing)

    assert held in (lines.CHUNK_BYTES_MAX, 65536)

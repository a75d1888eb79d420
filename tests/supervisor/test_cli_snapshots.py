"""`lastgood verify`, `list`, `latest`, `inspect` and `seal`, as a person at a terminal and a script see them."""

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main

from supervisor.cli import work
from supervisor.cli.app import app
from supervisor.cli.work import in_order
from tests.bench import ROOT, Bench, until
from tests.conftest import MakeSnapshot, flip_bit

DOC = (ROOT / "docs" / "commands.md").read_text()
ODD = b"odd\n\x1b[31m\xff\xe2\x80\xae_3.pt"
ODD_SHOWN = "odd\\n\\x1b[31m\\xff\\u202e_3.pt"


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines on standard error; a traceback is never among them."""
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr.splitlines()


def state_dict(path: Path | bytes, **more: Any) -> None:
    with open(path, "wb") as file:
        torch.save({"weight": torch.ones(4, 3), **more}, file)


@pytest.fixture
def directory(bench: Bench, make_zip: MakeSnapshot) -> Path:
    """A checkpoint directory with one snapshot of each kind, newest step last by its text."""
    folder = bench.folder / "out"
    folder.mkdir()
    for step in (9, 10):
        make_zip(f"ckpt_{step}.pt", step).rename(folder / f"ckpt_{step}.pt")
    (folder / "ckpt_11.pt").write_bytes((folder / "ckpt_10.pt").read_bytes()[:5000])
    (folder / "notes.txt").write_text("no snapshot")
    return folder


def test_verify_says_one_line_for_each_in_the_order_of_the_paths(bench: Bench, directory: Path) -> None:
    """Files come as they were named, those of a folder newest first, and what is named twice comes once."""
    done = bench.lastgood("verify", "out/ckpt_9.pt", "out", "out/ckpt_9.pt", "--jobs", "3")

    assert (1, []) == (done.returncode, said(done))
    assert [
        ["intact", "crc", "out/ckpt_9.pt:"],
        ["truncated", "structure", "out/ckpt_11.pt:"],
        ["intact", "crc", "out/ckpt_10.pt:"],
    ] == [line.split()[:3] for line in done.stdout.splitlines()]


def test_a_folder_that_is_a_snapshot_is_judged_as_one(bench: Bench) -> None:
    """Its list of digests decides, and inspect describes all its files."""
    folder = bench.folder / "checkpoint-100"
    folder.mkdir()
    state_dict(folder / "model.pt")
    (folder / "config.json").write_text('{"hidden": 8}')

    assert 0 == bench.lastgood("seal", "checkpoint-100").returncode
    assert ["healthy", "seal", "checkpoint-100:"] == bench.lastgood("verify", "checkpoint-100").stdout.split()[:3]
    assert "  hidden: 8" in bench.lastgood("inspect", "checkpoint-100").stdout.splitlines()
    flip_bit(folder / "config.json", 3)
    assert 1 == bench.lastgood("verify", "checkpoint-100").returncode


def test_latest_as_json_is_the_rung_or_null(bench: Bench, directory: Path) -> None:
    """The same fields as in the list; without a good one null, and exit status 3."""
    found = json.loads(bench.lastgood("latest", "out", "--json").stdout)
    (bench.folder / "empty").mkdir()
    none = bench.lastgood("latest", "empty", "--json")

    assert ("ckpt_10.pt", 10, "intact") == (found["name"], found["step"], found["verdict"])
    assert found.keys() == json.loads(bench.lastgood("list", "out", "--json").stdout)[0].keys()
    assert (3, None, 1) == (none.returncode, json.loads(none.stdout), len(said(none)))


def test_list_takes_over_what_the_ledger_remembers_and_reads_the_rest(bench: Bench, directory: Path) -> None:
    """A remembered verdict costs no reading, wherever in the ladder it is."""
    from lastgood import rungs
    from lastgood.ledger import STILL_NS, Ledger, now_ns
    from lastgood.verdict import Kind, Proof, Verdict

    (directory / ".lastgood").mkdir()
    ledger, remembered = Ledger(directory, writable=True), Verdict(Kind.UNPROVEN, Proof.STRUCTURE, "remembered")
    for rung in rungs.scan(directory):
        ledger.put(
            str(rung.path), rung.identity, remembered, now_ns() + STILL_NS
        )  # as if read when it had long been still
    state_dict(directory / "ckpt_12.pt")
    listed = json.loads(bench.lastgood("list", "out", "--json").stdout)

    assert ["ckpt_12.pt", "ckpt_11.pt", "ckpt_10.pt", "ckpt_9.pt"] == [one["name"] for one in listed]
    assert [False, True, True, True] == [one["reason"] == "remembered" for one in listed]


def test_a_name_that_looks_like_the_next_entry_stays_one(bench: Bench, directory: Path) -> None:
    """Each snapshot is a line of the list, and the lines together are JSON, whatever names say."""
    name = 'ckpt_}, {"name": _13.pt'
    state_dict(directory / name)
    text = bench.lastgood("list", "out", "--json").stdout
    listed = json.loads(text)

    assert (name, f"out/{name}", 4) == (listed[0]["name"], listed[0]["path"], len(listed))
    assert listed == [json.loads(line.strip("[], ")) for line in text.splitlines()]


def test_seal_agrees_with_coreutils_and_goes_on_after_a_refusal(bench: Bench, directory: Path) -> None:
    """Each is told of; what is cut is refused; a second time nothing is left to do for the others."""
    done = bench.lastgood("seal", "out", "out/ckpt_10.pt")
    digest = hashlib.sha256((directory / "ckpt_10.pt").read_bytes()).hexdigest()

    assert (1, ["refused", "sealed", "sealed"]) == (done.returncode, [x.split()[0] for x in done.stdout.splitlines()])
    assert f"{digest}  ckpt_10.pt\n" == (directory / "ckpt_10.pt.sha256").read_text()
    subprocess.run(["sha256sum", "-c", "--quiet", "ckpt_9.pt.sha256", "ckpt_10.pt.sha256"], cwd=directory, check=True)
    (directory / "ckpt_11.pt").unlink()
    (directory / "ckpt_10.pt.sha256").write_text("")  # as an interrupted write leaves it
    assert (
        "sealed    out/ckpt_10.pt" == bench.lastgood("seal", "out", "--pattern", "ckpt_{step}.pt").stdout.split(":")[0]
    )
    again = bench.lastgood("seal", "out")
    assert (0, "", ["out: every snapshot in it has a seal"]) == (again.returncode, again.stdout, said(again))
    assert "already" == bench.lastgood("seal", "out/ckpt_9.pt").stdout.split()[0]
    flip_bit(directory / "ckpt_9.pt", 4000)
    assert (1, "refused") == ((wrong := bench.lastgood("seal", "out/ckpt_9.pt")).returncode, wrong.stdout.split()[0])


def test_inspect_of_something_damaged_is_one_line_with_what_can_be_done(bench: Bench, directory: Path) -> None:
    """A cut file, an empty one and one that is something else: exit status 1, and the next command is named."""
    (bench.folder / "empty.pt").touch()
    for name, words in (
        ("out/ckpt_11.pt", ["ends at byte 5,000", "lastgood verify", "lastgood salvage out/ckpt_11.pt -o OUT"]),
        ("empty.pt", ["empty", "lastgood verify"]),
        ("out/notes.txt", ["no format", "lastgood verify"]),
    ):
        done = bench.lastgood("inspect", name)
        assert (1, 1) == (done.returncode, len(said(done))), done
        assert [] == [word for word in [name, *words] if word not in done.stderr], done.stderr
        assert done.stderr.split(": ", 3)[3].startswith(
            json.loads(bench.lastgood("inspect", name, "--json").stdout)["problem"]
        )


@pytest.mark.parametrize("command", ["verify", "list", "latest", "inspect", "seal"])
def test_what_is_no_snapshot_is_told_in_one_line(bench: Bench, command: str) -> None:
    """Nothing there, an empty folder, a pipe, a socket: no waiting, no traceback, the path in the line."""
    (bench.folder / "nothing").mkdir()
    os.mkfifo(bench.folder / "pipe.pt")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(bench.folder / "socket.pt"))
    for name in ("nowhere.pt", "nothing", "pipe.pt", "socket.pt", "nothing/within.pt"):
        done = bench.lastgood(command, name, timeout=20)
        lines = [*said(done), *done.stdout.splitlines()]
        empty = name == "nothing" and command in ("list", "latest")
        judged = name in ("pipe.pt", "socket.pt") and command in ("verify", "seal")
        assert (1, True) == (len(lines), name in lines[0]), lines
        assert ({"list": 0, "latest": 3}[command] if empty else 1 if judged else 2) == done.returncode, lines


def bound_by_permissions() -> None:
    """In a child that will be a program: take from root what lets it read everything."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc.prctl(24, capability, 0, 0, 0)


def test_what_permissions_hide_is_said_to_be_hidden(bench: Bench, directory: Path) -> None:
    """No command takes it for missing or bad, and a seal that cannot be written is told apart from it."""
    path = directory / "ckpt_10.pt"
    path.chmod(0)
    hidden = [bench.lastgood(*words, preexec_fn=bound_by_permissions) for words in (
        ("verify", "out/ckpt_10.pt"), ("inspect", "out/ckpt_10.pt"), ("seal", "out/ckpt_10.pt"),
    )]  # fmt: skip
    path.chmod(0o644)
    directory.chmod(0o555)
    unwritable = bench.lastgood("seal", "out/ckpt_10.pt", preexec_fn=bound_by_permissions)
    directory.chmod(0)
    closed = [
        bench.lastgood(one, "out", preexec_fn=bound_by_permissions) for one in ("verify", "list", "latest", "seal")
    ]
    directory.chmod(0o755)

    assert [1, 2, 1] == [done.returncode for done in hidden]
    assert 3 == sum("permission denied" in (done.stdout + done.stderr).lower() for done in hidden)
    assert (1, True) == (unwritable.returncode, "seal could not be written" in unwritable.stdout)
    assert [(2, 1, True)] * 4 == [
        (one.returncode, len(said(one)), "permission denied; give" in one.stderr) for one in closed
    ]


def test_no_name_and_no_content_steers_the_terminal(bench: Bench) -> None:
    """A name with a line end, an escape and a byte that is no text, and a config with the like, in every command."""
    evil = "\x1b[2J\n\u202e\ud800"
    folder = os.fsencode(bench.folder) + b"/odd"
    os.mkdir(folder)
    state_dict(
        folder + b"/" + ODD, config={evil: evil}, model_args=evil, lastgood_salvage={"source": evil, "lost": [evil]}
    )
    for words in (
        ["verify", "odd"],
        ["list", "odd"],
        ["inspect", b"odd/" + ODD],
        ["seal", b"odd/" + ODD],
    ):
        for more in ([], ["--json"]):
            done = subprocess.run(
                [sys.executable, "-m", "supervisor", *words, *more], cwd=bench.folder, capture_output=True, check=False
            )
            shown = (done.stdout + done.stderr).decode("utf-8")  # it is text
            assert "Traceback" not in shown
            assert [] == [c for c in shown if not c.isprintable() and c != "\n"], shown
            assert ODD_SHOWN in (shown.replace("\\\\", "\\") if more else shown), shown
            if more:
                assert json.loads(done.stdout)


def test_a_reader_that_goes_away_is_no_error_to_tell_of(bench: Bench, directory: Path) -> None:
    """`lastgood ... | head -1`, and a standard output that is closed or full: at most one line, never a traceback."""
    for words in (["verify", *["out/ckpt_9.pt"] * 2, "out"], ["list", "out"], ["inspect", "out/ckpt_9.pt"]):
        command = " ".join([sys.executable, "-m", "supervisor", *words])
        for shell in (f"{command} | true", f"{command} | head -1", f"{command} >&-", f"{command} --json >/dev/full"):
            done = subprocess.run(
                shell, shell=True, cwd=bench.folder, capture_output=True, text=True, timeout=60, check=False
            )
            assert len(said(done)) <= 1, (shell, done.stderr)
            assert "full" not in shell or "No space left" in done.stderr


def test_a_path_that_vanishes_meanwhile_is_named(
    bench: Bench, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was there when the command began and is gone when its turn comes is told of like the others."""
    from supervisor.cli import sealing, snapshots

    monkeypatch.chdir(bench.folder)
    gone = [*snapshots.expanded("seal", "out", None), "out/ckpt_8.pt"]
    outcomes = [sealing._sealed(name) for name in gone]

    assert ["refused", "sealed", "sealed", "failed"] == [one["outcome"] for one in outcomes]
    assert "No such file or directory" == outcomes[-1]["reason"]
    assert 0 == snapshots.size_of("out/ckpt_8.pt")


def test_hundreds_of_paths_are_judged(bench: Bench, directory: Path) -> None:
    """300 paths in one command, one line each, in their order."""
    for number in range(300):
        os.link(directory / "ckpt_9.pt", bench.folder / f"n{number}.pt")
    done = bench.lastgood("verify", *(f"n{number}.pt" for number in range(300)))

    assert (0, []) == (done.returncode, said(done))
    assert [f"n{number}.pt:" for number in range(300)] == [line.split()[2] for line in done.stdout.splitlines()]


class Terminal:
    """A command whose standard error, and output if so wished, is a terminal."""

    def __init__(self, folder: Path, words: list[str], both: bool = False) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", *words], cwd=folder, stdin=subprocess.DEVNULL, stderr=slave,
            stdout=slave if both else subprocess.PIPE, start_new_session=True, env={**os.environ, "TERM": "xterm"},
        )  # fmt: skip
        os.close(slave)
        self.text = ""

    def read(self, seconds: float = 0.1) -> bool:
        """Take what the command wrote there; returns whether there may be more."""
        with contextlib.suppress(OSError):
            if not select.select([self._master], [], [], seconds)[0]:
                return True
            if data := os.read(self._master, 1 << 16):
                self.text += data.decode("utf-8", "replace")
                return True
        return False

    def close(self) -> None:
        """Be gone with the command."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        os.close(self._master)


@pytest.fixture
def terminal(bench: Bench) -> Iterator[Callable[..., Terminal]]:
    """A function that starts a command at a terminal; it is ended with the test."""
    started: list[Terminal] = []

    def start(*words: str, both: bool = False) -> Terminal:
        started.append(Terminal(bench.folder, list(words), both))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_latest_gives_a_script_the_path_itself_and_a_terminal_an_escaped_one(
    bench: Bench, terminal: Callable[..., Terminal]
) -> None:
    """`$(lastgood latest DIR)` is there, whatever is in its name; nothing of it steers a terminal, and JSON is text."""
    folder = "実験\u3000\u00a01"
    os.mkdir(bench.folder / folder)
    state_dict(os.fsencode(bench.folder / folder) + b"/" + ODD)
    shell = f'test -f "$({sys.executable} -m supervisor latest {folder})"'
    assert 0 == subprocess.run(shell, shell=True, cwd=bench.folder, check=False).returncode

    one = terminal("latest", folder, both=True)
    while one.read(5):
        pass
    told = json.loads(bench.lastgood("latest", folder, "--json").stdout)["path"]
    assert "実験\\u3000\\xa01/" + ODD_SHOWN == told
    assert told in one.text.replace("\r\n", "")


def large(path: Path, gigabytes: int) -> None:
    """A file that takes long to read and no space."""
    path.write_bytes(b"not zero")
    os.truncate(path, gigabytes << 30)


@pytest.mark.parametrize("words", [["verify", "a_1.pt", "b_2.pt"], ["list", "."], ["latest", "."], ["seal", "a_1.pt"]])
def test_control_c_ends_long_work_at_once(bench: Bench, terminal: Callable[..., Terminal], words: list[str]) -> None:
    """With threads in the middle of large files: a bar with bytes and speed, then status 130, no traceback, no leftovers."""
    large(bench.folder / "a_1.pt", 500)
    large(bench.folder / "b_2.pt", 500)
    one = terminal(*words)
    until(lambda: one.read() and re.search(r"\d [kMG]?B/s", one.text))
    one.process.send_signal(signal.SIGINT)
    until(lambda: not one.read() or one.process.poll() is not None)

    assert 130 == one.process.wait(10)
    while one.read(0):
        if not select.select([one._master], [], [], 0)[0]:
            break
    assert "Traceback" not in one.text
    assert "\x1b[?25h" in one.text  # the cursor is back
    assert ["a_1.pt", "b_2.pt"] == sorted(os.listdir(bench.folder))
    assert one.process.stdout is not None
    assert b"" == one.process.stdout.read()


def test_a_bar_shows_at_a_terminal_alone_and_never_in_the_results(
    bench: Bench, terminal: Callable[..., Terminal], directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Results go to standard output untouched; without a terminal there is nothing on standard error."""
    large(bench.folder / "a_1.pt", 1)
    one = terminal("verify", "out/ckpt_9.pt", "a_1.pt", "out/ckpt_10.pt")
    while one.read(5):
        pass
    assert one.process.stdout is not None
    seen = one.process.stdout.read().decode()

    assert ["out/ckpt_9.pt:", "a_1.pt:", "out/ckpt_10.pt:"] == [line.split()[2] for line in seen.splitlines()]
    assert "GB" in one.text
    assert ["slow"] == list(in_order([lambda: time.sleep(2 * work.REFRESH_SECONDS) or "slow"], 9))
    assert "" == capfd.readouterr().err


def test_a_long_list_of_tensors_is_cut_at_a_terminal_alone(bench: Bench, terminal: Callable[..., Terminal]) -> None:
    """What is left out is counted, and the option that shows it is named."""
    torch.save({"model": {f"w{n}": torch.zeros(2) for n in range(860)}}, bench.folder / "a.pt")
    shown = {}
    for words in (["inspect", "a.pt"], ["inspect", "a.pt", "--all"]):
        one = terminal(*words, both=True)
        while one.read(5):
            pass
        shown[len(words)] = one.text

    assert "… 820 more; --all shows them" in shown[2]
    assert "more;" not in shown[3]
    shown[0] = bench.lastgood("inspect", "a.pt").stdout
    assert [40, 860, 860] == [text.count("model.w") for text in shown.values()]
    assert max(map(len, shown[2].splitlines())) <= 80


def test_results_come_in_order_and_as_soon_as_they_can() -> None:
    """A later job that ends first waits for its turn, and an earlier one is not held back by a later one."""
    first, second = threading.Event(), threading.Event()

    def late() -> str:
        assert first.wait(20)
        return "first"

    def early() -> str:
        first.set()
        assert second.wait(20)
        return "second"

    with closing(in_order([late, early], None, workers=2)) as results:
        assert "first" == next(results)
        second.set()
        assert ["second"] == list(results)


@contextlib.contextmanager
def program(text: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of its own that works in order: what ends such work ends all children, which here are not its own."""
    begin = (
        "import subprocess, time; from supervisor.cli.work import in_order; from lastgood.hashing import file_sha256\n"
    )
    command = [sys.executable, "-c", begin + text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_error_of_a_job_comes_in_its_place_and_ends_the_others(tmp_path: Path) -> None:
    """Nobody waits for reading that nobody wants any more."""
    large(tmp_path / "a.pt", 500)
    jobs = f"[lambda: print('one'), lambda: 1 / 0, lambda: file_sha256({str(tmp_path / 'a.pt')!r})]"
    with program(f"list(in_order({jobs}, None, 2))") as process:
        out, err = process.communicate(timeout=20)

    assert (1, b"one\n", True) == (process.returncode, out, b"ZeroDivisionError" in err)


def test_a_thread_that_hangs_does_not_keep_the_command_alive() -> None:
    """Storage may never answer; the process ends all the same, with what it printed before."""
    job = "lambda: (print('begun', flush=True), time.sleep(600))"
    with program(f"print('before')\nlist(in_order([{job}], None))") as process:
        assert process.stdout is not None
        assert [b"before\n", b"begun\n"] == [process.stdout.readline(), process.stdout.readline()]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)

    assert (130, b"", b"") == (process.returncode, out, err)


def test_children_of_a_thread_are_ended_with_it() -> None:
    """A scan of tensors does not go on when nobody waits for it."""
    job = "lambda: (child := subprocess.Popen(['sleep', '600']), print(child.pid, flush=True), child.wait())"
    with program(f"list(in_order([{job}], None))") as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)

    assert not os.path.exists(f"/proc/{child}")


FREE = ("notes", "config", "model_arguments", "salvaged")


def fields(value: Any, name: str = "") -> Iterator[str]:
    """The dotted names of all fields in a JSON value, those of a list's items after `[]`."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        for one in value:
            yield from fields(one, f"{name}[]" if name else "")
    elif isinstance(value, dict) and name not in FREE:
        for key, inner in value.items():
            yield from fields(inner, f"{name}.{key}" if name else key)
    else:
        yield name


def section(command: str) -> str:
    return DOC.split(f"## lastgood {command}\n", 1)[1].split("\n## ", 1)[0]


def documented(command: str) -> set[str]:
    """The fields in the table of a command."""
    rows = [line.split("|")[1] for line in section(command).splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_the_page_and_the_commands_agree_about_every_field(bench: Bench, directory: Path) -> None:
    """Whatever a command prints as JSON is documented, and whatever is documented is printed."""
    torch.save(
        {"model": {"w": torch.ones(2)}, "f": os.getcwd, "config": {"a": 1}, "iter_num": 7}, directory / "ckpt_7.pt"
    )
    printed = {
        "verify": ["out"], "list": ["out"], "latest": ["out"], "inspect": ["out/ckpt_7.pt"], "seal": ["out"],
        "salvage": ["out/ckpt_7.pt", "-o", "new.pt"],
    }  # fmt: skip
    for command, words in printed.items():
        shown = json.loads(bench.lastgood(command, *words, "--json").stdout)
        assert documented(command) == set(fields(shown)), command


@pytest.mark.parametrize("command", ["verify", "list", "latest", "inspect", "seal", "salvage"])
def test_the_page_names_every_option(command: str) -> None:
    """An option that is there is on the page, and one on the page is there."""
    group: Any = typer.main.get_command(app)
    options = {name for one in group.commands[command].params for name in one.opts if name.startswith("-")}

    assert options == set(re.findall(r"(?<![\w-])--?[a-z]+\b", section(command).split("\n| ")[0])) - {"-c"}

"""The supervisor's own end, start, files and settings: what kills it too spends the budget, and a slow disk holds up no stop."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.faults import Fault, announce
from supervisor.proc import identity_of
from supervisor.runtime import STATUS_SECONDS
from tests.bench import TRAINER, Bench, marked, until

SOON_SECONDS = 3 * STATUS_SECONDS  # well before the first sync is over
TAKES_IT_ALONG = ("sh", "-c", 'echo step 1; echo x >>"$0"; kill -9 $PPID; sleep 60')
SLOW = (
    "import os, sys, time\n"
    "real, os.fsync = os.fsync, lambda descriptor: (time.sleep(3.0), real(descriptor))\n"
    "from supervisor.cli.app import main\n"
    "main()\n"
)
"""The command on a disk on which each sync takes three seconds."""
BROKEN = """
from supervisor.cli.app import main
from supervisor.core import events, machine
real = machine.step
def step(state, event, now, policy):
    if isinstance(event, events.SnapshotJudged):
        raise machine.BrokenInvariantError("of ours")
    return real(state, event, now, policy)
machine.step = step
main()
"""
"""The command with a core that breaks its own rules once a snapshot is judged."""


def doomed(bench: Bench, *sets: str) -> list[str]:
    """The words of a run whose trainer kills its supervisor before it has made any progress."""
    words = bench.command(sets=("restarts.without_progress=3", *sets), resume="never")
    return [*words[: words.index("--") + 1], *TAKES_IT_ALONG, str(bench.folder / "lives")]


def slow(bench: Bench, *words: str) -> subprocess.Popen[bytes]:
    """A supervisor on a slow disk; it is ended with the test."""
    return special(bench, SLOW, *words)


def special(bench: Bench, script: str, *words: str) -> subprocess.Popen[bytes]:
    """A supervisor started by a script; it is ended with the test."""
    with (bench.folder / "special.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", script, *words], cwd=bench.folder, stdout=log, stderr=log)
    bench.started.append(process)
    return process


def test_a_bug_of_ours_ends_it_in_order_and_is_told(bench: Bench) -> None:
    """It ends with 1, and so is started again: the trainer is dead, and record, status, notification and traceback say why."""
    sent = bench.folder / "sent.txt"
    notify = f"notify=[{{command: [sh, -c, 'cat >>{sent}'], events: [supervisor.failed]}}]"
    sets = ("run.final_step=20", notify)
    words = bench.command("--steps=20", "--pause=0.1", sets=sets)
    assert 1 == special(bench, BROKEN, *words).wait(60)
    (failed,), (stopped,) = bench.records("supervisor.failed"), bench.records("supervisor.stopped")

    assert ("error", "BrokenInvariantError: of ours") == (failed["level"], failed["reason"])
    assert (1, 1) == (stopped["status"], bench.state("status.json")["exit_status"])
    assert "supervisor.failed" in sent.read_text()
    assert (
        "BrokenInvariantError: of ours"
        == (bench.folder / "special.log").read_text().splitlines()[-1].rpartition(".")[2]
    )
    assert [] == marked(bench.directory)
    assert 0 == bench.lastgood(*words).returncode


def test_a_supervisor_that_dies_with_its_trainer_every_time_is_not_started_for_ever(bench: Bench) -> None:
    """Three deaths of both without progress, as the budget says, and the next start ends with 4 without a trainer."""
    statuses = [bench.lastgood(*doomed(bench)).returncode for _ in range(4)]

    assert [-9, -9, -9, 4] == statuses
    assert ["x"] * 3 == (bench.folder / "lives").read_text().split()
    assert ["supervisor-lost"] * 2 == [one["cause"] for one in bench.records("restart.scheduled")]
    assert [("supervisor-lost", 3)] == [
        (one["cause"], one["without_progress"]) for one in bench.records("restart.refused")
    ]


def test_an_injected_end_of_the_supervisor_spends_nothing(bench: Bench) -> None:
    """A campaign that announces whom it kills may do so as often as it likes."""
    words = bench.command("--steps=1000", "--every=900", sets=("restarts.without_progress=2",), resume="never")
    for number in range(3):
        process = bench.start(*words)
        bench.wait_for("trainer.spawned", number + 1)
        until(lambda: bench.state("run.json")["open"])
        target = identity_of(process.pid)
        assert target is not None
        announce(
            str(bench.directory), Fault(f"f{number}", "kill-the-supervisor", target.pid, target.start_ticks, None, 0.0)
        )
        process.kill()
        process.wait()
    bench.start(*words)
    bench.wait_for("trainer.spawned", 4)

    assert ["f0", "f1", "f2"] == [one["fault"] for one in bench.records("fault.injected")]
    assert [] == bench.records("restart.scheduled")


def test_a_supervisor_killed_after_progress_is_no_death_without_it(bench: Bench) -> None:
    """What was proven since the start is progress, and the next supervisor starts at once."""
    words = bench.command("--steps=10000", sets=("restarts.without_progress=1",))
    for number in range(3):
        process = bench.start(*words)
        bench.wait_for("trainer.progressed", len(bench.records("trainer.progressed")) + 1)
        until(lambda: not bench.state("run.json")["open"])
        process.kill()
        process.wait()
        assert number + 1 == len(bench.records("supervisor.started"))

    assert [] == bench.records("restart.scheduled") + bench.records("restart.refused")


@pytest.mark.heavy
def test_a_stop_is_answered_while_memory_is_being_written_to_a_slow_disk(bench: Bench) -> None:
    """Each sync takes three seconds; the trainer is asked to stop within one, and what was to be written is written."""
    process = slow(bench, *bench.command("--steps=10000", "--pause=0.05"))
    bench.wait_for("trainer.progressed")
    began = time.monotonic()
    process.terminate()
    bench.wait_for("trainer.asked_to_stop")
    answered = time.monotonic() - began

    assert answered < SOON_SECONDS
    assert 143 == process.wait(40)
    assert "stop" == bench.state("wanted.json")["wanted"]
    assert 5 <= bench.state("run.json")["high_water"]
    assert not bench.state("run.json")["open"]


def test_a_stop_is_answered_while_a_start_waits_for_a_slow_disk(bench: Bench) -> None:
    """The memory of a start must be on the disk before it; a stop that comes meanwhile ends the run without a trainer."""
    process = slow(bench, *bench.command("--steps=10000"))
    bench.wait_for("supervisor.started")
    until(lambda: (bench.directory / ".lastgood" / "status.json").exists())
    until(lambda: bench.state("status.json")["phase"] == "starting")
    began = time.monotonic()
    process.terminate()
    bench.wait_for("run.stopped")

    assert time.monotonic() - began < SOON_SECONDS
    assert 143 == process.wait(40)
    assert [] == bench.records("trainer.spawned")
    assert not (bench.directory / "starts.txt").exists()


def test_a_start_is_on_the_disk_before_the_trainer_is_there(bench: Bench) -> None:
    """However long a sync takes: when the trainer begins, run.json knows of it."""
    slow(bench, *bench.command("--steps=10000"))
    bench.wait_for("trainer.spawned")

    assert (1, True) == (bench.state("run.json")["incarnation"], bench.state("run.json")["open"])


UNSAVED = (
    "import os\n"
    "from supervisor.adapters import statefile\n"
    "real = statefile.write_run\n"
    "def write_run(*what):\n"
    "    if os.path.exists('full'):\n"
    "        raise OSError(28, 'No space left on device')\n"
    "    real(*what)\n"
    "statefile.write_run = write_run\n"
    "from supervisor.cli.app import main\n"
    "main()\n"
)
"""The command on a disk that takes no run.json while there is a file `full`."""


@pytest.mark.parametrize("full", [True, False])
def test_nothing_is_started_on_trust_that_no_later_supervisor_would_know_of(bench: Bench, full: bool) -> None:
    """When run.json cannot be written the bytes are read first, and then the trainer starts; else the two go side by side."""
    words = bench.command("--steps=30", "--pause=0.1", sets=("run.final_step=30",))
    process = special(bench, UNSAVED, *words)
    bench.wait_for("snapshot.sealed", 2)
    if full:
        (bench.folder / "full").touch()
    os.kill(bench.records("trainer.spawned")[0]["pid"], signal.SIGKILL)
    second = bench.wait_for("trainer.spawned", 2)
    confirmed = bench.wait_for("resume.confirmed")

    assert full == (confirmed["seq"] < second["seq"])
    assert full == bool(bench.records("memory.not_saved"))
    assert second["resumed_from"] == confirmed["name"]
    assert 0 == process.wait(30)


PROMPT = (
    "import os, signal, sys\n"
    "import supervisor.cli.run as run\n"
    "real = run.read_settings\n"
    "def read(*words):\n"
    "    os.kill(os.getpid(), int(sys.argv.pop(1)))\n"
    "    return real(*words)\n"
    "run.read_settings = read\n"
    "from supervisor.cli.app import main\n"
    "main()\n"
)
"""The command, hit by a signal before it listens."""


def hit(bench: Bench, number: signal.Signals, *trainer: str) -> subprocess.CompletedProcess[bytes]:
    words = bench.command(*trainer, sets=("run.final_step=20",))
    script = PROMPT.replace("sys.argv.pop(1)", f"{int(number)}")
    return subprocess.run(
        [sys.executable, "-c", script, *words], cwd=bench.folder, capture_output=True, timeout=60, check=False
    )


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGHUP])
def test_a_wish_or_a_lost_terminal_before_it_listens_does_not_end_it(bench: Bench, number: signal.Signals) -> None:
    """The wish is read at the start anyway, and nobody has to look on."""
    assert 0 == hit(bench, number).returncode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_before_it_listens_ends_it_without_a_trainer(bench: Bench, number: signal.Signals) -> None:
    """As the signal does by itself, which a shell calls 143 or 130; no traceback, and nothing was begun."""
    done = hit(bench, number)

    assert (-number, b"", b"") == (done.returncode, done.stdout, done.stderr)
    assert not bench.directory.exists()


def test_a_status_tells_what_is_although_nothing_happens(bench: Bench) -> None:
    """The trainer says nothing and the directory is not looked at: whoever looks on sees that it starts, and its number."""
    bench.start(*bench.command("--pause=60", sets=("checkpoints.rescan_seconds=60",)))
    spawned = bench.wait_for("trainer.spawned")
    until(lambda: bench.state("status.json")["phase"] == "starting", 6 * STATUS_SECONDS)

    assert spawned["pid"] == bench.state("status.json")["trainer_pid"]


# A config file that is read again.


def configured(bench: Bench, **sections: Any) -> Path:
    """A config file over the small trainer."""
    tree: dict[str, Any] = {
        "trainer": {
            "command": [sys.executable, str(TRAINER), str(bench.directory), "--steps=10000", "--habit=final"],
            "resume": "--from={snapshot}",
        },
        "checkpoints": {"dir": str(bench.directory), "settle_seconds": 0.2, "rescan_seconds": 0.5},
    }
    for name, section in sections.items():
        tree[name] = {**tree.get(name, {}), **section} if isinstance(section, dict) else section
    path = bench.folder / "run.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def test_a_changed_file_holds_from_now_on(bench: Bench) -> None:
    """Retention at once, another command at the next start, another pattern not before a restart; each key is named."""
    process = bench.start("run", str(configured(bench)))
    bench.wait_for("trainer.progressed")
    longer = [sys.executable, str(TRAINER), str(bench.directory), "--steps=10001", "--habit=final"]
    configured(
        bench,
        checkpoints={"keep": {"last": 2}, "pattern": "step_{step}.pt"},
        trainer={"command": longer, "env": {"SECRET": "hush"}},
        stall={"running_seconds": 300.0},
    )
    process.send_signal(signal.SIGHUP)
    told = bench.wait_for("supervisor.reloaded")

    assert ["stall.running_seconds"] == told["changed"]
    assert ["trainer.command", "trainer.env"] == told["at_next_start"]
    assert ["checkpoints.pattern", "checkpoints.keep"] == told["needs_restart"]
    os.kill(bench.records("trainer.spawned")[0]["pid"], signal.SIGKILL)
    spawned = bench.wait_for("trainer.spawned", 2)
    argv = Path(f"/proc/{spawned['pid']}/cmdline").read_bytes().split(b"\0")
    assert b"--steps=10001" in argv
    assert b"SECRET=hush" in Path(f"/proc/{spawned['pid']}/environ").read_bytes().split(b"\0")
    assert "hush" not in (bench.directory / ".lastgood" / "events.jsonl").read_text()


def test_a_shorter_limit_holds_for_the_silence_that_lasts(bench: Bench) -> None:
    """A trainer that hangs is ended by the limit that the file says now, counted from its last sign."""
    trainer = {"command": [sys.executable, str(TRAINER), str(bench.directory), "--steps=30", "--habit=hang:12"]}
    process = bench.start("run", str(configured(bench, trainer=trainer, run={"final_step": 30})))
    bench.wait_for("trainer.progressed", 2)
    assert [] == bench.records("trainer.stalled")
    configured(bench, trainer=trainer, run={"final_step": 30}, stall={"running_seconds": 1.0})
    process.send_signal(signal.SIGHUP)

    assert "running" == bench.wait_for("trainer.stalled")["stage"]
    assert 0 == process.wait(30)


def test_other_targets_are_sent_to_from_now_on(bench: Bench) -> None:
    """Records go to the command that the file names now, and the one before is left alone; nothing of it lives on."""
    first, second = bench.folder / "first.jsonl", bench.folder / "second.jsonl"
    process = bench.start("run", str(configured(bench, notify=[{"command": f"tee -a {first}", "level": "info"}])))
    until(lambda: first.exists() and b"trainer.progressed" in first.read_bytes())
    configured(bench, notify=[{"command": f"tee -a {second}", "level": "info"}])
    process.send_signal(signal.SIGHUP)
    bench.wait_for("supervisor.reloaded")
    os.kill(bench.records("trainer.spawned")[0]["pid"], signal.SIGKILL)
    until(lambda: second.exists() and b"trainer.exited" in second.read_bytes())
    process.terminate()

    assert 143 == process.wait(20)
    assert b"supervisor.stopped" in second.read_bytes()
    assert b"trainer.exited" not in first.read_bytes()
    assert [] == bench.records("notification.failed")


@pytest.mark.parametrize(
    "content", ["stall: {runing_seconds: 3}\n", "[", None, "pipe"], ids=["unknown key", "no YAML", "gone", "a pipe"]
)
def test_a_file_that_cannot_be_used_changes_nothing(bench: Bench, content: str | None) -> None:
    """The reason is a warning in one line, and the run goes on by the settings it has."""
    path = configured(bench)
    process = bench.start("run", str(path))
    bench.wait_for("trainer.progressed")
    path.unlink()
    if content == "pipe":
        os.mkfifo(path)
    elif content is not None:
        path.write_text(content)
    process.send_signal(signal.SIGHUP)
    told = bench.wait_for("supervisor.reload_failed")

    assert ("warning", True) == (told["level"], str(path) in told["reason"])
    assert None is process.poll()
    assert [] == bench.records("supervisor.reloaded")


@pytest.mark.parametrize("from_file", [True, False])
def test_a_lost_terminal_is_no_news(bench: Bench, from_file: bool) -> None:
    """A file that says what it said, or none at all: the run goes on without a record."""
    words = ["run", str(configured(bench))] if from_file else bench.command("--steps=10000")
    process = bench.start(*words)
    bench.wait_for("trainer.progressed")
    process.send_signal(signal.SIGHUP)
    bench.wait_for("trainer.progressed", len(bench.records("trainer.progressed")) + 2)

    assert None is process.poll()
    assert [] == bench.records("supervisor.reloaded") + bench.records("supervisor.reload_failed")


# Two at once.


def test_of_two_started_at_once_one_runs(bench: Bench) -> None:
    """The other ends with 7 and names the one that runs, twice in a row."""
    both_at_once(bench, 2)


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_of_two_started_at_once_one_runs_fifty_times(bench: Bench) -> None:
    """The same fifty times, over one directory."""
    both_at_once(bench, 50)


def both_at_once(bench: Bench, times: int) -> None:
    for _ in range(times):
        spawned = len(bench.records("trainer.spawned"))
        both = [bench.start(*bench.command("--steps=10000")) for _ in range(2)]
        until(lambda both=both: any(one.poll() is not None for one in both), 40)
        loser = next(one for one in both if one.poll() is not None)
        winner = next(one for one in both if one is not loser)
        log = bench.folder / f"supervisor-{bench.started.index(loser)}.log"

        assert 7 == loser.returncode
        assert f"supervised by process {winner.pid}; one supervisor a directory" in log.read_text()
        bench.wait_for("trainer.spawned", spawned + 1)
        assert None is winner.poll()
        winner.terminate()
        assert 143 == winner.wait(20)
    assert times == len(bench.records("supervisor.started"))
    assert [] == marked(bench.folder)

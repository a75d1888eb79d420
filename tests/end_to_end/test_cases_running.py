"""Failures of running, stopping, watching and logging that people met in the field: what must happen instead.

docs/cases.md names each case, where it was reported, and the test that keeps it, here or elsewhere.
"""

import json
import os
import shlex
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench import ROOT, TRAINER, Bench, marked, until

PRELUDE = f"""
import os, signal, socket, subprocess, sys, time
sys.path.insert(0, {str(TRAINER.parent)!r})
from small_trainer import save
folder = os.environ["LASTGOOD_CHECKPOINT_DIR"]
given = os.environ.get("LASTGOOD_RESUME_FROM", "")
step = int(os.environ.get("LASTGOOD_RESUME_STEP", "0"))
number = int(os.environ["LASTGOOD_INCARNATION"])
open(os.path.join(folder, "starts.txt"), "a").write(f"{{step}}\\n")

def train(last, pause=0.02, every=5):
    global step
    while step < last:
        time.sleep(pause)
        step += 1
        print("step", step, flush=True)
        if step % every == 0:
            save(folder, step)
"""


def words_for(bench: Bench, script: str, *sets: str) -> list[str]:
    """The words of `run` over a trainer of one test's own, which begins with the prelude."""
    path = bench.folder / "trainer_of_this_test.py"
    path.write_text(PRELUDE + script)
    words = bench.command(sets=sets, resume="env")
    return [*words[: words.index("--") + 1], sys.executable, str(path)]


def every_record(bench: Bench) -> list[dict[str, Any]]:
    """All records, each of them one line of UTF-8 and JSON."""
    text = (bench.directory / ".lastgood" / "events.jsonl").read_text(encoding="utf-8", errors="strict")
    return [json.loads(line) for line in text.splitlines() if line]


@pytest.mark.parametrize("ending", ["os._exit(0)", "os._exit(3)", "os.abort()"])
def test_whatever_way_a_trainer_ends_its_children_go_first(bench: Bench, ending: str) -> None:
    """Not only a kill leaves children behind: an exit with 0, with an error and a crash do as well."""
    script = f"""
beside = [one for one in os.popen("ps -eo args").read().splitlines() if one.startswith("sleep 3{os.getpid()}")]
open(os.path.join(folder, "beside.txt"), "a").write(f"{{len(beside)}}\\n")
for detached in (False, True, True):
    subprocess.Popen(["sleep", "3{os.getpid()}"], start_new_session=detached, env={{}} if detached else None)
train(12 if number == 1 else 20)
{ending} if number == 1 else None
"""
    done = bench.lastgood(*words_for(bench, script, "run.final_step=20"))

    assert 0 == done.returncode, done.stdout
    assert ["0"] * 2 == (bench.directory / "beside.txt").read_text().split()
    assert [] == marked(bench.folder)


def test_a_stop_ends_what_a_middle_process_started_elsewhere(bench: Bench) -> None:
    """A shell, below it a program, below that one in a session of its own: after a stop none of them is left."""
    child = bench.folder / "child.py"
    child.write_text(
        "import subprocess, time\nsubprocess.Popen(['setsid', 'sleep', '300'])\n"
        "for step in range(1, 10000):\n    print('step', step, flush=True)\n    time.sleep(0.05)\n"
    )
    words = bench.command(resume="never")
    line = f"{shlex.quote(sys.executable)} {shlex.quote(str(child))}; true"
    process = bench.start(*words[: words.index("--") + 1], "sh", "-c", line)
    until(lambda: len(marked(bench.folder)) == 3)
    process.terminate()

    assert 143 == process.wait(20)
    assert [] == marked(bench.folder)


def test_printing_one_step_over_and_over_is_a_stall(bench: Bench) -> None:
    """A trainer that goes on printing the step it stands still at has told nothing new."""
    script = """
train(12)
while number == 1:
    print("step", step, flush=True)
    time.sleep(0.05)
train(20)
"""
    done = bench.lastgood(*words_for(bench, script, "run.final_step=20", "stall.running_seconds=0.5"), timeout=30)

    assert 0 == done.returncode, done.stdout
    assert "stalled" == bench.records("trainer.exited")[0]["cause"]
    assert ["0", "10"] == bench.starts()


def test_a_save_that_grace_cuts_short_is_not_resumed_from(bench: Bench) -> None:
    """The save on SIGTERM takes longer than the grace: killed in it, the file is passed over and set aside."""
    script = """
def on_term(*_):
    with open(os.path.join(folder, "step_999.pt"), "wb") as file:
        file.write(open(os.path.join(folder, "step_10.pt"), "rb").read()[:9000])
        file.flush()
        time.sleep(300)

signal.signal(signal.SIGTERM, on_term)
train(12 if number == 1 else 20)
time.sleep(300 if number == 1 else 0)
"""
    words = words_for(bench, script, "run.final_step=20", "trainer.grace_seconds=0.4")
    process = bench.start(*words)
    bench.wait_for("trainer.progressed", 2)
    process.terminate()
    assert 143 == process.wait(20)
    assert 1 == len(bench.records("trainer.grace_over"))
    assert 9000 == (bench.directory / "step_999.pt").stat().st_size

    assert 0 == bench.lastgood(*words).returncode
    assert ["0", "10"] == bench.starts()
    assert ["step_999.pt"] == [record["name"] for record in bench.records("snapshot.quarantined")]


def test_a_pipeline_that_hides_the_exit_code_is_no_completion(bench: Bench) -> None:
    """`python x.py | tee log` ends with the 0 of `tee`: before the final step it is an early end, and goes on."""
    words = words_for(
        bench, "train(12 if number == 1 else 20)\nsys.exit(3 if number == 1 else 0)\n", "run.final_step=20"
    )
    cut = words.index("--") + 1
    line = " ".join(map(shlex.quote, words[cut:])) + " 2>&1 | tee log"
    done = bench.lastgood(*words[:cut], "sh", "-c", line)

    assert 0 == done.returncode, done.stdout
    assert ("ended-early", 0) == tuple(bench.records("trainer.exited")[0][key] for key in ("cause", "code"))
    assert ["0", "10"] == bench.starts()


def test_a_traceback_before_a_0_is_said(bench: Bench) -> None:
    """Where nobody says which step is the last, an exit with 0 counts; that it looks like a crash is a warning."""
    words = words_for(bench, "train(6)\nraise RuntimeError('lost')\n")
    cut = words.index("--") + 1
    line = " ".join(map(shlex.quote, words[cut:])) + " 2>&1 | tee log"
    assert 0 == bench.lastgood(*words[:cut], "sh", "-c", line).returncode

    said = bench.records("run.completed")[0]
    assert "warning" == said["level"]
    assert "run.final_step" in said["doubt"]


def test_a_trainer_that_has_nothing_left_to_do_completes_the_run(bench: Bench) -> None:
    """Resumed at its last step it ends at once with 0, having printed nothing: that is no crash loop."""
    words = words_for(bench, "train(20)\n", "run.final_step=20")
    assert 0 == bench.lastgood(*words).returncode
    run = bench.directory / ".lastgood" / "run.json"
    run.write_text(json.dumps(json.loads(run.read_text()) | {"done": None}))  # as if killed before it was remembered

    assert 0 == bench.lastgood(*words).returncode
    assert ["0", "20"] == bench.starts()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_port_that_a_dead_trainers_child_held_is_free_for_the_next(bench: Bench) -> None:
    """The child has the listening socket and outlives a SIGKILL of its parent: the next has the port and the same snapshot."""
    script = f"""
listening = socket.socket()
listening.bind(("127.0.0.1", {free_port()}))
listening.listen()
listening.set_inheritable(True)
subprocess.Popen(["sleep", "300"], close_fds=False, start_new_session=True)
train(12 if number < 3 else 20)
os.kill(os.getpid(), 9) if number < 3 else None
"""
    done = bench.lastgood(*words_for(bench, script, "run.final_step=20"))

    assert 0 == done.returncode, done.stdout
    assert ["0", "10", "10"] == bench.starts()


@pytest.mark.parametrize(
    "words", ["OSError: [Errno 98] Address already in use", "torch.OutOfMemoryError: CUDA out of memory. Tried to"]
)
def test_what_the_machine_lacks_accuses_no_snapshot(bench: Bench, words: str) -> None:
    """Dying alike of a port or of memory that another program holds, it is started again from the same snapshot."""
    script = f"""
if 1 < number < 5:
    sys.exit({words!r})
train(12 if number == 1 else 20)
sys.exit(0 if number > 1 else "something else")
"""
    done = bench.lastgood(*words_for(bench, script, "run.final_step=20"))

    assert 0 == done.returncode, done.stdout
    assert ["0", "10", "10", "10", "10"] == bench.starts()
    assert ([], []) == (bench.records("snapshot.suspected"), bench.records("snapshot.quarantined"))


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("raise OSError(28, 'No space left on device')", "polling: the limit of inotify watches"),
        ("raise OSError(24, 'Too many open files')", "polling: the limit of inotify instances"),
        ("self._emitters.clear()", "inotify"),
    ],
)
def test_without_file_events_everything_is_found_by_looking(bench: Bench, trouble: str, said: str) -> None:
    """A watch that the system refuses, and one that never tells anything, cost time and nothing else."""
    site = bench.folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sys\nif 'supervisor' in sys.orig_argv:\n"
        "    from watchdog.observers.api import BaseObserver\n"
        f"    def start(self):\n        {trouble}\n"
        "    BaseObserver.start = start\n"
    )
    words = bench.command("--steps=20", "--habit=die:12", "--pause=0.1", sets=("run.final_step=20",))
    done = bench.lastgood(*words, env={**os.environ, "PYTHONPATH": os.pathsep.join((str(site), str(ROOT)))})

    assert 0 == done.returncode, done.stdout
    assert ["0", "10"] == bench.starts()
    assert bench.records("trainer.progressed")[0]["seq"] < bench.records("trainer.exited")[0]["seq"]
    assert bench.records("supervisor.started")[0]["watching"].startswith(said)


def test_a_trainer_that_rotates_as_fast_as_it_can_ends_no_supervisor(bench: Bench) -> None:
    """Snapshots come and go within milliseconds while they are listed, judged and hashed; the newest two are always there."""
    script = """
while step < 600:
    step += 1
    save(folder, step)
    print("step", step, flush=True)
    old = os.path.join(folder, f"step_{step - 2}.pt")
    os.path.exists(old) and os.unlink(old)
    number == 1 and step == 400 and os.kill(os.getpid(), 9)
"""
    sets = ("run.final_step=600", "checkpoints.settle_seconds=0", "checkpoints.rescan_seconds=0.05")
    done = bench.lastgood(*words_for(bench, script, *sets))

    assert 0 == done.returncode, done.stdout
    assert ["0", "400"] == bench.starts()
    assert {"snapshot.rejected", "snapshot.quarantined"}.isdisjoint(one["event"] for one in every_record(bench))


def test_a_chosen_snapshot_that_goes_away_before_it_is_read_costs_one_start(bench: Bench) -> None:
    """Somebody removes it as the trainer starts: the next look finds the one before, and the run goes on from that."""
    script = """
if number == 2:
    os.unlink(given)
    open(given)
train(12 if number == 1 else 20)
number == 1 and os.kill(os.getpid(), 9)
"""
    done = bench.lastgood(*words_for(bench, script, "run.final_step=20"))

    assert 0 == done.returncode, done.stdout
    assert ["0", "10", "5"] == bench.starts()


def test_no_name_and_no_output_spoils_a_record(bench: Bench) -> None:
    """A snapshot whose name is no text, with a line end and an escape in it, and last words of any bytes: each record is JSON."""
    name = b"x\n\x1b[2J\xff_step_100.pt"
    bench.directory.mkdir()
    script = """
os.write(1, b'\\xed\\xa0\\x80 \\0 \\x1b[31m {"a": 1} \\x88\\n')
number == 2 and os.kill(os.getpid(), 9)
train(120)
"""
    made = bench.lastgood(*words_for(bench, "train(5)\n", "run.final_step=5"))
    assert 0 == made.returncode, made.stdout
    os.rename(bench.directory / "step_5.pt", os.path.join(os.fsencode(bench.directory), name))
    done = bench.lastgood(*words_for(bench, script, "run.final_step=120"))

    assert 0 == done.returncode, done.stdout
    assert ["0", "100", "100"] == bench.starts()
    assert any("_step_100.pt" in str(record.get("resumed_from")) for record in every_record(bench))
    assert '{"a": 1}' in bench.records("trainer.exited")[1]["last_lines"][-1]


@pytest.mark.parametrize("mask", [0o007, 0o077])
def test_every_file_of_a_supervisor_follows_the_umask(bench: Bench, mask: int) -> None:
    """Whom the umask lets may read state, records, log, seals and what is set aside, and write them; nobody else may."""
    words = words_for(bench, "train(12 if number == 1 else 20)\n", "run.final_step=12")
    assert 0 == bench.lastgood(*words, umask=mask).returncode
    os.truncate(bench.directory / "step_10.pt", 3000)
    words[words.index("run.final_step=12")] = "run.final_step=20"
    assert 0 == bench.lastgood(*words, umask=mask).returncode
    made = [path for path in (bench.directory / ".lastgood").rglob("*") if not path.is_symlink()]

    assert {"run.json", "status.json", "events.jsonl", "trainer.log", "seals", "reason.json"} <= {
        one.name for one in made
    }
    modes = {(one.is_dir(), one.stat().st_mode & 0o777) for one in made if one.name not in ("step_10.pt", "step_5.pt")}
    assert {(True, 0o777 & ~mask), (False, 0o666 & ~mask)} == modes


def test_what_killed_writers_left_is_counted_in_status(bench: Bench) -> None:
    """C30: never resumed from, never removed, and told."""
    bench.directory.mkdir()
    left = ["300.orbax-checkpoint-tmp-0", "tmp-checkpoint-300"]
    for name in left:
        (bench.directory / name).mkdir()
    (bench.directory / "step_300.pt.tmp").write_bytes(b"half")
    assert 0 == bench.run(sets=("run.final_step=20",))

    assert 3 == json.loads(bench.lastgood("status", "checkpoints", "--json").stdout)["temporary"]
    words = "temporary      3 temporary files or folders; they are never resumed from\n"
    assert words in bench.lastgood("status", "checkpoints").stdout
    assert {*left, "step_300.pt.tmp"} == {one.name for one in bench.directory.iterdir() if "300" in one.name}
    assert ["0"] == bench.starts()


def test_the_lock_file_of_a_killed_supervisor_keeps_nobody_out(bench: Bench) -> None:
    """What is held is a lock of the kernel's; the file that a SIGKILL leaves says nothing."""
    process = bench.start(*bench.command("--steps=10000"))
    bench.wait_for("trainer.progressed")
    process.kill()
    process.wait()
    assert (Path(bench.directory) / ".lastgood" / "supervisor.lock").exists()

    assert 0 == bench.run("--steps=40", sets=("run.final_step=40",))

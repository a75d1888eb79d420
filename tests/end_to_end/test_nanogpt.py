"""nanoGPT as it is: a script that overwrites one `ckpt.pt` in place, under the preset `nanogpt`, started in its own folder."""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lastgood.hashing import file_sha256
from lastgood.naming import partial_of
from supervisor.records import CATALOGUE
from tests.bench import ROOT, Bench, marked, until
from tests.conftest import flip_bit

SCRIPT = ROOT / "tests" / "nanogpt_trainer.py"
EVERY = 10
LARGE = "--width=1536"
WEIGHTS_BYTES = 3 * 4 * 1536**2
"""A snapshot of 28 MB, weights and two moments, whose save takes long enough to be met in its midst."""


class Folder(Bench):
    """nanoGPT's own folder: the script is called train.py, and saves to `out`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.directory = folder / "out"
        self.file = self.directory / "ckpt.pt"
        self.shelf = self.directory / ".lastgood" / "shelf"
        shutil.copy(SCRIPT, folder / "train.py")

    def command(self, *trainer: str, sets: tuple[str, ...] = (), resume: str = "") -> list[str]:
        """The words of `run` over the script."""
        quick = (
            "checkpoints.settle_seconds=0.2",
            "restarts.backoff_seconds=[0.05,0.2]",
            "restarts.without_progress=50",
        )
        words = ["run", "--preset", "nanogpt", "--checkpoints", "out"]
        for one in (*quick, *sets):
            words += ["--set", one]
        return [*words, "--", sys.executable, "train.py", f"--eval_interval={EVERY}", *trainer]

    def history(self) -> list[list[tuple[str, int]]]:
        """What each life of the script did: how it began and at which step, then each save that it began."""
        lives: list[list[tuple[str, int]]] = []
        path = self.folder / "history.txt"
        for line in path.read_text().splitlines() if path.exists() else ():
            word, step = line.split()
            if word != "saving":
                lives.append([])
            lives[-1].append((word, int(step)))
        return lives

    def lost(self) -> list[int]:
        """Steps from the last save that each life began to where the next one began."""
        return [before[-1][1] - after[0][1] for before, after in itertools.pairwise(self.history())]

    def shelved(self) -> list[str]:
        """The copies on the shelf, by name."""
        return sorted(path.name for path in self.shelf.glob("*.pt"))

    def kill_in_save(self, life: int, save: int) -> None:
        """SIGKILL to the trainer while only a part of the file is there, in the `save`-th save of a life or a later one."""
        until(lambda: len(self.history()) > life and len(self.history()[life]) > save, 60)
        pid = self.records("trainer.spawned")[life]["pid"]
        give_up_at = time.monotonic() + 60
        while not self._is_stopped_in_a_save(pid):
            assert time.monotonic() < give_up_at
        os.kill(pid, signal.SIGKILL)
        self.wait_for("trainer.exited", life + 1)

    def _is_stopped_in_a_save(self, pid: int) -> bool:
        """Whether the trainer stands still now with its file half-written; it goes on if it had just finished."""
        if not self._is_partial():
            return False
        os.kill(pid, signal.SIGSTOP)
        until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        if self._is_partial():
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    def _is_partial(self) -> bool:
        try:
            return 0 < self.file.stat().st_size < WEIGHTS_BYTES
        except FileNotFoundError:
            return False


@pytest.fixture
def nanogpt(tmp_path: Path) -> Iterator[Folder]:
    """A folder whose processes are gone when the test is over."""
    made = Folder(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    until(lambda: not marked(tmp_path))


def killed_in_saves(nanogpt: Folder, kills: int) -> None:
    """Kill the script in the midst of saves, one a life, a later one of its saves each time, and then stop the run.

    Fails when more than one interval of steps was lost by any of them.
    """
    words = nanogpt.command(LARGE, "--max_iters=1000000", "--step_seconds=0.05", sets=("stall.startup_seconds=60",))
    process = nanogpt.start(*words)
    for life in range(kills):
        nanogpt.kill_in_save(life, (2, 1, 3)[life % 3])
    nanogpt.wait_for("trainer.spawned", kills + 1)
    until(lambda: len(nanogpt.history()) > kills)
    process.terminate()
    assert 143 == process.wait(30)

    assert kills == len(nanogpt.lost())
    assert [] == [steps for steps in nanogpt.lost() if not 0 <= steps <= EVERY], nanogpt.history()
    said = nanogpt.records("fallback.chosen")
    assert ["truncated"] * kills == [one["rejected"][0]["verdict"] for one in said]
    assert all(EVERY >= one["steps_lost"] for one in said)


def test_an_undisturbed_run_leaves_copies_on_the_shelf(nanogpt: Folder) -> None:
    """nanoGPT's own command is enough; its last three saves are on the shelf, sealed as coreutils would."""
    assert 0 == nanogpt.lastgood(*nanogpt.command("--max_iters=40")).returncode

    assert [[("scratch", 0), *(("saving", step) for step in (10, 20, 30, 40))]] == nanogpt.history()
    assert ["ckpt_00000020.pt", "ckpt_00000030.pt", "ckpt_00000040.pt"] == nanogpt.shelved()
    seals = sorted(path.name for path in nanogpt.shelf.glob("*.sha256"))
    checked = subprocess.run(["sha256sum", "-c", *seals], cwd=nanogpt.shelf, capture_output=True, check=False)
    assert 0 == checked.returncode, checked.stdout
    assert file_sha256(nanogpt.file) == file_sha256(nanogpt.shelf / "ckpt_00000040.pt")
    assert {"train.py", "history.txt", "out"} == set(os.listdir(nanogpt.folder))


def test_what_nanogpt_saved_alone_is_gone_on_from(nanogpt: Folder) -> None:
    """A config file may say where to begin and to save: what the supervisor adds counts. The old file is copied first."""
    (nanogpt.folder / "config.py").write_text(
        'out_dir = "elsewhere"\ninit_from = "scratch"\nalways_save_checkpoint = True\n'
    )
    subprocess.run([sys.executable, "train.py", "--max_iters=20"], cwd=nanogpt.folder, check=True, capture_output=True)
    digest = file_sha256(nanogpt.file)
    words = nanogpt.command("config.py", "--max_iters=25")
    assert 0 == nanogpt.lastgood(*words).returncode

    assert [("scratch", 0), ("resume", 20)] == [life[0] for life in nanogpt.history()]
    shelved, spawned = nanogpt.records("snapshot.shelved")[0], nanogpt.records("trainer.spawned")[0]
    assert shelved["seq"] < spawned["seq"]
    assert (".lastgood/shelf/ckpt_00000020.pt", 20) == (shelved["name"], shelved["step"])
    assert ("ckpt.pt", 20) == (spawned["resumed_from"], spawned["step"])
    assert not (nanogpt.folder / "elsewhere").exists()
    assert digest != file_sha256(nanogpt.file)


def test_a_kill_in_a_save_loses_no_more_than_an_interval(nanogpt: Folder) -> None:
    """The torn file is set aside, the copy before it is put in place, and the script goes on from that one."""
    killed_in_saves(nanogpt, 1)

    said = nanogpt.records("snapshot.unshelved")[0]
    common = {"event", "level", "timestamp", "run", "run_id", "incarnation", "seq"}
    assert common | set(CATALOGUE["snapshot.unshelved"].fields) == said.keys()
    asides = list((nanogpt.directory / ".lastgood" / "quarantine").glob("*/ckpt.pt"))
    assert len(nanogpt.records("fallback.chosen")) == len(asides)
    assert all("truncated" in json.loads((path.parent / "reason.json").read_text())["reason"] for path in asides)


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_twenty_kills_in_a_save_lose_no_more_than_an_interval(nanogpt: Folder) -> None:
    """Killed twenty times in a row while it overwrites its only file, it never loses more than one save's steps."""
    killed_in_saves(nanogpt, 20)


def test_a_kill_in_the_first_save_is_the_one_fresh_start(nanogpt: Folder) -> None:
    """Where there never was a whole file, the torn one is set aside and the script starts as the person wrote it."""
    process = nanogpt.start(*nanogpt.command(LARGE, "--max_iters=12", "--step_seconds=0.05"))
    nanogpt.kill_in_save(0, 1)
    assert 0 == process.wait(60)

    assert [("scratch", 0), ("scratch", 0)] == [life[0] for life in nanogpt.history()]
    (said,) = nanogpt.records("run.started_over")
    assert [("ckpt.pt", "truncated")] == [(one["name"], one["verdict"]) for one in said["rejected"]]


def test_a_file_that_is_torn_at_the_first_start_is_no_fresh_start(nanogpt: Folder) -> None:
    """Somebody trained for it: status 3, and nothing is moved."""
    nanogpt.directory.mkdir()
    nanogpt.file.write_bytes(b"PK\x03\x04" + bytes(5000))
    assert 3 == nanogpt.lastgood(*nanogpt.command()).returncode
    assert ([], True) == (nanogpt.history(), nanogpt.file.exists())


@pytest.mark.heavy
def test_a_torn_file_and_a_rotten_copy_cost_two_intervals(nanogpt: Folder) -> None:
    """One record tells of both, both are set aside, and the next older copy is put in place."""
    assert 0 == nanogpt.lastgood(*nanogpt.command("--max_iters=30", sets=("run.final_step=30",))).returncode
    os.truncate(nanogpt.file, 30_000)
    flip_bit(nanogpt.shelf / "ckpt_00000030.pt", 2000)
    assert 0 == nanogpt.lastgood(*nanogpt.command("--max_iters=40", sets=("run.final_step=40",))).returncode

    (said,) = nanogpt.records("fallback.chosen")
    assert ("supervisor", 30, 20, ".lastgood/shelf/ckpt_00000020.pt", 2, 10) == tuple(
        said[key] for key in ("by", "newest_step", "chosen_step", "chosen", "depth", "steps_lost")
    )
    assert [("ckpt.pt", "truncated"), (".lastgood/shelf/ckpt_00000030.pt", "corrupt")] == [
        (one["name"], one["verdict"]) for one in said["rejected"]
    ]
    assert [("scratch", 0), ("resume", 20)] == [life[0] for life in nanogpt.history()]
    assert ["ckpt_00000020.pt", "ckpt_00000030.pt", "ckpt_00000040.pt"] == nanogpt.shelved()


@pytest.mark.heavy
def test_a_new_run_leaves_the_old_copies_alone(nanogpt: Folder) -> None:
    """It begins anew although the shelf is full, and neither goes on from an old copy nor gives one up."""
    assert 0 == nanogpt.lastgood(*nanogpt.command("--max_iters=40")).returncode
    words = nanogpt.command("--max_iters=1000000", "--step_seconds=0.05")
    process = nanogpt.start(words[0], "--new-run", *words[1:])
    nanogpt.wait_for("snapshot.shelved", 5)
    os.truncate(nanogpt.file, 1000)
    os.kill(nanogpt.records("trainer.spawned")[1]["pid"], signal.SIGKILL)
    nanogpt.wait_for("trainer.spawned", 3)
    until(lambda: len(nanogpt.history()) > 2)
    process.terminate()
    assert 143 == process.wait(30)

    assert [("scratch", 0), ("scratch", 0), ("resume", 10)] == [life[0] for life in nanogpt.history()][:3]
    assert {"ckpt_00000020.pt", "ckpt_00000030.pt", "ckpt_00000040.pt"} <= set(nanogpt.shelved())


def test_another_out_dir_is_refused(nanogpt: Folder) -> None:
    """In one line, before anything is started."""
    done = nanogpt.lastgood(*nanogpt.command("--out_dir=elsewhere"))
    assert (2, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert "--out_dir=elsewhere is not the checkpoint directory 'out'" in done.stderr
    assert [] == nanogpt.history()


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_a_supervisor_killed_at_any_time_loses_no_more_than_an_interval(nanogpt: Folder) -> None:
    """With its trainer, twenty times, at moments spread over saving, copying, setting aside and putting in place; the file is
    often torn.
    """
    words = nanogpt.command(LARGE, "--max_iters=1000000", "--step_seconds=0.03", sets=("stall.startup_seconds=60",))
    chance = random.Random(5)
    for _ in range(20):
        lives = len(nanogpt.history())
        process = nanogpt.start(*words)
        if chance.random() < 0.6:
            until(lambda lives=lives: len(nanogpt.history()) > lives and len(nanogpt.history()[lives]) > 2, 60)
            time.sleep(chance.random() * 0.15)
        else:
            time.sleep(0.3 + chance.random() * 0.6)
        process.kill()
        process.wait()
        until(lambda: not marked(nanogpt.folder))
        if nanogpt.file.exists() and chance.random() < 0.5:
            os.truncate(nanogpt.file, 1_000_000)  # as a kill in a save leaves it
    lives = len(nanogpt.history())
    process = nanogpt.start(*words)
    until(lambda: len(nanogpt.history()) > lives)
    process.terminate()
    assert 143 == process.wait(30)

    assert len(nanogpt.lost()) > 5
    assert [] == [steps for steps in nanogpt.lost() if not 0 <= steps <= EVERY], nanogpt.history()
    assert [] == [path for path in nanogpt.directory.rglob("*") if partial_of(path.name)]

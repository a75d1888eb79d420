"""Real campaigns over the bundled trainer."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from supervisor.chaos import campaign
from supervisor.chaos.campaign import Asked
from supervisor.chaos.plan import MIXES, FaultKind
from tests.bench import ROOT, TRAINER, Bench, marked, until
from tests.crash import disks
from tests.crash.conftest import give_up

CONFIG = """
run: {{name: small, final_step: 120}}
trainer:
  command: [python, -m, trainer, {root}/config/trainer/demo.yaml, --max_iters=120, --lr_decay_iters=120, --save_interval=10,
            --eval_interval=40, --n_layer=2, --data_dir={root}/out/data]
checkpoints: {{dir: checkpoints}}
"""


def wrote_config(bench: Bench) -> None:
    (bench.folder / "run.yaml").write_text(CONFIG.format(root=ROOT))


def any_trainer(bench: Bench, directory: str, steps: int) -> None:
    """The config of a run of the small trainer, which saves in that directory."""
    line = f'exec {sys.executable} {TRAINER} "{directory}" --steps={steps} --pause=0.05 "$@"'
    config = {
        "run": {"name": "any", "final_step": steps},
        "trainer": {"command": ["sh", "-c", line, "sh"], "resume": "--from={snapshot}"},
        "checkpoints": {"dir": "checkpoints", "settle_seconds": 0.2},
        "stall": {"running_seconds": 3, "saving_seconds": 3},
    }
    (bench.folder / "run.yaml").write_text(json.dumps(config))


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_a_campaign_passes_and_shows_what_was_chosen(bench: Bench) -> None:
    """Four kinds on processes and on storage: the survivor equals the baseline bit for bit, which is computed once. The same seed
    has the same faults done again, each where it was planned.
    """
    wrote_config(bench)
    words = ("chaos", "run.yaml", "--faults=4", "--kinds=kill,kill-while-saving,truncate,kill-tree", "--seed=3")
    done = bench.lastgood(*words, "--json=first.json", timeout=200)

    assert 0 == done.returncode, done.stdout + done.stderr
    for said in ("kill-while-saving", "half written, ", "truncate", "kill-tree", "steps compared: 120", "PASSED"):
        assert said in done.stdout
    assert "largest difference in loss: 0.0\nweights identical: yes\n" in done.stdout
    survivor = bench.folder / "out" / "chaos" / "small-seed3" / "survivor"
    causes = [json.loads(line) for line in (survivor / ".lastgood" / "events.jsonl").read_text().splitlines()]
    assert 4 == len([r for r in causes if r["event"] == "trainer.exited" and r["cause"] == "chaos"])

    again = bench.lastgood(*words, "--json=second.json", timeout=200)
    assert (0, True) == (again.returncode, "as computed before" in again.stdout), again.stdout + again.stderr
    plans = [
        [
            (one["id"], one["kind"], one["planned_step"])
            for one in json.loads((bench.folder / name).read_bytes())["faults"]
        ]
        for name in ("first.json", "second.json")
    ]
    assert (4, plans[0]) == (len(plans[0]), plans[1])


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_every_kind_of_fault_is_done_and_survived(bench: Bench) -> None:
    """All of them in one run, those that need a filesystem of their own too, and nothing of a mount is left."""
    if why := disks.why_not("ext4"):
        give_up(why)
    config = (ROOT / "config" / "chaos.yaml").read_text().replace("config/trainer", f"{ROOT}/config/trainer")
    (bench.folder / "run.yaml").write_text(config)
    done = bench.lastgood("chaos", "run.yaml", f"--faults={len(FaultKind)}", "--seed=7", timeout=580)
    told = done.stdout.partition("what was done, and what followed")[0]

    assert 0 == done.returncode, done.stdout + done.stderr
    assert set(FaultKind) == {kind for kind in FaultKind if f": {kind}: " in told}
    assert "left out" not in done.stdout
    assert not os.path.ismount(bench.folder / "out" / "chaos" / "chaos-seed7" / "mount")


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_any_command_can_be_judged_but_for_its_sums(bench: Bench) -> None:
    """A trainer that nobody knows: the choice, the causes and the leaks are judged, and that no sum was compared is said."""
    any_trainer(bench, "$LASTGOOD_CHECKPOINT_DIR", 400)
    done = bench.lastgood("chaos", "run.yaml", "--faults=6", "--seed=1", timeout=200)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "not compared bit for bit: only the bundled trainer computes the same twice" in done.stdout
    assert "left out: kill-while-saving: " in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kinds", "cluster,kill"), "--kinds: 'cluster' is no kind of fault; they are kill, kill-tree, "),
        (("--kinds", "kill,melt"), "--kinds: 'melt' is no kind of fault; they are kill, kill-tree, "),
        (("--kinds", " , "), "--kinds names none; leave it out for all kinds"),
        (("--report", "run.yaml"), "run.yaml is the campaign's own config; give the name of another file"),
        (("--faults", "60"), "a run of 120 steps is too short for 60 faults; it has room for 42"),
    ],
)
def test_a_campaign_that_makes_no_sense_is_refused_with_the_cure(
    bench: Bench, words: tuple[str, str], said: str
) -> None:
    """In one line, before anything is trained."""
    wrote_config(bench)
    done = bench.lastgood("chaos", "run.yaml", *words)

    assert (2, 1) == (done.returncode, len(done.stderr.strip().splitlines()))
    assert said in done.stderr


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_a_supervisor_killed_in_mid_run_loses_nothing(bench: Bench) -> None:
    """SIGKILL of the supervisor: the next `run` ends what is left, resumes, and completes with the losses of an unbroken run."""
    wrote_config(bench)
    words = ("run", "run.yaml")
    process = bench.start(*words)
    bench.wait_for("trainer.progressed", 3, seconds=60)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = bench.lastgood(*words)
    assert 0 == done.returncode, done.stdout + done.stderr
    broken = losses(bench.directory)
    shutil.rmtree(bench.directory)
    assert 0 == bench.lastgood(*words).returncode

    assert 120 == len(broken)
    assert losses(bench.directory) == broken


def losses(directory: Path) -> dict[int, float]:
    """Loss by step; a step made twice must have had the same loss twice."""
    found: dict[int, Any] = {}
    for line in (directory / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        assert found.setdefault(entry["step"], entry["loss"]) == entry["loss"]
    return found


def test_a_campaign_over_a_run_it_cannot_judge_is_refused(bench: Bench) -> None:
    """Without a final step no fault can be placed."""
    (bench.folder / "run.yaml").write_text("trainer: {command: [sh, x], resume: self}\ncheckpoints: {dir: x}\n")
    done = bench.lastgood("chaos", "run.yaml")

    assert (2, 1) == (done.returncode, len(done.stderr.strip().splitlines()))
    assert "run.final_step" in done.stderr


def test_a_campaign_never_removes_what_it_did_not_make(bench: Bench) -> None:
    """A folder in its place that is no campaign's is left alone."""
    wrote_config(bench)
    place = bench.folder / "out" / "chaos" / "small-seed1"
    place.mkdir(parents=True)
    (place / "mine").write_text("x")
    done = bench.lastgood("chaos", "run.yaml", "--seed", "1")

    assert (2, "x") == (done.returncode, (place / "mine").read_text())
    assert "not a campaign's" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_campaign_leaves_no_trainer(bench: Bench, number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM in the baseline ends what the campaign had started."""
    wrote_config(bench)
    process = bench.start("chaos", "run.yaml", "--seed", "5")
    until(lambda: list((bench.folder / "out" / "chaos" / "baselines").glob("*/metrics.jsonl")), 60)
    process.send_signal(number)
    assert 0 != process.wait(30)

    until(lambda: not running_in(bench.folder))


def running_in(folder: Path) -> list[int]:
    """Processes whose working directory is `folder`."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.readlink(f"/proc/{name}/cwd") == str(folder):
                found.append(int(name))
        except OSError:
            continue  # it ended
    return found


@pytest.mark.parametrize(
    ("asked", "words", "kinds"),
    [
        (Asked("a.yaml", 3, 1), "", set(FaultKind) - {FaultKind.STOP}),
        (Asked("a.yaml", 3, 1, (FaultKind.KILL,)), " --kinds kill", {FaultKind.KILL}),
        (Asked("a.yaml", 3, 1, mix="cluster"), " --kinds cluster", MIXES["cluster"].keys() - {FaultKind.STOP}),
    ],
    ids=["all", "named", "a mix"],
)
def test_what_was_asked_for_is_what_is_drawn_from(asked: Asked, words: str, kinds: set[FaultKind]) -> None:
    """Without what is impossible here; and the words that repeat it say so."""
    assert f"lastgood chaos a.yaml --faults 3 --seed 1{words}" == asked.command
    assert kinds == asked.weights({FaultKind.STOP}).keys()


def test_a_seed_below_nothing_is_refused(bench: Bench) -> None:
    """It would be the same as without its sign."""
    wrote_config(bench)
    done = bench.lastgood("chaos", "run.yaml", "--seed", "-1")

    assert (2, True) == (done.returncode, "greater than or equal to 0" in done.stderr), done.stderr


def test_what_repeats_a_campaign_can_be_pasted() -> None:
    """Whatever its config is called."""
    assert "lastgood chaos 'my run.yaml' --faults 2 --seed 1 --kinds kill,stop" == (
        Asked("my run.yaml", 2, 1, (FaultKind.KILL, FaultKind.STOP)).command
    )


def test_a_campaign_in_which_nothing_was_saved_fails(bench: Bench) -> None:
    """A trainer that saves elsewhere would start anew after each kill, and nothing would be shown by that."""
    any_trainer(bench, "$PWD/elsewhere", 40)
    (bench.folder / "elsewhere").mkdir()
    done = bench.lastgood("chaos", "run.yaml", "--faults=2", "--kinds=kill")

    assert (1, "FAILED") == (done.returncode, done.stdout.splitlines()[-1]), done.stdout + done.stderr
    assert "could not be done: no snapshot has come to LASTGOOD_CHECKPOINT_DIR" in done.stdout
    assert "was never done" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_campaign_that_is_interrupted_leaves_nothing_behind_and_says_so(bench: Bench, number: signal.Signals) -> None:
    """A terminal that is closed is one of those."""
    any_trainer(bench, "$LASTGOOD_CHECKPOINT_DIR", 100_000)
    process = bench.start("chaos", "run.yaml", "--faults=1", "--kinds=stop")
    place = bench.folder / "out" / "chaos" / "any-seed1" / "survivor"
    until(lambda: marked(place))
    process.send_signal(number)
    while process.poll() is None and marked(place):
        process.send_signal(number)  # by somebody who is impatient
        time.sleep(0.01)

    assert 128 + number == process.wait(60)
    assert [] == marked(place)
    assert "interrupted: what was started has been ended" in (bench.folder / "supervisor-0.log").read_text()


def test_a_campaign_under_nohup_outlives_its_terminal(bench: Bench) -> None:
    """Who started it for a night asked for that; it still ends when it is told to."""
    any_trainer(bench, "$LASTGOOD_CHECKPOINT_DIR", 100_000)
    words = ["nohup", sys.executable, "-m", "supervisor", "chaos", "run.yaml", "--faults=1", "--kinds=stop"]
    place = bench.folder / "out" / "chaos" / "any-seed1" / "survivor"
    with (bench.folder / "log").open("wb") as log:
        process = subprocess.Popen(words, cwd=bench.folder, stdout=log, stderr=log)
    bench.started.append(process)
    until(lambda: marked(place))
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert None is process.poll()
    process.send_signal(signal.SIGTERM)

    assert (128 + signal.SIGTERM, []) == (process.wait(60), marked(place))


def test_a_run_in_which_things_change_is_not_stuck_however_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A baseline of a day is waited for; one in whose directory nothing changes is not."""
    monkeypatch.setattr(campaign, "LIMIT_SECONDS", 0.5)
    monkeypatch.setattr(campaign, "LOOK_SECONDS", 0.05)
    log, looks = tmp_path / "trainer.log", iter(range(40))

    def writes() -> bool:
        with log.open("a") as file:
            file.write(".")
        return next(looks, None) is not None

    assert campaign.follow(writes, tmp_path, lambda _: None)
    assert not campaign.follow(lambda: True, tmp_path, lambda _: None)

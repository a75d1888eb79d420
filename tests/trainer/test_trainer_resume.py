"""Resumption: from which snapshot, what it restores, and that the run is exactly the uninterrupted one."""

import argparse
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import lastgood
from tests.trainer.comparing import differences, metrics_of, payload_of
from tests.trainer.test_trainer_loop import snapshots
from trainer import resume, setup, train
from trainer.__main__ import main
from trainer.distributed import Ranks
from trainer.settings import NoSnapshotError, UsageError

# Ends the process in the midst of update 14, as SIGKILL from outside would, at a place that does not vary.
KILLED_IN_STEP_14 = """
import os, signal, sys
import trainer.train as train
from trainer.__main__ import main
real = train.update
def update(*arguments):
    if arguments[-1] == 14:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
train.update = update
sys.exit(main(sys.argv[1:]))
"""


def run(arguments, code=None, **environ):
    """A trainer in a process of its own; its finished process, output and all."""
    start = ["-c", code] if code else ["-m", "trainer"]
    return subprocess.run(
        [sys.executable, "-W", "error", *start, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | environ,
    )


def test_a_killed_run_resumed_in_a_new_process_is_exact(config, settings, tmp_path, losses, steps):
    """SIGKILL in step 14, back to snapshot 10: losses, weights, moments, random numbers are the same."""
    straight, broken = str(tmp_path / "straight"), str(tmp_path / "broken")
    changes = ["--dropout=0.1", "--gradient_accumulation_steps=2", "--eval_interval=3", "--save_blocking=true"]
    arguments = [config, *changes]
    assert 0 == main([*arguments, f"--out_dir={straight}"])

    killed = run([*arguments, f"--out_dir={broken}"], KILLED_IN_STEP_14)
    resumed = run([*arguments, f"--out_dir={broken}"], LASTGOOD_INCARNATION="2")

    assert (-signal.SIGKILL, 0) == (killed.returncode, resumed.returncode), killed.stderr + resumed.stderr
    assert list(range(11, 21)) == list(steps(broken, 2))
    assert "warning" not in resumed.stdout
    expected, found = losses(straight), losses(broken, 2)
    assert [0.0] * 10 == [expected[step] - found[step] for step in range(11, 21)]
    whole, pieced = payload_of(straight, 20), payload_of(broken, 20)
    for key in ("model", "optimizer", "rng", "data", "scheduler", "best_val_loss"):
        assert [] == differences(whole[key], pieced[key]), key


@pytest.mark.parametrize("changes", [{"dtype": "float16"}, {"dtype": "bfloat16"}, {"bias": True, "dropout": 0.2}])
def test_other_arithmetic_is_as_exact(changes, settings, losses, tmp_path):
    """Loss scaler, bfloat16, biases: stopped at 10 and gone on with, it is the same run."""
    straight = settings(**changes, out_dir=str(tmp_path / "straight"))
    train.train(straight)

    train.train(settings(**changes, max_iters=10))
    train.train(settings(**changes))

    run_dir = settings().out_dir
    assert losses(straight.out_dir) == losses(run_dir)
    one, other = payload_of(straight.out_dir, 20), payload_of(run_dir, 20)
    assert [] == [key for key in ("model", "optimizer", "scaler", "rng") if differences(one[key], other[key])]


def test_without_the_optimizer_state_it_is_another_run(settings, losses, tmp_path, monkeypatch):
    """The test above can tell: fresh moments change every loss behind the first."""
    straight = settings(out_dir=str(tmp_path / "straight"))
    train.train(straight)
    train.train(settings(max_iters=10))
    real = train.restore

    def restore(payload, model, optimizer, *rest):
        return real(payload | {"optimizer": optimizer.state_dict()}, model, optimizer, *rest)

    monkeypatch.setattr(train, "restore", restore)
    train.train(settings())

    expected, found = losses(straight.out_dir), losses(settings().out_dir)
    assert [11] == [step for step in range(11, 21) if expected[step] == found[step]]


def test_an_evaluation_missed_by_a_signal_is_made_up(settings, capsys, monkeypatch):
    """A run stopped at a step that was to be evaluated prints that line when it goes on, and none twice."""
    real = train.update

    def update(*arguments):
        if arguments[-1] == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments)

    monkeypatch.setattr(train, "update", update)
    assert 143 == train.train(settings(eval_interval=6))
    monkeypatch.setattr(train, "update", real)
    assert 0 == train.train(settings(eval_interval=6))

    lines = capsys.readouterr().out.splitlines()
    evaluated = [line.split(":")[0] for line in lines if line.startswith("step ")]
    assert ["step 0", "step 6", "step 12", "step 18"] == evaluated


def test_an_evaluation_made_before_the_save_is_not_repeated(settings, capsys):
    """The snapshot knows that its step was evaluated."""
    train.train(settings(eval_interval=5, max_iters=10))
    train.train(settings(eval_interval=5))

    lines = capsys.readouterr().out.splitlines()
    evaluated = [line.split(":")[0] for line in lines if line.startswith("step ")]
    assert ["step 0", "step 5", "step 10", "step 15", "step 20"] == evaluated


def test_a_resumed_run_says_what_it_found(settings, capsys):
    """One line: the step, and every part that was restored."""
    train.train(settings(max_iters=10, eval_interval=5))
    capsys.readouterr()

    train.train(settings(eval_interval=5))

    parts = "model, optimizer, schedule, random numbers, data position, best loss"
    assert (
        f"resumed at step 10; restored: {parts}; missing: nothing; exact: true" in capsys.readouterr().out.splitlines()
    )


def test_a_snapshot_of_nanogpt_says_what_is_missing(settings, capsys, tmp_path):
    """Its six keys are enough to go on, and not enough to be exact: both are said."""
    train.train(settings(max_iters=10, eval_interval=10))
    payload = payload_of(settings().out_dir, 10)
    six = ("model", "optimizer", "model_args", "iter_num", "best_val_loss", "config")
    path = tmp_path / "ckpt.pt"
    torch.save({key: payload[key] for key in six}, path)
    capsys.readouterr()

    assert 0 == train.train(settings(resume=str(path), out_dir=str(tmp_path / "other")))

    out = capsys.readouterr().out
    restored = "restored: model, optimizer, schedule, best loss; missing: random numbers, data position"
    assert f"resumed at step 10; {restored}; exact: false" in out
    assert "warning: not exactly the run as it would have gone on: no random numbers; no data position" in out


def test_changed_settings_that_matter_are_named(settings, capsys):
    """One warning with all of them; what does not matter to a loss is not in it."""
    train.train(settings(max_iters=10))
    capsys.readouterr()

    train.train(settings(batch_size=3, dropout=0.1, seed=2, deterministic=False, log_interval=2))

    warning = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("warning"))
    assert "batch_size was 2, is 3" in warning
    assert "dropout was 0.0, is 0.1" in warning
    assert "seed was 1337, is 2" in warning
    assert "deterministic is off" in warning
    assert "log_interval" not in warning


def test_a_run_that_is_not_deterministic_says_so(settings, capsys):
    """In the output of a fresh start and of a resumed one, in every line of metrics and in the snapshot; then for good."""
    train.train(settings(max_iters=5, deterministic=False))
    train.train(settings(max_iters=10, deterministic=False))
    train.train(settings())

    out = capsys.readouterr().out
    assert "starting at step 0; exact: false" in out
    assert 2 == out.count("missing: nothing; exact: false")
    assert {False} == {line["exact"] for line in metrics_of(settings().out_dir)}
    assert 0 == payload_of(settings().out_dir, 20)["inexact_since"]


@pytest.mark.parametrize(("deterministic", "expected"), [(None, True), (True, True), (False, False)])
def test_deterministic_is_torch_s_switch(deterministic, expected, settings):
    """On the CPU it is on unless switched off."""
    setup.set_up_torch(settings(deterministic=deterministic), Ranks())

    assert expected == torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(("deterministic", "expected"), [(None, False), (True, True), (False, False)])
def test_on_a_gpu_deterministic_is_to_be_asked_for(deterministic, expected, settings, monkeypatch):
    """It costs time there."""
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    setup.set_up_torch(settings(device="cuda", deterministic=deterministic), Ranks())

    assert expected == torch.are_deterministic_algorithms_enabled()


def test_another_machine_or_number_of_threads_is_named(settings, capsys, monkeypatch):
    """What no setting says, and what rounds otherwise, is in the warning too."""
    train.train(settings(max_iters=10))
    capsys.readouterr()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")

    train.train(settings(threads=2))

    warning = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("warning"))
    assert "threads was 1, is 2" in warning
    assert ", is another" in warning
    assert {True, False} == {line["exact"] for line in metrics_of(settings().out_dir)}


def test_generators_that_could_not_be_put_back_are_named():
    """A run on a GPU without the state of its generator is not exact, and says which one is missing."""
    schedule = dict.fromkeys(resume.SCHEDULE_KEYS, 1)
    payload = {"model": {}, "optimizer": {}, "config": schedule, "data": {}, "best_val_loss": 1.0}

    found, missing = resume.parts_of(payload, ["torch", "numpy", "python"], False, "cuda")

    assert ["random numbers of cuda"] == missing
    assert ["model", "optimizer", "schedule", "random numbers", "data position", "best loss"] == found
    assert ["scaler", "random numbers"] == resume.parts_of(payload, [], True, "cpu")[1]


def test_what_is_not_there_is_not_said_to_be_restored():
    """A config without a schedule is none; a best loss before the first evaluation is neither found nor missed."""
    payload = {"model": {}, "optimizer": {}, "config": {"seed": 1}, "data": {}, "best_val_loss": 1e9}

    assert (
        ["model", "optimizer", "random numbers", "data position"],
        ["schedule"],
    ) == resume.parts_of(payload, ["torch", "numpy", "python"], False, "cpu")


def test_without_a_compiler_compile_is_refused(config, capsys, monkeypatch):
    """Before the first step, in one line with the cure."""
    monkeypatch.setenv("CXX", "no-such-compiler")

    assert 2 == main([config, "--compile=true"])
    assert "command line: compile: no-such-compiler is not there, and torch needs it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "ranks", "number"), [("cuda", Ranks(), 0), ("cuda:1", Ranks(), 1), ("cuda", Ranks(5, 8, 1, 4), 1)]
)
def test_a_gpu_is_chosen_before_it_is_asked_anything(device, ranks, number, settings, monkeypatch):
    """Which of them a process has decides what it can do and what it is called."""
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: asked.append("bf16") is None)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    setup.set_up_torch(settings(device=device, dtype="bfloat16"), ranks)

    assert [number, "bf16"] == asked


def test_a_rank_that_is_not_exact_makes_the_run_inexact(settings, capsys):
    """What only another process lacks is in the warning, and in every line from there on."""

    class Two(Ranks):
        def objects(self, value):
            return [value, [*value, "no random numbers of cuda"]]

    extra = {"config": dataclasses.asdict(settings()), "made_with": {"deterministic": True}, "skipped": []}
    restored = resume.Restored(["model"], [])

    assert 7 == resume.go_on({"iter_num": 7}, restored, extra, Two())

    assert 7 == extra["inexact_since"]
    assert "warning: not exactly the run as it would have gone on: no random numbers of cuda" in capsys.readouterr().out


@pytest.mark.parametrize("supervised", [{}, {"LASTGOOD_SUPERVISED": "1"}], ids=["alone", "supervised"])
def test_init_from_resume_never_begins_anew(supervised, config, capsys, monkeypatch):
    """Without a snapshot it is refused, status 2 and the cure, also where the supervisor has none to give."""
    for name, value in supervised.items():
        monkeypatch.setenv(name, value)

    assert 2 == main([config, "--init_from=resume"])

    told = capsys.readouterr().err
    assert told.startswith("trainer: command line: init_from: resume, but ")
    assert "holds no snapshot to go on with; leave init_from out to begin anew" in told
    assert 1 == told.count("\n")


def test_init_from_resume_goes_on(settings, losses, capsys):
    """As nanoGPT's users write it, a stopped run goes on from its newest snapshot."""
    train.train(settings(max_iters=10))

    assert 0 == train.train(settings(init_from="resume"))

    assert "resumed at step 10" in capsys.readouterr().out
    assert list(range(1, 21)) == list(losses(settings().out_dir))


def test_the_settings_win_over_the_snapshot_s_optimizer(settings):
    """A changed weight decay or beta is used, not silently replaced by the saved one."""
    train.train(settings(max_iters=10))

    train.train(settings(weight_decay=0.3, beta1=0.8))

    decayed, kept = payload_of(settings().out_dir, 20)["optimizer"]["param_groups"]
    assert (0.3, 0.0) == (decayed["weight_decay"], kept["weight_decay"])
    assert [0.8, 0.99] == list(decayed["betas"])


def test_a_finished_run_ends_at_once(settings, losses, monkeypatch):
    """Nothing is trained, saved or recorded; status 0."""
    train.train(settings())
    before = losses(settings().out_dir)
    monkeypatch.setattr(train, "update", None)
    monkeypatch.setattr(train, "save", None)

    assert 0 == train.train(settings())
    assert before == losses(settings().out_dir)


def test_resume_never_starts_over_and_says_what_is_there(settings, capsys, steps, monkeypatch):
    """From step 1 in the same folder, with a warning that auto would do otherwise."""
    train.train(settings(max_iters=10))
    capsys.readouterr()
    monkeypatch.setenv("LASTGOOD_INCARNATION", "2")

    train.train(settings(max_iters=4, resume="never"))

    assert [1, 2, 3, 4] == list(steps(settings().out_dir, 2))
    assert "ckpt_00000010.pt is newer, and resume: auto would take it" in capsys.readouterr().out


def test_going_back_says_that_the_next_start_would_go_forth(settings, capsys):
    """From 10 though 20 is there, of which auto would go on; a start from the newest has nothing to say."""
    train.train(settings())
    capsys.readouterr()

    train.train(settings(resume=os.path.join(settings().out_dir, "ckpt_00000010.pt"), max_iters=12))

    assert "ckpt_00000020.pt is newer, and resume: auto would take it; use another out_dir" in capsys.readouterr().out
    train.train(settings(max_iters=21))
    assert "is newer" not in capsys.readouterr().out


def test_a_damaged_newest_snapshot_is_passed_over(settings, steps):
    """One flipped bit in 20: auto goes on from 10."""
    train.train(settings())
    path = os.path.join(settings().out_dir, "ckpt_00000020.pt")
    with open(path, "r+b") as file:
        file.seek(5000)
        byte = file.read(1)[0]
        file.seek(5000)
        file.write(bytes([byte ^ 1]))
    os.remove(os.path.join(settings().out_dir, "metrics.jsonl"))

    assert 0 == train.train(settings())
    assert list(range(11, 21)) == list(steps(settings().out_dir))


def test_nothing_starts_over_when_no_snapshot_is_good(settings):
    """All damaged: the run ends with the name of each, and the files stay."""
    train.train(settings())
    for step in (10, 20):
        with open(os.path.join(settings().out_dir, f"ckpt_{step:08d}.pt"), "r+b") as file:
            file.truncate(1000)

    with pytest.raises(NoSnapshotError, match=r"cannot resume: .*ckpt_00000020\.pt.*ckpt_00000010\.pt"):
        train.train(settings())
    assert os.path.exists(os.path.join(settings().out_dir, "ckpt_00000020.pt"))


def test_a_damaged_snapshot_given_by_path_is_refused(settings):
    """Its bytes are verified first, and no other is taken instead."""
    train.train(settings())
    path = os.path.join(settings().out_dir, "ckpt_00000010.pt")
    with open(path, "r+b") as file:
        file.truncate(1000)

    with pytest.raises(
        NoSnapshotError, match=r"cannot resume: .*ckpt_00000010\.pt is truncated.*lastgood list .*/run`"
    ):
        train.train(settings(resume=path))


def test_a_supervisor_s_choice_gone_bad_is_noted_and_an_older_one_taken(settings, steps, tmp_path, monkeypatch, capsys):
    """The record that the supervisor makes of the note says newest, chosen, depth and why."""
    train.train(settings())
    path = os.path.join(settings().out_dir, "ckpt_00000020.pt")
    with open(path, "r+b") as file:
        file.truncate(1000)
    notes = tmp_path / "notes.jsonl"
    told = {"SUPERVISED": "1", "RESUME_FROM": path, "CHECKPOINT_DIR": settings().out_dir, "NOTES": str(notes)}
    for name, value in (told | {"INCARNATION": "2"}).items():
        monkeypatch.setenv(f"LASTGOOD_{name}", value)

    assert 0 == train.train(settings())

    (note,) = map(json.loads, notes.read_text().splitlines())
    assert ("fallback.chosen", 20, 10, 1) == tuple(note[key] for key in ("note", "newest_step", "chosen_step", "depth"))
    assert [("ckpt_00000020.pt", "truncated")] == [(one["name"], one["verdict"]) for one in note["rejected"]]
    assert "ckpt_00000020.pt is truncated" in capsys.readouterr().out
    assert list(range(11, 21)) == list(steps(settings().out_dir, 2))


def test_something_else_in_out_dir_is_refused_with_the_cure(config, settings, capsys):
    """A sound torch file that is of no run: status 2, and where it is."""
    os.makedirs(settings().out_dir)
    torch.save({"weights": torch.zeros(3)}, os.path.join(settings().out_dir, "ckpt_00000005.pt"))

    assert 2 == main([config])

    told = capsys.readouterr().err
    assert (
        f"the newest good file in {settings().out_dir} is not a snapshot of this trainer or of nanoGPT: it has no model"
        in told
    )
    assert 1 == told.count("\n")


def test_a_file_that_is_no_run_s_snapshot_is_refused(settings, tmp_path):
    """A sound torch file of something else."""
    path = tmp_path / "other.pt"
    torch.save({"weights": torch.zeros(3)}, path)

    with pytest.raises(UsageError, match=r"other\.pt is not a snapshot of this trainer or of nanoGPT: it has no model"):
        train.train(settings(resume=str(path)))


def test_another_architecture_is_refused_in_one_line(config, capsys):
    """Status 2, the differing keys with both values, before a model is built."""
    assert 0 == main([config, "--max_iters=10"])
    capsys.readouterr()

    assert 2 == main([config, "--n_layer=3", "--n_embd=32"])

    lines = capsys.readouterr().err.splitlines()
    assert 1 == len(lines)
    assert "command line: n_layer: the snapshot is of another model" in lines[0]
    assert "n_layer is 2 there, 3 here, n_embd is 16 there, 32 here" in lines[0]


def test_data_with_more_tokens_than_the_snapshot_s_model_is_refused(config, capsys, tmp_path):
    """Tokens that the model has no row for."""
    assert 0 == main([config, "--max_iters=10"])
    text = tmp_path / "other.txt"
    text.write_text("".join(map(chr, range(32, 127))) * 10)
    path = Path(lastgood.latest_healthy(yaml.safe_load(Path(config).read_text())["out_dir"]))
    torch.save({key: value for key, value in torch.load(path).items() if key != "vocabulary"}, path)
    Path(f"{path}.sha256").unlink()
    capsys.readouterr()

    assert 2 == main([config, f"--data={text}", f"--data_dir={tmp_path / 'data'}"])

    error = capsys.readouterr().err
    assert "command line: data: the data has 95 different tokens, the snapshot's model knows only" in error


def test_data_of_another_alphabet_is_refused(config, settings, capsys, tmp_path):
    """Fewer characters are as wrong as more: each number would mean another one. Without a word on either side it goes on."""
    assert 0 == main([config, "--max_iters=10"])
    text = tmp_path / "other.txt"
    text.write_text("every letter moves up by one place or two\n" * 100)
    capsys.readouterr()

    assert 2 == main([config, f"--data={text}", f"--data_dir={tmp_path / 'data'}"])

    told = capsys.readouterr().err
    assert "data: its characters are not those that the snapshot's model knows, in their order; give the data" in told
    assert [10] == snapshots(settings().out_dir)


def spoilt(settings, change):
    """A run of ten steps whose snapshot somebody has changed; gives its path."""
    train.train(settings(max_iters=10))
    path = os.path.join(settings().out_dir, "ckpt_00000010.pt")
    payload = torch.load(path, weights_only=True)
    change(payload)
    torch.save(payload, path)
    os.remove(f"{path}.sha256")
    return path


def less_moments(payload):
    state = payload["optimizer"]["state"]
    payload["optimizer"]["state"] = {key: value for key, value in state.items() if key > 2}


INEXACT = {
    "no moments": (lambda payload: payload["optimizer"].update(state={}), r"moments of \d+ of the model's tensors"),
    "some moments": (less_moments, "moments of 3 of the model's tensors"),
    "halves": (lambda p: p.update(model={k: v.half() for k, v in p["model"].items()}), "weights in float32"),
}


@pytest.mark.parametrize("case", INEXACT)
def test_a_snapshot_with_parts_left_out_is_not_exact(case, settings, capsys):
    """What is in the optimizer's place without its moments, or less exact than it was, is named."""
    change, missing = INEXACT[case]
    spoilt(settings, change)

    assert 0 == train.train(settings(max_iters=12))

    assert re.search(f"resumed at step 10; restored: .*; missing: {missing}; exact: false", capsys.readouterr().out)


def swap_moments(payload):
    state = payload["optimizer"]["state"]
    state[0], state[2] = state[2], state[0]


OF_NO_RUN = {
    "a tensor": (None, "it holds a Tensor"),
    "a step that is none": (lambda p: p.update(iter_num=10.0), "its iter_num is 10.0"),
    "a negative step": (lambda p: p.update(iter_num=-5), "its iter_num is -5"),
    "a step in a tensor": (lambda p: p.update(iter_num=torch.tensor(10)), "its iter_num is tensor"),
    "no model": (lambda p: p.update(model=None), "its model is of no run"),
    "a list of models": (lambda p: p.update(model=[1]), "its model is of no run"),
    "no shape": (lambda p: p.update(model_args=None), "its model_args is of no run"),
    "a text for a size": (lambda p: p["model_args"].update(vocab_size="96"), "its model_args is of no run"),
    "no optimizer": (lambda p: p.update(optimizer=None), "its optimizer is of no run"),
    "groups that are none": (lambda p: p["optimizer"].update(param_groups="x"), "its optimizer is of no run"),
    "a loss that is none": (lambda p: p.update(best_val_loss="x"), "its best_val_loss is of no run"),
    "lists for mappings": (lambda p: p.update(config=[1], rng="x"), "its config, rng is of no run"),
    "a text for stretches": (lambda p: p.update(skipped="abc"), "its skipped is of no run"),
    "moments of other tensors": (swap_moments, "its optimizer's moments have other shapes than the weights"),
}


@pytest.mark.parametrize("case", OF_NO_RUN)
def test_a_payload_of_no_run_is_one_line(case, settings, config, capsys):
    """Whatever is in the place of what a run saves: a refusal that names it, no traceback, and nothing is trained or saved."""
    change, told = OF_NO_RUN[case]
    path = spoilt(settings, change or (lambda payload: None))
    if change is None:
        torch.save(torch.zeros(3), path)
    capsys.readouterr()

    assert main([config]) in (2, 3)

    error = capsys.readouterr().err
    assert told.replace("it holds a Tensor", "holds a Tensor") in error
    assert 1 == error.count("\n")
    assert [10] == snapshots(settings().out_dir)


def test_no_good_snapshot_is_status_3_as_of_latest(settings, config, capsys):
    """One line with what is wrong with each, and where to look."""
    spoilt(settings, lambda payload: None)
    with open(os.path.join(settings().out_dir, "ckpt_00000010.pt"), "r+b") as file:
        file.truncate(1000)
    capsys.readouterr()

    assert 3 == main([config])
    error = capsys.readouterr().err
    assert re.fullmatch(r"trainer: cannot resume: .*truncated.*; `lastgood list .*/run` says what is there\n", error)


def test_torch_s_advice_to_execute_a_file_is_not_passed_on(config, tmp_path, capsys):
    """What it will not import is named; that turning the guard off would help is not."""
    path = tmp_path / "trap.pt"
    torch.save({"model": argparse.Namespace(a=1)}, path)

    assert 3 == main([config, f"--resume={path}"])
    error = capsys.readouterr().err
    assert "argparse.Namespace" in error
    assert "weights_only" not in error
    assert f"`lastgood list {tmp_path}` says" in error


@pytest.mark.parametrize("supervised", ["", "1"])
def test_the_snapshot_in_the_environment_wins(supervised, settings, tmp_path):
    """LASTGOOD_RESUME_FROM is taken, whatever the settings say."""
    path = tmp_path / "ckpt_00000007.pt"
    path.touch()
    environ = {"LASTGOOD_RESUME_FROM": str(path), "LASTGOOD_SUPERVISED": supervised}

    assert str(path) == resume.where_to_start(settings(resume="never"), environ)


@pytest.mark.parametrize("given", [{}, {"LASTGOOD_RESUME_FROM": ""}])
def test_a_supervised_run_without_a_snapshot_starts_fresh(given, settings):
    """The supervisor has decided: what lies in out_dir does not matter."""
    assert "never" == resume.where_to_start(settings(resume="auto"), {"LASTGOOD_SUPERVISED": "1"} | given)


@pytest.mark.parametrize("way", ["env", "arguments", "never", "self"])
def test_a_path_in_the_settings_is_taken_under_a_supervisor_too(way, settings, tmp_path):
    """It may be where the run begins, or how the supervisor tells; `auto` is the trainer's own choice only if that is wanted."""
    path = tmp_path / "ckpt_00000007.pt"
    path.touch()
    environ = {"LASTGOOD_SUPERVISED": "1", "LASTGOOD_RESUME": way}

    assert str(path) == resume.where_to_start(settings(resume=str(path)), environ)
    assert ("auto" if way == "self" else "never") == resume.where_to_start(settings(), environ)


def test_without_a_supervisor_the_settings_decide(settings):
    """An empty variable is no variable."""
    assert "auto" == resume.where_to_start(settings(), {"LASTGOOD_RESUME_FROM": ""})


def test_a_missing_snapshot_in_the_environment_is_named(settings):
    """The variable is what the person has to look at."""
    with pytest.raises(UsageError, match="LASTGOOD_RESUME_FROM: /nowhere is not a file"):
        resume.where_to_start(settings(), {"LASTGOOD_RESUME_FROM": "/nowhere"})


def test_a_supervised_run_saves_where_the_supervisor_looks(settings, capsys):
    """The folder it names replaces out_dir, and a difference is said."""
    environ = {"LASTGOOD_SUPERVISED": "1", "LASTGOOD_CHECKPOINT_DIR": "/elsewhere"}

    assert "/elsewhere" == resume.follow_supervisor(settings(), environ).out_dir
    assert "supervised: snapshots go to /elsewhere, not to out_dir" in capsys.readouterr().out


def test_the_supervisor_s_folder_means_nothing_without_a_supervisor(settings, capsys):
    """A variable left over in a shell moves no snapshots."""
    chosen = settings()

    assert chosen == resume.follow_supervisor(chosen, {"LASTGOOD_CHECKPOINT_DIR": "/elsewhere"})
    assert "" == capsys.readouterr().out


def test_a_real_process_saves_at_sigterm_and_goes_on(config, tmp_path, losses):
    """TERM from outside while it trains: status 143 and a snapshot from which the next process goes on."""
    arguments = [sys.executable, "-W", "error", "-m", "trainer", config]
    with subprocess.Popen([*arguments, "--max_iters=1000000"], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("iter 5:"):
                process.send_signal(signal.SIGTERM)
                break
        process.stdout.read()

    assert 143 == process.returncode
    reached = max(losses(str(tmp_path / "run")))
    resumed = run([config, f"--max_iters={reached + 2}"])
    assert 0 == resumed.returncode
    assert f"resumed at step {reached};" in resumed.stdout
    assert reached + 2 == max(losses(str(tmp_path / "run")))

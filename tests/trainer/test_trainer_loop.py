"""The loop: what is printed, recorded and saved at which step, and how a run ends."""

import io
import json
import math
import os
import re
import resource
import signal
import sys

import pytest
import torch

import lastgood
from tests.trainer.comparing import payload_of
from trainer import metrics, saving, train
from trainer.data import batch_seed
from trainer.distributed import Ranks
from trainer.model import GPT, ModelArgs


def snapshots(out_dir):
    """Steps of the snapshots in a folder."""
    return sorted(int(name[5:13]) for name in os.listdir(out_dir) if re.fullmatch(r"ckpt_\d{8}\.pt", name))


def at_step(monkeypatch, step, act):
    """Do something in the midst of that step's update."""
    real = train.update

    def update(*arguments):
        result = real(*arguments)
        if arguments[-1] == step:
            act()
        return result

    monkeypatch.setattr(train, "update", update)


def run_of(chosen):
    """What a loop would share that starts with these settings."""
    splits, vocab_size, _ = train.open_data(chosen.data, chosen.block_size)
    model = GPT(ModelArgs(chosen.block_size, vocab_size, 1, 2, 16, 0.0, False))
    optimizer = model.configure_optimizer(0.1, 1e-3, (0.9, 0.99))
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    return train.Run(chosen, Ranks(), splits, model, model, optimizer, scaler, {"skipped": []}, [], None, None)


def spoil_loss(monkeypatch, steps, seed=1337):
    """Make the loss of these steps not a number."""
    real = train.loss_of
    seeds = {batch_seed(seed, "train", step, 0) for step in steps}

    def loss_of(*arguments):
        return real(*arguments) * (math.nan if arguments[-1] in seeds else 1.0)

    monkeypatch.setattr(train, "loss_of", loss_of)


# Update -> learning rate, with a peak of 1.0, 4 steps of warm-up and a least of 0.1 at update 13.
SCHEDULE = {1: 0.2, 2: 0.4, 4: 0.8, 5: 1.0, 9: 0.55, 13: 0.1, 14: 0.1, 1000: 0.1}


@pytest.mark.parametrize("step", SCHEDULE)
def test_the_learning_rate_warms_up_and_decays(step, settings):
    """The values of nanoGPT's schedule, its iteration 0 being our update 1."""
    chosen = settings(learning_rate=1.0, min_lr=0.1, warmup_iters=4, lr_decay_iters=12)

    assert SCHEDULE[step] == pytest.approx(train.learning_rate(chosen, step))


def test_without_decay_the_learning_rate_stays(settings):
    """decay_lr: false means no warm-up either, as in nanoGPT."""
    chosen = settings(learning_rate=0.5, decay_lr=False)

    assert [0.5, 0.5, 0.5] == [train.learning_rate(chosen, step) for step in (1, 10, 1000)]


def test_a_run_prints_nanogpts_lines(settings, capsys):
    """`iter` lines every log_interval and for the first step, `step` lines at every evaluation."""
    chosen = settings(eval_interval=10, log_interval=5)

    assert 0 == train.train(chosen)

    lines = capsys.readouterr().out.splitlines()
    iters = [re.fullmatch(r"iter (\d+): loss \d+\.\d{4}, time \d+\.\d\dms, mfu \d+\.\d\d%", line) for line in lines]
    evaluations = [re.fullmatch(r"step (\d+): train loss \d+\.\d{4}, val loss \d+\.\d{4}", line) for line in lines]
    assert ["1", "5", "10", "15", "20"] == [match[1] for match in iters if match]
    assert ["0", "10", "20"] == [match[1] for match in evaluations if match]


def test_a_run_learns(settings, losses):
    """The text is simple enough that twenty steps show."""
    chosen = settings(max_iters=60, lr_decay_iters=60)

    train.train(chosen)

    found = losses(chosen.out_dir)
    assert found[60] < found[1] - 0.3


def test_every_step_is_in_the_metrics(settings, steps, monkeypatch):
    """One line for each step with all that a report needs, the incarnation from the environment; after a save its seconds."""
    monkeypatch.setenv("LASTGOOD_INCARNATION", "7")
    chosen = settings(save_interval=8)

    train.train(chosen)

    lines = steps(chosen.out_dir)
    keys = {"step", "loss", "lr", "grad_norm", "tokens_per_second", "time", "incarnation", "exact"}
    assert list(range(1, 21)) == list(lines)
    assert [keys] * 20 == [set(line) - {"save_seconds"} for line in lines.values()]
    assert {9, 17} == {step for step, line in lines.items() if line.get("save_seconds", 0) > 0}
    assert {7} == {line["incarnation"] for line in lines.values()}
    assert train.learning_rate(chosen, 3) == lines[3]["lr"]


def test_snapshots_go_by_the_step_and_the_last_one_is_always_saved(settings):
    """Every save_interval steps, and at max_iters, whether or not anything was evaluated."""
    chosen = settings(save_interval=8, max_to_keep=5)

    train.train(chosen)

    assert [8, 16, 20] == snapshots(chosen.out_dir)
    assert ["healthy"] * 3 == [rung.verdict.kind for rung in lastgood.ladder(chosen.out_dir)]


def test_a_snapshot_holds_nanogpts_keys_and_ours(settings):
    """What nanoGPT's own scripts read, and what an exact resumption needs."""
    chosen = settings(eval_interval=10)

    train.train(chosen)

    payload = payload_of(chosen.out_dir, 20)
    nanogpts = {"model", "optimizer", "model_args", "iter_num", "best_val_loss", "config"}
    ours = {"format", "version", "run_id", "scheduler", "scaler", "rng", "data"}
    assert set() == (nanogpts | ours) - set(payload)
    assert {"seed": 1337, "step": 20} == {key: payload["data"][key] for key in ("seed", "step")}
    assert (20, 20) == (payload["iter_num"], payload["scheduler"]["step"])
    assert (chosen.n_embd, 16) == (payload["config"]["n_embd"], payload["model_args"]["n_embd"])
    assert payload["best_val_loss"] < 4


def test_a_snapshot_s_model_loads_into_a_fresh_one(settings):
    """Its model_args build the model, its state fits without exception."""
    chosen = settings()
    train.train(chosen)
    payload = payload_of(chosen.out_dir, 20)

    model = GPT(ModelArgs(**payload["model_args"]))
    model.load_state_dict(payload["model"], strict=True)

    state = model.state_dict()
    assert [] == [name for name in state if not torch.equal(state[name], payload["model"][name])]


def test_eval_only_evaluates_and_nothing_else(settings, capsys, steps):
    """Its line, status 0; no step, no save, whatever eval_interval is, at a snapshot's step and evaluated before or not."""
    chosen = settings(max_iters=10, eval_interval=5)
    train.train(chosen)
    told = capsys.readouterr().out

    assert 0 == train.train(settings(max_iters=20, eval_only=True))

    line = next(line for line in told.splitlines() if line.startswith("step 10: "))
    assert line == capsys.readouterr().out.splitlines()[-1]
    assert list(range(1, 11)) == list(steps(chosen.out_dir))
    assert [10] == snapshots(chosen.out_dir)


def test_eval_only_leaves_everything_as_it_is(settings, tmp_path):
    """Beside the run that trains there, which it does not disturb; in an empty folder it makes no file."""
    train.train(settings(max_iters=10))
    before = sorted(os.listdir(settings().out_dir))

    with lastgood.CheckpointManager(settings().out_dir) as manager:
        manager.hold()
        assert 0 == train.train(settings(eval_only=True))

    assert before == sorted(os.listdir(settings().out_dir))
    assert 0 == train.train(settings(eval_only=True, out_dir=str(tmp_path / "none")))
    assert not (tmp_path / "none").exists()


def test_an_evaluation_that_is_stopped_says_so_by_its_status(settings, capsys, monkeypatch):
    """143 and no line, for it is not known what the rest of the batches would have said."""
    real = train.loss_of

    def loss_of(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments)

    monkeypatch.setattr(train, "loss_of", loss_of)

    assert 143 == train.train(settings(eval_only=True, eval_iters=5))
    assert "val loss" not in capsys.readouterr().out


def test_evaluation_changes_nothing(settings, losses, tmp_path):
    """Evaluated every three steps or never, with dropout: the same losses to the last bit."""
    without = settings(dropout=0.1, out_dir=str(tmp_path / "without"))
    often = settings(dropout=0.1, out_dir=str(tmp_path / "often"), eval_interval=3, eval_iters=2)

    train.train(without)
    train.train(often)

    assert losses(without.out_dir) == losses(often.out_dir)


def test_accumulated_micro_batches_average(settings):
    """The gradient of two micro-batches is the mean of both, and so is the loss that is reported."""
    chosen = settings(gradient_accumulation_steps=2, grad_clip=0.0)
    run = run_of(chosen)
    model, tokens = run.model, run.splits["train"]
    parts = [train.loss_of(model, tokens, chosen, batch_seed(1337, "train", 1, micro)) for micro in (0, 1)]
    (sum(parts) / 2).backward()
    expected = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters())).item()
    model.zero_grad()

    loss, norm = train.update(run, 1)

    assert (sum(parts) / 2).item() == pytest.approx(loss, rel=1e-5)
    assert expected == pytest.approx(norm, rel=1e-4)


def test_an_update_with_a_loss_that_is_not_finite_changes_no_weight(settings, monkeypatch):
    """The weights in memory stay as good as those on disk."""
    spoil_loss(monkeypatch, {1})
    run = run_of(settings())
    before = {name: value.clone() for name, value in run.model.state_dict().items()}

    train.update(run, 1)

    assert [] == [name for name, value in run.model.state_dict().items() if not torch.equal(value, before[name])]


def test_a_loss_that_is_not_finite_ends_the_run(settings, capsys, steps, monkeypatch):
    """Status 65 and one line; the snapshot before it stays the newest, and the step is not recorded."""
    spoil_loss(monkeypatch, {14})
    chosen = settings()

    assert 65 == train.train(chosen)

    lines = capsys.readouterr().out.splitlines()
    assert ["diverged at step 14: loss nan, gradient norm nan; nothing is saved"] == lines[-1:]
    assert [10] == snapshots(chosen.out_dir)
    assert 13 == max(steps(chosen.out_dir))


def test_a_gradient_that_is_not_finite_ends_the_run(settings, monkeypatch):
    """A finite loss whose gradient is not would spoil the weights: nothing is updated, and nothing saved."""
    real = train.loss_of

    def loss_of(model, *arguments):
        root = (model.lm_head.weight.sum() * 0).abs().sqrt()  # 0, with a gradient of 0 / 0
        return real(model, *arguments) + root

    monkeypatch.setattr(train, "loss_of", loss_of)
    chosen = settings(save_interval=1)

    assert 65 == train.train(chosen)
    assert [] == snapshots(chosen.out_dir)


def test_one_such_loss_under_a_loss_scaler_is_a_skip(settings, steps, monkeypatch):
    """float16: the scaler leaves the weights alone, halves its scale, and the run goes on; a snapshot waits for a good loss."""
    spoil_loss(monkeypatch, {14})
    chosen = settings(dtype="float16", save_interval=1, max_to_keep=20)
    seen = []
    at_step(monkeypatch, 14, lambda: seen.append(None))
    real = train.update

    def update(run, step):
        seen.append(
            {name: value.clone() for name, value in run.plain_model.state_dict().items()} if step > 13 else None
        )
        return real(run, step)

    monkeypatch.setattr(train, "update", update)
    assert 0 == train.train(chosen)

    before, after = [weights for weights in seen if weights][:2]
    scales = [payload_of(chosen.out_dir, step)["scaler"]["scale"] for step in (13, 15)]
    assert (None, None) == (steps(chosen.out_dir)[14]["loss"], steps(chosen.out_dir)[14]["grad_norm"])
    assert scales[0] / 2 == scales[1]
    assert [] == [name for name in before if not torch.equal(before[name], after[name])]
    assert [13, 15] == [step for step in snapshots(chosen.out_dir) if 13 <= step <= 15]


def test_two_in_a_row_under_a_loss_scaler_are_divergence(settings, monkeypatch):
    """What a smaller scale does not cure is no matter of scale; nothing is saved between the two."""
    spoil_loss(monkeypatch, {14, 15})
    chosen = settings(dtype="float16", save_interval=1)

    assert 65 == train.train(chosen)
    assert 13 == max(snapshots(chosen.out_dir))


def test_a_scale_that_is_never_found_is_divergence(settings, steps, monkeypatch, capsys):
    """Finite losses whose gradients never are: the weights stand still, and after twenty such steps the run says so."""
    real = train.loss_of

    def loss_of(model, *arguments):
        return real(model, *arguments) + (model.lm_head.weight.sum() * 0).abs().sqrt()  # 0, with a gradient of 0 / 0

    monkeypatch.setattr(train, "loss_of", loss_of)
    chosen = settings(dtype="float16", max_iters=40)

    assert 65 == train.train(chosen)
    assert 19 == max(steps(chosen.out_dir))
    assert "diverged at step 20: loss " in capsys.readouterr().out


def test_a_run_does_not_end_well_on_a_loss_that_is_not_finite(settings, monkeypatch, capsys):
    """float16: at the last step there is no next one that could show it to have been a matter of scale."""
    spoil_loss(monkeypatch, {20})
    chosen = settings(dtype="float16")

    assert 65 == train.train(chosen)
    assert [10] == snapshots(chosen.out_dir)
    assert (
        "diverged at step 20: its loss is not finite, and it is the last one; nothing is saved"
        in capsys.readouterr().out
    )


def test_a_stop_after_such_a_loss_saves_nothing(settings, monkeypatch):
    """float16: the snapshot before it stays the newest, and the next start finds out whether it was a matter of scale."""
    spoil_loss(monkeypatch, {14})
    at_step(monkeypatch, 14, lambda: os.kill(os.getpid(), signal.SIGTERM))
    chosen = settings(dtype="float16")

    assert 143 == train.train(chosen)
    assert [10] == snapshots(chosen.out_dir)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_lets_the_step_finish_and_saves(number, status, settings, steps, monkeypatch):
    """The snapshot is of the step that was in hand, whatever the interval; the status tells the signal."""
    at_step(monkeypatch, 6, lambda: os.kill(os.getpid(), number))
    chosen = settings()

    assert status == train.train(chosen)

    assert [6] == snapshots(chosen.out_dir)
    assert 6 == max(steps(chosen.out_dir))
    assert lastgood.verify(os.path.join(chosen.out_dir, "ckpt_00000006.pt")).proven


def test_a_second_signal_does_not_cut_the_save_short(settings, monkeypatch):
    """An impatient second TERM and a Ctrl-C in the midst of the save change nothing."""

    class Impatient(lastgood.CheckpointManager):
        def save(self, *arguments, **options):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            return super().save(*arguments, **options)

    monkeypatch.setattr(saving, "CheckpointManager", Impatient)
    at_step(monkeypatch, 6, lambda: os.kill(os.getpid(), signal.SIGTERM))
    chosen = settings()

    assert 143 == train.train(chosen)
    assert lastgood.verify(os.path.join(chosen.out_dir, "ckpt_00000006.pt")).proven


def test_a_signal_before_the_first_step_saves_nothing(settings, monkeypatch):
    """There is nothing that was not there before."""
    real = train.load

    def load(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments)

    monkeypatch.setattr(train, "load", load)
    chosen = settings(eval_interval=1)

    assert 143 == train.train(chosen)
    assert [] == snapshots(chosen.out_dir)


def test_signals_are_handled_as_before_once_training_is_over(settings):
    """The loop gives the handlers back."""
    before = signal.getsignal(signal.SIGTERM)

    train.train(settings(max_iters=1))

    assert before is signal.getsignal(signal.SIGTERM)


# What a kill may leave of metrics.jsonl, and what must be left after opening it.
TORN = {
    "nothing": (b"", b""),
    "whole lines": (b'{"step": 1}\n{"step": 2}\n', b'{"step": 1}\n{"step": 2}\n'),
    "half a line behind": (b'{"step": 1}\n{"step"', b'{"step": 1}\n'),
    "only half a line": (b'{"step"', b""),
    "many lines": (b'{"step": 1}\n' * 1000 + b'{"st', b'{"step": 1}\n' * 1000),
}


@pytest.mark.parametrize("case", TORN)
def test_half_a_line_of_metrics_is_cut_off(case, tmp_path):
    """Every line that is left is whole, and the next one begins at the start of a line."""
    torn, expected = TORN[case]
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(torn)

    with metrics.open_metrics(str(tmp_path)) as opened:
        opened.record(9, 1.5, math.inf, 0.1, 10.0, False)

    content = path.read_bytes()
    assert expected == content[: len(expected)]
    assert (9, 1.5, None) == tuple(json.loads(content[len(expected) :])[key] for key in ("step", "loss", "grad_norm"))


def test_each_life_of_a_run_has_its_number(settings, steps):
    """Without a supervisor to say which, one more than the life before, so that repeated steps can be told apart."""
    train.train(settings(max_iters=5))
    train.train(settings(max_iters=10))
    train.train(settings())

    lives = {step: line["incarnation"] for step, line in steps(settings().out_dir).items()}
    assert [1] * 5 + [2] * 5 + [3] * 10 == [lives[step] for step in range(1, 21)]


@pytest.mark.parametrize("line", [b"[]", b"{}", b"what?", b'{"incarnation": null}', b"\xff"])
def test_a_life_after_lines_that_make_no_sense_is_the_first(line, tmp_path):
    """A file that somebody else has written to ends no run."""
    (tmp_path / "metrics.jsonl").write_bytes(line + b"\n")

    with metrics.open_metrics(str(tmp_path)) as opened:
        opened.record(1, 1.0, 1.0, 1.0, 1.0, True)

    assert 1 == json.loads((tmp_path / "metrics.jsonl").read_bytes().splitlines()[-1])["incarnation"]


def test_a_disk_that_fills_costs_lines_and_spoils_none(tmp_path, capsys):
    """A part of a line is taken back; it is said once how it began, and the next outage is said again."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with metrics.open_metrics(str(tmp_path)) as opened:
            for step in range(1, 10):
                if step in (3, 7):
                    size = os.path.getsize(tmp_path / "metrics.jsonl")
                    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, before[1]))
                if step == 5:
                    resource.setrlimit(resource.RLIMIT_FSIZE, before)
                opened.record(step, 1.0, 1.0, 0.1, 5.0, True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)

    assert [1, 2, 5, 6] == [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    told = [line for line in capsys.readouterr().out.splitlines() if "are lost" in line]
    assert ["warning: metrics from step 3 on are lost", "warning: metrics from step 7 on are lost"] == [
        line.partition(":")[0] + ":" + line.split(":")[1] for line in told
    ]


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(28, "No space left on device")])
def test_output_that_nobody_can_read_ends_no_run(error, settings, steps, monkeypatch):
    """`| head`, or a log on the disk that the snapshots fill: the run goes on, and saves."""

    class Full(io.StringIO):
        def flush(self):
            raise error

    monkeypatch.setattr(sys, "stdout", Full())

    assert 0 == train.train(settings())
    sys.stdout.close()
    assert 20 == max(steps(settings().out_dir))


@pytest.mark.parametrize(("changes", "line"), [
    ({}, "done at step 20, max_iters is 20; snapshot 20 is saved"),
    ({"max_iters": 1}, "done at step 1, max_iters is 1; snapshot 1 is saved"),
])  # fmt: skip
def test_a_run_says_how_it_ended(changes, line, settings, capsys):
    """The last line; also where there was nothing left to do."""
    for _ in range(2):
        assert 0 == train.train(settings(**changes))
        assert line == capsys.readouterr().out.splitlines()[-1]


def test_a_stop_says_what_is_saved(settings, capsys, monkeypatch):
    """Whoever pressed Ctrl-C sees that nothing is lost."""
    at_step(monkeypatch, 6, lambda: os.kill(os.getpid(), signal.SIGINT))
    train.train(settings())

    assert "stopped at step 6 by SIGINT; snapshot 6 is saved" == capsys.readouterr().out.splitlines()[-1]


def test_a_loss_is_recorded_in_full(tmp_path):
    """What is read back equals what was written, to the last bit."""
    loss = float(torch.tensor(1 / 3))

    with metrics.open_metrics(str(tmp_path)) as opened:
        opened.record(1, loss, 0.1 + 0.2, 1e-3, 10.0, True)

    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (loss, 0.1 + 0.2) == (line["loss"], line["grad_norm"])

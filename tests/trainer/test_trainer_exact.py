"""Promise 6: an interrupted run is the uninterrupted one, bit for bit, every loss and every weight."""

import os
import random
import signal

import pytest
import torch

import lastgood
from tests.trainer.comparing import differences, go_through, losses_of, payload_of, state_differs
from tests.trainer.conftest import small_values
from trainer import train
from trainer.model import GPT, ModelArgs

SECOND = {"LASTGOOD_INCARNATION": "2"}
CASES = {
    "plain": {},
    "dropout": {"dropout": 0.1},
    "accumulation": {"gradient_accumulation_steps": 4},
    "bfloat16": {"dtype": "bfloat16"},
    "float16 with its scaler": {"dtype": "float16"},
    "evaluation every 3": {"eval_interval": 3, "dropout": 0.1},
    "all of them, with biases": {
        "dropout": 0.1,
        "gradient_accumulation_steps": 4,
        "dtype": "bfloat16",
        "eval_interval": 3,
        "bias": True,
    },
}
KILLS = 10


def write_config(path, values):
    """A file of settings; gives its path as text."""
    path.write_text("".join(f"{key}: {value}\n" for key, value in values.items()))
    return str(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, prepared):
    """Each case in two folders: unbroken; and killed before update 11, then continued by a new process."""
    folder = tmp_path_factory.mktemp("exact")
    small = write_config(folder / "small.yaml", small_values(folder, prepared) | {"save_blocking": "true"})
    places, lives = {}, []
    for number, (case, changes) in enumerate(CASES.items()):
        straight, broken = (str(folder / f"{number}-{kind}") for kind in ("straight", "broken"))
        arguments = [small, *(f"--{key}={value}" for key, value in changes.items())]
        lives += [
            {"arguments": [*arguments, f"--out_dir={straight}"]},
            {"arguments": [*arguments, f"--out_dir={broken}"], "act": "KILL", "step": 11},
            {"arguments": [*arguments, f"--out_dir={broken}"], "environ": SECOND},
        ]
        places[case] = straight, broken
    results = go_through(*lives)
    assert [0, -signal.SIGKILL, 0] * len(CASES) == [result["statuses"][0] for result in results], results
    return places


@pytest.mark.parametrize("case", CASES)
def test_a_run_killed_at_step_10_of_20_is_exact(case, runs):
    """SIGKILL, a fresh process: losses 11 to 20 differ by 0.0, weights, moments and all else not by a bit."""
    straight, broken = runs[case]

    expected, found = losses_of(straight), losses_of(broken, 2)

    assert list(range(11, 21)) == sorted(found)
    assert [0.0] * 10 == [min(expected[step]) - min(found[step]) for step in range(11, 21)]
    assert [] == state_differs(straight, broken, 20)


def test_a_run_killed_ten_times_is_exact(tmp_path, prepared):
    """SIGKILL before ten drawn updates, wherever the run has got to: no loss ever recorded differs from the unbroken run's."""
    draw = random.Random(7)
    values = small_values(tmp_path, prepared) | {"dropout": 0.1, "eval_interval": 4, "save_interval": 2}
    small = write_config(tmp_path / "small.yaml", values | {"max_iters": 30})
    straight, broken = str(tmp_path / "straight"), str(tmp_path / "broken")
    lives = [{"arguments": [small, f"--out_dir={straight}"]}]
    for at in sorted(draw.sample(range(2, 31), KILLS)):
        lives.append({"arguments": [small, f"--out_dir={broken}"], "act": "KILL", "step": at})
    lives.append({"arguments": [small, f"--out_dir={broken}"]})

    statuses = [result["statuses"][0] for result in go_through(*lives)]

    assert [0, *[-signal.SIGKILL] * KILLS, 0] == statuses
    assert losses_of(straight) == losses_of(broken)
    assert [] == state_differs(straight, broken, 30)


@pytest.mark.parametrize("blocking", ["true", "false"])
def test_a_kill_in_the_midst_of_a_save_costs_nothing_but_steps(blocking, tmp_path, prepared):
    """SIGKILL when half of snapshot 10 is written: 5 is still good, is gone on from, and the run is exact."""
    values = small_values(tmp_path, prepared) | {"save_interval": 5, "save_blocking": blocking}
    small = write_config(tmp_path / "small.yaml", values)
    straight, broken = str(tmp_path / "straight"), str(tmp_path / "broken")

    results = go_through(
        {"arguments": [small, f"--out_dir={straight}"]},
        {"arguments": [small, f"--out_dir={broken}"], "act": "KILL-SAVE", "step": 10},
        {"arguments": [small, f"--out_dir={broken}"], "environ": SECOND},
    )

    assert [[0], [-signal.SIGKILL], [0]] == [result["statuses"] for result in results]
    assert "resumed at step 5;" in results[2]["outputs"][0]
    assert losses_of(straight) == losses_of(broken)
    assert [] == state_differs(straight, broken, 20)
    assert [] == [name for name in os.listdir(broken) if "partial" in name]


def test_a_state_dict_loaded_into_a_fresh_model_is_equal(tmp_path):
    """Saved from a GPT of two layers and loaded into another one on the CPU, every tensor is the same."""
    args = ModelArgs(block_size=16, vocab_size=32, n_layer=2, n_head=2, n_embd=16)
    model, fresh = GPT(args), GPT(args)
    optimizer = model.configure_optimizer(0.1, 1e-3, (0.9, 0.99))

    with lastgood.CheckpointManager(tmp_path) as manager:
        manager.save(1, model, optimizer)
        assert [] != differences(model.state_dict(), fresh.state_dict())
        manager.load_latest(fresh)

    assert [] == differences(model.state_dict(), fresh.state_dict())


def gradients_at(monkeypatch, step):
    """Collects the gradients that an update goes by, one dictionary for each time that step is done."""
    real, collected = train.update, []

    def update(run, now):
        zero_grad = run.optimizer.zero_grad

        def keep_then_zero(**options):
            collected.append({name: value.grad.clone() for name, value in run.model.named_parameters()})
            zero_grad(**options)

        if now == step:
            monkeypatch.setattr(run.optimizer, "zero_grad", keep_then_zero)
        result = real(run, now)
        run.optimizer.zero_grad = zero_grad
        return result

    monkeypatch.setattr(train, "update", update)
    return collected


def test_step_6_after_a_resume_has_the_unbroken_run_s_loss_and_gradients(settings, losses, tmp_path, monkeypatch):
    """Ten steps at a stretch, and five, then five: loss and every gradient of step 6 are the same."""
    gradients = gradients_at(monkeypatch, 6)
    straight = settings(max_iters=10, dropout=0.1, out_dir=str(tmp_path / "straight"))
    train.train(straight)

    train.train(settings(max_iters=5, dropout=0.1))
    train.train(settings(max_iters=10, dropout=0.1))

    unbroken, resumed = gradients
    assert losses(straight.out_dir)[6] == losses(settings().out_dir)[6]
    assert [] == differences(unbroken, resumed)
    assert [] == [name for name, value in unbroken.items() if not value.any()]


def test_without_the_optimizer_state_the_loss_spikes(settings, losses, tmp_path, monkeypatch):
    """Why it is saved: with fresh moments the first updates are far too long, and the loss jumps."""
    changes = {"learning_rate": 3e-2, "min_lr": 3e-2, "max_iters": 100, "lr_decay_iters": 1000, "batch_size": 8}
    train.train(settings(**changes))
    changes["max_iters"] = 110
    train.train(settings(**changes, out_dir=str(tmp_path / "with"), resume=settings().out_dir + "/ckpt_00000100.pt"))
    real = train.restore

    def restore(payload, model, optimizer, *rest):
        return real(payload | {"optimizer": optimizer.state_dict()}, model, optimizer, *rest)

    monkeypatch.setattr(train, "restore", restore)
    train.train(settings(**changes, out_dir=str(tmp_path / "without"), resume=settings().out_dir + "/ckpt_00000100.pt"))

    kept, lost = losses(str(tmp_path / "with")), losses(str(tmp_path / "without"))
    assert kept[101] == lost[101]
    assert max(kept.values()) + 0.2 < max(lost.values())


def test_an_interruption_in_the_midst_of_a_save_leaves_no_partly_written_target(settings, monkeypatch):
    """A signal whose handler raises, when half is written: the old snapshot is as it was, and the new one not there."""
    train.train(settings(max_iters=10))
    run_dir = settings().out_dir
    before = sorted(os.listdir(run_dir))
    payload = payload_of(run_dir, 10)
    real = torch.save

    def save(content, file):
        real(content, file)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(torch, "save", save)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for step in (10, 11):
        with pytest.raises(KeyboardInterrupt):
            lastgood.save_checkpoint_atomic({"iter_num": step}, os.path.join(run_dir, f"ckpt_{step:08d}.pt"))

    assert before == sorted(os.listdir(run_dir))
    assert [] == differences(payload, payload_of(run_dir, 10))
    assert lastgood.verify(os.path.join(run_dir, "ckpt_00000010.pt")).proven

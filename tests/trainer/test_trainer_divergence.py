"""A loss that is not finite: never saved over good state, told by status 65, and got round by skipping data."""

import json
import math
import os

import pytest
import torch

from tests.trainer.comparing import losses_of, metrics_of, payload_of, state_differs
from tests.trainer.test_trainer_loop import snapshots
from trainer import resume, train
from trainer.__main__ import main
from trainer.data import batch_seed
from trainer.settings import UsageError

SKIP = "LASTGOOD_SKIP_STEPS"


def poison(monkeypatch, step, seed=1337):
    """Make that step's own batch, and no other, one whose loss is not a number."""
    real, poisonous = train.loss_of, batch_seed(seed, "train", step, 0)

    def loss_of(*arguments):
        return real(*arguments) * (math.nan if arguments[-1] == poisonous else 1.0)

    monkeypatch.setattr(train, "loss_of", loss_of)


def test_weights_that_are_not_finite_are_never_saved(settings, monkeypatch, capsys):
    """A finite loss whose update overflowed a weight: status 65, and the snapshot before it stays the newest."""
    real = train.update

    def update(run, step):
        result = real(run, step)
        if step == 20:
            with torch.no_grad():
                run.plain_model.transformer.ln_f.weight[3] = math.inf
        return result

    monkeypatch.setattr(train, "update", update)

    assert 65 == train.train(settings())
    assert [10] == snapshots(settings().out_dir)
    assert "diverged at step 20: weights are not finite; nothing is saved" in capsys.readouterr().out


def test_a_loss_scaler_s_skip_does_not_save_spoiled_weights(settings, monkeypatch):
    """Under float16 one non-finite loss is no divergence; if it came of the weights, no snapshot is made of them."""
    real = train.update

    def update(run, step):
        result = real(run, step)
        if step == 14:
            with torch.no_grad():
                run.plain_model.lm_head.weight[0, 0] = math.nan
        return result

    monkeypatch.setattr(train, "update", update)

    assert 65 == train.train(settings(dtype="float16", save_interval=5))
    assert [5, 10] == snapshots(settings().out_dir)


def test_skipped_data_gets_a_run_past_its_poison(settings, monkeypatch, capsys):
    """65 at step 14; told to skip 13 to 15 the run goes on from 10, says so and ends; the other steps have their own data."""
    poison(monkeypatch, 14)
    seen = []
    real = train.loss_of
    monkeypatch.setattr(train, "loss_of", lambda *arguments: (seen.append(arguments[-1]), real(*arguments))[1])
    assert 65 == train.train(settings())
    assert [10] == snapshots(settings().out_dir)
    seen.clear()
    capsys.readouterr()

    monkeypatch.setenv(SKIP, "13-15")
    assert 0 == train.train(settings())

    out = capsys.readouterr().out
    assert "skipping the data of steps 13 to 15: other batches take their place" in out
    own = [batch_seed(1337, "train", step, 0) for step in range(11, 21)]
    assert [11, 12, 16, 17, 18, 19, 20] == [step for step in range(11, 21) if own[step - 11] in seen]
    assert 10 == len(set(seen))
    assert [[13, 15]] == payload_of(settings().out_dir, 20)["skipped"]


def test_a_run_that_skips_is_resumed_exactly(settings, monkeypatch, tmp_path, capsys):
    """The snapshot knows what is skipped: resumed in the midst of it, told again or not, the run is the unbroken one."""
    monkeypatch.setenv(SKIP, "8-14")
    straight = settings(out_dir=str(tmp_path / "straight"), dropout=0.1)
    assert 0 == train.train(straight)
    assert 0 == train.train(settings(max_iters=10, dropout=0.1))
    capsys.readouterr()

    monkeypatch.delenv(SKIP)
    assert 0 == train.train(settings(dropout=0.1))

    out = capsys.readouterr().out
    assert "skipping the data of steps 8 to 14" in out
    assert "warning" not in out
    assert losses_of(straight.out_dir) == losses_of(settings().out_dir)
    assert [] == state_differs(straight.out_dir, settings().out_dir, 20)


def test_a_stretch_told_again_is_the_same_and_told_twice_another(settings, monkeypatch):
    """A restart is told all over again, and must not draw anew; a stretch that is still bad is listed once more."""
    own = batch_seed(1337, "train", 9, 0)
    drawn = []
    for told in ("8-10", "8-10", "8-10,8-10"):
        monkeypatch.setenv(SKIP, told)
        seeds = []
        monkeypatch.setattr(train, "batch_seed", lambda *a, seeds=seeds: (seeds.append(batch_seed(*a)), seeds[-1])[1])
        train.train(settings(max_iters=9, resume="never"))
        drawn.append(seeds[-1])

    assert drawn[0] == drawn[1]
    assert 3 == len({own, drawn[0], drawn[2]})
    assert [[8, 10], [8, 10]] == resume.stretches_told({"skipped": [[8, 10]]}, {SKIP: "8-10,8-10"})
    assert [[2, 3], [8, 10]] == resume.stretches_told({"skipped": [[8, 10]]}, {SKIP: "2-3,8-10"})


def test_what_is_told_to_skip_is_no_longer_exact(settings, monkeypatch, capsys):
    """It is not the run that would have gone on: said at the resumption, in every line and every snapshot from there on."""
    train.train(settings(max_iters=10))
    capsys.readouterr()
    monkeypatch.setenv(SKIP, "12-13")

    train.train(settings(max_iters=15))
    monkeypatch.delenv(SKIP)
    train.train(settings())

    out = capsys.readouterr().out
    assert 2 == out.count("missing: nothing; exact: false")
    assert 1 == out.count("warning: not exactly the run as it would have gone on: LASTGOOD_SKIP_STEPS is new")
    exact = {line["step"]: line["exact"] for line in metrics_of(settings().out_dir)}
    assert [True] * 10 + [False] * 10 == [exact[step] for step in range(1, 21)]
    assert [None, 10] == [payload_of(settings().out_dir, step)["inexact_since"] for step in (10, 20)]


def test_a_stretch_that_is_over_changes_nothing(settings, monkeypatch, capsys):
    """Still told long after, it is neither said nor held against the run."""
    train.train(settings(max_iters=10))
    capsys.readouterr()
    monkeypatch.setenv(SKIP, "3-9")

    train.train(settings())

    out = capsys.readouterr().out
    assert "exact: true" in out
    assert "skipping" not in out


@pytest.mark.parametrize(
    ("words", "status"),
    [(["--learning_rate=1e30", "--grad_clip=0"], 65), (["--n_layers=3"], 2)],
    ids=["diverged", "usage"],
)
def test_the_supervisor_is_told_of_what_a_launcher_would_hide(words, status, config, settings, tmp_path, monkeypatch):
    """torchrun ends with 1 whatever its ranks ended with; a note says diverged, or usage, and nothing else does."""
    notes = tmp_path / "notes.jsonl"
    monkeypatch.setenv("LASTGOOD_NOTES", str(notes))
    monkeypatch.setenv("LASTGOOD_CHECKPOINT_DIR", settings().out_dir)
    os.makedirs(settings().out_dir)

    assert 0 == main([config, "--max_iters=3"])
    assert not notes.exists()
    assert status == main([config, *words, "--warmup_iters=0", "--dtype=bfloat16"])
    (note,) = map(json.loads, notes.read_text().splitlines())
    assert ("trainer.ending", status) == (note["note"], note["status"])
    assert (status == 65) == (note["step"] is not None)


@pytest.mark.parametrize("told", ["5", "5-", "-5", "5-4", "0-3", "a-b", "1-2;3-4", "1 - 2"])
def test_a_stretch_that_is_none_is_one_line(told, config, capsys, monkeypatch):
    """Status 2, the variable, what it holds and how it is written."""
    monkeypatch.setenv(SKIP, told)

    assert 2 == main([config])

    lines = capsys.readouterr().err.splitlines()
    word = told.split(",")[0]
    assert [f"trainer: {SKIP}: {word!r} is not understood; write first-last, such as 120-140, or unset it"] == lines


def test_nothing_told_skips_nothing(settings):
    """An empty variable is no variable."""
    assert [] == resume.stretches_told({}, {SKIP: ""})
    assert [] == resume.stretches_told({}, {})
    with pytest.raises(UsageError, match="is not understood"):
        resume.stretches_told({}, {SKIP: "1-2,,3-4,x"})

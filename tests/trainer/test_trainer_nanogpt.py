"""Both ways: what nanoGPT's scripts need is in our snapshots, and a nanoGPT snapshot is gone on with.

nanoGPT's part is played by code written here from its documented payload: six keys, its names, its order of parameters.
"""

import contextlib
import os
import pickle
import shutil

import pytest
import torch

from tests.trainer import plain_gpt
from trainer import data, train
from trainer.model import GPT, ModelArgs
from trainer.resume import SCHEDULE_KEYS
from trainer.settings import UsageError

LAYERS = HEADS = 2
NANOGPT_ARGUMENTS = {"n_layer", "n_head", "n_embd", "block_size", "bias", "vocab_size", "dropout"}


def as_nanogpt_reads(path):
    """What its scripts take from a snapshot: the arguments, the state without torch.compile's prefix, the rest as it is."""
    payload = torch.load(path, map_location="cpu", weights_only=True)
    state = {name.removeprefix("_orig_mod."): value for name, value in payload["model"].items()}
    return payload["model_args"], state, payload


def plain_step(state, optimizer, tokens, settings, step):
    """nanoGPT's update of a plain state, on the batch that our trainer takes at that step; the loss."""
    seed = data.batch_seed(settings.seed, "train", step, 0)
    inputs, targets = data.batch(tokens, settings.batch_size, settings.block_size, seed)
    for group in optimizer.param_groups:
        group["lr"] = train.learning_rate(settings, step)
    loss = plain_gpt.loss_of(state, inputs, targets, LAYERS, HEADS)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(state.values(), settings.grad_clip)
    optimizer.step()
    return loss.item()


def plain_optimizer(state, settings):
    """nanoGPT's optimizer with a run's settings."""
    return plain_gpt.optimizer_of(
        state, settings.weight_decay, settings.learning_rate, (settings.beta1, settings.beta2)
    )


def train_tokens(settings):
    """The tokens that a run is trained on, and how many different ones there are."""
    splits, vocabulary, _ = data.open_data(settings.data, settings.block_size)
    return splits["train"], vocabulary


@pytest.fixture
def nanogpts(settings, values):
    """Writes the snapshot of a nanoGPT run after twelve steps; also its state and optimizer, to go on with."""

    def write(path, prefix="", masks=False, fused=None, **changes):
        chosen = settings(**changes)
        tokens, vocabulary = train_tokens(chosen)
        args = {name: getattr(chosen, name) for name in NANOGPT_ARGUMENTS - {"vocab_size"}} | {"vocab_size": vocabulary}
        torch.manual_seed(5)
        state = plain_gpt.parameters_of(GPT(ModelArgs(**args)).state_dict())
        optimizer = plain_optimizer(state, chosen)
        for step in range(1, 13):
            plain_step(state, optimizer, tokens, chosen, step)
        kept = {name: value.detach() for name, value in state.items()}
        kept["lm_head.weight"] = kept["transformer.wte.weight"]
        if masks:
            kept |= {f"transformer.h.{n}.attn.bias": torch.ones(1, 1, 16, 16).tril() for n in range(LAYERS)}
        moments = optimizer.state_dict()
        for group in moments["param_groups"]:
            group["fused"] = fused
        payload = {
            "model": {prefix + name: value for name, value in kept.items()},
            "optimizer": moments,
            "model_args": args,
            "iter_num": 12,
            "best_val_loss": torch.tensor(2.5),
            "config": {key: getattr(chosen, key) for key in ("batch_size", *SCHEDULE_KEYS)}
            | {"dataset": "small_char", "compile": bool(prefix)},
        }
        torch.save(payload, path)
        return state, optimizer, chosen

    return write


def offer_to_nanogpt(out_dir, step, make=os.symlink):
    """What a person does, for its scripts open ckpt.pt and nothing else: a link, or a copy; gives its path."""
    path = os.path.join(out_dir, "ckpt.pt")
    with contextlib.chdir(out_dir):
        make(f"ckpt_{step:08d}.pt", "ckpt.pt")
    return path


def test_our_snapshot_has_what_nanogpts_scripts_read(settings):
    """Its arguments and no others, its names, plain values; a model of plain tensor operations computes with it at once."""
    chosen = settings(max_iters=3)
    train.train(chosen)

    args, state, payload = as_nanogpt_reads(offer_to_nanogpt(chosen.out_dir, 3))

    assert set(args) == NANOGPT_ARGUMENTS
    assert (3, float, dict) == (payload["iter_num"], type(payload["best_val_loss"]), type(payload["config"]))
    ours = GPT(ModelArgs(**args))
    assert set(ours.state_dict()) == set(state)
    ours.load_state_dict(state)
    tokens = torch.arange(16)[None]
    expected = plain_gpt.logits_of(state, tokens, LAYERS, HEADS)
    assert torch.allclose(expected, ours(tokens, tokens)[0], atol=1e-5)


@pytest.mark.parametrize("make", [os.symlink, shutil.copy2], ids=["link", "copy"])
@pytest.mark.parametrize("step", [5, 10])
def test_what_is_offered_to_nanogpt_does_not_turn_our_resume(step, make, settings, losses, tmp_path, capsys):
    """Be it the newest or an older one: a run goes on from the newest, and so does the next; the old one stays."""
    straight = settings(out_dir=str(tmp_path / "straight"), dropout=0.1)
    train.train(straight)
    train.train(settings(max_iters=10, save_interval=5, max_to_keep=2, dropout=0.1))
    path = offer_to_nanogpt(settings().out_dir, step, make)
    capsys.readouterr()

    for last in (15, 20):
        train.train(settings(max_iters=last, save_interval=5, max_to_keep=2, dropout=0.1))

    lines = [line.partition(";")[0] for line in capsys.readouterr().out.splitlines()]
    assert ["resumed at step 10", "resumed at step 15"] == [line for line in lines if line.startswith("resumed")]
    assert losses(straight.out_dir) == losses(settings().out_dir)
    assert step == as_nanogpt_reads(path)[2]["iter_num"]


def test_nanogpts_sample_finds_the_characters(settings, prepared, monkeypatch, tmp_path):
    """`data/` joined with the config's dataset, from wherever it is called, is the folder with meta.pkl."""
    chosen = settings(max_iters=1)
    train.train(chosen)
    payload = as_nanogpt_reads(os.path.join(chosen.out_dir, "ckpt_00000001.pt"))[2]
    monkeypatch.chdir(tmp_path)

    with open(os.path.join("data", payload["config"]["dataset"], "meta.pkl"), "rb") as file:
        meta = pickle.load(file)

    assert meta["vocab_size"] == len(meta["stoi"]) == len(meta["itos"]) == payload["model_args"]["vocab_size"]
    assert "def" == "".join(meta["itos"][meta["stoi"][character]] for character in "def")


def test_nanogpt_goes_on_from_our_snapshot(settings, losses):
    """Its optimizer takes our moments in our order: the losses of the next steps are those that we have ourselves."""
    chosen = settings(bias=True)
    train.train(chosen)
    _, state, payload = as_nanogpt_reads(os.path.join(chosen.out_dir, "ckpt_00000010.pt"))

    state = plain_gpt.parameters_of(state)
    optimizer = plain_optimizer(state, chosen)
    optimizer.load_state_dict(payload["optimizer"])
    tokens = train_tokens(chosen)[0]
    found = {step: plain_step(state, optimizer, tokens, chosen, step) for step in range(11, 21)}

    assert found == pytest.approx({step: losses(chosen.out_dir)[step] for step in found}, abs=1e-5)


PREFIXES = ["", "_orig_mod.", "module.", "_orig_mod.module.", "module._orig_mod."]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("where", ["given", "in out_dir"])
def test_we_go_on_from_nanogpts_snapshot(prefix, where, nanogpts, settings, values, losses, tmp_path, capsys):
    """Whatever wrapped the model: the next losses and the last weights are those of its own loop on the same batches."""
    os.makedirs(values["out_dir"])
    path = str(tmp_path / "ckpt.pt" if where == "given" else os.path.join(values["out_dir"], "ckpt.pt"))
    state, optimizer, chosen = nanogpts(path, prefix, max_iters=15)

    assert 0 == train.train(settings(max_iters=15, resume=path if where == "given" else "auto"))

    tokens = train_tokens(chosen)[0]
    expected = {step: plain_step(state, optimizer, tokens, chosen, step) for step in (13, 14, 15)}
    assert expected == pytest.approx(losses(chosen.out_dir), abs=1e-5)
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("resumed at step 12; "))
    assert "missing: random numbers, data position" in line
    found = as_nanogpt_reads(os.path.join(chosen.out_dir, "ckpt_00000015.pt"))
    assert 2.5 == found[2]["best_val_loss"]
    assert [] == [name for name in state if not torch.allclose(state[name], found[1][name], atol=1e-4)]


@pytest.mark.parametrize("fused", [True, False, None])
def test_masks_and_fused_switches_of_other_machines_do_not_matter(fused, nanogpts, settings, tmp_path):
    """nanoGPT on an old torch kept its causal masks, and notes whether its optimizer was fused: ours stays as it is."""
    path = str(tmp_path / "ckpt.pt")
    nanogpts(path, "_orig_mod.", masks=True, fused=fused)

    assert 0 == train.train(settings(max_iters=13, resume=path))

    payload = as_nanogpt_reads(os.path.join(settings().out_dir, "ckpt_00000013.pt"))[2]
    ours = GPT(ModelArgs(**payload["model_args"])).configure_optimizer(0.1, 1e-3, (0.9, 0.99))
    assert ours.param_groups[0]["fused"] == payload["optimizer"]["param_groups"][0]["fused"]
    assert not [name for name in payload["model"] if name.endswith(".attn.bias")]


def test_moments_of_other_parameters_are_refused(nanogpts, settings, tmp_path):
    """An optimizer in another order would put every moment on the wrong weight: one line, and nothing is trained."""
    path = str(tmp_path / "ckpt.pt")
    nanogpts(path)
    payload = torch.load(path, weights_only=True)
    payload["optimizer"]["param_groups"].reverse()
    torch.save(payload, path)

    with pytest.raises(UsageError, match="the snapshot does not fit: its optimizer has other parameters"):
        train.train(settings(resume=path))


def test_parameters_are_in_nanogpts_order():
    """Embeddings, block after block, the last norm; the shared matrix once: moments are stored by their number."""
    with torch.device("meta"):
        model = GPT(ModelArgs(n_layer=2, n_head=1, n_embd=4, bias=True))
    inner = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    kinds = ("weight", "bias")
    blocks = [f"transformer.h.{layer}.{name}.{kind}" for layer in (0, 1) for name in inner for kind in kinds]
    ends = [f"transformer.ln_f.{kind}" for kind in kinds]

    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = model.configure_optimizer(0.1, 1e-3, (0.9, 0.99)).param_groups

    assert ["transformer.wte.weight", "transformer.wpe.weight", *blocks, *ends] == list(names.values())
    matrices = [name for name in names.values() if name.endswith(".weight") and "ln_" not in name]
    assert matrices == [names[parameter] for parameter in groups[0]["params"]]
    assert [n for n in names.values() if n not in matrices] == [names[parameter] for parameter in groups[1]["params"]]

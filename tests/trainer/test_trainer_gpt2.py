"""GPT-2's weights from a local folder: names, turned matrices, shards, and one line for whatever is wrong."""

import dataclasses
import json
import os
import struct

import pytest
import torch

from tests.trainer import plain_gpt
from trainer import gpt2, settings, train
from trainer.__main__ import main
from trainer.model import GPT, ModelArgs
from trainer.settings import Settings, UsageError

WIDTH, LAYERS, HEADS = 8, 2, 2
POSITIONS = 16
IN_FILE = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.int64: "I64"}


@pytest.fixture(autouse=True)
def small_gpt2(monkeypatch):
    """GPT-2 as published, but for its size: two blocks of width eight, and 16 positions."""
    shape = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH, "bias": True, "block_size": POSITIONS}
    monkeypatch.setitem(settings.GPT2_SHAPES, "gpt2", shape)


@pytest.fixture
def bpe_data(tmp_path):
    """A folder of tokens of GPT-2's encoding, as nanoGPT prepares it: without a meta file."""
    folder = tmp_path / "bpe"
    folder.mkdir()
    for split in ("train", "val"):
        tokens = torch.randint(50257, (300,), generator=torch.Generator().manual_seed(2))
        (folder / f"{split}.bin").write_bytes(tokens.to(torch.uint16).numpy().tobytes())
    return str(folder)


@pytest.fixture
def values(values, bpe_data, tmp_path):
    """Settings of a run that begins with GPT-2's weights."""
    kept = {name: value for name, value in values.items() if name not in ("n_layer", "n_head", "n_embd")}
    return kept | {
        "data": bpe_data,
        "block_size": 8,
        "init_from": "gpt2",
        "gpt2_dir": str(tmp_path / "gpt2"),
        "max_iters": 2,
    }


@pytest.fixture
def config(tmp_path, values):
    """The same settings as a YAML file."""
    path = tmp_path / "gpt2.yaml"
    path.write_text(json.dumps(values))
    return str(path)


def published_weights(dtype=torch.float32):
    """Random weights under the names and in the shapes that the published files have."""
    draw = torch.Generator().manual_seed(1)
    shapes = {"wte.weight": (50257, WIDTH), "wpe.weight": (POSITIONS, WIDTH)}
    for layer in range(LAYERS):
        for name, inputs, outputs in (
            ("attn.c_attn", WIDTH, 3 * WIDTH),
            ("attn.c_proj", WIDTH, WIDTH),
            ("mlp.c_fc", WIDTH, 4 * WIDTH),
            ("mlp.c_proj", 4 * WIDTH, WIDTH),
        ):
            shapes |= {f"h.{layer}.{name}.weight": (inputs, outputs), f"h.{layer}.{name}.bias": (outputs,)}
        shapes |= {f"h.{layer}.ln_{i}.{kind}": (WIDTH,) for i in (1, 2) for kind in ("weight", "bias")}
        shapes[f"h.{layer}.attn.bias"] = (1, 1, POSITIONS, POSITIONS)
    shapes |= {f"ln_f.{kind}": (WIDTH,) for kind in ("weight", "bias")}
    return {name: (torch.randn(shape, generator=draw) * 0.3).to(dtype) for name, shape in shapes.items()}


def write_safetensors(path, tensors):
    """A file of the format, written from its description: length of the header, header, bytes."""
    header, content = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        places = [len(content), len(content) + len(raw)]
        header[name] = {"dtype": IN_FILE[tensor.dtype], "shape": list(tensor.shape), "data_offsets": places}
        content += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)


def write_folder(folder, weights, shards=1):
    """A folder as Hugging Face keeps a model, in one file or in several with an index."""
    folder.mkdir(exist_ok=True)
    names = list(weights)
    if shards == 1:
        write_safetensors(folder / "model.safetensors", weights)
        return
    where = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: weights[name] for name in names[shard::shards]}
        where |= dict.fromkeys(part, file)
        write_safetensors(folder / file, part)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def loaded(settings):
    """A model with the folder's weights."""
    names = [field.name for field in dataclasses.fields(ModelArgs) if field.name != "vocab_size"]
    model = GPT(ModelArgs(**{name: getattr(settings, name) for name in names}, vocab_size=50257))
    gpt2.load_gpt2(model, settings)
    return model.eval()


def gpt2_settings(values, **changes):
    """Settings with GPT-2's shape filled in, as they are when read from a file."""
    return settings.from_values(values | changes)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("prefix", "shards"), [("", 1), ("transformer.", 1), ("", 3)])
def test_the_model_computes_with_the_folder_s_weights(dtype, prefix, shards, values, tmp_path):
    """With and without prefix, in one file and in several, in any dtype: its logits are those of the stored matrices."""
    weights = published_weights(dtype)
    extra = {"lm_head.weight": weights["wte.weight"]} if prefix else {}
    write_folder(tmp_path / "gpt2", {prefix + name: value for name, value in weights.items()} | extra, shards)
    tokens = torch.tensor([[1, 50256, 7, 7, 30000]])

    logits = loaded(gpt2_settings(values))(tokens, tokens)[0]

    plain = {f"transformer.{name}": value.float() for name, value in weights.items()}
    turned = {name: v.T if v.dim() == 2 and ".h." in name else v for name, v in plain.items()}
    assert torch.allclose(plain_gpt.logits_of(turned, tokens, LAYERS, HEADS), logits, atol=1e-5)


def test_positions_behind_the_block_are_left_out(values, tmp_path):
    """block_size may be smaller than GPT-2's: the first positions are kept as they are."""
    weights = published_weights()
    write_folder(tmp_path / "gpt2", weights)

    model = loaded(gpt2_settings(values, block_size=5))

    assert torch.equal(weights["wpe.weight"][:5], model.transformer.wpe.weight)


def test_a_run_starts_from_the_weights_and_goes_on_without_them(values, tmp_path, capsys):
    """At a learning rate of zero they are in the snapshot as they were; once it is there, nobody asks for the folder."""
    weights = published_weights()
    write_folder(tmp_path / "gpt2", weights)
    first = gpt2_settings(values, learning_rate=0.0, min_lr=0.0)
    assert 0 == train.train(first)
    assert f"weights of gpt2 from {tmp_path / 'gpt2'}" in capsys.readouterr().out.splitlines()
    (tmp_path / "gpt2" / "model.safetensors").unlink()

    assert 0 == train.train(gpt2_settings(values, max_iters=3))

    before, after = (
        torch.load(os.path.join(first.out_dir, f"ckpt_0000000{step}.pt"), weights_only=True) for step in (2, 3)
    )
    assert torch.equal(weights["h.1.mlp.c_fc.weight"].T, before["model"]["transformer.h.1.mlp.c_fc.weight"])
    assert not torch.equal(before["model"]["lm_head.weight"], after["model"]["lm_head.weight"])
    assert (50257, LAYERS, True) == tuple(after["model_args"][key] for key in ("vocab_size", "n_layer", "bias"))


def test_from_scratch_the_same_data_gets_a_rounder_vocabulary(values):
    """As in nanoGPT, whose speed depends on it: 50304 is a multiple of 64, and no token is ever beyond 50256."""
    chosen = Settings(**values | {"init_from": "scratch", "n_embd": 4, "n_head": 1, "max_iters": 1})

    assert 0 == train.train(chosen)

    payload = torch.load(os.path.join(chosen.out_dir, "ckpt_00000001.pt"), weights_only=True)
    assert (50304, None) == (payload["model_args"]["vocab_size"], payload["vocabulary"])


def test_left_out_keys_are_gpt2s(values):
    """The shape need not be written down, and all of GPT-2's positions are used unless fewer are asked for."""
    del values["block_size"]

    chosen = gpt2_settings(values)

    assert (LAYERS, HEADS, WIDTH, POSITIONS, True) == (
        chosen.n_layer,
        chosen.n_head,
        chosen.n_embd,
        chosen.block_size,
        chosen.bias,
    )


def broken_folder(case, folder):
    """A folder in which one thing is not as it should be."""
    weights = published_weights()
    if case == "nothing there":
        return
    if case == "a weight is missing":
        del weights["h.1.mlp.c_fc.bias"]
    if case == "another shape":
        weights["h.0.attn.c_attn.weight"] = weights["h.0.attn.c_attn.weight"].T
    if case == "another model":
        weights["h.2.ln_1.bias"] = weights["h.1.ln_1.bias"]
    if case == "whole numbers":
        weights["ln_f.bias"] = torch.zeros(WIDTH, dtype=torch.int64)
    write_folder(folder, weights, shards=2 if "shard" in case or "index" in case else 1)
    whole = folder / "model.safetensors"
    if case == "cut":
        whole.write_bytes(whole.read_bytes()[:-3])
    if case == "seal disagrees":
        (folder / "model.safetensors.sha256").write_text(f"{'0' * 64}  model.safetensors\n")
    if case == "a pointer":
        whole.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    if case == "a shard is missing":
        (folder / "model-00002-of-00002.safetensors").unlink()
    if case == "index of nothing":
        (folder / "model.safetensors.index.json").write_text("[]")
    if case == "index outside":
        (folder / "model.safetensors.index.json").write_text('{"weight_map": {"wte.weight": "../x"}}')


BROKEN = {
    "nothing there": ["model.safetensors: No such file or directory"],
    "a weight is missing": ["lacks h.1.mlp.c_fc.bias", "1 weights of gpt2"],
    "another shape": ["h.0.attn.c_attn.weight is 8x24 there, gpt2 has 24x8"],
    "another model": ["h.2.ln_1.bias, which gpt2 does not have"],
    "whole numbers": ["ln_f.bias is of int64"],
    "cut": ["model.safetensors is truncated: ends at byte"],
    "seal disagrees": ["model.safetensors is corrupt: "],
    "a pointer": ["is no safetensors file"],
    "a shard is missing": ["model-00002-of-00002.safetensors: No such file or directory"],
    "index of nothing": ["model.safetensors.index.json does not say"],
    "index outside": ["model.safetensors.index.json does not say"],
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_folder_that_will_not_do_is_one_line(case, config, tmp_path, capsys):
    """The line names the setting, the file or weight, and the cure; the status is 2 and nothing was saved."""
    broken_folder(case, tmp_path / "gpt2")

    assert 2 == main([config])

    lines = capsys.readouterr().err.splitlines()
    assert 1 == len(lines), lines
    assert [] == [part for part in ("gpt2_dir: ", *BROKEN[case], "download") if part not in lines[0]], lines
    assert not [name for name in os.listdir(tmp_path / "run") if name.endswith(".pt")]


CONTRADICTIONS = {
    "no folder": (["--gpt2_dir=null"], ["gpt2_dir: ", "needs the folder", "download openai-community/gpt2"]),
    "more positions": (["--block_size=17"], ["block_size: ", "knows 16 positions, not 17", "lower it"]),
    "other width": (["--n_embd=16"], ["n_embd: ", "gpt2 has 8, not 16", "leave the key out"]),
    "other depth": (["--n_layer=3"], ["n_layer: ", "gpt2 has 2, not 3"]),
    "no bias": (["--bias=false"], ["bias: ", "gpt2 has True, not False"]),
    "unknown": (["--init_from=gpt3"], ["init_from: 'gpt3' is not known", "gpt2-medium"]),
    "a number": (["--gpt2_dir=3"], ["gpt2_dir: ", "text or null", "3"]),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_settings_that_contradict_gpt2_are_one_line(case, config, capsys):
    """What GPT-2 is not is refused with the cure, before anything is read."""
    arguments, fragments = CONTRADICTIONS[case]

    assert 2 == main([config, *arguments])

    lines = capsys.readouterr().err.splitlines()
    assert 1 == len(lines), lines
    assert [] == [part for part in ("command line: ", *fragments) if part not in lines[0]], lines


def test_text_by_character_is_refused(config, prepared, capsys):
    """GPT-2's weights know its own tokens; a character's number would be a word to them."""
    assert 2 == main([config, f"--data={prepared}"])

    line = capsys.readouterr().err
    assert "command line: data: its 21 different tokens are not those of gpt2's encoding; give train.bin" in line


def test_the_four_published_sizes(monkeypatch):
    """Their parameters add up to the published numbers, the position embedding included."""
    monkeypatch.undo()
    sizes = {}
    for name, shape in settings.GPT2_SHAPES.items():
        with torch.device("meta"):
            sizes[name] = sum(p.numel() for p in GPT(ModelArgs(**shape, vocab_size=50257)).parameters())

    assert {
        "gpt2": 124_439_808,
        "gpt2-medium": 354_823_168,
        "gpt2-large": 774_030_080,
        "gpt2-xl": 1_557_611_200,
    } == sizes


def test_the_settings_can_be_made_in_python():
    """The same contradictions are refused there."""
    with pytest.raises(UsageError, match="gpt2_dir: init_from: gpt2 needs the folder"):
        Settings(init_from="gpt2")

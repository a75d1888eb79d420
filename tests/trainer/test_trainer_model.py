"""The model: nanoGPT's names, GPT-2's shape and start, and no look into the future."""

import math

import pytest
import torch

from tests.trainer import plain_gpt
from trainer.model import GPT, ModelArgs

SMALL = ModelArgs(block_size=8, vocab_size=50, n_layer=2, n_head=2, n_embd=12, bias=False)


@pytest.fixture
def model():
    """A small model with fresh weights, always the same."""
    torch.manual_seed(3)
    return GPT(SMALL)


def test_parameter_names_are_nanogpts():
    """With biases, one block: every name that nanoGPT's state_dict has, and no other."""
    args = ModelArgs(block_size=8, vocab_size=50, n_layer=1, n_head=2, n_embd=12, bias=True)
    block = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    expected = {"transformer.wte.weight", "transformer.wpe.weight", "lm_head.weight"}
    expected |= {f"transformer.h.0.{name}.{kind}" for name in block for kind in ("weight", "bias")}
    expected |= {"transformer.ln_f.weight", "transformer.ln_f.bias"}

    assert expected == set(GPT(args).state_dict())


def test_bias_false_leaves_no_bias(model):
    """bias: false removes them from linear layers and layer norms alike."""
    assert not [name for name in model.state_dict() if name.endswith("bias")]


def test_gpt2_has_124_million_parameters():
    """With GPT-2's shape its published size comes out (built without memory behind it)."""
    with torch.device("meta"):
        model = GPT(ModelArgs(vocab_size=50257))

    assert 124_439_808 == sum(parameter.numel() for parameter in model.parameters())
    assert 124_439_808 - 1024 * 768 == model.count_parameters()


def test_token_embedding_and_output_share_one_matrix(model):
    """A change of one is a change of the other."""
    assert model.transformer.wte.weight is model.lm_head.weight


def test_fresh_loss_is_that_of_guessing(model):
    """Before training every token is about as likely as any other: the loss is near ln(vocabulary)."""
    tokens = torch.arange(64).reshape(8, 8) % 50

    loss = model(tokens, (tokens * 7) % 50)[1].item()

    assert math.log(50) == pytest.approx(loss, abs=0.1)


def test_a_later_token_changes_no_earlier_logits(model):
    """Attention is causal: position 5 is seen at 5 and behind, not before."""
    before = torch.arange(8)[None]
    after = before.clone()
    after[0, 5] = 40
    model.eval()

    first, second = model(before, before)[0], model(after, after)[0]

    assert torch.equal(first[0, :5], second[0, :5])
    assert not torch.equal(first[0, 5:], second[0, 5:])


def test_without_targets_only_the_last_position_is_computed(model):
    """Generating needs one row of logits, and it is the one that training would see."""
    tokens = torch.arange(8)[None]
    model.eval()

    logits, loss = model(tokens)

    assert (1, 1, 50) == tuple(logits.shape)
    assert loss is None
    assert torch.allclose(model(tokens, tokens)[0][:, -1], logits[:, 0])


def test_projections_into_the_stream_start_smaller():
    """c_proj weights have GPT-2's spread divided by sqrt(2 * n_layer), all others GPT-2's own."""
    torch.manual_seed(0)
    state = GPT(ModelArgs(block_size=8, vocab_size=99, n_layer=8, n_head=2, n_embd=64, bias=False)).state_dict()

    assert 0.02 == pytest.approx(state["transformer.h.3.mlp.c_fc.weight"].std().item(), rel=0.05)
    assert 0.02 / 4 == pytest.approx(state["transformer.h.3.mlp.c_proj.weight"].std().item(), rel=0.05)


def test_only_matrices_decay(model):
    """Two groups for AdamW: weights of two dimensions decay, layer norms do not."""
    decayed, kept = model.configure_optimizer(0.1, 1e-3, (0.9, 0.99)).param_groups

    assert (0.1, {2}) == (decayed["weight_decay"], {p.dim() for p in decayed["params"]})
    assert (0.0, {1}) == (kept["weight_decay"], {p.dim() for p in kept["params"]})
    assert len(list(model.parameters())) == len(decayed["params"]) + len(kept["params"])


@pytest.mark.parametrize("bias", [False, True])
def test_it_computes_what_the_architecture_says(bias):
    """Logits, loss and every gradient are those of an implementation in plain tensor operations, to float64's precision."""
    torch.manual_seed(8)
    model = GPT(ModelArgs(block_size=8, vocab_size=50, n_layer=3, n_head=2, n_embd=12, bias=bias)).double()
    for parameter in model.parameters():  # far from the start, where biases are zero and norms do nothing
        torch.nn.init.normal_(parameter, std=0.3)
    plain = plain_gpt.parameters_of(model.state_dict())
    tokens, targets = torch.randint(50, (2, 3, 8))

    logits, loss = model(tokens, targets)
    loss.backward()
    expected = plain_gpt.loss_of(plain, tokens, targets, 3, 2)
    expected.backward()

    assert torch.allclose(plain_gpt.logits_of(plain, tokens, 3, 2), logits, rtol=0, atol=1e-12)
    assert expected.item() == pytest.approx(loss.item(), abs=1e-12)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert list(plain) == list(gradients)
    assert [] == [name for name in plain if not torch.allclose(plain[name].grad, gradients[name], rtol=0, atol=1e-12)]


def test_state_dict_makes_a_fresh_model_equal(model):
    """Other weights, given this state, compute the same logits to the last bit."""
    torch.manual_seed(4)
    other = GPT(SMALL)
    tokens = torch.arange(8)[None]
    assert not torch.equal(model(tokens)[0], other(tokens)[0])

    other.load_state_dict(model.state_dict())

    assert torch.equal(model(tokens)[0], other(tokens)[0])


def test_generate_goes_on_past_the_block(model):
    """The text may grow longer than block_size; a seeded generator makes it repeatable."""
    model.eval()
    start = torch.zeros(1, 1, dtype=torch.long)

    first, second = (model.generate(start, 20, generator=torch.Generator().manual_seed(1)) for _ in range(2))

    assert (1, 21) == tuple(first.shape)
    assert torch.equal(first, second)


def test_generate_with_top_1_takes_the_likeliest(model):
    """top_k=1 leaves one choice, whatever the generator says."""
    model.eval()
    start = torch.zeros(1, 1, dtype=torch.long)

    expected = model(start)[0][0, 0].argmax().item()

    assert expected == model.generate(start, 1, top_k=1)[0, 1].item()


def test_utilisation_follows_the_formula(model):
    """6 N + 12 L C T operations per token, over an A100's 312e12 a second."""
    flops_per_token = 6 * model.count_parameters() + 12 * 2 * 12 * 8

    assert flops_per_token * 8 * 4 / 0.5 / 312e12 == pytest.approx(model.estimate_mfu(4, 0.5))

"""GPT-2 and nanoGPT's update written a second time, from the architecture alone, in plain tensor operations.

The tests compare the trainer with this: no module, no fused kernel, one line for each formula. A model is its state, a
dictionary of tensors under nanoGPT's names; the output layer is the token embedding.
"""

import math

import torch

DECAYED = 2  # parameters of this many dimensions decay


def normalised(x, state, name):
    """Layer normalisation over the last dimension."""
    centred = x - x.mean(-1, keepdim=True)
    x = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * state[f"{name}.weight"]
    return x + state.get(f"{name}.bias", 0.0)


def linear(x, state, name):
    """A matrix stored as (out, in), and its bias if it has one."""
    return torch.einsum("bti,oi->bto", x, state[f"{name}.weight"]) + state.get(f"{name}.bias", 0.0)


def attention(x, state, name, n_head):
    """Every head by itself: softmax of scaled products, the future at minus infinity."""
    time, width = x.shape[1], x.shape[2]
    query, key, value = linear(x, state, f"{name}.c_attn").split(width, dim=2)
    future = torch.ones(time, time).triu(1).bool()
    size = width // n_head
    heads = []
    for head in range(n_head):
        part = slice(head * size, (head + 1) * size)
        scores = query[..., part] @ key[..., part].mT / math.sqrt(size)
        heads.append(scores.masked_fill(future, -math.inf).softmax(-1) @ value[..., part])
    return linear(torch.cat(heads, dim=2), state, f"{name}.c_proj")


def network(x, state, name):
    """Four times as wide in between, with the exact GELU."""
    x = linear(x, state, f"{name}.c_fc")
    return linear(0.5 * x * (1 + torch.erf(x / math.sqrt(2))), state, f"{name}.c_proj")


def logits_of(state, tokens, n_layer, n_head):
    """Logits (batch, time, vocabulary) of every position."""
    x = state["transformer.wte.weight"][tokens] + state["transformer.wpe.weight"][: tokens.shape[1]]
    for layer in range(n_layer):
        block = f"transformer.h.{layer}"
        x = x + attention(normalised(x, state, f"{block}.ln_1"), state, f"{block}.attn", n_head)
        x = x + network(normalised(x, state, f"{block}.ln_2"), state, f"{block}.mlp")
    return normalised(x, state, "transformer.ln_f") @ state["transformer.wte.weight"].T


def loss_of(state, tokens, targets, n_layer, n_head):
    """Mean of minus the logarithm of the probability given to the right token."""
    logarithms = logits_of(state, tokens, n_layer, n_head).log_softmax(-1)
    return -logarithms.gather(-1, targets[..., None]).mean()


def parameters_of(state):
    """Leaves that gather gradients, in nanoGPT's order; the output layer is no parameter of its own."""
    return {name: value.detach().clone().requires_grad_() for name, value in state.items() if name != "lm_head.weight"}


def optimizer_of(state, weight_decay, learning_rate, betas):
    """nanoGPT's AdamW: the matrices, which decay, then the rest, each group in the order of the parameters."""
    groups = [
        {"params": [p for p in state.values() if p.dim() >= DECAYED], "weight_decay": weight_decay},
        {"params": [p for p in state.values() if p.dim() < DECAYED], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas)

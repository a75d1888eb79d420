"""The GPT-2 architecture, with nanoGPT's parameter names so that either reads the other's snapshots.

A decoder-only transformer: token and position embeddings, `n_layer` blocks of causal self-attention and a
two-layer network, each on a normalised copy of a residual stream, and an output layer that shares its weights
with the token embedding.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn as nn
from torch.nn import functional as F

INIT_STD = 0.02  # GPT-2's standard deviation of fresh weights
PEAK_FLOPS = 312e12  # an A100 in bfloat16: the yardstick of the printed utilisation, as in nanoGPT


@dataclass(frozen=True)
class ModelArgs:
    """The shape of a model; stored in every snapshot as `model_args`."""

    block_size: int = 1024  # longest sequence
    vocab_size: int = 50304  # GPT-2's 50257, rounded up to a multiple of 64 for speed
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True  # in linear layers and layer norms


class CausalSelfAttention(nn.Module):
    """Every position looks at itself and at earlier ones."""

    def __init__(self, args: ModelArgs) -> None:
        """Queries, keys and values come from one matrix."""
        super().__init__()
        self.n_head = args.n_head
        self.dropout = args.dropout
        self.c_attn = nn.Linear(args.n_embd, 3 * args.n_embd, bias=args.bias)
        self.c_proj = nn.Linear(args.n_embd, args.n_embd, bias=args.bias)
        self.resid_dropout = nn.Dropout(args.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, width) to the same shape."""
        batch, time, width = x.shape
        # (batch, time, 3 * width) -> three of (batch, head, time, width of a head)
        heads = (part.view(batch, time, self.n_head, -1).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2))
        query, key, value = heads
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).reshape(batch, time, width)))


class MLP(nn.Module):
    """Two layers, four times as wide in between."""

    def __init__(self, args: ModelArgs) -> None:
        """GELU between the layers, dropout behind them."""
        super().__init__()
        self.c_fc = nn.Linear(args.n_embd, 4 * args.n_embd, bias=args.bias)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * args.n_embd, args.n_embd, bias=args.bias)
        self.dropout = nn.Dropout(args.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, width) to the same shape."""
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    """Attention, then the network, each added to the residual stream."""

    def __init__(self, args: ModelArgs) -> None:
        """Both parts read a normalised copy of the stream."""
        super().__init__()
        self.ln_1 = nn.LayerNorm(args.n_embd, bias=args.bias)
        self.attn = CausalSelfAttention(args)
        self.ln_2 = nn.LayerNorm(args.n_embd, bias=args.bias)
        self.mlp = MLP(args)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, width) to the same shape."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """The language model."""

    def __init__(self, args: ModelArgs) -> None:
        """Build the layers and draw the weights from torch's global random generator."""
        super().__init__()
        self.args = args
        self.transformer: Any = nn.ModuleDict(
            {
                "wte": nn.Embedding(args.vocab_size, args.n_embd),
                "wpe": nn.Embedding(args.block_size, args.n_embd),
                "drop": nn.Dropout(args.dropout),
                "h": nn.ModuleList(Block(args) for _ in range(args.n_layer)),
                "ln_f": nn.LayerNorm(args.n_embd, bias=args.bias),
            }
        )
        self.lm_head = nn.Linear(args.n_embd, args.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight  # one matrix reads tokens and writes them
        self.apply(init_weights)
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):  # each block adds twice to the stream: keep its variance at one block's
                nn.init.normal_(parameter, std=INIT_STD / math.sqrt(2 * args.n_layer))

    def forward(
        self, tokens: torch.Tensor, targets: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits, and the mean loss if targets are given; without targets only the last position's logits."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.transformer.drop(self.transformer.wte(tokens) + self.transformer.wpe(positions))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)

    def count_parameters(self) -> int:
        """All parameters but the position embedding; the shared matrix counts once."""
        return sum(p.numel() for p in self.parameters()) - self.transformer.wpe.weight.numel()

    def configure_optimizer(
        self, weight_decay: float, learning_rate: float, betas: tuple[float, float]
    ) -> torch.optim.AdamW:
        """AdamW in two groups: matrices and embeddings, which decay, then biases and norms, which do not."""
        parameters = [p for p in self.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, fused=True)  # one kernel for all

    def estimate_mfu(self, sequences: int, seconds: float) -> float:
        """Share of an A100's peak that so many sequences in `seconds` amount to (PaLM paper, appendix B)."""
        args = self.args
        attention = 12 * args.n_layer * args.n_embd * args.block_size
        flops_per_token = 6 * self.count_parameters() + attention
        return flops_per_token * args.block_size * sequences / seconds / PEAK_FLOPS

    @torch.no_grad()
    def generate(
        self,
        tokens: torch.Tensor,
        count: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """`tokens` (batch, time) continued by `count` drawn tokens; call `eval()` first."""
        for _ in range(count):
            logits = self(tokens[:, -self.args.block_size :])[0][:, -1, :] / temperature
            if top_k is not None:
                least = logits.topk(min(top_k, logits.shape[-1])).values[:, [-1]]
                logits = logits.masked_fill(logits < least, -math.inf)
            drawn = torch.multinomial(F.softmax(logits, dim=-1), num_samples=1, generator=generator)
            tokens = torch.cat((tokens, drawn), dim=1)
        return tokens


def without_masks(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state without causal masks: they are no weights, but nanoGPT on an old torch kept them among them."""
    return {name: value for name, value in state.items() if not name.endswith(".attn.bias")}


def init_weights(module: nn.Module) -> None:
    """GPT-2's fresh weights: small normal numbers, no bias."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INIT_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)

"""A training loop of nanoGPT's shape, written from the architecture: what the bundled trainer's speed is compared with.

The same model, batches of the same size from the same file, AdamW in two groups, clipping, a schedule, a line every ten
steps; nothing exact, nothing recorded, no deterministic algorithms. What nanoGPT does on a CPU, this does: batches stacked
one sequence at a time, fused AdamW only on CUDA, the loss read only for the line.
"""

import math
import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Norm(nn.Module):
    """Layer normalisation with or without bias."""

    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    """Causal self-attention through torch's kernel."""

    def __init__(self, width, heads, dropout, bias):
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)
        self.resid_dropout = nn.Dropout(dropout)
        self.heads, self.width, self.dropout = heads, width, dropout

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(self.width, dim=2)
        q, k, v = (one.view(b, t, self.heads, c // self.heads).transpose(1, 2) for one in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0, is_causal=True)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c)))


class Network(nn.Module):
    """Two layers, four times as wide in between."""

    def __init__(self, width, dropout, bias):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * width, width, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Layer(nn.Module):
    """Attention, then the network, each added to the stream."""

    def __init__(self, width, heads, dropout, bias):
        super().__init__()
        self.ln_1, self.ln_2 = Norm(width, bias), Norm(width, bias)
        self.attn, self.mlp = Attention(width, heads, dropout, bias), Network(width, dropout, bias)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Model(nn.Module):
    """GPT-2's architecture."""

    def __init__(self, vocabulary, block, layers, heads, width, dropout=0.0, bias=False):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(block, width)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(Layer(width, heads, dropout, bias) for _ in range(layers))
        self.ln_f = Norm(width, bias)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.wte.weight = self.lm_head.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                scale = math.sqrt(2 * layers) if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(parameter, std=0.02 / scale)

    def forward(self, tokens, targets):
        x = self.drop(self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


class Loop:
    """The loop, some steps at a time; `settings` are the bundled trainer's, which have nanoGPT's names."""

    def __init__(self, settings, folder, vocabulary):
        torch.manual_seed(settings.seed)
        s = self.settings = settings
        self.path = os.path.join(folder, "train.bin")
        self.model = Model(vocabulary, s.block_size, s.n_layer, s.n_head, s.n_embd, s.dropout, s.bias)
        parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": s.weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=s.learning_rate, betas=(s.beta1, s.beta2))
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)
        self.step = 0
        self.next = self.batch()

    def batch(self):
        """Stretches at random places, and the same one token further on; the file is mapped anew each time."""
        tokens = np.memmap(self.path, dtype=np.uint16, mode="r")
        size, block = self.settings.batch_size, self.settings.block_size
        starts = torch.randint(len(tokens) - block, (size,))
        x = torch.stack([torch.from_numpy(tokens[i : i + block].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + block].astype(np.int64)) for i in starts])
        return x, y

    def rate(self):
        """Linear warm-up, then half a cosine."""
        s, at = self.settings, self.step
        if at < s.warmup_iters:
            return s.learning_rate * (at + 1) / (s.warmup_iters + 1)
        if at > s.lr_decay_iters:
            return s.min_lr
        share = (at - s.warmup_iters) / (s.lr_decay_iters - s.warmup_iters)
        return s.min_lr + 0.5 * (1.0 + math.cos(math.pi * share)) * (s.learning_rate - s.min_lr)

    def run(self, steps):
        """Train on; a line every `log_interval` steps."""
        s = self.settings
        then = time.perf_counter()
        for _ in range(steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate()
            for _ in range(s.gradient_accumulation_steps):
                loss = self.model(*self.next)[1] / s.gradient_accumulation_steps
                self.next = self.batch()
                self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), s.grad_clip)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
            now = time.perf_counter()
            if self.step % s.log_interval == 0:
                print(
                    f"iter {self.step}: loss {loss.item() * s.gradient_accumulation_steps:.4f}, time {(now - then) * 1000:.2f}ms"
                )
            then = now
            self.step += 1

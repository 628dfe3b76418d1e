"""Training tokens per second of a MINI-sized causal model, beside transformers' GPT-2 of the same size."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from reference.config import MINI
from reference.torch import Transformer, cross_entropy
from reference.torch.training import compiled_loss

VOCAB, BATCH, SEQ = 65, 12, 64
TOKENS = BATCH * SEQ
CONFIG = replace(MINI, vocab=VOCAB, causal=True, max_len=SEQ, dropout=0.0)


def _training_step(parameters: list[nn.Parameter], loss_of: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCAB, (BATCH, SEQ + 1), generator=generator)
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(ids[:, :-1], ids[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()

    return step


def ours(*, compiled: bool) -> Callable[[], object]:
    """Give our model's step."""
    model = Transformer(CONFIG).train()

    def loss_of(ids: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(model(ids), targets)

    if compiled:
        loss_of = compiled_loss(loss_of, torch.device("cpu"))
    return _training_step(list(model.parameters()), loss_of)


def gpt2(*, activation: str = "gelu_new") -> Callable[[], object]:
    """Give the step of transformers' GPT-2: as wide and as deep, and as ours without dropout.

    It ships with `gelu_new`, the tanh form written out in Python; "gelu" is the erf form that ours has.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCAB, n_positions=SEQ, n_embd=CONFIG.d_model, n_layer=CONFIG.n_layers, n_head=CONFIG.n_heads,
        n_inner=CONFIG.d_ff, activation_function=activation, embd_pdrop=CONFIG.dropout, resid_pdrop=CONFIG.dropout,
        attn_pdrop=CONFIG.dropout, use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).train()

    def loss_of(ids: Tensor, targets: Tensor) -> Tensor:
        logits = model(input_ids=ids).logits
        return nn.functional.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))

    return _training_step(list(model.parameters()), loss_of)


class PlainBlock(nn.Module):
    """A block as it is usually written: packed projections, no guard against what is hidden, nothing checked."""

    def __init__(self) -> None:
        super().__init__()
        d = CONFIG.d_model
        self.norm_1, self.norm_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.mlp = nn.Sequential(nn.Linear(d, CONFIG.d_ff), nn.GELU(), nn.Linear(CONFIG.d_ff, d))

    def forward(self, x: Tensor) -> Tensor:
        """Let tokens attend, then think."""
        q, k, v = (
            part.unflatten(-1, (CONFIG.n_heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        )
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(heads.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm_2(x))


class PlainGPT(nn.Module):
    """A small GPT of torch's own modules, for what the compiler makes of one on this machine."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(VOCAB, CONFIG.d_model), nn.Embedding(SEQ, CONFIG.d_model)
        self.blocks = nn.Sequential(*(PlainBlock() for _ in range(CONFIG.n_layers)))
        self.norm, self.head = nn.LayerNorm(CONFIG.d_model), nn.Linear(CONFIG.d_model, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        """Give the logits."""
        x = self.embedding(ids) + self.positions(torch.arange(ids.shape[-1]))
        return self.head(self.norm(self.blocks(x)))


def plain_compiled() -> Callable[[], object]:
    """Give the step of `PlainGPT`, compiled as ours is."""
    model = PlainGPT().train()

    def loss_of(ids: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())

    return _training_step(list(model.parameters()), compiled_loss(loss_of, torch.device("cpu")))


def flops_per_step() -> float:
    """Count the multiplications and additions of a step's matrix products: forward once, backward twice."""
    d, f, seq = CONFIG.d_model, CONFIG.d_ff, SEQ
    weights = CONFIG.n_layers * (4 * d * d + 2 * d * f) + d * VOCAB
    attention = CONFIG.n_layers * 2 * seq * d  # scores and weighted sum, each seq x d for every token
    return 3 * 2 * TOKENS * (weights + attention)


def peak_product() -> Callable[[], object]:
    """Give a large float32 matrix product: what this machine can do at best."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return lambda: a @ b


PEAK_FLOPS = 2 * 1024**3

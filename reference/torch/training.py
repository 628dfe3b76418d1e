"""The training loop: a step is a function of the model, the optimizer's state and the step's number."""

import math
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reference.data import IGNORED, Batch, generator
from reference.recipe import Recipe
from reference.torch.losses import cross_entropy, perplexity
from reference.torch.models import Transformer
from reference.torch.optimizers import clip_grad_norm, warmup_cosine


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one update was: its number, counted from 1, and what it used.

    `loss` is that of its batch before the update, `grad_norm` the norm before clipping.
    """

    number: int
    loss: float
    lr: float
    grad_norm: float
    n_tokens: int


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Mean loss a target, and its exponential, over the `n_tokens` targets of a data set."""

    loss: float
    perplexity: float
    n_tokens: int


class DivergenceError(ArithmeticError):
    """Training met a NaN or an infinity; the parameters are those before the step that it stopped in."""

    def __init__(self, step: int, name: str, what: str) -> None:
        self.step = step
        self.name = name
        super().__init__(
            f"train: losses, gradients and parameters must stay finite, got {what} in {name} at step {step}; "
            f"lower lr or lengthen warmup"
        )


def train(
    model: Transformer,
    batches: Callable[[int], Batch],
    recipe: Recipe,
    *,
    on_step: Callable[[Step], None] | None = None,
    autocast: torch.dtype | None = None,
    compiled: bool = False,
) -> None:
    r"""Train `model` in place for `recipe.steps` updates; step k = 0, 1, ... reads `batches(k)`.

    $$ g = \nabla_\theta \, loss(\theta), \qquad \theta \leftarrow AdamW(\theta, clip(g), lr_k) $$

    where lr_k is `warmup_cosine(k)`. Weight decay acts on matrices and tables, not on gains and biases.
    Dropout draws from torch's generator, seeded anew in each step from `(recipe.seed, k)`; the generator is
    then put back as it was, and so is the model's mode. `on_step` is called after each update.

    With `autocast` the forward pass computes its matrix products in that dtype, while parameters, gradients,
    residual stream, loss and the optimizer's state keep the parameters' dtype. With `compiled` the forward
    pass and the loss are one graph of `torch.compile`.

    Raises DivergenceError where a loss or gradient is NaN or infinite, before it reaches a parameter;
    ValueError and IndexError where a batch does not fit the model.

    Source: Loshchilov & Hutter 2019 (AdamW); Pascanu et al. 2013 (clipping); Micikevicius et al. 2018,
    section 3.1 (full-precision copies of the weights).
    """
    named = dict(model.named_parameters())
    parameters = list(named.values())
    device = parameters[0].device
    optimizer = _adamw(parameters, recipe)

    def batch_loss(ids: Tensor, targets: Tensor) -> Tensor:
        return _loss(model, ids, targets, autocast)

    loss_of = torch.compile(batch_loss, fullgraph=True) if compiled else batch_loss
    with mode(model, training=True), _generator_restored(device):
        for k in range(recipe.steps):
            ids, targets = _tensors(batches(k), model.config.vocab, device)
            torch.manual_seed(int(generator(recipe.seed, "dropout", k).integers(2**63)))
            loss = loss_of(ids, targets)
            optimizer.zero_grad()
            loss.backward()

            if not math.isfinite(value := loss.item()):
                raise DivergenceError(k + 1, _first_not_finite(named) or "loss", f"loss {value}")
            gradients = {name: p.grad for name, p in named.items() if p.grad is not None}
            max_norm = sys.float_info.max if recipe.clip_norm is None else recipe.clip_norm
            try:
                clipped, norm = clip_grad_norm(gradients, max_norm=max_norm)
            except ValueError as problem:
                if name := _first_not_finite(gradients):
                    raise DivergenceError(k + 1, name, "a gradient that is NaN or infinite") from problem
                raise
            for name, gradient in clipped.items():
                named[name].grad = gradient
            lr = float(
                warmup_cosine(k, warmup=recipe.warmup, total=recipe.steps, max_lr=recipe.lr, min_lr=recipe.min_lr)
            )
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            if on_step is not None:
                on_step(Step(number=k + 1, loss=value, lr=lr, grad_norm=float(norm), n_tokens=targets.numel()))


def evaluate(model: Transformer, batches: Iterable[Batch], *, autocast: torch.dtype | None = None) -> Evaluation:
    r"""Measure `model` on batches, without dropout; its mode is put back afterwards, whatever happens.

    $$ loss = \frac{1}{n} \sum_{batches} n_b \, loss_b, \qquad perplexity = e^{loss} $$

    where n_b counts the targets of a batch that are not ignored, so that batches of any size weigh as they
    should.

    Raises ValueError where there is no target at all, IndexError where ids do not fit the model.
    """
    parameter = next(model.parameters())
    total, n_tokens = 0.0, 0
    with mode(model, training=False), torch.no_grad():
        for batch in batches:
            ids, targets = _tensors(batch, model.config.vocab, parameter.device)
            n = int((batch[1] != IGNORED).sum())
            total += n * float(_loss(model, ids, targets, autocast)) if n else 0.0
            n_tokens += n
    return Evaluation(loss=total / max(n_tokens, 1), perplexity=float(perplexity(total, n_tokens)), n_tokens=n_tokens)


def _loss(model: Transformer, ids: Tensor, targets: Tensor, autocast: torch.dtype | None) -> Tensor:
    dtype = next(model.parameters()).dtype
    with torch.autocast(ids.device.type, dtype=autocast, enabled=autocast is not None):
        logits = model(ids)
    return cross_entropy(logits.to(dtype), targets, ignore_index=IGNORED)


def _adamw(parameters: list[nn.Parameter], recipe: Recipe) -> torch.optim.AdamW:
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},  # gains and biases
    ]
    fused = parameters[0].device.type in ("cpu", "cuda", "mps", "xpu")
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=recipe.lr, fused=fused)


def _tensors(batch: Batch, vocab: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Move a batch to the device, once it is known to fit: a compiled model does not look at its ids."""
    ids, targets = batch
    known = targets[targets != IGNORED]
    for name, tokens in (("ids", ids), ("targets", known)):
        if tokens.size and (tokens.min() < 0 or tokens.max() >= vocab):
            raise IndexError(
                f"train: {name} must lie in 0 ... {vocab - 1}, got {tokens.min()} ... {tokens.max()}; "
                f"give the config the vocab of the data"
            )
    return torch.from_numpy(ids).to(device), torch.from_numpy(targets).to(device)


def _first_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    return next((name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())), None)


@contextmanager
def mode(model: nn.Module, *, training: bool) -> Generator[None, None, None]:
    """Put a model in train or eval mode for the length of a `with`, then each of its parts back as it was."""
    before = {part: part.training for part in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for part, was_training in before.items():
            part.training = was_training


@contextmanager
def _generator_restored(device: torch.device) -> Generator[None, None, None]:
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            yield
    else:
        with torch.random.fork_rng(devices=[device], device_type=device.type):
            yield

"""The training loop: a step is a function of the model, the optimizer's state and the step's number."""

import math
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from reference.data import IGNORED, Batch, generator
from reference.parameters import Tree, leaves, map_tree, tree_from_leaves
from reference.recipe import Recipe
from reference.runs import DivergenceError, Evaluation, Moments, OnStep, Step, check_moments
from reference.torch.losses import cross_entropy, perplexity
from reference.torch.models import Transformer, as_array, export_params
from reference.torch.optimizers import clip_grad_norm, warmup_cosine

__all__ = ["DivergenceError", "Evaluation", "Moments", "Step", "compiled_loss", "evaluate", "mode", "train"]


def train(
    model: Transformer,
    batches: Callable[[int], Batch],
    recipe: Recipe,
    *,
    moments: Moments | None = None,
    keep_masks: Callable[[int], Tree | None] | None = None,
    on_step: OnStep | None = None,
    autocast: torch.dtype | None = None,
    compiled: bool = False,
) -> Moments:
    r"""Train `model` in place until `recipe.steps` updates are done; step k = 0, 1, ... reads `batches(k)`.

    $$ g = \nabla_\theta \, loss(\theta), \qquad \theta \leftarrow AdamW(\theta, clip(g), lr_k) $$

    where lr_k is `warmup_cosine(k)`. Weight decay acts on matrices and tables, not on gains and biases. `on_step` is
    called after each update. Returns AdamW's moments after the last; a run that is given the `moments` of an earlier
    one goes on at step moments.step, on the CPU bit for bit as if it had never stopped.

    Dropout keeps what `keep_masks(k)` says, a tree as `transformer` takes. Without it, it draws from torch's
    generator, seeded anew in each step from `(recipe.seed, k)`; the generator is then put back as it was, and so is
    the model's mode.

    With `autocast` the forward pass computes its matrix products in that dtype, while parameters, gradients,
    residual stream, loss and the optimizer's state keep the parameters' dtype. With `compiled` the forward
    pass and the loss are one graph of `torch.compile`.

    Raises DivergenceError where a loss or gradient is NaN or infinite, before it reaches a parameter;
    ValueError and IndexError where a batch does not fit the model, ValueError where the moments do not.

    Source: Loshchilov & Hutter 2019 (AdamW); Pascanu et al. 2013 (clipping); Micikevicius et al. 2018,
    section 3.1 (full-precision copies of the weights).
    """
    named = dict(model.named_parameters())
    parameters = list(named.values())
    device = parameters[0].device
    optimizer = _adamw(parameters, recipe)
    if moments is not None:
        check_moments(moments, tree_from_leaves({name: tuple(p.shape) for name, p in named.items()}), recipe.steps)
    _remember(optimizer, named, moments)
    done = 0 if moments is None else moments.step

    def batch_loss(ids: Tensor, targets: Tensor, keep: Tree | None) -> Tensor:
        return _loss(model, ids, targets, autocast, keep)

    def snapshot() -> tuple[Tree, Moments]:
        return export_params(model), _moments(optimizer, named, done)

    loss_of = compiled_loss(batch_loss, device) if compiled else batch_loss
    with mode(model, training=True), _generator_restored(device):
        for k in range(done, recipe.steps):
            batch = batches(k)
            ids, targets = _tensors(batch, model.config.vocab, device)
            keep = None if keep_masks is None else keep_masks(k)
            if keep is not None:
                keep = map_tree(lambda mask: torch.as_tensor(mask, device=device), keep)
            torch.manual_seed(int(generator(recipe.seed, "dropout", k).integers(2**63)))
            loss = loss_of(ids, targets, keep)
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
            done = k + 1
            if on_step is not None:
                n_tokens = int((batch[1] != IGNORED).sum())
                on_step(Step(number=done, loss=value, lr=lr, grad_norm=float(norm), n_tokens=n_tokens), snapshot)
    return _moments(optimizer, named, done)


def compiled_loss(loss_of: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
    """Compile a model's forward pass and loss into one graph."""
    # a small model's kernels are short: on a CPU, calling them from C++ and not from Python saves some 3 %
    return torch.compile(loss_of, fullgraph=True, options={"cpp_wrapper": device.type == "cpu"})


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


def _loss(
    model: Transformer, ids: Tensor, targets: Tensor, autocast: torch.dtype | None, keep: Tree | None = None
) -> Tensor:
    dtype = next(model.parameters()).dtype
    with torch.autocast(ids.device.type, dtype=autocast, enabled=autocast is not None):
        logits = model(ids, keep=keep)
    return cross_entropy(logits.to(dtype), targets, ignore_index=IGNORED)


def _adamw(parameters: list[nn.Parameter], recipe: Recipe) -> torch.optim.AdamW:
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},  # gains and biases
    ]
    fused = parameters[0].device.type in ("cpu", "cuda", "mps", "xpu")
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=recipe.lr, fused=fused)


def _remember(optimizer: torch.optim.AdamW, named: Mapping[str, nn.Parameter], moments: Moments | None) -> None:
    m, v = ({}, {}) if moments is None else (dict(leaves(moments.m)), dict(leaves(moments.v)))
    for name, parameter in named.items():
        device = parameter.device if optimizer.defaults["fused"] else None  # only the fused kernel counts there
        state: dict[str, Tensor] = {
            "step": torch.tensor(0.0 if moments is None else moments.step, dtype=torch.float32, device=device),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }
        if moments is not None:
            state["exp_avg"].copy_(torch.as_tensor(m[name]))
            state["exp_avg_sq"].copy_(torch.as_tensor(v[name]))
        optimizer.state[parameter] = state


def _moments(optimizer: torch.optim.AdamW, named: Mapping[str, nn.Parameter], step: int) -> Moments:
    def tree(key: str) -> Tree:
        return tree_from_leaves({name: as_array(optimizer.state[parameter][key]) for name, parameter in named.items()})

    return Moments(step=step, m=tree("exp_avg"), v=tree("exp_avg_sq"))


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

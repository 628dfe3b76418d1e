"""The training loop: a step takes the parameters and AdamW's moments, and gives new ones."""

import math
import sys
from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter

import numpy as np
from jaxtyping import Float

from reference import data
from reference.config import ModelConfig
from reference.data import IGNORED, Batch
from reference.numpy.losses import cross_entropy, cross_entropy_vjp, perplexity
from reference.numpy.models import transformer, transformer_and_vjp
from reference.numpy.optimizers import adamw_step, clip_grad_norm, warmup_cosine
from reference.parameters import Tree, check_params, leaves, map_tree, parameter_shapes
from reference.recipe import Recipe
from reference.runs import DivergenceError, Evaluation, Moments, OnStep, Step, check_moments

__all__ = ["DivergenceError", "Evaluation", "Moments", "Step", "evaluate", "loss_and_gradient", "train"]


def loss_and_gradient(
    params: Tree, config: ModelConfig, batch: Batch, *, keep: Tree | None = None
) -> tuple[Float[np.ndarray, ""], Tree]:
    r"""Give the mean loss of a batch over its targets, and its gradient, a tree shaped like the parameters.

    $$ loss = crossentropy(transformer(ids, \theta), targets), \qquad
       g = \left(\frac{\partial \, transformer}{\partial \theta}\right)^{\!\top}
           \frac{\partial \, loss}{\partial \, logits} $$

    Targets of `IGNORED` do not count. `keep` holds the keep-masks of dropout, as `transformer` takes them.

    Raises what `transformer` and `cross_entropy` raise where a batch does not fit the model.

    Source: Rumelhart, Hinton & Williams 1986 (back-propagation).
    """
    ids, targets = batch
    logits, vjp = transformer_and_vjp(ids, params, config, keep=keep)
    loss = cross_entropy(logits, targets, ignore_index=IGNORED)
    (cotangent,) = cross_entropy_vjp(np.ones_like(loss), logits, targets, ignore_index=IGNORED)
    return loss, vjp(cotangent)


def train(
    params: Tree,
    config: ModelConfig,
    batches: Callable[[int], Batch],
    recipe: Recipe,
    *,
    moments: Moments | None = None,
    keep_masks: Callable[[int], Tree | None] | None = None,
    on_step: OnStep | None = None,
) -> tuple[Tree, Moments]:
    r"""Give the parameters and moments after `recipe.steps` updates; step k = 0, 1, ... reads `batches(k)`.

    $$ g = \nabla_\theta \, loss(\theta), \qquad \theta \leftarrow AdamW(\theta, clip(g), lr_k) $$

    where lr_k is `warmup_cosine(k)`. Weight decay acts on matrices and tables, not on gains and biases. `on_step` is
    called after each update. Nothing that is given is written to. A run that is given the parameters and `moments` of
    an earlier one goes on at step moments.step, bit for bit as if it had never stopped.

    Dropout keeps what `keep_masks(k)` says, by default `reference.data.keep_masks` of `(recipe.seed, k)`.

    Raises DivergenceError where a loss or gradient is NaN or infinite, before it reaches a parameter; what
    `loss_and_gradient` raises where a batch does not fit the model, ValueError or TypeError where parameters or
    moments do not.

    Source: Loshchilov & Hutter 2019 (AdamW); Pascanu et al. 2013 (clipping).
    """
    check_params("train", params, parameter_shapes(config))
    params = map_tree(_copy, params)
    if moments is None:
        moments = Moments(step=0, m=map_tree(np.zeros_like, params), v=map_tree(np.zeros_like, params))
    check_moments(moments, parameter_shapes(config), recipe.steps)
    max_norm = sys.float_info.max if recipe.clip_norm is None else recipe.clip_norm

    for k in range(moments.step, recipe.steps):
        ids, targets = batch = batches(k)
        keep = data.keep_masks(config, ids.shape, seed=recipe.seed, step=k) if keep_masks is None else keep_masks(k)
        with np.errstate(all="ignore"):  # what is not finite is found right below
            loss, gradient = loss_and_gradient(params, config, batch, keep=keep)
        _check_finite(k + 1, loss, params, gradient)

        gradient, norm = clip_grad_norm(gradient, max_norm=max_norm)
        lr = float(warmup_cosine(k, warmup=recipe.warmup, total=recipe.steps, max_lr=recipe.lr, min_lr=recipe.min_lr))
        params, moments = _update(params, gradient, moments, lr=lr, weight_decay=recipe.weight_decay)

        if on_step is not None:
            n_tokens = int((targets != IGNORED).sum())
            step = Step(number=k + 1, loss=float(loss), lr=lr, grad_norm=float(norm), n_tokens=n_tokens)
            on_step(step, lambda params=params, moments=moments: (map_tree(_copy, params), _copied(moments)))
    return params, _copied(moments)


def evaluate(params: Tree, config: ModelConfig, batches: Iterable[Batch]) -> Evaluation:
    r"""Measure a model on batches, without dropout.

    $$ loss = \frac{1}{n} \sum_{batches} n_b \, loss_b, \qquad perplexity = e^{loss} $$

    where n_b counts the targets of a batch that are not ignored, so that batches of any size weigh as they
    should.

    Raises ValueError where there is no target at all, IndexError where ids do not fit the model.
    """
    total, n_tokens = 0.0, 0
    for ids, targets in batches:
        n = int((targets != IGNORED).sum())
        with np.errstate(all="ignore"):  # a model that has diverged has a loss of NaN or infinity
            total += n * float(cross_entropy(transformer(ids, params, config), targets, ignore_index=IGNORED))
        n_tokens += n
    return Evaluation(  # the perplexity first, which refuses to be measured on nothing
        perplexity=float(perplexity(total, n_tokens)), loss=total / n_tokens, n_tokens=n_tokens
    )


def _update(params: Tree, gradient: Tree, moments: Moments, *, lr: float, weight_decay: float) -> tuple[Tree, Moments]:
    update = partial(_updated, step=moments.step + 1, lr=lr, weight_decay=weight_decay)
    updated = map_tree(update, params, gradient, moments.m, moments.v)
    params, m, v = (map_tree(itemgetter(place), updated) for place in (0, 1, 2))
    return params, Moments(step=moments.step + 1, m=m, v=v)


def _updated(
    param: np.ndarray, grad: np.ndarray, m: np.ndarray, v: np.ndarray, *, step: int, lr: float, weight_decay: float
) -> tuple[np.ndarray, ...]:
    """Take one step of AdamW on one array; gains and biases, of one axis, do not decay."""
    decay = weight_decay if param.ndim >= 2 else 0.0
    return tuple(map(_in_order, adamw_step(param, grad, m, v, step=step, lr=lr, weight_decay=decay)))


def _check_finite(step: int, loss: np.ndarray, params: Tree, gradient: Tree) -> None:
    if not math.isfinite(loss):
        raise DivergenceError(step, _first_not_finite(params) or "loss", f"loss {float(loss)}")
    if name := _first_not_finite(gradient):
        raise DivergenceError(step, name, "a gradient that is NaN or infinite")


def _first_not_finite(tree: Tree) -> str | None:
    return next((path for path, array in leaves(tree) if not np.isfinite(array).all()), None)


def _in_order(array: np.ndarray) -> np.ndarray:
    # Products may round differently on an array that is stored by columns, as the gradient of a transpose is; stored
    # by rows, parameters are the same to the bit whether they come from the step before or from a file.
    return np.asarray(array, order="C")


def _copy(array: np.ndarray) -> np.ndarray:
    return np.array(array, order="C")


def _copied(moments: Moments) -> Moments:
    return Moments(step=moments.step, m=map_tree(_copy, moments.m), v=map_tree(_copy, moments.v))

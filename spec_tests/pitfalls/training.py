"""Known mistakes in the training loop: small pieces of it that are wrong, and what stands in for what."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from reference.data import IGNORED, Batch
from reference.numpy import adamw_step, clip_grad_norm, cross_entropy, perplexity, transformer, warmup_cosine
from reference.numpy import training as right
from reference.parameters import Tree, leaves, map_tree, tree_from_leaves
from reference.recipe import Recipe
from reference.runs import Evaluation, Moments, Step
from spec_tests.pitfalls.pitfall import Function, Pitfall

LOOP = "reference.numpy.training"
STEP, CLIPPING, EVALUATION, ACCUMULATION, DECAY, RESUMED = (
    f"spec_tests.test_training.test_{name}"
    for name in (
        "the_first_step_uses_the_first_rate",
        "clipping_is_between_the_gradient_and_the_step",
        "evaluation_weighs_every_target_alike",
        "accumulated_gradients_are_those_of_the_whole_batch",
        "decay_leaves_gains_and_biases_alone",
        "a_run_goes_on_as_if_it_had_never_stopped",
    )
)
loss_and_gradient, train, update = right.loss_and_gradient, right.train, right._update


def training_with(**pieces: Callable[[], Function]) -> Function:
    """Give `train` with other pieces in its loop, made anew for each run."""

    def wrong(*arguments: Any, **options: Any) -> Any:
        with contextlib.ExitStack() as patches:
            for name, make in pieces.items():
                patches.enter_context(mock.patch.object(right, name, make()))
            return train(*arguments, **options)

    return wrong


def added(one: Tree, other: Tree, share: float = 1.0) -> Tree:
    """Give one + share * other, number by number."""
    return map_tree(lambda a, b: a + share * b, one, other)


# ---------------------------------------------------------------------------------------------- one step


def gradients_never_cleared() -> Function:
    """Add each gradient to those of all steps before."""
    held: Tree | None = None

    def wrong(*arguments: Any, **options: Any) -> Any:
        nonlocal held
        loss, gradient = loss_and_gradient(*arguments, **options)
        held = gradient if held is None else added(held, gradient)
        return loss, held

    return wrong


def gradients_cleared_before_the_step(params: Tree, gradient: Tree, moments: Moments, **options: Any) -> Any:
    """Set the gradient to 0 after it was computed and before it is used."""
    return update(params, map_tree(np.zeros_like, gradient), moments, **options)


def clipped_before_it_is_there(grads: Any, *, max_norm: float) -> Any:
    """Clip what was there before: the gradient that is used comes afterwards, as long as it is."""
    return grads, clip_grad_norm(grads, max_norm=max_norm)[1]


def decay_on_everything(param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, weight_decay: float) -> Any:
    """Put all parameters into one group."""
    return adamw_step(param, grad, m, v, step=step, lr=lr, weight_decay=weight_decay)


def decay_by_name(params: Tree, gradient: Tree, moments: Moments, *, lr: float, weight_decay: float) -> Any:
    """Spare what is called bias or LayerNorm.weight."""
    new: dict[str, Any] = {}
    others = (dict(leaves(tree)) for tree in (gradient, moments.m, moments.v))
    grads, m, v = others
    for name, param in leaves(params):
        decay = 0.0 if any(spared in name for spared in ("bias", "LayerNorm.weight")) else weight_decay
        new[name] = adamw_step(
            param, grads[name], m[name], v[name], step=moments.step + 1, lr=lr, weight_decay=decay
        )  # fmt: skip
    trees = [tree_from_leaves({name: arrays[place] for name, arrays in new.items()}) for place in (0, 1, 2)]
    return trees[0], Moments(step=moments.step + 1, m=trees[1], v=trees[2])


def rate_set_after_the_step(step: int, *, max_lr: float, **options: Any) -> Any:
    """Take the step with the rate that the step before has left, the first with the whole rate."""
    return np.asarray(max_lr) if step == 0 else warmup_cosine(step - 1, max_lr=max_lr, **options)


def next_rate_logged(
    params: Tree, config: Any, batches: Any, recipe: Recipe, *, on_step: Any = None, **options: Any
) -> Any:
    """Log the rate that is set once the step is taken."""

    def logged(step: Step, snapshot: Any) -> None:
        schedule = {"warmup": recipe.warmup, "total": recipe.steps, "max_lr": recipe.lr, "min_lr": recipe.min_lr}
        on_step(replace(step, lr=float(warmup_cosine(step.number, **schedule))), snapshot)

    return train(params, config, batches, recipe, on_step=on_step and logged, **options)


# ---------------------------------------------------------------------------------- several batches a step


def in_micro_batches(
    share: Callable[[int, list[int], int], float], after_each: Callable[[Tree], Tree] = lambda gradient: gradient
) -> Function:
    """Build the loss and gradient of a batch from those of its rows.

    `share(i, counts, n)` is what row i of n counts, whose rows have `counts` targets.
    """

    def accumulated(params: Tree, config: Any, batch: Batch, *, keep: Tree | None = None) -> Any:
        ids, targets = batch
        counts = [int((row != IGNORED).sum()) for row in targets]
        total, gradient = 0.0, map_tree(np.zeros_like, params)
        for i in range(len(ids)):
            row = slice(i, i + 1)
            its_keep = None if keep is None else map_tree(lambda mask, row=row: mask[row], keep)
            loss, its_gradient = loss_and_gradient(params, config, (ids[row], targets[row]), keep=its_keep)
            weight = share(i, counts, len(ids))
            total += weight * float(loss)
            gradient = after_each(added(gradient, its_gradient, weight))
        return np.asarray(total), gradient

    return accumulated


def by_targets(i: int, counts: list[int], n: int) -> float:
    """Weigh a row by its targets: the right way."""
    return counts[i] / sum(counts)


K = 2
"""So many micro-batches make a window, and a step is taken where a window is full."""


def dropped_remainder(i: int, counts: list[int], n: int) -> float:
    """Leave out what does not fill a window."""
    return by_targets(i, counts, n) if i < n - n % K else 0.0


def remainder_divided_by_all(i: int, counts: list[int], n: int) -> float:
    """Divide the last window by K, however many micro-batches it has."""
    return by_targets(i, counts, n) * (1.0 if i < n - n % K else (n % K) / K)


# ------------------------------------------------------------------------------------------- evaluation


def ignored_in_the_denominator(params: Tree, config: Any, batches: Iterable[Batch]) -> Evaluation:
    """Sum over the targets that count and divide by the number of all places."""
    total, places = 0.0, 0
    for ids, targets in batches:
        n = int((targets != IGNORED).sum())
        total += n * float(cross_entropy(transformer(ids, params, config), targets, ignore_index=IGNORED))
        places += targets.size
    return Evaluation(loss=total / places, perplexity=float(perplexity(total, places)), n_tokens=places)


@contextlib.contextmanager
def autocast_around_the_loop(device: Any) -> Iterator[None]:
    """Enter autocast once, around all steps."""
    import torch  # not above: it takes a second

    with torch.random.fork_rng(devices=[]), torch.autocast(device.type, dtype=torch.bfloat16):
        yield


PITFALLS = (
    Pitfall(
        id="training.gradients_never_cleared",
        catalogue=("systems/no_zero_grad",),
        sources=("https://preproom.ai/learn/model-training-pytorch.html",),
        does="Gradients are never cleared, so that each update uses the sum of those of all steps so far.",
        shows="Steps grow longer and training becomes unstable: two steps on a gradient of 1 move by 3 and not by 2.",
        mend="Clear the gradients once in each step.",
        visibility="silent",
        programs={f"{LOOP}.train": training_with(loss_and_gradient=gradients_never_cleared)},
        caught_by=(RESUMED,),
    ),
    Pitfall(
        id="training.gradients_cleared_before_the_step",
        catalogue=("systems/zero_grad_between_backward_and_step",),
        sources=("https://github.com/Tony-Y/pytorch_warmup/issues/12",),
        does="The gradients are cleared after they are computed and before the optimizer reads them.",
        shows="The parameters never move, or by weight decay alone.",
        mend="Clear the gradients before the backward pass, or after the step.",
        visibility="silent",
        programs={f"{LOOP}._update": gradients_cleared_before_the_step},
        caught_by=(STEP, CLIPPING),
    ),
    Pitfall(
        id="training.clipped_before_the_gradient_is_there",
        catalogue=("systems/clip_before_backward",),
        sources=(
            "https://github.com/simchowitzlabpublic/nano-world-model/pull/22",
            "https://github.com/yandex-research/tabm/issues/20",
            "https://github.com/huggingface/transformers/issues/1563",
        ),
        does="Clipping comes before the backward pass, so that it acts on gradients that the pass then replaces.",
        shows="Updates are as long as without clipping.",
        mend="Clip after the last backward pass and before the step.",
        visibility="silent",
        programs={f"{LOOP}.clip_grad_norm": clipped_before_it_is_there},
        caught_by=(CLIPPING,),
    ),
    Pitfall(
        id="training.decay_on_gains_and_biases",
        catalogue=("systems/weight_decay_on_norm_and_bias",),
        sources=(
            "https://github.com/ServiceNow/Fast-LLM/issues/542",
            "https://github.com/Lightning-AI/lit-llama/issues/254",
            "https://github.com/CyberZHG/keras-bert/issues/60",
            "https://github.com/dingo-actual/om/issues/12",
        ),
        does="All parameters are in one group, so that gains and biases decay too.",
        shows="A gain whose gradient is 0 shrinks; nothing fails.",
        mend="Let matrices and tables decay, and see to it that each parameter is in exactly one group.",
        visibility="training",
        programs={f"{LOOP}._updated": decay_on_everything},
        caught_by=(DECAY,),
    ),
    Pitfall(
        id="training.decay_spared_by_name",
        catalogue=("systems/no_decay_matched_by_name",),
        sources=(
            "https://github.com/huggingface/transformers/issues/492",
            "https://github.com/huggingface/transformers/issues/10239",
            "https://github.com/huggingface/transformers/issues/4832",
        ),
        does="What must not decay is found by its name, `bias` or `LayerNorm.weight`, which other models do not use.",
        shows="Gains and biases of other names decay; nothing fails.",
        mend="Decide by the number of axes or by the type of the layer, not by the name.",
        visibility="training",
        programs={f"{LOOP}._update": decay_by_name},
        caught_by=(DECAY,),
    ),
    Pitfall(
        id="training.rate_set_after_the_step",
        catalogue=("systems/manual_warmup_after_step_skips_first",),
        sources=("https://github.com/Lightning-AI/pytorch-lightning/issues/17972",),
        does="The rate of the schedule is written after the step, so that the first update has the whole rate.",
        shows="The longest step of all is taken on weights that were just drawn.",
        mend="Write the rate before the step.",
        visibility="training",
        programs={f"{LOOP}.warmup_cosine": rate_set_after_the_step},
        caught_by=(STEP,),
    ),
    Pitfall(
        id="training.next_rate_logged",
        catalogue=("systems/lr_logged_not_lr_used",),
        sources=("https://github.com/saforem2/ezpz/pull/128",),
        does="The rate is logged after the schedule has moved on, so that the log holds that of the next step.",
        shows="The curve of the rate is shifted by one step: a first rate that is not the one that was used.",
        mend="Log the number that the step used.",
        visibility="silent",
        programs={f"{LOOP}.train": next_rate_logged},
        caught_by=(STEP,),
    ),
    Pitfall(
        id="training.mean_of_means",
        catalogue=("systems/grad_accum_mean_of_means",),
        sources=(
            "https://github.com/huggingface/transformers/pull/34191",
            "https://github.com/meta-pytorch/torchtune/pull/1875",
            "https://github.com/karpathy/nanochat/pull/59",
            "https://github.com/ml-explore/mlx-lm/pull/1544",
            "https://github.com/huggingface/blog/pull/2414",
        ),
        does="The gradients of micro-batches with different numbers of targets are averaged alike.",
        shows="Accumulated gradients are not those of the whole batch; targets of short rows weigh more.",
        mend="Divide the sum over all targets of a step by their number.",
        visibility="training",
        programs={f"{LOOP}.loss_and_gradient": in_micro_batches(lambda i, counts, n: 1 / n)},
        caught_by=(ACCUMULATION,),
    ),
    Pitfall(
        id="training.accumulated_without_dividing",
        catalogue=("systems/accumulation_loss_not_divided",),
        sources=(
            "https://github.com/ApolloResearch/e2e_sae/pull/70",
            "https://github.com/llm-random/llm-random/pull/529",
            "https://github.com/fredzzhang/atlas/pull/26",
        ),
        does="The mean losses of K micro-batches are summed and not divided by K.",
        shows="Gradients are K times as long as those of the whole batch.",
        mend="Divide once, by the number of targets of the whole step.",
        visibility="training",
        programs={f"{LOOP}.loss_and_gradient": in_micro_batches(lambda i, counts, n: 1.0)},
        caught_by=(ACCUMULATION,),
    ),
    Pitfall(
        id="training.clipped_in_each_micro_batch",
        catalogue=("systems/clip_every_microbatch",),
        sources=(
            "https://github.com/Deci-AI/super-gradients/pull/653",
            "https://github.com/catalyst-team/catalyst/issues/1319",
        ),
        does="The gradient is clipped after each micro-batch, while it is still being summed.",
        shows="The update depends on the order and number of micro-batches: clipped to 1, 3 and -3 give -1, not 0.",
        mend="Clip once, when the sum is whole.",
        visibility="silent",
        programs={
            f"{LOOP}.loss_and_gradient": in_micro_batches(
                by_targets, after_each=lambda gradient: clip_grad_norm(gradient, max_norm=0.05)[0]
            )
        },
        caught_by=(ACCUMULATION,),
    ),
    Pitfall(
        id="training.last_window_dropped",
        catalogue=("systems/last_partial_accumulation_dropped",),
        sources=(
            "https://github.com/timoschick/pet/issues/36",
            "https://github.com/tracel-ai/burn/issues/5695",
            "https://github.com/mflux-community/mflux/pull/447",
            "https://github.com/huggingface/transformers/issues/14309",
        ),
        does="A step is taken after every K micro-batches only, so that what is left at the end has no effect.",
        shows="The last samples move nothing, and where K exceeds the number of micro-batches none does.",
        mend="Take a step after the last micro-batch too, divided by its own number of targets.",
        visibility="silent",
        programs={f"{LOOP}.loss_and_gradient": in_micro_batches(dropped_remainder)},
        caught_by=(ACCUMULATION,),
    ),
    Pitfall(
        id="training.last_window_divided_by_all",
        catalogue=("systems/last_partial_accumulation_wrong_scale",),
        sources=(
            "https://github.com/Lightning-AI/pytorch-lightning/issues/19987",
            "https://github.com/jingyaogong/minimind/issues/749",
            "https://github.com/m2lines/Samudra/pull/476",
        ),
        does="The last micro-batches, fewer than K, are still divided by K.",
        shows="The last gradient of each epoch is too small.",
        mend="Divide by the number of targets that the step has.",
        visibility="training",
        programs={f"{LOOP}.loss_and_gradient": in_micro_batches(remainder_divided_by_all)},
        caught_by=(ACCUMULATION,),
    ),
    Pitfall(
        id="training.evaluation_counts_ignored",
        catalogue=("systems/ppl_ignored_tokens_in_denominator",),
        sources=(
            "https://github.com/meta-pytorch/torcheval/issues/154",
            "https://github.com/alex-hh/profam/pull/42",
        ),
        does="The loss that is reported is a sum over the targets that count, over the number of all places.",
        shows="Perplexity falls when padding is added.",
        mend="Divide by the number of targets that are not ignored.",
        visibility="silent",
        programs={f"{LOOP}.evaluate": ignored_in_the_denominator},
        caught_by=(EVALUATION,),
    ),
    Pitfall(
        id="training.no_grad_taken_for_eval",
        catalogue=("systems/no_grad_taken_for_eval",),
        sources=(
            "https://github.com/ipolharvard/ethos-ares/issues/20",
            "https://github.com/IBM/pytorch-seq2seq/issues/33",
        ),
        does="Evaluation turns gradients off and leaves the model in train mode, so that dropout is on.",
        shows="The same model on the same data has another loss each time, and a higher one.",
        mend="Put the model in eval mode besides, and back afterwards.",
        visibility="silent",
        programs={"reference.torch.training.mode": lambda model, training: contextlib.nullcontext()},
        caught_by=("spec_tests.test_training.test_evaluation_drops_nothing_and_gives_the_same_number_twice",),
    ),
    Pitfall(
        id="training.autocast_around_the_loop",
        catalogue=("systems/autocast_around_backward_and_step",),
        sources=("https://github.com/pytorch/pytorch/issues/120376",),
        does="The whole loop runs inside one autocast, which keeps its low-precision copies of the weights to the end.",
        shows="The first update is right and then the model computes with the weights that it began with, so that the "
        "loss falls too little.",
        mend="Enter autocast anew in each step, around the forward pass and the loss only.",
        visibility="training",
        programs={"reference.torch.training._generator_restored": autocast_around_the_loop},
        caught_by=("spec_tests.test_training.test_the_loss_of_a_step_is_that_of_the_parameters_before_it",),
    ),
)

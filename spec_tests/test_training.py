"""What is true of training, in both twins: it learns what there is to learn, and nothing that it should not see."""

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from reference import data
from reference.config import ACTIVATIONS, VARIANTS, LayerNorm, Learned, ModelConfig, NoPositions, Sinusoidal
from reference.data import IGNORED, Batch
from reference.numpy import training as numpy_training
from reference.numpy import warmup_cosine
from reference.parameters import Tree, init_params, leaves, map_tree, parameter_shapes
from reference.recipe import Recipe
from reference.runs import DivergenceError, Evaluation, Moments, Snapshot, Step
from reference.shape_checks import unchecked
from reference.torch import Transformer, cross_entropy, export_params, load_params
from reference.torch import training as torch_training

VOCAB = 8

CONFIGS = st.builds(
    ModelConfig,
    vocab=st.just(VOCAB),
    d_model=st.sampled_from((16, 24)),
    n_heads=st.sampled_from((1, 2)),
    n_layers=st.sampled_from((1, 2)),
    d_ff=st.sampled_from((32, 48)),
    max_len=st.just(16),
    positions=st.sampled_from((Sinusoidal(), Learned(), NoPositions())),
    norm=st.sampled_from((LayerNorm(), LayerNorm(variant="std_plus_eps"))),
    norm_placement=st.sampled_from(("pre", "post")),
    activation=st.sampled_from(("relu", "gelu")),
    tied_head=st.booleans(),
)
"""Small causal models of every kind."""

SEEDS = st.integers(0, 2**32 - 1)
FEW = settings(deadline=None, max_examples=2, phases=(Phase.explicit, Phase.generate))
"""A training run takes a second: few, and none to make a failure smaller."""
SOME = settings(deadline=None, max_examples=10)
"""A step or two take milliseconds."""


# ------------------------------------------------------------------------------------------------ the two twins


class Twin(Protocol):
    """Training by one of the twins, as functions of parameter trees."""

    def train(
        self, params: Tree, config: ModelConfig, batches: Callable[[int], Batch], recipe: Recipe, **options: Any
    ) -> tuple[Tree, Moments]:
        """Give the parameters and moments after the recipe's steps."""
        ...

    def evaluate(self, params: Tree, config: ModelConfig, batches: Iterable[Batch]) -> Evaluation:
        """Measure the loss."""
        ...

    def loss_and_gradient(
        self, params: Tree, config: ModelConfig, batch: Batch, *, keep: Tree | None = None
    ) -> tuple[Any, Tree]:
        """Give the loss of a batch and its gradient."""
        ...


class TorchTwin:
    """Production: a module that the tree is loaded into, and taken out of again."""

    def train(
        self, params: Tree, config: ModelConfig, batches: Callable[[int], Batch], recipe: Recipe, **options: Any
    ) -> tuple[Tree, Moments]:
        """Give the parameters and moments after the recipe's steps."""
        model = built(config, params)
        moments = torch_training.train(model, batches, recipe, **options)
        return export_params(model), moments

    def evaluate(self, params: Tree, config: ModelConfig, batches: Iterable[Batch]) -> Evaluation:
        """Measure the loss."""
        return torch_training.evaluate(built(config, params), batches)

    def loss_and_gradient(
        self, params: Tree, config: ModelConfig, batch: Batch, *, keep: Tree | None = None
    ) -> tuple[Any, Tree]:
        """Give the loss of a batch and its gradient, by autograd."""
        model = built(config, params).eval()
        ids, targets = map(torch.from_numpy, batch)
        logits = model(ids, keep=None if keep is None else map_tree(torch.from_numpy, keep))
        loss = cross_entropy(logits, targets, ignore_index=IGNORED)
        loss.backward()
        gradients = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
        return loss.detach().numpy(), in_places_of(params, gradients)


NUMPY, TORCH = numpy_training, TorchTwin()
both_twins = pytest.mark.parametrize("twin", [NUMPY, TORCH], ids=["numpy", "torch"])


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """Train on one thread and without shape checks: these matrices are too small to share, and checked elsewhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with unchecked():
        yield
    torch.set_num_threads(threads)


def built(config: ModelConfig, params: Tree) -> Transformer:
    """Load a tree into a module of its dtype."""
    dtype = torch.from_numpy(params["token_embedding"]["table"]).dtype
    model = Transformer(config, dtype=dtype)
    load_params(model, params)
    return model


def in_places_of(tree: Tree, by_path: dict[str, Any]) -> Tree:
    """Give a tree with the leaves of `by_path`."""
    paths = iter([path for path, _ in leaves(tree)])
    return map_tree(lambda _: by_path[next(paths)], tree)


def general(config: ModelConfig, seed: int, scale: float = 0.3) -> Tree:
    """Draw parameters in general position: no gain is 1, no bias 0, no gradient vanishes by symmetry."""
    rng = np.random.default_rng(seed)
    return map_tree(lambda shape: scale * rng.standard_normal(shape), parameter_shapes(config))


def flat(tree: Tree) -> np.ndarray:
    """Give all numbers of a tree in one row."""
    return np.concatenate([array.ravel() for _, array in leaves(tree)])


def same(one: Tree, other: Tree) -> bool:
    """Tell whether two trees are equal to the bit."""
    return all(np.array_equal(array, dict(leaves(other))[path]) for path, array in leaves(one))


def recorded(twin: Twin, *arguments: Any, **options: Any) -> list[tuple[Step, Tree, Moments]]:
    """Train, and give each step with the parameters and moments after it."""
    steps: list[tuple[Step, Tree, Moments]] = []

    def on_step(step: Step, snapshot: Snapshot) -> None:
        steps.append((step, *snapshot()))

    twin.train(*arguments, **options, on_step=on_step)
    return steps


def small(**fields: Any) -> ModelConfig:
    """Give a small model of one block."""
    sizes = {"vocab": VOCAB, "d_model": 8, "n_heads": 2, "n_layers": 1, "d_ff": 16, "max_len": 8}
    return ModelConfig(**{**sizes, **fields})


def counting(rng: np.random.Generator, batch: int = 8, seq: int = 12) -> Batch:
    """Draw sequences that count upwards from anywhere, round and round: each token tells the next."""
    tokens = (rng.integers(0, VOCAB, (batch, 1)) + np.arange(seq + 1)) % VOCAB
    return tokens[:, :-1], tokens[:, 1:]


def noise(rng: np.random.Generator, batch: int, seq: int, ignored: float = 0.0) -> Batch:
    """Draw sequences in which no token tells anything about the next; a share of the targets is ignored."""
    tokens = rng.integers(0, VOCAB, (batch, seq + 1))
    ids, targets = tokens[:, :-1], tokens[:, 1:]
    targets = np.where(rng.random(targets.shape) < ignored, IGNORED, targets)
    targets[:, 0] = tokens[:, 1]  # at least one a row counts
    return ids, targets


def entropy_floor(batch: Batch) -> float:
    """Give the least loss that a causal model can reach on a batch.

    Where several places have the same prefix it must give them the same prediction, and does best with the
    frequencies of their targets.
    """
    ids, targets = batch
    followed: dict[tuple[int, ...], Counter[int]] = {}
    for row, answers in zip(ids.tolist(), targets.tolist(), strict=True):
        for place, answer in enumerate(answers):
            followed.setdefault(tuple(row[: place + 1]), Counter())[answer] += 1
    surprise = sum(
        n * math.log(total / n)
        for answers in followed.values()
        for total in [sum(answers.values())]
        for n in answers.values()
    )
    return surprise / targets.size


# ------------------------------------------------------------------------------------------- one run, two twins


@st.composite
def runs(draw: st.DrawFn) -> tuple[ModelConfig, Recipe]:
    """Draw a model and a recipe of 50 steps for it."""
    config = ModelConfig(
        vocab=11,
        d_model=12,
        n_heads=draw(st.sampled_from((1, 2, 3))),
        n_layers=draw(st.sampled_from((1, 2, 3, 0))),
        d_ff=draw(st.sampled_from((7, 16))),
        max_len=6,
        embedding_scale=draw(st.sampled_from((1.0, 3.0))),
        positions=draw(st.sampled_from((Sinusoidal(), Learned(), NoPositions()))),
        norm=LayerNorm(
            variant=draw(st.sampled_from(VARIANTS)),
            eps=draw(st.sampled_from((1e-5, 0.1))),
            affine=draw(st.booleans()),
        ),
        norm_placement=draw(st.sampled_from(("pre", "post"))),
        final_norm=draw(st.booleans()),
        attention_bias=draw(st.booleans()),
        output_projection=draw(st.booleans()),
        activation=draw(st.sampled_from(ACTIVATIONS)),
        causal=draw(st.booleans()),
        tied_head=draw(st.booleans()),
        head_bias=draw(st.booleans()),
        dropout=draw(st.sampled_from((0.0, 0.25))),
    )
    recipe = Recipe(
        steps=50,
        lr=draw(st.sampled_from((0.001, 0.01))),
        min_lr=draw(st.sampled_from((0.0, 0.0005))),
        warmup=draw(st.sampled_from((0, 1, 10, 50))),
        weight_decay=draw(st.sampled_from((0.0, 0.01, 0.5))),
        clip_norm=draw(st.sampled_from((None, 0.1, 1.0))),
    )
    return config, recipe


def first_difference(one: list[tuple[Step, Tree, Moments]], other: list[tuple[Step, Tree, Moments]]) -> str | None:
    """Name the first step, and in it the loss or the first tensor, in which two runs differ."""
    assert len(one) == len(other)
    for (ours, our_tree, _), (theirs, their_tree, _) in zip(one, other, strict=True):
        if not abs(ours.loss - theirs.loss) <= 1e-9:
            return f"step {ours.number}: losses {ours.loss!r} and {theirs.loss!r}"
        their_leaves = dict(leaves(their_tree))
        for name, array in leaves(our_tree):
            if not (off := np.abs(array - their_leaves[name]).max()) <= 1e-8:
                return f"step {ours.number}: {name} differs by {off:.1e}"
    return None


@settings(deadline=None, max_examples=8, phases=(Phase.explicit, Phase.generate))
@given(run=runs(), seed=SEEDS)
def test_a_run_is_the_same_in_both_twins(run: tuple[ModelConfig, Recipe], seed: int) -> None:
    """Over 50 steps from one tree, on the same batches and keep-masks, losses agree to 1e-9 and parameters to 1e-8.

    What AdamW makes of rounding bounds what can be asked. Where a gradient is 0 in exact arithmetic but rounds to
    some 1e-18 ... 1e-17, as that of a key bias does (it adds the same to all scores of a query), the step
    lr m / (sqrt(v) + eps) divides this by eps = 1e-8: with an lr of at most 0.01 the twins drift apart by at most some
    1e-11 a step in such a tensor, 5e-10 in 50, and nothing depends on it. Other directions without a gradient, such
    as a shift of everything that a layer norm takes the mean from, do not lie along one parameter, so the gradients
    that share their v keep it from being small; embeddings of unused tokens, positions past the end and dead units
    have a gradient of exactly 0 in both. So widths are large enough (12), weights (0.3) and losses near 1, that
    gradients stand far above rounding; nothing is left out to make the comparison pass.
    """
    config, recipe = run
    initial = general(config, seed)

    def batch(step: int) -> Batch:
        return noise(np.random.default_rng((seed, step)), batch=3, seq=5, ignored=0.2)

    def keep_masks(step: int) -> Tree | None:
        return data.keep_masks(config, (3, 5), seed=seed, step=step)

    numpys, torchs = (recorded(twin, initial, config, batch, recipe, keep_masks=keep_masks) for twin in (NUMPY, TORCH))
    assert (difference := first_difference(numpys, torchs)) is None, difference
    for (ours, _, _), (theirs, _, _) in zip(numpys, torchs, strict=True):
        assert (ours.number, ours.n_tokens) == (theirs.number, theirs.n_tokens)
        assert ours.lr == pytest.approx(theirs.lr, rel=1e-14)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-7)


@FEW
@given(seed=SEEDS, place=st.integers(0, 10))
def test_where_runs_differ_the_first_step_and_tensor_are_named(seed: int, place: int) -> None:
    """A run that changes one tensor of the moments, and nothing else, differs first in that tensor, in the next step.

    The tensor has an effect, as its moment is changed by 1, in every number.
    """
    config, recipe = small(attention_bias=True), Recipe(steps=8, lr=0.01, clip_norm=None)
    initial, rng = general(config, seed), np.random.default_rng(seed)
    batches = [noise(rng, 3, 8) for _ in range(recipe.steps)]
    run = recorded(NUMPY, initial, config, batches.__getitem__, recipe)
    assert first_difference(run, run) is None
    _, params, moments = run[4]
    name = sorted(dict(leaves(moments.m)))[place]
    dict(leaves(moments.m))[name][...] += 1.0
    changed = recorded(TORCH, params, config, batches.__getitem__, recipe, moments=moments)
    assert str(first_difference(run, run[:5] + changed)).startswith(f"step 6: {name} differs by")


@both_twins
@SOME
@given(seed=SEEDS, dropout=st.sampled_from((0.0, 0.3)), dtype=st.sampled_from((np.float32, np.float64)))
def test_a_run_goes_on_as_if_it_had_never_stopped(twin: Twin, seed: int, dropout: float, dtype: Any) -> None:
    """From the parameters and moments after step k, the other steps are those of the whole run, bit for bit."""
    config, recipe = small(dropout=dropout, tied_head=True), Recipe(steps=6, lr=0.01, warmup=4, seed=seed)
    initial = map_tree(lambda array: array.astype(dtype), general(config, seed))

    def batch(step: int) -> Batch:
        return noise(np.random.default_rng((seed, step)), 3, 8)

    whole = recorded(twin, initial, config, batch, recipe)
    stopped = seed % 7
    params, moments = whole[stopped - 1][1:] if stopped else (initial, None)
    rest = recorded(twin, params, config, batch, recipe, moments=moments)
    assert [step for step, _, _ in rest] == [step for step, _, _ in whole[stopped:]]
    last, last_moments = twin.train(params, config, batch, recipe, moments=moments)
    assert same(last, whole[-1][1])
    assert last_moments.step == whole[-1][2].step == recipe.steps
    assert same(last_moments.m, whole[-1][2].m)
    assert same(last_moments.v, whole[-1][2].v)


@both_twins
@FEW
@given(seed=SEEDS)
def test_a_run_does_not_depend_on_how_its_arrays_are_stored(twin: Twin, seed: int) -> None:
    """Parameters stored by columns give the same run, bit for bit, as those stored by rows, which a file holds."""
    config, recipe = small(d_model=24, d_ff=48, tied_head=True), Recipe(steps=4, lr=0.01)
    by_rows, batch = general(config, seed), noise(np.random.default_rng(seed), 3, 8)
    by_columns = map_tree(np.asfortranarray, by_rows)
    one, other = (twin.train(params, config, lambda step: batch, recipe)[0] for params in (by_rows, by_columns))
    assert same(one, other)


@SOME
@given(seed=SEEDS)
def test_the_specification_writes_to_nothing_that_it_is_given(seed: int) -> None:
    """NumPy training is a function: trees that cannot be written to will do, and what it gives is nobody else's."""
    config, recipe = small(dropout=0.3), Recipe(steps=2, lr=0.01)
    params = general(config, seed)
    moments = Moments(step=1, m=general(config, seed + 1), v=map_tree(np.square, general(config, seed + 2)))
    batch = noise(np.random.default_rng(seed), 3, 8)
    keep = data.keep_masks(config, (3, 8), seed=seed, step=1)
    for array in (*batch, *(array for tree in (params, moments.m, moments.v, keep) for _, array in leaves(tree))):
        array.flags.writeable = False
    handed_out: list[tuple[Tree, Moments]] = []

    def on_step(step: Step, snapshot: Snapshot) -> None:
        handed_out.append(snapshot())

    last, last_moments = NUMPY.train(
        params, config, lambda step: batch, recipe, moments=moments, keep_masks=lambda step: keep, on_step=on_step
    )
    for tree in (handed_out[0][0], handed_out[0][1].m, handed_out[0][1].v):
        for _, array in leaves(tree):
            array[...] = np.nan
    assert np.isfinite(flat(last)).all()
    assert np.isfinite(flat(last_moments.m)).all()


@SOME
@given(seed=SEEDS)
def test_the_specification_draws_the_documented_keep_masks(seed: int) -> None:
    """Without keep_masks, step k of a NumPy run drops what `reference.data.keep_masks` of (recipe.seed, k) says."""
    config, recipe = small(dropout=0.4), Recipe(steps=3, lr=0.01, seed=seed)
    batch = noise(np.random.default_rng(seed), 3, 8)
    drawn = NUMPY.train(general(config, seed), config, lambda step: batch, recipe)[0]

    def keep_masks(step: int) -> Tree | None:
        return data.keep_masks(config, (3, 8), seed=seed, step=step)

    given_masks = NUMPY.train(general(config, seed), config, lambda step: batch, recipe, keep_masks=keep_masks)[0]
    without = NUMPY.train(general(config, seed), config, lambda step: batch, recipe, keep_masks=lambda step: None)[0]
    assert same(drawn, given_masks)
    assert not same(drawn, without)


# --------------------------------------------------------------------------------------------- what is learned


@both_twins
@FEW
@given(config=CONFIGS, seed=SEEDS)
def test_training_lowers_the_loss(twin: Twin, config: ModelConfig, seed: int) -> None:
    """Sixty steps on counting sequences bring the loss from log(vocab) to less than half of it."""
    params, rng = init_params(config, seed=seed), np.random.default_rng(seed)
    fresh = [counting(rng)]
    before = twin.evaluate(params, config, fresh).loss
    assert abs(before - math.log(VOCAB)) < 0.5
    recipe = Recipe(steps=60, lr=0.02, warmup=5, weight_decay=0.0)
    params, _ = twin.train(params, config, lambda step: counting(rng), recipe)
    assert twin.evaluate(params, config, fresh).loss < before / 2


@both_twins
@FEW
@given(config=CONFIGS, seed=SEEDS)
def test_one_batch_is_memorised_down_to_its_entropy_floor(twin: Twin, config: ModelConfig, seed: int) -> None:
    """A repeated batch is learned to within 0.1 of what equal prefixes with different targets leave open."""
    tokens = np.random.default_rng(seed).integers(0, VOCAB, (6, 5))
    tokens[:3, 0], tokens[1, 1] = tokens[0, 0], tokens[0, 1]  # three begin alike, two of them even longer
    batch = tokens[:, :-1], tokens[:, 1:]
    floor = entropy_floor(batch)
    if config.positions == NoPositions():  # which cannot tell equal tokens in a row apart
        config = replace(config, positions=Learned())
    recipe = Recipe(steps=200, lr=0.01, warmup=10, weight_decay=0.0)
    params, _ = twin.train(init_params(config, seed=seed), config, lambda step: batch, recipe)
    loss = twin.evaluate(params, config, [batch]).loss
    assert floor - 1e-9 < loss < floor + 0.1


@both_twins
@FEW
@given(seed=SEEDS)
def test_falling_loss_on_noise_is_memory_of_its_sequences(twin: Twin, seed: int) -> None:
    """Trained again and again on the same noise, a causal model falls below log(vocab) there, and nowhere else.

    So tutorial 001's falling perplexity on random bytes is no learning: its 1,000 sequences are remembered. On noise
    that it has not seen a model that is so sure of itself loses 5 nats and more, where log(vocab) is 2.1; the mean
    over 512 targets, each independent of what the model saw, has a deviation of 0.2, so to fall below log(vocab) it
    would have to be off by more than ten of them.
    """
    config, rng = small(d_model=24, d_ff=48, positions=Learned()), np.random.default_rng(seed)
    sequences = data.ShuffledSequences(sequences=rng.integers(0, VOCAB, (12, 9)), batch_size=6, seed=seed)
    recipe = Recipe(steps=80, lr=0.02, warmup=10, weight_decay=0.0)
    params, _ = twin.train(init_params(config, seed=seed), config, sequences.batch, recipe)
    assert twin.evaluate(params, config, sequences.evaluation()).loss < 0.5 * math.log(VOCAB)
    assert twin.evaluate(params, config, [noise(rng, 64, 8)]).loss > math.log(VOCAB)


@both_twins
@SOME
@given(config=CONFIGS, seed=SEEDS, scale=st.sampled_from((0.01, 0.3, 3.0)))
def test_averaged_over_all_targets_no_loss_is_below_log_vocab(
    twin: Twin, config: ModelConfig, seed: int, scale: float
) -> None:
    """Let each token be the target once: whatever the model, the mean loss is log(vocab) or more.

    For - mean_c log p_c >= log(vocab) where the p_c sum to 1, by Jensen's inequality: so no model predicts noise.
    """
    params, (ids, targets) = general(config, seed, scale), noise(np.random.default_rng(seed), 4, 8)
    every_target = [(ids, (targets + shift) % VOCAB) for shift in range(VOCAB)]
    assert twin.evaluate(params, config, every_target).loss >= math.log(VOCAB) - 1e-12


@both_twins
@FEW
@given(seed=SEEDS)
def test_without_a_causal_mask_the_next_token_is_read_not_predicted(twin: Twin, seed: int) -> None:
    """On noise a causal model cannot beat log(vocab); one that sees ahead seems to, by looking at the answer."""
    losses = {}
    for causal in (True, False):
        config = small(d_model=32, d_ff=32, positions=Learned(), causal=causal)
        rng = np.random.default_rng(seed)
        recipe = Recipe(steps=80, lr=0.02, warmup=10, weight_decay=0.0)
        params, _ = twin.train(init_params(config, seed=seed), config, lambda step, rng=rng: noise(rng, 16, 8), recipe)
        losses[causal] = twin.evaluate(params, config, [noise(rng, 64, 8)]).loss
    assert losses[True] > 0.95 * math.log(VOCAB)
    assert losses[False] < 0.5 * math.log(VOCAB)


# ------------------------------------------------------------------------------------------------ what a step is


@both_twins
@SOME
@given(config=CONFIGS, seed=SEEDS, cuts=st.sets(st.integers(1, 6), max_size=3))
def test_accumulated_gradients_are_those_of_the_whole_batch(
    twin: Twin, config: ModelConfig, seed: int, cuts: set[int]
) -> None:
    """However a batch is split, losses and gradients weighed by the targets that count add up to those of the batch."""
    params, (ids, targets) = general(config, seed), noise(np.random.default_rng(seed), 7, 8, ignored=0.5)
    loss, gradient = twin.loss_and_gradient(params, config, (ids, targets))
    counted = int((targets != IGNORED).sum())
    total, accumulated = 0.0, np.zeros_like(flat(params))
    for first, last in zip([0, *sorted(cuts)], [*sorted(cuts), 7], strict=True):
        part = ids[first:last], targets[first:last]
        share = int((part[1] != IGNORED).sum()) / counted
        its_loss, its_gradient = twin.loss_and_gradient(params, config, part)
        total += share * float(its_loss)
        accumulated += share * flat(its_gradient)
    assert total == pytest.approx(float(loss), rel=1e-12)
    assert np.abs(accumulated - flat(gradient)).max() <= 1e-12 * np.abs(flat(gradient)).max()


@both_twins
@SOME
@given(config=CONFIGS, seed=SEEDS, clip_norm=st.sampled_from((1e-3, 0.05, 1e3, None)))
def test_clipping_is_between_the_gradient_and_the_step(
    twin: Twin, config: ModelConfig, seed: int, clip_norm: float | None
) -> None:
    """AdamW gets the gradient in its direction, at most clip_norm long; what is recorded is its length before."""
    params, batch = general(config, seed), noise(np.random.default_rng(seed), 4, 8, ignored=0.3)
    gradient = flat(twin.loss_and_gradient(params, config, batch)[1])
    length = np.linalg.norm(gradient)
    [(step, _, moments)] = recorded(
        twin, params, config, lambda step: batch, Recipe(steps=1, lr=0.01, clip_norm=clip_norm)
    )
    assert step.grad_norm == pytest.approx(length, rel=1e-12)
    used = gradient * min(1.0, (clip_norm or math.inf) / length)
    close = 1e-12 * np.linalg.norm(used)
    assert np.abs(flat(moments.m) - 0.1 * used).max() <= close  # m = (1 - beta_1) g after the first step
    assert np.abs(np.sqrt(1000 * flat(moments.v)) - np.abs(used)).max() <= close  # v = (1 - beta_2) g^2


@both_twins
@SOME
@given(config=CONFIGS, seed=SEEDS, warmup=st.sampled_from((0, 1, 3, 5)))
def test_the_first_step_uses_the_first_rate(twin: Twin, config: ModelConfig, seed: int, warmup: int) -> None:
    """Step k uses `warmup_cosine(k)` from k = 0 on, which is not 0, and the first moves each number by its lr.

    For m and v are g and g^2 after the correction of their bias: theta - lr decay theta - lr g / (|g| + eps).
    """
    params, batch = general(config, seed), noise(np.random.default_rng(seed), 4, 8)
    recipe = Recipe(steps=5, lr=0.01, min_lr=0.001, warmup=warmup, weight_decay=0.1, clip_norm=None)
    run = recorded(twin, params, config, lambda step: batch, recipe)
    rates = [float(warmup_cosine(k, warmup=warmup, total=5, max_lr=0.01, min_lr=0.001)) for k in range(5)]
    assert [step.lr for step, _, _ in run] == rates
    assert [step.number for step, _, _ in run] == [1, 2, 3, 4, 5]
    lr, gradient = rates[0], twin.loss_and_gradient(params, config, batch)[1]
    assert lr > 0

    def moved(param: np.ndarray, g: np.ndarray) -> np.ndarray:
        decay = 0.1 if param.ndim == 2 else 0.0
        return param - lr * decay * param - lr * g / (np.abs(g) + 1e-8)

    should = flat(map_tree(moved, params, gradient))
    assert np.abs(flat(run[0][1]) - should).max() <= 1e-9  # a gradient of rounding size, over eps


@SOME
@given(config=CONFIGS, seed=SEEDS, autocast=st.sampled_from((None, torch.bfloat16)))
def test_the_loss_of_a_step_is_that_of_the_parameters_before_it(
    config: ModelConfig, seed: int, autocast: torch.dtype | None
) -> None:
    """The loss of a step of PyTorch is what the step before made of the parameters, in reduced precision too."""
    params = map_tree(lambda array: array.astype(np.float32), general(config, seed))
    batch = noise(np.random.default_rng(seed), 4, 8)
    run = recorded(TORCH, params, config, lambda step: batch, Recipe(steps=4, lr=0.05), autocast=autocast)
    for step, after, _ in run:
        assert step.loss == torch_training.evaluate(built(config, params), [batch], autocast=autocast).loss
        params = after


@both_twins
@SOME
@given(config=CONFIGS, seed=SEEDS, attention_bias=st.booleans())
def test_decay_leaves_gains_and_biases_alone(twin: Twin, config: ModelConfig, seed: int, attention_bias: bool) -> None:
    """One step with decay differs from one without by lr decay theta in matrices and tables, and in nothing else."""
    config = replace(config, attention_bias=attention_bias)
    params, batch = general(config, seed), noise(np.random.default_rng(seed), 4, 8)
    without, decayed = (
        dict(leaves(twin.train(params, config, lambda step: batch, Recipe(steps=1, lr=0.01, weight_decay=decay))[0]))
        for decay in (0.0, 0.5)
    )
    for name, param in leaves(params):
        if name.rsplit(".", 1)[-1] in ("gamma", "beta", "b", "b_q", "b_k", "b_v", "b_o", "b_1", "b_2"):
            assert np.array_equal(decayed[name], without[name]), name
        else:
            assert np.allclose(without[name] - decayed[name], 0.01 * 0.5 * param, rtol=0, atol=1e-15), name


# -------------------------------------------------------------------------------------------------- evaluation


@both_twins
@SOME
@given(seed=SEEDS)
def test_evaluation_drops_nothing_and_gives_the_same_number_twice(twin: Twin, seed: int) -> None:
    """A loss that is measured is that of the model without dropout, every time."""
    config, batches = small(dropout=0.5, n_layers=2), [noise(np.random.default_rng(seed), 3, 8) for _ in range(2)]
    params = general(config, seed)
    first, second = (twin.evaluate(params, config, batches) for _ in range(2))
    assert first == second
    assert first == twin.evaluate(params, replace(config, dropout=0.0), batches)


@SOME
@given(seed=SEEDS, training=st.booleans())
def test_evaluation_and_training_restore_the_mode(seed: int, training: bool) -> None:
    """Evaluating or training a module leaves every part of it in the mode it was in."""
    config, batches = small(dropout=0.5, n_layers=2), [noise(np.random.default_rng(seed), 3, 8) for _ in range(2)]
    model = built(config, general(config, seed))
    model.train(training)
    model.blocks[0].train(not training)
    before = [part.training for part in model.modules()]
    torch_training.evaluate(model, batches)
    assert [part.training for part in model.modules()] == before
    torch_training.train(model, batches.__getitem__, Recipe(steps=2))
    assert [part.training for part in model.modules()] == before


@both_twins
@SOME
@given(seed=SEEDS)
def test_evaluation_weighs_every_target_alike(twin: Twin, seed: int) -> None:
    """The loss over batches of any sizes, ignored targets among them, is the mean over all targets that count."""
    config = small()
    params, (ids, targets) = general(config, seed), noise(np.random.default_rng(seed), 5, 8, ignored=0.3)
    whole = twin.evaluate(params, config, [(ids, targets)])
    parts = twin.evaluate(params, config, [(ids[:1], targets[:1]), (ids[1:], targets[1:])])
    assert whole.n_tokens == parts.n_tokens == int((targets != IGNORED).sum())
    loss, _ = twin.loss_and_gradient(params, config, (ids, targets))
    assert whole.loss == pytest.approx(float(loss), rel=1e-12)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-12)
    assert parts.perplexity == pytest.approx(math.exp(whole.loss), rel=1e-12)


@both_twins
@SOME
@given(seed=SEEDS)
def test_evaluation_needs_a_target_that_counts(twin: Twin, seed: int) -> None:
    """Where all targets are ignored there is nothing to measure, which is a ValueError."""
    config = small()
    params, (ids, targets) = general(config, seed), noise(np.random.default_rng(seed), 2, 8)
    with pytest.raises(ValueError, match="n_tokens must be at least 1, got 0; give"):
        twin.evaluate(params, config, [(ids, np.full_like(targets, IGNORED))])


# --------------------------------------------------------------------------------------------- what goes wrong


@both_twins
@SOME
@given(seed=SEEDS, place=st.integers(0, 11), bad=st.sampled_from((math.nan, math.inf)))
def test_a_loss_that_is_not_finite_stops_training(twin: Twin, seed: int, place: int, bad: float) -> None:
    """NaN or infinity in a parameter is a DivergenceError that names it and the step, before the step is taken."""
    config = small(positions=Learned())
    params = general(config, seed)
    name = [path for path, _ in leaves(params)][place]
    dict(leaves(params))[name][...] = bad
    batch = noise(np.random.default_rng(seed), 8, 8)
    steps: list[Step] = []
    with pytest.raises(DivergenceError, match=rf"got loss nan in {name} at step 1; lower lr") as stopped:
        twin.train(params, config, lambda step: batch, Recipe(steps=2), on_step=lambda step, _: steps.append(step))
    assert (stopped.value.step, stopped.value.name) == (1, name)
    assert "\n" not in str(stopped.value)
    assert steps == []


@both_twins
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_gradient_that_is_not_finite_stops_training(twin: Twin, clip_norm: float | None) -> None:
    """A finite loss with an infinite gradient is a DivergenceError that names the first tensor; no parameter has moved.

    The loss is x (w_1 - w_0) = 3.4, and its gradient with respect to x, the sum of a token's and a position's
    embedding, is w_1 - w_0: larger than any float.
    """
    config = small(
        vocab=2, d_model=1, n_heads=1, n_layers=0, final_norm=False, head_bias=False, positions=Learned(), max_len=1
    )
    calm = map_tree(np.zeros, parameter_shapes(config))
    huge = map_tree(np.copy, calm)
    huge["token_embedding"]["table"][...] = 1e-308
    huge["output_head"]["w"][...] = [[-1.7e308, 1.7e308]]
    batch = np.array([[0]]), np.array([[0]])
    model = built(config, huge)
    with pytest.raises(DivergenceError, match=r"NaN or infinite in token_embedding\.table at step 3"):
        twin.train(
            huge, config, lambda step: batch, Recipe(steps=5, clip_norm=clip_norm),
            moments=Moments(step=2, m=calm, v=calm),
        )  # fmt: skip
    with pytest.raises(DivergenceError):
        torch_training.train(model, lambda step: batch, Recipe(steps=5, clip_norm=clip_norm))
    assert same(export_params(model), huge)


@both_twins
@SOME
@given(seed=SEEDS)
def test_what_cannot_be_trained_with_is_refused(twin: Twin, seed: int) -> None:
    """Ids or targets outside the vocab, and moments of another run, are errors that say what came and what would do."""
    config = small()
    params, ids, targets = general(config, seed), np.arange(8)[None], np.arange(7, -1, -1)[None]
    moments = Moments(step=3, m=map_tree(np.zeros_like, params), v=map_tree(np.zeros_like, params))
    other = general(small(d_ff=12), seed)
    for batch, options, error, words in (
        ((ids + 1, targets), {}, IndexError, "ids must lie in 0 ... 7"),
        ((ids - 1, targets), {}, IndexError, "ids must lie in 0 ... 7"),
        ((ids, targets + 1), {}, IndexError, "targets must lie in 0 ... 7"),
        (
            (ids, targets),
            {"moments": replace(moments, step=6)},
            ValueError,
            "moments.step must be at most the recipe's steps, got 6 and 5; give a recipe of at least 6 steps",
        ),
        (
            (ids, targets),
            {"moments": replace(moments, v=other)},
            ValueError,
            "moments.v must be shaped like the parameters, got (8, 12) where blocks.0.mlp.w_1 has (8, 16); give",
        ),
    ):
        with pytest.raises(error) as refused:
            twin.train(params, config, lambda step, batch=batch: batch, Recipe(steps=5), **options)
        assert words in str(refused.value)
        assert "; " in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0; give 1 or more"),
        ({"lr": math.nan}, "lr must be positive and finite, got nan; give a number such as 3e-4"),
        ({"warmup": 9, "steps": 5}, "warmup must be at most steps, got 9 and 5; give a tenth of steps"),
        ({"weight_decay": -0.1}, "weight_decay must be finite and not negative, got -0.1; give 0 for none"),
        ({"clip_norm": -1.0}, "clip_norm must be positive and finite, got -1.0; give 1.0, or None not to clip"),
        ({"clip_norm": 0.0}, "clip_norm must be positive and finite, got 0.0; give 1.0, or None not to clip"),
        ({"clip_norm": math.inf}, "clip_norm must be positive and finite, got inf; give 1.0, or None not to clip"),
        ({"clip_norm": math.nan}, "clip_norm must be positive and finite, got nan; give 1.0, or None not to clip"),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused(fields: dict[str, Any], words: str) -> None:
    """A recipe's numbers are checked when it is made, each with the rule, what came, and what would do."""
    with pytest.raises(ValueError, match="Recipe") as refused:
        Recipe(**{"steps": 3, **fields})
    assert words in str(refused.value)


def test_training_by_the_specification_needs_neither_torch_nor_scipy() -> None:
    """`reference.numpy.training` and `generation` are NumPy."""
    code = (
        "import sys, reference.numpy.training, reference.numpy.generation;"
        "print(sorted({'torch', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_moments_count_from_zero() -> None:
    """The moments of a negative number of steps do not exist."""
    with pytest.raises(ValueError, match="step must be a whole number of at least 0, got -1; give 0 or more"):
        Moments(step=-1, m={}, v={})

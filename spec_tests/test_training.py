"""What is true of training: it learns what there is to learn, and nothing that it should not see."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from reference.config import LayerNorm, Learned, ModelConfig, NoPositions, Sinusoidal
from reference.data import IGNORED, Batch
from reference.parameters import init_params
from reference.recipe import Recipe
from reference.torch import Transformer, load_params
from reference.torch.training import evaluate, train

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


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """Train on one thread and without shape checks: these matrices are too small to share, and checked elsewhere."""
    threads, checks = torch.get_num_threads(), jaxtyping.config.jaxtyping_disable
    torch.set_num_threads(1)
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    torch.set_num_threads(threads)
    jaxtyping.config.update("jaxtyping_disable", checks)


def built(config: ModelConfig, seed: int) -> Transformer:
    """Build a float64 model from a seed."""
    model = Transformer(config, dtype=torch.float64)
    load_params(model, init_params(config, seed=seed))
    return model


def counting(rng: np.random.Generator, batch: int = 8, seq: int = 12) -> Batch:
    """Draw sequences that count upwards from anywhere, round and round: each token tells the next."""
    tokens = (rng.integers(0, VOCAB, (batch, 1)) + np.arange(seq + 1)) % VOCAB
    return tokens[:, :-1], tokens[:, 1:]


def noise(rng: np.random.Generator, batch: int, seq: int) -> Batch:
    """Draw sequences in which no token tells anything about the next."""
    tokens = rng.integers(0, VOCAB, (batch, seq + 1))
    return tokens[:, :-1], tokens[:, 1:]


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


@FEW
@given(config=CONFIGS, seed=SEEDS)
def test_training_lowers_the_loss(config: ModelConfig, seed: int) -> None:
    """A hundred steps on counting sequences bring the loss from log(vocab) to less than half of it."""
    model, rng = built(config, seed), np.random.default_rng(seed)
    fresh = [counting(rng)]
    before = evaluate(model, fresh).loss
    assert abs(before - math.log(VOCAB)) < 0.5
    train(model, lambda step: counting(rng), Recipe(steps=100, lr=0.01, warmup=5, weight_decay=0.0))
    assert evaluate(model, fresh).loss < before / 2


@FEW
@given(config=CONFIGS, seed=SEEDS)
def test_one_batch_is_memorised_down_to_its_entropy_floor(config: ModelConfig, seed: int) -> None:
    """A repeated batch is learned to within 0.1 of what equal prefixes with different targets leave open."""
    tokens = np.random.default_rng(seed).integers(0, VOCAB, (6, 5))
    tokens[:3, 0], tokens[1, 1] = tokens[0, 0], tokens[0, 1]  # three begin alike, two of them even longer
    batch = tokens[:, :-1], tokens[:, 1:]
    floor = entropy_floor(batch)
    if config.positions == NoPositions():  # which cannot tell equal tokens in a row apart
        config = replace(config, positions=Learned())
    model = built(config, seed)
    train(model, lambda step: batch, Recipe(steps=300, lr=0.01, warmup=10, weight_decay=0.0))
    loss = evaluate(model, [batch]).loss
    assert floor - 1e-9 < loss < floor + 0.1


@FEW
@given(seed=SEEDS)
def test_without_a_causal_mask_the_next_token_is_read_not_predicted(seed: int) -> None:
    """On noise a causal model cannot beat log(vocab); one that sees ahead seems to, by looking at the answer."""
    losses = {}
    for causal in (True, False):
        config = ModelConfig(
            vocab=VOCAB, d_model=32, n_heads=2, n_layers=2, d_ff=64, max_len=8, positions=Learned(), causal=causal
        )
        model, rng = built(config, seed), np.random.default_rng(seed)
        recipe = Recipe(steps=120, lr=0.01, warmup=10, weight_decay=0.0)
        train(model, lambda step, rng=rng: noise(rng, batch=16, seq=8), recipe)
        losses[causal] = evaluate(model, [noise(rng, batch=64, seq=8)]).loss
    assert losses[True] > 0.95 * math.log(VOCAB)
    assert losses[False] < 0.5 * math.log(VOCAB)


@FEW
@given(seed=SEEDS, training=st.booleans())
def test_evaluation_is_deterministic_and_restores_the_mode(seed: int, training: bool) -> None:
    """Evaluation drops nothing, gives the same number twice, and leaves every part in the mode it was in."""
    config = ModelConfig(vocab=VOCAB, d_model=8, n_heads=2, n_layers=2, d_ff=16, max_len=8, dropout=0.5)
    model, batches = built(config, seed), [noise(np.random.default_rng(seed), 3, 8) for _ in range(2)]
    model.train(training)
    model.blocks[0].train(not training)
    before = [part.training for part in model.modules()]
    first, second = evaluate(model, batches), evaluate(model, batches)
    assert first == second
    assert [part.training for part in model.modules()] == before


@FEW
@given(seed=SEEDS)
def test_evaluation_weighs_every_target_alike(seed: int) -> None:
    """The loss over batches of any sizes, ignored targets among them, is the mean over all targets that count."""
    config = ModelConfig(vocab=VOCAB, d_model=8, n_heads=2, n_layers=1, d_ff=16, max_len=8)
    rng = np.random.default_rng(seed)
    model, (ids, targets) = built(config, seed), noise(rng, 5, 8)
    targets = np.where(rng.random(targets.shape) < 0.3, IGNORED, targets)
    targets[:, 0] = 1
    whole = evaluate(model, [(ids, targets)])
    parts = evaluate(model, [(ids[:1], targets[:1]), (ids[1:], targets[1:])])
    assert whole.n_tokens == parts.n_tokens == int((targets != IGNORED).sum())
    assert parts.loss == pytest.approx(whole.loss, rel=1e-12)
    assert parts.perplexity == pytest.approx(math.exp(whole.loss), rel=1e-12)

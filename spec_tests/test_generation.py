"""What is true of generation: one token after another, each from those before it."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.config import Learned, ModelConfig, Sinusoidal
from reference.parameters import map_tree, parameter_shapes
from reference.torch import Transformer, load_params, next_token_distribution, sample
from reference.torch.generation import generate

SEEDS = st.integers(0, 2**32 - 1)
FEW = settings(deadline=None, max_examples=6)


@st.composite
def models(draw) -> Transformer:
    """Draw a small model in general position, so that its predictions are neither uniform nor certain."""
    config = ModelConfig(
        vocab=11, d_model=8, n_heads=draw(st.sampled_from((1, 2))), n_layers=draw(st.integers(1, 2)), d_ff=12,
        max_len=draw(st.sampled_from((4, 6))), positions=draw(st.sampled_from((Sinusoidal(), Learned()))), dropout=0.5,
    )  # fmt: skip
    rng = np.random.default_rng(draw(SEEDS))
    model = Transformer(config, dtype=torch.float64)
    load_params(model, map_tree(lambda shape: 0.5 * rng.standard_normal(shape), parameter_shapes(config)))
    return model


PROMPTS = st.lists(st.integers(0, 10), min_size=1, max_size=9)


@FEW
@given(model=models(), prompt=PROMPTS, seeds=st.tuples(SEEDS, SEEDS))
def test_greedy_generation_needs_no_luck(model: Transformer, prompt: list[int], seeds: tuple[int, int]) -> None:
    """At temperature 0 any seed gives the same text."""
    texts = [list(generate(model, prompt, max_new_tokens=8, temperature=0.0, seed=seed)) for seed in seeds]
    assert texts[0] == texts[1]


@FEW
@given(model=models(), prompt=PROMPTS)
def test_greedy_generation_takes_the_largest_logit(model: Transformer, prompt: list[int]) -> None:
    """Each new token is the one with the largest logit after the last max_len tokens before it."""
    text = list(prompt)
    for new in generate(model, prompt, max_new_tokens=8, temperature=0.0):
        with torch.no_grad():
            logits = model.eval()(torch.tensor([text[-model.config.max_len :]]))[0, -1]
        assert new == int(logits.argmax())
        text.append(new)


@FEW
@given(model=models(), prompt=PROMPTS)
def test_generation_goes_on_past_max_len(model: Transformer, prompt: list[int]) -> None:
    """More tokens than max_len are generated, each within the vocabulary; the context is cropped from the left."""
    new = list(generate(model, prompt, max_new_tokens=3 * model.config.max_len))
    assert len(new) == 3 * model.config.max_len
    assert set(new) <= set(range(model.config.vocab))


@FEW
@given(model=models(), prompt=PROMPTS, seed=SEEDS)
def test_the_same_seed_gives_the_same_text(model: Transformer, prompt: list[int], seed: int) -> None:
    """A seed fixes the text, whatever was generated before; a longer run begins like a shorter one."""
    first = list(generate(model, prompt, max_new_tokens=12, seed=seed))
    list(generate(model, prompt, max_new_tokens=3, seed=seed + 1))
    assert list(generate(model, prompt, max_new_tokens=12, seed=seed)) == first
    assert list(generate(model, prompt, max_new_tokens=5, seed=seed)) == first[:5]


@FEW
@given(model=models(), prompt=PROMPTS, seed=SEEDS)
def test_another_seed_gives_another_text(model: Transformer, prompt: list[int], seed: int) -> None:
    """Twenty tokens at a high temperature differ between two seeds: all alike they would be once in 10^15 times."""
    texts = [list(generate(model, prompt, max_new_tokens=20, temperature=20.0, seed=s)) for s in (seed, seed + 1)]
    assert texts[0] != texts[1]


@FEW
@given(model=models(), prompt=PROMPTS, seed=SEEDS, top_k=st.integers(1, 4), top_p=st.sampled_from((0.5, 0.9)))
def test_each_token_is_drawn_as_sample_says(
    model: Transformer, prompt: list[int], seed: int, top_k: int, top_p: float
) -> None:
    """A new token is sample(next_token_distribution(logits, options), u), with the uniform numbers in their order."""
    uniforms = np.random.default_rng(seed).random(8)
    options = {"temperature": 2.0, "top_k": top_k, "top_p": top_p}
    text = list(prompt)
    for u, new in zip(uniforms, generate(model, prompt, max_new_tokens=8, uniforms=uniforms, **options), strict=True):
        with torch.no_grad():
            logits = model.eval()(torch.tensor([text[-model.config.max_len :]]))[0, -1]
        p = next_token_distribution(logits, **options)
        assert new == int(sample(p, torch.tensor(u, dtype=torch.float64)))
        text.append(new)


@FEW
@given(model=models(), prompt=PROMPTS, seed=SEEDS, training=st.booleans())
def test_dropout_is_off_and_the_mode_is_restored(
    model: Transformer, prompt: list[int], seed: int, training: bool
) -> None:
    """A model in train mode writes what it writes in eval mode, and is in its own mode whenever a token is out."""
    model.eval()
    should = list(generate(model, prompt, max_new_tokens=6, seed=seed))
    model.train(training)
    model.blocks[0].train(not training)
    before = [part.training for part in model.modules()]
    got = []
    for new in generate(model, prompt, max_new_tokens=6, seed=seed):
        got.append(new)
        assert [part.training for part in model.modules()] == before
    assert got == should


@FEW
@given(model=models(), prompt=PROMPTS)
def test_tokens_come_as_soon_as_they_are_drawn(model: Transformer, prompt: list[int]) -> None:
    """Generation streams: the first tokens of an endless text are there at once."""
    endless = generate(model, prompt, max_new_tokens=10**9)
    assert len(list(itertools.islice(endless, 3))) == 3


@FEW
@given(model=models(), prompt=PROMPTS)
def test_no_new_tokens_are_an_empty_text(model: Transformer, prompt: list[int]) -> None:
    """Zero new tokens are none."""
    assert list(generate(model, prompt, max_new_tokens=0)) == []


@FEW
@given(model=models())
def test_what_cannot_be_generated_is_refused_at_the_call(model: Transformer) -> None:
    """An empty prompt, foreign ids, and options out of range are errors before the first token is asked for."""
    with pytest.raises(ValueError, match="prompt"):
        generate(model, [], max_new_tokens=1)
    with pytest.raises(IndexError, match="11"):
        generate(model, [3, 11], max_new_tokens=1)
    with pytest.raises(IndexError, match="-1"):
        generate(model, [-1], max_new_tokens=1)
    with pytest.raises(ValueError, match="max_new_tokens"):
        generate(model, [3], max_new_tokens=-1)
    for name, value in (("temperature", -1.0), ("top_k", 0), ("top_p", 0.0)):
        with pytest.raises(ValueError, match=name):
            generate(model, [3], max_new_tokens=1, **{name: value})

"""What is true of generation, in both twins: one token after another, each from those before it."""

import itertools
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import numpy as specification
from reference.config import Learned, ModelConfig, Sinusoidal
from reference.numpy import generation as numpy_generation
from reference.parameters import Tree, map_tree, parameter_shapes
from reference.shape_checks import unchecked
from reference.torch import Transformer, load_params, next_token_distribution, sample
from reference.torch.generation import generate as generate_with_module

SEEDS = st.integers(0, 2**32 - 1)
FEW = settings(deadline=None, max_examples=6)
Model = tuple[Tree, ModelConfig]


class Twin(Protocol):
    """Generation by one of the twins, on parameter trees."""

    def generate(self, ids: list[int], params: Tree, config: ModelConfig, **options: Any) -> Iterator[int]:
        """Continue ids."""
        ...

    def next_logits(self, ids: list[int], params: Tree, config: ModelConfig) -> np.ndarray:
        """Give the logits after the last of ids."""
        ...

    def drawn(self, logits: np.ndarray, u: float, **options: Any) -> int:
        """Give sample(next_token_distribution(logits, options), u)."""
        ...


class NumpyTwin:
    """The specification."""

    def generate(self, ids: list[int], params: Tree, config: ModelConfig, **options: Any) -> Iterator[int]:
        """Continue ids."""
        return numpy_generation.generate(ids, params, config, **options)

    def next_logits(self, ids: list[int], params: Tree, config: ModelConfig) -> np.ndarray:
        """Give the logits after the last of ids."""
        return specification.transformer(np.array(ids), params, config)[-1]

    def drawn(self, logits: np.ndarray, u: float, **options: Any) -> int:
        """Give sample(next_token_distribution(logits, options), u)."""
        return int(specification.sample(specification.next_token_distribution(logits, **options), np.array(u)))


class TorchTwin:
    """Production: a module that the tree is loaded into."""

    def generate(self, ids: list[int], params: Tree, config: ModelConfig, **options: Any) -> Iterator[int]:
        """Continue ids."""
        return generate_with_module(built((params, config)), ids, **options)

    def next_logits(self, ids: list[int], params: Tree, config: ModelConfig) -> np.ndarray:
        """Give the logits after the last of ids."""
        with torch.no_grad():
            return built((params, config)).eval()(torch.tensor(ids))[-1].numpy()

    def drawn(self, logits: np.ndarray, u: float, **options: Any) -> int:
        """Give sample(next_token_distribution(logits, options), u)."""
        p = next_token_distribution(torch.from_numpy(logits), **options)
        return int(sample(p, torch.tensor(u, dtype=torch.float64)))


both_twins = pytest.mark.parametrize("twin", [NumpyTwin(), TorchTwin()], ids=["numpy", "torch"])


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """Generate on one thread and without shape checks: these matrices are too small to share, and checked elsewhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with unchecked():
        yield
    torch.set_num_threads(threads)


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Draw a small model in general position, so that its predictions are neither uniform nor certain."""
    config = ModelConfig(
        vocab=11, d_model=8, n_heads=draw(st.sampled_from((1, 2))), n_layers=draw(st.integers(1, 2)), d_ff=12,
        max_len=draw(st.sampled_from((4, 6))), positions=draw(st.sampled_from((Sinusoidal(), Learned()))), dropout=0.5,
    )  # fmt: skip
    rng = np.random.default_rng(draw(SEEDS))
    return map_tree(lambda shape: 0.5 * rng.standard_normal(shape), parameter_shapes(config)), config


PROMPTS = st.lists(st.integers(0, 10), min_size=1, max_size=9)


def built(model: Model) -> Transformer:
    """Load a tree into a float64 module."""
    params, config = model
    module = Transformer(config, dtype=torch.float64)
    load_params(module, params)
    return module


@FEW
@given(
    model=models(),
    prompt=PROMPTS,
    options=st.sampled_from(({}, {"top_k": 3}, {"top_p": 0.8}, {"temperature": 0.0})),
    luck=st.one_of(
        st.fixed_dictionaries({"seed": SEEDS}),
        st.fixed_dictionaries({"uniforms": st.lists(st.floats(0, 1, exclude_max=True), min_size=10, max_size=10)}),
    ),
)
def test_both_twins_write_the_same_text(
    model: Model, prompt: list[int], options: dict[str, Any], luck: dict[str, Any]
) -> None:
    """The same parameters, prompt and uniform numbers give the same ids in NumPy and in PyTorch, and so does a seed."""
    options = {"max_new_tokens": 10, "temperature": 2.0, **options, **luck}
    numpys, torchs = (list(twin.generate(prompt, *model, **options)) for twin in (NumpyTwin(), TorchTwin()))
    assert numpys == torchs


@both_twins
@FEW
@given(model=models(), prompt=PROMPTS, seeds=st.tuples(SEEDS, SEEDS))
def test_greedy_generation_needs_no_luck(twin: Twin, model: Model, prompt: list[int], seeds: tuple[int, int]) -> None:
    """At temperature 0 any seed gives the same text."""
    texts = [list(twin.generate(prompt, *model, max_new_tokens=8, temperature=0.0, seed=seed)) for seed in seeds]
    assert texts[0] == texts[1]


@both_twins
@FEW
@given(model=models(), prompt=PROMPTS)
def test_greedy_generation_takes_the_largest_logit(twin: Twin, model: Model, prompt: list[int]) -> None:
    """Each new token is the one with the largest logit after the last max_len tokens before it."""
    text = list(prompt)
    for new in twin.generate(prompt, *model, max_new_tokens=8, temperature=0.0):
        assert new == twin.next_logits(text[-model[1].max_len :], *model).argmax()
        text.append(new)


@both_twins
@FEW
@given(model=models(), prompt=PROMPTS)
def test_generation_goes_on_past_max_len(twin: Twin, model: Model, prompt: list[int]) -> None:
    """More tokens than max_len are generated, each within the vocabulary; the context is cropped from the left."""
    _, config = model
    new = list(twin.generate(prompt, *model, max_new_tokens=3 * config.max_len))
    assert len(new) == 3 * config.max_len
    assert set(new) <= set(range(config.vocab))


@both_twins
@FEW
@given(model=models(), prompt=PROMPTS, seed=SEEDS)
def test_the_same_seed_gives_the_same_text(twin: Twin, model: Model, prompt: list[int], seed: int) -> None:
    """A seed fixes the text, whatever was generated before; a longer run begins like a shorter one."""
    first = list(twin.generate(prompt, *model, max_new_tokens=12, seed=seed))
    list(twin.generate(prompt, *model, max_new_tokens=3, seed=seed + 1))
    assert list(twin.generate(prompt, *model, max_new_tokens=12, seed=seed)) == first
    assert list(twin.generate(prompt, *model, max_new_tokens=5, seed=seed)) == first[:5]


@both_twins
@FEW
@given(model=models(), prompt=PROMPTS)
def test_what_is_not_said_is_temperature_1_and_seed_0(twin: Twin, model: Model, prompt: list[int]) -> None:
    """Without options a text is the one of temperature 1 and seed 0."""
    said = list(twin.generate(prompt, *model, max_new_tokens=12, temperature=1.0, seed=0))
    assert list(twin.generate(prompt, *model, max_new_tokens=12)) == said


@both_twins
@FEW
@given(model=models(), prompt=PROMPTS, seed=SEEDS)
def test_another_seed_gives_another_text(twin: Twin, model: Model, prompt: list[int], seed: int) -> None:
    """Twenty tokens at a high temperature differ between two seeds: all alike they would be once in 10^15 times."""
    texts = [list(twin.generate(prompt, *model, max_new_tokens=20, temperature=20.0, seed=s)) for s in (seed, seed + 1)]
    assert texts[0] != texts[1]


@both_twins
@FEW
@given(model=models(), prompt=PROMPTS, seed=SEEDS, top_k=st.integers(1, 4), top_p=st.sampled_from((0.5, 0.9)))
def test_each_token_is_drawn_as_sample_says(
    twin: Twin, model: Model, prompt: list[int], seed: int, top_k: int, top_p: float
) -> None:
    """A new token is sample(next_token_distribution(logits, options), u), with the uniform numbers in their order."""
    uniforms = np.random.default_rng(seed).random(8).tolist()
    options = {"temperature": 2.0, "top_k": top_k, "top_p": top_p}
    text = list(prompt)
    generated = twin.generate(prompt, *model, max_new_tokens=8, uniforms=uniforms, **options)
    for u, new in zip(uniforms, generated, strict=True):
        assert new == twin.drawn(twin.next_logits(text[-model[1].max_len :], *model), u, **options)
        text.append(new)


@FEW
@given(model=models(), prompt=PROMPTS, seed=SEEDS, training=st.booleans())
def test_dropout_is_off_and_the_mode_is_restored(model: Model, prompt: list[int], seed: int, training: bool) -> None:
    """A module in train mode writes what it writes in eval mode, and is in its own mode whenever a token is out."""
    module = built(model).eval()
    should = list(generate_with_module(module, prompt, max_new_tokens=6, seed=seed))
    module.train(training)
    module.blocks[0].train(not training)
    before = [part.training for part in module.modules()]
    got = []
    for new in generate_with_module(module, prompt, max_new_tokens=6, seed=seed):
        got.append(new)
        assert [part.training for part in module.modules()] == before
    assert got == should


@both_twins
@FEW
@given(model=models(), prompt=PROMPTS)
def test_tokens_come_as_soon_as_they_are_drawn(twin: Twin, model: Model, prompt: list[int]) -> None:
    """Generation streams: the first tokens of an endless text are there at once."""
    endless = twin.generate(prompt, *model, max_new_tokens=10**9)
    assert len(list(itertools.islice(endless, 3))) == 3


@both_twins
@FEW
@given(model=models(), prompt=PROMPTS)
def test_no_new_tokens_are_an_empty_text(twin: Twin, model: Model, prompt: list[int]) -> None:
    """Zero new tokens are none."""
    assert list(twin.generate(prompt, *model, max_new_tokens=0)) == []


@both_twins
@FEW
@given(model=models())
def test_what_cannot_be_generated_is_refused_at_the_call(twin: Twin, model: Model) -> None:
    """An empty prompt, foreign ids, and options out of range are errors before the first token is asked for."""
    for prompt, options, error, words in (
        ([], {}, ValueError, "the prompt must hold at least one id, got none; give"),
        ([3, 11], {}, IndexError, "ids must lie in 0 ... 10, got 11; use"),
        ([12], {}, IndexError, "ids must lie in 0 ... 10, got 12; use"),
        ([-1], {}, IndexError, "ids must lie in 0 ... 10, got -1; use"),
        ([3], {"max_new_tokens": -1}, ValueError, "max_new_tokens must be at least 0, got -1; give"),
        ([3], {"temperature": -1.0}, ValueError, "temperature must lie in [0, inf), got -1.0; give"),
        ([3], {"top_k": 0}, ValueError, "top_k must be at least 1, got 0; give"),
        ([3], {"top_p": 0.0}, ValueError, "top_p must lie in (0, 1], got 0.0; give"),
    ):
        with pytest.raises(error) as refused:
            twin.generate(prompt, *model, **{"max_new_tokens": 1, **options})
        assert words in str(refused.value)
        assert "\n" not in str(refused.value)


@both_twins
@FEW
@given(model=models(), prompt=PROMPTS)
def test_too_few_uniform_numbers_are_an_error(twin: Twin, model: Model, prompt: list[int]) -> None:
    """A text ends in an error, not early, where the uniform numbers run out."""
    new_ids = twin.generate(prompt, *model, max_new_tokens=3, uniforms=[0.5, 0.5])
    assert len(list(itertools.islice(new_ids, 2))) == 2
    with pytest.raises(ValueError, match="uniforms must be one for each new token, got fewer; give more"):
        next(new_ids)

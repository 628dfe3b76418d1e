"""The two tutorials that this project grew from: what they compute, and what they say that is not so."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference.numpy
import reference.torch
from reference.config import MINI, TINY, LayerNorm, NoPositions
from reference.parameters import init_params, map_tree, tutorial_000_params

SEEDS = st.integers(0, 2**32 - 1)
FEW = settings(deadline=None, max_examples=20)
IDS = np.array([3, 8, 2, 6])

SMALL_MINI = replace(MINI, vocab=20, d_model=16, d_ff=24, n_layers=2, max_len=12, embedding_scale=4.0)
"""Tutorial 001's model, smaller."""


def numpys(name, *args, **options):
    """Call a component of the specification."""
    return getattr(reference.numpy, name)(*args, **options)


def torchs(name, *args, **options):
    """Call a component of the production twin with arrays."""

    def tensor(value):
        if isinstance(value, dict | list):
            return map_tree(torch.from_numpy, value)
        return torch.from_numpy(value) if isinstance(value, np.ndarray) else value

    result = getattr(reference.torch, name)(*map(tensor, args), **options)
    return result.numpy() if isinstance(result, torch.Tensor) else result


both = pytest.mark.parametrize("call", [numpys, torchs], ids=["numpy", "torch"])


# ------------------------------------------------------------------------------------------ tutorial 000


def tutorial_000_by_hand(ids, seed=42):
    """Compute tutorial 000 number by number, from the generator to the logits, without any component."""
    draw = np.random.RandomState(seed).randn
    stream = draw(10, 8)[ids]
    for position in range(len(ids)):
        for pair in range(4):
            angle = position / 10000 ** (2 * pair / 8)
            stream[position, 2 * pair] += math.sin(angle)
            stream[position, 2 * pair + 1] += math.cos(angle)

    def centred_and_scaled(rows):
        return np.array([(row - row.mean()) / (math.sqrt(((row - row.mean()) ** 2).mean()) + 1e-5) for row in rows])

    # All weights of both layers come before those of the head; biases are 0.
    layers = [{name: 0.01 * draw(*shape) for name, shape in (
        ("q", (8, 8)), ("k", (8, 8)), ("v", (8, 8)), ("up", (8, 32)), ("down", (32, 8))
    )} for _ in range(2)]  # fmt: skip
    head = 0.01 * draw(8, 10)
    for layer in layers:
        answers = []
        for asking in stream:
            scores = [(asking @ layer["q"]) @ (asked @ layer["k"]) / math.sqrt(8) for asked in stream]
            shares = np.exp(scores) / np.exp(scores).sum()
            answers.append(sum(share * (asked @ layer["v"]) for share, asked in zip(shares, stream, strict=True)))
        stream = centred_and_scaled(stream + np.array(answers))
        stream = centred_and_scaled(stream + np.maximum(stream @ layer["up"], 0) @ layer["down"])
    return stream @ head


@both
def test_tiny_gives_the_logits_of_tutorial_000(call) -> None:
    """Ids 3, 8, 2, 6 with the weights of seed 42 give logits of shape (4, 10), largest at 5, 5, 4, 3."""
    logits = call("transformer", IDS, tutorial_000_params(42), TINY)
    assert logits.shape == (4, 10)
    assert logits.argmax(axis=-1).tolist() == [5, 5, 4, 3]
    np.testing.assert_allclose(logits, tutorial_000_by_hand(IDS), rtol=0, atol=1e-12)


def test_the_twins_agree_on_tutorial_000() -> None:
    """Both backends give the tutorial's logits to 1e-12."""
    arguments = ("transformer", IDS, tutorial_000_params(42), TINY)
    np.testing.assert_allclose(torchs(*arguments), numpys(*arguments), rtol=0, atol=1e-12)


@both
@pytest.mark.parametrize(("config", "count"), [(TINY, 1_658), (MINI, 857_088)], ids=["tiny", "mini"])
def test_presets_count_what_they_count(call, config, count) -> None:
    """TINY has 1,658 parameters and MINI 857,088, not the "about two million" of tutorial 001."""
    assert call("parameter_count", config) == count


# ------------------------------------------------------------------------------------------ tutorial 001


@both
@FEW
@given(seed=SEEDS)
def test_tutorial_001_sees_the_token_that_it_is_asked_to_predict(call, seed: int) -> None:
    """Its attention is not causal: token t + 1, the target at t, changes the logits at t."""
    params = init_params(SMALL_MINI, seed=seed)
    ids = np.random.default_rng(seed).integers(0, 20, 8)
    other = np.where(np.arange(8) == 5, (ids + 1) % 20, ids)
    leak = call("transformer", ids, params, SMALL_MINI) - call("transformer", other, params, SMALL_MINI)
    assert np.abs(leak[4]).max() > 1e-9

    causal = replace(SMALL_MINI, causal=True)
    tight = call("transformer", ids, params, causal) - call("transformer", other, params, causal)
    np.testing.assert_allclose(tight[:5], 0, rtol=0, atol=1e-14)
    assert np.abs(tight[5:]).max() > 1e-9


@both
@FEW
@given(seed=SEEDS, order=st.permutations(range(6)))
def test_shuffling_the_input_shuffles_the_output(call, seed: int, order: list[int]) -> None:
    """Attention without positions does not keep its output under shuffling, as both tutorials say: it shuffles it."""
    config = replace(SMALL_MINI, positions=NoPositions())
    params = init_params(config, seed=seed)
    ids = np.arange(6)
    logits = call("transformer", ids, params, config)
    shuffled = call("transformer", ids[order], params, config)
    np.testing.assert_allclose(shuffled, logits[order], rtol=0, atol=1e-12)
    if list(order) != sorted(order):
        assert np.abs(shuffled - logits).max() > 1e-9


def tutorial_001_positions(seq: int, d_model: int) -> torch.Tensor:
    """Fill the table as tutorial 001 does: sines and cosines in strided columns."""
    angle = torch.arange(seq).float()[:, None] * torch.exp(
        torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model)
    )
    table = torch.zeros(seq, d_model)
    table[:, 0::2] = torch.sin(angle)
    table[:, 1::2] = torch.cos(angle)
    return table


@both
@FEW
@given(seq=st.integers(1, 64), d_model=st.sampled_from((2, 6, 8)))
def test_positions_are_those_of_tutorial_001(call, seq: int, d_model: int) -> None:
    """The tutorial's table, which is in float32, is the sinusoidal one; an angle of 64 is known to 64 eps there."""
    eps = np.finfo(np.float32).eps
    table = tutorial_001_positions(seq, d_model).numpy()
    np.testing.assert_allclose(table, call("sinusoidal_positions", seq, d_model), rtol=0, atol=16 * seq * eps)


@both
@FEW
@given(seq=st.integers(1, 64), d_model=st.sampled_from((1, 3, 7)))
def test_an_odd_width_has_positions(call, seq: int, d_model: int) -> None:
    """The tutorial's table fails for an odd d_model, where the last sine has no cosine; ours ends with it."""
    if d_model > 1:
        with pytest.raises(RuntimeError):
            tutorial_001_positions(seq, d_model)
    table = call("sinusoidal_positions", seq, d_model)
    assert table.shape == (seq, d_model)
    angle = np.arange(seq) / 10000 ** ((d_model - 1) / d_model)
    np.testing.assert_allclose(table[:, -1], np.sin(angle), rtol=0, atol=4 * seq * np.finfo(table.dtype).eps)


@both
def test_a_sequence_past_max_len_is_a_clear_error(call) -> None:
    """Where the tutorial's table would run out, the error names both lengths and says what to do."""
    with pytest.raises(ValueError, match=r"seq must not exceed max_len, got 13 and 12; keep the last 12 tokens"):
        call("transformer", np.zeros(13, np.int64), init_params(SMALL_MINI, seed=0), SMALL_MINI)


@both
@FEW
@given(seed=SEEDS)
def test_self_attention_is_that_of_tutorial_001(call, seed: int) -> None:
    """One head, no biases, no output projection: softmax(Q K^T / sqrt(d_model)) V, as torch writes it."""
    rng = np.random.default_rng(seed)
    x, (w_q, w_k, w_v) = rng.standard_normal((2, 5, 8)), 0.3 * rng.standard_normal((3, 8, 8))
    q, k, v = (torch.from_numpy(x) @ torch.from_numpy(w) for w in (w_q, w_k, w_v))
    should = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(8), dim=-1) @ v
    np.testing.assert_allclose(call("self_attention", x, w_q, w_k, w_v), should, rtol=0, atol=1e-12)


@both
@FEW
@given(seed=SEEDS)
def test_the_layer_norm_is_that_of_tutorial_001(call, seed: int) -> None:
    """Its layer norm divides by torch's deviation, which has n - 1, plus an eps of 1e-6."""
    rng = np.random.default_rng(seed)
    x, gamma, beta = rng.standard_normal((2, 5, 8)), rng.standard_normal(8), rng.standard_normal(8)
    given_x = torch.from_numpy(x)
    normed = (given_x - given_x.mean(-1, keepdim=True)) / (given_x.std(-1, keepdim=True) + 1e-6)
    should = torch.from_numpy(gamma) * normed + torch.from_numpy(beta)
    got = call("layer_norm", x, gamma, beta, eps=1e-6, variant="unbiased_std_plus_eps")
    np.testing.assert_allclose(got, should, rtol=0, atol=1e-12)


def test_the_models_layer_norm_is_another_one() -> None:
    """Tutorial 001 writes a layer norm of its own and then builds its blocks from torch's, which MINI follows."""
    assert MINI.norm == LayerNorm(eps=1e-5, variant="standard", affine=True)
    x = np.random.default_rng(0).standard_normal((5, 8))
    own = numpys("layer_norm", x, None, None, eps=1e-6, variant="unbiased_std_plus_eps")
    used = numpys("layer_norm", x, None, None)
    assert np.abs(own - used).max() > 0.01


@both
@FEW
@given(seed=SEEDS, d_model=st.sampled_from((4, 9)))
def test_embeddings_are_those_of_tutorial_001(call, seed: int, d_model: int) -> None:
    """Its embedding is torch's lookup times sqrt(d_model)."""
    rng = np.random.default_rng(seed)
    table, ids = rng.standard_normal((7, d_model)), rng.integers(0, 7, (2, 5))
    should = torch.nn.functional.embedding(torch.from_numpy(ids), torch.from_numpy(table)) * math.sqrt(d_model)
    np.testing.assert_allclose(
        call("token_embedding", ids, table, scale=math.sqrt(d_model)), should, rtol=0, atol=1e-13
    )

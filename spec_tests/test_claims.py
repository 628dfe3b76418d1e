"""The two tutorials this project grew from, claim by claim: each test decides one or more claims of claims.toml.

A test's sentence is what is true. Where a claim is wrong, its test shows that it is, and what is right.
"""

import functools
import inspect
import json
import math
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import reference.numpy as np_ref
import reference.torch as torch_ref
from reference import data
from reference.config import MINI, TINY, LayerNorm, Learned, ModelConfig, NoPositions
from reference.numpy.generation import generate
from reference.parameters import (
    Tree,
    init_params,
    leaves,
    map_tree,
    parameter_shapes,
    tree_from_leaves,
    tutorial_000_params,
)
from reference.recipe import Recipe
from reference.shape_checks import unchecked
from reference.torch import training as torch_training
from spec_tests.measures import kept_bytes, longest_chain, textbook

CLAIMS = tomllib.loads((Path(__file__).parent / "claims.toml").read_text(encoding="utf-8"))["claim"]
MEASURED = Path(__file__).parents[1] / "benchmarks" / "claims.json"
"""What `python -m benchmarks.claims` measured; in the repository only, not in the installed package."""

VERDICTS = ("holds", "holds if", "wrong")
FILLED = ("section", "claim", "fact")

SEEDS = st.integers(0, 2**32 - 1)
FEW = settings(deadline=None, max_examples=20)

IDS = np.array([3, 8, 2, 6])
SMALL = ModelConfig(vocab=20, d_model=16, n_heads=2, n_layers=2, d_ff=32, max_len=16)
GPT_2 = ModelConfig(
    vocab=50_257, d_model=768, n_heads=12, n_layers=12, d_ff=3_072, max_len=1_024, positions=Learned(),
    attention_bias=True, activation="gelu_tanh", tied_head=True, head_bias=False,
)  # fmt: skip
"""GPT-2 Small by its published configuration."""


@pytest.fixture(autouse=True, scope="module")
def alone() -> Iterator[None]:
    """Compute on one thread: these matrices are too small to share."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Draw standard normal numbers, the same ones for a seed and shape."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def close(got: Any, should: Any, atol: float = 1e-12) -> None:
    """Hold two results against each other."""
    np.testing.assert_allclose(got, should, rtol=0, atol=atol)


def rms(x: np.ndarray) -> float:
    """Give the root of the mean square."""
    return float(np.sqrt((x**2).mean()))


def entropy(p: np.ndarray) -> np.ndarray:
    """Give the entropy of each row, in nats."""
    return -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1)


def mixed_up(config: ModelConfig, seed: int = 0, scale: float = 0.5) -> Tree:
    """Draw parameters large enough that every part of a model matters."""
    source = np.random.default_rng(seed)
    return map_tree(lambda shape: scale * source.standard_normal(shape), parameter_shapes(config))


def progressions(step: int, *, rows: int = 16, seq: int = 16, seed: int = 0) -> data.Batch:
    """Draw sequences that go on by 1, 2 or 3, modulo 20: after two tokens the next one is certain."""
    source = np.random.default_rng([seed, step])
    start, stride = source.integers(0, 20, (rows, 1)), source.integers(1, 4, (rows, 1))
    tokens = (start + stride * np.arange(seq + 1)) % 20
    return tokens[:, :-1], tokens[:, 1:]


# ------------------------------------------------------------------------------------------------ the list itself


def test_every_claim_is_decided_here() -> None:
    """At least 40 claims each name a test of this file, in both languages, and no test decides nothing."""
    assert len(CLAIMS) >= 40
    assert len({claim["id"] for claim in CLAIMS}) == len(CLAIMS)
    own = {name: test for name, test in globals().items() if name.startswith("test_")}
    for claim in CLAIMS:
        assert claim["seed"] in ("000", "001")
        assert claim["verdict"] in VERDICTS
        for field in FILLED:
            english, chinese = claim[f"{field}_en"].strip(), claim[f"{field}_zh"].strip()
            assert english.isascii() or "²" in english or "√" in english, claim["id"]
            assert any("\u4e00" <= letter <= "\u9fff" for letter in chinese), claim["id"]
        assert claim["test"] in own, claim["id"]
        assert inspect.getdoc(own[claim["test"]]), claim["test"]
    decided = {claim["test"] for claim in CLAIMS}
    assert set(own) - decided == {"test_every_claim_is_decided_here"}


def quotes(claim_id: str, *numbers: str) -> None:
    """Hold the numbers that a claim's fact quotes, in both languages, against those that were measured."""
    claim = next(claim for claim in CLAIMS if claim["id"] == claim_id)
    for number in numbers:
        assert number in claim["fact_en"]
        assert number in claim["fact_zh"]


# ------------------------------------------------------------------------------------------------ tutorial 000


def test_the_model_is_the_chain_of_its_parts() -> None:
    """The Tiny Transformer is id, vector, plus position, blocks, scores: exactly these, one after the other."""
    params = tutorial_000_params()
    x = np_ref.token_embedding(IDS, params["token_embedding"]["table"])
    x = np_ref.add_positions(x, np_ref.sinusoidal_positions(4, 8))
    for block in params["blocks"]:
        x = np_ref.transformer_block(x, block, TINY)
    logits = np_ref.output_head(x, params["output_head"]["w"], params["output_head"]["b"])
    close(logits, np_ref.transformer(IDS, params, TINY), atol=0)
    # none of the three stages between id and score can be left out
    for missing in (replace(TINY, positions=NoPositions()), replace(TINY, n_layers=0)):
        fewer = {**params, "blocks": params["blocks"][: missing.n_layers]}
        assert np.abs(np_ref.transformer(IDS, fewer, missing) - logits).max() > 1e-3


@FEW
@given(seq=st.integers(1, 12), seed=SEEDS)
def test_every_part_keeps_the_streams_shape(seq: int, seed: int) -> None:
    """After the lookup every part takes (seq, d_model) and gives (seq, d_model), up to the head."""
    params = mixed_up(SMALL, seed)
    ids = np.random.default_rng(seed).integers(0, 20, seq)
    x = np_ref.token_embedding(ids, params["token_embedding"]["table"])
    for part in (
        lambda x: np_ref.add_positions(x, np_ref.sinusoidal_positions(seq, 16)),
        lambda x: np_ref.layer_norm(x, None, None),
        lambda x: np_ref.multi_head_attention(x, **params["blocks"][0]["attention"], n_heads=2),
        lambda x: np_ref.feed_forward(x, **params["blocks"][0]["mlp"]),
        lambda x: np_ref.transformer_block(x, params["blocks"][0], SMALL),
    ):
        x = part(x)
        assert x.shape == (seq, 16)


def test_embedding_is_a_row_of_the_table() -> None:
    """Four ids looked up in a table of width 8 give shape (4, 8): the rows, and the product with one-hot vectors."""
    table = normal(10, 8)
    x = np_ref.token_embedding(IDS, table)
    assert x.shape == (4, 8)
    close(x, table[IDS], atol=0)
    close(x, np.eye(10)[IDS] @ table)


@FEW
@given(seed=SEEDS, names=st.permutations(range(20)))
def test_renaming_tokens_changes_nothing(seed: int, names: list[int]) -> None:
    """Ids are names: if tokens and the rows that belong to them swap ids, the same scores come out under new names."""
    params, ids = mixed_up(SMALL, seed), np.random.default_rng(seed).integers(0, 20, 6)
    renamed = map_tree(np.copy, params)
    renamed["token_embedding"]["table"][names] = params["token_embedding"]["table"]
    renamed["output_head"]["w"][:, names] = params["output_head"]["w"]
    renamed["output_head"]["b"][names] = params["output_head"]["b"]
    before = np_ref.transformer(ids, params, SMALL)
    after = np_ref.transformer(np.array(names)[ids], renamed, SMALL)
    close(after[:, names], before, atol=1e-9)


@FEW
@given(seed=SEEDS, order=st.permutations(range(6)).filter(lambda order: order != sorted(order)))
def test_order_is_invisible_without_mask_and_positions(seed: int, order: list[int]) -> None:
    """Without positions attention treats tokens as a set, unless a causal mask lets each see only those before it."""
    x, (w_q, w_k, w_v) = normal(6, 8, seed=seed), 0.3 * normal(3, 8, 8, seed=seed)
    close(np_ref.self_attention(x[order], w_q, w_k, w_v), np_ref.self_attention(x, w_q, w_k, w_v)[order])
    masked = np_ref.self_attention(x, w_q, w_k, w_v, causal=True)
    assert np.abs(np_ref.self_attention(x[order], w_q, w_k, w_v, causal=True) - masked[order]).max() > 1e-6


@FEW
@given(seq=st.integers(1, 20), d_model=st.integers(1, 9))
def test_positions_follow_the_formula(seq: int, d_model: int) -> None:
    """Even columns are sin(pos / 10000^(i / d_model)), odd ones the cosine of the column before, odd widths too."""
    table = np_ref.sinusoidal_positions(seq, d_model)
    for pos in range(seq):
        for i in range(d_model):
            angle = pos / 10000 ** (2 * (i // 2) / d_model)
            assert abs(table[pos, i] - (math.cos(angle) if i % 2 else math.sin(angle))) < 1e-12


def test_positions_are_added_and_keep_the_shape() -> None:
    """Positions are added, so the width stays 8; put beside the vectors they would make it 16."""
    x, table = normal(4, 8), np_ref.sinusoidal_positions(4, 8)
    y = np_ref.add_positions(x, table)
    assert y.shape == (4, 8)
    close(y - x, table)
    assert np.concatenate([x, table], axis=-1).shape == (4, 16)


def test_attention_mixes_tokens_and_the_feed_forward_does_not() -> None:
    """One changed token changes what attention gives every token, and what the feed-forward network gives it alone."""
    block = mixed_up(SMALL)["blocks"][0]
    x = normal(6, 16)
    other = x + (np.arange(6) == 2)[:, None] * normal(6, 16, seed=1)

    def changed(f: Callable[[np.ndarray], np.ndarray]) -> list[bool]:
        return (np.abs(f(other) - f(x)).max(axis=-1) > 1e-9).tolist()

    assert changed(lambda x: np_ref.multi_head_attention(x, **block["attention"], n_heads=2)) == [True] * 6
    assert changed(lambda x: np_ref.feed_forward(x, **block["mlp"])) == [i == 2 for i in range(6)]


@FEW
@given(seed=SEEDS)
def test_attention_follows_the_formula(seed: int) -> None:
    """Attention is softmax(Q K^T / sqrt(d_k)) V, as torch's own kernel has it."""
    q, k, v = normal(3, 5, 8, seed=seed)
    scores = q @ k.T / np.sqrt(8)
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    got = np_ref.scaled_dot_product_attention(q, k, v)
    close(got, weights @ v)
    close(got, functional.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v))))


def test_softmax_without_the_maximum_overflows() -> None:
    """Plain exponentials are right for scores up to 709 in float64 and 88 in float32; beyond, they give NaN."""

    def plain(scores: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)

    for dtype, largest in ((np.float64, 709), (np.float32, 88)):
        fine, too_large = (np.array([score, score - 1], dtype) for score in (largest - 1, largest + 1))
        close(plain(fine), np_ref.softmax(fine), atol=1e-4)
        assert np.isnan(plain(too_large)).any()
        close(np_ref.softmax(too_large), np_ref.softmax(np.array([1.0, 0.0])), atol=1e-4)


def test_eps_beside_the_deviation_is_another_norm() -> None:
    """Dividing by sigma + eps is layer norm to 1e-5 where sigma is 1; where sigma is 1e-4 it gives 29 times as much."""
    row = np.array([[1.0, -1.0, 1.0, -1.0]])
    for sigma, factor in ((1.0, 1.0), (1e-4, 28.76)):
        standard = np_ref.layer_norm(sigma * row, None, None)
        beside = np_ref.layer_norm(sigma * row, None, None, variant="std_plus_eps")
        close(beside, (sigma * row - 0) / ((sigma * row).std() + 1e-5))
        assert abs(float((beside / standard).mean()) - factor) < 0.01


def test_the_tiny_block_norms_after_each_sum() -> None:
    """Tutorial 000's block is norm(x + f(x)) twice: post-norm, and without an output projection after the head."""
    block, x = tutorial_000_params()["blocks"][0], normal(4, 8)

    def norm(x: np.ndarray) -> np.ndarray:
        return (x - x.mean(axis=-1, keepdims=True)) / (x.std(axis=-1, keepdims=True) + 1e-5)

    half = norm(x + np_ref.self_attention(x, *(block["attention"][name] for name in ("w_q", "w_k", "w_v"))))
    mlp = block["mlp"]
    hidden = np.maximum(0, half @ mlp["w_1"] + mlp["b_1"])
    close(np_ref.transformer_block(x, block, TINY), norm(half + hidden @ mlp["w_2"] + mlp["b_2"]))


@pytest.mark.parametrize("depth", [0, 2, 6, 12])
def test_any_number_of_blocks_fits(depth: int) -> None:
    """Two, six or twelve blocks are the same code, each with weights of its own; all but those counts stay."""
    config = replace(TINY, n_layers=depth)
    logits = np_ref.transformer(IDS, mixed_up(config), config)
    assert logits.shape == (4, 10)
    assert np_ref.parameter_count(config) == 10 * 8 + 8 * 10 + 10 + depth * (3 * 8 * 8 + 2 * 8 * 32 + 32 + 8)


def test_the_head_scores_every_token() -> None:
    """The head turns (4, 8) into (4, 10): at each of the 4 positions a score for each of the 10 tokens."""
    x, w, b = normal(4, 8), normal(8, 10), normal(10)
    logits = np_ref.output_head(x, w, b)
    assert logits.shape == (4, 10)
    close(logits[0], [x[0] @ w[:, token] + b[token] for token in range(10)])


@FEW
@given(seed=SEEDS, temperature=st.floats(0.05, 20))
def test_the_largest_score_has_the_largest_probability(seed: int, temperature: float) -> None:
    """Softmax keeps the order of scores at every temperature, so the largest score is the likeliest token."""
    logits = normal(3, 10, seed=seed)
    p = np_ref.next_token_distribution(logits, temperature=temperature)
    assert (p.argmax(axis=-1) == logits.argmax(axis=-1)).all()


def test_the_printed_results_of_tutorial_000() -> None:
    """With NumPy's legacy generator and seed 42 the logits have shape (4, 10) and are largest at 5, 5, 4, 3."""
    logits = np_ref.transformer(IDS, tutorial_000_params(42), TINY)
    assert logits.shape == (4, 10)
    assert logits.argmax(axis=-1).tolist() == [5, 5, 4, 3]


def test_the_untrained_model_knows_nothing() -> None:
    """Before training every next token is about equally likely: between 9.3 % and 10.8 %, where chance is 10 %."""
    p = np_ref.softmax(np_ref.transformer(IDS, tutorial_000_params(42), TINY))
    assert 0.0933 < p.min() < 0.0935
    assert 0.1077 < p.max() < 0.1079
    assert (math.log(10) - entropy(p) < 0.001).all()


# ------------------------------------------------------------------- tutorial 001: recurrent nets and attention


def recurrent(seq: int) -> Tensor:
    """Run a recurrent cell over a sequence; the state after the last token."""
    cell, state = nn.RNNCell(4, 4), torch.zeros(4)
    for token in torch.randn(seq, 4):
        state = cell(token, state)
    return state


def test_a_recurrent_net_waits_for_every_token() -> None:
    """The chain of operations that wait for each other in a recurrent net grows by as much for every token."""
    chains = {seq: longest_chain(recurrent(seq)) for seq in (256, 512, 1024)}
    assert chains[256] >= 256
    assert chains[1024] - chains[512] == 2 * (chains[512] - chains[256])


def test_a_model_needs_a_fixed_number_of_dependent_products() -> None:
    """A forward pass is 25 dependent matrix products in MINI, 6 a block and the head, for a sequence of any length."""

    def products(config: ModelConfig, seq: int) -> int:
        x = torch.randn(seq, config.d_model)
        for _ in range(config.n_layers):
            w_q, w_k, w_v, w_o = (torch.randn(config.d_model, config.d_model, requires_grad=True) for _ in range(4))
            w_1, w_2 = (torch.randn(*s, requires_grad=True) for s in ((config.d_model, 8), (8, config.d_model)))
            x = x + textbook(x @ w_q, x @ w_k, x @ w_v) @ w_o
            x = x + functional.gelu(x @ w_1) @ w_2
        return longest_chain(x @ torch.randn(config.d_model, config.vocab), "MmBackward")

    assert products(MINI, 8) == products(MINI, 64) == 25
    assert products(replace(MINI, n_layers=1), 8) == 7


@settings(deadline=None, max_examples=5)
@given(seed=SEEDS)
def test_training_is_parallel_and_generation_is_serial(seed: int) -> None:
    """One call scores all positions of a known text as a call for each prefix would; new tokens come one a call."""
    params, ids = mixed_up(SMALL, seed), np.random.default_rng(seed).integers(0, 20, 8)
    at_once = np_ref.transformer(ids, params, SMALL)
    one_by_one = [np_ref.transformer(ids[: t + 1], params, SMALL)[-1] for t in range(8)]
    close(at_once, one_by_one, atol=1e-9)

    # each greedy token changes what the next call reads, so no call can be left out
    text = ids[:4].tolist()
    for new in generate(text, params, SMALL, max_new_tokens=4, temperature=0.0, seed=0):
        assert new == np_ref.transformer(np.array(text), params, SMALL)[-1].argmax()
        text.append(new)


@pytest.mark.parametrize("causal", [False, True])
def test_every_token_reaches_every_other_in_one_layer(causal: bool) -> None:
    """In one layer each token gets something straight from every other, or with a causal mask from those before it."""
    x = torch.from_numpy(normal(6, 8)).requires_grad_()
    w = torch.from_numpy(0.3 * normal(3, 8, 8))
    y = torch_ref.self_attention(x, *w, causal=causal)
    for i in range(6):
        (reached,) = torch.autograd.grad(y[i].sum(), x, retain_graph=True)
        should = [j <= i or not causal for j in range(6)]
        assert (reached.abs().amax(dim=-1) > 1e-12).tolist() == should


def first_to_last(layer: Callable[[Tensor], Tensor], seq: int, width: int = 32) -> float:
    """Give how much the first token moves the last state, beside how much the last token does."""
    x = torch.from_numpy(normal(seq, width)).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x)[-1].square().sum(), x)
    size = gradient.norm(dim=-1)
    return float(size[0] / size[-1])


def test_a_recurrent_gradient_vanishes_or_explodes() -> None:
    """Over 100 steps a gradient shrinks by more than 10^20 in torch's RNN, and grows as much with large weights."""
    torch.manual_seed(0)
    rnn = nn.RNN(32, 32, dtype=torch.float64)
    assert first_to_last(lambda x: rnn(x)[0], 100) < 1e-20

    def linear(gain: float) -> Callable[[Tensor], Tensor]:
        turn = gain * torch.linalg.qr(torch.from_numpy(normal(32, 32)))[0]

        def run(x: Tensor) -> Tensor:
            state = torch.zeros(32, dtype=torch.float64)
            for token in x:
                state = state @ turn + token
            return state[None]

        return run

    # a linear net multiplies the gradient by the size of its weights at each step, whatever the state
    for gain in (0.5, 1.0, 2.0):
        assert abs(math.log2(first_to_last(linear(gain), 100)) - 99 * math.log2(gain)) < 1


def test_an_lstm_reaches_further_with_open_forget_gates() -> None:
    """Over 100 steps torch's LSTM vanishes nearly as its RNN; with the forget gates' bias at 3 the gradient arrives."""

    def lstm(forget: float) -> float:
        torch.manual_seed(0)
        layer = nn.LSTM(32, 32, dtype=torch.float64)
        with torch.no_grad():
            layer.bias_ih_l0[32:64] += forget
        return first_to_last(lambda x: layer(x)[0], 100)

    torch.manual_seed(0)
    rnn = nn.RNN(32, 32, dtype=torch.float64)
    assert first_to_last(lambda x: rnn(x)[0], 100) < lstm(0.0) < 1e-12
    assert lstm(3.0) > 1e-3


@FEW
@given(seed=SEEDS, place=st.integers(0, 62))
def test_attention_has_no_distance(seed: int, place: int) -> None:
    """How much a token moves the last answer is the same wherever it stands: attention knows no distance."""
    x, (w_q, w_k, w_v) = torch.from_numpy(normal(64, 8, seed=seed)), torch.from_numpy(0.3 * normal(3, 8, 8, seed=seed))

    def pull(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        return torch.autograd.grad(torch_ref.self_attention(x, w_q, w_k, w_v)[-1].sum(), x)[0]

    order = list(range(64))
    order[0], order[place] = place, 0
    close(pull(x[order])[place], pull(x)[0], atol=1e-9)


def test_work_of_attention_grows_with_the_square() -> None:
    """Twice the tokens are twice the work for projections and recurrent nets, and four times for scores and mixing."""

    def work(f: Callable[[], object]) -> int:
        with FlopCounterMode(display=False) as counter:
            f()
        return counter.get_total_flops()

    def scores_and_mixing(seq: int) -> int:
        q = torch.randn(seq, 16)
        return work(lambda: textbook(q, q, q))

    def recurrent_work(seq: int) -> int:
        w = torch.randn(16, 16)
        return work(
            lambda: functools.reduce(
                lambda state, x: torch.tanh(x[None] @ w + state @ w), torch.randn(seq, 16), torch.zeros(1, 16)
            )
        )

    for seq in (32, 64):
        assert scores_and_mixing(2 * seq) == 4 * scores_and_mixing(seq)
        assert recurrent_work(2 * seq) == 2 * recurrent_work(seq)
    # per token: attention passes the recurrent net where scores and mixing (4 seq d) pass its products (4 d²)
    assert scores_and_mixing(16) == recurrent_work(16)


def test_memory_of_rnn_lstm_and_attention() -> None:
    """An LSTM keeps more than an RNN, and at 64 tokens more than attention, which passes it at thousands of tokens."""

    def kept(kind: str, seq: int) -> int:
        x = torch.randn(seq, 32, requires_grad=True)
        if kind == "attention":
            w_q, w_k, w_v = torch.randn(3, 32, 32, requires_grad=True)
            return kept_bytes(lambda: textbook(x @ w_q, x @ w_k, x @ w_v))
        layer = getattr(nn, kind)(32, 32)
        return kept_bytes(lambda: layer(x)[0])

    assert sum(p.numel() for p in nn.LSTM(32, 32).parameters()) == 4 * sum(
        p.numel() for p in nn.RNN(32, 32).parameters()
    )
    assert kept("RNN", 64) < kept("attention", 64) < kept("LSTM", 64)
    assert kept("RNN", 2048) < kept("LSTM", 2048) < kept("attention", 2048)


def test_the_weights_take_quadratic_memory() -> None:
    """The matrix of weights of a head has seq² numbers: twice the tokens, four times the memory."""
    for seq in (32, 64, 128):
        weights = np_ref.attention_weights(*normal(2, seq, 4))
        assert weights.nbytes == 8 * seq**2
    # what a textbook pass keeps beyond its inputs and result is that matrix
    for seq in (64, 128):
        q, k, v = torch.randn(3, seq, 4, requires_grad=True).unbind()
        assert 4 * seq**2 <= kept_bytes(lambda q=q, k=k, v=v: textbook(q, k, v)) < 2.2 * 4 * seq**2 + 40 * 4 * seq


def test_parallelism_does_not_make_long_contexts_fit() -> None:
    """At 128 K tokens the weights of one head take 32 GiB in 16 bits: a kernel that never builds them is needed."""
    measured = {seq: np_ref.attention_weights(*normal(2, seq, 4).astype(np.float16)).nbytes for seq in (64, 128)}
    assert measured == {64: 2 * 64**2, 128: 2 * 128**2}
    assert 2 * (128 * 1024) ** 2 == 32 * 2**30


@FEW
@given(seed=SEEDS, scale=st.floats(1, 1e3), shift=st.floats(-1e3, 1e3))
def test_layer_norm_forgets_scale_and_shift(seed: int, scale: float, shift: float) -> None:
    """Layer norm gives the same whatever a vector is scaled by and shifted by, so nothing drifts through it."""
    x = normal(4, 16, seed=seed)
    y = np_ref.layer_norm(x, None, None)
    close(y.mean(axis=-1), 0)
    close(y.var(axis=-1), 1, atol=1e-3)
    close(np_ref.layer_norm(scale * x + shift, None, None), y, atol=1e-3)


def test_residual_connections_carry_the_gradient() -> None:
    """Through 32 small layers the gradient arrives at a third of its size or more with residuals, without at none."""

    def arrived(residual: bool) -> float:
        source = torch.Generator().manual_seed(0)
        x = torch.randn(8, 16, generator=source, dtype=torch.float64).requires_grad_()
        h = x
        for _ in range(32):
            w_1, w_2 = (0.02 * torch.randn(*s, generator=source, dtype=torch.float64) for s in ((16, 64), (64, 16)))
            y = functional.gelu(h @ w_1) @ w_2
            h = h + y if residual else y
        return float(torch.autograd.grad(h.sum(), x)[0].norm() / math.sqrt(x.numel()))

    assert arrived(True) > 1 / 3
    assert arrived(False) < 1e-20


# ------------------------------------------------------------------- tutorial 001: embedding, attention, heads


def test_only_looked_up_rows_get_a_gradient() -> None:
    """The table is learned by its rows: those that were looked up get a gradient, the others exactly none."""
    table = torch.from_numpy(normal(10, 8)).requires_grad_()
    torch_ref.token_embedding(torch.from_numpy(IDS), table, scale=math.sqrt(8)).square().sum().backward()
    assert (table.grad.abs().sum(dim=-1) > 0).tolist() == [i in IDS for i in range(10)]


def test_the_embeddings_scale_outweighs_positions() -> None:
    """With torch's unit-variance table, sqrt(128) makes tokens 16 times as large as positions; with N(0, 1/d) 1.4."""
    torch.manual_seed(0)
    positions = rms(np_ref.sinusoidal_positions(64, 128))
    assert abs(positions - math.sqrt(1 / 2)) < 1e-12
    table = nn.Embedding(256, 128).weight.detach().numpy().astype(np.float64)
    assert 0.98 < rms(table) < 1.02
    ids = np.arange(64)

    def ratio(table: np.ndarray) -> float:
        return rms(np_ref.token_embedding(ids, table, scale=math.sqrt(128))) / positions

    assert 15.5 < ratio(table) < 16.5
    assert 1.37 < ratio(table / math.sqrt(128)) < 1.46
    assert 1.37 < rms(table) / positions < 1.46  # as large as it would be without the factor


@FEW
@given(seed=SEEDS)
def test_attention_is_a_weighted_mean(seed: int) -> None:
    """Each answer is a mean of all values, its own token's too, with weights that are positive and sum to 1."""
    q, k, v = normal(3, 6, 8, seed=seed)
    weights = np_ref.attention_weights(q, k)
    assert (weights > 0).all()
    close(weights.sum(axis=-1), 1)
    y = np_ref.scaled_dot_product_attention(q, k, v)
    close(y, weights @ v)
    assert (y <= v.max(axis=0) + 1e-12).all()
    assert (y >= v.min(axis=0) - 1e-12).all()


def test_scale_is_of_the_head_not_of_the_model() -> None:
    """Scores are divided by sqrt(d_k), a head's width; that is sqrt(d_model) for one head and half of it for four."""
    q, k = normal(2, 5, 32)
    for n_heads in (1, 4):
        d_k = 32 // n_heads
        by_d_k = np_ref.softmax(q[:, :d_k] @ k[:, :d_k].T / math.sqrt(d_k))
        by_d_model = np_ref.softmax(q[:, :d_k] @ k[:, :d_k].T / math.sqrt(32))
        close(np_ref.attention_weights(q[:, :d_k], k[:, :d_k]), by_d_k)
        assert (np.abs(by_d_k - by_d_model).max() > 0.01) == (n_heads > 1)


def test_dot_products_grow_with_the_root_of_d_k() -> None:
    """Dot products of vectors with unit variance deviate by sqrt(d_k): 27.7 for 768 and 64 for 4096; scaled, by 1."""
    for d_k in (64, 768, 4096):
        products = normal(256, d_k) @ normal(128, d_k, seed=1).T
        assert abs(products.std() / math.sqrt(d_k) - 1) < 0.05


def jacobian_size(w: np.ndarray) -> float:
    """Give the mean Frobenius norm of diag(w) - w w^T, the derivative of softmax."""
    return float(np.mean([np.linalg.norm(np.diag(row) - np.outer(row, row)) for row in w]))


def test_unscaled_scores_saturate() -> None:
    """At d_k = 4096 and unit variance the largest of 64 unscaled weights is 0.97 on average and gradients fade."""
    q, k = normal(256, 4096), normal(64, 4096, seed=1)
    scaled, unscaled = np_ref.attention_weights(q, k), np_ref.attention_weights(q, k, scale=1.0)
    assert unscaled.max(axis=-1).mean() > 0.95
    assert scaled.max(axis=-1).mean() < 0.2
    assert jacobian_size(unscaled) < 0.4 * jacobian_size(scaled)
    # of half the rows nothing is left to learn from, while every scaled row still has some
    sizes = [jacobian_size(row[None]) for row in unscaled]
    assert np.median(sizes) < 1e-3
    assert min(jacobian_size(row[None]) for row in scaled) > 0.05


class Small(nn.Module):
    """Two causal pre-norm blocks of one head, with a scale of scores and an axis of normalisation to choose."""

    def __init__(self, *, d_model: int = 32, scale: float | None = None, norm_axis: int = -1) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(0)

        def drawn(*shape: int, std: float = 0.02) -> nn.Parameter:
            return nn.Parameter(std * torch.randn(*shape, generator=source))

        self.scale, self.norm_axis = scale, norm_axis
        self.table, self.head = drawn(20, d_model, std=1.0), drawn(d_model, 20)
        self.blocks = nn.ModuleList(
            nn.ParameterList([*(drawn(d_model, d_model) for _ in range(4)), drawn(d_model, 64), drawn(64, d_model)])
            for _ in range(2)
        )

    def norm(self, x: Tensor) -> Tensor:
        """Give mean 0 and variance 1 along the axis."""
        centred = x - x.mean(dim=self.norm_axis, keepdim=True)
        return centred / (centred.square().mean(dim=self.norm_axis, keepdim=True) + 1e-5).sqrt()

    def forward(self, ids: Tensor) -> Tensor:
        """Score the next token."""
        x = self.table[ids]
        x = x + torch_ref.sinusoidal_positions(*x.shape[-2:], dtype=x.dtype)
        for w_q, w_k, w_v, w_o, w_1, w_2 in self.blocks:
            n = self.norm(x)
            heads = functional.scaled_dot_product_attention(n @ w_q, n @ w_k, n @ w_v, is_causal=True, scale=self.scale)
            x = x + heads @ w_o
            x = x + functional.gelu(self.norm(x) @ w_1) @ w_2
        return self.norm(x) @ self.head


def trained(model: Small, *, steps: int = 200) -> float:
    """Train a small model on progressions; its loss on sequences that it has not seen."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        loss = loss_on(model, progressions(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss_on(model, progressions(10**6, rows=64)).item()


def loss_on(model: Small, batch: data.Batch) -> Tensor:
    """Give the mean loss, without the first target, which nothing foretells."""
    ids, targets = map(torch.from_numpy, batch)
    return functional.cross_entropy(model(ids)[:, 1:].reshape(-1, 20), targets[:, 1:].reshape(-1))


def test_unscaled_attention_can_still_train() -> None:
    """Without the scale a model with small first weights trains as well: its scores are small before training."""
    with_scale, without = trained(Small()), trained(Small(scale=1.0))
    assert with_scale < 0.3
    assert without < 0.3


def test_heads_change_neither_parameters_nor_work() -> None:
    """One head or sixteen: a layer has the same parameters and does the same products; only the patterns differ."""
    counts = {n: np_ref.parameter_count(replace(MINI, n_heads=n)) for n in (1, 2, 4, 8, 16)}
    assert set(counts.values()) == {857_088}
    x, weights = torch.randn(10, 32), torch.randn(4, 32, 32)

    def work(n_heads: int) -> int:
        with FlopCounterMode(display=False) as counter:
            q, k, v = ((x @ w).reshape(10, n_heads, -1).transpose(0, 1) for w in weights[:3])
            heads = torch.softmax(q @ k.mT, dim=-1) @ v
            heads.transpose(0, 1).reshape(10, 32) @ weights[3]
        return counter.get_total_flops()

    assert len({work(n) for n in (1, 2, 4, 8)}) == 1
    outputs = [torch_ref.multi_head_attention(x, *weights, n_heads=n) for n in (1, 4)]
    assert (outputs[0] - outputs[1]).abs().max() > 1e-3


def test_one_head_has_one_pattern() -> None:
    """A head has one distribution a query: two heads fully attend to two tokens, where one must share."""
    names = np.eye(4)  # each token knows its own name, and asks for two others
    ask = 50 * np.stack([np.roll(names, 1, axis=1), np.roll(names, 2, axis=1)])
    two = np_ref.attention_weights(ask, np.stack([names, names]))
    assert two.max(axis=-1).min() > 0.999
    one = np_ref.attention_weights(ask.sum(axis=0), names)
    for token in range(4):
        wanted = [(token + 1) % 4, (token + 2) % 4]
        assert [int(head[token].argmax()) for head in two] == wanted
        close(one[token][wanted], 0.5, atol=1e-3)


def test_the_width_must_split_into_heads() -> None:
    """If a head is d_model / n_heads wide, that must be whole; attention itself takes heads of any width."""
    with pytest.raises(ValueError, match=r"d_model must be divisible by n_heads, got 10 and 4"):
        replace(SMALL, d_model=10, n_heads=4)
    with pytest.raises(AssertionError):
        nn.MultiheadAttention(10, 4)
    x, wide, back = normal(5, 10), normal(3, 10, 4 * 3), normal(4 * 3, 10)
    assert np_ref.multi_head_attention(x, *wide, back, n_heads=4).shape == (5, 10)


def test_an_indivisible_width_raises_unless_the_view_guesses() -> None:
    """Without the assertion tutorial 001's view always raises; one that leaves a size to torch can mix tokens up."""
    batch, seq, d_model, n_heads = 1, 6, 10, 4
    d_k = d_model // n_heads
    x = torch.arange(float(batch * seq * d_model)).view(batch, seq, d_model)
    with pytest.raises(RuntimeError, match="invalid for input"):
        x.view(batch, seq, n_heads, d_k)
    with pytest.raises(RuntimeError, match="invalid for input"):
        x.view(batch, -1, n_heads, d_k)  # 60 numbers do not make eights
    silent = torch.arange(80.0).view(1, 8, d_model).view(1, -1, n_heads, d_k)
    assert silent.shape == (1, 10, 4, 2)  # ten tokens, where there were eight


@FEW
@given(seed=SEEDS)
def test_splitting_heads_is_cutting_columns(seed: int) -> None:
    """View and transpose give head h columns h d_k to (h + 1) d_k, and back side by side they are d_model wide."""
    x, weights = normal(5, 12, seed=seed), normal(4, 12, 12, seed=seed)
    heads = []
    for h in range(3):
        cut = slice(4 * h, 4 * h + 4)
        heads.append(np_ref.self_attention(x, *(w[:, cut] for w in weights[:3])))
    close(np_ref.multi_head_attention(x, *weights, n_heads=3), np.concatenate(heads, axis=-1) @ weights[3], atol=1e-10)


# ------------------------------------------------------------------- tutorial 001: positions, feed-forward, norm


@FEW
@given(seed=SEEDS, order=st.permutations(range(6)).filter(lambda order: order != sorted(order)))
def test_shuffling_shuffles_the_output(seed: int, order: list[int]) -> None:
    """Shuffled input gives shuffled output, not the same output; only a mean over tokens stays as it is."""
    x, weights = normal(6, 8, seed=seed), 0.3 * normal(4, 8, 8, seed=seed)
    y = np_ref.multi_head_attention(x, *weights, n_heads=2)
    shuffled = np_ref.multi_head_attention(x[order], *weights, n_heads=2)
    close(shuffled, y[order], atol=1e-10)
    assert np.abs(shuffled - y).max() > 1e-6
    close(shuffled.mean(axis=0), y.mean(axis=0), atol=1e-10)


def test_every_position_has_its_own_vector() -> None:
    """Any two of the 5,000 positions of tutorial 001's table, d_model 128, are at least 1.95 apart."""
    table = np_ref.sinusoidal_positions(5000, 128)
    # the distance depends on the difference only, so those from position 0 are all there are
    close(np.linalg.norm(table[7:] - table[:-7], axis=-1), np.linalg.norm(table[7] - table[0]), atol=1e-9)
    assert 1.95 < np.linalg.norm(table[1:] - table[0], axis=-1).min() < 1.96


@FEW
@given(pos=st.integers(0, 5000), k=st.integers(0, 5000), d_model=st.sampled_from((2, 8, 128)))
def test_a_shift_is_a_rotation(pos: int, k: int, d_model: int) -> None:
    """The encoding of pos + k is one linear map, a rotation that depends on k alone, of the encoding of pos."""
    table = np_ref.sinusoidal_positions(pos + k + 1, d_model)
    rotation = np.zeros((d_model, d_model))
    for i in range(0, d_model, 2):
        angle = k / 10000 ** (i / d_model)
        rotation[i : i + 2, i : i + 2] = [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
    close(rotation @ table[pos], table[pos + k], atol=1e-9)
    close(rotation @ rotation.T, np.eye(d_model))
    close(table[pos] @ table[pos + k], np.cos(k / 10000 ** (np.arange(0, d_model, 2) / d_model)).sum(), atol=1e-9)


@FEW
@given(d_model=st.integers(1, 512).map(lambda half: 2 * half))
def test_the_exponential_form_is_the_power(d_model: int) -> None:
    """exp(-2i ln(10000) / d_model) is 10000^(-2i / d_model)."""
    two_i = np.arange(0, d_model, 2)
    close(np.exp(two_i * (-math.log(10000.0) / d_model)), 10000.0 ** (-two_i / d_model))


@pytest.mark.parametrize("d_model", [6, 7])
def test_an_odd_width_breaks_the_tables_code(d_model: int) -> None:
    """Sines in even columns and cosines in odd ones fill a table of even width; for an odd one the code raises."""
    angle = torch.arange(4.0)[:, None] * torch.ones((d_model + 1) // 2)
    table = torch.zeros(4, d_model)
    table[:, 0::2] = torch.sin(angle)
    if d_model % 2:
        with pytest.raises(RuntimeError, match="expanded size"):
            table[:, 1::2] = torch.cos(angle)
        assert np_ref.sinusoidal_positions(4, 7).shape == (4, 7)
    else:
        table[:, 1::2] = torch.cos(angle)
        assert (table[0] == torch.tensor([0.0, 1.0] * 3)).all()


@FEW
@given(seed=SEEDS, m=st.integers(0, 500), n=st.integers(0, 500), shift=st.integers(0, 500))
def test_rotary_positions_see_only_the_difference(seed: int, m: int, n: int, shift: int) -> None:
    """RoPE turns queries and keys by their positions, and their product then depends on the difference alone."""
    q, k = normal(2, 8, seed=seed)

    def turned(x: np.ndarray, position: int) -> np.ndarray:
        turn = np.exp(1j * position / 10000 ** (np.arange(0, 8, 2) / 8))
        return ((x[0::2] + 1j * x[1::2]) * turn).view(np.float64)

    close(turned(q, m) @ turned(k, n), turned(q, m + shift) @ turned(k, n + shift), atol=1e-9)
    assert abs(np.linalg.norm(turned(q, m)) - np.linalg.norm(q)) < 1e-9


def test_without_activation_two_layers_are_one() -> None:
    """Two linear maps and an activation bend each token's vector; without the activation they are one linear map."""
    x, w_1, w_2 = normal(5, 8), normal(8, 32), normal(32, 8)
    close((x @ w_1) @ w_2, x @ (w_1 @ w_2), atol=1e-9)
    for f in ("relu", "gelu"):

        def ffn(x: np.ndarray, f: str = f) -> np.ndarray:
            return np_ref.feed_forward(x, w_1, None, w_2, None, activation=f)

        close(ffn(x)[3], ffn(x[3:4])[0])  # each token by itself
        assert np.abs(ffn(-x) + ffn(x)).max() > 1  # a linear map would give the negative


def test_gelu_is_smooth_where_relu_has_a_corner() -> None:
    """At 0 ReLU's slope jumps from 0 to 1; GELU's passes through 1/2 without a jump, and goes below 0 and above 1."""
    around, one = np.array([-1e-9, 1e-9]), np.ones(2)
    (relu_slope,), (gelu_slope,) = np_ref.relu_vjp(one, around), np_ref.gelu_vjp(one, around)
    close(relu_slope, [0, 1], atol=0)
    close(gelu_slope, [0.5, 0.5], atol=1e-8)
    x = np.linspace(-6, 6, 12_001)
    (slope,) = np_ref.gelu_vjp(np.ones_like(x), x)
    assert np.abs(np.diff(slope)).max() < 1e-3
    assert -0.13 < slope.min() < -0.12
    assert 1.12 < slope.max() < 1.13


def llama_count(*, gated: bool = True, kv_heads: int = 8) -> int:
    """Count LLaMA-3 8B by its published sizes: no biases, norms with a gain only, a head of its own."""
    vocab, d, layers, heads, f = 128_256, 4_096, 32, 32, 14_336
    d_k = d // heads
    attention = 2 * d * d + 2 * d * kv_heads * d_k
    return 2 * vocab * d + layers * (attention + (3 if gated else 2) * d * f + 2 * d) + d


def test_llama_counts_only_with_a_gated_feed_forward() -> None:
    """LLaMA-3 8B has 8.03 billion with SwiGLU's three matrices; with the two of a GELU network it would have 6.15."""
    assert llama_count() == 8_030_261_248
    assert llama_count(gated=False) == 6_151_213_056


def test_the_wrong_axis_of_layer_norm_is_silent() -> None:
    """Normalising over the tokens raises nothing and keeps the shape, but each vector then depends on all others."""
    x = normal(2, 6, 8)
    right = np_ref.layer_norm(x, None, None)
    wrong = np_ref.layer_norm(x.swapaxes(1, 2), None, None).swapaxes(1, 2)
    assert wrong.shape == right.shape
    assert np.abs(wrong - right).max() > 0.1
    other = x + (np.arange(6) == 5)[:, None]  # the last token only
    close(np_ref.layer_norm(other, None, None)[:, :5], right[:, :5])
    shifted = np_ref.layer_norm(other.swapaxes(1, 2), None, None).swapaxes(1, 2)
    assert np.abs(shifted - wrong)[:, :5].max() > 0.1


def test_the_wrong_axis_trains_and_leaks() -> None:
    """A model that normalises over tokens trains to the same loss, but with later tokens' help; alone it is worse."""
    right, wrong = Small(), Small(norm_axis=-2)
    assert trained(right) < 0.15
    assert trained(wrong) < 0.15

    def last_only(model: Small) -> float:
        """Give the loss of the last target when nothing stands behind it, as while generating."""
        ids, targets = map(torch.from_numpy, progressions(10**6, rows=64))
        with torch.no_grad():
            losses = [functional.cross_entropy(model(ids[:, :t])[:, -1], targets[:, t - 1]) for t in range(2, 16)]
        return float(torch.stack(losses).mean())

    assert last_only(right) < 0.15
    assert last_only(wrong) > max(0.3, 5 * last_only(right))


def test_the_written_layer_norm_is_not_the_used_one() -> None:
    """Tutorial 001 writes a norm that divides by n - 1 and uses torch's, which divides by n: 0.4 % apart at 128."""
    for d_model, factor in ((8, 0.9354), (128, 0.9961)):
        x = torch.from_numpy(normal(4, d_model))
        written = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)
        used = nn.LayerNorm(d_model, dtype=torch.float64)(x).detach()
        close(written / used, factor, atol=1e-3)
        close(used, np_ref.layer_norm(x.numpy(), None, None), atol=1e-9)
    assert MINI.norm == LayerNorm(eps=1e-5, variant="standard")


# ------------------------------------------------------------------- tutorial 001: the block and its training


@functools.cache
def deep_run(placement: str, warmup: int) -> float:
    """Train twelve blocks at a high rate on progressions, drawn as Glorot & Bengio 2010 say; the last ten losses."""
    config = ModelConfig(
        vocab=20, d_model=32, n_heads=2, n_layers=12, d_ff=64, max_len=16,
        norm_placement=placement, final_norm=placement == "pre",
    )  # fmt: skip
    draw = np.random.default_rng(0)

    def drawn(path: str, shape: tuple[int, ...]) -> np.ndarray:
        name = path.rsplit(".", 1)[-1]
        if len(shape) == 1:
            return np.full(shape, float(name == "gamma"), np.float32)
        std = 1 if name == "table" else math.sqrt(2 / sum(shape))
        return (std * draw.standard_normal(shape)).astype(np.float32)

    model = torch_ref.Transformer(config)
    params = {path: drawn(path, shape) for path, shape in leaves(parameter_shapes(config))}
    torch_ref.load_params(model, tree_from_leaves(params))
    losses: list[float] = []
    recipe = Recipe(steps=120, lr=3e-3, min_lr=3e-3, warmup=warmup, clip_norm=None, weight_decay=0.0)
    with unchecked():
        torch_training.train(model, progressions, recipe, on_step=lambda step, _: losses.append(step.loss))
    return float(np.mean(losses[-10:]))


def test_pre_norm_trains_where_post_norm_stalls() -> None:
    """Twelve blocks at a rate of 3e-3 without warm-up: pre-norm learns the task, post-norm stays at log(20) = 3."""
    assert deep_run("pre", 0) < 1
    assert deep_run("post", 0) > 2.5


def test_warm_up_saves_a_deep_post_norm_model() -> None:
    """Warmed up over 60 of 120 steps the post-norm model learns what it does not without; pre-norm needs none."""
    assert deep_run("post", 60) < 2
    assert deep_run("post", 0) > 2.5
    assert deep_run("pre", 0) < 1
    rates = [float(np_ref.warmup_cosine(t, warmup=5, total=100, max_lr=1.0)) for t in range(5)]
    close(rates, [0.2, 0.4, 0.6, 0.8, 1.0])
    # Adam's first step is as long as the rate, whatever the gradient: what warm-up holds back
    for gradient in (1e-3, 1.0, 1e3):
        zero = np.zeros(1)
        moved, _, _ = np_ref.adamw_step(zero, np.full(1, gradient), zero, zero, step=1, lr=0.1, weight_decay=0.0)
        close(moved, -0.1, atol=1e-5)


def test_gpt_2_counts_with_a_final_norm() -> None:
    """GPT-2 is pre-norm, and its published count has the final norm that pre-norm needs; GPT-1 was post-norm."""
    assert GPT_2.norm_placement == "pre"
    assert np_ref.parameter_count(GPT_2) == 124_439_808
    assert np_ref.parameter_count(GPT_2) - np_ref.parameter_count(replace(GPT_2, final_norm=False)) == 2 * 768
    # the stream of a pre-norm model is a sum and grows with depth, that of a post-norm model is normed
    streams = {}
    for placement in ("pre", "post"):
        config = replace(SMALL, n_layers=12, norm_placement=placement)
        x, params = normal(6, 16), mixed_up(config)
        for block in params["blocks"]:
            plain = {"gamma": np.ones(16), "beta": np.zeros(16)}
            x = np_ref.transformer_block(x, {**block, "norm_1": plain, "norm_2": plain}, config)
        streams[placement] = rms(x)
    assert abs(streams["post"] - 1) < 0.01
    assert streams["pre"] > 3


def test_the_answer_is_in_the_input() -> None:
    """Without a causal mask the target at t, token t + 1, is read, and on noise copied; with one it cannot be."""
    config = replace(SMALL, causal=False)
    for seed in range(5):
        params, ids = mixed_up(config, seed, 0.2), np.random.default_rng(seed).integers(0, 20, 8)
        other = np.where(np.arange(8) == 5, (ids + 1) % 20, ids)

        def change(config: ModelConfig, params: Tree = params, ids: np.ndarray = ids, other: np.ndarray = other) -> Any:
            moved = np_ref.transformer(ids, params, config) - np_ref.transformer(other, params, config)
            return np.abs(moved).max(axis=-1)

        assert (change(config) > 1e-9).all()
        assert (change(SMALL)[:5] < 1e-12).all()
    assert not MINI.causal

    def noise(step: int) -> data.Batch:
        tokens = np.random.default_rng([1, step]).integers(0, 8, (16, 9))
        return tokens[:, :-1], tokens[:, 1:]

    losses = {}
    for causal in (True, False):
        model = torch_ref.Transformer(
            replace(SMALL, vocab=8, d_model=32, max_len=8, positions=Learned(), causal=causal)
        )
        torch_ref.load_params(model, init_params(model.config, seed=0, dtype=np.float32))
        with unchecked():
            torch_training.train(model, noise, Recipe(steps=120, lr=0.02, warmup=10, weight_decay=0.0))
            losses[causal] = torch_training.evaluate(model, map(noise, range(10**6, 10**6 + 8))).loss
    assert losses[True] > 0.95 * math.log(8)
    assert losses[False] < math.log(8) / 2


def test_noise_is_remembered_not_learned() -> None:
    """On random tokens a falling loss is memory: trained on 12 sequences, a model is below log(vocab) on them alone."""
    source = np.random.default_rng(0)
    tokens, fresh = source.integers(0, 20, (12, 9)), source.integers(0, 20, (64, 9))
    config = replace(SMALL, d_model=24, n_heads=1, d_ff=48)
    model = torch_ref.Transformer(config)
    torch_ref.load_params(model, init_params(config, seed=0, dtype=np.float32))
    recipe = Recipe(steps=150, lr=0.01, warmup=10, weight_decay=0.0)
    with unchecked():
        torch_training.train(model, lambda _: (tokens[:, :-1], tokens[:, 1:]), recipe)
        known = torch_training.evaluate(model, [(tokens[:, :-1], tokens[:, 1:])]).loss
        unknown = torch_training.evaluate(model, [(fresh[:, :-1], fresh[:, 1:])]).loss
    assert known < math.log(20) / 2
    assert unknown > math.log(20)
    if MEASURED.exists():  # the tutorial's own run, which takes minutes
        epochs = json.loads(MEASURED.read_text(encoding="utf-8"))["noise"]
        first, last = epochs[0], epochs[-1]
        assert min(epoch["fresh_loss"] for epoch in epochs) > math.log(256) > last["loss"]
        quotes("noise-perplexity", f"{first['loss']:.2f}", f"{last['loss']:.2f}", f"{math.exp(last['loss']):.0f}")
        quotes("noise-perplexity", f"{last['fresh_loss']:.2f}", f"{math.log(256):.2f}")


def test_256_ids_are_bytes_not_characters() -> None:
    """256 ids are one for each byte: enough for every text, but a Chinese character is three of them."""
    assert len(data.byte_tokens(b"the dog")) == len("the dog")
    assert len(data.byte_tokens("狗咬人".encode())) == 9
    assert max(map(ord, "狗咬人")) >= 256
    assert bytes(data.byte_tokens("狗咬人".encode())).decode() == "狗咬人"


def test_targets_are_the_inputs_one_later() -> None:
    """Each target is the token after its input: the sequence moved one place to the left."""
    sequences = data.random_sequences(0, seq=64, count=3).astype(np.int64)
    inputs, targets = sequences[:, :-1], sequences[:, 1:]
    assert inputs.shape == targets.shape == (3, 64)
    assert (targets[:, :-1] == inputs[:, 1:]).all()


@FEW
@given(seed=SEEDS)
def test_flattening_is_the_mean_over_tokens(seed: int) -> None:
    """Batch and sequence flattened into one axis give torch's loss, which is the mean surprise over all tokens."""
    logits, targets = normal(3, 4, 7, seed=seed), np.random.default_rng(seed).integers(0, 7, (3, 4))
    flat = functional.cross_entropy(torch.from_numpy(logits).reshape(-1, 7), torch.from_numpy(targets).reshape(-1))
    close(flat, np_ref.cross_entropy(logits, targets))
    p = np_ref.softmax(logits)
    close(flat, -np.log([p[b, t, targets[b, t]] for b in range(3) for t in range(4)]).mean())
    # of the other order of axes it complains, rather than compute something else
    with pytest.raises((RuntimeError, ValueError)):
        functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(targets))


def test_perplexity_needs_the_mean_over_tokens() -> None:
    """1,000 sequences in batches of 32 leave a last one of 8, which a mean over batches counts four times too much."""
    sizes = [len(ids) for ids, _ in data.ShuffledSequences(
        sequences=np.zeros((1000, 65), np.uint8), batch_size=32, seed=0
    ).evaluation()]  # fmt: skip
    assert sizes == [32] * 31 + [8]
    losses = [1.0] * 31 + [3.0]  # the odd batch stands out
    of_batches = math.exp(np.mean(losses))
    of_tokens = float(np_ref.perplexity(float(np.dot(losses, sizes)), sum(sizes)))
    assert of_batches > 1.04 * of_tokens
    equal = [1.0] * 31 + [1.0]
    close(math.exp(np.mean(equal)), np_ref.perplexity(float(np.dot(equal, sizes)), sum(sizes)))
    close(np_ref.perplexity(math.log(256), 1), 256, atol=1e-9)


def test_the_tutorials_clipping_never_acts() -> None:
    """Tutorial 001 clips to 1.0, and its gradients are shorter from the first step to the last."""
    source = torch.Generator().manual_seed(0)
    model = torch_ref.Transformer(MINI).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # as torch.nn draws what tutorial 001 builds
            if name.endswith("table"):
                parameter.normal_(generator=source)
            elif not name.endswith(("gamma", "beta")):
                bound = 1 / math.sqrt(MINI.d_ff if name.endswith("_2") else MINI.d_model)
                parameter.uniform_(-bound, bound, generator=source)
    sequences = torch.from_numpy(data.random_sequences(0, seq=64, count=32).astype(np.int64))
    torch_ref.cross_entropy(model(sequences[:, :-1]), sequences[:, 1:]).backward()
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert 0.2 < norm < 0.8
    if MEASURED.exists():
        epochs = json.loads(MEASURED.read_text(encoding="utf-8"))["noise"]
        least = min(epoch["least_grad_norm"] for epoch in epochs)
        largest = max(epoch["largest_grad_norm"] for epoch in epochs)
        assert largest < 1
        quotes("clipping-acts", f"{least:.2f}", f"{largest:.2f}")


@FEW
@given(seed=SEEDS, size=st.floats(1e-3, 1e6))
def test_clipping_shortens_and_keeps_the_direction(seed: int, size: float) -> None:
    """A gradient longer than 1 is shortened to 1 in its own direction, over all tensors at once; a short one stays."""
    grads = [size * normal(4, 3, seed=seed), size * normal(5, seed=seed)]
    flat = np.concatenate([g.ravel() for g in grads])
    clipped, norm = np_ref.clip_grad_norm(grads, max_norm=1.0)
    got = np.concatenate([g.ravel() for g in clipped])
    np.testing.assert_allclose(norm, np.linalg.norm(flat), rtol=1e-12)
    np.testing.assert_allclose(got, flat * min(1, 1 / norm), rtol=1e-9)
    parameters = [nn.Parameter(torch.zeros(g.shape, dtype=torch.float64)) for g in grads]
    for parameter, g in zip(parameters, grads, strict=True):
        parameter.grad = torch.from_numpy(g.copy())
    nn.utils.clip_grad_norm_(parameters, max_norm=1.0)
    # torch divides by the norm plus 1e-6
    np.testing.assert_allclose(np.concatenate([p.grad.numpy().ravel() for p in parameters]), got, rtol=2e-6)


def test_adamw_decays_apart_from_the_gradient() -> None:
    """AdamW shrinks every weight by the same share; Adam with an L2 term loses the decay where gradients are large."""

    def decayed(optimizer: type[torch.optim.Optimizer]) -> Tensor:
        """Give what decay alone changes, in weights of 1 whose gradients alternate in sign and differ in size."""

        def run(decay: float) -> Tensor:
            weights = nn.Parameter(torch.ones(2, dtype=torch.float64))
            steps = optimizer([weights], lr=1e-3, weight_decay=decay)
            for step in range(100):
                weights.grad = (-1.0) ** step * torch.tensor([1e-2, 1e2], dtype=torch.float64)
                steps.step()
            return weights.detach()

        return run(0.0) - run(0.1)

    apart, through = decayed(torch.optim.AdamW), decayed(torch.optim.Adam)
    close(apart, 1 - (1 - 1e-4) ** 100, atol=1e-4)
    assert abs(float(apart[0] / apart[1]) - 1) < 1e-2
    assert through[0] > 100 * through[1].abs()


def test_the_tutorials_weight_decay_does_next_to_nothing() -> None:
    """At its rate of 3e-4 and torch's decay of 0.01, all 1,600 steps shrink a weight by half a per cent."""
    assert torch.optim.AdamW([nn.Parameter(torch.zeros(1))]).defaults["weight_decay"] == 0.01
    weight, zero = np.ones(1), np.zeros(1)
    for step in range(50 * 32):
        weight, _, _ = np_ref.adamw_step(weight, zero, zero, zero, step=step + 1, lr=3e-4, weight_decay=0.01)
    close(weight, 0.9952, atol=1e-4)


# ------------------------------------------------------------------- tutorial 001: generation, pitfalls, practice


def test_generation_adds_one_token_a_step() -> None:
    """Eight tokens and 32 new ones make 40, each drawn after the ones before it."""
    start = [1, 2, 3, 4, 5, 6, 7, 8]
    params = init_params(replace(SMALL, max_len=64), seed=0)
    new = list(generate(start, params, replace(SMALL, max_len=64), max_new_tokens=32, temperature=0.8, seed=0))
    assert len(start) + len(new) == 40
    again = list(generate(start, params, replace(SMALL, max_len=64), max_new_tokens=5, temperature=0.8, seed=0))
    assert again == new[:5]


def test_the_crop_is_shorter_than_the_model_allows() -> None:
    """The loop keeps the last 64 tokens, the length of training; the model takes 256, and longer context matters."""
    assert MINI.max_len == 256
    config = replace(MINI, n_layers=1, causal=True, dropout=0.0)
    params = init_params(config, seed=0)
    ids = np.random.default_rng(0).integers(0, 256, 200)
    cropped, whole = (np_ref.transformer(x, params, config)[-1] for x in (ids[-64:], ids))
    assert np.abs(cropped - whole).max() > 1e-4
    with pytest.raises(ValueError, match=r"seq must not exceed max_len, got 257 and 256"):
        np_ref.transformer(np.zeros(257, np.int64), params, config)


@FEW
@given(seed=SEEDS)
def test_temperature_one_is_softmax(seed: int) -> None:
    """At temperature 1 the distribution is softmax of the logits as they are."""
    logits = 3 * normal(2, 30, seed=seed)
    close(np_ref.next_token_distribution(logits, temperature=1.0), np_ref.softmax(logits))


@FEW
@given(seed=SEEDS, low=st.floats(0.5, 10), factor=st.floats(1.1, 10))
def test_temperature_raises_entropy(seed: int, low: float, factor: float) -> None:
    """The higher the temperature, the higher the entropy and the lower the largest probability."""
    logits = normal(30, seed=seed)
    cold, warm = (np_ref.next_token_distribution(logits, temperature=t) for t in (low, low * factor))
    assert entropy(warm) > entropy(cold)
    assert warm.max() < cold.max()


def likeliest(spread: float, temperature: float) -> float:
    """Give the mean largest probability of 256 tokens whose logits deviate by `spread`."""
    return float(np_ref.next_token_distribution(spread * normal(500, 256), temperature=temperature).max(axis=-1).mean())


def test_low_temperature_is_greedy_if_the_gap_is_wide() -> None:
    """At 0.1 the best token gets e^10 times the second if it leads by 1; of flat logits it gets hardly more."""
    p = np_ref.next_token_distribution(np.array([1.0, 0.0, 0.0]), temperature=0.1)
    assert abs(p[0] / p[1] / math.exp(10) - 1) < 1e-9
    assert likeliest(3.0, 0.1) > 0.9
    assert likeliest(0.03, 0.1) < 0.01


def test_high_temperature_depends_on_the_logits() -> None:
    """At 2 the best of 256 tokens gets 1.5 % if logits deviate by 1, and 61 % if they deviate by 10."""
    assert 0.013 < likeliest(1.0, 2.0) < 0.016
    assert 0.56 < likeliest(10.0, 2.0) < 0.65


def test_only_dropout_depends_on_the_mode() -> None:
    """Between train and eval mode only dropout differs; layer norm computes the same in both."""
    x = torch.from_numpy(normal(4, 64))
    norm, dropout = nn.LayerNorm(64, dtype=torch.float64), nn.Dropout(0.1)
    assert torch.equal(norm.train()(x), norm.eval()(x))
    assert torch.equal(dropout.eval()(x), x)
    torch.manual_seed(0)
    assert not torch.equal(dropout.train()(x), x)
    # what does differ is batch norm, which keeps a running mean
    batch_norm = nn.BatchNorm1d(64, dtype=torch.float64)
    assert not torch.equal(batch_norm.train()(x), batch_norm.eval()(x))


def test_a_short_table_is_a_shape_error_or_silent() -> None:
    """A table shorter than the sequence fails in the addition, not in the index; of one row, it does not fail."""
    x = torch.zeros(2, 10, 8)
    with pytest.raises(RuntimeError, match="must match the size"):
        x + torch.ones(1, 6, 8)[:, :10]
    assert (x + torch.ones(1, 1, 8)[:, :10]).shape == (2, 10, 8)  # every token gets position 0
    with pytest.raises(ValueError, match=r"offset \+ seq must not exceed max_len"):
        np_ref.add_positions(x.numpy(), np.ones((1, 8), np.float32))


def test_softmax_over_axis_1_is_not_attention() -> None:
    """Each query's weights sum to 1 over the last axis; over axis 1 of (batch, heads, seq, seq), heads compete."""
    scores = normal(2, 4, 5, 5)
    right, wrong = np_ref.softmax(scores), np_ref.softmax(scores, axis=1)
    close(right.sum(axis=-1), 1)
    close(wrong.sum(axis=1), 1)
    assert np.abs(wrong.sum(axis=-1) - 1).max() > 0.1
    assert wrong.shape == right.shape


@FEW
@given(seed=SEEDS)
def test_one_head_is_single_head_attention(seed: int) -> None:
    """Multi-head attention with one head is self-attention and an output projection: the one checks the other."""
    x, weights = normal(5, 8, seed=seed), normal(4, 8, 8, seed=seed)
    single = np_ref.self_attention(x, *weights[:3]) @ weights[3]
    close(np_ref.multi_head_attention(x, *weights, n_heads=1), single, atol=1e-10)


def test_the_small_model_is_a_sixth() -> None:
    """d_model 64 with two layers is 132,608 parameters, a sixth of 857,088, and the same code."""
    assert np_ref.parameter_count(replace(MINI, d_model=64, n_layers=2, d_ff=256)) == 132_608
    assert 6 < 857_088 / 132_608 < 7


def test_the_fused_kernel_keeps_linear_memory() -> None:
    """Torch's fused attention gives the textbook's result and keeps memory in proportion to the tokens."""
    kept = {}
    for seq in (256, 512, 1024):
        q, k, v = (torch.randn(1, 1, seq, 16, requires_grad=True) for _ in range(3))
        kept[seq] = kept_bytes(lambda q=q, k=k, v=v: functional.scaled_dot_product_attention(q, k, v))
        close(functional.scaled_dot_product_attention(q, k, v).detach(), textbook(q, k, v).detach(), atol=1e-4)
    assert kept[1024] < 2.2 * kept[512] < 2.2 * 2.2 * kept[256]
    assert kept[1024] < 4 * 1024**2 / 8  # an eighth of the matrix of weights


@FEW
@given(seed=SEEDS, seq=st.integers(2, 10))
def test_a_cache_changes_no_result(seed: int, seq: int) -> None:
    """With the keys and values of earlier tokens kept, a new token costs one query and gets the same answer."""
    x, (w_q, w_k, w_v) = normal(seq, 8, seed=seed), normal(3, 8, 8, seed=seed)
    whole = np_ref.self_attention(x, w_q, w_k, w_v, causal=True)
    keys, values = x[:-1] @ w_k, x[:-1] @ w_v
    new = x[-1:]
    k, v = np.concatenate([keys, new @ w_k]), np.concatenate([values, new @ w_v])
    close(np_ref.scaled_dot_product_attention(new @ w_q, k, v), whole[-1:], atol=1e-10)


def test_grouped_queries_shrink_the_cache() -> None:
    """With 8 key heads for 32 queries LLaMA-3 8B caches 1 GiB for 8,192 tokens in 16 bits, where 32 would take 4."""

    def cached(kv_heads: int) -> int:
        return 2 * 2 * 32 * kv_heads * 128 * 8_192  # keys and values, bytes, layers, heads, d_k, tokens

    assert cached(8) == 2**30
    assert cached(32) == 4 * 2**30
    # four queries that share a head of keys are four heads whose keys are equal
    q, k, v = normal(4, 5, 8), normal(1, 5, 8, seed=1), normal(1, 5, 8, seed=2)
    grouped = functional.scaled_dot_product_attention(*(torch.from_numpy(a)[None] for a in (q, k, v)), enable_gqa=True)[
        0
    ]
    close(grouped, np_ref.scaled_dot_product_attention(q, *(np.repeat(a, 4, axis=0) for a in (k, v))))


# ------------------------------------------------------------------- tutorial 001: the table of sizes


def test_mini_has_less_than_a_million_parameters() -> None:
    """The Mini Transformer has 857,088 parameters, not 2 million; 4 layers, width 128, 4 heads, 256 tokens."""
    assert np_ref.parameter_count(MINI) == 857_088
    assert (MINI.n_layers, MINI.d_model, MINI.n_heads, MINI.max_len) == (4, 128, 4, 256)
    block = 4 * 128**2 + 2 * 128 * 512 + 512 + 128 + 4 * 128
    assert 256 * 128 + 4 * block + 2 * 128 + 128 * 256 + 256 == 857_088


def test_gpt_2_small_has_124_million_parameters() -> None:
    """GPT-2 Small has 124,439,808 parameters; with GPT-1's vocabulary and context, the same sizes make 117 million."""
    assert np_ref.parameter_count(GPT_2) == 124_439_808
    assert (GPT_2.n_layers, GPT_2.d_model, GPT_2.n_heads, GPT_2.max_len) == (12, 768, 12, 1024)
    gpt_1 = replace(GPT_2, vocab=40_478, max_len=512, norm_placement="post", final_norm=False)
    assert np_ref.parameter_count(gpt_1) == 116_534_784


def test_llama_3_8b_has_8_billion_parameters() -> None:
    """32 layers of width 4096, with 8 key heads and d_ff 14,336, and 128,256 tokens are 8,030,261,248 parameters."""
    assert llama_count() == 8_030_261_248
    assert llama_count(kv_heads=32) == 8_835_567_616


def test_the_same_sizes_built_like_mini_give_another_count() -> None:
    """Built like the Mini Transformer, LLaMA-3's sizes would make 6.96 billion parameters: its parts are others."""
    as_mini = replace(MINI, vocab=128_256, d_model=4_096, n_heads=32, n_layers=32, d_ff=14_336, max_len=8_192)
    assert np_ref.parameter_count(as_mini) == 6_957_503_744
    assert llama_count() - np_ref.parameter_count(as_mini) > 10**9
    as_mini_gpt_2 = replace(MINI, vocab=50_257, d_model=768, n_heads=12, n_layers=12, d_ff=3_072, max_len=1_024)
    assert np_ref.parameter_count(as_mini_gpt_2) != np_ref.parameter_count(GPT_2)

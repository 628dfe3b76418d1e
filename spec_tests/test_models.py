"""What is true of the whole model: from ids to the scores of the next token."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import reference.numpy
from reference.config import ACTIVATIONS, LayerNorm, Learned, ModelConfig, NoPositions, Sinusoidal
from reference.parameters import leaves, map_tree, parameter_shapes, tree_from_leaves
from reference.shape_checks import unchecked
from spec_tests.judge import Unsupported, close, differ, equal, holds, raises
from spec_tests.spec import states
from spec_tests.strategies import (
    GENERATORS,
    axes,
    changed,
    configs,
    keep_masks,
    keep_shapes,
    normal_tree,
    token_ids,
    trees,
    truths,
    whole_numbers,
)

PLACEMENT = st.sampled_from(("pre", "post"))
POSITIONS = st.sampled_from((Sinusoidal(), Learned(), NoPositions()))
FEW = settings(max_examples=2)
"""For what is looked at from every side in each example."""

WRITERS = ("w_o", "b_o", "w_2", "b_2")
"""The parameters by which the branches write into the stream."""


@st.composite
def shapes_of_models(draw, *, least_seq=1, batch=None, **fields):
    """Draw ids and a config; `fields` are values or strategies."""
    drawn = {name: draw(v) if isinstance(v, st.SearchStrategy) else v for name, v in fields.items()}
    config, sizes = draw(configs(**drawn)), draw(axes())
    shape = (*(sizes["batch"] if batch is None else batch), max(sizes["seq"], least_seq))
    return draw(token_ids(shape, config.vocab)), config


@st.composite
def models(draw, *, scales=(0.1, 0.25, 0.5), **options):
    """Draw ids, the parameters of a model and its config."""
    ids, config = draw(shapes_of_models(**options))
    return ids, draw(trees(parameter_shapes(config), scales=scales)), config


@st.composite
def generic(draw, **options):
    """Draw a model in general position, with so many tokens and channels that every influence shows in some."""
    ids, config = draw(shapes_of_models(**{"batch": (4,), "least_seq": 8, "n_heads": 3, **options}))
    return ids, normal_tree(draw(GENERATORS), parameter_shapes(config)), config


def rounding(subject, logits):
    """Bound what the order of summation does to a model in general position."""
    return 2**14 * subject.eps * (1 + np.abs(logits).max(initial=0))


def other_ids(ids, vocab):
    """Give ids of which none is the same."""
    return (ids + 1) % vocab


def sines(seq, d_model, base=10000.0):
    """Give the table of sinusoidal positions, column by column."""
    columns = [(np.sin, np.cos)[i % 2](np.arange(seq) / base ** ((i - i % 2) / d_model)) for i in range(d_model)]
    return np.stack(columns, axis=-1)


# -------------------------------------------------------------------------------------------- output_head


@st.composite
def heads(draw):
    """Draw whole numbers for a stream and an output projection, whose products and sums are exact."""
    sizes = draw(axes())
    x = draw(whole_numbers((*sizes["batch"], sizes["seq"], sizes["d_model"]))).astype(np.float64)
    return x, draw(whole_numbers((sizes["d_model"], sizes["vocab"]))).astype(np.float64)


@states("output_head")
@given(drawn=heads())
def test_a_channel_alone_gives_its_row_of_weights(subject, drawn):
    """A token that is 1 in one channel and 0 in all others has that row of w as its logits."""
    _, w = drawn
    equal(subject.output_head(np.eye(len(w)), w), w)


@states("output_head")
@given(drawn=heads(), data=st.data())
def test_logits_of_a_sum_are_the_sum_of_logits(subject, drawn, data):
    """The head is linear, and without a bias nothing is added."""
    x, w = drawn
    other = data.draw(whole_numbers(x.shape)).astype(np.float64)
    equal(subject.output_head(x + other, w), subject.output_head(x, w) + subject.output_head(other, w))


@states("output_head")
@given(drawn=heads(), data=st.data())
def test_a_bias_is_added_to_the_logits(subject, drawn, data):
    """The bias adds to each token's logits one number a class."""
    x, w = drawn
    b = data.draw(whole_numbers(w.shape[-1:])).astype(np.float64)
    equal(subject.output_head(x, w, b), subject.output_head(x, w) + b)


@states("output_head")
@given(drawn=heads())
def test_each_token_is_scored_by_itself(subject, drawn):
    """The logits of a token depend on no other token."""
    x, w = drawn
    rows = x.reshape(-1, 1, x.shape[-1])
    alone = np.stack([subject.output_head(row, w)[0] for row in rows])
    equal(subject.output_head(x, w), alone.reshape(*x.shape[:-1], w.shape[-1]))


# --------------------------------------------------------------------------- transformer: who sees whom


@states("transformer")
@given(
    drawn=models(causal=True, least_seq=2, norm_placement=PLACEMENT, positions=POSITIONS, scales=(10.0,)),
    data=st.data(),
)
def test_a_causal_model_does_not_see_later_tokens(subject, drawn, data):
    """In a causal model a later token leaves earlier logits unchanged, at weights of large scale too."""
    ids, params, config = drawn
    first = data.draw(st.integers(1, ids.shape[-1] - 1))
    other = ids.copy()
    other[..., first:] = other_ids(ids[..., first:], config.vocab)
    logits = subject.transformer(ids, params, config)[..., :first, :]
    got = subject.transformer(other, params, config)[..., :first, :]
    close(got, logits, within=64 * subject.eps * np.abs(logits).max())


@states("transformer")
@given(drawn=generic(causal=False, norm_placement=PLACEMENT, positions=POSITIONS))
def test_without_a_causal_mask_later_tokens_are_seen(subject, drawn):
    """A model that is not causal sees the token that it is asked to predict: it changes the logits before it."""
    ids, params, config = drawn
    other = ids.copy()
    other[..., -1] = other_ids(ids[..., -1], config.vocab)
    logits = subject.transformer(ids, params, config)[..., -2, :]
    got = subject.transformer(other, params, config)[..., -2, :]
    differ(subject, logits, got, "the next token has no influence on the logits before it")


@states("transformer")
@given(drawn=generic(positions=NoPositions(), norm_placement=PLACEMENT), data=st.data())
def test_without_positions_permuting_tokens_permutes_the_logits(subject, drawn, data):
    """Without positions and causal mask the model sees a set: shuffled tokens give the shuffled logits."""
    ids, params, config = drawn
    order = data.draw(st.permutations(range(ids.shape[-1])))
    logits = subject.transformer(ids, params, config)
    got = subject.transformer(ids[..., order], params, config)
    close(got, logits[..., order, :], within=rounding(subject, logits))


@states("transformer")
@given(drawn=generic(positions=NoPositions()), data=st.data())
def test_without_positions_a_pooled_result_does_not_know_the_order(subject, drawn, data):
    """Without positions and causal mask the mean of the logits over the tokens is that of any order of them."""
    ids, params, config = drawn
    order = data.draw(st.permutations(range(ids.shape[-1])))
    pooled = subject.transformer(ids, params, config).mean(axis=-2)
    got = subject.transformer(ids[..., order], params, config).mean(axis=-2)
    close(got, pooled, within=rounding(subject, pooled))


@st.composite
def distinct_ids(draw, **fields):
    """Draw a model in general position and a sequence in which no token comes twice."""
    _, params, config = draw(generic(**fields))
    return np.array(draw(st.permutations(range(config.vocab)))[:8]), params, config


@states("transformer")
@given(drawn=distinct_ids(positions=st.sampled_from((Sinusoidal(), Learned()))))
def test_with_positions_the_order_matters(subject, drawn):
    """With positions the reversed sequence has other logits than the reversed ones."""
    ids, params, config = drawn
    logits = subject.transformer(ids, params, config)
    got = subject.transformer(ids[::-1].copy(), params, config)
    differ(subject, logits[::-1], got, "positions have no influence")


@states("transformer")
@given(drawn=distinct_ids(positions=NoPositions(), causal=True))
def test_a_causal_mask_alone_tells_the_order(subject, drawn):
    """Without positions a causal mask still makes the order matter."""
    ids, params, config = drawn
    logits = subject.transformer(ids, params, config)
    got = subject.transformer(ids[::-1].copy(), params, config)
    differ(subject, logits[::-1], got, "the causal mask has no influence")


@states("transformer")
@given(drawn=generic(batch=(2,), norm_placement=PLACEMENT, positions=POSITIONS))
def test_sequences_of_a_batch_do_not_mix(subject, drawn):
    """The logits of one sequence do not depend on the others in the batch."""
    ids, params, config = drawn
    other = np.stack([ids[0], other_ids(ids[1], config.vocab)])
    logits = subject.transformer(ids, params, config)[0]
    got = subject.transformer(other, params, config)[0]
    close(got, logits, within=64 * subject.eps * np.abs(logits).max())


@states("transformer")
@given(drawn=models(least_seq=2, n_layers=2, norm_placement=PLACEMENT), data=st.data())
def test_a_masked_token_has_no_influence_in_any_block(subject, drawn, data):
    """A token that `mask` hides from all others changes none of their logits, however many blocks there are."""
    ids, params, config = drawn
    hidden = data.draw(st.integers(0, ids.shape[-1] - 1))
    others = np.arange(ids.shape[-1]) != hidden
    mask = others[None, :] | ~others[:, None]
    changed_ids = np.where(others, ids, other_ids(ids, config.vocab))
    logits = subject.transformer(ids, params, config, mask=mask)[..., others, :]
    got = subject.transformer(changed_ids, params, config, mask=mask)[..., others, :]
    close(got, logits, within=64 * subject.eps * np.abs(logits).max())


# --------------------------------------------------------------------------- transformer: what is there


def silenced(params):
    """Give the parameters of a model whose pre-norm blocks are the identity."""
    return changed(params, lambda path, leaf: leaf * (path.split(".")[-1] not in WRITERS))


@states("transformer")
@given(drawn=generic(attention_bias=True, final_norm=False))
def test_silent_blocks_leave_embeddings_positions_and_head(subject, drawn):
    """With silent pre-norm blocks the logits are (scale * E[ids] + P) W + b."""
    ids, params, config = drawn
    x = config.embedding_scale * params["token_embedding"]["table"][ids] + sines(ids.shape[-1], config.d_model)
    should = x @ params["output_head"]["w"] + params["output_head"]["b"]
    close(subject.transformer(ids, silenced(params), config), should, within=rounding(subject, should))


@states("transformer")
@given(drawn=generic(attention_bias=True, final_norm=True, positions=NoPositions()))
def test_the_final_norm_stands_before_the_head(subject, drawn):
    """With silent pre-norm blocks the logits are norm(scale * E[ids]) W + b, with the final norm's gain and bias."""
    ids, params, config = drawn
    x = config.embedding_scale * params["token_embedding"]["table"][ids]
    x = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + config.norm.eps)
    x = x * params["final_norm"]["gamma"] + params["final_norm"]["beta"]
    should = x @ params["output_head"]["w"] + params["output_head"]["b"]
    close(subject.transformer(ids, silenced(params), config), should, within=rounding(subject, should))


@states("transformer")
@given(drawn=generic(final_norm=True, norm_placement=PLACEMENT))
def test_a_final_norm_without_gain_forgets_the_tokens(subject, drawn):
    """Where the final norm's gain is 0 all logits are beta W + b."""
    ids, params, config = drawn
    params["final_norm"]["gamma"] *= 0
    should = params["final_norm"]["beta"] @ params["output_head"]["w"] + params["output_head"]["b"]
    got = subject.transformer(ids, params, config)
    close(got, np.broadcast_to(should, got.shape), within=rounding(subject, should))


@states("transformer")
@given(drawn=generic(tied_head=True, norm_placement=PLACEMENT))
def test_a_tied_head_is_the_table_transposed(subject, drawn):
    """A tied head scores with the embedding table itself, unscaled: like an untied one whose w is table.T."""
    ids, params, config = drawn
    w = params["token_embedding"]["table"].T.copy()
    untied = {**params, "output_head": {"w": w, "b": params["output_head"]["b"]}}
    logits = subject.transformer(ids, untied, replace(config, tied_head=False))
    close(subject.transformer(ids, params, config), logits, within=rounding(subject, logits))


@states("transformer")
@given(drawn=generic(tied_head=st.booleans()))
def test_the_head_bias_is_added_to_the_logits(subject, drawn):
    """The bias of the head, tied or not, adds to every token's logits."""
    ids, params, config = drawn
    head = params["output_head"]
    without = {**params, "output_head": {**head, "b": np.zeros(config.vocab)}}
    logits = subject.transformer(ids, params, config)
    close(logits, subject.transformer(ids, without, config) + head["b"], within=rounding(subject, logits))


@states("transformer")
@given(drawn=generic(positions=Learned(), norm_placement=PLACEMENT))
def test_learned_positions_are_added_row_by_row(subject, drawn):
    """A learned table that holds the sines and cosines makes the model with sinusoidal positions."""
    ids, params, config = drawn
    learned = {**params, "positions": {"table": sines(config.max_len, config.d_model)}}
    fixed = {name: part for name, part in params.items() if name != "positions"}
    logits = subject.transformer(ids, fixed, replace(config, positions=Sinusoidal()))
    close(subject.transformer(ids, learned, config), logits, within=rounding(subject, logits))


@states("transformer")
@FEW
@given(drawn=generic(n_layers=2, attention_bias=True, norm_placement=PLACEMENT, positions=Learned()))
def test_every_parameter_matters(subject, drawn):
    """Layers share nothing and nothing is forgotten: the negative of any parameter, but b_k, gives other logits."""
    ids, params, config = drawn
    logits = subject.transformer(ids, params, config)
    for path in [path for path, _ in leaves(params) if not path.endswith("b_k")]:
        other = changed(params, lambda at, leaf, path=path: -leaf if at == path else leaf)
        differ(subject, logits, subject.transformer(ids, other, config), f"{path} has no influence")


@states("transformer")
@given(drawn=generic(n_layers=2, norm_placement=PLACEMENT))
def test_the_order_of_the_blocks_matters(subject, drawn):
    """Exchanging the parameters of two blocks gives other logits."""
    ids, params, config = drawn
    logits = subject.transformer(ids, params, config)
    got = subject.transformer(ids, {**params, "blocks": params["blocks"][::-1]}, config)
    differ(subject, logits, got, "the order of the blocks has no influence")


@states("transformer")
@given(drawn=generic(n_layers=2))
def test_blocks_act_from_first_to_last(subject, drawn):
    """A model whose last block is silent is the model without it."""
    ids, params, config = drawn
    first, last = params["blocks"]
    quiet = {**params, "blocks": [first, silenced(last)]}
    quiet["blocks"][1]["mlp"]["b_2"] *= 0
    logits = subject.transformer(ids, {**params, "blocks": [first]}, replace(config, n_layers=1))
    close(subject.transformer(ids, quiet, config), logits, within=rounding(subject, logits))


@states("transformer")
@given(drawn=generic(n_layers=2, norm_placement="post", final_norm=False))
def test_the_last_block_has_the_last_word(subject, drawn):
    """Where the last norm of a post-norm model has a gain of 0, all logits are its beta W + b: block 0 acts first."""
    ids, params, config = drawn
    params["blocks"][-1]["norm_2"]["gamma"] *= 0
    should = params["blocks"][-1]["norm_2"]["beta"] @ params["output_head"]["w"] + params["output_head"]["b"]
    got = subject.transformer(ids, params, config)
    close(got, np.broadcast_to(should, got.shape), within=rounding(subject, should))


CHOICES = {
    "embedding_scale": {"embedding_scale": 0.5},
    "positions.base": {"positions": Sinusoidal(base=10.0)},
    "norm.eps": {"norm": LayerNorm(eps=0.5)},
    "norm.variant": {"norm": LayerNorm(eps=0.1, variant="std_plus_eps")},
    "n_heads": {"n_heads": 1},
    "norm_placement": {"norm_placement": "post"},
    "causal": {"causal": True},
    "activation": {"activation": "relu"},
    "the form of gelu": {"activation": "gelu_tanh"},
}


@states("transformer")
@FEW
@given(drawn=generic(embedding_scale=2.5))
def test_every_choice_of_the_config_matters(subject, drawn):
    """No field is read and forgotten: another scale, base, eps, number of heads, activation gives other logits."""
    ids, params, config = drawn
    logits = subject.transformer(ids, params, config)
    for name, choice in CHOICES.items():
        got = subject.transformer(ids, params, replace(config, **choice))
        if name == "the form of gelu":  # which differs by less than 1e-3: beyond rounding in float64 only
            holds(np.any(got != logits), f"config.{name} has no influence", got=logits)
        else:
            differ(subject, logits, got, f"config.{name} has no influence")


# ------------------------------------------------------------------------------------ transformer: dropout


def with_keep(**options):
    """Draw a model with dropout at a rate of 1/2, which is exact, and keep-masks for its sites."""
    return generic(dropout=0.5, **options).flatmap(
        lambda d: st.tuples(st.just(d), keep_masks(keep_shapes(d[2], d[0].shape[:-1], d[0].shape[-1])))
    )


@states("transformer")
@given(drawn=generic(dropout=0.5, norm_placement=PLACEMENT))
def test_without_keep_masks_nothing_is_dropped(subject, drawn):
    """The rate alone does nothing: without keep-masks the model is the one that has no dropout."""
    ids, params, config = drawn
    equal(
        subject.transformer(ids, params, config),
        subject.transformer(ids, params, replace(config, dropout=0.0)),
    )


@states("transformer")
@given(drawn=with_keep(attention_bias=True, final_norm=False))
def test_dropout_acts_on_the_sum_of_embedding_and_position(subject, drawn):
    """keep.positions drops numbers of scale * E[ids] + P, and the rest is scaled by 1 / (1 - rate)."""
    (ids, params, config), keep = drawn
    x = config.embedding_scale * params["token_embedding"]["table"][ids] + sines(ids.shape[-1], config.d_model)
    should = 2 * keep["positions"] * x @ params["output_head"]["w"] + params["output_head"]["b"]
    close(subject.transformer(ids, silenced(params), config, keep=keep), should, within=rounding(subject, should))


@states("transformer")
@FEW
@given(drawn=with_keep(n_layers=2, norm_placement=PLACEMENT))
def test_every_keep_mask_matters(subject, drawn):
    """Each block drops by its own masks at each of its sites: exchanging what one keeps gives other logits."""
    (ids, params, config), keep = drawn
    logits = subject.transformer(ids, params, config, keep=keep)
    for site, _ in leaves(keep):
        other = changed(keep, lambda path, mask, site=site: ~mask if path == site else mask)
        got = subject.transformer(ids, params, config, keep=other)
        differ(subject, logits, got, f"keep.{site} has no influence")


# ------------------------------------------------------------------------------------- transformer: errors


@states("transformer")
@given(drawn=models(batch=(), positions=POSITIONS), beyond=st.integers(1, 3), data=st.data())
def test_a_sequence_longer_than_max_len_is_refused(subject, drawn, beyond, data):
    """More tokens than max_len are a ValueError that names both numbers, whatever the positions."""
    _, params, config = drawn
    batch = data.draw(st.sampled_from(((), (2,))))
    ids = data.draw(token_ids((*batch, config.max_len + beyond), config.vocab))
    with raises(subject, ValueError, "max_len", str(config.max_len), str(config.max_len + beyond)):
        subject.transformer(ids, params, config)


@states("transformer")
@given(drawn=models(batch=(), positions=POSITIONS), data=st.data())
def test_a_sequence_of_max_len_is_accepted(subject, drawn, data):
    """Exactly max_len tokens have logits."""
    _, params, config = drawn
    ids = data.draw(token_ids((config.max_len,), config.vocab))
    holds(np.isfinite(subject.transformer(ids, params, config)), "a logit is not finite")


@states("transformer")
@given(drawn=models(), beyond=st.integers(0, 3), above=st.booleans())
def test_an_id_outside_the_vocab_is_refused(subject, drawn, beyond, above):
    """An id below 0 or past the vocabulary is an IndexError."""
    ids, params, config = drawn
    ids.flat[-1] = wrong = config.vocab + beyond if above else -1 - beyond
    with raises(subject, IndexError, "ids", str(wrong)):
        subject.transformer(ids, params, config)


@states("transformer")
@given(drawn=models(positions=Learned(), final_norm=True), data=st.data())
def test_a_missing_parameter_is_refused(subject, drawn, data):
    """Parameters that lack one which the config asks for are refused, by its path."""
    ids, params, config = drawn
    path = data.draw(st.sampled_from(("positions.table", "final_norm.gamma", "output_head.w", "output_head.b")))
    group, name = path.split(".")
    lacking = {**params, group: {key: leaf for key, leaf in params[group].items() if key != name}}
    with raises(subject, ValueError, path):
        subject.transformer(ids, lacking, config)


# ---------------------------------------------------------------------------------------- parameter_count


@st.composite
def any_configs(draw):
    """Draw a config with every choice that adds or removes parameters."""
    flags = ("final_norm", "attention_bias", "output_projection", "tied_head", "head_bias")
    return draw(
        configs(
            **{flag: draw(st.booleans()) for flag in flags},
            positions=draw(POSITIONS),
            norm=LayerNorm(eps=0.1, affine=draw(st.booleans())),
            n_layers=draw(st.integers(0, 3)),
            activation=draw(st.sampled_from(ACTIVATIONS)),
        )
    )


@states("parameter_count")
@given(config=any_configs())
def test_is_the_sum_of_the_sizes(subject, config):
    """The count is the sum of the sizes of all arrays in the parameter tree."""
    should = sum(int(np.prod(shape)) for _, shape in leaves(parameter_shapes(config)))
    equal(subject.parameter_count(config), should)


@states("parameter_count")
@given(config=any_configs())
def test_is_a_formula_of_the_sizes(subject, config):
    """The count is a closed formula of the sizes: L (4 d² + 2 d f + f + 5 d) and so on, a part that is absent out."""
    c, d = config, config.d_model
    projections = 3 + c.output_projection
    block = projections * d * (d + c.attention_bias) + c.d_ff * (2 * d + 1) + d + 4 * d * c.norm.affine
    head = d * c.vocab * (not c.tied_head) + c.vocab * c.head_bias
    final = 2 * d * (c.norm.affine and c.final_norm)
    positions = c.max_len * d * isinstance(c.positions, Learned)
    equal(subject.parameter_count(c), c.vocab * d + positions + c.n_layers * block + final + head)


@states("parameter_count")
@given(config=any_configs())
def test_a_tied_table_counts_once(subject, config):
    """Tying the head saves exactly vocab * d_model."""
    untied = subject.parameter_count(replace(config, tied_head=False))
    tied = subject.parameter_count(replace(config, tied_head=True))
    equal(untied - tied, config.vocab * config.d_model)


@states("parameter_count")
@given(config=any_configs(), more=st.integers(1, 4))
def test_every_block_counts_the_same(subject, config, more):
    """Each further block adds as many parameters as the first."""
    none, one, many = (int(subject.parameter_count(replace(config, n_layers=n))) for n in (0, 1, 1 + more))
    equal(many - one, more * (one - none))


@states("parameter_count")
@FEW
@given(d_model=st.sampled_from((2**25, 2**26)))
def test_counts_without_building(subject, d_model):
    """A model too large for any memory is counted all the same, and exactly."""
    huge = ModelConfig(vocab=3, d_model=d_model, n_heads=1, n_layers=5, d_ff=1, max_len=1)
    should = 3 * d_model * 2 + 3 + 5 * (4 * d_model**2 + 3 * d_model + 1 + 4 * d_model) + 2 * d_model
    got = int(subject.parameter_count(huge))
    holds(got == should, "the count is wrong", got=str(got), should=str(should))


# -------------------------------------------------------------------------------------- gradients: the head


def sum_over_tokens(cotangent):
    """Give what a number that is added to every token gets."""
    return cotangent.reshape(-1, cotangent.shape[-1]).sum(axis=0)


def onto_weights(x, cotangent):
    """Give the gradient of w in x @ w: x^T times the cotangent, over all tokens."""
    return x.reshape(-1, x.shape[-1]).T @ cotangent.reshape(-1, cotangent.shape[-1])


@states("output_head", gradient=True)
@given(drawn=heads(), data=st.data())
def test_the_gradients_of_a_head_are_products(subject, drawn, data):
    """The gradient of x is the cotangent times w^T, and that of w is x^T times the cotangent over all tokens."""
    x, w = drawn
    cotangent = data.draw(whole_numbers((*x.shape[:-1], w.shape[-1]))).astype(np.float64)
    dx, dw, db = subject.output_head_vjp(cotangent, x, w)
    equal(dx, cotangent @ w.T, what="the gradient of x")
    equal(dw, onto_weights(x, cotangent), what="the gradient of w")
    holds(db is None, "an absent bias has a gradient", got=db)


@states("output_head", gradient=True)
@given(drawn=heads(), data=st.data())
def test_the_bias_of_a_head_gets_the_sum_of_the_cotangent(subject, drawn, data):
    """The bias is added to every token's logits: its gradient is the sum over all of them."""
    x, w = drawn
    cotangent = data.draw(whole_numbers((*x.shape[:-1], w.shape[-1]))).astype(np.float64)
    b = data.draw(whole_numbers(w.shape[-1:])).astype(np.float64)
    equal(subject.output_head_vjp(cotangent, x, w, b)[2], sum_over_tokens(cotangent), what="the gradient of b")


# ------------------------------------------------------------------------------------- gradients: the model


@st.composite
def differentiated(draw, *, distinct=False, **options):
    """Draw a model in general position, and a cotangent of its logits; `distinct` says that no token comes twice."""
    ids, config = draw(shapes_of_models(**{"batch": (4,), "least_seq": 8, "n_heads": 3, **options}))
    if distinct:
        ids = np.array(draw(st.permutations(range(config.vocab)))[:8])
    generator = draw(GENERATORS)
    drawn = ids, normal_tree(generator, parameter_shapes(config)), config
    return drawn, generator.standard_normal((*ids.shape, config.vocab))


def differentiate(subject, drawn, cotangent, **options):
    """Call the vjp; the gradient of each parameter by its path."""
    (gradient,) = subject.transformer_vjp(cotangent, *drawn, **options)
    return dict(leaves(gradient))


def no_gradient(gradient, what):
    """Judge that a gradient is exactly 0."""
    equal(gradient, np.zeros(gradient.shape), what=f"the gradient of {what}")


def same_gradients(subject, got, should):
    """Judge that the gradients are those of the paths in `should`."""
    for path, leaf in should.items():
        close(got[path], leaf, within=rounding(subject, leaf), what=f"the gradient of {path}")


TABLE, POSITION_TABLE = "token_embedding.table", "positions.table"


@states("transformer", gradient=True)
@given(drawn=differentiated(norm_placement=PLACEMENT, positions=POSITIONS))
def test_a_cotangent_of_0_asks_for_nothing(subject, drawn):
    """Where nothing is asked of the logits, every parameter has a gradient of exactly 0."""
    model, cotangent = drawn
    for path, leaf in differentiate(subject, model, 0 * cotangent).items():
        no_gradient(leaf, path)


@states("transformer", gradient=True)
@FEW
@given(drawn=differentiated(n_layers=2, attention_bias=True, norm_placement=PLACEMENT, positions=Learned()))
def test_every_parameter_has_a_gradient(subject, drawn):
    """In general position no parameter's gradient is 0, but for that of b_k, which moves all scores alike."""
    model, cotangent = drawn
    gradient = differentiate(subject, model, cotangent)
    for path, shape in leaves(parameter_shapes(model[2])):
        leaf = gradient[path]
        holds(leaf.shape == shape, f"the gradient of {path} has another shape", got=str(leaf.shape), should=str(shape))
        if path.endswith("b_k"):
            close(leaf, np.zeros(shape), within=rounding(subject, cotangent), what=f"the gradient of {path}")
        else:
            differ(subject, np.zeros(shape), leaf, f"{path} has no gradient")


@states("transformer", gradient=True)
@given(drawn=differentiated(norm_placement=PLACEMENT))
def test_exactly_the_tokens_that_are_used_have_a_gradient(subject, drawn):
    """The rows of the embedding table that no id names get exactly 0, and the others do not."""
    model, cotangent = drawn
    table, used = differentiate(subject, model, cotangent)[TABLE], np.isin(np.arange(model[2].vocab), model[0])
    no_gradient(table[~used], "an unused token")
    holds(np.any(table[used] != 0, axis=-1), "a token that is used has no gradient", got=table)


@states("transformer", gradient=True)
@given(drawn=differentiated(norm_placement=PLACEMENT, positions=Learned()))
def test_exactly_the_positions_that_are_used_have_a_gradient(subject, drawn):
    """The rows of the position table past the sequence get exactly 0, and the others do not."""
    model, cotangent = drawn
    table, seq = differentiate(subject, model, cotangent)[POSITION_TABLE], model[0].shape[-1]
    no_gradient(table[seq:], "a position past the sequence")
    holds(np.any(table[:seq] != 0, axis=-1), "a position that is used has no gradient", got=table)


@states("transformer", gradient=True)
@given(drawn=differentiated(tied_head=True, norm_placement=PLACEMENT))
def test_a_tied_table_gets_the_sum_of_both_its_uses(subject, drawn):
    """A tied table's gradient is what an untied one gets as embedding, and what its w gets, transposed."""
    (ids, params, config), cotangent = drawn
    w = params["token_embedding"]["table"].T.copy()
    untied = {**params, "output_head": {"w": w, "b": params["output_head"]["b"]}}
    apart = differentiate(subject, (ids, untied, replace(config, tied_head=False)), cotangent)
    tied = differentiate(subject, (ids, params, config), cotangent)
    apart[TABLE] = apart[TABLE] + apart.pop("output_head.w").T
    same_gradients(subject, tied, apart)


@states("transformer", gradient=True)
@given(drawn=differentiated(positions=Learned(), norm_placement=PLACEMENT))
def test_tokens_and_positions_share_one_gradient(subject, drawn):
    """Summed over their rows, the gradients of the tables of embeddings and positions differ by the scale alone."""
    model, cotangent = drawn
    gradient = differentiate(subject, model, cotangent)
    should = model[2].embedding_scale * gradient[POSITION_TABLE].sum(axis=0)
    close(gradient[TABLE].sum(axis=0), should, within=rounding(subject, should), what="the sum of the table's gradient")


@states("transformer", gradient=True)
@given(drawn=differentiated(attention_bias=True, final_norm=False, positions=Learned()))
def test_silent_blocks_leave_the_gradients_of_embeddings_positions_and_head(subject, drawn):
    """With silent pre-norm blocks the stream gets g = cotangent W^T: E[id] the sum of scale * g, P[t] that of g."""
    (ids, params, config), cotangent = drawn
    gradient = differentiate(subject, (ids, silenced(params), config), cotangent)
    table, positions = np.zeros_like(params["token_embedding"]["table"]), np.zeros((config.max_len, config.d_model))
    x = config.embedding_scale * params["token_embedding"]["table"][ids]
    x = x + params["positions"]["table"][: ids.shape[-1]]
    g = cotangent @ params["output_head"]["w"].T
    np.add.at(table, ids, config.embedding_scale * g)
    positions[: ids.shape[-1]] = g.sum(axis=0)
    should = {
        TABLE: table,
        POSITION_TABLE: positions,
        "output_head.w": onto_weights(x, cotangent),
        "output_head.b": sum_over_tokens(cotangent),
    }
    same_gradients(subject, gradient, should)


@states("transformer", gradient=True)
@given(drawn=differentiated(final_norm=True, norm_placement=PLACEMENT))
def test_the_final_norm_stands_between_the_head_and_all_gradients(subject, drawn):
    """The final norm's bias gets the cotangent through the head; where its gain is 0, nothing before it gets any."""
    (ids, params, config), cotangent = drawn
    params["final_norm"]["gamma"] *= 0
    gradient = differentiate(subject, (ids, params, config), cotangent)
    should = sum_over_tokens(cotangent @ params["output_head"]["w"].T)
    same_gradients(subject, gradient, {"final_norm.beta": should})
    for path, leaf in gradient.items():
        if not path.startswith(("final_norm", "output_head")):
            no_gradient(leaf, path)


@states("transformer", gradient=True)
@given(drawn=differentiated(distinct=True, causal=True, norm_placement=PLACEMENT, positions=Learned()), data=st.data())
def test_a_causal_cotangent_reaches_no_later_embedding(subject, drawn, data):
    """What is asked of the logits before t moves neither the tokens that come from t on nor their positions."""
    model, cotangent = drawn
    t = data.draw(st.integers(1, 7))
    cotangent[t:] = 0
    gradient = differentiate(subject, model, cotangent)
    no_gradient(gradient[TABLE][model[0][t:]], "a later token")
    no_gradient(gradient[POSITION_TABLE][t:], "a later position")


@states("transformer", gradient=True)
@given(drawn=differentiated(distinct=True, norm_placement=PLACEMENT), data=st.data())
def test_a_masked_token_of_which_nothing_is_asked_has_gradient_0(subject, drawn, data):
    """A token that `mask` hides from all others in every block, and whose logits do not count, gets exactly 0."""
    model, cotangent = drawn
    hidden = data.draw(st.integers(0, 7))
    others = np.arange(8) != hidden
    cotangent[hidden] = 0
    gradient = differentiate(subject, model, cotangent, mask=others[None, :] | ~others[:, None])
    no_gradient(gradient[TABLE][model[0][hidden]], "a masked token")


@states("transformer", gradient=True)
@given(drawn=differentiated(n_layers=2, norm_placement=PLACEMENT))
def test_each_block_has_gradients_of_its_own(subject, drawn):
    """Blocks share nothing: equal blocks at different depths get different gradients."""
    (ids, params, config), cotangent = drawn
    params["blocks"][1] = params["blocks"][0]
    gradient = differentiate(subject, (ids, params, config), cotangent)
    for path, _ in leaves(params["blocks"][0]):
        one, other = gradient[f"blocks.0.{path}"], gradient[f"blocks.1.{path}"]
        differ(subject, one, other, f"both blocks have the same gradient of {path}")


@states("transformer", gradient=True)
@given(drawn=differentiated(n_layers=2))
def test_a_silent_block_passes_the_gradient_on(subject, drawn):
    """Behind a silent last block the first one and what is before it learn what they learn in a model without it."""
    (ids, params, config), cotangent = drawn
    quiet = silenced({"blocks": params["blocks"][1:]})["blocks"]
    got = differentiate(subject, (ids, {**params, "blocks": params["blocks"][:1] + quiet}, config), cotangent)
    one = ids, {**params, "blocks": params["blocks"][:1]}, replace(config, n_layers=1)
    same_gradients(subject, got, differentiate(subject, one, cotangent))


@states("transformer", gradient=True)
@given(drawn=differentiated(batch=(2,), norm_placement=PLACEMENT, positions=POSITIONS))
def test_the_gradient_of_a_batch_is_the_sum_over_its_sequences(subject, drawn):
    """Every parameter serves all sequences, and gets the sum of what each of them alone would give it."""
    (ids, params, config), cotangent = drawn
    one, other = (differentiate(subject, (ids[i], params, config), cotangent[i]) for i in (0, 1))
    got = differentiate(subject, (ids, params, config), cotangent)
    same_gradients(subject, got, {path: leaf + other[path] for path, leaf in one.items()})


@states("transformer", gradient=True)
@given(drawn=differentiated(dropout=0.5, norm_placement=PLACEMENT))
def test_without_keep_masks_the_gradient_knows_no_dropout(subject, drawn):
    """The rate alone does nothing to the gradient."""
    (ids, params, config), cotangent = drawn
    should = differentiate(subject, (ids, params, replace(config, dropout=0.0)), cotangent)
    got = differentiate(subject, (ids, params, config), cotangent)
    for path, leaf in should.items():
        equal(got[path], leaf, what=f"the gradient of {path}")


@states("transformer", gradient=True)
@given(drawn=differentiated(dropout=0.5, attention_bias=True, final_norm=False, positions=Learned()), data=st.data())
def test_dropout_acts_on_the_gradient_of_embeddings_and_positions(subject, drawn, data):
    """Where keep.positions is False nothing is learnt, and where it is True, at a rate of 1/2, twice as much."""
    (ids, params, config), cotangent = drawn
    keep = map_tree(lambda shape: np.ones(shape, bool), keep_shapes(config, ids.shape[:-1], ids.shape[-1]))
    keep["positions"] = data.draw(truths(keep["positions"].shape))
    gradient = differentiate(subject, (ids, silenced(params), config), cotangent, keep=keep)
    g = 2 * keep["positions"] * (cotangent @ params["output_head"]["w"].T)
    table = np.zeros_like(params["token_embedding"]["table"])
    np.add.at(table, ids, config.embedding_scale * g)
    same_gradients(subject, gradient, {TABLE: table})
    close(gradient[POSITION_TABLE][: ids.shape[-1]], g.sum(axis=0), within=rounding(subject, g),
          what="the gradient of positions.table")  # fmt: skip


@states("transformer", gradient=True)
@given(drawn=differentiated(dropout=0.5, n_layers=2, norm_placement=PLACEMENT), block=st.integers(0, 1))
def test_a_block_of_which_nothing_is_kept_learns_nothing(subject, drawn, block):
    """Each block has its own keep-masks: where nothing is kept, attention and MLP get exactly 0, and elsewhere not."""
    (ids, params, config), cotangent = drawn
    keep = map_tree(lambda shape: np.ones(shape, bool), keep_shapes(config, ids.shape[:-1], ids.shape[-1]))
    keep["blocks"][block] = map_tree(np.logical_not, keep["blocks"][block])
    gradient = differentiate(subject, (ids, params, config), cotangent, keep=keep)
    for path, leaf in gradient.items():
        if path.startswith((f"blocks.{block}.attention", f"blocks.{block}.mlp")):
            no_gradient(leaf, f"{path}, which is dropped,")
        elif path.startswith("blocks") and "norm" not in path:
            differ(subject, np.zeros(leaf.shape), leaf, f"{path} has no gradient")


# ------------------------------------------------------------------------------------------------ training

STEPS = 50


class Run:
    """A training run, one step at a time: whose functions are called, the parameters, and the moments of AdamW."""

    def __init__(self, functions, params, config, recipe):
        self.functions, self.config, self.recipe = functions, config, recipe
        self.params = dict(leaves(params))
        self.m, self.v = ({path: np.zeros(leaf.shape) for path, leaf in self.params.items()} for _ in "mv")

    def advance(self, step, ids, targets):
        """Take a step, counted from 0, and tell of what was computed on the way, stage by stage, by its name."""
        f, recipe, tree = self.functions, self.recipe, tree_from_leaves(self.params)
        logits = f.transformer(ids, tree, self.config)
        yield "the loss", {"": f.cross_entropy(logits, targets)}
        (cotangent,) = f.cross_entropy_vjp(np.ones(()), logits, targets)
        yield "the gradient of the logits", {"": cotangent}
        (gradient,) = f.transformer_vjp(cotangent, ids, tree, self.config)
        yield "the gradient", dict(leaves(gradient))
        if recipe["max_norm"] is not None:
            gradient, _ = f.clip_grad_norm(gradient, max_norm=recipe["max_norm"])
            yield "the clipped gradient", dict(leaves(gradient))
        lr = f.warmup_cosine(step, warmup=recipe["warmup"], total=STEPS, max_lr=recipe["max_lr"])
        yield "the learning rate", {"": lr}
        self.update(dict(leaves(gradient)), step=step + 1, lr=float(lr))
        yield "the update", self.params

    def update(self, gradient, **options):
        """Let AdamW step what decays, which has two axes or more, and then what does not, each as one long vector."""
        for axes_of_a_leaf, weight_decay in ((2, self.recipe["weight_decay"]), (1, 0.0)):
            paths = [path for path, leaf in self.params.items() if leaf.ndim == axes_of_a_leaf]
            moving = self.params, self.m, self.v
            param, m, v, grad = (np.concatenate([tree[path].ravel() for path in paths]) for tree in (*moving, gradient))
            stepped = self.functions.adamw_step(param, grad, m, v, weight_decay=weight_decay, **options)
            ends = np.cumsum([self.params[path].size for path in paths])[:-1]
            for tree, vector in zip(moving, stepped, strict=True):
                for path, part in zip(paths, np.split(vector, ends), strict=True):
                    tree[path] = part.reshape(tree[path].shape)


def runs_agree(subject, one, other, batches):
    """Judge that two runs never part; else say at which step they do first, at which stage of it and in what tensor."""
    for step, (ids, targets) in enumerate(batches):
        subject.begin_example()  # what led here is not what is wrong: a failure shows the calls of its own step
        with unchecked() if step else nullcontext():  # the first step has checked the shapes of all
            stages = zip(one.advance(step, ids, targets), other.advance(step, ids, targets), strict=True)
            for (stage, got), (_, should) in stages:
                for path, leaf in should.items():
                    what = f"step {step + 1} is the first to differ: {stage}{' of ' if path else ''}{path}"
                    close(got[path], leaf, within=1e-9 if stage == "the loss" else 1e-8, what=what)


@st.composite
def training_runs(draw):
    """Draw a model, a recipe and a batch for each step.

    AdamW divides by the size of the gradient, so that it makes whole steps of what is only rounding noise, where a
    gradient is 0 by theory and not by arithmetic: b_k has such a one, and so the model has no biases of attention. Its
    own eps of 1e-8, far above the noise of 1e-17 in float64, keeps the rest from that: noise stays below 1e-9 of lr.
    """
    ids, config = draw(
        shapes_of_models(
            batch=(2,), least_seq=5, n_heads=st.integers(2, 3), n_layers=st.integers(1, 2), norm_placement=PLACEMENT,
            causal=st.booleans(), positions=POSITIONS, tied_head=st.booleans(),
        )
    )  # fmt: skip
    recipe = {
        "max_lr": draw(st.sampled_from((3e-3, 1e-2))),
        "warmup": draw(st.sampled_from((1, 10))),
        "weight_decay": draw(st.sampled_from((0.1, 0.0))),
        "max_norm": draw(st.sampled_from((0.1, None))),
    }
    generator = draw(GENERATORS)
    params = normal_tree(generator, parameter_shapes(config), scale=0.25)
    batches = generator.integers(0, config.vocab, (STEPS, 2, *ids.shape))
    return params, config, recipe, batches


@states(
    "transformer",
    needs=("cross_entropy", "cross_entropy_vjp", "clip_grad_norm", "warmup_cosine", "adamw_step"),
    gradient=True,
    oracle=True,
)
@FEW
@given(drawn=training_runs())
def test_fifty_steps_of_training_are_those_of_the_reference(subject, drawn):
    """Over 50 AdamW steps in float64 a run's losses are the reference's to 1e-9, and its parameters to 1e-8."""
    if subject.dtype != np.float64:
        raise Unsupported(f"a run is compared in float64, and {subject.name} works in {subject.dtype}")
    params, config, recipe, batches = drawn
    runs = (Run(functions, params, config, recipe) for functions in (subject, reference.numpy))
    runs_agree(subject, *runs, batches)

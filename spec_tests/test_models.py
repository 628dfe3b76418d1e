"""What is true of the whole model: from ids to the scores of the next token."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.config import ACTIVATIONS, LayerNorm, Learned, ModelConfig, NoPositions, Sinusoidal
from reference.parameters import leaves, parameter_shapes
from spec_tests.judge import close, differ, equal, holds, raises
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
    ids = data.draw(token_ids((config.max_len + beyond,), config.vocab))
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

"""What is true of one layer: two branches that add to a stream, with a norm before or after each."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.config import LayerNorm
from reference.parameters import block_shapes, leaves, map_tree
from spec_tests.judge import close, differ, equal, raises
from spec_tests.spec import states
from spec_tests.strategies import (
    GENERATORS,
    axes,
    changed,
    configs,
    keep_masks,
    keep_shapes,
    normal_tree,
    numbers,
    trees,
    truths,
)

PLACEMENT = st.sampled_from(("pre", "post"))
WRITERS = ("w_o", "b_o", "w_2", "b_2")
"""The parameters by which the branches write into the stream."""


@st.composite
def shapes_of_blocks(draw, *, least_seq=1, batch=None, **fields):
    """Draw the shape of a stream and a block's config; `fields` are values or strategies."""
    drawn = {name: draw(v) if isinstance(v, st.SearchStrategy) else v for name, v in fields.items()}
    config, sizes = draw(configs(**drawn)), draw(axes())
    return (*(sizes["batch"] if batch is None else batch), max(sizes["seq"], least_seq), config.d_model), config


@st.composite
def blocks(draw, *, scales=(0.1, 0.25, 0.5), **options):
    """Draw a stream, the parameters of a block and its config."""
    shape, config = draw(shapes_of_blocks(**options))
    return draw(numbers(shape)), draw(trees(block_shapes(config), scales=scales)), config


@st.composite
def differentiated(draw, **options):
    """Draw a block in general position, with so many tokens that every influence shows in some, and a cotangent."""
    shape, config = draw(shapes_of_blocks(**{"batch": (4,), "least_seq": 8, "n_heads": 3, **options}))
    generator = draw(GENERATORS)
    drawn = generator.standard_normal(shape), normal_tree(generator, block_shapes(config)), config
    return drawn, generator.standard_normal(shape)


def generic(**options):
    """Draw a block in general position."""
    return differentiated(**options).map(lambda drawn: drawn[0])


def silenced(params, *names):
    """Give the parameters with those of these names 0."""
    return changed(params, lambda path, leaf: leaf * (path.split(".")[-1] not in names))


def scaled(params, factors):
    """Give the parameters with those named in `factors` multiplied."""
    return changed(params, lambda path, leaf: leaf * factors.get(path.split(".")[-1], 1.0))


def standard_norm(x, gamma, beta, eps):
    """Normalise the last axis as the formula says."""
    variance = x.var(axis=-1, keepdims=True)
    return (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(variance + eps) * gamma + beta


def rounding(subject, y):
    """Bound what the order of summation does to a block in general position."""
    return 2**12 * subject.eps * (1 + np.abs(y).max(initial=0))


@states("transformer_block")
@given(drawn=blocks(attention_bias=True))
def test_silent_branches_make_a_pre_norm_block_the_identity(subject, drawn):
    """With output projections and biases of 0 a pre-norm block returns its input to the last bit."""
    x, params, config = drawn
    equal(subject.transformer_block(x, silenced(params, *WRITERS), config), x.astype(subject.dtype))


@states("transformer_block")
@given(drawn=generic(attention_bias=True, norm_placement="post"))
def test_silent_branches_leave_a_post_norm_block_its_two_norms(subject, drawn):
    """With output projections and biases of 0 a post-norm block is norm_2(norm_1(x))."""
    x, params, config = drawn
    should = standard_norm(x, **params["norm_1"], eps=config.norm.eps)
    should = standard_norm(should, **params["norm_2"], eps=config.norm.eps)
    got = subject.transformer_block(x, silenced(params, *WRITERS), config)
    close(got, should, within=rounding(subject, should))


@states("transformer_block")
@given(
    drawn=blocks(causal=True, least_seq=2, norm_placement=PLACEMENT, scales=(10.0,)),
    data=st.data(),
)
def test_a_causal_block_does_not_see_later_tokens(subject, drawn, data):
    """In a causal block a later token leaves earlier outputs unchanged, at weights of large scale too."""
    x, params, config = drawn
    first = data.draw(st.integers(1, x.shape[-2] - 1))
    other = x.copy()
    other[..., first:, :] = data.draw(numbers(other[..., first:, :].shape))
    y = subject.transformer_block(x, params, config)[..., :first, :]
    got = subject.transformer_block(other, params, config)[..., :first, :]
    close(got, y, within=64 * subject.eps * np.abs(y).max())


@states("transformer_block")
@given(drawn=generic(causal=False, norm_placement=PLACEMENT))
def test_without_a_causal_mask_later_tokens_are_seen(subject, drawn):
    """In a block that is not causal the last token changes what comes out at the first."""
    x, params, config = drawn
    other = x.copy()
    other[..., -1, :] *= -1
    y = subject.transformer_block(x, params, config)[..., 0, :]
    got = subject.transformer_block(other, params, config)[..., 0, :]
    differ(subject, y, got, "the last token has no influence on the first")


@states("transformer_block")
@given(drawn=blocks(least_seq=2, norm_placement=PLACEMENT), data=st.data())
def test_a_masked_token_has_no_influence(subject, drawn, data):
    """A token that `mask` hides from all others can change without their outputs changing."""
    x, params, config = drawn
    seq = x.shape[-2]
    hidden = data.draw(st.integers(0, seq - 1))
    others = np.arange(seq) != hidden
    mask = others[None, :] | ~others[:, None]
    changed_x = x.copy()
    changed_x[..., hidden, :] = data.draw(numbers(changed_x[..., hidden, :].shape))
    y = subject.transformer_block(x, params, config, mask=mask)[..., others, :]
    got = subject.transformer_block(changed_x, params, config, mask=mask)[..., others, :]
    close(got, y, within=64 * subject.eps * np.abs(y).max())


@states("transformer_block")
@given(drawn=generic(norm_placement=PLACEMENT), data=st.data())
def test_permuting_tokens_permutes_the_output(subject, drawn, data):
    """A block knows no positions: permuted tokens give the permuted output."""
    x, params, config = drawn
    order = data.draw(st.permutations(range(x.shape[-2])))
    y = subject.transformer_block(x, params, config)
    got = subject.transformer_block(x[..., order, :], params, config)
    close(got, y[..., order, :], within=rounding(subject, y))


@states("transformer_block")
@given(drawn=generic(batch=(2,), norm_placement=PLACEMENT))
def test_sequences_of_a_batch_do_not_mix(subject, drawn):
    """What comes out for one sequence does not depend on the others in the batch."""
    x, params, config = drawn
    other = np.stack([x[0], -10 * x[1]])
    y = subject.transformer_block(x, params, config)[0]
    close(subject.transformer_block(other, params, config)[0], y, within=64 * subject.eps * np.abs(y).max())


@states("transformer_block")
@given(drawn=generic(), shift=st.sampled_from((-8.0, 8.0)))
def test_a_constant_added_to_the_stream_passes_a_pre_norm_block(subject, drawn, shift):
    """A pre-norm branch reads the normed stream only: the same number added to all channels just passes by."""
    x, params, config = drawn
    y = subject.transformer_block(x, params, config)
    close(subject.transformer_block(x + shift, params, config), y + shift, within=rounding(subject, y + shift))


@states("transformer_block")
@settings(max_examples=5)
@given(drawn=generic(attention_bias=True, norm_placement=PLACEMENT))
def test_every_parameter_matters(subject, drawn):
    """The negative of any parameter gives another output, but for b_k, which moves all scores of a query alike."""
    x, params, config = drawn
    y = subject.transformer_block(x, params, config)
    for path, _ in leaves(params):
        other = changed(params, lambda at, leaf, path=path: -leaf if at == path else leaf)
        got = subject.transformer_block(x, other, config)
        if path == "attention.b_k":
            close(got, y, within=rounding(subject, y))
        else:
            differ(subject, y, got, f"{path} has no influence")


@states("transformer_block")
@given(drawn=generic(norm_placement=PLACEMENT))
def test_the_number_of_heads_matters(subject, drawn):
    """The same weights cut into several heads do another thing than as one."""
    x, params, config = drawn
    y = subject.transformer_block(x, params, config)
    got = subject.transformer_block(x, params, replace(config, n_heads=1))
    differ(subject, y, got, "config.n_heads has no influence")


@states("transformer_block")
@given(drawn=generic())
def test_the_mlp_reads_what_attention_wrote(subject, drawn):
    """The branches act one after the other: what the MLP adds depends on what attention added before."""
    x, params, config = drawn

    def added_by_the_mlp(factor):
        whole = scaled(params, {"w_o": factor})
        without = silenced(whole, "w_2", "b_2")
        return subject.transformer_block(x, whole, config) - subject.transformer_block(x, without, config)

    differ(subject, added_by_the_mlp(1.0), added_by_the_mlp(-1.0), "the MLP does not read what attention wrote")


@states("transformer_block")
@given(drawn=generic(norm=LayerNorm(eps=0.0)), factor=st.sampled_from((0.5, 4.0)))
def test_the_stream_itself_is_not_normed_before(subject, drawn, factor):
    """In a pre-norm block the scale of the stream reaches no branch: only the stream itself scales."""
    x, params, config = drawn
    y = subject.transformer_block(x, silenced(params, "w_2", "b_2"), config)
    got = subject.transformer_block(factor * x, silenced(params, "w_2", "b_2"), config)
    close(got - factor * x, y - x, within=rounding(subject, y) * (1 + factor))


# ------------------------------------------------------------------------------------------------ dropout


def with_keep(**options):
    """Draw a block with dropout at a rate of 1/2, which is exact, and keep-masks for its three sites."""
    drawn = generic(dropout=0.5, attention_bias=True, **options)
    return drawn.flatmap(lambda d: st.tuples(st.just(d), keep_masks(keep_tree(d[2], d[0].shape))))


def keep_tree(config, shape):
    """Give the shapes of one block's keep-masks."""
    return keep_shapes(config, shape[:-2], shape[-2])["blocks"][0]


def everything(keep):
    """Give keep-masks that drop nothing."""
    return {site: np.ones(mask.shape, bool) for site, mask in keep.items()}


@states("transformer_block")
@given(drawn=generic(dropout=0.5, norm_placement=PLACEMENT))
def test_without_keep_masks_nothing_is_dropped(subject, drawn):
    """The rate alone does nothing: without keep-masks a block is the one that has no dropout."""
    x, params, config = drawn
    y = subject.transformer_block(x, params, replace(config, dropout=0.0))
    equal(subject.transformer_block(x, params, config), y)


@states("transformer_block")
@given(drawn=with_keep(norm_placement=PLACEMENT))
def test_keeping_everything_scales_each_branch_once_a_site(subject, drawn):
    """Masks that drop nothing scale by 1 / (1 - rate): attention's output once, and the MLP's weights twice."""
    (x, params, config), keep = drawn
    factors = {"w_o": 2.0, "b_o": 2.0, "w_2": 4.0, "b_2": 2.0}
    y = subject.transformer_block(x, scaled(params, factors), replace(config, dropout=0.0))
    got = subject.transformer_block(x, params, config, keep=everything(keep))
    close(got, y, within=rounding(subject, y))


@states("transformer_block")
@given(drawn=with_keep())
def test_dropout_acts_on_the_output_of_attention(subject, drawn):
    """What attention adds to the stream is dropped number by number where keep.attention is False."""
    (x, params, config), keep = drawn
    params = silenced(params, "w_2", "b_2")
    added = subject.transformer_block(x, params, replace(config, dropout=0.0)) - x
    got = subject.transformer_block(x, params, config, keep={**everything(keep), "attention": keep["attention"]})
    close(got - x, 2 * keep["attention"] * added, within=rounding(subject, got))


@states("transformer_block")
@given(drawn=with_keep())
def test_dropout_acts_on_the_output_of_the_mlp(subject, drawn):
    """What the MLP adds to the stream, its bias too, is dropped number by number where keep.mlp is False."""
    (x, params, config), keep = drawn
    params = silenced(params, "w_o", "b_o", "w_2")
    got = subject.transformer_block(x, params, config, keep={**everything(keep), "mlp": keep["mlp"]})
    close(got - x, 2 * keep["mlp"] * params["mlp"]["b_2"], within=rounding(subject, got))


@states("transformer_block")
@given(drawn=with_keep())
def test_dropout_acts_on_the_hidden_values(subject, drawn):
    """A hidden value that keep.mlp_hidden drops for all tokens is as one that w_2 does not read."""
    (x, params, config), keep = drawn
    unit = keep["mlp_hidden"].reshape(-1, config.d_ff)[0]
    hidden = np.broadcast_to(unit, keep["mlp_hidden"].shape).copy()
    blind = changed(params, lambda path, leaf: leaf * unit[:, None] if path == "mlp.w_2" else leaf)
    y = subject.transformer_block(x, blind, config, keep=everything(keep))
    got = subject.transformer_block(x, params, config, keep={**everything(keep), "mlp_hidden": hidden})
    close(got, y, within=rounding(subject, y))


# ------------------------------------------------------------------------------------------------- errors


@states("transformer_block")
@given(drawn=blocks(attention_bias=True), data=st.data())
def test_a_missing_parameter_is_refused(subject, drawn, data):
    """Parameters that lack one which the config asks for are refused, by its path."""
    x, params, config = drawn
    group, name = data.draw(st.sampled_from([path for path, _ in leaves(params)])).split(".")
    lacking = {**params, group: {key: leaf for key, leaf in params[group].items() if key != name}}
    with raises(subject, ValueError, f"{group}.{name}"):
        subject.transformer_block(x, lacking, config)


# ---------------------------------------------------------------------------------------------- gradients


def no_gradient(gradient, what):
    """Judge that a gradient is exactly 0."""
    equal(gradient, np.zeros(gradient.shape), what=f"the gradient of {what}")


def sum_over_tokens(cotangent):
    """Give what a number that is added to every token gets."""
    return cotangent.reshape(-1, cotangent.shape[-1]).sum(axis=0)


@states("transformer_block", gradient=True)
@given(drawn=differentiated(attention_bias=True, norm_placement=PLACEMENT))
def test_a_cotangent_of_0_asks_for_nothing(subject, drawn):
    """Where nothing is asked of the output, stream and parameters have a gradient of exactly 0."""
    (x, params, config), cotangent = drawn
    dx, gradient = subject.transformer_block_vjp(0 * cotangent, x, params, config)
    no_gradient(dx, "x")
    for path, leaf in leaves(gradient):
        no_gradient(leaf, path)


@states("transformer_block", gradient=True)
@given(drawn=differentiated(attention_bias=True))
def test_silent_branches_pass_the_cotangent_on(subject, drawn):
    """With output projections and biases of 0 a pre-norm block gives its input the cotangent, to the last bit."""
    (x, params, config), cotangent = drawn
    dx, _ = subject.transformer_block_vjp(cotangent, x, silenced(params, *WRITERS), config)
    equal(dx, cotangent.astype(subject.dtype), what="the gradient of x")


@states("transformer_block", needs=("layer_norm_vjp",), gradient=True)
@given(drawn=differentiated(attention_bias=True, norm_placement="post"))
def test_silent_branches_leave_the_gradients_of_two_norms(subject, drawn):
    """With output projections and biases of 0 the cotangent of a post-norm block goes back through its two norms."""
    (x, params, config), cotangent = drawn
    norm_1, norm_2 = (tuple(params[name].values()) for name in ("norm_1", "norm_2"))
    between = standard_norm(x, *norm_1, eps=config.norm.eps)
    second, *of_norm_2 = subject.layer_norm_vjp(cotangent, between, *norm_2, eps=config.norm.eps)
    first, *of_norm_1 = subject.layer_norm_vjp(second.astype(np.float64), x, *norm_1, eps=config.norm.eps)
    dx, gradient = subject.transformer_block_vjp(cotangent, x, silenced(params, *WRITERS), config)
    close(dx, first, within=rounding(subject, first), what="the gradient of x")
    for name, should in (("norm_1", of_norm_1), ("norm_2", of_norm_2)):
        for part, array in zip(("gamma", "beta"), should, strict=True):
            close(gradient[name][part], array, within=rounding(subject, array), what=f"the gradient of {name}.{part}")


@states("transformer_block", gradient=True)
@given(drawn=differentiated())
def test_the_gradient_of_a_token_of_a_pre_norm_block_sums_to_that_of_its_cotangent(subject, drawn):
    """A constant added to the stream just passes a pre-norm block: a token's gradients sum to its cotangent's sum."""
    (x, params, config), cotangent = drawn
    dx, _ = subject.transformer_block_vjp(cotangent, x, params, config)
    close(dx.sum(axis=-1), cotangent.sum(axis=-1), within=rounding(subject, dx), what="the sum of a token's gradients")


@states("transformer_block", gradient=True)
@given(drawn=differentiated(attention_bias=True, norm_placement="post"))
def test_a_bias_before_a_post_norm_has_a_gradient_that_sums_to_0(subject, drawn):
    """The norm after each branch takes a constant away again: the gradients of b_o and of b_2 sum to 0."""
    (x, params, config), cotangent = drawn
    _, gradient = subject.transformer_block_vjp(cotangent, x, params, config)
    for path in ("attention.b_o", "mlp.b_2"):
        leaf = dict(leaves(gradient))[path]
        close(leaf.sum(), 0.0, within=rounding(subject, leaf), what=f"the sum of the gradient of {path}")


@states("transformer_block", gradient=True)
@given(drawn=differentiated(norm_placement=PLACEMENT))
def test_what_is_added_last_gets_the_sum_of_the_cotangent(subject, drawn):
    """The last bias, b_2 of a pre-norm block and beta of a post-norm block's norm_2, gets the sum over all tokens."""
    (x, params, config), cotangent = drawn
    _, gradient = subject.transformer_block_vjp(cotangent, x, params, config)
    last = "mlp.b_2" if config.norm_placement == "pre" else "norm_2.beta"
    should = sum_over_tokens(cotangent)
    close(dict(leaves(gradient))[last], should, within=rounding(subject, should), what=f"the gradient of {last}")


@states("transformer_block", gradient=True)
@settings(max_examples=5)
@given(drawn=differentiated(attention_bias=True, norm_placement=PLACEMENT))
def test_every_parameter_has_a_gradient(subject, drawn):
    """In general position no parameter's gradient is 0, but for that of b_k, which moves all scores alike."""
    (x, params, config), cotangent = drawn
    _, gradient = subject.transformer_block_vjp(cotangent, x, params, config)
    for path, leaf in leaves(gradient):
        if path == "attention.b_k":
            close(leaf, np.zeros(leaf.shape), within=rounding(subject, cotangent), what=f"the gradient of {path}")
        else:
            differ(subject, np.zeros(leaf.shape), leaf, f"{path} has no gradient")


@states("transformer_block", gradient=True)
@given(drawn=differentiated(norm_placement=PLACEMENT))
def test_attention_learns_through_the_mlp(subject, drawn):
    """The MLP reads what attention wrote: the gradient of w_o is another one where the MLP is silent."""
    (x, params, config), cotangent = drawn
    _, gradient = subject.transformer_block_vjp(cotangent, x, params, config)
    _, quiet = subject.transformer_block_vjp(cotangent, x, silenced(params, "w_2"), config)
    differ(subject, gradient["attention"]["w_o"], quiet["attention"]["w_o"], "no gradient goes back through the MLP")


@states("transformer_block", gradient=True)
@given(drawn=differentiated(causal=True, norm_placement=PLACEMENT), data=st.data())
def test_a_causal_cotangent_reaches_no_later_token(subject, drawn, data):
    """What is asked of the tokens before t moves no token of a causal block from t on."""
    (x, params, config), cotangent = drawn
    t = data.draw(st.integers(1, x.shape[-2] - 1))
    cotangent[..., t:, :] = 0
    dx, _ = subject.transformer_block_vjp(cotangent, x, params, config)
    no_gradient(dx[..., t:, :], "a later token")


@states("transformer_block", gradient=True)
@given(drawn=differentiated(norm_placement=PLACEMENT), data=st.data())
def test_a_masked_token_of_which_nothing_is_asked_has_gradient_0(subject, drawn, data):
    """A token that `mask` hides from all others, and whose own output does not count, gets exactly 0."""
    (x, params, config), cotangent = drawn
    hidden = data.draw(st.integers(0, x.shape[-2] - 1))
    others = np.arange(x.shape[-2]) != hidden
    cotangent[..., hidden, :] = 0
    dx, _ = subject.transformer_block_vjp(cotangent, x, params, config, mask=others[None, :] | ~others[:, None])
    no_gradient(dx[..., hidden, :], "a masked token")


@states("transformer_block", gradient=True)
@given(drawn=differentiated(norm_placement=PLACEMENT), data=st.data())
def test_permuting_tokens_permutes_their_gradients(subject, drawn, data):
    """Permuted tokens under a permuted cotangent get the permuted gradients, and parameters their old ones."""
    (x, params, config), cotangent = drawn
    order = data.draw(st.permutations(range(x.shape[-2])))
    dx, gradient = subject.transformer_block_vjp(cotangent, x, params, config)
    got_dx, got = subject.transformer_block_vjp(cotangent[..., order, :], x[..., order, :], params, config)
    close(got_dx, dx[..., order, :], within=rounding(subject, dx), what="the gradient of x")
    same_tree(subject, got, gradient)


@states("transformer_block", gradient=True)
@given(drawn=differentiated(batch=(2,), norm_placement=PLACEMENT))
def test_parameters_get_the_sum_over_the_sequences(subject, drawn):
    """A sequence's tokens have the gradients that they have alone; a parameter's are summed over the batch."""
    (x, params, config), cotangent = drawn
    dx, gradient = subject.transformer_block_vjp(cotangent, x, params, config)
    (first, one), (second, other) = (subject.transformer_block_vjp(cotangent[i], x[i], params, config) for i in (0, 1))
    close(dx, np.stack([first, second]), within=rounding(subject, dx), what="the gradient of x")
    same_tree(subject, gradient, map_tree(np.add, one, other))


def same_tree(subject, got, should):
    """Judge that each gradient of a tree in general position is the other one."""
    found = dict(leaves(got))
    for path, leaf in leaves(should):
        close(found[path], leaf, within=rounding(subject, leaf), what=f"the gradient of {path}")


PARTS = ("layer_norm", "multi_head_attention", "feed_forward")


@states("transformer_block", needs=(*PARTS, *(f"{part}_vjp" for part in PARTS)), gradient=True)
@given(drawn=differentiated(norm_placement=PLACEMENT))
def test_the_gradient_goes_back_through_the_parts(subject, drawn):
    """The chain rule: a block's gradients are those of its parts, each at what it read, from the last to the first."""
    (x, params, config), cotangent = drawn
    pre, eps, heads = config.norm_placement == "pre", config.norm.eps, {"n_heads": config.n_heads}
    calls = {
        "attention": ("multi_head_attention", tuple(params["attention"].values()), heads),
        "mlp": ("feed_forward", tuple(params["mlp"].values()), {}),
        "norm_1": ("layer_norm", tuple(params["norm_1"].values()), {"eps": eps}),
        "norm_2": ("layer_norm", tuple(params["norm_2"].values()), {"eps": eps}),
    }
    read, gradient = {}, {}

    def forward(part, x):
        component, weights, options = calls[part]
        read[part] = x
        return subject.call(component, x, *weights, **options).astype(np.float64)

    def back(part, cotangent):
        component, weights, options = calls[part]
        dx, *found = subject.call(f"{component}_vjp", cotangent, read[part], *weights, **options)
        gradient[part] = dict(zip(params[part], found, strict=False))
        return dx.astype(np.float64)

    halves = (("attention", "norm_1"), ("mlp", "norm_2"))
    for branch, norm in halves:
        x = x + forward(branch, forward(norm, x)) if pre else forward(norm, x + forward(branch, x))
    dx = cotangent
    for branch, norm in reversed(halves):
        dx = dx if pre else back(norm, dx)
        dx = dx + (back(norm, back(branch, dx)) if pre else back(branch, dx))
    got_dx, got = subject.transformer_block_vjp(cotangent, drawn[0][0], params, config)
    close(got_dx, dx, within=rounding(subject, dx), what="the gradient of x")
    same_tree(subject, got, gradient)


@st.composite
def differentiated_with_keep(draw, **options):
    """Draw a block with dropout at a rate of 1/2, which is exact, keep-masks that drop nothing, and a cotangent."""
    drawn, cotangent = draw(differentiated(dropout=0.5, attention_bias=True, **options))
    shapes = keep_tree(drawn[2], drawn[0].shape)
    return drawn, {site: np.ones(shape, bool) for site, shape in shapes.items()}, cotangent


@states("transformer_block", gradient=True)
@given(drawn=differentiated(dropout=0.5, norm_placement=PLACEMENT))
def test_without_keep_masks_the_gradient_knows_no_dropout(subject, drawn):
    """The rate alone does nothing to the gradient."""
    (x, params, config), cotangent = drawn
    dx, gradient = subject.transformer_block_vjp(cotangent, x, params, config)
    should_dx, should = subject.transformer_block_vjp(cotangent, x, params, replace(config, dropout=0.0))
    equal(dx, should_dx, what="the gradient of x")
    for (path, leaf), (_, other) in zip(leaves(gradient), leaves(should), strict=True):
        equal(leaf, other, what=f"the gradient of {path}")


@states("transformer_block", gradient=True)
@given(drawn=differentiated_with_keep(norm_placement=PLACEMENT))
def test_keeping_everything_scales_what_writers_learn(subject, drawn):
    """At a rate of 1/2 masks that drop nothing multiply by 2: writers twice as large learn half as much, w_2 a quarter.

    So the gradients with masks are those without, at weights that make up for it, times what they were multiplied by.
    """
    (x, params, config), keep, cotangent = drawn
    factors = {"w_o": 2.0, "b_o": 2.0, "w_2": 4.0, "b_2": 2.0}
    plain = replace(config, dropout=0.0)
    should_dx, should = subject.transformer_block_vjp(cotangent, x, scaled(params, factors), plain)
    dx, gradient = subject.transformer_block_vjp(cotangent, x, params, config, keep=keep)
    close(dx, should_dx, within=rounding(subject, should_dx), what="the gradient of x")
    same_tree(subject, gradient, scaled(should, factors))


SILENCED_BY = {
    "attention": ("attention",),
    "mlp": ("mlp",),
    "mlp_hidden": ("mlp.w_1", "mlp.b_1", "mlp.w_2"),
}
"""The parameters that have no part in the output where a keep-mask drops everything at its site."""


@states("transformer_block", gradient=True)
@given(drawn=differentiated_with_keep(norm_placement=PLACEMENT), site=st.sampled_from(tuple(SILENCED_BY)))
def test_what_dropout_silences_has_gradient_0(subject, drawn, site):
    """A branch, or hidden values, of which nothing is kept: its parameters get exactly 0; one that acts does not."""
    (x, params, config), keep, cotangent = drawn
    keep[site] = ~keep[site]
    _, gradient = subject.transformer_block_vjp(cotangent, x, params, config, keep=keep)
    for path, leaf in leaves(gradient):
        if path.startswith(SILENCED_BY[site]):
            no_gradient(leaf, f"{path}, which is dropped,")
        elif path == "mlp.b_2":
            differ(subject, np.zeros(leaf.shape), leaf, f"{path} has no gradient")


@states("transformer_block", gradient=True)
@given(drawn=differentiated_with_keep(), data=st.data())
def test_a_dropped_number_passes_no_gradient_and_a_kept_one_twice_as_much(subject, drawn, data):
    """At a rate of 1/2 a pre-norm block's b_2 gets twice the cotangent where keep.mlp is True, and 0 elsewhere."""
    (x, params, config), keep, cotangent = drawn
    keep["mlp"] = data.draw(truths(keep["mlp"].shape))
    _, gradient = subject.transformer_block_vjp(cotangent, x, params, config, keep=keep)
    should = sum_over_tokens(2 * keep["mlp"] * cotangent)
    close(gradient["mlp"]["b_2"], should, within=rounding(subject, should), what="the gradient of mlp.b_2")

"""What people get wrong about the block: where norms, residual connections and dropout stand."""

# ruff: noqa: D102, D103
# The name of a wrong block says what is wrong.

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from reference.numpy import dropout, feed_forward, layer_norm, multi_head_attention
from spec_tests.pitfalls.pitfall import Equivalence, Function, Pitfall
from spec_tests.pitfalls.strict import as_strict_as


class Parts:
    """The parts of a right block, for wrong blocks to put together."""

    def __init__(self, params, config, mask=None, keep=None, **ignored: Any) -> None:
        self.params, self.config, self.mask, self.keep = params, config, mask, keep

    def drop(self, x, site):
        return x if self.keep is None else dropout(x, self.keep[site], rate=self.config.dropout)

    def attend(self, x, **context: Any):
        weights = {"w_o": None, **self.params["attention"]}
        options = {"n_heads": self.config.n_heads, "mask": self.mask, "causal": self.config.causal}
        return self.drop(multi_head_attention(x, **weights, **options, **context), "attention")

    def think(self, x):
        hidden = {} if self.keep is None else {"keep": self.keep["mlp_hidden"], "rate": self.config.dropout}
        y = feed_forward(x, **self.params["mlp"], activation=self.config.activation, **hidden)
        return self.drop(y, "mlp")

    def norm(self, x, name):
        affine, norm = self.params.get(name, {}), self.config.norm
        return layer_norm(x, affine.get("gamma"), affine.get("beta"), eps=norm.eps, variant=norm.variant)


def block_of(pre: Callable | None = None, post: Callable | None = None) -> Callable[[Function], Function]:
    """Build on a block one that is `pre(x, parts)` or `post(x, parts)` where its norms stand so, if there is one."""

    def around(right):
        @as_strict_as(right)
        def block(x, params, config, *, mask=None, keep=None):
            wrong = {"pre": pre, "post": post}[config.norm_placement]
            parts = Parts(params, config, mask, keep)
            return wrong(x, parts) if wrong else right(x, params, config, mask=mask, keep=keep)

        return block

    return around


def configured(**choices: Any) -> Callable[[Function], Function]:
    """Build on a block one whose config says otherwise."""

    def around(right):
        def block(x, params, config, **options):
            return right(x, params, replace(config, **choices), **options)

        return block

    return around


def residual_from_normed(x, p):
    x = p.norm(x, "norm_1")
    x = x + p.attend(x)
    x = p.norm(x, "norm_2")
    return x + p.think(x)


def no_residual(x, p):
    return p.think(p.norm(p.attend(p.norm(x, "norm_1")), "norm_2"))


def no_residual_post(x, p):
    return p.norm(p.think(p.norm(p.attend(x), "norm_1")), "norm_2")


def norm_on_the_branch(x, p):
    x = x + p.norm(p.attend(x), "norm_1")
    return x + p.norm(p.think(x), "norm_2")


def only_the_query_normed(x, p):
    x = x + p.attend(p.norm(x, "norm_1"), context=x)
    return x + p.think(p.norm(x, "norm_2"))


def parallel(x, p):
    return x + p.attend(p.norm(x, "norm_1")) + p.think(p.norm(x, "norm_2"))


def one_norm_for_both(x, p):
    x = x + p.attend(p.norm(x, "norm_1"))
    return x + p.think(p.norm(x, "norm_1"))


def one_norm_for_both_post(x, p):
    x = p.norm(x + p.attend(x), "norm_1")
    return p.norm(x + p.think(x), "norm_1")


def residual_skips_attention(x, p):
    h = p.norm(x + p.attend(x), "norm_1")
    return p.norm(x + p.think(h), "norm_2")


def residual_unnormalised(x, p):
    x = x + p.attend(x)
    return p.norm(x + p.think(p.norm(x, "norm_1")), "norm_2")


def only_the_first_half_has_a_residual(x, p):
    x = x + p.attend(p.norm(x, "norm_1"))
    return p.think(p.norm(x, "norm_2"))


def mask_forgotten(right):
    return as_strict_as(right)(lambda x, params, config, *, mask=None, keep=None: right(x, params, config, keep=keep))


def mask_means_hidden(right):
    def block(x, params, config, *, mask=None, keep=None):
        return right(x, params, config, mask=None if mask is None else ~mask, keep=keep)

    return block


def dropout_after_the_residual(right):
    @as_strict_as(right)
    def block(x, params, config, *, mask=None, keep=None):
        y = right(x, params, config, mask=mask)
        return y if keep is None else dropout(y, keep["mlp"], rate=config.dropout)

    return block


def _of(*names: str) -> tuple[str, ...]:
    return tuple(f"transformer_block.{name}" for name in names)


PITFALLS = [
    Pitfall(
        id="transformer_block.residual_from_the_normed",
        catalogue=(
            "components/prenorm_residual_from_normed",
            "systems/prenorm_residual_from_normalised",
        ),
        sources=(
            "https://github.com/pytorch/pytorch/issues/61165",
            "https://github.com/tracel-ai/burn/issues/1056",
            "https://github.com/Howuhh/faster-trajectory-transformer/issues/3",
            "https://github.com/lbcb-sci/RiNALMo/issues/9",
            "https://github.com/SHI-Labs/Compact-Transformers/issues/25",
            "https://github.com/dmlc/gluon-nlp/pull/1488",
            "https://github.com/shivanandmn/Knowledge-Tracing-SAINT/issues/6",
        ),
        around={"transformer_block": block_of(pre=residual_from_normed)},
        does="The branch is added to norm(x) in a pre-norm block; it should be added to x.",
        shows="With silent branches the block is not the identity, and the stream never grows.",
        mend="Keep x aside: x + f(norm(x)).",
        visibility="silent",
        caught_by=_of(
            "silent_branches_make_a_pre_norm_block_the_identity",
            "a_constant_added_to_the_stream_passes_a_pre_norm_block",
            "the_stream_itself_is_not_normed_before",
        ),
    ),
    Pitfall(
        id="transformer_block.always_post_norm",
        catalogue=("components/norm_position_flag_ignored",),
        sources=(
            "https://github.com/ml-explore/mlx/pull/1327",
            "https://github.com/k2-fsa/snowfall/pull/184",
            "https://github.com/NVIDIA-NeMo/Speech/pull/4350",
        ),
        around={"transformer_block": configured(norm_placement="post")},
        does="Norms stand after the addition whatever the config says, as where norm_first is not passed on.",
        shows="With silent branches a pre-norm block is not the identity.",
        mend="Pass the placement on: norm_first=True is pre-norm in torch.",
        visibility="silent",
        caught_by=_of(
            "silent_branches_make_a_pre_norm_block_the_identity",
            "a_constant_added_to_the_stream_passes_a_pre_norm_block",
        ),
    ),
    Pitfall(
        id="transformer_block.always_pre_norm",
        catalogue=("components/norm_position_flag_ignored",),
        sources=(
            "https://github.com/ml-explore/mlx/pull/1327",
            "https://github.com/k2-fsa/snowfall/pull/184",
            "https://github.com/NVIDIA-NeMo/Speech/pull/4350",
        ),
        around={"transformer_block": configured(norm_placement="pre")},
        does="Norms stand before the branches whatever the config says.",
        shows="The vectors that a post-norm block gives have neither mean 0 nor variance 1 before gain and bias.",
        mend="Pass the placement on.",
        visibility="silent",
        caught_by=_of("silent_branches_leave_a_post_norm_block_its_two_norms"),
    ),
    Pitfall(
        id="transformer_block.residual_skips_attention",
        catalogue=("components/residual_skips_attention",),
        sources=("https://github.com/strutive07/transformer-tensorflow2.0/issues/14",),
        around={"transformer_block": block_of(post=residual_skips_attention)},
        does="The second residual connection starts from the block's input; it should from what attention gave.",
        shows="With a silent MLP attention has no influence.",
        mend="Add the MLP to the output of the first half: h = norm(x + attention(x)), then norm(h + mlp(h)).",
        visibility="silent",
        caught_by=_of("silent_branches_leave_a_post_norm_block_its_two_norms"),
    ),
    Pitfall(
        id="transformer_block.residual_unnormalised",
        catalogue=("systems/postnorm_residual_unnormalised",),
        sources=("https://github.com/NVIDIA-NeMo/Speech/pull/4350",),
        around={"transformer_block": block_of(post=residual_unnormalised)},
        does="In a post-norm block the second residual is the sum before its norm; it should be the normed one.",
        shows="With silent branches the first gain and bias have no influence; at a gain of 1 nobody sees it.",
        mend="Hand on what the norm gives, to the branch and to the residual connection alike.",
        visibility="silent",
        caught_by=_of("silent_branches_leave_a_post_norm_block_its_two_norms"),
    ),
    Pitfall(
        id="transformer_block.norm_on_the_branch",
        catalogue=("components/norm_on_branch_output",),
        sources=(
            "https://github.com/keras-team/keras-io/pull/2144",
            "https://github.com/keitakurita/Practical_NLP_in_PyTorch/issues/1",
        ),
        around={"transformer_block": block_of(pre=norm_on_the_branch, post=norm_on_the_branch)},
        does="The output of each branch is normed and then added, x + norm(f(x)).",
        shows="However little a branch says it is blown up to unit size, and post-norm vectors are not normed.",
        mend="Write x + f(norm(x)) for pre-norm and norm(x + f(x)) for post-norm.",
        visibility="silent",
        caught_by=_of(
            "silent_branches_make_a_pre_norm_block_the_identity",
            "silent_branches_leave_a_post_norm_block_its_two_norms",
        ),
    ),
    Pitfall(
        id="transformer_block.only_the_query_normed",
        catalogue=(
            "components/prenorm_only_query_normed",
            "systems/prenorm_wrapper_norms_only_first_input",
        ),
        sources=("https://github.com/facebookresearch/xformers/pull/233",),
        around={"transformer_block": block_of(pre=only_the_query_normed)},
        does="Queries come from norm(x) but keys and values from x: a wrapper norms its first argument only.",
        shows="What attention adds grows with the scale of the stream.",
        mend="Norm once, and take queries, keys and values from the result.",
        visibility="silent",
        caught_by=_of(
            "a_constant_added_to_the_stream_passes_a_pre_norm_block", "the_stream_itself_is_not_normed_before"
        ),
    ),
    Pitfall(
        id="transformer_block.parallel",
        catalogue=("components/parallel_vs_sequential_residual",),
        sources=(
            "https://github.com/huggingface/transformers/pull/18695",
            "https://github.com/ml-explore/mlx-lm/pull/586",
            "https://github.com/TransformerLensOrg/TransformerLens/pull/1649",
            "https://github.com/EleutherAI/gpt-neox/pull/481",
        ),
        around={"transformer_block": block_of(pre=parallel)},
        does="The MLP reads the block's input, as in GPT-J; it should read what attention left.",
        shows="What the MLP adds does not change with the weights of attention.",
        mend="Let the halves follow each other: h = x + attention(norm_1(x)), then h + mlp(norm_2(h)).",
        visibility="silent",
        caught_by=_of("the_mlp_reads_what_attention_wrote"),
    ),
    Pitfall(
        id="transformer_block.one_norm_for_both",
        catalogue=("components/ln_wrong_instance",),
        sources=("https://github.com/ml-explore/mlx/issues/1636",),
        around={"transformer_block": block_of(pre=one_norm_for_both, post=one_norm_for_both_post)},
        does="The second half uses the first norm again, and norm_2 is never used.",
        shows="norm_2 gets no gradient; nothing is to be seen as long as both norms are as they were initialised.",
        mend="Use norm_2 in the second half.",
        visibility="silent",
        caught_by=_of("every_parameter_matters", "silent_branches_leave_a_post_norm_block_its_two_norms"),
    ),
    Pitfall(
        id="transformer_block.no_residual",
        catalogue=(),
        sources=("https://arxiv.org/abs/1512.03385",),
        around={"transformer_block": block_of(pre=no_residual, post=no_residual_post)},
        does="Nothing is added to the stream: each branch replaces it.",
        shows="With silent branches nothing of the input comes out, and deep models do not learn.",
        mend="Add the input of each half to what its branch gives.",
        visibility="training",
        caught_by=_of(
            "silent_branches_make_a_pre_norm_block_the_identity",
            "silent_branches_leave_a_post_norm_block_its_two_norms",
        ),
    ),
    Pitfall(
        id="transformer_block.second_residual_missing",
        catalogue=(),
        sources=(),
        around={"transformer_block": block_of(pre=only_the_first_half_has_a_residual)},
        does="Attention is added to the stream, but the MLP replaces it.",
        shows="With a silent MLP nothing comes out.",
        mend="Add the input of each half to what its branch gives.",
        visibility="training",
        caught_by=_of("silent_branches_make_a_pre_norm_block_the_identity"),
    ),
    Pitfall(
        id="transformer_block.mask_ignored",
        catalogue=(),
        sources=(),
        around={"transformer_block": mask_forgotten},
        does="The mask does not reach attention.",
        shows="What should be hidden, such as padding, has an influence.",
        mend="Pass the mask on.",
        visibility="silent",
        caught_by=_of("a_masked_token_has_no_influence"),
    ),
    Pitfall(
        id="transformer_block.mask_means_hidden",
        catalogue=(),
        sources=("https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html",),
        around={"transformer_block": mask_means_hidden},
        does="True in the mask hides; here it allows, as in scaled_dot_product_attention and not as in nn.Transformer.",
        shows="What is hidden is seen and what is allowed is not.",
        mend="Negate the mask, or declare that True hides.",
        visibility="silent",
        caught_by=_of("a_masked_token_has_no_influence"),
    ),
    Pitfall(
        id="transformer_block.causal_ignored",
        catalogue=(),
        sources=(),
        around={"transformer_block": configured(causal=False)},
        does="The config's causal does not reach attention.",
        shows="Earlier tokens see later ones: in training the loss falls to almost 0, and generation is nonsense.",
        mend="Pass causal on to attention in every block.",
        visibility="training",
        caught_by=_of("a_causal_block_does_not_see_later_tokens"),
    ),
    Pitfall(
        id="transformer_block.dropout_after_the_residual",
        catalogue=(),
        sources=(),
        around={"transformer_block": dropout_after_the_residual},
        does="Dropout acts on the stream after the addition; it should act on what a branch adds.",
        shows="Numbers of the stream itself are lost at every block.",
        mend="Drop before the addition: x + dropout(f(norm(x))).",
        visibility="training",
        caught_by=_of("keeping_everything_scales_each_branch_once_a_site", "dropout_acts_on_the_output_of_the_mlp"),
    ),
]


def _gain_folded(right):
    def block(x, params, config, *, mask=None, keep=None):
        folds = config.norm_placement == "pre" and "norm_1" in params and "b_q" in params["attention"]
        if not folds:
            return right(x, params, config, mask=mask, keep=keep)
        gamma, beta = params["norm_1"]["gamma"], params["norm_1"]["beta"]
        attention = dict(params["attention"])
        for name in "qkv":
            w, b = attention[f"w_{name}"], attention[f"b_{name}"]
            attention |= {f"w_{name}": gamma[:, None] * w, f"b_{name}": b + beta @ w}
        bare = {"gamma": np.ones_like(gamma), "beta": np.zeros_like(beta)}
        return right(x, {**params, "attention": attention, "norm_1": bare}, config, mask=mask, keep=keep)

    return block


EQUIVALENCES = [
    Equivalence(
        id="transformer_block.gain_folded_into_weights",
        catalogue=(),
        sources=(),
        around={"transformer_block": _gain_folded},
        says="The gain and bias of a norm may be folded into the projections after it: gamma W, and b + beta W.",
    ),
]

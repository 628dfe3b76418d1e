"""What people get wrong about the whole model, its head, its parameters and their initialisation."""

# ruff: noqa: D103
# The name of a wrong model says what is wrong.

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from reference.config import LayerNorm, Learned, NoPositions, Sinusoidal
from reference.numpy import output_head, parameter_count, sinusoidal_positions, softmax, transformer_vjp
from reference.parameters import init_params, leaves, map_tree, tree_from_leaves
from spec_tests.pitfalls.pitfall import Equivalence, Function, Pitfall
from spec_tests.pitfalls.strict import as_strict_as

# -------------------------------------------------------------------------------------------- output_head


@as_strict_as(output_head)
def padded_rows_scored(x, w, b=None):
    w, b = (part if part is None else np.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, -part.shape[-1] % 64)])
            for part in (w, b))  # fmt: skip
    return output_head(x, w, b)


def head_bias_forgotten(right):
    return as_strict_as(right)(lambda x, w, b=None: right(x, w))


def head_scaled(right):
    return as_strict_as(right)(lambda x, w, b=None: right(x / x.shape[-1] ** 0.5, w, b))


def probabilities(right):
    """Build on what gives logits one that gives their softmax."""
    return lambda *args, **options: softmax(right(*args, **options))


# -------------------------------------------------------------------------------------------- transformer


def given(change: Callable) -> Callable[[Function], Function]:
    """Build on a model one that gets `change(ids, params, config)` in the place of its arguments."""

    def around(right):
        @as_strict_as(right)
        def model(ids, params, config, **options):
            return right(*change(ids, params, config), **options)

        return model

    return around


def logits_changed(change: Callable) -> Callable[[Function], Function]:
    """Build on a model one of whose logits `change(logits, params, config)` makes others."""

    def around(right):
        def model(ids, params, config, **options):
            return change(right(ids, params, config, **options), params, config)

        return model

    return around


def configured(**choices: Any) -> Callable[[Function], Function]:
    """Build on a model one whose config says otherwise."""
    return given(lambda ids, params, config: (ids, params, replace(config, **choices)))


def without(params, name):
    return {group: part for group, part in params.items() if group != name}


def positions_forgotten(ids, params, config):
    return ids, without(params, "positions"), replace(config, positions=NoPositions())


def positions_scaled_too(ids, params, config):
    if config.positions == NoPositions():
        return ids, params, config
    table = params["token_embedding"]["table"]
    if isinstance(config.positions, Sinusoidal):
        rows = sinusoidal_positions(config.max_len, config.d_model, base=config.positions.base, dtype=table.dtype)
    else:
        rows = params["positions"]["table"]
    scaled = (config.embedding_scale * rows).astype(table.dtype)
    return ids, {**params, "positions": {"table": scaled}}, replace(config, positions=Learned())


def default_base(ids, params, config):
    return ids, params, replace(config, positions=Sinusoidal()) if isinstance(config.positions, Sinusoidal) else config


def default_eps(ids, params, config):
    return ids, params, replace(config, norm=LayerNorm(variant=config.norm.variant, affine=config.norm.affine))


def positions_from_the_batch_axis(right):
    @as_strict_as(right)
    def model(ids, params, config, *, mask=None, keep=None):
        if config.positions == NoPositions() or ids.ndim == 1:
            return right(ids, params, config, mask=mask, keep=keep)
        if isinstance(config.positions, Sinusoidal):
            rows = sinusoidal_positions(len(ids), config.d_model, base=config.positions.base)
        else:
            rows = params["positions"]["table"][: len(ids)]

        def alone(b):
            table = np.broadcast_to(
                rows[b].astype(params["token_embedding"]["table"].dtype), (config.max_len, config.d_model)
            )
            own_mask = mask[b] if mask is not None and mask.ndim == ids.ndim + 1 else mask
            own_keep = None if keep is None else map_tree(lambda kept: kept[b], keep)
            everywhere = {**params, "positions": {"table": table}}
            return right(ids[b], everywhere, replace(config, positions=Learned()), mask=own_mask, keep=own_keep)

        return np.stack([alone(b) for b in range(len(ids))])

    return model


def final_norm_forgotten(ids, params, config):
    return ids, without(params, "final_norm"), replace(config, final_norm=False)


def first_block_for_all(ids, params, config):
    return ids, {**params, "blocks": params["blocks"][:1] * config.n_layers}, config


def blocks_reversed(ids, params, config):
    return ids, {**params, "blocks": params["blocks"][::-1]}, config


def _scaled_by_width(logits, params, config):
    b = params.get("output_head", {}).get("b", 0)
    return (logits - b) / config.d_model**0.5 + b


def untied_logits_scaled(logits, params, config):
    return logits if config.tied_head else _scaled_by_width(logits, params, config)


def tied_logits_scaled(logits, params, config):
    return _scaled_by_width(logits, params, config) if config.tied_head else logits


def tied_head_bias_dropped(logits, params, config):
    return logits - params["output_head"]["b"] if config.tied_head and config.head_bias else logits


def tied_by_copy(cotangent, ids, params, config, **options):
    """Give a tied table what it learns as the embedding; what it learns as the head went to a copy."""
    (gradient,) = transformer_vjp(cotangent, ids, params, config, **options)
    if config.tied_head:
        copied = {**params, "output_head": {"w": params["token_embedding"]["table"].T, **params.get("output_head", {})}}
        (apart,) = transformer_vjp(cotangent, ids, copied, replace(config, tied_head=False), **options)
        gradient["token_embedding"] = apart["token_embedding"]
    return (gradient,)


# ---------------------------------------------------------------------------------------- parameter_count


def copy_of_the_table_counted(config):
    return parameter_count(replace(config, tied_head=False))


def tied_table_subtracted(config):
    return parameter_count(config) - config.tied_head * config.vocab * config.d_model


def blocks_not_registered(config):
    return parameter_count(replace(config, n_layers=0))


# ----------------------------------------------------------------------------------------- initialisation


def initialised(change: Callable) -> Function:
    """Draw parameters of which `change(path, leaf, generator, config)` makes others."""

    @as_strict_as(init_params)
    def init(config, *, seed, dtype=np.float64):
        generator = np.random.default_rng(seed + 1)
        drawn = leaves(init_params(config, seed=seed, dtype=dtype))
        return tree_from_leaves(
            {path: np.asarray(change(path, leaf, generator, config), dtype) for path, leaf in drawn}
        )

    return init


def layers_identical(config, *, seed, dtype=np.float64):
    params = init_params(config, seed=seed, dtype=dtype)
    return {**params, "blocks": [copy.deepcopy(params["blocks"][0]) for _ in params["blocks"]]}


def embedding_of_unit_variance(path, leaf, generator, config):
    return generator.standard_normal(leaf.shape) if path == "token_embedding.table" else leaf


def table_drawn_again_as_a_head(path, leaf, generator, config):
    tied = config.tied_head and path == "token_embedding.table"
    return generator.standard_normal(leaf.shape) / config.d_model**0.5 if tied else leaf


def weight_twice_and_bias_never(path, leaf, generator, config):
    bound = config.d_model**-0.5  # what torch's Linear starts with
    return generator.uniform(-bound, bound, leaf.shape) if path.endswith("b_1") else leaf


INIT = "spec_tests.reference.test_parameters.init_params"
"""Where the tests look it up."""


def _of(component: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{component}.{name}" for name in names)


PITFALLS = [
    Pitfall(
        id="output_head.padded_rows_scored",
        catalogue=("components/padded_vocab_rows_compete",),
        sources=(
            "https://github.com/mirage-project/mirage/issues/751",
            "https://github.com/unslothai/unsloth/pull/10616",
            "https://github.com/tenstorrent/tt-metal/pull/38881",
        ),
        functions={"output_head": padded_rows_scored},
        does="The columns of 0 that pad the vocabulary to a multiple of 64 get logits too.",
        shows="There are more logits than tokens, and where all true ones are negative a column that is no token wins.",
        mend="Cut the logits to the true vocabulary, or set those of padding to -inf.",
        visibility="silent",
        caught_by=_of("output_head", "a_channel_alone_gives_its_row_of_weights", "a_bias_is_added_to_the_logits"),
    ),
    Pitfall(
        id="output_head.bias_forgotten",
        catalogue=(),
        sources=(),
        around={"output_head": head_bias_forgotten},
        does="The bias is not added.",
        shows="Logits do not change with the bias, which gets no gradient.",
        mend="Add the bias: x W + b.",
        visibility="silent",
        caught_by=_of("output_head", "a_bias_is_added_to_the_logits"),
    ),
    Pitfall(
        id="output_head.scaled",
        catalogue=(),
        sources=(),
        around={"output_head": head_scaled},
        does="Logits are divided by sqrt(d_model), which belongs to the scores of attention.",
        shows="Without a bias the most likely token is the same, but its probability is too small.",
        mend="Return x W + b as it is.",
        visibility="silent",
        caught_by=_of("output_head", "a_channel_alone_gives_its_row_of_weights"),
    ),
    Pitfall(
        id="output_head.returns_probabilities",
        catalogue=(),
        sources=(),
        around={"output_head": probabilities},
        does="The head ends with a softmax; what follows it expects logits.",
        shows="Everything lies between 0 and 1, and a loss that takes its own softmax hardly falls.",
        mend="Return x W + b, and leave the softmax to the loss and to sampling.",
        visibility="training",
        caught_by=_of("output_head", "a_channel_alone_gives_its_row_of_weights", "a_bias_is_added_to_the_logits"),
    ),
    Pitfall(
        id="transformer.returns_probabilities",
        catalogue=(),
        sources=(),
        around={"transformer": probabilities},
        does="The model ends with a softmax; what follows it expects logits.",
        shows="Everything lies between 0 and 1, and a loss that takes its own softmax hardly falls.",
        mend="Return logits, and leave the softmax to the loss and to sampling.",
        visibility="training",
        caught_by=_of(
            "transformer", "the_head_bias_is_added_to_the_logits", "a_final_norm_without_gain_forgets_the_tokens"
        ),
    ),
    Pitfall(
        id="transformer.positions_scaled_too",
        catalogue=(),
        sources=(),
        around={"transformer": given(positions_scaled_too)},
        does="Positions are added before the scale, s (E + P); they should be after, s E + P.",
        shows="With a scale of sqrt(d_model) the positions are too loud by that factor.",
        mend="Scale the embeddings, and then add the positions.",
        visibility="silent",
        caught_by=_of("transformer", "silent_blocks_leave_embeddings_positions_and_head"),
    ),
    Pitfall(
        id="transformer.causal_ignored",
        catalogue=(),
        sources=(),
        around={"transformer": configured(causal=False)},
        does="The config's causal does not reach the blocks.",
        shows="Earlier tokens see later ones: in training the loss falls to almost 0, and generation is nonsense.",
        mend="Pass causal on to attention in every block.",
        visibility="training",
        caught_by=_of("transformer", "a_causal_model_does_not_see_later_tokens", "a_causal_mask_alone_tells_the_order"),
    ),
    Pitfall(
        id="transformer.embedding_scale_missing",
        catalogue=(
            "components/emb_scale_missing",
            "systems/embedding_scale_missing_or_unrounded",
        ),
        sources=(
            "https://github.com/marin-community/levanter/pull/978",
            "https://github.com/huggingface/transformers/pull/29402",
            "https://github.com/google/gemma_pytorch/pull/67",
            "https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/138",
        ),
        around={"transformer": configured(embedding_scale=1.0)},
        does="Embeddings are not multiplied by the config's scale.",
        shows="Against positions and weights trained with a scale the tokens are too quiet.",
        mend="Multiply embeddings by config.embedding_scale before positions are added.",
        visibility="silent",
        caught_by=_of(
            "transformer",
            "silent_blocks_leave_embeddings_positions_and_head",
            "every_choice_of_the_config_matters",
        ),
    ),
    Pitfall(
        id="transformer.positions_never_added",
        catalogue=("components/pe_never_added",),
        sources=("https://github.com/ml-explore/mlx-examples/issues/359",),
        around={"transformer": given(positions_forgotten)},
        does="Positions are built and not added.",
        shows="Without a causal mask permuted tokens give permuted logits; the model learns a bag of words.",
        mend="Add the positions to the embeddings.",
        visibility="training",
        caught_by=_of(
            "transformer", "with_positions_the_order_matters", "silent_blocks_leave_embeddings_positions_and_head"
        ),
    ),
    Pitfall(
        id="transformer.positions_from_the_batch_axis",
        catalogue=(
            "components/pe_broadcast_over_batch",
            "components/learned_pos_from_batch_axis",
        ),
        sources=(
            "https://github.com/songyangco/GETNext/issues/2",
            "https://github.com/KasperGroesLudvigsen/influenza_transformer/issues/9",
            "https://github.com/cmu-l3/anlp-fall2025-code/issues/1",
        ),
        around={"transformer": positions_from_the_batch_axis},
        does="Positions are counted along the batch: every token of sequence b gets the position b.",
        shows="A sequence's logits change with its place in the batch, and all its tokens stand at one position.",
        mend="Count positions along the sequence: arange(ids.shape[-1]).",
        visibility="silent",
        caught_by=_of("transformer", "silent_blocks_leave_embeddings_positions_and_head"),
    ),
    Pitfall(
        id="transformer.base_ignored",
        catalogue=(),
        sources=(),
        around={"transformer": given(default_base)},
        does="The base of sinusoidal positions is 10000 whatever the config says.",
        shows="Nearby positions look right, and far ones do not.",
        mend="Pass config.positions.base on.",
        visibility="silent",
        caught_by=_of("transformer", "every_choice_of_the_config_matters"),
    ),
    Pitfall(
        id="transformer.eps_ignored",
        catalogue=("components/ln_eps_value_mismatch",),
        sources=(
            "https://github.com/huggingface/transformers/pull/585",
            "https://github.com/huggingface/candle/pull/271",
            "https://github.com/OpenNMT/OpenNMT-py/pull/2446",
            "https://github.com/mindspore-lab/mindone/pull/225",
        ),
        around={"transformer": given(default_eps)},
        does="The norms have the default eps whatever the config says.",
        shows="Vectors of small variance come out otherwise; ordinary ones hardly differ.",
        mend="Pass config.norm.eps on to every norm.",
        visibility="silent",
        caught_by=_of("transformer", "every_choice_of_the_config_matters", "the_final_norm_stands_before_the_head"),
    ),
    Pitfall(
        id="transformer.final_norm_missing",
        catalogue=(
            "components/final_norm_missing",
            "systems/final_norm_dropped_on_import",
        ),
        sources=(
            "https://github.com/awslabs/keys_values/issues/139",
            "https://github.com/PaddlePaddle/PaddleNLP/pull/7615",
            "https://github.com/cellarium-ai/cellarium-ml/pull/263",
        ),
        around={"transformer": given(final_norm_forgotten)},
        does="The head reads the end of the stream; it should read norm(stream).",
        shows="Logits grow with the stream and are too sharp; the most likely token is often the same.",
        mend="Apply the final norm once, before the head.",
        visibility="silent",
        caught_by=_of(
            "transformer",
            "the_final_norm_stands_before_the_head",
            "a_final_norm_without_gain_forgets_the_tokens",
            "every_parameter_matters",
        ),
    ),
    Pitfall(
        id="transformer.untied_logits_scaled",
        catalogue=(
            "components/t5_tied_logit_scale_inverted",
            "systems/t5_tied_head_scale_inverted",
        ),
        sources=(
            "https://github.com/ml-explore/mlx-examples/pull/591",
            "https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/138",
        ),
        around={"transformer": logits_changed(untied_logits_scaled)},
        does="Logits are divided by sqrt(d_model) where the head is not tied: T5's rule for tied ones, upside down.",
        shows="Greedy decoding looks right, while losses and sampled text are wrong: every probability is too flat.",
        mend="Leave the logits of an untied head as they are.",
        visibility="silent",
        caught_by=_of(
            "transformer", "silent_blocks_leave_embeddings_positions_and_head", "a_tied_head_is_the_table_transposed"
        ),
    ),
    Pitfall(
        id="transformer.tied_logits_scaled",
        catalogue=(),
        sources=("https://arxiv.org/abs/1910.10683",),
        around={"transformer": logits_changed(tied_logits_scaled)},
        does="Logits are divided by sqrt(d_model) where the head is tied, which is T5's rule and nobody else's.",
        shows="Greedy decoding looks right, while losses and sampled text are wrong: every probability is too flat.",
        mend="Score with the table as it is: h E^T.",
        visibility="silent",
        caught_by=_of("transformer", "a_tied_head_is_the_table_transposed"),
    ),
    Pitfall(
        id="transformer.tied_head_bias_dropped",
        catalogue=("components/head_bias_dropped",),
        sources=(
            "https://github.com/vllm-project/vllm/pull/46835",
            "https://github.com/huggingface/transformers/issues/1460",
        ),
        around={"transformer": logits_changed(tied_head_bias_dropped)},
        does="A tied head has the table's weights and loses its own bias.",
        shows="Logits are off by the same vector everywhere; text is garbage where the bias is large.",
        mend="Add the bias, tied or not: h E^T + b.",
        visibility="silent",
        caught_by=_of("transformer", "the_head_bias_is_added_to_the_logits", "a_tied_head_is_the_table_transposed"),
    ),
    Pitfall(
        id="transformer.tied_by_copy",
        catalogue=("components/tying_by_copy",),
        sources=(
            "https://github.com/Modalities/modalities/issues/357",
            "https://github.com/facebookresearch/lingua/issues/74",
            "https://github.com/mosaicml/examples/pull/11",
            "https://github.com/dhansmair/flamingo-mini/issues/4",
        ),
        functions={"transformer_vjp": tied_by_copy},
        does="The head has a copy of the table: what it learns does not reach the embedding.",
        shows="After one step head and embedding differ, and a saved model has both.",
        mend="Use one array twice: both gradients add up in it.",
        visibility="training",
        caught_by=_of(
            "transformer", "a_tied_table_gets_the_sum_of_both_its_uses", "gradients_are_those_of_finite_differences"
        ),
    ),
    Pitfall(
        id="transformer.one_block_for_all",
        catalogue=(),
        sources=(),
        around={"transformer": given(first_block_for_all)},
        does="All layers are the same block: a list of one object, [block] * n_layers.",
        shows="The parameters of other blocks have no influence.",
        mend="Make a block for each layer.",
        visibility="training",
        caught_by=_of("transformer", "every_parameter_matters", "blocks_act_from_first_to_last"),
    ),
    Pitfall(
        id="transformer.blocks_reversed",
        catalogue=(),
        sources=(),
        around={"transformer": given(blocks_reversed)},
        does="The last block acts first, as where layers are loaded in another order.",
        shows="A trained model gives garbage; one that is trained so shows nothing.",
        mend="Let block 0 act first, and sort layers by number: layer 10 comes after 9.",
        visibility="silent",
        caught_by=_of("transformer", "the_last_block_has_the_last_word"),
    ),
    Pitfall(
        id="parameter_count.copy_of_the_table_counted",
        catalogue=("components/tying_by_copy",),
        sources=(
            "https://github.com/Modalities/modalities/issues/357",
            "https://github.com/facebookresearch/lingua/issues/74",
            "https://github.com/mosaicml/examples/pull/11",
            "https://github.com/dhansmair/flamingo-mini/issues/4",
        ),
        functions={"parameter_count": copy_of_the_table_counted},
        does="A tied head counts as a matrix of its own.",
        shows="A tied model is vocab x d_model too large.",
        mend="Count a shared array once.",
        visibility="silent",
        caught_by=_of(
            "parameter_count", "a_tied_table_counts_once", "is_a_formula_of_the_sizes", "is_the_sum_of_the_sizes"
        ),
    ),
    Pitfall(
        id="parameter_count.tied_table_subtracted",
        catalogue=("systems/param_count_subtract_tied_twice",),
        sources=(
            "https://github.com/pytorch/torchtitan/pull/3225",
            "https://github.com/karpathy/nanoGPT/pull/209",
            "https://github.com/bigscience-workshop/Megatron-DeepSpeed/issues/99",
            "https://github.com/jranaraki/vllm-fit/issues/27",
        ),
        functions={"parameter_count": tied_table_subtracted},
        does="The size of a tied table is subtracted although it counted once only.",
        shows="A tied model is vocab x d_model too small.",
        mend="Count every array once, and subtract nothing: parameters() of torch names shared ones once.",
        visibility="silent",
        caught_by=_of(
            "parameter_count", "a_tied_table_counts_once", "is_a_formula_of_the_sizes", "is_the_sum_of_the_sizes"
        ),
    ),
    Pitfall(
        id="parameter_count.blocks_not_registered",
        catalogue=("components/layers_in_plain_list",),
        sources=(
            "https://github.com/maruya24/pytorch_robotics_transformer/issues/3",
            "https://github.com/pytorch/pytorch/issues/59925",
            "https://github.com/LiamMaclean216/Pytorch-Transfomer/pull/7",
            "https://github.com/asyml/texar-pytorch/issues/72",
        ),
        functions={"parameter_count": blocks_not_registered},
        does="The blocks stand in a plain list, where a module does not see their parameters.",
        shows="The count does not grow with n_layers; the blocks are neither trained, saved nor moved.",
        mend="Keep them in an nn.ModuleList.",
        visibility="training",
        caught_by=_of(
            "parameter_count", "is_a_formula_of_the_sizes", "is_the_sum_of_the_sizes", "counts_without_building"
        ),
    ),
    Pitfall(
        id="init_params.layers_identical",
        catalogue=("components/init_layers_identical",),
        sources=(
            "https://github.com/pytorch/pytorch/issues/86274",
            "https://github.com/pytorch/pytorch/issues/72253",
            "https://github.com/pytorch/pytorch/issues/120396",
            "https://github.com/harvardnlp/annotated-transformer/issues/9",
        ),
        programs={INIT: layers_identical},
        does="Every layer is a deep copy of one that was initialised.",
        shows="All blocks start with the same numbers.",
        mend="Initialise each block by itself.",
        visibility="training",
        caught_by=("spec_tests.reference.test_parameters.test_no_two_arrays_are_alike",),
    ),
    Pitfall(
        id="init_params.embedding_of_unit_variance",
        catalogue=("components/init_embedding_unit_variance",),
        sources=(
            "https://github.com/syncdoth/RetNet/issues/31",
            "https://github.com/lmsdss/LayerNorm-Scaling/issues/6",
            "https://github.com/pytorch/translate/pull/220",
        ),
        programs={INIT: initialised(embedding_of_unit_variance)},
        does="The table of embeddings starts as N(0, 1), the default of torch's Embedding.",
        shows="With a tied head the first loss is many times log(vocab).",
        mend="Draw the table from N(0, 0.02²).",
        visibility="training",
        caught_by=(
            "spec_tests.reference.test_parameters.test_weights_are_normal_with_the_stated_deviation",
            "spec_tests.reference.test_parameters.test_at_first_every_token_is_about_equally_likely",
        ),
    ),
    Pitfall(
        id="init_params.tied_table_drawn_again",
        catalogue=("components/init_tied_weight_overwritten",),
        sources=("https://github.com/fastai/fastai/pull/2090",),
        programs={INIT: initialised(table_drawn_again_as_a_head)},
        does="A head's own initialisation runs after it was tied, and draws the table of embeddings again.",
        shows="The embedding's deviation is that of the head, 1 / sqrt(d_model) here.",
        mend="Initialise a shared array once, as its embedding says.",
        visibility="training",
        caught_by=("spec_tests.reference.test_parameters.test_at_first_every_token_is_about_equally_likely",),
    ),
    Pitfall(
        id="init_params.bias_not_initialised",
        catalogue=("components/init_same_tensor_twice",),
        sources=(
            "https://github.com/pytorch/examples/pull/909",
            "https://github.com/rasbt/deeplearning-models/pull/82",
        ),
        programs={INIT: initialised(weight_twice_and_bias_never)},
        does="A line that was copied initialises a weight twice and its bias never.",
        shows="The bias starts with whatever the library gave it, not with 0.",
        mend="Initialise each array once: weights, then biases.",
        visibility="training",
        caught_by=("spec_tests.reference.test_parameters.test_gains_are_one_and_biases_zero",),
    ),
]


def _scale_in_the_table(right):
    def model(ids, params, config, **options):
        if not config.tied_head:
            return right(ids, params, config, **options)
        table, head = params["token_embedding"]["table"], params.get("output_head", {})
        scaled = (config.embedding_scale * table).astype(table.dtype)
        w = (scaled.T / config.embedding_scale).astype(table.dtype)
        untied = {**params, "token_embedding": {"table": scaled}, "output_head": {"w": w, **head}}
        return right(ids, untied, replace(config, embedding_scale=1.0, tied_head=False), **options)

    return model


EQUIVALENCES = [
    Equivalence(
        id="transformer.scale_in_the_table",
        catalogue=("equivalences/emb_scale_either_side",),
        sources=("https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/138",),
        around={"transformer": _scale_in_the_table},
        says="A tied table s E, read as it is and divided by s in the head, is a table E scaled by s on the way in.",
    ),
]

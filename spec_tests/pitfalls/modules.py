"""Known mistakes of modules: in what they hold, whose arrays they write to, and in which dtype they compute."""

from typing import Any

import numpy as np

from reference.numpy import add_positions
from spec_tests.pitfalls.pitfall import Function, Pitfall

APPLY = "reference.torch.positions.SinusoidalPositions._apply"
HERE = "spec_tests.reference.test_torch_modules.TestDtypesAndDevices"


def computed_anew(self: Any) -> Any:
    """Give a module of positions the table of its dtype and device, as the right one does."""
    from reference.torch import sinusoidal_positions  # not above: torch takes a second to import

    (max_len, d_model), like = self.table.shape, self.table
    self.table = sinusoidal_positions(max_len, d_model, base=self.base, device=like.device, dtype=like.dtype)
    return self


def cast_with_the_model(self: Any, fn: Any, recurse: bool = True) -> Any:
    """Cast the table as if it were a weight, and compute it anew only where it has no values."""
    from torch import nn

    empty = self.table.is_meta
    nn.Module._apply(self, fn, recurse)
    return computed_anew(self) if empty else self


def never_filled(self: Any, fn: Any, recurse: bool = True) -> Any:
    """Compute the table when it is built, and not when a model without storage gets some."""
    from torch import nn

    empty = self.table.is_meta
    nn.Module._apply(self, fn, recurse)
    if not empty:
        return computed_anew(self)
    self.table = self.table.fill_(float("nan"))  # what raw memory holds differs from run to run
    return self


def added_in_place(x: Any, table: Any, *, offset: int = 0) -> Any:
    """Add to what a dropout that drops nothing has returned: the array that it was given."""
    positions = add_positions(np.zeros_like(x), table, offset=offset)
    x += positions
    return x


def hidden_in_float16(right: Function) -> Function:
    """Keep the hidden values in float16, whose largest number is 65504."""

    def wrong(x: Any, w_1: Any, b_1: Any, w_2: Any, b_2: Any, **options: Any) -> Any:
        x, w_1, w_2 = (array.astype(np.float16) for array in (x, w_1, w_2))
        b_1, b_2 = (None if bias is None else bias.astype(np.float16) for bias in (b_1, b_2))
        with np.errstate(over="ignore", invalid="ignore"):
            return right(x, w_1, b_1, w_2, b_2, **options).astype(np.float64)

    return wrong


PITFALLS = (
    Pitfall(
        id="modules.table_cast_with_the_model",
        catalogue=("systems/model_to_casts_rope_buffer",),
        sources=(
            "https://github.com/huggingface/transformers/issues/30709",
            "https://github.com/huggingface/transformers/issues/25681",
            "https://github.com/huggingface/transformers/issues/28685",
            "https://github.com/NVIDIA-NeMo/Automodel/pull/2549",
            "https://github.com/NovaSky-AI/SkyRL/pull/1725",
        ),
        does="A table that is computed from the config is kept as a buffer, so that casting the model rounds it.",
        shows="A model cast to bfloat16, and back, is no longer the one that was built.",
        mend="Compute the table anew whenever the model is cast.",
        visibility="silent",
        programs={APPLY: cast_with_the_model},
        caught_by=(f"{HERE}.test_positions_are_rounded_once",),
    ),
    Pitfall(
        id="modules.buffer_never_filled",
        catalogue=("systems/nonpersistent_buffer_uninitialised",),
        sources=("https://github.com/huggingface/transformers/issues/45902",),
        does="A buffer that no checkpoint holds is left as raw memory when a model built on meta gets storage.",
        shows="A strict load succeeds, and the model computes with garbage.",
        mend="Compute every such buffer anew once it has storage.",
        visibility="silent",
        programs={APPLY: never_filled},
        caught_by=(f"{HERE}.test_a_model_without_storage_comes_to_life",),
    ),
    Pitfall(
        id="add_positions.added_in_place",
        catalogue=("systems/inplace_on_identity_dropout",),
        sources=(
            "https://github.com/pytorch/pytorch/issues/195422",
            "https://github.com/pytorch/pytorch/issues/118959",
        ),
        does="A sum is written into what dropout returned, which in eval mode is the caller's own array.",
        shows="The input has changed after the call, in eval mode only, and a compiled model differs from itself.",
        mend="Write a new array wherever the old one may be somebody else's.",
        visibility="silent",
        functions={"add_positions": added_in_place},
        caught_by=("add_positions.arguments_are_left_as_they_were",),
    ),
    Pitfall(
        id="feed_forward.hidden_in_float16",
        catalogue=("systems/fp16_overflow_in_ffn",),
        sources=(
            "https://github.com/huggingface/transformers/issues/5651",
            "https://github.com/huggingface/transformers/issues/9295",
            "https://github.com/awslabs/sockeye/pull/1051",
        ),
        does="The hidden values are float16, whose largest number is 65504.",
        shows="Large activations become infinite, and the next norm makes NaN of them.",
        mend="Compute the network in bfloat16 or float32.",
        visibility="silent",
        around={"feed_forward": hidden_in_float16},
        caught_by=(
            "feed_forward.it_is_gelu_between_two_linear_maps",
            "feed_forward.with_relu_and_no_biases_the_output_grows_as_the_input",
        ),
    ),
)

"""Conventions that a subject may declare: what it reads otherwise than the contract, and how it is called then.

    conventions = {"multi_head_attention": {"mask": "true_hides", "weights": "out_in"},
                   "layer_norm": {"variant": "std_plus_eps"}}

A *reading* says the same in other words, such as a mask whose True hides: calls are translated, and what comes back is
translated again. A *fixed* option is the one variant that a subject knows: calls that ask for it go without the option,
and all others are unsupported. Either way the properties stay as they are, so that a declaration is checked and not
believed; where no call of the contract reaches what is declared, `test_conventions.py` does, by calls with
`as_declared="causal"`, which are not translated in this respect.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import reference.numpy
from reference.config import ACTIVATIONS, VARIANTS, ModelConfig
from reference.parameters import leaves
from spec_tests.judge import Mismatch, Unsupported
from spec_tests.subjects.contract import Call, gradient_arguments, is_gradient, plain, signature

Declared = Mapping[str, Any]
"""What is declared about one component: the value of each convention by its name."""

AS_DECLARED = "as_declared"
"""The option of a call that is about a declared reading itself: it names the convention that is not translated."""


@dataclass(frozen=True, kw_only=True)
class Convention:
    """What may be declared about some components: each value in words, the contract's own reading first.

    A `fixed` one has no value that is taken for granted; one without values is a number of at least 0.
    """

    name: str
    components: tuple[str, ...]
    values: Mapping[str, str]
    fixed: bool = False

    @property
    def others(self) -> tuple[str, ...]:
        """Name the values whose declaration says something."""
        return tuple(self.values)[0 if self.fixed else 1 :]


MODELS = ("transformer_block", "transformer")
CROSSING = ("attention_weights", "scaled_dot_product_attention", "multi_head_attention")
"""Attention whose queries and keys may be of different numbers."""

CONVENTIONS = (
    Convention(
        name="causal", components=("causal_mask", *CROSSING),
        values={"last_key": "the last query sees the last key", "first_key": "the first query sees the first key only"},
    ),
    Convention(
        name="mask", components=("causal_mask", *CROSSING, "self_attention", *MODELS),
        values={"true_attends": "True may attend", "true_hides": "True hides",
                "additive": "a float mask is added to the scores"},
    ),
    Convention(
        name="keep", components=("dropout", "feed_forward"),
        values={"true_keeps": "True keeps", "true_drops": "True drops"},
    ),
    Convention(
        name="weights",
        components=("self_attention", "multi_head_attention", "feed_forward", "output_head", *MODELS),
        values={"in_out": "[d_in, d_out]", "out_in": "[d_out, d_in]"},
    ),
    Convention(
        name="columns", components=("sinusoidal_positions",),
        values={"interleaved": "sines and cosines in turn", "halves": "first the sines, then the cosines"},
    ),
    Convention(
        name="label_smoothing", components=("cross_entropy",),
        values={"every_class": "smoothing is spread over every class", "other_classes": "over the wrong classes only"},
    ),
    Convention(
        name="total_loss", components=("perplexity",),
        values={"sum": "the loss is a sum over tokens", "mean": "the loss is a mean already"},
    ),
    Convention(
        name="step", components=("adamw_step",), values={"from_1": "steps count from 1", "from_0": "from 0"},
    ),
    Convention(
        name="step", components=("warmup_cosine",), values={"from_0": "steps count from 0", "from_1": "from 1"},
    ),
    Convention(
        name="top_p", components=("next_token_distribution",),
        values={"reaches": "the crossing token is kept", "exceeds": "the mass must exceed p, to reach it is not enough",
                "within": "the crossing token is dropped"},
    ),
    Convention(
        name="approximate", components=("gelu",), fixed=True, values={"none": "the erf form", "tanh": "the tanh form"},
    ),
    Convention(name="activation", components=("feed_forward", *MODELS), fixed=True,
               values={name: f"{name}, whatever is asked" for name in ACTIVATIONS}),
    Convention(name="norm_placement", components=MODELS, fixed=True,
               values={"pre": "norms before, whatever the config says", "post": "norms after, whatever it says"}),
    Convention(name="variant", components=("layer_norm", *MODELS), fixed=True,
               values={name: f"{name}, whatever is asked" for name in VARIANTS}),
    Convention(name="default_eps", components=("layer_norm",), fixed=True, values={}),
    Convention(name="eps", components=("layer_norm", *MODELS), fixed=True, values={}),
)  # fmt: skip


def conventions_of(component: str) -> dict[str, Convention]:
    """Give the conventions that may be declared about a component, by name, in the order they are translated in."""
    return {convention.name: convention for convention in CONVENTIONS if component in convention.components}


def read(declared: Any) -> dict[str, dict[str, Any]]:
    """Give a declaration as a dict of dicts. Raises ValueError for what may not be declared, and names what may."""
    if not isinstance(declared, Mapping):
        raise ValueError(f"conventions must be a dict of components, got {type(declared).__name__}")
    for component, values in declared.items():
        legal = conventions_of(component)
        if not legal:
            known = dict.fromkeys(name for convention in CONVENTIONS for name in convention.components)
            raise ValueError(f"conventions: nothing can be declared about {component!r}, but about {', '.join(known)}")
        if not isinstance(values, Mapping):
            raise ValueError(f"conventions: {component} must be a dict of {', '.join(legal)}, got {values!r}")
        for name, value in values.items():
            if name not in legal:
                raise ValueError(f"conventions: {component} has no {name!r}, but {', '.join(legal)}")
            _check_value(component, legal[name], value)
    return {component: dict(values) for component, values in declared.items()}


def _check_value(component: str, convention: Convention, value: Any) -> None:
    if not convention.values:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and math.isfinite(value) and value >= 0):
            raise ValueError(f"conventions: {component}.{convention.name} is a number of at least 0, got {value!r}")
    elif value not in convention.values:
        legal = ", ".join(map(repr, convention.values))
        raise ValueError(f"conventions: {component}.{convention.name} is one of {legal}, got {value!r}")


def described(declared: Mapping[str, Declared]) -> str:
    """Give a declaration as one line: `layer_norm: variant = std_plus_eps; ...`."""
    return "; ".join(
        f"{component}: {', '.join(f'{name} = {value}' for name, value in values.items())}"
        for component, values in declared.items()
    )


# ------------------------------------------------------------------------------------------------- a call, translated


@dataclass(frozen=True)
class Given:
    """A call in the subject's terms, and how what comes back is put in the contract's.

    `lines` are those of Python that do the same to a result, called {got}.
    """

    call: Call
    back: Callable[[Any], Any] = lambda result: result
    lines: tuple[str, ...] = ()

    def coming_back(self, back: Callable[[Any], Any], line: str) -> "Given":
        """Translate what comes back, too, before it is translated as this call asks already."""
        after = self.back
        return replace(self, back=lambda result: after(back(result)), lines=(line, *self.lines))


def translated(call: Call, declared: Declared) -> Given:
    """Put a call of the contract in a subject's terms. Raises Unsupported for what the declaration rules out."""
    given = Given(of_the_contract(call))
    own = call.options.get(AS_DECLARED)
    for name, convention in conventions_of(plain(call.component)).items():
        value = declared.get(name)
        if value is not None and name != own and (value in convention.others or not convention.values):
            given = _TRANSLATIONS.get(name, _fixed)(given, name, value)
    return given


def of_the_contract(call: Call) -> Call:
    """Give the call without the option that no component knows."""
    return _with(call, **{AS_DECLARED: _LEFT_OUT}) if AS_DECLARED in call.options else call


def as_declared(call: Call, declared: Declared) -> Call:
    """Ask for those variants, of all that a call could ask for, that are fixed by the declaration."""
    if not declared:
        return call
    values = {name: value for name, value in declared.items() if conventions_of(plain(call.component))[name].fixed}
    if "default_eps" in values:
        values["eps"] = values.pop("default_eps")
    config = _arguments(call).get("config")
    if config is None:
        return _with(call, **values)
    norm = replace(config.norm, **{name: values.pop(name) for name in ("variant", "eps") if name in values})
    return _with(call, config=replace(config, norm=norm, **values))


_LEFT_OUT = object()


def _arguments(call: Call) -> dict[str, Any]:
    return dict(zip(signature(call.component).parameters, call.args, strict=False)) | call.options


def _with(call: Call, **changes: Any) -> Call:
    """Give the call with other arguments; an option may be left out."""
    names = list(signature(call.component).parameters)[: len(call.args)]
    args = [changes.pop(name, arg) for name, arg in zip(names, call.args, strict=False)] + list(call.args[len(names) :])
    options = {name: value for name, value in {**call.options, **changes}.items() if value is not _LEFT_OUT}
    return Call(call.component, tuple(args), options)


def _fixed(given: Given, name: str, value: Any) -> Given:
    """Leave out the option that asks for what the subject does anyway; nothing else may be asked for."""
    arguments = _arguments(given.call)
    config = arguments.get("config")
    if isinstance(config, ModelConfig):
        asked = getattr(config.norm if name in ("variant", "eps") else config, name)
    else:
        asked = arguments.get(name, signature(given.call.component).parameters[name].default)
    if asked != value:
        what = f"{plain(given.call.component)}: {name} = {asked!r} is asked for, and the subject declares {value!r}"
        raise Unsupported(what)
    return given if config is not None else replace(given, call=_with(given.call, **{name: _LEFT_OUT}))


def _default_eps(given: Given, name: str, value: float) -> Given:
    eps = _arguments(given.call).get("eps", signature(given.call.component).parameters["eps"].default)
    return replace(given, call=_with(given.call, eps=_LEFT_OUT if eps == value else eps))


def _causal(given: Given, name: str, value: str) -> Given:
    """Say as a mask what `causal=True` would say otherwise, where there are not as many queries as keys."""
    call, arguments = given.call, _arguments(given.call)
    if call.component == "causal_mask":
        return _square_mask(given, arguments)
    lengths, mask = _lengths(arguments), arguments.get("mask")
    if not arguments.get("causal") or lengths is None or lengths[0] == lengths[1]:
        return given
    if mask is not None and not (_is_mask(mask) and mask.shape[-2:] == lengths):
        return given  # for them to refuse
    allowed = reference.numpy.causal_mask(*lengths)
    return replace(given, call=_with(call, mask=allowed if mask is None else mask & allowed, causal=_LEFT_OUT))


def _square_mask(given: Given, arguments: dict[str, Any]) -> Given:
    """Cut a mask of q_seq queries and k_seq keys from the end of a square one, which all read alike."""
    q_seq, k_seq = arguments["q_seq"], arguments.get("k_seq")
    if k_seq is None or q_seq == k_seq or min(q_seq, k_seq) < 0:
        return given
    size = max(q_seq, k_seq)
    rows, columns = size - q_seq, size - k_seq
    given = replace(given, call=Call(given.call.component, (size, size), {}))
    return given.coming_back(
        lambda mask: mask[rows:, columns:] if np.shape(mask) == (size, size) else mask,
        f"{{got}} = {{got}}[{rows}:, {columns}:]",
    )


def _lengths(arguments: dict[str, Any]) -> tuple[int, int] | None:
    """Give the numbers of queries and of keys, or None where an array has no such axis."""
    queries = arguments["q"] if "q" in arguments else arguments["x"]
    keys = arguments["k"] if "k" in arguments else arguments.get("context")
    keys = queries if keys is None else keys
    return (queries.shape[-2], keys.shape[-2]) if min(queries.ndim, keys.ndim) >= 2 else None


def _is_mask(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == bool


def _mask(given: Given, name: str, value: str) -> Given:
    if given.call.component == "causal_mask":
        if value == "true_hides":
            return given.coming_back(lambda mask: ~mask if _is_mask(mask) else mask, "{got} = ~{got}")
        return given.coming_back(_allowed, "{got} = {got} == 0")
    mask = _arguments(given.call).get("mask")
    if _is_mask(mask):
        dtypes = (leaf.dtype for _, leaf in leaves(list(given.call.args)) if isinstance(leaf, np.ndarray))
        dtype = next((dtype for dtype in dtypes if dtype.kind == "f"), np.dtype(np.float64))
        added = np.where(mask, 0.0, -np.inf).astype(dtype)
        return replace(given, call=_with(given.call, mask=~mask if value == "true_hides" else added))
    if isinstance(mask, np.ndarray) and value == "additive":  # what has a wrong dtype keeps one that is wrong
        return replace(given, call=_with(given.call, mask=mask.astype(np.int64)))
    return given


def _allowed(mask: Any) -> Any:
    """Read an additive mask: 0 lets through; what hides is so far down that no score makes up for it."""
    if not (isinstance(mask, np.ndarray) and mask.dtype.kind == "f" and np.all((mask == 0) | (mask < -1e3))):
        raise Mismatch("causal_mask is declared to be additive: 0, or far below 0", got=mask)
    return np.asarray(mask == 0)


def _keep(given: Given, name: str, value: str) -> Given:
    keep = _arguments(given.call).get("keep")
    return replace(given, call=_with(given.call, keep=~keep)) if _is_mask(keep) else given


def _weights(given: Given, name: str, value: str) -> Given:
    call = given.call
    names = list(signature(call.component).parameters)
    args = tuple(_transposed(name, arg) for name, arg in zip(names, call.args, strict=False)) + call.args[len(names) :]
    options = {name: _transposed(name, option) for name, option in call.options.items()}
    given = replace(given, call=Call(call.component, args, options))
    if not is_gradient(call.component):
        return given
    parts = gradient_arguments(call.component)

    def back(gradients: Any) -> Any:
        return tuple(_transposed(name, part) for name, part in zip(parts, gradients, strict=True))

    return given.coming_back(back, "# the gradients of weights in {got} are [d_out, d_in], as the weights are")


def _transposed(name: str, value: Any) -> Any:
    """Transpose a matrix of weights, in a tree all that are in it."""
    if isinstance(value, Mapping):
        return {part_name: _transposed(part_name, part) for part_name, part in value.items()}
    if isinstance(value, list):
        return [_transposed(name, part) for part in value]
    return value.T if isinstance(value, np.ndarray) and name.split("_")[0] == "w" else value


def _columns(given: Given, name: str, value: str) -> Given:
    d_model = _arguments(given.call)["d_model"]
    sines = (d_model + 1) // 2
    order = [i // 2 + i % 2 * sines for i in range(d_model)]
    return given.coming_back(
        lambda table: table[..., order] if np.shape(table)[-1:] == (d_model,) else table,
        f"{{got}} = {{got}}[:, {order}]",
    )


def _label_smoothing(given: Given, name: str, value: str) -> Given:
    """Smooth over vocab - 1 classes so that the target keeps what it keeps when all vocab get a share."""
    arguments = _arguments(given.call)
    smoothing, logits = arguments.get("label_smoothing", 0.0), arguments["logits"]
    if not (logits.ndim and 0 < smoothing <= 1):
        return given
    vocab = logits.shape[-1]
    return replace(given, call=_with(given.call, label_smoothing=smoothing * (vocab - 1) / vocab))


def _total_loss(given: Given, name: str, value: str) -> Given:
    total_loss, n_tokens = (_arguments(given.call)[name] for name in ("total_loss", "n_tokens"))
    return replace(given, call=_with(given.call, total_loss=total_loss / n_tokens)) if n_tokens >= 1 else given


def _step(given: Given, name: str, value: str) -> Given:
    return replace(
        given, call=_with(given.call, step=_arguments(given.call)["step"] + (1 if value == "from_1" else -1))
    )


def _top_p(given: Given, name: str, value: str) -> Given:
    top_p = _arguments(given.call).get("top_p")
    if top_p is None or not 0 < top_p < 1:
        return given
    if value == "within":
        what = "where the crossing token is dropped, as is declared, no top_p gives the contract's set for every row"
        raise Unsupported(f"next_token_distribution: {what}")
    return replace(given, call=_with(given.call, top_p=top_p * (1 - 2.0**-22)))  # less, even in float32


_TRANSLATIONS: dict[str, Callable[[Given, str, Any], Given]] = {
    "causal": _causal,
    "mask": _mask,
    "keep": _keep,
    "weights": _weights,
    "columns": _columns,
    "label_smoothing": _label_smoothing,
    "total_loss": _total_loss,
    "step": _step,
    "top_p": _top_p,
    "default_eps": _default_eps,
}


# ------------------------------------------------------------------------------- what a declared reading itself means


def in_its_own_reading(call: Call, name: str, value: str) -> Any:
    """Give what a call with `as_declared` should give: the reference's result, read as is declared."""
    call = of_the_contract(call)
    arguments = _arguments(call)
    if name == "top_p" and value != "reaches":
        return _nucleus(arguments["logits"], arguments["top_p"], one_more=value == "exceeds")
    if name == "causal" and value == "first_key":
        if call.component == "causal_mask":
            return np.tri(*call.args, dtype=bool)
        call = _with(call, causal=_LEFT_OUT, mask=np.tri(*_lengths(arguments), dtype=bool))
    return getattr(reference.numpy, call.component)(*call.args, **call.options)


def _nucleus(logits: np.ndarray, top_p: float, *, one_more: bool) -> np.ndarray:
    """Keep the first ranks whose mass, their own included, stays within top_p; or one more of them."""
    p = reference.numpy.softmax(logits)
    by_rank = np.argsort(-logits, axis=-1, kind="stable")
    within = np.cumsum(np.take_along_axis(p, by_rank, axis=-1), axis=-1) <= top_p
    kept = np.maximum(within.sum(axis=-1, keepdims=True) + one_more, 1)
    p = np.where(np.argsort(by_rank, axis=-1) < kept, p, 0)
    return p / p.sum(axis=-1, keepdims=True)

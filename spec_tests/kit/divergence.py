"""Where a composed component goes wrong first, if the subject shows what it computes in between.

It shows it in a dictionary, for which its function has a keyword `trace`, under the names of `assembly`; or it is an
`nn.Module` bound by `from_module`, whose submodules are listened to: what holds `w_q` gives `q`, what holds the gain of
`norm_1` gives `norm_1`, and a submodule that is named like an intermediate gives that.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from spec_tests.judge import Unsupported
from spec_tests.kit import assembly
from spec_tests.kit.draws import Draw, difference, outcome_of
from spec_tests.subjects.contract import Call
from spec_tests.subjects.subject import Subject, to_numpy

INPUTS = 4
"""On so many wrong inputs the intermediates are looked at."""

FAR = 4096
"""What is off by so many units of rounding of the largest number is another number."""

Trace = dict[str, np.ndarray]


def first(subject: Subject, component: str, draws: list[Draw]) -> dict[str, Any] | None:
    """Name the first intermediate that differs; None where nothing is composed, wrong, or shown."""
    if component not in assembly.ASSEMBLED:
        return None
    function = getattr(subject.namespace, component, None)
    wrong = [draw for draw in draws if draw.wrong and not draw.refused][:INPUTS]
    found: list[tuple[int, str, str, float, list[str]]] = []
    for draw in wrong:
        shown = shown_by(subject, function, draw.call)
        expected: Trace = {}
        with np.errstate(all="ignore"):
            assembly.assemble({})[component](*draw.call.args, **draw.call.options, trace=expected)
        compared = [name for name in expected if name in shown]
        if not compared:
            continue
        before = ""
        for name in compared:
            if (off := apart(shown[name], expected[name], draw.eps)) > 0:
                found.append((list(expected).index(name), name, before, off, compared))
                break
            before = name
        else:
            found.append((len(expected), "", before, 0.0, compared))
    if not found:
        return None
    _, name, before, off, compared = min(found)
    return {"name": name, "after": before, "compared": compared, "text": _told(name, before, off, len(compared))}


def _told(name: str, before: str, off: float, count: int) -> str:
    right = f"{before}, the last before it that is shown, is right" if before else "nothing before it is shown"
    if not name:
        return f"All {count} intermediates shown are right, the last of them {before}: it goes wrong after that."
    size = "another shape" if off == np.inf else f"off by {off:.2g} of its largest number"
    return f"The first intermediate that differs is {name} ({size}); {right}."


def apart(shown: Any, expected: np.ndarray, eps: float) -> float:
    """Say how far an intermediate is off, as a share of its largest number: 0 within rounding, inf for another shape.

    What stands at a hidden score is nobody's concern. Heads may stand side by side, batches in one axis.
    """
    array = np.asarray(shown)
    if array.shape != expected.shape and array.ndim == expected.ndim - 1 and array.size == expected.size:
        expected = _side_by_side(expected)
    if array.size != expected.size or array.shape[-1:] != expected.shape[-1:]:
        return np.inf
    matter = np.isfinite(expected)
    if not matter.any():
        return 0.0
    off = difference(array.reshape(expected.shape)[matter], expected[matter]).max()
    largest = max(np.abs(expected[matter]).max(), 1e-300)
    return float(off / largest) if off > FAR * eps * largest else 0.0


def _side_by_side(heads: np.ndarray) -> np.ndarray:
    return heads.swapaxes(-2, -3).reshape(*heads.shape[:-3], heads.shape[-2], -1)


def shown_by(subject: Subject, function: Callable[..., Any] | None, call: Call) -> Trace:
    """Call the subject and give the intermediates that it shows, by their names."""
    if function is None:
        return {}
    if hasattr(function, "weights") and getattr(function, "arrays", "") == "torch":
        return _heard(subject, function, call)
    try:
        takes = "trace" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        takes = False
    if not takes:
        return {}
    trace: dict[str, Any] = {}
    tracing = copy.copy(subject)
    own = {name: getattr(subject.namespace, name) for name in dir(subject.namespace) if not name.startswith("__")}
    tracing.namespace = SimpleNamespace(**{**own, call.component: partial(function, trace=trace)})
    _called(tracing, call)
    return _as_arrays(trace, call)


def _called(subject: Subject, call: Call) -> None:
    with suppress(Unsupported):
        outcome_of(subject, call)


def _as_arrays(trace: Mapping[str, Any], call: Call) -> Trace:
    shown: Trace = {}
    for name, value in trace.items():
        array = to_numpy(value, f"{call.component}, trace[{name!r}]")
        if isinstance(array, np.ndarray) and array.dtype.kind in "fiub":
            shown[str(name)] = array.astype(np.float64)
    return shown


# ----------------------------------------------------------------------------------------------- modules


def _heard(subject: Subject, function: Callable[..., Any], call: Call) -> Trace:
    """Listen to the submodules of a bound module."""
    from spec_tests.subjects.modules import before_running

    heard: dict[str, Any] = {}
    owners = intermediates_of(function.weights)

    def listen(module: Any) -> None:
        for key, part in module.named_modules():
            if key:
                names = owners.get(key, (_our_name(key),))
                part.register_forward_hook(partial(_note, heard, names))

    token = before_running.set(listen)
    try:
        _called(subject, call)
    finally:
        before_running.reset(token)
    return _as_arrays(heard, call)


def _note(heard: dict[str, Any], names: tuple[str, ...], module: Any, given: Any, result: Any) -> None:
    result = result[0] if isinstance(result, tuple) else result
    if hasattr(result, "detach"):
        parts = result.detach().clone().chunk(len(names), dim=-1)
        heard.update(zip(names, parts, strict=False))


OF_WEIGHT = {"w_q": "q", "w_k": "k", "w_v": "v", "w_o": "output", "w_2": "output"}


def intermediates_of(weights: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Say of each submodule what it computes, by the weights that it holds: several where they are packed."""
    found: dict[str, tuple[str, ...]] = {}
    for key, weight in weights.items():
        owner, _, _ = key.rpartition(".")
        paths = [weight] if isinstance(weight, str) else weight if isinstance(weight, list) else []
        names = tuple(name for path in paths if (name := _of_path(path.removesuffix(".T"))))
        if owner and names and len(names) == len(paths):
            found.setdefault(owner, names)
    return found


def _of_path(path: str) -> str:
    """Name what is computed with a weight: `blocks.0.attention.q` for `params.blocks.0.attention.w_q`."""
    parent, _, leaf = path.removeprefix("params.").rpartition(".")
    match parent.rpartition(".")[2], leaf:
        case "token_embedding", "table":
            return "embedding"
        case "output_head", "w":
            return "logits"
        case (("norm_1" | "norm_2" | "final_norm"), "gamma"):
            return parent
        case _, name if name in OF_WEIGHT:
            return f"{parent}.{OF_WEIGHT[name]}".removeprefix(".")
    return ""


def _our_name(key: str) -> str:
    """Read a submodule's name as one of ours that differs by an underscore only: `layer.norm1` is `layer.norm_1`."""
    ours = {name.replace("_", ""): name for name in ("norm_1", "norm_2", "residual_1", "residual_2", "final_norm")}
    return ".".join(ours.get(part.replace("_", "").lower(), part) for part in key.split("."))

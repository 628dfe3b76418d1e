"""What a wrong answer that no known mistake explains is like: measured on many inputs, not guessed.

Is it the right answer times a constant, with its axes or its sign changed? On which inputs is it wrong, and where in
the result?
"""

import math
from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import numpy as np

from reference.config import ModelConfig
from spec_tests.kit.draws import Draw, Raised, axis_names, bound_arguments, default_of, difference, has_batch, sizes_of
from spec_tests.subjects.contract import gradient_arguments, is_gradient, plain

ENOUGH = 3
"""On so many inputs at least something must hold before it is said."""

Pair = tuple[Draw, np.ndarray, np.ndarray]
"""A draw with one array of what was got and of what is right."""


def nearest(name: str, good: list[Draw]) -> tuple[str, str]:
    """Give the kind of wrong answer in a word or two, and what was measured; `good` are the calls with a right answer.

    At least one of them must be wrong.
    """
    wrong = [draw for draw in good if draw.wrong]
    counted = f"{name} is wrong on {_of(wrong, good)} inputs"
    if any(isinstance(draw.got, Raised) for draw in wrong):
        return _raising(name, good)
    where = _separating(good, wrong)
    some = f" {where}" if where else ""
    if any(_paths(draw.got) != _paths(draw.right) for draw in wrong):
        return "wrong structure", f"{counted}: its parts are {_paths(wrong[0].got)}, not {_paths(wrong[0].right)}."
    path, others = _wrong_part(name, wrong)
    pairs = [(draw, draw.got[path], draw.right[path]) for draw in wrong]
    part = f" (in {others})" if others else ""
    for describe in (_another_shape, _all_alike, _scaled, _signs, _shifted, _axes_permuted, _shuffled, _its_input):
        if (found := describe([pair for pair in pairs if _apart(pair, path)])) is not None:
            kind, text = found
            return kind, f"{counted}{part}. There {text}.{some}"
    places, located = _places(pairs, path)
    kind = "right in places" if located else "right on some inputs" if where else "right shape only"
    off = max(_off(pair) for pair in pairs)
    rest = places or f"there it has the right shape, and is off by up to {off:.2g} of the largest number"
    return kind, f"{counted}{part}; {rest}.{some}"


def _of(some: list[Any], every: list[Any]) -> str:
    return f"all {len(every)}" if len(some) == len(every) else f"{len(some)} of {len(every)}"


def _paths(outcome: Any) -> list[str]:
    return sorted(outcome)


def _apart(pair: Pair, path: str) -> bool:
    draw, got, right = pair
    return draw.apart(path, got, right) > 1


def _off(pair: Pair) -> float:
    _, got, right = pair
    finite = np.abs(right[np.isfinite(right)])
    return float(difference(got, right).max(initial=0) / max(float(finite.max(initial=0)), 1e-300))


def _raising(name: str, good: list[Draw]) -> tuple[str, str]:
    raised = [draw for draw in good if isinstance(draw.got, Raised) and draw.wrong]
    errors = list(dict.fromkeys(draw.got.error.split("\n")[0][:160] for draw in raised))
    where = _separating(good, raised)
    more = f" (and {len(errors) - 1} other errors)" if len(errors) > 1 else ""
    text = f"{name} raises on {_of(raised, good)} inputs: {errors[0]}{more}."
    return "raises", f"{text} {where}" if where else text


def _wrong_part(name: str, wrong: list[Draw]) -> tuple[str, str]:
    """Choose the first array of the result that is wrong; say which are, if some are not."""
    paths = list(wrong[0].right)
    bad = [
        path
        for path in paths
        if any(d.apart(path, d.got[path], d.right[path]) > 1 for d in wrong if path in d.right and path in d.got)
    ]
    bad = bad or paths[:1]
    names = [_part_name(name, path) for path in bad]
    return bad[0], ", ".join(names[:6]) if len(paths) > 1 else ""


PARTS = {"adamw_step": ("param", "m", "v"), "clip_grad_norm": ("grads", "norm")}


def _part_name(name: str, path: str) -> str:
    head, _, rest = path.partition(".")
    names = gradient_arguments(name) if is_gradient(name) else PARTS.get(plain(name), ())
    if head.isdigit() and int(head) < len(names):
        head = names[int(head)]
    return f"{head}.{rest}" if rest else head


# ------------------------------------------------------------------------------------------- the right answer, changed


def _another_shape(pairs: list[Pair]) -> tuple[str, str] | None:
    shapes = [(draw, got.shape, right.shape) for draw, got, right in pairs if got.shape != right.shape]
    if not shapes:
        return None
    if (found := _axes_permuted(pairs)) is not None:
        return found
    _, got, right = shapes[0]
    same = all(g.size == r.size and _near(d, g.reshape(r.shape), r) for d, g, r in pairs)
    numbers = ", with the right numbers in the right order" if same else ""
    return "wrong shape", f"it has shape {got} and should have {right}{numbers}"


def _all_alike(pairs: list[Pair]) -> tuple[str, str] | None:
    if all(got.size and np.isnan(got.astype(float)).all() for _, got, _ in pairs):
        return "all NaN", "it is NaN everywhere"
    first = pairs[0][1].flat[0] if pairs[0][1].size else np.nan
    if len(pairs) >= ENOUGH and all(got.size > 0 and (got == first).all() for _, got, _ in pairs):
        return "constant", f"it is {first:g} everywhere"
    return None


def _scaled(pairs: list[Pair]) -> tuple[str, str] | None:
    """Look for one factor an input, and for what it depends on."""
    factors = [factor for pair in pairs if (factor := _factor(*pair)) is not None]
    if len(factors) < len(pairs) or not any(right.size > 1 for _, _, right in pairs):
        return None
    if np.ptp(factors) <= 1e-6 * np.abs(factors).max():
        if abs(factors[0] + 1) < 1e-9:
            return "sign", "it is the right answer with the other sign"
        return "scaled", f"it is the right answer times {factors[0]:.8g}"
    for text, value in _quantities(pairs):
        if np.allclose(factors, value, rtol=1e-6, atol=0):
            return "scaled", f"it is the right answer times {text}"
    low, high = min(factors), max(factors)
    return "scaled", f"it is the right answer times a factor, another in each input, from {low:.4g} to {high:.4g}"


def _factor(draw: Draw, got: np.ndarray, right: np.ndarray) -> float | None:
    got, right = got.astype(np.float64), right.astype(np.float64)
    if not right.size or not (np.isfinite(got).all() and np.isfinite(right).all()) or not np.abs(right).max():
        return None
    largest = np.unravel_index(np.abs(right).argmax(), right.shape)
    factor = float(got[largest] / right[largest])
    return factor if factor and _near(draw, got / factor, right) else None


FUNCTIONS: tuple[tuple[str, Callable[[float], float]], ...] = (
    ("{}", lambda n: n),
    ("1/{}", lambda n: 1 / n),
    ("sqrt({})", lambda n: math.sqrt(n)),
    ("1/sqrt({})", lambda n: 1 / math.sqrt(n)),
    ("{0}/({0} - 1)", lambda n: n / (n - 1) if n != 1 else math.nan),
    ("({0} - 1)/{0}", lambda n: (n - 1) / n),
    ("sqrt(({0} - 1)/{0})", lambda n: math.sqrt((n - 1) / n) if n >= 1 else math.nan),
    ("1/(1 - {})", lambda n: 1 / (1 - n) if n != 1 else math.nan),
    ("(1 - {})", lambda n: 1 - n),
    ("{}^2", lambda n: n * n),
)


def _quantities(pairs: list[Pair]) -> Iterator[tuple[str, list[float]]]:
    """Give functions of sizes and numbers of the calls, each with its value in every call."""
    given = [_numbers(draw) for draw, _, _ in pairs]
    for name in given[0]:
        if all(name in numbers for numbers in given):
            for text, function in FUNCTIONS:
                with np.errstate(all="ignore"):
                    yield text.format(name), [function(numbers[name]) for numbers in given]


def _numbers(draw: Draw) -> dict[str, float]:
    numbers: dict[str, float] = dict(sizes_of(draw.call))
    for name, value in bound_arguments(draw.call).items():
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            numbers.setdefault(name, value)
        if isinstance(value, ModelConfig):
            numbers |= {"dropout": value.dropout, "embedding_scale": value.embedding_scale}
    first, axis = draw.call.args[0] if draw.call.args else None, draw.call.options.get("axis", -1)
    if isinstance(first, np.ndarray) and first.ndim:
        numbers |= {"the length of the axis": first.shape[axis], "the number of elements": first.size}
    return {name: value for name, value in numbers.items() if value > 0}


def _signs(pairs: list[Pair]) -> tuple[str, str] | None:
    if all(_near(draw, np.abs(got.astype(float)), np.abs(right.astype(float))) for draw, got, right in pairs):
        return "sign", "its numbers are right but for the sign of some"
    return None


def _shifted(pairs: list[Pair]) -> tuple[str, str] | None:
    shifts = []
    for draw, got, right in pairs:
        if got.size < 2 or got.shape != right.shape:
            continue
        shift = got.astype(np.float64) - right
        if not np.isfinite(shift).all() or not _near(draw, got - shift.flat[0], right):
            return None
        shifts.append(float(shift.flat[0]))
    if not shifts:
        return None
    if np.ptp(shifts) <= 1e-6 * np.abs(shifts).max():
        return "shifted", f"it is the right answer plus {shifts[0]:.8g}"
    for text, values in _quantities([pair for pair in pairs if pair[1].size > 1]):
        if np.allclose(shifts, values, rtol=1e-6, atol=0):
            return "shifted", f"it is the right answer plus {text}"
    return "shifted", "it is the right answer plus one number, another in each input"


def _axes_permuted(pairs: list[Pair]) -> tuple[str, str] | None:
    """Look for one exchange of axes, counted from the last, that makes all of them right."""
    if all(got.shape == right.T.shape and _near(draw, got, right.T) for draw, got, right in pairs):
        return "axes permuted", "it is the right answer with its axes in the reverse order"
    least = min((right.ndim for _, _, right in pairs), default=0)
    for order in (order for length in range(2, min(least, 4) + 1) for order in permutations(range(length))):
        if order != tuple(range(len(order))) and all(_is_permuted(pair, order) for pair in pairs):
            draw, _, right = pairs[0]
            names = axis_names(draw.call, "", right.ndim)[-len(order) :]
            shown = ", ".join(names[place] for place in order)
            return "axes permuted", f"it is the right answer with its last axes in the order {shown}"
    return None


def _is_permuted(pair: Pair, order: tuple[int, ...]) -> bool:
    draw, got, right = pair
    kept = right.ndim - len(order)
    turned = right.transpose([*range(kept), *(kept + place for place in order)])
    return got.shape == turned.shape and _near(draw, got, turned)


def _shuffled(pairs: list[Pair]) -> tuple[str, str] | None:
    """Look for one axis along which the right numbers stand in another order."""
    axes = min((right.ndim for _, _, right in pairs), default=0)
    for axis in range(-1, -1 - axes, -1):
        orders = [_order_along(pair, axis) for pair in pairs]
        if all(order is not None for order in orders):
            place = max(range(len(orders)), key=lambda n: len(orders[n]))
            draw, _, right = pairs[place]
            name = axis_names(draw.call, "", right.ndim)[axis]
            if all(order == list(range(len(order)))[::-1] for order in orders):
                return "order", f"it is the right answer back to front along {name}"
            shown = ", ".join(map(str, orders[place][:12])) + (", …" if len(orders[place]) > 12 else "")
            return "order", f"it is the right answer in another order along {name}: with {len(orders[place])}, {shown}"
    return None


def _order_along(pair: Pair, axis: int) -> list[int] | None:
    """Give which slice of the right answer stands at each place along an axis, if they are all there."""
    draw, got, right = pair
    if got.shape != right.shape or right.dtype.kind == "b":
        return None
    got, right = np.moveaxis(got, axis, 0), np.moveaxis(right, axis, 0)
    order: list[int] = []
    for part in got:
        found = [n for n, other in enumerate(right) if n not in order and _near(draw, part, other)]
        if not found:
            return None
        order.append(found[0])
    return order


def _its_input(pairs: list[Pair]) -> tuple[str, str] | None:
    """Look for an argument that comes back as it is."""
    for name in bound_arguments(pairs[0][0].call):
        values = [bound_arguments(draw.call).get(name) for draw, _, _ in pairs]
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        if len(arrays) == len(pairs) >= ENOUGH and all(
            array.shape == got.shape and _near(draw, got, array)
            for array, (draw, got, _) in zip(arrays, pairs, strict=True)
        ):
            return "its input", f"it is {name}, unchanged"
    return None


def _near(draw: Draw, one: np.ndarray, other: np.ndarray) -> bool:
    """Say whether two arrays are equal up to rounding, of however many steps."""
    if one.shape != other.shape:
        return False
    finite = np.abs(other[np.isfinite(other)]) if other.dtype.kind == "f" else np.abs(other.astype(float))
    return bool(difference(one, other).max(initial=0) <= 4096 * draw.eps * max(1e-300, float(finite.max(initial=0))))


# ----------------------------------------------------------------------------------------------- which inputs


def common(some: list[Draw], others: list[Draw]) -> tuple[str, int] | None:
    """Say what some inputs have in common that the others lack, and how many of these have it all the same.

    None where there is no such thing, or too few inputs to tell.
    """
    if len(some) < ENOUGH or len(others) < ENOUGH:
        return None
    having = [[{name for name, holds in _features(draw) if holds} for draw in draws] for draws in (some, others)]
    shared = [name for name, _ in _features(some[0]) if all(name in names for names in having[0])]
    also = [(sum(name in names for names in having[1]), name) for name in dict.fromkeys(shared)]
    count, name = min(also, key=lambda pair: pair[0], default=(len(others), ""))
    return (name, count) if count <= len(others) - ENOUGH else None


def _separating(good: list[Draw], wrong: list[Draw]) -> str:
    """Say what the wrong inputs have in common that the others lack, if there is such a thing."""
    bad = {id(draw) for draw in wrong}
    right = [draw for draw in good if id(draw) not in bad]
    if (found := common(wrong, right)) is None:
        return ""
    name, also = found
    if also:
        return f"It is wrong only where {name}: there on {len(wrong)} of {len(wrong) + also} inputs."
    return f"It is right on {len(right)} of {len(good)} inputs; all {len(wrong)} where {name} differ."


def _features(draw: Draw) -> Iterator[tuple[str, bool]]:
    """Give what may set a call apart from others: its options, its sizes, what its mask hides."""
    call, sizes = draw.call, sizes_of(draw.call)
    values = bound_arguments(call)
    for name, value in values.items():
        if isinstance(value, ModelConfig):
            yield from _config_features(value)
            continue
        default = default_of(call.component, name)
        if default is None:
            yield f"{name} is given", value is not None
        elif isinstance(value, bool):
            yield f"{name} is {value}", True
        elif isinstance(value, str):
            yield f"{name} is {value!r}", True
        elif value is None:
            yield f"{name} is None", True
        elif isinstance(value, int | float) and default is not None and value != default:
            yield f"{name} is not {default}" if isinstance(default, int | float) else f"{name} is {value}", True
    q, k = sizes.get("q_seq"), sizes.get("k_seq")
    if q and k:
        yield "q_seq is not k_seq", q != k
        yield "q_seq > k_seq", q > k
        yield "q_seq < k_seq", q < k
    for name, size in sizes.items():
        yield f"{name} is odd", size % 2 == 1
        yield f"{name} is even", size % 2 == 0
        yield f"{name} is 1", size == 1
        yield f"{name} is more than 1", size > 1
    batch = _batch(draw)
    if batch is not None:
        yield "there is a batch axis", len(batch) > 0
        yield "there is no batch axis", len(batch) == 0
        yield "there are two batch axes", len(batch) > 1
        yield "a batch is larger than 1", math.prod(batch) > 1
    allowed = _allowed(draw)
    if allowed is not None:
        yield "something is hidden", not allowed.all()
        yield "some query may attend to nothing", not allowed.any(axis=-1).all()
    yield (
        "an input is NaN or infinite",
        any(isinstance(v, np.ndarray) and v.dtype.kind == "f" and not np.isfinite(v).all() for v in values.values()),
    )


def _config_features(config: ModelConfig) -> Iterator[tuple[str, bool]]:
    for name in ("norm_placement", "final_norm", "attention_bias", "output_projection", "activation", "causal",
                 "tied_head", "head_bias"):  # fmt: skip
        yield f"config.{name} is {getattr(config, name)!r}", True
    yield f"config.norm.variant is {config.norm.variant!r}", True
    yield f"config.norm.affine is {config.norm.affine}", True
    yield f"config.positions is {type(config.positions).__name__}", True
    yield "config.dropout is not 0", config.dropout != 0


def _batch(draw: Draw) -> tuple[int, ...] | None:
    """Give the batch axes of the result, if it is one that may have some."""
    if not has_batch(draw.call):
        return None
    path = next(iter(draw.right), "")
    names = axis_names(draw.call, path, draw.right[path].ndim)
    return draw.right[path].shape[: names.count("batch")]


def _allowed(draw: Draw) -> np.ndarray | None:
    """Give which keys each query may attend to, where there is attention."""
    values, sizes = bound_arguments(draw.call), sizes_of(draw.call)
    if "mask" not in values:
        return None
    q = sizes.get("q_seq", sizes.get("seq", 0))
    k = sizes.get("k_seq", sizes.get("seq", 0) if "seq" in sizes else q)
    allowed = np.ones((q, k), bool) if values["mask"] is None else np.asarray(values["mask"])
    if values.get("causal") or getattr(values.get("config"), "causal", False):
        allowed = allowed & np.tri(q, k, k - q, dtype=bool)
    return allowed


# ----------------------------------------------------------------------------------------------- where in the result


def _places(pairs: list[Pair], path: str) -> tuple[str, bool]:
    """Say how many numbers of the wrong results are wrong, and where they stand, if there is a name for that."""
    wrong = [(draw, difference(got, right) > draw.limit(path, right)) for draw, got, right in pairs]
    total, size = sum(int(mask.sum()) for _, mask in wrong), sum(mask.size for _, mask in wrong)
    if total == size:
        return "", False
    covers = [(int(sum(where.sum() for where in wheres)), text) for text, wheres in _covers(wrong, path)]
    count, text = min(covers, key=lambda cover: cover[0], default=(size, ""))
    if count == size:
        return f"there {total} of {size} numbers differ", False
    return f"there {total} of {size} numbers differ, all of them {text}{', and all of those' * (count == total)}", True


def _covers(wrong: list[tuple[Draw, np.ndarray]], path: str) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Give the places that have a name and hold all that is wrong."""

    def hold(wheres: list[np.ndarray | None]) -> bool:
        return all(where is not None and (mask <= where).all() for (_, mask), where in zip(wrong, wheres, strict=True))

    for text, place in _PLACES:
        if hold(wheres := [place(draw, mask) for draw, mask in wrong]):
            yield text, wheres
    names = axis_names(wrong[0][0].call, path, wrong[0][1].ndim)
    for axis in range(-1, -1 - min(mask.ndim for _, mask in wrong), -1):
        for text, chosen in _INDICES:
            if hold(wheres := [_along(mask, axis, chosen) for _, mask in wrong]):
                yield text.format(names[axis]), wheres


def _along(mask: np.ndarray, axis: int, chosen: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    n = mask.shape[axis]
    shape = [1] * mask.ndim
    shape[axis] = n
    return np.broadcast_to(chosen(np.arange(n), n).reshape(shape), mask.shape)


_INDICES: tuple[tuple[str, Callable[[np.ndarray, int], np.ndarray]], ...] = (
    ("first along {}", lambda i, n: i == 0),
    ("last along {}", lambda i, n: i == n - 1),
    ("after the first along {}", lambda i, n: i > 0),
    ("before the last along {}", lambda i, n: i < n - 1),
    ("at odd places along {} (1, 3, …)", lambda i, n: i % 2 == 1),
    ("at even places along {} (0, 2, …)", lambda i, n: i % 2 == 0),
    ("in the first half along {}", lambda i, n: i < (n + 1) // 2),
    ("in the second half along {}", lambda i, n: i >= n // 2),
)


def _rows(test: Callable[[np.ndarray], np.ndarray]) -> Callable[[Draw, np.ndarray], np.ndarray | None]:
    """Make a place of a test of what each query may attend to."""

    def place(draw: Draw, mask: np.ndarray) -> np.ndarray | None:
        allowed = _allowed(draw)
        if allowed is None or allowed.all() or mask.ndim < 2:
            return None
        rows = test(allowed)[..., None]
        try:
            return np.broadcast_to(rows, mask.shape)
        except ValueError:
            return None

    return place


def _hidden_elements(draw: Draw, mask: np.ndarray) -> np.ndarray | None:
    allowed = _allowed(draw)
    if allowed is None or allowed.shape[-2:] != mask.shape[-2:] or plain(draw.call.component) != "attention_weights":
        return None
    return np.broadcast_to(~allowed, mask.shape)


_PLACES: tuple[tuple[str, Callable[[Draw, np.ndarray], np.ndarray | None]], ...] = (
    ("in rows of queries that may attend to nothing", _rows(lambda allowed: ~allowed.any(axis=-1))),
    ("at hidden keys", _hidden_elements),
    ("in rows of queries from which some key is hidden", _rows(lambda allowed: ~allowed.all(axis=-1))),
    ("in rows of queries that may attend to every key", _rows(lambda allowed: allowed.all(axis=-1))),
    ("in batches after the first", lambda draw, mask: _after_the_first_batch(draw, mask)),
)


def _after_the_first_batch(draw: Draw, mask: np.ndarray) -> np.ndarray | None:
    batch = _batch(draw)
    if not batch or math.prod(batch) < 2:
        return None
    where = np.arange(math.prod(batch)).reshape(batch) > 0
    return np.broadcast_to(where.reshape(batch + (1,) * (mask.ndim - len(batch))), mask.shape)

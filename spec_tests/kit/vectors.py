"""Vectors: calls of every component with what should come of them, in files that any language can read.

A folder holds, for each component, `softmax.inputs.safetensors` and `softmax.expected.safetensors`, and beside them
`manifest.json` (in the form of vectors.schema.json), which says how the tensors make calls, how far an answer may be
off, and what every file's SHA-256 is; its own stands in `manifest.json.sha256`. docs/en/check/vectors.md
describes it all.

A case is written only if `reference.numpy` and `reference.torch` agree about it, in float64 and in float32, to a tenth
of the bound that an answer is judged by; so do the gradients of the formulas and those of torch's autograd, which the
slope of the function confirms. Both also keep their manners: the same call twice gives the same, and no argument is
written to. Bad input is written only if both refuse it.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import reference.numpy
from reference import SPEC_VERSION
from reference.checkpoint import write_whole
from reference.components import COMPONENTS
from reference.parameters import leaves
from reference.shape_checks import unchecked
from spec_tests import bounds, test_contract
from spec_tests.judge import Mismatch, SubjectRaised, close
from spec_tests.kit.runner import CannotRun
from spec_tests.kit.tensor_files import NAMES, write_tensors
from spec_tests.kit.vector_cases import Case, Draw, all_cases, arguments_of
from spec_tests.kit.wire import encode
from spec_tests.subjects.contract import VJP, Call, gradient_arguments, is_gradient
from spec_tests.subjects.loading import load
from spec_tests.subjects.subject import Subject

FORMAT = "transformer-spec vectors 1"
MANIFEST = "manifest.json"
DIGEST = "manifest.json.sha256"
METADATA = {"format": FORMAT, "spec_version": SPEC_VERSION}

PRECISIONS = {"float64": np.dtype(np.float64), "float32": np.dtype(np.float32)}
SHARE = 0.1
"""Our own two backends must agree to this share of the bound, here as in the properties."""

TELLING = 1 / 8
"""A bound wider than this share of the largest number would let wrong answers pass; then there is none.

In float32 that is so of many gradients of models: their bounds allow for what may cancel on the way back.
"""
SMALL = 1e-3
"""A bound below this tells right from wrong whatever the numbers: inputs are about 1."""


def write_vectors(folder: Path) -> dict[str, Any]:
    """Write the vectors into a folder, and give their manifest. Raises CannotRun where a case is not agreed upon."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CannotRun(f"{folder}: it exists and is not an empty folder; choose another name")
    inputs: dict[str, dict[str, np.ndarray]] = {component: {} for component in COMPONENTS}
    expected: dict[str, dict[str, np.ndarray]] = {component: {} for component in COMPONENTS}
    backends = _backends()
    entries = []
    for case in all_cases():
        component = case.call.component
        try:
            entries.append(_entry(case, backends, inputs[component], expected[component]))
        except Mismatch as problem:
            raise CannotRun(f"{case.name}: not agreed upon, so nothing is written: {problem}") from None
    try:
        folder.mkdir(exist_ok=True)
        files = {}
        for component in COMPONENTS:
            for kind, tensors in (("inputs", inputs[component]), ("expected", expected[component])):
                path = folder / f"{component}.{kind}.safetensors"
                write_tensors(path, tensors, METADATA)
                content = path.read_bytes()
                files[path.name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        manifest = {**METADATA, "files": files, "cases": entries}
        content = _as_text(manifest).encode()
        write_whole(folder / MANIFEST, [content])
        write_whole(folder / DIGEST, [f"{hashlib.sha256(content).hexdigest()}  {MANIFEST}\n".encode()])
    except OSError as problem:
        raise CannotRun(f"{folder}: {problem.strerror}") from problem
    return manifest


def _as_text(manifest: Mapping[str, Any]) -> str:
    """Give the manifest as JSON with a line for each file and each case."""
    files = (f"{json.dumps(name)}: {json.dumps(stated)}" for name, stated in manifest["files"].items())
    cases = (json.dumps(case, allow_nan=False) for case in manifest["cases"])
    head = "".join(f"{json.dumps(name)}: {json.dumps(manifest[name])},\n" for name in METADATA)
    lines = ",\n".join
    return f'{{{head}"files": {{\n{lines(files)}\n}},\n"cases": [\n{lines(cases)}\n]}}\n'


def _backends() -> list[Subject]:
    found = []
    for name in ("reference.numpy", "reference.torch"):
        for dtype in PRECISIONS.values():
            found.append(load(name).subject)
            found[-1].dtype = dtype
    return found


def _entry(
    case: Case, backends: list[Subject], inputs: dict[str, np.ndarray], expected: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Check one case, put its tensors with those of its component, and describe it for the manifest."""
    component = case.call.component
    entry = {
        "name": case.name,
        "component": component,
        "about": case.about,
        "inputs": f"{component}.inputs.safetensors",
        "arguments": {
            name: _described(value, f"{case.name}/{name}", inputs) for name, value in arguments_of(case.call).items()
        },
    }
    if case.refused:
        _check_refused(case.call, backends)
        return entry | {"refused": True}
    entry |= {"expected": f"{component}.expected.safetensors"}
    with unchecked():
        result, entry["results"] = _agreed(case.call, case.of, case.name, backends, expected)
        if case.gradient:
            cotangent = Draw(f"{case.name} cotangent").numbers(result.shape, (0.125, 0.0625))
            gradient = Call(component + VJP, (cotangent, *case.call.args), case.call.options)
            entry["cotangent"] = _described(cotangent, f"{case.name}/cotangent", inputs)
            _, entry["gradients"] = _agreed(gradient, case.of, case.name, backends, expected)
    return entry


def _described(value: Any, name: str, tensors: dict[str, np.ndarray]) -> Any:
    """Give a value as JSON in the way of `wire`; an array goes with the tensors and is named."""
    if isinstance(value, np.ndarray):
        tensors[name] = value
        return {"$": "tensor", "name": name}
    if isinstance(value, Mapping):
        items = {key: _described(part, f"{name}.{key}", tensors) for key, part in value.items()}
        return {"$": "dict", "items": items}
    if isinstance(value, list):
        return [_described(part, f"{name}.{place}", tensors) for place, part in enumerate(value)]
    return encode(value)


def _agreed(
    call: Call, of: str, name: str, backends: list[Subject], expected: dict[str, np.ndarray]
) -> tuple[Any, list[dict[str, Any]]]:
    """Give what should come of a call, checked, and the description of its arrays, which go with the others."""
    should = _evaluate(call)
    arrays = named_arrays(call.component, should)
    per_eps = _bounds(call, arrays)
    within = {
        dtype: {path: _rounded_up(eps * limit) for path, limit in per_eps.items()} for dtype, eps in _precisions(call)
    }
    for subject in backends:
        if subject.dtype.name in within:
            _check(subject, call, of, arrays, within[subject.dtype.name])
    described = []
    for path, array in arrays.items():
        if not _tells(within["float64"][path], array):
            raise Mismatch(f"the bound of {path} is so wide that wrong answers pass: {within['float64'][path]:.2g}")
        expected[f"{name}/{path}"] = array
        described.append(
            {
                "tensor": f"{name}/{path}",
                "dtype": NAMES[array.dtype],
                "shape": list(array.shape),
                "within": {dtype: limits[path] for dtype, limits in within.items() if _tells(limits[path], array)},
            }
        )
    return should, described


def named_arrays(component: str, result: Any) -> dict[str, np.ndarray]:
    """Name the arrays of a result: `result`, `result.0`, `gradient.x`, `gradient.params.blocks.0.norm_1.gamma`."""
    if is_gradient(component):
        names = (f"gradient.{name}" for name in gradient_arguments(component))
        tree = dict(zip(names, result, strict=True))
    else:
        tree = {"result": list(result) if isinstance(result, tuple) else result}
    return {path: np.asarray(array) for path, array in leaves(tree) if array is not None}


def _precisions(call: Call) -> Iterator[tuple[str, float]]:
    """Give the dtypes that an answer may have: float32 only where that can hold every input exactly."""
    given = [value for _, value in leaves([list(call.args), call.options])]
    arrays = [value for value in given if isinstance(value, np.ndarray) and value.dtype.kind == "f"]
    for name, dtype in PRECISIONS.items():
        with np.errstate(over="ignore"):
            if all(np.array_equal(array, array.astype(dtype), equal_nan=True) for array in arrays):
                yield name, float(np.finfo(dtype).eps)


def _check(subject: Subject, call: Call, of: str, arrays: dict[str, np.ndarray], within: dict[str, float]) -> None:
    what = f"{subject.name} in {subject.dtype.name}: "
    got = named_arrays(call.component, subject.call(call.component, *call.args, **call.options))
    for path, should in arrays.items():
        close(got[path], should, within=SHARE * within[path], what=what + path)
    if subject.dtype != np.float64:
        return
    for manner in _manners(call):
        manner.hypothesis.inner_test(subject=subject, case=of, data=_Given(call))
    if is_gradient(call.component) and not subject.by_autograd(call.component):
        test_contract.test_gradients_are_those_of_finite_differences.hypothesis.inner_test(
            subject=subject, case=of, data=_Given(call), generator=np.random.default_rng(0)
        )


def _manners(call: Call) -> list[Any]:
    if is_gradient(call.component):
        return [
            test_contract.test_the_same_cotangent_twice_gives_the_same_gradient,
            test_contract.test_the_gradient_leaves_its_arguments_as_they_were,
        ]
    return [
        test_contract.test_the_same_call_twice_gives_the_same_result,
        test_contract.test_arguments_are_left_as_they_were,
    ]


class _Given:
    """Stands for Hypothesis' `data` in a property that draws one call: it gives this one."""

    def __init__(self, call: Call) -> None:
        self.call = call

    def draw(self, strategy: Any) -> Call:
        return self.call


def _check_refused(call: Call, backends: list[Subject]) -> None:
    for subject in backends:
        if subject.dtype != np.float64:
            continue
        try:
            with subject.expecting_an_error():
                subject.call(call.component, *call.args, **call.options)
        except SubjectRaised:
            continue
        raise Mismatch(f"{subject.name} accepted bad input", got=subject.last_result, should="an error")


def _evaluate(call: Call) -> Any:
    with np.errstate(all="ignore"):
        return getattr(reference.numpy, call.component)(*call.args, **call.options)


# ----------------------------------------------------------------------------------------------- bounds


def _bounds(call: Call, arrays: dict[str, np.ndarray]) -> dict[str, float]:
    """Give the absolute bound of each array, for a dtype of eps 1; 0 for what is not floating."""
    if all(array.dtype.kind != "f" for array in arrays.values()):
        return dict.fromkeys(arrays, 0.0)
    at = _off_the_edge(call)
    return dict(zip(arrays, bounds.bounds(at, _evaluate(at), eps=1.0).values(), strict=True))


def _off_the_edge(call: Call) -> Call:
    """Give a call right beside this one at which a bound can be measured.

    Where logits tie, moving one changes which is first, and the measured condition would be that of the jump; numbers
    that are not finite have no size.
    """
    if call.component == "next_token_distribution":
        logits = call.args[0]
        return Call(call.component, (logits - np.arange(logits.shape[-1]) * 2.0**-12,), call.options)

    if call.component == "perplexity":  # far out it is infinite
        total_loss, n_tokens = call.args
        return Call(call.component, (min(total_loss, 30.0 * n_tokens), n_tokens), {})

    def finite(array: np.ndarray) -> np.ndarray:
        return np.nan_to_num(array, nan=0.0, posinf=30.0, neginf=-30.0) if array.dtype.kind == "f" else array

    if call.component.removesuffix(VJP) in ("gelu", "cross_entropy"):
        return call.mapped(finite)
    return call


def _tells(limit: float, array: np.ndarray) -> bool:
    """Say whether an array can be judged by a bound: whether a wrong one would be found."""
    finite = np.abs(array[np.isfinite(array)])
    return bool(finite.size == 0 or limit <= max(SMALL, TELLING * finite.max()))


def _rounded_up(bound: float) -> float:
    if not math.isfinite(bound):
        raise Mismatch("it has no finite bound", got=str(bound))
    rounded = float(f"{bound:.1e}")
    return rounded if rounded >= bound else float(f"{1.05 * bound:.1e}")

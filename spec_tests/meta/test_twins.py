"""The twins are alike from outside and strangers inside: one face, two independent bodies."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import jaxtyping
import pytest

import reference
import reference.numpy
import reference.torch
from reference.axes import AXES
from reference.components import COMPONENTS
from spec_tests.subjects.subject import array_annotations

ROOT = Path(reference.__file__).parent
TWINS = {"numpy": reference.numpy, "torch": reference.torch}
STEMS = sorted({component.stem for component in COMPONENTS.values()})
DIFFERENTIABLE = [name for name, component in COMPONENTS.items() if component.differentiable]

EXTRA_IN_TORCH = {
    ("causal_mask", "device"): "NumPy has no devices",
    ("sinusoidal_positions", "device"): "NumPy has no devices",
}
"""Arguments of torch alone, each with its reason."""

OTHER_TYPE = {("sinusoidal_positions", "dtype"): "each library has dtypes of its own"}
"""Arguments whose annotations differ, each with its reason."""

MORE_AXES = {"width": "the result of multi_head_attention: d_model wide, or heads_d_v where there is no w_o"}
"""Axes of public signatures that are no axis of the glossary, each with its reason."""

LOOPS = {
    r"^\(": "over options that are checked alike, written out",
    r"\.(items|values)\(\)$|^leaves\(\w+\)$": "over named arrays: the parts of a call, the leaves of a tree",
    r"\bblocks\b|\bblock_vjps\b": "over the blocks, which are one after the other by their nature",
    r"\.shape\b|^enumerate\(shape\)$": "over the axes of a shape",
    r"^params$": "over the names in a tree of parameters",
    r"^ids$": "over the ids of a prompt, to name one that is unknown",
    r"^batches$": "over the batches of a data set, which are arrays of their own",
    r"^range\(max_new_tokens\)$": "over the new tokens, each of which follows from those before it",
    r"^range\(moments\.step, recipe\.steps\)$": "over the updates, each of which starts from the one before it",
    r"^range\(1, width \+ 1\)$": "over the divisors that an error message offers",
}
"""What the specification may loop over in Python; everything else is arithmetic on whole arrays."""


def parameters(backend: str, name: str) -> list[inspect.Parameter]:
    """Give a component's parameters, without those that only torch has."""
    found = inspect.signature(getattr(TWINS[backend], name)).parameters.values()
    return [p for p in found if backend == "numpy" or (name, p.name) not in EXTRA_IN_TORCH]


def described(hint: Any) -> str:
    """Write an annotation without the library's own kind of array: `Float[*batch seq d_model] | None`."""
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        return " | ".join(described(part) for part in get_args(hint))
    if get_origin(hint) is tuple:
        return f"tuple[{', '.join(described(part) for part in get_args(hint))}]"
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return f"{hint.__name__.split('[')[0]}[{hint.dim_str}]"
    return str(hint)


def annotations(backend: str, name: str) -> dict[str, str]:
    """Give the annotations of a component by argument, its result's among them."""
    signature = inspect.signature(getattr(TWINS[backend], name))
    arguments = {p.name: described(p.annotation) for p in parameters(backend, name)}
    return {**arguments, "return": described(signature.return_annotation)}


def sources(*folders: str) -> Iterator[Path]:
    """Give the Python files of `reference`, or of some of its folders."""
    for folder in folders or ("",):
        yield from sorted((ROOT / folder).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Give the modules that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def under(modules: set[str], package: str) -> set[str]:
    """Give those of the modules that belong to a package."""
    return {module for module in modules if f"{module}.".startswith(f"{package}.")}


# -------------------------------------------------------------------------------------------- one face


def test_the_manifest_lists_what_the_numpy_twin_offers() -> None:
    """The public names of `reference.numpy` are the components, and the gradients of those that have one."""
    gradients = [f"{name}_vjp" for name in DIFFERENTIABLE]
    assert sorted(reference.numpy.__all__) == sorted([*COMPONENTS, *gradients])


def test_the_torch_twin_offers_every_component() -> None:
    """What `reference.torch` offers beyond the components is modules and ways to fill them."""
    more = set(reference.torch.__all__) - set(COMPONENTS)
    assert set(COMPONENTS) <= set(reference.torch.__all__)
    assert {name for name in more if name[0].islower()} == {"load_params", "export_params"}


@pytest.mark.parametrize("backend", TWINS)
@pytest.mark.parametrize("stem", STEMS)
def test_each_component_lives_in_the_file_of_its_stem(backend: str, stem: str) -> None:
    """The two files of a stem, and its file of properties, have the same name."""
    module = f"reference.{backend}.{stem}"
    importlib.import_module(module)
    assert (ROOT.parent / "spec_tests" / f"test_{stem}.py").is_file()
    for component in COMPONENTS.values():
        if component.stem == stem:
            assert getattr(TWINS[backend], component.name).__module__ == module


@pytest.mark.parametrize("name", COMPONENTS)
def test_arguments_have_the_same_names_order_kinds_and_defaults(name: str) -> None:
    """The twins can be called in exactly the same way."""
    numpys, torchs = (
        [(p.name, p.kind, p.default) for p in parameters(backend, name)] for backend in ("numpy", "torch")
    )
    assert numpys == torchs


@pytest.mark.parametrize("name", COMPONENTS)
def test_annotations_have_the_same_axes(name: str) -> None:
    """Every argument and result has the same kind of numbers and the same axis string in both twins."""
    numpys, torchs = (annotations(backend, name) for backend in ("numpy", "torch"))
    for argument in numpys:
        if (name, argument) not in OTHER_TYPE:
            assert numpys[argument] == torchs[argument], argument


def test_no_exception_is_without_use() -> None:
    """Each exception stands for a difference that is there."""
    for name, argument in EXTRA_IN_TORCH:
        assert argument in inspect.signature(getattr(reference.torch, name)).parameters
        assert argument not in inspect.signature(getattr(reference.numpy, name)).parameters
    for name, argument in OTHER_TYPE:
        assert annotations("numpy", name)[argument] != annotations("torch", name)[argument]


@pytest.mark.parametrize("backend", TWINS)
@pytest.mark.parametrize("name", COMPONENTS)
def test_axes_are_those_of_the_glossary(backend: str, name: str) -> None:
    """A public signature names no axis that the glossary does not explain."""
    signature = inspect.signature(getattr(TWINS[backend], name))
    hints = [p.annotation for p in signature.parameters.values()] + [signature.return_annotation]
    hints += [part for hint in hints for part in get_args(hint)]
    used = {axis.lstrip("*#") for hint in hints for a in array_annotations(hint) for axis in a.dim_str.split()}
    assert used <= set(AXES) | set(MORE_AXES)


@pytest.mark.parametrize("backend", TWINS)
@pytest.mark.parametrize("name", COMPONENTS)
def test_a_component_says_what_it_means_and_whence_it_comes(backend: str, name: str) -> None:
    """A component's docstring is a sentence, a formula and a source."""
    says_what_it_means(getattr(TWINS[backend], name))


def says_what_it_means(function: Any) -> None:
    """Hold a docstring to its parts."""
    text = inspect.getdoc(function) or ""
    first = text.splitlines()[0] if text else ""
    assert re.match(r"[A-Z].*[.;:]$", text.split("\n\n")[0].replace("\n", " ")), first
    assert text.count("$$") >= 2, "no formula"
    assert "\n\nSource: " in text, "no source"


# ------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_gradient_stands_beside_its_component(name: str) -> None:
    """`<name>_vjp` lives in the file of <name> and takes the result's cotangent, then the very same arguments."""
    forward, backward = (getattr(reference.numpy, each) for each in (name, f"{name}_vjp"))
    assert backward.__module__ == forward.__module__
    cotangent, *others = inspect.signature(backward).parameters.values()
    assert cotangent.name == "cotangent"
    assert described(cotangent.annotation) == annotations("numpy", name)["return"]
    faces = [
        [(p.name, p.kind, p.default, described(p.annotation)) for p in those]
        for those in (others, inspect.signature(forward).parameters.values())
    ]
    assert faces[0] == faces[1]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_gradient_has_the_axes_of_its_argument(name: str) -> None:
    """A vjp gives a tuple: one gradient for each float array and parameter tree, in the order of the signature."""
    arguments = annotations("numpy", name)
    result = arguments.pop("return")
    assert result.startswith("Float")
    learning = [hint for argument, hint in arguments.items() if hint.startswith("Float") or argument == "params"]
    assert annotations("numpy", f"{name}_vjp")["return"] == f"tuple[{', '.join(learning)}]"


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_gradient_says_what_it_computes(name: str) -> None:
    """A gradient's docstring is a sentence, the formula that the code follows and a source."""
    says_what_it_means(getattr(reference.numpy, f"{name}_vjp"))


# ------------------------------------------------------------------------------------- two strangers


@pytest.mark.parametrize(("backend", "other"), [("numpy", "torch"), ("torch", "numpy")])
def test_the_twins_do_not_import_each_other(backend: str, other: str) -> None:
    """Neither twin borrows from the other: their agreement means something."""
    for path in sources(backend):
        assert not under(imported(path), f"reference.{other}"), path.name


def test_the_numpy_twin_does_not_import_torch() -> None:
    """No file of the specification names torch."""
    for path in sources("numpy"):
        assert not under(imported(path), "torch"), path.name


def test_neutral_modules_belong_to_neither_twin() -> None:
    """What both twins import imports neither of them."""
    for name in ("axes", "config", "parameters", "components", "data", "checkpoint", "recipe", "runs", "shape_checks"):
        found = imported(ROOT / f"{name}.py")
        assert not under(found, "reference.numpy") | under(found, "reference.torch") | under(found, "torch"), name


def test_the_reference_does_not_import_its_tests() -> None:
    """Every arrow points one way: nothing in `reference` imports `spec_tests`."""
    for path in sources():
        assert not under(imported(path), "spec_tests"), path.name


def test_annotations_are_not_turned_to_strings() -> None:
    """No file imports `annotations` from `__future__`, which would switch the shape checks off in silence."""
    for path in sources():
        assert "__future__" not in imported(path), path.name


def test_importing_the_specification_imports_neither_torch_nor_scipy() -> None:
    """`import reference.numpy` is light: NumPy, jaxtyping and beartype, and no JAX either where it is installed."""
    code = "import sys, reference.numpy; print(*sorted({'torch', 'scipy', 'matplotlib', 'jax'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("path", list(sources("numpy")), ids=lambda path: path.stem)
def test_the_specification_computes_on_whole_arrays(path: Path) -> None:
    """No Python loop runs over positions, tokens, heads or sequences."""
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.While), f"line {node.lineno}: while"
        if isinstance(node, ast.For | ast.comprehension):
            over = ast.unparse(node.iter)
            assert any(re.search(pattern, over) for pattern in LOOPS), f"a loop over {over}"

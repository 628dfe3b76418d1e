"""Say what a component is: for `list` and `explain`, and the file that `new` writes."""

import inspect
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import reference.numpy
from reference.components import COMPONENTS
from spec_tests.spec import Property, all_properties
from spec_tests.subjects.contract import VJP, array_annotations, gradient_arguments, is_gradient, signature


def first_sentence(component: str) -> str:
    """Give the sentence that the reference's docstring begins with."""
    return _doc(component).split("\n\n", 1)[0].replace("\n", " ")


def properties(component: str) -> list[Property]:
    """Give the properties of a component."""
    return [prop for prop in all_properties() if prop.component == component]


def plain_signature(component: str) -> str:
    """Give the signature without its annotations: `layer_norm(x, gamma, beta, *, eps=1e-05)`; of a gradient too."""
    bare = [p.replace(annotation=p.empty) for p in signature(component).parameters.values()]
    return f"{component}{inspect.Signature(bare)}"


def shapes(component: str) -> Iterator[tuple[str, str]]:
    """Give each argument, and the result, with its kind and its axes."""
    function = _function(component)
    for name, parameter in inspect.signature(function).parameters.items():
        yield name, _kind(parameter.annotation)
    yield "->", _kind(function.__annotations__["return"])


def explanation(component: str) -> str:
    """Give all there is to say about a component, as lines of text."""
    about = COMPONENTS[component]
    stated = properties(component)
    width = max(len(name) for name, _ in shapes(component))
    lines = [
        f"{component}   {about.formula}",
        "",
        *_doc(component).split("\n"),
        "",
        f"def {plain_signature(component)}",
        *(f"    {name:<{width}}  {kind}" for name, kind in shapes(component)),
        "",
        *_gradient_lines(component),
        counted(stated),
        *(f"    {prop.id}{'   (gradient)' if prop.gradient else ''}\n        {prop.sentence}" for prop in stated),
        "",
        f"source: {about.source}",
        f"meaning: reference/numpy/{about.stem}.py   production: reference/torch/{about.stem}.py",
    ]
    return "\n".join(lines)


def _gradient_lines(component: str) -> Iterator[str]:
    """Say how the gradient is called, what it is of, and its formulas."""
    gradient = component + VJP
    if not is_gradient(gradient):
        return
    yield f"def {plain_signature(gradient)}"
    yield f"    ->  ({''.join(f'{name}, ' for name in gradient_arguments(gradient)).rstrip(' ')})"
    for paragraph in (inspect.getdoc(getattr(reference.numpy, gradient)) or "").split("\n\n"):
        if not paragraph.startswith(("Raises ", "Source: ")):
            yield from (f"    {line}" for line in paragraph.split("\n"))
            yield ""


def counted(stated: list[Property], width: int = 0) -> str:
    """Say how many properties there are, and how many of them are about gradients."""
    gradients = sum(prop.gradient for prop in stated)
    return f"{len(stated):>{width}} properties" + (f", {gradients} of the gradient" if gradients else "")


def template() -> str:
    """Give a subject file to fill in, with every component in it."""
    parts = [TEMPLATE_HEAD]
    for component in COMPONENTS:
        given = "; ".join(f"{name}: {kind}" for name, kind in shapes(component) if _is_array(component, name))
        about = f"    # {given} -> {_kind(_function(component).__annotations__['return'])}\n"
        parts.append(
            f"def {plain_signature(component)}:\n"
            f'    """{first_sentence(component)}"""\n'
            f"{about if len(about) < 110 else _folded(about)}"
            f"    raise NotImplementedError\n"
        )
    return "\n\n".join(parts)


TEMPLATE_HEAD = '''\
"""A subject for the transformer specification: fill in what you have, delete the rest.

    transformer-spec check THIS_FILE
    transformer-spec explain layer_norm

Functions get NumPy arrays (copies, theirs to change) and may return anything that numpy.asarray reads. What raises
NotImplementedError counts as unsupported, and so does an option that a signature lacks.

Gradients are checked where there are any. `gelu_vjp(cotangent, x, *, approximate="none")` beside `gelu` returns a tuple
with the gradient of sum(cotangent * gelu(x)) for each floating argument, in their order, and None for one that is None;
`transformer-spec explain gelu` shows it. Functions of tensors need none: autograd finds theirs.
"""

# dtype = "float32"  # what the functions compute in, if it is not float64
# arrays = "torch"   # to be given tensors instead of NumPy arrays; or "jax"
# conventions = {}   # what is read otherwise than here; `transformer-spec probe THIS_FILE` finds it
'''


def _folded(line: str) -> str:
    parts = line.strip().removeprefix("# ").split("; ")
    return "".join(f"    # {part}\n" for part in parts)


def _function(component: str) -> Any:
    return getattr(reference.numpy, component)


def _doc(component: str) -> str:
    return inspect.getdoc(_function(component)) or ""


def _is_array(component: str, name: str) -> bool:
    if name == "->":
        return False
    return bool(array_annotations(inspect.signature(_function(component)).parameters[name].annotation))


def _kind(hint: Any) -> str:
    """Say in words what an annotation asks for: `float [*batch seq d_model] or None`."""
    arrays = [f"{_number(a)} [{a.dim_str.replace('#', '')}]" for a in array_annotations(hint)]
    if getattr(hint, "__origin__", None) is tuple:
        return "(" + ", ".join(_kind(part) for part in hint.__args__) + ")"
    if "dtype" in str(hint) and not arrays:
        return "dtype or None"
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if not arrays:
        return getattr(hint, "__name__", str(hint)).replace("typing.", "")
    return " or ".join([*arrays, *(["None"] if type(None) in getattr(hint, "__args__", ()) else [])])


def _number(annotation: Any) -> str:
    kinds = " ".join(annotation.dtypes)
    return "bool" if "bool" in kinds else "float" if "float" in kinds else "int"

"""How mkdocstrings reads our signatures and docstrings: shape strings stay quoted, and each formula stands alone."""

import ast
import re
from typing import Any

import griffe


def _is_shaped(node: ast.expr) -> bool:
    """Say whether an annotation has the form of jaxtyping's, `Float[Tensor, "*batch d_model"]`, anywhere in it."""
    return any(
        isinstance(n, ast.Subscript)
        and isinstance(n.slice, ast.Tuple)
        and len(n.slice.elts) == 2
        and isinstance(n.slice.elts[1], ast.Constant)
        and isinstance(n.slice.elts[1].value, str)
        for n in ast.walk(node)
    )


def _quoted(node: ast.expr, parent: griffe.Object) -> griffe.Expr | str | None:
    return griffe.get_expression(node, parent=parent, parse_strings=False)


class Reading(griffe.Extension):
    """Changes what griffe has read where it has read it amiss."""

    def on_function_instance(self, *, node: Any, func: griffe.Function, **_: Any) -> None:
        """Quote shapes, and put an empty line between formulas that follow each other."""
        if func.docstring is not None:
            func.docstring.value = re.sub(r"\$\$\n+(\s*)\$\$", r"$$\n\n\1$$", func.docstring.value)
        if not isinstance(node, ast.FunctionDef):
            return
        a = node.args
        for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg):
            if arg is not None and arg.annotation is not None and _is_shaped(arg.annotation):
                func.parameters[arg.arg].annotation = _quoted(arg.annotation, func.parent)
        if node.returns is not None and _is_shaped(node.returns):
            func.returns = _quoted(node.returns, func.parent)

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **_: Any) -> None:
        """Quote shapes."""
        if isinstance(node, ast.AnnAssign) and _is_shaped(node.annotation):
            attr.annotation = _quoted(node.annotation, attr.parent)

"""The mutants of a file: one arithmetic operator, comparison or number is another."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.ast.ast_query import ASTQuery
from cosmic_ray.mutating import mutate_code

Place = tuple[int, int]


@dataclass(frozen=True)
class Mutant:
    """One change of one place."""

    operator: str
    occurrence: int
    start: Place
    end: Place
    function: str

    def code(self, source: str) -> str:
        """Give the source with the change."""
        code = mutate_code(source, cosmic_ray.plugins.get_operator(self.operator)(), self.occurrence)
        if code is None:
            raise ValueError(f"{self.operator} has no occurrence {self.occurrence} in this source")
        return code


def mutants_of(source: str, operators: Sequence[str]) -> Iterator[Mutant]:
    """Give the mutants that these operators (regular expressions) make, in code alone."""
    tree, computes = get_ast(source), Computing(ast.parse(source))
    for name in sorted(cosmic_ray.plugins.operator_names()):
        if not any(re.fullmatch(pattern, name) for pattern in operators):
            continue
        operator = cosmic_ray.plugins.get_operator(name)()
        places = ((node, *place) for node in ast_nodes(tree) for place in operator.mutation_positions(node))
        for occurrence, (node, start, end) in enumerate(places):
            if start in computes:
                yield Mutant(name, occurrence, start, end, ASTQuery(node).get_definition_name() or "")


class Computing:
    """The places of a module that compute: not annotations, docstrings, messages or imports."""

    def __init__(self, tree: ast.Module) -> None:
        self.inside: list[tuple[Place, Place]] = []
        self.outside: list[tuple[Place, Place]] = []
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(args=arguments, body=body):
                    self.outside.append((_start(node), _start(body[0])))
                    self.inside += map(_span, [d for d in (*arguments.defaults, *arguments.kw_defaults) if d])
                case ast.Expr(value=ast.Constant(value=str())) | ast.Raise() | ast.JoinedStr() | ast.ImportFrom():
                    self.outside.append(_span(node))
                case ast.AnnAssign(annotation=annotation):
                    self.outside.append(_span(annotation))
                case ast.Dict(keys=keys, values=values):  # the ** of {**a} is no power
                    unpacked = [_start(value) for key, value in zip(keys, values, strict=True) if key is None]
                    self.outside += [((line, column - 2), (line, column)) for line, column in unpacked]
                case ast.If(body=[first, *_, ast.Raise() as last]):  # what is worked out for a message
                    self.outside.append((_start(first), _span(last)[1]))

    def __contains__(self, place: Place) -> bool:
        def within(spans: list[tuple[Place, Place]]) -> bool:
            return any(start <= place < end for start, end in spans)

        return within(self.inside) or not within(self.outside)


def lines_about(source: str, place: Place) -> range:
    """Give the lines of the innermost statement there, but for those of statements inside it; all for a module's own.

    Who runs none of them cannot notice what is changed there. Of a function and a match, all lines count.
    """
    around = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt) and _holds(node, place)]
    if not any(isinstance(node, ast.FunctionDef) for node in around):
        return range(1, source.count("\n") + 2)
    innermost = max(around, key=_start)
    end = innermost.end_lineno or 0
    if isinstance(innermost, ast.If | ast.For | ast.While | ast.With):
        end = max(innermost.lineno, innermost.body[0].lineno - 1)
    return range(innermost.lineno, end + 1)


def _holds(node: ast.AST, place: Place) -> bool:
    start, end = _span(node)
    return start <= place < end


def _start(node: ast.AST) -> Place:
    return node.lineno, node.col_offset


def _span(node: ast.AST) -> tuple[Place, Place]:
    return _start(node), (node.end_lineno, node.end_col_offset)

"""Short constructors for the syntax that AutoGraph generates.

Generated nodes have no position of their own; the transformer copies the position of the
statement they stand for, so that tracebacks show the user's line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any

# Generated names start with this, so they never meet a name of the user's.
PREFIX = "ag__"


def name(identifier: str) -> ast.Name:
    """Reads a variable."""
    return ast.Name(identifier, ast.Load())


def assign(identifier: str, value: ast.expr) -> ast.Assign:
    """`identifier = value`."""
    return ast.Assign([ast.Name(identifier, ast.Store())], value)


def runtime(attribute: str) -> ast.Attribute:
    """A member of the runtime library: `ag__.attribute`."""
    return ast.Attribute(name(PREFIX), attribute, ast.Load())


def call(attribute: str, *args: ast.expr, **keywords: ast.expr) -> ast.Call:
    """Calls a function of the runtime library."""
    return ast.Call(
        runtime(attribute), list(args), [ast.keyword(key, value) for key, value in keywords.items()]
    )


def parameters(names: Iterable[str] = ()) -> ast.arguments:
    """A plain positional parameter list."""
    return ast.arguments(
        posonlyargs=[], args=[ast.arg(n) for n in names], kwonlyargs=[], kw_defaults=[], defaults=[]
    )


def thunk(body: ast.expr) -> ast.Lambda:
    """`lambda: body`."""
    return ast.Lambda(parameters(), body)


def function(identifier: str, params: Sequence[str], body: list[ast.stmt]) -> ast.FunctionDef:
    """`def identifier(params): body`."""
    definition = ast.FunctionDef(
        name=identifier, args=parameters(params), body=body or [ast.Pass()], decorator_list=[]
    )
    # Required from Python 3.12 on, ignored (and unknown to type checkers) before.
    definition.type_params = []  # type: ignore[attr-defined, unused-ignore]
    return definition


def negation(value: ast.expr) -> ast.UnaryOp:
    """`not value`."""
    return ast.UnaryOp(ast.Not(), value)


def none_of(flags: Sequence[str]) -> ast.expr:
    """`not a`, or `not a and not b` for several flags."""
    terms: list[ast.expr] = [negation(name(flag)) for flag in flags]
    return terms[0] if len(terms) == 1 else ast.BoolOp(ast.And(), terms)


def constants(values: Iterable[Any]) -> ast.Tuple:
    """A tuple of constants."""
    return ast.Tuple([ast.Constant(v) for v in values], ast.Load())


def located(nodes: list[ast.stmt], origin: ast.AST) -> list[ast.stmt]:
    """Gives generated statements the position of the statement they replace: its first line."""
    for node in nodes:
        if not hasattr(node, "lineno"):
            ast.copy_location(node, origin)
            if node.end_lineno != node.lineno:
                head = getattr(origin, "test", None) or getattr(origin, "iter", None)
                same_line = head is not None and head.end_lineno == node.lineno
                node.end_lineno = node.lineno
                node.end_col_offset = head.end_col_offset if same_line else node.col_offset + 1  # type: ignore[union-attr]
    return nodes


def fill_positions(tree: ast.AST) -> None:
    """Gives every node without a position the first line of the node around it.

    `ast.fix_missing_locations` would pass on the last line too, and Python reports a method call
    at the line where its attribute ends.
    """
    waiting = [(tree, (1, 0, 1, 0))]
    while waiting:
        node, around = waiting.pop()
        if "lineno" in node._attributes:
            if not hasattr(node, "lineno"):
                node.lineno, node.col_offset, node.end_lineno, node.end_col_offset = around  # type: ignore[attr-defined]
            line, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
            one_line = node.end_lineno == line  # type: ignore[attr-defined]
            around = line, column, line, node.end_col_offset if one_line else column + 1  # type: ignore[attr-defined]
        waiting.extend((child, around) for child in ast.iter_child_nodes(node))

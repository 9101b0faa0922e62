"""Constructors for the syntax nodes that AutoGraph generates.

Generated nodes have no positions; the transformer copies the position of the replaced statement, so
that tracebacks show the user's line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

# Generated names have this prefix, which prevents conflicts with the user's names.
PREFIX = "ag__"


def load_name(identifier: str) -> ast.Name:
    """Create a read of a variable."""
    return ast.Name(identifier, ast.Load())


def make_assignment(identifier: str, value: ast.expr) -> ast.Assign:
    """Create `identifier = value`."""
    return ast.Assign([ast.Name(identifier, ast.Store())], value)


def load_runtime_attribute(attribute: str) -> ast.Attribute:
    """Create `ag__.attribute`, a member of the runtime library."""
    return ast.Attribute(load_name(PREFIX), attribute, ast.Load())


def call_runtime(attribute: str, *args: ast.expr, **keywords: ast.expr) -> ast.Call:
    """Create a call of a function of the runtime library."""
    return ast.Call(
        load_runtime_attribute(attribute),
        list(args),
        [ast.keyword(key, value) for key, value in keywords.items()],
    )


def make_parameters(names: Iterable[str] = ()) -> ast.arguments:
    """Create a list of positional parameters."""
    return ast.arguments(
        posonlyargs=[], args=[ast.arg(n) for n in names], kwonlyargs=[], kw_defaults=[], defaults=[]
    )


def make_thunk(body: ast.expr) -> ast.Lambda:
    """Create `lambda: body`."""
    return ast.Lambda(make_parameters(), body)


def make_function(identifier: str, params: Sequence[str], body: list[ast.stmt]) -> ast.FunctionDef:
    """Create `def identifier(params): body`."""
    definition = ast.FunctionDef(
        name=identifier, args=make_parameters(params), body=body or [ast.Pass()], decorator_list=[]
    )
    # Python 3.12 and later require this attribute; earlier versions ignore it.
    definition.type_params = []  # type: ignore[attr-defined, unused-ignore]
    return definition


def negate(value: ast.expr) -> ast.UnaryOp:
    """Create `not value`."""
    return ast.UnaryOp(ast.Not(), value)


def negate_all(flags: Sequence[str]) -> ast.expr:
    """Create `not a`, or `not a and not b` for several flags."""
    terms: list[ast.expr] = [negate(load_name(flag)) for flag in flags]
    return terms[0] if len(terms) == 1 else ast.BoolOp(ast.And(), terms)


def make_constants(values: Iterable[str | bool]) -> ast.Tuple:
    """Create a tuple of constants."""
    return ast.Tuple([ast.Constant(v) for v in values], ast.Load())


def set_positions(nodes: list[ast.stmt], origin: ast.AST) -> list[ast.stmt]:
    """Give generated statements the position of the first line of the statement they replace."""
    for node in nodes:
        if not hasattr(node, "lineno"):
            ast.copy_location(node, origin)
            if node.end_lineno != node.lineno:
                head = getattr(origin, "test", None) or getattr(origin, "iter", None)
                same_line = head is not None and head.end_lineno == node.lineno
                node.end_lineno = node.lineno
                node.end_col_offset = head.end_col_offset if same_line else node.col_offset + 1  # type: ignore[union-attr]
    return nodes


def fill_in_positions(tree: ast.AST) -> None:
    """Give every node without a position the first line of the enclosing node.

    `ast.fix_missing_locations` would also copy the last line, and Python reports a method call at
    the line in which its attribute ends.
    """
    pending = [(tree, (1, 0, 1, 0))]
    while pending:
        node, position = pending.pop()
        if "lineno" in node._attributes:
            if not hasattr(node, "lineno"):
                node.lineno, node.col_offset, node.end_lineno, node.end_col_offset = position  # type: ignore[attr-defined]
            line, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
            one_line = node.end_lineno == line  # type: ignore[attr-defined]
            position = line, column, line, node.end_col_offset if one_line else column + 1  # type: ignore[attr-defined]
        pending.extend((child, position) for child in ast.iter_child_nodes(node))

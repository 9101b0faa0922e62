"""The state of a staged block: which variables it changes, and syntax to get and set them.

Blocks become inner functions that share the variables of their function (`nonlocal`), so plain
Python conditions keep plain Python's behaviour. To stage a block the runtime reads the state
with one generated function and replaces it with another.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from meshflow.core.autograph import nodes
from meshflow.core.autograph.control_flow_lowering import VALUE
from meshflow.core.autograph.names import Names, root_of


@dataclass
class State:
    """What a block changes.

    Attributes:
      variables: names of variables, those that are live afterwards first.
      outputs: how many of the variables are live afterwards.
      needed: for each variable, whether its old value is needed inside.
      places: attributes and items (`self.x`, `d["k"]`) assigned, by source text.
      containers: lists, dictionaries and sets changed in place, by source text.
    """

    variables: list[str]
    outputs: int
    needed: list[bool]
    places: dict[str, ast.expr] = field(default_factory=dict)
    containers: dict[str, ast.expr] = field(default_factory=dict)

    @classmethod
    def of(cls, names: Names, after: set[str], before: set[str]) -> State:
        """The state of a block with the given names and liveness."""
        live = sorted(names.writes & after)
        inside = sorted((names.writes & before) - after)
        variables = [*live, *inside]
        fixed = {
            text: place
            for text, place in sorted(names.stores.items())
            if root_of(place) not in names.writes
        }
        containers = {
            text: place
            for text, place in sorted(names.mutated.items())
            if root_of(place) not in names.writes and text not in fixed
        }
        # A value that was returned ends the loop, so it is never needed by a later iteration.
        needed = [v in before and v != VALUE for v in variables]
        return cls(variables, len(live), needed, fixed, containers)

    @property
    def labels(self) -> list[str]:
        """Names for error messages, in the order of the state."""
        return [*self.variables, *self.places, *self.containers]

    def arguments(self) -> list[ast.expr]:
        """The description handed to the runtime: labels, output count, needed flags, containers."""
        description = nodes.call(
            "StructureTemplate",
            nodes.constants(self.labels),
            ast.Constant(self.outputs),
            nodes.constants(
                [*self.needed, *(True for _ in range(len(self.places) + len(self.containers)))]
            ),
            ast.Constant(len(self.variables)),
        )
        return [description]

    def getter(self) -> ast.expr:
        """`lambda: (value of each part)`; parts that do not exist yet give `ag__.undefined`."""
        values: list[ast.expr] = [
            nodes.call("get", nodes.thunk(nodes.name(v))) for v in self.variables
        ]
        values += [
            nodes.call("get", nodes.thunk(_loading(place))) for place in self.places.values()
        ]
        values += [
            nodes.call("contents", nodes.thunk(_loading(place)))
            for place in self.containers.values()
        ]
        return nodes.thunk(ast.Tuple(values, ast.Load()))

    def setter(self, identifier: str, declarations: list[ast.stmt]) -> ast.FunctionDef:
        """A function that takes the parts as arguments and stores them."""
        body: list[ast.stmt] = list(declarations)
        params = [f"{nodes.PREFIX}{i}" for i in range(len(self.labels))]
        values = iter(params)
        undefined = nodes.runtime("undefined")
        for variable in self.variables:
            value = next(values)
            body.append(nodes.assign(variable, nodes.name(value)))
            is_undefined = ast.Compare(nodes.name(value), [ast.Is()], [undefined])
            body.append(ast.If(is_undefined, [ast.Delete([ast.Name(variable, ast.Del())])], []))
        for place in self.places.values():
            value = next(values)
            is_defined = ast.Compare(nodes.name(value), [ast.IsNot()], [undefined])
            body.append(ast.If(is_defined, [ast.Assign([_storing(place)], nodes.name(value))], []))
        for place in self.containers.values():
            refill = nodes.call("refill", nodes.thunk(_loading(place)), nodes.name(next(values)))
            body.append(ast.Expr(refill))
        return nodes.function(identifier, params, body)


def _loading(place: ast.expr) -> ast.expr:
    copied = ast.parse(ast.unparse(place), mode="eval").body
    return _unlocated(copied)


def _storing(place: ast.expr) -> ast.expr:
    copied = _loading(place)
    copied.ctx = ast.Store()  # type: ignore[attr-defined]
    return copied


def _unlocated(tree: ast.expr) -> ast.expr:
    """Drops positions, so that the ones of the user's file are filled in later."""
    for node in ast.walk(tree):
        for attribute in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
            if hasattr(node, attribute):
                delattr(node, attribute)
    return tree

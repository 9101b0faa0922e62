"""State of a staged block: the variables that it changes, and syntax to read and replace them.

Blocks become inner functions that share the variables of their function (`nonlocal`), so with plain
Python conditions the behaviour is that of Python. To stage a block, the runtime reads the state
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
    """The parts of a block's state.

    Attributes:
      variables: Names of variables; those that are live after the block are first.
      outputs: Number of variables that are live after the block.
      needed: For each variable, whether its old value is needed inside.
      places: Assigned attributes and items (`self.x`, `d["k"]`), by source text.
      containers: Lists, dictionaries and sets that are changed in place, by source text.
    """

    variables: list[str]
    outputs: int
    needed: list[bool]
    places: dict[str, ast.expr] = field(default_factory=dict)
    containers: dict[str, ast.expr] = field(default_factory=dict)

    @classmethod
    def of(cls, names: Names, after: set[str], before: set[str]) -> State:
        """Return the state of a block with the given names and liveness."""
        live = sorted(names.writes & after)
        inside = sorted((names.writes & before) - after)
        variables = [*live, *inside]
        targets = {
            text: node
            for text, node in sorted(names.stores.items())
            if root_of(node) not in names.writes
        }
        containers = {
            text: node
            for text, node in sorted(names.mutated.items())
            if root_of(node) not in names.writes and text not in targets
        }
        # A returned value ends the loop, so no later iteration needs it.
        needed = [v in before and v != VALUE for v in variables]
        return cls(variables, len(live), needed, targets, containers)

    @property
    def labels(self) -> list[str]:
        """Return names for error messages, in the order of the state."""
        return [*self.variables, *self.places, *self.containers]

    def arguments(self) -> list[ast.expr]:
        """Return the argument that describes the state to the runtime."""
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
        """Create `lambda: (values of the parts)`; parts that do not exist yet are `ag__.undefined`."""
        values: list[ast.expr] = [
            nodes.call("read_part", nodes.thunk(nodes.name(v))) for v in self.variables
        ]
        values += [
            nodes.call("read_part", nodes.thunk(_loading(node))) for node in self.places.values()
        ]
        values += [
            nodes.call("copy_items", nodes.thunk(_loading(node)))
            for node in self.containers.values()
        ]
        return nodes.thunk(ast.Tuple(values, ast.Load()))

    def setter(self, identifier: str, declarations: list[ast.stmt]) -> ast.FunctionDef:
        """Create a function that takes the parts as arguments and stores them."""
        body: list[ast.stmt] = list(declarations)
        params = [f"{nodes.PREFIX}{i}" for i in range(len(self.labels))]
        values = iter(params)
        undefined = nodes.runtime("undefined")
        for variable in self.variables:
            value = next(values)
            body.append(nodes.assign(variable, nodes.name(value)))
            is_undefined = ast.Compare(nodes.name(value), [ast.Is()], [undefined])
            body.append(ast.If(is_undefined, [ast.Delete([ast.Name(variable, ast.Del())])], []))
        for node in self.places.values():
            value = next(values)
            is_defined = ast.Compare(nodes.name(value), [ast.IsNot()], [undefined])
            body.append(ast.If(is_defined, [ast.Assign([_storing(node)], nodes.name(value))], []))
        for node in self.containers.values():
            restore = nodes.call(
                "restore_items", nodes.thunk(_loading(node)), nodes.name(next(values))
            )
            body.append(ast.Expr(restore))
        return nodes.function(identifier, params, body)


def _loading(node: ast.expr) -> ast.expr:
    copied = ast.parse(ast.unparse(node), mode="eval").body
    return _unlocated(copied)


def _storing(node: ast.expr) -> ast.expr:
    copied = _loading(node)
    copied.ctx = ast.Store()  # type: ignore[attr-defined]
    return copied


def _unlocated(tree: ast.expr) -> ast.expr:
    """Remove positions, so that those of the user's file are filled in later."""
    for node in ast.walk(tree):
        for attribute in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
            if hasattr(node, attribute):
                delattr(node, attribute)
    return tree

"""State of a staged block: the variables that it changes, and syntax to read and replace them.

Blocks become inner functions that share the variables of their function (`nonlocal`), so with plain
Python conditions the behaviour is that of Python. To stage a block, the runtime reads the state
with one generated function and replaces it with another.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from meshflow.core.autograph import ast_nodes
from meshflow.core.autograph.control_flow_lowering import RETURN_VALUE
from meshflow.core.autograph.name_usage import NameUsage, find_root_name


@dataclass
class BlockState:
    """The parts of a block's state.

    Attributes:
      variables: Names of variables; those that are live after the block are first.
      outputs: Number of variables that are live after the block.
      needed: For each variable, whether its old value is needed inside.
      targets: Assigned attributes and items (`self.x`, `d["k"]`), by source text.
      containers: Lists, dictionaries and sets that are changed in place, by source text.
    """

    variables: list[str]
    outputs: int
    needed: list[bool]
    targets: dict[str, ast.expr] = field(default_factory=dict)
    containers: dict[str, ast.expr] = field(default_factory=dict)

    @classmethod
    def from_names(cls, names: NameUsage, after: set[str], before: set[str]) -> BlockState:
        """Return the state of a block with the given names and liveness."""
        live = sorted(names.writes & after)
        inside = sorted((names.writes & before) - after)
        variables = [*live, *inside]
        targets = {
            text: node
            for text, node in sorted(names.stores.items())
            if find_root_name(node) not in names.writes
        }
        containers = {
            text: node
            for text, node in sorted(names.mutated.items())
            if find_root_name(node) not in names.writes and text not in targets
        }
        # A returned value ends the loop, so no later iteration needs it.
        needed = [v in before and v != RETURN_VALUE for v in variables]
        return cls(variables, len(live), needed, targets, containers)

    @property
    def labels(self) -> list[str]:
        """Return names for error messages, in the order of the state."""
        return [*self.variables, *self.targets, *self.containers]

    def make_arguments(self) -> list[ast.expr]:
        """Return the argument that describes the state to the runtime."""
        description = ast_nodes.call_runtime(
            "StructureTemplate",
            ast_nodes.make_constants(self.labels),
            ast.Constant(self.outputs),
            ast_nodes.make_constants(
                [*self.needed, *(True for _ in range(len(self.targets) + len(self.containers)))]
            ),
            ast.Constant(len(self.variables)),
        )
        return [description]

    def make_getter(self) -> ast.expr:
        """Create `lambda: (values of the parts)`; parts that do not exist yet are `ag__.undefined`."""
        values: list[ast.expr] = [
            ast_nodes.call_runtime("read_part", ast_nodes.make_thunk(ast_nodes.load_name(v)))
            for v in self.variables
        ]
        values += [
            ast_nodes.call_runtime("read_part", ast_nodes.make_thunk(_copy_load(node)))
            for node in self.targets.values()
        ]
        values += [
            ast_nodes.call_runtime("copy_items", ast_nodes.make_thunk(_copy_load(node)))
            for node in self.containers.values()
        ]
        return ast_nodes.make_thunk(ast.Tuple(values, ast.Load()))

    def make_setter(self, identifier: str, declarations: list[ast.stmt]) -> ast.FunctionDef:
        """Create a function that takes the parts as arguments and stores them."""
        body: list[ast.stmt] = list(declarations)
        params = [f"{ast_nodes.PREFIX}{i}" for i in range(len(self.labels))]
        values = iter(params)
        undefined = ast_nodes.load_runtime_attribute("undefined")
        for variable in self.variables:
            value = next(values)
            body.append(ast_nodes.make_assignment(variable, ast_nodes.load_name(value)))
            is_undefined = ast.Compare(ast_nodes.load_name(value), [ast.Is()], [undefined])
            body.append(ast.If(is_undefined, [ast.Delete([ast.Name(variable, ast.Del())])], []))
        for node in self.targets.values():
            value = next(values)
            is_defined = ast.Compare(ast_nodes.load_name(value), [ast.IsNot()], [undefined])
            body.append(
                ast.If(
                    is_defined, [ast.Assign([_copy_store(node)], ast_nodes.load_name(value))], []
                )
            )
        for node in self.containers.values():
            restore = ast_nodes.call_runtime(
                "restore_items",
                ast_nodes.make_thunk(_copy_load(node)),
                ast_nodes.load_name(next(values)),
            )
            body.append(ast.Expr(restore))
        return ast_nodes.make_function(identifier, params, body)


def _copy_load(node: ast.expr) -> ast.expr:
    copied = ast.parse(ast.unparse(node), mode="eval").body
    return _remove_positions(copied)


def _copy_store(node: ast.expr) -> ast.expr:
    copied = _copy_load(node)
    copied.ctx = ast.Store()  # type: ignore[attr-defined]
    return copied


def _remove_positions(tree: ast.expr) -> ast.expr:
    """Remove positions, so that those of the user's file are filled in later."""
    for node in ast.walk(tree):
        for attribute in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
            if hasattr(node, attribute):
                delattr(node, attribute)
    return tree

"""Analysis of the names that syntax reads, writes and passes to inner functions.

Liveness analysis and the state of staged blocks are built from these three sets. Scopes are those
of Python: comprehensions and inner functions have their own variables, while `nonlocal` and `:=`
bind variables of outer scopes.

`stores` and `mutated` hold changes *inside* objects: `self.x = 1`, `d["k"] = 1`, `items.append(1)`.
Their keys are the source text of the changed expression.
"""

from __future__ import annotations

import ast
import collections
from collections.abc import Iterable

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.Lambda, ast.ClassDef)

# Methods that change Python's containers in place.
MUTATORS = frozenset(
    {
        "append",
        "clear",
        "extend",
        "insert",
        "pop",
        "popitem",
        "remove",
        "reverse",
        "setdefault",
        "sort",
        "update",
    }
)


class NameUsage(ast.NodeVisitor):
    """Names in statements or expressions of one function scope.

    Attributes:
      reads: Variables that are read, also by inner functions.
      writes: Variables that are bound or deleted.
      captured: Variables that inner functions use, possibly later.
      outer: Variables that are declared `global` or `nonlocal`.
      stores: Attributes and items that are assigned, by source text.
      mutated: Containers that are changed by a method or by an item assignment with a computed key.
    """

    def __init__(self, *nodes: ast.AST | None) -> None:
        self.reads: set[str] = set()
        self.writes: set[str] = set()
        self.captured: set[str] = set()
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self.stores: dict[str, ast.expr] = {}
        self.mutated: dict[str, ast.expr] = {}
        for node in nodes:
            if node is not None:
                self.visit(node)

    @property
    def outer(self) -> set[str]:
        """Return the variables that are declared `global` or `nonlocal`."""
        return self.globals | self.nonlocals

    def visit_Name(self, node: ast.Name) -> None:
        (self.reads if isinstance(node.ctx, ast.Load) else self.writes).add(node.id)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.reads.add(node.target.id)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self.globals.update(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.nonlocals.update(node.names)

    def visit_alias(self, node: ast.alias) -> None:
        self.writes.add(node.asname or node.name.split(".")[0])

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.writes.add(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.name:
            self.writes.add(node.name)
        self.generic_visit(node)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        if node.name:
            self.writes.add(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest:
            self.writes.add(node.rest)
        self.generic_visit(node)

    # ---- attributes and items -----------------------------------------------------------------

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load) and find_root_name(node) is not None:
            self.stores[ast.unparse(node)] = node
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            if find_root_name(node) is not None:
                self.stores[ast.unparse(node)] = node
            elif find_root_name(node.value) is not None:
                self.mutated[ast.unparse(node.value)] = node.value
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        target = node.func
        if (
            isinstance(target, ast.Attribute)
            and target.attr in MUTATORS
            and find_root_name(target.value)
        ):
            self.mutated[ast.unparse(target.value)] = target.value
        self.generic_visit(node)

    # ---- inner scopes -------------------------------------------------------------------------

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_defaults(node.args)
        self._capture(find_free_names(node))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._visit_defaults(node.args)
        self.writes.add(node.name)
        self._capture(find_free_names(node))

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(part)
        self.writes.add(node.name)
        body = NameUsage(*node.body)
        self.reads |= body.reads
        self.captured |= body.captured
        self.writes |= body.writes & body.outer

    def visit_ListComp(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    ) -> None:
        inner = NameUsage()
        bound: set[str] = set()
        for generator in node.generators:
            inner.visit(generator.iter)
            bound |= NameUsage(generator.target).writes
            for condition in generator.ifs:
                inner.visit(condition)
        if isinstance(node, ast.DictComp):
            inner.visit(node.key)
            inner.visit(node.value)
        else:
            inner.visit(node.elt)
        self.reads |= inner.reads - bound
        self.captured |= inner.captured - bound
        self.writes |= inner.writes - bound  # `:=` binds a variable of the enclosing scope.
        self.mutated |= {
            text: node for text, node in inner.mutated.items() if find_root_name(node) not in bound
        }
        if isinstance(node, ast.GeneratorExp):
            self.captured |= inner.reads - bound

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def _visit_defaults(self, args: ast.arguments) -> None:
        for default in (*args.defaults, *args.kw_defaults):
            if default is not None:
                self.visit(default)

    def _capture(self, free: set[str]) -> None:
        self.reads |= free
        self.captured |= free


def find_root_name(node: ast.expr) -> str | None:
    """Return the variable at the root of `a.b[0].c`, or None if a part must be computed."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute) or (
            isinstance(node, ast.Subscript) and _is_constant(node.slice)
        ):
            node = node.value
        else:
            return None
    return node.id


def _is_constant(index: ast.expr) -> bool:
    if isinstance(index, ast.UnaryOp):
        index = index.operand
    return isinstance(index, ast.Constant) and isinstance(index.value, (int, str))


def get_parameter_names(args: ast.arguments) -> list[str]:
    """Return the names of all parameters of a function, positional ones first."""
    parameters = [*args.posonlyargs, *args.args]
    if args.vararg:
        parameters.append(args.vararg)
    parameters.extend(args.kwonlyargs)
    if args.kwarg:
        parameters.append(args.kwarg)
    return [a.arg for a in parameters]


def find_free_names(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """Return the variables that an inner function uses from enclosing scopes."""
    body = [node.body] if isinstance(node, ast.Lambda) else node.body
    names = NameUsage(*body)
    bound = (set(get_parameter_names(node.args)) | names.writes) - names.outer
    return (names.reads | names.captured | names.nonlocals) - bound


def find_appended_names(nodes: Iterable[ast.AST], names: Iterable[str]) -> list[str]:
    """Return the variables that statements use only to append to a list.

    Args:
      nodes: The statements.
      names: The variables to consider.
    """
    loads: collections.Counter[str] = collections.Counter()
    appends: collections.Counter[str] = collections.Counter()
    captured: set[str] = set()
    for root in nodes:
        captured |= NameUsage(root).captured
        for node in ast.walk(root):
            if isinstance(node, ast.Name):
                loads[node.id] += 1
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("append", "extend")
                and isinstance(node.func.value, ast.Name)
            ):
                appends[node.func.value.id] += 1
    return [name for name in names if 0 < appends[name] == loads[name] and name not in captured]

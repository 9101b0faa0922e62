"""Which variables a piece of syntax reads, writes and hands to inner functions.

The three sets are what liveness analysis and the state of staged blocks are made of. Scopes
are Python's: comprehensions and inner functions keep their own variables to themselves, while
`nonlocal` and `:=` reach out.

`stores` and `mutated` name what is changed *inside* objects: `self.x = 1`, `d["k"] = 1`,
`items.append(1)`. Keys are the source text of the place.
"""

from __future__ import annotations

import ast

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.Lambda, ast.ClassDef)

# Methods by which Python's containers change in place.
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


class Names(ast.NodeVisitor):
    """Collects the names of one or more statements or expressions of a single function scope.

    Attributes:
      reads: variables whose value is used, also by inner functions.
      writes: variables bound or deleted.
      captured: variables that inner functions use, possibly later.
      outer: variables declared `global` or `nonlocal`.
      stores: places inside objects that are assigned, by source text.
      mutated: containers changed by a method or by an item assignment with a computed key.
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
        """Variables declared `global` or `nonlocal`."""
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

    # ---- places inside objects ----------------------------------------------------------------

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load) and root_of(node) is not None:
            self.stores[ast.unparse(node)] = node
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            if root_of(node) is not None:
                self.stores[ast.unparse(node)] = node
            elif root_of(node.value) is not None:
                self.mutated[ast.unparse(node.value)] = node.value
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        target = node.func
        if isinstance(target, ast.Attribute) and target.attr in MUTATORS and root_of(target.value):
            self.mutated[ast.unparse(target.value)] = target.value
        self.generic_visit(node)

    # ---- inner scopes -------------------------------------------------------------------------

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._defaults(node.args)
        self._capture(free_names(node))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._defaults(node.args)
        self.writes.add(node.name)
        self._capture(free_names(node))

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(part)
        self.writes.add(node.name)
        body = Names(*node.body)
        self.reads |= body.reads
        self.captured |= body.captured
        self.writes |= body.writes & body.outer

    def visit_ListComp(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    ) -> None:
        inner = Names()
        bound: set[str] = set()
        for generator in node.generators:
            inner.visit(generator.iter)
            bound |= Names(generator.target).writes
            for condition in generator.ifs:
                inner.visit(condition)
        if isinstance(node, ast.DictComp):
            inner.visit(node.key)
            inner.visit(node.value)
        else:
            inner.visit(node.elt)
        self.reads |= inner.reads - bound
        self.captured |= inner.captured - bound
        self.writes |= inner.writes - bound  # `:=` binds outside
        self.mutated |= {
            text: place for text, place in inner.mutated.items() if root_of(place) not in bound
        }
        if isinstance(node, ast.GeneratorExp):
            self.captured |= inner.reads - bound

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def _defaults(self, args: ast.arguments) -> None:
        for default in (*args.defaults, *args.kw_defaults):
            if default is not None:
                self.visit(default)

    def _capture(self, free: set[str]) -> None:
        self.reads |= free
        self.captured |= free


def root_of(place: ast.expr) -> str | None:
    """The variable at the root of `a.b[0].c`, or None when the place needs computing."""
    while not isinstance(place, ast.Name):
        if isinstance(place, ast.Attribute) or (
            isinstance(place, ast.Subscript) and _is_constant(place.slice)
        ):
            place = place.value
        else:
            return None
    return place.id


def _is_constant(index: ast.expr) -> bool:
    if isinstance(index, ast.UnaryOp):
        index = index.operand
    return isinstance(index, ast.Constant) and isinstance(index.value, (int, str))


def parameter_names(args: ast.arguments) -> list[str]:
    """All parameters of a function, positional ones first."""
    plain = [*args.posonlyargs, *args.args]
    if args.vararg:
        plain.append(args.vararg)
    plain.extend(args.kwonlyargs)
    if args.kwarg:
        plain.append(args.kwarg)
    return [a.arg for a in plain]


def free_names(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """Variables that an inner function takes from the scopes around it."""
    body = [node.body] if isinstance(node, ast.Lambda) else node.body
    names = Names(*body)
    bound = (set(parameter_names(node.args)) | names.writes) - names.outer
    return (names.reads | names.captured | names.nonlocals) - bound

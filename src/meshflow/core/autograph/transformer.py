"""Transformation of statements: functions, `if`, `while`, `for`, `assert`.

A block becomes inner functions and one call of the runtime library:

    if x > 0:            def ag__body_1():
        y = x                nonlocal y
    else:         ->         y = x
        y = -x           def ag__else_1(): ...
                         def ag__set_1(ag__0): ...
                         ag__.if_stmt(x > 0, ag__body_1, ag__else_1, lambda: (...), ag__set_1, ...)

Every variable that a block changes is declared `nonlocal` in it, so with a plain Python condition
the program does exactly the same as before.
"""

from __future__ import annotations

import ast

from meshflow.core.autograph import control_flow_lowering, liveness, nodes
from meshflow.core.autograph.expressions import ExpressionTransformer, is_static
from meshflow.core.autograph.names import Names, parameter_names
from meshflow.core.autograph.state import State

# Functions that inspect the frame of their caller.
_FRAME_READERS = frozenset({"locals", "eval", "exec", "vars", "dir"})


class UnsupportedError(Exception):
    """Error for a function that cannot be converted; its text is the reason."""


def transform(node: ast.FunctionDef | ast.Lambda) -> ast.FunctionDef | ast.Lambda:
    """Rewrite a function without decorators, in place, and the functions defined inside it.

    Raises:
      UnsupportedError: For generators, coroutines and functions that inspect their frame.
    """
    _refuse_unsupported(node)
    transformer = _Function(node)
    result = (
        transformer.lambda_(node) if isinstance(node, ast.Lambda) else transformer.definition(node)
    )
    nodes.fill_positions(result)
    return result


def _refuse_unsupported(function: ast.FunctionDef | ast.Lambda) -> None:
    for node in _own_nodes(function):
        if isinstance(node, (ast.Yield, ast.YieldFrom, ast.Await)):
            raise UnsupportedError("generators and coroutines are not converted")
        if isinstance(node, (ast.Try, ast.TryStar)) and control_flow_lowering.jumps_in_finally(
            node
        ):
            raise UnsupportedError("a jump out of `finally` is not converted")
        match node:
            case ast.Call(func=ast.Name(id=("vars" | "dir")), args=[_, *_]):
                pass
            case ast.Call(func=ast.Name(id=called)) if called in _FRAME_READERS:
                raise UnsupportedError(
                    f"it calls {called}(), which inspects the frame of its caller"
                )


def _own_nodes(function: ast.AST) -> list[ast.AST]:
    """List the nodes of a function that are not part of inner functions."""
    own_nodes: list[ast.AST] = []
    pending = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop()
        own_nodes.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            pending.extend(ast.iter_child_nodes(node))
    return own_nodes


class _Function(ExpressionTransformer):
    """Transformer of one function scope."""

    def __init__(self, node: ast.FunctionDef | ast.Lambda) -> None:
        params = parameter_names(node.args)
        self.params = set(params)
        self.first_parameter = params[0] if params else None
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        # Variables that blocks change; each needs a binding in the function itself.
        self.shared: set[str] = set()
        self.count = 0

    def lambda_(self, node: ast.Lambda) -> ast.Lambda:
        node.body = self.expression(node.body)
        return node

    def definition(self, node: ast.FunctionDef) -> ast.FunctionDef:
        names = Names(*node.body)
        self.globals, self.nonlocals = names.globals, names.nonlocals
        body = control_flow_lowering.lower(_without_declarations(node.body) or [ast.Pass()])
        liveness.annotate(body, names.captured | names.outer)
        docstring = [body.pop(0)] if ast.get_docstring(node, clean=False) is not None else []
        body = self.block(body)
        node.body = [*docstring, *nodes.located(self._head(), node), *body] or [ast.Pass()]
        return node

    def _head(self) -> list[ast.stmt]:
        head = self._declare(self.globals, self.nonlocals)
        unbound = sorted(self.shared - self.params - self.globals - self.nonlocals)
        if unbound:
            # This never runs; it makes the names local, as the inner `nonlocal`s require.
            targets: list[ast.expr] = [ast.Name(n, ast.Store()) for n in unbound]
            head.append(ast.If(ast.Constant(False), [ast.Assign(targets, ast.Constant(None))], []))
        return head

    @staticmethod
    def _declare(globals_: set[str], nonlocals: set[str]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        if globals_:
            result.append(ast.Global(sorted(globals_)))
        if nonlocals:
            result.append(ast.Nonlocal(sorted(nonlocals)))
        return result

    def _declarations(self, written: set[str]) -> list[ast.stmt]:
        """Return `global` and `nonlocal` statements for an inner function that changes `written`."""
        self.shared |= written
        return self._declare(written & self.globals, written - self.globals)

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in statements:
            rewritten = self.visit(statement)
            result.extend(rewritten if isinstance(rewritten, list) else [rewritten])
        return result

    # ---- functions inside the function --------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.decorator_list = [self.expression(d) for d in node.decorator_list]
        self._defaults(node.args)
        try:
            _refuse_unsupported(node)
            return _Function(node).definition(node)
        except UnsupportedError:
            return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        self._defaults(node.args)
        return _Function(node).lambda_(node)

    def _defaults(self, args: ast.arguments) -> None:
        args.defaults = [self.expression(d) for d in args.defaults]
        args.kw_defaults = [d and self.expression(d) for d in args.kw_defaults]

    # ---- statements ---------------------------------------------------------------------------

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt]:
        names = Names(*node.body, *node.orelse)
        after, before = node.ag_after, node.ag_before  # type: ignore[attr-defined]
        static = is_static(node.test)
        test = self.expression(node.test)
        body, orelse = self.block(node.body), self.block(node.orelse)
        if static:
            node.test, node.body, node.orelse = test, body, orelse
            return node
        state = State.of(names, after, before)
        index = self._next()
        declarations = self._declarations(names.writes)
        else_name = f"{nodes.PREFIX}else_{index}"
        result: list[ast.stmt] = [
            nodes.function(f"{nodes.PREFIX}body_{index}", (), [*declarations, *body])
        ]
        if orelse:
            result.append(nodes.function(else_name, (), [*declarations, *orelse]))
        setter = state.setter(f"{nodes.PREFIX}set_{index}", declarations)
        result.append(setter)
        call = nodes.call(
            "if_stmt",
            test,
            nodes.name(f"{nodes.PREFIX}body_{index}"),
            nodes.name(else_name) if orelse else ast.Constant(None),
            state.getter(),
            nodes.name(setter.name),
            *state.arguments(),
        )
        result.append(ast.Expr(call))
        return nodes.located(result, node)

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        names = Names(node.test, *node.body)
        options, body = self._loop_options(node.body)
        state = State.of(names, node.ag_after, node.ag_before)  # type: ignore[attr-defined]
        index = self._next()
        declarations = self._declarations(names.writes)
        test = self.expression(node.test)
        test_name = f"{nodes.PREFIX}test_{index}"
        body_name = f"{nodes.PREFIX}body_{index}"
        setter = state.setter(f"{nodes.PREFIX}set_{index}", declarations)
        result: list[ast.stmt] = [
            nodes.function(test_name, (), [*declarations, ast.Return(test)]),
            nodes.function(body_name, (), [*declarations, *self.block(body)]),
            setter,
            ast.Expr(
                nodes.call(
                    "while_stmt",
                    nodes.name(test_name),
                    nodes.name(body_name),
                    state.getter(),
                    nodes.name(setter.name),
                    *state.arguments(),
                    **options,
                )
            ),
        ]
        return nodes.located(result, node)

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        extra_test = getattr(node, "ag_extra_test", None)
        names = Names(node.target, *node.body)
        options, body = self._loop_options(node.body)
        state = State.of(names, node.ag_after, node.ag_before)  # type: ignore[attr-defined]
        index = self._next()
        declarations = self._declarations(names.writes)
        iterated = self.expression(node.iter)
        stop = (
            nodes.thunk(self.expression(extra_test))
            if extra_test is not None
            else ast.Constant(None)
        )
        body_name = f"{nodes.PREFIX}body_{index}"
        item = f"{nodes.PREFIX}item"
        assign_item = ast.copy_location(ast.Assign([node.target], nodes.name(item)), node)
        setter = state.setter(f"{nodes.PREFIX}set_{index}", declarations)
        result: list[ast.stmt] = [
            nodes.function(body_name, (item,), [*declarations, assign_item, *self.block(body)]),
            setter,
            ast.Expr(
                nodes.call(
                    "for_stmt",
                    iterated,
                    stop,
                    nodes.name(body_name),
                    state.getter(),
                    nodes.name(setter.name),
                    *state.arguments(),
                    **options,
                )
            ),
        ]
        return nodes.located(result, node)

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if is_static(node.test):
            return self.generic_visit(node)  # type: ignore[return-value]
        self.generic_visit(node)
        message = nodes.thunk(node.msg) if node.msg is not None else ast.Constant(None)
        text = ast.Constant(ast.unparse(node.test))
        return ast.copy_location(ast.Expr(nodes.call("assert_", node.test, message, text)), node)

    def _loop_options(self, body: list[ast.stmt]) -> tuple[dict[str, ast.expr], list[ast.stmt]]:
        """Remove `tf.autograph.experimental.set_loop_options(...)` from the start of a loop body."""
        match body:
            case [
                ast.Expr(
                    value=ast.Call(func=ast.Attribute(attr="set_loop_options"), keywords=keywords)
                ),
                *rest,
            ]:
                options = {
                    k.arg: self.expression(k.value)
                    for k in keywords
                    if k.arg == "maximum_iterations"
                }
                return options, rest or [ast.Pass()]
        return {}, body

    def _next(self) -> int:
        self.count += 1
        return self.count


def _without_declarations(body: list[ast.stmt]) -> list[ast.stmt]:
    """Remove `global` and `nonlocal` statements, which the head of the function repeats."""

    class Remover(ast.NodeTransformer):
        def visit_Global(self, node: ast.Global) -> ast.Pass:
            return ast.copy_location(ast.Pass(), node)

        visit_Nonlocal = visit_Global  # type: ignore[assignment]

        def visit_FunctionDef(self, node: ast.AST) -> ast.AST:
            return node

        visit_AsyncFunctionDef = visit_Lambda = visit_ClassDef = visit_FunctionDef

        def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
            # An annotated variable cannot be `nonlocal`, so the annotation is removed.
            if not isinstance(node.target, ast.Name):
                return node
            plain = ast.Pass() if node.value is None else ast.Assign([node.target], node.value)
            return ast.copy_location(plain, node)

    remover = Remover()
    return [remover.visit(s) for s in body]

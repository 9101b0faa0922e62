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
from collections.abc import Sequence

from meshflow.core.autograph import ast_nodes, control_flow_lowering, liveness
from meshflow.core.autograph.block_state import BlockState
from meshflow.core.autograph.expressions import ExpressionTransformer, is_static
from meshflow.core.autograph.name_usage import (
    NameUsage,
    find_appended_names,
    get_parameter_names,
)

# Functions that inspect the frame of their caller.
_FRAME_READERS = frozenset({"locals", "eval", "exec", "vars", "dir"})


class UnsupportedError(Exception):
    """Error for a function that cannot be converted; its text is the reason."""


def transform(node: ast.FunctionDef | ast.Lambda) -> ast.FunctionDef | ast.Lambda:
    """Rewrite a function without decorators, in place, and the functions defined inside it.

    Raises:
      UnsupportedError: For generators, coroutines and functions that inspect their frame.
    """
    _check_supported(node)
    transformer = _FunctionTransformer(node)
    result = (
        transformer.rewrite_lambda(node)
        if isinstance(node, ast.Lambda)
        else transformer.rewrite_definition(node)
    )
    ast_nodes.fill_in_positions(result)
    return result


def _check_supported(function: ast.FunctionDef | ast.Lambda) -> None:
    for node in _list_own_nodes(function):
        if isinstance(node, (ast.Yield, ast.YieldFrom, ast.Await)):
            raise UnsupportedError("generators and coroutines are not converted")
        if isinstance(node, (ast.Try, ast.TryStar)) and control_flow_lowering.has_jump_in_finally(
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


def _list_own_nodes(function: ast.AST) -> list[ast.AST]:
    """List the nodes of a function that are not part of inner functions."""
    own_nodes: list[ast.AST] = []
    pending = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop()
        own_nodes.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            pending.extend(ast.iter_child_nodes(node))
    return own_nodes


class _FunctionTransformer(ExpressionTransformer):
    """Transformer of one function scope."""

    def __init__(self, node: ast.FunctionDef | ast.Lambda) -> None:
        params = get_parameter_names(node.args)
        self.params = set(params)
        self.first_parameter = params[0] if params else None
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        # Variables that blocks change; each needs a binding in the function itself.
        self.shared: set[str] = set()
        self.num_blocks = 0

    def rewrite_lambda(self, node: ast.Lambda) -> ast.Lambda:
        node.body = self.rewrite_expression(node.body)
        return node

    def rewrite_definition(self, node: ast.FunctionDef) -> ast.FunctionDef:
        names = NameUsage(*node.body)
        self.globals, self.nonlocals = names.globals, names.nonlocals
        body = control_flow_lowering.lower_jumps(_remove_declarations(node.body) or [ast.Pass()])
        liveness.annotate_liveness(body, names.captured | names.outer)
        docstring = [body.pop(0)] if ast.get_docstring(node, clean=False) is not None else []
        body = self.rewrite_block(body)
        node.body = [*docstring, *ast_nodes.set_positions(self._make_head(), node), *body] or [
            ast.Pass()
        ]
        return node

    def _make_head(self) -> list[ast.stmt]:
        head = self._make_declarations(self.globals, self.nonlocals)
        unbound = sorted(self.shared - self.params - self.globals - self.nonlocals)
        if unbound:
            # This never runs; it makes the names local, as the inner `nonlocal`s require.
            targets: list[ast.expr] = [ast.Name(n, ast.Store()) for n in unbound]
            head.append(ast.If(ast.Constant(False), [ast.Assign(targets, ast.Constant(None))], []))
        return head

    @staticmethod
    def _make_declarations(globals_: set[str], nonlocals: set[str]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        if globals_:
            result.append(ast.Global(sorted(globals_)))
        if nonlocals:
            result.append(ast.Nonlocal(sorted(nonlocals)))
        return result

    def _declare_shared(self, written: set[str]) -> list[ast.stmt]:
        """Return `global` and `nonlocal` statements for an inner function that changes `written`."""
        self.shared |= written
        return self._make_declarations(written & self.globals, written - self.globals)

    def rewrite_block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in statements:
            rewritten = self.visit(statement)
            result.extend(rewritten if isinstance(rewritten, list) else [rewritten])
        return result

    # ---- functions inside the function --------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.decorator_list = [self.rewrite_expression(d) for d in node.decorator_list]
        self._rewrite_defaults(node.args)
        try:
            _check_supported(node)
            return _FunctionTransformer(node).rewrite_definition(node)
        except UnsupportedError:
            return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        self._rewrite_defaults(node.args)
        return _FunctionTransformer(node).rewrite_lambda(node)

    def _rewrite_defaults(self, args: ast.arguments) -> None:
        args.defaults = [self.rewrite_expression(d) for d in args.defaults]
        args.kw_defaults = [d and self.rewrite_expression(d) for d in args.kw_defaults]

    # ---- statements ---------------------------------------------------------------------------

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt]:
        names = NameUsage(*node.body, *node.orelse)
        after, before = node.ag_after, node.ag_before  # type: ignore[attr-defined]
        static = is_static(node.test)
        test = self.rewrite_expression(node.test)
        body, orelse = self.rewrite_block(node.body), self.rewrite_block(node.orelse)
        if static:
            node.test, node.body, node.orelse = test, body, orelse
            return node
        state = BlockState.from_names(names, after, before)
        index = self._next_index()
        declarations = self._declare_shared(names.writes)
        else_name = f"{ast_nodes.PREFIX}else_{index}"
        result: list[ast.stmt] = [
            ast_nodes.make_function(f"{ast_nodes.PREFIX}body_{index}", (), [*declarations, *body])
        ]
        if orelse:
            result.append(ast_nodes.make_function(else_name, (), [*declarations, *orelse]))
        setter = state.make_setter(f"{ast_nodes.PREFIX}set_{index}", declarations)
        result.append(setter)
        call = ast_nodes.call_runtime(
            "if_stmt",
            test,
            ast_nodes.load_name(f"{ast_nodes.PREFIX}body_{index}"),
            ast_nodes.load_name(else_name) if orelse else ast.Constant(None),
            state.make_getter(),
            ast_nodes.load_name(setter.name),
            *state.make_arguments(),
        )
        result.append(ast.Expr(call))
        return ast_nodes.set_positions(result, node)

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        names = NameUsage(node.test, *node.body)
        options, body = self._take_loop_options(node.body)
        state = BlockState.from_names(names, node.ag_after, node.ag_before)  # type: ignore[attr-defined]
        index = self._next_index()
        declarations = self._declare_shared(names.writes)
        test = self.rewrite_expression(node.test)
        test_name = f"{ast_nodes.PREFIX}test_{index}"
        body_name = f"{ast_nodes.PREFIX}body_{index}"
        setter = state.make_setter(f"{ast_nodes.PREFIX}set_{index}", declarations)
        result: list[ast.stmt] = [
            ast_nodes.make_function(test_name, (), [*declarations, ast.Return(test)]),
            ast_nodes.make_function(body_name, (), [*declarations, *self.rewrite_block(body)]),
            setter,
            ast.Expr(
                ast_nodes.call_runtime(
                    "while_stmt",
                    ast_nodes.load_name(test_name),
                    ast_nodes.load_name(body_name),
                    state.make_getter(),
                    ast_nodes.load_name(setter.name),
                    *state.make_arguments(),
                    **options,
                )
            ),
        ]
        return ast_nodes.set_positions(result, node)

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        extra_test = getattr(node, "ag_extra_test", None)
        names = NameUsage(node.target, *node.body)
        options, body = self._take_loop_options(node.body)
        state = BlockState.from_names(names, node.ag_after, node.ag_before)  # type: ignore[attr-defined]
        appended = find_appended_names([node.target, *node.body], state.containers)
        index = self._next_index()
        declarations = self._declare_shared(names.writes)
        iterated = self.rewrite_expression(node.iter)
        stop = (
            ast_nodes.make_thunk(self.rewrite_expression(extra_test))
            if extra_test is not None
            else ast.Constant(None)
        )
        body_name = f"{ast_nodes.PREFIX}body_{index}"
        item = f"{ast_nodes.PREFIX}item"
        assign_item = ast.copy_location(ast.Assign([node.target], ast_nodes.load_name(item)), node)
        setter = state.make_setter(f"{ast_nodes.PREFIX}set_{index}", declarations)
        result: list[ast.stmt] = [
            ast_nodes.make_function(
                body_name, (item,), [*declarations, assign_item, *self.rewrite_block(body)]
            ),
            setter,
            ast.Expr(
                ast_nodes.call_runtime(
                    "for_stmt",
                    iterated,
                    stop,
                    ast_nodes.load_name(body_name),
                    state.make_getter(),
                    ast_nodes.load_name(setter.name),
                    *state.make_arguments(),
                    ast_nodes.make_thunk(_read_all(appended)),
                    **options,
                )
            ),
        ]
        return ast_nodes.set_positions(result, node)

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if is_static(node.test):
            return self.generic_visit(node)  # type: ignore[return-value]
        self.generic_visit(node)
        message = ast_nodes.make_thunk(node.msg) if node.msg is not None else ast.Constant(None)
        text = ast.Constant(ast.unparse(node.test))
        return ast.copy_location(
            ast.Expr(ast_nodes.call_runtime("assert_", node.test, message, text)), node
        )

    def _take_loop_options(
        self, body: list[ast.stmt]
    ) -> tuple[dict[str, ast.expr], list[ast.stmt]]:
        """Remove `tf.autograph.experimental.set_loop_options(...)` from the start of a loop body.

        It may also be at the start of a `with` block there, as in Orbit's loops.
        """
        match body:
            case [ast.With() as block, *rest]:
                options, block.body = self._take_loop_options(block.body)
                return options, [block, *rest]
            case [
                ast.Expr(
                    value=ast.Call(func=ast.Attribute(attr="set_loop_options"), keywords=keywords)
                ),
                *rest,
            ]:
                options = {
                    k.arg: self.rewrite_expression(k.value)
                    for k in keywords
                    if k.arg in ("maximum_iterations", "shape_invariants")
                }
                return options, rest or [ast.Pass()]
        return {}, body

    def _next_index(self) -> int:
        self.num_blocks += 1
        return self.num_blocks


def _read_all(names: Sequence[str]) -> ast.expr:
    """Return a tuple of variables; those without a value are `ag__.undefined`."""
    return ast.Tuple(
        [
            ast_nodes.call_runtime("read_part", ast_nodes.make_thunk(ast_nodes.load_name(name)))
            for name in names
        ],
        ast.Load(),
    )


def _remove_declarations(body: list[ast.stmt]) -> list[ast.stmt]:
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

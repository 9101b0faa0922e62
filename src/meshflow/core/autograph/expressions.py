"""Transformation of expressions: calls, `and`/`or`/`not`, `a if c else b`, `a < b < c`.

Operands that Python evaluates only if needed become lambdas. An operand with `:=` cannot become
one, because the name would be local to the lambda; such an expression remains plain Python.
"""

from __future__ import annotations

import ast

from meshflow.core.autograph import ast_nodes

_STATIC_CALLS = frozenset({"isinstance", "issubclass", "hasattr", "callable"})
_STATIC_COMPARISONS = (ast.Is, ast.IsNot, ast.In, ast.NotIn)


class ExpressionTransformer(ast.NodeTransformer):
    """Transformer of the expressions of one function scope.

    Attributes:
      first_parameter: The first parameter of the function, for `super()`.
    """

    first_parameter: str | None = None

    def rewrite_expression(self, node: ast.expr) -> ast.expr:
        """Rewrite one expression."""
        result: ast.expr = self.visit(node)
        return result

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Convert the callee of a call, and give `super()` its arguments explicitly."""
        callee = node.func
        if isinstance(callee, ast.Name) and callee.id == "super" and not node.args:
            # In a generated inner function, `super()` would use the arguments of that function.
            if self.first_parameter is not None:
                node.args = [
                    ast_nodes.load_name("__class__"),
                    ast_nodes.load_name(self.first_parameter),
                ]
            return node
        self.generic_visit(node)
        node.func = ast.copy_location(ast_nodes.call_runtime("convert_callee", node.func), callee)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Rewrite `and` and `or` as calls with lazily evaluated operands."""
        binds = any(_binds_name(value) for value in node.values[1:])
        self.generic_visit(node)
        if binds or is_static(node):
            return node
        function = "and_" if isinstance(node.op, ast.And) else "or_"
        first, *others = node.values
        return ast.copy_location(
            ast_nodes.call_runtime(function, first, *map(ast_nodes.make_thunk, others)), node
        )

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """Rewrite `not` as a call if its operand may be a tensor."""
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and not is_static(node.operand):
            return ast.copy_location(ast_nodes.call_runtime("not_", node.operand), node)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """Rewrite `a if c else b` as a call with lazily evaluated branches."""
        unchanged = _binds_name(node.body) or _binds_name(node.orelse) or is_static(node.test)
        self.generic_visit(node)
        if unchanged:
            return node
        line = ast.Constant(node.lineno)
        call = ast_nodes.call_runtime(
            "if_exp",
            node.test,
            ast_nodes.make_thunk(node.body),
            ast_nodes.make_thunk(node.orelse),
            line,
        )
        return ast.copy_location(call, node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Rewrite a chain such as `a < b < c` as a call that stops at the first false comparison."""
        unchanged = len(node.ops) == 1 or any(_binds_name(c) for c in node.comparators)
        self.generic_visit(node)
        if unchanged:
            return node
        steps: list[ast.expr] = []
        for operator, right in zip(node.ops, node.comparators, strict=True):
            test = ast.Compare(
                ast_nodes.load_name("left"), [operator], [ast_nodes.load_name("right")]
            )
            steps.append(ast.Lambda(ast_nodes.make_parameters(("left", "right")), test))
            steps.append(ast_nodes.make_thunk(right))
        return ast.copy_location(ast_nodes.call_runtime("compare_chain", node.left, *steps), node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        """Return a local class unchanged."""
        # The methods are converted when they are called.
        return node


def is_static(test: ast.expr) -> bool:
    """Check whether a condition is a plain Python Boolean for any operands."""
    match test:
        case ast.Constant():
            return True
        case (
            ast.Call(func=ast.Name(id=called))
            | ast.Call(
                func=ast.Call(
                    func=ast.Attribute(value=ast.Name(id=ast_nodes.PREFIX)),
                    args=[ast.Name(id=called)],
                )
            )
        ):
            return called in _STATIC_CALLS
        case ast.Compare(ops=[operator]):
            return isinstance(operator, _STATIC_COMPARISONS)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return is_static(operand)
        case ast.BoolOp(values=values):
            return all(map(is_static, values))
    return False


def _binds_name(node: ast.expr) -> bool:
    return any(
        isinstance(part, (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await))
        for part in ast.walk(node)
    )

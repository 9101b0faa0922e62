"""Lower the jumps `break`, `continue` and early `return` to flags and guards.

Staged branches and loop bodies are functions, and a function cannot jump out of itself. After this
pass, the only jump in a function body is one final `return`:

    while t:                 ag__break_1 = False
        if a:                while not ag__break_1 and t:
            break                if a:
        x                            ag__break_1 = True
                                 else:
                                     x

If one branch of an `if` always jumps, the statements after the `if` move into the other branch.
That needs no guard, and it turns `if a: return 1` followed by `return 2` into a conditional in
which both branches have a result. In all other cases, the rest of the block is guarded by `if not
flag:`. The result is ordinary Python with the same behaviour.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from meshflow.core.autograph import ast_nodes
from meshflow.core.autograph.name_usage import SCOPES

# The flag that is set when a value was returned, and the returned value.
RETURNED_FLAG = ast_nodes.PREFIX + "returned"
RETURN_VALUE = ast_nodes.PREFIX + "value"

_LOOPS = (ast.For, ast.While)
_BRANCHING = (ast.If, ast.For, ast.While, ast.Match)


@dataclass(frozen=True)
class LoopFlags:
    """Names of the flags of the loop that encloses a statement."""

    break_flag: str
    continue_flag: str


def lower_jumps(body: list[ast.stmt]) -> list[ast.stmt]:
    """Lower the jumps of the statements of one function body, which are changed in place."""
    lowering = _JumpLowering(returns=_has_nested_return(body))
    if not lowering.returns:
        return lowering.lower_block(body, None)
    origin = body[-1]
    if not _always_jumps(body):
        body = [*body, *ast_nodes.set_positions([ast.Return(ast.Constant(None))], origin)]
    statements = lowering.lower_block(body, None)
    start = ast_nodes.set_positions(
        [ast_nodes.make_assignment(RETURNED_FLAG, ast.Constant(False))], body[0]
    )
    return [
        *start,
        *statements,
        *ast_nodes.set_positions([ast.Return(ast_nodes.load_name(RETURN_VALUE))], origin),
    ]


class _JumpLowering:
    def __init__(self, returns: bool) -> None:
        self.returns = returns
        self.num_loops = 0

    def lower_block(self, statements: Sequence[ast.stmt], loop: LoopFlags | None) -> list[ast.stmt]:
        """Lower a block; the statements after a jump are removed or guarded."""
        result: list[ast.stmt] = []
        for i, node in enumerate(statements):
            rest = list(statements[i + 1 :])
            if isinstance(node, ast.If):
                moved = _move_rest_into_branch(node, rest)
                node.body = self.lower_block(node.body, loop)
                node.orelse = self.lower_block(node.orelse, loop)
                result.append(node)
                if moved:
                    return result
                flags = self._list_flags(node.ag_jumps, loop)  # type: ignore[attr-defined]
                if flags and rest:
                    return [*result, *self._guard_rest(flags, rest, loop)]
                continue
            jumps = _find_jumps(node) if not isinstance(node, SCOPES) else set()
            result.extend(self._lower_statement(node, loop))
            flags = self._list_flags(jumps, loop)
            if flags:
                if _always_jumps([node]):
                    return result
                if rest:
                    return [*result, *self._guard_rest(flags, rest, loop)]
        return result

    def _guard_rest(
        self, flags: list[str], rest: list[ast.stmt], loop: LoopFlags | None
    ) -> list[ast.stmt]:
        guarded = self.lower_block(rest, loop)
        return ast_nodes.set_positions([ast.If(ast_nodes.negate_all(flags), guarded, [])], rest[0])

    def _list_flags(self, jumps: set[str], loop: LoopFlags | None) -> list[str]:
        flags = []
        if loop is not None and "break" in jumps:
            flags.append(loop.break_flag)
        if loop is not None and "continue" in jumps:
            flags.append(loop.continue_flag)
        if "return" in jumps and self.returns:
            flags.append(RETURNED_FLAG)
        return flags

    def _lower_statement(self, node: ast.stmt, loop: LoopFlags | None) -> list[ast.stmt]:
        match node:
            case ast.Return() if self.returns:
                value = node.value or ast.Constant(None)
                result: list[ast.stmt] = [
                    ast_nodes.make_assignment(RETURN_VALUE, value),
                    ast_nodes.make_assignment(RETURNED_FLAG, ast.Constant(True)),
                ]
                return ast_nodes.set_positions(result, node)
            case ast.Break() if loop is not None:
                return ast_nodes.set_positions(
                    [ast_nodes.make_assignment(loop.break_flag, ast.Constant(True))], node
                )
            case ast.Continue() if loop is not None:
                return ast_nodes.set_positions(
                    [ast_nodes.make_assignment(loop.continue_flag, ast.Constant(True))], node
                )
            case ast.For() | ast.While():
                return self._lower_loop(node, loop)
            case ast.With():
                node.body = self.lower_block(node.body, loop)
            case ast.Match():
                for case in node.cases:
                    case.body = self.lower_block(case.body, loop)
            case ast.Try() | ast.TryStar():
                self._lower_try(node, loop)
        return [node]

    def _lower_loop(self, node: ast.For | ast.While, outer: LoopFlags | None) -> list[ast.stmt]:
        self.num_loops += 1
        loop = LoopFlags(
            f"{ast_nodes.PREFIX}break_{self.num_loops}",
            f"{ast_nodes.PREFIX}continue_{self.num_loops}",
        )
        inside = set().union(*map(_find_jumps, node.body))
        body = self.lower_block(node.body, loop)
        if "continue" in inside:
            body = [
                *ast_nodes.set_positions(
                    [ast_nodes.make_assignment(loop.continue_flag, ast.Constant(False))],
                    node.body[0],
                ),
                *body,
            ]
        flags = self._list_flags(inside - {"continue"}, loop)
        result: list[ast.stmt] = []
        if "break" in inside:
            result += ast_nodes.set_positions(
                [ast_nodes.make_assignment(loop.break_flag, ast.Constant(False))], node
            )
        if flags:
            continues = ast_nodes.negate_all(flags)
            if isinstance(node, ast.For):
                node.ag_extra_test = ast.copy_location(continues, node)  # type: ignore[attr-defined]
            else:
                node.test = ast.copy_location(
                    ast.BoolOp(ast.And(), [continues, node.test]), node.test
                )
        orelse, node.orelse = node.orelse, []
        node.body = body
        result.append(node)
        if orelse:
            after = self.lower_block(orelse, outer)
            if flags:
                after = ast_nodes.set_positions(
                    [ast.If(ast_nodes.negate_all(flags), after, [])], orelse[0]
                )
            result += after
        return result

    def _lower_try(self, node: ast.Try | ast.TryStar, loop: LoopFlags | None) -> None:
        flags = self._list_flags(set().union(*map(_find_jumps, node.body)), loop)
        node.body = self.lower_block(node.body, loop)
        for handler in node.handlers:
            handler.body = self.lower_block(handler.body, loop)
        if node.orelse:
            node.orelse = (
                self._guard_rest(flags, node.orelse, loop)
                if flags
                else self.lower_block(node.orelse, loop)
            )


def _move_rest_into_branch(node: ast.If, rest: list[ast.stmt]) -> bool:
    """Move the statements after an `if` into the branch that does not jump; return if they moved."""
    node.ag_jumps = _find_jumps(node)  # type: ignore[attr-defined]
    if not node.ag_jumps:  # type: ignore[attr-defined]
        return False
    body_jumps, else_jumps = _always_jumps(node.body), _always_jumps(node.orelse)
    if body_jumps and not else_jumps:
        node.orelse = [*node.orelse, *rest]
    elif else_jumps and not body_jumps:
        node.body = [*node.body, *rest]
    return body_jumps or else_jumps


def _list_blocks(node: ast.stmt) -> list[list[ast.stmt]]:
    """List the blocks directly inside a statement."""
    blocks = [getattr(node, field, None) or [] for field in ("body", "orelse", "finalbody")]
    blocks += [part.body for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ()))]
    return blocks


def _find_jumps(node: ast.stmt) -> set[str]:
    """Return the keywords of the jumps that may leave a statement."""
    cached = getattr(node, "ag_known_jumps", None)
    if cached is not None:
        return cached
    jumps: set[str] = set()
    match node:
        case ast.Return():
            jumps = {"return"}
        case ast.Break():
            jumps = {"break"}
        case ast.Continue():
            jumps = {"continue"}
        case _ if not isinstance(node, SCOPES):
            for block in _list_blocks(node):
                jumps = jumps.union(*map(_find_jumps, block))
            if isinstance(node, _LOOPS):
                outer = set().union(*map(_find_jumps, node.orelse))
                jumps = (jumps - {"break", "continue"}) | outer
    # The result is cached, because lowering replaces the jumps by assignments.
    node.ag_known_jumps = jumps  # type: ignore[attr-defined]
    return jumps


def _always_jumps(block: Sequence[ast.stmt]) -> bool:
    """Check whether control never reaches the end of a block."""
    return any(_statement_always_jumps(node) for node in block)


def _statement_always_jumps(node: ast.stmt) -> bool:
    cached = getattr(node, "ag_always_jumps", None)
    if cached is not None:
        return cached
    result = False
    match node:
        case ast.Return() | ast.Break() | ast.Continue() | ast.Raise():
            result = True
        case ast.While(test=ast.Constant(value=endless)) if endless:
            result = not any("break" in _find_jumps(inner) for inner in node.body)
        case ast.If():
            result = _always_jumps(node.body) and _always_jumps(node.orelse)
        case ast.Try() | ast.TryStar():
            handled = all(_always_jumps(h.body) for h in node.handlers)
            result = handled and (_always_jumps(node.body) or _always_jumps(node.orelse))
    node.ag_always_jumps = result  # type: ignore[attr-defined]
    return result


def has_jump_in_finally(node: ast.Try | ast.TryStar) -> bool:
    """Check whether a jump leaves the `finally` block, which flags cannot express."""
    return any(_find_jumps(s) for s in node.finalbody)


def _has_nested_return(body: Sequence[ast.stmt], branching: bool = False) -> bool:
    """Check whether a `return` is inside a branch or loop, so that it must be lowered."""
    for node in body:
        if isinstance(node, ast.Return) and branching:
            return True
        if not isinstance(node, SCOPES):
            inside = branching or isinstance(node, _BRANCHING)
            if any(_has_nested_return(block, inside) for block in _list_blocks(node)):
                return True
    return False

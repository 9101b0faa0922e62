"""Liveness analysis: the variables that may still be read at each control-flow statement.

A staged branch or loop returns only the variables that are needed afterwards; requiring others
would make valid programs fail ("x is not defined in the else branch"). This is the textbook
backward analysis. It needs no control-flow graph, because it runs after jumps were lowered and sees
only nested blocks. A variable that an inner function uses is always live.

The results are attributes of the statements:

* `ag_after`: variables that are live after an `if`, `for` or `while`;
* `ag_before`: variables that are live at its start (for a loop: at the start of any iteration).
"""

from __future__ import annotations

import ast

from meshflow.core.autograph.name_usage import NameUsage


def annotate_liveness(body: list[ast.stmt], captured: set[str]) -> None:
    """Compute the liveness for a function body and store it on its statements.

    Args:
      body: Statements without `break`, `continue` or nested `return`.
      captured: Variables that are always live: global, nonlocal, or used by inner functions.
    """
    _LivenessAnalysis(captured).analyze_block(body, set())


class _LivenessAnalysis:
    def __init__(self, always: set[str]) -> None:
        self.always_live = always

    def analyze_block(self, statements: list[ast.stmt], after: set[str]) -> set[str]:
        """Return the variables that are live before a block, from those that are live after it."""
        live = after | self.always_live
        for statement in reversed(statements):
            live = self.analyze_statement(statement, live)
        return live

    def analyze_statement(self, node: ast.stmt, after: set[str]) -> set[str]:
        method = getattr(self, "visit_" + type(node).__name__, None)
        if method is not None:
            return method(node, after)
        names = NameUsage(node)
        return (after - names.writes) | names.reads | self.always_live

    def visit_If(self, node: ast.If, after: set[str]) -> set[str]:
        inside = self.analyze_block(node.body, after) | self.analyze_block(node.orelse, after)
        node.ag_after, node.ag_before = after, inside  # type: ignore[attr-defined]
        test = NameUsage(node.test)
        return (inside - test.writes) | test.reads

    def visit_While(self, node: ast.While, after: set[str]) -> set[str]:
        test = NameUsage(node.test)
        needed = set(test.reads)
        while True:
            inside = self.analyze_block(node.body, after | needed)
            new_needed = test.reads | (inside - test.writes)
            if new_needed == needed:
                break
            needed = new_needed
        node.ag_after, node.ag_before = after, needed  # type: ignore[attr-defined]
        return after | needed

    def visit_For(self, node: ast.For, after: set[str]) -> set[str]:
        stop = NameUsage(getattr(node, "ag_extra_test", None)).reads
        target = NameUsage(node.target)
        needed = set(stop)
        while True:
            inside = self.analyze_block(node.body, after | needed)
            new_needed = stop | (inside - target.writes) | target.reads
            if new_needed == needed:
                break
            needed = new_needed
        node.ag_after, node.ag_before = after, needed  # type: ignore[attr-defined]
        return after | needed | NameUsage(node.iter).reads

    def visit_With(self, node: ast.With, after: set[str]) -> set[str]:
        live = self.analyze_block(node.body, after)
        for item in reversed(node.items):
            names = NameUsage(item)
            live = (live - names.writes) | names.reads
        return live

    def visit_Try(self, node: ast.Try, after: set[str]) -> set[str]:
        final = self.analyze_block(node.finalbody, after)
        handlers = set(final) if node.finalbody else set()
        for handler in node.handlers:
            caught = self.analyze_block(handler.body, final) - {handler.name or ""}
            handlers |= caught | NameUsage(handler.type).reads
        # An exception may leave the body anywhere, so variables that handlers read are live in it.
        always, self.always_live = self.always_live, self.always_live | handlers
        live = self.analyze_block(node.body, self.analyze_block(node.orelse, final))
        self.always_live = always
        return live | handlers

    visit_TryStar = visit_Try

    def visit_Match(self, node: ast.Match, after: set[str]) -> set[str]:
        live = set(after)
        for case in node.cases:
            names = NameUsage(case.pattern, case.guard)
            live |= (self.analyze_block(case.body, after) - names.writes) | names.reads
        return live | NameUsage(node.subject).reads

    def visit_Return(self, node: ast.Return, after: set[str]) -> set[str]:
        return NameUsage(node.value).reads | self.always_live

    def visit_Raise(self, node: ast.Raise, after: set[str]) -> set[str]:
        return NameUsage(node.exc, node.cause).reads | self.always_live

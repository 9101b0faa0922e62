"""From a function's code object back to its syntax tree.

Files are parsed whole, so that line numbers need no correction; functions are then found
by their first line. Lambdas that share a line are told apart by the columns that Python (3.11
and later) records for every instruction.
"""

from __future__ import annotations

import ast
import copy
import linecache
from collections import defaultdict
from types import CodeType
from typing import Any

Definition = ast.FunctionDef | ast.Lambda


class SourceNotFoundError(Exception):
    """The source text of a function is not available or does not belong to it."""


class _File:
    """One parsed source file."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.by_line: dict[int, list[Any]] = defaultdict(list)
        try:
            tree = ast.parse("".join(lines))
        except SyntaxError as error:
            raise SourceNotFoundError(f"the file cannot be parsed: {error}") from error
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                # A decorated function starts at its first decorator.
                decorators = getattr(node, "decorator_list", [])
                self.by_line[min([node.lineno, *(d.lineno for d in decorators)])].append(node)


# Trees take more memory than all else that is kept of a file: those of the latest files are kept.
_FILES = 8
_files: dict[str, _File] = {}


def definition_of(code: CodeType, module_globals: dict[str, Any]) -> Definition:
    """The syntax tree of the function that `code` was compiled from, as a fresh copy.

    Args:
      code: a function's code object.
      module_globals: the function's globals, for loaders that keep sources.

    Returns:
      A `FunctionDef` without decorators, or a `Lambda`.

    Raises:
      SourceNotFoundError: when there is no source, or it has changed since.
    """
    filename = code.co_filename
    lines = linecache.getlines(filename, module_globals)
    if not lines:
        raise SourceNotFoundError(f"no source for {filename}")
    file = _files.pop(filename, None)
    if file is None or file.lines != lines:
        file = _File(list(lines))
    _files[filename] = file
    while len(_files) > _FILES:
        _files.pop(next(iter(_files)), None)
    candidates = [n for n in file.by_line.get(code.co_firstlineno, ()) if _matches(n, code)]
    if len(candidates) > 1:
        candidates = [n for n in candidates if _same_place(n, code)]
    if len(candidates) != 1:
        raise SourceNotFoundError(f"{code.co_name} not found at {filename}:{code.co_firstlineno}")
    return _copy(candidates[0], file.lines)


def _matches(node: Any, code: CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        named = code.co_name == "<lambda>"
    else:
        named = isinstance(node, ast.FunctionDef) and node.name == code.co_name
    if not named:
        return False
    args = node.args
    count = len(args.posonlyargs) + len(args.args)
    given = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    known = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    # Private names (`__x`) are mangled in the code.
    return count == code.co_argcount and all(
        k.endswith(g) for k, g in zip(known, given, strict=True)
    )


def _same_place(node: Any, code: CodeType) -> bool:
    body = node.body if isinstance(node, ast.Lambda) else node.body[0]
    first = (body.lineno, body.col_offset)
    last_node = node.body if isinstance(node, ast.Lambda) else node.body[-1]
    last = (last_node.end_lineno, last_node.end_col_offset)
    spots = [p for p in code.co_positions() if None not in p and p[3] > p[2]]  # type: ignore[operator]
    if not spots:
        return False
    begin = min((line, column) for line, _, column, _ in spots)
    end = max((line, column) for _, line, _, column in spots)
    return begin >= first and end == last


def _copy(node: Any, lines: list[str]) -> Definition:
    if isinstance(node, ast.Lambda):
        return copy.deepcopy(node)
    # Parsing the few lines again is several times faster than copying the tree.
    text = "".join(lines[node.lineno - 1 : node.end_lineno])
    indented = text[0] in " \t"
    start = node.lineno - 2 if indented else node.lineno - 1
    if _starts_line(node, lines):
        try:
            tree = ast.parse("if 1:\n" + text if indented else text)
            found: Any = tree.body[0].body[0] if indented else tree.body[0]  # type: ignore[attr-defined]
            ast.increment_lineno(found, start)
            found.decorator_list = []
            return found
        except SyntaxError:
            pass
    copied = copy.deepcopy(node)
    copied.decorator_list = []
    return copied


def _starts_line(node: Any, lines: list[str]) -> bool:
    return not lines[node.lineno - 1][: node.col_offset].strip()

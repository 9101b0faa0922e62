"""Lookup of the syntax tree of a function from its code object.

Files are parsed completely, so that line numbers need no correction; functions are then found by
their first line. Lambdas in the same line are distinguished by the columns that Python (3.11 and
later) records for every instruction.
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


class _ParsedFile:
    """A parsed source file, with its functions by their first line."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.by_line: dict[int, list[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda]] = (
            defaultdict(list)
        )
        try:
            tree = ast.parse("".join(lines))
        except SyntaxError as error:
            raise SourceNotFoundError(f"the file cannot be parsed: {error}") from error
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                # A decorated function starts at its first decorator.
                decorators = getattr(node, "decorator_list", [])
                self.by_line[min([node.lineno, *(d.lineno for d in decorators)])].append(node)


# Trees take most of the memory of a parsed file, so only the latest files are cached.
_MAX_CACHED_FILES = 8
_files: dict[str, _ParsedFile] = {}


def find_definition(code: CodeType, module_globals: dict[str, Any]) -> Definition:
    """Return a new copy of the syntax tree of the function from which `code` was compiled.

    Args:
      code: Code object of a function.
      module_globals: Globals of the function, for loaders that hold sources.

    Returns:
      A `FunctionDef` without decorators, or a `Lambda`.

    Raises:
      SourceNotFoundError: If there is no source, or if it has changed.
    """
    filename = code.co_filename
    lines = linecache.getlines(filename, module_globals)
    if not lines:
        raise SourceNotFoundError(f"no source for {filename}")
    file = _files.pop(filename, None)
    if file is None or file.lines != lines:
        file = _ParsedFile(list(lines))
    _files[filename] = file
    while len(_files) > _MAX_CACHED_FILES:
        _files.pop(next(iter(_files)), None)
    candidates = [n for n in file.by_line.get(code.co_firstlineno, ()) if _has_signature(n, code)]
    if len(candidates) > 1:
        candidates = [n for n in candidates if _has_position(n, code)]
    if len(candidates) != 1:
        raise SourceNotFoundError(f"{code.co_name} not found at {filename}:{code.co_firstlineno}")
    return _copy_definition(candidates[0], file.lines)


def _has_signature(node: Any, code: CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        has_name = code.co_name == "<lambda>"
    else:
        has_name = isinstance(node, ast.FunctionDef) and node.name == code.co_name
    if not has_name:
        return False
    args = node.args
    count = len(args.posonlyargs) + len(args.args)
    names = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    code_names = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    # Private names (`__x`) are mangled in the code.
    return count == code.co_argcount and all(
        c.endswith(n) for c, n in zip(code_names, names, strict=True)
    )


def _has_position(node: Any, code: CodeType) -> bool:
    body = node.body if isinstance(node, ast.Lambda) else node.body[0]
    first = (body.lineno, body.col_offset)
    last_node = node.body if isinstance(node, ast.Lambda) else node.body[-1]
    last = (last_node.end_lineno, last_node.end_col_offset)
    positions = [p for p in code.co_positions() if None not in p and p[3] > p[2]]  # type: ignore[operator]
    if not positions:
        return False
    begin = min((line, column) for line, _, column, _ in positions)
    end = max((line, column) for _, line, _, column in positions)
    return begin >= first and end == last


def _copy_definition(node: Any, lines: list[str]) -> Definition:
    if isinstance(node, ast.Lambda):
        return copy.deepcopy(node)
    # Parsing a few lines again is several times faster than copying the tree.
    text = "".join(lines[node.lineno - 1 : node.end_lineno])
    indented = text[0] in " \t"
    start = node.lineno - 2 if indented else node.lineno - 1
    if _is_first_in_line(node, lines):
        try:
            tree = ast.parse("if 1:\n" + text if indented else text)
            definition: Any = tree.body[0].body[0] if indented else tree.body[0]  # type: ignore[attr-defined]
            ast.increment_lineno(definition, start)
            definition.decorator_list = []
            return definition
        except SyntaxError:
            pass
    copied = copy.deepcopy(node)
    copied.decorator_list = []
    return copied


def _is_first_in_line(node: Any, lines: list[str]) -> bool:
    return not lines[node.lineno - 1][: node.col_offset].strip()

"""Lookup of the syntax tree of a function from its code object.

Files are parsed completely, so that line numbers need no correction; functions are then found by
their first line. Lambdas in the same line are distinguished by the columns that Python (3.11 and
later) records for every instruction.
"""

from __future__ import annotations

import ast
import copy
import functools
import linecache
import os
import symtable
import time
from collections import defaultdict
from collections.abc import Iterator
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

    @functools.cached_property
    def imports(self) -> frozenset[str]:
        """Return the names of the global imports; Python 3.11 calls their methods in another way."""
        symbols = symtable.symtable("".join(self.lines), "<source>", "exec").get_symbols()
        return frozenset(symbol.get_name() for symbol in symbols if symbol.is_imported())


# Trees take most of the memory of a parsed file, so only the latest files are cached.
# Functions of an edited file may belong to an earlier version of its text.
_MAX_CACHED_FILES, _MAX_CACHED_VERSIONS = 8, 3
# Files that changed after this time may no longer contain the source of loaded functions.
_START_TIME = time.time()
_files: dict[str, list[_ParsedFile]] = {}


def find_definitions(
    code: CodeType, module_globals: dict[str, Any]
) -> Iterator[tuple[Definition, _ParsedFile]]:
    """Find the syntax tree of the function from which `code` was compiled.

    Args:
      code: Code object of a function.
      module_globals: Globals of the function, for loaders that hold sources.

    Yields:
      A new copy of it: a `FunctionDef` without decorators, or a `Lambda`; first of the current text of
      the file, then of earlier ones if it has changed. The second value is the file.

    Raises:
      SourceNotFoundError: If there is no source.
    """
    filename = code.co_filename
    linecache.checkcache(filename)
    lines = linecache.getlines(filename, module_globals)
    if not lines:
        raise SourceNotFoundError(f"no source for {filename}")
    versions = _files.pop(filename, [])
    _files[filename] = versions
    while len(_files) > _MAX_CACHED_FILES:
        _files.pop(next(iter(_files)), None)
    if not any(file.lines == lines for file in versions):
        try:
            versions.insert(0, _ParsedFile(list(lines)))
        except SourceNotFoundError:
            if not versions:
                raise
    versions.sort(key=lambda file: file.lines != lines)
    del versions[_MAX_CACHED_VERSIONS:]
    for file in versions:
        yield from _find_in_file(code, file)


def is_edited(code: CodeType) -> bool:
    """Check whether the file of a function has changed since the program started."""
    try:
        return os.stat(code.co_filename).st_mtime >= _START_TIME
    except OSError:
        return False


def _find_in_file(code: CodeType, file: _ParsedFile) -> Iterator[tuple[Definition, _ParsedFile]]:
    candidates = [n for n in file.by_line.get(code.co_firstlineno, ()) if _has_signature(n, code)]
    if len(candidates) > 1:
        candidates = [n for n in candidates if _has_position(n, code)]
    if len(candidates) == 1:
        yield _copy_definition(candidates[0], file.lines), file


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

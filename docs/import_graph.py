"""Who imports whom in the package: circles, floors, and the picture of docs/architecture.md.

Run `python docs/import_graph.py` to draw `docs/architecture.svg` anew; `tests/test_imports.py` holds the rules. Imports
inside functions and those for type checkers count like all others.
"""

from __future__ import annotations

import ast
import collections
import functools
import html
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "architecture.svg"


class Import(NamedTuple):
    """One file's import of another.

    Attributes:
      importer: the module that imports.
      imported: the module that is imported.
      late: whether it stands inside a function.
      line: where it stands.
    """

    importer: str
    imported: str
    late: bool
    line: int


def modules() -> dict[str, Path]:
    """The package's files by module name."""
    found = {}
    for path in sorted(SOURCE.glob("meshflow/**/*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def imports() -> list[Import]:
    """Every import of one of the package's files by another."""
    files = modules()
    found = []
    for name, path in files.items():
        for node, late in _statements(ast.parse(path.read_text(encoding="utf-8"))):
            for target in _targets(node, name, path.name == "__init__.py"):
                imported = _file_of(target, files)
                if imported and imported != name:
                    found.append(Import(name, imported, late, node.lineno))
    return found


def _statements(
    tree: ast.AST, late: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, late
        else:
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _statements(child, late or inside)


def _targets(node: ast.Import | ast.ImportFrom, importer: str, package: bool) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        parents = importer.split(".") if package else importer.split(".")[:-1]
        kept = parents[: len(parents) - node.level + 1]
        base = ".".join([*kept, base] if base else kept)
    yield from (f"{base}.{alias.name}" for alias in node.names)


def _file_of(target: str, files: dict[str, Path]) -> str | None:
    """The module that a dotted name leads to; None outside of the package."""
    while target and target not in files:
        target = target.rpartition(".")[0]
    return target or None


def circles(arrows: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Groups of names that lead to each other (Tarjan's strongly connected components, without recursion)."""
    after: dict[str, list[str]] = collections.defaultdict(list)
    for start, end in arrows:
        after[start].append(end)
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_names: list[str] = []
    found = []
    for first in list(after):
        if first in number:
            continue
        work = [(first, iter(after[first]))]
        number[first] = lowest[first] = len(number)
        open_names.append(first)
        while work:
            name, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[name])
                if lowest[name] == number[name]:
                    group = open_names[open_names.index(name) :]
                    del open_names[open_names.index(name) :]
                    for member in group:
                        lowest[member] = sys.maxsize  # it is finished
                    if len(group) > 1:
                        found.append(sorted(group))
            elif following not in number:
                number[following] = lowest[following] = len(number)
                open_names.append(following)
                work.append((following, iter(after.get(following, ()))))
            else:
                lowest[name] = min(lowest[name], lowest[following])
    return found


def _block() -> list[list[str]]:
    """The words of the page's block of floors, lowest floor first; the page lists the highest first."""
    block = re.search(r"```floors\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None, f"{PAGE.name} has no block of floors"
    return [line.split() for line in reversed(block[1].strip().splitlines())]


def floors() -> list[list[str]]:
    """The rooms of every floor, lowest floor first."""
    return [[word.partition("=")[0] for word in line] for line in _block()]


def rooms() -> dict[str, str]:
    """The room of each module or folder that the page names: `room`, or `room=module+module` for several."""
    found = {}
    for word in (word for line in _block() for word in line):
        room, _, parts = word.partition("=")
        found.update(dict.fromkeys((parts or room).split("+"), room))
    return found


def room_of(module: str, table: dict[str, str]) -> str | None:
    """The room that a module is in: that of the longest name in the table that it begins with."""
    inner = module.removeprefix("meshflow").removeprefix(".") or "meshflow"
    found = [part for part in table if inner == part or inner.startswith(f"{part}.")]
    return table[max(found, key=len)] if found else None


def arrows_between_rooms(
    found: Iterable[Import], table: dict[str, str]
) -> dict[tuple[str, str], int]:
    """How many imports lead from one room to another."""
    counted: collections.Counter[tuple[str, str]] = collections.Counter()
    for arrow in found:
        start, end = room_of(arrow.importer, table), room_of(arrow.imported, table)
        if start and end and start != end:
            counted[start, end] += 1
    return dict(counted)


def needed(arrows: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """The arrows that no longer way stands for (the transitive reduction of an acyclic graph)."""
    after: dict[str, set[str]] = collections.defaultdict(set)
    for start, end in arrows:
        after[start].add(end)
    reached: dict[str, set[str]] = {}

    def reach(name: str) -> set[str]:
        if name not in reached:
            reached[name] = set()
            reached[name] = after[name].union(*(reach(n) for n in list(after[name])))
        return reached[name]

    return {
        (start, end)
        for start in list(after)
        for end in after[start]
        if not any(end in reach(other) for other in after[start] - {end})
    }


def picture() -> str:
    """The rooms on their floors as SVG; of the arrows those that no longer way stands for."""
    levels, found = floors(), imports()
    table = rooms()
    files = collections.Counter(room_of(module, table) for module in modules())
    arrows = needed(arrows_between_rooms(found, table))
    height, high, width = 74, 34, 1180
    places = {}
    boxes = []
    for number, level in enumerate(levels):
        y = (len(levels) - 1 - number) * height + 16
        step = min((width - 20) / len(level), 200)
        for place, room in enumerate(level):
            x = (width - step * len(level)) / 2 + place * step
            places[room] = x + step / 2, y
            label = f"{html.escape(room)} <tspan class='n'>{files[room]}</tspan>"
            boxes.append(
                f"<rect x='{x + 3:.0f}' y='{y}' width='{step - 6:.0f}' height='{high}' rx='5'/>"
                f"<text x='{x + step / 2:.0f}' y='{y + 21}'>{label}</text>"
            )
    lines = []
    for start, end in sorted(arrows):
        (x, y), (to_x, to_y) = places[start], places[end]
        lines.append(
            f"<path d='M{x:.0f} {y + high} C{x:.0f} {y + high + 26} {to_x:.0f} {to_y - 26} {to_x:.0f} {to_y}'>"
            f"<title>{html.escape(start)} imports {html.escape(end)}</title></path>"
        )
    style = (
        "rect{fill:#f3f6fb;stroke:#4a6a9a}text{font:12px sans-serif;text-anchor:middle;fill:#1b2a41}"
        ".n{fill:#7a8699;font-size:10px}path{fill:none;stroke:#9db2d0;stroke-width:1.2}path:hover{stroke:#c03}"
    )
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {len(levels) * height}'>",
            f"<style>{style}</style><rect width='100%' height='100%' style='fill:#fff;stroke:none'/>",
            *lines,
            *boxes,
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: {len(modules())} files, {len(imports())} imports")

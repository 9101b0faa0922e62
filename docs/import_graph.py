"""Find the imports between the package's modules: cycles, layers, and the picture of docs/architecture.md.

Run `python docs/import_graph.py` to draw `docs/architecture.svg` again; `tests/test_imports.py` checks the rules. Imports
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
    """Import of one module by another.

    Attributes:
      importer: The module that contains the import.
      imported: The module that is imported.
      line: Line number of the import.
    """

    importer: str
    imported: str
    line: int


def list_modules() -> dict[str, Path]:
    """Return the files of the package by module name."""
    found = {}
    for path in sorted(SOURCE.glob("meshflow/**/*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def find_imports() -> list[Import]:
    """Return all imports between modules of the package."""
    files = list_modules()
    found = []
    for name, path in files.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for target in _list_targets(node, name, path.name == "__init__.py"):
                    imported = _find_module(target, files)
                    if imported and imported != name:
                        found.append(Import(name, imported, node.lineno))
    return found


def _list_targets(
    node: ast.Import | ast.ImportFrom, importer: str, is_package: bool
) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        parents = importer.split(".") if is_package else importer.split(".")[:-1]
        remaining = parents[: len(parents) - node.level + 1]
        base = ".".join([*remaining, base] if base else remaining)
    yield from (f"{base}.{alias.name}" for alias in node.names)


def _find_module(target: str, files: dict[str, Path]) -> str | None:
    """Return the module that contains a dotted name, or None for names of other packages."""
    while target and target not in files:
        target = target.rpartition(".")[0]
    return target or None


def find_cycles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Return groups of nodes that are connected in cycles: Tarjan's strongly connected components.

    The algorithm uses an explicit stack instead of recursion.
    """
    successors: dict[str, list[str]] = collections.defaultdict(list)
    for start, end in edges:
        successors[start].append(end)
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_nodes: list[str] = []
    found = []
    for first in list(successors):
        if first in index:
            continue
        stack = [(first, iter(successors[first]))]
        index[first] = lowest[first] = len(index)
        open_nodes.append(first)
        while stack:
            node, rest = stack[-1]
            successor = next(rest, None)
            if successor is None:
                stack.pop()
                if stack:
                    parent = stack[-1][0]
                    lowest[parent] = min(lowest[parent], lowest[node])
                if lowest[node] == index[node]:
                    group = open_nodes[open_nodes.index(node) :]
                    del open_nodes[open_nodes.index(node) :]
                    for member in group:
                        lowest[member] = sys.maxsize  # The component is complete.
                    if len(group) > 1:
                        found.append(sorted(group))
            elif successor not in index:
                index[successor] = lowest[successor] = len(index)
                open_nodes.append(successor)
                stack.append((successor, iter(successors.get(successor, ()))))
            else:
                lowest[node] = min(lowest[node], lowest[successor])
    return found


def _read_block() -> list[list[str]]:
    """Return the words of each line of the page's block of layers, lowest layer first."""
    block = re.search(
        r"^## Layers\n.*?```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.M
    )
    assert block is not None, f"{PAGE.name} has no block of layers"
    return [line.split() for line in reversed(block[1].strip().splitlines())]


def read_layers() -> list[list[str]]:
    """Return the groups of modules of each layer, lowest layer first."""
    return [[word.partition("=")[0] for word in line] for line in _read_block()]


def read_groups() -> dict[str, str]:
    """Return the group of each module or package that the page names.

    A word of the page is either a module or package, or `group=module+module`.
    """
    found = {}
    for word in (word for line in _read_block() for word in line):
        group, _, members = word.partition("=")
        found.update(dict.fromkeys((members or group).split("+"), group))
    return found


def find_group(module: str, groups: dict[str, str]) -> str | None:
    """Return the group of a module: that of the longest name in `groups` that contains the module."""
    name = module.removeprefix("meshflow").removeprefix(".") or "meshflow"
    found = [member for member in groups if name == member or name.startswith(f"{member}.")]
    return groups[max(found, key=len)] if found else None


def find_group_edges(imports: Iterable[Import], groups: dict[str, str]) -> set[tuple[str, str]]:
    """Return the pairs of groups of which the first imports the second."""
    pairs = {(find_group(i.importer, groups), find_group(i.imported, groups)) for i in imports}
    return {(start, end) for start, end in pairs if start and end and start != end}


def reduce_edges(edges: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the transitive reduction of an acyclic graph: edges that no longer path implies."""
    successors: dict[str, set[str]] = collections.defaultdict(set)
    for start, end in edges:
        successors[start].add(end)
    reachable: dict[str, set[str]] = {}

    def reach(node: str) -> set[str]:
        if node not in reachable:
            reachable[node] = set()
            reachable[node] = successors[node].union(*(reach(n) for n in list(successors[node])))
        return reachable[node]

    return {
        (start, end)
        for start in list(successors)
        for end in successors[start]
        if not any(end in reach(other) for other in successors[start] - {end})
    }


def draw_picture() -> str:
    """Return the layers as SVG, with the edges that remain after a transitive reduction."""
    layers, groups = read_layers(), read_groups()
    counts = collections.Counter(find_group(module, groups) for module in list_modules())
    width, box_height, layer_height, margin, gap = 960, 32, 64, 12, 12
    centers: dict[str, tuple[float, int]] = {}
    boxes = []
    for index, layer in enumerate(layers):
        y = (len(layers) - 1 - index) * layer_height + margin
        # A box is as wide as its label: 7 pixels for each character of the name, and the count.
        sizes = [7 * len(group) + 38 for group in layer]
        x = (width - sum(sizes) - gap * (len(sizes) - 1)) / 2
        for group, size in zip(layer, sizes, strict=True):
            center = x + size / 2
            centers[group] = center, y
            label = f"{html.escape(group)} <tspan class='n'>{counts[group]}</tspan>"
            boxes.append(
                f"<rect class='{group.partition('.')[0]}' x='{x:.0f}' y='{y}' width='{size}' height='{box_height}' rx='5'/>"
                f"<text x='{center:.0f}' y='{y + 21}'>{label}</text>"
            )
            x += size + gap
    lines = []
    for start, end in sorted(reduce_edges(find_group_edges(find_imports(), groups))):
        (x, y), (to_x, to_y) = centers[start], centers[end]
        style = "long" if to_y - y > 3 * layer_height else "short"
        lines.append(
            f"<path class='{style}' d='M{x:.0f} {y + box_height} C{x:.0f} {y + box_height + 24} {to_x:.0f} {to_y - 24} {to_x:.0f} {to_y}'>"
            f"<title>{html.escape(start)} imports {html.escape(end)}</title></path>"
        )
    styles = (
        "rect{fill:#f4f5f7;stroke:#4a6a9a}.core{fill:#dfeafc}.keras{fill:#fde9d9}.distribute{fill:#e2f3e1}text{font:13px sans-serif;text-anchor:middle;fill:#1b2a41}"
        ".n{fill:#66738a;font-size:11px}path{fill:none;stroke:#7f98bd;stroke-width:1.3}.long{stroke:#ccd7e6;stroke-width:1}path:hover{stroke:#c03}"
    )
    height = len(layers) * layer_height
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}'>",
            f"<style>{styles}</style><rect width='100%' height='100%' style='fill:#fff;stroke:none'/>",
            *lines,
            *boxes,
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(draw_picture(), encoding="utf-8")
    print(
        f"{PICTURE.relative_to(ROOT)}: {len(list_modules())} modules, {len(find_imports())} imports"
    )

"""The API reference: one page for every public namespace, made from `__all__` and docstrings.

Public is what can be reached from `meshflow.__all__` through modules. An object with several
names (`tf.abs`, `tf.math.abs`) is described once, and its other names point there. The build
stops when a public name has no docstring.
"""

from __future__ import annotations

import inspect
import re
import types
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

import meshflow

FOLDER = "reference"


def namespaces() -> dict[str, types.ModuleType]:
    """Every public module by its public path.

    A module with several paths (`tf.losses`, `tf.keras.losses`) is kept under the one it was
    imported by. Each is expanded once: `tf.compat.v2` contains the whole of `tf`, itself included.
    """
    found: dict[int, tuple[str, types.ModuleType]] = {}
    waiting = deque([("meshflow", meshflow)])
    while waiting:
        path, module = waiting.popleft()
        if id(module) in found:
            continue
        found[id(module)] = (path, module)
        for name, value in members(module):
            if is_module(value):
                full = f"{path}.{name}"
                # Aliases wait until every module was seen under its own name.
                add = waiting.appendleft if value.__name__ == full else waiting.append
                add((full, value))
    return dict(sorted(found.values(), key=lambda item: item[0]))


def members(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """The public names of a module with what they mean."""
    for name in sorted(getattr(module, "__all__", ())):
        yield name, getattr(module, name)


def is_module(value: Any) -> bool:
    """Whether a value is a namespace of its own."""
    return isinstance(value, types.ModuleType)


def is_constant(value: Any) -> bool:
    """Whether a value is a plain object, which cannot carry a docstring."""
    return not (is_module(value) or callable(value))


# Namespaces of which the names are rather described elsewhere.
LATE = {"compat", "experimental", "legacy"}


def home_rank(path: str) -> tuple[bool, int, str]:
    """Orders the names of one object: the first in this order is where it is described."""
    return (not LATE.isdisjoint(path.split(".")), -path.count("."), path)


def homes(spaces: dict[str, types.ModuleType]) -> dict[int, str]:
    """Where each function and class is described, by identity."""
    found: dict[int, str] = {}
    for path, module in spaces.items():
        for name, value in members(module):
            if is_module(value) or is_constant(value):
                continue
            full = f"{path}.{name}"
            found[id(value)] = min(found.get(id(value), full), full, key=home_rank)
    return found


def undocumented(spaces: dict[str, types.ModuleType]) -> list[str]:
    """Public names without a docstring of their own."""
    names = [path for path, module in spaces.items() if not (module.__doc__ or "").strip()]
    for path, module in spaces.items():
        names += [
            f"{path}.{name}"
            for name, value in members(module)
            if not is_module(value) and not is_constant(value)
            if not (value.__doc__ or "").strip()
        ]
    return names


def spelled(path: str) -> str:
    """The name as users write it."""
    return "tf" + path.removeprefix("meshflow")


def page(path: str, module: types.ModuleType, home: dict[int, str], paths: dict[int, str]) -> str:
    """The text of one namespace's page."""
    title = spelled(path)
    sections: dict[str, list[str]] = {
        "Namespaces": [],
        "Classes": [],
        "Functions": [],
        "Constants": [],
        "Also here": [],
    }
    for name, value in members(module):
        full = f"{path}.{name}"
        if is_module(value):
            target = paths[id(value)]
            sections["Namespaces"].append(f"* :doc:`{spelled(full)} <{target}>`")
        elif is_constant(value):
            sections["Constants"].append(f"* ``{spelled(full)}``: ``{value!r}``")
        elif home[id(value)] != full:
            target = home[id(value)]
            sections["Also here"].append(
                f"* ``{spelled(full)}`` is :py:obj:`{spelled(target)} <{target}>`"
            )
        elif inspect.isclass(value):
            # Classes of other packages have their own reference.
            own = value.__module__.partition(".")[0] == meshflow.__name__
            members_too = "   :members:\n" if own else ""
            sections["Classes"].append(f".. autoclass:: {full}\n{members_too}")
        else:
            sections["Functions"].append(f".. autofunction:: {full}\n")
    lines = [
        title,
        "=" * len(title),
        "",
        f".. automodule:: {path}\n   :no-members:\n   :no-index:\n",
    ]
    for heading, entries in sections.items():
        if entries:
            lines += [heading, "-" * len(heading), "", *entries, ""]
    return "\n".join(lines)


def generate(app: Sphinx) -> None:
    """Writes the pages before Sphinx reads its sources.

    Raises:
      ExtensionError: public names have no docstring.
    """
    spaces = namespaces()
    missing = undocumented(spaces)
    if missing:
        raise ExtensionError("Public names without a docstring: " + ", ".join(sorted(missing)))
    home = homes(spaces)
    paths = {id(module): path for path, module in spaces.items()}
    folder = Path(app.srcdir) / FOLDER
    folder.mkdir(exist_ok=True)
    pages = {f"{path}.rst": page(path, module, home, paths) for path, module in spaces.items()}
    for stale in {file.name for file in folder.glob("*.rst")} - pages.keys():
        (folder / stale).unlink()
    for name, text in pages.items():
        file = folder / name
        # An unchanged file keeps its date, and Sphinx skips it.
        if not file.exists() or file.read_text() != text:
            file.write_text(text)


def escape(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Makes of docstrings, which are written for people who read source, what docutils reads as they meant it.

    What is between backticks is code, also with letters right behind it and over the end of a line; elsewhere
    `*`, `|` and a trailing `_` stand for themselves. Examples stay as they are.
    """
    example = False
    paragraph: list[int] = []
    for i, line in enumerate([*lines, ""]):
        example = (example or line.lstrip().startswith(">>>")) and bool(line.strip())
        if line.strip() and not example:
            paragraph.append(i)
            continue
        if paragraph:
            text = "\n".join(lines[k] for k in paragraph)
            for k, new in zip(paragraph, marked(text).split("\n"), strict=True):
                lines[k] = new
        paragraph = []


# Names of arguments such as `**kwargs:`, which napoleon reads itself, and what docutils would take for markup.
_MARKUP = re.compile(r"^(\s*\*{1,2}\w+)(?=:)|[*|]|(?<=\w)_(?!\w)", re.MULTILINE)


def marked(text: str) -> str:
    """A paragraph in which code is marked as docutils wants it, and nothing else means anything."""
    parts = text.split("`")
    if len(parts) % 2 == 0 or "``" in text:
        return text
    for k in range(0, len(parts), 2):
        parts[k] = _MARKUP.sub(lambda found: found[1] or f"\\{found[0]}", parts[k])
    for k in range(1, len(parts), 2):
        before, after = parts[k - 1][-1:], parts[k + 1][:1]
        start = "\\ " if before.isalnum() or before in ("|", "*") else ""
        end = "\\ " if after.isalnum() or after in ("(", "[", "\\") else ""
        parts[k] = f"{start}``{parts[k]}``{end}"
    return "".join(parts)


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's entry point."""
    app.connect("builder-inited", generate)
    app.connect("autodoc-process-docstring", escape, priority=100)
    return {"parallel_read_safe": True}

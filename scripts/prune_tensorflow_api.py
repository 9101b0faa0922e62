"""Remove what Meshflow does not need from the tables that `record_tensorflow_api.py` writes.

A line of `v1_names.txt` stays if the name would have another meaning without it, or be missing in `dir`. In `arguments.txt`,
ops that Meshflow does not compute are names without arguments, several in a line. Run it after the other
script, in Meshflow's environment.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from meshflow.legacy.compat import namespaces
from meshflow.raw_ops import operations

V1_FILE = Path(namespaces.__file__).with_name("v1_names.txt")
WIDTH = 120


def describe(path: str) -> object:
    """Return the meaning of a name of `tf.compat.v1`, and whether `dir` has it."""
    namespaces.find_name.cache_clear()
    package, _, name = path.rpartition(".")
    names = namespaces._tf.__all__ if not package else dir(namespaces.Namespace(package))
    is_listed = name in names or name in namespaces.list_attributes(package)
    try:
        return is_listed, namespaces.find_name(path)
    except AttributeError as error:
        return is_listed, type(error), str(error)


def prune_v1_names(lines: list[str]) -> list[str]:
    """Return the lines that change the meaning of a name."""
    _, *tables = namespaces._list_names()
    kept = []
    for line in lines:
        kind, path = line[0], line[2:].partition(" ")[0].partition("(")[0]
        if kind != "m":
            table = tables[kind == "f"]
            before, entry = describe(path), table.pop(path)
            if describe(path) == before:
                continue
            table[path] = entry
        kept.append(line)
    return kept


def prune_ops(texts: dict[str, str]) -> list[str]:
    """Return the lines of the ops that Meshflow computes, and then the names of the others."""
    ops = operations.list_ops()
    others = " ".join(name for name in texts if name not in ops)
    return [*(texts[name] for name in texts if name in ops), *textwrap.wrap(others, WIDTH)]


def main() -> None:
    """Write the files."""
    V1_FILE.write_text("\n".join(prune_v1_names(V1_FILE.read_text().splitlines())) + "\n")
    operations.FILE.write_text("\n".join(prune_ops(operations._read_lines())) + "\n")


if __name__ == "__main__":
    main()

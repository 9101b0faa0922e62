"""Write the public names of the TensorFlow release that is installed to files of Meshflow.

`tests/reference/tensorflow_api.txt.xz` has all names, `src/meshflow/legacy/compat/v1_names.txt` the names of
`tf.compat.v1` that refer to another path or have other arguments in TensorFlow 2, and
`src/meshflow/raw_ops/arguments.txt` the raw ops. Run `prune_tensorflow_api.py` after it: the tables have only what Meshflow needs.

Run it in an environment with `tensorflow-cpu==2.15.1`. Each line of the text has one name: `kind path(arguments)`, where
the kind is a letter (module, class, function, value, or `=` for another name of an object). The lines of the
members of a class follow the class, indented. Default values are `repr`s, or `...` for objects.
"""

from __future__ import annotations

import enum
import inspect
import lzma
import os
import types
from collections.abc import Iterator
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "reference" / "tensorflow_api.txt.xz"
V1_FILE = ROOT / "src" / "meshflow" / "legacy" / "compat" / "v1_names.txt"
RAW_FILE = ROOT / "src" / "meshflow" / "raw_ops" / "arguments.txt"
V1 = "compat.v1."
# Public names with underscores.
DUNDERS = (
    "__internal__",
    "__operators__",
    "__version__",
    "__git_version__",
    "__compiler_version__",
)
# Paths that repeat other ones.
REPEATED = ("compat.v2", "compat.v1.compat", "compat.v1.keras", "compat.v1.raw_ops")
REPEATED += ("compat.v1.experimental.numpy", "estimator", "compat.v1.estimator")


def format_default(value: object) -> str:
    """Return a text for a default value."""
    if isinstance(value, tf.DType):
        return f"tf.{value.name}"
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, list | tuple) and all(isinstance(v, int | float | str) for v in value):
        return repr(value)
    return f"{type(value).__name__}.{value.name}" if isinstance(value, enum.Enum) else "..."


def format_signature(value: object) -> str:
    """Return the arguments of a function with their defaults, or an empty string."""
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):
        return ""
    parts, keyword_only = [], False
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not keyword_only:
            parts.append("*")
        keyword_only = p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        default = "" if p.default is p.empty else f"={format_default(p.default)}"
        parts.append(f"{star}{p.name}{default}")
    return f"({', '.join(parts)})"


def list_members(cls: type, public: set[type]) -> Iterator[str]:
    """Yield the lines of the public members that a class does not inherit from another public class."""
    members = {}
    for base in reversed(cls.__mro__[:-1]):
        if base is cls or base not in public:
            members.update(vars(base))
        else:
            members = {k: v for k, v in members.items() if not hasattr(base, k)}
    for name, value in sorted(members.items()):
        if name.startswith("_") or isinstance(value, types.ModuleType):
            continue
        value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        yield f" {name}{format_signature(value) if callable(value) else ''}"


def walk(module: types.ModuleType, path: str, found: dict[str, object], seen: set[int]) -> None:
    """Collect the public names below a module."""
    seen.add(id(module))
    for name in sorted(dir(module)):
        if name.startswith("_") and name not in DUNDERS:
            continue
        value, full = getattr(module, name), f"{path}.{name}".lstrip(".")
        if isinstance(value, types.ModuleType):
            file = getattr(value, "__file__", "") or ""
            public = "_api" in file or "keras/api" in file or full == "summary"
            if full in REPEATED or not public or (id(value) in seen and "compat" not in full):
                continue
            found[full] = value
            if id(value) not in seen:
                walk(value, full, found, seen)
        else:
            found[full] = value


def list_v1_names(lines: list[str]) -> Iterator[str]:
    """Yield the namespaces and functions of `tf.compat.v1`, and its names with other paths in TensorFlow 2."""
    for line in lines:
        if line[0] in "mf=" and line[2:].startswith(V1):
            kind, path, *rest = line.replace(V1, "", 1).split(" ", 2)
            if rest[:1] != [path]:
                yield " ".join([kind, path, *rest])


def format_op(name: str) -> str:
    """Return the inputs of an op with the attributes of their dtypes and counts, and the names of its outputs."""
    op = op_def_registry.get(name)
    inputs = [f"{a.name}:{a.type_attr or a.type_list_attr}*{a.number_attr}" for a in op.input_arg]
    return f"{' '.join(i.rstrip('*').rstrip(':') for i in inputs)} -> {' '.join(a.name for a in op.output_arg)}"


def main() -> None:
    """Write the files."""
    found: dict[str, object] = {}
    walk(tf, "", found, set())
    for name in ("keras", "losses", "metrics", "optimizers", "initializers"):
        found[name] = getattr(tf, name)
        walk(found[name], name, found, set())
    public = {v for v in found.values() if inspect.isclass(v)}
    names: dict[int, str] = {}
    lines = []
    for path, value in sorted(
        found.items(), key=lambda item: ("compat" in item[0], item[0].count("."), item[0])
    ):
        if isinstance(value, types.ModuleType):
            lines.append(f"m {path}")
        elif callable(value) and names.setdefault(id(value), path) != path:
            lines.append(f"= {path} {names[id(value)]}")
        elif inspect.isclass(value):
            bases = [names[id(b)] for b in value.__mro__[1:] if id(b) in names][:1]
            lines += [
                f"c {path}{format_signature(value)}{' < ' + bases[0] if bases else ''}",
                *list_members(value, public),
            ]
        elif callable(value):
            lines.append(f"f {path}{format_signature(value)}")
        else:
            lines.append(f"v {path}")
    FILE.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9))
    V1_FILE.write_text("\n".join(list_v1_names(lines)) + "\n")
    raw_ops = [
        f"{line.removeprefix('f raw_ops.')} {format_op(line[10:].partition('(')[0])}"
        for line in lines
        if line.startswith("f raw_ops.")
    ]
    RAW_FILE.write_text("\n".join(raw_ops) + "\n")
    print(len(lines), "lines", FILE.stat().st_size, "bytes")


if __name__ == "__main__":
    main()

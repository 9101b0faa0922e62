"""Compare the public names of TensorFlow 2.15 with those of Meshflow.

    python docs/tensorflow_names.py [--list missing|refused|arguments|members]

The page `docs/reference_names.md` is written, with a table of namespaces. `scripts/record_tensorflow_api.py` recorded the
names of TensorFlow.
"""

from __future__ import annotations

import argparse
import inspect
import lzma
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import meshflow as tf
MEMBER_REASONS = {}
from meshflow.core.runtime.errors import NotAvailableError

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "reference" / "tensorflow_api.txt.xz"
PAGE = ROOT / "docs" / "guides" / "tensorflow_names.md"


class PublicName(NamedTuple):
    """Public name of TensorFlow.

    Attributes:
      kind: "m", "c", "f", "v" (module, class, function, value) or "=" (another name of an object).
      path: Path below `tf`.
      arguments: Signature in parentheses, or an empty string.
      members: Names and signatures of the members that a class adds to its public base.
    """

    kind: str
    path: str
    arguments: str
    members: list[tuple[str, str]]


def read_record() -> list[PublicName]:
    """Return the names of TensorFlow."""
    names: list[PublicName] = []
    for line in lzma.decompress(RECORD.read_bytes()).decode().splitlines():
        kind, path, arguments = re.fullmatch(r"(.) ?([\w.]+)(\(.*\))?(?: .*)?", line).groups()
        if kind == " ":
            names[-1].members.append((path, arguments or ""))
        else:
            names.append(PublicName(kind, path, arguments or "", []))
    return names


def find(path: str) -> tuple[str, object]:
    """Return "available" and the object of a path, or "refused" or "missing" and the message."""
    found: object = tf
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except NotAvailableError as error:
            return "refused", str(error)
        except AttributeError as error:
            return "missing", str(error)
    return "available", found


def split_arguments(text: str) -> list[str]:
    """Split the text of a signature into its arguments."""
    parts, depth, start = [], 0, 1
    quoted = re.sub(r"'[^']*'", lambda m: "x" * len(m[0]), text)
    for i, c in enumerate(quoted):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 1 or depth == 0 and i:
            parts.append(text[start:i].strip())
            start = i + 1
    return [p for p in parts if p and p != "*"]


def compare_arguments(expected: str, value: object, is_member: bool = False) -> str:
    """Return the first difference of the arguments of a function or class, or an empty string."""
    try:
        ours = inspect.signature(value)
    except (ValueError, TypeError):
        return ""
    kinds = [p.kind for p in ours.parameters.values()]
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds
    names = [n for n in ours.parameters if n != "self"]
    for i, part in enumerate(a for a in split_arguments(expected) if a not in ("self", "cls")):
        name, _, default = part.partition("=")
        if name.startswith("*"):
            continue
        if name not in ours.parameters:
            if takes_any:
                continue
            return f"no argument {name}"
        if "*" not in expected.partition(name)[0] and inspect.Parameter.VAR_POSITIONAL not in kinds:
            if i >= len(names) or names[i] != name:
                return f"{name} is not argument {i}"
        own = ours.parameters[name].default
        if default and own is inspect.Parameter.empty:
            return f"{name} has no default"
    return ""


def list_differences(names: list[PublicName]) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, path and description of each difference."""
    for name in names:
        status, found = find(name.path)
        if status != "available":
            yield status, name.path, str(found)
            continue
        if name.kind in "fc" and name.arguments:
            if difference := compare_arguments(name.arguments, found):
                yield "arguments", name.path, difference
        for member, arguments in name.members:
            full = f"{name.path}.{member}"
            if not hasattr(found, member) and member not in getattr(found, "__annotations__", ()):
                yield "member", full, MEMBER_REASONS.get(full, "")
            elif arguments and not isinstance(inspect.getattr_static(found, member, None), property):
                if difference := compare_arguments(arguments, getattr(found, member, None), True):
                    yield "member arguments", full, difference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", help="print the differences of one kind")
    kind = parser.parse_args().list
    differences = list(list_differences(read_record()))
    if kind:
        for found, path, text in differences:
            if found == kind:
                print(path, text)
    print(Counter(found for found, _, _ in differences))


if __name__ == "__main__":
    main()

"""Compare the public names of TensorFlow 2.15 with those of Meshflow.

    python docs/tensorflow_names.py [--list missing|refused|arguments|members]

The page `docs/guides/tensorflow_names.md` is written. `scripts/record_tensorflow_api.py` recorded the names of TensorFlow.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import functools
import inspect
import lzma
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import meshflow as tf
from meshflow.core.runtime.errors import NotAvailableError

# Namespaces whose names are described by one line of the page.
LARGE = ("raw_ops",)
# Members of TensorFlow's classes that mean nothing here, by the reason.
MEMBER_REASONS = {
    "there are no graphs": (
        "graph op consumers eval node_def name_scope colocate_with container collections run traceback control_inputs "
        "session building_function finalize as_graph_element initializer to_proto from_proto count_up_to load "
        "initialized_value SaveSliceInfo value_index "
        "is_packed get_updates get_losses_for get_updates_for state_updates initialize scope_name graph_parents"
    ),
    "messages have the fields that files need": (
        "ByteSize Clear ClearExtension ClearField CopyFrom DESCRIPTOR DeviceCountEntry DiscardUnknownFields Experimental "
        "Extensions FindInitializationErrors FromString HasExtension HasField IsInitialized ListFields MergeFrom "
        "MergeFromString ParseFromString RegisterExtension SerializePartialToString SerializeToString SetInParent "
        "UnknownFields WhichOneof MetaInfoDef ExperimentalDebugInfo Audio Image CompositeTensor CooSparse"
    ),
    "traces are keyed by specs themselves": (
        "cast experimental_as_proto experimental_from_proto experimental_type_proto flatten from_tensors as_proto "
        "most_specific_common_supertype most_specific_compatible_type placeholder_value to_tensors is_subtype_of "
        "function_type inference_fn call_with_captures get_initialization_function experimental_get_compiler_ir function_spec"
    ),
    "NumPy 2 has removed it": "itemset newbyteorder ptp tostring",
    "strategies are programs over a mesh": (
        "broadcast_to colocate_vars_with configure experimental_between_graph experimental_make_numpy_dataset "
        "experimental_run_steps_on_iterator experimental_should_init make_input_fn_iterator non_slot_devices "
        "read_var should_checkpoint should_save_summary steps_per_run update_config_proto update_non_slot "
        "from_variable_aggregation get_coordination_service_leader tpu_hardware_feature"
    ),
}
_REASON_BY_MEMBER = {
    name: reason for reason, names in MEMBER_REASONS.items() for name in names.split()
}
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
        if (c == "," and depth == 1) or (depth == 0 and i):
            parts.append(text[start:i].strip())
            start = i + 1
    return [p for p in parts if p and p != "*"]


def compare_arguments(expected: str, value: object) -> str:
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
        is_positional = (
            "*" not in expected.partition(name)[0] and inspect.Parameter.VAR_POSITIONAL not in kinds
        )
        if is_positional and names[i : i + 1] != [name]:
            return f"{name} is not argument {i}"
        own = ours.parameters[name].default
        if default and own is inspect.Parameter.empty:
            return f"{name} has no default"
    return ""


@functools.cache
def read_source(cls: type) -> str:
    """Return the source of a class and its bases."""
    parts = []
    for base in getattr(cls, "__mro__", ())[:-1]:
        with contextlib.suppress(OSError, TypeError):
            parts.append(inspect.getsource(base))
    return "\n".join(parts)


def has_member(cls: object, name: str) -> bool:
    """Check whether a class, or each of its instances, has an attribute."""
    if hasattr(cls, name) or (isinstance(cls, enum.EnumMeta) and name in ("name", "value")):
        return True
    if any(name in vars(base).get("__annotations__", ()) for base in getattr(cls, "__mro__", ())):
        return True
    return re.search(rf"self\.{name}\b|\b{name}: |[(, ]self\.{name},", read_source(cls)) is not None


def list_differences(names: list[PublicName]) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, path and description of each difference."""
    for name in names:
        status, found = find(name.path)
        if status != "available":
            yield status, name.path, str(found)
            continue
        difference = (
            compare_arguments(name.arguments, found) if name.kind in "fc" and name.arguments else ""
        )
        if difference:
            yield "arguments", name.path, difference
        for member, arguments in name.members:
            full = f"{name.path}.{member}"
            if not has_member(found, member):
                yield "member", full, _REASON_BY_MEMBER.get(member, "")
            elif arguments and not isinstance(
                inspect.getattr_static(found, member, None), property
            ):
                difference = compare_arguments(arguments, getattr(found, member, None))
                if difference:
                    yield "member arguments", full, difference


def format_page(names: list[PublicName], differences: list[tuple[str, str, str]]) -> str:
    """Return the text of the page."""
    spaces: dict[str, Counter[str]] = defaultdict(Counter)
    status = {path: found for found, path, _ in differences if found in ("refused", "missing")}
    for name in names:
        if name.kind != "m":
            parts = name.path.split(".")[:-1]
            spaces[".".join(["tf", *parts[: 3 if parts[:1] == ["compat"] else 2]])][
                status.get(name.path, "available")
            ] += 1
    lines = [
        "# TensorFlow's names",
        "",
        "For TensorFlow users: which public names of TensorFlow 2.15 Meshflow has. Access to a refused name raises `NotAvailableError`, which is",
        "an `AttributeError`, with the reason. `python docs/tensorflow_names.py` writes this page from the record of TensorFlow's names in",
        "`tests/reference/tensorflow_api.txt.xz` and from Meshflow itself.",
        "",
        "| namespace | available | refused |",
        "| --- | --- | --- |",
    ]
    for space, counts in sorted(spaces.items()):
        lines.append(f"| `{space}` | {counts['available']} | {counts['refused']} |")
    total = sum(spaces.values(), Counter())
    lines += [f"| all | {total['available']} | {total['refused']} |", "", "## Refused names", ""]
    by_reason: dict[str, list[str]] = defaultdict(list)
    for found, path, text in differences:
        if found == "refused" and not path.startswith(LARGE):
            by_reason[text.partition(": ")[2]].append(path)
    lines.append(
        f"Of `tf.raw_ops`, {spaces['tf.raw_ops']['refused']} ops are refused: datasets, tables, queues, TPU and quantized ops."
    )
    for reason, paths in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        lines += [
            "",
            f"- {reason[0].upper()}{reason[1:]}",
            f"  {', '.join(f'`{p}`' for p in sorted(paths))}",
        ]
    lines += [
        "",
        "## Differences of arguments",
        "",
        "Other arguments have TensorFlow's names, order and defaults.",
        "",
    ]
    lines += ["| name | difference |", "| --- | --- |"]
    lines += [f"| `{path}` | {text} |" for found, path, text in differences if "arguments" in found]
    lines += ["", "## Members", "", "These members of classes do not exist.", ""]
    members: dict[str, list[str]] = defaultdict(list)
    for found, path, text in differences:
        if found == "member":
            members[text or "no counterpart"].append(path)
    for reason, paths in sorted(members.items()):
        by_class: dict[str, list[str]] = defaultdict(list)
        for path in paths:
            owner, _, member = path.rpartition(".")
            by_class[owner].append(member)
        text = "; ".join(
            f"`{owner}`: {', '.join(found)}" for owner, found in sorted(by_class.items())
        )
        lines += [f"- {reason[0].upper()}{reason[1:]}: {text}", ""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Write the page, or print differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", help="print the differences of one kind")
    kind = parser.parse_args().list
    names = read_record()
    differences = list(list_differences(names))
    if kind:
        for found, path, text in differences:
            if found == kind:
                print(path, text)
        print(Counter(found for found, _, _ in differences))
    else:
        PAGE.write_text(format_page(names, differences))


if __name__ == "__main__":
    main()

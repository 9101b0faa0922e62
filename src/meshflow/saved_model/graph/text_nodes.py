"""What is done to strings before a program runs, as TensorFlow's ops."""

from __future__ import annotations

import re
import zlib
from typing import Any

import numpy as np

from meshflow.core.values.dtypes import as_dtype
from meshflow.saved_model.graph.nodes import STRING, Type, add_node, constant, datatype, strings

__all__ = ["Nodes", "add_steps"]

_INT64 = 9


def add_steps(function: Any, prefix: str, value: str, steps: Any) -> str:
    """Adds the nodes of steps to a function.

    Args:
      function: the `FunctionDef`.
      prefix: how their names begin.
      value: the strings.
      steps: as in `saved_model/text.py`.

    Returns:
      The output that is their result.
    """
    nodes, rows = Nodes(function.node_def, prefix), ("", "")
    for name, *more in steps:
        if name == "lower":
            value = nodes.add("StringLower", [value], "output", encoding=b"")
        elif name == "remove":
            pattern = "[" + "".join(map(re.escape, more[0])) + "]"
            value = nodes.add(
                "StaticRegexReplace",
                [value],
                "output",
                pattern=pattern.encode("latin-1"),
                rewrite=b"",
                replace_global=True,
            )
        elif name == "flat":
            value = nodes.add("Squeeze", [value], "output", T=Type(STRING), squeeze_dims=_minus_one)
        elif name == "split":
            parts = nodes.add(
                "StringSplitV2", [value, nodes.constant(b"")], "indices", maxsplit=-1
            ).split(":")[0]
            rows = f"{parts}:indices:0", f"{parts}:shape:0"
            value = f"{parts}:values:0"
        elif name == "look":
            value = _look_up(nodes, value, *more)
        else:
            value = _pad(nodes, value, rows, *more)
    return value


def _minus_one(attr: Any) -> None:
    attr.list.i.append(-1)


class Nodes:
    """Adds nodes under names of their own.

    Args:
      where: a repeated field of nodes.
      prefix: how the names begin.
      whole_graph: whether they are a graph's, where outputs have no names, not a function's.
    """

    def __init__(self, where: Any, prefix: str, whole_graph: bool = False) -> None:
        self._where, self._prefix, self._count = where, prefix, 0
        self._whole_graph = whole_graph

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Adds a node; gives its output."""
        self._count += 1
        name = f"{self._prefix}_{self._count}"
        add_node(self._where, name, op, inputs, **attributes)
        return name if self._whole_graph else f"{name}:{output}:0"

    def constant(self, value: Any) -> str:
        """Adds a constant; gives its output."""
        array = np.asarray(value, object) if isinstance(value, bytes) else np.asarray(value)
        kind = STRING if array.dtype.hasobject else datatype(array.dtype)
        return self.add("Const", [], "output", value=constant(array), dtype=Type(kind))


def _look_up(
    nodes: Nodes,
    value: str,
    words: list[str],
    numbers: list[Any],
    others: Any,
    dtype: str = "int64",
) -> str:
    """A table that is filled where it is used; filled once, it stays as it is."""
    kind, held = Type(datatype(dtype)), as_dtype(dtype).as_numpy_dtype
    keys = np.empty(len(words), object)
    keys[:] = [w.encode("latin-1") for w in words]
    same = zlib.crc32(repr((words, numbers, dtype)).encode())
    kinds = {"key_dtype": Type(STRING), "value_dtype": kind}
    table = nodes.add(
        "HashTableV2",
        [],
        "table_handle",
        shared_name=f"words_{same:08x}".encode(),
        container=b"",
        use_node_name_sharing=True,
        **kinds,
    )
    filled = nodes.add(
        "InitializeTableV2",
        [table, nodes.constant(keys), nodes.constant(np.array(numbers, held))],
        "",
        Tkey=Type(STRING),
        Tval=kind,
    )
    return nodes.add(
        "LookupTableFindV2",
        [table, value, nodes.constant(held(others)), "^" + filled.split(":")[0]],
        "values",
        Tin=Type(STRING),
        Tout=kind,
    )


def _pad(
    nodes: Nodes, value: str, rows: tuple[str, str], length: int | None, filler: int = 0
) -> str:
    indices, shape = rows
    masks = {"ellipsis_mask": 0, "new_axis_mask": 0}
    ids = nodes.add(
        "StridedSlice",
        [indices, *(nodes.constant(np.array(v, np.int64)) for v in ([0, 0], [0, 1], [1, 1]))],
        "output",
        T=Type(_INT64),
        Index=Type(_INT64),
        begin_mask=1,
        end_mask=1,
        shrink_axis_mask=2,
        **masks,
    )
    count = nodes.add(
        "StridedSlice",
        [shape, *(nodes.constant(np.array(v, np.int64)) for v in ([0], [1], [1]))],
        "output",
        T=Type(_INT64),
        Index=Type(_INT64),
        begin_mask=0,
        end_mask=0,
        shrink_axis_mask=1,
        **masks,
    )
    wanted = nodes.constant(np.array([-1, -1 if length is None else length], np.int64))
    return nodes.add(
        "RaggedTensorToTensor",
        [wanted, value, nodes.constant(np.int64(filler)), count, ids],
        "result",
        T=Type(_INT64),
        Tindex=Type(_INT64),
        Tshape=Type(_INT64),
        num_row_partition_tensors=2,
        row_partition_types=strings([b"FIRST_DIM_SIZE", b"VALUE_ROWIDS"]),
    )

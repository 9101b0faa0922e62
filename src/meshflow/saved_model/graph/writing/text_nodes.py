"""Text steps (`saved_model/host_steps/text_steps.py`), which run before a program, as TensorFlow's ops."""

from __future__ import annotations

import re
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from meshflow.core.values.dtypes import as_dtype, int64, string
from meshflow.saved_model.graph.format.messages import Message
from meshflow.saved_model.graph.format.nodes import add_node, make_string_list, make_tensor
from meshflow.saved_model.host_steps.text_steps import Steps


def add_text_steps(function: Message, prefix: str, value: str, steps: Steps) -> str:
    """Add the nodes of text steps to a function.

    Args:
      function: The `FunctionDef`.
      prefix: Prefix of the names of the nodes.
      value: The output with the strings.
      steps: The steps.

    Returns:
      The output with the result.
    """
    nodes, rows = NodeBuilder(function.node_def, prefix), ("", "")
    for name, *arguments in steps:
        if name == "lower":
            value = nodes.add("StringLower", [value], "output", encoding=b"")
        elif name == "remove":
            pattern = "[" + "".join(map(re.escape, arguments[0])) + "]"
            value = nodes.add(
                "StaticRegexReplace",
                [value],
                "output",
                pattern=pattern.encode("latin-1"),
                rewrite=b"",
                replace_global=True,
            )
        elif name == "flat":
            value = nodes.add(
                "Squeeze", [value], "output", T=string, squeeze_dims=_select_last_axis
            )
        elif name == "split":
            parts = nodes.add(
                "StringSplitV2", [value, nodes.add_constant(b"")], "indices", maxsplit=-1
            ).split(":")[0]
            rows = f"{parts}:indices:0", f"{parts}:shape:0"
            value = f"{parts}:values:0"
        elif name == "look":
            value = _look_up(nodes, value, *arguments)
        else:
            value = _pad(nodes, value, rows, *arguments)
    return value


def _select_last_axis(attr: Message) -> None:
    attr.list.i.append(-1)


class NodeBuilder:
    """Builder of nodes with unique names.

    Args:
      nodes: The repeated field of nodes.
      prefix: Prefix of the names.
      in_main_graph: Whether the nodes belong to the main graph, where references to outputs do not
        contain output names.
    """

    def __init__(self, nodes: Message, prefix: str, in_main_graph: bool = False) -> None:
        self._nodes, self._prefix, self._count = nodes, prefix, 0
        self._in_main_graph = in_main_graph

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node and return its output."""
        self._count += 1
        name = f"{self._prefix}_{self._count}"
        add_node(self._nodes, name, op, inputs, **attributes)
        return name if self._in_main_graph else f"{name}:{output}:0"

    def add_constant(self, value: npt.ArrayLike) -> str:
        """Add a constant and return its output."""
        array = np.asarray(value, object) if isinstance(value, bytes) else np.asarray(value)
        dtype = string if array.dtype.hasobject else as_dtype(array.dtype)
        return self.add("Const", [], "output", value=make_tensor(array), dtype=dtype)


def _look_up(
    nodes: NodeBuilder,
    value: str,
    words: list[str],
    indices: list[Any],
    others: int,
    dtype: str = "int64",
) -> str:
    """Look up words in a table, which is filled at the first run."""
    value_dtype = as_dtype(dtype)
    keys = np.empty(len(words), object)
    keys[:] = [w.encode("latin-1") for w in words]
    checksum = zlib.crc32(repr((words, indices, dtype)).encode())
    kinds = {"key_dtype": string, "value_dtype": value_dtype}
    table = nodes.add(
        "HashTableV2",
        [],
        "table_handle",
        shared_name=f"words_{checksum:08x}".encode(),
        container=b"",
        use_node_name_sharing=True,
        **kinds,
    )
    filled = nodes.add(
        "InitializeTableV2",
        [
            table,
            nodes.add_constant(keys),
            nodes.add_constant(np.array(indices, value_dtype.as_numpy_dtype)),
        ],
        "",
        Tkey=string,
        Tval=value_dtype,
    )
    return nodes.add(
        "LookupTableFindV2",
        [
            table,
            value,
            nodes.add_constant(value_dtype.as_numpy_dtype(others)),
            "^" + filled.split(":")[0],
        ],
        "values",
        Tin=string,
        Tout=value_dtype,
    )


def _pad(
    nodes: NodeBuilder, value: str, rows: tuple[str, str], length: int | None, padding: int = 0
) -> str:
    indices, shape = rows
    masks = {"ellipsis_mask": 0, "new_axis_mask": 0}
    ids = nodes.add(
        "StridedSlice",
        [indices, *(nodes.add_constant(np.array(v, np.int64)) for v in ([0, 0], [0, 1], [1, 1]))],
        "output",
        T=int64,
        Index=int64,
        begin_mask=1,
        end_mask=1,
        shrink_axis_mask=2,
        **masks,
    )
    count = nodes.add(
        "StridedSlice",
        [shape, *(nodes.add_constant(np.array(v, np.int64)) for v in ([0], [1], [1]))],
        "output",
        T=int64,
        Index=int64,
        begin_mask=0,
        end_mask=0,
        shrink_axis_mask=1,
        **masks,
    )
    row_shape = nodes.add_constant(np.array([-1, -1 if length is None else length], np.int64))
    return nodes.add(
        "RaggedTensorToTensor",
        [row_shape, value, nodes.add_constant(np.int64(padding)), count, ids],
        "result",
        T=int64,
        Tindex=int64,
        Tshape=int64,
        num_row_partition_tensors=2,
        row_partition_types=make_string_list([b"FIRST_DIM_SIZE", b"VALUE_ROWIDS"]),
    )

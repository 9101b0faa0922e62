"""Ops that parse serialized examples (`tf.io.parse_example`), on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Array
from meshflow.io.features import FixedLenFeature, FixedLenSequenceFeature, VarLenFeature
from meshflow.io.parsing import parse_example
from meshflow.saved_model.graph.format.node_attributes import GraphNode


def get_first_output_index(node: GraphNode, output: str) -> int:
    """Return the index of the first of the outputs that share a name.

    Args:
      node: Node of an op of `EXAMPLE_OPS`.
      output: Name of the outputs.
    """
    sparse = node["Nsparse" if node.op == "ParseExample" else "num_sparse"]
    names = ("sparse_indices", "sparse_values", "sparse_shapes", "dense_values")
    return names.index(output) * sparse


def _parse_features(
    node: GraphNode,
    texts: Array,
    sparse: Sequence[Any],
    dense: Sequence[Any],
    defaults: Sequence[Any],
) -> list[Any]:
    """Return the indices, values and shapes of sparse features, followed by the dense features."""
    features: dict[str, Any] = {}
    for key, dtype in zip(sparse, node["sparse_types"], strict=True):
        features[_decode_name(key)] = VarLenFeature(dtype)
    for key, dtype, shape, default in zip(dense, node["Tdense"], node["dense_shapes"], defaults, strict=True):  # fmt: skip
        default_array = np.asarray(default) if np.size(default) else None
        if shape and (shape[0] is None or shape[0] < 0):
            fill_value = None if default_array is None else default_array.reshape(-1)[0]
            features[_decode_name(key)] = FixedLenSequenceFeature(
                shape[1:], dtype, True, fill_value
            )
        else:
            features[_decode_name(key)] = FixedLenFeature(shape, dtype, default_array)
    parsed = parse_example(Tensor(np.asarray(texts, object)), features)
    parts = [parsed[_decode_name(key)] for key in sparse]
    tensors = [
        *(p.indices for p in parts),
        *(p.values for p in parts),
        *(p.dense_shape for p in parts),
    ]
    return [np.asarray(t) for t in [*tensors, *(parsed[_decode_name(key)] for key in dense)]]


def _decode_name(key: bytes | np.ndarray) -> str:
    return bytes(np.asarray(key).item()).decode()


def _parse_version_1(node: GraphNode, texts: Array, _: Array, *rest: Array) -> list[Any]:
    sparse, dense = node["Nsparse"], node["Ndense"]
    keys, defaults = rest[: sparse + dense], rest[sparse + dense :]
    return _parse_features(node, texts, keys[:sparse], keys[sparse:], defaults)


def _parse_version_2(
    node: GraphNode,
    texts: Array,
    _: Array,
    sparse: Array,
    dense: Array,
    ragged: Array,
    *defaults: Array,
) -> list[Any]:
    if np.size(ragged):
        raise UnimplementedError("parsing of ragged features is not supported")
    return _parse_features(node, texts, list(np.asarray(sparse)), list(np.asarray(dense)), defaults)


def _parse_single(node: GraphNode, text: Array, *defaults: Array) -> list[Any]:
    return _parse_features(node, text, node["sparse_keys"], node["dense_keys"], defaults)


EXAMPLE_OPS: dict[str, Callable[..., Any]] = {
    "ParseExample": _parse_version_1,
    "ParseExampleV2": _parse_version_2,
    "ParseSingleExample": _parse_single,
}

"""Serialized examples (`tf.io.parse_example`) as TensorFlow's graphs parse them, on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.values.tensor import Tensor
from meshflow.io.features import FixedLenFeature, FixedLenSequenceFeature, VarLenFeature
from meshflow.io.parsing import parse_example
from meshflow.saved_model.graph.attributes import Node

__all__ = ["EXAMPLES", "first_output"]


def first_output(node: Node, output: str) -> int:
    """Which output of a node is the first of those that have a name together.

    Args:
      node: one of the ops of `EXAMPLES`.
      output: the name.
    """
    sparse = node["Nsparse" if node.op == "ParseExample" else "num_sparse"]
    names = ("sparse_indices", "sparse_values", "sparse_shapes", "dense_values")
    return names.index(output) * sparse


def _parsed(
    node: Node, texts: Any, sparse: Sequence[Any], dense: Sequence[Any], defaults: Sequence[Any]
) -> list[Any]:
    """The indices, values and shapes of sparse features, then dense features."""
    features: dict[str, Any] = {}
    for key, kind in zip(sparse, node["sparse_types"], strict=True):
        features[_name(key)] = VarLenFeature(kind)
    for key, kind, shape, default in zip(dense, node["Tdense"], node["dense_shapes"], defaults, strict=True):  # fmt: skip
        filled = np.asarray(default) if np.size(default) else None
        if shape and (shape[0] is None or shape[0] < 0):
            number = None if filled is None else filled.reshape(-1)[0]
            features[_name(key)] = FixedLenSequenceFeature(shape[1:], kind, True, number)
        else:
            features[_name(key)] = FixedLenFeature(shape, kind, filled)
    found = parse_example(Tensor(np.asarray(texts, object)), features)
    parts = [found[_name(key)] for key in sparse]
    tensors = [
        *(p.indices for p in parts),
        *(p.values for p in parts),
        *(p.dense_shape for p in parts),
    ]
    return [np.asarray(t) for t in [*tensors, *(found[_name(key)] for key in dense)]]


def _name(key: Any) -> str:
    return bytes(np.asarray(key).item()).decode()


def _first_version(node: Node, texts: Any, _: Any, *rest: Any) -> list[Any]:
    sparse, dense = node["Nsparse"], node["Ndense"]
    keys, defaults = rest[: sparse + dense], rest[sparse + dense :]
    return _parsed(node, texts, keys[:sparse], keys[sparse:], defaults)


def _second_version(
    node: Node, texts: Any, _: Any, sparse: Any, dense: Any, ragged: Any, *defaults: Any
) -> list[Any]:
    if np.size(ragged):
        raise UnimplementedError("ragged features are not parsed")
    return _parsed(node, texts, list(np.asarray(sparse)), list(np.asarray(dense)), defaults)


def _single(node: Node, text: Any, *defaults: Any) -> list[Any]:
    return _parsed(node, text, node["sparse_keys"], node["dense_keys"], defaults)


EXAMPLES: dict[str, Callable[..., Any]] = {
    "ParseExample": _first_version,
    "ParseExampleV2": _second_version,
    "ParseSingleExample": _single,
}

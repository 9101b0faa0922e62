"""Raw ops of sparse tensors as strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.io.sparse_tensors import deserialize_sparse, serialize_many_sparse, serialize_sparse


def _deserialize(serialized_sparse: TensorLike, dtype: Any) -> list[Tensor]:
    sparse = deserialize_sparse(serialized_sparse, dtype)
    return [sparse.indices, sparse.values, sparse.dense_shape]


def _make_serialize(serialize: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(
        sparse_indices: TensorLike,
        sparse_values: TensorLike,
        sparse_shape: TensorLike,
        **options: Any,
    ) -> Tensor:
        return serialize(SparseTensor(sparse_indices, sparse_values, sparse_shape), **options)

    return run


SPARSE_STRING_OPS: dict[str, Callable[..., Any]] = {
    "DeserializeManySparse": _deserialize,
    "DeserializeSparse": _deserialize,
    "SerializeManySparse": _make_serialize(serialize_many_sparse),
    "SerializeSparse": _make_serialize(serialize_sparse),
}

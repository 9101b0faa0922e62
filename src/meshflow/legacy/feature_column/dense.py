"""Columns that turn categories into vectors."""

from __future__ import annotations

import dataclasses
import math as python_math
from collections.abc import Callable, Sequence
from typing import Any

from meshflow.checkpoint import load_variable
from meshflow.core.values import dtypes
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.keras.initializers import TruncatedNormal
from meshflow.legacy.feature_column.base import CategoricalColumn, DenseColumn, Features, Ids
from meshflow.ops import array, math
from meshflow.ops.nn import embedding_lookup

__all__ = [
    "EmbeddingColumn",
    "IndicatorColumn",
    "SharedEmbeddingColumn",
    "embedding_column",
    "indicator_column",
    "shared_embeddings",
]


@dataclasses.dataclass(frozen=True)
class _OfCategories(DenseColumn):
    """What is made of a column of categories."""

    categorical_column: CategoricalColumn

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        """That of the categories."""
        return self.categorical_column.parse_example_spec

    @property
    def categories(self) -> CategoricalColumn:
        """The categories."""
        return self.categorical_column


@dataclasses.dataclass(frozen=True)
class IndicatorColumn(_OfCategories):
    """How often each category occurs in a row; made by `indicator_column`."""

    @property
    def name(self) -> str:
        """The categories' name, marked."""
        return f"{self.categorical_column.name}_indicator"

    @property
    def variable_shape(self) -> tuple[int, ...]:
        """A place for each category."""
        return (1, self.categorical_column.num_buckets)

    def dense(self, features: Features, state: Any) -> Tensor:
        """The sums of ones, or of weights, at each category's place."""
        ids = features.ids(self.categorical_column)
        ones = array.one_hot(ids.numbers, self.categorical_column.num_buckets, dtype=dtypes.float32)
        if ids.weights is not None:
            ones = ones * array.expand_dims(ids.weights, -1)
        return math.reduce_sum(ones, axis=1)


def indicator_column(categorical_column: Any) -> IndicatorColumn:
    """Vectors with the number of times that each category occurs in a row.

    Args:
      categorical_column: a column of categories.

    Raises:
      ValueError: for another column.

    Example:
      >>> import meshflow as tf
      >>> kind = tf.feature_column.categorical_column_with_identity("kind", 3)
      >>> layer = tf.keras.layers.DenseFeatures([tf.feature_column.indicator_column(kind)])
      >>> layer({"kind": [[0, 0], [1, -1]]}).numpy().tolist()
      [[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    return IndicatorColumn(_categories(categorical_column))


def _categories(column: Any) -> CategoricalColumn:
    if not isinstance(column, CategoricalColumn):
        raise ValueError(
            f"Unsupported input type. Input must be a CategoricalColumn. Given: {column}"
        )
    return column


@dataclasses.dataclass(frozen=True)
class EmbeddingColumn(_OfCategories):
    """Trained vectors of categories; made by `embedding_column`."""

    dimension: int
    combiner: str
    initializer: Any
    ckpt_to_load_from: str | None
    tensor_name_in_ckpt: str | None
    max_norm: float | None
    trainable: bool
    use_safe_embedding_lookup: bool = True

    @property
    def name(self) -> str:
        """The categories' name, marked."""
        return f"{self.categorical_column.name}_embedding"

    @property
    def variable_shape(self) -> tuple[int, ...]:
        """Shape of a vector."""
        return (self.dimension,)

    def make_state(self, layer: Any) -> Variable:
        """The table of vectors."""
        return _table(self, layer, f"{self.name}/embedding_weights")

    def dense(self, features: Features, state: Any) -> Tensor:
        """Each row's vectors, combined."""
        return _combined(self, features.ids(self.categorical_column), state)


def _table(column: Any, layer: Any, name: str) -> Variable:
    shape = (column.categorical_column.num_buckets, column.dimension)
    initializer: Callable[..., Any] = column.initializer
    if column.ckpt_to_load_from is not None:

        def initializer(shape: Any, dtype: Any = None) -> Any:
            return load_variable(column.ckpt_to_load_from, column.tensor_name_in_ckpt)

    return layer.add_weight(
        name, shape, "float32", initializer, trainable=column.trainable and layer.trainable
    )


def _combined(column: Any, ids: Ids, table: Any) -> Tensor:
    present = ids.numbers >= 0
    if ids.weights is None:
        weights = math.cast(present, table.dtype)
    else:
        if column.combiner != "sum":
            present = math.logical_and(present, ids.weights > 0)
        weights = ids.weights * math.cast(present, ids.weights.dtype)
    rows = embedding_lookup(table, math.maximum(ids.numbers, 0), column.max_norm)
    total = math.reduce_sum(rows * array.expand_dims(weights, -1), axis=1)
    if column.combiner == "sum":
        return total
    if column.combiner == "mean":
        return math.divide_no_nan(total, math.reduce_sum(weights, axis=1, keepdims=True))
    size = math.reduce_sum(math.square(weights), axis=1, keepdims=True)
    return math.divide_no_nan(total, math.sqrt(size))


def embedding_column(
    categorical_column: Any,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
    use_safe_embedding_lookup: bool = True,
) -> EmbeddingColumn:
    """Trained vectors for categories; those of a row are combined into one.

    Args:
      categorical_column: a column of categories.
      dimension: size of the vectors.
      combiner: 'mean', 'sum' or 'sqrtn', the sum divided by the root of the number of vectors.
      initializer: of the table of vectors; default a truncated normal of deviation 1/sqrt(dimension).
      ckpt_to_load_from: a checkpoint with the table, instead of an initializer.
      tensor_name_in_ckpt: the table's name there.
      max_norm: vectors are scaled down to this L2 norm.
      trainable: whether the table is trained.
      use_safe_embedding_lookup: accepted; rows without categories always get zeros.

    Raises:
      ValueError: for a dimension that is not positive, another combiner, an initializer that cannot be
        called, or one of the two arguments of checkpoints alone.

    Example:
      >>> import meshflow as tf
      >>> word = tf.feature_column.categorical_column_with_hash_bucket("word", 100)
      >>> layer = tf.keras.layers.DenseFeatures([tf.feature_column.embedding_column(word, 8)])
      >>> layer({"word": ["tea", "coffee"]}).shape
      TensorShape([2, 8])
    """
    initializer = _initializer(dimension, combiner, initializer)
    _check_checkpoint(ckpt_to_load_from, tensor_name_in_ckpt)
    return EmbeddingColumn(
        _categories(categorical_column),
        dimension,
        combiner,
        initializer,
        ckpt_to_load_from,
        tensor_name_in_ckpt,
        max_norm,
        trainable,
        use_safe_embedding_lookup,
    )


def _initializer(dimension: Any, combiner: str, initializer: Any) -> Any:
    if dimension is None or dimension < 1:
        raise ValueError(f"Invalid dimension {dimension}.")
    if combiner not in ("mean", "sqrtn", "sum"):
        raise ValueError(f"combiner must be one of 'mean', 'sqrtn' or 'sum', got {combiner!r}.")
    if initializer is None:
        return TruncatedNormal(mean=0.0, stddev=1 / python_math.sqrt(dimension))
    if not callable(initializer):
        raise ValueError("initializer must be callable if specified.")
    return initializer


def _check_checkpoint(path: str | None, name: str | None) -> None:
    if (path is None) != (name is None):
        raise ValueError(
            "Must specify both `ckpt_to_load_from` and `tensor_name_in_ckpt` or none of them."
        )


@dataclasses.dataclass(frozen=True)
class SharedEmbeddingColumn(EmbeddingColumn):
    """Trained vectors that several columns of categories share; made by `shared_embeddings`."""

    # The columns of one call hold one dictionary, which holds the table once a layer made it.
    shared: dict[str, Any] = dataclasses.field(
        default_factory=dict, repr=False, compare=False, hash=False
    )
    collection: str = ""

    @property
    def name(self) -> str:
        """The categories' name, marked."""
        return f"{self.categorical_column.name}_shared_embedding"

    def make_state(self, layer: Any) -> Variable:
        """The table of vectors, made by the first layer."""
        if "table" not in self.shared:
            self.shared["table"] = _table(self, layer, self.collection)
        table: Variable = self.shared["table"]
        if all(table is not own for own in layer._own_weights):
            layer._own_weights.append(table)
        return table


def shared_embeddings(
    categorical_columns: Sequence[Any],
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    shared_embedding_collection_name: str | None = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
    use_safe_embedding_lookup: bool = True,
) -> list[SharedEmbeddingColumn]:
    """Trained vectors for categories that occur in several features.

    Args:
      categorical_columns: columns of the same categories.
      dimension: size of the vectors.
      combiner: 'mean', 'sum' or 'sqrtn'.
      initializer: of the table of vectors; default a truncated normal of deviation 1/sqrt(dimension).
      shared_embedding_collection_name: the table's name; default made of the columns' names.
      ckpt_to_load_from: a checkpoint with the table, instead of an initializer.
      tensor_name_in_ckpt: the table's name there.
      max_norm: vectors are scaled down to this L2 norm.
      trainable: whether the table is trained.
      use_safe_embedding_lookup: accepted; rows without categories always get zeros.

    Returns:
      A column for each column of categories, in their order.

    Raises:
      ValueError: as `embedding_column`, and for columns with different kinds or numbers of categories.

    Example:
      >>> import meshflow as tf
      >>> seen = tf.feature_column.categorical_column_with_identity("seen", 5)
      >>> bought = tf.feature_column.categorical_column_with_identity("bought", 5)
      >>> layer = tf.keras.layers.DenseFeatures(tf.feature_column.shared_embeddings([seen, bought], 2))
      >>> layer({"seen": [[1, 2]], "bought": [[4]]}).shape, len(layer.weights)
      (TensorShape([1, 4]), 1)
    """
    initializer = _initializer(dimension, combiner, initializer)
    _check_checkpoint(ckpt_to_load_from, tensor_name_in_ckpt)
    columns = sorted(map(_categories, categorical_columns), key=lambda c: c.name)
    if len({c.num_buckets for c in columns}) != 1:
        raise ValueError(
            "To use shared_embedding_column, all categorical_columns must have the same number of buckets. "
            f"Given buckets: {[c.num_buckets for c in columns]}"
        )
    if len({type(getattr(c, "categorical_column", c)) for c in columns}) != 1:
        raise ValueError(
            "To use shared_embedding_column, all categorical_columns must have the same type, or be weighted "
            f"columns of the same type. Given: {columns}"
        )
    name = shared_embedding_collection_name
    if not name:
        name = "_".join(c.name for c in columns) + "_shared_embedding"
    shared: dict[str, Any] = {}
    return [
        SharedEmbeddingColumn(
            column,
            dimension,
            combiner,
            initializer,
            ckpt_to_load_from,
            tensor_name_in_ckpt,
            max_norm,
            trainable,
            use_safe_embedding_lookup,
            shared,
            name,
        )
        for column in categorical_columns
    ]

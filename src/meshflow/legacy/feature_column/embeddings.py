"""Dense columns that convert categories to vectors: indicators and embeddings."""

from __future__ import annotations

import dataclasses
import math as python_math
from collections.abc import Callable, Sequence

import numpy as np

from meshflow.checkpoint import load_variable
from meshflow.core.values import dtypes
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.initializers import TruncatedNormal
from meshflow.legacy.feature_column.base import (
    CategoricalColumn,
    CategoryIds,
    DenseColumn,
    FeatureBatch,
    ParseSpec,
)
from meshflow.ops import array, math
from meshflow.ops.nn import embedding_lookup


@dataclasses.dataclass(frozen=True)
class _CategoryVectorColumn(DenseColumn):
    """Dense column of a categorical column."""

    categorical_column: CategoricalColumn

    @property
    def parse_example_spec(self) -> ParseSpec:
        """The features of the categorical column."""
        return self.categorical_column.parse_example_spec

    @property
    def categorical_input(self) -> CategoricalColumn:
        """The categorical column."""
        return self.categorical_column


@dataclasses.dataclass(frozen=True)
class IndicatorColumn(_CategoryVectorColumn):
    """Number of occurrences of each category in a row; created by `indicator_column`."""

    @property
    def name(self) -> str:
        """The name of the categorical column with a suffix."""
        return f"{self.categorical_column.name}_indicator"

    @property
    def variable_shape(self) -> tuple[int, ...]:
        """Shape of the vector: one element for each category."""
        return (1, self.categorical_column.num_buckets)

    def compute_vectors(self, features: FeatureBatch, state: Variable | None) -> Tensor:
        """Sum ones, or weights, for each category."""
        ids = features.get_ids(self.categorical_column)
        ones = array.one_hot(ids.ids, self.categorical_column.num_buckets, dtype=dtypes.float32)
        if ids.weights is not None:
            # A weight that is NaN or Inf belongs to one category.
            ones = array.where(ones > 0, array.expand_dims(ids.weights, -1), 0.0)
        return math.reduce_sum(ones, axis=1)


def indicator_column(categorical_column: CategoricalColumn) -> IndicatorColumn:
    """Create a column of vectors that count how often each category occurs in a row.

    Args:
      categorical_column: Column of categories.

    Raises:
      ValueError: If the column is not categorical.

    Example:
      >>> kind = tf.feature_column.categorical_column_with_identity("kind", 3)
      >>> layer = tf.keras.layers.DenseFeatures([tf.feature_column.indicator_column(kind)])
      >>> layer({"kind": [[0, 0], [1, -1]]}).numpy().tolist()
      [[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    return IndicatorColumn(_check_categorical(categorical_column))


def _check_categorical(column: object) -> CategoricalColumn:
    if not isinstance(column, CategoricalColumn):
        raise ValueError(
            f"Unsupported input type. Input must be a CategoricalColumn. Given: {column}"
        )
    return column


@dataclasses.dataclass(frozen=True)
class EmbeddingColumn(_CategoryVectorColumn):
    """Trained vectors of categories; created by `embedding_column`."""

    dimension: int
    combiner: str
    initializer: Callable[..., TensorLike]
    ckpt_to_load_from: str | None
    tensor_name_in_ckpt: str | None
    max_norm: float | None
    trainable: bool
    use_safe_embedding_lookup: bool = True

    @property
    def name(self) -> str:
        """The name of the categorical column with a suffix."""
        return f"{self.categorical_column.name}_embedding"

    @property
    def variable_shape(self) -> tuple[int, ...]:
        """Shape of the vectors."""
        return (self.dimension,)

    def create_variable(self, layer: Layer) -> Variable:
        """Create the table of vectors."""
        return _create_table(self, layer, f"{self.name}/embedding_weights")

    def compute_vectors(self, features: FeatureBatch, state: Variable | None) -> Tensor:
        """Combine the vectors of each row."""
        return _combine_vectors(self, features.get_ids(self.categorical_column), state)


def _create_table(column: EmbeddingColumn, layer: Layer, name: str) -> Variable:
    shape = (column.categorical_column.num_buckets, column.dimension)
    initializer = column.initializer
    path, tensor_name = column.ckpt_to_load_from, column.tensor_name_in_ckpt
    if path is not None and tensor_name is not None:

        def initializer(shape: ShapeLike, dtype: DTypeLike | None = None) -> np.ndarray:
            return load_variable(path, tensor_name)

    return layer.add_weight(
        name, shape, "float32", initializer, trainable=column.trainable and layer.trainable
    )


def _combine_vectors(column: EmbeddingColumn, ids: CategoryIds, table: TensorLike) -> Tensor:
    is_present = ids.ids >= 0
    if ids.weights is None:
        weights = math.cast(is_present, table.dtype)
    else:
        if column.combiner != "sum":
            is_present = math.logical_and(is_present, ids.weights > 0)
        weights = array.where(is_present, ids.weights, array.zeros_like(ids.weights))
    rows = embedding_lookup(table, math.maximum(ids.ids, 0), column.max_norm)
    rows = array.where(array.expand_dims(is_present, -1), rows, array.zeros_like(rows))
    total = math.reduce_sum(rows * array.expand_dims(weights, -1), axis=1)
    if column.combiner == "sum":
        return total
    if column.combiner == "mean":
        return math.divide_no_nan(total, math.reduce_sum(weights, axis=1, keepdims=True))
    squared_norm = math.reduce_sum(math.square(weights), axis=1, keepdims=True)
    return math.divide_no_nan(total, math.sqrt(squared_norm))


def embedding_column(
    categorical_column: CategoricalColumn,
    dimension: int,
    combiner: str = "mean",
    initializer: Callable[..., TensorLike] | None = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
    use_safe_embedding_lookup: bool = True,
) -> EmbeddingColumn:
    """Create a column of trained vectors; the vectors of a row are combined into one.

    Args:
      categorical_column: Column of categories.
      dimension: Size of the vectors.
      combiner: 'mean', 'sum' or 'sqrtn', the sum divided by the square root of the number of
        vectors.
      initializer: Initializer of the table; default a truncated normal distribution with a standard
        deviation of 1/sqrt(dimension).
      ckpt_to_load_from: Checkpoint with the table, instead of an initializer.
      tensor_name_in_ckpt: Name of the table in the checkpoint.
      max_norm: Maximum L2 norm of the vectors; longer vectors are scaled down.
      trainable: Whether the table is trained.
      use_safe_embedding_lookup: Ignored; rows without categories always get zeros.

    Raises:
      ValueError: If the dimension is not positive, the combiner is unknown, the initializer is not
        callable, or only one of the two checkpoint arguments is passed.

    Example:
      >>> word = tf.feature_column.categorical_column_with_hash_bucket("word", 100)
      >>> layer = tf.keras.layers.DenseFeatures([tf.feature_column.embedding_column(word, 8)])
      >>> layer({"word": ["tea", "coffee"]}).shape
      TensorShape([2, 8])
    """
    initializer = _resolve_initializer(dimension, combiner, initializer)
    _check_checkpoint(ckpt_to_load_from, tensor_name_in_ckpt)
    return EmbeddingColumn(
        _check_categorical(categorical_column),
        dimension,
        combiner,
        initializer,
        ckpt_to_load_from,
        tensor_name_in_ckpt,
        max_norm,
        trainable,
        use_safe_embedding_lookup,
    )


def _resolve_initializer(
    dimension: int | None, combiner: str, initializer: Callable[..., TensorLike] | None
) -> Callable[..., TensorLike]:
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
    """Trained vectors that several categorical columns share; created by `shared_embeddings`."""

    # All columns of one `shared_embeddings` call hold this dictionary. It holds the table once a
    # layer created it.
    shared: dict[str, Variable] = dataclasses.field(
        default_factory=dict, repr=False, compare=False, hash=False
    )
    collection: str = ""

    @property
    def name(self) -> str:
        """The name of the categorical column with a suffix."""
        return f"{self.categorical_column.name}_shared_embedding"

    def create_variable(self, layer: Layer) -> Variable:
        """Return the table of vectors; the first layer creates it."""
        if "table" not in self.shared:
            self.shared["table"] = _create_table(self, layer, self.collection)
        table = self.shared["table"]
        if all(table is not weight for weight in layer._own_weights):
            layer._own_weights.append(table)
        return table


def shared_embeddings(
    categorical_columns: Sequence[CategoricalColumn],
    dimension: int,
    combiner: str = "mean",
    initializer: Callable[..., TensorLike] | None = None,
    shared_embedding_collection_name: str | None = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
    use_safe_embedding_lookup: bool = True,
) -> list[SharedEmbeddingColumn]:
    """Create columns of trained vectors for categories that occur in several features.

    Args:
      categorical_columns: Columns of the same categories.
      dimension: Size of the vectors.
      combiner: 'mean', 'sum' or 'sqrtn'.
      initializer: Initializer of the table; default a truncated normal distribution with a standard
        deviation of 1/sqrt(dimension).
      shared_embedding_collection_name: Name of the table; by default made of the names of the
        columns.
      ckpt_to_load_from: Checkpoint with the table, instead of an initializer.
      tensor_name_in_ckpt: Name of the table in the checkpoint.
      max_norm: Maximum L2 norm of the vectors; longer vectors are scaled down.
      trainable: Whether the table is trained.
      use_safe_embedding_lookup: Ignored; rows without categories always get zeros.

    Returns:
      One column for each categorical column, in their order.

    Raises:
      ValueError: As for `embedding_column`, or if the columns differ in type or in the number of
        categories.

    Example:
      >>> seen = tf.feature_column.categorical_column_with_identity("seen", 5)
      >>> bought = tf.feature_column.categorical_column_with_identity("bought", 5)
      >>> layer = tf.keras.layers.DenseFeatures(tf.feature_column.shared_embeddings([seen, bought], 2))
      >>> layer({"seen": [[1, 2]], "bought": [[4]]}).shape, len(layer.weights)
      (TensorShape([1, 4]), 1)
    """
    initializer = _resolve_initializer(dimension, combiner, initializer)
    _check_checkpoint(ckpt_to_load_from, tensor_name_in_ckpt)
    columns = sorted(map(_check_categorical, categorical_columns), key=lambda c: c.name)
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
    shared: dict[str, Variable] = {}
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

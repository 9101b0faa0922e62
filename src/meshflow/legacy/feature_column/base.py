"""Base classes of feature columns, and access to the features of a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import string
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.io.features import FixedLenFeature, VarLenFeature
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.ops import array

# Specifications of features for `tf.io.parse_example`, by key.
ParseSpec: TypeAlias = dict[str, FixedLenFeature | VarLenFeature]


class CategoryIds(NamedTuple):
    """Category ids of a batch, and their weights.

    Attributes:
      ids: int64 tensor [batch, n]; -1 pads rows with fewer than n categories.
      weights: float32 tensor of the same shape, or None for weights of 1.
    """

    ids: Tensor
    weights: Tensor | None = None


class FeatureBatch:
    """Features of a batch, by key.

    Args:
      features: Tensors or sparse tensors by key; a vector holds one value for each row.
      precomputed: Category ids that are already known, by column.

    Raises:
      ValueError: If `features` is not a dictionary.
    """

    def __init__(
        self,
        features: object,
        precomputed: Mapping[CategoricalColumn, CategoryIds] | None = None,
    ) -> None:
        if not isinstance(features, Mapping):
            raise ValueError(f"We expected a dictionary here. Instead we got: {features}")
        self._features, self._precomputed = features, precomputed or {}

    def check_key(self, key: str) -> None:
        """Raise `ValueError` unless the feature exists."""
        if key not in self._features:
            raise ValueError(f"Feature {key} is not in features dictionary.")

    def get_feature(self, key: str) -> Tensor | SparseTensor:
        """Return a feature with a rank of at least 2; vectors become columns.

        Raises:
          ValueError: If the feature does not exist or is a scalar.
        """
        self.check_key(key)
        value = self._features[key]
        if isinstance(value, SparseTensor):
            return value
        tensor = convert_to_tensor(value)
        if not tensor.ndim:
            raise ValueError(f"Feature (key: {key}) cannot have rank 0. Given: {tensor}")
        return array.expand_dims(tensor, -1) if tensor.ndim == 1 else tensor

    def get_categories(self, key: str) -> Tensor:
        """Return a feature as [batch, n] strings or integers, with '' and -1 for missing values.

        Raises:
          ValueError: If the feature holds neither strings nor integers.
        """
        value = self.get_feature(key)
        if not (value.dtype.is_integer or value.dtype is string):
            raise ValueError(
                f"Feature {key} must be of strings or integers to be a category, got {value.dtype}."
            )
        tensor = pad_sparse_rows(value) if isinstance(value, SparseTensor) else value
        return array.reshape(tensor, [tensor.shape[0], -1])

    def get_ids(self, column: CategoricalColumn) -> CategoryIds:
        """Return the category ids of a column."""
        ids = self._precomputed.get(column)
        return column.compute_ids(self) if ids is None else ids


def pad_sparse_rows(sparse: SparseTensor, missing: str | bytes | float | None = None) -> Tensor:
    """Collect the values of a sparse tensor row by row, as [batch, n].

    Args:
      sparse: The sparse tensor.
      missing: Padding of shorter rows; default '' or -1.
    """
    indices, values = sparse.indices.numpy(), sparse.values.numpy()
    counts = np.bincount(indices[:, 0], minlength=sparse.shape.as_list()[0])
    if missing is None:
        missing = b"" if values.dtype == object else -1
    rows = np.full((len(counts), max(1, counts.max(initial=0))), missing, values.dtype)
    order = np.argsort(indices[:, 0], kind="stable")
    columns = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows[indices[order, 0], columns] = values[order]
    return convert_to_tensor(rows)


@dataclasses.dataclass(frozen=True)
class FeatureColumn:
    """Description of how to read one or several features."""

    @property
    def name(self) -> str:
        """Name of the column, made of the keys of its features."""
        raise NotImplementedError

    @property
    def parse_example_spec(self) -> ParseSpec:
        """Specification of the features for `tf.io.parse_example`."""
        raise NotImplementedError


class DenseColumn(FeatureColumn):
    """Column that produces a vector of numbers for each row."""

    @property
    def variable_shape(self) -> tuple[int, ...]:
        """Shape of the vector of a row."""
        raise NotImplementedError

    @property
    def categorical_input(self) -> CategoricalColumn | None:
        """Categorical column that this column converts to vectors, or None."""
        return None

    def create_variable(self, layer: Layer) -> Variable | None:
        """Create the variable of the column as a weight of a layer; None for columns without one."""
        return None

    def compute_vectors(self, features: FeatureBatch, state: Variable | None) -> Tensor:
        """Compute the vectors of a batch.

        Args:
          features: Features of the batch.
          state: Variable that `create_variable` returned.

        Returns:
          float32 tensor [batch, *variable_shape].
        """
        raise NotImplementedError


class CategoricalColumn(FeatureColumn):
    """Column that produces category ids for each row."""

    @property
    def num_buckets(self) -> int:
        """Number of categories."""
        raise NotImplementedError

    @property
    def needs_host(self) -> bool:
        """Whether the ids are computed on the host, for example because strings are hashed."""
        return False

    def compute_ids(self, features: FeatureBatch) -> CategoryIds:
        """Compute the category ids of a batch."""
        raise NotImplementedError


def check_key(key: object) -> None:
    """Raise `ValueError` unless the key is a string."""
    if not isinstance(key, str):
        raise ValueError(f"key must be a string, got {type(key)}: {key!r}.")


def make_parse_example_spec(
    feature_columns: Iterable[FeatureColumn],
) -> ParseSpec:
    """Collect the specifications of the features of columns for `tf.io.parse_example`.

    Args:
      feature_columns: Feature columns.

    Returns:
      `tf.io.FixedLenFeature` or `tf.io.VarLenFeature` by key.

    Raises:
      ValueError: If an object is not a column, or columns read a key differently.

    Example:
      >>> spec = tf.feature_column.make_parse_example_spec([tf.feature_column.numeric_column("age")])
      >>> spec["age"].shape
      (1,)
    """
    specs: ParseSpec = {}
    for column in feature_columns:
        if not isinstance(column, FeatureColumn):
            raise ValueError(
                f"All feature_columns must be FeatureColumn instances. Given: {column}"
            )
        for key, value in column.parse_example_spec.items():
            if specs.setdefault(key, value) != value:
                raise ValueError(
                    f"feature_columns contain different parse_spec for key {key}. Given {value} and {specs[key]}"
                )
    return specs

"""What all feature columns are, and the features of a batch that they read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import string
from meshflow.core.values.tensor import Tensor
from meshflow.ops import array

__all__ = ["CategoricalColumn", "DenseColumn", "FeatureColumn", "Features", "Ids"]


class Ids(NamedTuple):
    """Numbers of categories, and what each counts.

    Attributes:
      numbers: int64 tensor [batch, n]; -1 where a row has fewer than n.
      weights: float32 tensor of the same shape, or None for 1.
    """

    numbers: Tensor
    weights: Tensor | None = None


class Features:
    """The features of a batch, by key.

    Args:
      features: tensors or sparse tensors by key; vectors stand for one value a row.
      given: numbers that columns have found already, by column.

    Raises:
      ValueError: when it is no dictionary.
    """

    def __init__(self, features: Any, given: Mapping[Any, Ids] | None = None) -> None:
        if not isinstance(features, Mapping):
            raise ValueError(f"We expected a dictionary here. Instead we got: {features}")
        self._features, self._given = features, given or {}

    def check(self, key: str) -> None:
        """Raises a `ValueError` when there is no such feature."""
        if key not in self._features:
            raise ValueError(f"Feature {key} is not in features dictionary.")

    def raw(self, key: str) -> Any:
        """The feature as it was given, of rank 2 at least.

        Raises:
          ValueError: when there is none, or it is a scalar.
        """
        self.check(key)
        value = self._features[key]
        if isinstance(value, SparseTensor):
            return value
        tensor = convert_to_tensor(value)
        if not tensor.ndim:
            raise ValueError(f"Feature (key: {key}) cannot have rank 0. Given: {tensor}")
        return array.expand_dims(tensor, -1) if tensor.ndim == 1 else tensor

    def categories(self, key: str) -> Tensor:
        """The feature as [batch, n] strings or integers, where '' and -1 are no category.

        Raises:
          ValueError: when it holds neither.
        """
        value = self.raw(key)
        if not (value.dtype.is_integer or value.dtype is string):
            raise ValueError(
                f"Feature {key} must be of strings or integers to be a category, got {value.dtype}."
            )
        tensor = padded(value) if isinstance(value, SparseTensor) else value
        return array.reshape(tensor, [tensor.shape[0], -1])

    def ids(self, column: CategoricalColumn) -> Ids:
        """The numbers that a column finds in the features."""
        found = self._given.get(column)
        return column.ids(self) if found is None else found


def padded(sparse: SparseTensor, missing: Any = None) -> Tensor:
    """A sparse tensor's values row by row, as [batch, n].

    Args:
      sparse: the sparse tensor.
      missing: what fills shorter rows; default '' or -1.
    """
    places, values = sparse.indices.numpy(), sparse.values.numpy()
    counts = np.bincount(places[:, 0], minlength=sparse.shape.as_list()[0])
    if missing is None:
        missing = b"" if values.dtype == object else -1
    rows = np.full((len(counts), max(1, counts.max(initial=0))), missing, values.dtype)
    order = np.argsort(places[:, 0], kind="stable")
    within = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows[places[order, 0], within] = values[order]
    return convert_to_tensor(rows)


@dataclasses.dataclass(frozen=True)
class FeatureColumn:
    """How one or several features are read."""

    @property
    def name(self) -> str:
        """The column's name, made of the keys of its features."""
        raise NotImplementedError

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        """What `tf.io.parse_example` is told about the features."""
        raise NotImplementedError


class DenseColumn(FeatureColumn):
    """A column that gives each row a vector of numbers."""

    @property
    def variable_shape(self) -> tuple[int, ...]:
        """Shape of a row."""
        raise NotImplementedError

    @property
    def categories(self) -> CategoricalColumn | None:
        """The column whose categories it stands for, if any."""
        return None

    def make_state(self, layer: Any) -> Any:
        """The column's variable as a weight of a layer; None for columns without one."""
        return None

    def dense(self, features: Features, state: Any) -> Tensor:
        """The vectors.

        Args:
          features: the features of a batch.
          state: what `make_state` gave.

        Returns:
          float32 tensor [batch, *variable_shape].
        """
        raise NotImplementedError


class CategoricalColumn(FeatureColumn):
    """A column that gives each row numbers of categories."""

    @property
    def num_buckets(self) -> int:
        """How many categories there are."""
        raise NotImplementedError

    @property
    def on_host(self) -> bool:
        """Whether the features must be known values, as strings and what is hashed."""
        return False

    def ids(self, features: Features) -> Ids:
        """The numbers of the categories in a batch."""
        raise NotImplementedError


def check_key(key: Any) -> None:
    """Raises a `ValueError` for a key that is no string."""
    if not isinstance(key, str):
        raise ValueError(f"key must be a string, got {type(key)}: {key!r}.")


def make_parse_example_spec(feature_columns: Iterable[Any]) -> dict[str, Any]:
    """What `tf.io.parse_example` needs to know to read the features of columns.

    Args:
      feature_columns: columns.

    Returns:
      `tf.io.FixedLenFeature` or `tf.io.VarLenFeature` by key.

    Raises:
      ValueError: for something that is no column, or columns that read one key differently.

    Example:
      >>> import meshflow as tf
      >>> spec = tf.feature_column.make_parse_example_spec([tf.feature_column.numeric_column("age")])
      >>> spec["age"].shape
      (1,)
    """
    found: dict[str, Any] = {}
    for column in feature_columns:
        if not isinstance(column, FeatureColumn):
            raise ValueError(
                f"All feature_columns must be FeatureColumn instances. Given: {column}"
            )
        for key, value in column.parse_example_spec.items():
            if found.setdefault(key, value) != value:
                raise ValueError(
                    f"feature_columns contain different parse_spec for key {key}. Given {value} and {found[key]}"
                )
    return found

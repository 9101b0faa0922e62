"""`DenseFeatures`: the inputs of a model from feature columns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from meshflow.core.values import dtypes
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.legacy.feature_column import configuration
from meshflow.legacy.feature_column.base import CategoricalColumn, DenseColumn, Features, Ids
from meshflow.legacy.feature_column.categorical import WeightedCategoricalColumn
from meshflow.ops import array

__all__ = ["DenseFeatures"]


class DenseFeatures(Layer):
    """One vector for each row of structured data, as feature columns say.

    The vectors of the columns are put side by side, in the order of the columns' names.

    Args:
      feature_columns: columns that give vectors: of numbers, ranges, embeddings or indicators.
      trainable: whether embeddings are trained.
      name: the layer's name.
      partitioner: accepted; where variables lie is decided by layouts.
      **kwargs: arguments of `Layer`.

    Input shape:
      A dictionary of features: (batch,) or (batch, size) each.

    Output shape:
      (batch, size), where size is the sum of those of the columns.

    Raises:
      ValueError: for no column, columns of categories that are not wrapped, or two columns of one name.

    Example:
      >>> import meshflow as tf
      >>> kind = tf.feature_column.categorical_column_with_vocabulary_list("kind", ["cat", "dog"])
      >>> columns = [tf.feature_column.numeric_column("age"), tf.feature_column.indicator_column(kind)]
      >>> layer = tf.keras.layers.DenseFeatures(columns)
      >>> layer({"age": [3.0, 5.0], "kind": ["dog", "cat"]}).numpy().tolist()
      [[3.0, 0.0, 1.0], [5.0, 1.0, 0.0]]
    """

    def __init__(
        self,
        feature_columns: Any,
        trainable: bool = True,
        name: str | None = None,
        partitioner: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable=trainable, name=name, **kwargs)
        self._feature_columns = _sorted_columns(feature_columns)
        self._partitioner = partitioner
        self._states: dict[str, Any] = {}
        # What the host found for the step that is traced.
        self._given: dict[CategoricalColumn, Ids] = {}

    @property
    def runs_on_host(self) -> bool:
        """Whether some features must be known values, such as strings."""
        return bool(self._host_columns())

    def _host_columns(self) -> list[CategoricalColumn]:
        found = [column.categories for column in self._feature_columns]
        return list(dict.fromkeys(c for c in found if c is not None and c.on_host))

    def host_values(self, features: Any) -> list[np.ndarray]:
        """What a step needs to be told of features that it cannot hold.

        Args:
          features: the features of a batch.

        Returns:
          Numbers of categories, and weights where there are any.
        """
        read = Features(features)
        ids = [read.ids(column) for column in self._host_columns()]
        return [np.asarray(t._value) for pair in ids for t in pair if t is not None]

    @contextlib.contextmanager
    def given(self, tensors: list[Tensor]) -> Iterator[None]:
        """While a step is traced with what `host_values` found."""
        rest = iter(tensors)
        self._given = {
            column: Ids(
                next(rest), next(rest) if isinstance(column, WeightedCategoricalColumn) else None
            )
            for column in self._host_columns()
        }
        try:
            yield
        finally:
            self._given = {}

    def build(self, input_shape: Any) -> None:
        """Makes the tables of the embeddings.

        Args:
          input_shape: not needed.
        """
        for column in self._feature_columns:
            self._states[column.name] = column.make_state(self)
        self.built = True

    def call(
        self,
        features: Any,
        cols_to_output_tensors: dict[Any, Any] | None = None,
        training: Any = None,
    ) -> Tensor:
        """The vectors.

        Args:
          features: tensors or sparse tensors by key; vectors hold one value for each row.
          cols_to_output_tensors: a dictionary that gets each column's vectors.
          training: accepted.

        Returns:
          float32 tensor [batch, total size].

        Raises:
          ValueError: when it is no dictionary, or lacks a feature.
        """
        read, parts = Features(features, self._given), []
        for column in self._feature_columns:
            vectors = column.dense(read, self._states.get(column.name))
            size = int(np.prod(column.variable_shape))
            part = array.reshape(vectors, [vectors.shape[0], size])
            if cols_to_output_tensors is not None:
                cols_to_output_tensors[column] = part
            parts.append(part)
        return array.concat(parts, axis=-1)

    def _cast_inputs(self, inputs: Any) -> Any:
        # Columns decide what becomes of a feature.
        return inputs

    def _infer_outputs(self, inputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        read = Features(inputs if isinstance(inputs, dict) else None)
        for column in self._feature_columns:
            for key in column.parse_example_spec:
                read.check(key)
        shape = self.compute_output_shape({key: t.shape for key, t in inputs.items()})
        return KerasTensor(TensorSpec(shape, dtypes.float32))

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        """The shape of the vectors."""
        first = next(iter(input_shape.values())) if isinstance(input_shape, dict) else input_shape
        sizes = [int(np.prod(column.variable_shape)) for column in self._feature_columns]
        return TensorShape([TensorShape(first).as_list()[0], sum(sizes)])

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        columns = [configuration.serialize(column) for column in self._feature_columns]
        return {**super().get_config(), "feature_columns": columns, "partitioner": None}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> DenseFeatures:
        """The layer with a configuration."""
        columns = configuration.deserialize_all(config["feature_columns"], custom_objects)
        return cls(**{**config, "feature_columns": columns})


def _sorted_columns(columns: Any) -> list[DenseColumn]:
    listed = list(columns) if isinstance(columns, (list, tuple, set)) else [columns]
    if not isinstance(columns, (list, tuple, set)) and hasattr(columns, "__iter__"):
        listed = list(columns)
    for column in listed:
        if not isinstance(column, DenseColumn):
            raise ValueError(
                "Items of feature_columns must be a DenseColumn. You can wrap a categorical column with an "
                f"embedding_column or indicator_column. Given (type {type(column)}): {column}."
            )
    if not listed:
        raise ValueError("feature_columns must not be empty.")
    by_name: dict[str, DenseColumn] = {}
    for column in listed:
        if column.name in by_name:
            raise ValueError(
                f"Duplicate feature column name found for columns: {column} and {by_name[column.name]}. This usually "
                "means that these columns refer to same base feature."
            )
        by_name[column.name] = column
    return [by_name[name] for name in sorted(by_name)]

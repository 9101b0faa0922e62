"""`DenseFeatures`: a layer that converts features to the inputs of a model by feature columns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from meshflow.core.values import dtypes
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Config, PyTree
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.legacy.feature_column import column_config
from meshflow.legacy.feature_column.base import (
    CategoricalColumn,
    CategoryIds,
    DenseColumn,
    FeatureBatch,
)
from meshflow.legacy.feature_column.categorical import WeightedCategoricalColumn
from meshflow.ops import array


class DenseFeatures(Layer):
    """Layer that concatenates the vectors of feature columns, in the order of the columns' names.

    Args:
      feature_columns: Dense columns: numeric, bucketized, embedding or indicator columns.
      trainable: Whether embeddings are trained.
      name: Name of the layer.
      partitioner: Ignored; layouts determine how variables are sharded.
      **kwargs: Arguments of `Layer`.

    Input shape:
      A dictionary of features with shapes (batch,) or (batch, size).

    Output shape:
      (batch, size), where size is the sum of the sizes of the columns.

    Raises:
      ValueError: If there is no column, a column is categorical, or two columns have the same name.

    Example:
      >>> kind = tf.feature_column.categorical_column_with_vocabulary_list("kind", ["cat", "dog"])
      >>> columns = [tf.feature_column.numeric_column("age"), tf.feature_column.indicator_column(kind)]
      >>> layer = tf.keras.layers.DenseFeatures(columns)
      >>> layer({"age": [3.0, 5.0], "kind": ["dog", "cat"]}).numpy().tolist()
      [[3.0, 0.0, 1.0], [5.0, 1.0, 0.0]]
    """

    def __init__(
        self,
        feature_columns: DenseColumn | Iterable[DenseColumn],
        trainable: bool = True,
        name: str | None = None,
        partitioner: object = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable=trainable, name=name, **kwargs)
        self._feature_columns = _sort_columns(feature_columns)
        self._partitioner = partitioner
        self._tables: dict[str, Variable | None] = {}
        # Category ids that the host computed for the step that is traced.
        self._precomputed: dict[CategoricalColumn, CategoryIds] = {}

    @property
    def runs_on_host(self) -> bool:
        """Whether some category ids are computed on the host, for example those of strings."""
        return bool(self._find_host_columns())

    def _find_host_columns(self) -> list[CategoricalColumn]:
        columns = [column.categorical_input for column in self._feature_columns]
        return list(dict.fromkeys(c for c in columns if c is not None and c.needs_host))

    def compute_host_values(self, features: Mapping[str, TensorLike]) -> list[np.ndarray]:
        """Compute the category ids of the columns that need the host.

        Args:
          features: Features of a batch.

        Returns:
          Category ids of each column, followed by weights if the column has any.
        """
        batch = FeatureBatch(features)
        ids = [batch.get_ids(column) for column in self._find_host_columns()]
        return [np.asarray(t.array) for pair in ids for t in pair if t is not None]

    @contextlib.contextmanager
    def substitute_values(self, tensors: list[Tensor]) -> Iterator[None]:
        """Use the results of `compute_host_values` within this context, while a step is traced."""
        remaining = iter(tensors)
        self._precomputed = {
            column: CategoryIds(
                next(remaining),
                next(remaining) if isinstance(column, WeightedCategoricalColumn) else None,
            )
            for column in self._find_host_columns()
        }
        try:
            yield
        finally:
            self._precomputed = {}

    def build(self, input_shape: object) -> None:
        """Create the tables of the embeddings."""
        for column in self._feature_columns:
            self._tables[column.name] = column.create_variable(self)
        self.built = True

    def call(
        self,
        features: Mapping[str, TensorLike],
        cols_to_output_tensors: dict[DenseColumn, Tensor] | None = None,
        training: object = None,
    ) -> Tensor:
        """Compute the vectors.

        Args:
          features: Tensors or sparse tensors by key; a vector holds one value for each row.
          cols_to_output_tensors: Dictionary to which the vectors of each column are added.
          training: Ignored.

        Returns:
          float32 tensor [batch, total size].

        Raises:
          ValueError: If `features` is not a dictionary, or lacks a feature.
        """
        batch, parts = FeatureBatch(features, self._precomputed), []
        for column in self._feature_columns:
            vectors = column.compute_vectors(batch, self._tables.get(column.name))
            size = int(np.prod(column.variable_shape))
            part = array.reshape(vectors, [vectors.shape[0], size])
            if cols_to_output_tensors is not None:
                cols_to_output_tensors[column] = part
            parts.append(part)
        return array.concat(parts, axis=-1)

    def _cast_inputs(self, inputs: Any) -> Any:
        # The columns cast the features.
        return inputs

    def _infer_outputs(
        self, inputs: PyTree, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> KerasTensor:
        batch = FeatureBatch(inputs if isinstance(inputs, dict) else None)
        for column in self._feature_columns:
            for key in column.parse_example_spec:
                batch.check_key(key)
        shape = self.compute_output_shape({key: t.shape for key, t in inputs.items()})
        return KerasTensor(TensorSpec(shape, dtypes.float32))

    def compute_output_shape(self, input_shape: PyTree) -> TensorShape:
        """Return the shape of the output."""
        feature_shape = (
            next(iter(input_shape.values())) if isinstance(input_shape, dict) else input_shape
        )
        sizes = [int(np.prod(column.variable_shape)) for column in self._feature_columns]
        return TensorShape([TensorShape(feature_shape).as_list()[0], sum(sizes)])

    def get_config(self) -> Config:
        """Return the configuration."""
        columns = [column_config.serialize(column) for column in self._feature_columns]
        return {**super().get_config(), "feature_columns": columns, "partitioner": None}

    @classmethod
    def from_config(
        cls, config: Config, custom_objects: Mapping[str, Any] | None = None
    ) -> DenseFeatures:
        """Create a layer from a configuration."""
        columns = column_config.deserialize_all(config["feature_columns"], custom_objects)
        return cls(**{**config, "feature_columns": columns})


def _sort_columns(columns: DenseColumn | Iterable[DenseColumn]) -> list[DenseColumn]:
    columns = list(columns) if isinstance(columns, Iterable) else [columns]
    for column in columns:
        if not isinstance(column, DenseColumn):
            raise ValueError(
                "Items of feature_columns must be a DenseColumn. You can wrap a categorical column with an "
                f"embedding_column or indicator_column. Given (type {type(column)}): {column}."
            )
    if not columns:
        raise ValueError("feature_columns must not be empty.")
    by_name: dict[str, DenseColumn] = {}
    for column in columns:
        if column.name in by_name:
            raise ValueError(
                f"Duplicate feature column name found for columns: {column} and {by_name[column.name]}. This usually "
                "means that these columns refer to same base feature."
            )
        by_name[column.name] = column
    return [by_name[name] for name in sorted(by_name)]

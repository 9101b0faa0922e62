"""`tf.tpu.experimental.embedding`: embedding tables of several features, with an optimizer for each table.

The tables are variables, so the classes work on every device. `TPUEmbedding` computes activations and updates in separate
calls, as on a TPU; in the other classes, lookups are differentiable.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from meshflow.core.dispatch.composite import IndexedSlices, SparseTensor
from meshflow.core.gradients.tape import GradientTape
from meshflow.core.runtime.errors import FailedPreconditionError
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.module import ObservableAttributes
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.keras import initializers
from meshflow.ops import array, math, nn
from meshflow.ops.ragged import RaggedTensor
from meshflow.tpu.table_optimizers import FTRL, SGD, Adagrad, AdagradMomentum, Adam, TableOptimizer

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "AdagradMomentum",
    "Adam",
    "FeatureConfig",
    "QuantizationConfig",
    "TPUEmbedding",
    "TPUEmbeddingForServing",
    "TPUEmbeddingV0",
    "TableConfig",
    "serving_embedding_lookup",
]


class QuantizationConfig:
    """Range and number of steps to which embeddings are rounded on a TPU; ignored here.

    Args:
      num_buckets: Number of steps.
      lower: Lower end of the range.
      upper: Upper end of the range.
    """

    def __init__(self, num_buckets: int, lower: float, upper: float) -> None:
        if num_buckets < 2:
            raise ValueError(f"num_buckets is {num_buckets}, must be at least 2 for quantization.")
        self.num_buckets, self.lower, self.upper = num_buckets, lower, upper


class TableConfig:
    """Size, initializer and optimizer of a table.

    Args:
      vocabulary_size: Number of rows.
      dim: Size of a row.
      initializer: Initializer of the table. Default: a truncated normal distribution with standard deviation 1 / sqrt(dim).
      optimizer: Optimizer of the table; default that of the embedding.
      combiner: "mean", "sum" or "sqrtn".
      name: Name of the table.
      quantization_config: Ignored.

    Raises:
      ValueError: If an argument is invalid.
    """

    def __init__(
        self,
        vocabulary_size: int,
        dim: int,
        initializer: Callable[..., TensorLike] | None = None,
        optimizer: TableOptimizer | None = None,
        combiner: str = "mean",
        name: str | None = None,
        quantization_config: QuantizationConfig | None = None,
    ) -> None:
        if not isinstance(vocabulary_size, int) or vocabulary_size < 1:
            raise ValueError(
                f"Argument `vocabulary_size` must be an int and must be >= 1. Received: {vocabulary_size}"
            )
        if not isinstance(dim, int) or dim < 1:
            raise ValueError(
                f"Argument `dim` (embedding dimension) must be an int and must be >= 1. Received: {dim}"
            )
        if initializer is not None and not callable(initializer):
            raise ValueError(
                f"Argument `initializer` must be callable (or None). Received: {initializer}"
            )
        if combiner not in ("mean", "sum", "sqrtn"):
            raise ValueError(
                f"Argument `combiner` must be one of ('mean', 'sum', 'sqrtn'). Received: {combiner}"
            )
        self.vocabulary_size, self.dim, self.optimizer = vocabulary_size, dim, optimizer
        self.initializer = initializer or initializers.TruncatedNormal(0.0, dim**-0.5)
        self.combiner, self.name, self.quantization_config = combiner, name, quantization_config

    def __repr__(self) -> str:
        return (
            f"TableConfig(vocabulary_size={self.vocabulary_size}, dim={self.dim}, combiner={self.combiner!r}, "
            f"name={self.name!r})"
        )


class FeatureConfig:
    """Table of a feature, and the form of its activations.

    Args:
      table: The table.
      max_sequence_length: Length of the sequence of embeddings of an example; 0 to combine them.
      validate_weights_and_indices: Whether ids below 0 and weights of 0 are ignored.
      output_shape: Shape of the activations without the size of a row, or None.
      name: Name of the feature.
    """

    def __init__(
        self,
        table: TableConfig,
        max_sequence_length: int = 0,
        validate_weights_and_indices: bool = True,
        output_shape: Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        self.table, self.max_sequence_length, self.name = table, max_sequence_length, name
        self.validate_weights_and_indices, self.output_shape = (
            validate_weights_and_indices,
            output_shape,
        )

    def __repr__(self) -> str:
        return f"FeatureConfig(table={self.table!r}, max_sequence_length={self.max_sequence_length}, name={self.name!r})"


def _look_up(config: FeatureConfig, table: Variable, ids: Any, weights: PyTree) -> Tensor:
    """Return the activations of a feature."""
    if isinstance(ids, RaggedTensor):
        weights = weights.to_sparse() if isinstance(weights, RaggedTensor) else weights
        ids = ids.to_sparse()
    if not isinstance(ids, SparseTensor):
        if weights is not None:
            raise ValueError(f"Weight specified for {config.name}, but input is dense.")
        result = nn.embedding_lookup(table, convert_to_tensor(ids))
    elif config.max_sequence_length > 0:
        rows = nn.embedding_lookup(table, ids.values)
        if weights is not None:
            rows = rows * array.expand_dims(math.cast(weights.values, rows.dtype), -1)
        length = config.max_sequence_length
        inside = array.reshape(array.where(ids.indices[:, -1] < length), [-1])
        shape = array.concat(
            [ids.dense_shape[:1], convert_to_tensor([length, config.table.dim], dtype="int64")], 0
        )
        result = array.scatter_nd(
            array.gather(ids.indices, inside), array.gather(rows, inside), shape
        )
    else:
        look_up = nn.safe_embedding_lookup_sparse
        result = look_up(table, ids, weights, combiner=config.table.combiner)
    if config.output_shape is not None:
        result = array.reshape(result, [*config.output_shape, config.table.dim])
    return result


def serving_embedding_lookup(
    inputs: PyTree,
    weights: PyTree | None,
    tables: Mapping[TableConfig, Variable],
    feature_config: PyTree,
) -> PyTree:
    """Return the activations of features.

    Args:
      inputs: Ids of the features: dense tensors, sparse tensors of rank 2, or ragged tensors.
      weights: Weights of sparse ids in the same structure, or None.
      tables: Variables by their configurations.
      feature_config: `FeatureConfig`s in the same structure.

    Example:
      >>> embedding = tf.tpu.experimental.embedding
      >>> table = embedding.TableConfig(3, 2)
      >>> tables = {table: tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])}
      >>> ids = {"word": tf.constant([2, 0])}
      >>> config = {"word": embedding.FeatureConfig(table)}
      >>> embedding.serving_embedding_lookup(ids, None, tables, config)["word"].numpy().tolist()
      [[5.0, 6.0], [1.0, 2.0]]
    """
    configs = nest.flatten(feature_config)
    values = nest.flatten_up_to(feature_config, inputs)
    factors = (
        [None] * len(configs) if weights is None else nest.flatten_up_to(feature_config, weights)
    )
    outputs = [
        _look_up(c, tables[c.table], v, w) for c, v, w in zip(configs, values, factors, strict=True)
    ]
    return nest.pack_sequence_as(feature_config, outputs)


class _TableOwner(ObservableAttributes):
    """Base class of embeddings with tables.

    Args:
      feature_config: Nested structure of `FeatureConfig`s.
      optimizer: Optimizer of tables without one, or None.
    """

    def __init__(self, feature_config: PyTree, optimizer: TableOptimizer | None) -> None:
        self._feature_config, self._optimizer = feature_config, optimizer
        self._table_configs = list(dict.fromkeys(c.table for c in nest.flatten(feature_config)))
        names: set[str] = set()
        for i, config in enumerate(self._table_configs):
            config.name = config.name or f"table_{i}"
            if config.name in names:
                raise ValueError(
                    f"Tables must have a unique name. Multiple tables with name {config.name} found."
                )
            names.add(config.name)
        self._variables: dict[str, dict[str, Variable]] = {}

    @property
    def embedding_tables(self) -> dict[TableConfig, Variable]:
        """Return the variable of each table."""
        self.build()
        return {
            config: self._variables[str(config.name)]["parameters"]
            for config in self._table_configs
        }

    def build(self, *args: object, **kwargs: object) -> None:
        """Create the variables, unless they exist."""
        for config in self._table_configs if not self._variables else ():
            shape = (config.vocabulary_size, config.dim)
            make = functools.partial(config.initializer, shape, dtype="float32")
            table = Variable(make, name=config.name)
            optimizer = config.optimizer or self._optimizer
            slots = {} if optimizer is None else optimizer.create_slots(table)
            self._variables[str(config.name)] = {"parameters": table, **slots}

    def _checkpoint_children(self) -> dict[str, Any]:
        self.build()
        return dict(self._variables)


class TPUEmbeddingForServing(_TableOwner):
    """Embedding for inference, and for training with gradients of its tables.

    Args:
      feature_config: Nested structure of `FeatureConfig`s.
      optimizer: Optimizer of tables without one, or None.
      experimental_sparsecore_restore_info: Ignored.

    Example:
      >>> embedding = tf.tpu.experimental.embedding
      >>> config = embedding.FeatureConfig(embedding.TableConfig(3, 2, lambda shape, dtype: tf.ones(shape, dtype)))
      >>> layer = embedding.TPUEmbeddingForServing(config, embedding.SGD(0.1))
      >>> layer(tf.constant([0, 2])).shape
      TensorShape([2, 2])
    """

    def __init__(
        self,
        feature_config: PyTree,
        optimizer: TableOptimizer | None,
        experimental_sparsecore_restore_info: object = None,
    ) -> None:
        super().__init__(feature_config, optimizer)

    def embedding_lookup(self, features: PyTree, weights: PyTree | None = None) -> PyTree:
        """Return the activations; see `serving_embedding_lookup`."""
        return serving_embedding_lookup(
            features, weights, self.embedding_tables, self._feature_config
        )

    __call__ = embedding_lookup


class TPUEmbeddingV0(TPUEmbeddingForServing):
    """Embedding with differentiable lookups, so that any optimizer trains its tables.

    Args:
      feature_config: Nested structure of `FeatureConfig`s.
      optimizer: Optimizer of tables without one, or None.
    """

    def __init__(self, feature_config: PyTree, optimizer: TableOptimizer | None) -> None:
        super().__init__(feature_config, optimizer)


class TPUEmbedding(_TableOwner):
    """Embedding in steps: `enqueue` ids, `dequeue` activations, and `apply_gradients` to the tables.

    Args:
      feature_config: Nested structure of `FeatureConfig`s.
      optimizer: Optimizer of tables without one.
      pipeline_execution_with_tensor_core: Ignored.

    Raises:
      ValueError: If two tables have the same name.

    Example:
      >>> embedding = tf.tpu.experimental.embedding
      >>> config = embedding.FeatureConfig(embedding.TableConfig(3, 2, lambda shape, dtype: tf.ones(shape, dtype)))
      >>> model = embedding.TPUEmbedding(config, embedding.SGD(0.5))
      >>> model.enqueue(tf.constant([0, 2]))
      >>> activations = model.dequeue()
      >>> model.apply_gradients(tf.ones_like(activations))
      >>> next(iter(model.embedding_tables.values())).numpy()[:, 0].tolist()
      [0.5, 1.0, 0.5]
    """

    def __init__(
        self,
        feature_config: PyTree,
        optimizer: TableOptimizer | None,
        pipeline_execution_with_tensor_core: bool = False,
    ) -> None:
        super().__init__(feature_config, optimizer)
        self._step: tuple[PyTree, PyTree, bool] | None = None

    def enqueue(
        self,
        features: PyTree,
        weights: PyTree | None = None,
        training: bool = True,
        name: str | None = None,
        device: str | None = None,
    ) -> None:
        """Set the ids of the next step.

        Args:
          features: Ids, in the structure of the configuration.
          weights: Weights of sparse ids, or None.
          training: Whether `apply_gradients` follows.
          name: Ignored.
          device: Ignored.
        """
        self._step = (features, weights, training)

    def dequeue(self, name: str | None = None) -> PyTree:
        """Return the activations of the ids.

        Raises:
          FailedPreconditionError: If no ids were enqueued.
        """
        if self._step is None:
            raise FailedPreconditionError(None, None, "TPUEmbedding.dequeue: call enqueue first.")
        features, weights, _ = self._step
        return serving_embedding_lookup(
            features, weights, self.embedding_tables, self._feature_config
        )

    def apply_gradients(self, gradients: PyTree, name: str | None = None) -> None:
        """Update the tables by the gradients of the activations.

        Args:
          gradients: Gradients in the structure of the activations; None for some of them.
          name: Ignored.

        Raises:
          FailedPreconditionError: If no ids were enqueued for training.
          ValueError: If a table has no optimizer.
        """
        if self._step is None or not self._step[2]:
            raise FailedPreconditionError(
                None, None, "TPUEmbedding.apply_gradients: call enqueue(training=True) first."
            )
        features, weights, _ = self._step
        configs = nest.flatten(self._feature_config)
        values = nest.flatten_up_to(self._feature_config, features)
        factors = (
            [None] * len(configs)
            if weights is None
            else nest.flatten_up_to(self._feature_config, weights)
        )
        found = nest.flatten_up_to(self._feature_config, gradients)
        slices: dict[TableConfig, list[IndexedSlices]] = {}
        for config, ids, weight, gradient in zip(configs, values, factors, found, strict=True):
            if gradient is not None:
                table = self.embedding_tables[config.table]
                slices.setdefault(config.table, []).append(
                    _find_row_gradients(config, table, ids, weight, gradient)
                )
        seen: set[int] = set()
        for config, parts in slices.items():
            optimizer = config.optimizer or self._optimizer
            if optimizer is None:
                raise ValueError(f"`optimizer` is required to train the table {config.name}.")
            if isinstance(optimizer, Adam) and id(optimizer) not in seen:
                seen.add(id(optimizer))
                step = optimizer._step
                assert step is not None
                step.assign_add(1)
            self._update(config, optimizer, parts)

    def _update(
        self, config: TableConfig, optimizer: TableOptimizer, parts: Iterable[IndexedSlices]
    ) -> None:
        slices = list(parts)
        ids = array.concat([s.indices for s in slices], 0)
        values = array.concat([s.values for s in slices], 0)
        rows, positions = array.unique(ids)
        sums = math.unsorted_segment_sum(values, positions, array.shape(rows)[0])
        table, *_ = self._variables[str(config.name)].values()
        slots = {
            name: v for name, v in self._variables[str(config.name)].items() if name != "parameters"
        }
        optimizer.apply(table, slots, rows, sums)


def _find_row_gradients(
    config: FeatureConfig, table: Variable, ids: Any, weights: PyTree, gradient: TensorLike
) -> IndexedSlices:
    """Return the gradient of a table for the gradient of the activations of a feature."""
    with GradientTape() as tape:
        activations = _look_up(config, table, ids, weights)
    result = tape.gradient(activations, table, convert_to_tensor(gradient))
    if isinstance(result, IndexedSlices):
        return result
    flat = (
        ids.flat_values
        if isinstance(ids, RaggedTensor)
        else ids.values
        if isinstance(ids, SparseTensor)
        else ids
    )
    rows, _ = array.unique(array.reshape(convert_to_tensor(flat), [-1]))
    return IndexedSlices(array.gather(result, rows), rows)

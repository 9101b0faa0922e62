"""`DTensorDataset`: the batches of a dataset as tensors on a mesh."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from meshflow.core.iterators.iterator_captures import IteratorSource
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch, prefetch
from meshflow.environment.types import Array, PyTree
from meshflow.placement.layout import UNSHARDED, Layout, list_spec_dimensions, put_on_mesh
from meshflow.placement.mesh import Mesh

__all__ = ["DTensorDataset", "TFDataServiceConfig"]


class TFDataServiceConfig(NamedTuple):
    """Address of a tf.data service; not supported by any dataset yet.

    Attributes:
      dispatcher_address: Address of the dispatcher.
      job_name: Name of the job.
    """

    dispatcher_address: str
    job_name: str


class DTensorDataset:
    """Batches of a dataset as tensors on a mesh; can be iterated and passed to `fit`.

    The batches are those of `dataset.batch(global_batch_size, drop_remainder=True)`, in that order,
    for any number of devices and processes. Every process reads the full dataset and keeps the
    shards of its devices.

    Args:
      dataset: `tf.data.Dataset` of single elements, or of batches with `dataset_already_batched`.
      mesh: Mesh of the batches.
      layouts: Layout of each component of a batch, in the structure of an element; the first axis
        is the batch axis.
      global_batch_size: Number of examples in a batch, for all devices together.
      dataset_already_batched: Whether the dataset contains batches of equal size for one replica;
        the batches of all replicas are concatenated.
      batch_dim: Mesh dimension (or several, "data+model") that batches are split over, on which all
        layouts must agree; None if batches are not split.
      prefetch: Number of batches that a thread prepares in advance.
      tf_data_service_config: Must be None.

    Raises:
      ValueError: If structures, ranks or sizes of elements and layouts do not fit; the message
        names the component.
      NotImplementedError: If a tf.data service is passed.

    Example:
      >>> dtensor = tf.experimental.dtensor
      >>> mesh = dtensor.create_mesh([("batch", 1)], devices=["CPU:0"])
      >>> batches = dtensor.DTensorDataset(
      ...     tf.data.Dataset.range(5), mesh=mesh, layouts=dtensor.Layout(["batch"], mesh),
      ...     global_batch_size=2, batch_dim="batch")
      >>> [batch.numpy().tolist() for batch in batches]
      [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        mesh: Mesh,
        layouts: PyTree,
        global_batch_size: int,
        dataset_already_batched: bool = False,
        batch_dim: str | None = None,
        prefetch: int | None = None,
        tf_data_service_config: TFDataServiceConfig | None = None,
    ) -> None:
        if tf_data_service_config is not None:
            raise NotImplementedError(
                "DTensorDataset does not use a tf.data service: every process reads the full dataset and "
                "keeps its shards. Leave tf_data_service_config out."
            )
        if not isinstance(dataset, Dataset):
            raise TypeError(
                f"DTensorDataset expects a tf.data.Dataset, got {type(dataset).__name__}."
            )
        self._mesh, self._layouts, self._prefetch = mesh, layouts, prefetch
        nest.assert_same_structure(dataset.element_spec, layouts)
        specs, flat = nest.flatten(dataset.element_spec), nest.flatten(layouts)
        split = () if batch_dim is None else list_spec_dimensions(batch_dim, mesh)
        replicas = math.prod(mesh.dim_size(name) for name in split)
        size = int(global_batch_size)
        if size % replicas:
            raise InvalidValueError(
                f"global_batch_size {size} does not divide into the {replicas} parts of mesh dimension "
                f"'{batch_dim}'. Take a multiple of {replicas}."
            )
        num_batch_axes = 1 if dataset_already_batched else 0
        global_specs = [
            self._check_component(i, spec, layout, batch_dim, num_batch_axes, size)
            for i, (spec, layout) in enumerate(zip(specs, flat, strict=True))
        ]
        self._global_spec = nest.pack_sequence_as(dataset.element_spec, global_specs)
        if dataset_already_batched:
            actual, expected = specs[0].shape[0], size // replicas
            if actual != expected:
                raise InvalidValueError(
                    "per_replica_batch_size does not matched expected size based on the mesh, got "
                    f"{actual} but expected {expected}. That is global_batch_size {size} over the {replicas} replicas of "
                    f"the mesh: batch the dataset by {expected} with drop_remainder=True."
                )
            self._batches, self._batches_per_step = dataset, replicas
        else:
            self._batches, self._batches_per_step = dataset.batch(size, drop_remainder=True), 1

    def _check_component(
        self,
        index: int,
        spec: TensorSpec,
        layout: object,
        batch_dim: str | None,
        num_batch_axes: int,
        size: int,
    ) -> TensorSpec:
        """Check a component and return its spec in the global batch."""
        if not isinstance(layout, Layout):
            raise InvalidValueError(
                f"layouts: component {index} is not a Layout but {type(layout).__name__}."
            )
        if layout.mesh != self._mesh:
            raise InvalidValueError(
                f"layouts: component {index} has a layout on {layout.mesh}, the dataset is for {self._mesh}."
            )
        if batch_dim is not None and batch_dim not in layout.sharding_specs[:1]:
            raise InvalidValueError(
                f"batch_dim {batch_dim} was specified but at least one layout did not contain it: that of component "
                f"{index} is {layout.sharding_specs}; its first axis must be split over {batch_dim}."
            )
        if batch_dim is None and layout.sharding_specs[:1] not in ([], [UNSHARDED]):
            raise InvalidValueError(
                f"The layout of component {index} splits the batch over '{layout.sharding_specs[0]}': pass "
                f"batch_dim='{layout.sharding_specs[0]}'."
            )
        if spec.shape.rank is None:
            raise InvalidValueError(
                f"Dataset element shape must have a valid rank, got {spec} for component {index}. Set the shape with "
                "tf.ensure_shape."
            )
        sizes = spec.shape.as_list()
        if num_batch_axes and sizes[:1] == [None]:
            raise InvalidValueError(
                f"Component {index} has batches of shape {spec.shape}, whose size is not known. Ensure "
                "drop_remainder=True when batching the dataset."
            )
        if None in sizes:
            raise InvalidValueError(
                f"Dataset element shape {spec.shape} of component {index} must be fully defined. Batch with "
                "drop_remainder=True, or set the shape with tf.ensure_shape."
            )
        shape = [size, *sizes[num_batch_axes:]]
        if len(shape) != layout.rank:
            raise InvalidValueError(
                f"Expected layout with rank {len(shape)} for component {index}, whose batches have shape "
                f"{tuple(shape)}, but found layout {layout.sharding_specs} with rank {layout.rank}."
            )
        layout.check_shape(shape, f"batch component {index}")
        return TensorSpec(shape, spec.dtype)

    @property
    def element_spec(self) -> PyTree:
        """Return the specs of the global batch."""
        return self._global_spec

    def __iter__(self) -> DTensorIterator:
        return DTensorIterator(self._iterate_batches(), self._global_spec)

    def _iterate_batches(self) -> Iterator[PyTree]:
        elements = self._batches.iter_elements(Epoch(self._batches))
        if self._prefetch:
            elements = prefetch(elements, self._prefetch)
        pending: list[PyTree] = []
        for element in elements:
            pending.append(element)
            if len(pending) == self._batches_per_step:
                yield nest.map_structure(self._place_component, self._layouts, *pending)
                pending = []

    def _place_component(self, layout: Layout, *batches: Array) -> Tensor:
        global_batch = batches[0] if len(batches) == 1 else np.concatenate(batches)
        return Tensor(put_on_mesh(global_batch, layout))

    def __len__(self) -> int:
        return len(self._batches) // self._batches_per_step

    def cardinality(self) -> np.int64:
        """Return the number of batches as an int64 scalar; -1 if infinite, -2 if unknown."""
        count = self._batches.count_elements()
        return np.int64(count // self._batches_per_step if count >= 0 else count)

    @property
    def infinite(self) -> bool:
        """Check whether the dataset is infinite."""
        return self._batches.count_elements() == -1


class DTensorIterator(IteratorSource):
    """Iterator over a `DTensorDataset`."""

    def __init__(self, batches: Iterator[PyTree], element_spec: PyTree) -> None:
        super().__init__()
        self._batches, self._spec = batches, element_spec

    @property
    def element_spec(self) -> PyTree:
        """Return the specs of the global batch."""
        return self._spec

    def _produce(self) -> PyTree:
        return next(self._batches)

    def _make_cache_key(self) -> str:
        return str(self._spec)

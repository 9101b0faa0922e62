"""`DTensorDataset`: the batches of a dataset, laid out on a mesh."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.iterators.iterator_captures import Source
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch, ahead
from meshflow.placement.layout import UNSHARDED, Layout, dimensions_of, put
from meshflow.placement.mesh import Mesh

__all__ = ["DTensorDataset", "TFDataServiceConfig"]


class TFDataServiceConfig(NamedTuple):
    """Where a tf.data service is; accepted by no dataset yet.

    Attributes:
      dispatcher_address: its address.
      job_name: the job's name.
    """

    dispatcher_address: str
    job_name: str


class DTensorDataset:
    """Batches of a dataset as tensors on a mesh; may be iterated and given to `fit`.

    The batches are those of `dataset.batch(global_batch_size, drop_remainder=True)`, in that order,
    however many devices and processes there are. Every process reads the whole dataset and keeps its
    devices' parts.

    Args:
      dataset: a `tf.data.Dataset` of single elements, or of batches with `dataset_already_batched`.
      mesh: the mesh.
      layouts: a layout for each component of a batch, in the structure of an element; the first axis is the batch's.
      global_batch_size: examples in a batch, for all devices together.
      dataset_already_batched: the dataset gives batches for one replica, all of one size; those of
        all replicas are put together.
      batch_dim: the mesh dimension (or several, "data+model") that batches are split over, on which all layouts must agree;
        None when batches are not split.
      prefetch: how many batches a thread makes ahead.
      tf_data_service_config: must be None.

    Raises:
      ValueError: when structures, ranks or sizes of elements and layouts do not fit, naming the
        component.
      NotImplementedError: for a tf.data service.

    Example:
      >>> import meshflow as tf
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
        dataset: Any,
        *,
        mesh: Mesh,
        layouts: Any,
        global_batch_size: int,
        dataset_already_batched: bool = False,
        batch_dim: str | None = None,
        prefetch: int | None = None,
        tf_data_service_config: TFDataServiceConfig | None = None,
    ) -> None:
        if tf_data_service_config is not None:
            raise NotImplementedError(
                "DTensorDataset does not use a tf.data service: every process reads the whole dataset and "
                "keeps its part. Leave tf_data_service_config out."
            )
        if not isinstance(dataset, Dataset):
            raise TypeError(
                f"DTensorDataset expects a tf.data.Dataset, got {type(dataset).__name__}."
            )
        self._mesh, self._layouts, self._prefetch = mesh, layouts, prefetch
        nest.assert_same_structure(dataset.element_spec, layouts)
        specs, flat = nest.flatten(dataset.element_spec), nest.flatten(layouts)
        split = () if batch_dim is None else dimensions_of(batch_dim, mesh)
        replicas = math.prod(mesh.dim_size(name) for name in split)
        size = int(global_batch_size)
        if size % replicas:
            raise InvalidValueError(
                f"global_batch_size {size} does not divide into the {replicas} parts of mesh dimension "
                f"'{batch_dim}'. Take a multiple of {replicas}."
            )
        batched = 1 if dataset_already_batched else 0
        whole = []
        for number, (spec, layout) in enumerate(zip(specs, flat, strict=True)):
            whole.append(self._checked(number, spec, layout, batch_dim, batched, size))
        self._global_spec = nest.pack_sequence_as(dataset.element_spec, whole)
        if dataset_already_batched:
            own, expected = specs[0].shape[0], size // replicas
            if own != expected:
                raise InvalidValueError(
                    "per_replica_batch_size does not matched expected size based on the mesh, got "
                    f"{own} but expected {expected}. That is global_batch_size {size} over the {replicas} replicas of "
                    f"the mesh: batch the dataset by {expected} with drop_remainder=True."
                )
            self._batches, self._together = dataset, replicas
        else:
            self._batches, self._together = dataset.batch(size, drop_remainder=True), 1

    def _checked(
        self, number: int, spec: Any, layout: Any, batch_dim: str | None, batched: int, size: int
    ) -> TensorSpec:
        """The spec of a component of the global batch."""
        if not isinstance(layout, Layout):
            raise InvalidValueError(
                f"layouts: component {number} is not a Layout but {type(layout).__name__}."
            )
        if layout.mesh != self._mesh:
            raise InvalidValueError(
                f"layouts: component {number} has a layout on {layout.mesh}, the dataset is for {self._mesh}."
            )
        if batch_dim is not None and batch_dim not in layout.sharding_specs[:1]:
            raise InvalidValueError(
                f"batch_dim {batch_dim} was specified but at least one layout did not contain it: that of component "
                f"{number} is {layout.sharding_specs}; its first axis must be split over {batch_dim}."
            )
        if batch_dim is None and layout.sharding_specs[:1] not in ([], [UNSHARDED]):
            raise InvalidValueError(
                f"The layout of component {number} splits the batch over '{layout.sharding_specs[0]}': pass "
                f"batch_dim='{layout.sharding_specs[0]}'."
            )
        if spec.shape.rank is None:
            raise InvalidValueError(
                f"Dataset element shape must have a valid rank, got {spec} for component {number}. Set the shape with "
                "tf.ensure_shape."
            )
        sizes = spec.shape.as_list()
        if batched and sizes[:1] == [None]:
            raise InvalidValueError(
                f"Component {number} has batches of shape {spec.shape}, whose size is not known. Ensure "
                "drop_remainder=True when batching the dataset."
            )
        if None in sizes:
            raise InvalidValueError(
                f"Dataset element shape {spec.shape} of component {number} must be fully defined. Batch with "
                "drop_remainder=True, or set the shape with tf.ensure_shape."
            )
        shape = [size, *sizes[batched:]]
        if len(shape) != layout.rank:
            raise InvalidValueError(
                f"Expected layout with rank {len(shape)} for component {number}, whose batches have shape "
                f"{tuple(shape)}, but found layout {layout.sharding_specs} with rank {layout.rank}."
            )
        layout.check(shape, f"batch component {number}")
        return TensorSpec(shape, spec.dtype)

    @property
    def element_spec(self) -> Any:
        """Specs of the global batch."""
        return self._global_spec

    def __iter__(self) -> DTensorIterator:
        return DTensorIterator(self._made(), self._global_spec)

    def _made(self) -> Iterator[Any]:
        elements = self._batches._elements(Epoch(self._batches))
        if self._prefetch:
            elements = ahead(elements, self._prefetch)
        group: list[Any] = []
        for element in elements:
            group.append(element)
            if len(group) == self._together:
                yield nest.map_structure(self._place, self._layouts, *group)
                group = []

    def _place(self, layout: Layout, *parts: Any) -> Tensor:
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return Tensor(put(whole, layout))

    def __len__(self) -> int:
        return len(self._batches) // self._together

    def cardinality(self) -> Any:
        """Number of batches, an int64 scalar; -1 for infinitely many, -2 when it is not known."""
        count = self._batches._count()
        return np.int64(count // self._together if count >= 0 else count)

    @property
    def infinite(self) -> bool:
        """Whether there is no end."""
        return self._batches._count() == -1


class DTensorIterator(Source):
    """An iterator over a `DTensorDataset`.

    Args:
      batches: the batches.
      element_spec: their specs.
    """

    def __init__(self, batches: Iterator[Any], element_spec: Any) -> None:
        super().__init__()
        self._batches, self._spec = batches, element_spec

    @property
    def element_spec(self) -> Any:
        """Specs of the global batch."""
        return self._spec

    def _produce(self) -> Any:
        return next(self._batches)

    def _kind(self) -> Any:
        return str(self._spec)

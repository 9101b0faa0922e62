"""Placement of batches on a mesh, for every step of a training loop."""

from __future__ import annotations

import math

import jax
import numpy as np

from meshflow.environment.types import Array, PyTree
from meshflow.placement.layout import UNSHARDED, Layout, list_spec_dimensions, put_on_mesh
from meshflow.placement.mesh import Mesh

# Default names of the mesh dimension that batches are split over.
BATCH_DIMENSIONS = ("batch", "data", "replica")


class BatchPlacer:
    """Callable that places batches on a mesh, split over its batch dimension.

    An array is replicated if the size of its batch axis is not divisible by the number of parts. An
    array that is already on the mesh, for example from a `DTensorDataset`, is returned unchanged.

    Args:
      mesh: Mesh that receives the batches.
      dimension: Mesh dimension to split over, or several joined by "+"; None replicates all arrays.
    """

    def __init__(self, mesh: Mesh, dimension: str | None) -> None:
        self._mesh, self._dimension = mesh, dimension
        names = () if dimension is None else list_spec_dimensions(dimension, mesh)
        self._is_single_device = mesh.size == 1
        self._num_parts = math.prod(map(mesh.dim_size, names)) if names else 0
        self._layouts: dict[tuple[int, int | None], Layout] = {}

    def __call__(self, batch: PyTree, axis: int = 0) -> PyTree:
        """Place a batch on the mesh.

        Args:
          batch: Structure of arrays, or of `jax.ShapeDtypeStruct`s.
          axis: Index of the batch axis.
        """
        arrays, tree = jax.tree.flatten(batch)
        return jax.tree.unflatten(tree, [self._place_array(array, axis) for array in arrays])

    def _place_array(
        self, array: Array | jax.ShapeDtypeStruct, axis: int
    ) -> Array | jax.ShapeDtypeStruct:
        if array.dtype == object or (self._is_single_device and isinstance(array, np.ndarray)):
            # A compiled program transfers host arrays to its only device faster than `device_put`.
            return array
        sharding = getattr(array, "sharding", None)
        if (
            isinstance(sharding, jax.sharding.NamedSharding)
            and sharding.mesh == self._mesh.jax_mesh
        ):
            return array
        layout = self._get_layout(array.shape, axis)
        if isinstance(array, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=layout.to_sharding())
        return put_on_mesh(array, layout)

    def _get_layout(self, shape: tuple[int, ...], axis: int) -> Layout:
        rank = len(shape)
        is_divisible = self._num_parts and rank > axis and shape[axis] % self._num_parts == 0
        key = rank, axis if is_divisible else None
        if key not in self._layouts:
            specs = [UNSHARDED] * rank
            if is_divisible and self._dimension is not None:
                specs[axis] = self._dimension
            self._layouts[key] = Layout(specs, self._mesh)
        return self._layouts[key]

"""Batches of arrays onto a mesh, step after step."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from meshflow.placement.layout import UNSHARDED, Layout, dimensions_of, put
from meshflow.placement.mesh import Mesh

__all__ = ["BATCH_DIMENSIONS", "BatchPlacer"]

# The names of the mesh dimension that batches are split over, where nobody says which.
BATCH_DIMENSIONS = ("batch", "data", "replica")


class BatchPlacer:
    """Puts batches onto a mesh, split over its dimensions for batches.

    An array that the dimension does not divide goes whole to every device; one that lies on the mesh
    already (from a `DTensorDataset`) stays as it is.

    Args:
      mesh: the mesh.
      dimension: the mesh dimension, or several joined by "+"; None splits nothing.
    """

    def __init__(self, mesh: Mesh, dimension: str | None) -> None:
        self._mesh, self._dimension = mesh, dimension
        names = () if dimension is None else dimensions_of(dimension, mesh)
        self._alone = mesh.size == 1
        self._parts = math.prod(map(mesh.dim_size, names)) if names else 0
        self._layouts: dict[tuple[int, int | None], Layout] = {}

    def __call__(self, batch: Any, axis: int = 0) -> Any:
        """The batch on the mesh.

        Args:
          batch: a structure of arrays.
          axis: the axis of the examples.
        """
        arrays, tree = jax.tree.flatten(batch)
        return jax.tree.unflatten(tree, [self._placed(array, axis) for array in arrays])

    def _placed(self, array: Any, axis: int) -> Any:
        if array.dtype == object or (self._alone and isinstance(array, np.ndarray)):
            # Programs take arrays of the host to their one device themselves, in less time.
            return array
        sharding = getattr(array, "sharding", None)
        if (
            isinstance(sharding, jax.sharding.NamedSharding)
            and sharding.mesh == self._mesh.jax_mesh
        ):
            return array
        layout = self._layout(array.shape, axis)
        if isinstance(array, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=layout.sharding())
        return put(array, layout)

    def _layout(self, shape: tuple[int, ...], axis: int) -> Layout:
        rank = len(shape)
        divides = self._parts and rank > axis and shape[axis] % self._parts == 0
        key = rank, axis if divides else None
        if key not in self._layouts:
            specs = [UNSHARDED] * rank
            if divides and self._dimension is not None:
                specs[axis] = self._dimension
            self._layouts[key] = Layout(specs, self._mesh)
        return self._layouts[key]

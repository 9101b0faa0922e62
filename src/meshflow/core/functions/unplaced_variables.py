"""Variables without a device, such as step counters, that a program over a mesh writes.

The new values of such variables are on the mesh. JAX would compile the program once for their
original device, once for the mesh, and once more after some of them are assigned, so they are moved
to the mesh before they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec


class UnplacedVariables:
    """The variables without a device among the captures of a program.

    Args:
      written: The variables that the program writes, with their indices among the captures.
    """

    def __init__(self, written: Sequence[tuple[int, Any]]) -> None:
        self._written = written
        # Target shardings by capture index; they are known when the program first runs.
        self._shardings: list[tuple[int, jax.sharding.Sharding]] | None = None

    def move_to_mesh(self, arrays: Sequence[Any], captured: list[Any]) -> list[Any]:
        """Return the arrays of the captures, moved to the mesh of the other arrays if there is one."""
        if self._shardings is None:
            self._shardings = self._find_shardings(arrays, captured)
        for i, sharding in self._shardings:
            if not captured[i].committed:
                captured[i] = jax.device_put(captured[i], sharding)
        return captured

    def _find_shardings(
        self, arrays: Sequence[Any], captured: Sequence[Any]
    ) -> list[tuple[int, jax.sharding.Sharding]]:
        mesh = _find_mesh([*arrays, *captured])
        if mesh is None:
            return []
        replicated = NamedSharding(mesh, PartitionSpec())
        return [
            (i, replicated if variable.layout is None else variable.layout.to_sharding())
            for i, variable in self._written
            if variable.layout is None or not captured[i].committed
        ]


def _find_mesh(arrays: Iterable[Any]) -> Mesh | AbstractMesh | None:
    """Return the mesh of arrays on several devices of this process, or None."""
    for array in arrays:
        sharding = getattr(array, "sharding", None)
        if (
            isinstance(sharding, NamedSharding)
            and len(sharding.device_set) > 1
            and sharding.is_fully_addressable
        ):
            return sharding.mesh
    return None

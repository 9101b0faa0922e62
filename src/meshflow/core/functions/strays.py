"""Variables that lie nowhere in particular, and that a program over a mesh writes: a step counter, a metric's total.

The program leaves their new values on the mesh. JAX would compile it once for where they lie before, once for where
they lie then, and once more where some are set anew, so they are moved to the mesh before they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

__all__ = ["Strays"]


class Strays:
    """The strays among the captures of a program.

    Args:
      written: the variables that the program writes, each after its number among the captures.
    """

    def __init__(self, written: Sequence[tuple[int, Any]]) -> None:
        self._written = written
        # Where each is to lie; known when the program is first run.
        self._places: list[tuple[int, Any]] | None = None

    def moved(self, arrays: Sequence[Any], captured: list[Any]) -> list[Any]:
        """The captures' arrays, those of strays on the mesh of the others, if any lies on one.

        Args:
          arrays: the program's arguments.
          captured: the captures' arrays.
        """
        if self._places is None:
            self._places = self._found(arrays, captured)
        for i, place in self._places:
            if not captured[i].committed:
                captured[i] = jax.device_put(captured[i], place)
        return captured

    def _found(self, arrays: Sequence[Any], captured: Sequence[Any]) -> list[tuple[int, Any]]:
        mesh = _mesh_of([*arrays, *captured])
        if mesh is None:
            return []
        whole = NamedSharding(mesh, PartitionSpec())
        return [
            (i, whole if variable.layout is None else variable.layout.sharding())
            for i, variable in self._written
            if variable.layout is None or not captured[i].committed
        ]


def _mesh_of(arrays: Iterable[Any]) -> Any:
    """The mesh of several devices of this process that arrays lie on, or None."""
    for array in arrays:
        sharding = getattr(array, "sharding", None)
        if (
            isinstance(sharding, NamedSharding)
            and len(sharding.device_set) > 1
            and sharding.is_fully_addressable
        ):
            return sharding.mesh
    return None

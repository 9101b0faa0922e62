"""Values that differ from replica to replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from meshflow.core.values.specs import TypeSpec
from meshflow.core.values.tensor import Tensor
from meshflow.ops.array import stack as join

__all__ = ["DistributedValues", "PerReplica"]


class PerReplica(tuple):
    """One value for each replica.

    Attributes:
      values: the values, as a tuple.

    Example:
      >>> import meshflow as tf
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
      >>> value = strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
      >>> isinstance(value, tf.distribute.DistributedValues)
      True
      >>> [int(part) for part in strategy.experimental_local_results(value)]
      [0, 1]
    """

    __slots__ = ()
    # One value of the program: `tf.nest` does not look inside.
    leaf_of_nests = True

    @property
    def values(self) -> tuple[Any, ...]:
        """The replicas' values."""
        return tuple(self)

    def _described(self, describe: Callable[[Any], str]) -> str:
        lines = ",\n".join(f"  {i}: {describe(v)}" for i, v in enumerate(self.values))
        return f"PerReplica:{{\n{lines}\n}}"

    def __repr__(self) -> str:
        return self._described(repr)

    def __str__(self) -> str:
        return self._described(str)


class Stacked(PerReplica):
    """Values of one shape, kept as one tensor with the replicas along its first axis."""

    __slots__ = ()

    @property
    def stacked(self) -> Any:
        """The tensor of shape [replicas, ...]."""
        return tuple.__getitem__(self, 0)

    @property
    def values(self) -> tuple[Any, ...]:
        """The replicas' values."""
        stacked = self.stacked
        return tuple(stacked[i] for i in range(stacked.shape[0]))


DistributedValues = PerReplica


class PerReplicaSpec(TypeSpec):
    """What a `PerReplica` looks like from outside.

    Args:
      *value_specs: the spec of each replica's value.
    """

    __slots__ = ("_value_specs",)

    def __init__(self, *value_specs: Any) -> None:
        self._value_specs = value_specs

    def is_compatible_with(self, value: Any) -> bool:
        """Whether a `PerReplica` or another spec has values that the replicas' specs describe."""
        if isinstance(value, PerReplicaSpec):
            others: tuple[Any, ...] = value._value_specs
        elif isinstance(value, PerReplica):
            others = value.values
        else:
            return False
        return len(others) == len(self._value_specs) and all(
            spec.is_compatible_with(v) for spec, v in zip(self._value_specs, others, strict=True)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerReplicaSpec) and self._value_specs == other._value_specs

    def __hash__(self) -> int:
        return hash(self._value_specs)

    def __repr__(self) -> str:
        return f"PerReplicaSpec({', '.join(map(repr, self._value_specs))})"


def _register(kind: type[Any]) -> None:
    jax.tree_util.register_pytree_node(
        kind, lambda v: (tuple(v), None), lambda _, children: kind(children)
    )


_register(PerReplica)
_register(Stacked)


def map_replicas(function: Callable[[Any], Any], structure: Any) -> Any:
    """Applies a function to the leaves of a structure, where a `PerReplica` is a leaf."""
    if isinstance(structure, PerReplica):
        return function(structure)
    if isinstance(structure, dict):
        return type(structure)({k: map_replicas(function, v) for k, v in structure.items()})
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*[map_replicas(function, v) for v in structure])
    if isinstance(structure, (list, tuple)):
        return type(structure)([map_replicas(function, v) for v in structure])
    return function(structure)


def stack(values: Any) -> Any:
    """A `Stacked` when all values are tensors of one shape and dtype, else a `PerReplica`."""
    tensors = list(values)
    alike = all(isinstance(t, Tensor) for t in tensors)
    if alike and len({(tuple(t.shape.as_list()), t.dtype) for t in tensors}) == 1:
        return Stacked((join(tensors),))
    return PerReplica(tensors)

"""Values that differ between replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax

from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import string
from meshflow.core.values.specs import TypeSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree
from meshflow.ops.array import stack as join

__all__ = ["DistributedValues", "PerReplica"]


class PerReplica(tuple):
    """Tuple of one value for each replica.

    Attributes:
      values: Values of the replicas, as a tuple.

    Example:
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
      >>> value = strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
      >>> isinstance(value, tf.distribute.DistributedValues)
      True
      >>> [int(part) for part in strategy.experimental_local_results(value)]
      [0, 1]
    """

    __slots__ = ()
    # A `PerReplica` is a leaf for `tf.nest`, although it is a tuple.
    leaf_of_nests = True

    @property
    def values(self) -> tuple[Any, ...]:
        """Return the values of the replicas."""
        return tuple(self)

    def _format(self, format_value: Callable[[Any], str]) -> str:
        lines = ",\n".join(f"  {i}: {format_value(v)}" for i, v in enumerate(self.values))
        return f"PerReplica:{{\n{lines}\n}}"

    def __repr__(self) -> str:
        return self._format(repr)

    def __str__(self) -> str:
        return self._format(str)


class Stacked(PerReplica):
    """Per-replica values of one shape, stored as one tensor with the replicas along its first axis."""

    __slots__ = ()

    @property
    def stacked(self) -> Tensor:
        """Return the tensor of shape [replicas, ...]."""
        return tuple.__getitem__(self, 0)

    @property
    def values(self) -> tuple[Tensor, ...]:
        """Return the values of the replicas."""
        stacked = self.stacked
        return tuple(stacked[i] for i in range(stacked.shape[0]))


DistributedValues = PerReplica


class PerReplicaSpec(TypeSpec):
    """Spec of a `PerReplica`."""

    value_type = PerReplica

    __slots__ = ("_value_specs",)
    _has_components, _is_element = False, True

    def __init__(self, *value_specs: TypeSpec) -> None:
        self._value_specs = value_specs

    def is_compatible_with(self, value: object) -> bool:
        """Check whether a `PerReplica` or another spec is compatible with the replicas' specs."""
        if isinstance(value, PerReplicaSpec):
            others: tuple[object, ...] = value._value_specs
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


def _register_pytree(cls: type[PerReplica]) -> None:
    jax.tree_util.register_pytree_node(
        cls, lambda v: (tuple(v), None), lambda _, children: cls(children)
    )


_register_pytree(PerReplica)
_register_pytree(Stacked)


def map_replicas(function: Callable[[Any], object], structure: PyTree) -> PyTree:
    """Apply a function to the leaves of a structure, with each `PerReplica` as a leaf."""
    if isinstance(structure, PerReplica):
        return function(structure)
    if isinstance(structure, dict):
        return type(structure)({k: map_replicas(function, v) for k, v in structure.items()})
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*[map_replicas(function, v) for v in structure])
    if isinstance(structure, (list, tuple)):
        return type(structure)([map_replicas(function, v) for v in structure])
    return function(structure)


def to_value(value: Any) -> Tensor | CompositeTensor:
    """Convert the value of a replica to a tensor, except for a composite tensor."""
    return value if isinstance(value, CompositeTensor) else convert_to_tensor(value)


def stack_values(values: Iterable[object]) -> PerReplica:
    """Create a `Stacked` if all values are numeric tensors of one shape and dtype, else a `PerReplica`."""
    parts: list[Any] = list(values)
    is_numeric = all(isinstance(v, Tensor) and v.dtype is not string for v in parts)
    if is_numeric and len({(tuple(v.shape.as_list()), v.dtype) for v in parts}) == 1:
        return Stacked((join(parts),))
    return PerReplica(parts)

"""`TPUStrategy`: replicas on TPU cores, or on groups of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.functions.concrete_function import ConcreteFunction, Settings
from meshflow.core.functions.function import Function
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.distribute.local_strategies import MirroredStrategy
from meshflow.distribute.replicas.collectives import AXIS
from meshflow.distribute.tpu import system as tpu_system
from meshflow.distribute.tpu.resolver import TPUClusterResolver
from meshflow.placement.mesh import Mesh, device_name

__all__ = ["TPUStrategy"]


def _factors(count: int) -> list[int]:
    """Prime factors of a number, rising."""
    found, divisor = [], 2
    while count > 1:
        while count % divisor == 0:
            found.append(divisor)
            count //= divisor
        divisor += 1
    return found


class TPUStrategy(MirroredStrategy):
    """A replica on each TPU core, or on each group of cores of a device assignment.

    Args:
      tpu_cluster_resolver: a `TPUClusterResolver`; default one of this machine's TPUs.
      experimental_device_assignment: a `tf.tpu.experimental.DeviceAssignment`; default all cores with
        a replica each.
      experimental_spmd_xla_partitioning: accepted; a replica of several cores is always partitioned
        by XLA.

    Raises:
      NotFoundError: also a ValueError; when there is no TPU.

    Example:
      On a machine without TPUs, started with `MESHFLOW_EMULATE_TPU=8`::

          resolver = tf.distribute.cluster_resolver.TPUClusterResolver("")
          tf.config.experimental_connect_to_cluster(resolver)
          tf.tpu.experimental.initialize_tpu_system(resolver)
          strategy = tf.distribute.TPUStrategy(resolver)
          strategy.num_replicas_in_sync  # 8
    """

    no_loss_scaling = (
        "It is unnecessary with TPUs, since they compute in bfloat16, which has float32's range: remove the "
        "LossScaleOptimizer, or use the policy mixed_bfloat16."
    )

    def __init__(
        self,
        tpu_cluster_resolver: TPUClusterResolver | None = None,
        experimental_device_assignment: Any = None,
        experimental_spmd_xla_partitioning: bool = False,
    ) -> None:
        del experimental_spmd_xla_partitioning
        self._resolver = tpu_cluster_resolver or TPUClusterResolver("")
        assignment = experimental_device_assignment
        if assignment is not None and not isinstance(assignment, tpu_system.DeviceAssignment):
            raise TypeError(
                "TPUStrategy: experimental_device_assignment must be a tf.tpu.experimental.DeviceAssignment, "
                f"got {type(assignment).__name__}."
            )
        groups = [[d] for d in tpu_system.tpus()] if assignment is None else assignment.devices()
        flat = [device for group in groups for device in group]
        # One mesh dimension for each prime factor of the cores, so that any split of a tensor is a layout.
        self._core_sizes = _factors(len(groups[0]))
        self._core_names = [f"core_{i}" for i in range(len(self._core_sizes))]
        mesh = None
        if self._core_sizes:
            ids = np.arange(len(flat)).reshape(len(groups), *self._core_sizes)
            own = [i for i, d in enumerate(flat) if d.process_index == jax.process_index()]
            names = [AXIS, *self._core_names]
            mesh = Mesh(names, ids, own, [flat[i] for i in own], "", flat)
        self._start(flat, mesh)
        self.extended.experimental_require_static_shapes = True

    @property
    def cluster_resolver(self) -> TPUClusterResolver:
        """The resolver."""
        return self._resolver

    def run(
        self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None, options: Any = None
    ) -> Any:
        """`Strategy.run` of a compiled function, or inside one.

        Args:
          fn: a `tf.function`; inside of one any function.
          args: its arguments; of a `PerReplica` each replica gets its own value.
          kwargs: its keyword arguments.
          options: accepted.

        Returns:
          What `fn` returns, with a `PerReplica` for each tensor when there are several replicas.

        Raises:
          NotImplementedError: for a plain function outside of a `tf.function`, unless
            `tf.config.run_functions_eagerly(True)` asks for that.
        """
        compiled = (Function, ConcreteFunction)
        called = getattr(type(fn), "__call__", None)  # noqa: B004  # what it is, not whether
        if not (
            isinstance(fn, compiled)
            or isinstance(called, compiled)
            or context.trace is not None
            or Settings.run_eagerly
        ):
            raise NotImplementedError(
                "TPUStrategy.run(fn, ...) does not support pure eager execution: make `fn` a `tf.function`, or "
                "call `strategy.run` inside a `tf.function`."
            )
        return super().run(fn, args, kwargs, options)

    def experimental_assign_to_logical_device(self, tensor: Any, logical_device_id: int) -> Any:
        """Says that a replica's tensor belongs on one of its cores.

        XLA partitions a replica over all its cores; a tensor on one core only has no layout, so it
        is kept on each.

        Args:
          tensor: the tensor.
          logical_device_id: the core's number.

        Returns:
          The tensor.

        Raises:
          ValueError: when the replica has no such core.
        """
        cores = int(np.prod(self._core_sizes, dtype=np.int64))
        if not 0 <= logical_device_id < cores:
            raise InvalidValueError(
                "`logical_device_id` is not in the range of logical devices per replica: got "
                f"{logical_device_id}, and a replica has {cores}."
            )
        return self.experimental_replicate_to_logical_devices(tensor)

    def experimental_split_to_logical_devices(
        self, tensor: Any, partition_dimensions: Sequence[int]
    ) -> Any:
        """Splits a replica's tensor over its cores.

        Args:
          tensor: the tensor.
          partition_dimensions: into how many parts each axis is split; their product is the number
            of cores of a replica, or 1.

        Returns:
          The tensor, split.

        Raises:
          ValueError: when the numbers do not fit the tensor or the cores.
        """
        cores = int(np.prod(self._core_sizes, dtype=np.int64))
        parts = [int(p) for p in partition_dimensions]
        shape = list(tensor.shape)
        if len(parts) != len(shape):
            raise InvalidValueError(
                f"Length of `partition_dimensions` must equal the rank of the tensor ({len(shape)}), "
                f"got {parts}."
            )
        for axis, (size, count) in enumerate(zip(shape, parts, strict=True)):
            if size % count:
                raise InvalidValueError(
                    f"Tensor shape at `partition_dimensions[{axis}]` must be divisible by the number of "
                    f"parts: {size} by {count}."
                )
        product = int(np.prod(parts, dtype=np.int64))
        if product not in (1, cores):
            raise InvalidValueError(
                "The product of `partition_dimensions` should be the same as the number of logical devices "
                f"per replica ({cores}), or 1; got {parts}."
            )
        free = list(zip(self._core_names, self._core_sizes, strict=True))
        spec: list[Any] = []
        for count in parts:
            axes = []
            for factor in _factors(count):
                name = next(n for n, size in free if size == factor)
                free.remove((name, factor))
                axes.append(name)
            spec.append(tuple(axes) or None)
        return _constrain(tensor, (self.mesh.jax_mesh, tuple(spec)))

    def experimental_replicate_to_logical_devices(self, tensor: Any) -> Any:
        """Says that all cores of a replica hold a tensor.

        Args:
          tensor: the tensor.

        Returns:
          The tensor.
        """
        return self.experimental_split_to_logical_devices(tensor, [1] * len(tensor.shape))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {[device_name(d) for d in self._devices]}>"


@op
def _constrain(x: TensorLike, layout: Any) -> Tensor:
    """The same numbers, laid out on a mesh: (JAX mesh, axes of each dimension)."""
    mesh, spec = layout
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    return jax.lax.with_sharding_constraint(x, sharding)

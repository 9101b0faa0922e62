"""`TPUStrategy`: replicas on TPU cores, or on groups of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.functions.concrete_function import ConcreteFunction, FunctionSettings
from meshflow.core.functions.function import Function
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.distribute.local_strategies import MirroredStrategy
from meshflow.distribute.replicas.collectives import REPLICA_AXIS
from meshflow.distribute.tpu import system as tpu_system
from meshflow.distribute.tpu.resolver import TPUClusterResolver
from meshflow.environment.types import PyTree
from meshflow.placement.mesh import Mesh, get_device_name


def _factorize(count: int) -> list[int]:
    """Return the prime factors of an integer in ascending order."""
    factors, divisor = [], 2
    while count > 1:
        while count % divisor == 0:
            factors.append(divisor)
            count //= divisor
        divisor += 1
    return factors


class TPUStrategy(MirroredStrategy):
    """Strategy with a replica on each TPU core, or on each group of cores of a device assignment.

    Args:
      tpu_cluster_resolver: A `TPUClusterResolver`; default a resolver of this machine's TPUs.
      experimental_device_assignment: A `tf.tpu.experimental.DeviceAssignment`; default a replica on
        each core.
      experimental_spmd_xla_partitioning: Ignored; XLA partitions the program of a replica with
        several cores in any case.

    Raises:
      NotFoundError: If there is no TPU; the error is a ValueError, too.

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
        experimental_device_assignment: tpu_system.DeviceAssignment | None = None,
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
        groups = (
            [[d] for d in tpu_system.list_tpus()]
            if assignment is None
            else assignment.list_devices()
        )
        flat = [device for group in groups for device in group]
        # The mesh has one dimension for each prime factor of the number of cores, so any split of a
        # tensor is a layout.
        self._core_sizes = _factorize(len(groups[0]))
        self._core_names = [f"core_{i}" for i in range(len(self._core_sizes))]
        mesh = None
        if self._core_sizes:
            ids = np.arange(len(flat)).reshape(len(groups), *self._core_sizes)
            local_ids = [i for i, d in enumerate(flat) if d.process_index == jax.process_index()]
            names = [REPLICA_AXIS, *self._core_names]
            mesh = Mesh(names, ids, local_ids, [flat[i] for i in local_ids], "", flat)
        self._initialize(flat, mesh)
        self.extended.experimental_require_static_shapes = True

    @property
    def cluster_resolver(self) -> TPUClusterResolver:
        """Return the cluster resolver."""
        return self._resolver

    def run(
        self,
        fn: Callable[..., PyTree],
        args: PyTree = (),
        kwargs: PyTree = None,
        options: object = None,
    ) -> PyTree:
        """Call a compiled function, or any function inside of one, for each replica.

        Raises:
          NotImplementedError: If `fn` is an ordinary function outside of a `tf.function`, unless
            `tf.config.run_functions_eagerly(True)` was called.
        """
        compiled = (Function, ConcreteFunction)
        call_method = getattr(type(fn), "__call__", None)  # noqa: B004 - the method itself is needed
        if not (
            isinstance(fn, compiled)
            or isinstance(call_method, compiled)
            or context.trace is not None
            or FunctionSettings.run_eagerly
        ):
            raise NotImplementedError(
                "TPUStrategy.run(fn, ...) does not support pure eager execution: make `fn` a `tf.function`, or "
                "call `strategy.run` inside a `tf.function`."
            )
        return super().run(fn, args, kwargs, options)

    def experimental_assign_to_logical_device(
        self, tensor: TensorLike, logical_device_id: int
    ) -> Tensor:
        """Assign a replica's tensor to one of its cores.

        XLA partitions a replica over all its cores, and no layout represents a tensor on one core
        of a mesh. Therefore, the tensor is replicated on all cores.

        Args:
          tensor: Tensor of the replica.
          logical_device_id: Index of the core.

        Raises:
          ValueError: If the replica has no such core.
        """
        cores = int(np.prod(self._core_sizes, dtype=np.int64))
        if not 0 <= logical_device_id < cores:
            raise InvalidValueError(
                "`logical_device_id` is not in the range of logical devices per replica: got "
                f"{logical_device_id}, and a replica has {cores}."
            )
        return self.experimental_replicate_to_logical_devices(tensor)

    def experimental_split_to_logical_devices(
        self, tensor: TensorLike, partition_dimensions: Sequence[int]
    ) -> Tensor:
        """Split a replica's tensor over its cores.

        Args:
          tensor: Tensor of the replica.
          partition_dimensions: Number of parts of each axis; their product is the number of cores
            of a replica, or 1.

        Raises:
          ValueError: If the numbers do not fit the tensor or the cores.
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
        spec: list[tuple[str, ...] | None] = []
        for count in parts:
            axes = []
            for factor in _factorize(count):
                name = next(n for n, size in free if size == factor)
                free.remove((name, factor))
                axes.append(name)
            spec.append(tuple(axes) or None)
        return _constrain(tensor, (self.mesh.jax_mesh, tuple(spec)))

    def experimental_replicate_to_logical_devices(self, tensor: TensorLike) -> Tensor:
        """Replicate a tensor on all cores of a replica."""
        return self.experimental_split_to_logical_devices(tensor, [1] * len(tensor.shape))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {[get_device_name(d) for d in self._devices]}>"


@op
def _constrain(x: TensorLike, layout: Any) -> Tensor:
    """Constrain a tensor to a sharding: a JAX mesh and the mesh axes of each dimension."""
    mesh, spec = layout
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    return jax.lax.with_sharding_constraint(x, sharding)

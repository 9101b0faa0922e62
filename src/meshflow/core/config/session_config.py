"""`tf.compat.v1.ConfigProto`: settings that programs pass to servers.

The fields are those of TensorFlow's message. Only the numbers of threads have an effect. The other
settings are stored, because XLA makes most of these decisions.

Only the numbers of threads have an effect. The other settings are stored, because XLA makes most of
these decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


class _ConfigMessage:
    """A message with a fixed set of fields that have defaults."""

    _fields: dict[str, Any] = {}

    def __init__(self, **values: Any) -> None:
        for name, default in self._fields.items():
            initial = default() if isinstance(default, type) else default
            object.__setattr__(self, name, initial)
        for name, value in values.items():
            if isinstance(getattr(self, name, None), list | dict):
                object.__setattr__(self, name, type(getattr(self, name))(value))
            else:
                setattr(self, name, value)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a field."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._fields:
            raise AttributeError(
                f"Protocol message {type(self).__name__} has no {name!r} field; it has "
                f"{', '.join(sorted(self._fields))}."
            )
        kind = type(getattr(self, name))
        if kind in (int, float) and isinstance(value, int | float):
            value = kind(value)
        if not isinstance(value, kind):
            raise TypeError(
                f"{type(self).__name__}.{name} must be of type {kind.__name__}, got {value!r}."
            )
        object.__setattr__(self, name, value)

    def CopyFrom(self, other: _ConfigMessage) -> None:
        """Copy all fields of another message.

        Args:
          other: A message of the same class.
        """
        for name in self._fields:
            object.__setattr__(self, name, getattr(other, name))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        default = type(self)()
        shown = (
            f"{name}: {value!r}"
            for name, value in vars(self).items()
            if value != getattr(default, name)
        )
        return "{" + ", ".join(shown) + "}"


class GPUOptions(_ConfigMessage):
    """Settings of GPUs, which have no effect: XLA manages the memory of GPUs.

    Args:
      **values: Values of fields, such as `allow_growth`.

    Raises:
      AttributeError: If a field does not exist.

    Example:
      >>> tf.compat.v1.GPUOptions(allow_growth=True).allow_growth
      True
    """

    _fields = {
        "allocator_type": "",
        "allow_growth": False,
        "deferred_deletion_bytes": 0,
        "force_gpu_compatible": False,
        "per_process_gpu_memory_fraction": 0.0,
        "polling_active_delay_usecs": 0,
        "polling_inactive_delay_msecs": 0,
        "visible_device_list": "",
    }


class OptimizerOptions(_ConfigMessage):
    """Settings of the optimization of graphs, which have no effect."""

    L0, L1, DEFAULT, OFF, ON_1, ON_2 = -1, 0, 0, -1, 1, 2
    _fields = {
        "cpu_global_jit": False,
        "do_common_subexpression_elimination": False,
        "do_constant_folding": False,
        "do_function_inlining": False,
        "global_jit_level": 0,
        "max_folded_constant_in_bytes": 0,
        "opt_level": 0,
    }


class GraphOptions(_ConfigMessage):
    """Settings of graphs, which have no effect."""

    _fields = {
        "build_cost_model": 0,
        "build_cost_model_after": 0,
        "enable_bfloat16_sendrecv": False,
        "enable_recv_scheduling": False,
        "infer_shapes": False,
        "optimizer_options": OptimizerOptions,
        "place_pruned_graph": False,
        "rewrite_options": dict,
        "timeline_step": 0,
    }


class RunOptions(_ConfigMessage):
    """Settings of a run of a session, which have no effect."""

    NO_TRACE, SOFTWARE_TRACE, HARDWARE_TRACE, FULL_TRACE = 0, 1, 2, 3
    _fields = {
        "debug_options": dict,
        "inter_op_thread_pool": 0,
        "output_partition_graphs": False,
        "report_tensor_allocations_upon_oom": False,
        "timeout_in_ms": 0,
        "trace_level": 0,
    }


class RunMetadata(_ConfigMessage):
    """Measurements of a run of a session, which are empty: use `tf.profiler.experimental`."""

    _fields = {"function_graphs": list, "partition_graphs": list, "step_stats": dict}

    def SerializeToString(self) -> bytes:
        """Return the serialized message, which is empty."""
        return b""


class _Experimental(_ConfigMessage):
    _fields = {
        "collective_group_leader": "",
        "collective_nccl": False,
        "coordination_config": dict,
        "disable_output_partition_graphs": False,
        "disable_thread_spinning": False,
        "enable_mlir_bridge": False,
        "executor_type": "",
        "recv_buf_max_chunk": 0,
        "share_cluster_devices_in_session": False,
        "share_session_state_in_clusterspec_propagation": False,
        "use_numa_affinity": False,
        "xla_fusion_autotuner_thresh": 0,
    }


class _RpcOptions(_ConfigMessage):
    _fields = {
        "cache_rpc_response": False,
        "compression_algorithm": "",
        "compression_level": 0,
        "disable_session_connection_sharing": False,
        "num_channels_per_target": 0,
        "use_rpc_for_inprocess_master": False,
    }


class ConfigProto(_ConfigMessage):
    """Settings of a `tf.distribute.Server`.

    Args:
      **values: Values of fields. `intra_op_parallelism_threads` and `inter_op_parallelism_threads`
        have an effect if the server's program has not used a device yet.

    Raises:
      AttributeError: If a field does not exist.
      TypeError: If a value has the wrong type.

    Example:
      >>> config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=2)
      >>> config.gpu_options.allow_growth = True
      >>> config
      {inter_op_parallelism_threads: 2, gpu_options: {allow_growth: True}}
    """

    _fields = {
        "device_count": dict,
        "intra_op_parallelism_threads": 0,
        "inter_op_parallelism_threads": 0,
        "use_per_session_threads": False,
        "placement_period": 0,
        "device_filters": list,
        "gpu_options": GPUOptions,
        "allow_soft_placement": False,
        "log_device_placement": False,
        "graph_options": GraphOptions,
        "session_inter_op_thread_pool": list,
        "operation_timeout_in_ms": 0,
        "rpc_options": _RpcOptions,
        "isolate_session_state": False,
        "share_cluster_devices_in_session": False,
        "experimental": _Experimental,
    }

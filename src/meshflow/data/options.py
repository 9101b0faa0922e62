"""`tf.data.Options`: settings of a pipeline. Most are accepted: the engine decides by itself."""

from __future__ import annotations

import enum
from typing import Any


class AutoShardPolicy(enum.IntEnum):
    """How a dataset is divided between workers."""

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


class AutotuneAlgorithm(enum.Enum):
    """How tuning searches; accepted."""

    DEFAULT = 0
    HILL_CLIMB = 1
    GRADIENT_DESCENT = 2
    MAX_PARALLELISM = 3
    STAGE_BASED = 4


class ExternalStatePolicy(enum.Enum):
    """What saving an iterator does about state outside; accepted."""

    WARN = 0
    IGNORE = 1
    FAIL = 2


class _Group:
    """Settings that remember what was set."""

    _defaults: dict[str, Any] = {}

    def __init__(self) -> None:
        object.__setattr__(self, "_set", {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._set:
            return self._set[name]
        if name in self._defaults:
            return self._defaults[name]
        raise AttributeError(
            f"{type(self).__name__} has no option {name!r}; known: {sorted(self._defaults)}."
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._defaults:
            raise AttributeError(
                f"Cannot set the property {name!r} on {type(self).__name__}; known: {sorted(self._defaults)}."
            )
        self._set[name] = value

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._set == other._set

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._set})"


class AutotuneOptions(_Group):
    """Settings of tuning; accepted."""

    _defaults = {
        "enabled": None,
        "cpu_budget": None,
        "ram_budget": None,
        "autotune_algorithm": None,
    }


class DistributeOptions(_Group):
    """Settings of distribution."""

    _defaults = {"auto_shard_policy": AutoShardPolicy.AUTO, "num_devices": None}


class OptimizationOptions(_Group):
    """Settings of optimizations; accepted."""

    _defaults = dict.fromkeys(
        (
            *("apply_default_optimizations", "autotune", "autotune_buffers", "autotune_cpu_budget"),
            *("filter_fusion", "filter_parallelization", "inject_prefetch", "map_and_batch_fusion"),
            *("map_and_filter_fusion", "map_fusion", "map_parallelization", "map_vectorization"),
            *(
                "noop_elimination",
                "parallel_batch",
                "shuffle_and_repeat_fusion",
                "seq_interleave_prefetch",
            ),
        )
    )


class ThreadingOptions(_Group):
    """Settings of threads; accepted."""

    _defaults = {"max_intra_op_parallelism": None, "private_threadpool_size": None}


class Options(_Group):
    """Settings of a dataset, given by `Dataset.with_options`.

    Example:
      >>> import meshflow as tf
      >>> options = tf.data.Options()
      >>> options.deterministic = False
      >>> tf.data.Dataset.range(2).with_options(options).options().deterministic
      False
    """

    _defaults = {
        "deterministic": None,
        "experimental_deterministic": None,
        "experimental_external_state_policy": None,
        "experimental_slack": None,
        "experimental_symbolic_checkpoint": None,
        "experimental_warm_start": None,
        "autotune": None,
        "experimental_distribute": None,
        "experimental_optimization": None,
        "experimental_threading": None,
        "threading": None,
    }
    _groups = {
        "autotune": AutotuneOptions,
        "experimental_distribute": DistributeOptions,
        "experimental_optimization": OptimizationOptions,
        "experimental_threading": ThreadingOptions,
        "threading": ThreadingOptions,
    }

    def __getattr__(self, name: str) -> Any:
        if name in self._groups and name not in self._set:
            self._set[name] = self._groups[name]()
        return super().__getattr__(name)

    def merge(self, options: Options) -> Options:
        """These options, with those that others set put over them.

        Args:
          options: the others.
        """
        merged = Options()
        merged._set.update(self._set)
        merged._set.update(options._set)
        return merged

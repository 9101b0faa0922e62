"""`tf.data.Options`: the settings of a pipeline.

Most of them are accepted for compatibility and have no effect.
"""

from __future__ import annotations

import enum
from typing import Any, Self


class AutoShardPolicy(enum.IntEnum):
    """Policy that determines how a dataset is split between workers.

    Example:
      >>> options = tf.data.Options()
      >>> options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
      >>> data = tf.data.Dataset.range(4).with_options(options)
      >>> data.options().experimental_distribute.auto_shard_policy.name
      'DATA'
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


class AutotuneAlgorithm(enum.Enum):
    """Search algorithm of the autotuner; has no effect."""

    DEFAULT = 0
    HILL_CLIMB = 1
    GRADIENT_DESCENT = 2
    MAX_PARALLELISM = 3
    STAGE_BASED = 4


class ExternalStatePolicy(enum.Enum):
    """Treatment of external state when an iterator is saved; has no effect."""

    WARN = 0
    IGNORE = 1
    FAIL = 2


class OptionGroup:
    """Base class of groups of settings, which record the settings that were set explicitly."""

    # The type of each setting, and its default value if that is not None.
    _types: dict[str, type] = {}
    _defaults: dict[str, Any] = {}
    # Older names of settings.
    _aliases: dict[str, str] = {}

    def __init__(self) -> None:
        object.__setattr__(self, "_set", {})
        object.__setattr__(self, "_frozen", False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        name = self._aliases.get(name, name)
        if name in self._set:
            return self._set[name]
        if name in self._types:
            return self._defaults.get(name)
        raise AttributeError(
            f"{type(self).__name__} has no option {name!r}; known: {sorted(self._types)}."
        )

    def __setattr__(self, name: str, value: object) -> None:
        if self._frozen:
            raise ValueError(
                "Mutating the options that `Dataset.options()` returns has no effect on the dataset: use "
                "`Dataset.with_options(options)`."
            )
        name = self._aliases.get(name, name)
        if name not in self._types:
            raise AttributeError(
                f"Cannot set the property {name!r} on {type(self).__name__}; known: {sorted(self._types)}."
            )
        expected_type = self._types[name]
        if value is not None and not isinstance(value, expected_type):
            raise TypeError(
                f"Property {name!r} must be of type {expected_type.__name__}, got {value!r} of type {type(value).__name__}."
            )
        self._set[name] = value

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._set == other._set

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._set})"

    def merge(self, options: Self) -> Self:
        """Return these settings, overridden by other settings.

        Args:
          options: Settings of the same class.
        """
        settings = dict(self._set)
        for name, value in options._set.items():
            current = settings.get(name)
            settings[name] = current.merge(value) if isinstance(current, OptionGroup) else value
        return self._replace_settings(settings)

    def freeze(self) -> Self:
        """Return a copy of these settings that cannot be changed."""
        settings = {
            name: value.freeze() if isinstance(value, OptionGroup) else value
            for name, value in self._set.items()
        }
        return self._replace_settings(settings, is_frozen=True)

    def _replace_settings(self, settings: dict[str, Any], is_frozen: bool = False) -> Self:
        options = type(self)()
        object.__setattr__(options, "_set", settings)
        object.__setattr__(options, "_frozen", is_frozen)
        return options


class AutotuneOptions(OptionGroup):
    """Settings of the autotuner; they have no effect.

    Example:
      >>> options = tf.data.Options()
      >>> options.autotune.enabled = False
      >>> options.autotune.enabled
      False
    """

    _types = {
        "enabled": bool,
        "cpu_budget": int,
        "ram_budget": int,
        "autotune_algorithm": AutotuneAlgorithm,
        "initial_parallelism": int,
        "min_parallelism": int,
    }


class DistributeOptions(OptionGroup):
    """Settings for datasets that are distributed to workers and replicas.

    Example:
      >>> options = tf.data.Options()
      >>> options.experimental_distribute.num_devices = 4
      >>> options.experimental_distribute.num_devices
      4
    """

    _types = {"auto_shard_policy": AutoShardPolicy, "num_devices": int}
    _defaults = {"auto_shard_policy": AutoShardPolicy.AUTO}


class OptimizationOptions(OptionGroup):
    """Settings of graph optimizations; they have no effect.

    Example:
      >>> options = tf.data.Options()
      >>> options.experimental_optimization.map_fusion = True
      >>> options.experimental_optimization.map_fusion
      True
    """

    _types = {
        **dict.fromkeys(
            (
                *("apply_default_optimizations", "autotune", "autotune_buffers"),
                *("filter_fusion", "filter_parallelization", "inject_prefetch"),
                *("map_and_batch_fusion", "map_and_filter_fusion", "map_fusion"),
                *("map_parallelization", "map_vectorization", "noop_elimination"),
                *("parallel_batch", "seq_interleave_prefetch", "shuffle_and_repeat_fusion"),
                *("hoist_random_uniform", "reorder_data_discarding_ops", "warm_start"),
            ),
            bool,
        ),
        "autotune_cpu_budget": int,
        "autotune_ram_budget": int,
    }


class ThreadingOptions(OptionGroup):
    """Settings of thread pools; they have no effect.

    Example:
      >>> options = tf.data.Options()
      >>> options.threading.private_threadpool_size = 2
      >>> options.threading.private_threadpool_size
      2
    """

    _types = {"max_intra_op_parallelism": int, "private_threadpool_size": int}


class Options(OptionGroup):
    """Settings of a dataset, which `Dataset.with_options` applies.

    Example:
      >>> options = tf.data.Options()
      >>> options.deterministic = False
      >>> tf.data.Dataset.range(2).with_options(options).options().deterministic
      False
    """

    _groups = {
        "autotune": AutotuneOptions,
        "experimental_distribute": DistributeOptions,
        "experimental_optimization": OptimizationOptions,
        "threading": ThreadingOptions,
    }
    _types = {
        **_groups,
        "dataset_name": str,
        "deterministic": bool,
        "experimental_external_state_policy": ExternalStatePolicy,
        "experimental_slack": bool,
        "experimental_symbolic_checkpoint": bool,
        "experimental_warm_start": bool,
        "framework_type": list,
    }
    _aliases = {
        "experimental_deterministic": "deterministic",
        "experimental_threading": "threading",
    }

    def __getattr__(self, name: str) -> Any:
        name = self._aliases.get(name, name)
        if name in self._groups and name not in self._set:
            group = self._groups[name]()
            self._set[name] = group.freeze() if self._frozen else group
        return super().__getattr__(name)

    def __eq__(self, other: object) -> bool:
        # An empty group is equal to a group that was never accessed.
        return (
            type(self) is type(other)
            and self._get_explicit_settings() == other._get_explicit_settings()
        )

    def __hash__(self) -> int:
        return hash(type(self))

    def _get_explicit_settings(self) -> dict[str, Any]:
        return {k: v for k, v in self._set.items() if not isinstance(v, OptionGroup) or v._set}

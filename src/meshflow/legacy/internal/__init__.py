"""`tf.__internal__`, `tf.keras.__internal__` and `tf.__operators__`: names that libraries for TensorFlow use.

A table maps names to public objects and to the functions of this package.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.runtime.unavailable_names import raise_if_unavailable

__all__ = ["keras_names", "names", "operators"]

_FUNCTIONS = "meshflow.legacy.internal"
# Paths of public objects, or modules with functions after a colon, by the names below each namespace.
_NAMES: dict[str, str] = {
    **dict.fromkeys(("EagerTensor", "SymbolicTensor"), "Tensor"),
    "types.Tensor": f"{_FUNCTIONS}.tensor_base:TensorBase",
    "FuncGraph": "meshflow.legacy.graph.graph:FuncGraph",
    "CompositeTensor": "meshflow.core.values.composite:CompositeTensor",
    "autograph.control_status_ctx": f"{_FUNCTIONS}.functions:control_status_ctx",
    "autograph.tf_convert": f"{_FUNCTIONS}.functions:tf_convert",
    "distribute.ShardedVariable": "meshflow.core.variables.sharded_variable:ShardedVariable",
    "distribute.interim.maybe_merge_call": f"{_FUNCTIONS}.functions:maybe_merge_call",
    "function.Function": "types.experimental.GenericFunction",
    "get_name_scope": "get_current_name_scope",
    "types.data.Dataset": "data.Dataset",
    **{
        f"feature_column.{n}": f"meshflow.legacy.feature_column.base:{n}"
        for n in ("DenseColumn", "FeatureColumn")
    },
    **{
        f"test.combinations.{n}": f"meshflow.shims.test_combinations:{n}"
        for n in ("NamedObject", "OptionalParameter", "ParameterModifier", "TestCombination")
        + ("combine", "generate", "times")
    },
    **{
        f"distribute.combinations.{n}": f"meshflow.shims.test_combinations:{n}"
        for n in ("generate", "default_strategy", "one_device_strategy", "one_device_strategy_gpu")
        + ("tpu_strategy", "cloud_tpu_strategy", "mirrored_strategy_with_one_cpu")
        + ("mirrored_strategy_with_one_gpu", "mirrored_strategy_with_gpu_and_cpu")
        + ("mirrored_strategy_with_two_gpus", "mirrored_strategy_with_cpu_1_and_2")
    },
    "feature_column.serialize_feature_column": "meshflow.legacy.feature_column.column_config:serialize",
    "train.assign_moving_average": f"{_FUNCTIONS}.functions:assign_moving_average",
    "train.update_checkpoint_state": "compat.v1.train.update_checkpoint_state",
    **{
        f"{space}.{name}".lstrip("."): f"{_FUNCTIONS}.{module}:{name}"
        for space, module, text in (
            ("decorator", "functions", "make_decorator unwrap"),
            ("dispatch", "dispatchers", "OpDispatcher add_dispatch_support"),
            (
                "distribute",
                "functions",
                "strategy_supports_no_merge_call variable_sync_on_read_context",
            ),
            ("eager_context", "functions", "eager_mode get_config get_device_name get_executor"),
            ("eager_context", "functions", "set_soft_device_placement"),
            ("mixed_precision", "functions", "register_loss_scale_wrapper"),
            ("monitoring", "functions", "BoolGauge"),
            (
                "nest",
                "structures",
                "flatten_up_to get_traverse_shallow_structure is_attrs is_mapping",
            ),
            (
                "nest",
                "structures",
                "list_to_tuple map_structure_up_to sequence_like yield_flat_paths",
            ),
            ("ops", "functions", "broadcast_weights is_resource_variable"),
            ("smart_cond", "functions", "smart_cond"),
            ("tf2", "functions", "enabled"),
            (
                "tracking",
                "tracking",
                "AutoTrackable Trackable TrackableReference list_children wrap",
            ),
            (
                "tracking",
                "tracking",
                "no_automatic_dependency_tracking sticky_attribute_assignment",
            ),
            (
                "train",
                "functions",
                "is_mixed_precision_graph_rewrite_enabled set_using_mixed_precision_policy",
            ),
            ("", "functions", "execute_fn_for_device get_enclosing_xla_context is_tfrt_enabled"),
            ("", "functions", "register_call_context_function register_clear_session_function"),
            ("", "functions", "register_get_session_function register_load_context_function"),
            ("", "functions", "register_load_model_function"),
        )
        for name in text.split()
    },
}
_KERAS_NAMES: dict[str, str] = {
    **{
        name: f"meshflow.keras.engine.symbolic.keras_tensor:{name}"
        for name in ("KerasTensor", "RaggedKerasTensor", "SparseKerasTensor")
    },
    "enable_unsafe_deserialization": "keras.config.enable_unsafe_deserialization",
    "layers.BaseDenseAttention": "meshflow.keras.layers.attention:BaseDenseAttention",
    "losses.LossFunctionWrapper": "meshflow.keras.losses.base:LossFunctionWrapper",
    **{
        f"{space}.{name}".lstrip("."): f"{_FUNCTIONS}.keras_functions:{name}"
        for space, text in (
            ("", "apply_name_scope_on_model_declaration"),
            ("backend", "initialize_variables track_variable"),
            ("layers", "BaseRandomLayer"),
            ("losses", "compute_weighted_loss"),
            ("models", "clone_and_build_model in_place_subclassed_model_state_restoration"),
            ("optimizers", "convert_to_legacy_optimizer"),
            ("utils", "get_data_handler register_symbolic_tensor_type"),
        )
        for name in text.split()
    },
}
_OPERATORS: dict[str, str] = {
    name: f"{_FUNCTIONS}.functions:{function}"
    for name, function in (
        ("add", "add"),
        ("eq", "equal"),
        ("getitem", "getitem"),
        ("ne", "not_equal"),
    )
} | {"ragged_getitem": f"{_FUNCTIONS}.functions:getitem"}


class TableNamespace(ModuleType):
    """Namespace of names in a table.

    Args:
      path: Public path.
      table: Objects by their paths below the namespace.
    """

    def __init__(self, path: str, table: Mapping[str, str]) -> None:
        super().__init__(f"meshflow.{path}", f"`tf.{path}`.")
        self._path, self._table = path, table
        self.__path__: list[str] = []
        self.__all__ = sorted({name.partition(".")[0] for name in table})

    def __getattr__(self, name: str) -> Any:
        target = self._table.get(name)
        if target is not None:
            module, _, attribute = target.partition(":")
            owner = importlib.import_module(module) if attribute else get_public_package()
            value = operator.attrgetter(attribute or module)(owner)
        elif below := {
            path.partition(".")[2]: v
            for path, v in self._table.items()
            if path.startswith(f"{name}.")
        }:
            value = TableNamespace(f"{self._path}.{name}", below)
        else:
            raise_if_unavailable(name, f"tf.{self._path}")
            raise AttributeError(f"module 'tf.{self._path}' has no attribute {name!r}")
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return self.__all__


names = TableNamespace("__internal__", _NAMES)
keras_names = TableNamespace("keras.__internal__", _KERAS_NAMES)
operators = TableNamespace("__operators__", _OPERATORS)

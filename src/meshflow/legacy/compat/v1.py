"""`tf.compat.v1`: the names of TensorFlow 1 that training code written for TensorFlow 2 uses.

Names that TensorFlow 2 also has refer to its functions. Graphs, sessions and placeholders do not
exist.
"""

from __future__ import annotations

import logging as _logging
import operator as _operator
from types import SimpleNamespace as _SimpleNamespace
from typing import TYPE_CHECKING, Any

from meshflow.core.config.session_config import ConfigProto, GPUOptions
from meshflow.core.runtime.errors import NotAvailableError as _NotAvailableError
from meshflow.io import protos as _protos
from meshflow.io.records import read_records as _read_records
from meshflow.legacy.compat import image as _image
from meshflow.legacy.compat import nn as _nn
from meshflow.legacy.compat import op_aliases as _renamed
from meshflow.legacy.compat import train as _train
from meshflow.legacy.compat.public_package import tf as _tf
from meshflow.ops import random as _random
from meshflow.ops.math import ceil, log, rsqrt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from meshflow.core.values.tensor import Tensor, TensorLike
    from meshflow.environment.types import PyTree, StrPath

    T = TypeVar("T")

# A module with `__path__` is a package, so that the namespaces below can be imported by their
# paths.
__path__: list[str] = []

__all__ = [
    "ConfigProto",
    "GPUOptions",
    "assert_equal",
    "assert_greater",
    "assert_less",
    "assert_non_negative",
    "assert_positive",
    "assert_rank",
    "assert_rank_at_least",
    "ceil",
    "disable_eager_execution",
    "disable_v2_behavior",
    "enable_eager_execution",
    "enable_resource_variables",
    "enable_v2_behavior",
    "executing_eagerly_outside_functions",
    "global_variables_initializer",
    "local_variables_initializer",
    "log",
    "logging",
    "random_normal",
    "random_shuffle",
    "random_uniform",
    "resource_variables_enabled",
    "rsqrt",
    "set_random_seed",
    "tables_initializer",
    "to_double",
    "to_float",
    "to_int32",
    "to_int64",
    "truncated_normal",
]

_GRAPH_MODE_NAMES = (
    *("GraphKeys", "GraphOptions", "InteractiveSession"),
    *("Session", "SessionLog", "disable_eager_execution", "get_collection", "get_default_graph"),
    *("get_default_session", "get_variable", "get_variable_scope", "global_variables", "layers"),
    *("placeholder", "placeholder_with_default", "reset_default_graph", "trainable_variables"),
    *("variable_scope", "estimator", "app", "flags", "gfile"),
)


def enable_v2_behavior() -> None:
    """Do nothing: TensorFlow 2's behavior is the only one."""


def enable_eager_execution(*args: object, **kwargs: object) -> None:
    """Do nothing: execution is always eager."""


def enable_resource_variables() -> None:
    """Do nothing: all variables are resource variables."""


def resource_variables_enabled() -> bool:
    """Return True."""
    return True


def executing_eagerly_outside_functions() -> bool:
    """Return True."""
    return True


def disable_eager_execution() -> None:
    """Raise an error: graph mode is not available.

    Raises:
      NotImplementedError: Always.
    """
    raise NotImplementedError("Graph mode of TensorFlow 1 is not supported; use tf.function.")


def disable_v2_behavior() -> None:
    """Raise an error: TensorFlow 1's behavior is not available.

    Raises:
      NotImplementedError: Always.
    """
    disable_eager_execution()


def global_variables_initializer() -> None:
    """Do nothing: variables are initialized when they are created."""


local_variables_initializer = tables_initializer = global_variables_initializer


def set_random_seed(seed: int) -> None:
    """Set the global seed; see `tf.random.set_seed`."""
    _tf.random.set_seed(seed)


def to_float(x: TensorLike, name: str = "ToFloat") -> Tensor:
    """Cast `x` to float32."""
    return _tf.cast(x, _tf.float32)


def to_double(x: TensorLike, name: str = "ToDouble") -> Tensor:
    """Cast `x` to float64."""
    return _tf.cast(x, _tf.float64)


def to_int32(x: TensorLike, name: str = "ToInt32") -> Tensor:
    """Cast `x` to int32."""
    return _tf.cast(x, _tf.int32)


def to_int64(x: TensorLike, name: str = "ToInt64") -> Tensor:
    """Cast `x` to int64."""
    return _tf.cast(x, _tf.int64)


random_uniform, random_normal = _random.uniform, _random.normal
random_shuffle, truncated_normal = _random.shuffle, _random.truncated_normal


def _adapt_check(check: Callable[..., T], num_operands: int) -> Callable[..., T]:
    """Wrap a check so that it takes TensorFlow 1's keywords `data` and `summarize`."""

    def wrapper(
        *args: TensorLike,
        data: object = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> T:
        if len(args) > num_operands:
            raise TypeError(f"{check.__name__}: pass data, summarize and message by keyword.")
        return check(*args, message=message)

    wrapper.__name__ = wrapper.__qualname__ = check.__name__
    wrapper.__doc__ = (
        f"`tf.debugging.{check.__name__}`; `data` and `summarize` are accepted as keywords."
    )
    return wrapper


assert_equal = _adapt_check(_tf.debugging.assert_equal, 2)
assert_less = _adapt_check(_tf.debugging.assert_less, 2)
assert_greater = _adapt_check(_tf.debugging.assert_greater, 2)
assert_positive = _adapt_check(_tf.debugging.assert_positive, 1)
assert_non_negative = _adapt_check(_tf.debugging.assert_non_negative, 1)
assert_rank = _adapt_check(_tf.debugging.assert_rank, 2)
assert_rank_at_least = _adapt_check(_tf.debugging.assert_rank_at_least, 2)


class logging:
    """TensorFlow 1's logging levels and functions, through Python's `logging`."""

    DEBUG, INFO, WARN, ERROR, FATAL = 10, 20, 30, 40, 50

    _log = _logging.getLogger("meshflow")
    debug = _log.debug
    info = _log.info
    warn = warning = _log.warning
    error = _log.error
    fatal = _log.critical
    log = _log.log

    @staticmethod
    def set_verbosity(v: int) -> None:
        """Set the lowest level that is logged."""
        logging._log.setLevel(v)

    @staticmethod
    def get_verbosity() -> int:
        """Return the lowest level that is logged."""
        return logging._log.getEffectiveLevel()


# Numbers of operands of further checks with TensorFlow 1's keywords.
_CHECK_OPERANDS = {
    **dict.fromkeys(["assert_greater_equal", "assert_less_equal", "assert_none_equal"], 2),
    **dict.fromkeys(["assert_negative", "assert_non_positive"], 1),
    "assert_rank_in": 2,
}

# Names of TensorFlow 1's top-level namespace that TensorFlow 2 has in `tf.io`.
_IO_NAMES = (
    *("FixedLenFeature", "FixedLenSequenceFeature", "SparseFeature", "VarLenFeature"),
    *("decode_base64", "decode_csv", "decode_raw", "encode_base64", "matching_files"),
    *("parse_example", "parse_single_example", "parse_single_sequence_example", "parse_tensor"),
    *("read_file", "serialize_tensor", "write_file"),
)


# Functions for frozen graphs.
_FROZEN_GRAPH_NAMES = ("GraphDef", "import_graph_def", "wrap_function")

# Messages of event files.
_EVENT_MESSAGES = ("Event", "Summary", "SummaryMetadata")


# Modules with the functions of a namespace that differ in TensorFlow 1.
_OVERRIDES = {"image": _image, "nn": _nn}


def _iterate_records(path: StrPath, options: object = None) -> Iterator[bytes]:
    """Iterate over the records of a file."""
    return _read_records(path, options)


def _map_element_spec(dataset: Any, function: Callable[[Any], object]) -> PyTree:
    """Apply a function to the spec of each component of a dataset's elements."""
    return _tf.nest.map_structure(function, dataset.element_spec)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _renamed.ARGUMENT_ALIASES:
        function = getattr(_tf.math if name == "count_nonzero" else _tf, name)
        return _renamed.accept_old_arguments(function, _renamed.ARGUMENT_ALIASES[name])
    if name in _renamed.OP_ALIASES:
        return _operator.attrgetter(_renamed.OP_ALIASES[name])(_tf)
    if name in _renamed.__all__:
        return getattr(_renamed, name)
    if name in _CHECK_OPERANDS:
        return _adapt_check(getattr(_tf.debugging, name), _CHECK_OPERANDS[name])
    if name in _IO_NAMES:
        return getattr(_tf.io, name)
    if name in _FROZEN_GRAPH_NAMES:
        from meshflow.saved_model.graph.reading import imported_graphs  # noqa: PLC0415 - it needs an optional package

        return getattr(imported_graphs, name)
    if name == "saved_model":
        from meshflow.legacy.compat import saved_model  # noqa: PLC0415 - it needs an optional package

        return saved_model
    if name == "train":
        return _train
    if name == "lite":
        from meshflow.legacy.compat import lite  # noqa: PLC0415 - it inherits from a class of the public package

        return lite
    if name in _EVENT_MESSAGES:
        return getattr(_protos, name)
    if name in ("io", "python_io"):
        names = _SimpleNamespace(
            **{n: getattr(_tf.io, n) for n in (_tf.io.__all__ if name == "io" else ())}
        )
        names.TFRecordWriter, names.TFRecordOptions = _tf.io.TFRecordWriter, _tf.io.TFRecordOptions
        names.TFRecordCompressionType = _SimpleNamespace(NONE=0, ZLIB=1, GZIP=2)
        names.tf_record_iterator = _iterate_records
        return names
    if name == "data":
        names = _SimpleNamespace(**{n: getattr(_tf.data, n) for n in _tf.data.__all__})
        names.get_output_types = lambda data: _map_element_spec(data, lambda spec: spec.dtype)
        names.get_output_shapes = lambda data: _map_element_spec(data, lambda spec: spec.shape)
        names.get_output_classes = lambda data: _map_element_spec(data, lambda spec: _tf.Tensor)
        names.make_one_shot_iterator = names.make_initializable_iterator = iter
        return names
    if name in _OVERRIDES:
        package, module = getattr(_tf, name), _OVERRIDES[name]
        v1_functions = {n: getattr(module, n) for n in module.__all__}
        return _SimpleNamespace(**{n: getattr(package, n) for n in package.__all__} | v1_functions)
    if name == "mixed_precision":
        experimental = _tf.train.experimental
        return _SimpleNamespace(
            DynamicLossScale=experimental.DynamicLossScale,
            FixedLossScale=experimental.FixedLossScale,
            LossScale=experimental.LossScale,
            MixedPrecisionLossScaleOptimizer=_tf.keras.mixed_precision.experimental.LossScaleOptimizer,
            disable_mixed_precision_graph_rewrite=experimental.disable_mixed_precision_graph_rewrite,
            enable_mixed_precision_graph_rewrite=experimental.enable_mixed_precision_graph_rewrite,
            experimental=_tf.mixed_precision.experimental,
        )
    if name in _GRAPH_MODE_NAMES:
        raise _NotAvailableError(
            f"tf.compat.v1.{name} belongs to TensorFlow 1's graph mode, which does not exist here. Use "
            "TensorFlow 2's API (eager execution, tf.function, tf.Variable, Keras)."
        )
    if not hasattr(_tf, name):
        raise AttributeError(
            f"tf.compat.v1.{name} is not supported: only names that exist in TensorFlow 2 are."
        )
    return getattr(_tf, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_tf.__all__})

"""`tf.compat.v1`: the names of version 1 that training code written for version 2 uses.

Names that version 2 has too are version 2's. Graphs, sessions and placeholders do not exist.
"""

from __future__ import annotations

import logging as _logging
import operator as _operator
from types import SimpleNamespace as _SimpleNamespace
from typing import Any

from meshflow.core.config.session_config import ConfigProto, GPUOptions
from meshflow.core.runtime.errors import NotAvailableError as _NotAvailableError
from meshflow.io import protos as _protos
from meshflow.io.records import read_records as _read_records
from meshflow.legacy.compat import nn as _nn
from meshflow.legacy.compat import renamed as _renamed
from meshflow.legacy.compat import train as _train
from meshflow.legacy.compat.surface import tf as _tf
from meshflow.ops import random as _random
from meshflow.ops.math import ceil, log, rsqrt

# Lets its namespaces be imported by their paths.
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

_GRAPH_MODE = (
    *("GraphKeys", "GraphOptions", "InteractiveSession"),
    *("Session", "SessionLog", "disable_eager_execution", "get_collection", "get_default_graph"),
    *("get_default_session", "get_variable", "get_variable_scope", "global_variables", "layers"),
    *("placeholder", "placeholder_with_default", "reset_default_graph", "trainable_variables"),
    *("variable_scope", "estimator", "app", "flags", "gfile"),
)


def enable_v2_behavior() -> None:
    """Nothing: version 2's behaviour is the only one."""


def enable_eager_execution(*args: Any, **kwargs: Any) -> None:
    """Nothing: execution is eager."""


def enable_resource_variables() -> None:
    """Nothing: there is one kind of variable."""


def resource_variables_enabled() -> bool:
    """Always True."""
    return True


def executing_eagerly_outside_functions() -> bool:
    """Always True."""
    return True


def disable_eager_execution() -> None:
    """Not available.

    Raises:
      NotImplementedError: always: graphs and sessions of version 1 do not exist here.
    """
    raise NotImplementedError("Graph mode of TensorFlow 1 is not supported; use tf.function.")


def disable_v2_behavior() -> None:
    """Not available.

    Raises:
      NotImplementedError: always: graphs and sessions of version 1 do not exist here.
    """
    disable_eager_execution()


def global_variables_initializer() -> None:
    """Nothing: variables have values when they are made."""


local_variables_initializer = tables_initializer = global_variables_initializer


def set_random_seed(seed: int) -> None:
    """`tf.random.set_seed`."""
    _tf.random.set_seed(seed)


def to_float(x: Any, name: str = "ToFloat") -> Any:
    """`tf.cast(x, tf.float32)`."""
    return _tf.cast(x, _tf.float32)


def to_double(x: Any, name: str = "ToDouble") -> Any:
    """`tf.cast(x, tf.float64)`."""
    return _tf.cast(x, _tf.float64)


def to_int32(x: Any, name: str = "ToInt32") -> Any:
    """`tf.cast(x, tf.int32)`."""
    return _tf.cast(x, _tf.int32)


def to_int64(x: Any, name: str = "ToInt64") -> Any:
    """`tf.cast(x, tf.int64)`."""
    return _tf.cast(x, _tf.int64)


random_uniform, random_normal = _random.uniform, _random.normal
random_shuffle, truncated_normal = _random.shuffle, _random.truncated_normal


def _version_1(check: Any, operands: int) -> Any:
    """A check with version 1's order of arguments: `data` before `summarize` and `message`."""

    def checked(
        *args: Any,
        data: Any = None,
        summarize: int | None = None,
        message: Any = None,
        name: str | None = None,
    ) -> Any:
        if len(args) > operands:
            raise TypeError(f"{check.__name__}: give data, summarize and message by keyword.")
        return check(*args, message=message)

    checked.__name__ = checked.__qualname__ = check.__name__
    checked.__doc__ = (
        f"`tf.debugging.{check.__name__}`; `data` and `summarize` are accepted as keywords."
    )
    return checked


assert_equal = _version_1(_tf.debugging.assert_equal, 2)
assert_less = _version_1(_tf.debugging.assert_less, 2)
assert_greater = _version_1(_tf.debugging.assert_greater, 2)
assert_positive = _version_1(_tf.debugging.assert_positive, 1)
assert_non_negative = _version_1(_tf.debugging.assert_non_negative, 1)
assert_rank = _version_1(_tf.debugging.assert_rank, 2)
assert_rank_at_least = _version_1(_tf.debugging.assert_rank_at_least, 2)


class logging:
    """Version 1's logging levels and functions, through Python's `logging`."""

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
        """Sets the least level that is shown."""
        logging._log.setLevel(v)

    @staticmethod
    def get_verbosity() -> int:
        """The least level that is shown."""
        return logging._log.getEffectiveLevel()


# More checks with version 1's order of arguments, and the number of their operands.
_CHECKS = {
    **dict.fromkeys(["assert_greater_equal", "assert_less_equal", "assert_none_equal"], 2),
    **dict.fromkeys(["assert_negative", "assert_non_positive"], 1),
    "assert_rank_in": 2,
}

# Names of version 1's top level that version 2 has in `tf.io`.
_IO = (
    *("FixedLenFeature", "FixedLenSequenceFeature", "SparseFeature", "VarLenFeature"),
    *("decode_base64", "decode_csv", "decode_raw", "encode_base64", "matching_files"),
    *("parse_example", "parse_single_example", "parse_single_sequence_example", "parse_tensor"),
    *("read_file", "serialize_tensor", "write_file"),
)


# Graphs in files of their own.
_FROZEN = ("GraphDef", "import_graph_def", "wrap_function")

# Messages of event files.
_EVENTS = ("Event", "Summary", "SummaryMetadata")


def _record_iterator(path: Any, options: Any = None) -> Any:
    """The records of a file, one after another."""
    return _read_records(path, options)


def _parts(data: Any, part: Any) -> Any:
    """Something of each part of a dataset's elements."""
    return _tf.nest.map_structure(part, data.element_spec)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _renamed.ARGUMENTS:
        function = getattr(_tf.math if name == "count_nonzero" else _tf, name)
        return _renamed.with_older_arguments(function, _renamed.ARGUMENTS[name])
    if name in _renamed.SAME:
        return _operator.attrgetter(_renamed.SAME[name])(_tf)
    if name in _renamed.__all__:
        return getattr(_renamed, name)
    if name in _CHECKS:
        return _version_1(getattr(_tf.debugging, name), _CHECKS[name])
    if name in _IO:
        return getattr(_tf.io, name)
    if name in _FROZEN:
        from meshflow.saved_model.graph import frozen  # noqa: PLC0415 - it needs an optional package

        return getattr(frozen, name)
    if name == "saved_model":
        from meshflow.legacy.compat import saved_models  # noqa: PLC0415 - it needs an optional package

        return saved_models
    if name == "train":
        return _train
    if name == "lite":
        from meshflow.legacy.compat import lite  # noqa: PLC0415 - it stands beside this package

        return lite
    if name in _EVENTS:
        return getattr(_protos, name)
    if name in ("io", "python_io"):
        names = _SimpleNamespace(
            **{n: getattr(_tf.io, n) for n in (_tf.io.__all__ if name == "io" else ())}
        )
        names.TFRecordWriter, names.TFRecordOptions = _tf.io.TFRecordWriter, _tf.io.TFRecordOptions
        names.TFRecordCompressionType = _SimpleNamespace(NONE=0, ZLIB=1, GZIP=2)
        names.tf_record_iterator = _record_iterator
        return names
    if name == "data":
        names = _SimpleNamespace(**{n: getattr(_tf.data, n) for n in _tf.data.__all__})
        names.get_output_types = lambda data: _parts(data, lambda spec: spec.dtype)
        names.get_output_shapes = lambda data: _parts(data, lambda spec: spec.shape)
        names.get_output_classes = lambda data: _parts(data, lambda spec: _tf.Tensor)
        names.make_one_shot_iterator = names.make_initializable_iterator = iter
        return names
    if name == "nn":
        older = {n: getattr(_nn, n) for n in _nn.__all__}
        return _SimpleNamespace(**{n: getattr(_tf.nn, n) for n in _tf.nn.__all__} | older)
    if name == "mixed_precision":
        rewrite = _tf.train.experimental
        return _SimpleNamespace(
            DynamicLossScale=rewrite.DynamicLossScale,
            FixedLossScale=rewrite.FixedLossScale,
            LossScale=rewrite.LossScale,
            MixedPrecisionLossScaleOptimizer=_tf.keras.mixed_precision.experimental.LossScaleOptimizer,
            disable_mixed_precision_graph_rewrite=rewrite.disable_mixed_precision_graph_rewrite,
            enable_mixed_precision_graph_rewrite=rewrite.enable_mixed_precision_graph_rewrite,
            experimental=_tf.mixed_precision.experimental,
        )
    if name in _GRAPH_MODE:
        raise _NotAvailableError(
            f"tf.compat.v1.{name} belongs to version 1's graph mode, which does not exist here: write for "
            "version 2 (eager execution, tf.function, tf.Variable, Keras)."
        )
    if not hasattr(_tf, name):
        raise AttributeError(
            f"tf.compat.v1.{name} is not supported: only names that exist in TensorFlow 2 are."
        )
    return getattr(_tf, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_tf.__all__})

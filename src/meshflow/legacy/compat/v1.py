"""`tf.compat.v1`: the names of TensorFlow 1 that training code written for TensorFlow 2 uses.

Names that TensorFlow 2 also has refer to its functions. Graphs and sessions are in `legacy.graph`.
"""

from __future__ import annotations

import logging as _logging
import sys as _sys
from typing import TYPE_CHECKING, Any

from meshflow.core.config.session_config import ConfigProto, GPUOptions  # noqa: F401 - public names
from meshflow.core.runtime.context import context as _context
from meshflow.core.runtime.unavailable_names import explain_names as _explain_names
from meshflow.core.values.tensor import Tensor
from meshflow.legacy.compat.namespaces import find_name as _find_name
from meshflow.legacy.compat.namespaces import list_attributes as _list_attributes
from meshflow.legacy.compat.public_package import tf as _tf
from meshflow.legacy.graph.graph import get_default_graph as _get_default_graph
from meshflow.legacy.graph.graph import set_eager_execution as _set_eager_execution
from meshflow.legacy.graph.sessions import VariableFetches as _VariableFetches
from meshflow.version import COMPILER_VERSION, GIT_VERSION, VERSION  # noqa: F401 - public names

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshflow.core.values.tensor import TensorLike

# A module with `__path__` is a package, so that the namespaces below can be imported by their
# paths.
__path__: list[str] = []

# Versions and build options of the library.
CXX11_ABI_FLAG, MONOLITHIC_BUILD, CXX_VERSION = 1, 0, 201703
GRAPH_DEF_VERSION, GRAPH_DEF_VERSION_MIN_CONSUMER, GRAPH_DEF_VERSION_MIN_PRODUCER = 1645, 0, 0


def _make_switch(name: str, effect: object) -> Callable[..., Any]:
    """Return a function without effect that returns a value, or raises an error.

    Args:
      name: Name of the function.
      effect: Its result, or the message of the error.
    """

    def switch(*args: object, **kwargs: object) -> object:
        if isinstance(effect, str):
            raise NotImplementedError(effect)
        return effect

    switch.__name__ = switch.__qualname__ = name
    switch.__doc__ = (
        "Raise an error: version 1's behavior is not available.\n\nRaises:\n  NotImplementedError: Always."
        if isinstance(effect, str)
        else f"Return {effect}: variables, control flow and execution are those of version 2."
    )
    return switch


_SWITCHES: dict[str, object] = {
    name: value
    for value, names in (
        (
            None,
            "enable_control_flow_v2 enable_tensor_equality",
        ),
        (
            None,
            "enable_v2_behavior enable_v2_tensorshape disable_control_flow_v2",
        ),
        (
            True,
            "control_flow_v2_enabled",
        ),
    )
    for name in names.split()
}
_SWITCHES |= {
    "disable_tensor_equality": "`==` of tensors compares elements, as in TensorFlow 2; use `is` for identity.",
    "disable_v2_tensorshape": "Sizes of shapes are integers, as in TensorFlow 2; use tf.compat.dimension_value.",
}
for _name, _effect in _SWITCHES.items():
    setattr(_sys.modules[__name__], _name, _make_switch(_name, _effect))


def disable_eager_execution() -> None:
    """Record calls in the default graph from now on, in all code without a graph of its own."""
    _set_eager_execution(False)


def enable_eager_execution(
    config: object = None, device_policy: object = None, execution_mode: object = None
) -> None:
    """Undo `disable_eager_execution`; the arguments have no effect."""
    _set_eager_execution(True)


def disable_resource_variables() -> None:
    """Fetch the values that variables have after the other operations of a run, and not before them."""
    _VariableFetches.are_last = True


def enable_resource_variables() -> None:
    """Undo `disable_resource_variables`."""
    _VariableFetches.are_last = False


def resource_variables_enabled() -> bool:
    """Return False after `disable_resource_variables` or `disable_v2_behavior`."""
    return not _VariableFetches.are_last


def disable_v2_behavior() -> None:
    """Call `disable_eager_execution` and `disable_resource_variables`; control flow remains that of TensorFlow 2."""
    disable_eager_execution()
    disable_resource_variables()


def executing_eagerly_outside_functions() -> bool:
    """Check whether code outside of functions runs at once instead of being recorded in a graph."""
    return _context.graph is None


def set_random_seed(seed: int) -> None:
    """Set the global seed, and that of the default graph; see `tf.random.set_seed`."""
    _get_default_graph().seed = seed
    _tf.random.set_seed(seed)


def _make_cast(dtype: Any, name: str) -> Callable[..., Tensor]:
    """Return a function that casts to a dtype."""

    def cast(x: TensorLike, name: str = name) -> Tensor:
        return _tf.cast(x, dtype)

    cast.__name__ = cast.__qualname__ = f"to_{dtype.name}"
    cast.__doc__ = f"Cast `x` to {dtype.name}."
    return cast


to_float, to_double = _make_cast(_tf.float32, "ToFloat"), _make_cast(_tf.float64, "ToDouble")
to_int32, to_int64 = _make_cast(_tf.int32, "ToInt32"), _make_cast(_tf.int64, "ToInt64")
to_bfloat16 = _make_cast(_tf.bfloat16, "ToBFloat16")
to_complex64 = _make_cast(_tf.complex64, "ToComplex64")
to_complex128 = _make_cast(_tf.complex128, "ToComplex128")


_log = _tf.get_logger()
# Calls of `logging.log_first_n` and `log_every_n`, by their messages.
_counts: dict[str, int] = {}


class logging:
    """TensorFlow 1's logging levels and functions, through Python's `logging`."""

    DEBUG, INFO, WARN, ERROR, FATAL = 10, 20, 30, 40, 50

    debug = _log.debug
    info = _log.info
    warn = warning = _log.warning
    error = _log.error
    fatal = _log.critical
    log = _log.log

    @staticmethod
    def get_logger() -> _logging.Logger:
        """Return the logger of the package."""
        return _log

    @staticmethod
    def flush() -> None:
        """Flush the handlers."""
        for handler in _log.handlers:
            handler.flush()

    @staticmethod
    def vlog(level: int, msg: str, *args: object) -> None:
        """Log a message at a numeric level."""
        _log.log(level, msg, *args)

    @staticmethod
    def log_if(level: int, msg: str, condition: object, *args: object) -> None:
        """Log a message if a condition is true."""
        if condition:
            logging.vlog(level, msg, *args)

    @staticmethod
    def log_first_n(level: int, msg: str, n: int, *args: object) -> None:
        """Log a message the first `n` times."""
        count = _counts[msg] = _counts.get(msg, 0) + 1
        logging.log_if(level, msg, count <= n, *args)

    @staticmethod
    def log_every_n(level: int, msg: str, n: int, *args: object) -> None:
        """Log a message at every `n`-th call, beginning with the first."""
        count = _counts[msg] = _counts.get(msg, 0) + 1
        logging.log_if(level, msg, count % n == 1 or n == 1, *args)

    @staticmethod
    def TaskLevelStatusMessage(msg: str) -> None:
        """Log an error."""
        _log.error(msg)

    @staticmethod
    def set_verbosity(v: int) -> None:
        """Set the lowest level that is logged."""
        _log.setLevel(v)

    @staticmethod
    def get_verbosity() -> int:
        """Return the lowest level that is logged."""
        return _log.getEffectiveLevel()


def _call_logging(name: str) -> Callable[..., None]:
    """Return a method of the logger that calls the public function, or the one that a test replaced it with."""
    original = getattr(logging, name)

    def log(*args: Any, stacklevel: int = 1, **kwargs: Any) -> None:
        public = getattr(logging, name)
        # A replacement accepts TensorFlow's arguments only.
        level = {"stacklevel": stacklevel + 1} if public is original else {}
        public(*args, **kwargs, **level)

    return log


for _method in ("debug", "info", "warning", "error"):
    setattr(_log, _method, _call_logging(_method))


__all__ = sorted(
    {name for name in globals() if not name.startswith("_")}
    - {"annotations", "Any", "TYPE_CHECKING", "Callable", "Tensor", "TensorLike"}
)

# Names that need an optional package, by the modules that have them.
_LAZY_NAMES = {
    "import_graph_def": "meshflow.saved_model.graph.reading.imported_graphs",
    "wrap_function": "meshflow.legacy.compat.wrapped_functions",
    **dict.fromkeys(
        ("Event", "HistogramProto", "SessionLog", "Summary", "SummaryMetadata"),
        "meshflow.io.protos",
    ),
    **dict.fromkeys(
        ("AttrValue", "GraphDef", "MetaGraphDef", "NodeDef", "TensorInfo"),
        "meshflow.saved_model.graph.format.messages",
    ),
    **{name: f"meshflow.legacy.compat.{name}" for name in ("app", "flags", "lite", "saved_model")},
}
_load = _explain_names("tf.compat.v1", _LAZY_NAMES)


def __getattr__(name: str) -> Any:
    if name.startswith("__") and not hasattr(_tf, name):
        raise AttributeError(name)
    if name in _LAZY_NAMES:
        return _load(name)
    try:
        return _find_name(name)
    except AttributeError as error:
        if isinstance(error, NotImplementedError):
            raise
        raise AttributeError(
            f"tf.compat.v1.{name} is not supported: only names that exist in TensorFlow 1.15 or 2.15 are."
        ) from error


def __dir__() -> list[str]:
    return sorted({*__all__, *_tf.__all__, *_list_attributes("")})

"""Functions of `tf.__internal__` and `tf.__operators__`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from meshflow.core.autograph.conversion import convert_callable
from meshflow.core.autograph.status import is_enabled
from meshflow.core.config.session_config import ConfigProto
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.legacy.compat.public_package import tf

F = TypeVar("F", bound=Callable[..., Any])


class BoolGauge:
    """Metric of the library's use, which is not recorded."""

    def __init__(self, name: str, description: str, *labels: str) -> None:
        self._value = False

    def get_cell(self, *labels: str) -> BoolGauge:
        """Return the metric itself."""
        return self

    def set(self, value: bool) -> None:
        """Set the value."""
        self._value = value

    def value(self) -> bool:
        """Return the value."""
        return self._value


def _return(value: object, name: str, doc: str) -> Callable[..., Any]:
    """Return a function that ignores its arguments."""

    def function(*args: object, **kwargs: object) -> object:
        return value

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


_IGNORE = "Do nothing: there are no sessions and no registries of Keras."
register_call_context_function, register_clear_session_function = (
    _return(None, f"register_{n}_function", _IGNORE) for n in ("call_context", "clear_session")
)
register_get_session_function, register_load_context_function, register_load_model_function = (
    _return(None, f"register_{n}_function", _IGNORE)
    for n in ("get_session", "load_context", "load_model")
)
register_loss_scale_wrapper = _return(None, "register_loss_scale_wrapper", _IGNORE)
set_using_mixed_precision_policy = _return(None, "set_using_mixed_precision_policy", _IGNORE)
is_mixed_precision_graph_rewrite_enabled = _return(
    False, "is_mixed_precision_graph_rewrite_enabled", "Return False."
)
enabled = _return(True, "enabled", "Return True: the behavior is that of TensorFlow 2.")
get_enclosing_xla_context = _return(None, "get_enclosing_xla_context", "Return None.")
is_tfrt_enabled = _return(False, "is_tfrt_enabled", "Return False.")
strategy_supports_no_merge_call = _return(False, "strategy_supports_no_merge_call", "Return False.")
get_device_name = _return("", "get_device_name", "Return an empty string: no device is forced.")
get_executor = _return(None, "get_executor", "Return None: JAX executes asynchronously.")


@contextlib.contextmanager
def eager_mode() -> Iterator[None]:
    """Run eagerly, also while a function is traced."""
    with tf.init_scope():
        yield


@contextlib.contextmanager
def variable_sync_on_read_context() -> Iterator[None]:
    """Do nothing."""
    yield


def get_config() -> ConfigProto:
    """Return a configuration with default values."""
    return ConfigProto()


def set_soft_device_placement(enabled: bool) -> None:
    """Call `tf.config.set_soft_device_placement`."""
    tf.config.set_soft_device_placement(enabled)


def control_status_ctx() -> bool:
    """Return whether AutoGraph converts functions here."""
    return is_enabled()


def tf_convert(
    f: Callable[..., Any],
    ctx: object,
    convert_by_default: bool = True,
    user_requested: bool = False,
) -> Callable[..., Any]:
    """Return a function converted by AutoGraph, if it is enabled."""
    return convert_callable(f) if ctx else f


def maybe_merge_call(fn: Callable[..., Any], strategy: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function with the strategy and arguments, in the cross-replica context."""
    if tf.distribute.in_cross_replica_context():
        return fn(strategy, *args, **kwargs)
    return tf.distribute.get_replica_context().merge_call(fn, args, kwargs)


def make_decorator(
    target: F,
    decorator_func: Callable[..., Any],
    decorator_name: str | None = None,
    decorator_doc: str = "",
    decorator_argspec: object = None,
) -> Callable[..., Any]:
    """Give a decorator the name and signature of the function that it wraps."""
    functools.update_wrapper(decorator_func, target)
    decorator_func._tf_decorator = True  # type: ignore[attr-defined]
    return decorator_func


def unwrap(maybe_tf_decorator: PyTree) -> tuple[list[Any], Any]:
    """Return the decorators of a function, the outermost first, and the function itself."""
    decorators = []
    while hasattr(maybe_tf_decorator, "__wrapped__"):
        decorators.append(maybe_tf_decorator)
        maybe_tf_decorator = maybe_tf_decorator.__wrapped__
    return decorators, maybe_tf_decorator


def smart_cond(
    pred: TensorLike,
    true_fn: Callable[[], Any],
    false_fn: Callable[[], Any],
    name: str | None = None,
) -> PyTree:
    """Call one of two functions, by `tf.cond` if the predicate is not known."""
    static = tf.get_static_value(pred) if tf.is_tensor(pred) else pred
    if isinstance(pred, Variable) or static is None:
        return tf.cond(pred, true_fn, false_fn)
    return true_fn() if static else false_fn()


def execute_fn_for_device(
    device_branch_fns: Mapping[str, Callable[[], Any]],
    default_fn: Callable[[], Any],
    name: str = "execute_fn",
) -> PyTree:
    """Call the function of the kind of device that runs the program, or the default."""
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    branches = {device.upper(): function for device, function in device_branch_fns.items()}
    return branches.get(kind, default_fn)()


def broadcast_weights(weights: TensorLike, values: TensorLike) -> Tensor:
    """Return weights in the shape of values.

    Raises:
      ValueError: If a size of the weights is neither 1 nor that of the values.
    """
    weights, values = (
        tf.cast(weights, tf.convert_to_tensor(values).dtype),
        tf.convert_to_tensor(values),
    )
    if weights.shape.rank and any(
        n not in (1, m) for n, m in zip(weights.shape, values.shape, strict=False) if n and m
    ):
        raise ValueError(
            f"weights of shape {weights.shape} can not be broadcast to values of shape {values.shape}."
        )
    return tf.broadcast_to(weights, tf.shape(values))


def is_resource_variable(var: object) -> bool:
    """Check whether an object is a variable."""
    return isinstance(var, (Variable, ShardedVariable))


def assign_moving_average(
    variable: Variable,
    value: TensorLike,
    decay: TensorLike,
    zero_debias: bool = True,
    name: str | None = None,
) -> Variable:
    """Move a variable towards a value: `variable * decay + value * (1 - decay)`.

    Raises:
      NotImplementedError: If `zero_debias` is set.
    """
    if zero_debias:
        raise NotImplementedError(
            "assign_moving_average: pass zero_debias=False, or use tf.train.ExponentialMovingAverage."
        )
    step = (variable - tf.cast(value, variable.dtype)) * (1 - tf.cast(decay, variable.dtype))
    return variable.assign_sub(step)


def add(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Compute `x + y`; strings are joined."""
    return tf.convert_to_tensor(x) + y


def equal(self: TensorLike, other: TensorLike) -> TensorLike:
    """Compute `self == other`."""
    return tf.convert_to_tensor(self) == other


def not_equal(self: TensorLike, other: TensorLike) -> TensorLike:
    """Compute `self != other`."""
    return tf.convert_to_tensor(self) != other


def getitem(tensor: Tensor, slice_spec: object, var: object = None) -> Tensor:
    """Compute `tensor[slice_spec]`."""
    return tensor[slice_spec]

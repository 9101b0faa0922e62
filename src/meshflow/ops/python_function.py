"""Calls of Python functions from compiled functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op, is_inexact
from meshflow.core.gradients.tape import GradientTape
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import ValueNeededError, error_of_python
from meshflow.core.tracing.host_callbacks import callbacks_are_ordered, keeping_errors
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Array, PyTree

__all__ = ["numpy_function", "py_function"]

# The dtype or spec of the result, or a list of them.
_ResultTypes = DTypeLike | TensorSpec | Sequence[DTypeLike | TensorSpec] | None


def _specs(Tout: _ResultTypes, name: str) -> list[TensorSpec]:
    specs = []
    for item in Tout if isinstance(Tout, (list, tuple)) else [Tout]:
        spec = item if isinstance(item, TensorSpec) else TensorSpec(None, as_dtype(item))
        if not spec.shape.is_fully_defined():
            spec = _scalar(spec, name)
        specs.append(spec)
    return specs


def _scalar(spec: TensorSpec, name: str) -> TensorSpec:
    """Return a scalar spec for a result without a declared shape, which a program needs.

    Raises:
      ValueNeededError: If the enclosing function can run op by op instead.
    """
    if context.falls_back:
        raise ValueError(
            f"{name}: the shapes of its results are not known before it runs. Declare them by Tout."
        )
    if context.replicas is None and not context.exporting:
        raise ValueNeededError(
            f"{name} declares {spec.dtype.name} of any shape. Where the shape is always the same, "
            f"Tout=tf.TensorSpec(shape, tf.{spec.dtype.name}) keeps the function compiled."
        )
    if spec.shape.rank:
        raise ValueError(f"{name}: XLA needs the full shape of each result here, got {spec}.")
    return TensorSpec([], spec.dtype)


def _declared(name: str, results: PyTree, specs: Sequence[TensorSpec]) -> list[np.ndarray]:
    """Convert the results of a Python function to arrays, which must have the declared specs."""
    if not specs:
        return []
    flat = list(results) if isinstance(results, (list, tuple)) else [results]
    if len(flat) != len(specs):
        raise ValueError(
            f"{name}: the Python function returned {len(flat)} results, Tout declares {len(specs)}."
        )
    arrays = []
    for result, spec in zip(flat, specs, strict=True):
        array = np.asarray(convert_to_tensor(result, dtype_hint=spec.dtype).array)
        if array.shape != tuple(spec.shape.as_list()) or array.dtype != spec.dtype.dtype:
            raise ValueError(
                f"{name}: the Python function returned {array.dtype}{list(array.shape)} where "
                f"{spec.dtype.name}{spec.shape.as_list()} was declared. In a compiled function declare "
                "shapes too: Tout=tf.TensorSpec(shape, dtype); a dtype alone means a scalar in a replica."
            )
        arrays.append(array)
    return arrays


def _eagerly(name: str, results: PyTree, Tout: _ResultTypes) -> list[Tensor] | Tensor:
    if Tout is None or (isinstance(Tout, (list, tuple)) and not Tout):
        return []
    items = list(Tout) if isinstance(Tout, (list, tuple)) else [Tout]
    dtypes = [i.dtype if isinstance(i, TensorSpec) else as_dtype(i) for i in items]
    has_list = isinstance(Tout, (list, tuple))
    is_list = isinstance(results, (list, tuple)) and (has_list or len(results) == 1)
    flat = list(results) if is_list else [results]
    if len(flat) != len(dtypes):
        raise ValueError(
            f"{name}: the Python function returned {len(flat)} results, Tout declares {len(dtypes)}."
        )
    tensors = [convert_to_tensor(r, dtype_hint=d) for r, d in zip(flat, dtypes, strict=True)]
    for tensor, dtype in zip(tensors, dtypes, strict=True):
        if tensor.dtype is not dtype:
            raise ValueError(
                f"{name}: the Python function returned {tensor.dtype.name}, expected {dtype.name}."
            )
    return tensors if has_list else tensors[0]


def _raising_as_ops(func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a Python function so that it raises the errors of TensorFlow's ops."""

    def call(*args: Any) -> Any:
        try:
            return func(*args)
        except Exception as error:
            raise error_of_python(error) from error

    return call


def _traced(
    name: str, call: Callable[..., Any], inp: Sequence[TensorLike], Tout: _ResultTypes
) -> list[Tensor] | Tensor:
    op = Op(name, lambda operands, _: call(*operands[0]), heavy=True, is_foldable=False)
    outputs = list(apply(op, ([convert_to_tensor(i) for i in inp],)))
    return outputs if isinstance(Tout, (list, tuple)) else outputs[0]


def _arrays(specs: Sequence[TensorSpec]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(tuple(s.shape.as_list()), s.dtype.dtype) for s in specs]


def _decorating(
    function: Callable[..., Any], **settings: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Create the decorator form of `py_function` or `numpy_function`."""

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def public(*args: Any, **kwargs: Any) -> Any:
            return function(functools.partial(func, **kwargs), args, **settings)

        return public

    return decorate


def py_function(
    func: Callable[..., Any] | None = None,
    inp: Sequence[TensorLike] | None = None,
    Tout: _ResultTypes = None,
    name: str | None = None,
) -> Any:
    """Call a Python function of tensors, also from a compiled function.

    Eagerly this is a plain call. A `tf.function` is compiled if the shapes of the results are
    declared. Otherwise (a dtype implies any shape) it runs op by op, with a warning. The gradient
    of a call in a compiled function is of first order; it calls the function again under a tape.

    Args:
      func: Function of tensors that returns a tensor or list of tensors; None to use this as a
        decorator.
      inp: The arguments.
      Tout: Dtype or `TensorSpec` of the result, or a list of them.
      name: Ignored.

    Returns:
      A tensor, or a list if `Tout` is a list.

    Raises:
      ValueError: If a result does not have the declared shape or dtype.
      InvalidArgumentError: If the function raises a ValueError or TypeError; for most other errors,
        an UnknownError. Both are also instances of the class that the function raised.

    Example:
      >>> import meshflow as tf
      >>> f = tf.function(lambda x: tf.py_function(lambda v: v * 2, [x], tf.TensorSpec([2])))
      >>> f(tf.constant([1.0, 2.0])).numpy()
      array([2., 4.], dtype=float32)
    """
    if func is None:
        return _decorating(py_function, Tout=Tout)
    inp = () if inp is None else inp
    func = _raising_as_ops(func)
    if context.trace is None:
        return _eagerly("py_function", func(*[convert_to_tensor(i) for i in inp]), Tout)
    specs = _specs(Tout, "py_function")

    def forward(*arrays: Array) -> list[np.ndarray]:
        results = func(*[Tensor(np.asarray(a)) for a in arrays])
        return _declared("py_function", results, specs)

    def backward(arrays: Sequence[Array], cotangents: Sequence[Array]) -> list[np.ndarray]:
        tensors = [Tensor(np.asarray(a)) for a in arrays]
        inexact = [t for t in tensors if is_inexact(t.array)]
        with GradientTape() as tape:
            tape.watch(inexact)
            results = func(*tensors)
        outputs = [convert_to_tensor(r) for r in nest.flatten(results)]
        upstream = [Tensor(np.asarray(c)) for c in cotangents]
        pairs = [(o, g) for o, g in zip(outputs, upstream, strict=True) if is_inexact(o.array)]
        gradients = tape.gradient(
            [o for o, _ in pairs],
            inexact,
            output_gradients=[g for _, g in pairs],
            unconnected_gradients="zero",
        )
        return [np.asarray(convert_to_tensor(g).array) for g in gradients]

    @jax.custom_vjp
    def call(*arrays: jax.Array) -> list[jax.Array]:
        return io_callback(
            keeping_errors(forward), _arrays(specs), *arrays, ordered=callbacks_are_ordered()
        )

    def call_forward(*arrays: jax.Array) -> tuple[list[jax.Array], tuple[jax.Array, ...]]:
        return call(*arrays), arrays

    def call_backward(
        arrays: Sequence[jax.Array], cotangents: Sequence[jax.Array]
    ) -> tuple[Array, ...]:
        inexact = [a for a in arrays if is_inexact(a)]
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in inexact]
        filled = [
            jax.numpy.zeros(s.shape, s.dtype) if c.dtype == jax.dtypes.float0 else c
            for c, s in zip(cotangents, _arrays(specs), strict=True)
        ]
        gradients = iter(jax.pure_callback(keeping_errors(backward), shapes, arrays, filled))
        return tuple(
            next(gradients) if is_inexact(a) else np.zeros(a.shape, jax.dtypes.float0)
            for a in arrays
        )

    call.defvjp(call_forward, call_backward)
    return _traced("py_function", call, inp, Tout)


def numpy_function(
    func: Callable[..., Any] | None = None,
    inp: Sequence[TensorLike] | None = None,
    Tout: _ResultTypes = None,
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """Call a Python function of NumPy arrays, without gradients, but otherwise like `py_function`.

    With `stateful=False` the compiler may remove or repeat calls. The other arguments are those of
    `py_function`.

    Returns:
      A tensor, or a list if `Tout` is a list.

    Raises:
      ValueError: If a result does not have the declared shape or dtype.

    Example:
      >>> import meshflow as tf
      >>> import numpy as np
      >>> @tf.function
      ... def median(x):
      ...     return tf.numpy_function(np.median, [x], tf.TensorSpec([], tf.float32))
      >>> median(tf.constant([3.0, 1.0, 2.0])).numpy().item()
      2.0
    """
    if func is None:
        return _decorating(numpy_function, Tout=Tout, stateful=stateful)
    inp = () if inp is None else inp
    func = _raising_as_ops(func)
    if context.trace is None:
        return _eagerly("numpy_function", func(*[convert_to_tensor(i).numpy() for i in inp]), Tout)
    specs = _specs(Tout, "numpy_function")

    def run(*arrays: Array) -> list[np.ndarray]:
        return _declared("numpy_function", func(*[np.asarray(a) for a in arrays]), specs)

    # Python's side effects must occur in program order.
    ordered = callbacks_are_ordered()
    callback = functools.partial(io_callback, ordered=ordered) if stateful else jax.pure_callback

    def call(*arrays: jax.Array) -> list[jax.Array]:
        operands = [jax.lax.stop_gradient(a) for a in arrays]
        return callback(keeping_errors(run), _arrays(specs), *operands)

    return _traced("numpy_function", call, inp, Tout)

"""Calling Python from a compiled function."""

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
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor

__all__ = ["numpy_function", "py_function"]


def _specs(Tout: Any, name: str) -> list[TensorSpec]:
    specs = []
    for item in Tout if isinstance(Tout, (list, tuple)) else [Tout]:
        spec = item if isinstance(item, TensorSpec) else TensorSpec(None, as_dtype(item))
        if not spec.shape.is_fully_defined():
            spec = _scalar(spec, name)
        specs.append(spec)
    return specs


def _scalar(spec: TensorSpec, name: str) -> TensorSpec:
    """The spec of a result of any shape, which only running the function tells; a program needs it before.

    Raises:
      ValueNeededError: where the function around can run op by op instead.
    """
    if context.falls_back:
        raise ValueError(f"{name}: the shapes of its results are known when it runs.")
    if context.replicas is None and not context.exporting:
        raise ValueNeededError(
            f"{name} declares {spec.dtype.name} of any shape. Where the shape is always the same, "
            f"Tout=tf.TensorSpec(shape, tf.{spec.dtype.name}) keeps the function compiled."
        )
    if spec.shape.rank:
        raise ValueError(f"{name}: XLA needs the full shape of each result here, got {spec}.")
    return TensorSpec([], spec.dtype)


def _declared(name: str, results: Any, specs: Sequence[TensorSpec]) -> list[np.ndarray]:
    """The results of a Python function, which must be as declared."""
    if not specs:
        return []
    flat = list(results) if isinstance(results, (list, tuple)) else [results]
    if len(flat) != len(specs):
        raise ValueError(
            f"{name}: the Python function returned {len(flat)} results, Tout declares {len(specs)}."
        )
    arrays = []
    for result, spec in zip(flat, specs, strict=True):
        array = np.asarray(convert_to_tensor(result, dtype_hint=spec.dtype)._value)
        if array.shape != tuple(spec.shape.as_list()) or array.dtype != spec.dtype.dtype:
            raise ValueError(
                f"{name}: the Python function returned {array.dtype}{list(array.shape)} where "
                f"{spec.dtype.name}{spec.shape.as_list()} was declared. In a compiled function declare "
                "shapes too: Tout=tf.TensorSpec(shape, dtype); a dtype alone means a scalar in a replica."
            )
        arrays.append(array)
    return arrays


def _eagerly(name: str, results: Any, Tout: Any) -> Any:
    if Tout is None or (isinstance(Tout, (list, tuple)) and not Tout):
        return []
    many = isinstance(Tout, (list, tuple))
    kinds = [
        i.dtype if isinstance(i, TensorSpec) else as_dtype(i) for i in (Tout if many else [Tout])
    ]
    listed = isinstance(results, (list, tuple)) and (many or len(results) == 1)
    flat = list(results) if listed else [results]
    if len(flat) != len(kinds):
        raise ValueError(
            f"{name}: the Python function returned {len(flat)} results, Tout declares {len(kinds)}."
        )
    tensors = [convert_to_tensor(r, dtype_hint=k) for r, k in zip(flat, kinds, strict=True)]
    for tensor, kind in zip(tensors, kinds, strict=True):
        if tensor.dtype is not kind:
            raise ValueError(
                f"{name}: the Python function returned {tensor.dtype.name}, expected {kind.name}."
            )
    return tensors if many else tensors[0]


def _raising_as_ops(func: Callable[..., Any]) -> Callable[..., Any]:
    """A Python function whose errors are those of TensorFlow's ops."""

    def called(*args: Any) -> Any:
        try:
            return func(*args)
        except Exception as error:
            raise error_of_python(error) from error

    return called


def _traced(name: str, call: Callable[..., Any], inp: Any, Tout: Any) -> Any:
    op = Op(name, lambda operands, _: call(*operands[0]), heavy=True, is_foldable=False)
    outputs = list(apply(op, ([convert_to_tensor(i) for i in inp],)))
    return outputs if isinstance(Tout, (list, tuple)) else outputs[0]


def _arrays(specs: Sequence[TensorSpec]) -> list[Any]:
    return [jax.ShapeDtypeStruct(tuple(s.shape.as_list()), s.dtype.dtype) for s in specs]


def _decorating(function: Callable[..., Any], **settings: Any) -> Callable[[Any], Any]:
    """What `py_function` and `numpy_function` are without a function: decorators of one."""

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def called(*args: Any, **kwargs: Any) -> Any:
            return function(functools.partial(func, **kwargs), args, **settings)

        return called

    return decorate


def py_function(
    func: Callable[..., Any] | None = None,
    inp: Any = None,
    Tout: Any = None,
    name: str | None = None,
) -> Any:
    """Calls a Python function of tensors, also from a compiled function.

    Eagerly the call is plain Python. A `tf.function` is compiled where the shapes of results are declared; where
    they are not (a dtype alone is any shape) it runs op by op, with a warning. In a compiled function the gradient
    (of first order) calls the function again, under a tape.

    Args:
      func: takes tensors, returns a tensor or list of tensors; None to use it as a decorator.
      inp: the arguments.
      Tout: dtype or `TensorSpec` of the result, or a list of them.
      name: ignored.

    Returns:
      A tensor, or a list when Tout is one.

    Raises:
      ValueError: when a result has another shape or dtype than declared.
      InvalidArgumentError: for a ValueError or TypeError of the function; an UnknownError for most
        others. They are also of the class that the function raised.

    Example:
      >>> import meshflow as tf
      >>> f = tf.function(lambda x: tf.py_function(lambda v: v * 2, [x], tf.TensorSpec([2])))
      >>> f(tf.constant([1.0, 2.0])).numpy()
      array([2., 4.], dtype=float32)
    """
    if func is None:
        return _decorating(py_function, Tout=Tout)
    inp = () if inp is None else inp
    if context.trace is None:
        called = _raising_as_ops(func)
        return _eagerly("py_function", called(*[convert_to_tensor(i) for i in inp]), Tout)
    specs = _specs(Tout, "py_function")
    func = _raising_as_ops(func)

    def forward(*arrays: Any) -> list[np.ndarray]:
        results = func(*[Tensor(np.asarray(a)) for a in arrays])
        return _declared("py_function", results, specs)

    def backward(arrays: Any, cotangents: Any) -> list[np.ndarray]:
        tensors = [Tensor(np.asarray(a)) for a in arrays]
        inexact = [t for t in tensors if is_inexact(t._value)]
        with GradientTape() as tape:
            tape.watch(inexact)
            results = func(*tensors)
        outputs = [convert_to_tensor(r) for r in nest.flatten(results)]
        given = [Tensor(np.asarray(c)) for c in cotangents]
        kept = [(o, g) for o, g in zip(outputs, given, strict=True) if is_inexact(o._value)]
        found = tape.gradient(
            [o for o, _ in kept],
            inexact,
            output_gradients=[g for _, g in kept],
            unconnected_gradients="zero",
        )
        return [np.asarray(convert_to_tensor(g)._value) for g in found]

    @jax.custom_vjp
    def call(*arrays: Any) -> Any:
        return io_callback(
            keeping_errors(forward), _arrays(specs), *arrays, ordered=callbacks_are_ordered()
        )

    def call_forward(*arrays: Any) -> Any:
        return call(*arrays), arrays

    def call_backward(arrays: Any, cotangents: Any) -> Any:
        inexact = [a for a in arrays if is_inexact(a)]
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in inexact]
        plain = [
            jax.numpy.zeros(s.shape, s.dtype) if c.dtype == jax.dtypes.float0 else c
            for c, s in zip(cotangents, _arrays(specs), strict=True)
        ]
        found = iter(jax.pure_callback(keeping_errors(backward), shapes, arrays, plain))
        return tuple(
            next(found) if is_inexact(a) else np.zeros(a.shape, jax.dtypes.float0) for a in arrays
        )

    call.defvjp(call_forward, call_backward)
    return _traced("py_function", call, inp, Tout)


def numpy_function(
    func: Callable[..., Any] | None = None,
    inp: Any = None,
    Tout: Any = None,
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """Calls a Python function of NumPy arrays; otherwise like `py_function`, without gradients.

    Args:
      func: takes NumPy arrays, returns an array or list of arrays; None to use it as a decorator.
      inp: the arguments.
      Tout: dtype or `TensorSpec` of the result, or a list of them.
      stateful: False lets the compiler drop or repeat calls.
      name: ignored.

    Returns:
      A tensor, or a list when Tout is one.

    Raises:
      ValueError: when a result has another shape or dtype than declared.

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
    if context.trace is None:
        arrays = [convert_to_tensor(i).numpy() for i in inp]
        return _eagerly("numpy_function", _raising_as_ops(func)(*arrays), Tout)
    specs = _specs(Tout, "numpy_function")
    func = _raising_as_ops(func)

    def host(*arrays: Any) -> list[np.ndarray]:
        return _declared("numpy_function", func(*[np.asarray(a) for a in arrays]), specs)

    # Python's side effects happen in the order in which they are written.
    ordered = callbacks_are_ordered()
    callback = functools.partial(io_callback, ordered=ordered) if stateful else jax.pure_callback

    def call(*arrays: Any) -> Any:
        fixed = [jax.lax.stop_gradient(a) for a in arrays]
        return callback(keeping_errors(host), _arrays(specs), *fixed)

    return _traced("numpy_function", call, inp, Tout)

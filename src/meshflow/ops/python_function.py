"""Calls of Python functions from compiled functions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op, is_inexact
from meshflow.core.dispatch.symbolic_calls import record_in_graph
from meshflow.core.gradients.tape import GradientTape
from meshflow.core.runtime.context import SizeSource, context
from meshflow.core.runtime.errors import InvalidValueError, ValueNeededError, convert_python_error
from meshflow.core.tracing.host_callbacks import are_callbacks_ordered, store_errors
from meshflow.core.values import nest
from meshflow.core.values.composite import CompositeSpec, CompositeTensor, is_composite_spec
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Array, PyTree

# The dtype or spec of the result, or a list of them.
_ResultTypes = DTypeLike | TypeSpec | Sequence[DTypeLike | TypeSpec] | None


def _make_specs(Tout: _ResultTypes, name: str) -> list[TensorSpec]:
    specs = []
    for item in Tout if isinstance(Tout, (list, tuple)) else [Tout]:
        spec = _to_spec(item)
        if not spec.shape.is_fully_defined():
            spec = _use_scalar_shape(spec, name)
        specs.append(spec)
    return specs


def _to_spec(item: object) -> TensorSpec:
    return item if isinstance(item, TensorSpec) else TensorSpec(None, as_dtype(item))


def _make_placeholders(Tout: _ResultTypes, probe: SizeSource) -> list[Tensor] | Tensor:
    """Return placeholders for results while only shapes are determined."""
    items = Tout if isinstance(Tout, (list, tuple)) else [Tout]
    results = [probe.make_result(_to_spec(item)) for item in items if item is not None]
    return results if isinstance(Tout, (list, tuple)) or not results else results[0]


def _use_scalar_shape(spec: TensorSpec, name: str) -> TensorSpec:
    """Return a scalar spec for a result without a declared shape, which a program needs.

    Raises:
      ValueNeededError: If the enclosing function can run op by op instead.
    """
    if context.can_run_eagerly:
        raise ValueError(
            f"{name}: the shapes of its results are not known before it runs. Declare them by Tout."
        )
    if context.replica_program is None and not context.exporting:
        raise ValueNeededError(
            f"{name} declares {spec.dtype.name} of any shape. Where the shape is always the same, "
            f"Tout=tf.TensorSpec(shape, tf.{spec.dtype.name}) keeps the function compiled."
        )
    if spec.shape.rank:
        raise ValueError(f"{name}: XLA needs the full shape of each result here, got {spec}.")
    return TensorSpec([], spec.dtype)


def _check_count(name: str, results: Sequence[Any], specs: Sequence[Any]) -> None:
    if len(results) != len(specs):
        raise InvalidValueError(
            f"{name}: the Python function returned {len(results)} results, Tout declares {len(specs)}."
        )


def _convert_result(name: str, index: int, result: Any, dtype: DType, is_exact: bool) -> Tensor:
    """Convert a result of a Python function to a tensor of the declared dtype.

    Args:
      name: Name of the op.
      index: Index of the result, for errors.
      result: The result.
      dtype: The declared dtype.
      is_exact: Whether NumPy's dtype of the result must be the declared one, as `numpy_function`
        requires in graphs. Otherwise NumPy arrays and Python numbers are converted.

    Raises:
      InvalidArgumentError: If the dtypes differ.
    """
    hint = None if is_exact else dtype
    tensor = convert_to_tensor(np.asarray(result) if is_exact else result, dtype_hint=hint)
    if tensor.dtype is not dtype:
        raise InvalidValueError(
            f"{name}: result {index} of the Python function is {tensor.dtype.name}, but Tout declares "
            f"{dtype.name}. Convert the result, for example with astype, or change Tout."
        )
    return tensor


def _check_results(
    name: str, results: PyTree, specs: Sequence[TensorSpec], is_exact: bool = False
) -> list[np.ndarray]:
    """Convert the results of a Python function to arrays, which must have the declared specs."""
    if not specs:
        return []
    flat = list(results) if isinstance(results, (list, tuple)) else [results]
    _check_count(name, flat, specs)
    arrays = []
    for i, (result, spec) in enumerate(zip(flat, specs, strict=True)):
        array = np.asarray(_convert_result(name, i, result, spec.dtype, is_exact).array)
        if array.shape != tuple(spec.shape.as_list()):
            raise ValueError(
                f"{name}: the Python function returned {array.dtype}{list(array.shape)} where "
                f"{spec.dtype.name}{spec.shape.as_list()} was declared. In a compiled function declare "
                "shapes too: Tout=tf.TensorSpec(shape, dtype); a dtype alone means a scalar in a replica."
            )
        arrays.append(array)
    return arrays


def _to_array(tensor: Tensor) -> np.ndarray | bytes:
    """Return the array of a tensor, also of a single number; a single string is an object of bytes."""
    value = tensor.numpy()
    return value if isinstance(value, bytes) else np.asarray(value)


def _convert_eager_results(name: str, results: PyTree, Tout: _ResultTypes) -> list[Tensor] | Tensor:
    has_list = isinstance(Tout, (list, tuple))
    items = list(Tout) if has_list else [Tout]  # type: ignore[arg-type]
    if Tout is None or not items:
        return []
    dtypes = [_to_spec(item).dtype for item in items]
    # Here plain Python runs instead of a function that TensorFlow would compile.
    in_graph = context.emulates_graph or context.computes_on_host
    is_exact = in_graph and name == "numpy_function"
    is_list = isinstance(results, (list, tuple)) and (has_list or is_exact or len(results) == 1)
    flat = list(results) if is_list else [results]
    _check_count(name, flat, dtypes)
    tensors = [
        _convert_result(name, i, result, dtype, is_exact)
        for i, (result, dtype) in enumerate(zip(flat, dtypes, strict=True))
    ]
    if context.size_probe is not None:
        context.size_probe.specs.extend(TensorSpec(t.shape, t.dtype) for t in tensors)
    return tensors if has_list else tensors[0]


def _convert_errors(func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a Python function so that it raises the errors of TensorFlow's ops."""

    def call(*args: Any) -> Any:
        try:
            return func(*args)
        except Exception as error:
            raise convert_python_error(error) from error

    return call


def _apply_call(
    name: str, call: Callable[..., Any], inp: Sequence[TensorLike], Tout: _ResultTypes
) -> list[Tensor] | Tensor:
    op = Op(name, lambda operands, _: call(*operands[0]), heavy=True, is_foldable=False)
    outputs = list(apply(op, ([convert_to_tensor(i) for i in inp],)))
    return outputs if isinstance(Tout, (list, tuple)) else outputs[0]


def _make_shape_structs(specs: Sequence[TensorSpec]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(tuple(s.shape.as_list()), s.dtype.dtype) for s in specs]


def _make_decorator(
    function: Callable[..., Any], **settings: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Create the decorator form of `py_function` or `numpy_function`."""

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def public(*args: Any, **kwargs: Any) -> Any:
            return function(functools.partial(func, **kwargs), args, **settings)

        return public

    return decorate


def _list_components(spec: object, value: PyTree) -> list[Any]:
    """List the tensors in a result of a Python function that its spec describes.

    Raises:
      InvalidArgumentError: If the result does not have the spec.
    """
    if is_composite_spec(spec):
        if not spec.is_compatible_with(value):
            raise InvalidValueError(
                f"py_function: the Python function returned {value!r}, but Tout declares {spec!r}."
            )
        specs = nest.flatten(spec._component_specs)
        components = nest.flatten_up_to(spec._component_specs, spec._to_components(value))
        return [t for s, v in zip(specs, components, strict=True) for t in _list_components(s, v)]
    if isinstance(value, CompositeTensor):
        raise InvalidValueError(
            f"py_function: the Python function returned {value!r}, but Tout declares {spec!r}. "
            "Declare its TypeSpec, see tf.type_spec_from_value."
        )
    return [value]


def _call_with_components(
    func: Callable[..., Any], inp: Sequence[PyTree], Tout: _ResultTypes
) -> PyTree:
    """Call `py_function` with the parts of composite tensors, and join the parts of its results."""
    has_list = isinstance(Tout, (list, tuple))
    specs: list[Any] = list(Tout) if has_list else [Tout]  # type: ignore[arg-type]
    specs = [] if Tout is None else specs
    splits = [v.split_parts() if isinstance(v, CompositeTensor) else ([v], None) for v in inp]
    kinds = [(type(v), static, len(parts)) for v, (parts, static) in zip(inp, splits, strict=True)]

    def call(*tensors: Tensor) -> list[Any]:
        supply = iter(tensors)
        values = [
            kind.build_from_parts(list(itertools.islice(supply, count)), static)
            if issubclass(kind, CompositeTensor)
            else next(supply)
            for kind, static, count in kinds
        ]
        results = func(*values)
        if not specs:
            return []
        flat = list(results) if isinstance(results, (list, tuple)) else [results]
        _check_count("py_function", flat, specs)
        pairs = zip(specs, flat, strict=True)
        return [tensor for spec, result in pairs for tensor in _list_components(spec, result)]

    parts = [part for parts, _ in splits for part in parts]
    results = nest.split_composites(specs)
    tensors = py_function(call, parts, nest.flatten(results))
    values = nest.join_composites(specs, nest.pack_sequence_as(results, tensors))
    return values if has_list or not values else values[0]


@record_in_graph
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
      inp: The arguments: tensors and composite tensors.
      Tout: Dtype or `TypeSpec` of the result, or a list of them.
      name: Ignored.

    Returns:
      A tensor or composite tensor, or a list if `Tout` is a list.

    Raises:
      ValueError: If a result does not have the declared shape.
      InvalidArgumentError: If a result does not have the declared dtype or spec.
      InvalidArgumentError: If the function raises a ValueError or TypeError; for most other errors,
        an UnknownError. Both are also instances of the class that the function raised.

    Example:
      >>> f = tf.function(lambda x: tf.py_function(lambda v: v * 2, [x], tf.TensorSpec([2])))
      >>> f(tf.constant([1.0, 2.0])).numpy()
      array([2., 4.], dtype=float32)
    """
    if func is None:
        return _make_decorator(py_function, Tout=Tout)
    inp = () if inp is None else inp
    items = Tout if isinstance(Tout, (list, tuple)) else [Tout]
    if any(isinstance(v, (CompositeTensor, CompositeSpec)) for v in (*inp, *items)):
        return _call_with_components(func, inp, Tout)
    func = _convert_errors(func)
    if context.trace is None:
        return _convert_eager_results(
            "py_function", func(*[convert_to_tensor(i) for i in inp]), Tout
        )
    if context.size_probe is not None and context.size_probe.size:
        return _make_placeholders(Tout, context.size_probe)
    specs = _make_specs(Tout, "py_function")

    def forward(*arrays: Array) -> list[np.ndarray]:
        results = func(*[Tensor(np.asarray(a)) for a in arrays])
        return _check_results("py_function", results, specs)

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
            store_errors(forward),
            _make_shape_structs(specs),
            *arrays,
            ordered=are_callbacks_ordered(),
        )

    def call_forward(*arrays: jax.Array) -> tuple[list[jax.Array], tuple[jax.Array, ...]]:
        return call(*arrays), arrays

    def call_backward(
        arrays: Sequence[jax.Array], cotangents: Sequence[jax.Array]
    ) -> tuple[jax.Array | None, ...]:
        inexact = [a for a in arrays if is_inexact(a)]
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in inexact]
        filled = [
            jax.numpy.zeros(s.shape, s.dtype) if c.dtype == jax.dtypes.float0 else c
            for c, s in zip(cotangents, _make_shape_structs(specs), strict=True)
        ]
        gradients = iter(jax.pure_callback(store_errors(backward), shapes, arrays, filled))
        return tuple(next(gradients) if is_inexact(a) else None for a in arrays)

    call.defvjp(call_forward, call_backward)
    return _apply_call("py_function", call, inp, Tout)


@record_in_graph
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
      ValueError: If a result does not have the declared shape.
      InvalidArgumentError: If a result does not have the declared dtype.

    Example:
      >>> import numpy as np
      >>> @tf.function
      ... def median(x):
      ...     return tf.numpy_function(np.median, [x], tf.TensorSpec([], tf.float32))
      >>> median(tf.constant([3.0, 1.0, 2.0])).numpy().item()
      2.0
    """
    if func is None:
        return _make_decorator(numpy_function, Tout=Tout, stateful=stateful)
    inp = () if inp is None else inp
    func = _convert_errors(func)
    if context.trace is None:
        return _convert_eager_results(
            "numpy_function", func(*[_to_array(convert_to_tensor(i)) for i in inp]), Tout
        )
    if context.size_probe is not None and context.size_probe.size:
        return _make_placeholders(Tout, context.size_probe)
    specs = _make_specs(Tout, "numpy_function")

    def run(*arrays: Array) -> list[np.ndarray]:
        results = func(*[np.asarray(a) for a in arrays])
        return _check_results("numpy_function", results, specs, is_exact=True)

    # Python's side effects must occur in program order.
    ordered = are_callbacks_ordered()
    callback = functools.partial(io_callback, ordered=ordered) if stateful else jax.pure_callback

    def call(*arrays: jax.Array) -> list[jax.Array]:
        operands = [jax.lax.stop_gradient(a) for a in arrays]
        return callback(store_errors(run), _make_shape_structs(specs), *operands)

    return _apply_call("numpy_function", call, inp, Tout)

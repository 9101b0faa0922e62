"""Functions that create, inspect, read and assign variables and tensors."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from meshflow.core.dispatch.symbolic_calls import run_outside_of_graphs
from meshflow.core.runtime.name_scopes import name_scope
from meshflow.core.values import convert, nest
from meshflow.core.values.dtypes import DTypeLike, as_dtype
from meshflow.core.values.shapes import hide_symbols
from meshflow.core.values.tensor import Tensor, TensorLike, is_tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.keras.engine.graph.input_layer import Input
from meshflow.keras.engine.models.model import Model
from meshflow.keras.settings import floatx
from meshflow.legacy.backend import randomness
from meshflow.legacy.graph.operations import SymbolicTensor
from meshflow.ops import array, printing
from meshflow.ops.array import shape
from meshflow.sparse import SparseTensor
from meshflow.sparse import to_dense as dense_of

__all__ = [
    "batch_get_value",
    "batch_set_value",
    "constant",
    "count_params",
    "dtype",
    "eval",
    "eye",
    "function",
    "get_value",
    "gradients",
    "int_shape",
    "is_keras_tensor",
    "is_sparse",
    "moving_average_update",
    "name_scope",
    "ndim",
    "ones",
    "ones_like",
    "placeholder",
    "print_tensor",
    "random_normal_variable",
    "random_uniform_variable",
    "set_value",
    "shape",
    "stop_gradient",
    "to_dense",
    "update",
    "update_add",
    "update_sub",
    "variable",
    "zeros",
    "zeros_like",
]


def variable(
    value: TensorLike,
    dtype: DTypeLike | None = None,
    name: str | None = None,
    constraint: Callable[[Tensor], Tensor] | None = None,
) -> Variable:
    """Create a variable.

    Args:
      value: Initial value.
      dtype: Dtype; default `floatx()`.
      name: Name of the variable.
      constraint: Function that is applied to the variable after each update.

    Example:
      >>> v = tf.keras.backend.variable([[1, 2], [3, 4]])
      >>> tf.keras.backend.dtype(v), tf.keras.backend.int_shape(v)
      ('float32', (2, 2))
    """
    dtype = as_dtype(dtype or floatx())
    initial = value if is_tensor(value) else np.asarray(value).astype(dtype.as_numpy_dtype)
    return Variable(initial, dtype=dtype, name=name, constraint=constraint)


def constant(
    value: TensorLike,
    dtype: DTypeLike | None = None,
    shape: Sequence[int] | None = None,
    name: str | None = None,
) -> Tensor:
    """Create a constant tensor, by default of dtype `floatx()`.

    Example:
      >>> tf.keras.backend.constant(5, shape=(2, 2)).numpy().tolist()
      [[5.0, 5.0], [5.0, 5.0]]
    """
    return convert.constant(value, dtype=dtype or floatx(), shape=shape, name=name)


def zeros(
    shape: int | Sequence[int], dtype: DTypeLike | None = None, name: str | None = None
) -> Variable:
    """Create a variable of zeros.

    Example:
      >>> tf.keras.backend.zeros((2, 2), dtype="int32").numpy().tolist()
      [[0, 0], [0, 0]]
    """
    return variable(np.zeros(_as_sizes(shape)), dtype, name)


def ones(
    shape: int | Sequence[int], dtype: DTypeLike | None = None, name: str | None = None
) -> Variable:
    """Create a variable of ones.

    Example:
      >>> tf.keras.backend.ones((2, 2)).numpy().tolist()
      [[1.0, 1.0], [1.0, 1.0]]
    """
    return variable(np.ones(_as_sizes(shape)), dtype, name)


def _as_sizes(shape: Any) -> tuple[Any, ...]:
    """Return the sizes of a shape, which may be an integer: the size of a vector."""
    return (shape,) if isinstance(shape, numbers.Integral) else tuple(shape)


def eye(size: int, dtype: DTypeLike | None = None, name: str | None = None) -> Variable:
    """Create a variable that holds an identity matrix.

    Example:
      >>> tf.keras.backend.eye(2).numpy().tolist()
      [[1.0, 0.0], [0.0, 1.0]]
    """
    return variable(np.eye(size), dtype, name)


def zeros_like(x: TensorLike, dtype: DTypeLike | None = None, name: str | None = None) -> Tensor:
    """Return zeros in the shape of `x`.

    Example:
      >>> tf.keras.backend.zeros_like(tf.constant([5, 6])).numpy().tolist()
      [0, 0]
    """
    return array.zeros_like(x, dtype=dtype)


def ones_like(x: TensorLike, dtype: DTypeLike | None = None, name: str | None = None) -> Tensor:
    """Return ones in the shape of `x`.

    Example:
      >>> tf.keras.backend.ones_like(tf.constant([5, 6])).numpy().tolist()
      [1, 1]
    """
    return array.ones_like(x, dtype=dtype)


def random_uniform_variable(
    shape: Sequence[int],
    low: float,
    high: float,
    dtype: DTypeLike | None = None,
    name: str | None = None,
    seed: int | None = None,
) -> Variable:
    """Create a variable with initial values uniform in [`low`, `high`).

    Example:
      >>> x = tf.keras.backend.random_uniform_variable((100,), low=2.0, high=3.0)
      >>> bool(tf.reduce_all((x >= 2.0) & (x <= 3.0)))
      True
    """
    return variable(randomness.random_uniform(shape, low, high, dtype, seed), dtype, name)


def random_normal_variable(
    shape: Sequence[int],
    mean: float,
    scale: float,
    dtype: DTypeLike | None = None,
    name: str | None = None,
    seed: int | None = None,
) -> Variable:
    """Create a variable with normally distributed initial values.

    Example:
      >>> tf.keras.backend.random_normal_variable((2, 3), mean=5.0, scale=0.0).numpy().tolist()
      [[5.0, 5.0, 5.0], [5.0, 5.0, 5.0]]
    """
    return variable(randomness.random_normal(shape, mean, scale, dtype, seed), dtype, name)


def placeholder(
    shape: int | Sequence[int | None] | None = None,
    ndim: int | None = None,
    dtype: DTypeLike | None = None,
    sparse: bool = False,
    name: str | None = None,
    ragged: bool = False,
) -> Tensor:
    """Create a symbolic input.

    Args:
      shape: Shape with the batch dimension; None for sizes that vary.
      ndim: Number of dimensions, instead of a shape.
      dtype: Dtype; default `floatx()`.
      sparse: Not supported.
      name: Name of the input.
      ragged: Not supported.

    Raises:
      ValueError: If neither `shape` nor `ndim` is passed, or for sparse or ragged inputs.

    Example:
      >>> tf.keras.backend.placeholder(shape=(None, 3)).shape
      TensorShape([None, 3])
    """
    if shape is None and ndim is None:
        raise ValueError("K.placeholder needs a `shape`, or the number of dimensions as `ndim`.")
    sizes = _as_sizes(shape) if shape is not None else (None,) * int(ndim or 0)
    return Input(
        batch_shape=sizes, dtype=dtype or floatx(), sparse=sparse, name=name, ragged=ragged
    )


def function(
    inputs: Any,
    outputs: Any,
    updates: Any = None,
    name: str | None = None,
    **kwargs: Any,
) -> Callable[[Any], Any]:
    """Create a function of arrays from symbolic inputs and outputs.

    Args:
      inputs: Symbolic tensor, or a list or dictionary of them; in a `tf.Graph` also the learning phase.
      outputs: Symbolic tensor computed from the inputs, or a list of them.
      updates: Not supported.
      name: Ignored.
      **kwargs: Not supported.

    Returns:
      A function from arrays in the structure of `inputs` to NumPy arrays in the structure of `outputs`.

    Raises:
      ValueError: If updates or other keywords are passed.

    Example:
      >>> x = tf.keras.Input([2])
      >>> twice = tf.keras.backend.function([x], [2.0 * x])
      >>> twice([[[1.0, 2.0]]])[0]
      array([[2., 4.]], dtype=float32)
    """
    del name
    if kwargs:
        raise ValueError(
            f"Session keyword arguments are not supported during eager execution: {kwargs}"
        )
    if updates:
        raise ValueError(
            "`updates` argument is not supported during eager execution. You passed: "
            f"{updates}. Assign variables in a layer's `call` instead."
        )
    flat = nest.flatten(inputs)
    is_phase = [isinstance(t, SymbolicTensor) and t.graph.is_learning_phase(t) for t in flat]
    model: Any = Model(
        inputs=[t for t, found in zip(flat, is_phase, strict=True) if not found], outputs=outputs
    )

    @run_outside_of_graphs
    def call(arrays: Any) -> PyTree:
        if isinstance(inputs, dict):
            arrays = nest.flatten_up_to(inputs, arrays)
        else:
            is_list = isinstance(inputs, (list, tuple)) and isinstance(arrays, (list, tuple))
            arrays = list(arrays) if is_list else [arrays]
        tensors = []
        training = None
        for tensor, value, found in zip(flat, arrays, is_phase, strict=True):
            if found:
                training = bool(value)
            else:
                tensors.append(convert.convert_to_tensor(value, dtype=tensor.dtype))
        results = model(tensors if len(tensors) > 1 else tensors[0], training=training)
        # A model with a list of one output returns the tensor without the list.
        return nest.pack_sequence_as(outputs, [np.asarray(r) for r in nest.flatten(results)])

    return call


def gradients(loss: TensorLike, variables: Any) -> NoReturn:
    """Raise an error: symbolic gradients are not available; use `tf.GradientTape`.

    Raises:
      RuntimeError: Always, as in TensorFlow 2.

    Example:
      >>> try:
      ...     tf.keras.backend.gradients(tf.constant(1.0), [tf.Variable(1.0)])
      ... except RuntimeError:
      ...     print("use tf.GradientTape")
      use tf.GradientTape
    """
    raise RuntimeError(
        "tf.gradients is not supported when eager execution is enabled. Use tf.GradientTape instead."
    )


def is_keras_tensor(x: TensorLike) -> bool:
    """Check whether `x` is a symbolic tensor of the Functional API.

    Args:
      x: A tensor.

    Raises:
      ValueError: If `x` is not a tensor.

    Example:
      >>> tf.keras.backend.is_keras_tensor(tf.keras.Input([3]))
      True
      >>> tf.keras.backend.is_keras_tensor(tf.ones([3]))
      False
    """
    if not is_tensor(x):
        raise ValueError(
            f"Unexpectedly found an instance of type `{type(x)}`. Expected a symbolic tensor."
        )
    return hasattr(x, "_keras_history")


def int_shape(x: TensorLike) -> tuple[int | None, ...] | None:
    """Return the shape as a tuple, with None for sizes that vary; None for an unknown shape.

    Example:
      >>> tf.keras.backend.int_shape(tf.keras.Input([3]))
      (None, 3)
    """
    sizes = getattr(x, "shape", None)
    if sizes is None:
        return None
    return None if getattr(sizes, "rank", 0) is None else tuple(hide_symbols(sizes))


def ndim(x: TensorLike) -> int | None:
    """Return the number of dimensions.

    Example:
      >>> tf.keras.backend.ndim(tf.ones([2, 3, 4]))
      3
    """
    return len(x.shape)


def dtype(x: TensorLike) -> str:
    """Return the name of the dtype.

    Example:
      >>> tf.keras.backend.dtype(tf.constant([1, 2]))
      'int32'
    """
    return getattr(x.dtype, "name", None) or str(x.dtype)


def is_sparse(tensor: TensorLike) -> bool:
    """Check whether a tensor is sparse.

    Example:
      >>> tf.keras.backend.is_sparse(tf.sparse.eye(2)), tf.keras.backend.is_sparse(tf.eye(2))
      (True, False)
    """
    return isinstance(tensor, SparseTensor)


def to_dense(tensor: TensorLike) -> Any:
    """Convert a sparse tensor to a dense one; other tensors are returned unchanged.

    Example:
      >>> tf.keras.backend.to_dense(tf.sparse.eye(2)).numpy().tolist()
      [[1.0, 0.0], [0.0, 1.0]]
    """
    if not is_sparse(tensor):
        return tensor
    return dense_of(tensor)


def get_value(x: TensorLike) -> Any:
    """Return the value of a tensor or variable as a NumPy array; other objects unchanged.

    Example:
      >>> tf.keras.backend.get_value(tf.Variable([1.0, 2.0])).tolist()
      [1.0, 2.0]
    """
    return x.numpy() if is_tensor(x) else x


def eval(x: TensorLike) -> Any:
    """Return the value of a tensor or variable as a NumPy array.

    Example:
      >>> tf.keras.backend.eval(tf.constant([1, 2]) + 1).tolist()
      [2, 3]
    """
    return get_value(to_dense(x))


def batch_get_value(tensors: Sequence[Any]) -> list[Any]:
    """Return the values of tensors or variables as NumPy arrays.

    Example:
      >>> [float(value) for value in tf.keras.backend.batch_get_value([tf.Variable(1.0), tf.Variable(2.0)])]
      [1.0, 2.0]
    """
    return [get_value(x) for x in tensors]


@run_outside_of_graphs
def set_value(x: TensorLike, value: TensorLike) -> None:
    """Assign an array to a variable.

    Example:
      >>> x = tf.Variable([1.0, 2.0])
      >>> tf.keras.backend.set_value(x, [3.0, 4.0])
      >>> x.numpy().tolist()
      [3.0, 4.0]
    """
    x.assign(np.asarray(value).astype(x.dtype.as_numpy_dtype))


@run_outside_of_graphs
def batch_set_value(tuples: Sequence[tuple[Any, Any]]) -> None:
    """Assign variables from pairs (variable, value).

    Example:
      >>> a, b = tf.Variable(1.0), tf.Variable(2.0)
      >>> tf.keras.backend.batch_set_value([(a, 3.0), (b, 4.0)])
      >>> float(a), float(b)
      (3.0, 4.0)
    """
    for x, value in tuples:
        set_value(x, value)


def count_params(x: TensorLike) -> int:
    """Return the number of elements.

    Example:
      >>> tf.keras.backend.count_params(tf.ones([2, 3]))
      6
    """
    return int(np.prod(tuple(x.shape), dtype=np.int64))


def update(x: TensorLike, new_x: TensorLike) -> Variable:
    """Assign a new value to a variable.

    Example:
      >>> x = tf.Variable(1.0)
      >>> _ = tf.keras.backend.update(x, 5.0)
      >>> float(x)
      5.0
    """
    return x.assign(new_x)


def update_add(x: TensorLike, increment: TensorLike) -> Variable:
    """Add to a variable.

    Example:
      >>> x = tf.Variable(1.0)
      >>> _ = tf.keras.backend.update_add(x, 5.0)
      >>> float(x)
      6.0
    """
    return x.assign_add(increment)


def update_sub(x: TensorLike, decrement: TensorLike) -> Variable:
    """Subtract from a variable.

    Example:
      >>> x = tf.Variable(1.0)
      >>> _ = tf.keras.backend.update_sub(x, 5.0)
      >>> float(x)
      -4.0
    """
    return x.assign_sub(decrement)


def moving_average_update(x: TensorLike, value: TensorLike, momentum: float) -> Variable:
    """Set a variable to `momentum * x + (1 - momentum) * value`.

    Example:
      >>> mean = tf.Variable(10.0)
      >>> _ = tf.keras.backend.moving_average_update(mean, 20.0, momentum=0.75)
      >>> float(mean)
      12.5
    """
    value = convert.convert_to_tensor(value, x.dtype)
    return x.assign(x * momentum + value * (1.0 - momentum))


def stop_gradient(variables: Any) -> Any:
    """Stop gradients through a tensor or a list of tensors.

    Example:
      >>> x = tf.Variable(3.0)
      >>> with tf.GradientTape() as tape:
      ...     y = x * tf.keras.backend.stop_gradient(x * 1.0)
      >>> float(tape.gradient(y, x))
      3.0
    """
    if isinstance(variables, (list, tuple)):
        return [array.stop_gradient(v) for v in variables]
    return array.stop_gradient(variables)


def print_tensor(x: TensorLike, message: str = "", summarize: int = 3) -> Tensor:
    """Print a message and a tensor whenever it is computed, and return the tensor.

    Example:
      >>> tf.keras.backend.print_tensor(tf.constant([1, 2]), message="x =").numpy().tolist()
      x = [1 2]
      [1, 2]
    """
    printing.print(message, x, output_stream=sys.stdout, summarize=summarize)
    return x

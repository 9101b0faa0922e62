"""`Tensor`: an immutable value around a JAX array.

A tensor holds one of three things:

* a `jax.Array`: the ordinary case;
* a JAX tracer: while a function is traced (a *symbolic* tensor);
* a `numpy.ndarray`: a value known on the host, either a string tensor or a small constant.
  Constants stay on the host so that shape arithmetic (`tf.shape(x)[0] * 2`) remains usable as
  a shape while a function is traced.

Tensors are pytrees, so `jax.jit`, `jax.grad` and optax take them; they implement
`__jax_array__` and `__array__`, so `jax.numpy` and NumPy take them too. The arithmetic
operators are installed by `meshflow.ops.operators`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from meshflow.core.runtime import errors
from meshflow.core.runtime.context import context
from meshflow.core.runtime.device_to_host import to_host
from meshflow.core.runtime.devices import device_of, find_device
from meshflow.core.runtime.transfers import transfer
from meshflow.core.values import dtypes
from meshflow.core.values.shapes import TensorShape

if TYPE_CHECKING:
    from meshflow.core.values.operator_types import Operators

    _Operators = Operators["Tensor"]
else:
    _Operators = object

# Any value that `convert_to_tensor` takes: tensors, variables, arrays, numbers, nested lists.
TensorLike = Any

_SYMBOLIC_HELP = (
    "its value is only known when the traced function runs. Use tf.cond, tf.while_loop or "
    "tf.where, write the code as a plain `if`/`while`/`for` inside a tf.function with "
    "autograph=True, or call tf.config.run_functions_eagerly(True) while debugging."
)


# How an array on a mesh is printed, set by `meshflow.dtensor`; None for arrays that lie elsewhere.
_mesh_text: Callable[[Any], str | None] | None = None


def register_mesh_text(describe: Callable[[Any], str | None]) -> None:
    """Has arrays on meshes printed by `describe`, which returns None for others."""
    global _mesh_text
    _mesh_text = describe


def text_on_mesh(value: Any) -> str | None:
    """The text of an array that lies on a mesh; None for others."""
    return _mesh_text(value) if _mesh_text is not None else None


class Converted:
    """How the value of an array is known that was converted inside a trace."""

    __slots__ = ("_array",)

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def value(self) -> np.ndarray:
        """The array."""
        return self._array


class Tensor(_Operators):
    """An immutable multi-dimensional array of one dtype.

    Made by ops and by `tf.constant`, not by calling the class.

    Attributes:
      shape: the static `TensorShape`.
      dtype: the `tf.DType`.

    Example:
      >>> import meshflow as tf
      >>> x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
      >>> x + 1
      <tf.Tensor: shape=(2, 2), dtype=float32, numpy=
      array([[2., 3.],
             [4., 5.]], dtype=float32)>
    """

    __slots__ = (
        "__weakref__",
        "_assign_slice",
        "_keras_logits",
        "_keras_mask",
        "_known_value",
        "_owner",
        "_sizes",
        "_value",
    )
    # NumPy's operators give way to ours: `np_array + tensor` is a tensor.
    __array_priority__ = 100

    def __init__(self, value: Any) -> None:
        self._value = value
        self._owner = context.trace

    @property
    def dtype(self) -> dtypes.DType:
        """The element type."""
        return dtypes.of_numpy(self._value.dtype)

    @property
    def shape(self) -> TensorShape:
        """The static shape."""
        return TensorShape(self._value.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._value.shape)

    @property
    def name(self) -> str:
        """Not meaningful for eager tensors, as in TensorFlow."""
        raise AttributeError("Tensor.name is undefined when eager execution is enabled.")

    @property
    def device(self) -> str:
        """The device that holds the value, as `'/job:localhost/replica:0/task:0/device:CPU:0'`."""
        return device_of(self._value)

    @property
    def backing_device(self) -> str:
        """The same as `device`: where a tensor was asked for is where it lies."""
        return self.device

    def get_shape(self) -> TensorShape:
        """The static shape."""
        return self.shape

    def set_shape(self, shape: Any) -> None:
        """Checks that `shape` is compatible; shapes are always known here.

        Raises:
          ValueError: when the shapes are incompatible.
        """
        self.shape.assert_is_compatible_with(shape)

    def numpy(self) -> Any:
        """The value as a NumPy array, or a NumPy scalar when the tensor has no dimensions.

        Raises:
          AttributeError: for a symbolic tensor, which has no value yet.
        """
        value = self._value
        if type(value) is not np.ndarray:
            if isinstance(value, jax.core.Tracer):
                raise AttributeError(
                    f"Tensor with shape {self.shape} and dtype {self.dtype.name} has no numpy(): "
                    + _SYMBOLIC_HELP
                )
            value = to_host(value)
            if value.flags.writeable and value.ndim:
                return value  # a copy already
        return value.copy() if value.ndim else value[()]

    def ref(self) -> Reference:
        """A hashable stand-in for the tensor, for sets and dictionary keys."""
        return Reference(self)

    def experimental_ref(self) -> Reference:
        """The old name of `ref`."""
        return Reference(self)

    def cpu(self) -> Tensor:
        """The tensor on the first CPU."""
        return self._on("CPU:0")

    def gpu(self, gpu_index: int = 0) -> Tensor:
        """The tensor on a GPU.

        Raises:
          RuntimeError: when there is no such GPU.
        """
        return self._on(f"GPU:{gpu_index}")

    def _on(self, device: str) -> Tensor:
        value = self._value
        if isinstance(value, jax.core.Tracer) or value.dtype == object:
            return self
        return Tensor(jax.device_put(value, find_device(device)))

    def eval(self, *_: Any, **__: Any) -> Any:
        """Not available: there are no sessions."""
        raise NotImplementedError("eval is not supported with eager execution; use numpy().")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = np.asarray(self.numpy())
        return array if dtype is None else array.astype(dtype, copy=False)

    def __jax_array__(self) -> Any:
        return self._value

    def __dlpack__(self, **kwargs: Any) -> Any:
        return _on_device(self._value).__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return _on_device(self._value).__dlpack_device__()

    def _concrete(self, use: str) -> np.ndarray:
        """The value on the host; an error that leads to running op by op when the trace's arguments decide on it."""
        if isinstance(self._value, jax.core.Tracer):
            known = self._foreseen()
            if known is None:
                raise errors.ValueNeededError(
                    f"The value of a symbolic tf.Tensor (shape={self.shape}, dtype={self.dtype.name}) is needed as "
                    f"{use}, but only known when the traced function runs. Use tf.where with x and y, masks and known "
                    "sizes, or call tf.config.run_functions_eagerly(True)."
                )
            return known
        return to_host(self._value)

    def _foreseen(self) -> np.ndarray | None:
        """The value of a traced tensor that outer tensors decide on, a made up one while shapes are probed, or None."""
        known = getattr(self, "_known_value", None)
        if known is not None:
            return known.value()
        return None if context.probe is None else context.probe.value(self)

    def _python_value(self, use: str) -> np.ndarray:
        """The value on the host, or TensorFlow's error for any traced tensor."""
        if isinstance(self._value, jax.core.Tracer):
            raise errors.OperatorNotAllowedInGraphError(
                f"Using a symbolic tf.Tensor (shape={self.shape}, dtype={self.dtype.name}) as {use} "
                "is not allowed: " + _SYMBOLIC_HELP
            )
        return to_host(self._value)

    def __bool__(self) -> bool:
        return bool(self._python_value("a Python `bool`"))

    def __int__(self) -> int:
        return int(self._python_value("a Python `int`").item())

    def __float__(self) -> float:
        return float(self._python_value("a Python `float`").item())

    def __complex__(self) -> complex:
        return complex(self._python_value("a Python `complex`").item())

    def __index__(self) -> int:
        return self._concrete("an index").__index__()

    def __format__(self, spec: str) -> str:
        if isinstance(self._value, jax.core.Tracer):
            return str(self)
        # The plain number or array, as TensorFlow writes it in formatted text.
        value = self.numpy()
        return format(value.item() if spec and not self.ndim else value, spec)

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("Scalar tensor has no `len()`.")
        return self._value.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.ndim:
            raise TypeError("Cannot iterate over a scalar tensor.")
        if isinstance(self._value, jax.core.Tracer) and context.trace is None:
            return iter([self[i] for i in range(len(self))])
        return (self[i] for i in range(len(self)))

    def __hash__(self) -> int:
        raise TypeError("Tensor is unhashable. Instead, use tensor.ref() as the key.")

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self

    def __reduce__(self) -> Any:
        return _from_numpy, (np.asarray(self._concrete("pickled data")),)

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            object.__setattr__(self, name, value)
        except AttributeError:
            raise AttributeError(
                f"Tensor has no attribute {name!r} and takes no new ones."
            ) from None

    def __getattr__(self, name: str) -> Any:
        if name == "assign":
            # Present only on what indexing a variable returns: v[1:].assign(x).
            return self._assign_slice
        if name in _NUMPY_METHODS:
            raise AttributeError(
                f"'Tensor' object has no attribute '{name}'. If you are looking for numpy-related "
                "methods, please run the following:\n"
                "import meshflow.experimental.numpy as tnp\ntnp.experimental_enable_numpy_behavior()"
            )
        raise AttributeError(f"'Tensor' object has no attribute '{name}'")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(
            "'Tensor' object does not support item assignment: tensors are immutable. Use "
            "tf.tensor_scatter_nd_update, or a tf.Variable and v[key].assign(value)."
        )

    def __str__(self) -> str:
        if isinstance(self._value, jax.core.Tracer):
            return f"Tensor(shape={self.shape}, dtype={self.dtype.name})"
        text = text_on_mesh(self._value) or self._text(str)
        gap = "\n" if "\n" in text else ""
        return f"tf.Tensor({gap}{text}, shape={self.shape}, dtype={self.dtype.name})"

    def __repr__(self) -> str:
        if isinstance(self._value, jax.core.Tracer):
            return f"<tf.Tensor 'symbolic' shape={self.shape} dtype={self.dtype.name}>"
        return f"<tf.Tensor: shape={self.shape}, dtype={self.dtype.name}, {self._labelled()}>"

    def _labelled(self) -> str:
        """The value for a `repr`, with where it lies when that is a mesh."""
        on_mesh = text_on_mesh(self._value)
        if on_mesh is not None:
            return f"value={on_mesh}"
        text = self._text(repr)
        return f"numpy={chr(10) if chr(10) in text else ''}{text}"

    def _text(self, how: Any) -> str:
        value = to_host(self._value)
        if not value.ndim:
            # A bare number, as TensorFlow prints it: NumPy 2 would write np.float32(1.0).
            item = value[()]
            return how(item) if isinstance(item, (bytes, str)) else str(item)
        return how(value)


_NUMPY_METHODS = frozenset(
    [
        "T",
        "astype",
        "ravel",
        "transpose",
        "reshape",
        "clip",
        "size",
        "tolist",
        "data",
        "flatten",
        "sum",
        "mean",
        "max",
        "min",
    ]
)


class Reference:
    """Hashable reference to a tensor or variable, made by `ref()`; compares by identity."""

    __slots__ = ("_target",)

    def __init__(self, target: Any) -> None:
        self._target = target

    def deref(self) -> Any:
        """The tensor or variable itself."""
        return self._target

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and self._target is other._target

    def __hash__(self) -> int:
        return id(self._target)

    def __repr__(self) -> str:
        return f"<Reference wrapping {self._target!r}>"


def _on_device(value: Any) -> Any:
    return jax.numpy.asarray(value)


def _from_numpy(array: np.ndarray) -> Tensor:
    if array.dtype == object or array.size <= HOST_CONSTANT_SIZE:
        return Tensor(array)
    return Tensor(transfer(array))


# Constants up to this many elements stay in host memory: passing them to a compiled op costs
# less than making a device array, and their values stay usable while a function is traced.
HOST_CONSTANT_SIZE = 32


def _unflatten(_: None, children: tuple[Any, ...]) -> Tensor:
    return Tensor(children[0])


jax.tree_util.register_pytree_node(Tensor, lambda t: ((t._value,), None), _unflatten)


def is_tensor(x: Any) -> bool:
    """Whether `x` is a tensor, a variable, or a symbolic tensor of Keras.

    Args:
      x: anything.

    Returns:
      A Python bool.

    Example:
      >>> import meshflow as tf
      >>> tf.is_tensor(tf.constant(1)), tf.is_tensor([1])
      (True, False)
    """
    return isinstance(x, Tensor) or getattr(x, "_is_tensor_like", False)

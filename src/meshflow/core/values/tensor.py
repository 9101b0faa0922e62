"""`Tensor`: an immutable value around a JAX array.

A tensor holds one of three types of arrays:

* a `jax.Array`, the ordinary case;
* a JAX tracer, while a function is traced (a *symbolic* tensor);
* a `numpy.ndarray`, a constant on the host: strings or a small array. Small constants are not moved
  to the device, so that the result of shape arithmetic (`tf.shape(x)[0] * 2`) can be used as a
  shape while a function is traced.

Tensors are pytrees, so `jax.jit`, `jax.grad` and optax accept them. They implement `__jax_array__`
and `__array__`, so `jax.numpy` and NumPy accept them, too. `meshflow.ops.operators` installs the
arithmetic operators.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import jax
import numpy as np

from meshflow.core.runtime import errors
from meshflow.core.runtime.context import context
from meshflow.core.runtime.device_to_host import to_host
from meshflow.core.runtime.devices import find_device, get_array_device
from meshflow.core.runtime.transfers import transfer
from meshflow.core.values import dtypes
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.withheld_text import check_text
from meshflow.environment.types import Array, NumpyValue, PyTree

if TYPE_CHECKING:
    from meshflow.core.values.operator_types import Operators

    _Operators = Operators["Tensor"]
else:
    _Operators = object

_ValueFunction = TypeVar("_ValueFunction", bound=Callable[..., Any])

# A value that `convert_to_tensor` accepts: a tensor, variable, array, number or nested list.
TensorLike = Any

_INT = frozenset([int])

_SYMBOLIC_HELP = (
    "its value is only known when the traced function runs. Use tf.cond, tf.while_loop or "
    "tf.where, write the code as a plain `if`/`while`/`for` inside a tf.function with "
    "autograph=True, or call tf.config.run_functions_eagerly(True) while debugging."
)


# Formats an array on a mesh, and returns None for other arrays; `meshflow.dtensor` sets it.
_format_on_mesh: Callable[[Array], str | None] | None = None


def register_mesh_formatter(formatter: Callable[[Array], str | None]) -> None:
    """Register a function that formats arrays on a mesh, and returns None for other arrays."""
    global _format_on_mesh
    _format_on_mesh = formatter


def format_on_mesh(value: Array) -> str | None:
    """Return the text of an array on a mesh; None for other arrays."""
    return _format_on_mesh(value) if _format_on_mesh is not None else None


class ConvertedArray:
    """The known value of a tensor that was converted from a host array during a trace."""

    __slots__ = ("_array",)

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def compute_value(self) -> np.ndarray:
        """Return the host array."""
        return self._array


class _ValueMethod:
    """A method that symbolic tensors lack, like in TensorFlow: `hasattr(tensor, "numpy")` is False for them."""

    def __init__(self, function: Callable[[Any], NumpyValue]) -> None:
        self._function = function
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    def __get__(self, tensor: Any, owner: type | None = None) -> Any:
        if tensor is None:
            return self._function
        if isinstance(tensor._value, jax.core.Tracer):
            raise AttributeError(
                f"Tensor with shape {tensor.shape} and dtype {tensor.dtype.name} has no numpy(): "
                + _SYMBOLIC_HELP
            )
        return types.MethodType(self._function, tensor)


if TYPE_CHECKING:

    def _value_method(function: _ValueFunction) -> _ValueFunction: ...

else:
    _value_method = _ValueMethod


class Tensor(_Operators):
    """An immutable multi-dimensional array of one dtype.

    Ops and `tf.constant` create tensors; do not call the class.

    Attributes:
      shape: The static `TensorShape`.
      dtype: The `tf.DType`.

    Example:
      >>> x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
      >>> x + 1
      <tf.Tensor: shape=(2, 2), dtype=float32, numpy=
      array([[2., 3.],
             [4., 5.]], dtype=float32)>
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_assign_slice",
        "_keras_logits",
        "_keras_mask",
        "_known_value",
        "_owner",
        "_sizes",
        "_skips_bounds_check",
        "_value",
    )
    # NumPy's operators defer to those of tensors: `np_array + tensor` is a tensor.
    __array_priority__ = 100
    # Whether the tensor belongs to a version 1 graph, and is no constant there.
    _is_in_graph = False

    def __init__(self, value: Any) -> None:
        self._value = value
        self._owner = context.trace

    @property
    def array(self) -> Array:
        """Return the underlying array, without a copy or a transfer.

        It is a `jax.Array`, a JAX tracer (which is a `jax.Array` for type checkers) while a
        function is traced, or a `numpy.ndarray` for strings and small values, which must not be
        changed.

        Example:
          >>> type(tf.constant([1, 2]).array).__name__
          'ndarray'
          >>> isinstance(tf.zeros([100_000]).array, jax.Array)
          True
        """
        return self._value

    @property
    def dtype(self) -> dtypes.DType:
        """Return the dtype of the elements."""
        return dtypes.from_numpy_dtype(self._value.dtype)

    @property
    def shape(self) -> TensorShape:
        """Return the static shape."""
        sizes = self._value.shape
        if context.trace is None or _INT.issuperset(map(type, sizes)):
            return TensorShape(sizes)
        return TensorShape(sizes).show()

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self._value.shape)

    @property
    def name(self) -> str:
        """Raise an `AttributeError`: like in TensorFlow, eager tensors have no name."""
        raise AttributeError("Tensor.name is undefined when eager execution is enabled.")

    @property
    def device(self) -> str:
        """Return the name of the device that holds the value.

        An example is `'/job:localhost/replica:0/task:0/device:CPU:0'`.
        """
        return get_array_device(self._value)

    @property
    def backing_device(self) -> str:
        """Return `device`: a tensor is always on the device that was requested for it."""
        return self.device

    def get_shape(self) -> TensorShape:
        """Return the static shape."""
        return self.shape.show()

    # Libraries call these private methods of TensorFlow.
    def _rank(self) -> int | None:
        return self.shape.rank

    def _shape_as_list(self) -> list[int] | None:
        return None if self.shape.rank is None else self.shape.as_list()

    def _shape_tuple(self) -> tuple[int, ...] | None:
        return None if self.shape.rank is None else tuple(self.shape.as_list())

    def _num_elements(self) -> int | None:
        return self.shape.num_elements()

    def set_shape(self, shape: ShapeLike) -> None:
        """Check that a shape is compatible with the shape of the tensor, which is always known.

        Raises:
          ValueError: If the shapes are incompatible.
        """
        if context.size_probe is not None:
            self._value = context.size_probe.refine_array(self._value, shape)
        if not self.shape.is_compatible_with(shape):
            raise errors.InvalidValueError(
                f"Tensor's shape {self.shape} is not compatible with supplied shape {TensorShape(shape)}."
            )

    @_value_method
    def numpy(self) -> NumpyValue:
        """Return the value as a NumPy array, or as a NumPy scalar if the tensor has no dimensions.

        Raises:
          AttributeError: If the tensor is symbolic, because it has no value during tracing.
        """
        value = self._value
        if type(value) is not np.ndarray:
            value = to_host(value)
            if value.flags.writeable and value.ndim:
                return cast(NumpyValue, value)  # The array is an unshared copy already.
        return cast(NumpyValue, value.copy() if value.ndim else value[()])

    # TensorFlow Datasets reads values by this private method.
    _numpy = numpy

    def ref(self) -> Reference:
        """Return a hashable reference to the tensor, for sets and dictionary keys."""
        return Reference(self)

    def experimental_ref(self) -> Reference:
        """Return `ref()`; the old name of that method."""
        return Reference(self)

    def cpu(self) -> Tensor:
        """Return a copy of the tensor on the first CPU."""
        return self._copy_to("CPU:0")

    def gpu(self, gpu_index: int = 0) -> Tensor:
        """Return a copy of the tensor on a GPU.

        Raises:
          RuntimeError: If there is no such GPU.
        """
        return self._copy_to(f"GPU:{gpu_index}")

    def _copy_to(self, device: str) -> Tensor:
        value = self._value
        if isinstance(value, jax.core.Tracer) or value.dtype == object:
            return self
        return Tensor(jax.device_put(value, find_device(device)))

    def eval(self, *_: Any, **__: Any) -> Any:
        """Raise a `NotImplementedError`: there are no sessions."""
        raise NotImplementedError("eval is not supported with eager execution; use numpy().")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if isinstance(self._value, jax.core.Tracer):
            raise errors.SymbolicArrayError(
                f"Cannot convert a symbolic tensor of shape {self.shape} and dtype {self.dtype.name} to a NumPy array: "
                + _SYMBOLIC_HELP
            )
        array = np.asarray(self.numpy())
        return array if dtype is None else array.astype(dtype, copy=False)

    def __jax_array__(self) -> Array:
        return self._value

    def __dlpack__(self, **kwargs: Any) -> Any:
        return _to_jax_array(self._value).__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return _to_jax_array(self._value).__dlpack_device__()

    def require_value(self, use: str) -> np.ndarray:
        """Return the value on the host.

        Args:
          use: Purpose of the value, for the error.

        Raises:
          ValueNeededError: If the value depends on arguments of the traced function. The function
            then runs op by op.
        """
        if isinstance(self._value, jax.core.Tracer):
            known = self.find_known_value()
            if known is None:
                raise errors.ValueNeededError(
                    f"The value of a symbolic tf.Tensor (shape={self.shape}, dtype={self.dtype.name}) is needed as "
                    f"{use}, but only known when the traced function runs. Use tf.where with x and y, masks and known "
                    "sizes, or call tf.config.run_functions_eagerly(True)."
                )
            return known
        array = to_host(self._value)
        check_text(array)
        return array

    def find_known_value(self) -> np.ndarray | None:
        """Return the value of a traced tensor if it is known during the trace, or None.

        The value is known if it depends only on outer tensors. While shapes are determined, it is a
        placeholder value.
        """
        known = getattr(self, "_known_value", None)
        if known is not None:
            return known.compute_value()
        return None if context.value_probe is None else context.value_probe.make_value(self)

    def _require_python_value(self, use: str) -> np.ndarray:
        """Return the value on the host, or raise TensorFlow's error for any traced tensor."""
        if isinstance(self._value, jax.core.Tracer):
            raise errors.OperatorNotAllowedInGraphError(
                f"Using a symbolic tf.Tensor (shape={self.shape}, dtype={self.dtype.name}) as {use} "
                "is not allowed: " + _SYMBOLIC_HELP
            )
        return to_host(self._value)

    def __bool__(self) -> bool:
        return bool(self._require_python_value("a Python `bool`"))

    def _get_single_value(self, target: str) -> Any:
        array = self._require_python_value(target)
        if array.size != 1:
            raise TypeError(
                f"only length-1 arrays can be converted to Python scalars, got shape {array.shape}."
            )
        return array.item()

    def __int__(self) -> int:
        return int(self._get_single_value("a Python `int`"))

    def __float__(self) -> float:
        return float(self._get_single_value("a Python `float`"))

    def __complex__(self) -> complex:
        return complex(self._get_single_value("a Python `complex`"))

    def __index__(self) -> int:
        return self.require_value("an index").__index__()

    def __format__(self, spec: str) -> str:
        if isinstance(self._value, jax.core.Tracer):
            return str(self)
        # Formatted text contains the plain number or array, like in TensorFlow.
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
        if context.graph is not None and context.trace is None:
            return id(self)
        raise TypeError("Tensor is unhashable. Instead, use tensor.ref() as the key.")

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self

    def __reduce__(self) -> Any:
        return _from_numpy, (np.asarray(self.require_value("pickled data")),)

    if TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None:
            """Set an attribute, of any name."""

        # Type checkers would accept any name of a class with `__getattr__`.
        def assign(self, value: TensorLike, name: str | None = None) -> PyTree:
            """Assign to a slice of a variable: `v[1:].assign(x)`."""

    else:

        def __getattr__(self, name):
            if name == "assign":
                # Only the result of indexing a variable has this attribute.
                return self._assign_slice
            if context.in_element_function and name in ndarray_attributes:
                return ndarray_attributes[name](self)
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
        text = format_on_mesh(self._value) or self._format_array(str)
        gap = "\n" if "\n" in text else ""
        return f"tf.Tensor({gap}{text}, shape={self.shape}, dtype={self.dtype.name})"

    def __repr__(self) -> str:
        if isinstance(self._value, jax.core.Tracer):
            return f"<tf.Tensor 'symbolic' shape={self.shape} dtype={self.dtype.name}>"
        return f"<tf.Tensor: shape={self.shape}, dtype={self.dtype.name}, {self._format_value()}>"

    def _format_value(self) -> str:
        """Return the value for a `repr`, with its layout if it is on a mesh."""
        on_mesh = format_on_mesh(self._value)
        if on_mesh is not None:
            return f"value={on_mesh}"
        text = self._format_array(repr)
        return f"numpy={chr(10) if chr(10) in text else ''}{text}"

    def _format_array(self, formatter: Callable[[Any], str]) -> str:
        value = to_host(self._value)
        if not value.ndim:
            # TensorFlow prints a bare number, but NumPy 2 would write np.float32(1.0).
            item = value[()]
            return formatter(item) if isinstance(item, (bytes, str)) else str(item)
        return formatter(value)


# Methods and properties of NumPy's arrays, as functions of the tensor. TensorFlow's NumPy API fills
# in this table when it is loaded: the functions of datasets then receive arrays, as in TensorFlow 2.4.
ndarray_attributes: dict[str, Callable[[Tensor], Any]] = {}

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
    """A hashable reference to a tensor or variable, which `ref()` creates.

    References compare by identity.
    """

    __slots__ = ("_target",)

    def __init__(self, target: Any) -> None:
        self._target = target

    def deref(self) -> Any:
        """Return the tensor or variable."""
        return self._target

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and self._target is other._target

    def __hash__(self) -> int:
        return id(self._target)

    def __repr__(self) -> str:
        return f"<Reference wrapping {self._target!r}>"


def _to_jax_array(value: Array) -> Any:
    return jax.numpy.asarray(value)


def _from_numpy(array: np.ndarray) -> Tensor:
    if array.dtype == object or array.size <= MAX_HOST_CONSTANT_SIZE:
        return Tensor(array)
    return Tensor(transfer(array))


# Constants of up to this number of elements remain in host memory. Passing them to a compiled op
# costs less than creating a device array, and their values are available while a function is
# traced.
MAX_HOST_CONSTANT_SIZE = 32


def _unflatten(_: None, children: tuple[Any, ...]) -> Tensor:
    return Tensor(children[0])


jax.tree_util.register_pytree_node(Tensor, lambda t: ((t._value,), None), _unflatten)


def is_tensor(x: object) -> bool:
    """Check whether `x` is a tensor, a variable, a symbolic tensor of Keras, or has an attribute `is_tensor_like`.

    Args:
      x: Any object.

    Returns:
      A Python bool.

    Example:
      >>> tf.is_tensor(tf.constant(1)), tf.is_tensor([1])
      (True, False)
    """
    if isinstance(x, Tensor):
        return True
    # The second name is public in TensorFlow; objects of TensorFlow Probability have it.
    return getattr(x, "_is_tensor_like", False) or hasattr(x, "is_tensor_like")


def is_symbolic_tensor(tensor: object) -> bool:
    """Check whether a tensor belongs to a function that is being traced, so that its value is not known."""
    return isinstance(tensor, Tensor) and (
        tensor._is_in_graph or isinstance(tensor._value, jax.core.Tracer)
    )


def read_tensor(value: Any) -> Any:
    """Return the tensor of a variable or another tensor-like object; return other values unchanged."""
    read = None if isinstance(value, Tensor) else getattr(value, "_as_tensor", None)
    return value if read is None else read()


def read_tensors(values: Iterable[Any]) -> list[Tensor]:
    """Return tensors for a list of tensors, variables and other tensor-like objects."""
    return [v if isinstance(v, Tensor) else v._as_tensor() for v in values]

"""`Variable`: a named mutable cell that holds an array.

Eagerly, reading gives a tensor around the present array and assigning replaces the array.
While a function is traced, both go to the trace, which turns the variable into an input and
(when written) an output of the compiled function; see `meshflow.core.tracing.trace`.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import CAST, Op
from meshflow.core.runtime import transfers
from meshflow.core.runtime.context import alone, as_stored, context, writing
from meshflow.core.runtime.devices import device_of
from meshflow.core.runtime.errors import FailedPreconditionError
from meshflow.core.runtime.exhaustion import exhausted
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape, as_shape
from meshflow.core.values.tensor import Reference, Tensor, TensorLike
from meshflow.core.variables.variable_rows import VariableRows

if TYPE_CHECKING:
    from meshflow.core.values.operator_types import Operators

    _Operators = Operators[Tensor]
else:
    _Operators = object
from meshflow.core.variables.variable_creation import create_through, initial_array, scoped_name


class VariableSynchronization(enum.Enum):
    """When copies of a variable on several replicas are brought together.

    Example:
      >>> import meshflow as tf
      >>> v = tf.Variable(0.0, synchronization=tf.VariableSynchronization.ON_READ)
      >>> v.synchronization.name
      'ON_READ'
    """

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(enum.Enum):
    """How the values that several replicas assign to a variable become one.

    Example:
      >>> import meshflow as tf
      >>> v = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)
      >>> v.aggregation.name
      'MEAN'
    """

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3


class Variable(VariableRows, _Operators):
    """A mutable tensor, shared by everything that refers to it.

    Args:
      initial_value: a tensor, anything that converts to one, or a function without arguments
        that returns it.
      trainable: whether gradient tapes watch it and optimizers train it; default True, and
        False when synchronization is `ON_READ`.
      validate_shape: False lets later values have any shape.
      caching_device: ignored.
      name: the variable's name; default "Variable".
      variable_def: not supported.
      dtype: the dtype; default the initial value's.
      import_scope: ignored.
      constraint: a function applied to the value after each optimizer update.
      synchronization: see `tf.VariableSynchronization`.
      aggregation: see `tf.VariableAggregation`.
      shape: a shape less specific than the initial value's, for variables that change shape.

    Raises:
      ValueError: when the initial value is missing or does not fit the shape, or synchronization or
        aggregation is none.

    Example:
      >>> import meshflow as tf
      >>> v = tf.Variable([1.0, 2.0])
      >>> v.assign_add([1.0, 1.0]).numpy()
      array([2., 3.], dtype=float32)
      >>> v[0].assign(9.0).numpy()
      array([9., 3.], dtype=float32)
    """

    __array_priority__ = 100
    _is_tensor_like = True
    # Whether a program that writes it need not be given the old value.
    _write_only = False
    # Whether others hold its value as a rule: a program makes a new array then, where it would be given a copy.
    _is_lent = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Variable:
        if cls is Variable and context.variable_creators:
            return create_through(Variable, args, kwargs)
        return super().__new__(cls)

    def __init__(
        self,
        initial_value: Any = None,
        trainable: bool | None = None,
        validate_shape: bool = True,
        caching_device: Any = None,
        name: str | None = None,
        variable_def: Any = None,
        dtype: Any = None,
        import_scope: Any = None,
        constraint: Callable[[Any], Any] | None = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
        shape: Any = None,
    ) -> None:
        if "_value" in self.__dict__:
            return  # made by a variable creator, which called the constructor already
        if initial_value is None:
            raise ValueError(
                "The `initial_value` arg to `tf.Variable` must be specified except when you are not "
                "providing a `variable_def`. You provided neither."
            )
        if constraint is not None and not callable(constraint):
            raise ValueError(
                f"Argument `constraint` must be None or a callable. Got {constraint!r}."
            )
        for name_of, kind, given in (
            ("synchronization", VariableSynchronization, synchronization),
            ("aggregation", VariableAggregation, aggregation),
        ):
            if not isinstance(given, kind):
                raise ValueError(
                    f"tf.Variable: {name_of} must be a tf.{kind.__name__}, got {given!r}."
                )
        wanted = None if dtype is None else dtypes.as_dtype(dtype)
        try:
            self._value, computed = initial_array(initial_value, wanted)
        except (MemoryError, RuntimeError) as error:
            full = exhausted(error, f"the initial value of variable {name or 'Variable'}")
            if full is None:
                raise
            raise full from error
        own = tuple(self._value.shape)
        self._static_shape = (
            TensorShape(own) if shape is None and validate_shape else as_shape(shape)
        )
        self._static_shape.assert_is_compatible_with(own)
        self._dtype = dtypes.of_numpy(self._value.dtype)
        self._name = scoped_name(name or "Variable")
        if trainable is None:
            trainable = synchronization is not VariableSynchronization.ON_READ
        self._trainable = bool(trainable)
        self._constraint = constraint
        self._synchronization = synchronization
        self._aggregation = aggregation
        self._autocast = False
        if context.trace is not None:
            context.trace.created.append(self)
        if computed is not None:
            self._initialize(computed)

    def _initialize(self, value: Tensor) -> None:
        """Has the program that is traced give the initial value."""
        self._write(value)

    # ---- where it lies ---------------------------------------------------------------------

    _own_layout: Any = None
    # The file that holds the value, an array of a store.
    _held: Any = None

    @property
    def layout(self) -> Any:
        """How the variable lies on a mesh: a `dtensor.Layout`, or None."""
        return self._own_layout

    @property
    def _layout(self) -> Any:
        return self._own_layout

    @_layout.setter
    def _layout(self, layout: Any) -> None:
        """Moves the value; every value written later moves too."""
        self._own_layout = layout
        if layout is None:
            return
        if self.has_no_value:
            value, where = self._value, layout.sharding()
            self._value = jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=where)
            return
        with init_scope():
            self._value = layout.constrain(Tensor(self._value))._value

    def _hold(self, store: Any) -> None:
        """Moves the value to a file.

        Args:
          store: a store of files.
        """
        with init_scope(), writing:
            self._held = self._value = store.hold(self._value, self._own_layout)

    def _beside(self) -> contextlib.AbstractContextManager[None]:
        """Variables made inside are where this one is, as far as that differs by variable."""
        return contextlib.nullcontext()

    # ---- what it is ------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name with TensorFlow's suffix, such as `"dense/kernel:0"`."""
        return self._name + ":0"

    @property
    def _shared_name(self) -> str:
        return self._name

    @property
    def dtype(self) -> dtypes.DType:
        """The element type."""
        return self._dtype

    @property
    def shape(self) -> TensorShape:
        """The static shape."""
        return self._static_shape

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self._value.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._value.shape)

    @property
    def trainable(self) -> bool:
        """Whether tapes watch it by themselves."""
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self._trainable = bool(value)

    @property
    def constraint(self) -> Callable[[Any], Any] | None:
        """The constraint function or None."""
        return self._constraint

    @property
    def synchronization(self) -> VariableSynchronization:
        """When replicas synchronize."""
        return self._synchronization

    @property
    def aggregation(self) -> VariableAggregation:
        """How replicas' values are combined."""
        return self._aggregation

    @property
    def device(self) -> str:
        """The device that holds the value."""
        return device_of(self._value)

    @property
    def initial_value(self) -> Tensor:
        """Not kept.

        Raises:
          RuntimeError: always, as in eager TensorFlow.
        """
        raise RuntimeError("This property is not supported when eager execution is enabled.")

    @property
    def handle(self) -> Variable:
        """The variable itself; there are no separate resource handles."""
        return self

    @property
    def op(self) -> Variable:
        """The variable itself, for code that asks `v.op.name`."""
        return self

    def get_shape(self) -> TensorShape:
        """The static shape."""
        return self._static_shape

    # ---- reading ---------------------------------------------------------------------------

    @property
    def has_no_value(self) -> bool:
        """Whether only its shape is known: it belongs to a model that is planned, not run."""
        return type(self._value) is jax.ShapeDtypeStruct

    def _current(self) -> Any:
        with writing:
            value = self._value if self._held is None else self._held.in_memory("host")
        if type(value) is jax.ShapeDtypeStruct:
            raise FailedPreconditionError(
                f"{self.name} has no value: its model was made to be planned, with weights of which only the shapes "
                "are known. Call fit, which is where planning looks at the model, before weights are read."
            )
        return value

    def _on_devices(self) -> Any:
        """The present value, where operations compute."""
        if self._held is not None:
            return self._held.in_memory("device")
        if not self._in_host_memory:
            return self._current()
        return jax.device_put(self._current(), self._own_layout.in_memory("device").sharding())

    @property
    def _in_host_memory(self) -> bool:
        """Whether the value lies in the host's memory between programs."""
        return self._own_layout is not None and self._own_layout.memory == "host"

    def _as_tensor(self) -> Tensor:
        """The present value, cast when a mixed-precision layer is running; seen by tapes."""
        trace = context.trace
        if trace is None:
            tensor = Tensor(self._on_devices())
        elif context.reading is None:
            tensor = trace.read(self)
        else:
            tensor = context.reading(self)
        for tape in context.tapes:
            tape.variable_read(self, tensor)
        if self._autocast and context.autocast is not None and context.autocast is not self._dtype:
            return apply(CAST, (tensor,), (context.autocast,))
        return tensor

    def value(self) -> Tensor:
        """The value as a tensor."""
        return self._as_tensor()

    def read_value(self) -> Tensor:
        """The value as a tensor."""
        return self._as_tensor()

    def numpy(self) -> Any:
        """A copy of the value as a NumPy array.

        Raises:
          NotImplementedError: while a function is traced.
        """
        if context.trace is not None:
            raise NotImplementedError(
                f"numpy() is only available when eager execution is enabled: {self.name} is read "
                "while a function is traced."
            )
        if self._held is not None:
            found = self._held.numpy()
            return found if self.ndim else found[()]
        return Tensor(self._current()).numpy()

    def ref(self) -> Reference:
        """A hashable stand-in for sets and dictionary keys."""
        return Reference(self)

    def experimental_ref(self) -> Reference:
        """The old name of `ref`."""
        return Reference(self)

    def is_initialized(self, name: str | None = None) -> Tensor:
        """Always True, as a tensor."""
        return Tensor(np.array(True))

    @property
    def initializer(self) -> None:
        """Nothing: a variable has its value from the start."""
        return None

    def _watch_on(self, tape: Any) -> None:
        tape.watch_variable(self)

    # ---- writing ---------------------------------------------------------------------------

    def _set(self, value: Tensor) -> None:
        """Replaces the value as the program says, which `_write` may also do in its stead."""
        self._write(value)

    def _train(self, value: Tensor) -> None:
        """Replaces the value by what an optimizer has computed from it."""
        self._write(value)

    def _write(self, value: Tensor) -> None:
        """Replaces the value; dtype and shape have been checked."""
        if context.trace is None and self.has_no_value:
            return
        if self._own_layout is not None:
            value = self._own_layout.constrain(value)
        if context.trace is not None:
            context.trace.write(self, value)
        else:
            array = value._value
            on_host = isinstance(array, np.ndarray) and array.dtype.kind not in "OSU"
            array = transfers.transfer(array) if on_host else array
            if self._in_host_memory:
                array = jax.device_put(array, self._own_layout.sharding())
            with writing:
                if self._held is None:
                    self._value = array
                else:
                    self._held.fill(array)

    def _checked(self, value: TensorLike, method: str) -> Tensor:
        tensor = convert_to_tensor(value, dtype_hint=self._dtype)
        if tensor.dtype is not self._dtype:
            raise ValueError(
                f"Cannot {method} to variable {self.name}: expected dtype {self._dtype.name}, got "
                f"{tensor.dtype.name}. Use tf.cast."
            )
        return tensor

    def assign(
        self,
        value: TensorLike,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Replaces the value.

        Args:
          value: a tensor of the variable's dtype and shape, or anything that converts to one.
          use_locking: ignored.
          name: ignored.
          read_value: False returns None.

        Returns:
          The variable.

        Raises:
          ValueError: when shape or dtype do not fit.
        """
        tensor = self._checked(value, "assign value")
        if not self._static_shape.is_compatible_with(tensor._value.shape):
            raise ValueError(
                f"Cannot assign value to variable '{self.name}': Shape mismatch. The variable shape "
                f"{self._static_shape}, and the assigned value shape {tensor.shape} are incompatible."
            )
        self._set(tensor)
        return self if read_value else None

    def _update(self, op: Op, delta: TensorLike, method: str) -> Variable:
        tensor = self._checked(delta, method)
        with alone():
            with as_stored():
                result = apply(op, (self._as_tensor(), tensor))
            if not self._static_shape.is_compatible_with(result._value.shape):
                raise ValueError(
                    f"Cannot {method} a value of shape {tensor.shape} to variable {self.name} of shape "
                    f"{self._static_shape}."
                )
            self._write(result)
        return self

    def assign_add(
        self,
        delta: TensorLike,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Adds `delta` to the value.

        Args:
          delta: a tensor that broadcasts to the variable's shape.
          use_locking: ignored.
          name: ignored.
          read_value: False returns None.

        Returns:
          The variable.

        Raises:
          ValueError: when shape or dtype do not fit.
        """
        result = self._update(_add, delta, "assign_add")
        return result if read_value else None

    def assign_sub(
        self,
        delta: TensorLike,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Subtracts `delta` from the value; arguments as in `assign_add`."""
        result = self._update(_subtract, delta, "assign_sub")
        return result if read_value else None

    # ---- Python protocols ------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = np.asarray(self.numpy())
        return array if dtype is None else array.astype(dtype, copy=False)

    def __jax_array__(self) -> Any:
        return self._as_tensor()._value

    def __bool__(self) -> bool:
        return bool(self._as_tensor())

    def __int__(self) -> int:
        return int(self._as_tensor())

    def __float__(self) -> float:
        return float(self._as_tensor())

    def __index__(self) -> int:
        return self._as_tensor().__index__()

    def __format__(self, spec: str) -> str:
        return format(self._as_tensor(), spec) if spec else str(self)

    def __len__(self) -> int:
        return len(self._as_tensor())

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._as_tensor())

    def __hash__(self) -> int:
        raise TypeError("Variable is unhashable. Instead, use variable.ref() as the key.")

    def __deepcopy__(self, memo: dict[int, Any]) -> Variable:
        copied = Variable.__new__(Variable)
        memo[id(self)] = copied
        copied.__dict__.update(self.__dict__)
        value = self._current() if self._held is None else self._on_devices()
        copied._held = None
        copied._value = (
            value.copy() if isinstance(value, np.ndarray) else transfers.duplicate(value)
        )
        return copied

    def __reduce__(self) -> Any:
        how = {
            name: getattr(self, "_" + name)
            for name in ("trainable", "constraint", "synchronization", "aggregation")
        }
        # Layers read weights in the compute dtype, or not, also after a round trip.
        own = {name: getattr(self, name) for name in ("_name", "_static_shape", "_autocast")}
        return _restore, (np.asarray(self._current()), how, own)

    def __repr__(self) -> str:
        head = f"<tf.Variable '{self.name}' shape={self._static_shape} dtype={self._dtype.name}"
        if context.trace is not None:
            return head + ">"
        return f"{head}, {Tensor(self._current())._labelled()}>"


def _restore(array: np.ndarray, how: dict[str, Any], own: dict[str, Any]) -> Variable:
    variable = Variable(array, **how)
    for name, value in own.items():
        setattr(variable, name, value)
    return variable


def _add_op(operands: Any, _: Any) -> Any:
    return jax.numpy.add(*operands)


_add = Op("assign_add", _add_op)
_subtract = Op("assign_sub", lambda operands, _: jax.numpy.subtract(*operands))

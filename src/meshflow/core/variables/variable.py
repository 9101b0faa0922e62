"""`Variable`: a named mutable cell that holds an array.

In eager mode, a read returns a tensor with the present array, and an assignment replaces the array.
While a function is traced, the trace handles both: the variable becomes an input and, if written,
an output of the compiled function; see `meshflow.core.tracing.trace`.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import numpy as np

from meshflow.core.dispatch.dispatch import apply, apply_and_translate
from meshflow.core.dispatch.operation import CAST, Op
from meshflow.core.runtime import transfers
from meshflow.core.runtime.broadcasting import combine
from meshflow.core.runtime.context import (
    ActiveTrace,
    context,
    lock_variables,
    suspend_autocast,
    variable_lock,
)
from meshflow.core.runtime.devices import get_array_device
from meshflow.core.runtime.errors import (
    FailedPreconditionError,
    InvalidValueError,
    NotAvailableError,
)
from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.runtime.memory_errors import translate_memory_error
from meshflow.core.runtime.tracebacks import hide_frames_of_errors
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import ShapeLike, TensorShape, as_shape
from meshflow.core.values.tensor import Reference, Tensor, TensorLike
from meshflow.core.variables.variable_rows import VariableRowMethods
from meshflow.environment.signatures import ConstructorSignature
from meshflow.environment.types import Array, NumpyValue

if TYPE_CHECKING:
    from meshflow.core.values.operator_types import Operators

    _Operators = Operators[Tensor]
else:
    _Operators = object
from meshflow.core.variables.variable_creation import (
    add_name_scopes,
    compute_initial_array,
    create_with_creators,
)
from meshflow.core.variables.variable_subclasses import adapt_subclass


class VariableSynchronization(enum.Enum):
    """Time at which the copies of a variable on several replicas are synchronized.

    Example:
      >>> v = tf.Variable(0.0, synchronization=tf.VariableSynchronization.ON_READ)
      >>> v.synchronization.name
      'ON_READ'
    """

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(enum.Enum):
    """Rule that combines the values that several replicas assign to a variable.

    Example:
      >>> v = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)
      >>> v.aggregation.name
      'MEAN'
    """

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3


_creation_numbers = itertools.count()


@contextlib.contextmanager
def restore_variables() -> Iterator[None]:
    """Restore, after a block, the values of the variables that it assigns."""
    outer, values = context.overwritten_values, dict[int, tuple[Any, Any]]()
    context.overwritten_values = values
    try:
        yield
    finally:
        # An outer block keeps the values of its own start.
        context.overwritten_values = None
        for variable, value in values.values():
            variable.assign(value, read_value=False)
        context.overwritten_values = outer


def remember_values(variables: Iterable[Any]) -> None:
    """Keep the values of variables that are assigned next, if `restore_variables` restores them."""
    values = context.overwritten_values
    if values is None:
        return
    for variable in variables:
        if isinstance(variable, Variable) and id(variable) not in values:
            values[id(variable)] = variable, Tensor(np.array(variable.numpy()))


class Variable(VariableRowMethods, _Operators):
    """A mutable tensor, shared by all objects that refer to it.

    Args:
      initial_value: A tensor, a value that converts to one, or a function that returns it.
      trainable: Whether gradient tapes watch it and optimizers train it; by default True, and False
        if synchronization is `ON_READ`.
      validate_shape: False allows later values of any shape.
      caching_device: Ignored.
      name: Name of the variable; by default "Variable".
      variable_def: Not supported.
      dtype: The dtype; by default that of the initial value.
      import_scope: Ignored.
      constraint: A function that is applied to the value after each optimizer update.
      synchronization: See `tf.VariableSynchronization`.
      aggregation: See `tf.VariableAggregation`.
      shape: A shape that is less specific than that of the initial value, for variable shapes.
      experimental_enable_variable_lifting: False in a `tf.function` is not supported.

    Raises:
      ValueError: If the initial value is missing or incompatible with the shape, or synchronization
        or aggregation is invalid.

    Example:
      >>> v = tf.Variable([1.0, 2.0])
      >>> v.assign_add([1.0, 1.0]).numpy()
      array([2., 3.], dtype=float32)
      >>> v[0].assign(9.0).numpy()
      array([9., 3.], dtype=float32)
    """

    __array_priority__ = 100
    _is_tensor_like = True
    # Libraries that wrap variables read it.
    _in_graph_mode = False
    # Whether a program that writes the variable does not need its old value.
    _write_only = False
    # Whether other objects usually hold the value, so programs allocate a new array instead.
    _is_lent = False
    # Whether the variable is the number of steps of an optimizer.
    _counts_steps = False
    # Position in the order in which variables are created.
    _creation_number = 0

    __signature__ = ConstructorSignature()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        adapt_subclass(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Variable:
        """Create the variable, through the active variable creators if there are any."""
        if cls is Variable and context.variable_creators:
            return create_with_creators(Variable, args, kwargs)
        variable = super().__new__(cls)
        variable._creation_number = next(_creation_numbers)
        return variable

    def __init__(
        self,
        initial_value: TensorLike | Callable[[], TensorLike] | None = None,
        trainable: bool | None = None,
        validate_shape: bool = True,
        caching_device: object = None,
        name: str | None = None,
        variable_def: object = None,
        dtype: dtypes.DTypeLike | None = None,
        import_scope: object = None,
        constraint: Callable[[Any], Any] | None = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
        shape: ShapeLike = None,
        experimental_enable_variable_lifting: bool | None = True,
    ) -> None:
        if "_value" in self.__dict__:
            return  # A variable creator has called the constructor already.
        if experimental_enable_variable_lifting is False and context.trace is not None:
            raise NotAvailableError(
                "tf.Variable: a variable that exists during one call of a tf.function only "
                "(experimental_enable_variable_lifting=False) is not available. Use a tensor, or create the variable "
                "outside of the function."
            )
        if initial_value is None:
            raise ValueError(
                "The `initial_value` arg to `tf.Variable` must be specified except when you are not "
                "providing a `variable_def`. You provided neither."
            )
        if constraint is not None and not callable(constraint):
            raise ValueError(
                f"Argument `constraint` must be None or a callable. Got {constraint!r}."
            )
        # Wrappers pass None for their own arguments without a value.
        synchronization = synchronization or VariableSynchronization.AUTO
        aggregation = aggregation or VariableAggregation.NONE
        for argument, cls, member in (
            ("synchronization", VariableSynchronization, synchronization),
            ("aggregation", VariableAggregation, aggregation),
        ):
            if not isinstance(member, cls):
                raise ValueError(
                    f"tf.Variable: {argument} must be a tf.{cls.__name__}, got {member!r}."
                )
        requested_dtype = None if dtype is None else dtypes.as_dtype(dtype)
        try:
            self._value, computed = compute_initial_array(initial_value, requested_dtype)
        except (MemoryError, RuntimeError) as error:
            memory_error = translate_memory_error(
                error, f"the initial value of variable {name or 'Variable'}"
            )
            if memory_error is None:
                raise
            raise memory_error from error
        value_shape = tuple(self._value.shape)
        self._static_shape = (
            TensorShape(value_shape) if shape is None and validate_shape else as_shape(shape)
        )
        if not self._static_shape.is_compatible_with(value_shape):
            raise ValueError(
                f"In this `tf.Variable` creation, the initial value's shape {value_shape} is not compatible with the "
                f"argument `shape`, {self._static_shape}."
            )
        self._dtype = dtypes.from_numpy_dtype(self._value.dtype)
        self._name = add_name_scopes(name or "Variable")
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
        """Set the initial value in the program that is traced."""
        self._write(value)

    # ---- placement -------------------------------------------------------------------------

    _own_layout: Any = None
    # The file that holds the value, an array of a store.
    _held: Any = None

    @property
    def layout(self) -> Any:
        """Return the layout of the variable on a mesh, a `dtensor.Layout`, or None."""
        return self._own_layout

    @layout.setter
    def layout(self, layout: Any) -> None:
        """Move the value to a layout, also every value that is written later."""
        self._own_layout = layout
        if layout is None:
            return
        if self.has_no_value:
            value, sharding = self._value, layout.to_sharding()
            self._value = jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
            return
        with init_scope():
            self._value = layout.constrain(Tensor(self._value)).array

    def _move_to_file(self, store: Any) -> None:
        """Move the value to a file.

        Args:
          store: A store of files.
        """
        with init_scope(), variable_lock:
            self._held = self._value = store.create_array(self._value, self._own_layout)

    def _colocation_scope(self) -> contextlib.AbstractContextManager[None]:
        """Create variables in a block at the location of this one, if locations differ by variable."""
        return contextlib.nullcontext()

    # ---- properties ------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Return the name with TensorFlow's suffix, such as `"dense/kernel:0"`."""
        return self._name + ":0"

    @property
    def _shared_name(self) -> str:
        return self._name

    # Optimizers use it as the key of a variable.
    @property
    def _unique_id(self) -> str:
        return f"{self._name}_{id(self)}"

    @property
    def dtype(self) -> dtypes.DType:
        """Return the element type."""
        return self._dtype

    @property
    def shape(self) -> TensorShape:
        """Return the static shape."""
        return self._static_shape

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self._value.shape)

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self._value.shape)

    @property
    def trainable(self) -> bool:
        """Return whether tapes watch the variable automatically."""
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self._trainable = bool(value)

    @property
    def constraint(self) -> Callable[[Any], Any] | None:
        """Return the constraint function or None."""
        return self._constraint

    @property
    def synchronization(self) -> VariableSynchronization:
        """Return the time of synchronization of replicas."""
        return self._synchronization

    @property
    def aggregation(self) -> VariableAggregation:
        """Return the rule that combines the values of replicas."""
        return self._aggregation

    @property
    def device(self) -> str:
        """Return the name of the device that holds the value."""
        return get_array_device(self._value)

    @property
    def initial_value(self) -> Tensor:
        """Raise an error, because the initial value is not stored.

        Raises:
          RuntimeError: Always, as in eager TensorFlow.
        """
        raise RuntimeError("This property is not supported when eager execution is enabled.")

    @property
    def handle(self) -> Variable:
        """Return the variable itself; there are no separate resource handles."""
        return self

    @property
    def op(self) -> Variable:
        """Return the variable itself, for code that uses `v.op.name`."""
        return self

    def get_shape(self) -> TensorShape:
        """Return the static shape."""
        return self._static_shape

    def set_shape(self, shape: ShapeLike) -> None:
        """Merge a shape into the static shape."""
        self._static_shape = self._static_shape.merge_with(shape)

    def load(self, value: TensorLike, session: object = None) -> None:
        """Assign a value; version 1's name of `assign`."""
        self.assign(value)

    def eval(self, session: object = None) -> NoReturn:
        """Raise an error, because there are no sessions.

        Raises:
          RuntimeError: Always, as in eager TensorFlow.
        """
        raise RuntimeError(
            "Variable.eval: this operation is not supported when eager execution is enabled. Use `numpy()`."
        )

    def __tf_tensor__(
        self, dtype: dtypes.DTypeLike | None = None, name: str | None = None
    ) -> Tensor:
        return self._dense_var_to_tensor(dtype=dtype, name=name)

    def _dense_var_to_tensor(
        self, dtype: dtypes.DTypeLike | None = None, name: str | None = None, as_ref: bool = False
    ) -> Tensor:
        """Return the value, for libraries that wrap variables."""
        return convert_to_tensor(self.value(), dtype=dtype)

    # ---- reading ---------------------------------------------------------------------------

    @property
    def has_no_value(self) -> bool:
        """Return whether only the shape is known, because the model is planned but not run."""
        return type(self._value) is jax.ShapeDtypeStruct

    def _current(self) -> Array:
        with variable_lock:
            value = self._value if self._held is None else self._held.to_memory("host")
        if type(value) is jax.ShapeDtypeStruct:
            raise FailedPreconditionError(
                f"{self.name} has no value: its model was created for planning, with weights that only have shapes. "
                "Call fit, which plans the model, before you read weights."
            )
        return value

    def _read_on_device(self) -> Array:
        """Return the present value on the device that runs ops."""
        if self._held is not None:
            return self._held.to_memory("device")
        if not self._in_host_memory:
            return self._current()
        return jax.device_put(self._current(), self._own_layout.with_memory("device").to_sharding())

    @property
    def _in_host_memory(self) -> bool:
        """Return whether the value is in host memory between programs."""
        return self._own_layout is not None and self._own_layout.memory == "host"

    def _as_tensor(self) -> Tensor:
        """Read the value, cast it in a mixed-precision layer, and record the read on tapes."""
        trace = context.trace
        if trace is None:
            tensor = Tensor(self._read_on_device())
        elif context.override_read is None:
            tensor = self._read_in_trace(trace)
        else:
            tensor = context.override_read(self)
        for tape in context.tapes:
            tape.record_read(self, tensor)
        dtype = self._find_autocast_dtype()
        return tensor if dtype is None else apply(CAST, (tensor,), (dtype,))

    def _find_autocast_dtype(self) -> dtypes.DType | None:
        """Return the dtype to which a mixed-precision layer casts the value; None outside of one."""
        dtype = context.autocast_dtype if self._autocast else None
        return None if dtype is self._dtype else dtype

    def _read_in_trace(self, trace: ActiveTrace) -> Tensor:
        """Read the value in a trace."""
        return trace.read(self)

    # The conversion to a tensor, without the methods that a subclass of the user overrides.
    _read = _as_tensor

    def value(self) -> Tensor:
        """Return the value as a tensor."""
        return self._read()

    def read_value(self) -> Tensor:
        """Return the value as a tensor."""
        return self._read()

    def numpy(self) -> NumpyValue:
        """Return a copy of the value as a NumPy array.

        Raises:
          NotImplementedError: If a function is traced.
        """
        if context.trace is not None:
            raise NotImplementedError(
                f"numpy() is only available when eager execution is enabled: {self.name} is read "
                "while a function is traced."
            )
        if self._held is not None:
            array = self._held.numpy()
            return array if self.ndim else array[()]
        return Tensor(self._current()).numpy()

    def ref(self) -> Reference:
        """Return a hashable reference for sets and dictionary keys."""
        return Reference(self)

    def experimental_ref(self) -> Reference:
        """Return `ref()`; the old name of that method."""
        return Reference(self)

    def is_initialized(self, name: str | None = None) -> Tensor:
        """Return True as a tensor."""
        return Tensor(np.array(True))

    @property
    def initializer(self) -> None:
        """Return None: a variable has its value from the start."""
        return None

    def _watch_on(self, tape: Any) -> None:
        tape.watch_variable(self)

    # ---- writing ---------------------------------------------------------------------------

    def _set(self, value: Tensor) -> None:
        """Replace the value as the program requires; subclasses may do more than `_write`."""
        self._write(value)

    def _train(self, value: Tensor) -> None:
        """Replace the value by the result of an optimizer."""
        self._write(value)

    def _write(self, value: Tensor) -> None:
        """Replace the value after dtype and shape have been checked."""
        if context.trace is None and self.has_no_value:
            return
        if context.trace is None:
            remember_values([self])
        if self._own_layout is not None:
            value = self._own_layout.constrain(value)
        if context.trace is not None:
            context.trace.write(self, value)
        else:
            array: Any = value.array
            on_host = isinstance(array, np.ndarray) and array.dtype.kind not in "OSU"
            array = transfers.transfer(array) if on_host else array
            if self._in_host_memory:
                array = jax.device_put(array, self._own_layout.to_sharding())
            with variable_lock:
                if self._held is None:
                    self._value = array
                else:
                    self._held.fill(array)

    def _check_value(self, value: TensorLike, method: str) -> Tensor:
        tensor = convert_to_tensor(value, dtype_hint=self._dtype)
        if tensor.dtype is not self._dtype:
            raise InvalidValueError(
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
    ) -> Variable:
        """Replace the value.

        Args:
          value: A tensor with the variable's dtype and shape, or a value that converts to one.
          use_locking: Ignored.
          name: Ignored.
          read_value: False returns None.

        Returns:
          The variable.

        Raises:
          ValueError: If the shape or dtype is incompatible.
        """
        tensor = self._check_value(value, "assign value")
        if not self._static_shape.is_compatible_with(tensor.array.shape):
            raise ValueError(
                f"Cannot assign value to variable '{self.name}': Shape mismatch. The variable shape "
                f"{self._static_shape}, and the assigned value shape {tensor.shape} are incompatible."
            )
        self._set(tensor)
        return self if read_value else None  # type: ignore[return-value]

    @hide_frames_of_errors
    def _update(self, op: Op, delta: TensorLike, method: str) -> Variable:
        tensor = self._check_value(delta, method)
        with lock_variables():
            value = self._as_tensor()
            if value.array.shape != tensor.array.shape and not value.shape.is_compatible_with(
                tensor.shape
            ):
                raise InvalidValueError(
                    f"{method}: Cannot update variable with shape {value.shape} using a Tensor with shape "
                    f"{tensor.shape}, shapes must be equal. The variable is {self.name}."
                )
            with suspend_autocast():
                self._write(apply_and_translate(op, (value, tensor)))
        return self

    def count_up_to(self, limit: int) -> Tensor:
        """Return the value of an integer variable and increment it; see `tf.compat.v1.count_up_to`."""
        value: Tensor = get_public_package().compat.v1.count_up_to(self, limit)
        return value

    def assign_add(
        self,
        delta: TensorLike,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Variable:
        """Add `delta` to the value.

        Args:
          delta: A tensor of the shape of the variable.
          use_locking: Ignored.
          name: Ignored.
          read_value: False returns None.

        Returns:
          The variable.

        Raises:
          ValueError: If the shape or dtype is incompatible.
        """
        result = self._update(_add, delta, "assign_add")
        return result if read_value else None  # type: ignore[return-value]

    def assign_sub(
        self,
        delta: TensorLike,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Variable:
        """Subtract `delta` from the value; see `assign_add` for the arguments."""
        result = self._update(_subtract, delta, "assign_sub")
        return result if read_value else None  # type: ignore[return-value]

    # ---- Python protocols ------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = np.asarray(self.numpy())
        return array if dtype is None else array.astype(dtype, copy=False)

    def __jax_array__(self) -> Array:
        return self._as_tensor().array

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
        if context.graph is not None and context.trace is None:
            return id(self)
        raise TypeError("Variable is unhashable. Instead, use variable.ref() as the key.")

    def __deepcopy__(self, memo: dict[int, Any]) -> Variable:
        copied = Variable.__new__(Variable)
        memo[id(self)] = copied
        copied.__dict__.update(self.__dict__)
        value = self._current() if self._held is None else self._read_on_device()
        copied._held = None
        copied._value = (
            value.copy() if isinstance(value, np.ndarray) else transfers.duplicate(value)
        )
        return copied

    def __reduce__(self) -> tuple[Callable[..., Variable], tuple[Any, ...]]:
        arguments = {
            name: getattr(self, "_" + name)
            for name in ("trainable", "constraint", "synchronization", "aggregation")
        }
        # Whether layers read weights in the compute dtype must survive a round trip.
        attributes = {name: getattr(self, name) for name in ("_name", "_static_shape", "_autocast")}
        return _restore, (np.asarray(self._current()), arguments, attributes)

    def __repr__(self) -> str:
        head = f"<tf.Variable '{self.name}' shape={self._static_shape} dtype={self._dtype.name}"
        if context.trace is not None:
            return head + ">"
        return f"{head}, {Tensor(self._current())._format_value()}>"


def get_full_name(variable: Any) -> str:
    """Return the name of a `Variable` or `ShardedVariable` up to the first colon."""
    return str(variable.name).partition(":")[0]


def get_value_shape(variable: Variable) -> tuple[int, ...]:
    """Return the shape of the present value, even if the static shape has unknown sizes."""
    return variable._shape


def _restore(array: np.ndarray, arguments: dict[str, Any], attributes: dict[str, Any]) -> Variable:
    variable = Variable(array, **arguments)
    for name, value in attributes.items():
        setattr(variable, name, value)
    return variable


def _add_arrays(operands: Sequence[jax.Array], _: object) -> jax.Array:
    return combine(jax.lax.add, *operands)


_add = Op("assign_add", _add_arrays)
_subtract = Op("assign_sub", lambda operands, _: combine(jax.lax.sub, *operands))

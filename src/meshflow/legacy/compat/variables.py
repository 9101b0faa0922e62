"""Variables of TensorFlow 1: scopes, `get_variable`, scatters, initializers and partitioners.

As in eager execution of TensorFlow, `get_variable` creates a new variable at each call, except in a graph, in the function
of a template, and in a method with the decorator `track_tf1_style_variables`, which reuse the variables of their first call.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.runtime.context import ThreadState
from meshflow.core.values.dtypes import DType, DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.legacy.compat.public_package import tf
from meshflow.legacy.graph.graph import Graph, get_default_graph, has_explicit_graph

__all__ = [
    "AUTO_REUSE",
    "VariableScope",
    "VariableStore",
    "batch_scatter_update",
    "constant_initializer",
    "count_up_to",
    "fixed_size_partitioner",
    "get_local_variable",
    "get_variable",
    "get_variable_scope",
    "glorot_normal_initializer",
    "glorot_uniform_initializer",
    "make_template",
    "min_max_variable_partitioner",
    "no_regularizer",
    "ones_initializer",
    "orthogonal_initializer",
    "random_normal_initializer",
    "random_uniform_initializer",
    "scatter_add",
    "scatter_div",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_nd_add",
    "scatter_nd_sub",
    "scatter_nd_update",
    "scatter_sub",
    "scatter_update",
    "truncated_normal_initializer",
    "uniform_unit_scaling_initializer",
    "variable_axis_size_partitioner",
    "variable_scope",
    "variance_scaling_initializer",
    "zeros_initializer",
]

AUTO_REUSE = "auto_reuse"


class _ScopeState(ThreadState):
    """The current scope of eager execution."""

    variable_scope: VariableScope | None = None


_state = _ScopeState()


class VariableStore(tf.Module):
    """Variables and layers by name that the calls of a function share.

    Attributes:
      variables_by_name: The variables of `get_variable`.
      layers_by_name: The layers of `tf.compat.v1.layers` and of `get_or_create_layer`.
      regularizers: Functions that return the penalties of variables, by the names of these.
      new_layers: Layers whose penalties are not yet losses of the object that owns the store.
    """

    def __init__(self) -> None:
        super().__init__()
        self.variables_by_name: dict[str, Variable] = {}
        self.layers_by_name: dict[str, Any] = {}
        self.regularizers: dict[str, Callable[[], Any]] = {}
        self.new_layers: list[Any] = []
        self._num_scopes: dict[str, int] = {}
        self._num_layers: dict[str, int] = {}

    def get_or_create_layer(self, name: str, create: Callable[[], Any]) -> Any:
        """Return the layer with a name, which a function creates at first."""
        if name not in self.layers_by_name:
            self.layers_by_name[name] = create()
            self.new_layers.append(self.layers_by_name[name])
        return self.layers_by_name[name]

    def name_scope(self, name: str) -> str:
        """Return a default name of a scope, with a number if any call of the function has used it."""
        names = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(1)))
        return next(n for n in names if n not in self._num_scopes)

    @contextlib.contextmanager
    def open_scope(self, name: str) -> Iterator[None]:
        """Mark the name of a scope as used; the default names of scopes in it start again."""
        self._num_scopes[name] = self._num_scopes.get(name, 0) + 1
        inner = {n: c for n, c in self._num_scopes.items() if n.startswith(f"{name}/")}
        for other in inner:
            del self._num_scopes[other]
        try:
            yield
        finally:
            self._num_scopes |= inner

    def name_layer(self, name: str) -> str:
        """Return a default name of a layer outside of scopes, with a number if this call has used it."""
        return _add_number(name, self._num_layers)

    def start_call(self) -> None:
        """Start another call of the function, which uses the default names of layers again in their order."""
        self._num_layers.clear()


def _add_number(name: str, counts: dict[str, int]) -> str:
    count = counts[name] = counts.get(name, -1) + 1
    return f"{name}_{count}" if count else name


class VariableScope:
    """Defaults of the variables that `get_variable` creates in a scope.

    Args:
      reuse: Whether variables are reused.
      name: Prefix of the names of variables.
      initializer: Initializer of variables without one.
      regularizer: Regularizer of variables without one in a store. There are no collections of losses.
      dtype: Dtype of variables without one.
      store: Variables that are reused, or None.
    """

    def __init__(
        self,
        reuse: object,
        name: str = "",
        initializer: object = None,
        regularizer: object = None,
        dtype: DTypeLike = "float32",
        store: VariableStore | None = None,
        custom_getter: Callable[..., Any] | None = None,
        constraint: object = None,
    ) -> None:
        self.custom_getter, self.constraint = custom_getter, constraint
        self.partitioner: object = None
        self.original_name_scope = f"{name}/" if name else ""
        self.use_resource = True
        self.reuse, self.name, self.initializer = reuse, name, initializer
        self.regularizer, self.dtype, self.store = regularizer, dtype, store
        self.caching_device: object = None

    def reuse_variables(self) -> None:
        """Reuse variables in this scope."""
        self.reuse = True

    def set_caching_device(self, caching_device: object) -> None:
        """Set the device of copies of variables, which is ignored."""
        self.caching_device = caching_device

    def set_initializer(self, initializer: object) -> None:
        """Set the initializer of variables without one."""
        self.initializer = initializer

    def set_dtype(self, dtype: DTypeLike) -> None:
        """Set the dtype of variables without one."""
        self.dtype = dtype

    def set_custom_getter(self, custom_getter: Callable[..., Any] | None) -> None:
        """Set the function that is called instead of `get_variable`."""
        self.custom_getter = custom_getter

    def set_partitioner(self, partitioner: object) -> None:
        """Set the partitioner, which is ignored."""
        self.partitioner = partitioner

    def set_use_resource(self, use_resource: bool) -> None:
        """Do nothing: all variables are resources."""

    def get_collection(self, name: object) -> list[Any]:
        """Return the values of a collection of the default graph with names in this scope."""
        scope = f"{re.escape(self.name)}/" if self.name else None
        return get_default_graph().get_collection(name, scope)

    def global_variables(self) -> list[Any]:
        """Return the global variables of this scope."""
        return self.get_collection("variables")

    def trainable_variables(self) -> list[Any]:
        """Return the trainable variables of this scope."""
        return self.get_collection("trainable_variables")

    def local_variables(self) -> list[Any]:
        """Return the local variables of this scope."""
        return self.get_collection("local_variables")

    def set_regularizer(self, regularizer: object) -> None:
        """Set the regularizer of variables without one in a store."""
        self.regularizer = regularizer


def _get_owner() -> Graph | _ScopeState:
    """Return the owner of the current scope: the graph, or the state of this thread."""
    return get_default_graph() if has_explicit_graph() else _state


def get_variable_scope() -> VariableScope:
    """Return the current scope of the graph, or of this thread in eager execution."""
    owner = _get_owner()
    if owner.variable_scope is None:
        store = None if owner is _state else VariableStore()
        owner.variable_scope = VariableScope(False, store=store)
    scope: VariableScope = owner.variable_scope
    return scope


@contextlib.contextmanager
def _enter_scope(scope: VariableScope) -> Iterator[VariableScope]:
    owner = _get_owner()
    previous, owner.variable_scope = get_variable_scope(), scope
    try:
        yield scope
    finally:
        owner.variable_scope = previous


@contextlib.contextmanager
def variable_scope(
    name_or_scope: str | VariableScope | None = None,
    default_name: str | None = None,
    values: object = None,
    initializer: object = None,
    regularizer: object = None,
    caching_device: object = None,
    partitioner: object = None,
    custom_getter: Callable[..., Variable] | None = None,
    reuse: object = None,
    dtype: DTypeLike | None = None,
    use_resource: bool | None = None,
    constraint: object = None,
    auxiliary_name_scope: bool = True,
) -> Iterator[VariableScope]:
    """Prefix the names of variables, and set defaults for `get_variable`.

    Args:
      name_or_scope: Name below the current scope, or a scope that is entered again.
      default_name: Name if `name_or_scope` is None.
      values: Ignored.
      initializer: Initializer of variables without one.
      regularizer: Regularizer of variables without one.
      caching_device: Ignored.
      partitioner: Ignored.
      custom_getter: Function called instead of `get_variable`, with this as its first argument.
      reuse: In a graph, whether variables must exist already; `AUTO_REUSE` allows both.
      dtype: Dtype of variables without one.
      use_resource: Ignored.
      constraint: Constraint of variables without one.
      auxiliary_name_scope: Whether the names of ops get the prefix, too.

    Raises:
      TypeError: If neither a name nor a default name is passed.

    Example:
      >>> with tf.compat.v1.variable_scope("dense"):
      ...     kernel = tf.compat.v1.get_variable("kernel", [2, 3])
      >>> kernel.name
      'dense/kernel:0'
    """
    outer = get_variable_scope()
    if isinstance(name_or_scope, VariableScope):
        name, outer = name_or_scope.name, name_or_scope
        last: str | None = name.rpartition("/")[2]
    else:
        last = default_name if name_or_scope is None else name_or_scope
        if last is None:
            raise TypeError("If default_name is None then name_or_scope is required")
        if reuse is True and name_or_scope is None:
            raise ValueError("reuse=True cannot be used without a name_or_scope")
        name = f"{outer.name}/{last}".strip("/")
        if name_or_scope is None and outer.store is not None:
            name = outer.store.name_scope(name)
            last = name.rpartition("/")[2]
    scope = VariableScope(
        outer.reuse if reuse is None or (outer.reuse is True and not reuse) else reuse,
        name,
        outer.initializer if initializer is None else initializer,
        outer.regularizer if regularizer is None else regularizer,
        outer.dtype if dtype is None else dtype,
        outer.store,
        _chain_getters(custom_getter, outer.custom_getter),
        outer.constraint if constraint is None else constraint,
    )
    with contextlib.ExitStack() as stack:
        if auxiliary_name_scope and last:
            scope.original_name_scope = stack.enter_context(tf.name_scope(last))
        elif not auxiliary_name_scope:
            outer_scope = tf.get_current_name_scope()
            scope.original_name_scope = f"{outer_scope}/" if outer_scope else ""
        if scope.store is not None:
            stack.enter_context(scope.store.open_scope(name))
        stack.enter_context(_enter_scope(scope))
        yield scope


def _chain_getters(
    own: Callable[..., Variable] | None, outer: Callable[..., Variable] | None
) -> Callable[..., Variable] | None:
    """Return a custom getter that calls its own function with the outer one as the getter."""
    if own is None or outer is None:
        return own or outer

    def getter(getter: Callable[..., Variable], *args: object, **kwargs: object) -> Variable:
        return own(functools.partial(outer, getter), *args, **kwargs)

    return getter


def get_variable(
    name: str,
    shape: ShapeLike = None,
    dtype: DTypeLike | None = None,
    initializer: object = None,
    regularizer: object = None,
    trainable: bool | None = None,
    collections: Iterable[object] | None = None,
    caching_device: object = None,
    partitioner: object = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,
    custom_getter: object = None,
    constraint: object = None,
    synchronization: object = tf.VariableSynchronization.AUTO,
    aggregation: object = tf.VariableAggregation.NONE,
) -> Variable:
    """Create a variable with the name and the defaults of the current scope.

    Args:
      name: Name below the scope.
      shape: Shape; taken from the initializer if that is a value.
      dtype: Default: that of the scope, or of the value.
      initializer: Initializer, or a value. Default: that of the scope, or glorot_uniform; zeros for other dtypes than
        floats.
      regularizer: Function of the value in a method that tracks variables, and in a block of a `tf.Graph`; otherwise
        ignored.
      trainable: Default: True.
      collections: Names of collections of a `tf.Graph` in its block; otherwise ignored.
      caching_device: Ignored.
      partitioner: Ignored.
      validate_shape: Ignored.
      use_resource: Ignored.
      custom_getter: See `variable_scope`.
      constraint: As in `tf.Variable`.
      synchronization: As in `tf.Variable`.
      aggregation: As in `tf.Variable`.

    Raises:
      ValueError: If neither the shape nor a value is passed.
    """
    scope = get_variable_scope()
    found_dtype: Any = getattr(initializer, "dtype", None)
    if isinstance(initializer, Tensor) and dtype is not None and found_dtype != tf.as_dtype(dtype):
        raise ValueError(
            f"Initializer type {found_dtype.name} and explicit dtype {tf.as_dtype(dtype).name} of variable {name} don't match."
        )
    getter = custom_getter or scope.custom_getter
    full_name = f"{scope.name}/{name}".lstrip("/")
    options: dict[str, Any] = {
        "shape": shape,
        "dtype": dtype or scope.dtype,
        "initializer": scope.initializer if initializer is None else initializer,
        "regularizer": regularizer or scope.regularizer,
        "trainable": trainable,
        "collections": collections,
        "constraint": constraint or scope.constraint,
        "synchronization": synchronization,
        "aggregation": aggregation,
        "reuse": scope.reuse,
        "caching_device": caching_device,
        "partitioner": partitioner,
        "validate_shape": validate_shape,
        "use_resource": use_resource,
    }
    if getter is None:
        return _get_or_create(full_name, **options)
    if not callable(getter):
        raise ValueError(f"custom_getter must be a function, got {getter!r}.")
    found: Variable = getter(_get_or_create, name=full_name, **options)
    return found


def check_reuse(name: str, scope: VariableScope, variable: Variable | None) -> None:
    """Raise an error if the scope does not allow to create or reuse a variable in a graph."""
    if variable is None and scope.reuse is True:
        raise ValueError(
            f"Variable {name} does not exist, or was not created with tf.get_variable(). Did you mean to set "
            "reuse=tf.AUTO_REUSE in VarScope?"
        )
    if variable is not None and not scope.reuse:
        raise ValueError(
            f"Variable {name} already exists, disallowed. Did you mean to set reuse=True or reuse=tf.AUTO_REUSE in "
            "VarScope?"
        )


def _get_or_create(
    name: str,
    shape: ShapeLike = None,
    dtype: DTypeLike | None = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool | None = None,
    collections: Iterable[object] | None = None,
    constraint: object = None,
    synchronization: object = tf.VariableSynchronization.AUTO,
    aggregation: object = tf.VariableAggregation.NONE,
    **_: object,
) -> Variable:
    """Return the variable with a full name, and create it if necessary; see `get_variable`."""
    scope = get_variable_scope()
    known = None if scope.store is None else scope.store.variables_by_name.get(name)
    if has_explicit_graph():
        check_reuse(name, scope, known)
    if known is not None:
        if shape is not None and not known.shape.is_compatible_with(shape):
            raise ValueError(
                f"Trying to share variable {name}, but specified shape {tf.TensorShape(shape)} and found shape "
                f"{known.shape}."
            )
        if has_explicit_graph() and dtype is not None and tf.as_dtype(dtype) != known.dtype:
            raise ValueError(
                f"Trying to share variable {name}, but specified dtype {tf.as_dtype(dtype).name} and found dtype "
                f"{known.dtype.name}."
            )
        return known
    if isinstance(initializer, type):
        initializer = initializer()
    kind: DType = tf.as_dtype(dtype or scope.dtype)
    if initializer is None:
        initializer = tf.keras.initializers.get("glorot_uniform" if kind.is_floating else "zeros")
    if not callable(initializer):
        if shape is not None:
            raise ValueError(
                f"If initializer is a constant, do not specify shape: variable {name} has the shape {shape}."
            )
        value: Any = tf.convert_to_tensor(
            initializer, dtype=kind if isinstance(initializer, float) else None
        )
    elif shape is None and not isinstance(initializer, tf.keras.initializers.Initializer):
        if not _needs_no_arguments(initializer):
            raise ValueError(
                f"The initializer passed is not valid. It should be a callable with no arguments and the shape should not "
                f"be provided or an instance of `tf.keras.initializers.*' and `shape` should be fully defined. Variable: {name}."
            )
        value = initializer
    elif not tf.TensorShape(shape).is_fully_defined():
        raise ValueError(
            f"Shape of a new variable ({name}) must be fully defined, but instead was {tf.TensorShape(shape)}."
        )
    else:
        value = functools.partial(initializer, tuple(tf.TensorShape(shape)), dtype=kind)
    # Scopes of names, such as those of Keras layers, are no part of the name.
    with tf.name_scope(""), get_default_graph().set_variable_collections(collections):
        variable = tf.Variable(
            value,
            trainable=trainable,
            name=name,
            constraint=constraint,
            synchronization=synchronization,
            aggregation=aggregation,
        )
    if scope.store is not None:
        scope.store.variables_by_name[name] = variable
    if regularizer is not None and has_explicit_graph():
        penalty = regularizer(variable)
        if penalty is not None:
            get_default_graph().add_to_collection("regularization_losses", penalty)
    elif regularizer is not None and scope.store is not None:
        scope.store.regularizers[name] = lambda: regularizer(variable)
    return variable


def _needs_no_arguments(function: Callable[..., object]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return all(
        p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters
    )


def get_local_variable(name: str, *args: Any, **kwargs: Any) -> Variable:
    """Call `get_variable` for a variable that is not trained, in the collection of local variables."""
    names = ["local_variables", *(kwargs.pop("collections", None) or ())]
    return get_variable(name, *args, **kwargs | {"trainable": False, "collections": names})


def make_template(
    name_: str,
    func_: Callable[..., Any],
    create_scope_now_: bool = False,
    unique_name_: str | None = None,
    custom_getter_: Callable[..., Variable] | None = None,
    **kwargs: Any,
) -> Template:
    """Return a function that creates variables at its first call, and reuses them at further calls.

    Args:
      name_: Scope of the variables.
      func_: Function that calls `get_variable`.
      create_scope_now_: Whether the scope is created now instead of at the first call.
      unique_name_: Scope of the variables instead of `name_`.
      custom_getter_: See `variable_scope`.
      **kwargs: Arguments of `func_`.

    In a method that tracks variables, its object owns the variables.
    """
    template = Template(name_, func_, unique_name_, custom_getter_, kwargs)
    if create_scope_now_:
        with template.open_scope():
            pass
    return template


class Template:
    """Function that creates variables once for all of its calls; see `make_template`."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        unique_name: str | None,
        custom_getter: Callable[..., Variable] | None,
        arguments: dict[str, Any],
    ) -> None:
        functools.update_wrapper(self, function)
        self._name, self._function, self._arguments = name, function, arguments
        self._unique_name, self._getter = unique_name, custom_getter
        self._store = VariableStore()
        self._scope: VariableScope | None = None

    @contextlib.contextmanager
    def open_scope(self) -> Iterator[None]:
        """Enter the scope of the variables."""
        known = self._scope if has_explicit_graph() else None
        with variable_scope(
            known or self._unique_name, self._name, custom_getter=self._getter
        ) as scope:
            self._scope = self._scope or scope
            scope.reuse = AUTO_REUSE
            if not has_explicit_graph():
                scope.store = scope.store or self._store
            yield

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with these arguments, and those of `make_template`."""
        with self.open_scope():
            return self._function(*args, **{**self._arguments, **kwargs})

    @property
    def variable_scope(self) -> VariableScope | None:
        """Return the scope, or None before the first call."""
        return self._scope

    @property
    def name(self) -> str:
        """Return the name of the scope."""
        return self._scope.name if self._scope else self._name

    @property
    def variables(self) -> list[Any]:
        """Return all variables that the function uses."""
        return [*self.global_variables, *self.local_variables]

    @property
    def global_variables(self) -> list[Any]:
        """Return the global variables that the function uses."""
        return self._list_variables("variables")

    @property
    def local_variables(self) -> list[Any]:
        """Return the local variables that the function uses."""
        return self._scope.local_variables() if self._scope and has_explicit_graph() else []

    @property
    def trainable_variables(self) -> list[Any]:
        """Return the trainable variables that the function uses."""
        return [v for v in self._list_variables("trainable_variables") if v.trainable]

    @property
    def weights(self) -> list[Any]:
        """Return `variables`."""
        return self.variables

    @property
    def trainable_weights(self) -> list[Any]:
        """Return `trainable_variables`."""
        return self.trainable_variables

    @property
    def non_trainable_variables(self) -> list[Any]:
        """Return the variables that are not trainable."""
        return [v for v in self.variables if not v.trainable]

    def _list_variables(self, collection: str) -> list[Any]:
        if self._scope is not None and has_explicit_graph():
            return self._scope.get_collection(collection)
        return list(self._store.variables_by_name.values())


def _make_scatter(method: str) -> Callable[..., Variable]:
    sparse = not method.startswith("scatter_nd")

    def scatter(
        ref: Variable,
        indices: TensorLike,
        updates: TensorLike,
        use_locking: bool = False,
        name: str | None = None,
    ) -> Variable:
        if sparse:
            rows = tf.convert_to_tensor(indices)
            values = tf.cast(updates, ref.dtype)
            values = tf.broadcast_to(values, tf.concat([tf.shape(rows), tf.shape(ref)[1:]], 0))
            values = tf.reshape(values, tf.concat([[-1], tf.shape(ref)[1:]], 0))
            getattr(ref, method)(IndexedSlices(values, tf.reshape(rows, [-1])))
        else:
            getattr(ref, method)(indices, updates)
        return ref

    scatter.__name__ = scatter.__qualname__ = method
    scatter.__doc__ = (
        f"Call `ref.{method}` with rows and their values; the other arguments are ignored."
    )
    return scatter


scatter_add, scatter_sub, scatter_update, scatter_mul, scatter_div, scatter_max, scatter_min = (
    _make_scatter(f"scatter_{n}") for n in ("add", "sub", "update", "mul", "div", "max", "min")
)
scatter_nd_add, scatter_nd_sub, scatter_nd_update = (
    _make_scatter(f"scatter_nd_{n}") for n in ("add", "sub", "update")
)


def batch_scatter_update(
    ref: Variable,
    indices: TensorLike,
    updates: TensorLike,
    use_locking: bool = True,
    name: str | None = None,
) -> Variable:
    """Call `ref.batch_scatter_update` with rows and their values; the other arguments are ignored."""
    return ref.batch_scatter_update(
        IndexedSlices(tf.convert_to_tensor(updates), tf.convert_to_tensor(indices))
    )


def count_up_to(ref: Variable, limit: int, name: str | None = None) -> Tensor:
    """Return the value of an integer variable and increment it.

    Raises:
      OutOfRangeError: If the value is the limit.
    """
    if has_explicit_graph():
        counted: Tensor = get_default_graph().record(count_up_to, (ref, limit), name=name)
        return counted
    value = tf.identity(ref)
    if int(value) >= limit:
        raise tf.errors.OutOfRangeError(None, None, f"Reached limit of {limit}")
    ref.assign_add(1)
    return value


def _make_initializer(class_name: str, v1_name: str, **defaults: Any) -> type:
    """Return a Keras initializer that also takes a default dtype."""
    base = getattr(tf.keras.initializers, class_name)
    parameters = [*inspect.signature(base).parameters, "dtype", "verify_shape"]

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        arguments = {**defaults, **dict(zip(parameters, args, strict=False)), **kwargs}
        self.dtype = tf.as_dtype(arguments.pop("dtype", "float32"))
        arguments.pop("verify_shape", None)
        if self.dtype in (tf.string, tf.bool) and "seed" in parameters:
            raise ValueError(
                f"{v1_name}: Argument `dtype` is expected to be floating point. Received: {self.dtype}."
            )
        base.__init__(self, **arguments)

    def __call__(
        self: Any,
        shape: ShapeLike,
        dtype: DTypeLike | None = None,
        partition_info: object = None,
        **kwargs: Any,
    ) -> Tensor:
        return base.__call__(self, shape, dtype=dtype or self.dtype, **kwargs)

    doc = f"`tf.keras.initializers.{class_name}` with a default dtype."
    return type(v1_name, (base,), {"__init__": __init__, "__call__": __call__, "__doc__": doc})


class constant_initializer(_make_initializer("Constant", "constant_initializer")):  # type: ignore[misc]
    """`tf.keras.initializers.Constant` with a default dtype; the last of too few values fills the rest of the shape."""

    def __call__(
        self,
        shape: ShapeLike,
        dtype: DTypeLike | None = None,
        partition_info: object = None,
        **kwargs: Any,
    ) -> Tensor:
        """Return the values of a variable."""
        values = np.asarray(self.value).ravel()
        rest = (TensorShape(shape).num_elements() or 0) - values.size
        if np.ndim(self.value) == 0 or values.size == 0 or rest <= 0:
            result: Tensor = super().__call__(shape, dtype, **kwargs)
            return result
        values = np.pad(values, (0, rest), "edge").reshape(tuple(TensorShape(shape)))
        return tf.constant(values, dtype or self.dtype)


glorot_normal_initializer = _make_initializer("GlorotNormal", "glorot_normal_initializer")
glorot_uniform_initializer = _make_initializer("GlorotUniform", "glorot_uniform_initializer")
ones_initializer = _make_initializer("Ones", "ones_initializer")
orthogonal_initializer = _make_initializer("Orthogonal", "orthogonal_initializer")
random_normal_initializer = _make_initializer(
    "RandomNormal", "random_normal_initializer", stddev=1.0
)
random_uniform_initializer = _make_initializer(
    "RandomUniform", "random_uniform_initializer", minval=0.0, maxval=1.0
)
truncated_normal_initializer = _make_initializer(
    "TruncatedNormal", "truncated_normal_initializer", stddev=1.0
)
variance_scaling_initializer = _make_initializer("VarianceScaling", "variance_scaling_initializer")
zeros_initializer = _make_initializer("Zeros", "zeros_initializer")


class uniform_unit_scaling_initializer:
    """Initializer with uniform values of the variance `factor^2 / size of the input`.

    Args:
      factor: Factor of the values.
      seed: Seed.
      dtype: Default dtype.
    """

    def __init__(
        self, factor: float = 1.0, seed: int | None = None, dtype: DTypeLike = "float32"
    ) -> None:
        self.factor, self.seed, self.dtype = factor, seed, dtype

    def __call__(
        self, shape: ShapeLike, dtype: DTypeLike | None = None, partition_info: object = None
    ) -> Tensor:
        """Return the values of a variable."""
        sizes = list(tf.TensorShape(shape))
        size = 1.0
        for n in sizes[:-1]:
            size *= float(n)
        limit = (3 / max(1.0, size)) ** 0.5 * self.factor
        return tf.random.uniform(sizes, -limit, limit, dtype or self.dtype, self.seed)

    def get_config(self) -> dict[str, Any]:
        """Return the configuration."""
        return {"factor": self.factor, "seed": self.seed, "dtype": tf.as_dtype(self.dtype).name}


def no_regularizer(_: object) -> None:
    """Return None: no regularization."""


_Partitioner = Callable[..., Sequence[int]]


def _make_partitioner(axis: int, count_shards: Callable[[TensorShape, DType], int]) -> _Partitioner:
    def partition(shape: ShapeLike, dtype: DTypeLike = "float32", **_: object) -> list[int]:
        sizes = TensorShape(shape)
        shards = [1] * (sizes.rank or 0)
        shards[axis] = max(1, min(sizes[axis] or 1, count_shards(sizes, tf.as_dtype(dtype))))
        return shards

    return partition


def fixed_size_partitioner(num_shards: int, axis: int = 0) -> _Partitioner:
    """Return a function that splits an axis into a fixed number of parts."""
    return _make_partitioner(axis, lambda shape, dtype: num_shards)


def _get_item_bytes(dtype: DType, bytes_per_string_element: int) -> int:
    return bytes_per_string_element if dtype == tf.string else dtype.size


def variable_axis_size_partitioner(
    max_shard_bytes: int,
    axis: int = 0,
    bytes_per_string_element: int = 16,
    max_shards: int | None = None,
) -> _Partitioner:
    """Return a function that splits an axis into parts of at most `max_shard_bytes` bytes.

    Raises:
      ValueError: If a number is not positive.
    """
    if (
        max_shard_bytes < 1
        or bytes_per_string_element < 1
        or (max_shards is not None and max_shards < 1)
    ):
        raise ValueError(
            "max_shard_bytes, bytes_per_string_element and max_shards must be positive."
        )

    def count(shape: TensorShape, dtype: DType) -> int:
        slice_bytes = (
            (shape.num_elements() or 0)
            // (shape[axis] or 1)
            * _get_item_bytes(dtype, bytes_per_string_element)
        )
        slices_per_shard = max(1, max_shard_bytes // slice_bytes)
        num_shards = -(-(shape[axis] or 1) // slices_per_shard)
        return num_shards if max_shards is None else min(max_shards, num_shards)

    return _make_partitioner(axis, count)


def min_max_variable_partitioner(
    max_partitions: int = 1,
    axis: int = 0,
    min_slice_size: int = 256 << 10,
    bytes_per_string_element: int = 16,
) -> _Partitioner:
    """Return a function that splits an axis into parts of at least `min_slice_size` bytes."""

    def count(shape: TensorShape, dtype: DType) -> int:
        total = (shape.num_elements() or 0) * _get_item_bytes(dtype, bytes_per_string_element)
        return max(1, min(max_partitions, -(-total // min_slice_size)))

    return _make_partitioner(axis, count)

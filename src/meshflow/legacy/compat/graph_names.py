"""Names of TensorFlow 1's graphs: placeholders, initializers, collections; nothing is queued."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor, SparseTensorValue  # noqa: F401 - a public name
from meshflow.core.values.dimensions import Dimension  # noqa: F401 - a public name
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import StrPath
from meshflow.io import protos
from meshflow.io.records import read_records
from meshflow.legacy.compat.public_package import tf
from meshflow.legacy.graph.graph import get_default_graph, has_explicit_graph
from meshflow.legacy.graph.operations import Operation, SymbolicTensor

_KEYS = (
    "ACTIVATIONS ASSET_FILEPATHS BIASES CONCATENATED_VARIABLES COND_CONTEXT EVAL_STEP GLOBAL_STEP GLOBAL_VARIABLES "
    "INIT_OP LOCAL_INIT_OP LOCAL_RESOURCES LOCAL_VARIABLES LOSSES METRIC_VARIABLES MODEL_VARIABLES "
    "MOVING_AVERAGE_VARIABLES QUEUE_RUNNERS READY_FOR_LOCAL_INIT_OP READY_OP REGULARIZATION_LOSSES RESOURCES SAVEABLE_OBJECTS "
    "SAVERS SUMMARIES SUMMARY_OP TABLE_INITIALIZERS TRAINABLE_RESOURCE_VARIABLES TRAINABLE_VARIABLES TRAIN_OP "
    "UPDATE_OPS VARIABLES WEIGHTS WHILE_CONTEXT"
)
_KEY_VALUES = {"GLOBAL_VARIABLES": "variables", "TABLE_INITIALIZERS": "table_initializer"}


class GraphKeys:
    """Names of collections."""


for _key in _KEYS.split():
    setattr(GraphKeys, _key, _KEY_VALUES.get(_key, _key.lower()))


class name_scope(tf.name_scope):
    """A context manager that prefixes names; see `tf.name_scope`.

    Args:
      name: The prefix.
      default_name: The prefix if `name` is None.
      values: Ignored: values belong to no graph.
      skip_on_eager: Ignored: TensorFlow's private function has this argument.
    """

    def __init__(
        self,
        name: str | None,
        default_name: str | None = None,
        values: object = None,
        skip_on_eager: bool = True,
    ) -> None:
        super().__init__((default_name or "") if name is None else name)


class _VariableType(type):
    """Type of `Variable`; variables are instances of `tf.Variable`."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Create a variable, or an instance of a subclass with the parameters of the subclass."""
        return (_create_variable if cls is Variable else super().__call__)(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return cls.__subclasscheck__(type(instance))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return (
            issubclass(subclass, tf.Variable)
            if cls is Variable
            else super().__subclasscheck__(subclass)
        )


def _create_variable(
    initial_value: Any = None,
    trainable: bool | None = None,
    collections: Iterable[object] | None = None,
    validate_shape: bool = True,
    caching_device: object = None,
    name: str | None = None,
    variable_def: object = None,
    dtype: DTypeLike | None = None,
    expected_shape: object = None,
    import_scope: object = None,
    constraint: Callable[[Any], Any] | None = None,
    use_resource: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Create a variable; `expected_shape` and `use_resource` have no effect."""
    kwargs |= {"validate_shape": validate_shape, "name": name, "constraint": constraint}
    with get_default_graph().set_variable_collections(collections):
        return tf.Variable(initial_value, trainable, dtype=dtype, **kwargs)


class Variable(tf.Variable, metaclass=_VariableType):
    """`tf.Variable` with the parameters of version 1."""


def _make_list_function(key: str) -> Callable[..., list[Any]]:
    """Return the function that lists the variables of a collection."""

    def function(scope: str | None = None) -> list[Any]:
        return get_default_graph().get_collection(key, scope)

    function.__name__ = function.__qualname__ = "global_variables" if key == "variables" else key
    function.__doc__ = f"""Return the variables that the collection {key!r} of the default graph has.

    Variables that are created in a block of a `tf.Graph` belong to its collections. Other variables of eager execution
    belong only to the objects that create them.

    Args:
      scope: Regular expression; only variables with names that start with a match are returned.

    Example:
      >>> import meshflow as tf
      >>> with tf.Graph().as_default():
      ...     weight = tf.Variable(1.0, name="weight")
      ...     [v.name for v in tf.compat.v1.global_variables()]
      ['weight:0']
    """
    return function


all_variables = global_variables = _make_list_function("variables")
local_variables = _make_list_function("local_variables")
model_variables = _make_list_function("model_variables")
moving_average_variables = _make_list_function("moving_average_variables")
trainable_variables = _make_list_function("trainable_variables")


def get_collection(key: object, scope: str | None = None) -> list[Any]:
    """Return the values of a collection of the default graph; see `tf.Graph.get_collection`."""
    return get_default_graph().get_collection(key, scope)


def get_collection_ref(key: object) -> list[Any]:
    """Return the list of the values of a collection of the default graph."""
    return get_default_graph().get_collection_ref(key)


def add_to_collection(name: object, value: object) -> None:
    """Add a value to a collection of the default graph."""
    get_default_graph().add_to_collection(name, value)


def add_to_collections(names: Iterable[object], value: object) -> None:
    """Add a value to each of several collections of the default graph."""
    get_default_graph().add_to_collections(names, value)


def reset_default_graph() -> None:
    """Restart the numbers of automatic names, and remove all collections."""
    get_default_graph().reset()
    tf.keras.backend.reset_uids()


@contextlib.contextmanager
def colocate_with(op: object, ignore_existing: bool = False) -> Iterator[None]:
    """Run a block; XLA chooses the devices of values."""
    yield


def placeholder(dtype: DTypeLike, shape: ShapeLike = None, name: str | None = None) -> Tensor:
    """Create a tensor that `Session.run` must feed.

    Args:
      dtype: Dtype.
      shape: Shape, with None for unknown sizes; None for an unknown rank.
      name: Name.

    Raises:
      RuntimeError: Outside of a graph.

    Example:
      >>> import meshflow as tf
      >>> with tf.Graph().as_default():
      ...     tf.compat.v1.placeholder(tf.float32, [None, 3], name="x")
      <tf.Tensor 'x:0' shape=(?, 3) dtype=float32>
    """
    _check_in_graph("placeholder")
    return get_default_graph().make_placeholder(dtype, shape, name)


def sparse_placeholder(
    dtype: DTypeLike, shape: ShapeLike = None, name: str | None = None
) -> SparseTensor:
    """Create a sparse tensor that `Session.run` must feed, with a `SparseTensorValue` or its three arrays.

    Args:
      dtype: Dtype of the values.
      shape: Shape, with None for unknown sizes; None for an unknown rank.
      name: Prefix of the names of the three tensors.

    Raises:
      RuntimeError: Outside of a graph.
    """
    _check_in_graph("sparse_placeholder")
    graph, sizes = get_default_graph(), tf.TensorShape(shape)
    prefix = f"{name}/" if name else ""
    indices = graph.make_placeholder(tf.int64, [None, sizes.rank], f"{prefix}indices")
    values = graph.make_placeholder(dtype, [None], f"{prefix}values")
    if sizes.is_fully_defined():
        # A constant makes the shape static, and can be fed, too.
        dense_shape = tf.constant(sizes.as_list(), tf.int64, name=f"{prefix}shape")
    else:
        dense_shape = graph.make_placeholder(tf.int64, [sizes.rank], f"{prefix}shape")
    return SparseTensor(indices, values, dense_shape)


def placeholder_with_default(
    input: TensorLike, shape: ShapeLike, name: str | None = None
) -> Tensor:
    """Return a tensor with a default value, which a session may replace by one of another shape.

    Args:
      input: The default value.
      shape: Shape of all values, with None for unknown sizes.
      name: Name.
    """
    value = tf.convert_to_tensor(input)
    if not has_explicit_graph():
        return value
    graph, sizes = get_default_graph(), tf.TensorShape(shape)
    if not value.shape.is_compatible_with(sizes):
        raise ValueError(f"Shapes {value.shape} and {sizes} are incompatible: input and shape.")
    operation = Operation(
        graph,
        graph.name_operation(name or "PlaceholderWithDefault"),
        "PlaceholderWithDefault",
        lambda run: [run.read(value)],
        [value] if isinstance(value, SymbolicTensor) else [],
    )
    return operation.add_output(tf.TensorSpec(sizes, value.dtype))


def _check_in_graph(name: str) -> None:
    if not has_explicit_graph():
        raise RuntimeError(
            f"tf.compat.v1.{name}() is not compatible with eager execution: use it in a block of a tf.Graph, or after "
            "tf.compat.v1.disable_eager_execution()."
        )


def variables_initializer(var_list: Iterable[Any], name: str = "init") -> Operation | None:
    """Return the operation that sets the initial values of variables; None in eager execution.

    Args:
      var_list: Variables.
      name: Name of the operation.
    """
    if not has_explicit_graph():
        return None
    return get_default_graph().group([v.initializer for v in var_list], name)


def global_variables_initializer() -> Operation | None:
    """Return the operation that sets the initial values of all global variables."""
    return variables_initializer(global_variables())


def local_variables_initializer() -> Operation | None:
    """Return the operation that sets the initial values of all local variables."""
    return variables_initializer(local_variables())


def tables_initializer(name: str = "init_all_tables") -> Operation | None:
    """Return an operation without effect: tables are initialized when they are created."""
    return variables_initializer([], name)


initialize_all_variables = global_variables_initializer
initialize_local_variables = local_variables_initializer
initialize_variables = variables_initializer
initialize_all_tables = tables_initializer


def is_variable_initialized(variable: Any) -> Tensor:
    """Return whether a variable has a value, as a tensor; always True in eager execution."""
    return variable.is_initialized()


def report_uninitialized_variables(
    var_list: Iterable[Any] | None = None, name: str = "report_uninitialized_variables"
) -> Tensor:
    """Return the names of the variables without a value; none in eager execution.

    Args:
      var_list: Variables; by default all global and local ones.
      name: Name of the operation.
    """
    if not has_explicit_graph():
        return tf.constant([], tf.string)
    variables = [*global_variables(), *local_variables()] if var_list is None else [*var_list]

    def list_names() -> Tensor:
        names = [v.op.name for v in variables if not v.is_set]
        return tf.convert_to_tensor(np.array(names, object).reshape([-1]))

    tensor: Tensor = get_default_graph().record(list_names, name=name)
    tensor.set_shape([None])
    return tensor


def assert_variables_initialized(var_list: Iterable[Any] | None = None) -> Tensor | None:
    """Return an operation that fails for variables without a value; None in eager execution."""
    if not has_explicit_graph():
        return None
    variables = global_variables() if var_list is None else [*var_list]
    return tf.group(*[v.read_value() for v in variables])


def summary_iterator(path: StrPath) -> Iterator[Any]:
    """Yield the events of an event file.

    Args:
      path: Path of the file.
    """
    return (protos.Event.FromString(record) for record in read_records(path))


__all__ = [
    *(
        "Dimension",
        "GraphKeys",
        "SparseTensorValue",
        "Variable",
        "add_to_collection",
    ),
    *("add_to_collections", "all_variables", "assert_variables_initialized", "colocate_with"),
    *("get_collection", "get_collection_ref", "get_default_graph", "global_variables"),
    *("local_variables", "model_variables", "moving_average_variables", "trainable_variables"),
    *("is_variable_initialized", "name_scope", "placeholder", "placeholder_with_default"),
    *("global_variables_initializer", "initialize_all_tables", "initialize_all_variables"),
    *("initialize_local_variables", "initialize_variables", "local_variables_initializer"),
    *("sparse_placeholder", "tables_initializer", "variables_initializer"),
    "report_uninitialized_variables",
    *("reset_default_graph", "summary_iterator"),
]

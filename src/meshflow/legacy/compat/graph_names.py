"""Names of TensorFlow 1's graphs that mean something in eager execution: collections of a graph, and nothing is queued."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from meshflow.core.config.graph_mode import get_default_graph
from meshflow.core.dispatch.composite import SparseTensorValue  # noqa: F401 - a public name
from meshflow.core.values.dimensions import Dimension  # noqa: F401 - a public name
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import StrPath
from meshflow.io import protos
from meshflow.io.records import read_records
from meshflow.legacy.compat.public_package import tf

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


def placeholder_with_default(
    input: TensorLike, shape: ShapeLike, name: str | None = None
) -> Tensor:
    """Return the default value, as eager execution does."""
    return tf.convert_to_tensor(input)


def is_variable_initialized(variable: object) -> Tensor:
    """Return True: variables are initialized when they are created."""
    return tf.constant(True)


def report_uninitialized_variables(
    var_list: object = None, name: str = "report_uninitialized_variables"
) -> Tensor:
    """Return an empty tensor of names."""
    return tf.constant([], tf.string)


def assert_variables_initialized(var_list: object = None) -> None:
    """Do nothing: variables are initialized when they are created."""


def summary_iterator(path: StrPath) -> Iterator[Any]:
    """Yield the events of an event file.

    Args:
      path: Path of the file.
    """
    return (protos.Event.FromString(record) for record in read_records(path))


class FileWriter:
    """Writer of event files, which is not compatible with eager execution.

    Raises:
      RuntimeError: Always.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        _raise_incompatible()


class FileWriterCache:
    """Cache of `FileWriter`s, which are not compatible with eager execution."""

    @staticmethod
    def get(logdir: StrPath) -> NoReturn:
        """Raise a RuntimeError."""
        _raise_incompatible()

    @staticmethod
    def clear() -> None:
        """Do nothing."""


def _raise_incompatible() -> NoReturn:
    raise RuntimeError(
        "tf.summary.FileWriter is not compatible with eager execution. Use `tf.summary.create_file_writer`."
    )


__all__ = [
    *(
        "Dimension",
        "FileWriter",
        "FileWriterCache",
        "GraphKeys",
        "SparseTensorValue",
        "Variable",
        "add_to_collection",
    ),
    *("add_to_collections", "all_variables", "assert_variables_initialized", "colocate_with"),
    *("get_collection", "get_collection_ref", "get_default_graph", "global_variables"),
    *("local_variables", "model_variables", "moving_average_variables", "trainable_variables"),
    *("is_variable_initialized", "name_scope", "placeholder_with_default"),
    "report_uninitialized_variables",
    *("reset_default_graph", "summary_iterator"),
]

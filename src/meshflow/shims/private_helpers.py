"""Small functions of TensorFlow's private modules that libraries call, many of them while they are imported."""

from __future__ import annotations

import abc
import contextlib
import inspect
import uuid
from collections import namedtuple
from collections.abc import (
    Callable,
    Iterable,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from meshflow.core.runtime.context import context as runtime_context
from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.values import composite
from meshflow.core.values.bounded_spec import BoundedTensorSpec as BoundedTensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree
from meshflow.shims.graph_test_modes import (  # noqa: F401 - private names of TensorFlow
    deprecated_graph_mode_only,
    run_all_in_deprecated_graph_mode_only,
    run_all_in_graph_and_eager_modes,
    run_deprecated_v1,
    run_in_graph_and_eager_modes,
    run_v1_only,
)
from meshflow.shims.private_structures import (  # noqa: F401 - private names of TensorFlow
    IF_SHALLOW_IS_SEQ_INPUT_MUST_BE_SEQ,
    SHALLOW_TREE_HAS_INVALID_KEYS,
    STRUCTURES_HAVE_MISMATCHING_LENGTHS,
    STRUCTURES_HAVE_MISMATCHING_TYPES,
    ListWrapper,
    NoDependency,
    ObjectIdentityDictionary,
    ObjectIdentitySet,
    _DictWrapper,
    _is_namedtuple,
    _sequence_like,
    _TupleWrapper,
    assert_shallow_structure,
    convert_variables_to_tensors,
    flatten_dict_items,
    flatten_up_to,
    flatten_with_joined_string_paths,
    flatten_with_tuple_paths,
    flatten_with_tuple_paths_up_to,
    get_traverse_shallow_structure,
    is_attrs,
    is_mapping,
    is_namedtuple,
    is_nested,
    is_nested_or_composite,
    is_sequence,
    is_sequence_or_composite,
    list_to_tuple,
    map_structure_up_to,
    map_structure_with_paths,
    map_structure_with_tuple_paths,
    map_structure_with_tuple_paths_up_to,
    sequence_like,
    unwrap_value,
    wrap_or_unwrap,
    yield_flat_paths,
)

_T = TypeVar("_T")

tf: Any = get_public_package()
_internal = tf.__internal__

# ---- public names of `tf.__internal__` ------------------------------------------------------

make_decorator, unwrap = _internal.decorator.make_decorator, _internal.decorator.unwrap
eager_mode, smart_cond = _internal.eager_context.eager_mode, _internal.smart_cond.smart_cond
is_resource_variable = _internal.ops.is_resource_variable
broadcast_weights = _internal.ops.broadcast_weights
assign_moving_average = _internal.train.assign_moving_average
add_dispatch_support = _internal.dispatch.add_dispatch_support

# ---- decorators -----------------------------------------------------------------------------


def ignore_decorator(*args: Any, **kwargs: object) -> PyTree:
    """Return the decorated function or class unchanged; with other arguments, return such a decorator."""
    is_target = len(args) == 1 and (inspect.isfunction(args[0]) or inspect.isclass(args[0]))
    return args[0] if is_target and not kwargs else lambda target: target


# Documentation and test modes of TensorFlow's own modules.
tf_export = keras_export = estimator_export = deprecated = deprecated_args = ignore_decorator
deprecated_arg_values = deprecated_endpoints = do_not_generate_docs = ignore_decorator
do_not_doc_inheritable = do_not_doc_in_subclasses = for_subclass_implementers = ignore_decorator
doc_private = doc_in_current_and_subclasses = ignore_decorator
no_automatic_dependency_tracking = ignore_decorator
no_automatic_dependency_tracking_scope = contextlib.nullcontext
run_v2_only = run_with_all_model_types = run_all_keras_modes = ignore_decorator
make_composite_tensor = dispatch_for_types = ignore_decorator
register_dense_tensor_like_type = ignore_decorator
disable_xla = disable_all_xla = enable_control_flow_v2 = also_run_as_tf_function = ignore_decorator
disable_tfrt = build_as_function_and_v1_graph = ignore_decorator
disable_cudnn_autotune = ignore_decorator


def remove_undocumented(module_name: str, *args: object, **kwargs: object) -> None:
    """Keep all names of a module."""


def deprecated_alias(deprecated_name: str, name: str, func_or_class: Any, **_: object) -> PyTree:
    """Return a function or class, which also has an old name."""
    return func_or_class


def getargspec(func: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the names, variable names and defaults of the positional parameters of a function."""
    spec = getfullargspec(func)
    return _ArgSpec(spec.args, spec.varargs, spec.varkw, spec.defaults)


_ArgSpec = namedtuple("_ArgSpec", "args varargs keywords defaults")


def getfullargspec(func: Callable[..., Any]) -> inspect.FullArgSpec:
    """Return the parameters of a function without TensorFlow's decorators; those of TensorFlow have no annotations."""
    function = inspect.unwrap(
        func, stop=lambda f: not (_is_public(f) or hasattr(f, "_tf_decorator"))
    )
    spec = inspect.getfullargspec(function)
    return spec._replace(annotations={}) if _is_public(function) else spec


def _is_public(function: object) -> bool:
    """Check whether a function, or the class of a callable, is a part of TensorFlow."""
    owners = (function, type(function))
    return any(str(getattr(o, "__module__", "")).startswith(f"{tf.__name__}.") for o in owners)


def getcallargs(func: Callable[..., Any], *args: object, **kwargs: object) -> dict[str, object]:
    """Return the arguments of a call by name, also those that the function does not accept, and `self`."""
    spec = getfullargspec(func)
    positional = (func.__self__, *args) if inspect.ismethod(func) else args
    defaults = spec.defaults or ()
    named = dict(zip(spec.args[len(spec.args) - len(defaults) :], defaults, strict=True))
    remaining = [name for name in spec.args if name not in kwargs]
    return (
        named
        | (spec.kwonlydefaults or {})
        | kwargs
        | dict(zip(remaining, positional, strict=False))
    )


def fn_args(fn: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters of a function, without `self` of a method."""
    return tuple(inspect.signature(fn).parameters)


# ---- registry of specs, which files refer to by their names -----------------------------------------

_NAME_TO_TYPE_SPEC = composite.named_spec_classes
_TYPE_SPEC_TO_NAME: dict[type, str] = {}


def register(name: str) -> Callable[[type[_T]], type[_T]]:
    """Return a decorator that registers the class of a spec under its name in files."""

    def decorate(cls: type[_T]) -> type[_T]:
        registered = _NAME_TO_TYPE_SPEC.setdefault(name, cls)  # type: ignore[arg-type]
        if registered is not cls:
            raise ValueError(f"Name {name} has already been registered for class {registered}.")
        _TYPE_SPEC_TO_NAME[cls] = name
        return cls

    return decorate


def lookup(name: str) -> type:
    """Return the class of a spec that has a name in files."""
    if name not in _NAME_TO_TYPE_SPEC:
        raise ValueError(f"No TypeSpec has been registered with name {name!r}")
    return _NAME_TO_TYPE_SPEC[name]


def get_name(cls: type) -> str:
    """Return the name of the class of a spec in files."""
    name = composite.find_spec_name(cls)
    if name is None:
        raise ValueError(f"TypeSpec {cls.__name__} has not been registered.")
    return name


# ---- devices and modes ----------------------------------------------------------------------


@dataclass(frozen=True)
class DeviceAttributes:
    """A device in the result of `device_lib.list_local_devices`.

    Args:
      name: Name of the device, for example `/device:GPU:0`.
      device_type: Type of the device, for example `GPU`.
      memory_limit: Bytes of memory, or 0 if unknown.
      physical_device_desc: Description of an accelerator.
    """

    name: str
    device_type: str
    memory_limit: int
    physical_device_desc: str


def list_local_devices(session_config: object = None) -> list[DeviceAttributes]:
    """Return the attributes of the devices of this process."""
    return [_describe_device(device) for device in tf.config.list_logical_devices()]


def _describe_device(device: Any) -> DeviceAttributes:
    index = int(device.name.rpartition(":")[2])
    limit, description = 0, ""
    if device.device_type != "CPU":
        physical = tf.config.list_physical_devices(device.device_type)[index]
        details = tf.config.experimental.get_device_details(physical)
        description = f"device: {index}, name: {details.get('device_name', device.device_type)}"
    return DeviceAttributes(
        f"/device:{device.device_type}:{index}", device.device_type, limit, description
    )


def count_gpus() -> int:
    """Return the number of GPUs."""
    return len(tf.config.list_logical_devices("GPU"))


class EagerContext:
    """The result of `tensorflow.python.eager.context.context()`; it also has the functions of `tf.config`."""

    def __getattr__(self, name: str) -> PyTree:
        for namespace in (tf.config, tf.config.experimental):
            if hasattr(namespace, name):
                return getattr(namespace, name)
        raise AttributeError(
            f"The eager context has no member {name!r}; see tf.config and tf.config.experimental."
        )

    executing_eagerly = staticmethod(tf.executing_eagerly)
    list_logical_devices = staticmethod(tf.config.list_logical_devices)
    list_physical_devices = staticmethod(tf.config.list_physical_devices)
    num_gpus = staticmethod(count_gpus)
    get_optimizer_experimental_options = staticmethod(tf.config.optimizer.get_experimental_options)
    set_optimizer_experimental_options = staticmethod(tf.config.optimizer.set_experimental_options)

    @property
    def intra_op_parallelism_threads(self) -> int:
        """Number of threads of an op, 0 for the default."""
        return tf.config.threading.get_intra_op_parallelism_threads()

    @property
    def inter_op_parallelism_threads(self) -> int:
        """Number of ops that run at the same time, 0 for the default."""
        return tf.config.threading.get_inter_op_parallelism_threads()

    @property
    def device_spec(self) -> tf.DeviceSpec:
        """Return the device of the innermost `tf.device`; its fields are None if there is none."""
        name = str(runtime_context.device or "")
        return tf.DeviceSpec.from_string(name if name.startswith("/") or not name else f"/{name}")

    @property
    def scope_name(self) -> str:
        """Return the current name scope, which ends with a slash unless it is empty."""
        name = tf.get_current_name_scope()
        return f"{name}/" if name else ""

    def ensure_initialized(self) -> None:
        """Do nothing."""


context = EagerContext
SYNC, ASYNC = 0, 1
_reset_context = _reset_jit_compiler_flags = ensure_initialized = async_wait = async_clear_error = (
    lambda: None
)


def execution_mode(mode: int | None) -> contextlib.AbstractContextManager[object]:
    """Return a context without effect: ops start at once, and their results are awaited when they are read."""
    return contextlib.nullcontext(mode)


executor_scope = execution_mode


def graph_mode() -> contextlib.AbstractContextManager[object]:
    """Return a context with a graph of its own, which records calls."""
    return tf.Graph().as_default()


load_context = contextlib.nullcontext


def get_load_options() -> None:
    """Return None, the options of a model that is being loaded: loaders pass their options themselves."""


class IgnoredMetric:
    """A metric of `tensorflow.python.eager.monitoring`, which measures the use of TensorFlow itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._value: object = 0

    def get_cell(self, *labels: str) -> IgnoredMetric:
        """Return the metric."""
        return self

    def set(self, value: object) -> None:
        """Keep a value, which nothing but `value` reads."""
        self._value = value

    add = increase_by = set

    def value(self) -> object:
        """Return the last value."""
        return self._value


BoolGauge = StringGauge = IntGauge = Counter = Sampler = IgnoredMetric


def install_stack_trace_handler() -> None:
    """Do nothing: Python prints stack traces."""


InstallStackTraceHandler = install_stack_trace_handler


def is_in_xla_context(graph: object = None) -> bool:
    """Return False, because programs need no special code for XLA here."""
    return False


GraphOrParentsInXlaContext = IsInXLAContext = is_in_xla_context
silence = contextlib.nullcontext


ENABLE_CONTROL_FLOW_V2 = True


def atomic_write_string_to_file(filename: str, contents: str, overwrite: bool = True) -> None:
    """Write a file under another name, and rename it when it is complete."""
    temporary = f"{filename}.tmp{uuid.uuid4().hex}"
    with tf.io.gfile.GFile(temporary, "w") as file:
        file.write(contents)
    tf.io.gfile.rename(temporary, filename, overwrite)


build_info = tf.sysconfig.get_build_info()


def read_file_to_string(filename: str, binary_mode: bool = False) -> str | bytes:
    """Return the contents of a file."""
    with tf.io.gfile.GFile(filename, "rb" if binary_mode else "r") as file:
        return file.read()


def write_string_to_file(filename: str, file_content: str | bytes) -> None:
    """Write text or bytes to a file."""
    with tf.io.gfile.GFile(filename, "wb" if isinstance(file_content, bytes) else "w") as file:
        file.write(file_content)


# ---- tensors --------------------------------------------------------------------------------


class CompositeTensorGradient(abc.ABC):
    """Base class of `__composite_gradient__` of extension types, which selects the parts that have gradients."""

    @abc.abstractmethod
    def get_gradient_components(self, value: PyTree) -> PyTree:
        """Return the parts of a value that have gradients."""

    @abc.abstractmethod
    def replace_gradient_components(self, value: PyTree, component_grads: PyTree) -> PyTree:
        """Return a value with gradients as these parts."""


class WithValuesCompositeTensorGradient(CompositeTensorGradient):
    """The gradient of a value is that of its attribute `values`, in a value of the same class."""

    def get_gradient_components(self, value: PyTree) -> PyTree:
        """Return the attribute `values`."""
        return value.values

    def replace_gradient_components(self, value: PyTree, component_grads: PyTree) -> PyTree:
        """Return a value with another attribute `values`."""
        return value.with_values(component_grads)


def smart_constant_value(pred: Any) -> bool | None:
    """Return the value of a condition, or None if it is unknown during tracing."""
    value = tf.get_static_value(pred) if tf.is_tensor(pred) else pred
    return None if value is None else bool(value)


constant_value = smart_constant_value


def numpy_text(tensor: Tensor, is_repr: bool = False) -> str:
    """Return the value of a tensor as text."""
    return (repr if is_repr else str)(tensor.numpy())


def pfor(loop_fn: Callable[[Tensor], PyTree], iters: int | Tensor, **_: object) -> PyTree:
    """Call a function with each index and stack the results, in one vectorized program."""
    return tf.vectorized_map(loop_fn, tf.range(iters))


def for_loop(
    loop_fn: Callable[[Tensor], PyTree], loop_fn_dtypes: PyTree, iters: int | Tensor, **_: object
) -> PyTree:
    """Call a function with one index after another and stack the results, which have given dtypes."""
    return tf.map_fn(loop_fn, tf.range(iters), fn_output_signature=loop_fn_dtypes)


def with_dependencies(
    dependencies: Iterable[object], output_tensor: TensorLike, name: str | None = None
) -> Tensor:
    """Return a tensor after other operations."""
    with tf.control_dependencies(dependencies):
        return tf.identity(output_tensor, name)


def unknown_shape(rank: int | None = None) -> tf.TensorShape:
    """Return a shape of unknown sizes."""
    return tf.TensorShape(None if rank is None else [None] * rank)


def RaggedTensorType(
    dtype: Any, ragged_rank: int, row_splits_dtype: Any = "int64"
) -> tf.RaggedTensorSpec:
    """Return the spec of results of the function of `tf.map_fn`, for the type of all results."""
    return tf.RaggedTensorSpec(None, dtype, ragged_rank - 1, row_splits_dtype)


def to_dense_tensor(rt_input: Any, default_value: Any = None, name: str | None = None) -> Tensor:
    """Return the dense tensor of a ragged one, or a tensor unchanged."""
    return rt_input.to_tensor(default_value) if is_ragged(rt_input) else rt_input


def is_ragged(value: object) -> bool:
    """Return whether a value is a `RaggedTensor` or its value as arrays."""
    return isinstance(value, (tf.RaggedTensor, tf.compat.v1.ragged.RaggedTensorValue))


def is_variable(value: object) -> bool:
    """Return whether a value is a `tf.Variable`."""
    return isinstance(value, tf.Variable)


def is_sparse(tensor: object) -> bool:
    """Return whether a value is a `SparseTensor` or its value as arrays."""
    return isinstance(tensor, tf.SparseTensor | tf.compat.v1.SparseTensorValue)


def constant_value_as_shape(tensor: Any) -> tf.TensorShape:
    """Return the shape in a tensor; sizes that are unknown during tracing are None."""
    value = tf.get_static_value(tensor)
    return tf.TensorShape([None] * tensor.shape[0] if value is None else value.tolist())


class Convolution:
    """Callable that convolves inputs with a filter; layers create it while they are built.

    Args:
      input_shape: Ignored.
      filter_shape: Ignored.
      padding: `VALID` or `SAME`.
      strides: Strides of the spatial dimensions.
      dilation_rate: Dilations of the spatial dimensions.
      name: Ignored.
      data_format: Order of the dimensions, for example `NHWC`.
    """

    def __init__(
        self, input_shape: object, filter_shape: object, padding: str, strides: Sequence[int] | None = None,
        dilation_rate: Sequence[int] | None = None, name: str | None = None, data_format: str | None = None,
    ) -> None:  # fmt: skip
        self._options: dict[str, object] = dict(padding=padding, data_format=data_format)
        self._options |= {"strides": strides} if strides is not None else {}
        self._options |= {"dilations": dilation_rate} if dilation_rate is not None else {}

    def __call__(self, inp: TensorLike, filter: TensorLike) -> Tensor:
        """Return the convolution."""
        return tf.nn.convolution(inp, filter, **self._options)


def get_test_data(
    train_samples: int,
    test_samples: int,
    input_shape: Sequence[int],
    num_classes: int,
    random_seed: int | None = None,
) -> PyTree:
    """Return random inputs around a mean for each class, and classes, for training and for a test."""
    generator = np.random.RandomState(random_seed)
    count = train_samples + test_samples
    means = 2 * num_classes * generator.random_sample((num_classes, *input_shape))
    y = generator.randint(0, num_classes, size=(count,))
    x = (means[y] + generator.normal(size=(count, *input_shape))).astype("float32")
    return (x[:train_samples], y[:train_samples]), (x[train_samples:], y[train_samples:])


def like_rnncell(cell: object) -> bool:
    """Check whether an object has the attributes of a recurrent cell of TensorFlow 1."""
    names = ("output_size", "state_size", "zero_state")
    return callable(cell) and all(hasattr(cell, name) for name in names)


def assert_like_rnncell(cell_name: str, cell: object) -> None:
    """Check that an object is a recurrent cell of TensorFlow 1.

    Raises:
      TypeError: If it is not.
    """
    if not like_rnncell(cell):
        raise TypeError(
            f"The argument {cell_name!r} ({cell!r}) is not an RNNCell: it must be callable and have `output_size`, "
            "`state_size` and `zero_state`."
        )


def concat_shapes(prefix: Any, suffix: Any, static: bool = False) -> PyTree:
    """Return the sizes `prefix` followed by `suffix`: a tensor, or a `TensorShape` if `static`."""
    if static:
        return tf.TensorShape(prefix).concatenate(tf.TensorShape(suffix))
    parts = (p.as_list() if isinstance(p, tf.TensorShape) else p for p in (prefix, suffix))
    return tf.concat([tf.reshape(tf.convert_to_tensor(p, tf.int32), [-1]) for p in parts], 0)


def remove_squeezable_dimensions(
    labels: TensorLike,
    predictions: TensorLike,
    expected_rank_diff: int = 0,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Remove the last dimension of size 1 from labels or predictions if their ranks differ from the expected ones.

    Args:
      labels: Labels.
      predictions: Predictions.
      expected_rank_diff: Expected difference between the ranks of the predictions and of the labels.
      name: Ignored.
    """
    labels, predictions = tf.convert_to_tensor(labels), tf.convert_to_tensor(predictions)
    difference = len(predictions.shape) - len(labels.shape) - expected_rank_diff
    if difference == 1 and predictions.shape[-1] in (1, None):
        predictions = tf.squeeze(predictions, [-1])
    elif difference == -1 and labels.shape[-1] in (1, None):
        labels = tf.squeeze(labels, [-1])
    return labels, predictions


def convert_to_tensor_or_composite(
    value: PyTree, dtype: PyTree = None, name: str | None = None
) -> PyTree:
    """Return composite tensors as they are, and the tensor of other values."""
    if isinstance(value, composite.CompositeTensor):
        return value
    return tf.convert_to_tensor(value, dtype, name=name)

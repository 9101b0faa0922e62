"""Helpers of TensorFlow's own unit tests: names of its module `tensorflow.python.framework.test_util`.

The decorators that run a test in graph mode belong to `graph_test_modes`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import socket
import sys
import threading
import unittest
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from meshflow.core.runtime import determinism
from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.values.tensor import Tensor
from meshflow.environment.garbage_collection import collect_garbage
from meshflow.environment.types import PyTree
from meshflow.shims.private_helpers import ignore_decorator

tf: Any = get_public_package()

_Test = Callable[..., Any]

# ---- the build and the devices --------------------------------------------------------------


def return_false() -> bool:
    """Return False: the answer to questions about parts that only TensorFlow has, such as MKL and sanitizers."""
    return False


IsMklEnabled = is_xla_enabled = is_mlir_bridge_enabled = return_false
is_asan_enabled = is_msan_enabled = is_tsan_enabled = is_ubsan_enabled = return_false
is_tfrt_enabled = is_tensorrt_enabled = return_false
IsGoogleCudaEnabled = tf.test.is_built_with_cuda
IsBuiltWithROCm, IsBuiltWithXLA = tf.test.is_built_with_rocm, tf.test.is_built_with_xla
GpuSupportsHalfMatMulAndConv = tf.test.is_built_with_cuda


def device(use_gpu: bool) -> contextlib.AbstractContextManager[object]:
    """Return a context in which ops run on the first GPU if it is requested and available, or on the CPU."""
    kind = "GPU" if use_gpu and tf.test.is_gpu_available() else "CPU"
    return tf.device(f"/device:{kind}:0")


use_gpu = functools.partial(device, True)
force_gpu = functools.partial(tf.device, "/device:GPU:0")
force_cpu = functools.partial(tf.device, "/device:CPU:0")


def pick_unused_port() -> int:
    """Return a TCP port of this machine that no program uses."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


def get_running_threads() -> list[threading.Thread]:
    """Return the threads of this process."""
    return list(threading.enumerate())


def has_thread(threads: Iterable[threading.Thread], expected_name: str) -> bool:
    """Return whether the name of a thread contains a text."""
    return any(expected_name in thread.name for thread in threads)


def set_logical_devices_to_at_least(device_type: str, num: int) -> None:
    """Split the first physical device of a type into devices, unless it has as many."""
    physical = tf.config.list_physical_devices(device_type)[0]
    current = tf.config.get_logical_device_configuration(physical) or []
    added = [tf.config.LogicalDeviceConfiguration() for _ in range(num - len(current))]
    if added:
        tf.config.set_logical_device_configuration(physical, [*current, *added])


# ---- decorators that change or skip a test ----------------------------------------------------

disable_asan = disable_msan = disable_tsan = disable_ubsan = ignore_decorator
disable_mlir_bridge = no_xla_auto_jit = xla_allow_fallback = set_xla_env_flag = ignore_decorator
with_eager_op_as_function = enable_eager_op_as_function = ignore_decorator
disable_eager_op_as_function = disable_control_flow_v2 = with_control_flow_v2 = ignore_decorator
enable_output_all_intermediates = enable_nested_function_shape_inference = ignore_decorator
enable_graph_building_optimization = add_graph_building_optimization_tests = ignore_decorator
enable_quantized_dtypes_training = enable_tf_xla_constant_folding = ignore_decorator
with_forward_compatibility_horizons = run_in_async_and_sync_mode = ignore_decorator
with_c_shapes = enable_c_shapes = ignore_decorator
# The reference counts of JAX's and Meshflow's caches differ from those of TensorFlow.
assert_no_new_pyobjects_executing_eagerly = assert_no_garbage_created = ignore_decorator


def _make_skipping_decorator(can_run: Callable[[], bool], reason: str) -> Callable[..., Any]:
    def decorate(func: _Test | None = None) -> PyTree:
        if func is None:
            return decorate

        @functools.wraps(func)
        def run(self: unittest.TestCase, *args: PyTree, **kwargs: PyTree) -> PyTree:
            if not can_run():
                self.skipTest(reason)
            return func(self, *args, **kwargs)

        return run

    return decorate


run_gpu_only = _make_skipping_decorator(tf.test.is_gpu_available, "Test requires a GPU.")
run_cuda_only = _make_skipping_decorator(
    lambda: tf.test.is_built_with_cuda() and tf.test.is_gpu_available(), "Test requires CUDA."
)
run_gpu_or_tpu = _make_skipping_decorator(
    lambda: bool(tf.config.list_logical_devices("GPU") + tf.config.list_logical_devices("TPU")),
    "Test requires a GPU or TPU.",
)


def skip_if(condition: PyTree) -> Callable[[_Test], _Test]:
    """Return a decorator that runs a test unless a value, or the result of a function, is true."""
    return _make_skipping_decorator(
        lambda: not (condition() if callable(condition) else condition), "The condition holds."
    )


@contextlib.contextmanager
def skip_if_error(
    test_obj: unittest.TestCase, error_type: type[BaseException], messages: str | Sequence[str] = ()
) -> Iterator[None]:
    """Skip the test if the block raises an error with one of several parts of messages; default: any message."""
    parts = [messages] if isinstance(messages, str) else list(messages or ())
    try:
        yield
    except error_type as error:
        if parts and not any(part in str(error) for part in parts):
            raise
        test_obj.skipTest(f"Skipping error: {type(error)}: {error}")


def also_run_as_tf_function(f: _Test) -> _Test:
    """Return a test that runs eagerly, and then as a `tf.function`."""

    @functools.wraps(f)
    def run(*args: PyTree, **kwargs: PyTree) -> None:
        def run_once() -> None:
            f(*args, **kwargs)

        run_once()
        tf.function(run_once, autograph=False)()

    return run


def py_func_if_in_function(f: _Test) -> _Test:
    """Return a function that runs in Python, as an op of the `tf.function` that calls it."""

    @functools.wraps(f)
    def run(*args: PyTree, **kwargs: PyTree) -> PyTree:
        if not tf.inside_function():
            return f(*args, **kwargs)
        positions = [i for i, arg in enumerate(args) if isinstance(arg, (tf.Tensor, tf.Variable))]

        def call(*values: Tensor) -> None:
            f(
                *(
                    dict(zip(positions, values, strict=True)).get(i, arg)
                    for i, arg in enumerate(args)
                ),
                **kwargs,
            )

        return tf.py_function(call, [args[i] for i in positions], [])

    return run


def for_all_test_methods(
    decorator: Callable[..., Any], *args: PyTree, **kwargs: PyTree
) -> Callable[[type], type]:
    """Return a decorator of a class, which applies `decorator(*args, **kwargs)` to each of its tests."""

    def decorate(cls: type) -> type:
        for name in dir(cls):
            test = getattr(cls, name)
            if callable(test) and name.startswith("test") and name != "test_session":
                setattr(cls, name, decorator(*args, **kwargs)(test))
        return cls

    return decorate


def run_without_tensor_float_32(description: str) -> Callable[[_Test], _Test]:
    """Return a decorator that runs a test without the format TensorFloat-32 of GPUs."""

    def decorate(f: _Test) -> _Test:
        @functools.wraps(f)
        def run(self: unittest.TestCase, *args: PyTree, **kwargs: PyTree) -> PyTree:
            is_allowed = tf.config.experimental.tensor_float_32_execution_enabled()
            tf.config.experimental.enable_tensor_float_32_execution(False)
            try:
                return f(self, *args, **kwargs)
            finally:
                tf.config.experimental.enable_tensor_float_32_execution(is_allowed)

        return run

    return decorate


run_all_without_tensor_float_32 = functools.partial(
    for_all_test_methods, run_without_tensor_float_32
)


def matmul_without_tf32(a: PyTree, b: PyTree, *args: PyTree, **kwargs: PyTree) -> Tensor:
    """Return a product of matrices that is computed in float64 or complex128 if TensorFloat-32 is enabled."""
    wide = {"float32": "float64", "complex64": "complex128"}.get(tf.as_dtype(a.dtype).name)
    if wide is None or not tf.config.experimental.tensor_float_32_execution_enabled():
        return tf.matmul(a, b, *args, **kwargs)
    return tf.cast(tf.matmul(tf.cast(a, wide), tf.cast(b, wide), *args, **kwargs), a.dtype)


def assert_no_new_tensors(f: _Test) -> _Test:
    """Return a test that fails if more tensors exist after it than before it."""

    @functools.wraps(f)
    def run(self: unittest.TestCase, **kwargs: PyTree) -> PyTree:
        before = {id(tensor) for tensor in _find_tensors()}
        result = f(self, **kwargs)
        collect_garbage()
        added = [tensor for tensor in _find_tensors() if id(tensor) not in before]
        if added:
            raise AssertionError(f"{len(added)} Tensors not deallocated after test: {added}")
        return result

    return run


def _find_tensors() -> list[Any]:
    return [o for o in gc.get_objects() if issubclass(type(o), (tf.Tensor, tf.Variable))]


@contextlib.contextmanager
def deterministic_ops() -> Iterator[None]:
    """Run a block in which ops return the same values in each run."""
    tf.config.experimental.enable_op_determinism()
    try:
        yield
    finally:
        determinism.disable()


@contextlib.contextmanager
def run_functions_eagerly(run_eagerly: bool) -> Iterator[None]:
    """Run a block in which each `tf.function` runs as Python or not."""
    if not isinstance(run_eagerly, bool):
        raise ValueError(f"Expected bool for `run_eagerly` but got {run_eagerly}")
    earlier = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(run_eagerly)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(earlier)


# ---- order of the dimensions ----------------------------------------------------------------


def _reorder(value: PyTree, orders: Mapping[int, Sequence[int]]) -> PyTree:
    """Transpose a tensor, or reorder the sizes of a shape."""
    if tf.is_tensor(value):
        return tf.transpose(value, orders[value.shape.rank])
    return [value[axis] for axis in orders[len(value)]]


def NHWCToNCHW(input_tensor: PyTree) -> PyTree:
    """Return a tensor or shape of three to five dimensions with the channels after the batch."""
    return _reorder(input_tensor, {3: [0, 2, 1], 4: [0, 3, 1, 2], 5: [0, 4, 1, 2, 3]})


def NCHWToNHWC(input_tensor: PyTree) -> PyTree:
    """Return a tensor or shape of four or five dimensions with the channels last."""
    return _reorder(input_tensor, {4: [0, 2, 3, 1], 5: [0, 2, 3, 4, 1]})


def NHWCToNCHW_VECT_C(input_shape_or_tensor: PyTree) -> PyTree:
    """Return a tensor or shape with the channels after the batch, except for groups of four, which are last."""
    is_tensor = tf.is_tensor(input_shape_or_tensor)
    *sizes, channels = input_shape_or_tensor.shape if is_tensor else input_shape_or_tensor
    if channels % 4:
        raise ValueError(
            f"NHWCToNCHW_VECT_C: The last dimension must be evenly divisible by 4, got {channels}."
        )
    shape = [*sizes, channels // 4, 4]
    value = tf.reshape(input_shape_or_tensor, shape) if is_tensor else shape
    return _reorder(value, {5: [0, 3, 1, 2, 4], 6: [0, 4, 1, 2, 3, 5]})


def NCHW_VECT_CToNHWC(input_shape_or_tensor: PyTree) -> PyTree:
    """Return a tensor or shape with the channels last, from one with groups of four channels last."""
    is_tensor = tf.is_tensor(input_shape_or_tensor)
    size = (input_shape_or_tensor.shape if is_tensor else input_shape_or_tensor)[-1]
    if size != 4:
        raise ValueError(f"NCHW_VECT_CToNHWC: The last dimension must be 4, got {size}.")
    value = _reorder(input_shape_or_tensor, {5: [0, 2, 3, 1, 4], 6: [0, 2, 3, 4, 1, 5]})
    *sizes, groups, width = value.shape if is_tensor else value
    shape = [*sizes, groups * width]
    return tf.reshape(value, shape) if is_tensor else shape


# ---- graphs ---------------------------------------------------------------------------------


def assert_ops_in_graph(expected_ops: Mapping[str, str], graph: PyTree) -> dict[str, Any]:
    """Return the nodes of a graph that have expected names and types.

    Raises:
      ValueError: If a node is missing, or has another type.
    """
    nodes = {n.name: n for n in graph.as_graph_def().node if n.name in expected_ops}
    found = {name: node.op for name, node in nodes.items()}
    if found != dict(expected_ops):
        raise ValueError(
            f"Not all expected ops are present. Expected {dict(expected_ops)}, found {found}"
        )
    return nodes


def assert_equal_graph_def(
    actual: PyTree,
    expected: PyTree,
    checkpoint_v2: bool = False,
    hash_table_shared_name: bool = False,
) -> None:
    """Check that two graphs have the same nodes, in any order.

    Raises:
      AssertionError: If they differ.
      TypeError: If an argument is no `GraphDef`.
    """
    for name, value in (("actual", actual), ("expected", expected)):
        if not isinstance(value, tf.compat.v1.GraphDef):
            raise TypeError(f"Expected tf.GraphDef for {name}, got {type(value).__name__}")
    first, second = ({n.name: n for n in graph.node} for graph in (actual, expected))
    differing = [n for n in first.keys() | second.keys() if first.get(n) != second.get(n)]
    if differing:
        raise AssertionError(f"Nodes of the two graphs differ: {sorted(differing)}")


assert_equal_graph_def_v2 = assert_equal_graph_def


def get_node_def_from_graph(node_name: str, graph_def: PyTree) -> PyTree:
    """Return the node of a name in a `GraphDef`, or None."""
    return next((node for node in graph_def.node if node.name == node_name), None)


# ---- gradients ------------------------------------------------------------------------------


class AbstractGradientTape:
    """Context that computes gradients by a `tf.GradientTape`, or by `tf.gradients`.

    Args:
      use_tape: Whether to use a tape.
      persistent: Whether a tape computes several gradients.
    """

    def __init__(self, use_tape: bool, persistent: bool = False) -> None:
        self._tape = tf.GradientTape(persistent) if use_tape else _GraphGradients()

    def __enter__(self) -> PyTree:
        return self._tape.__enter__()

    def __exit__(self, *details: PyTree) -> None:
        self._tape.__exit__(*details)


class _GraphGradients(contextlib.AbstractContextManager[Any]):
    """The part of the interface of a `tf.GradientTape` that `tf.gradients` can compute."""

    def __exit__(self, *details: object) -> None:
        """Do nothing."""

    def watch(self, x: object) -> None:
        """Do nothing, because graphs have gradients of all tensors."""

    def gradient(self, y: PyTree, x: PyTree, grad_ys: PyTree = None) -> PyTree:
        """Return the gradient of each tensor in `x`, or of `x` itself."""
        gradients = tf.compat.v1.gradients(y, x, grad_ys)
        return gradients if isinstance(x, (list, tuple)) else gradients[0]


# ---- `tensorflow.python.platform`: files of tests -----------------------------------------------------

GetTempDir = tf.compat.v1.test.get_temp_dir
StatefulSessionAvailable = return_false


def get_data_files_path() -> str:
    """Return the folder of the file with the calling function."""
    return _find_folder(1)


def get_path_to_datafile(path: str) -> str:
    """Return the path of a file in the folder of the calling function's file."""
    return os.path.join(_find_folder(1), path)


def load_resource(path: str) -> bytes:
    """Return the contents of a file, by its path in the source of TensorFlow."""
    with open(test_src_dir_path(path), "rb") as file:
        return file.read()


def test_src_dir_path(relative_path: str) -> str:
    """Return the path of a file of TensorFlow's source, below the folder in the variable `TEST_SRCDIR`."""
    return os.path.join(os.environ["TEST_SRCDIR"], "org_tensorflow/tensorflow", relative_path)


test_src_dir_path.__test__ = False  # type: ignore[attr-defined]  # pytest would run it as a test.


def _find_folder(depth: int) -> str:
    return os.path.dirname(os.path.abspath(sys._getframe(depth + 1).f_code.co_filename))

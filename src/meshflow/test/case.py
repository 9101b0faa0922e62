"""`tf.test.TestCase`: assertions about tensors, arrays and nested structures."""

from __future__ import annotations

import contextlib
import functools
import random as python_random
import re
import threading
import unittest
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices, SparseTensor, SparseTensorValue
from meshflow.core.runtime.context import context
from meshflow.core.runtime.device_spec import DeviceSpec
from meshflow.core.runtime.errors import OpError
from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.values import nest
from meshflow.core.values.dtypes import DTypeLike, as_dtype
from meshflow.core.values.tensor import TensorLike, is_tensor
from meshflow.environment.types import ArrayLike, PyTree
from meshflow.keras.settings import reset_uids
from meshflow.ops.ragged.tensor import RaggedTensor
from meshflow.ops.ragged.values import RaggedTensorValue, read_ragged_value
from meshflow.ops.random import set_seed
from meshflow.test.assertions import AbslAssertions

__all__ = ["TestCase", "main"]


_SEED = 87654321


class EagerSession:
    """Substitute for a session of TensorFlow 1 in tests, which evaluates tensors of eager execution.

    Args:
      evaluate: Returns the NumPy values of a structure of tensors.
    """

    def __init__(self, evaluate: Callable[[PyTree], PyTree]) -> None:
        self._evaluate = evaluate

    def run(self, fetches: PyTree, feed_dict: object = None, **_: object) -> PyTree:
        """Return the NumPy values of a structure of tensors.

        Raises:
          NotImplementedError: If values of placeholders are passed, which do not exist.
        """
        if feed_dict:
            raise NotImplementedError(
                "feed_dict is not supported with eager execution; call a function with the values."
            )
        return self._evaluate(fetches)


class CheckedThread:
    """Thread of a test, which fails if the target of the thread raises an error.

    Args:
      test: The test.
      target: Function that the thread calls.
      args: Its positional arguments.
      kwargs: Its keyword arguments.
    """

    def __init__(
        self, test: unittest.TestCase, target: Callable[..., object], args: Iterable[Any], kwargs: dict[str, Any]
    ) -> None:  # fmt: skip
        self._test, self._was_joined = test, False
        self._call = lambda: target(*args, **kwargs)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait for the thread, and fail if it raised an error."""
        self._was_joined = True
        self._thread.join()
        if self._error is not None:
            raise AssertionError(f"Error in checkedThread: {self._error}") from self._error

    def check_termination(self) -> None:
        """Fail if the test did not join the thread."""
        if not self._was_joined:
            state = "never joined, and it still runs" if self.is_alive() else "never joined"
            self._test.fail(f"A checked thread was {state}.")


class TestCase(AbslAssertions):
    """`unittest.TestCase` with assertions about tensors, arrays and nested structures.

    Before each test, the global seeds of Python, NumPy and `tf.random` are set to fixed values.

    Example:
      >>> tf.test.TestCase().assertAllClose([1.0, 2.0], tf.constant([1.0, 2.0]))
    """

    # Threads of the test; a subclass may replace `setUp` without a call of this one.
    _threads: tuple[CheckedThread, ...] = ()

    def setUp(self) -> None:
        """Set the seeds, and restart automatic names; a subclass that overrides this must call it first."""
        super().setUp()
        reset_uids()
        if context.graph is not None:
            get_public_package().compat.v1.reset_default_graph()
        python_random.seed(_SEED)
        np.random.seed(_SEED)
        set_seed(_SEED)
        self._threads = ()

    def tearDown(self) -> None:
        """Check that all threads of `checkedThread` ended; a subclass that overrides this must call it."""
        for thread in self._threads:
            thread.check_termination()
        super().tearDown()

    def checkedThread(
        self,
        target: Callable[..., object],
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> CheckedThread:
        """Return a thread; the test fails if the target raises an error or the test does not join the thread."""
        thread = CheckedThread(self, target, tuple(args or ()), dict(kwargs or {}))
        self._threads = (*self._threads, thread)
        return thread

    def get_temp_dir(self) -> str:
        """Return a directory that is deleted after the test."""
        return self._get_temp_directory()

    def evaluate(self, tensors: PyTree) -> PyTree:
        """Return the NumPy values of a structure of tensors and functions, which are called.

        Ragged tensors become `tf.compat.v1.ragged.RaggedTensorValue`s. In a version 1 graph, the default
        session computes the values, or that of `cached_session`.
        """
        if context.graph is not None and context.trace is None:
            session = get_public_package().compat.v1.get_default_session()
            if session is not None:
                return session.run(tensors)
            with self.cached_session() as cached:
                return cached.run(tensors)
        read = lambda value: self.evaluate(value()) if callable(value) else to_numpy(value)
        return nest.map_structure(read, tensors)

    def evaluate_if_both_tensors(self, a: PyTree, b: PyTree) -> tuple[PyTree, PyTree]:
        """Return the NumPy values of two tensors; other values are unchanged."""
        both = is_tensor(a) and is_tensor(b)
        return (self.evaluate(a), self.evaluate(b)) if both else (a, b)

    def _GetNdArray(self, a: TensorLike) -> np.ndarray:
        return np.asarray(to_numpy(self._run_symbolic(a)))

    def _run_symbolic(self, value: PyTree) -> PyTree:
        """Return the value of a tensor of the current graph, or another value unchanged."""
        is_symbolic = getattr(value, "_is_in_graph", False) and context.graph is not None
        return self.evaluate(value) if is_symbolic else value

    @contextlib.contextmanager
    def session(
        self, graph: Any = None, config: Any = None, *args: object, **kwargs: object
    ) -> Iterator[Any]:
        """Run a block with a session of the graph, or in eager execution with an object that evaluates tensors."""
        if context.graph is None:
            yield EagerSession(self.evaluate)
            return
        session = get_public_package().compat.v1.Session(graph=graph, config=config)
        with session, session.graph.as_default():
            yield session

    @contextlib.contextmanager
    def cached_session(
        self, graph: Any = None, config: Any = None, *args: object, **kwargs: object
    ) -> Iterator[Any]:
        """Run a block like `session`, with the same session in all blocks of a test."""
        if context.graph is None:
            yield self.__dict__.setdefault("_cached_session", EagerSession(self.evaluate))
            return
        session = self.__dict__.get("_cached_graph_session")
        if session is None or session.graph is not (graph or context.graph):
            session = get_public_package().compat.v1.Session(graph=graph, config=config)
            self._cached_graph_session = session
        with session.graph.as_default(), session.as_default():
            yield session

    def test_session(self, *args: Any, **kwargs: Any) -> contextlib.AbstractContextManager[Any]:
        """Return `session()`; test runners skip this method, which has the name of a test."""
        if self._testMethodName == "test_session":
            self.skipTest("Not a test.")
        return self.session(*args, **kwargs)

    def assertAllEqual(self, a: TensorLike, b: TensorLike, msg: str | None = None) -> None:
        """Fail unless shapes and elements are equal; NaN equals NaN.

        The rows of a ragged tensor are compared with nested lists, or with a ragged tensor of the same rank.
        """
        if isinstance(a, _RAGGED) or isinstance(b, _RAGGED):
            self._check_rows(a, b, msg, self.assertAllEqual)
            return
        a, b = (_to_array(self._run_symbolic(v)) for v in (a, b))
        self._check_same_shape(a, b, msg)
        with np.errstate(invalid="ignore"):
            same = np.array(list(map(_are_equal, a.flat, b.flat))) if _has_rows(a) else a == b
            if a.dtype.kind in "fc" and b.dtype.kind in "fc":
                same = same | (np.isnan(a) & np.isnan(b))
        self._check_all(np.asarray(same), a, b, "not equal", msg)

    def assertNotAllEqual(self, a: TensorLike, b: TensorLike, msg: str | None = None) -> None:
        """Fail if `assertAllEqual` holds."""
        self._check_fails(self.assertAllEqual, "equal", msg, a, b)

    def assertAllClose(
        self, a: PyTree, b: PyTree, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None
    ) -> None:
        """Fail unless `|a - b| <= atol + rtol * |b|` for all elements of two nested structures.

        Raises:
          ValueError: If only one of two values is a dictionary.
        """
        self._check_close(a, b, rtol, atol, msg, "")

    def _check_close(
        self, a: PyTree, b: PyTree, rtol: float, atol: float, msg: str | None, path: str
    ) -> None:
        if isinstance(a, _RAGGED) or isinstance(b, _RAGGED):
            check = functools.partial(self.assertAllClose, rtol=rtol, atol=atol)
            self._check_rows(a, b, msg, check)
            return
        values = (to_numpy(self._run_symbolic(v)) for v in (a, b))
        a, b = (v._asdict() if hasattr(v, "_asdict") else v for v in values)
        if isinstance(a, Mapping) != isinstance(b, Mapping):
            raise ValueError(f"Can't compare dict to non-dict, a{path} vs b{path}. {msg or ''}")
        if isinstance(a, Mapping):
            self.assertCountEqual(a, b, f"mismatched keys in a{path} and b{path}. {msg or ''}")
            for key in a:
                self._check_close(a[key], b[key], rtol, atol, msg, f"{path}[{key}]")
            return
        if nest.is_nested(a) and any(nest.is_nested(v) or hasattr(v, "shape") for v in a):
            self.assertEqual(len(a), len(b), f"Mismatched length: a{path}, b{path}. {msg or ''}")
            for index, (x, y) in enumerate(zip(a, b, strict=True)):
                self._check_close(x, y, rtol, atol, msg, f"{path}[{index}]")
            return
        a, b = _to_array(a), _to_array(b)
        where = f"Mismatched value: a{path} is different from b{path}. {msg or ''}"
        self._check_same_shape(a, b, where)
        if _has_rows(a):
            for index, (x, y) in enumerate(zip(a.flat, b.flat, strict=True)):
                self._check_close(x, y, rtol, atol, msg, f"{path}[{index}]")
            return
        close = np.asarray(np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True))
        if not close.all():
            title = f"Not equal to tolerance rtol={rtol}, atol={atol}\n{where}\n"
            rows = (v[~close][:10] for v in (a, b))
            x, y = (v.astype(int) if v.dtype.kind == "b" else v for v in rows)
            differences = np.abs(x - y)
            self._check_all(close, a, b, "not close", f"{title}not close dif = {differences}\n")

    def assertNotAllClose(
        self, a: PyTree, b: PyTree, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None
    ) -> None:
        """Fail if `assertAllClose` holds."""
        self._check_fails(self.assertAllClose, "close", msg, a, b, rtol, atol)

    def assertAllCloseAccordingToType(
        self,
        a: PyTree,
        b: PyTree,
        rtol: float = 1e-6,
        atol: float = 1e-6,
        float_rtol: float = 1e-6,
        float_atol: float = 1e-6,
        half_rtol: float = 1e-3,
        half_atol: float = 1e-3,
        bfloat16_rtol: float = 1e-2,
        bfloat16_atol: float = 1e-2,
        msg: str | None = None,
    ) -> None:
        """Call `assertAllClose` with larger tolerances for narrow dtypes of either operand."""
        a, b = _to_array(a), _to_array(b)
        dtypes = {str(a.dtype), str(b.dtype)}
        for name, r, t in (
            ("float32", float_rtol, float_atol),
            ("complex64", float_rtol, float_atol),
            ("float16", half_rtol, half_atol),
            ("bfloat16", bfloat16_rtol, bfloat16_atol),
        ):
            if name in dtypes:
                rtol, atol = max(rtol, r), max(atol, t)
        a, b = (x.astype(np.float32) if str(x.dtype) == "bfloat16" else x for x in (a, b))
        self.assertAllClose(a, b, rtol=rtol, atol=atol, msg=msg)

    def assertNear(self, f1: float, f2: float, err: float, msg: str | None = None) -> None:
        """Fail unless two numbers differ by at most `err`."""
        self.assertTrue(f1 == f2 or abs(f1 - f2) <= err, f"{f1!r} and {f2!r} differ by > {err}")

    def assertArrayNear(
        self, farray1: Sequence[float], farray2: Sequence[float], err: float, msg: str | None = None
    ) -> None:
        """Fail unless `assertNear` holds for all pairs of items of two sequences."""
        self.assertEqual(len(farray1), len(farray2), msg)
        for one, two in zip(farray1, farray2, strict=True):
            self.assertNear(float(one), float(two), err, msg)

    def assertNDArrayNear(
        self, ndarray1: TensorLike, ndarray2: TensorLike, err: float, msg: str | None = None
    ) -> None:
        """Fail unless the Euclidean distance of two arrays is below `err`."""
        distance = np.linalg.norm(_to_array(ndarray1) - _to_array(ndarray2))
        self.assertLess(float(distance), err, msg)

    _NDArrayNear = lambda self, a, b, err: bool(np.linalg.norm(_to_array(a) - _to_array(b)) < err)

    def assertAllGreater(self, a: TensorLike, comparison_target: ArrayLike) -> None:
        """Fail unless every element is greater than a number."""
        a = _to_array(a)
        self._check_all(a > comparison_target, a, comparison_target, "not greater", None)

    def assertAllLess(self, a: TensorLike, comparison_target: ArrayLike) -> None:
        """Fail unless every element is less than a number."""
        a = _to_array(a)
        self._check_all(a < comparison_target, a, comparison_target, "not less", None)

    def assertAllGreaterEqual(self, a: TensorLike, comparison_target: ArrayLike) -> None:
        """Fail unless every element is greater than or equal to a number."""
        a = _to_array(a)
        self._check_all(a >= comparison_target, a, comparison_target, "less", None)

    def assertAllLessEqual(self, a: TensorLike, comparison_target: ArrayLike) -> None:
        """Fail unless every element is less than or equal to a number."""
        a = _to_array(a)
        self._check_all(a <= comparison_target, a, comparison_target, "greater", None)

    def assertAllInRange(
        self,
        target: TensorLike,
        lower_bound: ArrayLike,
        upper_bound: ArrayLike,
        open_lower_bound: bool = False,
        open_upper_bound: bool = False,
    ) -> None:
        """Fail unless every element is between two bounds, which are included unless open."""
        a = _to_array(target)
        if a.dtype.kind not in "fiubV":
            self.fail(f"The value does not have an ordered numeric type, but {a.dtype}: {a}")
        above = a > lower_bound if open_lower_bound else a >= lower_bound
        below = a < upper_bound if open_upper_bound else a <= upper_bound
        self._check_all(above & below, a, (lower_bound, upper_bound), "out of range", None)

    def assertAllInSet(self, target: TensorLike, expected_set: Iterable[Any]) -> None:
        """Fail unless every element is in a set."""
        a = _to_array(target)
        self._check_all(np.isin(a, list(expected_set)), a, expected_set, "not in the set", None)

    def assertShapeEqual(
        self, input_a: TensorLike, input_b: TensorLike, msg: str | None = None
    ) -> None:
        """Fail unless the shapes are equal."""
        self.assertEqual(tuple(input_a.shape), tuple(input_b.shape), msg)

    def assertDeviceEqual(
        self, device1: str | None, device2: str | None, msg: str | None = None
    ) -> None:
        """Fail unless two names denote the same device."""
        first, second = (DeviceSpec.from_string(n or "").to_string() for n in (device1, device2))
        self.assertEqual(first, second, msg)

    def assertDTypeEqual(self, target: TensorLike, expected_dtype: DTypeLike) -> None:
        """Fail unless an array or tensor has a dtype."""
        self.assertEqual(as_dtype(_to_array(target).dtype), as_dtype(expected_dtype))

    @contextlib.contextmanager
    def assertRaisesWithPredicateMatch(
        self,
        exception_type: type[BaseException],
        expected_err_re_or_predicate: str | Callable[[BaseException], bool],
    ) -> Iterator[None]:
        """Fail unless the block raises an error with a message that matches a pattern or predicate."""
        check = expected_err_re_or_predicate
        try:
            yield
        except exception_type as error:
            text = error.message if isinstance(error, OpError) else str(error)
            matches = check(error) if callable(check) else re.search(check, text) is not None
            if not matches:
                raise AssertionError(
                    f"{type(error).__name__}: {text!r} is not {check!r}"
                ) from error
        else:
            self.fail(f"{exception_type} not raised")

    def assertRaisesOpError(
        self, expected_err_re_or_predicate: str | Callable[[BaseException], bool]
    ) -> contextlib.AbstractContextManager[None]:
        """Fail unless the block raises a matching `tf.errors.OpError`."""
        return self.assertRaisesWithPredicateMatch(OpError, expected_err_re_or_predicate)

    def _check_rows(
        self, a: PyTree, b: PyTree, msg: str | None, check: Callable[..., None]
    ) -> None:
        """Compare the lengths of rows, and call a method to compare the values."""
        if isinstance(a, _RAGGED) and isinstance(b, _RAGGED):
            self.assertEqual(a.ragged_rank, b.ragged_rank, msg)
        (x, rows), (y, other) = (jax.tree_util.tree_flatten(_to_list(v)) for v in (a, b))
        text = f"{msg or ''} in the values of rows".strip()
        self.assertEqual(rows, other, msg)
        check(np.array(x), np.array(y), msg=text)

    def assertDictEqual(self, a: PyTree, b: PyTree, msg: str | None = None) -> None:
        """Fail unless two dictionaries have equal items; arrays are equal if all of their elements are."""
        self.assertIsInstance(a, dict, f"a is not a dictionary. {msg or ''}")
        self.assertIsInstance(b, dict, f"b is not a dictionary. {msg or ''}")
        self.assertCountEqual(a, b, msg)
        for key in a:
            text = f"at {key!r} of {a!r} and {b!r}. {msg or ''}"
            first, second = (np.asarray(to_numpy(v)) for v in (a[key], b[key]))
            if not (first.shape or second.shape):
                self.assertEqual(a[key], b[key], text)
            elif first.dtype.kind in "USO":
                self.assertAllEqual(a[key], b[key], text)
            else:
                self.assertAllClose(a[key], b[key], msg=text)

    def _check_same_shape(self, a: np.ndarray, b: np.ndarray, msg: str | None) -> None:
        text = f"Shape mismatch: expected {a.shape}, got {b.shape}. {msg or ''}"
        self.assertEqual(a.shape, b.shape, text)

    def _check_all(
        self, holds: np.ndarray, a: np.ndarray, b: object, failure: str, msg: str | None
    ) -> None:
        holds = np.asarray(holds)
        if holds.all():
            return
        indices = np.argwhere(~holds)
        lines = [f"{msg or ''} {len(indices)} of {holds.size} elements are {failure}".strip()]
        sides = [("lhs", a), *([("rhs", b)] if isinstance(b, np.ndarray) and b.shape else [])]
        lines += [
            f"{failure} {n} = {np.broadcast_to(v, holds.shape)[~holds][:10]}" for n, v in sides
        ]
        for index in map(tuple, indices[:10]):
            other = b[index] if isinstance(b, np.ndarray) and b.shape == holds.shape else b
            lines.append(f"  at {list(map(int, index))}: {a[index]!r} against {other!r}")
        self.fail("\n".join(lines))

    def _check_fails(
        self, assertion: Callable[..., None], failure: str, msg: str | None, *args: object
    ) -> None:
        try:
            assertion(*args)
        except AssertionError:
            return
        self.fail(f"The two values are {failure} at all elements. {msg or ''}")


class IndexedSlicesValue(NamedTuple):
    """Components of indexed slices as arrays."""

    values: np.ndarray
    indices: np.ndarray
    dense_shape: np.ndarray | None


# Ragged tensors and their values.
_RAGGED = (RaggedTensor, RaggedTensorValue)


def _to_list(value: PyTree) -> PyTree:
    """Return nested lists of the values of a tensor, an array, or nested lists of them."""
    if isinstance(value, _RAGGED):
        return to_numpy(value).to_list()
    if isinstance(value, list | tuple):
        return list(map(_to_list, value))
    return _to_array(value).tolist()


def to_numpy(value: Any) -> Any:
    """Return the arrays of a tensor; those of sparse tensors and slices as named tuples."""
    if isinstance(value, SparseTensor):
        return SparseTensorValue(*map(to_numpy, (value.indices, value.values, value.dense_shape)))
    if isinstance(value, IndexedSlices):
        return IndexedSlicesValue(*map(to_numpy, (value.values, value.indices, value.dense_shape)))
    if isinstance(value, RaggedTensor):
        return read_ragged_value(value)
    if context.graph is not None and getattr(value, "graph", None) is context.graph:
        return value.eval()
    return value.numpy() if hasattr(value, "numpy") else value


def _has_rows(value: np.ndarray) -> bool:
    """Return whether the elements are arrays, as in the values of ragged tensors."""
    return value.dtype == object and any(isinstance(v, np.ndarray) for v in value.flat)


def _are_equal(a: np.ndarray, b: np.ndarray) -> bool:
    a, b = np.asarray(a), np.asarray(b)  # The elements of an array of rows may be scalars.
    is_nested = a.shape == b.shape and _has_rows(a)
    return all(map(_are_equal, a.flat, b.flat)) if is_nested else np.array_equal(a, b)


def _to_array(value: TensorLike) -> np.ndarray:
    value = to_numpy(value)
    if isinstance(value, RaggedTensorValue):
        value = value.to_list()
    if isinstance(value, (list, tuple)):
        value = [_to_array(v) for v in value]
        if len({v.shape for v in value}) > 1:
            # The rows of a ragged list are elements, as in the array of a ragged tensor.
            rows = np.empty(len(value), object)
            for i, row in enumerate(value):
                rows[i] = row
            return rows
    array = np.asarray(value)
    if array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8")
    return array.astype(object) if array.dtype.kind == "S" else array


def main(argv: list[str] | None = None) -> None:
    """Run the tests of the calling program.

    Args:
      argv: Arguments of `unittest`; default those of the program.
    """
    unittest.main(argv=argv)

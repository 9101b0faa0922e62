"""`tf.test.TestCase`: assertions about tensors, arrays and nested structures."""

from __future__ import annotations

import contextlib
import random as python_random
import re
import unittest
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices, SparseTensor, SparseTensorValue
from meshflow.core.runtime.device_spec import DeviceSpec
from meshflow.core.runtime.errors import OpError
from meshflow.core.values import nest
from meshflow.core.values.dtypes import DTypeLike, as_dtype
from meshflow.core.values.tensor import TensorLike, is_tensor
from meshflow.environment.types import ArrayLike, PyTree
from meshflow.keras.settings import reset_uids
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


class TestCase(AbslAssertions):
    """`unittest.TestCase` with assertions about tensors, arrays and nested structures.

    Before each test, the global seeds of Python, NumPy and `tf.random` are set to fixed values.

    Example:
      >>> tf.test.TestCase().assertAllClose([1.0, 2.0], tf.constant([1.0, 2.0]))
    """

    def setUp(self) -> None:
        """Set the seeds, and restart automatic names; a subclass that overrides this must call it first."""
        super().setUp()
        reset_uids()
        python_random.seed(_SEED)
        np.random.seed(_SEED)
        set_seed(_SEED)

    def get_temp_dir(self) -> str:
        """Return a directory that is deleted after the test."""
        return self._get_temp_directory()

    def evaluate(self, tensors: PyTree) -> PyTree:
        """Return the NumPy values of a structure of tensors and functions, which are called."""
        read = lambda value: self.evaluate(value()) if callable(value) else to_numpy(value)
        return nest.map_structure(read, tensors)

    def evaluate_if_both_tensors(self, a: PyTree, b: PyTree) -> tuple[PyTree, PyTree]:
        """Return the NumPy values of two tensors; other values are unchanged."""
        both = is_tensor(a) and is_tensor(b)
        return (self.evaluate(a), self.evaluate(b)) if both else (a, b)

    def _GetNdArray(self, a: TensorLike) -> np.ndarray:
        return np.asarray(to_numpy(a))

    @contextlib.contextmanager
    def session(self, *args: object, **kwargs: object) -> Iterator[EagerSession]:
        """Run a block with an object that evaluates tensors, because sessions do not exist."""
        yield EagerSession(self.evaluate)

    cached_session = session

    def test_session(
        self, *args: object, **kwargs: object
    ) -> contextlib.AbstractContextManager[EagerSession]:
        """Return `session()`; test runners skip this method, which has the name of a test."""
        if self._testMethodName == "test_session":
            self.skipTest("Not a test.")
        return self.session(*args, **kwargs)

    def assertAllEqual(self, a: TensorLike, b: TensorLike, msg: str | None = None) -> None:
        """Fail unless shapes and elements are equal; NaN equals NaN."""
        a, b = _to_array(a), _to_array(b)
        self._check_same_shape(a, b, msg)
        with np.errstate(invalid="ignore"):
            same = np.array(list(map(_are_equal, a.flat, b.flat))) if _has_rows(a) else a == b
            if a.dtype.kind in "fc" and b.dtype.kind in "fc":
                same = same | (np.isnan(a) & np.isnan(b))
        self._check_all(np.asarray(same), a, b, "not equal", msg)

    def assertNotAllEqual(self, a: TensorLike, b: TensorLike, msg: str | None = None) -> None:
        """Fail if `assertAllEqual` holds."""
        self._check_fails(self.assertAllEqual, "all elements are equal", msg, a, b)

    def assertAllClose(
        self, a: PyTree, b: PyTree, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None
    ) -> None:
        """Fail unless `|a - b| <= atol + rtol * |b|` for all elements of two nested structures."""
        if nest.is_nested(a) and any(
            nest.is_nested(v) or hasattr(v, "shape") for v in _get_items(a)
        ):
            self.assertEqual(len(_get_items(a)), len(_get_items(b)), msg)
            if isinstance(a, dict):
                self.assertCountEqual(a, b, msg)
                pairs = [(a[k], b[k], f"[{k!r}]") for k in a]
            else:
                pairs = [(x, y, f"[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True))]
            for x, y, path in pairs:
                self.assertAllClose(x, y, rtol, atol, f"{msg or ''} at {path}".strip())
            return
        if isinstance(a, dict):
            self.assertCountEqual(a, b, msg)
            a, b = [a[k] for k in sorted(a)], [b[k] for k in sorted(a)]
        a, b = _to_array(a), _to_array(b)
        self._check_same_shape(a, b, msg)
        if _has_rows(a):
            for x, y in zip(a.flat, b.flat, strict=True):
                self.assertAllClose(x, y, rtol, atol, msg)
            return
        close = np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
        self._check_all(np.asarray(close), a, b, f"not close (rtol={rtol}, atol={atol})", msg)

    def assertNotAllClose(
        self, a: PyTree, b: PyTree, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None
    ) -> None:
        """Fail if `assertAllClose` holds."""
        self._check_fails(self.assertAllClose, "all elements are close", msg, a, b, rtol, atol)

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

    def _check_same_shape(self, a: np.ndarray, b: np.ndarray, msg: str | None) -> None:
        self.assertEqual(a.shape, b.shape, f"{msg or ''} shapes {a.shape} and {b.shape} differ")

    def _check_all(
        self, holds: np.ndarray, a: np.ndarray, b: object, failure: str, msg: str | None
    ) -> None:
        holds = np.asarray(holds)
        if holds.all():
            return
        indices = np.argwhere(~holds)
        lines = [f"{msg or ''} {len(indices)} of {holds.size} elements are {failure}".strip()]
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
        self.fail(f"{msg or ''} {failure}".strip())


def _get_items(structure: PyTree) -> list[Any]:
    return list(structure.values()) if isinstance(structure, dict) else list(structure)


class IndexedSlicesValue(NamedTuple):
    """Components of indexed slices as arrays."""

    values: np.ndarray
    indices: np.ndarray
    dense_shape: np.ndarray | None


def to_numpy(value: Any) -> Any:
    """Return the arrays of a tensor; those of sparse tensors and slices as named tuples."""
    if isinstance(value, SparseTensor):
        return SparseTensorValue(*map(to_numpy, (value.indices, value.values, value.dense_shape)))
    if isinstance(value, IndexedSlices):
        return IndexedSlicesValue(*map(to_numpy, (value.values, value.indices, value.dense_shape)))
    return value.numpy() if hasattr(value, "numpy") else value


def _has_rows(value: np.ndarray) -> bool:
    """Return whether the elements are arrays, as in the values of ragged tensors."""
    return value.dtype == object and any(isinstance(v, np.ndarray) for v in value.flat)


def _are_equal(a: np.ndarray, b: np.ndarray) -> bool:
    a, b = np.asarray(a), np.asarray(b)  # The elements of an array of rows may be scalars.
    is_nested = a.shape == b.shape and _has_rows(a)
    return all(map(_are_equal, a.flat, b.flat)) if is_nested else np.array_equal(a, b)


def _to_array(value: TensorLike) -> np.ndarray:
    if isinstance(value, (list, tuple)):
        value = [_to_array(v) for v in value]
        if len({v.shape for v in value}) > 1:
            # The rows of a ragged list are elements, as in the array of a ragged tensor.
            rows = np.empty(len(value), object)
            for i, row in enumerate(value):
                rows[i] = row
            return rows
    array = np.asarray(to_numpy(value))
    if array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8")
    return array.astype(object) if array.dtype.kind == "S" else array


def main(argv: list[str] | None = None) -> None:
    """Run the tests of the calling program.

    Args:
      argv: Arguments of `unittest`; default those of the program.
    """
    unittest.main(argv=argv)

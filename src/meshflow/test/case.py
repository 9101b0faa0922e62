"""`tf.test.TestCase`: assertions about tensors, arrays and nested structures of them."""

from __future__ import annotations

import contextlib
import random as python_random
import re
import unittest
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices, SparseTensor
from meshflow.core.runtime.errors import OpError
from meshflow.core.values import nest
from meshflow.core.values.dtypes import as_dtype
from meshflow.ops.random import set_seed
from meshflow.test.assertions import MoreAssertions

__all__ = ["TestCase", "main"]


_SEED = 87654321


class TestCase(MoreAssertions):
    """`unittest.TestCase` with assertions about tensors, arrays and nested structures of them.

    Before each test the global seeds (Python's, NumPy's and `tf.random`'s) are set to fixed values.

    Example:
      >>> import meshflow as tf
      >>> tf.test.TestCase().assertAllClose([1.0, 2.0], tf.constant([1.0, 2.0]))
    """

    def setUp(self) -> None:
        """Sets the seeds; a subclass that overrides this calls it first."""
        super().setUp()
        python_random.seed(_SEED)
        np.random.seed(_SEED)
        set_seed(_SEED)

    def get_temp_dir(self) -> str:
        """A folder for this test, removed after it."""
        return self._folder_of_test()

    def evaluate(self, tensors: Any) -> Any:
        """The NumPy values of a nested structure of tensors and variables, or of what a function gives."""
        return nest.map_structure(_value, tensors() if callable(tensors) else tensors)

    @contextlib.contextmanager
    def session(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Does nothing: there are no sessions. Kept for tests that run in both versions."""
        yield

    cached_session = session

    def test_session(self, *args: Any, **kwargs: Any) -> contextlib.AbstractContextManager[None]:
        """The old name of `session`; runners that take it for a test by its name skip it."""
        if self._testMethodName == "test_session":
            self.skipTest("Not a test.")
        return self.session(*args, **kwargs)

    # ---- equality and closeness

    def assertAllEqual(self, a: Any, b: Any, msg: str | None = None) -> None:
        """Fails unless both have one shape and equal elements; NaN equals NaN."""
        a, b = _array(a), _array(b)
        self._same_shape(a, b, msg)
        with np.errstate(invalid="ignore"):
            same = a == b
            if a.dtype.kind in "fc" and b.dtype.kind in "fc":
                same = same | (np.isnan(a) & np.isnan(b))
        self._all(np.asarray(same), a, b, "not equal", msg)

    def assertNotAllEqual(self, a: Any, b: Any, msg: str | None = None) -> None:
        """Fails when `assertAllEqual` holds."""
        self._must_fail(self.assertAllEqual, "all elements are equal", msg, a, b)

    def assertAllClose(
        self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None
    ) -> None:
        """Fails unless `|a - b| <= atol + rtol * |b|` everywhere in two nested structures."""
        if nest.is_nested(a) and any(nest.is_nested(v) or hasattr(v, "shape") for v in _items(a)):
            self.assertEqual(len(_items(a)), len(_items(b)), msg)
            if isinstance(a, dict):
                self.assertCountEqual(a, b, msg)
                pairs = [(a[k], b[k], f"[{k!r}]") for k in a]
            else:
                pairs = [(x, y, f"[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True))]
            for x, y, where in pairs:
                self.assertAllClose(x, y, rtol, atol, f"{msg or ''} at {where}".strip())
            return
        if isinstance(a, dict):
            self.assertCountEqual(a, b, msg)
            a, b = [a[k] for k in sorted(a)], [b[k] for k in sorted(a)]
        a, b = _array(a), _array(b)
        self._same_shape(a, b, msg)
        close = np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
        self._all(close, a, b, f"not close (rtol={rtol}, atol={atol})", msg)

    def assertNotAllClose(
        self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None
    ) -> None:
        """Fails when `assertAllClose` holds."""
        self._must_fail(self.assertAllClose, "all elements are close", msg, a, b, rtol, atol)

    def assertAllCloseAccordingToType(
        self,
        a: Any,
        b: Any,
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
        """`assertAllClose` with wider tolerances when either operand has a narrow dtype."""
        a, b = _array(a), _array(b)
        kinds = {str(a.dtype), str(b.dtype)}
        for name, r, t in (
            ("float32", float_rtol, float_atol),
            ("complex64", float_rtol, float_atol),
            ("float16", half_rtol, half_atol),
            ("bfloat16", bfloat16_rtol, bfloat16_atol),
        ):
            if name in kinds:
                rtol, atol = max(rtol, r), max(atol, t)
        a, b = (x.astype(np.float32) if str(x.dtype) == "bfloat16" else x for x in (a, b))
        self.assertAllClose(a, b, rtol=rtol, atol=atol, msg=msg)

    def assertNear(self, f1: Any, f2: Any, err: float, msg: str | None = None) -> None:
        """Fails unless two numbers differ by at most `err`."""
        self.assertTrue(f1 == f2 or abs(f1 - f2) <= err, f"{f1!r} and {f2!r} differ by > {err}")

    def assertArrayNear(self, farray1: Any, farray2: Any, err: float, msg: Any = None) -> None:
        """`assertNear` for every pair of two sequences."""
        self.assertEqual(len(farray1), len(farray2), msg)
        for one, two in zip(farray1, farray2, strict=True):
            self.assertNear(float(one), float(two), err, msg)

    def assertNDArrayNear(self, ndarray1: Any, ndarray2: Any, err: float, msg: Any = None) -> None:
        """Fails unless the Euclidean distance of two arrays is below `err`."""
        distance = np.linalg.norm(_array(ndarray1) - _array(ndarray2))
        self.assertLess(float(distance), err, msg)

    # ---- order and membership

    def assertAllGreater(self, a: Any, comparison_target: Any) -> None:
        """Fails unless every element is greater than a number."""
        a = _array(a)
        self._all(a > comparison_target, a, comparison_target, "not greater", None)

    def assertAllLess(self, a: Any, comparison_target: Any) -> None:
        """Fails unless every element is less than a number."""
        a = _array(a)
        self._all(a < comparison_target, a, comparison_target, "not less", None)

    def assertAllGreaterEqual(self, a: Any, comparison_target: Any) -> None:
        """Fails unless every element is at least a number."""
        a = _array(a)
        self._all(a >= comparison_target, a, comparison_target, "less", None)

    def assertAllLessEqual(self, a: Any, comparison_target: Any) -> None:
        """Fails unless every element is at most a number."""
        a = _array(a)
        self._all(a <= comparison_target, a, comparison_target, "greater", None)

    def assertAllInRange(
        self,
        target: Any,
        lower_bound: Any,
        upper_bound: Any,
        open_lower_bound: bool = False,
        open_upper_bound: bool = False,
    ) -> None:
        """Fails unless every element is between two bounds, themselves included unless open."""
        a = _array(target)
        above = a > lower_bound if open_lower_bound else a >= lower_bound
        below = a < upper_bound if open_upper_bound else a <= upper_bound
        self._all(above & below, a, (lower_bound, upper_bound), "out of range", None)

    def assertAllInSet(self, target: Any, expected_set: Any) -> None:
        """Fails unless every element is one of the given ones."""
        a = _array(target)
        self._all(np.isin(a, list(expected_set)), a, expected_set, "not in the set", None)

    # ---- shapes, dtypes, errors

    def assertShapeEqual(self, input_a: Any, input_b: Any, msg: str | None = None) -> None:
        """Fails unless both have one shape."""
        self.assertEqual(tuple(input_a.shape), tuple(input_b.shape), msg)

    def assertDTypeEqual(self, target: Any, expected_dtype: Any) -> None:
        """Fails unless an array or tensor has a dtype."""
        self.assertEqual(as_dtype(_array(target).dtype), as_dtype(expected_dtype))

    @contextlib.contextmanager
    def assertRaisesWithPredicateMatch(
        self, exception_type: Any, expected_err_re_or_predicate: Any
    ) -> Iterator[None]:
        """Fails unless the block raises an error whose text matches a pattern (or predicate)."""
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

    def assertRaisesOpError(self, expected_err_re_or_predicate: Any) -> Any:
        """`assertRaisesWithPredicateMatch` for `tf.errors.OpError`."""
        return self.assertRaisesWithPredicateMatch(OpError, expected_err_re_or_predicate)

    def _same_shape(self, a: np.ndarray, b: np.ndarray, msg: str | None) -> None:
        self.assertEqual(a.shape, b.shape, f"{msg or ''} shapes {a.shape} and {b.shape} differ")

    def _all(self, holds: Any, a: Any, b: Any, what: str, msg: str | None) -> None:
        holds = np.asarray(holds)
        if holds.all():
            return
        where = np.argwhere(~holds)
        lines = [f"{msg or ''} {len(where)} of {holds.size} elements are {what}".strip()]
        for index in map(tuple, where[:10]):
            other = b[index] if isinstance(b, np.ndarray) and b.shape == holds.shape else b
            lines.append(f"  at {list(map(int, index))}: {a[index]!r} against {other!r}")
        self.fail("\n".join(lines))

    def _must_fail(self, assertion: Callable[..., None], what: str, msg: Any, *args: Any) -> None:
        try:
            assertion(*args)
        except AssertionError:
            return
        self.fail(f"{msg or ''} {what}".strip())


def _items(structure: Any) -> list[Any]:
    return list(structure.values()) if isinstance(structure, dict) else list(structure)


class SparseTensorValue(NamedTuple):
    """The parts of a sparse tensor as arrays."""

    indices: np.ndarray
    values: np.ndarray
    dense_shape: np.ndarray


class IndexedSlicesValue(NamedTuple):
    """The parts of indexed slices as arrays."""

    values: np.ndarray
    indices: np.ndarray
    dense_shape: np.ndarray | None


def _value(value: Any) -> Any:
    if isinstance(value, SparseTensor):
        return SparseTensorValue(*map(_value, (value.indices, value.values, value.dense_shape)))
    if isinstance(value, IndexedSlices):
        return IndexedSlicesValue(*map(_value, (value.values, value.indices, value.dense_shape)))
    return value.numpy() if hasattr(value, "numpy") else value


def _array(value: Any) -> np.ndarray:
    if isinstance(value, (list, tuple)):
        value = [_array(v) for v in value]
    array = np.asarray(_value(value))
    if array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8")
    return array.astype(object) if array.dtype.kind == "S" else array


def main(argv: list[str] | None = None) -> None:
    """Runs the tests of the calling program.

    Args:
      argv: arguments for `unittest`; default the program's own.
    """
    unittest.main(argv=argv)

"""Assertions about Python values that `tf.test.TestCase` has beside those of `unittest`."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import unittest
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

__all__ = ["MoreAssertions"]


class _TemporaryFile:
    """A file or folder of a test; `full_path` is where it is."""

    def __init__(self, path: str) -> None:
        self.full_path = path

    def read_text(self) -> str:
        with open(self.full_path, encoding="utf-8") as file:
            return file.read()

    def write_text(self, text: str) -> None:
        with open(self.full_path, "w", encoding="utf-8") as file:
            file.write(text)

    def __fspath__(self) -> str:
        return self.full_path


class _Written:
    """What a stream was given while `captureWritesToStream` was active."""

    def __init__(self) -> None:
        self.text = ""

    def contents(self) -> str:
        return self.text


class MoreAssertions(unittest.TestCase):
    """Assertions that Abseil's test case has, and helpers with files and streams."""

    def assertLen(self, container: Any, expected_len: int, msg: str | None = None) -> None:
        """Fails unless the container has so many items."""
        self.assertEqual(len(container), expected_len, msg)

    def assertEmpty(self, container: Any, msg: str | None = None) -> None:
        """Fails unless the container has no items."""
        self.assertLen(container, 0, msg)

    def assertNotEmpty(self, container: Any, msg: str | None = None) -> None:
        """Fails when the container has no items."""
        self.assertGreater(len(container), 0, msg)

    def assertStartsWith(self, actual: Any, expected_start: Any, msg: str | None = None) -> None:
        """Fails unless a text starts with another."""
        self.assertTrue(actual.startswith(expected_start), msg or f"{actual!r}: {expected_start!r}")

    def assertEndsWith(self, actual: Any, expected_end: Any, msg: str | None = None) -> None:
        """Fails unless a text ends with another."""
        self.assertTrue(actual.endswith(expected_end), msg or f"{actual!r}: {expected_end!r}")

    def assertBetween(self, value: Any, minv: Any, maxv: Any, msg: str | None = None) -> None:
        """Fails unless a value lies within bounds, both included."""
        self.assertTrue(minv <= value <= maxv, msg or f"{value!r} not within [{minv!r}, {maxv!r}]")

    def assertItemsEqual(self, expected_seq: Any, actual_seq: Any, msg: str | None = None) -> None:
        """The older name of `assertCountEqual`."""
        self.assertCountEqual(expected_seq, actual_seq, msg)

    def assertSameElements(
        self, expected_seq: Any, actual_seq: Any, msg: str | None = None
    ) -> None:
        """Fails unless both hold the same items, however often."""
        one, other = list(expected_seq), list(actual_seq)
        odd = [v for v in one if v not in other] + [v for v in other if v not in one]
        self.assertFalse(odd, msg or f"not in both: {odd!r}")

    def assertContainsSubset(
        self, expected_subset: Any, actual_set: Any, msg: str | None = None
    ) -> None:
        """Fails unless all items of the first are in the second."""
        missing = [v for v in expected_subset if v not in actual_set]
        self.assertFalse(missing, msg or f"missing: {missing!r}")

    def assertNoCommonElements(
        self, expected_seq: Any, actual_seq: Any, msg: str | None = None
    ) -> None:
        """Fails when an item is in both."""
        common = [v for v in expected_seq if v in actual_seq]
        self.assertFalse(common, msg or f"in both: {common!r}")

    def assertSequenceStartsWith(
        self, prefix: Sequence[Any], whole: Sequence[Any], msg: str | None = None
    ) -> None:
        """Fails unless the second sequence begins with the items of the first, at least one."""
        self.assertNotEmpty(prefix, msg)
        self.assertEqual(list(prefix), list(whole[: len(prefix)]), msg)

    def assertSequenceAlmostEqual(
        self,
        expected_seq: Collection[Any],
        actual_seq: Collection[Any],
        places: int | None = None,
        msg: str | None = None,
        delta: float | None = None,
    ) -> None:
        """Fails unless `assertAlmostEqual` holds for all pairs of items."""
        self.assertEqual(len(expected_seq), len(actual_seq), msg)
        for one, other in zip(expected_seq, actual_seq, strict=True):
            self.assertAlmostEqual(one, other, places, msg, delta)  # type: ignore[arg-type]

    def assertContainsInOrder(
        self, strings: Sequence[str], target: str, msg: str | None = None
    ) -> None:
        """Fails unless the texts occur in the target, one after another."""
        place = 0
        for text in [strings] if isinstance(strings, str) else strings:
            found = target.find(text, place)
            self.assertGreaterEqual(found, 0, msg or f"{text!r} is not in {target[place:]!r}")
            place = found + len(text)

    def assertTotallyOrdered(self, *groups: Sequence[Any], msg: str | None = None) -> None:
        """Fails unless items of a group are equal, and smaller than those of later groups."""
        flat = [(number, value) for number, group in enumerate(groups) for value in group]
        for i, one in flat:
            for j, other in flat:
                self.assertEqual(i == j, one == other, msg)
                self.assertEqual(i < j, one < other, msg)
                self.assertEqual(i <= j, one <= other, msg)

    def assertSameStructure(
        self, a: Any, b: Any, aname: str = "a", bname: str = "b", msg: str | None = None
    ) -> None:
        """Fails unless two nested structures of lists and dictionaries have equal leaves."""
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            self.assertCountEqual(a, b, msg)
            pairs = [(a[k], b[k], f"[{k!r}]") for k in a]
        elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            self.assertEqual(len(a), len(b), msg or f"{aname} and {bname} differ in length")
            pairs = [(x, y, f"[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True))]
        else:
            self.assertEqual(a, b, msg or f"{aname} and {bname} differ")
            return
        for x, y, where in pairs:
            self.assertSameStructure(x, y, aname + where, bname + where, msg)

    def assertUrlEqual(self, a: str, b: str, msg: str | None = None) -> None:
        """Fails unless two addresses are equal but for the order of their parameters."""
        one, other = urlsplit(a), urlsplit(b)
        self.assertEqual(one[:3], other[:3], msg)
        self.assertCountEqual(parse_qsl(one.query), parse_qsl(other.query), msg)

    def assertJsonEqual(self, first: str, second: str, msg: str | None = None) -> None:
        """Fails unless two texts hold the same JSON value."""
        self.assertEqual(json.loads(first), json.loads(second), msg)

    def assertRaisesWithLiteralMatch(
        self,
        expected_exception: Any,
        expected_exception_message: str,
        callable_obj: Callable[..., Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Fails unless an exception with exactly this text is raised, by a `with` block or a call."""

        @contextlib.contextmanager
        def check() -> Iterator[None]:
            with self.assertRaises(expected_exception) as caught:
                yield
            self.assertEqual(str(caught.exception), expected_exception_message)

        if callable_obj is None:
            return check()
        with check():
            callable_obj(*args, **kwargs)
        return None

    def assertRaisesIncompatibleShapesError(
        self,
        exception_type: Any = Exception,
        callable_obj: Callable[..., Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Fails unless shapes that do not fit are refused, by a `with` block or a call."""
        text = r"[Ii]ncompatible shapes|must be equal|[Ss]hapes must|broadcast|compatible"
        if callable_obj is None:
            return self.assertRaisesRegex(exception_type, text)
        with self.assertRaisesRegex(exception_type, text):
            callable_obj(*args, **kwargs)
        return None

    def _folder_of_test(self) -> str:
        if not hasattr(self, "_folder"):
            self._folder = tempfile.TemporaryDirectory()
            self.addCleanup(self._folder.cleanup)
        return self._folder.name

    def create_tempdir(self, name: str | None = None, cleanup: Any = None) -> _TemporaryFile:
        """A folder that is removed after the test."""
        root = self._folder_of_test()
        path = os.path.join(root, name) if name else tempfile.mkdtemp(dir=root)
        os.makedirs(path, exist_ok=True)
        return _TemporaryFile(path)

    def create_tempfile(
        self, file_path: str | None = None, content: Any = None, mode: str = "w", **kwargs: Any
    ) -> _TemporaryFile:
        """A file that is removed after the test."""
        path = os.path.join(
            self._folder_of_test(), file_path or f"file{len(os.listdir(self._folder_of_test()))}"
        )
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb" if isinstance(content, bytes) else "w") as file:
            file.write(content or "")
        return _TemporaryFile(path)

    @contextlib.contextmanager
    def captureWritesToStream(self, stream: Any) -> Iterator[_Written]:
        """Catches what is written to a stream with a file descriptor, such as `sys.stderr`."""
        stream.flush()
        written, number = _Written(), stream.fileno()
        kept = os.dup(number)
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), number)
            try:
                yield written
            finally:
                stream.flush()
                os.dup2(kept, number)
                os.close(kept)
                file.seek(0)
                written.text = file.read().decode(errors="replace")

"""Assertions about Python values, files and streams for `tf.test.TestCase`."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import unittest
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Sized,
)
from typing import IO, Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from meshflow.environment.optional_packages import import_extra
from meshflow.environment.types import PyTree

_T = TypeVar("_T")


class _TemporaryFile:
    """A file or directory of a test, at `full_path`."""

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


class _CapturedStream:
    """Text that was written to a stream while `captureWritesToStream` was active."""

    def __init__(self, stream: IO[Any], file: IO[bytes]) -> None:
        self._stream, self._file, self._text = stream, file, ""

    def contents(self) -> str:
        """Return the text so far; after the block, all of it."""
        if not self._file.closed:
            self._stream.flush()
            self._file.seek(0)
            self._text = self._file.read().decode(errors="replace")
        return self._text


class AbslAssertions(unittest.TestCase):
    """Assertions of Abseil's test case, and helpers for files and streams."""

    def assertLen(self, container: Sized, expected_len: int, msg: str | None = None) -> None:
        """Fail unless the container has `expected_len` items."""
        self.assertEqual(len(container), expected_len, msg)

    def assertEmpty(self, container: Sized, msg: str | None = None) -> None:
        """Fail unless the container is empty."""
        self.assertLen(container, 0, msg)

    def assertNotEmpty(self, container: Sized, msg: str | None = None) -> None:
        """Fail if the container is empty."""
        self.assertGreater(len(container), 0, msg)

    def assertStartsWith(self, actual: str, expected_start: str, msg: str | None = None) -> None:
        """Fail unless a string starts with another."""
        self.assertTrue(actual.startswith(expected_start), msg or f"{actual!r}: {expected_start!r}")

    def assertEndsWith(self, actual: str, expected_end: str, msg: str | None = None) -> None:
        """Fail unless a string ends with another."""
        self.assertTrue(actual.endswith(expected_end), msg or f"{actual!r}: {expected_end!r}")

    def assertNotStartsWith(
        self, actual: str, unexpected_start: str, msg: str | None = None
    ) -> None:
        """Fail if a string starts with another."""
        self.assertFalse(actual.startswith(unexpected_start), msg or f"{actual!r}")

    def assertNotEndsWith(self, actual: str, unexpected_end: str, msg: str | None = None) -> None:
        """Fail if a string ends with another."""
        self.assertFalse(actual.endswith(unexpected_end), msg or f"{actual!r}")

    def assertRegexMatch(
        self, actual_str: str, regexes: Sequence[str], message: str | None = None
    ) -> None:
        """Fail unless one of several regular expressions matches a part of a string."""
        self.assertRegex(actual_str, "|".join(f"(?:{regex})" for regex in regexes), message)

    def assertBetween(self, value: Any, minv: Any, maxv: Any, msg: str | None = None) -> None:
        """Fail unless a value is in [`minv`, `maxv`]."""
        self.assertTrue(minv <= value <= maxv, msg or f"{value!r} not within [{minv!r}, {maxv!r}]")

    def assertItemsEqual(
        self, expected_seq: Iterable[object], actual_seq: Iterable[object], msg: str | None = None
    ) -> None:
        """Fail unless two sequences have the same items; the old name of `assertCountEqual`."""
        self.assertCountEqual(expected_seq, actual_seq, msg)

    def assertSameElements(
        self, expected_seq: Iterable[object], actual_seq: Iterable[object], msg: str | None = None
    ) -> None:
        """Fail unless two sequences have the same distinct items."""
        expected, actual = list(expected_seq), list(actual_seq)
        unmatched = [v for v in expected if v not in actual] + [
            v for v in actual if v not in expected
        ]
        self.assertFalse(unmatched, msg or f"not in both: {unmatched!r}")

    def assertContainsSubset(
        self,
        expected_subset: Iterable[object],
        actual_set: Container[object],
        msg: str | None = None,
    ) -> None:
        """Fail unless all items of the first collection are in the second."""
        missing = [v for v in expected_subset if v not in actual_set]
        self.assertFalse(missing, msg or f"missing: {missing!r}")

    def assertNoCommonElements(
        self, expected_seq: Iterable[object], actual_seq: Container[object], msg: str | None = None
    ) -> None:
        """Fail if an item is in both sequences."""
        common = [v for v in expected_seq if v in actual_seq]
        self.assertFalse(common, msg or f"in both: {common!r}")

    def assertSequenceStartsWith(
        self, prefix: Sequence[object], whole: Sequence[object], msg: str | None = None
    ) -> None:
        """Fail unless the second sequence starts with the first, which must not be empty."""
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
        """Fail unless `assertAlmostEqual` holds for all pairs of items."""
        self.assertEqual(len(expected_seq), len(actual_seq), msg)
        for expected, actual in zip(expected_seq, actual_seq, strict=True):
            self.assertAlmostEqual(expected, actual, places, msg, delta)  # type: ignore[arg-type]

    def assertContainsSubsequence(
        self, container: Iterable[object], subsequence: Iterable[object], msg: str | None = None
    ) -> None:
        """Fail unless the items of the second sequence occur in the first, in the same order."""
        items = iter(container)
        missing = [value for value in subsequence if value not in items]
        self.assertFalse(missing, msg or f"not in order: {missing!r}")

    def assertContainsExactSubsequence(
        self, container: Sequence[object], subsequence: Sequence[object], msg: str | None = None
    ) -> None:
        """Fail unless the second sequence is a contiguous part of the first."""
        size, part = len(subsequence), list(subsequence)
        starts = range(len(container) - size + 1)
        is_contained = any(list(container[i : i + size]) == part for i in starts)
        self.assertTrue(is_contained, msg or f"{part!r} is no part of {container!r}")

    def assertContainsInOrder(
        self, strings: Sequence[str], target: str, msg: str | None = None
    ) -> None:
        """Fail unless the strings occur in the target, one after another."""
        start = 0
        for text in [strings] if isinstance(strings, str) else strings:
            index = target.find(text, start)
            self.assertGreaterEqual(index, 0, msg or f"{text!r} is not in {target[start:]!r}")
            start = index + len(text)

    def assertTotallyOrdered(self, *groups: Sequence[Any], msg: str | None = None) -> None:
        """Fail unless the items of a group are equal, and smaller than those of later groups."""
        items = [(index, value) for index, group in enumerate(groups) for value in group]
        for i, x in items:
            for j, y in items:
                self.assertEqual(i == j, x == y, msg)
                self.assertEqual(i < j, x < y, msg)
                self.assertEqual(i <= j, x <= y, msg)

    def assertSameStructure(
        self, a: PyTree, b: PyTree, aname: str = "a", bname: str = "b", msg: str | None = None
    ) -> None:
        """Fail unless two nested structures of lists and dictionaries have equal leaves."""
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            self.assertCountEqual(a, b, msg)
            pairs = [(a[k], b[k], f"[{k!r}]") for k in a]
        elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            self.assertEqual(len(a), len(b), msg or f"{aname} and {bname} differ in length")
            pairs = [(x, y, f"[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True))]
        else:
            self.assertEqual(a, b, msg or f"{aname} and {bname} differ")
            return
        for x, y, path in pairs:
            self.assertSameStructure(x, y, aname + path, bname + path, msg)

    def assertMappingEqual(
        self,
        a: Mapping[Any, object],
        b: Mapping[Any, object],
        msg: str | None = None,
        mapping_type: type = Mapping,
    ) -> None:
        """Fail unless two mappings of a type have equal items."""
        for mapping in (a, b):
            self.assertIsInstance(mapping, mapping_type, msg)
        # absl's `assertDictEqual` calls this method.
        unittest.TestCase.assertDictEqual(self, dict(a), dict(b), msg)

    def assertProtoEquals(
        self, expected_message_maybe_ascii: object, validate_message: object, msg: str | None = None
    ) -> None:
        """Fail unless two protocol buffers are equal; the first may be in text format."""
        expected = expected_message_maybe_ascii
        if isinstance(expected, str):
            parse = import_extra("google.protobuf.text_format", None, "protobuf is required").Parse
            expected = parse(expected, type(validate_message)())
        self.assertEqual(expected, validate_message, msg)

    def enter_context(self, manager: contextlib.AbstractContextManager[_T]) -> _T:
        """Enter a context that is left after the test."""
        return self.enterContext(manager)

    def assertUrlEqual(self, a: str, b: str, msg: str | None = None) -> None:
        """Fail unless two URLs are equal except for the order of their parameters."""
        first, second = urlsplit(a), urlsplit(b)
        self.assertEqual(first[:3], second[:3], msg)
        self.assertCountEqual(parse_qsl(first.query), parse_qsl(second.query), msg)

    def assertJsonEqual(self, first: str, second: str, msg: str | None = None) -> None:
        """Fail unless two strings hold the same JSON value."""
        self.assertEqual(json.loads(first), json.loads(second), msg)

    def assertRaisesWithLiteralMatch(
        self,
        expected_exception: type[BaseException],
        expected_exception_message: str,
        callable_obj: Callable[..., Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Fail unless a `with` block or a call raises an exception with exactly this message."""

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
        exception_type: type[BaseException] = Exception,
        callable_obj: Callable[..., Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Fail unless a `with` block or a call raises an error about incompatible shapes."""
        text = r"[Ii]ncompatible shapes|must be equal|[Ss]hapes must|broadcast|compatible"
        if callable_obj is None:
            return self.assertRaisesRegex(exception_type, text)
        with self.assertRaisesRegex(exception_type, text):
            callable_obj(*args, **kwargs)
        return None

    def _get_temp_directory(self) -> str:
        if not hasattr(self, "_temp_directory"):
            self._temp_directory = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            self.addCleanup(self._temp_directory.cleanup)
        return self._temp_directory.name

    def create_tempdir(self, name: str | None = None, cleanup: object = None) -> _TemporaryFile:
        """Create a directory that is deleted after the test."""
        root = self._get_temp_directory()
        path = os.path.join(root, name) if name else tempfile.mkdtemp(dir=root)
        os.makedirs(path, exist_ok=True)
        return _TemporaryFile(path)

    def create_tempfile(
        self,
        file_path: str | None = None,
        content: str | bytes | None = None,
        mode: str = "w",
        **kwargs: object,
    ) -> _TemporaryFile:
        """Create a file that is deleted after the test."""
        path = os.path.join(
            self._get_temp_directory(),
            file_path or f"file{len(os.listdir(self._get_temp_directory()))}",
        )
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb" if isinstance(content, bytes) else "w") as file:
            file.write(content or "")
        return _TemporaryFile(path)

    @contextlib.contextmanager
    def captureWritesToStream(self, stream: IO[Any]) -> Iterator[_CapturedStream]:
        """Capture writes to a stream with a file descriptor, such as `sys.stderr`."""
        stream.flush()
        descriptor = stream.fileno()
        saved_descriptor = os.dup(descriptor)
        # A second position: the stream appends to the file while its text is read.
        with tempfile.NamedTemporaryFile() as file, open(file.name, "ab") as target:
            captured = _CapturedStream(stream, file)
            os.dup2(target.fileno(), descriptor)
            try:
                yield captured
            finally:
                captured.contents()
                os.dup2(saved_descriptor, descriptor)
                os.close(saved_descriptor)

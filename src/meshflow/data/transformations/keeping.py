"""Elements kept, made ahead, counted, or left out where making them fails."""

from __future__ import annotations

import os
import pickle
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from meshflow.core.errors import FailedPreconditionError, OutOfRangeError
from meshflow.data.dataset import (
    UNKNOWN_CARDINALITY,
    Dataset,
    Vector,
    integer,
)
from meshflow.data.running import Run, ahead
from meshflow.data.transformations.base import Unary
from meshflow.data.transformations.elementwise import Map

_NOTHING = object()


class Cache(Unary):
    """Elements kept from the first whole pass, in memory or in a file."""

    def __init__(self, parent: Dataset, filename: str) -> None:
        super().__init__(parent)
        self._file = Path(f"{filename}.meshflow") if filename else None
        self._kept: list[Any] | None = None

    def _forget(self, part: str) -> None:
        """Makes this the cache of a part of the data."""
        self._kept = None
        if self._file is not None:
            self._file = self._file.with_name(f"{self._file.stem}.{part}.meshflow")

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        if self._kept is None and self._file is not None and self._file.exists():
            with open(self._file, "rb") as file:
                try:
                    while True:
                        yield pickle.load(file)
                except EOFError:
                    return
        if self._kept is not None:
            yield from self._kept
            return
        if self._file is None:
            kept = []
            for element in self._parent._elements(run):
                kept.append(element)
                yield element
            self._kept = kept
            return
        part = self._file.with_name(f"{self._file.name}.{os.getpid()}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(part, "wb") as file:
                for element in self._parent._elements(run):
                    pickle.dump(element, file)
                    yield element
            os.replace(part, self._file)
        finally:
            part.unlink(missing_ok=True)


class Prefetch(Unary):
    """Elements made ahead by a thread."""

    _apart = True

    def __init__(self, parent: Dataset, buffer_size: Any) -> None:
        super().__init__(parent)
        size = 2 if buffer_size is None else integer(buffer_size, "buffer_size")
        self._size = 2 if size < 0 else size

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        elements = self._parent._elements(run)
        return elements if self._size == 0 else ahead(elements, self._size)

    def _vector(self, run: Run) -> Vector | None:
        return self._parent._vector(run)


class AssertCardinality(Unary):
    """A dataset that must have so many elements."""

    def __init__(self, parent: Dataset, expected: Any) -> None:
        super().__init__(parent)
        self._expected = integer(expected, "expected_cardinality")

    def _count(self) -> int:
        return self._expected

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        number = 0
        for element in self._parent._elements(run):
            number += 1
            if 0 <= self._expected < number:
                raise _unexpected(self._expected, f"at least {number}")
            yield element
        if number != self._expected and self._expected >= 0:
            raise _unexpected(self._expected, str(number))


def _unexpected(expected: int, found: str) -> Exception:
    return FailedPreconditionError(
        f"Input dataset was expected to contain {expected} elements but contained {found} elements."
    )


class IgnoreErrors(Unary):
    """Elements that could be made; those that raise are left out."""

    def __init__(self, parent: Dataset, log_warning: bool) -> None:
        super().__init__(parent)
        self._warn = log_warning

    def _count(self) -> int:
        return UNKNOWN_CARDINALITY

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        if hasattr(self._parent, "_without_errors"):
            parent = self._parent._without_errors(lambda error: _report(error, self._warn))
            yield from parent._elements(run)
            return
        if not isinstance(self._parent, Map):
            # An error ends what makes the elements; before a map nothing is lost by that.
            yield from _until_error(self._parent._elements(run), self._warn)
            return
        for element in self._parent._parent._elements(run):
            try:
                result = self._parent.function(element)
            except Exception as error:
                _report(error, self._warn)
                continue
            yield result


def _until_error(elements: Iterator[Any], warn: bool) -> Iterator[Any]:
    while True:
        try:
            element = next(elements, _NOTHING)
        except Exception as error:
            _report(error, warn)
            continue
        if element is _NOTHING:
            return
        yield element


def _report(error: Exception, warn: bool) -> None:
    if warn:
        import logging

        logging.getLogger("meshflow").warning("An element was left out: %s", error)
    if isinstance(error, OutOfRangeError):
        return

"""Records that are yet to be parsed: what splits a map function into a host part and a compiled part.

`tf.io.parse_single_example` and `tf.io.decode_csv` turn a string into numbers of known shapes. A map
function that begins with one of them is traced with a `Pending` in place of the string: all that
comes after the parsing is a program of numbers, which runs on many records at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from meshflow.core import nest

__all__ = ["Found", "Pending"]


class Parsing(NamedTuple):
    """How strings become numbers.

    Attributes:
      batch: from a vector of strings to batched tensors.
      spec: the spec of the tensors of one string.
    """

    batch: Callable[[Any], Any]
    spec: Any


class Found(BaseException):
    """Ends a look at a map function where it begins to parse.

    Args:
      parsing: what it does.
    """

    def __init__(self, parsing: Parsing) -> None:
        super().__init__(parsing)
        self.parsing = parsing


class Pending:
    """Stands for a string that is yet to be parsed.

    Args:
      parsed: what parsing gives; None to find out how it is parsed.
    """

    def __init__(self, parsed: Any = None) -> None:
        self._parsed, self._used = parsed, False

    def through(self, batch: Callable[[Any], Any], spec: Any) -> Any:
        """What parsing gives.

        Args:
          batch: from a vector of strings to batched tensors.
          spec: the spec of the tensors of one string.

        Raises:
          RuntimeError: when a record is parsed more than once.
        """
        if self._parsed is None:
            raise Found(Parsing(batch, spec))
        if self._used:
            raise RuntimeError("The record is parsed more than once.")
        self._used = True
        nest.assert_same_structure(spec, self._parsed)
        return self._parsed

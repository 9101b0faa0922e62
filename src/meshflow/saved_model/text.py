"""What is done to strings before a program runs, as steps that files can hold.

A step is a list: ["lower"], ["remove", characters], ["flat"] (the last dimension, of size 1, is left out), ["split"]
at spaces, ["look", words, numbers, number of others], or ["pad", length or None, filler or nothing for 0]. Text is held
as Latin-1. ["look"] may have the numbers' dtype besides, and a function of `TEXT_FUNCTIONS` is ["text", its name, arguments by name].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.ops import hashing, strings
from meshflow.saved_model.functions import Program

__all__ = ["TextCall", "TextProgram", "after"]

Steps = list[list[Any]]


# Function and dtype of the results, of functions that give something for each string in files of earlier versions.
TEXT_FUNCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "lower": (strings.lower, "string"),
    "upper": (strings.upper, "string"),
    "strip": (strings.strip, "string"),
    "length": (strings.length, "int32"),
    "regex_replace": (strings.regex_replace, "string"),
    "regex_full_match": (strings.regex_full_match, "bool"),
    "to_hash_bucket_fast": (hashing.to_hash_bucket_fast, "int64"),
}


class TextCall:
    """A function of strings: steps for each of some arguments, and the rest.

    Args:
      steps: places among the arguments that are tensors, with what is done to each.
      specs: specs of what the steps give.
      rest: called with a list of what they give, and the arguments, with None for strings.
      function: the whole.

    Attributes:
      python_function: the whole.
    """

    def __init__(
        self,
        steps: list[tuple[int, Steps]],
        specs: list[TensorSpec],
        rest: Callable[..., Any],
        function: Callable[..., Any],
    ) -> None:
        self.steps, self.specs, self.rest = steps, specs, rest
        self.python_function = function


def after(texts: np.ndarray, steps: Steps) -> np.ndarray:
    """What steps make of texts.

    Args:
      texts: bytes in an array of objects.
      steps: what to do.

    Example:
      >>> texts = np.array([b"A cat", b"dog"], object)
      >>> after(texts, [["lower"], ["split"], ["look", ["a", "cat"], [2, 3], 1], ["pad", 3]]).tolist()
      [[2, 3, 0], [1, 0, 0]]
    """
    shape, rows, dtype = texts.shape, texts.reshape(-1).tolist(), "int64"
    for name, *more in steps:
        if name == "lower":
            rows = [text.lower() for text in rows]
        elif name == "remove":
            unwanted = more[0].encode("latin-1")
            rows = [text.translate(None, unwanted) for text in rows]
        elif name == "flat":
            shape = shape[:-1]
        elif name == "split":
            rows = [text.split() for text in rows]
        elif name == "look":
            rows, dtype = _looked_up(rows, *more[:3]), more[3] if len(more) > 3 else dtype
        elif name == "text":
            rows, dtype = _computed(rows, *more), TEXT_FUNCTIONS[more[0]][1]
        else:
            padded = _padded(rows, *more)
            return padded.reshape(*shape, padded.shape[1])
    return np.array(rows, as_dtype(dtype).as_numpy_dtype).reshape(shape)


def _computed(rows: list[bytes], name: str, given: Mapping[str, Any]) -> list[Any]:
    """What a function gives for each string."""
    texts = np.empty(len(rows), object)
    texts[:] = rows
    plain = {k: v.encode("latin-1") if isinstance(v, str) else v for k, v in given.items()}
    for key in ("encoding", "unit"):
        if key in plain:
            plain[key] = plain[key].decode()
    return TEXT_FUNCTIONS[name][0](Tensor(texts), **plain).numpy().tolist()


def _looked_up(rows: list[Any], words: list[str], numbers: list[int], others: int) -> list[Any]:
    known = dict(zip((w.encode("latin-1") for w in words), numbers, strict=True))
    if rows and isinstance(rows[0], list):
        return [[known.get(word, others) for word in row] for row in rows]
    return [known.get(word, others) for word in rows]


def _padded(rows: list[list[int]], length: int | None, filler: int = 0) -> np.ndarray:
    width = max(map(len, rows), default=0) if length is None else length
    out = np.full((len(rows), width), filler, np.int64)
    for place, row in enumerate(rows):
        out[place, : len(row)] = row[:width]
    return out


class TextProgram:
    """A program of numbers after steps on strings.

    Args:
      steps: places of strings among the arguments, with what is done to each.
      program: what comes after it, which takes what the steps give, and the arguments that are numbers.
    """

    # The steps are done while the rest is traced, of strings that are known.
    on_host = False
    about = None

    def __init__(self, steps: Sequence[Any], program: Program) -> None:
        self._steps, self._program = steps, program

    @property
    def out_specs(self) -> list[TensorSpec]:
        """Specs of the results."""
        return self._program.out_specs

    @property
    def captures(self) -> list[Any]:
        """Variables and constants that it uses."""
        return self._program.captures

    def call(self, tensors: Sequence[Tensor]) -> Any:
        """Runs it; strings must be known."""
        given = [
            Tensor(after(tensors[place]._concrete("a saved function of strings"), steps))
            for place, steps in self._steps
        ]
        return self._program.call([*given, *(t for t in tensors if t.dtype.name != "string")])

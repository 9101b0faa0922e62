"""Steps on strings that run before a program, in the form in which files hold them.

A step is a list with a name and arguments:

* ["lower"]
* ["remove", characters]
* ["flat"]: remove the last axis, of size 1.
* ["split"]: split at white space.
* ["look", words, indices, index of other words]: look up indices, optionally followed by their
  dtype.
* ["pad", length or None, filler]: pad rows to a length, default the longest, with a filler, default
  0.
* ["text", name, arguments by name]: call a function of `TEXT_FUNCTIONS`.

Text is stored as Latin-1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree
from meshflow.ops import hashing, strings
from meshflow.saved_model.programs.restored_functions import RestoredProgram

Steps = list[list[Any]]


# Element-wise functions with the dtypes of their results, which only files of earlier versions
# contain.
TEXT_FUNCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "lower": (strings.lower, "string"),
    "upper": (strings.upper, "string"),
    "strip": (strings.strip, "string"),
    "length": (strings.length, "int32"),
    "regex_replace": (strings.regex_replace, "string"),
    "regex_full_match": (strings.regex_full_match, "bool"),
    "to_hash_bucket_fast": (hashing.to_hash_bucket_fast, "int64"),
}


class TextFunction:
    """Function of strings: steps for some arguments, and a function of numbers.

    Args:
      steps: Index of each string argument among the tensors, with its steps.
      specs: Specs of the results of the steps.
      rest: Function that takes a list of these results, then the arguments with None for strings.
      function: The complete function.

    Attributes:
      python_function: The complete function.
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


def apply_steps(texts: np.ndarray, steps: Steps) -> np.ndarray:
    """Apply steps to strings.

    Args:
      texts: Array of bytes objects.
      steps: The steps.

    Example:
      >>> texts = np.array([b"A cat", b"dog"], object)
      >>> apply_steps(texts, [["lower"], ["split"], ["look", ["a", "cat"], [2, 3], 1], ["pad", 3]]).tolist()
      [[2, 3, 0], [1, 0, 0]]
    """
    shape, rows, dtype = texts.shape, texts.reshape(-1).tolist(), "string"
    for name, *more in steps:
        if name == "lower":
            rows = [text.lower() for text in rows]
        elif name == "remove":
            characters = more[0].encode("latin-1")
            rows = [text.translate(None, characters) for text in rows]
        elif name == "flat":
            shape = shape[:-1]
        elif name == "split":
            rows = [text.split() for text in rows]
        elif name == "look":
            rows, dtype = _look_up_words(rows, *more[:3]), more[3] if len(more) > 3 else "int64"
        elif name == "text":
            rows, dtype = _call_text_function(rows, *more), TEXT_FUNCTIONS[more[0]][1]
        else:
            padded = _pad_rows(rows, *more)
            return padded.reshape(*shape, padded.shape[1])
    return np.array(rows, as_dtype(dtype).as_numpy_dtype).reshape(shape)


def _call_text_function(rows: list[bytes], name: str, arguments: Mapping[str, Any]) -> list[Any]:
    """Call a function of `TEXT_FUNCTIONS` on strings."""
    texts = np.empty(len(rows), object)
    texts[:] = rows
    encoded = {k: v.encode("latin-1") if isinstance(v, str) else v for k, v in arguments.items()}
    for key in ("encoding", "unit"):
        if key in encoded:
            encoded[key] = encoded[key].decode()
    return TEXT_FUNCTIONS[name][0](Tensor(texts), **encoded).numpy().tolist()


def _look_up_words(rows: list[Any], words: list[str], indices: list[int], other: int) -> list[Any]:
    vocabulary = dict(zip((w.encode("latin-1") for w in words), indices, strict=True))
    if rows and isinstance(rows[0], list):
        return [[vocabulary.get(word, other) for word in row] for row in rows]
    return [vocabulary.get(word, other) for word in rows]


def _pad_rows(rows: list[list[int]], length: int | None, filler: int = 0) -> np.ndarray:
    width = max(map(len, rows), default=0) if length is None else length
    out = np.full((len(rows), width), filler, np.int64)
    for index, row in enumerate(rows):
        out[index, : len(row)] = row[:width]
    return out


class TextStepsProgram:
    """Program of numbers that runs after steps on strings.

    Args:
      steps: Index of each string argument, with its steps.
      program: Program that takes the results of the steps, then the arguments that are numbers.
    """

    # The steps run while the program is traced, because its strings must be concrete.
    runs_on_host = False
    digest = None

    def __init__(self, steps: Sequence[Any], program: RestoredProgram) -> None:
        self._steps, self._program = steps, program

    @property
    def out_specs(self) -> list[TensorSpec]:
        """Return the specs of the results."""
        return self._program.out_specs

    @property
    def captures(self) -> list[Any]:
        """Return the captured variables and constants."""
        return self._program.captures

    def call(self, tensors: Sequence[Tensor]) -> PyTree:
        """Run the steps and the program. Strings must be concrete, not traced."""
        numbers = [
            Tensor(apply_steps(tensors[index].require_value("a saved function of strings"), steps))
            for index, steps in self._steps
        ]
        return self._program.call([*numbers, *(t for t in tensors if t.dtype.name != "string")])

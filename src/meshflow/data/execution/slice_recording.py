"""Calls of `from_tensor_slices` in a function that is traced, recorded instead of creating a dataset.

`flat_map(lambda x: Dataset.from_tensor_slices(f(x)))` has the elements of `map(f).unbatch()`, which needs no
dataset for each element.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from meshflow.core.autograph.conversion import convert_callable
from meshflow.core.values.convert import convert_to_tensor
from meshflow.data import structure
from meshflow.environment.types import PyTree


class RecordedSlices:
    """The tensors that a function passed to `from_tensor_slices`.

    Attributes and methods are those of the dataset, which is created when one is used.

    Args:
      tensors: The tensors.
      make_dataset: Returns the dataset of their slices.
    """

    def __init__(self, tensors: PyTree, make_dataset: Callable[[PyTree], Any]) -> None:
        self.tensors, self._make_dataset = tensors, make_dataset

    def __getattr__(self, name: str) -> Any:
        return getattr(self._make_dataset(self.tensors), name)


class _RecordingState(threading.local):
    is_active = False


_recording = _RecordingState()


def is_recording() -> bool:
    """Check whether this thread records calls of `from_tensor_slices`."""
    return _recording.is_active


@contextlib.contextmanager
def _record() -> Iterator[None]:
    saved, _recording.is_active = _recording.is_active, True
    try:
        yield
    finally:
        _recording.is_active = saved


def make_tensor_function(
    fn: Callable[..., Any], report: Callable[[Any], None]
) -> Callable[..., Any]:
    """Return a function of the tensors that `fn` slices; it raises TypeError if `fn` does anything else with them.

    Args:
      fn: The function of an element.
      report: Receives each result of `fn` that is not only slices.
    """
    converted = convert_callable(fn)

    def compute_tensors(*arguments: Any) -> PyTree:
        with _record():
            result = converted(*arguments)
        if type(result) is not RecordedSlices:
            report(result)
            raise TypeError("The function does not only slice tensors.")
        return structure.map_leaves(result.tensors, _join_list)

    return compute_tensors


def _join_list(leaf: Any) -> Any:
    """Convert a list to a tensor, as `from_tensor_slices` does."""
    return convert_to_tensor(leaf) if isinstance(leaf, list) else leaf

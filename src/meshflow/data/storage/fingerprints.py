"""What a dataset computes, as a number: the same for the same pipeline, in this process and in others.

It is made of the transformations, their arguments, and of their functions: code, defaults, and the values that they close
over or find among the globals. It leaves out what only counts up, such as seeds that were not given and names that were
made up, and what a dataset notes while it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from meshflow.core.functions.function import Function
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.random import global_seed
from meshflow.core.variables.variable import Variable
from meshflow.data.dataset import Dataset
from meshflow.data.execution.map_function import ElementFunction

# The largest array in bytes that is looked at as a whole.
_MOST = 1 << 26
# What a dataset notes while it is used, and seeds that were not given.
_STATE = frozenset(
    {"_stopwatch", "_spec", "_kept", "_words", "_seed", "epoch", "_parents", "_parent", "_named"}
)
_PLAIN = (str, int, float, bool, bytes, complex, type(None), Path, types.EllipsisType)
# What somebody's object may hold that says nothing of what it computes.
_NAMES = frozenset({"name", "_name", "__weakref__"})


def fingerprint(dataset: Dataset) -> str:
    """A name for what a dataset computes.

    Args:
      dataset: the dataset.

    Returns:
      Digits.
    """
    digest = hashlib.blake2b(digest_size=8)
    _Walk(digest.update).add(dataset)
    return str(int.from_bytes(digest.digest(), "little"))


class _Walk:
    """Goes through values, once through each."""

    def __init__(self, update: Callable[[bytes], object]) -> None:
        self._update = update
        # With its place in the order of the walk; held, for the id of what is gone comes again.
        self._seen: dict[int, tuple[int, Any]] = {}

    def _say(self, *words: Any) -> None:
        self._update(repr(words).encode())

    def add(self, value: Any) -> None:
        """Adds what a value says of a pipeline."""
        if isinstance(value, _PLAIN):
            return self._say(value)
        if id(value) in self._seen:
            return self._say("again", self._seen[id(value)][0])
        self._seen[id(value)] = len(self._seen), value
        self._say(type(value).__qualname__)
        if isinstance(value, (Tensor, Variable)):
            value = value.numpy()
        if isinstance(value, np.ndarray):
            self._array(value)
        elif isinstance(value, dict):
            self._all(part for item in value.items() for part in item)
        elif isinstance(value, (list, tuple)):
            self._all(value)
        elif isinstance(value, (set, frozenset)):
            self._all(sorted(value, key=repr))
        elif isinstance(value, Dataset):
            self._all([{k: v for k, v in vars(value).items() if k not in _STATE}, value._parents])
        else:
            self._function(value)

    def _all(self, values: Any) -> None:
        found = list(values)
        self._say(len(found))
        for value in found:
            self.add(value)

    def _array(self, array: np.ndarray) -> None:
        self._say(str(array.dtype), array.shape)
        rows = array if array.nbytes <= _MOST else np.concatenate([array[:1], array[-1:]])
        self._update(repr(rows.tolist()).encode() if rows.dtype == object else rows.tobytes())

    def _function(self, value: Any) -> None:
        """Adds what can be called, or an object of which nothing is known but what it holds."""
        if isinstance(value, ElementFunction):
            self.add(value._python)
            if value._random_map is not None:
                self.add(global_seed())
        elif isinstance(value, Function):
            self.add(value.python_function)
        elif isinstance(value, types.MethodType):
            self._all([value.__func__, value.__self__])
        elif inspect.isfunction(value):
            self._all([value.__defaults__, value.__kwdefaults__])
            self._code(value.__code__, value.__globals__)
            self._all(cell.cell_contents for cell in value.__closure__ or () if _is_set(cell))
        elif inspect.isclass(value) or inspect.ismodule(value):
            self._say(value.__name__)
        else:
            self._object(value)

    def _code(self, code: types.CodeType, names: dict[str, Any]) -> None:
        """Adds a function's code, the codes in it, and the globals that they name."""
        self._say(code.co_code, code.co_names, code.co_varnames)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant, names)
            else:
                self.add(constant)
        self._all(value for name in code.co_names for value in _worth_a_look(names.get(name)))

    def _object(self, value: Any) -> None:
        kind = type(value)
        if callable(value) and inspect.isfunction(kind.__call__):
            self._code(kind.__call__.__code__, kind.__call__.__globals__)
        if hasattr(kind, "get_config") and hasattr(kind, "weights"):
            # A layer: most of what it holds is bookkeeping, and some have no configuration.
            with contextlib.suppress(NotImplementedError, ValueError, TypeError):
                self.add(_unnamed(value.get_config()))
                self.add(list(value.weights))
        elif " at 0x" not in repr(value):
            self._say(repr(value))
        elif hasattr(value, "__dict__"):
            self.add({k: v for k, v in vars(value).items() if k not in _NAMES})


def _worth_a_look(value: Any) -> Iterator[Any]:
    """A global that a function names, unless it is the code of a library."""
    module = getattr(value, "__module__", None) or ""
    library = inspect.ismodule(value) or inspect.isclass(value) or inspect.isbuiltin(value)
    if value is not None and not library and module.partition(".")[0] not in _LIBRARIES:
        yield value


_LIBRARIES = frozenset({"meshflow", "numpy", "jax", "jaxlib", "builtins"})


def _is_set(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _unnamed(config: Any) -> Any:
    """A configuration without the names in it, which count up."""
    if isinstance(config, dict):
        return {k: _unnamed(v) for k, v in config.items() if k not in _NAMES}
    if isinstance(config, (list, tuple)):
        return [_unnamed(v) for v in config]
    return config

"""Fingerprints of datasets: the same pipeline has the same fingerprint in all processes.

A fingerprint covers the transformations, their arguments and their functions: code, defaults, and
the values of closures and globals. It excludes values that only count up, such as seeds that were
not set explicitly and generated names, and the state that a dataset stores while it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from meshflow.core.functions.function import Function
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.random_streams import get_global_seed
from meshflow.core.variables.variable import Variable
from meshflow.data.execution.map_function import ElementFunction
from meshflow.data.node import DatasetNode
from meshflow.environment.types import Json

# Only the first and the last row of larger arrays, in bytes, are included.
_MAX_ARRAY_BYTES = 1 << 26
# These attributes of datasets hold state that does not affect the elements.
_STATE = frozenset(
    ("stopwatch", "_spec", "_cached", "_words", "_seed", "epoch", "parents", "_fingerprint")
)
_PLAIN_TYPES = (str, int, float, bool, bytes, complex, type(None), Path, types.EllipsisType)
# These attributes of other objects do not affect the elements.
_IGNORED_NAMES = frozenset({"name", "_name", "__weakref__"})


def compute_fingerprint(dataset: DatasetNode) -> str:
    """Return a fingerprint of a dataset.

    Args:
      dataset: The dataset.

    Returns:
      A string of digits.
    """
    digest = hashlib.blake2b(digest_size=8)
    _Fingerprinter(digest.update).add_value(dataset)
    return str(int.from_bytes(digest.digest(), "little"))


class _Fingerprinter:
    """Hashes values recursively, each object once.

    Args:
      update: Function that adds bytes to the hash.
    """

    def __init__(self, update: Callable[[bytes], object]) -> None:
        self._update = update
        # The index in the order of the traversal, and the object, which is kept alive so that its
        # id is not reused.
        self._seen: dict[int, tuple[int, Any]] = {}

    def _hash(self, *values: object) -> None:
        self._update(repr(values).encode())

    def add_value(self, value: object) -> None:
        """Add a value of a pipeline."""
        if isinstance(value, _PLAIN_TYPES):
            return self._hash(value)
        if id(value) in self._seen:
            return self._hash("again", self._seen[id(value)][0])
        self._seen[id(value)] = len(self._seen), value
        self._hash(type(value).__qualname__)
        if isinstance(value, (Tensor, Variable)):
            value = value.numpy()
        if isinstance(value, np.ndarray):
            self._add_array(value)
        elif isinstance(value, dict):
            self._add_all(part for item in value.items() for part in item)
        elif isinstance(value, (list, tuple)):
            self._add_all(value)
        elif isinstance(value, (set, frozenset)):
            self._add_all(sorted(value, key=repr))
        elif isinstance(value, DatasetNode):
            self._add_all(
                [{k: v for k, v in vars(value).items() if k not in _STATE}, value.parents]
            )
        else:
            self._add_callable(value)

    def _add_all(self, values: Iterable[object]) -> None:
        value_list = list(values)
        self._hash(len(value_list))
        for value in value_list:
            self.add_value(value)

    def _add_array(self, array: np.ndarray) -> None:
        self._hash(str(array.dtype), array.shape)
        rows = (
            array if array.nbytes <= _MAX_ARRAY_BYTES else np.concatenate([array[:1], array[-1:]])
        )
        self._update(repr(rows.tolist()).encode() if rows.dtype == object else rows.tobytes())

    def _add_callable(self, value: object) -> None:
        """Add a callable, or an object of an unknown class by its attributes."""
        if isinstance(value, ElementFunction):
            self.add_value(value.python_function)
            if value.random_map is not None:
                self.add_value(get_global_seed())
        elif isinstance(value, Function):
            self.add_value(value.python_function)
        elif isinstance(value, types.MethodType):
            self._add_all([value.__func__, value.__self__])
        elif inspect.isfunction(value):
            self._add_all([value.__defaults__, value.__kwdefaults__])
            self._add_code(value.__code__, value.__globals__)
            self._add_all(cell.cell_contents for cell in value.__closure__ or () if _is_set(cell))
        elif inspect.isclass(value) or inspect.ismodule(value):
            self._hash(value.__name__)
        else:
            self._add_object(value)

    def _add_code(self, code: types.CodeType, names: dict[str, Any]) -> None:
        """Add the code of a function, the nested code objects, and the globals that they name."""
        self._hash(code.co_code, code.co_names, code.co_varnames)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add_code(constant, names)
            else:
                self.add_value(constant)
        self._add_all(value for name in code.co_names for value in _filter_global(names.get(name)))

    def _add_object(self, value: Any) -> None:
        cls = type(value)
        if callable(value) and inspect.isfunction(cls.__call__):
            self._add_code(cls.__call__.__code__, cls.__call__.__globals__)
        if hasattr(cls, "get_config") and hasattr(cls, "weights"):
            # Most attributes of a layer are bookkeeping, so its configuration and weights are
            # added; some layers have no configuration.
            with contextlib.suppress(NotImplementedError, ValueError, TypeError):
                self.add_value(_remove_names(value.get_config()))
                self.add_value(list(value.weights))
        elif " at 0x" not in repr(value):
            self._hash(repr(value))
        elif hasattr(value, "__dict__"):
            self.add_value({k: v for k, v in vars(value).items() if k not in _IGNORED_NAMES})


def _filter_global(value: object) -> Iterator[Any]:
    """Yield a global that a function names, unless it belongs to a library."""
    module = getattr(value, "__module__", None) or ""
    is_library = inspect.ismodule(value) or inspect.isclass(value) or inspect.isbuiltin(value)
    if value is not None and not is_library and module.partition(".")[0] not in _LIBRARIES:
        yield value


_LIBRARIES = frozenset({"meshflow", "numpy", "jax", "jaxlib", "builtins"})


def _is_set(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _remove_names(config: Json) -> Json:
    """Remove the names from a configuration, because they count up."""
    if isinstance(config, dict):
        return {k: _remove_names(v) for k, v in config.items() if k not in _IGNORED_NAMES}
    if isinstance(config, (list, tuple)):
        return [_remove_names(v) for v in config]
    return config

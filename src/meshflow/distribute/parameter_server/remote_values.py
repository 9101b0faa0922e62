"""What `ClusterCoordinator.schedule` gives, and values that every worker has its own of."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from meshflow.core.functions.function import Function
from meshflow.core.runtime.errors import CancelledError, InvalidValueError
from meshflow.core.tracing.trace import is_array_like
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor

__all__ = ["PerWorkerDataset", "PerWorkerValues", "RemoteValue"]


class RemoteValue:
    """The result of a scheduled closure, once there is one."""

    _stays_with_coordinator = "A RemoteValue stays with the coordinator: fetch() its value there, and pass that as an argument."

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def fetch(self) -> Any:
        """The result, with NumPy arrays in the place of tensors; waits for it.

        Raises:
          CancelledError: when the closure was cancelled, as after an error of another one.
          Exception: the closure's own.
        """
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def get(self) -> Any:
        """The result as tensors; waits for it. Raises what `fetch` raises."""

        def as_tensor(leaf: Any) -> Any:
            return convert_to_tensor(leaf) if is_array_like(leaf) or type(leaf) is bytes else leaf

        return nest.map_structure(as_tensor, self.fetch())

    def _set(self, value: Any) -> None:
        self._value = value
        self._ready.set()

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._ready.set()

    def _cancel(self, why: str) -> None:
        self._fail(CancelledError(why))

    def _too_early(self, *_: Any, **__: Any) -> Any:
        raise InvalidValueError(
            "A RemoteValue is what a worker will return: call fetch() for its value before computing with it."
        )

    # What tensors are asked for.
    __array__ = __float__ = __int__ = __bool__ = __len__ = __iter__ = __getitem__ = _too_early
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _too_early
    __truediv__ = __rtruediv__ = __matmul__ = __pow__ = __neg__ = _too_early
    __lt__ = __le__ = __gt__ = __ge__ = _as_tensor = numpy = _too_early

    def __repr__(self) -> str:
        state = "not ready" if not self._ready.is_set() else "failed" if self._error else "ready"
        return f"<RemoteValue, {state}>"


class PerWorkerValues:
    """A value for every worker; as an argument of a closure it is that of the worker which runs it.

    Args:
      values: the values, by worker.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = tuple(values)

    def _of_worker(self, worker: Any) -> Any:
        if worker.number >= len(self._values):
            raise InvalidValueError(
                f"PerWorkerValues has {len(self._values)} values, and worker {worker.number} runs the closure."
            )
        return self._values[worker.number]


_keys = itertools.count(1)
# Iterators that the program has let go of, in that order: workers need not keep theirs.
ended: list[int] = []


class PerWorkerDataset:
    """A dataset that every worker makes for itself; made by `ClusterCoordinator.create_per_worker_dataset`.

    Args:
      dataset_fn: a function without arguments that returns a dataset, or a dataset.
    """

    _stays_with_coordinator = "A per-worker dataset stays with the coordinator: pass iter() of it as an argument of the closure."

    def __init__(self, dataset_fn: Any) -> None:
        # What a worker needs is the plain function: a traced one would make datasets of symbolic values.
        self._make: Any = (
            dataset_fn.python_function if isinstance(dataset_fn, Function) else dataset_fn
        )

    def __iter__(self) -> PerWorkerIterator:
        return PerWorkerIterator(self._make)

    @property
    def element_spec(self) -> Any:
        """The type of the elements, for which the dataset is made here once more."""
        made = self._make() if callable(self._make) else self._make
        return made.element_spec


class PerWorkerIterator(PerWorkerValues):
    """An iterator on every worker; made there when a closure that is given it first runs.

    Args:
      make: makes the dataset, or is it.
    """

    def __init__(self, make: Callable[[], Any] | Any) -> None:
        self._make, self._key = make, next(_keys)
        weakref.finalize(self, ended.append, self._key)

    def _of_worker(self, worker: Any) -> Any:
        found = worker.resources.get(self._key)
        if found is None:
            dataset = self._make() if callable(self._make) else self._make
            if not hasattr(dataset, "__iter__"):
                raise TypeError(
                    "The function of a per-worker dataset must return a dataset, or something else that can be iterated "
                    f"over, got {dataset!r}."
                )
            found = worker.resources[self._key] = iter(dataset)
        return found

    @property
    def element_spec(self) -> Any:
        """The type of the elements; see `PerWorkerDataset.element_spec`."""
        return PerWorkerDataset(self._make).element_spec

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(
            "Every worker has an iterator of its own: pass this one to a closure by `schedule(fn, args=(iterator,))`, "
            "and take elements there."
        )

    __next__ = __iter__

"""Results of scheduled closures, and values of which every worker has its own."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Protocol

from meshflow.core.functions.function import Function
from meshflow.core.runtime.errors import CancelledError, InvalidValueError
from meshflow.core.tracing.trace import is_array_like
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.distribute.parameter_server.closures.stubs import CoordinatorOnly
from meshflow.environment.types import PyTree
from meshflow.ops.ragged import RaggedTensor


class ResourceHolder(Protocol):
    """Worker with an id, and with the values that arguments of closures represent on it."""

    worker_id: int
    resources: dict[int, Any]


class RemoteValue(CoordinatorOnly):
    """Result of a scheduled closure, which may not be available yet."""

    not_sendable_reason = "A RemoteValue cannot be sent to a worker: fetch() its value first, and pass that as an argument."

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def fetch(self) -> PyTree:
        """Wait for the result and return it, with NumPy arrays in place of tensors and ragged tensors.

        Raises:
          CancelledError: If the closure was cancelled, for example after an error of another
            closure.
          Exception: The exception that the closure has raised.
        """
        return nest.map_structure(
            lambda leaf: leaf.numpy() if isinstance(leaf, RaggedTensor) else leaf, self._wait()
        )

    def _wait(self) -> PyTree:
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def get(self) -> PyTree:
        """Wait for the result and return it as tensors. Raise the same exceptions as `fetch`."""

        def as_tensor(leaf: Any) -> Any:
            return convert_to_tensor(leaf) if is_array_like(leaf) or type(leaf) is bytes else leaf

        return nest.map_structure(as_tensor, self._wait())

    def _set_value(self, value: PyTree) -> None:
        self._value = value
        self._ready.set()

    def _set_error(self, error: BaseException) -> None:
        self._error = error
        self._ready.set()

    def _cancel(self, message: str) -> None:
        self._set_error(CancelledError(message))

    def _raise_not_fetched(self, *_: object, **__: object) -> NoReturn:
        raise InvalidValueError(
            "A RemoteValue is the future result of a worker: call fetch() for its value before computing with it."
        )

    # The operations of tensors.
    __array__ = __float__ = __int__ = __bool__ = __len__ = __iter__ = __getitem__ = (
        _raise_not_fetched
    )
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _raise_not_fetched
    __truediv__ = __rtruediv__ = __matmul__ = __pow__ = __neg__ = _raise_not_fetched
    __lt__ = __le__ = __gt__ = __ge__ = _as_tensor = numpy = _raise_not_fetched

    def __repr__(self) -> str:
        state = "not ready" if not self._ready.is_set() else "failed" if self._error else "ready"
        return f"<RemoteValue, {state}>"


class PerWorkerValues:
    """Values of which each worker sees its own, for use as arguments of closures.

    Args:
      values: The value of each worker.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = tuple(values)

    def _select_for_worker(self, worker: ResourceHolder) -> Any:
        """Return the value of a worker."""
        if worker.worker_id >= len(self._values):
            raise InvalidValueError(
                f"PerWorkerValues has {len(self._values)} values, and worker {worker.worker_id} runs the closure."
            )
        return self._values[worker.worker_id]


# Keys of iterators.
_keys = itertools.count(1)
# Keys of iterators that the program has deleted, in this order. Workers can delete theirs, too.
deleted_iterators: list[int] = []


class PerWorkerDataset(CoordinatorOnly):
    """Dataset that every worker creates for itself.

    `ClusterCoordinator.create_per_worker_dataset` returns it.

    Args:
      dataset_fn: A function without arguments that returns a dataset, or a dataset.
    """

    not_sendable_reason = "A per-worker dataset cannot be sent to a worker: pass iter() of it as an argument of the closure."

    def __init__(self, dataset_fn: Any) -> None:
        # Workers call the Python function, because a traced function would create datasets of
        # symbolic values.
        self._dataset_fn: Any = (
            dataset_fn.python_function if isinstance(dataset_fn, Function) else dataset_fn
        )

    def __iter__(self) -> PerWorkerIterator:
        return PerWorkerIterator(self._dataset_fn)

    @property
    def element_spec(self) -> Any:
        """Return the type of the elements. The dataset is created in this process to determine it."""
        dataset = self._dataset_fn() if callable(self._dataset_fn) else self._dataset_fn
        return dataset.element_spec


class PerWorkerIterator(PerWorkerValues):
    """Iterator that a worker creates when it first runs a closure with this argument.

    Args:
      dataset_fn: A function that returns a dataset, or a dataset.
    """

    def __init__(self, dataset_fn: Callable[[], Any] | Any) -> None:
        self.dataset_fn, self.key = dataset_fn, next(_keys)
        weakref.finalize(self, deleted_iterators.append, self.key)

    def _select_for_worker(self, worker: ResourceHolder) -> Iterator[Any]:
        """Return the iterator of a worker, which is created on first use."""
        iterator = worker.resources.get(self.key)
        if iterator is None:
            dataset = self.dataset_fn() if callable(self.dataset_fn) else self.dataset_fn
            if not hasattr(dataset, "__iter__"):
                raise TypeError(
                    "The function of a per-worker dataset must return a dataset, or another iterable object, got "
                    f"{dataset!r}."
                )
            iterator = worker.resources[self.key] = iter(dataset)
        return iterator

    @property
    def element_spec(self) -> Any:
        """Return the type of the elements; see `PerWorkerDataset.element_spec`."""
        return PerWorkerDataset(self.dataset_fn).element_spec

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(
            "Every worker has its own iterator: pass this one to a closure by `schedule(fn, args=(iterator,))`, and take "
            "elements in the closure."
        )

    __next__ = __iter__

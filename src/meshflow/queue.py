"""`tf.queue`: queues of tensors that threads share."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime import errors
from meshflow.core.runtime.eager import executing_eagerly
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, as_dtype
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree
from meshflow.ops import array
from meshflow.ops.python_function import py_function

__all__ = ["FIFOQueue", "PaddingFIFOQueue", "PriorityQueue", "QueueBase", "RandomShuffleQueue"]

_Item = tuple[Tensor, ...]


def _as_list(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


class QueueBase:
    """Base class of queues.

    An enqueue waits while the queue is full, and a dequeue while it has too few elements. If no other thread runs, which
    could change that, they raise an error instead.

    Args:
      dtypes: Dtypes of the components of an element.
      shapes: Their shapes, or None.
      names: Names of the components, so that elements are dictionaries, or None.
      queue_ref: Ignored.
    """

    def __init__(
        self, dtypes: PyTree, shapes: PyTree, names: object, queue_ref: object = None
    ) -> None:
        self._dtypes = [as_dtype(d) for d in _as_list(dtypes)]
        if shapes is not None:
            shapes = (
                shapes
                if isinstance(shapes, (list, tuple)) and len(self._dtypes) > 1
                else _as_shapes(shapes)
            )
            if len(shapes) != len(self._dtypes):
                raise ValueError(
                    f"Queue shapes must have the same length as dtypes: got {len(shapes)} shapes and "
                    f"{len(self._dtypes)} dtypes."
                )
        self._shapes = None if shapes is None else [TensorShape(s) for s in shapes]
        self._names = None if names is None else _as_list(names)
        if self._names is not None and len(self._names) != len(self._dtypes):
            raise ValueError(
                f"Queue names must have the same length as dtypes: {self._names}, {self._dtypes}."
            )
        self._name, self._capacity = type(self).__name__, 0
        self._items: list[_Item] = []
        self._is_closed, self._min_remaining = False, 0
        self._changed = threading.Condition()

    @staticmethod
    def from_list(index: int, queues: Sequence[QueueBase]) -> QueueBase:
        """Return one of several queues.

        Raises:
          TypeError: If the list does not consist of queues of equal dtypes.
        """
        if not queues or not all(isinstance(q, QueueBase) for q in queues):
            raise TypeError("A list of queues expected")
        if any(q.dtypes != queues[0].dtypes for q in queues):
            raise TypeError("Queues do not have matching component dtypes.")
        return queues[int(index)]

    @property
    def dtypes(self) -> list[DType]:
        """Return the dtypes of the components."""
        return self._dtypes

    @property
    def shapes(self) -> list[TensorShape]:
        """Return the shapes of the components."""
        return [TensorShape(None)] * len(self._dtypes) if self._shapes is None else self._shapes

    @property
    def names(self) -> list[str] | None:
        """Return the names of the components, or None."""
        return self._names

    @property
    def name(self) -> str:
        """Return the name of the queue."""
        return self._name

    @property
    def queue_ref(self) -> QueueBase:
        """Return the queue itself."""
        return self

    # ---- elements --------------------------------------------------------------------------

    def _to_components(self, vals: PyTree, batch: bool) -> _Item:
        """Convert the argument of an enqueue to tensors, and check them."""
        if isinstance(vals, Mapping):
            if self._names is None:
                raise ValueError("Queue must have names to enqueue a dictionary")
            if sorted(self._names) != sorted(vals):
                raise ValueError(
                    f"Keys in dictionary to enqueue do not match names of Queue: {sorted(vals)}"
                )
            vals = [vals[name] for name in self._names]
        elif self._names is not None:
            raise ValueError("You must enqueue a dictionary in a Queue with names")
        values = (
            _as_list(vals) if len(self._dtypes) > 1 or isinstance(vals, (list, tuple)) else [vals]
        )
        if len(values) != len(self._dtypes):
            values = [vals]
        if len(values) != len(self._dtypes):
            raise ValueError(f"Expected {len(self._dtypes)} components, got {len(values)}.")
        tensors = tuple(
            convert_to_tensor(v, dtype=d) for v, d in zip(values, self._dtypes, strict=True)
        )
        for tensor, shape in zip(tensors, self.shapes, strict=True):
            sizes = tensor.shape[1:] if batch else tensor.shape
            if not sizes.is_compatible_with(shape):
                raise ValueError(
                    f"{self._name}: expected a component of shape {shape}, got {sizes}."
                )
        return tensors

    def _to_element(self, components: Sequence[Tensor]) -> Any:
        if self._names is not None:
            return dict(zip(self._names, components, strict=True))
        return components[0] if len(components) == 1 else list(components)

    def _run(self, action: Callable[..., Any], inputs: Sequence[Tensor], batch: bool | None) -> Any:
        """Run an action now, or when the function that is being traced runs.

        Args:
          action: Function of tensors that returns a list of components.
          inputs: Its arguments.
          batch: Whether the results have a batch dimension; None if there are no results.
        """
        if executing_eagerly():
            return action(*inputs)
        results = py_function(action, list(inputs), [] if batch is None else self._dtypes)
        for tensor, shape in zip(
            _as_list(results) if batch is not None else (), self.shapes, strict=False
        ):
            tensor.set_shape(TensorShape([None]).concatenate(shape) if batch else shape)
        return _as_list(results)

    def _wait(self, is_ready: Callable[[], bool], problem: str) -> None:
        """Wait for other threads until a condition holds."""
        while not is_ready():
            if threading.active_count() == 1:
                raise errors.FailedPreconditionError(
                    None,
                    None,
                    f"{self._name} {problem}, and no other thread runs that could change it.",
                )
            self._changed.wait(1.0)

    def _put(self, *components: Tensor) -> list[Tensor]:
        with self._changed:
            self._check_open()
            self._wait(
                lambda: len(self._items) < self._capacity or self._is_closed,
                f"is full ({self._capacity})",
            )
            self._check_open()
            self._items.append(components)
            self._changed.notify_all()
        return []

    def _check_open(self) -> None:
        if self._is_closed:
            raise errors.CancelledError(None, None, f"{self._name} '{self._name}' is closed.")

    def _take_index(self) -> int:
        """Return the index of the element that is dequeued next."""
        return 0

    def _take(self, count: int, allow_fewer: bool) -> list[_Item]:
        with self._changed:
            self._wait(
                lambda: len(self._items) >= count + self._min_remaining or self._is_closed,
                f"has {len(self._items)} elements of {count + self._min_remaining}",
            )
            available = len(self._items)
            if available < count and (not allow_fewer or (not available and count)):
                raise errors.OutOfRangeError(
                    None,
                    None,
                    f"{self._name} '{self._name}' is closed and has insufficient elements (requested {count}, current "
                    f"size {available})",
                )
            items = [self._items.pop(self._take_index()) for _ in range(min(count, available))]
            self._changed.notify_all()
        return items

    def _stack(self, items: Sequence[_Item]) -> list[Tensor]:
        if not items:
            shapes = [[0, *(n or 0 for n in s)] for s in self.shapes]
            return [array.zeros(s, d) for s, d in zip(shapes, self._dtypes, strict=True)]
        return [array.stack(components) for components in zip(*items, strict=True)]

    # ---- public methods --------------------------------------------------------------------

    def enqueue(self, vals: PyTree, name: str | None = None) -> None:
        """Add an element, and wait while the queue is full.

        Args:
          vals: A tensor, a list of the components, or a dictionary.
          name: Ignored.

        Raises:
          CancelledError: If the queue is closed.
        """
        self._run(self._put, self._to_components(vals, False), None)

    def enqueue_many(self, vals: PyTree, name: str | None = None) -> None:
        """Add the elements of a batch."""

        def put_rows(*components: Tensor) -> list[Tensor]:
            for row in zip(*map(array.unstack, components), strict=True):
                self._put(*row)
            return []

        self._run(put_rows, self._to_components(vals, True), None)

    def dequeue(self, name: str | None = None) -> PyTree:
        """Remove and return an element, and wait while there is none.

        Raises:
          OutOfRangeError: If the queue is closed and empty.
        """
        return self._to_element(self._run(lambda: list(self._take(1, False)[0]), [], False))

    def _dequeue_rows(self, n: TensorLike, allow_fewer: bool) -> PyTree:
        if self._shapes is None:
            raise errors.InvalidValueError(
                f"{self._name}: dequeue_many and dequeue_up_to require the components to have specified shapes. Pass "
                "`shapes` to the queue."
            )
        count = convert_to_tensor(n)
        return self._to_element(
            self._run(lambda k: self._stack(self._take(int(k), allow_fewer)), [count], True)
        )

    def dequeue_many(self, n: TensorLike, name: str | None = None) -> PyTree:
        """Remove `n` elements and return them as a batch.

        Raises:
          OutOfRangeError: If the queue is closed and has fewer elements.
        """
        return self._dequeue_rows(n, False)

    def dequeue_up_to(self, n: TensorLike, name: str | None = None) -> PyTree:
        """Remove `n` elements, or fewer if the queue is closed, and return them as a batch.

        Raises:
          OutOfRangeError: If the queue is closed and empty.
        """
        return self._dequeue_rows(n, True)

    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> None:
        """Close the queue: further enqueues raise an error, and its elements can be dequeued."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def is_closed(self, name: str | None = None) -> Tensor:
        """Return whether the queue is closed."""
        return convert_to_tensor(self._is_closed)

    def size(self, name: str | None = None) -> Tensor:
        """Return the number of elements."""
        if executing_eagerly():
            return convert_to_tensor(len(self._items))
        return py_function(lambda: convert_to_tensor(len(self._items)), [], "int32")


def _as_shapes(shapes: PyTree) -> list[Any]:
    """Return a list of shapes, of one shape or such a list."""
    is_list = isinstance(shapes, (list, tuple)) and not all(
        size is None or isinstance(size, int) for size in shapes
    )
    return list(shapes) if is_list else [shapes]


class FIFOQueue(QueueBase):
    """Queue that returns elements in their order.

    Args:
      capacity: Largest number of elements.
      dtypes: Dtypes of the components of an element.
      shapes: Their shapes; required by `dequeue_many`.
      names: Names of the components, so that elements are dictionaries.
      shared_name: Ignored.
      name: Name of the queue.

    Example:
      >>> queue = tf.queue.FIFOQueue(3, tf.int32, shapes=[[]])
      >>> queue.enqueue_many([[1, 2, 3]])
      >>> int(queue.dequeue()), queue.dequeue_many(2).numpy()
      (1, array([2, 3], dtype=int32))
    """

    def __init__(
        self,
        capacity: int,
        dtypes: PyTree,
        shapes: PyTree = None,
        names: object = None,
        shared_name: str | None = None,
        name: str = "fifo_queue",
    ) -> None:
        super().__init__(dtypes, shapes, names)
        self._name, self._capacity = name, capacity if capacity >= 0 else 2**31


class PaddingFIFOQueue(FIFOQueue):
    """FIFO queue that pads its batches with zeros.

    Args:
      capacity: Largest number of elements.
      dtypes: Dtypes of the components of an element.
      shapes: Their shapes, with None for sizes that vary.
      names: Names of the components, so that elements are dictionaries.
      shared_name: Ignored.
      name: Name of the queue.
    """

    def __init__(
        self,
        capacity: int,
        dtypes: PyTree,
        shapes: PyTree,
        names: object = None,
        shared_name: str | None = None,
        name: str = "padding_fifo_queue",
    ) -> None:
        if shapes is None:
            raise ValueError(
                "When providing partial shapes, a list of shapes must be provided. Pass `shapes` to PaddingFIFOQueue."
            )
        super().__init__(capacity, dtypes, shapes, names, shared_name, name)

    def _stack(self, items: Sequence[_Item]) -> list[Tensor]:
        padded = []
        for components in zip(*items, strict=True):
            sizes = np.max([c.shape.as_list() for c in components], axis=0).astype(int)
            fill = "" if components[0].dtype.name == "string" else 0
            rows = [
                array.pad(
                    c, np.stack([0 * sizes, sizes - c.shape.as_list()], 1), constant_values=fill
                )
                if c.shape.as_list() != sizes.tolist()
                else c
                for c in components
            ]
            padded.append(tuple(rows))
        return super()._stack(list(zip(*padded, strict=True)))


class RandomShuffleQueue(QueueBase):
    """Queue that returns elements in random order.

    Args:
      capacity: Largest number of elements.
      min_after_dequeue: Number of elements that remain after a dequeue, until the queue is closed.
      dtypes: Dtypes of the components of an element.
      shapes: Their shapes; required by `dequeue_many`.
      names: Names of the components, so that elements are dictionaries.
      seed: Seed of the order.
      shared_name: Ignored.
      name: Name of the queue.
    """

    def __init__(
        self,
        capacity: int,
        min_after_dequeue: int,
        dtypes: PyTree,
        shapes: PyTree = None,
        names: object = None,
        seed: int | None = None,
        shared_name: str | None = None,
        name: str = "random_shuffle_queue",
    ) -> None:
        super().__init__(dtypes, shapes, names)
        self._name, self._capacity = name, capacity if capacity >= 0 else 2**31
        self._min_remaining, self._random = min_after_dequeue, random.Random(seed)

    def _take_index(self) -> int:
        return self._random.randrange(len(self._items))


class PriorityQueue(FIFOQueue):
    """Queue that returns the element with the smallest priority first.

    The first component of an element is its priority, an int64 scalar.

    Args:
      capacity: Largest number of elements.
      types: Dtypes of the other components.
      shapes: Their shapes; required by `dequeue_many`.
      names: Names of all components, so that elements are dictionaries.
      shared_name: Ignored.
      name: Name of the queue.
    """

    def __init__(
        self,
        capacity: int,
        types: PyTree,
        shapes: PyTree = None,
        names: object = None,
        shared_name: str | None = None,
        name: str = "priority_queue",
    ) -> None:
        all_shapes = None if shapes is None else [[], *_as_shapes(shapes)]
        super().__init__(
            capacity, ["int64", *_as_list(types)], all_shapes, names, shared_name, name
        )

    def _take_index(self) -> int:
        priorities = [int(item[0]) for item in self._items]
        return priorities.index(min(priorities))

"""Methods for functions of every element."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Generic

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.data.arguments import threads_of
from meshflow.data.methods.constructors import DatasetT, make


class Elementwise(Generic[DatasetT]):
    """Methods for functions of every element."""

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: Any = None,
        deterministic: bool | None = None,
        synchronous: bool | None = None,
        name: str | None = None,
    ) -> DatasetT:
        """A function of every element.

        The function is traced and compiled; it may use Python control flow on tensors. One that
        cannot be traced runs eagerly. Where it can, it runs on many elements at once; results are the same.

        Random ops with a `seed`, and all of them after `tf.random.set_seed`, draw the same numbers in every
        pass over the dataset, as in TensorFlow, and go on through `repeat`. For other numbers in every
        epoch set no seed, or draw from a `tf.random.Generator`.

        Args:
          map_func: from the parts of an element to a new element.
          num_parallel_calls: how many threads run a function that cannot be compiled;
            `tf.data.AUTOTUNE` for one per processor. The order is always kept, and random ops draw
            by the element's number. A function that draws from `random` or `numpy.random`, or that
            refers to variables or layers, runs in one thread.
          deterministic: accepted.
          synchronous: accepted.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> data = tf.data.Dataset.from_tensor_slices(([1, 2], [10, 20])).map(lambda x, y: {"sum": x + y})
          >>> [int(element["sum"]) for element in data]
          [11, 22]
        """
        return make.Map(self, map_func, num_parallel_calls)

    def filter(self, predicate: Callable[..., Any], name: str | None = None) -> DatasetT:
        """The elements for which a function is true.

        Args:
          predicate: from the parts of an element to a bool scalar.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> [int(x) for x in tf.data.Dataset.range(6).filter(lambda x: x % 2 == 0)]
          [0, 2, 4]
        """
        return make.Filter(self, predicate)

    def take_while(self, predicate: Callable[..., Any], name: str | None = None) -> DatasetT:
        """The elements before the first for which a function is false.

        Args:
          predicate: from the parts of an element to a bool scalar.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> [int(x) for x in tf.data.Dataset.range(10).take_while(lambda x: x < 3)]
          [0, 1, 2]
        """
        return make.TakeWhile(self, predicate)

    def scan(
        self, initial_state: Any, scan_func: Callable[..., Any], name: str | None = None
    ) -> DatasetT:
        """A function of a state and every element.

        Args:
          initial_state: a structure of tensors.
          scan_func: from (state, element) to (next state, new element).
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> sums = tf.data.Dataset.range(1, 5).scan(
          ...     tf.constant(0, tf.int64), lambda s, x: (s + x, s + x))
          >>> [int(x) for x in sums]
          [1, 3, 6, 10]
        """
        return make.Scan(self, initial_state, scan_func)

    def enumerate(self, start: Any = 0, name: str | None = None) -> DatasetT:
        """Pairs of number and element.

        Args:
          start: the first number.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> [(int(i), x.numpy()) for i, x in tf.data.Dataset.from_tensor_slices(["a", "b"]).enumerate(start=5)]
          [(5, b'a'), (6, b'b')]
        """
        return make.Enumerate(self, start)

    def flat_map(self, map_func: Callable[..., Any], name: str | None = None) -> DatasetT:
        """The elements of the datasets that a function gives, one dataset after another.

        Args:
          map_func: from the parts of an element to a dataset.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> data = tf.data.Dataset.range(1, 4).flat_map(lambda n: tf.data.Dataset.from_tensors(n).repeat(n))
          >>> [int(x) for x in data]
          [1, 2, 2, 3, 3, 3]
        """
        return make.FlatMap(self, map_func)

    def interleave(
        self,
        map_func: Callable[..., Any],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: Any = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> DatasetT:
        """The elements of the datasets that a function gives, several datasets in turn.

        Args:
          map_func: from the parts of an element to a dataset.
          cycle_length: how many are open at a time; default (also AUTOTUNE) the number of cores.
          block_length: how many elements of each follow each other; default 1.
          num_parallel_calls: accepted; at most `cycle_length`.
          deterministic: accepted; the order is always the same.
          name: ignored.

        Raises:
          InvalidArgumentError: for numbers that are not greater than zero, and for more calls than datasets.

        Example:
          >>> import meshflow as tf
          >>> twice = lambda x: tf.data.Dataset.from_tensors(x).repeat(2)
          >>> [int(x) for x in tf.data.Dataset.range(3).interleave(twice, cycle_length=2)]
          [0, 1, 0, 1, 2, 2]
        """
        open_cycle = cycle_length in (None, -1)
        cycle = (os.cpu_count() or 1) if open_cycle else int(cycle_length)  # type: ignore[arg-type]
        calls = None if num_parallel_calls is None else threads_of(num_parallel_calls)
        if calls is not None and not open_cycle and calls > cycle > 0:
            raise InvalidValueError(
                f"num_parallel_calls must be less than or equal to cycle_length, got {calls} and {cycle}."
            )
        return make.FlatMap(self, map_func, cycle, 1 if block_length is None else int(block_length))

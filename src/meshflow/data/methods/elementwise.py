"""Methods of datasets that apply a function to every element."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, TypeVarTuple, overload

from meshflow.core.iterators.iterator_captures import Element
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.core.values.tensor import Tensor
from meshflow.data.arguments import IntLike, choose_cycle_length, parse_parallel_calls
from meshflow.data.methods import constructors
from meshflow.data.node import DatasetNode
from meshflow.environment.types import PyTree

if TYPE_CHECKING:
    from meshflow.data.methods.constructors import Dataset

# Results of functions, and the components of elements, which are arguments of the functions.
Result = TypeVar("Result")
Components = TypeVarTuple("Components")


@hide_frames_of_methods
class ElementwiseMethods(DatasetNode, Generic[Element]):
    """Methods that apply a function to every element; a base class of `Dataset`."""

    @overload
    def map(
        self: ElementwiseMethods[tuple[*Components]],
        map_func: Callable[[*Components], Result],
        num_parallel_calls: IntLike | None = None,
        deterministic: bool | None = None,
        synchronous: bool | None = None,
        name: str | None = None,
    ) -> Dataset[Result]: ...
    @overload
    def map(
        self,
        map_func: Callable[[Element], Result],
        num_parallel_calls: IntLike | None = None,
        deterministic: bool | None = None,
        synchronous: bool | None = None,
        name: str | None = None,
    ) -> Dataset[Result]: ...
    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: IntLike | None = None,
        deterministic: bool | None = None,
        synchronous: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Apply a function to every element.

        The function is traced and compiled, and may use Python control flow on tensors. A function
        that cannot be traced runs eagerly. Where possible, one call computes many elements; the
        results are the same.

        Random ops with a `seed`, and all random ops after `tf.random.set_seed`, draw the same
        numbers in every pass over the dataset, as in TensorFlow, and continue through `repeat`. To
        draw other numbers in every epoch, set no seed, or draw from a `tf.random.Generator`.

        Args:
          map_func: Function from the components of an element to a new element.
          num_parallel_calls: Number of threads that run a function which cannot be compiled;
            `tf.data.AUTOTUNE` uses one per processor. The order of the elements is always
            preserved, and random ops draw by the index of the element. A function that draws from
            `random` or `numpy.random`, or that refers to variables or layers, runs in one thread.
          deterministic: Ignored; the order is always preserved.
          synchronous: Ignored.
          name: Ignored.

        Example:
          >>> data = tf.data.Dataset.from_tensor_slices(([1, 2], [10, 20])).map(lambda x, y: {"sum": x + y})
          >>> [int(element["sum"]) for element in data]
          [11, 22]
        """
        return constructors.Map(self, map_func, num_parallel_calls)

    def filter(self, predicate: Callable[..., Any], name: str | None = None) -> Dataset[Element]:
        """Keep the elements for which a predicate is true.

        Args:
          predicate: Function from the components of an element to a bool scalar.
          name: Ignored.

        Example:
          >>> [int(x) for x in tf.data.Dataset.range(6).filter(lambda x: x % 2 == 0)]
          [0, 2, 4]
        """
        return constructors.Filter(self, predicate)

    def take_while(
        self, predicate: Callable[..., Any], name: str | None = None
    ) -> Dataset[Element]:
        """Stop at the first element for which a predicate is false.

        Args:
          predicate: Function from the components of an element to a bool scalar.
          name: Ignored.

        Example:
          >>> [int(x) for x in tf.data.Dataset.range(10).take_while(lambda x: x < 3)]
          [0, 1, 2]
        """
        return constructors.TakeWhile(self, predicate)

    def scan(
        self, initial_state: PyTree, scan_func: Callable[..., Any], name: str | None = None
    ) -> Dataset:
        """Apply a function to every element that also carries a state from element to element.

        Args:
          initial_state: Nested structure of tensors.
          scan_func: Function from (state, element) to (next state, new element).
          name: Ignored.

        Example:
          >>> sums = tf.data.Dataset.range(1, 5).scan(
          ...     tf.constant(0, tf.int64), lambda s, x: (s + x, s + x))
          >>> [int(x) for x in sums]
          [1, 3, 6, 10]
        """
        return constructors.Scan(self, initial_state, scan_func)

    def enumerate(
        self, start: IntLike = 0, name: str | None = None
    ) -> Dataset[tuple[Tensor, Element]]:
        """Pair every element with its index.

        Args:
          start: Index of the first element.
          name: Ignored.

        Returns:
          A dataset of (index, element); the index is an int64 scalar.

        Example:
          >>> [(int(i), x.numpy()) for i, x in tf.data.Dataset.from_tensor_slices(["a", "b"]).enumerate(start=5)]
          [(5, b'a'), (6, b'b')]
        """
        return constructors.Enumerate(self, start)

    @overload
    def flat_map(
        self: ElementwiseMethods[tuple[*Components]],
        map_func: Callable[[*Components], Dataset[Result]],
        name: str | None = None,
    ) -> Dataset[Result]: ...
    @overload
    def flat_map(
        self, map_func: Callable[[Element], Dataset[Result]], name: str | None = None
    ) -> Dataset[Result]: ...
    def flat_map(self, map_func: Callable[..., Any], name: str | None = None) -> Dataset:
        """Map every element to a dataset, and concatenate these datasets.

        Args:
          map_func: Function from the components of an element to a dataset.
          name: Ignored.

        Example:
          >>> data = tf.data.Dataset.range(1, 4).flat_map(lambda n: tf.data.Dataset.from_tensors(n).repeat(n))
          >>> [int(x) for x in data]
          [1, 2, 2, 3, 3, 3]
        """
        return constructors.FlatMap(self, map_func)

    @overload
    def interleave(
        self: ElementwiseMethods[tuple[*Components]],
        map_func: Callable[[*Components], Dataset[Result]],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: IntLike | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset[Result]: ...
    @overload
    def interleave(
        self,
        map_func: Callable[[Element], Dataset[Result]],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: IntLike | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset[Result]: ...
    def interleave(
        self,
        map_func: Callable[..., Any],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: IntLike | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Map every element to a dataset, and interleave the elements of these datasets.

        Args:
          map_func: Function from the components of an element to a dataset.
          cycle_length: Number of datasets that are open at a time; None or AUTOTUNE uses the number
            of processors, at most `num_parallel_calls`, or a third of it if this is AUTOTUNE.
          block_length: Number of consecutive elements taken from each dataset, by default 1.
          num_parallel_calls: At most `cycle_length`; it only determines the default of `cycle_length`.
          deterministic: Ignored; the order is always the same.
          name: Ignored.

        Raises:
          InvalidArgumentError: If a number is not greater than zero, or `num_parallel_calls`
            exceeds `cycle_length`.

        Example:
          >>> twice = lambda x: tf.data.Dataset.from_tensors(x).repeat(2)
          >>> [int(x) for x in tf.data.Dataset.range(3).interleave(twice, cycle_length=2)]
          [0, 1, 0, 1, 2, 2]
        """
        is_automatic = cycle_length in (None, -1)
        calls = None if num_parallel_calls is None else parse_parallel_calls(num_parallel_calls)
        cycle = choose_cycle_length(calls) if is_automatic else int(cycle_length)  # type: ignore[arg-type]
        if calls is not None and not is_automatic and calls > cycle > 0:
            raise InvalidValueError(
                f"num_parallel_calls must be less than or equal to cycle_length, got {calls} and {cycle}."
            )
        block = 1 if block_length is None else int(block_length)
        return constructors.FlatMap(self, map_func, cycle, block)

"""Callbacks by which a running program requests iterator elements, in loops and branches.

JAX orders the callbacks of programs on one device. On several devices, each callback takes a result
of the previous one as an operand, also if that was in a loop or a branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax.tree_util import PyTreeDef

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import ActiveTrace, context
from meshflow.core.runtime.errors import InvalidArgumentError, OutOfRangeError
from meshflow.core.staging.loops import LoopStream
from meshflow.core.tracing.host_callbacks import store_error, store_errors
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree


class ElementSource(Protocol):
    """Interface of an iterator that supplies programs; see `IteratorSource`."""

    def take(self) -> PyTree:
        """Return the next element, immediately."""

    def give_back(self, element: PyTree) -> None:
        """Make an element the next one again."""


class EndOfElements(OutOfRangeError, StopIteration):
    """Error of an iterator without further elements: that of compiled functions and of Python."""


class ElementShapesError(InvalidArgumentError):
    """Error for an element with other shapes than those for which a function was traced."""


class TakenElements:
    """Elements that one call of a function took, so that they can be put back if the call fails.

    Nothing is kept any more after `MAX_SIZE` bytes.
    """

    MAX_SIZE = 2**28

    def __init__(self) -> None:
        self._elements: list[tuple[ElementSource, PyTree]] | None = []
        self._size = 0

    def add(self, source: ElementSource, element: PyTree) -> None:
        """Keep an element of a source."""
        self._size += sum(a.nbytes for a in jax.tree.leaves(element))
        if self._size > self.MAX_SIZE:
            self._elements = None
        if self._elements is not None:
            self._elements.append((source, element))

    def put_back(self) -> bool:
        """Return the elements to their sources; return False if not all were kept."""
        if self._elements is None:
            return False
        for source, element in reversed(self._elements):
            source.give_back(element)
        return True


def flatten_element(element: PyTree) -> tuple[list[Any], PyTreeDef]:
    """Return the leaves and the structure of an element."""
    arrays, tree = jax.tree.flatten(element)
    if any(np.dtype(a.dtype) == object for a in arrays):
        raise InvalidArgumentError(
            "next(iterator) in a compiled function: the elements contain strings, which compiled programs do not "
            "support. Map them to numbers in the dataset, or take the element outside of the function."
        )
    return arrays, tree


def list_specs(arrays: list[Any]) -> list[tuple[tuple[int, ...], np.dtype]]:
    """Return the shapes and dtypes of arrays."""
    return [(tuple(np.shape(a)), np.dtype(a.dtype)) for a in arrays]


class Infeed:
    """Feed that passes elements of an iterator to a running program.

    Args:
      source: The iterator.
      element: An example of the elements.
      optional: Whether the first result is a bool, which is False at the end instead of an error.

    Attributes:
      source: The iterator.
      position: Index of the iterator among the arguments of the function, or None.
      taken: The elements of the running call, or None if these are not kept.
    """

    def __init__(self, source: ElementSource, element: PyTree, optional: bool = False) -> None:
        self.optional = optional
        self.taken: TakenElements | None = None
        self.source: ElementSource | None = source
        self.position: int | None = None
        arrays, self._tree = flatten_element(element)
        self._specs = list_specs(arrays)

    def next(self, *after: Any) -> list[np.ndarray]:
        """Return the leaves of the next element; the operands only order the calls.

        Raises:
          EndOfElements: If there is no element.
          ElementShapesError: If its shapes differ.
        """
        del after
        assert self.source is not None
        try:
            element = self.source.take()
        except StopIteration:
            if self.optional:
                return self._make_zeros()
            raise EndOfElements("End of sequence") from None
        if self.taken is not None:
            self.taken.add(self.source, element)
        arrays, tree = jax.tree.flatten(element)
        if tree != self._tree or list_specs(arrays) != self._specs:
            raise ElementShapesError(
                f"next(iterator) in a loop of a compiled function: an element has shapes {list_specs(arrays)}, but "
                f"the function was traced for {self._specs}. Batch with drop_remainder=True."
            )
        leaves = [np.asarray(a) for a in arrays]
        return [np.array(True), *leaves] if self.optional else leaves

    def _make_zeros(self) -> list[np.ndarray]:
        zeros = [np.zeros(shape, dtype) for shape, dtype in self._specs]
        return [np.array(False), *zeros] if self.optional else zeros

    def next_or_zeros(self, *after: Any) -> list[np.ndarray]:
        """Return the next leaves, or zeros after an error, which is raised when the program ends.

        The other devices of the program wait for this one, so the callback must not fail.
        """
        try:
            return self.next(*after)
        except Exception as error:
            store_error(error)
            return self._make_zeros()


def _call_infeed(operands: Sequence[jax.Array], static: tuple[Any, ...]) -> list[jax.Array]:
    feed, specs, shardings = static
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in specs]
    has_mesh = any(s is not None for s in shardings)
    callback = feed.next_or_zeros if has_mesh else store_errors(feed.next)
    # JAX orders the callbacks of programs on one device only.
    results = jax.experimental.io_callback(callback, shapes, *operands, ordered=not has_mesh)
    return [_distribute(r, s) for r, s in zip(results, shardings, strict=True)]


def _distribute(array: jax.Array, sharding: jax.sharding.NamedSharding | None) -> jax.Array:
    if sharding is None:
        return array
    # One device runs the callback. The result is sent to all devices, and each keeps its shard. From
    # JAX 0.12 on, XLA would apply a constraint of the result to the callback itself, and refuse it.
    array = jax.lax.optimization_barrier(array)
    replicated = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
    array = jax.lax.with_sharding_constraint(array, replicated)
    return jax.lax.with_sharding_constraint(array, sharding)


_next = Op("iterator_next", _call_infeed, differentiable=False, is_foldable=False)


def call_feed(
    feed: Infeed, element: PyTree, operands: Sequence[Tensor] = ()
) -> tuple[PyTree, Tensor]:
    """Request an element from a feed; return it, and a tensor that exists once it was supplied."""
    arrays, tree = flatten_element(element)
    array_shardings = [getattr(a, "sharding", None) for a in arrays]
    shardings = tuple(
        s if isinstance(s, jax.sharding.NamedSharding) else None for s in array_shardings
    )
    specs = tuple(list_specs(arrays))
    if feed.optional:
        specs, shardings = (((), np.dtype(bool)), *specs), (None, *shardings)
    results = apply(_next, list(operands), (feed, specs, shardings))
    leaves = results[1:] if feed.optional else results
    return jax.tree.unflatten(tree, [t.array for t in leaves]), results[0]


def request_element(
    source: ElementSource, example: PyTree, optional: bool = False
) -> tuple[PyTree, Tensor]:
    """Request an element like `example` in the traced function; see `request_from_feed`.

    If it is optional, the end is not an error, and the second result is whether there is an element.
    """
    return request_from_feed(Infeed(source, example, optional), example)


def request_from_feed(
    feed: Infeed, example: PyTree, operands: Sequence[Tensor] = ()
) -> tuple[PyTree, Tensor]:
    """Request the next element of a feed in the traced function, as `call_feed` does."""
    scope = context.trace
    assert scope is not None
    owner, source = scope, feed.source
    while not owner.runs_once_per_call and owner.parent is not None:
        owner = owner.parent
    has_mesh = any(
        isinstance(getattr(a, "sharding", None), jax.sharding.NamedSharding)
        for a in jax.tree.leaves(example)
    )
    token = scope.infeed_tokens.get(id(source))
    if token is None and has_mesh:
        token = _find_outer_token(scope, owner, source)
    is_known = any(known_source is source for _, known_source in owner.infeeds)
    if token is None and has_mesh and is_known and scope is owner:
        raise NotImplementedError(
            "next(iterator) after a loop or a branch that took elements of the same iterator and computed "
            "nothing, in a function on several devices, is not supported, because no result marks its end. Use "
            "Dataset.skip to omit elements."
        )
    if all(known_feed is not feed for known_feed, _ in owner.infeeds):
        owner.infeeds.append((feed, source))
    # Each callback waits for the previous one, so one run of a loop body takes elements in order.
    element, first = call_feed(feed, example, [*operands, *([] if token is None else [token])])
    scope.infeed_tokens[id(source)] = first
    return element, first


def _find_outer_token(
    scope: ActiveTrace, owner: ActiveTrace, source: ElementSource | None
) -> Tensor | None:
    """Return the token for which the first callback in a loop body or branch has to wait."""
    while scope is not owner and scope.parent is not None:
        scope = scope.parent
        if id(source) in scope.infeed_tokens:
            return scope.infeed_tokens[id(source)]
    return None


def make_stream(source: ElementSource, example: PyTree, last: PyTree = None) -> LoopStream:
    """Return all remaining elements of an iterator, for a staged `for` loop.

    `last` is an example of the last element if its shape differs.
    """
    rest = None if last is None else _StreamFeed(source, last, None)
    return LoopStream(_StreamFeed(source, example, last), rest)


class _StreamFeed(Infeed):
    """Feed of a loop, which ends at the last element if that has another shape."""

    def __init__(self, source: ElementSource, example: PyTree, last: PyTree) -> None:
        super().__init__(source, example, optional=True)
        self._example = example
        self._last = None if last is None else list_specs(flatten_element(last)[0])

    def next(self, requested: Any = True, *after: Any) -> list[np.ndarray]:
        """Return whether there is an element, and its leaves.

        Args:
          requested: Whether the loop continues.
          *after: Values that only order the calls.
        """
        if not requested:
            return self._make_zeros()
        if self._last is not None:
            assert self.source is not None
            try:
                element = self.source.take()
            except StopIteration:
                return self._make_zeros()
            self.source.give_back(element)
            if list_specs(flatten_element(element)[0]) == self._last != self._specs:
                return self._make_zeros()
        return super().next()

    def __call__(self, requested: Tensor, _: Tensor) -> tuple[PyTree, Tensor]:
        return request_from_feed(self, self._example, [requested])

"""Iterables of staged `for` loops: tensors, ranges of tensors, and their `enumerate` and `zip`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import CAST, Op
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.staging.loops import LoopElements, LoopStream
from meshflow.core.staging.scalar_logic import is_symbolic
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype
from meshflow.core.values.symbolic_sizes import get_sizes
from meshflow.core.values.tensor import Tensor
from meshflow.core.values.unknown_sizes import is_unknown_size, read_sizes

_item = Op(
    "getitem", lambda o, _: lax.dynamic_index_in_dim(o[0], o[1], 0, keepdims=False), heavy=True
)
_range_count = Op(
    "range_length",
    lambda o, _: jnp.maximum(-((o[0] - o[1]) // o[2]), 0).astype(jnp.int32),
    differentiable=False,
)
_range_item = Op("range_item", lambda o, _: o[0] + o[1].astype(o[0].dtype) * o[2])


class StagedIterable:
    """Iterable with a length or elements that are only known when the traced function runs."""

    def __autograph_for__(self) -> LoopElements | LoopStream | None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            f"{self} has a length that is only known when the traced function runs. Iterate over it with a "
            "plain `for` statement in a function that AutoGraph converts."
        )


class StagedRange(StagedIterable):
    """`range` or `tf.range` with symbolic bounds."""

    def __init__(self, *bounds: Any, dtype: DTypeLike | None = None) -> None:
        tensors = [b for b in bounds if isinstance(b, Tensor) or hasattr(b, "_as_tensor")]
        hint = next((t.dtype for t in tensors if t.dtype.is_floating), tensors[0].dtype)
        start, limit, delta = {1: (0, *bounds, 1), 2: (*bounds, 1), 3: bounds}[len(bounds)]
        element_dtype = hint if dtype is None else as_dtype(dtype)
        parts = [convert_to_tensor(b, dtype_hint=hint) for b in (start, limit, delta)]
        self.start, self.limit, self.delta = (
            apply(CAST, (p,), (element_dtype.dtype,)) for p in parts
        )

    def __autograph_for__(self) -> LoopElements | LoopStream | None:
        bounds = self._find_bounds()
        if bounds is not None and not any(map(is_unknown_size, bounds)) and not context.exporting:
            # The number of iterations is a symbolic size.
            tensor = self._as_tensor()
            if bounds[0] == 0 and bounds[2] == 1:
                register_index_range(tensor)
            return get_staged_elements(tensor)
        count = apply(_range_count, (self.start, self.limit, self.delta))
        return LoopElements(count, lambda i: apply(_range_item, (self.start, i, self.delta)))

    def _find_bounds(self) -> list[Any] | None:
        """Return start, limit and delta as integers and symbols, or None if they are unknown."""
        bounds = [get_sizes(t) for t in (self.start, self.limit, self.delta)]
        is_known = all(b is not None and b.ndim == 0 for b in bounds)
        return [b.item() for b in bounds] if is_known else None

    def _as_tensor(self) -> Tensor:
        bounds = self._find_bounds()
        if bounds is not None:
            start, limit, delta = bounds
            return Tensor(jnp.arange(start, limit, delta, dtype=self.start.dtype.dtype))
        count = apply(_range_count, (self.start, self.limit, self.delta))
        size = read_sizes(count, f"the number of elements of {self}")
        indices = Tensor(jnp.arange(size, dtype=jnp.int32))
        return apply(_range_item, (self.start, indices, self.delta))

    def __getattr__(self, name: str) -> object:
        if hasattr(Tensor, name):
            return getattr(self._as_tensor(), name)
        return super().__getattribute__(name)

    def __repr__(self) -> str:
        return f"tf.range({self.start}, {self.limit}, {self.delta})"


def _make_operator(name: str) -> Callable[..., Any]:
    """Return a method that applies an operator to the tensor of the range."""
    return lambda self, *others: getattr(self._as_tensor(), name)(*others)


_BINARY_NAMES = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
for _name in (
    *_BINARY_NAMES,
    *(f"r{n}" for n in _BINARY_NAMES),
    "neg",
    "lt",
    "le",
    "gt",
    "ge",
    "getitem",
):
    setattr(StagedRange, f"__{_name}__", _make_operator(f"__{_name}__"))


class StagedEnumerate(StagedIterable):
    """`enumerate` of a staged iterable."""

    def __init__(self, inner: Any, start: Any) -> None:
        self.inner = inner
        self.start = start

    def __autograph_for__(self) -> LoopElements | LoopStream | None:
        elements = get_staged_elements(self.inner)
        if elements is None:
            return None
        start = convert_to_tensor(self.start)
        one = convert_to_tensor(1)
        if isinstance(elements, LoopStream):
            return LoopStream(
                *(self._add_index(t, start, one) for t in (elements.take, elements.rest))
            )
        starts_at_zero = not is_symbolic(start) and int(start) == 0
        index_of = (lambda element: element[0]) if starts_at_zero else None

        def get_element(i: Tensor) -> Any:
            return apply(_range_item, (start, i, one)), elements.get_element(i)

        if elements.stacked is None or not isinstance(elements.count, int) or is_symbolic(start):
            return LoopElements(elements.count, get_element, None, index_of)
        indices = int(start) + jnp.arange(elements.count, dtype=jnp.int32)
        return LoopElements(
            elements.count, get_element, (Tensor(indices), elements.stacked), index_of
        )

    @staticmethod
    def _add_index(
        take: Callable[[Tensor, Tensor], tuple[Any, Tensor]] | None, start: Tensor, one: Tensor
    ) -> Any:
        if take is None:
            return None

        def take_with_index(requested: Tensor, count: Tensor) -> tuple[Any, Tensor]:
            element, is_present = take(requested, count)
            return (apply(_range_item, (start, count, one)), element), is_present

        return take_with_index

    def __iter__(self) -> Iterator[Any]:
        return enumerate(self.inner, self.start)

    def __repr__(self) -> str:
        return f"enumerate({self.inner})"


class StagedZip(StagedIterable):
    """`zip` of staged iterables."""

    def __init__(self, *inner: Any) -> None:
        self.inner = inner

    def __autograph_for__(self) -> LoopElements | LoopStream | None:
        parts = [get_staged_elements(i) for i in self.inner]
        if any(isinstance(p, LoopStream) for p in parts):
            raise InvalidArgumentError(
                "zip of an iterator in a compiled function is not supported. Loop over the iterator of a zipped dataset, "
                "tf.data.Dataset.zip."
            )
        sized = [p for p in parts if isinstance(p, LoopElements) and isinstance(p.count, int)]
        if len(sized) < len(parts):
            return None
        count = min(p.count for p in sized)
        return LoopElements(count, lambda i: tuple(p.get_element(i) for p in sized))

    def __iter__(self) -> Iterator[Any]:
        return zip(*self.inner, strict=False)

    def __repr__(self) -> str:
        return f"zip{self.inner}"


def is_staged(value: object) -> bool:
    """Check whether a `for` loop over `value` may be staged."""
    if context.trace is None:
        return False
    return (
        isinstance(value, Tensor)
        or hasattr(value, "_as_tensor")
        or hasattr(value, "__autograph_for__")
    )


def get_staged_elements(value: Any) -> LoopElements | LoopStream | None:
    """Return the elements of a staged loop over `value`, or None if Python iterates."""
    if not is_staged(value):
        return None
    hook = getattr(value, "__autograph_for__", None)
    if hook is not None:
        elements: LoopElements | LoopStream | None = hook()
        return elements
    tensor = convert_to_tensor(value)
    if not tensor.ndim or tensor.dtype.name == "string":
        return None  # Python's iteration raises the error, or handles strings.
    index_of = (lambda element: element) if is_index_range(tensor) else None
    return LoopElements(
        tensor.array.shape[0], lambda i: apply(_item, (tensor, i)), tensor, index_of
    )


# Results of `tf.range(n)`, by `id`. Their values may be symbolic, but are 0, 1, 2, ...
_ranges: dict[int, weakref.ref[Tensor]] = {}


def register_index_range(tensor: Tensor) -> None:
    """Record that a tensor holds 0, 1, 2, ..."""
    key = id(tensor)
    _ranges[key] = weakref.ref(tensor, lambda _: _ranges.pop(key, None))


def is_index_range(tensor: Tensor) -> bool:
    """Check whether a tensor is known to hold 0, 1, 2, ..."""
    if id(tensor) in _ranges:
        return True
    value = tensor.array
    return (
        type(value) is np.ndarray
        and value.ndim == 1
        and np.array_equal(value, np.arange(len(value)))
    )

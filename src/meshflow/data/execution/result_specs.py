"""Specs of the results of users' functions, from traces with assumed sizes in place of unknown ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.export import is_symbolic_dim

from meshflow.core.dispatch.composite import SparseTensor, SparseTensorSpec
from meshflow.core.dispatch.shape_probing import SizeProbe, probe_sizes, vary_sizes
from meshflow.core.tracing.trace import CompositeResultSlot, TensorSlot, TracedFunction, trace
from meshflow.core.values import dtypes, nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.data import structure
from meshflow.data.execution.element_programs import trace_with_fallback
from meshflow.environment.types import PyTree

# These sizes replace unknown ones while the spec of the results is inferred. One is small and one
# is large, because a value that is cut to a length keeps this length only if it was longer.
STAND_IN_SIZES = (7, 1021)
# Parts of a limited size are shorter for this size, which many functions do not accept.
SMALLEST_SIZE = 1
# The results replace a string, because the size of a result may depend on the text.
_STAND_IN_TEXTS: tuple[Callable[[bytes], bytes], ...] = (
    lambda text: text + b" " + text,
    lambda text: text + b"," + text,
    lambda text: text + text,
    lambda text: b"",
)


class ObservedElement:
    """An element on which a function ran eagerly: its strings and ranks, and the Python results of its ops.

    Args:
      element: The element.
      spec: Spec of the elements.
      probe: Collects the Python results while the function runs.
    """

    def __init__(self, element: PyTree, spec: PyTree, probe: SizeProbe) -> None:
        self._leaves = [_get_string_or_rank(leaf) for leaf in nest.flatten(element)]
        self._spec, self._observed = spec, probe

    def infer_specs(self, function: Callable[[PyTree], PyTree]) -> list[PyTree]:
        """Infer specs of the results for assumed sizes, and for other strings if the function accepts these.

        Args:
          function: The function of a tensor for each leaf, in the structure of an element.

        Raises:
          Exception: If the function cannot be traced for an assumed size.
        """
        specs = [self._probe_spec(function, size) for size in STAND_IN_SIZES]
        with contextlib.suppress(Exception):
            specs.append(self._probe_spec(function, SMALLEST_SIZE))
        if any(type(leaf) is not int for leaf in self._leaves):
            for replace in _STAND_IN_TEXTS:
                with contextlib.suppress(Exception):
                    specs.append(self._probe_spec(function, STAND_IN_SIZES[0], replace))
        return specs

    def _probe_spec(
        self,
        function: Callable[[PyTree], PyTree],
        size: int,
        replace: Callable[[bytes], bytes] = lambda text: text,
    ) -> PyTree:
        """Infer the spec of the results with a size in place of each unknown one.

        Args:
          function: The function.
          size: The size.
          replace: Function that replaces each string.
        """
        observed, specs = self._observed, nest.flatten(self._spec)
        leaves = [
            leaf if isinstance(leaf, int) else _vary_texts(leaf, spec, size, replace)
            for leaf, spec in zip(self._leaves, specs, strict=True)
        ]

        def call(arguments: list[Tensor], results: list[Tensor | None]) -> PyTree:
            numbers = iter(arguments)
            with probe_sizes(SizeProbe(size, results, observed.specs)):
                values = [
                    next(numbers) if isinstance(leaf, int) else Tensor(_vary_strings(leaf, spec))
                    for leaf, spec in zip(leaves, specs, strict=True)
                ]
                return function(nest.pack_sequence_as(self._spec, values))

        arguments = [
            replace_sizes(spec, size, rank)
            for spec, rank in zip(specs, leaves, strict=True)
            if type(rank) is int
        ]
        results = [
            None if s.dtype is dtypes.string else TensorSpec([size] * len(s.shape), s.dtype)
            for s in observed.specs
        ]
        with trace_with_fallback():
            traced = trace(call, (arguments, results), isolated=True)
        return infer_traced_spec(traced)


def _get_string_or_rank(leaf: object) -> np.ndarray | int:
    """Return a leaf of strings, or the rank of another leaf."""
    if not isinstance(leaf, np.ndarray):
        return 0
    return leaf if leaf.dtype == object else leaf.ndim


def _vary_strings(texts: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Replace the sizes of an array of strings that are unknown in its spec by that of the active probe."""
    sizes = [None] * texts.ndim if spec.shape.rank is None else spec.shape.as_list()
    return vary_sizes(texts, *[axis for axis, n in enumerate(sizes) if n is None])


def replace_sizes(spec: TensorSpec, size: int, rank: int) -> TensorSpec:
    """Replace unknown sizes of a spec by a size, and an unknown rank by a rank."""
    sizes = [None] * rank if spec.shape.rank is None else spec.shape.as_list()
    return TensorSpec([size if n is None else n for n in sizes], spec.dtype)


def _vary_texts(
    texts: np.ndarray, spec: TensorSpec, size: int, replace: Callable[[bytes], bytes]
) -> np.ndarray:
    """Repeat strings up to a size in place of each unknown one, and replace each of them."""
    if texts.dtype != object:
        return texts
    shape = replace_sizes(spec, size, texts.ndim).shape.as_list()
    varied: PyTree = np.resize(texts, shape) if texts.size else np.full(shape, b"", object)
    for index in np.ndindex(*shape):
        varied[index] = replace(varied[index])
    return varied


def relax_zero_sizes(spec: PyTree) -> PyTree:
    """Replace sizes of 0 by None in a spec that was inferred with assumed sizes.

    The actual sizes may be larger.
    """
    if not isinstance(spec, TensorSpec) or spec.shape.rank is None:
        return spec
    return TensorSpec([n or None for n in spec.shape.as_list()], spec.dtype)


def _find_result_types(traced: TracedFunction) -> set[type]:
    """Return the types of the results of a traced function."""
    results = traced.rebuild_result([Tensor(np.zeros(())) for _ in traced.out_specs])
    return set(map(type, nest.flatten(results)))


def returns_only_tensors(traced: TracedFunction) -> bool:
    """Check whether all results of a traced function are tensors."""
    return all(issubclass(kind, Tensor) for kind in _find_result_types(traced))


def returns_composites(traced: TracedFunction) -> bool:
    """Check whether all results of a traced function are tensors or sparse tensors, and one is sparse."""
    leaves = nest.flatten(traced.structure)
    if CompositeResultSlot not in (kinds := set(map(type, leaves))):
        return False
    is_slot = kinds <= {CompositeResultSlot, TensorSlot}
    return is_slot and _find_result_types(traced) <= {Tensor, SparseTensor}


def infer_traced_spec(traced: TracedFunction) -> PyTree:
    """Return the spec of the results of a traced function; sizes that depend on values are None."""
    get_part = lambda leaf: traced.out_specs[leaf.index] if type(leaf) is TensorSlot else leaf

    def make_spec(leaf: Any) -> Any:
        leaf = get_part(leaf)
        if isinstance(leaf, TensorSpec):
            sizes = [None if is_symbolic_dim(n) else n for n in leaf.shape.as_list()]
            return TensorSpec(sizes, leaf.dtype)
        if not isinstance(leaf, CompositeResultSlot):
            return leaf
        values, indices, dense_shape = leaf.parts
        rank = get_part(indices).shape.as_list()[1]
        known = isinstance(dense_shape, Tensor)
        sizes = dense_shape.numpy().tolist() if known else [None] * rank
        return SparseTensorSpec(sizes, get_part(values).dtype)

    return structure.infer_result_spec(nest.map_structure(make_spec, traced.structure))

"""Traces of functions with symbolic sizes, their specializations, and reasons for new traces."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from meshflow.core.functions import retracing
from meshflow.core.functions.call_arguments import CallArguments, to_spec
from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.core.functions.signatures import Args, Kwargs
from meshflow.core.functions.value_conversions import is_tensor_or_spec
from meshflow.core.runtime.context import context
from meshflow.core.values import nest
from meshflow.core.values.composite import CompositeTensor, list_part_sizes
from meshflow.core.values.specs import TypeSpec
from meshflow.core.values.trace_families import Shapes, TraceFamily
from meshflow.environment.types import PyTree
from meshflow.passes.size_specialization import can_differentiate


def make_family_key(key: Hashable) -> Hashable:
    """Return the key of a call without the sizes of its arrays."""
    parts: Any = key
    return parts[0], tuple(map(_omit_sizes, parts[1])), *parts[2:]


def _omit_sizes(leaf_key: Hashable) -> Hashable:
    """Replace the shape in the key of an array by its rank."""
    match leaf_key:
        case (tuple() as shape, np.dtype() as dtype):
            return len(shape), dtype
    return leaf_key


def create_family(
    declared_sizes: Sequence[Sequence[int | None] | None],
    shapes: Shapes,
    args: Args,
    kwargs: Kwargs,
    reduce_retracing: bool,
) -> TraceFamily[ConcreteFunction] | None:
    """Create the family for the traces of calls that differ in sizes only; None if each size has its own trace.

    Args:
      declared_sizes: The sizes of the tensors as a signature declares them; see `list_declared_sizes`.
      shapes: The shapes of the tensors.
      args: Positional arguments or specs.
      kwargs: Keyword arguments or specs.
      reduce_retracing: Whether sizes may vary that are not declared.
    """
    is_declared = any(sizes and None in sizes for sizes in declared_sizes)
    ranks = [None if sizes is None else len(sizes) for sizes in declared_sizes]
    if is_declared and ranks == [len(s) for s in shapes]:
        return TraceFamily(declared_sizes)  # type: ignore[arg-type]
    # The number of values in rows, or of elements, is always unknown.
    varies = reduce_retracing or is_declared
    if varies or any(isinstance(leaf, CompositeTensor) for leaf in nest.flatten((args, kwargs))):
        return TraceFamily()
    return None


def list_declared_sizes(specs: PyTree) -> list[Any]:
    """Return the sizes of the tensors of each spec, with None for unknown ones; None for an unknown rank."""
    leaves = [leaf for leaf in nest.flatten(specs) if isinstance(leaf, TypeSpec)]
    return [sizes for spec in leaves for sizes in list_part_sizes(spec)]


def specialize(
    general: ConcreteFunction, arguments: CallArguments, args: Args, kwargs: Kwargs
) -> ConcreteFunction | None:
    """Return a trace with symbolic sizes for the sizes of arguments or specs; None if its derivatives would differ."""
    sizes = general.sizes
    is_differentiable = context.trace is not None or context.tapes
    if sizes is None or (is_differentiable and not can_differentiate(general.traced.closed_jaxpr)):
        return None
    leaves = nest.flatten_parts((args, kwargs))
    shapes = [tuple(leaf.shape) for leaf in leaves if is_tensor_or_spec(leaf)]
    signature = nest.map_structure(to_spec, (args, kwargs))
    concrete = ConcreteFunction(
        general.traced.specialize(sizes, shapes),
        signature,
        arguments.list_parameter_names(),
    )
    concrete.is_stored = general.is_stored
    return concrete


def explain_trace(
    traces: list[ConcreteFunction],
    concrete: ConcreteFunction,
    arguments: CallArguments,
    args: Args,
    kwargs: Kwargs,
) -> str:
    """Return the reason why the arguments of a call needed a new trace."""
    others = [other for other in traces if other is not concrete]
    others.sort(key=lambda other: -other.last_use)
    return retracing.explain_change(
        [
            arguments.label_leaves(*other.structured_input_signature)
            for other in others[: retracing.MAX_COMPARED]
        ],
        arguments.label_leaves(args, kwargs),
    )

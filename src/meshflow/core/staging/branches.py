"""Branches: `lax.cond` and `lax.switch` run one of several functions, which a tensor selects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.core.dispatch.symbolic_calls import UnknownString
from meshflow.core.runtime.context import context
from meshflow.core.staging.growing_accumulators import ArrayGrowth, retry_grown_arrays
from meshflow.core.staging.merged_operands import MergedOperands, run_as_op
from meshflow.core.staging.structure import (
    NestedTemplate,
    Undefined,
    are_interchangeable,
    describe_leaf,
    is_number,
    is_tensor_like,
    to_tensor,
)
from meshflow.core.staging.varying_sizes import merge_shapes
from meshflow.core.tracing.trace import TracedFunction, trace
from meshflow.core.values.convert import convert_python_value
from meshflow.core.values.dtypes import DType
from meshflow.core.values.tensor import Tensor, read_tensor
from meshflow.core.values.unknown_sizes import set_sizes

Values = list[Any]


class BranchMerge:
    """Rules to merge the results of branches; subclasses create the errors.

    Attributes:
      keep_static: Whether equal Python values remain Python values; else numbers are converted.
    """

    keep_static = False

    def can_be_missing(self, position: int) -> bool:
        """Check whether zeros replace a value that some branch does not define."""
        return False

    def make_missing_error(self, position: int, branch: int) -> Exception:
        """Create the error for a value that a branch does not define."""
        raise NotImplementedError

    def make_mismatch_error(
        self, position: int, aspect: str, first: str, second: str, branch: int
    ) -> Exception:
        """Create the error for values that differ in "structure", "dtype", "shape" or "value"."""
        raise NotImplementedError


class _TracedBranch:
    """A traced branch: a template for each value, in which indices replace the tensors."""

    def __init__(
        self, function: Callable[[], Values], keeps_variable: Callable[[int], bool]
    ) -> None:
        self.templates: list[NestedTemplate] = []
        self.defined: list[bool] = []

        def collect() -> list[Tensor]:
            tensors: list[Tensor] = []
            for position, value in enumerate(function()):
                template = NestedTemplate(value)
                self.defined.append(not isinstance(value, Undefined))
                for i, leaf in enumerate(template.leaves):
                    if not keeps_variable(position):
                        leaf = read_tensor(leaf)
                    if is_tensor_like(leaf):
                        tensor = leaf if isinstance(leaf, Tensor) else to_tensor(leaf)
                        template.leaves[i] = _BranchOutput(len(tensors), tensor)
                        tensors.append(tensor)
                self.templates.append(template)
            return tensors

        self.traced: TracedFunction = trace(collect, (), name="branch", is_branch=True)


class _BranchOutput:
    """A tensor leaf of a branch: the index of a result."""

    def __init__(self, index: int, tensor: Tensor) -> None:
        self.index = index
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype


def run_branch(
    index: Tensor, functions: Sequence[Callable[[], Values]], merge: BranchMerge
) -> Values:
    """Run the function that `index` selects.

    Args:
      index: A scalar: bool for two functions (True selects the first), or int32, which is clamped.
      functions: Functions that return lists of nested values, all of the same length.
      merge: Rules to merge the results.

    Returns:
      The list of nested values.

    Raises:
      ValueError: If a branch does not define a value; created by `merge`.
      TypeError: If the results differ; created by `merge`.
    """
    # Positions of values that are a variable in one branch, and another value in another branch.
    read_positions: set[int] = set()
    while True:
        try:
            return retry_grown_arrays(lambda: _select(index, functions, merge, read_positions))
        except _VariableDifference as difference:
            read_positions.add(difference.args[0])


class _VariableDifference(Exception):
    """Signal that a value is a variable in one branch, and another value in another branch."""


def _select(
    index: Tensor,
    functions: Sequence[Callable[[], Values]],
    merge: BranchMerge,
    read_positions: set[int],
) -> Values:
    def keeps_variable(position: int) -> bool:
        return merge.keep_static and position not in read_positions

    branches = [_TracedBranch(function, keeps_variable) for function in functions]
    operands = MergedOperands([b.traced for b in branches])
    templates, plans = _plan_outputs(branches, merge)

    def make_body(branch: _TracedBranch, plan: list[Any]) -> Callable[[list[Any]], list[Any]]:
        def body(values: list[Any]) -> list[Any]:
            results = branch.traced.run_on_arrays(
                [], operands.select_captures(branch.traced, values)
            )
            count = branch.traced.num_results
            outputs = [
                set_sizes(results[p[0]], p[1]) if isinstance(p[0], int) else jnp.broadcast_to(*p)
                for p in plan
            ]
            outputs += operands.merge_written_values(branch.traced, results[count:], values)
            # The outputs get strong types, so that the branches agree.
            return [lax.convert_element_type(o, o.dtype) for o in outputs]

        return body

    bodies = [make_body(branch, plan) for branch, plan in zip(branches, plans, strict=True)]

    def call(indices: list[Any], values: list[Any]) -> list[Any]:
        if indices[0].dtype == bool:
            return lax.cond(indices[0], bodies[0], bodies[1], values)
        return lax.switch(indices[0], bodies, values)

    name = "cond" if index.dtype.name == "bool" else "switch_case"
    outputs = run_as_op(name, call, [index], operands.read_captures())
    operands.record_infeed_token(outputs)
    count = len(plans[0])
    operands.assign_variables(outputs[count:])
    remaining = iter(outputs[:count])
    return [
        t.build([next(remaining) if leaf is _DYNAMIC else leaf for leaf in t.leaves])
        for t in templates
    ]


_DYNAMIC = object()


def _plan_outputs(
    branches: list[_TracedBranch], merge: BranchMerge
) -> tuple[list[NestedTemplate], list[list[Any]]]:
    """Return the templates of the values and the outputs of each branch.

    A leaf of a template is static or `_DYNAMIC`. For each dynamic leaf, a branch returns the result
    with a given index, or a constant of a given shape.
    """
    plans: list[list[Any]] = [[] for _ in branches]
    templates: list[NestedTemplate] = []
    for position in range(len(branches[0].templates)):
        model_index = next((i for i, b in enumerate(branches) if b.defined[position]), 0)
        model = branches[model_index].templates[position]
        options: list[NestedTemplate | None] = []
        for branch_index, branch in enumerate(branches):
            template = branch.templates[position]
            if not branch.defined[position] and branches[model_index].defined[position]:
                if not merge.can_be_missing(position):
                    raise merge.make_missing_error(position, branch_index)
                options.append(None)
                continue
            model.check_composite_sizes(template)
            if model.describe_difference(template) is not None:
                if model.has_grown() or template.has_grown():
                    raise ArrayGrowth
                model.check_array_sizes(template)
                raise merge.make_mismatch_error(
                    position,
                    "structure",
                    _format_template(model),
                    _format_template(template),
                    branch_index,
                )
            model.check_array_sizes(template)
            options.append(template)
        for i in range(len(model.leaves)):
            leaves = [None if t is None else t.leaves[i] for t in options]
            present = [leaf for t, leaf in zip(options, leaves, strict=True) if t is not None]
            if context.value_probe is not None and all(map(_is_text, present)):
                # Only the shapes of the results are determined; a string that the program chooses is unknown.
                model.leaves[i] = _make_unknown_text(present)
                continue
            static = merge.keep_static and not isinstance(present[0], _BranchOutput)
            static = static or all(leaf is None for leaf in present)
            if static and all(are_interchangeable(present[0], leaf) for leaf in present):
                model.leaves[i] = present[0]
                continue
            if any(hasattr(leaf, "_as_tensor") for leaf in present):
                raise _VariableDifference(position)
            for plan, output in zip(
                plans, _unify_leaf(position, options, leaves, merge), strict=True
            ):
                plan.append(output)
            model.leaves[i] = _DYNAMIC
        templates.append(model)
    return templates, plans


def _is_text(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype.dtype == object


def _make_unknown_text(options: Sequence[Any]) -> Tensor:
    """Return a placeholder for the strings of one of several branches."""
    shapes = [tuple(t.shape.as_list()) for t in options]
    sizes = merge_shapes(shapes)
    text: np.ndarray = np.empty(shapes[0] if sizes is None else sizes, object)
    text.fill(UnknownString())
    return Tensor(text)


def _unify_leaf(
    position: int, options: list[Any], leaves: list[Any], merge: BranchMerge
) -> list[Any]:
    """Return for one leaf of every branch an index of a result or a constant, and its shape."""
    present = [
        (n, leaf) for n, (t, leaf) in enumerate(zip(options, leaves, strict=True)) if t is not None
    ]
    tensors = [leaf for _, leaf in present if isinstance(leaf, _BranchOutput)]
    dtype = tensors[0].dtype if tensors else None
    if dtype is None and any(isinstance(leaf, float) for _, leaf in present):
        dtype = convert_python_value(0.0, None).dtype
    candidates: dict[int, Any] = {}
    for branch_index, leaf in present:
        candidate = leaf if isinstance(leaf, _BranchOutput) else _to_constant(leaf, dtype)
        if candidate is None:
            differing = next(v for _, v in present if v is not leaf)
            raise merge.make_mismatch_error(
                position, "value", _format_leaf(differing), _format_leaf(leaf), branch_index
            )
        candidates[branch_index] = candidate
    first = next(iter(candidates.values()))
    shape = merge_shapes([c.shape for c in candidates.values()])
    for branch_index, candidate in candidates.items():
        has_other_shape = shape is None and first.shape != candidate.shape
        if first.dtype != candidate.dtype or has_other_shape:
            aspect = "shape" if first.dtype == candidate.dtype else "dtype"
            raise merge.make_mismatch_error(
                position, aspect, _format_leaf(first), _format_leaf(candidate), branch_index
            )
    zeros = np.zeros((), first.dtype.dtype), shape
    outputs: list[Any] = [zeros] * len(leaves)
    for branch_index, candidate in candidates.items():
        is_output = isinstance(candidate, _BranchOutput)
        outputs[branch_index] = candidate.index if is_output else np.asarray(candidate.array), shape
    return outputs


def _to_constant(leaf: object, dtype: DType | None) -> Tensor | None:
    if hasattr(leaf, "_as_tensor") or not is_number(leaf):
        return None
    return to_tensor(leaf, dtype)


def _format_leaf(leaf: object) -> str:
    if isinstance(leaf, (_BranchOutput, Tensor)):
        return f"{leaf.dtype.name}{list(leaf.shape)}"
    return describe_leaf(leaf)


def _format_template(template: NestedTemplate) -> str:
    return template.describe(_format_leaf)

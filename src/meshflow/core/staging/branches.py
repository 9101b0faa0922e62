"""Branches: `lax.cond` and `lax.switch` run one of several functions, which a tensor selects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.core.staging.growing_accumulators import ArrayGrew, with_known_arrays
from meshflow.core.staging.operands import Operands, run
from meshflow.core.staging.structure import (
    Template,
    Undefined,
    describe_leaf,
    is_number,
    is_tensor_like,
    same_static,
    to_tensor,
)
from meshflow.core.tracing.trace import Traced, trace
from meshflow.core.values.convert import from_python
from meshflow.core.values.dtypes import DType
from meshflow.core.values.tensor import Tensor

Values = list[Any]


class Merge:
    """Rules to merge the results of branches; subclasses create the errors.

    Attributes:
      keep_static: Whether equal Python values remain Python values; else numbers are converted.
    """

    keep_static = False

    def may_be_missing(self, position: int) -> bool:
        """Check whether zeros replace a value that some branch does not define."""
        return False

    def missing(self, position: int, branch: int) -> Exception:
        """Create the error for a value that a branch does not define."""
        raise NotImplementedError

    def different(
        self, position: int, aspect: str, first: str, second: str, branch: int
    ) -> Exception:
        """Create the error for values that differ in "structure", "dtype", "shape" or "value"."""
        raise NotImplementedError


class _Branch:
    """A traced branch: a template for each value, in which indices replace the tensors."""

    def __init__(self, function: Callable[[], Values], keep_variables: bool) -> None:
        self.templates: list[Template] = []
        self.defined: list[bool] = []

        def collect() -> list[Tensor]:
            tensors: list[Tensor] = []
            for value in function():
                template = Template(value)
                self.defined.append(not isinstance(value, Undefined))
                for i, leaf in enumerate(template.leaves):
                    if hasattr(leaf, "_as_tensor") and not keep_variables:
                        leaf = leaf._as_tensor()
                    if is_tensor_like(leaf):
                        tensor = leaf if isinstance(leaf, Tensor) else to_tensor(leaf)
                        template.leaves[i] = _Traced(len(tensors), tensor)
                        tensors.append(tensor)
                self.templates.append(template)
            return tensors

        self.traced: Traced = trace(collect, (), name="branch", is_branch=True)


class _Traced:
    """A tensor leaf of a branch: the index of a result."""

    def __init__(self, index: int, tensor: Tensor) -> None:
        self.index = index
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype


def select(index: Tensor, functions: Sequence[Callable[[], Values]], merge: Merge) -> Values:
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
    return with_known_arrays(lambda: _select(index, functions, merge))


def _select(index: Tensor, functions: Sequence[Callable[[], Values]], merge: Merge) -> Values:
    branches = [_Branch(function, merge.keep_static) for function in functions]
    operands = Operands([b.traced for b in branches])
    templates, plans = _plan(branches, merge)

    def make_body(branch: _Branch, plan: list[Any]) -> Callable[[list[Any]], list[Any]]:
        def body(values: list[Any]) -> list[Any]:
            results = branch.traced.arrays([], operands.captures_of(branch.traced, values))
            count = branch.traced.count
            outputs = [results[p] if isinstance(p, int) else jnp.broadcast_to(*p) for p in plan]
            outputs += operands.written_values(branch.traced, results[count:], values)
            # The outputs get strong types, so that the branches agree.
            return [lax.convert_element_type(o, o.dtype) for o in outputs]

        return body

    bodies = [make_body(branch, plan) for branch, plan in zip(branches, plans, strict=True)]

    def call(indices: list[Any], values: list[Any]) -> list[Any]:
        if indices[0].dtype == bool:
            return lax.cond(indices[0], bodies[0], bodies[1], values)
        return lax.switch(indices[0], bodies, values)

    name = "cond" if index.dtype.name == "bool" else "switch_case"
    outputs = run(name, call, [index], operands.tensors())
    operands.finished(outputs)
    count = len(plans[0])
    operands.assign(outputs[count:])
    remaining = iter(outputs[:count])
    return [
        t.build([next(remaining) if leaf is _DYNAMIC else leaf for leaf in t.leaves])
        for t in templates
    ]


_DYNAMIC = object()


def _plan(branches: list[_Branch], merge: Merge) -> tuple[list[Template], list[list[Any]]]:
    """Return the templates of the values and the outputs of each branch.

    A leaf of a template is static or `_DYNAMIC`. For each dynamic leaf, a branch returns the result
    with a given index, or a constant of a given shape.
    """
    plans: list[list[Any]] = [[] for _ in branches]
    templates: list[Template] = []
    for position in range(len(branches[0].templates)):
        model_index = next((i for i, b in enumerate(branches) if b.defined[position]), 0)
        model = branches[model_index].templates[position]
        options: list[Template | None] = []
        for branch_index, branch in enumerate(branches):
            template = branch.templates[position]
            if not branch.defined[position] and branches[model_index].defined[position]:
                if not merge.may_be_missing(position):
                    raise merge.missing(position, branch_index)
                options.append(None)
                continue
            if model.difference(template) is not None:
                if model.grew() or template.grew():
                    raise ArrayGrew
                raise merge.different(
                    position, "structure", _describe(model), _describe(template), branch_index
                )
            options.append(template)
        for i in range(len(model.leaves)):
            leaves = [None if t is None else t.leaves[i] for t in options]
            present = [leaf for t, leaf in zip(options, leaves, strict=True) if t is not None]
            static = merge.keep_static and not isinstance(present[0], _Traced)
            static = static or all(leaf is None for leaf in present)
            if static and all(same_static(present[0], leaf) for leaf in present):
                model.leaves[i] = present[0]
                continue
            for plan, output in zip(plans, _unify(position, options, leaves, merge), strict=True):
                plan.append(output)
            model.leaves[i] = _DYNAMIC
        templates.append(model)
    return templates, plans


def _unify(position: int, options: list[Any], leaves: list[Any], merge: Merge) -> list[Any]:
    """Return result indices or constants of one dtype and shape for one leaf of every branch."""
    present = [
        (n, leaf) for n, (t, leaf) in enumerate(zip(options, leaves, strict=True)) if t is not None
    ]
    tensors = [leaf for _, leaf in present if isinstance(leaf, _Traced)]
    dtype = tensors[0].dtype if tensors else None
    if dtype is None and any(isinstance(leaf, float) for _, leaf in present):
        dtype = from_python(0.0, None).dtype
    outputs: list[Any] = [None] * len(leaves)
    first: Any = None
    candidate: Any
    for branch_index, leaf in present:
        if isinstance(leaf, _Traced):
            candidate, outputs[branch_index] = leaf, leaf.index
        else:
            candidate = _constant(leaf, dtype)
            if candidate is None:
                differing = next(v for _, v in present if v is not leaf)
                raise merge.different(
                    position, "value", _text(differing), _text(leaf), branch_index
                )
            outputs[branch_index] = np.asarray(candidate._value), tuple(candidate.shape)
        if first is None:
            first = candidate
        for aspect in ("dtype", "shape"):
            a, b = getattr(first, aspect), getattr(candidate, aspect)
            if a != b:
                raise merge.different(
                    position, aspect, _text(first), _text(candidate), branch_index
                )
    zeros = np.zeros((), first.dtype.dtype), tuple(first.shape)
    return [zeros if t is None else c for t, c in zip(options, outputs, strict=True)]


def _constant(leaf: object, dtype: DType | None) -> Tensor | None:
    if hasattr(leaf, "_as_tensor") or not is_number(leaf):
        return None
    return to_tensor(leaf, dtype)


def _text(leaf: object) -> str:
    if isinstance(leaf, (_Traced, Tensor)):
        return f"{leaf.dtype.name}{list(leaf.shape)}"
    return describe_leaf(leaf)


def _describe(template: Template) -> str:
    return str(template.build([_text(leaf) for leaf in template.leaves])).replace("'", "")

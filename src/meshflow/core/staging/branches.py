"""One of several functions runs, chosen by a tensor: `lax.cond` and `lax.switch`."""

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
from meshflow.core.values.tensor import Tensor

Values = list[Any]


class Merge:
    """How the results of the branches become one; subclasses phrase the errors.

    Attributes:
      keep_static: equal Python values stay Python values; otherwise numbers become tensors.
    """

    keep_static = False

    def may_be_missing(self, position: int) -> bool:
        """Whether a value that some branch does not define is filled with zeros."""
        return False

    def missing(self, position: int, branch: int) -> Exception:
        """The error for a value that a branch does not define."""
        raise NotImplementedError

    def different(
        self, position: int, what: str, first: str, second: str, branch: int
    ) -> Exception:
        """The error for values that differ in "structure", "dtype", "shape" or "value"."""
        raise NotImplementedError


class _Branch:
    """One traced branch: a template for each value, with `Slot`-like indices for its tensors."""

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
    """A tensor leaf of a branch: the result number `index`."""

    def __init__(self, index: int, tensor: Tensor) -> None:
        self.index = index
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype


def select(index: Tensor, functions: Sequence[Callable[[], Values]], merge: Merge) -> Values:
    """Runs the function that `index` chooses.

    Args:
      index: a scalar: bool for two functions (the first runs when it is True), or int32, clamped.
      functions: each returns a list of nested values, all of the same length.
      merge: what to do when the results differ.

    Returns:
      The list of nested values.

    Raises:
      ValueError, TypeError: as `merge` says, when results do not fit together.
    """
    return with_known_arrays(lambda: _select(index, functions, merge))


def _select(index: Tensor, functions: Sequence[Callable[[], Values]], merge: Merge) -> Values:
    branches = [_Branch(function, merge.keep_static) for function in functions]
    operands = Operands([b.traced for b in branches])
    templates, plans = _plan(branches, merge)

    def body_of(branch: _Branch, plan: list[Any]) -> Callable[[list[Any]], list[Any]]:
        def body(values: list[Any]) -> list[Any]:
            results = branch.traced.arrays([], operands.captures_of(branch.traced, values))
            count = branch.traced.count
            outputs = [results[p] if isinstance(p, int) else jnp.broadcast_to(*p) for p in plan]
            outputs += operands.written_values(branch.traced, results[count:], values)
            # Without weak types, so that the branches agree.
            return [lax.convert_element_type(o, o.dtype) for o in outputs]

        return body

    bodies = [body_of(branch, plan) for branch, plan in zip(branches, plans, strict=True)]

    def call(chosen: list[Any], values: list[Any]) -> list[Any]:
        if chosen[0].dtype == bool:
            return lax.cond(chosen[0], bodies[0], bodies[1], values)
        return lax.switch(chosen[0], bodies, values)

    name = "cond" if index.dtype.name == "bool" else "switch_case"
    outputs = run(name, call, [index], operands.tensors())
    operands.finished(outputs)
    count = len(plans[0])
    operands.assign(outputs[count:])
    supply = iter(outputs[:count])
    return [
        t.build([next(supply) if leaf is _DYNAMIC else leaf for leaf in t.leaves])
        for t in templates
    ]


_DYNAMIC = object()


def _plan(branches: list[_Branch], merge: Merge) -> tuple[list[Template], list[list[Any]]]:
    """For each value a template whose leaves are static or `_DYNAMIC`; for each branch what to
    return for the dynamic leaves: the number of a result, or a constant and its shape."""
    plans: list[list[Any]] = [[] for _ in branches]
    templates: list[Template] = []
    for position in range(len(branches[0].templates)):
        model_at = next((i for i, b in enumerate(branches) if b.defined[position]), 0)
        model = branches[model_at].templates[position]
        options: list[Template | None] = []
        for number, branch in enumerate(branches):
            template = branch.templates[position]
            if not branch.defined[position] and branches[model_at].defined[position]:
                if not merge.may_be_missing(position):
                    raise merge.missing(position, number)
                options.append(None)
                continue
            if model.difference(template) is not None:
                if model.grew() or template.grew():
                    raise ArrayGrew
                raise merge.different(
                    position, "structure", _describe(model), _describe(template), number
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
            for plan, chosen in zip(plans, _unify(position, options, leaves, merge), strict=True):
                plan.append(chosen)
            model.leaves[i] = _DYNAMIC
        templates.append(model)
    return templates, plans


def _unify(position: int, options: list[Any], leaves: list[Any], merge: Merge) -> list[Any]:
    """Result numbers or constants of one dtype and shape for one leaf of every branch."""
    given = [
        (n, leaf) for n, (t, leaf) in enumerate(zip(options, leaves, strict=True)) if t is not None
    ]
    tensors = [leaf for _, leaf in given if isinstance(leaf, _Traced)]
    like = tensors[0].dtype if tensors else None
    if like is None and any(isinstance(leaf, float) for _, leaf in given):
        like = from_python(0.0, None).dtype
    chosen: list[Any] = [None] * len(leaves)
    first: Any = None
    candidate: Any
    for number, leaf in given:
        if isinstance(leaf, _Traced):
            candidate, chosen[number] = leaf, leaf.index
        else:
            candidate = _constant(leaf, like)
            if candidate is None:
                other = next(v for _, v in given if v is not leaf)
                raise merge.different(position, "value", _text(other), _text(leaf), number)
            chosen[number] = np.asarray(candidate._value), tuple(candidate.shape)
        if first is None:
            first = candidate
        for what in ("dtype", "shape"):
            a, b = getattr(first, what), getattr(candidate, what)
            if a != b:
                raise merge.different(position, what, _text(first), _text(candidate), number)
    zeros = np.zeros((), first.dtype.dtype), tuple(first.shape)
    return [zeros if t is None else c for t, c in zip(options, chosen, strict=True)]


def _constant(leaf: Any, like: Any) -> Tensor | None:
    if hasattr(leaf, "_as_tensor") or not is_number(leaf):
        return None
    return to_tensor(leaf, like)


def _text(leaf: Any) -> str:
    if isinstance(leaf, (_Traced, Tensor)):
        return f"{leaf.dtype.name}{list(leaf.shape)}"
    return describe_leaf(leaf)


def _describe(template: Template) -> str:
    return str(template.build([_text(leaf) for leaf in template.leaves])).replace("'", "")

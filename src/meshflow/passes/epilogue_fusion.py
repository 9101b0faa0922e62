"""Fusion of elementwise epilogues into convolutions and products.

Fused are vectors by which features are multiplied or that are added to them (biases, batch
normalization in inference), arrays that are added (skip connections), a ReLU, the gradient of one,
or a GELU. A convolution also absorbs the conversion of its kernel from float32 and the flip of the
kernel in the gradient of an image. The gradient of max pooling absorbs the gradient of a ReLU.

It is the last pass before a program is compiled, when all derivatives are taken. A step is fused
only if no other equation reads the values in between. Comparisons of a ReLU's operand with zero
read its result instead, which compares alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from meshflow.environment.inner_jaxprs import to_open_jaxpr
from meshflow.environment.types import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var
from meshflow.kernels.epilogues import convolution_p, find_feature_axes, product_p
from meshflow.kernels.library import TYPE_CODES
from meshflow.kernels.lowerings import is_kernel_gradient
from meshflow.kernels.pooling import GATED_GRADIENTS
from meshflow.passes.jaxprs import get_aval, map_consumers, map_producers, rewrite_equations
from meshflow.passes.patterns import match_gelu

# Calls that may wrap a ReLU, with the parameter that holds their program.
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr"}


class _Chain(NamedTuple):
    """Steps that follow an equation: their indices, names and operands, and the last result."""

    indices: list[int]
    epilogue: list[str]
    operands: list[Atom]
    result: Var


def fuse_epilogues(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Fuse convolutions and products with the steps after them; return the same object if none."""
    primitives = ("conv_general_dilated", "dot_general", "gt", *[p.name for p in GATED_GRADIENTS])
    return rewrite_equations(
        closed, lambda jaxpr, eqns: _EpilogueFusion(jaxpr, eqns).run(), primitives
    )


class _EpilogueFusion:
    """Fusion of the equations of one jaxpr.

    Args:
      jaxpr: The jaxpr; its outputs count as reads.
      eqns: Its equations.
    """

    def __init__(self, jaxpr: Jaxpr, eqns: list[JaxprEqn]) -> None:
        self._eqns: list[Any] = eqns
        self._producers, self._consumers = map_producers(eqns), map_consumers(jaxpr, eqns)

    def run(self) -> list[Any]:
        """Return the fused equations."""
        self._compare_relu_results()
        for i, eqn in enumerate(self._eqns):
            if eqn is not None and eqn.primitive.name == "conv_general_dilated":
                self._fuse_convolution(i)
            elif eqn is not None and eqn.primitive.name == "dot_general":
                self._fuse_product(i)
            elif eqn is not None and (maxima := _find_max_gradient(eqn)) is not None:
                self._fuse_relu_mask(i, maxima)
        return [eqn for eqn in self._eqns if eqn is not None]

    def _compare_relu_results(self) -> None:
        """Make comparisons with zero read a ReLU's result instead of its operand."""
        relu_results: dict[Atom, Var] = {}
        for i, eqn in enumerate(self._eqns):
            operand = _find_relu_operand(eqn, self._is_zero)
            if operand is not None:
                relu_results.setdefault(operand, eqn.outvars[0])
            elif eqn.primitive.name == "gt" and self._is_zero(eqn.invars[1]):
                old = eqn.invars[0]
                new = None if isinstance(old, Literal) else relu_results.get(old)
                if new is not None:
                    self._eqns[i] = eqn.replace(invars=[new, eqn.invars[1]])
                    self._producers |= dict.fromkeys(eqn.outvars, self._eqns[i])
                    self._consumers[old].remove(i)
                    self._consumers.setdefault(new, []).append(i)

    def _fuse_convolution(self, index: int) -> None:
        conv = self._eqns[index]
        if not _is_supported(conv):
            return
        chain = self._find_chain(conv, (conv.params["dimension_numbers"].out_spec[1],))
        kernel, flipped = self._find_kernel_source(conv)
        if chain.epilogue or kernel is not conv.invars[1]:
            operands = [conv.invars[0], kernel]
            parameters = {**conv.params, "flipped": flipped, "packed": False}
            self._replace_chain(index, chain, convolution_p, operands, parameters)

    def _fuse_product(self, index: int) -> None:
        product = self._eqns[index]
        if product.params.get("out_sharding") is not None or not _has_one_type(product):
            return
        avals = get_aval(product.invars[1]), get_aval(product.outvars[0])
        axes = find_feature_axes(*avals, product.params)
        chain = self._find_chain(product, axes)
        if any(step != "add" for step in chain.epilogue):
            self._replace_chain(index, chain, product_p, product.invars, product.params)

    def _replace_chain(
        self,
        index: int,
        chain: _Chain,
        primitive: Primitive,
        operands: list[Any],
        parameters: dict[str, Any],
    ) -> None:
        """Replace an equation and the chain that follows it by one equation."""
        old = self._eqns[index]
        for i in (index, *chain.indices):
            self._eqns[i] = None
        # All operands exist at the index of the last step.
        self._eqns[max((index, *chain.indices))] = old.replace(
            primitive=primitive,
            invars=[*operands, *chain.operands],
            outvars=[chain.result],
            params={**parameters, "epilogue": tuple(chain.epilogue)},
        )

    def _find_chain(self, eqn: JaxprEqn, axes: tuple[int, ...]) -> _Chain:
        """Find the longest chain of steps after an equation with the feature axes `axes`."""
        value = eqn.outvars[0]
        dtype = get_aval(value).dtype
        indices: list[int] = []
        epilogue: list[str] = []
        operands: list[Atom] = []
        chain = _Chain([], [], [], value)
        while (found := self._find_next_step(value, dtype, axes)) is not None:
            step, added, value = found
            indices += added
            epilogue += step[:1]
            operands += step[1:]
            if get_aval(value).dtype == dtype:
                chain = _Chain(list(indices), list(epilogue), list(operands), value)
        return chain

    def _find_next_step(
        self, value: Var, dtype: np.dtype, axes: tuple[int, ...]
    ) -> tuple[list[Any], list[int], Var] | None:
        """Return the next step, the indices of its equations and its result, or None."""
        match = match_gelu(value, self._eqns, self._consumers)
        if match is not None:
            name, indices, result = match
            return [name], indices, result
        index = self._find_only_consumer(value)
        if index is None or self._eqns[index] is None:
            return None
        step = self._match_step(self._eqns[index], value, dtype, axes)
        return None if step is None else (step, [index], self._eqns[index].outvars[0])

    def _match_step(
        self, eqn: JaxprEqn, value: Var, dtype: np.dtype, axes: tuple[int, ...]
    ) -> list[Any] | None:
        """Return a step's name and operand, an empty list for a conversion, or None for no step."""
        name = eqn.primitive.name
        if name == "convert_element_type":
            return [] if get_aval(eqn.outvars[0]).dtype in (dtype, np.float32) else None
        if _find_relu_operand(eqn, self._is_zero) is value:
            return ["relu"]
        if name == "select_n":
            mask = self._find_relu_mask(eqn, value)
            return None if mask is None else ["relu_mask", mask]
        if name not in ("add", "add_any", "mul"):
            return None
        others = [v for v in eqn.invars if v is not value]
        if len(others) != 1 or isinstance(others[0], Literal):
            return None
        vector = self._find_vector(others[0], value, axes)
        if vector is not None:
            return ["scale" if name == "mul" else "add", vector]
        array = self._find_array(others[0], value)
        return None if array is None or name == "mul" else ["plus", array]

    def _fuse_relu_mask(self, index: int, max_gradient: JaxprEqn) -> None:
        """Fuse a gradient of max pooling with the gradient of the preceding ReLU."""
        eqn = self._eqns[index]
        consumer = self._find_only_consumer(eqn.outvars[0])
        if consumer is None or self._eqns[consumer].primitive.name != "select_n":
            return
        if self._find_relu_mask(self._eqns[consumer], eqn.outvars[0]) is eqn.invars[0]:
            outvars, self._eqns[consumer] = self._eqns[consumer].outvars, None
            gated, parameters = GATED_GRADIENTS[max_gradient.primitive], max_gradient.params
            self._eqns[index] = eqn.replace(primitive=gated, outvars=outvars, params=parameters)

    def _find_only_consumer(self, var: Atom) -> int | None:
        """Return the index of the only equation that reads a variable, or None."""
        consumers = self._consumers.get(var, [])
        return consumers[0] if len(consumers) == 1 and consumers[0] < len(self._eqns) else None

    def _is_zero(self, atom: Atom) -> bool:
        """Check whether a value is a zero or an array of zeros."""
        if isinstance(atom, Literal):
            return np.ndim(atom.val) == 0 and bool(atom.val == 0)
        producer = self._producers.get(atom)
        return (
            producer is not None
            and producer.primitive.name in ("broadcast_in_dim", "convert_element_type")
            and self._is_zero(producer.invars[0])
        )

    def _find_kernel_source(self, conv: JaxprEqn) -> tuple[Atom, bool]:
        """Return a convolution's kernel before its flip and rounding, and whether it is flipped."""
        kernel, flipped = conv.invars[1], False
        layout = conv.params["dimension_numbers"]
        producer = self._find_producer(kernel, "rev")
        if producer is not None and set(producer.params["dimensions"]) == set(layout.rhs_spec[2:]):
            kernel, flipped = producer.invars[0], True
        producer = self._find_producer(kernel, "convert_element_type")
        if producer is not None and get_aval(producer.invars[0]).dtype == np.float32:
            kernel = producer.invars[0]
        return kernel, flipped

    def _find_producer(self, atom: Atom, name: str) -> JaxprEqn | None:
        """Return the equation that computes a value if its primitive has this name, else None."""
        producer = None if isinstance(atom, Literal) else self._producers.get(atom)
        return producer if producer is not None and producer.primitive.name == name else None

    def _find_vector(self, other: Atom, value: Var, axes: tuple[int, ...]) -> Var | None:
        """Return the vector of features that `other` broadcasts to the shape of `value`, or None."""
        producer = self._producers.get(other)
        if producer is None or producer.primitive.name not in ("broadcast_in_dim", "reshape"):
            return None
        vector, shape = producer.invars[0], get_aval(value).shape
        if isinstance(vector, Literal) or get_aval(vector).shape != tuple(shape[i] for i in axes):
            return None
        ones = tuple(size if i in axes else 1 for i, size in enumerate(shape))
        if producer.primitive.name == "reshape":
            fits = get_aval(other).shape == ones
        else:
            fits = tuple(producer.params["broadcast_dimensions"]) == axes
            fits = fits and get_aval(other).shape in (ones, shape)
        return vector if fits and get_aval(vector).dtype.name in TYPE_CODES else None

    def _find_array(self, other: Atom, value: Var) -> Atom | None:
        """Return `other` if it is a materialized array of the shape and dtype of `value`, or None."""
        producer = self._producers.get(other)
        if producer is not None and producer.primitive.name == "broadcast_in_dim":
            return None
        return other if _have_same_type(other, value) else None

    def _find_relu_mask(self, select: JaxprEqn, result: Atom) -> Var | None:
        """Return the array with positive elements where a gradient passes, or None."""
        predicate, *cases = select.invars
        if len(cases) != 2 or cases[1] is not result or not self._is_zero(cases[0]):
            return None
        comparison = self._find_producer(predicate, "gt")
        if comparison is None or not self._is_zero(comparison.invars[1]):
            return None
        mask = comparison.invars[0]
        return mask if not isinstance(mask, Literal) and _have_same_type(mask, result) else None


def _have_same_type(a: Atom, b: Atom) -> bool:
    first, second = get_aval(a), get_aval(b)
    return first.shape == second.shape and first.dtype == second.dtype


def _has_one_type(eqn: JaxprEqn) -> bool:
    """Check whether operands and result of an equation have one dtype, which the kernels support."""
    if any(isinstance(v, Literal) for v in eqn.invars):
        return False
    dtypes = {get_aval(v).dtype.name for v in (*eqn.invars, eqn.outvars[0])}
    return len(dtypes) == 1 and dtypes <= set(TYPE_CODES)


def _is_supported(conv: JaxprEqn) -> bool:
    """Check whether the kernels support a convolution: a forward one, or the gradient of its image."""
    parameters = conv.params
    layout = parameters["dimension_numbers"]
    dense = parameters["batch_group_count"] == 1 and all(d == 1 for d in parameters["lhs_dilation"])
    return (
        dense and _has_one_type(conv) and not is_kernel_gradient(get_aval(conv.invars[0]), layout)
    )


def _find_max_gradient(eqn: JaxprEqn) -> JaxprEqn | None:
    """Return the equation that computes a gradient of max pooling, maybe inside a call, or None."""
    if eqn.primitive in GATED_GRADIENTS:
        return eqn
    if eqn.primitive.name != "custom_vjp_call":
        return None
    body = to_open_jaxpr(eqn.params["call_jaxpr"])
    is_single = len(body.eqns) == 1 and body.outvars == body.eqns[0].outvars
    forwards = is_single and body.eqns[0].invars == body.invars
    return body.eqns[0] if forwards and body.eqns[0].primitive in GATED_GRADIENTS else None


def _find_relu_operand(eqn: JaxprEqn, is_zero: Callable[[Atom], bool]) -> Var | None:
    """Return the operand if the equation computes its ReLU, or None."""
    name = eqn.primitive.name
    if name == "max":
        a, b = eqn.invars
        operand = a if is_zero(b) else b if is_zero(a) else None
        return None if isinstance(operand, Literal) else operand
    if name in _CALLS and len(eqn.invars) == len(eqn.outvars) == 1:
        body = to_open_jaxpr(eqn.params[_CALLS[name]])
        is_zero_literal = lambda atom: isinstance(atom, Literal) and bool(np.all(atom.val == 0))
        is_single = len(body.eqns) == 1 and body.outvars == body.eqns[0].outvars
        if is_single and _find_relu_operand(body.eqns[0], is_zero_literal) is body.invars[0]:
            operand = eqn.invars[0]
            return None if isinstance(operand, Literal) else operand
    return None

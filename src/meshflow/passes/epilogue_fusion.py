"""Convolutions and products take in what surrounds them: vectors that their features are multiplied by or that
are added to them (biases, what batch normalisation comes to when it does not learn), arrays that are added
(what skips a few layers), a ReLU, the gradient of one, or a GELU. Convolutions also take in what is done to their
kernels, which are rounded from float32 and flipped for the gradient of an image. Gradients of maxima of
windows take in the gradient of a ReLU, too.

It is the last rewrite before a program is compiled, when no derivative is taken any more. A step is
taken in where nothing else reads the values between; what a comparison of these with zero tells is
told by the ReLU's result as well.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from meshflow.environment.jax_internals import jex_core
from meshflow.kernels.epilogues import convolution_p, features, product_p
from meshflow.kernels.library import TYPES
from meshflow.kernels.pooling import GATED
from meshflow.passes.jaxprs import everywhere, makers, opened, users
from meshflow.passes.patterns import gelu

__all__ = ["fuse_epilogues"]

# Calls that a ReLU comes in.
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr"}


class _Chain(NamedTuple):
    """Steps that follow an equation: where they are, their names, what they read, and the last's result."""

    parts: list[int]
    epilogue: list[str]
    operands: list[Any]
    result: Any


def fuse_epilogues(closed: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """The program with fused convolutions; the same object when there are none.

    Args:
      closed: a `ClosedJaxpr`.
    """
    of = ("conv_general_dilated", "dot_general", "gt", *[gradient.name for gradient in GATED])
    return everywhere(closed, lambda jaxpr, eqns: _Fusion(jaxpr, eqns).run(), of)


class _Fusion:
    """The convolutions of one jaxpr.

    Args:
      jaxpr: with the outputs.
      eqns: its equations.
    """

    def __init__(self, jaxpr: Any, eqns: list[Any]) -> None:
        self._eqns: list[Any] = eqns
        self._made, self._uses = makers(eqns), users(jaxpr, eqns)

    def run(self) -> list[Any]:
        """The equations, fused."""
        self._compare_results()
        for i, eqn in enumerate(self._eqns):
            if eqn is not None and eqn.primitive.name == "conv_general_dilated":
                self._fuse_convolution(i)
            elif eqn is not None and eqn.primitive.name == "dot_general":
                self._fuse_product(i)
            elif eqn is not None and (maxima := _gradient_of_maxima(eqn)) is not None:
                self._mask_windows(i, maxima)
        return [eqn for eqn in self._eqns if eqn is not None]

    def _compare_results(self) -> None:
        """Comparisons with zero are made with a ReLU's result instead of its operand."""
        rectified: dict[Any, Any] = {}
        for i, eqn in enumerate(self._eqns):
            operand = _rectified(eqn, self._zero)
            if operand is not None:
                rectified.setdefault(operand, eqn.outvars[0])
            elif eqn.primitive.name == "gt" and self._zero(eqn.invars[1]):
                old = eqn.invars[0]
                new = None if isinstance(old, jex_core.Literal) else rectified.get(old)
                if new is not None:
                    self._eqns[i] = eqn.replace(invars=[new, eqn.invars[1]])
                    self._made |= dict.fromkeys(eqn.outvars, self._eqns[i])
                    self._uses[old].remove(i)
                    self._uses.setdefault(new, []).append(i)

    def _fuse_convolution(self, at: int) -> None:
        conv = self._eqns[at]
        if not _is_plain(conv):
            return
        chain = self._chain(conv, (conv.params["dimension_numbers"].out_spec[1],))
        kernel, flipped = self._kernel(conv)
        if chain.epilogue or kernel is not conv.invars[1]:
            operands, added = [conv.invars[0], kernel], {"flipped": flipped, "packed": False}
            self._replace(at, chain, convolution_p, operands, {**conv.params, **added})

    def _fuse_product(self, at: int) -> None:
        product = self._eqns[at]
        if product.params.get("out_sharding") is not None or not _has_one_type(product):
            return
        axes = features(product.invars[1].aval, product.outvars[0].aval, product.params)
        chain = self._chain(product, axes)
        if any(step != "add" for step in chain.epilogue):
            self._replace(at, chain, product_p, product.invars, product.params)

    def _replace(
        self, at: int, chain: _Chain, primitive: Any, operands: Any, parameters: Any
    ) -> None:
        """Puts a primitive in the place of an equation and what follows it."""
        old = self._eqns[at]
        for part in (at, *chain.parts):
            self._eqns[part] = None
        # The last of the operands is known where the last step was.
        self._eqns[max((at, *chain.parts))] = old.replace(
            primitive=primitive,
            invars=[*operands, *chain.operands],
            outvars=[chain.result],
            params={**parameters, "epilogue": tuple(chain.epilogue)},
        )

    def _chain(self, eqn: Any, axes: tuple[int, ...]) -> _Chain:
        """The steps that follow an equation and that nobody else follows.

        Args:
          eqn: a convolution or product.
          axes: the dimensions of its result that are features.
        """
        value = eqn.outvars[0]
        dtype = value.aval.dtype
        parts: list[int] = []
        epilogue: list[str] = []
        operands: list[Any] = []
        found = _Chain([], [], [], value)
        while (taken := self._next(value, dtype, axes)) is not None:
            step, places, value = taken
            parts += places
            epilogue += step[:1]
            operands += step[1:]
            if value.aval.dtype == dtype:
                found = _Chain(list(parts), list(epilogue), list(operands), value)
        return found

    def _next(self, value: Any, dtype: Any, axes: tuple[int, ...]) -> Any:
        """What is done to a value that nothing else reads: a step, where it is, its result; or None."""
        unit = gelu(value, self._eqns, self._uses)
        if unit is not None:
            name, places, result = unit
            return [name], places, result
        where = self._only_use(value)
        if where is None or self._eqns[where] is None:
            return None
        step = self._step(self._eqns[where], value, dtype, axes)
        return None if step is None else (step, [where], self._eqns[where].outvars[0])

    def _step(self, eqn: Any, value: Any, dtype: Any, axes: tuple[int, ...]) -> list[Any] | None:
        """The name of a step and what it reads, nothing for a conversion; None where it is none."""
        name = eqn.primitive.name
        if name == "convert_element_type":
            return [] if eqn.outvars[0].aval.dtype in (dtype, np.float32) else None
        if _rectified(eqn, self._zero) is value:
            return ["relu"]
        if name == "select_n":
            mask = self._relu_mask(eqn, value)
            return None if mask is None else ["relu_mask", mask]
        if name not in ("add", "add_any", "mul"):
            return None
        others = [v for v in eqn.invars if v is not value]
        if len(others) != 1 or isinstance(others[0], jex_core.Literal):
            return None
        vector = self._vector(others[0], value, axes)
        if vector is not None:
            return ["scale" if name == "mul" else "add", vector]
        array = self._array(others[0], value)
        return None if array is None or name == "mul" else ["plus", array]

    def _mask_windows(self, at: int, maxima: Any) -> None:
        """A gradient of maxima takes in the gradient of the ReLU whose result these are taken of."""
        eqn = self._eqns[at]
        where = self._only_use(eqn.outvars[0])
        if where is None or self._eqns[where].primitive.name != "select_n":
            return
        if self._relu_mask(self._eqns[where], eqn.outvars[0]) is eqn.invars[0]:
            outvars, self._eqns[where] = self._eqns[where].outvars, None
            gated, parameters = GATED[maxima.primitive], maxima.params
            self._eqns[at] = eqn.replace(primitive=gated, outvars=outvars, params=parameters)

    def _only_use(self, var: Any) -> int | None:
        """The index of the only equation that reads a variable."""
        uses = self._uses.get(var, [])
        return uses[0] if len(uses) == 1 and uses[0] < len(self._eqns) else None

    def _zero(self, atom: Any) -> bool:
        """Whether a value is a zero, or an array of zeros."""
        if isinstance(atom, jex_core.Literal):
            return np.ndim(atom.val) == 0 and bool(atom.val == 0)
        made = self._made.get(atom)
        return (
            made is not None
            and made.primitive.name in ("broadcast_in_dim", "convert_element_type")
            and self._zero(made.invars[0])
        )

    def _kernel(self, conv: Any) -> tuple[Any, bool]:
        """A convolution's kernel before it was flipped and rounded; whether it was flipped."""
        kernel, flipped = conv.invars[1], False
        layout = conv.params["dimension_numbers"]
        made = self._maker(kernel, "rev")
        if made is not None and set(made.params["dimensions"]) == set(layout.rhs_spec[2:]):
            kernel, flipped = made.invars[0], True
        made = self._maker(kernel, "convert_element_type")
        if made is not None and made.invars[0].aval.dtype == np.float32:
            kernel = made.invars[0]
        return kernel, flipped

    def _maker(self, atom: Any, name: str) -> Any:
        """The equation that made a value, where it is of a primitive of that name; else None."""
        made = None if isinstance(atom, jex_core.Literal) else self._made.get(atom)
        return made if made is not None and made.primitive.name == name else None

    def _vector(self, other: Any, value: Any, axes: tuple[int, ...]) -> Any:
        """The values of features that an array of a result's shape repeats at every place, or None."""
        made = self._made.get(other)
        if made is None or made.primitive.name not in ("broadcast_in_dim", "reshape"):
            return None
        vector, shape = made.invars[0], value.aval.shape
        if isinstance(vector, jex_core.Literal) or vector.aval.shape != tuple(
            shape[i] for i in axes
        ):
            return None
        ones = tuple(size if i in axes else 1 for i, size in enumerate(shape))
        if made.primitive.name == "reshape":
            fits = other.aval.shape == ones
        else:
            fits = tuple(made.params["broadcast_dimensions"]) == axes
            fits = fits and other.aval.shape in (ones, shape)
        return vector if fits and vector.aval.dtype.name in TYPES else None

    def _array(self, other: Any, value: Any) -> Any:
        """An array of a result's shape as it lies in memory, or None."""
        made = self._made.get(other)
        if made is not None and made.primitive.name == "broadcast_in_dim":
            return None
        same = other.aval.shape == value.aval.shape and other.aval.dtype == value.aval.dtype
        return other if same else None

    def _relu_mask(self, select: Any, result: Any) -> Any:
        """The array whose positive elements let a gradient pass, or None."""
        which, *cases = select.invars
        if len(cases) != 2 or cases[1] is not result or not self._zero(cases[0]):
            return None
        made = None if isinstance(which, jex_core.Literal) else self._made.get(which)
        if made is None or made.primitive.name != "gt" or not self._zero(made.invars[1]):
            return None
        mask = made.invars[0]
        same = mask.aval.shape == result.aval.shape and mask.aval.dtype == result.aval.dtype
        return mask if same and not isinstance(mask, jex_core.Literal) else None


def _size(atom: Any, spec: Any) -> int:
    """The number of places of a convolution's operand."""
    return math.prod(atom.aval.shape[i] for i in spec[2:])


def _has_one_type(eqn: Any) -> bool:
    """Whether operands and result of an equation are of one type that there is code for."""
    if any(isinstance(v, jex_core.Literal) for v in eqn.invars):
        return False
    types = {v.aval.dtype.name for v in (*eqn.invars, eqn.outvars[0])}
    return len(types) == 1 and types <= set(TYPES)


def _is_plain(conv: Any) -> bool:
    """Whether there is code for such a convolution: a forward one, or the gradient of its image."""
    parameters = conv.params
    layout = parameters["dimension_numbers"]
    dense = parameters["batch_group_count"] == 1 and all(d == 1 for d in parameters["lhs_dilation"])
    # What slides over the image is larger than where it comes to: a kernel's gradient.
    window = _size(conv.invars[1], layout.rhs_spec)
    return dense and _has_one_type(conv) and window <= _size(conv.outvars[0], layout.out_spec)


def _gradient_of_maxima(eqn: Any) -> Any:
    """The equation that computes a gradient of maxima, in a call of its own or not, or None."""
    if eqn.primitive in GATED:
        return eqn
    if eqn.primitive.name != "custom_vjp_call":
        return None
    body = opened(eqn.params["call_jaxpr"])
    alone = len(body.eqns) == 1 and body.outvars == body.eqns[0].outvars
    whole = alone and body.eqns[0].invars == body.invars
    return body.eqns[0] if whole and body.eqns[0].primitive in GATED else None


def _rectified(eqn: Any, zero: Any) -> Any:
    """The operand of which an equation computes the ReLU, or None."""
    name = eqn.primitive.name
    if name == "max":
        a, b = eqn.invars
        operand = a if zero(b) else b if zero(a) else None
        return None if isinstance(operand, jex_core.Literal) else operand
    if name in _CALLS and len(eqn.invars) == len(eqn.outvars) == 1:
        body = opened(eqn.params[_CALLS[name]])
        constant = lambda atom: isinstance(atom, jex_core.Literal) and bool(np.all(atom.val == 0))
        alone = len(body.eqns) == 1 and body.outvars == body.eqns[0].outvars
        if alone and _rectified(body.eqns[0], constant) is body.invars[0]:
            return eqn.invars[0]
    return None

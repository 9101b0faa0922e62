"""Convolutions take in what surrounds them: a bias and a ReLU, or the gradient of a ReLU, and what is done
to their kernels, which are rounded from float32 and turned round for the gradient of an image. Gradients of
maxima of windows take in the gradient of a ReLU, too.

It is the last rewrite before a program is compiled, when no derivative is taken any more. A
convolution is fused where nothing else reads the values between; what a comparison of these with
zero tells is told by the ReLU's result as well.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jax.extend import core as jex_core

from meshflow.kernels.epilogues import finished_p
from meshflow.kernels.pooling import GATED
from meshflow.passes.jaxprs import everywhere, makers, opened, users

__all__ = ["fused"]

# Calls that a ReLU comes in.
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr"}


def fused(closed: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """The program with fused convolutions; the same object when there are none.

    Args:
      closed: a `ClosedJaxpr`.
    """
    return everywhere(closed, lambda jaxpr, eqns: _Fusion(jaxpr, eqns).run())


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
                self._fuse(i)
            elif eqn is not None and (maxima := _gradient_of_maxima(eqn)) is not None:
                self._gate_windows(i, maxima)
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

    def _fuse(self, at: int) -> None:
        conv = self._eqns[at]
        result, parts, bias, finish, gate = conv.outvars[0], [at], None, None, None
        if not _may_finish(conv):
            return
        where = self._only_use(result)
        if where is not None and self._eqns[where].primitive.name == "add":
            bias = self._bias(self._eqns[where], result, conv)
            if bias is not None:
                parts.append(where)
                result = self._eqns[where].outvars[0]
                where = self._only_use(result)
        if where is not None:
            last = self._eqns[where]
            if _rectified(last, self._zero) is result:
                finish = "relu"
            elif bias is None and last.primitive.name == "select_n":
                gate = self._gate(last, result)
                finish = None if gate is None else "gate"
            if finish is not None:
                parts.append(where)
                result = last.outvars[0]
        kernel, turned = self._kernel(conv)
        if len(parts) == 1 and kernel is conv.invars[1]:
            return
        # The last of the operands is known where the bias is added, or the gradient selected.
        place = parts[-1] if finish == "gate" else parts[1] if bias is not None else at
        for part in parts:
            self._eqns[part] = None
        operands = [v for v in (bias, gate) if v is not None]
        self._eqns[place] = conv.replace(
            primitive=finished_p,
            invars=[conv.invars[0], kernel, *operands],
            outvars=[result],
            params={
                **conv.params,
                **{"finish": finish, "bias": bias is not None, "turned": turned, "packed": False},
            },
        )

    def _gate_windows(self, at: int, maxima: Any) -> None:
        """A gradient of maxima takes in the gradient of the ReLU whose result these are taken of."""
        eqn = self._eqns[at]
        where = self._only_use(eqn.outvars[0])
        if where is None or self._eqns[where].primitive.name != "select_n":
            return
        if self._gate(self._eqns[where], eqn.outvars[0]) is eqn.invars[0]:
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
        """A convolution's kernel before it was turned round and rounded; whether it was turned."""
        kernel, turned = conv.invars[1], False
        layout = conv.params["dimension_numbers"]
        if _size(kernel, layout.rhs_spec) > _size(conv.outvars[0], layout.out_spec):
            # A kernel's gradient: what slides over the image is a result's gradient.
            return kernel, turned
        made = self._maker(kernel, "rev")
        if made is not None and set(made.params["dimensions"]) == set(layout.rhs_spec[2:]):
            kernel, turned = made.invars[0], True
        made = self._maker(kernel, "convert_element_type")
        if made is not None and made.invars[0].aval.dtype == np.float32:
            kernel = made.invars[0]
        return kernel, turned

    def _maker(self, atom: Any, name: str) -> Any:
        """The equation that made a value, where it is of a primitive of that name; else None."""
        made = None if isinstance(atom, jex_core.Literal) else self._made.get(atom)
        return made if made is not None and made.primitive.name == name else None

    def _bias(self, add: Any, result: Any, conv: Any) -> Any:
        """The vector that an addition adds to every place, or None."""
        others = [v for v in add.invars if v is not result]
        if len(others) != 1 or isinstance(others[0], jex_core.Literal):
            return None
        other, made = others[0], self._made.get(others[0])
        axis = conv.params["dimension_numbers"].out_spec[1]
        features = result.aval.shape[axis]
        if made is None or made.primitive.name not in ("broadcast_in_dim", "reshape"):
            return None
        vector = made.invars[0]
        if vector.aval.shape != (features,) or vector.aval.dtype != result.aval.dtype:
            return None
        ones = tuple(features if i == axis else 1 for i in range(result.aval.ndim))
        if made.primitive.name == "reshape":
            fits = other.aval.shape == ones
        else:
            fits = tuple(made.params["broadcast_dimensions"]) == (axis,)
            fits = fits and other.aval.shape in (ones, result.aval.shape)
        return vector if fits and not isinstance(vector, jex_core.Literal) else None

    def _gate(self, select: Any, result: Any) -> Any:
        """The array whose positive elements let a gradient pass, or None."""
        which, *cases = select.invars
        if len(cases) != 2 or cases[1] is not result or not self._zero(cases[0]):
            return None
        made = None if isinstance(which, jex_core.Literal) else self._made.get(which)
        if made is None or made.primitive.name != "gt" or not self._zero(made.invars[1]):
            return None
        gate = made.invars[0]
        same = gate.aval.shape == result.aval.shape and gate.aval.dtype == result.aval.dtype
        return gate if same and not isinstance(gate, jex_core.Literal) else None


def _size(atom: Any, spec: Any) -> int:
    """The number of places of a convolution's operand."""
    return math.prod(atom.aval.shape[i] for i in spec[2:])


def _may_finish(conv: Any) -> bool:
    """Whether there is code that finishes such a convolution."""
    parameters, out = conv.params, conv.outvars[0].aval
    plain = parameters["feature_group_count"] == parameters["batch_group_count"] == 1
    plain = plain and all(d == 1 for d in parameters["lhs_dilation"])
    types = {v.aval.dtype.name for v in (*conv.invars, conv.outvars[0])}
    return plain and out.ndim == 4 and types == {"bfloat16"}


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

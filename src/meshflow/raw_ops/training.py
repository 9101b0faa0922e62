"""Updates of variables by the formulas of optimizers: `ResourceApplyAdam`, `ResourceSparseApplyFtrl`, and so on.

Each formula returns the new values of the variable and of its slots. The sparse form applies it to some rows.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike, is_tensor
from meshflow.core.variables.variable import Variable
from meshflow.ops import array, math
from meshflow.ops.casting import cast

_Values = tuple[Tensor, ...]
# Arguments of an op by name.
Arguments: TypeAlias = Any


def _descend(a: Arguments) -> _Values:
    return (a.var - a.alpha * a.delta,)


def _momentum(a: Arguments) -> _Values:
    accum = a.accum * a.momentum + a.grad
    step = a.grad + a.momentum * accum if a.use_nesterov else accum
    return a.var - a.lr * step, accum


def _keras_momentum(a: Arguments) -> _Values:
    accum = a.accum * a.momentum - a.lr * a.grad
    return a.var + (accum * a.momentum - a.lr * a.grad if a.use_nesterov else accum), accum


def _average(old: Tensor, new: Tensor, decay: TensorLike) -> Tensor:
    return old + (new - old) * (1 - decay)


def _adam(a: Arguments) -> _Values:
    m, v = _average(a.m, a.grad, a.beta1), _average(a.v, a.grad * a.grad, a.beta2)
    rate = a.lr * math.sqrt(1 - a.beta2_power) / (1 - a.beta1_power)
    if hasattr(a, "vhat"):
        vhat = math.maximum(a.vhat, v)
        return a.var - rate * m / (math.sqrt(vhat) + a.epsilon), m, v, vhat
    step = _average(m, a.grad, a.beta1) if a.use_nesterov else m
    return a.var - rate * step / (math.sqrt(v) + a.epsilon), m, v


def _adamax(a: Arguments) -> _Values:
    m, v = _average(a.m, a.grad, a.beta1), math.maximum(a.beta2 * a.v, math.abs(a.grad))
    return a.var - a.lr / (1 - a.beta1_power) * m / (v + a.epsilon), m, v


def _adagrad(a: Arguments) -> _Values:
    accum = a.accum + a.grad * a.grad if a.update_slots else a.accum
    step = (
        a.grad * math.rsqrt(accum) if a.epsilon is None else a.grad / (math.sqrt(accum) + a.epsilon)
    )
    return a.var - a.lr * step, accum


def _adadelta(a: Arguments) -> _Values:
    accum = _average(a.accum, a.grad * a.grad, a.rho)
    step = math.sqrt(a.accum_update + a.epsilon) * math.rsqrt(accum + a.epsilon) * a.grad
    return a.var - a.lr * step, accum, _average(a.accum_update, step * step, a.rho)


def _rmsprop(a: Arguments) -> _Values:
    ms = _average(a.ms, a.grad * a.grad, a.rho)
    if hasattr(a, "mg"):
        mg = _average(a.mg, a.grad, a.rho)
        mom = a.mom * a.momentum + a.lr * a.grad * math.rsqrt(ms - mg * mg + a.epsilon)
        return a.var - mom, mg, ms, mom
    mom = a.mom * a.momentum + a.lr * a.grad * math.rsqrt(ms + a.epsilon)
    return a.var - mom, ms, mom


def _ftrl(a: Arguments) -> _Values:
    accum = a.accum + a.grad * a.grad
    grad = a.grad if a.l2_shrinkage is None else a.grad + 2 * a.l2_shrinkage * a.var
    old, new = (math.pow(value, -a.lr_power) for value in (a.accum, accum))
    if a.multiply_linear_by_lr:
        linear, l1, quadratic = (
            a.linear + a.lr * grad - (new - old) * a.var,
            a.l1 * a.lr,
            new + 2 * a.l2 * a.lr,
        )
    else:
        linear, l1, quadratic = (
            a.linear + grad - (new - old) / a.lr * a.var,
            a.l1,
            new / a.lr + 2 * a.l2,
        )
    var = (math.sign(linear) * l1 - linear) / quadratic
    return array.where(math.abs(linear) > l1, var, array.zeros_like(var)), accum, linear


def _shrink(value: Tensor, threshold: TensorLike) -> Tensor:
    """Move values towards 0 by a threshold."""
    return math.sign(value) * math.maximum(math.abs(value) - threshold, array.zeros_like(value))


def _proximal_descend(a: Arguments) -> _Values:
    return (_shrink(a.var - a.alpha * a.delta, a.alpha * a.l1) / (1 + a.l2 * a.alpha),)


def _proximal_adagrad(a: Arguments) -> _Values:
    accum = a.accum + a.grad * a.grad
    rate = a.lr * math.rsqrt(accum)
    return _shrink(a.var - a.grad * rate, rate * a.l1) / (1 + a.l2 * rate), accum


def _adagrad_da(a: Arguments) -> _Values:
    total = a.gradient_accumulator + a.grad
    squares = a.gradient_squared_accumulator + a.grad * a.grad
    step = math.cast(a.global_step, a.lr.dtype)
    divisor = a.l2 * step * a.lr + math.sqrt(squares)
    return -a.lr * _shrink(total, a.l1 * step) / divisor, total, squares


def _sign_update(a: Arguments) -> _Values:
    m = _average(a.m, a.grad, a.beta)
    agreement = a.sign_decay * math.sign(a.grad) * math.sign(m)
    scale = math.exp(a.logbase * agreement) if hasattr(a, "logbase") else a.alpha + agreement
    return a.var - a.lr * scale * a.grad, m


# Names of the slots, and formula, by the op's name without "ResourceApply".
_FORMULAS: dict[str, tuple[str, Callable[[Any], _Values]]] = {
    "AdaMax": ("m v", _adamax),
    "Adadelta": ("accum accum_update", _adadelta),
    "Adagrad": ("accum", _adagrad),
    "AdagradDA": ("gradient_accumulator gradient_squared_accumulator", _adagrad_da),
    "AdagradV2": ("accum", _adagrad),
    "Adam": ("m v", _adam),
    "AdamWithAmsgrad": ("m v vhat", _adam),
    "AddSign": ("m", _sign_update),
    "CenteredRMSProp": ("mg ms mom", _rmsprop),
    "Ftrl": ("accum linear", _ftrl),
    "FtrlV2": ("accum linear", _ftrl),
    "GradientDescent": ("", _descend),
    "KerasMomentum": ("accum", _keras_momentum),
    "Momentum": ("accum", _momentum),
    "PowerSign": ("m", _sign_update),
    "ProximalAdagrad": ("accum", _proximal_adagrad),
    "ProximalGradientDescent": ("", _proximal_descend),
    "RMSProp": ("ms mom", _rmsprop),
}
_OPTIONS = {
    "use_nesterov": False,
    "update_slots": True,
    "epsilon": None,
    "l2_shrinkage": None,
    "multiply_linear_by_lr": False,
    "use_locking": False,
    "name": None,
}
_STATIC = frozenset(_OPTIONS) - {"epsilon", "l2_shrinkage"}


def apply_formula(op: str, indices: TensorLike | None = None, **arguments: Any) -> None:
    """Update a variable and its slots.

    Args:
      op: Name of the formula, such as "Adam".
      indices: Rows that are updated, each at most once. Default: all rows.
      **arguments: Arguments of TensorFlow's op `ResourceApply...`.
    """
    slots, formula = _FORMULAS[op]
    names = ["var", *slots.split()]
    variables: list[Variable] = [arguments[name] for name in names]
    dtype = variables[0].dtype
    values = {**_OPTIONS, **arguments}
    if op == "ProximalGradientDescent" and "grad" in values:
        values["delta"] = values.pop("grad")
    for name, value in values.items():
        if name in names:
            values[name] = value.read_value() if indices is None else array.gather(value, indices)
        elif name not in _STATIC and name != "global_step" and value is not None:
            convert = cast if is_tensor(value) and name != "grad" else convert_to_tensor
            values[name] = convert(value, dtype)
    for variable, value in zip(variables, formula(SimpleNamespace(**values)), strict=True):
        if indices is None:
            variable.assign(value)
        else:
            variable.scatter_update(IndexedSlices(value, indices))


def _make_op(op: str) -> Callable[..., None]:
    def update(**arguments: Any) -> None:
        apply_formula(op, **arguments)

    return update


TRAINING_OPS: dict[str, Callable[..., None]] = {
    f"Resource{form}{op}": _make_op(op) for op in _FORMULAS for form in ("Apply", "SparseApply")
}

"""Divisions rounded down, lengths, sums, rounding and random numbers as LiteRT's operators; finders as in `deployment.idioms`."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from meshflow.deployment.equations import Equation, Value
from meshflow.deployment.idioms import Makers, number_of, with_constant

__all__ = ["FINDERS", "drawn"]


def _equal(one: Value, other: Value) -> bool:
    """Whether two values are one, or equal constants."""
    if one.least is other.least:
        return True
    known = one.constant, other.constant
    return known[0] is not None and known[1] is not None and np.array_equal(known[0], known[1])


_DRAWS = {"philox_uniform": "random_uniform", "philox_normal": "random_standard_normal"}


def drawn(states: Collection[Value], makers: Makers, equation: Equation) -> Equation | None:
    """Random numbers, drawn from a state that calls advance."""
    name = _DRAWS.get(equation.name)
    if name is None:
        return None
    waiting, seen = list(equation.inputs), set(states)
    while waiting:
        value = waiting.pop()
        maker = makers.made.get(value.least)
        if {value, value.least} & seen or value.constant is not None:
            continue
        if maker is None:
            return None
        seen.add(value)
        waiting += maker.inputs
    return Equation(name, [], [], {})


def _fake_quant(makers: Makers, equation: Equation) -> Equation | None:
    """Numbers rounded to the steps of a range, and held in it."""
    value, step = _constant_operand(equation, "mul")
    if value is None or not step or step <= 0:
        return None
    value, _ = _past(makers, value, "add")
    floor = makers.by(value, "floor")
    value, half = _past(makers, floor.inputs[0], "add") if floor else (value, 0.0)
    value, divisor = _past(makers, value, "div")
    value, low = _past(makers, value, "sub")
    inside, bounds = value, {}
    for name in ("min", "max"):
        made = makers.by(inside, name)
        parts = with_constant(made) if made else None
        found = number_of(parts[1]) if parts else None
        if parts is None or found is None:
            return None
        inside, bounds[name] = parts[0], found
    if (
        floor is None
        or half != 0.5
        or divisor != step
        or not math.isclose(low, bounds["max"], abs_tol=1e-9)
    ):
        return None
    count = (bounds["min"] - low) / step
    bits = math.ceil(math.log2(count + 1)) if count > 0 else 0
    narrow = round(2**bits - 1 - count)
    if narrow not in (0, 1) or not 2 <= bits <= 16:
        return None
    about = {"low": low, "high": bounds["min"], "bits": bits, "narrow": bool(narrow)}
    return Equation("fake_quant", [inside], [], about)


def _constant_operand(equation: Equation, name: str) -> tuple[Value | None, float | None]:
    parts = with_constant(equation) if equation.name == name else None
    return (None, None) if parts is None else (parts[0], number_of(parts[1]))


def _past(makers: Makers, value: Value, name: str) -> tuple[Value, float]:
    """The operand and the number of an equation, which is left out where it says nothing."""
    made = makers.by(value, name)
    source, number = _constant_operand(made, name) if made else (None, None)
    return (value, 0.0) if source is None or number is None else (source, number)


def _floor_mod(makers: Makers, equation: Equation) -> Equation | None:
    """The rest with the divisor's sign, made of that with the dividend's."""
    rest = makers.by(equation.inputs[1], "rem") if _is_choice(equation) else None
    if rest is None:
        return None
    which, _, chosen = equation.inputs
    total = makers.by(chosen, "add")
    if total is None or total.inputs[0].least is not rest.outputs[0]:
        return None
    if not _equal(total.inputs[1], rest.inputs[1]) or not _has_rest(makers, which, rest):
        return None
    return Equation("floor_mod", list(rest.inputs), [], {})


def _floor_div(makers: Makers, equation: Equation) -> Equation | None:
    """Division rounded down, made of that towards zero."""
    if equation.name == "round":
        choice = makers.by(equation.inputs[0], "select_n")
        if choice is None or equation.outputs[0].dtype.kind != "f":
            return None
    else:
        choice = equation
    if not _is_choice(choice) or choice.outputs[0].dtype.kind not in "if":
        return None
    which, quotient, chosen = choice.inputs
    division, less = makers.by(quotient, "div"), makers.by(chosen, "sub")
    if division is None or less is None or number_of(less.inputs[1]) != 1:
        return None
    if less.inputs[0].least is not division.outputs[0]:
        return None
    dividend, divisor = division.inputs
    if equation.name == "round":
        # (a - rest) / b, of numbers that have one.
        guarded = makers.by(dividend, "select_n")
        whole = makers.by(guarded.inputs[1] if guarded else dividend, "sub")
        rest = makers.by(whole.inputs[1], "rem") if whole else None
        if whole is None or rest is None or whole.inputs[0].least is not rest.inputs[0].least:
            return None
        if not _equal(rest.inputs[1], divisor) or not _has_rest(makers, which, rest):
            return None
        return Equation("floor_div", [whole.inputs[0], divisor], [], {})
    rests = [
        r for r in makers.readers(dividend) if r.name == "rem" and _equal(r.inputs[1], divisor)
    ]
    if not any(_has_rest(makers, which, r) for r in rests):
        return None
    return Equation("floor_div", [dividend, divisor], [], {})


def _is_choice(equation: Equation) -> bool:
    return equation.name == "select_n" and len(equation.inputs) == 3


def _has_rest(makers: Makers, which: Value, rest: Equation) -> bool:
    """Whether a value says that there is a rest, and that signs differ."""
    both = makers.by(which, "and")
    tests = [makers.by(v, "ne") for v in both.inputs] if both else []
    if len(tests) != 2 or None in tests:
        return False
    plain = [
        t
        for t in tests
        if t and t.inputs[0].least is rest.outputs[0] and number_of(t.inputs[1]) == 0
    ]
    signs = [t for t in tests if t and t not in plain]
    return len(plain) == 1 and all(
        v.constant is not None or makers.by(v, "lt", "sign") is not None
        for t in signs
        for v in t.inputs
    )


def _l2_normalized(makers: Makers, equation: Equation) -> Equation | None:
    """Rows divided by their lengths."""
    if equation.name != "mul":
        return None
    for source, factor in (equation.inputs, equation.inputs[::-1]):
        inverse = makers.by(factor, "div", "rsqrt")
        if inverse is None:
            continue
        root = inverse if inverse.name == "rsqrt" else makers.by(inverse.inputs[1], "sqrt")
        if inverse.name == "div" and number_of(inverse.inputs[0]) != 1:
            continue
        bounded = makers.by(root.inputs[0], "max") if root else None
        bound = with_constant(bounded) if bounded else None
        total = makers.by(bound[0], "reduce_sum") if bound else None
        square = makers.by(total.inputs[0], "square") if total else None
        if bound is None or total is None or square is None:
            continue
        last = (len(source.shape) - 1,)
        least = number_of(bound[1])
        if square.inputs[0].least is not source.least or tuple(total.params["axes"]) != last:
            continue
        if (
            least is not None
            and math.isclose(least, 1e-12, rel_tol=1e-3)
            and len(source.shape) <= 4
        ):
            return Equation("l2_normalization", [source], [], {})
    return None


def _inverse_root(makers: Makers, equation: Equation) -> Equation | None:
    """One divided by a root."""
    root = makers.by(equation.inputs[1], "sqrt") if equation.name == "div" else None
    if (
        root is None
        or number_of(equation.inputs[0]) != 1
        or equation.outputs[0].shape != root.outputs[0].shape
    ):
        return None
    return Equation("rsqrt", root.inputs, [], {})


def _exclusive(makers: Makers, equation: Equation) -> Equation | None:
    """Sums of what is before each element."""
    if equation.name != "concatenate" or len(equation.inputs) != 2:
        return None
    axis, (zero, rest) = equation.params["dimension"], equation.inputs
    part = makers.by(rest, "slice")
    sums = makers.by(part.inputs[0], "cumsum") if part else None
    if (
        part is None
        or sums is None
        or number_of(_filler(makers, zero)) != 0
        or zero.shape[axis] != 1
    ):
        return None
    if sums.params["axis"] != axis or sums.params["reverse"] or sums.params.get("exclusive"):
        return None
    size = sums.outputs[0].shape[axis]
    if any(part.params["start_indices"]) or part.outputs[0].shape[axis] != size - 1:
        return None
    return Equation("cumsum", sums.inputs, [], {**sums.params, "exclusive": True})


def _filler(makers: Makers, value: Value) -> Value:
    wide = makers.by(value, "broadcast")
    return wide.inputs[0] if wide else value


def _turned_sums(makers: Makers, equation: Equation) -> Equation | None:
    """Sums from the end, as sums of what is turned around."""
    sums = makers.by(equation.inputs[0], "cumsum") if equation.name == "rev" else None
    turn = makers.by(sums.inputs[0], "rev") if sums else None
    if sums is None or turn is None:
        return None
    axes = tuple(turn.params["dimensions"]), tuple(equation.params["dimensions"])
    if axes != ((sums.params["axis"],), (sums.params["axis"],)):
        return None
    params = {**sums.params, "reverse": not sums.params["reverse"]}
    return Equation("cumsum", turn.inputs, [], params)


FINDERS = (
    _fake_quant,
    _floor_mod,
    _floor_div,
    _l2_normalized,
    _inverse_root,
    _exclusive,
    _turned_sums,
)

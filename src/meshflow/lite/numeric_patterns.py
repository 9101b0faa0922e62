"""Patterns of LiteRT's numeric operators: floor division, norms, sums, rounding and random numbers.

They have the form of the patterns in `deployment.patterns`.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from meshflow.deployment.equations import Equation, Value
from meshflow.deployment.patterns import DataflowGraph, get_uniform_value, split_constant_operand


def _is_equal(x: Value, y: Value) -> bool:
    """Check whether two values are identical or equal constants."""
    if x.base is y.base:
        return True
    a, b = x.constant, y.constant
    return a is not None and b is not None and np.array_equal(a, b)


_RANDOM_OPERATORS = {"philox_uniform": "random_uniform", "philox_normal": "random_standard_normal"}


def fuse_random_numbers(
    states: Collection[Value], g: DataflowGraph, equation: Equation
) -> Equation | None:
    """Match random numbers that depend only on constants and on states of generators."""
    name = _RANDOM_OPERATORS.get(equation.name)
    if name is None:
        return None
    pending, seen = list(equation.inputs), set(states)
    while pending:
        value = pending.pop()
        producer = g.producers.get(value.base)
        if {value, value.base} & seen or value.constant is not None:
            continue
        if producer is None:
            return None
        seen.add(value)
        pending += producer.inputs
    return Equation(name, [], [], {})


def _fuse_fake_quant(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match rounding to the steps of a range after clipping to it."""
    value, step = _split_binary(equation, "mul")
    if value is None or not step or step <= 0:
        return None
    value, _ = _split_optional_binary(g, value, "add")
    floor = g.find_producer(value, "floor")
    value, half = _split_optional_binary(g, floor.inputs[0], "add") if floor else (value, 0.0)
    value, divisor = _split_optional_binary(g, value, "div")
    value, low = _split_optional_binary(g, value, "sub")
    clipped, bounds = value, {}
    for name in ("min", "max"):
        bound = g.find_producer(clipped, name)
        parts = split_constant_operand(bound) if bound else None
        limit = get_uniform_value(parts[1]) if parts else None
        if parts is None or limit is None:
            return None
        clipped, bounds[name] = parts[0], limit
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
    options = {"low": low, "high": bounds["min"], "bits": bits, "narrow": bool(narrow)}
    return Equation("fake_quant", [clipped], [], options)


def _split_binary(equation: Equation, name: str) -> tuple[Value | None, float | None]:
    parts = split_constant_operand(equation) if equation.name == name else None
    return (None, None) if parts is None else (parts[0], get_uniform_value(parts[1]))


def _split_optional_binary(g: DataflowGraph, value: Value, name: str) -> tuple[Value, float]:
    """Split an equation into operand and number; an absent equation has the number 0."""
    made = g.find_producer(value, name)
    source, number = _split_binary(made, name) if made else (None, None)
    return (value, 0.0) if source is None or number is None else (source, number)


def _fuse_floor_mod(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match a remainder that is corrected to the sign of the divisor."""
    remainder = g.find_producer(equation.inputs[1], "rem") if _is_binary_select(equation) else None
    if remainder is None:
        return None
    condition, _, corrected = equation.inputs
    total = g.find_producer(corrected, "add")
    if total is None or total.inputs[0].base is not remainder.outputs[0]:
        return None
    if not _is_equal(total.inputs[1], remainder.inputs[1]) or not _is_sign_correction(
        g, condition, remainder
    ):
        return None
    return Equation("floor_mod", list(remainder.inputs), [], {})


def _fuse_floor_div(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match a floor of a quotient, and an integer quotient that is corrected to floor division."""
    if equation.name == "floor":
        division = g.find_producer(equation.inputs[0], "div")
        return division and Equation("floor_div", list(division.inputs), [], {})
    if not _is_binary_select(equation) or equation.outputs[0].dtype.kind != "i":
        return None
    condition, quotient, corrected = equation.inputs
    division, decrement = g.find_producer(quotient, "div"), g.find_producer(corrected, "sub")
    if division is None or decrement is None or get_uniform_value(decrement.inputs[1]) != 1:
        return None
    if decrement.inputs[0].base is not division.outputs[0]:
        return None
    dividend, divisor = division.inputs
    rests = [
        r for r in g.get_consumers(dividend) if r.name == "rem" and _is_equal(r.inputs[1], divisor)
    ]
    if not any(_is_sign_correction(g, condition, r) for r in rests):
        return None
    return Equation("floor_div", [dividend, divisor], [], {})


def _is_binary_select(equation: Equation) -> bool:
    return equation.name == "select_n" and len(equation.inputs) == 3


def _is_sign_correction(g: DataflowGraph, condition: Value, remainder: Equation) -> bool:
    """Check whether a condition is a nonzero remainder together with different signs."""
    conjunction = g.find_producer(condition, "and")
    tests = [g.find_producer(v, "ne") for v in conjunction.inputs] if conjunction else []
    if len(tests) != 2 or None in tests:
        return False
    nonzero_tests = [
        t
        for t in tests
        if t and t.inputs[0].base is remainder.outputs[0] and get_uniform_value(t.inputs[1]) == 0
    ]
    sign_tests = [t for t in tests if t and t not in nonzero_tests]
    return len(nonzero_tests) == 1 and all(
        v.constant is not None or g.find_producer(v, "lt", "sign") is not None
        for t in sign_tests
        for v in t.inputs
    )


def _fuse_l2_normalization(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match the division of rows by their lengths."""
    if equation.name != "mul":
        return None
    for source, factor in (equation.inputs, equation.inputs[::-1]):
        inverse = g.find_producer(factor, "div", "rsqrt")
        if inverse is None:
            continue
        root = inverse if inverse.name == "rsqrt" else g.find_producer(inverse.inputs[1], "sqrt")
        if inverse.name == "div" and get_uniform_value(inverse.inputs[0]) != 1:
            continue
        bounded = g.find_producer(root.inputs[0], "max") if root else None
        bound = split_constant_operand(bounded) if bounded else None
        total = g.find_producer(bound[0], "reduce_sum") if bound else None
        square = g.find_producer(total.inputs[0], "square") if total else None
        if bound is None or total is None or square is None:
            continue
        last = (len(source.shape) - 1,)
        epsilon = get_uniform_value(bound[1])
        if square.inputs[0].base is not source.base or tuple(total.params["axes"]) != last:
            continue
        if (
            epsilon is not None
            and math.isclose(epsilon, 1e-12, rel_tol=1e-3)
            and len(source.shape) <= 4
        ):
            return Equation("l2_normalization", [source], [], {})
    return None


def _fuse_rsqrt(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match the inverse of a square root."""
    root = g.find_producer(equation.inputs[1], "sqrt") if equation.name == "div" else None
    if (
        root is None
        or get_uniform_value(equation.inputs[0]) != 1
        or equation.outputs[0].shape != root.outputs[0].shape
    ):
        return None
    return Equation("rsqrt", root.inputs, [], {})


def _fuse_exclusive_cumsum(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match a cumulative sum that padding with a zero shifts by one element."""
    sums = g.find_producer(equation.inputs[0], "cumsum") if equation.name == "pad" else None
    if sums is None or get_uniform_value(equation.inputs[1]) != 0:
        return None
    axis = sums.params["axis"]
    shift = [(int(i == axis), -int(i == axis), 0) for i in range(len(sums.outputs[0].shape))]
    config = [tuple(sizes) for sizes in equation.params["padding_config"]]
    if config != shift or sums.params["reverse"] or sums.params.get("exclusive"):
        return None
    return Equation("cumsum", sums.inputs, [], {**sums.params, "exclusive": True})


def _fuse_reverse_cumsum(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match the reverse of a cumulative sum of a reversed operand."""
    sums = g.find_producer(equation.inputs[0], "cumsum") if equation.name == "rev" else None
    reverse = g.find_producer(sums.inputs[0], "rev") if sums else None
    if sums is None or reverse is None:
        return None
    axes = tuple(reverse.params["dimensions"]), tuple(equation.params["dimensions"])
    if axes != ((sums.params["axis"],), (sums.params["axis"],)):
        return None
    params = {**sums.params, "reverse": not sums.params["reverse"]}
    return Equation("cumsum", reverse.inputs, [], params)


PATTERNS = (
    _fuse_fake_quant, _fuse_floor_mod, _fuse_floor_div, _fuse_l2_normalization, _fuse_rsqrt, _fuse_exclusive_cumsum, _fuse_reverse_cumsum,
)  # fmt: skip

"""Pattern matching and fusion on flat programs: pooling, softmax, means, clipping and activations.

A pattern is a function that takes an equation as the last one of a match and returns the fused
equation, or None. The matched equations are removed afterwards if they have no other consumers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from jax.export import is_symbolic_dim

from meshflow.core.values.symbolic_sizes import as_size
from meshflow.deployment.equations import DimSize, Equation, Program, Value, remove_unused_equations
from meshflow.deployment.gather_patterns import convert_gather_to_slice


def fuse_patterns(program: Program, patterns: Sequence[Pattern] = ()) -> Program:
    """Fuse patterns in a program and its nested programs.

    Args:
      program: the program; its nested programs are replaced in place.
      patterns: the patterns; default those of operators that every runtime has.
    """
    for pattern in patterns or _PATTERNS:
        program = _fuse_pattern(program, pattern)
    for equation in program.equations:
        for name, inner in equation.params.items():
            if isinstance(inner, Program):
                equation.params[name] = fuse_patterns(inner, patterns)
            elif name == "programs":
                equation.params[name] = [fuse_patterns(p, patterns) for p in inner]
    return program


def _fuse_pattern(program: Program, pattern: Pattern) -> Program:
    g, equations = DataflowGraph(program), []
    for equation in program.equations:
        fused = pattern(g, equation)
        if fused is not None:
            fused.outputs, fused.scope = equation.outputs, equation.scope
        equations.append(fused or equation)
    return remove_unused_equations(Program(program.inputs, program.outputs, equations))


class DataflowGraph:
    """Producers and consumers of the values of a program."""

    def __init__(self, program: Program) -> None:
        self.producers = {v: e for e in program.equations for v in e.outputs}
        self.results = {v.base for v in program.outputs}
        self._consumers: dict[Value, list[Equation]] = {}
        for equation in program.equations:
            for value in dict.fromkeys(v.base for v in equation.inputs):
                self._consumers.setdefault(value, []).append(equation)

    def get_consumers(self, value: Value) -> list[Equation]:
        """Return the equations that read a value."""
        return self._consumers.get(value.base, [])

    def find_producer(self, value: Value, *names: str) -> Equation | None:
        """Return the equation that computes a value if its primitive is one of `names`, else None."""
        equation = self.producers.get(value.base)
        return equation if equation is not None and equation.name in names else None


# A function that matches an equation as the last one of a pattern and returns the fused equation.
Pattern: TypeAlias = Callable[[DataflowGraph, Equation], Equation | None]


def _fuse_slice(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match a gather at evenly spaced indices."""
    return convert_gather_to_slice(equation)


def make_identity(value: Value) -> Equation:
    """Return an equation that forwards a value."""
    return Equation("reshape", [value], [], {"new_sizes": value.shape})


def get_uniform_value(value: Value) -> float | None:
    """Return the number that all elements of a constant equal, or None."""
    data = value.constant
    if data is None or not data.size or not (data == data.flat[0]).all():
        return None
    return float(data.flat[0]) if data.dtype.kind in "fiu" else None


def is_near(value: Value, number: float) -> bool:
    """Check whether all elements of a constant equal a number up to rounding."""
    uniform = get_uniform_value(value)
    return uniform is not None and math.isclose(uniform, number, rel_tol=1e-5)


def split_constant_operand(equation: Equation) -> tuple[Value, Value] | None:
    """Return the operand and the constant of a binary equation, or None if it has no constant."""
    x, y = equation.inputs
    if y.constant is not None:
        return x, y
    return (y, x) if x.constant is not None else None


# ---- reductions ----------------------------------------------------------------------------

_REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_mean")


def _fuse_keepdims(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match a reduction and a reshape that restores the reduced dimensions."""
    if equation.name != "reshape":
        return None
    reduction = g.find_producer(equation.inputs[0], *_REDUCTIONS)
    if reduction is None or reduction.params.get("keepdims"):
        return None
    source, axes = reduction.inputs[0], reduction.params["axes"]
    shape = tuple(1 if i in axes else d for i, d in enumerate(source.shape))
    if equation.outputs[0].shape != shape:
        return None
    return Equation(reduction.name, [source], [], {"axes": axes, "keepdims": True})


def _fuse_mean(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match a sum that is divided by the number of its elements."""
    if equation.name not in ("div", "mul"):
        return None
    total = g.find_producer(equation.inputs[0], "reduce_sum")
    divisor = get_uniform_value(equation.inputs[1])
    if total is None or total.outputs[0].dtype.kind != "f":
        return None
    sizes = [total.inputs[0].shape[a] for a in total.params["axes"]]
    if equation.name == "div" and _is_dynamic_size(g, equation.inputs[1], math.prod(sizes)):
        return Equation("reduce_mean", total.inputs, [], dict(total.params))
    if not divisor or not all(isinstance(d, int) for d in sizes):
        return None
    count = float(math.prod(sizes))
    if not math.isclose(divisor if equation.name == "div" else 1 / divisor, count, rel_tol=1e-6):
        return None
    if equation.outputs[0].shape != total.outputs[0].shape:
        return None
    return Equation("reduce_mean", total.inputs, [], dict(total.params))


def _is_dynamic_size(g: DataflowGraph, value: Value, size: DimSize) -> bool:
    """Check whether a value is a symbolic size, converted to another dtype."""
    cast = g.find_producer(value, "convert_element_type")
    known = g.find_producer(cast.inputs[0], "dim_as_value") if cast else None
    return known is not None and not isinstance(size, int) and known.params["dim"] == size


def _fuse_softmax(g: DataflowGraph, equation: Equation) -> Equation | None:
    if equation.name != "div":
        return None
    powers, total = (
        g.find_producer(equation.inputs[0], "exp"),
        g.find_producer(equation.inputs[1], "reduce_sum"),
    )
    if powers is None or total is None or total.inputs[0].base is not powers.outputs[0]:
        return None
    difference = g.find_producer(powers.inputs[0], "sub")
    if difference is None or len(total.params["axes"]) != 1:
        return None
    source, greatest = difference.inputs[0], g.find_producer(difference.inputs[1], "reduce_max")
    if greatest is None or greatest.inputs[0].base is not source:
        return None
    if greatest.params["axes"] != total.params["axes"]:
        return None
    return Equation("softmax", [source], [], {"axis": total.params["axes"][0]})


def _fuse_log_softmax(g: DataflowGraph, equation: Equation) -> Equation | None:
    if equation.name != "sub":
        return None
    logarithm = g.find_producer(equation.inputs[1], "log")
    total = g.find_producer(logarithm.inputs[0], "reduce_sum") if logarithm else None
    powers = g.find_producer(total.inputs[0], "exp") if total else None
    if total is None or powers is None or len(total.params["axes"]) != 1:
        return None
    shifted = powers.inputs[0]
    difference = g.find_producer(shifted, "sub")
    if difference is None or equation.inputs[0].base is not shifted.base:
        return None
    source, greatest = difference.inputs[0], g.find_producer(difference.inputs[1], "reduce_max")
    if greatest is None or greatest.inputs[0].base is not source.base:
        return None
    if greatest.params["axes"] != total.params["axes"]:
        return None
    return Equation("log_softmax", [source], [], {"axis": total.params["axes"][0]})


# ---- elementwise ---------------------------------------------------------------------------


def _fuse_clip(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match a selection between a value and a bound by a comparison of the two."""
    if equation.name != "select_n" or len(equation.inputs) != 3:
        return None
    condition, otherwise, chosen = equation.inputs
    test = g.find_producer(condition, "le", "lt", "ge", "gt")
    bound = None if test is None else get_uniform_value(test.inputs[1])
    if test is None or bound is None:
        return None
    for value, limit, below in ((chosen, otherwise, ("le", "lt")), (otherwise, chosen, ("ge", "gt"))):  # fmt: skip
        if test.inputs[0].base is value.base and get_uniform_value(limit) == bound:
            return Equation("min" if test.name in below else "max", [value, limit], [], {})
    return None


def _split_positive_select(g: DataflowGraph, equation: Equation) -> tuple[Value, Value] | None:
    """Return a value and its replacement where it is not positive."""
    if equation.name != "select_n" or len(equation.inputs) != 3:
        return None
    condition, otherwise, chosen = equation.inputs
    test = g.find_producer(condition, "ge", "gt")
    if test is None or test.inputs[0].base is not chosen.base or not is_near(test.inputs[1], 0):
        return None
    return chosen, otherwise


def _fuse_elu(g: DataflowGraph, equation: Equation) -> Equation | None:
    parts = _split_positive_select(g, equation)
    power = g.find_producer(parts[1], "expm1") if parts else None
    if parts is None or power is None:
        return None
    source, exponent = parts[0].base, power.inputs[0]
    negative = g.find_producer(exponent, "min")
    bound = split_constant_operand(negative) if negative else None
    if bound is not None and is_near(bound[1], 0):
        exponent = bound[0]
    return Equation("elu", [parts[0]], [], {}) if exponent.base is source else None


def _fuse_leaky_relu(g: DataflowGraph, equation: Equation) -> Equation | None:
    parts = _split_positive_select(g, equation)
    product = g.find_producer(parts[1], "mul") if parts else None
    scaled = split_constant_operand(product) if product else None
    if parts is None or scaled is None or scaled[0].base is not parts[0].base:
        return None
    slope = get_uniform_value(scaled[1])
    if slope is None or parts[0].dtype.kind != "f":
        return None
    return Equation("leaky_relu", [parts[0]], [], {"alpha": slope})


def _fuse_hard_swish(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match x * min(max(x + 3, 0), 6) / 6 in any order of the factors."""
    if equation.name not in ("mul", "div"):
        return None
    factors: list[Value] = []
    scale = 1.0
    pending = [equation]
    while pending:
        product = pending.pop()
        scaled = any(get_uniform_value(v) for v in product.inputs)
        for position, value in enumerate(product.inputs):
            number, inner = get_uniform_value(value), g.find_producer(value, "mul", "div")
            # A product without constants may be the operand itself.
            is_factor = inner is not None and (
                scaled or any(get_uniform_value(v) for v in inner.inputs)
            )
            if number:
                scale *= 1 / number if product.name == "div" and position else number
            elif product.name == "div" and position:
                return None
            elif inner is not None and is_factor and len(factors) + len(pending) < 2:
                pending.append(inner)
            else:
                factors.append(value)
    if len(factors) != 2 or not math.isclose(scale, 1 / 6, rel_tol=1e-5):
        return None
    for source, gate in (factors, factors[::-1]):
        if _is_hard_gate(g, gate, source):
            return Equation("hard_swish", [source], [], {})
    return None


def _is_hard_gate(g: DataflowGraph, gate: Value, source: Value) -> bool:
    """Check whether a value is min(max(x + 3, 0), 6)."""
    for name, number in (("min", 6), ("max", 0), ("add", 3)):
        producer = g.find_producer(gate, name)
        parts = split_constant_operand(producer) if producer else None
        if parts is None or not is_near(parts[1], number):
            return False
        gate = parts[0]
    return gate.base is source.base


def _fuse_abs(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match the product of a value and its sign."""
    if equation.name != "mul" or equation.outputs[0].dtype.kind != "f":
        return None
    for value, factor in (equation.inputs, equation.inputs[::-1]):
        sign = g.find_producer(factor, "sign")
        if sign is not None and sign.inputs[0].base is value.base:
            return Equation("abs", [value], [], {})
    return None


def _fuse_square_of_abs(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match the square of an absolute value."""
    is_square = equation.name == "square" or (
        equation.name == "integer_pow" and equation.params["y"] == 2
    )
    size = g.find_producer(equation.inputs[0], "abs") if is_square else None
    if size is None or size.inputs[0].dtype.kind != "f":
        return None
    return Equation("square", [size.inputs[0]], [], {})


def _fuse_gelu(g: DataflowGraph, equation: Equation) -> Equation | None:
    if equation.name != "mul" or equation.outputs[0].dtype.kind != "f":
        return None
    for half, gate in (equation.inputs, equation.inputs[::-1]):
        product = g.find_producer(half, "mul")
        scaled = split_constant_operand(product) if product else None
        if scaled is not None and is_near(scaled[1], 0.5):
            source = scaled[0]
            if _is_exact_gate(g, gate, source):
                return Equation("gelu", [source], [], {"approximate": False})
        # x * (0.5 * (1 + tanh(...)))
        product = g.find_producer(gate, "mul")
        scaled = split_constant_operand(product) if product else None
        if scaled is not None and is_near(scaled[1], 0.5) and _is_tanh_gate(g, scaled[0], half):
            return Equation("gelu", [half], [], {"approximate": True})
    return None


def _is_exact_gate(g: DataflowGraph, gate: Value, source: Value) -> bool:
    """Check whether a value is erfc(-x / sqrt(2))."""
    error = g.find_producer(gate, "erfc")
    product = g.find_producer(error.inputs[0], "mul") if error else None
    scaled = split_constant_operand(product) if product else None
    if scaled is None or not is_near(scaled[1], math.sqrt(0.5)):
        return False
    negated = g.find_producer(scaled[0], "neg")
    return negated is not None and negated.inputs[0].base is source.base


def _is_tanh_gate(g: DataflowGraph, gate: Value, source: Value) -> bool:
    """Check whether a value is 1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))."""
    total = g.find_producer(gate, "add")
    one = split_constant_operand(total) if total else None
    activation = g.find_producer(one[0], "tanh") if one and is_near(one[1], 1) else None
    product = g.find_producer(activation.inputs[0], "mul") if activation else None
    scaled = split_constant_operand(product) if product else None
    if scaled is None or not is_near(scaled[1], math.sqrt(2 / math.pi)):
        return False
    total = g.find_producer(scaled[0], "add")
    if total is None or total.inputs[0].base is not source.base:
        return False
    product = g.find_producer(total.inputs[1], "mul")
    scaled = split_constant_operand(product) if product else None
    cube = (
        g.find_producer(scaled[0], "integer_pow")
        if scaled and is_near(scaled[1], 0.044715)
        else None
    )
    return cube is not None and cube.params["y"] == 3 and cube.inputs[0].base is source.base


# ---- pooling -------------------------------------------------------------------------------


def _fuse_strided_slices(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match the maximum or sum of strided slices that are the elements of a window."""
    if equation.name not in ("max", "add"):
        return None
    parts = _collect_chain_operands(g, equation)
    slices = [g.find_producer(p, "slice") for p in parts]
    if len(parts) < 2 or any(s is None for s in slices):
        return None
    matches = [s for s in slices if s is not None]
    source = matches[0].inputs[0]
    strides = matches[0].params["strides"] or (1,) * len(source.shape)
    shape = equation.outputs[0].shape
    if any(
        s.inputs[0] is not source
        or (s.params["strides"] or (1,) * len(strides)) != strides
        or s.outputs[0].shape != shape
        for s in matches
    ):
        return None
    starts = {tuple(s.params["start_indices"]) for s in matches}
    size = tuple(max(places) + 1 for places in zip(*starts, strict=True))
    if starts != set(np.ndindex(*size)) or len(starts) != len(matches):
        return None
    window_counts = tuple(
        n if k == 1 and s == 1 else (n - k) // s + 1
        for n, k, s in zip(source.shape, size, strides, strict=True)
    )
    if window_counts != tuple(shape):
        return None
    return _make_pool(g, "max" if equation.name == "max" else "sum", source, size, strides)


def _collect_chain_operands(g: DataflowGraph, equation: Equation) -> list[Value]:
    """Return the operands of a left-leaning chain of one operation."""
    parts: list[Value] = []
    last: Equation | None = equation
    while last is not None and last.name == equation.name:
        parts.append(last.inputs[1])
        first = last.inputs[0]
        last = g.find_producer(first, equation.name)
        if last is None:
            parts.append(first)
    return parts[::-1]


def _fuse_reduce_window(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match the primitives that reduce windows."""
    params = equation.params
    if equation.name == "max_windows":
        size, strides, pads, dilations = params["windows"]
        reduction = "max"
    elif equation.name in ("reduce_window_max", "reduce_window_sum"):
        size, strides = params["window_dimensions"], params["window_strides"]
        pads, dilations = params["padding"], params["window_dilation"]
        reduction = "max" if equation.name.endswith("max") else "sum"
        if set(params["base_dilation"]) - {1}:
            return None
    else:
        return None
    source = equation.inputs[0]
    if not any(is_symbolic_dim(n) or n for pair in pads for n in pair):
        source, pads = _split_padding(g, reduction, source)
    window = {"kind": reduction, "size": size, "strides": strides, "dilations": dilations}
    return Equation("pool", [source], [], {**window, "pads": tuple(pads)})


def _make_pool(
    g: DataflowGraph, kind: str, source: Value, size: Sequence[int], strides: Sequence[int]
) -> Equation:
    """Return a pooling that includes the padding of its operand."""
    source, pads = _split_padding(g, kind, source)
    ones = (1,) * len(size)
    window = {"kind": kind, "size": tuple(size), "strides": tuple(strides), "dilations": ones}
    return Equation("pool", [source], [], {**window, "pads": pads})


def _split_padding(
    g: DataflowGraph, kind: str, source: Value
) -> tuple[Value, Sequence[tuple[DimSize, ...]]]:
    """Split an operand into an unpadded value and padding that does not change the pooling."""
    pad = g.find_producer(source, "pad")
    if pad is not None:
        config = [tuple(map(as_size, p)) for p in pad.params["padding_config"]]
        value = get_uniform_value(pad.inputs[1])
        neutral = 0.0 if kind == "sum" else -math.inf
        is_growing = all(is_symbolic_dim(n) or n >= 0 for p in config for n in p[:2])
        if value == neutral and is_growing and not any(p[2] for p in config):
            return pad.inputs[0], tuple(p[:2] for p in config)
    return source, ((0, 0),) * len(source.shape)


def _fuse_average_pool(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match a sum of windows that is divided by the number of their elements outside the padding."""
    if equation.name not in ("div", "mul"):
        return None
    total = g.find_producer(equation.inputs[0], "pool")
    if total is None or total.params["kind"] != "sum":
        return None
    ones = g.find_producer(equation.inputs[1], "pool")
    if equation.name == "div" and ones is not None:
        # For symbolic sizes, the elements are counted by summing ones.
        is_count = ones.params == total.params and is_near(ones.inputs[0], 1.0)
        params = {**total.params, "kind": "average"}
        return Equation("pool", total.inputs, [], params) if is_count else None
    if equation.inputs[1].constant is None:
        return None
    divisor = equation.inputs[1].constant
    if equation.name == "mul":
        divisor = 1 / divisor
    counts = _count_window_elements(total)
    if counts is None or np.broadcast_shapes(divisor.shape, counts.shape) != counts.shape:
        return None
    if not np.allclose(divisor, counts, rtol=1e-5):
        return None
    return Equation("pool", total.inputs, [], {**total.params, "kind": "average"})


def _count_window_elements(pool: Equation) -> np.ndarray | None:
    """Count the elements of each window outside the padding; other dimensions have size 1."""
    counts = np.ones((1,) * len(pool.params["size"]))
    keys = ("size", "strides", "pads", "dilations")
    for i, (k, s, (low, _), d) in enumerate(zip(*(pool.params[x] for x in keys), strict=True)):
        if k == 1:
            continue
        n, m = pool.inputs[0].shape[i], pool.outputs[0].shape[i]
        if not isinstance(n, int) or not isinstance(m, int):
            if low or d != 1:
                return None
            counts = counts * k
            continue
        indices = np.arange(m)[:, None] * s - low + np.arange(k) * d
        axis_counts = ((indices >= 0) & (indices < n)).sum(1)
        counts = counts * axis_counts.reshape([m if j == i else 1 for j in range(counts.ndim)])
    return counts


_PATTERNS: tuple[Pattern, ...] = (
    _fuse_slice, _fuse_abs, _fuse_square_of_abs, _fuse_clip, _fuse_keepdims, _fuse_mean, _fuse_softmax, _fuse_log_softmax, _fuse_gelu, _fuse_elu, _fuse_leaky_relu, _fuse_hard_swish, _fuse_reduce_window, _fuse_strided_slices, _fuse_average_pool,
)  # fmt: skip

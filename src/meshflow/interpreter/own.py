"""Rules of our own primitives of `kernels`; those without a rule run as the equations they represent.

Updates of variables process one block after the other, so that intermediate values stay in the
processor's caches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.environment.types import Primitive
from meshflow.interpreter.elementwise import iterate_blocks
from meshflow.interpreter.table import Compute, Equation, HostArray, Writer, rule
from meshflow.kernels import colors, recurrent, warping
from meshflow.kernels.composite_primitives import composites
from meshflow.kernels.elementwise import ElementwiseProgram

_UFUNCS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
    "abs": np.absolute,
    "sqrt": np.sqrt,
}


def _make_writer(write: Compute, equation: Equation) -> Writer:
    """Return a writer, given a function that writes the results to its last arguments."""
    specs = equation.outputs
    return Writer(lambda *xs: write(*xs, *[np.empty(s, t) for s, t in specs]), write)


@rule("adam_update", is_writer=True, is_elementwise=True)
def _update_by_adam(equation: Equation) -> Writer:
    dtype = equation.inputs[0].dtype
    epsilon = dtype.type(equation.params["epsilon"])

    def write(
        var: HostArray,
        grad: HostArray,
        mean: HostArray,
        square: HostArray,
        mean_rate: HostArray,
        square_rate: HostArray,
        rate: HostArray,
        *outs: HostArray,
    ) -> Sequence[HostArray]:
        for v, g, m, s, new_v, new_m, new_s in iterate_blocks([var, grad, mean, square, *outs]):
            step = np.subtract(g, m)
            step *= mean_rate
            step += m
            change = np.multiply(g, g)
            change -= s
            change *= square_rate
            change += s
            # The new values may replace any operand, which is not read below, except `v`.
            update = step * rate
            divisor = np.sqrt(change)
            divisor += epsilon
            update /= divisor
            update = np.subtract(v, update)
            new_v[...], new_m[...], new_s[...] = update, step, change
        return outs

    return _make_writer(write, equation)


def run_program(
    program: ElementwiseProgram, arrays: Sequence[Any], scalars: Sequence[Any]
) -> list[HostArray]:
    """Compute the results of an elementwise program; they may be its operands."""
    values = list(arrays)
    read = lambda value_id: values[value_id] if value_id >= 0 else scalars[~value_id]
    for operation, operands in program.steps:
        values.append(_UFUNCS[operation](*map(read, operands)))
    return [read(value_id) for value_id in program.results]


@rule("renewed", is_writer=True, is_elementwise=True)
def _update_arrays(equation: Equation) -> Writer:
    program = equation.params["rule"]
    num_arrays = program.num_arrays

    def write(*operands: HostArray) -> Sequence[HostArray]:
        scalars = operands[num_arrays : len(equation.inputs)]
        outs = operands[len(equation.inputs) :]
        for block in iterate_blocks([*operands[:num_arrays], *outs]):
            results = [np.array(r) for r in run_program(program, block[:num_arrays], scalars)]
            for out, result in zip(block[num_arrays:], results, strict=True):
                out[...] = result
        return outs

    return _make_writer(write, equation)


def sum_rows(rows: HostArray, indices: HostArray, count: int) -> tuple[HostArray, HostArray]:
    """Return the distinct indices of rows of a table with `count` rows, and the sum of the rows of each."""
    is_inside = (indices >= 0) & (indices < count)
    if not is_inside.all():
        rows, indices = rows[is_inside], indices[is_inside]
    order = np.argsort(indices, kind="stable")
    ordered = indices[order]
    if not len(ordered):
        return ordered, rows
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ordered[starts], np.add.reduceat(rows[order], starts, 0)


@rule("summed_rows")
def _sum_rows(equation: Equation) -> Compute:
    count = equation.params["count"]

    def run(rows: HostArray, indices: HostArray) -> list[HostArray]:
        unique, sums = sum_rows(rows, indices, count)
        # The other results are indices after the last row, and zeros.
        numbers = np.arange(count + 1, count + 1 + len(indices), dtype=indices.dtype)
        totals = np.zeros_like(rows)
        numbers[: len(unique)], totals[: len(unique)] = unique, sums
        return [numbers, totals]

    return run


@rule("updated_rows", is_writer=True, is_elementwise=True)
def _update_rows(equation: Equation) -> Writer:
    program = equation.params["rule"]
    num_arrays = program.num_arrays - 1

    def write(indices: HostArray, gradient: HostArray, *rest: HostArray) -> Sequence[HostArray]:
        arrays, scalars = rest[:num_arrays], rest[num_arrays : len(equation.inputs) - 2]
        outs = rest[len(equation.inputs) - 2 :]
        unique, total = sum_rows(gradient, indices, len(arrays[0]))
        results = run_program(program, [*(a[unique] for a in arrays), total], scalars)
        if any(
            out is array for i, out in enumerate(outs) for array in arrays[:i] + arrays[i + 1 :]
        ):
            arrays = tuple(np.array(a) for a in arrays)
        for out, array in zip(outs, arrays, strict=True):
            if out is not array:
                out[...] = array
        for out, result in zip(outs, results, strict=True):
            out[unique] = result
        return outs

    return _make_writer(write, equation)


@rule("changed_colors")
def _change_colors(equation: Equation) -> Compute:
    call = colors.make_host_call(equation.params["change"])
    return call or _bind_single(colors.changed_colors_p, equation)


@rule("warped_images")
def _warp_images(equation: Equation) -> Compute:
    call = warping.make_host_call(equation.inputs, equation.params)
    return call or _bind_single(warping.warped_images_p, equation)


def _bind_single(primitive: Primitive, equation: Equation) -> Compute:
    """Return a function that runs the equations of a primitive with one result."""
    run = _bind_equations(primitive, equation)
    return lambda *arrays: run(*arrays)[0]


def _bind_equations(primitive: Primitive, equation: Equation) -> Compute:
    """Return a function that runs the equations of one of our primitives."""
    compute = functools.partial(composites[primitive], **equation.params)
    specs = [jax.ShapeDtypeStruct(*spec) for spec in equation.inputs]
    program = equation.bind(jax.make_jaxpr(compute)(*specs), ())
    copies = program.is_copied

    def run(*arrays: HostArray) -> list[HostArray]:
        results = zip(program.run(arrays), copies, strict=True)
        return [np.array(r) if is_copied else r for r, is_copied in results]

    return run


@rule("recurrent_layer", "recurrent_layer_gradient")
def _run_recurrent_layer(equation: Equation) -> Compute:
    inputs, outputs, params = equation.inputs, equation.outputs, equation.params
    primitive = recurrent.layer_p if "saves" in params else recurrent.gradient_p
    call, dtype = recurrent.make_host_call(primitive, inputs, outputs, params)
    if call is None:
        return _bind_equations(primitive, equation)

    def run(*arrays: HostArray) -> list[HostArray]:
        operands = [
            np.ascontiguousarray(a, None if spec.dtype == bool else dtype)
            for a, spec in zip(arrays, inputs, strict=True)
        ]
        results = [np.empty(spec.shape, dtype) for spec in outputs]
        call(*operands, *results)
        return [r.astype(s.dtype, copy=False) for r, s in zip(results, outputs, strict=True)]

    return run


@rule("cross_entropy")
def _compute_cross_entropy(equation: Equation) -> Compute:
    dtype = np.dtype(equation.params["dtype"])
    specs = equation.outputs

    def run(logits: HostArray, index: HostArray) -> list[HostArray]:
        logits = logits.astype(dtype, copy=False)
        high = logits.max(-1)
        shifted = logits - high[..., None]
        chosen = _take_classes(shifted, index)
        np.exp(shifted, shifted)
        total = np.log(shifted.sum(-1))
        return [
            r.astype(s.dtype, copy=False)
            for r, s in zip((total - chosen, high, total), specs, strict=True)
        ]

    return run


def _take_classes(values: HostArray, index: HostArray) -> HostArray:
    """Read the value of each class; it is NaN for an index outside of the classes."""
    classes = values.shape[-1]
    flat = index.reshape(-1)
    if not flat.size:
        return np.zeros(index.shape, values.dtype)
    rows = values.reshape(-1, classes)
    if flat.min() < 0 or flat.max() >= classes:
        flat = np.where(flat < 0, flat + classes, flat)
        is_inside = (flat >= 0) & (flat < classes)
        chosen = rows[np.arange(len(flat)), np.clip(flat, 0, classes - 1)]
        return np.where(is_inside, chosen, values.dtype.type(np.nan)).reshape(index.shape)
    return rows[np.arange(len(flat)), flat].reshape(index.shape)


def _compute_slope(
    logits: HostArray, index: HostArray, high: HostArray, total: HostArray, dtype: np.dtype
) -> HostArray:
    """Return the softmax minus the one-hot label."""
    slope = np.subtract(logits.astype(dtype, copy=False), high[..., None], dtype=dtype)
    slope -= total[..., None]
    np.exp(slope, slope)
    slope -= np.arange(logits.shape[-1]) == index[..., None]
    return slope


@rule("cross_entropy_gradient")
def _compute_cross_entropy_gradient(equation: Equation) -> Compute:
    dtype, result = np.dtype(equation.params["dtype"]), equation.outputs[0].dtype

    def run(
        logits: HostArray, index: HostArray, high: HostArray, total: HostArray, g: HostArray
    ) -> HostArray:
        slope = _compute_slope(logits, index, high, total, dtype)
        slope *= g[..., None]
        return slope.astype(result, copy=False)

    return run


@rule("cross_entropy_tangent")
def _compute_cross_entropy_tangent(equation: Equation) -> Compute:
    dtype, result = np.dtype(equation.params["dtype"]), equation.outputs[0].dtype

    def run(
        logits: HostArray, index: HostArray, high: HostArray, total: HostArray, tangent: HostArray
    ) -> HostArray:
        slope = _compute_slope(logits, index, high, total, dtype)
        return (slope * tangent).sum(-1).astype(result, copy=False)

    return run

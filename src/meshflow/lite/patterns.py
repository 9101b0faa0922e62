"""Patterns of operators that only LiteRT has: lookups, one-hot encodings, unpacking and sorting.

They have the form of the patterns in `deployment.patterns`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection

import numpy as np
from jax.export import is_symbolic_dim

from meshflow.deployment.equations import Equation, Program, Shape, Value, remove_unused_equations
from meshflow.deployment.gather_patterns import try_classify_gather
from meshflow.deployment.patterns import (  # fmt: skip
    DataflowGraph,
    Pattern,
    fuse_patterns,
    get_uniform_value,
    make_identity,
    split_constant_operand,
)
from meshflow.lite import image_patterns as images
from meshflow.lite import numeric_patterns as numbers

# Equations that only move the elements of indices.
_INDEX_MOVES = ("reshape", "squeeze", "expand_dims", "transpose", "convert_element_type", "broadcast", "concatenate")  # fmt: skip


def fuse_lite_patterns(program: Program, states: Collection[Value] = ()) -> Program:
    """Fuse the patterns of operators that only LiteRT has.

    Args:
      program: a program in which the common patterns are fused.
      states: inputs that are states of random number generators.
    """
    if states:
        program = fuse_patterns(program, (functools.partial(numbers.fuse_random_numbers, states),))
    return _fuse_unpack(fuse_patterns(program, _PATTERNS))


def _remove_index_wrapping(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match the wrapping of negative indices, which LiteRT's lookups do not take."""
    if equation.name != "select_n" or len(equation.inputs) != 3:
        return None
    condition, index, wrapped = equation.inputs
    test, total = g.find_producer(condition, "lt"), g.find_producer(wrapped, "add")
    if test is None or total is None or get_uniform_value(test.inputs[1]) != 0:
        return None
    if not test.inputs[0].base is total.inputs[0].base is index.base:
        return None
    if index.shape != equation.outputs[0].shape or not _is_only_index(g, equation.outputs[0]):
        return None
    return make_identity(index)


def _is_only_index(g: DataflowGraph, value: Value) -> bool:
    """Check whether gathers and scatters use a value as their indices, and nothing else uses it."""
    consumers = g.get_consumers(value)
    if not consumers or value.base in g.results:
        return False
    return all(
        _is_only_index(g, c.outputs[0])
        if c.name in _INDEX_MOVES
        else (c.name == "gather" or c.name.startswith("scatter")) and c.inputs[1].base is value.base
        for c in consumers
    )


def _fuse_top_k_values(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match a gather of the elements at the indices of a top_k."""
    if equation.name != "gather":
        return None
    source, index = equation.inputs
    move = g.find_producer(index, "reshape")
    while move is not None:
        index = move.inputs[0]
        move = g.find_producer(index, "reshape")
    top = g.find_producer(index, "top_k")
    if top is None or index.base is not top.outputs[1] or try_classify_gather(equation) != "along":
        return None
    # JAX replaces -0.0 by 0.0 before it compares, as LiteRT's operator does itself.
    select = g.find_producer(top.inputs[0], "select_n")
    compared = select.inputs[1] if select is not None else top.inputs[0]
    if compared.base is not source.base or equation.outputs[0].shape != top.outputs[0].shape:
        return None
    top.inputs = [source]
    return make_identity(top.outputs[0])


def _fuse_one_hot(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match a comparison of indices with the numbers of all classes."""
    if equation.name == "select_n" and len(equation.inputs) == 3:
        condition, off, on = (equation.inputs[0], *map(get_uniform_value, equation.inputs[1:]))
    elif equation.name == "convert_element_type":
        condition, off, on = equation.inputs[0], 0.0, 1.0
    else:
        return None
    test = g.find_producer(condition, "eq")
    if test is None or off is None or on is None or test.inputs[0].dtype.kind not in "iu":
        return None
    parts = split_constant_operand(test)
    classes = None if parts is None else parts[1].constant
    if parts is None or classes is None or sum(n != 1 for n in classes.shape) != 1:
        return None
    axis = next(i for i, n in enumerate(classes.shape) if n != 1)
    index, depth = parts[0].base, classes.shape[axis]
    shape = (*index.shape[:axis], depth, *index.shape[axis + 1 :])
    if (
        len(index.shape) != classes.ndim
        or index.shape[axis] != 1
        or shape != equation.outputs[0].shape
    ):
        return None
    if not np.array_equal(classes.reshape(-1), np.arange(depth)):
        return None
    return Equation("one_hot", [index], [], {"axis": axis, "depth": depth, "on": on, "off": off})


def _fuse_unpack(program: Program) -> Program:
    """Replace the slices of all indices along a dimension by one "unpack"."""
    g = DataflowGraph(program)
    slices: dict[tuple[Value, int], dict[int, Equation]] = {}
    for equation in program.equations:
        drops_axis = equation.name in ("squeeze", "reshape")
        part = g.find_producer(equation.inputs[0], "slice") if drops_axis else None
        axis = None if part is None else _find_unpacked_axis(part, equation.outputs[0].shape)
        if part is not None and axis is not None:
            start = int(part.params["start_indices"][axis])
            slices.setdefault((part.inputs[0].base, axis), {})[start] = equation
    fused: dict[Equation, Equation] = {}
    removed: set[Equation] = set()
    for (source, axis), parts in slices.items():
        if len(parts) > 1 and len(parts) == source.shape[axis]:
            results = [parts[i].outputs[0] for i in range(len(parts))]
            first = min(parts.values(), key=program.equations.index)
            fused[first] = Equation("unpack", [source], results, {"axis": axis}, first.scope)
            removed.update(parts.values())
    equations = [fused.get(e, e) for e in program.equations if e in fused or e not in removed]
    return (
        remove_unused_equations(Program(program.inputs, program.outputs, equations))
        if fused
        else program
    )


def _find_unpacked_axis(part: Equation, shape: Shape) -> int | None:
    """Return the only dimension that is sliced, to one index, and missing in `shape`; None if its size is unknown."""
    full_shape = part.inputs[0].shape
    cut = [i for i, n in enumerate(part.outputs[0].shape) if n != full_shape[i]]
    if len(cut) != 1 or part.outputs[0].shape[cut[0]] != 1 or is_symbolic_dim(full_shape[cut[0]]):
        return None
    return cut[0] if (*full_shape[: cut[0]], *full_shape[cut[0] + 1 :]) == tuple(shape) else None


def _fuse_descending_sort(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match the reverse of an ascending sort, of values or of their reversed indices."""
    sort = g.find_producer(equation.inputs[0], "sort") if equation.name == "rev" else None
    if sort is None or tuple(equation.params["dimensions"]) != (sort.params["dimension"],):
        return None
    axis = sort.params["dimension"]
    if len(sort.inputs) == 1:
        return Equation("sort_down", sort.inputs, [], {"axis": axis, "part": 0})
    reverse = g.find_producer(sort.inputs[0], "rev")
    if reverse is None or sort.params["num_keys"] != 1:
        return None
    if not _is_index_along_axis(g, sort.inputs[1], axis, True):
        return None
    part = sort.outputs.index(equation.inputs[0].base)
    return Equation("sort_down", reverse.inputs, [], {"axis": axis, "part": part})


def _fuse_ascending_sort(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match an ascending sort of values, and optionally of their indices."""
    if equation.name != "sort" or equation.params["num_keys"] != 1:
        return None
    axis = equation.params["dimension"]
    if len(equation.inputs) > 2 or not all(
        _is_index_along_axis(g, v, axis) for v in equation.inputs[1:]
    ):
        return None
    return Equation("sort_up", equation.inputs[:1], [], {"axis": axis})


def _is_index_along_axis(
    g: DataflowGraph, value: Value, axis: int, descending: bool = False
) -> bool:
    """Check whether a value is the index along a dimension."""
    reverse = g.find_producer(value, "rev") if descending else None
    data = (reverse.inputs[0] if reverse else value).constant
    size = value.shape[axis]
    if data is None or not isinstance(size, int) or data.shape[axis] != size:
        return False
    indices = np.arange(size)[::-1] if descending and reverse is None else np.arange(size)
    return bool((data == indices.reshape([-1 if i == axis else 1 for i in range(data.ndim)])).all())


_PATTERNS: tuple[Pattern, ...] = (
    _remove_index_wrapping, _fuse_top_k_values, _fuse_one_hot, *images.PATTERNS, *numbers.PATTERNS, _fuse_descending_sort, _fuse_ascending_sort,
)  # fmt: skip

"""What several equations compute together that LiteRT has one operator for: here lookups, parts and orders.

Finders as in `deployment.idioms`, for what only LiteRT is asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from meshflow.deployment.equations import Equation, Program, Value, without_unused
from meshflow.deployment.gathering import rows_of
from meshflow.deployment.idioms import Makers, number_of, same_value, with_constant, with_idioms
from meshflow.lite import image_idioms as images
from meshflow.lite import number_idioms as numbers

__all__ = ["with_operators"]

# Equations that only move the elements of indices.
_MOVES = ("reshape", "squeeze", "expand_dims", "transpose", "convert_element_type", "broadcast", "concatenate")  # fmt: skip


def with_operators(program: Program, states: Collection[Value] = ()) -> Program:
    """The program with one equation for what LiteRT has one operator for.

    Args:
      program: with the idioms that all runtimes have.
      states: those of its inputs that random numbers are drawn from.
    """
    if states:
        program = with_idioms(program, (functools.partial(numbers.drawn, states),))
    return _unpacked(with_idioms(program, _FINDERS))


def _wrapped(makers: Makers, equation: Equation) -> Equation | None:
    """Indices that may be counted from the end: LiteRT's lookups, as TensorFlow's, take no negative ones."""
    if equation.name != "select_n" or len(equation.inputs) != 3:
        return None
    which, index, later = equation.inputs
    test, total = makers.by(which, "lt"), makers.by(later, "add")
    if test is None or total is None or number_of(test.inputs[1]) != 0:
        return None
    if not test.inputs[0].least is total.inputs[0].least is index.least:
        return None
    if index.shape != equation.outputs[0].shape or not _picks(makers, equation.outputs[0]):
        return None
    return same_value(index)


def _picks(makers: Makers, value: Value) -> bool:
    """Whether a value is nothing but the index of lookups."""
    readers = makers.readers(value)
    if not readers or value.least in makers.results:
        return False
    return all(
        _picks(makers, r.outputs[0])
        if r.name in _MOVES
        else (r.name == "gather" or r.name.startswith("scatter"))
        and r.inputs[1].least is value.least
        for r in readers
    )


def _greatest(makers: Makers, equation: Equation) -> Equation | None:
    """The elements at the places of the greatest ones are these themselves."""
    if equation.name != "gather":
        return None
    source, index = equation.inputs
    move = makers.by(index, "reshape")
    while move is not None:
        index = move.inputs[0]
        move = makers.by(index, "reshape")
    top = makers.by(index, "top_k")
    if top is None or index.least is not top.outputs[1] or rows_of(equation) != "along":
        return None
    # Zeros of both signs are made one before they are compared, which LiteRT does itself.
    choice = makers.by(top.inputs[0], "select_n")
    compared = choice.inputs[1] if choice is not None else top.inputs[0]
    if compared.least is not source.least or equation.outputs[0].shape != top.outputs[0].shape:
        return None
    top.inputs = [source]
    return same_value(top.outputs[0])


def _one_hot(makers: Makers, equation: Equation) -> Equation | None:
    """Comparisons with all class numbers."""
    if equation.name == "select_n" and len(equation.inputs) == 3:
        which, off, on = (equation.inputs[0], *map(number_of, equation.inputs[1:]))
    elif equation.name == "convert_element_type":
        which, off, on = equation.inputs[0], 0.0, 1.0
    else:
        return None
    test = makers.by(which, "eq")
    if test is None or off is None or on is None or test.inputs[0].dtype.kind not in "iu":
        return None
    parts = with_constant(test)
    classes = None if parts is None else parts[1].constant
    if parts is None or classes is None or sum(n != 1 for n in classes.shape) != 1:
        return None
    axis = next(i for i, n in enumerate(classes.shape) if n != 1)
    index, depth = parts[0].least, classes.shape[axis]
    whole = (*index.shape[:axis], depth, *index.shape[axis + 1 :])
    if (
        len(index.shape) != classes.ndim
        or index.shape[axis] != 1
        or whole != equation.outputs[0].shape
    ):
        return None
    if not np.array_equal(classes.reshape(-1), np.arange(depth)):
        return None
    return Equation("one_hot", [index], [], {"axis": axis, "depth": depth, "on": on, "off": off})


def _unpacked(program: Program) -> Program:
    """The program with one equation for all the slices that a tensor is taken apart into."""
    makers = Makers(program)
    found: dict[tuple[Value, int], dict[int, Equation]] = {}
    for equation in program.equations:
        part = (
            makers.by(equation.inputs[0], "slice")
            if equation.name in ("squeeze", "reshape")
            else None
        )
        axis = None if part is None else _axis_of_one(part, equation.outputs[0].shape)
        if part is not None and axis is not None:
            start = int(part.params["start_indices"][axis])
            found.setdefault((part.inputs[0].least, axis), {})[start] = equation
    first: dict[Equation, Equation] = {}
    gone: set[Equation] = set()
    for (source, axis), parts in found.items():
        if len(parts) > 1 and len(parts) == source.shape[axis]:
            results = [parts[i].outputs[0] for i in range(len(parts))]
            begin = min(parts.values(), key=program.equations.index)
            first[begin] = Equation("unpack", [source], results, {"axis": axis}, begin.scope)
            gone.update(parts.values())
    kept = [first.get(e, e) for e in program.equations if e in first or e not in gone]
    return without_unused(Program(program.inputs, program.outputs, kept)) if first else program


def _axis_of_one(part: Equation, shape: Any) -> int | None:
    """The dimension of which a slice has one index, if it has all of the others and loses this one."""
    whole = part.inputs[0].shape
    cut = [i for i, n in enumerate(part.outputs[0].shape) if n != whole[i]]
    if len(cut) != 1 or part.outputs[0].shape[cut[0]] != 1:
        return None
    return cut[0] if (*whole[: cut[0]], *whole[cut[0] + 1 :]) == tuple(shape) else None


def _descending(makers: Makers, equation: Equation) -> Equation | None:
    """The reverse of an ascending order; of places, that of what was turned around."""
    order = makers.by(equation.inputs[0], "sort") if equation.name == "rev" else None
    if order is None or tuple(equation.params["dimensions"]) != (order.params["dimension"],):
        return None
    axis = order.params["dimension"]
    if len(order.inputs) == 1:
        return Equation("sort_down", order.inputs, [], {"axis": axis, "part": 0})
    turn = makers.by(order.inputs[0], "rev")
    if (
        turn is None
        or order.params["num_keys"] != 1
        or not _counts(makers, order.inputs[1], axis, True)
    ):
        return None
    part = order.outputs.index(equation.inputs[0].least)
    return Equation("sort_down", turn.inputs, [], {"axis": axis, "part": part})


def _ascending(makers: Makers, equation: Equation) -> Equation | None:
    """Numbers, and perhaps their places, in ascending order."""
    if equation.name != "sort" or equation.params["num_keys"] != 1:
        return None
    axis = equation.params["dimension"]
    if len(equation.inputs) > 2 or not all(_counts(makers, v, axis) for v in equation.inputs[1:]):
        return None
    return Equation("sort_up", equation.inputs[:1], [], {"axis": axis})


def _counts(makers: Makers, value: Value, axis: int, down: bool = False) -> bool:
    """Whether a value counts the places along a dimension."""
    turn = makers.by(value, "rev") if down else None
    known = (turn.inputs[0] if turn else value).constant
    size = value.shape[axis]
    if known is None or not isinstance(size, int) or known.shape[axis] != size:
        return False
    numbers = np.arange(size)[::-1] if down and turn is None else np.arange(size)
    return bool(
        (known == numbers.reshape([-1 if i == axis else 1 for i in range(known.ndim)])).all()
    )


_FINDERS: tuple[Callable[[Makers, Equation], Equation | None], ...] = (
    _wrapped, _greatest, _one_hot, *images.FINDERS, *numbers.FINDERS, _descending, _ascending,
)  # fmt: skip

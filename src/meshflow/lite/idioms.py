"""What several equations compute together that LiteRT has one operator for: lookups, resizing, rounded division.

Finders as in `deployment.idioms`, for what only LiteRT is asked for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from meshflow.deployment.equations import Equation, Program, Value, without_unused
from meshflow.deployment.gathering import Rows, read
from meshflow.deployment.idioms import Makers, number_of, with_constant, with_idioms
from meshflow.deployment.lowering import Refused
from meshflow.ops.image.resampling import weights

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
        program = with_idioms(program, (functools.partial(_drawn, states),))
    return _unpacked(with_idioms(program, _FINDERS))


def _same(value: Value) -> Equation:
    return Equation("reshape", [value], [], {"new_sizes": value.shape})


def _equal(one: Value, other: Value) -> bool:
    """Whether two values are one, or equal constants."""
    if one.least is other.least:
        return True
    known = one.constant, other.constant
    return known[0] is not None and known[1] is not None and np.array_equal(known[0], known[1])


# ---- lookups -------------------------------------------------------------------------------


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
    return _same(index)


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
    if top is None or index.least is not top.outputs[1] or _rows(equation) != "along":
        return None
    # Zeros of both signs are made one before they are compared, which LiteRT does itself.
    choice = makers.by(top.inputs[0], "select_n")
    compared = choice.inputs[1] if choice is not None else top.inputs[0]
    if compared.least is not source.least or equation.outputs[0].shape != top.outputs[0].shape:
        return None
    top.inputs = [source]
    return _same(top.outputs[0])


def _rows(equation: Equation) -> Rows | str | None:
    try:
        return read(equation, equation.inputs[0].shape, equation.inputs[1].shape)
    except Refused:
        return None


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


# ---- parts and orders ----------------------------------------------------------------------


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


# ---- random numbers ------------------------------------------------------------------------


def _drawn(states: Collection[Value], makers: Makers, equation: Equation) -> Equation | None:
    """Random numbers, drawn from a state that calls advance."""
    name = {"philox_uniform": "random_uniform", "philox_normal": "random_standard_normal"}.get(
        equation.name
    )
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


def _is_near(value: Value, number: float) -> bool:
    found = number_of(value)
    return found is not None and math.isclose(found, number, rel_tol=1e-5)


# ---- images --------------------------------------------------------------------------------


def _resized(makers: Makers, equation: Equation) -> Equation | None:
    """Products with the weights of bilinear interpolation along height and width."""
    second = makers.by(equation.inputs[0], "dot_general") if equation.name == "transpose" else None
    first = makers.by(second.inputs[0], "dot_general") if second else None
    if first is None or second is None or len(first.inputs[0].shape) != 4:
        return None
    places: list[Any] = [0, 1, 2, 3]
    for product in (first, second):
        matrix, (contracted, batch) = (
            product.inputs[1].constant,
            product.params["dimension_numbers"],
        )
        if matrix is None or matrix.ndim != 2 or batch != ((), ()) or tuple(contracted[1]) != (1,):
            return None
        (axis,) = contracted[0]
        if places[axis] not in (1, 2) or not _is_bilinear(matrix):
            return None
        places = [p for i, p in enumerate(places) if i != axis] + [(places[axis], "new")]
    turned = [places[i] for i in equation.params["permutation"]]
    if turned != [0, (1, "new"), (2, "new"), 3]:
        return None
    return Equation("resize", [first.inputs[0]], [], {"method": "bilinear"})


def _is_bilinear(matrix: np.ndarray) -> bool:
    expected = weights(*matrix.shape, "bilinear", False)
    return bool(np.allclose(matrix, expected, rtol=0, atol=1e-6))


def _nearest(makers: Makers, equation: Equation) -> Equation | None:
    """Lookups of the nearest rows, then of the nearest columns."""
    if not _takes_nearest(equation, 2):
        return None
    rows = makers.by(equation.inputs[0], "gather")
    if rows is None or not _takes_nearest(rows, 1):
        return None
    return Equation("resize", [rows.inputs[0]], [], {"method": "nearest"})


def _takes_nearest(equation: Equation, axis: int) -> bool:
    if equation.name != "gather" or len(equation.inputs[0].shape) != 4:
        return False
    places, how = equation.inputs[1].constant, _rows(equation)
    others = [i for i in range(4) if i != axis]
    if (
        places is None
        or not isinstance(how, Rows)
        or how.axes != [axis]
        or list(how.offsets) != others
    ):
        return False
    new, old = places.size, equation.inputs[0].shape[axis]
    scale = np.float32(old / new)
    expected = np.minimum(
        np.floor((np.arange(new, dtype=np.float32) + np.float32(0.5)) * scale), old - 1
    )
    return new != old and np.array_equal(places.reshape(-1), expected)


def _blocks(makers: Makers, equation: Equation) -> Equation | None:
    """Squares of an image that become channels, or images of a batch, and the other way round."""
    turn = makers.by(equation.inputs[0], "transpose") if equation.name == "reshape" else None
    apart = makers.by(turn.inputs[0], "reshape") if turn else None
    if turn is None or apart is None or len(equation.outputs[0].shape) != 4:
        return None
    source, cut, order = apart.inputs[0], turn.inputs[0].shape, tuple(turn.params["permutation"])
    if len(source.shape) != 4 or len(cut) != 6:
        return None
    b, h, w, c = source.shape
    whole = equation.outputs[0].shape
    if order == (0, 1, 3, 2, 4, 5):
        size = cut[2] if cut[2] == cut[4] else cut[3]
        if cut == (b, whole[1], size, whole[2], size, c):
            return Equation("space_to_depth", [source], [], {"size": size})
        if cut == (b, h, w, size, size, whole[3]) and cut[3] == cut[4]:
            return Equation("depth_to_space", [source], [], {"size": size})
    if order == (2, 4, 0, 1, 3, 5) and cut == (b, whole[1], cut[2], whole[2], cut[4], c):
        return Equation("space_to_batch", [source], [], {"sizes": [cut[2], cut[4]]})
    if order == (2, 3, 0, 4, 1, 5) and cut == (cut[0], cut[1], whole[0], h, w, c):
        return Equation("batch_to_space", [source], [], {"sizes": [cut[0], cut[1]]})
    return None


def _mirrored(makers: Makers, equation: Equation) -> Equation | None:
    """A tensor with its own edges, reversed, before and behind it."""
    if equation.name != "concatenate" or len(equation.inputs) != 2:
        return None
    axis, (longer, behind) = equation.params["dimension"], equation.inputs
    first = makers.by(longer, "concatenate")
    if first is None or len(first.inputs) != 2 or first.params["dimension"] != axis:
        return None
    before, source = first.inputs
    low, size = before.shape[axis], source.shape[axis]
    if not isinstance(size, int):
        return None
    start = _reversed_part(makers, before, source, axis)
    end = _reversed_part(makers, behind, longer, axis)
    if start is None or end is None or start not in (0, 1):
        return None
    high = behind.shape[axis]
    # The last `high` elements, without the very last one if the first one is left out, too.
    if end != low + size - high - start:
        return None
    pads = [(low, high) if i == axis else (0, 0) for i in range(len(source.shape))]
    return Equation("mirror_pad", [source], [], {"pads": pads, "mode": start})


def _reversed_part(makers: Makers, value: Value, source: Value, axis: int) -> int | None:
    """Where the elements that a value has in reverse order begin."""
    turn = makers.by(value, "rev")
    if turn is None or tuple(turn.params["dimensions"]) != (axis,):
        return None
    part = makers.by(turn.inputs[0], "slice")
    if part is None:
        return 0 if turn.inputs[0].least is source.least else None
    starts = list(part.params["start_indices"])
    ones = part.params["strides"] is None or set(part.params["strides"]) == {1}
    if (
        part.inputs[0].least is not source.least
        or not ones
        or any(s for i, s in enumerate(starts) if i != axis)
    ):
        return None
    others = [i for i in range(len(source.shape)) if i != axis]
    if any(part.outputs[0].shape[i] != source.shape[i] for i in others):
        return None
    return int(starts[axis])


# ---- arithmetic ----------------------------------------------------------------------------


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


_FINDERS: tuple[Callable[[Makers, Equation], Equation | None], ...] = (
    _fake_quant, _wrapped, _greatest, _one_hot, _resized, _nearest, _blocks, _mirrored, _floor_mod, _floor_div, _l2_normalized, _inverse_root, _exclusive,
    _turned_sums, _descending, _ascending,
)  # fmt: skip

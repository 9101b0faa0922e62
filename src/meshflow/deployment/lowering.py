"""Programs written for another runtime by a table of one function for each primitive: what all such tables share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from jax import lax

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.deployment.equations import Equation, Program, Value

__all__ = ["Lowering", "Refused", "holder", "is_number", "joined", "same_pads"]


class Refused(Exception):
    """A primitive cannot be converted; the message says why."""


def is_number(size: Any) -> bool:
    """Whether a size is known."""
    return isinstance(size, (int, np.integer))


def holder(tensors: Iterable[Any], name: str) -> tuple[Any, int, int]:
    """The tensor that has a symbol's size, or a multiple of it, its dimension, and which multiple.

    Raises:
      Refused: when none has.
    """
    for tensor in tensors:
        for place, size in enumerate(tensor.shape):
            times, _, symbol = str(size).rpartition("*")
            if symbol == name and (not times or times.isdigit()):
                return tensor, place, int(times or 1)
    raise Refused(f"the size {name} is not that of an input")


def same_pads(shape: Sequence[Any], windows: Sequence[int], strides: Sequence[int]) -> Any:
    """What 'SAME' puts before and after each dimension, also of sizes that vary.

    Args:
      shape: sizes.
      windows: how far each window reaches.
      strides: steps.
    """
    found = lax.padtype_to_pads(shape, windows, strides, "SAME")
    return [tuple(int(n) if is_number(n) else n for n in pair) for pair in found]


def joined(one: Sequence[Any], other: Sequence[Any]) -> tuple[Any, ...]:
    """The shape that two shapes broadcast to."""
    rank = max(len(one), len(other))
    pairs = zip([1] * (rank - len(one)) + [*one], [1] * (rank - len(other)) + [*other], strict=True)
    return tuple(b if is_number(a) and a == 1 else a for a, b in pairs)


class Lowering:
    """Writes a program for a runtime.

    Its tensors are objects with `shape`, `dtype` and, of constants, `data`.

    Attributes:
      runtime: its name in errors.
      caller: whose name errors begin with.
      handlers: a function for each primitive, of a lowering and an equation.
    """

    runtime: ClassVar[str]
    caller: ClassVar[str]
    handlers: ClassVar[dict[str, Callable[[Any, Equation], Any]]]

    def __init__(self) -> None:
        self._tensors: dict[Value, Any] = {}
        self._computed: dict[Any, Any] = {}
        self._constants: dict[Any, tuple[np.ndarray, Any]] = {}
        self._scope = ""

    @classmethod
    def lowers(cls, *names: str) -> Callable[[Any], Any]:
        """Says which primitives a function converts."""

        def remember(handler: Any) -> Any:
            cls.handlers.update(dict.fromkeys(names, handler))
            return handler

        return remember

    # ---- what a runtime is asked for ---------------------------------------------------------

    def make_constant(self, array: np.ndarray) -> Any:
        """A tensor of known elements."""
        raise NotImplementedError

    def broadcast(self, tensor: Any, shape: Sequence[Any]) -> Any:
        """A tensor repeated where it has size 1."""
        raise NotImplementedError

    def reshape(self, tensor: Any, shape: Sequence[Any]) -> Any:
        """A tensor's elements in another shape."""
        raise NotImplementedError

    def transpose(self, tensor: Any, order: Sequence[int]) -> Any:
        """A tensor with its dimensions in another order."""
        raise NotImplementedError

    def slice(self, tensor: Any, starts: Any, limits: Any, strides: Any = None) -> Any:
        """Elements between bounds; the limit of a size that varies is the size itself."""
        raise NotImplementedError

    def cast(self, tensor: Any, dtype: Any) -> Any:
        """A tensor in another dtype."""
        raise NotImplementedError

    def arithmetic(self, name: str, one: Any, other: Any) -> Any:
        """'add', 'sub', 'mul', 'floordiv', 'mod', 'max' or 'min' of two tensors."""
        raise NotImplementedError

    def variable_size(self, name: str) -> Any:
        """The size that a symbol stands for, a scalar."""
        raise NotImplementedError

    size_dtype: ClassVar[Any] = np.int32

    # ---- programs --------------------------------------------------------------------------

    def run(self, program: Program, inputs: Sequence[Any]) -> list[Any]:
        """The results of a program.

        Args:
          program: the program.
          inputs: tensors for its inputs.

        Raises:
          UnimplementedError: for a primitive that cannot be converted, naming it, its layer and why.
        """
        self._tensors.update(zip(program.inputs, inputs, strict=True))
        for equation in program.equations:
            self._convert(equation)
        return [self.full(value) for value in program.outputs]

    def _convert(self, equation: Equation) -> None:
        self._scope = equation.scope
        handler = self.handlers.get(equation.name, _COMMON.get(equation.name))
        try:
            if handler is None:
                raise Refused(
                    f"{self.runtime} has no operator for it, nor is it made of others here"
                )
            results = handler(self, equation)
        except Refused as error:
            where = f"of layer {equation.scope!r}" if equation.scope else "outside of layers"
            shapes = ", ".join(f"{v.dtype.name}{list(v.shape)}" for v in equation.inputs)
            raise UnimplementedError(
                f"{self.caller}: the primitive {equation.name!r} {where} with operands {shapes} cannot be converted: "
                f"{error}."
            ) from None
        results = results if isinstance(results, list) else [results]
        self._tensors.update(zip(equation.outputs, results, strict=True))

    # ---- tensors and sizes -------------------------------------------------------------------

    def least(self, value: Value) -> Any:
        """A value's tensor, without what broadcasting repeats."""
        value = value.least
        if value.known is not None:
            return self.constant(value.known)
        return self._tensors[value]

    def full(self, value: Value) -> Any:
        """A value's tensor in its whole shape."""
        if value not in self._tensors:
            tensor = self.least(value)
            if tensor.shape == value.shape:
                return tensor
            self._tensors[value] = self.broadcast(tensor, value.shape)
        return self._tensors[value]

    def constant(self, array: Any) -> Any:
        """A tensor of known elements, the same for the same ones."""
        given = np.asarray(array)
        small = given.size < 64
        key = (given.dtype.str, given.shape, given.tobytes()) if small else id(given)
        if key not in self._constants:
            # With what it was made of, whose identity nothing else may get meanwhile.
            self._constants[key] = given, self.make_constant(given)
        return self._constants[key][1]

    def size(self, size: Any) -> Any:
        """A size as a scalar."""
        if is_number(size):
            return self.constant(np.asarray(size, self.size_dtype))
        if size not in self._computed:
            terms = [self._term(term, count) for term, count in size._sorted_terms]
            self._computed[size] = functools.reduce(
                functools.partial(self.arithmetic, "add"), terms
            )
        return self._computed[size]

    def _term(self, term: Any, count: int) -> Any:
        """A product of symbols and what is computed of them; the empty one is 1."""
        factors = [self._factor(f) for f, power in term._factors for _ in range(power)]
        if count != 1 or not factors:
            factors.append(self.size(count))
        return functools.reduce(functools.partial(self.arithmetic, "mul"), factors)

    def _factor(self, factor: Any) -> Any:
        if factor.var is not None:
            return self.variable_size(factor.var)
        return self.arithmetic(factor.operation, *map(self.size, factor.operands))


# ---- primitives that are one method of every runtime's --------------------------------------


def _reshape(l: Lowering, e: Equation) -> Any:
    value, order = l.full(e.inputs[0]), e.params.get("dimensions")
    if e.name == "reshape" and order is not None:
        value = l.transpose(value, order)
    return l.reshape(value, e.outputs[0].shape)


def _transpose(l: Lowering, e: Equation) -> Any:
    return l.transpose(l.full(e.inputs[0]), e.params["permutation"])


def _slice(l: Lowering, e: Equation) -> Any:
    p = e.params
    return l.slice(l.full(e.inputs[0]), p["start_indices"], p["limit_indices"], p["strides"])


def _broadcast(l: Lowering, e: Equation) -> Any:
    return l.broadcast(l.least(e.inputs[0]), e.outputs[0].shape)


def _tile(l: Lowering, e: Equation) -> Any:
    value, times = l.full(e.inputs[0]), e.params["reps"]
    # Repeated dimensions get one of size 1 before them, which broadcasting makes larger.
    apart, wide = [], []
    for size, number in zip(value.shape, times, strict=True):
        more = number != 1
        apart += [1, size] if more else [size]
        wide += [number, size] if more else [size]
    return l.reshape(l.broadcast(l.reshape(value, apart), wide), e.outputs[0].shape)


def _size(l: Lowering, e: Equation) -> Any:
    return l.cast(l.size(e.params["dim"]), e.outputs[0].dtype)


_COMMON: dict[str, Callable[[Any, Equation], Any]] = {
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    "transpose": _transpose,
    "slice": _slice,
    "tile": _tile,
    "broadcast": _broadcast,
    "dim_as_value": _size,
}
